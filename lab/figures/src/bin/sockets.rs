//! Every figure that sockets over the fabric must reach in one run, each beside plain TCP.

use std::process::ExitCode;

use bywire_figures::application::{nginx, postgresql, redis};
use bywire_figures::carried::Mode;
use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::requirement::Basis::{Median, Over};
use bywire_figures::requirement::{Requirement, at_least, at_most};
use bywire_figures::series::value;
use bywire_figures::{page, program, resident};
use bywire_measure::measure::Request;
use bywire_results::cell::Unit;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 12] = [
    at_least("1-byte request/response, blocking calls, spinning allowed, over TCP", 8.0, 20.0, Over(value("rr sock"), value("rr tcp"))),
    at_least("the same through epoll", 3.0, 10.0, Over(value("rr sock epoll"), value("rr tcp epoll"))),
    at_least("the same with blocking calls, spinning forbidden", 1.3, 1.6, Over(value("rr sock asleep"), value("rr tcp"))),
    at_least("stream, 64 KiB sends", 1.3, 2.0, Over(value("stream sock 64K"), value("stream tcp 64K"))),
    at_least("stream, 1 KiB sends", 3.0, 6.0, Over(value("stream sock 1K"), value("stream tcp 1K"))),
    at_least("Redis GET, 50 clients, no pipeline", 1.5, 3.0, Over(value("redis carried"), value("redis plain"))),
    at_least("nginx, keep-alive, 1 KB file, 16 connections", 1.3, 2.0, Over(value("nginx carried"), value("nginx plain"))),
    at_least("PostgreSQL, `pgbench -S` over TCP, 4 clients", 1.05, 1.3, Over(value("postgresql carried"), value("postgresql plain"))),
    at_least("4 client processes, 1 server process, 2 cores (Redis GET)", 1.0, 1.3, Over(value("four clients carried"), value("four clients plain"))),
    at_least("one request per connection (nginx)", 0.95, 1.0, Over(value("one request carried"), value("one request plain"))),
    at_least("accelerated program against a plain peer (Redis GET, 50 clients)", 0.97, 1.0, Over(value("redis half"), value("redis plain"))),
    at_most("resident memory per idle carried connection, 1,000 of them", 65536.0, 16384.0, Median(value("resident"))).in_unit(Unit::Bytes),
];

/// The text between the requirements and the contestants.
const CORES: &str = "\nClient and server have a core each, unless their row says otherwise.\n";

fn main() -> ExitCode {
    program::main("sockets", contestants, |figures| page::page(&REQUIREMENTS, CORES, figures))
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
            contest.add(name, Ok(Contestant::laboratory(request, pair_seconds)));
        }
    }
    let asleep = Request { size_bytes: Some(1), spin: Some(false), ..Request::new("sock", "rr") };
    contest.add("rr sock asleep", Ok(Contestant::laboratory(asleep, pair_seconds)));
    for (mode, name) in [(Mode::Plain, "plain"), (Mode::Carried, "carried")] {
        let named = |what: &str| format!("{what} {name}");
        contest.add(named("redis"), Ok(redis(mode, 1, 50)));
        contest.add(named("nginx"), Ok(nginx(mode, true)));
        contest.add(named("one request"), Ok(nginx(mode, false)));
        contest.add(named("postgresql"), Ok(postgresql(mode)));
        contest.add(named("four clients"), Ok(redis(mode, 4, 1)));
    }
    contest.add("redis half", Ok(redis(Mode::Half, 1, 50)));
    contest.add("resident", Ok(resident::contestant()));
    contest
}

#[cfg(test)]
mod tests {
    use bywire_figures::requirement::assert_contestants;

    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        assert_contestants(&REQUIREMENTS, &contestants(0.1));
    }
}
