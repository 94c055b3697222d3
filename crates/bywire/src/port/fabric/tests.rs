//! What a port does with peers on other machines, seen from inside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bywire_sys::socket::{Received, Socket};
use bywire_wire::frame::Lane;
use bywire_wire::record::Head;
use bywire_wire::service::{End, Notice, PACKET_BYTES_MAX, Request, from_bytes, to_bytes};

use super::scene::{PATIENCE, Scene};
use super::*;
use crate::message::error::{ConnectError, DisconnectReason};
use crate::message::event::Event;
use crate::message::options::PortOptions;
use crate::message::peer::{Confirm, Priority};
use crate::message::region::Key;
use crate::message::resources::EVENTS_MAX;
use crate::port::far::{Call, Stage};
use crate::port::slots::Slot;

/// Many seconds later.
const MUCH_LATER_NS: u64 = 3_600_000_000_000;

fn requests(node: &Socket) -> Vec<Request> {
    let mut found = Vec::new();
    let mut bytes = [0; PACKET_BYTES_MAX];
    while let Ok(Received::Packet(length, _)) = node.receive(&mut bytes) {
        found.push(from_bytes(&bytes[..length]).expect("a request"));
    }
    found
}

/// The port registers, and its node answers.
fn register(scene: &mut Scene) -> Socket {
    scene.port.fabric().expect("a socket");
    scene.port.join_node(Duration::ZERO).expect("the node is there");
    let node = scene.node.accept().expect("accept").expect("somebody");
    node.send(&to_bytes(&Notice::Registered { node: "a".to_owned() }).expect("short"), &[]).expect("room");
    scene.port.hear_node();
    node
}

#[test]
fn users_are_admitted_by_name_and_not_by_number() {
    let names = Names { user: Some("ann".to_owned()), group: Some("render".to_owned()) };
    assert!(names.is_family("ann") && names.is_family("root"));
    assert!(!names.is_family("bob") && !names.is_family("") && !names.is_family("0"));
    let of = |groups: &[&str]| names.is_in_group(&groups.iter().map(|&name| name.into()).collect::<Vec<_>>());
    assert!(of(&["users", "render"]) && !of(&["users"]) && !of(&[]));
    // A user whose number has a name on neither machine is nobody's user elsewhere.
    let nameless = Names { user: Some("1000".to_owned()), group: Some("100".to_owned()) };
    assert!(!nameless.is_family("1000") && !nameless.is_in_group(&["100".to_owned()]));
    assert!(is_name("ann") && !is_name("1000"));
    assert!(!Names::default().is_family("ann") && Names::default().is_family("root"));
}

#[test]
fn coalesced_packets_of_two_connections_are_both_handled() {
    let mut scene = Scene::new(PortOptions::default());
    let (mut one, mut other) = (scene.meet(), scene.meet());
    one.say(Lane::High, b"first");
    other.say(Lane::High, b"other");
    let (first, second) = (one.batch(), other.batch());
    let packet_bytes = first.packets().next().expect("a packet").len();
    let joined = [first.bytes(), second.bytes()].concat();
    assert_eq!(joined.len(), 2 * packet_bytes, "the kernel joins only packets of one length");
    assert_eq!(one.udp.send_batch(Some(one.to), &joined, packet_bytes), Ok(joined.len()));
    let mut heard = Vec::new();
    for _ in 0..1000 {
        if let Some(Event::Message(message)) = scene.port.poll() {
            heard.push(message.payload.to_vec());
        }
    }
    heard.sort();
    assert_eq!(heard, [b"first".to_vec(), b"other".to_vec()]);
}

/// Bounces messages until a condition holds, and checks that none is lost.
fn bounce_until(
    scene: &mut Scene,
    played: &mut super::scene::Played,
    mut holds: impl FnMut(&mut Scene) -> bool,
) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for number in 0u32.. {
        played.say(Lane::High, &number.to_ne_bytes());
        loop {
            assert!(Instant::now() < deadline, "message {number} is lost, or nothing has changed");
            played.turn();
            if let Some(Event::Message(message)) = scene.port.poll() {
                assert_eq!(&*message.payload, number.to_ne_bytes());
                break;
            }
        }
        if number > 100 && holds(scene) {
            return;
        }
    }
}

#[test]
fn an_active_peer_gets_a_connected_socket_and_loses_it_with_silence_but_no_message() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    let index = played.peer.index;
    let has_socket = |scene: &mut Scene| matches!(scene.port.slots.state_at(index), Some(Slot::Wire(far)) if far.has_socket());
    assert!(!has_socket(&mut scene), "an idle peer has none");
    bounce_until(&mut scene, &mut played, has_socket);
    // Nobody answers for a while.
    scene.port.send(played.peer, Priority::High, b"still there?").expect("room");
    let deadline = Instant::now() + Duration::from_secs(10);
    while has_socket(&mut scene) {
        assert!(Instant::now() < deadline, "it is kept");
        scene.port.poll();
    }
    bounce_until(&mut scene, &mut played, has_socket);
}

#[test]
fn an_active_peer_gets_a_connected_socket_again_after_its_route_has_failed() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    let index = played.peer.index;
    let has_socket = |scene: &mut Scene| {
        let fabric = scene.port.fabric.as_deref().expect("made");
        fabric.sockets.has_connected(index)
    };
    bounce_until(&mut scene, &mut played, has_socket);
    // As a send does that finds no route.
    scene.port.fabric.as_deref_mut().expect("made").sockets.disconnect(index);
    bounce_until(&mut scene, &mut played, has_socket);
}

#[test]
fn a_connection_that_lingers_is_registered_again() {
    let mut scene = Scene::new(PortOptions { linger: PATIENCE, ..PortOptions::default() });
    let (leaving, staying) = (scene.meet(), scene.meet());
    scene.port.send(leaving.peer, Priority::High, b"good-bye").expect("room");
    scene.port.disconnect(leaving.peer);
    let node = register(&mut scene);
    let kept: Vec<u32> = requests(&node)
        .into_iter()
        .flat_map(|request| match request {
            Request::Register { kept, .. } => kept,
            _ => Vec::new(),
        })
        .map(|kept| kept.peer_connection)
        .collect();
    assert_eq!(kept, [100 + leaving.peer.index, 100 + staying.peer.index]);
    scene.port.options.linger = Duration::ZERO;
    scene.port.end(leaving.peer.index, DisconnectReason::Here);
}

/// A peer that says nothing more once it has acknowledged everything is given up.
fn is_given_up(what: impl FnOnce(&mut Scene, &mut super::scene::Played)) {
    let options = PortOptions { unreachable_after: Duration::from_millis(300), ..PortOptions::default() };
    let mut scene = Scene::new(options);
    let mut played = scene.meet();
    what(&mut scene, &mut played);
    let end = Instant::now() + Duration::from_millis(250);
    while Instant::now() < end {
        let event = scene.port.poll();
        assert!(!matches!(event, Some(Event::Disconnected { .. })), "{event:?} while it answers");
        played.turn();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match scene.port.wait(Some(deadline.saturating_duration_since(Instant::now()))).expect("wait") {
            Some(Event::Disconnected { reason, .. }) => {
                assert_eq!(reason, DisconnectReason::Unreachable);
                return;
            }
            None => panic!("its silence was not noticed"),
            _ => {}
        }
    }
}

#[test]
fn a_silent_peer_is_detected_while_a_lane_has_no_credit() {
    is_given_up(|scene, played| {
        let data = vec![1; 4 << 20];
        scene.port.send_buffer(played.peer, Priority::Low, data, Confirm::Copied).expect("token");
    });
}

#[test]
fn a_silent_peer_is_detected_while_a_get_is_pending() {
    is_given_up(|scene, played| {
        scene.port.get(played.peer, Priority::High, (Key(1), 0), vec![0; 8]).expect("token");
    });
}

#[test]
fn a_responding_peer_is_kept_while_its_program_is_slow() {
    let options = PortOptions { unreachable_after: Duration::from_millis(300), ..PortOptions::default() };
    let mut scene = Scene::new(options);
    let mut played = scene.meet();
    scene.port.get(played.peer, Priority::High, (Key(1), 0), vec![0; 8]).expect("token");
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let event = scene.port.wait(Some(Duration::from_millis(1))).expect("wait");
        assert!(event.is_none(), "{event:?}");
        played.turn();
    }
}

#[test]
fn messages_of_a_dead_peer_wait_until_the_program_takes_events() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    (0..3).for_each(|_| played.say(Lane::Low, b"last words"));
    played.transmit();
    let (peer, priority) = (played.peer, Priority::Low);
    (0..EVENTS_MAX).for_each(|_| scene.port.resources.events.push_back(Event::Room { peer, priority }));
    scene.port.far_has_ended(peer.index, End::PeerEnded);
    std::thread::sleep(Duration::from_millis(5));
    scene.port.look_far();
    let mut messages = 0;
    scene.until(|_, event| {
        messages += u32::from(matches!(event, Some(Event::Message(_))));
        matches!(event, Some(Event::Disconnected { reason: DisconnectReason::Died, .. }))
    });
    assert_eq!(messages, 3);
}

#[test]
fn messages_of_an_ended_peer_take_only_the_memory_that_they_need() {
    const COUNT: usize = 100;
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    // One byte more than an event holds itself.
    (0..COUNT).for_each(|_| played.say(Lane::Low, &[1; 57]));
    let deadline = Instant::now() + PATIENCE;
    while played.connection.acknowledged(Lane::Low) < played.connection.end(Lane::Low) {
        assert!(Instant::now() < deadline, "they do not arrive");
        played.turn();
        scene.port.look_far();
    }
    scene.port.far_has_ended(played.peer.index, End::PeerEnded);
    let memory = scene.port.resources.events.iter().map(|event| match event {
        Event::Message(message) => message.payload.memory_bytes(),
        _ => 0,
    });
    assert_eq!(memory.sum::<usize>(), COUNT * 57);
}

#[test]
fn a_port_reads_its_socket_before_it_sleeps() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    scene.until(|port, _| port.arm());
    scene.port.poll();
    played.say(Lane::High, b"before");
    played.transmit();
    std::thread::sleep(Duration::from_millis(5));
    assert!(!scene.port.arm(), "an edge-triggered set has told of this packet before");
    scene.until(|_, event| matches!(event, Some(Event::Message(_))));
}

#[test]
fn a_port_is_dropped_in_time_while_unknown_senders_fill_its_socket() {
    let mut scene = Scene::new(PortOptions { linger: Duration::from_millis(300), ..PortOptions::default() });
    let played = scene.meet();
    scene.port.send(played.peer, Priority::High, b"good-bye").expect("room");
    let is_over = AtomicBool::new(false);
    let flood = || {
        let udp = bywire_sys::udp::UdpSocket::bind_everywhere(0).expect("bound");
        // Relaxed: nothing else depends on it.
        while !is_over.load(Ordering::Relaxed) {
            let _full = udp.send_batch(Some(played.to), &[0; 64], 1);
        }
    };
    let took = std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(flood)));
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while Instant::now() < deadline && !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        drop(scene);
        is_over.store(true, Ordering::Relaxed);
        begun.elapsed()
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_dropped_port_is_told_of_a_dead_peer() {
    let mut scene = Scene::new(PortOptions { linger: PATIENCE, ..PortOptions::default() });
    let played = scene.meet();
    let node = register(&mut scene);
    let connection = scene.far(played.peer).number;
    scene.port.send(played.peer, Priority::High, b"good-bye").expect("room");
    let notice = Notice::Ended { connection, reason: End::PeerEnded };
    node.send(&to_bytes(&notice).expect("short"), &[]).expect("room");
    let begun = Instant::now();
    drop(scene);
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_peer_with_many_messages_does_not_starve_another_one() {
    let mut scene = Scene::new(PortOptions::default());
    let (mut busy, mut other) = (scene.meet(), scene.meet());
    scene.until(|_, _| {
        if busy.connection.taken(Lane::Low) == 0 {
            (0..10).for_each(|_| busy.say(Lane::Low, b"one of many"));
        }
        busy.turn();
        busy.connection.end(Lane::Low) >= 40_000
    });
    while scene.port.look_far() {}
    other.say(Lane::High, b"the other one");
    other.transmit();
    std::thread::sleep(Duration::from_millis(5));
    let heard = (0..200).any(|_| match scene.port.poll() {
        Some(Event::Message(message)) => message.peer == other.peer,
        _ => false,
    });
    assert!(heard, "its message is in the socket");
}

#[test]
fn room_for_a_datagram_is_announced_when_available() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    let peer = played.peer;
    for _ in 0..20 {
        while scene.port.send_datagram(peer, Priority::Low, &[1; 1000]).expect("connected") {}
        scene.port.await_room(peer, Priority::Low).expect("connected");
        scene.until(|_, event| {
            played.turn();
            matches!(event, Some(Event::Room { .. }))
        });
        assert!(scene.port.send_datagram(peer, Priority::Low, &[1; 1000]).expect("connected"), "none");
    }
}

#[test]
fn a_connect_to_a_silent_node_times_out() {
    for is_registered in [false, true] {
        let mut scene = Scene::new(PortOptions::default());
        let _node = if is_registered { Some(register(&mut scene)) } else { None };
        let peer = scene.port.connect_start(&"b/7".parse().expect("an address")).expect("begun");
        let fabric = scene.port.fabric.as_deref_mut().expect("made");
        assert!(fabric.first_deadline_ns().is_some_and(|at_ns| at_ns < now_ns() + 15_000_000_000));
        fabric.keep_time(now_ns() + MUCH_LATER_NS, &mut scene.port.slots);
        scene.port.take_news(now_ns() + MUCH_LATER_NS);
        let silent = DisconnectReason::NotConnected(ConnectError::NoFabric(NoFabric::Silent));
        let event = scene.port.poll();
        assert!(
            matches!(event, Some(Event::Disconnected { peer: of, reason }) if of == peer && reason == silent),
            "{event:?}"
        );
    }
}

#[test]
fn memory_of_an_idle_peer_is_given_back() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    played.say(Lane::Low, &[1; 4000]);
    scene.until(|_, event| {
        played.turn();
        matches!(event, Some(Event::Message(_)))
    });
    (0..10).for_each(|_| {
        assert!(scene.port.poll().is_none());
        played.turn();
    });
    assert!(scene.far(played.peer).wire.memory_bytes() > 0);
    let later_ns = now_ns() + MUCH_LATER_NS;
    let fabric = scene.port.fabric.as_deref_mut().expect("made");
    fabric.keep_time(later_ns, &mut scene.port.slots);
    scene.port.take_news(later_ns);
    assert_eq!(scene.far(played.peer).wire.memory_bytes(), 0);
    // The route, which is said to be that of Ethernet, is one of loopback.
    scene.until(|port, _| {
        played.say(Lane::Low, &[1; 4000]);
        played.turn();
        matches!(port.slots.state_at(played.peer.index), Some(Slot::Wire(far)) if far.wire.packet_bytes() > 1452)
    });
}

#[test]
fn a_forged_packet_makes_no_peer_active() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    played.say(Lane::Low, b"true");
    scene.until(|_, event| {
        played.turn();
        matches!(event, Some(Event::Message(_)))
    });
    while scene.port.look_far() {}
    let active_ns = scene.far(played.peer).active_ns;
    assert!(active_ns > 0);
    played.say(Lane::Low, b"forged");
    let mut forged = played.batch().bytes().to_vec();
    *forged.last_mut().expect("a packet") ^= 1;
    played.udp.send(Some(played.to), &forged).expect("room");
    let deadline = Instant::now() + PATIENCE;
    while scene.far(played.peer).wire.counts().forged == 0 {
        assert!(Instant::now() < deadline, "it does not arrive");
        scene.port.look_far();
    }
    assert_eq!(scene.far(played.peer).active_ns, active_ns);
}

#[test]
fn a_refused_large_window_is_requested_again() {
    let mut scene = Scene::new(PortOptions::default());
    let (one, other) = (scene.meet(), scene.meet());
    scene.far(one.peer).wire.open_large_window();
    scene.far(other.peer).is_window_refused = true;
    scene.port.end(one.peer.index, DisconnectReason::Died);
    assert!(!scene.far(other.peer).is_window_refused);
}

#[test]
fn a_window_grows_in_the_middle_of_the_first_long_message() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    let length = 8 << 20;
    assert!(scene.port.post_receive(Priority::Low, vec![0; length]).is_ok());
    let mut record = Vec::new();
    Head::Message { length: length as u64, is_long: true, is_prompt: false }.write(&mut record);
    record.resize(record.len() + length, 1);
    played.connection.send(Lane::Low, record).expect("room");
    let mut has_grown = false;
    scene.until(|port, event| {
        played.turn();
        let is_over = matches!(event, Some(Event::Message(_)));
        let far = port.slots.state_at(played.peer.index);
        has_grown |= !is_over && matches!(far, Some(Slot::Wire(far)) if far.wire.has_large_window());
        is_over
    });
    assert!(has_grown);
}

#[test]
fn the_first_packet_of_a_peer_is_acknowledged_before_its_event() {
    let mut scene = Scene::new(PortOptions::default());
    let mut played = scene.meet();
    let Some(Slot::Wire(far)) = scene.port.slots.replace(played.peer, Slot::Free { last: None }) else {
        panic!("no peer")
    };
    let (number, now_ns) = (far.number, now_ns());
    let call = Call {
        address: "b/7".parse().expect("an address"),
        number,
        stage: Stage::Proving { far, since_ns: now_ns },
        since_ns: now_ns,
        foreign_user: None,
        announce: true,
        is_caller: true,
    };
    scene.port.slots.replace(played.peer, Slot::Calling(Box::new(call)));
    played.say(Lane::High, b"hello");
    let hello = played.connection.end(Lane::High);
    played.transmit();
    scene.until(|_, event| matches!(event, Some(Event::Connected(_))));
    std::thread::sleep(Duration::from_millis(5));
    played.receive();
    assert_eq!(played.connection.acknowledged(Lane::High), hello, "the program may not poll for long");
}

#[test]
fn a_port_that_lingers_hears_its_next_node_at_once() {
    let mut scene = Scene::new(PortOptions { linger: PATIENCE, ..PortOptions::default() });
    let mut played = scene.meet();
    let first = register(&mut scene);
    // Its peer acknowledges and takes nothing, so nothing is in flight, and no deadline is near.
    scene.port.send_buffer(played.peer, Priority::Low, vec![1; 4 << 20], Confirm::Copied).expect("token");
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        scene.port.poll();
        played.turn();
    }
    let number = scene.far(played.peer).number;
    let Scene { port, node, _directory } = scene;
    let closing = std::thread::spawn(move || drop(port));
    drop(first);
    let deadline = Instant::now() + PATIENCE / 2;
    let second = loop {
        assert!(Instant::now() < deadline, "it registers again");
        played.turn();
        if let Some(second) = node.accept().expect("accept") {
            break second;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    second.send(&to_bytes(&Notice::Registered { node: "a".to_owned() }).expect("short"), &[]).expect("room");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!closing.is_finished());
    let ended = Notice::Ended { connection: number, reason: End::PeerEnded };
    let told = Instant::now();
    second.send(&to_bytes(&ended).expect("short"), &[]).expect("room");
    closing.join().expect("it closes");
    assert!(told.elapsed() < Duration::from_secs(5), "it heard of the end after {:?}", told.elapsed());
}
