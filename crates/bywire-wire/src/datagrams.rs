//! Datagrams: cut into pieces that fit into packets, and joined again. None is sent twice, and none waits for another
//! of lower priority.

use std::collections::VecDeque;

use crate::frame::{DATAGRAM_FRAME_BYTES, Frame, Lane, Payload};
use crate::planted::{self, Bug};

/// The most datagrams of one priority that wait to be sent.
pub const WAITING_MAX: usize = 64;
/// The most datagrams of one priority that wait for the program. One receive brings up to 64 packets.
pub const ARRIVED_MAX: usize = 128;
/// The most bytes of datagrams of one priority that wait for the program. One receive brings up to 64 KiB.
pub const WAITING_BYTES_MAX: usize = 256 * 1024;
/// The most incomplete datagrams of one priority.
pub const JOINED_MAX: usize = 16;
/// How long a datagram waits for its next piece. Nothing is sent again.
pub const JOINED_NS: u64 = 1_000_000_000;
/// The most memory of a datagram that is kept for a later one. There is never more of it than datagrams may wait.
const SPARE_BYTES_MAX: usize = 4096;
/// The shortest piece that is worth a frame of its own.
const PIECE_BYTES_MIN: usize = 64;
/// The most pieces of one datagram. A sender makes fewer of the longest one.
const PIECES_MAX: usize = u16::MAX as usize / PIECE_BYTES_MIN + 2;

/// A complete datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its priority: [`Lane::High`] or [`Lane::Low`].
    pub lane: Lane,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The index of a priority in an array. `None`: a lane without datagrams.
fn place_of(lane: Lane) -> Option<usize> {
    match lane {
        Lane::Reply => None,
        Lane::High => Some(0),
        Lane::Low => Some(1),
    }
}

/// Datagrams of one priority, in order.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u32, Vec<u8>)>,
    /// Bytes of all of them that have not left.
    bytes: u64,
    /// Bytes of the first one that have left.
    left: u16,
    /// Memory of datagrams that have left, for later ones.
    spare: Vec<Vec<u8>>,
}

/// Outgoing datagrams, by priority.
#[derive(Debug, Default)]
pub struct Outgoing {
    queues: [Queue; 2],
    next_id: u32,
}

impl Outgoing {
    /// Adds a datagram. `false`: it is dropped, because there is no room, it is too long, or its lane has no datagrams.
    pub fn push(&mut self, lane: Lane, bytes: &[u8]) -> bool {
        let Some(place) = place_of(lane) else { return false };
        let queue = &mut self.queues[place];
        if queue.waiting.len() >= WAITING_MAX || bytes.len() > u16::MAX.into() {
            return false;
        }
        let mut copy = queue.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        queue.waiting.push_back((self.next_id, copy));
        queue.bytes += bytes.len() as u64;
        self.next_id = self.next_id.wrapping_add(1);
        true
    }

    /// Is there room for one more of this priority?
    pub fn has_room(&self, lane: Lane) -> bool {
        place_of(lane).is_some_and(|place| self.queues[place].waiting.len() < WAITING_MAX)
    }

    /// Bytes of a priority that have not left.
    pub fn bytes(&self, lane: Lane) -> u64 {
        place_of(lane).map_or(0, |place| self.queues[place].bytes)
    }

    /// Releases memory for later datagrams.
    pub fn trim(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.spare = Vec::new());
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty())
    }

    /// Adds the next piece of a priority to a packet. `false`: there is no piece, or no room for it.
    pub fn write(&mut self, lane: Lane, payload: &mut Payload) -> bool {
        let Some(place) = place_of(lane) else { return false };
        let queue = &mut self.queues[place];
        let Some((id, bytes)) = queue.waiting.front() else { return false };
        let rest = &bytes[usize::from(queue.left)..];
        let Some(room) = payload.room().checked_sub(DATAGRAM_FRAME_BYTES) else { return false };
        if room < rest.len().min(PIECE_BYTES_MIN) {
            return false;
        }
        let piece = &rest[..rest.len().min(room)];
        let is_last = piece.len() == rest.len();
        let total = bytes.len() as u16;
        let piece_bytes = piece.len() as u64;
        if !payload.push(&Frame::Datagram { lane, id: *id, offset: queue.left, total, bytes: piece }) {
            return false;
        }
        queue.bytes -= piece_bytes;
        if is_last {
            if let Some((_, mut sent)) = queue.waiting.pop_front()
                && sent.capacity() <= SPARE_BYTES_MAX
            {
                sent.clear();
                queue.spare.push(sent);
            }
            queue.left = 0;
        } else {
            queue.left += piece_bytes as u16;
        }
        true
    }
}

/// A part of a datagram, as [`Frame::Datagram`] has it: `offset + bytes` is at most `total`.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'packet> {
    /// Its offset in the datagram.
    pub offset: u16,
    /// Bytes of the whole datagram.
    pub total: u16,
    /// The bytes.
    pub bytes: &'packet [u8],
}

/// An incomplete datagram. It has memory for at most twice the bytes that have arrived, whatever total length a piece claims.
#[derive(Debug)]
struct Joined {
    id: u32,
    total: u16,
    /// The pieces in the order in which they came.
    bytes: Vec<u8>,
    /// The offset of each piece, its position in `bytes`, and its length. The first piece of the datagram is first.
    pieces: Vec<(u16, u16, u16)>,
    /// When the last piece arrived.
    at_ns: u64,
}

impl Joined {
    /// Adds a piece. `false`: it contradicts the others, or there are too many.
    fn add(&mut self, now_ns: u64, piece: Piece) -> bool {
        let length = piece.bytes.len() as u16;
        let place = self.pieces.partition_point(|(offset, ..)| *offset < piece.offset);
        let is_behind = place.checked_sub(1).is_none_or(|before| {
            let (offset, _, length) = self.pieces[before];
            offset + length <= piece.offset
        });
        let is_before = self.pieces.get(place).is_none_or(|(next, ..)| piece.offset + length <= *next);
        if piece.total != self.total || !is_behind || !is_before || self.pieces.len() >= PIECES_MAX {
            return false;
        }
        self.pieces.insert(place, (piece.offset, self.bytes.len() as u16, length));
        if self.bytes.is_empty() {
            // Most have two pieces: a segment that is a little longer than a packet.
            self.bytes.reserve_exact(usize::from(self.total).min(2 * piece.bytes.len()));
        }
        self.bytes.extend_from_slice(piece.bytes);
        self.at_ns = now_ns;
        true
    }

    /// Have all pieces arrived?
    fn is_whole(&self) -> bool {
        self.bytes.len() == usize::from(self.total)
    }

    /// The datagram, once it is complete.
    fn into_bytes(self) -> Vec<u8> {
        if self.pieces.iter().all(|(offset, place, _)| offset == place) {
            return self.bytes;
        }
        let parts = self.pieces.iter().map(|(_, place, length)| {
            let place = usize::from(*place);
            &self.bytes[place..place + usize::from(*length)]
        });
        parts.collect::<Vec<_>>().concat()
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.pieces.capacity() * size_of::<(u16, u16, u16)>()
    }
}

/// Incoming datagrams of one priority.
#[derive(Debug, Default)]
struct Arriving {
    whole: VecDeque<Vec<u8>>,
    whole_bytes: usize,
    /// The oldest first.
    joined: VecDeque<Joined>,
}

impl Arriving {
    /// Adds a piece, and returns the number of datagrams that are dropped for it.
    fn receive(&mut self, now_ns: u64, id: u32, piece: Piece) -> u64 {
        if piece.bytes.len() == usize::from(piece.total) {
            return self.push(piece.bytes.to_vec());
        }
        if piece.bytes.is_empty() {
            return 0;
        }
        let mixes = planted::is(Bug::DatagramsMixed);
        let known = self.joined.iter().position(|joined| joined.id == id || mixes);
        let (place, dropped) = known.map_or_else(|| self.begin(now_ns, id, piece.total), |place| (place, 0));
        let joined = &mut self.joined[place];
        if !joined.add(now_ns, piece) {
            self.joined.remove(place);
            return dropped + 1;
        }
        if !joined.is_whole() {
            return dropped;
        }
        let whole = self.joined.remove(place).map_or(0, |joined| self.push(joined.into_bytes()));
        dropped + whole
    }

    /// The index for a new datagram. The oldest may have to be dropped for it.
    fn begin(&mut self, at_ns: u64, id: u32, total: u16) -> (usize, u64) {
        let is_full = self.joined.len() >= JOINED_MAX;
        if is_full {
            self.joined.pop_front();
        }
        self.joined.push_back(Joined { id, total, bytes: Vec::new(), pieces: Vec::new(), at_ns });
        (self.joined.len() - 1, is_full.into())
    }

    fn push(&mut self, bytes: Vec<u8>) -> u64 {
        if self.whole.len() >= ARRIVED_MAX || self.whole_bytes + bytes.len() > WAITING_BYTES_MAX {
            return 1;
        }
        self.whole_bytes += bytes.len();
        self.whole.push_back(bytes);
        0
    }
}

/// Incoming datagrams, by priority.
#[derive(Debug, Default)]
pub struct Incoming {
    arriving: [Arriving; 2],
    dropped: u64,
}

impl Incoming {
    /// The next complete datagram. High priority comes first.
    pub fn pop(&mut self) -> Option<Datagram> {
        let lanes = [Lane::High, Lane::Low].into_iter();
        lanes.zip(&mut self.arriving).find_map(|(lane, arriving)| {
            let bytes = arriving.whole.pop_front()?;
            arriving.whole_bytes -= bytes.len();
            Some(Datagram { lane, bytes })
        })
    }

    /// Is there a complete datagram?
    pub fn has_whole(&self) -> bool {
        self.arriving.iter().any(|arriving| !arriving.whole.is_empty())
    }

    /// Do so many wait that those of another receive might find no room?
    pub fn is_behind(&self) -> bool {
        let is_full = |arriving: &Arriving| {
            arriving.whole.len() > ARRIVED_MAX / 2 || arriving.whole_bytes > WAITING_BYTES_MAX / 2
        };
        self.arriving.iter().any(is_full)
    }

    /// Datagrams that were dropped, complete or not.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds a piece.
    pub fn receive(&mut self, now_ns: u64, lane: Lane, id: u32, piece: Piece) {
        if let Some(place) = place_of(lane) {
            self.dropped += self.arriving[place].receive(now_ns, id, piece);
        }
    }

    /// When [`Self::expire`] has work to do.
    pub fn deadline_ns(&self) -> Option<u64> {
        let waiting = self.arriving.iter().flat_map(|arriving| &arriving.joined);
        waiting.map(|joined| joined.at_ns.saturating_add(JOINED_NS)).min()
    }

    /// Do incomplete datagrams wait?
    #[inline]
    pub fn is_joining(&self) -> bool {
        self.arriving.iter().any(|arriving| !arriving.joined.is_empty())
    }

    /// Drops datagrams whose next piece has been missing for too long, and returns their number.
    pub fn expire(&mut self, now_ns: u64) -> u64 {
        let mut expired = 0;
        for arriving in &mut self.arriving {
            let before = arriving.joined.len();
            arriving.joined.retain(|joined| joined.at_ns.saturating_add(JOINED_NS) > now_ns);
            expired += (before - arriving.joined.len()) as u64;
        }
        self.dropped += expired;
        expired
    }

    /// The bytes of memory that it holds.
    pub fn memory_bytes(&self) -> usize {
        let of = |arriving: &Arriving| {
            arriving.whole_bytes + arriving.joined.iter().map(Joined::memory_bytes).sum::<usize>()
        };
        self.arriving.iter().map(of).sum()
    }

    /// Releases unused memory.
    pub fn trim(&mut self) {
        for arriving in &mut self.arriving {
            arriving.whole.shrink_to_fit();
            arriving.joined.shrink_to_fit();
        }
    }
}
