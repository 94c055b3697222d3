//! `poll` and `select`.

mod datagrams;
pub mod poll;
pub mod select;
