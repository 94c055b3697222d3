//! The parts of a segment, and their lengths.

use bywire_sys::page;

/// The header before the ring. It is in the same page as the ring's first bytes: small messages touch one page.
pub const HEADER_BYTES: usize = 512;
/// The ring of a direction: as much as the kernel would hold of a connection on one machine.
pub const RING_BYTES: usize = 4 << 20;
/// The word on which sleepers of the other end wait.
pub(super) const EVENT: usize = 88;

/// A whole segment, in whole pages of any size: programs of several architectures, as emulated ones, agree on it.
pub const SEGMENT_BYTES: usize = (HEADER_BYTES + RING_BYTES).next_multiple_of(page::BYTES_MAX);

/// The length of the first part of a segment, in a memory file of its own, which is sealed against every writer but its
/// maker: the header and the first bytes of the ring. It is a page, as what follows it is a mapping of its own.
#[inline(always)]
pub fn head_bytes() -> usize {
    page::bytes()
}

/// Bytes of the ring in the head.
#[inline(always)]
pub fn first_bytes() -> usize {
    head_bytes() - HEADER_BYTES
}

/// The rest of a segment, in a memory file that its maker can empty again. No word of the header lies in it.
#[inline(always)]
pub fn rest_bytes() -> usize {
    SEGMENT_BYTES - head_bytes()
}
