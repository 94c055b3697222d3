//! What leaves for a peer.

use super::head::{HEAD_BYTES_MAX, Head};
use super::operation::{Frame, Place, PutId, Source};
use super::peer::{Queued, Reply, State};
use super::{NOTE_OF_READ, NOTE_OF_WRITE, Operation, ReadState, Rma, Served, ServedState, WriteState};
use crate::operation::Sink;
use crate::slab::PeerId;

/// The note of a put.
pub fn note(kind: u8, number: u64) -> [u8; 9] {
    let mut note = [kind; 9];
    note[1..].copy_from_slice(&number.to_le_bytes());
    note
}

impl<W, R: Sink> Rma<W, R> {
    /// Gives the link all that may leave for a peer, until the link returns `false`, because it has no room. That frame
    /// was not taken. A link may have no room for messages and some for pieces and puts, and the other way round. The
    /// result says whether the link has taken all; otherwise the driver calls again when the link has room.
    pub fn transmit(&mut self, peer: PeerId, mut link: impl FnMut(Frame<'_, W>) -> bool) -> bool {
        let Some(State::Connected { fragment_bytes }) = self.peers.value(peer.0).map(|known| known.state)
        else {
            return true;
        };
        let messages_taken = self.transmit_replies(peer, &mut link) && self.transmit_queued(peer, &mut link);
        let payloads_taken = self.transmit_granted(peer, fragment_bytes, &mut link)
            && self.transmit_answers(peer, fragment_bytes, &mut link);
        self.wake_waiting();
        messages_taken && payloads_taken
    }

    fn transmit_replies(&mut self, id: PeerId, link: &mut impl FnMut(Frame<'_, W>) -> bool) -> bool {
        let Some(peer) = self.peers.value_mut(id.0) else { return true };
        while let Some(reply) = peer.replies.front() {
            let (head, source) = match reply {
                Reply::Head(head) => (*head, Source::Nothing),
                Reply::Data { operation, place } => {
                    (Head::Data { operation: *operation }, Source::Registered(*place))
                }
            };
            if !link(Frame::Message { head: &head.to_bytes(), source }) {
                return false;
            }
            peer.accesses -= reply.answered();
            peer.replies.pop_front();
        }
        true
    }

    fn transmit_queued(&mut self, id: PeerId, link: &mut impl FnMut(Frame<'_, W>) -> bool) -> bool {
        let Some(peer) = self.peers.value_mut(id.0) else { return true };
        let short_bytes = peer.short_bytes(&self.limits);
        while let Some(queued) = peer.queued.front() {
            if peer.unanswered() >= self.limits.unanswered.into() {
                self.counts.operations_held_by_unanswered_ones += 1;
                return true;
            }
            let operation = self.operations.next_key();
            let (head, source) = match queued {
                Queued::Write { place: Place { key, offset, length }, data, write }
                    if *length <= short_bytes =>
                {
                    let source = if *length > 0 { Source::Write(write, 0..*length) } else { Source::Nothing };
                    (Head::Write { key: *key, offset: *offset, data: *data }, source)
                }
                Queued::Write { place: Place { key, offset, length }, data, .. } => {
                    let (key, offset, length, data) = (*key, *offset, *length, *data);
                    (Head::Request { operation, key, offset, length, data }, Source::Nothing)
                }
                Queued::Read { place: Place { key, offset, length }, region, .. } => {
                    let (key, offset, length, region) = (*key, *offset, *length, *region);
                    (Head::Read { operation, key, offset, length, region }, Source::Nothing)
                }
            };
            if !link(Frame::Message { head: &head.to_bytes(), source }) {
                return false;
            }
            match peer.queued.pop_front() {
                Some(Queued::Write { place, write, .. }) if place.length <= short_bytes => {
                    self.counts.short_writes += 1;
                    peer.writes.push_back(write);
                }
                Some(Queued::Write { place, write, .. }) => {
                    self.counts.long_writes += 1;
                    peer.asked += 1;
                    let (length, state) = (place.length, WriteState::Requested);
                    self.operations.insert(Operation::Write { peer: id, write, length, state });
                }
                Some(Queued::Read { place, region, read }) => {
                    self.counts.reads += 1;
                    peer.asked += 1;
                    let state = match region {
                        Some(_) => ReadState::Put,
                        None => ReadState::Pieces { rest: place.length },
                    };
                    self.operations.insert(Operation::Read { peer: id, read, state });
                }
                None => return true,
            }
        }
        true
    }

    /// Payloads of long writes.
    fn transmit_granted(
        &mut self,
        id: PeerId,
        fragment_bytes: usize,
        link: &mut impl FnMut(Frame<'_, W>) -> bool,
    ) -> bool {
        let Some(peer) = self.peers.value_mut(id.0) else { return true };
        while let Some(key) = peer.granted.front().copied() {
            let Some(Operation::Write { write, length, state, .. }) = self.operations.value_mut(key) else {
                peer.granted.pop_front();
                continue;
            };
            let WriteState::Granted { access, region, done } = *state else { return true };
            if let Some(region) = region {
                let source = Source::Write(&*write, 0..*length);
                let id = PutId::Write(key);
                if !link(Frame::Put { id, source, region, note: note(NOTE_OF_WRITE, access) }) {
                    return false;
                }
                self.counts.puts_of_writes += 1;
                *state = WriteState::Putting;
                peer.granted.pop_front();
                continue;
            }
            let head = Head::Piece { access }.to_bytes();
            let end = (*length).min(done + (fragment_bytes - HEAD_BYTES_MAX) as u64);
            if !link(Frame::Piece { head: &head, source: Source::Write(&*write, done..end) }) {
                return false;
            }
            self.counts.pieces_of_writes += 1;
            *state = WriteState::Granted { access, region, done: end };
            if end == *length {
                *state = WriteState::Sent;
                peer.granted.pop_front();
            }
        }
        true
    }

    /// Data of long reads. Those that wait until the link may put one more are none that the link has no room for.
    fn transmit_answers(
        &mut self,
        id: PeerId,
        fragment_bytes: usize,
        link: &mut impl FnMut(Frame<'_, W>) -> bool,
    ) -> bool {
        let Some(peer) = self.peers.value_mut(id.0) else { return true };
        while let Some(key) = peer.answering.front().copied() {
            let Some(Served { operation, place, state, .. }) = self.served.value_mut(key) else {
                peer.answering.pop_front();
                continue;
            };
            let ServedState::Answering { region, done } = *state else { return true };
            if let Some(region) = region {
                // The end of one of its puts makes it ready again.
                if peer.puts_of_reads >= self.limits.puts_of_reads_of_peer {
                    return true;
                }
                if self.puts_of_reads >= self.limits.puts_of_reads {
                    self.wait_for_put(id);
                    return true;
                }
                let source = Source::Registered(*place);
                let note = note(NOTE_OF_READ, *operation);
                if !link(Frame::Put { id: PutId::Read(key), source, region, note }) {
                    return false;
                }
                self.counts.puts_of_reads += 1;
                *state = ServedState::Putting;
                // From here on it counts as a put.
                peer.accesses -= 1;
                peer.puts_of_reads += 1;
                self.puts_of_reads += 1;
                peer.answering.pop_front();
                continue;
            }
            let head = Head::Data { operation: *operation }.to_bytes();
            let length = (place.length - done).min((fragment_bytes - HEAD_BYTES_MAX) as u64);
            let part = Place { offset: place.offset.wrapping_add(done), length, ..*place };
            if !link(Frame::Piece { head: &head, source: Source::Registered(part) }) {
                return false;
            }
            self.counts.pieces_of_reads += 1;
            *state = ServedState::Answering { region, done: done + length };
            if done + length == place.length {
                peer.accesses -= 1;
                peer.answering.pop_front();
                self.served.remove(key);
            }
        }
        true
    }
}
