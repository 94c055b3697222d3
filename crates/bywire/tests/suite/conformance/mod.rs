//! The contract of messages, written once and held to by every link: shared memory, UDP plain and encrypted between two
//! nodes (with a fake of their service), and a port with peers of both kinds.
//!
//! Both ports belong to one thread, so that the test controls every step. Order is random: `PROPTEST_CASES`, 24 by
//! default, 1,000 in a soak.

mod contract;
mod port_pair;
mod remote;

use bywire_testing::actor::Role;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("link echo", remote::echo)];
