//! The same actions in a program without the library and in one with it: both write the same.

use std::fmt::Write as _;
use std::os::fd::{AsRawFd as _, RawFd};

use super::calls::let_wait;
use super::roles::this_test;
use super::{Domain, TestService};

/// Runs `thing` in a separate program, without the library and with it, both at once, and compares the output.
pub fn same(thing: fn(&mut String)) {
    same_by(Domain::Tcp, thing);
}

/// The same for both domains, one after the other.
pub fn same_in_both_domains(thing: fn(&mut String)) {
    same_by(Domain::Tcp, thing);
    same_by(Domain::Unix, thing);
}

/// The same for connections of one domain.
pub fn same_by(domain: Domain, thing: fn(&mut String)) {
    if super::role().is_some() {
        let mut text = String::new();
        thing(&mut text);
        // The lines of a transcript.
        print!("\n{text}");
        return;
    }
    let (pairing, test) = (TestService::with_domain(domain), this_test());
    let [plain, carried] = std::thread::scope(|scope| {
        let driven = [None, Some(1)].map(|calls| {
            let (pairing, test) = (&pairing, &test);
            scope.spawn(move || pairing.driven(test, "BYWIRE_TEST_ROLE", "thing", calls))
        });
        driven.map(|driven| driven.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    assert!(!plain.is_empty(), "it says nothing");
    assert_eq!(carried, plain, "with the library, and without");
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

/// Returns whether this program runs with the library.
pub fn has_library() -> bool {
    std::env::var_os("LD_PRELOAD").is_some()
}

/// With the library, a connection must be carried still.
pub fn assert_carried(ends: (RawFd, RawFd), what: &str) {
    assert!(!has_library() || super::is_carried_at_last(ends), "{what}");
}

/// Two blocking ends. With the library both are carried.
pub fn pair() -> (RawFd, RawFd) {
    let (client, server) = super::pair();
    if has_library() {
        super::carry((client, server));
    }
    [client, server].into_iter().for_each(let_wait);
    (client, server)
}

/// Writes the result of a call.
pub fn tell(text: &mut String, what: &str, result: i64) {
    let error = if result < 0 { super::errno() } else { 0 };
    writeln!(text, "{what} = {result} {error}").expect("a string");
}

/// A duplicate of a descriptor in a message that nobody has received yet.
pub fn on_its_way(fd: RawFd) -> std::os::unix::net::UnixStream {
    let (from, to) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert_eq!(super::pass_by(from.as_raw_fd(), fd), 1);
    // The message is discarded when nobody has the end that it was sent to.
    drop(from);
    to
}
