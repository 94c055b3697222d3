//! Several threads and processes on one connection, and several connections in one set.

mod world;

use std::os::fd::RawFd;
use std::time::Duration;

use world::{Running, World};

/// Runs this very test as a program with the library, in which connections have to be carried; `true`: this is it.
fn is_driver(test: &str) -> bool {
    if world::role().is_some() {
        return true;
    }
    let world = World::new();
    let mut command = world.command(std::env::current_exe().expect("this test"), Some(1));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env("BYWIRE_TEST_ROLE", "driver");
    assert!(Running::start(&mut command).end().success());
    assert!(world.status().carried_ever > 0, "{:?}", world.status());
    false
}

/// Two ends that are carried both ways.
fn carried_pair(waits: bool) -> (RawFd, RawFd) {
    let ends = world::pair();
    world::carry(ends);
    if waits {
        let_wait(ends);
    }
    ends
}

/// Their calls wait from here on.
fn let_wait(ends: (RawFd, RawFd)) {
    for fd in [ends.0, ends.1] {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
    }
}

#[test]
fn a_read_of_no_bytes_does_not_sleep() {
    if !is_driver("a_read_of_no_bytes_does_not_sleep") {
        return;
    }
    let (client, _server) = carried_pair(true);
    let mut byte = 0u8;
    let parts = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 0 }; 2];
    // SAFETY: live buffers of no bytes.
    let found = unsafe {
        [
            libc::read(client, (&raw mut byte).cast(), 0),
            libc::readv(client, parts.as_ptr(), 2),
            libc::readv(client, parts.as_ptr(), 0),
        ]
    };
    assert_eq!(found, [0; 3]);
}

#[test]
fn a_receive_that_has_begun_in_the_ring_keeps_its_time_in_the_kernel() {
    if !is_driver("a_receive_that_has_begun_in_the_ring_keeps_its_time_in_the_kernel") {
        return;
    }
    let (client, server) = carried_pair(true);
    let patience = libc::timeval { tv_sec: 3, tv_usec: 0 };
    // SAFETY: a live structure of the size given.
    let status = unsafe {
        let size = size_of_val(&patience) as u32;
        libc::setsockopt(server, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const patience).cast(), size)
    };
    assert_eq!(status, 0);
    let receiver = std::thread::spawn(move || {
        let mut bytes = [0u8; 4];
        // SAFETY: a live buffer of that length.
        unsafe { libc::recv(server, bytes.as_mut_ptr().cast(), 4, libc::MSG_WAITALL) }
    });
    assert_eq!(world::send(client, b"1", 0), 1);
    std::thread::sleep(Duration::from_millis(300));
    world::pass(client);
    assert_eq!(receiver.join().expect("its time is over"), 1);
}

#[test]
fn a_receiver_that_was_killed_asleep_holds_nobody_up() {
    if !is_driver("a_receiver_that_was_killed_asleep_holds_nobody_up") {
        return;
    }
    // One of these numbers of calls is right before the direction leaves the kernel.
    for rounds in 0..30 {
        let (client, server) = world::pair();
        let_wait((client, server));
        for _ in 0..rounds {
            for (from, to) in [(client, server), (server, client)] {
                assert_eq!(world::send(from, b"!", 0), 1);
                assert_eq!(world::receive(to, 1, 0).0, 1);
            }
        }
        // SAFETY: the child makes one call, and is killed; it is ours.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut byte = 0u8;
                libc::recv(server, (&raw mut byte).cast(), 1, 0);
                libc::_exit(0);
            }
            std::thread::sleep(Duration::from_millis(20));
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        for byte in [b"1", b"2"] {
            assert_eq!(world::send(client, byte, 0), 1);
            assert_eq!(world::receive(server, 1, 0), (1, byte.to_vec()), "after {rounds} rounds");
        }
        [client, server].into_iter().for_each(world::close);
    }
}
