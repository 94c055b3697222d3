//! What random programs have found, each by itself: the same without the library and with it.

mod world;

use std::fmt::Write as _;
use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr;

use world::World;

/// Does `thing` in a program of its own, without the library and with it, and compares what it writes.
fn same(test: &str, thing: fn(&mut String)) {
    if world::role().is_some() {
        let mut text = String::new();
        thing(&mut text);
        // Lines that a transcript consists of.
        print!("\n{text}");
        return;
    }
    let world = World::new();
    let [plain, carried] =
        [None, Some(1)].map(|calls| world.driven(test, "BYWIRE_TEST_ROLE", "thing", calls));
    assert!(!plain.is_empty(), "it says nothing");
    assert_eq!(carried, plain, "with the library, and without");
    assert!(world.status().carried_ever > 0, "{:?}", world.status());
}

/// Two ends that wait for what they ask for; with the library both are carried.
fn pair() -> (RawFd, RawFd) {
    let (client, server) = world::pair();
    if std::env::var_os("LD_PRELOAD").is_some() {
        world::carry((client, server));
    }
    for fd in [client, server] {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, 0) }, 0);
    }
    (client, server)
}

/// Writes what a call gave.
fn tell(text: &mut String, what: &str, result: i64) {
    let error = if result < 0 { world::errno() } else { 0 };
    writeln!(text, "{what} = {result} {error}").expect("a string");
}

/// Bytes from one end to the other one.
fn talk(text: &mut String, from: RawFd, to: RawFd) {
    tell(text, "send", world::send(from, b"words", 0));
    let (length, bytes) = world::receive(to, 5, 0);
    tell(text, &format!("receive {bytes:?}"), length);
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

fn numbers_beyond_the_limit(text: &mut String) {
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
}

#[test]
fn a_number_beyond_the_limit_of_descriptors_keeps_its_connection() {
    same("a_number_beyond_the_limit_of_descriptors_keeps_its_connection", numbers_beyond_the_limit);
}

fn closed_in_a_set(text: &mut String) {
    let (client, server) = pair();
    let set = world::epoll();
    tell(text, "control", world::control(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN as u32));
    // By that it is the kernel's again.
    tell(text, "pass", world::pass(server));
    let copy = Copy::keep();
    world::close(server);
    tell(text, "send", world::send(client, b"words", 0));
    // The registration lives as long as anybody has the socket.
    let (count, events) =
        world::eventually("it is told", || Some(world::wait(set)).filter(|found| found.0 != 0));
    tell(text, &format!("wait {events:?}"), count);
    copy.end();
}

#[test]
fn a_set_tells_of_a_socket_that_was_closed_here_and_that_another_process_has() {
    same("a_set_tells_of_a_socket_that_was_closed_here_and_that_another_process_has", closed_in_a_set);
}

/// `TCP_CLOSE` of netinet/tcp.h.
const CLOSED: u8 = 7;

/// The kernel's, asked for by a call that tells the library nothing.
fn state(fd: RawFd) -> u8 {
    let (mut found, mut length) = ([0u8; 8], 8);
    let information = found.as_mut_ptr().cast();
    // SAFETY: room for so many bytes, and a live length.
    unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, information, &raw mut length) };
    found[0]
}

fn passed_after_a_reset(text: &mut String) {
    let (client, server) = pair();
    tell(text, "send", world::send(client, b"never read", 0));
    world::close(server);
    world::eventually("the reset", || (state(client) == CLOSED).then_some(()));
    tell(text, "pass", world::pass(client));
    for _ in 0..2 {
        tell(text, "send", world::send(client, b"more", 0));
    }
}

#[test]
fn the_error_of_a_reset_is_left_to_the_program_when_its_socket_is_passed_on() {
    same("the_error_of_a_reset_is_left_to_the_program_when_its_socket_is_passed_on", passed_after_a_reset);
}

fn forked_while_it_is_kept(text: &mut String) {
    let (client, server) = pair();
    let receiver = std::thread::spawn(move || world::receive(server, 1, 0));
    world::eventually("it sleeps", || sleeps_elsewhere().then_some(()));
    world::close(server);
    let copy = Copy::keep();
    tell(text, "send", world::send(client, b"x", 0));
    let (length, bytes) = receiver.join().expect("it is over");
    tell(text, &format!("receive {bytes:?}"), length);
    // With that call the last descriptor is gone, and the child has none.
    tell(text, "the end is told", world::poll_for(client, 10_000).into());
    // It does not wait for what was not told.
    tell(text, "receive", world::receive(client, 1, 3).0);
    copy.end();
}

/// Does another thread of this program sleep in a receive, or where the library does? By `recvfrom` and `futex_waitv`.
fn sleeps_elsewhere() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    threads.filter_map(Result::ok).any(|thread| {
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        call.starts_with("45 ") || call.starts_with("449 ")
    })
}

#[test]
fn a_forked_child_has_no_copy_that_was_kept_for_another_threads_receive() {
    same("a_forked_child_has_no_copy_that_was_kept_for_another_threads_receive", forked_while_it_is_kept);
}

/// So many ends that come while another thread looks all the time: each of them comes between two things that a look does.
const ENDS: usize = 100;

fn ended_between_looks(text: &mut String) {
    let mut told = 0;
    for round in 0..ENDS {
        let (client, server) = pair();
        let set = world::epoll();
        world::control(set, libc::EPOLL_CTL_ADD, server, (libc::EPOLLIN | libc::EPOLLET) as u32);
        let looks = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (counted, started) = (looks.clone(), std::time::Instant::now());
        let looker = std::thread::spawn(move || {
            while started.elapsed() < world::PATIENCE {
                if world::wait(set).0 != 0 {
                    return true;
                }
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            false
        });
        // It looks by now, and has asked the kernel for what is to be asked.
        while looks.load(std::sync::atomic::Ordering::Relaxed) < 20 + round % 7 {
            std::hint::spin_loop();
        }
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::shutdown(client, libc::SHUT_WR) }, 0);
        let is_told = looker.join().expect("it looks");
        told += i64::from(is_told);
        [client, server, set].into_iter().for_each(world::close);
        if !is_told {
            break;
        }
    }
    tell(text, "ends told", told);
}

#[test]
fn an_end_that_comes_in_the_middle_of_a_look_is_told_by_edge() {
    same("an_end_that_comes_in_the_middle_of_a_look_is_told_by_edge", ended_between_looks);
}
