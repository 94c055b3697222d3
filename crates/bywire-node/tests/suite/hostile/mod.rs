//! A service under attack, by another user of its machine and by unknown machines. Meanwhile the program of an honest user opens
//! ports, connects, sends messages and asks for the status. The times of these steps are bounded, and so are the memory and
//! the processor time of the service.

mod attack_test;
mod honest;
mod local;
mod remote;
mod rogue;

use bywire_testing::actor::Role;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("honest", honest::measure), ("echo", honest::echo), ("rogue", rogue::attack)];
