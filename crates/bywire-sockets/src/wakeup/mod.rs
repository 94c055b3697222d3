//! How a thread waits for rings, and what wakes it.

pub mod allowance;
pub mod doorbell;
pub mod flag;
pub mod hints;
pub mod peers;
pub mod spin;
