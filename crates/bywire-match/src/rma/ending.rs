//! The end of a peer, and of memory.

use super::head::Head;
use super::operation::{Access, AccessId, Denied, Event, Failure};
use super::peer::{Queued, Reply, State};
use super::{Operation, Rma, Served, ServedState};
use crate::operation::Sink;
use crate::slab::PeerId;

impl<W, R: Sink> Rma<W, R> {
    /// The connection to a peer has ended, or could not be made. Operations with it fail. The link has given back the
    /// memory of all puts.
    pub fn disconnected(&mut self, peer: PeerId) {
        let Some(state) = self.peers.value_mut(peer.0).filter(|state| state.state != State::Ended) else {
            return;
        };
        state.state = State::Ended;
        state.replies.clear();
        state.granted.clear();
        state.answering.clear();
        (state.asked, state.accesses) = (0, 0);
        self.puts_of_reads -= std::mem::take(&mut state.puts_of_reads);
        let writes = std::mem::take(&mut state.writes);
        let queued = std::mem::take(&mut state.queued);
        writes.into_iter().for_each(|write| self.fail_write(peer, write));
        let is_with = |operation: &Operation<W, R>| match operation {
            Operation::Write { peer: target, .. } | Operation::Read { peer: target, .. } => *target == peer,
        };
        for key in self.operations.keys(is_with) {
            match self.operations.remove(key) {
                Some(Operation::Write { write, .. }) => self.fail_write(peer, write),
                Some(Operation::Read { read, .. }) => self.fail_read(peer, read),
                None => {}
            }
        }
        for queued in queued {
            match queued {
                Queued::Write { write, .. } => self.fail_write(peer, write),
                Queued::Read { read, .. } => self.fail_read(peer, read),
            }
        }
        for key in self.served.keys(|served| served.peer == peer) {
            if let Some(Served { state: ServedState::Put, .. }) = self.served.remove(key) {
                self.events.push_back(Event::Withdraw { access: AccessId(key) });
            }
        }
        self.wake_waiting();
    }

    fn fail_write(&mut self, peer: PeerId, write: W) {
        self.counts.operations_failed += 1;
        self.events.push_back(Event::WriteFailed { write, peer, reason: Failure::Ended });
    }

    fn fail_read(&mut self, peer: PeerId, read: R) {
        self.counts.operations_failed += 1;
        self.events.push_back(Event::ReadFailed { read, peer, reason: Failure::Ended });
    }

    /// Memory with this key is not registered any more. What is under way for it is refused, or dropped when it arrives.
    /// Puts that read it go on: [`Rma::is_being_put`].
    pub fn withdraw(&mut self, key: u64) {
        let is_of = |served: &Served| served.place.key == key && served.state != ServedState::Putting;
        for number in self.served.keys(is_of) {
            let Some(Served { peer, operation, state, .. }) = self.served.remove(number) else { continue };
            self.counts.accesses_withdrawn += 1;
            match state {
                // The put of the peer fails, as the driver ends the exposure.
                ServedState::Put => {
                    self.events.push_back(Event::Withdraw { access: AccessId(number) });
                    if let Some(peer) = self.peers.value_mut(peer.0) {
                        peer.accesses -= 1;
                    }
                }
                ServedState::Answering { .. } => self.refuse_withdrawn(peer, operation, Access::Read),
                _ => self.refuse_withdrawn(peer, operation, Access::Write),
            }
        }
        for peer in self.peers.keys(|peer| !peer.replies.is_empty()) {
            let Some(state) = self.peers.value_mut(peer) else { continue };
            for reply in &mut state.replies {
                if let Reply::Data { operation, place } = reply
                    && place.key == key
                {
                    let operation = Some(*operation);
                    *reply = Reply::Head(Head::Refusal { operation, reason: Denied::NoMemory });
                    self.counts.accesses_withdrawn += 1;
                    self.counts.reads_refused += 1;
                }
            }
        }
    }

    fn refuse_withdrawn(&mut self, peer: PeerId, operation: u64, access: Access) {
        match access {
            Access::Write => self.counts.writes_refused += 1,
            Access::Read => self.counts.reads_refused += 1,
        }
        let reason = Denied::NoMemory;
        self.reply(peer, Reply::Head(Head::Refusal { operation: Some(operation), reason }));
    }
}
