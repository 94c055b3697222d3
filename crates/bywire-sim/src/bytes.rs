//! Test bytes that depend on their sender and offset, so that a misplaced byte is noticed.

use bywire_wire::frame::Lane;

/// The sender of bytes: an end, in one of its incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// 0 or 1.
    pub end: usize,
    /// How often the connection has been made again.
    pub life: u32,
}

/// The byte at an offset of a lane in one direction.
fn byte(salt: u64, offset: u64) -> u8 {
    ((offset ^ salt).wrapping_add(0x1234_5678).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8
}

fn salt(source: Source, lane: Lane) -> u64 {
    let number = u64::from(source.life) << 3 | (source.end as u64) << 2 | lane as u64;
    number.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The bytes of a lane from an offset on.
pub fn make(source: Source, lane: Lane, offset: u64, length: usize) -> Vec<u8> {
    let salt = salt(source, lane);
    (offset..).take(length).map(|offset| byte(salt, offset)).collect()
}

/// Are these the bytes of a lane from an offset on?
pub fn are(source: Source, lane: Lane, offset: u64, bytes: &[u8]) -> bool {
    let salt = salt(source, lane);
    bytes.iter().zip(offset..).all(|(found, offset)| *found == byte(salt, offset))
}
