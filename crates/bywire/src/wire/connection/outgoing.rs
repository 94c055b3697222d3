//! The sending end of a connection: transfers cut into records.
//!
//! Short records are gathered in a chunk for each lane. The chunk becomes a piece of the lane when it is full, and when
//! packets leave and take all that is before it.

use bywire_wire::batch::Batch;
use bywire_wire::frame::{LANES, Lane};
use bywire_wire::planted::{self, Bug};
use bywire_wire::record::{Head, LENGTH_MAX};
use bywire_wire::sending::Exhausted;

use super::outbound::{Lent, Piece};
use super::{Connection, Stage, lane_of};
use crate::message::error::{DisconnectReason, SendError, TransferError};
use crate::message::peer::{Confirm, Priority};
use crate::message::resources::Resources;
use crate::message::transfers::{Note, Operation, Outgoing, Reply, status_code};

/// The most copied bytes of one lane that wait for the peer's acknowledgement. A message beyond that is refused.
const WAITING_BYTES_MAX: u64 = 256 << 10;
/// While so many bytes of one lane wait for it, messages of high priority are gathered as others are.
const AHEAD_BYTES: u64 = 32 << 10;
/// This much has to be free before the program is told of room. Less would cause short packets.
const ROOM_BYTES: usize = WAITING_BYTES_MAX as usize / 2;
/// The most bytes of waiting answers. It is small, because the peer may request any amount.
const REPLY_BYTES_MAX: u64 = 64 << 10;
/// The least cost of a piece besides its bytes.
const PIECE_BYTES: u64 = 64;
/// The size of a chunk.
const CHUNK_BYTES: usize = 4096;
/// A shorter chunk than this is copied again, so that its memory is free for the next one, …
const CHUNK_BYTES_MIN: usize = CHUNK_BYTES / 2;
/// … unless fewer pieces than this wait for the peer. A program that sends a message at a time saves the copy.
const CHUNKS_SHORT: u64 = 4;
/// Chunks kept for later.
const SPARE_MAX: usize = 16;
/// The most bytes that are gathered while a program sends without a poll between.
const GATHERED_BYTES_MAX: usize = 16 << 10;
/// The bytes of a get's data in one record.
const GOT_BYTES_MAX: u64 = 8 << 10;

impl From<Exhausted> for DisconnectReason {
    fn from(_: Exhausted) -> Self {
        Self::Here
    }
}

/// Returns whether `length` bytes may wait beside `waiting` ones. An empty lane always has room.
#[inline]
fn may_wait(waiting: u64, length: usize, max: u64) -> bool {
    waiting == 0 || waiting + length as u64 <= max
}

impl Connection {
    /// The longest datagram, and the longest transfer that is copied.
    pub fn fragment_bytes(&self) -> usize {
        self.fragment_bytes
    }

    /// The longest message that is copied at once and needs no posted buffer at the peer, without a head of its own.
    pub fn short_bytes(&self) -> usize {
        self.short_bytes
    }

    /// Copies a short message, at once.
    #[inline]
    pub fn send_now(&mut self, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        let is_urgent = self.admit_short(priority, bytes.len())?;
        let head = Head::Message { length: bytes.len() as u64, is_long: false, is_prompt: false };
        let added = self.add(lane_of(priority), head, bytes);
        added.map_err(|error| SendError::Disconnected(error.into()))?;
        self.is_urgent |= is_urgent;
        Ok(())
    }

    /// Sends a short message in two parts, as [`Self::send_now`] sends one in one part.
    pub fn send_headed_now(&mut self, priority: Priority, parts: [&[u8]; 2]) -> Result<(), SendError> {
        let length = parts[0].len() + parts[1].len();
        let is_urgent = self.admit_short(priority, length)?;
        let head = Head::Message { length: length as u64, is_long: false, is_prompt: false };
        let added = self.add_parts(lane_of(priority), head, parts);
        added.map_err(|error| SendError::Disconnected(error.into()))?;
        self.is_urgent |= is_urgent;
        Ok(())
    }

    /// Checks that a short message of `length` bytes can be sent now. Returns whether it is to leave at once.
    #[inline]
    fn admit_short(&mut self, priority: Priority, length: usize) -> Result<bool, SendError> {
        if self.stage != Stage::Open {
            return Err(SendError::Disconnected(self.ended().unwrap_or(DisconnectReason::Closed)));
        }
        let is_first = self.transfers.is_idle(priority) || planted::is(Bug::ShortOvertakes);
        let waiting = self.waiting_bytes(lane_of(priority));
        if !is_first || !may_wait(waiting, length, WAITING_BYTES_MAX) {
            self.transfers.starve(priority);
            self.was_full = true;
            return Err(SendError::Full);
        }
        // A program that is far ahead of its peer gains more if its messages leave together.
        Ok(priority == Priority::High && waiting < AHEAD_BYTES)
    }

    /// Copies a datagram. `false`: it was dropped for lack of room.
    pub fn send_datagram(&mut self, priority: Priority, bytes: &[u8]) -> Result<bool, DisconnectReason> {
        let is_taken = self.stage == Stage::Open && self.packets.send_datagram(lane_of(priority), bytes);
        if is_taken {
            self.is_urgent |= priority == Priority::High;
            self.unsent_bytes += bytes.len();
        }
        Ok(is_taken)
    }

    /// Is there room for one more datagram?
    pub fn has_datagram_room(&self, priority: Priority) -> bool {
        self.packets.has_datagram_room(lane_of(priority))
    }

    /// Called after something was sent: must packets leave now? Otherwise they leave with the next poll, whose number
    /// is `polls`. High messages and the first message after a poll leave at once. What follows leaves when it fills a
    /// packet, then when it fills two, and so on, so that a program which sends much between two polls fills batches. A
    /// program for which there was no room sends much, and fills them from the first message on.
    pub fn must_transmit(&mut self, polls: u32) -> bool {
        let is_first = self.left_at_poll != Some(polls);
        if is_first {
            self.left_at_poll = Some(polls);
            self.batch_bytes =
                if self.was_full { GATHERED_BYTES_MAX } else { self.packets.packet_bytes().into() };
        }
        let is_full = self.unsent_bytes >= self.batch_bytes;
        if is_full {
            self.batch_bytes = (2 * self.batch_bytes).min(GATHERED_BYTES_MAX);
        }
        is_first && !std::mem::take(&mut self.was_full) || is_full || self.is_urgent
    }

    /// Is something gathered that could leave?
    pub fn has_gathered(&self) -> bool {
        let mut lanes = LANES.into_iter().zip(&self.outbound);
        lanes.any(|(lane, outbound)| outbound.has_gathered() && !self.packets.has_unsent(lane))
    }

    /// Adds the packets that have to leave by now to a batch. If the batch is full, there may be more. [`Self::settle`]
    /// follows when they have left.
    pub fn transmit(&mut self, now_ns: u64, batch: &mut Batch) {
        let before = batch.count();
        for lane in LANES {
            // Bytes behind other waiting bytes continue to be gathered.
            if self.outbound[lane as usize].has_gathered() && !self.packets.has_unsent(lane) {
                // An exhausted lane ends the connection at its next send.
                let _ = self.hand_over(lane);
            }
        }
        (self.is_urgent, self.unsent_bytes) = (false, 0);
        self.packets.transmit(now_ns, batch);
        if batch.count() > before && self.packets.flight().0 > 0 {
            self.unanswered_since_ns.get_or_insert(now_ns);
        }
    }

    /// Does something wait for the peer (for credit, an answer, or a confirmation) while nothing is in flight? Its silence would
    /// pass unnoticed.
    pub fn awaits_peer(&self) -> bool {
        let is_undelivered = |priority| self.transfers.first_undelivered(priority).is_some();
        self.stage == Stage::Open
            && self.packets.flight().0 == 0
            && (self.transfers.awaits_answers()
                || LANES.into_iter().any(|lane| self.packets.has_unsent(lane))
                || [Priority::High, Priority::Low].into_iter().any(is_undelivered))
    }

    /// Bytes of a lane that wait for the peer's acknowledgement, with their cost.
    fn waiting_bytes(&self, lane: Lane) -> u64 {
        let outbound = &self.outbound[lane as usize];
        self.packets.end(lane) - self.packets.acknowledged(lane)
            + outbound.gathered.len() as u64
            + PIECE_BYTES * outbound.pieces
    }

    /// Is there room for a record with `length` bytes? An empty lane always has room.
    fn has_room(&self, lane: Lane, length: usize) -> bool {
        let max = if lane == Lane::Reply { REPLY_BYTES_MAX } else { WAITING_BYTES_MAX };
        may_wait(self.waiting_bytes(lane), length, max)
    }

    /// Adds a record whose payload is copied.
    fn add(&mut self, lane: Lane, head: Head, payload: &[u8]) -> Result<(), Exhausted> {
        let outbound = &mut self.outbound[lane as usize];
        if outbound.gathered.len() + payload.len() > CHUNK_BYTES && !outbound.gathered.is_empty() {
            self.hand_over(lane)?;
        }
        let outbound = &mut self.outbound[lane as usize];
        if outbound.gathered.capacity() == 0 {
            outbound.gathered = outbound.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES + 64));
        }
        let before = outbound.gathered.len();
        head.write(&mut outbound.gathered);
        outbound.gathered.extend_from_slice(payload);
        self.unsent_bytes += outbound.gathered.len() - before;
        Ok(())
    }

    /// Adds a record whose payload is in two parts.
    fn add_parts(&mut self, lane: Lane, head: Head, [first, second]: [&[u8]; 2]) -> Result<(), Exhausted> {
        if self.outbound[lane as usize].gathered.len() + first.len() + second.len() > CHUNK_BYTES {
            self.hand_over(lane)?;
        }
        self.add(lane, head, first)?;
        self.outbound[lane as usize].gathered.extend_from_slice(second);
        self.unsent_bytes += second.len();
        Ok(())
    }

    /// Adds the gathered bytes to the lane as one piece.
    fn hand_over(&mut self, lane: Lane) -> Result<(), Exhausted> {
        let outbound = &mut self.outbound[lane as usize];
        if outbound.gathered.is_empty() {
            return Ok(());
        }
        let piece = if outbound.gathered.len() < CHUNK_BYTES_MIN && outbound.pieces >= CHUNKS_SHORT {
            let copied = Piece::Copied(outbound.gathered.as_slice().into());
            outbound.gathered.clear();
            copied
        } else {
            Piece::Chunk(std::mem::take(&mut outbound.gathered))
        };
        outbound.pieces += 1;
        outbound.copied += piece.copied_bytes();
        self.packets.send(lane, piece)?;
        Ok(())
    }

    /// The offset of a lane after everything that was added.
    fn position(&self, lane: Lane) -> u64 {
        self.packets.end(lane) + self.outbound[lane as usize].gathered.len() as u64
    }

    /// Advances transfers into the lanes as far as there is room, answers first. `true`: something moved.
    pub fn advance(&mut self, resources: &mut Resources) -> Result<bool, DisconnectReason> {
        let mut moved = self.take_back(resources);
        moved |= self.advance_replies(resources)?;
        for priority in [Priority::High, Priority::Low] {
            while self.advance_lane(priority, resources)? {
                moved = true;
            }
            moved |= self.tell_of_room(priority, resources);
        }
        Ok(moved)
    }

    /// May `advance` have work to do later?
    pub fn has_work(&self) -> bool {
        self.transfers.has_work()
    }

    /// Could `advance` move something now?
    pub fn can_advance(&self) -> bool {
        // The usual answer, at little cost.
        if !self.has_work() {
            return false;
        }
        let can_reply = self.transfers.owes_replies() && self.has_room(Lane::Reply, GOT_BYTES_MAX as usize);
        can_reply
            || self.has_room_to_tell()
            || [Priority::High, Priority::Low].into_iter().any(|priority| {
                let lane = lane_of(priority);
                let can_send =
                    self.transfers.first(priority).is_some_and(|entry| self.can_begin(lane, entry));
                let can_confirm = self
                    .transfers
                    .first_undelivered(priority)
                    .is_some_and(|position| position <= self.packets.taken(lane));
                can_send || can_confirm
            })
    }

    /// Short ones are copied and need room. The others are bounded by tokens.
    fn can_begin(&self, lane: Lane, entry: &Outgoing) -> bool {
        self.is_long(entry) || self.has_room(lane, entry.rest())
    }

    fn is_long(&self, entry: &Outgoing) -> bool {
        entry.rest() > self.fragment_bytes
    }

    /// Does the program wait for room that there is now?
    pub fn has_room_to_tell(&self) -> bool {
        [Priority::High, Priority::Low].into_iter().any(|priority| self.is_room_awaited(priority))
    }

    fn is_room_awaited(&self, priority: Priority) -> bool {
        let lane = lane_of(priority);
        self.transfers.is_starved(priority)
            && self.transfers.is_idle(priority)
            && self.has_room(lane, self.fragment_bytes.max(ROOM_BYTES))
            && self.packets.has_datagram_room(lane)
    }

    fn tell_of_room(&mut self, priority: Priority, resources: &mut Resources) -> bool {
        let is_over = self.is_room_awaited(priority) && !planted::is(Bug::RoomForgotten);
        if is_over {
            self.transfers.tell_of_room(priority, resources);
        }
        is_over
    }

    /// Puts the first transfer of a priority into its lane.
    fn advance_lane(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<bool, DisconnectReason> {
        let lane = lane_of(priority);
        let Some(entry) = self.transfers.first(priority).filter(|entry| self.can_begin(lane, entry)) else {
            return Ok(false);
        };
        let is_long = self.is_long(entry);
        let Some(entry) = self.transfers.take_first(priority) else { return Ok(false) };
        let Some((head, note)) = head_of(&entry, is_long) else {
            return self.refuse(entry, priority, resources);
        };
        self.is_urgent |= priority == Priority::High;
        if is_long {
            self.add(lane, head, &[])?;
            self.hand_over(lane)?;
            let position = self.position(lane) + entry.rest() as u64;
            self.outbound[lane as usize].pieces += 1;
            self.outbound[lane as usize].lent += 1;
            self.unsent_bytes += entry.rest();
            self.packets.send(lane, Piece::Lent(Box::new(Lent { entry, position })))?;
            self.outbound[lane as usize].gathered.extend_from_slice(note.bytes().unwrap_or_default());
            // The note then leaves in the packet of the last bytes. Gathered, it would wait for them to leave, and need its own.
            self.hand_over(lane)?;
        } else {
            self.add(lane, head, entry.buffer.as_ref())?;
            self.outbound[lane as usize].gathered.extend_from_slice(note.bytes().unwrap_or_default());
            let position = self.position(lane);
            self.transfers.finish(entry, priority, position, resources);
        }
        Ok(true)
    }

    /// Ends a transfer that is too long.
    fn refuse(
        &mut self,
        entry: Outgoing,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<bool, DisconnectReason> {
        let failed = Err(TransferError::OutOfRange);
        match entry.operation {
            Operation::Message { .. } => self.transfers.fail(entry, priority, failed, resources),
            Operation::Put { transfer, .. } | Operation::Get { transfer, .. } => {
                self.transfers.finish(entry, priority, 0, resources);
                self.transfers.receive_status(transfer.into(), status_code(failed), resources)?;
            }
        }
        Ok(true)
    }

    /// Sends answers, and pieces of long ones, as far as there is room.
    pub(super) fn advance_replies(&mut self, resources: &mut Resources) -> Result<bool, DisconnectReason> {
        let mut moved = false;
        while self.has_room(Lane::Reply, GOT_BYTES_MAX as usize)
            && let Some(reply) = self.transfers.next_reply()
        {
            self.answer(reply, resources)?;
            moved = true;
        }
        if planted::is(Bug::AnswerForgotten) {
            self.transfers.next_reply();
        }
        Ok(moved)
    }

    fn answer(&mut self, reply: Reply, resources: &Resources) -> Result<(), DisconnectReason> {
        match reply {
            Reply::Status { transfer, result } => {
                let head = Head::Status { transfer, code: status_code(result) };
                self.add(Lane::Reply, head, &[])?;
            }
            Reply::Data { transfer, key, offset, remaining } => {
                let length = remaining.min(GOT_BYTES_MAX);
                // Checked for every piece: a revoked key ends the transfer.
                let next = match resources.regions.readable(key, offset, length) {
                    Ok(piece) => {
                        self.add(Lane::Reply, Head::Got { length, transfer }, piece)?;
                        let moved = if planted::is(Bug::GotRepeated) { 0 } else { length };
                        let (offset, remaining) = (offset + moved, remaining - length);
                        match remaining {
                            0 => Reply::Status { transfer, result: Ok(()) },
                            _ => Reply::Data { transfer, key, offset, remaining },
                        }
                    }
                    Err(error) => Reply::Status { transfer, result: Err(error) },
                };
                // Queued after the others, so that no answer waits for more than a piece of a long one.
                self.transfers.reply_last(next);
            }
        }
        // An answer does not wait to be gathered, because the peer's program waits for it.
        self.is_urgent = true;
        Ok(())
    }

    /// Confirms every message that the peer has consumed.
    pub fn confirm_all_delivered(&mut self, resources: &mut Resources) -> Result<(), DisconnectReason> {
        self.take_back(resources);
        Ok(())
    }

    /// Returns memory that the peer has acknowledged, and confirms what it has consumed. `true`: there was something.
    pub(super) fn take_back(&mut self, resources: &mut Resources) -> bool {
        let is_undelivered = |priority| self.transfers.first_undelivered(priority).is_some();
        let is_any = LANES.into_iter().any(|lane| self.packets.has_free(lane))
            || [Priority::High, Priority::Low].into_iter().any(is_undelivered);
        if !is_any {
            return false;
        }
        let mut any = self.take_pieces_back(Lane::Reply, Priority::Low, resources);
        for priority in [Priority::High, Priority::Low] {
            let lane = lane_of(priority);
            any |= self.take_pieces_back(lane, priority, resources);
            let is_early = planted::is(Bug::DeliveredEarly);
            let taken = if is_early { self.packets.acknowledged(lane) } else { self.packets.taken(lane) };
            any |= self.transfers.confirm(priority, taken, resources);
        }
        any
    }

    fn take_pieces_back(&mut self, lane: Lane, priority: Priority, resources: &mut Resources) -> bool {
        if !self.packets.has_free(lane) {
            return false;
        }
        loop {
            self.take_copies_back(lane);
            let Some(piece) = self.packets.take_back(lane) else { return true };
            let outbound = &mut self.outbound[lane as usize];
            outbound.pieces -= 1;
            if let Piece::Lent(lent) = piece {
                outbound.lent -= 1;
                let Lent { entry, position } = *lent;
                self.transfers.finish(entry, priority, position, resources);
            }
        }
    }

    /// Returns the memory of copies that the peer has acknowledged, up to a piece in the program's memory.
    #[inline]
    pub(super) fn take_copies_back(&mut self, lane: Lane) {
        while self.packets.first_free(lane).is_some_and(|piece| !matches!(piece, Piece::Lent(_))) {
            let Some(piece) = self.packets.take_back(lane) else { return };
            let outbound = &mut self.outbound[lane as usize];
            outbound.pieces -= 1;
            outbound.copied -= piece.copied_bytes();
            if let Piece::Chunk(mut bytes) = piece
                && outbound.spare.len() < SPARE_MAX
                && bytes.capacity() <= 2 * CHUNK_BYTES
            {
                bytes.clear();
                outbound.spare.push(bytes);
            }
        }
    }
}

/// The head of a transfer's record, and the note after its payload. `None`: it is too long.
fn head_of(entry: &Outgoing, is_long: bool) -> Option<(Head, Note)> {
    let total = entry.buffer.as_ref().len() as u64;
    let (head, note, length) = match entry.operation {
        Operation::Message { confirm } => {
            let is_prompt = confirm == Confirm::Delivered;
            (Head::Message { length: total, is_long, is_prompt }, Note::default(), total)
        }
        Operation::Put { key, offset, note, transfer } => {
            let length = note.bytes().map(|note| note.len() as u8);
            let transfer = transfer.into();
            (Head::Put { length: total, key: key.0, offset, transfer, note: length }, note, total)
        }
        Operation::Get { key, offset, length, transfer } => {
            (Head::Get { key: key.0, offset, length, transfer: transfer.into() }, Note::default(), length)
        }
    };
    (length <= LENGTH_MAX).then_some((head, note))
}
