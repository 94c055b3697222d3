//! What arrives of a peer.

use super::head::Head;
use super::operation::{Access, Denied, Event, Failure, Memory, Place, PutId};
use super::peer::Reply;
use super::{NOTE_OF_READ, NOTE_OF_WRITE, Operation, ReadState, Rma, Served, ServedState, WriteState};
use crate::operation::{Sink, Violation};
use crate::slab::PeerId;

impl<W, R: Sink> Rma<W, R> {
    /// A frame has arrived. Frames of one peer arrive in the order in which they were transmitted, those of
    /// [`Frame::Message`](super::Frame::Message) and of [`Frame::Piece`](super::Frame::Piece) each among themselves.
    ///
    /// # Errors
    /// The rule that the peer has broken. The frame has changed nothing.
    pub fn arrive(&mut self, peer: PeerId, frame: &[u8], memory: &mut impl Memory) -> Result<(), Violation> {
        if !self.peers.value(peer.0).is_some_and(|peer| peer.is_connected()) {
            return Err(Violation::Unconnected);
        }
        let (head, payload) = Head::parse(frame)?;
        match head {
            Head::Write { key, offset, data } => {
                let place = Place { key, offset, length: payload.len() as u64 };
                self.write_arrived(peer, (place, data), payload, memory)
            }
            Head::Request { operation, key, offset, length, data } => {
                self.request_arrived(peer, operation, (Place { key, offset, length }, data), memory)
            }
            Head::Grant { operation, access, region } => self.grant_arrived(peer, operation, access, region),
            Head::Piece { access } => self.piece_arrived(peer, access, payload, memory),
            Head::Written { operation } => self.written_arrived(peer, operation),
            Head::Read { operation, key, offset, length, region } => {
                self.read_arrived(peer, operation, (Place { key, offset, length }, region), memory)
            }
            Head::Data { operation } => self.data_arrived(peer, operation, payload),
            Head::Done { writes } => self.done_arrived(peer, writes),
            Head::Refusal { operation, reason } => self.refusal_arrived(peer, operation, reason),
        }
    }

    /// The note of a put has arrived, after the data.
    ///
    /// # Errors
    /// The rule that the peer has broken.
    pub fn notified(&mut self, peer: PeerId, note: &[u8]) -> Result<(), Violation> {
        let [kind, number @ ..] = note else { return Err(Violation::UnknownReceive) };
        let number = number.try_into().map(u64::from_le_bytes).map_err(|_| Violation::UnknownReceive)?;
        match *kind {
            NOTE_OF_WRITE => {
                let waits = |served: &Served| served.peer == peer && served.state == ServedState::Put;
                // The memory may have been withdrawn while the note was under way.
                if self.served.value(number).is_some_and(waits) {
                    self.complete_write(number);
                    if let Some(peer) = self.peers.value_mut(peer.0) {
                        peer.accesses -= 1;
                    }
                }
                Ok(())
            }
            NOTE_OF_READ => {
                let waits = |operation: &Operation<W, R>| match operation {
                    Operation::Read { peer: target, state, .. } => {
                        *target == peer && *state == ReadState::Put
                    }
                    Operation::Write { .. } => false,
                };
                if !self.operations.value(number).is_some_and(waits) {
                    return Err(Violation::UnknownReceive);
                }
                self.complete(number, None);
                Ok(())
            }
            _ => Err(Violation::UnknownReceive),
        }
    }

    /// A put that [`Frame::Put`](super::Frame::Put) has asked for has ended: `is_delivered` if the peer has the data.
    pub fn put_done(&mut self, id: PutId, is_delivered: bool) {
        match id {
            PutId::Write(key) => {
                let puts = |operation: &Operation<W, R>| {
                    matches!(operation, Operation::Write { state: WriteState::Putting, .. })
                };
                if self.operations.value(key).is_some_and(puts) {
                    self.complete(key, (!is_delivered).then_some(Failure::Withdrawn));
                }
            }
            // If it was not delivered, the peer has withdrawn its own buffer.
            PutId::Read(key) => {
                let puts = |served: &&Served| served.state == ServedState::Putting;
                let Some(Served { peer, .. }) = self.served.value(key).filter(puts) else { return };
                let peer = *peer;
                self.served.remove(key);
                self.puts_of_reads -= 1;
                if let Some(state) = self.peers.value_mut(peer.0) {
                    state.puts_of_reads -= 1;
                }
                // It comes after those that wait already.
                self.wait_for_put(peer);
                self.wake_waiting();
            }
        }
    }

    /// Counts an operation of a peer.
    fn admit(&mut self, peer: PeerId) -> Result<(), Violation> {
        let state = self.peers.value_mut(peer.0).ok_or(Violation::Unconnected)?;
        let most = u64::from(self.limits.unanswered);
        // An operation has two answers at most. A peer that keeps to the rules waits for both, or for the put of one.
        if state.accesses >= most || state.replies.len() as u64 >= 2 * most {
            return Err(Violation::Requests);
        }
        state.accesses += 1;
        Ok(())
    }

    fn refuse(&mut self, peer: PeerId, operation: Option<u64>, access: Access, reason: Denied) {
        match access {
            Access::Write => self.counts.writes_refused += 1,
            Access::Read => self.counts.reads_refused += 1,
        }
        self.reply(peer, Reply::Head(Head::Refusal { operation, reason }));
    }

    fn write_arrived(
        &mut self,
        peer: PeerId,
        (place, data): (Place, Option<u64>),
        payload: &[u8],
        memory: &mut impl Memory,
    ) -> Result<(), Violation> {
        self.admit(peer)?;
        if let Err(reason) = memory.check(Access::Write, place) {
            self.refuse(peer, None, Access::Write, reason);
            return Ok(());
        }
        if !payload.is_empty() {
            memory.write(place, payload);
        }
        self.events.push_back(Event::Accessed { peer, access: Access::Write, place, data });
        let last = self.peers.value_mut(peer.0).and_then(|peer| peer.replies.back_mut());
        match last {
            Some(Reply::Head(Head::Done { writes })) => *writes += 1,
            _ => self.reply(peer, Reply::Head(Head::Done { writes: 1 })),
        }
        Ok(())
    }

    fn request_arrived(
        &mut self,
        peer: PeerId,
        operation: u64,
        (place, data): (Place, Option<u64>),
        memory: &impl Memory,
    ) -> Result<(), Violation> {
        if place.length == 0 {
            return Err(Violation::Length);
        }
        self.admit(peer)?;
        if let Err(reason) = memory.check(Access::Write, place) {
            self.refuse(peer, Some(operation), Access::Write, reason);
            return Ok(());
        }
        let state = ServedState::Exposing;
        let access = super::AccessId(self.served.insert(Served { peer, operation, place, data, state }));
        self.events.push_back(Event::Expose { access, peer, place });
        Ok(())
    }

    fn grant_arrived(
        &mut self,
        peer: PeerId,
        operation: u64,
        access: u64,
        region: Option<u64>,
    ) -> Result<(), Violation> {
        match self.operations.value_mut(operation) {
            Some(Operation::Write { peer: target, state, .. })
                if *target == peer && *state == WriteState::Requested =>
            {
                *state = WriteState::Granted { access, region, done: 0 };
            }
            _ => return Err(Violation::UnknownSend),
        }
        if let Some(state) = self.peers.value_mut(peer.0) {
            state.granted.push_back(operation);
        }
        self.make_ready(peer);
        Ok(())
    }

    fn piece_arrived(
        &mut self,
        peer: PeerId,
        access: u64,
        payload: &[u8],
        memory: &mut impl Memory,
    ) -> Result<(), Violation> {
        let length = payload.len() as u64;
        let Some(served) = self.served.value_mut(access).filter(|served| served.peer == peer) else {
            // The memory was withdrawn while the piece was under way.
            self.counts.pieces_dropped += 1;
            return Ok(());
        };
        let ServedState::Pieces { done } = &mut served.state else {
            return Err(Violation::UnknownReceive);
        };
        let place = served.place;
        if length == 0 || length > place.length - *done {
            return Err(Violation::Length);
        }
        let part = Place { offset: place.offset.wrapping_add(*done), length, ..place };
        *done += length;
        let is_whole = *done == place.length;
        memory.write(part, payload);
        if is_whole {
            let operation = served.operation;
            self.complete_write(access);
            self.reply(peer, Reply::Head(Head::Written { operation }));
        }
        Ok(())
    }

    /// A long write of a peer is there.
    fn complete_write(&mut self, access: u64) {
        let Some(Served { peer, place, data, state, .. }) = self.served.remove(access) else { return };
        if state == ServedState::Put {
            self.events.push_back(Event::Withdraw { access: super::AccessId(access) });
        }
        self.events.push_back(Event::Accessed { peer, access: Access::Write, place, data });
    }

    fn written_arrived(&mut self, peer: PeerId, operation: u64) -> Result<(), Violation> {
        match self.operations.value(operation) {
            Some(Operation::Write { peer: target, state, .. })
                if *target == peer && *state == WriteState::Sent =>
            {
                self.complete(operation, None);
                Ok(())
            }
            _ => Err(Violation::UnknownSend),
        }
    }

    fn read_arrived(
        &mut self,
        peer: PeerId,
        operation: u64,
        (place, region): (Place, Option<u64>),
        memory: &impl Memory,
    ) -> Result<(), Violation> {
        if place.length == 0 && region.is_some() {
            return Err(Violation::Length);
        }
        self.admit(peer)?;
        if let Err(reason) = memory.check(Access::Read, place) {
            self.refuse(peer, Some(operation), Access::Read, reason);
            return Ok(());
        }
        self.events.push_back(Event::Accessed { peer, access: Access::Read, place, data: None });
        let Some(state) = self.peers.value_mut(peer.0) else { return Ok(()) };
        if region.is_none() && place.length <= state.short_bytes(&self.limits) {
            self.counts.reads_answered_at_once += 1;
            self.reply(peer, Reply::Data { operation, place });
            return Ok(());
        }
        let answering = ServedState::Answering { region, done: 0 };
        let served = Served { peer, operation, place, data: None, state: answering };
        state.answering.push_back(self.served.insert(served));
        self.make_ready(peer);
        Ok(())
    }

    fn data_arrived(&mut self, peer: PeerId, operation: u64, payload: &[u8]) -> Result<(), Violation> {
        let (read, rest) = match self.operations.value_mut(operation) {
            Some(Operation::Read { peer: target, read, state: ReadState::Pieces { rest } })
                if *target == peer =>
            {
                (read, rest)
            }
            Some(_) => return Err(Violation::UnknownReceive),
            // The memory was withdrawn, and the refusal has overtaken the piece.
            None => {
                self.counts.pieces_dropped += 1;
                return Ok(());
            }
        };
        let length = payload.len() as u64;
        if length > *rest || length == 0 && *rest > 0 {
            return Err(Violation::Length);
        }
        *rest -= length;
        let is_whole = *rest == 0;
        if length > 0 {
            read.write(payload);
        }
        if is_whole {
            self.complete(operation, None);
        }
        Ok(())
    }

    fn done_arrived(&mut self, peer: PeerId, writes: u64) -> Result<(), Violation> {
        let Some(state) = self.peers.value_mut(peer.0) else { return Err(Violation::Unconnected) };
        if writes == 0 || writes > state.writes.len() as u64 {
            return Err(Violation::UnknownSend);
        }
        let done = state.writes.drain(..writes as usize);
        self.events.extend(done.map(|write| Event::Written { write, peer }));
        self.make_ready(peer);
        Ok(())
    }

    fn refusal_arrived(
        &mut self,
        peer: PeerId,
        operation: Option<u64>,
        reason: Denied,
    ) -> Result<(), Violation> {
        let reason = Failure::Denied(reason);
        let Some(operation) = operation else {
            let write = self.peers.value_mut(peer.0).and_then(|peer| peer.writes.pop_front());
            let write = write.ok_or(Violation::UnknownSend)?;
            self.counts.operations_failed += 1;
            self.events.push_back(Event::WriteFailed { write, peer, reason });
            self.make_ready(peer);
            return Ok(());
        };
        let waits = match self.operations.value(operation) {
            Some(Operation::Write { peer: target, state, .. }) => {
                *target == peer && *state != WriteState::Putting
            }
            Some(Operation::Read { peer: target, .. }) => *target == peer,
            None => false,
        };
        if !waits {
            return Err(Violation::UnknownSend);
        }
        self.complete(operation, Some(reason));
        Ok(())
    }

    /// An operation of this end is over.
    fn complete(&mut self, key: u64, failure: Option<Failure>) {
        let Some(operation) = self.operations.remove(key) else { return };
        self.counts.operations_failed += u64::from(failure.is_some());
        let (peer, event) = match (operation, failure) {
            (Operation::Write { peer, write, .. }, None) => (peer, Event::Written { write, peer }),
            (Operation::Write { peer, write, .. }, Some(reason)) => {
                (peer, Event::WriteFailed { write, peer, reason })
            }
            (Operation::Read { peer, read, .. }, None) => (peer, Event::Read { read, peer }),
            (Operation::Read { peer, read, .. }, Some(reason)) => {
                (peer, Event::ReadFailed { read, peer, reason })
            }
        };
        self.events.push_back(event);
        if let Some(state) = self.peers.value_mut(peer.0) {
            state.asked -= 1;
        }
        // Others may have waited for its answer.
        self.make_ready(peer);
    }
}
