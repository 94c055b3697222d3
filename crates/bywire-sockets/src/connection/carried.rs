//! A carried connection: where its bytes are now, and what moves it between the kernel and the rings.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bywire_ring::distance;
use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{ASKS_BACK, Course, HALF, HEADER_BYTES, LEAVING, News, RING_BYTES, Sleep};

use crate::connection::fallback;
use crate::connection::table::{self, Connection, STREAM, Socket};
use crate::os::jumps::{self, GiveBack};
use crate::os::{errno, kernel, own_call, pid, real, thread, tsc};
use crate::wakeup::{doorbell, spin};

/// Bits of `Record::ended`, as poll gives them.
pub const FINISHED: u8 = 1;
/// Hung up: both directions are over.
pub const HUNG_UP: u8 = 2;
/// The kernel has an error for us, or had.
pub const FAILED: u8 = 4;
/// We have shut down our receiving ourselves: the kernel says [`FINISHED`] for that, too.
pub const SHUT: u8 = 8;
/// We have shut down our sending ourselves.
pub const SHUT_SENDING: u8 = 16;

/// Room from which on a socket is writable, as in the kernel: a third.
pub const WRITABLE_BYTES: usize = RING_BYTES / 3;
/// Memory is put behind the ring in steps of this.
const STEP_BYTES: usize = 64 << 10;
/// Bytes of the ring that share the header's page.
const FIRST_BYTES: usize = 4096 - HEADER_BYTES;
/// Sleepers look at the kernel's state at least so often: a killed peer wakes nobody.
const LOOK_MS: [u64; 6] = [5, 20, 50, 100, 200, 500];
/// For an end that was announced they look so many times more, a millisecond each.
const LOOKS_AT_LAST: u32 = 20;
/// The kernel is asked about the end of an empty stream at most so often.
const ASK_NS: u64 = 1_000_000;
/// So far the sender goes without a look at how far the peer has read.
const AHEAD_BYTES: usize = 64 << 10;

/// Where the next byte to be received is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the kernel, with no end in sight.
    Kernel,
    /// In the kernel, up to so many bytes.
    KernelUntil(u64),
    /// In the ring: so many bytes are there.
    Ring(usize),
    /// Undecided for a moment; see [`Connection::settle`].
    Moment,
    /// In the ring, and not to be taken out any more: the other end was asked to give it to the kernel.
    Held,
}

/// Values of `Record::lingers`.
pub mod linger {
    /// It is as the kernel has made it.
    pub const UNSET: u8 = 0;
    /// We have told the kernel that a killed end is a reset.
    pub const OURS: u8 = 1;
    /// The program has told it what it wants.
    pub const PROGRAMS: u8 = 2;
}

/// The process is ending in order: its connections end as TCP's do.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// From here on no connection is guarded.
pub fn end_guards() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

unsafe extern "C-unwind" {
    /// The C library's: ends a thread that is to be cancelled, as in every call of its own that waits.
    fn pthread_testcancel();
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Something may have changed.
    Look,
    /// A signal came: the call ends with `EINTR`.
    Signal,
    /// The socket's own time-out has passed.
    TimeOut,
}

impl Connection {
    /// Where the next byte to be received is. Called with the receiving lock held, or for a hint.
    pub fn source(&self) -> Result<Source, Corrupt> {
        let course = STREAM.course(&self.remote)?;
        match course {
            Course::Kernel => return Ok(Source::Kernel),
            // A writer that was killed on its way leaves it so; nothing comes behind the kernel's end.
            Course::Pending
                if self.record.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) != 0 =>
            {
                return Ok(Source::KernelUntil(u64::MAX));
            }
            // Nobody ends the ring of a writer that was killed while it did: what is there is there.
            Course::Ending
                if self.record.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) == 0 =>
            {
                return Ok(Source::Moment);
            }
            Course::Pending => return Ok(Source::Moment),
            Course::Ring | Course::Ending | Course::Back(_) => {}
        }
        if self.record.drained.load(Ordering::Relaxed) == 0 {
            // A call that sleeps in the kernel is woken by the last bytes there: nobody takes them from it.
            if self.kernel_readers() != 0 {
                return Ok(Source::Moment);
            }
            let cut = STREAM.cut_offset(&self.remote);
            // SeqCst: pairs with the addition in `receive::count`, of calls that have left: nobody is in the kernel.
            let received = self.record.received.load(Ordering::SeqCst);
            match cut.checked_sub(received) {
                Some(0) => self.record.drained.store(1, Ordering::Relaxed),
                Some(left) => return Ok(Source::KernelUntil(left)),
                None => return Err(Corrupt),
            }
        }
        match course {
            // Bytes behind the end of the ring come through the kernel.
            Course::Back(until) if until == STREAM.head(&self.own) => Ok(Source::Kernel),
            Course::Ring if self.has_asked_back() => Ok(Source::Held),
            _ => self.in_ring().map(Source::Ring),
        }
    }

    /// As [`Self::source`], with a look, now and then, at whether a moment goes on because somebody was killed.
    pub fn settle(&self) -> Result<Source, Corrupt> {
        let source = self.source()?;
        if source != Source::Moment {
            return Ok(source);
        }
        let (now, looked) = (kernel::now_ns(), &self.record.looked_ns);
        if now.wrapping_sub(looked.load(Ordering::Relaxed)) < ASK_NS {
            return Ok(source);
        }
        looked.store(now, Ordering::Relaxed);
        self.ask_kernel();
        errno::keep(|| {
            for sleeper in &self.record.sleepers {
                let thread = sleeper.load(Ordering::Relaxed);
                if thread != 0 && !pid::lives(thread) {
                    self.leave_kernel(thread);
                }
            }
        });
        self.source()
    }

    /// Goes to sleep in the kernel, if it may: the course, as by `STREAM.enter`. [`Self::leave_kernel`] follows.
    pub fn enter_kernel(&self) -> Result<Course, Corrupt> {
        let course = STREAM.enter(&self.own, &self.remote);
        // One more than there are places for is not known if it is killed.
        self.change_sleeper(0, thread::number());
        course
    }

    /// One sleeper in the kernel less: this thread, or one that was killed.
    pub fn leave_kernel(&self, thread: u32) {
        if self.change_sleeper(thread, 0) || thread == thread::number() {
            STREAM.leave(&self.own);
            // Whoever has come meanwhile waits until the last sleeper has left, and in a `poll` hears of it by the bell alone.
            if STREAM.course(&self.remote) != Ok(Course::Kernel) {
                self.wake_own();
                doorbell::ring_own();
            }
        }
    }

    fn change_sleeper(&self, from: u32, to: u32) -> bool {
        self.record
            .sleepers
            .iter()
            .any(|sleeper| sleeper.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }

    /// Is all of it counted that was taken out of the kernel? Who was killed behind a receive has counted nothing: then it is
    /// counted now, and the answer is no. Called with the receiving lock held, and nobody in the kernel.
    pub fn is_counted(&self) -> bool {
        let Some(account) = kernel::account(self.fd) else { return true };
        let received = &self.record.received;
        // A program that has had the socket may have taken what came behind the ring as well.
        let taken = account.taken.min(STREAM.cut_offset(&self.remote));
        let is_more = account.is_steady && taken > received.load(Ordering::Relaxed);
        if is_more {
            // SeqCst: pairs with the loads in `proposal::accounts_agree` and `source`, as in `receive::count`.
            received.store(taken, Ordering::SeqCst);
        }
        !is_more
    }

    /// May somebody have been killed with it?
    pub fn is_shared(&self) -> bool {
        self.record.processes.load(Ordering::Relaxed) != 1
    }

    /// What the kernel has while the writer changes over lies before the cut, and is anybody's if nobody sleeps for it.
    pub fn is_early(&self) -> bool {
        STREAM.course(&self.remote) == Ok(Course::Pending) && self.kernel_readers() == 0
    }

    /// Was the other end asked to give the kernel what is in its ring? One that has shut down, or is no more, will not.
    fn has_asked_back(&self) -> bool {
        STREAM.flags(&self.own) & ASKS_BACK != 0
            && STREAM.flags(&self.remote) & HALF == 0
            && self.record.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) == 0
    }

    /// May the stream have ended? Its end is told, but for that of a killed peer, which has to be looked for.
    pub fn may_have_ended(&self) -> bool {
        if STREAM.flags(&self.remote) & (HALF | LEAVING) != 0
            || self.record.ended.load(Ordering::Relaxed) != 0
        {
            return true;
        }
        let now = kernel::now_ns();
        let asked = self.record.asked_ns.load(Ordering::Relaxed);
        if now.wrapping_sub(asked) < ASK_NS {
            return false;
        }
        self.record.asked_ns.store(now, Ordering::Relaxed);
        true
    }

    /// Bytes that are to be read from the ring, before or after what the kernel has.
    pub fn in_ring(&self) -> Result<usize, Corrupt> {
        let available = STREAM.available(&self.own, &self.remote)?;
        Ok(match STREAM.course(&self.remote)? {
            Course::Kernel | Course::Pending => 0,
            Course::Ring | Course::Ending => available,
            Course::Back(until) => {
                available.min(until.checked_sub(STREAM.head(&self.own)).ok_or(Corrupt)? as usize)
            }
        })
    }

    fn kernel_readers(&self) -> u64 {
        // SeqCst: pairs with the addition and the subtraction in `table::Inside`.
        STREAM.readers(&self.own) + u64::from(self.record.kernel_readers.load(Ordering::SeqCst))
    }

    /// Does a call on it end at once when there is nothing?
    pub fn is_nonblocking(&self) -> bool {
        // Whoever has got a copy by passing may change that behind our back.
        if self.record.never.load(Ordering::Relaxed) != 0 {
            return kernel::is_nonblocking(self.fd);
        }
        match self.record.waits.load(Ordering::Relaxed) {
            0 => {
                let found = kernel::is_nonblocking(self.fd);
                // Not over what a call that changes it has said meanwhile.
                let _ = self.record.waits.compare_exchange(
                    0,
                    1 + u8::from(found),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                found
            }
            known => known == 2,
        }
    }

    /// When a call that begins to wait now ends by the socket's own time-out, `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    pub fn deadline(&self, name: i32) -> Option<u64> {
        let place = self.record.patience.get(usize::from(name == libc::SO_SNDTIMEO))?;
        if place.load(Ordering::Relaxed) == 1 && self.record.never.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let found = kernel::patience(self.fd, name);
        if found.is_none() {
            let _ = place.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        found.map(|patience| kernel::now_ns().saturating_add(patience))
    }

    /// Wakes whoever sleeps at the other end for such news.
    #[inline]
    pub fn tell(&self, news: News) {
        let woken = self.record.woken.load(Ordering::Relaxed);
        let wake = STREAM.wake(&self.own, &self.remote, news, woken);
        if wake.futex {
            self.record.woken.store(wake.round, Ordering::Relaxed);
            strike(self.own.event_address());
        }
        if wake.bell {
            // Acquire: pairs with the release store in `proposal::answered`; the peer's page is mapped before.
            doorbell::ring(self.hold.peer.load(Ordering::Acquire));
        }
    }

    /// Wakes threads of this end that sleep on the peer's word: a shutdown is news to them.
    pub fn wake_own(&self) {
        strike(self.remote.event_address());
    }

    /// How many bytes fit now, for one who wants to send `wanted`. Called with the sending lock held.
    ///
    /// The peer's position is looked at only where it may make a difference: its line is the peer's to write.
    pub fn room(&self, wanted: usize) -> Result<usize, Corrupt> {
        let ahead =
            STREAM.tail(&self.own).wrapping_sub(self.record.seen_head.load(Ordering::Relaxed)) as usize;
        let backed = self.record.backed.load(Ordering::Relaxed) as usize;
        if ahead < AHEAD_BYTES
            && ahead.saturating_add(wanted) <= AHEAD_BYTES
            && STREAM.reach(&self.own, wanted) <= backed
        {
            return Ok(RING_BYTES - ahead);
        }
        let began_cycles = distance::cycles();
        let room = STREAM.room(&self.own, &self.remote)?;
        let cycles = distance::cycles().wrapping_sub(began_cycles);
        let head = STREAM.tail(&self.own).wrapping_sub((RING_BYTES - room) as u64);
        // A line that has not changed was in our own cache.
        if head != self.record.seen_head.load(Ordering::Relaxed)
            && let Some(far_cycles) = tsc::far_cycles(kernel::now_ns)
        {
            let opinion = self.record.distance.load(Ordering::Relaxed);
            self.record.distance.store(distance::learnt(opinion, cycles > far_cycles), Ordering::Relaxed);
        }
        self.record.seen_head.store(head, Ordering::Relaxed);
        Ok(room)
    }

    /// Makes sure that the next `length` bytes of the ring have memory behind them; without, nothing is written.
    pub fn back_with_memory(&self, length: usize) -> bool {
        let reach = STREAM.reach(&self.own, length);
        let backed = self.record.backed.load(Ordering::Relaxed) as usize;
        if reach <= backed {
            return true;
        }
        // Small messages of an idle connection stay within the header's page.
        let (backed, until) = if reach <= FIRST_BYTES {
            (FIRST_BYTES, FIRST_BYTES)
        } else {
            let end = (HEADER_BYTES + reach).next_multiple_of(STEP_BYTES);
            (backed.max(FIRST_BYTES), (end - HEADER_BYTES).min(RING_BYTES))
        };
        // SAFETY: whole pages of the mapped segment: the header and what is backed end with one.
        let done = backed == until
            || unsafe {
                let start = self.own.base().add(HEADER_BYTES + backed);
                libc::madvise(start.cast(), until - backed, libc::MADV_POPULATE_WRITE) == 0
                    || errno::last() == libc::EINVAL
            };
        if done {
            self.record.backed.store(until as u32, Ordering::Relaxed);
        }
        done
    }

    /// Has the other end gone altogether, as far as the kernel was heard?
    pub fn peer_is_gone(&self) -> bool {
        let ended = self.record.ended.load(Ordering::Relaxed);
        let told = STREAM.flags(&self.remote);
        ended & (HUNG_UP | FAILED) != 0
            || (ended & (FINISHED | SHUT) == FINISHED && told & HALF == 0)
            // The kernel tells nobody of the close of an end that had shut down before, nor one that has shut down its own
            // receiving; what it is sent it answers.
            || (ended & FINISHED != 0 && told & LEAVING != 0)
    }

    /// Asks the kernel what has come to an end.
    pub fn ask_kernel(&self) {
        let found = kernel::ready(self.fd, libc::POLLRDHUP);
        self.heard(found);
    }

    /// Keeps what the kernel has said: such things do not change again.
    pub fn heard(&self, found: i16) {
        let pairs = [(libc::POLLRDHUP, FINISHED), (libc::POLLHUP, HUNG_UP), (libc::POLLERR, FAILED)];
        for (bit, kept) in pairs {
            if found & bit != 0 && self.record.ended.load(Ordering::Relaxed) & kept == 0 {
                self.record.ended.fetch_or(kept, Ordering::Relaxed);
            }
        }
    }

    /// Sleeps until there may be news, with no lock held. `fruitless` counts sleeps in a row.
    pub fn sleep(
        &self,
        sleep: Sleep,
        fruitless: usize,
        deadline_ns: Option<u64>,
        again: impl Fn() -> bool,
    ) -> Woken {
        if spin::until(1, &again, deadline_ns) {
            return Woken::Look;
        }
        let use_of_place = self.record.generation.load(Ordering::Relaxed);
        let mut expected = 0;
        let argument = (self.index as usize) << 1 | usize::from(sleep == Sleep::Room);
        let nap = jumps::taking(GiveBack { ends: is_awake, left: was_left_asleep, argument }, || {
            expected = STREAM.arm(&self.own, &self.remote, sleep);
        });
        let woken = if again() {
            Woken::Look
        } else {
            let place = STREAM.next_place(&self.own, &self.remote);
            let woken = self.sleep_on(expected, fruitless, deadline_ns);
            STREAM.expect(&self.own, &self.remote, place);
            woken
        };
        if !nap.end(|| STREAM.disarm(&self.own, sleep)) && !self.is_as_it_was(use_of_place) {
            // A handler has run, and closed it. The next call looks at what there is now.
            return Woken::Signal;
        }
        // SAFETY: no arguments; nothing is held that is not given back when the thread is unwound.
        unsafe { pthread_testcancel() };
        woken
    }

    fn sleep_on(&self, expected: u32, fruitless: usize, deadline_ns: Option<u64>) -> Woken {
        let leaving = STREAM.flags(&self.remote) & LEAVING != 0;
        let look_ms = self.look_ms(if leaving { Some(&self.record.last_looks) } else { None }, fruitless);
        let now = kernel::now_ns();
        if deadline_ns.is_some_and(|deadline| deadline <= now) {
            return Woken::TimeOut;
        }
        let look_ns = fallback::pay_before_wait(Some(look_ms * 1_000_000)).unwrap_or(0);
        let until = deadline_ns.unwrap_or(u64::MAX).min(now + look_ns);
        match wait_for(self.remote.event_address(), expected, until, deadline_ns.is_some()) {
            libc::EINTR => Woken::Signal,
            _ => Woken::Look,
        }
    }

    /// When to look next, after so many fruitless sleeps. What a peer has announced comes at once, if it comes; how often was
    /// that looked for?
    fn look_ms(&self, announced: Option<&AtomicU32>, fruitless: usize) -> u64 {
        let looks = announced.map_or(LOOKS_AT_LAST, |looks| looks.load(Ordering::Relaxed));
        if let Some(announced) = announced
            && looks < LOOKS_AT_LAST
        {
            announced.store(looks + 1, Ordering::Relaxed);
            return 1;
        }
        LOOK_MS.get(fruitless).copied().unwrap_or(1000)
    }

    /// Before bytes go into the ring: a killed end is a reset from here on. They may be the ones that a reader behind the
    /// kernel was to have, to whom an ordinary end would hide that they are lost. Called with the sending lock held, as
    /// [`Self::unguard`] is: the state and the kernel's option change together.
    #[inline]
    pub fn guard(&self) {
        if self.record.lingers.load(Ordering::Relaxed) == linger::UNSET {
            self.guard_now();
        }
    }

    #[inline(never)]
    fn guard_now(&self) {
        if IS_ENDING.load(Ordering::Relaxed) {
            return;
        }
        let is_programs = kernel::lingers(self.fd);
        let next = if is_programs { linger::PROGRAMS } else { linger::OURS };
        let lingers = &self.record.lingers;
        let is_changed =
            lingers.compare_exchange(linger::UNSET, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_changed && !is_programs {
            kernel::linger(self.fd, Some(0));
        }
    }

    /// Its end is TCP's again. Called with the sending lock held.
    pub fn unguard(&self) {
        let lingers = &self.record.lingers;
        if lingers.compare_exchange(linger::OURS, linger::UNSET, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            kernel::linger(self.fd, None);
        }
    }

    /// A handler has jumped out of a copy of this thread: what it held is free.
    pub fn let_go(&self) {
        if self.record.receiving.is_own() {
            STREAM.end_taking(&self.own);
            self.record.receiving.give();
        }
        if self.record.sending.is_own() {
            self.record.sending.give();
        }
    }

    /// Its end is about to come, in order: unread bytes make TCP's end a reset, wherever they lie.
    pub fn take_leave(&self) {
        self.serve();
        self.pay_at_the_end();
        self.end_before_the_kernels(true);
        if STREAM.flags(&self.own) & ASKS_BACK == 0 && self.in_ring() != Ok(0) {
            kernel::linger(self.fd, Some(0));
        } else {
            self.with_sending(|| {
                if !self.owes() {
                    self.unguard();
                }
            });
        }
        STREAM.raise(&self.own, LEAVING);
    }

    /// This process has it no more, and others count. Either one of them goes on with it, and the bytes that its peer has not
    /// read stay guarded; or none has it, as it was replaced by another program, or killed where nobody knew it: then this is
    /// the last one after all, and the kernel gets those bytes before it ends it.
    pub fn leave_to_others(&self) {
        let record = self.record;
        let holders = record.holders.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
        let others_go_on = record.is_replaced.load(Ordering::Relaxed) == 0
            && record.processes.load(Ordering::Relaxed) as usize <= holders;
        if !others_go_on {
            self.serve();
            self.end_before_the_kernels(false);
        }
        self.settle_guard(|unread_by_peer| unread_by_peer == 0 || !others_go_on);
    }

    /// How the kernel is to end it when a descriptor closes: by a reset where bytes are unread, as TCP does; in order if nothing
    /// is owed, and `may_end` says so of the number of bytes that the peer has not read.
    pub fn settle_guard(&self, may_end: impl FnOnce(usize) -> bool) {
        self.with_sending(|| {
            if self.in_ring() != Ok(0) {
                self.guard();
            } else if !self.owes() && may_end(STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0)) {
                self.unguard();
            }
        });
    }

    /// With the sending lock held. This thread may have it already: the handler of a fault in a copy may end the process.
    pub fn with_sending(&self, work: impl FnOnce()) {
        let _held = (!self.record.sending.is_own()).then(|| self.record.sending.hold());
        work();
    }

    /// Before the kernel is told the end of what we send: what the other end has not taken goes into the kernel before it, as
    /// far as there is room. Whoever has that end next, and does not know this library, has it all.
    pub fn end_before_the_kernels(&self, is_last: bool) {
        let is_in_ring = || matches!(STREAM.course(&self.own), Ok(Course::Ring | Course::Ending));
        if !is_in_ring() {
            return;
        }
        let unread = STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0);
        // An end that has shut down both ways answers what comes by a reset: it reads what it has already where it is.
        if unread == 0 || STREAM.flags(&self.remote) & LEAVING != 0 {
            return;
        }
        if is_last && !kernel::has_room(self.fd, unread) {
            kernel::make_room(self.fd, unread);
        }
        let _held = self.record.sending.hold();
        if kernel::has_room(self.fd, unread) && is_in_ring() {
            self.end_ring();
        }
    }

    /// What the other end asks of us: to have our bytes in the kernel again.
    #[inline]
    pub fn serve(&self) {
        if STREAM.flags(&self.remote) & ASKS_BACK != 0 || self.owes() {
            self.serve_now();
        }
    }

    /// The peer broke the rules: the connection is reset, and nothing else is harmed.
    pub fn break_off(&self) {
        self.record.broken.store(1, Ordering::Relaxed);
        kernel::linger(self.fd, Some(0));
        let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
        // SAFETY: a live address; AF_UNSPEC resets a TCP connection and leaves the descriptor.
        errno::keep(|| unsafe { real::connect(self.fd, &raw const nobody, size_of_val(&nobody) as u32) });
        self.tell(News::Course);
    }

    /// Was it broken off?
    pub fn is_broken(&self) -> bool {
        self.record.broken.load(Ordering::Relaxed) != 0
    }
}

/// A sleeper is awake, of the connection that the number names with what it slept for.
fn is_awake(number: usize) {
    let sleep = if number & 1 != 0 { Sleep::Room } else { Sleep::Bytes };
    if let Some(Ok(connection)) = table::by_index(-1, (number >> 1) as u32).map(Socket::mapped) {
        STREAM.disarm(&connection.own, sleep);
    }
}

/// A handler has jumped out of a sleep.
fn was_left_asleep(number: usize) {
    is_awake(number);
    table::used(number >> 1);
}

/// Wakes whoever sleeps on the word at `address`.
fn strike(address: *const u32) {
    let Some(_own) = own_call::begin() else { return };
    // SAFETY: a word of a mapped segment.
    errno::keep(|| unsafe {
        let (word, all) = (address as usize, i32::MAX as usize);
        real::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE as usize, all, 0, 0, 0)
    });
}

/// `struct futex_waitv` of linux/futex.h.
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const SYS_FUTEX_WAITV: i64 = 449;
const FUTEX2_SIZE_U32: u32 = 2;

/// Sleeps while the word at `address` is `expected`; the error number, 0 after a wake.
///
/// Without a time-out of the socket's own, a handler with `SA_RESTART` must not end the call: the kernel restarts
/// `futex_waitv`, as it restarts `recv`. With one, `recv` ends in any case, and so does `futex` with a time-out.
fn wait_for(address: *const u32, expected: u32, until_ns: u64, has_deadline: bool) -> i32 {
    let Some(_own) = own_call::begin_sleep() else { return 0 };
    let until = libc::timespec {
        tv_sec: (until_ns / 1_000_000_000) as i64,
        tv_nsec: (until_ns % 1_000_000_000) as i64,
    };
    // SAFETY: a word of a mapped segment, and structures that live until the calls are over.
    let status = unsafe {
        let mut status = -1;
        if !has_deadline {
            let waiter = Waiter {
                value: expected.into(),
                address: address as u64,
                flags: FUTEX2_SIZE_U32,
                reserved: 0,
            };
            let (waiter, until) = ((&raw const waiter) as usize, (&raw const until) as usize);
            let clock = libc::CLOCK_MONOTONIC as usize;
            status = real::syscall(SYS_FUTEX_WAITV, waiter, 1, 0, until, clock, 0);
        }
        if has_deadline || (status < 0 && errno::last() == libc::ENOSYS) {
            status = libc::syscall(
                libc::SYS_futex,
                address,
                libc::FUTEX_WAIT_BITSET,
                expected,
                &raw const until,
                core::ptr::null::<u32>(),
                u32::MAX,
            );
        }
        status
    };
    if status < 0 { errno::last() } else { 0 }
}
