//! The end of a connection: by the peer or by this side, and the delivery of the rest.

use super::outbound::{Lent, Piece};
use super::{Connection, Stage};
use crate::message::error::DisconnectReason;
use crate::message::peer::Priority;
use crate::message::resources::Resources;
use bywire_wire::frame::Lane;
use bywire_wire::planted::{self, Bug};

/// The reason that a peer gets when a port closes or disconnects.
const REASON_CLOSED: u8 = 0;

impl Connection {
    /// Notes that the peer has ended. From now on only data that has arrived is received.
    pub fn begin_draining(&mut self) {
        self.stage = if planted::is(Bug::DrainForgotten) { Stage::Leaving } else { Stage::Draining };
    }

    /// Has the peer ended, and is only received what had arrived before?
    pub fn is_draining(&self) -> bool {
        self.stage == Stage::Draining
    }

    /// Closes this end. Owed answers are sent first. From now on nothing is received, and sending continues until
    /// [`Self::is_drained`] or for as long as the port lingers. [`Self::give_up`] follows.
    pub fn begin_close(&mut self, resources: &mut Resources) {
        // Only short answers, each once, because the data of a get could continue for as long as the peer wants.
        self.transfers.keep_short_replies();
        // A connection that has ended owes nothing.
        let _ = self.advance(resources);
        self.stage = Stage::Leaving;
    }

    /// Has everything been acknowledged that was sent? Called after [`Self::begin_close`].
    pub fn is_drained(&self) -> bool {
        let is_idle = |priority| self.transfers.is_idle(priority);
        let is_gathered = self.outbound.iter().any(|outbound| outbound.has_gathered());
        !is_gathered && is_idle(Priority::High) && is_idle(Priority::Low) && self.packets.is_drained()
    }

    /// Ends every transfer under way, and returns its memory in events. The next [`Self::transmit`] tells the peer.
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
