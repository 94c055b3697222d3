//! The laboratory's load generator beside wrk: one running server, both in turn from the same core.

use std::cell::RefCell;
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bywire_command::exit_status;
use bywire_figures::application::requests_per_second;
use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::figures::Figures;
use bywire_figures::page;
use bywire_figures::program::{self, Arguments};
use bywire_figures::series::value;
use bywire_measure::measure::Request;
use bywire_measure::process::Setting;
use bywire_measure::web::{Load, Plan, ServerGuard};
use bywire_measure::workload::block_loop::histogram;
use bywire_measure::{pin, size};
use bywire_results::cell::Unit;
use clap::Parser;

/// The first document of every plan.
const PATH: &str = "/000000";

const SERVERS: [&str; 2] = ["nginx", "apache"];

/// Lengths of the file, in bytes.
const SIZES: [u64; 4] = [64, 1 << 10, 16 << 10, 256 << 10];

/// The laboratory's load generator beside wrk, in one run, as a Markdown table
#[derive(Parser)]
struct Web {
    #[command(flatten)]
    arguments: Arguments,
    /// How long each asks at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Connections that stay open
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
}

/// A server that both ask. It is started by the first of them.
struct Asked {
    plan: Plan,
    guard: RefCell<Option<ServerGuard>>,
}

fn main() -> ExitCode {
    let run = || {
        let Web { arguments, seconds, connections } = Web::parse();
        pin::pin_to(pin::two_cores().0)?;
        arguments.run("web", |_pair_seconds| contestants(seconds, connections), page)
    };
    // The server's guard is this very program.
    exit_status::of("web", program::play().unwrap_or_else(run))
}

fn contestants(seconds: u32, connections: u32) -> Contest {
    let mut contest = Contest::default();
    let duration = Duration::from_secs(seconds.into());
    for name in SERVERS {
        for size_bytes in SIZES {
            let file = format!("{name} {}", size::show(size_bytes));
            let asked = Asked::of(name, size_bytes, connections).map(Rc::new);
            let (ours, theirs) = match asked {
                Ok(asked) => {
                    let plan = Rc::clone(&asked);
                    let ours = move || plan.ask(duration);
                    let theirs = move || asked.wrk(seconds, connections);
                    let (unit, wrk) =
                        (Unit::TransactionsPerSecond, format!("wrk -t1 -c{connections} -d{seconds}s"));
                    let command = format!("the closed loop of bywire measure web web-file --server {name}");
                    (
                        Ok(Contestant::of_value(command, unit, ours)),
                        Ok(Contestant::of_value(wrk, unit, theirs)),
                    )
                }
                Err(error) => (Err(anyhow::anyhow!("{error:#}")), Err(error)),
            };
            contest.add(format!("ours {file}"), ours);
            contest.add(format!("wrk {file}"), theirs);
        }
    }
    contest
}

impl Asked {
    fn of(server: &str, size_bytes: u64, connections: u32) -> Result<Self> {
        let request = Request {
            size_bytes: Some(size_bytes),
            connections: Some(connections),
            server: Some(server.to_owned()),
            ..Request::new("web", "web-file")
        };
        let plan = Plan { cookie: format!("beside-wrk-{size_bytes}"), ..Plan::of(&request)? };
        Ok(Self { plan, guard: RefCell::default() })
    }

    fn socket(&self) -> Result<String> {
        let mut guard = self.guard.borrow_mut();
        if guard.is_none() {
            *guard = Some(ServerGuard::start(&self.plan, Some(pin::two_cores().1), Setting::default())?);
        }
        Ok(guard.as_ref().context("just started")?.address().socket.clone())
    }

    fn ask(&self, duration: Duration) -> Result<f64> {
        let mut load = Load::connect(&self.plan, &self.socket()?)?;
        let closed = load.closed(duration, &mut histogram())?;
        Ok(closed.operations as f64 / closed.seconds)
    }

    /// With one thread, which inherits the core.
    fn wrk(&self, seconds: u32, connections: u32) -> Result<f64> {
        let mut command = Command::new("wrk");
        command.arg("-t1").arg(format!("-c{connections}")).arg(format!("-d{seconds}s"));
        command.arg("--latency").arg(format!("http://{}{PATH}", self.socket()?)).stdin(Stdio::null());
        let output = command.output().context("cannot run wrk: apt-get install wrk")?;
        ensure!(output.status.success(), "wrk failed: {}", String::from_utf8_lossy(&output.stderr));
        requests_per_second(&String::from_utf8_lossy(&output.stdout))
    }
}

fn page(figures: &Figures) -> String {
    let files = SERVERS.into_iter().flat_map(|name| SIZES.map(|bytes| (name, size::show(bytes))));
    let rows = files.map(|(name, file)| {
        let names = ["ours", "wrk"].map(|whose| format!("{whose} {name} {file}"));
        let [ours, theirs] = names.each_ref().map(|name| value(name));
        let told = |series| page::told(figures, series);
        vec![name.to_owned(), file, told(ours), told(theirs), page::ratio(figures, ours, theirs)]
    });
    let titles = ["server", "file", "requests per second", "wrk", "ours over wrk"];
    format!("{}\n{}", page::machine(figures), page::table(2, titles, rows))
}

#[cfg(test)]
mod tests {
    use bywire_figures::figures::without;

    use super::*;

    #[test]
    fn a_server_that_is_missing_has_a_reason() {
        let session = without("ours nginx 64", "nginx is not installed");
        let page = page(&Figures::of(&session));
        assert!(page.contains("| nginx | 64 | not run: nginx is not installed |"), "{page}");
    }
}
