//! Faults between two machines, with real processes and the kernel's own network: processes that are killed, stopped or
//! compute, cables that are out or mangle, services that are away, and floods. `BYWIRE_SOAK=1` makes them longer.

#[path = "../../../bywire/tests/actor/mod.rs"]
mod actor;
mod cable;
mod ends;
mod five_machines;
mod floods;
mod idle_programs;
mod kills;
mod leftovers;
mod mangled;
mod mangler;
mod node;
mod stopped_services;
mod strangers;
#[path = "../test_network/mod.rs"]
mod test_network;
mod upgrade;

#[test]
#[ignore = "a role for the other tests of this file, which start it themselves"]
fn actor() {
    actor::run_role(&[
        ("target", kills::target),
        ("node", node::serve),
        ("idle", idle_programs::idle),
        ("member", five_machines::member),
        ("other version", upgrade::refuse),
    ]);
}

/// The long form of a test is asked for by this variable.
fn is_long() -> bool {
    std::env::var_os("BYWIRE_SOAK").is_some()
}
