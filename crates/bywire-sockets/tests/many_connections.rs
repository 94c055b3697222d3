//! Ten thousand carried connections to one server, and the memory of many that are idle.

mod test_service;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use test_service::TestService;

const CONNECTIONS: usize = 10_000;
const TEST: &str = "ten_thousand_connections_are_carried_into_one_server";
/// Rounds until all of them are carried. Each leaves the kernel by its own calls.
const ROUNDS_MAX: usize = 60;
/// Resident memory that an idle connection may use at both ends together.
const IDLE_KIB: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn ten_thousand_connections_are_carried_into_one_server() {
    match std::env::var("BYWIRE_TEST_ROLE").as_deref() {
        Ok("serve") => return serve(),
        Ok("call") => return call(),
        _ => {}
    }
    let limit = test_service::raise_descriptor_limit();
    if limit < CONNECTIONS as u64 + 1000 {
        println!("not run: the limit of open files is {limit}, and {} are needed", CONNECTIONS + 1000);
        return;
    }
    let maps = fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit of the kernel's");
    if maps.trim().parse::<usize>().expect("a number") < 5 * CONNECTIONS {
        println!("not run: vm.max_map_count is {}, and {} are needed", maps.trim(), 5 * CONNECTIONS);
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
    while pairing.status().carried < CONNECTIONS as u64 || rounds < 8 {
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
    let each_kib = after_kib.saturating_sub(before_kib) / CONNECTIONS;
    println!("{CONNECTIONS} carried after {rounds} rounds, {each_kib} KiB each");
    assert!(each_kib <= IDLE_KIB, "{each_kib} KiB for each connection");
    drop(input);
    assert!(client.wait().expect("gone").success(), "a wrong byte");
    let _gone = server.kill();
    let _gone = server.wait();
    test_service::eventually("bytes went through memory for each", || {
        (pairing.status().bytes >= CONNECTIONS as u64).then_some(())
    });
}

fn role(pairing: &TestService, role: &str, port: u16) -> Child {
    pairing
        .command(std::env::current_exe().expect("this test"), Some(1))
        .args(["--exact", TEST, "--nocapture"])
        .env("BYWIRE_TEST_ROLE", role)
        .env("BYWIRE_TEST_PORT", port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("an end")
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
    let add = |fd: RawFd| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: a live event.
        assert_eq!(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    };
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
    let port = std::env::var("BYWIRE_TEST_PORT").expect("a port").parse::<u16>().expect("a number");
    let mut peers: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connect")).collect();
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

const BURSTS: &str = "the_memory_of_bursts_goes_back_once_they_are_read";
const POOLED: usize = 100;
const BURST_BYTES: usize = 3 << 20;
/// Memory that idle connections may have, for each hundred of them.
const IDLE_AFTER_BURSTS_KIB: usize = 1024;
/// When that memory is back at the latest.
const BACK: Duration = Duration::from_secs(2);

#[test]
fn the_memory_of_bursts_goes_back_once_they_are_read() {
    if !test_service::is_driver(BURSTS) {
        return;
    }
    let before_kib = shared_memory_kib();
    let left_kib = || shared_memory_kib().saturating_sub(before_kib);
    let pairs: Vec<_> = (0..POOLED).map(|_| test_service::pair()).collect();
    pairs.iter().for_each(|ends| test_service::carry(*ends));
    let is_back = || {
        let kib = left_kib();
        assert!(kib <= IDLE_AFTER_BURSTS_KIB, "{kib} KiB stay");
    };
    // Whatever this process waits for.
    let set = test_service::epoll();
    let (_quiet, end) = std::os::unix::net::UnixStream::pair().expect("a pair");
    test_service::control(set, libc::EPOLL_CTL_ADD, pairs[0].1, libc::EPOLLIN as u32);
    let waits: [&dyn Fn(); 3] = [
        &|| assert!(!test_service::poll_for(pairs[0].1, BACK.as_millis() as i32)),
        &|| assert!(!test_service::poll_for(end.as_raw_fd(), BACK.as_millis() as i32)),
        &|| {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            assert_eq!(unsafe { libc::epoll_wait(set, &raw mut event, 1, BACK.as_millis() as i32) }, 0);
        },
    ];
    for (round, wait) in waits.into_iter().enumerate() {
        pairs.iter().enumerate().for_each(|(index, ends)| burst(*ends, (index + round) as u8));
        assert!(left_kib() > POOLED * BURST_BYTES >> 10, "bursts are in memory");
        let began = Instant::now();
        wait();
        println!("{} KiB after {:?}", left_kib(), began.elapsed());
        is_back();
    }
    // From here on this thread sleeps as long as the program wants.
    let sleeps = sleeps_of_this_thread();
    waits[0]();
    assert!(sleeps_of_this_thread() - sleeps <= 2, "it is woken for nothing");
    // The thread that sends may wait elsewhere, where this library sees nothing.
    let sleeper = std::thread::spawn(move || wait_once(set));
    std::thread::sleep(Duration::from_millis(200));
    pairs.iter().skip(1).for_each(|ends| burst(*ends, 7));
    std::thread::sleep(BACK);
    is_back();
    burst(pairs[0], 8);
    assert!(sleeper.join().expect("it is woken"), "by bytes alone");
    // What is not read stays.
    assert_eq!(test_service::send(pairs[0].0, pattern(9), 0), BURST_BYTES as i64);
    waits[1]();
    receive_burst(pairs[0].1, 9);
    // A child has the same ring.
    let child = test_service::child(|| {
        burst(pairs[1], 10);
        i32::from(test_service::poll_for(pairs[1].1, BACK.as_millis() as i32))
    });
    assert_eq!(test_service::end_of(child), 0);
    waits[1]();
    is_back();
    burst(pairs[1], 11);
    // Bytes that go to the kernel from a ring whose memory was taken back.
    let sent = test_service::kernel_given(pairs[2].0);
    assert_eq!(test_service::send(pairs[2].0, b"from the ring", 0), 13);
    assert_eq!(test_service::kernel_given(pairs[2].0), sent);
    assert_eq!(test_service::pass(pairs[2].1), 1);
    test_service::settle(pairs[2].1, 13);
    assert_eq!(test_service::receive(pairs[2].1, 64, 0), (13, b"from the ring".to_vec()));
    assert_eq!(test_service::kernel_given(pairs[2].0), sent + 13);
    burst(pairs[2], 13);
}

/// Waits for bytes in a set. Returns whether some came.
fn wait_once(set: RawFd) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    unsafe { libc::epoll_wait(set, &raw mut event, 1, -1) == 1 }
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
