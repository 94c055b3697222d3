//! One connection: the transfers under way with one peer of another machine, cut into the records of lanes.
//!
//! The owner passes arriving packets to [`Connection::receive_packet`], takes the contents of the lanes by
//! [`Connection::receive`] and [`Connection::receive_reply`], advances its own transfers by [`Connection::advance`],
//! and gets the packets that have to leave from [`Connection::transmit`]. There is no socket, clock or random number
//! here.

mod ending;
mod inbound;
mod incoming;
mod outbound;
mod outgoing;

use bywire_wire::connection::{self as packets, Receipt, State};
use bywire_wire::frame::{LANES, Lane};

use crate::message::error::DisconnectReason;
use crate::message::options::PortOptions;
use crate::message::peer::{Peer, PeerInfo, Priority};
use crate::message::resources::Resources;
use crate::message::share::OtherUser;
use crate::message::transfers::Transfers;

use inbound::Inbound;
use outbound::{Outbound, Piece};

/// So many of the longest messages that are copied at once fit into the first window of the high lane.
const WINDOW_MESSAGES: u64 = 4;
/// The bytes that may wait in a low lane with much traffic.
const LARGE_WINDOW_BYTES: u64 = 4 << 20;
/// How many times a low lane's first window must have been used before a large one is worth its memory.
const LARGE_WINDOW_LAPS: u64 = 8;

/// Everything that belongs to one peer. A bad peer breaks its own connection and nothing else.
pub(crate) struct Connection {
    pub peer: Peer,
    pub info: PeerInfo,
    pub transfers: Transfers,
    packets: packets::Connection<Piece>,
    /// The outgoing side of each lane.
    outbound: [Outbound; 3],
    /// The incoming side of each lane.
    inbound: [Inbound; 3],
    /// The longest datagram of this end, and its longest transfer that is copied.
    fragment_bytes: usize,
    /// Its longest message that is copied at once and needs no posted buffer at the peer.
    short_bytes: usize,
    stage: Stage,
    /// The port's count of polls when packets last left at once.
    left_at_poll: Option<u32>,
    /// Is there something that must not wait for the next poll?
    is_urgent: bool,
    /// The bytes that were added since packets last left, and how many make packets leave.
    unsent_bytes: usize,
    batch_bytes: usize,
    /// Was the last message refused because the lane was full?
    was_full: bool,
    /// Since when packets have been under way without any packet from the peer.
    unanswered_since_ns: Option<u64>,
    /// The first window of the low lane, and whether it is large now.
    low_window_bytes: u64,
    has_large_window: bool,
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// The peer has ended. Data that has arrived is still received.
    Draining,
    /// This end has closed, and continues until everything is acknowledged. Nothing is received.
    Leaving,
}

/// The parameters that both ends know when a connection begins.
pub(crate) struct Setup {
    pub info: PeerInfo,
    /// The peer's user, unless it is ours or root.
    pub other_user: Option<OtherUser>,
    pub options: packets::Options,
    /// Of this end, from [`crate::Geometry`].
    pub fragment_bytes: u32,
    /// Of this end, from [`crate::PortOptions`].
    pub remote_fragment_bytes: u32,
}

pub(crate) fn lane_of(priority: Priority) -> Lane {
    match priority {
        Priority::Low => Lane::Low,
        Priority::High => Lane::High,
    }
}

/// The bytes that may wait here at first, by lane.
pub(crate) fn windows(options: &PortOptions) -> [u64; 3] {
    // A slot holds the head of a record, or a very short message completely.
    let mut windows =
        options.geometry.lanes.map(|lane| u64::from(lane.bulk_bytes) + 64 * u64::from(lane.slots));
    let high = &mut windows[Lane::High as usize];
    *high = (*high).max(WINDOW_MESSAGES * u64::from(options.remote_fragment_bytes));
    windows
}

impl Connection {
    pub fn new(peer: Peer, setup: Setup) -> Self {
        let Setup { info, other_user, options, fragment_bytes, remote_fragment_bytes } = setup;
        let low_window_bytes = options.windows[Lane::Low as usize];
        Self {
            peer,
            info,
            transfers: Transfers::new(peer, other_user),
            packets: packets::Connection::new(options),
            outbound: Default::default(),
            inbound: Default::default(),
            fragment_bytes: fragment_bytes as usize,
            short_bytes: fragment_bytes.max(remote_fragment_bytes) as usize,
            stage: Stage::Open,
            left_at_poll: None,
            is_urgent: false,
            unsent_bytes: 0,
            batch_bytes: 0,
            was_full: false,
            unanswered_since_ns: None,
            low_window_bytes,
            has_large_window: low_window_bytes >= LARGE_WINDOW_BYTES,
        }
    }

    /// Processes one packet, which is decrypted in place, and reports what it completes. [`Self::receive`] and
    /// [`Self::receive_reply`] take what is in the lanes afterwards. [`Self::ended`] tells whether it was the last
    /// packet.
    pub fn receive_packet(&mut self, now_ns: u64, packet: &mut [u8], resources: &mut Resources) -> Receipt {
        let Self { packets, transfers, inbound, outbound, stage, .. } = self;
        let is_open = *stage == Stage::Open;
        let place = |lane: Lane, bytes: &[u8]| match is_open {
            true => inbound[lane as usize].place(lane, bytes, transfers, resources),
            false => 0,
        };
        // An acknowledgement that returns memory is not held.
        let may_hold = is_open && outbound.iter().all(|outbound| outbound.lent == 0);
        let receipt = match may_hold {
            true => packets.receive_and_hold(now_ns, packet, place),
            false => packets.receive_with(now_ns, packet, place),
        };
        if receipt == Receipt::Taken {
            self.unanswered_since_ns = None;
            self.take_back(resources);
            if self.stage == Stage::Leaving {
                // Gathered data still leaves. An error changes nothing, because the port lingers for a bounded time.
                let _ = self.advance(resources);
            }
        }
        receipt
    }

    /// Does what can wait until the packets of [`Self::transmit`] have left.
    pub fn settle(&mut self) {
        self.packets.settle();
        // The next packet then finds nothing to return. Its message may be an answer that the program waits for.
        LANES.into_iter().for_each(|lane| self.take_copies_back(lane));
    }

    /// Have packets ended the connection? The peer has closed it, or has broken a rule.
    pub fn ended(&self) -> Option<DisconnectReason> {
        match self.packets.state() {
            State::Open | State::ClosedHere(_) => None,
            State::ClosedByPeer(_) => Some(DisconnectReason::Closed),
            State::Broken(_) => Some(DisconnectReason::Broken),
        }
    }

    /// When [`Self::transmit`] has work to do, unless something comes before. This time may have passed.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        if self.has_gathered() { Some(0) } else { self.packets.next_timeout_ns() }
    }

    /// Since when packets have been under way without any packet from the peer.
    pub fn unanswered_since_ns(&self) -> Option<u64> {
        self.unanswered_since_ns
    }

    /// Notes that the port goes to sleep: the next [`Self::transmit`] acknowledges everything.
    pub fn before_sleep(&mut self) {
        self.packets.before_sleep();
    }

    /// Has a complete datagram arrived?
    pub fn has_datagram(&self) -> bool {
        self.packets.has_datagram()
    }

    /// Do so many datagrams wait for the program that those of another receive might find no room?
    pub fn is_behind(&self) -> bool {
        self.packets.is_behind()
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        self.packets.ping();
    }

    /// Notes the longest packet that the route carries now, as the kernel reports it.
    pub fn set_route_bytes(&mut self, bytes: u16) {
        self.packets.set_route_bytes(bytes);
    }

    /// Releases memory in which nothing waits, after a while without traffic.
    pub fn trim(&mut self) {
        self.packets.trim();
        self.outbound.iter_mut().for_each(Outbound::trim);
    }

    /// The counts.
    pub fn counts(&self) -> &packets::Counts {
        self.packets.counts()
    }

    /// The packet size.
    pub fn packet_bytes(&self) -> u16 {
        self.packets.packet_bytes()
    }

    /// The bytes in flight, and the window.
    pub fn flight(&self) -> (u64, u64) {
        self.packets.flight()
    }

    /// Bytes of memory that wait for the program or for the peer. The program's own memory is not counted.
    pub fn memory_bytes(&self) -> usize {
        let outbound = self.outbound.iter().map(Outbound::memory_bytes).sum::<usize>();
        let inbound = self.inbound.iter().map(Inbound::memory_bytes).sum::<usize>();
        self.packets.memory_bytes() + outbound + inbound
    }

    /// Is a large window worth its memory? Then much of the peer's data has passed through the small one.
    pub fn wants_large_window(&self) -> bool {
        !self.has_large_window
            && self.inbound[Lane::Low as usize].taken >= LARGE_WINDOW_LAPS * self.low_window_bytes
    }

    /// Enlarges the peer's low window.
    pub fn open_large_window(&mut self) {
        self.packets.set_window(Lane::Low, LARGE_WINDOW_BYTES);
        self.has_large_window = true;
    }

    /// Does this peer count as one with a large window?
    pub fn has_large_window(&self) -> bool {
        self.has_large_window && self.low_window_bytes < LARGE_WINDOW_BYTES
    }
}
