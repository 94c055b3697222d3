//! Random calls give the same results on carried sockets as on the kernel's, with a cut-over in either direction at any
//! call: every byte, return value, error and readiness is equal.
//!
//! Full rings, bytes owed to the kernel, edge-triggered sets, `exec` and `posix_spawn` are counted. Compared too are
//! the bytes left behind a message (`TCP_INQ`), in the kernel and in memory, and `SO_SNDBUF`, `SO_RCVBUF` or both at
//! both ends of some connections. Random: `BYWIRE_SEEDS`, 500 by `./x test all` and 20,000 in a soak, from
//! `BYWIRE_SEED` on.
//!
//! One program holds both ends and records the result of each call. It runs without the library, and then with it. For
//! every seed the connection leaves the kernel after a different number of calls, and returns before others.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use bywire_testing::{number, repetitions};

use crate::relayed::{self, Engine};
use crate::situations::{self, PIECE_BYTES, Program, Reached, Start, pattern};
use crate::test_service::{self, Domain, TestService, errno, is_unix};

/// Seeds that one process runs, one connection after the other.
const BATCH: u64 = 10;
/// The number of times that so many seeds must reach each situation: a third of what they reach if the service answers at
/// once.
const REACHED_MIN: (u64, Reached) = (1500, Reached { full: 40, owed: 15, edge: 60, exec: 20, spawn: 20 });

#[test]
fn carried_sockets_behave_like_kernel_sockets() {
    compare_seeds("carried_sockets_behave_like_kernel_sockets", Domain::Tcp);
}

#[test]
fn carried_unix_sockets_behave_like_kernel_sockets() {
    compare_seeds("carried_unix_sockets_behave_like_kernel_sockets", Domain::Unix);
}

#[test]
fn relayed_sockets_behave_like_kernel_sockets() {
    let test = "relayed_sockets_behave_like_kernel_sockets";
    compare_seeds_of(test, TestService::new, Some(RELAYED_MIN));
}

fn compare_seeds(test: &str, domain: Domain) {
    compare_seeds_of(test, || TestService::with_domain(domain), None);
}

fn compare_seeds_of(test: &str, pairing: impl FnOnce() -> TestService, relayed_min: Option<(u64, Reached)>) {
    if let Ok(seeds) = std::env::var("BYWIRE_TEST_SEED") {
        let (first, end) = seeds.split_once(':').expect("a range");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        for seed in number(first)..number(end) {
            let (transcript, reached) = Driver::new(seed).run();
            // Flushed at once, so that it is not in a buffer that a child might write again.
            println!("seed {seed} = \n{transcript}{}", reached.line());
            std::io::stdout().flush().expect("written");
        }
        return;
    }
    let reached_min = relayed_min.unwrap_or(REACHED_MIN);
    let pairing = pairing();
    let _engine = relayed_min.map(|_| Engine::start(&pairing));
    let (first, count) = (number("BYWIRE_SEED", 0), repetitions("BYWIRE_SEEDS", [150, 500, 20_000]));
    let has_enough = |reached: &Reached| {
        let is_rare = |(found, due): (u64, u64)| found * reached_min.0 < due * count;
        // A few selected seeds may have none.
        count < 100
            || pairing.status().carried_ever * 2 >= count
                && !reached.counts().into_iter().zip(reached_min.1.counts()).any(is_rare)
    };
    let (mut over_tcp, mut reached) = (Reached::default(), Reached::default());
    // More seeds if the service was too slow for too many, as on a busy machine: calls rarely wait for it.
    for batch in (first..first + 4 * count).step_by(BATCH as usize) {
        if batch >= first + count && has_enough(&reached) {
            break;
        }
        let end = if batch < first + count { first + count } else { first + 4 * count };
        let seeds = batch..(batch + BATCH).min(end);
        let mut plainly = || over_tcp.take_out_of(&pairing.transcript(test, seeds.clone(), None));
        let mut run = || {
            let plain = plainly();
            let carried = pairing.transcript(test, seeds.clone(), Some(batch / BATCH % 7));
            let carried = reached.take_out_of(&carried);
            compare(&plain, &carried).map_err(|difference| (difference, plain, carried))
        };
        let mut difference = run();
        if difference.is_err() && !situations::has_room_for_tcp() {
            // In that state the kernel refuses sends that it accepts otherwise, in either run.
            test_service::eventually("the kernel has room for TCP", situations::has_room_for_tcp);
            difference = run();
        }
        let difference = difference.or_else(|(difference, plain, carried)| {
            let again = plainly();
            if again == plain {
                return Err(difference);
            }
            // The kernel's sockets have not behaved like themselves, as after a pause of the machine.
            println!("seeds {seeds:?} differ between two runs without the library:\n{difference}");
            compare(&again, &carried)
        });
        if let Err(difference) = difference {
            panic!("{difference}");
        }
    }
    let status = pairing.status();
    println!("{} of {count} seeds were carried: {reached:?}", status.carried_ever);
    assert_eq!(over_tcp, Reached::default(), "what is counted has to do with rings");
    assert!(
        has_enough(&reached),
        "too little was reached for this to prove anything: {reached:?}, {status:?}"
    );
}

/// These counts for a run in which an engine relays one direction, and empties its ring.
const RELAYED_MIN: (u64, Reached) = (1500, Reached { full: 0, owed: 0, edge: 20, exec: 5, spawn: 5 });

/// The prefix of a wait for an edge-triggered set.
const BY_EDGE: &str = "edge";
/// The kernel repeats itself when the watched events change: when a direction leaves it, and when it returns.
const REPEATED_MAX: u32 = 4;

/// `Err` with the difference and its place.
fn compare(plain: &str, carried: &str) -> Result<(), String> {
    assert!(plain.lines().count() > 2, "the driver did not come far:\n{plain}");
    let (mut before, mut repeated) = (String::new(), 0);
    for (expected, found) in plain.lines().zip(carried.lines()) {
        if expected.contains("seed ") {
            (before, repeated) = (String::new(), 0);
        }
        writeln!(before, "{expected}").expect("a string");
        // Edge-triggered, a program may be told once more, but never less.
        let is_silent = |line: &str| line.starts_with(BY_EDGE) && line.ends_with(" [] = 0 0");
        if is_silent(expected) && found.starts_with(BY_EDGE) && !is_silent(found) && repeated < REPEATED_MAX {
            repeated += 1;
        } else if found != expected {
            return Err(format!("the last of these is another one when carried:\n{before}{found}"));
        }
    }
    if carried.lines().count() == plain.lines().count() {
        Ok(())
    } else {
        Err("one run is longer".to_owned())
    }
}

/// A reset that has not come within this time does not come.
const RESET_MAX: Duration = Duration::from_millis(100);

/// Random numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// One connection, with an epoll set for each end.
struct Driver {
    seed: u64,
    draw: Draw,
    ends: [RawFd; 2],
    sets: [RawFd; 2],
    /// The bytes that each end has in flight, and a limit that both kinds of socket accept.
    under_way: [u64; 2],
    next: [u8; 2],
    is_closed: [bool; 2],
    /// It has shut down sending.
    is_shut: [bool; 2],
    /// It has shut down receiving. What it has not read cannot return to the kernel, which refuses it.
    is_deaf: [bool; 2],
    /// The last send of an end gave nothing to the kernel.
    is_in_ring: [bool; 2],
    /// The last registration in its set is edge-triggered.
    is_by_edge: [bool; 2],
    /// That registration has reported that everything has hung up.
    has_hung_up: [bool; 2],
    /// Its messages say what is left behind them.
    reports_left: [bool; 2],
    reached: Reached,
    text: String,
}

/// What the kernel and a ring buffer, and leave the sender writable.
fn under_way_max() -> u64 {
    if is_unix() { 12_000 } else { 60_000 }
}

/// A quarter of the seeds set `SO_SNDBUF`, `SO_RCVBUF`, or both, to values that leave room for [`under_way_max`].
fn bound_buffers(seed: u64, fd: RawFd) {
    let chosen =
        [[0, 1 << 16], [1 << 16, 0], [1 << 16, 1 << 16], [1 << 18, 1 << 16]][(seed / 4 % 4) as usize];
    let set = |name: i32, value: i32| {
        // SAFETY: a live int.
        let status = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), 4) };
        assert_eq!(status, 0, "{}", errno());
    };
    for (name, value) in [libc::SO_SNDBUF, libc::SO_RCVBUF].into_iter().zip(chosen) {
        if seed % 4 == 3 && value > 0 {
            set(name, value);
        }
    }
}

impl Driver {
    fn new(seed: u64) -> Self {
        let (client, server) = test_service::pair();
        [client, server].into_iter().for_each(|fd| bound_buffers(seed, fd));
        if relayed::is_wanted() {
            relayed::keep_in_kernel([client, server][seed as usize % 2]);
        }
        let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..8).for_each(|_| assert!(draw.below(2) < 2));
        let mut driver = Self {
            seed,
            draw,
            ends: [client, server],
            sets: [test_service::epoll(), test_service::epoll()],
            under_way: [0; 2],
            next: [0; 2],
            is_closed: [false; 2],
            is_shut: [false; 2],
            is_deaf: [false; 2],
            is_in_ring: [false; 2],
            is_by_edge: [false; 2],
            has_hung_up: [false; 2],
            reports_left: [false; 2],
            reached: Reached::default(),
            text: String::new(),
        };
        (0..2).for_each(|end| driver.control(end, libc::EPOLL_CTL_ADD));
        driver
    }

    fn events(&mut self) -> u32 {
        let base =
            [libc::EPOLLIN, libc::EPOLLOUT, libc::EPOLLIN | libc::EPOLLOUT, libc::EPOLLIN | libc::EPOLLRDHUP];
        let kinds = [0, 0, 0, libc::EPOLLET, libc::EPOLLET, libc::EPOLLONESHOT];
        let (base, kind) = (base[self.draw.below(4) as usize], kinds[self.draw.below(6) as usize]);
        // A report of room, of which a Unix socket makes many, repeats that there is something to read.
        let is_mixed = is_unix() && kind == libc::EPOLLET && base == libc::EPOLLIN | libc::EPOLLOUT;
        (if is_mixed { libc::EPOLLIN } else { base } | kind) as u32
    }

    fn run(mut self) -> (String, Reached) {
        let mut special_from = 10 + self.draw.below(30);
        for step in 0..60 {
            let end = self.draw.below(2) as usize;
            if self.is_closed[end] {
                continue;
            }
            if step >= special_from && self.does_special(end) {
                special_from = u64::MAX;
                continue;
            }
            match self.draw.below(1000) {
                0..300 => self.send(end),
                300..590 => self.receive(end),
                590..600 => self.report_left(end),
                600..690 => self.poll(end),
                690..790 => self.wait(end),
                790..830 => self.change(end),
                830..870 => self.duplicate(end),
                870..900 => self.fork(end),
                900..930 => self.look(end),
                930..945 => self.pass(end),
                945..965 => self.shut(end),
                _ => self.close(end),
            }
        }
        self.drain();
        let open = (0..2).filter(|end| !self.is_closed[*end]).map(|end| self.ends[end]);
        open.chain(self.sets).for_each(test_service::close);
        (self.text, self.reached)
    }

    /// Slow operations, done by a few seeds, and once by each. `false`: not possible now.
    fn does_special(&mut self, end: usize) -> bool {
        if self.seed % 10 > 3 {
            return true;
        }
        if self.is_shut == [false; 2] {
            (0..16).for_each(|turn| self.exchange(turn % 2));
            for end in 0..2 {
                self.give(end, 500, 0);
                self.settle(end);
            }
        }
        match self.seed % 10 {
            0 | 1 => self.fill(end),
            2 => self.start(end, Start::Exec),
            3 => self.start(end, Start::Spawn),
            _ => true,
        }
    }

    /// Waits until what `end` has sent is at the other end.
    fn settle(&self, end: usize) {
        if !self.is_closed[1 - end] {
            test_service::settle(self.ends[1 - end], self.under_way[end]);
        } else if relayed::is_wanted() {
            // A closed end answers by a reset, when an engine has sent what there is.
            let started = Instant::now();
            while test_service::poll(self.ends[end], 0).1 == 0 && started.elapsed() < RESET_MAX {}
        }
    }

    /// Returns whether an engine may relay what this end sends.
    fn is_relayed(&self, end: usize) -> bool {
        relayed::is_wanted() && self.seed as usize % 2 != end
    }

    /// Waits until an engine has told this end that the other one has gone. Sends succeed until then.
    fn await_news_of(&self, end: usize) {
        if self.is_closed[1 - end] && relayed::is_wanted() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a thread of the engine has closed the other end. The kernel tells of a reset before it ends the
    /// connection, which another processor can see.
    fn settle_reset(&self, end: usize) {
        std::thread::sleep(Duration::from_millis(2));
        let (error, hung_up) = (libc::POLLERR, libc::POLLHUP);
        let is_under_way = || test_service::poll(self.ends[end], 0).1 & (error | hung_up) == error;
        let started = Instant::now();
        while !self.is_closed[end] && is_under_way() && started.elapsed() < RESET_MAX {}
    }

    fn say(&mut self, what: &str, status: i64) {
        let error = if status < 0 { errno() } else { 0 };
        writeln!(self.text, "{what} = {status} {error}").expect("a string");
    }

    fn send(&mut self, end: usize) {
        let limit = [10, 100, 3000, 20_000][self.draw.below(4) as usize];
        let length = self.draw.below(limit) + 1;
        if self.under_way[end] + length > under_way_max() {
            return;
        }
        let kind = self.draw.below(4);
        let sent = self.give(end, length as usize, kind);
        if sent > 0 {
            self.settle(end);
        }
        self.say(&format!("send {end} {kind} {length}"), sent);
    }

    /// Sends a few bytes, and receives everything.
    fn exchange(&mut self, end: usize) {
        let sent = self.give(end, 10, 0);
        self.settle(end);
        let (received, _) = test_service::receive(self.ends[1 - end], PIECE_BYTES, 0);
        self.under_way[end] -= received.max(0) as u64;
        self.say(&format!("exchange {end} {sent}"), received);
    }

    /// Sends this much of the stream.
    fn give(&mut self, end: usize, length: usize, kind: u64) -> i64 {
        self.await_news_of(end);
        let before = test_service::kernel_given(self.ends[end]);
        let sent = test_service::send(self.ends[end], pattern(self.next[end], length), kind);
        let error = errno();
        if sent > 0 {
            self.has_sent(end, sent as u64);
            self.is_in_ring[end] = test_service::kernel_given(self.ends[end]) == before;
        }
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = error };
        sent
    }

    fn has_sent(&mut self, end: usize, length: u64) {
        self.under_way[end] += length;
        self.next[end] = self.next[end].wrapping_add(length as u8);
    }

    fn receive(&mut self, end: usize) {
        let limit = [4, 100, 5000, 50_000][self.draw.below(4) as usize];
        let length = self.draw.below(limit) + 1;
        let kind = self.draw.below(6);
        if self.reports_left[end] && kind % 2 == 1 {
            return self.count_left(end, length as usize);
        }
        let (received, bytes) = test_service::receive(self.ends[end], length as usize, kind);
        if received > 0 && kind != test_service::PEEK {
            self.under_way[1 - end] -= received as u64;
        }
        let sum = bytes.iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
        self.say(&format!("receive {end} {kind} {length} sum {sum}"), received);
    }

    fn poll(&mut self, end: usize) {
        let events = [libc::POLLIN, libc::POLLOUT, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP, 0]
            [self.draw.below(4) as usize];
        if self.draw.below(3) == 0 {
            let (status, sets) = test_service::select(self.ends[end]);
            return self.say(&format!("select {end} {sets:?}"), status);
        }
        let (status, found) = test_service::poll(self.ends[end], events);
        self.say(&format!("poll {end} {events:#x} -> {found:#x}"), status);
    }

    fn wait(&mut self, end: usize) {
        // A Unix socket reports room whenever a piece was read, although there was room before. A TCP socket repeats that there is
        // room when bytes arrive; where an engine relays, only the first of the two is the kernel's to report.
        self.wait_for(end, !is_unix() && !relayed::is_wanted());
    }

    fn wait_for(&mut self, end: usize, has_exact_room: bool) {
        let (mut status, mut events) = test_service::wait(self.sets[end]);
        if self.is_by_edge[end] && (self.is_shut[end] || !has_exact_room) {
            // The kernel reports room again when the other end has acknowledged the shutdown, whenever that is.
            // A Unix socket repeats that everything has hung up: with its room, and when the other end is closed.
            let hung_up = libc::EPOLLHUP as u32;
            if !has_exact_room && self.has_hung_up[end] {
                events.clear();
            }
            events.iter_mut().for_each(|event| *event &= !(libc::EPOLLOUT as u32));
            self.has_hung_up[end] |= events.iter().any(|event| event & hung_up != 0);
            events.retain(|event| *event != 0);
            status = status.min(events.len() as i64);
        }
        self.reached.edge += u64::from(status > 0 && self.is_by_edge[end] && self.is_in_ring.contains(&true));
        let how = if self.is_by_edge[end] { BY_EDGE } else { "wait" };
        self.say(&format!("{how} {end} {events:x?}"), status);
    }

    fn change(&mut self, end: usize) {
        let operation = [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL, libc::EPOLL_CTL_ADD]
            [self.draw.below(4) as usize];
        self.control(end, operation);
    }

    fn control(&mut self, end: usize, operation: i32) {
        let events = self.events();
        let status = test_service::control(self.sets[end], operation, self.ends[end], events);
        if status == 0 {
            let is_by_edge = events & libc::EPOLLET as u32 != 0;
            self.is_by_edge[end] = is_by_edge && operation != libc::EPOLL_CTL_DEL;
            self.has_hung_up[end] = false;
        }
        self.say(&format!("control {end} {operation} {events:#x}"), status);
    }

    /// Sends a byte by another descriptor.
    fn duplicate(&mut self, end: usize) {
        let byte = self.next[end];
        self.await_news_of(end);
        // SAFETY: descriptors of this driver alone.
        let sent = unsafe {
            let copy = libc::dup(self.ends[end]);
            let sent = libc::send(copy, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL) as i64;
            let error = errno();
            libc::close(copy);
            *libc::__errno_location() = error;
            sent
        };
        self.say(&format!("duplicate {end}"), sent);
        if sent > 0 {
            self.has_sent(end, 1);
            self.settle(end);
        }
    }

    /// A child sends for this end, and exits.
    fn fork(&mut self, end: usize) {
        if self.under_way[end] + 100 > under_way_max() {
            return;
        }
        let bytes = pattern(self.next[end], 100);
        let status = test_service::in_child(|| test_service::send(self.ends[end], bytes, 0) == 100);
        if status == 0 {
            self.has_sent(end, 100);
            self.settle(end);
        }
        self.say(&format!("fork {end}"), status);
    }

    /// A program with or without the library reads for this end, or writes for it.
    fn start(&mut self, end: usize, start: Start) -> bool {
        let (is_reader, has_library) = (self.draw.below(2) == 0, self.draw.below(2) == 0);
        let due = self.under_way[1 - end];
        let is_possible = match is_reader {
            true => due > 0,
            false => !self.is_closed[1 - end] && self.under_way[end] + 100 <= under_way_max(),
        };
        if !is_possible || self.is_deaf[end] {
            return false;
        }
        let bytes = pattern(self.next[end], 100);
        let words = match is_reader {
            true => ["head".to_owned(), "-c".to_owned(), due.to_string()].to_vec(),
            false => {
                ["printf".to_owned(), bytes.iter().map(|byte| format!("\\{byte:03o}")).collect()].to_vec()
            }
        };
        let from = if is_reader { 1 - end } else { end };
        let is_in_ring = self.is_in_ring[from] && self.under_way[from] > 0;
        situations::set_waiting(self.ends[end], true);
        let (status, said) = Program::new(&words, has_library).run(start, self.ends[end], is_reader);
        situations::set_waiting(self.ends[end], false);
        if is_reader {
            let first = self.next[from].wrapping_sub(due as u8);
            assert!(
                said == pattern(first, due as usize),
                "{} of {due} bytes, or others: {}",
                said.len(),
                self.text
            );
            self.under_way[from] = 0;
        } else if status == 0 {
            self.has_sent(end, 100);
            self.settle(end);
        }
        // What was passed on stays in the kernel.
        self.is_in_ring = [false; 2];
        match start {
            Start::Exec => self.reached.exec += u64::from(is_in_ring),
            Start::Spawn => self.reached.spawn += u64::from(is_in_ring),
        }
        self.say(&format!("{start:?} {end} {is_reader} {due}"), status);
        true
    }

    /// Sends until there is no room, passes an end on or shuts it down, and receives everything.
    fn fill(&mut self, end: usize) -> bool {
        if self.is_shut[end] || self.is_closed[1 - end] {
            return false;
        }
        let before = test_service::kernel_given(self.ends[end]);
        self.send_until_full(end);
        let is_full_ring = test_service::kernel_given(self.ends[end]) == before;
        self.reached.full += u64::from(is_full_ring);
        let (status, found) = test_service::poll(self.ends[end], libc::POLLOUT);
        self.say(&format!("full {end} -> {found:#x}"), status);
        self.wait(end);
        let then = self.draw.below(5);
        let receiver = 1 - end;
        // A program that passes on what an engine relays waits for the kernel to take all of it, at most for a second.
        match then {
            2 if self.is_relayed(end) => {}
            0 | 1 => {
                let status = test_service::pass(self.ends[receiver]);
                self.say(&format!("pass full {receiver}"), status);
                let given = test_service::kernel_given(self.ends[end]) - before;
                self.reached.owed += u64::from(is_full_ring && given < self.under_way[end]);
                self.is_in_ring = [false; 2];
            }
            2 => {
                let status = test_service::pass(self.ends[end]);
                self.say(&format!("pass full {end}"), status);
                self.is_in_ring = [false; 2];
            }
            _ => {}
        }
        if then == 1 || then == 3 {
            // SAFETY: a descriptor of this driver.
            let status = unsafe { libc::shutdown(self.ends[end], libc::SHUT_WR) };
            self.is_shut[end] = true;
            self.say(&format!("shut full {end}"), status.into());
        }
        self.receive_everything(end);
        if self.is_shut[end] {
            test_service::settle_end(self.ends[receiver]);
        } else {
            let is_writable = || (test_service::poll(self.ends[end], libc::POLLOUT).1 != 0).then_some(());
            test_service::eventually("there is room again", is_writable);
        }
        self.wait_for(end, true);
        true
    }

    /// Sends until the kernel, too, has moved what it can. On a busy machine that takes a while: it may find room again after
    /// it has refused a send for so long.
    fn send_until_full(&mut self, end: usize) {
        let length = [3000, 16_384, PIECE_BYTES][self.draw.below(3) as usize];
        let mut refused = 0;
        let own = self.ends[end];
        let is_writable = || test_service::poll(own, libc::POLLOUT).1 != 0;
        while refused < 30 || refused < 1000 && is_writable() {
            let sent = test_service::send(own, pattern(self.next[end], length), 0);
            if sent > 0 {
                refused = 0;
                self.has_sent(end, sent as u64);
                continue;
            }
            assert_eq!(errno(), libc::EAGAIN, "a send of {end}: {}", self.text);
            std::thread::sleep(Duration::from_millis(1));
            refused += 1;
        }
    }

    /// Receives what `end` has sent, and checks every byte.
    fn receive_everything(&mut self, end: usize) {
        let (receiver, started) = (1 - end, Instant::now());
        while self.under_way[end] > 0 {
            assert!(
                started.elapsed() < test_service::TIMEOUT,
                "bytes for {receiver} never come: {}",
                self.text
            );
            let due = pattern(self.next[end].wrapping_sub(self.under_way[end] as u8), PIECE_BYTES);
            let (received, bytes) = test_service::receive(self.ends[receiver], due.len(), 0);
            if received > 0 {
                assert!(due.starts_with(&bytes), "{received} bytes for {receiver}, or others: {}", self.text);
                self.under_way[end] -= received as u64;
                continue;
            }
            assert!(received < 0 && errno() == libc::EAGAIN, "{received} for {receiver}: {}", self.text);
            // Calls like this one pay what is owed.
            test_service::poll(self.ends[end], libc::POLLOUT);
        }
        // The number of bytes differed between the two runs.
        self.next[end] = 0;
        self.say(&format!("received everything of {end}"), 0);
    }

    fn look(&mut self, end: usize) {
        let mut queued: i32 = 0;
        // SAFETY: one int each.
        let status = unsafe { libc::ioctl(self.ends[end], libc::FIONREAD, &raw mut queued) };
        self.say(&format!("queued {end} {queued}"), status.into());
        let error = test_service::option(self.ends[end], libc::SO_ERROR);
        self.say(&format!("error {end}"), error);
    }

    /// Passes the descriptor through a Unix socket and receives it again. It must return to the kernel meanwhile.
    fn pass(&mut self, end: usize) {
        if self.is_deaf[end] {
            return;
        }
        let status = test_service::pass(self.ends[end]);
        self.say(&format!("pass {end}"), status);
    }

    /// From here on messages of this end say how many bytes are left behind them. Unix sockets have no such option.
    fn report_left(&mut self, end: usize) {
        if is_unix() {
            return;
        }
        test_service::report_left(self.ends[end]);
        self.reports_left[end] = true;
        let length = self.draw.below(3000) + 1;
        self.count_left(end, length as usize);
    }

    fn count_left(&mut self, end: usize, length: usize) {
        self.settle(1 - end);
        let (received, left) = test_service::receive_and_left(self.ends[end], length);
        self.under_way[1 - end] -= received.max(0) as u64;
        self.say(&format!("count left {end} {length} -> {left:?}"), received);
    }

    fn shut(&mut self, end: usize) {
        // The kernel reports everything again after a shutdown that changes nothing, and of a Unix socket to both ends.
        let is_watched = self.is_by_edge[end] || is_unix() && self.is_by_edge[1 - end];
        if self.draw.below(2) == 0 || self.is_shut[end] && is_watched {
            return;
        }
        if is_unix() && self.draw.below(3) == 0 {
            return self.be_deaf(end);
        }
        // SAFETY: a descriptor of this driver.
        let status = unsafe { libc::shutdown(self.ends[end], libc::SHUT_WR) };
        if status == 0 && !self.is_closed[1 - end] {
            test_service::settle_end(self.ends[1 - end]);
        }
        self.is_shut[end] = true;
        self.say(&format!("shut {end}"), status.into());
    }

    /// Shuts down receiving, of which the other end of a Unix connection is told.
    fn be_deaf(&mut self, end: usize) {
        // SAFETY: a descriptor of this driver.
        let status = unsafe { libc::shutdown(self.ends[end], libc::SHUT_RD) };
        (self.is_shut[1 - end], self.is_deaf[end]) = (true, true);
        self.say(&format!("deaf {end}"), status.into());
    }

    fn close(&mut self, end: usize) {
        if self.draw.below(3) != 0 {
            return;
        }
        // SAFETY: a descriptor of this driver's, which it uses no more.
        let status = unsafe { libc::close(self.ends[end]) };
        if status == 0 && !self.is_closed[1 - end] {
            test_service::settle_close(self.ends[1 - end]);
        }
        if self.is_relayed(end) {
            // It has the descriptor as well, until it is told.
            relayed::await_release();
            self.settle_reset(1 - end);
        }
        (self.is_closed[end], self.is_shut[end]) = (true, true);
        self.say(&format!("close {end}"), status.into());
    }

    /// At the end reads everything that is left.
    fn drain(&mut self) {
        for end in 0..2 {
            while !self.is_closed[end] {
                let (received, bytes) = test_service::receive(self.ends[end], 100_000, 0);
                let sum =
                    bytes.iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
                self.say(&format!("drain {end} sum {sum}"), received);
                if received <= 0 {
                    break;
                }
            }
        }
    }
}
