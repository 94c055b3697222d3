//! A packet of a program, with descriptors of known kinds.

use std::os::fd::OwnedFd;

use bywire_ring::stream::{SEGMENT_BYTES, head_bytes, rest_bytes};
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::{Errno, memory, wake};

use crate::identity::{self, Identity};
use crate::protocol::{Kind, PAGE_BYTES, Packet, VERSION};

/// A packet of a program. Any thread can close its files without delay, except those of which that is said.
#[derive(Debug)]
pub enum CheckedPacket {
    /// [`Kind::Hello`]: a doorbell, which is an eventfd, and a sealed page.
    Hello([OwnedFd; 2]),
    /// [`Kind::Offer`].
    Offer {
        /// The token that the program gave it.
        token: u64,
        /// The memory files of the segment: one, or its head and its rest. None if no descriptors came.
        segment: Vec<OwnedFd>,
        /// The kernel's account of the connection. Its descriptor is closed by now.
        identity: Result<Identity, Errno>,
    },
    /// [`Kind::Seek`].
    Seek {
        /// The token of the offer.
        token: u64,
        /// The link that the program wants.
        link: u8,
        /// The program sends nothing otherwise.
        is_required: bool,
        /// The connection. Its close may take long.
        connection: OwnedFd,
        /// The kernel's account of it.
        identity: Result<Identity, Errno>,
    },
    /// [`Kind::Taken`].
    Taken {
        /// The name of the request.
        token: u64,
        /// The memory files of the segment, as in an offer. None if the engine refuses.
        segment: Vec<OwnedFd>,
    },
    /// Any other packet, which has no descriptors.
    Other(Packet),
}

impl CheckedPacket {
    /// Checks everything, and closes the files that are not kept. The calling thread must serve only the sender's
    /// user. `None`: the packet breaks a rule.
    pub fn read(bytes: &[u8], descriptors: Vec<ReceivedFd>, interrupter: &Interrupter) -> Option<Self> {
        let mut files: Vec<OwnedFd> = descriptors.into_iter().map(ReceivedFd::into_inner).collect();
        let packet = Packet::decode(bytes).and_then(|packet| Self::check(packet, &mut files));
        // A socket that lingers breaks no rule, as its program may have closed its own copy meanwhile.
        interrupter.bound(|| drop(files));
        packet
    }

    /// Takes the valid files out of `files`.
    fn check(packet: Packet, files: &mut Vec<OwnedFd>) -> Option<Self> {
        match (packet.kind, files.as_slice()) {
            (Kind::Hello, [doorbell, page]) => {
                let is_well = packet.first == VERSION
                    && wake::is_eventfd(doorbell)
                    && memory::check(page, PAGE_BYTES).is_ok();
                let pair = is_well.then(|| std::mem::take(files).try_into().ok()).flatten();
                pair.map(Self::Hello)
            }
            (Kind::Offer, []) => {
                Some(Self::Offer { token: packet.token, segment: Vec::new(), identity: Err(Errno::BADF) })
            }
            (Kind::Offer, [connection, segment @ ..]) => {
                check_segment(segment)?;
                let identity = match packet.other_end() {
                    Some(remote) => identity::identify_datagrams(connection, remote),
                    None => identity::identify(connection),
                };
                Some(Self::Offer { token: packet.token, segment: files.split_off(1), identity })
            }
            (Kind::Seek, [connection]) => {
                let identity = identity::identify(connection);
                let connection = files.pop()?;
                let (token, is_required) = (packet.token, packet.first != 0);
                Some(Self::Seek { token, link: packet.code, is_required, connection, identity })
            }
            (Kind::Taken, []) => Some(Self::Taken { token: packet.token, segment: Vec::new() }),
            (Kind::Taken, segment) => {
                check_segment(segment)?;
                Some(Self::Taken { token: packet.token, segment: std::mem::take(files) })
            }
            (Kind::Hello, _) => None,
            (_, []) => Some(Self::Other(packet)),
            _ => None,
        }
    }
}

/// Checks the memory files of a segment. `None`: they are none.
fn check_segment(files: &[OwnedFd]) -> Option<()> {
    match files {
        [whole] => memory::check(whole, SEGMENT_BYTES).ok(),
        [head, rest] => {
            memory::check(head, head_bytes()).ok()?;
            memory::check_emptiable(rest, rest_bytes()).ok()
        }
        _ => None,
    }
}
