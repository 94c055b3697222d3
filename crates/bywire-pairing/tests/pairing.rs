//! Programs and the service, over its socket: who is paired with whom, and who is not.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bywire_pairing::protocol::{Kind, PACKET_BYTES, Packet, VERSION, Verdict};
use bywire_pairing::reason::Reason;
use bywire_pairing::service::{Service, StartError};
use bywire_pairing::status;
use bywire_pairing::user::Scope;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::{Received, Socket};

/// A program as the service sees it.
struct Program {
    socket: Socket,
    memory: OwnedFd,
}

impl Program {
    fn new(path: &Path) -> Self {
        let socket = Socket::connect(path).expect("the service listens");
        let (_, memory) = Mapping::create("bywire-test", 4096).expect("memory");
        let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
        socket.send(&hello.encode(), &[memory.as_fd(), memory.as_fd()]).expect("hello");
        Self { socket, memory }
    }

    fn offer(&self, token: u64, connection: BorrowedFd<'_>) {
        let offer = Packet::new(Kind::Offer, token).encode();
        self.socket.send(&offer, &[connection, self.memory.as_fd()]).expect("an offer");
    }

    fn hear(&self) -> Option<(Packet, usize)> {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            let mut buffer = [0; PACKET_BYTES];
            match self.socket.receive(&mut buffer).expect("a packet") {
                Received::Packet(length, descriptors) => {
                    return Some((
                        Packet::decode(&buffer[..length]).expect("one of ours"),
                        descriptors.len(),
                    ));
                }
                Received::Nothing => std::thread::sleep(Duration::from_millis(1)),
                Received::Closed => return None,
            }
        }
        panic!("the service says nothing")
    }

    fn verdict(&self, token: u64) -> Verdict {
        let (packet, descriptors) = self.hear().expect("an answer");
        assert_eq!((packet.kind, packet.token), (Kind::Answer, token));
        let verdict = Verdict::of(packet.code).expect("a verdict");
        assert_eq!(descriptors, if verdict == Verdict::Paired { 3 } else { 0 });
        verdict
    }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    (client, listener.accept().expect("accept").0)
}

fn service() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairing");
    let mut service = Service::start(&path, Scope::User).expect("a service");
    std::thread::spawn(move || service.serve(Duration::from_secs(60)));
    (directory, path)
}

#[test]
fn two_ends_of_one_connection_are_paired_and_each_hears_of_it() {
    let (_directory, path) = service();
    let (client, server) = connection();
    let (first, second) = (Program::new(&path), Program::new(&path));
    first.offer(1, client.as_fd());
    assert_eq!(first.verdict(1), Verdict::Waiting);
    second.offer(2, server.as_fd());
    assert_eq!(second.verdict(2), Verdict::Paired);
    assert_eq!(first.verdict(1), Verdict::Paired);
    let found = status::ask(&path).expect("a status");
    assert_eq!((found.processes, found.carried, found.waiting), (2, 1, 0));
}

#[test]
fn what_is_no_established_connection_is_refused() {
    let (_directory, path) = service();
    let program = Program::new(&path);
    let (client, server) = connection();
    drop(server);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    for (token, file) in [(1, client.as_fd()), (2, listener.as_fd()), (3, unix.as_fd())] {
        program.offer(token, file);
        assert_eq!(program.verdict(token), Verdict::Refused, "{token}");
    }
}

#[test]
fn who_does_not_listen_is_not_flooded_and_keeps_what_it_has() {
    let (_directory, path) = service();
    let (deaf, caller) = (Program::new(&path), Program::new(&path));
    let pairs: Vec<_> = (0..1000).map(|_| connection()).collect();
    for (token, (_, server)) in pairs.iter().enumerate() {
        deaf.offer(token as u64, server.as_fd());
        assert_eq!(deaf.verdict(token as u64), Verdict::Waiting);
    }
    let offer = |token: usize| {
        caller.offer(token as u64, pairs[token].0.as_fd());
        caller.verdict(token as u64)
    };
    let taken = (0..pairs.len()).take_while(|&token| offer(token) == Verdict::Paired).count();
    assert!((32..pairs.len()).contains(&taken), "{taken} answers wait to be heard");
    assert_eq!(offer(pairs.len() - 1), Verdict::Full);
    // As soon as it listens the rest is paired as well.
    for token in taken..pairs.len() {
        assert_eq!(deaf.verdict((token - taken) as u64), Verdict::Paired);
        assert_eq!(offer(token), Verdict::Paired);
    }
    let found = status::ask(&path).expect("a status");
    assert_eq!((found.processes, found.carried, found.waiting), (2, 1000, 0));
}

#[test]
fn an_offer_whose_descriptors_are_lost_on_the_way_may_be_repeated() {
    let (_directory, path) = service();
    let program = Program::new(&path);
    program.socket.send(&Packet::new(Kind::Offer, 7).encode(), &[]).expect("an offer");
    assert_eq!(program.verdict(7), Verdict::Full);
}

#[test]
fn an_offer_that_is_over_pairs_with_nobody() {
    let (_directory, path) = service();
    let (client, server) = connection();
    let (first, second) = (Program::new(&path), Program::new(&path));
    first.offer(1, client.as_fd());
    assert_eq!(first.verdict(1), Verdict::Waiting);
    first.socket.send(&Packet::new(Kind::End, 1).encode(), &[]).expect("an end");
    second.offer(2, server.as_fd());
    assert_eq!(second.verdict(2), Verdict::Waiting);
    drop(second);
    let end = Instant::now() + Duration::from_secs(5);
    while status::ask(&path).expect("a status").waiting > 0 {
        assert!(Instant::now() < end, "what a program that is gone has offered goes with it");
    }
}

#[test]
fn the_service_keeps_no_descriptor_that_would_hold_up_an_end() {
    let (_directory, path) = service();
    let (client, mut server) = connection();
    let program = Program::new(&path);
    program.offer(1, client.as_fd());
    assert_eq!(program.verdict(1), Verdict::Waiting);
    drop(client);
    server.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
    assert_eq!(std::io::Read::read(&mut server, &mut [0]).expect("the end"), 0);
}

#[test]
fn who_breaks_the_rules_is_dropped_and_nobody_else() {
    let (_directory, path) = service();
    let honest = Program::new(&path);
    for packet in [Packet::new(Kind::Go, 0), Packet { first: 1, ..Packet::new(Kind::Hello, 0) }] {
        let program = Program::new(&path);
        program.socket.send(&packet.encode(), &[]).expect("a packet");
        assert!(program.hear().is_none(), "{packet:?}");
    }
    let program = Program::new(&path);
    program.socket.send(b"garbage", &[]).expect("a packet");
    assert!(program.hear().is_none());
    honest.socket.send(&Packet::new(Kind::Ask, 9).encode(), &[]).expect("a question");
    assert_eq!(honest.hear().expect("an answer").0.kind, Kind::Go);
}

#[test]
fn reasons_are_counted_and_a_second_service_finds_the_first() {
    let (_directory, path) = service();
    assert!(matches!(Service::start(&path, Scope::User), Err(StartError::Served(_))));
    let program = Program::new(&path);
    for _ in 0..2 {
        let note = Packet { code: Reason::Urgent as u8, first: 3, ..Packet::new(Kind::Note, 0) };
        program.socket.send(&note.encode(), &[]).expect("a note");
    }
    program.socket.send(&Packet::new(Kind::Ask, 1).encode(), &[]).expect("a question");
    assert_eq!(program.hear().expect("an answer").0.kind, Kind::Go);
    assert_eq!(status::ask(&path).expect("a status").not_carried, [(Reason::Urgent, 6)]);
}

#[test]
fn a_dead_services_name_is_taken_and_an_idle_one_gives_it_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairing");
    let dead = bywire_sys::socket::Listener::bind(&path).expect("a socket");
    drop(dead);
    let mut service = Service::start(&path, Scope::User).expect("in place of the dead one");
    service.serve(Duration::from_millis(50)).expect("it serves");
    assert!(!path.exists());
}

#[test]
fn who_makes_closing_take_its_time_holds_up_nobody_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairing");
    let mut service = Service::start(&path, Scope::Machine).expect("a service");
    let (slow, honest) = (Program::new(&path), Program::new(&path));
    let (client, _server) = connection();
    client.set_nonblocking(true).expect("it does not wait");
    // Nobody reads it, so its end has to wait for ten minutes where its last descriptor is closed: by the service.
    while std::io::Write::write(&mut &client, &[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::from_secs(600))).expect("it lingers");
    slow.offer(1, client.as_fd());
    drop(client);
    std::thread::spawn(move || service.serve(Duration::from_secs(60)));
    for question in 0..100 {
        honest.socket.send(&Packet::new(Kind::Ask, question).encode(), &[]).expect("a question");
        assert_eq!(honest.hear().expect("an answer").0.kind, Kind::Go);
    }
}

#[test]
fn a_file_that_is_no_memory_is_nobodys_segment() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairing");
    let mut service = Service::start(&path, Scope::Machine).expect("a service");
    std::thread::spawn(move || service.serve(Duration::from_secs(60)));
    let program = Program::new(&path);
    let ((client, _server), file) = (connection(), std::fs::File::open(directory.path()).expect("a file"));
    let offer = Packet::new(Kind::Offer, 1).encode();
    program.socket.send(&offer, &[client.as_fd(), file.as_fd()]).expect("an offer");
    assert!(program.hear().is_none());
}

#[test]
fn programs_that_go_without_a_word_were_killed() {
    let (_directory, path) = service();
    let (client, server) = connection();
    let (first, second) = (Program::new(&path), Program::new(&path));
    first.offer(1, client.as_fd());
    assert_eq!(first.verdict(1), Verdict::Waiting);
    second.offer(2, server.as_fd());
    assert_eq!(second.verdict(2), Verdict::Paired);
    second.socket.send(&Packet::new(Kind::Leave, 0).encode(), &[]).expect("a word");
    drop((first, second));
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let found = status::ask(&path).expect("a status");
        if found.processes == 0 {
            return assert_eq!(found.cut, 1);
        }
        assert!(Instant::now() < end, "they are gone");
    }
}
