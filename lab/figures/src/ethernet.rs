//! Ways of carrying Ethernet between two namespaces, measured by iperf3 and sockperf; and both over this machine's own network.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_measure::cpu;
use bywire_measure::ethernet::FrameLink;
use bywire_measure::namespaces::Namespace;
use bywire_measure::segments::Segments;
use serde_json::Value;

use crate::contestant::{Contestant, Metric, Samples, Unit};
use crate::process::{self, End, Place};

/// Datagrams of 8 KiB, and offered rates in Gb/s. 0 is as fast as the sender can.
pub const LONG_DATAGRAMS: (u32, [u32; 4]) = (8192, [3, 6, 12, 0]);
/// Datagrams that a packet of every tunnel takes whole.
pub const SHORT_DATAGRAMS: (u32, [u32; 4]) = (1200, [1, 2, 4, 0]);
/// After this a network has ended its own greetings, such as those of neighbour discovery.
const SETTLE: Duration = Duration::from_secs(15);
/// How long an idle network is watched.
const WATCH: Duration = Duration::from_secs(2);
/// The duration of a connection whose cost is counted, and of several at once.
const COSTED_SECONDS: f64 = 2.0;

/// How two ends become joined.
pub type Join = Rc<dyn Fn() -> Result<Place>>;

/// Two namespaces, joined by the laboratory's link.
pub fn joined(frame_link: FrameLink) -> Join {
    Rc::new(move || Ok(Place(Some(Arc::new(frame_link.open(None)?)))))
}

/// Serves this many measurements with one pair of namespaces, and then makes fresh ones.
pub fn reused(join: Join, uses: u32) -> Join {
    let kept: RefCell<Option<(Place, u32)>> = RefCell::default();
    Rc::new(move || {
        let mut kept = kept.borrow_mut();
        // Worn out ones end before fresh ones begin.
        *kept = kept.take().filter(|(_, left)| *left > 0);
        let (place, left) = match kept.take() {
            Some(kept) => kept,
            None => (join()?, uses),
        };
        *kept = Some((place.clone(), left - 1));
        Ok(place)
    })
}

/// One TCP connection of iperf3 with `options` of its client: received bytes per second.
pub fn iperf3_stream(join: Join, options: String) -> Contestant {
    let command = format!("iperf3 -c TARGET {options}");
    rival(command, "iperf3", Unit::BytesPerSecond, join, move |place| {
        Ok(vec![(Metric::Value, received(&iperf3(place, &options)?)?)])
    })
}

/// Datagrams by iperf3, received at the best of several offered rates: bytes per second.
pub fn iperf3_datagrams(join: Join, (bytes, offered): (u32, [u32; 4])) -> Contestant {
    let rates = offered.map(|rate| format!("{rate}G"));
    let command =
        format!("iperf3 -c TARGET -u -l {bytes} -t 1 -b each of {} (0G: no limit)", rates.join(", "));
    rival(command, "iperf3", Unit::BytesPerSecond, join, move |place| {
        let mut best: f64 = 0.0;
        for rate in &rates {
            best = best.max(received(&iperf3(place, &format!("-u -l {bytes} -t 1 -b {rate}"))?)?);
        }
        Ok(vec![(Metric::Value, best)])
    })
}

/// A ping-pong of sockperf over TCP with its shortest message: half-RTT in ns. Its port is not iperf3's, which the connections of
/// an ended server keep for a while.
pub fn sockperf(join: Join) -> Contestant {
    let command = "sockperf pp --tcp -i TARGET -t 1 -m 14";
    rival(command.to_owned(), "sockperf", Unit::Nanoseconds, join, |place| {
        let at = format!("--tcp -i {} -p 11111", place.address(End::Target));
        let arguments = [&format!("sr {at}")[..], &format!("pp {at} -t 1 -m 14")];
        let printed = place.converse("", "sockperf", arguments)?;
        Ok(vec![(Metric::Value, half_rtt_ns(&printed)?)])
    })
}

/// One TCP connection of iperf3 by CUBIC, from the source or back to it: received bytes per second, and in µs of CPU per KB
/// [`Metric::Demand`], all cores of this machine, with what the kernel does for nobody; [`Metric::Source`] and
/// [`Metric::Target`], the two ends; and [`Metric::Between`], the processes between them.
pub fn costed_stream(join: Join, is_back: bool) -> Contestant {
    let options = format!("-C cubic -t {COSTED_SECONDS}{}", if is_back { " -R" } else { "" });
    let command = format!("iperf3 -c TARGET {options}");
    rival(command, "iperf3", Unit::BytesPerSecond, join, move |place| {
        let spent = || -> Result<[f64; 2]> {
            Ok([cpu::machine_seconds()?, cpu::processes_seconds(place.carriers())])
        };
        let before = spent()?;
        let report = iperf3(place, &options)?;
        let after = spent()?;
        let rate = received(&report)?;
        let us_per_kb = |seconds: f64| 1e6 * 1024.0 * seconds / (rate * COSTED_SECONDS);
        let [machine, between] = [0, 1].map(|account| us_per_kb(after[account] - before[account]));
        let [source, target] = ends_shares(&report)?.map(|share| us_per_kb(share * COSTED_SECONDS));
        Ok(vec![
            (Metric::Value, rate),
            (Metric::Demand, machine),
            (Metric::Source, source),
            (Metric::Target, target),
            (Metric::Between, between),
        ])
    })
}

/// So many TCP connections of iperf3 at once, or so many each way: received bytes per second, [`Metric::Again`],
/// [`Metric::AgainShare`], and as [`Metric::Demand`] the CPU of the carriers.
pub fn flows(join: Join, count: u32, both_ways: bool) -> Contestant {
    let options = format!("-t {COSTED_SECONDS} -P {count}{}", if both_ways { " --bidir" } else { "" });
    let command = format!("iperf3 -c TARGET {options}");
    rival(command, "iperf3", Unit::BytesPerSecond, join, move |place| {
        let spent = || cpu::processes_seconds(place.carriers());
        let (spent_before, before) = (spent(), Segments::of(place.namespaces())?);
        let report = iperf3(place, &options)?;
        let (spent_after, after) = (spent(), Segments::of(place.namespaces())?);
        let rate = received(&report)? + if both_ways { received_back(&report)? } else { 0.0 };
        let counted = after.since(before);
        let [sent, again] = [counted.sent, counted.again].map(|count| count as f64);
        let demand_us_per_kb = 1e9 * (spent_after - spent_before) / (rate * COSTED_SECONDS);
        Ok(vec![
            (Metric::Value, rate),
            (Metric::Again, again.max(1.0)),
            (Metric::AgainShare, again / sent.max(1.0)),
            (Metric::Demand, demand_us_per_kb),
        ])
    })
}

/// The cost of idle carriers: ns of CPU per second.
pub fn idle(join: Join) -> Contestant {
    let mut opened: Option<(Place, Instant)> = None;
    let take = move || {
        if opened.is_none() {
            let place = join()?;
            place.namespaces().try_for_each(ask_for_no_routers)?;
            opened = Some((place, Instant::now()));
        }
        let (place, since) = opened.as_ref().context("just opened")?;
        std::thread::sleep(SETTLE.saturating_sub(since.elapsed()));
        process::cpu_ns_per_second(WATCH, || Ok(1e9 * cpu::processes_seconds(place.carriers())))
    };
    let command = format!("bywire eth up, without traffic, watched for {} s", WATCH.as_secs());
    Contestant::of_value(&command, Unit::NanosecondsPerSecond, take)
}

/// Has a kernel send no router solicitations, which IPv6 repeats forever where nobody answers: they are traffic, and
/// carrying them is no idling.
fn ask_for_no_routers(end: &Namespace) -> Result<()> {
    let never = "for name in /proc/sys/net/ipv6/conf/*/router_solicitations; do echo 0 > $name; done";
    let status = process::command(Some(end), None, &format!("sh -c '{never}'"))?.status()?;
    ensure!(status.success(), "router solicitations cannot be switched off");
    Ok(())
}

/// Another program's measurement, if `program` is installed.
fn rival(
    command: String,
    program: &'static str,
    unit: Unit,
    join: Join,
    measure: impl Fn(&Place) -> Result<Samples> + 'static,
) -> Contestant {
    Contestant::adapter(&command, unit, move || {
        process::find(program, program)?;
        measure(&join()?)
    })
}

/// The report of iperf3's client with `options`.
fn iperf3(place: &Place, options: &str) -> Result<Value> {
    let client = format!("-c {} -J {options}", place.address(End::Target));
    report(&place.converse("", "iperf3", ["-s", &client])?)
}

pub fn report(printed: &str) -> Result<Value> {
    serde_json::from_str(printed).context("iperf3 prints no JSON")
}

/// The received bytes per second in iperf3's report.
pub fn received(report: &Value) -> Result<f64> {
    let bits = number(report, "/end/sum_received/bits_per_second").or_else(|_| {
        let arrived = 1.0 - number(report, "/end/sum/lost_percent")? / 100.0;
        Ok::<_, anyhow::Error>(number(report, "/end/sum/bits_per_second")? * arrived)
    })?;
    ensure!(bits.is_finite() && bits > 0.0, "iperf3 says that {bits} bits a second arrived");
    Ok(bits / 8.0)
}

/// The received bytes per second of the other direction at the same time.
fn received_back(report: &Value) -> Result<f64> {
    Ok(number(report, "/end/sum_received_bidir_reverse/bits_per_second")? / 8.0)
}

/// The shares of a core that iperf3's client and its server took.
fn ends_shares(report: &Value) -> Result<[f64; 2]> {
    let percent = |end| number(report, &format!("/end/cpu_utilization_percent/{end}_total"));
    Ok([percent("host")? / 100.0, percent("remote")? / 100.0])
}

fn number(report: &Value, pointer: &str) -> Result<f64> {
    let number = report.pointer(pointer).and_then(Value::as_f64);
    number.with_context(|| format!("iperf3 does not report {pointer}: {}", report["error"]))
}

/// Sockperf's median half-RTT, in ns.
fn half_rtt_ns(printed: &str) -> Result<f64> {
    let last = printed.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing");
    let line = printed.lines().find_map(|line| line.split_once("percentile 50.000 ="));
    let us = process::positive(line.map(|(_, figure)| figure), "sockperf prints no median");
    Ok(1e3 * us.with_context(|| format!("the last line of sockperf is: {last}"))?)
}

#[cfg(test)]
mod tests {
    use bywire_measure::namespaces::Namespaces;
    use serde_json::json;

    use super::*;

    #[test]
    fn reports_of_iperf3_are_read_and_other_output_is_refused() {
        let rate = |bits: f64| json!({ "bits_per_second": bits });
        let printed = json!({ "end": { "sum": rate(9e9), "sum_received": rate(8e9) } }).to_string();
        assert_eq!(received(&report(&printed).unwrap()).unwrap(), 1e9);
        let lossy = json!({ "end": { "sum": { "bits_per_second": 16e9, "lost_percent": 50 } } });
        assert_eq!(received(&lossy).unwrap(), 1e9);
        assert!(report("").is_err());
        for other in [json!({}), json!({ "error": "no" }), json!({ "end": { "sum_received": rate(0.0) } })] {
            assert!(received(&other).is_err(), "{other}");
        }
        let shares = json!({ "host_total": 50.0, "remote_total": 75.0 });
        let both =
            json!({ "end": { "sum_received_bidir_reverse": rate(8e9), "cpu_utilization_percent": shares } });
        assert_eq!(received_back(&both).unwrap(), 1e9);
        assert_eq!(ends_shares(&both).unwrap(), [0.5, 0.75]);
        assert!(received_back(&lossy).is_err() && ends_shares(&lossy).is_err());
    }

    #[test]
    fn namespaces_are_used_as_often_as_asked() {
        let opened = Rc::new(RefCell::new(0));
        let count = Rc::clone(&opened);
        let join = reused(
            Rc::new(move || {
                *count.borrow_mut() += 1;
                Ok(Place(Some(Arc::new(Namespaces::veth_pair(1500)?))))
            }),
            2,
        );
        for opened_then in [1, 1, 2] {
            if let Err(reason) = join() {
                println!("not run: {reason:#}");
                return;
            }
            assert_eq!(*opened.borrow(), opened_then);
        }
    }

    #[test]
    fn the_median_is_parsed_instead_of_the_mean() {
        let printed =
            "sockperf: Summary: Latency is 7.436 usec\nsockperf: ---> percentile 50.000 =    6.870\n";
        assert_eq!(half_rtt_ns(printed).unwrap(), 6870.0);
        assert!(half_rtt_ns("sockperf: Summary: Latency is 7.436 usec").is_err());
    }
}
