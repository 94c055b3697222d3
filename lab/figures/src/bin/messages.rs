//! Every figure of docs/performance.md on messages of one machine in one run, each beside what it is set against.

use std::process::ExitCode;

use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::death::{self, WaitMode};
use bywire_figures::program;
use bywire_figures::requirement::Basis::{Median, Over, Worst};
use bywire_figures::requirement::{Requirement, at_least, at_most};
use bywire_figures::rival_pair::Place;
use bywire_figures::series::Metric::{HalfRtt, Long, Mean, Messages, NHalf, Overhead, TwoWay};
use bywire_figures::series::{by, value};
use bywire_figures::{bare_copy, bare_ring, idle, page, ucx};
use bywire_measure::measure::Request;
use bywire_results::cell::Unit;

/// A sweep takes this many times as long as another figure, which leaves each of its lengths a quarter.
const SWEEP_SHARE: f64 = 4.5;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 26] = [
    at_most("8 B half-RTT, polling, over the floor", 1.3, 1.1, Over(value("latency polling"), value("floor"))),
    at_most("the same over UCX tag latency, medians", 0.7, 0.5, Over(value("latency polling"), value("ucx"))),
    at_most("the same over UCX tag latency, means", 0.7, 0.5, Over(by("latency polling", Mean), by("ucx", Mean))),
    at_least("short-message rate, one pair", 20e6, 40e6, Median(by("short", Messages))).in_unit(Unit::MessagesPerSecond),
    at_most("host CPU per short message, send + receive", 80.0, 40.0, Median(value("overhead"))).in_unit(Unit::Nanoseconds),
    at_most("N½ of the one-way rate", 1024.0, 384.0, Median(value("N½"))).in_unit(Unit::Bytes),
    at_least("1 MiB, copying, over one core's write + memcpy + sum", 0.7, 1.0, Over(value("long"), value("touched"))),
    at_least("1 MiB, lent over copying", 1.1, 1.4, Over(value("lent"), value("long"))),
    at_least("1 MiB, two-way over one-way, copying", 0.8, 1.5, Over(value("two-way"), value("long"))),
    at_most("integrity on: 8 B half-RTT over the floor", 1.5, 1.25, Over(value("latency checked"), value("floor"))),
    at_least("integrity on: 1 MiB over write + memcpy + sum", 0.5, 0.7, Over(value("long checked"), value("touched"))),
    at_most("8 B half-RTT during a long transfer, over the same without", 3.0, 1.5, Over(value("interleaved"), value("latency polling"))),
    at_most("sleeping receiver: half-RTT over the futex hand-off", 1.3, 1.1, Over(by("latency sleeping", Mean), value("futex"))),
    at_most("1,000 idle peers: rise of the 8 B half-RTT", 1.2, 1.05, Over(value("latency with idle peers"), value("latency polling"))).as_rise(),
    at_most("peer killed: notice after teardown, in `wait`", 10e6, 2e6, Worst(&[value("notice waiting")])).in_unit(Unit::Nanoseconds),
    at_most("peer killed: notice after teardown, by `poll`", 10e6, 2e6, Worst(&[value("notice polling")])).in_unit(Unit::Nanoseconds),
    at_most("idle process", 0.0, 0.0, Worst(&[value("idle")])).in_unit(Unit::NanosecondsPerSecond),
    at_most("8 B half-RTT, polling, over the bare ring (not required)", 1.3, 1.1, Over(value("latency polling"), by("bare ring", HalfRtt))),
    at_most("the bare ring's half-RTT over the floor (not required)", 1.3, 1.1, Over(by("bare ring", HalfRtt), value("floor"))),
    at_least("short messages over the bare ring (not required)", 0.5, 0.8, Over(by("short", Messages), by("bare ring", Messages))),
    at_most("CPU of a short message over the bare ring (not required)", 3.0, 2.0, Over(value("overhead"), by("bare ring", Overhead))),
    at_most("N½ over that of the bare copy (not required)", 1.3, 1.1, Over(value("N½"), by("bare", NHalf))),
    at_least("1 MiB, copying, over the bare copy (not required)", 0.8, 0.9, Over(value("long"), by("bare", Long))),
    at_least("1 MiB, two-way, over the bare copy (not required)", 0.8, 0.9, Over(value("two-way"), by("bare", TwoWay))),
    at_most("the first figure by its mean (not required)", 1.3, 1.1, Over(by("latency polling", Mean), value("floor"))),
    at_most("the first figure in `wait` instead of `poll` (not required)", 1.3, 1.1, Over(value("latency"), value("floor"))),
];

fn main() -> ExitCode {
    program::main("messages", contestants, |figures| page::page(&REQUIREMENTS, "", figures))
}

fn contestants(pair_seconds: f64) -> Contest {
    let sized = |test: &str, bytes| Request { size_bytes: Some(bytes), ..Request::new("msg", test) };
    let latency = || sized("latency", 8);
    let long = |test| sized(test, 1 << 20);
    let memory = |test| Request::new("memory", test);
    // As many lines as the default rings have slots.
    let slots = bywire::Geometry::default().lanes[2].slots;
    let requests = [
        ("floor", Request { lines: Some(slots), ..memory("cacheline") }),
        ("touched", Request { size_bytes: Some(1 << 20), ..memory("touched") }),
        ("futex", memory("futex")),
        ("latency", latency()),
        ("latency polling", Request { spin: Some(true), ..latency() }),
        ("latency sleeping", Request { spin: Some(false), ..latency() }),
        ("latency checked", Request { integrity: Some(true), spin: Some(true), ..latency() }),
        ("latency with idle peers", Request { nodes: Some(1000), spin: Some(true), ..latency() }),
        ("interleaved", sized("interleave", 8)),
        ("short", sized("stream", 8)),
        ("overhead", sized("overhead", 8)),
        ("N½", Request { spin: Some(true), ..Request::new("msg", "nhalf") }),
        ("long", long("stream")),
        ("lent", Request { lent: true, ..long("stream") }),
        ("long checked", Request { integrity: Some(true), ..long("stream") }),
        ("two-way", long("bidir")),
    ];
    let mut contest = Contest::default();
    for (name, request) in requests {
        // A sweep shares its time among many streams.
        let seconds = if request.test == "nhalf" { SWEEP_SHARE * pair_seconds } else { pair_seconds };
        contest.add(name, Ok(Contestant::laboratory(request, seconds)));
    }
    contest.add("ucx", ucx::latency(&Place::Machine, 8, 1_000_000));
    contest.add("bare", Ok(bare_copy::contestant(pair_seconds)));
    contest.add("bare ring", Ok(bare_ring::contestant()));
    contest.add("notice waiting", Ok(death::contestant(WaitMode::Waiting)));
    contest.add("notice polling", Ok(death::contestant(WaitMode::Polling)));
    contest.add("idle", Ok(idle::contestant()));
    contest
}

#[cfg(test)]
mod tests {
    use bywire_figures::figures::{Figures, without};
    use bywire_figures::requirement::assert_contestants;
    use bywire_measure::measure::Topology;

    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        let contest = contestants(0.1);
        assert_contestants(&REQUIREMENTS, &contest);
        for entry in contest.entries().into_iter().filter(|entry| entry.level != "ucx") {
            let prepared = (entry.prepare)(&mut Topology::default());
            assert!(prepared.is_ok(), "{}: {:?}", entry.level, prepared.err());
        }
    }

    #[test]
    fn a_figure_that_was_not_measured_has_a_reason() {
        let session = without("ucx", "not installed");
        let page = page::page(&REQUIREMENTS, "", &Figures::of(&session));
        assert!(page.contains("| not measured: not installed |"), "{page}");
    }
}
