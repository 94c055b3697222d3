//! The addresses of the nodes in the table, and those from which nodes have made a channel. Whoever proves one of them has the
//! handshakes of nodes, which no stranger can use up.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::bucket::Bucket;

/// An address.
#[derive(Debug, Default)]
struct Known {
    /// How many times it was added.
    nodes: usize,
    /// The handshakes from there.
    handshakes: Bucket,
}

/// The addresses.
#[derive(Debug, Default)]
pub(super) struct KnownAddresses(BTreeMap<SocketAddr, Known>);

impl KnownAddresses {
    /// Adds the addresses of a node.
    pub fn add(&mut self, addresses: &[SocketAddr]) {
        for address in addresses {
            self.0.entry(*address).or_default().nodes += 1;
        }
    }

    /// Removes addresses that were added.
    pub fn remove(&mut self, addresses: &[SocketAddr]) {
        for address in addresses {
            let Some(known) = self.0.get_mut(address) else { continue };
            known.nodes -= 1;
            if known.nodes == 0 {
                self.0.remove(address);
            }
        }
    }

    /// Returns whether this is the address of a node.
    pub fn contains(&self, address: &SocketAddr) -> bool {
        self.0.contains_key(address)
    }

    /// The handshakes that have come from the address of a node.
    pub fn handshakes(&mut self, address: &SocketAddr) -> Option<&mut Bucket> {
        self.0.get_mut(address).map(|known| &mut known.handshakes)
    }
}
