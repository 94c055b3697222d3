//! One peer: what waits for it, and what it may send.

use std::collections::VecDeque;

use crate::head::{HEAD_BYTES_MAX, Head};
use crate::limits::Limits;
use crate::operation::Send;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Connecting,
    Connected { fragment_bytes: usize },
    Ended,
}

#[derive(Debug)]
pub struct Peer<S> {
    pub state: State,
    /// Is it in the list of peers that have something to transmit?
    pub is_ready: bool,

    /// Messages that have not left, in order.
    pub queued: VecDeque<(Send, S)>,
    /// Requests and synchronous messages that it has not answered.
    pub unanswered: u32,
    /// What is left of the window that it has given.
    pub credit: u64,
    /// Sends that it has granted, in order.
    pub granted: VecDeque<u64>,

    /// Answers to its requests and synchronous messages.
    pub replies: VecDeque<Head>,
    /// Its requests and synchronous messages that no answer has left for. So many replies wait at most.
    pub requests: u32,
    /// The window that it has.
    pub window: u64,
    /// What its eager messages have used of it, and was not told to be free.
    pub used: u64,
    /// What of that is free.
    pub freed: u64,
    /// What the window grows by when the peer is told of it.
    pub growth: u64,
}

impl<S> Peer<S> {
    pub fn new(window: u64) -> Self {
        Self {
            state: State::Connecting,
            is_ready: false,
            queued: VecDeque::new(),
            unanswered: 0,
            credit: window,
            granted: VecDeque::new(),
            replies: VecDeque::new(),
            requests: 0,
            window,
            used: 0,
            freed: 0,
            growth: 0,
        }
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// The longest payload of an eager message, in either direction.
    pub fn eager_bytes(&self, limits: &Limits) -> u64 {
        let State::Connected { fragment_bytes } = self.state else { return 0 };
        limits.eager_bytes.min((fragment_bytes - HEAD_BYTES_MAX) as u64)
    }

    /// Credit is told in halves of a window, so that a frame of it stands for many messages.
    pub fn owes_credit(&self) -> bool {
        self.growth > 0 || self.freed > 0 && self.freed >= self.window / 2
    }

    /// The peer has been told of its credit.
    pub fn credit_told(&mut self) {
        self.used -= self.freed;
        self.window += self.growth;
        (self.freed, self.growth) = (0, 0);
    }
}
