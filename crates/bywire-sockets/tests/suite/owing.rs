//! A hundred peers with tiny windows that ask for their bytes back, and have no room for them, do not delay a
//! non-blocking loop that serves others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::test_service::{self, Running, TestService, calls};

const PEERS: usize = 100;
/// Bytes that each of them is sent and does not receive.
const FLOOD_BYTES: usize = 1 << 20;
/// Requests bytes, and asks how many clients that requested some are owed them. Every other byte is echoed.
const WANTS: u8 = 0xFF;
const COUNTS: u8 = 0xFE;
/// For all words of the honest client: waiting for one hostile peer at each of them would take longer.
const HONEST_MAX: Duration = Duration::from_secs(20);

#[test]
fn a_loop_serves_while_a_hundred_peers_take_their_bytes_back() {
    if test_service::plays(&[("serve", serve), ("ask back", ask_back), ("talk", talk)]) {
        return;
    }
    let pairing = TestService::new();
    let start =
        |role: &str, port: &str| Running::start(pairing.program(role, Some(4)).env("BYWIRE_TEST_PORT", port));
    let mut server = start("serve", "");
    let port = server.hear();
    let mut honest = start("talk", &port);
    assert_eq!(honest.hear(), "carried");
    let mut hostile = start("ask back", &port);
    assert_eq!(hostile.hear(), "asked");
    honest.child.stdin.as_mut().expect("piped").write_all(b"!").expect("told");
    assert_eq!(honest.hear(), "served");
    assert!(honest.end().success());
    assert!(pairing.status().carried_ever > PEERS as u64, "{:?}", pairing.status());
}

/// A non-blocking loop: echoes what it receives, and floods the clients that request it.
fn serve() {
    let listener = test_service::announced();
    listener.set_nonblocking(true).expect("non-blocking");
    let set = test_service::epoll();
    let add = |fd: RawFd| calls::add(set, fd, libc::EPOLLIN, fd as u64);
    add(listener.as_raw_fd());
    let mut flooded = Vec::new();
    loop {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: there is room for that many.
        let count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 64, -1) };
        for event in events.iter().take(count.max(0) as usize) {
            let fd = event.u64 as RawFd;
            if fd != listener.as_raw_fd() {
                answer(fd, &mut flooded);
                continue;
            }
            let Ok((peer, _)) = listener.accept() else { continue };
            peer.set_nonblocking(true).expect("non-blocking");
            peer.set_nodelay(true).expect("at once");
            add(peer.into_raw_fd());
        }
    }
}

fn answer(fd: RawFd, flooded: &mut Vec<RawFd>) {
    let (received, bytes) = test_service::receive(fd, 4096, 0);
    if received <= 0 {
        return test_service::close(fd);
    }
    if bytes.contains(&WANTS) {
        let flood = vec![1; FLOOD_BYTES];
        assert_eq!(test_service::send(fd, &flood, 0), FLOOD_BYTES as i64, "a ring holds that");
        // From here on the kernel has little room.
        calls::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 32 << 10);
        flooded.push(fd);
    } else if bytes.contains(&COUNTS) {
        let owed = flooded.iter().filter(|fd| test_service::kernel_given(**fd) < FLOOD_BYTES as u64);
        test_service::send(fd, &[owed.count() as u8], 0);
    } else {
        test_service::send(fd, &bytes, 0);
    }
}

/// Connections with tiny windows. Each goes to another owner while everything is in its ring.
fn ask_back() {
    let peers: Vec<TcpStream> = (0..PEERS).map(|_| connect_with_a_tiny_window()).collect();
    let mut other = test_service::connected();
    other.set_nodelay(true).expect("at once");
    for peer in &peers {
        let fd = peer.as_raw_fd();
        test_service::until_carried(fd, || test_service::converse(&mut peer.try_clone().expect("a copy"), 1));
        let came = test_service::kernel_received(fd);
        (&mut &*peer).write_all(&[WANTS]).expect("sent");
        test_service::settle(fd, FLOOD_BYTES as u64);
        assert_eq!(test_service::kernel_received(fd), came, "it is not in the ring");
        // The server serves one connection after the other. Before its answer the kernel has room for the whole flood.
        test_service::converse(&mut other, 1);
        assert_eq!(test_service::pass(fd), 1);
    }
    test_service::say("asked");
    let _told = std::io::stdin().read(&mut [0]);
}

fn connect_with_a_tiny_window() -> TcpStream {
    // SAFETY: no pointers; a descriptor that nobody else has; a live int and a live address.
    let peer = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        calls::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 4096);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = test_service::told_port().to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let length = size_of_val(&address) as u32;
        assert_eq!(libc::connect(fd, (&raw const address).cast(), length), 0, "{}", test_service::errno());
        TcpStream::from_raw_fd(fd)
    };
    peer.set_nodelay(true).expect("at once");
    peer
}

/// An honest client, before and after.
fn talk() {
    let mut peer = test_service::connected();
    peer.set_nodelay(true).expect("at once");
    let mut other = peer.try_clone().expect("a copy");
    test_service::until_carried(peer.as_raw_fd(), || test_service::converse(&mut other, 1));
    test_service::say("carried");
    let _told = std::io::stdin().read(&mut [0]);
    peer.set_read_timeout(Some(HONEST_MAX)).expect("set");
    let started = Instant::now();
    (0..3).for_each(|_| test_service::converse(&mut peer, u32::from(COUNTS)));
    assert!(started.elapsed() < HONEST_MAX, "{:?} for its words", started.elapsed());
    let mut owed = [0];
    peer.write_all(&[COUNTS]).expect("a question");
    peer.read_exact(&mut owed).expect("an answer");
    assert_eq!(usize::from(owed[0]), PEERS, "all are owed something all the time");
    test_service::say("served");
}
