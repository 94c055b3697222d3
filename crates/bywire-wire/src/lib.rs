//! The formats between two ports on different machines: packets, frames in packets, and records in the bytes of a lane.
//! [`connection::Connection`] makes reliable lanes of packets that may be lost. The services of two nodes use it for
//! their channel: [`handshake`], [`channel::Channels`], [`service_message::ServiceMessage`].
//!
//! Each format has a borrowed view, which is parsed from untrusted bytes and which writes itself back. Nothing here has
//! a clock, draws a random number or does I/O. All numbers are little-endian.
//!
//! ```text
//! packet   kind u8 · flags u8 · length u16 · connection u32 · number u64 · frames · tag
//! frames   PAD | PING | CLOSE reason u8
//!          ACK      largest u64 · delay µs u32 · ranges u8 · run u32 · (gap u32 · run u32)*
//!          LANE     offset u64 · length u16 · bytes                         the lane is in the frame's kind
//!          CREDIT   taken u64 · limit u64                                   the lane is in the frame's kind
//!          DATAGRAM id u32 · offset u16 · total u16 · length u16 · bytes    the priority is in the frame's kind
//! record   kind u8 · note u8 · length u48 · words · payload · note          in the bytes of a lane, across packets;
//!          of a message, flags are in the place of the note's length
//! ```
//!
//! Loss recovery follows the design of QUIC (RFC 9000): every transmission has a number of its own, and ranges of a
//! lane are sent again, not packets.
#![forbid(unsafe_code)]

pub mod ack;
pub mod batch;
pub mod bucket;
pub mod channel;
pub mod congestion;
pub mod connection;
pub mod credit;
pub mod datagrams;
pub mod frame;
pub mod handshake;
pub mod keys;
pub mod pacing;
pub mod packet;
pub mod path;
#[doc(hidden)]
pub mod planted;
pub mod random;
pub mod ranges;
mod reader;
pub mod received;
pub mod receiving;
pub mod record;
pub mod recovery;
pub mod rtt;
pub mod sealing;
pub mod sending;
pub mod service;
pub mod service_message;
pub mod size;
