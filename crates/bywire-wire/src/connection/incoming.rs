//! Arriving packets.

use std::ops::RangeInclusive;

use crate::ack::ACK_DELAY_MAX_NS;
use crate::datagrams::Piece;
use crate::frame::{Ack, FRAMES_MAX, Frame, LANES, LaneBytes, frames, usual};
use crate::packet::{Header, PacketKind};
use crate::planted::{self, Bug};

use super::{Connection, HeldAck, PROBES_SHORT, REASON_VIOLATION, Receipt, State, Violation};
use crate::frame::Lane;

/// The contents of a packet, as the first pass over it finds them.
struct Look {
    elicits_ack: bool,
    has_lane: bool,
    has_place: bool,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// Processes one packet, as [`crate::packet::split`] yields them. It is decrypted in place. A packet is accepted
    /// either completely or not at all.
    pub fn receive(&mut self, now_ns: u64, packet: &mut [u8]) -> Receipt {
        self.receive_with(now_ns, packet, |_, _| 0)
    }

    /// The same, but bytes of a lane that the program could consume at once are shown to `consume` first, which returns how
    /// many of them it has consumed. So they need not be copied into the memory of the lane, and out of it again.
    pub fn receive_with(
        &mut self,
        now_ns: u64,
        packet: &mut [u8],
        consume: impl FnMut(Lane, &[u8]) -> usize,
    ) -> Receipt {
        self.take_in(now_ns, packet, false, consume)
    }

    /// The same, but an acknowledgement beside bytes of a lane may be held until [`Self::settle`]. So what the program waits
    /// for comes first, and its answer leaves first.
    pub fn receive_and_hold(
        &mut self,
        now_ns: u64,
        packet: &mut [u8],
        consume: impl FnMut(Lane, &[u8]) -> usize,
    ) -> Receipt {
        self.take_in(now_ns, packet, true, consume)
    }

    /// Processes a held acknowledgement. Called after the packets of [`Self::transmit`] have left.
    #[inline]
    pub fn settle(&mut self) {
        if self.held_ack.is_some() {
            self.settle_held();
        }
    }

    fn settle_held(&mut self) {
        let Some(held) = self.held_ack.take() else { return };
        let is_held_back = std::mem::replace(&mut self.is_held_back, held.was_held_back);
        // Its numbers were checked when it arrived.
        let _ = self.take_ack(held.at_ns, std::iter::once(held.numbers), held.delay_us);
        self.is_held_back = is_held_back;
    }

    fn take_in(
        &mut self,
        now_ns: u64,
        packet: &mut [u8],
        may_hold: bool,
        mut consume: impl FnMut(Lane, &[u8]) -> usize,
    ) -> Receipt {
        self.settle();
        let header = Header::parse(packet).filter(|header| {
            header.kind == PacketKind::Data
                && header.connection == self.numbers[0]
                && usize::from(header.length) == packet.len()
        });
        let Some(header) = header else { return Receipt::Unrecognized };
        if self.acknowledger.is_known(header.number) {
            self.counts.known += 1;
            return Receipt::Known;
        }
        let timeout_ns = self.recovery.rtt().probe_timeout_ns();
        let phase = self.opener.phase();
        let Ok(payload) = self.opener.open(now_ns, timeout_ns, &header, packet) else {
            self.counts.forged += 1;
            return Receipt::Forged;
        };
        self.counts.peer_key_updates += u64::from(self.opener.phase() != phase);
        if self.state != State::Open {
            let is_close = frames(payload).flatten().any(|frame| matches!(frame, Frame::Close { .. }));
            self.answer_after_close(header.number, is_close);
            return Receipt::Closed;
        }
        // A packet with other frames is parsed twice, because it is accepted either completely or not at all.
        let usual = usual(payload);
        let look = match &usual {
            Some((_, bytes)) => {
                let has_place = self.receiving[bytes.lane as usize].has_place_for(bytes);
                Look { elicits_ack: true, has_lane: true, has_place }
            }
            None => match self.look(payload) {
                Ok(look) => look,
                Err(violation) => return self.fail(violation),
            },
        };
        if !look.has_place {
            self.counts.no_room += 1;
            return Receipt::NoRoom;
        }
        self.acknowledger.insert(now_ns, header.number, look.elicits_ack);
        self.counts.taken += 1;
        if self.heard_at_ns.is_none() {
            self.heard_at_ns = Some(now_ns);
            self.send_unheard_again(now_ns);
        }
        let may_hold = may_hold && look.has_lane;
        let outcome = match usual {
            Some((ack, bytes)) => {
                let known = ack.map_or(Ok(()), |ack| self.take_ack_frame(now_ns, ack, may_hold));
                known.and_then(|()| self.take_lane_bytes(now_ns, bytes, &mut consume))
            }
            None => frames(payload)
                .flatten()
                .try_for_each(|frame| self.take_frame(now_ns, frame, may_hold, &mut consume)),
        };
        match outcome {
            Ok(()) => Receipt::Taken,
            Err(violation) => self.fail(violation),
        }
    }

    /// Packets that left before the peer was heard have probably found no socket. Their contents leave again at once,
    /// instead of after a probe.
    fn send_unheard_again(&mut self, now_ns: u64) {
        let is_early = |at_ns: u64| at_ns.saturating_add(ACK_DELAY_MAX_NS) <= now_ns;
        let early = self.recovery.waiting().filter(|sent| is_early(sent.at_ns));
        let early: Vec<_> = early.map(|sent| (sent.number, sent.content.clone())).collect();
        if early.is_empty() {
            return;
        }
        early.iter().for_each(|(number, content)| self.send_again(*number, content));
        self.counts.unheard += early.len() as u64;
        self.recovery.begin(now_ns);
        self.probes_due = 1;
    }

    /// Handles a packet after the close. A peer that does not know of the close gets it again, at growing intervals.
    fn answer_after_close(&mut self, number: u64, is_close: bool) {
        if !self.acknowledger.insert(0, number, false) {
            return;
        }
        if is_close && !matches!(self.state, State::ClosedByPeer(_)) {
            // Both ends know of the close, whichever was first.
            (self.is_close_due, self.close_at_ns) = (false, None);
            return;
        }
        self.late_packets += 1;
        self.is_close_due |= !planted::is(Bug::CloseOnce) && self.late_packets.is_power_of_two();
    }

    fn fail(&mut self, violation: Violation) -> Receipt {
        self.state = State::Broken(violation);
        self.is_close_due = true;
        Receipt::Violation(violation)
    }

    /// Are all frames valid, and is there room for all of them?
    fn look(&self, payload: &[u8]) -> Result<Look, Violation> {
        let (mut all, mut acknowledgements, mut apart) = (0, 0, [0; LANES.len()]);
        let (mut elicits_ack, mut has_lane) = (false, false);
        for frame in frames(payload) {
            let frame = frame.map_err(|_| Violation::Malformed)?;
            elicits_ack |= frame.elicits_ack();
            all += usize::from(frame != Frame::Pad);
            acknowledgements += usize::from(matches!(frame, Frame::Ack(_)));
            if all > FRAMES_MAX || acknowledgements > 1 {
                return Err(Violation::Malformed);
            }
            if let Frame::Lane { lane, offset, bytes } = frame {
                has_lane = true;
                let is_apart = self.receiving[lane as usize].is_apart(&(offset..offset + bytes.len() as u64));
                apart[lane as usize] += usize::from(is_apart);
            }
        }
        let has_place = apart == [0; LANES.len()]
            || self.receiving.iter().zip(apart).all(|(lane, apart)| lane.has_place(apart));
        Ok(Look { elicits_ack, has_lane, has_place })
    }

    fn take_frame(
        &mut self,
        now_ns: u64,
        frame: Frame,
        may_hold: bool,
        consume: &mut impl FnMut(Lane, &[u8]) -> usize,
    ) -> Result<(), Violation> {
        match frame {
            Frame::Pad | Frame::Ping => {}
            Frame::Close { reason } => {
                self.state = State::ClosedByPeer(reason);
                // The answer, so that the peer does not have to repeat its close.
                self.is_close_due = true;
            }
            Frame::Ack(ack) => self.take_ack_frame(now_ns, ack, may_hold)?,
            Frame::Lane { lane, offset, bytes } => {
                self.take_lane_bytes(now_ns, LaneBytes { lane, offset, bytes }, consume)?;
            }
            Frame::Credit { lane, taken, limit } => {
                let known = self.sending[lane as usize].credit(taken, limit);
                known.map_err(|_| Violation::TakenUnsent)?;
            }
            Frame::Datagram { lane, id, offset, total, bytes } => {
                self.datagrams_in.receive(now_ns, lane, id, Piece { offset, total, bytes });
            }
        }
        Ok(())
    }

    #[inline]
    fn take_ack_frame(&mut self, now_ns: u64, ack: Ack, may_hold: bool) -> Result<(), Violation> {
        let may_hold = may_hold && self.recovery.probes() == 0 && self.probes_due == 0;
        match ack.only_range().filter(|numbers| may_hold && self.recovery.could_arrive(numbers)) {
            Some(numbers) => {
                let was_held_back = self.is_held_back;
                let held = HeldAck { numbers, delay_us: ack.delay_us, at_ns: now_ns, was_held_back };
                self.held_ack = Some(held);
                Ok(())
            }
            None => self.take_ack(now_ns, ack.ranges(), ack.delay_us),
        }
    }

    #[inline]
    fn take_lane_bytes(
        &mut self,
        now_ns: u64,
        LaneBytes { lane, offset, bytes }: LaneBytes,
        consume: &mut impl FnMut(Lane, &[u8]) -> usize,
    ) -> Result<(), Violation> {
        if lane == Lane::High {
            self.high_arrives(now_ns);
        }
        let consume = |bytes: &[u8]| consume(lane, bytes);
        let received = self.receiving[lane as usize].receive_with(offset, bytes, consume);
        received.map_err(|_| Violation::BeyondCredit)
    }

    #[inline(never)]
    fn take_ack(
        &mut self,
        now_ns: u64,
        numbers: impl Iterator<Item = RangeInclusive<u64>> + Clone,
        delay_us: u32,
    ) -> Result<(), Violation> {
        let is_after_silence = self.recovery.probes() >= PROBES_SHORT;
        let largest = numbers.clone().next().map(|newest| *newest.end());
        let known = self.recovery.acknowledge(now_ns, numbers, delay_us, &mut self.outcome);
        known.map_err(|_| Violation::AcknowledgedUnsent)?;
        if let Some(largest) = largest {
            self.sealer.acknowledged(now_ns, largest);
        }
        self.take_outcome(now_ns, is_after_silence);
        Ok(())
    }
}

/// The reason that is sent to the peer.
pub(super) fn reason_of(state: State) -> Option<u8> {
    match state {
        State::ClosedHere(reason) | State::ClosedByPeer(reason) => Some(reason),
        State::Broken(_) => Some(REASON_VIOLATION),
        State::Open => None,
    }
}
