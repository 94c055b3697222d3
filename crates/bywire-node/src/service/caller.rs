//! A process of this machine that is connected to the service, and its state.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bywire_sys::credentials::Credentials;
use bywire_sys::socket::Socket;
use bywire_sys::{Errno, deferred, process};
use bywire_wire::service::Kept;

use crate::broker::Port;

/// Bytes that wait for a port to read them, with the memory of each packet. Beyond this limit its registration ends, because
/// a lost notice cannot be repeated.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// The memory of a waiting packet besides its bytes.
const PACKET_BYTES: usize = 64;
/// While this many bytes wait, nothing more is read from the caller.
const BEHIND_BYTES: usize = 16 << 10;

/// A process of this machine.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) socket: Socket,
    pub(super) user: Credentials,
    pub(super) stage: Stage,
    /// Packets for which its queue had no room.
    unsent: VecDeque<Vec<u8>>,
    unsent_bytes: usize,
}

/// The stage of a caller.
#[derive(Debug)]
pub(super) enum Stage {
    /// It has not registered.
    New {
        /// When it is disconnected.
        until_ns: u64,
    },
    /// Its user's name is looked up. Meanwhile nothing is read from it.
    Unnamed(Box<(Port, Copies, (Vec<Kept>, bool))>),
    /// It is a port.
    Registered(Copies),
}

/// The descriptors of a port.
#[derive(Debug)]
pub(super) struct Copies {
    /// Readable when the process has ended.
    pub(super) process: OwnedFd,
    /// The port's UDP socket.
    pub(super) udp: Duplicate,
    /// The service has made that socket for the port, which has not got it yet.
    pub(super) is_lent: bool,
}

/// A duplicate of a socket of another process, which can delay its last close. A thread of that user closes it.
#[derive(Debug)]
pub(super) struct Duplicate {
    pub(super) file: Option<OwnedFd>,
    pub(super) user: u32,
}

impl AsFd for Duplicate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Duplicate {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            deferred::close_common(file, [self.user, process::user()]);
        }
    }
}

impl Caller {
    /// One that has said nothing yet, and is sent away at `until_ns`.
    pub(super) fn new(socket: Socket, user: Credentials, until_ns: u64) -> Self {
        let stage = Stage::New { until_ns };
        Self { socket, user, stage, unsent: VecDeque::new(), unsent_bytes: 0 }
    }

    /// The process.
    pub(super) fn pid(&self) -> i32 {
        self.user.pid
    }

    /// Its user.
    pub(super) fn uid(&self) -> u32 {
        self.user.uid
    }

    /// Its descriptors, once it is registered.
    pub(super) fn copies(&self) -> Option<&Copies> {
        match &self.stage {
            Stage::Registered(copies) => Some(copies),
            _ => None,
        }
    }

    /// Sends a packet with the UDP socket that the port is lent, if it has not got it yet. `None`: it has. `false`: there is no
    /// room, as for none of its first packets.
    pub(super) fn lend(&mut self, packet: &[u8]) -> Option<bool> {
        let Stage::Registered(copies) = &mut self.stage else { return None };
        let is_lent = std::mem::take(&mut copies.is_lent);
        is_lent.then(|| self.unsent.is_empty() && self.socket.send(packet, &[copies.udp.as_fd()]).is_ok())
    }

    /// Sends a packet, now or once there is room. `false`: too much waits.
    pub(super) fn send(&mut self, packet: Vec<u8>) -> bool {
        self.unsent_bytes += packet.len() + PACKET_BYTES;
        self.unsent.push_back(packet);
        self.flush() && self.unsent_bytes <= UNSENT_BYTES_MAX
    }

    /// Memory that waits for it to read.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Has it to read before it is heard again?
    pub(super) fn is_behind(&self) -> bool {
        self.unsent_bytes > BEHIND_BYTES || matches!(self.stage, Stage::New { .. }) && self.unsent_bytes > 0
    }

    /// Sends waiting packets, as far as there is room. `false`: the other end is closed.
    pub(super) fn flush(&mut self) -> bool {
        while let Some(packet) = self.unsent.front() {
            match self.socket.send(packet, &[]) {
                Ok(()) => {
                    self.unsent_bytes -= packet.len() + PACKET_BYTES;
                    self.unsent.pop_front();
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}
