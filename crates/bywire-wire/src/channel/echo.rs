//! Echo requests and replies between two services: datagrams of a channel, so each may be lost.
//!
//! ```text
//! kind u8 (1 request, 2 reply) · number u64 · padding
//! ```
//!
//! A reply is as long as its request, so nobody is sent more than it has sent.

use crate::connection::Connection;
use crate::frame::Lane;
use crate::handshake::PublicKey;

use super::shared::Shared;
use super::status::Event;

/// The shortest echo.
pub const ECHO_BYTES_MIN: usize = 9;
/// The longest echo.
pub const ECHO_BYTES_MAX: usize = 8192;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;

/// A received echo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Echo {
    /// The reply to send.
    Request(Vec<u8>),
    /// The number of the request.
    Reply(u64),
}

/// A request. Its length is brought within the limits.
pub fn request(number: u64, bytes: usize) -> Vec<u8> {
    let mut request = vec![0; bytes.clamp(ECHO_BYTES_MIN, ECHO_BYTES_MAX)];
    request[0] = REQUEST;
    request[1..ECHO_BYTES_MIN].copy_from_slice(&number.to_le_bytes());
    request
}

/// The echo in a datagram. `None`: it is none.
pub fn read(mut datagram: Vec<u8>) -> Option<Echo> {
    if datagram.len() > ECHO_BYTES_MAX {
        return None;
    }
    let number = u64::from_le_bytes(*datagram.get(1..)?.first_chunk()?);
    match datagram[0] {
        REQUEST => {
            datagram[0] = REPLY;
            Some(Echo::Request(datagram))
        }
        REPLY => Some(Echo::Reply(number)),
        _ => None,
    }
}

/// Answers an echo request, or reports a reply.
pub(super) fn take(
    node: PublicKey,
    bytes: Vec<u8>,
    connection: &mut Connection<Vec<u8>>,
    events_max: usize,
    shared: &mut Shared,
) {
    match read(bytes) {
        // A reply without room is lost, as it could be on the network.
        Some(Echo::Request(reply)) => {
            let _ = connection.send_datagram(Lane::Low, &reply);
        }
        Some(Echo::Reply(number)) if shared.events.len() < events_max => {
            shared.events.push_back(Event::Echo { node, number });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_as_long_as_its_request_and_has_its_number() {
        for bytes in [0, ECHO_BYTES_MIN, 64, ECHO_BYTES_MAX, usize::MAX] {
            let sent = request(7 << 40, bytes);
            assert!((ECHO_BYTES_MIN..=ECHO_BYTES_MAX).contains(&sent.len()));
            let Some(Echo::Request(reply)) = read(sent.clone()) else { panic!("{bytes}") };
            assert_eq!(reply.len(), sent.len());
            assert_eq!(read(reply), Some(Echo::Reply(7 << 40)));
        }
    }

    #[test]
    fn datagrams_that_are_too_short_or_too_long_or_of_another_kind_are_no_echo() {
        let good = request(1, 64);
        for wrong in
            [Vec::new(), vec![REQUEST], vec![REPLY; 8], vec![0; 64], vec![REQUEST; ECHO_BYTES_MAX + 1]]
        {
            assert_eq!(read(wrong), None);
        }
        assert!(read(good).is_some());
    }
}
