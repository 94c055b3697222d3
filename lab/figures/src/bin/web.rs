//! The laboratory's load generator beside wrk: one running server, both in turn from the same core.

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bywire_analysis::statistics::median;
use bywire_command::exit_status;
use bywire_measure::measure::Request;
use bywire_measure::process::Setting;
use bywire_measure::web::{Load, Plan, ServerGuard};
use bywire_measure::workload::block_loop::histogram;
use bywire_measure::{pin, size, worker};
use clap::Parser;
use rand::seq::SliceRandom;

/// The first document of every plan.
const PATH: &str = "/000000";

/// Lengths of the file, in bytes.
const SIZES: [u64; 4] = [64, 1 << 10, 16 << 10, 256 << 10];

#[derive(Parser, Debug)]
#[command(name = "web")]
struct Arguments {
    /// How often each asks, in random order
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each asks at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Connections that stay open
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
}

fn main() -> ExitCode {
    // The server's guard is this very program.
    if std::env::args().nth(1).as_deref() == Some("__worker") {
        return exit_status::of("web", worker::run());
    }
    exit_status::of("web", compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<()> {
    let (client, server) = pin::two_cores();
    pin::pin_to(client)?;
    println!(
        "requests per second, medians of {} rounds; ratio of each round, median (least to most)",
        arguments.rounds
    );
    println!("{:<8} {:>8} {:>10} {:>10}  ours / wrk", "server", "file", "ours", "wrk");
    for name in ["nginx", "apache"] {
        for size_bytes in SIZES {
            let request = Request {
                size_bytes: Some(size_bytes),
                connections: Some(arguments.connections),
                server: Some(name.to_owned()),
                ..Request::new("web", "web-file")
            };
            let plan = Plan { cookie: format!("beside-wrk-{size_bytes}"), ..Plan::of(&request)? };
            match ServerGuard::start(&plan, Some(server), Setting::default()) {
                Ok(guard) => round_up(arguments, name, &plan, &guard)?,
                Err(error) => println!("not run: {name}: {error:#}"),
            }
        }
    }
    Ok(())
}

fn round_up(arguments: &Arguments, name: &str, plan: &Plan, guard: &ServerGuard) -> Result<()> {
    let socket = &guard.address().socket;
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        let mut order = [true, false];
        order.shuffle(&mut rand::rng());
        for own in order {
            match own {
                true => ours.push(ask(arguments, plan, socket)?),
                false => theirs.push(wrk(arguments, socket)?),
            }
        }
        ratios.extend(ours.last().zip(theirs.last()).map(|(ours, theirs)| ours / theirs));
    }
    let (least, most) = ratios
        .iter()
        .fold((f64::INFINITY, 0.0f64), |(least, most), &ratio| (least.min(ratio), most.max(ratio)));
    println!(
        "{name:<8} {:>8} {:>10.0} {:>10.0}  {:.3} ({least:.3} to {most:.3})",
        size::show(plan.size_bytes),
        median(&ours),
        median(&theirs),
        median(&ratios)
    );
    Ok(())
}

fn ask(arguments: &Arguments, plan: &Plan, socket: &str) -> Result<f64> {
    let mut load = Load::connect(plan, socket)?;
    let closed = load.closed(Duration::from_secs(arguments.seconds.into()), &mut histogram())?;
    Ok(closed.answered as f64 / (closed.elapsed_ns as f64 * 1e-9))
}

/// With one thread, which inherits the core.
fn wrk(arguments: &Arguments, socket: &str) -> Result<f64> {
    let mut command = Command::new("wrk");
    command.arg("-t1").arg(format!("-c{}", arguments.connections)).arg(format!("-d{}s", arguments.seconds));
    command.arg("--latency").arg(format!("http://{socket}{PATH}")).stdin(Stdio::null());
    let output = command.output().context("cannot run wrk: apt-get install wrk")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {}", String::from_utf8_lossy(&output.stderr));
    ensure!(!said.contains("Non-2xx") && !said.contains("Socket errors"), "wrk was refused: {said}");
    requests_per_second(&said).with_context(|| format!("wrk says no rate: {said}"))
}

fn requests_per_second(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"))?;
    line.trim().parse().ok().filter(|rate: &f64| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_strictly() {
        assert_eq!(
            requests_per_second("  1 threads\nRequests/sec:  41234.5\nTransfer/sec: 3MB\n"),
            Some(41234.5)
        );
        assert_eq!(requests_per_second("Requests/sec: nan"), None);
        assert_eq!(requests_per_second("Requests/sec: 0.0"), None);
        assert_eq!(requests_per_second(""), None);
    }
}
