//! Receiving: messages in the order that their headers ask for, and their records.

use super::{PeerLimits, Streams};
use crate::event::{Event, Violation};
use crate::id::{Lane, StreamId};
use crate::limits::{EARLY_BYTES_MIN, HELD_MESSAGE_BYTES};
use crate::planted::{self, Bug};
use crate::record::{Header, Record, Records, VERSION};
use crate::stream::Phase;

impl Streams {
    /// Takes a message that has arrived, and reports what it means. The messages of each lane come in the order in which the
    /// peer has made them. The closure cannot call the machine: it notes what has to be done, and stores bytes.
    ///
    /// A message of the low lane that has overtaken one of the high lane is copied and kept, at most
    /// [`crate::Limits::early_bytes_max`] bytes of them. It is reported with the message that it waits for.
    ///
    /// After the end of the connection nothing is reported.
    ///
    /// # Errors
    /// [`Violation`]: the peer has broken a rule, and the connection is over. All streams are lost ([`Streams::live`]).
    pub fn receive(
        &mut self,
        lane: Lane,
        message: &[u8],
        mut on_event: impl FnMut(Event<'_>),
    ) -> Result<(), Violation> {
        if self.is_over() {
            return Ok(());
        }
        let result = match lane {
            Lane::High => self.receive_high(message, &mut on_event),
            Lane::Low => self.receive_low(message, &mut on_event),
        };
        self.is_over |= result.is_err();
        result
    }

    fn receive_high(
        &mut self,
        message: &[u8],
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Violation> {
        let (header, records) = parse(message)?;
        if header.after.is_some() {
            return Err(Violation::State);
        }
        self.process(Lane::High, header, records, on_event)?;
        while let Some(message) = self.held.front() {
            if self.is_over || self.is_early(parse(message)?.0) {
                break;
            }
            let Some(message) = self.held.pop_front() else { break };
            self.held_bytes -= message.len() as u64 + HELD_MESSAGE_BYTES;
            let (header, records) = parse(&message)?;
            self.process(Lane::Low, header, records, on_event)?;
        }
        Ok(())
    }

    fn receive_low(&mut self, message: &[u8], on_event: &mut impl FnMut(Event<'_>)) -> Result<(), Violation> {
        let (header, records) = parse(message)?;
        let is_behind_held = !self.held.is_empty() && !planted::is(Bug::HeldOvertaken);
        if !is_behind_held && !self.is_early(header) {
            return self.process(Lane::Low, header, records, on_event);
        }
        self.held_bytes += message.len() as u64 + HELD_MESSAGE_BYTES;
        if self.held_bytes > self.limits.early_bytes_max.into() {
            return Err(Violation::Early);
        }
        self.counts.held += 1;
        self.held.push_back(message.into());
        Ok(())
    }

    /// Returns whether a message of the low lane has overtaken the one of the high lane that it names.
    fn is_early(&self, header: Header) -> bool {
        let processed = self.processed[Lane::High as usize] as u32;
        let is_early = header.after.is_some_and(|after| after.wrapping_sub(processed) as i32 > 0);
        is_early && !planted::is(Bug::LanesUnordered)
    }

    fn process(
        &mut self,
        lane: Lane,
        header: Header,
        records: Records<'_>,
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Violation> {
        self.processed[lane as usize] += 1;
        self.acknowledge(header)?;
        self.must_acknowledge |= header.wants_acknowledgement;
        for record in records {
            self.process_record(record?, on_event)?;
            if self.is_over {
                break;
            }
        }
        Ok(())
    }

    /// Notes how many messages the peer has processed.
    fn acknowledge(&mut self, header: Header) -> Result<(), Violation> {
        for (lane, processed) in header.processed.into_iter().enumerate() {
            let known = self.acknowledged[lane];
            // A message of the other lane may have brought a higher count before.
            let progress = processed.wrapping_sub(known as u32) as i32;
            if progress > 0 {
                self.acknowledged[lane] = known + progress as u64;
            }
            if self.acknowledged[lane] > self.sent[lane] {
                return Err(Violation::Acknowledgement);
            }
        }
        if self.awaited <= self.acknowledged[Lane::High as usize] {
            self.early_bytes = 0;
        }
        Ok(())
    }

    fn process_record(
        &mut self,
        record: Record<'_>,
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Violation> {
        if matches!(record, Record::Hello { .. }) != self.peer.is_none() {
            return Err(Violation::Hello);
        }
        match record {
            Record::Hello { streams_max, opens_max, early_bytes_max } => {
                if early_bytes_max < EARLY_BYTES_MIN {
                    return Err(Violation::Hello);
                }
                self.peer = Some(PeerLimits { streams_max, opens_max, early_bytes_max });
                on_event(Event::Ready);
            }
            Record::Close { reason } => {
                self.is_over = true;
                on_event(Event::Closed { reason });
            }
            Record::Open { stream, window, description } => {
                self.opened_by_peer(stream, window)?;
                on_event(Event::Opened { stream, description });
            }
            Record::Done { stream } => self.done_by_peer(stream)?,
            Record::Accept { stream, .. }
            | Record::Refuse { stream, .. }
            | Record::Start { stream, .. }
            | Record::Bytes { stream, .. }
            | Record::Credit { stream, .. }
            | Record::Return { stream, .. }
            | Record::Back { stream, .. }
            | Record::Reset { stream, .. } => self.process_of_stream(stream, record, on_event)?,
        }
        Ok(())
    }

    fn process_of_stream(
        &mut self,
        id: StreamId,
        record: Record<'_>,
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Violation> {
        let slot = self.named_by_peer(id)?;
        let stream = &mut self.slots[slot];
        if stream.phase == Phase::Finished {
            // It had left before the peer knew.
            self.counts.late += 1;
            if let (Record::Bytes { offset, bytes, .. }, true) = (record, planted::is(Bug::ResetReports)) {
                on_event(Event::Bytes { stream: id, offset, bytes });
            }
            return if planted::is(Bug::LateRecordRefused) { Err(Violation::State) } else { Ok(()) };
        }
        if let Record::Reset { reason, .. } = record {
            self.ended_by_peer(slot);
            on_event(Event::Reset { stream: id, reason });
            return Ok(());
        }
        match (stream.phase, record) {
            (Phase::Opening, Record::Accept { window, .. }) => {
                stream.phase = Phase::Open;
                stream.outgoing.open(window);
                self.unanswered[self.side as usize] -= 1;
                on_event(Event::Accepted { stream: id });
            }
            (Phase::Opening, Record::Refuse { reason, .. }) => {
                if planted::is(Bug::RefusedForgotten) {
                    self.finish(slot);
                } else {
                    self.ended_by_peer(slot);
                }
                on_event(Event::Refused { stream: id, reason });
            }
            (Phase::Open, Record::Start { offset, .. }) => {
                stream.incoming.start(offset)?;
                on_event(Event::Started { stream: id, offset });
            }
            (Phase::Open, Record::Bytes { offset, bytes, is_half, .. }) => {
                stream.incoming.receive(offset, bytes.len() as u64, is_half)?;
                if !bytes.is_empty() {
                    on_event(Event::Bytes { stream: id, offset, bytes });
                }
                if is_half {
                    on_event(Event::Half { stream: id, offset: offset + bytes.len() as u64 });
                }
            }
            (Phase::Open, Record::Back { offset, .. }) => {
                let offset = stream.incoming.receive_back(offset)?;
                on_event(Event::Back { stream: id, offset });
            }
            (Phase::Open, Record::Credit { drained, window, .. }) => {
                if stream.outgoing.credit(drained, window)? {
                    on_event(Event::Drained { stream: id, offset: drained });
                }
                if !planted::is(Bug::CreditSleeps) {
                    self.list_data(slot);
                }
            }
            (Phase::Open, Record::Return { offset, .. }) => {
                if let Some(offset) = stream.outgoing.return_asked(offset)? {
                    on_event(Event::BackAsked { stream: id, offset });
                }
            }
            _ => return Err(Violation::State),
        }
        Ok(())
    }

    /// The slot of a stream that the peer may still name.
    fn named_by_peer(&self, id: StreamId) -> Result<usize, Violation> {
        let slot = self.find(id).ok_or(Violation::UnknownStream)?;
        if self.slots[slot].has_peer_done { Err(Violation::State) } else { Ok(slot) }
    }

    /// The peer uses a slot: its next one, or one whose last stream both ends are done with.
    fn opened_by_peer(&mut self, id: StreamId, window: u32) -> Result<(), Violation> {
        let opener = self.side.other();
        let (slot, index) = (id.slot(), id.slot() / 2);
        if id.opener() != opener {
            return Err(Violation::UnknownStream);
        }
        if index >= self.limits.streams_max as usize {
            return Err(Violation::Streams);
        }
        if self.unanswered[opener as usize] >= self.limits.opens_max {
            return Err(Violation::Opens);
        }
        if index == self.used[opener as usize] {
            self.used[opener as usize] += 1;
            self.extend(slot);
        } else if index > self.used[opener as usize] || self.slots[slot].phase != Phase::Vacant {
            return Err(Violation::UnknownStream);
        } else if self.slots[slot].id.generation() < u32::MAX {
            self.slots[slot].renew();
        }
        let stream = &mut self.slots[slot];
        if stream.id != id || stream.phase != Phase::Vacant {
            return Err(Violation::UnknownStream);
        }
        stream.phase = Phase::Offered;
        stream.outgoing.open(window);
        self.unanswered[opener as usize] += 1;
        Ok(())
    }

    /// The peer has reset or refused a stream.
    fn ended_by_peer(&mut self, slot: usize) {
        self.slots[slot].control = Default::default();
        self.finish(slot);
        self.list_data(slot);
    }

    /// The peer sends nothing more of a stream. The opener comes first, so that its slot is free everywhere once it has the
    /// answer.
    fn done_by_peer(&mut self, id: StreamId) -> Result<(), Violation> {
        let slot = self.named_by_peer(id)?;
        let stream = &mut self.slots[slot];
        let is_opener = id.opener() == self.side;
        let is_allowed = match stream.phase {
            Phase::Finished => !is_opener || stream.is_done_sent,
            Phase::Open => !is_opener && stream.is_over(),
            _ => false,
        };
        if !is_allowed {
            return Err(Violation::State);
        }
        stream.has_peer_done = true;
        if is_opener {
            self.free(slot);
        } else {
            self.list_data(slot);
        }
        Ok(())
    }
}

fn parse(message: &[u8]) -> Result<(Header, Records<'_>), Violation> {
    if let Some(version) = message.first().filter(|version| **version != VERSION) {
        return Err(Violation::Version(*version));
    }
    Ok(Header::parse(message)?)
}
