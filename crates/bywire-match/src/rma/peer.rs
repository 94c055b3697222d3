//! One peer of RMA: what waits for it, and what it waits for.

use std::collections::VecDeque;

use super::head::{HEAD_BYTES_MAX, Head};
use super::limits::Limits;
use super::operation::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Connecting,
    Connected { fragment_bytes: usize },
    Ended,
}

/// An operation that has not left.
#[derive(Debug)]
pub enum Queued<W, R> {
    Write { place: Place, data: Option<u64>, write: W },
    Read { place: Place, region: Option<u64>, read: R },
}

/// An answer.
#[derive(Debug)]
pub enum Reply {
    Head(Head),
    /// All of a short read.
    Data {
        operation: u64,
        place: Place,
    },
}

impl Reply {
    /// How many operations of the peer are over with it.
    pub fn answered(&self) -> u64 {
        match self {
            Self::Head(Head::Done { writes }) => *writes,
            Self::Head(Head::Grant { .. }) => 0,
            Self::Head(_) | Self::Data { .. } => 1,
        }
    }
}

#[derive(Debug)]
pub struct Peer<W, R> {
    pub state: State,
    /// Is it in the list of peers that have something to transmit?
    pub is_ready: bool,

    /// Operations that have not left, in order.
    pub queued: VecDeque<Queued<W, R>>,
    /// Short writes that it has not answered, in order.
    pub writes: VecDeque<W>,
    /// Other operations that it has not answered.
    pub asked: u32,
    /// Long writes that it has granted, in order.
    pub granted: VecDeque<u64>,

    /// Answers to its operations: two for each that may be unanswered, at most. A grant may wait here when its write is
    /// over, if the peer has not waited for it.
    pub replies: VecDeque<Reply>,
    /// Its reads whose data leave in several frames or by a put, in order.
    pub answering: VecDeque<u64>,
    /// Its operations that are not over, without reads that the link puts.
    pub accesses: u64,
    /// Its reads that the link puts.
    pub puts_of_reads: u32,
    /// Is it in the list of peers whose reads wait for a put?
    pub is_waiting: bool,
}

impl<W, R> Peer<W, R> {
    pub fn new() -> Self {
        Self {
            state: State::Connecting,
            is_ready: false,
            queued: VecDeque::new(),
            writes: VecDeque::new(),
            asked: 0,
            granted: VecDeque::new(),
            replies: VecDeque::new(),
            answering: VecDeque::new(),
            accesses: 0,
            puts_of_reads: 0,
            is_waiting: false,
        }
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// The longest payload that follows its head at once, in either direction.
    pub fn short_bytes(&self, limits: &Limits) -> u64 {
        let State::Connected { fragment_bytes } = self.state else { return 0 };
        limits.short_bytes.min((fragment_bytes - HEAD_BYTES_MAX) as u64)
    }

    /// The operations that it has not answered.
    pub fn unanswered(&self) -> u64 {
        self.writes.len() as u64 + u64::from(self.asked)
    }
}
