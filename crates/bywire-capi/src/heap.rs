//! Lending: a message is written once, in memory shared with its receiver, and read there in place.

use std::ffi::{c_int, c_void};

use bywire::{Heap, LendBuffer, Lent};

use crate::error::bw_error_t::BW_ERROR_NO_BLOCK;
use crate::failure::{Failure, answer, shielded};
use crate::handle::{Handle, place};
use crate::options;
use crate::port::{bw_peer_t, bw_port_t, peer_bits, peer_of, with};

/// Memory shared with one peer, in equal blocks that can be lent to it.
pub struct bw_heap_t(Heap);

/// A block to write a message into.
pub struct bw_block_t(
    /// `None` only while a call lends it.
    Option<LendBuffer>,
);

/// A message that a peer lent. It may be read and returned on any thread.
pub struct bw_lent_t(pub(crate) Lent);

impl Handle for bw_heap_t {
    const NAME: &'static str = "heap";
}

impl Handle for bw_block_t {
    const NAME: &'static str = "block";
}

impl Handle for bw_lent_t {
    const NAME: &'static str = "lent";
}

/// Makes memory shared with one peer, from which messages can be lent to it instead of copied: `blocks` (up to 1024) of
/// `block_bytes` each (64 to 2^30, rounded up to whole cache lines).
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; `heap` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_heap_open(
    port: *mut bw_port_t,
    peer: bw_peer_t,
    block_bytes: usize,
    blocks: u32,
    heap: *mut *mut bw_heap_t,
) -> c_int {
    let open = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let target = unsafe { place(heap, "heap")? };
        target.write(bw_heap_t(port.port.heap(peer_of(peer), block_bytes, blocks)?).give());
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, open) }
}

/// Closes a heap. Blocks taken from it stay valid.
///
/// # Safety
/// `heap` is null or a heap that was not closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_heap_close(heap: *mut bw_heap_t) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { bw_heap_t::take(heap)? });
        Ok(0)
    })
}

/// Takes a free block. bw_send_lent or bw_block_drop gives it back.
///
/// # Safety
/// `heap` is null or an open heap; `block` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_heap_block(heap: *const bw_heap_t, block: *mut *mut bw_block_t) -> c_int {
    answer(|| {
        // SAFETY: the caller's promises.
        let (heap, target) = unsafe { (bw_heap_t::borrow(heap)?, place(block, "block")?) };
        let taken = heap.0.block().ok_or(BW_ERROR_NO_BLOCK)?;
        target.write(bw_block_t(Some(taken)).give());
        Ok(0)
    })
}

/// The size of every block; 0 for a null heap.
///
/// # Safety
/// `heap` is null or an open heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_heap_block_bytes(heap: *const bw_heap_t) -> usize {
    // SAFETY: the caller's promise.
    shielded(0, || unsafe { bw_heap_t::borrow(heap) }.map_or(0, |heap| heap.0.block_bytes()))
}

/// The peer that a heap is shared with; 0 for a null heap.
///
/// # Safety
/// `heap` is null or an open heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_heap_peer(heap: *const bw_heap_t) -> bw_peer_t {
    // SAFETY: the caller's promise.
    shielded(0, || unsafe { bw_heap_t::borrow(heap) }.map_or(0, |heap| peer_bits(heap.0.peer())))
}

/// The memory for the block's message; NULL for a null block. Valid until the block is lent or dropped.
///
/// # Safety
/// `block` is null or a block of the program's, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_block_memory(block: *mut bw_block_t) -> *mut c_void {
    shielded(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let block = unsafe { bw_block_t::borrow_mut(block) }.ok();
        let memory = block.and_then(|block| block.0.as_mut());
        memory.map_or(std::ptr::null_mut(), |memory| memory.as_mut_ptr().cast())
    })
}

/// Gives a block back to its heap without sending it.
///
/// # Safety
/// `block` is null or a block of the program's that was neither lent nor dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_block_drop(block: *mut bw_block_t) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { bw_block_t::take(block)? });
        Ok(0)
    })
}

/// Lends the first `length_bytes` of a block, as a message, to the peer that its heap is shared with. On success the
/// block belongs to the library, and is back in its heap when the peer is done with it. On failure it stays the
/// program's.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; `block` as for bw_block_drop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_send_lent(
    port: *mut bw_port_t,
    priority: u32,
    block: *mut bw_block_t,
    length_bytes: usize,
) -> c_int {
    let lend = |port: &mut bw_port_t| {
        let priority = options::priority(priority)?;
        // SAFETY: the caller's promise.
        let held = unsafe { bw_block_t::borrow_mut(block)? };
        let buffer = held.0.take().ok_or_else(|| Failure::argument("the block was lent already"))?;
        if let Err((error, buffer)) = port.port.send_lent(priority, buffer, length_bytes) {
            held.0 = Some(buffer);
            return Err(error.into());
        }
        // SAFETY: the caller's promise; `held` is not used any more.
        drop(unsafe { bw_block_t::take(block)? });
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, lend) }
}

/// Copies bytes of a lent message, from `offset` on, and returns how many were copied. Tolerates a lender that is
/// still writing. 0 for a null message or a null target.
///
/// # Safety
/// `lent` is null or a lent message that was not returned; `target` is null or valid for writes of `target_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_lent_read(
    lent: *const bw_lent_t,
    offset: usize,
    target: *mut c_void,
    target_bytes: usize,
) -> usize {
    shielded(0, || {
        // SAFETY: the caller's promise.
        let Ok(lent) = (unsafe { bw_lent_t::borrow(lent) }) else { return 0 };
        let count = lent.0.len().saturating_sub(offset).min(target_bytes);
        if target.is_null() || count == 0 {
            return 0;
        }
        // SAFETY: valid for writes by the caller's promise; zeroed first, so initialised.
        let target = unsafe {
            target.cast::<u8>().write_bytes(0, count);
            std::slice::from_raw_parts_mut(target.cast::<u8>(), count)
        };
        lent.0.read(offset, target)
    })
}

/// The lent message in place; NULL for a null message. Valid until bw_lent_return. The peer must be trusted not to
/// write there any more. Otherwise data may change between a check and its use.
///
/// # Safety
/// `lent` is null or a lent message that was not returned, of a peer that is trusted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_lent_memory(lent: *const bw_lent_t) -> *const c_void {
    shielded(std::ptr::null(), || {
        // SAFETY: the caller's promise.
        let lent = unsafe { bw_lent_t::borrow(lent) };
        // SAFETY: the caller vouches for the peer.
        lent.map_or(std::ptr::null(), |lent| unsafe { lent.0.as_slice() }.as_ptr().cast())
    })
}

/// The length of a lent message; 0 for a null one.
///
/// # Safety
/// `lent` is null or a lent message that was not returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_lent_bytes(lent: *const bw_lent_t) -> usize {
    // SAFETY: the caller's promise.
    shielded(0, || unsafe { bw_lent_t::borrow(lent) }.map_or(0, |lent| lent.0.len()))
}

/// Gives a lent message back to its lender.
///
/// # Safety
/// `lent` is null or a lent message that was not returned before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_lent_return(lent: *mut bw_lent_t) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { bw_lent_t::take(lent)? });
        Ok(0)
    })
}
