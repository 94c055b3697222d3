//! The peer's transfers: what it sends to us and asks of us. Every number here comes from the peer, which may be
//! hostile.

use bywire_wire::planted::{self, Bug};

use super::Transfers;
use super::transfer::{
    Assembly, HeldUp, NOTE_BYTES_MAX, Put, PutRequest, REPLIES_MAX, Reply, Step, Unposted,
};
use crate::message::buffer::Payload;
use crate::message::error::{DisconnectReason, TransferError};
use crate::message::event::{Event, Message};
use crate::message::peer::Priority;
use crate::message::region::{GUESSES_MAX, Key};
use crate::message::resources::{Fitting, Resources};

impl Transfers {
    /// Is the head of the lane a long message for which no posted buffer is large enough?
    #[inline(always)]
    pub fn is_held_up(&self, priority: Priority, resources: &Resources) -> bool {
        // Each post makes the lane worth another look, even if its buffer is gone again.
        self.incoming[priority as usize]
            .held_up
            .is_some_and(|held_up| held_up.looks == resources.looks(priority))
    }

    /// Is a message or a put half received?
    #[inline(always)]
    pub fn is_in_the_midst(&self, priority: Priority) -> bool {
        let incoming = &self.incoming[priority as usize];
        incoming.message.is_some() | incoming.put.is_some()
    }

    /// Is a message half received?
    pub fn is_within_message(&self, priority: Priority) -> bool {
        self.incoming[priority as usize].message.is_some()
    }

    /// Begins a long message. `None`: it has memory now, see [`Self::message_target`].
    ///
    /// # Errors
    /// [`DisconnectReason::Broken`] within another message, and for one that is longer than the port takes.
    pub fn begin_message(
        &mut self,
        priority: Priority,
        total: u64,
        unposted: Unposted,
        resources: &mut Resources,
    ) -> Result<Option<Step>, DisconnectReason> {
        let incoming = &mut self.incoming[priority as usize];
        if incoming.message.is_some() || total > resources.message_bytes_max {
            return Err(DisconnectReason::Broken);
        }
        let fitting = resources.take_fitting(priority, total, self.other_user.as_ref());
        let is_posted = matches!(fitting, Fitting::Buffer(_));
        let buffer = match (fitting, unposted) {
            (Fitting::Buffer(buffer), _) => buffer,
            (_, Unposted::Allocate) => vec![0; total as usize].into(),
            (_, Unposted::Leave) => return Ok(Some(Step::Nothing)),
            (Fitting::Missing, Unposted::Wait) => {
                return Ok(Some(self.hold_up(priority, total, true, resources)));
            }
            (Fitting::Shared, Unposted::Wait) => {
                return Ok(Some(self.hold_up(priority, total, false, resources)));
            }
        };
        incoming.held_up = None;
        incoming.message = Some(Assembly { buffer, is_posted, total: total as usize, filled: 0 });
        Ok(None)
    }

    /// Holds up a long message that waits for a buffer. If the program can help, it is told once, and again after
    /// each post that did not help.
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
        let is_news = before.is_none_or(|before| {
            (before.length, before.told) != (length, now.told) && !planted::is(Bug::NeedToldOnce)
        });
        if is_news && can_program_help {
            return Step::Event(Event::BufferNeeded { peer: self.peer, priority, length_bytes: length });
        }
        Step::Nothing
    }

    /// The memory for the next `length` bytes of a long message. `None`: there is no message, or fewer bytes are
    /// missing.
    pub fn message_target(&mut self, priority: Priority, length: usize) -> Option<&mut [u8]> {
        let assembly = self.incoming[priority as usize].message.as_mut()?;
        let rest = &mut assembly.buffer.as_mut()[assembly.filled..assembly.total];
        rest.get_mut(..length)
    }

    /// Notes that `length` more bytes of a long message have arrived.
    pub fn fill_message(&mut self, priority: Priority, length: usize, resources: &mut Resources) -> Step {
        let message = &mut self.incoming[priority as usize].message;
        if let Some(assembly) = message {
            assembly.filled += length;
        }
        let Some(whole) = message.take_if(|all| all.filled == all.total) else { return Step::Progress };
        if whole.is_posted {
            resources.release(priority, self.other_user.as_ref());
        }
        let payload = Payload::buffer(whole.buffer, whole.total);
        Step::Event(Event::Message(Message { peer: self.peer, priority, payload }))
    }

    /// Begins a put. Its range is checked as a whole before anything is touched.
    ///
    /// # Errors
    /// [`DisconnectReason::Broken`] within another put, for a note that is too long, and after too many keys that
    /// were never given out.
    pub fn begin_put(
        &mut self,
        priority: Priority,
        request: PutRequest,
        resources: &mut Resources,
    ) -> Result<(), DisconnectReason> {
        let PutRequest { key, offset, length, transfer, note_length } = request;
        let is_long_note = note_length.is_some_and(|length| length > NOTE_BYTES_MAX as u64);
        if self.incoming[priority as usize].put.is_some() || is_long_note {
            return Err(DisconnectReason::Broken);
        }
        let result = resources.regions.writable(key, offset, length).map(|_| ());
        self.count_guess(key, result, resources)?;
        self.incoming[priority as usize].put =
            Some(Put { key, offset, remaining: length, transfer, has_note: note_length.is_some(), result });
        Ok(())
    }

    /// The bytes that the put under way still lacks.
    pub fn put_remaining(&self, priority: Priority) -> Option<u64> {
        self.incoming[priority as usize].put.as_ref().map(|put| put.remaining)
    }

    /// The memory for `length` bytes of a put, behind the next `skip` ones. Looked up for every step: a key that was
    /// revoked meanwhile ends the transfer. `None`: the bytes are dropped.
    pub fn put_target<'resources>(
        &mut self,
        priority: Priority,
        skip: usize,
        length: usize,
        resources: &'resources mut Resources,
    ) -> Option<&'resources mut [u8]> {
        let put = self.incoming[priority as usize].put.as_mut().filter(|put| put.result.is_ok())?;
        match resources.regions.writable(put.key, put.offset + skip as u64, length as u64) {
            Ok(target) => Some(target),
            Err(error) => {
                put.result = Err(error);
                None
            }
        }
    }

    /// Notes that `length` more bytes of a put have arrived or were dropped. The last bytes of a put without a note
    /// end it.
    ///
    /// # Errors
    /// [`DisconnectReason::Broken`] if there is no put, if fewer bytes are missing, or if too many answers are owed.
    pub fn fill_put(&mut self, priority: Priority, length: usize) -> Result<Step, DisconnectReason> {
        let slot = &mut self.incoming[priority as usize].put;
        let put = slot.as_mut().ok_or(DisconnectReason::Broken)?;
        put.offset = put.offset.wrapping_add(if planted::is(Bug::PutMisplaced) { 0 } else { length as u64 });
        put.remaining = put.remaining.checked_sub(length as u64).ok_or(DisconnectReason::Broken)?;
        if let Some(put) = slot.take_if(|put| put.remaining == 0 && !put.has_note) {
            self.reply(Reply::Status { transfer: put.transfer, result: put.result })?;
        }
        Ok(Step::Progress)
    }

    /// Takes the note behind a put.
    ///
    /// # Errors
    /// [`DisconnectReason::Broken`] if no put waits for a note, or if too many answers are owed.
    pub fn receive_note(&mut self, priority: Priority, note: Payload) -> Result<Step, DisconnectReason> {
        let put = self.incoming[priority as usize].put.take_if(|put| put.remaining == 0 && put.has_note);
        let Put { transfer, result, .. } = put.ok_or(DisconnectReason::Broken)?;
        self.reply(Reply::Status { transfer, result })?;
        Ok(match result {
            Ok(()) if !planted::is(Bug::NoteForgotten) => {
                Step::Event(Event::Notified { peer: self.peer, note })
            }
            _ => Step::Progress,
        })
    }

    /// Takes the peer's request for data from a region of ours.
    ///
    /// # Errors
    /// [`DisconnectReason::Broken`] if too many answers are owed, and after too many keys that were never given out.
    pub fn receive_get(
        &mut self,
        (key, offset): (Key, u64),
        length: u64,
        transfer: u64,
        resources: &Resources,
    ) -> Result<Step, DisconnectReason> {
        let found = resources.regions.readable(key, offset, length);
        self.count_guess(key, found.map(|_| ()), resources)?;
        self.reply(match found {
            Ok([]) => Reply::Status { transfer, result: Ok(()) },
            Ok(_) => Reply::Data { transfer, key, offset, remaining: length },
            Err(error) => Reply::Status { transfer, result: Err(error) },
        })?;
        Ok(Step::Progress)
    }

    /// Counts keys that were never given out: a peer that tries many of them is guessing.
    fn count_guess(
        &mut self,
        key: Key,
        result: Result<(), TransferError>,
        resources: &Resources,
    ) -> Result<(), DisconnectReason> {
        let is_guess = result == Err(TransferError::BadKey) && !resources.regions.was_issued(key);
        self.guesses += u32::from(is_guess);
        if self.guesses > GUESSES_MAX { Err(DisconnectReason::Broken) } else { Ok(()) }
    }

    fn reply(&mut self, reply: Reply) -> Result<(), DisconnectReason> {
        if self.replies.len() >= REPLIES_MAX {
            return Err(DisconnectReason::Broken);
        }
        self.reply_last(reply);
        Ok(())
    }

    /// Gives up a message that will never be complete. Its posted buffer is posted again.
    pub(super) fn give_up_receiving(&mut self, priority: Priority, resources: &mut Resources) {
        let message = self.incoming[priority as usize].message.take();
        if let Some(Assembly { buffer, is_posted: true, .. }) = message {
            resources.release(priority, self.other_user.as_ref());
            resources.post(priority, buffer);
        }
    }
}
