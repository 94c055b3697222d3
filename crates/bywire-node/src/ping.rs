//! Asks a node's service for echoes of other nodes, for `bywire ping`.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use bywire_sys::Errno;
use bywire_sys::socket::{Received, Socket};
use bywire_wire::service::{self, Notice, PACKET_BYTES_MAX, Request, VERSION};

pub use bywire_wire::channel::echo::{ECHO_BYTES_MAX, ECHO_BYTES_MIN};
pub use bywire_wire::service::NotPinged;

use crate::client::{self, ClientError};

/// A connection to this machine's service for echo requests. It is readable when there are replies.
#[derive(Debug)]
pub struct Pinger {
    socket: Socket,
}

/// The answer of the service to an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The number of the request.
    pub request: u32,
    /// The round trip and the address of the other service, or why nothing was sent.
    pub outcome: Result<(Duration, SocketAddr), NotPinged>,
}

impl Pinger {
    /// Calls the service.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(runtime_directory: Option<&Path>) -> Result<Self, ClientError> {
        Ok(Self { socket: client::open(runtime_directory)? })
    }

    /// Asks for an echo of this length. `false`: the service has not read earlier requests yet, or has ended, which
    /// [`Self::next`] reports.
    ///
    /// # Errors
    /// [`ClientError::Silent`].
    pub fn send(&self, node: &str, request: u32, bytes: u16) -> Result<bool, ClientError> {
        let request = Request::Ping { version: VERSION, node: node.to_owned(), request, bytes };
        let packet = service::to_bytes(&request).map_err(|_| ClientError::Silent)?;
        match self.socket.send(&packet, &[]) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            // What it has said before is read first.
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(false),
            Err(_) => Err(ClientError::Silent),
        }
    }

    /// The next reply. `None`: there is none now.
    ///
    /// # Errors
    /// [`ClientError`]: there will be none.
    pub fn next(&self) -> Result<Option<Reply>, ClientError> {
        let mut packet = [0; PACKET_BYTES_MAX];
        match self.socket.receive_from_own(&mut packet) {
            Ok(Received::Nothing) => Ok(None),
            Ok(Received::Packet(length, _)) => match service::from_bytes(&packet[..length]) {
                Ok(Notice::Pong { request, rtt_ns, address }) => {
                    Ok(Some(Reply { request, outcome: Ok((Duration::from_nanos(rtt_ns), address)) }))
                }
                Ok(Notice::NotPinged { request, reason }) => {
                    Ok(Some(Reply { request, outcome: Err(reason) }))
                }
                Ok(Notice::Refused(reason)) => Err(client::refusal(reason)),
                _ => Err(ClientError::Silent),
            },
            Ok(Received::Closed) => Err(ClientError::Ended),
            Err(_) => Err(ClientError::Silent),
        }
    }
}

impl AsFd for Pinger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
