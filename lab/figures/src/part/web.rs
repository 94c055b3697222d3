//! The laboratory's load generator beside wrk: one running server, both in turn from the same core.

use std::cell::RefCell;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bywire_measure::measure::Request;
use bywire_measure::process::Setting;
use bywire_measure::web::{Load, Plan, ServerGuard};
use bywire_measure::workload::block_loop::histogram;
use bywire_measure::{pin, size};
use clap::Parser;

use crate::application::requests_per_second;
use crate::contestant::{Contest, Contestant, Unit};
use crate::figures::Figures;
use crate::page;
use crate::process::find;
use crate::run::Arguments;

/// The first document of every plan.
const PATH: &str = "/000000";
const SERVERS: [&str; 2] = ["nginx", "apache"];
/// Lengths of the file, in bytes.
const SIZES: [u64; 4] = [64, 1 << 10, 16 << 10, 256 << 10];

/// The laboratory's load generator beside wrk, in one run, as a Markdown table
#[derive(Parser)]
pub struct Web {
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

impl Web {
    pub fn run(self) -> Result<()> {
        let Self { arguments, seconds, connections } = self;
        pin::pin_to(pin::two_cores().0)?;
        arguments.run("web", |_pair_seconds| contestants(seconds, connections), page)
    }
}

fn contestants(seconds: u32, connections: u32) -> Contest {
    let mut contest = Contest::default();
    for (name, size_bytes) in files() {
        let file = format!("{name} {}", size::show(size_bytes));
        let asked = Asked::of(name, size_bytes, connections).map(Rc::new);
        let mut add = |whose: &str, command: String, ask: fn(&Asked, u32, u32) -> Result<f64>| {
            let contestant = asked.as_ref().map_err(|error| anyhow!("{error:#}")).map(|asked| {
                let asked = Rc::clone(asked);
                Contestant::of_value(&command, Unit::TransactionsPerSecond, move || {
                    ask(&asked, seconds, connections)
                })
            });
            contest.add(format!("{whose} {file}"), contestant);
        };
        add("ours", format!("the closed loop of bywire measure web web-file --server {name}"), Asked::ours);
        add("wrk", format!("wrk -t1 -c{connections} -d{seconds}s"), Asked::wrk);
    }
    contest
}

/// All files: the server and the length.
fn files() -> impl Iterator<Item = (&'static str, u64)> {
    SERVERS.into_iter().flat_map(|name| SIZES.map(|bytes| (name, bytes)))
}

impl Asked {
    fn of(server: &str, size_bytes: u64, connections: u32) -> Result<Self> {
        let words = format!("web web-file --size {size_bytes} --connections {connections} --server {server}");
        let plan = Plan::of(&Request::of_words(&words)?)?;
        let plan = Plan { cookie: format!("beside-wrk-{size_bytes}"), ..plan };
        Ok(Self { plan, guard: RefCell::default() })
    }

    fn socket(&self) -> Result<String> {
        let mut guard = self.guard.borrow_mut();
        if guard.is_none() {
            *guard = Some(ServerGuard::start(&self.plan, Some(pin::two_cores().1), Setting::default())?);
        }
        Ok(guard.as_ref().context("just started")?.address().socket.clone())
    }

    fn ours(&self, seconds: u32, _connections: u32) -> Result<f64> {
        let mut load = Load::connect(&self.plan, &self.socket()?)?;
        let closed = load.closed(Duration::from_secs(seconds.into()), &mut histogram())?;
        Ok(closed.operations as f64 / closed.seconds)
    }

    /// With one thread, which inherits the core.
    fn wrk(&self, seconds: u32, connections: u32) -> Result<f64> {
        let mut command = Command::new(find("wrk", "wrk")?);
        command.arg("-t1").arg(format!("-c{connections}")).arg(format!("-d{seconds}s"));
        command.arg("--latency").arg(format!("http://{}{PATH}", self.socket()?)).stdin(Stdio::null());
        let output = command.output()?;
        ensure!(output.status.success(), "wrk failed: {}", String::from_utf8_lossy(&output.stderr));
        requests_per_second(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Ours over wrk's, by server and file.
pub fn page(figures: &Figures) -> String {
    let rows = files().map(|(name, bytes)| {
        let file = size::show(bytes);
        page::versus(figures, &[name, &file], ["ours", "wrk"].map(|whose| format!("{whose} {name} {file}")))
    });
    let titles = ["server", "file", "requests per second", "wrk", "ours over wrk"];
    format!("{}\n{}", page::machine(figures), page::table(2, titles, rows))
}
