//! Faults between machines in namespaces, with real processes and the kernel's network stack. Needs root.
//!
//! A soak makes the tests longer: a put of 1 GiB, cables out for 5 s and 40 s, and longer floods and silences. Random:
//! `BYWIRE_SEEDS`, 100 in a soak, from `BYWIRE_SEED` on.

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
