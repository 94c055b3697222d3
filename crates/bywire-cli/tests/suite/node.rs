//! `bywire init`, `invite`, `join`, `up`, `node`, `key` and `status` as docs/links.md and README.md print them, with
//! their commands and the page's file, for two machines. Needs root.
//!
//! Invitations are used, interrupted or wrong. A node is removed. The measurements that docs/laboratory.md prints for
//! two machines run. A service is killed and replaced while connections go on. Signals are obeyed. What is wrong with
//! files and sockets is said in one line each.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use bywire_testing::eventually;
use bywire_testing::test_network::{FakePort, Machine, TestNetwork, kept};
use bywire_wire::service::{End, Notice, Request};
use serde_json::Value;

use crate::up::{Up, bywire, inside, status, text};

const PAGE: &str = include_str!("../../../../docs/links.md");
const README: &str = include_str!("../../../../README.md");

/// The commands of a page that set up two machines, without comments.
fn commands(page: &'static str) -> Vec<&'static str> {
    let words = |line: &'static str| line.split(" #").next().unwrap_or(line).trim_end();
    let is_one = |line: &&str| {
        ["init", "invite", "join"].iter().any(|word| line.starts_with(&format!("bywire {word} ")))
    };
    page.lines().map(words).filter(is_one).collect()
}

/// A network without services and files.
fn bare_machines(count: usize) -> Option<TestNetwork> {
    let network = TestNetwork::without_services(count)?;
    for machine in &network.machines {
        for entry in fs::read_dir(machine.configuration()).expect("a directory").flatten() {
            fs::remove_file(entry.path()).expect("removed");
        }
    }
    Some(network)
}

/// The arguments of the page's `init` for a machine.
fn init_of(machine: &Machine) -> Vec<String> {
    let [init, ..] = &commands(PAGE)[..] else { panic!("there is one") };
    let mut words: Vec<String> = init.split(' ').skip(1).map(str::to_owned).collect();
    // The name and the address are the machine's, and the rest is as printed.
    assert_eq!((words[0].as_str(), words[2].as_str(), words[4].as_str()), ("init", "--address", "--up"));
    (words[1], words[3]) = (machine.name.clone(), machine.address.ip().to_string());
    words
}

/// The words of an invitation of the first machine for a node of this name.
fn invitation(keeper: &Machine, name: &str) -> String {
    let place = keeper.configuration();
    let done = inside(keeper, &["invite", name, "--config", place.to_str().expect("text")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let printed = text(&done.stdout);
    let line = printed.strip_prefix("bywire join '").and_then(|rest| rest.strip_suffix("'\n"));
    let line = line.unwrap_or_else(|| panic!("{printed}")).to_owned();
    assert!(!line.contains(['\'', '\n']));
    line
}

/// Runs a command that fails, and returns its status and its one line.
fn failed(machine: &Machine, arguments: &[&str]) -> (Option<i32>, String) {
    let done = inside(machine, arguments);
    let said = text(&done.stderr);
    assert!(!done.status.success() && said.lines().count() == 1, "{arguments:?}: {said}");
    (done.status.code(), said)
}

/// Both machines are set up as the page says.
fn two_machines() -> Option<(TestNetwork, [Up; 2])> {
    let network = bare_machines(2)?;
    let [a, b] = &network.machines[..] else { unreachable!() };
    let init = init_of(a);
    let (one, ready) = Up::run(a, &init.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ready, "node a of fabric fabric is up: 1 node, encrypted, UDP port 7248\n");
    let [_, invite, join] = commands(PAGE)[..] else { panic!("three commands") };
    assert_eq!(invite, "bywire invite web2");
    let line = invitation(a, "b");
    // The page has words in place of keys, and the same form.
    let printed =
        join.strip_prefix("bywire join '").and_then(|rest| rest.strip_suffix("' --up")).expect("quotes");
    assert_eq!(printed.split(' ').count(), line.split(' ').count());
    let (other, ready) = Up::run(b, &["join", &line, "--up"]);
    assert_eq!(ready, "node b of fabric fabric is up: 2 nodes, encrypted, UDP port 7248\n");
    for machine in [a, b] {
        let mode = |name: &str| {
            let found = fs::metadata(machine.configuration().join(name)).expect("made");
            found.permissions().mode() & 0o777
        };
        assert_eq!((mode("node.key"), mode("fabric.toml")), (0o600, 0o644));
    }
    let file = |machine: &Machine| fs::read(machine.configuration().join("fabric.toml")).expect("read");
    assert_eq!(file(a), file(b));
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
        said.starts_with("node a of fabric fabric, serial 2, encrypted, UDP port 7248, up for "),
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
    assert_eq!(commands(README), commands(PAGE));
    assert_eq!(commands(PAGE).len(), 3);
}

#[test]
fn an_invitation_is_good_once_and_its_errors_say_what_to_do() {
    let Some(network) = bare_machines(4) else { return };
    let [a, b, c, d] = &network.machines[..] else { unreachable!() };
    let place = |machine: &Machine| machine.configuration().to_str().expect("text").to_owned();
    let (_, said) = failed(a, &["invite", "b", "--config", &place(a)]);
    assert!(said.contains("no service runs here: start one by `bywire up`"), "{said}");
    let init = init_of(a);
    let (one, _) = Up::run(a, &init.iter().map(String::as_str).collect::<Vec<_>>());
    for (name, expected) in [("a", "there is a node a already"), ("a b", "cannot be the name of a node")] {
        let (status, said) = failed(a, &["invite", name, "--config", &place(a)]);
        assert!(status == Some(2) && said.contains(expected), "{said}");
    }
    // The service has its key elsewhere.
    let (_, said) = failed(a, &["invite", "b", "--config", "/nowhere"]);
    assert!(said.contains("the service says that its key is") && said.contains(&place(a)), "{said}");
    assert_eq!(said.matches("there is no").count(), 1, "{said}");
    // A second one for the same node replaces the first one. No answer takes 15 s, and the rest goes on meanwhile.
    let old = invitation(a, "b");
    let line = invitation(a, "b");
    std::thread::scope(|scope| {
        let replaced = scope.spawn(|| inside(d, &["join", &old, "--config", &place(d)]));
        an_invitation_is_good_once([a, b, c], one, &line);
        let done = replaced.join().expect("it ends");
        let (status, said) = (done.status.code(), text(&done.stderr));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!((status, lines.len()), (Some(1), 2), "{said}");
        assert!(lines[0].contains("10.78.0.1:7248 has not answered yet; waiting"), "{said}");
        assert!(lines[1].contains("no answer from 10.78.0.1:7248"), "{said}");
        assert!(said.contains("bywire invite b"), "{said}");
    });
}

fn an_invitation_is_good_once([a, b, c]: [&Machine; 3], keeper: Up, line: &str) {
    let place = |machine: &Machine| machine.configuration().to_str().expect("text").to_owned();
    // The words without quotes are understood, too.
    let words: Vec<&str> = ["join"].into_iter().chain(line.split(' ')).chain(["--up"]).collect();
    let (other, _) = Up::run(b, &words);
    let (status, said) = failed(c, &["join", line, "--config", &place(c)]);
    assert!(status == Some(2) && said.contains("used by another machine"), "{said}");
    assert!(!c.configuration().join("fabric.toml").exists());
    let (status, said) = failed(b, &["join", line, "--config", &place(b)]);
    assert!(status == Some(2) && said.contains("this machine is in a fabric already"), "{said}");
    let (status, said) = failed(c, &["join", "10.78.0.1", "--config", &place(c)]);
    assert!(status == Some(2) && said.contains("not an invitation"), "{said}");
    let (status, said) = failed(b, &["invite", "c", "--config", &place(b)]);
    assert!(status == Some(2) && said.contains("a is the keeper of this fabric: run this there"), "{said}");
    // A file was lost before it was written: the same machine asks again.
    other.signal("-TERM");
    assert!(other.ended().success());
    fs::remove_file(b.configuration().join("fabric.toml")).expect("removed");
    let done = inside(b, &["join", line, "--config", &place(b)]);
    assert_eq!(text(&done.stdout).lines().count(), 1, "{}", text(&done.stderr));
    assert!(text(&done.stdout).starts_with("b has joined fabric fabric, and "));
    // The keeper has lost its invitations with its service, and no answer says so.
    let line = invitation(a, "c");
    keeper.signal("-TERM");
    assert!(keeper.ended().success());
    let done = inside(c, &["join", &line, "--config", &place(c)]);
    let said = text(&done.stderr);
    assert_eq!((done.status.code(), said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.contains("check that `bywire up` runs there"), "{said}");
}

#[test]
fn an_invitation_is_read_from_standard_input() {
    let Some(network) = bare_machines(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let init = init_of(a);
    let (_one, _) = Up::run(a, &init.iter().map(String::as_str).collect::<Vec<_>>());
    let place = a.configuration();
    let printed = inside(a, &["invite", "b", "--config", place.to_str().expect("text")]).stdout;
    let join = |input: &[u8]| {
        let configuration = b.configuration();
        let arguments = ["join", "-", "--config", configuration.to_str().expect("text")];
        let mut command = bywire(&arguments, &b.runtime());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = b.namespace.run(|| command.spawn()).expect("inside").expect("it starts");
        child.stdin.take().expect("piped").write_all(input).expect("it reads");
        child.wait_with_output().expect("waited for")
    };
    let refused = join(b"10.78.0.1\n");
    assert!(text(&refused.stderr).contains("not an invitation"), "{}", text(&refused.stderr));
    let done = join(&printed);
    assert!(text(&done.stdout).starts_with("b has joined fabric fabric, and "), "{}", text(&done.stderr));
}

#[test]
fn nodes_are_listed_added_and_removed() {
    let Some(network) = bare_machines(3) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let place = |machine: &Machine| machine.configuration().to_str().expect("text").to_owned();
    let run = |machine: &Machine, arguments: &[&str]| {
        let done = inside(machine, &[arguments, &["--config", &place(machine)]].concat());
        assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    let fails = |machine: &Machine, arguments: &[&str]| {
        failed(machine, &[arguments, &["--config", &place(machine)]].concat())
    };
    let init = init_of(a);
    let (_one, _) = Up::run(a, &init.iter().map(String::as_str).collect::<Vec<_>>());
    let file = a.configuration().join("fabric.toml");
    let commented = format!("# Mine.\n{}", fs::read_to_string(&file).expect("read"));
    fs::write(&file, commented).expect("written");
    let (_other, _) = Up::run(b, &["join", &invitation(a, "b"), "--up"]);
    assert!(
        fs::read_to_string(b.configuration().join("fabric.toml")).expect("read").starts_with("# Mine.\n")
    );

    // A machine whose key is known is added, and gets the file by hand.
    let key = run(c, &["key"]);
    assert_eq!(run(c, &["key"]), key, "it is made once");
    let key = key.trim_end();
    let address = c.address.ip().to_string();
    let added = run(a, &["node", "add", "c", "--address", &address, "--key", key]);
    assert!(added.starts_with("added c; fabric.toml has serial 3 now; the other nodes get it"), "{added}");
    let nodes = |machine: &Machine| -> Value {
        serde_json::from_str(&run(machine, &["node", "list", "--json"])).expect("JSON")
    };
    eventually("b has the file", || nodes(b)["serial"] == 3);
    let found = nodes(b);
    assert_eq!((&found["keeper"], &found["nodes"][1]["is_own"]), (&"a".into(), &true.into()));
    assert_eq!((&found["nodes"][2]["name"], &found["nodes"][2]["key"]), (&"c".into(), &key.into()));
    let listed = run(b, &["node", "list"]);
    assert!(listed.starts_with("fabric fabric, serial 3, keeper a, encrypted\na  "), "{listed}");
    assert!(listed.contains("  10.78.0.2:7248  this machine\n"), "{listed}");
    fs::copy(&file, c.configuration().join("fabric.toml")).expect("copied");
    let (_third, _) = Up::start(c);
    let (mut asking, mut asked) = (FakePort::open(b, "asking"), FakePort::open(c, "render"));
    let _terms = asking.meet(1, "c", &mut asked, 11);

    // The file of another directory is not the one of the service that runs here.
    let elsewhere = a.directory.path().join("elsewhere");
    let elsewhere = ["--config", elsewhere.to_str().expect("text")];
    let apart = |arguments: &[&str]| inside(a, &[arguments, &elsewhere].concat());
    assert!(apart(&["init", "x", "--address", "10.0.0.1"]).status.success());
    let added = text(&apart(&["node", "add", "y", "--address", "10.0.0.2", "--key", key]).stdout);
    assert!(added.contains("serial 2 now; the service that runs here is that of another node"), "{added}");
    assert_eq!(status(a)["node"]["serial"], 3);

    // Only the keeper changes the nodes.
    for arguments in
        [&["node", "remove", "c"][..], &["node", "add", "d", "--address", "10.0.0.4", "--key", key]]
    {
        let (status, said) = fails(b, arguments);
        assert!(status == Some(2) && said.contains("a is the keeper of this fabric"), "{said}");
    }
    for (arguments, expected) in [
        (&["node", "remove", "d"][..], "there is no node d"),
        (&["node", "remove", "a"], "a is this machine"),
        (&["node", "add", "b", "--address", "10.0.0.4", "--key", key], "there is a node b already"),
        (&["node", "add", "d", "--address", "10.0.0.4", "--key", key], "have the same key"),
        (&["node", "add", "d", "--address", "10.0.0.4", "--key", "short"], "is not a key"),
        (&["node", "add", "d", "--address", "1.2.3", "--key", key], "is not an address"),
    ] {
        let (status, said) = fails(a, arguments);
        assert!(status == Some(2) && said.contains(expected), "{said}");
    }
    let removed = run(a, &["node", "remove", "c"]);
    assert!(removed.starts_with("removed c; fabric.toml has serial 4 now"), "{removed}");
    assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::NodeRemoved });
    eventually("b has the file", || nodes(b)["serial"] == 4);
    assert_eq!(nodes(b)["nodes"].as_array().map(Vec::len), Some(2));
    assert!(fs::read_to_string(&file).expect("read").starts_with("# Mine.\n"));
}

/// The cell that a command measures on this machine, once the far end serves.
fn measured(machine: &Machine, words: &[&str]) -> Value {
    let printed = eventually("the far end serves", || {
        let done = inside(machine, words);
        done.status.success().then_some(done.stdout)
    });
    serde_json::from_slice(&printed).expect("one object")
}

#[test]
fn messages_are_measured_between_two_machines() {
    let Some((network, _services)) = two_machines() else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let page = include_str!("../../../../docs/laboratory.md");
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
        let cell = measured(a, &words);
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
fn members_of_a_fabric_need_no_key_file() {
    let Some((network, _services)) = two_machines() else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let page = include_str!("../../../../docs/laboratory.md");
    let with_fabric = |line: &&str| line.starts_with("bywire ") && line.ends_with(" --fabric");
    let printed: Vec<&str> = page.lines().filter(with_fabric).collect();
    let [serve, measure] = printed[..] else { panic!("{printed:?}") };
    let words: Vec<&str> = serve.split(' ').skip(1).collect();
    let mut serve = bywire(&words, &b.runtime());
    serve.stdout(Stdio::null()).stderr(Stdio::null());
    let _serving = Up::of(b.namespace.run(|| serve.spawn()).expect("inside").expect("it starts"));
    let measure = measure.replace("web2", &b.name);
    let words: Vec<&str> = measure.split(' ').skip(1).chain(["--time", "0.05", "--json"]).collect();
    let cell = measured(a, &words);
    assert_eq!((&cell["between"], &cell["level"]), (&b.name.as_str().into(), &"tcp".into()), "{cell}");
    let refused = |words: &[&str], expected: &str| {
        let done = inside(a, &[&["measure", "tcp", "latency"], words].concat());
        let said = text(&done.stderr);
        assert!(!done.status.success() && said.contains(expected) && said.lines().count() == 1, "{said}");
    };
    let address = b.address.ip().to_string();
    refused(&["--between", &address], "it requires a key");
    refused(&["--between", "nowhere", "--fabric"], "no node is called `nowhere`: choose one of a, b");
    refused(&["--fabric"], "--fabric does not apply");
    // Nobody serves there.
    refused(&["--between", &a.name, "--fabric"], "gives no key");
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
    fs::write(&file, both.replace("serial = 2", "serial = 7")).expect("written");
    one.signal("-HUP");
    eventually("the new file", || status(a)["node"]["serial"] == 7);
    fs::write(&file, both.replace("serial = 2", "serial = x")).expect("written");
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
    assert!(text(&again.stderr).contains("this machine is in a fabric already"));
    for wrong in [
        &["init", "a b"][..],
        &["init", "a", "--address", "1.2.3"],
        &["init", "a", "--address", "10.0.0.1", "--address", "no-such-host.invalid"],
        &["init", "localhost"],
    ] {
        let done = inside(machine, &[wrong, &["--config", "/nonexistent/place"]].concat());
        assert_eq!(done.status.code(), Some(2), "{wrong:?}: {}", text(&done.stderr));
    }
    // Another user than root, who may not enter the directory.
    let copy = std::env::temp_dir().join(format!("bywire-{}", std::process::id()));
    fs::copy(env!("CARGO_BIN_EXE_bywire"), &copy).expect("copied");
    let other_user = Command::new(&copy).args(["key", "--config", &place]).uid(3_999_999).output();
    fs::remove_file(&copy).expect("removed");
    let said = text(&other_user.expect("it runs").stderr);
    assert!(said.contains("run this as its owner or as root") && said.lines().count() == 1, "{said}");
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
    up(2, &["there is no ", "bywire init NAME", "bywire invite"]);
    // What `bywire key` or a `join` in vain has left is not in the way.
    let key_before = fs::read_to_string(&key).expect("read");
    let begun = inside(machine, &["init", "a", "--address", "10.0.0.1", "--config", &place]);
    assert!(text(&begun.stdout).contains("fabric.toml for the key in "), "{}", text(&begun.stderr));
    assert_eq!(fs::read_to_string(&key).expect("read"), key_before);
    machine.write(&network.fabric());
    let (_one, _) = Up::start(machine);
    let other = ["up", "--config", &place, "--port", "7249"];
    let done = inside(machine, &other);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("a service runs already"), "{}", text(&done.stderr));
    up(1, &["another program has UDP port 7248"]);
}
