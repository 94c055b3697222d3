//! One thing, done by a program without the library and by one with it: both write the same.

use std::fmt::Write as _;
use std::os::fd::{AsRawFd as _, RawFd};

use super::TestService;

/// Does `thing` in a program of its own, without the library and with it, and compares what it writes.
pub fn same(test: &str, thing: fn(&mut String)) {
    if super::role().is_some() {
        let mut text = String::new();
        thing(&mut text);
        // Lines that a transcript consists of.
        print!("\n{text}");
        return;
    }
    let pairing = TestService::new();
    let [plain, carried] =
        [None, Some(1)].map(|calls| pairing.driven(test, "BYWIRE_TEST_ROLE", "thing", calls));
    assert!(!plain.is_empty(), "it says nothing");
    assert_eq!(carried, plain, "with the library, and without");
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

/// Two ends that wait for what they ask for; with the library both are carried.
pub fn pair() -> (RawFd, RawFd) {
    let (client, server) = super::pair();
    if std::env::var_os("LD_PRELOAD").is_some() {
        super::carry((client, server));
    }
    for fd in [client, server] {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, 0) }, 0);
    }
    (client, server)
}

/// Writes what a call gave.
pub fn tell(text: &mut String, what: &str, result: i64) {
    let error = if result < 0 { super::errno() } else { 0 };
    writeln!(text, "{what} = {result} {error}").expect("a string");
}

/// A copy of a descriptor that is on its way to whoever will have it.
pub fn on_its_way(fd: RawFd) -> std::os::unix::net::UnixStream {
    let (from, to) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert_eq!(super::pass_by(from.as_raw_fd(), fd), 1);
    // What lies there goes when nobody has the end that it was sent to.
    drop(from);
    to
}
