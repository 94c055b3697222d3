//! Messages of known length over a kernel byte stream, as a program with fixed records sends them: one call for each
//! send, and reads that take all available bytes.

use std::time::Duration;

use anyhow::{Context, Result};
use bywire_sys::preloadable;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::gone;
use super::socket::{Framing, SocketEnd, greeting, prepare};
use crate::endpoint::Received;
use crate::plan::{End, Plan};

/// The buffer through which short messages are read.
const BUFFER_BYTES: usize = 128 << 10;
/// From this length on a read stops at the end of the message, so that no byte is copied twice.
const EXACT_BYTES_MIN: usize = 64 << 10;
/// With several lanes in one thread, a long message moves in pieces of this length, as in a program that serves several
/// connections.
const TURN_BYTES: usize = 64 << 10;

/// One end of a connected byte stream.
pub type ByteStream = SocketEnd<Bytes>;

/// Messages one after the other.
pub struct Bytes {
    /// The bytes of the outgoing message that are sent.
    sent: usize,
    /// The range of unread bytes in the incoming buffer.
    start: usize,
    end: usize,
    /// The most bytes that one call moves before other lanes have their turn.
    turn_bytes: usize,
}

fn end_of(socket: OwnedFd, plan: &Plan, end: End, lane: usize) -> Result<ByteStream> {
    let turn_bytes = if plan.lanes() > 1 { TURN_BYTES } else { usize::MAX };
    SocketEnd::new(socket, plan, end, lane, BUFFER_BYTES, Bytes { sent: 0, start: 0, end: 0, turn_bytes })
}

impl Framing for Bytes {
    #[inline]
    fn push(end: &mut ByteStream, length: usize, flags: SendFlags) -> Result<bool> {
        let Bytes { sent, turn_bytes, .. } = &mut end.framing;
        while *sent < length {
            let until = length.min(sent.saturating_add(*turn_bytes));
            end.calls.made += 1;
            match preloadable::send(&end.socket, &end.outgoing[*sent..until], flags | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    *sent += count;
                    if *sent < length && count >= *turn_bytes {
                        return Ok(false);
                    }
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(gone()),
                Err(errno) => return Err(errno).context("send failed"),
            }
        }
        (*sent, end.is_filled) = (0, false);
        end.calls.sent += 1;
        Ok(true)
    }

    #[inline]
    fn pull(end: &mut ByteStream, flags: RecvFlags) -> Result<Option<Received>> {
        loop {
            if let Some(received) = Self::take(end)? {
                return Ok(Some(received));
            }
            let Bytes { start, end: filled, turn_bytes, .. } = &mut end.framing;
            let limit = if end.receive_length >= EXACT_BYTES_MIN {
                *start + end.receive_length
            } else {
                end.incoming.len()
            };
            let limit = limit.min(filled.saturating_add(*turn_bytes));
            end.calls.made += 1;
            match preloadable::receive(&end.socket, &mut end.incoming[*filled..limit], flags) {
                Ok(0) => return Err(gone()),
                Ok(count) => {
                    *filled += count;
                    if count >= *turn_bytes {
                        return Self::take(end);
                    }
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(gone()),
                Err(errno) => return Err(errno).context("receive failed"),
            }
        }
    }

    /// The next whole message that has been read already. Otherwise makes room for the rest of it.
    #[inline]
    fn take(end: &mut ByteStream) -> Result<Option<Received>> {
        let length = end.receive_length;
        let Bytes { start, end: filled, .. } = &mut end.framing;
        if *filled - *start >= length {
            let received = end.reader.read(&end.incoming[*start..*start + length])?;
            end.calls.received += 1;
            *start += length;
            if *start == *filled {
                (*start, *filled) = (0, 0);
            }
            return Ok(Some(received));
        }
        if *start + length > end.incoming.len() {
            end.incoming.copy_within(*start..*filled, 0);
            (*start, *filled) = (0, *filled - *start);
        }
        Ok(None)
    }
}

/// How long a connection may take to say which pair it belongs to.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepts connections by `accept` until every lane of the plan has its greeting. Other connections are dropped.
pub(super) fn accept_lanes(
    plan: &Plan,
    mut accept: impl FnMut() -> rustix::io::Result<OwnedFd>,
) -> Result<Vec<ByteStream>> {
    let mut lanes: Vec<Option<ByteStream>> = (0..plan.lanes()).map(|_| None).collect();
    while lanes.iter().any(Option::is_none) {
        let socket = match accept() {
            // A wait ended early by its time-out or a signal. The worker's deadline limits the whole.
            Err(Errno::AGAIN | Errno::INTR) => continue,
            accepted => accepted?,
        };
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(GREETING_TIMEOUT))?;
        let mut greeted = vec![0; greeting(plan, 0).len()];
        if preloadable::receive(&socket, &mut greeted[..], RecvFlags::WAITALL) != Ok(greeted.len()) {
            continue;
        }
        if let Some(lane) = (0..lanes.len()).find(|&lane| greeting(plan, lane) == greeted) {
            prepare(socket.as_fd(), plan)?;
            lanes[lane] = Some(end_of(socket, plan, End::Target, lane)?);
        }
    }
    Ok(lanes.into_iter().flatten().collect())
}

/// Sends the greeting on every lane over sockets that `connect` opens.
pub(super) fn connect_lanes(
    plan: &Plan,
    mut connect: impl FnMut() -> Result<OwnedFd>,
) -> Result<Vec<ByteStream>> {
    (0..plan.lanes())
        .map(|lane| {
            let socket = connect()?;
            prepare(socket.as_fd(), plan)?;
            preloadable::send(&socket, &greeting(plan, lane), SendFlags::NOSIGNAL)
                .context("cannot greet the target")?;
            end_of(socket, plan, End::Source, lane)
        })
        .collect()
}
