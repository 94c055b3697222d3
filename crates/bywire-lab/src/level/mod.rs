//! What is under test: one module per level.

pub mod memory;
