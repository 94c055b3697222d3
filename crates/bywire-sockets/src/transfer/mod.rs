//! Sending and receiving.

pub mod datagrams;
pub mod kernel_wait;
pub mod left;
pub mod receive;
pub mod send;
pub mod waiting;
