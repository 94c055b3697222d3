//! docs/operations.md as printed: programs and the service in containers, with the mounts, networks and capabilities of
//! the files for Compose and Kubernetes, or with an interface; the firewalls; another keeper, a keeper on other hardware,
//! and a lost one. Needs root and nftables.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bywire::{Address, Event, Port, PortOptions, Priority, Reach};
use bywire_node::fabric::Fabric;
use bywire_node::{file, settings};
use bywire_sys::namespace::Namespace;
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::eventually;
use bywire_testing::here::has_taps;
use bywire_testing::test_network::{Machine, TIMEOUT, TestNetwork, ip, path};
use serde_json::Value;

use crate::up::{Up, inside, text};

/// Longer than a connection asks after packet sizes once nothing is to be sent, which is 5 s.
const PAUSE: Duration = Duration::from_secs(8);
pub const PAGE: &str = include_str!("../../../../docs/operations.md");

/// The one block of the page in this language that has these words.
pub fn block(language: &str, words: &str) -> &'static str {
    let blocks = PAGE.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let mut found = blocks.filter(|(its, lines)| *its == language && lines.contains(words));
    let (_, lines) = found.next().expect("a block");
    assert!(found.next().is_none(), "several blocks have {words:?}");
    lines
}

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("render", render), ("ask", ask), ("ask_again", ask_again)];

/// A port that returns every message.
fn render(context: &mut Context) {
    let name = Some("render".parse().expect("a name"));
    let options = PortOptions { name, reach: Reach::Fabric, ..context.options() };
    let mut port = Port::open(options).expect("open");
    context.tell("ready");
    loop {
        if let Some(Event::Message(message)) = port.wait(None).expect("wait") {
            port.send(message.peer, message.priority, &message.payload).expect("room for one");
        }
    }
}

/// Sends a message to the address in its argument, and awaits the answer.
fn ask(context: &mut Context) {
    let mut port = Port::open(context.options()).expect("open");
    let address: Address = context.argument(0);
    let peer = match port.connect(&address, TIMEOUT) {
        Ok(peer) => peer,
        Err(error) => return context.tell(error),
    };
    port.send(peer, Priority::Low, b"hello").expect("room");
    loop {
        match port.wait(Some(TIMEOUT)).expect("wait").expect("something happens") {
            Event::Message(message) => return context.tell(text(&message.payload)),
            Event::Disconnected { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    }
}

/// The same twice, with a pause of [`PAUSE`] in which nothing is to be sent. Tells how each time ended.
fn ask_again(context: &mut Context) {
    let options = PortOptions { unreachable_after: Duration::from_secs(3), ..context.options() };
    let mut port = Port::open(options).expect("open");
    let address: Address = context.argument(0);
    let peer = port.connect(&address, TIMEOUT).expect("connected");
    for pause in [PAUSE, Duration::ZERO] {
        port.send(peer, Priority::Low, b"hello").expect("room");
        let outcome = loop {
            match port.wait(Some(PAUSE)).expect("wait") {
                Some(Event::Message(message)) => break text(&message.payload),
                Some(Event::Disconnected { reason, .. }) => break reason.to_string(),
                Some(_) => {}
                None => break "nothing happens".to_owned(),
            }
        };
        context.tell(outcome);
        let deadline = Instant::now() + pause;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            assert!(port.wait(Some(left)).expect("wait").is_none());
        }
    }
}

fn start(machine: &Machine, role: &str, arguments: &[&str]) -> Actor {
    let network = format!("--net={}", path(&machine.namespace));
    Actor::start_under(&["nsenter", &network], role, &machine.runtime(), arguments)
}

/// What a file of the page says about a container.
struct Container {
    command: Vec<String>,
    has_network: bool,
    has_process_numbers: bool,
    capabilities: Vec<String>,
    /// Directories of the machine, which have the same name inside.
    mounts: Vec<String>,
}

/// The words after a key: a list in brackets, or separated by spaces.
fn words_after(yaml: &str, key: &str) -> Vec<String> {
    let Some((_, rest)) = yaml.split_once(key) else { return Vec::new() };
    let line = rest.lines().next().unwrap_or_default().trim();
    let line = line.strip_prefix('[').and_then(|rest| rest.split(']').next()).unwrap_or(line);
    line.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

impl Container {
    /// A service of the file for Compose.
    fn composed(name: &str) -> Self {
        let services = block("yaml", "services:");
        let (_, rest) = services.split_once(&format!("\n  {name}:\n")).expect("the service");
        // Its lines are indented further than the next service.
        let lines = rest.lines().take_while(|line| line.starts_with("    "));
        let yaml = lines.collect::<Vec<_>>().join("\n");
        let volumes = yaml.lines().filter_map(|line| line.trim().strip_prefix("- "));
        let mount = |volume: &str| {
            let (source, target) = volume.split_once(':').expect("two directories");
            assert_eq!(source, target);
            source.to_owned()
        };
        assert!(yaml.contains("cap_drop: [ALL]"));
        let network = words_after(&yaml, "network_mode:");
        assert!(["host", "none"].contains(&&*network[0]));
        Self {
            command: words_after(&yaml, "command:"),
            has_network: network[0] == "host",
            has_process_numbers: yaml.contains("pid: host"),
            capabilities: words_after(&yaml, "cap_add:"),
            mounts: volumes.map(mount).collect(),
        }
    }

    /// That of a pod.
    fn pod(kind: &str) -> Self {
        let yaml = block("yaml", &format!("kind: {kind}\n"));
        assert!(yaml.contains("drop: [ALL]"));
        let value = |line: &str, key: &str| {
            let (_, rest) = line.split_once(key)?;
            Some(rest.trim_end_matches('}').split(',').next().unwrap_or_default().trim().to_owned())
        };
        let mounts: Vec<String> = yaml.lines().filter_map(|line| value(line, " mountPath:")).collect();
        let sources: Vec<String> = yaml.lines().filter_map(|line| value(line, "{path:")).collect();
        assert_eq!(mounts, sources);
        Self {
            command: words_after(yaml, "command:"),
            has_network: yaml.contains("hostNetwork: true"),
            has_process_numbers: yaml.contains("hostPID: true"),
            capabilities: words_after(yaml, " add:"),
            mounts,
        }
    }

    /// The command line that runs the words behind it in this container on a machine.
    fn line(&self, machine: &Machine) -> Vec<String> {
        const INSIDE: &str = r#"
            bounding=$1; shift
            mount -t tmpfs none /run
            mkdir /run/etc; cp -a /etc/. /run/etc; mount --bind /run/etc /etc
            while [ "$1" != -- ]; do
                mkdir -p "$2"; mount --bind "$1" "$2"; shift 2
            done
            shift
            exec setpriv --bounding-set "$bounding" --inh-caps -all "$@""#;
        let network = format!("--net={}", path(&machine.namespace));
        let mut line = vec!["nsenter".to_owned(), network, "unshare".to_owned()];
        line.extend(["-m", "-i", "-u", "-f", "--kill-child"].map(str::to_owned));
        line.extend((!self.has_network).then(|| "-n".to_owned()));
        if !self.has_process_numbers {
            line.extend(["-p", "--mount-proc"].map(str::to_owned));
        }
        let kept = self.capabilities.iter().map(|name| format!(",+{}", name.to_lowercase()));
        line.extend(["sh", "-ec", INSIDE, "sh"].map(str::to_owned));
        line.push(format!("-all{}", kept.collect::<String>()));
        for mount in &self.mounts {
            let source = match mount.as_str() {
                "/etc/bywire" => machine.configuration(),
                "/run/bywire" => machine.runtime(),
                other => panic!("{other}"),
            };
            line.extend([source.to_str().expect("text").to_owned(), mount.clone()]);
        }
        line.push("--".to_owned());
        line
    }

    /// A role of this file in the container.
    fn start(&self, machine: &Machine, role: &str, arguments: &[&str]) -> Actor {
        let line = self.line(machine);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        Actor::start_under(&words, role, "/run/bywire".as_ref(), arguments)
    }

    /// The service in the container, by the command that the file has.
    fn serve(&self, machine: &Machine) -> Up {
        let (program, arguments) = self.command.split_first().expect("a command");
        assert_eq!(program, "bywire");
        let line = self.line(machine);
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).arg(env!("CARGO_BIN_EXE_bywire")).args(arguments);
        command.env_remove("BYWIRE_RUNTIME_DIR").env_remove("NOTIFY_SOCKET");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        let mut printed = BufReader::new(child.stdout.take().expect("piped"));
        let up = Up::of(child);
        printed.read_line(&mut said).expect("read");
        assert!(said.contains(" is up: "), "{said}");
        up
    }
}

#[test]
fn programs_and_services_in_containers_use_the_fabric_as_the_printed_files_say() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    if bywire_sys::process::user() != 0 {
        return println!("not run: only root has capabilities to give up: run as root");
    }
    network.machines[1].start();
    let [a, b] = &network.machines[..] else { unreachable!() };
    let lends = a.configuration().join(settings::FILE_NAME);
    file::make(&lends, 0o644, block("toml", "lend_network")).expect("written");
    let both = [
        (Container::composed("node"), Container::composed("ask")),
        (Container::pod("DaemonSet"), Container::pod("Pod")),
    ];
    for (node, program) in both {
        assert_eq!(program.command, ["ask", "web2/echo"]);
        assert!(node.has_network && !program.has_network && program.capabilities.is_empty());
        assert_eq!(program.mounts, ["/run/bywire"], "nothing else of the machine");
        let _service = node.serve(a);
        // To another machine, and from there.
        let mut far = start(b, "render", &[]);
        far.expect("ready");
        program.start(a, "ask", &["b/render"]).expect("hello");
        let mut near = program.start(a, "render", &[]);
        near.expect("ready");
        start(b, "ask", &["a/render"]).expect("hello");
        // Between two containers of one machine.
        program.start(a, "ask", &["localhost/render"]).expect("hello");
    }
    // Without the line, programs in containers are refused.
    fs::remove_file(lends).expect("removed");
    let (node, program) = (Container::composed("node"), Container::composed("ask"));
    let _service = node.serve(a);
    let refused = program.start(a, "ask", &["b/render"]).expect("");
    assert!(refused.contains("lend_network"), "{refused}");
}

#[test]
fn an_unmodified_program_in_a_container_has_an_interface() {
    if !has_taps() {
        return;
    }
    let Some(network) = TestNetwork::up(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    // Neither a network of its own nor anything of Bywire.
    let container = Namespace::fresh().expect("another one");
    let sleep =
        container.run(|| Command::new("sleep").arg("1000").spawn()).expect("inside").expect("it starts");
    let (number, _sleep) = (sleep.id().to_string(), Up::of(sleep));
    let row =
        PAGE.split('`').find(|quoted| quoted.starts_with("bywire eth up --fabric ")).expect("a command");
    let command = row.replace("pid:4711", &format!("pid:{number}"));
    assert_ne!(command, row);
    let words: Vec<&str> = command.split(' ').skip(1).chain(["--background"]).collect();
    let other = ["eth", "up", "--fabric", "--background", "--interface", "-:by0=10.77.0.2/24"];
    for (machine, words) in [(a, &words[..]), (b, &other)] {
        let done = inside(machine, words);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    let server = b.namespace.run(|| TcpListener::bind("10.77.0.2:7000")).expect("inside").expect("bound");
    // The machines meet after a moment.
    let mut near = None;
    eventually("a connection", || {
        let connect = || TcpStream::connect_timeout(&([10, 77, 0, 2], 7000).into(), Duration::from_secs(1));
        near = container.run(connect).expect("inside").ok();
        near.is_some()
    });
    let (_far, from) = server.accept().expect("accepted");
    let down = [a, b].map(|machine| inside(machine, &["eth", "down"]).status.success());
    assert_eq!((from.ip().to_string().as_str(), down), ("10.77.0.5", [true, true]));
}

/// Gives a machine these rules. `false`: there is no `nft`, which is printed.
fn filters(machine: &Machine, rules: &str) -> bool {
    let nft = || Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn();
    let mut child = match machine.namespace.run(nft).expect("inside") {
        Ok(child) => child,
        Err(error) => {
            println!("not run: `nft`: {error}: apt-get install nftables");
            return false;
        }
    };
    let mut input = child.stdin.take().expect("piped");
    input.write_all(rules.as_bytes()).expect("written");
    drop(input);
    assert!(child.wait().expect("waited for").success());
    true
}

#[test]
fn a_neighbour_reaches_an_address_of_the_fabric_by_another_card_unless_the_printed_rule_forbids_it() {
    let Some(network) = TestNetwork::without_services(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    for words in ["link add by0 type veth peer by1", "address add 10.77.0.1/24 dev by0", "link set by0 up"] {
        ip(&a.namespace, words);
    }
    ip(&b.namespace, &format!("route add 10.77.0.1 via {}", a.address.ip()));
    let address = ([10, 77, 0, 1], 7000).into();
    let _server = a.namespace.run(|| TcpListener::bind(address)).expect("inside").expect("bound");
    let is_reached = |machine: &Machine, within| {
        machine.namespace.run(|| TcpStream::connect_timeout(&address, within)).expect("inside").is_ok()
    };
    assert!(is_reached(b, TIMEOUT));
    if filters(a, block("nft", "iifname")) {
        assert!(!is_reached(b, Duration::from_secs(1)));
        assert!(is_reached(a, TIMEOUT));
    }
}

#[test]
fn connections_pass_the_printed_firewall_also_after_it_has_forgotten_them() {
    let rules = block("nft", "udp dport 7248").replace("10.0.0.0/24", "10.78.0.0/24");
    let third = rules.lines().find(|line| line.contains("32768-60999")).expect("a rule");
    // With the rule, and without it. Then it depends on the moment: nothing passes until the far side sends by itself.
    let ways = [(rules.clone(), false), (rules.replace(third, ""), true)];
    // They wait most of the time.
    std::thread::scope(|scope| {
        for (rules, may_stall) in &ways {
            scope.spawn(move || firewall_forgets(rules, *may_stall));
        }
    });
}

fn firewall_forgets(rules: &str, may_stall: bool) {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    for machine in &network.machines {
        if !filters(machine, rules) {
            return;
        }
        for setting in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
            let path = format!("/proc/sys/net/netfilter/{setting}");
            let set = machine.namespace.run(|| fs::write(&path, "1")).expect("inside");
            if let Err(error) = set {
                return println!("not run: {path}: {error}");
            }
        }
    }
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b] = &network.machines[..] else { unreachable!() };
    let mut far = start(b, "render", &[]);
    far.expect("ready");
    let mut near = start(a, "ask_again", &["b/render"]);
    near.expect("hello");
    let outcome = near.hear().expect("it goes on");
    println!("the third rule is there: {}; after a pause: {outcome}", !may_stall);
    assert!(outcome == "hello" || may_stall && outcome == "nothing happens", "{outcome}");
}

#[test]
fn a_firewall_drops_what_nobody_asked_for_and_passes_connections_both_ways() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    let rules = block("nft", "udp dport 7248").replace("10.0.0.0/24", "10.78.0.9");
    if !network.machines.iter().all(|machine| filters(machine, &rules)) {
        return;
    }
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b] = &network.machines[..] else { unreachable!() };
    for (from, to) in [(a, b), (b, a)] {
        let mut far = start(to, "render", &[]);
        far.expect("ready");
        start(from, "ask", &[&format!("{}/render", to.name)]).expect("hello");
    }
    // What nobody has asked for is dropped.
    let bind =
        |machine: &Machine| machine.namespace.run(|| UdpSocket::bind("0.0.0.0:40000")).expect("inside");
    let (one, other) = (bind(a).expect("bound"), bind(b).expect("bound"));
    one.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    other.send_to(b"stranger", (a.address.ip(), 40_000)).expect("sent");
    let error = one.recv_from(&mut [0; 64]).expect_err("nothing comes");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

/// The nodes of a machine's file.
fn nodes(machine: &Machine) -> Value {
    let configuration = machine.configuration();
    let done =
        inside(machine, &["node", "list", "--json", "--config", configuration.to_str().expect("text")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("JSON")
}

/// Replaces words in the fabric file of a machine.
fn edit(machine: &Machine, changes: &[(&str, &str)]) {
    let file = machine.configuration().join("fabric.toml");
    let mut text = fs::read_to_string(&file).expect("read");
    for (before, after) in changes {
        assert!(text.contains(before), "{before} is not in\n{text}");
        text = text.replacen(before, after, 1);
    }
    machine.write_text(&text);
}

#[test]
fn another_node_becomes_the_keeper_moves_to_another_machine_and_is_replaced_when_it_is_lost() {
    let Some(network) = TestNetwork::without_services(3) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let fabric = Fabric { keeper: Some("a".to_owned()), ..network.fabric() };
    network.machines.iter().for_each(|machine| machine.write(&fabric));
    let [(one, _), (other, _), (third, _)] = [a, b, c].map(Up::start);
    edit(a, &[("keeper = \"a\"", "keeper = \"b\""), ("serial = 1", "serial = 2")]);
    one.signal("-HUP");
    for machine in [b, c] {
        eventually("the new keeper is known", || nodes(machine)["keeper"] == "b");
    }
    let configuration = b.configuration();
    let removed = inside(b, &["node", "remove", "c", "--config", configuration.to_str().expect("text")]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    eventually("it keeps the list", || nodes(a)["serial"] == 3);

    // Other hardware with the files of the backup, and another address.
    drop((other, third));
    for name in ["node.key", "fabric.toml"] {
        fs::copy(b.configuration().join(name), c.configuration().join(name)).expect("copied");
    }
    edit(c, &[("10.78.0.2:7248", "10.78.0.3:7248"), ("serial = 3", "serial = 4")]);
    let (restored, _) = Up::start(c);
    eventually("the others get its file", || nodes(a)["serial"] == 4);
    eventually("a channel", || inside(a, &["ping", "b", "--count", "1"]).status.success());

    // It is lost for good.
    drop(restored);
    let file = fs::read_to_string(a.configuration().join("fabric.toml")).expect("read");
    let lost = file.split("[[node]]").find(|node| node.contains("name = \"b\"")).expect("its lines");
    let lost = format!("[[node]]{lost}");
    edit(a, &[("keeper = \"b\"", "keeper = \"a\""), ("serial = 4", "serial = 5"), (&lost, "")]);
    one.signal("-HUP");
    let place = a.configuration();
    let invite = ["invite", "d", "--config", place.to_str().expect("text")];
    eventually("it keeps the list itself", || inside(a, &invite).status.success());
    assert_eq!(nodes(a)["nodes"].as_array().map(Vec::len), Some(1));
}
