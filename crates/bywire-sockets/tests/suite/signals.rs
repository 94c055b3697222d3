//! Signal handlers use the connection that they interrupt, and split no call's bytes. A handler that runs as a receive
//! falls asleep ends it. The next receive gets the bytes of one that was left by a jump.

use std::os::fd::RawFd;
use std::process::Stdio;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::test_service::{self, Running, TestService, calls};

const ROUNDS: usize = 20_000;
const BLOCK: [u8; 100] = [b'm'; 100];
const EVERY_NS: i64 = 30_000;

static CLIENT: AtomicI32 = AtomicI32::new(-1);
static SENT: AtomicU64 = AtomicU64::new(0);

#[test]
fn a_handler_sends_over_the_connection_that_it_interrupts() {
    if test_service::role().is_some() {
        return interrupted();
    }
    let pairing = TestService::new();
    pairing.drive(1);
    assert_eq!(pairing.status().carried_ever, 1);
}

#[test]
fn the_receive_after_a_jump_gets_the_bytes() {
    let Some((pairing, program)) = TestService::with_program("jumps.c") else { return };
    let mut running = Running::start(pairing.command(program, Some(8)).stdin(Stdio::piped()));
    // Both before it was carried and afterwards.
    test_service::eventually("it is carried", || pairing.status().carried_ever == 1);
    drop(running.child.stdin.take());
    assert!(running.end().success());
}

#[test]
fn a_signal_in_the_last_moment_before_a_sleep_ends_the_receive() {
    if test_service::role().is_some() {
        return interrupted_before_it_sleeps();
    }
    let pairing = TestService::new();
    let Some(interrupting) = pairing.compiled("interrupting.c", "interrupting.so", &["-shared", "-fPIC"])
    else {
        return;
    };
    let mut command = pairing.program("driver", Some(1));
    command.env("LD_PRELOAD", format!("{} {}", TestService::library().display(), interrupting.display()));
    assert!(Running::start(&mut command).end().success());
    assert_eq!(pairing.status().carried_ever, 1);
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_signal: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn interrupted_before_it_sleeps() {
    let (client, server) = test_service::same::pair();
    calls::handle(libc::SIGUSR1, count, 0);
    // Otherwise the receive would never end.
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(20));
        test_service::send(client, b"late", 0);
    });
    let (received, _) = test_service::receive(server, 4, 0);
    assert_eq!((received, test_service::errno()), (-1, libc::EINTR));
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
}

extern "C" fn handle(_signal: i32) {
    let number = test_service::errno();
    // SAFETY: a live byte; the error number of the interrupted code is restored.
    unsafe {
        if libc::send(CLIENT.load(Ordering::Relaxed), b"s".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) == 1 {
            SENT.fetch_add(1, Ordering::Relaxed);
        }
        *libc::__errno_location() = number;
    }
}

fn interrupted() {
    let (client, server) = test_service::pair();
    CLIENT.store(client, Ordering::Relaxed);
    // Waited for through the library: only then do non-blocking sockets leave the kernel.
    for end in [client, server] {
        test_service::poll(end, libc::POLLIN);
    }
    let handler: extern "C" fn(i32) = handle;
    let every = libc::timespec { tv_sec: 0, tv_nsec: EVERY_NS };
    let pace = libc::itimerspec { it_interval: every, it_value: every };
    let mut timer: libc::timer_t = std::ptr::null_mut();
    calls::handle(libc::SIGALRM, handler, 0);
    // SAFETY: live structures; noughts are a valid action, and a valid event.
    unsafe {
        let mut told: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGALRM, std::ptr::null(), &raw mut told), 0);
        assert_eq!((told.sa_sigaction, told.sa_flags), (handler as usize, 0), "the program's own is told");
        // To this thread only: no handler runs once there is no timer.
        let mut event: libc::sigevent = std::mem::zeroed();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD_ID, libc::SIGALRM);
        event.sigev_notify_thread_id = libc::gettid();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
        assert_eq!(libc::timer_settime(timer, 0, &raw const pace, std::ptr::null_mut()), 0);
    }
    let mut bytes = Vec::new();
    for round in 0..ROUNDS {
        while test_service::send(client, &BLOCK, 0) < 0 {
            assert!(matches!(test_service::errno(), libc::EAGAIN | libc::EINTR));
            take(server, &mut bytes);
        }
        if round % 16 == 0 {
            take(server, &mut bytes);
        }
        if round % 500 == 0 {
            // SAFETY: this very process.
            unsafe { libc::raise(libc::SIGALRM) };
        }
    }
    // SAFETY: the timer of above.
    assert_eq!(unsafe { libc::timer_delete(timer) }, 0);
    let expected = ROUNDS * BLOCK.len() + SENT.load(Ordering::Relaxed) as usize;
    test_service::eventually("all is received", || {
        take(server, &mut bytes);
        bytes.len() >= expected
    });
    println!("{} signals", SENT.load(Ordering::Relaxed));
    assert_eq!(bytes.len(), expected);
    let mut rest = &bytes[..];
    while let Some(first) = rest.first() {
        // The bytes of one call are contiguous, whatever comes between calls.
        let length = if *first == b's' { 1 } else { BLOCK.len() };
        assert!(rest[..length].iter().all(|byte| byte == first), "a block is torn");
        rest = &rest[length..];
    }
    // Usually it has been carried for long.
    test_service::carry((client, server));
}

fn take(server: RawFd, bytes: &mut Vec<u8>) {
    loop {
        let (received, found) = test_service::receive(server, 50_000, 0);
        if received <= 0 {
            return;
        }
        bytes.extend(found);
    }
}
