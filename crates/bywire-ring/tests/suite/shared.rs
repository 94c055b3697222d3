//! Every interleaving (within loom's bounds) of what threads and processes of one end share: locks, holds, lists.

use std::sync::atomic::Ordering;

use bywire_ring::lock::Sleeping;
use bywire_ring::word::Word;
use bywire_ring::{hold, list, lock, owing};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

use crate::model::explore;
use crate::word::Modelled;

/// The kernel's sleep on a word. A thread that waits for a dead one is not woken; others are woken in time.
#[derive(Default)]
struct System {
    asleep: Mutex<()>,
    woken: Condvar,
}

/// A thread that was killed with the lock.
const DEAD: u32 = 99;

impl Sleeping<Modelled> for System {
    fn sleep(&self, word: &Modelled, expected: u32) -> bool {
        let guard = self.asleep.lock().expect("no panic");
        if word.load(Ordering::SeqCst) != expected {
            return false;
        }
        if expected << 1 == DEAD << 1 {
            return true;
        }
        drop(self.woken.wait(guard).expect("no panic"));
        false
    }

    fn wake(&self, _: &Modelled) {
        drop(self.asleep.lock().expect("no panic"));
        self.woken.notify_all();
    }

    fn lives(&self, thread: u32) -> bool {
        thread != DEAD
    }

    fn pause(&self) -> bool {
        false
    }
}

#[derive(Default)]
struct Locked {
    word: Modelled,
    system: System,
    inside: UnsafeCell<u32>,
}

fn threads_take_turns(first_holder: u32) {
    explore(move || {
        let shared = Arc::new(Locked::default());
        // Relaxed: before there is another thread.
        shared.word.store(first_holder, Ordering::Relaxed);
        let work = |me: u32| {
            let shared = Arc::clone(&shared);
            move || {
                lock::take(&shared.word, me, &shared.system);
                // SAFETY: the lock is held; loom ends the model if another thread is here.
                shared.inside.with_mut(|inside| unsafe { *inside += 1 });
                lock::give(&shared.word, &shared.system);
            }
        };
        let others = [loom::thread::spawn(work(2)), loom::thread::spawn(work(3))];
        others.into_iter().for_each(|thread| thread.join().expect("a holder"));
        // SAFETY: all others have ended.
        assert_eq!(shared.inside.with(|inside| unsafe { *inside }), 2);
    });
}

#[test]
fn a_lock_has_one_holder_and_nobody_sleeps_on_a_free_lock() {
    threads_take_turns(0);
}

#[test]
fn a_lock_whose_holder_was_killed_is_taken_over_once() {
    threads_take_turns(DEAD);
}

/// A descriptor, what this process holds of the socket behind it, and the mappings: 0 where there are none.
#[derive(Default)]
struct Held {
    meaning: Modelled,
    users: Modelled,
    descriptors: Modelled,
    mapping: Modelled,
    /// Changed by the threads that map and clear, read by users.
    memory: UnsafeCell<u32>,
}

impl Held {
    /// Of an open socket with mappings.
    fn new() -> Self {
        let held = Self::default();
        [&held.meaning, &held.descriptors, &held.mapping]
            .into_iter()
            .for_each(|word| word.store(1, Ordering::Relaxed));
        held
    }

    fn call(&self) {
        hold::enter(&self.users);
        if self.meaning.load(Ordering::Acquire) != 0 && self.mapping.load(Ordering::Acquire) != 0 {
            // SAFETY: nobody clears what is in use; loom ends the model if somebody does.
            self.memory.with(|memory| unsafe { *memory });
        }
        self.leave();
    }

    fn close(&self) {
        hold::enter(&self.users);
        self.meaning.store(0, Ordering::Release);
        assert!(hold::close(&self.descriptors));
        self.leave();
    }

    fn leave(&self) {
        if hold::leave(&self.users, &self.descriptors) {
            if self.mapping.swap(0, Ordering::AcqRel) != 0 {
                // SAFETY: nobody uses what has no user; loom ends the model if somebody does.
                self.memory.with_mut(|memory| unsafe { *memory = 0 });
            }
            hold::cleared(&self.users);
        }
    }

    /// The place is given to another socket, which maps as well; `false`: not now.
    fn open(&self) -> bool {
        if !hold::open(&self.users, &self.descriptors) {
            return false;
        }
        hold::enter(&self.users);
        // SAFETY: the place is this socket's alone; loom ends the model if somebody clears it still.
        self.memory.with_mut(|memory| unsafe { *memory = 2 });
        self.mapping.store(2, Ordering::Release);
        self.leave();
        self.meaning.store(1, Ordering::Release);
        true
    }
}

#[test]
fn a_call_never_uses_a_cleared_mapping_and_none_is_leaked() {
    explore(|| {
        let held = Arc::new(Held::new());
        let [caller, closer] = [Arc::clone(&held), Arc::clone(&held)];
        let threads =
            [loom::thread::spawn(move || caller.call()), loom::thread::spawn(move || closer.close())];
        threads.into_iter().for_each(|thread| thread.join().expect("a user"));
        assert_eq!(held.mapping.load(Ordering::Relaxed), 0, "the mappings are gone");
        assert_eq!(held.users.load(Ordering::Relaxed), 0, "nobody is counted");
    });
}

#[test]
fn a_late_call_leaves_the_next_sockets_mapping_alone() {
    explore(|| {
        let held = Arc::new(Held::new());
        let late = Arc::clone(&held);
        let thread = loom::thread::spawn(move || late.call());
        held.close();
        let is_open = held.open();
        thread.join().expect("a late call");
        let mapping = held.mapping.load(Ordering::Relaxed);
        assert_eq!(
            mapping,
            if is_open { 2 } else { 0 },
            "the next socket has what it has mapped, and nobody else has"
        );
        assert_eq!(held.users.load(Ordering::Relaxed), 0, "nobody is counted");
    });
}

/// Links of places, of which the first is the list's own.
struct Places {
    links: [Modelled; 4],
    changing: Mutex<()>,
}

impl Places {
    fn new() -> Arc<Self> {
        Arc::new(Self { links: Default::default(), changing: Mutex::new(()) })
    }

    fn put(&self, at: u32) {
        list::put(&self.links[0], at, &self.links[at as usize]);
    }

    fn take_out(&self, at: u32) {
        if list::take_out_alone(&self.links[0], at, &self.links[at as usize]) {
            return;
        }
        let _held = self.changing.lock().expect("no panic");
        let next = |at: u32| (at != 0).then(|| &self.links[at as usize]);
        list::take_out(&self.links[0], at, 4, next);
    }

    fn all(&self) -> Vec<u32> {
        let mut place = list::step(&self.links[0]);
        let mut found = Vec::new();
        while place != 0 && found.len() < 4 {
            found.push(place);
            place = list::step(&self.links[place as usize]);
        }
        found
    }
}

#[test]
fn no_list_entry_is_lost_during_concurrent_changes() {
    explore(|| {
        let places = Places::new();
        places.put(1);
        let [first, second] = [Arc::clone(&places), Arc::clone(&places)];
        let threads = [
            loom::thread::spawn(move || first.put(2)),
            loom::thread::spawn(move || {
                second.put(3);
                second.take_out(1);
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("a change"));
        let mut all = places.all();
        all.sort_unstable();
        assert_eq!(all, [2, 3]);
    });
}

#[test]
fn two_list_entries_can_be_removed_concurrently() {
    explore(|| {
        let places = Places::new();
        (1..=3).for_each(|at| places.put(at));
        let [first, second] = [Arc::clone(&places), Arc::clone(&places)];
        let threads =
            [loom::thread::spawn(move || first.take_out(1)), loom::thread::spawn(move || second.take_out(2))];
        threads.into_iter().for_each(|thread| thread.join().expect("a change"));
        assert_eq!(places.all(), [3]);
    });
}

/// What two connections of a process owe, and what its threads share of that.
#[derive(Default)]
struct Owing {
    word: Modelled,
    owed: [Modelled; 2],
}

impl Owing {
    fn owe(&self, connection: usize) {
        self.owed[connection].store(1, Ordering::Release);
        owing::owe(&self.word);
    }

    /// What a thread does before it waits for other things, without paying; `false`: it may wait forever.
    fn look(&self) -> bool {
        if !owing::may(&self.word) {
            return false;
        }
        let look = owing::begin_look(&self.word);
        let is_owing = self.owed.iter().any(|owed| owed.load(Ordering::Acquire) != 0);
        if !is_owing {
            owing::found_nothing(&self.word, look);
        }
        is_owing
    }
}

/// A thread that waits while owed bytes are known does not wait forever, even if another thread looks at the same time
/// and has already passed that connection.
#[test]
fn no_thread_waits_forever_while_it_owes_bytes() {
    explore(|| {
        let owing = Arc::new(Owing::default());
        // Something was owed, and is paid.
        owing.owe(0);
        owing.owed[0].store(0, Ordering::Relaxed);
        let lookers: Vec<_> = (0..2)
            .map(|_| {
                let owing = Arc::clone(&owing);
                loom::thread::spawn(move || owing.look())
            })
            .collect();
        owing.owe(1);
        assert!(owing.look(), "it waits with what it owes");
        for looker in lookers {
            looker.join().expect("a looker");
        }
        assert!(owing.look(), "the next one waits");
        owing.owed[1].store(0, Ordering::Relaxed);
        assert!(!owing.look(), "nothing is owed");
        assert!(!owing::may(&owing.word), "nobody looks in vain again");
    });
}
