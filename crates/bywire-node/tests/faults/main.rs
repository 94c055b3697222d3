//! Faults between two machines, with real processes and the kernel's own network: a process that is killed within a put, and
//! a cable that is out for a while. `BYWIRE_SOAK=1` has them last as long as the documents promise.

#[path = "../../../bywire/tests/actor/mod.rs"]
mod actor;
mod cable;
mod ends;
mod kills;
mod leftovers;
mod mangled;
mod mangler;
#[path = "../scene/mod.rs"]
mod scene;

#[test]
#[ignore = "a role for the other tests of this file, which start it themselves"]
fn actor() {
    actor::play(&[("target", kills::target)]);
}

/// The long form of a test is asked for by this variable.
fn is_long() -> bool {
    std::env::var_os("BYWIRE_SOAK").is_some()
}
