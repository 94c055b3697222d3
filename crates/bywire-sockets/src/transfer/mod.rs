//! Sending and receiving.

pub mod receive;
pub mod send;
pub mod waiting;
