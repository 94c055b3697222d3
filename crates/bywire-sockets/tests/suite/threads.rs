//! Threads and processes share connections and epoll sets: several threads and processes on one connection, and several
//! connections in one set. There are killed sleepers, full arrays of events, and timeouts across the cut-over.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::test_service::calls::{self, add, one_event};
use crate::test_service::{self, is_driver};

/// Two ends of a connection that is carried both ways.
fn carried_pair(waits: bool) -> (RawFd, RawFd) {
    let ends = test_service::pair();
    test_service::carry(ends);
    if waits {
        let_wait(ends);
    }
    ends
}

/// Makes their calls block.
fn let_wait(ends: (RawFd, RawFd)) {
    [ends.0, ends.1].into_iter().for_each(calls::let_wait);
}

#[test]
fn a_read_of_no_bytes_does_not_sleep() {
    if !is_driver() {
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
fn a_receive_keeps_its_timeout_from_the_ring_to_the_kernel() {
    if !is_driver() {
        return;
    }
    let (client, server) = carried_pair(true);
    let timeout = libc::timeval { tv_sec: 3, tv_usec: 0 };
    // SAFETY: a live structure of the size given.
    let status = unsafe {
        let size = size_of_val(&timeout) as u32;
        libc::setsockopt(server, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const timeout).cast(), size)
    };
    assert_eq!(status, 0);
    // First, so that the byte is there even if the receiver's timeout has been running for long.
    assert_eq!(test_service::send(client, b"1", 0), 1);
    let receiver = std::thread::spawn(move || {
        let mut bytes = [0u8; 4];
        // SAFETY: a live buffer of that length.
        unsafe { libc::recv(server, bytes.as_mut_ptr().cast(), 4, libc::MSG_WAITALL) }
    });
    std::thread::sleep(Duration::from_millis(300));
    test_service::pass(client);
    assert_eq!(receiver.join().expect("its time is over"), 1);
}

#[test]
fn a_receiver_killed_asleep_delays_nobody() {
    if !is_driver() {
        return;
    }
    // The service runs and knows this program, so the following does not wait for it.
    carried_pair(true);
    // One of these numbers of calls comes just before the direction leaves the kernel.
    for rounds in 0..30 {
        let (client, server) = test_service::pair();
        let_wait((client, server));
        for _ in 0..rounds {
            for (from, to) in [(client, server), (server, client)] {
                assert_eq!(test_service::send(from, b"!", 0), 1);
                assert_eq!(test_service::receive(to, 1, 0).0, 1);
            }
        }
        let child = test_service::child(|| test_service::receive(server, 1, 0).0 as i32);
        std::thread::sleep(Duration::from_millis(20));
        calls::signal(child as u32, libc::SIGKILL);
        test_service::end_of(child);
        for byte in [b"1", b"2"] {
            assert_eq!(test_service::send(client, byte, 0), 1);
            assert_eq!(test_service::receive(server, 1, 0), (1, byte.to_vec()), "after {rounds} rounds");
        }
        [client, server].into_iter().for_each(test_service::close);
    }
}

#[test]
fn a_full_event_array_has_room_for_the_kernels_events() {
    if !is_driver() {
        return;
    }
    let (client, server) = carried_pair(false);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let set = test_service::epoll();
    add(set, server, libc::EPOLLIN, 0);
    add(set, listener.as_raw_fd(), libc::EPOLLIN, 1);
    assert_eq!(test_service::send(client, &[0; 1000], 0), 1000);
    let _caller = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    assert!(test_service::poll_for(listener.as_raw_fd(), 20_000), "it has come");
    // The connection has an event each time.
    let is_heard = (0..500).any(|_| {
        let event = one_event(set, 20_000).expect("something is there");
        event == 1 || test_service::receive(server, 1, 0).0 != 1
    });
    assert!(is_heard);
}

#[test]
fn another_thread_gets_events_that_exceed_an_array() {
    if !is_driver() {
        return;
    }
    let pairs = [carried_pair(false), carried_pair(false)];
    let set = test_service::epoll();
    for (number, (_, server)) in pairs.iter().enumerate() {
        add(set, *server, libc::EPOLLIN | libc::EPOLLET, number as u64);
    }
    static TAKEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    for _ in 0..2 {
        std::thread::spawn(move || {
            loop {
                let Some(number) = one_event(set, -1).map(|number| number as usize) else { continue };
                if test_service::receive(pairs[number].1, 1, 0).0 != 1 {
                    continue;
                }
                let round = TAKEN[number].fetch_add(1, Ordering::SeqCst) + 1;
                // It returns only when the other connection's event was taken, by the other thread.
                test_service::eventually("the other thread takes the other one", || {
                    TAKEN[1 - number].load(Ordering::SeqCst) >= round
                });
            }
        });
    }
    for round in 1..=20 {
        // Usually both are asleep by now.
        std::thread::sleep(Duration::from_millis(50));
        for (client, _) in pairs {
            assert_eq!(test_service::send(client, b"!", 0), 1);
        }
        test_service::eventually("both are taken", || {
            TAKEN.iter().all(|taken| taken.load(Ordering::SeqCst) == round)
        });
    }
}
