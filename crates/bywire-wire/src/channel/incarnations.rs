//! The incarnations of one node: the present one, and earlier ones, whose hellos are replays. A node that is on two machines, because
//! its key was copied, is noticed here.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::session::Incarnation;
use super::status::CopiedKey;

/// Earlier incarnations that are remembered, so that they cannot be taken for the present one.
const RETIRED_MAX: usize = 8;

/// The present incarnation.
#[derive(Clone, Copy, Debug)]
struct Known {
    incarnation: Incarnation,
    /// The number of the newest of its hellos that made a channel.
    hello: Option<u64>,
    /// The number of the newest of its hellos that has arrived.
    newest: u64,
    /// The address of its last channel.
    address: SocketAddr,
}

/// An incarnation whose place another one has taken.
#[derive(Clone, Copy, Debug)]
struct Retired {
    incarnation: Incarnation,
    /// The number of the newest of its hellos that has arrived.
    newest: u64,
}

/// The incarnations of a node.
#[derive(Debug, Default)]
pub(super) struct Incarnations {
    known: Option<Known>,
    retired: VecDeque<Retired>,
    copied_key: Option<CopiedKey>,
}

impl Incarnations {
    /// The present one.
    pub fn present(&self) -> Option<Incarnation> {
        self.known.map(|known| known.incarnation)
    }

    /// The last sign that two machines have the node's key.
    pub fn copied_key(&self) -> Option<CopiedKey> {
        self.copied_key
    }

    /// Has another one taken its place?
    pub fn is_retired(&self, incarnation: Incarnation) -> bool {
        self.retired.iter().any(|retired| retired.incarnation == incarnation)
    }

    /// Is a hello of the present incarnation no newer than one that made a channel?
    pub fn is_old(&self, incarnation: Incarnation, number: u64) -> bool {
        let known = self.known.filter(|known| known.incarnation == incarnation);
        known.and_then(|known| known.hello).is_some_and(|hello| number <= hello)
    }

    /// Notes the number of a hello. An earlier start of the machine that has sent a hello after another one took its place is
    /// on another machine. Hellos that have arrived before are replays, and say nothing. Services of one start are on one
    /// machine, where the last packets of the one may come after the first packets of the next.
    pub fn note_hello(&mut self, now_ns: u64, from: SocketAddr, incarnation: Incarnation, number: u64) {
        let Some(known) = &mut self.known else { return };
        if known.incarnation == incarnation {
            known.newest = known.newest.max(number);
        }
        let mut retired = self.retired.iter_mut();
        let retired = retired.find(|retired| retired.incarnation == incarnation && retired.newest < number);
        let Some(retired) = retired else { return };
        retired.newest = number;
        if incarnation.boot_id != known.incarnation.boot_id {
            self.copied_key = Some(CopiedKey { addresses: [known.address, from], at_ns: now_ns });
        }
    }

    /// Notes the sender of a valid answer, which is there now. No machine answers that has been restarted since.
    pub fn note_answer(&mut self, now_ns: u64, from: SocketAddr, incarnation: Incarnation) {
        let other = self.known.filter(|known| known.incarnation.boot_id != incarnation.boot_id);
        if let Some(known) = other.filter(|_| self.is_retired(incarnation)) {
            self.copied_key = Some(CopiedKey { addresses: [from, known.address], at_ns: now_ns });
        }
    }

    /// Notes the present incarnation: the number of its hello that made a channel, that of the newest one which has arrived,
    /// and its address. An earlier one comes back only by an answer.
    pub fn know(&mut self, incarnation: Incarnation, hello: Option<u64>, newest: u64, address: SocketAddr) {
        self.retired.retain(|retired| retired.incarnation != incarnation);
        let mut known = Known { incarnation, hello, newest, address };
        match self.known {
            Some(before) if before.incarnation == incarnation => {
                (known.hello, known.newest) = (hello.max(before.hello), newest.max(before.newest));
            }
            Some(Known { incarnation, newest, .. }) => {
                self.retired.truncate(RETIRED_MAX - 1);
                self.retired.push_front(Retired { incarnation, newest });
            }
            None => {}
        }
        self.known = Some(known);
    }
}
