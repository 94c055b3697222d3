//! A connection between two ports: the state machine that the others are parts of.
//!
//! The owner passes every arriving packet to [`Connection::receive`]. After each batch, after each call of the program,
//! and at [`Connection::next_timeout_ns`], it calls [`Connection::transmit`] for the packets that have to leave.

mod incoming;
mod outgoing;
mod pieces;
mod resending;

use std::ops::{Range, RangeInclusive};

use crate::ack::Acknowledger;
use crate::congestion::Congestion;
use crate::congestion::cubic::Cubic;
use crate::datagrams::{self, Datagram};
use crate::frame::{FRAMES_MAX, LANES, Lane};
use crate::keys::{Secret, Security, Side};
use crate::pacing::{Pacer, Rate};
use crate::receiving::Receiving;
use crate::recovery::{Outcome, Recovery};
use crate::rtt::Rtt;
use crate::sealing::{Opener, Sealer};
use crate::sending::{Exhausted, Sending};
use crate::size::{BASE_BYTES, PacketSize};

/// The first of the library's own reasons to close.
pub const OWN_REASONS: u8 = 0xf0;
/// The peer has broken a rule.
const REASON_VIOLATION: u8 = 0xff;

/// The most bytes that leave in one burst, even after a long pause.
const BATCH_BYTES: u64 = 16 * 1024;
/// The number of unanswered probes after which packets are short, because long ones may vanish.
const PROBES_SHORT: u32 = 2;
/// The most pieces of lanes in one packet.
const PIECES_MAX: usize = 4;
/// A completely filled packet breaks no rule. It has an acknowledgement, a ping, credit, pieces and datagrams.
const _: () = assert!(2 + LANES.len() + PIECES_MAX + 2 * datagrams::WAITING_MAX <= FRAMES_MAX);

/// The parameters of a connection, some common to both ends and some of each end.
///
/// They can neither be copied nor used twice, because the secret cannot: two connections with one secret would seal
/// with one key.
#[derive(Debug)]
pub struct Options {
    /// Which end this is.
    pub side: Side,
    /// The protection of packets.
    pub security: Security,
    /// The secret that only the two ends know.
    pub secret: Secret,
    /// This end's number for the connection. Packets to this end have it.
    pub connection: u32,
    /// The other end's number.
    pub peer_connection: u32,
    /// The bytes that may wait at this end, by lane.
    pub windows: [u64; 3],
    /// The bytes that may wait at the other end at first, by lane.
    pub peer_windows: [u64; 3],
    /// The longest packet that the route carries, without the headers of IP and UDP.
    pub route_bytes: u16,
}

/// The result of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It was accepted.
    Taken,
    /// It does not belong to this connection.
    Unrecognized,
    /// It was accepted before, or may have been.
    Known,
    /// It is not authentic.
    Forged,
    /// There is no room for its contents. They will be sent again.
    NoRoom,
    /// The connection is closed.
    Closed,
    /// It breaks a rule, which ends the connection.
    Violation(Violation),
}

/// The rule that a peer has broken, in an authentic packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A packet has bytes that are not a frame, more than [`FRAMES_MAX`] frames, or two acknowledgements.
    #[error("a packet contains bytes that are not a frame, or too many frames")]
    Malformed,
    /// The peer sends beyond its credit.
    #[error("the peer sends beyond its credit")]
    BeyondCredit,
    /// The peer has consumed bytes that were never sent.
    #[error("the peer has taken bytes that were not sent")]
    TakenUnsent,
    /// The peer has acknowledged a packet that was never sent.
    #[error("the peer has acknowledged a packet that was not sent")]
    AcknowledgedUnsent,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is open.
    Open,
    /// It was closed here, for this reason.
    ClosedHere(u8),
    /// It was closed by the peer, for this reason.
    ClosedByPeer(u8),
    /// The peer has broken a rule.
    Broken(Violation),
}

/// Counts, for statistics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that were accepted.
    pub taken: u64,
    /// Duplicate packets.
    pub known: u64,
    /// Packets that were forged or damaged.
    pub forged: u64,
    /// Packets for which there was no room.
    pub no_room: u64,
    /// Packets that had only an acknowledgement.
    pub acks_alone: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Probes of a silent peer.
    pub probes: u64,
    /// Losses so long that the path's properties were forgotten.
    pub persistent: u64,
    /// Increases of the packet size.
    pub size_found: u64,
    /// Lost probes of a packet size.
    pub size_probes_lost: u64,
    /// Other lost packets that left before the peer was heard: it may have had no socket yet.
    pub early_lost: u64,
    /// Returns to short packets, because long ones vanished.
    pub black_holes: u64,
    /// Key changes of this end.
    pub key_updates: u64,
    /// Key changes of the peer.
    pub peer_key_updates: u64,
    /// Times when the congestion window held packets back.
    pub window_full: u64,
    /// Times when pacing held packets back.
    pub paced: u64,
    /// Times when the peer's credit held a lane back.
    pub credit_out: u64,
    /// Times when low bytes waited for high ones.
    pub low_held: u64,
    /// Datagrams that were dropped before they were sent.
    pub datagrams_dropped: u64,
    /// Incomplete datagrams that were dropped.
    pub datagrams_lost: u64,
    /// Times when the peer would not have remembered more packets.
    pub numbers_full: u64,
    /// Packets that were sent regardless of the window: probes, pings, and probes of a packet size.
    pub beyond_window: u64,
    /// Packets that were sent before the peer was heard, and again afterwards.
    pub unheard: u64,
    /// Acknowledgements that asked for an acknowledgement.
    pub acks_asking: u64,
    /// Repetitions of a close.
    pub close_repeats: u64,
}

impl Counts {
    /// Packets that the network lost, as far as this end knows. Probes of a packet size are meant to be lost.
    pub fn lost_on_the_way(&self) -> u64 {
        self.lost.saturating_sub(self.size_probes_lost + self.early_lost)
    }
}

/// Bytes of a lane in a packet.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    length: u16,
    lane: Lane,
}

impl Span {
    fn range(self) -> Range<u64> {
        self.start..self.start + u64::from(self.length)
    }
}

/// The contents of a packet that waits for its acknowledgement.
#[derive(Clone, Debug, Default)]
struct Content {
    pieces: [Option<Span>; PIECES_MAX],
    credit: [bool; 3],
    /// The newest packet that its acknowledgement names.
    acknowledges: Option<u64>,
    /// The packet size that it probes.
    size_probe: Option<u16>,
    elicits_ack: bool,
}

/// An acknowledgement that has arrived and is processed after the next packets have left.
#[derive(Clone, Debug)]
struct HeldAck {
    numbers: RangeInclusive<u64>,
    delay_us: u32,
    at_ns: u64,
    /// Had the window or pacing held something back when it arrived?
    was_held_back: bool,
}

/// One end of a connection. Each piece `B` of bytes is kept until the peer has it.
#[derive(Debug)]
pub struct Connection<B> {
    security: Security,
    /// This end's number for the connection, and the other end's.
    numbers: [u32; 2],
    state: State,
    sealer: Sealer,
    opener: Opener,
    acknowledger: Acknowledger,
    recovery: Recovery<Content>,
    congestion: Box<dyn Congestion + Send>,
    pacer: Pacer,
    size: PacketSize,
    sending: [Sending<B>; 3],
    receiving: [Receiving; 3],
    /// The packet with the newest credit of a lane.
    credit_numbers: [Option<u64>; 3],
    datagrams_out: datagrams::Outgoing,
    datagrams_in: datagrams::Incoming,
    outcome: Outcome<Content>,
    held_ack: Option<HeldAck>,
    /// The number of packets that leave regardless of the window.
    probes_due: u32,
    is_ping_due: bool,
    /// The program goes to sleep, so acknowledgements do not wait for other packets.
    is_sleepy: bool,
    is_close_due: bool,
    /// How often the close has been sent, and when it is sent again.
    closes: u32,
    close_at_ns: Option<u64>,
    /// Packets that arrived after the close.
    late_packets: u64,
    /// When the first packet of the peer arrived.
    heard_at_ns: Option<u64>,
    /// Consecutive packets that asked for no acknowledgement.
    quiet_packets: u32,
    /// The window or pacing held something back.
    is_held_back: bool,
    /// What was held back is leaving, or nothing was.
    is_in_burst: bool,
    /// When bytes of the high lane last moved.
    high_at_ns: Option<u64>,
    /// Bytes of the high lane have left since others have arrived.
    is_high_answered: bool,
    /// Once so many low bytes have been sent, they no longer wait for it.
    low_free_from: u64,
    counts: Counts,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// A connection whose peer is about to make its end. The first packet leaves at once, so that firewalls open.
    pub fn new(options: Options) -> Self {
        let Options { security, secret, side, connection, peer_connection, .. } = options;
        Self {
            security,
            numbers: [connection, peer_connection],
            state: State::Open,
            sealer: Sealer::new(security, &secret, side),
            opener: Opener::new(security, &secret, side.other()),
            acknowledger: Acknowledger::default(),
            recovery: Recovery::default(),
            congestion: Box::new(Cubic::new(BASE_BYTES.into())),
            pacer: Pacer::new(BATCH_BYTES),
            size: PacketSize::new(options.route_bytes),
            sending: options.peer_windows.map(Sending::new),
            receiving: options.windows.map(Receiving::new),
            credit_numbers: [None; 3],
            datagrams_out: datagrams::Outgoing::default(),
            datagrams_in: datagrams::Incoming::default(),
            outcome: Outcome::default(),
            held_ack: None,
            probes_due: 0,
            is_ping_due: true,
            is_sleepy: false,
            is_close_due: false,
            closes: 0,
            close_at_ns: None,
            late_packets: 0,
            heard_at_ns: None,
            quiet_packets: 0,
            is_held_back: false,
            is_in_burst: true,
            high_at_ns: None,
            is_high_answered: false,
            low_free_from: 0,
            counts: Counts::default(),
        }
    }

    /// Begins with what an earlier connection between the same machines knows of their path: the round-trip time, the congestion
    /// window and the packet size. The earlier one sends nothing any more.
    pub fn continue_path(&mut self, before: &mut Self) {
        self.recovery.set_rtt(*before.recovery.rtt());
        std::mem::swap(&mut self.congestion, &mut before.congestion);
        self.congestion.on_new_numbers();
        self.size = before.size.without_probe();
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The counts.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The round-trip time.
    pub fn rtt(&self) -> &Rtt {
        self.recovery.rtt()
    }

    /// The bytes in flight, and the window.
    pub fn flight(&self) -> (u64, u64) {
        (self.recovery.in_flight(), self.congestion.window())
    }

    /// The packet size.
    pub fn packet_bytes(&self) -> u16 {
        self.size.bytes()
    }

    /// Bytes of memory that wait for the program, or for missing bytes.
    pub fn memory_bytes(&self) -> usize {
        self.receiving.iter().map(Receiving::memory_bytes).sum()
    }

    /// Bytes of datagrams that wait for the program, or for missing pieces.
    pub fn datagram_bytes(&self) -> usize {
        self.datagrams_in.memory_bytes()
    }

    /// Adds bytes to a lane, and returns the offset after them.
    ///
    /// # Errors
    /// [`Exhausted`]: nothing was added.
    pub fn send(&mut self, lane: Lane, bytes: B) -> Result<u64, Exhausted> {
        self.sending[lane as usize].push(bytes)
    }

    /// Adds a datagram. `false`: it is dropped, because too many wait.
    pub fn send_datagram(&mut self, lane: Lane, bytes: &[u8]) -> bool {
        let is_taken = self.datagrams_out.push(lane, bytes);
        self.counts.datagrams_dropped += u64::from(!is_taken);
        is_taken
    }

    /// Is there room for one more datagram?
    pub fn has_datagram_room(&self, lane: Lane) -> bool {
        self.datagrams_out.has_room(lane)
    }

    /// Do so many datagrams wait for the program that those of another receive might find no room?
    pub fn is_behind(&self) -> bool {
        self.datagrams_in.is_behind()
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        self.is_ping_due = true;
    }

    /// Is there a piece of a lane that the peer has received completely?
    #[inline]
    pub fn has_free(&self, lane: Lane) -> bool {
        self.sending[lane as usize].has_free()
    }

    /// The oldest piece of a lane that the peer has received completely, and stays.
    #[inline]
    pub fn first_free(&self, lane: Lane) -> Option<&B> {
        self.sending[lane as usize].first_free()
    }

    /// The oldest piece of a lane that the peer has received completely.
    pub fn take_back(&mut self, lane: Lane) -> Option<B> {
        self.sending[lane as usize].take_back()
    }

    /// The offset before which the peer has received every byte of a lane.
    pub fn acknowledged(&self, lane: Lane) -> u64 {
        self.sending[lane as usize].acknowledged()
    }

    /// The offset before which the peer's program has consumed every byte of a lane.
    pub fn taken(&self, lane: Lane) -> u64 {
        self.sending[lane as usize].taken()
    }

    /// Has the peer acknowledged everything that was added?
    pub fn is_drained(&self) -> bool {
        self.datagrams_out.is_empty() && self.sending.iter().all(|lane| lane.acknowledged() == lane.end())
    }

    /// The bytes of a lane that the program can consume, in two parts.
    pub fn peek(&self, lane: Lane) -> (&[u8], &[u8]) {
        self.receiving[lane as usize].peek()
    }

    /// Consumes bytes of a lane, at most as many as [`Self::peek`] shows.
    pub fn take(&mut self, lane: Lane, bytes: u64) {
        self.receiving[lane as usize].take(bytes);
    }

    /// Notes that the peer waits for a report of consumed bytes. It is sent with the next packet, instead of after the next
    /// quarter of the window.
    pub fn request_credit_report(&mut self, lane: Lane) {
        self.receiving[lane as usize].credit().request_report();
    }

    /// Changes the number of bytes that may wait in a lane.
    pub fn set_window(&mut self, lane: Lane, bytes: u64) {
        self.receiving[lane as usize].credit().set_window(bytes);
    }

    /// Releases memory in which nothing waits.
    pub fn trim(&mut self) {
        self.receiving.iter_mut().for_each(Receiving::trim);
        self.recovery.trim();
        self.datagrams_in.trim();
        self.datagrams_out.trim();
    }

    /// The next datagram that has arrived.
    pub fn pop_datagram(&mut self) -> Option<Datagram> {
        self.datagrams_in.pop()
    }

    /// Notes that the program goes to sleep: the next [`Self::transmit`] acknowledges everything.
    pub fn before_sleep(&mut self) {
        self.is_sleepy = true;
    }

    /// Notes the longest packet that the route carries now, as the kernel reports it.
    pub fn set_route_bytes(&mut self, bytes: u16) {
        if self.size.set_limit(bytes) {
            self.congestion.set_packet_bytes(self.size.bytes().into());
        }
    }

    /// Changes how many packets one key seals. Tests use it.
    pub fn set_packets_per_key(&mut self, packets: u64) {
        self.sealer.set_packets_per_key(packets);
    }

    /// Ends the connection without waiting. Reasons from [`OWN_REASONS`] on are the library's.
    pub fn close(&mut self, reason: u8) {
        if self.state == State::Open {
            self.state = State::ClosedHere(reason);
            self.is_close_due = true;
        }
    }

    fn rate(&self) -> Rate {
        rate_of(&*self.congestion, self.recovery.rtt())
    }
}

fn rate_of(congestion: &(dyn Congestion + Send), rtt: &Rtt) -> Rate {
    Rate {
        window: congestion.window(),
        smoothed_ns: rtt.smoothed_ns(),
        is_slow_start: congestion.is_slow_start(),
    }
}
