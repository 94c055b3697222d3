//! The results of a cell's open loops.

use anyhow::{Context, Result};
use bywire_results::web::{OpenLoop, SHARES};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::plan::{Details, Outcomes};
use crate::workload::block_loop::{buckets, filled, histogram};

pub use bywire_results::web::LOADS;

/// One open loop of one pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenLoad {
    /// The share of the pair's own peak.
    pub share: f64,
    /// The requested rate, in requests per second.
    pub intended_per_second: f64,
    /// From the time of the first request to the last answer.
    pub seconds: f64,
    /// Requests that became due.
    pub due: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// The CPU time of the server's processes.
    pub server_cpu_seconds: f64,
    /// From the time when a request was due to its answer, as (ns, count).
    pub from_due: Vec<(u64, u64)>,
    /// From the time when it was sent.
    pub from_sent: Vec<(u64, u64)>,
}

/// The details of a cell. Fails if a client's report cannot be read.
pub fn details<'a>(pairs: impl Iterator<Item = &'a Outcomes>) -> Result<Details> {
    let mut details = Details::default();
    let mut loads: Vec<Vec<OpenLoad>> = vec![Vec::new(); SHARES.len()];
    let mut round_trips = histogram();
    let (mut received_bytes, mut seconds) = (0, 0.0);
    for Outcomes { source, .. } in pairs {
        for (name, value) in source.details.iter() {
            if name != LOADS {
                details.insert(name.clone(), value.clone());
                continue;
            }
            let of_pair: Vec<OpenLoad> =
                serde_json::from_value(value.clone()).context("a client's report is not valid")?;
            for (all, one) in loads.iter_mut().zip(of_pair) {
                all.push(one);
            }
        }
        round_trips += &filled(&source.round_trips);
        received_bytes += source.blocks.iter().map(|part| part.received_bytes).sum::<u64>();
        seconds += source.blocks.iter().map(|part| part.seconds).sum::<f64>();
    }
    for (name, value_ns) in known_quantiles(&round_trips) {
        details.insert(format!("round_trip_{name}_ns"), value_ns.into());
    }
    details.insert("received_bytes_per_second".into(), (received_bytes as f64 / seconds).into());
    let merged = loads.iter().filter(|loads| !loads.is_empty()).map(|loads| of_load(loads, &mut details));
    let merged: Vec<OpenLoop> = merged.collect();
    details.insert(LOADS.into(), serde_json::to_value(merged)?);
    Ok(details)
}

const P99: f64 = 0.99;
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", P99), ("p999", 0.999)];
/// The fewest requests beyond a quantile. With fewer, the quantile would depend on a single one.
const BEYOND_MIN: f64 = 10.0;

/// A quantile in ns, if there are enough requests for it.
fn known(histogram: &Histogram<u64>, quantile: f64) -> Option<u64> {
    let beyond = histogram.len() as f64 * (1.0 - quantile);
    // A share that binary fractions cannot express must not cost a request.
    (beyond + 1e-6 >= BEYOND_MIN).then(|| histogram.value_at_quantile(quantile))
}

fn known_quantiles(histogram: &Histogram<u64>) -> impl Iterator<Item = (&'static str, u64)> {
    QUANTILES.into_iter().filter_map(|(name, quantile)| Some((name, known(histogram, quantile)?)))
}

/// The least and the largest 99th percentile of the pairs that have enough requests.
fn p99_of_pairs(loads: &[OpenLoad]) -> Option<(u64, u64)> {
    let own = loads.iter().filter_map(|load| known(&filled(&load.from_due), P99));
    let all: Vec<u64> = own.collect();
    (all.len() > 1).then_some((*all.iter().min()?, *all.iter().max()?))
}

/// Adds up one open loop of all pairs: figures go into `details`, and the sum is returned.
fn of_load(loads: &[OpenLoad], details: &mut Details) -> OpenLoop {
    let from_due = filled(loads.iter().flat_map(|load| &load.from_due));
    let from_sent = filled(loads.iter().flat_map(|load| &load.from_sent));
    let sum = |of: fn(&OpenLoad) -> f64| loads.iter().map(of).sum::<f64>();
    let share = loads[0].share;
    let (due, answered) = (sum(|load| load.due as f64), sum(|load| load.answered as f64));
    let server_cpu_us = 1e6 * sum(|load| load.server_cpu_seconds) / answered.max(1.0);
    let intended = sum(|load| load.intended_per_second) / loads.len() as f64;
    let achieved = answered / sum(|load| load.seconds).max(1e-9);
    let mut set = |name: &str, value: serde_json::Value| {
        details.insert(format!("open_{:.0}_{name}", 100.0 * share), value);
    };
    for (name, value_ns) in known_quantiles(&from_due) {
        set(&format!("{name}_ns"), value_ns.into());
    }
    if let Some(value_ns) = known(&from_sent, P99) {
        set("from_send_p99_ns", value_ns.into());
    }
    if let Some((least_ns, most_ns)) = p99_of_pairs(loads) {
        set("p99_least_ns", least_ns.into());
        set("p99_most_ns", most_ns.into());
    }
    set("intended_per_second", intended.into());
    set("answered_per_second", achieved.into());
    set("unanswered", ((due - answered) as u64).into());
    set("server_cpu_us_per_request", server_cpu_us.into());
    let all = OpenLoop {
        share,
        intended_per_second: intended,
        answered_per_second: achieved,
        due: due as u64,
        answered: answered as u64,
        server_cpu_us_per_request: server_cpu_us,
        from_intended_send_ns: buckets(&from_due),
        from_send_ns: buckets(&from_sent),
        sustained: false,
    };
    OpenLoop { sustained: all.is_sustained(), ..all }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair's open loop in which every request took this long.
    fn load(requests: u64, value_ns: u64) -> OpenLoad {
        OpenLoad {
            share: 0.5,
            intended_per_second: 1.0,
            seconds: 1.0,
            due: requests,
            answered: requests,
            server_cpu_seconds: 0.0,
            from_due: vec![(value_ns, requests)],
            from_sent: vec![(value_ns, requests)],
        }
    }

    #[test]
    fn a_quantile_is_reported_if_ten_requests_lie_beyond_it() {
        let named = |requests| {
            let mut details = Details::default();
            of_load(&[load(requests, 1000)], &mut details);
            ["p50", "p99", "p999"].map(|name| details.contains_key(&format!("open_50_{name}_ns")))
        };
        for (requests, quantiles) in [(19, 0), (20, 1), (999, 1), (1000, 2), (10_000, 3)] {
            assert_eq!(named(requests), [0, 1, 2].map(|quantile| quantile < quantiles), "{requests}");
        }
    }

    #[test]
    fn a_load_is_sustained_if_responses_keep_up_with_requests() {
        let of = |seconds: f64, answered: u64| {
            let load = OpenLoad { intended_per_second: 10_000.0, seconds, answered, ..load(10_000, 7) };
            of_load(&[load], &mut Details::default()).sustained
        };
        assert!(of(1.0, 10_000));
        assert!(of(1.04, 10_000), "within what is tolerated");
        assert!(!of(1.08, 10_000), "too slow");
        assert!(!of(1.0, 9_999), "one was never answered");
        // With few requests, chance alone makes a larger difference.
        let few = OpenLoad { intended_per_second: 25.0, seconds: 1.4, ..load(25, 7) };
        assert!(of_load(&[few], &mut Details::default()).sustained);
    }

    #[test]
    fn the_spread_of_p99_over_pairs_is_reported() {
        let mut details = Details::default();
        of_load(&[load(2000, 7), load(2000, 90), load(2000, 30), load(10, 1)], &mut details);
        let spread = ["least", "most"].map(|which| details.count(&format!("open_50_p99_{which}_ns")));
        assert_eq!(spread, [Some(7), Some(90)]);
        let mut details = Details::default();
        of_load(&[load(2000, 7), load(10, 90)], &mut details);
        assert!(!details.contains_key("open_50_p99_least_ns"), "one pair says nothing of others");
    }
}
