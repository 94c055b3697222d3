//! Calls on a Unix stream report its end, bytes that were left unread, and descriptors on the way as the kernel does, also where
//! random programs and scripts have found differences.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use bywire_pairing::reason::Reason;

use crate::test_service::calls::{set_option, shut_down};
use crate::test_service::same::{self, assert_carried, same_by, tell};
use crate::test_service::{self, Domain, Running, TIMEOUT, TestService, pass_by, say, told};

/// Long enough for a thread to fall asleep in a call.
const ASLEEP: Duration = Duration::from_millis(100);
const MUCH_BYTES: usize = 1_000_000;

/// Polls for as long as it takes, and writes what has come.
fn tell_poll(text: &mut String, fd: RawFd, events: i16, timeout_ms: i32) {
    let mut file = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live entry.
    let status = unsafe { libc::poll(&raw mut file, 1, timeout_ms) };
    tell(text, &format!("poll {events:#x} -> {:#x}", file.revents), status.into());
}

/// A blocking send that raises no signal.
fn send_all(fd: RawFd, bytes: &[u8]) -> i64 {
    // SAFETY: a live slice.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) as i64 }
}

fn receive_by(fd: RawFd, length: usize, flags: i32) -> i64 {
    let mut bytes = vec![0u8; length];
    // SAFETY: a live buffer.
    unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), length, flags) as i64 }
}

/// Receives by a message with room for control data.
fn receive_message(fd: RawFd, length: usize, flags: i32) -> i64 {
    let (mut bytes, mut control) = (vec![0u8; length], [0u64; 8]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    // SAFETY: zeros are a message, whose parts live until the call is over.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        libc::recvmsg(fd, &raw mut message, flags) as i64
    }
}

/// The variable with the path of a server.
const PATH: &str = "BYWIRE_TEST_PATH";

#[test]
fn an_end_that_stops_receiving_and_whose_peer_is_killed_hangs_up() {
    if test_service::plays(&[("stay", stay), ("watch", watch)]) {
        return;
    }
    let pairing = TestService::new();
    let name = pairing.path("socket");
    let mut stays = Running::start(pairing.program("stay", Some(2)).env(PATH, &name));
    assert_eq!(stays.hear(), "listens");
    let mut watches = Running::start(pairing.program("watch", Some(2)).env(PATH, &name));
    assert_eq!(watches.hear(), "carried");
    stays.child.kill().expect("killed");
    stays.child.wait().expect("gone");
    drop(watches.child.stdin.take());
    assert_eq!(watches.hear(), "hung up");
    assert!(watches.end().success());
}

/// Echoes until it is killed.
fn stay() {
    let listener = UnixListener::bind(told(PATH)).expect("listen");
    say("listens");
    let (mut peer, _) = listener.accept().expect("accept");
    let mut byte = [0];
    while peer.read_exact(&mut byte).is_ok() && peer.write_all(&byte).is_ok() {}
    std::thread::sleep(TIMEOUT);
}

fn watch() {
    let mut peer = UnixStream::connect(told(PATH)).expect("connect");
    for _ in 0..500 {
        peer.write_all(b"x").expect("sent");
        peer.read_exact(&mut [0]).expect("received");
    }
    let fd = peer.as_raw_fd();
    shut_down(fd, libc::SHUT_RD);
    assert_eq!(test_service::poll(fd, libc::POLLIN), (1, libc::POLLIN));
    say("carried");
    let _killed = std::io::stdin().read(&mut [0]);
    // The kernel is asked once a millisecond.
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(test_service::poll(fd, libc::POLLIN), (1, libc::POLLIN | libc::POLLHUP));
    say("hung up");
}

#[test]
fn a_sleeping_poll_reports_that_bytes_were_left_unread() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        tell(text, "unread", test_service::send(client, b"unread", 0));
        let closer = std::thread::spawn(move || {
            std::thread::sleep(ASLEEP);
            test_service::close(server);
        });
        tell_poll(text, client, libc::POLLIN, -1);
        closer.join().expect("it has closed");
        tell(text, "error", test_service::option(client, libc::SO_ERROR));
        tell_poll(text, client, libc::POLLIN, 0);
    });
}

#[test]
fn a_receive_that_waits_for_all_takes_the_error_of_unread_bytes_wherever_its_own_were() {
    same_by(Domain::Unix, |text| {
        for flags in [0, libc::MSG_DONTWAIT] {
            for answer in [&b"answer"[..], b""] {
                let (client, server) = same::pair();
                // From here on the kernel has what this end sends.
                assert_eq!(pass_by(server, 0), 1);
                assert_eq!(receive_by(client, 1, 0), 1);
                tell(text, "unread", test_service::send(client, b"unread", 0));
                tell(text, "answer", test_service::send(server, answer, 0));
                test_service::close(server);
                test_service::settle_close(client);
                tell(text, "all", receive_by(client, 100, libc::MSG_WAITALL | flags));
                tell(text, "error", test_service::option(client, libc::SO_ERROR));
                tell(text, "end", receive_by(client, 100, 0));
                test_service::close(client);
            }
        }
    });
}

#[test]
fn a_receive_that_waits_for_all_ends_behind_a_descriptor_and_not_without_one() {
    same_by(Domain::Unix, |text| {
        for has_descriptor in [true, false] {
            for has_room in [true, false] {
                let (client, server) = same::pair();
                let (from, to) = UnixStream::pair().expect("a pair");
                let sender = std::thread::spawn(move || {
                    assert_eq!(send_all(client, &vec![7; MUCH_BYTES]), MUCH_BYTES as i64);
                    // Bytes in memory come first, and later ones come through the kernel.
                    if has_descriptor {
                        assert_eq!(pass_by(client, from.as_raw_fd()), 1);
                    } else {
                        assert_eq!(pass_by(from.as_raw_fd(), client), 1);
                        assert_eq!(send_all(client, b"1"), 1);
                    }
                    assert_eq!(send_all(client, b"after"), 5);
                });
                std::thread::sleep(ASLEEP);
                let receive = if has_room { receive_message } else { receive_by };
                let length = MUCH_BYTES + 6;
                tell(text, "all", receive(server, length, libc::MSG_WAITALL));
                sender.join().expect("it has sent");
                tell(text, "rest", receive(server, length, libc::MSG_DONTWAIT));
                drop(to);
                [client, server].into_iter().for_each(test_service::close);
            }
        }
    });
}

#[test]
fn a_receive_ends_before_an_urgent_byte() {
    same_by(Domain::Unix, |text| {
        for flags in [libc::MSG_WAITALL, 0] {
            let (client, server) = same::pair();
            let sender = std::thread::spawn(move || {
                assert_eq!(send_all(client, &vec![7; MUCH_BYTES]), MUCH_BYTES as i64);
                // SAFETY: a live byte.
                let urgent = unsafe { libc::send(client, b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
                (urgent, send_all(client, b"after"))
            });
            std::thread::sleep(ASLEEP);
            let (mut before, mut received) = (0, 1);
            while received > 0 && before < MUCH_BYTES as i64 {
                received = receive_by(server, 2 * MUCH_BYTES, flags);
                before += received;
            }
            tell(text, "before", before);
            let found = sender.join().expect("it has sent");
            writeln!(text, "urgent, after = {found:?}").expect("a string");
            tell(text, "urgent", receive_by(server, 1, libc::MSG_OOB));
            tell(text, "after", receive_by(server, 100, 0));
            [client, server].into_iter().for_each(test_service::close);
        }
    });
}

#[test]
fn a_sleeping_send_takes_the_error_of_bytes_that_are_left_unread() {
    same_by(Domain::Unix, |text| {
        for sends_part in [false, true] {
            let (client, server) = same::pair();
            test_service::set_nonblocking(client, true);
            while !sends_part && send_all(client, &[7; 4096]) > 0 {}
            test_service::set_nonblocking(client, false);
            let length = if sends_part { 8 * MUCH_BYTES } else { 1 };
            let sender = std::thread::spawn(move || {
                let sent = send_all(client, &vec![7; length]);
                (sent.min(1), if sent < 0 { test_service::errno() } else { 0 })
            });
            std::thread::sleep(3 * ASLEEP);
            assert!(!sender.is_finished(), "it sleeps");
            test_service::close(server);
            let found = sender.join().expect("it ends");
            writeln!(text, "sender = {found:?}").expect("a string");
            tell(text, "send", send_all(client, b"x"));
            tell(text, "receive", receive_by(client, 100, 0));
            test_service::close(client);
        }
    });
}

#[test]
fn a_full_end_has_no_room_of_any_kind() {
    same_by(Domain::Unix, |text| {
        let (client, server) = same::pair();
        test_service::set_nonblocking(client, true);
        let kinds = [libc::POLLOUT, libc::POLLWRNORM, libc::POLLWRBAND];
        let all = kinds.into_iter().fold(libc::POLLIN, |sum, kind| sum | kind);
        for events in kinds.into_iter().chain([all]) {
            tell_poll(text, client, events, 0);
        }
        while send_all(client, &[7; 4096]) > 0 {}
        for events in kinds.into_iter().chain([all]) {
            tell_poll(text, client, events, 0);
        }
        let set = test_service::epoll();
        let events = libc::EPOLLWRBAND as u32;
        tell(text, "control", test_service::control(set, libc::EPOLL_CTL_ADD, client, events));
        writeln!(text, "events = {:x?}", test_service::wait(set).1).expect("a string");
        while receive_by(server, 1 << 20, libc::MSG_DONTWAIT) > 0 {}
        for events in kinds.into_iter().chain([all]) {
            tell_poll(text, client, events, 0);
        }
        writeln!(text, "events = {:x?}", test_service::wait(set).1).expect("a string");
        assert_carried((client, server), "a full end");
    });
    same_by(Domain::Tcp, |text| {
        let (client, server) = same::pair();
        for events in [libc::POLLOUT | libc::POLLWRBAND, libc::POLLWRBAND, libc::POLLWRNORM] {
            tell_poll(text, client, events, 0);
        }
        assert_carried((client, server), "a TCP socket");
    });
}

/// The reasons for which the connections of a program were not carried.
fn reasons_of(thing: fn()) -> Option<Vec<Reason>> {
    if test_service::role().is_some() {
        thing();
        return None;
    }
    let pairing = TestService::with_domain(Domain::Unix);
    pairing.drive(1);
    let status = pairing.status();
    assert_eq!(status.carried_ever, 0, "{status:?}");
    Some(status.not_carried.iter().map(|(reason, _)| *reason).collect())
}

#[test]
fn a_connection_whose_other_end_has_gone_was_too_short() {
    let found = reasons_of(|| {
        let (mut client, server) = test_service::unix_streams();
        // The other end has sent much, and is gone before this one makes its second call.
        (&server).write_all(&[7; 2000]).expect("sent");
        drop(server);
        for _ in 0..20 {
            client.read_exact(&mut [0; 10]).expect("received");
        }
    });
    assert!(found.is_none_or(|reasons| reasons == [Reason::Short]));
}

#[test]
fn a_connection_that_was_not_accepted_is_held_by_one_process_alone() {
    let found = reasons_of(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("listen");
        let mut client = UnixStream::connect(&path).expect("connect");
        for _ in 0..20 {
            client.write_all(b"early").expect("sent");
        }
    });
    assert!(found.is_none_or(|reasons| !reasons.contains(&Reason::Shared)));
}

#[test]
fn a_connection_that_several_processes_held_is_counted_so() {
    let found = reasons_of(|| {
        let (mut client, server) = test_service::unix_streams();
        let child = test_service::child(move || {
            for _ in 0..20 {
                if (&server).write_all(b"much").is_err() {
                    return 1;
                }
            }
            // The parent's copy of this end is closed behind it.
            std::thread::sleep(Duration::from_millis(200));
            0
        });
        for _ in 0..20 {
            client.read_exact(&mut [0; 4]).expect("received");
        }
        assert_eq!(test_service::end_of(child), 0);
    });
    assert!(found.is_none_or(|reasons| reasons.contains(&Reason::Shared)));
}

#[test]
fn an_option_that_keeps_a_connection_in_the_kernel_is_its_reason() {
    let found = reasons_of(|| {
        let (mut client, mut server) = test_service::unix_streams();
        set_option(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
        for _ in 0..20 {
            client.write_all(b"x").expect("sent");
            server.read_exact(&mut [0]).expect("received");
        }
    });
    assert!(found.is_none_or(|reasons| reasons.contains(&Reason::Option)));
}
