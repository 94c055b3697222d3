//! What a program says, with descriptors whose kind has been looked at.

use std::os::fd::OwnedFd;

use bywire_ring::stream::SEGMENT_BYTES;
use bywire_sys::deferred::Foreign;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::tcp::{self, Identity};
use bywire_sys::{Errno, memory, wake};

use crate::protocol::{Kind, PAGE_BYTES, Packet, VERSION};

/// A packet of a program's. Everything in it closes in a moment, whoever does it.
#[derive(Debug)]
pub enum Word {
    /// [`Kind::Hello`]: a bell, which is an eventfd, and a sealed page.
    Hello([OwnedFd; 2]),
    /// [`Kind::Offer`].
    Offer {
        /// What the program calls it.
        token: u64,
        /// Sealed memory; absent if no descriptors came.
        segment: Option<OwnedFd>,
        /// What the kernel says of the connection, whose descriptor is closed by now.
        identity: Result<Identity, Errno>,
    },
    /// Anything else, which comes alone.
    Other(Packet),
}

impl Word {
    /// Looks at everything, and closes what is not kept: on a thread that serves nobody but the sender's user. `None`: it
    /// is against the rules.
    pub fn read(bytes: &[u8], descriptors: Vec<Foreign>, interrupter: &Interrupter) -> Option<Self> {
        let mut files: Vec<OwnedFd> = descriptors.into_iter().map(Foreign::into_inner).collect();
        let word = Packet::decode(bytes).and_then(|packet| Self::check(packet, &mut files));
        // A socket that lingers is no offence: its program may have closed its own copy meanwhile.
        interrupter.bound(|| drop(files));
        word
    }

    /// Takes out of `files` what is well.
    fn check(packet: Packet, files: &mut Vec<OwnedFd>) -> Option<Self> {
        match (packet.kind, files.as_slice()) {
            (Kind::Hello, [bell, page]) => {
                let is_well = packet.first == VERSION
                    && wake::is_eventfd(bell)
                    && memory::check(page, PAGE_BYTES).is_ok();
                let pair = is_well.then(|| std::mem::take(files).try_into().ok()).flatten();
                pair.map(Self::Hello)
            }
            (Kind::Offer, []) => {
                Some(Self::Offer { token: packet.token, segment: None, identity: Err(Errno::BADF) })
            }
            (Kind::Offer, [connection, segment]) => {
                memory::check(segment, SEGMENT_BYTES).ok()?;
                let identity = tcp::identify(connection);
                Some(Self::Offer { token: packet.token, segment: files.pop(), identity })
            }
            (Kind::Hello | Kind::Offer, _) => None,
            (_, []) => Some(Self::Other(packet)),
            _ => None,
        }
    }
}
