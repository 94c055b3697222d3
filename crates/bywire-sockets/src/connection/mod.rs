//! A connection of the program's: where its bytes are, and how it returns to the kernel.

pub mod carried;
pub mod fallback;
pub mod log;
pub mod outcome;
pub mod readiness;
pub mod table;
