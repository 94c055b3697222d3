//! One channel: a connection, and the node at its other end.

use crate::batch::Batch;
use crate::connection::{Connection, Receipt};
use crate::keys::{Security, Side};
use crate::path::Path;
use crate::size::BASE_BYTES;

use super::limits::{KEEP_ALIVE_NS, KEYS_OVERLAP_NS, RENEW_LATER_NS, RENEW_NS, SILENT_NS};
use super::out::Out;
use super::session::{SessionId, Stream};
use super::status::NodeCounts;

/// One channel, which the other end may not have confirmed yet.
#[derive(Debug)]
pub struct Channel {
    pub connection: Box<Connection<Vec<u8>>>,
    pub stream: Stream,
    pub session: SessionId,
    pub number: u32,
    pub path: Path,
    pub side: Side,
    pub security: Security,
    pub began_ns: u64,
    pub heard_ns: u64,
    /// The time since which an answer has been missing.
    pub asked_ns: Option<u64>,
    /// The path of the channel before it in the session, if that was another one.
    pub path_before: Option<Path>,
    /// Packets of the channels before it in the session, as [`Self::sent_and_lost`] counts them.
    pub sent_and_lost_before: [u64; 2],
}

impl Channel {
    /// After so long a silence the peer is asked for a sign of life. One end waits a little longer, so that a question of the
    /// other end is an answer to its own.
    pub fn keep_alive_ns(&self) -> u64 {
        match self.side {
            Side::Initiator => KEEP_ALIVE_NS,
            Side::Responder => KEEP_ALIVE_NS + KEEP_ALIVE_NS / 8,
        }
    }

    /// When the channel gets new keys. `None`: it is not in use.
    pub fn renew_ns(&self, is_wanted: bool) -> Option<u64> {
        let later_ns = match self.side {
            Side::Initiator => 0,
            Side::Responder => RENEW_LATER_NS,
        };
        let at_ns = self.began_ns.saturating_add(RENEW_NS + later_ns);
        // The other end may need it, and asks for signs of life then.
        let is_used = is_wanted || self.heard_ns.saturating_add(2 * KEEP_ALIVE_NS) >= at_ns;
        is_used.then_some(at_ns)
    }

    /// Processes a packet. `true`: it is the peer's.
    pub fn receive(&mut self, now_ns: u64, packet: &mut [u8], counts: &mut NodeCounts) -> bool {
        match self.connection.receive(now_ns, packet) {
            Receipt::Taken | Receipt::NoRoom | Receipt::Closed | Receipt::Violation(_) => {}
            Receipt::Known => return false,
            Receipt::Unrecognized | Receipt::Forged => {
                counts.packets_forged += 1;
                return false;
            }
        }
        counts.packets_received += 1;
        self.heard_ns = now_ns;
        self.asked_ns = (!self.connection.is_drained()).then_some(now_ns);
        true
    }

    /// The packets that have left, and how many were lost on the way.
    pub fn sent_and_lost(&self) -> [u64; 2] {
        let counts = self.connection.counts();
        let [sent, lost] = self.sent_and_lost_before;
        [sent + counts.sent, lost + counts.lost_on_the_way()]
    }

    /// Takes the place of a channel of the same session. What is known of a path that works stays known.
    pub fn follow(&mut self, before: &mut Self) {
        self.sent_and_lost_before = before.sent_and_lost();
        let asked_ago_ns = before.asked_ns.map(|asked_ns| self.began_ns.saturating_sub(asked_ns));
        let is_silent = asked_ago_ns.is_some_and(|ago_ns| ago_ns >= SILENT_NS);
        if is_silent {
            return;
        }
        if self.path.is_like(before.path) {
            self.connection.continue_path(&mut before.connection);
        } else {
            self.path_before = Some(before.path);
        }
    }

    /// Notes where an authentic packet came from. Somebody who sees a hello can repeat it from an address of his own, and pass the
    /// answer on: the channel is there then, although the peer is where it was. Its packets still come from there, and that
    /// address was proved before. The first of them answers at once; a later one may be forged by somebody who has that address
    /// now. Returns whether the channel has returned there.
    pub fn return_to(&mut self, now_ns: u64, from: Path) -> bool {
        if now_ns >= self.began_ns.saturating_add(KEYS_OVERLAP_NS) {
            self.path_before = None;
        }
        let before = self.path_before.take_if(|before| before.peer == from.peer);
        if before.is_some() {
            self.path = from;
        }
        before.is_some()
    }

    /// Hands out the packets that have to leave, and returns their number.
    pub fn flush(&mut self, now_ns: u64, out: &mut Out) -> u64 {
        let mut batch = Batch::new(16 * usize::from(BASE_BYTES), 16);
        self.connection.transmit(now_ns, &mut batch);
        batch.packets().for_each(|packet| out.push(self.path, packet.to_vec()));
        batch.count() as u64
    }
}
