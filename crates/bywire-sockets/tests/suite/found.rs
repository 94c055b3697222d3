//! Faults that random programs have found, one test each: the result is the same without the library and with it.
//!
//! - Descriptors above the limit, sockets that are closed while a set watches them, reset errors of passed sockets,
//!   forks during a receive, ends during a look, sets of ended and killed processes, nested sets, inherited sets,
//!   registrations that outlive their descriptor, sockets duplicated over themselves, signals during a `MSG_WAITALL`,
//!   sets closed under a sleeper, a program that owes itself bytes.
//! - A sender gets ahead by as much as TCP's, within a factor of two, whatever buffers programs set.
//! - Several ready descriptors are reported in the kernel's order: level-triggered, edge-triggered and one-shot, with
//!   little room for events, after changes of registrations, for room and for ends.
//! - `poll` and `select` do not report a set whose bytes were read without a wait.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, RawFd};
use std::ptr;

use crate::test_service::calls::{
    add, await_sleep, duplicate, events_in, handle, let_wait, one_event, register, set_limit, set_option,
    shut_down, signal, used_ms,
};
use crate::test_service::roles::{in_role, this_test};
use crate::test_service::same::{
    assert_carried, has_library, on_its_way, pair, same, same_in_both_domains, tell,
};
use crate::test_service::{self, TestService, child, end_of};

/// Sends bytes from one end to the other.
fn talk(text: &mut String, from: RawFd, to: RawFd) {
    tell(text, "send", test_service::send(from, b"words", 0));
    let (length, bytes) = test_service::receive(to, 5, 0);
    tell(text, &format!("receive {bytes:?}"), length);
}

/// A pair, and a set that holds its server.
fn watched(text: &mut String) -> (RawFd, RawFd, RawFd) {
    let ((client, server), set) = (pair(), test_service::epoll());
    tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN, 11));
    (client, server, set)
}

/// A child that has copies of all descriptors, and does nothing.
struct Copy {
    child: libc::pid_t,
    leash: std::io::PipeWriter,
}

impl Copy {
    fn keep() -> Self {
        let (end, leash) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes calls of the kernel's alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(leash);
            let mut byte = 0u8;
            // SAFETY: room for one byte.
            unsafe {
                libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        assert!(child > 0, "a child");
        Self { child, leash }
    }

    fn end(self) {
        let Self { child, leash } = self;
        drop(leash);
        // SAFETY: no status is asked for.
        assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), 0) }, child);
    }
}

#[test]
fn a_descriptor_above_the_limit_keeps_its_connection() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        let limit = |most| {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: 1024 };
            // SAFETY: a live structure.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, ptr::from_ref(&limit)) }, 0);
        };
        limit(3);
        // SAFETY: no pointers, in either.
        unsafe {
            tell(text, "dup2", libc::dup2(0, client).into());
            tell(text, "dup3", libc::dup3(0, client, libc::O_CLOEXEC).into());
            tell(text, "dup2 of another one", libc::dup2(server, client).into());
        }
        talk(text, client, server);
        talk(text, server, client);
        limit(1024);
        talk(text, client, server);
    });
}

#[test]
fn an_epoll_set_reports_a_closed_socket_that_another_process_has() {
    same(|text| {
        let (client, server, set) = watched(text);
        // This returns it to the kernel.
        tell(text, "pass", test_service::pass(server));
        let copy = Copy::keep();
        test_service::close(server);
        tell(text, "send", test_service::send(client, b"words", 0));
        // The registration lives as long as anybody has the socket.
        let (count, events) = test_service::eventually("it is told", || {
            Some(test_service::wait(set)).filter(|found| found.0 != 0)
        });
        tell(text, &format!("wait {events:?}"), count);
        copy.end();
    });
}

/// `TCP_CLOSE` of netinet/tcp.h.
const CLOSED: u8 = 7;

/// The kernel's state, by a call that the library does not evaluate.
fn state(fd: RawFd) -> u8 {
    let (mut found, mut length) = ([0u8; 8], 8);
    let information = found.as_mut_ptr().cast();
    // SAFETY: room for so many bytes, and a live length.
    unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, information, &raw mut length) };
    found[0]
}

#[test]
fn passing_a_socket_on_does_not_consume_its_reset_error() {
    same(|text| {
        let (client, server) = pair();
        tell(text, "send", test_service::send(client, b"never read", 0));
        test_service::close(server);
        test_service::eventually("the reset", || state(client) == CLOSED);
        tell(text, "pass", test_service::pass(client));
        for _ in 0..2 {
            tell(text, "send", test_service::send(client, b"more", 0));
        }
    });
}

/// Sleeping receives: `recvfrom`, `futex_waitv`.
const RECEIVES: [&str; 2] = ["45 ", "449 "];
/// `epoll_wait`.
const SET_WAITS: [&str; 1] = ["232 "];

#[test]
fn a_forked_child_has_no_duplicate_kept_for_another_threads_receive() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        let receiver = std::thread::spawn(move || test_service::receive(server, 1, 0));
        await_sleep("self", &RECEIVES);
        test_service::close(server);
        let copy = Copy::keep();
        tell(text, "send", test_service::send(client, b"x", 0));
        let (length, bytes) = receiver.join().expect("it is over");
        tell(text, &format!("receive {bytes:?}"), length);
        // After this call the last descriptor is gone, and the child has none.
        tell(text, "the end is told", test_service::poll_for(client, 10_000).into());
        // It does not wait for what was not reported.
        tell(text, "receive", test_service::receive(client, 1, 3).0);
        copy.end();
    });
}

/// Ends that come while another thread looks all the time. Each of them comes between two steps of a look.
const ENDS: usize = 100;

#[test]
fn an_end_during_a_look_is_reported_edge_triggered() {
    same_in_both_domains(|text| {
        let mut told = 0;
        for round in 0..ENDS {
            let (client, server) = pair();
            let set = test_service::epoll();
            add(set, server, libc::EPOLLIN | libc::EPOLLET, 7);
            let looks = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let (counted, started) = (looks.clone(), std::time::Instant::now());
            let looker = std::thread::spawn(move || {
                while started.elapsed() < test_service::TIMEOUT {
                    if test_service::wait(set).0 != 0 {
                        return true;
                    }
                    counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                false
            });
            // The thread is looking by now, and has asked the kernel.
            while looks.load(std::sync::atomic::Ordering::Relaxed) < 20 + round % 7 {
                std::hint::spin_loop();
            }
            shut_down(client, libc::SHUT_WR);
            let is_told = looker.join().expect("it looks");
            told += i64::from(is_told);
            [client, server, set].into_iter().for_each(test_service::close);
            if !is_told {
                break;
            }
        }
        tell(text, "ends told", told);
    });
}

#[test]
fn an_epoll_set_has_no_state_of_the_previous_one_in_its_record() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        let (begins, may_begin) = std::io::pipe().expect("a pipe");
        let (listens, has_begun) = std::io::pipe().expect("a pipe");
        let read = |end: &std::io::PipeReader| {
            let mut byte = 0u8;
            // SAFETY: room for one byte.
            unsafe { libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1) }
        };
        let write = |end: &std::io::PipeWriter| {
            // SAFETY: one byte.
            unsafe { libc::write(end.as_raw_fd(), b"!".as_ptr().cast(), 1) }
        };
        let child = child(|| {
            read(&begins);
            let set = test_service::epoll();
            if register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN, 7) != 0 {
                return 100;
            }
            write(&has_begun);
            events_in(set, 20_000)
        });
        let set = test_service::epoll();
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN, 7));
        test_service::close(server);
        test_service::close(set);
        write(&may_begin);
        read(&listens);
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "the child hears", end_of(child).into());
    });
}

/// More sets than the records that a family of processes has.
const SETS: usize = 1100;

#[test]
fn exited_and_killed_children_leave_no_epoll_set() {
    same(|text| {
        // The library's own descriptors are near the limit, and each fork walks that far.
        set_limit(libc::RLIMIT_NOFILE, 512);
        let mut made = 0;
        while made < SETS {
            let sets: Vec<RawFd> = (0..100).map(|_| test_service::epoll()).collect();
            made += sets.len();
            let is_killed = made % 200 == 0;
            let child = child(|| {
                if is_killed {
                    signal(std::process::id(), libc::SIGKILL);
                }
                0
            });
            end_of(child);
            sets.into_iter().for_each(test_service::close);
        }
        let set = test_service::epoll();
        let (client, server) = test_service::pair();
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN, 7));
        if has_library() {
            test_service::carry((client, server));
        }
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "wait", events_in(set, 20_000).into());
    });
}

/// Waits for a while in which nothing comes. Reports the number of events, and whether the process sleeps meanwhile.
fn rests(text: &mut String, what: &str, set: RawFd) {
    let before = used_ms();
    tell(text, what, events_in(set, 300).into());
    // A thread that spins uses this much time even on a busy machine.
    tell(text, "it spins", i64::from(used_ms() - before > 30));
}

#[test]
fn an_epoll_set_with_a_killed_sleeper_lets_others_sleep() {
    same_in_both_domains(|text| {
        let set = test_service::epoll();
        let child = child(|| events_in(set, -1));
        await_sleep(&child.to_string(), &SET_WAITS);
        signal(child as u32, libc::SIGKILL);
        end_of(child);
        let (client, server) = pair();
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN, 7));
        talk(text, client, server);
        rests(text, "wait", set);
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "wait", events_in(set, 20_000).into());
    });
}

#[test]
fn removed_or_fired_inner_sets_wake_nobody() {
    same_in_both_domains(|text| {
        let ((client, server), (_other, elsewhere)) = (pair(), pair());
        let (inner, outer) = (test_service::epoll(), test_service::epoll());
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        tell(text, "add", register(inner, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN, 7));
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, elsewhere, libc::EPOLLIN, 7));
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN, 7));
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "wait", events_in(outer, 20_000).into());
        tell(text, "take out", register(outer, libc::EPOLL_CTL_DEL, inner, 0, 7));
        rests(text, "wait when it was taken out", outer);
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, inner, once, 7));
        tell(text, "wait", events_in(outer, 20_000).into());
        rests(text, "wait when it is spent", outer);
        tell(text, "arm", register(outer, libc::EPOLL_CTL_MOD, inner, once, 7));
        tell(text, "wait", events_in(outer, 20_000).into());
    });
}

#[test]
fn a_sleeper_in_a_set_hears_of_an_inner_set_added_meanwhile() {
    same(|text| {
        let ((client, _server, inner), outer) = (watched(text), test_service::epoll());
        tell(text, "nothing", events_in(inner, 0).into());
        let sleeper = std::thread::spawn(move || events_in(outer, -1));
        await_sleep("self", &SET_WAITS);
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN, 7));
        tell(text, "send", test_service::send(client, b"words", 0));
        test_service::eventually("it is woken", || sleeper.is_finished());
        tell(text, "it hears", sleeper.join().expect("it waits").into());
    });
}

#[test]
fn adding_a_ready_inner_set_wakes_sleepers() {
    same(|text| {
        let ((client, _server, inner), outer) = (watched(text), test_service::epoll());
        tell(text, "nothing", events_in(inner, 0).into());
        tell(text, "send", test_service::send(client, b"words", 0));
        let sleeper = std::thread::spawn(move || events_in(outer, -1));
        await_sleep("self", &SET_WAITS);
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN, 7));
        // A timeout would make it look again.
        test_service::eventually("it is woken", || sleeper.is_finished());
        tell(text, "it hears", sleeper.join().expect("it waits").into());
    });
}

#[test]
fn a_refused_nesting_of_sets_has_no_effect() {
    same(|text| {
        let (inner, outer) = (test_service::epoll(), test_service::epoll());
        tell(text, "add to itself", register(inner, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN, 7));
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN, 7));
        tell(text, "add again", register(outer, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN, 7));
        tell(text, "add the other way", register(inner, libc::EPOLL_CTL_ADD, outer, libc::EPOLLIN, 7));
        let ends = test_service::pair();
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, ends.1, libc::EPOLLIN, 7));
        if has_library() {
            // A connection in a set that another one watches stays in the kernel. This set is not watched.
            test_service::carry(ends);
        }
        tell(text, "take out", register(outer, libc::EPOLL_CTL_DEL, inner, 0, 7));
        talk(text, ends.0, ends.1);
        rests(text, "wait", outer);
    });
}

/// Fills a connection's buffers, and empties them.
fn fill_and_empty(from: RawFd, to: RawFd) {
    let mut bytes = [0u8; 64 << 10];
    let mut left = 0;
    // SAFETY: so many bytes, which live, in both.
    unsafe {
        loop {
            let sent = libc::send(from, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT);
            if sent < 0 {
                break;
            }
            left += sent;
        }
        while left > 0 {
            let taken = libc::recv(to, bytes.as_mut_ptr().cast(), bytes.len(), 0);
            assert!(taken > 0, "what was sent comes");
            left -= taken;
        }
    }
}

#[test]
fn an_outer_set_is_told_again_of_new_room() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        let (inner, outer) = (test_service::epoll(), test_service::epoll());
        tell(text, "add", register(inner, libc::EPOLL_CTL_ADD, client, libc::EPOLLOUT, 7));
        let edge = libc::EPOLLIN | libc::EPOLLET;
        tell(text, "add", register(outer, libc::EPOLL_CTL_ADD, inner, edge, 7));
        tell(text, "there is room", events_in(outer, 20_000).into());
        tell(text, "it was told", events_in(outer, SILENCE_MS).into());
        fill_and_empty(client, server);
        tell(text, "there is room again", events_in(outer, 20_000).into());
        tell(text, "it was told", events_in(outer, SILENCE_MS).into());
    });
}

/// The next event of a set, by the data of its registration; −1: none.
fn told(set: RawFd, timeout_ms: i32) -> i64 {
    one_event(set, timeout_ms).map_or(-1, |data| data as i64)
}

/// The events that a set has at once, at most `room` of them, by the data of their registrations.
fn reported(text: &mut String, what: &str, set: RawFd, room: usize) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: there is room for that many.
    let found = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), room as i32, 0) };
    let order: Vec<u64> = events.iter().take(found.max(0) as usize).map(|event| event.u64).collect();
    writeln!(text, "{what} = {order:?}").expect("a string");
}

/// Carried connections, and a set that holds their servers with these events, registered in order.
fn ordered(events: i32) -> (Vec<(RawFd, RawFd)>, RawFd) {
    let (pairs, set): (Vec<_>, _) = ((0..6).map(|_| pair()).collect(), test_service::epoll());
    for (data, (_, server)) in (0..).zip(&pairs) {
        add(set, *server, events, data);
    }
    (pairs, set)
}

fn send_to(pairs: &[(RawFd, RawFd)], order: &[usize]) {
    for at in order {
        assert_eq!(test_service::send(pairs[*at].0, b"words", 0), 5);
    }
}

fn read_from(pairs: &[(RawFd, RawFd)], order: &[usize]) {
    for at in order {
        assert_eq!(test_service::receive(pairs[*at].1, 5, 0).0, 5);
    }
}

/// Takes all that comes to an end, until nothing has come for a while.
fn empty(fd: RawFd) {
    let mut bytes = vec![0u8; 64 << 10];
    while test_service::poll_for(fd, 50) {
        // SAFETY: room for so many bytes.
        unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    }
}

#[test]
fn level_triggered_events_have_the_order_of_the_kernels() {
    same(|text| {
        let (pairs, set) = ordered(libc::EPOLLIN);
        send_to(&pairs, &[0, 1, 2, 3, 4, 5]);
        reported(text, "as registered", set, 16);
        read_from(&pairs, &[0, 1, 2, 3, 4, 5]);
        reported(text, "nothing", set, 16);
        send_to(&pairs, &[3, 1, 5, 0, 2, 4]);
        reported(text, "as they came", set, 16);
        reported(text, "again", set, 16);
        for _ in 0..8 {
            reported(text, "in turn", set, 1);
        }
        reported(text, "some", set, 4);
        reported(text, "the rest first", set, 4);
        read_from(&pairs, &[3, 1, 5, 0, 2, 4]);
        send_to(&pairs, &[0, 5]);
        reported(text, "reported before, and never found empty", set, 16);
        read_from(&pairs, &[5]);
        reported(text, "the other one", set, 16);
        send_to(&pairs, &[2, 5]);
        reported(text, "behind it", set, 16);
        tell(
            text,
            "change",
            register(set, libc::EPOLL_CTL_MOD, pairs[2].1, libc::EPOLLIN | libc::EPOLLRDHUP, 2),
        );
        tell(
            text,
            "change",
            register(set, libc::EPOLL_CTL_MOD, pairs[0].1, libc::EPOLLIN | libc::EPOLLOUT, 0),
        );
        tell(
            text,
            "change",
            register(set, libc::EPOLL_CTL_MOD, pairs[3].1, libc::EPOLLIN | libc::EPOLLOUT, 3),
        );
        send_to(&pairs, &[1]);
        reported(text, "after changes", set, 16);
        tell(text, "remove", register(set, libc::EPOLL_CTL_DEL, pairs[5].1, 0, 0));
        send_to(&pairs, &[4]);
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, pairs[5].1, libc::EPOLLIN, 5));
        reported(text, "added with bytes", set, 16);
    });
}

#[test]
fn edge_triggered_events_have_the_order_of_the_kernels() {
    same(|text| {
        let (pairs, set) = ordered(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET);
        reported(text, "nothing", set, 16);
        send_to(&pairs, &[2, 0, 4, 2]);
        reported(text, "as they came", set, 16);
        reported(text, "nothing", set, 16);
        send_to(&pairs, &[4, 5, 2, 0, 1]);
        reported(text, "more, nothing read", set, 2);
        reported(text, "the rest", set, 16);
        read_from(&pairs, &[4, 5, 2, 0, 1]);
        send_to(&pairs, &[5, 3]);
        shut_down(pairs[4].0, libc::SHUT_WR);
        send_to(&pairs, &[1]);
        test_service::close(pairs[0].0);
        send_to(&pairs, &[2]);
        reported(text, "bytes and ends", set, 16);
    });
}

#[test]
fn one_shot_events_have_the_order_of_the_kernels() {
    same(|text| {
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        let (pairs, set) = ordered(once);
        send_to(&pairs, &[4, 2, 0, 1]);
        reported(text, "as they came", set, 16);
        reported(text, "spent", set, 16);
        tell(text, "arm", register(set, libc::EPOLL_CTL_MOD, pairs[1].1, once, 1));
        send_to(&pairs, &[3]);
        tell(text, "arm", register(set, libc::EPOLL_CTL_MOD, pairs[4].1, once, 4));
        tell(text, "arm", register(set, libc::EPOLL_CTL_MOD, pairs[0].1, once, 0));
        reported(text, "as they were armed", set, 16);
    });
}

/// Places are kept from the second registration on, and a set may shrink and grow.
#[test]
fn events_beside_one_that_was_alone_have_the_order_of_the_kernels() {
    same_in_both_domains(|text| {
        for edge in [0, libc::EPOLLET] {
            let (pairs, set): (Vec<_>, _) = ((0..3).map(|_| pair()).collect(), test_service::epoll());
            let add_one = |text: &mut String, at: usize| {
                let status = register(set, libc::EPOLL_CTL_ADD, pairs[at].1, libc::EPOLLIN | edge, at as u64);
                tell(text, "add", status);
            };
            add_one(text, 0);
            send_to(&pairs, &[0]);
            reported(text, "alone", set, 16);
            read_from(&pairs, &[0]);
            reported(text, "nothing", set, 16);
            (1..3).for_each(|at| add_one(text, at));
            send_to(&pairs, &[2, 0, 1]);
            reported(text, "as they came", set, 16);
            reported(text, "what is left", set, 16);
            for at in [1, 2] {
                tell(text, "remove", register(set, libc::EPOLL_CTL_DEL, pairs[at].1, 0, 0));
            }
            send_to(&pairs, &[0]);
            reported(text, "alone again", set, 16);
            add_one(text, 1);
            reported(text, "added with bytes", set, 16);
            read_from(&pairs, &[0, 0, 1]);
            reported(text, "nothing", set, 16);
            send_to(&pairs, &[1, 0]);
            reported(text, "as they came", set, 16);
        }
    });
}

/// One that is ready, or was reported, keeps its place when others join and more comes for it.
#[test]
fn events_keep_their_place_when_another_registration_joins() {
    same_in_both_domains(|text| {
        for (edge, is_reported) in [(0, false), (0, true), (libc::EPOLLET, false), (libc::EPOLLET, true)] {
            let (pairs, set): (Vec<_>, _) = ((0..3).map(|_| pair()).collect(), test_service::epoll());
            let add_one = |text: &mut String, at: usize| {
                let status = register(set, libc::EPOLL_CTL_ADD, pairs[at].1, libc::EPOLLIN | edge, at as u64);
                tell(text, "add", status);
            };
            add_one(text, 0);
            send_to(&pairs, &[0]);
            if is_reported {
                reported(text, "alone", set, 16);
                read_from(&pairs, &[0]);
            }
            add_one(text, 1);
            send_to(&pairs, &[1, 0]);
            reported(text, "two", set, 16);
            // One that is added with bytes, and gets more.
            send_to(&pairs, &[2]);
            add_one(text, 2);
            send_to(&pairs, &[1, 2]);
            reported(text, "three", set, 16);
        }
    });
}

#[test]
fn events_of_room_have_the_order_of_the_kernels() {
    same(|text| {
        let (pairs, set) = ordered(libc::EPOLLIN);
        for at in [1, 4, 2] {
            fill(pairs[at].1);
            tell(text, "change", register(set, libc::EPOLL_CTL_MOD, pairs[at].1, libc::EPOLLOUT, at as u64));
        }
        reported(text, "no room", set, 16);
        for at in [4, 1, 2] {
            empty(pairs[at].0);
        }
        test_service::eventually("room", || {
            let has_room = |at: &usize| test_service::poll(pairs[*at].1, libc::POLLOUT).0 == 1;
            [4, 1, 2].iter().all(has_room)
        });
        reported(text, "room", set, 16);
    });
}

#[test]
fn a_polled_set_is_not_ready_for_bytes_that_were_read() {
    same_in_both_domains(|text| {
        for edge in [0, libc::EPOLLET] {
            let ((client, server), set) = (pair(), test_service::epoll());
            tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN | edge, 1));
            tell(text, "nothing", test_service::poll_for(set, SILENCE_MS).into());
            for _ in 0..2 {
                tell(text, "send", test_service::send(client, b"words", 0));
                tell(text, "poll", test_service::poll_for(set, 0).into());
                tell(text, "receive", test_service::receive(server, 5, 0).0);
                tell(text, "poll after it", test_service::poll(set, libc::POLLIN).0);
                tell(text, "select after it", test_service::select(set).0);
                tell(text, "nothing comes", test_service::poll_for(set, SILENCE_MS).into());
            }
            // The kernel's own event is not taken for a ring.
            let (pipe, end) = std::io::pipe().expect("a pipe");
            tell(text, "add", register(set, libc::EPOLL_CTL_ADD, pipe.as_raw_fd(), libc::EPOLLIN | edge, 2));
            (&end).write_all(b"x").expect("a pipe");
            tell(text, "send", test_service::send(client, b"words", 0));
            tell(text, "receive", test_service::receive(server, 5, 0).0);
            tell(text, "the pipe's", test_service::poll_for(set, 0).into());
            tell(text, "and still", test_service::poll_for(set, 0).into());
            tell(text, "it is told", told(set, 0));
            drop(pipe);
            // Threads that sleep are woken, one in `poll` and one in the set.
            let sleeper = std::thread::spawn(move || test_service::poll_for(set, 20_000));
            await_sleep("self", &["7 ", "271 "]);
            tell(text, "send", test_service::send(client, b"words", 0));
            tell(text, "polled", sleeper.join().expect("it polls").into());
            tell(text, "receive", test_service::receive(server, 5, 0).0);
            tell(text, "nothing", test_service::poll_for(set, 0).into());
            let sleeper = std::thread::spawn(move || told(set, 20_000));
            await_sleep("self", &SET_WAITS);
            tell(text, "send", test_service::send(client, b"words", 0));
            tell(text, "woken", sleeper.join().expect("it waits"));
            tell(text, "receive", test_service::receive(server, 5, 0).0);
            tell(text, "nothing", test_service::poll_for(set, 0).into());
        }
    });
}

/// After this time an event counts as absent.
const SILENCE_MS: i32 = 300;

/// What another program finds in a set that it has inherited.
fn heir(text: &mut String, set: RawFd) {
    let mut all = [told(set, 20_000), told(set, 20_000)];
    all.sort_unstable();
    tell(text, &format!("the other program hears {all:?}, and then"), told(set, SILENCE_MS));
}

#[test]
fn an_inherited_set_contains_nothing_of_the_library() {
    same_in_both_domains(|text| {
        if let Some(set) = test_service::role().and_then(|role| role.strip_prefix("heir ")?.parse().ok()) {
            return heir(text, set);
        }
        let pairs = [pair(), pair()];
        // SAFETY: no pointers.
        let set = unsafe { libc::epoll_create1(0) };
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, pairs[0].1, once, 11));
        let edge = libc::EPOLLIN | libc::EPOLLET;
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, pairs[1].1, edge, 12));
        let mut command = std::process::Command::new(std::env::current_exe().expect("this test"));
        in_role(&mut command, &this_test(), &format!("heir {set}")).stdout(std::process::Stdio::piped());
        let mut other = command.spawn().expect("it starts");
        for (client, _) in pairs {
            tell(text, "send", test_service::send(client, b"words", 0));
        }
        let mut said = String::new();
        other.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
        assert!(other.wait().expect("ours").success(), "{said}");
        said.lines()
            .filter(|line| line.contains(" = "))
            .for_each(|line| writeln!(text, "{line}").expect("a string"));
        tell(text, "it hears no more", told(set, SILENCE_MS));
        tell(text, "arm", register(set, libc::EPOLL_CTL_MOD, pairs[0].1, once, 13));
        tell(text, "it hears", told(set, 20_000));
        pairs.into_iter().for_each(|(client, server)| talk(text, client, server));
    });
}

#[test]
fn connections_added_to_a_set_that_was_inherited_empty_are_carried() {
    same_in_both_domains(|text| {
        // SAFETY: no pointers.
        let set = unsafe { libc::epoll_create1(0) };
        let mut helper = std::process::Command::new("cat");
        helper.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        let mut helper = helper.spawn().expect("it starts");
        let (client, server) = pair();
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN, 11));
        assert_carried((client, server), "it is carried still");
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it hears", told(set, 20_000));
        drop(helper.stdin.take());
        assert!(helper.wait().expect("ours").success());
    });
}

#[test]
fn an_epoll_set_reports_a_closed_socket_in_a_message_to_another_process() {
    same(|text| {
        let (client, server, set) = watched(text);
        let holder = on_its_way(server);
        test_service::close(server);
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it hears", told(set, 20_000));
        drop(holder);
    });
}

#[test]
fn an_epoll_set_reports_a_closed_carried_socket_that_a_child_has() {
    same(|text| {
        let (client, server, set) = watched(text);
        let copy = Copy::keep();
        test_service::close(server);
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it hears", told(set, 20_000));
        copy.end();
    });
}

#[test]
fn a_registration_with_a_closed_number_works_while_a_duplicate_exists() {
    same(|text| {
        let (client, server, set) = watched(text);
        let duplicate = duplicate(server);
        test_service::close(server);
        talk(text, client, duplicate);
        // This returns it to the kernel, if it was not there before.
        tell(text, "pass", test_service::pass(duplicate));
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it hears", told(set, 20_000));
        tell(text, "it hears", told(set, 20_000));
        let (length, _) = test_service::receive(duplicate, 5, 0);
        tell(text, "receive", length);
        tell(text, "it hears no more", told(set, SILENCE_MS));
    });
}

#[test]
fn a_childs_close_leaves_its_parents_set_unchanged() {
    same(|text| {
        let (client, server, set) = watched(text);
        let child = child(|| {
            test_service::close(server);
            0
        });
        tell(text, "it ends", end_of(child).into());
        assert_carried((client, server), "its parent's connection is carried still");
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it hears", told(set, 20_000));
    });
}

/// Receives exactly `length` bytes, starting with none. Returns the result after `meanwhile` was called.
fn patient_receive(length: usize, fd: RawFd, meanwhile: impl FnOnce(i32)) -> i64 {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: no arguments.
        sender.send(unsafe { libc::gettid() }).expect("heard");
        let mut bytes = vec![0u8; length];
        // SAFETY: room for so many bytes.
        unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), length, libc::MSG_WAITALL) as i64 }
    });
    meanwhile(receiver.recv().expect("it has begun"));
    thread.join().expect("it is over")
}

extern "C" fn heed(_signal: i32) {}

#[test]
fn any_handler_ends_a_waitall_receive_that_has_some_bytes() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        handle(libc::SIGUSR1, heed, libc::SA_RESTART);
        let received = patient_receive(5, server, |thread| {
            // In `recvfrom`, `futex` and `futex_waitv`.
            let call = || std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).ok();
            let sleeps = || {
                call().is_some_and(|call| ["45 ", "202 ", "449 "].iter().any(|known| call.starts_with(known)))
            };
            test_service::eventually("it sleeps", &sleeps);
            assert_eq!(test_service::send(client, b"wo", 0), 2);
            let is_taken = || {
                // SAFETY: FIONREAD writes one int.
                let left = unsafe {
                    let mut left = 0i32;
                    libc::ioctl(server, libc::FIONREAD, &raw mut left);
                    left
                };
                left == 0 && sleeps()
            };
            test_service::eventually("it has them", is_taken);
            // A signal between two sleeps ends neither.
            test_service::eventually("it ends", || {
                // SAFETY: no pointers.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
                call().is_none()
            });
            tell(text, "send", test_service::send(client, b"rds", 0));
        });
        tell(text, "receive", received);
        let (length, bytes) = test_service::receive(server, 3, 0);
        tell(text, &format!("receive {bytes:?}"), length);
    });
}

#[test]
fn a_socket_duplicated_over_itself_is_unchanged() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        let set = test_service::epoll();
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN | libc::EPOLLOUT, 11));
        let duplicate = duplicate(server);
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::dup2(duplicate, server) }, server);
        assert_carried((client, server), "it is carried still");
        tell(text, "send", test_service::send(client, b"words", 0));
        let (count, events) = test_service::eventually("it hears", || {
            Some(test_service::wait(set))
                .filter(|(_, events)| events.iter().any(|found| found & libc::EPOLLIN as u32 != 0))
        });
        tell(text, &format!("wait {events:?}"), count);
        test_service::close(duplicate);
        talk(text, server, client);
    });
}

#[test]
fn a_child_hears_of_a_connection_under_another_number() {
    same_in_both_domains(|text| {
        let (_client, server) = pair();
        let duplicate = duplicate(server);
        let set = test_service::epoll();
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN | libc::EPOLLOUT, 11));
        let child = child(|| {
            test_service::close(server);
            // This returns it to the kernel.
            if test_service::pass(duplicate) != 1 {
                return 100;
            }
            told(set, 20_000) as i32
        });
        tell(text, "the child hears", i64::from(end_of(child) >> 8));
    });
}

#[test]
fn a_sleeper_in_a_closed_set_takes_no_event_of_its_successor() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        let set = test_service::epoll();
        let (end, pipe) = std::io::pipe().expect("a pipe");
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, end.as_raw_fd(), libc::EPOLLIN, 7));
        let sleeper = std::thread::spawn(move || events_in(set, -1));
        await_sleep("self", &SET_WAITS);
        test_service::close(set);
        // In its record, and with its number.
        let other = test_service::epoll();
        tell(text, "the same number", i64::from(other == set));
        tell(text, "add", register(other, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN | libc::EPOLLET, 11));
        tell(text, "send", test_service::send(client, b"words", 0));
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::write(pipe.as_raw_fd(), b"!".as_ptr().cast(), 1) }, 1);
        tell(text, "the sleeper hears", sleeper.join().expect("it is over").into());
        tell(text, "the other set tells", told(other, 20_000));
    });
}

#[test]
fn a_process_receives_bytes_that_it_owes_itself() {
    same_in_both_domains(|text| {
        let (client, server) = pair();
        let piece = [b'x'; 65536];
        let mut sent = 0;
        // SAFETY: so many bytes.
        let send = || unsafe { libc::send(client, piece.as_ptr().cast(), piece.len(), libc::MSG_DONTWAIT) };
        while let found @ 1.. = send() {
            sent += found;
        }
        tell(text, "it is full", test_service::errno().into());
        let channel = on_its_way(server);
        test_service::close(server);
        let copy = test_service::take(channel.as_raw_fd());
        let (mut taken, mut bytes) = (0, vec![0u8; 65536]);
        while taken < sent {
            // SAFETY: room for so many bytes.
            let found = unsafe { libc::recv(copy, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            if found <= 0 {
                break;
            }
            taken += found;
        }
        tell(text, "all is received", i64::from(taken == sent));
    });
}

/// A program's settings for the buffers of a connection. 0: none.
#[derive(Clone, Copy)]
struct Buffers {
    /// `SO_SNDBUF` of the sender.
    sends: i32,
    /// `TCP_NOTSENT_LOWAT` of the sender.
    unsent: i32,
    /// `SO_RCVBUF` of the receiver.
    receives: i32,
}

const fn buffers(sends: i32, unsent: i32, receives: i32) -> Buffers {
    Buffers { sends, unsent, receives }
}

const BUFFERS: [Buffers; 9] = [
    buffers(0, 0, 0),
    buffers(1, 0, 1),
    buffers(4096, 0, 4096),
    buffers(4096, 0, 0),
    buffers(0, 0, 4096),
    buffers(1 << 16, 0, 1 << 16),
    buffers(212_992, 0, 16_384),
    buffers(0, 1 << 17, 1 << 16),
    buffers(1 << 20, 0, 212_992),
];

impl Buffers {
    /// Sets what concerns a sender, or a receiver.
    fn set(self, fd: RawFd, is_sender: bool) {
        let all = match is_sender {
            true => {
                [(libc::SOL_SOCKET, libc::SO_SNDBUF, self.sends), (libc::IPPROTO_TCP, NOT_SENT, self.unsent)]
            }
            false => [(libc::SOL_SOCKET, libc::SO_RCVBUF, self.receives), (0, 0, 0)],
        };
        for (level, name, value) in all.into_iter().filter(|(.., value)| *value != 0) {
            set_option(fd, level, name, value);
        }
    }

    /// A sender and a receiver, non-blocking. One of them connects; the other one has what was set on the listener.
    fn pair(self, sender_connects: bool) -> (RawFd, RawFd) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        self.set(listener.as_raw_fd(), !sender_connects);
        let address = match listener.local_addr().expect("an address") {
            std::net::SocketAddr::V4(address) => address,
            std::net::SocketAddr::V6(address) => panic!("{address}"),
        };
        // SAFETY: no pointers; a live address.
        let client = unsafe {
            let client = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            self.set(client, sender_connects);
            let mut place: libc::sockaddr_in = std::mem::zeroed();
            place.sin_family = libc::AF_INET as u16;
            place.sin_port = address.port().to_be();
            place.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            let length = size_of_val(&place) as u32;
            assert_eq!(libc::connect(client, (&raw const place).cast(), length), 0);
            client
        };
        let server = listener.accept().expect("accept").0.into_raw_fd();
        for fd in [client, server] {
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        }
        if has_library() {
            test_service::carry((client, server));
        }
        if sender_connects { (client, server) } else { (server, client) }
    }
}

/// `TCP_NOTSENT_LOWAT` of netinet/tcp.h.
const NOT_SENT: i32 = 25;

/// Sends until nothing is accepted any more. Returns the number of bytes.
fn fill(fd: RawFd) -> u64 {
    let (bytes, mut sum, mut refused) = (vec![7; 1 << 16], 0, 0);
    while refused < 100 {
        // SAFETY: a live buffer of this length.
        match unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) } {
            sent @ 1.. => (sum, refused) = (sum + sent as u64, 0),
            // The kernel accepts more when its other end has answered.
            _ => {
                std::thread::sleep(std::time::Duration::from_millis(1));
                refused += 1;
            }
        }
    }
    sum
}

/// Waits for room. Returns whether there is some.
fn is_writable_at_last(fd: RawFd) -> bool {
    let mut file = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live entry.
    unsafe { libc::poll(&raw mut file, 1, 20_000) == 1 && file.revents == libc::POLLOUT }
}

/// Receives until `fd` is writable. Returns whether it was so before the last byte was taken.
fn take_until_writable(fd: RawFd, from: RawFd, set: RawFd, mut left: u64) -> bool {
    while left > 0 {
        let is_told = test_service::wait(set).0 == 1;
        if is_told && test_service::poll(fd, libc::POLLOUT).0 == 1 {
            return true;
        }
        assert!(test_service::poll_for(from, 20_000), "nothing is to be read");
        left -= test_service::receive(from, 1024, 0).0.max(0) as u64;
    }
    is_writable_at_last(fd)
}

fn fill_all(text: &mut String) {
    for (index, buffers) in BUFFERS.into_iter().enumerate() {
        let (sender, receiver) = buffers.pair(index % 2 == 0);
        let set = test_service::epoll();
        tell(text, "add", register(set, libc::EPOLL_CTL_ADD, sender, libc::EPOLLOUT, 7));
        let accepted = fill(sender);
        writeln!(text, "accepted = {accepted}").expect("a string");
        tell(text, "poll of a full one", test_service::poll(sender, libc::POLLOUT).0);
        tell(text, "wait for a full one", test_service::wait(set).0);
        tell(text, "writable", i64::from(take_until_writable(sender, receiver, set, accepted)));
        [sender, receiver, set].into_iter().for_each(test_service::close);
    }
}

#[test]
fn a_sender_gets_as_far_ahead_as_the_buffers_of_the_programs_allow() {
    if test_service::role().is_some() {
        let mut text = String::new();
        fill_all(&mut text);
        return print!("\n{text}");
    }
    let (pairing, test) = (TestService::new(), this_test());
    let [plain, carried] =
        [None, Some(1)].map(|calls| pairing.driven(&test, "BYWIRE_TEST_ROLE", "fill", calls));
    let accepted =
        |line: &str| line.strip_prefix("accepted = ").map(|text| text.parse::<u64>().expect("bytes"));
    assert_eq!(plain.lines().filter_map(accepted).count(), BUFFERS.len());
    assert_eq!(plain.lines().count(), carried.lines().count());
    for (plain_line, carried_line) in plain.lines().zip(carried.lines()) {
        match (accepted(plain_line), accepted(carried_line)) {
            (Some(plain), Some(carried)) => {
                assert!(carried <= 2 * plain && plain <= 2 * carried, "{plain} by TCP, {carried} in memory");
            }
            _ => assert_eq!(carried_line, plain_line),
        }
    }
    assert!(pairing.status().carried_ever >= BUFFERS.len() as u64, "{:?}", pairing.status());
}

/// Raises the sender's buffer while `wait` waits for room. Returns the result of `wait`.
fn raised_while(wait: impl Fn(RawFd) -> i64 + Send + 'static) -> i64 {
    let (sender, receiver) = buffers(1, 0, 1).pair(true);
    fill(sender);
    let_wait(sender);
    let waiter = std::thread::spawn(move || wait(sender));
    await_sleep("self", &WAITS);
    set_option(sender, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
    let result = waiter.join().expect("it is over");
    [sender, receiver].into_iter().for_each(test_service::close);
    result
}

/// Sleeping calls: `sendto`, `poll`, `epoll_wait`, `ppoll`, `futex_waitv`, `epoll_pwait`, `epoll_pwait2`.
const WAITS: [&str; 7] = ["44 ", "7 ", "232 ", "271 ", "449 ", "281 ", "441 "];

/// A program that stands still ends.
fn end_in_time() {
    // SAFETY: no pointers.
    unsafe { libc::alarm(test_service::TIMEOUT.as_secs() as u32) };
}

#[test]
fn a_raised_buffer_wakes_those_who_wait_for_room() {
    same(|text| {
        end_in_time();
        tell(text, "send", raised_while(|fd| test_service::send(fd, &[1; 1000], 0)));
        tell(text, "poll", raised_while(|fd| i64::from(is_writable_at_last(fd))));
        for events in [libc::EPOLLOUT, libc::EPOLLOUT | libc::EPOLLET] {
            let by_set = move |fd: RawFd| {
                let set = test_service::epoll();
                add(set, fd, events, 7);
                told(set, 20_000)
            };
            tell(text, "wait", raised_while(by_set));
        }
    });
}

/// Far more than the buffers hold.
const LONG: usize = 300_000;

#[test]
fn small_buffers_pass_every_byte() {
    same(|text| {
        end_in_time();
        for (index, buffers) in [(1, 1), (4096, 1), (1, 16_384), (30_000, 5000)].into_iter().enumerate() {
            let (sender, receiver) = self::buffers(buffers.0, 0, buffers.1).pair(index % 2 == 0);
            [sender, receiver].into_iter().for_each(let_wait);
            let bytes: Vec<u8> = (0..LONG).map(|at| (at * 7 + at / 251) as u8).collect();
            let expected = bytes.clone();
            let writer = std::thread::spawn(move || test_service::send(sender, &bytes, index as u64 % 4));
            let mut all = Vec::new();
            for round in 0.. {
                if all.len() == LONG {
                    break;
                }
                let length = [1, 3000, 100_000, 64][round % 4].min(LONG - all.len());
                let (received, piece) = test_service::receive(receiver, length, round as u64 / 4 % 3);
                assert!(received > 0, "{received} {}", test_service::errno());
                all.extend(piece);
            }
            tell(text, "send", writer.join().expect("it is over"));
            tell(text, "the same", i64::from(all == expected));
            [sender, receiver].into_iter().for_each(test_service::close);
        }
    });
}
