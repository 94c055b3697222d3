//! What the message layer asks of a connection besides moving bytes: which pieces wait, and whose they are at the end.

use crate::frame::{LANES, Lane};

use super::{Connection, State};

impl<B: AsRef<[u8]>> Connection<B> {
    /// Does a lane have bytes that were never sent?
    pub fn has_unsent(&self, lane: Lane) -> bool {
        self.sending[lane as usize].has_unsent()
    }

    /// The offset behind the last byte that was added to a lane.
    pub fn end(&self, lane: Lane) -> u64 {
        self.sending[lane as usize].end()
    }

    /// Has a whole datagram arrived?
    pub fn has_datagram(&self) -> bool {
        self.datagrams_in.has_whole()
    }

    /// Every piece that was not taken back, the oldest of its lane first, from a connection that is closed. `None`: it is open.
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
