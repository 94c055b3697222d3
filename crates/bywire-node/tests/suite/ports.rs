//! Ports of two machines with their services, as programs use them.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywire::{
    Address, Confirm, DisconnectReason, Event, NoFabric, OpenError, Owner, Peer, Port, Priority, Rights,
};
use bywire_node::{file, settings};
use bywire_sys::namespace::Namespace;
use bywire_testing::actor::{Context, Role};
use bywire_testing::test_network::{Machine, TIMEOUT, TestNetwork, ip};

use crate::faults::ends::{self, connect, next, options, start};

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("render", render)];

/// A port that returns every message.
fn render(context: &mut Context) {
    let port = Port::open(options(&context.directory, "render")).expect("open");
    context.tell("ready");
    answer(port, 1);
}

/// Returns every message until so many peers have gone.
fn answer(mut port: Port, peers: usize) {
    let mut gone = 0;
    while gone < peers {
        match next(&mut port) {
            Event::Message(message) => {
                port.send(message.peer, message.priority, &message.payload).expect("room for one");
            }
            Event::Disconnected { .. } => gone += 1,
            _ => {}
        }
    }
}

/// A port on a thread of its own that returns every message until so many peers have gone.
fn answering(machine: &Machine, peers: usize) -> JoinHandle<()> {
    let port = open(machine, "render");
    std::thread::spawn(move || answer(port, peers))
}

fn open(machine: &Machine, name: &str) -> Port {
    ends::open(machine, options(&machine.runtime(), name))
}

fn disconnect(port: &mut Port, peer: Peer) {
    port.disconnect(peer);
    assert!(matches!(next(port), Event::Disconnected { reason: DisconnectReason::Here, .. }));
}

fn message(port: &mut Port) -> Vec<u8> {
    match next(port) {
        Event::Message(message) => message.payload.to_vec(),
        other => panic!("{other:?} instead of a message"),
    }
}

fn pattern(length: usize) -> Vec<u8> {
    ends::pattern(length, 7)
}

/// The other end of the test of all operations, in a thread of its own.
fn serve(mut port: Port) {
    let Event::Connected(peer) = next(&mut port) else { panic!("nobody has come") };
    let info = port.peer_info(peer).expect("connected").clone();
    assert_eq!(info.address, "a/asking".parse::<Address>().expect("an address"));
    let user = bywire_sys::names::user_name(bywire_sys::process::user()).expect("a name");
    assert_eq!(info.owner, Owner::Remote { user });
    let key = port.register(vec![0; 1 << 20], Rights { read: true, write: true }).expect("region");
    port.send(peer, Priority::High, &key.0.to_le_bytes()).expect("room");
    port.post_receive(Priority::Low, vec![0; 4 << 20]).expect("token");
    loop {
        match next(&mut port) {
            Event::Message(message) if message.payload.len() > 4096 => {
                port.send_buffer(peer, message.priority, message.payload.to_vec(), Confirm::Copied)
                    .expect("token");
            }
            Event::Message(message) => {
                port.send(peer, message.priority, &message.payload).expect("room for one");
            }
            Event::Datagram(datagram) => {
                assert!(port.send_datagram(peer, datagram.priority, &datagram.payload).expect("connected"));
            }
            Event::Notified { note, .. } => {
                assert_eq!(port.region(key).expect("ours")[7..7 + 100_000], pattern(100_000));
                port.send(peer, Priority::Low, &note).expect("room");
            }
            Event::Sent { result, .. } => assert_eq!(result, Ok(())),
            Event::Disconnected { reason, .. } => {
                assert_eq!(reason, DisconnectReason::Closed);
                return;
            }
            _ => {}
        }
    }
}

#[test]
fn everything_crosses_between_two_machines() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let (mut a, b) = (open(here, "asking"), open(there, "render"));
    assert_eq!(b.address().to_string(), "b/render");
    let serving = std::thread::spawn(move || serve(b));
    let peer = connect(&mut a, here, "b/render");
    let key = bywire::Key(u64::from_le_bytes(message(&mut a).try_into().expect("eight bytes")));
    for priority in [Priority::Low, Priority::High] {
        for length in [0, 8, 56, 57, 1500, 4096] {
            a.send(peer, priority, &pattern(length)).expect("room");
            assert_eq!(message(&mut a), pattern(length));
        }
        assert!(a.send_datagram(peer, priority, &pattern(3000)).expect("connected"));
        match next(&mut a) {
            Event::Datagram(datagram) => assert_eq!(datagram.payload[..], pattern(3000)),
            other => panic!("{other:?}"),
        }
    }
    a.post_receive(Priority::Low, vec![0; 4 << 20]).expect("token");
    a.send_buffer(peer, Priority::Low, pattern(4 << 20), Confirm::Delivered).expect("token");
    let (mut is_sent, mut is_back) = (false, false);
    while !(is_sent && is_back) {
        match next(&mut a) {
            Event::Sent { result: Ok(()), .. } => is_sent = true,
            Event::Message(message) => is_back = message.payload[..] == pattern(4 << 20),
            other => panic!("{other:?}"),
        }
    }
    a.put(peer, Priority::Low, (key, 7), pattern(100_000), Some(b"put")).expect("token");
    let (mut is_put, mut is_noted) = (false, false);
    while !(is_put && is_noted) {
        match next(&mut a) {
            Event::Put { result: Ok(()), .. } => is_put = true,
            Event::Message(message) => is_noted = message.payload[..] == b"put"[..],
            other => panic!("{other:?}"),
        }
    }
    a.get(peer, Priority::High, (key, 7), vec![0; 100_000]).expect("token");
    match next(&mut a) {
        Event::Got { result: Ok(()), buffer, .. } => assert_eq!(buffer.as_ref(), pattern(100_000)),
        other => panic!("{other:?}"),
    }
    disconnect(&mut a, peer);
    serving.join().expect("served");
}

#[test]
fn the_exit_of_a_process_on_another_machine_is_reported_at_once() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    // From this thread, because an actor ends with the thread that has started it.
    let mut render = start(there, "render", &[]);
    render.expect("ready");
    let mut a = open(here, "asking");
    let peer = connect(&mut a, here, "b/render");
    a.send(peer, Priority::High, b"before").expect("room");
    assert_eq!(message(&mut a), b"before");
    let killed = Instant::now();
    render.kill();
    match next(&mut a) {
        Event::Disconnected { reason, .. } => assert_eq!(reason, DisconnectReason::Died),
        other => panic!("{other:?}"),
    }
    println!("it was told after {:?}", killed.elapsed());
    // Silence alone would take longer to be noticed.
    assert!(killed.elapsed() < Duration::from_secs(10));
}

#[test]
fn connections_follow_a_machine_that_changes_its_address() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, answering) = (open(a, "asking"), answering(b, 1));
    let peer = connect(&mut asking, a, "b/render");
    let mut exchange = |text: &[u8]| {
        asking.send(peer, Priority::High, text).expect("room");
        assert_eq!(message(&mut asking), text);
    };
    exchange(b"before");
    // The kernel removes further addresses of a network with the first one.
    ip(&b.namespace, &format!("address del {}/24 dev eth0", b.address.ip()));
    ip(&b.namespace, "address add 10.78.0.99/24 dev eth0");
    let moved = Instant::now();
    exchange(b"after");
    println!("a machine with a new address is followed after {:?}", moved.elapsed());
    assert_eq!(a.status_of("b").address.expect("it is up").ip(), std::net::IpAddr::from([10, 78, 0, 99]));
    asking.disconnect(peer);
    answering.join().expect("it ended well");
}

#[test]
fn programs_behind_a_firewall_that_lets_only_answers_in_reach_a_machine_by_its_second_address() {
    /// Enough for a peer to get a socket of its own.
    const ROUNDS: usize = 300;
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    let mut fabric = network.fabric();
    let [a, b] = &network.machines[..] else { unreachable!() };
    ip(&a.namespace, "address add 10.78.0.101/24 dev eth0");
    fabric.nodes[0].addresses = vec!["10.78.0.101:7248".parse().expect("an address")];
    network.machines.iter().for_each(|machine| machine.write(&fabric));
    if !b.lets_only_answers_in() {
        return;
    }
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, answering) = (open(b, "asking"), answering(a, 1));
    let peer = connect(&mut asking, b, "a/render");
    let long = vec![7; 4000];
    for round in 0..ROUNDS {
        // Several long ones leave in a batch.
        let (text, count) = if round.is_multiple_of(10) { (&long[..], 8) } else { (&b"short"[..], 1) };
        (0..count).for_each(|_| asking.send(peer, Priority::High, text).expect("room"));
        (0..count).for_each(|_| assert_eq!(message(&mut asking), text));
    }
    asking.disconnect(peer);
    answering.join().expect("it ended well");
}

#[test]
fn a_port_without_a_network_uses_that_of_its_service_if_this_lends_it() {
    let Some(mut network) = TestNetwork::up(2) else { return };
    let container = Namespace::fresh().expect("another one");
    let open_inside = |machine: &Machine| {
        container.run(|| Port::open(options(&machine.runtime(), "asking"))).expect("inside")
    };
    let refused = open_inside(&network.machines[0]).err();
    assert!(matches!(refused, Some(OpenError::Fabric(NoFabric::OtherNetwork))), "{refused:?}");
    let settings = network.machines[0].configuration().join(settings::FILE_NAME);
    file::make(&settings, 0o644, "lend_network = true\n").expect("written");
    network.machines[0].stop();
    network.machines[0].start();
    let mut asking = open_inside(&network.machines[0]).expect("it is lent a socket");
    let answering = answering(&network.machines[1], 2);
    let address = "b/render".parse().expect("an address");
    let connect_inside = |asking: &mut Port| {
        container.run(|| asking.connect(&address, TIMEOUT)).expect("inside").expect("connected")
    };
    let peer = connect_inside(&mut asking);
    // So many that the peer is worth a socket of its own, which this port cannot have.
    let exchange = |asking: &mut Port, peer: Peer| {
        for number in 0..200u8 {
            asking.send(peer, Priority::High, &[number; 2000]).expect("room");
            assert_eq!(message(asking), [number; 2000]);
        }
    };
    exchange(&mut asking, peer);
    // The next service finds the socket in its own network.
    network.machines[0].stop();
    network.machines[0].start();
    exchange(&mut asking, peer);
    let deadline = Instant::now() + TIMEOUT;
    while network.machines[0].status().len() < 5 {
        assert!(Instant::now() < deadline, "the port and its connection are not registered again");
        let _ = asking.wait(Some(Duration::from_millis(10)));
    }
    disconnect(&mut asking, peer);
    let peer = connect_inside(&mut asking);
    exchange(&mut asking, peer);
    disconnect(&mut asking, peer);
    answering.join().expect("it ended well");
}
