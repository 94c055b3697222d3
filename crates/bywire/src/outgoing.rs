//! The sending side of a connection: fragments, puts, gets, answers, and what becomes of them.

use std::os::fd::AsFd;

use bywire_ring::geometry::{BUSY_BULK_BYTES, INLINE_BYTES, LaneName};
use bywire_ring::header::{CHECKED, Header, PROMPT};
use bywire_ring::memory::Shared;

use crate::account::Kind;
use crate::buffer::Buffer;
use crate::connection::{Busy, Connection, TransferKind, has_urgent_input, lane_of, pushed};
use crate::error::{Gone, SendError, TransferError};
use crate::event::Event;
use crate::handshake::Packet;
use crate::peer::{Confirm, Priority, TransferId};
use crate::record::{
    DATAGRAM, FIRST, GET, GET_DATA, LENT, MESSAGE, MOVE_BULK, NEXT, NOTE_BYTES_MAX, PUT, PUT_NEXT, PUT_NOTE,
    RETURN, STATUS, STEP_BYTES, checksum,
};
use crate::region::Key;
use crate::resources::Resources;

/// Times that the small bulk area was filled, before a large one pays.
const BUSY_LAPS: u64 = 8;

/// A transfer of ours that has not been pushed whole.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub id: TransferId,
    pub buffer: Buffer,
    /// Bytes pushed so far.
    pub pushed: usize,
    /// Has its first record been pushed (which may hold no bytes)?
    pub is_open: bool,
    /// Was its next fragment begun, and put aside for something urgent?
    pub is_put_aside: bool,
    pub what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Message {
        confirm: Confirm,
    },
    Put {
        key: Key,
        offset: u64,
        note: Note,
        transfer: u32,
    },
    /// The buffer waits in the table already.
    Get {
        key: Key,
        offset: u64,
        length: u64,
        transfer: u32,
    },
}

/// Up to 32 bytes that follow a put.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Note {
    pub bytes: [u8; NOTE_BYTES_MAX],
    pub length: Option<u8>,
}

/// A message that was pushed and whose delivery is to be confirmed.
#[derive(Debug)]
pub(crate) struct Undelivered {
    /// Delivered when the peer has freed this many records.
    pub position: u64,
    pub id: TransferId,
    pub buffer: Buffer,
}

/// A put or a get whose answer is awaited.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub id: TransferId,
    pub kind: TransferKind,
    pub priority: Priority,
    /// A put's is empty until it has been pushed whole.
    pub buffer: Buffer,
    /// Bytes of a get that have arrived.
    pub filled: usize,
    /// The peer owes an answer: everything has been asked.
    pub asked: bool,
}

/// An answer of ours that has not been pushed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Data { transfer: u64, key: Key, offset: u64, remaining: u64 },
    Return { heap: u32, block: u32 },
    Status { transfer: u64, result: Result<(), TransferError> },
}

impl Outgoing {
    /// Bytes to be pushed.
    fn rest(&self) -> usize {
        self.buffer.as_ref().len() - self.pushed
    }

    /// The completion of a transfer that will never be pushed whole; a get's comes from the table.
    pub fn failed(self, result: Result<(), TransferError>) -> Option<Event> {
        match self.what {
            What::Message { .. } => Some(TransferKind::Send.event(self.id, self.buffer, result)),
            What::Put { .. } => Some(TransferKind::Put.event(self.id, self.buffer, result)),
            What::Get { .. } => None,
        }
    }
}

impl Waiting {
    pub fn finished(self, result: Result<(), TransferError>) -> Event {
        self.kind.event(self.id, self.buffer, result)
    }
}

/// The codes are part of the protocol: written out, so that a new variant cannot shift them.
pub(crate) fn status_code(result: Result<(), TransferError>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(TransferError::BadKey | TransferError::Disconnected(_)) => 1,
        Err(TransferError::NoRight) => 2,
        Err(TransferError::OutOfRange) => 3,
    }
}

impl Connection {
    /// Copies a short message into the ring, at once.
    #[inline(always)]
    pub fn send_now(&mut self, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        if !self.outgoing[priority as usize].is_empty() {
            self.starved[priority as usize] = true;
            return Err(SendError::Full);
        }
        match self.push(lane_of(priority), MESSAGE, bytes, &[]) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.starved[priority as usize] = true;
                Err(SendError::Full)
            }
            Err(gone) => Err(SendError::Disconnected(gone)),
        }
    }

    /// Copies a datagram into the ring; `false`: dropped for want of room.
    pub fn send_datagram(&mut self, priority: Priority, bytes: &[u8]) -> Result<bool, Gone> {
        self.push(lane_of(priority), DATAGRAM, bytes, &[])
    }

    /// Announces a lent block.
    pub fn send_lent(
        &mut self,
        priority: Priority,
        heap: u32,
        block: u32,
        length: usize,
    ) -> Result<bool, Gone> {
        if !self.outgoing[priority as usize].is_empty() {
            self.starved[priority as usize] = true;
            return Ok(false);
        }
        let sent = self.push_words(lane_of(priority), LENT, &[heap.into(), block.into(), length as u64])?;
        self.starved[priority as usize] |= !sent;
        Ok(sent)
    }

    /// Publishes one record with a payload of up to a fragment, inline where it fits and no words are given.
    #[inline(always)]
    fn push(&mut self, lane: LaneName, kind: u8, bytes: &[u8], words: &[u64]) -> Result<bool, Gone> {
        let producer = &mut self.producers[lane as usize];
        let is_inline = bytes.len() <= INLINE_BYTES && words.is_empty();
        let (mut kind, mut check) = (kind, 0);
        if self.integrity {
            let length = if is_inline { 0 } else { bytes.len() };
            // Asked first, so that a full ring does not cost a checksum at every try.
            if !producer.has_room(&self.inbound, length)? {
                return Ok(false);
            }
            (kind, check) = (kind | CHECKED, checksum(bytes));
        }
        let header = Header { kind, length: bytes.len() as u16, check };
        let result = if is_inline {
            producer.push_short(&self.outbound, &self.inbound, header, bytes)
        } else {
            producer.push_bulk(&self.outbound, &self.inbound, header, words, bytes)
        };
        let done = pushed(result)?;
        if done {
            self.ring_for_records();
            if is_inline {
                self.producers[lane as usize].claim_ahead(&self.outbound, &self.inbound);
            }
        }
        Ok(done)
    }

    /// Publishes one record of words alone.
    fn push_words(&mut self, lane: LaneName, kind: u8, words: &[u64]) -> Result<bool, Gone> {
        let header = Header { kind, length: 8 * words.len() as u16, check: 0 };
        let result = self.producers[lane as usize].push_inline(&self.outbound, &self.inbound, header, words);
        let done = pushed(result)?;
        if done {
            self.ring_for_records();
        }
        Ok(done)
    }

    /// Moves what is under way by at most one fragment per lane. `true`: something moved.
    pub fn advance(&mut self, resources: &mut Resources) -> Result<bool, Gone> {
        let mut moved = self.advance_replies(resources)?;
        moved |= self.become_busy(resources)?;
        for priority in [Priority::High, Priority::Low] {
            moved |= self.advance_lane(priority, resources)?;
            moved |= self.confirm_delivered(priority, resources)?;
            moved |= self.tell_of_room(priority, resources)?;
        }
        Ok(moved)
    }

    /// Moves the bulk area of the low lane to larger memory, once so much was sent that it pays.
    fn become_busy(&mut self, resources: &mut Resources) -> Result<bool, Gone> {
        if matches!(self.busy, Busy::No) && self.is_busy() && resources.busy_peers_left > 0 {
            self.busy = self.offer_bulk(resources).map_or(Busy::Never, Busy::Offered);
            resources.busy_peers_left -= u32::from(matches!(self.busy, Busy::Offered(_)));
        }
        let Busy::Offered(extension) = &self.busy else { return Ok(false) };
        let extension = extension.clone();
        if !self.push_words(LaneName::Low, MOVE_BULK | PROMPT, &[])? {
            return Ok(false);
        }
        let offset = self.outbound.extend(extension);
        self.producers[LaneName::Low as usize].move_bulk(offset);
        self.busy = Busy::Yes;
        Ok(true)
    }

    fn is_busy(&self) -> bool {
        let waits = self.starved[Priority::Low as usize] || !self.outgoing[Priority::Low as usize].is_empty();
        waits && self.producers[LaneName::Low as usize].laps() >= BUSY_LAPS
    }

    /// Shares a bulk area with the peer; without one, things go on as they are.
    fn offer_bulk(&self, resources: &mut Resources) -> Option<Shared> {
        let total = resources.busy_peers_max as usize;
        if self.foreign_user.is_some_and(|user| !resources.account.may_have_bulk(user, total)) {
            return None;
        }
        let (memory, file) = resources.account.create(Kind::Bulk, BUSY_BULK_BYTES, self.foreign_user).ok()?;
        self.socket.send(&Packet::Bulk.to_bytes(), &[file.as_fd()]).ok()?;
        Some(memory)
    }

    /// Could `advance` move something now? A broken lane counts: the poll finds out.
    pub fn can_advance(&mut self) -> bool {
        let wanted = [
            (LaneName::Reply, (!self.replies.is_empty()).then_some(self.fragment_bytes)),
            (LaneName::High, self.wanted_room(Priority::High)),
            (LaneName::Low, self.wanted_room(Priority::Low)),
        ];
        let can_push = wanted.into_iter().any(|(lane, length)| {
            let mut has_room = |length| self.producers[lane as usize].has_room(&self.inbound, length);
            length.is_some_and(|length| has_room(length).unwrap_or(true))
        });
        can_push
            || [Priority::High, Priority::Low].into_iter().any(|priority| {
                let Some(first) = self.undelivered[priority as usize].front() else { return false };
                let freed = self.producers[lane_of(priority) as usize].freed(&self.inbound);
                freed.is_ok_and(|freed| freed >= first.position) || freed.is_err()
            })
    }

    /// The room without which `advance` moves nothing on a lane; `None`: it has nothing to move.
    fn wanted_room(&self, priority: Priority) -> Option<usize> {
        match self.outgoing[priority as usize].front() {
            Some(entry) => {
                Some(entry.rest().min(self.producers[lane_of(priority) as usize].fragment_bytes()))
            }
            None => self.starved[priority as usize].then_some(self.fragment_bytes),
        }
    }

    fn tell_of_room(&mut self, priority: Priority, resources: &mut Resources) -> Result<bool, Gone> {
        let lane = lane_of(priority) as usize;
        let is_over = self.starved[priority as usize]
            && self.outgoing[priority as usize].is_empty()
            && self.producers[lane].has_room(&self.inbound, self.fragment_bytes)?;
        if is_over {
            self.starved[priority as usize] = false;
            resources.events.push_back(Event::Room { peer: self.peer, priority });
        }
        Ok(is_over)
    }

    /// Confirms whatever the peer had consumed.
    pub fn confirm_all_delivered(&mut self, resources: &mut Resources) -> Result<(), Gone> {
        self.confirm_delivered(Priority::High, resources)?;
        self.confirm_delivered(Priority::Low, resources)?;
        Ok(())
    }

    fn confirm_delivered(&mut self, priority: Priority, resources: &mut Resources) -> Result<bool, Gone> {
        let queue = &mut self.undelivered[priority as usize];
        if queue.is_empty() {
            return Ok(false);
        }
        let freed = self.producers[lane_of(priority) as usize].freed(&self.inbound)?;
        let mut moved = false;
        while queue.front().is_some_and(|entry| entry.position <= freed)
            && let Some(entry) = queue.pop_front()
        {
            resources.complete(Event::Sent { id: entry.id, buffer: entry.buffer, result: Ok(()) }, priority);
            moved = true;
        }
        Ok(moved)
    }

    fn advance_lane(&mut self, priority: Priority, resources: &mut Resources) -> Result<bool, Gone> {
        let Some(mut entry) = self.outgoing[priority as usize].pop_front() else { return Ok(false) };
        let lane = lane_of(priority);
        let before = (entry.pushed, self.producers[lane as usize].staged());
        let finished = match entry.what {
            What::Message { confirm } => self.push_message(lane, &mut entry, confirm, resources),
            What::Put { key, offset, note, transfer } => {
                self.push_put(lane, &mut entry, [key.0, offset, transfer.into()], note, resources)
            }
            What::Get { key, offset, length, transfer } => {
                self.push_words(lane, GET, &[key.0, offset, length, transfer.into()])
            }
        };
        let moved = (entry.pushed, self.producers[lane as usize].staged()) != before;
        match finished {
            Ok(true) => self.finish(priority, entry, resources),
            Ok(false) => self.outgoing[priority as usize].push_front(entry),
            Err(gone) => {
                self.outgoing[priority as usize].push_front(entry);
                return Err(gone);
            }
        }
        Ok(moved || matches!(finished, Ok(true)))
    }

    /// `true`: pushed whole.
    fn push_message(
        &mut self,
        lane: LaneName,
        entry: &mut Outgoing,
        confirm: Confirm,
        resources: &Resources,
    ) -> Result<bool, Gone> {
        let (total, rest) = (entry.buffer.as_ref().len(), entry.rest());
        let is_last = rest <= self.producers[lane as usize].fragment_bytes();
        let prompt = if is_last && confirm == Confirm::Delivered { PROMPT } else { 0 };
        // Never longer, however busy the peer: which messages need a posted buffer does not depend on that.
        if !entry.is_open && total <= self.fragment_bytes {
            return self.push(lane, MESSAGE | prompt, entry.buffer.as_ref(), &[]);
        }
        // The words mark it as bulk even where a last piece would fit inline.
        let kind = if entry.is_open { NEXT } else { FIRST };
        let done = self.push_piece(lane, kind | prompt, entry, &[total as u64], resources)?;
        Ok(done && is_last)
    }

    /// Pushes the next fragment of a transfer.
    fn push_piece(
        &mut self,
        lane: LaneName,
        kind: u8,
        entry: &mut Outgoing,
        words: &[u64],
        resources: &Resources,
    ) -> Result<bool, Gone> {
        let staged = self.producers[lane as usize].staged();
        // Once a datagram has taken the place of what was staged, it is copied again without a pause: else a
        // flood of both could keep it from ever being whole.
        let may_pause = self.may_pause(lane, resources) && (staged > 0 || !entry.is_put_aside);
        let length = entry.rest().min(self.producers[lane as usize].fragment_bytes());
        let piece = &entry.buffer.as_ref()[entry.pushed..entry.pushed + length];
        let done = self.push_fragment(lane, kind, piece, words, may_pause)?;
        if done {
            entry.is_open = true;
            entry.pushed += length;
        }
        entry.is_put_aside = !done && (entry.is_put_aside || self.producers[lane as usize].staged() > 0);
        Ok(done)
    }

    /// Pushes one fragment, in steps between which a message of high priority may come first: `false` means
    /// that the rest is for the next call.
    fn push_fragment(
        &mut self,
        lane: LaneName,
        kind: u8,
        piece: &[u8],
        words: &[u64],
        may_pause: bool,
    ) -> Result<bool, Gone> {
        let goes_on = || !may_pause || !has_urgent_input(&self.consumers, &self.inbound);
        let producer = &mut self.producers[lane as usize];
        match producer.stage(&self.outbound, &self.inbound, piece, STEP_BYTES, goes_on) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return pushed(Err(error)),
        }
        let (kind, check) = if self.integrity { (kind | CHECKED, checksum(piece)) } else { (kind, 0) };
        let header = Header { kind, length: piece.len() as u16, check };
        self.producers[lane as usize].push_staged(&self.outbound, header, words, piece.len());
        self.ring_for_records();
        Ok(true)
    }

    /// `true`: pushed whole.
    fn push_put(
        &mut self,
        lane: LaneName,
        entry: &mut Outgoing,
        [key, offset, transfer]: [u64; 3],
        note: Note,
        resources: &Resources,
    ) -> Result<bool, Gone> {
        let total = entry.buffer.as_ref().len();
        if !entry.is_open || entry.pushed < total {
            let words = [key, offset, total as u64, transfer, note.length.map_or(u64::MAX, u64::from)];
            let kind = if entry.is_open { PUT_NEXT } else { PUT };
            if !self.push_piece(lane, kind, entry, &words, resources)? || entry.pushed < total {
                return Ok(false);
            }
        }
        let Some(length) = note.length else { return Ok(true) };
        self.push(lane, PUT_NOTE, &note.bytes[..length.into()], &[])
    }

    fn finish(&mut self, priority: Priority, entry: Outgoing, resources: &mut Resources) {
        let Outgoing { id, buffer, what, .. } = entry;
        match what {
            What::Message { confirm: Confirm::Copied } => {
                resources.complete(Event::Sent { id, buffer, result: Ok(()) }, priority);
            }
            What::Message { confirm: Confirm::Delivered } => {
                let position = self.producers[lane_of(priority) as usize].position();
                self.undelivered[priority as usize].push_back(Undelivered { position, id, buffer });
            }
            What::Put { transfer, .. } => {
                if let Some(Some(waiting)) = self.waiting.get_mut(transfer as usize) {
                    waiting.buffer = buffer;
                    waiting.asked = true;
                }
            }
            What::Get { transfer, .. } => {
                if let Some(Some(waiting)) = self.waiting.get_mut(transfer as usize) {
                    waiting.asked = true;
                }
            }
        }
    }

    pub fn advance_replies(&mut self, resources: &mut Resources) -> Result<bool, Gone> {
        let Some(reply) = self.replies.pop_front() else { return Ok(false) };
        let (done, rest) = match reply {
            Reply::Status { transfer, result } => {
                (self.push_words(LaneName::Reply, STATUS, &[transfer, status_code(result)])?, Some(reply))
            }
            Reply::Return { heap, block } => {
                let done = self.push_words(LaneName::Reply, RETURN, &[heap.into(), block.into()])?;
                if done {
                    self.heaps_borrowed[heap as usize].held[block as usize] = false;
                }
                (done, Some(reply))
            }
            Reply::Data { transfer, key, offset, remaining } => {
                let length = remaining.min(self.fragment_bytes as u64);
                // Looked up for every piece: a key revoked meanwhile ends the transfer.
                let (done, next) = match resources.regions.readable(key, offset, length) {
                    Ok(piece) => {
                        let done = self.push(LaneName::Reply, GET_DATA, piece, &[transfer])?;
                        let (offset, remaining) = (offset + length, remaining - length);
                        let over = Reply::Status { transfer, result: Ok(()) };
                        (
                            done,
                            if remaining > 0 {
                                Reply::Data { transfer, key, offset, remaining }
                            } else {
                                over
                            },
                        )
                    }
                    Err(error) => (true, Reply::Status { transfer, result: Err(error) }),
                };
                if done {
                    // Behind the others: no answer waits for more than a fragment of a long one.
                    self.replies.push_back(next);
                    return Ok(true);
                }
                (false, Some(reply))
            }
        };
        if !done && let Some(reply) = rest {
            self.replies.push_front(reply);
        }
        Ok(done)
    }
}
