//! `bywire engine`: carries connections of `bywire run` that leave this machine.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use bywire::{NoFabric, OpenError};
use bywire_command::exit_status::Misuse;
use bywire_engine::control::{self, ControlSocket, Request};
use bywire_engine::counts::Counts;
use bywire_engine::engine::{Engine, Links};
use bywire_engine::fabric::{Fabric, FabricError};
use bywire_metrics::{Metrics, Page};
use bywire_pairing::launch::{self, Launch};
use bywire_sys::poller::Poller;
use bywire_sys::wake::Eventfd;
use clap::{Args, Subcommand};

use crate::background::{self, Report};
use crate::count;
use crate::run::{ENGINE_CONTROL as CONTROL, machine_socket, own_directory};

/// An action on the engine of this user.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire engine up --background
  bywire run -- rsyslogd -n
  bywire engine status
  bywire engine down",
    after_help = "\
Programs that `bywire run` has started need nothing new. A connection with a program under `bywire run` on another machine of the \
fabric (`bywire up`) is carried there in encrypted messages, if an engine of the same user name runs on both machines. If an \
engine ends or is killed, such connections are reset. A program that sends many small pieces over TCP to any other peer has its \
pieces relayed: the engine gives them to the kernel in batches, and the peer sees plain TCP. If the engine ends, such programs go \
on by themselves. `bywire run --engine off` does without it."
)]
pub struct EngineArgs {
    #[command(subcommand)]
    action: EngineAction,
}

#[derive(Subcommand, Debug)]
enum EngineAction {
    /// Serve the programs of this user until Ctrl-C or `bywire engine down`
    Up(UpArgs),
    /// Show what the engine of this user carries and relays
    Status(StatusArgs),
    /// End the engine of this user. Relayed connections go on, those with other machines are reset
    Down,
}

#[derive(Args, Debug)]
struct UpArgs {
    /// Go on in the background once it serves
    #[arg(long)]
    background: bool,
    /// Answer Prometheus at this address, such as 127.0.0.1:9106
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Links to serve: `relay` for peers anywhere, `fabric` for programs of `bywire run` on other machines
    /// [default: both, the second one if this machine's node runs]
    #[arg(long, value_enum, value_delimiter = ',')]
    links: Vec<LinkName>,
    #[arg(long, hide = true)]
    detached: bool,
}

/// A link of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LinkName {
    Relay,
    Fabric,
}

#[derive(Args, Debug)]
struct StatusArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl EngineArgs {
    /// Does it.
    pub fn run(self) -> Result<()> {
        match self.action {
            EngineAction::Up(arguments) if arguments.background => background::start(),
            EngineAction::Up(arguments) if arguments.detached => {
                let report = Report::take()?;
                match Running::start(&arguments) {
                    Ok(running) => {
                        report.ready(READY)?;
                        running.serve()
                    }
                    Err(error) => {
                        report.failed(&error);
                        Ok(())
                    }
                }
            }
            EngineAction::Up(arguments) => {
                let running = Running::start(&arguments)?;
                bywire_command::output::print(READY)?;
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
                running.serve()
            }
            EngineAction::Status(arguments) => status(arguments.json),
            EngineAction::Down => down(),
        }
    }
}

/// The line that tells that an engine serves.
const READY: &str = "the engine serves the programs of this user\n";

/// An engine that serves.
struct Running {
    engine: Engine,
    control: ControlSocket,
    stop: &'static Eventfd,
}

impl Running {
    fn start(arguments: &UpArgs) -> Result<Self> {
        let path = control_path()?;
        let control = ControlSocket::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                Misuse("an engine of this user runs already: end it by `bywire engine down`".to_owned())
                    .into()
            }
            _ => anyhow!("cannot use the socket {}: {error}", path.display()),
        })?;
        // The handler of a signal may run until the process ends.
        let stop: &'static Eventfd = Box::leak(Box::new(Eventfd::new().context("no descriptors are left")?));
        ctrlc::set_handler(|| stop.signal()).context("cannot watch for an interrupt")?;
        let service = pairing_service()?;
        let asked = &arguments.links;
        let is_wanted = |name| asked.is_empty() || asked.contains(&name);
        let fabric = match is_wanted(LinkName::Fabric).then(Fabric::open).transpose() {
            // Without a node there are no other machines.
            Err(FabricError::Port(OpenError::Fabric(NoFabric::NotRunning))) if asked.is_empty() => None,
            fabric => fabric?,
        };
        let relays = is_wanted(LinkName::Relay);
        let engine = Engine::start(&service, Links { relays, fabric })?;
        if let Some(address) = arguments.metrics {
            serve_metrics(address, path)?;
        }
        Ok(Self { engine, control, stop })
    }

    fn serve(self) -> Result<()> {
        Ok(self.engine.serve(self.control, self.stop)?)
    }
}

/// Serves by the pairing service at a path until this process ends, without an interrupt of its own.
///
/// # Errors
/// [`bywire_engine::engine::EngineError`], or those of the kernel.
pub fn relay_beside(service: &Path) -> Result<()> {
    let control = ControlSocket::open(&service.with_file_name(CONTROL))?;
    let engine = Engine::start(service, Links { relays: true, fabric: None })?;
    bywire_command::output::print(launch::READY)?;
    Ok(engine.serve(control, &Eventfd::new()?)?)
}

/// Answers callers on a thread, which asks the engine like any other program, at most once a second.
fn serve_metrics(address: SocketAddr, control: PathBuf) -> Result<()> {
    let mut metrics = Metrics::listen(address)
        .with_context(|| format!("cannot serve metrics on {address}: give another --metrics ADDRESS:PORT"))?;
    let mut poller = Poller::new()?;
    poller.add(&metrics, 0)?;
    let answer_all = move || {
        while poller.wait(metrics.timeout()).is_ok() {
            let counts = || control::ask(&control, Request::Status).ok().flatten().unwrap_or_default();
            let Ok(()) = metrics.serve(|| Ok::<_, Infallible>(page(&counts())));
        }
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(answer_all)?;
    Ok(())
}

/// The counts in the text form of Prometheus.
fn page(counts: &Counts) -> String {
    let mut page = Page::new("bywire_engine");
    let mut add = |name, kind, help, value: u64| page.sample(name, kind, help, &[], &value.into());
    add("relayed", "gauge", "Connections that are relayed now.", counts.relayed);
    add("relayed_total", "counter", "Connections that have been relayed.", counts.relayed_ever);
    add("refused_total", "counter", "Connections that were refused.", counts.refused);
    add("bytes_total", "counter", "Bytes that the kernel was given for programs.", counts.bytes);
    add("carried", "gauge", "Connections that are carried to other machines now.", counts.carried);
    add(
        "carried_total",
        "counter",
        "Connections that have been carried to other machines.",
        counts.carried_ever,
    );
    add(
        "unmet_total",
        "counter",
        "Connections that had to be carried to other machines, and were reset as they could not be.",
        counts.unmet,
    );
    add("sent_bytes_total", "counter", "Bytes that programs have sent to other machines.", counts.bytes_sent);
    add(
        "received_bytes_total",
        "counter",
        "Bytes that programs were sent from there.",
        counts.bytes_received,
    );
    page.text()
}

/// The socket of the machine's pairing service, or of this user's own, which is started.
fn pairing_service() -> Result<PathBuf> {
    if let Some(machine) = machine_socket()? {
        return Ok(machine);
    }
    let launch = Launch::of_service(&own_directory()?);
    let command = std::env::current_exe().context("cannot tell where this command is")?;
    launch.found_service(&command)?;
    Ok(launch.service().to_owned())
}

fn control_path() -> Result<PathBuf> {
    Ok(own_directory()?.join(CONTROL))
}

fn ask(request: Request) -> Result<Counts> {
    let path = control_path()?;
    let answer = control::ask(&path, request)
        .with_context(|| format!("the engine at {} does not answer", path.display()))?;
    let Some(counts) = answer else {
        bail!("no engine of this user runs: start one by `bywire engine up --background`")
    };
    Ok(counts)
}

fn status(json: bool) -> Result<()> {
    let counts = ask(Request::Status)?;
    if json {
        return bywire_command::output::print(&format!("{}\n", serde_json::to_string(&counts)?));
    }
    let of = |number| count::of(number, "connection", "connections");
    let refused = if counts.refused > 0 {
        format!("{} refused: too many at once, or no memory or descriptors\n", of(counts.refused))
    } else {
        String::new()
    };
    let unmet = if counts.unmet > 0 {
        format!(
            "{} reset that had to be carried: the other machine had no engine for this user, or the other program did not \
             require it as well\n",
            of(counts.unmet)
        )
    } else {
        String::new()
    };
    bywire_command::output::print(&format!(
        "{} relayed now, {} in all, {} bytes\n{} carried to other machines now, {} in all, {} bytes sent, {} received\n{refused}{unmet}",
        of(counts.relayed),
        counts.relayed_ever,
        counts.bytes,
        of(counts.carried),
        counts.carried_ever,
        counts.bytes_sent,
        counts.bytes_received
    ))
}

fn down() -> Result<()> {
    let counts = ask(Request::Down)?;
    let connections = count::of(counts.relayed, "relayed connection goes", "relayed connections go");
    let reset = match counts.carried {
        0 => String::new(),
        carried => {
            format!("; {} reset", count::of(carried, "to another machine is", "to other machines are"))
        }
    };
    bywire_command::output::print(&format!("the engine ends; {connections} on without it{reset}\n"))
}
