//! Random programs: their orders, who gives them, and a model of the results.

pub mod channel;
pub mod gaps;
pub mod model;
pub mod play;
pub mod step;
