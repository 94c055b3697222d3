//! The program's epoll sets that hold carried connections.

pub mod control;
pub mod events;
pub mod handover;
pub mod members;
pub mod nested;
pub mod order;
pub mod parked;
pub mod quiet;
pub mod registrations;
pub mod sets;
pub mod sleepers;
pub mod wait;
