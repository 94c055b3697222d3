//! `bywire eth up --fabric`: interfaces of several machines on one segment, as root in network namespaces.

#[path = "../../bywire-node/tests/test_network/mod.rs"]
mod test_network;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywire::{Address, DisconnectReason, Event, Geometry, LaneGeometry, Peer, Port, PortOptions, Priority};
use bywire_eth::address::MacAddress;
use bywire_eth::fabric::PEERS_MAX;
use bywire_eth::network::port_names;
use bywire_sys::namespace::Namespace;
use serde_json::Value;
use test_network::{Machine, TIMEOUT, TestNetwork, eventually};

/// `bywire eth up --fabric` inside a machine, killed when dropped.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        // Both fail only when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bywire(machine: &Machine, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command.args(arguments).env("BYWIRE_RUNTIME_DIR", machine.runtime()).env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::null());
    command
}

/// Gives a machine the interface `by0` with an address that ends with `number`.
fn up(machine: &Machine, number: u8, more: &[&str]) -> Up {
    let interface = format!("-:by0=10.77.0.{number}/24,fd77::{number}/64");
    let interface = if more.contains(&"96") { format!("-:by0=10.77.0.{number}/24") } else { interface };
    up_by(machine, &[&["--interface", &interface][..], more].concat())
}

/// Runs `bywire eth up --fabric` with these arguments inside a machine.
fn up_by(machine: &Machine, arguments: &[&str]) -> Up {
    let mut command = bywire(machine, &[&["eth", "up", "--fabric"][..], arguments].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = machine.namespace.run(|| command.spawn()).expect("inside").expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    match lines.next() {
        Some(line) => assert!(line.expect("a line").contains("by0 02:")),
        None => {
            let mut said = String::new();
            let _closed = child.stderr.take().expect("piped").read_to_string(&mut said);
            panic!("it did not begin: {said}");
        }
    }
    std::thread::spawn(move || lines.for_each(drop));
    Up(child)
}

fn status(machine: &Machine) -> Value {
    let done = bywire(machine, &["eth", "status", "--json"]).output().expect("it runs");
    serde_json::from_slice::<Value>(&done.stdout).expect("JSON")[0].clone()
}

/// The status of a peer on another machine, once it has introduced an interface.
fn peer_of(machine: &Machine, other: &str) -> Option<Value> {
    let peers = status(machine)["peers"].as_array().cloned().unwrap_or_default();
    peers.into_iter().find(|peer| peer["machine"] == other && peer["interfaces_count"] != 0)
}

/// Machines with an interface each, on one segment.
fn segment(count: usize, is_encrypted: bool, more: &[&str]) -> Option<(TestNetwork, Vec<Up>)> {
    if let Err(error) = std::fs::metadata("/dev/net/tun") {
        println!("not run: no TAP device can be made here (/dev/net/tun: {error}): `modprobe tun`");
        return None;
    }
    let network = TestNetwork::up_with(count, is_encrypted)?;
    let ups = network.machines.iter().zip(1..).map(|(machine, number)| up(machine, number, more)).collect();
    await_all(&network);
    Some((network, ups))
}

/// Waits until every machine knows the interfaces of every other one.
fn await_all(network: &TestNetwork) {
    for machine in &network.machines {
        let mut others = network.machines.iter().filter(|other| other.name != machine.name);
        eventually("the machines meet", || {
            others.clone().all(|other| peer_of(machine, &other.name).is_some())
        });
        assert!(others.next().is_some());
    }
}

fn address(number: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, number], port))
}

/// A TCP connection from a machine to the machine with an address.
fn connected(from: &Machine, to: &Machine, address: SocketAddr) -> (TcpStream, TcpStream) {
    connected_in(&from.namespace, &to.namespace, address)
}

/// The same between two namespaces.
fn connected_in(from: &Namespace, to: &Namespace, address: SocketAddr) -> (TcpStream, TcpStream) {
    let bind = || {
        let mut bound = None;
        // An IPv6 address is tentative at first.
        eventually("the address", || {
            bound = TcpListener::bind(address).ok();
            bound.is_some()
        });
        bound.expect("bound")
    };
    let listener = to.run(bind).expect("inside");
    let connect = || TcpStream::connect_timeout(&address, TIMEOUT).expect("connected");
    let near = from.run(connect).expect("inside");
    let (far, _) = listener.accept().expect("accepted");
    for end in [&near, &far] {
        end.set_read_timeout(Some(TIMEOUT)).expect("set");
        end.set_write_timeout(Some(TIMEOUT)).expect("set");
    }
    (near, far)
}

fn bytes_of(length: usize) -> Vec<u8> {
    (0..length).map(|index| ((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// Sends bytes in both directions, and compares them.
fn exchange(near: &TcpStream, far: &TcpStream, length: usize) {
    let bytes = bytes_of(length);
    std::thread::scope(|scope| {
        for (mut from, mut to) in [(near, far), (far, near)] {
            let bytes = &bytes;
            scope.spawn(move || from.write_all(bytes).expect("sent"));
            scope.spawn(move || {
                let mut received = vec![0; bytes.len()];
                to.read_exact(&mut received).expect("received");
                assert!(received == *bytes, "a byte is wrong");
            });
        }
    });
}

fn drops(machine: &Machine, other: &str, cause: &str) -> u64 {
    peer_of(machine, other).map_or(0, |peer| peer["drops"][cause].as_u64().unwrap_or(0))
}

#[test]
fn streams_and_datagrams_cross_between_machines_encrypted_and_plain() {
    for is_encrypted in [true, false] {
        let Some((network, _ups)) = segment(2, is_encrypted, &[]) else { return };
        let [a, b] = &network.machines[..] else { unreachable!() };
        let (near, far) = connected(a, b, address(2, 7000));
        let began = Instant::now();
        exchange(&near, &far, 64 << 20);
        println!("64 MiB each way, encrypted {is_encrypted}: {:?}", began.elapsed());
        // An IPv6 address is tentative at first, and is no source of a connection then.
        let is_settled = || UdpSocket::bind("[fd77::2]:0").is_ok();
        b.namespace.run(|| eventually("the address", is_settled)).expect("inside");
        let v6 = "[fd77::1]:7001".parse().expect("an address");
        let (near, far) = connected(b, a, v6);
        exchange(&near, &far, 1 << 20);
        let shown = status(a);
        assert_eq!((&shown["machine"], &shown["interfaces"][0]["mtu"]), (&"a".into(), &1350.into()));
        assert!(shown["interfaces"][0]["received"]["superframes"].as_u64() > Some(0), "not merged: {shown}");
        let peer = peer_of(a, "b").expect("it is connected");
        assert_eq!(peer["drops"]["illegal"], Value::Null, "{peer}");
        let carrier = &shown["carriers"][0];
        assert_eq!(
            (&carrier["capabilities"], &carrier["seccomp"]),
            (&"0000000000000000".into(), &true.into())
        );
        let [one, other] = [(a, 1), (b, 2)].map(|(machine, number)| {
            machine.namespace.run(|| UdpSocket::bind(address(number, 7002))).expect("inside").expect("bound")
        });
        other.set_read_timeout(Some(TIMEOUT)).expect("set");
        // Longer than any packet of the path, in fragments.
        let long = bytes_of(20_000);
        one.send_to(&long, address(2, 7002)).expect("sent");
        let mut buffer = vec![0; 65_536];
        let (length, _) = other.recv_from(&mut buffer).expect("received");
        assert!(buffer[..length] == long[..]);
        one.set_broadcast(true).expect("set");
        let everybody = b.namespace.run(|| UdpSocket::bind("0.0.0.0:7003")).expect("inside").expect("bound");
        everybody.set_read_timeout(Some(TIMEOUT)).expect("set");
        one.send_to(b"everybody", address(255, 7003)).expect("sent");
        assert_eq!(everybody.recv_from(&mut buffer).expect("received").0, 9);
    }
}

#[test]
fn any_mtu_works_whatever_the_path_carries() {
    for mtu in ["96", "1280", "1500", "9000"] {
        let Some((network, _ups)) = segment(2, true, &["--mtu", mtu]) else { return };
        let [a, b] = &network.machines[..] else { unreachable!() };
        let (near, far) = connected(a, b, address(2, 7000));
        exchange(&near, &far, if mtu == "96" { 20_000 } else { 2 << 20 });
    }
}

#[test]
fn a_connection_survives_restarts_of_the_far_process_and_of_both_services() {
    let Some((mut network, mut ups)) = segment(2, true, &[]) else { return };
    let (near, far) = connected(&network.machines[0], &network.machines[1], address(2, 7000));
    exchange(&near, &far, 1 << 20);
    // Killed, with the interface. Its address comes back with the next one.
    ups.pop();
    let before = Instant::now();
    ups.push(up(&network.machines[1], 2, &[]));
    exchange(&near, &far, 1 << 20);
    println!("a restart of the far process took {:?}", before.elapsed());
    for machine in &mut network.machines {
        machine.stop();
        machine.start();
    }
    exchange(&near, &far, 1 << 20);
    let registered = |machine: &Machine| {
        let found = machine.status().into_iter();
        found.filter(|entry| format!("{entry:?}").contains("eth.default.")).count() >= 2
    };
    eventually("the carriers register again", || network.machines.iter().all(registered));
    exchange(&near, &far, 1 << 20);
}

#[test]
fn a_removed_node_is_cut_off_within_a_second_and_the_others_go_on() {
    let Some((network, _ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let (near, far) = connected(a, b, address(2, 7000));
    let (cut, mut far_of_cut) = connected(c, a, address(1, 7000));
    let mut fabric = network.fabric();
    fabric.nodes.retain(|node| node.name != "c");
    fabric.serial = 2;
    for machine in [a, b] {
        machine.write(&fabric);
        machine.reload();
        let began = Instant::now();
        eventually("the node is gone", || peer_of(machine, "c").is_none());
        println!("{} cut it off after {:?}", machine.name, began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(1) || cfg!(debug_assertions), "{:?}", began.elapsed());
    }
    exchange(&near, &far, 1 << 20);
    // It does not know, and sends on.
    (&cut).write_all(&[7; 10_000]).expect("its own kernel takes it");
    far_of_cut.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    let error = far_of_cut.read(&mut [0; 1]).expect_err("nothing comes");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    // It may come back.
    for machine in [a, b] {
        machine.write(&network.fabric());
        machine.reload();
    }
    await_all(&network);
    exchange(&near, &far, 1 << 20);
}

#[test]
fn a_machine_that_moves_to_another_address_keeps_its_connections() {
    let Some((mut network, _ups)) = segment(3, true, &[]) else { return };
    let (near, far) = connected(&network.machines[0], &network.machines[1], address(2, 7000));
    let (other, its) = connected(&network.machines[0], &network.machines[2], address(3, 7000));
    exchange(&near, &far, 1 << 20);
    let b = &mut network.machines[1];
    test_network::ip(&b.namespace, &format!("address del {}/24 dev eth0", b.address.ip()));
    b.address.set_ip([10, 78, 0, 77].into());
    b.configure_interface();
    let began = Instant::now();
    exchange(&near, &far, 1 << 20);
    println!("it went on after {:?}", began.elapsed());
    exchange(&other, &its, 1 << 20);
}

#[test]
fn hosts_behind_the_bridge_of_a_machine_are_reached_if_the_fabric_file_permits_it() {
    let Some((network, mut ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    // A host with an address of its own is behind a bridge of b, as a virtual machine would be.
    let host = Namespace::fresh().expect("another one");
    test_network::ip(&b.namespace, "link add br1 type bridge");
    test_network::ip(&b.namespace, "link set br1 up");
    test_network::ip(
        &b.namespace,
        &format!("link add host type veth peer name eth0 netns {}", test_network::path(&host)),
    );
    test_network::ip(&b.namespace, "link set host master br1 up");
    for step in ["link set lo up", "address add 10.77.0.50/24 dev eth0", "link set eth0 mtu 1350 up"] {
        test_network::ip(&host, step);
    }
    ups.remove(1);
    let arguments = ["--interface", "-:by0", "--bridge", "br1"];
    let refused =
        bywire(b, &[&["eth", "up", "--fabric"][..], &arguments].concat()).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("`bridge = true` to the node b") && refused.status.code() == Some(2), "{said}");
    let permit = |is_bridge, serial| {
        let mut fabric = network.fabric();
        fabric.serial = serial;
        fabric.nodes[1].is_bridge = is_bridge;
        for machine in &network.machines {
            machine.write(&fabric);
            machine.reload();
        }
    };
    permit(true, 2);
    ups.push(up_by(b, &arguments));
    await_all(&network);
    let (near, far) = connected_in(&a.namespace, &host, address(50, 7000));
    exchange(&near, &far, 1 << 20);
    let (from_host, its) = connected_in(&host, &c.namespace, address(3, 7000));
    exchange(&from_host, &its, 1 << 20);
    // The host cannot pass for a machine, though its frames come from a bridge.
    let refused = || status(b)["interfaces"][0]["drops"]["foreign_source"].as_u64().unwrap_or(0);
    let before = refused();
    let own = status(a)["peers"].as_array().and_then(|peers| {
        let c = peers.iter().find(|peer| peer["machine"] == "c")?;
        Some(c["interfaces"][0]["mac"].as_str()?.to_owned())
    });
    test_network::ip(&host, &format!("link set eth0 address {}", own.expect("c has introduced itself")));
    host.run(|| drop(TcpStream::connect_timeout(&address(1, 7009), Duration::from_millis(300))))
        .expect("inside");
    assert!(refused() > before, "{}", status(b));
    // Without the permission nothing passes any more.
    let before = drops(c, "b", "foreign_source");
    permit(false, 3);
    let (from_host, its) = (&from_host, &its);
    its.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    test_network::ip(&host, "link set eth0 address 02:00:00:00:00:50");
    eventually("its frames are dropped", || {
        let _ = { from_host }.write_all(b"more");
        drops(c, "b", "foreign_source") > before
    });
}

/// A member of the fabric that speaks as a carrier, and sends whatever the test decides.
struct Member {
    port: Port,
    peer: Peer,
}

impl Member {
    /// Joins from a machine, and connects to the carrier of another one.
    fn join(machine: &Machine, target: &str) -> Self {
        let small = LaneGeometry { slots: 64, bulk_bytes: 262_144 };
        let options = PortOptions {
            name: Some(port_names("default", &machine.name, 1)[0].parse().expect("a name")),
            message_bytes_max: 65_472,
            peers_max: 1024,
            geometry: Geometry { lanes: [small; 3], fragment_bytes: 65_472 },
            runtime_directory: Some(machine.runtime()),
            ..PortOptions::default()
        };
        let open = || {
            let mut port = Port::open(options).expect("open");
            let name = port_names("default", target, 1).remove(0).parse().expect("a name");
            let peer =
                port.connect(&Address { node: target.to_owned(), port: name }, TIMEOUT).expect("there");
            Self { port, peer }
        };
        machine.namespace.run(open).expect("inside")
    }

    /// Connects so often once more, and introduces none of these connections.
    fn connect_again(&mut self, target: &str, count: usize) {
        let name = port_names("default", target, 1).remove(0).parse().expect("a name");
        let address = Address { node: target.to_owned(), port: name };
        let deadline = Instant::now() + TIMEOUT;
        let (mut begun, mut settled) = (0, 0);
        while settled < count {
            assert!(Instant::now() < deadline, "{settled} of {count}");
            // The service takes 64 requests of a port at a time.
            if begun < count.min(settled + 32) && self.port.connect_start(&address).is_ok() {
                begun += 1;
            }
            match self.port.poll() {
                Some(Event::Connected(_)) => settled += 1,
                Some(Event::Disconnected { reason: DisconnectReason::NotConnected(_), .. }) => settled += 1,
                Some(Event::Message(message) | Event::Datagram(message)) => {
                    self.port.recycle(message.payload)
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Introduces itself as a node, with an interface of each address.
    fn introduce(&mut self, node: &str, macs: &[MacAddress]) {
        let interface = |mac: &MacAddress| serde_json::json!({ "label": format!("-:{mac}"), "mac": mac.0, "mtu_bytes": 1500 });
        let interfaces: Vec<_> = macs.iter().map(interface).collect();
        let said = serde_json::json!({
            "version": 2, "node": node, "interfaces": interfaces, "is_first": true, "is_last": true,
        });
        self.port.send(self.peer, Priority::High, said.to_string().as_bytes()).expect("sent");
        self.port.flush();
    }

    fn send(&mut self, datagram: &[u8]) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.port.send_datagram(self.peer, Priority::Low, datagram).expect("connected") {
            self.serve();
            assert!(Instant::now() < deadline, "there is no room");
        }
        self.port.flush();
    }

    /// Serves the port for a moment.
    fn serve(&mut self) {
        for _ in 0..50 {
            match self.port.poll() {
                Some(Event::Message(message) | Event::Datagram(message)) => {
                    self.port.recycle(message.payload)
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
}

#[test]
fn a_member_that_forges_addresses_or_sends_garbage_is_dropped_and_counted() {
    let Some((network, mut ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    // A program takes the place of the carrier of c.
    drop(ups.pop());
    eventually("it has ended", || peer_of(a, "c").is_none());
    let mut member = Member::join(c, "a");
    let mac_of = |machine: &Machine| -> MacAddress {
        let shown = status(machine);
        shown["interfaces"][0]["mac"].as_str().expect("text").parse().expect("an address")
    };
    let (mac_a, mac_b) = (mac_of(a), mac_of(b));
    let own = MacAddress::of_place("default", "c", 0);
    let foreign = MacAddress([2, 1, 2, 3, 4, 5]);
    // Its own address is taken. Those of others are not, whether in use or not.
    member.introduce("b", &[own, mac_b, foreign, MacAddress::of_place("default", "d", 0)]);
    let mut peer = Value::Null;
    eventually("it is known", || {
        member.serve();
        peer = peer_of(a, "c").unwrap_or_default();
        peer["interfaces_count"] == 4
    });
    assert_eq!((&peer["node"], peer["conflicts"].as_array().map(Vec::len)), (&"c".into(), Some(3)), "{peer}");
    let frame = |target: MacAddress, source: MacAddress| {
        [&[0; 8][..], &target.0, &source.0, &[0x88, 0xB5], &[7; 50]].concat()
    };
    let before = status(a)["interfaces"][0]["received"]["frames"].as_u64();
    for source in [mac_a, mac_b, foreign, MacAddress::BROADCAST] {
        member.send(&frame(mac_a, source));
    }
    // An address that b has announced, in a packet and in an answer of ARP.
    let packet = |ip: u8| {
        let header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, ip, 10, 77, 0, 1];
        [&[0; 8][..], &mac_a.0, &own.0, &[8, 0], &header, &[0; 26]].concat()
    };
    member.send(&packet(2));
    let answer = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &own.0, &[10, 77, 0, 2], &mac_a.0, &[10, 77, 0, 1]].concat();
    member.send(&[&[0; 8][..], &mac_a.0, &own.0, &[8, 6], &answer].concat());
    eventually("forged frames are counted", || {
        member.serve();
        drops(a, "c", "foreign_source") == 6
    });
    assert_eq!(status(a)["interfaces"][0]["received"]["frames"].as_u64(), before);
    // A superframe that is none, a descriptor that is none, and a part of nothing.
    let mut superframe = frame(mac_a, own);
    superframe[..8].copy_from_slice(&[2, 0, 8, 0, 14, 34, 0, 0]);
    for garbage in [&superframe[..], &[9; 40], &[255; 40], &[0; 3]] {
        member.send(garbage);
    }
    eventually("garbage is counted", || {
        member.serve();
        drops(a, "c", "illegal") == 4
    });
    member.send(&frame(mac_a, own));
    eventually("honest frames arrive", || {
        member.serve();
        status(a)["interfaces"][0]["received"]["frames"].as_u64() > before
    });
    let (near, far) = connected(a, b, address(2, 7000));
    exchange(&near, &far, 1 << 20);
}

#[test]
fn a_member_that_connects_again_and_again_takes_no_place_of_others() {
    let Some((network, mut ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    ups.truncate(1);
    eventually("both have ended", || peer_of(a, "b").is_none() && peer_of(a, "c").is_none());
    let mut member = Member::join(c, "a");
    member.connect_again("a", PEERS_MAX + 50);
    // The carrier of b is back, and finds a place.
    ups.push(up(b, 2, &[]));
    eventually("it is known", || {
        member.serve();
        peer_of(a, "b").is_some()
    });
}

/// The commands of the page, each in its machine's namespace.
#[test]
fn two_machines_are_joined_as_the_page_says() {
    let page = include_str!("../../../docs/ethernet.md");
    let printed: Vec<&str> =
        page.lines().filter(|line| line.starts_with("bywire eth up --fabric --background ")).collect();
    assert_eq!(printed.len(), 2, "{printed:?}");
    if std::fs::metadata("/dev/net/tun").is_err() {
        return println!("not run: no TAP device can be made here: `modprobe tun`");
    }
    let Some(network) = TestNetwork::up(2) else { return };
    for (machine, line) in network.machines.iter().zip(printed) {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let mut command = bywire(machine, &words);
        let done = machine.namespace.run(|| command.output()).expect("inside").expect("it runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    await_all(&network);
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (near, far) = connected(a, b, address(2, 7000));
    exchange(&near, &far, 1 << 20);
    let text = bywire(b, &["eth", "status"]).output().expect("it runs").stdout;
    let text = String::from_utf8_lossy(&text);
    let is_shown = text.contains("node a, another machine: 1 interface(s) -:by0");
    for machine in [a, b] {
        assert!(bywire(machine, &["eth", "down"]).status().expect("it runs").success());
        let names = std::fs::read_dir(machine.runtime()).expect("a directory").flatten();
        let left = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("eth.")).count();
        assert_eq!(left, 0, "no port is left");
    }
    assert!(is_shown, "{text}");
}

#[test]
fn what_is_missing_is_said_in_one_line() {
    let Some(mut network) = TestNetwork::without_services(1) else { return };
    let machine = &network.machines[0];
    let said = |machine: &Machine, arguments: &[&str]| {
        let mut command = bywire(machine, &[&["eth", "up", "--fabric"], arguments].concat());
        let done = machine.namespace.run(|| command.output()).expect("inside").expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.lines().count() == 1, "{said}");
        said
    };
    let without = said(machine, &["--interface", "-:by0"]);
    assert!(without.contains("bywire up"), "{without}");
    network.machines[0].start();
    let bridge = said(&network.machines[0], &["--interface", "-:by0", "--bridge", "br0"]);
    assert!(bridge.contains("`bridge = true` to the node a"), "{bridge}");
    assert!(network.machines[0].runtime().join("node").exists());
}
