//! Packets that come.

use crate::frame::{Frame, frames};
use crate::packet::{Header, PacketKind};
use crate::planted::{self, Bug};

use super::{Connection, REASON_VIOLATION, Receipt, State, Violation};
use crate::frame::Lane;

/// What a packet holds, as a first look tells.
struct Look {
    elicits_ack: bool,
    has_place: bool,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// Takes in one packet, as [`crate::packet::split`] yields them; its bytes are opened in place. A packet counts whole or
    /// not at all.
    pub fn receive(&mut self, now_ns: u64, packet: &mut [u8]) -> Receipt {
        let header = Header::parse(packet).filter(|header| {
            header.kind == PacketKind::Data
                && header.connection == self.options.connection
                && usize::from(header.length) == packet.len()
        });
        let Some(header) = header else { return Receipt::Foreign };
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
            self.answer_after_close(header.number);
            return Receipt::Closed;
        }
        let look = match self.look(payload) {
            Ok(look) => look,
            Err(violation) => return self.break_off(violation),
        };
        if !look.has_place {
            self.counts.no_room += 1;
            return Receipt::NoRoom;
        }
        self.acknowledger.insert(now_ns, header.number, look.elicits_ack);
        self.counts.taken += 1;
        for frame in frames(payload).flatten() {
            if let Err(violation) = self.take_frame(now_ns, frame) {
                return self.break_off(violation);
            }
        }
        Receipt::Taken
    }

    /// The peer has not heard of the close. It is told again, less and less often.
    fn answer_after_close(&mut self, number: u64) {
        if self.acknowledger.insert(0, number, false) {
            self.late_packets += 1;
            self.is_close_due |= !planted::is(Bug::CloseOnce)
                && !matches!(self.state, State::ClosedByPeer(_))
                && self.late_packets.is_power_of_two();
        }
    }

    fn break_off(&mut self, violation: Violation) -> Receipt {
        self.state = State::Broken(violation);
        self.is_close_due = true;
        Receipt::Violation(violation)
    }

    /// Is every frame one, and is there a place for all of them?
    fn look(&self, payload: &[u8]) -> Result<Look, Violation> {
        let mut look = Look { elicits_ack: false, has_place: true };
        for frame in frames(payload) {
            let frame = frame.map_err(|_| Violation::Malformed)?;
            look.elicits_ack |= frame.elicits_ack();
            if let Frame::Lane { lane, offset, .. } = frame {
                look.has_place &= self.receiving[lane as usize].has_place(offset);
            }
        }
        Ok(look)
    }

    fn take_frame(&mut self, now_ns: u64, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Pad | Frame::Ping => {}
            Frame::Close { reason } => {
                self.state = State::ClosedByPeer(reason);
                self.is_close_due = false;
            }
            Frame::Ack(ack) => {
                let known = self.recovery.acknowledge(now_ns, ack.ranges(), ack.delay_us, &mut self.outcome);
                known.map_err(|_| Violation::AcknowledgedUnsent)?;
                self.take_outcome(now_ns);
            }
            Frame::Lane { lane, offset, bytes } => {
                if lane == Lane::High {
                    self.high_at_ns = Some(now_ns);
                }
                let received = self.receiving[lane as usize].receive(offset, bytes);
                received.map_err(|_| Violation::BeyondCredit)?;
            }
            Frame::Credit { lane, taken, limit } => {
                let known = self.sending[lane as usize].credit(taken, limit);
                known.map_err(|_| Violation::TakenUnsent)?;
            }
            Frame::Datagram { lane, id, offset, total, bytes } => {
                self.datagrams_in.receive(lane, id, offset, total, bytes);
            }
        }
        Ok(())
    }
}

/// The reason that the peer is told.
pub(super) fn reason_of(state: State) -> Option<u8> {
    match state {
        State::ClosedHere(reason) => Some(reason),
        State::Broken(_) => Some(REASON_VIOLATION),
        State::Open | State::ClosedByPeer(_) => None,
    }
}
