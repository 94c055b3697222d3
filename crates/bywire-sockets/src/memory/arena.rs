//! The memory that forked processes share for their sockets, and the memory that each process has of its own.
//!
//! There are two mappings. They are made once and never move. Children share the first one: it holds a [`SharedSocket`]
//! for each socket, and the epoll sets. Children copy the second one: it holds the kind of each descriptor and the
//! addresses of segments. Both are large, and the kernel backs only the pages that are used.

use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use bywire_ring::hints::NUMBERS;

use crate::memory::lock::{Lock, rank};
use crate::memory::robust::Notes;

/// Descriptors below this number are tracked. Higher ones are left to the C library.
pub const DESCRIPTORS: usize = 1 << 20;
/// Sockets that a family of processes may have at once.
pub const SOCKETS: usize = 1 << 16;
/// Epoll sets that a family may have at once.
pub const SETS: usize = 1 << 10;
/// Registrations of sockets in epoll sets: one for each socket, and spare ones.
pub const ITEMS: usize = 1 << 17;
/// Processes that can be listed as holders of a socket.
pub const HOLDERS: usize = 6;
/// Processes that can be listed as holders of an epoll set.
pub const SET_HOLDERS: usize = 48;
/// Programs at the other ends of connections.
pub const PEERS: usize = 1 << 11;

/// Shared by a process and all its descendants.
#[repr(C)]
pub struct SharedArena {
    /// Index 0 is never used.
    pub sockets: [SharedSocket; SOCKETS],
    /// Index 0 is never used.
    pub sets: [EpollSet; SETS],
    /// The quiet registrations of each set.
    pub quiet: [Quiet; SETS],
    /// Index 0 is never used. The first ones, one for each socket, are the sockets' first registrations.
    pub items: [EpollItem; ITEMS],
    /// Counts that are taken back from killed processes; see [`crate::memory::robust`].
    pub notes: Notes,
    /// Counts branches; see [`branch`].
    pub branches: AtomicU32,
    /// Held while a registration is removed from the middle of a socket's list.
    pub registering: Lock<{ rank::REGISTERING }>,
    /// Held while an epoll set is added to another one, or removed from it.
    pub nesting: Lock<{ rank::NESTING }>,
    /// Sets from this index on were never members of other sets.
    pub nested_end: AtomicU32,
    /// Where the search for a spare registration continues.
    pub next_item: AtomicU32,
    /// Where the search for a free record continues.
    pub next_socket: AtomicU32,
    /// News of quiet connections that any process of the family has found, by their numbers; see [`crate::wakeup::hints`].
    pub news: Counts,
    /// Changes with every one of them.
    pub news_sum: AtomicU64,
}

/// A count for each number that [`bywire_ring::hints`] knows.
pub type Counts = [AtomicU64; NUMBERS];

/// How far a socket has moved from the kernel to shared memory.
pub mod stage {
    /// In the kernel.
    pub const PLAIN: u32 = 0;
    /// Offered to the pairing service; the other end is not known yet.
    pub const WAITING: u32 = 1;
    /// The other end's segment is mapped; this end is not ready.
    pub const PAIRED: u32 = 2;
    /// Carried: every call looks at the segments first.
    pub const CARRIED: u32 = 3;
    /// In the kernel, and no byte may go there before it is known whether any may; see [`crate::pairing::requirement`].
    pub const HELD: u32 = 4;
}

/// Bits of `SharedSocket::ended`, as `poll` reports them.
pub const FINISHED: u8 = 1;
/// Hung up: both directions are over.
pub const HUNG_UP: u8 = 2;
/// The kernel has, or had, an error to report.
pub const FAILED: u8 = 4;
/// This end has shut down its receiving direction. The kernel reports [`FINISHED`] for that, too.
pub const SHUT: u8 = 8;
/// This end has shut down its sending direction.
pub const SHUT_SENDING: u8 = 16;

/// Bytes of this end that a Unix peer has left unread are reported, or the kernel does that.
pub const TOLD_LOSS: u8 = 32;

/// Values of `SharedSocket::lingers`.
pub mod linger {
    /// As the kernel made it.
    pub const UNSET: u8 = 0;
    /// The library has set it, so that a killed end resets the connection.
    pub const OURS: u8 = 1;
    /// The program has set it.
    pub const PROGRAMS: u8 = 2;
    /// It has no effect on sockets of this domain.
    pub const IDLE: u8 = 3;
}

/// Values of `SharedSocket::passed`.
pub mod passed {
    /// Only counted processes have it.
    pub const NOT: u8 = 0;
    /// An exec that has not failed yet passes it on.
    pub const BY_EXEC: u8 = 1;
    /// It was passed on.
    pub const YES: u8 = 2;
}

/// Values of `SharedSocket::broken`.
pub mod broken {
    /// It is not.
    pub const NOT: u8 = 0;
    /// The peer's ring held invalid data, and the connection was broken off.
    pub const RESET: u8 = 1;
    /// The program has dissolved it. Its socket may connect again, or listen, and is the kernel's alone.
    pub const DISSOLVED: u8 = 2;
}

/// One stream socket of the kernel.
#[repr(C, align(64))]
pub struct SharedSocket {
    /// 0: free.
    pub used: AtomicU32,
    /// See [`stage`].
    pub stage: AtomicU32,
    /// Why it is never carried, plus one. 0: it may be carried.
    pub never: AtomicU8,
    /// No byte of it may go through the kernel; see [`crate::pairing::requirement`].
    pub is_required: AtomicU8,
    /// Why the last attempt to offer it was none, plus one. 0: there was none, or it was offered.
    pub hindered: AtomicU8,
    /// Bits of `poll` that never go away again: peer finished, hung up, failed.
    pub ended: AtomicU8,
    /// Every byte before the cut-over has been read out of the kernel.
    pub drained: AtomicU8,
    /// A hooked call has waited for it once, in an epoll set or directly.
    pub awaited: AtomicU8,
    /// Processes that hold it. A killed one counts until another process closes its copy.
    pub processes: AtomicU32,
    /// Calls that moved data, counted until an offer pays.
    pub calls: AtomicU32,
    /// Counts uses of this record.
    pub generation: AtomicU32,
    /// Sends that found too little room, for edge-triggered events.
    pub full: AtomicU32,
    /// The bytes that its program allows to be sent ahead, by `SO_SNDBUF` and `TCP_NOTSENT_LOWAT`; see
    /// [`bywire_ring::bounds`]. 0: as much as the ring holds.
    pub sends_max: AtomicU32,
    /// Bytes that hooked calls gave to the kernel.
    pub sent: AtomicU64,
    /// Bytes that hooked calls took from the kernel.
    pub received: AtomicU64,
    /// It is a Unix socket; see [`crate::connection::domain`].
    pub is_unix: AtomicU8,
    /// The writer has gone, and this end takes from its ring what the kernel was not given; see
    /// [`crate::connection::source`].
    pub takes_rest: AtomicU8,
    /// Whether a call on it blocks; see [`crate::connection::sleep`].
    pub waits: AtomicU8,
    /// Whether it has a timeout for receiving, and for sending; see [`crate::connection::sleep`].
    pub has_timeout: [AtomicU8; 2],
    /// Whether `TCP_INQ` is set; see [`crate::transfer::left`].
    pub reports_left: AtomicU8,
    /// Whether `TCP_USER_TIMEOUT` is set; see [`crate::connection::stall`].
    pub has_user_timeout: AtomicU8,
    /// An error that the library has taken from the kernel; see [`crate::connection::kept_error`]. 0: none.
    pub kept_error: AtomicU32,
    /// Time since when the own ring has been full and the peer has read nothing; 0: it is not full, or no time applies.
    pub stalled_ns: AtomicU64,
    /// The peer's read position at that time.
    pub stalled_head: AtomicU64,
    /// The other end's round of sleepers that was woken last.
    pub woken: AtomicU32,
    /// The sender's estimate of the distance of the reader's core: a state of [`bywire_ring::distance`].
    pub distance: AtomicU32,
    /// Sends into the ring.
    pub sends: AtomicU32,
    /// Sleeps since the peer announced that it is about to end.
    pub last_looks: AtomicU32,
    /// Bytes at the end of the own ring that must go to the kernel, which has no room for them yet; see
    /// [`crate::connection::fallback`].
    pub owed: AtomicU32,
    /// Bytes that the kernel will have been given once all owed bytes are paid.
    pub paid_at: AtomicU64,
    /// Somebody is about to give the kernel some of the owed bytes, or was killed while doing so.
    pub paying: AtomicU8,
    /// The sending direction is to be shut down once no byte is owed. The shutdown is owed until then.
    pub shuts: AtomicU8,
    /// How far the sender goes ahead of `seen_head` without reading the peer's position. 0: not known yet.
    pub ahead_max: AtomicU32,
    /// The peer's read position when the sender last looked.
    pub seen_head: AtomicU64,
    /// Time of the offer.
    pub offered_ns: AtomicU64,
    /// Time when the kernel was last asked whether the stream has ended.
    pub asked_ns: AtomicU64,
    /// Calls inside the kernel: receiving, sending, polling.
    pub kernel_readers: AtomicU32,
    /// See `kernel_readers`.
    pub kernel_writers: AtomicU32,
    /// See `kernel_readers`.
    pub kernel_pollers: AtomicU32,
    /// Bytes of the own ring that have memory behind them.
    pub backed: AtomicU32,
    /// The first registration in an epoll set.
    pub items: AtomicU32,
    /// Whether the connection is over, and how; see [`broken`].
    pub broken: AtomicU8,
    /// Who has set `SO_LINGER`; see [`crate::memory::arena::linger`].
    pub lingers: AtomicU8,
    /// A process that is counted as a holder has executed another program, and no longer has it.
    pub is_replaced: AtomicU8,
    /// Whether a program that is not counted may have it; see [`passed`].
    pub passed: AtomicU8,
    /// Threads that are counted as sleepers in the kernel. A killed thread stays counted.
    pub sleepers: [AtomicU32; 4],
    /// Time of the last check for killed sleepers.
    pub looked_ns: AtomicU64,
    /// The process numbers of its holders, as far as there is room. Dead ones are removed. 0: free.
    pub holders: [AtomicU32; HOLDERS],
    /// Held by the one sender.
    pub sending: Lock<{ rank::SENDING }>,
    /// Held by the one receiver.
    pub receiving: Lock<{ rank::RECEIVING }>,
    /// Bytes of the own ring that were given to the kernel, or are owed to it.
    pub returned: AtomicU64,
    /// The own ring's tail when it was last found changed, and the time of that; see
    /// [`crate::connection::idle_memory`].
    pub idle_tail: AtomicU64,
    /// See `idle_tail`.
    pub idle_since_ns: AtomicU64,
    /// The memory behind the own ring cannot be taken back.
    pub keeps_memory: AtomicU8,
    /// The other end belongs to another user: see [`crate::connection::ring`].
    pub is_other_users: AtomicU8,
    /// The steps of the other end's ring that this end has read then: a bit for each.
    pub touched: AtomicU64,
    /// The link of the engine that stands in for the other end: a [`bywire_pairing::protocol::link`]. 0: a program has it.
    pub link: AtomicU8,
    /// Receives after few bytes, in a row, while an engine relays; see [`crate::pairing::seek`].
    pub turns: AtomicU8,
    /// The beginning of the look at the program's manner of sending: the time, and the counts of that time.
    pub watched_ns: AtomicU64,
    /// When an engine of another machine is sought next for the other end. 0: at once.
    pub far_due_ns: AtomicU64,
    /// See `watched_ns`. While an engine relays: the bytes sent before the last receive.
    pub watched_sent: AtomicU64,
    /// See `watched_ns`.
    pub watched_received: AtomicU64,
    /// See `watched_ns`.
    pub watched_calls: AtomicU32,
    /// Bytes of the own ring that an engine has given to the kernel, once it gives no more.
    pub relayed: AtomicU64,
    /// The kernel's count of written bytes minus that of this library, when an engine began to relay.
    pub relayed_from: AtomicU64,
}

/// The places of a table to try for a free record, of which `next` is the next one. A full table is detected after a few
/// tries.
///
/// Each place is counted when it is tried, so `next` never goes back to records that are in use, however long a process that
/// searches is interrupted. The next search goes on behind a row of such records that was too long for this one.
pub fn next_places(next: &AtomicU32) -> impl Iterator<Item = u32> {
    const TRIES_MAX: usize = 256;
    core::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take(TRIES_MAX)
}

impl SharedSocket {
    /// Makes the record that of another socket, which this process holds.
    pub fn reset(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.stage.store(stage::PLAIN, Ordering::Relaxed);
        self.processes.store(1, Ordering::Relaxed);
        self.holders.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        for field in [
            &self.never,
            &self.is_required,
            &self.hindered,
            &self.ended,
            &self.drained,
            &self.awaited,
            &self.broken,
            &self.lingers,
            &self.is_replaced,
            &self.passed,
            &self.waits,
            &self.has_user_timeout,
            &self.reports_left,
            &self.shuts,
            &self.paying,
            &self.keeps_memory,
            &self.is_other_users,
            &self.is_unix,
            &self.takes_rest,
            &self.link,
            &self.turns,
        ]
        .into_iter()
        .chain(&self.has_timeout)
        {
            field.store(0, Ordering::Relaxed);
        }
        for field in [
            &self.calls,
            &self.full,
            &self.sends_max,
            &self.ahead_max,
            &self.kernel_pollers,
            &self.backed,
            &self.items,
            &self.woken,
            &self.sends,
            &self.distance,
            &self.owed,
            &self.kept_error,
            &self.last_looks,
            &self.watched_calls,
        ]
        .into_iter()
        .chain(&self.sleepers)
        {
            field.store(0, Ordering::Relaxed);
        }
        self.seen_head.store(0, Ordering::Relaxed);
        self.touched.store(0, Ordering::Relaxed);
        self.returned.store(0, Ordering::Relaxed);
        self.stalled_ns.store(0, Ordering::Relaxed);
        self.idle_tail.store(0, Ordering::Relaxed);
        self.idle_since_ns.store(0, Ordering::Relaxed);
        self.asked_ns.store(0, Ordering::Relaxed);
        self.looked_ns.store(0, Ordering::Relaxed);
        self.sent.store(0, Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
        self.watched_ns.store(0, Ordering::Relaxed);
        self.far_due_ns.store(0, Ordering::Relaxed);
        self.watched_sent.store(0, Ordering::Relaxed);
        self.watched_received.store(0, Ordering::Relaxed);
        self.relayed.store(0, Ordering::Relaxed);
        self.relayed_from.store(0, Ordering::Relaxed);
        self.sending.reset();
        self.receiving.reset();
    }
}

/// An epoll set of the program.
#[repr(C, align(64))]
pub struct EpollSet {
    /// 0: free; else the number of processes that hold it. A killed one counts until the record is wanted.
    pub processes: AtomicU32,
    /// Counts uses of this record. It is part of the set's name, so registrations of an earlier set here do not match
    /// this one.
    pub generation: AtomicU32,
    /// The process's doorbell is in the kernel's epoll set; see [`crate::epoll::members`].
    pub has_doorbell: AtomicU32,
    /// The first registration of a carried socket.
    pub carried: AtomicU32,
    /// Another set or `poll` watches it.
    pub nested: AtomicU32,
    /// The name of the set that watches it, if there is exactly one; see [`crate::epoll::nested`].
    pub outer: AtomicU32,
    /// It watches other sets.
    pub holds_sets: AtomicU32,
    /// Threads that sleep in it. One that was killed there is counted until that is noticed
    /// ([`crate::memory::robust`]).
    pub sleepers: AtomicU32,
    /// Threads that sleep in it and are not announced to peers, because nothing in it is carried; see
    /// [`bywire_ring::unannounced`].
    pub unannounced: AtomicU32,
    /// The branch of the family to which those threads belong; see [`branch`].
    pub branch: AtomicU32,
    /// Another program has it, or may have it: nothing in it is carried any more.
    pub is_shared: AtomicU32,
    /// The process that used it last.
    pub user: AtomicU32,
    /// The flag is up in it; see [`crate::epoll::nested`].
    pub has_flag: AtomicU32,
    /// Looks that have found something since the kernel was last asked. The count prevents starvation of the kernel's
    /// events.
    pub turn: AtomicU32,
    /// Walks over the registrations that have found something to report.
    pub walks: AtomicU32,
    /// Quiet registrations, or more if a process was killed; see [`crate::epoll::quiet`].
    pub quiet_count: AtomicU32,
    /// [`SharedArena::news_sum`] when the counts were compared last.
    pub seen_sum: AtomicU64,
    /// When all quiet registrations were looked at.
    pub swept_ns: AtomicU64,
    /// Held while registrations change.
    pub lock: Lock<{ rank::SET }>,
    /// The process numbers of its holders, as far as there is room. Dead ones are removed. 0: free.
    pub holders: [AtomicU32; SET_HOLDERS],
}

/// The quiet registrations of an epoll set, by their numbers. It is apart from the set's record, as walks over all sets would touch
/// it.
#[repr(C, align(64))]
pub struct Quiet {
    /// The first registration of each number.
    pub first: [AtomicU32; NUMBERS],
    /// [`SharedArena::news`], as far as they were followed here.
    pub seen: Counts,
}

/// Values of `EpollItem::listed`.
pub mod listed {
    /// In no list.
    pub const NOT: u8 = 0;
    /// In the list that each look walks.
    pub const CARRIED: u8 = 1;
    /// Among the quiet ones of its number.
    pub const QUIET: u8 = 2;
    /// On the way between these two, and in one of them or in both.
    pub const CHANGING: u8 = 3;
}

/// The registration of a socket in an epoll set. It changes under the set's lock. Its first cache line has what each look
/// at a level-triggered registration reads.
#[repr(C, align(64))]
pub struct EpollItem {
    /// The name of its set. 0: free.
    pub set: AtomicU32,
    /// The socket.
    pub socket: AtomicU32,
    /// The socket's descriptor when it was registered.
    pub fd: AtomicI32,
    /// The events that the program waits for.
    pub events: AtomicU32,
    /// The program's own event data.
    pub data: AtomicU64,
    /// The events that the kernel was last asked for.
    pub asked: AtomicU32,
    /// What the kernel has reported since the program was last told.
    pub heard: AtomicU32,
    /// Counts its uses and its arming. It is part of the registration's name.
    pub generation: AtomicU32,
    /// The next carried registration of the set.
    pub next_of_set: AtomicU32,
    /// Its place among the registrations that are ready, if nothing newer has a time; see [`crate::epoll::order`].
    pub place: AtomicU64,
    /// The peer's last mark when nothing was ready, or when something was reported.
    pub seen_mark: AtomicU64,
    /// The kernel reports the registration's name although its socket is not carried.
    pub named: AtomicU8,
    /// It was reported once with `EPOLLONESHOT`, and was not armed again.
    pub spent: AtomicU8,
    /// Nothing was reported since it was armed: the next look reports what is there.
    pub fresh: AtomicU8,
    /// The kernel watches the events that it must watch for an idle connection; see `Connection::is_at_rest`.
    pub settled: AtomicU8,
    /// Whether it is in the set's list of carried sockets; see [`listed`].
    pub listed: AtomicU8,
    /// The program has removed it, and the kernel still has it; see [`crate::epoll::parked`].
    pub parked: AtomicU8,
    /// [`EpollSet::walks`] when something was last found for it, or when it was listed.
    pub found_at: AtomicU8,
    /// It was reported level-triggered, and no look has found it without events since.
    pub queued: AtomicU8,
    /// They were not told of what was there when it was armed; see `raised_tail`.
    pub raised_fresh: AtomicU8,
    /// The number for which the peer counts its news while it is quiet.
    pub number: AtomicU8,
    /// The next quiet registration of its set and number.
    pub next_quiet: AtomicU32,
    /// `SharedSocket::ended` as reported.
    pub seen_ended: AtomicU8,
    /// The peer's tail as reported.
    pub seen_tail: AtomicU64,
    /// `SharedSocket::full` as reported.
    pub seen_full: AtomicU32,
    /// The peer's tail, as far as sets around its set were told of it; see [`crate::epoll::events::State`].
    pub raised_tail: AtomicU32,
    /// The same for `SharedSocket::full`.
    pub raised_full: AtomicU32,
    /// The same for `SharedSocket::ended`.
    pub raised_ended: AtomicU8,
    /// The socket's next registration.
    pub next_of_socket: AtomicU32,
}

/// What each process has of its own.
#[repr(C)]
pub struct PrivateArena {
    /// What each descriptor means: its kind in the upper two bits, an index in the lower ones.
    pub descriptors: [AtomicU32; DESCRIPTORS],
    /// A bit for each descriptor: another program is to be started with a copy of it.
    pub named: [AtomicU64; DESCRIPTORS / 64],
    /// What this process holds of each record.
    pub sockets: [LocalSocket; SOCKETS],
    /// This process's descriptors of each set.
    pub sets: [AtomicU32; SETS],
    /// The last fork for which each set's count of holders was increased.
    pub sets_forked: [AtomicU32; SETS],
    /// The programs at the other ends of connections.
    pub peers: [Peer; PEERS],
    /// The counts of their pages, as far as they were found.
    pub counts: [Counts; PEERS],
    /// Records of peers from this one on were never used.
    pub peers_end: AtomicU32,
    /// An upper bound of the program's descriptors that are sockets or sets.
    pub highest: AtomicU32,
    /// The library's own descriptors all have lower numbers than this.
    pub concealed_end: AtomicU32,
    /// The library's own descriptors are at most this far below the end of the table.
    pub concealed_depth: AtomicU32,
}

/// What one process holds of a socket.
#[repr(C, align(64))]
pub struct LocalSocket {
    /// This process's descriptors of the socket.
    pub descriptors: AtomicU32,
    /// Calls that use the mappings.
    pub users: AtomicU32,
    /// Calls that sleep with it, and calls that have slept and have not returned.
    pub waiters: AtomicU32,
    /// The descriptor with which those calls continue, plus one, once the program has closed its last one; 0: none.
    pub kept: AtomicU32,
    /// The segment that this side writes.
    pub own: AtomicPtr<u8>,
    /// The segment that the other side writes.
    pub remote: AtomicPtr<u8>,
    /// The index of the program at the other end.
    pub peer: AtomicU32,
    /// This process has offered it: the pairing service must be told when it ends.
    pub offered: AtomicU32,
    /// The last fork for which the record's count of holders was increased.
    pub forked: AtomicU32,
    /// The look at all sockets that has come by last; see [`crate::connection::sockets::each_held_in`].
    pub looked: AtomicU32,
}

/// A program at the other end of connections.
#[repr(C)]
pub struct Peer {
    /// Its number at the pairing service.
    pub number: AtomicU32,
    /// Connections to it.
    pub references: AtomicU32,
    /// The doorbell that wakes it.
    pub doorbell: AtomicI32,
    /// The name of the doorbell that it rings here, if it belongs to another user: one for each user. 0: it belongs to
    /// this one. The doorbell of another user's program is a timer.
    pub other_user: AtomicU64,
    /// Its page, which says whether it sleeps.
    pub page: AtomicPtr<u64>,
    /// The state of its page when its doorbell was last rung.
    pub rung: AtomicU64,
    /// The address at which the pages of this record are mapped.
    pub place: AtomicPtr<libc::c_void>,
    /// The sum of its page's counts when they were last compared.
    pub sum: AtomicU64,
}

static FAMILY: AtomicPtr<SharedArena> = AtomicPtr::new(ptr::null_mut());
static OWN: AtomicPtr<PrivateArena> = AtomicPtr::new(ptr::null_mut());

/// Makes both mappings. Without them every call is passed to the C library.
pub fn found() {
    let family = map(size_of::<SharedArena>(), libc::MAP_SHARED);
    let own = map(size_of::<PrivateArena>(), libc::MAP_PRIVATE);
    if family.is_null() || own.is_null() {
        return;
    }
    // Release, both: only the start of threads pairs with them, which comes later. A handler of the loader may look
    // earlier.
    FAMILY.store(family.cast(), Ordering::Release);
    OWN.store(own.cast(), Ordering::Release);
}

/// From here on every call is passed to the C library. The mappings stay, because a thread may be using them.
pub fn retire() {
    FAMILY.store(ptr::null_mut(), Ordering::Relaxed);
    OWN.store(ptr::null_mut(), Ordering::Relaxed);
}

/// What the family of processes shares.
#[inline(always)]
pub fn shared() -> Option<&'static SharedArena> {
    // SAFETY: null, or a mapping of this size that is never removed. Zeros are a valid value of every field: all are
    // atomics or locks.
    unsafe { FAMILY.load(Ordering::Relaxed).as_ref() }
}

/// What this process has of its own.
#[inline(always)]
pub fn private() -> Option<&'static PrivateArena> {
    // SAFETY: null, or a mapping of this size that is never removed. Zeros are a valid value of every field: all are
    // atomics or locks.
    unsafe { OWN.load(Ordering::Relaxed).as_ref() }
}

fn map(length_bytes: usize, sharing: i32) -> *mut u8 {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED { ptr::null_mut() } else { address.cast() }
}

/// See [`branch`].
static BRANCH: AtomicU32 = AtomicU32::new(0);

/// The branch of this process: processes of a family that have one page. A child that was forked before there was a
/// page begins a branch of its own.
pub fn branch() -> u32 {
    BRANCH.load(Ordering::Relaxed)
}

/// This process begins a branch of its own.
pub fn begin_branch(family: &SharedArena) {
    BRANCH.store(family.branches.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_was_interrupted_leaves_no_later_one_among_records_in_use() {
        let next = AtomicU32::new(7);
        let mut interrupted = next_places(&next);
        assert_eq!(interrupted.next(), Some(7));
        let taken: Vec<_> = (0..300).filter_map(|_| next_places(&next).next()).collect();
        assert_eq!(interrupted.next(), Some(308));
        assert!(next_places(&next).all(|place| !taken.contains(&place)));
    }

    #[test]
    fn the_search_after_one_that_was_in_vain_tries_other_places() {
        let next = AtomicU32::new(u32::MAX);
        let in_vain: Vec<_> = next_places(&next).collect();
        assert_eq!(in_vain.get(..2), Some(&[u32::MAX, 0][..]));
        assert!(next_places(&next).all(|place| !in_vain.contains(&place)));
    }
}
