//! The two directions of a stream: where each one is, and whether it may go on. Their offsets are those of the caller.

use crate::event::{CallError, Violation};
use crate::limits::{OFFSET_MAX, Pool};
use crate::planted::{self, Bug};

/// The direction that this end reads.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    state: IncomingState,
    /// The direction has left the kernel. Until then the limit counts from where it will start.
    is_started: bool,
    /// All bytes before it have arrived.
    received: u64,
    /// All bytes before it were drained.
    drained: u64,
    /// The peer may send bytes before it.
    limit: u64,
    /// The two above, as the last credit has told them.
    announced: (u64, u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IncomingState {
    #[default]
    Reading,
    /// This end has stopped to read and has asked for the direction's return.
    Returning,
    /// The direction ends at an offset.
    Ending(u64),
}

/// When to announce the progress of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announce {
    Never,
    /// With the next message.
    Lazily,
    Now,
}

impl Incoming {
    /// Grants a window at the beginning.
    pub fn open(&mut self, pool: &mut Pool, room: u64) -> u32 {
        self.limit = pool.renew(0, room);
        self.announced.1 = self.limit;
        self.limit as u32
    }

    pub fn start(&mut self, offset: u64) -> Result<(), Violation> {
        // A reader may ask for the return before the direction has started.
        if self.is_started || matches!(self.state, IncomingState::Ending(_)) {
            return Err(Violation::State);
        }
        self.is_started = true;
        (self.received, self.drained) = (offset, offset);
        self.limit += offset;
        self.announced = (offset, self.limit);
        Ok(())
    }

    pub fn receive(&mut self, offset: u64, length: u64, is_half: bool) -> Result<(), Violation> {
        let end = match self.state {
            _ if !self.is_started => return Err(Violation::State),
            IncomingState::Reading | IncomingState::Returning => OFFSET_MAX,
            IncomingState::Ending(end) if self.received < end && !is_half => end,
            IncomingState::Ending(_) => return Err(Violation::AfterEnd),
        };
        if offset != self.received {
            return Err(Violation::Offset);
        }
        let next = offset + length;
        if next > self.limit {
            return Err(Violation::Credit);
        }
        if next > end {
            return Err(Violation::AfterEnd);
        }
        self.received = next;
        if is_half {
            self.state = IncomingState::Ending(next);
        }
        Ok(())
    }

    /// The direction returns to the kernel at an offset, which is the result.
    pub fn receive_back(&mut self, offset: u64) -> Result<u64, Violation> {
        let least = match self.state {
            _ if !self.is_started && offset > 0 => return Err(Violation::State),
            IncomingState::Reading => self.received,
            IncomingState::Returning => self.drained,
            IncomingState::Ending(_) => return Err(Violation::AfterEnd),
        };
        if offset < least {
            return Err(Violation::Offset);
        }
        self.state = IncomingState::Ending(offset);
        Ok(if planted::is(Bug::BackMisplaced) { self.drained } else { offset })
    }

    /// The reader has stopped, and wants the direction to return. The result is the offset where it has stopped.
    pub fn ask_back(&mut self) -> Result<u64, CallError> {
        match self.state {
            IncomingState::Reading => self.state = IncomingState::Returning,
            _ => return Err(CallError::State),
        }
        Ok(self.drained)
    }

    /// The reader has drained bytes and has room for more.
    pub fn drain(&mut self, offset: u64, room: u64, pool: &mut Pool) -> Result<Announce, CallError> {
        let most = match self.state {
            _ if !self.is_started => return Err(CallError::State),
            IncomingState::Reading => self.received,
            IncomingState::Returning => self.drained,
            IncomingState::Ending(end) => self.received.min(end),
        };
        if !(self.drained..=most).contains(&offset) {
            return Err(CallError::Offset);
        }
        pool.release(self.window(), self.limit - offset);
        self.drained = offset;
        // An end that is near needs no more than is missing up to it.
        let room = match self.state {
            IncomingState::Ending(end) => room.min(end.saturating_sub(offset)),
            IncomingState::Returning => 0,
            _ => room,
        };
        self.limit = offset + pool.renew(self.window(), room);
        Ok(self.announce())
    }

    fn announce(&self) -> Announce {
        if self.announced == (self.drained, self.limit) {
            return Announce::Never;
        }
        // A sender without credit, whose bytes were all drained, is announced all of the window.
        let granted = self.limit - self.announced.1;
        let is_much = granted > 0 && granted >= self.window() / 2 && !planted::is(Bug::CreditForgotten);
        if is_much { Announce::Now } else { Announce::Lazily }
    }

    /// The credit to announce: the offset drained, and the window from there on.
    pub fn progress(&self) -> (u64, u32) {
        let window = if planted::is(Bug::CreditDoubled) { 2 * self.window() } else { self.window() };
        (self.drained, window as u32)
    }

    /// The peer is told the present progress.
    pub fn announced(&mut self) {
        self.announced = (self.drained, self.limit);
    }

    /// Returns whether the peer does not know yet what was drained.
    pub fn has_news(&self) -> bool {
        self.announced.0 != self.drained
    }

    /// The credit that the peer has not used, and the bytes that were not drained.
    pub fn window(&self) -> u64 {
        self.limit - self.drained
    }

    /// The peer may send bytes before the result.
    pub fn granted(&self) -> u64 {
        self.limit
    }

    /// Returns whether the end is known and all bytes before it have arrived.
    pub fn is_over(&self) -> bool {
        matches!(self.state, IncomingState::Ending(end) if self.received >= end)
    }

    /// All bytes before the result have arrived.
    pub fn received(&self) -> u64 {
        self.received
    }
}

/// The direction that this end writes.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    state: OutgoingState,
    /// The direction has left the kernel. Until then the limit counts from where it will start.
    is_started: bool,
    /// The offset at which it has left the kernel.
    started: u64,
    /// All bytes before it were sent.
    sent: u64,
    /// The caller has all bytes before it.
    queued: u64,
    /// The peer takes bytes before it.
    limit: u64,
    /// The peer has drained all bytes before it.
    drained: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OutgoingState {
    #[default]
    Writing,
    /// The peer has asked for the direction's return, from this offset on.
    Asked(u64),
    /// The direction ends behind what is queued.
    Half { is_sent: bool },
    /// The direction returns to the kernel behind what is queued.
    Back { is_sent: bool },
}

/// The next thing that a direction has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing at present.
    Nothing,
    /// So many bytes from an offset on at most, and then the end if nothing else is left to send.
    Bytes { offset: u64, most: u64, is_last_half: bool },
    /// The direction returns to the kernel at an offset.
    Back { offset: u64 },
}

impl Outgoing {
    /// The peer grants a window for the beginning.
    pub fn open(&mut self, window: u32) {
        self.limit = window.into();
    }

    pub fn start(&mut self, offset: u64) -> Result<(), CallError> {
        if offset > OFFSET_MAX {
            return Err(CallError::Offset);
        }
        if self.is_started || self.state != OutgoingState::Writing {
            return Err(CallError::State);
        }
        self.is_started = true;
        (self.started, self.sent, self.queued, self.drained) = (offset, offset, offset, offset);
        self.limit += offset;
        Ok(())
    }

    pub fn queue(&mut self, end: u64) -> Result<(), CallError> {
        if !self.is_started || !matches!(self.state, OutgoingState::Writing | OutgoingState::Asked(_)) {
            return Err(CallError::State);
        }
        if !(self.queued..=OFFSET_MAX).contains(&end) {
            return Err(CallError::Offset);
        }
        self.queued = end;
        Ok(())
    }

    pub fn half(&mut self) -> Result<(), CallError> {
        match self.state {
            OutgoingState::Writing if self.is_started => self.state = OutgoingState::Half { is_sent: false },
            _ => return Err(CallError::State),
        }
        Ok(())
    }

    pub fn back(&mut self, offset: u64) -> Result<(), CallError> {
        let least = match self.state {
            OutgoingState::Writing => self.sent,
            OutgoingState::Asked(offset) => offset,
            OutgoingState::Half { .. } | OutgoingState::Back { .. } => return Err(CallError::State),
        };
        if !(least..=self.queued).contains(&offset) {
            return Err(CallError::Offset);
        }
        self.state = OutgoingState::Back { is_sent: false };
        self.queued = offset;
        Ok(())
    }

    /// The peer's reader has stopped at an offset. The result is the offset to tell the caller, if it has to answer.
    pub fn return_asked(&mut self, offset: u64) -> Result<Option<u64>, Violation> {
        if offset > self.sent {
            return Err(Violation::Offset);
        }
        match self.state {
            // A peer that asks before it knows of the start has stopped there.
            OutgoingState::Writing | OutgoingState::Half { is_sent: false } => {
                let offset = offset.max(self.drained);
                if !planted::is(Bug::ReturnIgnored) {
                    self.state = OutgoingState::Asked(offset);
                }
                Ok(Some(offset))
            }
            OutgoingState::Asked(_) => Err(Violation::State),
            // The end of the direction is the answer.
            OutgoingState::Half { is_sent: true } | OutgoingState::Back { .. } => Ok(None),
        }
    }

    /// The peer's credit. The result says whether the peer has drained more than before.
    pub fn credit(&mut self, drained: u64, window: u32) -> Result<bool, Violation> {
        if !self.is_started {
            return Err(Violation::State);
        }
        if !(self.drained..=self.sent).contains(&drained) {
            return Err(Violation::Offset);
        }
        let limit = drained + u64::from(window);
        if limit < self.limit {
            return Err(Violation::CreditWithdrawn);
        }
        self.limit = limit;
        let has_drained = drained > self.drained;
        self.drained = drained;
        Ok(has_drained)
    }

    /// The next thing that has to leave.
    pub fn next(&self) -> Next {
        let (is_half, is_back) = match self.state {
            OutgoingState::Asked(_) => return Next::Nothing,
            OutgoingState::Writing => (false, false),
            OutgoingState::Half { is_sent: true } => return Next::Nothing,
            OutgoingState::Half { is_sent: false } => (true, false),
            OutgoingState::Back { is_sent } => (false, !is_sent),
        };
        if is_back {
            return Next::Back { offset: self.queued };
        }
        let allowed = if planted::is(Bug::CreditIgnored) { u64::MAX } else { self.limit };
        let most = self.queued.min(allowed).saturating_sub(self.sent);
        let is_last_half = is_half && self.sent == self.queued;
        if most == 0 && !is_last_half {
            Next::Nothing
        } else {
            Next::Bytes { offset: self.sent, most, is_last_half }
        }
    }

    /// Bytes have left. The result says whether the direction has ended with them.
    pub fn send(&mut self, length: u64) -> bool {
        self.sent += length;
        let is_last = self.sent == self.queued || planted::is(Bug::HalfEarly);
        match &mut self.state {
            OutgoingState::Half { is_sent } if is_last => {
                *is_sent = true;
                true
            }
            _ => false,
        }
    }

    pub fn send_back(&mut self) {
        if planted::is(Bug::BackEarly) {
            self.sent = self.queued;
        }
        self.state = OutgoingState::Back { is_sent: true };
    }

    /// Returns whether nothing more of the direction will be sent.
    pub fn is_over(&self) -> bool {
        match self.state {
            OutgoingState::Half { is_sent } => is_sent,
            OutgoingState::Back { is_sent } => is_sent && self.sent >= self.queued,
            _ => false,
        }
    }

    /// Bytes that wait to be sent, whether or not there is credit for them.
    pub fn unsent(&self) -> u64 {
        self.queued.saturating_sub(self.sent)
    }

    /// The offset where the direction has started.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// All bytes before the result have left.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The peer has drained all bytes before the result.
    pub fn drained(&self) -> u64 {
        self.drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    fn pool() -> Pool {
        Pool::new(&Limits::default())
    }

    /// A direction that has started at 100, with a window of 1,000 bytes.
    fn incoming(pool: &mut Pool) -> Incoming {
        let mut incoming = Incoming::default();
        assert_eq!(incoming.open(pool, 1_000), 1_000);
        incoming.start(100).unwrap();
        incoming
    }

    fn outgoing() -> Outgoing {
        let mut outgoing = Outgoing::default();
        outgoing.open(1_000);
        outgoing.start(100).unwrap();
        outgoing
    }

    #[test]
    fn bytes_continue_up_to_the_limit() {
        let mut incoming = incoming(&mut pool());
        assert_eq!(incoming.receive(101, 1, false), Err(Violation::Offset));
        incoming.receive(100, 1_000, false).unwrap();
        assert_eq!(incoming.receive(1_100, 1, false), Err(Violation::Credit));
        incoming.receive(1_100, 0, true).unwrap();
        assert!(incoming.is_over());
    }

    #[test]
    fn a_reader_announces_half_a_window() {
        let mut pool = pool();
        let mut incoming = incoming(&mut pool);
        incoming.receive(100, 1_000, false).unwrap();
        assert_eq!(incoming.drain(100, 1_000, &mut pool), Ok(Announce::Never));
        assert_eq!(incoming.drain(599, 1_000, &mut pool), Ok(Announce::Lazily));
        assert_eq!(incoming.drain(600, 1_000, &mut pool), Ok(Announce::Now));
        assert_eq!(incoming.progress(), (600, 1_000));
        incoming.announced();
        assert_eq!(incoming.drain(599, 1_000, &mut pool), Err(CallError::Offset));
        assert_eq!(incoming.drain(1_101, 1_000, &mut pool), Err(CallError::Offset));
    }

    #[test]
    fn a_direction_that_ends_needs_no_more_credit_than_up_to_there() {
        let mut pool = pool();
        let mut incoming = incoming(&mut pool);
        incoming.receive(100, 900, false).unwrap();
        assert_eq!(incoming.receive_back(1_300), Ok(1_300));
        assert!(!incoming.is_over());
        incoming.drain(1_000, 1 << 20, &mut pool).unwrap();
        assert_eq!(incoming.window(), 300);
        assert_eq!(incoming.receive(1_000, 301, false), Err(Violation::Credit));
        incoming.receive(1_000, 300, false).unwrap();
        assert!(incoming.is_over());
    }

    #[test]
    fn a_writer_sends_up_to_its_credit_and_then_its_end() {
        let mut outgoing = outgoing();
        outgoing.queue(1_200).unwrap();
        outgoing.half().unwrap();
        assert_eq!(outgoing.next(), Next::Bytes { offset: 100, most: 1_000, is_last_half: false });
        assert!(!outgoing.send(1_000));
        assert_eq!(outgoing.next(), Next::Nothing);
        assert_eq!(outgoing.credit(1_000, 1_000), Ok(true));
        assert_eq!(outgoing.next(), Next::Bytes { offset: 1_100, most: 100, is_last_half: false });
        assert!(outgoing.send(100));
        assert_eq!((outgoing.next(), outgoing.is_over()), (Next::Nothing, true));
        assert_eq!(outgoing.credit(1_000, 999), Err(Violation::CreditWithdrawn));
    }

    #[test]
    fn a_writer_that_is_asked_to_return_sends_nothing_until_it_answers() {
        let mut outgoing = outgoing();
        outgoing.queue(600).unwrap();
        outgoing.send(300);
        assert_eq!(outgoing.return_asked(200), Ok(Some(200)));
        assert_eq!(outgoing.next(), Next::Nothing);
        assert_eq!(
            (outgoing.back(199), outgoing.back(601)),
            (Err(CallError::Offset), Err(CallError::Offset))
        );
        outgoing.back(500).unwrap();
        assert_eq!(outgoing.next(), Next::Back { offset: 500 });
        outgoing.send_back();
        assert_eq!(outgoing.next(), Next::Bytes { offset: 400, most: 100, is_last_half: false });
        outgoing.send(100);
        assert!(outgoing.is_over());
    }
}
