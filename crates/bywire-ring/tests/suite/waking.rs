//! Every interleaving of sleepers, of threads that only look, and of a peer that publishes and rings.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;

use bywire_ring::program_doorbell::{self, WORD_OFFSET};
use bywire_ring::stream::Segment;
use bywire_ring::unannounced;
use bywire_ring::word::Word;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};

use crate::model::{Modelled, explore};
use crate::word::Modelled as ModelledWord;

/// A program: its page, what was published for it, and its epoll set, of which the kernel's part is locked.
#[derive(Clone)]
struct Program {
    page: Modelled,
    news: Arc<[AtomicBool; 2]>,
    set: Arc<Mutex<Set>>,
}

#[derive(Default)]
struct Set {
    /// The doorbell has rung since somebody last took it from the set.
    has_rung: bool,
    /// Threads that sleep in it, and how many of them are woken by now.
    asleep: u32,
    woken: u32,
}

impl Program {
    fn new() -> Self {
        let news = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        Self { page: Modelled::new([WORD_OFFSET]), news, set: Arc::default() }
    }

    fn set<T>(&self, work: impl FnOnce(&mut Set) -> T) -> T {
        work(&mut self.set.lock().expect("no panic"))
    }

    /// What this thread finds, and takes so that nobody else does.
    fn look(&self) -> [bool; 2] {
        [0, 1].map(|index| {
            let news: &AtomicBool = &self.news[index];
            news.load(Ordering::Relaxed) && news.swap(false, Ordering::Relaxed)
        })
    }

    /// A wait of the kernel with a timeout of zero, and what the library does about it.
    fn pass_by(&self) -> [bool; 2] {
        if self.set(|set| core::mem::take(&mut set.has_rung)) {
            program_doorbell::take(&self.page);
        }
        self.look()
    }

    /// Goes to sleep, if there is nothing: `None`, and the kernel knows of it from then on.
    fn lie_down(&self) -> Option<[bool; 2]> {
        program_doorbell::announce(&self.page);
        let found = self.look();
        if found != [false; 2] {
            program_doorbell::rise(&self.page);
            return Some(found);
        }
        self.set(|set| set.asleep += 1);
        None
    }
}

/// A peer with what its threads share of the last ring.
#[derive(Clone)]
struct Peer {
    program: Program,
    rung: Arc<AtomicU64>,
}

impl Peer {
    fn publish(&self, index: usize) {
        self.program.news[index].store(true, Ordering::Relaxed);
        loom::sync::atomic::fence(Ordering::SeqCst);
        let rung = self.rung.load(Ordering::Relaxed);
        if let Some(word) = program_doorbell::must_ring(&self.program.page, rung) {
            self.program.set(|set| {
                set.has_rung = true;
                set.woken = (set.woken + 1).min(set.asleep);
            });
            self.rung.store(word, Ordering::Relaxed);
        }
    }
}

/// In the end: an event that nobody has taken is found by the thread that the kernel wakes.
fn assert_nobody_sleeps_on_news(program: &Program) {
    let is_left = program.news.iter().any(|news| news.load(Ordering::SeqCst));
    program.set(|set| {
        // A woken thread that finds no ring in the set sleeps on without a word to anybody.
        let is_awake = set.woken > 0 && set.has_rung;
        assert!(!is_left || set.asleep == 0 || is_awake, "somebody sleeps on news, and nobody is on the way");
    });
}

/// A thread that passes by takes the ring that was meant for a sleeper, and the first news with it. The second news wake the
/// sleeper, or were in time for the look of the thread that passed by.
#[test]
fn a_doorbell_ring_taken_by_a_polling_thread_is_followed_by_another() {
    explore(|| {
        let program = Program::new();
        assert_eq!(program.lie_down(), None);
        let peer = Peer { program: program.clone(), rung: Arc::new(AtomicU64::new(0)) };
        let thread = loom::thread::spawn(move || [0, 1].into_iter().for_each(|index| peer.publish(index)));
        program.pass_by();
        thread.join().expect("peer");
        assert_nobody_sleeps_on_news(&program);
    });
}

/// The same with two threads of the peer, which share what they know of the last ring.
#[test]
fn two_ringing_threads_never_omit_a_needed_ring() {
    explore(|| {
        let program = Program::new();
        assert_eq!(program.lie_down(), None);
        let peer = Peer { program: program.clone(), rung: Arc::new(AtomicU64::new(0)) };
        let other = peer.clone();
        let threads =
            [loom::thread::spawn(move || peer.publish(0)), loom::thread::spawn(move || other.publish(1))];
        program.pass_by();
        threads.into_iter().for_each(|thread| thread.join().expect("peer"));
        assert_nobody_sleeps_on_news(&program);
    });
}

/// A sleeper that lies down while the peer publishes either finds the news or is woken.
#[test]
fn a_sleeper_sees_the_event_or_is_woken() {
    explore(|| {
        let program = Program::new();
        let peer = Peer { program: program.clone(), rung: Arc::new(AtomicU64::new(0)) };
        let thread = loom::thread::spawn(move || [0, 1].into_iter().for_each(|index| peer.publish(index)));
        let found = program.lie_down();
        thread.join().expect("peer");
        // Lying down, it enters the kernel's set behind a ring that came before: the kernel finds it there.
        let is_awake = program.set(|set| set.asleep == 0 || set.has_rung);
        let is_left = program.news.iter().any(|news| news.load(Ordering::SeqCst));
        assert!(found.is_some() || is_awake || !is_left, "it sleeps on news");
    });
}

/// A set in which nothing is carried when threads lie down in it, and then something is.
#[derive(Clone)]
struct Quiet {
    program: Program,
    count: Arc<ModelledWord>,
    is_carried: Arc<AtomicBool>,
}

impl Quiet {
    fn new() -> Self {
        let count = Arc::new(ModelledWord::default());
        Self { program: Program::new(), count, is_carried: Arc::new(AtomicBool::new(false)) }
    }

    /// As `sleepers::Unannounced::enter` does: the round, if it sleeps so.
    fn lie_down(&self) -> Option<u32> {
        let round = unannounced::enter(&*self.count).expect("room");
        loom::sync::atomic::fence(Ordering::SeqCst);
        if self.is_carried.load(Ordering::Relaxed) {
            self.rise(round);
            let _found = self.program.lie_down();
            return None;
        }
        self.program.set(|set| set.asleep += 1);
        Some(round)
    }

    fn rise(&self, round: u32) {
        if unannounced::leave(&*self.count, round) {
            program_doorbell::rise(&self.program.page);
        }
    }

    /// As `epoll::Place::list` does: from here on peers may publish.
    fn carry(&self) {
        self.is_carried.store(true, Ordering::Relaxed);
        loom::sync::atomic::fence(Ordering::SeqCst);
        unannounced::announce(&*self.count, &self.program.page);
    }

    /// How many sleepers peers know of.
    fn announced(&self) -> u64 {
        Segment::load(&self.program.page, WORD_OFFSET, Ordering::SeqCst) % (1 << 20)
    }
}

/// A sleeper in a set with a carried connection is known to peers, or has found the connection, for any number of sleepers.
#[test]
fn a_sleeper_without_carried_connections_is_announced_with_the_first_one() {
    explore(|| {
        let quiet = Quiet::new();
        let (early, late) = (quiet.lie_down(), quiet.clone());
        assert!(early.is_some(), "nothing is carried");
        let thread = loom::thread::spawn(move || late.lie_down());
        quiet.carry();
        let peer = Peer { program: quiet.program.clone(), rung: Arc::new(AtomicU64::new(0)) };
        peer.publish(0);
        let late = thread.join().expect("a sleeper");
        assert_nobody_sleeps_on_news(&quiet.program);
        // Each is counted once: those that found it by themselves sleep as others do, or have found the news.
        let asleep = u64::from(quiet.program.set(|set| set.asleep));
        assert_eq!(quiet.announced(), asleep, "who sleeps is announced");
        [early, late].into_iter().flatten().for_each(|round| quiet.rise(round));
        assert_eq!(quiet.announced(), u64::from(late.is_none() && asleep == 2), "who has risen is not");
    });
}

/// A sleeper that rises, by a timeout, while a connection is carried leaves nothing behind, and takes nothing of others.
#[test]
fn a_sleeper_that_wakes_while_a_connection_is_added_is_uncounted_once() {
    explore(|| {
        let quiet = Quiet::new();
        let (stays, rises) = (quiet.lie_down(), quiet.lie_down());
        let other = quiet.clone();
        let thread = loom::thread::spawn(move || {
            other.program.set(|set| set.asleep -= 1);
            other.rise(rises.expect("nothing is carried"));
        });
        quiet.carry();
        thread.join().expect("a sleeper");
        assert_eq!(quiet.announced(), 1, "the other one sleeps");
        quiet.rise(stays.expect("nothing is carried"));
        assert_eq!(quiet.announced(), 0);
        unannounced::announce(&*quiet.count, &quiet.program.page);
        assert_eq!(quiet.announced(), 0, "nobody is counted any more");
    });
}

/// A thread that is killed at one of its accesses to what others share.
struct Life(Cell<u32>);

/// What it ends with.
struct Killed;

impl Life {
    fn step(&self) {
        match self.0.get() {
            0 => std::panic::resume_unwind(Box::new(Killed)),
            left => self.0.set(left - 1),
        }
    }
}

/// A word of such a thread's, and its page.
struct UntilKilled<'a, T>(T, &'a Life);

impl Word for UntilKilled<'_, AtomicU32> {
    fn load(&self, order: Ordering) -> u32 {
        self.1.step();
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.1.step();
        self.0.store(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.1.step();
        self.0.swap(value, order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.1.step();
        self.0.fetch_add(value, order)
    }

    fn compare_exchange(&self, found: u32, value: u32, order: Ordering) -> Result<u32, u32> {
        self.1.step();
        self.0.compare_exchange(found, value, order, Ordering::Relaxed)
    }
}

impl Segment for UntilKilled<'_, std::sync::atomic::AtomicU64> {
    fn load(&self, _: usize, order: Ordering) -> u64 {
        self.1.step();
        self.0.load(order)
    }

    fn store(&self, _: usize, value: u64, order: Ordering) {
        self.1.step();
        self.0.store(value, order);
    }

    fn add(&self, _: usize, value: u64, order: Ordering) {
        self.1.step();
        self.0.fetch_add(value, order);
    }

    unsafe fn read(&self, _: usize, _: *mut u8, _: usize) {}

    unsafe fn write(&self, _: usize, _: *const u8, _: usize) {}

    fn fence(&self) {}
}

/// A thread that announces others may be killed at each step. Then too many sleepers may be announced, but never too few.
#[test]
fn a_process_killed_while_it_announces_sleepers_leaves_none_unannounced() {
    const SLEEPERS: u64 = 2;
    for steps in 0.. {
        let life = Life(Cell::new(u32::MAX));
        let (count, page) = (UntilKilled(AtomicU32::new(0), &life), UntilKilled(Default::default(), &life));
        let rounds = [(); SLEEPERS as usize].map(|()| unannounced::enter(&count).expect("room"));
        life.0.set(steps);
        let killed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unannounced::announce(&count, &page)));
        life.0.set(u32::MAX);
        let announced = || page.0.load(Ordering::SeqCst) % (1 << 20);
        assert!(announced() <= SLEEPERS, "step {steps}: {}", announced());
        // One of them, of which peers know by now, sleeps on, and the next one that comes announces itself.
        let stays = u64::from(count.0.load(Ordering::SeqCst) % (1 << 16) == 0);
        for round in &rounds[stays as usize..] {
            if unannounced::leave(&count, *round) {
                program_doorbell::rise(&page);
            }
        }
        assert!((stays..=SLEEPERS).contains(&announced()), "step {steps}: {}", announced());
        if killed.is_ok() {
            assert_eq!(announced(), stays, "nobody was killed");
            assert!(steps > 0, "it does nothing");
            return;
        }
    }
}
