//! The contract of messages, written once and held to by every link: shared memory, UDP plain and encrypted, and a port with
//! peers of both kinds. Both ports belong to one thread, so that the test controls every step.

#[path = "../actor/mod.rs"]
mod actor;
#[path = "../fake_service/mod.rs"]
mod fake_service;
#[path = "../ports/mod.rs"]
mod ports;

mod contract;
mod port_pair;
mod remote;

#[test]
#[ignore = "a role for the other tests of this file, which start it themselves"]
fn actor() {
    actor::run_role(&[("echo", remote::echo)]);
}
