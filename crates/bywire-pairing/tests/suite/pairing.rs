//! Programs and the service, over its socket: which ends are paired, which are refused, what a user may take, keep and
//! see. The service delays no end. Partly needs root.
//!
//! Packets have extreme field values (every fourth, and all in a soak). Programs stop or exit at any step. Other
//! versions are known. A user's service outlasts processes that have asked it. Doorbells between users come and go with
//! their connections.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use bywire_pairing::protocol::{Kind, Packet, VERSION, Verdict};
use bywire_pairing::reason::Reason;
use bywire_pairing::service::{OTHER_USERS_MAX, Service, StartError};
use bywire_pairing::status;
use bywire_pairing::user::Scope;
use bywire_ring::stream::{SEGMENT_BYTES, head_bytes, rest_bytes};
use bywire_testing::protocol_client::{ProtocolClient, TIMEOUT, machine_service};
use bywire_testing::{Tier, alone, eventually};

/// The status of the service, asked again if it does not answer in time.
fn asked(path: &std::path::Path) -> status::Status {
    eventually("an answer", || status::query(path).ok())
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

/// A service, two programs, and a connection between them that they have not offered.
struct Meeting {
    _directory: tempfile::TempDir,
    path: std::path::PathBuf,
    first: ProtocolClient,
    second: ProtocolClient,
    client: TcpStream,
    server: TcpStream,
}

impl Meeting {
    fn new() -> Self {
        let (_directory, path) = service();
        let (client, server) = connection();
        let (first, second) = (ProtocolClient::new(&path), ProtocolClient::new(&path));
        Self { _directory, path, first, second, client, server }
    }
}

#[test]
fn two_ends_of_one_connection_are_paired_and_both_are_told() {
    let Meeting { _directory, path, first, second, client, server } = Meeting::new();
    first.pairs_with(&second, client.as_fd(), server.as_fd());
    assert_eq!(first.verdict(1), Verdict::Paired);
    let found = asked(&path);
    assert_eq!((found.processes, found.carried, found.waiting), (2, 1, 0));
}

#[test]
fn each_end_gets_the_files_of_the_other_ends_segment() {
    let Meeting { _directory, first, second, client, server, .. } = Meeting::new();
    first.offer_in_two(1, client.as_fd());
    assert_eq!(first.verdict(1), Verdict::Waiting);
    // This one has no `/proc`.
    second.offer(2, server.as_fd());
    let lengths = |files: Vec<std::os::fd::OwnedFd>| {
        let length = |file: &std::os::fd::OwnedFd| rustix::fs::fstat(file).expect("a file").st_size as usize;
        files.iter().map(length).collect::<Vec<_>>()
    };
    let found = lengths(second.answer(2).1);
    assert_eq!((found.len(), found[0], found[3]), (4, head_bytes(), rest_bytes()));
    let found = lengths(first.answer(1).1);
    assert_eq!((found.len(), found[0]), (3, SEGMENT_BYTES));
}

/// A service passes on what an older program offers to nobody, and an older service takes nothing of a newer program.
#[test]
fn another_version_is_hung_up_on() {
    let (_directory, path) = service();
    for version in [VERSION - 1, VERSION + 1] {
        let program = ProtocolClient::silent(&path);
        let doorbell = bywire_sys::wake::Eventfd::new().expect("a doorbell");
        let page = ProtocolClient::memory(4096);
        let hello = Packet { first: version, ..Packet::new(Kind::Hello, 0) };
        program.socket.send(&hello.encode(), &[doorbell.as_fd(), page.as_fd()]).expect("hello");
        assert!(program.hear().is_none(), "{version:x}");
    }
}

#[test]
fn a_user_whose_rings_are_full_gets_no_more_of_them() {
    let Meeting { _directory, path, first, second, client, server } = Meeting::new();
    first.say(&Packet { first: u64::MAX, ..Packet::new(Kind::Memory, 0) });
    first.offer(1, client.as_fd());
    assert_eq!(first.verdict(1), Verdict::Memory);
    second.offer(2, server.as_fd());
    assert_eq!(second.verdict(2), Verdict::Memory, "another program of the same user");
    assert!(asked(&path).memory > 0);
    first.say(&Packet { first: 0, ..Packet::new(Kind::Memory, 0) });
    first.offer(3, client.as_fd());
    assert_eq!(first.verdict(3), Verdict::Waiting);
    second.say(&Packet { first: u64::MAX, ..Packet::new(Kind::Memory, 0) });
    drop(second);
    eventually("it has gone", || asked(&path).memory == 0);
}

#[test]
fn only_established_connections_are_accepted() {
    let (_directory, path) = service();
    let program = ProtocolClient::new(&path);
    let (mut client, server) = connection();
    drop(server);
    assert_eq!(std::io::Read::read(&mut client, &mut [0]).expect("the end"), 0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
    let (mut unix, unix_peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
    drop(unix_peer);
    assert_eq!(std::io::Read::read(&mut unix, &mut [0]).expect("the end"), 0);
    let files = [client.as_fd(), listener.as_fd(), datagrams.as_fd(), unix.as_fd()];
    for (token, file) in files.into_iter().enumerate() {
        program.offer(token as u64, file);
        assert_eq!(program.verdict(token as u64), Verdict::Refused, "{token}");
    }
}

#[test]
fn two_ends_of_a_unix_connection_are_paired() {
    let (_directory, path) = service();
    let [one, other] = [(); 2].map(|()| ProtocolClient::new(&path));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let (stranger, _its_end) = std::os::unix::net::UnixStream::pair().expect("a pair");
    one.offer(1, ours.as_fd());
    assert_eq!(one.verdict(1), Verdict::Waiting);
    other.offer(1, stranger.as_fd());
    assert_eq!(other.verdict(1), Verdict::Waiting, "an end of another connection");
    other.offer(2, theirs.as_fd());
    assert_eq!(other.verdict(2), Verdict::Paired);
    assert_eq!(one.verdict(1), Verdict::Paired);
}

#[test]
fn a_program_that_does_not_read_gets_few_packets_and_keeps_its_connections() {
    let (_directory, path) = service();
    let (deaf, caller) = (ProtocolClient::new(&path), ProtocolClient::new(&path));
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
    // Once the program reads again, the rest is paired as well.
    for token in taken..pairs.len() {
        assert_eq!(deaf.verdict((token - taken) as u64), Verdict::Paired);
        assert_eq!(offer(token), Verdict::Paired);
    }
    let found = asked(&path);
    assert_eq!((found.processes, found.carried, found.waiting), (2, 1000, 0));
}

#[test]
fn an_offer_whose_descriptors_are_lost_on_the_way_may_be_repeated() {
    let (_directory, path) = service();
    let program = ProtocolClient::new(&path);
    program.say(&Packet::new(Kind::Offer, 7));
    assert_eq!(program.verdict(7), Verdict::Full);
}

#[test]
fn an_ended_offer_is_never_paired() {
    let Meeting { _directory, path, first, second, client, server } = Meeting::new();
    first.offer(1, client.as_fd());
    assert_eq!(first.verdict(1), Verdict::Waiting);
    first.say(&Packet::new(Kind::End, 1));
    // The packets of two programs may be received in any order.
    eventually("the offer is over", || asked(&path).waiting == 0);
    second.offer(2, server.as_fd());
    assert_eq!(second.verdict(2), Verdict::Waiting);
    drop(second);
    eventually("what a program that is gone has offered goes with it", || asked(&path).waiting == 0);
}

#[test]
fn the_service_keeps_no_descriptor_that_delays_an_end() {
    let (_directory, path) = service();
    let (client, mut server) = connection();
    let program = ProtocolClient::new(&path);
    program.offer(1, client.as_fd());
    assert_eq!(program.verdict(1), Verdict::Waiting);
    drop(client);
    server.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    assert_eq!(std::io::Read::read(&mut server, &mut [0]).expect("the end"), 0);
}

#[test]
fn only_a_program_that_breaks_the_rules_is_dropped() {
    let (_directory, path) = service();
    let honest = ProtocolClient::new(&path);
    for packet in [Packet::new(Kind::Go, 0), Packet { first: 1, ..Packet::new(Kind::Hello, 0) }] {
        let program = ProtocolClient::new(&path);
        program.say(&packet);
        assert!(program.hear().is_none(), "{packet:?}");
    }
    let program = ProtocolClient::new(&path);
    program.socket.send(b"garbage", &[]).expect("a packet");
    assert!(program.hear().is_none());
    honest.say(&Packet::new(Kind::Ask, 9));
    assert_eq!(honest.hear().expect("an answer").0.kind, Kind::Go);
}

#[test]
fn reasons_are_counted_and_a_second_service_finds_the_first() {
    let (_directory, path) = service();
    assert!(matches!(Service::start(&path, Scope::User), Err(StartError::Served(_))));
    // The service replaces no file, no link, and no served socket of another kind.
    let [file, link, other] = ["file", "link", "other"].map(|name| path.with_file_name(name));
    std::fs::write(&file, "precious").expect("written");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let _listener = std::os::unix::net::UnixListener::bind(&other).expect("bound");
    for taken in [&file, &link, &other] {
        let refused = Service::start(taken, Scope::User);
        assert!(matches!(refused, Err(StartError::Occupied(_))), "{taken:?}: {refused:?}");
    }
    assert_eq!(std::fs::read_to_string(&link).expect("still there"), "precious");
    let program = ProtocolClient::new(&path);
    for _ in 0..2 {
        let note = Packet { code: Reason::Urgent as u8, first: 3, ..Packet::new(Kind::Note, 0) };
        program.say(&note);
    }
    program.say(&Packet::new(Kind::Ask, 1));
    assert_eq!(program.hear().expect("an answer").0.kind, Kind::Go);
    assert_eq!(asked(&path).not_carried, [(Reason::Urgent, 6)]);
}

#[test]
fn the_name_of_a_dead_or_idle_service_is_taken_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairing");
    let dead = bywire_sys::listener::Listener::bind(&path).expect("a socket");
    drop(dead);
    let mut service = Service::start(&path, Scope::User).expect("in place of the dead one");
    service.serve(Duration::from_millis(50)).expect("it serves");
    assert!(!path.exists());
}

#[test]
fn a_service_whose_name_is_gone_leaves_that_of_its_successor() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairing");
    let mut service = Service::start(&path, Scope::User).expect("a service");
    std::fs::remove_file(&path).expect("removed, as with its directory");
    let successor = Service::start(&path, Scope::User).expect("another service");
    service.serve(Duration::from_millis(50)).expect("it serves until it is idle");
    drop(service);
    assert!(path.exists());
    drop(successor);
    assert!(!path.exists());
}

const VISITOR: &str = "a_users_service_outlasts_a_process_that_has_asked_it_and_connects_late";
/// A test that runs as another process has the service's path here.
const ASKED_AT: &str = "BYWIRE_TEST_SERVICE";

#[test]
fn a_users_service_outlasts_a_process_that_has_asked_it_and_connects_late() {
    let mut line = String::new();
    if let Ok(path) = std::env::var(ASKED_AT) {
        // It asks as `bywire run` does, and then lives as long as its input.
        asked(path.as_ref());
        println!("asked");
        std::io::stdin().read_line(&mut line).expect("an end");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pairing");
    let mut service = Service::start(&path, Scope::User).expect("a service");
    // Keeps the service until the process has asked.
    let client = ProtocolClient::new(&path);
    let serving = std::thread::spawn(move || service.serve(Duration::from_millis(50)));
    let mut program = Command::new(std::env::current_exe().expect("this test"));
    program.args(alone(VISITOR)).env(ASKED_AT, &path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("this test once more");
    let mut output = BufReader::new(program.stdout.take().expect("a pipe"));
    while line.trim() != "asked" {
        line.clear();
        assert!(output.read_line(&mut line).expect("output") > 0, "it asks");
    }
    drop(client);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!serving.is_finished() && path.exists());
    drop(program.stdin.take());
    assert!(program.wait().expect("it ends").success());
    eventually("the service ends", || serving.is_finished());
    assert!(!path.exists());
}

#[test]
fn programs_that_vanish_without_a_message_count_as_killed() {
    let Meeting { _directory, path, first, second, client, server } = Meeting::new();
    first.pairs_with(&second, client.as_fd(), server.as_fd());
    second.say(&Packet::new(Kind::Leave, 0));
    drop((first, second));
    eventually("they are gone", || asked(&path).processes == 0);
    assert_eq!(asked(&path).cut, 1);
}

#[test]
fn paired_ends_that_moved_no_bytes_are_counted_separately() {
    let (_directory, path) = service();
    let unused = |told: &[Packet]| {
        let (client, server) = connection();
        let before = asked(&path);
        let (first, second) = (ProtocolClient::new(&path), ProtocolClient::new(&path));
        first.pairs_with(&second, client.as_fd(), server.as_fd());
        told.iter().for_each(|packet| second.say(packet));
        drop((first, second));
        let found = eventually("they are gone", || Some(asked(&path)).filter(|found| found.processes == 0));
        (found.unused - before.unused, found.cut - before.cut, found.bytes - before.bytes)
    };
    let end = |first, second| Packet { first, second, ..Packet::new(Kind::End, 2) };
    let leave = |first, second| Packet { first, second, ..Packet::new(Kind::Leave, 0) };
    // The other program of each pair is killed.
    assert_eq!(unused(&[end(0, 0)]), (1, 1, 0));
    assert_eq!(unused(&[end(3, 0)]), (0, 1, 3));
    assert_eq!(unused(&[end(0, 3)]), (0, 1, 0));
    assert_eq!(unused(&[leave(0, 0)]), (1, 1, 0));
    assert_eq!(unused(&[leave(5, 1)]), (0, 1, 5));
    // A count above the real one, an end that was never offered, and a second end change nothing.
    assert_eq!(unused(&[leave(5, u64::MAX)]), (0, 1, 5));
    assert_eq!(unused(&[Packet::new(Kind::End, 7)]), (0, 2, 0));
    assert_eq!(unused(&[end(0, 0), leave(0, 0), leave(0, 0)]), (1, 1, 0));
}

/// A program of another user, which requires root.
fn of_user(path: &std::path::Path, user: u32) -> ProtocolClient {
    let connect = || {
        let uid = rustix::process::Uid::from_raw(user);
        // Changes this thread alone, which ends after it has connected: at that moment the kernel records the user.
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("another user");
        ProtocolClient::new(path)
    };
    std::thread::scope(|scope| scope.spawn(connect).join().expect("it connects"))
}

/// Offers both ends. Ends of different users are paired if the first one was seen before and after the other.
fn offer_both(programs: [&ProtocolClient; 2], token: u64, client: &TcpStream, server: &TcpStream) {
    let [first, second] = programs;
    first.offer_anew(token, client.as_fd());
    assert_eq!(first.verdict(token), Verdict::Waiting);
    second.offer_anew(token, server.as_fd());
    assert_eq!(second.verdict(token), Verdict::Waiting);
    assert_eq!(first.verdict(token), Verdict::Again);
    first.offer_anew(token, client.as_fd());
}

/// Offers both ends. Returns the first end's memory, which the second one gets, if they are paired.
fn meet(first: &ProtocolClient, second: &ProtocolClient, token: u64) -> Option<std::os::fd::OwnedFd> {
    let (client, server) = connection();
    offer_both([first, second], token, &client, &server);
    let (verdict, mut given) = second.answer(token);
    assert_eq!(first.verdict(token), verdict);
    match verdict {
        Verdict::Paired => {
            for end in [first, second] {
                end.say(&Packet::new(Kind::End, token));
                // The service has received the end before it answers this.
                end.say(&Packet::new(Kind::Ask, token));
                assert_eq!(end.hear_beside_doorbells().expect("an answer").0.kind, Kind::Go);
            }
            Some(given.remove(0))
        }
        Verdict::OtherUser => None,
        other => panic!("{other:?}"),
    }
}

/// A service for all users, which runs. `None`: the test does not run as root.
fn machine() -> Option<(tempfile::TempDir, std::path::PathBuf)> {
    let (mut service, path, directory) = machine_service()?;
    std::thread::spawn(move || service.serve(Duration::from_secs(60)));
    Some((directory, path))
}

#[test]
fn a_program_connects_to_any_number_of_other_users_in_sequence() {
    let Some((_directory, path)) = machine() else { return };
    let server = of_user(&path, 54_400);
    // The server has a doorbell for each other user, at most `OTHER_USERS_MAX` of them.
    for number in 0..2 * OTHER_USERS_MAX as u32 {
        let client = of_user(&path, 54_500 + number);
        assert!(meet(&client, &server, number.into()).is_some(), "user {number}");
    }
}

#[test]
fn a_doorbell_is_withdrawn_with_the_last_connection_that_needs_it() {
    let Some((_directory, path)) = machine() else { return };
    let [alice, bob] = [54_411, 54_412].map(|user| of_user(&path, user));
    let pairs = [connection(), connection()];
    for (token, (client, server)) in pairs.iter().enumerate() {
        let token = token as u64;
        offer_both([&alice, &bob], token, client, server);
        assert_eq!([alice.verdict(token), bob.verdict(token)], [Verdict::Paired; 2]);
    }
    let kinds = |program: &ProtocolClient| {
        program.say(&Packet::new(Kind::Ask, 9));
        let next = || program.hear().expect("an answer").0.kind;
        std::iter::repeat_with(next).take_while(|kind| *kind != Kind::Go).collect::<Vec<_>>()
    };
    alice.say(&Packet::new(Kind::End, 0));
    assert_eq!(kinds(&alice), [], "another connection needs it");
    alice.say(&Packet::new(Kind::End, 1));
    assert_eq!(kinds(&alice), [Kind::Withdraw]);
    assert_eq!(kinds(&bob), [], "its own connections are not over");
}

/// The values of a changed number: the limits of signed and unsigned words of both lengths, and their neighbours.
const LIMITS: [u64; 9] =
    [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX];

#[test]
fn packets_with_extreme_field_values_are_answered_or_end_only_their_own_program() {
    let (_directory, path) = service();
    let doorbell = bywire_sys::wake::Eventfd::new().expect("a doorbell");
    let page = ProtocolClient::memory(4096);
    let (client, _server) = connection();
    let mut program = ProtocolClient::new(&path);
    // Every fourth of the 45 values for each kind. Four kinds together meet all of them.
    let (step, mut place) = (Tier::current().pick([4, 4, 1]), 0);
    for kind in (0..17).chain([0x7f, 0x80, 0xff]) {
        for (at, width) in [(1, 1), (4, 4), (8, 8), (16, 8), (24, 8)] {
            for limit in LIMITS {
                place += 1;
                if place % step != 0 {
                    continue;
                }
                let mut packet = Packet { first: VERSION, ..Packet::new(Kind::Hello, 1) }.encode();
                packet[0] = kind;
                packet[at..at + width].copy_from_slice(&limit.to_le_bytes()[..width]);
                let is_hello = kind == Kind::Hello as u8;
                if is_hello {
                    program = ProtocolClient::silent(&path);
                }
                let segment = ProtocolClient::memory(bywire_ring::stream::SEGMENT_BYTES);
                let [doorbell, page, client, segment] =
                    [doorbell.as_fd(), page.as_fd(), client.as_fd(), segment.as_fd()];
                let brought: &[_] = match kind {
                    1 => &[doorbell, page],
                    4 => &[client, segment],
                    _ => &[],
                };
                if program.socket.send(&packet, brought).is_err() {
                    // The packet before was answered, and its descriptors were looked at only afterwards.
                    program = ProtocolClient::new(&path);
                    program.socket.send(&packet, brought).expect("sent");
                }
                // The service either hangs up or answers.
                let is_heard = program.socket.send(&Packet::new(Kind::Ask, 9).encode(), &[]).is_ok()
                    && std::iter::from_fn(|| program.hear()).any(|(packet, _)| packet.kind == Kind::Go);
                assert!(!is_hello || is_heard == (at != 16), "hello, {limit} at {at}: {is_heard}");
                if !is_heard {
                    program = ProtocolClient::new(&path);
                }
            }
        }
    }
    drop(program);
    eventually("all of them have gone", || (asked(&path).processes, asked(&path).waiting) == (0, 0));
}

#[test]
fn programs_that_stop_or_exit_at_any_step_delay_nobody_and_leave_nothing() {
    let (_directory, path) = service();
    let [first, second] = [(); 2].map(|()| ProtocolClient::new(&path));
    for step in 0..5 {
        // A stopped program receives nothing.
        let stopped = ProtocolClient::silent(&path);
        let doorbell = bywire_sys::wake::Eventfd::new().expect("a doorbell");
        let ((client, server), page) = (connection(), ProtocolClient::memory(4096));
        if step > 0 {
            let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
            stopped.socket.send(&hello.encode(), &[doorbell.as_fd(), page.as_fd()]).expect("said");
        }
        if step > 1 {
            stopped.say(&Packet::new(Kind::Ask, 1));
        }
        if step > 2 {
            stopped.offer(1, client.as_fd());
            eventually("its offer is heard", || asked(&path).waiting != 0);
        }
        if step > 3 {
            first.offer(100 + step, server.as_fd());
            assert_eq!(first.verdict(100 + step), Verdict::Paired);
        }
        let (client, server) = connection();
        first.offer(step, client.as_fd());
        assert_eq!(first.verdict(step), Verdict::Waiting, "step {step}");
        second.offer(step, server.as_fd());
        assert_eq!((first.verdict(step), second.verdict(step)), (Verdict::Paired, Verdict::Paired));
        drop(stopped);
        eventually("what it has left goes", || (asked(&path).processes, asked(&path).waiting) == (2, 0));
    }
}

#[test]
fn a_user_that_keeps_memory_of_ended_connections_is_not_paired_with_its_owner_again() {
    let Some((_directory, path)) = machine() else { return };
    let [alice, bob, carol] = [54_321, 54_322, 54_323].map(|user| of_user(&path, user));
    // As no program keeps memory, any number can follow one another.
    for token in 0..40 {
        assert!(meet(&alice, &bob, token).is_some(), "{token}");
    }
    let mut kept: Vec<_> = (40..80).map_while(|token| meet(&alice, &bob, token)).collect();
    assert_eq!(kept.len(), 16);
    assert!(meet(&bob, &alice, 80).is_none(), "in either direction");
    assert!(meet(&carol, &bob, 81).is_some(), "others are none the worse");
    kept.pop();
    assert!(meet(&alice, &bob, 82).is_some());
}
