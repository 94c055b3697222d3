//! `bywire init` and `bywire up`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bywire_command::exit_status::{Misuse, complain};
use bywire_node::fabric::{self, Fabric, FabricError, Node, ServiceAddress};
use bywire_node::file::{self, FileError};
use bywire_node::key;
use bywire_node::service::{self, Options, Service, ServiceError};
use bywire_node::settings::Settings;
use bywire_sys::process;
use clap::Args;

use crate::{count, node_metrics, nodes};

/// Arguments of `bywire init`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire init --up
  bywire init web1 --address 10.0.0.1
  bywire init web2 --address web2.example --address '[2001:db8::2]:7248' --fabric lab",
    after_help = "\
Begins a fabric: makes fabric.toml with this node as its keeper and, if there is none, node.key, which stays on this machine. Other machines \
join by an invitation of the keeper: see `bywire invite --help`. An existing fabric.toml is not changed; the [[node]] lines \
that are printed have to be added to it then. The directory is /etc/bywire for root, and $XDG_CONFIG_HOME/bywire for other \
users."
)]
pub struct InitArgs {
    /// Name of this machine in the fabric [default: the host's name]
    name: Option<String>,
    /// Address for other machines, port 7248 unless given; can be repeated [default: the host's name]
    #[arg(long = "address", value_name = "HOST[:PORT]")]
    addresses: Vec<String>,
    /// Then serve, as `bywire up` does
    #[arg(long)]
    up: bool,
    /// UDP port of the service, also of addresses without one
    #[arg(long, value_name = "PORT", default_value_t = fabric::UDP_PORT)]
    port: u16,
    /// Name of the fabric
    #[arg(long, value_name = "NAME", default_value = "fabric")]
    fabric: String,
    /// Do not encrypt: a check of each packet protects against accidents only
    #[arg(long)]
    plain: bool,
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

/// Arguments of `bywire up`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire init web1 --address 10.0.0.1
  bywire up
  bywire up --config ~/fabric --port 7300
  bywire up --metrics 127.0.0.1:9478
  bywire status",
    after_help = "\
Runs until Ctrl-C, and prints one line when it is ready. As root it serves the programs of all users, otherwise those of \
its own user. SIGHUP makes it read fabric.toml again; connections to a node that is no longer in the file end. \
Connections continue while the service is stopped or restarted."
)]
pub struct UpArgs {
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
    /// UDP port; the addresses of this node in fabric.toml must have the same
    #[arg(long, value_name = "PORT", default_value_t = fabric::UDP_PORT)]
    port: u16,
    /// Serve metrics for Prometheus here [default: `metrics` in service.toml, or nowhere]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = crate::eth::address)]
    metrics: Option<SocketAddr>,
}

impl InitArgs {
    /// Makes a key and a fabric file.
    pub fn run(self) -> Result<()> {
        let name = self.name.clone().unwrap_or_else(host);
        let node = self.node_without_key(&name)?;
        let directory = nodes::directory(self.config.as_deref())?;
        let key_path = directory.join(key::FILE_NAME);
        let had_key = key_path.exists();
        let key = nodes::own_or_new_key(&directory)?;
        let node = Node { key: key.public(), ..node };
        let path = directory.join(fabric::FILE_NAME);
        let fabric = Fabric {
            name: self.fabric,
            serial: 1,
            keeper: Some(name),
            is_encrypted: !self.plain,
            nodes: vec![node.clone()],
        };
        let (key_path, fabric_path) = (key_path.display(), path.display());
        let made = match had_key {
            true => format!("{fabric_path} for the key in {key_path}"),
            false => format!("{key_path} and {fabric_path}"),
        };
        match file::make(&path, file::PUBLIC_MODE, &fabric.to_string()) {
            Ok(()) => bywire_command::output::print(&format!(
                "# made {made}\n# to add a machine: bywire invite NODE, once bywire up runs here\n{}",
                fabric::stanza(&node)
            ))?,
            Err(FileError::Exists(_)) if had_key => return Err(nodes::in_a_fabric(&path)),
            Err(FileError::Exists(_)) => bywire_command::output::print(&format!(
                "# made {key_path}; {fabric_path} exists and was not changed\n# add these lines to it, on every node\n{}",
                fabric::stanza(&node)
            ))?,
            Err(error) => return Err(error.into()),
        }
        if self.up { serve(&directory, self.port, None) } else { Ok(()) }
    }

    /// The node that the arguments describe. Its key is not known yet.
    fn node_without_key(&self, name: &str) -> Result<Node> {
        nodes::check_name(name)?;
        nodes::check_name(&self.fabric)?;
        let host = [process::host_name()];
        let typed = if self.addresses.is_empty() { &host[..] } else { &self.addresses };
        let addresses = nodes::parse_addresses(typed, self.port)?;
        // The host's own name need not be known here.
        if !self.addresses.is_empty() {
            nodes::check_resolved(&addresses)?;
        }
        let key = bywire_wire::handshake::PublicKey([0; 32]);
        Ok(Node { name: name.to_owned(), addresses, key, is_bridge: false })
    }
}

/// The first part of this machine's host name.
fn host() -> String {
    let name = process::host_name();
    name.split('.').next().unwrap_or(&name).to_owned()
}

impl UpArgs {
    /// Serves.
    pub fn run(self) -> Result<()> {
        serve(&nodes::directory(self.config.as_deref())?, self.port, self.metrics)
    }
}

/// Serves until a signal, after one line that tells that it is ready.
///
/// # Errors
/// One line that says what to do.
pub fn serve(directory: &Path, udp_port: u16, metrics: Option<SocketAddr>) -> Result<()> {
    let options = Options {
        configuration: directory.to_owned(),
        runtime_directory: None,
        udp_port,
        boot_id: service::boot_id().context("cannot tell this start of the machine from others")?,
    };
    let (stop, reload) = service::watch_signals()?;
    let say = |line: &str| complain("bywire", line);
    let service = Service::start(&options, &say).map_err(refused)?;
    let Fabric { name, nodes, is_encrypted, .. } = service.fabric();
    let own = nodes.iter().find(|node| node.name == service.node());
    own.and_then(|own| unreachable_port(own, service.udp_port())).iter().for_each(|line| say(line));
    // The service has read the file as well, so it is valid.
    if let Some(address) = metrics.or(Settings::read(directory)?.metrics) {
        node_metrics::serve(address)?;
    }
    let ready = format!(
        "node {} of fabric {name} is up: {}, {}, UDP port {}\n",
        service.node(),
        count::of(nodes.len() as u64, "node", "nodes"),
        if *is_encrypted { "encrypted" } else { "not encrypted" },
        service.udp_port()
    );
    bywire_command::output::print(&ready)?;
    // Without a service manager there is no socket to notify.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    Ok(service.run(&stop, &reload)?)
}

/// The complaint about a UDP port that other nodes do not call.
fn unreachable_port(own: &Node, udp_port: u16) -> Option<String> {
    let ports: Vec<u16> = own.addresses.iter().map(ServiceAddress::port).collect();
    let called = ports.first().filter(|_| !ports.contains(&udp_port))?;
    Some(format!(
        "other nodes call UDP port {called}, as `addresses` of {name} in fabric.toml say, and this service has port {udp_port}: \
         give --port {called}, unless a firewall forwards it",
        name = own.name
    ))
}

/// An error that the reader has to correct is misuse.
fn refused(error: ServiceError) -> anyhow::Error {
    match error {
        ServiceError::Key(key::KeyError::Random(_)) => error.into(),
        ServiceError::Fabric(FabricError::File(FileError::Unreadable(..))) => error.into(),
        ServiceError::Key(_) | ServiceError::Fabric(_) | ServiceError::Running(_) => Misuse::of(error),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_no_other_node_calls_is_reported() {
        let addresses = ["10.0.0.1:7300", "web1.example:7301"].map(|text| text.parse().expect(text)).to_vec();
        let key = bywire_wire::handshake::PublicKey([0; 32]);
        let own = Node { name: "web1".to_owned(), addresses, key, is_bridge: false };
        assert!([7300, 7301].iter().all(|port| unreachable_port(&own, *port).is_none()));
        assert!(unreachable_port(&own, 7248).is_some_and(|line| line.contains("give --port 7300")));
    }
}
