//! Epoll sets of the program's that hold carried connections.

pub mod control;
pub mod nested;
pub mod registrations;
pub mod sleepers;
pub mod wait;
