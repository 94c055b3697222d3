//! Completions, and the queues in which the program finds them.

use std::collections::VecDeque;
use std::time::Duration;

use bywire::Errno;
use bywire_sys::clock;
use bywire_sys::poller::Poller;
use bywire_sys::wake::Eventfd;

use crate::abi::FI_RECV;

/// The most completions that wait in a queue. When it is reached, operations are refused until the program has read some.
const WAITING_MAX: usize = 1 << 20;
/// The most bytes of a short message.
const SHORT_BYTES: u64 = 4096;
/// A read that follows within this time on one that has emptied the queue only asks whether there is more.
const AT_ONCE: Duration = Duration::from_micros(1);
/// The most such reads in a row that are answered without a look at the endpoints. The next one looks, so the endpoints move on.
const UNLOOKED_MAX: u32 = 8;

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

impl Completion {
    /// Is it that of a short message that was received?
    pub fn is_short_receive(&self) -> bool {
        self.flags & FI_RECV != 0 && self.length <= SHORT_BYTES
    }
}

/// A queue of completions.
#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<Completion>,
    /// For sleeping programs: ready when there may be a completion.
    sleep: Option<Sleep>,
    is_interrupted: bool,
    /// When a read has emptied it, in cycles, until the next read. What that took were short messages.
    emptied_at: Option<u64>,
    /// [`AT_ONCE`] in cycles.
    at_once: u64,
    /// Reads in a row that were answered without a look.
    unlooked: u32,
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
        Ok(Self {
            waiting: VecDeque::new(),
            sleep,
            is_interrupted: false,
            emptied_at: None,
            at_once: clock::cycles_in(AT_ONCE),
            unlooked: 0,
        })
    }

    /// A read has emptied the queue of short messages, at `now` in cycles.
    pub fn emptied(&mut self, now: u64) {
        self.emptied_at = Some(now);
    }

    /// Does a read of the empty queue only ask whether there is more after what the last one has brought? Open MPI reads until nothing
    /// is left. It looks for further messages soon enough, and a look takes as long as all else that it does for a message. The result
    /// is the time then.
    pub fn asks_for_more(&mut self, now: impl FnOnce() -> u64) -> Option<u64> {
        let emptied_at = self.emptied_at.take().filter(|_| self.unlooked < UNLOOKED_MAX);
        let time =
            emptied_at.and_then(|emptied| Some(now()).filter(|now| now.wrapping_sub(emptied) < self.at_once));
        self.unlooked = if time.is_some() { self.unlooked + 1 } else { 0 };
        time
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_follows_at_once_on_one_that_has_emptied_the_queue_looks_for_nothing() {
        let mut queue = Queue::new(false).expect("a queue");
        assert!(queue.asks_for_more(|| 0).is_none(), "no read came before");
        queue.emptied(1000);
        assert_eq!(queue.asks_for_more(|| 1001), Some(1001));
        assert!(queue.asks_for_more(|| 1002).is_none(), "the second one looks");
        queue.emptied(1000);
        assert!(queue.asks_for_more(|| 1000 + clock::cycles_in(AT_ONCE)).is_none(), "the program was away");
    }

    #[test]
    fn endpoints_move_on_however_often_reads_empty_the_queue() {
        let mut queue = Queue::new(false).expect("a queue");
        let looks = (0..100).filter(|_| {
            queue.emptied(1000);
            queue.asks_for_more(|| 1001).is_none()
        });
        assert_eq!(looks.count(), 100 / (UNLOOKED_MAX as usize + 1));
    }
}
