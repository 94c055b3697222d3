//! The level `web`: real web servers under the load of our own generator, over connections that stay open.
//!
//! Each pair is a fresh server, with a private configuration and a document root in memory, and a fresh client. A
//! closed loop, in which every connection sends a request as soon as the previous one is answered, finds the peak. Then
//! open loops send requests at given shares of the peak, at random times that are drawn beforehand. They measure each
//! response from the time when its request was due. A server that stalls is so charged with all requests that came
//! meanwhile, which a closed loop would omit.

mod documents;
mod load;
pub mod open_load;
pub mod plan;
mod response;
mod server;
mod server_guard;
mod source;

pub use documents::Trace;
pub use load::Load;
pub use plan::{LEVEL, Link, Plan, Rank, SHARES, Server, TIME_SECONDS_MIN, Test};
pub use server_guard::{Address, ServerGuard, guard};
pub use source::measure;
