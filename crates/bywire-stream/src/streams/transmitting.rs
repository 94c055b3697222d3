//! Transmitting: records of many streams in one message.

use super::Streams;
use crate::direction::Next;
use crate::id::{Lane, StreamId};
use crate::limits::{
    EARLY_BYTES_MIN, HELD_MESSAGE_BYTES, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN, SHORT_BYTES_MAX, TURN_BYTES,
};
use crate::planted::{self, Bug};
use crate::record::{BYTES_HEAD, HEADER_BYTES, Header, Record, bytes_head};
use crate::stream::Phase;

/// A piece of a stream is not cut shorter than this only because the message is full.
const PIECE_BYTES_MIN: u64 = 256;

/// A message in the making.
struct Message<'a> {
    target: &'a mut [u8],
    length: usize,
    lane: Lane,
    /// The number that the message will have.
    number: u64,
    /// The last message of the high lane that has a record of a stream in this one.
    after: u64,
}

impl Message<'_> {
    fn room(&self) -> usize {
        self.target.len() - self.length
    }

    /// Adds a record if it fits.
    fn push(&mut self, record: Record) -> bool {
        let fits = record.length() <= self.room();
        if fits {
            self.length += record.write(&mut self.target[self.length..]);
        }
        fits
    }

    fn is_empty(&self) -> bool {
        self.length == HEADER_BYTES
    }
}

/// The outcome of a stream's turn.
enum Turn {
    /// The stream has nothing more to send here.
    Over,
    /// The stream has had its share.
    Used,
    /// The message is full.
    Full,
}

impl Streams {
    /// Returns whether a lane has a message to send. It may be found then that there is none, as a stream was reset.
    pub fn has_output(&self, lane: Lane) -> bool {
        if self.is_over {
            return false;
        }
        match lane {
            Lane::High => {
                self.must_introduce
                    || self.closing.is_some()
                    || self.must_acknowledge
                    || !self.control.is_empty()
                    || !self.data[Lane::High as usize].is_empty()
            }
            Lane::Low => {
                self.closing.is_none()
                    && !self.data[Lane::Low as usize].is_empty()
                    && self.low_room() >= MESSAGE_BYTES_MIN
            }
        }
    }

    /// Makes the next message of a lane in `target`, and returns its length, which is 0 if there is none. The machine counts
    /// it as sent: the caller sends messages of each lane in this order, and never drops one while the connection lasts. It
    /// keeps one that the link has no room for.
    ///
    /// `read` writes the bytes of a stream from an offset on into a slice, all of it. It is only asked for bytes that the
    /// caller has queued.
    ///
    /// # Panics
    /// If `target` is shorter than [`MESSAGE_BYTES_MIN`].
    pub fn transmit(
        &mut self,
        lane: Lane,
        target: &mut [u8],
        mut read: impl FnMut(StreamId, u64, &mut [u8]),
    ) -> usize {
        assert!(target.len() >= MESSAGE_BYTES_MIN, "see MESSAGE_BYTES_MIN");
        if self.is_over || lane == Lane::Low && self.data[Lane::Low as usize].is_empty() {
            return 0;
        }
        let room = match lane {
            Lane::High => target.len().min(MESSAGE_BYTES_MAX),
            Lane::Low => target.len().min(self.low_room()),
        };
        if room < MESSAGE_BYTES_MIN {
            self.counts.stalled += 1;
            return 0;
        }
        let number = self.sent[lane as usize] + 1;
        let mut message =
            Message { target: &mut target[..room], length: HEADER_BYTES, lane, number, after: 0 };
        match lane {
            Lane::High => self.fill_high(&mut message, &mut read),
            Lane::Low if self.closing.is_none() => self.fill_data(&mut message, &mut read),
            Lane::Low => {}
        }
        let is_bare = lane == Lane::High && self.must_acknowledge;
        if message.is_empty() && !is_bare {
            return 0;
        }
        self.finish_message(message)
    }

    /// The longest message of the low lane that the peer could hold now.
    fn low_room(&self) -> usize {
        if planted::is(Bug::HeldUnbounded) {
            return MESSAGE_BYTES_MAX;
        }
        let most = u64::from(self.peer.map_or(EARLY_BYTES_MIN, |peer| peer.early_bytes_max));
        let left = most.saturating_sub(self.early_bytes + HELD_MESSAGE_BYTES);
        left.min(MESSAGE_BYTES_MAX as u64) as usize
    }

    fn fill_high(&mut self, message: &mut Message, read: &mut impl FnMut(StreamId, u64, &mut [u8])) {
        if self.must_introduce {
            let limits = self.limits;
            self.must_introduce = false;
            message.push(Record::Hello {
                streams_max: limits.streams_max,
                opens_max: limits.opens_max,
                early_bytes_max: limits.early_bytes_max,
            });
        }
        if let Some(reason) = self.closing {
            self.is_over = true;
            message.push(Record::Close { reason });
            return;
        }
        self.fill_control(message);
        self.fill_data(message, read);
        if !message.is_empty() || self.must_acknowledge {
            self.fill_credit(message);
        }
    }

    fn fill_control(&mut self, message: &mut Message) {
        while let Some(id) = self.control.front().copied() {
            let slot = id.slot();
            let stream = &mut self.slots[slot];
            // A stream's slot is not free while it is in this queue.
            while let Some(record) = stream.next_control() {
                if !message.push(record) {
                    return;
                }
                self.counts.credits += u64::from(matches!(record, Record::Credit { .. }));
                stream.last[Lane::High as usize] = message.number;
                stream.control_sent();
            }
            stream.is_controlled = false;
            self.control.pop_front();
            self.list_data(slot);
        }
    }

    fn fill_data(&mut self, message: &mut Message, read: &mut impl FnMut(StreamId, u64, &mut [u8])) {
        let lane = message.lane;
        while let Some((id, counted)) = self.data[lane as usize].front().copied() {
            let turn = match self.find(id) {
                Some(slot) if self.must_be_low(slot, lane) => Turn::Used,
                Some(slot) => self.fill_turn(slot, message, read),
                None => Turn::Over,
            };
            if matches!(turn, Turn::Full) {
                return;
            }
            self.data[lane as usize].pop_front();
            if lane == Lane::High {
                self.high_bytes -= counted;
            }
            let Some(slot) = self.find(id) else { continue };
            self.slots[slot].turn_bytes = TURN_BYTES;
            if matches!(turn, Turn::Over) {
                self.slots[slot].lane = None;
            } else {
                self.counts.turns += u64::from(lane == Lane::Low);
                self.slots[slot].lane = Some(Lane::Low);
                self.data[Lane::Low as usize].push_back((id, 0));
            }
        }
    }

    /// Returns whether a stream in the queue of the high lane has got too long for it.
    fn must_be_low(&mut self, slot: usize, lane: Lane) -> bool {
        let stream = &self.slots[slot];
        let is_long = stream.phase == Phase::Open && stream.outgoing.unsent() > SHORT_BYTES_MAX;
        self.counts.demoted += u64::from(lane == Lane::High && is_long);
        lane == Lane::High && is_long
    }

    /// Adds what a stream may send in its turn.
    fn fill_turn(
        &mut self,
        slot: usize,
        message: &mut Message,
        read: &mut impl FnMut(StreamId, u64, &mut [u8]),
    ) -> Turn {
        let stream = &mut self.slots[slot];
        let id = stream.id;
        if !stream.has_data(id.opener() == self.side) {
            return Turn::Over;
        }
        let lane = message.lane as usize;
        let after = stream.last[Lane::High as usize];
        if stream.phase == Phase::Finished {
            if !message.push(Record::Done { stream: id }) {
                return Turn::Full;
            }
            message.after = message.after.max(after);
            stream.is_done_sent = true;
            stream.last[lane] = message.number;
            if stream.has_peer_done || planted::is(Bug::SlotReusedEarly) {
                self.free(slot);
            }
            return Turn::Over;
        }
        loop {
            match stream.outgoing.next() {
                Next::Nothing => return Turn::Over,
                Next::Back { offset } => {
                    if !message.push(Record::Back { stream: id, offset }) {
                        return Turn::Full;
                    }
                    stream.outgoing.send_back();
                }
                Next::Bytes { offset, most, is_last_half } => {
                    let most = if planted::is(Bug::TurnKept) { most } else { most.min(stream.turn_bytes) };
                    if most == 0 && !is_last_half {
                        return Turn::Used;
                    }
                    if message.room() < BYTES_HEAD + most.min(PIECE_BYTES_MIN) as usize {
                        return Turn::Full;
                    }
                    let length = (message.room() - BYTES_HEAD).min(most as usize);
                    let is_half = stream.outgoing.send(length as u64);
                    let head = bytes_head(id, offset, length, is_half);
                    let (target, at) = (&mut *message.target, message.length);
                    target[at..][..BYTES_HEAD].copy_from_slice(&head);
                    if length > 0 {
                        read(id, offset, &mut target[at + BYTES_HEAD..][..length]);
                    }
                    message.length += BYTES_HEAD + length;
                    stream.turn_bytes = stream.turn_bytes.saturating_sub(length as u64);
                    self.counts.bytes += length as u64;
                    let pieces = [&mut self.counts.high_pieces, &mut self.counts.low_pieces];
                    *pieces.into_iter().nth(lane).expect("there are two lanes") += 1;
                }
            }
            message.after = message.after.max(after);
            stream.last[lane] = message.number;
        }
    }

    /// Adds credit that can wait for a message, as there is one.
    fn fill_credit(&mut self, message: &mut Message) {
        while let Some(id) = self.lazy.front().copied() {
            if let Some(slot) = self.find(id) {
                let stream = &mut self.slots[slot];
                if stream.phase == Phase::Open && stream.incoming.has_news() {
                    let (drained, window) = stream.incoming.progress();
                    if !message.push(Record::Credit { stream: id, drained, window }) {
                        return;
                    }
                    stream.last[Lane::High as usize] = message.number;
                    stream.incoming.announced();
                    self.counts.lazy_credits += 1;
                }
                stream.is_lazy = false;
            }
            self.lazy.pop_front();
        }
    }

    /// Writes the header, and counts the message as sent.
    fn finish_message(&mut self, message: Message) -> usize {
        let acknowledged = self.acknowledged[Lane::High as usize];
        let mut header = Header {
            wants_acknowledgement: false,
            after: None,
            processed: self.processed.map(|count| count as u32),
        };
        if message.lane == Lane::Low {
            self.counts.low_messages += 1;
            if message.after > acknowledged {
                self.counts.ordered += 1;
                self.awaited = self.awaited.max(message.after);
                header.after = (!planted::is(Bug::AfterForgotten)).then_some(message.after as u32);
            }
            let is_waiting = self.awaited > acknowledged;
            if is_waiting {
                self.early_bytes += message.length as u64 + HELD_MESSAGE_BYTES;
            }
            // The peer holds half of what it may, or the bulk is through: streams go back to the high lane once that is known.
            let most = u64::from(self.peer.map_or(EARLY_BYTES_MIN, |peer| peer.early_bytes_max));
            header.wants_acknowledgement =
                is_waiting && self.early_bytes > most / 2 && !planted::is(Bug::AcknowledgementUnasked)
                    || self.data[Lane::Low as usize].is_empty();
        } else {
            self.counts.high_messages += 1;
            self.counts.bare_messages += u64::from(message.is_empty());
        }
        self.must_acknowledge = false;
        self.sent[message.lane as usize] = message.number;
        message.target[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        message.length
    }
}
