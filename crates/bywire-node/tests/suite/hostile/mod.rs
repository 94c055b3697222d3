//! The service of a machine under attack. Meanwhile an honest program opens ports, connects, sends and asks for the
//! status, each within a bound, and keeps its connection. The service's memory and processor time are bounded. Needs
//! root.
//!
//! With `-- --nocapture` the tests print the times.

mod attack_test;
mod honest;
mod local;
mod remote;
mod rogue;

use bywire_testing::actor::Role;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("honest", honest::measure), ("echo", honest::echo), ("rogue", rogue::attack)];
