//! The keeper's fabric file reaches the other nodes, also one that was away, and ends connections with a removed node
//! within a second. A node of the fabric that is not its keeper spreads nothing. A machine joins by an invitation,
//! once. Needs root.
//!
//! A removal holds on a node with a full and with a read-only disk, also after a restart of its service. The machines
//! are network namespaces on one bridge.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bywire_node::client::ClientError;
use bywire_node::fabric::Fabric;
use bywire_node::invitation::Invitation;
use bywire_node::join::{self, Candidate, JoinError};
use bywire_node::{client, fabric, file, key};
use bywire_sys::listener::Listener;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::udp::UdpSocket;
use bywire_sys::{clock, process};
use bywire_testing::alone;
use bywire_testing::eventually;
use bywire_testing::test_network::stopwatch::Stopwatch;
use bywire_testing::test_network::{FakePort, Machine, TIMEOUT, TestNetwork, call, ip};
use bywire_wire::channel::{Channels, Event, Options};
use bywire_wire::handshake::{Identity, KEY_BYTES, MAC_BYTES, PublicKey};
use bywire_wire::service::status::{Entry, Service};
use bywire_wire::service::{
    End, NotInvited, Notice, PACKET_BYTES_MAX, Request, SOCKET_NAME, VERSION, from_bytes, to_bytes,
};
use bywire_wire::service_message::{FilePart, NotJoined, ServiceMessage};

/// How soon a removed node has to be cut off.
const CUT_OFF: Duration = Duration::from_secs(1);

/// A fabric of all machines, whose keeper is the first one.
fn kept(network: &TestNetwork, serial: u64) -> Fabric {
    Fabric { serial, keeper: Some("a".to_owned()), ..network.fabric() }
}

/// Machines of which the first one, the keeper, is alone in its fabric. No other one has a service.
fn lonely_keeper(machines: usize) -> Option<TestNetwork> {
    let mut network = TestNetwork::without_services(machines)?;
    let mut fabric = kept(&network, 1);
    fabric.nodes.truncate(1);
    network.machines[0].write(&fabric);
    network.machines[0].start();
    Some(network)
}

/// Machines with the fabric of a keeper. So many of them have a service.
fn kept_network(machines: usize, serial: u64, services: usize) -> Option<TestNetwork> {
    let mut network = TestNetwork::without_services(machines)?;
    let fabric = kept(&network, serial);
    network.machines.iter().for_each(|machine| machine.write(&fabric));
    network.machines.iter_mut().take(services).for_each(Machine::start);
    Some(network)
}

fn service(machine: &Machine) -> Service {
    match machine.status().into_iter().next() {
        Some(Entry::Service(service)) => service,
        other => panic!("{other:?}"),
    }
}

fn has_serial(machine: &Machine, serial: u64) -> bool {
    service(machine).serial == serial
}

#[test]
fn a_changed_file_reaches_every_node_and_ends_connections_with_a_removed_one() {
    let Some(mut network) = kept_network(4, 1, 3) else { return };
    let [a, b, c, _] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(b, "asking"), FakePort::open(c, "render"));
    let _terms = asking.meet(1, "c", &mut asked, 11);

    // With a file of many parts: the comments of the user are in it.
    let mut text = kept(&network, 2).to_string();
    (0..5000).for_each(|line| text += &format!("# comment {line}\n"));
    a.write_text(&text);
    assert_eq!(a.reload(), "fabric lab, serial 2: 4 nodes");
    for machine in [b, c] {
        eventually("the file", || has_serial(machine, 2));
        let path = machine.configuration().join(fabric::FILE_NAME);
        assert_eq!(std::fs::read_to_string(path).expect("read"), text);
    }

    // The other nodes cut the removed one off.
    let mut without = kept(&network, 3);
    without.nodes.remove(2);
    a.write(&without);
    assert_eq!(cuts_off(a, &mut asking), "fabric lab, serial 3: 3 nodes");
    eventually("the file", || has_serial(b, 3));
    assert!(has_serial(c, 2), "it is not told");

    // A node that was away gets it when it is back, although its keeper has been told of nothing.
    network.machines[3].start();
    eventually("the file of a node that was away", || has_serial(&network.machines[3], 3));
    // So does one whose keeper is away at first.
    network.machines[0].stop();
    network.machines[3].stop();
    network.machines[0].write(&Fabric { serial: 4, ..without.clone() });
    network.machines[3].start();
    network.machines[0].start();
    eventually("the file of a keeper that was away", || has_serial(&network.machines[3], 4));
}

#[test]
fn a_file_that_a_node_cannot_write_is_in_force_at_once_and_written_as_soon_as_that_is_possible() {
    let Some(network) = kept_network(2, 1, 2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    eventually("a channel", || b.count_of("a", "channels") > 0);
    // Something is where the other node writes it.
    let configuration = b.configuration();
    std::fs::create_dir(configuration.join("fabric.toml.new")).expect("made");
    a.write(&kept(&network, 2));
    a.reload();
    eventually("the file", || has_serial(b, 2));
    let reason = service(b).unwritten.expect("it could not be written");
    assert!(reason.contains("fabric.toml.new is there already"), "{reason}");
    assert_eq!(serial_on_disk(b), 1);
    // The older file on the disk does not come back into force.
    b.said();
    let complaint = b.reload();
    assert!(
        complaint.starts_with("serial 2 is in force, and fabric.toml on the disk is older: "),
        "{complaint}"
    );
    assert!(has_serial(b, 2));
    std::fs::remove_dir(configuration.join("fabric.toml.new")).expect("removed");
    eventually("the file on the disk", || service(b).unwritten.is_none());
    assert_eq!(serial_on_disk(b), 2);
}

/// The keeper's service reads a file without a node, and the connection of a port with that node ends in time. Returns the line in
/// its log.
fn cuts_off(keeper: &Machine, asking: &mut FakePort) -> String {
    let began = Stopwatch::start();
    let line = keeper.reload();
    assert_eq!(asking.next(), Notice::Ended { connection: 1, reason: End::NodeRemoved });
    let took = began.elapsed();
    println!("a node was cut off after {took:?}");
    assert!(took < CUT_OFF, "{took:?}");
    line
}

fn serial_on_disk(machine: &Machine) -> u64 {
    let path = machine.configuration().join(fabric::FILE_NAME);
    Fabric::read(&path, &machine.key).expect("a file").serial
}

#[test]
fn a_node_whose_disk_is_full_cuts_a_removed_node_off_within_a_second() {
    let name = "a_node_whose_disk_is_full_cuts_a_removed_node_off_within_a_second";
    let fill = |directory: &Path| {
        let mut file = std::fs::File::create(directory.join("filler")).expect("made");
        let error = (0..).find_map(|_| file.write_all(&[0; 4096]).err()).expect("it is small");
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    };
    let empty = |directory: &Path| std::fs::remove_file(directory.join("filler")).expect("it is there");
    in_own_mounts(name, || cuts_a_removed_node_off("No space left", fill, empty));
}

#[test]
fn a_node_whose_disk_is_read_only_cuts_a_removed_node_off_within_a_second() {
    let name = "a_node_whose_disk_is_read_only_cuts_a_removed_node_off_within_a_second";
    let [stop, permit] =
        ["remount,ro", "remount,rw"].map(|mode| move |directory: &Path| mount(&["-o", mode], directory));
    in_own_mounts(name, || cuts_a_removed_node_off("Read-only", stop, permit));
}

/// Runs a test in a process with its own mounts. Not, and says so, where this process may not have such.
fn in_own_mounts(test: &str, run: impl FnOnce()) {
    const INSIDE: &str = "BYWIRE_TEST_OWN_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return run();
    }
    let mut probe = Command::new("unshare");
    if !probe.args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        return println!("not run: no mount namespace can be made here: run as root");
    }
    let program = std::env::current_exe().expect("this program");
    let mut inside = Command::new("unshare");
    inside.arg("--mount").arg(program).args(alone(test)).env(INSIDE, "1");
    let done = inside.output().expect("`unshare` runs");
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(done.status.success(), "{text}");
    print!("{text}");
}

fn mount(arguments: &[&str], directory: &Path) {
    let done = Command::new("mount").args(arguments).arg(directory).output().expect("`mount` runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Removes a node while another one can write nothing in its directory, a small file system of its own.
fn cuts_a_removed_node_off(reason: &str, stop_writes: impl FnOnce(&Path), permit_writes: impl FnOnce(&Path)) {
    let Some(mut network) = TestNetwork::without_services(3) else { return };
    let directory = network.machines[1].configuration();
    let key_file = directory.join(key::FILE_NAME);
    let key = std::fs::read_to_string(&key_file).expect("a key");
    mount(&["-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs"], &directory);
    file::make(&key_file, 0o600, &key).expect("written");
    let fabric = kept(&network, 1);
    network.machines.iter().for_each(|machine| machine.write(&fabric));
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let (mut asking, mut asked) = (FakePort::open(b, "asking"), FakePort::open(c, "render"));
    let _terms = asking.meet(1, "c", &mut asked, 11);
    stop_writes(&directory);

    let mut without = kept(&network, 2);
    without.nodes.remove(2);
    a.write(&without);
    cuts_off(a, &mut asking);
    eventually("the reason", || service(b).unwritten.is_some_and(|unwritten| unwritten.contains(reason)));
    assert!(has_serial(b, 2) && serial_on_disk(b) == 1);
    eventually("the keeper is told", || a.status_of("b").ahead.is_none());

    // Nor does a service that restarts meanwhile take it for a member, although the keeper is away.
    network.machines[0].stop();
    network.machines[1].stop();
    network.machines[1].start();
    let [_, b, _] = &network.machines[..] else { unreachable!() };
    eventually("the reason", || service(b).unwritten.is_some_and(|unwritten| unwritten.contains(reason)));
    assert!(has_serial(b, 2) && serial_on_disk(b) == 1);
    let copy = b.runtime().join(fabric::FILE_NAME);
    assert!(copy.exists());

    permit_writes(&directory);
    eventually("the file on the disk", || service(b).unwritten.is_none());
    assert!(serial_on_disk(b) == 2 && !copy.exists());
}

#[test]
fn a_node_whose_serial_was_raised_by_hand_is_reported_by_the_keeper() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines[0].write(&kept(&network, 2));
    network.machines[1].write(&kept(&network, 9));
    network.machines.iter_mut().for_each(Machine::start);
    let [a, b] = &network.machines[..] else { unreachable!() };
    eventually("the report", || a.status_of("b").ahead == Some(9));
    assert!(a.said().iter().any(|line| line.starts_with("node b takes no changes")));
    a.write(&kept(&network, 10));
    a.reload();
    eventually("the file", || has_serial(b, 10) && a.status_of("b").ahead.is_none());
}

/// What `bywire join` does on a machine. A child process of a concurrent test has the socket of the last one until its `exec`.
fn join(machine: &Machine, invitation: &Invitation, udp_port: u16) -> Result<String, JoinError> {
    let began = Instant::now();
    loop {
        match join_once(machine, invitation, udp_port) {
            Err(JoinError::PortTaken(_)) if began.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

fn join_once(machine: &Machine, invitation: &Invitation, udp_port: u16) -> Result<String, JoinError> {
    let key = key::read(&machine.configuration().join(key::FILE_NAME)).expect("a key");
    let candidate = Candidate { key: &key, addresses: &[], udp_port, boot_id: machine.boot_id };
    machine.namespace.run(|| join::join(invitation, &candidate, || ())).expect("inside")
}

fn invite(keeper: &Machine, name: &str) -> Result<Invitation, NotInvited> {
    let key_file = keeper.configuration().join(key::FILE_NAME);
    let line = client::invite(Some(&keeper.runtime()), &key_file, name).expect("an answer");
    line.map(|line| line.parse().expect("an invitation"))
}

#[test]
fn a_machine_joins_by_an_invitation_which_is_good_once() {
    let Some(mut network) = lonely_keeper(3) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    assert_eq!(invite(a, "a"), Err(NotInvited::NameTaken));
    assert_eq!(invite(a, "a/b"), Err(NotInvited::NoName));
    let invitation = invite(a, "b").expect("it is the keeper");
    assert_eq!((invitation.keeper, &*invitation.fabric, &*invitation.node), (a.key, "lab", "b"));

    // The port is taken, and nothing has happened.
    let taken = b.namespace.run(|| UdpSocket::bind_everywhere(7248)).expect("inside").expect("bound");
    assert!(matches!(join_once(b, &invitation, 7248), Err(JoinError::PortTaken(7248))));
    drop(taken);
    // With a name that is not the invitation's, it stays good.
    let other_name = Invitation { node: "d".to_owned(), ..invitation.clone() };
    let refused = join(b, &other_name, 7248).expect_err("refused");
    assert!(matches!(&refused, JoinError::Rejected(reason) if reason.contains("for a node b")), "{refused}");
    let text = join(b, &invitation, 7248).expect("joined");
    let path = b.configuration().join(fabric::FILE_NAME);
    let joined = Fabric::of(&path, &text, &b.key).expect("it is in the file");
    assert_eq!((joined.serial, joined.nodes.len()), (2, 2));
    // Its address is the one that its packets came from.
    assert_eq!(joined.nodes[1].addresses, [b.address.to_string().parse().expect("an address")]);
    assert!(has_serial(a, 2));
    assert!(matches!(
        join(c, &Invitation { node: "b".to_owned(), ..invitation.clone() }, 7248),
        Err(JoinError::Used(_))
    ));
    // One that has lost the answer asks again.
    assert_eq!(join(b, &invitation, 7248).expect("once more"), text);

    // The keeper has another secret for the same node now, so there is no answer to the old one.
    let old = invite(a, "c").expect("the first one");
    let new = invite(a, "c").expect("the second one");
    let began = Instant::now();
    let refused = join(c, &old, 7300).expect_err("refused");
    assert!(matches!(refused, JoinError::NoAnswer(..)), "{refused}");
    assert!(began.elapsed() < TIMEOUT);
    assert!(a.strangers("unknown_keys") > 0);
    b.write_text(&text);
    network.machines[1].start();
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let text = join(c, &new, 7300).expect("joined");
    assert!(text.contains("addresses = [\"10.78.0.3:7300\"]"), "{text}");
    eventually("the other node knows the new one", || has_serial(b, 3));
    assert_eq!(invite(b, "d"), Err(NotInvited::OtherKeeper("a".to_owned())));
    // A removed node cannot come back by its invitation.
    let mut without = Fabric::of(&path, &text, &a.key).expect("valid");
    (without.serial, without.nodes) = (4, without.nodes[..2].to_vec());
    a.write(&without);
    assert!(client::reload(Some(&a.runtime())).expect("an answer").is_none());
    assert!(matches!(join(c, &new, 7300), Err(JoinError::Used(_))));
}

#[test]
fn a_machine_behind_a_firewall_joins_a_keeper_that_it_knows_by_a_second_address() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    let mut fabric = kept(&network, 1);
    fabric.nodes.truncate(1);
    let [a, b] = &network.machines[..] else { unreachable!() };
    ip(&a.namespace, "address add 10.78.0.101/24 dev eth0");
    fabric.nodes[0].addresses = vec!["10.78.0.101:7248".parse().expect("an address")];
    a.write(&fabric);
    if !b.lets_only_answers_in() {
        return;
    }
    network.machines[0].start();
    let [a, b] = &network.machines[..] else { unreachable!() };
    let invitation = invite(a, "b").expect("it is the keeper");
    let text = join(b, &invitation, 7248).expect("joined");
    b.write_text(&text);
    network.machines[1].start();
    let [a, b] = &network.machines[..] else { unreachable!() };
    let mut asking = FakePort::open(b, "asking");
    let mut asked = FakePort::open(a, "asked");
    let [_, theirs] = asking.meet(1, "a", &mut asked, 11);
    assert_eq!(theirs.path.peer.ip(), b.address.ip());
}

#[test]
fn a_machine_that_is_refused_again_and_again_has_no_invitation_any_more() {
    let Some(network) = lonely_keeper(2) else { return };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let invitation = invite(a, "b").expect("it is the keeper");
    let mut rogue = Rogue::with_secret(b, a, Some(*invitation.secret));
    // Each of these has the keeper read its file and try to change it, as there are more addresses than a node may have.
    let began = Instant::now();
    let addresses = vec!["10.78.0.2".to_owned(); 9];
    let asked = ServiceMessage::Join { name: "b".to_owned(), addresses, udp_port: 7248 };
    const COUNT: usize = 100;
    (0..COUNT).for_each(|_| rogue.say(&a.key, &asked));
    rogue.run_until("answers", |rogue| rogue.heard.len() == COUNT);
    let is_cheap = |heard: &&ServiceMessage| matches!(heard, ServiceMessage::NotJoined(NotJoined::Expired));
    assert_eq!(rogue.heard.iter().filter(is_cheap).count(), COUNT - 8, "{:?}", rogue.heard);
    // The log has a bounded part of that: some at once, and one in a second.
    let lines = a.said().len() as u64;
    assert!(lines <= 17 + began.elapsed().as_secs() && lines < COUNT as u64, "{lines}");
    drop(rogue);
    assert!(matches!(join(b, &invitation, 7248), Err(JoinError::Expired(_))));
    assert!(has_serial(a, 1) && invite(a, "b").is_ok(), "a new one is made");
}

#[test]
fn a_program_that_cannot_read_the_key_gets_no_invitation() {
    let Some(network) = lonely_keeper(1) else { return };
    let a = &network.machines[0];
    let key = key::read(&a.configuration().join(key::FILE_NAME)).expect("a key");
    // A process of root in a container has the runtime directory, and no more.
    let ask = |socket: &Socket, proof| {
        let request = Request::Invite { version: VERSION, node: "b".to_owned(), proof };
        socket.send(&to_bytes(&request).expect("it fits"), &[]).expect("sent");
        answer(socket)
    };
    let (socket, other) = (call(&a.runtime()), call(&a.runtime()));
    let Notice::Prove { challenge, key_file } = ask(&socket, [0; MAC_BYTES]) else { panic!("no proof") };
    assert_eq!(Path::new(&key_file), a.configuration().join(key::FILE_NAME));
    // The proof of one program is none for another, nor for another name.
    let proof = key.prove(&challenge, "b");
    for (socket, proof) in [(&other, proof), (&socket, key.prove(&challenge, "c"))] {
        assert!(matches!(ask(socket, proof), Notice::Prove { .. }));
    }
    assert!(matches!(ask(&socket, proof), Notice::Invited { .. }));
    assert!(invite(a, "c").is_ok());
    let elsewhere = a.directory.path().join("elsewhere");
    let invite = || client::invite(Some(&a.runtime()), &elsewhere, "d");
    assert!(matches!(invite(), Err(ClientError::NoKey { .. })));
    key::make(&elsewhere).expect("written");
    assert!(matches!(invite(), Err(ClientError::OtherKey(named)) if named == key_file));
}

#[test]
fn a_program_in_the_place_of_the_service_learns_no_invitation() {
    let Some(network) = lonely_keeper(1) else { return };
    let a = &network.machines[0];
    let key_file = a.configuration().join(key::FILE_NAME);
    // Root in a container can put a socket of its own into the runtime directory, and pass everything on.
    let place = tempfile::tempdir().expect("a directory");
    let listener = Listener::bind(&place.path().join(SOCKET_NAME)).expect("bound");
    let relay = || {
        let service = call(&a.runtime());
        let (mut caller, mut seen) = (None, Vec::new());
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            caller = caller.or_else(|| listener.accept().expect("it listens"));
            let mut packet = [0; PACKET_BYTES_MAX];
            match caller.as_ref().map(|caller| caller.receive(&mut packet)) {
                Some(Ok(Received::Packet(length, _))) => {
                    service.send(&packet[..length], &[]).expect("sent");
                    let answer = answer_bytes(&service);
                    caller.as_ref().expect("it asks").send(&answer, &[]).expect("sent");
                    seen.extend(answer);
                }
                Some(Ok(Received::Closed)) => break,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        seen
    };
    let (line, seen) = std::thread::scope(|scope| {
        let relayed = scope.spawn(relay);
        let line =
            client::invite(Some(place.path()), &key_file, "b").expect("an answer").expect("it is the keeper");
        (line, relayed.join().expect("it ended well"))
    });
    let invitation: Invitation = line.parse().expect("an invitation");
    let words = line.split(' ').nth(2).expect("the secret").as_bytes();
    let has = |words: &[u8]| seen.windows(words.len()).any(|part| part == words);
    assert!(seen.len() > line.len() && !has(words) && !has(&*invitation.secret));
}

/// What the service answers.
fn answer_bytes(socket: &Socket) -> Vec<u8> {
    let mut poller = Poller::new().expect("a poller");
    poller.add(socket, 0).expect("watched");
    assert!(!poller.wait(Some(TIMEOUT)).expect("waited").is_empty(), "no answer");
    let mut packet = [0; PACKET_BYTES_MAX];
    match socket.receive(&mut packet).expect("received") {
        Received::Packet(length, _) => packet[..length].to_vec(),
        other => panic!("{other:?}"),
    }
}

fn answer(socket: &Socket) -> Notice {
    from_bytes(&answer_bytes(socket)).expect("a notice")
}

/// A node of the fabric whose service says anything.
struct Rogue {
    socket: UdpSocket,
    channels: Channels,
    heard: Vec<ServiceMessage>,
}

impl Rogue {
    fn new(machine: &Machine, target: &Machine) -> Self {
        Self::with_secret(machine, target, None)
    }

    /// One that uses an invitation if it has a secret.
    fn with_secret(machine: &Machine, target: &Machine, shared_secret: Option<[u8; KEY_BYTES]>) -> Self {
        let bind = || UdpSocket::bind_everywhere(machine.address.port()).ok();
        let socket = eventually("the port is free", || machine.namespace.run(bind).expect("inside"));
        let key = key::read(&machine.configuration().join(key::FILE_NAME)).expect("a key");
        let identity = Identity { key, shared_secret, boot_id: [9; 16], incarnation: 1 };
        let mut channels = Channels::new(identity, Options { has_aes: false });
        let now_ns = clock::nanoseconds();
        assert!(channels.add(now_ns, target.key, vec![target.address]));
        channels.connect(now_ns, &target.key).expect("just added");
        let mut rogue = Self { socket, channels, heard: Vec::new() };
        rogue.run_until("a channel", |rogue| {
            rogue.channels.status(&target.key).is_some_and(|status| status.channel.is_some())
        });
        rogue
    }

    /// Lets packets pass, until the condition holds.
    fn run_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        let mut buffer = [0; 65_536];
        while !is_so(self) {
            assert!(Instant::now() < deadline, "timed out waiting: {what}");
            let now_ns = clock::nanoseconds();
            let mut random = |bytes: &mut [u8]| process::random(bytes).expect("random numbers");
            while let Ok(Some((length, from))) = self.socket.receive_from(&mut buffer) {
                self.channels.receive(now_ns, &mut random, from, &mut buffer[..length]);
            }
            let mut out = Vec::new();
            self.channels.transmit(now_ns, &mut random, &mut out);
            for (path, packet) in out {
                self.socket.send(Some(path.peer), &packet).expect("sent");
            }
            while let Some(event) = self.channels.next_event(now_ns) {
                if let Event::Message { bytes, .. } = event {
                    self.heard.push(from_bytes(&bytes).expect("a message"));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn say(&mut self, target: &PublicKey, message: &ServiceMessage) {
        let bytes = to_bytes(message).expect("it fits");
        self.channels.send(clock::nanoseconds(), target, &bytes).expect("the channel is up");
    }
}

#[test]
fn a_member_that_is_not_the_keeper_spreads_nothing_and_invites_nobody() {
    let Some(network) = kept_network(3, 5, 2) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    // One without this node, one that makes the rogue the keeper, an older one, and ones that are too long.
    let evil = Fabric { keeper: Some("c".to_owned()), ..kept(&network, 9) }.to_string().into_bytes();
    let part = |serial: u64, length: usize| {
        let (length, bytes) = (length as u32, evil[..evil.len().min(3000)].to_vec());
        ServiceMessage::FilePart(FilePart { serial, length, offset: 0, bytes })
    };
    for target in [a, b] {
        let mut rogue = Rogue::new(c, target);
        let join = ServiceMessage::Join {
            name: "d".to_owned(),
            addresses: vec!["10.78.0.9".to_owned()],
            udp_port: 7248,
        };
        for message in [
            ServiceMessage::FileSerial { serial: 9 },
            part(9, evil.len()),
            part(4, evil.len()),
            part(9, usize::from(u16::MAX)),
            part(9, u32::MAX as usize),
            ServiceMessage::FileHeld { serial: u64::MAX },
            join,
            ServiceMessage::Joined,
            // This one is answered.
            ServiceMessage::FileAsk { held: 0, wanted: 77, offset: u32::MAX },
        ] {
            rogue.say(&target.key, &message);
        }
        rogue.run_until("an answer", |rogue| {
            rogue.heard.iter().any(|heard| matches!(heard, ServiceMessage::FilePart(_)))
        });
        let found = rogue.heard.iter().find_map(|heard| match heard {
            ServiceMessage::FilePart(part) => Some((part.serial, part.offset)),
            _ => None,
        });
        assert_eq!(found, Some((5, 0)), "everybody in the fabric may read the file");
        let is_asked = |heard: &ServiceMessage| matches!(heard, ServiceMessage::FileAsk { .. });
        assert!(!rogue.heard.iter().any(is_asked), "{:?}", rogue.heard);
        assert!(has_serial(target, 5));
    }
    let nodes = |machine: &Machine| {
        machine.status().into_iter().filter(|entry| matches!(entry, Entry::Node(_))).count()
    };
    assert_eq!((nodes(a), nodes(b)), (3, 3));
}
