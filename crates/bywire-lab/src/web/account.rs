//! What the pairs of a cell came to, beyond the peak.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::SHARES;
use crate::pair::Outcomes;
use crate::plan::Details;
use crate::test::{buckets, histogram};

/// The detail that has an entry for each open loop.
pub const LOADS: &str = "open_loads";

/// One open loop of one pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenLoad {
    /// Of the pair's own peak.
    pub share: f64,
    /// Requests per second that were asked for.
    pub intended_per_second: f64,
    /// From the first one's time to the last answer.
    pub seconds: f64,
    /// Requests that became due.
    pub due: u64,
    /// Those that were answered.
    pub answered: u64,
    /// What the server's processes took.
    pub server_cpu_seconds: f64,
    /// From the intended send to the answer, as (ns, count).
    pub from_due: Vec<(u64, u64)>,
    /// From the send itself.
    pub from_sent: Vec<(u64, u64)>,
}

/// The details of a cell.
///
/// # Errors
/// A client's report that makes no sense.
pub fn details<'a>(pairs: impl Iterator<Item = &'a Outcomes>) -> Result<Details> {
    let mut details = Details::new();
    let mut loads: Vec<Vec<OpenLoad>> = vec![Vec::new(); SHARES.len()];
    let mut round_trips = histogram();
    let (mut received_bytes, mut seconds) = (0, 0.0);
    for outcomes in pairs {
        for (name, value) in &outcomes.source.details {
            if name != LOADS {
                details.insert(name.clone(), value.clone());
                continue;
            }
            let of_pair: Vec<OpenLoad> =
                serde_json::from_value(value.clone()).context("a client's report makes no sense")?;
            for (all, one) in loads.iter_mut().zip(of_pair) {
                all.push(one);
            }
        }
        add(&mut round_trips, &outcomes.source.round_trips);
        received_bytes += outcomes.source.blocks.iter().map(|part| part.received_bytes).sum::<u64>();
        seconds += outcomes.source.blocks.iter().map(|part| part.seconds).sum::<f64>();
    }
    for (name, quantile) in QUANTILES {
        details.insert(format!("round_trip_{name}_ns"), round_trips.value_at_quantile(quantile).into());
    }
    details.insert("received_bytes_per_second".into(), (received_bytes as f64 / seconds).into());
    let merged = loads.iter().filter(|loads| !loads.is_empty()).map(|loads| of_load(loads, &mut details));
    let merged: Vec<_> = merged.collect();
    details.insert(LOADS.into(), merged.into());
    Ok(details)
}

const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)];

/// All pairs of one open loop: figures into `details`, and the whole as one object.
fn of_load(loads: &[OpenLoad], details: &mut Details) -> serde_json::Value {
    let (mut from_due, mut from_sent) = (histogram(), histogram());
    for load in loads {
        add(&mut from_due, &load.from_due);
        add(&mut from_sent, &load.from_sent);
    }
    let sum = |of: fn(&OpenLoad) -> f64| loads.iter().map(of).sum::<f64>();
    let share = loads[0].share;
    let (due, answered) = (sum(|load| load.due as f64), sum(|load| load.answered as f64));
    let server_cpu_us = 1e6 * sum(|load| load.server_cpu_seconds) / answered.max(1.0);
    let intended = sum(|load| load.intended_per_second) / loads.len() as f64;
    let achieved = answered / sum(|load| load.seconds).max(1e-9);
    let mut set = |name: &str, value: serde_json::Value| {
        details.insert(format!("open_{:.0}_{name}", 100.0 * share), value);
    };
    for (name, quantile) in QUANTILES {
        set(&format!("{name}_ns"), from_due.value_at_quantile(quantile).into());
    }
    set("from_send_p99_ns", from_sent.value_at_quantile(0.99).into());
    set("intended_per_second", intended.into());
    set("answered_per_second", achieved.into());
    set("unanswered", ((due - answered) as u64).into());
    set("server_cpu_us_per_request", server_cpu_us.into());
    json!({
        "share": share,
        "intended_per_second": intended,
        "answered_per_second": achieved,
        "due": due as u64,
        "answered": answered as u64,
        "server_cpu_us_per_request": server_cpu_us,
        "from_intended_send_ns": buckets(&from_due),
        "from_send_ns": buckets(&from_sent),
    })
}

fn add(histogram: &mut Histogram<u64>, buckets: &[(u64, u64)]) {
    for &(value, count) in buckets {
        histogram.saturating_record_n(value, count);
    }
}
