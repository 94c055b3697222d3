//! How a connection leaves the kernel: the pairing service is told of it.

pub mod offer;
