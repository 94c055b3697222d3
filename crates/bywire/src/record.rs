//! What records mean: the kinds that cross the rings, and the words in their slots.

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
/// On the reply lane: a piece of what a get asked for. Words: transfer.
pub const GET_DATA: u8 = 11;
/// On the reply lane: a lent block comes back. Words: heap, block.
pub const RETURN: u8 = 12;

/// From the next record on, this lane's payloads lie in the bulk area that came over the socket.
pub const MOVE_BULK: u8 = 13;

/// Long payloads are copied in steps of this size; between them, what is urgent goes first.
pub const STEP_BYTES: usize = 2048;

/// The check of a payload: CRC32C.
#[inline(always)]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The longest note of a put.
pub const NOTE_BYTES_MAX: usize = 32;
/// Answers that a peer may have outstanding with us; more means that it ignores its tokens.
pub const REPLIES_MAX: usize = 2 * crate::heap::BLOCKS_MAX as usize * crate::heap::HEAPS_MAX;

/// The bytes of a slot's words.
#[inline(always)]
pub fn bytes_of(words: &[u64; 7]) -> [u8; 56] {
    let mut bytes = [0; 56];
    for (target, word) in bytes.chunks_exact_mut(8).zip(words) {
        target.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
