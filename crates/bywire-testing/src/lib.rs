//! Fixtures that the tests of several crates share.
#![allow(missing_docs, reason = "tests read them beside their uses")]

#[cfg(feature = "ports")]
pub mod actor;
mod again;
mod compiled;
#[cfg(feature = "ports")]
pub mod connected;
pub mod counting;
pub mod draw;
mod exclusive;
mod guarded;
pub mod here;
pub mod kernel;
pub mod linger;
pub mod protocol_client;
#[cfg(feature = "ports")]
pub mod rogue;
pub mod running;
#[cfg(feature = "ports")]
pub mod test_network;
mod tier;
mod waiting;

pub use again::alone;
pub use compiled::compile;
pub use exclusive::{Exclusive, exclusive};
pub use guarded::Guarded;
pub use tier::{Tier, number, repetitions};
pub use waiting::{Look, eventually};
