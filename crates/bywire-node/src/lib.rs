//! The service of one machine: it holds the machine's key, keeps a channel to every machine that is needed, and makes
//! connections between ports. The data path is none of its business.
#![forbid(unsafe_code)]

pub mod ask;
pub mod broker;
pub mod fabric;
pub mod file;
pub mod key;
mod link;
mod lookup;
pub mod place;
pub mod service;
