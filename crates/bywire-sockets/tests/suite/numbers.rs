//! System calls by number, as programs make them that do not rely on their C library: waits see what is in memory. A
//! program that changes its user is carried before and after (as root).

use std::os::fd::RawFd;
use std::ptr;

use libc::{epoll_event, fd_set, pollfd, timespec};

use crate::test_service::{self, TestService};

const ROUNDS: u8 = 40;
/// `epoll_pwait2` of asm/unistd_64.h.
const SYS_EPOLL_PWAIT2: i64 = 441;
/// A user that owns nothing, on every system.
const NOBODY: u32 = 65534;

/// Runs this test with the library. Returns how many connections were carried.
fn carried() -> u64 {
    let pairing = TestService::new();
    pairing.drive(1);
    pairing.status().carried_ever
}

#[test]
fn every_wait_by_system_call_number_sees_the_rings() {
    if test_service::role().is_none() {
        assert_eq!(carried(), WAYS.len() as u64);
        return;
    }
    for (way, wait) in WAYS {
        let (client, server) = test_service::pair();
        let set = test_service::epoll();
        test_service::control(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN as u32);
        for round in 0..2 * ROUNDS {
            // Both while it leaves the kernel and afterwards.
            if round == ROUNDS {
                test_service::carry((client, server));
            }
            assert!(!wait(server, set, 0), "{way}: nothing was sent");
            // The other end answers from a thread, so that some of these waits sleep.
            let sender = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_micros(u64::from(round % 4) * 300));
                by_number(libc::SYS_write, [client as usize, ptr::from_ref(&round) as usize, 1, 0, 0, 0])
            });
            assert!(wait(server, set, 20), "{way}: round {round} was not heard");
            assert_eq!(sender.join().expect("it sends"), 1);
            let mut byte = 0u8;
            let got = by_number(libc::SYS_read, [server as usize, &raw mut byte as usize, 1, 0, 0, 0]);
            assert_eq!((got, byte), (1, round), "{way}");
            // Bytes both ways, so that both ends make calls.
            assert_eq!(test_service::send(server, &[round], 0), 1);
            test_service::settle(client, 1);
            assert_eq!(test_service::receive(client, 1, 0), (1, vec![round]));
        }
        [client, server, set].into_iter().for_each(test_service::close);
    }
}

/// A call that waits for bytes: the descriptor, a set that holds it, and the timeout in seconds.
type Wait = fn(RawFd, RawFd, i64) -> bool;

const WAYS: &[(&str, Wait)] = &[
    ("ppoll", by_ppoll),
    ("pselect6", by_pselect6),
    ("epoll_pwait", by_epoll_pwait),
    ("epoll_pwait2", by_epoll_pwait2),
    #[cfg(target_arch = "x86_64")]
    ("poll", older::by_poll),
    #[cfg(target_arch = "x86_64")]
    ("select", older::by_select),
    #[cfg(target_arch = "x86_64")]
    ("epoll_wait", older::by_epoll_wait),
];

fn by_number(number: i64, given: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = given;
    // SAFETY: the callers' structures live until the call is over.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

fn by_ppoll(fd: RawFd, _set: RawFd, seconds: i64) -> bool {
    let mut file = pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = timespec { tv_sec: seconds, tv_nsec: 0 };
    by_number(libc::SYS_ppoll, [&raw mut file as usize, 1, &raw const time as usize, 0, 8, 0]) == 1
        && file.revents == libc::POLLIN
}

fn bits(fd: RawFd) -> fd_set {
    // SAFETY: noughts are an empty set, and the number is a small one.
    unsafe {
        let mut set: fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &raw mut set);
        set
    }
}

fn by_pselect6(fd: RawFd, _set: RawFd, seconds: i64) -> bool {
    let (mut set, time) = (bits(fd), timespec { tv_sec: seconds, tv_nsec: 0 });
    let mask: [usize; 2] = [0, 8];
    let given =
        [fd as usize + 1, &raw mut set as usize, 0, 0, &raw const time as usize, mask.as_ptr() as usize];
    by_number(libc::SYS_pselect6, given) == 1
}

fn by_epoll_pwait(_fd: RawFd, set: RawFd, seconds: i64) -> bool {
    let mut event = epoll_event { events: 0, u64: 0 };
    let given = [set as usize, &raw mut event as usize, 1, seconds as usize * 1000, 0, 8];
    by_number(libc::SYS_epoll_pwait, given) == 1
}

fn by_epoll_pwait2(_fd: RawFd, set: RawFd, seconds: i64) -> bool {
    let mut event = epoll_event { events: 0, u64: 0 };
    let time = timespec { tv_sec: seconds, tv_nsec: 0 };
    let given = [set as usize, &raw mut event as usize, 1, &raw const time as usize, 0, 8];
    by_number(SYS_EPOLL_PWAIT2, given) == 1
}

#[test]
fn a_program_that_changes_its_user_is_carried_before_and_after() {
    // SAFETY: no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("not run: only root may become another user");
        return;
    }
    if test_service::role().is_none() {
        assert_eq!(carried(), 4);
        return;
    }
    // One connection from before continues, whether it was carried or not. Another one is made afterwards.
    for early in [0, 30] {
        let status = test_service::in_child(|| {
            let before = test_service::pair();
            talk(before, early);
            // SAFETY: no pointers.
            let became = unsafe { libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0 };
            let after = test_service::pair();
            became && test_service::is_carried_at_last(before) && test_service::is_carried_at_last(after)
        });
        assert_eq!(status, 0);
    }
}

fn talk((client, server): (RawFd, RawFd), rounds: u8) -> bool {
    (0..rounds).all(|round| {
        [(client, server), (server, client)].into_iter().all(|(from, to)| {
            test_service::send(from, &[round], 0) == 1
                && test_service::poll_for(to, 20_000)
                && test_service::receive(to, 1, 0) == (1, vec![round])
        })
    })
}

/// Calls that newer architectures have only under the numbers of their successors.
#[cfg(target_arch = "x86_64")]
mod older {
    use super::*;

    pub fn by_poll(fd: RawFd, _set: RawFd, seconds: i64) -> bool {
        let mut file = pollfd { fd, events: libc::POLLIN, revents: 0 };
        by_number(libc::SYS_poll, [&raw mut file as usize, 1, seconds as usize * 1000, 0, 0, 0]) == 1
            && file.revents == libc::POLLIN
    }

    pub fn by_select(fd: RawFd, _set: RawFd, seconds: i64) -> bool {
        let (mut set, mut time) = (bits(fd), libc::timeval { tv_sec: seconds, tv_usec: 0 });
        let given = [fd as usize + 1, &raw mut set as usize, 0, 0, &raw mut time as usize, 0];
        by_number(libc::SYS_select, given) == 1
    }

    pub fn by_epoll_wait(_fd: RawFd, set: RawFd, seconds: i64) -> bool {
        let mut event = epoll_event { events: 0, u64: 0 };
        let given = [set as usize, &raw mut event as usize, 1, seconds as usize * 1000, 0, 0];
        by_number(libc::SYS_epoll_wait, given) == 1
    }
}
