//! Services of two and three machines, in network namespaces on one bridge, with ports that speak only the protocol.

use std::time::{Duration, Instant};

use bywire_sys::udp::UdpSocket;
use bywire_testing::actor::{Context, Role};
use bywire_testing::eventually;
use bywire_testing::test_network::{self, FakePort, TIMEOUT, TestNetwork, introduction, kept};
use bywire_wire::keys::Side;
use bywire_wire::service::status::{Entry, State};
use bywire_wire::service::{Answers, End, NotConnected, Notice, Refusal, Request, VERSION};
use rustix::process::Signal;

use crate::faults::ends::start;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("accepting", accepting)];

#[test]
fn both_ends_of_a_connection_get_mirrored_terms() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let began = Instant::now();
    let [ours, theirs] = asking.meet(7, "b", &mut asked, 9);
    println!("a first connection took {:?}", began.elapsed());
    assert_eq!((ours.side, theirs.side), (Side::Initiator, Side::Responder));
    assert_eq!(ours.answers, Answers::Request(7));
    assert!(ours.secret == theirs.secret && ours.secret != [0; 32]);
    assert_eq!((ours.introduction.connection, theirs.introduction.connection), (9, 7));
    assert_eq!((ours.peer.node.as_str(), ours.peer.port.as_str()), ("b", "render"));
    assert_eq!((theirs.peer.node.as_str(), theirs.peer.port.as_str()), ("a", "asking"));
    let user = bywire_sys::names::user_name(bywire_sys::process::user()).expect("a name");
    assert!(ours.peer.user == user && theirs.peer.user == user);
    assert_eq!((ours.peer.incarnation, theirs.peer.incarnation), (asked.incarnation, asking.incarnation));
    assert_eq!(ours.route_bytes, 1500 - 28);
    assert_eq!(ours.security, theirs.security);
    // A packet reaches the address in the terms.
    assert_eq!(theirs.path.peer.ip(), a.address.ip());
    asking.udp.send(Some(ours.path.peer), b"over").expect("sent");
    let mut buffer = [0; 16];
    let (_, from) = eventually("a packet", || asked.udp.receive_from(&mut buffer).expect("received"));
    assert_eq!((&buffer[..4], from), (&b"over"[..], theirs.path.peer));

    let again = Instant::now();
    let [more, _] = asking.meet(8, "b", &mut asked, 10);
    println!("a second one took {:?}", again.elapsed());
    assert!(more.secret != ours.secret, "each connection has its own");
    let connections = a.status().into_iter().filter(|entry| matches!(entry, Entry::Connection(_))).count();
    assert_eq!(connections, 2);
    assert_eq!((a.status_of("b").state, a.status_of("a").state), (State::Up, State::Own));

    asking.send(&Request::Inquire { connection: 7 });
    assert_eq!(asking.next(), Notice::Alive { connection: 7 });
    asking.send(&Request::Release { connection: 7 });
    assert_eq!(asked.next(), Notice::Ended { connection: 9, reason: End::PeerReleased });
    drop(asked);
    assert_eq!(asking.next(), Notice::Ended { connection: 8, reason: End::PeerEnded });
}

#[test]
fn a_refused_connection_is_reported_with_its_reason() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let refused = |asking: &mut FakePort, node: &str, port: &str| {
        asking.connect(3, node, port, 3);
        match asking.next() {
            Notice::NotConnected { request: 3, reason } => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&mut asking, "c", "render"), NotConnected::UnknownNode);
    assert_eq!(refused(&mut asking, "b", "nobody"), NotConnected::NoPort);
    assert_eq!(refused(&mut asking, "a", "asking"), NotConnected::NoPort);
    asking.connect(4, "b", "render", 4);
    let Notice::Offer { offer, peer, introduction: said } = asked.next() else { panic!("no offer") };
    assert_eq!((peer.node.as_str(), said), ("a", introduction(4)));
    asked.send(&Request::Decline { offer, refusal: Refusal::NotAdmitted });
    let reason = NotConnected::Refused(Refusal::NotAdmitted);
    assert_eq!(asking.next(), Notice::NotConnected { request: 4, reason });
    // A number that is in use is refused at once.
    let _terms = asking.meet(5, "b", &mut asked, 5);
    asking.connect(6, "b", "render", 5);
    assert_eq!(asking.next(), Notice::NotConnected { request: 6, reason: NotConnected::NoResources });
    // The end of the connecting port withdraws its offer.
    asking.connect(7, "b", "render", 7);
    let Notice::Offer { offer, .. } = asked.next() else { panic!("no offer") };
    drop(asking);
    let ended = Notice::Ended { connection: 5, reason: End::PeerEnded };
    let told = [asked.next(), asked.next()];
    assert!(told.contains(&Notice::Withdrawn { offer }) && told.contains(&ended), "{told:?}");
    // A late answer has no effect.
    asked.send(&Request::Accept { offer, introduction: introduction(8) });
    asked.send(&Request::Inquire { connection: 8 });
    assert_eq!(asked.next_within(Duration::from_millis(100)), None);
}

#[test]
fn a_stopped_node_is_unreachable_and_is_found_after_its_restart() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines[0].start();
    let mut asking = FakePort::open(&network.machines[0], "asking");
    asking.connect(1, "b", "render", 1);
    let reason = NotConnected::Unreachable;
    assert_eq!(asking.next(), Notice::NotConnected { request: 1, reason });
    network.machines[1].start();
    let mut asked = FakePort::open(&network.machines[1], "render");
    let _terms = asking.meet(2, "b", &mut asked, 2);
}

#[test]
fn a_wrong_key_gets_no_answer_and_appears_in_the_status() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    let all = network.fabric();
    // The file of b has the key of c for node a. The file of a is correct.
    let mut wrong = all.clone();
    wrong.nodes[0].key = network.machines[2].key;
    wrong.nodes.truncate(2);
    network.machines[1].write(&wrong);
    network.machines[..2].iter_mut().for_each(test_network::Machine::start);
    let [a, b, _] = &network.machines[..] else { unreachable!() };
    let mut asking = FakePort::open(a, "asking");
    asking.connect(1, "b", "render", 1);
    assert!(matches!(asking.next(), Notice::NotConnected { reason: NotConnected::Unreachable, .. }));
    assert!(a.count_of("b", "hellos_sent") > 0 && a.count_of("b", "answers_received") == 0);
    assert!(b.strangers("unknown_keys") > 0);
    assert_eq!(b.count_of("a", "answers_sent"), 0, "no answer");
    let Some(Entry::Service(service)) = b.status().into_iter().next() else { panic!("it comes first") };
    assert_eq!(service.last_unknown, Some((a.key.0, a.address)));
}

/// A peer is told of a killed process within this time in at least one of these samples. If it is not, more are taken.
const AT_ONCE: Duration = Duration::from_millis(10);
const SAMPLES: u32 = 8;
const SAMPLES_MAX: u32 = 64;

#[test]
fn peers_of_a_killed_process_are_told_at_once() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let mut asking = FakePort::open(a, "asking");
    let mut delays = Vec::new();
    // Other programs on the same cores can delay single samples, and many of them for a while.
    for number in 1..=SAMPLES_MAX {
        let mut accepting = start(b, "accepting", &[]);
        accepting.expect("ready");
        asking.connect(number, "b", "render", number);
        asking.established();
        let killed = Instant::now();
        accepting.signal(Signal::KILL);
        assert_eq!(asking.next(), Notice::Ended { connection: number, reason: End::PeerEnded });
        delays.push(killed.elapsed());
        if number >= SAMPLES && delays.iter().any(|delay| *delay <= AT_ONCE) {
            break;
        }
    }
    delays.sort();
    println!("told after {delays:?}");
    assert!(delays[0] <= AT_ONCE, "{delays:?}");
}

/// A port in a process of its own, which accepts one offer and lives until it is killed.
fn accepting(context: &mut Context) {
    let udp = UdpSocket::bind_everywhere(0).expect("bound");
    let mut fake_port = FakePort::unregistered(&context.directory, "render", udp);
    fake_port.register(Vec::new());
    assert!(matches!(fake_port.next(), Notice::Registered { .. }));
    context.tell("ready");
    fake_port.accept(1);
    context.hear();
}

#[test]
fn connections_outlive_a_service_and_are_registered_with_the_next_one() {
    let Some(mut network) = TestNetwork::up(2) else { return };
    let (mut asking, mut asked) =
        (FakePort::open(&network.machines[0], "asking"), FakePort::open(&network.machines[1], "render"));
    let [one, _] = asking.meet(1, "b", &mut asked, 11);
    let [two, _] = asking.meet(2, "b", &mut asked, 12);
    network.machines[0].stop();
    network.machines[0].start();
    // A connection that the peer does not have ends once the services have compared their lists. One that both have stays.
    let mut unknown = kept(3, &one);
    unknown.peer_connection = 99;
    asking.call_again(&network.machines[0], vec![kept(1, &one), unknown]);
    assert_eq!(asking.next(), Notice::Ended { connection: 3, reason: End::PeerReleased });
    asking.send(&Request::Inquire { connection: 1 });
    assert_eq!(asking.next(), Notice::Alive { connection: 1 });
    // The peer is told of the end of a connection that the registered port did not list.
    asked.send(&Request::Inquire { connection: 12 });
    assert_eq!(asked.next(), Notice::Ended { connection: 12, reason: End::PeerReleased });
    assert_eq!(two.introduction.connection, 12);
    drop(asked);
    assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::PeerEnded });
}

#[test]
fn connections_that_ended_without_a_service_are_reported_after_its_restart() {
    let Some(mut network) = TestNetwork::up(2) else { return };
    let (mut asking, mut asked) =
        (FakePort::open(&network.machines[0], "asking"), FakePort::open(&network.machines[1], "render"));
    let [one, _] = asking.meet(1, "b", &mut asked, 11);
    network.machines[0].stop();
    drop(asked);
    eventually("b knows of the end", || {
        !network.machines[1].status().iter().any(|entry| matches!(entry, Entry::Port(_)))
    });
    network.machines[0].start();
    asking.call_again(&network.machines[0], vec![kept(1, &one)]);
    assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::PeerReleased });
}

#[test]
fn connections_to_a_restarted_machine_end() {
    let Some(mut network) = TestNetwork::up(2) else { return };
    let (mut asking, mut asked) =
        (FakePort::open(&network.machines[0], "asking"), FakePort::open(&network.machines[1], "render"));
    let _terms = asking.meet(1, "b", &mut asked, 11);
    network.machines[1].stop();
    network.machines[1].boot_id = [99; 16];
    network.machines[1].start();
    assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::NodeRestarted });
}

#[test]
fn a_node_that_is_removed_from_the_file_loses_its_connections_within_a_second() {
    let Some(network) = TestNetwork::up(3) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let mut asking = FakePort::open(a, "asking");
    let (mut on_b, mut on_c) = (FakePort::open(b, "render"), FakePort::open(c, "render"));
    let _terms = asking.meet(1, "b", &mut on_b, 11);
    let _terms = asking.meet(2, "c", &mut on_c, 11);
    let mut less = network.fabric();
    less.nodes.remove(1);
    less.serial = 2;
    a.write(&less);
    let began = Instant::now();
    assert_eq!(a.reload(), "fabric lab, serial 2: 2 nodes");
    assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::NodeRemoved });
    println!("told after {:?}", began.elapsed());
    asking.connect(3, "b", "render", 3);
    assert_eq!(asking.next(), Notice::NotConnected { request: 3, reason: NotConnected::UnknownNode });
    asking.send(&Request::Inquire { connection: 2 });
    assert_eq!(asking.next(), Notice::Alive { connection: 2 }, "the other one stays");
    // A file with an error changes nothing, and the error is reported.
    std::fs::write(a.configuration().join("fabric.toml"), "name = 7\n").expect("written");
    assert!(a.reload().contains("line 1"), "it says where");
    let Some(Entry::Service(service)) = a.status().into_iter().next() else { panic!("it comes first") };
    assert!(service.serial == 2 && service.complaint.is_some_and(|complaint| complaint.contains("line 1")));
    // Once it is in the file again, it is found again.
    a.write(&network.fabric());
    a.reload();
    // With another port, because the first one may be told of its lost connection at any time.
    let mut again = FakePort::open(b, "again");
    let _terms = asking.meet(4, "b", &mut again, 14);
}

#[test]
fn a_fabric_is_unencrypted_only_if_both_nodes_agree() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    let mut plain = network.fabric();
    plain.is_encrypted = false;
    network.machines[..2].iter().for_each(|machine| machine.write(&plain));
    network.machines.iter_mut().for_each(test_network::Machine::start);
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let mut asking = FakePort::open(a, "asking");
    let (mut on_b, mut on_c) = (FakePort::open(b, "render"), FakePort::open(c, "render"));
    let plain = bywire_wire::keys::Security::Plain;
    assert_eq!(asking.meet(1, "b", &mut on_b, 1).map(|terms| terms.security), [plain; 2]);
    let [ours, theirs] = asking.meet(2, "c", &mut on_c, 1).map(|terms| terms.security);
    assert!(ours == theirs && ours != plain);
}

#[test]
fn versions_other_than_ours_are_refused_by_name() {
    use bywire_wire::service::Unregistered;
    let Some(network) = TestNetwork::up(1) else { return };
    let machine = &network.machines[0];
    let udp = machine.namespace.run(|| UdpSocket::bind_everywhere(0)).expect("inside").expect("bound");
    let mut fake_port = FakePort::unregistered(&machine.runtime(), "asking", udp);
    let Request::Register { port, incarnation, is_reachable, udp_port, kept, is_last, .. } =
        fake_port.registration(Vec::new())
    else {
        unreachable!()
    };
    let version = VERSION + 1;
    fake_port.send(&Request::Register { version, port, incarnation, is_reachable, udp_port, kept, is_last });
    assert_eq!(fake_port.next(), Notice::Refused(Unregistered::Version));
    assert_eq!(fake_port.next_within(TIMEOUT), None, "the socket closes");
}

/// What an operator is alerted to. Packets of a channel that is gone are counted elsewhere.
#[test]
fn a_restarted_service_is_no_stranger_to_the_others() {
    let Some(mut network) = TestNetwork::up(2) else { return };
    let mut has_old_packets = false;
    for round in 0..3 {
        let [a, b] = &network.machines[..] else { unreachable!() };
        let mut asking = FakePort::open(a, &format!("asking{round}"));
        let mut asked = FakePort::open(b, &format!("render{round}"));
        let _terms = asking.meet(1, "b", &mut asked, 11);
        // It does not say that it ends, and the other one goes on with its channel.
        network.set_cable(1, false);
        network.machines[1].stop();
        network.set_cable(1, true);
        network.machines[1].boot_id = [round; 16];
        network.machines[1].start();
        asking.send(&Request::Inquire { connection: 1 });
        assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::NodeRestarted });
        for machine in &network.machines {
            for counter in ["unknown_keys", "without_key", "unreadable"] {
                assert_eq!(machine.strangers(counter), 0, "{counter} of {}", machine.name);
            }
            has_old_packets |= machine.strangers("unrecognized") > 0;
        }
    }
    assert!(has_old_packets, "a restart leaves packets of the old channel");
}
