//! In every interleaving, threads that share a port, and an event loop that watches it, get the messages that they wait
//! for from a peer that sends to it (loom).
//!
//! The module under test is the one that ships. Around it stand the port, its descriptor and the bells, as the kernel
//! and the rings keep them, and the steps of `Shared::round` and `Shared::arm`. Loom finds a sleeper that nobody wakes
//! as a deadlock.

#[path = "../../src/sleepers.rs"]
mod sleepers;

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

use sleepers::{Ring, Sleepers};

/// The port, its descriptor, and the bells.
#[derive(Default)]
struct Kernel {
    sent: Vec<u8>,
    is_armed: bool,
    is_readable: bool,
    rung: [bool; 3],
}

#[derive(Default)]
struct World {
    kernel: Mutex<Kernel>,
    changed: Condvar,
}

impl World {
    fn with<T>(&self, work: impl FnOnce(&mut Kernel) -> T) -> T {
        work(&mut self.kernel.lock().expect("no panic"))
    }

    fn send(&self, message: u8) {
        self.with(|kernel| {
            kernel.sent.push(message);
            kernel.is_readable |= std::mem::take(&mut kernel.is_armed);
        });
        self.changed.notify_all();
    }

    /// A poll of the port disarms it, and takes what made its descriptor readable.
    fn poll(&self) -> Option<u8> {
        self.with(|kernel| {
            (kernel.is_armed, kernel.is_readable) = (false, false);
            (!kernel.sent.is_empty()).then(|| kernel.sent.remove(0))
        })
    }

    fn arm(&self) -> bool {
        self.with(|kernel| {
            kernel.is_armed = kernel.sent.is_empty();
            kernel.is_armed
        })
    }

    /// Sleeps until the descriptor is readable or this bell was rung. Returns whether it was.
    fn sleep(&self, bell: usize) -> bool {
        let mut kernel = self.kernel.lock().expect("no panic");
        while !kernel.is_readable && !kernel.rung[bell] {
            kernel = self.changed.wait(kernel).expect("no panic");
        }
        kernel.rung[bell]
    }

    fn drain(&self, bell: usize) {
        self.with(|kernel| kernel.rung[bell] = false);
    }
}

struct Bell {
    world: Arc<World>,
    number: usize,
}

impl Ring for Bell {
    fn ring(&self) {
        self.world.with(|kernel| kernel.rung[self.number] = true);
        self.world.changed.notify_all();
    }
}

struct State {
    kept: Vec<u8>,
    sleepers: Sleepers<Bell>,
    bells_made: usize,
}

/// How a thread's turn has ended.
enum Look {
    Found,
    /// The port may have something.
    Again,
    Asleep(Arc<Bell>),
}

/// A port that threads share.
struct Shared {
    world: Arc<World>,
    state: Mutex<State>,
    watcher_bell: Bell,
}

/// The number of the event loop's bell.
const WATCHER: usize = 2;

impl Shared {
    fn new() -> Self {
        let world = Arc::new(World::default());
        let watcher_bell = Bell { world: world.clone(), number: WATCHER };
        let state = State { kept: Vec::new(), sleepers: Sleepers::new(), bells_made: 0 };
        Self { world, state: Mutex::new(state), watcher_bell }
    }

    /// A turn with the port, as `Turn` ends it.
    fn turn<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().expect("no panic");
        let result = work(&mut state);
        state.sleepers.end_turn(Some(&self.watcher_bell));
        result
    }

    /// Takes messages until the wanted one is found or there are no more, as `State::take_until` does.
    fn take(&self, state: &mut State, wanted: u8) -> bool {
        let attempt = |state: &mut State| {
            let place = state.kept.iter().position(|message| *message == wanted)?;
            Some(state.kept.remove(place))
        };
        let mut found = attempt(state);
        while found.is_none() {
            state.sleepers.note_poll();
            let Some(message) = self.world.poll() else { break };
            state.kept.push(message);
            found = attempt(state);
            if found.is_none() {
                state.sleepers.note_news();
            }
        }
        found.is_some()
    }

    fn arm(&self, state: &mut State) -> bool {
        let is_armed = self.world.arm();
        if is_armed {
            state.sleepers.note_arming();
        } else {
            state.sleepers.note_poll();
        }
        is_armed
    }

    /// A thread waits for a message, as `Shared::round` does.
    fn wait(&self, wanted: u8) {
        loop {
            match self.turn(|state| self.look(state, wanted)) {
                Look::Found => return,
                Look::Again => {}
                Look::Asleep(bell) => {
                    if self.world.sleep(bell.number) {
                        self.world.drain(bell.number);
                    }
                    self.turn(|state| state.sleepers.wake_up(bell));
                }
            }
        }
    }

    fn look(&self, state: &mut State, wanted: u8) -> Look {
        if self.take(state, wanted) {
            return Look::Found;
        }
        if !self.arm(state) {
            return Look::Again;
        }
        let bell = state.sleepers.spare_bell().unwrap_or_else(|| {
            state.bells_made += 1;
            Arc::new(Bell { world: self.world.clone(), number: state.bells_made - 1 })
        });
        state.sleepers.end_turn(Some(&self.watcher_bell));
        state.sleepers.fall_asleep(bell.clone());
        Look::Asleep(bell)
    }

    /// An event loop waits for a message: it looks, arms, sleeps, and notes that it is awake.
    fn watch(&self, wanted: u8) {
        while !self.turn(|state| self.take(state, wanted)) {
            let may_sleep = self.turn(|state| {
                if state.sleepers.take_watcher_ring() {
                    self.world.drain(WATCHER);
                }
                if state.sleepers.take_watcher_news() || !self.arm(state) {
                    return false;
                }
                state.sleepers.watch();
                true
            });
            if may_sleep {
                self.world.sleep(WATCHER);
                self.turn(|state| {
                    if state.sleepers.take_watcher_ring() {
                        self.world.drain(WATCHER);
                    }
                });
            }
        }
    }
}

fn explore(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(check);
}

/// A thread waits for one message, this one `takes` the other, and a peer sends both in either order.
fn explore_a_message_each(takes: fn(&Shared, u8)) {
    for messages in [[0, 1], [1, 0]] {
        explore(move || {
            let shared = Arc::new(Shared::new());
            let other = shared.clone();
            let thread = loom::thread::spawn(move || other.wait(1));
            let peer = shared.clone();
            let sender = loom::thread::spawn(move || {
                messages.into_iter().for_each(|message| peer.world.send(message))
            });
            takes(&shared, 0);
            thread.join().expect("thread");
            sender.join().expect("peer");
        });
    }
}

/// Whichever of two threads wakes first takes the messages of both, in either order.
#[test]
fn two_threads_that_wait_for_one_port_get_a_message_each() {
    explore_a_message_each(Shared::wait);
}

/// A thread puts a message by and goes on waiting. Nothing else comes until that message is taken.
#[test]
fn a_thread_that_goes_on_waiting_wakes_those_whose_message_it_puts_by() {
    for is_watched in [false, true] {
        explore(move || {
            let shared = Arc::new(Shared::new());
            let other = shared.clone();
            let thread = loom::thread::spawn(move || other.wait(1));
            let peer = shared.clone();
            let sender = loom::thread::spawn(move || peer.world.send(0));
            if is_watched {
                shared.watch(0)
            } else {
                shared.wait(0)
            }
            shared.world.send(1);
            thread.join().expect("thread");
            sender.join().expect("peer");
        });
    }
}

/// A thread that takes a message off the port wakes the event loop that waits for it, and the other way round.
#[test]
fn a_thread_and_an_event_loop_get_a_message_each() {
    explore_a_message_each(Shared::watch);
}

/// A call that never waits takes what others sleep for, and leaves.
#[test]
fn a_call_that_only_looks_wakes_those_whose_message_it_puts_by() {
    for is_watched in [false, true] {
        explore(move || {
            let shared = Arc::new(Shared::new());
            let other = shared.clone();
            let waiter = loom::thread::spawn(move || if is_watched { other.watch(0) } else { other.wait(0) });
            let peer = shared.clone();
            let sender = loom::thread::spawn(move || peer.world.send(0));
            assert!(!shared.turn(|state| shared.take(state, 9)));
            waiter.join().expect("thread");
            sender.join().expect("peer");
        });
    }
}
