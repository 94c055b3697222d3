//! Takes every figure that Bywire must reach in one run, each beside what it is set against, and prints a table.

use std::path::Path;
use std::process::ExitCode;

use bywire_command::exit_status;
use bywire_figures::contest::Contest;
use bywire_figures::death::{self, WaitMode};
use bywire_figures::program::Arguments;
use bywire_figures::requirement::Basis::{Median, Over, Worst};
use bywire_figures::requirement::Bound::{AtLeast, AtMost};
use bywire_figures::requirement::{self, Requirement};
use bywire_figures::rival_pair::Place;
use bywire_figures::table::{self, Show};
use bywire_figures::{bare_copy, bare_ring};
use bywire_figures::{idle, lab, ucx};
use bywire_measure::measure::Request;
use bywire_results::cell::DISTURBED;
use clap::Parser;

/// Every figure of docs/performance.md in one run, as a Markdown table
#[derive(Parser)]
struct Messages {
    #[command(flatten)]
    arguments: Arguments,
}

/// A sweep takes this many times as long as another figure, which leaves each of its lengths a quarter.
const SWEEP_SHARE: f64 = 4.5;

const RATIO: Show = table::ratio;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 26] = [
    Requirement { measure: "8 B half-RTT, polling, over the floor", bound: AtMost { required: 1.3, goal: 1.1 }, basis: Over("latency polling", "floor"), show: RATIO },
    Requirement { measure: "the same over UCX tag latency, medians", bound: AtMost { required: 0.7, goal: 0.5 }, basis: Over("latency polling", "ucx"), show: RATIO },
    Requirement { measure: "the same over UCX tag latency, means", bound: AtMost { required: 0.7, goal: 0.5 }, basis: Over("latency polling mean", "ucx mean"), show: RATIO },
    Requirement { measure: "short-message rate, one pair", bound: AtLeast { required: 20e6, goal: 40e6 }, basis: Median("short messages"), show: table::millions },
    Requirement { measure: "host CPU per short message, send + receive", bound: AtMost { required: 80.0, goal: 40.0 }, basis: Median("overhead"), show: table::ns },
    Requirement { measure: "N½ of the one-way rate", bound: AtMost { required: 1024.0, goal: 384.0 }, basis: Median("N½"), show: table::bytes },
    Requirement { measure: "1 MiB, copying, over one core's write + memcpy + sum", bound: AtLeast { required: 0.7, goal: 1.0 }, basis: Over("long", "touched"), show: RATIO },
    Requirement { measure: "1 MiB, lent over copying", bound: AtLeast { required: 1.1, goal: 1.4 }, basis: Over("lent", "long"), show: RATIO },
    Requirement { measure: "1 MiB, two-way over one-way, copying", bound: AtLeast { required: 0.8, goal: 1.5 }, basis: Over("two-way", "long"), show: RATIO },
    Requirement { measure: "integrity on: 8 B half-RTT over the floor", bound: AtMost { required: 1.5, goal: 1.25 }, basis: Over("latency checked", "floor"), show: RATIO },
    Requirement { measure: "integrity on: 1 MiB over write + memcpy + sum", bound: AtLeast { required: 0.5, goal: 0.7 }, basis: Over("long checked", "touched"), show: RATIO },
    Requirement { measure: "8 B half-RTT during a long transfer, over the same without", bound: AtMost { required: 3.0, goal: 1.5 }, basis: Over("interleaved", "latency polling"), show: RATIO },
    Requirement { measure: "sleeping receiver: half-RTT over the futex hand-off", bound: AtMost { required: 1.3, goal: 1.1 }, basis: Over("latency sleeping mean", "futex"), show: RATIO },
    Requirement { measure: "1,000 idle peers: rise of the 8 B half-RTT", bound: AtMost { required: 1.2, goal: 1.05 }, basis: Over("latency with idle peers", "latency polling"), show: table::rise },
    Requirement { measure: "peer killed: notice after teardown, in `wait`", bound: AtMost { required: 10.0, goal: 2.0 }, basis: Worst(&["notice waiting"]), show: table::ms },
    Requirement { measure: "peer killed: notice after teardown, by `poll`", bound: AtMost { required: 10.0, goal: 2.0 }, basis: Worst(&["notice polling"]), show: table::ms },
    Requirement { measure: "idle process", bound: AtMost { required: 0.0, goal: 0.0 }, basis: Worst(&["idle"]), show: table::cpu },
    Requirement { measure: "8 B half-RTT, polling, over the bare ring (not required)", bound: AtMost { required: 1.3, goal: 1.1 }, basis: Over("latency polling", "bare ring half-RTT"), show: RATIO },
    Requirement { measure: "the bare ring's half-RTT over the floor (not required)", bound: AtMost { required: 1.3, goal: 1.1 }, basis: Over("bare ring half-RTT", "floor"), show: RATIO },
    Requirement { measure: "short messages over the bare ring (not required)", bound: AtLeast { required: 0.5, goal: 0.8 }, basis: Over("short messages", "bare ring short messages"), show: RATIO },
    Requirement { measure: "CPU of a short message over the bare ring (not required)", bound: AtMost { required: 3.0, goal: 2.0 }, basis: Over("overhead", "bare ring overhead"), show: RATIO },
    Requirement { measure: "N½ over that of the bare copy (not required)", bound: AtMost { required: 1.3, goal: 1.1 }, basis: Over("N½", "bare N½"), show: RATIO },
    Requirement { measure: "1 MiB, copying, over the bare copy (not required)", bound: AtLeast { required: 0.8, goal: 0.9 }, basis: Over("long", "bare long"), show: RATIO },
    Requirement { measure: "1 MiB, two-way, over the bare copy (not required)", bound: AtLeast { required: 0.8, goal: 0.9 }, basis: Over("two-way", "bare two-way"), show: RATIO },
    Requirement { measure: "the first figure by its mean (not required)", bound: AtMost { required: 1.3, goal: 1.1 }, basis: Over("latency polling mean", "floor"), show: RATIO },
    Requirement { measure: "the first figure in `wait` instead of `poll` (not required)", bound: AtMost { required: 1.3, goal: 1.1 }, basis: Over("latency", "floor"), show: RATIO },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "messages",
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["__worker"] => bywire_measure::worker::run(),
            [death::VICTIM, directory] => death::victim(Path::new(directory)),
            [idle::IDLER, directory] => idle::idler(Path::new(directory)),
            _ => Messages::parse().arguments.run(contestants, page),
        },
    )
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
        contest.add(name, lab::contestant(name, request, seconds));
    }
    contest.add("ucx", ucx::latency("ucx", &Place::Machine, 8, 1_000_000));
    contest.add("bare", Ok(bare_copy::contestant("bare", pair_seconds)));
    contest.add("bare ring", Ok(bare_ring::contestant("bare ring")));
    contest.add("notice waiting", death::contestant("notice waiting", WaitMode::Waiting));
    contest.add("notice polling", death::contestant("notice polling", WaitMode::Polling));
    contest.add("idle", idle::contestant("idle"));
    contest
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push('\n');
    page.push_str(&requirement::table(&REQUIREMENTS, contest));
    page.push_str(&format!("\nBehind them. {DISTURBED}\n\n"));
    page.push_str(&table::contestants(contest, show));
    page
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    match series {
        "touched" | "short" | "long" | "lent" | "long checked" | "two-way" | "bare long" | "bare two-way" => {
            table::rate
        }
        "N½" | "bare N½" => table::bytes,
        "notice waiting" | "notice polling" => table::ms,
        "idle" => table::cpu,
        _ if series.ends_with("messages") => table::millions,
        _ => table::ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        let contest = contestants(0.1);
        requirement::assert_contestants(&REQUIREMENTS, &contest);
        let unprepared = contest.entries().iter().filter(|entry| entry.contestant.name != "ucx");
        for entry in unprepared {
            assert!(entry.failures.is_empty(), "{}: {:?}", entry.contestant.name, entry.failures);
        }
    }

    #[test]
    fn a_figure_that_was_not_measured_has_a_reason() {
        let mut contest = Contest::default();
        contest.add("ucx", Err(anyhow::anyhow!("not installed")));
        assert!(page(&contest).contains("| not measured: not installed |"));
    }
}
