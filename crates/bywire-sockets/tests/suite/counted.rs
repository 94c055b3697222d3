//! Sleepers and holders of sets are counted correctly: counts of killed processes are taken back, and no others.
//!
//! Peers stop ringing for killed sleepers, in a set or in `poll`. Sets of killed processes free their records. A failed
//! fork adds no holder. A child with its own page withdraws no announcement of its parent. A sleeper that jumps out of
//! `epoll_wait` is uncounted.

use std::os::fd::RawFd;

use crate::test_service::calls::{self, add, events_in, set_limit, signal};
use crate::test_service::{self, Running, TestService, child, end_of, is_driver};

/// Two carried non-blocking ends.
fn pair() -> (RawFd, RawFd) {
    let ends = test_service::pair();
    test_service::carry(ends);
    ends
}

fn kill(child: libc::pid_t) {
    signal(child as u32, libc::SIGKILL);
    end_of(child);
}

fn watch(set: RawFd, fd: RawFd) {
    add(set, fd, libc::EPOLLIN, 7);
}

/// Waits until a thread of a process is in `epoll_wait` or in `ppoll`.
fn await_sleep(process: &str) {
    calls::await_sleep(process, &["232 ", "271 ", "7 "]);
}

/// How often the doorbell of this program was rung. Nobody ever reads it.
fn rings() -> u64 {
    let numbers = std::fs::read_dir("/proc/self/fdinfo").expect("descriptors");
    let counts = numbers.filter_map(|entry| {
        let text = std::fs::read_to_string(entry.ok()?.path()).ok()?;
        let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:"))?.trim().to_owned();
        u64::from_str_radix(&count, 16).ok()
    });
    counts.sum()
}

/// Handles one event of a set. Returns how often the doorbell was rung meanwhile, although nobody slept.
fn rings_in_a_round(set: RawFd, (client, server): (RawFd, RawFd)) -> u64 {
    // A sleep that ends by its timeout notices killed sleepers.
    assert_eq!(events_in(set, 20), 0);
    let before = rings();
    assert_eq!(test_service::send(client, b"!", 0), 1);
    assert_eq!(events_in(set, 0), 1);
    assert_eq!(test_service::receive(server, 1, 0).0, 1);
    rings() - before
}

fn is_counted_out(set: RawFd, ends: (RawFd, RawFd)) {
    test_service::eventually("nobody rings for a killed process", || {
        (0..3).all(|_| rings_in_a_round(set, ends) == 0)
    });
}

#[test]
fn peers_stop_ringing_for_killed_sleepers() {
    if !is_driver() {
        return;
    }
    let (ends, set) = (pair(), test_service::epoll());
    watch(set, ends.1);
    is_counted_out(set, ends);
    for timeout in 0..3 {
        let asleep = child(|| {
            if timeout == 0 { i32::from(test_service::poll_for(ends.1, -1)) } else { events_in(set, -1) }
        });
        await_sleep(&asleep.to_string());
        kill(asleep);
        is_counted_out(set, ends);
    }
    // Nothing is carried there when the sleeper comes. Something is carried before it is killed, or after that.
    for is_late in [false, true] {
        let (ends, set) = (pair(), test_service::epoll());
        let asleep = child(|| events_in(set, -1));
        await_sleep(&asleep.to_string());
        if is_late {
            kill(asleep);
        }
        watch(set, ends.1);
        if !is_late {
            await_sleep(&asleep.to_string());
            kill(asleep);
        }
        is_counted_out(set, ends);
    }
}

/// More than can be listed as holders of a set.
const CHILDREN: usize = 60;
/// More than the records that a family of processes has.
const SETS: usize = 1100;

#[test]
fn epoll_sets_of_killed_processes_free_their_records() {
    if !is_driver() {
        return;
    }
    // The library's own descriptors are near the limit, and each fork walks that far.
    set_limit(libc::RLIMIT_NOFILE, 512);
    for _ in 0..SETS / 100 {
        let sets: Vec<RawFd> = (0..100).map(|_| test_service::epoll()).collect();
        let children: Vec<_> = (0..CHILDREN)
            .map(|_| {
                child(|| {
                    // SAFETY: no pointers.
                    unsafe { libc::pause() }
                })
            })
            .collect();
        children.into_iter().for_each(kill);
        sets.into_iter().for_each(test_service::close);
    }
    let (set, ends) = (test_service::epoll(), test_service::pair());
    watch(set, ends.1);
    // It stays in the kernel if there was no record for its set.
    test_service::carry(ends);
}

#[test]
fn a_child_with_its_own_page_ends_its_announcement_in_the_page_where_it_was_made() {
    if !is_driver() {
        return;
    }
    let set = test_service::epoll();
    // Nothing is carried yet, so the child has its own page.
    let other = child(|| {
        let (client, server) = pair();
        // Until its parent adds something.
        events_in(set, 3000);
        let own = test_service::epoll();
        watch(own, server);
        events_in(own, 0);
        let sleeper = std::thread::spawn(move || events_in(own, -1));
        await_sleep("self");
        assert_eq!(test_service::send(client, b"!", 0), 1);
        test_service::eventually("it is woken", || sleeper.is_finished());
        sleeper.join().expect("it is over") - 1
    });
    await_sleep(&other.to_string());
    let (_client, server) = pair();
    watch(set, server);
    assert_eq!(end_of(other), 0);
}

/// Makes every fork fail from here on.
fn forks_fail() {
    if test_service::is_root() {
        // The first process of a new PID namespace ends, and none can follow it.
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
        end_of(child(|| 0));
    } else {
        set_limit(libc::RLIMIT_NPROC, 0);
    }
}

/// Calls each of the fork functions.
fn fail_to_fork() {
    // SAFETY: no pointers that matter; nothing is done in a child, as there is none.
    unsafe {
        assert_eq!(libc::fork(), -1);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(libc::syscall(libc::SYS_fork), -1);
        assert_eq!(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0), -1);
        assert_eq!(libc::daemon(1, 1), -1);
    }
}

#[test]
fn a_failed_fork_adds_no_holder_of_open_connections() {
    if test_service::role().is_some() {
        return open_when_a_fork_fails();
    }
    let pairing = TestService::new();
    let mut driver = Running::start(&mut pairing.program("driver", Some(1)));
    assert_eq!(driver.hear(), "closed");
    test_service::eventually("none counts any more", || pairing.status().carried == 0);
    drop(driver.child.stdin.take());
    assert!(driver.end().success());
}

fn open_when_a_fork_fails() {
    forks_fail();
    for _ in 0..SETS / 100 {
        let sets: Vec<RawFd> = (0..100).map(|_| test_service::epoll()).collect();
        fail_to_fork();
        sets.into_iter().for_each(test_service::close);
    }
    let (set, ends) = (test_service::epoll(), test_service::pair());
    watch(set, ends.1);
    test_service::carry(ends);
    fail_to_fork();
    [ends.0, ends.1].into_iter().for_each(test_service::close);
    test_service::say("closed");
    let _end = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

#[test]
fn a_thread_that_jumps_out_of_an_epoll_wait_is_uncounted_as_a_sleeper() {
    if test_service::role().is_some() {
        // It has one thread, which gets all signals.
        return assert_eq!(end_of(child(jump_out_of_waits)), 0);
    }
    let pairing = TestService::new();
    let Some(leaving) = pairing.compiled("leaving.c", "leaving.so", &["-shared", "-fPIC"]) else { return };
    let mut command = pairing.program("driver", Some(1));
    command.env("LD_PRELOAD", format!("{} {}", TestService::library().display(), leaving.display()));
    assert!(Running::start(&mut command).end().success());
}

fn jump_out_of_waits() -> i32 {
    // SAFETY: the function of this name in leaving.c has this type.
    let leave_wait: extern "C" fn(i32) -> i32 = unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"leave_wait".as_ptr());
        assert!(!address.is_null(), "it is preloaded");
        std::mem::transmute(address)
    };
    let (ends, carried, quiet) = (pair(), test_service::epoll(), test_service::epoll());
    watch(carried, ends.1);
    for set in [carried, quiet, carried, quiet] {
        assert_eq!(leave_wait(set), 1);
    }
    // Sleepers that were not announced are announced now, if they are still counted.
    let others = pair();
    watch(quiet, others.1);
    let rung = |set, ends| (0..3).map(|_| rings_in_a_round(set, ends)).sum::<u64>();
    i32::from(rung(carried, ends) + rung(quiet, others) != 0)
}
