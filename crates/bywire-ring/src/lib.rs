//! Memory shared with a peer that may be hostile: segments, rings, doorbells.
//!
//! Each direction between two ports has a segment that its producer writes and its consumer may only
//! read. A segment holds three rings ([`geometry`]): `reply`, `high` and `low`. What the consumer has
//! freed stands in the segment that goes the other way, so that every page has exactly one writer.
//!
//! Nothing a peer writes is trusted: each word is loaded once and bounded before it is used, positions
//! are counted privately at both ends, and a peer that breaks the rules yields [`lane::Corrupt`].

pub mod bell;
pub mod copy;
pub mod crowd;
pub mod distance;
pub mod doorbell;
pub mod geometry;
pub mod header;
pub mod hold;
pub mod lane;
pub mod list;
pub mod lock;
pub mod memory;
pub mod owing;
pub mod passage;
pub mod stream;
pub mod waiters;
pub mod word;
