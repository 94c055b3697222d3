//! The service of one machine. It has the machine's key, keeps a channel to every machine that a connection needs, and
//! makes connections between ports. It has no part in the data path.
#![forbid(unsafe_code)]

pub mod broker;
pub mod change;
pub mod client;
pub mod configuration;
pub mod fabric;
pub mod file;
pub mod invitation;
pub mod join;
pub mod key;
mod link;
mod lookup;
mod outbox;
pub mod ping;
pub mod service;
pub mod settings;
