//! One connection: the transfers under way with one peer of another machine, cut into the records of lanes.
//!
//! Whoever owns one passes it the packets that come ([`Connection::receive_packet`]), then takes what is in its lanes
//! ([`Connection::receive`], [`Connection::receive_reply`]), moves its own transfers on ([`Connection::advance`]) and asks
//! what has to leave ([`Connection::transmit`]). There is no socket here, no clock and no random number.

mod ending;
mod inbound;
mod incoming;
mod outbound;
mod outgoing;

use bywire_wire::connection::{self as packets, Receipt, State};
use bywire_wire::frame::Lane;
use bywire_wire::rtt::Rtt;

use crate::message::error::DisconnectReason;
use crate::message::peer::{Peer, PeerInfo, Priority};
use crate::message::resources::Resources;
use crate::message::share::ForeignUser;
use crate::message::transfers::Transfers;

use inbound::Inbound;
use outbound::{Outbound, Piece};

/// The longest message that needs no posted buffer, whatever its sender's geometry.
const SHORT_BYTES_MAX: u64 = 65_472;
/// A low lane through which much goes may have so many bytes waiting.
const LARGE_WINDOW_BYTES: u64 = 4 << 20;
/// How often a low lane's first window was filled before a large one pays.
const LARGE_WINDOW_LAPS: u64 = 8;

/// Everything that belongs to one peer. A bad peer breaks its own connection and nothing else.
pub(crate) struct Connection {
    pub peer: Peer,
    pub info: PeerInfo,
    pub transfers: Transfers,
    packets: packets::Connection<Piece>,
    /// What is on its way out, by lane.
    outbound: [Outbound; 3],
    /// What is coming in, by lane.
    inbound: [Inbound; 3],
    /// The longest message of ours that is copied at once and needs no posted buffer there.
    fragment_bytes: usize,
    /// The longest message that may be in an event's own value. It is less if the port takes only very short messages.
    inline_bytes_max: u16,
    stage: Stage,
    /// The port's count of polls when something last left at once.
    left_at_poll: Option<u32>,
    /// Does something wait that must not wait for the next poll?
    is_urgent: bool,
    /// Has a chunk become full since packets left last?
    is_full: bool,
    /// Since when packets have been under way without any packet from the peer.
    unanswered_since_ns: Option<u64>,
    /// The low lane's window at first, and whether it is large now.
    low_window_bytes: u64,
    has_large_window: bool,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// The peer has ended. What has arrived is still taken.
    Draining,
    /// This end has said good-bye, and goes on until what was sent is acknowledged. Nothing is taken.
    Leaving,
}

/// Everything that both ends know when a connection begins.
pub(crate) struct Meeting {
    pub info: PeerInfo,
    /// The peer's user, unless it is ours or root.
    pub foreign_user: Option<ForeignUser>,
    pub options: packets::Options,
    /// The longest message that this port takes.
    pub message_bytes_max: u64,
    /// The longest message of ours that is copied at once, of [`crate::Geometry`].
    pub fragment_bytes: u32,
}

pub(crate) fn lane_of(priority: Priority) -> Lane {
    match priority {
        Priority::Low => Lane::Low,
        Priority::High => Lane::High,
    }
}

/// Bytes that may wait here at first, by lane, as the option `geometry` says.
pub(crate) fn windows(geometry: &bywire_ring::geometry::Geometry) -> [u64; 3] {
    // A slot holds the head of a record, or a very short message whole.
    geometry.lanes.map(|lane| u64::from(lane.bulk_bytes) + 64 * u64::from(lane.slots))
}

impl Connection {
    pub fn new(peer: Peer, meeting: Meeting) -> Self {
        let Meeting { info, foreign_user, options, message_bytes_max, fragment_bytes } = meeting;
        let low_window_bytes = options.windows[Lane::Low as usize];
        Self {
            peer,
            info,
            transfers: Transfers::new(peer, foreign_user),
            packets: packets::Connection::new(options),
            outbound: Default::default(),
            inbound: Default::default(),
            fragment_bytes: fragment_bytes as usize,
            inline_bytes_max: message_bytes_max.min(bywire_ring::geometry::INLINE_BYTES as u64) as u16,
            stage: Stage::Open,
            left_at_poll: None,
            is_urgent: false,
            is_full: false,
            unanswered_since_ns: None,
            low_window_bytes,
            has_large_window: low_window_bytes >= LARGE_WINDOW_BYTES,
        }
    }

    /// Takes in one packet, whose bytes are opened in place, and reports what it completes. What is in the lanes then is
    /// taken by [`Self::receive`] and [`Self::receive_reply`]; [`Self::ended`] tells whether that was the last packet.
    pub fn receive_packet(&mut self, now_ns: u64, packet: &mut [u8], resources: &mut Resources) -> Receipt {
        let Self { packets, transfers, inbound, stage, .. } = self;
        let is_open = *stage == Stage::Open;
        let receipt = packets.receive_with(now_ns, packet, |lane, bytes| match is_open {
            true => inbound[lane as usize].place(lane, bytes, transfers, resources),
            false => 0,
        });
        if receipt == Receipt::Taken {
            self.unanswered_since_ns = None;
            self.take_back(resources);
            if self.stage == Stage::Leaving {
                // What waits for room still leaves. An error changes nothing: the port lingers for a bounded time.
                let _ = self.advance(resources);
            }
        }
        receipt
    }

    /// Is the connection over, as its packets say? The peer has closed it, or broken a rule.
    pub fn ended(&self) -> Option<DisconnectReason> {
        match self.packets.state() {
            State::Open | State::ClosedHere(_) => None,
            State::ClosedByPeer(_) => Some(DisconnectReason::Closed),
            State::Broken(_) => Some(DisconnectReason::Broken),
        }
    }

    /// When [`Self::transmit`] has something to do, if nothing comes before. It may have passed.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        if self.has_gathered() { Some(0) } else { self.packets.next_timeout_ns() }
    }

    /// Since when packets have been under way without any packet from the peer.
    pub fn unanswered_since_ns(&self) -> Option<u64> {
        self.unanswered_since_ns
    }

    /// The port goes to sleep: the next [`Self::transmit`] acknowledges everything.
    pub fn before_sleep(&mut self) {
        self.packets.before_sleep();
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        self.packets.ping();
    }

    /// The route carries packets up to this length now, as the kernel says.
    pub fn set_route_bytes(&mut self, bytes: u16) {
        self.packets.set_route_bytes(bytes);
    }

    /// Gives back memory in which nothing waits, as after a while without traffic.
    pub fn trim(&mut self) {
        self.packets.trim();
        self.outbound.iter_mut().for_each(Outbound::trim);
    }

    /// What has happened.
    pub fn counts(&self) -> &packets::Counts {
        self.packets.counts()
    }

    /// The round-trip time.
    pub fn rtt(&self) -> &Rtt {
        self.packets.rtt()
    }

    /// The length of packets.
    pub fn packet_bytes(&self) -> u16 {
        self.packets.packet_bytes()
    }

    /// Bytes in flight, and those that may be.
    pub fn flight(&self) -> (u64, u64) {
        self.packets.flight()
    }

    /// Bytes of memory that wait for the program, or for the peer. What is in the program's own memory is not counted.
    pub fn memory_bytes(&self) -> usize {
        let outbound = self.outbound.iter().map(Outbound::memory_bytes).sum::<usize>();
        let inbound = self.inbound.iter().map(Inbound::memory_bytes).sum::<usize>();
        self.packets.memory_bytes() + outbound + inbound
    }

    /// Would a large window pay? Much of what the peer sends has gone through the small one.
    pub fn wants_large_window(&self) -> bool {
        !self.has_large_window
            && self.inbound[Lane::Low as usize].taken >= LARGE_WINDOW_LAPS * self.low_window_bytes
    }

    /// Lets more low bytes of the peer wait.
    pub fn open_large_window(&mut self) {
        self.packets.set_window(Lane::Low, LARGE_WINDOW_BYTES);
        self.has_large_window = true;
    }

    /// Does this peer count among those that have a large window?
    pub fn has_large_window(&self) -> bool {
        self.has_large_window && self.low_window_bytes < LARGE_WINDOW_BYTES
    }
}
