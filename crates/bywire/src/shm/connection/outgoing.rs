//! The sending side of a connection: transfers cut into records.

use bywire_ring::geometry::{INLINE_BYTES, LaneName};
use bywire_ring::header::PROMPT;

use super::Connection;
use crate::message::buffer::words_of;
use crate::message::error::{DisconnectReason, SendError};
use crate::message::peer::{Confirm, Priority};
use crate::message::resources::Resources;
use crate::message::transfers::{Note, Operation, Outgoing, Reply, status_code};
use crate::shm::lanes::{Lanes, lane_of};
use crate::shm::record::{DATAGRAM, FIRST, GET, GET_DATA, MESSAGE, NEXT, PUT, PUT_NEXT, PUT_NOTE, STATUS};

/// Pushes the next piece of one transfer.
struct Push<'connection> {
    lanes: &'connection mut Lanes,
    lane: LaneName,
    entry: &'connection mut Outgoing,
    is_put_aside: &'connection mut bool,
    may_pause: bool,
}

impl Connection {
    /// Copies a short message into the ring, at once.
    #[inline(always)]
    pub fn send_now(&mut self, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        if !self.transfers.is_idle(priority) {
            self.transfers.starve(priority);
            return Err(SendError::Full);
        }
        match self.lanes.push(lane_of(priority), MESSAGE, bytes, &[]) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.transfers.starve(priority);
                Err(SendError::Full)
            }
            Err(gone) => Err(SendError::Disconnected(gone)),
        }
    }

    /// Copies a message in two parts into the ring, at once. Its head has at most [`crate::HEAD_BYTES_MAX`] bytes.
    pub fn send_headed_now(
        &mut self,
        priority: Priority,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let mut slot = [0; INLINE_BYTES];
        if let Some(whole) = slot.get_mut(..head.len() + payload.len()) {
            let (first, second) = whole.split_at_mut(head.len());
            first.copy_from_slice(head);
            second.copy_from_slice(payload);
            return self.send_now(priority, whole);
        }
        if !self.transfers.is_idle(priority) {
            self.transfers.starve(priority);
            return Err(SendError::Full);
        }
        slot[8..8 + head.len()].copy_from_slice(head);
        let mut words = words_of(&slot);
        words[0] = head.len() as u64;
        match self.lanes.push_headed(lane_of(priority), &words, payload) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.transfers.starve(priority);
                Err(SendError::Full)
            }
            Err(gone) => Err(SendError::Disconnected(gone)),
        }
    }

    /// Copies a datagram into the ring. `false`: it was dropped for lack of room.
    pub fn send_datagram(&mut self, priority: Priority, bytes: &[u8]) -> Result<bool, DisconnectReason> {
        self.lanes.push(lane_of(priority), DATAGRAM, bytes, &[])
    }

    /// Moves transfers on by at most one fragment per lane. `true`: something moved.
    pub fn advance(&mut self, resources: &mut Resources) -> Result<bool, DisconnectReason> {
        let mut moved = self.advance_replies(resources)?;
        moved |= self.move_to_large_window()?;
        for priority in [Priority::High, Priority::Low] {
            moved |= self.advance_lane(priority, resources)?;
            moved |= self.confirm_delivered(priority, resources)?;
            moved |= self.tell_of_room(priority, resources)?;
        }
        Ok(moved)
    }

    /// Could `advance` move something now? A broken lane counts: the poll finds out.
    pub fn can_advance(&mut self) -> bool {
        let owes = self.transfers.owes_replies() || !self.blocks_to_return.is_empty();
        let wanted = [
            (LaneName::Reply, owes.then_some(self.lanes.fragment_bytes())),
            (LaneName::High, self.wanted_room(Priority::High)),
            (LaneName::Low, self.wanted_room(Priority::Low)),
        ];
        let can_push = wanted.into_iter().any(|(lane, length)| {
            length.is_some_and(|length| self.lanes.has_room(lane, length).unwrap_or(true))
        });
        can_push
            || [Priority::High, Priority::Low].into_iter().any(|priority| {
                let Some(first) = self.transfers.first_undelivered(priority) else { return false };
                self.lanes.consumed(lane_of(priority)).map_or(true, |consumed| consumed >= first)
            })
    }

    /// The room that `advance` needs to move anything on a lane. `None`: there is nothing to move.
    fn wanted_room(&self, priority: Priority) -> Option<usize> {
        match self.transfers.first(priority) {
            Some(entry) => Some(entry.rest().min(self.lanes.longest_fragment(lane_of(priority)))),
            None => self.transfers.is_starved(priority).then_some(self.lanes.fragment_bytes()),
        }
    }

    fn tell_of_room(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<bool, DisconnectReason> {
        let is_over = self.transfers.is_starved(priority)
            && self.transfers.is_idle(priority)
            && self.lanes.has_room(lane_of(priority), self.lanes.fragment_bytes())?;
        if is_over {
            self.transfers.tell_of_room(priority, resources);
        }
        Ok(is_over)
    }

    /// Confirms every message that the peer has consumed.
    pub fn confirm_all_delivered(&mut self, resources: &mut Resources) -> Result<(), DisconnectReason> {
        self.confirm_delivered(Priority::High, resources)?;
        self.confirm_delivered(Priority::Low, resources)?;
        Ok(())
    }

    fn confirm_delivered(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<bool, DisconnectReason> {
        if self.transfers.first_undelivered(priority).is_none() {
            return Ok(false);
        }
        let consumed = self.lanes.consumed(lane_of(priority))?;
        Ok(self.transfers.confirm(priority, consumed, resources))
    }

    fn advance_lane(
        &mut self,
        priority: Priority,
        resources: &mut Resources,
    ) -> Result<bool, DisconnectReason> {
        let lane = lane_of(priority);
        let may_pause = self.may_pause(lane, resources);
        let Self { lanes, transfers, is_put_aside, .. } = self;
        let Some(entry) = transfers.first_mut(priority) else { return Ok(false) };
        let before = (entry.sent, lanes.staged(lane));
        let operation = entry.operation;
        let is_put_aside = &mut is_put_aside[priority as usize];
        let mut push = Push { lanes, lane, entry, is_put_aside, may_pause };
        let is_whole = match operation {
            Operation::Message { confirm } => push.message(confirm)?,
            Operation::Put { key, offset, note, transfer } => {
                push.put([key.0, offset, transfer.into()], note)?
            }
            Operation::Get { key, offset, length, transfer } => {
                push.lanes.push_words(lane, GET, &[key.0, offset, length, transfer.into()])?
            }
        };
        let moved = (push.entry.sent, push.lanes.staged(lane)) != before;
        if is_whole {
            self.transfers.finish_first(priority, self.lanes.position(lane), resources);
        }
        Ok(moved || is_whole)
    }

    /// Sends at most one block back, and one answer or a piece of it.
    pub(super) fn advance_replies(&mut self, resources: &mut Resources) -> Result<bool, DisconnectReason> {
        Ok(self.advance_returns()? | self.advance_answers(resources)?)
    }

    /// Sends the answers that are short, up to the data of a get, as far as there is room.
    pub fn answer_shortly(&mut self, resources: &mut Resources) -> Result<(), DisconnectReason> {
        while self.transfers.owes_short_reply() && self.advance_answers(resources)? {}
        Ok(())
    }

    fn advance_answers(&mut self, resources: &mut Resources) -> Result<bool, DisconnectReason> {
        let Some(reply) = self.transfers.next_reply() else { return Ok(false) };
        let (done, next) = match reply {
            Reply::Status { transfer, result } => {
                (self.lanes.push_words(LaneName::Reply, STATUS, &[transfer, status_code(result)])?, None)
            }
            Reply::Data { transfer, key, offset, remaining } => {
                let length = remaining.min(self.lanes.fragment_bytes() as u64);
                // Looked up for every piece: a key that was revoked meanwhile ends the transfer.
                match resources.regions.readable(key, offset, length) {
                    Ok(piece) => {
                        let done =
                            self.lanes.push_fragment(LaneName::Reply, GET_DATA, piece, &[transfer], false)?;
                        let (offset, remaining) = (offset + length, remaining - length);
                        let next = match remaining {
                            0 => Reply::Status { transfer, result: Ok(()) },
                            _ => Reply::Data { transfer, key, offset, remaining },
                        };
                        (done, Some(next))
                    }
                    Err(error) => (true, Some(Reply::Status { transfer, result: Err(error) })),
                }
            }
        };
        match next {
            _ if !done => self.transfers.reply_first(reply),
            // Queued behind the others: no answer waits for more than a fragment of a long one.
            Some(next) => self.transfers.reply_last(next),
            None => {}
        }
        Ok(done)
    }
}

impl Push<'_> {
    /// `true`: the message has been pushed whole.
    fn message(&mut self, confirm: Confirm) -> Result<bool, DisconnectReason> {
        let (total, rest) = (self.entry.buffer.as_ref().len(), self.entry.rest());
        let is_last = rest <= self.lanes.longest_fragment(self.lane);
        let prompt = if is_last && confirm == Confirm::Delivered { PROMPT } else { 0 };
        // This limit does not grow with the window: which messages need a posted buffer does not depend on it.
        if !self.entry.is_open && total <= self.lanes.fragment_bytes() {
            return self.lanes.push(self.lane, MESSAGE | prompt, self.entry.buffer.as_ref(), &[]);
        }
        // The words make it a bulk record even where a last piece would fit inline.
        let kind = if self.entry.is_open { NEXT } else { FIRST };
        let done = self.piece(kind | prompt, &[total as u64])?;
        Ok(done && is_last)
    }

    /// `true`: the put has been pushed whole.
    fn put(&mut self, [key, offset, transfer]: [u64; 3], note: Note) -> Result<bool, DisconnectReason> {
        let total = self.entry.buffer.as_ref().len();
        if !self.entry.is_open || self.entry.sent < total {
            let note_length = note.bytes().map_or(u64::MAX, |note| note.len() as u64);
            let words = [key, offset, total as u64, transfer, note_length];
            let kind = if self.entry.is_open { PUT_NEXT } else { PUT };
            if !self.piece(kind, &words)? || self.entry.sent < total {
                return Ok(false);
            }
        }
        let Some(note) = note.bytes() else { return Ok(true) };
        self.lanes.push(self.lane, PUT_NOTE, note, &[])
    }

    /// Pushes the next fragment.
    fn piece(&mut self, kind: u8, words: &[u64]) -> Result<bool, DisconnectReason> {
        // If a datagram has taken the place of the staged bytes, they are copied again without a pause. Otherwise a
        // flood of datagrams and urgent messages could keep the fragment from ever being whole.
        let may_pause = self.may_pause && (self.lanes.staged(self.lane) > 0 || !*self.is_put_aside);
        let length = self.entry.rest().min(self.lanes.longest_fragment(self.lane));
        let piece = &self.entry.buffer.as_ref()[self.entry.sent..self.entry.sent + length];
        let done = self.lanes.push_fragment(self.lane, kind, piece, words, may_pause)?;
        if done {
            self.entry.is_open = true;
            self.entry.sent += length;
        }
        *self.is_put_aside = !done && (*self.is_put_aside || self.lanes.staged(self.lane) > 0);
        Ok(done)
    }
}
