//! A copied key on two machines is noticed, and makes no channel change hands again and again. No restart or replay is
//! taken for one. Node 2 has the key of node 0.

use std::net::SocketAddr;

use bywire_wire::channel::{CopiedKey, DownReason, Status};
use bywire_wire::handshake::Identity;

use super::simulation::{SECOND, Simulation, address_of, identity_of};

const HOUR: u64 = 3600 * SECOND;

/// What node 1 knows of the node that two machines claim to be.
fn known(simulation: &Simulation) -> Status {
    simulation.nodes[1].channels.status(&simulation.key(0)).expect("it is in the table")
}

fn address(simulation: &Simulation) -> Option<SocketAddr> {
    known(simulation).channel.map(|channel| channel.path.peer)
}

fn addresses(simulation: &Simulation) -> Option<[SocketAddr; 2]> {
    known(simulation).copied_key.map(|CopiedKey { addresses, .. }| addresses)
}

/// Node 0 is up, and then the copy, which takes its place.
fn displaced(seed: u64) -> Simulation {
    let mut simulation = Simulation::new(3, seed);
    simulation.copy_key(2, 0);
    simulation.connect(0, 1);
    simulation.await_that("it is up", SECOND, |simulation| address(simulation) == Some(address_of(0)));
    simulation.run(10 * SECOND);
    assert_eq!(addresses(&simulation), None);
    simulation.connect(2, 1);
    simulation.await_that("the copy is up", SECOND, |simulation| address(simulation) == Some(address_of(2)));
    simulation
}

#[test]
fn the_last_machine_to_start_has_the_place_and_the_other_one_is_noticed() {
    let mut simulation = displaced(60);
    simulation.run(10 * SECOND);
    assert_eq!(addresses(&simulation), Some([address_of(2), address_of(0)]));
    // Numbers grow, and the lines of what is remembered do not.
    let memory = |simulation: &Simulation| format!("{:#?}", simulation.nodes[1].channels).lines().count();
    assert_eq!((simulation.ups(1), simulation.downs(1)), (2, vec![DownReason::Restarted]));
    // The place does not change hands again, however long both try, and nothing grows.
    simulation.run(HOUR);
    let before = memory(&simulation);
    simulation.run(HOUR);
    assert_eq!((simulation.ups(1), simulation.downs(1)), (2, vec![DownReason::Restarted]));
    assert!(memory(&simulation) <= before + 20, "{} instead of {before}", memory(&simulation));
    assert_eq!(address(&simulation), Some(address_of(2)));
    assert!(known(&simulation).copied_key.expect("seen").at_ns + 20 * SECOND > simulation.now_ns);
    // A new start of the first one takes it back.
    simulation.restart(0, identity_of(0, 2));
    simulation.connect(0, 1);
    simulation.await_that("it is up", SECOND, |simulation| address(simulation) == Some(address_of(0)));
    simulation.run(HOUR);
    assert_eq!((simulation.ups(1), address(&simulation)), (3, Some(address_of(0))));
    assert_eq!(addresses(&simulation), Some([address_of(0), address_of(2)]));
}

#[test]
fn a_machine_that_has_lost_its_place_gets_it_back_when_it_is_the_one_that_answers() {
    let mut simulation = displaced(61);
    for number in [0, 2] {
        let other = simulation.key(1);
        simulation.nodes[number].channels.release(&other);
        simulation.collect(number);
    }
    simulation.run(200 * SECOND);
    assert_eq!(address(&simulation), None, "nobody needs the channel");
    // Node 1 has the address of node 0 only.
    simulation.connect(1, 0);
    simulation.await_that("it is up", SECOND, |simulation| address(simulation) == Some(address_of(0)));
    assert_eq!(addresses(&simulation), Some([address_of(0), address_of(2)]));
    // It is a node like any other again: it moves, and is followed.
    simulation.connect(0, 1);
    simulation.run(SECOND);
    let elsewhere = SocketAddr::from(([10, 0, 9, 9], 7248));
    simulation.nodes[0].address = elsewhere;
    simulation.await_that("it is followed", 20 * SECOND, |simulation| address(simulation) == Some(elsewhere));
}

#[test]
fn restarts_and_replays_are_not_taken_for_a_copied_key() {
    let mut simulation = Simulation::new(2, 62);
    for start in 1..6 {
        // Every other time the machine is restarted, and not its service only.
        let boot_id = [start as u8 / 2; 16];
        simulation.restart(0, Identity { boot_id, ..identity_of(0, start) });
        // Now and then it is the other one that connects.
        let (from, to) = if start % 3 == 0 { (1, 0) } else { (0, 1) };
        simulation.connect(from, to);
        simulation.await_that("it is up", 60 * SECOND, |simulation| {
            known(simulation).channel.is_some_and(|channel| channel.incarnation == start)
        });
        simulation.run(10 * SECOND);
        for packet in simulation.recorded.clone().iter().filter(|packet| packet.to == address_of(1)) {
            for from in [packet.from, SocketAddr::from(([192, 0, 2, 7], 999))] {
                simulation.give(1, from, &packet.bytes);
            }
        }
        simulation.run(10 * SECOND);
        assert_eq!(known(&simulation).copied_key, None, "after start {start}");
    }
}
