//! Random programs of several processes and threads have the same outcome carried as over TCP and Unix streams, step by
//! step: fork, exec, spawn, dup, descriptor passing, also within a stream, signals, limits, sandboxes, kills. A failing
//! program is shortened.
//!
//! `SO_SNDBUF`, `SO_RCVBUF` or both are set on the connecting socket and on the listener of some connections. Random:
//! `BYWIRE_SEEDS`, 1,000 by `./x test all` and 100,000 in a soak, from `BYWIRE_SEED` on.
//!
//! Each seed is a script for several processes and threads that hold ends of a few connections. Two sets of them carry
//! it out step by step, one without the library and one with it. Each step must have the same result in both.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bywire_testing::{number, repetitions};

use crate::random::channel::Programs;
use crate::random::play::{Counts, Mismatch, Play};
use crate::random::step::{Draw, Kind, Step};
use crate::test_service::{Domain, TestService};

/// Steps of one script.
const STEPS: usize = 40;
/// Scripts that one set of programs runs, one after the other.
const BATCH: u64 = 20;
/// Seeds that have failed once. They are run too.
const FOUND: [u64; 18] = [
    778, 3690, 4322, 4719, 6963, 13_816, 57_510, 72_932, 82_273, 87_724, 94_156, 99_531, 200_811, 201_541,
    202_223, 203_178, 203_857, 203_860,
];
/// Seeds of scripts with Unix streams that have failed once.
const FOUND_UNIX: [u64; 3] = [707, 1064, 1645];
/// Some steps mostly wait, so there are more workers than cores.
const WORKERS: usize = 6;
/// Shorter scripts that are tried for a failing one.
const TRIES: usize = 150;
/// Repetitions of a script that fails while the kernel has no memory for TCP.
const SHORT_TRIES: u32 = 3;
/// How long to wait for that memory.
const SHORTAGE: Duration = Duration::from_secs(10);
const SHORTENING: Duration = Duration::from_secs(40);

#[test]
fn random_programs_have_the_same_outcome_carried_and_over_tcp() {
    compare_scripts(Domain::Tcp, &FOUND);
}

#[test]
fn random_programs_have_the_same_outcome_carried_and_over_unix_streams() {
    compare_scripts(Domain::Unix, &FOUND_UNIX);
}

fn compare_scripts(domain: Domain, found: &[u64]) {
    let service = TestService::new();
    let Some(program) = service.compiled("suite/random/actor.c", "actor", &["-pthread"]) else { return };
    let (first, count) = (number("BYWIRE_SEED", 0), repetitions("BYWIRE_SEEDS", [200, 1000, 100_000]));
    let found = found.iter().filter(|_| first == 0).map(|seed| (*seed..seed + 1, false));
    // More seeds if a kind of step was not reached: that depends on the service's speed.
    let most = if count < 500 { count } else { 2 * count };
    let ranges = (first..first + most).step_by(BATCH as usize);
    let ranges = ranges.map(|start| {
        let end = if start < first + count { first + count } else { first + most };
        (start..(start + BATCH).min(end), start >= first + count)
    });
    let batches: Vec<_> = found.chain(ranges).collect();
    let (next, counts, failures) =
        (AtomicUsize::new(0), Mutex::new(Counts::default()), Mutex::new(Vec::new()));
    // With it all seeds are run, and failing scripts are not shortened.
    let goes_on = std::env::var_os("BYWIRE_GOES_ON").is_some();
    let (shortage, is_over) = (Shortage(Mutex::new(None)), AtomicBool::new(false));
    let trial = Trial { domain, service: &service, program: &program, counts: &counts, shortage: &shortage };
    std::thread::scope(|scope| {
        scope.spawn(|| shortage.watch(&is_over));
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                scope.spawn(|| {
                    while goes_on || failures.lock().expect("no panic").is_empty() {
                        let Some((seeds, is_more)) = batches.get(next.fetch_add(1, Ordering::Relaxed)) else {
                            return;
                        };
                        if *is_more && missing(domain, &counts.lock().expect("no panic")).is_empty() {
                            return;
                        }
                        // Before the lock: a thread that held it meanwhile would be the only one at work.
                        let found = go_through(&trial, seeds.clone(), goes_on);
                        failures.lock().expect("no panic").extend(found);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a worker has panicked");
    });
    let counts = counts.into_inner().expect("no panic");
    let failures = failures.into_inner().expect("no panic");
    println!("steps on carried connections: {:?}", counts.done);
    counts.left_out.iter().for_each(|(gap, count)| println!("{count} steps left out: {gap}"));
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
    let missing = missing(domain, &counts);
    // A few selected seeds may have none.
    assert!(count < 500 || missing.is_empty(), "nothing carried was there for {missing:?}");
}

/// The kinds of steps that no carried connection has met.
fn missing(domain: Domain, counts: &Counts) -> Vec<Kind> {
    Kind::all(domain).filter(|kind| !counts.done.contains_key(kind)).collect()
}

fn programs(service: &TestService, program: &Path, seed: u64) -> [Programs; 2] {
    [Programs::new(service, program, None), Programs::new(service, program, Some(seed / BATCH % 5))]
}

/// What every batch needs.
struct Trial<'a> {
    domain: Domain,
    service: &'a TestService,
    program: &'a Path,
    counts: &'a Mutex<Counts>,
    shortage: &'a Shortage,
}

/// The failures of these seeds: the first one, or all of them.
fn go_through(trial: &Trial, seeds: std::ops::Range<u64>, goes_on: bool) -> Vec<String> {
    let (mut failures, mut left, mut tries) = (Vec::new(), seeds.clone(), 0);
    loop {
        let started = Instant::now();
        let Err((seed, report)) = batch(trial, left, !goes_on) else { return failures };
        if trial.shortage.was_since(started) && tries < SHORT_TRIES {
            println!("seed {seed} once more: the kernel had no memory for TCP");
            trial.shortage.outlast();
            (left, tries) = (seed..seeds.end, tries + 1);
            continue;
        }
        failures.push(report);
        if !goes_on {
            return failures;
        }
        left = seed + 1..seeds.end;
    }
}

fn batch(trial: &Trial, seeds: std::ops::Range<u64>, is_shortened: bool) -> Result<(), (u64, String)> {
    let Trial { domain, service, program, counts, .. } = *trial;
    if seeds.is_empty() {
        return Ok(());
    }
    let mut both = programs(service, program, seeds.start);
    for seed in seeds {
        let started = Instant::now();
        let (outcome, steps, text, done) = generate(&mut both, Draw::new(seed, domain));
        if std::env::var_os("BYWIRE_TEST_TIMES").is_some() {
            eprintln!("seed {seed}: {} steps, {} ms", steps.len(), started.elapsed().as_millis());
        }
        counts.lock().expect("no panic").add(&done);
        if let Err(Mismatch(reason)) = outcome {
            eprintln!("seed {seed}: {reason}\n{text}");
            let short = if is_shortened { shorten(trial, seed, steps, &reason) } else { String::new() };
            return Err((seed, format!("seed {seed}: {reason}\n{text}\n{short}")));
        }
        if !both.iter_mut().all(Programs::clear) {
            return Err((seed, format!("seed {seed}: a program cannot be ended\n{text}")));
        }
    }
    Ok(())
}

/// Whether the kernel has lately taken memory of TCP's buffers for others. Then it takes less, and a connection that
/// ends with more bytes is reset. Other tests of this machine, in any namespace, may use all of the memory.
struct Shortage(Mutex<Option<Instant>>);

impl Shortage {
    /// Checks as long as the workers run.
    fn watch(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            if Self::is_now() {
                *self.0.lock().expect("no panic") = Some(Instant::now());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_now() -> bool {
        let word = |path: &str, line: &str, at: usize| -> Option<u64> {
            let text = std::fs::read_to_string(path).ok()?;
            text.lines().find(|found| found.starts_with(line))?.split_whitespace().nth(at)?.parse().ok()
        };
        let in_use = word("/proc/net/sockstat", "TCP:", 10).expect("pages in use");
        // The shortage ends when less than this is in use. Other namespaces than the first one do not see it, and use
        // the kernel's default.
        let enough = word("/proc/sys/net/ipv4/tcp_mem", "", 0);
        let kibibytes = word("/proc/meminfo", "MemTotal:", 1).expect("the machine's memory");
        in_use >= enough.unwrap_or(kibibytes / 4 / 16 / 4 * 3 / 10 * 9)
    }

    fn was_since(&self, time: Instant) -> bool {
        self.0.lock().expect("no panic").is_some_and(|last| last >= time)
    }

    /// Waits until there has been enough for a while, for a bounded time.
    fn outlast(&self) {
        let started = Instant::now();
        while self.was_since(Instant::now() - Duration::from_millis(200)) && started.elapsed() < SHORTAGE {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

type Generated = (Result<(), Mismatch>, Vec<Step>, String, Counts);

/// Draws a script and runs it.
fn generate(both: &mut [Programs; 2], mut draw: Draw) -> Generated {
    let mut steps = Vec::new();
    let mut play = Play::new(both, None);
    let mut outcome = play.begin(&mut draw);
    for _ in 0..STEPS * 20 {
        if outcome.is_err() || steps.len() >= STEPS || play.model.idle().is_empty() {
            break;
        }
        let Some(step) = draw.step(&play.model) else { continue };
        match play.apply(step) {
            Ok(true) => steps.push(step),
            Ok(false) => {}
            Err(mismatch) => {
                steps.push(step);
                outcome = Err(mismatch);
            }
        }
    }
    if outcome.is_ok() {
        outcome = play.finish();
    }
    (outcome, steps, play.text, play.counts)
}

/// The shortest script that still fails, found by leaving out steps.
fn shorten(trial: &Trial, seed: u64, steps: Vec<Step>, reason: &str) -> String {
    let (mut best, mut found) = (steps, None);
    let (mut tries, started) = (0, Instant::now());
    let mut size = best.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut is_shorter = false;
        while at < best.len() && tries < TRIES && started.elapsed() < SHORTENING {
            let mut fewer = best.clone();
            fewer.drain(at..(at + size).min(best.len()));
            tries += 1;
            match replay(trial, seed, &fewer, reason) {
                Some(text) => (best, found, is_shorter) = (fewer, Some(text), true),
                None => at += size,
            }
        }
        if tries >= TRIES || started.elapsed() >= SHORTENING || (size == 1 && !is_shorter) {
            break;
        }
        size = (size / 2).max(1);
    }
    match found {
        Some(text) => format!("shortened by {tries} tries:\n{text}"),
        None => format!("{tries} shorter scripts did not fail"),
    }
}

/// The difference, if there still is one.
fn replay(trial: &Trial, seed: u64, steps: &[Step], failure: &str) -> Option<String> {
    let mut both = programs(trial.service, trial.program, seed);
    let mut play = Play::new(&mut both, Some(Duration::from_secs(2)));
    let mut outcome = play.begin(&mut Draw::new(seed, trial.domain));
    for step in steps {
        if outcome.is_ok() {
            outcome = play.apply(*step).map(drop);
        }
    }
    if outcome.is_ok() {
        outcome = play.finish();
    }
    let Err(Mismatch(reason)) = outcome else { return None };
    // The same failure, with other numbers in it.
    let words = |text: &str| text.replace(|letter: char| letter.is_ascii_hexdigit() || letter == 'x', "");
    (words(&reason) == words(failure)).then(|| format!("{}{reason}", play.text))
}
