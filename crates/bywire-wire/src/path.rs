//! The addresses of packets between two machines.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The addresses of packets between an end of this machine and one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The other end's address.
    pub peer: SocketAddr,
    /// This machine's address to which the other end sends. A firewall may let only answers from there in. `None`: none is known,
    /// and the kernel chooses one.
    pub local: Option<IpAddr>,
}

/// The same for all ends of the two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinePath {
    /// The other machine's address.
    pub peer: IpAddr,
    /// This machine's address, as in [`Path`].
    pub local: Option<IpAddr>,
}

impl Path {
    /// Returns whether packets take the same way as those of another path, as far as is known.
    pub fn is_like(self, other: Self) -> bool {
        let is_known = self.local.is_some() && other.local.is_some();
        self.peer == other.peer && (self.local == other.local || !is_known)
    }

    /// Its machines.
    pub fn machines(self) -> MachinePath {
        MachinePath { peer: self.peer.ip(), local: self.local }
    }
}

impl MachinePath {
    /// Returns whether packets take another way than those of a path known so far. A new channel does not know yet to which
    /// address of this machine the other one sends.
    pub fn is_news(self, known: Self) -> bool {
        self.peer != known.peer || self.local.is_some() && self.local != known.local
    }

    /// The path to a UDP port of the other machine.
    pub fn to_port(self, udp_port: u16) -> Path {
        Path { peer: SocketAddr::new(self.peer, udp_port), local: self.local }
    }
}

impl From<SocketAddr> for Path {
    fn from(peer: SocketAddr) -> Self {
        Self { peer, local: None }
    }
}

impl From<IpAddr> for MachinePath {
    fn from(peer: IpAddr) -> Self {
        Self { peer, local: None }
    }
}
