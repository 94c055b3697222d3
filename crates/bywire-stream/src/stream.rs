//! One stream: its two directions, and what has to be sent of it.

use crate::direction::{Incoming, Next, Outgoing};
use crate::id::{Lane, StreamId};
use crate::planted::{self, Bug};
use crate::record::{Record, Refusal, ResetReason};

/// The phase of a stream between two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot has no stream.
    Vacant,
    /// The peer has not answered.
    Opening,
    /// The caller has not answered.
    Offered,
    /// Bytes may cross.
    Open,
    /// The caller is done with the stream. Its identifier is kept until the peer is, too.
    Finished,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub id: StreamId,
    pub phase: Phase,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    /// Records that leave by the high lane, before anything else of the stream.
    pub control: Control,
    /// The stream waits in the queue of those with such records.
    pub is_controlled: bool,
    /// The stream waits in the queue of those whose credit can wait.
    pub is_lazy: bool,
    /// The lane in whose queue it waits to send bytes, or its last record.
    pub lane: Option<Lane>,
    /// The bytes that it may still send in this turn.
    pub turn_bytes: u64,
    /// The number of the last message of each lane that has a record of it.
    pub last: [u64; 2],
    /// The peer has sent its last record of the stream.
    pub has_peer_done: bool,
    pub is_done_sent: bool,
}

/// Records to send, at most one of each kind.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// The description of a new stream.
    pub open: Option<Box<[u8]>>,
    pub answer: Option<Result<(), Refusal>>,
    pub start: bool,
    pub credit: bool,
    pub return_from: Option<u64>,
    pub reset: Option<ResetReason>,
}

impl Control {
    pub fn is_empty(&self) -> bool {
        self.open.is_none()
            && self.is_answered()
            && !self.credit
            && self.return_from.is_none()
            && self.reset.is_none()
    }

    /// Returns whether the peer knows that bytes follow.
    pub fn is_answered(&self) -> bool {
        self.answer.is_none() && !self.start
    }
}

impl Stream {
    /// A slot that has no stream yet.
    pub fn vacant(id: StreamId) -> Self {
        Self {
            id,
            phase: Phase::Vacant,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            control: Control::default(),
            is_controlled: false,
            is_lazy: false,
            lane: None,
            turn_bytes: 0,
            last: [0; 2],
            has_peer_done: false,
            is_done_sent: false,
        }
    }

    /// The slot has a new stream.
    pub fn renew(&mut self) {
        *self = Self::vacant(StreamId::new(self.id.slot(), self.id.generation() + 1));
    }

    /// Returns whether both directions have ended.
    pub fn is_over(&self) -> bool {
        self.incoming.is_over() && self.outgoing.is_over()
    }

    /// Returns whether it belongs to the queue of a lane: it has bytes, an end, or its last record to send.
    pub fn has_data(&self, is_opener: bool) -> bool {
        match self.phase {
            Phase::Open => self.control.is_answered() && self.outgoing.next() != Next::Nothing,
            Phase::Finished => {
                (self.control.is_empty() || planted::is(Bug::DoneEarly))
                    && !self.is_done_sent
                    && (is_opener || self.has_peer_done)
            }
            _ => false,
        }
    }

    /// The next of its records of the high lane.
    pub fn next_control(&self) -> Option<Record<'_>> {
        let (stream, control) = (self.id, &self.control);
        let window = self.incoming.window() as u32;
        if let Some(description) = &control.open {
            return Some(Record::Open { stream, window, description });
        }
        match control.answer {
            Some(Ok(())) => return Some(Record::Accept { stream, window }),
            Some(Err(reason)) => return Some(Record::Refuse { stream, reason }),
            None => {}
        }
        if control.start {
            return Some(Record::Start { stream, offset: self.outgoing.started() });
        }
        if control.credit {
            let (drained, window) = self.incoming.progress();
            return Some(Record::Credit { stream, drained, window });
        }
        if let Some(offset) = control.return_from {
            return Some(Record::Return { stream, offset });
        }
        control.reset.map(|reason| Record::Reset { stream, reason })
    }

    /// The record of [`Stream::next_control`] has left.
    pub fn control_sent(&mut self) {
        let control = &mut self.control;
        if control.open.take().is_some() || control.answer.take().is_some() {
            return;
        }
        if control.start {
            control.start = false;
        } else if control.credit {
            control.credit = false;
            self.incoming.announced();
        } else if control.return_from.take().is_none() {
            control.reset = None;
        }
    }
}
