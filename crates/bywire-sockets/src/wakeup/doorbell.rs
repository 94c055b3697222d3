//! Doorbells wake threads that sleep on many descriptors at once.
//!
//! A family of processes has one doorbell, an eventfd that is never read. Epoll sets watch it edge-triggered, so every
//! ring wakes every set that holds it. A page says whether anybody sleeps, so that peers ring for sleepers only. A
//! doorbell carries a mark that the program's descriptors do not have, and the mark is checked before the doorbell is
//! written to: programs close descriptors that they do not know, and the kernel reuses the numbers.
//!
//! A program that has a doorbell can silence it. Programs of one user trust each other that far. Programs of another
//! user get a separate doorbell from the pairing service: a timer that is never armed, whose ring nobody can delay.
//! With it they can disturb only their own connections.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use bywire_ring::program_doorbell as rule;
use bywire_ring::stream::Window;
use bywire_ring::unannounced;

use bywire_pairing::protocol::{DOORBELL_MARK, PAGE_BYTES};

use crate::memory::arena::{self, EpollSet, Peer};
use crate::memory::descriptors;
use crate::memory::lock::{Lock, rank};
use crate::memory::robust::{Counted, Reaper};
use crate::memory::{segment, vforked};
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::{own_call, pid, real, signal_deferral};

/// What the kernel reports for the doorbell in a set.
pub const DOORBELL_DATA: u64 = 0xB7E1_0000_0000_0000;
/// Sets that are kept ready for sleepers in `poll` or `select`.
const POOL: usize = 64;

static DOORBELL: AtomicI32 = AtomicI32::new(-1);
static PAGE_FILE: AtomicI32 = AtomicI32::new(-1);
static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// `F_SETSIG` and `F_GETSIG` of asm-generic/fcntl.h.
const SET_MARK: i32 = 10;
const SEE_MARK: i32 = 11;
/// `TFD_IOC_SET_TICKS` of linux/timerfd.h: rings a timer.
const SET_COUNT: usize = 0x4008_5400;
/// Timers that a process may have.
const TIMERS_MAX: usize = 64;
/// The number of timers. The service's name of each follows.
static TIMERS_COUNT: AtomicUsize = AtomicUsize::new(0);
static TIMERS: [AtomicI32; TIMERS_MAX] = [const { AtomicI32::new(-1) }; TIMERS_MAX];
static TIMER_NAMES: [AtomicU64; TIMERS_MAX] = [const { AtomicU64::new(0) }; TIMERS_MAX];
/// The inode and the device that all eventfds have.
static INODE: AtomicU64 = AtomicU64::new(0);
static DEVICE: AtomicU64 = AtomicU64::new(0);
/// Sets that hold doorbells only, and in which nobody sleeps; see [`DoorbellSet::encode`]. 0: an empty slot.
static SETS: [AtomicU64; POOL] = [const { AtomicU64::new(0) }; POOL];
/// Counts forks to this process, and withdrawals. An older set belongs to the parent too, or may hold a doorbell that
/// was withdrawn.
static AGE: AtomicU32 = AtomicU32::new(0);
/// Timers that this process has inherited: a bit for each slot.
static INHERITED: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(TIMERS_MAX <= u64::BITS as usize);

/// Held while timers are added to sets or removed from them: none is added after its withdrawal.
static HEARING: Lock<{ rank::HEARING }> = Lock::new();
pub(super) static ADOPTING: Lock<{ rank::ADOPTING }> = Lock::new();

/// This family's doorbell and page, made on the first call.
pub fn own() -> Option<(i32, i32)> {
    // Acquire, both: pair with the release stores of the same words below. Both descriptors are marked and hidden
    // before.
    let (doorbell, page) = (DOORBELL.load(Ordering::Acquire), PAGE_FILE.load(Ordering::Acquire));
    if doorbell >= 0 && page >= 0 {
        return is_marked(doorbell).then_some((doorbell, page));
    }
    // The descriptors of a child in its parent's memory are not its parent's.
    if vforked::is_child() {
        return None;
    }
    let _held = ADOPTING.hold();
    // Another thread may have made both meanwhile. Relaxed: ordered by the lock.
    let (doorbell, page) = (DOORBELL.load(Ordering::Relaxed), PAGE_FILE.load(Ordering::Relaxed));
    if doorbell >= 0 && page >= 0 {
        return Some((doorbell, page));
    }
    // SAFETY: plain system calls; the results are checked.
    let doorbell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if doorbell < 0 {
        return None;
    }
    let is_marked = mark(doorbell);
    let found = inode(doorbell).filter(|_| is_marked);
    let made = found.and_then(|found| Some((found, segment::sealed(PAGE_BYTES)?)));
    let Some(((inode, device), (file, address))) = made else {
        // SAFETY: made above.
        unsafe { real::close(doorbell) };
        return None;
    };
    INODE.store(inode, Ordering::Relaxed);
    DEVICE.store(device, Ordering::Relaxed);
    let (doorbell, file) = (hide_high(doorbell), hide_high(file));
    // Release: pairs with the acquire load in `page`. The page is mapped before.
    PAGE.store(address, Ordering::Release);
    // Release, both: pair with the acquire loads above, and in `ring_own`. The descriptors are registered as hidden
    // before.
    PAGE_FILE.store(file, Ordering::Release);
    DOORBELL.store(doorbell, Ordering::Release);
    Some((doorbell, file))
}

/// Programs rarely use descriptors from this number on.
pub fn first_high() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: valid for writes; zeros are a value.
    let limit = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr());
        limit.assume_init().rlim_cur
    };
    limit.min(arena::DESCRIPTORS as u64) / 8 * 7
}

/// Moves a descriptor to such a number, and registers it as hidden.
pub fn hide_high(fd: i32) -> i32 {
    let high = first_high();
    // SAFETY: a descriptor of this library.
    let moved = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, high as usize) };
    if moved < 0 {
        descriptors::hide(fd);
        return fd;
    }
    // SAFETY: a descriptor of this library, whose number nobody else knows.
    unsafe { real::close(fd) };
    descriptors::hide(moved);
    moved
}

/// This family's page, if it has one.
pub(super) fn page() -> Option<Window> {
    // Acquire: pairs with the release store in `own`. The page is mapped before.
    let base = PAGE.load(Ordering::Acquire);
    // SAFETY: `own` has mapped this many bytes for writing, and nobody unmaps them.
    (!base.is_null()).then(|| unsafe { Window::new(base, PAGE_BYTES) })
}

/// Makes the page and the doorbell, if there are none yet. A thread that is announced in a page may sleep without a
/// limit.
pub fn make_page() {
    if PAGE.load(Ordering::Relaxed).is_null()
        && let Some(_own) = own_call::begin()
    {
        crate::os::errno::keep(own);
    }
}

/// Announces a thread that is about to sleep where only the doorbell wakes it, until dropped. The thread checks
/// everything once more after it is announced.
pub struct Asleep(#[expect(dead_code, reason = "held for its drop")] Noted);

/// Announces this thread. `place` is a position on the stack, further up than everything that the call does meanwhile.
pub fn asleep(place: usize) -> Option<Asleep> {
    let page = page()?;
    reap_killed();
    let notes = &arena::shared()?.notes;
    signal_deferral::hold_off();
    let noted = notes.begin(pid::number());
    rule::announce(&page);
    notes.note(noted, Counted::Announced(arena::branch()));
    let give_back = GiveBack { ends: rise_noted, left: rise_noted, argument: noted as usize };
    let noted = jumps::note(place, give_back);
    signal_deferral::admit();
    Some(Asleep(noted))
}

fn rise_noted(noted: usize) {
    if let Some(family) = arena::shared() {
        family.notes.end(noted as u32, Counted::Announced(arena::branch()), rise);
    }
}

/// Before a sleep: takes back the counts of killed processes, if nobody has checked for them for a while.
pub fn reap_killed() {
    if let Some(family) = arena::shared()
        && family.notes.is_due(crate::os::kernel::now_ns())
    {
        count_out_killed();
    }
}

/// Checks some processes, and takes back the counts of those that were killed.
pub fn count_out_killed() {
    with_reaper(|family, reaper| crate::os::errno::keep(|| family.notes.reap(reaper)));
}

fn with_reaper(work: impl FnOnce(&arena::SharedArena, &Reaper)) {
    let (Some(family), Some(me)) = (arena::shared(), pid::number()) else { return };
    let is_within_reach = |counted| match counted {
        Counted::Announced(known) => known == arena::branch(),
        Counted::Unannounced(name, _) => descriptors::set_named(name)
            .is_none_or(|set| set.branch.load(Ordering::Relaxed) == arena::branch()),
        Counted::Asleep(_) | Counted::Holder(_) => true,
    };
    let runs = &pid::runs;
    // A handler that jumps out would leave a file open, or a place taken by this process, which is alive.
    signal_deferral::hold_off();
    work(family, &Reaper { me, runs, is_within_reach: &is_within_reach, count_out: &count_out });
    signal_deferral::admit();
}

/// Takes back one count.
pub fn count_out(counted: Counted) {
    match counted {
        Counted::Announced(_) => rise(),
        Counted::Asleep(name) => {
            if let Some(set) = descriptors::set_named(name) {
                set.sleepers.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Counted::Unannounced(name, round) => {
            let Some(set) = descriptors::set_named(name) else { return };
            set.sleepers.fetch_sub(1, Ordering::Relaxed);
            if unannounced::leave(&set.unannounced, round) {
                rise();
            }
        }
        Counted::Holder(name) => {
            if let Some(set) = descriptors::set_named(name) {
                // AcqRel: pairs with the same operation of other processes, as in `holders::let_go`.
                set.processes.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// The set holds something from here on that peers ring for: announces the threads that sleep in it already.
pub fn announce_sleepers(set: &EpollSet) {
    // Another branch's page says what those of that branch have.
    if set.branch.load(Ordering::Relaxed) != arena::branch() {
        return;
    }
    // SeqCst: pairs with the fence in `sleepers::Unannounced::enter`. Either a sleeper is counted here, or it finds
    // what is in the set.
    fence(Ordering::SeqCst);
    // A process without a page has no peer that would ring: nothing is carried.
    if let Some(page) = page() {
        // No handler runs, or jumps, between the two steps.
        signal_deferral::hold_off();
        unannounced::announce(&set.unannounced, &page);
        signal_deferral::admit();
    }
}

/// Ends the announcement of one sleeper that is awake.
pub fn rise() {
    if let Some(page) = page() {
        rule::rise(&page);
    }
}

/// This thread has taken a ring out of a set that others may sleep in. It checks everything after this.
pub fn take_ring() {
    if let Some(page) = page() {
        rule::take(&page);
    }
}

/// Whether somebody sleeps by this family's doorbell, and no more threads than this.
pub fn has_few_sleepers(most: u64) -> bool {
    page().is_some_and(|page| (1..=most).contains(&rule::sleepers(&page)))
}

/// Wakes every sleeper of this family, for sets that others watch.
pub fn ring_own() {
    // Acquire: pairs with the release store in `own`. The doorbell is marked before.
    ring_eventfd(DOORBELL.load(Ordering::Acquire));
}

pub(super) fn ring_eventfd(doorbell: i32) {
    let Some(_own) = own_call::begin() else { return };
    if is_marked(doorbell) {
        let one = 1u64;
        // SAFETY: eight live bytes.
        crate::os::errno::keep(|| unsafe { real::write(doorbell, (&raw const one).cast(), 8) });
    }
}

/// Rings a timer. Returns the error number, 0 for none.
pub(super) fn set_timer(doorbell: i32, count: u64) -> i32 {
    let Some(_own) = own_call::begin() else { return libc::EBADF };
    crate::os::errno::keep(|| {
        // SAFETY: eight live bytes that are read. Other kinds of files do not have this operation.
        let status = unsafe { real::ioctl(doorbell, SET_COUNT, (&raw const count).cast_mut().cast()) };
        if status == 0 { 0 } else { crate::os::errno::last() }
    })
}

/// Whether this number still means a timer. Only a timer reports that zero is an invalid count.
pub(super) fn is_timer(fd: i32) -> bool {
    fd >= 0 && set_timer(fd, 0) == libc::EINVAL
}

/// Adds a doorbell of this process for programs of another user, and takes ownership of it. The caller holds the lock
/// of the service's connection, as for [`remove_timer`].
pub fn add_timer(name: u64, fd: i32) {
    // Relaxed: changed only under that lock.
    let count = TIMERS_COUNT.load(Ordering::Relaxed);
    let is_free = |place: &AtomicI32| place.load(Ordering::Relaxed) < 0;
    let at = TIMERS.iter().take(count).position(is_free).unwrap_or(count);
    let place = TIMERS.get(at).zip(TIMER_NAMES.get(at));
    let Some((place, known)) = place.filter(|_| is_timer(fd)) else {
        // SAFETY: received for this process alone; closing -1 does nothing.
        unsafe { real::close(fd) };
        return;
    };
    known.store(name, Ordering::Relaxed);
    INHERITED.fetch_and(!(1 << at), Ordering::Relaxed);
    // Release: pairs with the acquire loads in `has_timer` and `add_timers_to`. Its name is stored before.
    place.store(hide_high(fd), Ordering::Release);
    // Release: pairs with the acquire loads of the count. The doorbells up to it are stored before.
    TIMERS_COUNT.store(count.max(at + 1), Ordering::Release);
}

/// The service withdraws a doorbell: no connection needs it, so nobody has a reason to ring it.
pub fn remove_timer(name: u64) {
    // Relaxed: changed only under the lock of the service's connection.
    let mut timers = TIMERS.iter().zip(&TIMER_NAMES).take(TIMERS_COUNT.load(Ordering::Relaxed));
    let found = timers
        .find(|(timer, known)| timer.load(Ordering::Relaxed) >= 0 && known.load(Ordering::Relaxed) == name);
    if let Some((place, _)) = found {
        withdraw(place, |_| true);
    }
}

/// Removes a doorbell from the program's sets that `is_meant` selects, makes new sets for threads that sleep in `poll`,
/// and closes it. A program that keeps a copy of the doorbell can then wake only threads that sleep in `poll` already,
/// once. Nothing is removed from those sets: a set in which a thread of a parent sleeps is the same set in its child.
fn withdraw(place: &AtomicI32, is_meant: impl Fn(&EpollSet) -> bool) {
    let held = HEARING.hold();
    let doorbell = place.swap(-1, Ordering::Relaxed);
    if !is_timer(doorbell) {
        return;
    }
    descriptors::each_between(0, u32::MAX, |set, kind| {
        let is_meant = match kind {
            descriptors::DescriptorKind::EpollSet(name) => descriptors::set_named(name).is_none_or(&is_meant),
            _ => false,
        };
        if is_meant {
            // SAFETY: no pointers. The doorbell may not be in this set, or this may be no set, or may be closed.
            crate::os::errno::keep(|| unsafe {
                real::epoll_ctl(set, libc::EPOLL_CTL_DEL, doorbell, ptr::null_mut())
            });
        }
    });
    drop(held);
    renew_sets();
    if descriptors::kind(doorbell) == descriptors::DescriptorKind::Hidden {
        discard(doorbell);
    }
}

/// Threads that sleep in `poll` take new sets from here on. A set in use is closed when its sleep is over.
fn renew_sets() {
    // Release: pairs with the acquire load in `DoorbellSet::take`. No set of the new age holds a doorbell that was
    // withdrawn.
    AGE.fetch_add(1, Ordering::Release);
    for place in &SETS {
        // Acquire: pairs with the release exchange in the drop. A set of an earlier age is closed there.
        drop(DoorbellSet::decode(place.swap(0, Ordering::Acquire)));
    }
}

/// The service withdraws a child's doorbells from its parent. The child need not hear inherited doorbells once it has
/// no connection to another user: connections that it makes itself bring their own doorbells.
pub(super) fn leave_inherited() {
    let inherited = INHERITED.load(Ordering::Relaxed);
    let Some(own) = arena::private().filter(|_| inherited != 0) else { return };
    let is_other_user = |peer: &Peer| {
        peer.references.load(Ordering::Relaxed) > 0 && peer.other_user.load(Ordering::Relaxed) != 0
    };
    if own.peers.iter().any(is_other_user) {
        return;
    }
    let inherited = INHERITED.swap(0, Ordering::Relaxed);
    for (at, place) in TIMERS.iter().enumerate() {
        if inherited & 1 << at != 0 {
            // The sets that its parent has, too, hold the doorbell for both.
            withdraw(place, |set| set.processes.load(Ordering::Relaxed) == 1);
        }
    }
}

/// Whether this process has the doorbell of this name.
pub fn has_timer(name: u64) -> bool {
    // Acquire: pairs with the release store in `add_timer`. The doorbells up to the count are stored before.
    let count = TIMERS_COUNT.load(Ordering::Acquire);
    // Acquire: pairs with the release store in `add_timer`, before which the doorbell got its name.
    let is_it = |(doorbell, known): (&AtomicI32, &AtomicU64)| {
        doorbell.load(Ordering::Acquire) >= 0 && known.load(Ordering::Relaxed) == name
    };
    TIMERS.iter().zip(&TIMER_NAMES).take(count).any(is_it)
}

/// Adds the timers to a set.
pub fn add_timers_to(set: i32) -> bool {
    // Acquire: pairs with the release store in `add_timer`. The doorbells up to the count are stored before.
    let count = TIMERS_COUNT.load(Ordering::Acquire);
    if count == 0 {
        return true;
    }
    let _held = HEARING.hold();
    TIMERS.iter().take(count).all(|place| {
        // Acquire: pairs with the release store in `add_timer`. Nobody withdraws it meanwhile.
        let doorbell = place.load(Ordering::Acquire);
        doorbell < 0 || is_timer(doorbell) && crate::os::errno::keep(|| add(set, doorbell))
    })
}

/// Marks the open file of a descriptor of the library's own. Returns whether that succeeded.
pub fn mark(fd: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { real::fcntl(fd, SET_MARK, DOORBELL_MARK as usize) == 0 }
}

/// Returns whether this number still means a file that the library has marked.
pub fn is_marked(fd: i32) -> bool {
    // SAFETY: no pointers.
    fd >= 0 && crate::os::errno::keep(|| unsafe { real::fcntl(fd, SEE_MARK, 0) }) == DOORBELL_MARK
}

pub(super) fn is_eventfd(fd: i32) -> bool {
    let known = (INODE.load(Ordering::Relaxed), DEVICE.load(Ordering::Relaxed));
    fd >= 0 && crate::os::errno::keep(|| inode(fd)) == Some(known)
}

fn inode(fd: i32) -> Option<(u64, u64)> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: valid for writes; zeros are a value.
    unsafe {
        (libc::fstat(fd, found.as_mut_ptr()) == 0).then(|| {
            let found = found.assume_init();
            (found.st_ino, found.st_dev)
        })
    }
}

/// Adds the doorbell to an epoll set of the program.
pub fn add_to(set: i32) -> bool {
    own().is_some_and(|(doorbell, _)| add(set, doorbell))
}

fn add(set: i32, doorbell: i32) -> bool {
    let Some(_own) = own_call::begin() else { return false };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: DOORBELL_DATA };
    // SAFETY: a live event.
    let status = unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, doorbell, &raw mut event) };
    status == 0 || crate::os::errno::last() == libc::EEXIST
}

/// Removes all doorbells from an epoll set.
pub fn remove_from(set: i32) {
    // Acquire: pairs with the release store in `add_timer`. The doorbells are stored before.
    let timers = TIMERS.iter().take(TIMERS_COUNT.load(Ordering::Acquire));
    for doorbell in core::iter::once(&DOORBELL).chain(timers) {
        // SAFETY: no pointers.
        unsafe {
            real::epoll_ctl(set, libc::EPOLL_CTL_DEL, doorbell.load(Ordering::Relaxed), ptr::null_mut());
        }
    }
}

/// A set that holds doorbells only, for a sleeper in `poll`.
pub struct DoorbellSet {
    /// It becomes readable when a doorbell is rung.
    pub fd: i32,
    /// The value of [`AGE`] before the set was made.
    age: u32,
}

impl DoorbellSet {
    /// A set from the pool, or a new one.
    pub fn take() -> Option<Self> {
        let _own = own_call::begin()?;
        // Acquire: pairs with the release increment in `renew_sets`.
        let age = AGE.load(Ordering::Acquire);
        if vforked::is_child() {
            return Self::of_vforked(age);
        }
        for place in &SETS {
            // Acquire: pairs with the release exchange in the drop.
            let found = Self::decode(place.swap(0, Ordering::Acquire));
            if let Some(found) = found.filter(|found| found.age == age) {
                // A timer that was added since may be missing.
                return add_timers_to(found.fd).then_some(found);
            }
        }
        // SAFETY: no pointers.
        let fd = unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        let fd = hide_high(fd);
        if add_to(fd) && add_timers_to(fd) {
            return Some(Self { fd, age });
        }
        discard(fd);
        None
    }

    /// A set for a child in its parent's memory, which the parent does not have.
    fn of_vforked(age: u32) -> Option<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) };
        let made = (fd >= 0).then_some(Self { fd, age })?;
        (add_to(fd) && add_timers_to(fd)).then_some(made)
    }

    /// The value for its slot in the pool: the age in the upper half, the descriptor plus one in the lower half.
    fn encode(&self) -> u64 {
        u64::from(self.age) << 32 | (self.fd as u64 + 1)
    }

    fn decode(word: u64) -> Option<Self> {
        (word != 0).then(|| Self { fd: (word as u32 - 1) as i32, age: (word >> 32) as u32 })
    }

    /// Discards rings that were heard.
    pub fn drain(&self) {
        let Some(_own) = own_call::begin() else { return };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1 + TIMERS_MAX];
        // SAFETY: room for this many events.
        unsafe { real::epoll_wait(self.fd, events.as_mut_ptr(), events.len() as i32, 0) };
    }
}

impl Drop for DoorbellSet {
    fn drop(&mut self) {
        if vforked::is_child() {
            // SAFETY: made by `of_vforked`, and nobody else knows it.
            crate::os::errno::keep(|| unsafe { real::close(self.fd) });
            return;
        }
        if descriptors::kind(self.fd) != descriptors::DescriptorKind::Hidden {
            return;
        }
        // Acquire: pairs with the release increment in `renew_sets`. A set that is put back too late is found out by
        // the thread that takes it.
        let is_young = self.age == AGE.load(Ordering::Acquire);
        // Release: pairs with the acquire swaps that take it out. It is complete before.
        let put = |place: &AtomicU64| {
            place.compare_exchange(0, self.encode(), Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if is_young && SETS.iter().any(put) {
            return;
        }
        if let Some(_own) = own_call::begin() {
            discard(self.fd);
        }
    }
}

/// Closes a descriptor of the library's own.
pub fn discard(fd: i32) {
    descriptors::unhide(fd);
    // SAFETY: nobody else knows it.
    crate::os::errno::keep(|| unsafe { real::close(fd) });
}

/// Closes everything that this process has. From here on only the kernel wakes its threads.
pub fn close_all() {
    let [doorbell, page] = [&DOORBELL, &PAGE_FILE].map(|place| place.swap(-1, Ordering::Relaxed));
    if is_marked(doorbell) {
        discard(doorbell);
    }
    let timers = TIMERS.iter().take(TIMERS_COUNT.swap(0, Ordering::Relaxed));
    let timers = timers.map(|timer| timer.swap(-1, Ordering::Relaxed)).filter(|timer| is_timer(*timer));
    renew_sets();
    for fd in timers.chain([page]) {
        if descriptors::kind(fd) == descriptors::DescriptorKind::Hidden {
            discard(fd);
        }
    }
}

/// Makes a child's own sets: inherited sets belong to its parent too, with their edge-triggered events.
pub fn after_fork_in_child() {
    if let Some(family) = arena::shared()
        && PAGE.load(Ordering::Relaxed).is_null()
    {
        arena::begin_branch(family);
    }
    with_reaper(|family, reaper| family.notes.after_fork_in_child(reaper));
    HEARING.reset();
    let bits = TIMERS.iter().enumerate().filter(|(_, place)| place.load(Ordering::Relaxed) >= 0);
    INHERITED.store(bits.fold(0, |bits, (at, _)| bits | 1 << at), Ordering::Relaxed);
    renew_sets();
    ADOPTING.reset();
    leave_inherited();
}

/// The library's own descriptor `old` now has the number `new`.
pub fn renumber(old: i32, new: i32) {
    for place in [&DOORBELL, &PAGE_FILE].into_iter().chain(&TIMERS) {
        let _ = place.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
    }
    for place in &SETS {
        let word = place.load(Ordering::Relaxed);
        if word as u32 == old as u32 + 1 {
            let moved = word >> 32 << 32 | (new as u64 + 1);
            // Release: pairs with the acquire swaps that take it out.
            let _ = place.compare_exchange(word, moved, Ordering::Release, Ordering::Relaxed);
        }
    }
    if let Some(own) = arena::private() {
        for peer in &own.peers {
            let _ = peer.doorbell.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
