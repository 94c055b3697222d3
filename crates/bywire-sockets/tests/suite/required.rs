//! Connections that are required to be carried to another machine: they are, from their first byte on, and otherwise they are
//! reset. No byte goes through the kernel, in whatever way a program sends it.
//!
//! The kernel's own counts of each socket prove it, and where a socket was reset, those of a peer that is plain TCP.

use std::ffi::CString;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bywire_testing::repetitions;

use crate::far::{self, Machines, PORT, TOTAL};
use crate::test_service::{self, Running, calls, kernel_received, kernel_sent, say, told};

/// An engine gives up a connection whose other end it does not find within 10 s.
const UNMET_MAX: Duration = Duration::from_secs(20);
/// What a connection would be refused in, without a wait for anybody.
const REFUSED_MAX: Duration = Duration::from_secs(3);
const SECRET: &[u8] = b"not for the network";

/// Checks that nothing of a connection has gone through the kernel. It counts the end of a stream as a byte received.
fn assert_unseen(fd: RawFd) {
    assert_eq!(kernel_sent(fd), 0, "bytes sent through the kernel");
    assert!(kernel_received(fd) <= 1, "bytes received through the kernel");
}

fn client() {
    let stream = far::connect();
    far::exchange(stream.try_clone().expect("a copy"));
    assert_unseen(stream.as_raw_fd());
}

fn server() {
    let stream = far::listen();
    far::exchange(stream.try_clone().expect("a copy"));
    assert_unseen(stream.as_raw_fd());
}

#[test]
fn no_byte_of_a_required_connection_goes_through_the_kernel() {
    if test_service::plays(&[("client", client), ("server", server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let machines = machines.requiring();
    let rounds = repetitions("BYWIRE_ROUNDS", [6, 30, 1000]);
    for seed in 0..rounds {
        let mut programs = machines.programs(["client", "server"], seed);
        for program in &mut programs {
            assert_eq!(far::outcome(program), (TOTAL, true), "seed {seed}");
            assert!(program.end().success(), "seed {seed}");
        }
    }
    assert_eq!(machines.carried(), rounds, "all of them");
}

/// What an event loop waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loop {
    Poll,
    Epoll,
    EdgeTriggered,
}

/// One thread with a connection to each other program, and one from it, all of which never block. The side that accepts speaks
/// first.
fn looping() {
    let own: SocketAddr = told("BYWIRE_TEST_OWN").parse().expect("an address");
    let peer: SocketAddr = told("BYWIRE_TEST_PEER").parse().expect("an address");
    let kind = [Loop::Poll, Loop::Epoll, Loop::EdgeTriggered][far::seed() as usize / 2 % 3];
    let listener = TcpListener::bind(own).expect("listen");
    listener.set_nonblocking(true).expect("never blocks");
    say("listens");
    let (mut line, mut sockets) =
        (String::new(), Sockets { kind, set: test_service::epoll(), all: Vec::new() });
    std::io::stdin().read_line(&mut line).expect("told to go on");
    sockets.add(listener.as_raw_fd(), libc::POLLIN);
    let out = begin_to_connect(peer);
    sockets.add(out, libc::POLLIN | libc::POLLOUT);
    let (mut accepted, mut is_connected) = (None, false);
    let (mut sent, mut received, started) = (0, 0, Instant::now());
    while sent < SECRET.len() || received < SECRET.len() {
        assert!(started.elapsed() < UNMET_MAX, "sent {sent}, received {received}, connected {is_connected}");
        for (fd, events) in sockets.wait() {
            if fd == listener.as_raw_fd() {
                let stream = listener.accept().expect("accept").0;
                stream.set_nonblocking(true).expect("never blocks");
                let stream = stream.into_raw_fd();
                accepted = Some(stream);
                sockets.add(stream, libc::POLLIN | libc::POLLOUT);
            } else if fd == out && !is_connected && events & libc::POLLOUT != 0 {
                assert_eq!(test_service::option(out, libc::SO_ERROR), 0);
                is_connected = true;
                sockets.change(out, libc::POLLIN);
            } else if fd == out && events & libc::POLLIN != 0 {
                let (count, bytes) = test_service::receive(out, 64, 0);
                assert!(count > 0 && SECRET[received..].starts_with(&bytes), "{count}");
                received += bytes.len();
            }
            if accepted == Some(fd) && sent < SECRET.len() {
                let count = test_service::send(fd, &SECRET[sent..], 0);
                assert!(count > 0 || test_service::errno() == libc::EAGAIN, "{}", test_service::errno());
                sent += count.max(0) as usize;
                if sent == SECRET.len() {
                    sockets.change(fd, libc::POLLIN);
                }
            }
        }
    }
    for fd in accepted.into_iter().chain([out]) {
        assert_unseen(fd);
    }
    say("done");
    // The other program may not have read everything.
    std::io::stdin().read_line(&mut line).expect("told to end");
}

/// The descriptors of an event loop, with the events that it waits for.
struct Sockets {
    kind: Loop,
    set: RawFd,
    all: Vec<libc::pollfd>,
}

impl Sockets {
    fn add(&mut self, fd: RawFd, events: i16) {
        self.all.push(libc::pollfd { fd, events, revents: 0 });
        calls::add(self.set, fd, self.with_edges(events), fd as u64);
    }

    fn change(&mut self, fd: RawFd, events: i16) {
        self.all.iter_mut().filter(|entry| entry.fd == fd).for_each(|entry| entry.events = events);
        calls::register(self.set, libc::EPOLL_CTL_MOD, fd, self.with_edges(events), fd as u64);
    }

    fn with_edges(&self, events: i16) -> i32 {
        i32::from(events) | if self.kind == Loop::EdgeTriggered { libc::EPOLLET } else { 0 }
    }

    /// The descriptors that are ready, after a second at most.
    fn wait(&mut self) -> Vec<(RawFd, i16)> {
        if self.kind == Loop::Poll {
            // SAFETY: a live list.
            unsafe { libc::poll(self.all.as_mut_ptr(), self.all.len() as u64, 1000) };
            let ready = self.all.iter().filter(|entry| entry.revents != 0);
            return ready.map(|entry| (entry.fd, entry.revents)).collect();
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: room for eight.
        let count = unsafe { libc::epoll_wait(self.set, events.as_mut_ptr(), 8, 1000) };
        events[..count.max(0) as usize]
            .iter()
            .map(|event| (event.u64 as RawFd, event.events as i16))
            .collect()
    }
}

/// Begins to connect a socket that never blocks.
fn begin_to_connect(peer: SocketAddr) -> RawFd {
    let SocketAddr::V4(peer) = peer else { panic!("IPv4") };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: peer.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(peer.ip().octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: a live address.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
        let status = libc::connect(fd, (&raw const address).cast(), size_of_val(&address) as u32);
        assert!(status == 0 || test_service::errno() == libc::EINPROGRESS, "{}", test_service::errno());
        fd
    }
}

#[test]
fn single_threaded_programs_that_connect_to_each_other_do_not_wait_for_each_other() {
    if test_service::plays(&[("loop", looping)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let machines = machines.requiring();
    let rounds = repetitions("BYWIRE_ROUNDS", [6, 30, 300]);
    for seed in 0..rounds {
        let mut programs = [0, 1].map(|at| machines.program_between(at, "loop", seed));
        programs.iter_mut().for_each(|program| assert_eq!(program.hear(), "listens"));
        for said in ["done", ""] {
            for program in &mut programs {
                program.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("told");
            }
            if !said.is_empty() {
                programs.iter_mut().for_each(|program| assert_eq!(program.hear(), said, "seed {seed}"));
            }
        }
        programs.iter_mut().for_each(|program| assert!(program.end().success(), "seed {seed}"));
    }
}

/// A peer without Bywire: says how many bytes come over so many connections.
fn plain_server() {
    let listener = TcpListener::bind((told("BYWIRE_TEST_ADDRESS").as_str(), PORT)).expect("listen");
    say("listens");
    let count: usize = told("BYWIRE_TEST_COUNT").parse().expect("a number");
    let readers: Vec<_> = (0..count)
        .map(|_| {
            let mut stream = listener.accept().expect("accept").0;
            std::thread::spawn(move || {
                let mut found = Vec::new();
                let _end = stream.read_to_end(&mut found);
                found.len()
            })
        })
        .collect();
    let bytes: usize = readers.into_iter().map(|reader| reader.join().expect("no panic")).sum();
    say(&bytes.to_string());
}

/// A way to have the kernel send bytes on this socket. It may fail.
type Way = fn(RawFd);

/// Ways to have bytes sent through the kernel, on a socket that never blocks.
const WAYS: [(&str, Way); 14] = [
    ("send", |fd| _ = test_service::send(fd, SECRET, 0)),
    ("write", |fd| _ = test_service::send(fd, SECRET, 1)),
    ("writev", |fd| _ = test_service::send(fd, SECRET, 2)),
    ("sendmsg", |fd| _ = test_service::send(fd, SECRET, 3)),
    ("urgent", |fd| send_with(fd, libc::MSG_OOB)),
    ("zero copy", |fd| send_with(fd, libc::MSG_ZEROCOPY)),
    ("fast open", |fd| send_with(fd, libc::MSG_FASTOPEN)),
    ("sendfile", |fd| {
        let file = secret_file();
        // SAFETY: no offset.
        unsafe { libc::sendfile(fd, file.as_raw_fd(), std::ptr::null_mut(), SECRET.len()) };
    }),
    ("splice", |fd| {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, and live buffers.
        unsafe {
            libc::pipe(ends.as_mut_ptr());
            libc::write(ends[1], SECRET.as_ptr().cast(), SECRET.len());
            let null = std::ptr::null_mut();
            libc::splice(ends[0], null, fd, null, SECRET.len(), 0);
        }
    }),
    ("aio_write", |fd| {
        // SAFETY: zeros are a request, and it lives for as long as the program.
        unsafe {
            let request: &mut libc::aiocb = Box::leak(Box::new(std::mem::zeroed()));
            (request.aio_fildes, request.aio_nbytes) = (fd, SECRET.len());
            request.aio_buf = SECRET.as_ptr().cast_mut().cast();
            libc::aio_write(request);
        }
        std::thread::sleep(Duration::from_millis(50));
    }),
    ("an option first", |fd| {
        let one = 1i32;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMP);
        // SAFETY: a live int.
        unsafe { libc::setsockopt(fd, level, name, (&raw const one).cast(), 4) };
        test_service::send(fd, SECRET, 0);
    }),
    ("a FILE", |fd| {
        // SAFETY: a descriptor of its own, and live strings.
        unsafe {
            let file = libc::fdopen(libc::dup(fd), c"w".as_ptr());
            if !file.is_null() {
                libc::fwrite(SECRET.as_ptr().cast(), 1, SECRET.len(), file);
                libc::fflush(file);
            }
        }
    }),
    ("another program", |fd| {
        // SAFETY: a descriptor of its own.
        let copy = unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) };
        let mut command = Command::new("cat");
        let mut child =
            command.env_remove("LD_PRELOAD").stdin(Stdio::piped()).stdout(copy).spawn().expect("`cat`");
        let _broken = child.stdin.take().expect("piped").write_all(SECRET);
        child.wait().expect("ours");
    }),
    ("a program that it was passed to", |fd| {
        let (here, there) = test_service::unix_streams();
        let child = test_service::child(|| {
            // Whoever gets it has not seen its life.
            let taken = test_service::take(there.as_raw_fd());
            test_service::send(taken, SECRET, 1);
            0
        });
        test_service::pass_by(here.as_raw_fd(), fd);
        test_service::end_of(child);
    }),
];

fn send_with(fd: RawFd, flags: i32) {
    // SAFETY: live bytes.
    unsafe { libc::send(fd, SECRET.as_ptr().cast(), SECRET.len(), flags | libc::MSG_NOSIGNAL) };
}

fn secret_file() -> std::fs::File {
    let name = CString::new("secret").expect("no zero");
    // SAFETY: a live name, and a descriptor of this function.
    let mut file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(name.as_ptr(), 0)) };
    file.write_all(SECRET).expect("written");
    std::io::Seek::rewind(&mut file).expect("at its start");
    file
}

/// How far a connect has come before bytes are sent.
#[derive(Clone, Copy, Debug)]
enum Connect {
    /// It has returned.
    Done,
    /// It has ended, which the program knows by `poll` alone.
    Polled,
    /// It may not have ended.
    Begun,
}

const CONNECTS: [Connect; 3] = [Connect::Done, Connect::Polled, Connect::Begun];

/// Tries each way on connections of its own.
fn sending_client() {
    let peer: SocketAddr = format!("{}:{PORT}", told("BYWIRE_TEST_ADDRESS")).parse().expect("an address");
    for (name, way) in WAYS {
        for connect in CONNECTS {
            let fd = match connect {
                Connect::Done => TcpStream::connect(peer).map(IntoRawFd::into_raw_fd).unwrap_or(-1),
                Connect::Polled | Connect::Begun => begin_to_connect(peer),
            };
            test_service::set_nonblocking(fd, true);
            if matches!(connect, Connect::Polled) {
                let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one live entry.
                assert_eq!(unsafe { libc::poll(&raw mut asked, 1, 5000) }, 1);
            }
            way(fd);
            println!("{name}, {connect:?}: tried");
            test_service::close(fd);
        }
    }
    say("tried");
}

/// Waits for the engine's word on a peer that has none.
fn patient_client() {
    let started = Instant::now();
    let mut stream = far::connect();
    let mut byte = [0];
    let error = match stream.write_all(SECRET) {
        Ok(()) => stream.read(&mut byte).err(),
        Err(error) => Some(error),
    };
    let kind = error.expect("no success").kind();
    assert!(matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{kind}");
    assert!(started.elapsed() < UNMET_MAX, "{:?}", started.elapsed());
    say("reset");
}

#[test]
fn no_byte_goes_to_a_peer_without_an_engine_in_any_way() {
    let roles: [(&str, fn()); 3] =
        [("client", sending_client), ("patient", patient_client), ("server", plain_server)];
    if test_service::plays(&roles) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let machines = machines.requiring();
    let mut server = machines.plain_program(1, "server", WAYS.len() * CONNECTS.len() + 1);
    assert_eq!(server.hear(), "listens");
    let mut clients = ["client", "patient"].map(|role| machines.program(0, role, 0));
    for (client, said) in clients.iter_mut().zip(["tried", "reset"]) {
        assert_eq!(client.hear(), said);
        assert!(client.end().success());
    }
    assert_eq!(server.hear(), "0", "bytes");
    assert!(machines.engines[0].counts().unmet > 0, "{:?}", machines.engines[0].counts());
}

/// What a plain client says, and how it goes.
const SAYINGS: [&str; 3] = ["bytes", "an urgent byte", "bytes, and a reset"];

/// A server that speaks first. It accepts late.
fn required_server() {
    let listener = TcpListener::bind((told("BYWIRE_TEST_ADDRESS").as_str(), PORT)).expect("listen");
    say("listens");
    std::thread::sleep(Duration::from_millis(300));
    let mut seen = Vec::new();
    for _ in SAYINGS {
        // A connection over which a byte has come by then is refused at once.
        let Ok((mut stream, _)) = listener.accept() else { continue };
        // Into memory.
        let _sent = stream.write_all(SECRET);
        let mut byte = 0u8;
        // SAFETY: room for one byte.
        let urgent = unsafe {
            libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_OOB | libc::MSG_DONTWAIT)
        };
        seen.extend((urgent > 0).then_some(byte));
        assert!(stream.read_to_end(&mut seen).is_err(), "an end in order");
    }
    say(&seen.len().to_string());
}

fn plain_client() {
    let mut streams = Vec::new();
    for saying in SAYINGS {
        let mut stream = far::connect();
        match saying {
            "an urgent byte" => send_with(stream.as_raw_fd(), libc::MSG_OOB),
            _ => stream.write_all(b"hello").expect("sent"),
        }
        if saying == "bytes, and a reset" {
            std::thread::sleep(Duration::from_millis(50));
            let now = libc::linger { l_onoff: 1, l_linger: 0 };
            // SAFETY: a live structure.
            unsafe {
                let length = size_of_val(&now) as u32;
                libc::setsockopt(
                    stream.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    (&raw const now).cast(),
                    length,
                )
            };
        } else {
            streams.push(stream);
        }
    }
    let mut found = Vec::new();
    for mut stream in streams {
        let _end = stream.read_to_end(&mut found);
    }
    say(&found.len().to_string());
}

#[test]
fn a_plain_peer_that_claims_to_be_a_node_gets_nothing_and_is_not_heard() {
    if test_service::plays(&[("client", plain_client), ("server", required_server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let machines = machines.requiring();
    let mut server = machines.program(1, "server", 0);
    assert_eq!(server.hear(), "listens");
    let mut client = machines.plain_program(0, "client", 1);
    assert_eq!([client.hear(), server.hear()], ["0", "0"], "bytes");
    assert!(client.end().success() && server.end().success());
}

/// Says how a connect ends, and how long it takes, again and again.
fn connecting() {
    let mut line = String::new();
    loop {
        let started = Instant::now();
        let connected = TcpStream::connect((told("BYWIRE_TEST_ADDRESS").as_str(), PORT));
        let took_ms = started.elapsed().as_millis();
        match connected {
            Ok(mut stream) => {
                let _sent = stream.write_all(SECRET);
                say(&format!("connected {took_ms} {}", stream.read_to_end(&mut Vec::new()).is_ok()));
            }
            Err(error) => say(&format!("{:?} {took_ms} false", error.kind())),
        }
        line.clear();
        if std::io::stdin().read_line(&mut line).expect("told") == 0 {
            return;
        }
    }
}

#[test]
fn without_an_engine_a_required_connection_is_refused_at_once() {
    if test_service::plays(&[("client", connecting), ("server", plain_server)]) {
        return;
    }
    let Some(mut machines) = Machines::up().map(Machines::requiring) else { return };
    let mut server = machines.plain_program(1, "server", 2);
    assert_eq!(server.hear(), "listens");
    machines.engines[0].kill();
    let mut client = machines.program(0, "client", 0);
    let refused = |client: &mut Running| {
        let said = client.hear();
        let [how, took_ms, _] = said.split(' ').collect::<Vec<_>>()[..] else { panic!("{said}") };
        assert_eq!(how, "ConnectionRefused");
        let took = Duration::from_millis(took_ms.parse().expect("a number"));
        assert!(took < REFUSED_MAX, "{took:?}");
    };
    refused(&mut client);
    // The other machine has no engine: nobody can be asked there.
    machines.engines[1].kill();
    machines.replace_engine(0);
    client.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("told");
    let said = client.hear();
    assert!(said.ends_with("false"), "{said}");
    drop(client.child.stdin.take());
    assert_eq!(server.hear(), "0", "bytes");
    assert!(client.end().success());
}

/// A connection on this machine, and one to an address that is no node's.
fn free_connections() {
    let (client, server) = test_service::pair();
    test_service::carry((client, server));
    let mut stream = TcpStream::connect((told("BYWIRE_TEST_OTHER").as_str(), PORT)).expect("connect");
    stream.write_all(SECRET).expect("sent");
    assert_eq!(kernel_sent(stream.as_raw_fd()), SECRET.len() as u64);
}

fn other_server() {
    let listener = TcpListener::bind((told("BYWIRE_TEST_OTHER").as_str(), PORT)).expect("listen");
    say("listens");
    let mut found = Vec::new();
    listener.accept().expect("accept").0.read_to_end(&mut found).expect("an end");
    assert_eq!(found, SECRET);
}

#[test]
fn connections_on_this_machine_and_to_strangers_are_free() {
    if test_service::plays(&[("client", free_connections), ("server", other_server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let machines = machines.requiring();
    let others = machines.other_addresses();
    let in_place = |command: &mut Command| {
        command.env("BYWIRE_TEST_OTHER", &others[1]);
    };
    let mut server = machines.start(1, machines.services[1].program("server", None), in_place);
    assert_eq!(server.hear(), "listens");
    let mut client = machines.start(0, machines.services[0].program("client", Some(4)), in_place);
    assert!(client.end().success() && server.end().success());
}

/// Says something and is gone, before the other program has accepted.
fn hasty_client() {
    let seed = far::seed();
    let mut stream = far::connect();
    stream.write_all(SECRET).expect("sent");
    match seed / 2 % 3 {
        0 => drop(stream),
        1 => stream.shutdown(std::net::Shutdown::Write).expect("shut down"),
        // SAFETY: no pointers.
        _ => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
    }
}

fn late_server() {
    let listener = TcpListener::bind((told("BYWIRE_TEST_ADDRESS").as_str(), PORT)).expect("listen");
    say("listens");
    std::thread::sleep(Duration::from_millis(200));
    let mut found = Vec::new();
    let ended = listener.accept().map(|(mut stream, _)| stream.read_to_end(&mut found));
    let is_in_order = matches!(ended, Ok(Ok(_)));
    assert!(!is_in_order || found == SECRET, "an end behind {} bytes", found.len());
    say(&is_in_order.to_string());
}

#[test]
fn a_program_that_is_gone_before_the_engines_have_agreed_is_heard() {
    if test_service::plays(&[("client", hasty_client), ("server", late_server)]) {
        return;
    }
    let Some(machines) = Machines::up() else { return };
    let machines = machines.requiring();
    for seed in 0..repetitions("BYWIRE_ROUNDS", [6, 12, 300]) {
        let [mut client, mut server] = machines.programs(["client", "server"], seed);
        let is_killed = seed % 3 == 2;
        assert_eq!(client.end().success(), !is_killed, "seed {seed}");
        let is_in_order = server.hear() == "true";
        assert!(is_in_order || is_killed, "seed {seed}");
        assert!(server.end().success(), "seed {seed}");
    }
}
