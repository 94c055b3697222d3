//! A process of this machine that is connected to the service, and its state.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bywire_sys::credentials::Credentials;
use bywire_sys::socket::Socket;
use bywire_sys::{Errno, deferred, process};
use bywire_wire::service::Kept;

use crate::broker::Port;

/// The most notices that wait for a port to read. Beyond that its registration ends, because missed notices cannot be
/// made up for.
const UNSENT_MAX: usize = 16_384;

/// A process of this machine.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) socket: Socket,
    pub(super) user: Credentials,
    pub(super) stage: Stage,
    /// Packets for which its queue had no room.
    pub(super) unsent: VecDeque<Vec<u8>>,
}

/// The stage of a caller.
#[derive(Debug)]
pub(super) enum Stage {
    /// It has not registered.
    New {
        /// When it is disconnected.
        until_ns: u64,
    },
    /// Its user's name is being looked up. Nothing is read from it meanwhile.
    Unnamed(Box<(Port, Copies, Vec<Kept>)>),
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

    /// Sends a packet, now or once there is room. `false`: too much waits.
    pub(super) fn send(&mut self, packet: Vec<u8>) -> bool {
        self.unsent.push_back(packet);
        self.flush() && self.unsent.len() <= UNSENT_MAX
    }

    /// Sends waiting packets, as far as there is room. `false`: the other end is closed.
    pub(super) fn flush(&mut self) -> bool {
        while let Some(packet) = self.unsent.front() {
            match self.socket.send(packet, &[]) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}
