//! A connection of the program: where its bytes are, and how it returns to the kernel.

pub mod bounds;
pub mod dissolving;
pub mod domain;
pub mod ending;
pub mod fallback;
pub mod far;
pub mod guard;
pub mod idle_memory;
pub mod interruption;
pub mod kept_error;
pub mod log;
pub mod notification;
pub mod options;
pub mod outcome;
pub mod owed;
pub mod policy;
pub mod readiness;
pub mod relayed;
pub mod ring;
pub mod sleep;
pub mod sockets;
pub mod source;
pub mod stall;
