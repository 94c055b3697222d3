//! Queries of the message layer: which pieces wait, and which return at the end.

use crate::frame::{LANES, Lane};

use super::{Connection, State};

impl<B: AsRef<[u8]>> Connection<B> {
    /// Does a lane have bytes that were never sent?
    pub fn has_unsent(&self, lane: Lane) -> bool {
        self.sending[lane as usize].has_unsent()
    }

    /// The offset after the last byte that was added to a lane.
    pub fn end(&self, lane: Lane) -> u64 {
        self.sending[lane as usize].end()
    }

    /// Has a complete datagram arrived?
    pub fn has_datagram(&self) -> bool {
        self.datagrams_in.has_whole()
    }

    /// Every piece of a closed connection that has not been returned, the oldest of its lane first. `None`: the
    /// connection is open.
    pub fn take_all_back(&mut self) -> Option<Vec<(Lane, B)>> {
        if self.state == State::Open {
            return None;
        }
        let lanes = LANES.into_iter().zip(&mut self.sending);
        Some(
            lanes
                .flat_map(|(lane, sending)| sending.take_all_back().map(move |piece| (lane, piece)))
                .collect(),
        )
    }
}
