//! `bywire init` and `bywire up`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bywire_measure::exit_status::{Misuse, complain};
use bywire_node::fabric::{self, Fabric, FabricError, Node, ServiceAddress};
use bywire_node::file::{self, FileError};
use bywire_node::service::{self, Options, Service, ServiceError};
use bywire_node::{configuration, key};
use bywire_sys::process;
use clap::Args;

use crate::{count, node_metrics};

/// Arguments of `bywire init`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire init web1 --address 10.0.0.1
  bywire init web2 --address web2.example --address '[2001:db8::2]:7248' --fabric lab",
    after_help = "\
Makes node.key, which stays on this machine, and fabric.toml with this node. An existing fabric.toml is not changed. \
Prints the [[node]] lines of this machine: add them to the fabric.toml of every other machine. The directory is \
/etc/bywire for root, and $XDG_CONFIG_HOME/bywire for other users."
)]
pub struct InitArgs {
    /// Name of this machine in the fabric
    name: String,
    /// Address for other machines, port 7248 unless given; can be repeated [default: the host's name]
    #[arg(long = "address", value_name = "HOST[:PORT]")]
    addresses: Vec<String>,
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
    /// Serve metrics for Prometheus here [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = crate::eth::address)]
    metrics: Option<std::net::SocketAddr>,
}

/// The given directory, or the default one.
fn directory(named: Option<&Path>) -> Result<PathBuf> {
    let none = || {
        Misuse(
            "this user has no home directory: give the directory of node.key and fabric.toml by --config"
                .into(),
        )
    };
    Ok(configuration::directory(named).ok_or_else(none)?)
}

impl InitArgs {
    /// Makes a key and a fabric file.
    pub fn run(self) -> Result<()> {
        let node = self.node_without_key()?;
        let directory = directory(self.config.as_deref())?;
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let key_path = directory.join(key::FILE_NAME);
        let key = key::make(&key_path).map_err(|error| match error {
            error @ key::KeyError::File(FileError::Exists(_)) => Misuse::of(error),
            error => error.into(),
        })?;
        let node = Node { key: key.public(), ..node };
        let path = directory.join(fabric::FILE_NAME);
        let fabric =
            Fabric { name: self.fabric, serial: 1, is_encrypted: !self.plain, nodes: vec![node.clone()] };
        let made = match file::make(&path, 0o644, &fabric.to_string()) {
            Ok(()) => format!("made {} and {}", key_path.display(), path.display()),
            Err(FileError::Exists(_)) => {
                format!("made {}; {} exists and was not changed", key_path.display(), path.display())
            }
            Err(error) => return Err(error.into()),
        };
        let all = "add these lines to the fabric.toml of every other node";
        crate::output::print(&format!("# {made}\n# {all}\n{}", fabric::stanza(&node)))
    }

    /// The node that the arguments describe. Its key is not known yet.
    fn node_without_key(&self) -> Result<Node> {
        let allowed = "letters, digits, `-`, `_` and `.`, 48 at most, and not `localhost`";
        for name in [&self.name, &self.fabric] {
            if !fabric::is_name(name) || self.name == "localhost" {
                return Err(
                    Misuse(format!("`{name}` cannot be the name of a node or a fabric: {allowed}")).into()
                );
            }
        }
        let host = vec![process::host_name()];
        let addresses = if self.addresses.is_empty() { &host } else { &self.addresses };
        if addresses.len() > fabric::ADDRESSES_MAX {
            return Err(Misuse(format!("a node has at most {} addresses", fabric::ADDRESSES_MAX)).into());
        }
        let parsed = |text: &String| {
            text.parse::<ServiceAddress>().map_err(|_| {
                Misuse(format!("`{text}` is not an address: give --address HOST or --address HOST:PORT"))
            })
        };
        let addresses = addresses.iter().map(parsed).collect::<Result<_, _>>()?;
        let key = bywire_wire::handshake::PublicKey([0; 32]);
        Ok(Node { name: self.name.clone(), addresses, key })
    }
}

impl UpArgs {
    /// Serves.
    pub fn run(self) -> Result<()> {
        let options = Options {
            configuration: directory(self.config.as_deref())?,
            runtime_directory: None,
            udp_port: self.port,
            boot_id: service::boot_id().context("cannot tell this start of the machine from others")?,
        };
        let (stop, reload) = service::watch_signals()?;
        let say = |line: &str| complain("bywire", line);
        let service = Service::start(&options, &say).map_err(refused)?;
        let Fabric { name, nodes, is_encrypted, .. } = service.fabric();
        if let Some(address) = self.metrics {
            node_metrics::serve(address)?;
        }
        let ready = format!(
            "node {} of fabric {name} is up: {}, {}, UDP port {}\n",
            service.node(),
            count::of(nodes.len() as u64, "node", "nodes"),
            if *is_encrypted { "encrypted" } else { "not encrypted" },
            service.udp_port()
        );
        crate::output::print(&ready)?;
        // Without a service manager there is no socket to notify.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        Ok(service.run(&stop, &reload)?)
    }
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
