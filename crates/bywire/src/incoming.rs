//! The receiving side of a connection: every word here was written by a peer that may be hostile.

use bywire_ring::geometry::LaneName;
use bywire_ring::header::{BULK, CHECKED, Header, KIND_MASK};

use crate::buffer::{Buffer, Payload};
use crate::connection::{Connection, Step, has_urgent_input, lane_of};
use crate::error::{Gone, TransferError};
use crate::event::{Event, Message};
use crate::heap::{Lent, Return, Ticket};
use crate::outgoing::Reply;
use crate::peer::Priority;
use crate::record::{
    DATAGRAM, FIRST, GET, GET_DATA, LENT, MESSAGE, MOVE_BULK, NEXT, NOTE_BYTES_MAX, PUT, PUT_NEXT, PUT_NOTE,
    REPLIES_MAX, RETURN, RunningChecksum, STATUS, STEP_BYTES, bytes_of, checksum,
};
use crate::region::{GUESSES_MAX, Key};
use crate::resources::{Fitting, Resources};

/// What is half received on one lane.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    message: Option<Assembly>,
    put: Option<Put>,
    /// The message at the head of the lane for which no buffer is large enough.
    held_up: Option<HeldUp>,
}

/// A message that waits for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldUp {
    length: u64,
    /// The count of buffers posted when the program was told: once more has been posted and it still does
    /// not fit, the program is told again. `None`: it was not told.
    told: Option<u64>,
    /// The count of changes that make the lane worth another look.
    looks: u64,
}

#[derive(Debug)]
struct Assembly {
    buffer: Buffer,
    /// Whose memory it is: the program's, or ours for want of any.
    is_posted: bool,
    total: usize,
    filled: usize,
    /// Bytes of the next fragment that have been copied already.
    copied: usize,
    /// That fragment's header, which may not change between two steps.
    header: Header,
}

/// What lies at the head of a lane. Plain words: nothing to drop on the fast path.
#[derive(Clone, Copy)]
pub(crate) enum Short {
    Nothing,
    Message {
        words: [u64; 7],
        length: u16,
    },
    /// Something that takes longer.
    Other,
}

/// A put under way; with an error its data goes nowhere.
#[derive(Debug)]
struct Put {
    key: Key,
    offset: u64,
    remaining: u64,
    transfer: u64,
    has_note: bool,
    result: Result<(), TransferError>,
    /// Bytes of the next fragment that have been copied already.
    copied: usize,
    /// Their check: the region is the program's to change between two steps.
    sum: RunningChecksum,
    /// That fragment's header, which may not change between two steps.
    header: Header,
}

/// Compares our copy of a payload with its check, which must be there where `integrity` is agreed.
#[inline(always)]
fn check(header: Header, bytes: &[u8], integrity: bool) -> Result<(), Gone> {
    if is_intact(header, integrity, || checksum(bytes)) { Ok(()) } else { Err(Gone::Corrupted) }
}

#[inline(always)]
fn is_intact(header: Header, integrity: bool, checksum: impl FnOnce() -> u32) -> bool {
    if header.kind & CHECKED != 0 { checksum() == header.check } else { !integrity }
}

impl Incoming {
    /// The posted buffer of a message that will never be complete.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        self.message.take().filter(|assembly| assembly.is_posted).map(|assembly| assembly.buffer)
    }

    /// The header of a fragment that was begun, and put aside for something urgent.
    fn put_aside(&self) -> Option<Header> {
        let message = self.message.as_ref().filter(|assembly| assembly.copied > 0);
        let put = self.put.as_ref().filter(|put| put.copied > 0);
        message.map(|assembly| assembly.header).or(put.map(|put| put.header))
    }

    /// Is something of several records half received?
    #[inline(always)]
    fn is_in_the_midst(&self) -> bool {
        self.message.is_some() | self.put.is_some()
    }
}

impl Connection {
    /// Is the head of the lane a long message for which no posted buffer is large enough?
    #[inline(always)]
    pub fn is_held_up(&self, priority: Priority, resources: &Resources) -> bool {
        // Each post makes the lane worth another look, whether or not its buffer is still there.
        self.incoming[priority as usize]
            .held_up
            .is_some_and(|held_up| held_up.looks == resources.looks(priority))
    }

    /// May a copy on this lane wait for a message of high priority? Not for one that itself waits for a buffer.
    #[inline(always)]
    pub fn may_pause(&self, lane: LaneName, resources: &Resources) -> bool {
        lane == LaneName::Low && !self.is_held_up(Priority::High, resources)
    }

    /// Takes a short message off a lane: the one case that must be fast. For everything else there is
    /// [`Self::receive`].
    #[inline(always)]
    pub fn receive_short(&mut self, priority: Priority) -> Short {
        let lane = lane_of(priority);
        let header = match self.consumers[lane as usize].peek(&self.inbound) {
            Ok(None) => {
                self.consumers[lane as usize].pause();
                return Short::Nothing;
            }
            Ok(Some(header)) if header.kind & (KIND_MASK | BULK) == MESSAGE => header,
            _ => return Short::Other,
        };
        // Whatever breaks a rule is for the other path to judge.
        let is_too_long = header.length > self.inline_bytes_max;
        if is_too_long | self.incoming[priority as usize].is_in_the_midst() {
            return Short::Other;
        }
        let words = self.consumers[lane as usize].words(&self.inbound);
        let is_checked = self.integrity || header.kind & CHECKED != 0;
        if is_checked && check(header, &bytes_of(&words)[..header.length.into()], self.integrity).is_err() {
            // Its end is for the other path.
            return Short::Other;
        }
        self.free(lane, header);
        self.consumers[lane as usize].look_ahead(&self.inbound);
        Short::Message { words, length: header.length }
    }

    /// Takes at most one record off a lane.
    pub fn receive(&mut self, priority: Priority, resources: &mut Resources) -> Result<Step, Gone> {
        let lane = lane_of(priority);
        match self.consumers[lane as usize].peek(&self.inbound)? {
            Some(header) if self.is_in_time(lane, header) => self.receive_record(priority, header, resources),
            _ => Ok(Step::Nothing),
        }
    }

    /// Was a record published before its peer ended? Whatever comes later is not taken.
    fn is_in_time(&self, lane: LaneName, header: Header) -> bool {
        let consumer = &self.consumers[lane as usize];
        self.draining.is_none_or(|horizons| consumer.was_published(horizons[lane as usize], header))
    }

    fn receive_record(
        &mut self,
        priority: Priority,
        header: Header,
        resources: &mut Resources,
    ) -> Result<Step, Gone> {
        if let Some(begun) = self.incoming[priority as usize].put_aside() {
            // The header is the peer's, and only an honest peer leaves it alone.
            return match header.kind & KIND_MASK {
                _ if header != begun => Err(Gone::Broken),
                PUT | PUT_NEXT => self.take_put(priority, header, resources),
                _ => self.take_fragment(priority, header, resources),
            };
        }
        let lane = lane_of(priority);
        let words = self.consumers[lane as usize].words(&self.inbound);
        match header.kind & KIND_MASK {
            MESSAGE if self.incoming[priority as usize].message.is_none() => {
                let payload = self.take_payload(lane, header, words, resources)?;
                Ok(Step::Event(Event::Message(Message { peer: self.peer, priority, payload })))
            }
            DATAGRAM => match self.take_payload(lane, header, words, resources) {
                Ok(payload) => {
                    Ok(Step::Event(Event::Datagram(Message { peer: self.peer, priority, payload })))
                }
                Err(Gone::Corrupted) => {
                    resources.datagrams_dropped += 1;
                    Ok(Step::Progress)
                }
                Err(gone) => Err(gone),
            },
            FIRST => self.begin_message(priority, header, words[0], resources),
            NEXT => self.take_fragment(priority, header, resources),
            PUT => self.begin_put(priority, header, words, resources),
            PUT_NEXT => self.take_put(priority, header, resources),
            PUT_NOTE => self.receive_note(priority, header, words),
            GET => {
                self.free(lane, header);
                self.receive_get(words, resources)
            }
            LENT => self.receive_lent(priority, header, words, resources),
            MOVE_BULK => self.move_bulk(priority, header),
            _ => Err(Gone::Broken),
        }
    }

    /// Frees the record at the head of a lane.
    #[inline(always)]
    fn free(&mut self, lane: LaneName, header: Header) {
        if self.consumers[lane as usize].advance(&self.outbound, header) {
            self.ring_for_credit();
        }
    }

    /// Copies a payload of one record out and frees the record; checked on our copy, which nobody can change.
    fn take_payload(
        &mut self,
        lane: LaneName,
        header: Header,
        words: [u64; 7],
        resources: &mut Resources,
    ) -> Result<Payload, Gone> {
        if u64::from(header.length) > resources.message_bytes_max {
            return Err(Gone::Broken);
        }
        let payload = if header.kind & BULK == 0 {
            Payload::inline(words, header.length)
        } else {
            let length = usize::from(header.length);
            let mut buffer = resources.spare(length);
            self.consumers[lane as usize].read_bulk(&self.inbound, &mut buffer[..length]);
            Payload::buffer(buffer.into(), length)
        };
        self.free(lane, header);
        check(header, &payload, self.integrity)?;
        Ok(payload)
    }

    fn begin_message(
        &mut self,
        priority: Priority,
        header: Header,
        total: u64,
        resources: &mut Resources,
    ) -> Result<Step, Gone> {
        let incoming = &mut self.incoming[priority as usize];
        // What one fragment could carry comes as such, and takes no posted buffer.
        let is_long = total > self.peer_fragment_bytes as u64;
        let is_sound = incoming.message.is_none() && is_long && total <= resources.message_bytes_max;
        if !is_sound || total < u64::from(header.length) || header.length == 0 {
            return Err(Gone::Broken);
        }
        let fitting = resources.take_fitting(priority, total, self.foreign_user);
        let is_posted = matches!(fitting, Fitting::Buffer(_));
        let buffer = match fitting {
            Fitting::Buffer(buffer) => buffer,
            // Of a peer that has ended, what is whole in the ring is not lost for want of a buffer.
            _ if self.draining.is_some() && total <= self.inbound.extended_bytes() as u64 => {
                vec![0; total as usize].into()
            }
            _ if self.draining.is_some() => return Ok(Step::Nothing),
            Fitting::Missing => return Ok(self.hold_up(priority, total, true, resources)),
            Fitting::Shared => return Ok(self.hold_up(priority, total, false, resources)),
        };
        incoming.held_up = None;
        let total = total as usize;
        incoming.message = Some(Assembly { buffer, is_posted, total, filled: 0, copied: 0, header });
        self.take_fragment(priority, header, resources)
    }

    /// A long message waits for a buffer; the program is told once of each that it can do something about.
    fn hold_up(
        &mut self,
        priority: Priority,
        length: u64,
        can_program_help: bool,
        resources: &Resources,
    ) -> Step {
        let now = HeldUp {
            length,
            told: can_program_help.then(|| resources.posts(priority)),
            looks: resources.looks(priority),
        };
        let before = self.incoming[priority as usize].held_up.replace(now);
        let is_news = before.is_none_or(|before| (before.length, before.told) != (length, now.told));
        if is_news && can_program_help {
            return Step::Event(Event::BufferNeeded { peer: self.peer, priority, length_bytes: length });
        }
        Step::Nothing
    }

    /// Copies one fragment, in steps between which a message of high priority may come first.
    fn take_fragment(
        &mut self,
        priority: Priority,
        header: Header,
        resources: &mut Resources,
    ) -> Result<Step, Gone> {
        let lane = lane_of(priority);
        let may_pause = self.may_pause(lane, resources);
        let Some(assembly) = &mut self.incoming[priority as usize].message else { return Err(Gone::Broken) };
        let length = usize::from(header.length);
        if length <= assembly.copied || length > assembly.total - assembly.filled || header.kind & BULK == 0 {
            return Err(Gone::Broken);
        }
        assembly.header = header;
        let fragment = &mut assembly.buffer.as_mut()[assembly.filled..assembly.filled + length];
        while assembly.copied < length {
            let until = length.min(assembly.copied + STEP_BYTES);
            let part = &mut fragment[assembly.copied..until];
            self.consumers[lane as usize].read_bulk_part(&self.inbound, length, assembly.copied, part);
            assembly.copied = until;
            if until < length && may_pause && has_urgent_input(&self.consumers, &self.inbound) {
                return Ok(Step::Progress);
            }
        }
        check(header, fragment, self.integrity)?;
        assembly.filled += length;
        assembly.copied = 0;
        let whole = self.incoming[priority as usize].message.take_if(|all| all.filled == all.total);
        self.free(lane, header);
        Ok(match whole {
            Some(whole) => {
                if whole.is_posted {
                    resources.release(priority, self.foreign_user);
                }
                let payload = Payload::buffer(whole.buffer, whole.total);
                Step::Event(Event::Message(Message { peer: self.peer, priority, payload }))
            }
            None => Step::Progress,
        })
    }

    fn begin_put(
        &mut self,
        priority: Priority,
        header: Header,
        [key, offset, total, transfer, note, ..]: [u64; 7],
        resources: &mut Resources,
    ) -> Result<Step, Gone> {
        let has_note = note != u64::MAX;
        if self.incoming[priority as usize].put.is_some() || (has_note && note > NOTE_BYTES_MAX as u64) {
            return Err(Gone::Broken);
        }
        // Checked as a whole before anything is touched.
        let result = resources.regions.writable(Key(key), offset, total).map(|_| ());
        self.count_guess(Key(key), result, resources)?;
        self.incoming[priority as usize].put = Some(Put {
            key: Key(key),
            offset,
            remaining: total,
            transfer,
            has_note,
            result,
            copied: 0,
            sum: RunningChecksum::new(),
            header,
        });
        self.take_put(priority, header, resources)
    }

    /// Copies one fragment of a put, in steps between which a message of high priority may come first.
    fn take_put(
        &mut self,
        priority: Priority,
        header: Header,
        resources: &mut Resources,
    ) -> Result<Step, Gone> {
        let lane = lane_of(priority);
        let may_pause = self.may_pause(lane, resources);
        let Some(put) = &mut self.incoming[priority as usize].put else { return Err(Gone::Broken) };
        let length = usize::from(header.length);
        let is_sound = length as u64 <= put.remaining && (length > 0 || put.remaining == 0);
        if !is_sound || header.kind & BULK == 0 {
            return Err(Gone::Broken);
        }
        put.header = header;
        while put.result.is_ok() && put.copied < length {
            let until = length.min(put.copied + STEP_BYTES);
            let (offset, step) = (put.offset + put.copied as u64, (until - put.copied) as u64);
            // Looked up for every step: a key revoked meanwhile ends the transfer.
            match resources.regions.writable(put.key, offset, step) {
                Ok(target) => {
                    self.consumers[lane as usize].read_bulk_part(&self.inbound, length, put.copied, target);
                    if header.kind & CHECKED != 0 {
                        put.sum.add(target);
                    }
                }
                Err(error) => put.result = Err(error),
            }
            put.copied = until;
            if until < length && may_pause && has_urgent_input(&self.consumers, &self.inbound) {
                return Ok(Step::Progress);
            }
        }
        let sum = std::mem::replace(&mut put.sum, RunningChecksum::new());
        if put.result.is_ok() && !is_intact(header, self.integrity, || sum.finish()) {
            return Err(Gone::Corrupted);
        }
        put.copied = 0;
        put.offset = put.offset.wrapping_add(length as u64);
        put.remaining -= length as u64;
        self.free(lane, header);
        self.finish_put(priority)
    }

    /// Counts keys that were never given out: whoever tries many of them is guessing.
    fn count_guess(
        &mut self,
        key: Key,
        result: Result<(), TransferError>,
        resources: &Resources,
    ) -> Result<(), Gone> {
        let is_guess = result == Err(TransferError::BadKey) && !resources.regions.was_issued(key);
        self.guesses += u32::from(is_guess);
        if self.guesses > GUESSES_MAX { Err(Gone::Broken) } else { Ok(()) }
    }

    /// Answers a put whose data is complete, unless its note is still to come.
    fn finish_put(&mut self, priority: Priority) -> Result<Step, Gone> {
        let finished =
            self.incoming[priority as usize].put.take_if(|put| put.remaining == 0 && !put.has_note);
        if let Some(put) = finished {
            self.reply(Reply::Status { transfer: put.transfer, result: put.result })?;
        }
        Ok(Step::Progress)
    }

    fn receive_note(&mut self, priority: Priority, header: Header, words: [u64; 7]) -> Result<Step, Gone> {
        let put = self.incoming[priority as usize].put.take_if(|put| put.remaining == 0 && put.has_note);
        let Some(put) = put else { return Err(Gone::Broken) };
        if header.kind & BULK != 0 || usize::from(header.length) > NOTE_BYTES_MAX {
            return Err(Gone::Broken);
        }
        self.free(lane_of(priority), header);
        check(header, &bytes_of(&words)[..header.length.into()], self.integrity)?;
        self.reply(Reply::Status { transfer: put.transfer, result: put.result })?;
        Ok(match put.result {
            Ok(()) => {
                Step::Event(Event::Notified { peer: self.peer, note: Payload::inline(words, header.length) })
            }
            Err(_) => Step::Progress,
        })
    }

    fn receive_get(
        &mut self,
        [key, offset, length, transfer, ..]: [u64; 7],
        resources: &Resources,
    ) -> Result<Step, Gone> {
        let result = resources.regions.readable(Key(key), offset, length).map(|_| ());
        self.count_guess(Key(key), result, resources)?;
        let reply = match resources.regions.readable(Key(key), offset, length) {
            Ok([]) => Reply::Status { transfer, result: Ok(()) },
            Ok(_) => Reply::Data { transfer, key: Key(key), offset, remaining: length },
            Err(error) => Reply::Status { transfer, result: Err(error) },
        };
        self.reply(reply)?;
        Ok(Step::Progress)
    }

    /// The peer's payloads lie elsewhere from the next record on.
    fn move_bulk(&mut self, priority: Priority, header: Header) -> Result<Step, Gone> {
        let extension = self.bulk_offered.take_if(|_| priority == Priority::Low).ok_or(Gone::Broken)?;
        if header.kind & BULK != 0 {
            return Err(Gone::Broken);
        }
        self.free(LaneName::Low, header);
        let offset = self.inbound.extend(extension);
        self.consumers[LaneName::Low as usize].move_bulk(offset);
        Ok(Step::Progress)
    }

    fn receive_lent(
        &mut self,
        priority: Priority,
        header: Header,
        [heap, block, length, ..]: [u64; 7],
        resources: &Resources,
    ) -> Result<Step, Gone> {
        let Some(place) = usize::try_from(heap).ok().filter(|heap| *heap < self.heaps_borrowed.len()) else {
            // The heap's memory comes over the socket, sent before this record; the port fetches it.
            return Err(Gone::Broken);
        };
        let heap = &mut self.heaps_borrowed[place];
        let block = usize::try_from(block).unwrap_or(usize::MAX);
        // A block that we hold already cannot be lent again: that is the borrower's quota, too.
        let is_free = heap.held.get(block) == Some(&false);
        if !is_free || length > resources.message_bytes_max.min(heap.block_bytes as u64) {
            return Err(Gone::Broken);
        }
        heap.held[block] = true;
        let entry = Return { peer: self.peer, heap: place as u32, block: block as u32 };
        let lent = Lent {
            peer: self.peer,
            priority,
            memory: heap.memory.clone(),
            offset: block * heap.block_bytes,
            length: length as usize,
            guard: resources.guard.clone(),
            _ticket: Ticket { returns: resources.returns.clone(), entry },
        };
        self.free(lane_of(priority), header);
        Ok(Step::Event(Event::Lent(lent)))
    }

    /// Does the lane's head speak of memory that we have not fetched from the socket yet?
    pub fn awaits_memory(&self, priority: Priority) -> bool {
        let consumer = &self.consumers[lane_of(priority) as usize];
        let Ok(Some(header)) = consumer.peek(&self.inbound) else { return false };
        match header.kind & KIND_MASK {
            LENT => consumer.words(&self.inbound)[0] >= self.heaps_borrowed.len() as u64,
            MOVE_BULK => self.bulk_offered.is_none() && !self.inbound.is_extended(),
            _ => false,
        }
    }

    fn reply(&mut self, reply: Reply) -> Result<(), Gone> {
        if self.replies.len() >= REPLIES_MAX {
            return Err(Gone::Broken);
        }
        self.replies.push_back(reply);
        Ok(())
    }

    /// A borrowed block is done with: tell the lender.
    pub fn give_back(&mut self, entry: Return) {
        // Held until the answer has been pushed, so that each block has at most one under way.
        self.replies.push_back(Reply::Return { heap: entry.heap, block: entry.block });
    }

    /// Takes at most one answer off the reply lane.
    pub fn receive_reply(&mut self, resources: &mut Resources) -> Result<Step, Gone> {
        let consumer = &self.consumers[LaneName::Reply as usize];
        let header = consumer.peek(&self.inbound)?.filter(|header| self.is_in_time(LaneName::Reply, *header));
        let Some(header) = header else { return Ok(Step::Nothing) };
        let words = consumer.words(&self.inbound);
        let place = usize::try_from(words[0]).unwrap_or(usize::MAX);
        match header.kind & KIND_MASK {
            RETURN => self.take_block_back(place, words[1])?,
            GET_DATA => {
                let Some(Some(waiting)) = self.waiting.get_mut(place) else { return Err(Gone::Broken) };
                let length = usize::from(header.length);
                let target = waiting.buffer.as_mut().get_mut(waiting.filled..).unwrap_or_default();
                let is_sound = waiting.kind == crate::connection::TransferKind::Get && waiting.asked;
                let Some(target) = target.get_mut(..length).filter(|_| is_sound && header.kind & BULK != 0)
                else {
                    return Err(Gone::Broken);
                };
                consumer.read_bulk(&self.inbound, target);
                waiting.filled += length;
                if self.integrity && (header.kind & CHECKED == 0 || checksum(target) != header.check) {
                    return Err(Gone::Corrupted);
                }
            }
            STATUS => self.finish_transfer(place, words[1], resources)?,
            _ => return Err(Gone::Broken),
        }
        self.free(LaneName::Reply, header);
        Ok(Step::Progress)
    }

    fn take_block_back(&mut self, heap: usize, block: u64) -> Result<(), Gone> {
        let Some(heap) = self.heaps_lent.get_mut(heap) else { return Err(Gone::Broken) };
        let lent = usize::try_from(block).ok().and_then(|block| heap.lent.get_mut(block));
        if !lent.is_some_and(std::mem::take) {
            return Err(Gone::Broken);
        }
        heap.shared.give_back(block as u32);
        self.blocks_out -= 1;
        Ok(())
    }

    fn finish_transfer(&mut self, place: usize, code: u64, resources: &mut Resources) -> Result<(), Gone> {
        let entry = self.waiting.get_mut(place).and_then(|entry| entry.take_if(|waiting| waiting.asked));
        let Some(entry) = entry else { return Err(Gone::Broken) };
        let result = match code {
            0 => Ok(()),
            2 => Err(TransferError::NoRight),
            3 => Err(TransferError::OutOfRange),
            _ => Err(TransferError::BadKey),
        };
        let is_get = entry.kind == crate::connection::TransferKind::Get;
        if is_get && result.is_ok() && entry.filled != entry.buffer.as_ref().len() {
            return Err(Gone::Broken);
        }
        while self.waiting.pop_if(|entry| entry.is_none()).is_some() {}
        let priority = entry.priority;
        resources.complete(entry.finished(result), priority);
        Ok(())
    }
}
