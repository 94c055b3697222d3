//! Everything that links share: names, events, memory, and the transfers under way with a peer.

pub(crate) mod address;
pub(crate) mod buffer;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod lend;
pub(crate) mod options;
pub(crate) mod peer;
pub(crate) mod region;
pub(crate) mod resources;
pub(crate) mod share;
pub(crate) mod transfers;
