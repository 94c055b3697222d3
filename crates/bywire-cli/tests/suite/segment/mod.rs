//! `bywire eth up --fabric` inside the machines of a test network, and TCP connections between them.
pub mod dialogue;
pub mod member;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use bywire_sys::namespace::Namespace;
use bywire_testing::Guarded;
use bywire_testing::eventually;
use bywire_testing::here::has_taps;
use bywire_testing::test_network::{Machine, TIMEOUT, TestNetwork};
use serde_json::Value;

pub fn bywire(machine: &Machine, arguments: &[&str]) -> Command {
    crate::up::bywire(arguments, &machine.runtime())
}

/// Gives a machine the interface `by0` with an address that ends with `number`.
pub fn up(machine: &Machine, number: u8, more: &[&str]) -> Guarded {
    let interface = format!("-:by0=10.77.0.{number}/24,fd77::{number}/64");
    let interface = if more.contains(&"96") { format!("-:by0=10.77.0.{number}/24") } else { interface };
    up_by(machine, &[&["--interface", &interface][..], more].concat())
}

/// Runs `bywire eth up --fabric` with these arguments inside a machine.
pub fn up_by(machine: &Machine, arguments: &[&str]) -> Guarded {
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
    Guarded(child)
}

/// Waits until nothing of a killed machine's Ethernet holds its interface: the processes that carry frames end by themselves.
pub fn await_no_interface(machine: &Machine) {
    eventually("the interface of killed processes is gone", || {
        let devices = || std::fs::read_to_string("/proc/thread-self/net/dev").expect("the devices");
        !machine.namespace.run(devices).expect("inside").contains("by0:")
    });
}

pub fn status(machine: &Machine) -> Value {
    let done = bywire(machine, &["eth", "status", "--json"]).output().expect("it runs");
    serde_json::from_slice::<Value>(&done.stdout).expect("JSON")[0].clone()
}

/// The processes of a machine's Ethernet: the one that was started, and those that carry frames.
pub fn processes(machine: &Machine) -> Vec<u64> {
    let shown = status(machine);
    let carriers = shown["carriers"].as_array().expect("a list").iter();
    let all = carriers.chain([&shown]).map(|process| process["process"].as_u64().expect("a number"));
    all.collect()
}

/// The status of a peer on another machine, once it has introduced an interface.
pub fn peer_of(machine: &Machine, other: &str) -> Option<Value> {
    let peers = status(machine)["peers"].as_array().cloned().unwrap_or_default();
    peers.into_iter().find(|peer| peer["machine"] == other && peer["interfaces_count"] != 0)
}

/// Machines with an interface each, on one segment.
pub fn segment(count: usize, is_encrypted: bool, more: &[&str]) -> Option<(TestNetwork, Vec<Guarded>)> {
    if !has_taps() {
        return None;
    }
    let network = TestNetwork::up_with(count, is_encrypted)?;
    let ups = network.machines.iter().zip(1..).map(|(machine, number)| up(machine, number, more)).collect();
    await_all(&network);
    Some((network, ups))
}

/// Waits until every machine knows the interfaces of every other one.
pub fn await_all(network: &TestNetwork) {
    await_among(&network.machines.iter().collect::<Vec<_>>());
}

/// The same for some machines.
pub fn await_among(machines: &[&Machine]) {
    for machine in machines {
        let mut others = machines.iter().filter(|other| other.name != machine.name);
        eventually("the machines meet", || {
            others.clone().all(|other| peer_of(machine, &other.name).is_some())
        });
        assert!(others.next().is_some());
    }
}

pub fn address(number: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, number], port))
}

/// A TCP connection from a machine to the machine with an address.
pub fn connected(from: &Machine, to: &Machine, address: SocketAddr) -> (TcpStream, TcpStream) {
    connected_in(&from.namespace, &to.namespace, address)
}

/// The same between two namespaces.
pub fn connected_in(from: &Namespace, to: &Namespace, address: SocketAddr) -> (TcpStream, TcpStream) {
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

pub fn bytes_of(length: usize) -> Vec<u8> {
    (0..length).map(|index| ((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// Sends bytes in both directions, and compares them.
pub fn exchange(near: &TcpStream, far: &TcpStream, length: usize) {
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

pub fn drops(machine: &Machine, other: &str, cause: &str) -> u64 {
    peer_of(machine, other).map_or(0, |peer| peer["drops"][cause].as_u64().unwrap_or(0))
}
