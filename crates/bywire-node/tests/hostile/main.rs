//! A service under attack, by another user of its machine and by unknown machines. Meanwhile the program of an honest user opens
//! ports, connects, sends messages and asks for the status. The times of these steps are bounded, and so are the memory and
//! the processor time of the service.

#[path = "../../../bywire/tests/actor/mod.rs"]
mod actor;
mod attack_test;
#[allow(dead_code, reason = "other suites use the rest of it")]
#[path = "../faults/ends.rs"]
mod ends;
mod honest;
mod local;
#[path = "../faults/node.rs"]
mod node;
mod remote;
mod rogue;
#[path = "../test_network/mod.rs"]
mod test_network;

#[test]
#[ignore = "a role for the other tests of this file, which start it themselves"]
fn actor() {
    actor::run_role(&[
        ("node", node::serve),
        ("honest", honest::measure),
        ("echo", honest::echo),
        ("rogue", rogue::attack),
    ]);
}
