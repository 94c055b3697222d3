//! The memory of rings that nobody needs any more goes back to the kernel.
//!
//! A ring's memory grows with the bytes that wait in it. The end that writes it takes everything behind the first page
//! back once the other end has read it all and nothing was sent for a moment. That happens before a wait of the
//! program, and a wait ends early for it, so that a process sleeps with that memory only for a short time. Once
//! nothing is left to take back, waits are as long as the program wants.
//!
//! The rings of a process have a bound together. A ring that may not grow ends, and its connection goes on in the
//! kernel.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bywire_ring::owing;
use bywire_ring::stream::{FIRST_BYTES, Route};

use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::memory::segment;
use crate::os::{available_memory, errno, kernel, own_call, signal_deferral};
use crate::wakeup::doorbell;

/// A connection on which nothing was sent for this time is idle.
const IDLE_NS: u64 = 500_000_000;
/// The longest time between two looks at rings that another program does not read.
const UNREAD_NS: u64 = 64_000_000_000;
/// Memory that is taken back at once. More would delay the thread that does it.
const BYTES_AT_ONCE: usize = 16 << 20;
/// The time until the rest is taken back.
const REST_NS: u64 = 2_000_000;
/// The rings of a process may have this part of the memory that there is for it,
const SHARE: u64 = 8;
/// and this much in any case.
const BYTES_MIN: u64 = 16 << 20;
/// The bound where nothing is known.
const BYTES_UNKNOWN: u64 = 64 << 20;
/// At the bound, the memory is counted anew after this time: connections have ended since.
const COUNT_NS: u64 = 20_000_000;
/// With more sleepers than this, none is woken to take memory back.
const SLEEPERS_MAX: u64 = 8;

/// Whether rings of this process may have memory that could go back, and whether none was found since.
static GROWN: AtomicU32 = AtomicU32::new(0);
/// The time of the next look at all rings.
static DUE_NS: AtomicU64 = AtomicU64::new(0);
/// The time from one look to the next, while all that is left are rings that another program does not read.
static UNREAD_PAUSE_NS: AtomicU64 = AtomicU64::new(IDLE_NS);
/// Numbers the looks at all rings.
static LOOKS: AtomicU32 = AtomicU32::new(1);
/// The bytes behind the rings of this process. Those of connections that have ended since the last count are included.
static HELD_BYTES: AtomicU64 = AtomicU64::new(0);
/// The bound of these; 0: not known yet.
static BYTES_MAX: AtomicU64 = AtomicU64::new(0);
/// The time of the last count that the bound was the reason for.
static COUNTED_NS: AtomicU64 = AtomicU64::new(0);

/// Finds out how much memory the rings may have, once for each program.
pub fn set_bound() {
    if BYTES_MAX.load(Ordering::Relaxed) == 0 {
        let bound = available_memory::bytes().map_or(BYTES_UNKNOWN, |bytes| (bytes / SHARE).max(BYTES_MIN));
        BYTES_MAX.store(bound, Ordering::Relaxed);
    }
}

/// Counts memory that a ring is about to get. Returns whether it may.
pub fn may_grow(bytes: usize) -> bool {
    // Relaxed, all: the counts are kept about right, and nothing else depends on them.
    let (bytes, most) = (bytes as u64, BYTES_MAX.load(Ordering::Relaxed));
    if HELD_BYTES.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= most {
        return true;
    }
    let now = kernel::now_ns();
    if now.saturating_sub(COUNTED_NS.swap(now, Ordering::Relaxed)) >= COUNT_NS {
        let mut held = 0;
        let look = LOOKS.fetch_add(1, Ordering::Relaxed);
        sockets::each_held_in(look, |socket| held += grown_bytes(socket));
        HELD_BYTES.store(held.saturating_add(bytes), Ordering::Relaxed);
        if held.saturating_add(bytes) <= most {
            return true;
        }
    }
    let less = |held: u64| Some(held.saturating_sub(bytes));
    let _ = HELD_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    false
}

/// The bytes behind the rings of this process, by the last look at all of them and what has grown since.
#[inline(always)]
pub fn held_bytes() -> u64 {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// The memory behind a ring that could go back.
fn grown_bytes(socket: &Socket) -> u64 {
    let backed = socket.shared.backed.load(Ordering::Relaxed);
    if backed as usize > FIRST_BYTES { backed.into() } else { 0 }
}

/// The memory behind a ring of this process has grown.
pub fn grown() {
    let was_told = owing::may(&GROWN);
    owing::owe(&GROWN);
    if UNREAD_PAUSE_NS.swap(IDLE_NS, Ordering::Relaxed) != IDLE_NS {
        DUE_NS.store(0, Ordering::Relaxed);
    }
    // This thread may never wait where memory is taken back. One that sleeps in such a wait already learns of it.
    if !was_told && doorbell::has_few_sleepers(SLEEPERS_MAX) {
        doorbell::ring_own();
    }
}

/// Takes back what is due. Returns how long a wait may last at most, given its limit.
#[inline(always)]
pub fn take_back_before_wait(left_ns: Option<u64>) -> Option<u64> {
    if owing::may(&GROWN) { take_back(left_ns) } else { left_ns }
}

#[inline(never)]
fn take_back(left_ns: Option<u64>) -> Option<u64> {
    // A wait that is over at once is not the moment for it.
    if left_ns == Some(0) || signal_deferral::is_holding() {
        return left_ns;
    }
    let (now, due) = (kernel::now_ns(), DUE_NS.load(Ordering::Relaxed));
    let until = if now < due {
        due
    } else if DUE_NS.compare_exchange(due, now + IDLE_NS, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        // Another thread does it.
        now + IDLE_NS
    } else {
        match errno::keep(|| take_all_back(now)) {
            None => return left_ns,
            Some(pause_ns) => {
                DUE_NS.store(now + pause_ns, Ordering::Relaxed);
                now + pause_ns
            }
        }
    };
    let pause_ns = until - now;
    Some(left_ns.map_or(pause_ns, |left| left.min(pause_ns)))
}

/// The result of a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing that could be taken back.
    Nothing,
    /// The number of bytes that were taken back.
    TakenBack(usize),
    /// It is in use, or was until a moment ago.
    InUse,
    /// The other end has not read everything.
    Unread,
}

/// Takes back the memory of all idle connections. Returns the time until the next look; `None`: none is needed.
fn take_all_back(now_ns: u64) -> Option<u64> {
    let _own = own_call::begin()?;
    let look = owing::begin_look(&GROWN);
    let (mut held_bytes, mut taken_bytes, mut is_in_use, mut is_unread) = (0, 0, false, false);
    sockets::each_held_in(LOOKS.fetch_add(1, Ordering::Relaxed), |socket| {
        if grown_bytes(socket) == 0 {
            return;
        }
        if taken_bytes < BYTES_AT_ONCE
            && let Some(Ok(connection)) = sockets::by_index(socket.fd, socket.index).map(Socket::carried)
        {
            match connection.take_back_if_idle(now_ns) {
                Found::Nothing => {}
                Found::TakenBack(bytes) => taken_bytes += bytes,
                Found::InUse => is_in_use = true,
                Found::Unread => is_unread = true,
            }
        }
        held_bytes += grown_bytes(socket);
    });
    HELD_BYTES.store(held_bytes, Ordering::Relaxed);
    if taken_bytes >= BYTES_AT_ONCE {
        Some(REST_NS)
    } else if is_in_use {
        UNREAD_PAUSE_NS.store(IDLE_NS, Ordering::Relaxed);
        Some(IDLE_NS)
    } else if is_unread {
        let pause_ns = UNREAD_PAUSE_NS.load(Ordering::Relaxed);
        UNREAD_PAUSE_NS.store((2 * pause_ns).min(UNREAD_NS), Ordering::Relaxed);
        Some(pause_ns)
    } else {
        owing::found_nothing(&GROWN, look);
        None
    }
}

impl Connection {
    fn take_back_if_idle(&self, now_ns: u64) -> Found {
        let shared = self.shared;
        let backed = shared.backed.load(Ordering::Relaxed);
        if backed as usize <= FIRST_BYTES || shared.keeps_memory.load(Ordering::Relaxed) != 0 {
            return Found::Nothing;
        }
        let tail = STREAM.tail(&self.own);
        if shared.idle_tail.swap(tail, Ordering::Relaxed) != tail {
            shared.idle_since_ns.store(now_ns, Ordering::Relaxed);
        }
        if now_ns.saturating_sub(shared.idle_since_ns.load(Ordering::Relaxed)) < IDLE_NS {
            return Found::InUse;
        }
        // Another process of the family may hold the lock, and may be stopped.
        let Some(_held) = shared.sending.hold_if_free() else { return Found::InUse };
        if STREAM.tail(&self.own) != tail {
            return Found::InUse;
        }
        if !self.is_all_read() {
            return Found::Unread;
        }
        // Stored first: if this process is killed here, the ring has more memory than it knows, which harms nobody.
        shared.backed.store(FIRST_BYTES as u32, Ordering::Relaxed);
        if segment::empty(self.own.base()) {
            return Found::TakenBack(backed as usize);
        }
        shared.backed.store(backed, Ordering::Relaxed);
        shared.keeps_memory.store(1, Ordering::Relaxed);
        Found::Nothing
    }

    /// Whether nobody reads the bytes of the own ring any more. The caller holds the sending lock, so nobody writes
    /// them either.
    ///
    /// The reader stores its position behind its copies, and looks at no byte from there on before this end publishes
    /// more.
    fn is_all_read(&self) -> bool {
        let Ok(unread) = STREAM.unread_by_peer(&self.own, &self.remote) else { return false };
        match STREAM.route(&self.own) {
            Ok(Route::Ring) => unread == 0 && !self.owes(),
            // The rest came, or comes, through the kernel.
            Ok(Route::Back(until)) => {
                STREAM.tail(&self.own).wrapping_sub(unread as u64) == until && !self.owes()
            }
            _ => false,
        }
    }
}
