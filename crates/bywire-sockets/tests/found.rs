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
    let [plain, carried] = [None, Some(1)].map(|calls| {
        let this = std::env::current_exe().expect("this test");
        let output = world
            .command(this, calls)
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env("BYWIRE_TEST_ROLE", "thing")
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{calls:?}: {}\n{text}{said}", output.status);
        text.lines().filter(|line| line.contains(" = ")).fold(String::new(), |sum, line| sum + line + "\n")
    });
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
