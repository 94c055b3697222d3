//! Memory shared with a peer that may be hostile: segments, rings, doorbells.
//!
//! Each direction between two ports has a segment that its producer writes and its consumer may only read. A segment
//! holds three rings ([`geometry`]): `reply`, `high` and `low`. The consumer counts what it has freed in the segment
//! of the opposite direction, so every page has exactly one writer.
//!
//! Nothing that a peer writes is trusted. Each word is loaded once and bounded before it is used. Both ends count
//! positions privately. A peer that breaks the rules yields [`lane::Corrupt`].

pub mod bounds;
pub mod copy;
pub mod datagrams;
pub mod distance;
pub mod doorbell;
pub mod geometry;
pub mod header;
pub mod hints;
pub mod hold;
pub mod lane;
pub mod list;
pub mod lock;
pub mod memory;
pub mod owing;
pub mod owner;
pub mod passage;
pub mod program_doorbell;
pub mod stream;
pub mod unannounced;
pub mod waiters;
pub mod word;
