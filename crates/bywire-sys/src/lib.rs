//! The operating system as Bywire needs it: mechanisms without policy.
//!
//! The message layer and the pairing service make system calls only through this crate. Everything here is safe to
//! call. The few unsafe blocks map memory, make calls that `rustix` does not cover, or take owned values apart.

pub mod activation;
pub mod clock;
mod close_account;
pub mod credentials;
pub mod datagram_end;
pub mod deferred;
pub mod directory;
pub mod fork;
pub mod interrupt;
pub mod life;
pub mod limits;
pub mod listener;
pub mod memory;
pub mod names;
pub mod namespace;
mod option;
pub mod page;
pub mod poller;
pub mod preload_probe;
pub mod preloadable;
pub mod process;
pub mod release;
pub mod scheduling;
pub mod share;
pub mod socket;
pub mod spin;
pub mod tap;
pub mod tcp;
pub mod timer_doorbell;
pub mod udp;
pub mod unix_stream;
pub mod wake;

pub use rustix::io::Errno;
