//! The way back: what makes a carried connection the kernel's again, for good.
//!
//! Whoever writes a direction ends its ring where the reader has stopped, and gives the kernel what nobody has taken. What
//! the kernel has no room for is *owed*: it goes there as room comes, in every call and every wait on the connection, and
//! until then nothing else of that direction does.

use core::sync::atomic::{AtomicU32, Ordering};

use bywire_pairing::reason::Reason;
use bywire_ring::lane::Corrupt;
use bywire_ring::owing;
use bywire_ring::stream::{ASKS_BACK, Course, HALF, News, Sleep};

use crate::connection::carried::{FAILED, HUNG_UP, SHUT_SENDING, Source, Woken};
use crate::connection::table::{self, Connection, Meaning, STREAM, Socket};
use crate::os::{errno, kernel, own_call, real, signal_deferral};
use crate::pairing::proposal;

/// How long a program that hands connections on waits for what their other ends have sent: those that come later give it
/// to the kernel then.
const BACK_PATIENCE_NS: u64 = 1_000_000_000;
/// The same for one that does not wait for its sockets.
const QUICK_PATIENCE_NS: u64 = 20_000_000;
/// How long a reader may be in the middle of taking bytes that are to be taken back from it.
const TAKING_PATIENCE_NS: u64 = 2_000_000;
/// Looks at such a reader before the core is offered to it.
const LOOKS: u32 = 200;
/// Who owes looks so often at what the kernel does not tell.
const OWING_LOOK_NS: u64 = 10_000_000;

/// What this process has found to be owed, and whether it has found since that nothing is.
static OWING: AtomicU32 = AtomicU32::new(0);

/// Pays what this process owes, on whatever connections: how long a wait for other things may last that would last so long.
#[inline(always)]
pub fn pay_before_wait(left_ns: Option<u64>) -> Option<u64> {
    if may_owe() { pay_all(left_ns) } else { left_ns }
}

/// Does what other ends of connections ask of this process: one may be the other end of what a thread waits for.
pub fn serve_all() {
    table::each_held(|socket, fd| {
        if let Some(Ok(other)) = table::by_index(fd, socket.index).map(Socket::mapped) {
            other.serve();
        }
    });
}

/// May this process owe something, on whatever connection?
#[inline(always)]
pub fn may_owe() -> bool {
    owing::may(&OWING)
}

#[inline(never)]
fn pay_all(left_ns: Option<u64>) -> Option<u64> {
    let mut is_owing = false;
    let look = owing::begin_look(&OWING);
    errno::keep(|| {
        table::each_held(|socket, fd| {
            if let Some(Ok(connection)) = table::by_index(fd, socket.index).map(Socket::carried) {
                connection.serve();
                is_owing |= connection.owes();
            }
        });
    });
    if !is_owing {
        owing::found_nothing(&OWING, look);
        return left_ns;
    }
    Some(left_ns.map_or(OWING_LOOK_NS, |left| left.min(OWING_LOOK_NS)))
}

/// Everything that this program has goes back to the kernel, and nothing of it is carried from here on.
pub fn all_to_kernel(reason: Reason) {
    proposal::give_up(reason);
    errno::keep(|| hand_back(|_| true, reason));
}

/// This socket stays in the kernel, or goes back there.
pub fn to_kernel(fd: i32, reason: Reason) {
    let Some(socket) = table::socket(fd) else { return };
    socket.stay(reason);
    if let Ok(connection) = socket.carried() {
        errno::keep(|| connection.bring_back(reason));
    }
}

/// All of these descriptors' sockets go back to the kernel: each is asked for before the first one is waited for.
pub fn hand_back(is_meant: impl Fn(i32) -> bool, reason: Reason) {
    hand_back_each(|visit| each_socket(&is_meant, visit), reason);
}

/// The same for the sockets that `each` visits, which it does twice.
pub fn hand_back_each(each: impl Fn(&mut dyn FnMut(Socket)), reason: Reason) {
    let mut patience_ns = 0;
    each(&mut |socket| match socket.carried() {
        Ok(connection) => {
            connection.begin_back(reason);
            patience_ns = connection.patience_ns().max(patience_ns);
        }
        Err(plain) => plain.stay(reason),
    });
    if patience_ns == 0 {
        return;
    }
    let end_ns = kernel::now_ns() + patience_ns;
    each(&mut |socket| {
        if let Ok(connection) = socket.carried() {
            connection.finish_back(end_ns);
        }
    });
}

fn each_socket(is_meant: impl Fn(i32) -> bool, visit: &mut dyn FnMut(Socket)) {
    table::each(|fd, meaning| {
        if matches!(meaning, Meaning::Socket(_))
            && is_meant(fd)
            && let Some(socket) = table::socket(fd)
        {
            visit(socket);
        }
    });
}

impl Connection {
    /// Returns both directions to the kernel, for good: what comes next is nothing that rings can do.
    ///
    /// A peer that does not come into a call of the library in time does its part when it comes: until then what it has
    /// sent waits. A connection of which bytes are lost by that is reset.
    pub fn bring_back(&self, reason: Reason) {
        self.begin_back(reason);
        self.finish_back(kernel::now_ns() + self.patience_ns());
    }

    fn patience_ns(&self) -> u64 {
        if self.is_nonblocking() { QUICK_PATIENCE_NS } else { BACK_PATIENCE_NS }
    }

    /// Ends our ring, and asks the other end for its own; nothing is waited for.
    pub fn begin_back(&self, reason: Reason) {
        self.stay(reason);
        {
            // Nobody takes anything more out of the peer's ring.
            let _receiving = self.record.receiving.hold();
            let _sending = self.record.sending.hold();
            STREAM.raise(&self.own, ASKS_BACK);
            if matches!(STREAM.course(&self.own), Ok(Course::Ring | Course::Ending)) {
                self.end_ring();
            }
        }
        self.tell(News::Course);
    }

    /// Waits for what [`Self::begin_back`] has asked for.
    fn finish_back(&self, end_ns: u64) {
        let is_back = loop {
            self.serve();
            if let Some(is_back) = self.is_back() {
                break is_back;
            }
            if kernel::now_ns() > end_ns {
                // What it has not given back yet it gives later. What we owe nobody would.
                break !self.owes();
            }
            serve_all();
            self.sleep(Sleep::Bytes, 0, None, || self.is_back().is_some());
        };
        if is_back {
            // Whoever has it next may end as it likes.
            self.with_sending(|| self.unguard());
        } else {
            self.break_off();
        }
    }

    /// Has everything come back? `Some(false)`: not everything, and it never will.
    fn is_back(&self) -> Option<bool> {
        let Ok(course) = STREAM.course(&self.remote) else { return Some(true) };
        let unread = match course {
            // It asks for nothing before it has seen our flag.
            Course::Kernel => 0,
            Course::Pending | Course::Ending => 1,
            Course::Ring => STREAM.available(&self.own, &self.remote).unwrap_or(0) as u64,
            Course::Back(until) => until.wrapping_sub(STREAM.head(&self.own)),
        };
        match course {
            Course::Back(_) if unread > 0 => return Some(false),
            Course::Ring => {
                self.ask_kernel();
                // The last bytes of a stream that has ended cannot be given to the kernel any more.
                let is_over = self.peer_is_gone() || STREAM.flags(&self.remote) & HALF != 0;
                if is_over {
                    return Some(unread == 0);
                }
            }
            _ => {}
        }
        // What it sends from now on it gives to the kernel: it looks for our flag before and after.
        (unread == 0 && (!self.owes() || self.peer_is_gone())).then_some(true)
    }

    /// Is it the kernel's again, both ways and for good? What has not come back yet will come there.
    pub fn is_kernels(&self) -> bool {
        self.record.never.load(Ordering::Relaxed) != 0
            && !self.owes()
            && matches!(STREAM.course(&self.own), Ok(Course::Kernel | Course::Back(_)))
            && matches!(self.source(), Ok(Source::Kernel | Source::Held))
    }

    /// What the other end asks of us: to have our bytes in the kernel again.
    #[inline(never)]
    pub fn serve_now(&self) {
        let Some(_own) = own_call::begin() else { return };
        let is_asked = STREAM.flags(&self.remote) & ASKS_BACK != 0;
        let is_in_ring = || matches!(STREAM.course(&self.own), Ok(Course::Ring | Course::Ending));
        if !(self.owes() || is_asked && is_in_ring()) {
            return;
        }
        let _held = self.record.sending.hold();
        if is_in_ring() {
            // Who has said that something is owed, and was killed before the ring was ended, has paid nothing.
            // Release: pairs with the acquire load in `owes`; nothing comes before.
            let was_said = self.record.owed.swap(0, Ordering::Release) != 0;
            match is_asked {
                true => self.send_back(),
                false if was_said => self.end_ring(),
                false => {}
            }
        } else if self.owes() {
            self.pay();
        }
        // Another process of the family may have found it: this one has it as well, and pays from here on.
        if self.owes() {
            owing::owe(&OWING);
        }
    }

    /// Ends our ring where the reader has stopped, who has said so, and gives the rest of it to the kernel.
    fn send_back(&self) {
        match STREAM.unread_by_peer(&self.own, &self.remote) {
            Err(Corrupt) => self.break_off(),
            // The kernel takes nothing behind the end that it has been told: they stay where they are.
            Ok(1..) if self.record.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0 => {}
            Ok(unread) => self.owe(STREAM.tail(&self.own).wrapping_sub(unread as u64)),
        }
    }

    /// Ends our ring: the kernel gets what the other end has not taken, if it has room for all of that now. Otherwise it is
    /// read where it lies, before what follows in the kernel. Called with the sending lock held.
    pub fn end_ring(&self) {
        let tail = STREAM.tail(&self.own);
        let unread = STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0);
        let is_shut = self.record.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0;
        if unread > 0 {
            self.ask_kernel();
        }
        if unread == 0 || is_shut || self.peer_is_gone() || !kernel::has_room(self.fd, unread) {
            STREAM.back(&self.own, tail);
            return;
        }
        STREAM.begin_end(&self.own);
        match self.untaken() {
            Ok(position) => self.owe(position.unwrap_or(tail)),
            Err(Corrupt) => self.break_off(),
        }
    }

    /// Where the reader has stopped; `None`: it goes on taking.
    fn untaken(&self) -> Result<Option<u64>, Corrupt> {
        let end_ns = kernel::now_ns() + TAKING_PATIENCE_NS;
        loop {
            for _ in 0..LOOKS {
                if let Some(position) = STREAM.untaken(&self.own, &self.remote)? {
                    return Ok(Some(position));
                }
                core::hint::spin_loop();
            }
            if kernel::now_ns() > end_ns {
                return Ok(None);
            }
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
    }

    /// From `position` on our ring's bytes are owed to the kernel.
    fn owe(&self, position: u64) {
        let owed = STREAM.tail(&self.own).wrapping_sub(position);
        self.record.returned.fetch_add(owed, Ordering::Relaxed);
        // Relaxed, both: ordered by the sending lock, as all that has to do with payments.
        self.record.paying.store(0, Ordering::Relaxed);
        self.record.paid_at.store(self.record.sent.load(Ordering::Relaxed) + owed, Ordering::Relaxed);
        // Release: pairs with the load in `owes`. Whoever finds the ring ended, by the acquire load of the course that is
        // stored next, finds what is owed.
        self.record.owed.store(owed as u32, Ordering::Release);
        STREAM.back(&self.own, position);
        if owed > 0 {
            owing::owe(&OWING);
            // A death in the middle of it must not look like an end.
            self.guard();
            self.pay();
        } else {
            self.unguard();
        }
        self.tell(News::Course);
    }

    /// Does the kernel not have all of our bytes yet that belong there, or not the end behind them?
    #[inline(always)]
    pub fn owes(&self) -> bool {
        // Acquire: pairs with the release stores in `owe` and `pay`: whoever finds nothing owed goes into the kernel behind it.
        self.record.owed.load(Ordering::Acquire) != 0 || self.record.shuts.load(Ordering::Relaxed) != 0
    }

    /// The connection is lost, and what is owed with it.
    fn lose(&self) {
        // Release: pairs with the load in `owes`, though nothing comes before it.
        self.record.owed.store(0, Ordering::Release);
        self.record.shuts.store(0, Ordering::Relaxed);
        self.break_off();
    }

    /// Gives the kernel as much of what is owed as it takes now. Called with the sending lock held.
    fn pay(&self) {
        let tail = STREAM.tail(&self.own);
        if self.record.paying.load(Ordering::Relaxed) != 0 && !self.count_payment() {
            return self.lose();
        }
        self.ask_kernel();
        loop {
            let owed = self.record.owed.load(Ordering::Relaxed);
            if owed == 0 {
                return self.paid();
            }
            // The kernel's error is the program's to have: a call of ours would take it away.
            if self.record.ended.load(Ordering::Relaxed) & (HUNG_UP | FAILED) != 0 {
                // Release: pairs with the acquire load in `owes`.
                self.record.owed.store(0, Ordering::Release);
                continue;
            }
            self.record.paying.store(1, Ordering::Relaxed);
            let sent = self.send_owed(tail.wrapping_sub(owed.into()), owed as usize);
            match sent {
                1.. => {
                    // SeqCst: pairs with the loads in `proposal::accounts_agree` and `send::give_the_last`, of who found
                    // nobody inside.
                    self.record.sent.fetch_add(sent as u64, Ordering::SeqCst);
                    // Release: pairs with the load in `owes`; the kernel has these bytes, and they are counted.
                    self.record.owed.store(owed - sent as u32, Ordering::Release);
                    self.record.paying.store(0, Ordering::Relaxed);
                }
                _ if errno::last() == libc::EAGAIN => {
                    return self.record.paying.store(0, Ordering::Relaxed);
                }
                _ => return self.lose(),
            }
        }
    }

    /// Whoever paid last was killed on the way: what it has paid is what the kernel says. `false`: that cannot be.
    fn count_payment(&self) -> bool {
        let owed = self.record.owed.load(Ordering::Relaxed);
        let given = kernel::account(self.fd).map(|account| account.given);
        let left = given.and_then(|given| self.record.paid_at.load(Ordering::Relaxed).checked_sub(given));
        match (given, left) {
            (Some(given), Some(left)) if left <= owed.into() => {
                // SeqCst: pairs with the loads in `proposal::accounts_agree` and `send::give_the_last`, as in `pay`.
                self.record.sent.store(given, Ordering::SeqCst);
                // Release: pairs with the load in `owes`; the kernel has the others, and they are counted.
                self.record.owed.store(left as u32, Ordering::Release);
                self.record.paying.store(0, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Out of the ring as it lies there: the stack of a program's thread may have no room for a copy.
    fn send_owed(&self, position: u64, length: usize) -> isize {
        let mut parts = STREAM.places(&self.own, position, length).map(|(offset, length)| libc::iovec {
            iov_base: self.own.base().wrapping_add(offset).cast(),
            iov_len: length,
        });
        let mut message = crate::os::iovec::message(&mut parts, 2);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: bytes of our own ring, which stays mapped while the connection is in use. By number, as no thread is
        // cancelled in this call.
        unsafe {
            let message = (&raw mut message) as usize;
            real::syscall(libc::SYS_sendmsg, self.fd as usize, message, flags as usize, 0, 0, 0) as isize
        }
    }

    /// Nothing is owed any more: what was waiting for that is done.
    fn paid(&self) {
        self.unguard();
        // Relaxed: ordered by the sending lock, as the store in `lifecycle::is_shut_when_paid`. It is owed until it is done: whoever is
        // killed here leaves it to the next one.
        if self.record.shuts.load(Ordering::Relaxed) != 0 {
            // SAFETY: no pointers.
            errno::keep(|| unsafe { real::shutdown(self.fd, libc::SHUT_WR) });
            self.record.shuts.store(0, Ordering::Relaxed);
        }
    }

    /// For a call that would wait for `events`: waits for them, and pays meanwhile. `None`: nothing is owed.
    pub fn pay_while_waiting(&self, events: i16, deadline_ns: Option<u64>) -> Option<Woken> {
        if !self.owes() {
            return None;
        }
        let look_ns = kernel::now_ns() + OWING_LOOK_NS;
        let until_ns = deadline_ns.map_or(look_ns, |deadline| deadline.min(look_ns));
        let found = self.wait_in_kernel(events | libc::POLLOUT, Some(until_ns), deadline_ns.is_some());
        self.serve();
        let is_late = deadline_ns.is_some_and(|deadline| deadline <= kernel::now_ns());
        Some(match found {
            Ok(_) => Woken::Look,
            Err(libc::EAGAIN) if is_late => Woken::TimeOut,
            Err(libc::EAGAIN) => Woken::Look,
            Err(_) => Woken::Signal,
        })
    }

    /// Sleeps there until this time, for a call that handlers with `SA_RESTART` do not end unless it has a time-out: what `poll`
    /// says, nothing after such a handler, or the error number, `EAGAIN` when the time has passed.
    pub fn wait_in_kernel(&self, events: i16, until_ns: Option<u64>, has_timeout: bool) -> Result<i16, i32> {
        // One that has come between two sleeps ends the call as well.
        if signal_deferral::is_interrupted() {
            return Err(libc::EINTR);
        }
        match self.away_and_back(|| kernel::wait_until(self.fd, events, until_ns)) {
            (_, false) => Err(libc::EINTR),
            (Err(libc::EINTR), true)
                if !signal_deferral::is_interrupted() && !has_timeout && !signal_deferral::is_bypassed() =>
            {
                Ok(0)
            }
            (found, true) => found,
        }
    }

    /// The last of what is owed, before the end: the kernel makes room for all of it, where it may.
    pub fn pay_at_the_end(&self) {
        if !self.owes() {
            return;
        }
        kernel::make_room(self.fd, self.record.owed.load(Ordering::Relaxed) as usize);
        self.serve_now();
    }
}
