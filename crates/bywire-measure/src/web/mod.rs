//! The level `web`: real web servers, asked by a load generator of ours over connections that stay open.
//!
//! Each pair is a fresh server with a private configuration and a document root in memory, and a fresh client. First a
//! closed loop, in which every connection asks again as soon as it is answered, finds the peak; then open loops ask at
//! shares of it at moments drawn beforehand, and time every response from when it was due. So a server that stalls is
//! charged with all who came meanwhile, which a closed loop leaves out.

mod documents;
mod load;
pub mod open_load;
pub mod plan;
mod response;
mod server;
mod server_guard;
mod source;
mod trace;

pub use documents::Documents;
pub use load::Load;
pub use plan::{LEVEL, Link, Plan, Rank, SHARES, Server, TIME_SECONDS_MIN, Test};
pub use server_guard::{Address, ServerGuard, guard};
pub use source::measure;
pub use trace::Trace;
