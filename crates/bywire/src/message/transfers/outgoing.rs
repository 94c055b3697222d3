//! Our transfers: what is to be sent, in which order, and how it ended.

use bywire_wire::planted::{self, Bug};

use super::Transfers;
use super::transfer::{Note, Operation, Outgoing, Reply, TransferKind, Undelivered, Waiting, status_of};
use crate::message::buffer::Buffer;
use crate::message::error::{DisconnectReason, TransferError};
use crate::message::event::Event;
use crate::message::peer::{Confirm, Priority, TransferId};
use crate::message::region::Key;
use crate::message::resources::Resources;

impl Transfers {
    /// Queues a message.
    pub fn send(&mut self, id: TransferId, priority: Priority, buffer: Buffer, confirm: Confirm) {
        self.queue(id, priority, buffer, Operation::Message { confirm });
    }

    /// Queues a put into the peer's region.
    pub fn put(
        &mut self,
        id: TransferId,
        priority: Priority,
        (key, offset): (Key, u64),
        buffer: Buffer,
        note: Note,
    ) {
        let transfer = self.await_answer(id, TransferKind::Put, priority, Buffer::default());
        self.queue(id, priority, buffer, Operation::Put { key, offset, note, transfer });
    }

    /// Queues a get from the peer's region.
    pub fn get(&mut self, id: TransferId, priority: Priority, (key, offset): (Key, u64), buffer: Buffer) {
        let length = buffer.as_ref().len() as u64;
        let transfer = self.await_answer(id, TransferKind::Get, priority, buffer);
        self.queue(id, priority, Buffer::default(), Operation::Get { key, offset, length, transfer });
    }

    fn queue(&mut self, id: TransferId, priority: Priority, buffer: Buffer, operation: Operation) {
        self.outgoing[priority as usize].push_back(Outgoing {
            id,
            buffer,
            sent: 0,
            is_open: false,
            operation,
        });
    }

    /// Enters a transfer into the table of those that wait for an answer. Returns its number: the first free one.
    fn await_answer(
        &mut self,
        id: TransferId,
        kind: TransferKind,
        priority: Priority,
        buffer: Buffer,
    ) -> u32 {
        let entry = Some(Waiting {
            id,
            kind,
            priority,
            buffer,
            filled: 0,
            asked: false,
            is_out: false,
            answer: None,
        });
        let index = self.waiting.iter().position(Option::is_none).unwrap_or(self.waiting.len());
        match self.waiting.get_mut(index) {
            Some(free) => *free = entry,
            None => self.waiting.push(entry),
        }
        index as u32
    }

    /// Is nothing queued at this priority?
    #[inline(always)]
    pub fn is_idle(&self, priority: Priority) -> bool {
        self.outgoing[priority as usize].is_empty()
    }

    /// The first queued transfer.
    pub fn first(&self, priority: Priority) -> Option<&Outgoing> {
        self.outgoing[priority as usize].front()
    }

    /// The first queued transfer, to be sent on.
    pub fn first_mut(&mut self, priority: Priority) -> Option<&mut Outgoing> {
        self.outgoing[priority as usize].front_mut()
    }

    /// Notes that the first transfer has been sent whole, up to this position of its lane.
    pub fn finish_first(&mut self, priority: Priority, position: u64, resources: &mut Resources) {
        if let Some(entry) = self.outgoing[priority as usize].pop_front() {
            self.finish(entry, priority, position, resources);
        }
    }

    /// Takes the first transfer out, for a link that keeps its memory until the peer has it. [`Self::finish`] follows, or
    /// [`Self::fail`]. From now on the peer may answer it.
    pub fn take_first(&mut self, priority: Priority) -> Option<Outgoing> {
        let entry = self.outgoing[priority as usize].pop_front()?;
        if let Operation::Put { transfer, .. } = entry.operation
            && let Some(Some(waiting)) = self.waiting.get_mut(transfer as usize)
        {
            (waiting.asked, waiting.is_out) = (true, true);
        }
        Some(entry)
    }

    /// Notes that a transfer has been sent whole, up to this position of its lane, and that its memory is back.
    pub fn finish(&mut self, entry: Outgoing, priority: Priority, position: u64, resources: &mut Resources) {
        let Outgoing { id, buffer, operation, .. } = entry;
        match operation {
            Operation::Message { confirm: Confirm::Copied } => {
                resources.complete(Event::Sent { id, buffer, result: Ok(()) }, priority);
            }
            Operation::Message { confirm: Confirm::Delivered } => {
                let queue = &mut self.undelivered[priority as usize];
                // Where memory comes back late, a later message may be here already.
                let place = queue.partition_point(|other| other.position <= position);
                queue.insert(place, Undelivered { position, id, buffer });
            }
            Operation::Put { transfer, .. } => self.finish_put(transfer, buffer, resources),
            Operation::Get { transfer, .. } => {
                if let Some(Some(waiting)) = self.waiting.get_mut(transfer as usize) {
                    waiting.asked = true;
                }
            }
        }
    }

    /// Keeps the memory of a put until the peer's answer, which may have come before.
    fn finish_put(&mut self, transfer: u32, buffer: Buffer, resources: &mut Resources) {
        let Some(slot) = self.waiting.get_mut(transfer as usize) else { return };
        if let Some(waiting) = slot {
            waiting.buffer = buffer;
            (waiting.asked, waiting.is_out) = (true, false);
        }
        if let Some(waiting) = slot.take_if(|waiting| waiting.answer.is_some()) {
            let result = waiting.answer.map_or(Ok(()), status_of);
            self.complete(waiting, result, resources);
        }
    }

    /// Ends a transfer whose memory was out, and will not be sent.
    pub fn fail(
        &mut self,
        entry: Outgoing,
        priority: Priority,
        failed: Result<(), TransferError>,
        resources: &mut Resources,
    ) {
        // A put under way is in both tables, and is completed once.
        if let Operation::Put { transfer, .. } = entry.operation
            && !planted::is(Bug::PutEndsTwice)
            && let Some(waiting) = self.waiting.get_mut(transfer as usize)
        {
            *waiting = None;
        }
        if let Some(event) = entry.failed(failed) {
            resources.complete(event, priority);
        }
    }

    /// The position up to which the peer has to consume a lane before there is something to confirm.
    pub fn first_undelivered(&self, priority: Priority) -> Option<u64> {
        self.undelivered[priority as usize].front().map(|entry| entry.position)
    }

    /// Confirms messages that the peer has consumed: its lane up to `consumed`. `true`: there were some.
    pub fn confirm(&mut self, priority: Priority, consumed: u64, resources: &mut Resources) -> bool {
        let queue = &mut self.undelivered[priority as usize];
        let mut any = false;
        while queue.front().is_some_and(|entry| entry.position <= consumed)
            && let Some(entry) = queue.pop_front()
        {
            resources.complete(Event::Sent { id: entry.id, buffer: entry.buffer, result: Ok(()) }, priority);
            any = true;
        }
        any
    }

    /// Notes that a send has found no room.
    #[inline(always)]
    pub fn starve(&mut self, priority: Priority) {
        self.starved[priority as usize] = true;
    }

    /// Does the program wait for room?
    pub fn is_starved(&self, priority: Priority) -> bool {
        self.starved[priority as usize]
    }

    /// Tells the program that there is room again.
    pub fn tell_of_room(&mut self, priority: Priority, resources: &mut Resources) {
        self.starved[priority as usize] = planted::is(Bug::RoomRepeated);
        resources.events.push_back(Event::Room { peer: self.peer, priority });
    }

    /// Are there answers of ours to be sent?
    pub fn owes_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Is the next one a word about a transfer, and no data?
    pub fn owes_short_reply(&self) -> bool {
        matches!(self.replies.front(), Some(Reply::Status { .. }))
    }

    /// Takes the next answer of ours. The rest of it comes back by [`Self::reply_first`] or [`Self::reply_last`].
    pub fn next_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    pub fn reply_first(&mut self, reply: Reply) {
        self.replies.push_front(reply);
    }

    pub fn reply_last(&mut self, reply: Reply) {
        self.replies.push_back(reply);
    }

    /// Drops answers that could take as long as the peer likes.
    pub fn keep_short_replies(&mut self) {
        self.replies.retain(|reply| !matches!(reply, Reply::Data { .. }));
    }

    /// Does the peer owe us an answer, or will it?
    #[inline(always)]
    pub fn awaits_answers(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the next `length` bytes that a get asked for. `copy` copies them to their place.
    ///
    /// # Errors
    /// [`DisconnectReason::Broken`] if nothing was asked for, or fewer bytes; and errors of `copy`.
    pub fn receive_got(
        &mut self,
        transfer: u64,
        length: usize,
        copy: impl FnOnce(&mut [u8]) -> Result<(), DisconnectReason>,
    ) -> Result<(), DisconnectReason> {
        let waiting = self.waiting_mut(transfer).and_then(Option::as_mut).ok_or(DisconnectReason::Broken)?;
        let is_sound = waiting.kind == TransferKind::Get && waiting.asked;
        let rest = waiting.buffer.as_mut().get_mut(waiting.filled..).unwrap_or_default();
        let target = rest.get_mut(..length).filter(|_| is_sound).ok_or(DisconnectReason::Broken)?;
        waiting.filled += length;
        copy(target)
    }

    /// Takes the peer's report that a put or a get is over.
    ///
    /// # Errors
    /// [`DisconnectReason::Broken`] if there is no such transfer, or if bytes are missing.
    pub fn receive_status(
        &mut self,
        transfer: u64,
        code: u64,
        resources: &mut Resources,
    ) -> Result<(), DisconnectReason> {
        let slot = self.waiting_mut(transfer).ok_or(DisconnectReason::Broken)?;
        if let Some(waiting) =
            slot.as_mut().filter(|waiting| waiting.is_out && !planted::is(Bug::PutAnsweredEarly))
        {
            // The peer has it, and has not said so yet in the link's own terms.
            return match waiting.answer.replace(code) {
                None => Ok(()),
                Some(_) => Err(DisconnectReason::Broken),
            };
        }
        let result = status_of(code);
        let is_sound = |waiting: &Waiting| {
            let is_get = waiting.kind == TransferKind::Get;
            let is_missing = is_get && result.is_ok() && waiting.filled != waiting.buffer.as_ref().len();
            waiting.asked && !is_missing
        };
        // Where the answer is not sound, the transfer stays, and ends with the connection.
        let entry = slot.take_if(|waiting| is_sound(waiting)).ok_or(DisconnectReason::Broken)?;
        self.complete(entry, result, resources);
        Ok(())
    }

    fn complete(&mut self, entry: Waiting, result: Result<(), TransferError>, resources: &mut Resources) {
        while self.waiting.pop_if(|entry| entry.is_none()).is_some() {}
        let priority = entry.priority;
        resources.complete(entry.finished(result), priority);
    }

    fn waiting_mut(&mut self, transfer: u64) -> Option<&mut Option<Waiting>> {
        self.waiting.get_mut(usize::try_from(transfer).ok()?)
    }

    pub(super) fn give_up_sending(
        &mut self,
        priority: Priority,
        failed: Result<(), TransferError>,
        resources: &mut Resources,
    ) {
        if planted::is(Bug::UndeliveredForgotten) {
            self.undelivered[priority as usize].clear();
        }
        for entry in self.undelivered[priority as usize].drain(..) {
            resources.complete(Event::Sent { id: entry.id, buffer: entry.buffer, result: failed }, priority);
        }
        while let Some(entry) = self.outgoing[priority as usize].pop_front() {
            self.fail(entry, priority, failed, resources);
        }
    }

    pub(super) fn give_up_waiting(&mut self, failed: Result<(), TransferError>, resources: &mut Resources) {
        for entry in self.waiting.drain(..).flatten() {
            let priority = entry.priority;
            resources.complete(entry.finished(failed), priority);
        }
    }
}
