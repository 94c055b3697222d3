//! A peer that writes anything into its own memory ends its own connection at most: calls keep their timeouts, no event
//! loop stays busy, the program goes on, and no control group of another user ends. Partly needs root.
//!
//! Every word is at extreme values and changes all the time. Bytes never come, a ring never ends, bytes have no memory.
//! Random: `BYWIRE_SEEDS`, from `BYWIRE_SEED` on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bywire_pairing::protocol::{Kind, PAGE_BYTES, Packet, VERSION, Verdict};
use bywire_pairing::space::Spaces;
use bywire_ring::stream::{
    RING_BYTES, SEGMENT_BYTES, Segment, Stream, WORDS, Window, head_bytes, rest_bytes,
};
use bywire_sys::memory::Mapping;
use bywire_sys::wake::Eventfd;
use bywire_testing::number;
use bywire_testing::protocol_client::ProtocolClient;

use crate::test_service::calls::one_event;
use crate::test_service::{self, Group, Running, TestService};

const STREAM: Stream = Stream::new(RING_BYTES);
/// The places of two words in the header.
const ROUTE: usize = WORDS[3];
const CUT: usize = WORDS[4];
/// `F_SETSIG` of asm-generic/fcntl.h, and the mark that it gives to a doorbell.
const F_SETSIG: i32 = 10;
const MARK: i32 = 63;
/// A writer that is about to end its ring.
const ENDING: u64 = 4;
/// How long the program's calls may wait, by the options of its sockets.
const WAIT: Duration = Duration::from_millis(60);
/// When such a call is late, on any machine.
const LATE: Duration = Duration::from_secs(5);
/// When the program is given up.
const GIVEN_UP_SECONDS: u32 = 150;
/// Empty receives in a row after which a loop counts as busy. Each of them may take a millisecond.
const EMPTY_MAX: usize = 10;
/// Connections at once.
const AT_ONCE: usize = 16;

/// The end that forges.
struct Forger {
    client: ProtocolClient,
    /// Its whole segment, or the head of it.
    mapping: Mapping,
    /// The rest of the segment, none of whose bytes were ever written.
    rest: Option<OwnedFd>,
    peer: TcpStream,
    /// Bytes that it has sent through the kernel.
    sent: u64,
}

impl Forger {
    /// Connects to the program, and has the connection carried as far as this end wants. `case` is for complaints.
    fn new(service: &Path, port: u16, case: u32) -> Self {
        Self::with_memory(service, port, case, SEGMENT_BYTES, None)
    }

    /// The same with a ring that has no memory behind its first page.
    fn hollow(service: &Path, port: u16, case: u32) -> Self {
        let rest = ProtocolClient::emptiable(rest_bytes(), 0o444);
        Self::with_memory(service, port, case, head_bytes(), Some(rest))
    }

    fn with_memory(service: &Path, port: u16, case: u32, bytes: usize, rest: Option<OwnedFd>) -> Self {
        let mut client = ProtocolClient::silent(service);
        let (doorbell, page) = (Eventfd::new().expect("a doorbell"), ProtocolClient::memory(PAGE_BYTES));
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fcntl(doorbell.as_fd().as_raw_fd(), F_SETSIG, MARK) }, 0);
        let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
        client.socket.send(&hello.encode(), &[doorbell.as_fd(), page.as_fd()]).expect("hello");
        let (mapping, file) = Mapping::create("bywire-test", bytes).expect("memory");
        client.segment = file;
        let peer = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        peer.set_nodelay(true).expect("at once");
        peer.set_read_timeout(Some(test_service::TIMEOUT)).expect("set");
        let mut forger = Self { client, mapping, rest, peer, sent: 0 };
        STREAM.found(&forger.own());
        forger.send(&case.to_ne_bytes());
        forger.until_ready();
        forger
    }

    /// The memory that this end writes.
    fn own(&self) -> Window {
        // SAFETY: mapped for writing with this length, for as long as this lives. All words are in the head.
        unsafe { Window::new(self.mapping.base(), self.mapping.length_bytes()) }
    }

    /// Stores a word of the header.
    fn forge(&self, offset: usize, value: u64) {
        // SeqCst: whatever the program reads next, it finds this before.
        self.own().store(offset, value, Ordering::SeqCst);
    }

    fn send(&mut self, bytes: &[u8]) {
        // The program may have ended the connection.
        if self.peer.write_all(bytes).is_ok() {
            self.sent += bytes.len() as u64;
        }
    }

    fn exchange(&mut self) {
        self.send(b"!");
        self.peer.read_exact(&mut [0]).expect("an answer");
    }

    /// Exchanges bytes until the program looks at this memory before every call.
    fn until_ready(&mut self) {
        let started = Instant::now();
        let (mut token, mut verdict, mut theirs) = (0, Verdict::Again, None);
        loop {
            assert!(started.elapsed() < test_service::TIMEOUT, "it is never carried");
            (0..8).for_each(|_| self.exchange());
            if matches!(verdict, Verdict::Again | Verdict::Full) {
                token += 1;
                self.offer(token);
                verdict = Verdict::Waiting;
            }
            while theirs.is_none()
                && let Some((packet, descriptors)) = self.client.look()
            {
                if packet.kind != Kind::Answer {
                    continue;
                }
                verdict = Verdict::of(packet.code).expect("a verdict");
                if verdict == Verdict::Paired {
                    theirs =
                        Some(Mapping::accept(&descriptors[0], head_bytes()).expect("the program's header"));
                }
            }
            // SAFETY: mapped with this length, which all words of the header are within.
            let is_ready =
                |its: &Mapping| STREAM.peer_is_prepared(&unsafe { Window::new(its.base(), head_bytes()) });
            if theirs.as_ref().is_some_and(is_ready) {
                return;
            }
        }
    }

    fn offer(&self, token: u64) {
        let offer = Packet::new(Kind::Offer, token).encode();
        let (peer, segment) = (self.peer.as_fd(), self.client.segment.as_fd());
        let files: Vec<_> = [peer, segment].into_iter().chain(self.rest.as_ref().map(AsFd::as_fd)).collect();
        self.client.socket.send(&offer, &files).expect("an offer");
    }

    /// What follows the next `bytes` is said to be in the ring.
    fn cut_behind(&self, bytes: u64) {
        STREAM.cut(&self.own(), self.sent + bytes);
    }

    /// Waits for the program's end of the connection.
    fn until_closed(&mut self) {
        let mut bytes = [0; 4096];
        while self.peer.read(&mut bytes).is_ok_and(|received| received > 0) {}
    }
}

/// The program with the library, as a role of this test.
fn program(pairing: &TestService, connections: usize) -> (Running, u16) {
    let mut command = pairing.program("serve", Some(4));
    let mut program = Running::start(command.env("BYWIRE_TEST_CONNECTIONS", connections.to_string()));
    let port = program.hear().parse().expect("a port");
    (program, port)
}

/// The connections that the program is to have, with the numbers of their cases, each in a thread of its own.
fn serve(work: fn(TcpStream, u32) -> Vec<String>) {
    // SAFETY: no pointers. The signal ends this program.
    unsafe { libc::alarm(GIVEN_UP_SECONDS) };
    let listener = test_service::announced();
    let connections: usize = test_service::told("BYWIRE_TEST_CONNECTIONS").parse().expect("a number");
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let (peer, _) = listener.accept().expect("accept");
            std::thread::spawn(move || suffer(peer, work))
        })
        .collect();
    let complaints: Vec<String> =
        threads.into_iter().flat_map(|thread| thread.join().expect("it went on")).collect();
    test_service::say(&if complaints.is_empty() { "nothing".to_owned() } else { complaints.join("; ") });
}

/// Echoes until it is asked, and then does the work.
fn suffer(mut peer: TcpStream, work: fn(TcpStream, u32) -> Vec<String>) -> Vec<String> {
    let mut case = [0; 4];
    peer.read_exact(&mut case).expect("the case");
    let mut byte = [0];
    while peer.read_exact(&mut byte).is_ok() && byte != *b"?" {
        peer.write_all(&byte).expect("an answer");
    }
    work(peer, u32::from_ne_bytes(case))
}

#[test]
fn bytes_that_never_come_do_not_defeat_a_timeout() {
    if test_service::role().is_some() {
        return serve(|mut peer, case| {
            peer.set_read_timeout(Some(WAIT)).expect("set");
            let began = Instant::now();
            let received = peer.read(&mut [0]).map_err(|error| error.kind());
            let is_right = received == Err(std::io::ErrorKind::WouldBlock) && began.elapsed() < LATE;
            let complaint = format!("case {case}: {received:?} after {:?}", began.elapsed());
            if is_right { Vec::new() } else { vec![complaint] }
        });
    }
    let pairing = TestService::new();
    let (mut program, port) = program(&pairing, 1);
    let mut forger = Forger::new(&pairing.service, port, 0);
    // The question, and bytes that are never sent.
    forger.cut_behind(1000);
    forger.send(b"?");
    assert_eq!(program.hear(), "nothing");
    forger.until_closed();
}

#[test]
fn a_ring_that_never_ends_keeps_no_loop_busy() {
    if test_service::role().is_some() {
        return serve(|mut peer, case| {
            test_service::say("asked");
            empty_receives(&mut peer, case, Duration::from_millis(500))
        });
    }
    let pairing = TestService::new();
    let (mut program, port) = program(&pairing, 1);
    let mut forger = Forger::new(&pairing.service, port, 0);
    forger.cut_behind(1);
    forger.send(b"?");
    // It waits for the question without a timeout, as long as this end likes.
    assert_eq!(program.hear(), "asked");
    forger.forge(ROUTE, ENDING);
    // A byte for the kernel, which nobody may take before the ring has ended.
    forger.send(b"!");
    assert_eq!(program.hear(), "nothing");
    forger.until_closed();
}

/// Waits for bytes in a level-triggered set for this time. Complains if it is told again and again of bytes that it does
/// not get.
fn empty_receives(peer: &mut TcpStream, case: u32, time: Duration) -> Vec<String> {
    peer.set_nonblocking(true).expect("set");
    let set = test_service::epoll();
    assert_eq!(test_service::control(set, libc::EPOLL_CTL_ADD, peer.as_raw_fd(), libc::EPOLLIN as u32), 0);
    let (mut empty, mut most) = (0, 0);
    let began = Instant::now();
    while began.elapsed() < time {
        if one_event(set, time.as_millis() as i32).is_none() {
            break;
        }
        match peer.read(&mut [0; 64]) {
            Ok(1..) => empty = 0,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => empty += 1,
            // Its end, or an error: nothing more to wait for.
            _ => break,
        }
        most = most.max(empty);
    }
    test_service::close(set);
    peer.set_nonblocking(false).expect("set");
    if most <= EMPTY_MAX { Vec::new() } else { vec![format!("case {case}: {most} empty receives in a row")] }
}

/// The calls of one connection, and those that were late.
struct Watch {
    case: u32,
    complaints: Vec<String>,
}

impl Watch {
    fn time<T>(&mut self, name: &str, call: impl FnOnce() -> T) {
        let began = Instant::now();
        call();
        let elapsed = began.elapsed();
        if elapsed > LATE {
            self.complaints.push(format!("case {}: {name} took {elapsed:?}", self.case));
        }
    }
}

/// One call of each kind, with timeouts, and then the end.
fn make_every_call(mut peer: TcpStream, case: u32) -> Vec<String> {
    peer.set_read_timeout(Some(WAIT)).expect("set");
    peer.set_write_timeout(Some(WAIT)).expect("set");
    let fd = peer.as_raw_fd();
    let mut watch = Watch { case, complaints: Vec::new() };
    watch.time("poll", || test_service::poll_for(fd, WAIT.as_millis() as i32));
    watch.time("peek", || test_service::receive(fd, 64, test_service::PEEK));
    let mut bytes = [0u8; 64];
    // SAFETY: room for as many bytes.
    watch.time("receive all", || unsafe {
        libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_WAITALL)
    });
    watch.time("receive", || test_service::receive(fd, 64, 0));
    let some = vec![7; 1 << 20];
    watch.time("send", || test_service::send(fd, &some, 0));
    watch.time("select", || test_service::select(fd));
    watch.complaints.extend(empty_receives(&mut peer, case, WAIT));
    watch.time("send again", || test_service::send(fd, b"!", 0));
    // Every other connection is passed on before it ends.
    if case.is_multiple_of(2) {
        watch.time("pass", || test_service::pass(fd));
    }
    watch.time("close", || drop(peer));
    watch.complaints
}

/// Has `attack` do its work on as many connections, some at once.
fn attack_each(cases: usize, attack: impl Fn(&mut Forger, usize) + Sync) {
    let pairing = TestService::new();
    let (mut program, port) = program(&pairing, cases);
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE.min(cases) {
            let (attack, service) = (&attack, &pairing.service);
            scope.spawn(move || {
                for case in (first..cases).step_by(AT_ONCE) {
                    let mut forger = Forger::new(service, port, case as u32);
                    attack(&mut forger, case);
                    forger.until_closed();
                }
            });
        }
    });
    assert_eq!(program.hear(), "nothing");
    assert!(program.end().success());
    assert_eq!(pairing.status().carried_ever, cases as u64);
}

const VICTIM: u32 = 4001;
/// The memory of the victim's control group.
const GROUP_BYTES: u64 = 96 << 20;
/// Connections whose rings would take more than that.
const HOLLOW_CONNECTIONS: usize = 48;

#[test]
fn bytes_without_memory_end_no_control_group_of_another_user() {
    if test_service::role().is_some() {
        // It is in its group then.
        assert_eq!(std::io::stdin().read(&mut [0]).expect("told"), 1);
        return serve(|mut peer, _| {
            peer.set_read_timeout(Some(WAIT)).expect("set");
            let mut bytes = vec![0; 1 << 20];
            // Zeros, as many as are said to be there, or an error.
            while peer.read(&mut bytes).is_ok_and(|received| received > 0) {}
            // The others have their bytes too.
            std::thread::sleep(Duration::from_secs(2));
            Vec::new()
        });
    }
    if !test_service::is_root() {
        return;
    }
    let Some(group) = Group::new(GROUP_BYTES) else { return };
    let pairing = TestService::of_machine(Spaces::default());
    let mut command = pairing.user(VICTIM, "serve");
    command.env("BYWIRE_TEST_CONNECTIONS", HOLLOW_CONNECTIONS.to_string());
    let mut program = Running::start(&mut command);
    group.add(program.child.id());
    program.child.stdin.as_mut().expect("piped").write_all(b"!").expect("told");
    let port = program.hear().parse().expect("a port");
    let mut forgers: Vec<_> = (0..HOLLOW_CONNECTIONS as u32)
        .map(|case| {
            let mut forger = Forger::hollow(&pairing.service, port, case);
            forger.cut_behind(1);
            STREAM.publish(&forger.own(), RING_BYTES);
            forger.send(b"?");
            forger
        })
        .collect();
    assert_eq!(program.hear(), "nothing");
    forgers.iter_mut().for_each(Forger::until_closed);
    assert!(program.end().success(), "it was ended");
}

/// The values at which a word may mean something else.
const EXTREMES: [u64; 9] = [0, 1, 2, 3, 4, 3 | 1 << 20, 1 << 32, 1 << 63, u64::MAX];
/// How far the connection is when a word is forged.
const STATES: usize = 3;

#[test]
fn any_word_at_any_extreme_harms_only_its_connection() {
    if test_service::role().is_some() {
        return serve(make_every_call);
    }
    attack_each(WORDS.len() * EXTREMES.len() * STATES, |forger, case| {
        let (state, case) = (case % STATES, case / STATES);
        let (offset, value) = (WORDS[case % WORDS.len()], EXTREMES[case / WORDS.len()]);
        if state > 0 {
            forger.cut_behind(1);
        }
        if state > 1 {
            STREAM.prepare(&forger.own());
        }
        // A cut that is not what the program has received breaks the question too.
        if offset != CUT {
            forger.forge(offset, value);
        }
        forger.send(b"?");
        forger.forge(offset, value);
        forger.send(b"!");
    });
}

/// Connections with words that change all the time.
const RESTLESS: usize = 96;

#[test]
fn words_that_change_all_the_time_harm_only_their_connection() {
    if test_service::role().is_some() {
        // Busy, because there is always something new.
        return serve(|peer, case| {
            let complaints = make_every_call(peer, case).into_iter();
            complaints.filter(|complaint| !complaint.contains("in a row")).collect()
        });
    }
    let seed: u64 = number("BYWIRE_SEED", 1);
    let restless = number("BYWIRE_SEEDS", RESTLESS);
    println!("from BYWIRE_SEED={seed} on");
    attack_each(restless, |forger, case| {
        let mut random = Random::new(seed.wrapping_add(case as u64));
        forger.cut_behind(1);
        STREAM.prepare(&forger.own());
        forger.send(b"?");
        forger.peer.set_nonblocking(true).expect("set");
        let began = Instant::now();
        while began.elapsed() < test_service::TIMEOUT {
            for _ in 0..random.below(64) {
                let offset = WORDS[random.below(WORDS.len() as u64) as usize];
                let value = match random.below(4) {
                    0 => EXTREMES[random.below(EXTREMES.len() as u64) as usize],
                    1 => random.below(8),
                    2 => random.below(2 * RING_BYTES as u64),
                    _ => forger
                        .own()
                        .load(offset, Ordering::Relaxed)
                        .wrapping_add(random.below(9))
                        .wrapping_sub(4),
                };
                forger.forge(offset, value);
            }
            if random.below(8) == 0 {
                forger.send(b"!");
            }
            match forger.peer.read(&mut [0; 4096]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Ok(1..) => {}
                _ => break,
            }
        }
        forger.peer.set_nonblocking(false).expect("set");
    });
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}
