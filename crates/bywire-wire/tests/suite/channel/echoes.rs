//! Echo requests over channels are answered, and channels find the packet size meanwhile.

use bywire_wire::channel::echo::ECHO_BYTES_MAX;
use bywire_wire::channel::{Event, SendError};

use super::simulation::{CLEAN, Faults, MS, SECOND, Simulation, address_of};

fn echo(simulation: &mut Simulation, number: u64, bytes: usize) -> Result<(), SendError> {
    let (now_ns, node) = (simulation.now_ns, simulation.key(1));
    let sent = simulation.nodes[0].channels.send_echo(now_ns, &node, number, bytes);
    simulation.collect(0);
    sent
}

/// The numbers of the replies so far.
fn replies(simulation: &Simulation) -> Vec<u64> {
    let numbers = simulation.nodes[0].events.iter().filter_map(|event| match event {
        Event::Echo { node, number } if *node == simulation.key(1) => Some(*number),
        _ => None,
    });
    numbers.collect()
}

#[test]
fn each_echo_request_is_answered_once_after_a_round_trip() {
    let mut simulation = Simulation::pair(40);
    for (number, bytes) in [(7, 0), (8, 64), (9, 1100), (10, ECHO_BYTES_MAX)] {
        simulation.nodes[0].events.clear();
        let sent_ns = simulation.now_ns;
        echo(&mut simulation, number, bytes).expect("it is up");
        simulation.await_that("a reply", SECOND, |simulation| !replies(simulation).is_empty());
        let took_ns = simulation.now_ns - sent_ns;
        assert!(bytes > 1100 || took_ns < MS, "{bytes} bytes took {took_ns} ns");
        simulation.run(SECOND);
        assert_eq!(replies(&simulation), [number]);
    }
    // Echoes are no messages.
    assert_eq!((simulation.messages(0, 1).len(), simulation.messages(1, 0).len()), (0, 0));
}

#[test]
fn a_lost_echo_is_not_repeated() {
    let mut simulation = Simulation::pair(41);
    simulation.faults = Faults { lost: 50, ..CLEAN };
    for number in 0..200 {
        // There may be no channel in between.
        let _ = echo(&mut simulation, number, 64);
        simulation.run(20 * MS);
    }
    simulation.faults = CLEAN;
    simulation.run(5 * SECOND);
    let mut found = replies(&simulation);
    assert!((10..150).contains(&found.len()), "{}", found.len());
    let count = found.len();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), count, "no reply comes twice");
}

#[test]
fn echoes_to_a_node_that_is_not_up_or_has_too_many_are_refused() {
    let mut simulation = Simulation::new(2, 42);
    assert_eq!(echo(&mut simulation, 1, 64), Err(SendError::NotUp));
    let mut simulation = Simulation::pair(42);
    simulation.cut = vec![(address_of(0), address_of(1))];
    let outcomes: Vec<_> = (0..1000).map(|number| echo(&mut simulation, number, 1100)).collect();
    assert!(outcomes.contains(&Err(SendError::Full)));
    let before = simulation.recorded.len();
    // A peer that does not read replies holds up nothing: they are lost.
    simulation.cut = vec![(address_of(1), address_of(0))];
    simulation.run(10 * SECOND);
    simulation.cut.clear();
    simulation.run(10 * SECOND);
    assert!(simulation.recorded.len() - before < 1000);
    simulation.connect(0, 1);
    simulation.run(SECOND);
    echo(&mut simulation, 5000, 64).expect("it is up again");
    simulation.await_that("a reply", SECOND, |simulation| replies(simulation).contains(&5000));
}

#[test]
fn a_node_whose_hellos_are_rare_by_now_is_asked_soon_when_it_is_hurried() {
    let mut simulation = Simulation::new(2, 43);
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.connect(0, 1);
    simulation.run(100 * SECOND);
    simulation.cut.clear();
    let node = simulation.key(1);
    let events = simulation.nodes[0].events.len();
    simulation.nodes[0].channels.hurry(simulation.now_ns, &node);
    simulation.collect(0);
    simulation.await_that("it is up", SECOND / 4 + MS, |simulation| simulation.is_up(0, 1));
    assert_eq!(simulation.nodes[0].events.len(), events + 1, "nothing is reported but that it is up");
}

#[test]
fn a_channel_finds_the_longest_packet_that_its_route_carries() {
    let mut simulation = Simulation::pair(44);
    let node = simulation.key(1);
    let sizes = |simulation: &Simulation| {
        let status = simulation.nodes[0].channels.status(&simulation.key(1)).expect("known");
        status.channel.expect("it is up").packet_bytes
    };
    assert_eq!(sizes(&simulation), [1200, 1200]);
    simulation.nodes[0].channels.set_route_bytes(&node, 1452);
    for number in 0..4 {
        echo(&mut simulation, number, 64).expect("it is up");
        simulation.run(100 * MS);
    }
    assert_eq!(sizes(&simulation), [1452, 1452]);
}
