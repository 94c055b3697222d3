//! The memory of rings that nobody needs any more goes back to the kernel.
//!
//! A ring's memory grows with the bytes that wait in it. The end that writes it takes everything behind the first page
//! back once the other end has read it all and nothing was sent for a moment. That happens before a wait of the
//! program, and a wait ends early for it, so that a process sleeps with that memory only for a short time. Once
//! nothing is left to take back, waits are as long as the program wants.
//!
//! The rings of a process have a bound together. They do not take the last of what is left to the control group or the
//! machine either, whoever uses the rest: a server has many processes. A ring that may not grow ends, and its connection
//! goes on in the kernel.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bywire_ring::owing;
use bywire_ring::stream::{Route, first_bytes};

use crate::connection::domain::Domain;
use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::memory::segment;
use crate::os::{available_memory, errno, kernel, own_call, signal_deferral};
use crate::wakeup::doorbell;

/// Memory is allocated for a ring in steps of this size.
pub const STEP_BYTES: usize = 64 << 10;
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
/// Own rings leave this part of that memory to everything else,
const LEFT_SHARE: u64 = 16;
/// those of Unix connections this much of it: where a ring may not grow, the kernel buffers up to 208 KiB, and has no regard
/// for what a control group has left,
const LEFT_SHARE_BY_UNIX: u64 = 4;
/// and rings of other users this much of it.
const LEFT_SHARE_BY_OTHERS: u64 = 8;
/// Rings grow by this part of what is left before that is looked at again, and by at most so many bytes. Other processes
/// may do the same meanwhile: 64 of them use up what is left to everything else.
const CREDIT_SHARE: u64 = LEFT_SHARE * 64;
const CREDIT_MAX: u64 = 16 << 20;
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
/// The bound of these; 0: not known yet.
static BYTES_MAX: AtomicU64 = AtomicU64::new(0);
/// The bytes that there were for this process when its bound was set.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Finds out how much memory the rings may have, once for each program.
pub fn set_bound() {
    if BYTES_MAX.load(Ordering::Relaxed) == 0 {
        let bytes = available_memory::bytes();
        let bound = bytes.map_or(BYTES_UNKNOWN, |bytes| (bytes / SHARE).max(BYTES_MIN));
        BYTES.store(bytes.unwrap_or(0), Ordering::Relaxed);
        BYTES_MAX.store(bound, Ordering::Relaxed);
    }
}

/// Memory of the rings of this process, of one kind.
struct Account {
    /// The bytes. Those of connections that have ended since the last count are included.
    bytes: AtomicU64,
    /// The time of the last count that the bound was the reason for.
    counted_ns: AtomicU64,
    /// The bytes that there may be more before it is looked at what is left.
    credit: AtomicU64,
    /// What a connection has of it.
    of: fn(&Socket) -> u64,
}

/// Behind the rings that this process writes.
static OWN: Account = Account::new(grown_bytes);
/// Behind rings of other users that this process has read.
static TOUCHED: Account = Account::new(touched_bytes);

impl Account {
    const fn new(of: fn(&Socket) -> u64) -> Self {
        let [bytes, counted_ns, credit] = [const { AtomicU64::new(0) }; 3];
        Self { bytes, counted_ns, credit, of }
    }

    /// Counts memory that there is about to be. Returns whether there may be so much more: up to this many times the
    /// bound, if this part of the memory is left to everything else.
    fn may_grow(&self, bytes: usize, times: u64, left_share: u64) -> bool {
        // Relaxed, all: the counts are kept about right, and nothing else depends on them.
        let bytes = bytes as u64;
        let held = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let most = BYTES_MAX.load(Ordering::Relaxed).saturating_mul(times);
        if (held <= most || self.is_within(most, bytes)) && self.leaves_enough(bytes, left_share) {
            return true;
        }
        let less = |held: u64| Some(held.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        false
    }

    /// Counts the memory anew, unless that was done just now. Returns whether it is at most this much with these bytes,
    /// which are counted then.
    fn is_within(&self, most: u64, bytes: u64) -> bool {
        let now = kernel::now_ns();
        if now.saturating_sub(self.counted_ns.swap(now, Ordering::Relaxed)) < COUNT_NS {
            return false;
        }
        let mut held = bytes;
        sockets::each_held_in(LOOKS.fetch_add(1, Ordering::Relaxed), |socket| held += (self.of)(socket));
        self.bytes.store(held, Ordering::Relaxed);
        held <= most
    }

    /// Whether these bytes leave this part of the memory to everything else.
    fn leaves_enough(&self, bytes: u64, left_share: u64) -> bool {
        let less = |credit: u64| credit.checked_sub(bytes);
        if self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return true;
        }
        let Some(_own) = own_call::begin() else { return true };
        let Some(left) = errno::keep(available_memory::left) else { return true };
        let rest = left.checked_sub(BYTES.load(Ordering::Relaxed) / left_share);
        let rest = rest.and_then(|rest| rest.checked_sub(bytes));
        self.credit.store((rest.unwrap_or(0) / CREDIT_SHARE).min(CREDIT_MAX), Ordering::Relaxed);
        rest.is_some()
    }
}

/// Counts memory that a ring of this process is about to get, for a connection of this domain. Returns whether it may.
pub fn may_grow(bytes: usize, domain: Domain) -> bool {
    let left_share = match domain {
        Domain::Tcp => LEFT_SHARE,
        Domain::Unix => LEFT_SHARE_BY_UNIX,
    };
    OWN.may_grow(bytes, 1, left_share)
}

/// The same for a ring of another user that this process is about to read. `must`: these bytes come in no other way, so
/// they are refused only where they would do harm.
pub fn may_touch(bytes: usize, must: bool) -> bool {
    match must {
        false => TOUCHED.may_grow(bytes, 1, LEFT_SHARE_BY_OTHERS),
        true => TOUCHED.may_grow(bytes, 2, LEFT_SHARE),
    }
}

/// What a parent may take is its own.
pub fn after_fork_in_child() {
    [&OWN, &TOUCHED].iter().for_each(|account| account.credit.store(0, Ordering::Relaxed));
}

/// The bytes behind the rings of this process, by the last look at all of them and what has grown since.
#[inline(always)]
pub fn held_bytes() -> u64 {
    OWN.bytes.load(Ordering::Relaxed)
}

/// The memory behind a ring that could go back.
fn grown_bytes(socket: &Socket) -> u64 {
    let backed = socket.shared.backed.load(Ordering::Relaxed);
    if backed as usize > first_bytes() { backed.into() } else { 0 }
}

/// The memory behind a ring of another user that this process has read.
fn touched_bytes(socket: &Socket) -> u64 {
    u64::from(socket.shared.touched.load(Ordering::Relaxed).count_ones()) * STEP_BYTES as u64
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
    OWN.bytes.store(held_bytes, Ordering::Relaxed);
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
        if backed as usize <= first_bytes() || shared.keeps_memory.load(Ordering::Relaxed) != 0 {
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
        shared.backed.store(first_bytes() as u32, Ordering::Relaxed);
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
