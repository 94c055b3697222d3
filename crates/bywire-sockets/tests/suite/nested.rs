//! Epoll sets within epoll sets report what the kernel's report: level- and edge-triggered, up to five deep, whoever
//! reads the bytes and whichever set is waited for, in random order. Sleepers in each of them are woken, and sleep on
//! without an event; also in a forked child.

use std::fmt::Write as _;
use std::os::fd::RawFd;
use std::thread::JoinHandle;

use bywire_testing::Tier;

use crate::test_service;
use crate::test_service::calls;
use crate::test_service::same::{pair, same, tell};

/// How long nothing comes. An event that is reported wrongly is there at once.
fn silence_ms() -> i32 {
    Tier::current().pick([10, 10, 50])
}

/// How long a thread sleeps that must not spin, and the processor time that one uses which does, even on a busy machine.
const REST_MS: i32 = 300;
const SPUN_MS: i64 = 30;

/// The events that a set has, by the data of their registrations, smallest first.
fn events(set: RawFd, room: usize, timeout_ms: i32) -> (i64, Vec<u64>) {
    let mut found = [libc::epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: there is room for that many.
    let count = unsafe { libc::epoll_wait(set, found.as_mut_ptr(), room as i32, timeout_ms) };
    let mut data: Vec<u64> = found.iter().take(count.max(0) as usize).map(|event| event.u64).collect();
    data.sort_unstable();
    (count.into(), data)
}

fn register(set: RawFd, operation: i32, fd: RawFd, mode: i32, data: u64) -> i64 {
    calls::register(set, operation, fd, libc::EPOLLIN | mode, data)
}

/// Sets of which each is within the next one.
struct Chain {
    pairs: Vec<(RawFd, RawFd)>,
    /// From the innermost set to the outermost one.
    sets: Vec<RawFd>,
    /// The mode of each set within the next one.
    modes: Vec<i32>,
}

impl Chain {
    fn new(text: &mut String, pairs: Vec<(RawFd, RawFd)>, random: &mut Random) -> Self {
        let depth = 2 + random.below(3);
        let mut mode = || if random.below(2) == 0 { 0 } else { libc::EPOLLET };
        let sets: Vec<RawFd> = (0..depth).map(|_| test_service::epoll()).collect();
        let modes: Vec<i32> = (1..depth).map(|_| mode()).collect();
        for (number, (_, server)) in pairs.iter().enumerate() {
            let status = register(sets[0], libc::EPOLL_CTL_ADD, *server, mode(), number as u64);
            tell(text, "add a connection", status);
        }
        for (at, mode) in modes.iter().enumerate() {
            tell(text, "add a set", register(sets[at + 1], libc::EPOLL_CTL_ADD, sets[at], *mode, at as u64));
        }
        Self { pairs, sets, modes }
    }

    fn step(&self, text: &mut String, random: &mut Random) {
        let (client, server) = self.pairs[random.below(self.pairs.len())];
        let level = random.below(self.sets.len());
        let set = self.sets[level];
        match random.below(9) {
            0 | 1 => {
                tell(text, "send", test_service::send(client, b"abc", 0));
                assert!(test_service::poll_for(server, 20_000), "bytes arrive");
            }
            2 => tell(text, "receive", test_service::receive(server, 64, 3).0),
            3 => tell(text, "receive one", test_service::receive(server, 1, 3).0),
            // With room for one event, the order of several would decide.
            4 | 5 => {
                let room = if self.pairs.len() == 1 { 1 + random.below(3) } else { 16 };
                let (count, data) = events(set, room, 0);
                tell(text, &format!("wait {level} {data:?}"), count);
            }
            6 => tell(text, &format!("poll {level}"), test_service::poll(set, libc::POLLIN).0),
            7 => tell(text, &format!("select {level}"), test_service::select(set).0),
            _ if level > 0 => {
                let (inner, mode) = (self.sets[level - 1], self.modes[level - 1]);
                let status = match random.below(2) {
                    0 => register(set, libc::EPOLL_CTL_MOD, inner, mode, level as u64 - 1),
                    _ => {
                        register(set, libc::EPOLL_CTL_DEL, inner, mode, 0);
                        register(set, libc::EPOLL_CTL_ADD, inner, mode, level as u64 - 1)
                    }
                };
                tell(text, &format!("register {level}"), status);
            }
            _ => {}
        }
    }

    fn close(self) {
        self.sets.into_iter().for_each(test_service::close);
        for (client, server) in self.pairs {
            test_service::close(client);
            test_service::close(server);
        }
    }
}

/// A generator of numbers: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

#[test]
fn sets_within_sets_report_what_the_kernels_report() {
    same(|text| {
        for seed in 1..=60u64 {
            writeln!(text, "seed {seed}").expect("a string");
            let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let pairs = (0..1 + seed % 3).map(|_| pair()).collect();
            let chain = Chain::new(text, pairs, &mut random);
            for _ in 0..80 {
                chain.step(text, &mut random);
            }
            chain.close();
        }
    });
}

/// Sets of this number, each within the next one.
fn nested(text: &mut String, depth: usize, mode: i32) -> Vec<RawFd> {
    let sets: Vec<RawFd> = (0..depth).map(|_| test_service::epoll()).collect();
    for within in sets.windows(2) {
        tell(text, "add a set", register(within[1], libc::EPOLL_CTL_ADD, within[0], mode, 7));
    }
    sets
}

#[test]
fn an_outer_set_is_not_ready_for_bytes_that_were_read() {
    same(|text| {
        for depth in 2..=5 {
            for mode in [0, libc::EPOLLET] {
                let (client, server) = pair();
                let sets = nested(text, depth, mode);
                tell(text, "add", register(sets[0], libc::EPOLL_CTL_ADD, server, mode, 1));
                for _ in 0..3 {
                    tell(text, "send", test_service::send(client, b"words", 0));
                    for set in sets.iter().rev() {
                        tell(text, &format!("something {:?}", events(*set, 4, 0).1), 0);
                    }
                    tell(text, "receive", test_service::receive(server, 5, 0).0);
                    for set in sets.iter().rev() {
                        tell(text, "nothing", events(*set, 4, silence_ms()).0);
                    }
                    tell(text, "send", test_service::send(client, b"words", 0));
                    tell(text, "receive", test_service::receive(server, 5, 0).0);
                    tell(text, "nothing", events(sets[depth - 1], 1, silence_ms()).0);
                    tell(text, "poll", test_service::poll(sets[depth - 1], libc::POLLIN).0);
                }
            }
        }
    });
}

/// A thread that waits for one event of a set.
struct Sleeper(JoinHandle<(i64, Vec<u64>)>);

impl Sleeper {
    /// Starts it beside `others`, and waits until it sleeps.
    fn start(set: RawFd, others: usize) -> Self {
        let thread = std::thread::spawn(move || events(set, 4, 20_000));
        test_service::eventually("it sleeps", || calls::threads_in("self", &["232 "]) > others);
        Self(thread)
    }

    fn is_undisturbed(&self) -> bool {
        std::thread::sleep(std::time::Duration::from_millis(silence_ms() as u64));
        !self.0.is_finished()
    }

    fn told(self, text: &mut String, what: &str) {
        let (count, data) = self.0.join().expect("it waits");
        tell(text, &format!("{what} {data:?}"), count);
    }
}

#[test]
fn sleepers_in_inner_and_outer_sets_are_woken() {
    same(|text| {
        for depth in 2..=4 {
            for mode in [0, libc::EPOLLET] {
                let ((client, server), (_other, idle)) = (pair(), pair());
                let sets = nested(text, depth, mode);
                let (inner, outer) = (sets[0], sets[depth - 1]);
                tell(text, "add", register(inner, libc::EPOLL_CTL_ADD, server, mode, 1));
                for _ in 0..2 {
                    tell(text, "nothing", events(outer, 4, 0).0);
                    let sleeper = Sleeper::start(outer, 0);
                    tell(text, "add", register(inner, libc::EPOLL_CTL_ADD, idle, mode, 2));
                    tell(text, "it sleeps on", sleeper.is_undisturbed().into());
                    tell(text, "send", test_service::send(client, b"words", 0));
                    sleeper.told(text, "the outer one");
                    tell(text, &format!("the inner one {:?}", events(inner, 4, 0).1), 0);
                    tell(text, "receive", test_service::receive(server, 5, 0).0);
                    if mode == 0 {
                        // Two sleep, and both are woken. Edge-triggered, the inner one might leave nothing to the other.
                        let inner_sleeper = Sleeper::start(inner, 0);
                        let sleeper = Sleeper::start(outer, 1);
                        tell(text, "send", test_service::send(client, b"words", 0));
                        inner_sleeper.told(text, "asleep in the inner one");
                        sleeper.told(text, "asleep in the outer one");
                        tell(text, "receive", test_service::receive(server, 5, 0).0);
                        tell(text, "nothing", events(outer, 4, silence_ms()).0);
                    }
                    // The inner set by itself.
                    for set in &sets[1..] {
                        tell(text, "remove", register(*set, libc::EPOLL_CTL_DEL, sets[0], 0, 0));
                    }
                    let sleeper = Sleeper::start(inner, 0);
                    tell(text, "send", test_service::send(client, b"words", 0));
                    sleeper.told(text, "asleep in a set that is in no other");
                    tell(text, "receive", test_service::receive(server, 5, 0).0);
                    tell(text, "nothing", events(outer, 4, 0).0);
                    tell(text, "add", register(sets[1], libc::EPOLL_CTL_ADD, sets[0], mode, 7));
                    tell(text, "remove", register(inner, libc::EPOLL_CTL_DEL, idle, 0, 0));
                }
            }
        }
    });
}

fn busy_for(text: &mut String, what: &str, work: impl FnOnce()) {
    let before = calls::used_ms();
    work();
    tell(text, what, i64::from(calls::used_ms() - before > SPUN_MS));
}

#[test]
fn a_wait_for_a_set_that_was_ready_sleeps() {
    same(|text| {
        let (client, server) = pair();
        let sets = nested(text, 3, 0);
        tell(text, "add", register(sets[0], libc::EPOLL_CTL_ADD, server, 0, 1));
        for set in sets.iter().rev() {
            tell(text, "send", test_service::send(client, b"words", 0));
            tell(text, "it has something", events(sets[2], 4, 20_000).0);
            tell(text, "receive", test_service::receive(server, 5, 0).0);
            busy_for(text, "it spins", || tell(&mut String::new(), "", events(*set, 1, REST_MS).0));
        }
        // A connection that is gone leaves nothing in the set.
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it has something", events(sets[2], 4, 20_000).0);
        test_service::close(server);
        for set in &sets {
            busy_for(text, "it spins", || tell(&mut String::new(), "", events(*set, 1, REST_MS).0));
            tell(text, "poll", test_service::poll(*set, libc::POLLIN).0);
        }
    });
}

#[test]
fn a_forked_child_uses_sets_within_sets() {
    same(|text| {
        let (client, server) = pair();
        let sets = nested(text, 2, 0);
        tell(text, "add", register(sets[0], libc::EPOLL_CTL_ADD, server, 0, 1));
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it has something", events(sets[1], 4, 20_000).0);
        // A child has copies of everything, and closes nothing before its end.
        let in_child = test_service::in_child(|| {
            let ready = events(sets[1], 4, 20_000).0 == 1 && events(sets[0], 4, 20_000).0 == 1;
            let (received, _) = test_service::receive(server, 5, 0);
            let mut spins = String::new();
            busy_for(&mut spins, "it spins", || assert_eq!(events(sets[0], 1, REST_MS).0, 0));
            ready && received == 5 && spins.contains("= 0") && events(sets[0], 4, 0).0 == 0
        });
        tell(text, "the child", in_child);
        tell(text, "nothing in the inner one", events(sets[0], 4, 0).0);
        tell(text, "send", test_service::send(client, b"words", 0));
        tell(text, "it has something", events(sets[1], 4, 20_000).0);
        tell(text, "it has something", events(sets[0], 4, 20_000).0);
        tell(text, "receive", test_service::receive(server, 5, 0).0);
        tell(text, "nothing", events(sets[1], 4, silence_ms()).0);
    });
}
