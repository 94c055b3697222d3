//! The same random calls on kernel sockets and on carried ones: every byte, return value, error and readiness.
//!
//! One program holds both ends and writes down what each call gave. It runs without the library, then with it; the
//! connection leaves the kernel after another number of calls for every seed, and goes back before others.

mod world;

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::RawFd;

use world::{World, errno};

const SEEDS: u64 = 2000;
/// Seeds that one process goes through, one connection after the other.
const BATCH: u64 = 10;

#[test]
fn carried_sockets_do_what_the_kernels_do() {
    if let Ok(seeds) = std::env::var("BYWIRE_TEST_SEED") {
        let (first, end) = seeds.split_once(':').expect("a range");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        for seed in number(first)..number(end) {
            let transcript = Driver::new(seed).run();
            // At once, so that it is not in a buffer that a child might write once more.
            println!("seed {seed} = \n{transcript}");
            std::io::stdout().flush().expect("written");
        }
        return;
    }
    let world = World::new();
    let number = |name: &str, otherwise| {
        std::env::var(name).map_or(otherwise, |text| text.parse::<u64>().expect("a number"))
    };
    let (first, count) = (number("BYWIRE_SEED", 0), number("BYWIRE_SEEDS", SEEDS));
    let has_enough = || count < 100 || world.status().carried_ever * 2 >= count;
    // More where the service was too slow for too many, as on a busy machine: calls hardly wait for it.
    for batch in (first..first + 4 * count).step_by(BATCH as usize) {
        if batch >= first + count && has_enough() {
            break;
        }
        let end = if batch < first + count { first + count } else { first + 4 * count };
        let seeds = batch..(batch + BATCH).min(end);
        let test = "carried_sockets_do_what_the_kernels_do";
        let plain = world.transcript(test, seeds.clone(), None);
        let carried = world.transcript(test, seeds, Some(batch / BATCH % 7));
        compare(&plain, &carried);
    }
    let status = world.status();
    println!("{} of {count} seeds were carried", status.carried_ever);
    // Of a few seeds, looked at again, none may be.
    assert!(has_enough(), "too few connections were carried for this to prove anything: {status:?}");
}

fn compare(plain: &str, carried: &str) {
    assert!(plain.lines().count() > 2, "the driver did not come far:\n{plain}");
    let (mut seed, mut before) = ("", String::new());
    for (expected, found) in plain.lines().zip(carried.lines()) {
        if expected.starts_with("seed ") {
            (seed, before) = (expected, String::new());
        }
        writeln!(before, "{expected}").expect("a string");
        assert_eq!(found, expected, "{seed}, the last line of\n{before}");
    }
    assert_eq!(carried.lines().count(), plain.lines().count(), "{seed}");
}

/// Numbers from a seed.
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
    draw: Draw,
    ends: [RawFd; 2],
    sets: [RawFd; 2],
    /// What every end has sent, and may send no more of than both kinds of socket take.
    under_way: [u64; 2],
    next: [u8; 2],
    is_closed: [bool; 2],
    /// Sends no more.
    is_shut: [bool; 2],
    text: String,
}

/// Both kinds of socket hold so much.
const UNDER_WAY_MAX: u64 = 60_000;

impl Driver {
    fn new(seed: u64) -> Self {
        let (client, server) = world::pair();
        let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..8).for_each(|_| assert!(draw.below(2) < 2));
        let mut driver = Self {
            draw,
            ends: [client, server],
            sets: [world::epoll(), world::epoll()],
            under_way: [0; 2],
            next: [0; 2],
            is_closed: [false; 2],
            is_shut: [false; 2],
            text: String::new(),
        };
        for end in 0..2 {
            let events = driver.events();
            let status = world::control(driver.sets[end], libc::EPOLL_CTL_ADD, driver.ends[end], events);
            driver.say(&format!("add {end} {events:#x}"), status);
        }
        driver
    }

    fn events(&mut self) -> u32 {
        let base =
            [libc::EPOLLIN, libc::EPOLLOUT, libc::EPOLLIN | libc::EPOLLOUT, libc::EPOLLIN | libc::EPOLLRDHUP];
        let kinds = [0, 0, 0, 0, 0, libc::EPOLLONESHOT];
        (base[self.draw.below(4) as usize] | kinds[self.draw.below(6) as usize]) as u32
    }

    fn run(mut self) -> String {
        for _ in 0..60 {
            let end = self.draw.below(2) as usize;
            if self.is_closed[end] {
                continue;
            }
            match self.draw.below(100) {
                0..30 => self.send(end),
                30..60 => self.receive(end),
                60..70 => self.poll(end),
                70..80 => self.wait(end),
                80..84 => self.change(end),
                84..88 => self.duplicate(end),
                88..91 => self.fork(end),
                91..94 => self.look(end),
                94..96 => self.pass(end),
                96..98 => self.shut(end),
                _ => self.close(end),
            }
        }
        self.drain();
        let open = (0..2).filter(|end| !self.is_closed[*end]).map(|end| self.ends[end]);
        open.chain(self.sets).for_each(world::close);
        self.text
    }

    /// What `end` has sent is at the other end.
    fn settle(&self, end: usize) {
        if !self.is_closed[1 - end] {
            world::settle(self.ends[1 - end], self.under_way[end]);
        }
    }

    fn say(&mut self, what: &str, status: i64) {
        let error = if status < 0 { errno() } else { 0 };
        writeln!(self.text, "{what} = {status} {error}").expect("a string");
    }

    fn send(&mut self, end: usize) {
        let limit = [10, 100, 3000, 20_000][self.draw.below(4) as usize];
        let length = self.draw.below(limit) + 1;
        if self.under_way[end] + length > UNDER_WAY_MAX {
            return;
        }
        let bytes: Vec<u8> = (0..length).map(|at| self.next[end].wrapping_add(at as u8)).collect();
        let kind = self.draw.below(4);
        let sent = world::send(self.ends[end], &bytes, kind);
        if sent > 0 {
            self.under_way[end] += sent as u64;
            self.next[end] = self.next[end].wrapping_add(sent as u8);
            self.settle(end);
        }
        self.say(&format!("send {end} {kind} {length}"), sent);
    }

    fn receive(&mut self, end: usize) {
        let limit = [4, 100, 5000, 50_000][self.draw.below(4) as usize];
        let length = self.draw.below(limit) + 1;
        let kind = self.draw.below(6);
        let (received, bytes) = world::receive(self.ends[end], length as usize, kind);
        if received > 0 && kind != world::PEEK {
            self.under_way[1 - end] -= received as u64;
        }
        let sum = bytes.iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
        self.say(&format!("receive {end} {kind} {length} sum {sum}"), received);
    }

    fn poll(&mut self, end: usize) {
        let events = [libc::POLLIN, libc::POLLOUT, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP, 0]
            [self.draw.below(4) as usize];
        if self.draw.below(3) == 0 {
            let (status, sets) = world::select(self.ends[end]);
            return self.say(&format!("select {end} {sets:?}"), status);
        }
        let (status, found) = world::poll(self.ends[end], events);
        self.say(&format!("poll {end} {events:#x} -> {found:#x}"), status);
    }

    fn wait(&mut self, end: usize) {
        let (status, events) = world::wait(self.sets[end]);
        self.say(&format!("wait {end} {events:x?}"), status);
    }

    fn change(&mut self, end: usize) {
        let operation = [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL, libc::EPOLL_CTL_ADD]
            [self.draw.below(4) as usize];
        let events = self.events();
        let status = world::control(self.sets[end], operation, self.ends[end], events);
        self.say(&format!("control {end} {operation} {events:#x}"), status);
    }

    fn duplicate(&mut self, end: usize) {
        // SAFETY: descriptors of this driver alone.
        let status = unsafe {
            let copy = libc::dup(self.ends[end]);
            let sent = libc::send(copy, b"x".as_ptr().cast(), 0, libc::MSG_NOSIGNAL);
            libc::close(copy);
            sent as i64
        };
        self.say(&format!("duplicate {end}"), status);
    }

    /// A child sends for this end, and ends.
    fn fork(&mut self, end: usize) {
        if self.under_way[end] + 100 > UNDER_WAY_MAX {
            return;
        }
        let bytes: Vec<u8> = (0..100).map(|at| self.next[end].wrapping_add(at)).collect();
        let status = world::in_child(|| world::send(self.ends[end], &bytes, 0) == 100);
        if status == 0 {
            self.under_way[end] += 100;
            self.next[end] = self.next[end].wrapping_add(100);
            self.settle(end);
        }
        self.say(&format!("fork {end}"), status);
    }

    fn look(&mut self, end: usize) {
        let mut queued: i32 = 0;
        // SAFETY: one int each.
        let status = unsafe { libc::ioctl(self.ends[end], libc::FIONREAD, &raw mut queued) };
        self.say(&format!("queued {end} {queued}"), status.into());
        let error = world::option(self.ends[end], libc::SO_ERROR);
        self.say(&format!("error {end}"), error);
    }

    /// Passes the descriptor through a Unix socket and takes it out again: it has to be in the kernel meanwhile.
    fn pass(&mut self, end: usize) {
        let status = world::pass(self.ends[end]);
        self.say(&format!("pass {end}"), status);
    }

    fn shut(&mut self, end: usize) {
        if self.draw.below(2) == 0 {
            return;
        }
        // SAFETY: a descriptor of this driver.
        let status = unsafe { libc::shutdown(self.ends[end], libc::SHUT_WR) };
        if status == 0 && !self.is_closed[1 - end] {
            world::settle_end(self.ends[1 - end]);
        }
        self.is_shut[end] = true;
        self.say(&format!("shut {end}"), status.into());
    }

    fn close(&mut self, end: usize) {
        if self.draw.below(3) != 0 {
            return;
        }
        // SAFETY: a descriptor of this driver's, which it uses no more.
        let status = unsafe { libc::close(self.ends[end]) };
        if status == 0 && !self.is_closed[1 - end] {
            world::settle_end(self.ends[1 - end]);
        }
        (self.is_closed[end], self.is_shut[end]) = (true, true);
        self.say(&format!("close {end}"), status.into());
    }

    /// At the end everything that is left is read.
    fn drain(&mut self) {
        for end in 0..2 {
            while !self.is_closed[end] {
                let (received, bytes) = world::receive(self.ends[end], 100_000, 0);
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
