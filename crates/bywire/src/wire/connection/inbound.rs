//! The position in the bytes of an incoming lane.

use bywire_ring::geometry::INLINE_BYTES;
use bywire_wire::frame::Lane;
use bywire_wire::planted::{self, Bug};
use bywire_wire::record::Head;

use crate::message::options::SHORT_BYTES_MAX;
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

/// A short message of which `bytes` are the beginning, unless all of it is there.
fn short_of(bytes: &[u8], resources: &mut Resources) -> Option<Within> {
    let Ok(Some((Head::Message { length, is_long: false, is_prompt }, at))) = Head::parse(bytes) else {
        return None;
    };
    let begun = &bytes[at..];
    let is_permitted = length <= SHORT_BYTES_MAX.min(resources.message_bytes_max);
    let length = length as usize;
    if !is_permitted || length <= INLINE_BYTES || length <= begun.len() {
        return None;
    }
    let mut buffer = resources.spare(length);
    buffer[..begun.len()].copy_from_slice(begun);
    Some(Within::Short { buffer, filled: begun.len(), length, is_prompt })
}

impl Default for Inbound {
    fn default() -> Self {
        Self { within: Within::Head, needed: 1, taken: 0 }
    }
}

impl Inbound {
    /// Copies the next bytes of a message or of a put that are in several packets from theirs to where they belong, and returns how
    /// many. The last ones of a transfer are left to the lane, so no transfer ends here.
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
            Within::Head => {
                let Some(short) = short_of(bytes, resources) else { return 0 };
                self.within = short;
            }
            Within::Short { buffer, filled, length, .. } if *length - *filled > bytes.len() => {
                let target = &mut buffer[*filled..*filled + bytes.len()];
                target.copy_from_slice(bytes);
                if planted::is(Bug::ShortMisplaced) {
                    target.rotate_right(1);
                }
                *filled += bytes.len();
            }
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
