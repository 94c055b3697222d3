//! The service by which two programs of one machine learn that they are the ends of one TCP or Unix connection, or that
//! their UDP sockets talk to each other.
//!
//! Each program sends the descriptor of its end to the [`service`]. The service asks the kernel for the names of both
//! ends: addresses, or the inodes of Unix sockets. For a UDP socket the program names the other end, and the kernel says
//! that this socket receives what comes from there. If the names of two ends mirror each other, it gives each end the
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
mod sock_diag;
pub mod space;
pub mod status;
mod udp_diag;
mod unix_diag;
pub mod user;
mod user_thread;
mod waiting;
