//! Memory that forked processes share, and memory of one process.

pub mod arena;
pub mod descriptors;
pub mod free_list;
pub mod holders;
pub mod lock;
pub mod robust;
pub mod segment;
pub mod vforked;
