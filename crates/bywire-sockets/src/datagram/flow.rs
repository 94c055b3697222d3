//! A flow: what one UDP socket exchanges with one other end, in two segments.
//!
//! A flow begins when the pairing service gets its offer, and is open once the other end's segment is mapped. Its memory is
//! touched only under one of its socket's locks, and comes and goes under both.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use bywire_ring::datagrams::{Datagrams, Reader, Writer};
use bywire_ring::stream::{HEADER_BYTES, RING_BYTES, SEGMENT_BYTES, Window, first_bytes};

use crate::connection::domain::Domain;
use crate::connection::idle_memory::{self, STEP_BYTES};
use crate::datagram::address::{Address, Name};
use crate::memory::segment;
use crate::os::errno;

/// The layout of the rings of all flows.
pub const RULES: Datagrams = Datagrams::new(RING_BYTES);

/// How far a flow has come.
pub mod state {
    /// The place has none.
    pub const FREE: u32 = 0;
    /// It is offered.
    pub const WAITING: u32 = 1;
    /// Datagrams may go through memory.
    pub const OPEN: u32 = 2;
    /// Nothing more is sent in memory. What the other end has sent there before is still received.
    pub const OVER: u32 = 3;
}

/// See the module's text.
pub struct Flow {
    /// See [`state`]. It changes under both locks, or from open to over under one.
    pub state: AtomicU32,
    /// Counts the uses of this place.
    pub generation: AtomicU32,
    /// Nothing went through it since this was set.
    pub idle: AtomicU32,
    own: AtomicPtr<u8>,
    remote: AtomicPtr<u8>,
    /// The other end. Changed under both locks.
    address: UnsafeCell<Address>,
    receiving: UnsafeCell<Receiving>,
    sending: UnsafeCell<Sending>,
}

/// What belongs to the receiving lock.
pub struct Receiving {
    /// The rules' account.
    pub reader: Reader,
    /// The other end's address, as the kernel has given it with a datagram.
    pub name: Name,
    /// What the writer had given to the kernel before the kernel is looked into.
    pub ended: u64,
    /// Counts datagrams that have come through the kernel.
    pub unsettled: u32,
    /// Bytes that were received in memory.
    pub bytes: u64,
}

/// What belongs to the sending lock.
pub struct Sending {
    /// The rules' account.
    pub writer: Writer,
    /// Bytes of the own ring that have memory behind them.
    pub backed: usize,
    /// Bytes that were sent in memory.
    pub bytes: u64,
}

// SAFETY: what is in the cells is accessed under the locks that their documentation names.
unsafe impl Sync for Flow {}

/// The two segments of an open flow.
#[derive(Clone, Copy)]
pub struct Segments {
    /// The one that this end writes.
    pub own: Window,
    /// The one that the other end writes.
    pub remote: Window,
}

impl Flow {
    /// A place without a flow.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(state::FREE),
            generation: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            own: AtomicPtr::new(ptr::null_mut()),
            remote: AtomicPtr::new(ptr::null_mut()),
            address: UnsafeCell::new(Address::NONE),
            receiving: UnsafeCell::new(Receiving::NONE),
            sending: UnsafeCell::new(Sending::NONE),
        }
    }

    /// Returns whether it has come so far.
    pub fn is(&self, state: u32) -> bool {
        // Relaxed: changed under the locks, of which the caller holds one, or needs a hint.
        self.state.load(Ordering::Relaxed) == state
    }

    /// The other end.
    ///
    /// # Safety
    /// The caller holds one of the locks.
    pub unsafe fn address(&self) -> Address {
        // SAFETY: it changes only under both locks.
        unsafe { *self.address.get() }
    }

    /// The part of the receiving lock.
    ///
    /// # Safety
    /// The caller holds the receiving lock for as long as it has the reference, and has no other one.
    #[expect(clippy::mut_from_ref, reason = "the lock is the exclusive access")]
    pub unsafe fn receiving(&self) -> &mut Receiving {
        // SAFETY: the caller's guarantee.
        unsafe { &mut *self.receiving.get() }
    }

    /// The part of the sending lock.
    ///
    /// # Safety
    /// The caller holds the sending lock for as long as it has the reference, and has no other one.
    #[expect(clippy::mut_from_ref, reason = "the lock is the exclusive access")]
    pub unsafe fn sending(&self) -> &mut Sending {
        // SAFETY: the caller's guarantee.
        unsafe { &mut *self.sending.get() }
    }

    /// The segments, if both are mapped. The caller holds one of the locks, and uses them under it only.
    #[inline(always)]
    pub fn segments(&self) -> Option<Segments> {
        // Relaxed, both: changed under both locks.
        let (own, remote) = (self.own.load(Ordering::Relaxed), self.remote.load(Ordering::Relaxed));
        if own.is_null() || remote.is_null() {
            return None;
        }
        // SAFETY: both were mapped with this length, and are unmapped only under both locks.
        unsafe {
            Some(Segments {
                own: Window::new(own, SEGMENT_BYTES),
                remote: Window::new(remote, SEGMENT_BYTES),
            })
        }
    }

    /// Begins a flow with the segment that this process has made. The caller holds both locks.
    pub fn begin(&self, address: Address, own: *mut u8) {
        // SAFETY: the caller holds both locks, and has no other references.
        unsafe {
            *self.address.get() = address;
            *self.receiving.get() = Receiving::NONE;
            *self.sending.get() = Sending::NONE;
        }
        // SAFETY: mapped with this length by `segment::make`.
        RULES.found(&unsafe { Window::new(own, SEGMENT_BYTES) });
        self.own.store(own, Ordering::Relaxed);
        self.idle.store(0, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.state.store(state::WAITING, Ordering::Relaxed);
    }

    /// The other end's segment is mapped. The caller holds both locks.
    pub fn open(&self, remote: *mut u8, allowance: u64) {
        self.remote.store(remote, Ordering::Relaxed);
        self.state.store(state::OPEN, Ordering::Relaxed);
        if let Some(segments) = self.segments() {
            RULES.allow(&segments.own, allowance);
            // SAFETY: the caller holds both locks.
            unsafe { self.sending() }.writer.begin(&segments.own);
        }
    }

    /// Nothing more is sent in memory, here or there. The caller holds one of the locks.
    pub fn end(&self) {
        if self.is(state::OPEN) {
            self.state.store(state::OVER, Ordering::Relaxed);
        }
        if let Some(segments) = self.segments() {
            RULES.end(&segments.own);
        }
    }

    /// Unmaps what is mapped, and frees the place. `is_parents`: the other end is still that of a parent. The caller holds
    /// both locks.
    pub fn free(&self, is_parents: bool) {
        if !is_parents {
            self.end();
        }
        self.state.store(state::FREE, Ordering::Relaxed);
        let [own, remote] =
            [&self.own, &self.remote].map(|place| place.swap(ptr::null_mut(), Ordering::Relaxed));
        if !own.is_null() {
            // SAFETY: made by `segment::make`, and nobody uses it: the caller holds both locks.
            unsafe { segment::remove(own) };
        }
        if !remote.is_null() {
            // SAFETY: mapped with this length, and nobody uses it.
            unsafe { libc::munmap(remote.cast(), SEGMENT_BYTES) };
        }
    }
}

impl Receiving {
    const NONE: Self = Self { reader: Reader::NEW, name: Name::NONE, ended: 0, unsettled: 0, bytes: 0 };
}

impl Sending {
    const NONE: Self = Self { writer: Writer::NEW, backed: 0, bytes: 0 };

    /// Makes sure that the next datagram of this length has memory behind it. `false`: there is none, and nothing may be
    /// written.
    pub fn back_with_memory(&mut self, own: &Window, length: usize) -> bool {
        let reach = self.writer.reach(&RULES, length);
        // The header's page has memory.
        if reach <= self.backed.max(first_bytes()) {
            return true;
        }
        let from = self.backed.max(first_bytes());
        let to = ((HEADER_BYTES + reach).next_multiple_of(STEP_BYTES) - HEADER_BYTES).min(RING_BYTES);
        if !idle_memory::may_grow(to - from, Domain::Tcp) {
            return false;
        }
        // SAFETY: whole pages of the mapped segment.
        let done = unsafe {
            let start = own.base().add(HEADER_BYTES + from);
            libc::madvise(start.cast(), to - from, libc::MADV_POPULATE_WRITE) == 0
        };
        if done || errno::last() == libc::EINVAL {
            self.backed = to;
        }
        reach <= self.backed
    }
}
