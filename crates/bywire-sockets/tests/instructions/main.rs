//! A carried send, a receive, and a wait for a set take no more instructions than before. The count is of release
//! builds, so it needs `--release`, and valgrind.

#[allow(dead_code, unused_imports, reason = "the other program of tests needs the rest")]
#[path = "../suite/test_service/mod.rs"]
mod test_service;

use std::cell::LazyCell;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::ExitCode;

use bywire_testing::counting::Counting;
use test_service::TestService;

/// The counted functions, by the names that callgrind collects.
const COUNTED: [&str; 3] = ["send_64_bytes", "receive_64_bytes", "wait_for_one"];
/// Operations in a round.
const BATCH: u32 = 32;
const BYTES: usize = 64;

fn main() -> ExitCode {
    let baseline = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions/baseline.txt");
    let pairing = LazyCell::new(TestService::new);
    let counting = Counting { names: &COUNTED, operations: BATCH, baseline: &baseline };
    counting.test(run, || pairing.command("valgrind", Some(1)))
}

/// The counted program: rounds of sends, of receives, and of waits for a set with one connection that is ready.
fn run(rounds: u32, _directory: &Path) {
    let (client, server) = test_service::pair();
    let (waker, waited) = test_service::pair();
    test_service::carry((client, server));
    test_service::carry((waker, waited));
    let set = test_service::epoll();
    assert_eq!(test_service::control(set, libc::EPOLL_CTL_ADD, waited, libc::EPOLLIN as u32), 0);
    for _ in 0..rounds {
        let before = test_service::kernel_sent(client);
        send_64_bytes(client);
        assert_eq!(test_service::kernel_sent(client), before, "it is carried");
        receive_64_bytes(server);
        assert_eq!(test_service::send(waker, b"!", 0), 1);
        wait_for_one(set);
        assert_eq!(test_service::receive(waited, 1, 0).0, 1);
    }
}

#[inline(never)]
fn send_64_bytes(fd: RawFd) {
    let bytes = std::hint::black_box([7u8; BYTES]);
    for _ in 0..BATCH {
        // SAFETY: bytes that live until the call is over.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), BYTES, 0) };
        assert_eq!(sent, BYTES as isize);
    }
}

#[inline(never)]
fn receive_64_bytes(fd: RawFd) {
    let mut bytes = [0u8; BYTES];
    for _ in 0..BATCH {
        // SAFETY: room for so many bytes.
        let received = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), BYTES, 0) };
        assert_eq!(received, BYTES as isize);
        std::hint::black_box(&bytes);
    }
}

#[inline(never)]
fn wait_for_one(set: RawFd) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    for _ in 0..BATCH {
        // SAFETY: room for one event.
        let found = unsafe { libc::epoll_wait(set, &raw mut event, 1, -1) };
        assert_eq!(found, 1);
    }
}
