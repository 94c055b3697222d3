//! Fixtures that the tests of several crates share.

mod exclusive;
mod tier;
mod waiting;

pub use exclusive::{Exclusive, exclusive};
pub use tier::{Tier, number, repetitions};
pub use waiting::eventually;
