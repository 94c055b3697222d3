//! 2,500 connections are carried into one server, and 10,000 in a soak, at a bounded cost in memory, also of those that
//! are idle. The memory of bursts goes back within 2 s, whatever the process waits for, also after a fork, and bytes
//! stay right.
//!
//! A control group of 256 MiB outlives bursts that nobody reads, of one process and of 24 forked ones. A program with
//! all connections that it can have has mappings left (as root with a limit of 16,384 mappings, in a soak with the
//! kernel's).

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bywire_testing::Tier;

use crate::test_service::roles::{in_role, this_test};
use crate::test_service::{self, Domain, Group, TestService, calls};

/// Rounds until all of them are carried. Each leaves the kernel by its own calls.
const ROUNDS_MAX: usize = 60;
/// Resident memory that an idle connection may use at both ends together.
const IDLE_KIB: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(120);

fn connections() -> usize {
    Tier::current().pick([2500, 2500, 10_000])
}

#[test]
fn thousands_of_connections_are_carried_into_one_server() {
    if test_service::plays(&[("serve", serve), ("call", call)]) {
        return;
    }
    let connections = connections();
    let limit = test_service::raise_descriptor_limit();
    if limit < connections as u64 + 1000 {
        println!("not run: the limit of open files is {limit}, and {} are needed", connections + 1000);
        return;
    }
    let maps = fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit of the kernel's");
    if maps.trim().parse::<usize>().expect("a number") < 5 * connections {
        println!("not run: vm.max_map_count is {}, and {} are needed", maps.trim(), 5 * connections);
        return;
    }
    let pairing = TestService::new();
    let mut server = role(&pairing, "serve", 0);
    let mut said = BufReader::new(server.stdout.take().expect("piped"));
    let port = line_with(&mut said, "port ").parse().expect("a port");
    let mut client = role(&pairing, "call", port);
    let mut input = client.stdin.take().expect("piped");
    let mut said = BufReader::new(client.stdout.take().expect("piped"));
    line_with(&mut said, "connected");
    let before_kib: usize = [server.id(), client.id()].into_iter().map(resident_kib).sum();
    let end = Instant::now() + TIMEOUT;
    let mut rounds = 0;
    while pairing.status().carried < connections as u64 || rounds < 8 {
        assert!(rounds < ROUNDS_MAX && Instant::now() < end, "{rounds} rounds: {:?}", pairing.status());
        writeln!(input, "round").expect("the client listens");
        line_with(&mut said, "done");
        rounds += 1;
    }
    // Some more, so that bytes go through memory in both directions of each connection.
    for _ in 0..12 {
        writeln!(input, "round").expect("the client listens");
        line_with(&mut said, "done");
    }
    let after_kib: usize = [server.id(), client.id()].into_iter().map(resident_kib).sum();
    let each_kib = after_kib.saturating_sub(before_kib) / connections;
    println!("{connections} carried after {rounds} rounds, {each_kib} KiB each");
    assert!(each_kib <= IDLE_KIB, "{each_kib} KiB for each connection");
    drop(input);
    assert!(client.wait().expect("gone").success(), "a wrong byte");
    let _gone = server.kill();
    let _gone = server.wait();
    test_service::eventually("bytes went through memory for each", || {
        pairing.status().bytes >= connections as u64
    });
}

fn role(pairing: &TestService, role: &str, port: u16) -> Child {
    let mut command = pairing.program(role, Some(1));
    command.env("BYWIRE_TEST_PORT", port.to_string()).stdout(Stdio::piped()).spawn().expect("an end")
}

/// What follows `word` in the next line that begins with it.
fn line_with(said: &mut impl BufRead, word: &str) -> String {
    let mut line = String::new();
    while !line.starts_with(word) {
        line.clear();
        assert!(said.read_line(&mut line).expect("a line") > 0, "it ended before it said {word}");
    }
    line.trim_start_matches(word).trim().to_owned()
}

fn resident_kib(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("a number")
}

/// Echoes everything, on any number of connections.
fn serve() {
    test_service::raise_descriptor_limit();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    listener.set_nonblocking(true).expect("non-blocking");
    println!("\nport {}", listener.local_addr().expect("an address").port());
    std::io::stdout().flush().expect("said");
    let set = test_service::epoll();
    let add = |fd: RawFd| calls::add(set, fd, libc::EPOLLIN, fd as u64);
    add(listener.as_raw_fd());
    let mut peers: std::collections::HashMap<RawFd, TcpStream> = std::collections::HashMap::new();
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 2048];
    loop {
        // SAFETY: room for as many.
        let found = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), events.len() as i32, -1) };
        for event in events.iter().take(found.max(0) as usize) {
            let fd = event.u64 as RawFd;
            if fd == listener.as_raw_fd() {
                while let Ok((peer, _)) = listener.accept() {
                    peer.set_nonblocking(true).expect("non-blocking");
                    add(peer.as_raw_fd());
                    peers.insert(peer.as_raw_fd(), peer);
                }
                continue;
            }
            let mut bytes = [0; 64];
            let Some(peer) = peers.get_mut(&fd) else { continue };
            match peer.read(&mut bytes) {
                Ok(received @ 1..) => peer.write_all(&bytes[..received]).expect("room for a few bytes"),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => drop(peers.remove(&fd)),
            }
        }
    }
}

/// Sends a few bytes on each of its connections after every word, and checks the echo.
fn call() {
    test_service::raise_descriptor_limit();
    let mut peers: Vec<TcpStream> = (0..connections()).map(|_| test_service::connected()).collect();
    println!("\nconnected");
    std::io::stdout().flush().expect("said");
    for (round, word) in std::io::stdin().lines().enumerate() {
        assert_eq!(word.expect("a word"), "round");
        let bytes = |peer: usize| [(peer as u32).to_ne_bytes(), (round as u32).to_ne_bytes()].concat();
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.write_all(&bytes(index)).expect("sent");
        }
        for (index, peer) in peers.iter_mut().enumerate() {
            let mut found = [0; 8];
            peer.read_exact(&mut found).expect("received");
            assert_eq!(found[..], bytes(index)[..], "connection {index}, round {round}");
        }
        println!("\ndone");
        std::io::stdout().flush().expect("said");
    }
}

/// The limit of mappings that the program finds, unless all of the kernel's is used.
const LIMIT: usize = 16_384;
/// A program of this file, which finds another limit. It needs mounts of its own.
const UNDER_LIMIT: &str = "mount --bind \"$0\" /proc/sys/vm/max_map_count && exec \"$@\"";

#[test]
fn a_program_with_all_connections_that_it_can_have_has_mappings_left() {
    if test_service::role().is_some() {
        return connect_until_it_is_tcp();
    }
    let kernels = fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit of the kernel's");
    let kernels = kernels.trim().parse::<usize>().expect("a number");
    // A program that finds a smaller limit needs fewer connections to reach it.
    let finds_less = test_service::is_root() && Tier::current() < Tier::Soak;
    let limit = if finds_less { LIMIT } else { kernels };
    // Both ends are in one process, with two mappings for the segment of each end.
    let needed = limit / 4 + 1000;
    if kernels < 65_530 || (test_service::raise_descriptor_limit() as usize) < needed {
        println!("not run: vm.max_map_count is {kernels}, and {needed} open files are needed");
        return;
    }
    let pairing = TestService::new();
    let this = std::env::current_exe().expect("this test");
    let mut command = pairing.command(if finds_less { "unshare".into() } else { this.clone() }, Some(1));
    if finds_less {
        let found = pairing.path("limit");
        fs::write(&found, format!("{limit}\n")).expect("written");
        command.args(["--mount", "sh", "-c", UNDER_LIMIT]).arg(found).arg(this);
    }
    in_role(&mut command, &this_test(), "driver");
    let mut driver = test_service::Running::start(command.env("BYWIRE_TEST_LIMIT", limit.to_string()));
    assert_eq!(driver.hear(), "right");
    assert!(driver.end().success());
    let status = pairing.status();
    println!("{} of {} connections were carried", status.carried_ever, limit / 8);
    assert!((limit / 11..limit / 9).contains(&(status.carried_ever as usize)), "{status:?}");
}

/// Makes connections to itself, and then mappings and a thread of its own.
fn connect_until_it_is_tcp() {
    test_service::raise_descriptor_limit();
    let limit: usize = test_service::told("BYWIRE_TEST_LIMIT").parse().expect("a number");
    let talk = |ends: (RawFd, RawFd)| {
        for (from, to) in [(ends.0, ends.1), (ends.1, ends.0)] {
            assert_eq!(test_service::send(from, b"!", 0), 1, "{}", test_service::errno());
            assert!(test_service::poll_for(to, 20_000), "it is not heard");
            assert_eq!(test_service::receive(to, 1, 0), (1, b"!".to_vec()));
        }
    };
    let pairs: Vec<_> = (0..limit / 8).map(|_| test_service::pair()).collect();
    for ends in &pairs {
        (0..8).for_each(|_| talk(*ends));
    }
    for number in 0..limit * 2 / 13 {
        let protection = if number.is_multiple_of(2) { libc::PROT_READ } else { libc::PROT_NONE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED, "{number} mappings");
    }
    std::thread::spawn(|| {}).join().expect("a thread");
    pairs.iter().for_each(|ends| talk(*ends));
    // The kernel itself refuses more only at its own limit.
    let mappings = fs::read_to_string("/proc/self/maps").expect("its mappings").lines().count();
    assert!(mappings <= limit, "{mappings} of {limit} mappings");
    test_service::say("right");
}

const POOLED: usize = 100;
const BURST_BYTES: usize = 3 << 20;
/// Memory that idle connections may have, for each hundred of them.
const IDLE_AFTER_BURSTS_KIB: usize = 1024;
/// When that memory is back at the latest.
const BACK: Duration = Duration::from_secs(2);
/// When it is back on a quiet machine.
const SOON_MS: i32 = 700;

/// Waits until the memory of bursts is back.
fn until_back(before_kib: usize, mut wait: impl FnMut()) {
    let began = Instant::now();
    loop {
        wait();
        let kib = shared_memory_kib().saturating_sub(before_kib);
        if kib <= IDLE_AFTER_BURSTS_KIB {
            return;
        }
        assert!(began.elapsed() < BACK, "{kib} KiB stay");
    }
}

#[test]
fn the_memory_of_bursts_goes_back_once_they_are_read() {
    if !test_service::is_driver() {
        return;
    }
    let before_kib = shared_memory_kib();
    let left_kib = || shared_memory_kib().saturating_sub(before_kib);
    let pairs: Vec<_> = (0..POOLED).map(|_| test_service::pair()).collect();
    pairs.iter().for_each(|ends| test_service::carry(*ends));
    pairs.iter().zip(0..).for_each(|(ends, seed)| burst(*ends, seed));
    assert!(left_kib() > (POOLED * BURST_BYTES) >> 10, "bursts are in memory");
    let wait = |time_ms| assert!(!test_service::poll_for(pairs[0].1, time_ms));
    until_back(before_kib, || wait(SOON_MS));
    // From here on this thread sleeps as long as the program wants.
    let sleeps = sleeps_of_this_thread();
    wait(BACK.as_millis() as i32);
    assert!(sleeps_of_this_thread() - sleeps <= 2, "it is woken for nothing");
    // Bytes that go to the kernel from a ring whose memory was taken back.
    let (client, server) = pairs[2];
    let sent = test_service::kernel_given(client);
    assert_eq!(test_service::send(client, b"from the ring", 0), 13);
    assert_eq!(test_service::kernel_given(client), sent);
    assert_eq!(test_service::pass(server), 1);
    test_service::settle(server, 13);
    assert_eq!(test_service::receive(server, 64, 0), (13, b"from the ring".to_vec()));
    assert_eq!(test_service::kernel_given(client), sent + 13);
    burst((client, server), 13);
}

#[test]
fn memory_goes_back_whatever_the_process_waits_for() {
    if !test_service::is_driver() {
        return;
    }
    let pairs: Vec<_> = (0..3).map(|_| test_service::pair()).collect();
    pairs.iter().for_each(|ends| test_service::carry(*ends));
    let before_kib = shared_memory_kib();
    let (_quiet, end) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let wait_elsewhere = || assert!(!test_service::poll_for(end.as_raw_fd(), SOON_MS));
    pairs.iter().for_each(|ends| burst(*ends, 1));
    until_back(before_kib, wait_elsewhere);
    let set = test_service::epoll();
    test_service::control(set, libc::EPOLL_CTL_ADD, pairs[0].1, libc::EPOLLIN as u32);
    pairs.iter().for_each(|ends| burst(*ends, 2));
    until_back(before_kib, || assert!(calls::one_event(set, SOON_MS).is_none()));
    // The thread that sends may wait where this library sees nothing.
    let sleeper = std::thread::spawn(move || calls::one_event(set, -1).is_some());
    std::thread::sleep(Duration::from_millis(200));
    pairs.iter().skip(1).for_each(|ends| burst(*ends, 3));
    until_back(before_kib, || std::thread::sleep(Duration::from_millis(50)));
    assert_eq!(test_service::send(pairs[0].0, b"!", 0), 1);
    assert!(sleeper.join().expect("it is woken"), "by bytes alone");
    assert_eq!(test_service::receive(pairs[0].1, 1, 0), (1, b"!".to_vec()));
    // Unread bytes stay.
    assert_eq!(test_service::send(pairs[0].0, pattern(5), 0), BURST_BYTES as i64);
    wait_elsewhere();
    receive_burst(pairs[0].1, 5);
    // A child has the same rings.
    let child = test_service::child(|| {
        burst(pairs[1], 6);
        i32::from(test_service::poll_for(pairs[1].1, SOON_MS))
    });
    assert_eq!(test_service::end_of(child), 0);
    until_back(before_kib, wait_elsewhere);
    burst(pairs[1], 7);
}

/// The memory of the control group. Rings may have an eighth of it.
const GROUP_BYTES: u64 = 256 << 20;

#[test]
fn bursts_that_nobody_reads_end_no_control_group() {
    if test_service::plays(&[("driver", burst_in_group)]) || !test_service::is_root() {
        return;
    }
    let Some(group) = Group::new(GROUP_BYTES) else { return };
    let pairing = TestService::new();
    let mut command = pairing.program("driver", Some(1));
    let mut driver = test_service::Running::start(command.env("BYWIRE_TEST_GROUP", group.path()));
    assert_eq!(driver.hear(), "full");
    let told = test_service::eventually("the service is told", || {
        Some(pairing.status().memory).filter(|bytes| *bytes > 0)
    });
    assert!(told <= GROUP_BYTES / 8, "{told} bytes in rings");
    driver.child.stdin.as_mut().expect("piped").write_all(b"!").expect("told");
    assert!(driver.end().success(), "it was killed, or read other bytes");
    let status = pairing.status();
    // The others went on through the kernel.
    assert!((GROUP_BYTES / 16..=GROUP_BYTES / 8).contains(&status.bytes), "{status:?}");
    assert_eq!((status.carried_ever, status.memory), (POOLED as u64, 0), "{status:?}");
}

/// Sends on all connections before anything is received.
fn burst_in_group() {
    Group::join(&test_service::told("BYWIRE_TEST_GROUP"));
    let pairs: Vec<_> = (0..POOLED).map(|_| test_service::pair()).collect();
    pairs.iter().for_each(|ends| test_service::carry(*ends));
    let sent: Vec<_> = pairs.iter().map(|(client, _)| test_service::send(*client, pattern(0), 0)).collect();
    // The service is told in a wait.
    let (_quiet, end) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert!(!test_service::poll_for(end.as_raw_fd(), 1));
    test_service::say("full");
    assert_eq!(std::io::stdin().read(&mut [0]).expect("told"), 1);
    for ((client, server), sent) in pairs.into_iter().zip(sent) {
        let mut received = Vec::new();
        while received.len() < sent.max(0) as usize {
            assert!(test_service::poll_for(server, 20_000), "{} of {sent} bytes", received.len());
            received.extend(test_service::receive(server, BURST_BYTES, 0).1);
        }
        assert!(sent > 0 && received == pattern(0)[..received.len()], "other bytes arrive");
        [client, server].into_iter().for_each(test_service::close);
    }
}

/// Processes that a server has forked, and their connections. By themselves each may have 16 MiB in rings.
const WORKERS_COUNT: usize = 24;
const WORKERS_PAIRS: usize = 8;

#[test]
fn workers_that_nobody_reads_end_no_control_group() {
    run_workers_that_nobody_reads(Domain::Tcp);
}

#[test]
fn workers_that_nobody_reads_by_unix_sockets_end_no_control_group() {
    run_workers_that_nobody_reads(Domain::Unix);
}

fn run_workers_that_nobody_reads(domain: Domain) {
    if test_service::plays(&[("driver", burst_in_workers)]) || !test_service::is_root() {
        return;
    }
    let Some(group) = Group::new(GROUP_BYTES) else { return };
    let pairing = TestService::with_domain(domain);
    let mut command = pairing.program("driver", Some(1));
    let mut driver = test_service::Running::start(command.env("BYWIRE_TEST_GROUP", group.path()));
    assert_eq!(driver.hear(), "right", "{:?}", pairing.status());
    assert!(driver.end().success(), "it was killed, or read other bytes");
    let (status, all) = (pairing.status(), WORKERS_COUNT * WORKERS_PAIRS);
    assert_eq!(status.carried_ever, all as u64, "{status:?}");
    // Rings had some memory all the same.
    assert!(status.bytes >= GROUP_BYTES / 4, "{status:?}");
}

/// Forks workers, each of which sends on all of its connections. They receive once all have done so.
fn burst_in_workers() {
    Group::join(&test_service::told("BYWIRE_TEST_GROUP"));
    // Bytes that all workers share, and the library's first connection, as a server has them.
    pattern(0);
    let mut gate = [0; 2];
    let mut counts = [0; 2];
    // SAFETY: room for two descriptors each.
    unsafe {
        assert_eq!((libc::pipe(gate.as_mut_ptr()), libc::pipe(counts.as_mut_ptr())), (0, 0));
    }
    let workers: Vec<_> = (0..WORKERS_COUNT)
        .map(|_| {
            test_service::child(|| {
                test_service::close(gate[1]);
                i32::from(!burst_and_wait(gate[0], counts[1]))
            })
        })
        .collect();
    for _ in 0..WORKERS_COUNT {
        while !test_service::poll_for(counts[0], 50) {
            // SAFETY: no pointers but a null one.
            let ended = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
            assert_eq!(ended, 0, "a worker has ended");
        }
        assert_eq!(test_service::receive(counts[0], 1, 1).0, 1);
    }
    test_service::close(gate[1]);
    let ends: Vec<_> = workers.into_iter().map(test_service::end_of).collect();
    let are_right = ends.iter().all(|end| *end == 0);
    test_service::say(if are_right { "right" } else { "wrong" });
    assert!(are_right, "{ends:?}");
}

/// A worker: sends all that it can, says so, and receives it after the gate has closed. It must not panic.
fn burst_and_wait(gate: RawFd, counts: RawFd) -> bool {
    let pairs: Vec<_> = (0..WORKERS_PAIRS).map(|_| test_service::pair()).collect();
    let are_carried = pairs.iter().all(|ends| test_service::is_carried_at_last(*ends));
    let sent: Vec<_> = pairs.iter().map(|(client, _)| test_service::send(*client, pattern(0), 0)).collect();
    test_service::send(counts, b"!", 1);
    test_service::receive(gate, 1, 1);
    let is_whole = |((client, server), sent): ((RawFd, RawFd), i64)| {
        let (mut at, mut is_right) = (0, sent > 0);
        while is_right && at < sent as usize {
            // Little memory of this process's own.
            is_right = test_service::poll_for(server, 20_000);
            let piece = test_service::receive(server, 1 << 16, 0).1;
            is_right &= pattern(0)[at..].starts_with(&piece);
            at += piece.len();
        }
        [client, server].into_iter().for_each(test_service::close);
        is_right
    };
    are_carried && pairs.into_iter().zip(sent).all(is_whole)
}

/// The bytes of a burst.
fn pattern(seed: u8) -> &'static [u8] {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let byte = |at: usize| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3];
    let bytes = BYTES.get_or_init(|| (0..BURST_BYTES + 256).map(byte).collect());
    &bytes[usize::from(seed)..][..BURST_BYTES]
}

/// Sends a burst to the other end of its pair, which receives it.
fn burst((client, server): (RawFd, RawFd), seed: u8) {
    let (bytes, mut sent, mut received) = (pattern(seed), 0, Vec::new());
    let started = Instant::now();
    while received.len() < bytes.len() {
        // A connection that is back in the kernel has less room.
        sent += test_service::send(client, &bytes[sent..], 0).max(0) as usize;
        received.extend(test_service::receive(server, BURST_BYTES, 0).1);
        assert!(started.elapsed() < TIMEOUT, "{} of {} bytes", received.len(), bytes.len());
    }
    assert!(received == bytes, "other bytes arrive");
}

fn receive_burst(server: RawFd, seed: u8) {
    let (bytes, mut received) = (pattern(seed), Vec::new());
    while received.len() < bytes.len() {
        let (count, some) = test_service::receive(server, bytes.len() - received.len(), 0);
        assert!(count > 0, "{}", test_service::errno());
        received.extend(some);
    }
    assert!(received == bytes, "other bytes arrive");
}

/// Memory that this process shares, each page counted once.
fn shared_memory_kib() -> usize {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").expect("an account of the memory");
    let line = rollup.lines().find(|line| line.starts_with("Pss_Shmem:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("a number")
}

/// How often this thread has gone to sleep.
fn sleeps_of_this_thread() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").expect("a thread");
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:")).expect("a count");
    line.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a number")
}
