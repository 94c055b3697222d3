//! A user-level message fabric: ports, messages, put and get, with no system call on the data path.
//!
//! A process opens a [`Port`], connects to other ports by [`Address`], sends messages and polls for
//! [`Event`]s. Between processes of one machine messages cross through shared memory that neither side
//! needs to trust. Between machines of one fabric they cross in UDP packets, encrypted by default, if each machine runs
//! its node (`bywire up`). Only the address changes: `web1/render` instead of `localhost/render`. A port that other
//! machines may reach is opened with [`Reach::Fabric`].
//!
//! ```
//! use std::time::Duration;
//! use bywire::{Address, Event, Port, PortOptions, Priority};
//! # let directory = tempfile::tempdir()?;
//! # let options = || PortOptions { runtime_directory: Some(directory.path().to_owned()), ..PortOptions::default() };
//!
//! // One thread (or process) answers …
//! let mut server = Port::open(PortOptions { name: Some("echo".parse()?), ..options() })?;
//! let thread = std::thread::spawn(move || {
//!     loop {
//!         match server.wait(None).expect("not forked") {
//!             Some(Event::Message(message)) => {
//!                 server.send(message.peer, message.priority, &message.payload).expect("room for one");
//!             }
//!             Some(Event::Disconnected { .. }) => break,
//!             _ => {}
//!         }
//!     }
//! });
//!
//! // … another one asks.
//! let mut client = Port::open(options())?;
//! let peer = client.connect(&"localhost/echo".parse::<Address>()?, Duration::from_secs(5))?;
//! client.send(peer, Priority::Low, b"hello")?;
//! let answer = loop {
//!     if let Some(Event::Message(message)) = client.wait(None)? {
//!         break message.payload;
//!     }
//! };
//! assert_eq!(&answer[..], b"hello");
//! drop(client);
//! thread.join().expect("the server");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! Every message arrives once, whole and in order per (source port, target port, [`Priority`]), or its sender learns
//! why not. High priority is never blocked by low. Every queue is bounded by tokens and credits, and a call reports a
//! full queue. A dead or misbehaving peer harms only its own connection.
//!
//! A port belongs to one thread at a time, and may move between threads.

mod message;
mod port;
mod shm;
mod wire;

pub use message::address::{Address, AddressError, NAME_BYTES_MAX, PortName};
pub use message::buffer::{Buffer, Payload};
pub use message::error::{
    ConnectError, DisconnectReason, LendError, NoFabric, OpenError, Refusal, SendError, TransferError,
    Unsent, WaitError,
};
pub use message::event::{Event, Message, Polled, ShortMessage};
pub use message::lend::{Heap, LendBuffer, Lent};
pub use message::options::{Admit, PortOptions, Reach};
pub use message::peer::{Confirm, Owner, Peer, PeerInfo, Priority, TransferId};
pub use message::region::{Key, Rights};
pub use message::transfers::NOTE_BYTES_MAX;
#[doc(hidden)]
pub use port::{
    PacketCounts, incarnation, packet_counts, reach_fabric, send_followed_datagram, sleep_ended, spin,
};
pub use port::{Port, Statistics};
#[doc(hidden)]
pub use shm::{handshake, runtime};
#[doc(hidden)]
pub use wire::harness;

pub use bywire_ring::geometry::{Geometry, LaneGeometry};
pub use bywire_sys::Errno;

/// The longest message that arrives in an event without a posted buffer when the sender uses the default geometry:
/// one fragment.
pub const FRAGMENT_BYTES: usize = 4096;
/// The longest head of a message in two parts ([`Port::send_headed`]).
pub const HEAD_BYTES_MAX: usize = message::options::HEAD_BYTES_MAX;

/// The crate's own page, whose program has to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Page;
