//! Fixtures that the tests of several crates share.
#![allow(missing_docs, reason = "tests read them beside their uses")]

pub mod actor;
mod again;
mod compiled;
pub mod connected;
pub mod counting;
pub mod draw;
mod exclusive;
mod guarded;
pub mod here;
pub mod kernel;
pub mod linger;
pub mod protocol_client;
pub mod rogue;
pub mod running;
pub mod test_network;
mod tier;
mod waiting;

pub use again::alone;
pub use compiled::compile;
pub use exclusive::{Exclusive, exclusive};
pub use guarded::Guarded;
pub use tier::{Tier, number, repetitions};
pub use waiting::{Look, eventually};
