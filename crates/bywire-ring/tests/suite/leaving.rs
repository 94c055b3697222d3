//! Every interleaving of calls that go into the kernel or sleep with a socket, and of what takes it away from under them.
//!
//! loom knows accesses of one total order by their fences alone: so each has one before and behind it here, as on processors
//! that make that order by fences.

use std::sync::atomic::Ordering;

use bywire_ring::word::Word;
use bywire_ring::{passage, waiters};
use loom::cell::UnsafeCell;
use loom::sync::Arc;

use crate::model::explore;

#[derive(Default)]
struct Modelled(loom::sync::atomic::AtomicU32);

impl Modelled {
    fn ordered<T>(&self, order: Ordering, access: impl FnOnce(&loom::sync::atomic::AtomicU32) -> T) -> T {
        let fence = || {
            if order == Ordering::SeqCst {
                loom::sync::atomic::fence(Ordering::SeqCst);
            }
        };
        fence();
        let result = access(&self.0);
        fence();
        result
    }
}

impl Word for Modelled {
    fn load(&self, order: Ordering) -> u32 {
        self.ordered(order, |word| word.load(order))
    }

    fn store(&self, value: u32, order: Ordering) {
        self.ordered(order, |word| word.store(value, order));
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.ordered(order, |word| word.swap(value, order))
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.ordered(order, |word| word.fetch_add(value, order))
    }

    fn compare_exchange(&self, found: u32, value: u32, order: Ordering) -> Result<u32, u32> {
        self.ordered(order, |word| word.compare_exchange(found, value, order, Ordering::Relaxed))
    }
}

const CARRIED: u32 = 3;

/// A socket: receivers, senders and pollers in the kernel, and what they have moved there.
#[derive(Default)]
struct Socket {
    stage: Modelled,
    counts: [Modelled; 3],
    moved: UnsafeCell<u32>,
}

impl Socket {
    /// `false`: it is carried.
    fn call(&self, kind: usize) -> bool {
        passage::enter(&self.counts[kind]);
        let is_open = passage::is_open(&self.stage, CARRIED);
        if is_open {
            // SAFETY: one call of the model moves bytes; loom ends the model if the socket is taken out of the kernel meanwhile.
            self.moved.with_mut(|moved| unsafe { *moved += 1 });
        }
        passage::leave(&self.counts[kind]);
        is_open
    }

    /// Takes it out of the kernel, if nobody is there: what had been moved by then.
    fn prepare(&self) -> Option<u32> {
        let [first, second, third] = &self.counts;
        if passage::close(&self.stage, CARRIED, [first, second, third]) {
            // SAFETY: nobody is in the kernel; loom ends the model if somebody is.
            return Some(self.moved.with(|moved| unsafe { *moved }));
        }
        passage::open(&self.stage, 0);
        None
    }
}

#[test]
fn no_call_is_in_the_kernel_with_a_socket_that_has_left_it() {
    explore(|| {
        let socket = Arc::new(Socket::default());
        let (caller, poller) = (Arc::clone(&socket), Arc::clone(&socket));
        let threads = [
            loom::thread::spawn(move || u32::from(caller.call(0)) + u32::from(caller.call(1))),
            loom::thread::spawn(move || {
                passage::enter(&poller.counts[2]);
                let _waits = passage::is_open(&poller.stage, CARRIED);
                passage::leave(&poller.counts[2]);
                0
            }),
        ];
        let found = socket.prepare();
        let moved: u32 = threads.into_iter().map(|thread| thread.join().expect("a call")).sum();
        assert!(found.is_none_or(|found| found == moved), "bytes went through the kernel behind the account");
        // Behind all of them, it leaves.
        assert!(found.is_some() || socket.prepare() == Some(moved));
    });
}

/// The sleepers of a socket, and how often the descriptor that is kept for them was closed.
#[derive(Default)]
struct Closing {
    waiters: Modelled,
    kept: Modelled,
    closed: Modelled,
    /// Used by the calls that wait after the close, cleared by the thread that closes the kept descriptor.
    descriptor: UnsafeCell<u32>,
}

impl Closing {
    fn close(&self, kept: Option<u32>) {
        if kept.is_some() {
            // SAFETY: nobody waits any more; loom ends the model if somebody uses it.
            self.descriptor.with_mut(|descriptor| unsafe { *descriptor = 0 });
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end(&self) {
        waiters::end(&self.waiters);
        self.close(waiters::left(&self.waiters, &self.kept));
    }
}

/// One waits since before the close, and another one comes at the same time, which looks at the descriptor's meaning for itself.
#[test]
fn files_kept_for_waiters_are_closed_once_and_not_while_they_wait() {
    explore(|| {
        let closing = Arc::new(Closing::default());
        waiters::begin(&closing.waiters);
        let [first, second] = [Arc::clone(&closing), Arc::clone(&closing)];
        let threads = [
            loom::thread::spawn(move || {
                if first.kept.load(Ordering::SeqCst) != 0 {
                    // SAFETY: it is kept for this waiter; loom ends the model if somebody closes it.
                    first.descriptor.with(|descriptor| unsafe { *descriptor });
                }
                first.end();
            }),
            loom::thread::spawn(move || {
                waiters::begin(&second.waiters);
                second.end();
            }),
        ];
        let is_kept = waiters::are_there(&closing.waiters);
        if is_kept {
            closing.close(waiters::keep(&closing.waiters, &closing.kept, 7));
        }
        threads.into_iter().for_each(|thread| thread.join().expect("a waiter"));
        assert_eq!(closing.kept.load(Ordering::Relaxed), 0, "nothing is kept for nobody");
        assert_eq!(closing.closed.load(Ordering::Relaxed), u32::from(is_kept), "closed once, if it was kept");
    });
}
