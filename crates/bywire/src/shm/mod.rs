//! Peers of this machine, over shared memory: how they are found, how they meet, and the lanes of their records.

pub(crate) mod account;
pub(crate) mod connection;
pub mod handshake;
pub(crate) mod lanes;
pub(crate) mod record;
pub mod runtime;
