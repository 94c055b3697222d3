//! The level `web`: real web servers, asked by a load generator of ours over connections that stay open.
//!
//! Each pair is a fresh server with a private configuration and a document root in memory, and a fresh client. First a
//! closed loop, in which every connection asks again as soon as it is answered, finds the peak; then open loops ask at
//! shares of it at moments drawn beforehand, and time every response from when it was due. So a server that stalls is
//! charged with all who came meanwhile, which a closed loop leaves out.

pub mod account;
mod documents;
mod keeper;
mod load;
pub mod plan;
mod response;
mod server;
mod source;
mod trace;

pub use documents::Documents;
pub use keeper::{Address, Keeper, keep};
pub use load::Load;
pub use plan::{LEVEL, Link, Plan, Rank, SHARES, Server, TIME_SECONDS_MIN, Test};
pub use source::measure;
pub use trace::Trace;
