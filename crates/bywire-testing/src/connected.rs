//! The two sides of a connection between machines, as a node's service would set it up.

use bywire_wire::connection::Options;
use bywire_wire::keys::{Security, Side};

/// A side's options. The connection has number 1 at the initiator and 2 at the responder, both of which have these windows.
pub fn options(side: Side, security: Security, windows: [u64; 3], route_bytes: u16) -> Options {
    let (connection, peer_connection) = if side == Side::Initiator { (1, 2) } else { (2, 1) };
    Options {
        side,
        security,
        secret: [7; 32].into(),
        connection,
        peer_connection,
        windows,
        peer_windows: windows,
        route_bytes,
    }
}
