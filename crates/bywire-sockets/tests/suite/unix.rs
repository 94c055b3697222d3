//! Unix streams are carried, and what the kernel alone can do on them stays as it is: descriptors and credentials that
//! come with bytes, addresses, the users that it names, the end of a closed or killed peer.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use bywire_pairing::reason::Reason;
use bywire_pairing::space::Spaces;

use crate::test_service::calls::{set_option, shut_down};
use crate::test_service::same::{self, assert_carried, same_by, tell};
use crate::test_service::{self, Domain, Running, TestService, eventually, say, told};

/// The variable with the path of a server.
const PATH: &str = "BYWIRE_TEST_PATH";

/// What came with a receive.
#[derive(Default)]
struct Arrived {
    received: i64,
    bytes: Vec<u8>,
    /// The descriptors.
    passed: Vec<OwnedFd>,
    /// The user of the sender, if the kernel has named one.
    user: Option<u32>,
    flags: i32,
}

#[repr(C, align(8))]
struct Control([u8; 256]);

/// Sends bytes with descriptors.
fn send_with(fd: RawFd, bytes: &[u8], passed: &[RawFd]) -> i64 {
    let mut control = Control([0; 256]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let payload = size_of_val(passed) as u32;
    // SAFETY: zeros are a message, whose parts live until the call is over; the control buffer has room for them.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        if !passed.is_empty() {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            libc::CMSG_DATA(header).copy_from_nonoverlapping(passed.as_ptr().cast(), payload as usize);
        }
        libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) as i64
    }
}

/// Receives at most `length` bytes with what comes with them.
fn receive_with(fd: RawFd, length: usize, flags: i32) -> Arrived {
    let mut arrived = Arrived { bytes: vec![0; length], ..Arrived::default() };
    let mut control = Control([0; 256]);
    let mut part = libc::iovec { iov_base: arrived.bytes.as_mut_ptr().cast(), iov_len: length };
    // SAFETY: as in `send_with`; what the kernel has written is read as the C library's macros do.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), size_of_val(&control));
        arrived.received = libc::recvmsg(fd, &raw mut message, flags) as i64;
        if arrived.received < 0 {
            arrived.bytes.clear();
            return arrived;
        }
        arrived.flags = message.msg_flags;
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            let (data, bytes) = (libc::CMSG_DATA(header), (*header).cmsg_len - libc::CMSG_LEN(0) as usize);
            match (*header).cmsg_type {
                libc::SCM_RIGHTS => arrived.passed.extend(
                    (0..bytes / 4)
                        .map(|at| OwnedFd::from_raw_fd(data.cast::<RawFd>().add(at).read_unaligned())),
                ),
                libc::SCM_CREDENTIALS => {
                    arrived.user = Some(data.cast::<libc::ucred>().read_unaligned().uid);
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    arrived.bytes.truncate(arrived.received as usize);
    arrived
}

/// Receives in pieces, and writes what each has brought.
fn tell_arrivals(text: &mut String, fd: RawFd, lengths: &[usize]) {
    for length in lengths {
        let found = receive_with(fd, *length, libc::MSG_DONTWAIT);
        tell(text, &format!("receive {length}"), found.received);
        writeln!(
            text,
            "it = {:?} {} {:?} {:x}",
            String::from_utf8_lossy(&found.bytes),
            found.passed.len(),
            found.user,
            found.flags & !libc::MSG_CMSG_CLOEXEC
        )
        .expect("a string");
    }
}

#[test]
fn descriptors_come_with_their_bytes_in_order() {
    same_by(Domain::Unix, |text| {
        for ways in 0..4 {
            let (client, server) = same::pair();
            let (file, _other) = std::io::pipe().expect("a pipe");
            if ways & 1 != 0 {
                // Bytes that nobody has read are before the descriptor.
                tell(text, "before", test_service::send(client, b"before ", 0));
            }
            tell(text, "descriptor", send_with(client, b"with", &[file.as_raw_fd(), file.as_raw_fd()]));
            tell(text, "after", test_service::send(client, b" after", 0));
            if ways & 2 != 0 {
                tell(text, "another", send_with(client, b" another", &[file.as_raw_fd()]));
            }
            tell_arrivals(text, server, &[3, 100, 100, 100, 100]);
            // The other direction goes on.
            tell(text, "back", test_service::send(server, b"answer", 0));
            tell_arrivals(text, client, &[100]);
            [client, server].into_iter().for_each(test_service::close);
        }
    });
}

#[test]
fn a_receive_without_room_for_descriptors_ends_behind_them_all_the_same() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        let (file, _other) = std::io::pipe().expect("a pipe");
        tell(text, "before", test_service::send(client, b"12", 0));
        tell(text, "descriptor", send_with(client, b"34", &[file.as_raw_fd()]));
        tell(text, "after", test_service::send(client, b"56", 0));
        for _ in 0..2 {
            tell(text, "receive", test_service::receive(server, 100, 0).0);
        }
    });
}

#[test]
fn a_peek_that_would_wait_for_all_returns_what_there_is() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        tell(text, "send", test_service::send(client, b"ef", 0));
        let mut buffer = [0u8; 9];
        // SAFETY: a live buffer of that length.
        let seen = unsafe {
            libc::recv(server, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_PEEK | libc::MSG_WAITALL)
        };
        tell(text, "peek", seen as i64);
        tell(text, "receive", test_service::receive(server, 9, 0).0);
        assert_carried((client, server), "a peek");
    });
}

#[test]
fn a_received_descriptor_works() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        tell(text, "descriptor", send_with(client, b"x", &[reader.as_raw_fd()]));
        drop(reader);
        let found = receive_with(server, 10, 0);
        writer.write_all(b"through it").expect("written");
        let mut bytes = [0; 10];
        std::fs::File::from(found.passed.into_iter().next().expect("a descriptor"))
            .read_exact(&mut bytes)
            .expect("read");
        writeln!(text, "read = {:?}", String::from_utf8_lossy(&bytes)).expect("a string");
    });
}

#[test]
fn a_receiver_that_asks_for_credentials_gets_them_with_each_byte_from_then_on() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        tell(text, "before", test_service::send(client, b"before", 0));
        tell_arrivals(text, server, &[100]);
        set_option(server, libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
        tell(text, "after", test_service::send(client, b"after", 0));
        tell_arrivals(text, server, &[2, 100]);
        set_option(server, libc::SOL_SOCKET, libc::SO_PASSCRED, 0);
        tell(text, "again", test_service::send(client, b"again", 0));
        tell_arrivals(text, server, &[100, 100]);
    });
}

#[test]
fn addresses_are_those_of_the_kernel() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        for (from, to) in [(client, server), (server, client)] {
            tell(text, "send", test_service::send(from, b"bytes", 0));
            // SAFETY: zeros are an address.
            let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
            let mut length = 5;
            let (mut buffer, place) = ([0u8; 2], (&raw mut address).cast());
            // SAFETY: live buffers of the lengths given.
            let received =
                unsafe { libc::recvfrom(to, buffer.as_mut_ptr().cast(), 2, 0, place, &raw mut length) };
            tell(text, "from", received as i64);
            writeln!(text, "family = {} {}", address.sun_family, length > 5).expect("a string");
            // The rest, without room for an address.
            tell_arrivals(text, to, &[100]);
            // SAFETY: a live address.
            let sent = unsafe { libc::sendto(from, b"x".as_ptr().cast(), 1, libc::MSG_NOSIGNAL, place, 110) };
            tell(text, "to an address", sent as i64);
        }
        assert_carried((client, server), "addresses");
    });
}

#[test]
fn an_end_that_is_closed_with_unread_bytes_fails_behind_the_last_byte() {
    same_by(Domain::Unix, |text| {
        for has_answer in [false, true] {
            let (client, server) = same::pair();
            tell(text, "unread", test_service::send(client, b"nobody reads this", 0));
            if has_answer {
                tell(text, "answer", test_service::send(server, b"answer", 0));
            }
            test_service::close(server);
            test_service::settle_close(client);
            let (status, found) = test_service::poll(client, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP);
            tell(text, &format!("poll {found:x}"), status);
            tell(text, "send", test_service::send(client, b"x", 0));
            tell_arrivals(text, client, &[3, 100, 100, 100]);
            tell(text, "error", test_service::option(client, libc::SO_ERROR));
            test_service::close(client);
        }
    });
}

#[test]
fn an_end_that_stops_receiving_makes_its_peers_sends_fail() {
    same_by(Domain::Unix, |text| {
        for how in [libc::SHUT_RD, libc::SHUT_RDWR] {
            let (client, server) = same::pair();
            tell(text, "before", test_service::send(client, b"before", 0));
            shut_down(server, how);
            let (status, found) = test_service::poll(client, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP);
            tell(text, &format!("poll {found:x}"), status);
            tell(text, "send", test_service::send(client, b"x", 0));
            tell_arrivals(text, server, &[3, 100, 100]);
            tell(text, "answer", test_service::send(server, b"answer", 0));
            tell_arrivals(text, client, &[100, 100]);
            tell(text, "error", test_service::option(client, libc::SO_ERROR));
            [client, server].into_iter().for_each(test_service::close);
        }
    });
}

#[test]
fn a_sleeping_sender_learns_that_its_peer_stops_receiving() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        let sender = std::thread::spawn(move || {
            let bytes = vec![7u8; 8 << 20];
            // SAFETY: a live slice.
            let sent = unsafe { libc::send(client, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
            // Part of it, as much as there was room for.
            let again = test_service::send(client, b"x", 0);
            (sent > 0, again, test_service::errno())
        });
        std::thread::sleep(Duration::from_millis(300));
        shut_down(server, libc::SHUT_RD);
        let (has_sent, again, error) = sender.join().expect("it ends");
        writeln!(text, "sender = {has_sent} {again} {error}").expect("a string");
    });
}

#[test]
fn two_programs_are_carried_by_path_and_by_abstract_name() {
    if test_service::plays(&[("serve", serve), ("ask", ask)]) {
        return;
    }
    let pairing = TestService::new();
    for (at, name) in
        [pairing.path("socket").display().to_string(), format!("@bywire-{}", std::process::id())]
            .into_iter()
            .enumerate()
    {
        let mut server = Running::start(pairing.program("serve", Some(2)).env(PATH, &name));
        assert_eq!(server.hear(), "listens");
        let mut client = Running::start(pairing.program("ask", Some(2)).env(PATH, &name));
        assert_eq!(client.hear(), "right");
        assert_eq!(pairing.status().carried_ever, at as u64 + 1, "{:?}", pairing.status());
        drop(client.child.stdin.take());
        assert!(client.end().success() && server.end().success());
    }
}

fn address(name: &str) -> std::os::unix::net::SocketAddr {
    use std::os::linux::net::SocketAddrExt as _;
    match name.strip_prefix('@') {
        Some(name) => std::os::unix::net::SocketAddr::from_abstract_name(name),
        None => std::os::unix::net::SocketAddr::from_pathname(name),
    }
    .expect("an address")
}

/// Echoes on one connection, to its end.
fn serve() {
    let listener = UnixListener::bind_addr(&address(&told(PATH))).expect("listen");
    say("listens");
    echo(&listener);
}

fn echo(listener: &UnixListener) {
    let (mut peer, _) = listener.accept().expect("accept");
    let mut buffer = [0; 512];
    while let Ok(received @ 1..) = peer.read(&mut buffer) {
        if peer.write_all(&buffer[..received]).is_err() {
            return;
        }
    }
}

fn ask() {
    let mut peer = UnixStream::connect_addr(&address(&told(PATH))).expect("connect");
    for word in 0..2000u32 {
        let message = vec![word as u8; word as usize % 300 + 1];
        peer.write_all(&message).expect("a message");
        let mut answer = vec![0; message.len()];
        peer.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, message);
    }
    say("right");
    let _end = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_killed_end_is_an_end_of_stream_behind_its_last_byte() {
    if test_service::plays(&[("flood", flood), ("drain", drain)]) {
        return;
    }
    let pairing = TestService::new();
    for round in 0..6 {
        let name = pairing.path(&format!("socket{round}")).display().to_string();
        let mut reader = Running::start(pairing.program("drain", Some(2)).env(PATH, &name));
        assert_eq!(reader.hear(), "listens");
        let mut writer = Running::start(pairing.program("flood", Some(2)).env(PATH, &name));
        eventually("it is carried", || pairing.status().carried_ever > round);
        assert_eq!(reader.hear(), "much");
        std::thread::sleep(Duration::from_millis(round * 3));
        writer.child.kill().expect("killed");
        assert_eq!(reader.hear(), "in order");
        assert!(reader.end().success());
    }
}

/// Sends the numbers for as long as it lives.
fn flood() {
    let mut peer = UnixStream::connect_addr(&address(&told(PATH))).expect("connect");
    for number in 0..u64::MAX {
        peer.write_all(&number.to_ne_bytes()).expect("sent");
    }
}

/// Reads numbers to the end, which must come in order, whatever ended them.
fn drain() {
    let listener = UnixListener::bind_addr(&address(&told(PATH))).expect("listen");
    say("listens");
    let (mut peer, _) = listener.accept().expect("accept");
    let (mut buffer, mut kept, mut next) = (vec![0; 65_536], Vec::new(), 0u64);
    loop {
        match peer.read(&mut buffer) {
            Ok(0) => break,
            Ok(received) => {
                kept.extend_from_slice(&buffer[..received]);
                let whole = kept.len() / 8 * 8;
                for number in kept[..whole].chunks_exact(8) {
                    assert_eq!(u64::from_ne_bytes(number.try_into().expect("eight")), next);
                    next += 1;
                    if next == 10_000 {
                        say("much");
                    }
                }
                kept.drain(..whole);
            }
            // Bytes of this end that nobody has read; it sends none.
            Err(error) => panic!("{error}"),
        }
    }
    say("in order");
}

#[test]
fn a_connection_on_which_descriptors_pass_is_left_to_the_kernel() {
    if test_service::role().is_some() {
        let (client, server) = same::pair();
        let (file, _other) = std::io::pipe().expect("a pipe");
        assert_eq!(send_with(client, b"x", &[file.as_raw_fd()]), 1);
        assert_eq!(receive_with(server, 1, 0).passed.len(), 1);
        for _ in 0..100 {
            let before = test_service::kernel_given(client);
            assert_eq!(test_service::send(client, b"y", 0), 1);
            assert!(test_service::kernel_given(client) > before, "it is the kernel's");
            assert_eq!(test_service::receive(server, 1, 0).0, 1);
        }
        // A new one, which passes a descriptor before it is worth an offer.
        let (client, server) = test_service::pair();
        assert_eq!(send_with(client, b"x", &[file.as_raw_fd()]), 1);
        assert_eq!(receive_with(server, 1, 0).passed.len(), 1);
        for _ in 0..100 {
            assert_eq!(test_service::send(client, b"y", 0), 1);
            assert_eq!(test_service::receive(server, 1, 0).0, 1);
        }
        [client, server].into_iter().for_each(test_service::close);
        return;
    }
    let pairing = TestService::with_domain(Domain::Unix);
    pairing.drive(1);
    let status = pairing.status();
    assert_eq!(status.carried_ever, 1, "{status:?}");
    assert!(status.not_carried.iter().any(|(reason, _)| *reason == Reason::Ancillary), "{status:?}");
}

#[test]
fn a_worker_of_a_listener_of_root_is_carried_to_another_user() {
    if test_service::plays(&[("serve", serve_as_worker), ("ask", ask)]) || !test_service::is_root() {
        return;
    }
    let pairing = TestService::of_machine(Spaces::default());
    for (at, role_user) in [0, WORKER].into_iter().enumerate() {
        let name = format!("@bywire-worker-{}-{at}", std::process::id());
        let mut server = Running::start(pairing.user(role_user, "serve").env(PATH, &name));
        assert_eq!(server.hear(), "listens");
        let mut client = Running::start(pairing.user(CLIENT, "ask").env(PATH, &name));
        assert_eq!(client.hear(), "right");
        assert_eq!(pairing.status().carried_ever, at as u64 + 1, "{:?}", pairing.status());
        drop(client.child.stdin.take());
        assert!(client.end().success() && server.end().success());
    }
}

/// The user of a worker, and that of its client.
const WORKER: u32 = 4001;
const CLIENT: u32 = 4002;

/// Listens, and echoes in a child that has become another user.
fn serve_as_worker() {
    let listener = UnixListener::bind_addr(&address(&told(PATH))).expect("listen");
    let worker = test_service::child(|| {
        // SAFETY: no pointers.
        let is_worker =
            unsafe { libc::getuid() == WORKER || libc::setgid(WORKER) == 0 && libc::setuid(WORKER) == 0 };
        assert!(is_worker, "{}", test_service::errno());
        say("listens");
        echo(&listener);
        0
    });
    let mut status = 0;
    // SAFETY: a child of this process, for which nobody else waits.
    assert_eq!(unsafe { libc::waitpid(worker, &raw mut status, 0) }, worker);
    assert_eq!(status, 0);
}

/// Gives up the capability by which a process may exceed the limits of its socket buffers, as most programs have none.
fn give_up_large_buffers() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h, and `CAP_NET_ADMIN`.
    const VERSION: u32 = 0x2008_0522;
    const NET_ADMIN: u32 = 12;
    let (mut header, mut sets) = (Header { version: VERSION, pid: 0 }, [[0u32; 3]; 2]);
    // SAFETY: live structures of the layout that this version has.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()), 0);
        sets[0].iter_mut().for_each(|set| *set &= !(1 << NET_ADMIN));
        assert_eq!(libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()), 0);
    }
}

const MUCH_BYTES: usize = 1_000_000;

fn much() -> Vec<u8> {
    (0..MUCH_BYTES).map(|at| (at % 251) as u8).collect()
}

/// Sends much by a blocking end, and does something more with it.
fn send_much(fd: RawFd, then: impl FnOnce(RawFd) + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let bytes = much();
        // SAFETY: a live slice.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        assert_eq!(sent as usize, bytes.len());
        then(fd);
    })
}

/// Receives to the end, and writes how much was right, and how it ended.
fn tell_rest(text: &mut String, fd: RawFd, done: usize) {
    let (bytes, mut at) = (much(), done);
    let end = loop {
        let (received, piece) = test_service::receive(fd, 50_000, 0);
        if received <= 0 || !bytes[at..].starts_with(&piece) {
            break received;
        }
        at += piece.len();
    };
    tell(text, &format!("rest {at}"), end);
}

#[test]
fn no_byte_is_lost_that_a_closed_end_has_sent_before_the_other_end_asks_for_credentials() {
    same_by(Domain::Unix, |text| {
        give_up_large_buffers();
        for closes in [false, true] {
            let (client, server) = same::pair();
            let sender = send_much(client, move |fd| {
                if closes {
                    test_service::close(fd);
                } else {
                    shut_down(fd, libc::SHUT_WR);
                }
            });
            std::thread::sleep(Duration::from_millis(50));
            set_option(server, libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
            tell_rest(text, server, 0);
            sender.join().expect("it has sent");
        }
    });
}

#[test]
fn no_byte_is_lost_that_an_end_owes_while_it_is_closed() {
    same_by(Domain::Unix, |text| {
        give_up_large_buffers();
        let (client, server) = same::pair();
        let sender = send_much(client, |fd| {
            std::thread::sleep(Duration::from_millis(50));
            // Whatever has to be given back is begun here, and ends with the close.
            test_service::poll(fd, libc::POLLOUT);
            test_service::close(fd);
        });
        std::thread::sleep(Duration::from_millis(20));
        test_service::set_nonblocking(server, true);
        set_option(server, libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
        test_service::set_nonblocking(server, false);
        std::thread::sleep(Duration::from_millis(50));
        tell_rest(text, server, 0);
        sender.join().expect("it has sent");
    });
}

#[test]
fn a_descriptor_is_an_answer_to_an_end_that_has_shut_down() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        let (file, _other) = std::io::pipe().expect("a pipe");
        let sender = send_much(client, |fd| shut_down(fd, libc::SHUT_WR));
        std::thread::sleep(Duration::from_millis(50));
        let first = test_service::receive(server, 1000, 0);
        tell(text, "first", first.0);
        tell(text, "descriptor", send_with(server, b"answer", &[file.as_raw_fd()]));
        tell_rest(text, server, 1000);
        sender.join().expect("it has sent");
        tell_arrivals(text, client, &[100]);
    });
}

#[test]
fn a_descriptor_is_sent_without_delay() {
    if test_service::is_driver_by(Domain::Unix) {
        let (client, server) = same::pair();
        let (file, _other) = std::io::pipe().expect("a pipe");
        // This end has not read something, and its peer sleeps.
        assert_eq!(test_service::send(client, &[1; 100], 0), 100);
        let reader = std::thread::spawn(move || receive_with(client, 1, 0).passed.len());
        std::thread::sleep(Duration::from_millis(50));
        let began = std::time::Instant::now();
        assert_eq!(send_with(server, b"x", &[file.as_raw_fd()]), 1);
        assert!(began.elapsed() < Duration::from_millis(700), "{:?}", began.elapsed());
        assert_eq!(reader.join().expect("it has read"), 1);
        assert_eq!(test_service::receive(server, 100, 0).0, 100);
    }
}

#[test]
fn the_error_of_unread_bytes_is_reported_however_it_is_asked_for() {
    same_by(Domain::Unix, |text| {
        for way in 0..4 {
            let (client, server) = same::pair();
            if way == 0 {
                // Everything has hung up before the close.
                tell(text, "unread", test_service::send(client, b"unread", 0));
                shut_down(server, libc::SHUT_RDWR);
                tell(text, "hung up", test_service::poll(client, libc::POLLIN).0);
            } else {
                tell(text, "unread", test_service::send(client, b"unread", 0));
                tell(text, "last", test_service::send(server, b"last", 0));
            }
            test_service::close(server);
            test_service::settle_close(client);
            match way {
                1 => tell(text, "error", test_service::option(client, libc::SO_ERROR)),
                2 => tell(text, "send", test_service::send(client, b"x", 0)),
                _ => {}
            }
            tell_arrivals(text, client, &[100, 100, 100]);
            tell(text, "error", test_service::option(client, libc::SO_ERROR));
            test_service::close(client);
        }
    });
}

#[test]
fn an_end_that_stops_receiving_still_sends_although_bytes_were_owed_to_it() {
    same_by(Domain::Unix, |text| {
        give_up_large_buffers();
        let (client, server) = same::pair();
        test_service::set_nonblocking(client, true);
        let bytes = much();
        let sent = test_service::send(client, &bytes, 0);
        tell(text, "sent", i64::from(sent > 0));
        test_service::set_nonblocking(server, true);
        set_option(server, libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
        test_service::poll(client, libc::POLLOUT);
        shut_down(server, libc::SHUT_RD);
        tell(text, "refused", test_service::send(client, b"x", 0));
        tell(text, "answer", test_service::send(server, b"answer", 0));
        tell(text, "received", test_service::receive(client, 100, 0).0);
    });
}

#[test]
fn a_connection_whose_client_speaks_before_it_is_accepted_is_carried() {
    if test_service::is_driver_by(Domain::Unix) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("listen");
        let client = UnixStream::connect(&path).expect("connect");
        (0..20).for_each(|_| assert_eq!(test_service::send(client.as_raw_fd(), b"early", 0), 5));
        let (server, _) = listener.accept().expect("accept");
        assert_eq!(test_service::receive(server.as_raw_fd(), 200, 3).0, 100);
        [&client, &server].into_iter().for_each(|end| end.set_nonblocking(true).expect("non-blocking"));
        test_service::carry((client.as_raw_fd(), server.as_raw_fd()));
    }
}

#[test]
fn sends_to_a_killed_peer_fail_soon() {
    if test_service::plays(&[("flood", talk_to_the_dead), ("drain", listen_and_sleep)]) {
        return;
    }
    let pairing = TestService::new();
    let name = pairing.path("socket").display().to_string();
    let mut listener = Running::start(pairing.program("drain", Some(2)).env(PATH, &name));
    assert_eq!(listener.hear(), "listens");
    let mut sender = Running::start(pairing.program("flood", Some(2)).env(PATH, &name));
    assert_eq!(sender.hear(), "carried");
    listener.child.kill().expect("killed");
    listener.child.wait().expect("gone");
    drop(sender.child.stdin.take());
    assert_eq!(sender.hear(), "refused");
    assert!(sender.end().success());
}

/// Sends to a killed peer after a pause: the kernel refuses the first byte.
fn talk_to_the_dead() {
    let peer = UnixStream::connect_addr(&address(&told(PATH))).expect("connect");
    let fd = peer.as_raw_fd();
    for _ in 0..500 {
        assert_eq!(test_service::send(fd, b"x", 0), 1);
        assert_eq!(test_service::receive(fd, 1, 0).0, 1);
    }
    say("carried");
    let _killed = std::io::stdin().read(&mut [0]);
    // The kernel is asked once in a millisecond.
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(test_service::send(fd, b"x", 0), -1);
    assert_eq!(test_service::errno(), libc::EPIPE);
    say("refused");
}

fn listen_and_sleep() {
    let listener = UnixListener::bind_addr(&address(&told(PATH))).expect("listen");
    say("listens");
    echo(&listener);
}
