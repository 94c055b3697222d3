//! Registrations that a program removes from an epoll set and makes anew, as clients do that register for each request.
//!
//! - The kernel's set stays as it is meanwhile: neither step is a system call.
//! - All else is the same without the library and with it: errors, the data and the order of events, edge-triggered and
//!   exclusive additions, and silence of what is removed, whatever its peer does, while the set is polled, within another
//!   set or given to a child, and while its socket has another descriptor.

use std::fs;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use crate::test_service::calls::{duplicate, events_in, register, used_ms};
use crate::test_service::same::{has_library, pair, same, tell};
use crate::test_service::{self, child, end_of};

/// How long nothing is to be reported.
const SILENCE_MS: i32 = 60;

fn add(text: &mut String, set: RawFd, fd: RawFd, events: i32, data: u64) {
    tell(text, "add", register(set, libc::EPOLL_CTL_ADD, fd, events, data));
}

fn remove(text: &mut String, set: RawFd, fd: RawFd) {
    tell(text, "remove", register(set, libc::EPOLL_CTL_DEL, fd, 0, 0));
}

/// What a set reports within that time: data and events.
fn reported(text: &mut String, set: RawFd, timeout_ms: i32) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: there is room for that many.
    let count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 8, timeout_ms) };
    let found = events.iter().take(count.max(0) as usize).map(|event| ({ event.u64 }, { event.events }));
    tell(text, &format!("{:?}", found.collect::<Vec<_>>()), count.into());
}

/// What the kernel knows of a registration in a set; `None`: nothing.
fn in_kernel(set: RawFd, fd: RawFd) -> Option<String> {
    let known = fs::read_to_string(format!("/proc/self/fdinfo/{set}")).expect("the kernel tells");
    let of_fd = |line: &&str| line.split_whitespace().nth(1) == Some(&fd.to_string());
    known.lines().filter(|line| line.starts_with("tfd:")).find(of_fd).map(str::to_owned)
}

#[test]
fn the_kernel_does_not_learn_of_a_registration_that_is_removed_and_made_anew() {
    same(|text| {
        let ((client, server), set) = (pair(), test_service::epoll());
        add(text, set, server, libc::EPOLLIN, 1);
        // A look arranges what the kernel watches.
        reported(text, set, 0);
        let before = in_kernel(set, server);
        for data in 2..6 {
            remove(text, set, server);
            assert!(!has_library() || in_kernel(set, server) == before, "{:?}", in_kernel(set, server));
            add(text, set, server, [libc::EPOLLOUT, libc::EPOLLIN][data as usize % 2], data);
            reported(text, set, 0);
            assert!(!has_library() || in_kernel(set, server) == before, "{:?}", in_kernel(set, server));
        }
        tell(text, "send", test_service::send(client, b"words", 0));
        reported(text, set, 1000);
        remove(text, set, server);
        reported(text, set, 0);
        assert_eq!(in_kernel(set, server), None, "a wait removes what is not made anew");
    });
}

#[test]
fn a_removed_registration_is_not_there_for_the_program() {
    same(|text| {
        let ((_client, server), set) = (pair(), test_service::epoll());
        add(text, set, server, libc::EPOLLIN, 1);
        for _ in 0..2 {
            remove(text, set, server);
            remove(text, set, server);
            add(text, set, server, libc::EPOLLOUT, 2);
            add(text, set, server, libc::EPOLLOUT, 3);
            reported(text, set, 0);
            remove(text, set, server);
            tell(text, "change", register(set, libc::EPOLL_CTL_MOD, server, libc::EPOLLIN, 4));
            add(text, set, server, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, 5);
            remove(text, set, server);
            add(text, set, server, libc::EPOLLIN, 6);
        }
    });
}

#[test]
fn a_removed_registration_is_silent_whatever_its_peer_does() {
    same(|text| {
        for ends in [false, true] {
            let ((client, server), (other, watched)) = (pair(), pair());
            let set = test_service::epoll();
            add(text, set, server, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
            add(text, set, watched, libc::EPOLLIN, 2);
            remove(text, set, server);
            tell(text, "send", test_service::send(client, b"words", 0));
            if ends {
                test_service::close(client);
                test_service::settle_end(server);
            } else {
                test_service::settle(server, 5);
            }
            reported(text, set, SILENCE_MS);
            tell(text, "send", test_service::send(other, b"words", 0));
            reported(text, set, 1000);
            add(text, set, server, libc::EPOLLIN, 3);
            reported(text, set, 1000);
        }
    });
}

#[test]
fn an_addition_behind_a_removal_begins_anew() {
    same(|text| {
        for edge in [0, libc::EPOLLET, libc::EPOLLONESHOT] {
            let (pairs, set): (Vec<_>, _) = ((0..3).map(|_| pair()).collect(), test_service::epoll());
            for (at, (_, server)) in pairs.iter().enumerate() {
                add(text, set, *server, libc::EPOLLIN, at as u64);
            }
            for (client, server) in &pairs {
                tell(text, "send", test_service::send(*client, b"words", 0));
                test_service::settle(*server, 5);
            }
            remove(text, set, pairs[0].1);
            add(text, set, pairs[0].1, libc::EPOLLIN | edge, 10);
            reported(text, set, 1000);
            reported(text, set, 0);
            remove(text, set, pairs[1].1);
            reported(text, set, 0);
            add(text, set, pairs[1].1, libc::EPOLLIN | edge, 11);
            reported(text, set, 0);
        }
    });
}

#[test]
fn a_removed_registration_does_not_make_its_set_ready_for_others() {
    same(|text| {
        let ((client, server), set, outer) = (pair(), test_service::epoll(), test_service::epoll());
        add(text, set, server, libc::EPOLLIN, 1);
        remove(text, set, server);
        test_service::close(client);
        test_service::settle_end(server);
        tell(text, "poll", test_service::poll_for(set, SILENCE_MS).into());
        add(text, outer, set, libc::EPOLLIN, 2);
        reported(text, outer, SILENCE_MS);

        let ((client, server), set, outer) = (pair(), test_service::epoll(), test_service::epoll());
        add(text, set, server, libc::EPOLLIN, 1);
        remove(text, set, server);
        add(text, outer, set, libc::EPOLLIN, 2);
        test_service::close(client);
        test_service::settle_end(server);
        reported(text, outer, SILENCE_MS);
        add(text, set, server, libc::EPOLLIN, 3);
        reported(text, outer, 1000);
    });
}

#[test]
fn a_removed_registration_goes_with_its_descriptor() {
    same(|text| {
        let ((client, server), set) = (pair(), test_service::epoll());
        let again = duplicate(server);
        add(text, set, server, libc::EPOLLIN, 1);
        remove(text, set, server);
        test_service::close(server);
        tell(text, "send", test_service::send(client, b"words", 0));
        reported(text, set, SILENCE_MS);
        // A new connection may get the number.
        let (client, server) = pair();
        add(text, set, server, libc::EPOLLIN, 2);
        tell(text, "send", test_service::send(client, b"words", 0));
        reported(text, set, 1000);
        add(text, set, again, libc::EPOLLIN, 3);
        test_service::settle(again, 5);
        remove(text, set, server);
        reported(text, set, 1000);
    });
}

#[test]
fn a_removed_registration_is_not_there_for_a_child() {
    same(|text| {
        let ((client, server), set) = (pair(), test_service::epoll());
        add(text, set, server, libc::EPOLLIN, 1);
        remove(text, set, server);
        tell(text, "send", test_service::send(client, b"words", 0));
        let waits = child(|| {
            test_service::close(server);
            test_service::close(client);
            events_in(set, SILENCE_MS)
        });
        tell(text, "the child", end_of(waits).into());
        reported(text, set, SILENCE_MS);
        add(text, set, server, libc::EPOLLIN, 2);
        reported(text, set, 1000);
        remove(text, set, server);
        tell(text, "pass", test_service::pass(set));
        tell(text, "send", test_service::send(client, b"words", 0));
        reported(text, set, SILENCE_MS);
    });
}

#[test]
fn a_removed_registration_is_not_there_for_whoever_receives_the_set() {
    same(|text| {
        let ((client, server), set) = (pair(), test_service::epoll());
        let (from, to) = std::os::unix::net::UnixStream::pair().expect("a pair");
        add(text, set, server, libc::EPOLLIN, 1);
        remove(text, set, server);
        tell(text, "pass", test_service::pass_by(from.as_raw_fd(), set));
        let received = test_service::take(to.as_raw_fd());
        test_service::close(client);
        test_service::settle_end(server);
        let mut entry = libc::pollfd { fd: received, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry.
        tell(text, "poll", unsafe { libc::poll(&raw mut entry, 1, SILENCE_MS) }.into());
    });
}

#[test]
fn a_removed_registration_takes_no_room_of_others() {
    same(|text| {
        let (client, server) = pair();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let set = test_service::epoll();
        add(text, set, server, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
        add(text, set, reader.as_raw_fd(), libc::EPOLLIN, 2);
        for round in 0..20 {
            remove(text, set, server);
            if round == 0 {
                test_service::close(client);
                test_service::settle_end(server);
                std::io::Write::write_all(&mut &writer, b"words").expect("room");
            }
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            let count = unsafe { libc::epoll_wait(set, &raw mut event, 1, 0) };
            tell(text, &format!("{}", { event.u64 }), count.into());
            add(text, set, server, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
        }
    });
}

/// One thread closes the descriptor of a removed registration while another one waits for the set, and the socket has
/// another descriptor.
#[test]
fn a_wait_beside_a_close_sleeps() {
    same(|text| {
        for _ in 0..200 {
            let (client, server) = pair();
            let (set, again) = (test_service::epoll(), duplicate(server));
            add(&mut String::new(), set, server, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
            remove(&mut String::new(), set, server);
            std::thread::scope(|scope| {
                scope.spawn(|| test_service::wait(set));
                test_service::close(server);
            });
            test_service::close(client);
            test_service::settle_end(again);
            let (before, started) = (used_ms(), Instant::now());
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
            // SAFETY: there is room for that many.
            let count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 2, 5) };
            assert_eq!(count, 0, "nothing is registered");
            assert!(started.elapsed() >= Duration::from_millis(4), "{:?}", started.elapsed());
            assert!(used_ms() - before < 4, "{} ms of CPU", used_ms() - before);
            [again, set].into_iter().for_each(test_service::close);
        }
        tell(text, "done", 0);
    });
}
