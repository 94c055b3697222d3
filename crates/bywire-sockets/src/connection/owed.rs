//! Bytes of a ring that has ended, for which the kernel has no room yet: they are *owed* to it.
//!
//! They go there as room becomes available, in every call and every wait on the connection. Until then no other byte of
//! that direction is sent.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bywire_ring::lane::Corrupt;
use bywire_ring::owing;
use bywire_ring::stream::{ASKS_BACK, News, OWES, Route};

use crate::connection::domain::Domain;
use crate::connection::idle_memory;
use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::memory::arena::{FAILED, HUNG_UP, SHUT_SENDING};
use crate::os::{errno, kernel, own_call, real, signal_deferral};

/// How long a reader may take to copy bytes that are to be taken back from it.
const TAKING_TIMEOUT_NS: u64 = 2_000_000;
/// Checks of such a reader before the core is offered to it.
const LOOKS: u32 = 200;
/// Interval at which a process that owes bytes checks for what the kernel does not report.
pub const LOOK_NS: u64 = 10_000_000;
/// A look at many connections takes long. The next one begins after this many times as long.
const LOOK_PAUSE: u64 = 100;
/// But never after more than this time: the thread may have been away meanwhile.
const LOOK_PAUSE_NS_MAX: u64 = 200_000_000;

/// What this process has found to be owed, and whether it has found since that nothing is owed.
static OWING: AtomicU32 = AtomicU32::new(0);
/// The value of [`OWING`] when the last look began, if it has found nothing to pay but engines to check now and then.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);
/// Before this time no wait looks again,
static LOOK_AGAIN_NS: AtomicU64 = AtomicU64::new(0);
/// and by this time one does.
static DUE_NS: AtomicU64 = AtomicU64::new(0);

/// Pays what this process owes, on all connections, and takes the memory of idle ones back. Returns how long a wait for
/// something else may last at most, given its limit.
#[inline(always)]
pub fn pay_before_wait(left_ns: Option<u64>) -> Option<u64> {
    let left_ns = if may_owe() { pay_all(left_ns) } else { left_ns };
    idle_memory::take_back_before_wait(left_ns)
}

/// Does what the other ends of connections ask of this process. One of them may be what a thread waits for.
pub fn serve_all() {
    sockets::each_held(|socket, fd| {
        if let Some(Ok(other)) = sockets::by_index(fd, socket.index).map(Socket::mapped) {
            other.serve();
        }
    });
}

/// Whether this process may owe bytes, on any connection.
#[inline(always)]
pub fn may_owe() -> bool {
    owing::may(&OWING)
}

/// A connection must be looked at in every wait, until a look has found nothing.
pub fn must_look() {
    owing::owe(&OWING);
}

/// A connection has got an engine, which must be checked now and then. A look that is due for others is soon enough.
pub fn must_check_engine() {
    let before = owing::begin_look(&OWING);
    must_look();
    let after = owing::begin_look(&OWING);
    // Nobody has counted anything else meanwhile, and a look is due: it is the next one.
    if owing::is_next(before, after) && kernel::now_ns() < LOOK_AGAIN_NS.load(Ordering::Relaxed) {
        let _ = LOOKED_AT.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[inline(never)]
fn pay_all(left_ns: Option<u64>) -> Option<u64> {
    let look = owing::begin_look(&OWING);
    let now_ns = kernel::now_ns();
    // Relaxed, all: values of different looks of several threads make one wait look too early, or half a second late.
    if look == LOOKED_AT.load(Ordering::Relaxed) && now_ns < LOOK_AGAIN_NS.load(Ordering::Relaxed) {
        let due_ns = DUE_NS.load(Ordering::Relaxed).saturating_sub(now_ns);
        return [left_ns, Some(due_ns)].into_iter().flatten().min();
    }
    // After what time the next look is due.
    let (mut next_ns, mut owes) = (None, false);
    errno::keep(|| {
        sockets::each_held(|socket, fd| {
            if let Some(Ok(connection)) = sockets::by_index(fd, socket.index).map(Socket::carried) {
                connection.serve();
                let stalled_ns = connection.check_stall();
                owes |= connection.owes();
                let owed_ns = connection.owes().then_some(LOOK_NS);
                let due_ns = [owed_ns, stalled_ns, connection.check_engine()];
                next_ns = due_ns.into_iter().chain([next_ns]).flatten().min();
            }
        });
    });
    match next_ns {
        None => owing::found_nothing(&OWING, look),
        // A wait may come every few microseconds, and a program may have thousands of connections.
        Some(next_ns) if !owes => {
            let spent_ns = kernel::now_ns().saturating_sub(now_ns);
            let again_ns = next_ns.min(LOOK_NS).max((LOOK_PAUSE * spent_ns).min(LOOK_PAUSE_NS_MAX));
            DUE_NS.store(now_ns + next_ns.max(again_ns), Ordering::Relaxed);
            LOOK_AGAIN_NS.store(now_ns + again_ns, Ordering::Relaxed);
            LOOKED_AT.store(look, Ordering::Relaxed);
        }
        // Owed bytes were counted, so every wait looks again.
        Some(_) => {}
    }
    [left_ns, next_ns].into_iter().flatten().min()
}

impl Connection {
    /// Does what the other end asks for: that this side's bytes go through the kernel again.
    #[inline]
    pub fn serve(&self) {
        if STREAM.flags(&self.remote) & ASKS_BACK != 0 || self.owes() {
            self.serve_now();
        }
    }

    /// Does what the other end asks for: that this side's bytes go through the kernel again.
    #[inline(never)]
    pub fn serve_now(&self) {
        let Some(_own) = own_call::begin() else { return };
        let is_asked = STREAM.flags(&self.remote) & ASKS_BACK != 0;
        let is_in_ring = || matches!(STREAM.route(&self.own), Ok(Route::Ring | Route::Ending));
        if !(self.owes() || is_asked && is_in_ring()) || self.refuse_kernel() {
            return;
        }
        let _held = self.shared.sending.hold();
        if is_in_ring() {
            // A process that stored that something is owed, and was killed before it ended the ring, has paid nothing.
            // Release: pairs with the acquire load in `owes`. Nothing comes before.
            let was_owed = self.shared.owed.swap(0, Ordering::Release) != 0;
            match is_asked {
                true => self.send_back(),
                false if was_owed => self.end_ring(),
                false => {}
            }
        } else if self.owes() {
            self.pay();
        }
        // Another process of the family may have found it. This process has the connection as well, and pays from here
        // on.
        if self.owes() {
            owing::owe(&OWING);
        }
    }

    /// Ends this side's ring where the reader says that it has stopped, and gives the rest to the kernel.
    fn send_back(&self) {
        match STREAM.unread_by_peer(&self.own, &self.remote) {
            Err(Corrupt) => self.reset(),
            // The kernel accepts no bytes behind the end that it was told. They stay in the ring. An engine that gives a ring back
            // has told it no end.
            Ok(1..) if !self.has_engine() && (self.has_shut_sending() || self.is_refused()) => {}
            Ok(unread) => self.owe(STREAM.tail(&self.own).wrapping_sub(unread as u64)),
        }
    }

    /// Ends this side's ring. The kernel gets what the other end has not taken, if it has room for all of that now.
    /// Otherwise the other end reads it from the ring, before what follows in the kernel. The caller holds the sending
    /// lock.
    pub fn end_ring(&self) {
        if self.refuse_kernel() {
            return;
        }
        if self.is_relayed() {
            return self.take_back(usize::MAX);
        }
        let tail = STREAM.tail(&self.own);
        if self.is_far() {
            // The engine passes on what is there.
            return STREAM.back(&self.own, tail);
        }
        let unread = STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0);
        let is_shut = self.has_shut_sending();
        if unread > 0 {
            self.ask_kernel();
        }
        if unread == 0 || is_shut || self.peer_is_gone() || self.is_refused() || !self.kernel_has_room(unread)
        {
            STREAM.back(&self.own, tail);
            return;
        }
        self.take_back(unread);
    }

    /// Ends this side's ring, and owes the kernel the last bytes that the other end has not taken, at most this many.
    /// The caller holds the sending lock.
    pub fn take_back(&self, bytes_max: usize) {
        let tail = STREAM.tail(&self.own);
        STREAM.begin_end(&self.own);
        match self.untaken() {
            Ok(Some(position)) => {
                let untaken = tail.wrapping_sub(position);
                self.owe(tail.wrapping_sub(untaken.min(bytes_max as u64)));
            }
            Ok(None) => self.owe(tail),
            Err(Corrupt) => self.reset(),
        }
    }

    fn has_shut_sending(&self) -> bool {
        self.shared.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0
    }

    /// The position at which the reader has stopped; `None`: it is still taking bytes. An engine is waited for: what it takes
    /// goes to the kernel, before anything that this side gives to that.
    fn untaken(&self) -> Result<Option<u64>, Corrupt> {
        let end_ns = kernel::now_ns() + TAKING_TIMEOUT_NS;
        loop {
            for _ in 0..LOOKS {
                if let Some(position) = STREAM.untaken(&self.own, &self.remote)? {
                    return Ok(Some(position));
                }
                core::hint::spin_loop();
            }
            let is_late = kernel::now_ns() > end_ns;
            if self.is_relayed() {
                if self.has_no_engine() {
                    return self.given_by_engine().map(Some);
                }
                if is_late {
                    // It was stopped in the middle of a call.
                    // SAFETY: no descriptors.
                    unsafe { real::poll(core::ptr::null_mut(), 0, 1) };
                }
            } else if is_late {
                return Ok(None);
            }
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
    }

    /// Notes that this ring's bytes from `position` on are owed to the kernel.
    fn owe(&self, position: u64) {
        let owed = STREAM.tail(&self.own).wrapping_sub(position);
        self.shared.returned.fetch_add(owed, Ordering::Relaxed);
        let relayed = if self.is_relayed() { position } else { 0 };
        // Relaxed, all: ordered by the sending lock, as is everything about payments.
        self.shared.paying.store(0, Ordering::Relaxed);
        self.shared.relayed.store(relayed, Ordering::Relaxed);
        let given = self.shared.sent.load(Ordering::Relaxed) + relayed;
        self.shared.paid_at.store(given + owed, Ordering::Relaxed);
        if self.has_engine() && self.has_shut_sending() {
            // The engine has not told the kernel.
            self.shared.shuts.store(1, Ordering::Relaxed);
        }
        // Release: pairs with the load in `owes`. A call that finds the ring ended, by the acquire load of the route
        // that is stored next, also finds what is owed.
        self.shared.owed.store(owed as u32, Ordering::Release);
        if owed > 0 {
            // The other end looks at it only once the stream has ended.
            STREAM.raise(&self.own, OWES);
        }
        STREAM.back(&self.own, position);
        if self.owes() {
            owing::owe(&OWING);
            // If this process dies while it pays, the peer must not see an orderly end.
            self.guard();
            self.pay();
        } else {
            self.unguard();
        }
        self.tell(News::Route);
    }

    /// Whether the kernel still lacks bytes that must go through it, or the end behind them.
    #[inline(always)]
    pub fn owes(&self) -> bool {
        // Acquire: pairs with the release stores in `owe` and `pay`. A call that finds nothing owed enters the kernel
        // after the last payment.
        self.shared.owed.load(Ordering::Acquire) != 0 || self.shared.shuts.load(Ordering::Relaxed) != 0
    }

    /// The connection is lost, and so is what is owed.
    fn lose(&self) {
        self.owe_nothing();
        self.reset();
    }

    /// Bytes that are owed are lost.
    pub fn owe_nothing(&self) {
        // Release: pairs with the load in `owes`, although nothing comes before it.
        self.shared.owed.store(0, Ordering::Release);
        self.shared.shuts.store(0, Ordering::Relaxed);
    }

    /// Gives the kernel as much of what is owed as it takes now. The caller holds the sending lock.
    fn pay(&self) {
        let tail = STREAM.tail(&self.own);
        if self.shared.paying.load(Ordering::Relaxed) != 0 && !self.count_payment() {
            return self.lose();
        }
        self.ask_kernel();
        loop {
            let owed = self.shared.owed.load(Ordering::Relaxed);
            if owed == 0 {
                return self.paid();
            }
            // The kernel's error must reach the program: a call of the library would consume it.
            if self.shared.ended.load(Ordering::Relaxed) & (HUNG_UP | FAILED) != 0 {
                // Release: pairs with the acquire load in `owes`.
                self.shared.owed.store(0, Ordering::Release);
                continue;
            }
            self.shared.paying.store(1, Ordering::Relaxed);
            let sent = self.send_owed(tail.wrapping_sub(owed.into()), owed as usize);
            match sent {
                1.. => {
                    // SeqCst: pairs with the loads in `offer::accounts_agree` and `send::give_the_last`, which found
                    // nobody inside the kernel.
                    self.shared.sent.fetch_add(sent as u64, Ordering::SeqCst);
                    // Release: pairs with the load in `owes`. The kernel has these bytes, and they are counted.
                    self.shared.owed.store(owed - sent as u32, Ordering::Release);
                    self.shared.paying.store(0, Ordering::Relaxed);
                }
                _ if errno::last() == libc::EAGAIN => {
                    return self.shared.paying.store(0, Ordering::Relaxed);
                }
                // The other end of a Unix connection has shut down receiving, or has gone. It reads what it reads in the ring.
                _ if self.is_unix() && errno::last() == libc::EPIPE => {
                    self.shared.paying.store(0, Ordering::Relaxed);
                    return self.owe_nothing();
                }
                _ if self.keep_error(errno::last()) => {
                    self.shared.paying.store(0, Ordering::Relaxed);
                }
                _ => return self.lose(),
            }
        }
    }

    /// The last payer was killed before it counted its payment. The kernel's count says what was paid. `false`: the
    /// count is impossible.
    fn count_payment(&self) -> bool {
        let owed = self.shared.owed.load(Ordering::Relaxed);
        // Nobody counts what goes through a Unix socket.
        let given = match self.domain() {
            Domain::Unix => None,
            Domain::Tcp if self.is_relayed() => self.given().ok(),
            Domain::Tcp => kernel::byte_counts(self.fd).map(|account| account.given),
        };
        let left = given.and_then(|given| self.shared.paid_at.load(Ordering::Relaxed).checked_sub(given));
        match (given, left) {
            (Some(given), Some(left)) if left <= owed.into() => {
                // SeqCst: pairs with the loads in `offer::accounts_agree` and `send::give_the_last`, as in `pay`.
                let relayed = self.shared.relayed.load(Ordering::Relaxed);
                self.shared.sent.store(given.saturating_sub(relayed), Ordering::SeqCst);
                // Release: pairs with the load in `owes`. The kernel has the other bytes, and they are counted.
                self.shared.owed.store(left as u32, Ordering::Release);
                self.shared.paying.store(0, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Sends directly from the ring: a thread of the program may have no stack room for a copy.
    fn send_owed(&self, position: u64, length: usize) -> isize {
        let mut parts = STREAM.places(&self.own, position, length).map(|(offset, length)| libc::iovec {
            iov_base: self.own.base().wrapping_add(offset).cast(),
            iov_len: length,
        });
        let mut message = crate::os::iovec::message(&mut parts, 2);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: bytes of this side's own ring, which stays mapped while the connection is in use. The call is made by
        // number, because a thread cannot be cancelled in it.
        unsafe {
            let message = (&raw mut message) as usize;
            real::syscall(libc::SYS_sendmsg, self.fd as usize, message, flags as usize, 0, 0, 0) as isize
        }
    }

    /// Nothing is owed any more: does what waited for that.
    fn paid(&self) {
        STREAM.lower(&self.own, OWES);
        self.unguard();
        // The peer's bytes in its ring acknowledge nothing, for which the kernel might wait.
        self.push();
        // Relaxed: ordered by the sending lock, as the store in `lifecycle::is_shut_when_paid`. The shutdown is owed
        // until it is done, so if this process is killed here the next one does it.
        if self.shared.shuts.load(Ordering::Relaxed) != 0 {
            // SAFETY: no pointers.
            errno::keep(|| unsafe { real::shutdown(self.fd, libc::SHUT_WR) });
            self.shared.shuts.store(0, Ordering::Relaxed);
        }
    }

    /// Pays the last of what is owed, before the end. The kernel makes room for all of it, if it may.
    pub fn pay_at_the_end(&self) {
        if !self.owes() {
            return;
        }
        kernel::make_room(self.fd, self.shared.owed.load(Ordering::Relaxed) as usize);
        self.serve_now();
        self.pay_by_waiting();
    }

    /// A Unix connection cannot end by a reset. What is still owed at its end would be an end of stream that hides a loss, for
    /// a program without this library: so the other end gets some time to make room.
    fn pay_by_waiting(&self) {
        if !self.is_unix() || signal_deferral::is_holding() {
            return;
        }
        let end_ns = kernel::now_ns() + self.timeout_ns();
        while self.owes() && !self.peer_is_gone() && kernel::now_ns() < end_ns {
            let _ready = errno::keep(|| kernel::wait(self.fd, libc::POLLOUT, 1));
            self.serve_now();
        }
    }
}
