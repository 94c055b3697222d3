//! Lending: a message is written once, in memory shared with its receiver, and read there in place.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bywire_ring::memory::{Memory, Shared};
use bywire_sys::fork::ForkGuard;
use bywire_sys::wake;

use crate::message::peer::{Peer, Priority};

/// The most blocks per heap, which is also the quota of its borrower.
pub(crate) const BLOCKS_MAX: u32 = 1024;
/// The most heaps that one peer may share with us.
pub(crate) const HEAPS_MAX: usize = 16;
/// The most heaps that all peers of another user may share with us. Each is a mapping, and a process can have
/// about 65,000.
pub(crate) const HEAPS_OF_USER_MAX: usize = 256;
/// Bytes per block.
pub(crate) const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 64..=1 << 30;

/// The length of a heap's memory, if it can exist.
pub(crate) fn heap_bytes(block_bytes: usize, blocks: u32) -> Option<usize> {
    // Checked first, because these may be a peer's numbers.
    let length = block_bytes.checked_mul(blocks as usize).filter(|length| *length <= 1 << 36)?;
    Some(length.next_multiple_of(4096))
}

/// Memory shared with one peer, in equal blocks that can be lent to it.
#[derive(Clone, Debug)]
pub struct Heap {
    pub(crate) shared: Arc<LenderHeap>,
}

#[derive(Debug)]
pub(crate) struct LenderHeap {
    pub peer: Peer,
    pub id: u32,
    pub memory: Shared,
    pub block_bytes: usize,
    /// A forked child does not have this memory.
    pub guard: Arc<ForkGuard>,
    pub free: Mutex<Vec<u32>>,
}

/// A block to write a message into. If it is dropped without being sent, it goes back to its heap. Empty in a forked
/// child of the process that owns it.
pub struct LendBuffer {
    pub(crate) heap: Arc<LenderHeap>,
    pub(crate) block: u32,
    /// Cleared when the block is lent. From then on the peer gives it back, not `Drop`.
    pub(crate) ours: bool,
}

/// A message that a peer lent. Read it in place, and drop it to give the block back.
///
/// In a forked child of the process that received it, there is nothing to read. The lender may still be writing.
/// [`Self::read`] tolerates that; a plain slice needs trust.
pub struct Lent {
    /// The lender.
    pub peer: Peer,
    /// Its lane.
    pub priority: Priority,
    pub(crate) memory: Shared,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) guard: Arc<ForkGuard>,
    /// Gives the block back when dropped.
    pub(crate) _ticket: Ticket,
}

/// The destination of a borrowed block when its [`Lent`] is dropped, on any thread.
pub(crate) struct Ticket {
    pub returns: Arc<Returns>,
    pub entry: Return,
}

/// One block to give back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Return {
    pub peer: Peer,
    pub heap: u32,
    pub block: u32,
}

/// Borrowed blocks that the program is done with, waiting for the port's next call.
#[derive(Debug)]
pub(crate) struct Returns {
    any: AtomicBool,
    list: Mutex<Vec<Return>>,
    /// The borrower's own port sleeps, and the eventfd wakes it.
    asleep: AtomicBool,
    pub eventfd: wake::Eventfd,
}

impl Returns {
    pub fn new(eventfd: wake::Eventfd) -> Self {
        Self { any: AtomicBool::new(false), list: Mutex::default(), asleep: AtomicBool::new(false), eventfd }
    }

    fn push(&self, entry: Return) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        // SeqCst: pairs with the load of `any` in `fall_asleep`. There are two stores, this one and the one there. Of
        // the two threads, the one whose store is second in their common order sees the other's store. The release
        // pairs with the acquire in `take`.
        self.any.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the store of `asleep` in `fall_asleep`.
        if self.asleep.load(Ordering::SeqCst) {
            self.eventfd.signal();
        }
    }

    /// Announces that the port is about to sleep. `true`: a block has come back, and the port must not sleep.
    pub fn fall_asleep(&self) -> bool {
        // SeqCst: pairs with the load of `asleep` in `push`.
        self.asleep.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the store of `any` in `push`.
        self.any.load(Ordering::SeqCst)
    }

    /// Notes that the port is awake.
    pub fn wake_up(&self) {
        // Relaxed: a drop that still sees the port asleep signals the eventfd once for nothing.
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Has a block come back?
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        // Relaxed: a hint. The next call sees a block that is missed now.
        self.any.load(Ordering::Relaxed)
    }

    /// Takes all blocks that have come back since the last call.
    #[inline(always)]
    pub fn take(&self) -> Vec<Return> {
        if !self.is_any() {
            return Vec::new();
        }
        // Acquire: pairs with the store in `push`; the list's own lock orders its contents.
        self.any.swap(false, Ordering::Acquire);
        std::mem::take(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Heap {
    /// A free block, or `None` while all are lent.
    pub fn block(&self) -> Option<LendBuffer> {
        let block = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(LendBuffer { heap: self.shared.clone(), block, ours: true })
    }

    /// The size of every block.
    pub fn block_bytes(&self) -> usize {
        self.shared.block_bytes
    }

    /// The peer that the heap is shared with.
    pub fn peer(&self) -> Peer {
        self.shared.peer
    }
}

impl LenderHeap {
    pub fn give_back(&self, block: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }
}

impl Deref for LendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if !self.heap.guard.is_owner() {
            return &[];
        }
        let base =
            self.heap.memory.address(self.block as usize * self.heap.block_bytes, self.heap.block_bytes);
        // SAFETY: `Shared::address` has checked that the block lies within the mapping, which the heap keeps alive.
        // Only this process can write there, as `Mapping::create` has sealed the memory. `Heap::block` has given this
        // block to this value alone.
        unsafe { std::slice::from_raw_parts(base, self.heap.block_bytes) }
    }
}

impl DerefMut for LendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if !self.heap.guard.is_owner() {
            return &mut [];
        }
        let base =
            self.heap.memory.address(self.block as usize * self.heap.block_bytes, self.heap.block_bytes);
        // SAFETY: `Shared::address` has checked that the block lies within the mapping, which the heap keeps alive.
        // `Heap::block` has given the block to this value alone, which `&mut self` borrows exclusively. A peer can
        // only read there.
        unsafe { std::slice::from_raw_parts_mut(base, self.heap.block_bytes) }
    }
}

impl Drop for LendBuffer {
    fn drop(&mut self) {
        if self.ours {
            self.heap.give_back(self.block);
        }
    }
}

impl Lent {
    /// The message's length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes of the message, from `offset` on. Returns how many were copied.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> usize {
        let length = if self.guard.is_owner() { self.length } else { 0 };
        let count = length.saturating_sub(offset).min(target.len());
        if count > 0 {
            self.memory.read(self.offset + offset, &mut target[..count]);
        }
        count
    }

    /// Copies the whole message.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.length];
        self.read(0, &mut copy);
        copy
    }

    /// The message in place.
    ///
    /// # Safety
    /// The peer must be trusted not to write to the block while the slice lives.
    pub unsafe fn as_slice(&self) -> &[u8] {
        if !self.guard.is_owner() {
            return &[];
        }
        // SAFETY: `Shared::address` has checked that the message lies within the mapping, which `self.memory` keeps
        // alive. Only the peer can write there, and the caller vouches that it does not.
        unsafe { std::slice::from_raw_parts(self.memory.address(self.offset, self.length), self.length) }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.returns.push(self.entry);
    }
}

impl fmt::Debug for LendBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "LendBuffer({} bytes)", self.heap.block_bytes)
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Lent({} bytes)", self.length)
    }
}
