//! `bywire eth`: Ethernet interfaces whose frames cross the fabric.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use bywire_command::exit_status::Misuse;
use bywire_eth::confinement::Reach;
use bywire_eth::control::{self, Request};
use bywire_eth::network::Launch;
use bywire_eth::order::{Confinement, Node as FabricNode};
use bywire_eth::service::{Service, ServiceError};
use bywire_eth::settings::{Interface, Settings, SettingsError};
use bywire_eth::{carrier, confinement, status};
use bywire_node::client;
use bywire_sys::socket::Socket;
use bywire_wire::service::status::{Node, State};
use clap::{Args, Subcommand, ValueEnum};
use rustix::thread::{CapabilitySet, capabilities};

use crate::background::{self, Report};

/// The name of the hidden subcommand that carries frames.
pub const CARRIER: &str = "__carrier";

/// Arguments of `bywire eth`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples (two containers in three commands):
  ip netns add blue; ip netns add red
  bywire eth up --background --interface blue:by0=10.77.0.1/24 --interface red:by0=10.77.0.2/24
  ip netns exec blue ping -c 3 10.77.0.2
More:
  bywire eth up --interface pid:4711:by0=10.77.0.1/24 --interface -:by0=10.77.0.254/24 --mtu 9000
  bywire eth up --fabric --interface -:by0=10.77.0.1/24
  bywire eth up --config /etc/bywire.toml
  bywire eth status --json
  bywire eth down",
    after_help = "\
Exit codes: `up` ends with 0 after Ctrl-C or `down`. `status` and `down` end with 1 if nothing runs; `status --json` \
then prints [] too."
)]
pub struct EthArgs {
    #[command(subcommand)]
    action: EthAction,
}

#[derive(Subcommand, Debug)]
enum EthAction {
    /// Make interfaces and carry their frames, until Ctrl-C or `bywire eth down`
    Up(Box<UpArgs>),
    /// End running networks
    Down(ChosenArgs),
    /// Show running networks: interfaces, traffic, and drops by cause
    Status(StatusArgs),
}

#[derive(Args, Debug)]
struct UpArgs {
    /// Make an interface, without addresses for DHCP; NETNS is a name, pid:N, a path, or - for this one
    #[arg(long = "interface", value_name = "NETNS:NAME[=ADDRESS/PREFIX,...]", allow_hyphen_values = true)]
    interfaces: Vec<Interface>,
    /// Reach the network's processes on the other machines of the fabric; needs `bywire up` on each
    #[arg(long)]
    fabric: bool,
    /// MTU in bytes, 68 to 65521 [default: 1500; 1350 with --fabric]
    #[arg(long, value_name = "N")]
    mtu: Option<u32>,
    /// Processes that carry frames, each with a queue of every interface, 1 to 64 [default: 1]
    #[arg(long, value_name = "N")]
    queues: Option<usize>,
    /// Take all waiting frames at each wake-up, and merge those of a flow [default: on]
    #[arg(long, value_name = "SWITCH")]
    coalesce: Option<Switch>,
    /// Microseconds to poll before sleeping; 0 sleeps at once [default: 50]
    #[arg(long, value_name = "N")]
    spin_us: Option<u32>,
    /// Attach the interfaces to this bridge of their namespace [default: none]
    #[arg(long, value_name = "BRIDGE")]
    bridge: Option<String>,
    /// The network, whose interfaces see each other [default: default]
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// The name of this process in the network [default: that of this machine in the fabric with --fabric, else the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Serve metrics for Prometheus here [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    metrics: Option<std::net::SocketAddr>,
    /// Settings in TOML, read again on SIGHUP; options given here override it [default: none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Return once the interfaces are up, and continue in the background
    #[arg(long)]
    background: bool,
    /// What `--background` starts
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
}

#[derive(Args, Debug)]
struct ChosenArgs {
    /// Only this network
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Only this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

#[derive(Args, Debug)]
struct StatusArgs {
    #[command(flatten)]
    chosen: ChosenArgs,
    /// Print one JSON array instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl EthArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn run(self) -> Result<()> {
        match self.action {
            EthAction::Up(arguments) => arguments.run(),
            EthAction::Down(arguments) => arguments.down(),
            EthAction::Status(arguments) => arguments.run(),
        }
    }
}

/// The address in an argument.
pub fn address(text: &str) -> Result<std::net::SocketAddr> {
    text.parse::<std::net::SocketAddr>()
        .ok()
        .with_context(|| format!("{text:?} is not an address to listen on: write it like 127.0.0.1:9477"))
}

impl UpArgs {
    fn run(self) -> Result<()> {
        if self.background {
            return background::start();
        }
        if !self.detached {
            // The output may be closed; the network stays.
            return self.serve(|service| {
                service
                    .lines()
                    .iter()
                    .for_each(|line| drop(bywire_command::output::print(&format!("{line}\n"))));
                Ok(())
            });
        }
        let report = Cell::new(Some(Report::take()?));
        let ended = self.serve(|service| {
            let end = format!(
                "to end it: bywire eth down --network {} --node {}",
                service.network(),
                service.node()
            );
            let lines = service.lines().into_iter().chain([end]).map(|line| line + "\n");
            report.take().map_or(Ok(()), |report| report.ready(lines.collect::<String>()))
        });
        if let (Err(error), Some(report)) = (&ended, report.take()) {
            report.failed(error);
        }
        ended
    }

    /// Makes the interfaces of the settings, reports them by `ready`, and serves until the end.
    fn serve(&self, ready: impl FnOnce(&Service) -> Result<()>) -> Result<()> {
        if self.settings().and_then(|settings| settings.plans()).map_err(Misuse::of)?.is_empty() {
            return Err(Misuse::of(SettingsError::Nothing));
        }
        may()?;
        let fabric_node = self.fabric_node()?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut carrier = vec![CARRIER.into(), control::ports_directory()?.into()];
        carrier.extend(fabric_node.is_some().then(|| "--fabric".into()));
        let launch = Launch::Program(program, carrier);
        // The output may be closed; the network stays.
        let say = |line: &str| drop(bywire_command::output::print(&format!("{line}\n")));
        let read = || Ok(Settings { fabric_node: fabric_node.clone(), ..self.settings()? });
        let service = Service::start(&read, &launch, &other_nodes, &say).map_err(classed)?;
        ready(&service)?;
        Ok(service.run()?)
    }

    /// This machine in the fabric, if its interfaces are to reach other machines.
    fn fabric_node(&self) -> Result<Option<FabricNode>> {
        if !self.settings().map_err(Misuse::of)?.fabric {
            return Ok(None);
        }
        let nodes = client::nodes(None).context("--fabric needs the service of this machine's node")?;
        let own = nodes.into_iter().find(|node| node.state == State::Own).map(fabric_node);
        own.context("the service of this machine's node does not name it: start it again by `bywire up`")
            .map(Some)
    }

    /// The settings of the file, overridden by those of the command line.
    fn settings(&self) -> Result<Settings, SettingsError> {
        let mut settings = self.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
        settings.interfaces.extend(self.interfaces.iter().cloned());
        settings.fabric |= self.fabric;
        settings.mtu = self.mtu.or(settings.mtu);
        settings.metrics = self.metrics.or(settings.metrics);
        settings.queues = self.queues.unwrap_or(settings.queues);
        settings.spin_us = self.spin_us.unwrap_or(settings.spin_us);
        settings.coalesce = self.coalesce.map_or(settings.coalesce, |switch| matches!(switch, Switch::On));
        if let Some(bridge) = &self.bridge {
            settings.interfaces.iter_mut().for_each(|interface| interface.bridge = Some(bridge.clone()));
        }
        if let Some(network) = &self.network {
            settings.network.clone_from(network);
        }
        settings.given_node = self.node.clone().or(settings.given_node);
        Ok(settings)
    }
}

/// The other nodes of the fabric. `None`: no service tells.
fn other_nodes() -> Option<Vec<FabricNode>> {
    let others = client::nodes(None).ok()?.into_iter().filter(|node| node.state != State::Own);
    Some(others.map(fabric_node).collect())
}

fn fabric_node(node: Node) -> FabricNode {
    FabricNode { name: node.name, is_bridge: node.is_bridge }
}

/// Checks the required capabilities: without them, the first failing operation would name another cause.
fn may() -> Result<()> {
    let wanted = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    let held = capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted));
    anyhow::ensure!(held, "making interfaces needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run as root");
    Ok(())
}

/// Invalid settings, and settings that name something that does not exist, are misuse.
fn classed(error: ServiceError) -> anyhow::Error {
    use bywire_eth::interface::InterfaceError::{MtuForIpv6, NoBridge, NoNamespace, NoProcess};
    use bywire_eth::network::NetworkError::{Interface, SameAddress, TooMany};
    match error {
        ServiceError::Settings(_)
        | ServiceError::Network(
            SameAddress(..)
            | TooMany
            | Interface(MtuForIpv6(..) | NoBridge { .. } | NoNamespace(_) | NoProcess(_)),
        ) => Misuse::of(error),
        other => other.into(),
    }
}

/// The error if nothing was found: `nothing` if nothing runs, otherwise the given names and the existing ones.
pub fn nobody(network: Option<&str>, node: Option<&str>, nothing: &str) -> anyhow::Error {
    let control_sockets = control::control_sockets(None, None).unwrap_or_default();
    let running = control_sockets
        .iter()
        .filter_map(|control_socket| control::ask(control_socket, Request::Status).ok()?);
    let word =
        |answer: &serde_json::Value, field: &str| answer[field].as_str().unwrap_or_default().to_owned();
    let there: Vec<String> = running
        .map(|answer| format!("--network {} --node {}", word(&answer, "network"), word(&answer, "node")))
        .collect();
    if there.is_empty() {
        return anyhow!("{nothing}");
    }
    let named = [("--network", network), ("--node", node)].into_iter();
    let named: Vec<String> = named.filter_map(|(option, name)| Some(format!("{option} {}", name?))).collect();
    Misuse(format!("there is no {} here; there are: {}", named.join(" "), there.join(", "))).into()
}

impl ChosenArgs {
    fn nobody(&self, nothing: &str) -> anyhow::Error {
        nobody(self.network.as_deref(), self.node.as_deref(), nothing)
    }

    fn control_sockets(&self) -> Result<Vec<PathBuf>> {
        Ok(control::control_sockets(self.network.as_deref(), self.node.as_deref())?)
    }

    /// Asks every chosen network; what went wrong with some is for after what the others have answered.
    fn ask(&self, request: Request) -> Result<(Vec<serde_json::Value>, Result<()>)> {
        let (mut answers, mut errors) = (Vec::new(), Vec::new());
        for control_socket in self.control_sockets()? {
            match control::ask(&control_socket, request) {
                Ok(answer) => answers.extend(answer),
                Err(error) => errors.push(error.to_string()),
            }
        }
        let outcome = if errors.is_empty() { Ok(()) } else { Err(anyhow!(errors.join("; "))) };
        Ok((answers, outcome))
    }

    fn down(self) -> Result<()> {
        let (ended, outcome) = self.ask(Request::Down)?;
        if ended.is_empty() {
            outcome?;
            return Err(self.nobody("no `bywire eth up` runs here: there is nothing to end"));
        }
        let names = ended.iter().map(|answer| {
            let name = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
            format!("ended network {}, node {}\n", name("network"), name("node"))
        });
        bywire_command::output::print(&names.collect::<String>())?;
        outcome
    }
}

impl StatusArgs {
    fn run(self) -> Result<()> {
        let (found, outcome) = self.chosen.ask(Request::Status)?;
        if self.json {
            bywire_command::output::print(&(serde_json::to_string_pretty(&found)? + "\n"))?;
        }
        if found.is_empty() {
            outcome?;
            let nothing = "no `bywire eth up` runs here: start one, see `bywire eth --help`";
            return Err(self.chosen.nobody(nothing));
        }
        if self.json {
            return outcome;
        }
        bywire_command::output::print(&found.iter().map(status::table).collect::<String>())?;
        outcome
    }
}

/// Arguments of the part that carries frames.
#[derive(Args, Debug)]
pub struct CarrierArgs {
    /// Where ports are kept
    directory: PathBuf,
    /// Reach other machines
    #[arg(long)]
    fabric: bool,
}

impl CarrierArgs {
    /// Carries frames for the process at the other end of standard input, without any privilege.
    ///
    /// # Errors
    /// Standard input is no such thing, or says what cannot be understood.
    pub fn run(self) -> Result<()> {
        let orders = std::io::stdin().as_fd().try_clone_to_owned()?;
        let orders = Socket::from_descriptor(orders)
            .ok()
            .context("this is a part of `bywire eth up`, which starts it: nothing to do otherwise")?;
        // A queue of each interface, and what meeting others takes; where the limit is low, fewer fit.
        let _ = bywire_sys::limits::raise_descriptor_limit(4 * carrier::INTERFACES_MAX as u64);
        let reach = if self.fabric { Reach::Fabric } else { Reach::Machine };
        let unenforced = confinement::confine(&self.directory, reach)?;
        Ok(carrier::run(orders, Confinement::Enforced { but: unenforced })?)
    }
}
