//! A name server that takes its time: what it says late does not undo a later fabric file, and the doctor hears what
//! the network says of other nodes meanwhile. Needs root.
//!
//! It runs in network namespaces, with a resolver's configuration that only the command sees.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use bywire_node::fabric::Fabric;
use bywire_testing::eventually;
use bywire_testing::test_network::{Machine, TIMEOUT, TestNetwork};
use serde_json::Value;

use crate::up::{Up, bywire, inside, status};

/// Where the name server is: on the machine that asks.
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1)), 53);

/// A command of a machine whose names are looked up at [`SERVER`], which may take so long. `None`: the files of the resolver
/// cannot be replaced here, which is printed.
fn with_server(machine: &Machine, seconds: u32, arguments: &[&str]) -> Option<Command> {
    const INSIDE: &str =
        "mount --bind \"$0\" /etc/resolv.conf; mount --bind \"$1\" /etc/nsswitch.conf; shift 1; exec \"$@\"";
    let place = machine.directory.path();
    let files = [
        ("resolv.conf", format!("nameserver {}\noptions timeout:{seconds} attempts:1\n", SERVER.ip())),
        ("nsswitch.conf", "hosts: dns\n".to_owned()),
    ];
    for (name, contents) in &files {
        if !Path::new("/etc").join(name).exists() {
            println!("not run: there is no /etc/{name}");
            return None;
        }
        fs::write(place.join(name), contents).expect("written");
    }
    let plain = bywire(arguments, &machine.runtime());
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", INSIDE]).arg(place.join("resolv.conf")).arg(place.join("nsswitch.conf"));
    command.arg(plain.get_program()).args(plain.get_args());
    command.env("BYWIRE_RUNTIME_DIR", machine.runtime()).env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    Some(command)
}

fn spawn(machine: &Machine, mut command: Command) -> Child {
    command.stdout(Stdio::piped());
    machine.namespace.run(|| command.spawn()).expect("inside").expect("`unshare` starts")
}

fn bind(machine: &Machine) -> UdpSocket {
    let socket = machine.namespace.run(|| UdpSocket::bind(SERVER)).expect("inside").expect("bound");
    socket.set_read_timeout(Some(TIMEOUT)).expect("set");
    socket
}

/// The next question for a name with this first label, which is not answered yet.
fn question(server: &UdpSocket, label: &str) -> (Vec<u8>, SocketAddr) {
    loop {
        let mut packet = [0; 512];
        let (length, from) = server.recv_from(&mut packet).expect("a question");
        if packet[12..].starts_with(&[&[label.len() as u8], label.as_bytes()].concat()) {
            return (packet[..length].to_vec(), from);
        }
    }
}

/// Answers a question with this address, and any other than for IPv4 with none.
fn answer(server: &UdpSocket, (mut packet, from): (Vec<u8>, SocketAddr), ip: Ipv4Addr) {
    const HEADER_BYTES: usize = 12;
    let name_bytes =
        packet[HEADER_BYTES..].iter().position(|byte| *byte == 0).expect("an end of the name") + 1;
    let end = HEADER_BYTES + name_bytes + 4;
    let is_v4 = packet[end - 4..end - 2] == [0, 1];
    packet.truncate(end);
    packet[2..HEADER_BYTES].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
    if is_v4 {
        packet.extend([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        packet.extend(ip.octets());
    }
    server.send_to(&packet, from).expect("sent");
}

/// The fabric of all machines, in which nodes have other addresses.
fn with_addresses(network: &TestNetwork, serial: u64, addresses: &[(usize, &str)]) -> Fabric {
    let mut fabric = Fabric { serial, ..network.fabric() };
    for (number, address) in addresses {
        fabric.nodes[*number].addresses = vec![address.parse().expect("an address")];
    }
    fabric
}

#[test]
fn an_address_that_is_found_late_does_not_replace_that_of_a_later_file() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    network.machines[1].start();
    let a = &network.machines[0];
    let server = bind(a);
    a.write(&with_addresses(&network, 1, &[(1, "late.example:7248"), (2, "next.example:7248")]));
    let configuration = a.configuration();
    let arguments = ["up", "--config", configuration.to_str().expect("text")];
    let Some(command) = with_server(a, 20, &arguments) else { return };
    let mut child = spawn(a, command);
    let mut ready = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("read");
    let service = Up::of(child);
    assert!(ready.contains(" is up: "), "{ready}");
    let (one, other) = (question(&server, "late"), question(&server, "late"));
    // Meanwhile the file has an address instead of the name.
    a.write(&with_addresses(&network, 2, &[(2, "next.example:7248")]));
    service.signal("-HUP");
    eventually("the new file", || status(a)["node"]["serial"] == 2);
    for question in [one, other] {
        answer(&server, question, Ipv4Addr::new(10, 78, 0, 99));
    }
    // The next name is looked up once the answer has been passed on.
    drop(question(&server, "next"));
    for _ in 0..2 {
        assert_eq!(status(a)["node"]["serial"], 2);
    }
    eventually("a channel", || inside(a, &["ping", "b", "--count", "3"]).status.success());
}

#[test]
fn the_doctor_hears_of_one_node_although_names_of_another_one_are_looked_up_for_long() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    // Nobody has the second address, of which the kernel is sure after 3 s.
    let fabric = with_addresses(&network, 1, &[(1, "silent.example:7248"), (2, "10.78.0.99:7248")]);
    network.machines[0].write(&fabric);
    network.machines[0].start();
    let a = &network.machines[0];
    let server = bind(a);
    let Some(command) = with_server(a, 7, &["doctor", "--fabric", "--json"]) else { return };
    let (asked, was_asked) = mpsc::channel();
    let doctor = spawn(a, command);
    std::thread::scope(|scope| {
        scope.spawn(|| asked.send(question(&server, "silent")).expect("the test waits"));
        let done = doctor.wait_with_output().expect("it ends");
        was_asked.try_recv().expect("the name was looked up, and is not answered");
        let found: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        let causes: Vec<&Value> = (0..2).map(|at| &found["nodes"][at]["findings"][0]["cause"]).collect();
        assert_eq!(causes, ["no-address", "unreachable"], "{found}");
    });
}
