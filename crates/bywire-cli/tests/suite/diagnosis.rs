//! `bywire ping`, `bywire doctor NODE`, `bywire status` and metrics between machines in namespaces name what is wrong.
//! Needs nftables.
//!
//! The causes are loss, filters here and there, no route, a small MTU here, names without an address, no service,
//! silence, paths of one direction, keys that differ, paths for short packets only, blocked ports, a copied key, and a
//! node that is removed meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bywire_testing::eventually;
use bywire_testing::test_network::{FakePort, Machine, TestNetwork, ip};
use bywire_wire::service::{End, NotConnected, Notice};
use serde_json::Value;

use crate::up::{Up, bywire, inside, status, text};

/// Runs a command inside a machine. `false`: it is not installed, which is printed.
fn runs(machine: &Machine, words: &str) -> bool {
    let (program, arguments) = words.split_once(' ').expect("a program and its arguments");
    let run = || Command::new(program).args(arguments.split(' ')).output();
    match machine.namespace.run(run).expect("inside") {
        Ok(done) => {
            assert!(done.status.success(), "{words}: {}", text(&done.stderr));
            true
        }
        Err(error) => {
            println!("not run: `{program}`: {error}");
            false
        }
    }
}

/// The machine drops packets of a direction that match. `false`: there is no `nft`.
fn filter(machine: &Machine, hook: &str, rule: &str) -> bool {
    runs(machine, "nft add table inet test")
        && runs(
            machine,
            &format!("nft add chain inet test {hook} {{ type filter hook {hook} priority 0 ; }}"),
        )
        && runs(machine, &format!("nft add rule inet test {hook} {rule}"))
}

/// What a program prints until it has printed these words.
fn read_until(output: &mut impl Read, words: &str) -> Vec<u8> {
    let mut said = Vec::new();
    while !text(&said).contains(words) {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).expect("read"), 1, "{}", text(&said));
        said.push(byte[0]);
    }
    said
}

fn signal(child: &Child, signal: &str) {
    let done = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("`kill` runs");
    assert!(done.success());
}

fn json(done: &Output) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("no JSON: {}", text(&done.stderr)))
}

/// The examination of node `b` by `bywire doctor`, and the cause of its first finding.
fn doctor(machine: &Machine) -> (bool, Value, String) {
    let done = inside(machine, &["doctor", "b", "--json"]);
    let found = json(&done)["nodes"][0].clone();
    let is_reachable = found["is_reachable"] == true;
    assert_eq!(done.status.success(), is_reachable, "{found}");
    let cause = found["findings"][0]["cause"].as_str().unwrap_or_default().to_owned();
    (is_reachable, found, cause)
}

fn expect_cause(machine: &Machine, cause: &str) {
    let (is_reachable, found, first) = doctor(machine);
    assert!(!is_reachable && first == cause, "{found} instead of {cause}");
    assert!(found["findings"][0]["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{found}");
    println!("{cause}: {}", found["findings"][0]["found"]);
}

/// The same, with no other finding.
fn expect_only(machine: &Machine, cause: &str) -> (bool, Value, String) {
    let examined = doctor(machine);
    let (is_reachable, found, first) = &examined;
    let count = found["findings"].as_array().map(Vec::len);
    assert!(!is_reachable && first == cause && count == Some(1), "{found} instead of {cause} alone");
    println!("{cause}: {}", found["findings"][0]["found"]);
    examined
}

#[test]
fn a_ping_reports_round_trips_loss_and_the_packet_size() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    network.machines[..2].iter_mut().for_each(Machine::start);
    let [a, b, _] = &network.machines[..] else { unreachable!() };
    // Of the requests before the channel is up only the last one leaves.
    eventually("a channel", || inside(a, &["ping", "b", "--count", "1"]).status.success());
    let done = inside(a, &["ping", "b", "--count", "5", "--interval", "0.05"]);
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    assert!(said.contains("64 bytes from b (10.78.0.2:7248): seq=0 time="), "{said}");
    assert!(said.contains("\n5 sent, 5 received, 0 % lost, "), "{said}");
    assert!(said.contains("round trip min/mean/max/mdev "), "{said}");
    let done = inside(a, &["ping", "b", "--count", "20", "--interval", "0.1", "--size", "8192", "--json"]);
    let found = json(&done)["nodes"][0].clone();
    assert!(done.status.success() && found["received"] == 20, "{found}");
    // Packets become longer step by step, as longer ones are answered.
    eventually("packets as long as the route permits", || {
        let done = inside(a, &["ping", "b", "--count", "1", "--json"]);
        let found = json(&done)["nodes"][0].clone();
        found["packet_bytes"] == 1472 && found["route_bytes"] == 1472
    });
    // One of several nodes does not answer.
    let done = inside(a, &["ping", "--all", "--count", "2", "--interval", "0.1"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stdout).contains("--- b at 10.78.0.2:7248 ---\n2 sent, 2 received"), "{done:?}");
    assert!(text(&done.stderr).contains("no reply from c: "), "{done:?}");
    for (wrong, expected) in
        [(&["ping", "nobody"][..], "its other nodes: b, c"), (&["ping", "a"], "this machine")]
    {
        let done = inside(a, wrong);
        assert!(done.status.code() == Some(2) && text(&done.stderr).contains(expected), "{done:?}");
    }
    // Loss.
    if filter(b, "input", "udp dport 7248 numgen random mod 100 < 30 drop") {
        let done = inside(a, &["ping", "b", "--count", "200", "--interval", "0.01", "--json"]);
        let lost = json(&done)["nodes"][0]["lost_percent"].as_f64().expect("a number");
        assert!((10.0..60.0).contains(&lost), "{lost} %");
        assert!(status(a)["node"]["nodes"][1]["channel"]["lost"].as_u64().is_some_and(|lost| lost > 0));
    }
}

#[test]
fn an_interrupted_ping_prints_its_summary() {
    let Some(network) = TestNetwork::up(2) else { return };
    let a = &network.machines[0];
    let mut command = bywire(&["ping", "b", "--interval", "0.05"], &a.runtime());
    command.stdout(Stdio::piped());
    let mut child = a.namespace.run(|| command.spawn()).expect("inside").expect("it starts");
    let mut output = child.stdout.take().expect("piped");
    let mut said = read_until(&mut output, "seq=2");
    signal(&child, "-INT");
    output.read_to_end(&mut said).expect("read");
    assert!(child.wait().expect("waited for").success());
    assert!(
        text(&said).contains(" received, ") && text(&said).contains("\nround trip min"),
        "{}",
        text(&said)
    );
}

#[test]
fn a_ping_whose_service_ends_prints_its_summary() {
    let Some(mut network) = TestNetwork::up(2) else { return };
    let a = &network.machines[0];
    let mut command = bywire(&["ping", "b", "--interval", "0.05"], &a.runtime());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = a.namespace.run(|| command.spawn()).expect("inside").expect("it starts");
    let mut said = read_until(child.stdout.as_mut().expect("piped"), "seq=2");
    network.machines[0].stop();
    let done = child.wait_with_output().expect("it ends");
    said.extend(&done.stdout);
    assert!(text(&said).contains(" received, "), "{}", text(&said));
    let error = text(&done.stderr);
    assert!(done.status.code() == Some(1) && error.contains("the service has ended meanwhile"), "{error}");
}

#[test]
fn a_node_that_is_removed_while_it_is_pinged_is_named() {
    let Some(network) = TestNetwork::up(2) else { return };
    let a = &network.machines[0];
    let mut less = network.fabric();
    less.nodes.remove(1);
    a.write(&less);
    let mut command = bywire(&["ping", "b", "--interval", "0.05"], &a.runtime());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = a.namespace.run(|| command.spawn()).expect("inside").expect("it starts");
    let mut output = child.stdout.take().expect("piped");
    let mut said = read_until(&mut output, "seq=2");
    a.reload();
    // No reply comes from now on, and several requests leave.
    std::thread::sleep(Duration::from_secs(1));
    signal(&child, "-INT");
    output.read_to_end(&mut said).expect("read");
    assert!(child.wait().expect("waited for").success(), "there were replies");
    let said = text(&said);
    let count = |word: &str| -> u64 {
        let before = said.split(word).next().and_then(|rest| rest.rsplit([' ', '\n']).next());
        before.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{word}: {said}"))
    };
    assert!(count(" received, ") < count(" sent, "), "{said}");
    // The same node again: what held its channel before is forgotten.
    a.write(&network.fabric());
    a.reload();
    let began = Instant::now();
    eventually("a channel again", || inside(a, &["ping", "b", "--count", "1"]).status.success());
    assert!(began.elapsed() < Duration::from_secs(20), "the old channel has expired: {:?}", began.elapsed());
}

#[test]
fn the_doctor_tells_filters_and_missing_routes_of_this_machine_apart() {
    at_once(&[nothing_is_wrong, packets_do_not_leave]);
}

fn nothing_is_wrong() {
    let Some(network) = TestNetwork::up(2) else { return };
    let a = &network.machines[0];
    let (is_reachable, found, _) = doctor(a);
    assert!(is_reachable && found["findings"] == Value::Array(Vec::new()), "{found}");
}

/// No channel is made before, as one is given up only after 30 s.
fn packets_do_not_leave() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines.iter_mut().for_each(Machine::start);
    let a = &network.machines[0];
    if filter(a, "output", "udp dport 7248 drop") {
        expect_cause(a, "filter-here");
        let complaint = status(a)["node"]["nodes"][1]["unsent"]["reason"].clone();
        assert!(
            complaint.as_str().is_some_and(|complaint| complaint.contains("packet filter")),
            "{complaint}"
        );
    }
    a.take_out_cable();
    expect_cause(a, "no-route");
}

#[test]
fn the_doctor_tells_silent_networks_and_absent_services_apart() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines[0].start();
    let [a, b] = &network.machines[..] else { unreachable!() };
    // The kernel of the other machine says that nothing listens.
    expect_cause(a, "no-service");
    // The other machine drops what comes.
    if filter(b, "input", "ip protocol udp drop") {
        expect_cause(a, "no-answer");
    }
    // Nobody has the address.
    ip(&b.namespace, "link set eth0 down");
    ip(&a.namespace, "neighbour flush dev eth0");
    expect_cause(a, "unreachable");
}

/// Each in a network of its own: they wait most of the time.
fn at_once(scenes: &[fn()]) {
    std::thread::scope(|scope| {
        for scene in scenes {
            scope.spawn(scene);
        }
    });
}

#[test]
fn the_doctor_finds_a_device_with_a_small_mtu_and_names_without_an_address() {
    at_once(&[a_device_has_a_small_mtu, a_name_has_no_address]);
}

fn a_device_has_a_small_mtu() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines.iter_mut().for_each(Machine::start);
    ip(&network.machines[0].namespace, "link set eth0 mtu 1000");
    expect_only(&network.machines[0], "mtu-here");
}

fn a_name_has_no_address() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    let mut named = network.fabric();
    named.nodes[1].addresses = vec!["b.invalid".parse().expect("a host name")];
    network.machines[0].write(&named);
    network.machines.iter_mut().for_each(Machine::start);
    let (_, found, _) = expect_only(&network.machines[0], "no-address");
    let said = found["findings"][0]["found"].as_str().unwrap_or_default();
    assert!(said.contains("b.invalid:7248 has no address"), "{found}");
}

#[test]
fn the_doctor_tells_a_path_of_one_direction_and_loss_apart() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b] = &network.machines[..] else { unreachable!() };
    if !filter(b, "input", "udp dport 7248 drop") {
        return;
    }
    // The other one calls all the time, and its hellos arrive.
    let mut command = bywire(&["ping", "a", "--interval", "0.1"], &b.runtime());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = b.namespace.run(|| command.spawn()).expect("inside").expect("it starts");
    let calling = Up::of(child);
    eventually("a hello of the other one", || a.count_of("b", "hellos_received") > 0);
    expect_only(a, "one-way");
    drop(calling);
    assert!(runs(b, "nft delete table inet test"));
    eventually("a channel", || inside(a, &["ping", "b", "--count", "1"]).status.success());
    // The search for the longest packet is over, or loss would disturb it.
    eventually("whole packets", || status(a)["node"]["nodes"][1]["channel"]["packet_bytes"] == 1472);
    assert!(filter(b, "input", "udp dport 7248 numgen random mod 100 < 70 drop"));
    let (is_reachable, found, cause) = doctor(a);
    let count = found["findings"].as_array().map(Vec::len);
    assert!(is_reachable && cause == "loss" && count == Some(1), "{found}");
}

#[test]
fn the_doctor_finds_paths_that_only_short_packets_pass() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b] = &network.machines[..] else { unreachable!() };
    if !filter(b, "input", "udp length > 1100 drop") {
        return;
    }
    expect_cause(a, "small-packets-only");
    assert!(runs(b, "nft delete table inet test") && filter(b, "input", "udp length > 1308 drop"));
    eventually("the channel is up", || inside(a, &["ping", "b", "--count", "1"]).status.success());
    let (is_reachable, found, cause) = doctor(a);
    assert!(is_reachable && cause == "small-packets-only", "{found}");
    let bytes = status(a)["node"]["nodes"][1]["channel"]["packet_bytes"].as_u64().expect("a number");
    assert!((1200..=1300).contains(&bytes), "{bytes}");
    let said = text(&inside(a, &["status"]).stdout);
    assert!(said.contains(" bytes (the route carries 1472), "), "{said}");
}

#[test]
fn the_doctor_finds_keys_that_differ() {
    at_once(&[a_file_lacks_the_other_node, a_file_has_another_key]);
}

fn a_file_lacks_the_other_node() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    let mut fabric = network.fabric();
    fabric.nodes.remove(0);
    network.machines[1].write(&fabric);
    network.machines.iter_mut().for_each(Machine::start);
    expect_cause(&network.machines[0], "not-admitted");
}

fn a_file_has_another_key() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    // The file of a has the key of c for b. What comes from b has an unknown key.
    let mut wrong = network.fabric();
    wrong.nodes[1].key = wrong.nodes[2].key;
    wrong.nodes.truncate(2);
    network.machines[0].write(&wrong);
    network.machines[..2].iter_mut().for_each(Machine::start);
    let [a, b, _] = &network.machines[..] else { unreachable!() };
    assert!(!inside(b, &["ping", "a", "--count", "1"]).status.success());
    expect_cause(a, "wrong-key");
    // Seen from b, the other one calls it by another key.
    let [done, said] = std::thread::scope(|scope| {
        let asked = [&["doctor", "a", "--json"][..], &["doctor", "a"]];
        asked.map(|words| scope.spawn(move || inside(b, words))).map(|doctor| doctor.join().expect("it runs"))
    });
    assert_eq!(json(&done)["nodes"][0]["findings"][0]["cause"], "wrong-key-there", "{done:?}");
    let said = text(&said.stdout);
    assert!(
        said.contains("a: NOT reachable\n  found: ") && said.contains("\n  to do: correct the `key` of b"),
        "{said}"
    );
}

#[test]
fn a_key_that_was_unknown_is_no_cause_once_it_is_known_or_the_node_was_reached_by_another_one() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    let fabric = network.fabric();
    let first = |count| {
        let mut fabric = fabric.clone();
        fabric.nodes.truncate(count);
        fabric
    };
    let unknown = |machine: &Machine| status(machine)["node"]["last_unknown"].clone();
    network.machines[0].write(&first(1));
    network.machines[..2].iter_mut().for_each(Machine::start);
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    assert!(!inside(b, &["ping", "a", "--count", "1"]).status.success());
    assert_eq!(unknown(a)["address"], "10.78.0.2:7248");
    a.write(&first(2));
    a.reload();
    assert_eq!(unknown(a), Value::Null, "the file has this key now");

    // The machine has another key for a while, as after the start of an old disk.
    let key = b.configuration().join("node.key");
    let own = std::fs::read(&key).expect("read");
    std::fs::write(&key, std::fs::read(c.configuration().join("node.key")).expect("read")).expect("written");
    network.machines[1].stop();
    network.machines[1].name = "c".to_owned();
    network.machines[1].start();
    let [a, b, _] = &network.machines[..] else { unreachable!() };
    assert!(!inside(b, &["ping", "a", "--count", "1"]).status.success());
    assert_eq!(unknown(a)["address"], "10.78.0.2:7248");
    expect_cause(a, "wrong-key");
    std::fs::write(&key, own).expect("written");
    network.machines[1].stop();
    network.machines[1].start();
    let a = &network.machines[0];
    eventually("it is reached", || inside(a, &["ping", "b", "--count", "1"]).status.success());
    assert_eq!(unknown(a), Value::Null, "that is corrected");
    network.machines[1].stop();
    expect_cause(&network.machines[0], "no-service");
}

#[test]
fn the_doctor_without_a_service_and_with_unknown_nodes_says_what_to_do() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    let done = inside(&network.machines[0], &["doctor", "--fabric"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("no service runs here: start one by `bywire up`"), "{done:?}");
    network.machines[0].start();
    let done = inside(&network.machines[0], &["doctor", "c"]);
    assert!(done.status.code() == Some(2) && text(&done.stderr).contains("its other nodes: b"), "{done:?}");
}

#[test]
fn a_connection_whose_packets_are_blocked_is_reported_by_status_and_doctor() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let _terms = asking.meet(1, "b", &mut asked, 11);
    asking.send(&bywire_wire::service::Request::Blocked { connection: 2, peer_udp_port: 1 });
    assert_eq!(status(a)["node"]["nodes"][1]["blocked"], Value::Null, "it has no such connection");
    let there = asked.udp.local_address().expect("bound").port();
    asking.send(&bywire_wire::service::Request::Blocked { connection: 1, peer_udp_port: there });
    eventually("the report", || status(a)["node"]["nodes"][1]["blocked"]["peer_udp_port"] == there);
    let (is_reachable, found, cause) = doctor(a);
    assert!(is_reachable && cause == "ports-blocked", "{found}");
    let said = text(&inside(a, &["status"]).stdout);
    assert!(said.contains(&format!(" and port {there} there through")), "{said}");
}

#[test]
fn a_copied_key_on_two_machines_is_reported_with_both_addresses() {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    let mut fabric = network.fabric();
    fabric.nodes.truncate(2);
    network.machines.iter().for_each(|machine| machine.write(&fabric));
    let key = |machine: &Machine| machine.configuration().join("node.key");
    let [_, b, c] = &network.machines[..] else { unreachable!() };
    std::fs::copy(key(b), key(c)).expect("copied");
    // Its service takes it for that node.
    network.machines[2].name = "b".to_owned();
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let mut asked = FakePort::open(a, "render");
    let (mut genuine, mut other) = (FakePort::open(b, "asking"), FakePort::open(c, "asking"));
    let _terms = genuine.meet(1, "a", &mut asked, 11);
    assert_eq!(status(a)["node"]["nodes"][1]["copied_key"], Value::Null);
    // The copy takes the place of the first one, whose connections end as if its machine had been restarted.
    other.connect(1, "a", "render", 1);
    assert_eq!(asked.next(), Notice::Ended { connection: 11, reason: End::NodeRestarted });
    let _terms = [asked.accept(12), other.established()];
    let copied = || status(a)["node"]["nodes"][1]["copied_key"].clone();
    eventually("the copy is noticed", || copied() != Value::Null);
    assert_eq!(copied()["addresses"], serde_json::json!(["10.78.0.3:7248", "10.78.0.2:7248"]));
    let (is_reachable, found, cause) = doctor(a);
    assert!(is_reachable && cause == "copied-key", "{found}");
    let said = text(&inside(a, &["status"]).stdout);
    let line = "\ntwo machines answer with the key of node b: 10.78.0.3:7248 and 10.78.0.2:7248 (";
    assert!(said.contains(line), "{said}");
    // The place does not change hands: the first one gets no answer.
    let channels = || a.count_of("b", "channels");
    let before = channels();
    genuine.connect(2, "a", "render", 2);
    let (request, reason) = (2, NotConnected::Unreachable);
    assert_eq!(genuine.next(), Notice::NotConnected { request, reason });
    assert_eq!(channels(), before);
}

#[test]
fn metrics_show_channels_ports_and_sockets() {
    let Some(network) = TestNetwork::without_services(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let [(_one, _), (_other, _)] = [Up::run(a, &["up", "--metrics", "127.0.0.1:9478"]), Up::start(b)];
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let _terms = asking.meet(1, "b", &mut asked, 11);
    let fetch = || {
        // These say nothing, and hold up nobody: half a second each would be longer than the test waits.
        let silent: Vec<_> =
            (0..100).map(|_| TcpStream::connect("127.0.0.1:9478").expect("it listens")).collect();
        let mut stream = TcpStream::connect("127.0.0.1:9478").expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("read");
        drop(silent);
        page
    };
    let page = a.namespace.run(fetch).expect("inside");
    for line in [
        "bywire_node_channel_state{node=\"b\",state=\"up\"} 1",
        "bywire_node_connections 1",
        "bywire_node_ports 1",
        "bywire_node_fabric_serial 1",
        "bywire_node_unsent{node=\"b\"} 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    // A short one is written with an exponent.
    let rtt = page.lines().find_map(|line| line.strip_prefix("bywire_node_channel_rtt_seconds{node=\"b\"} "));
    let rtt: f64 = rtt.and_then(|rtt| rtt.parse().ok()).unwrap_or_else(|| panic!("{page}"));
    assert!(rtt > 0.0 && rtt < 10.0, "{page}");
    let listed = include_str!("../../../../docs/links.md");
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE bywire_node_")) {
        let name = line.split(' ').next().expect("a word");
        assert!(listed.contains(&format!("`{name}")), "{name} is not in docs/links.md");
    }
    assert!(page.contains("\nbywire_node_socket_waiting_bytes{port=\"asking\"} "), "{page}");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
}
