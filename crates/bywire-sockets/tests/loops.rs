//! Event loops of every kind, in one thread and shared by several: carried, and each event told as the kernel would.

mod world;

use world::{Running, World};

/// Ends that most of whose bytes have left the kernel, both of each connection in one program.
const ENDS: u64 = 6;
/// What a loop ends with whose bytes went through the kernel.
const BY_TCP: i32 = 3;

/// Runs a loop, with the library or without: its code and what it said.
fn runs(words: &[&str], is_carried: bool) -> Option<(Option<i32>, String, World)> {
    let world = World::new();
    let program = world.compiled("loops.c", "loops", &["-pthread"])?;
    let mut running = Running::start(world.command(program, is_carried.then_some(4)).args(words));
    let code = running.end().code();
    Some((code, running.rest(), world))
}

fn is_carried(words: &[&str]) {
    let Some((code, said, _)) = runs(words, false) else { return };
    assert_eq!((code, said.as_str()), (Some(BY_TCP), ""), "{words:?} without the library");
    let Some((code, said, world)) = runs(words, true) else { return };
    assert_eq!((code, said.as_str()), (Some(0), ""), "{words:?}: {:?}", world.status());
    assert_eq!(world.status().carried_ever, ENDS, "{words:?}: {:?}", world.status());
}

#[test]
fn loops_by_level_are_carried() {
    is_carried(&["level", "1"]);
    is_carried(&["level", "4"]);
}

#[test]
fn loops_by_edge_are_carried() {
    is_carried(&["edge", "1"]);
    is_carried(&["edge", "4"]);
}

#[test]
fn loops_that_are_told_once_are_carried() {
    is_carried(&["once", "1"]);
    is_carried(&["once", "4"]);
}

#[test]
fn loops_that_are_told_once_by_edge_are_carried() {
    is_carried(&["once-edge", "1"]);
    is_carried(&["once-edge", "4"]);
}
