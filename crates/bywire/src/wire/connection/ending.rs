//! How a connection ends: after the peer's end, after ours, and with what is left.

use super::outbound::{Lent, Piece};
use super::{Connection, Stage};
use crate::message::error::DisconnectReason;
use crate::message::peer::Priority;
use crate::message::resources::Resources;
use bywire_wire::frame::Lane;

/// What the peer is told when a port closes or disconnects.
const REASON_CLOSED: u8 = 0;

impl Connection {
    /// Notes that the peer has ended: from now on, only what has arrived is taken.
    pub fn begin_draining(&mut self) {
        self.stage = Stage::Draining;
    }

    /// Says good-bye. Answers that are owed go first. From now on nothing is taken, and what was sent goes on until
    /// [`Self::is_drained`], or for as long as the port lingers. Then comes [`Self::give_up`].
    pub fn take_leave(&mut self, resources: &mut Resources) {
        // Only short answers, each once: a get's data could go on for as long as the peer likes.
        self.transfers.keep_short_replies();
        // A connection that is over owes nothing.
        let _ = self.advance(resources);
        self.stage = Stage::Leaving;
    }

    /// Has everything been acknowledged that was ever sent? Asked after [`Self::take_leave`].
    pub fn is_drained(&self) -> bool {
        let is_idle = |priority| self.transfers.is_idle(priority);
        let is_gathered = self.outbound.iter().any(|outbound| outbound.has_gathered());
        !is_gathered && is_idle(Priority::High) && is_idle(Priority::Low) && self.packets.is_drained()
    }

    /// Ends every transfer under way, and hands its memory back in events. The peer is told by the next
    /// [`Self::transmit`].
    pub fn give_up(&mut self, reason: DisconnectReason, resources: &mut Resources) {
        self.packets.close(REASON_CLOSED);
        self.take_back(resources);
        let failed = Err(crate::message::error::TransferError::Disconnected(reason));
        for (lane, piece) in self.packets.take_all_back().unwrap_or_default() {
            if let Piece::Lent(lent) = piece {
                let Lent { entry, .. } = *lent;
                let priority = if lane == Lane::High { Priority::High } else { Priority::Low };
                self.transfers.fail(entry, priority, failed, resources);
            }
        }
        self.outbound = Default::default();
        self.inbound = Default::default();
        self.transfers.give_up(reason, resources);
    }
}
