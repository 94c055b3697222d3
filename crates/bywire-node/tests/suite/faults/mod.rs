//! Faults between machines, with real processes and the kernel's network stack: killed, stopped and computing processes, links
//! that are down or corrupt packets, stopped services, and floods. A soak makes the tests longer.

mod cable;
pub mod ends;
mod five_machines;
mod floods;
mod idle_programs;
mod kills;
mod leftovers;
mod mangled;
mod mangler;
pub mod node;
mod stopped_services;
mod strangers;
mod upgrade;

use bywire_testing::Tier;
use bywire_testing::actor::Role;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[
    ("target", kills::target),
    ("node", node::serve),
    ("idle", idle_programs::idle),
    ("member", five_machines::member),
    ("other version", upgrade::refuse),
];

/// True if the long form of the tests is requested.
fn is_long() -> bool {
    Tier::current() == Tier::Soak
}
