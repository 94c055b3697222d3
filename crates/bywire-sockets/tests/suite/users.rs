//! Programs of different users share one service. They are carried where they are two ends of one connection, and get
//! nothing else. Needs root.
//!
//! Each user sees only its own connections. Shared memory is read-only. Reused addresses give no access. No page or
//! lock of one user delays another. No service of another user is used. Withdrawn doorbells are in no set, and a forked
//! child keeps only the doorbells that it needs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use bywire_pairing::protocol::{Kind, PACKET_BYTES, Packet, SERVICE_VARIABLE, VERSION, Verdict};
use bywire_pairing::space::Spaces;
use bywire_pairing::status;
use bywire_sys::socket::Received;
use bywire_testing::protocol_client::ProtocolClient;

use crate::test_service::calls::{await_sleep, one_event};
use crate::test_service::roles::streams;
use crate::test_service::{self, Group, Running, TestService};

const SERVER: u32 = 4001;
const CLIENT: u32 = 4002;
const NOBODY: u32 = 4003;
const ROUNDS: u32 = 400;
/// How the server waits for the client's bytes.
const WAYS: [&str; 3] = ["blocking", "poll", "epoll"];

#[test]
fn programs_of_two_users_are_carried_and_each_user_sees_its_own() {
    if test_service::plays(&[("serve", serve), ("talk", talk), ("look", look)]) || !test_service::is_root() {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    let (_server, port) = start_server(&pairing);
    let mut clients: Vec<_> = [CLIENT, SERVER, 0]
        .into_iter()
        .map(|user| Running::start(pairing.user(user, "talk").env("BYWIRE_TEST_PORT", &port)))
        .collect();
    for client in &mut clients {
        assert_eq!(client.hear(), "right");
    }
    let ways = WAYS.len() as u64;
    // Each of the three exchanges bytes on one connection of each kind.
    let all = pairing.status();
    assert_eq!((all.carried, all.carried_ever), (3 * ways, 3 * ways), "{all:?}");
    let seen = |user: u32| {
        let mut other = Running::start(pairing.user(user, "look").env_remove("LD_PRELOAD"));
        other.hear()
    };
    assert_eq!(seen(SERVER), format!("2 {}", 3 * ways), "its server and one client");
    assert_eq!(seen(CLIENT), format!("1 {ways}"));
    assert_eq!(seen(NOBODY), "0 0");
    // All may exit at the same time.
    clients.iter_mut().for_each(|client| drop(client.child.stdin.take()));
}

/// The role `serve` of a test, and the port that it has announced.
fn start_server(pairing: &TestService) -> (Running, String) {
    let mut server = Running::start(&mut pairing.user(SERVER, "serve"));
    let port = server.hear();
    (server, port)
}

/// Echoes on one connection after the other, each with another kind of wait.
fn serve() {
    let listener = test_service::announced();
    let mut threads = Vec::new();
    for _ in 0..3 * WAYS.len() {
        let (peer, _) = listener.accept().expect("accept");
        threads.push(std::thread::spawn(move || echo(peer)));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("served"));
}

fn echo(mut peer: TcpStream) {
    let mut way = [0];
    peer.read_exact(&mut way).expect("how to wait");
    let fd = peer.as_raw_fd();
    let wait: Box<dyn Fn() -> bool> = match WAYS[usize::from(way[0])] {
        "poll" => Box::new(move || test_service::poll_for(fd, 40_000)),
        "epoll" => {
            let set = test_service::epoll();
            test_service::control(set, libc::EPOLL_CTL_ADD, fd, (libc::EPOLLIN | libc::EPOLLET) as u32);
            Box::new(move || one_event(set, 40_000).is_some())
        }
        _ => Box::new(|| true),
    };
    // The client's end comes after it has checked everything.
    test_service::give_back(&mut peer, wait);
}

fn talk() {
    let port = test_service::told_port();
    let mut peers: Vec<TcpStream> =
        WAYS.iter().map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connect")).collect();
    for (way, peer) in peers.iter_mut().enumerate() {
        peer.set_nodelay(true).expect("at once");
        peer.write_all(&[way as u8]).expect("said");
        test_service::converse(peer, ROUNDS);
        test_service::until_carried(peer.as_raw_fd(), || test_service::converse(peer, 1));
    }
    test_service::say("right");
    let _end = std::io::stdin().read(&mut [0]);
}

/// Prints what a user is shown.
fn look() {
    let service = test_service::told(SERVICE_VARIABLE);
    let status = test_service::eventually("the service answers", || status::query(Path::new(&service)).ok());
    test_service::say(&format!("{} {}", status.processes, status.carried_ever));
}

fn client() -> ProtocolClient {
    ProtocolClient::new(Path::new(&test_service::told(SERVICE_VARIABLE)))
}

#[test]
fn memory_for_a_peer_of_another_user_is_read_only() {
    if test_service::plays(&[("serve", answer_for_ever), ("write", write_to_what_is_given)])
        || !test_service::is_root()
    {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    let (_server, port) = start_server(&pairing);
    let mut client = pairing.user(CLIENT, "write");
    let mut client = Running::start(client.env_remove("LD_PRELOAD").env("BYWIRE_TEST_PORT", port));
    assert_eq!(client.hear(), "refused");
    assert!(client.end().success());
}

fn answer_for_ever() {
    let mut peer = test_service::first_caller();
    test_service::give_back(&mut peer, || true);
}

/// Has a connection to a program paired. Returns the files of the answer.
fn paired(client: &ProtocolClient, peer: &mut TcpStream) -> Vec<OwnedFd> {
    let mut given = None;
    let started = std::time::Instant::now();
    for token in 0.. {
        // The server offers its end after some calls. Each call of this end may have to be repeated.
        (0..20).for_each(|_| {
            peer.write_all(b"!").expect("asked");
            peer.read_exact(&mut [0]).expect("answered");
        });
        if given.is_none() || matches!(given, Some((Verdict::Again, _))) {
            client.offer(token, peer.as_fd());
            given = Some(client.answer(token));
        } else if matches!(given, Some((Verdict::Waiting, _))) {
            given = client
                .look()
                .filter(|(packet, _)| packet.kind == Kind::Answer)
                .map_or(given, |(packet, descriptors)| {
                    Some((Verdict::of(packet.code).expect("a verdict"), descriptors))
                });
        }
        if matches!(given, Some((Verdict::Paired, _))) {
            break;
        }
        assert!(started.elapsed() < test_service::TIMEOUT, "never paired");
    }
    given.expect("paired").1
}

fn write_to_what_is_given() {
    let mut peer = test_service::connected();
    let client = client();
    let descriptors = paired(&client, &mut peer);
    // The segment's two files and the page belong to the server. The doorbell between them is a timer.
    for memory in [&descriptors[0], &descriptors[2], &descriptors[3]] {
        let fd = memory.as_raw_fd();
        // SAFETY: plain calls on a descriptor of this test; the kernel chooses the address of a mapping.
        unsafe {
            assert_eq!(libc::pwrite(fd, b"!".as_ptr().cast(), 1, 0), -1);
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = libc::mmap(std::ptr::null_mut(), 4096, writable, libc::MAP_SHARED, fd, 0);
            assert_eq!(mapped, libc::MAP_FAILED);
            let mapped = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(mapped, libc::MAP_FAILED, "it is there to be read");
            assert_eq!(libc::mprotect(mapped, 4096, writable), -1, "nor later");
            assert_eq!(libc::ftruncate(fd, 0), -1);
            assert_eq!(
                libc::fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 4096),
                -1
            );
            assert_eq!(libc::madvise(mapped, 4096, libc::MADV_REMOVE), -1);
            assert_eq!(libc::fchmod(fd, 0o666), -1, "nor may it be opened for writing");
        }
        // A reopened file is a new open file, and is sealed too.
        if let Ok(mut anew) = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}")) {
            assert!(anew.write(b"!").is_err());
        }
    }
    test_service::say("refused");
}

#[test]
fn a_withdrawn_doorbell_is_in_no_set() {
    if test_service::plays(&[("serve", watch_a_doorbell), ("keep", keep_a_doorbell)])
        || !test_service::is_root()
    {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    let (mut server, port) = start_server(&pairing);
    let mut keeper = pairing.user(CLIENT, "keep");
    keeper.env_remove("LD_PRELOAD").env("BYWIRE_TEST_PORT", port);
    let mut keeper = Running::start(&mut keeper);
    assert_eq!(server.hear(), "a child has none");
    assert_eq!(keeper.hear(), "closed");
    assert_eq!(server.hear(), "none");
    drop(keeper.child.stdin.take());
}

/// Closes its connection, and keeps what it was sent for as long as the test allows.
fn keep_a_doorbell() {
    let mut peer = test_service::connected();
    let client = client();
    let _kept = paired(&client, &mut peer);
    // The other end confirms that it has seen the doorbell.
    peer.write_all(b"?").expect("asked");
    peer.read_exact(&mut [0]).expect("answered");
    drop(peer);
    drop(client);
    test_service::say("closed");
    let _end = std::io::stdin().read(&mut [0]);
}

/// The kind of a descriptor of this program.
fn kind_of(fd: &str) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    link.map_or_else(|_| String::new(), |link| link.to_string_lossy().into_owned())
}

/// The doorbells in this program's sets in which `poll` sleeps: its own ones for other users, and the number of others
/// that are no eventfd because they were closed.
fn other_user_doorbells_in_sets() -> (Vec<String>, usize) {
    let (mut known, mut stale) = (Vec::new(), 0);
    for entry in std::fs::read_dir("/proc/self/fdinfo").expect("descriptors").filter_map(Result::ok) {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for line in text.lines().filter(|line| line.starts_with("tfd:") && line.contains("b7e1000000000000"))
        {
            let number = line.split_whitespace().nth(1).expect("a number");
            match kind_of(number).as_str() {
                "anon_inode:[timerfd]" => known.push(number.to_owned()),
                "anon_inode:[eventfd]" => {}
                _ => stale += 1,
            }
        }
    }
    (known, stale)
}

/// Echoes bytes until one is a question mark.
fn give_back_until_asked(peer: &mut TcpStream) {
    let mut byte = [0];
    while byte != *b"?" {
        peer.read_exact(&mut byte).expect("asked");
        if byte != *b"?" {
            peer.write_all(&byte).expect("answered");
        }
    }
}

fn watch_a_doorbell() {
    let mut peer = test_service::first_caller();
    give_back_until_asked(&mut peer);
    let own = test_service::pair();
    test_service::carry(own);
    let set = test_service::epoll();
    assert_eq!(test_service::control(set, libc::EPOLL_CTL_ADD, own.1, libc::EPOLLIN as u32), 0);
    assert!(!test_service::poll_for(own.1, 10), "nothing is sent");
    let (doorbells, _) = other_user_doorbells_in_sets();
    assert!(
        doorbells.len() == 2 && doorbells[0] == doorbells[1],
        "in the program's set, and where poll sleeps: {doorbells:?}"
    );
    let has_doorbell = || kind_of(&doorbells[0]) == "anon_inode:[timerfd]";
    let fd = peer.as_raw_fd();
    let is_there = test_service::in_child(|| {
        // The last connection to that user, for this child.
        test_service::close(fd);
        !has_doorbell()
    });
    test_service::say(if is_there == 0 { "a child has none" } else { "a child has one" });
    peer.write_all(b"!").expect("answered");
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0, "its end");
    drop(peer);
    test_service::eventually("it is withdrawn", || {
        // Every offer also reads the service's packets.
        let (client, server) = test_service::pair();
        test_service::carry((client, server));
        [client, server].into_iter().for_each(test_service::close);
        !has_doorbell()
    });
    let found = other_user_doorbells_in_sets();
    test_service::say(&if found == (Vec::new(), 0) { "none".to_owned() } else { format!("{found:?}") });
}

#[test]
fn a_childs_close_leaves_doorbells_for_its_parents_sleepers() {
    if test_service::plays(&[("serve", sleep_while_a_child_closes), ("talk", talk_when_told)])
        || !test_service::is_root()
    {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    let (mut server, port) = start_server(&pairing);
    let mut client = pairing.user(CLIENT, "talk");
    let mut client = Running::start(client.env("BYWIRE_TEST_PORT", port));
    assert_eq!(server.hear(), "a child has closed it");
    drop(client.child.stdin.take());
    assert_eq!(server.hear(), "woken");
}

fn sleep_while_a_child_closes() {
    let mut peer = test_service::first_caller();
    give_back_until_asked(&mut peer);
    let fd = peer.as_raw_fd();
    let sleeper = std::thread::spawn(move || test_service::poll_for(fd, -1));
    await_sleep("self", &["7 ", "271 "]);
    let closed = test_service::in_child(|| {
        // The last connection to that user, for this child.
        test_service::close(fd);
        true
    });
    assert_eq!(closed, 0);
    test_service::say("a child has closed it");
    test_service::eventually("it is woken", || sleeper.is_finished());
    assert!(sleeper.join().expect("it is over"), "by what was sent");
    test_service::say("woken");
}

fn talk_when_told() {
    let mut peer = test_service::connected();
    peer.set_nodelay(true).expect("at once");
    let fd = peer.as_raw_fd();
    test_service::until_carried(fd, || test_service::converse(&mut peer, 1));
    peer.write_all(b"?").expect("asked");
    let _told = std::io::stdin().read(&mut [0]);
    peer.write_all(b"!").expect("sent");
    let _end = peer.read(&mut [0]);
}

const BURST_CONNECTIONS: usize = 16;
const BURST_BYTES: usize = 3 << 20;
/// The memory of the reader's control group, which may have 16 MiB of other users' rings.
const GROUP_BYTES: u64 = 96 << 20;

#[test]
fn bursts_of_another_user_beyond_what_the_reader_may_map_arrive() {
    if test_service::plays(&[("read", read_bursts), ("send", send_bursts)]) || !test_service::is_root() {
        return;
    }
    let Some(group) = Group::new(GROUP_BYTES) else { return };
    let pairing = TestService::of_machine(Spaces::default());
    let mut reader = Running::start(&mut pairing.user(SERVER, "read"));
    group.add(reader.child.id());
    reader.child.stdin.as_mut().expect("piped").write_all(b"!").expect("told");
    let port = reader.hear();
    let log = pairing.path("log");
    std::fs::write(&log, "").expect("a log");
    std::os::unix::fs::chown(&log, Some(CLIENT), Some(CLIENT)).expect("given away");
    let mut sender = pairing.user(CLIENT, "send");
    let mut sender = Running::start(sender.env("BYWIRE_TEST_PORT", port).env("BYWIRE_LOG", &log));
    assert_eq!(sender.hear(), "sent");
    reader.child.stdin.as_mut().expect("piped").write_all(b"!").expect("told");
    assert_eq!(reader.hear(), "right");
    assert!(sender.end().success() && reader.end().success());
    let status = pairing.status();
    assert_eq!(status.carried_ever, BURST_CONNECTIONS as u64, "{status:?}");
    // What the reader may not map came through the kernel.
    let log = std::fs::read_to_string(log).expect("a log");
    let in_memory =
        |line: &str| line.split(' ').nth(6).and_then(|bytes| bytes.parse::<u64>().ok()).expect("a number");
    let (in_memory, all) =
        (log.lines().map(in_memory).sum::<u64>(), (BURST_CONNECTIONS * BURST_BYTES) as u64);
    assert!((all / 8..all / 2).contains(&in_memory), "{in_memory} of {all}: {log}");
}

fn burst(connection: usize) -> impl Iterator<Item = u8> {
    (0..BURST_BYTES).map(move |at| ((at + connection) as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3])
}

fn read_bursts() {
    let wait = || assert_eq!(std::io::stdin().read(&mut [0]).expect("told"), 1);
    wait();
    let listener = test_service::announced();
    let mut peers: Vec<TcpStream> = Vec::new();
    for _ in 0..BURST_CONNECTIONS {
        let (mut peer, _) = listener.accept().expect("accept");
        give_back_until_asked(&mut peer);
        peers.push(peer);
    }
    wait();
    for (number, peer) in peers.iter_mut().enumerate() {
        let mut bytes = vec![0; BURST_BYTES];
        peer.read_exact(&mut bytes).expect("all of it");
        assert!(bytes.into_iter().eq(burst(number)), "connection {number}: other bytes");
        peer.write_all(b"!").expect("answered");
    }
    test_service::say("right");
}

fn send_bursts() {
    let port = test_service::told_port();
    let connect = |_| {
        let mut peer = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        peer.set_nodelay(true).expect("at once");
        let fd = peer.as_raw_fd();
        test_service::until_carried(fd, || {
            peer.write_all(b"!").expect("sent");
            peer.read_exact(&mut [0]).expect("an answer");
        });
        peer.write_all(b"?").expect("asked");
        peer
    };
    let mut peers: Vec<TcpStream> = (0..BURST_CONNECTIONS).map(connect).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.write_all(&burst(number).collect::<Vec<_>>()).expect("room for all of it");
    }
    test_service::say("sent");
    // It waits for each answer, and does meanwhile what the reader asks for.
    for peer in &mut peers {
        peer.read_exact(&mut [0]).expect("an answer");
    }
}

#[test]
fn reused_addresses_give_no_access_to_earlier_connections() {
    if test_service::plays(&[("steal", steal), ("serve", serve_twice), ("talk", talk_from_an_old_address)])
        || !test_service::is_root()
    {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    let (_server, port) = start_server(&pairing);
    let mut thief = pairing.user(NOBODY, "steal");
    let mut thief = Running::start(thief.env_remove("LD_PRELOAD").env("BYWIRE_TEST_PORT", &port));
    let from = thief.hear();
    let mut client = pairing.user(CLIENT, "talk");
    // The server offers its end first, while the thief's offer waits.
    client.env("BYWIRE_SOCKETS_CALLS", "64");
    let mut client = Running::start(client.env("BYWIRE_TEST_PORT", &port).env("BYWIRE_TEST_FROM", from));
    assert_eq!(client.hear(), "right");
    let found = pairing.status();
    assert_eq!(found.carried_ever, 1, "the true ends found each other all the same: {found:?}");
    drop(thief.child.stdin.take());
    assert_eq!(thief.hear(), "nothing");
}

/// Offers an end that it resets at once, so that others can get its addresses.
fn steal() {
    let port = test_service::told_port();
    let client = client();
    // Any port that can be bound again. A port that `connect` chooses may be in use, or may have been used within a
    // minute.
    let peer = connect_from(0, port);
    client.offer(1, peer.as_fd());
    assert_eq!(client.verdict(1), Verdict::Waiting);
    let from = peer.local_addr().expect("an address");
    let now = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: a live structure of the size given.
    let status = unsafe {
        let length = size_of_val(&now) as u32;
        libc::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const now).cast(), length)
    };
    assert_eq!(status, 0);
    drop(peer);
    test_service::say(&from.port().to_string());
    let _told = std::io::stdin().read(&mut [0]);
    while let Some((packet, descriptors)) = client.look() {
        assert!(descriptors.is_empty() && packet.code != Verdict::Paired as u8, "{packet:?}");
    }
    test_service::say("nothing");
}

fn serve_twice() {
    let listener = test_service::announced();
    let (thief, _) = listener.accept().expect("accept");
    let (mut peer, _) = listener.accept().expect("accept");
    drop(thief);
    test_service::give_back(&mut peer, || true);
}

fn talk_from_an_old_address() {
    let from = test_service::told("BYWIRE_TEST_FROM").parse().expect("a number");
    let mut peer = connect_from(from, test_service::told_port());
    test_service::converse(&mut peer, 2 * ROUNDS);
    test_service::until_carried(peer.as_raw_fd(), || test_service::converse(&mut peer, 1));
    test_service::say("right");
}

/// Connects from a certain port, or, for 0, from a free one.
fn connect_from(from: u16, to: u16) -> TcpStream {
    let address = |port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let length = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: live structures of the lengths given; the descriptor is nobody else's.
    let peer = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let (ours, theirs) = (address(from), address(to));
        test_service::eventually("the address is free", || {
            libc::bind(fd, (&raw const ours).cast(), length) == 0
        });
        assert_eq!(libc::connect(fd, (&raw const theirs).cast(), length), 0);
        TcpStream::from_raw_fd(fd)
    };
    let found = peer.local_addr().expect("an address");
    let from = if from == 0 { found.port() } else { from };
    assert_eq!(found, SocketAddr::from(([127, 0, 0, 1], from)));
    peer
}

#[test]
fn a_connection_with_a_held_lock_delays_only_its_own_user() {
    if !test_service::is_root() {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    let (client, mut server) = streams();
    let Some(mut fault) = Fault::new() else { return };
    let writer = fault.write_to(client.as_raw_fd());
    let slow = as_user(NOBODY, || ProtocolClient::new(&pairing.service));
    slow.offer(1, client.as_fd());
    let ask = |user| as_user(user, || status::query(&pairing.service));
    // The service no longer serves this user, and serves everybody else.
    test_service::eventually("its own user is held up", || ask(NOBODY).err());
    for _ in 0..3 {
        test_service::eventually("others are served", || ask(CLIENT).ok());
    }
    assert!(slow.look().is_none(), "the lock was not held");
    fault.resolve();
    assert_eq!(slow.verdict(1), Verdict::Waiting);
    test_service::eventually("it is served again", || ask(NOBODY).ok());
    server.read_exact(&mut [0; 4096]).expect("what was written");
    writer.join().expect("it has written");
}

/// Runs `act` as another user. Its result is used as this user.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    let begin = move || {
        // SAFETY: numbers; the raw call changes only this thread, which ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
        act()
    };
    std::thread::scope(|scope| scope.spawn(begin).join().expect("it has begun"))
}

/// A page on which every access waits, including those of the kernel, which then holds the lock of the socket that it
/// writes to.
struct Fault {
    file: OwnedFd,
    page: usize,
}

impl Fault {
    /// `None`, with a message: this kernel does not support it.
    fn new() -> Option<Self> {
        // `struct uffdio_api` and `struct uffdio_register` of linux/userfaultfd.h, with their requests.
        let (mut api, mut register) = ([0xAAu64, 0, 0], [0, 4096, 1u64, 0]);
        // SAFETY: live words of the lengths of the requests; a new mapping at an address of the kernel, which is never
        // removed.
        unsafe {
            let file = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) as i32;
            if file < 0 {
                println!("not run: no userfaultfd: {}", std::io::Error::last_os_error());
                return None;
            }
            let file = OwnedFd::from_raw_fd(file);
            assert_eq!(libc::ioctl(file.as_raw_fd(), 0xC018_AA3F, api.as_mut_ptr()), 0);
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            register[0] = page as u64;
            assert_eq!(libc::ioctl(file.as_raw_fd(), 0xC020_AA00, register.as_mut_ptr()), 0);
            Some(Self { file, page: page as usize })
        }
    }

    /// Returns as soon as somebody waits.
    fn write_to(&self, fd: RawFd) -> std::thread::JoinHandle<()> {
        let page = self.page;
        let writer = std::thread::spawn(move || {
            // SAFETY: a page that stays mapped.
            assert_eq!(unsafe { libc::write(fd, page as *const libc::c_void, 4096) }, 4096);
        });
        assert!(test_service::poll_for(self.file.as_raw_fd(), 40_000), "nobody touches it");
        writer
    }

    /// `UFFDIO_ZEROPAGE`: provides the page.
    fn resolve(&mut self) {
        let mut request = [self.page as u64, 4096, 0, 0];
        // SAFETY: live words, as many as the request has.
        assert_eq!(unsafe { libc::ioctl(self.file.as_raw_fd(), 0xC020_AA04, request.as_mut_ptr()) }, 0);
    }
}

/// Nobody reads the first end, so its last close waits for ten minutes.
fn lingering() -> (TcpStream, TcpStream) {
    let (client, server) = streams();
    let set = |socket: &TcpStream, option: i32, value: [i32; 2], words: usize| {
        // SAFETY: live words, as many as stated.
        let status = unsafe {
            let length = (words * size_of::<i32>()) as u32;
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.as_ptr().cast(), length)
        };
        assert_eq!(status, 0);
    };
    set(&server, libc::SO_RCVBUF, [4096, 0], 1);
    set(&client, libc::SO_SNDBUF, [1 << 20, 0], 1);
    set(&client, libc::SO_LINGER, [1, 600], 2);
    client.set_nonblocking(true).expect("it does not wait");
    while (&client).write(&[0; 65_536]).is_ok() {}
    (client, server)
}

#[test]
fn a_lingering_page_delays_nobody() {
    if test_service::plays(&[("serve", answer_for_ever), ("linger", keep_lingering_page)])
        || !test_service::is_root()
    {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    let (_server, port) = start_server(&pairing);
    let mut hostile = pairing.user(NOBODY, "linger");
    let mut hostile = Running::start(hostile.env_remove("LD_PRELOAD").env("BYWIRE_TEST_PORT", port));
    assert_eq!(hostile.hear(), "answered");
}

/// Has its end paired, if possible, with a page whose last close takes ten minutes, and continues to send questions to
/// the server.
fn keep_lingering_page() {
    let mut peer = test_service::connected();
    peer.set_read_timeout(Some(test_service::TIMEOUT)).expect("set");
    let mut client = Some(ProtocolClient::silent(Path::new(&test_service::told(SERVICE_VARIABLE))));
    let (sender, _receiver) = lingering();
    let doorbell = bywire_sys::wake::Eventfd::new().expect("a doorbell");
    let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
    let descriptors = [doorbell.as_fd(), sender.as_fd()];
    let said = client.as_ref().map(|its| its.socket.send(&hello.encode(), &descriptors));
    assert_eq!(said, Some(Ok(())));
    // If the service is faster, this is the last close, and waits.
    std::thread::spawn(move || drop(sender));
    let began = std::time::Instant::now();
    let (mut is_asked, mut buffer) = (false, [0; PACKET_BYTES]);
    for round in 0..400u64 {
        peer.write_all(b"!").expect("asked");
        peer.read_exact(&mut [0]).expect("answered");
        std::thread::sleep(Duration::from_millis(1));
        let Some(its) = &client else { continue };
        if !is_asked {
            let offer = Packet::new(Kind::Offer, round).encode();
            // The connection may have been closed.
            let _refused = its.socket.send(&offer, &[peer.as_fd(), its.segment.as_fd()]);
            is_asked = true;
        }
        while let Ok(Received::Packet(length, _)) = its.socket.receive(&mut buffer) {
            let packet = Packet::decode(&buffer[..length]).expect("one of ours");
            is_asked &= packet.code != Verdict::Again as u8;
            if packet.kind == Kind::Answer && packet.code == Verdict::Paired as u8 {
                // The service releases the page, and the server, which has not read yet, has the last copy.
                client = None;
                std::thread::sleep(Duration::from_millis(500));
                break;
            }
        }
    }
    let elapsed = began.elapsed();
    assert!(elapsed < test_service::TIMEOUT, "400 answers took {elapsed:?}");
    test_service::say("answered");
}

#[test]
fn a_service_of_another_user_is_not_used() {
    if test_service::plays(&[("listen", listen), ("talk", talk_to_itself)]) || !test_service::is_root() {
        return;
    }
    let pairing = TestService::without_service();
    pairing.open_to_all();
    let place = pairing.path("theirs");
    std::fs::create_dir(&place).expect("a directory");
    std::os::unix::fs::chown(&place, Some(NOBODY), None).expect("chown");
    let path = place.join("pairing");
    let mut other = pairing.user(NOBODY, "listen");
    other.env_remove("LD_PRELOAD").env(SERVICE_VARIABLE, &path);
    let mut other = Running::start(&mut other);
    assert_eq!(other.hear(), "listens");
    let mut program = Running::start(pairing.user(CLIENT, "talk").env(SERVICE_VARIABLE, &path));
    assert_eq!(program.hear(), "right");
    drop(other.child.stdin.take());
    assert_eq!(other.hear(), "1 came and said nothing");
}

/// Accepts every connection.
fn listen() {
    let listener = bywire_sys::listener::Listener::bind(Path::new(&test_service::told(SERVICE_VARIABLE)))
        .expect("bound");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(test_service::told(SERVICE_VARIABLE), open).expect("chmod");
    test_service::say("listens");
    let _end = std::io::stdin().read(&mut [0]);
    let came: Vec<_> = std::iter::from_fn(|| listener.accept().expect("accept")).collect();
    let heard = came.iter().filter(|socket| !matches!(socket.receive(&mut [0; 64]), Ok(Received::Closed)));
    assert_eq!(heard.count(), 0, "something was said");
    test_service::say(&format!("{} came and said nothing", came.len().min(1)));
}

fn talk_to_itself() {
    let (mut peer, mut server) = streams();
    let server = std::thread::spawn(move || test_service::give_back(&mut server, || true));
    test_service::converse(&mut peer, ROUNDS);
    drop(peer);
    server.join().expect("served");
    test_service::say("right");
}
