//! One connection: both directions of rings towards one peer, and what is under way on them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bywire_ring::doorbell;
use bywire_ring::geometry::{BUSY_BULK_BYTES, Geometry, INLINE_BYTES, LANES, LaneName};
use bywire_ring::lane::{Consumer, Corrupt, Horizon, Producer, PushError};
use bywire_ring::memory::Shared;
use bywire_sys::socket::Socket;
use bywire_sys::wake;

use crate::buffer::Buffer;
use crate::error::{Gone, TransferError};
use crate::event::Event;
use crate::heap::LenderHeap;
use crate::incoming::Incoming;
use crate::outgoing::{Outgoing, Reply, Undelivered, Waiting, What};
use crate::peer::{Peer, PeerInfo, Priority, TransferId};
use crate::resources::Resources;

/// Everything that belongs to one peer. A bad peer breaks its own connection and nothing else.
pub(crate) struct Connection {
    pub peer: Peer,
    pub info: PeerInfo,
    pub socket: Socket,
    /// Becomes readable when the peer's process ends; absent where the kernel could not name it.
    pub process: Option<OwnedFd>,
    /// The segment that we write.
    pub outbound: Shared,
    /// The segment that the peer writes.
    pub inbound: Shared,
    pub producers: [Producer; 3],
    pub consumers: [Consumer; 3],
    pub fragment_bytes: usize,
    /// The peer's, as it announced it: every longer message of its takes a posted buffer, and no other one does.
    pub peer_fragment_bytes: usize,
    pub integrity: bool,
    pub incoming: [Incoming; 2],
    pub outgoing: [VecDeque<Outgoing>; 2],
    /// A send found no room, and the program is to be told when there is some.
    pub starved: [bool; 2],
    pub undelivered: [VecDeque<Undelivered>; 2],
    /// Puts and gets that wait for the peer's answer, by transfer number.
    pub waiting: Vec<Option<Waiting>>,
    pub replies: VecDeque<Reply>,
    pub busy: Busy,
    /// The peer's busy bulk area, until the record that moves there.
    pub bulk_offered: Option<Shared>,
    pub heaps_lent: Vec<LentHeap>,
    pub heaps_borrowed: Vec<BorrowedHeap>,
    /// The peer has ended, and what it left in the rings is being taken: how far each lane had come.
    pub draining: Option<[Horizon; 3]>,
    /// The longest message within a slot, which matters where the port takes only very short ones.
    pub inline_bytes_max: u16,
    /// Its user, unless that is ours or root.
    pub foreign_user: Option<u32>,
    /// Keys that were tried and never given out.
    pub guesses: u32,
    /// Blocks of ours that the peer holds.
    pub blocks_out: u32,
    page: Shared,
    bell: wake::Ringer,
    /// Is its bell rung, or is it woken by its socket?
    has_safe_bell: bool,
    ringer: doorbell::Ringer,
}

/// A heap of ours, and which of its blocks the peer holds.
pub(crate) struct LentHeap {
    pub shared: Arc<LenderHeap>,
    pub lent: Vec<bool>,
}

/// A heap of the peer's, and which of its blocks we hold.
pub(crate) struct BorrowedHeap {
    pub memory: Shared,
    pub block_bytes: usize,
    pub held: Vec<bool>,
}

/// What both ends have exchanged when a connection begins.
pub(crate) struct Meeting {
    pub info: PeerInfo,
    pub socket: Socket,
    pub process: Option<OwnedFd>,
    pub outbound: Shared,
    pub inbound: Shared,
    pub page: Shared,
    pub bell: wake::Ringer,
    pub own_geometry: Geometry,
    pub peer_geometry: Geometry,
    /// The longest message that we take.
    pub message_bytes_max: u64,
}

/// Where the lane of low priority that we write has its payloads.
#[derive(Debug)]
pub(crate) enum Busy {
    /// In the segment, as at the beginning.
    No,
    /// The peer has been sent the descriptor of this; the record that moves there is still to be pushed.
    Offered(Shared),
    /// In a bulk area of its own.
    Yes,
    /// In the segment for good: there was no memory, no room in the socket, or as much in the segment already.
    Never,
}

impl Busy {
    fn new(geometry: Geometry) -> Self {
        let segment_bytes = geometry.lanes[LaneName::Low as usize].bulk_bytes as usize;
        if segment_bytes < BUSY_BULK_BYTES { Self::No } else { Self::Never }
    }
}

/// What one step of a connection came to.
pub(crate) enum Step {
    Nothing,
    /// Something moved, but nothing to report yet.
    Progress,
    Event(Event),
}

pub(crate) fn lane_of(priority: Priority) -> LaneName {
    match priority {
        Priority::Low => LaneName::Low,
        Priority::High => LaneName::High,
    }
}

impl From<Corrupt> for Gone {
    fn from(_: Corrupt) -> Self {
        Self::Broken
    }
}

impl Connection {
    pub fn new(peer: Peer, meeting: Meeting) -> Self {
        let uid = meeting.info.uid;
        Self {
            peer,
            integrity: meeting.info.integrity,
            info: meeting.info,
            socket: meeting.socket,
            process: meeting.process,
            outbound: meeting.outbound,
            inbound: meeting.inbound,
            producers: LANES.map(|lane| Producer::new(meeting.own_geometry.lane(lane))),
            consumers: LANES.map(|lane| Consumer::new(meeting.peer_geometry.lane(lane))),
            fragment_bytes: meeting.own_geometry.fragment_bytes as usize,
            peer_fragment_bytes: meeting.peer_geometry.fragment_bytes as usize,
            incoming: Default::default(),
            outgoing: Default::default(),
            starved: [false; 2],
            undelivered: Default::default(),
            waiting: Vec::new(),
            replies: VecDeque::new(),
            busy: Busy::new(meeting.own_geometry),
            bulk_offered: None,
            heaps_lent: Vec::new(),
            heaps_borrowed: Vec::new(),
            draining: None,
            inline_bytes_max: meeting.message_bytes_max.min(INLINE_BYTES as u64) as u16,
            foreign_user: (!is_family(uid)).then_some(uid),
            guesses: 0,
            blocks_out: 0,
            page: meeting.page,
            bell: meeting.bell,
            // Asked once: a program that becomes another user later could have been held up by this peer while
            // it was the first one just as well.
            has_safe_bell: uid == bywire_sys::process::user() && wake::Bell::is_safe(),
            ringer: doorbell::Ringer::default(),
        }
    }

    /// How many heaps the peer shares with us, and how many bytes.
    pub fn borrowed(&self) -> (usize, u64) {
        let bytes = self.heaps_borrowed.iter().map(|heap| heap.memory.length_bytes() as u64).sum();
        (self.heaps_borrowed.len(), bytes)
    }

    /// Is there anything that `advance` may have to do later?
    pub fn has_work(&self) -> bool {
        !self.replies.is_empty()
            || self.starved != [false; 2]
            || self.outgoing.iter().any(|queue| !queue.is_empty())
            || self.undelivered.iter().any(|queue| !queue.is_empty())
    }

    /// Can the reply lane hold anything that is for us?
    #[inline(always)]
    pub fn expects_replies(&self) -> bool {
        self.blocks_out > 0 || !self.waiting.is_empty()
    }

    /// Would a poll find something to do here? Asked once more between arming and sleeping.
    pub fn is_ready(&mut self, resources: &Resources) -> bool {
        self.has_input(resources) || self.can_advance()
    }

    /// Is there a record that could be taken now? A broken lane counts: the poll finds out.
    #[inline(always)]
    pub fn has_input(&self, resources: &Resources) -> bool {
        [Priority::High, Priority::Low].into_iter().any(|priority| {
            let record = self.consumers[lane_of(priority) as usize].peek(&self.inbound);
            !matches!(record, Ok(None)) && !self.is_held_up(priority, resources)
        }) || (self.expects_replies()
            && !matches!(self.consumers[LaneName::Reply as usize].peek(&self.inbound), Ok(None)))
    }

    #[inline(always)]
    pub fn ring_for_records(&mut self) {
        if self.ringer.must_ring_for_records(&self.page) {
            self.ring();
        }
    }

    #[inline(always)]
    pub fn ring_for_credit(&mut self) {
        if self.ringer.must_ring_for_credit(&self.page) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // A bell is faster, but its owner can hold up whoever rings it (by a write from memory whose page
        // fault never ends). Of our own user that is no worse than what a debugger could do.
        if self.has_safe_bell {
            self.bell.ring();
        } else {
            // A full socket means that the peer has been woken often enough.
            let _ = self.socket.send(&crate::handshake::Packet::Wake.to_bytes(), &[]);
        }
    }

    /// The peer has ended: from now on what it had published is taken, and no more.
    pub fn begin_draining(&mut self) {
        self.draining = Some(std::array::from_fn(|lane| self.consumers[lane].horizon()));
    }

    /// Says good-bye: answers that are owed go first, as far as there is room for them.
    pub fn take_leave(&mut self, resources: &mut Resources) {
        // Short ones, and each once: a get's data could go on for as long as the peer likes.
        self.replies.retain(|reply| !matches!(reply, Reply::Data { .. }));
        while matches!(self.advance_replies(resources), Ok(true)) {}
        // A peer whose socket is full notices our end all the same.
        let _ = self.socket.send(&crate::handshake::Packet::Goodbye.to_bytes(), &[]);
    }

    /// Ends everything that is under way and hands its memory back, as events.
    pub fn give_up(&mut self, reason: Gone, resources: &mut Resources) {
        let failed = Err(TransferError::Disconnected(reason));
        for priority in [Priority::Low, Priority::High] {
            let undelivered = self.undelivered[priority as usize].drain(..);
            for entry in undelivered {
                resources
                    .complete(Event::Sent { id: entry.id, buffer: entry.buffer, result: failed }, priority);
            }
            for entry in self.outgoing[priority as usize].drain(..) {
                // A put under way stands in both tables; it is completed once.
                if let What::Put { transfer, .. } = entry.what
                    && let Some(waiting) = self.waiting.get_mut(transfer as usize)
                {
                    *waiting = None;
                }
                if let Some(event) = entry.failed(failed) {
                    resources.complete(event, priority);
                }
            }
            if let Some(buffer) = self.incoming[priority as usize].take_buffer() {
                resources.release(priority, self.foreign_user);
                resources.post(priority, buffer);
            }
        }
        for entry in self.waiting.drain(..).flatten() {
            let priority = entry.priority;
            resources.complete(entry.finished(failed), priority);
        }
        for heap in &mut self.heaps_lent {
            for (block, lent) in heap.lent.iter_mut().enumerate() {
                if std::mem::take(lent) {
                    heap.shared.give_back(block as u32);
                }
            }
        }
    }
}

/// Is a user ours, or root: one that could do to us whatever it likes?
pub(crate) fn is_family(uid: u32) -> bool {
    uid == bywire_sys::process::user() || uid == 0
}

/// Is there a message of high priority?
#[inline(always)]
pub(crate) fn has_urgent_input(consumers: &[Consumer; 3], inbound: &Shared) -> bool {
    !matches!(consumers[LaneName::High as usize].peek(inbound), Ok(None))
}

/// Turns a push that found no room into `false`, and a broken ring into the end of the connection.
#[inline(always)]
pub(crate) fn pushed(result: Result<(), PushError>) -> Result<bool, Gone> {
    match result {
        Ok(()) => Ok(true),
        Err(PushError::Full) => Ok(false),
        Err(PushError::Corrupt) => Err(Gone::Broken),
    }
}

/// A transfer's number in the `waiting` table: the first free one.
pub(crate) fn insert_waiting(table: &mut Vec<Option<Waiting>>, entry: Waiting) -> u32 {
    let index = table.iter().position(Option::is_none).unwrap_or(table.len());
    if index == table.len() {
        table.push(Some(entry));
    } else {
        table[index] = Some(entry);
    }
    index as u32
}

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferKind {
    Get,
    Put,
    Send,
}

impl TransferKind {
    pub fn event(self, id: TransferId, buffer: Buffer, result: Result<(), TransferError>) -> Event {
        match self {
            Self::Get => Event::Got { id, buffer, result },
            Self::Put => Event::Put { id, buffer, result },
            Self::Send => Event::Sent { id, buffer, result },
        }
    }
}
