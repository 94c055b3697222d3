//! A bare ring of cache lines between two cores: what bounds every message layer that is built on one.
//!
//! Nothing of Bywire runs here. A line holds one message, a header word and a payload word. The producer stores both,
//! some words of its own (a message layer keeps counts), and then fences or does not; the consumer follows it. Beside
//! each rate stands how long a line takes from core to core just before and just after, because virtual cores move.
//!
//! ```text
//! bare_ring [ROUNDS]
//! ```

use std::hint;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use bywire_measure::{ending, pin};

/// Lines of the ring: those of a port's lane.
const LINES: usize = 256;
const MESSAGES: u64 = 2_000_000;
const ROUND_TRIPS: u64 = 4_000;
/// Turns in which the producer fills half of the ring while the consumer looks away, and the other way round.
const TURNS: u64 = 2_000;

#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; 8]);

struct Ring {
    lines: Vec<Line>,
    /// Messages that the consumer has freed.
    freed: Line,
}

/// How a message is published before the next one begins.
#[derive(Clone, Copy)]
enum Publication {
    Store,
    Locked,
    Fenced,
}

impl Publication {
    const ALL: [(Self, &str); 3] =
        [(Self::Store, "no fence"), (Self::Locked, "locked instruction"), (Self::Fenced, "full fence")];

    #[inline(always)]
    fn order(self, own: &AtomicU64) {
        match self {
            Self::Store => {}
            // SeqCst: for its price alone. No other thread knows this word.
            Self::Locked => drop(own.fetch_add(1, Ordering::SeqCst)),
            // SeqCst: for its price alone.
            Self::Fenced => fence(Ordering::SeqCst),
        }
    }
}

impl Ring {
    fn new() -> Arc<Self> {
        Arc::new(Self { lines: (0..LINES).map(|_| Line::default()).collect(), freed: Line::default() })
    }

    fn line(&self, position: u64) -> &[AtomicU64; 8] {
        &self.lines[position as usize % LINES].0
    }

    /// Publishes the message of a position; a header tells the lap.
    #[inline(always)]
    fn publish(&self, position: u64) {
        let line = self.line(position);
        line[1].store(position, Ordering::Relaxed);
        // Release: pairs with the acquire load in `take`.
        line[0].store(position / LINES as u64 + 1, Ordering::Release);
    }

    #[inline(always)]
    fn take(&self, position: u64) -> u64 {
        let line = self.line(position);
        // Acquire: pairs with the release store in `publish`.
        while line[0].load(Ordering::Acquire) != position / LINES as u64 + 1 {
            hint::spin_loop();
        }
        line[1].load(Ordering::Relaxed)
    }
}

fn main() -> ExitCode {
    ending::of("bare_ring", measure())
}

fn measure() -> Result<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(3), |text| text.parse()).context("ROUNDS is a number")?;
    let cores = pin::two_cores();
    for round in 0..rounds {
        for (publication, name) in Publication::ALL {
            for stores in [0, 12] {
                let before = half_rtt_ns(cores)?;
                let rate = rate(cores, publication, stores)?;
                let (write, read) = in_turn(cores, publication, stores)?;
                let after = half_rtt_ns(cores)?;
                println!(
                    "round {round}: line {before:.0} and {after:.0} ns; {name}, {stores} stores beside: {rate:.1} M/s; \
                     in turn {write:.1} ns to write, {read:.1} ns to read"
                );
            }
        }
    }
    Ok(())
}

/// Runs `consume` on the second core and `produce` on the first.
fn run<T: Send + 'static>(
    (source, target): (u32, u32),
    consume: impl FnOnce() -> T + Send + 'static,
    produce: impl FnOnce() + Send + 'static,
) -> Result<T> {
    let consumer = thread::spawn(move || pin::pin_to(target).map(|()| consume()));
    let producer = thread::spawn(move || pin::pin_to(source).map(|()| produce()));
    producer.join().map_err(|_| anyhow::anyhow!("the producer panicked"))??;
    Ok(consumer.join().map_err(|_| anyhow::anyhow!("the consumer panicked"))??)
}

/// A line's way from core to core, over all lines of a ring.
fn half_rtt_ns(cores: (u32, u32)) -> Result<f64> {
    let (there, back) = (Ring::new(), Ring::new());
    let (taken, answered) = (Arc::clone(&there), Arc::clone(&back));
    let answer = move || {
        let mut start = Instant::now();
        for position in 0..ROUND_TRIPS {
            if position == ROUND_TRIPS / 4 {
                start = Instant::now();
            }
            taken.take(position);
            answered.publish(position);
        }
        start.elapsed().as_nanos() as f64 / (ROUND_TRIPS * 3 / 4) as f64 / 2.0
    };
    run(cores, answer, move || {
        for position in 0..ROUND_TRIPS {
            there.publish(position);
            back.take(position);
        }
    })
}

/// Millions of messages a second, the consumer at the producer's heels.
fn rate(cores: (u32, u32), publication: Publication, stores: usize) -> Result<f64> {
    let ring = Ring::new();
    let taken = Arc::clone(&ring);
    let consume = move || {
        let (start, mut sum) = (Instant::now(), 0u64);
        for position in 0..MESSAGES {
            sum = sum.wrapping_add(taken.take(position));
            if (position + 1) % (LINES as u64 / 4) == 0 {
                // Release: pairs with the acquire load of the producer's.
                taken.freed.0[0].store(position + 1, Ordering::Release);
            }
        }
        hint::black_box(sum);
        MESSAGES as f64 / start.elapsed().as_nanos() as f64 * 1e3
    };
    run(cores, consume, move || {
        let own = [const { AtomicU64::new(0) }; 16];
        let mut freed = 0;
        for position in 0..MESSAGES {
            while position - freed >= LINES as u64 {
                // Acquire: pairs with the release store of the consumer's.
                freed = ring.freed.0[0].load(Ordering::Acquire);
            }
            own[..stores].iter().for_each(|word| word.store(position, Ordering::Relaxed));
            ring.publish(position);
            publication.order(&own[15]);
        }
    })
}

/// Nanoseconds to write and to read a message, where both ends are never at the same lines at one time.
fn in_turn(cores: (u32, u32), publication: Publication, stores: usize) -> Result<(f64, f64)> {
    let half = LINES as u64 / 2;
    let (ring, turn) = (Ring::new(), Arc::new(AtomicU64::new(0)));
    let (taken, taken_turn) = (Arc::clone(&ring), Arc::clone(&turn));
    let spent = Arc::new(AtomicU64::new(0));
    let written = Arc::clone(&spent);
    let await_turn = |turn: &AtomicU64, wanted: u64| {
        // Acquire: pairs with the release store of whoever had its turn before.
        while turn.load(Ordering::Acquire) != wanted {
            hint::spin_loop();
        }
    };
    let consume = move || {
        let (mut spent_ns, mut sum) = (0, 0u64);
        for round in 0..TURNS {
            await_turn(&taken_turn, 2 * round + 1);
            let start = Instant::now();
            (0..half).for_each(|index| sum = sum.wrapping_add(taken.take(round * half + index)));
            spent_ns += start.elapsed().as_nanos();
            // Release: pairs with the acquire load in `await_turn`.
            taken_turn.store(2 * round + 2, Ordering::Release);
        }
        hint::black_box(sum);
        spent_ns as f64 / (TURNS * half) as f64
    };
    let read = run(cores, consume, move || {
        let own = [const { AtomicU64::new(0) }; 16];
        for round in 0..TURNS {
            await_turn(&turn, 2 * round);
            let start = Instant::now();
            for index in 0..half {
                own[..stores].iter().for_each(|word| word.store(index, Ordering::Relaxed));
                ring.publish(round * half + index);
                publication.order(&own[15]);
            }
            written.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            // Release: pairs with the acquire load in `await_turn`.
            turn.store(2 * round + 1, Ordering::Release);
        }
    })?;
    Ok((spent.load(Ordering::Relaxed) as f64 / (TURNS * half) as f64, read))
}
