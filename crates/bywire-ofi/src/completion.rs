//! Completions, and the queues in which the program finds them.

use std::collections::VecDeque;

use bywire::Errno;
use bywire_sys::poller::Poller;
use bywire_sys::wake::Eventfd;

/// The most completions that wait in a queue. When it is reached, operations are refused until the program has read some.
const WAITING_MAX: usize = 1 << 20;

/// What a completed operation reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The program's word for the operation.
    pub context: usize,
    pub flags: u64,
    pub length: u64,
    /// The address of the buffer.
    pub buffer: usize,
    pub data: u64,
    pub tag: u64,
    /// The source's index in the address vector, or `FI_ADDR_UNSPEC`.
    pub source: u64,
    /// 0, or the error.
    pub error: i32,
    /// Bytes that had no room.
    pub overflow: u64,
}

/// A queue of completions.
#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<Completion>,
    /// For sleeping programs: ready when there may be a completion.
    sleep: Option<Sleep>,
    is_interrupted: bool,
}

#[derive(Debug)]
struct Sleep {
    poller: Poller,
    signal: Eventfd,
}

impl Queue {
    /// # Errors
    /// The kernel's, if the queue is to have a descriptor.
    pub fn new(has_descriptor: bool) -> Result<Self, Errno> {
        let sleep = match has_descriptor {
            true => {
                let sleep = Sleep { poller: Poller::new()?, signal: Eventfd::new()? };
                sleep.poller.add(&sleep.signal, 0)?;
                Some(sleep)
            }
            false => None,
        };
        Ok(Self { waiting: VecDeque::new(), sleep, is_interrupted: false })
    }

    #[inline]
    pub fn push(&mut self, completion: Completion) {
        if self.waiting.is_empty() {
            self.signal();
        }
        self.waiting.push_back(completion);
    }

    /// Has it no room?
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Is the next one an error?
    pub fn has_error(&self) -> bool {
        self.waiting.front().is_some_and(|completion| completion.error != 0)
    }

    /// Shows the next ones to `take`, as far as they are no errors, `max` at most, and drops them. The result says how many.
    #[inline]
    pub fn take(&mut self, max: usize, mut take: impl FnMut(usize, &Completion)) -> usize {
        let mut taken = 0;
        while taken < max
            && let Some(completion) = self.waiting.front().filter(|completion| completion.error == 0)
        {
            take(taken, completion);
            taken += 1;
            self.waiting.pop_front();
        }
        taken
    }

    /// The next one, if it is an error.
    pub fn pop_error(&mut self) -> Option<Completion> {
        if self.has_error() { self.waiting.pop_front() } else { None }
    }

    /// The set of descriptors that a sleeping program waits for.
    pub fn poller(&self) -> Option<&Poller> {
        self.sleep.as_ref().map(|sleep| &sleep.poller)
    }

    /// Wakes a sleeping program.
    pub fn signal(&self) {
        if let Some(sleep) = &self.sleep {
            sleep.signal.signal();
        }
    }

    /// Makes a sleeping program return without a completion.
    pub fn interrupt(&mut self) {
        self.is_interrupted = true;
        self.signal();
    }

    /// Was the program interrupted?
    pub fn take_interrupt(&mut self) -> bool {
        std::mem::take(&mut self.is_interrupted)
    }

    /// Takes a signal back.
    pub fn drain(&self) {
        if let Some(sleep) = &self.sleep {
            sleep.signal.drain();
        }
    }
}
