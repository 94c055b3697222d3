//! What processes announce to each other about their interfaces.

use serde::{Deserialize, Serialize};

/// An interface as other processes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Its name, for people.
    pub label: String,
    /// Its address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu_bytes: u32,
}
