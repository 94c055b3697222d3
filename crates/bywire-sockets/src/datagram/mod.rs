//! The program's UDP sockets, and their flows: what each exchanges with one other end in memory.

pub mod address;
pub mod answers;
pub mod flow;
pub mod members;
pub mod readiness;
pub mod sockets;
