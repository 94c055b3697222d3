//! The meaning of records: the kinds that cross the rings, and the words in their slots.

use bywire_ring::geometry::INLINE_BYTES;
use crc_fast::{CrcAlgorithm, Digest};

use crate::message::buffer::bytes_of;

/// A whole message.
pub const MESSAGE: u8 = 1;
/// The first fragment of a long message. Words: total length.
pub const FIRST: u8 = 2;
/// A further fragment.
pub const NEXT: u8 = 3;
/// A datagram.
pub const DATAGRAM: u8 = 4;
/// The first fragment of a put. Words: key, offset, total length, transfer, note length.
pub const PUT: u8 = 5;
/// A further fragment.
pub const PUT_NEXT: u8 = 6;
/// The note behind a put: inline bytes.
pub const PUT_NOTE: u8 = 7;
/// A request to get. Words: key, offset, length, transfer.
pub const GET: u8 = 8;
/// A lent block. Words: heap, block, length.
pub const LENT: u8 = 9;
/// On the reply lane: a put or a get is over. Words: transfer, code.
pub const STATUS: u8 = 10;
/// On the reply lane: a piece of the data that a get asked for. Words: transfer.
pub const GET_DATA: u8 = 11;
/// On the reply lane: a lent block comes back. Words: heap, block.
pub const RETURN: u8 = 12;

/// From the next record on, this lane's payloads lie in the bulk area that came over the socket.
pub const MOVE_BULK: u8 = 13;

/// A whole message in two parts. Words: the length of its head, and the head. The bulk area has the rest.
pub const HEADED: u8 = 14;

/// Long payloads are copied in steps of this size. Urgent messages go first between two steps.
pub const STEP_BYTES: usize = 2048;

/// The check of a payload: CRC32C.
#[inline(always)]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The check of a message in two parts.
pub fn headed_checksum(words: &[u64; INLINE_BYTES / 8], bytes: &[u8]) -> u32 {
    let mut sum = RunningChecksum::new();
    sum.add(&bytes_of(words));
    sum.add(bytes);
    sum.finish()
}

/// The check of a payload that is copied in steps into memory which may change between them.
#[derive(Clone, Copy, Debug)]
pub struct RunningChecksum {
    state: u64,
}

impl RunningChecksum {
    pub fn new() -> Self {
        Self { state: Digest::new(CrcAlgorithm::Crc32Iscsi).get_state() }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, self.state);
        digest.update(bytes);
        self.state = digest.get_state();
    }

    pub fn finish(self) -> u32 {
        Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, self.state).finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_in_steps_equals_that_of_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|index| (index * 31) as u8).collect();
        for step in [1, 7, STEP_BYTES, 10_000] {
            let mut running = RunningChecksum::new();
            bytes.chunks(step).for_each(|part| running.add(part));
            assert_eq!(running.finish(), checksum(&bytes), "steps of {step}");
        }
        assert_eq!(RunningChecksum::new().finish(), checksum(&[]));
    }
}
