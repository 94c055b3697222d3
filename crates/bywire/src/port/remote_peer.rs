//! One peer on another machine, and the stages of its connection.

use bywire_wire::connection::Options;
use bywire_wire::keys::{Secret, Security};
use bywire_wire::path::Path;
use bywire_wire::service::{Identity, Kept, Terms};

use crate::message::address::Address;
use crate::message::error::DisconnectReason;
use crate::message::options::PortOptions;
use crate::message::peer::{Owner, Peer, PeerInfo};
use crate::message::share::OtherUser;
use crate::wire::connection::{Connection, Setup, windows};

/// A peer is active once this many packets have come from it.
pub(super) const ACTIVE_PACKETS: u64 = 64;
/// Names of users are no longer than this.
const USER_BYTES_MAX: usize = 256;

/// One peer on another machine.
pub(crate) struct RemotePeer {
    pub wire: Connection,
    /// The path of packets.
    pub path: Path,
    /// Calls of the kernel that have sent packets to it.
    pub calls: u64,
    /// This end's number, and the other end's.
    pub number: u32,
    pub peer_number: u32,
    pub identity: Identity,
    pub security: Security,
    pub is_ready: bool,
    pub is_touched: bool,
    pub is_recent: bool,
    /// It has asked for a large window, and its user may have no more.
    pub is_window_refused: bool,
    /// The count of its packets from which it is worth a connected socket. `u64::MAX`: it has one.
    pub socket_from: u64,
    /// A transfer of this end failed.
    pub failed: Option<DisconnectReason>,
    /// When it is asked for a sign of life, because something is awaited of it and nothing is in flight.
    pub ask_at_ns: Option<u64>,
    /// When its last packet came.
    pub active_ns: u64,
    /// The longest packet that the route has ever been said to carry, and when the kernel was asked.
    pub route_bytes: u16,
    pub route_asked_ns: u64,
    /// When its own node last confirmed that its process lives, while nothing came from it.
    pub vouched_ns: u64,
    /// When its node was last asked.
    pub inquired_ns: u64,
    pub silence: Silence,
}

/// How long a peer has been silent, while this end looked. A program that was stopped, or that did not call the library, has
/// not looked: what came meanwhile is still in its sockets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    since_ns: u64,
    looked_ns: u64,
    lasted_ns: u64,
}

/// Counts of packets to a peer on another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets that were sent.
    pub sent: u64,
    /// Calls of the kernel that sent them. Packets that leave one by one cost several times as much as those of a batch.
    pub calls: u64,
    /// Packets that were lost, or came so late that they counted as lost. Probes of a packet size do not count.
    pub lost: u64,
}

/// A connection that is being established.
pub(crate) struct Call {
    pub address: Address,
    pub number: u32,
    pub stage: Stage,
    pub since_ns: u64,
    /// The peer's user, if this end was called by another user.
    pub other_user: Option<OtherUser>,
    /// Is the outcome reported as an event, because no call waits for it?
    pub announce: bool,
    pub is_caller: bool,
}

/// The stage of a connection that is being established.
pub(crate) enum Stage {
    /// The node has not answered this port's registration yet.
    Held,
    /// The request was sent to the node.
    Asked,
    /// This port has accepted the offer with this number.
    Accepted(u32),
    /// Both nodes agree. The peer's first packet is awaited.
    Proving { remote: Box<RemotePeer>, since_ns: u64 },
}

/// A connection that this end has closed. It continues until everything is acknowledged or the time is over.
pub(crate) struct Leaving {
    pub remote: Box<RemotePeer>,
    pub until_ns: u64,
}

impl Silence {
    /// How long the silence since `since_ns` has lasted. Of the time between two calls at most `gap_max_ns` counts.
    pub fn lasted_ns(&mut self, since_ns: u64, now_ns: u64, gap_max_ns: u64) -> u64 {
        if self.since_ns != since_ns {
            *self = Self { since_ns, looked_ns: since_ns, lasted_ns: 0 };
        }
        self.lasted_ns += now_ns.saturating_sub(self.looked_ns).min(gap_max_ns);
        self.looked_ns = self.looked_ns.max(now_ns);
        self.lasted_ns
    }
}

impl RemotePeer {
    /// A peer as the node tells of it, in the slot of `peer`, whose packets to us bear `number`.
    pub fn new(
        peer: Peer,
        number: u32,
        other_user: Option<OtherUser>,
        (terms, secret): (Terms, Secret),
        port: &PortOptions,
    ) -> Self {
        let introduction = terms.introduction;
        let info = PeerInfo {
            address: address_of(&terms.peer).unwrap_or_else(|| Address::local(0)),
            owner: Owner::Remote { user: terms.peer.user.clone() },
            incarnation: terms.peer.incarnation,
            message_bytes_max: introduction.message_bytes_max,
            // Every packet is checked, from copy to copy.
            integrity: true,
        };
        let options = Options {
            side: terms.side,
            security: terms.security,
            secret,
            connection: number,
            peer_connection: introduction.connection,
            windows: windows(port),
            peer_windows: introduction.windows,
            route_bytes: terms.route_bytes,
        };
        let setup = Setup {
            info,
            other_user,
            options,
            fragment_bytes: port.geometry.fragment_bytes,
            remote_fragment_bytes: port.remote_fragment_bytes,
        };
        Self {
            wire: Connection::new(peer, setup),
            path: terms.path,
            calls: 0,
            number,
            peer_number: introduction.connection,
            identity: terms.peer,
            security: terms.security,
            is_ready: false,
            is_touched: false,
            is_recent: false,
            is_window_refused: false,
            socket_from: ACTIVE_PACKETS,
            failed: None,
            ask_at_ns: None,
            active_ns: 0,
            route_bytes: terms.route_bytes,
            route_asked_ns: 0,
            vouched_ns: 0,
            inquired_ns: 0,
            silence: Silence::default(),
        }
    }

    /// What was sent to it.
    pub fn packet_counts(&self) -> PacketCounts {
        let counts = self.wire.counts();
        PacketCounts { sent: counts.sent, calls: self.calls, lost: counts.lost_on_the_way() }
    }

    /// Has it a connected socket?
    pub fn has_socket(&self) -> bool {
        self.socket_from == u64::MAX
    }

    /// The description of the connection for a new service.
    pub fn kept(&self) -> Kept {
        let Identity { key, port, user, incarnation, .. } = self.identity.clone();
        Kept {
            connection: self.number,
            security: self.security,
            node: key,
            peer_port: port,
            peer_user: user,
            peer_incarnation: incarnation,
            peer_connection: self.peer_number,
            path: self.path.machines(),
        }
    }
}

/// The address of a port of another machine. `None`: the names are invalid.
pub(crate) fn address_of(identity: &Identity) -> Option<Address> {
    let Identity { node, port, user, .. } = identity;
    let is_user = (1..=USER_BYTES_MAX).contains(&user.len()) && !user.contains(char::is_control);
    let address: Address = format!("{node}/{port}").parse().ok()?;
    // Exactly these names: a number is written in one way only.
    let is_same = address.node == *node && address.port.to_string() == *port;
    (is_user && is_same).then_some(address)
}

#[cfg(test)]
mod tests {
    use bywire_wire::handshake::PublicKey;

    use super::*;
    use crate::message::address::PortName;

    #[test]
    fn only_names_valid_in_an_address_are_accepted() {
        let identity = |node: &str, port: &str, user: &str| Identity {
            node: node.to_owned(),
            key: PublicKey([1; 32]),
            port: port.to_owned(),
            user: user.to_owned(),
            groups: Vec::new(),
            incarnation: 1,
        };
        let good = address_of(&identity("b", "7", "ann")).expect("an address");
        assert_eq!((good.node.as_str(), good.port), ("b", PortName::Number(7)));
        for (node, port, user) in [
            ("", "7", "ann"),
            ("b/c", "7", "ann"),
            ("b", "07", "ann"),
            ("b", "", "ann"),
            ("b", "x y", "ann"),
            ("..", "7", "ann"),
            ("b", "7", ""),
            ("b", "7", "a\nb"),
            ("b", "7", &"x".repeat(USER_BYTES_MAX + 1)),
        ] {
            assert!(address_of(&identity(node, port, user)).is_none(), "{node:?} {port:?} {user:?}");
        }
    }
}
