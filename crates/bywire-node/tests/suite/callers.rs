//! Hostile processes and unknown machines: none gets more of an answer than it should, and an honest port still gets its
//! connection.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use bywire_node::client::{self, ClientError};
use bywire_node::key;
use bywire_sys::Errno;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::udp::UdpSocket;
use bywire_testing::alone;
use bywire_testing::eventually;
use bywire_testing::here::is_root;
use bywire_testing::test_network::{self, FakePort, Machine, TIMEOUT, TestNetwork, call, introduction};
use bywire_wire::service::{self, NotInvited, Notice, PACKET_BYTES_MAX, Request, Unregistered, to_bytes};

/// The answer of the service to a packet on a new socket, which it then closes.
fn answer(machine: &Machine, packet: &[u8], descriptors: &[&dyn AsFd]) -> Option<Notice> {
    let socket = call(&machine.runtime());
    let descriptors: Vec<_> = descriptors.iter().map(|file| file.as_fd()).collect();
    socket.send(packet, &descriptors).expect("sent");
    let answer = next(&socket);
    if answer.is_some() {
        assert_eq!(next(&socket), None, "it closes");
    }
    answer
}

/// The next notice. `None`: the socket was closed.
fn next(socket: &Socket) -> Option<Notice> {
    eventually("an answer or an end", || {
        let mut packet = [0; PACKET_BYTES_MAX];
        match socket.receive(&mut packet) {
            Ok(Received::Packet(length, _)) => {
                Some(Some(service::from_bytes(&packet[..length]).expect("a notice")))
            }
            Ok(Received::Nothing) => None,
            Ok(Received::Closed) | Err(Errno::CONNRESET) => Some(None),
            Err(error) => panic!("{error}"),
        }
    })
}

fn meet(asking: &mut FakePort, asked: &mut FakePort, connection: u32) {
    let [ours, theirs] = asking.meet(connection, "b", asked, connection);
    assert!(ours.secret == theirs.secret);
}

#[test]
fn invalid_packets_and_descriptors_end_only_their_own_socket() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let udp = a.namespace.run(|| UdpSocket::bind_everywhere(0)).expect("inside").expect("bound");
    let elsewhere = UdpSocket::bind_everywhere(0).expect("bound");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("listen");
    let claim = |name: &str, udp_port| {
        to_bytes(&Request::Register {
            version: service::VERSION,
            port: name.to_owned(),
            incarnation: 7,
            is_reachable: true,
            udp_port,
            kept: Vec::new(),
            is_last: true,
        })
        .expect("it fits")
    };
    let refused = |reason| Some(Notice::Refused(reason));
    // This process owns the name, so every refusal has another reason.
    let spare = FakePort::unregistered(&a.runtime(), "spare", elsewhere);
    let good = claim("spare", 4000);
    assert_eq!(answer(a, b"?", &[]), refused(Unregistered::Malformed));
    assert_eq!(answer(a, &[0xff; PACKET_BYTES_MAX], &[]), refused(Unregistered::Malformed));
    assert_eq!(answer(a, &[0; PACKET_BYTES_MAX + 1], &[]), None, "too long to be answered");
    assert_eq!(answer(a, &good, &[]), refused(Unregistered::OtherNetwork));
    assert_eq!(answer(a, &good, &[&tcp]), refused(Unregistered::OtherNetwork));
    assert_eq!(answer(a, &good, &[&spare.udp]), refused(Unregistered::OtherNetwork));
    assert_eq!(answer(a, &good, &[&udp, &udp]), refused(Unregistered::OtherNetwork));
    assert_eq!(answer(a, &claim("nobody", 4000), &[&udp]), refused(Unregistered::Unverified));
    assert_eq!(answer(a, &claim("../asking", 4000), &[&udp]), refused(Unregistered::Malformed));
    assert_eq!(answer(a, &claim("spare", 0), &[&udp]), refused(Unregistered::Malformed));
    // The name of a registered port is taken.
    assert_eq!(answer(a, &claim("asking", 4000), &[&udp]), refused(Unregistered::Unverified));
    let early = to_bytes(&Request::Accept { offer: 1, introduction: introduction(1) }).expect("it fits");
    assert_eq!(answer(a, &early, &[]), refused(Unregistered::Malformed));
    meet(&mut asking, &mut asked, 1);
    // A registered port that changes its name is ended.
    let mut other = FakePort::open(a, "other");
    other.name = "another".to_owned();
    other.send(&other.registration(Vec::new()));
    assert_eq!(other.next(), Notice::Refused(Unregistered::Malformed));
    assert_eq!(other.next_within(TIMEOUT), None);
    // A caller that sends nothing is disconnected.
    let silent = call(&a.runtime());
    assert_eq!(next(&silent), None);
    meet(&mut asking, &mut asked, 2);
}

#[test]
fn echoes_are_of_other_nodes_and_for_programs_that_are_no_ports() {
    use bywire_wire::service::{NotPinged, VERSION};
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let ping = |version, node: &str, request| {
        let (node, bytes) = (node.to_owned(), 64);
        to_bytes(&Request::Ping { version, node, request, bytes }).expect("it fits")
    };
    let refused = |reason| Some(Notice::Refused(reason));
    assert_eq!(answer(a, &ping(VERSION + 1, "b", 1), &[]), refused(Unregistered::Version));
    let udp = UdpSocket::bind_everywhere(0).expect("bound");
    assert_eq!(answer(a, &ping(VERSION, "b", 1), &[&udp]), refused(Unregistered::Version));
    let socket = call(&a.runtime());
    for (node, reason) in [("nobody", NotPinged::UnknownNode), ("a", NotPinged::OwnNode)] {
        socket.send(&ping(VERSION, node, 7), &[]).expect("sent");
        assert_eq!(next(&socket), Some(Notice::NotPinged { request: 7, reason }));
    }
    // The first one waits for the channel.
    for request in 8..20 {
        socket.send(&ping(VERSION, "b", request), &[]).expect("sent");
        let Some(Notice::Pong { request: answered, address, .. }) = next(&socket) else { panic!("no reply") };
        assert_eq!((answered, address), (request, b.address));
    }
    // A program that waits in vain for a node, and ends.
    let lost = call(&a.runtime());
    lost.send(&ping(VERSION, "b", u32::MAX), &[]).expect("sent");
    drop(lost);
    // A port has other things to ask for, and loses its registration.
    let mut port = FakePort::open(a, "port");
    port.socket.send(&ping(VERSION, "b", 1), &[]).expect("sent");
    assert_eq!(port.next(), Notice::Refused(Unregistered::Version));
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    meet(&mut asking, &mut asked, 1);
}

#[test]
fn a_user_with_as_many_callers_as_it_may_have_is_told_so() {
    let Some(network) = TestNetwork::up(1) else { return };
    let [a] = &network.machines[..] else { unreachable!() };
    // More than 16 and a quarter of 4,096. They say nothing, and have gone after some seconds.
    bywire_sys::limits::raise_descriptor_limit(8192).expect("a caller here has two");
    let mut callers: Vec<Socket> = (0..1100).map(|_| call(&a.runtime())).collect();
    let last = callers.pop().expect("one of many");
    assert_eq!(next(&last), Some(Notice::Refused(Unregistered::NoResources)));
    assert_eq!(next(&last), None);
    let error = client::status(Some(&a.runtime())).expect_err("refused");
    assert!(matches!(error, ClientError::NoPlace), "{error}");
}

#[test]
fn names_that_are_too_long_to_be_passed_on_are_refused() {
    use bywire_wire::service::{End, Kept, NotConnected};
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let [ours, _] = asking.meet(1, "b", &mut asked, 1);
    // Together with the data that the service adds, these are longer than a packet.
    let longest = "x".repeat(PACKET_BYTES_MAX - 30);
    asking.connect(2, "b", &longest, 2);
    let reason = NotConnected::NoPort;
    assert_eq!(asking.next(), Notice::NotConnected { request: 2, reason });
    let long = "x".repeat(PACKET_BYTES_MAX - 100);
    let said = |port: &str, user: &str| {
        let (peer_port, peer_user) = (port.to_owned(), user.to_owned());
        vec![Kept { peer_port, peer_user, ..test_network::kept(3, &ours) }]
    };
    for kept in [said(&long, "u"), said("render", &long), said("render", "line\nbreak")] {
        asking.send(&asking.registration(kept));
        assert!(matches!(asking.next(), Notice::Registered { .. }));
        assert!(!a.status().is_empty());
        assert_eq!(asking.next(), Notice::Ended { connection: 3, reason: End::PeerReleased });
    }
    meet(&mut asking, &mut asked, 4);
}

#[test]
fn packets_from_unknown_nodes_get_no_answer_and_delay_nothing() {
    let Some(network) = TestNetwork::up(3) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let stranger = c.namespace.run(|| UdpSocket::bind_everywhere(0)).expect("inside").expect("bound");
    let target = b.address;
    let mut packet = [0; 1200];
    for round in 0..50_u32 {
        for _ in 0..200 {
            bywire_sys::process::random(&mut packet).expect("random numbers");
            // Every other packet begins like a hello, an answer, a cookie or data.
            packet[0] = if packet[1].is_multiple_of(2) { 0xb1 + packet[0] % 4 } else { packet[0] };
            packet[2..4].copy_from_slice(&1200_u16.to_le_bytes());
            // A packet without room is lost.
            let _ = stranger.send(Some(target), &packet);
        }
        meet(&mut asking, &mut asked, round + 1);
    }
    assert_eq!(stranger.receive(&mut packet), Ok(None), "an answer to a stranger");
    assert!(b.strangers("unrecognized") + b.strangers("without_key") > 0);
}

#[test]
fn a_service_of_root_vouches_for_each_user_by_name() {
    const USER: u32 = 3_999_999;
    if let Some(told) = std::env::var_os("BYWIRE_TEST_PORT") {
        let udp = UdpSocket::bind_everywhere(0).expect("bound");
        let runtime = std::path::Path::new(&told);
        // It may look, and changes nothing.
        assert!(client::status(Some(runtime)).is_ok());
        assert!(matches!(client::reload(Some(runtime)), Err(ClientError::NotAllowed)));
        assert!(matches!(client::invite(Some(runtime), runtime, "c"), Err(ClientError::NotAllowed)));
        let mut fake_port = FakePort::unregistered(runtime, "render", udp);
        fake_port.register(Vec::new());
        assert!(matches!(fake_port.next(), Notice::Registered { .. }));
        fake_port.accept(1);
        let _none = fake_port.next_within(std::time::Duration::from_secs(600));
        return;
    }
    let Some(network) = TestNetwork::without_services(2) else { return };
    if !is_root() {
        return;
    }
    let mut machines = network.machines;
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    open(machines[1].directory.path(), 0o755);
    open(&machines[1].runtime(), 0o1777);
    machines.iter_mut().for_each(Machine::start);
    let [a, b] = &machines[..] else { unreachable!() };
    // Other users may not be able to read the file of this test.
    let program = b.directory.path().join("program");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
    let runtime = b.runtime();
    let start = || {
        std::process::Command::new(&program)
            .args(alone("a_service_of_root_vouches_for_each_user_by_name"))
            .env("BYWIRE_TEST_PORT", &runtime)
            .current_dir("/")
            .stdout(std::process::Stdio::null())
            .uid(USER)
            .spawn()
            .expect("it starts")
    };
    let mut child = b.namespace.run(start).expect("inside");
    let has_port = |user: &str| {
        b.status().iter().any(|entry| {
            matches!(entry, service::status::Entry::Port(port) if port.name == "render" && port.user == user)
        })
    };
    // It has tried to change what the service does before.
    eventually("the other user's port", || has_port(&USER.to_string()));
    assert!(matches!(client::reload(Some(&runtime)), Ok(None)), "root may");
    let key_file = b.configuration().join(key::FILE_NAME);
    assert!(matches!(client::invite(Some(&runtime), &key_file, "c"), Ok(Err(NotInvited::NoKeeper))));
    let mut asking = FakePort::open(a, "asking");
    asking.connect(1, "b", "render", 1);
    let terms = asking.established();
    assert_eq!((terms.peer.port.as_str(), terms.peer.user), ("render", USER.to_string()));
    child.kill().expect("killed");
    child.wait().expect("waited for");
}
