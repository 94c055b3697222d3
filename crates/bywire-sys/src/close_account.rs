//! Accounts of the files that wait to be closed, and the threads that close them.
//!
//! An account covers the descriptors of one user, its sockets, or the files that two users have in common. While
//! something waits, the account has a thread of its own. Each account has its own limit, and a share of the places
//! and threads for all.

use core::any::Any;
use core::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::interrupt::Interrupter;
use crate::limits;
use crate::share::{self, Places, Shares};

/// The most descriptors in one packet.
pub const DESCRIPTORS_MAX: usize = 3;
/// Descriptors of one user that may be held. A held descriptor is being looked at, or waits to be closed.
const HELD_MAX: usize = 64;
/// Sockets of one user that may wait to be closed before the user's connections are refused. Each close takes a
/// moment, as nothing lingers in this thread, unless the user's own file system delays it.
const SOCKETS_OF_USER_MAX: usize = 64;
/// Files in common of two users that may wait before the two get no more.
const COMMON_MAX: usize = 16;
/// Pairs of users with a waiting file that are charged to one user, or to one block of subordinate users, before
/// these get no more. A pair is charged to the user whose number is more likely to be a subordinate one.
const COMMON_USERS_MAX: usize = 16;
/// Places in each pool for files that wait to be closed. A user takes at most its share. Root and the process's own
/// user take no places. Once all are taken, a user with a waiting file is refused. Other users are let in until as
/// many places again are taken. A small table of descriptors gives one place for [`TABLE_PART`] descriptors,
/// but at least [`PLACES_MIN`].
const PLACES_MAX: usize = 8192;
/// Twice this number for descriptors and for sockets leaves a quarter of the usual limit of 1,024.
const PLACES_MIN: usize = 192;
/// See [`PLACES_MAX`].
const TABLE_PART: u64 = 16;
/// A user takes at most one in this many places.
const USER_PART: usize = 8;
/// Threads of each pool, for all users but root and this process's own. Without a thread for a user, no descriptors
/// are taken from it, and its sockets wait.
const THREADS: Places = Places { own: 0, common: 256 };
/// With more lanes than this, unused lanes are removed.
const LANES_MAX: usize = 512;
/// How long a thread waits for the next file before it ends.
const IDLE: Duration = Duration::from_secs(1);
/// The threads do nothing but close.
const STACK_BYTES: usize = 64 << 10;

/// The files that an account covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Descriptors that a user's programs have sent.
    Files(u32),
    /// Connections with a user's programs, and the contents of their queues.
    Sockets(u32),
    /// Files that programs of two users have in common.
    Common([u32; 2]),
}

/// The number of pools: one for each [`Kind`].
const POOLS: usize = 3;

/// Gives something back when it is dropped.
pub type Ticket = Arc<dyn Any + Send + Sync>;

/// A descriptor, and the ticket that is given back once it is closed. The fields are dropped in this order.
#[derive(Debug)]
pub struct Held {
    file: OwnedFd,
    _ticket: Option<Ticket>,
}

/// The files held of one user.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    lane: Arc<Lane>,
    registry: &'static Registry,
    kind: Kind,
}

/// The files that one thread closes, one after the other.
#[derive(Debug)]
struct Lane {
    /// The lane belongs to root or to this process's own user, as that was when the lane was made. It takes no
    /// places, and gets a thread however many threads there are. The value stays when the process changes its user,
    /// so everything that was taken is given back.
    is_reserved: bool,
    waiting: Mutex<Waiting>,
    news: Condvar,
    /// Files that wait, and files that are still looked at.
    held: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    files: VecDeque<Held>,
    /// A thread serves the lane.
    is_attended: bool,
}

/// All lanes of a process. A forked child makes its own: it has no threads, and a lock may have been held at the
/// fork.
#[derive(Debug)]
struct Registry {
    owner: u32,
    /// See [`PLACES_MAX`]. It follows the size of the table of descriptors when the first descriptor came.
    places_max: usize,
    lanes: Mutex<BTreeMap<Kind, Arc<Lane>>>,
    /// One for each pool, in the order of [`Kind::pool`].
    threads: Mutex<[Shares; POOLS]>,
    /// Sockets of all users that wait.
    sockets: AtomicUsize,
    /// Taken places of each pool, in the order of [`Kind::pool`].
    places: [AtomicUsize; POOLS],
    /// Users with so many waiting sockets that their connections are refused.
    crowds: AtomicUsize,
    /// Something waits in a lane without a thread.
    has_unattended: AtomicBool,
    is_forgone: AtomicBool,
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(core::ptr::null_mut());

/// See [`crate::deferred::may_have_common`].
pub(crate) fn may_have_common(users: [u32; 2]) -> bool {
    Registry::own().may_have_common(users)
}

/// From now on this process closes everything at once, as it may start no threads. Only programs of its own user may
/// be able to reach it. A close that waits is interrupted on the calling thread, unless a file system makes it wait.
pub fn forgo() {
    INTERRUPTER.with(|own| {
        own.get_or_init(Interrupter::here);
    });
    Registry::own().is_forgone.store(true, Ordering::Relaxed);
}

thread_local! {
    /// Set in a thread that closes everything itself.
    static INTERRUPTER: OnceCell<Interrupter> = const { OnceCell::new() };
}

/// Closes the file in the calling thread.
fn close_here(file: Held) {
    INTERRUPTER.with(|own| match own.get() {
        Some(interrupter) => interrupter.bound(|| drop(file)),
        None => drop(file),
    });
}

/// Is there room for one more socket of any user? Each has to be closed later.
pub(crate) fn has_room() -> bool {
    let registry = Registry::own();
    registry.sockets.load(Ordering::Relaxed) < registry.places_max
}

/// Is there a user whose connections are refused because many of its sockets wait?
pub(crate) fn is_pressed() -> bool {
    let registry = Registry::own();
    registry.attend_all();
    registry.crowds.load(Ordering::Relaxed) > 0 || registry.is_full(Kind::Sockets(0))
}

/// The number of places for a table of this many descriptors.
fn places_of(descriptors: u64) -> usize {
    usize::try_from(descriptors / TABLE_PART).unwrap_or(usize::MAX).clamp(PLACES_MIN, PLACES_MAX)
}

impl Held {
    /// Gives `ticket` back when `file` is closed.
    pub fn new(file: OwnedFd, ticket: Option<Ticket>) -> Self {
        Self { file, _ticket: ticket }
    }
}

impl From<OwnedFd> for Held {
    fn from(file: OwnedFd) -> Self {
        Self::new(file, None)
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Account {
    /// The account of the descriptors that this user has sent.
    pub fn of(user: u32) -> Self {
        Self::in_registry(Registry::own(), Kind::Files(user))
    }

    /// The account of the connections with this user's programs.
    pub fn of_sockets(user: u32) -> Self {
        Self::in_registry(Registry::own(), Kind::Sockets(user))
    }

    /// The account of the files that programs of these two users have had in common.
    pub fn of_common(users: [u32; 2]) -> Self {
        Self::in_registry(Registry::own(), Kind::common(users))
    }

    fn in_registry(registry: &'static Registry, kind: Kind) -> Self {
        let mut lanes = lock(&registry.lanes);
        if lanes.len() > LANES_MAX {
            // Unused lanes go: no account refers to them, and they hold nothing.
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1 || lane.held.load(Ordering::Relaxed) > 0);
        }
        let lane = lanes.entry(kind).or_insert_with(|| Arc::new(Lane::new(kind.is_reserved())));
        Self { lane: Arc::clone(lane), registry, kind }
    }

    /// Counts one more held file.
    pub fn hold(&self) {
        let before = self.lane.held.fetch_add(1, Ordering::Relaxed);
        self.registry.count(self, before, before + 1);
    }

    /// Counts one held file less.
    pub fn release(&self) {
        let before = self.lane.held.fetch_sub(1, Ordering::Relaxed);
        self.registry.count(self, before, before - 1);
    }

    /// Do so many sockets of this user wait that its connections are refused?
    pub fn is_crowd(&self) -> bool {
        let held = self.lane.held.load(Ordering::Relaxed);
        held >= self.share() || self.is_kept_out(held)
    }

    /// Are no more descriptors taken from this user?
    pub fn is_over(&self) -> bool {
        let is_attended = self.is_attended();
        let held = self.lane.held.load(Ordering::Relaxed);
        if held + DESCRIPTORS_MAX > self.share() || self.is_kept_out(held) {
            return true;
        }
        !is_attended && !self.lane.is_reserved && !self.registry.may_start(self.kind)
    }

    /// Is there no place for this user? Either all places are taken and the user holds something already, or other
    /// users have taken all places twice.
    fn is_kept_out(&self, held: usize) -> bool {
        let taken = self.registry.places[self.kind.pool()].load(Ordering::Relaxed);
        let most = self.registry.places_max;
        !self.lane.is_reserved && (held > 0 && taken >= most || taken >= 2 * most)
    }

    fn share(&self) -> usize {
        // Root and the process's own user take none of the places.
        self.kind.share(if self.lane.is_reserved { PLACES_MAX } else { self.registry.places_max })
    }

    /// Does a thread serve the lane? If files wait because a thread could not be started, this starts one. Nothing
    /// else would, as no more files are taken then.
    fn is_attended(&self) -> bool {
        // Nothing waits, or this is a forked child, in which a lock may stay held for ever.
        if self.lane.held.load(Ordering::Relaxed) == 0 || self.registry.owner != std::process::id() {
            return false;
        }
        let mut waiting = lock(&self.lane.waiting);
        if !waiting.files.is_empty() && !waiting.is_attended {
            waiting.is_attended = self.start_thread();
        }
        waiting.is_attended
    }

    /// Leaves `file` to the thread. The account has counted it before.
    pub fn close(&self, file: impl Into<Held>) {
        let file = file.into();
        let is_forked = self.registry.owner != std::process::id();
        // A forked child's copy is not the last one, or concerns the child alone.
        if is_forked {
            drop(file);
            return self.release();
        }
        if self.registry.is_forgone.load(Ordering::Relaxed) {
            close_here(file);
            return self.release();
        }
        let mut waiting = lock(&self.lane.waiting);
        waiting.files.push_back(file);
        if !waiting.is_attended {
            // Without a thread the file stays on the account until `is_attended` can start one.
            waiting.is_attended = self.start_thread();
        }
        drop(waiting);
        self.lane.news.notify_one();
    }

    fn start_thread(&self) -> bool {
        let (registry, kind) = (self.registry, self.kind);
        let may_start = self.lane.is_reserved || lock(&registry.threads)[kind.pool()].take(kind.user());
        let account = self.clone();
        let builder = std::thread::Builder::new().name("bywire-closer".to_owned()).stack_size(STACK_BYTES);
        let is_started = may_start && without_signals(|| builder.spawn(move || account.attend())).is_ok();
        if may_start && !is_started {
            self.give_back_thread();
        }
        if !is_started {
            registry.has_unattended.store(true, Ordering::Relaxed);
        }
        is_started
    }

    /// The body of the thread.
    fn attend(&self) {
        let interrupter = Interrupter::here();
        while let Some(file) = self.lane.next() {
            interrupter.bound(|| drop(file));
            self.release();
        }
        self.give_back_thread();
    }

    fn give_back_thread(&self) {
        if !self.lane.is_reserved {
            lock(&self.registry.threads)[self.kind.pool()].give_back(self.kind.user());
        }
    }
}

impl Kind {
    fn common([one, other]: [u32; 2]) -> Self {
        Self::Common([one.min(other), one.max(other)])
    }

    /// The user whose share of threads is taken. Of two users it is the one whose number is more likely to be a
    /// subordinate one.
    fn user(self) -> u32 {
        let (Self::Files(user) | Self::Sockets(user) | Self::Common([_, user])) = self;
        user
    }

    fn is_reserved(self) -> bool {
        let is_common = matches!(self, Self::Common(_));
        !is_common && (self.user() == 0 || self.user() == rustix::process::geteuid().as_raw())
    }

    /// The pool of threads and places.
    fn pool(self) -> usize {
        match self {
            Self::Files(_) => 0,
            Self::Sockets(_) => 1,
            Self::Common(_) => 2,
        }
    }

    /// How many of `places_max` places the user may take.
    fn share(self, places_max: usize) -> usize {
        match self {
            Self::Files(_) => HELD_MAX.min(places_max / USER_PART),
            Self::Sockets(_) => SOCKETS_OF_USER_MAX.min(places_max / USER_PART),
            Self::Common(_) => COMMON_MAX,
        }
    }
}

impl Lane {
    fn new(is_reserved: bool) -> Self {
        Self { is_reserved, waiting: Mutex::default(), news: Condvar::new(), held: AtomicUsize::new(0) }
    }

    /// The next file. `None`: no file has come for a while, and the thread ends.
    fn next(&self) -> Option<Held> {
        let waiting = lock(&self.waiting);
        let found = self.news.wait_timeout_while(waiting, IDLE, |waiting| waiting.files.is_empty());
        let (mut waiting, _) = found.unwrap_or_else(PoisonError::into_inner);
        let file = waiting.files.pop_front();
        waiting.is_attended = file.is_some();
        file
    }
}

impl Registry {
    /// Updates the counts after a change of an account. A count that reaches its share and falls below it again
    /// changes `crowds` once in each direction.
    fn count(&self, account: &Account, before: usize, after: usize) {
        let (kind, share) = (account.kind, account.share());
        let (is_more, higher) = (after > before, before.max(after));
        let change = |count: &AtomicUsize| match is_more {
            true => count.fetch_add(1, Ordering::Relaxed),
            false => count.fetch_sub(1, Ordering::Relaxed),
        };
        if higher <= share && !account.lane.is_reserved {
            change(&self.places[kind.pool()]);
        }
        if matches!(kind, Kind::Sockets(_)) {
            change(&self.sockets);
            if higher == share {
                change(&self.crowds);
            }
        }
    }

    /// Are all places taken?
    fn is_full(&self, kind: Kind) -> bool {
        self.places[kind.pool()].load(Ordering::Relaxed) >= self.places_max
    }

    /// May one more lane of this kind have a thread?
    fn may_start(&self, kind: Kind) -> bool {
        lock(&self.threads)[kind.pool()].may_take(kind.user())
    }

    fn may_have_common(&self, users: [u32; 2]) -> bool {
        let kind = Kind::common(users);
        let lanes = lock(&self.lanes);
        let held = |lane: &Arc<Lane>| lane.held.load(Ordering::Relaxed);
        // Only one of the two users is charged. Otherwise a person with many user numbers could use up everything
        // that the other user may have in common with anybody.
        let is_charged = |other: &Kind| {
            matches!(other, Kind::Common(_)) && share::block(other.user()) == share::block(kind.user())
        };
        let others = lanes.iter().filter(|(other, lane)| is_charged(other) && held(lane) > 0).count();
        let own = lanes.get(&kind).map_or(0, held);
        own < COMMON_MAX && others < COMMON_USERS_MAX && (own == 0 || !self.is_full(kind))
    }

    /// The registry of a process with a table of this many descriptors.
    fn new(descriptors: u64) -> Self {
        Self {
            owner: std::process::id(),
            places_max: places_of(descriptors),
            lanes: Mutex::default(),
            threads: Mutex::new([(); POOLS].map(|()| Shares::new(THREADS))),
            sockets: AtomicUsize::new(0),
            places: [const { AtomicUsize::new(0) }; POOLS],
            crowds: AtomicUsize::new(0),
            has_unattended: AtomicBool::new(false),
            is_forgone: AtomicBool::new(false),
        }
    }

    /// Starts the threads that could not be started before, as far as there is room for them by now.
    fn attend_all(&'static self) {
        if self.owner != std::process::id() || !self.has_unattended.swap(false, Ordering::Relaxed) {
            return;
        }
        let lanes: Vec<(Kind, Arc<Lane>)> =
            lock(&self.lanes).iter().map(|(kind, lane)| (*kind, Arc::clone(lane))).collect();
        for (kind, lane) in lanes {
            Account { lane, registry: self, kind }.is_attended();
        }
    }

    /// This process's registry.
    fn own() -> &'static Self {
        let owner = std::process::id();
        loop {
            let found = REGISTRY.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or points to a box that this function has leaked and nobody frees. The
            // acquire load pairs with the release of the exchange below, which published the box.
            if let Some(registry) = unsafe { found.as_ref() }
                && registry.owner == owner
            {
                return registry;
            }
            let own = Box::into_raw(Box::new(Self::new(limits::descriptor_limit())));
            // Release: pairs with the acquire load above. If another thread was first, its registry is as good.
            if REGISTRY.compare_exchange(found, own, Ordering::Release, Ordering::Relaxed).is_err() {
                // SAFETY: the pointer comes from `into_raw` just now, and the failed exchange has published it to no
                // other thread.
                drop(unsafe { Box::from_raw(own) });
            }
        }
    }
}

/// A user with many sockets that wait to be closed, for tests.
#[cfg(test)]
pub(crate) struct Crowd(Account, usize);

/// The places of this process in one pool, and the most of them that a user takes.
#[cfg(test)]
pub(crate) fn places() -> [usize; 2] {
    let most = Registry::own().places_max;
    [most, Kind::Sockets(1).share(most)]
}

#[cfg(test)]
impl Crowd {
    pub fn of(user: u32) -> Self {
        Self::of_many(user, SOCKETS_OF_USER_MAX)
    }

    pub fn of_many(user: u32, count: usize) -> Self {
        let account = Account::of_sockets(user);
        (0..count).for_each(|_| account.hold());
        Self(account, count)
    }
}

#[cfg(test)]
impl Drop for Crowd {
    fn drop(&mut self) {
        (0..self.1).for_each(|_| self.0.release());
    }
}

/// Does `work` with every signal blocked. A thread started by it inherits that: the program's signals are for its own
/// threads.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the sets live here, and zeroes are a valid value of them. This thread's mask is restored afterwards.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        done
    }
}

/// No code that runs under these locks can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is this test alone in its process? A crowd concerns the whole process. If not, the test runs again in a process of
/// its own, and has to pass there.
#[cfg(test)]
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "BYWIRE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut own = std::process::Command::new(std::env::current_exe().expect("this program"));
    let done = own.args(["--exact", "--nocapture", test]).env(ALONE, "1").output().expect("run");
    let text = String::from_utf8_lossy(&done.stdout);
    print!("{text}");
    assert!(done.status.success() && text.contains("1 passed"), "{}", String::from_utf8_lossy(&done.stderr));
    false
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::deferred::{Deferred, Foreign, close_common};
    use crate::socket::{Received, Socket};
    use std::os::fd::AsFd;

    /// Users of these tests alone.
    const ONE: u32 = 700_001;
    const OTHER: u32 = 700_002;

    /// A socket whose last close waits for an hour, as the receiver does not read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let sender = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
        let (receiver, _) = listener.accept().expect("accept");
        rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4096).expect("a small one");
        rustix::net::sockopt::set_socket_send_buffer_size(&sender, 1 << 20).expect("a large one");
        sender.set_nonblocking(true).expect("it does not wait");
        while (&sender).write(&[0; 65_536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).expect("lingers");
        (sender.into(), receiver)
    }

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_lingering_file_is_closed_by_another_thread_and_leaves_its_users_account() {
        let account = Account::of(ONE);
        let (foreign, receivers): (Vec<_>, Vec<_>) = (0..HELD_MAX)
            .map(|_| {
                let (sender, receiver) = lingering();
                (Foreign::new(sender, &account), receiver)
            })
            .unzip();
        assert!(account.is_over() && !Account::of(OTHER).is_over());
        drop(foreign);
        until("it is all closed", || account.lane.held.load(Ordering::Relaxed) == 0);
        assert!(!account.is_over());
        drop(receivers);
    }

    #[test]
    fn a_file_that_was_taken_is_on_no_account() {
        let account = Account::of(OTHER);
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        let foreign = Foreign::new(reader, &account);
        assert_eq!(account.lane.held.load(Ordering::Relaxed), 1);
        drop(foreign.into_inner());
        assert_eq!(account.lane.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn descriptors_that_arrive_beside_bytes_of_a_stream_hold_up_nobody() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        use std::os::unix::net::UnixStream;
        let began = Instant::now();
        let null = std::fs::File::open("/dev/null").expect("open");
        for (count, expected) in [(1, Ok(6)), (7, Err(rustix::io::Errno::MSGSIZE))] {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let (ours, mut buffer) = (Deferred::new(ours), [0; 64]);
            let mut receivers = Vec::new();
            for _ in 0..2 {
                let (sender, receiver) = lingering();
                let mut many = vec![null.as_fd(); count];
                many[count - 1] = sender.as_fd();
                let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(7))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
                let words = [std::io::IoSlice::new(b"status")];
                rustix::net::sendmsg(&theirs, &words, &mut control, SendFlags::empty()).expect("sent");
                receivers.push(receiver);
            }
            assert_eq!(crate::socket::receive_first(&*ours, &mut buffer), expected, "{count}");
            drop(ours);
            drop(receivers);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "whoever asks is not held up");
    }

    #[test]
    fn sockets_are_closed_with_what_lingers_in_their_queues() {
        let began = Instant::now();
        let mut receivers = Vec::new();
        for _ in 0..50 {
            let (ours, theirs) = Socket::pair().expect("a pair");
            for _ in 0..2 {
                let (sender, receiver) = lingering();
                ours.send(b"!", &[sender.as_fd()]).expect("passed");
                receivers.push(receiver);
            }
            drop(theirs);
            assert!(matches!(ours.receive(&mut [0; 8]), Ok(Received::Closed)), "it hears of it at once");
        }
        assert!(began.elapsed() < Duration::from_secs(60), "whoever drops it is not held up");
        // Each close is interrupted, and the kernel ends the connection by itself.
        let sockets = Account::of_sockets(rustix::process::geteuid().as_raw());
        until("all is closed", || sockets.lane.held.load(Ordering::Relaxed) == 0);
    }

    /// An account in a registry of its own.
    fn alone(user: u32) -> Account {
        Account::in_registry(Box::leak(Box::new(Registry::new(1 << 19))), Kind::Files(user))
    }

    /// The same, while other users' files hang in as many threads as these users get.
    fn crowded(user: u32) -> Account {
        let account = alone(user);
        let mut threads = lock(&account.registry.threads);
        let taken = (1..).take_while(|other| threads[0].take(*other)).count();
        assert!(taken > 200 && taken < 256, "{taken} threads");
        drop(threads);
        account
    }

    #[test]
    fn files_that_wait_without_a_thread_get_one_as_soon_as_possible() {
        let account = alone(ONE);
        // As after a thread that could not be started.
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        for _ in 0..HELD_MAX {
            account.hold();
            lock(&account.lane.waiting).files.push_back(reader.try_clone().expect("dup").into());
        }
        until("it is closed, and more may come", || !account.is_over());
    }

    #[test]
    fn users_who_block_every_thread_stop_no_packets_without_descriptors() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        ours.set_account(crowded(OTHER));
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        theirs.send(b"bare", &[]).expect("sent");
        theirs.send(b"laden", &[reader.as_fd()]).expect("sent");
        let mut buffer = [0; 8];
        assert!(matches!(ours.receive(&mut buffer), Ok(Received::Packet(4, _))));
        assert_eq!(ours.receive(&mut buffer).err(), Some(rustix::io::Errno::DQUOT));
        let own = rustix::process::geteuid().as_raw();
        for trusted in [own, 0] {
            let (ours, theirs) = Socket::pair().expect("a pair");
            ours.set_account(crowded(trusted));
            theirs.send(b"laden", &[reader.as_fd()]).expect("sent");
            assert!(matches!(ours.receive(&mut buffer), Ok(Received::Packet(5, _))), "user {trusted}");
        }
    }

    #[test]
    fn a_thread_that_hangs_in_one_users_socket_keeps_no_other_users_sockets_open() {
        const NAME: &str =
            "close_account::tests::a_thread_that_hangs_in_one_users_socket_keeps_no_other_users_sockets_open";
        if !is_alone(NAME) {
            return;
        }
        let [hanging, other] = [710_001, 710_002].map(Account::of_sockets);
        // As if its close never ended: the lane has a thread, which takes nothing from it.
        lock(&hanging.lane.waiting).is_attended = true;
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        for _ in 0..hanging.share() {
            assert!(!hanging.is_crowd());
            for account in [&hanging, &other] {
                account.hold();
                account.close(reader.try_clone().expect("dup"));
            }
        }
        assert!(hanging.is_crowd() && is_pressed());
        until("the other's are closed", || other.lane.held.load(Ordering::Relaxed) == 0);
        assert!(hanging.is_crowd() && has_room());
        lock(&hanging.lane.waiting).is_attended = hanging.start_thread();
        until("so are these", || hanging.lane.held.load(Ordering::Relaxed) == 0);
        until("it is no crowd", || !is_pressed());
    }

    #[test]
    fn no_user_takes_all_places_of_a_small_table() {
        for descriptors in [256, 1024, 4096, 1 << 14, 1 << 19] {
            let registry: &'static Registry = Box::leak(Box::new(Registry::new(descriptors)));
            for kind in [Kind::Files, Kind::Sockets] {
                let of = |user| Account::in_registry(registry, kind(user));
                let one = of(ONE);
                (0..2 * HELD_MAX).for_each(|_| one.hold());
                assert!(one.is_over() && one.is_crowd() && !registry.is_full(one.kind), "{descriptors}");
                of(OTHER).hold();
                assert!(
                    !of(OTHER).is_over() && !of(OTHER).is_crowd(),
                    "one of {descriptors} keeps others out"
                );
                // As many again for users without a waiting file, then only for root.
                let many = (0..).map(|number| of(1000 + number)).take_while(|next| {
                    let may_come = !next.is_over();
                    (0..DESCRIPTORS_MAX).for_each(|_| next.hold());
                    may_come
                });
                let many: Vec<_> = many.take(20_000).collect();
                assert!(many.len() * DESCRIPTORS_MAX < 2 * registry.places_max, "{descriptors}");
                assert!(of(900_000).is_over() && of(900_000).is_crowd() && !of(0).is_over());
            }
        }
    }

    #[test]
    fn a_ticket_is_kept_until_its_file_is_closed() {
        let (account, ticket) = (alone(ONE), Arc::new(()));
        // As if its close never ended.
        lock(&account.lane.waiting).is_attended = true;
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        account.hold();
        account.close(Held::new(reader, Some(Arc::clone(&ticket) as Ticket)));
        assert_eq!(Arc::strong_count(&ticket), 2);
        lock(&account.lane.waiting).is_attended = account.start_thread();
        until("it is closed", || Arc::strong_count(&ticket) == 1);
    }

    #[test]
    fn places_stay_correct_for_every_user() {
        if !rustix::process::geteuid().is_root() {
            println!("not run: only root can be other users; run this test as root");
            return;
        }
        let ours = alone(ONE);
        let as_itself = || {
            let user = rustix::process::Uid::from_raw(ONE);
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
            Account::in_registry(ours.registry, Kind::Files(ONE))
        };
        let theirs = std::thread::scope(|scope| scope.spawn(as_itself).join().expect("no panic"));
        theirs.hold();
        ours.release();
        assert_eq!(ours.registry.places[0].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_more_threads_than_there_may_be_are_started_at_once() {
        let one = alone(ONE);
        let accounts: Vec<_> =
            (1..=600).map(|user| Account::in_registry(one.registry, Kind::Files(user))).collect();
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        let taken = || {
            let threads = lock(&one.registry.threads);
            (1..=600).map(|user| threads[0].taken(user)).sum::<usize>()
        };
        let (reader, taken) = (&reader, &taken);
        std::thread::scope(|scope| {
            for accounts in accounts.chunks(100) {
                scope.spawn(move || {
                    for account in accounts {
                        account.hold();
                        account.close(reader.try_clone().expect("dup"));
                        assert!(taken() <= THREADS.common);
                    }
                });
            }
        });
        until("all is closed, by and by", || {
            one.registry.attend_all();
            accounts.iter().all(|account| account.lane.held.load(Ordering::Relaxed) == 0)
        });
        until("the threads end", || taken() == 0);
    }

    #[test]
    fn an_owner_of_thousands_of_user_numbers_leaves_threads_and_places_to_others() {
        let one = alone(ONE);
        let of = |user| Account::in_registry(one.registry, Kind::Files(user));
        let subordinate: Vec<_> = (0..1000).map(|number| of(200_000 + number)).collect();
        // As if each user's file hung.
        for account in &subordinate {
            account.hold();
            if !account.is_over() {
                lock(&account.lane.waiting).is_attended =
                    lock(&one.registry.threads)[0].take(account.kind.user());
            }
        }
        let count =
            (0..1000).filter(|number| lock(&one.registry.threads)[0].taken(200_000 + number) > 0).count();
        assert_eq!(count, 128, "half of them");
        assert!(subordinate[999].is_over() && !one.is_over() && !of(1000).is_over());
        let full: Vec<_> = (0..PLACES_MAX / HELD_MAX).map(|user| of(1_000_000 + user as u32)).collect();
        full.iter().for_each(|account| (0..2 * HELD_MAX).for_each(|_| account.hold()));
        assert!(one.registry.is_full(Kind::Files(0)), "all places");
        assert!(!one.is_over() && !of(0).is_over(), "whoever has nothing there may send");
        one.hold();
        assert!(one.is_over(), "and then no more");
        full.iter().for_each(|account| (0..2 * HELD_MAX).for_each(|_| account.release()));
        assert!(!one.is_over());
    }

    #[test]
    fn files_of_two_users_are_held_up_by_these_two_alone() {
        const NAME: &str = "close_account::tests::files_of_two_users_are_held_up_by_these_two_alone";
        if !is_alone(NAME) {
            return;
        }
        let (hostile, honest) = (730_000, 1000);
        let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
        // As if its close never ended.
        let hang = |other| {
            let account = Account::in_registry(Registry::own(), Kind::common([hostile, other]));
            lock(&account.lane.waiting).is_attended = true;
            account
        };
        let account = hang(honest);
        for _ in 0..COMMON_MAX {
            assert!(may_have_common([honest, hostile]));
            close_common(reader.try_clone().expect("dup"), [honest, hostile]);
        }
        assert!(!may_have_common([honest, hostile]) && !may_have_common([hostile, honest]));
        assert!(may_have_common([honest, 1001]) && may_have_common([hostile, 1001]));
        close_common(reader.try_clone().expect("dup"), [honest, 1001]);
        let others = Account::in_registry(Registry::own(), Kind::common([1001, honest]));
        until("others' is closed", || others.lane.held.load(Ordering::Relaxed) == 0);
        for other in 1..COMMON_USERS_MAX as u32 {
            hang(1001 + other);
            assert!(may_have_common([hostile, 1001 + other]));
            close_common(reader.try_clone().expect("dup"), [hostile, 1001 + other]);
        }
        assert!(!may_have_common([hostile, 1001]), "it has that with too many");
        assert!(!may_have_common([hostile + 1, 1001]), "so has its next number");
        assert!(may_have_common([honest, 1001]));
        // One user has files in common with many others, and all of them wait.
        for other in 0..COMMON_USERS_MAX as u32 {
            let account = Account::in_registry(Registry::own(), Kind::common([990_000 + other, 33]));
            lock(&account.lane.waiting).is_attended = true;
            close_common(reader.try_clone().expect("dup"), [33, 990_000 + other]);
        }
        for other in [0, 1000, 1001, 2_000_000] {
            assert!(may_have_common([33, other]), "many numbers keep {other} from one user");
        }
        let full = Account::in_registry(Registry::own(), Kind::common([5, 6]));
        let places = &full.registry.places[full.kind.pool()];
        places.fetch_add(PLACES_MAX, Ordering::Relaxed);
        assert!(may_have_common([0, 33]) && may_have_common([1000, 33]), "without anything that waits");
        places.fetch_sub(PLACES_MAX, Ordering::Relaxed);
        lock(&account.lane.waiting).is_attended = account.start_thread();
        until("it is closed", || account.lane.held.load(Ordering::Relaxed) == 0);
    }
}
