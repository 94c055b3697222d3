//! Waiting: no port sleeps while there is work, none works while it sleeps, and timeouts are kept.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bywire::{Confirm, Event, Key, Peer, Port, PortOptions, Priority, Rights, SendError};
use rustix::event::epoll;

use crate::ports::{MINUTE, PortDirectory, address, name, next, post_needed, until};

const ROUNDS: u32 = 3000;

fn sleepy(place: &PortDirectory) -> PortOptions {
    // Without spinning, every wait arms and sleeps.
    PortOptions { spin: Duration::ZERO, ..place.options() }
}

fn message(port: &mut Port) -> bywire::Message {
    loop {
        match next(port) {
            Event::Message(message) => return message,
            Event::Room { .. } | Event::Sent { .. } => {}
            other => assert!(post_needed(port, &other), "{other:?}"),
        }
    }
}

fn priority(round: u32) -> Priority {
    if round.is_multiple_of(3) { Priority::High } else { Priority::Low }
}

#[test]
fn a_sleeping_receiver_is_woken_by_every_message_of_either_lane() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&sleepy(&place));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                assert_eq!(&message(&mut b).payload[..], round.to_ne_bytes());
                b.send(to_a, priority(round), &round.to_ne_bytes()).expect("room");
            }
            b
        });
        for round in 0..ROUNDS {
            a.send(to_b, priority(round + 1), &round.to_ne_bytes()).expect("room");
            assert_eq!(&message(&mut a).payload[..], round.to_ne_bytes());
        }
    });
    assert!(a.statistics().sleeps > 0, "nobody slept: nothing was proved");
}

#[test]
fn a_sleeping_sender_is_woken_by_room_and_by_delivery() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = place.pair(&sleepy(&place));
    let rounds = ROUNDS / 10;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                let message = message(&mut b);
                assert_eq!(message.payload.len(), 200_000 + round as usize);
                b.recycle(message.payload);
            }
        });
        for round in 0..rounds {
            // Three times as much as the ring holds.
            let bytes = vec![1; 200_000 + round as usize];
            a.send_buffer(to_b, priority(round), bytes, Confirm::Delivered).expect("token");
            let event = next(&mut a);
            assert!(matches!(event, Event::Sent { result: Ok(()), .. }), "{event:?} instead of a completion");
        }
    });
    assert!(a.statistics().sleeps > 0, "nobody slept: nothing was proved");
}

#[test]
fn a_full_lane_announces_room() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = place.pair(&sleepy(&place));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..20 * ROUNDS {
                assert_eq!(&message(&mut b).payload[..], round.to_ne_bytes());
            }
        });
        for round in 0..20 * ROUNDS {
            while let Err(error) = a.send(to_b, Priority::Low, &round.to_ne_bytes()) {
                assert_eq!(error, SendError::Full);
                match next(&mut a) {
                    Event::Room { peer, priority: Priority::Low } => assert_eq!(peer, to_b),
                    other => panic!("{other:?} instead of room"),
                }
            }
        }
    });
}

/// A thread without access to the port drops a block while the port sleeps.
#[test]
fn a_sleeping_borrower_is_woken_to_give_a_block_back() {
    let place = PortDirectory::new();
    let (mut lender, to_borrower, mut borrower, _) = place.pair(&sleepy(&place));
    let heap = lender.heap(to_borrower, 64, 1).expect("heap");
    let (sender, receiver) = mpsc::channel();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for lent in receiver {
                drop(lent);
            }
        });
        scope.spawn(|| {
            let sender = sender;
            while !is_over.load(Ordering::Relaxed) {
                match next(&mut borrower) {
                    Event::Lent(lent) => sender.send(lent).expect("the other thread"),
                    Event::Message(_) => return,
                    other => panic!("{other:?}"),
                }
            }
        });
        for round in 0..ROUNDS {
            // The lender gets no event: it waits until the borrower has woken.
            let mut block = until(|| {
                assert!(lender.poll().is_none());
                heap.block()
            });
            block[..4].copy_from_slice(&round.to_ne_bytes());
            lender.send_lent(priority(round), block, 4).expect("room");
        }
        until(|| lender.poll().is_none() && heap.block().is_some());
        is_over.store(true, Ordering::Relaxed);
        lender.send(to_borrower, Priority::Low, b"over").expect("room");
    });
}

#[test]
fn an_idle_port_uses_no_processor_time() {
    let place = PortDirectory::new();
    let (mut a, _, _b, _) = place.pair(&place.options());
    while a.wait(Some(Duration::ZERO)).expect("wait").is_some() {}
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (before, sleeps) = (used(), a.statistics().sleeps);
    let long = Duration::from_millis(500);
    let start = Instant::now();
    assert!(a.wait(Some(long)).expect("wait").is_none());
    assert!(start.elapsed() >= long, "the timeout came early");
    let (after, sleeps) = (used(), a.statistics().sleeps - sleeps);
    let cost_ns = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
    // One spin and one system call: less than a twentieth of the time on any machine.
    assert!(cost_ns < 25_000_000, "{cost_ns} ns of work in an idle wait");
    assert!(sleeps <= 2, "slept {sleeps} times");
}

#[test]
fn a_zero_wait_returns_at_once_and_a_short_one_not_early() {
    let place = PortDirectory::new();
    let (mut a, _, _b, _) = place.pair(&place.options());
    assert!(a.wait(Some(Duration::ZERO)).expect("wait").is_none());
    for timeout in [Duration::from_nanos(1), Duration::from_micros(300), Duration::from_millis(3)] {
        let start = Instant::now();
        assert!(a.wait(Some(timeout)).expect("wait").is_none());
        assert!(start.elapsed() >= timeout);
    }
}

/// Work without events must not keep a wait from its end.
#[test]
fn a_wait_ends_in_time_while_a_peer_keeps_the_port_busy() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = place.pair(&place.options());
    let key = b.register(vec![0; 64], Rights { read: true, write: true }).expect("region");
    let (is_over, done) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&mut a, to_b, key, (&is_over, &done)));
        // Goes on until the flood has begun, however late its thread starts.
        let mut waits = 0;
        until(|| {
            assert!(b.wait(Some(Duration::from_millis(5))).expect("wait").is_none());
            waits += 1;
            waits >= 20 && done.load(Ordering::Relaxed) > 100
        });
        // The waits ended although the flood had not.
        assert!(!flood.is_finished(), "the flood dried up: nothing was proved");
        is_over.store(true, Ordering::Relaxed);
        until(|| {
            b.poll();
            flood.is_finished()
        });
        flood.join().expect("the flood");
    });
}

/// Sends puts without notes, one after the other, until told to stop. Counts the completed ones.
fn flood(port: &mut Port, peer: Peer, key: Key, (is_over, done): (&AtomicBool, &AtomicU32)) {
    let limit = Instant::now() + MINUTE;
    while !is_over.load(Ordering::Relaxed) && Instant::now() < limit {
        let _ = port.put(peer, Priority::Low, (key, 0), vec![1; 64], None);
        let is_done = matches!(port.poll(), Some(Event::Put { result: Ok(()), .. }));
        done.fetch_add(u32::from(is_done), Ordering::Relaxed);
    }
}

/// An epoll instance that watches `file`, level-triggered or edge-triggered.
fn watch(file: impl AsFd, by_edge: bool) -> OwnedFd {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let edge = if by_edge { epoll::EventFlags::ET } else { epoll::EventFlags::empty() };
    epoll::add(&poller, &file, epoll::EventData::new_u64(1), epoll::EventFlags::IN | edge).expect("add");
    poller
}

/// Sleeps in an epoll instance of its own, as an async runtime does: polls until there is nothing more, arms, waits.
fn next_by_descriptor(port: &mut Port, poller: &OwnedFd, sleeps: &mut u32) -> Event {
    loop {
        if let Some(event) = port.poll() {
            return event;
        }
        if port.arm() {
            *sleeps += 1;
            let mut events = Vec::with_capacity(1);
            let minute = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            let count = epoll::wait(poller, rustix::buffer::spare_capacity(&mut events), Some(&minute));
            assert_eq!(count, Ok(1), "asleep on an event");
        }
    }
}

/// Level-triggered and edge-triggered, directly and through a second instance.
fn watchers(port: &Port) -> Vec<(OwnedFd, OwnedFd)> {
    let pair = |(by_edge, is_nested)| {
        let direct = watch(port, by_edge);
        let outer = watch(&direct, by_edge);
        if is_nested { (outer, direct) } else { (direct, outer) }
    };
    [(false, false), (true, false), (false, true), (true, true)].map(pair).into()
}

#[test]
fn a_program_that_watches_the_descriptor_misses_no_message_and_does_not_spin() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&sleepy(&place));
    for (poller, _keep) in watchers(&b) {
        let mut sleeps = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS / 3 {
                    a.send(to_b, priority(round), &round.to_ne_bytes()).expect("room");
                    assert_eq!(&message(&mut a).payload[..], round.to_ne_bytes());
                }
            });
            for round in 0..ROUNDS / 3 {
                match next_by_descriptor(&mut b, &poller, &mut sleeps) {
                    Event::Message(message) => assert_eq!(&message.payload[..], round.to_ne_bytes()),
                    other => panic!("{other:?}"),
                }
                b.send(to_a, priority(round), &round.to_ne_bytes()).expect("room");
            }
        });
        // A ring may still be under way when its message has been found, which costs at most one more sleep.
        assert!(sleeps <= 2 * ROUNDS / 3 + 2, "{sleeps} sleeps for {} messages", ROUNDS / 3);
    }
}

#[test]
fn a_program_that_watches_the_descriptor_is_told_of_new_and_ended_peers() {
    let place = PortDirectory::new();
    let mut sleeper = place.open(PortOptions { name: Some(name("sleeper")), ..sleepy(&place) });
    for (poller, _keep) in watchers(&sleeper) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS / 30 {
                    let mut late = place.open(place.options());
                    let peer = late.connect(&address("sleeper"), MINUTE).expect("it answers");
                    late.send(peer, Priority::High, b"late").expect("room");
                }
            });
            // The next port may connect before the end of the last one is reported.
            let (mut came, mut spoke, mut left) = (0, 0, 0);
            while left < ROUNDS / 30 {
                match next_by_descriptor(&mut sleeper, &poller, &mut 0) {
                    Event::Connected(_) => came += 1,
                    Event::Message(_) => spoke += 1,
                    Event::Disconnected { .. } => left += 1,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((came, spoke), (left, left));
        });
    }
}

/// A port that is polled seldom, as by a program that draws pictures, answers at its next poll.
#[test]
fn a_rarely_polled_port_checks_its_sockets_each_time() {
    let place = PortDirectory::new();
    let (mut a, mut b) = (place.open(place.options()), place.open(place.options()));
    let peer = a.connect_start(&bywire::Address::local(b.name().clone())).expect("connect");
    let pace = Duration::from_millis(2);
    let mut frames = 0;
    let connected = loop {
        let start = Instant::now();
        while start.elapsed() < pace {
            std::hint::spin_loop();
        }
        frames += 1;
        b.poll();
        match a.poll() {
            Some(Event::Connected(connected)) => break connected,
            Some(other) => panic!("{other:?}"),
            None => assert!(frames < 10, "not connected after {frames} frames"),
        }
    };
    assert_eq!(connected, peer);
    drop(b);
}
