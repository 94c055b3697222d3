//! Departing packets.

use crate::batch::Batch;
use crate::frame::{Frame, LANE_FRAME_BYTES, LANES, Lane, Payload};
use crate::packet::{HEADER_BYTES, Header, PacketKind};
use crate::planted::{self, Bug};
use crate::receiving::Receiving;
use crate::recovery::Timeout;
use crate::sending::Sending;
use crate::size::BASE_BYTES;

use super::incoming::reason_of;
use super::{Connection, Content, PROBES_SHORT, Span, State, rate_of};

/// The most new bytes of the low lane in flight while high bytes move. The queue at the receiver is what delays a high
/// message.
const LOW_BYTES_BESIDE_HIGH: u64 = 16 * 1024;
/// How long high bytes count as moving, …
const HIGH_RECENT_NS: u64 = 2_000_000;
/// … and how many low bytes may leave meanwhile. A program that sends a short message before each long one waits for the long ones.
/// One that exchanges short messages back to back moves high bytes more often, so low ones stay held back. One that sends a short
/// message now and then, such as every 200 µs, does not: its message waits behind what has left (docs/notebook/links.md).
const HIGH_RECENT_BYTES: u64 = 64 * 1024;
/// The least length of a piece of a lane that is cut for lack of room.
const PIECE_BYTES_MIN: usize = 32;
/// The number of consecutive packets that ask for no acknowledgement. The next one asks for one, so that this end
/// learns that its own acknowledgements arrive and stops repeating them.
const QUIET_MAX: u32 = 64;
/// How often a close is sent, at doubling intervals, unless the peer answers.
const CLOSES_MAX: u32 = 8;

/// From this many bytes in flight on, no more leave while a round trip takes [`QUEUE_RTT_RATIO`] times as long as the shortest
/// one, …
const QUEUE_BYTES: u64 = 512 * 1024;
/// … because most of them wait at the receiver. A longer queue would only push them out of the caches.
const QUEUE_RTT_RATIO: u64 = 4;
/// Only for a connection that moves a byte in this time, or in less. Slower ones may share their path with others, whose queues
/// make the round trip longer.
const QUEUE_BYTE_NS: u64 = 1;

/// A packet with this much room holds everything that may leave now.
const ROOM_BYTES_MIN: usize = 128;

/// What a packet could carry, whatever the window permits.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// Has it something, by lane? The low one may have to wait for the high one.
    lanes: [bool; LANES.len()],
    is_low_free: bool,
    has_datagrams: bool,
    has_credit: bool,
}

impl Due {
    fn is_any(self) -> bool {
        let [reply, high, low] = self.lanes;
        reply || high || low && self.is_low_free || self.has_datagrams || self.has_credit
    }
}

/// The result of an attempt to add a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    /// None has to leave.
    Nothing,
    /// It has everything that may leave now.
    All,
    /// It is full, so there may be more.
    Full,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// Adds the packets that have to leave by now to a batch. If the batch is full, there may be more. [`Self::settle`]
    /// follows when they have left.
    pub fn transmit(&mut self, now_ns: u64, batch: &mut Batch) {
        if self.state != State::Open {
            self.transmit_close(now_ns, batch);
            return;
        }
        self.look_at_time(now_ns);
        let was_held_back = std::mem::take(&mut self.is_held_back);
        while batch.has_room(self.size_now().into()) {
            let added = match self.add_run(now_ns, batch) {
                Added::Nothing => self.add_packet(now_ns, batch),
                added => added,
            };
            if added == Added::Full || added == Added::All && (self.probes_due > 0 || self.is_ping_due) {
                continue;
            }
            if self.held_ack.is_some() && (batch.is_empty() || self.has_something_to_send()) {
                // It may permit more.
                self.settle();
                continue;
            }
            self.count_held();
            self.is_sleepy = false;
            self.add_size_probe(now_ns, batch);
            return;
        }
        // The batch held it back.
        self.is_held_back = was_held_back;
    }

    /// When [`Self::transmit`] has work to do, unless something comes before. This time may have passed.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        if self.state != State::Open {
            return if self.is_close_due { Some(0) } else { self.close_at_ns };
        }
        let least_bytes = self.least_bytes();
        let sendable_ns = self
            .sendable_ns()
            .filter(|_| self.has_window_for(least_bytes) && !self.is_queue_long(least_bytes));
        let sendable_ns = sendable_ns.map(|at_ns| at_ns.max(self.pacer.at_ns(least_bytes, self.rate())));
        let has_to_tell = self.is_sleepy && self.acknowledger.is_waiting();
        let urgent_ns = (self.is_ping_due || self.probes_due > 0 || has_to_tell).then_some(0);
        let ack_ns = self.acknowledger.deadline_ns();
        let others = [ack_ns, self.recovery.timeout_ns(), self.datagrams_in.deadline_ns()];
        [sendable_ns, urgent_ns].into_iter().chain(others).flatten().min()
    }

    fn transmit_close(&mut self, now_ns: u64, batch: &mut Batch) {
        let is_due = self.is_close_due || self.close_at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let Some(reason) = reason_of(self.state).filter(|_| is_due) else { return };
        if !batch.has_room(BASE_BYTES.into()) {
            return;
        }
        self.counts.close_repeats += u64::from(!self.is_close_due);
        self.is_close_due = false;
        self.plan_close(now_ns);
        self.recovery.expire(&mut self.outcome);
        self.outcome.clear();
        let mut packet = self.begin(batch, BASE_BYTES);
        packet.push(&Frame::Close { reason });
        self.finish(now_ns, batch, Content::default());
    }

    /// When the present close is repeated. The end that closes repeats it, and the other end answers.
    fn plan_close(&mut self, now_ns: u64) {
        self.closes += 1;
        let is_own = !matches!(self.state, State::ClosedByPeer(_)) && !planted::is(Bug::CloseOnce);
        let at_ns = now_ns.saturating_add(self.recovery.rtt().probe_interval_ns(self.closes));
        self.close_at_ns = (is_own && self.closes < CLOSES_MAX).then_some(at_ns);
    }

    fn look_at_time(&mut self, now_ns: u64) {
        if self.datagrams_in.is_joining() {
            self.counts.datagrams_lost += self.datagrams_in.expire(now_ns);
        }
        self.recovery.expire(&mut self.outcome);
        if self.recovery.timeout_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.handle_timeout(now_ns);
        }
        self.take_outcome(now_ns, false);
        if self.sealer.is_old(now_ns) {
            let timeout_ns = self.recovery.rtt().probe_timeout_ns();
            self.counts.key_updates += u64::from(self.sealer.update(now_ns, timeout_ns));
        }
    }

    #[cold]
    fn handle_timeout(&mut self, now_ns: u64) {
        // It may be what was waited for.
        self.settle();
        let timeout = self.recovery.on_timeout(now_ns, &mut self.outcome);
        self.take_outcome(now_ns, false);
        if timeout == Timeout::Probe {
            self.counts.probes += 1;
            self.probes_due = self.recovery.probes().min(2);
            // The oldest contents are the most likely to be lost. They leave again without being counted as lost.
            if let Some(oldest) = self.recovery.oldest().map(|sent| (sent.number, sent.content.clone())) {
                self.send_again(oldest.0, &oldest.1);
            }
        }
    }

    /// The present packet size.
    fn size_now(&self) -> u16 {
        let is_silent = self.recovery.probes() >= PROBES_SHORT && !planted::is(Bug::BlackHoleIgnored);
        if is_silent { BASE_BYTES } else { self.size.bytes() }
    }

    /// Is there something to send, within the window and pacing?
    #[inline]
    fn due(&self, now_ns: u64) -> Due {
        let lanes = self.sending.each_ref().map(Sending::has_something);
        Due {
            lanes,
            is_low_free: lanes[Lane::Low as usize] && self.low_from_ns().is_some_and(|at_ns| at_ns <= now_ns),
            has_datagrams: !self.datagrams_out.is_empty(),
            has_credit: self.receiving.iter().any(Receiving::is_credit_due),
        }
    }

    /// Has a lane something to send, whatever the window permits?
    fn has_something_to_send(&self) -> bool {
        self.sending.iter().any(Sending::has_something)
    }

    /// The time from which there is something to send. It may have passed.
    fn sendable_ns(&self) -> Option<u64> {
        let [reply, high, low] = &self.sending;
        let is_now = !self.datagrams_out.is_empty()
            || reply.has_something()
            || high.has_something()
            || self.receiving.iter().any(|lane| lane.is_credit_due());
        if is_now {
            return Some(0);
        }
        if low.has_something() { self.low_from_ns() } else { None }
    }

    /// The time from which the low lane may send. It may have passed. `None`: after the next acknowledgement.
    fn low_from_ns(&self) -> Option<u64> {
        let [_, high, low] = &self.sending;
        let has_moved_much = low.sent_bytes() >= self.low_free_from;
        if low.has_lost() || low.outstanding() < LOW_BYTES_BESIDE_HIGH || has_moved_much {
            return Some(0);
        }
        // High bytes that wait behind too many low ones are not a reason to send even more of those.
        (high.outstanding() == 0)
            .then(|| self.high_at_ns.map_or(0, |at_ns| at_ns.saturating_add(HIGH_RECENT_NS)))
    }

    /// Notes that bytes of the high lane leave.
    pub(super) fn high_leaves(&mut self, now_ns: u64) {
        self.is_high_answered = true;
        self.high_moves(now_ns);
    }

    /// Notes that bytes of the high lane arrive. Low ones are held back for the answer, unless there was none to the bytes before:
    /// those may be reports of what the other end has taken, and would slow down the transfer that they report on.
    pub(super) fn high_arrives(&mut self, now_ns: u64) {
        let is_recent = self.high_at_ns.is_some_and(|at_ns| now_ns < at_ns.saturating_add(HIGH_RECENT_NS));
        let is_answered = std::mem::take(&mut self.is_high_answered);
        if is_answered || !is_recent || !self.is_low_under_way() {
            self.high_moves(now_ns);
        } else {
            self.high_at_ns = Some(now_ns);
        }
    }

    /// Holds back low bytes that are under way. Those that come after these high ones may be what they have asked for, and are not
    /// held back.
    fn high_moves(&mut self, now_ns: u64) {
        self.high_at_ns = Some(now_ns);
        let held_back = if self.is_low_under_way() { HIGH_RECENT_BYTES } else { 0 };
        self.low_free_from = self.sending[Lane::Low as usize].sent_bytes() + held_back;
    }

    fn is_low_under_way(&self) -> bool {
        let low = &self.sending[Lane::Low as usize];
        low.outstanding() > 0 || low.has_unsent()
    }

    /// The bytes for which the window and pacing must have room before something leaves: one packet, or a burst if they
    /// have held back low bytes of that many packets.
    fn least_bytes(&self) -> u64 {
        let packet_bytes = self.size_now().into();
        if self.is_in_burst {
            return packet_bytes;
        }
        self.rate().burst_bytes().min(self.low_bytes_waiting()).max(packet_bytes)
    }

    /// The bytes of low priority that the peer has credit for. 0: something else waits as well, and must not wait for a
    /// burst.
    fn low_bytes_waiting(&self) -> u64 {
        let [reply, high, low] = &self.sending;
        let is_urgent = reply.has_something()
            || high.has_something()
            || low.has_lost()
            || self.datagrams_out.bytes(Lane::High) > 0
            || self.receiving.iter().any(|lane| lane.is_credit_due());
        if is_urgent {
            return 0;
        }
        let is_low_free = self.low_from_ns() == Some(0);
        self.datagrams_out.bytes(Lane::Low) + if is_low_free { low.sendable() } else { 0 }
    }

    fn has_numbers_for(&self, bytes: u64) -> bool {
        self.recovery.has_room(bytes.div_ceil(self.size_now().into()))
    }

    fn has_window_for(&self, bytes: u64) -> bool {
        let in_flight = self.recovery.in_flight() + bytes;
        let has_window = in_flight <= self.congestion.window() || planted::is(Bug::WindowIgnored);
        has_window && self.has_numbers_for(bytes)
    }

    /// Is the queue at the receiver so long that `more_bytes` would only wait there?
    fn is_queue_long(&self, more_bytes: u64) -> bool {
        let (rtt, bytes) = (self.recovery.rtt(), self.recovery.in_flight());
        let is_most_of_it = |min_ns: u64| rtt.smoothed_ns() > min_ns.saturating_mul(QUEUE_RTT_RATIO);
        bytes + more_bytes > QUEUE_BYTES
            && rtt.smoothed_ns() <= bytes * QUEUE_BYTE_NS
            && rtt.min_ns().is_some_and(is_most_of_it)
    }

    /// Adds as many packets as possible of new bytes of one lane, if nothing else has to leave but an acknowledgement. They are
    /// those that [`Self::add_packet`] would add one by one. What they need is looked at once for all of them, because most packets
    /// are of this kind: a short message, or a part of a long one.
    #[inline]
    fn add_run(&mut self, now_ns: u64, batch: &mut Batch) -> Added {
        let Some(lane) = self.only_lane(now_ns) else { return Added::Nothing };
        let size = u64::from(self.size_now());
        let Self { pacer, congestion, recovery, .. } = self;
        let in_flight = recovery.in_flight() + size;
        if in_flight > congestion.window().min(QUEUE_BYTES)
            || !pacer.permits(now_ns, size, || rate_of(&**congestion, recovery.rtt()))
        {
            return Added::Nothing;
        }
        // Each packet needs room for a full one.
        let permitted = (congestion.window().min(QUEUE_BYTES) - recovery.in_flight()).min(pacer.left());
        let mut packets_left = (permitted / size).min(recovery.room()).min(batch.room(size as usize) as u64);
        let mut bytes_left = self.sending[lane as usize].sendable();
        let mut added = Added::Nothing;
        while packets_left > 0 && bytes_left > 0 {
            let mut packet = self.begin(batch, size as u16);
            let has_ack = self.add_ack(now_ns, &mut packet);
            let acknowledges = self.acknowledger.largest().filter(|_| has_ack);
            let mut content = Content { acknowledges, ..Content::default() };
            let sending = &mut self.sending[lane as usize];
            let start = sending.sent_bytes();
            let length = bytes_left.min((packet.room() - LANE_FRAME_BYTES) as u64);
            let range = start..start + length;
            packet.push_lane(lane, start, length as u16, |bytes| sending.copy(&range, bytes));
            sending.sent(&range);
            content.pieces[0] = Some(Span { start, length: length as u16, lane });
            content.elicits_ack = true;
            if has_ack {
                self.acknowledger.told();
            }
            let is_full = packet.room() < ROOM_BYTES_MIN;
            self.finish(now_ns, batch, content);
            (packets_left, bytes_left) = (packets_left - 1, bytes_left - length);
            added = if is_full || bytes_left > 0 { Added::Full } else { Added::All };
        }
        if lane == Lane::High && added != Added::Nothing {
            self.high_leaves(now_ns);
        }
        added
    }

    /// The only lane with something to send, if it has new bytes only, nothing else has to leave, and nothing is held back.
    #[inline]
    fn only_lane(&self, now_ns: u64) -> Option<Lane> {
        let is_other_due = self.probes_due > 0
            || self.is_ping_due
            || !self.is_in_burst
            || !self.datagrams_out.is_empty()
            || self.receiving.iter().any(Receiving::is_credit_due)
            || self.sending.iter().any(Sending::has_lost);
        if is_other_due {
            return None;
        }
        let lane = match self.sending.each_ref().map(Sending::has_something) {
            [true, false, false] => Lane::Reply,
            [false, true, false] => Lane::High,
            [false, false, true] if self.is_low_free(now_ns) => Lane::Low,
            _ => return None,
        };
        Some(lane)
    }

    /// May all low bytes leave, however many there are?
    #[inline]
    fn is_low_free(&self, now_ns: u64) -> bool {
        let [_, high, low] = &self.sending;
        let is_recent = |at_ns: u64| now_ns < at_ns.saturating_add(HIGH_RECENT_NS);
        low.sent_bytes() >= self.low_free_from
            || high.outstanding() == 0 && !self.high_at_ns.is_some_and(is_recent)
    }

    /// Adds one packet, if one has to leave.
    fn add_packet(&mut self, now_ns: u64, batch: &mut Batch) -> Added {
        let is_probe = self.probes_due > 0;
        let is_ack_due = self.acknowledger.is_due(now_ns) || self.is_sleepy && self.acknowledger.is_waiting();
        let is_asking = is_ack_due && self.has_to_ask(now_ns);
        let due = self.due(now_ns);
        let may_send = is_probe || due.is_any() && self.may_send(now_ns);
        if !(may_send || is_ack_due || self.is_ping_due) {
            return Added::Nothing;
        }
        if is_probe {
            self.recovery.skip();
        }
        let size = self.size_now();
        let start = batch.bytes.len();
        let mut packet = self.begin(batch, size);
        let has_ack = self.add_ack(now_ns, &mut packet);
        let acknowledges = self.acknowledger.largest().filter(|_| has_ack);
        let mut content = Content { acknowledges, ..Content::default() };
        if may_send {
            self.fill(now_ns, due, &mut packet, &mut content);
        }
        let is_filled = content.elicits_ack;
        if !is_filled && (is_probe || self.is_ping_due || is_asking) {
            content.elicits_ack = packet.push(&Frame::Ping);
            self.counts.acks_asking += u64::from(is_asking);
        }
        let packet_room = packet.room();
        if !(content.elicits_ack || has_ack && is_ack_due) {
            batch.bytes.truncate(start);
            return Added::Nothing;
        }
        let is_full = packet_room < ROOM_BYTES_MIN || content.pieces.iter().all(Option::is_some);
        if has_ack {
            self.acknowledger.told();
            self.counts.acks_alone += u64::from(!content.elicits_ack);
        }
        if content.elicits_ack {
            self.counts.beyond_window += u64::from(is_probe || !is_filled);
            self.is_ping_due = false;
            self.probes_due = self.probes_due.saturating_sub(1);
        }
        self.finish(now_ns, batch, content);
        if is_full { Added::Full } else { Added::All }
    }

    /// Adds an acknowledgement, if packets wait for one. `true`: there was room for it.
    #[inline]
    fn add_ack(&self, now_ns: u64, packet: &mut Payload) -> bool {
        if !self.acknowledger.is_waiting() {
            return false;
        }
        let delay_us = self.acknowledger.delay_us(now_ns);
        match self.acknowledger.only_range() {
            Some(range) => packet.push_ack(delay_us, std::iter::once(range)),
            None => packet.push_ack(delay_us, self.acknowledger.ranges()),
        }
    }

    /// Should an acknowledgement ask for one itself? Otherwise its ranges are repeated without end, and the key cannot
    /// change.
    fn has_to_ask(&self, now_ns: u64) -> bool {
        self.recovery.outstanding() == 0
            && (self.quiet_packets >= QUIET_MAX || self.sealer.lacks_confirmation(now_ns))
    }

    /// Do the window and pacing permit a packet?
    fn may_send(&mut self, now_ns: u64) -> bool {
        let least_bytes = self.least_bytes();
        if self.is_queue_long(least_bytes) {
            self.is_in_burst = false;
            return false;
        }
        if !self.has_window_for(least_bytes) {
            let has_numbers = self.has_numbers_for(least_bytes);
            *if has_numbers { &mut self.counts.window_full } else { &mut self.counts.numbers_full } += 1;
            (self.is_held_back, self.is_in_burst) = (true, false);
            return false;
        }
        let Self { pacer, congestion, recovery, .. } = self;
        if !pacer.permits(now_ns, least_bytes, || rate_of(&**congestion, recovery.rtt())) {
            self.counts.paced += 1;
            (self.is_held_back, self.is_in_burst) = (true, false);
            return false;
        }
        self.is_in_burst = true;
        true
    }

    /// Credit first, then the lanes reply, high and low, with datagrams at their priority.
    fn fill(&mut self, now_ns: u64, due: Due, packet: &mut Payload, content: &mut Content) {
        if due.has_credit {
            self.add_credit(packet, content);
        }
        for lane in LANES {
            while due.has_datagrams && self.datagrams_out.write(lane, packet) {
                content.elicits_ack = true;
            }
            while due.lanes[lane as usize] && self.add_piece(now_ns, lane, packet, content) {}
        }
    }

    fn add_credit(&mut self, packet: &mut Payload, content: &mut Content) {
        let number = self.recovery.next_number();
        for lane in LANES {
            let receiving = &mut self.receiving[lane as usize];
            if receiving.is_credit_due() && packet.room() > 2 * 8 {
                let (taken, limit) = receiving.credit().tell();
                content.elicits_ack |= packet.push(&Frame::Credit { lane, taken, limit });
                content.credit[lane as usize] = true;
                self.credit_numbers[lane as usize] = Some(number);
            }
        }
    }

    fn add_piece(&mut self, now_ns: u64, lane: Lane, packet: &mut Payload, content: &mut Content) -> bool {
        if !self.sending[lane as usize].has_something() {
            return false;
        }
        let Some(place) = content.pieces.iter().position(Option::is_none) else { return false };
        let Some(room) = packet.room().checked_sub(LANE_FRAME_BYTES) else { return false };
        let sending = &self.sending[lane as usize];
        let Some(range) = sending.peek(room as u64) else { return false };
        let length = (range.end - range.start) as usize;
        if length == room && length < PIECE_BYTES_MIN {
            return false;
        }
        if lane == Lane::Low && self.low_from_ns().is_none_or(|from_ns| now_ns < from_ns) {
            return false;
        }
        if !packet.push_lane(lane, range.start, length as u16, |bytes| sending.copy(&range, bytes)) {
            return false;
        }
        if lane == Lane::High {
            self.high_leaves(now_ns);
        }
        self.sending[lane as usize].sent(&range);
        content.pieces[place] = Some(Span { start: range.start, length: length as u16, lane });
        content.elicits_ack = true;
        true
    }

    /// Counts the reasons why nothing leaves.
    fn count_held(&mut self) {
        self.counts.credit_out += u64::from(self.sending.iter().any(|lane| lane.lacks_credit()));
        let low = &self.sending[Lane::Low as usize];
        self.counts.low_held += u64::from(low.has_something() && self.low_from_ns() != Some(0));
    }

    /// A packet of padding, to probe whether the path carries longer ones.
    fn add_size_probe(&mut self, now_ns: u64, batch: &mut Batch) {
        let is_quiet = self.recovery.largest_acknowledged().is_none() || self.recovery.probes() > 0;
        let packet_bytes = self.size_now().into();
        if self.size.is_at_limit() || is_quiet || !self.has_window_for(packet_bytes) {
            return;
        }
        let Some(bytes) = self.size.wanted(now_ns).filter(|bytes| batch.has_room((*bytes).into())) else {
            return;
        };
        let mut packet = self.begin(batch, bytes);
        packet.push(&Frame::Ping);
        packet.pad();
        self.size.probe_sent(bytes);
        self.counts.beyond_window += 1;
        let content = Content { size_probe: Some(bytes), elicits_ack: true, ..Content::default() };
        self.finish(now_ns, batch, content);
    }

    /// Begins a packet of at most this many bytes, with room for its header and tag.
    fn begin<'batch>(&self, batch: &'batch mut Batch, bytes: u16) -> Payload<'batch> {
        batch.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        let room = usize::from(bytes) - HEADER_BYTES - self.security.tag_bytes();
        Payload::new(&mut batch.bytes, room)
    }

    /// Seals the packet that was begun, and remembers it.
    fn finish(&mut self, now_ns: u64, batch: &mut Batch, content: Content) {
        let start = batch.finished_bytes();
        let number = self.recovery.next_number();
        let length = batch.bytes.len() - start + self.security.tag_bytes();
        let header = Header {
            kind: PacketKind::Data,
            key_phase: self.sealer.phase(),
            length: length as u16,
            connection: self.numbers[1],
            number,
        };
        batch.bytes[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes());
        self.sealer.seal(now_ns, number, &mut batch.bytes, start);
        batch.finish();
        self.counts.sent += 1;
        let bytes = length as u64;
        let elicits_ack = content.elicits_ack;
        self.recovery.sent(now_ns, bytes, elicits_ack.then_some(content));
        self.quiet_packets = if elicits_ack { 0 } else { self.quiet_packets.saturating_add(1) };
        if elicits_ack {
            self.pacer.spend(bytes);
        }
    }
}
