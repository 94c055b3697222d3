//! The engine stands in for the other end of carried connections that leave this machine's memory.
//!
//! A program under `bywire run` that streams to a peer elsewhere asks the pairing service for an engine. The engine gets
//! the connection's descriptor, and a segment stands for the other end. To the program it is a paired end like any
//! other. What the engine does with the bytes is its *link*:
//!
//! - [`relay`]: it gives them to the kernel's own socket of the program, in batches. The peer is any TCP peer.
//! - [`fabric`]: it passes them to the engine of another machine of the fabric, in encrypted messages. The peer is a program
//!   under `bywire run` there.
//!
//! With the first link, the program's socket stays the kernel's in every other respect, and what it receives comes from there. If the engine
//! dies, the program goes on where the kernel's count says that the engine has stopped.
//!
//! ```text
//!  program ──send──► its segment ──read──► engine ──sendmsg──► the program's own socket ──► TCP ──► peer
//!     ▲                                                              │
//!     └────────────────────────── receive ───────────────────────────┘
//! ```
//!
//! [`relay`] decides and does no I/O. [`engine`] is the loop that does.

mod connection;
pub mod control;
pub mod counts;
pub mod engine;
pub mod fabric;
mod pairing_client;
pub mod relay;
