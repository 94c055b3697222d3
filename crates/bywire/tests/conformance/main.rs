//! The contract of messages, written once and held to by every link: shared memory, UDP plain and encrypted, and a port with
//! peers of both kinds. Both ports belong to one thread, so that the test controls every step.

#[path = "../actor/mod.rs"]
mod actor;
#[path = "../ports/mod.rs"]
mod ports;
#[path = "../toy/mod.rs"]
mod toy;

mod contract;
mod far;
mod scene;

#[test]
#[ignore = "a role for the other tests of this file, which start it themselves"]
fn actor() {
    actor::play(&[("echo", far::echo)]);
}
