//! The receiving end of a connection. Every byte here comes from a peer that may be hostile.

use bywire_wire::datagrams::Datagram;
use bywire_wire::frame::Lane;
use bywire_wire::planted::{self, Bug};
use bywire_wire::record::{HEAD_BYTES_MAX, Head};

use super::inbound::Within;
use super::{Connection, Stage, lane_of};
use crate::message::buffer::Payload;
use crate::message::error::DisconnectReason;
use crate::message::event::{Event, Message};
use crate::message::options::SHORT_BYTES_MAX;
use crate::message::peer::Priority;
use crate::message::region::Key;
use crate::message::resources::Resources;
use crate::message::transfers::{PutRequest, Step, Unposted};

use bywire_ring::geometry::INLINE_BYTES;

/// The most bytes of a long payload that one step copies. Messages of high priority pass between two steps.
const STEP_BYTES: usize = 16 << 10;
/// The head of a message.
const MESSAGE_HEAD_BYTES: usize = 8;

/// The bytes of a lane, in two parts if they wrap around the end of its memory.
type Parts<'lane> = (&'lane [u8], &'lane [u8]);

fn length_of((first, second): Parts) -> usize {
    first.len() + second.len()
}

/// Copies bytes from `offset` on, as many as `target` has.
fn copy((first, second): Parts, offset: usize, target: &mut [u8]) {
    let from_first = first.len().saturating_sub(offset).min(target.len());
    let (head, tail) = target.split_at_mut(from_first);
    head.copy_from_slice(&first[offset.min(first.len())..][..from_first]);
    if tail.is_empty() {
        return;
    }
    let skipped = (offset + from_first) - first.len().min(offset + from_first);
    tail.copy_from_slice(&second[skipped..][..tail.len()]);
}

/// The head of the record at the front, and its length. `None`: it is incomplete.
#[inline]
fn head_of(parts: Parts) -> Result<Option<(Head, usize)>, DisconnectReason> {
    let mut bytes = [0; HEAD_BYTES_MAX];
    let (first, second) = parts;
    let whole = if second.is_empty() || first.len() >= HEAD_BYTES_MAX {
        first
    } else {
        let length = length_of(parts).min(HEAD_BYTES_MAX);
        copy(parts, 0, &mut bytes[..length]);
        &bytes[..length]
    };
    Head::parse(whole).map_err(|_| DisconnectReason::Broken)
}

/// A payload that fits into an event.
fn inline(parts: Parts, offset: usize, length: usize) -> ([u64; INLINE_BYTES / 8], u16) {
    let mut bytes = [0; INLINE_BYTES];
    copy(parts, offset, &mut bytes[..length]);
    let mut words = [0; INLINE_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    (words, length as u16)
}

/// The payload of a short message.
#[inline(always)]
fn payload_of(bytes: &[u8], resources: &mut Resources) -> Payload {
    let length = bytes.len();
    if length <= INLINE_BYTES {
        let mut words = [0; INLINE_BYTES / 8];
        let (whole, rest) = bytes.as_chunks();
        for (word, bytes) in words.iter_mut().zip(whole) {
            *word = u64::from_ne_bytes(*bytes);
        }
        if let Some(word) = words.get_mut(whole.len()).filter(|_| !rest.is_empty()) {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            *word = u64::from_ne_bytes(bytes);
        }
        return Payload::inline(words, length as u16);
    }
    let mut buffer = resources.spare(length);
    buffer[..length].copy_from_slice(bytes);
    Payload::buffer(buffer.into(), length)
}

impl Connection {
    /// Takes a whole short message that does not wrap around the end of its lane's memory, if it is next in the lane.
    #[inline(always)]
    pub fn take_short(&mut self, priority: Priority, resources: &mut Resources) -> Option<Payload> {
        let lane = lane_of(priority);
        let (first, _) = self.packets.peek(lane);
        let inbound = &self.inbound[lane as usize];
        if first.len() < inbound.needed
            || !matches!(inbound.within, Within::Head)
            || self.stage != Stage::Open
        {
            return None;
        }
        let length = match Head::parse(first) {
            Ok(Some((Head::Message { length, is_long: false, is_prompt: false }, MESSAGE_HEAD_BYTES))) => {
                length
            }
            _ => return None,
        };
        if length > SHORT_BYTES_MAX.min(resources.message_bytes_max) {
            return None;
        }
        let end = MESSAGE_HEAD_BYTES + length as usize;
        let payload = payload_of(first.get(MESSAGE_HEAD_BYTES..end)?, resources);
        self.take(lane, end, 1);
        Some(payload)
    }

    /// Has a lane what its next step needs?
    #[inline]
    pub fn has_record(&self, priority: Priority) -> bool {
        let lane = lane_of(priority);
        length_of(self.packets.peek(lane)) >= self.inbound[lane as usize].needed
    }

    /// Takes a datagram, a record, or one step of a long record from a lane.
    #[inline]
    pub fn receive(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        // This case must be fast.
        if let Some(payload) = self.take_short(priority, resources) {
            return Ok(self.message(priority, payload, false));
        }
        if !self.has_record(priority) && !self.packets.has_datagram() {
            return Ok(Step::Nothing);
        }
        self.receive_other(priority, resources)
    }

    /// The same, for everything but whole short messages.
    #[inline(never)]
    fn receive_other(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        if self.stage == Stage::Leaving {
            return Ok(Step::Nothing);
        }
        if let Some(datagram) = self.packets.pop_datagram() {
            return self.take_datagram(datagram, resources);
        }
        let lane = lane_of(priority);
        if length_of(self.packets.peek(lane)) < self.inbound[lane as usize].needed {
            return Ok(Step::Nothing);
        }
        match self.inbound[lane as usize].within {
            Within::Head => self.begin_record(priority, resources),
            Within::Short { .. } => self.go_on_with_short(priority),
            Within::Long { rest, is_prompt } => self.take_long(priority, rest, is_prompt, resources),
            Within::Put { note } => self.take_put(priority, note, resources),
            Within::Note { length } => self.take_note(priority, length),
            Within::Got { .. } => Err(DisconnectReason::Broken),
        }
    }

    /// Takes one answer, or one step of a long answer, from the reply lane.
    pub fn receive_reply(&mut self, resources: &mut Resources) -> Result<Step, DisconnectReason> {
        let lane = Lane::Reply;
        let parts = self.packets.peek(lane);
        let inbound = &mut self.inbound[lane as usize];
        if self.stage == Stage::Leaving || length_of(parts) < inbound.needed {
            return Ok(Step::Nothing);
        }
        if let Within::Got { transfer, rest } = inbound.within {
            return self.take_got(transfer, rest);
        }
        let Some((head, at)) = head_of(parts)? else { return Ok(self.wait_for_more(lane)) };
        match head {
            Head::Status { transfer, code } => self.transfers.receive_status(transfer, code, resources)?,
            Head::Got { length, transfer } if length > 0 => {
                inbound.within = Within::Got { transfer, rest: length };
            }
            _ => return Err(DisconnectReason::Broken),
        }
        self.take(lane, at, 1);
        Ok(Step::Progress)
    }

    /// Can something be taken now?
    pub fn has_input(&self, resources: &Resources) -> bool {
        if self.stage == Stage::Leaving {
            return false;
        }
        let is_waiting =
            |lane: Lane| length_of(self.packets.peek(lane)) >= self.inbound[lane as usize].needed;
        self.packets.has_datagram()
            || is_waiting(Lane::Reply)
            || [Priority::High, Priority::Low].into_iter().any(|priority| {
                is_waiting(lane_of(priority)) && !self.transfers.is_held_up(priority, resources)
            })
    }

    /// Takes bytes from a lane. The next step needs this many.
    fn take(&mut self, lane: Lane, bytes: usize, needed: usize) {
        self.packets.take(lane, bytes as u64);
        let inbound = &mut self.inbound[lane as usize];
        inbound.taken += bytes as u64;
        inbound.needed = needed;
    }

    /// Waits for more bytes.
    fn wait_for_more(&mut self, lane: Lane) -> Step {
        let missing = if planted::is(Bug::HeadAwaitsMore) { HEAD_BYTES_MAX } else { 1 };
        self.inbound[lane as usize].needed = length_of(self.packets.peek(lane)) + missing;
        Step::Nothing
    }

    fn take_datagram(
        &mut self,
        datagram: Datagram,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        let priority = match datagram.lane {
            Lane::High => Priority::High,
            _ => Priority::Low,
        };
        let length = datagram.bytes.len();
        if length as u64 > resources.message_bytes_max {
            return Err(DisconnectReason::Broken);
        }
        let payload = if length <= INLINE_BYTES {
            let (words, length) = inline((&datagram.bytes, &[]), 0, length);
            Payload::inline(words, length)
        } else {
            Payload::buffer(datagram.bytes.into(), length)
        };
        Ok(Step::Event(Event::Datagram(Message { peer: self.peer, priority, payload })))
    }

    fn begin_record(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        let lane = lane_of(priority);
        let Some((head, at)) = head_of(self.packets.peek(lane))? else {
            return Ok(self.wait_for_more(lane));
        };
        match head {
            Head::Message { length, is_long: false, is_prompt } => {
                self.begin_short(priority, length, is_prompt, resources)
            }
            Head::Message { length, is_long: true, is_prompt } => {
                self.begin_long(priority, length, is_prompt, resources)
            }
            Head::Put { length, key, offset, transfer, note } => {
                let note_length = note.map(u64::from);
                let request = PutRequest { key: Key(key), offset, length, transfer, note_length };
                self.transfers.begin_put(priority, request, resources)?;
                self.inbound[lane as usize].within = Within::Put { note };
                self.take(lane, at, usize::from(length > 0));
                Ok(Step::Progress)
            }
            Head::Get { key, offset, length, transfer } => {
                self.take(lane, at, 1);
                self.transfers.receive_get((Key(key), offset), length, transfer, resources)
            }
            Head::Status { .. } | Head::Got { .. } => Err(DisconnectReason::Broken),
        }
    }

    fn begin_short(
        &mut self,
        priority: Priority,
        length: u64,
        is_prompt: bool,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        if length > SHORT_BYTES_MAX.min(resources.message_bytes_max) {
            return Err(DisconnectReason::Broken);
        }
        let (lane, length, at) = (lane_of(priority), length as usize, MESSAGE_HEAD_BYTES);
        let parts = self.packets.peek(lane);
        let available = length_of(parts) - at;
        let is_inline = length <= INLINE_BYTES;
        if available < length && is_inline {
            self.inbound[lane as usize].needed = at + length;
            return Ok(Step::Nothing);
        }
        if is_inline {
            let (words, length) = inline(parts, at, length);
            self.take(lane, at + usize::from(length), 1);
            return Ok(self.message(priority, Payload::inline(words, length), is_prompt));
        }
        let mut buffer = match self.stage {
            // Everything that the peer has sent waits for the program at once, so a message takes only what it needs.
            Stage::Draining => vec![0; length],
            Stage::Open | Stage::Leaving => resources.spare(length),
        };
        let filled = available.min(length);
        copy(parts, at, &mut buffer[..filled]);
        self.take(lane, at + filled, 1);
        if filled == length {
            return Ok(self.message(priority, Payload::buffer(buffer.into(), length), is_prompt));
        }
        self.inbound[lane as usize].within = Within::Short { buffer, filled, length, is_prompt };
        Ok(Step::Progress)
    }

    fn go_on_with_short(&mut self, priority: Priority) -> Result<Step, DisconnectReason> {
        let lane = lane_of(priority);
        let Within::Short { buffer, filled, length, is_prompt } = &mut self.inbound[lane as usize].within
        else {
            return Ok(Step::Nothing);
        };
        let parts = self.packets.peek(lane);
        let more = length_of(parts).min(*length - *filled);
        copy(parts, 0, &mut buffer[*filled..*filled + more]);
        *filled += more;
        let step = if *filled == *length {
            let (buffer, length, is_prompt) = (std::mem::take(buffer), *length, *is_prompt);
            self.inbound[lane as usize].within = Within::Head;
            self.message(priority, Payload::buffer(buffer.into(), length), is_prompt)
        } else {
            Step::Progress
        };
        self.take(lane, more, 1);
        Ok(step)
    }

    fn message(&mut self, priority: Priority, payload: Payload, is_prompt: bool) -> Step {
        if is_prompt && !planted::is(Bug::UrgeForgotten) {
            self.packets.request_credit_report(lane_of(priority));
        }
        Step::Event(Event::Message(Message { peer: self.peer, priority, payload }))
    }

    fn begin_long(
        &mut self,
        priority: Priority,
        total: u64,
        is_prompt: bool,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        // An empty long message would get a buffer for nothing.
        if total == 0 {
            return Err(DisconnectReason::Broken);
        }
        let lane = lane_of(priority);
        let unposted = match self.stage {
            Stage::Open | Stage::Leaving => Unposted::Wait,
            // After the peer's end, a complete message is not lost for lack of a buffer.
            Stage::Draining => {
                let arrived = (length_of(self.packets.peek(lane)) - MESSAGE_HEAD_BYTES) as u64;
                if total <= arrived { Unposted::Allocate } else { Unposted::Leave }
            }
        };
        if let Some(step) = self.transfers.begin_message(priority, total, unposted, resources)? {
            return Ok(step);
        }
        self.inbound[lane as usize].within = Within::Long { rest: total, is_prompt };
        self.take(lane, MESSAGE_HEAD_BYTES, 1);
        Ok(Step::Progress)
    }

    fn take_long(
        &mut self,
        priority: Priority,
        rest: u64,
        is_prompt: bool,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        let lane = lane_of(priority);
        let parts = self.packets.peek(lane);
        let length = STEP_BYTES.min(length_of(parts)).min(usize::try_from(rest).unwrap_or(usize::MAX));
        let target = self.transfers.message_target(priority, length).ok_or(DisconnectReason::Broken)?;
        copy(parts, 0, target);
        let rest = rest - length as u64;
        self.inbound[lane as usize].within =
            if rest == 0 { Within::Head } else { Within::Long { rest, is_prompt } };
        self.take(lane, length, 1);
        if rest == 0 && is_prompt && !planted::is(Bug::UrgeForgotten) {
            self.packets.request_credit_report(lane);
        }
        Ok(self.transfers.fill_message(priority, length, resources))
    }

    fn take_put(
        &mut self,
        priority: Priority,
        note: Option<u8>,
        resources: &mut Resources,
    ) -> Result<Step, DisconnectReason> {
        let lane = lane_of(priority);
        let remaining = self.transfers.put_remaining(priority).ok_or(DisconnectReason::Broken)?;
        let parts = self.packets.peek(lane);
        let length = STEP_BYTES.min(length_of(parts)).min(usize::try_from(remaining).unwrap_or(usize::MAX));
        // Checked at every step: a revoked key ends the transfer, and the bytes are dropped.
        if let Some(target) = self.transfers.put_target(priority, 0, length, resources) {
            copy(parts, 0, target);
        }
        let (within, needed) = match note {
            _ if length as u64 != remaining => (Within::Put { note }, 1),
            Some(length) => (Within::Note { length }, length.into()),
            None => (Within::Head, 1),
        };
        self.inbound[lane as usize].within = within;
        self.take(lane, length, needed);
        self.transfers.fill_put(priority, length)
    }

    fn take_note(&mut self, priority: Priority, length: u8) -> Result<Step, DisconnectReason> {
        let lane = lane_of(priority);
        let (words, length) = inline(self.packets.peek(lane), 0, length.into());
        self.inbound[lane as usize].within = Within::Head;
        self.take(lane, length.into(), 1);
        self.transfers.receive_note(priority, Payload::inline(words, length))
    }

    fn take_got(&mut self, transfer: u64, rest: u64) -> Result<Step, DisconnectReason> {
        let lane = Lane::Reply;
        let parts = self.packets.peek(lane);
        let length = STEP_BYTES.min(length_of(parts)).min(usize::try_from(rest).unwrap_or(usize::MAX));
        self.transfers.receive_got(transfer, length, |target| {
            copy(parts, 0, target);
            Ok(())
        })?;
        let rest = rest - length as u64;
        self.inbound[lane as usize].within =
            if rest == 0 { Within::Head } else { Within::Got { transfer, rest } };
        self.take(lane, length, 1);
        Ok(Step::Progress)
    }
}
