//! Datagrams: cut to fit into packets, and joined again. None is sent twice, and none waits for another.

use std::collections::VecDeque;

use crate::frame::{DATAGRAM_FRAME_BYTES, Frame, Lane, Payload};
use crate::planted::{self, Bug};
use crate::ranges::Ranges;

/// Datagrams that wait to be sent, or for the program.
pub const WAITING_MAX: usize = 64;
/// Bytes of datagrams that wait for the program.
pub const WAITING_BYTES_MAX: usize = 256 * 1024;
/// Datagrams of which pieces are missing.
pub const JOINED_MAX: usize = 16;
/// Ranges of one datagram that may wait for what is between them.
const RANGES_MAX: usize = 64;
/// A shorter piece than this is not worth a frame of its own.
const PIECE_BYTES_MIN: usize = 64;

/// A whole datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its priority: [`Lane::High`] or [`Lane::Low`].
    pub lane: Lane,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Datagrams on their way out.
#[derive(Debug, Default)]
pub struct Outgoing {
    waiting: VecDeque<(u32, Datagram)>,
    /// Bytes of the first one that have left, by lane.
    left: u16,
    next_id: u32,
}

impl Outgoing {
    /// Adds a datagram. `false`: there is no room, it is too long, or it has no priority; it is dropped.
    pub fn push(&mut self, lane: Lane, bytes: &[u8]) -> bool {
        if self.waiting.len() >= WAITING_MAX || bytes.len() > u16::MAX.into() || lane == Lane::Reply {
            return false;
        }
        let datagram = Datagram { lane, bytes: bytes.to_vec() };
        // One of high priority goes before those of low priority, but not between the pieces of one.
        let begun = usize::from(self.left > 0);
        let place = match lane {
            Lane::High => {
                let low = self.waiting.iter().skip(begun).position(|(_, other)| other.lane == Lane::Low);
                low.map_or(self.waiting.len(), |place| place + begun)
            }
            _ => self.waiting.len(),
        };
        self.waiting.insert(place, (self.next_id, datagram));
        self.next_id = self.next_id.wrapping_add(1);
        true
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The priority of the next one.
    pub fn lane(&self) -> Option<Lane> {
        self.waiting.front().map(|(_, datagram)| datagram.lane)
    }

    /// Adds the next piece to a packet. `false`: there is none, or no room for it.
    pub fn write(&mut self, payload: &mut Payload) -> bool {
        let Some((id, datagram)) = self.waiting.front() else { return false };
        let rest = &datagram.bytes[usize::from(self.left)..];
        let Some(room) = payload.room().checked_sub(DATAGRAM_FRAME_BYTES) else { return false };
        if room < rest.len().min(PIECE_BYTES_MIN) {
            return false;
        }
        let piece = &rest[..rest.len().min(room)];
        let is_last = piece.len() == rest.len();
        let total = datagram.bytes.len() as u16;
        let frame = Frame::Datagram { lane: datagram.lane, id: *id, offset: self.left, total, bytes: piece };
        if !payload.push(&frame) {
            return false;
        }
        if is_last {
            self.waiting.pop_front();
            self.left = 0;
        } else {
            self.left += piece.len() as u16;
        }
        true
    }
}

#[derive(Debug)]
struct Joined {
    lane: Lane,
    id: u32,
    bytes: Vec<u8>,
    arrived: Ranges,
}

/// Datagrams on their way in.
#[derive(Debug, Default)]
pub struct Incoming {
    whole: VecDeque<Datagram>,
    whole_bytes: usize,
    /// The oldest first.
    joined: VecDeque<Joined>,
    dropped: u64,
}

impl Incoming {
    /// The next whole datagram.
    pub fn pop(&mut self) -> Option<Datagram> {
        let datagram = self.whole.pop_front()?;
        self.whole_bytes -= datagram.bytes.len();
        Some(datagram)
    }

    /// Datagrams that have arrived, in part or whole, and were dropped for want of room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes a piece in, as [`Frame::Datagram`] has it: `offset + bytes` is at most `total`.
    pub fn receive(&mut self, lane: Lane, id: u32, offset: u16, total: u16, bytes: &[u8]) {
        if bytes.len() == usize::from(total) {
            self.push(Datagram { lane, bytes: bytes.to_vec() });
            return;
        }
        let known = self
            .joined
            .iter()
            .position(|joined| joined.lane == lane && (joined.id == id || planted::is(Bug::DatagramsMixed)));
        let place = known.unwrap_or_else(|| self.begin(lane, id, total));
        let joined = &mut self.joined[place];
        let range = usize::from(offset)..usize::from(offset) + bytes.len();
        if joined.bytes.len() != usize::from(total) || joined.arrived.count() >= RANGES_MAX {
            self.joined.remove(place);
            self.dropped += 1;
            return;
        }
        joined.bytes[range.clone()].copy_from_slice(bytes);
        joined.arrived.insert(range.start as u64..range.end as u64);
        if joined.arrived.first() == Some(0..u64::from(total)) {
            let whole = self.joined.remove(place);
            whole.into_iter().for_each(|joined| self.push(Datagram { lane, bytes: joined.bytes }));
        }
    }

    /// The place of a new one, for which the oldest may have to go.
    fn begin(&mut self, lane: Lane, id: u32, total: u16) -> usize {
        if self.joined.len() >= JOINED_MAX {
            self.joined.pop_front();
            self.dropped += 1;
        }
        self.joined.push_back(Joined { lane, id, bytes: vec![0; total.into()], arrived: Ranges::default() });
        self.joined.len() - 1
    }

    fn push(&mut self, datagram: Datagram) {
        if self.whole.len() >= WAITING_MAX || self.whole_bytes + datagram.bytes.len() > WAITING_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.whole_bytes += datagram.bytes.len();
        self.whole.push_back(datagram);
    }
}
