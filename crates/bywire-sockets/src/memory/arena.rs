//! The memory that forked processes share for the sockets that they hold in common, and the memory that each has of its own.
//!
//! Two mappings, made once and never moved: one that children share, with a [`SharedSocket`] for each socket and the
//! epoll sets; one that they copy, with the meaning of each descriptor and the addresses of segments. Both are
//! large and touched only where used.

use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::memory::lock::{Lock, rank};
use crate::memory::robust::Notes;

/// Descriptors that are known; one with a higher number is the C library's alone.
pub const DESCRIPTORS: usize = 1 << 20;
/// Sockets of a family of processes at once.
pub const SOCKETS: usize = 1 << 16;
/// Epoll sets of a family at once.
pub const SETS: usize = 1 << 10;
/// Registrations of sockets in them: one for each socket, and spare ones.
pub const ITEMS: usize = 1 << 17;
/// Processes that are known by number to hold a socket.
pub const HOLDERS: usize = 6;
/// The same of an epoll set.
pub const SET_HOLDERS: usize = 48;
/// Programs at the other ends.
pub const PEERS: usize = 1 << 11;

/// Shared by all processes that have one by descent.
#[repr(C)]
pub struct SharedArena {
    /// Index 0 is never used.
    pub sockets: [SharedSocket; SOCKETS],
    /// Index 0 is never used.
    pub sets: [EpollSet; SETS],
    /// Index 0 is never used; those of records are their sockets' first registrations.
    pub items: [EpollItem; ITEMS],
    /// What processes have counted; see [`crate::memory::robust`].
    pub notes: Notes,
    /// Counts branches; see [`branch`].
    pub branches: AtomicU32,
    /// Held while something is taken out of the middle of a socket's list of registrations.
    pub registering: Lock<{ rank::REGISTERING }>,
    /// Held while a set is put into another one, or taken out.
    pub nesting: Lock<{ rank::NESTING }>,
    /// Sets from here on were never within others.
    pub nested_end: AtomicU32,
    /// Where the search for a spare item goes on.
    pub next_item: AtomicU32,
    /// Where the search for a free record goes on.
    pub next_socket: AtomicU32,
}

/// How far a socket is on its way out of the kernel.
pub mod stage {
    /// In the kernel.
    pub const PLAIN: u32 = 0;
    /// Offered, and the other end is not known.
    pub const WAITING: u32 = 1;
    /// The other end's segment is mapped; this end is not ready.
    pub const PAIRED: u32 = 2;
    /// Every call looks at the segments first.
    pub const CARRIED: u32 = 3;
}

/// Bits of `SharedSocket::ended`, as poll gives them.
pub const FINISHED: u8 = 1;
/// Hung up: both directions are over.
pub const HUNG_UP: u8 = 2;
/// The kernel has an error for us, or had.
pub const FAILED: u8 = 4;
/// We have shut down our receiving ourselves: the kernel says [`FINISHED`] for that, too.
pub const SHUT: u8 = 8;
/// We have shut down our sending ourselves.
pub const SHUT_SENDING: u8 = 16;

/// Values of `SharedSocket::lingers`.
pub mod linger {
    /// It is as the kernel has made it.
    pub const UNSET: u8 = 0;
    /// We have told the kernel that a killed end is a reset.
    pub const OURS: u8 = 1;
    /// The program has told it what it wants.
    pub const PROGRAMS: u8 = 2;
}

/// One TCP socket of the kernel's.
#[repr(C, align(64))]
pub struct SharedSocket {
    /// 0: free.
    pub used: AtomicU32,
    /// See [`stage`].
    pub stage: AtomicU32,
    /// Why it is never carried, plus one.
    pub never: AtomicU8,
    /// Bits of `poll` that will not go away again: peer finished, hung up, failed.
    pub ended: AtomicU8,
    /// Every byte before the cut has been taken out of the kernel.
    pub drained: AtomicU8,
    /// Was waited for by a call of ours once, in a set or by itself.
    pub awaited: AtomicU8,
    /// Processes that hold it; one that was killed counts until another one lets go of it.
    pub processes: AtomicU32,
    /// Calls that moved data, until it was worth an offer.
    pub calls: AtomicU32,
    /// Counts uses of this record.
    pub generation: AtomicU32,
    /// Sends that found too little room, for edges.
    pub full: AtomicU32,
    /// Bytes that calls of ours have given to the kernel, and taken from it.
    pub sent: AtomicU64,
    /// See `sent`.
    pub received: AtomicU64,
    /// Does a call on it wait? See [`crate::connection::sleep`].
    pub waits: AtomicU8,
    /// Has it a time-out for receiving, and for sending?
    pub has_timeout: [AtomicU8; 2],
    /// The round of sleepers at the other end that was woken last.
    pub woken: AtomicU32,
    /// How far the sender takes the reader's core to be: an opinion of [`bywire_ring::distance`].
    pub distance: AtomicU32,
    /// Sends into the ring.
    pub sends: AtomicU32,
    /// Sleeps since the peer has said that it is about to end.
    pub last_looks: AtomicU32,
    /// Bytes at the end of the own ring that belong into the kernel, which had no room for them yet; see [`crate::connection::fallback`].
    pub owed: AtomicU32,
    /// How many bytes the kernel was given when all of that is paid.
    pub paid_at: AtomicU64,
    /// Somebody is about to give the kernel some of it, or was killed while it did.
    pub paying: AtomicU8,
    /// The sending direction is shut down as soon as no byte is owed: until then that is owed as well.
    pub shuts: AtomicU8,
    /// How far the peer had read when the sender last looked.
    pub seen_head: AtomicU64,
    /// When it was offered.
    pub offered_ns: AtomicU64,
    /// When the kernel was last asked whether the stream has ended.
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
    /// The connection was broken by its peer's garbage.
    pub broken: AtomicU8,
    /// Who has set `SO_LINGER`; see [`crate::memory::arena::linger`].
    pub lingers: AtomicU8,
    /// A process that counts has become another program, and has it no more.
    pub is_replaced: AtomicU8,
    /// Threads that are counted as sleepers in the kernel: nobody counts a killed one out.
    pub sleepers: [AtomicU32; 4],
    /// When it was last looked whether one of them was killed.
    pub looked_ns: AtomicU64,
    /// The numbers of those that hold it, as far as there is room: dead ones are taken out again. 0: free.
    pub holders: [AtomicU32; HOLDERS],
    /// One sender at a time.
    pub sending: Lock<{ rank::SENDING }>,
    /// One receiver at a time.
    pub receiving: Lock<{ rank::RECEIVING }>,
    /// Bytes of the own ring that were given to the kernel, or are owed to it.
    pub returned: AtomicU64,
}

impl SharedSocket {
    /// It is another socket's from here on, which this process holds.
    pub fn reset(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.stage.store(stage::PLAIN, Ordering::Relaxed);
        self.processes.store(1, Ordering::Relaxed);
        self.holders.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        for field in [
            &self.never,
            &self.ended,
            &self.drained,
            &self.awaited,
            &self.broken,
            &self.lingers,
            &self.is_replaced,
            &self.waits,
            &self.shuts,
            &self.paying,
        ]
        .into_iter()
        .chain(&self.has_timeout)
        {
            field.store(0, Ordering::Relaxed);
        }
        for field in [
            &self.calls,
            &self.full,
            &self.kernel_pollers,
            &self.backed,
            &self.items,
            &self.woken,
            &self.sends,
            &self.distance,
            &self.owed,
            &self.last_looks,
        ]
        .into_iter()
        .chain(&self.sleepers)
        {
            field.store(0, Ordering::Relaxed);
        }
        self.seen_head.store(0, Ordering::Relaxed);
        self.returned.store(0, Ordering::Relaxed);
        self.asked_ns.store(0, Ordering::Relaxed);
        self.looked_ns.store(0, Ordering::Relaxed);
        self.sent.store(0, Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
        self.sending.reset();
        self.receiving.reset();
    }
}

/// An epoll set of the program's.
#[repr(C, align(64))]
pub struct EpollSet {
    /// 0: free; else the processes that hold it: one that was killed counts until its place is wanted.
    pub processes: AtomicU32,
    /// Counts uses of this place: part of the set's name, so that registrations in the last set here are nothing to this one.
    pub generation: AtomicU32,
    /// The bell is in the kernel's set.
    pub belled: AtomicU32,
    /// The first registration of a carried socket.
    pub carried: AtomicU32,
    /// Watched itself by another set or by poll.
    pub nested: AtomicU32,
    /// The name of the set that watches it, if that is one only; see [`crate::epoll::nested`].
    pub outer: AtomicU32,
    /// Watches others itself.
    pub holds_sets: AtomicU32,
    /// Threads that sleep in it; one that was killed there is counted until it is noticed ([`crate::memory::robust`]).
    pub sleepers: AtomicU32,
    /// Threads that sleep in it and are not announced to peers, as nothing in it is carried; see [`bywire_ring::crowd`].
    pub unannounced: AtomicU32,
    /// The branch of the family whose threads those are; see [`branch`].
    pub branch: AtomicU32,
    /// Another program has it, or may have it: nothing in it is carried any more.
    pub is_shared: AtomicU32,
    /// The process that has used it last.
    pub user: AtomicU32,
    /// What it had that a set around it was last told of; see [`crate::epoll::nested`].
    pub rung_for: AtomicU32,
    /// Looks that have found something since the kernel was last asked, so that nobody starves there.
    pub turn: AtomicU32,
    /// Held while registrations change.
    pub lock: Lock<{ rank::SET }>,
    /// The numbers of those that hold it, as far as there is room: dead ones are taken out again. 0: free.
    pub holders: [AtomicU32; SET_HOLDERS],
}

/// A socket's registration in a set. Changed under the set's lock.
#[repr(C, align(64))]
pub struct EpollItem {
    /// The name of its set. 0: free.
    pub set: AtomicU32,
    /// The socket.
    pub socket: AtomicU32,
    /// Its number when it was registered.
    pub fd: AtomicI32,
    /// What the program asked for.
    pub events: AtomicU32,
    /// What the program wants to hear.
    pub data: AtomicU64,
    /// What the kernel was last asked for.
    pub asked: AtomicU32,
    /// What the kernel has said since it was last reported.
    pub heard: AtomicU32,
    /// Counts its uses, and what it was armed with: part of its name.
    pub generation: AtomicU32,
    /// The kernel reports the item's name though its socket is not carried.
    pub named: AtomicU8,
    /// Reported once with `EPOLLONESHOT`, and not armed again.
    pub spent: AtomicU8,
    /// Nothing was reported since it was armed: the next look reports what is there.
    pub fresh: AtomicU8,
    /// The kernel is asked for what it has to be asked of a connection that is at rest; see `Connection::is_at_rest`.
    pub settled: AtomicU8,
    /// In the set's list of carried ones.
    pub listed: AtomicU8,
    /// `SharedSocket::ended` as reported.
    pub seen_ended: AtomicU8,
    /// `SharedSocket::full` as reported.
    pub seen_full: AtomicU32,
    /// The peer's tail as reported.
    pub seen_tail: AtomicU64,
    /// The record's next registration.
    pub next_of_socket: AtomicU32,
    /// The set's next carried one.
    pub next_of_set: AtomicU32,
}

/// Each process's own.
#[repr(C)]
pub struct PrivateArena {
    /// What each descriptor means: a kind in the upper two bits, an index below.
    pub descriptors: [AtomicU32; DESCRIPTORS],
    /// A bit for each descriptor: a program is to be started with a copy of it.
    pub named: [AtomicU64; DESCRIPTORS / 64],
    /// What this process holds of each record.
    pub sockets: [LocalSocket; SOCKETS],
    /// Descriptors of this process that mean each set.
    pub sets: [AtomicU32; SETS],
    /// The last fork for which each set was counted once more.
    pub sets_forked: [AtomicU32; SETS],
    /// The programs at the other ends.
    pub peers: [Peer; PEERS],
    /// No socket and no set of the program's has a higher descriptor.
    pub highest: AtomicU32,
    /// No descriptor of the library's own has this number, or a higher one.
    pub concealed_end: AtomicU32,
    /// No descriptor of the library's own is more than this below the end of the table.
    pub concealed_depth: AtomicU32,
}

/// What one process holds of a socket.
#[repr(C, align(64))]
pub struct LocalSocket {
    /// Descriptors of this process.
    pub descriptors: AtomicU32,
    /// Calls that use the mappings.
    pub users: AtomicU32,
    /// Calls that sleep with it, or have slept, and are not over.
    pub waiters: AtomicU32,
    /// The descriptor that those go on with, plus one, as the program has closed its last one; 0: none.
    pub kept: AtomicU32,
    /// The segment that this side writes.
    pub own: AtomicPtr<u8>,
    /// The segment that the other side writes.
    pub remote: AtomicPtr<u8>,
    /// Index of the program at the other end.
    pub peer: AtomicU32,
    /// Offered by this process: the service has to hear of the end.
    pub offered: AtomicU32,
    /// The last fork for which its record was counted once more.
    pub forked: AtomicU32,
}

/// A program at the other end of some connections.
#[repr(C)]
pub struct Peer {
    /// Its number at the service.
    pub number: AtomicU32,
    /// Connections to it.
    pub references: AtomicU32,
    /// What wakes it.
    pub bell: AtomicI32,
    /// Another user's: its bell is a timer.
    pub is_other_user: AtomicU32,
    /// Its page, which says whether it sleeps.
    pub page: AtomicPtr<u64>,
    /// What its page said when its bell was last rung.
    pub rung: AtomicU64,
}

static FAMILY: AtomicPtr<SharedArena> = AtomicPtr::new(ptr::null_mut());
static OWN: AtomicPtr<PrivateArena> = AtomicPtr::new(ptr::null_mut());

/// Makes both mappings. Without them every call is the C library's.
pub fn found() {
    let family = map(size_of::<SharedArena>(), libc::MAP_SHARED);
    let own = map(size_of::<PrivateArena>(), libc::MAP_PRIVATE);
    if family.is_null() || own.is_null() {
        return;
    }
    // Release, both: pair with nothing but the start of threads, which comes later; a handler of the loader's may
    // look before.
    FAMILY.store(family.cast(), Ordering::Release);
    OWN.store(own.cast(), Ordering::Release);
}

/// From here on every call is the C library's. The mappings stay, as a thread may be using them.
pub fn retire() {
    FAMILY.store(ptr::null_mut(), Ordering::Relaxed);
    OWN.store(ptr::null_mut(), Ordering::Relaxed);
}

/// What the family shares.
#[inline(always)]
pub fn shared() -> Option<&'static SharedArena> {
    // SAFETY: null, or a mapping of this size that stays; noughts are a value of every field, all of which are
    // atomics or locks.
    unsafe { FAMILY.load(Ordering::Relaxed).as_ref() }
}

/// What this process has.
#[inline(always)]
pub fn private() -> Option<&'static PrivateArena> {
    // SAFETY: null, or a mapping of this size that stays; noughts are a value of every field, all of which are
    // atomics or locks.
    unsafe { OWN.load(Ordering::Relaxed).as_ref() }
}

fn map(length_bytes: usize, sharing: i32) -> *mut u8 {
    // SAFETY: a new mapping, at a place of the kernel's choice.
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

/// Processes of a family that have one page: a child that was forked before there was any begins a branch of its own.
pub fn branch() -> u32 {
    BRANCH.load(Ordering::Relaxed)
}

/// This process begins a branch of its own.
pub fn begin_branch(family: &SharedArena) {
    BRANCH.store(family.branches.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
}
