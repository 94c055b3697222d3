//! The link between machines: one peer over packets that may be lost.

pub(crate) mod connection;
pub mod harness;
