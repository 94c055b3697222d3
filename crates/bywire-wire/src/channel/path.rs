//! The two addresses of packets.

use std::net::{IpAddr, SocketAddr};

/// The addresses of packets between this node and another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The other node's address.
    pub peer: SocketAddr,
    /// This node's address to which the other one sends. `None`: none is known, and the kernel chooses one.
    pub local: Option<IpAddr>,
}

impl From<SocketAddr> for Path {
    fn from(peer: SocketAddr) -> Self {
        Self { peer, local: None }
    }
}
