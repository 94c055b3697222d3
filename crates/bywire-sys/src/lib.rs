//! The operating system as Bywire needs it: mechanisms without policy.
//!
//! Nothing else in the workspace makes raw system calls. Everything here is safe to call; the few
//! unsafe blocks are confined to mapping memory and to calls that `rustix` does not cover.

mod account;
pub mod activation;
pub mod clock;
pub mod credentials;
pub mod deferred;
pub mod directory;
pub mod fork;
pub mod interrupt;
pub mod limits;
pub mod listener;
pub mod memory;
pub mod namespace;
pub mod poller;
pub mod preloadable;
pub mod process;
pub mod release;
pub mod share;
pub mod socket;
pub mod strike;
pub mod tap;
pub mod tcp;
pub mod wake;

pub use rustix::io::Errno;
