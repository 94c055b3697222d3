//! Bywire for C: `libbywire.so`, `libbywire.a` and `bywire.h`.
//!
//! There is one C function per call of the Rust interface. Every entry checks for null, stops panics, and turns
//! errors into negative codes by one explicit match. The types say which side owns a value ([`handle`]).

#![allow(non_camel_case_types, reason = "these are names of C types")]

pub mod call_guard;
pub mod error;
pub mod event;
pub mod event_memory;
pub mod failure;
pub mod handle;
pub mod heap;
pub mod message;
pub mod options;
pub mod port;
pub mod region;
pub mod sized;
pub mod version;
