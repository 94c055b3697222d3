//! Transfers under way with one peer: messages, puts and gets, partly sent or partly received.
//!
//! A link moves their bytes, through shared memory for example. It asks here which bytes come next, where they belong
//! and what they mean. Nothing here depends on how they travel.

mod incoming;
mod outgoing;
mod transfer;

use std::collections::VecDeque;

use crate::message::error::{DisconnectReason, TransferError};
use crate::message::peer::{Peer, Priority};
use crate::message::resources::Resources;
use crate::message::share::OtherUser;

use transfer::{Incoming, Undelivered, Waiting};

pub use transfer::NOTE_BYTES_MAX;
pub(crate) use transfer::{Note, Operation, Outgoing, PutRequest, Reply, Short, Step, Unposted, status_code};

/// Every transfer with one peer.
pub(crate) struct Transfers {
    peer: Peer,
    /// The peer's user, unless it is ours or root.
    other_user: Option<OtherUser>,
    outgoing: [VecDeque<Outgoing>; 2],
    /// A send found no room, and the program is to be told when there is some.
    starved: [bool; 2],
    undelivered: [VecDeque<Undelivered>; 2],
    /// Puts and gets that wait for the peer's answer, by transfer number.
    waiting: Vec<Option<Waiting>>,
    incoming: [Incoming; 2],
    replies: VecDeque<Reply>,
    /// Keys that the peer tried and that were never given out.
    guesses: u32,
}

impl Transfers {
    pub fn new(peer: Peer, other_user: Option<OtherUser>) -> Self {
        Self {
            peer,
            other_user,
            outgoing: Default::default(),
            starved: [false; 2],
            undelivered: Default::default(),
            waiting: Vec::new(),
            incoming: Default::default(),
            replies: VecDeque::new(),
            guesses: 0,
        }
    }

    /// The peer's user, unless it is ours or root.
    pub fn other_user(&self) -> Option<&OtherUser> {
        self.other_user.as_ref()
    }

    /// Is there anything to send, to confirm or to tell the program?
    pub fn has_work(&self) -> bool {
        !self.replies.is_empty()
            || self.starved != [false; 2]
            || self.outgoing.iter().any(|queue| !queue.is_empty())
            || self.undelivered.iter().any(|queue| !queue.is_empty())
    }

    /// Ends every transfer under way, and hands its memory back in events.
    pub fn give_up(&mut self, reason: DisconnectReason, resources: &mut Resources) {
        let failed = Err(TransferError::Disconnected(reason));
        for priority in [Priority::Low, Priority::High] {
            self.give_up_sending(priority, failed, resources);
            self.give_up_receiving(priority, resources);
        }
        self.give_up_waiting(failed, resources);
    }
}
