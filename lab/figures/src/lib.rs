//! The figures of docs/performance.md. A [`contestant`] is measured: a request to the laboratory, or an adapter of another program
//! or a bare loop. A session of the laboratory takes fresh pairs of everything in turn, so that what is
//! compared ran side by side. [`figures`] reads medians, ratios and their spread of it, and [`requirement`] sets them against what
//! is required.

pub mod application;
pub mod bare_copy;
pub mod bare_ring;
pub mod bare_udp;
pub mod carried;
pub mod contestant;
pub mod death;
pub mod ethernet;
pub mod fabric;
pub mod figures;
pub mod idle;
pub mod libfabric;
pub mod open_mpi;
pub mod page;
pub mod program;
pub mod quic;
pub mod quiet_connections;
pub mod reference;
pub mod requirement;
pub mod resident;
pub mod rival_pair;
pub mod series;
pub mod sharing;
pub mod shown;
pub mod tunnel;
pub mod ucx;
