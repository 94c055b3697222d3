//! What only links between machines have: names instead of numbers, a node, silence, and time at the end.

use std::time::{Duration, Instant};

use bywire::{
    Address, Admit, Confirm, ConnectError, DisconnectReason, Event, NoFabric, OpenError, Owner, Peer, Port,
    PortOptions, Priority, Reach, SendError,
};
use bywire_sys::poller::Poller;
use bywire_testing::actor::{Actor, Context};
use bywire_wire::keys::Security;
use rustix::process::Signal;

use super::port_pair::{At, Kind, Link};
use crate::fake_service::Behaviour;
use crate::ports::{MINUTE, PortDirectory, meet_at, message, name, next, pattern, until};

const SEALED: Kind = Kind::Udp(Security::Aes256Gcm);

fn behaviour() -> Behaviour {
    Security::Aes256Gcm.into()
}

fn address_of(node: &str, port: &Port) -> Address {
    Address { node: node.to_owned(), port: port.name().clone() }
}

/// A port that returns every message until it is told to stop.
pub fn echo(context: &mut Context) {
    let name = Some(name("echo"));
    let options = PortOptions { name, reach: Reach::Fabric, ..context.options() };
    let mut port = Port::open(options).expect("open");
    context.tell("ready");
    loop {
        match next(&mut port) {
            Event::Message(message) => {
                port.send(message.peer, message.priority, &message.payload).expect("room for one");
            }
            Event::Disconnected { .. } => return,
            _ => {}
        }
    }
}

/// Waits for the next event that is not room.
fn wait(port: &mut Port) -> Event {
    loop {
        match next(port) {
            Event::Room { .. } => {}
            event => return event,
        }
    }
}

/// Connects while the other port is served.
fn try_connect(a: &mut Port, b: &mut Port, address: &Address) -> Result<Peer, ConnectError> {
    let peer = a.connect_start(address)?;
    until(|| {
        b.poll();
        match a.wait(Some(Duration::from_millis(1))).expect("wait")? {
            Event::Connected(_) => Some(Ok(peer)),
            Event::Disconnected { reason: DisconnectReason::NotConnected(error), .. } => Some(Err(error)),
            other => panic!("{other:?}"),
        }
    })
}

/// Connects again and again until the other port is known.
fn until_known(a: &mut Port, b: &mut Port, address: &Address) {
    until(|| match try_connect(a, b, address) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, ConnectError::NoPort);
            false
        }
    });
}

#[test]
fn users_are_admitted_by_name() {
    for (admit, user, is_admitted) in [
        (Admit::SameUser, None, true),
        (Admit::SameUser, Some("root"), true),
        (Admit::SameUser, Some("somebody"), false),
        (Admit::SameUser, Some("0"), false),
        (Admit::Everyone, Some("somebody"), true),
        (Admit::Group(0), Some("somebody"), false),
    ] {
        let link = Link::with(SEALED, behaviour(), user);
        let options = PortOptions { admit, ..PortOptions::default() };
        let (mut a, mut b) = (link.open(At::A, &options), link.open(At::B, &options));
        let address = address_of("b", &b);
        let outcome = try_connect(&mut a, &mut b, &address);
        assert_eq!(outcome.is_ok(), is_admitted, "{admit:?} {user:?}");
        if let Err(error) = outcome {
            assert_eq!(error, ConnectError::NotAdmitted);
            continue;
        }
        until(|| {
            assert!(a.poll().is_none());
            b.poll();
            b.peers().next().is_some()
        });
        let peer = b.peers().next().expect("it is there");
        let info = b.peer_info(peer).expect("connected");
        assert_eq!((info.address.node.as_str(), info.uid(), info.pid()), ("a", None, None));
        assert!(matches!(&info.owner, Owner::Remote { user: name } if user.is_none_or(|user| user == name)));
    }
}

#[test]
fn an_unreachable_address_is_named() {
    let link = Link::new(SEALED);
    let (mut a, mut b) =
        (link.open(At::A, &PortOptions::default()), link.open(At::B, &PortOptions::default()));
    let mut connect = |address: &str| try_connect(&mut a, &mut b, &address.parse().expect("an address"));
    assert_eq!(connect("c/7"), Err(ConnectError::UnknownNode));
    assert_eq!(connect("b/7"), Err(ConnectError::NoPort));
    // The node's name is our own machine's.
    assert_eq!(connect("a/7"), Err(ConnectError::NoPort));
    let mut neighbour = link.open(At::A, &PortOptions::default());
    let address = address_of("a", &neighbour);
    let peer = try_connect(&mut a, &mut neighbour, &address).expect("through shared memory");
    assert!(matches!(a.peer_info(peer).expect("connected").owner, Owner::Local { .. }));
    // For other machines a port without `Reach::Fabric` does not exist.
    let place = PortDirectory::new();
    let reach = Reach::Machine;
    let hidden = Port::open(PortOptions {
        reach,
        ..PortOptions { runtime_directory: Some(link.directory(At::B).to_owned()), ..PortOptions::default() }
    });
    let hidden = hidden.expect("open");
    assert_eq!(try_connect(&mut a, &mut b, &address_of("b", &hidden)), Err(ConnectError::NoPort));
    // Where no node runs.
    let mut alone = place.open(PortOptions::default());
    let error = alone.connect(&"b/7".parse().expect("an address"), MINUTE);
    assert_eq!(error, Err(ConnectError::NoFabric(NoFabric::NotRunning)));
    let options = PortOptions { reach: Reach::Fabric, ..place.options() };
    assert_eq!(Port::open(options).err(), Some(OpenError::Fabric(NoFabric::NotRunning)));
}

#[test]
fn a_blocked_network_is_reported_with_both_ports() {
    let link = Link::with(SEALED, Behaviour { is_blocked: true, ..behaviour() }, None);
    let (mut a, mut b) =
        (link.open(At::A, &PortOptions::default()), link.open(At::B, &PortOptions::default()));
    let address = address_of("b", &b);
    let over = std::sync::atomic::AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: nothing else depends on it.
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let event = b.wait(Some(Duration::from_millis(10))).expect("wait");
                assert!(event.is_none(), "whoever has not proved itself is nobody");
            }
        });
        // On a busy machine the nodes may take most of the time.
        let mut outcomes = (0..20).map(|_| a.connect(&address, Duration::from_secs(3)));
        let outcome = outcomes.find(|outcome| !matches!(outcome, Err(ConnectError::TimedOut)));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome
    });
    assert!(matches!(outcome, Some(Err(ConnectError::Blocked { here: 1.., there: 9 }))), "{outcome:?}");
}

#[test]
fn a_killed_process_is_reported_and_a_stopped_one_is_not() {
    let link = Link::new(SEALED);
    let mut echo = Actor::start("link echo", link.directory(At::B), &[]);
    echo.expect("ready");
    let options = PortOptions { unreachable_after: Duration::from_secs(2), ..PortOptions::default() };
    let mut a = link.open(At::A, &options);
    let peer = a.connect(&"b/echo".parse().expect("an address"), MINUTE).expect("connect");
    let ask = |a: &mut Port, text: &[u8]| {
        a.send(peer, Priority::High, text).expect("room");
        match wait(a) {
            Event::Message(message) => assert_eq!(&message.payload[..], text),
            other => panic!("{other:?}"),
        }
    };
    ask(&mut a, b"before");
    // Silent for several times as long as an unconfirmed peer may be.
    echo.signal(Signal::STOP);
    let stopped = rustix::process::waitpid(Some(echo.pid()), rustix::process::WaitOptions::UNTRACED);
    assert!(stopped.expect("our child").is_some_and(|(_, status)| status.stopped()));
    a.send(peer, Priority::High, b"are you there?").expect("room");
    let event = a.wait(Some(Duration::from_secs(5))).expect("wait");
    assert!(event.is_none(), "{event:?} of a stopped process");
    echo.signal(Signal::CONT);
    assert!(matches!(wait(&mut a), Event::Message(message) if &message.payload[..] == b"are you there?"));
    ask(&mut a, b"after");
    a.send_buffer(peer, Priority::Low, vec![7; 1 << 20], Confirm::Delivered).expect("token");
    echo.kill();
    match wait(&mut a) {
        Event::Sent { result: Err(_), buffer, .. } => assert_eq!(buffer.as_ref().len(), 1 << 20),
        other => panic!("{other:?}, and its memory has not come back"),
    }
    let event = wait(&mut a);
    assert!(matches!(event, Event::Disconnected { reason: DisconnectReason::Died, .. }), "{event:?}");
    let gone = SendError::Disconnected(DisconnectReason::Died);
    assert_eq!(a.send(peer, Priority::Low, b"x"), Err(gone));
}

#[test]
fn a_peer_silent_beyond_the_limit_is_given_up() {
    let link = Link::with(SEALED, Behaviour { is_ignorant: true, ..behaviour() }, None);
    let options = PortOptions { unreachable_after: Duration::from_millis(500), ..PortOptions::default() };
    let pair = link.meet(&options);
    let (mut a, to_b, _b) = (pair.a, pair.to_b, pair.b);
    a.send(to_b, Priority::Low, b"are you there?").expect("room");
    match wait(&mut a) {
        Event::Disconnected { reason, .. } => assert_eq!(reason, DisconnectReason::Unreachable),
        other => panic!("{other:?}"),
    }
}

#[test]
fn disconnecting_and_dropping_wait_for_delivery_of_sent_messages() {
    let link = Link::new(SEALED);
    let data = pattern(1 << 20, 9);
    for is_dropped in [false, true] {
        let pair = link.meet(&PortOptions { linger: MINUTE, ..PortOptions::default() });
        let (mut a, to_b, mut b, to_a) = (pair.a, pair.to_b, pair.b, pair.to_a);
        b.post_receive(Priority::Low, vec![0; 1 << 20]).expect("token");
        a.send_buffer(to_b, Priority::Low, data.clone(), Confirm::Copied).expect("token");
        let sender = std::thread::spawn(move || {
            if is_dropped {
                return drop(a);
            }
            a.disconnect(to_b);
            assert_eq!(
                a.send(to_b, Priority::Low, b"x"),
                Err(SendError::Disconnected(DisconnectReason::Here))
            );
            assert_eq!(a.peers().count(), 0);
            assert!(matches!(wait(&mut a), Event::Sent { result: Ok(()), .. }));
            let end = wait(&mut a);
            assert!(matches!(end, Event::Disconnected { reason: DisconnectReason::Here, .. }), "{end:?}");
        });
        assert!(matches!(wait(&mut b), Event::Message(message) if message.payload[..] == data));
        match wait(&mut b) {
            Event::Disconnected { peer, reason } => {
                assert_eq!((peer, reason), (to_a, DisconnectReason::Closed));
            }
            other => panic!("{other:?}"),
        }
        sender.join().expect("it ends");
    }
}

#[test]
fn lingering_takes_a_bounded_time() {
    let link = Link::new(SEALED);
    let linger = Duration::from_millis(300);
    let pair = link.meet(&PortOptions { linger, ..PortOptions::default() });
    let (mut a, to_b, _b) = (pair.a, pair.to_b, pair.b);
    // The other end takes no call, so nothing is acknowledged.
    a.send(to_b, Priority::Low, b"unheard").expect("room");
    let start = Instant::now();
    drop(a);
    let took = start.elapsed();
    assert!((linger..linger + Duration::from_secs(20)).contains(&took), "{took:?}");
}

#[test]
fn connections_outlive_their_nodes_and_are_registered_with_the_next_ones() {
    let mut link = Link::new(SEALED);
    let mut pair = link.meet(&PortOptions::default());
    link.restart(None);
    for text in [b"without", b"anybody"] {
        pair.a.send(pair.to_b, Priority::High, text).expect("room");
        assert_eq!(&pair.message(At::B)[..], text);
    }
    let refused = pair.a.connect(&"b/7".parse().expect("an address"), MINUTE);
    assert!(matches!(refused, Err(ConnectError::NoFabric(_))), "{refused:?}");
    link.restart(Some(behaviour()));
    // Both register again by themselves, after a second or two.
    let mut other = link.open(At::A, &PortOptions::default());
    let address = address_of("b", &pair.b);
    until_known(&mut other, &mut pair.b, &address);
    pair.a.send(pair.to_b, Priority::High, b"still there").expect("room");
    loop {
        match pair.next(At::B) {
            Event::Message(message) => break assert_eq!(&message.payload[..], b"still there"),
            // The other one has proved itself only now.
            Event::Connected(_) => {}
            unexpected => panic!("{unexpected:?}"),
        }
    }
}

#[test]
fn a_connect_that_fails_while_the_node_is_away_does_not_stop_the_port_from_registering_again() {
    let mut link = Link::new(SEALED);
    let mut port = link.open(At::A, &PortOptions::default());
    let address = address_of("a", &port);
    link.restart(None);
    // The first one may be refused before the port has found out that the node has gone.
    for _ in 0..2 {
        let refused = port.connect(&"b/7".parse().expect("an address"), MINUTE);
        assert!(matches!(refused, Err(ConnectError::NoFabric(_))), "{refused:?}");
        assert!(port.wait(Some(Duration::from_millis(10))).expect("wait").is_none());
    }
    link.restart(Some(behaviour()));
    let mut other = link.open(At::B, &PortOptions::default());
    until_known(&mut other, &mut port, &address);
}

/// The end of one peer makes a port read its socket before it knows that another one has proved itself.
#[test]
fn messages_in_a_peers_first_packet_are_delivered_while_another_peer_ends() {
    let link = Link::new(SEALED);
    let mut b = link.open(At::B, &PortOptions::default());
    let address = address_of("b", &b);
    let mut echo = Actor::start("link echo", link.directory(At::A), &[]);
    echo.expect("ready");
    let ended = b.connect(&"a/echo".parse().expect("an address"), MINUTE).expect("connect");
    let mut a = link.open(At::A, &PortOptions::default());
    let to_b = a.connect_start(&address).expect("connect");
    // This end agrees, and then sends again and again without a look at its socket: it awaits the other's first packet.
    assert!(b.wait(Some(Duration::from_millis(300))).expect("wait").is_none());
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let _ = b.arm();
        match a.wait(Some(Duration::from_millis(20))).expect("wait") {
            Some(event) => {
                break assert!(matches!(event, Event::Connected(peer) if peer == to_b), "{event:?}");
            }
            // On a machine too slow for this, it is not that end alone which is looked at.
            None if Instant::now() > deadline => drop(b.wait(Some(Duration::from_millis(1)))),
            None => {}
        }
    }
    a.send(to_b, Priority::High, b"first").expect("room");
    a.flush();
    echo.kill();
    // The node tells of the end meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    let (mut is_delivered, mut is_over) = (false, false);
    until(|| {
        a.poll();
        match b.poll() {
            Some(Event::Message(message)) => is_delivered = &message.payload[..] == b"first",
            Some(Event::Disconnected { peer, .. }) => is_over = peer == ended,
            _ => {}
        }
        is_delivered && is_over
    });
}

#[test]
fn sleepers_are_woken_in_wait_and_in_the_programs_own_epoll() {
    let link = Link::new(SEALED);
    let pair = link.meet(&PortOptions { spin: Duration::ZERO, ..PortOptions::default() });
    let (mut a, to_b, mut b, to_a) = (pair.a, pair.to_b, pair.b, pair.to_a);
    let answering = std::thread::spawn(move || {
        let mut poller = Poller::new().expect("epoll");
        poller.add(&b, 1).expect("watched");
        loop {
            while let Some(event) = b.poll() {
                match event {
                    Event::Message(message) => {
                        b.send(to_a, message.priority, &message.payload).expect("room for one");
                    }
                    Event::Disconnected { .. } => return,
                    _ => {}
                }
            }
            if b.arm() {
                assert_eq!(poller.wait(Some(MINUTE)).expect("wait"), [1], "woken");
            }
        }
    });
    for number in 0..200u32 {
        if number % 50 == 0 {
            // Long enough that both ends sleep and nothing is under way.
            std::thread::sleep(Duration::from_millis(20));
        }
        a.send(to_b, Priority::Low, &number.to_le_bytes()).expect("room");
        match wait(&mut a) {
            Event::Message(message) => assert_eq!(message.payload[..], number.to_le_bytes()),
            other => panic!("{other:?}"),
        }
    }
    assert!(a.statistics().sleeps >= 4);
    drop(a);
    answering.join().expect("it ends");
}

/// The UDP ports of this process's sockets. `None` if they are not of IPv6, after that has been printed.
fn udp_ports() -> Option<Vec<u16>> {
    let own = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let own: Vec<_> = own.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    let is_own = |inode: &str| own.iter().any(|link| link.as_os_str() == &*format!("socket:[{inode}]"));
    let sockets = std::fs::read_to_string("/proc/self/net/udp6").expect("procfs");
    let port = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let port = u16::from_str_radix(words.get(1)?.split(':').nth(1)?, 16).ok()?;
        words.get(9).is_some_and(|inode| is_own(inode)).then_some(port)
    };
    let ports: Vec<_> = sockets.lines().skip(1).filter_map(port).collect();
    if ports.is_empty() {
        println!("not run: without IPv6 the ports' sockets are elsewhere");
    }
    (!ports.is_empty()).then_some(ports)
}

/// Unread packets would wake a sleeper again and again.
#[test]
fn a_port_without_peers_stays_asleep_after_a_packet_of_an_unknown_sender() {
    let link = Link::new(SEALED);
    let mut port = link.open(At::A, &PortOptions { spin: Duration::ZERO, ..PortOptions::default() });
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
    let Some(ports) = udp_ports() else { return };
    for udp_port in ports {
        let _ = stranger.send_to(&[0xb4; 16], ("127.0.0.1", udp_port));
    }
    let before = port.statistics().sleeps;
    assert!(port.wait(Some(Duration::from_millis(500))).expect("wait").is_none());
    // One for the packet, and one for the rest of the time.
    let sleeps = port.statistics().sleeps - before;
    assert!((1..2000).contains(&sleeps), "{sleeps} sleeps in half a second");
}

/// Packets with arbitrary contents change nothing.
#[test]
fn packets_of_unknown_senders_change_nothing() {
    let link = Link::new(SEALED);
    let mut pair = link.meet(&PortOptions::default());
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
    let Some(ports) = udp_ports() else { return };
    for round in 0..50u8 {
        for port in &ports {
            for bytes in [
                &[][..],
                &[round; 1],
                &[0xb4; 16],
                &pattern(1400, round.into()),
                &[0xb4, 0, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            ] {
                let _ = stranger.send_to(bytes, ("127.0.0.1", *port));
            }
        }
        pair.a.send(pair.to_b, Priority::Low, &pattern(1000, round.into())).expect("room");
        assert_eq!(&pair.message(At::B)[..], pattern(1000, round.into()));
    }
}

#[test]
fn many_peers_at_once_each_get_their_own_messages() {
    let link = Link::new(SEALED);
    let mut hub = link.open(At::B, &PortOptions::default());
    let address = address_of("b", &hub);
    let mut ends = Vec::new();
    for _ in 0..20 {
        let mut port = link.open(At::A, &PortOptions::default());
        let (to_hub, to_port) = meet_at(&mut port, &mut hub, &address);
        ends.push((port, to_hub, to_port));
    }
    for (number, (_, _, to_port)) in ends.iter().enumerate() {
        hub.send(*to_port, Priority::Low, &pattern(500, number)).expect("room");
    }
    for (number, (port, _, _)) in ends.iter_mut().enumerate() {
        assert_eq!(message(port, &mut hub).payload[..], pattern(500, number));
    }
}
