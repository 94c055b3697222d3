//! Connections between programs of two machines, carried by an engine on each: every byte arrives in order, and so does every end,
//! also when a program or an engine is killed, and when a program passes its end on. No end hides a loss.
//!
//! The machines are network namespaces, each with a node of the fabric, a pairing service and an engine. Random:
//! `BYWIRE_ROUNDS`, 12, 30, and 1,000 in a soak.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bywire_engine::control::{self, Request};
use bywire_engine::counts::Counts;
use bywire_pairing::protocol::ENGINE_VARIABLE;
use bywire_testing::repetitions;
use bywire_testing::test_network::TestNetwork;

use crate::relayed::{Engine, FABRIC_VARIABLE, bytes_from, read_all};
use crate::test_service::{self, Running, TestService, say, told};

/// Bytes in each direction.
pub const TOTAL: u64 = 3_000_000;
/// The longest of the random sends.
const PIECE_BYTES_MAX: u64 = 6000;
pub const PORT: u16 = 7000;

/// Two machines, and what runs on each.
pub struct Machines {
    pub network: TestNetwork,
    pub services: [TestService; 2],
    pub engines: [Engine; 2],
    /// What programs are told of engines.
    word: &'static str,
}

impl Machines {
    /// `None` where this machine cannot make them, after the reason has been printed.
    pub fn up() -> Option<Self> {
        let network = TestNetwork::up(2)?;
        let services = [TestService::new(), TestService::new()];
        let engines = [0, 1].map(|at| Self::engine(&network, &services[at], at));
        Some(Self { network, services, engines, word: "prefer" })
    }

    /// From here on programs require that their connections are carried.
    pub fn requiring(self) -> Self {
        Self { word: "require", ..self }
    }

    fn engine(network: &TestNetwork, service: &TestService, at: usize) -> Engine {
        let machine = &network.machines[at];
        let mut command = Engine::command(service);
        command.env(FABRIC_VARIABLE, "1").env("BYWIRE_RUNTIME_DIR", machine.runtime());
        machine.namespace.run(|| Engine::start_as(service, &mut command)).expect("inside")
    }

    /// Replaces an engine that has ended.
    pub fn replace_engine(&mut self, at: usize) {
        self.engines[at] = Self::engine(&self.network, &self.services[at], at);
    }

    /// Starts a command on a machine, once `prepare` has set what it is told.
    pub fn start(&self, at: usize, mut command: Command, prepare: impl FnOnce(&mut Command)) -> Running {
        command.env("BYWIRE_TEST_ADDRESS", self.address(1)).env(ENGINE_VARIABLE, self.word);
        prepare(&mut command);
        self.network.machines[at].namespace.run(|| Running::start(&mut command)).expect("inside")
    }

    /// Starts this test on a machine, in a role, with the library.
    pub fn program(&self, at: usize, role: &str, seed: u64) -> Running {
        self.start(at, self.services[at].program(role, Some(seed % 5)), |command| {
            command.env("BYWIRE_TEST_SEED", (seed * 2 + at as u64).to_string());
        })
    }

    /// The same for a program that is told two places, its own and the other machine's.
    pub fn program_between(&self, at: usize, role: &str, seed: u64) -> Running {
        self.start(at, self.services[at].program(role, Some(seed % 5)), |command| {
            command.env("BYWIRE_TEST_SEED", (seed * 2 + at as u64).to_string());
            for (name, machine) in [("BYWIRE_TEST_OWN", at), ("BYWIRE_TEST_PEER", 1 - at)] {
                command.env(name, format!("{}:{PORT}", self.address(machine)));
            }
        })
    }

    /// Starts this test on a machine, in a role, without the library. It is told a number.
    pub fn plain_program(&self, at: usize, role: &str, count: usize) -> Running {
        self.start(at, self.services[at].program(role, None), |command| {
            command.env("BYWIRE_TEST_COUNT", count.to_string());
        })
    }

    fn address(&self, at: usize) -> String {
        self.network.machines[at].address.ip().to_string()
    }

    /// Gives each machine one more address, which is no node's.
    pub fn other_addresses(&self) -> [String; 2] {
        [0, 1].map(|at| {
            let address = IpAddr::from([10, 79, 0, at as u8 + 1]);
            self.network.machines[at].add_address(address);
            address.to_string()
        })
    }

    /// A client of the first machine and a server of the second one, which have a connection.
    pub fn programs(&self, roles: [&str; 2], seed: u64) -> [Running; 2] {
        let mut server = self.program(1, roles[1], seed);
        assert_eq!(server.hear(), "listens");
        [self.program(0, roles[0], seed), server]
    }

    /// Waits for a moment until an engine carries a connection, and then for one that differs from seed to seed. Returns whether
    /// it does.
    fn wait_until_carried(&self, seed: u64) -> bool {
        let started = Instant::now();
        let is_carried = || self.engines.iter().any(|engine| engine.counts().carried > 0);
        while !is_carried() && started.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_micros(200));
        }
        let was_carried = is_carried();
        std::thread::sleep(Duration::from_micros(seed * 7919 % 8000));
        was_carried
    }

    /// Connections that both engines have carried.
    pub fn carried(&self) -> u64 {
        self.engines.iter().map(|engine| engine.counts().carried_ever).min().unwrap_or(0)
    }
}

pub fn listen() -> TcpStream {
    try_listen().expect("accept")
}

fn try_listen() -> std::io::Result<TcpStream> {
    let listener = TcpListener::bind((told("BYWIRE_TEST_ADDRESS").as_str(), PORT)).expect("listen");
    say("listens");
    listener.accept().map(|(stream, _)| stream)
}

pub fn connect() -> TcpStream {
    try_connect().expect("connect")
}

fn try_connect() -> std::io::Result<TcpStream> {
    TcpStream::connect((told("BYWIRE_TEST_ADDRESS").as_str(), PORT))
}

pub fn seed() -> u64 {
    told("BYWIRE_TEST_SEED").parse().expect("a number")
}

/// Sends the bytes of a stream from one place to another, in random pieces with pauses.
fn send(stream: &mut TcpStream, seed: u64, from: u64, to: u64) -> std::io::Result<()> {
    let (mut state, mut sent) = (seed | 1, from);
    while sent < to {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = ((state >> 33) % PIECE_BYTES_MAX + 1).min(to - sent);
        stream.write_all(&bytes_from(sent, length))?;
        sent += length;
        if state >> 58 == 0 {
            std::thread::sleep(Duration::from_micros(state >> 40 & 1023));
        }
    }
    Ok(())
}

/// Sends and receives at once, and says how much has come and how that has ended.
pub fn exchange(mut stream: TcpStream) {
    let mut copy = stream.try_clone().expect("a copy");
    let sender = std::thread::spawn(move || {
        let sent = send(&mut copy, seed(), 0, TOTAL);
        if sent.is_ok() {
            // A peer that was killed may have reset it by now.
            let _shut = copy.shutdown(Shutdown::Write);
        }
        sent.is_ok()
    });
    let (count, has_ended) = read_all(&mut stream);
    // TCP reports a reset to one call only, which may be a send. A receive then finds the end.
    let is_in_order = sender.join().expect("no panic") && has_ended;
    say(&format!("{count} {is_in_order}"));
}

fn client() {
    exchange(connect());
}

fn server() {
    exchange(listen());
}

/// Exchanges bytes beside a program or an engine that is killed at any moment. A connection that requires to be carried is refused
/// if that was before.
fn exchange_beside_a_kill(stream: std::io::Result<TcpStream>) {
    match stream {
        Ok(stream) => exchange(stream),
        Err(_) => say("0 false"),
    }
}

/// How much a program has received, and whether the stream has ended in order.
pub fn outcome(program: &mut Running) -> (u64, bool) {
    let said = program.hear();
    let (count, is_in_order) = said.split_once(' ').expect("two words");
    (count.parse().expect("a number"), is_in_order == "true")
}

#[test]
fn every_byte_and_every_end_arrives_on_another_machine() {
    if test_service::plays(&[("client", client), ("server", server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let rounds = repetitions("BYWIRE_ROUNDS", [12, 30, 1000]);
    for seed in 0..rounds {
        let mut programs = machines.programs(["client", "server"], seed);
        for program in &mut programs {
            assert_eq!(outcome(program), (TOTAL, true), "seed {seed}");
            assert!(program.end().success(), "seed {seed}");
        }
    }
    let counts = machines.engines[0].counts();
    println!("{} of {rounds} were carried: {counts:?}", machines.carried());
    assert!(machines.carried() * 4 >= rounds * 3, "too few for this to prove anything");
    assert!(counts.bytes_sent + counts.bytes_received > rounds * TOTAL, "{counts:?}");
    let has_none = |counts: Counts| counts.carried == 0 && counts.streams == 0;
    let left = || machines.engines.iter().all(|engine| has_none(engine.counts()));
    test_service::eventually("nothing is left", left);
}

/// Sends much, and nothing comes back but the end.
fn streaming_client() {
    let mut stream = connect();
    let piece = bytes_from(0, 1 << 16);
    for _ in 0..STREAM_BYTES / piece.len() as u64 {
        stream.write_all(&piece).expect("sent");
    }
    stream.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(read_rest(&mut stream), 0);
}

fn reading_server() {
    let mut stream = listen();
    let (mut count, mut buffer) = (0, vec![0; 1 << 16]);
    let started = Instant::now();
    loop {
        match stream.read(&mut buffer).expect("received") {
            0 => break,
            length => count += length as u64,
        }
    }
    say(&format!("{count} {}", started.elapsed().as_millis()));
}

/// Bytes of a stream in one direction.
const STREAM_BYTES: u64 = 64 << 20;
/// A stream that stands still goes on only when something else wakes an engine.
const STREAM_TIME_MAX: Duration = Duration::from_secs(20);

#[test]
fn a_stream_whose_reader_keeps_up_does_not_stand_still() {
    if test_service::plays(&[("client", streaming_client), ("server", reading_server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    // All of it is carried.
    let machines = machines.requiring();
    let rounds = repetitions("BYWIRE_ROUNDS", [1, 2, 20]);
    for seed in 0..rounds {
        let [mut client, mut server] = machines.programs(["client", "server"], seed);
        let said = server.hear();
        let (count, milliseconds) = said.split_once(' ').expect("two words");
        assert_eq!(count, STREAM_BYTES.to_string(), "seed {seed}");
        let took = Duration::from_millis(milliseconds.parse().expect("a number"));
        assert!(took < STREAM_TIME_MAX, "seed {seed}: {took:?}");
        assert!(client.end().success() && server.end().success(), "seed {seed}");
    }
    let counts = machines.engines[0].counts();
    assert_eq!(counts.bytes_sent, STREAM_BYTES * rounds, "{counts:?}");
}

/// Connections that are idle for most of the time, but one.
const IDLE_CONNECTIONS: usize = 40;
/// Rounds in which they are used.
const IDLE_ROUNDS: usize = 25;
/// An answer that nothing but another event would bring takes longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Sends a byte over one connection after the other, while another one is never idle. Then each ends, from either side.
fn seldom_talking_client() {
    let address = (told("BYWIRE_TEST_ADDRESS"), PORT);
    let mut streams: Vec<_> = (0..=IDLE_CONNECTIONS)
        .map(|_| TcpStream::connect((address.0.as_str(), address.1)).expect("connect"))
        .collect();
    for stream in &streams {
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("set");
    }
    let ask = |stream: &mut TcpStream, byte: u8| {
        stream.write_all(&[byte]).expect("sent");
        let mut answer = [0];
        stream.read_exact(&mut answer).expect("an answer in time");
        assert_eq!(answer, [byte]);
    };
    let mut busy = streams.pop().expect("the last one");
    for round in 0..IDLE_ROUNDS {
        for (at, stream) in streams.iter_mut().enumerate() {
            // In half of the rounds the engines sleep in between.
            match round % 2 {
                0 => (0..8).for_each(|byte| ask(&mut busy, byte)),
                _ if at % 8 == 0 => std::thread::sleep(Duration::from_millis(2)),
                _ => {}
            }
            ask(stream, at as u8);
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    for (at, mut stream) in streams.into_iter().enumerate() {
        if at % 2 == 0 {
            // The server ends it.
            stream.write_all(&[u8::MAX]).expect("sent");
        } else {
            // The server answers the end by its own, so the kernel closes the connection before the engine tells of that.
            stream.shutdown(Shutdown::Write).expect("shut down");
        }
        assert_eq!(stream.read(&mut [0]).expect("an end in time"), 0);
    }
    say("right");
}

/// Returns each byte to its sender, until the end of each connection or until it asks for the end.
fn answering_server() {
    let listener = TcpListener::bind((told("BYWIRE_TEST_ADDRESS").as_str(), PORT)).expect("listen");
    say("listens");
    let answer = |mut stream: TcpStream| {
        stream.set_nodelay(true).expect("set");
        let mut byte = [0];
        while stream.read(&mut byte).is_ok_and(|length| length > 0) && byte != [u8::MAX] {
            stream.write_all(&byte).expect("sent");
        }
    };
    let threads: Vec<_> = (0..=IDLE_CONNECTIONS)
        .map(|_| {
            let (stream, _) = listener.accept().expect("accept");
            std::thread::spawn(move || answer(stream))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    say("right");
}

#[test]
fn an_idle_connection_is_heard_at_once_and_so_is_its_end() {
    if test_service::plays(&[("client", seldom_talking_client), ("server", answering_server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let machines = machines.requiring();
    for seed in 0..repetitions("BYWIRE_ROUNDS", [1, 3, 100]) {
        let mut programs = machines.programs(["client", "server"], seed);
        for program in &mut programs {
            assert_eq!(program.hear(), "right", "seed {seed}");
            assert!(program.end().success(), "seed {seed}");
        }
    }
    let left = || machines.engines.iter().all(|engine| engine.counts().carried == 0);
    test_service::eventually("nothing is left", left);
}

/// What is killed in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Program(usize),
    Engine(usize),
}

#[test]
fn no_end_hides_what_a_killed_program_or_engine_has_lost() {
    let client = || exchange_beside_a_kill(try_connect());
    let server = || exchange_beside_a_kill(try_listen());
    if test_service::plays(&[("client", client), ("server", server)]) {
        return;
    }
    let Some(mut machines) = Machines::up() else { return };
    let rounds = repetitions("BYWIRE_ROUNDS", [12, 30, 1000]);
    let (mut carried, mut in_order) = (0, 0);
    for seed in 0..rounds {
        let victim =
            [Victim::Program(0), Victim::Engine(0), Victim::Program(1), Victim::Engine(1)][seed as usize % 4];
        machines.word = ["require", "prefer"][seed as usize / 4 % 2];
        let mut programs = machines.programs(["client", "server"], seed);
        carried += u64::from(machines.wait_until_carried(seed));
        match victim {
            Victim::Program(at) => {
                programs[at].child.kill().expect("killed");
                programs[at].child.wait().expect("gone");
                // What it had sent is not known, so the bytes that came are only checked one by one.
                let (count, is_in_order) = outcome(&mut programs[1 - at]);
                assert!(count <= TOTAL, "seed {seed}");
                in_order += u64::from(is_in_order);
                assert!(programs[1 - at].end().success(), "seed {seed}");
            }
            Victim::Engine(at) => {
                machines.engines[at].kill();
                for program in &mut programs {
                    let (count, is_in_order) = outcome(program);
                    assert!(!is_in_order || count == TOTAL, "seed {seed}: {count} bytes, and an end");
                    in_order += u64::from(is_in_order);
                    assert!(program.end().success(), "seed {seed}");
                }
                machines.replace_engine(at);
            }
        }
    }
    println!("{carried} of {rounds} were carried when something was killed; {in_order} ends were in order");
    assert!(carried * 2 > rounds, "too few for this to prove anything: {carried}");
}

/// Sends part of its stream, has a child send the rest, and receives what the server sends by another child.
fn passing_client() {
    let mut stream = connect();
    // Meanwhile both directions leave the kernel.
    for turn in 0..400 {
        let mut piece = vec![0; 250];
        send(&mut stream, seed(), turn * 500, (turn + 1) * 500).expect("sent");
        stream.read_exact(&mut piece).expect("received");
        assert!(piece == bytes_from(turn * 250, 250));
        std::thread::sleep(Duration::from_micros(100));
    }
    let end = || Stdio::from(OwnedFd::from(stream.try_clone().expect("a copy")));
    // Neither child has the library.
    let plain = |program: &str| {
        let mut command = Command::new(program);
        command.env_remove("LD_PRELOAD");
        command
    };
    let mut writer = plain("cat").stdin(Stdio::piped()).stdout(end()).spawn().expect("`cat`");
    writer.stdin.take().expect("piped").write_all(&bytes_from(200_000, 100_000)).expect("written");
    assert!(writer.wait().expect("ours").success());
    let read = plain("head").args(["-c", "200000"]).stdin(end()).output().expect("`head`");
    assert!(read.stdout == bytes_from(100_000, 200_000), "{} bytes", read.stdout.len());
    stream.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(read_rest(&mut stream), 0);
    say("done");
}

/// The length of what still comes, in order to the end.
fn read_rest(stream: &mut TcpStream) -> usize {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("an end in order");
    rest.len()
}

fn passing_server() {
    let mut stream = listen();
    let mut copy = stream.try_clone().expect("a copy");
    let sender = std::thread::spawn(move || {
        // Slowly at first, so that the connection does not end before it leaves the kernel.
        for turn in 0..400 {
            send(&mut copy, seed(), turn * 250, (turn + 1) * 250).expect("sent");
            std::thread::sleep(Duration::from_micros(100));
        }
        send(&mut copy, seed(), 100_000, 300_000).expect("sent");
    });
    let (count, is_in_order) = read_all(&mut stream);
    say(&format!("{count} {is_in_order}"));
    sender.join().expect("no panic");
}

#[test]
fn a_program_passes_its_end_of_a_far_connection_on() {
    if test_service::plays(&[("client", passing_client), ("server", passing_server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let rounds = repetitions("BYWIRE_ROUNDS", [6, 20, 300]);
    for seed in 0..rounds {
        let [mut client, mut server] = machines.programs(["client", "server"], seed);
        assert_eq!(client.hear(), "done", "seed {seed}");
        assert_eq!(outcome(&mut server), (300_000, true), "seed {seed}");
        assert!(client.end().success() && server.end().success(), "seed {seed}");
    }
    assert!(machines.carried() * 2 > rounds, "too few for this to prove anything: {}", machines.carried());
}

#[test]
fn connections_that_have_left_the_kernel_are_reset_by_an_engine_that_ends() {
    if test_service::plays(&[("client", client), ("server", server)]) {
        return;
    }
    let Some(mut machines) = Machines::up() else { return };
    let mut reset = 0;
    for seed in 0..repetitions("BYWIRE_ROUNDS", [4, 10, 100]) {
        // A connection that prefers an engine may be over before it has one.
        machines.word = ["require", "prefer"][seed as usize / 2 % 2];
        let mut programs = machines.programs(["client", "server"], seed);
        machines.wait_until_carried(seed);
        let at = seed as usize % 2;
        control::ask(&machines.engines[at].control, Request::Down).expect("an answer");
        for program in &mut programs {
            let (count, is_in_order) = outcome(program);
            assert!(!is_in_order || count == TOTAL, "seed {seed}: {count} bytes, and an end");
            reset += u64::from(!is_in_order);
            assert!(program.end().success(), "seed {seed}");
        }
        assert!(machines.engines[at].running.end().success());
        machines.replace_engine(at);
    }
    assert!(reset > 0, "too few for this to prove anything");
}
