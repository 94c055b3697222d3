//! What `./x figures messages`, `./x figures links`, `./x figures rivals`, `./x figures ethernet`, `./x figures sockets` and `./x figures accuracy`
//! share. A [`contest`] takes fresh pairs of everything in turn, so that what is compared ran side by side. A [`table`]
//! shows medians, ratios and their spread.

pub mod application;
pub mod bare_copy;
pub mod bare_ring;
pub mod bare_udp;
pub mod carried;
pub mod child_guard;
pub mod contest;
pub mod death;
pub mod distance;
pub mod ethernet;
pub mod fabric;
pub mod idle;
pub mod lab;
pub mod libfabric;
pub mod open_mpi;
pub mod program;
pub mod quic;
pub mod quiet_connections;
pub mod reference;
pub mod requirement;
pub mod resident;
pub mod rival_pair;
pub mod table;
pub mod tunnel;
pub mod ucx;
