//! The service by which two programs of one machine learn that they are the ends of one TCP or Unix connection.
//!
//! Each program sends the descriptor of its end to the [`service`]. The service asks the kernel for the names of both
//! ends: addresses, or the inodes of Unix sockets. If the names of two ends mirror each other, it gives each end the
//! other's memory. [`protocol`] has the packets.

mod checked_packet;
pub mod filters;
mod identity;
mod kept_memory;
pub mod launch;
pub mod protocol;
pub mod reason;
mod registry;
pub mod service;
pub mod space;
pub mod status;
mod unix_diag;
pub mod user;
mod user_thread;
mod waiting;
