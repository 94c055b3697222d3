//! The machine's own speed at one moment, independent of the measurements on it.
//!
//! A virtual machine changes for seconds or minutes: its cores move apart, its host grows busy. A probe of a few
//! milliseconds runs before and after each pair, so that two sessions can be compared over pairs with the same machine
//! speed.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bywire_analysis::statistics::median;

use crate::pin;

pub use bywire_results::moment::{MachineSpeed, Moment};

/// The number of readings of each quantity, of which the median counts.
const READINGS: usize = 7;
/// Hand-overs of a line in one reading.
const HANDOVERS: u64 = 1000;
/// Steps of arithmetic in one reading.
const STEPS: u64 = 20_000;
/// Wake-ups there and back in one reading.
const WAKES: u64 = 8;
/// Another program on the core must not hold up a session.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Seconds since 1970.
pub fn now_unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Reads it now between two cores of this machine, in about 5 ms.
pub fn read(source: Option<u32>, target: Option<u32>) -> MachineSpeed {
    source.zip(target).filter(|(source, target)| source != target).and_then(between).unwrap_or_default()
}

fn between((source, target): (u32, u32)) -> Option<MachineSpeed> {
    let (near, far) = UnixStream::pair().ok()?;
    let line = Line::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if pin::pin_to(target).is_ok() {
                line.answer();
                let _source_gave_up = answer(far);
            }
        });
        let reading = scope.spawn(|| {
            pin::pin_to(source).ok()?;
            Some(MachineSpeed { line_ns: line.ask(), step_ns: step_ns(), wake_ns: ask(near) })
        });
        reading.join().ok().flatten()
    })
}

/// A cache line that two threads hand to each other. Only its value crosses, so `Relaxed` suffices.
#[derive(Default)]
#[repr(align(128))]
struct Line {
    count: AtomicU64,
    over: AtomicBool,
}

impl Line {
    fn ask(&self) -> Option<f64> {
        let median = median_of(|| self.reading());
        self.over.store(true, Ordering::Relaxed);
        median
    }

    fn reading(&self) -> Option<f64> {
        let first = self.count.load(Ordering::Relaxed);
        let started = Instant::now();
        for handover in 0..HANDOVERS {
            let asked = first + 2 * handover + 1;
            self.count.store(asked, Ordering::Relaxed);
            let mut looks = 0u32;
            while self.count.load(Ordering::Relaxed) == asked {
                looks += 1;
                if looks.is_multiple_of(4096) && started.elapsed() > TIMEOUT {
                    return None;
                }
            }
        }
        Some(started.elapsed().as_nanos() as f64 / HANDOVERS as f64 / 2.0)
    }

    fn answer(&self) {
        while !self.over.load(Ordering::Relaxed) {
            for _ in 0..1024 {
                let count = self.count.load(Ordering::Relaxed);
                if count % 2 == 1 {
                    self.count.store(count + 1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A chain of arithmetic in which each step depends on the one before.
fn step_ns() -> Option<f64> {
    median_of(|| {
        let started = Instant::now();
        let mut value = started.elapsed().as_nanos() as u64 | 1;
        for _ in 0..STEPS {
            value ^= value << 13;
            value ^= value >> 7;
        }
        std::hint::black_box(value);
        Some(started.elapsed().as_nanos() as f64 / STEPS as f64)
    })
}

/// The median of several readings. Absent if one of them is.
fn median_of(reading: impl FnMut() -> Option<f64>) -> Option<f64> {
    let readings: Option<Vec<f64>> = std::iter::repeat_with(reading).take(READINGS).collect();
    readings.map(|readings| median(&readings))
}

fn ask(mut socket: UnixStream) -> Option<f64> {
    socket.set_read_timeout(Some(TIMEOUT)).ok()?;
    let mut byte = [0];
    median_of(|| {
        let started = Instant::now();
        for _ in 0..WAKES {
            socket.write_all(&byte).ok()?;
            socket.read_exact(&mut byte).ok()?;
        }
        Some(started.elapsed().as_nanos() as f64 / WAKES as f64 / 2.0)
    })
}

fn answer(mut socket: UnixStream) -> io::Result<()> {
    socket.set_read_timeout(Some(4 * TIMEOUT))?;
    let mut byte = [0];
    // It ends with the other side's socket.
    loop {
        socket.read_exact(&mut byte)?;
        socket.write_all(&byte)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_are_read_in_a_few_milliseconds_and_one_core_is_not() {
        let (source, target) = pin::two_cores();
        let timed = || {
            let started = Instant::now();
            (read(Some(source), Some(target)), started.elapsed())
        };
        // A machine that is held up once does not make the probe slow.
        let readings = [timed(), timed(), timed()];
        assert!(readings.iter().any(|reading| reading.1 < Duration::from_secs(2)), "{readings:?}");
        let speed = readings[0].0;
        if source == target {
            eprintln!("not run: a machine of one core has no second one to read");
            return;
        }
        let step = speed.step_ns.unwrap();
        assert!(step > 0.05 && step < 1000.0, "{speed:?}");
        assert_eq!(read(Some(source), Some(source)), MachineSpeed::default());
        assert_eq!(read(Some(source), None), MachineSpeed::default());
    }
}
