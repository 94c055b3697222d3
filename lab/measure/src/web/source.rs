//! One pair's measurement at the client: the closed loop for the peak, then the open loops at shares of it.

use std::time::Duration;

use anyhow::{Result, ensure};
use bywire_analysis::statistics::SplitMix;
use serde_json::json;

use super::load::Load;
use super::open_load::{LOADS, OpenLoad};
use super::plan::{Plan, SHARES};
use super::server_guard::Address;
use crate::clock::monotonic_ns;
use crate::cpu::{Snapshot, processes_seconds, thread_seconds};
use crate::disturbance;
use crate::plan::{Details, End, Outcome, Part};
use crate::workload::block_loop::{buckets, histogram};

/// The results of client and server, by the client's clocks and the kernel's CPU accounts.
pub fn measure(plan: &Plan, core: Option<u32>, address: &Address) -> Result<[Outcome; 2]> {
    let mut load = Load::connect(plan, &address.socket)?;
    let mut unkept = histogram();
    load.closed(Duration::from_micros(plan.warmup_us), &mut unkept)?;
    let take = || (Snapshot::take(core), Snapshot::of_processes(&address.processes, address.core));
    let carried = || processes_seconds(&plan.carriers);
    let mut round_trips = histogram();
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    let (began_ns, carried_before, before) = (monotonic_ns(), carried(), take());
    for _ in 0..plan.blocks {
        let (block_before, cpu_before, began_ns) = (Snapshot::take(core), thread_seconds(), monotonic_ns());
        let closed = load.closed(Duration::from_micros(plan.block_us), &mut round_trips)?;
        let cpu_seconds = thread_seconds() - cpu_before;
        let disturbed = disturbance::reasons(&block_before, &Snapshot::take(core));
        let part = Part { began_ns, ..closed };
        asked.push(Part { cpu_seconds, disturbed, ..part.clone() });
        answered.push(Part { sent_bytes: part.received_bytes, received_bytes: part.sent_bytes, ..part });
    }
    let after = take();
    let seconds = (monotonic_ns() - began_ns) as f64 * 1e-9;
    let done: u64 = asked.iter().map(|part| part.operations).sum();
    ensure!(done > 0, "no request was answered in {seconds:.3} s: give a longer --time");
    let carried = carried() - carried_before;
    // The server's CPU time is read once, because reading that of many processes would take a part of every block.
    let cpu_seconds = after.1.thread_seconds_since(&before.1);
    let disturbed = disturbance::reasons(&before.1, &after.1);
    for (asked, answered) in asked.iter_mut().zip(&mut answered) {
        let share = asked.operations as f64 / done as f64;
        asked.carriers_cpu_seconds = carried * share;
        answered.cpu_seconds = cpu_seconds * share;
        answered.disturbed.clone_from(&disturbed);
    }
    let peak = done as f64 / asked.iter().map(|part| part.seconds).sum::<f64>();
    let mut loads = Vec::new();
    for (index, share) in SHARES.into_iter().enumerate() {
        let before = processes_seconds(&address.processes);
        let seed = moments_seed(plan, index);
        let open = load.open(peak * share, Duration::from_micros(plan.open_us), seed)?;
        let server_cpu_seconds = processes_seconds(&address.processes) - before;
        loads.push(OpenLoad { share, server_cpu_seconds, ..open });
    }
    let mut details = Details::from([(LOADS.to_owned(), json!(loads))]);
    details.insert("mean_document_bytes".into(), load.mean_bytes().into());
    details.insert("server_version".into(), address.version.clone().into());
    details.insert("server_processes".into(), address.processes.len().into());
    let outcome = |end, blocks, cpu| Outcome { blocks, cpu, cpu_seconds: seconds, ..Outcome::of(end) };
    let source = outcome(End::Source, asked, before.0.until(&after.0));
    let target = outcome(End::Target, answered, before.1.until(&after.1));
    Ok([Outcome { round_trips: buckets(&round_trips), details, ..source }, target])
}

/// The seed of the times of a load. Each pair and each load has its own, and they can be reproduced.
fn moments_seed(plan: &Plan, load: usize) -> u64 {
    let mixed = |seed| SplitMix::new(seed).bits();
    let of_pair = mixed(mixed(plan.seed).wrapping_add(plan.pair.into()));
    mixed(of_pair.wrapping_add(load as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Request;
    use std::collections::BTreeSet;

    #[test]
    fn every_load_of_every_pair_has_its_own_repeatable_seed() {
        let plan = |seed, pair| Plan { seed, pair, ..Plan::of(&Request::new("web", "web-file")).unwrap() };
        let seeds = || {
            (0..3).flat_map(move |seed| {
                (0..5).flat_map(move |pair| {
                    (0..SHARES.len()).map(move |load| moments_seed(&plan(seed, pair), load))
                })
            })
        };
        assert!(seeds().eq(seeds()));
        assert_eq!(seeds().collect::<BTreeSet<_>>().len(), 3 * 5 * SHARES.len());
    }
}
