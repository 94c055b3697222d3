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
    let (Some(source), Some(target)) = (source, target) else {
        return MachineSpeed::default();
    };
    if source == target {
        return MachineSpeed::default();
    }
    let Ok((near, far)) = UnixStream::pair() else {
        return MachineSpeed::default();
    };
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
            let line_ns = line.ask();
            let step_ns = step_ns();
            let wake_ns = ask(near).ok();
            Some(MachineSpeed { line_ns, step_ns: Some(step_ns), wake_ns })
        });
        reading.join().ok().flatten().unwrap_or_default()
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
        let readings: Option<Vec<f64>> = (0..READINGS).map(|_| self.reading()).collect();
        self.over.store(true, Ordering::Relaxed);
        readings.map(|readings| median(&readings))
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
fn step_ns() -> f64 {
    let readings = (0..READINGS).map(|_| {
        let started = Instant::now();
        let mut value = started.elapsed().as_nanos() as u64 | 1;
        for _ in 0..STEPS {
            value ^= value << 13;
            value ^= value >> 7;
        }
        std::hint::black_box(value);
        started.elapsed().as_nanos() as f64 / STEPS as f64
    });
    median(&readings.collect::<Vec<_>>())
}

fn ask(mut socket: UnixStream) -> io::Result<f64> {
    socket.set_read_timeout(Some(TIMEOUT))?;
    let mut byte = [0];
    let mut readings = Vec::new();
    for _ in 0..READINGS {
        let started = Instant::now();
        for _ in 0..WAKES {
            socket.write_all(&byte)?;
            socket.read_exact(&mut byte)?;
        }
        readings.push(started.elapsed().as_nanos() as f64 / WAKES as f64 / 2.0);
    }
    Ok(median(&readings))
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
