//! Doorbells: they wake threads that sleep on many descriptors at once.
//!
//! A family of processes has one bell, an eventfd that is never read: epoll sets watch it by edge, so every ring
//! wakes every set that holds it. A page says whether anybody sleeps, so that it is rung for
//! sleepers only. A bell bears a mark that descriptors of programs do not have, and is looked at before it is written to:
//! programs close descriptors that they do not know, and numbers are given anew.
//!
//! A program that has a bell can silence it. Programs of one user trust each other so far. Those of another user get a bell of
//! their own from the service: a timer that is never set, whose ring nobody can delay. With it they can disturb only their own
//! connections.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use bywire_ring::bell as rule;
use bywire_ring::crowd;
use bywire_ring::stream::Window;

use bywire_pairing::protocol::PAGE_BYTES;

use crate::memory::arena::{self, EpollSet, PEERS, Peer};
use crate::memory::descriptors;
use crate::memory::lock::{Lock, rank};
use crate::memory::robust::{Counted, Look};
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::{own_call, pid, real, signal_deferral};

/// What the kernel reports for the bell in a set.
pub const BELL_DATA: u64 = 0xB7E1_0000_0000_0000;
/// Sleepers in poll or select at once that have a set of their own ready.
const POOL: usize = 64;

static BELL: AtomicI32 = AtomicI32::new(-1);
static PAGE_FILE: AtomicI32 = AtomicI32::new(-1);
static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// A bell's open file bears it, for every descriptor of it: the signal that `O_ASYNC`, which is never set, would
/// send.
const MARK: i32 = 63;
/// `F_SETSIG` and `F_GETSIG` of asm-generic/fcntl.h.
const SET_MARK: i32 = 10;
const SEE_MARK: i32 = 11;
/// `TFD_IOC_SET_TICKS` of linux/timerfd.h: rings a timer.
const SET_COUNT: usize = 0x4008_5400;
/// Timers that a process can have.
const TIMERS_MAX: usize = 64;
/// How many there are; and what the service calls each.
static TIMERS_COUNT: AtomicUsize = AtomicUsize::new(0);
static TIMERS: [AtomicI32; TIMERS_MAX] = [const { AtomicI32::new(-1) }; TIMERS_MAX];
static TIMER_NAMES: [AtomicU64; TIMERS_MAX] = [const { AtomicU64::new(0) }; TIMERS_MAX];
/// The inode that every eventfd has, and its device.
static INODE: AtomicU64 = AtomicU64::new(0);
static DEVICE: AtomicU64 = AtomicU64::new(0);
/// Sets that hold bells alone, and in which nobody sleeps: see [`DoorbellSet::encode`]; 0: none there.
static SETS: [AtomicU64; POOL] = [const { AtomicU64::new(0) }; POOL];
/// Counts forks to this process, and withdrawals: a set that is older is the parent's, too, or may hold a bell that was withdrawn.
static AGE: AtomicU32 = AtomicU32::new(0);
/// Timers that this process has from its parent: a bit for each place.
static INHERITED: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(TIMERS_MAX <= u64::BITS as usize);

/// Held while timers are put into sets, or taken out: none comes into one behind its withdrawal.
static HEARING: Lock<{ rank::HEARING }> = Lock::new();
static ADOPTING: Lock<{ rank::ADOPTING }> = Lock::new();

/// This family's bell and page, made when first asked for.
pub fn own() -> Option<(i32, i32)> {
    // Acquire, both: pair with the release stores of the same words below; both descriptors are marked and hidden before.
    let (bell, page) = (BELL.load(Ordering::Acquire), PAGE_FILE.load(Ordering::Acquire));
    if bell >= 0 && page >= 0 {
        return is_bell(bell).then_some((bell, page));
    }
    let _held = ADOPTING.hold();
    // Another thread may have made both meanwhile. Relaxed: ordered by the lock.
    let (bell, page) = (BELL.load(Ordering::Relaxed), PAGE_FILE.load(Ordering::Relaxed));
    if bell >= 0 && page >= 0 {
        return Some((bell, page));
    }
    // SAFETY: plain system calls; the results are checked.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if bell < 0 {
        return None;
    }
    // SAFETY: no pointers.
    let is_marked = unsafe { real::fcntl(bell, SET_MARK, MARK as usize) } == 0;
    let Some((inode, device)) = inode(bell).filter(|_| is_marked) else {
        // SAFETY: made just now.
        unsafe { real::close(bell) };
        return None;
    };
    INODE.store(inode, Ordering::Relaxed);
    DEVICE.store(device, Ordering::Relaxed);
    let bell = hide_high(bell);
    let (file, address) = sealed(PAGE_BYTES)?;
    let file = hide_high(file);
    // Release: pairs with the acquire load in `page`; the page is mapped before.
    PAGE.store(address, Ordering::Release);
    // Release, both: pair with the acquire loads above, and in `ring_own`; what they mean is known before.
    PAGE_FILE.store(file, Ordering::Release);
    BELL.store(bell, Ordering::Release);
    Some((bell, file))
}

/// From this number on programs seldom look.
pub fn first_high() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: valid for writes; noughts are a value.
    let limit = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr());
        limit.assume_init().rlim_cur
    };
    limit.min(arena::DESCRIPTORS as u64) / 8 * 7
}

/// Moves a descriptor to there, and out of their sight.
pub fn hide_high(fd: i32) -> i32 {
    let high = first_high();
    // SAFETY: a descriptor of ours.
    let moved = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, high as usize) };
    if moved < 0 {
        descriptors::hide(fd);
        return fd;
    }
    // SAFETY: a descriptor of ours, of which nobody else knows the number.
    unsafe { real::close(fd) };
    descriptors::hide(moved);
    moved
}

/// Memory that this process alone may write, and the descriptor to hand to readers.
pub fn sealed(length_bytes: usize) -> Option<(i32, *mut u8)> {
    const SEALS: i32 =
        libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    if !crate::os::kernel::may_file_have(length_bytes as u64) {
        return None;
    }
    // SAFETY: a valid name; every result is checked; the mapping is new.
    unsafe {
        let file = libc::memfd_create(
            c"bywire-sockets".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL,
        );
        if file < 0 {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        if libc::ftruncate(file, length_bytes as i64) == 0 {
            let address = libc::mmap(ptr::null_mut(), length_bytes, protection, libc::MAP_SHARED, file, 0);
            if address != libc::MAP_FAILED {
                if libc::fcntl(file, libc::F_ADD_SEALS, SEALS) == 0 {
                    return Some((file, address.cast()));
                }
                libc::munmap(address, length_bytes);
            }
        }
        real::close(file);
        None
    }
}

/// Maps what a peer has sealed, after a look at its seals and its size.
pub fn accept(file: i32, length_bytes: usize) -> *mut u8 {
    const SEALS: i32 =
        libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: valid for writes, noughts are a value; the mapping is new.
    unsafe {
        let seals = libc::fcntl(file, libc::F_GET_SEALS);
        if seals < 0
            || seals & SEALS != SEALS
            || libc::fstat(file, found.as_mut_ptr()) != 0
            || found.assume_init().st_size != length_bytes as i64
        {
            return ptr::null_mut();
        }
        let address = libc::mmap(ptr::null_mut(), length_bytes, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        if address == libc::MAP_FAILED { ptr::null_mut() } else { address.cast() }
    }
}

/// This family's page, if there is one.
fn page() -> Option<Window> {
    // Acquire: pairs with the release store in `own`; the page is mapped before.
    let base = PAGE.load(Ordering::Acquire);
    // SAFETY: `own` has mapped so many bytes there, for writing, and nobody unmaps them.
    (!base.is_null()).then(|| unsafe { Window::new(base, PAGE_BYTES) })
}

/// Makes the page, and the bell, if there is none yet: who is announced there sleeps as long as it likes.
pub fn make_page() {
    if PAGE.load(Ordering::Relaxed).is_null()
        && let Some(_own) = own_call::begin()
    {
        crate::os::errno::keep(own);
    }
}

/// A thread that is about to sleep where only the bell wakes it, until dropped. It looks at everything once more after this.
pub struct Asleep(#[expect(dead_code, reason = "held for its drop")] Noted);

/// Announces it. `place` is one on the stack further up than all that its call does meanwhile.
pub fn asleep(place: usize) -> Option<Asleep> {
    let page = page()?;
    look_for_killed();
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

/// Before a sleep: counts out killed processes, if nobody has looked for them for a while.
pub fn look_for_killed() {
    if let Some(family) = arena::shared()
        && family.notes.is_due(crate::os::kernel::now_ns())
    {
        count_out_killed();
    }
}

/// Counts out killed processes, of a few at least.
pub fn count_out_killed() {
    with_look(|family, look| crate::os::errno::keep(|| family.notes.look(look)));
}

fn with_look(work: impl FnOnce(&arena::SharedArena, &Look)) {
    let (Some(family), Some(me)) = (arena::shared(), pid::number()) else { return };
    let is_within_reach = |counted| match counted {
        Counted::Announced(known) => known == arena::branch(),
        Counted::Unannounced(name, _) => descriptors::set_named(name)
            .is_none_or(|set| set.branch.load(Ordering::Relaxed) == arena::branch()),
        Counted::Asleep(_) | Counted::Holder(_) => true,
    };
    let runs = &pid::runs;
    // A handler that jumps out would leave a place for good to this process, which runs, or a file open.
    signal_deferral::hold_off();
    work(family, &Look { me, runs, is_within_reach: &is_within_reach, count_out: &count_out });
    signal_deferral::admit();
}

/// One less of those.
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
            if crowd::leave(&set.unannounced, round) {
                rise();
            }
        }
        Counted::Holder(name) => {
            if let Some(set) = descriptors::set_named(name) {
                // AcqRel: pairs with the same of other processes, as in `holders::let_go`.
                set.processes.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// Something is in this set from here on that peers ring for: threads that sleep in it already are announced.
pub fn announce_sleepers(set: &EpollSet) {
    // Those of another branch are told by their own page of what they have.
    if set.branch.load(Ordering::Relaxed) != arena::branch() {
        return;
    }
    // SeqCst: pairs with the fence in `sleepers::Unannounced::enter`: either a sleeper is counted here, or it finds what is in
    // the set.
    fence(Ordering::SeqCst);
    // One that finds no page has none to wake it either: nothing is carried.
    if let Some(page) = page() {
        // No handler runs, or jumps, between its steps.
        signal_deferral::hold_off();
        crowd::announce(&set.unannounced, &page);
        signal_deferral::admit();
    }
}

/// One of those is awake, or one that was announced.
pub fn rise() {
    if let Some(page) = page() {
        rule::rise(&page);
    }
}

/// This thread has taken a ring out of a set that others may sleep in. It looks at everything after this.
pub fn take_ring() {
    if let Some(page) = page() {
        rule::take(&page);
    }
}

/// Wakes the program at the other end, if it sleeps. What it is to find was published before, with a fence behind it.
pub fn ring(index: u32) {
    let Some(peer) = peer(index) else { return };
    let base = peer.page.load(Ordering::Relaxed);
    if base.is_null() {
        return;
    }
    // SAFETY: `add_peer` has mapped so many bytes there, for as long as the peer is referred to.
    let page = unsafe { Window::new(base.cast(), PAGE_BYTES) };
    // Relaxed, as below: who reads an older value rings once more for nothing.
    let Some(rung) = rule::must_ring(&page, peer.rung.load(Ordering::Relaxed)) else { return };
    let bell = peer.bell.load(Ordering::Relaxed);
    if peer.is_other_user.load(Ordering::Relaxed) == 0 {
        ring_eventfd(bell);
    } else {
        set_timer(bell, 1);
    }
    peer.rung.store(rung, Ordering::Relaxed);
}

/// Wakes every sleeper of our own family, for sets that others watch.
pub fn ring_own() {
    // Acquire: pairs with the release store in `own`; the bell is marked before.
    ring_eventfd(BELL.load(Ordering::Acquire));
}

fn ring_eventfd(bell: i32) {
    let Some(_own) = own_call::begin() else { return };
    if is_bell(bell) {
        let one = 1u64;
        // SAFETY: eight bytes that live.
        crate::os::errno::keep(|| unsafe { real::write(bell, (&raw const one).cast(), 8) });
    }
}

/// Rings a timer: the error, 0 for none.
fn set_timer(bell: i32, count: u64) -> i32 {
    let Some(_own) = own_call::begin() else { return libc::EBADF };
    crate::os::errno::keep(|| {
        // SAFETY: eight bytes that are read, and that live; other kinds of files know no such call.
        let status = unsafe { real::ioctl(bell, SET_COUNT, (&raw const count).cast_mut().cast()) };
        if status == 0 { 0 } else { crate::os::errno::last() }
    })
}

/// Does this number still mean a timer? Only a timer says that nought is no count.
fn is_timer(fd: i32) -> bool {
    fd >= 0 && set_timer(fd, 0) == libc::EINVAL
}

/// A bell of our own for programs of some other user, which is the callee's from here on. Only who holds the lock of the
/// service's connection is here, as for [`remove_timer`].
pub fn add_timer(name: u64, fd: i32) {
    // Relaxed: changed under that lock alone.
    let count = TIMERS_COUNT.load(Ordering::Relaxed);
    let is_free = |place: &AtomicI32| place.load(Ordering::Relaxed) < 0;
    let at = TIMERS.iter().take(count).position(is_free).unwrap_or(count);
    let place = TIMERS.get(at).zip(TIMER_NAMES.get(at));
    let Some((place, known)) = place.filter(|_| is_timer(fd)) else {
        // SAFETY: received for us alone; closing -1 does nothing.
        unsafe { real::close(fd) };
        return;
    };
    known.store(name, Ordering::Relaxed);
    INHERITED.fetch_and(!(1 << at), Ordering::Relaxed);
    // Release: pairs with the acquire loads in `has_timer` and `add_timers_to`; it has its name before.
    place.store(hide_high(fd), Ordering::Release);
    // Release: pairs with the acquire loads of the count; so many bells are in their places.
    TIMERS_COUNT.store(count.max(at + 1), Ordering::Release);
}

/// The service withdraws a bell: no connection needs it, so nobody has a reason to ring it.
pub fn remove_timer(name: u64) {
    // Relaxed: changed under the lock of the service's connection alone.
    let mut bells = TIMERS.iter().zip(&TIMER_NAMES).take(TIMERS_COUNT.load(Ordering::Relaxed));
    let found = bells
        .find(|(bell, known)| bell.load(Ordering::Relaxed) >= 0 && known.load(Ordering::Relaxed) == name);
    if let Some((place, _)) = found {
        withdraw(place, |_| true);
    }
}

/// Takes a bell out of every set of the program's that is meant, and makes those where `poll` sleeps anew: whoever keeps a copy
/// of it wakes nobody there any more but those who sleep, once. Nothing is taken out of the latter: one that a parent's thread
/// sleeps in is the same set in its child. Then the bell is closed.
fn withdraw(place: &AtomicI32, is_meant: impl Fn(&EpollSet) -> bool) {
    let held = HEARING.hold();
    let bell = place.swap(-1, Ordering::Relaxed);
    if !is_timer(bell) {
        return;
    }
    descriptors::each_between(0, u32::MAX, |set, kind| {
        let is_meant = match kind {
            descriptors::DescriptorKind::EpollSet(name) => descriptors::set_named(name).is_none_or(&is_meant),
            _ => false,
        };
        if is_meant {
            // SAFETY: no pointers. It may not be in this set, or this may be no set, or be closed by now.
            crate::os::errno::keep(|| unsafe {
                real::epoll_ctl(set, libc::EPOLL_CTL_DEL, bell, ptr::null_mut())
            });
        }
    });
    drop(held);
    renew_sets();
    if descriptors::kind(bell) == descriptors::DescriptorKind::Hidden {
        discard(bell);
    }
}

/// Those who sleep in poll take new sets from here on. One in use is closed when its sleep is over.
fn renew_sets() {
    // Release: pairs with the acquire load in `DoorbellSet::take`: a bell that was withdrawn comes into no set of the new age.
    AGE.fetch_add(1, Ordering::Release);
    for place in &SETS {
        // Acquire: pairs with the release exchange in the drop. Of an earlier age it is closed there.
        drop(DoorbellSet::decode(place.swap(0, Ordering::Acquire)));
    }
}

/// The service withdraws a child's bells from its parent. The child has no reason to hear those that it has inherited as soon
/// as it has no connection to another user: what it makes by itself brings bells of its own.
fn leave_inherited() {
    let inherited = INHERITED.load(Ordering::Relaxed);
    let Some(own) = arena::private().filter(|_| inherited != 0) else { return };
    let is_other_user = |peer: &Peer| {
        peer.references.load(Ordering::Relaxed) > 0 && peer.is_other_user.load(Ordering::Relaxed) != 0
    };
    if own.peers.iter().any(is_other_user) {
        return;
    }
    let inherited = INHERITED.swap(0, Ordering::Relaxed);
    for (at, place) in TIMERS.iter().enumerate() {
        if inherited & 1 << at != 0 {
            // Sets that its parent has, too, hold the bell for both.
            withdraw(place, |set| set.processes.load(Ordering::Relaxed) == 1);
        }
    }
}

/// Have we this bell?
pub fn has_timer(name: u64) -> bool {
    // Acquire: pairs with the release store in `add_timer`; so many bells are in their places.
    let count = TIMERS_COUNT.load(Ordering::Acquire);
    // Acquire: pairs with the release store in `add_timer`, before which the bell got its name.
    let is_it = |(bell, known): (&AtomicI32, &AtomicU64)| {
        bell.load(Ordering::Acquire) >= 0 && known.load(Ordering::Relaxed) == name
    };
    TIMERS.iter().zip(&TIMER_NAMES).take(count).any(is_it)
}

/// Puts the timers into a set.
pub fn add_timers_to(set: i32) -> bool {
    // Acquire: pairs with the release store in `add_timer`; so many bells are in their places.
    let count = TIMERS_COUNT.load(Ordering::Acquire);
    if count == 0 {
        return true;
    }
    let _held = HEARING.hold();
    TIMERS.iter().take(count).all(|place| {
        // Acquire: pairs with the release store in `add_timer`. Nobody withdraws it meanwhile.
        let bell = place.load(Ordering::Acquire);
        bell < 0 || is_timer(bell) && crate::os::errno::keep(|| add(set, bell))
    })
}

/// Does this number still mean a bell?
fn is_bell(fd: i32) -> bool {
    // SAFETY: no pointers.
    fd >= 0 && crate::os::errno::keep(|| unsafe { real::fcntl(fd, SEE_MARK, 0) }) == MARK
}

fn is_eventfd(fd: i32) -> bool {
    let known = (INODE.load(Ordering::Relaxed), DEVICE.load(Ordering::Relaxed));
    fd >= 0 && crate::os::errno::keep(|| inode(fd)) == Some(known)
}

fn inode(fd: i32) -> Option<(u64, u64)> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: valid for writes; noughts are a value.
    unsafe {
        (libc::fstat(fd, found.as_mut_ptr()) == 0).then(|| {
            let found = found.assume_init();
            (found.st_ino, found.st_dev)
        })
    }
}

/// Puts the bell into an epoll set of the program's.
pub fn add_to(set: i32) -> bool {
    own().is_some_and(|(bell, _)| add(set, bell))
}

fn add(set: i32, bell: i32) -> bool {
    let Some(_own) = own_call::begin() else { return false };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: BELL_DATA };
    // SAFETY: a live event.
    let status = unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, bell, &raw mut event) };
    status == 0 || crate::os::errno::last() == libc::EEXIST
}

/// Takes all bells out of an epoll set.
pub fn remove_from(set: i32) {
    // Acquire: pairs with the release store in `add_timer`; the bells come before.
    let timers = TIMERS.iter().take(TIMERS_COUNT.load(Ordering::Acquire));
    for bell in core::iter::once(&BELL).chain(timers) {
        // SAFETY: no pointers.
        unsafe {
            real::epoll_ctl(set, libc::EPOLL_CTL_DEL, bell.load(Ordering::Relaxed), ptr::null_mut());
        }
    }
}

/// A set that holds bells alone, for a sleeper in poll.
pub struct DoorbellSet {
    /// It becomes readable when a bell is rung.
    pub fd: i32,
    /// What [`AGE`] was before it was made.
    age: u32,
}

impl DoorbellSet {
    /// One from the pool, or a new one.
    pub fn take() -> Option<Self> {
        let _own = own_call::begin()?;
        // Acquire: pairs with the release increment in `renew_sets`.
        let age = AGE.load(Ordering::Acquire);
        for place in &SETS {
            // Acquire: pairs with the release exchange in the drop.
            let found = Self::decode(place.swap(0, Ordering::Acquire));
            if let Some(found) = found.filter(|found| found.age == age) {
                // One that has come since may be missing.
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

    /// For its place in the pool: the age above, and below the descriptor and one more.
    fn encode(&self) -> u64 {
        u64::from(self.age) << 32 | (self.fd as u64 + 1)
    }

    fn decode(word: u64) -> Option<Self> {
        (word != 0).then(|| Self { fd: (word as u32 - 1) as i32, age: (word >> 32) as u32 })
    }

    /// Forgets rings that have been heard.
    pub fn drain(&self) {
        let Some(_own) = own_call::begin() else { return };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1 + TIMERS_MAX];
        // SAFETY: room for so many events.
        unsafe { real::epoll_wait(self.fd, events.as_mut_ptr(), events.len() as i32, 0) };
    }
}

impl Drop for DoorbellSet {
    fn drop(&mut self) {
        if descriptors::kind(self.fd) != descriptors::DescriptorKind::Hidden {
            return;
        }
        // Acquire: pairs with the release increment in `renew_sets`. One that comes too late is found by the thread that takes it.
        let is_young = self.age == AGE.load(Ordering::Acquire);
        // Release: pairs with the acquire swaps by which it is taken out: it is whole before.
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

/// Closes all that this process has: nothing wakes it but the kernel.
pub fn close_all() {
    let [bell, page] = [&BELL, &PAGE_FILE].map(|place| place.swap(-1, Ordering::Relaxed));
    if is_bell(bell) {
        discard(bell);
    }
    let timers = TIMERS.iter().take(TIMERS_COUNT.swap(0, Ordering::Relaxed));
    let timers = timers.map(|bell| bell.swap(-1, Ordering::Relaxed)).filter(|bell| is_timer(*bell));
    renew_sets();
    for fd in timers.chain([page]) {
        if descriptors::kind(fd) == descriptors::DescriptorKind::Hidden {
            discard(fd);
        }
    }
}

/// A child's sets of its own: those that it has inherited are its parent's, edge by edge.
pub fn after_fork_in_child() {
    if let Some(family) = arena::shared()
        && PAGE.load(Ordering::Relaxed).is_null()
    {
        arena::begin_branch(family);
    }
    with_look(|family, look| family.notes.after_fork_in_child(look));
    HEARING.reset();
    let bits = TIMERS.iter().enumerate().filter(|(_, place)| place.load(Ordering::Relaxed) >= 0);
    INHERITED.store(bits.fold(0, |bits, (at, _)| bits | 1 << at), Ordering::Relaxed);
    renew_sets();
    ADOPTING.reset();
    leave_inherited();
}

/// The library's own descriptor `old` now has the number `new`.
pub fn renumber(old: i32, new: i32) {
    for place in [&BELL, &PAGE_FILE].into_iter().chain(&TIMERS) {
        let _ = place.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
    }
    for place in &SETS {
        let word = place.load(Ordering::Relaxed);
        if word as u32 == old as u32 + 1 {
            let moved = word >> 32 << 32 | (new as u64 + 1);
            // Release: pairs with the acquire swaps by which it is taken out.
            let _ = place.compare_exchange(word, moved, Ordering::Release, Ordering::Relaxed);
        }
    }
    if let Some(own) = arena::private() {
        for peer in &own.peers {
            let _ = peer.bell.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

fn peer(index: u32) -> Option<&'static Peer> {
    if index == 0 {
        return None;
    }
    arena::private()?.peers.get(index as usize)
}

/// Takes a program at the other end into use, with its bell and page, which are the callee's from here on.
pub fn add_peer(number: u32, is_other_user: bool, bell: i32, page: i32) -> Option<u32> {
    let _held = ADOPTING.hold();
    let peers = &arena::private()?.peers;
    let known = |peer: &Peer| {
        peer.references.load(Ordering::Relaxed) > 0 && peer.number.load(Ordering::Relaxed) == number
    };
    let index = peers.iter().skip(1).position(known);
    if let Some(index) = index {
        close_both(bell, page);
        peers.get(index + 1)?.references.fetch_add(1, Ordering::Relaxed);
        return Some(index as u32 + 1);
    }
    let free = peers.iter().skip(1).position(|peer| peer.references.load(Ordering::Relaxed) == 0);
    let index = free.map_or(PEERS, |index| index + 1);
    let Some(peer) = peers.get(index) else {
        close_both(bell, page);
        return None;
    };
    let is_sound = if is_other_user { is_timer(bell) } else { is_bell(bell) && is_eventfd(bell) };
    let address = if is_sound { accept(page, PAGE_BYTES) } else { ptr::null_mut() };
    if address.is_null() {
        close_both(bell, page);
        return None;
    }
    // SAFETY: ours.
    unsafe { real::close(page) };
    peer.number.store(number, Ordering::Relaxed);
    peer.is_other_user.store(is_other_user.into(), Ordering::Relaxed);
    peer.bell.store(hide_high(bell), Ordering::Relaxed);
    peer.page.store(address.cast(), Ordering::Relaxed);
    peer.rung.store(0, Ordering::Relaxed);
    peer.references.store(1, Ordering::Relaxed);
    Some(index as u32)
}

fn close_both(bell: i32, page: i32) {
    // SAFETY: received for us alone.
    unsafe {
        real::close(bell);
        real::close(page);
    }
}

/// One connection to that program is over.
pub fn release_peer(index: u32) {
    let Some(peer) = peer(index) else { return };
    let held = ADOPTING.hold();
    if peer.references.load(Ordering::Relaxed) == 1 {
        let bell = peer.bell.swap(-1, Ordering::Relaxed);
        let is_other_user = peer.is_other_user.load(Ordering::Relaxed) != 0;
        let is_ours = if is_other_user { is_timer(bell) } else { is_bell(bell) };
        if is_ours && descriptors::kind(bell) == descriptors::DescriptorKind::Hidden {
            discard(bell);
        }
        let page = peer.page.swap(ptr::null_mut(), Ordering::Relaxed);
        if !page.is_null() {
            // SAFETY: mapped by `add_peer` with this length; nobody refers to it any more.
            unsafe { libc::munmap(page.cast(), PAGE_BYTES) };
        }
    }
    peer.references.fetch_sub(1, Ordering::Relaxed);
    drop(held);
    leave_inherited();
}
