//! The position in the bytes of an incoming lane.

use bywire_wire::frame::Lane;
use bywire_wire::planted::{self, Bug};

use crate::message::peer::Priority;
use crate::message::resources::Resources;
use crate::message::transfers::Transfers;

/// The incoming side of one lane.
#[derive(Debug)]
pub(super) struct Inbound {
    pub within: Within,
    /// The bytes that have to arrive before the next step.
    pub needed: usize,
    /// Bytes taken in all.
    pub taken: u64,
}

/// The meaning of the next bytes of a lane.
#[derive(Debug)]
pub(super) enum Within {
    /// The head of a record.
    Head,
    /// A short message that has not arrived completely.
    Short { buffer: Vec<u8>, filled: usize, length: usize, is_prompt: bool },
    /// A long message, with this many bytes missing.
    Long { rest: u64, is_prompt: bool },
    /// The data of a put, followed by a note of this many bytes.
    Put { note: Option<u8> },
    /// The note of a put.
    Note { length: u8 },
    /// Data requested by a get, with this many bytes missing.
    Got { transfer: u64, rest: u64 },
}

impl Default for Inbound {
    fn default() -> Self {
        Self { within: Within::Head, needed: 1, taken: 0 }
    }
}

impl Inbound {
    /// Copies the next bytes of a long message or of a put from their packet to where they belong, and returns how many. The
    /// last ones of a transfer are left to the lane, so no transfer ends here.
    pub fn place(
        &mut self,
        lane: Lane,
        bytes: &[u8],
        transfers: &mut Transfers,
        resources: &mut Resources,
    ) -> usize {
        let priority = match lane {
            Lane::Reply => return 0,
            Lane::High => Priority::High,
            Lane::Low => Priority::Low,
        };
        let length = bytes.len() as u64;
        match &mut self.within {
            Within::Long { rest, .. } if *rest > length => {
                let Some(target) = transfers.message_target(priority, bytes.len()) else { return 0 };
                target.copy_from_slice(bytes);
                if planted::is(Bug::LongMisplaced) {
                    target.rotate_right(1);
                }
                *rest -= length;
                transfers.fill_message(priority, bytes.len(), resources);
            }
            Within::Put { .. } if transfers.put_remaining(priority).is_some_and(|rest| rest > length) => {
                // Looked up for every piece: a key that was revoked meanwhile ends the transfer, and the bytes are dropped.
                if let Some(target) = transfers.put_target(priority, 0, bytes.len(), resources) {
                    target.copy_from_slice(bytes);
                }
                if transfers.fill_put(priority, bytes.len()).is_err() {
                    return 0;
                }
            }
            _ => return 0,
        }
        self.taken += length;
        bytes.len()
    }

    /// Bytes of memory besides the lane's own.
    pub fn memory_bytes(&self) -> usize {
        if let Within::Short { buffer, .. } = &self.within { buffer.len() } else { 0 }
    }
}
