//! Bytes of which each knows its place.

use bywire_wire::frame::Lane;

/// The byte at an offset of a lane in one direction.
fn byte(source: usize, lane: Lane, offset: u64) -> u8 {
    let salt = (source as u64) << 62 | (lane as u64) << 60;
    ((offset ^ salt).wrapping_add(0x1234_5678).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8
}

/// The bytes of a lane from an offset on.
pub fn make(source: usize, lane: Lane, offset: u64, length: usize) -> Vec<u8> {
    (offset..).take(length).map(|offset| byte(source, lane, offset)).collect()
}

/// Are these the bytes of a lane from an offset on?
pub fn are(source: usize, lane: Lane, offset: u64, bytes: &[u8]) -> bool {
    bytes.iter().zip(offset..).all(|(found, offset)| *found == byte(source, lane, offset))
}
