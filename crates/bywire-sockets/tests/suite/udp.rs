//! Datagrams that are carried in memory behave as the kernel's: what is sent and received, in which order, with which sender
//! and flags, and what `poll`, `select` and epoll sets say. A killed receiver is refused as in the kernel, and its successor
//! at the same port gets what follows.
//!
//! Random: `BYWIRE_SEEDS`, 500 by `./x test all` and 20,000 in a soak, from `BYWIRE_SEED` on.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::time::{Duration, Instant};

use bywire_testing::{number, repetitions};

use crate::test_service::{self, Running, TestService, errno, say, told};

/// Seeds that one process runs, one after the other.
const BATCH: u64 = 25;
const STEPS: u64 = 120;

#[test]
fn carried_datagrams_behave_like_the_kernels() {
    if let Ok(seeds) = std::env::var("BYWIRE_TEST_SEED") {
        let (first, end) = seeds.split_once(':').expect("a range");
        for seed in first.parse::<u64>().expect("a number")..end.parse().expect("a number") {
            println!("seed {seed} = \n{}", Program::new(seed).run());
            std::io::stdout().flush().expect("written");
        }
        return;
    }
    let pairing = TestService::new();
    let (first, count) = (number("BYWIRE_SEED", 0), repetitions("BYWIRE_SEEDS", [100, 500, 20_000]));
    for start in (first..first + count).step_by(BATCH as usize) {
        let seeds = start..(start + BATCH).min(first + count);
        let run = |calls| {
            pairing.transcript("udp::carried_datagrams_behave_like_the_kernels", seeds.clone(), calls)
        };
        let (plain, carried) = (run(None), run(Some(2)));
        let (plain, carried): (Vec<_>, Vec<_>) = (plain.lines().collect(), carried.lines().collect());
        if let Some(at) = (0..plain.len().max(carried.len())).find(|at| plain.get(*at) != carried.get(*at)) {
            let seed = plain[..=at].iter().rev().find(|line| line.contains("seed "));
            let before = &plain[at.saturating_sub(20)..at];
            panic!(
                "{seed:?}: {before:#?}\nthe kernel's: {:?}\ncarried: {:?}",
                plain.get(at),
                carried.get(at)
            );
        }
    }
    let status = pairing.status();
    println!("{count} seeds: {} flows, {} bytes in memory", status.carried_ever, status.bytes);
    assert!(
        status.carried_ever * 2 > count && status.bytes > 4096 * count,
        "too little was carried: {status:?}"
    );
}

/// A client and a server in one program, and what is under way between them.
struct Program {
    seed: u64,
    client: RawFd,
    server: RawFd,
    set: RawFd,
    is_connected: bool,
    client_at: std::net::SocketAddr,
    server_at: std::net::SocketAddr,
    /// Datagrams that are not received yet, at the client and at the server.
    under_way: [u64; 2],
    sent: u64,
    transcript: String,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let is_v6 = draw(&mut random).is_multiple_of(3);
        let is_any = draw(&mut random).is_multiple_of(2);
        let (own, any) = if is_v6 { ("[::1]:0", "[::]:0") } else { ("127.0.0.1:0", "0.0.0.0:0") };
        let server = UdpSocket::bind(if is_any { any } else { own }).expect("bound");
        let client = UdpSocket::bind(own).expect("bound");
        let client_at = client.local_addr().expect("an address");
        let mut server_at = client_at;
        server_at.set_port(server.local_addr().expect("an address").port());
        let is_connected = draw(&mut random).is_multiple_of(2);
        if is_connected {
            client.connect(server_at).expect("connected");
        }
        client.set_nonblocking(true).expect("set");
        server.set_nonblocking(true).expect("set");
        let set = test_service::epoll();
        if !draw(&mut random).is_multiple_of(3) {
            assert_eq!(
                test_service::control(set, libc::EPOLL_CTL_ADD, server.as_raw_fd(), libc::EPOLLIN as u32),
                0
            );
        }
        Self {
            seed: random,
            client: client.into_raw_fd(),
            server: server.into_raw_fd(),
            set,
            is_connected,
            client_at,
            server_at,
            under_way: [0; 2],
            sent: 0,
            transcript: String::new(),
        }
    }

    fn run(mut self) -> String {
        // Often enough that both directions are in memory soon.
        for _ in 0..12 {
            self.send(0, 30);
            self.receive(1);
            self.send(1, 30);
            self.receive(0);
        }
        for _ in 0..STEPS {
            self.step();
        }
        for end in [0, 1] {
            while self.under_way[end] > 0 {
                self.receive(end);
            }
        }
        for fd in [self.client, self.server, self.set] {
            test_service::close(fd);
        }
        self.transcript
    }

    fn fd(&self, end: usize) -> RawFd {
        [self.client, self.server][end]
    }

    fn draw(&mut self, below: u64) -> u64 {
        draw(&mut self.seed) % below
    }

    fn note(&mut self, what: &str, result: i64, more: &str) {
        let error = if result < 0 { errno() } else { 0 };
        writeln!(self.transcript, "{what} = {result} {error} {more}").expect("text");
    }

    fn step(&mut self) {
        let end = self.draw(2) as usize;
        match self.draw(40) {
            0..=11 => self.send(end, [0, 1, 9, 64, 1400, 9000, 65_507][self.seed as usize % 7]),
            12..=23 => self.receive(end),
            24..=26 => self.send_several(end),
            27..=29 => self.receive_several(end),
            30 | 31 => {
                let (result, bits) = test_service::poll(self.fd(end), libc::POLLIN | libc::POLLOUT);
                self.note("poll", result, &format!("{bits:x}"));
            }
            32 | 33 => {
                let (result, bits) = test_service::select(self.fd(end));
                self.note("select", result, &format!("{bits:?}"));
            }
            34 | 35 => {
                let (result, events) = test_service::wait(self.set);
                self.note("epoll_wait", result, &format!("{events:x?}"));
            }
            36 | 37 => {
                let mut waiting = -1;
                // SAFETY: one int.
                let result = unsafe { libc::ioctl(self.fd(end), libc::FIONREAD, &raw mut waiting) };
                self.note("FIONREAD", result.into(), &waiting.to_string());
            }
            38 => self.change(end),
            _ => self.pause(),
        }
    }

    /// Datagrams that are due to be given to the kernel after a moment go there.
    fn pause(&mut self) {
        std::thread::sleep(Duration::from_micros(1500));
        self.note("pause", 0, "");
    }

    /// Something that returns the socket to the kernel, or another descriptor of it, at few steps of few seeds.
    fn change(&mut self, end: usize) {
        let fd = self.fd(end);
        match self.draw(12) {
            0 => {
                // SAFETY: no pointers.
                let new = unsafe { libc::dup(fd) };
                test_service::close(fd);
                *[&mut self.client, &mut self.server][end] = new;
                if end == 1 {
                    // The kernel removes its registration only with the last descriptor.
                    test_service::control(self.set, libc::EPOLL_CTL_ADD, new, libc::EPOLLIN as u32);
                }
                self.note("dup", 0, "");
            }
            1 => {
                let received = test_service::in_child(|| true);
                self.note("fork", received, "");
            }
            2 => {
                let on = 1;
                // SAFETY: one int.
                let result = unsafe {
                    libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMP, (&raw const on).cast(), 4)
                };
                self.note("SO_TIMESTAMP", result.into(), "");
            }
            3 if end == 0 && self.under_way[0] == 0 => {
                let (address, length) = raw(&self.server_at);
                // SAFETY: a valid address.
                let result = unsafe { libc::connect(fd, (&raw const address).cast(), length) };
                self.is_connected = true;
                self.note("connect", result.into(), "");
            }
            4 => self.note("pass", test_service::pass(fd), ""),
            _ => self.pause(),
        }
    }

    /// As many as any receive buffer takes.
    fn has_room(&self, end: usize, length: usize) -> bool {
        self.under_way[1 - end] < if length > 2000 { 2 } else { 40 }
    }

    fn send(&mut self, end: usize, length: usize) {
        if !self.has_room(end, length) {
            return;
        }
        let bytes = self.bytes(length);
        let fd = self.fd(end);
        let (address, size) = raw(&[self.server_at, self.client_at][end]);
        let is_to = end == 1 || !self.is_connected;
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: length };
        let way = self.draw(4);
        // SAFETY: live bytes and a valid address.
        let sent = unsafe {
            match way {
                0 | 1 if is_to => {
                    libc::sendto(fd, bytes.as_ptr().cast(), length, 0, (&raw const address).cast(), size)
                }
                0 => libc::send(fd, bytes.as_ptr().cast(), length, 0),
                1 if length > 0 => libc::write(fd, bytes.as_ptr().cast(), length),
                _ => {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    if is_to {
                        message.msg_name = (&raw const address).cast_mut().cast();
                        message.msg_namelen = size;
                    }
                    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
                    libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL)
                }
            }
        };
        self.under_way[1 - end] += u64::from(sent >= 0);
        self.note(&format!("send {end} {way}"), sent as i64, "");
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.sent += 1;
        (0..length).map(|at| (self.sent as u8).wrapping_add(at as u8)).collect()
    }

    fn receive(&mut self, end: usize) {
        let room = [70_000, 70_000, 70_000, 5, 0][self.draw(5) as usize];
        let is_peek = self.draw(5) == 0;
        let flags =
            if is_peek { libc::MSG_PEEK } else { 0 } | if self.draw(4) == 0 { libc::MSG_TRUNC } else { 0 };
        let way = self.draw(3);
        let (mut bytes, fd) = (vec![0u8; room], self.fd(end));
        // SAFETY: zeros are an address.
        let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut size = size_of_val(&address) as libc::socklen_t;
        let (mut out_flags, place) = (0, (&raw mut address).cast());
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: room };
        // SAFETY: room for so many bytes, and for an address.
        let received = unsafe {
            match way {
                0 => libc::recv(fd, bytes.as_mut_ptr().cast(), room, flags),
                1 => libc::recvfrom(fd, bytes.as_mut_ptr().cast(), room, flags, place, &raw mut size),
                _ => {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    (message.msg_name, message.msg_namelen) = (place.cast(), size);
                    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
                    let received = libc::recvmsg(fd, &raw mut message, flags);
                    // A datagram that was in memory when a time was asked for has none.
                    (size, out_flags) = (message.msg_namelen, message.msg_flags & !libc::MSG_CTRUNC);
                    received
                }
            }
        };
        if received >= 0 && !is_peek {
            self.under_way[end] = self.under_way[end].saturating_sub(1);
        }
        let got = bytes.get(..(received.max(0) as usize).min(room)).unwrap_or(&[]);
        let first = got.iter().take(4).collect::<Vec<_>>();
        let sum = got.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        let sender = if way > 0 && received >= 0 { self.name_of(&address) } else { "" };
        self.note(
            &format!("receive {end} {way} {room} {flags:x}"),
            received as i64,
            &format!(
                "{first:?} {sum} {sender} {out_flags:x} {}",
                if way > 0 && received >= 0 { size } else { 0 }
            ),
        );
    }

    /// The ports differ from run to run.
    fn name_of(&self, address: &libc::sockaddr_storage) -> &'static str {
        let port = |at: &std::net::SocketAddr| at.port().to_be_bytes();
        // SAFETY: both families have the port at the same place.
        let found = unsafe { (*(&raw const *address).cast::<libc::sockaddr_in>()).sin_port.to_ne_bytes() };
        match found {
            _ if found == port(&self.client_at) => "client",
            _ if found == port(&self.server_at) => "server",
            _ => "another",
        }
    }

    fn send_several(&mut self, end: usize) {
        if !self.has_room(end, 1400) || self.under_way[1 - end] > 30 {
            return;
        }
        let all: Vec<_> = (0..3).map(|at| self.bytes(20 + at * 300)).collect();
        let (address, size) = raw(&[self.server_at, self.client_at][end]);
        let is_to = end == 1 || !self.is_connected;
        let mut parts: Vec<_> = all
            .iter()
            .map(|bytes| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: zeros are a message.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
                if is_to {
                    message.msg_hdr.msg_name = (&raw const address).cast_mut().cast();
                    message.msg_hdr.msg_namelen = size;
                }
                message
            })
            .collect();
        // SAFETY: valid messages.
        let sent = unsafe { libc::sendmmsg(self.fd(end), messages.as_mut_ptr(), 3, 0) };
        self.under_way[1 - end] += sent.max(0) as u64;
        let lengths: Vec<_> = messages.iter().map(|message| message.msg_len).collect();
        self.note(&format!("sendmmsg {end}"), sent.into(), &format!("{lengths:?}"));
    }

    fn receive_several(&mut self, end: usize) {
        let mut all = vec![[0u8; 2000]; 4];
        let mut parts: Vec<_> = all
            .iter_mut()
            .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: zeros are a message.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
                message
            })
            .collect();
        let flags = if self.draw(2) == 0 { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        // SAFETY: valid messages with room.
        let received =
            unsafe { libc::recvmmsg(self.fd(end), messages.as_mut_ptr(), 4, flags, std::ptr::null_mut()) };
        self.under_way[end] = self.under_way[end].saturating_sub(received.max(0) as u64);
        let got: Vec<_> = messages
            .iter()
            .zip(&all)
            .take(received.max(0) as usize)
            .map(|(message, bytes)| {
                (message.msg_len, message.msg_hdr.msg_flags & !libc::MSG_CTRUNC, bytes[0])
            })
            .collect();
        self.note(&format!("recvmmsg {end}"), received.into(), &format!("{got:?}"));
    }
}

fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// An address for the kernel.
fn raw(address: &std::net::SocketAddr) -> (libc::sockaddr_in6, libc::socklen_t) {
    // SAFETY: zeros are an address, and that of IPv4 is shorter.
    unsafe {
        let mut name: libc::sockaddr_in6 = std::mem::zeroed();
        match address {
            std::net::SocketAddr::V4(address) => {
                let place = (&raw mut name).cast::<libc::sockaddr_in>();
                (*place).sin_family = libc::AF_INET as u16;
                (*place).sin_port = address.port().to_be();
                (*place).sin_addr.s_addr = u32::from(*address.ip()).to_be();
                (name, size_of::<libc::sockaddr_in>() as u32)
            }
            std::net::SocketAddr::V6(address) => {
                name.sin6_family = libc::AF_INET6 as u16;
                name.sin6_port = address.port().to_be();
                name.sin6_addr.s6_addr = address.ip().octets();
                (name, size_of::<libc::sockaddr_in6>() as u32)
            }
        }
    }
}

/// How a receiver waits.
const WAITS: [&str; 3] = ["blocking", "poll", "epoll"];

#[test]
fn datagrams_between_programs_arrive_in_order_whole_and_once_however_their_receiver_waits() {
    if test_service::plays(&[("receiver", receive_all), ("sender", send_all)]) {
        return;
    }
    let mut in_memory = 0;
    for way in WAITS {
        let pairing = TestService::new();
        let mut receiver = Running::start(pairing.program("receiver", Some(4)).env("BYWIRE_TEST_WAY", way));
        let port = receiver.hear();
        let mut sender = Running::start(pairing.program("sender", Some(4)).env("BYWIRE_TEST_PORT", port));
        assert!(sender.end().success(), "{way}");
        assert!(receiver.end().success(), "{way}");
        let status = test_service::eventually("both have ended", || {
            Some(pairing.status()).filter(|status| status.processes == 0)
        });
        println!("{way}: {} bytes in memory", status.bytes);
        assert!(status.carried_ever > 0, "{way}: no flow was open: {status:?}");
        in_memory += status.bytes;
    }
    // On a busy machine a receiver sleeps before nearly every datagram, and the kernel wakes it.
    assert!(in_memory > 10_000, "too little went through memory: {in_memory} bytes");
}

/// Datagrams of a sender, some of them long, and the answers that it waits for.
const COUNT: u32 = 20_000;

fn send_all() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.connect(("127.0.0.1", test_service::roles::told_port())).expect("connected");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut answer = [0; 4];
    for number in 1..=COUNT {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.resize(4 + (number as usize * 7919) % 1400, number as u8);
        assert_eq!(socket.send(&bytes).expect("sent"), bytes.len());
        // A window, so that none is lost. Sometimes both ends sleep.
        if number.is_multiple_of(16) {
            assert_eq!(socket.recv(&mut answer).expect("an answer"), 4);
            assert_eq!(u32::from_ne_bytes(answer), number);
        }
        if number.is_multiple_of(1024) {
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

fn receive_all() {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
    let (way, fd) = (told("BYWIRE_TEST_WAY"), socket.as_raw_fd());
    let set = test_service::epoll();
    if way == "epoll" {
        assert_eq!(test_service::control(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32), 0);
    }
    say(&socket.local_addr().expect("an address").port().to_string());
    let mut bytes = [0; 2000];
    for number in 1..=COUNT {
        match &*way {
            "poll" => assert!(test_service::poll_for(fd, 20_000), "before {number}"),
            "epoll" => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: room for one event.
                assert_eq!(unsafe { libc::epoll_wait(set, &raw mut event, 1, 20_000) }, 1, "before {number}");
            }
            _ => {}
        }
        let (length, sender) = socket.recv_from(&mut bytes).expect("a datagram");
        assert_eq!(length, 4 + (number as usize * 7919) % 1400);
        assert_eq!(bytes[..4], number.to_ne_bytes(), "in order");
        assert!(bytes[4..length].iter().all(|byte| *byte == number as u8), "whole");
        if number.is_multiple_of(16) {
            assert_eq!(socket.send_to(&bytes[..4], sender).expect("sent"), 4);
        }
    }
}

#[test]
fn a_killed_receiver_is_refused_and_its_successor_gets_what_follows() {
    if test_service::plays(&[("receiver", answer_all), ("sender", outlive)]) {
        return;
    }
    let pairing = TestService::new();
    let rounds = repetitions("BYWIRE_ROUNDS", [6, 12, 200]);
    for round in 0..rounds {
        let mut receiver = Running::start(pairing.program("receiver", Some(4)).env("BYWIRE_TEST_PORT", "0"));
        let port = receiver.hear();
        let before = pairing.status().carried_ever;
        let mut sender = Running::start(pairing.program("sender", Some(4)).env("BYWIRE_TEST_PORT", &port));
        assert_eq!(sender.hear(), "answered");
        test_service::eventually("it is carried", || pairing.status().carried_ever > before);
        std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
        receiver.child.kill().expect("killed");
        receiver.child.wait().expect("gone");
        assert_eq!(sender.hear(), "refused");
        let mut successor =
            Running::start(pairing.program("receiver", Some(4)).env("BYWIRE_TEST_PORT", &port));
        successor.hear();
        assert!(sender.end().success(), "round {round}");
    }
}

fn answer_all() {
    let port: u16 = told("BYWIRE_TEST_PORT").parse().expect("a number");
    let socket = UdpSocket::bind(("127.0.0.1", port)).expect("bound");
    say(&socket.local_addr().expect("an address").port().to_string());
    let mut bytes = [0; 100];
    while let Ok((length, sender)) = socket.recv_from(&mut bytes) {
        // A sender that has ended refuses what it is sent.
        let _sent = socket.send_to(&bytes[..length], sender);
    }
}

fn outlive() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.connect(("127.0.0.1", test_service::roles::told_port())).expect("connected");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
    let mut bytes = [0; 100];
    let mut exchange = || socket.send(b"one").and_then(|_| socket.recv(&mut bytes));
    for _ in 0..2000 {
        assert_eq!(exchange().expect("an answer"), 3);
    }
    say("answered");
    let started = Instant::now();
    let is_refused = |error: std::io::Error| error.raw_os_error() == Some(libc::ECONNREFUSED);
    while !exchange().err().is_some_and(is_refused) {
        assert!(started.elapsed() < Duration::from_secs(20), "a killed receiver refuses");
    }
    say("refused");
    while exchange().is_err() {
        assert!(started.elapsed() < Duration::from_secs(40), "its successor answers");
    }
}
