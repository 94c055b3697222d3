//! This program as a client of the pairing service.

pub mod account;
pub mod flows;
pub mod offer;
pub mod requirement;
pub mod seek;
