//! A bare ring of cache lines between two cores: the bound of every message layer that is built on one.
//!
//! Nothing of Bywire runs here. A line holds one message, a header word and a payload word. The producer stores both
//! and some words of its own (a message layer keeps counts), and then issues a fence or not. The consumer follows it.

use std::hint;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};
use bywire_measure::clock::Clock;
use bywire_measure::pin;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::contestant::{Contestant, Metric, Samples, Unit};

/// Lines of the ring: those of a port's lane. The producer leaves eight of them free, which it may claim.
const LINES: usize = 256;
const MESSAGES: u64 = 2_000_000;
const ROUND_TRIPS: u64 = 4_000;
/// Round trips that are timed individually.
const TIMED_ROUND_TRIPS: u64 = 200_000;
/// Turns in which the producer fills half of the ring while the consumer looks away, and the reverse.
const TURNS: u64 = 2_000;

#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; 8]);

struct Ring {
    /// The lines as the producer and as the consumer have them mapped.
    written: &'static [Line],
    read: &'static [Line],
    /// Messages that the consumer has freed.
    freed: Line,
}

/// How the producer gets the lines that it is about to write out of the consumer's cache.
#[derive(Clone, Copy)]
pub enum Claim {
    /// By the store to the line.
    Late,
    /// By a prefetch for writing of a line 64 places ahead.
    Prefetch,
    /// By a store to each of eight lines, after every eight messages.
    Stores,
}

impl Claim {
    pub const ALL: [(Self, &str); 3] =
        [(Self::Late, "no claim"), (Self::Prefetch, "prefetch"), (Self::Stores, "early stores")];
}

/// A mapping through which the reader could also write.
pub const WRITABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

#[derive(Clone, Copy)]
pub struct Variant {
    /// The order after each message.
    pub publication: Publication,
    /// The producer's own stores beside each message.
    pub stores: usize,
    /// How the producer gets its lines.
    pub claim: Claim,
    /// How the consumer has the lines mapped.
    pub reader: ProtFlags,
}

/// Like a port's lanes: a read-only mapping of the reader, lines claimed early, and, ordered after each message, a
/// check whether the reader sleeps.
pub const AS_A_PORT: Variant =
    Variant { publication: Publication::Locked, stores: 12, claim: Claim::Stores, reader: ProtFlags::READ };

/// How a message is published before the next one begins.
#[derive(Clone, Copy)]
pub enum Publication {
    Store,
    /// A locked instruction follows.
    Locked,
    /// A full fence follows.
    Fenced,
}

impl Publication {
    pub const ALL: [(Self, &str); 3] =
        [(Self::Store, "no fence"), (Self::Locked, "locked instruction"), (Self::Fenced, "full fence")];

    #[inline(always)]
    fn order(self, own: &AtomicU64) {
        match self {
            Self::Store => {}
            // SeqCst: only for its cost. No other thread knows this word.
            Self::Locked => drop(own.fetch_add(1, Ordering::SeqCst)),
            // SeqCst: only for its cost.
            Self::Fenced => fence(Ordering::SeqCst),
        }
    }
}

impl Ring {
    fn new(reader: ProtFlags) -> Result<Self> {
        let file = memfd_create("bare-ring", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (LINES * size_of::<Line>()) as u64)?;
        Ok(Self { written: mapped(&file, WRITABLE)?, read: mapped(&file, reader)?, freed: Line::default() })
    }

    /// After the message of a position was published.
    #[inline(always)]
    fn claim(&self, position: u64, claim: Claim) {
        match claim {
            Claim::Late => {}
            Claim::Prefetch => prefetch_for_writing(&self.written[(position + 64) as usize % LINES]),
            Claim::Stores if position % 8 == 7 => (1..=8).for_each(|next| {
                self.written[(position + next) as usize % LINES].0[7].store(0, Ordering::Relaxed);
            }),
            Claim::Stores => {}
        }
    }

    /// Publishes the message of a position; a header tells the lap.
    #[inline(always)]
    fn publish(&self, position: u64) {
        let line = &self.written[position as usize % LINES].0;
        line[1].store(position, Ordering::Relaxed);
        // Release: pairs with the acquire load in `take`.
        line[0].store(position / LINES as u64 + 1, Ordering::Release);
    }

    #[inline(always)]
    fn take(&self, position: u64) -> u64 {
        let line = &self.read[position as usize % LINES].0;
        // Acquire: pairs with the release store in `publish`.
        while line[0].load(Ordering::Acquire) != position / LINES as u64 + 1 {
            hint::spin_loop();
        }
        line[1].load(Ordering::Relaxed)
    }
}

/// A view of a ring's lines that stays until the program ends.
fn mapped(file: &OwnedFd, protection: ProtFlags) -> Result<&'static [Line]> {
    let bytes = LINES * size_of::<Line>();
    // SAFETY: the kernel chooses a place that is free; the file is as long as the mapping, and stays so.
    let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)? };
    // SAFETY: mapped for good and aligned to a page; a line is made of atomics, of which every value is one.
    Ok(unsafe { std::slice::from_raw_parts(base.cast(), LINES) })
}

fn prefetch_for_writing(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch touches nothing and cannot fault.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The producing end, with words of its own.
struct Producer<'a> {
    ring: &'a Ring,
    variant: Variant,
    own: [AtomicU64; 16],
}

impl<'a> Producer<'a> {
    fn new(ring: &'a Ring, variant: Variant) -> Self {
        Self { ring, variant, own: [const { AtomicU64::new(0) }; 16] }
    }

    /// Publishes the message of a position in the manner of the variant.
    #[inline(always)]
    fn send(&self, position: u64) {
        self.own[..self.variant.stores].iter().for_each(|word| word.store(position, Ordering::Relaxed));
        self.ring.publish(position);
        self.variant.publication.order(&self.own[15]);
        self.ring.claim(position, self.variant.claim);
    }
}

/// Runs each end on its core, and returns what they return. Both are pinned before either begins: otherwise one could wait forever
/// for the other.
pub fn on_two_cores<S: Send, T: Send>(
    source: impl FnOnce() -> S + Send,
    target: impl FnOnce() -> T + Send,
) -> Result<(S, T)> {
    let (source_core, target_core) = pin::two_cores();
    let (barrier, failures) = (&Barrier::new(2), &AtomicU64::new(0));
    let pinned = move |core: u32| {
        let pinned = pin::pin_to(core);
        // Relaxed: the barrier orders it.
        failures.fetch_add(u64::from(pinned.is_err()), Ordering::Relaxed);
        barrier.wait();
        pinned.and_then(|()| match failures.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(std::io::Error::other("the other end was not pinned to its core")),
        })
    };
    thread::scope(|scope| {
        let target = scope.spawn(move || pinned(target_core).map(|()| target()));
        let source = scope.spawn(move || pinned(source_core).map(|()| source()));
        let source = source.join().map_err(|_| anyhow!("the source panicked"))??;
        Ok((source, target.join().map_err(|_| anyhow!("the target panicked"))??))
    })
}

/// The transfer of a line from core to core, over all lines of a ring.
pub fn half_rtt_ns() -> Result<f64> {
    let (there, back) = (Ring::new(WRITABLE)?, Ring::new(WRITABLE)?);
    let ask = || {
        for position in 0..ROUND_TRIPS {
            there.publish(position);
            back.take(position);
        }
    };
    let answer = || {
        let mut start = Instant::now();
        for position in 0..ROUND_TRIPS {
            if position == ROUND_TRIPS / 4 {
                start = Instant::now();
            }
            there.take(position);
            back.publish(position);
        }
        start.elapsed().as_nanos() as f64 / (ROUND_TRIPS * 3 / 4) as f64 / 2.0
    };
    Ok(on_two_cores(ask, answer)?.1)
}

/// Millions of messages per second, with the consumer directly behind the producer.
pub fn rate(variant: Variant) -> Result<f64> {
    let ring = Ring::new(variant.reader)?;
    let produce = || {
        let (producer, mut freed) = (Producer::new(&ring, variant), 0);
        for position in 0..MESSAGES {
            while position - freed >= LINES as u64 - 8 {
                // Acquire: pairs with the release store of the consumer's.
                freed = ring.freed.0[0].load(Ordering::Acquire);
            }
            producer.send(position);
        }
    };
    let consume = || {
        let (start, mut sum) = (Instant::now(), 0u64);
        for position in 0..MESSAGES {
            sum = sum.wrapping_add(ring.take(position));
            if (position + 1) % (LINES as u64 / 4) == 0 {
                // Release: pairs with the acquire load of the producer's.
                ring.freed.0[0].store(position + 1, Ordering::Release);
            }
        }
        hint::black_box(sum);
        MESSAGES as f64 / start.elapsed().as_nanos() as f64 * 1e3
    };
    Ok(on_two_cores(produce, consume)?.1)
}

/// Nanoseconds to write and to read a message, where both ends are never at the same lines at one time.
pub fn in_turn(variant: Variant) -> Result<(f64, f64)> {
    let half = LINES as u64 / 2;
    let (ring, turn) = (Ring::new(variant.reader)?, AtomicU64::new(0));
    // The mean time of a message, where the work of each round begins at this turn.
    let in_turns = |first: u64, work: &mut dyn FnMut(u64)| {
        let mut spent_ns = 0;
        for round in 0..TURNS {
            // Acquire: pairs with the release store of whoever had its turn before.
            while turn.load(Ordering::Acquire) != 2 * round + first {
                hint::spin_loop();
            }
            let start = Instant::now();
            work(round);
            spent_ns += start.elapsed().as_nanos();
            // Release: pairs with the acquire load of the other end's.
            turn.store(2 * round + first + 1, Ordering::Release);
        }
        spent_ns as f64 / (TURNS * half) as f64
    };
    let produce = || {
        let producer = Producer::new(&ring, variant);
        in_turns(0, &mut |round| (0..half).for_each(|index| producer.send(round * half + index)))
    };
    let consume = || {
        let mut sum = 0u64;
        let mut read =
            |round: u64| (0..half).for_each(|index| sum = sum.wrapping_add(ring.take(round * half + index)));
        let read_ns = in_turns(1, &mut read);
        hint::black_box(sum);
        read_ns
    };
    on_two_cores(produce, consume)
}

/// The median half-RTT where each round trip is timed by the laboratory's clock and both ends behave as `variant` says.
fn timed_half_rtt_ns(variant: Variant) -> Result<f64> {
    let (there, back) = (Ring::new(variant.reader)?, Ring::new(variant.reader)?);
    let ask = || {
        let (producer, clock) = (Producer::new(&there, variant), Clock::shared());
        let mut round_trips = Vec::with_capacity(TIMED_ROUND_TRIPS as usize);
        for position in 0..TIMED_ROUND_TRIPS {
            let sent = clock.now_ns();
            producer.send(position);
            hint::black_box(back.take(position));
            round_trips.push(clock.now_ns() - sent);
        }
        round_trips.sort_unstable();
        round_trips[round_trips.len() / 2] as f64 / 2.0
    };
    let answer = || {
        let producer = Producer::new(&back, variant);
        (0..TIMED_ROUND_TRIPS).for_each(|position| producer.send(there.take(position)));
    };
    Ok(on_two_cores(ask, answer)?.0)
}

/// [`Metric::HalfRtt`], [`Metric::Messages`] and [`Metric::Overhead`] of rings [as a port's](AS_A_PORT).
pub fn contestant() -> Contestant {
    Contestant::adapter("./x figures messages (a bare ring)", Unit::Nanoseconds, samples)
}

fn samples() -> Result<Samples> {
    let (write_ns, read_ns) = in_turn(AS_A_PORT)?;
    Ok(vec![
        (Metric::HalfRtt, timed_half_rtt_ns(AS_A_PORT)?),
        (Metric::Messages, rate(AS_A_PORT)? * 1e6),
        (Metric::Overhead, write_ns + read_ns),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_ring_yields_all_of_its_series() {
        let samples = samples().unwrap();
        assert_eq!(samples.len(), 3);
        assert!(samples.iter().all(|(_, value)| *value > 0.0), "{samples:?}");
    }
}
