//! What a port does with peers on other machines, seen from inside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bywire_ring::geometry::{Geometry, LaneGeometry};
use bywire_sys::socket::{Received, Socket};
use bywire_wire::frame::Lane;
use bywire_wire::record::Head;
use bywire_wire::service::{self, End, Notice, PACKET_BYTES_MAX, Request, SOCKET_NAME, from_bytes, to_bytes};

use super::fixture::{FakePeer, Fixture, TIMEOUT, terms, until};
use super::*;
use crate::message::error::{ConnectError, DisconnectReason};
use crate::message::event::Event;
use crate::message::options::{Admit, PortOptions, Reach};
use crate::message::peer::{Confirm, Priority};
use crate::message::region::Key;
use crate::message::resources::EVENTS_MAX;
use crate::port::slots::Slot;
use crate::port::{packet_counts, send_followed_datagram};

/// Many seconds later.
const MUCH_LATER_NS: u64 = 3_600_000_000_000;

fn tell(node: &Socket, notice: &Notice) {
    node.send(&to_bytes(notice).expect("short"), &[]).expect("room");
}

fn requests(node: &Socket) -> Vec<Request> {
    let mut found = Vec::new();
    let mut bytes = [0; PACKET_BYTES_MAX];
    while let Ok(Received::Packet(length, _)) = node.receive(&mut bytes) {
        found.push(from_bytes(&bytes[..length]).expect("a request"));
    }
    found
}

/// The port registers, and its node answers.
fn register(fixture: &mut Fixture) -> Socket {
    fixture.port.fabric().expect("a socket");
    fixture.port.join_node().expect("the node is there");
    let node = fixture.node.accept().expect("accept").expect("somebody");
    tell(&node, &Notice::Registered { node: "a".to_owned() });
    fixture.port.hear_node();
    node
}

#[test]
fn users_are_admitted_by_name_and_not_by_number() {
    let names = Names { user: Some("ann".to_owned()), group: Some("render".to_owned()) };
    assert!(names.is_own_or_root("ann") && names.is_own_or_root("root"));
    assert!(!names.is_own_or_root("bob") && !names.is_own_or_root("") && !names.is_own_or_root("0"));
    let of = |groups: &[&str]| names.is_in_group(&groups.iter().map(|&name| name.into()).collect::<Vec<_>>());
    assert!(of(&["users", "render"]) && !of(&["users"]) && !of(&[]));
    // A user whose number has a name on neither machine is nobody's user elsewhere.
    let nameless = Names { user: Some("1000".to_owned()), group: Some("100".to_owned()) };
    assert!(!nameless.is_own_or_root("1000") && !nameless.is_in_group(&["100".to_owned()]));
    assert!(is_name("ann") && !is_name("1000"));
    assert!(!Names::default().is_own_or_root("ann") && Names::default().is_own_or_root("root"));
}

#[test]
fn a_node_that_makes_users_up_leaves_places_to_others() {
    const PLACES: u32 = 400;
    let options = PortOptions { admit: Admit::Everyone, peers_max: PLACES, ..PortOptions::default() };
    let mut fixture = Fixture::new(options.clone());
    let node = register(&mut fixture);
    fixture.port.options.reach = Reach::Fabric;
    requests(&node);
    let mut offers = 0;
    // The answer to a request of a user of a node: whether it is accepted.
    let mut ask = |fixture: &mut Fixture, from: &str, user: &str| {
        offers += 1;
        let mut terms = terms(([127, 0, 0, 1], 9).into(), offers, &options);
        (terms.peer.node, terms.peer.user) = (from.to_owned(), user.to_owned());
        let offer = Notice::Offer { offer: offers, peer: terms.peer, introduction: terms.introduction };
        tell(&node, &offer);
        fixture.port.hear_node();
        match &requests(&node)[..] {
            [Request::Accept { .. }] => true,
            [Request::Decline { refusal: service::Refusal::TooManyPeers, .. }] => false,
            other => panic!("{other:?}"),
        }
    };
    // Peers that never send.
    let silent = (0..PLACES).filter(|user| ask(&mut fixture, "rogue", &format!("user{user}"))).count();
    assert_eq!(silent, 64);
    assert!(!ask(&mut fixture, "rogue", "root"));
    assert!(ask(&mut fixture, "honest", "root"), "another node has places of its own");
    // Peers that have sent something, under the name of a user who may have all.
    for _ in 0..PLACES / 4 * 3 - 64 {
        let peer = fixture.meet().peer;
        fixture.remote(peer).identity.node = "rogue".to_owned();
    }
    assert!(!ask(&mut fixture, "rogue", "root"));
    let others = (0..PLACES).filter(|user| ask(&mut fixture, &format!("node{}", user % 50), "root")).count();
    assert_eq!(others, PLACES as usize / 4 - 1);
}

#[test]
fn coalesced_packets_of_two_connections_are_both_handled() {
    let mut fixture = Fixture::new(PortOptions::default());
    let (mut one, mut other) = (fixture.meet(), fixture.meet());
    one.queue(Lane::High, b"first");
    other.queue(Lane::High, b"other");
    let (first, second) = (one.batch(), other.batch());
    let packet_bytes = first.packets().next().expect("a packet").len();
    // The kernel joins packets of one length. Anybody can forge one with the address of the peer.
    let forged = vec![0; packet_bytes];
    let joined = [&forged, first.bytes(), &forged, second.bytes()].concat();
    assert_eq!(joined.len(), 4 * packet_bytes, "the kernel joins only packets of one length");
    assert_eq!(one.udp.send_batch(Some(one.to), &joined, packet_bytes), Ok(joined.len()));
    let mut heard = Vec::new();
    fixture.until(|_, event| {
        if let Some(Event::Message(message)) = event {
            heard.push(message.payload.to_vec());
        }
        heard.len() == 2
    });
    assert!((0..1000).all(|_| !matches!(fixture.port.poll(), Some(Event::Message(_)))), "nothing else comes");
    heard.sort();
    assert_eq!(heard, [b"first".to_vec(), b"other".to_vec()]);
}

/// Bounces messages until a condition holds, and checks that none is lost.
fn bounce_until(fixture: &mut Fixture, fake: &mut FakePeer, mut holds: impl FnMut(&mut Fixture) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for number in 0u32.. {
        fake.queue(Lane::High, &number.to_ne_bytes());
        loop {
            assert!(Instant::now() < deadline, "message {number} is lost, or nothing has changed");
            fake.exchange();
            if let Some(Event::Message(message)) = fixture.port.poll() {
                assert_eq!(&*message.payload, number.to_ne_bytes());
                break;
            }
        }
        if number > 100 && holds(fixture) {
            return;
        }
    }
}

#[test]
fn an_active_peer_gets_a_connected_socket_and_loses_it_with_silence_but_no_message() {
    // However long a silence may last, and if there is no limit, as for Ethernet.
    for unreachable_after in [PortOptions::default().unreachable_after, Duration::ZERO] {
        let mut fixture = Fixture::new(PortOptions { unreachable_after, ..PortOptions::default() });
        let mut fake = fixture.meet();
        let peer = fake.peer;
        let has_socket = |fixture: &mut Fixture| fixture.remote(peer).has_socket();
        assert!(!has_socket(&mut fixture), "an idle peer has none");
        bounce_until(&mut fixture, &mut fake, has_socket);
        // Nobody answers for a while.
        fixture.port.send(fake.peer, Priority::High, b"still there?").expect("room");
        until(|| {
            fixture.port.poll();
            !has_socket(&mut fixture)
        });
        bounce_until(&mut fixture, &mut fake, has_socket);
    }
}

#[test]
fn an_active_peer_gets_a_connected_socket_again_after_its_route_has_failed() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    let index = fake.peer.index;
    let has_socket = |fixture: &mut Fixture| {
        let fabric = fixture.port.fabric.as_deref().expect("made");
        fabric.sockets.has_connected(index)
    };
    bounce_until(&mut fixture, &mut fake, has_socket);
    // As a send does that finds no route.
    fixture.port.fabric.as_deref_mut().expect("made").sockets.disconnect(index);
    bounce_until(&mut fixture, &mut fake, has_socket);
}

#[test]
fn a_connection_that_lingers_is_registered_again() {
    let mut fixture = Fixture::new(PortOptions { linger: TIMEOUT, ..PortOptions::default() });
    let (leaving, staying) = (fixture.meet(), fixture.meet());
    fixture.port.send(leaving.peer, Priority::High, b"good-bye").expect("room");
    fixture.port.disconnect(leaving.peer);
    let node = register(&mut fixture);
    let kept: Vec<u32> = requests(&node)
        .into_iter()
        .flat_map(|request| match request {
            Request::Register { kept, .. } => kept,
            _ => Vec::new(),
        })
        .map(|kept| kept.peer_connection)
        .collect();
    assert_eq!(kept, [100 + leaving.peer.index, 100 + staying.peer.index]);
    fixture.port.options.linger = Duration::ZERO;
    fixture.port.end(leaving.peer.index, DisconnectReason::Here);
}

/// A peer that says nothing more once it has acknowledged everything is given up.
fn is_given_up(what: impl FnOnce(&mut Fixture, &mut FakePeer)) {
    let options = PortOptions { unreachable_after: Duration::from_millis(300), ..PortOptions::default() };
    let mut fixture = Fixture::new(options);
    let mut fake = fixture.meet();
    what(&mut fixture, &mut fake);
    let end = Instant::now() + Duration::from_millis(250);
    while Instant::now() < end {
        let event = fixture.port.poll();
        assert!(!matches!(event, Some(Event::Disconnected { .. })), "{event:?} while it answers");
        fake.exchange();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match fixture.port.wait(Some(deadline.saturating_duration_since(Instant::now()))).expect("wait") {
            Some(Event::Disconnected { reason, .. }) => {
                return assert_eq!(reason, DisconnectReason::Unreachable);
            }
            None => panic!("its silence was not noticed"),
            _ => {}
        }
    }
}

#[test]
fn a_silent_peer_is_detected_while_a_lane_has_no_credit() {
    is_given_up(|fixture, fake| {
        let data = vec![1; 4 << 20];
        fixture.port.send_buffer(fake.peer, Priority::Low, data, Confirm::Copied).expect("token");
    });
}

#[test]
fn a_silent_peer_is_detected_while_a_get_is_pending() {
    is_given_up(|fixture, fake| {
        fixture.port.get(fake.peer, Priority::High, (Key(1), 0), vec![0; 8]).expect("token");
    });
}

#[test]
fn a_responding_peer_is_kept_while_its_program_is_slow() {
    let options = PortOptions { unreachable_after: Duration::from_millis(300), ..PortOptions::default() };
    let mut fixture = Fixture::new(options);
    let mut fake = fixture.meet();
    fixture.port.get(fake.peer, Priority::High, (Key(1), 0), vec![0; 8]).expect("token");
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let event = fixture.port.wait(Some(Duration::from_millis(1))).expect("wait");
        assert!(event.is_none(), "{event:?}");
        fake.exchange();
    }
}

#[test]
fn messages_of_a_dead_peer_wait_until_the_program_takes_events() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    (0..3).for_each(|_| fake.queue(Lane::Low, b"last words"));
    fake.transmit();
    let (peer, priority) = (fake.peer, Priority::Low);
    (0..EVENTS_MAX).for_each(|_| fixture.port.resources.events.push_back(Event::Room { peer, priority }));
    fixture.port.remote_has_ended(peer.index, End::PeerEnded);
    std::thread::sleep(Duration::from_millis(5));
    fixture.port.look_remote();
    let mut messages = 0;
    fixture.until(|_, event| {
        messages += u32::from(matches!(event, Some(Event::Message(_))));
        matches!(event, Some(Event::Disconnected { reason: DisconnectReason::Died, .. }))
    });
    assert_eq!(messages, 3);
}

/// Returns whether the port has all that was sent in a lane.
fn has_all(fake: &FakePeer, lane: Lane) -> bool {
    fake.connection.acknowledged(lane) == fake.connection.end(lane)
}

#[test]
fn messages_of_an_ended_peer_take_only_the_memory_that_they_need() {
    const COUNT: usize = 100;
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    // One byte more than an event holds itself.
    (0..COUNT).for_each(|_| fake.queue(Lane::Low, &[1; 57]));
    fixture.exchange_until(&mut fake, |_, fake| has_all(fake, Lane::Low));
    fixture.port.remote_has_ended(fake.peer.index, End::PeerEnded);
    let memory = fixture.port.resources.events.iter().map(|event| match event {
        Event::Message(message) => message.payload.memory_bytes(),
        _ => 0,
    });
    assert_eq!(memory.sum::<usize>(), COUNT * 57);
}

#[test]
fn a_port_reads_its_socket_before_it_sleeps() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    fixture.until(|port, _| port.arm());
    fixture.port.poll();
    fake.queue(Lane::High, b"before");
    fake.transmit();
    std::thread::sleep(Duration::from_millis(5));
    assert!(!fixture.port.arm(), "an edge-triggered set has told of this packet before");
    fixture.until(|_, event| matches!(event, Some(Event::Message(_))));
}

#[test]
fn a_port_is_dropped_in_time_while_unknown_senders_fill_its_socket() {
    let options = PortOptions { linger: Duration::from_millis(300), ..PortOptions::default() };
    let mut fixture = Fixture::new(options);
    let fake = fixture.meet();
    fixture.port.send(fake.peer, Priority::High, b"good-bye").expect("room");
    let is_over = AtomicBool::new(false);
    let flood = || {
        let udp = bywire_sys::udp::UdpSocket::bind_everywhere(0).expect("bound");
        // Relaxed: nothing else depends on it.
        while !is_over.load(Ordering::Relaxed) {
            let _full = udp.send_batch(Some(fake.to), &[0; 64], 1);
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
        drop(fixture);
        is_over.store(true, Ordering::Relaxed);
        begun.elapsed()
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_dropped_port_is_told_of_a_dead_peer() {
    let mut fixture = Fixture::new(PortOptions { linger: TIMEOUT, ..PortOptions::default() });
    let fake = fixture.meet();
    let node = register(&mut fixture);
    let connection = fixture.remote(fake.peer).number;
    fixture.port.send(fake.peer, Priority::High, b"good-bye").expect("room");
    let notice = Notice::Ended { connection, reason: End::PeerEnded };
    tell(&node, &notice);
    let begun = Instant::now();
    drop(fixture);
    assert!(begun.elapsed() < TIMEOUT / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_peer_with_many_messages_does_not_starve_another_one() {
    let mut fixture = Fixture::new(PortOptions::default());
    let (mut busy, mut other) = (fixture.meet(), fixture.meet());
    fixture.until(|_, _| {
        if busy.connection.taken(Lane::Low) == 0 {
            (0..10).for_each(|_| busy.queue(Lane::Low, b"one of many"));
        }
        busy.exchange();
        busy.connection.end(Lane::Low) >= 40_000
    });
    while fixture.port.look_remote() {}
    other.queue(Lane::High, b"the other one");
    other.transmit();
    let socket = fixture.port.fabric().expect("a socket").sockets.common();
    let mut readable = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut readable, None).expect("poll");
    let mut before = 0;
    fixture.until(|_, event| match event {
        Some(Event::Message(message)) => {
            before += usize::from(message.peer != other.peer);
            message.peer == other.peer
        }
        _ => false,
    });
    assert!(before < 200, "after {before} messages of the busy peer");
}

#[test]
fn other_records_of_high_priority_come_before_short_messages_of_low_priority() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    (0..1000).for_each(|_| fake.queue(Lane::Low, &[1; 8]));
    let mut record = Vec::new();
    Head::Message { length: 8, is_long: false, is_prompt: true }.write(&mut record);
    fake.connection.send(Lane::High, [&record[..], &[2; 8]].concat()).expect("room");
    fixture.exchange_until(&mut fake, |_, fake| has_all(fake, Lane::Low) && has_all(fake, Lane::High));
    let mut priorities = Vec::new();
    fixture.until(|_, event| {
        priorities.extend(event.and_then(|event| match event {
            Event::Message(message) => Some(message.priority),
            _ => None,
        }));
        priorities.len() == 1001
    });
    let before = priorities.iter().take_while(|priority| **priority == Priority::Low).count();
    assert!(before <= 1, "after {before} others");
}

#[test]
fn room_for_a_datagram_is_announced_when_available() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    let peer = fake.peer;
    for _ in 0..20 {
        while fixture.port.send_datagram(peer, Priority::Low, &[1; 1000]).expect("connected") {}
        fixture.port.await_room(peer, Priority::Low).expect("connected");
        fixture.until(|_, event| {
            fake.exchange();
            matches!(event, Some(Event::Room { .. }))
        });
        assert!(fixture.port.send_datagram(peer, Priority::Low, &[1; 1000]).expect("connected"), "none");
    }
}

#[test]
fn datagrams_that_follow_each_other_leave_by_one_call_of_the_kernel_for_each_batch() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    let peer = fake.peer;
    // The kernel is not asked how long packets of this route may be: one of loopback would hold all of these.
    fixture.remote(peer).route_asked_ns = now_ns();
    // Packets become as long as this route permits, and everything is acknowledged.
    assert_eq!(fixture.port.send_datagram(peer, Priority::Low, &[1; 1000]), Ok(true));
    for _ in 0..200 {
        fake.exchange();
        let _ = fixture.port.poll();
    }
    let before = packet_counts(&fixture.port, peer).expect("connected");
    for _ in 0..7 {
        let sent = send_followed_datagram(&mut fixture.port, peer, Priority::Low, &[2; 1000]);
        assert_eq!(sent, Ok(true));
    }
    assert_eq!(packet_counts(&fixture.port, peer), Some(before), "others follow");
    assert_eq!(fixture.port.send_datagram(peer, Priority::Low, &[2; 1000]), Ok(true));
    let after = packet_counts(&fixture.port, peer).expect("connected");
    let [packets, calls] = [after.sent - before.sent, after.calls - before.calls];
    assert!(packets >= 5 && calls <= 2, "{packets} packets by {calls} calls");
}

/// An acknowledgement that comes with a message is processed only after the answer to that message has left. Nothing else may
/// come for long.
#[test]
fn queued_messages_leave_once_a_held_acknowledgement_has_made_room() {
    let lanes = [LaneGeometry { slots: 256, bulk_bytes: 4 << 20 }; 3];
    let geometry = Geometry { lanes, ..Geometry::default() };
    let mut fixture = Fixture::new(PortOptions { geometry, send_tokens: 256, ..PortOptions::default() });
    let mut fake = fixture.meet();
    let peer = fake.peer;
    let queue = |port: &mut crate::Port| {
        while port.send_buffer(peer, Priority::Low, vec![7; 4000], Confirm::Copied).is_ok() {}
    };
    // The congestion window has to hold more than waits in the lane.
    for _ in 0..200 {
        queue(&mut fixture.port);
        while fixture.port.poll().is_some() {}
        fake.exchange();
        let (first, second) = fake.connection.peek(Lane::Low);
        let bytes = first.len() + second.len();
        fake.connection.take(Lane::Low, bytes as u64);
    }
    queue(&mut fixture.port);
    // Pacing lets the packets out one after the other.
    fixture.until(|_, _| {
        fake.receive();
        let (first, second) = fake.connection.peek(Lane::Low);
        first.len() + second.len() > 50_000
    });
    while fixture.port.poll().is_some() {}
    assert!(fixture.remote(peer).wire.has_work(), "more than there is room for");
    fake.connection.before_sleep();
    fake.queue(Lane::High, b"hello");
    fake.transmit();
    let (mut copied, mut is_heard, started) = (0, false, Instant::now());
    while copied < 10 || !is_heard {
        assert!(
            started.elapsed() < Duration::from_millis(800),
            "{copied} have left, and a message has come: {is_heard}"
        );
        match fixture.port.poll() {
            Some(Event::Sent { .. }) => copied += 1,
            Some(Event::Message(_)) => is_heard = true,
            _ => {}
        }
    }
}

#[test]
fn a_connect_to_a_silent_node_times_out() {
    for is_registered in [false, true] {
        let mut fixture = Fixture::new(PortOptions::default());
        let _node = if is_registered { Some(register(&mut fixture)) } else { None };
        let peer = fixture.port.connect_start(&"b/7".parse().expect("an address")).expect("begun");
        let fabric = fixture.port.fabric.as_deref_mut().expect("made");
        assert!(fabric.first_deadline_ns().is_some_and(|at_ns| at_ns < now_ns() + 15_000_000_000));
        fixture.pass_time(now_ns() + MUCH_LATER_NS);
        let silent = DisconnectReason::NotConnected(ConnectError::NoFabric(NoFabric::Silent));
        let event = fixture.port.poll();
        assert!(
            matches!(event, Some(Event::Disconnected { peer: of, reason }) if of == peer && reason == silent),
            "{event:?}"
        );
    }
}

#[test]
fn memory_of_an_idle_peer_is_given_back() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    fake.queue(Lane::Low, &[1; 4000]);
    fixture.until(|_, event| {
        fake.exchange();
        matches!(event, Some(Event::Message(_)))
    });
    (0..10).for_each(|_| {
        assert!(fixture.port.poll().is_none());
        fake.exchange();
    });
    assert!(fixture.remote(fake.peer).wire.memory_bytes() > 0);
    fixture.pass_time(now_ns() + MUCH_LATER_NS);
    assert_eq!(fixture.remote(fake.peer).wire.memory_bytes(), 0);
    // The route, which is said to be that of Ethernet, is one of loopback.
    fixture.until(|port, _| {
        fake.queue(Lane::Low, &[1; 4000]);
        fake.exchange();
        matches!(port.slots.state_at(fake.peer.index), Some(Slot::Wire(remote)) if remote.wire.packet_bytes() > 1452)
    });
}

#[test]
fn a_forged_packet_makes_no_peer_active() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    fake.queue(Lane::Low, b"true");
    fixture.until(|_, event| {
        fake.exchange();
        matches!(event, Some(Event::Message(_)))
    });
    while fixture.port.look_remote() {}
    let active_ns = fixture.remote(fake.peer).active_ns;
    assert!(active_ns > 0);
    fake.queue(Lane::Low, b"forged");
    let mut forged = fake.batch().bytes().to_vec();
    *forged.last_mut().expect("a packet") ^= 1;
    fake.udp.send(Some(fake.to), &forged).expect("room");
    until(|| {
        fixture.port.look_remote();
        fixture.remote(fake.peer).wire.counts().forged > 0
    });
    assert_eq!(fixture.remote(fake.peer).active_ns, active_ns);
}

#[test]
fn a_refused_large_window_is_requested_again() {
    let mut fixture = Fixture::new(PortOptions::default());
    let (one, other) = (fixture.meet(), fixture.meet());
    fixture.remote(one.peer).wire.open_large_window();
    fixture.remote(other.peer).is_window_refused = true;
    fixture.port.end(one.peer.index, DisconnectReason::Died);
    assert!(!fixture.remote(other.peer).is_window_refused);
}

#[test]
fn a_window_grows_in_the_middle_of_the_first_long_message() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    let length = 8 << 20;
    assert!(fixture.port.post_receive(Priority::Low, vec![0; length]).is_ok());
    let mut record = Vec::new();
    Head::Message { length: length as u64, is_long: true, is_prompt: false }.write(&mut record);
    record.resize(record.len() + length, 1);
    fake.connection.send(Lane::Low, record).expect("room");
    let mut has_grown = false;
    fixture.until(|port, event| {
        fake.exchange();
        let is_over = matches!(event, Some(Event::Message(_)));
        let remote = port.slots.state_at(fake.peer.index);
        has_grown |= !is_over && matches!(remote, Some(Slot::Wire(remote)) if remote.wire.has_large_window());
        is_over
    });
    assert!(has_grown);
}

#[test]
fn the_first_packet_of_a_peer_is_acknowledged_before_its_event() {
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    fixture.unprove(fake.peer, now_ns(), true);
    fake.queue(Lane::High, b"hello");
    let hello = fake.connection.end(Lane::High);
    fake.transmit();
    fixture.until(|_, event| matches!(event, Some(Event::Connected(_))));
    std::thread::sleep(Duration::from_millis(5));
    fake.receive();
    assert_eq!(fake.connection.acknowledged(Lane::High), hello, "the program may not poll for long");
}

#[test]
fn a_silent_caller_has_its_place_for_ten_seconds_and_a_called_port_for_thirty() {
    for (is_caller, seconds) in [(false, 10), (true, 30)] {
        for (silent_seconds, is_kept) in [(seconds - 2, true), (seconds + 1, false)] {
            let mut fixture = Fixture::new(PortOptions::default());
            let peer = fixture.meet().peer;
            fixture.unprove(peer, now_ns() - silent_seconds * 1_000_000_000, is_caller);
            fixture.port.look_at_call(now_ns(), peer.index);
            let state = fixture.port.slots.state_at(peer.index);
            assert_eq!(matches!(state, Some(Slot::Calling(_))), is_kept, "{is_caller} {silent_seconds}");
        }
    }
}

#[test]
fn a_lingering_port_is_told_by_its_next_node_at_once() {
    let mut fixture = Fixture::new(PortOptions { linger: TIMEOUT, ..PortOptions::default() });
    let mut fake = fixture.meet();
    let first = register(&mut fixture);
    // Its peer acknowledges and takes nothing, so nothing is in flight, and no deadline is near.
    fixture.port.send_buffer(fake.peer, Priority::Low, vec![1; 4 << 20], Confirm::Copied).expect("token");
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        fixture.port.poll();
        fake.exchange();
    }
    let number = fixture.remote(fake.peer).number;
    let Fixture { port, node, _directory } = fixture;
    let closing = std::thread::spawn(move || drop(port));
    drop(first);
    let mut second = None;
    until(|| {
        fake.exchange();
        std::thread::sleep(Duration::from_millis(1));
        second = node.accept().expect("accept");
        second.is_some()
    });
    let second = second.expect("it registers again");
    tell(&second, &Notice::Registered { node: "a".to_owned() });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!closing.is_finished());
    let ended = Notice::Ended { connection: number, reason: End::PeerEnded };
    let told = Instant::now();
    tell(&second, &ended);
    closing.join().expect("it closes");
    assert!(told.elapsed() < Duration::from_secs(5), "it heard of the end after {:?}", told.elapsed());
}

#[test]
fn messages_of_an_ended_peer_stay_in_its_lane_while_many_wait_for_the_program() {
    const COUNT: usize = 2 * EVENTS_MAX;
    let mut fixture = Fixture::new(PortOptions::default());
    let mut fake = fixture.meet();
    (0..COUNT).for_each(|_| fake.queue(Lane::Low, b""));
    fixture.exchange_until(&mut fake, |_, fake| fake.connection.is_drained());
    fixture.port.remote_has_ended(fake.peer.index, End::PeerEnded);
    let waiting = fixture.port.resources.events.len();
    assert!(waiting <= EVENTS_MAX, "{waiting} events wait");
    fake.queue(Lane::High, b"after its end");
    fake.transmit();
    let mut count = 0;
    fixture.until(|_, event| match event {
        Some(Event::Message(message)) => {
            assert!(message.payload.is_empty(), "nothing counts that it sends after its end");
            count += 1;
            false
        }
        Some(Event::Disconnected { reason, .. }) => {
            assert_eq!((reason, count), (DisconnectReason::Died, COUNT));
            true
        }
        _ => false,
    });
}

#[test]
fn a_connect_waits_for_a_place_in_a_full_backlog_until_its_deadline() {
    let mut fixture = Fixture::new(PortOptions::default());
    fixture.node.set_backlog(1).expect("a listener");
    let path = fixture._directory.path().join(SOCKET_NAME);
    let others: Vec<_> = std::iter::from_fn(|| Socket::connect_entry(&path).ok()).take(100).collect();
    assert!(others.len() < 100, "the backlog is full");
    let address = "b/7".parse().expect("an address");
    let (began, timeout) = (Instant::now(), Duration::from_millis(500));
    let silent = ConnectError::NoFabric(NoFabric::Silent);
    assert_eq!(fixture.port.connect(&address, timeout), Err(silent));
    assert!(began.elapsed() >= timeout, "it has tried for {:?}", began.elapsed());
    let called = fixture.port.connect_start(&address).expect("it waits");
    until(|| {
        assert!(fixture.port.poll().is_none(), "it waits");
        let caller = fixture.node.accept().expect("accept");
        caller.is_some_and(|caller| matches!(requests(&caller)[..], [Request::Register { .. }]))
    });
    assert!(matches!(fixture.port.slots.peek(called), Some(Slot::Calling(_))));
}
