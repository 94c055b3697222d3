//! `poll` and `select`.

pub mod poll;
pub mod select;
