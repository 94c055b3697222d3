//! Memory made of loom's atomics, so that the rings' own code runs under the model checker.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use bywire_ring::memory::{Memory, SLOT_WORDS};
use bywire_ring::stream::Segment;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};

/// Checks every interleaving in which the threads are interrupted at most three times.
pub fn explore(check: impl Fn() + Sync + Send + 'static) {
    explore_with(3, check);
}

/// Checks every interleaving in which the threads are interrupted at most so often.
pub fn explore_with(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(check);
}

/// Words under loom; each offset that is used must be among those named at creation.
#[derive(Clone)]
pub struct Modelled {
    words: Arc<Vec<(usize, AtomicU64)>>,
}

impl Modelled {
    /// Only the words at these offsets exist: loom allows few atomics.
    pub fn new(offsets: impl IntoIterator<Item = usize>) -> Self {
        Self { words: Arc::new(offsets.into_iter().map(|offset| (offset, AtomicU64::new(0))).collect()) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let found = self.words.iter().find(|(at, _)| *at == offset);
        &found.unwrap_or_else(|| panic!("offset {offset} is not modelled")).1
    }
}

impl Memory for Modelled {
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    fn load_words(&self, offset: usize) -> [u64; SLOT_WORDS] {
        let mut words = [0; SLOT_WORDS];
        words[0] = Memory::load(self, offset + 8, Ordering::Relaxed);
        words
    }

    fn store_words(&self, offset: usize, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            Memory::store(self, offset + 8 * (index + 1), *word, Ordering::Relaxed);
        }
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        for (index, bytes) in target.chunks_mut(8).enumerate() {
            let word = Memory::load(self, offset + 8 * index, Ordering::Relaxed).to_ne_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    fn write(&self, offset: usize, source: &[u8]) {
        for (index, bytes) in source.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            Memory::store(self, offset + 8 * index, u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    fn expect(&self, _offset: usize) {}

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Segment for Modelled {
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    fn add(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).fetch_add(value, order);
    }

    unsafe fn read(&self, offset: usize, target: *mut u8, length: usize) {
        // SAFETY: the caller vouches for the target.
        Memory::read(self, offset, unsafe { std::slice::from_raw_parts_mut(target, length) });
    }

    unsafe fn write(&self, offset: usize, source: *const u8, length: usize) {
        // SAFETY: the caller vouches for the source.
        Memory::write(self, offset, unsafe { std::slice::from_raw_parts(source, length) });
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The kernel's socket: a reader that finds it empty sleeps until something comes through it, and only that wakes it.
#[derive(Clone)]
pub struct Kernel {
    queue: Arc<(Mutex<VecDeque<u64>>, Condvar)>,
}

impl Kernel {
    pub fn new() -> Self {
        Self { queue: Arc::new((Mutex::new(VecDeque::new()), Condvar::new())) }
    }

    pub fn push(&self, value: u64) {
        self.queue.0.lock().expect("no panic").push_back(value);
        self.queue.1.notify_one();
    }

    pub fn pop(&self) -> u64 {
        let mut queue = self.queue.0.lock().expect("no panic");
        loop {
            match queue.pop_front() {
                Some(value) => return value,
                None => queue = self.queue.1.wait(queue).expect("no panic"),
            }
        }
    }

    pub fn has_some(&self) -> bool {
        !self.queue.0.lock().expect("no panic").is_empty()
    }
}
