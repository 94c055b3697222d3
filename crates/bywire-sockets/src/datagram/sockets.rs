//! The program's UDP sockets.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use bywire_pairing::reason::Reason;
use bywire_ring::datagrams::Next;
use bywire_ring::hold as rule;

use crate::connection::policy;
use crate::datagram::address::Address;
use crate::datagram::flow::{Flow, RULES, Segments, state};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::memory::lock::{Held, Lock, rank};
use crate::os::{errno, kernel};

/// UDP sockets that are tracked at once. Further ones are left to the kernel.
pub const SOCKETS: usize = 512;
/// Flows of one socket. What it exchanges with further ends goes through the kernel.
pub const FLOWS: usize = 32;
/// Ends that a socket's datagrams are counted for before they are offered.
const CANDIDATES: usize = 8;
/// The number of datagrams after which a candidate is offered doubles with each offer in vain, so many times at most.
const DOUBLINGS_MAX: u32 = 12;
/// The largest receive buffer that a ring can stand for.
const BUFFER_MAX: i32 = 3 << 20;

/// A record.
#[repr(align(64))]
pub struct Record {
    used: AtomicU32,
    users: AtomicU32,
    descriptors: AtomicU32,
    /// Counts the uses of this record.
    generation: AtomicU32,
    /// Why nothing is offered any more, plus one.
    never: AtomicU8,
    /// Threads that sleep in the kernel with it, or are about to.
    pub sleepers: AtomicU32,
    /// Flows were made in the places below this one.
    flows_end: AtomicU32,
    /// Counts looks at the rings, so that the kernel's queue has its turn, and calls.
    turn: AtomicU32,
    looks: AtomicU32,
    /// Where the next look at the rings begins.
    cursor: AtomicU32,
    receiving: Lock<{ rank::RECEIVING }>,
    sending: Lock<{ rank::SENDING }>,
    talk: UnsafeCell<Talk>,
    flows: [Flow; FLOWS],
}

/// What belongs to the sending lock.
struct Talk {
    /// The end that it is connected to.
    peer: Option<Address>,
    candidates: [Candidate; CANDIDATES],
    next: usize,
    /// Offers that came to nothing.
    in_vain: u32,
}

#[derive(Clone, Copy)]
struct Candidate {
    address: Address,
    datagrams: u32,
}

// SAFETY: `talk` is accessed under the sending lock.
unsafe impl Sync for Record {}

static RECORDS: [Record; SOCKETS] = [const { Record::new() }; SOCKETS];
/// `bywire run --udp` was asked for.
static IS_WANTED: AtomicU8 = AtomicU8::new(0);
/// UDP sockets that are tracked.
static TRACKED: AtomicU32 = AtomicU32::new(0);

/// UDP sockets are tracked from here on.
pub fn configure() {
    IS_WANTED.store(1, Ordering::Relaxed);
}

/// Returns whether the program has a tracked UDP socket.
#[inline(always)]
pub fn are_any() -> bool {
    TRACKED.load(Ordering::Relaxed) != 0
}

/// A UDP socket while a call uses it.
pub struct Socket {
    /// The descriptor that the call was made with.
    pub fd: i32,
    /// Its index.
    pub index: u32,
    /// Its record.
    pub record: &'static Record,
}

/// The receiving lock, held.
pub struct ReceivingSide {
    record: &'static Record,
    _held: Held<'static, { rank::RECEIVING }>,
}

/// The sending lock, held.
pub struct SendingSide {
    record: &'static Record,
    _held: Held<'static, { rank::SENDING }>,
}

/// Both locks, held.
pub struct BothSides {
    /// Dropped first.
    pub sending: SendingSide,
    _receiving: ReceivingSide,
}

/// The UDP socket behind `fd`.
#[inline]
pub fn socket(fd: i32) -> Option<Socket> {
    let DescriptorKind::Datagram(index) = descriptors::kind(fd) else { return None };
    let socket = by_index(fd, index)?;
    (descriptors::recorded(fd) == DescriptorKind::Datagram(index)).then_some(socket)
}

/// The record of this index, in use until dropped.
pub fn by_index(fd: i32, index: u32) -> Option<Socket> {
    let record = RECORDS.get(index as usize)?;
    rule::enter(&record.users);
    Some(Socket { fd, index, record })
}

/// Returns whether a program's socket of these arguments is tracked.
pub fn is_wanted(domain: i32, kind: i32, protocol: i32) -> bool {
    IS_WANTED.load(Ordering::Relaxed) != 0
        && matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & 0xF == libc::SOCK_DGRAM
        && matches!(protocol, 0 | libc::IPPROTO_UDP)
}

/// Tracks `fd`, a new UDP socket.
pub fn track(fd: i32) {
    let _held = descriptors::change();
    for (index, record) in (0u32..).zip(&RECORDS) {
        // Acquire: pairs with the release store in the drop of `Socket`.
        if record.used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        if record.sleepers.load(Ordering::SeqCst) != 0 || !rule::open(&record.users, &record.descriptors) {
            // Release: pairs with the exchange above.
            record.used.store(0, Ordering::Release);
            continue;
        }
        record.generation.fetch_add(1, Ordering::Relaxed);
        record.never.store(0, Ordering::Relaxed);
        record.flows_end.store(0, Ordering::Relaxed);
        record.looks.store(0, Ordering::Relaxed);
        // SAFETY: nobody else uses the record yet.
        unsafe { *record.talk.get() = Talk::NONE };
        TRACKED.fetch_add(1, Ordering::Relaxed);
        descriptors::enter(fd, DescriptorKind::Datagram(index));
        return;
    }
}

/// Tracks `new` as a duplicate of `old`.
pub fn duplicate(old: i32, new: i32) {
    let _held = descriptors::change();
    let DescriptorKind::Datagram(index) = descriptors::kind(old) else { return };
    if let Some(record) = RECORDS.get(index as usize) {
        // SeqCst: pairs with the loads in `hold::leave`. The thread holds the lock of `descriptors::change`.
        record.descriptors.fetch_add(1, Ordering::SeqCst);
        descriptors::enter(new, DescriptorKind::Datagram(index));
    }
}

/// Removes `fd` from the table, before the kernel closes it. Its last descriptor ends all of its flows. `ended` gets the
/// tokens of those that were offered, with their bytes.
pub fn forget(fd: i32, ended: impl Fn(u64, [u64; 2])) -> Option<Socket> {
    let held = descriptors::change();
    let DescriptorKind::Datagram(index) = descriptors::kind(fd) else { return None };
    let socket = by_index(fd, index)?;
    descriptors::enter(fd, DescriptorKind::Untracked);
    let is_last = rule::close(&socket.record.descriptors);
    drop(held);
    if is_last {
        socket.end_flows(|_| true, ended);
    }
    Some(socket)
}

/// Visits each tracked socket once.
pub fn each(mut visit: impl FnMut(&Socket)) {
    if !are_any() {
        return;
    }
    for (index, record) in (0u32..).zip(&RECORDS) {
        if record.used.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Some(socket) = by_index(-1, index) else { return };
        // SeqCst: pairs with the addition in `hold::close`. Without a descriptor it is being closed.
        if record.descriptors.load(Ordering::SeqCst) != 0 {
            visit(&socket);
        }
    }
}

/// Leaves all of them to the kernel, for good. What other ends have sent in memory is still received.
pub fn stay_all(reason: Reason) {
    each(|socket| socket.stay(reason));
}

/// The process exits: other ends give everything to the kernel from here on.
pub fn end_all(ended: impl Fn(u64, [u64; 2])) {
    each(|socket| {
        socket.stop();
        socket.each_token(&ended);
    });
}

/// Leaves those to the kernel whose descriptors another program is about to have.
pub fn stay_each(is_meant: impl Fn(i32) -> bool, reason: Reason) {
    if are_any() {
        descriptors::each(|fd, kind| {
            if let DescriptorKind::Datagram(_) = kind
                && is_meant(fd)
            {
                stay(fd, reason);
            }
        });
    }
}

/// Leaves the UDP socket behind `fd` to the kernel, if it is one.
pub fn stay(fd: i32, reason: Reason) {
    if let Some(socket) = socket(fd) {
        socket.stay(reason);
    }
}

/// In a forked child: its parent goes on with what it has. The child holds the lock of `descriptors::change`.
pub fn after_fork_in_child() {
    if !are_any() {
        return;
    }
    descriptors::each(|fd, kind| {
        if let DescriptorKind::Datagram(_) = kind {
            descriptors::enter(fd, DescriptorKind::Untracked);
        }
    });
    for record in &RECORDS {
        if record.used.load(Ordering::Relaxed) == 0 {
            continue;
        }
        record.receiving.reset();
        record.sending.reset();
        record.flows.iter().for_each(|flow| flow.free(true));
        for count in [&record.users, &record.descriptors, &record.sleepers, &record.used] {
            count.store(0, Ordering::Relaxed);
        }
    }
    TRACKED.store(0, Ordering::Relaxed);
}

impl Record {
    const fn new() -> Self {
        Self {
            used: AtomicU32::new(0),
            users: AtomicU32::new(0),
            descriptors: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            never: AtomicU8::new(0),
            sleepers: AtomicU32::new(0),
            flows_end: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            cursor: AtomicU32::new(0),
            receiving: Lock::new(),
            sending: Lock::new(),
            talk: UnsafeCell::new(Talk::NONE),
            flows: [const { Flow::new() }; FLOWS],
        }
    }

    /// The number of this use.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns whether the record is in the use of this number, and its socket has a descriptor.
    pub fn is_use(&self, generation: u32) -> bool {
        // SeqCst: pairs with the addition in `hold::close`.
        self.generation() == generation && self.descriptors.load(Ordering::SeqCst) != 0
    }

    /// Returns whether the kernel's queue has its turn, at one look of so many. The caller holds the receiving lock.
    pub fn is_kernels_turn(&self, every: u32) -> bool {
        let turn = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(turn, Ordering::Relaxed);
        turn.is_multiple_of(every)
    }

    /// Counts a call. Of several at once, one may be counted.
    pub fn looks(&self) -> u32 {
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        looks
    }

    /// The next look at the rings begins behind this place. The caller holds the receiving lock.
    pub fn begin_after(&self, slot: usize) {
        self.cursor.store(slot as u32 + 1, Ordering::Relaxed);
    }

    /// The places with flows, and free ones between them.
    #[inline(always)]
    fn flows(&'static self) -> &'static [Flow] {
        let end = self.flows_end.load(Ordering::Relaxed) as usize;
        self.flows.get(..end).unwrap_or(&[])
    }
}

impl Talk {
    const NONE: Self = Self {
        peer: None,
        candidates: [Candidate { address: Address::NONE, datagrams: 0 }; CANDIDATES],
        next: 0,
        in_vain: 0,
    };
}

impl Drop for Socket {
    #[inline]
    fn drop(&mut self) {
        if rule::leave(&self.record.users, &self.record.descriptors) {
            rule::cleared(&self.record.users);
            TRACKED.fetch_sub(1, Ordering::Relaxed);
            // Release: pairs with the exchange in `track`.
            self.record.used.store(0, Ordering::Release);
        }
    }
}

impl Socket {
    /// Returns whether it has, or had, flows.
    #[inline(always)]
    pub fn has_flows(&self) -> bool {
        self.record.flows_end.load(Ordering::Relaxed) != 0
    }

    /// Returns whether nothing of it is ever in memory.
    #[inline(always)]
    pub fn is_kernels(&self) -> bool {
        self.record.never.load(Ordering::Relaxed) != 0 && !self.has_flows()
    }

    /// Returns whether it may not have flows any more.
    pub fn is_left(&self) -> bool {
        self.record.never.load(Ordering::Relaxed) != 0
    }

    /// Leaves it to the kernel, for good.
    pub fn stay(&self, reason: Reason) {
        let never = &self.record.never;
        let _ = never.compare_exchange(0, reason as u8 + 1, Ordering::Relaxed, Ordering::Relaxed);
        self.stop();
    }

    /// Ends its flows. What other ends have sent in memory is still received.
    pub fn stop(&self) {
        if self.has_flows() {
            let _held = self.both();
            self.record.flows().iter().for_each(Flow::end);
        }
    }

    /// Takes the receiving lock.
    pub fn receiving(&self) -> ReceivingSide {
        ReceivingSide { record: self.record, _held: self.record.receiving.hold() }
    }

    /// Takes the sending lock.
    pub fn sending(&self) -> SendingSide {
        SendingSide { record: self.record, _held: self.record.sending.hold() }
    }

    /// Takes both locks.
    pub fn both(&self) -> BothSides {
        let receiving = self.receiving();
        BothSides { sending: self.sending(), _receiving: receiving }
    }

    /// Returns whether a receive is about to find something.
    pub fn has_news(&self) -> bool {
        let side = self.receiving();
        side.open_flows().any(|(_, flow)| {
            let Some(segments) = flow.segments() else { return false };
            // SAFETY: the lock is held.
            unsafe { flow.receiving() }.reader.has_news(&segments.remote)
        })
    }

    /// Visits the tokens of its flows, with their bytes, without the locks.
    fn each_token(&self, visit: impl Fn(u64, [u64; 2])) {
        for (slot, flow) in self.record.flows().iter().enumerate() {
            let held = self.both();
            if flow.is(state::FREE) {
                continue;
            }
            // SAFETY: both locks are held.
            let bytes = unsafe { [flow.sending().bytes, flow.receiving().bytes] };
            let token = token(self.index, slot, flow);
            drop(held);
            visit(token, bytes);
        }
    }

    /// Frees the flows that `is_meant` selects. `ended` gets their tokens and bytes, without the locks.
    pub fn end_flows(&self, is_meant: impl Fn(&Flow) -> bool, ended: impl Fn(u64, [u64; 2])) {
        for (slot, flow) in self.record.flows().iter().enumerate() {
            let held = self.both();
            if flow.is(state::FREE) || !is_meant(flow) {
                continue;
            }
            // SAFETY: both locks are held.
            let bytes = unsafe { [flow.sending().bytes, flow.receiving().bytes] };
            let token = token(self.index, slot, flow);
            flow.free(false);
            drop(held);
            ended(token, bytes);
        }
    }

    /// The program has changed the receive buffer.
    pub fn change_allowance(&self) {
        match self.allowance() {
            None => self.stay(Reason::Option),
            Some(bytes) => {
                for (_, flow) in self.receiving().open_flows() {
                    if let Some(segments) = flow.segments() {
                        RULES.allow(&segments.own, bytes);
                    }
                }
            }
        }
    }

    /// What its receive buffer holds, as the kernel charges for it. `None`: it is not to be carried.
    pub fn allowance(&self) -> Option<u64> {
        let bytes = errno::keep(|| kernel::number(self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF))?;
        (0..=BUFFER_MAX).contains(&bytes).then_some(bytes as u64)
    }
}

/// In a token: it is that of a flow, and of no stream.
const OF_FLOW: u64 = 1 << 31;

/// The name of a flow at the pairing service.
pub fn token(index: u32, slot: usize, flow: &Flow) -> u64 {
    u64::from(flow.generation.load(Ordering::Relaxed)) << 32 | OF_FLOW | u64::from(index) << 8 | slot as u64
}

/// Returns whether a token is the name of a flow.
pub fn is_flow(token: u64) -> bool {
    token & OF_FLOW != 0
}

/// The socket, and the place of the flow, that a token names.
pub fn of_token(token: u64) -> Option<(Socket, usize)> {
    let index = (token & (OF_FLOW - 1)) as u32 >> 8;
    let mut fd = None;
    descriptors::each(|found, kind| {
        fd = if kind == DescriptorKind::Datagram(index) { Some(found) } else { fd }
    });
    Some((by_index(fd?, index)?, (token & 0xFF) as usize))
}

impl ReceivingSide {
    /// The flows from which something may be received in memory, from the one on that is next.
    #[inline(always)]
    pub fn open_flows(&self) -> impl Iterator<Item = (usize, &'static Flow)> {
        let flows = self.record.flows();
        let start = self.record.cursor.load(Ordering::Relaxed) as usize;
        let start = if start < flows.len() { start } else { 0 };
        let (before, after) = flows.split_at_checked(start).unwrap_or((&[], flows));
        let numbered = (start..).zip(after).chain((0..).zip(before));
        numbered.filter(|(_, flow)| flow.is(state::OPEN) || flow.is(state::OVER))
    }

    /// The flow with this end, offered or open.
    pub fn flow_from(&self, address: Address) -> Option<&'static Flow> {
        let mut flows = self.record.flows().iter();
        // SAFETY: the lock is held.
        flows.find(|flow| !flow.is(state::FREE) && unsafe { flow.address() } == address)
    }

    /// Closes the gates: from here on everything comes through the kernel. Returns whether no writer is about to publish.
    pub fn close_gates(&self) -> bool {
        let mut is_quiet = true;
        for (_, flow) in self.open_flows() {
            if let Some(Segments { own, remote }) = flow.segments() {
                // SAFETY: the lock is held.
                let reader = unsafe { &mut flow.receiving().reader };
                reader.close(&own);
                is_quiet &= reader.is_quiet(&remote);
            }
        }
        is_quiet
    }

    /// Opens the gates, unless a thread sleeps in the kernel with the socket, or is about to.
    pub fn open_gates(&self) {
        // SeqCst: pairs with the addition in `readiness::Asleep::enter`, before which its thread takes this lock to close the
        // gates: it does so after this, or is counted here.
        if self.record.sleepers.load(Ordering::SeqCst) != 0 || self.record.never.load(Ordering::Relaxed) != 0
        {
            return;
        }
        for (_, flow) in self.open_flows() {
            if flow.is(state::OPEN)
                && let Some(segments) = flow.segments()
            {
                // SAFETY: the lock is held.
                let receiving = unsafe { flow.receiving() };
                if receiving.name.length != 0 {
                    receiving.reader.open(&segments.own);
                }
            }
        }
    }
}

impl SendingSide {
    fn talk(&mut self) -> &mut Talk {
        // SAFETY: the lock is held, and `self` is borrowed for as long as the reference is.
        unsafe { &mut *self.record.talk.get() }
    }

    /// The end that the socket is connected to.
    pub fn peer(&mut self) -> Option<Address> {
        self.talk().peer
    }

    /// The socket is connected to this end from here on.
    pub fn set_peer(&mut self, peer: Option<Address>) {
        self.talk().peer = peer;
    }

    /// The open flow to this end.
    #[inline(always)]
    pub fn flow_to(&self, address: Address) -> Option<&'static Flow> {
        let mut flows = self.record.flows().iter();
        // SAFETY: the lock is held.
        flows.find(|flow| flow.is(state::OPEN) && unsafe { flow.address() } == address)
    }

    /// A datagram went to this end, or came from there, through the kernel. Returns whether a flow is due to be offered.
    pub fn is_due(&mut self, address: Address) -> bool {
        let mut flows = self.record.flows().iter();
        // One that is over may have something to be received. The offer of another one waits for that.
        let is_meant = |flow: &Flow| flow.is(state::WAITING) || flow.is(state::OPEN);
        // SAFETY: the lock is held.
        let is_known = flows.any(|flow| is_meant(flow) && unsafe { flow.address() } == address);
        if is_known || !address.is_of_one() {
            return false;
        }
        let talk = self.talk();
        let due = policy::calls_min().saturating_mul(1 << talk.in_vain.min(DOUBLINGS_MAX));
        let known = talk.candidates.iter().position(|candidate| candidate.address == address);
        let place = known.unwrap_or(talk.next % CANDIDATES);
        if known.is_none() {
            talk.next = talk.next.wrapping_add(1);
        }
        let Some(candidate) = talk.candidates.get_mut(place) else { return false };
        if known.is_none() {
            *candidate = Candidate { address, datagrams: 0 };
        }
        candidate.datagrams = candidate.datagrams.saturating_add(1);
        let is_due = candidate.datagrams > due;
        if is_due {
            candidate.datagrams = 0;
        }
        is_due
    }

    /// An offer came to nothing: the next ones are made later.
    pub fn note_in_vain(&mut self) {
        let talk = self.talk();
        talk.in_vain = talk.in_vain.saturating_add(1);
    }
}

impl BothSides {
    /// A place for another flow with this end, which may have one that waits. `None`: there is one with this end.
    pub fn place(&mut self, address: Address) -> Option<(usize, &'static Flow)> {
        let record = self.sending.record;
        let mut flows = record.flows().iter();
        // SAFETY: both locks are held.
        if flows.any(|flow| !flow.is(state::FREE) && unsafe { flow.address() } == address) {
            return None;
        }
        let end = record.flows_end.load(Ordering::Relaxed) as usize;
        let free = record.flows().iter().position(|flow| flow.is(state::FREE));
        let slot = match free {
            Some(free) => free,
            None if end < FLOWS => {
                record.flows_end.store(end as u32 + 1, Ordering::Relaxed);
                end
            }
            None => {
                let talk = self.sending.talk();
                talk.next = talk.next.wrapping_add(1);
                let start = talk.next;
                let mut slots = (0..FLOWS).map(|step| (start + step) % FLOWS);
                slots.find(|slot| record.flows.get(*slot).is_some_and(|flow| flow.is(state::WAITING)))?
            }
        };
        record.flows.get(slot).map(|flow| (slot, flow))
    }

    /// The flow in this place.
    pub fn flow(&self, slot: usize) -> Option<&'static Flow> {
        self.sending.record.flows().get(slot)
    }
}

/// Returns whether a flow can be freed: it is over, and everything was received, or it was not used since this was asked
/// before, and `is_full`. Both locks are held.
pub fn is_done(flow: &Flow, is_full: bool) -> bool {
    let Some(Segments { own: _, remote }) = flow.segments() else { return false };
    // SAFETY: both locks are held.
    let next = unsafe { flow.receiving().reader.next(&RULES, &remote) };
    let is_empty = !matches!(next, Ok(Next::Due(_)));
    let is_over = flow.is(state::OVER) || RULES.is_over(&remote);
    let is_idle = is_full && flow.idle.swap(1, Ordering::Relaxed) != 0;
    is_empty && (is_over || is_idle)
}
