//! What processes announce to each other about their interfaces.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The most IP addresses of an interface that are announced. With these, an introduction fits into the shortest datagram.
pub const ADDRESSES_MAX: usize = 8;

/// An interface as other processes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Its name, for people.
    pub label: String,
    /// Its address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu_bytes: u32,
    /// Its IP addresses of the settings, at most [`ADDRESSES_MAX`].
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

impl Announced {
    /// The same for a short report.
    pub fn without_addresses(&self) -> Self {
        Self { label: self.label.clone(), addresses: Vec::new(), ..*self }
    }
}
