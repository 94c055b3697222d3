//! Takes every figure that sockets over the fabric must reach in one run, each beside plain TCP, and prints tables.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use bywire_command::exit_status;
use bywire_figures::application::{nginx, postgresql, redis};
use bywire_figures::carried::Mode;
use bywire_figures::contest::Contest;
use bywire_figures::program::Arguments;
use bywire_figures::requirement::Basis::{Median, Over};
use bywire_figures::requirement::Bound::{AtLeast, AtMost};
use bywire_figures::requirement::{self, Requirement};
use bywire_figures::table::{self, Show};
use bywire_figures::{lab, resident};
use bywire_measure::measure::Request;
use bywire_pairing::launch;
use clap::Parser;

/// Every figure of docs/performance.md on sockets over the fabric in one run, as Markdown tables
#[derive(Parser)]
struct Sockets {
    #[command(flatten)]
    arguments: Arguments,
}

const RATIO: Show = table::ratio;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 12] = [
    Requirement { measure: "1-byte request/response, blocking calls, spinning allowed, over TCP", bound: AtLeast { required: 8.0, goal: 20.0 }, basis: Over("rr sock", "rr tcp"), show: RATIO },
    Requirement { measure: "the same through epoll", bound: AtLeast { required: 3.0, goal: 10.0 }, basis: Over("rr sock epoll", "rr tcp epoll"), show: RATIO },
    Requirement { measure: "the same with blocking calls, spinning forbidden", bound: AtLeast { required: 1.3, goal: 1.6 }, basis: Over("rr sock asleep", "rr tcp"), show: RATIO },
    Requirement { measure: "stream, 64 KiB sends", bound: AtLeast { required: 1.3, goal: 2.0 }, basis: Over("stream sock 64K", "stream tcp 64K"), show: RATIO },
    Requirement { measure: "stream, 1 KiB sends", bound: AtLeast { required: 3.0, goal: 6.0 }, basis: Over("stream sock 1K", "stream tcp 1K"), show: RATIO },
    Requirement { measure: "Redis GET, 50 clients, no pipeline", bound: AtLeast { required: 1.5, goal: 3.0 }, basis: Over("redis carried", "redis plain"), show: RATIO },
    Requirement { measure: "nginx, keep-alive, 1 KB file, 16 connections", bound: AtLeast { required: 1.3, goal: 2.0 }, basis: Over("nginx carried", "nginx plain"), show: RATIO },
    Requirement { measure: "PostgreSQL, `pgbench -S` over TCP, 4 clients", bound: AtLeast { required: 1.05, goal: 1.3 }, basis: Over("postgresql carried", "postgresql plain"), show: RATIO },
    Requirement { measure: "4 client processes, 1 server process, 2 cores (Redis GET)", bound: AtLeast { required: 1.0, goal: 1.3 }, basis: Over("four clients carried", "four clients plain"), show: RATIO },
    Requirement { measure: "one request per connection (nginx)", bound: AtLeast { required: 0.95, goal: 1.0 }, basis: Over("one request carried", "one request plain"), show: RATIO },
    Requirement { measure: "accelerated program against a plain peer (Redis GET, 50 clients)", bound: AtLeast { required: 0.97, goal: 1.0 }, basis: Over("redis half", "redis plain"), show: RATIO },
    Requirement { measure: "resident memory per idle carried connection, 1,000 of them", bound: AtMost { required: 65_536.0, goal: 16_384.0 }, basis: Median("resident"), show: table::bytes },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "sockets",
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["__worker"] => bywire_measure::worker::run(),
            [launch::SERVICE, _] => become_bywire(&words),
            [resident::SERVER] => resident::server(),
            [resident::CLIENT, port] => resident::client(port),
            _ => Sockets::parse().arguments.run(contestants, page),
        },
    )
}

/// The service is part of the command, here of the one beside this.
fn become_bywire(words: &[String]) -> anyhow::Result<()> {
    let bywire = std::env::current_exe()?.with_file_name("bywire");
    Err(Command::new(&bywire).args(words).exec()).with_context(|| format!("cannot run {}", bywire.display()))
}

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for level in ["tcp", "sock"] {
        let rr = || Request { size_bytes: Some(1), ..Request::new(level, "rr") };
        let stream = |bytes| Request { size_bytes: Some(bytes), ..Request::new(level, "stream") };
        let requests = [
            (format!("rr {level}"), rr()),
            (format!("rr {level} epoll"), Request { epoll: true, ..rr() }),
            (format!("stream {level} 64K"), stream(64 << 10)),
            (format!("stream {level} 1K"), stream(1 << 10)),
        ];
        for (name, request) in requests {
            contest.add(&name, lab::contestant(&name, request, pair_seconds));
        }
    }
    let asleep = Request { size_bytes: Some(1), spin: Some(false), ..Request::new("sock", "rr") };
    contest.add("rr sock asleep", lab::contestant("rr sock asleep", asleep, pair_seconds));
    for (mode, name) in [(Mode::Plain, "plain"), (Mode::Carried, "carried")] {
        let named = |what: &str| format!("{what} {name}");
        contest.add(&named("redis"), Ok(redis(&named("redis"), mode, 1, 50)));
        contest.add(&named("nginx"), Ok(nginx(&named("nginx"), mode, true)));
        contest.add(&named("one request"), Ok(nginx(&named("one request"), mode, false)));
        contest.add(&named("postgresql"), Ok(postgresql(&named("postgresql"), mode)));
        contest.add(&named("four clients"), Ok(redis(&named("four clients"), mode, 4, 1)));
    }
    contest.add("redis half", Ok(redis("redis half", Mode::Half, 1, 50)));
    contest.add("resident", Ok(resident::contestant("resident")));
    contest
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push('\n');
    page.push_str(&requirement::table(&REQUIREMENTS, contest));
    page.push_str("\nBehind them. Client and server have a core each, unless their row says otherwise.\n\n");
    page.push_str(&table::contestants(contest, show));
    page
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    match series {
        _ if series.starts_with("stream") => table::rate,
        "resident" => table::bytes,
        _ => table::per_second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        requirement::assert_contestants(&REQUIREMENTS, &contestants(0.1));
    }
}
