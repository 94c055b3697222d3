//! The receiving side of a connection. Every word here was written by a peer that may be hostile.

use bywire_ring::geometry::{INLINE_BYTES, LaneName};
use bywire_ring::header::{BULK, CHECKED, Header, KIND_MASK};

use super::{Connection, Paused};
use crate::message::buffer::{Payload, bytes_of};
use crate::message::error::DisconnectReason;
use crate::message::event::{Event, Message};
use crate::message::peer::Priority;
use crate::message::region::Key;
use crate::message::resources::Resources;
use crate::message::transfers::{NOTE_BYTES_MAX, PutRequest, Short, Step, Unposted};
use crate::shm::lanes::lane_of;
use crate::shm::record::{
    DATAGRAM, FIRST, GET, GET_DATA, HEADED, LENT, MESSAGE, MOVE_BULK, NEXT, PUT, PUT_NEXT, PUT_NOTE, RETURN,
    RunningChecksum, STATUS, STEP_BYTES, checksum, headed_checksum,
};

/// The most answers that are looked for before a message: those that a lane of the usual geometry holds.
const ANSWERS_MAX: u32 = 64;

/// Compares our copy of a payload with its check, which is required if `integrity` is agreed.
#[inline(always)]
fn check(header: Header, bytes: &[u8], integrity: bool) -> Result<(), DisconnectReason> {
    if is_intact(header, integrity, || checksum(bytes)) { Ok(()) } else { Err(DisconnectReason::Corrupted) }
}

#[inline(always)]
fn is_intact(header: Header, integrity: bool, checksum: impl FnOnce() -> u32) -> bool {
    if header.kind & CHECKED != 0 { checksum() == header.check } else { !integrity }
}

impl Connection {
    /// Takes a short message off a lane, which is the one case that must be fast. [`Self::receive`] handles
    /// everything else.
    #[inline(always)]
    pub fn receive_short(&mut self, priority: Priority) -> Short {
        let lane = lane_of(priority);
        let header = match self.lanes.peek(lane) {
            Ok(None) => {
                self.lanes.pause(lane);
                return Short::Nothing;
            }
            Ok(Some(header)) if header.kind & (KIND_MASK | BULK) == MESSAGE => header,
            _ => return Short::Other,
        };
        // The other path judges a record that breaks a rule, and looks for answers that come first.
        let is_too_long = header.length > self.inline_bytes_max;
        if is_too_long | self.transfers.is_in_the_midst(priority) | self.transfers.awaits_answers() {
            return Short::Other;
        }
        let words = self.lanes.words(lane);
        let integrity = self.lanes.has_integrity();
        let is_checked = integrity || header.kind & CHECKED != 0;
        if is_checked && check(header, &bytes_of(&words)[..header.length.into()], integrity).is_err() {
            // The other path ends the connection.
            return Short::Other;
        }
        self.lanes.free(lane, header);
        self.lanes.look_ahead(lane);
        Short::Message { words, length: header.length }
    }

    /// Takes at most one record off a lane.
    pub fn receive(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        match self.lanes.next_record(lane_of(priority))? {
            Some(header) => self.receive_record(priority, header, resources),
            None => Ok(Step::Nothing),
        }
    }

    fn receive_record(
        &mut self,
        priority: Priority,
        header: Header,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        if let Some(paused) = &self.paused[priority as usize] {
            // The peer can change the header, and only an honest peer leaves it alone.
            return match header.kind & KIND_MASK {
                _ if header != paused.header => Err(DisconnectReason::Broken),
                PUT | PUT_NEXT => self.take_put(priority, header, resources),
                _ => self.take_fragment(priority, header, resources),
            };
        }
        let lane = lane_of(priority);
        let words = self.lanes.words(lane);
        match header.kind & KIND_MASK {
            MESSAGE if !self.transfers.is_within_message(priority) => {
                let payload = self.take_payload(lane, header, words, resources)?;
                Ok(Step::Event(Event::Message(Message { peer: self.peer, priority, payload })))
            }
            HEADED if !self.transfers.is_within_message(priority) => {
                let payload = self.take_headed(lane, header, &words, resources)?;
                Ok(Step::Event(Event::Message(Message { peer: self.peer, priority, payload })))
            }
            DATAGRAM => match self.take_payload(lane, header, words, resources) {
                Ok(payload) => {
                    Ok(Step::Event(Event::Datagram(Message { peer: self.peer, priority, payload })))
                }
                Err(DisconnectReason::Corrupted) => {
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
                self.lanes.free(lane, header);
                let [key, offset, length, transfer, ..] = words;
                self.transfers.receive_get((Key(key), offset), length, transfer, resources)
            }
            LENT => self.receive_lent(priority, header, words, resources),
            MOVE_BULK => self.follow_to_large_window(priority, header),
            _ => Err(DisconnectReason::Broken),
        }
    }

    /// Copies the payload of one record and frees the record. The check covers our copy, which no other process can
    /// change.
    fn take_payload(
        &mut self,
        lane: LaneName,
        header: Header,
        words: [u64; 7],
        resources: &mut Resources,
    ) -> Result<Payload, DisconnectReason> {
        if u64::from(header.length) > resources.message_bytes_max {
            return Err(DisconnectReason::Broken);
        }
        let payload = if header.kind & BULK == 0 {
            Payload::inline(words, header.length)
        } else {
            let length = usize::from(header.length);
            let mut buffer = resources.spare(length);
            self.lanes.read_part(lane, length, 0, &mut buffer[..length]);
            Payload::buffer(buffer.into(), length)
        };
        self.lanes.free(lane, header);
        check(header, &payload, self.lanes.has_integrity())?;
        Ok(payload)
    }

    /// The same for a message in two parts, which are joined.
    fn take_headed(
        &mut self,
        lane: LaneName,
        header: Header,
        words: &[u64; INLINE_BYTES / 8],
        resources: &mut Resources,
    ) -> Result<Payload, DisconnectReason> {
        let (slot, length) = (bytes_of(words), usize::from(header.length));
        let head_bytes = usize::try_from(words[0]).unwrap_or(usize::MAX);
        let head = slot[8..].get(..head_bytes).ok_or(DisconnectReason::Broken)?;
        let total = head.len() + length;
        if header.kind & BULK == 0 || total as u64 > resources.message_bytes_max {
            return Err(DisconnectReason::Broken);
        }
        let mut buffer = resources.spare(total);
        buffer[..head.len()].copy_from_slice(head);
        let payload = &mut buffer[head.len()..total];
        self.lanes.read_part(lane, length, 0, payload);
        self.lanes.free(lane, header);
        if !is_intact(header, self.lanes.has_integrity(), || headed_checksum(words, payload)) {
            return Err(DisconnectReason::Corrupted);
        }
        Ok(Payload::buffer(buffer.into(), total))
    }

    fn begin_message(
        &mut self,
        priority: Priority,
        header: Header,
        total: u64,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        // A message that one fragment can carry comes as one record, and takes no posted buffer.
        let is_long = total > self.lanes.peer_fragment_bytes() as u64;
        if !is_long || total < u64::from(header.length) || header.length == 0 {
            return Err(DisconnectReason::Broken);
        }
        let unposted = match self.lanes.is_draining() {
            false => Unposted::Wait,
            // After the peer's end, a message that is whole in the ring is not lost for lack of a buffer.
            true if total <= self.lanes.inbound_bytes() as u64 => Unposted::Allocate,
            true => Unposted::Leave,
        };
        match self.transfers.begin_message(priority, total, unposted, resources)? {
            None => self.take_fragment(priority, header, resources),
            Some(step) => Ok(step),
        }
    }

    /// Copies one fragment in steps. A message of high priority may come first between two steps.
    fn take_fragment(
        &mut self,
        priority: Priority,
        header: Header,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        let lane = lane_of(priority);
        let may_pause = self.may_pause(lane, resources);
        let length = usize::from(header.length);
        if length == 0 || header.kind & BULK == 0 {
            return Err(DisconnectReason::Broken);
        }
        let mut copied = self.paused[priority as usize].take().map_or(0, |paused| paused.copied);
        let fragment = self.transfers.message_target(priority, length).ok_or(DisconnectReason::Broken)?;
        while copied < length {
            let until = length.min(copied + STEP_BYTES);
            self.lanes.read_part(lane, length, copied, &mut fragment[copied..until]);
            copied = until;
            if until < length && may_pause && self.lanes.is_urgent() {
                let sum = RunningChecksum::new();
                self.paused[priority as usize] = Some(Paused { header, copied, sum });
                return Ok(Step::Progress);
            }
        }
        check(header, fragment, self.lanes.has_integrity())?;
        self.lanes.free(lane, header);
        Ok(self.transfers.fill_message(priority, length, resources))
    }

    fn begin_put(
        &mut self,
        priority: Priority,
        header: Header,
        [key, offset, length, transfer, note, ..]: [u64; 7],
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        let note_length = (note != u64::MAX).then_some(note);
        let request = PutRequest { key: Key(key), offset, length, transfer, note_length };
        self.transfers.begin_put(priority, request, resources)?;
        self.take_put(priority, header, resources)
    }

    /// Copies one fragment of a put in steps. A message of high priority may come first between two steps.
    fn take_put(
        &mut self,
        priority: Priority,
        header: Header,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        let lane = lane_of(priority);
        let may_pause = self.may_pause(lane, resources);
        let length = usize::from(header.length);
        let remaining = self.transfers.put_remaining(priority).ok_or(DisconnectReason::Broken)?;
        let is_sound = length as u64 <= remaining && (length > 0 || remaining == 0);
        if !is_sound || header.kind & BULK == 0 {
            return Err(DisconnectReason::Broken);
        }
        let paused = self.paused[priority as usize].take();
        let (mut copied, mut sum) =
            paused.map_or((0, RunningChecksum::new()), |paused| (paused.copied, paused.sum));
        let mut is_taken = true;
        while copied < length {
            let until = length.min(copied + STEP_BYTES);
            let target = self.transfers.put_target(priority, copied, until - copied, resources);
            is_taken = target.is_some();
            let Some(target) = target else { break };
            if header.kind & CHECKED != 0 {
                self.lanes.read_checked_part(lane, length, copied, target, &mut sum);
            } else {
                self.lanes.read_part(lane, length, copied, target);
            }
            copied = until;
            if until < length && may_pause && self.lanes.is_urgent() {
                self.paused[priority as usize] = Some(Paused { header, copied, sum });
                return Ok(Step::Progress);
            }
        }
        if is_taken && !is_intact(header, self.lanes.has_integrity(), || sum.finish()) {
            return Err(DisconnectReason::Corrupted);
        }
        self.lanes.free(lane, header);
        self.transfers.fill_put(priority, length)
    }

    fn receive_note(
        &mut self,
        priority: Priority,
        header: Header,
        words: [u64; 7],
    ) -> Result<Step, DisconnectReason> {
        if header.kind & BULK != 0 || usize::from(header.length) > NOTE_BYTES_MAX {
            return Err(DisconnectReason::Broken);
        }
        self.lanes.free(lane_of(priority), header);
        check(header, &bytes_of(&words)[..header.length.into()], self.lanes.has_integrity())?;
        self.transfers.receive_note(priority, Payload::inline(words, header.length))
    }

    /// Does the record at the lane's head need memory that we have not fetched from the socket yet?
    pub fn awaits_memory(&self, priority: Priority) -> bool {
        let lane = lane_of(priority);
        let Ok(Some(header)) = self.lanes.peek(lane) else { return false };
        match header.kind & KIND_MASK {
            LENT => self.lacks_heap(self.lanes.words(lane)[0]),
            MOVE_BULK => self.may_be_offered_window(),
            _ => false,
        }
    }

    /// Takes the answers that have come, if any are awaited: up to the data of a get, which may be long. Returns whether there
    /// were some.
    pub fn receive_short_replies(&mut self, resources: &mut Resources) -> Result<bool, DisconnectReason> {
        let mut any = false;
        if !self.transfers.awaits_answers() {
            return Ok(any);
        }
        for _ in 0..ANSWERS_MAX {
            match self.lanes.next_record(LaneName::Reply)? {
                Some(header) if header.kind & KIND_MASK != GET_DATA => self.receive_reply(resources)?,
                _ => break,
            };
            any = true;
        }
        Ok(any)
    }

    /// Takes at most one answer off the reply lane.
    pub fn receive_reply(&mut self, resources: &mut Resources) -> Result<Step, DisconnectReason> {
        let lane = LaneName::Reply;
        let Some(header) = self.lanes.next_record(lane)? else { return Ok(Step::Nothing) };
        let [first, second, ..] = self.lanes.words(lane);
        match header.kind & KIND_MASK {
            RETURN => self.take_block_back(first, second)?,
            GET_DATA => {
                if header.kind & BULK == 0 {
                    return Err(DisconnectReason::Broken);
                }
                let lanes = &self.lanes;
                let length = usize::from(header.length);
                self.transfers.receive_got(first, length, |target| {
                    let mut sum = RunningChecksum::new();
                    if header.kind & CHECKED != 0 {
                        lanes.read_checked_part(lane, length, 0, target, &mut sum);
                    } else {
                        lanes.read_part(lane, length, 0, target);
                    }
                    let is_intact = is_intact(header, lanes.has_integrity(), || sum.finish());
                    if is_intact { Ok(()) } else { Err(DisconnectReason::Corrupted) }
                })?;
            }
            STATUS => self.transfers.receive_status(first, second, resources)?,
            _ => return Err(DisconnectReason::Broken),
        }
        self.lanes.free(lane, header);
        Ok(Step::Progress)
    }
}
