//! Several connections at once. Each is a fresh pair of processes, like those of a server that forks for each client.
//! All begin at one moment, the sources on one core and the targets on another. In the message layer, one end of all
//! connections is one port in one process: see [`crate::shared_port`].
//!
//! Only the time in which all of them ran counts. The connections' rates in it are added, or their half-RTTs averaged.
//! It is cut into as many slices as there are blocks. A connection that begins before the others or ends after them is
//! faster meanwhile, so every end that counts notes its progress (see [`crate::block_progress`]).

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::clock::monotonic_ns;
use crate::namespaces::Namespaces;
use crate::pair;
use crate::placement::{Cores, Placement};
use crate::plan::{End, Job, Level, Outcome, Outcomes, Part, Plan, Test};

/// A group of connections that did not run at one time is measured again, at most this number of times. Each attempt
/// waits twice as long before it begins, because a loaded machine starts many processes late.
const REPEATS: u32 = 3;

/// A group ran at one time if all of it did so for this share of the shortest block.
const TOGETHER_SHARE_MIN: f64 = 0.1;

/// The most bytes of one message of each connection, together. Each end keeps up to six of its messages in memory.
pub const BYTES_MAX: u64 = 256 << 20;

/// The time that all sources have to connect, before [`START_EACH`] is added.
const START: Duration = Duration::from_millis(150);
/// The time added for each connection, whose processes have to be started.
const START_EACH: Duration = Duration::from_millis(40);

/// A core that was busy for more than this share had no time left.
const BUSY_SHARE_MIN: f64 = 0.9;

/// The place of a connection of a test between nodes around a switch. In tests with one common node, that is node 0.
pub fn nodes(network: &Arc<Namespaces>, test: Test, connection: u32) -> Placement {
    let (connection, nodes) = (connection as usize, network.nodes.len());
    let peer = 1 + connection % (nodes - 1);
    let (source, target) = match test {
        Test::Fanout => (0, peer),
        // Neighbours, so that no node is the bottleneck of all.
        Test::Streams => (2 * connection % nodes, (2 * connection + 1) % nodes),
        _ => (peer, 0),
    };
    Placement::Namespaces { network: Arc::clone(network), source, target }
}

/// The most time that the processes of this number of connections take to start.
pub fn start(connections: u32) -> Duration {
    START + START_EACH * connections
}

/// The time of a warm-up: its blocks, and a quarter more for the agreement on each with the other end, which shares its
/// core with all others.
fn warmup(plan: &Plan) -> Duration {
    Duration::from_micros(plan.warmup_block_us() * u64::from(plan.warmup_blocks) * 5 / 4)
}

/// The outcomes of several connections at once, their work while all of them ran, and the number of repetitions until
/// they ran at one time.
#[derive(Debug)]
pub struct MultiConnection {
    pub outcomes: Vec<Outcomes>,
    pub together: GroupWork,
    pub repeats: u32,
}

/// Runs several connections through `plan` at once. An error is that of the first connection, after all have ended.
pub fn run(plan: &Plan, placement: &Placement, connections: u32, cores: Cores) -> Result<MultiConnection> {
    repeated(plan.test, |repeats| {
        let start = start(connections) * (1 << repeats) + warmup(plan);
        let begin_ns = Some(monotonic_ns() + start.as_nanos() as u64);
        let deadline_seconds = plan.deadline_seconds + start.as_secs();
        attempt(&Plan { begin_ns, deadline_seconds, ..plan.clone() }, placement, connections, cores)
    })
}

/// The first outcomes of `attempt` that ran at one time. `attempt` gets the number of attempts before it.
fn repeated(test: Test, mut attempt: impl FnMut(u32) -> Result<Vec<Outcomes>>) -> Result<MultiConnection> {
    let mut repeats = 0;
    loop {
        let outcomes = attempt(repeats)?;
        match GroupWork::of(test, &outcomes) {
            Ok(together) => return Ok(MultiConnection { outcomes, together, repeats }),
            Err(error) if repeats == REPEATS => return Err(error),
            Err(_) => repeats += 1,
        }
    }
}

fn attempt(plan: &Plan, placement: &Placement, connections: u32, cores: Cores) -> Result<Vec<Outcomes>> {
    // A lent message is in memory that was made for one peer, so lent messages have no shared port.
    if let (Level::Msg, false, Placement::Processes) = (plan.level, plan.request.lent, placement) {
        return pair::run_shared_port(plan, connections, cores);
    }
    let run = |connection: u32| {
        let placement = match placement {
            Placement::Namespaces { network, .. } => nodes(network, plan.test, connection),
            placement => placement.clone(),
        };
        let mut plan = Plan { bind: placement.target_address(), ..plan.clone() };
        if connection > 0 {
            // Otherwise their time would be counted once for each connection.
            plan.carriers.clear();
        }
        pair::run(&Job::Messages(plan), &placement, cores)
    };
    thread::scope(|scope| {
        let running: Vec<_> =
            (0..connections).map(|connection| scope.spawn(move || run(connection))).collect();
        let outcomes = running.into_iter().enumerate().map(|(connection, running)| {
            let outcomes = running.join().map_err(|_| anyhow!("its thread panicked")).flatten();
            outcomes.with_context(|| format!("connection {connection}"))
        });
        // Waits for every connection, so that none outlives the failure of another.
        outcomes.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The work of the connections of one group while all of them ran.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupWork {
    pub slices: Vec<Slice>,
    pub slice_seconds: f64,
    /// Each connection's value over the whole.
    pub connections: Vec<f64>,
    /// Each connection's share of the work: bytes or transactions per second.
    pub work_per_second: Vec<f64>,
}

/// The work of a group in one slice of that time.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// A summed rate, or a mean half-RTT.
    pub value: f64,
    /// Messages or round trips of all connections, one that was half done counting half.
    pub operations: f64,
}

impl GroupWork {
    /// The work of the connections of one group, from their outcomes.
    pub fn of(test: Test, outcomes: &[Outcomes]) -> Result<Self> {
        let ends: Vec<&[Part]> = outcomes.iter().map(|outcomes| counting_end(test, outcomes)).collect();
        let begin_ns = outcomes.iter().filter_map(began_ns).max();
        let end_ns = ends.iter().filter_map(|parts| parts.last()).map(Part::ended_ns).min();
        let (begin_ns, end_ns) = begin_ns.zip(end_ns).context("a connection has no block")?;
        let shortest = ends.iter().map(|parts| parts.iter().map(|part| part.seconds).sum());
        let shortest_ns = 1e9 * shortest.fold(f64::INFINITY, f64::min);
        ensure!(
            end_ns > begin_ns && (end_ns - begin_ns) as f64 >= TOGETHER_SHARE_MIN * shortest_ns,
            "the connections did not run at one time: give a longer --time, or fewer --connections"
        );
        let count = ends.iter().map(|parts| parts.len()).min().unwrap_or(1).max(1);
        let slice_ns = (end_ns - begin_ns) / count as u64;
        let slices = (0..count as u64).map(|slice| {
            let from_ns = begin_ns + slice * slice_ns;
            let shares: Vec<Share> =
                ends.iter().map(|parts| Share::of(test, parts, from_ns, from_ns + slice_ns)).collect();
            let values = || shares.iter().map(|share| share.value).filter(|value| value.is_finite());
            let divisor = if test == Test::Hotspot { values().count() as f64 } else { 1.0 };
            let value = values().sum::<f64>() / divisor;
            Slice { value, operations: shares.iter().map(|share| share.operations).sum() }
        });
        let slices = slices.filter(|slice| slice.value.is_finite()).collect();
        let whole: Vec<Share> = ends.iter().map(|parts| Share::of(test, parts, begin_ns, end_ns)).collect();
        Ok(Self {
            slices,
            slice_seconds: slice_ns as f64 * 1e-9,
            connections: whole.iter().map(|share| share.value).collect(),
            work_per_second: whole.iter().map(|share| share.work_per_second).collect(),
        })
    }
}

/// The moment at which a connection began: that of the later of its two ends. An end may be ready long before its other
/// end gets its core.
fn began_ns(outcomes: &Outcomes) -> Option<u64> {
    outcomes.ends().filter_map(|end| end.blocks.first()).map(|part| part.began_ns).max()
}

/// The blocks of the end that counts: the receiver of one-way messages, because a sent message may be under way or
/// lost, and the requester of round trips.
fn counting_end(test: Test, outcomes: &Outcomes) -> &[Part] {
    let target = outcomes.target.as_ref().filter(|_| test.is_one_way());
    &target.unwrap_or(&outcomes.source).blocks
}

/// The work of one connection from one moment to another.
struct Share {
    operations: f64,
    /// Bytes or transactions.
    work: f64,
    work_per_second: f64,
    /// Its rate, or its mean half-RTT.
    value: f64,
}

impl Share {
    /// Between its blocks a connection does nothing.
    fn of(test: Test, parts: &[Part], from_ns: u64, to_ns: u64) -> Self {
        let (mut operations, mut work) = (0.0, 0.0);
        for part in parts {
            let done = part.operations_until(to_ns) - part.operations_until(from_ns);
            operations += done;
            work += match test {
                Test::Hotspot => done,
                _ => done * part.received_bytes as f64 / part.operations.max(1) as f64,
            };
        }
        let work_per_second = work / ((to_ns - from_ns) as f64 * 1e-9);
        let value = match test {
            // The mean includes the waiting for the core. The median does not, because most round trips fall within one
            // time slice.
            Test::Hotspot => 0.5e9 / work_per_second,
            _ => work_per_second,
        };
        Self { operations, work, work_per_second, value }
    }
}

/// The work of all connections of a group during the blocks of the first: bytes received, or transactions.
pub fn work_beside_first(test: Test, outcomes: &[Outcomes]) -> f64 {
    let first = outcomes.first().map_or(&[][..], |first| &first.source.blocks);
    let during = |part: &Part| -> f64 {
        let ends = outcomes.iter().map(|outcomes| counting_end(test, outcomes));
        ends.map(|parts| Share::of(test, parts, part.began_ns, part.ended_ns()).work).sum()
    };
    first.iter().map(during).sum()
}

/// The share of one core that the threads of these ends used, from the first beginning to the last end. The sum of each
/// one's share of its own time would count moments twice.
pub fn attributed(ends: &[&Outcome]) -> Option<f64> {
    let parts = || ends.iter().flat_map(|end| &end.blocks);
    let began_ns = parts().map(|part| part.began_ns).min()?;
    let ended_ns = parts().map(Part::ended_ns).max()?;
    let cpu_seconds: f64 = parts().map(|part| part.cpu_seconds).sum();
    (ended_ns > began_ns).then(|| cpu_seconds / ((ended_ns - began_ns) as f64 * 1e-9))
}

/// Jain's index of fairness: 1 where all have the same, 1/n where one has all (Jain, Chiu and Hawe, DEC-TR-301, 1984).
pub fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// One line about the cores, if one of them had no time left for more connections.
pub fn limit(connections: u32, outcomes: &[Outcomes]) -> Option<String> {
    let busy = |end: End| -> Option<(u32, f64)> {
        let ends = outcomes.iter().flat_map(Outcomes::ends);
        let ends: Vec<&Outcome> = ends.filter(|outcome| outcome.end == end).collect();
        let core = ends.first()?.cpu.core?;
        // Time that the hypervisor took counts as busy, because it was not usable.
        let taken = |outcome: &Outcome| Some(outcome.cpu.machine_busy? + outcome.cpu.steal.unwrap_or(0.0));
        let machine = ends.iter().filter_map(|outcome| taken(outcome)).fold(0.0, f64::max);
        // Threads that share a core wait for each other: their own clocks add up to what the core gave them.
        Some((core, attributed(&ends)?.max(machine)))
    };
    let full: Vec<String> = [busy(End::Source), busy(End::Target)]
        .into_iter()
        .flatten()
        .filter(|(_, busy)| *busy >= BUSY_SHARE_MIN)
        .map(|(core, busy)| format!("core {core} was {:.0} % busy", 100.0 * busy))
        .collect();
    (!full.is_empty()).then(|| {
        let many = format!("all {connections} connections");
        let all = if connections == 1 { "the connection" } else { &many };
        format!("limited by two cores, one for {all} at each end: {}", full.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolution::tests::plan_of;
    use bywire_results::cell::CpuEnd;

    fn outcome(end: End, parts: Vec<Part>) -> Outcome {
        let cpu = CpuEnd { core: Some(end as u32), ..CpuEnd::default() };
        Outcome { blocks: parts, cpu, cpu_seconds: 1.0, ..Outcome::of(end) }
    }

    fn outcomes(source: Vec<Part>, target: Vec<Part>) -> Outcomes {
        Outcomes::of(outcome(End::Source, source), outcome(End::Target, target))
    }

    fn is_near(value: f64, due: f64) -> bool {
        (value / due - 1.0).abs() < 1e-9
    }

    /// A connection that carries 1,000 bytes in 10 operations in each of its blocks of 10 ms, from `began_ms` on. Its
    /// source has 3 ms of CPU for each, its target 5.
    fn connection(began_ms: u64, blocks: u64) -> Outcomes {
        let part = |index: u64, cpu_seconds| Part {
            began_ns: 1_000_000 * (began_ms + 10 * index),
            seconds: 0.01,
            operations: 10,
            cpu_seconds,
            ..Part::default()
        };
        let sent = |index| Part { sent_bytes: 1000, ..part(index, 0.003) };
        let received = |index| Part { received_bytes: 1000, ..part(index, 0.005) };
        outcomes((0..blocks).map(sent).collect(), (0..blocks).map(received).collect())
    }

    /// A connection with one block at both ends: the operations, of 100 bytes each, that it had completed by each
    /// millisecond.
    fn uneven(began_ms: u64, by_ms: &[(u64, u64)]) -> Outcomes {
        let &(last_ms, operations) = by_ms.last().unwrap();
        let part = Part {
            began_ns: 1_000_000 * began_ms,
            seconds: (last_ms - began_ms) as f64 * 1e-3,
            operations,
            notes: by_ms.iter().map(|&(at_ms, done)| (1_000_000 * (at_ms - began_ms), done)).collect(),
            ..Part::default()
        };
        let (sent_bytes, received_bytes) = (100 * operations, 100 * operations);
        outcomes(vec![Part { sent_bytes, ..part.clone() }], vec![Part { received_bytes, ..part }])
    }

    /// The work of a group that ran together in slices of so many ms.
    fn work(test: Test, group: &[Outcomes], slice_ms: f64) -> GroupWork {
        let work = GroupWork::of(test, group).unwrap();
        assert!(is_near(work.slice_seconds, slice_ms * 1e-3), "{work:?}");
        work
    }

    fn are_near(values: &[f64], due: f64) -> bool {
        values.iter().all(|value| is_near(*value, due))
    }

    #[test]
    fn only_the_time_in_which_all_connections_ran_counts() {
        let group = [connection(0, 5), connection(15, 5)];
        // From 15 to 50 ms, in five slices.
        let together = work(Test::Streams, &group, 7.0);
        let is = |slice: &Slice| is_near(slice.value, 200_000.0) && is_near(slice.operations, 14.0);
        assert!(together.slices.len() == 5 && together.slices.iter().all(is), "{together:?}");
        assert!(are_near(&together.connections, 100_000.0), "{together:?}");
        let hotspot = work(Test::Hotspot, &group, 7.0);
        assert!(hotspot.slices.iter().all(|slice| is_near(slice.value, 500_000.0)), "{hotspot:?}");
        assert!(is_near(hotspot.work_per_second[0], 1000.0), "{hotspot:?}");
    }

    #[test]
    fn work_of_a_connection_that_runs_alone_does_not_count() {
        // Ten operations in a millisecond are all that there are, for one connection alone or for both together.
        let group = [uneven(0, &[(10, 100), (20, 150)]), uneven(10, &[(20, 50), (30, 150)])];
        let together = work(Test::Streams, &group, 10.0);
        let slice = &together.slices[0];
        assert!(is_near(slice.value, 1e6) && is_near(slice.operations, 100.0), "{together:?}");
        assert!(are_near(&together.work_per_second, 5e5), "{together:?}");
        // Each had five round trips a millisecond.
        let hotspot = work(Test::Hotspot, &group, 10.0);
        assert!(are_near(&hotspot.connections, 1e5), "{hotspot:?}");
    }

    #[test]
    fn streams_are_counted_at_the_receiver() {
        let mut connection = connection(0, 1);
        // A sent message may be under way or lost.
        (connection.source.blocks[0].sent_bytes, connection.source.blocks[0].seconds) = (5000, 0.005);
        let together = work(Test::Fanout, &[connection.clone(), connection], 10.0);
        assert!(is_near(together.slices[0].value, 200_000.0), "{together:?}");
    }

    #[test]
    fn all_connections_run_once_the_last_sender_does() {
        // Both do ten operations in a millisecond while they send. Both targets were ready at the beginning. The second
        // source had its first turn after 10 ms.
        let early = uneven(0, &[(30, 300)]);
        let mut late = uneven(0, &[(10, 0), (40, 300)]);
        late.source.blocks[0].began_ns = 10_000_000;
        let together = work(Test::Streams, &[early.clone(), late.clone()], 20.0);
        assert!(are_near(&together.connections, 1e6), "{together:?}");
        assert!(is_near(fairness(&together.work_per_second), 1.0), "{together:?}");
        // A sender that has begun and then has no turn for a while gets less.
        late.source.blocks[0].began_ns = 0;
        let starved = work(Test::Streams, &[early, late], 30.0);
        assert!(is_near(starved.connections[1], 2e6 / 3.0), "{starved:?}");
        assert!(fairness(&starved.work_per_second) < 0.97, "{starved:?}");
    }

    #[test]
    fn a_warm_up_block_is_short_for_any_block_length() {
        for (time, due_ms) in [("0.25", 500), ("0.5", 1000), ("2.5", 1000), ("3600", 1000)] {
            let plan = plan_of(&format!("sock hotspot --time {time}"));
            assert_eq!(warmup(&plan), Duration::from_millis(due_ms), "{time} s");
        }
    }

    #[test]
    fn a_group_without_common_time_is_repeated_and_then_refused() {
        let apart = || vec![uneven(0, &[(100, 10)]), uneven(95, &[(195, 10)])];
        let together = || vec![uneven(0, &[(100, 10)]), uneven(85, &[(185, 10)])];
        let mut attempts = 0;
        let group = repeated(Test::Streams, |before| {
            assert_eq!(before, attempts);
            attempts += 1;
            Ok(if attempts < 3 { apart() } else { together() })
        })
        .unwrap();
        assert_eq!((group.outcomes, group.repeats), (together(), 2));
        assert_eq!(group.together, GroupWork::of(Test::Streams, &together()).unwrap());
        let refused = repeated(Test::Streams, |before| {
            attempts = before;
            Ok(apart())
        });
        assert!(refused.unwrap_err().to_string().contains("--time"));
        assert_eq!(attempts, REPEATS);
    }

    #[test]
    fn fairness_is_one_for_equal_rates_and_one_over_n_for_a_single_active_connection() {
        assert!((fairness(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((fairness(&[3.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_saturated_core_is_reported() {
        let one = [connection(0, 1)];
        assert_eq!(limit(1, &one), None);
        let two = [connection(0, 1), connection(0, 1)];
        let said = limit(2, &two).unwrap();
        assert!(said.contains("core 1 was 100 % busy") && !said.contains("core 0"), "{said}");
        // Half of the core each, but for half of the time alone.
        assert_eq!(limit(2, &[connection(0, 1), connection(5, 1)]), None);
    }
}
