//! Random programs: what they are told, who tells them, and what is known of them.

pub mod channel;
pub mod gaps;
pub mod model;
pub mod play;
pub mod step;
