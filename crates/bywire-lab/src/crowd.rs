//! Several connections at once: each a fresh pair of processes, as a server that forks has one for each client; all begin
//! at one moment, the sources on one core and the targets on another. Of the message layer one end of all connections is
//! one port in one process; see [`crate::hub`].
//!
//! What counts is the time in which all of them ran. It is cut into slices; in each slice the connections' own rates
//! are added, or their half-RTTs averaged, each block by the part of it that lies within.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::pair::{self, Cores, Outcomes, Place};
use crate::plan::{End, Job, Level, Part, Plan, Test};
use crate::star::Star;
use crate::test::monotonic_ns;

/// How many connections there may be.
pub const CONNECTIONS: std::ops::RangeInclusive<u32> = 1..=64;

/// The messages of all connections together may have so many bytes: each end keeps up to six of its own in memory.
pub const BYTES_MAX: u64 = 256 << 20;

/// Until all sources have connected: so long, …
const START: Duration = Duration::from_millis(150);
/// … and so much longer for each connection, whose processes have to be started.
const START_EACH: Duration = Duration::from_millis(40);

/// A core that was busy for more than this share had no time left.
const BUSY_SHARE_MIN: f64 = 0.9;

/// Where each connection's ends run.
#[derive(Clone)]
pub enum Ground {
    /// All between the same two places.
    One(Place),
    /// Between nodes around a switch.
    Star(Arc<Star>),
}

impl Ground {
    /// Where connection number `connection` of a test runs. Node 0 is the one that all others meet, where one is.
    pub fn place(&self, test: Test, connection: u32) -> Place {
        let star = match self {
            Self::One(place) => return place.clone(),
            Self::Star(star) => star,
        };
        let nodes = star.nodes.len();
        let spoke = 1 + connection as usize % (nodes - 1);
        let (source, target) = match test {
            Test::Fanout => (0, spoke),
            // Neighbours, so that no node is the bottleneck of all.
            Test::Streams => {
                let first = 2 * connection as usize % nodes;
                (first, (first + 1) % nodes)
            }
            _ => (spoke, 0),
        };
        Place::Nodes { star: Arc::clone(star), source, target }
    }
}

/// How long the processes of so many connections take to start, at most.
pub fn start(connections: u32) -> Duration {
    START + START_EACH * connections
}

/// Runs so many connections through `plan` at once.
///
/// # Errors
/// One line from the connection that failed first; by then all are gone.
pub fn run(plan: &Plan, ground: &Ground, connections: u32, cores: Cores) -> Result<Vec<Outcomes>> {
    let begin_ns = monotonic_ns() + start(connections).as_nanos() as u64;
    // A lent message lies in memory that was made for one peer.
    if let (Level::Msg, false, Ground::One(Place::Processes)) = (plan.level, plan.lent, ground) {
        let deadline_seconds = plan.deadline_seconds + start(connections).as_secs();
        let plan = Plan { begin_ns: Some(begin_ns), deadline_seconds, ..plan.clone() };
        return pair::run_hub(&plan, connections, cores);
    }
    let run = |connection: u32| {
        let place = ground.place(plan.test, connection);
        let plan = Plan {
            begin_ns: Some(begin_ns),
            bind: place.target_address(),
            deadline_seconds: plan.deadline_seconds + start(connections).as_secs(),
            // Their time would be counted once for each connection.
            carriers: if connection == 0 { plan.carriers.clone() } else { Vec::new() },
            ..plan.clone()
        };
        pair::run(&Job::Messages(plan), &place, cores)
    };
    thread::scope(|scope| {
        let running: Vec<_> =
            (0..connections).map(|connection| scope.spawn(move || run(connection))).collect();
        let outcomes = running.into_iter().enumerate().map(|(connection, running)| {
            let outcomes = running.join().map_err(|_| anyhow!("its thread panicked")).flatten();
            outcomes.with_context(|| format!("connection {connection}"))
        });
        // Every one is waited for, so that none is left behind by the failure of another.
        outcomes.collect::<Vec<_>>().into_iter().collect()
    })
}

/// What the connections of one crowd did while all of them ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// The crowd's own value in each slice: a summed rate, or a mean half-RTT.
    pub slices: Vec<f64>,
    /// How long a slice is.
    pub slice_seconds: f64,
    /// Each connection's value over the whole.
    pub connections: Vec<f64>,
    /// Each connection's share of the work: bytes or transactions per second.
    pub work_per_second: Vec<f64>,
}

impl Together {
    /// Of one crowd's outcomes.
    ///
    /// # Errors
    /// They did not all run at once.
    pub fn of(test: Test, lossy: bool, outcomes: &[Outcomes]) -> Result<Self> {
        let ends: Vec<&[Part]> = outcomes
            .iter()
            .map(|outcomes| match (&outcomes.target, lossy && test != Test::Hotspot) {
                // Where messages may be lost only what arrives counts, over the target's own time.
                (Some(target), true) => &target.blocks[..],
                _ => &outcomes.source.blocks[..],
            })
            .collect();
        let begin_ns = ends.iter().filter_map(|parts| parts.first()).map(|part| part.began_ns).max();
        let end_ns = ends.iter().filter_map(|parts| parts.last()).map(|part| span(part).1).min();
        let (begin_ns, end_ns) = begin_ns.zip(end_ns).context("a connection has no block")?;
        ensure!(
            end_ns > begin_ns + 1000,
            "the connections did not run at one time: give a longer --time, or fewer --connections"
        );
        let count = ends.iter().map(|parts| parts.len()).min().unwrap_or(1).max(1);
        let slice_ns = (end_ns - begin_ns) / count as u64;
        let slices = (0..count as u64).map(|slice| {
            let from_ns = begin_ns + slice * slice_ns;
            let values = ends.iter().map(|parts| within(test, parts, from_ns, from_ns + slice_ns));
            let values: Vec<f64> = values.map(|(value, _)| value).filter(|value| value.is_finite()).collect();
            match test {
                Test::Hotspot => values.iter().sum::<f64>() / values.len() as f64,
                _ => values.iter().sum(),
            }
        });
        let slices = slices.filter(|value| value.is_finite()).collect();
        let (connections, work_per_second) =
            ends.iter().map(|parts| within(test, parts, begin_ns, end_ns)).unzip();
        Ok(Self { slices, slice_seconds: slice_ns as f64 * 1e-9, connections, work_per_second })
    }
}

/// When a block began and ended, in ns.
fn span(part: &Part) -> (u64, u64) {
    (part.began_ns, part.began_ns + (part.seconds * 1e9) as u64)
}

/// A connection's value from one moment to another, and its work per second. Between its blocks it did nothing.
fn within(test: Test, parts: &[Part], from_ns: u64, to_ns: u64) -> (f64, f64) {
    let mut work = 0.0;
    for part in parts {
        let (began_ns, ended_ns) = span(part);
        let shared_ns = ended_ns.min(to_ns).saturating_sub(began_ns.max(from_ns)) as f64;
        let share = shared_ns / (ended_ns - began_ns).max(1) as f64;
        let done = match test {
            Test::Hotspot => part.operations,
            // The sending end counts what it sent, the receiving end what arrived.
            _ => part.sent_bytes.max(part.received_bytes),
        };
        work += share * done as f64;
    }
    let per_second = work / ((to_ns - from_ns) as f64 * 1e-9);
    match test {
        // The mean, which counts the waiting for a turn on the core: most single round trips fall within one turn.
        Test::Hotspot => (0.5e9 / per_second, per_second),
        _ => (per_second, per_second),
    }
}

/// Jain's index of fairness: 1 where all have the same, 1/n where one has all (Jain, Chiu and Hawe, DEC-TR-301, 1984).
pub fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// What the cores allowed, in one line, where one of them had no time left for more connections.
pub fn limit(connections: u32, outcomes: &[Outcomes]) -> Option<String> {
    let busy = |end: End| -> Option<(u32, f64)> {
        let ends = || {
            outcomes.iter().filter_map(move |outcomes| match end {
                End::Source => Some(&outcomes.source),
                End::Target => outcomes.target.as_ref(),
            })
        };
        let core = ends().next()?.cpu.core?;
        // Threads that share a core wait for each other: their own clocks add up to what the core gave them.
        let attributed: f64 = ends().filter_map(|outcome| outcome.cpu.attributed).sum();
        let machine = ends().filter_map(|outcome| outcome.cpu.machine_busy).fold(0.0, f64::max);
        Some((core, attributed.max(machine).min(1.0)))
    };
    let full: Vec<String> = [busy(End::Source), busy(End::Target)]
        .into_iter()
        .flatten()
        .filter(|(_, busy)| *busy >= BUSY_SHARE_MIN)
        .map(|(core, busy)| format!("core {core} was {:.0} % busy", 100.0 * busy))
        .collect();
    (!full.is_empty()).then(|| {
        let all = if connections == 1 {
            "the connection".to_owned()
        } else {
            format!("all {connections} connections")
        };
        format!("limited by two cores, one for {all} at each end: {}", full.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::CpuEnd;
    use crate::plan::{Details, Outcome};

    fn outcome(end: End, parts: Vec<Part>, attributed: f64) -> Outcome {
        Outcome {
            end,
            blocks: parts,
            warmup: Vec::new(),
            round_trips: Vec::new(),
            cpu: CpuEnd { core: Some(end as u32), attributed: Some(attributed), ..CpuEnd::default() },
            cpu_seconds: 1.0,
            details: Details::new(),
        }
    }

    /// A connection that sends 1,000 bytes in each of its blocks of 10 ms, from `began_ms` on.
    fn connection(began_ms: u64, blocks: u64) -> Outcomes {
        let part = |index: u64| Part {
            began_ns: 1_000_000 * (began_ms + 10 * index),
            seconds: 0.01,
            operations: 10,
            sent_bytes: 1000,
            ..Part::default()
        };
        Outcomes {
            source: outcome(End::Source, (0..blocks).map(part).collect(), 0.3),
            target: Some(outcome(End::Target, Vec::new(), 0.5)),
            same_machine: true,
        }
    }

    #[test]
    fn only_the_time_counts_in_which_all_ran() {
        let crowd = [connection(0, 5), connection(15, 5)];
        let together = Together::of(Test::Streams, false, &crowd).unwrap();
        // From 15 to 50 ms, in five slices.
        assert!((together.slice_seconds - 0.007).abs() < 1e-9, "{together:?}");
        assert_eq!(together.slices.len(), 5);
        assert!(together.slices.iter().all(|rate| (rate - 200_000.0).abs() < 1.0), "{together:?}");
        assert!(together.connections.iter().all(|rate| (rate - 100_000.0).abs() < 1.0), "{together:?}");
        let hotspot = Together::of(Test::Hotspot, false, &crowd).unwrap();
        assert!(hotspot.slices.iter().all(|half_rtt| (half_rtt - 500_000.0).abs() < 1.0), "{hotspot:?}");
        assert!((hotspot.work_per_second[0] - 1000.0).abs() < 1e-6, "{hotspot:?}");
        let apart = [connection(0, 2), connection(50, 2)];
        assert!(Together::of(Test::Streams, false, &apart).unwrap_err().to_string().contains("--time"));
    }

    #[test]
    fn fairness_is_one_for_equals_and_one_over_n_for_one_alone() {
        assert!((fairness(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((fairness(&[3.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_full_core_is_told() {
        let one = [connection(0, 1)];
        assert_eq!(limit(1, &one), None);
        let two = [connection(0, 1), connection(0, 1)];
        let said = limit(2, &two).unwrap();
        assert!(said.contains("core 1 was 100 % busy") && !said.contains("core 0"), "{said}");
    }
}
