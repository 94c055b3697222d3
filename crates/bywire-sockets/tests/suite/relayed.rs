//! Relayed bytes arrive as over TCP, all of them and in order, and so does every end, also when the program, the engine or the
//! service is killed meanwhile. A program that lies harms only its own connection.
//!
//! Random: `BYWIRE_ROUNDS`, 30, 60, and 1,000 in a soak.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bywire_engine::control::{self, ControlSocket, Request};
use bywire_engine::counts::Counts;
use bywire_engine::engine::Links;
use bywire_engine::fabric::Fabric;
use bywire_pairing::protocol::{ENGINE_VARIABLE, Kind, Packet, SERVICE_VARIABLE, link};
use bywire_ring::stream::{SEGMENT_BYTES, Segment, Stream, WORDS, Window};
use bywire_sys::memory::Mapping;
use bywire_sys::wake::Eventfd;
use bywire_testing::protocol_client::ProtocolClient;
use bywire_testing::repetitions;

use crate::test_service::{self, CONTROL_VARIABLE, Running, TestService, calls};

/// Set for an engine that carries connections to other machines, and relays none.
pub const FABRIC_VARIABLE: &str = "BYWIRE_TEST_FABRIC";
/// The longest of the random sends.
const PIECE_BYTES_MAX: u64 = 3000;

/// A running engine, in a process of its own.
pub struct Engine {
    pub running: Running,
    pub control: PathBuf,
}

impl Engine {
    /// Starts an engine that serves the programs of a service, whatever they send from here on.
    pub fn start(pairing: &TestService) -> Self {
        pairing.is_relayed.store(true, Ordering::Relaxed);
        Self::start_as(pairing, &mut Self::command(pairing))
    }

    /// The command of an engine.
    pub fn command(pairing: &TestService) -> Command {
        let this = std::env::current_exe().expect("this test");
        let mut command = Command::new(this);
        test_service::roles::in_role(&mut command, "engine_of_other_tests", "engine");
        command.env(SERVICE_VARIABLE, &pairing.service).env(CONTROL_VARIABLE, pairing.path("engine"));
        command
    }

    /// Starts an engine by its command.
    pub fn start_as(pairing: &TestService, command: &mut Command) -> Self {
        let mut running = Running::start(command);
        assert_eq!(running.hear(), "serves");
        Self { running, control: pairing.path("engine") }
    }

    pub fn counts(&self) -> Counts {
        control::ask(&self.control, Request::Status).expect("an answer").expect("an engine")
    }

    pub fn kill(&mut self) {
        self.running.child.kill().expect("killed");
        self.running.child.wait().expect("gone");
    }
}

/// Returns whether the connections of this program are to be relayed, in a run with the library and without it.
pub fn is_wanted() -> bool {
    std::env::var(ENGINE_VARIABLE).is_ok_and(|word| word == "always")
}

/// Keeps this end of a connection in the kernel, by an option that changes nothing: so the other end is no program's.
pub fn keep_in_kernel(fd: RawFd) {
    calls::set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
}

/// Waits until an engine has let go every connection that this program has ended.
pub fn await_release() {
    if is_wanted() {
        let control = PathBuf::from(test_service::told(CONTROL_VARIABLE));
        let relayed = || control::ask(&control, Request::Status).ok().flatten().map(|counts| counts.relayed);
        test_service::eventually("the engine lets go", || (relayed() == Some(0)).then_some(()));
    }
}

/// The process in which [`Engine`] serves.
#[test]
fn engine_of_other_tests() {
    test_service::plays(&[("engine", serve)]);
}

fn serve() {
    let control = PathBuf::from(test_service::told(CONTROL_VARIABLE));
    // A killed engine leaves its socket.
    let control = ControlSocket::open(&control).expect("a control socket");
    let service = PathBuf::from(test_service::told(SERVICE_VARIABLE));
    let is_far = std::env::var_os(FABRIC_VARIABLE).is_some();
    let links = Links { relays: !is_far, fabric: is_far.then(|| Fabric::open().expect("a port")) };
    let engine = bywire_engine::engine::Engine::start(&service, links).expect("an engine");
    test_service::say("serves");
    let never = Eventfd::new().expect("a descriptor");
    let _ended = engine.serve(control, &never);
}

/// The byte of a stream at a place.
fn byte_at(place: u64) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 13) as u8
}

pub fn bytes_from(place: u64, length: u64) -> Vec<u8> {
    (place..place + length).map(byte_at).collect()
}

/// Reads to the end of the stream, and checks every byte. Returns how many came, and whether the end was in order.
pub fn read_all(stream: &mut TcpStream) -> (u64, bool) {
    let (mut count, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (count, true),
            Ok(length) => {
                assert!(buffer[..length] == bytes_from(count, length as u64), "wrong bytes from {count} on");
                count += length as u64;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (count, false),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends random pieces, and says how far it has come: `BYWIRE_TEST_BYTES`, from the seed `BYWIRE_TEST_SEED`.
fn stream() {
    let mut stream = test_service::connected();
    let total: u64 = test_service::told("BYWIRE_TEST_BYTES").parse().expect("a number");
    let mut seed: u64 = test_service::told("BYWIRE_TEST_SEED").parse().expect("a number");
    let mut sent = 0;
    while sent < total {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = ((seed >> 33) % PIECE_BYTES_MAX + 1).min(total - sent);
        stream.write_all(&bytes_from(sent, length)).expect("sent");
        sent += length;
        if seed >> 59 == 0 {
            test_service::say(&sent.to_string());
        }
    }
    let stays = std::env::var_os("BYWIRE_TEST_STAYS").is_some();
    match if stays { 2 } else { seed >> 62 } {
        0 => drop(stream),
        1 => std::process::exit(0),
        2 => {
            stream.shutdown(Shutdown::Write).expect("shut down");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert_eq!(answer, "thanks");
        }
        _ => {
            let copy = stream.try_clone().expect("a copy");
            drop(stream);
            drop(copy);
        }
    }
    test_service::say("done");
}

/// A program that streams to a listener of this test, which it ends in one way or another, and the listener's end.
fn streaming(pairing: &TestService, seed: u64, bytes: u64) -> (Running, TcpStream) {
    streaming_in(seed, bytes, pairing.program("stream", Some(4)))
}

/// A program like that of [`streaming`] which stays until its peer has answered.
fn streaming_and_staying(pairing: &TestService, seed: u64, bytes: u64) -> (Running, TcpStream) {
    let mut command = pairing.program("stream", Some(4));
    command.env("BYWIRE_TEST_STAYS", "1");
    streaming_in(seed, bytes, command)
}

fn streaming_in(seed: u64, bytes: u64, mut command: Command) -> (Running, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    command.env("BYWIRE_TEST_PORT", port.to_string()).env("BYWIRE_TEST_SEED", seed.to_string());
    let program = Running::start(command.env("BYWIRE_TEST_BYTES", bytes.to_string()));
    let stream = listener.accept().expect("accept").0;
    stream.set_read_timeout(Some(test_service::TIMEOUT)).expect("set");
    (program, stream)
}

#[test]
fn every_byte_and_every_end_arrives() {
    if test_service::plays(&[("stream", stream)]) {
        return;
    }
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    let rounds = repetitions("BYWIRE_ROUNDS", [10, 20, 300]);
    for seed in 0..rounds {
        let (mut program, mut stream) = streaming(&pairing, seed * 77, 500_000);
        assert_eq!(read_all(&mut stream), (500_000, true), "seed {seed}");
        let _closed = stream.write_all(b"thanks");
        drop(stream);
        assert!(program.end().success(), "seed {seed}");
    }
    let counts = engine.counts();
    assert_eq!(counts.relayed_ever, rounds, "{counts:?}");
    assert!(counts.bytes > rounds * 400_000, "{counts:?}");
    test_service::eventually("nothing is left", || engine.counts().relayed == 0);
}

#[test]
fn a_program_goes_on_without_the_engine_that_was_killed() {
    if test_service::plays(&[("stream", stream)]) {
        return;
    }
    let pairing = TestService::new();
    let rounds = repetitions("BYWIRE_ROUNDS", [30, 60, 1000]);
    let mut relayed = 0;
    for seed in 0..rounds {
        let mut engine = Engine::start(&pairing);
        let (mut program, mut stream) = streaming_and_staying(&pairing, seed, 2_000_000);
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(200) && engine.counts().bytes == 0 {}
        std::thread::sleep(Duration::from_micros(seed * 7919 % 4000));
        relayed += engine.counts().relayed_ever;
        engine.kill();
        assert_eq!(read_all(&mut stream), (2_000_000, true), "seed {seed}");
        let _closed = stream.write_all(b"thanks");
        drop(stream);
        assert!(program.end().success(), "seed {seed}");
    }
    println!("{relayed} of {rounds} were relayed when the engine was killed");
    assert!(relayed * 2 > rounds, "too few were relayed for this to prove anything: {relayed}");
}

#[test]
fn what_a_killed_program_has_sent_arrives_or_the_connection_is_reset() {
    if test_service::plays(&[("stream", stream)]) {
        return;
    }
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    let rounds = repetitions("BYWIRE_ROUNDS", [30, 60, 1000]);
    let mut in_order = 0;
    for seed in 0..rounds {
        let (mut program, mut stream) = streaming(&pairing, seed, u64::MAX);
        let before = engine.counts().bytes;
        test_service::eventually("it is relayed", || engine.counts().bytes > before);
        std::thread::sleep(Duration::from_micros(seed * 7919 % 4000));
        program.child.kill().expect("killed");
        program.child.wait().expect("gone");
        let said = program.rest();
        let said = said.lines().filter_map(|line| line.strip_prefix("said ")?.parse::<u64>().ok());
        let (count, is_in_order) = read_all(&mut stream);
        let sent = said.max().unwrap_or(0);
        assert!(!is_in_order || count >= sent, "{count} bytes of {sent} that it had sent, and an end");
        in_order += u64::from(is_in_order);
    }
    println!("{in_order} of {rounds} ended in order");
    assert!(in_order * 2 > rounds, "nearly all of them should: {in_order}");
    test_service::eventually("nothing is left", || engine.counts().relayed == 0);
}

#[test]
fn programs_take_their_connections_back_from_an_engine_that_ends() {
    if test_service::plays(&[("stream", stream)]) {
        return;
    }
    let pairing = TestService::new();
    for seed in 0..repetitions("BYWIRE_ROUNDS", [10, 20, 200]) {
        let mut engine = Engine::start(&pairing);
        let (mut program, mut stream) = streaming_and_staying(&pairing, seed, 2_000_000);
        std::thread::sleep(Duration::from_micros(5000 + seed * 7919 % 10_000));
        let _counts = control::ask(&engine.control, Request::Down).expect("an answer");
        assert!(engine.running.end().success());
        assert_eq!(read_all(&mut stream), (2_000_000, true), "seed {seed}");
        let _closed = stream.write_all(b"thanks");
        drop(stream);
        assert!(program.end().success(), "seed {seed}");
    }
}

/// Sends and receives one byte at a time, and then streams.
fn ask_and_stream() {
    let mut stream = test_service::connected();
    let mut byte = [0];
    for _ in 0..2000 {
        stream.write_all(b"?").expect("sent");
        stream.read_exact(&mut byte).expect("an answer");
    }
    test_service::say("asked");
    for place in 0..20_000 {
        stream.write_all(&bytes_from(place * 64, 64)).expect("sent");
    }
    test_service::say("streamed");
    // A receive from the kernel, which the bytes of the engine follow.
    stream.read_exact(&mut byte).expect("an answer");
    for _ in 0..20 {
        stream.write_all(b"?").expect("sent");
        stream.read_exact(&mut byte).expect("an answer");
    }
    test_service::say("asked again");
}

#[test]
fn streams_of_small_sends_are_relayed_and_requests_are_not() {
    if test_service::plays(&[("ask", ask_and_stream)]) {
        return;
    }
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    pairing.is_relayed.store(false, Ordering::Relaxed);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let mut command = pairing.program("ask", Some(4));
    let mut program = Running::start(command.env("BYWIRE_TEST_PORT", port.to_string()));
    let mut stream = listener.accept().expect("accept").0;
    let answer = |stream: &mut TcpStream| {
        stream.read_exact(&mut [0]).expect("a request");
        stream.write_all(b"!").expect("answered");
    };
    (0..2000).for_each(|_| answer(&mut stream));
    assert_eq!(program.hear(), "asked");
    assert_eq!(engine.counts().relayed_ever, 0);
    let mut found = vec![0; 20_000 * 64];
    stream.read_exact(&mut found).expect("the stream");
    assert!(found == bytes_from(0, 20_000 * 64));
    assert_eq!(program.hear(), "streamed");
    assert_eq!(engine.counts().relayed_ever, 1);
    stream.write_all(b"!").expect("answered");
    (0..20).for_each(|_| answer(&mut stream));
    assert_eq!(program.hear(), "asked again");
    test_service::eventually("it is the program's again", || engine.counts().relayed == 0);
    assert!(program.end().success());
}

/// Streams until the peer resets the connection. Says how the sends and a receive have failed.
fn be_reset() {
    let mut stream = test_service::connected();
    let failed = loop {
        if let Err(error) = stream.write_all(&[7; 100]) {
            break error;
        }
    };
    let again = stream.write_all(&[7; 100]).expect_err("it stays so");
    test_service::say(&format!("{:?} {:?} {:?}", failed.kind(), again.kind(), stream.read(&mut [0]).ok()));
}

#[test]
fn a_reset_by_the_peer_is_the_programs_error() {
    if test_service::plays(&[("reset", be_reset)]) {
        return;
    }
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    for calls in [None, Some(4)] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let mut command = pairing.program("reset", calls);
        let mut program = Running::start(command.env("BYWIRE_TEST_PORT", port.to_string()));
        let mut stream = listener.accept().expect("accept").0;
        stream.read_exact(&mut vec![0; 200_000]).expect("a stream");
        // Its end with unread bytes is a reset.
        std::thread::sleep(Duration::from_millis(20));
        drop(stream);
        let said = program.hear();
        assert!(
            ["ConnectionReset BrokenPipe Some(0)", "BrokenPipe BrokenPipe Some(0)"].contains(&&*said),
            "{calls:?}: {said}"
        );
    }
    assert_eq!(engine.counts().relayed_ever, 1);
}

/// A program that seeks an engine, and stores anything into its own segment afterwards.
struct Liar {
    client: ProtocolClient,
    mapping: Mapping,
    socket: TcpStream,
    /// Open, and reads nothing.
    _peer: TcpStream,
}

impl Liar {
    fn new(pairing: &TestService) -> Self {
        let mut client = ProtocolClient::marked(&pairing.service);
        let (mapping, file) = Mapping::create("bywire-test", SEGMENT_BYTES).expect("memory");
        client.segment = file;
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
        let peer = listener.accept().expect("accept").0;
        let liar = Self { client, mapping, socket, _peer: peer };
        STREAM.found(&liar.own());
        liar.client.offer(1, liar.socket.as_fd());
        assert_eq!(liar.client.verdict(1), bywire_pairing::protocol::Verdict::Waiting);
        let seek = Packet { code: link::RELAY, ..Packet::new(Kind::Seek, 1) };
        liar.client.socket.send(&seek.encode(), &[liar.socket.as_fd()]).expect("sought");
        assert_eq!(liar.client.verdict(1), bywire_pairing::protocol::Verdict::Paired);
        liar
    }

    fn own(&self) -> Window {
        // SAFETY: mapped for writing with this length, for as long as this lives.
        unsafe { Window::new(self.mapping.base(), self.mapping.length_bytes()) }
    }
}

const STREAM: Stream = Stream::new(bywire_ring::stream::RING_BYTES);

#[test]
fn a_program_that_lies_harms_only_its_own_connection() {
    if test_service::plays(&[("stream", stream)]) {
        return;
    }
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    let (mut program, mut stream) = streaming(&pairing, 5, 4_000_000);
    let mut liars = Vec::new();
    for value in [0, 1, 2, 3, 7, 1 << 3, 1 << 40, u64::MAX, u64::MAX >> 1] {
        for word in WORDS {
            let liar = Liar::new(&pairing);
            STREAM.cut(&liar.own(), 0);
            // SeqCst: whatever the engine reads next, it finds this.
            liar.own().store(word, value, Ordering::SeqCst);
            liars.push(liar);
        }
    }
    assert_eq!(read_all(&mut stream), (4_000_000, true));
    let _closed = stream.write_all(b"thanks");
    drop(stream);
    assert!(program.end().success());
    let before = engine.counts();
    assert!(before.relayed_ever > liars.len() as u64, "{before:?}");
    drop(liars);
    test_service::eventually("nothing is left", || engine.counts().relayed == 0);
    // It still serves.
    let (mut program, mut stream) = streaming(&pairing, 6, 400_000);
    assert_eq!(read_all(&mut stream), (400_000, true));
    let _closed = stream.write_all(b"thanks");
    drop(stream);
    assert!(program.end().success());
    assert_eq!(engine.counts().relayed_ever, before.relayed_ever + 1);
}

#[test]
fn an_engine_gets_no_connection_that_was_not_offered() {
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let [offered, other] = [(); 2].map(|()| TcpStream::connect(address).expect("connect"));
    let client = ProtocolClient::marked(&pairing.service);
    client.offer(1, offered.as_fd());
    assert_eq!(client.verdict(1), bywire_pairing::protocol::Verdict::Waiting);
    // Another socket than that of the offer, an offer that is none, and another link.
    for (token, code, socket) in [(1, link::RELAY, &other), (2, link::RELAY, &offered), (1, 0x80, &offered)] {
        let seek = Packet { code, ..Packet::new(Kind::Seek, token) };
        client.socket.send(&seek.encode(), &[socket.as_fd()]).expect("said");
    }
    client.say(&Packet::new(Kind::Ask, 9));
    let (packet, _) = client.hear().expect("an answer");
    assert_eq!(
        (packet.kind, packet.code),
        (Kind::Go, link::RELAY),
        "the service has heard everything before"
    );
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(engine.counts(), Counts::default());
    assert!(other.as_raw_fd() >= 0);
}

/// Connections of one program at once: more than the ends that the service can tell of without being answered.
const MANY: usize = 400;
const SENDS: usize = 20;

/// Sends a little over many connections, and exits with all of them open.
fn send_over_many() {
    let port = test_service::told_port();
    let mut streams: Vec<_> =
        (0..MANY).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connect")).collect();
    for stream in &mut streams {
        for turn in 0..SENDS {
            stream.write_all(&bytes_from(turn as u64 * 50, 50)).expect("sent");
        }
    }
    test_service::say("sent");
    std::process::exit(0);
}

#[test]
fn many_connections_of_one_program_may_end_at_once() {
    if test_service::plays(&[("many", send_over_many)]) {
        return;
    }
    test_service::raise_descriptor_limit();
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let mut command = pairing.program("many", Some(4));
    let mut program = Running::start(command.env("BYWIRE_TEST_PORT", port.to_string()));
    let mut streams: Vec<_> = (0..MANY).map(|_| listener.accept().expect("accept").0).collect();
    assert_eq!(program.hear(), "sent");
    for stream in &mut streams {
        stream.set_read_timeout(Some(test_service::TIMEOUT)).expect("set");
        assert_eq!(read_all(stream), (SENDS as u64 * 50, true));
    }
    assert!(program.end().success());
    let counts = engine.counts();
    assert!(counts.relayed_ever as usize > MANY / 2, "{counts:?}");
    test_service::eventually("it has let everything go", || engine.counts().relayed == 0);
}

/// Streams, and leaves the rest to a child, which closes the connection while this process lives.
fn leave_to_child() {
    let mut stream = test_service::connected();
    for place in 0..6000 {
        stream.write_all(&bytes_from(place * 50, 50)).expect("sent");
    }
    // SAFETY: the child only sends and closes, and leaves without any handler.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for place in 6000..7000 {
            stream.write_all(&bytes_from(place * 50, 50)).expect("sent");
        }
        drop(stream);
        // SAFETY: no arguments but a number, and nothing of this child is needed any more.
        unsafe { libc::_exit(0) };
    }
    drop(stream);
    test_service::say("left");
    // Until the test ends this process.
    let _ended = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_childs_close_ends_the_connection_while_its_parent_lives() {
    if test_service::plays(&[("parent", leave_to_child)]) {
        return;
    }
    let pairing = TestService::new();
    let engine = Engine::start(&pairing);
    for _ in 0..repetitions("BYWIRE_ROUNDS", [3, 5, 100]) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let mut command = pairing.program("parent", Some(4));
        let mut parent = Running::start(command.env("BYWIRE_TEST_PORT", port.to_string()));
        let mut stream = listener.accept().expect("accept").0;
        stream.set_read_timeout(Some(test_service::TIMEOUT)).expect("set");
        assert_eq!(read_all(&mut stream), (350_000, true));
        assert_eq!(parent.hear(), "left");
        drop(parent.child.stdin.take());
        assert!(parent.end().success());
    }
    assert!(engine.counts().relayed_ever > 0);
}

/// Sends until neither the kernel nor memory has room, says how much that was, and ends.
fn fill_and_end() {
    let mut stream = test_service::connected();
    let (mut sent, mut refused) = (0, 0);
    // On a busy machine it takes more than one send until an engine has the connection.
    let control = PathBuf::from(test_service::told(CONTROL_VARIABLE));
    let relayed = || control::ask(&control, Request::Status).ok().flatten().map(|counts| counts.bytes);
    while relayed().is_none_or(|bytes| bytes == 0) {
        stream.write_all(&bytes_from(sent, 1000)).expect("sent");
        sent += 1000;
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.set_nonblocking(true).expect("at once");
    while refused < 100 {
        match stream.write(&bytes_from(sent, 1000)) {
            Ok(length) => (sent, refused) = (sent + length as u64, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                // A program that never waits for its connection has nothing carried.
                assert!(test_service::poll(stream.as_raw_fd(), libc::POLLOUT).0 >= 0);
                std::thread::sleep(Duration::from_millis(1));
                refused += 1;
            }
        }
    }
    test_service::say(&sent.to_string());
}

#[test]
fn an_engine_that_ends_still_sends_what_ended_programs_have_left() {
    if test_service::plays(&[("fill", fill_and_end)]) {
        return;
    }
    let pairing = TestService::new();
    for round in 0..repetitions("BYWIRE_ROUNDS", [3, 5, 100]) {
        let mut engine = Engine::start(&pairing);
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let mut command = pairing.program("fill", Some(0));
        let mut program = Running::start(command.env("BYWIRE_TEST_PORT", port.to_string()));
        let mut stream = listener.accept().expect("accept").0;
        stream.set_read_timeout(Some(test_service::TIMEOUT)).expect("set");
        let sent: u64 = program.hear().parse().expect("a number");
        assert!(program.end().success());
        let counts = control::ask(&engine.control, Request::Down).expect("an answer").expect("counts");
        assert_eq!(counts.relayed, 1, "round {round}: the kernel has no room for the rest");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(read_all(&mut stream), (sent, true), "round {round}");
        assert!(engine.running.end().success());
    }
}
