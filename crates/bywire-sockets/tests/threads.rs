//! Several threads on one connection, and several connections in one set.

mod world;

use std::os::fd::RawFd;

use world::{Running, World};

/// Runs this very test as a program with the library, in which so many connections have to be carried; `true`: this is it.
fn is_driver(test: &str, connections: u64) -> bool {
    if world::role().is_some() {
        return true;
    }
    let world = World::new();
    let mut command = world.command(std::env::current_exe().expect("this test"), Some(1));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env("BYWIRE_TEST_ROLE", "driver");
    assert!(Running::start(&mut command).end().success());
    assert_eq!(world.status().carried_ever, connections);
    false
}

/// Two ends that are carried both ways.
fn carried_pair(waits: bool) -> (RawFd, RawFd) {
    let ends = world::pair();
    world::carry(ends);
    for fd in [ends.0, ends.1] {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(fd, libc::F_SETFL, if waits { 0 } else { libc::O_NONBLOCK }) };
    }
    ends
}

#[test]
fn a_read_of_no_bytes_does_not_sleep() {
    if !is_driver("a_read_of_no_bytes_does_not_sleep", 1) {
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
