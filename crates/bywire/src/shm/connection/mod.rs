//! One connection: the transfers under way with one peer of this machine, and the lanes that carry them.

mod incoming;
mod lending;
mod outgoing;
mod window;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bywire_ring::geometry::{Geometry, INLINE_BYTES, LARGE_WINDOW_BYTES, LaneName};
use bywire_ring::header::Header;
use bywire_ring::memory::Shared;
use bywire_sys::fork::ForkGuard;
use bywire_sys::socket::Socket;
use bywire_sys::wake;

use crate::message::error::DisconnectReason;
use crate::message::lend::{LenderHeap, Returns};
use crate::message::peer::{Peer, PeerInfo, Priority};
use crate::message::resources::Resources;
use crate::message::share::OtherUser;
use crate::message::transfers::Transfers;
use crate::shm::handshake::Packet;
use crate::shm::lanes::{Ends, Lanes, lane_of};
use crate::shm::record::RunningChecksum;

/// Everything that belongs to one peer. A bad peer breaks its own connection and nothing else.
pub(crate) struct Connection {
    pub peer: Peer,
    pub info: PeerInfo,
    /// Becomes readable when the peer's process ends. `None` where the kernel could not provide it.
    pub process: Option<OwnedFd>,
    /// The peer's user, unless it is ours or root.
    pub other_user: Option<u32>,
    pub transfers: Transfers,
    lanes: Lanes,
    /// The fragment at the head of each lane, if its copying has paused.
    paused: [Option<Paused>; 2],
    /// Was the next fragment begun, and put aside for something urgent?
    is_put_aside: [bool; 2],
    window: Window,
    /// The memory of the peer's large window, until the record that moves there arrives.
    window_offered: Option<Shared>,
    heaps_lent: Vec<LentHeap>,
    heaps_borrowed: Vec<BorrowedHeap>,
    /// Borrowed blocks that are done with, by heap and block, and still to be returned to the lender.
    blocks_to_return: VecDeque<(u32, u32)>,
    /// Blocks of ours that the peer holds.
    blocks_out: u32,
    /// Where borrowed blocks wait until the port returns them.
    returns: Arc<Returns>,
    guard: Arc<ForkGuard>,
    /// The longest message within a slot. It is less than a slot holds if the port takes only very short messages.
    inline_bytes_max: u16,
}

/// A fragment that has been copied in part.
struct Paused {
    /// Its header, which must not change between two steps.
    header: Header,
    copied: usize,
    /// The check of the copied part of a put: others may write the region meanwhile.
    sum: RunningChecksum,
}

/// A heap of ours, and which of its blocks the peer holds.
struct LentHeap {
    shared: Arc<LenderHeap>,
    lent: Vec<bool>,
}

/// A heap of the peer's, and which of its blocks we hold.
struct BorrowedHeap {
    memory: Shared,
    block_bytes: usize,
    held: Vec<bool>,
}

/// Where the payloads of the low lane that we write are.
#[derive(Debug)]
enum Window {
    /// In the segment, as at first.
    Small,
    /// In the segment. The peer has been sent the descriptor of this memory. The record that moves there is still to
    /// be pushed.
    Offered(Shared),
    /// In a bulk area of its own.
    Large,
    /// In the segment for good: there was no memory or no room in the socket, or the segment's bulk area is as large.
    SmallForGood,
}

/// What both ends have exchanged when a connection begins.
pub(crate) struct Setup {
    pub info: PeerInfo,
    /// The peer's user.
    pub uid: u32,
    pub socket: Socket,
    pub process: Option<OwnedFd>,
    pub outbound: Shared,
    pub inbound: Shared,
    pub page: Shared,
    pub doorbell: wake::Ringer,
    pub own_geometry: Geometry,
    pub peer_geometry: Geometry,
    /// The longest message that this port takes.
    pub message_bytes_max: u64,
    pub returns: Arc<Returns>,
    pub guard: Arc<ForkGuard>,
}

impl Window {
    fn new(geometry: Geometry) -> Self {
        let segment_bytes = geometry.lanes[LaneName::Low as usize].bulk_bytes as usize;
        if segment_bytes < LARGE_WINDOW_BYTES { Self::Small } else { Self::SmallForGood }
    }
}

impl Connection {
    pub fn new(peer: Peer, setup: Setup) -> Self {
        let Setup { info, socket, process, outbound, inbound, page, doorbell, .. } = setup;
        let Setup { uid, own_geometry, peer_geometry, returns, guard, .. } = setup;
        let integrity = info.integrity;
        let other_user = (!is_own_or_root(uid)).then_some(uid);
        let ends =
            Ends { socket, outbound, inbound, page, doorbell, own_geometry, peer_geometry, integrity, uid };
        Self {
            peer,
            info,
            process,
            other_user,
            transfers: Transfers::new(peer, other_user.map(OtherUser::Local)),
            lanes: Lanes::new(ends),
            paused: [None, None],
            is_put_aside: [false; 2],
            window: Window::new(own_geometry),
            window_offered: None,
            heaps_lent: Vec::new(),
            heaps_borrowed: Vec::new(),
            blocks_to_return: VecDeque::new(),
            blocks_out: 0,
            returns,
            guard,
            inline_bytes_max: setup.message_bytes_max.min(INLINE_BYTES as u64) as u16,
        }
    }

    pub fn socket(&self) -> &Socket {
        self.lanes.socket()
    }

    /// The longest payload of one record.
    pub fn fragment_bytes(&self) -> usize {
        self.lanes.fragment_bytes()
    }

    /// Is there anything that `advance` may have to do later?
    pub fn has_work(&self) -> bool {
        !self.blocks_to_return.is_empty() || self.transfers.has_work()
    }

    /// Can the reply lane hold a record for us?
    #[inline(always)]
    pub fn expects_replies(&self) -> bool {
        self.blocks_out > 0 || self.transfers.awaits_answers()
    }

    /// Would a poll find something to do here? Asked once more between arming and sleeping.
    pub fn is_ready(&mut self, resources: &Resources) -> bool {
        self.has_input(resources) || self.can_advance()
    }

    /// Could a record be taken now? A broken lane counts: the poll finds out.
    #[inline(always)]
    pub fn has_input(&self, resources: &Resources) -> bool {
        [Priority::High, Priority::Low].into_iter().any(|priority| {
            self.lanes.has_record(lane_of(priority)) && !self.transfers.is_held_up(priority, resources)
        }) || (self.expects_replies() && self.lanes.has_record(LaneName::Reply))
    }

    /// May a copy on this lane pause for a message of high priority? Not if that message itself waits for a buffer.
    #[inline(always)]
    fn may_pause(&self, lane: LaneName, resources: &Resources) -> bool {
        lane == LaneName::Low && !self.transfers.is_held_up(Priority::High, resources)
    }

    /// Notes that the peer has ended: from now on, only records that it had published are taken.
    pub fn begin_draining(&mut self) {
        self.lanes.begin_draining();
    }

    /// Says good-bye. Answers that are owed go first, as far as there is room for them.
    pub fn begin_close(&mut self, resources: &mut Resources) {
        // Only short answers, each once: a get's data could go on for as long as the peer likes.
        self.transfers.keep_short_replies();
        while matches!(self.advance_replies(resources), Ok(true)) {}
        // A peer whose socket is full notices our end anyway.
        let _ = self.socket().send(&Packet::Goodbye.to_bytes(), &[]);
    }

    /// Ends every transfer under way, and hands its memory back in events.
    pub fn give_up(&mut self, reason: DisconnectReason, resources: &mut Resources) {
        self.transfers.give_up(reason, resources);
        self.take_all_blocks_back();
    }
}

/// Is a user ours, or root, which could do anything to us?
pub(crate) fn is_own_or_root(uid: u32) -> bool {
    uid == bywire_sys::process::user() || uid == 0
}
