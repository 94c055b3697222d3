//! `bywire init`, `bywire up` and `bywire status` from outside: two machines as docs/links.md says, a service that is killed,
//! and errors in files, in one line each.

#[path = "../../bywire-node/tests/test_network/mod.rs"]
mod test_network;
mod up;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use bywire_wire::service::{End, Notice, Request};
use serde_json::Value;
use test_network::{FakePort, TestNetwork, eventually, kept};
use up::{Up, bywire, inside, status, text};

const PAGE: &str = include_str!("../../../docs/links.md");
const README: &str = include_str!("../../../README.md");

/// Both machines are set up as the page says, with a connection in the end.
fn two_machines() -> Option<(TestNetwork, [Up; 2])> {
    let network = TestNetwork::without_services(2)?;
    let mut stanzas = Vec::new();
    for machine in &network.machines {
        let configuration = machine.configuration();
        for entry in fs::read_dir(&configuration).expect("a directory").flatten() {
            fs::remove_file(entry.path()).expect("removed");
        }
        let printed = PAGE.lines().filter(|line| line.starts_with("bywire init "));
        let printed = printed.clone().nth(stanzas.len()).expect("one for each machine");
        let (address, place) = (machine.address.ip().to_string(), configuration.display().to_string());
        let mut words: Vec<&str> = printed.split(' ').skip(1).collect();
        // The name and the address are the machine's, and the rest is as printed.
        (words[1], words[3]) = (&machine.name, &address);
        let done = inside(machine, &[&words[..], &["--config", &place]].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        let mode = fs::metadata(configuration.join("node.key")).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        stanzas.push(text(&done.stdout));
    }
    // The second one's lines are added to the first one's file, which is copied.
    let [a, b] = &network.machines[..] else { unreachable!() };
    let file = a.configuration().join("fabric.toml");
    let both = fs::read_to_string(&file).expect("made") + &stanzas[1];
    fs::write(&file, &both).expect("written");
    fs::write(b.configuration().join("fabric.toml"), both).expect("written");
    let [(one, ready), (other, _)] = [a, b].map(Up::start);
    assert_eq!(ready, "node a of fabric fabric is up: 2 nodes, encrypted, UDP port 7248\n");
    Some((network, [one, other]))
}

#[test]
fn two_machines_connect_and_connections_survive_a_killed_service() {
    let Some((network, [one, other])) = two_machines() else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let [ours, theirs] = asking.meet(1, "b", &mut asked, 11);
    let found = status(a);
    assert_eq!((&found["service"], &found["node"]["name"]), (&"absent".into(), &"a".into()));
    let node = &found["node"]["nodes"][1];
    assert!(node["state"] == "up" && node["rtt_us"].is_u64(), "{node}");
    assert_eq!(found["node"]["connections"][0]["peer_port"], "render");
    let said = text(&inside(a, &["status"]).stdout);
    assert!(
        said.starts_with("node a of fabric fabric, serial 1, encrypted, UDP port 7248, up for "),
        "{said}"
    );
    assert!(said.contains("\nnode b (10.78.0.2:7248) up at 10.78.0.2:7248, "), "{said}");
    assert!(said.contains("\nconnection asking - b/render of "), "{said}");

    one.signal("-KILL");
    assert!(!one.ended().success());
    assert!(!inside(a, &["status"]).status.success(), "nobody serves");
    assert!(a.runtime().join("node").exists(), "what was killed leaves its socket");
    let (one, _) = Up::start(a);
    asking.call_again(a, vec![kept(1, &ours)]);
    asking.send(&Request::Inquire { connection: 1 });
    assert_eq!(asking.next(), Notice::Alive { connection: 1 });
    // The other end has heard nothing of all that.
    asked.send(&Request::Inquire { connection: 11 });
    assert_eq!(asked.next(), Notice::Alive { connection: 11 });
    assert_eq!(theirs.introduction.connection, 1);
    let _terms = asking.meet(2, "b", &mut asked, 12);

    // Ctrl-C: the socket is gone, and the connections are not.
    one.signal("-INT");
    assert!(one.ended().success());
    assert!(!a.runtime().join("node").exists());
    let (_one, _) = Up::start(a);
    asking.call_again(a, vec![kept(1, &ours)]);
    // The channel is up again once this is answered.
    asking.send(&Request::Inquire { connection: 1 });
    assert_eq!(asking.next(), Notice::Alive { connection: 1 });
    drop(asked);
    assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::PeerEnded });
    other.signal("-TERM");
    assert!(other.ended().success());
}

/// So the commands of the README are run here, too.
#[test]
fn the_readme_sets_up_two_machines_as_the_page_does() {
    let commands = |page: &'static str| -> Vec<&'static str> {
        let words = |line: &'static str| line.split('#').next().unwrap_or(line).trim_end();
        let is_command = |line: &&str| line.starts_with("bywire init ") || line.starts_with("bywire up");
        page.lines().map(words).filter(is_command).collect()
    };
    assert_eq!(commands(README), commands(PAGE));
    assert_eq!(commands(PAGE).len(), 3);
}

#[test]
fn messages_are_measured_between_two_machines() {
    let Some((network, _services)) = two_machines() else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let page = include_str!("../../../docs/laboratory.md");
    let is_between = |line: &&str| line.starts_with("bywire ") && line.contains(" --between 192.0.2.7");
    let printed: Vec<&str> = page.lines().filter(is_between).collect();
    assert_eq!(printed.len(), 4, "{printed:?}");
    let address = b.address.ip().to_string();
    let mut serve = bywire(&["serve"], &b.runtime());
    serve.stdout(Stdio::null()).stderr(Stdio::null());
    let _serving = Up::of(b.namespace.run(|| serve.spawn()).expect("inside").expect("it starts"));
    for command in printed {
        // The address is the machine's, there is no key, and it takes less time.
        let words = command.trim_end_matches(" --key key").replace("192.0.2.7", &address);
        let words: Vec<&str> = words.split(' ').skip(1).chain(["--time", "0.05", "--json"]).collect();
        let mut measured = Vec::new();
        eventually("the far end serves", || {
            let done = inside(a, &words);
            measured = done.stdout;
            done.status.success()
        });
        let cell: Value = serde_json::from_slice(&measured).expect("one object");
        assert_eq!(cell["between"], address.as_str(), "{cell}");
        assert!(cell["value"].as_f64().is_some_and(|value| value > 0.0), "{cell}");
        if cell["level"] == "msg" {
            assert_eq!(cell["link"], "udp");
            let refused = inside(a, &[&words[..], &["--security", "plain"]].concat());
            assert!(text(&refused.stderr).contains("leave out --security"), "{}", text(&refused.stderr));
        }
    }
}

#[test]
fn the_fabric_file_of_the_page_is_valid() {
    let block = PAGE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fabric.toml");
    fs::write(&path, block).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
    let key = block.split("key = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a key");
    let key = bywire_node::key::from_text(key).expect("32 bytes");
    let fabric = bywire_node::fabric::Fabric::read(&path, &key).expect("it is as the program reads it");
    assert_eq!(fabric.nodes[0].name, "web1");
}

#[test]
fn a_file_is_read_again_on_sighup() {
    let Some((network, [one, _other])) = two_machines() else { return };
    let a = &network.machines[0];
    let file = a.configuration().join("fabric.toml");
    let both = fs::read_to_string(&file).expect("read");
    fs::write(&file, both.replace("serial = 1", "serial = 7")).expect("written");
    one.signal("-HUP");
    eventually("the new file", || status(a)["node"]["serial"] == 7);
    fs::write(&file, both.replace("serial = 1", "serial = x")).expect("written");
    one.signal("-HUP");
    eventually("the complaint", || {
        status(a)["node"]["complaint"].as_str().is_some_and(|complaint| complaint.contains("line 2"))
    });
    assert_eq!(status(a)["node"]["serial"], 7, "it changes nothing");
}

#[test]
fn errors_are_one_line_that_says_what_to_do() {
    let Some(network) = TestNetwork::without_services(1) else { return };
    let machine = &network.machines[0];
    let configuration = machine.configuration();
    let place = configuration.to_str().expect("text").to_owned();
    let up = |code: i32, expected: &[&str]| {
        let done = inside(machine, &["up", "--config", &place]);
        let said = text(&done.stderr);
        assert_eq!((done.status.code(), said.lines().count()), (Some(code), 1), "{said}");
        expected.iter().for_each(|words| assert!(said.contains(words), "{words}: {said}"));
    };
    let again = inside(machine, &["init", "a", "--address", "10.0.0.1", "--config", &place]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("node.key is there already"));
    for wrong in [&["init", "a b"][..], &["init", "a", "--address", "1.2.3"], &["init", "localhost"]] {
        let done = inside(machine, &[wrong, &["--config", "/nonexistent/place"]].concat());
        assert_eq!(done.status.code(), Some(2), "{wrong:?}: {}", text(&done.stderr));
    }
    let (key, fabric) = (configuration.join("node.key"), configuration.join("fabric.toml"));
    let good = fs::read_to_string(&fabric).expect("read");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("chmod");
    up(2, &["node.key can be read by others", "chmod 600"]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::write(&fabric, good.replace("10.78.0.1:7248", "10.78.0.1:0")).expect("written");
    up(2, &["fabric.toml, line 8: addresses of node \"a\""]);
    fs::write(&fabric, "name = \"lab\"\nserial = 1\nsecurity = \"plain\"\n").expect("written");
    up(2, &["no node has this machine's key", "[[node]]"]);
    fs::set_permissions(&fabric, fs::Permissions::from_mode(0o666)).expect("chmod");
    up(2, &["fabric.toml can be written by others"]);
    fs::remove_file(&fabric).expect("removed");
    up(2, &["there is no ", "bywire init NAME"]);
    machine.write(&network.fabric());
    let (_one, _) = Up::start(machine);
    let other = ["up", "--config", &place, "--port", "7249"];
    let done = inside(machine, &other);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("a service runs already"), "{}", text(&done.stderr));
    up(1, &["another program has UDP port 7248"]);
}
