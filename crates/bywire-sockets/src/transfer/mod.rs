//! Sending and receiving.

pub mod left;
pub mod receive;
pub mod send;
pub mod waiting;
