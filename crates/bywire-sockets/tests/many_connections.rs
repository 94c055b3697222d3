//! Ten thousand carried connections to one server.

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
    if maps.trim().parse::<usize>().expect("a number") < 3 * CONNECTIONS {
        println!("not run: vm.max_map_count is {}, and {} are needed", maps.trim(), 3 * CONNECTIONS);
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
