//! The service by which two programs of one machine learn that they are the ends of one TCP connection.
//!
//! Each program sends the descriptor of its end to the [`service`]. The service asks the kernel for both addresses of
//! each end. If the addresses of two ends mirror each other, it gives each end the other's memory. [`protocol`] has the
//! packets.

mod checked_packet;
pub mod filters;
mod kept_memory;
pub mod launch;
pub mod protocol;
pub mod reason;
mod registry;
pub mod service;
pub mod space;
pub mod status;
pub mod user;
mod user_thread;
mod waiting;
