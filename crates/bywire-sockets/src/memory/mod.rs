//! Memory that forked processes share, and what one process has of its own.

pub mod arena;
pub mod descriptors;
pub mod free_list;
pub mod holders;
pub mod lock;
pub mod robust;
