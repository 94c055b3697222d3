//! `bywire init`, `bywire up`, and this machine's node in `bywire status`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bywire_measure::exit_status::{Misuse, complain};
use bywire_node::fabric::{self, Fabric, FabricError, Node};
use bywire_node::file::{self, FileError};
use bywire_node::service::{self, Options, Service, ServiceError};
use bywire_node::{ask, key};
use bywire_sys::process;
use bywire_wire::keys::Security;
use bywire_wire::service::status::{self, Entry, State};
use clap::Args;
use serde_json::{Value, json};

use crate::{count, nodes};

/// Arguments of `bywire init`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire init --up
  bywire init web1 --address 10.0.0.1
  bywire init web2 --address web2.example --address '[2001:db8::2]:7248' --fabric lab",
    after_help = "\
Begins a fabric: makes node.key, which stays on this machine, and fabric.toml with this node as its keeper. Other machines \
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
}

impl InitArgs {
    /// Makes a key and a fabric file.
    pub fn run(self) -> Result<()> {
        let name = self.name.clone().unwrap_or_else(host);
        let node = self.node_without_key(&name)?;
        let directory = nodes::directory(self.config.as_deref())?;
        nodes::make_directory(&directory)?;
        let key_path = directory.join(key::FILE_NAME);
        let key = key::make(&key_path).map_err(|error| match error {
            error @ key::KeyError::File(FileError::Exists(_)) => Misuse::of(error),
            error => error.into(),
        })?;
        let node = Node { key: key.public(), ..node };
        let path = directory.join(fabric::FILE_NAME);
        let fabric = Fabric {
            name: self.fabric,
            serial: 1,
            keeper: Some(name),
            is_encrypted: !self.plain,
            nodes: vec![node.clone()],
        };
        match file::make(&path, file::PUBLIC_MODE, &fabric.to_string()) {
            Ok(()) => crate::output::print(&format!(
                "# made {} and {}\n# to add a machine: bywire invite NODE, once bywire up runs here\n{}",
                key_path.display(),
                path.display(),
                fabric::stanza(&node)
            ))?,
            Err(FileError::Exists(_)) => crate::output::print(&format!(
                "# made {}; {} exists and was not changed\n# add these lines to it, on every node\n{}",
                key_path.display(),
                path.display(),
                fabric::stanza(&node)
            ))?,
            Err(error) => return Err(error.into()),
        }
        if self.up { serve(&directory, self.port) } else { Ok(()) }
    }

    /// The node that the arguments describe. Its key is not known yet.
    fn node_without_key(&self, name: &str) -> Result<Node> {
        nodes::check_name(name)?;
        nodes::check_name(&self.fabric)?;
        let host = [process::host_name()];
        let typed = if self.addresses.is_empty() { &host[..] } else { &self.addresses };
        let addresses = nodes::parse_addresses(typed, self.port)?;
        let key = bywire_wire::handshake::PublicKey([0; 32]);
        Ok(Node { name: name.to_owned(), addresses, key })
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
        serve(&nodes::directory(self.config.as_deref())?, self.port)
    }
}

/// Serves until a signal, after one line that tells that it is ready.
///
/// # Errors
/// One line that says what to do.
pub fn serve(directory: &Path, udp_port: u16) -> Result<()> {
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

/// An error that the reader has to correct is misuse.
fn refused(error: ServiceError) -> anyhow::Error {
    match error {
        ServiceError::Key(key::KeyError::Random(_)) => error.into(),
        ServiceError::Fabric(FabricError::File(FileError::Unreadable(..))) => error.into(),
        ServiceError::Key(_) | ServiceError::Fabric(_) | ServiceError::Running(_) => Misuse::of(error),
        error => error.into(),
    }
}

/// The state of this machine's service. `None`: none is running.
///
/// # Errors
/// A running service does not answer.
pub fn ask() -> Result<Option<Vec<Entry>>> {
    match ask::status(None) {
        Ok(entries) => Ok(Some(entries)),
        // The service of another user, or there is no directory for one.
        Err(ask::AskError::Absent | ask::AskError::OtherUser(_) | ask::AskError::Runtime(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The state as text.
pub fn text(entries: &[Entry]) -> String {
    entries.iter().map(line).collect()
}

fn line(entry: &Entry) -> String {
    match entry {
        Entry::Service(service) => service_lines(service),
        Entry::Node(node) => node_line(node),
        Entry::Port(port) => {
            let reach = if port.is_reachable { "accepts connections" } else { "connects only" };
            let dropped = match port.dropped {
                0 => String::new(),
                dropped => format!(", {} dropped", count::of(dropped.into(), "packet", "packets")),
            };
            format!(
                "port {} of {} (process {}) {reach}, UDP port {}{dropped}\n",
                port.name, port.user, port.pid, port.udp_port
            )
        }
        Entry::Connection(connection) => format!(
            "connection {} - {}/{} of {}, {}\n",
            connection.port,
            connection.peer_node,
            connection.peer_port,
            connection.peer_user,
            security_text(connection.security)
        ),
    }
}

fn service_lines(service: &status::Service) -> String {
    let mut text = format!(
        "node {} of fabric {}, serial {}, {}, UDP port {}, up for {} s\n",
        service.node,
        service.fabric,
        service.serial,
        if service.is_encrypted { "encrypted" } else { "not encrypted" },
        service.udp_port,
        service.uptime_s
    );
    if let Some(complaint) = &service.complaint {
        text += &format!("the new fabric file was rejected, and the previous one is in use: {complaint}\n");
    }
    let strange = service.strangers.iter().filter(|(_, count)| *count > 0);
    let strange: Vec<String> =
        strange.map(|(name, count)| format!("{count} {}", stranger_text(name))).collect();
    if !strange.is_empty() {
        text += &format!("packets of unknown senders: {}\n", strange.join(", "));
    }
    if let Some((key, address)) = &service.last_unknown {
        text += &format!("last unknown key: {} at {address}\n", key_text(key));
    }
    text
}

fn node_line(node: &status::Node) -> String {
    let state = match node.state {
        State::Own => "this machine".to_owned(),
        State::Idle => "idle: no connection needs it".to_owned(),
        State::Opening => format!("not connected: {}", node.complaint.as_deref().unwrap_or("no answer")),
        State::Up => {
            let rtt = node.rtt_us.map_or(String::new(), |rtt_us| format!(", round trip {rtt_us} µs"));
            let address = node.address.map_or(String::new(), |address| format!(" at {address}"));
            format!("up{address}{rtt}")
        }
    };
    format!("node {} ({}) {state}\n", node.name, node.addresses.join(", "))
}

fn stranger_text(name: &str) -> &str {
    match name {
        "foreign" => "of another protocol",
        "without_key" => "made without this node's public key",
        "unreadable" => "unreadable",
        "unknown_keys" => "with a key that the fabric file does not have",
        "cookies_sent" => "answered with a cookie",
        "dropped" => "dropped, as there were too many",
        other => other,
    }
}

fn security_text(security: Security) -> &'static str {
    match security {
        Security::Plain => "not encrypted",
        Security::Aes256Gcm => "AES-256-GCM",
        Security::ChaCha20Poly1305 => "ChaCha20-Poly1305",
    }
}

fn key_text(bytes: &[u8; 32]) -> String {
    key::to_text(&bywire_wire::handshake::PublicKey(*bytes))
}

/// The state as JSON. `null` if no service is running.
pub fn object(entries: Option<&[Entry]>) -> Value {
    let Some(entries) = entries else { return Value::Null };
    let mut object = json!({});
    let (mut nodes, mut ports, mut connections) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            Entry::Service(service) => object = service_object(service),
            Entry::Node(node) => nodes.push(node_object(node)),
            Entry::Port(port) => ports.push(json!({
                "name": port.name, "user": port.user, "pid": port.pid, "is_reachable": port.is_reachable,
                "udp_port": port.udp_port, "waiting_bytes": port.waiting_bytes, "dropped": port.dropped,
            })),
            Entry::Connection(connection) => connections.push(json!({
                "port": connection.port, "peer_node": connection.peer_node, "peer_port": connection.peer_port,
                "peer_user": connection.peer_user,
                "security": security_text(connection.security),
            })),
        }
    }
    object["nodes"] = nodes.into();
    object["ports"] = ports.into();
    object["connections"] = connections.into();
    object
}

fn service_object(service: &status::Service) -> Value {
    json!({
        "name": service.node, "fabric": service.fabric, "serial": service.serial,
        "is_encrypted": service.is_encrypted, "udp_port": service.udp_port, "uptime_s": service.uptime_s,
        "strangers": counts(&service.strangers), "complaint": service.complaint,
        "last_unknown": service.last_unknown.as_ref().map(|(key, address)| {
            json!({ "key": key_text(key), "address": address.to_string() })
        }),
    })
}

fn node_object(node: &status::Node) -> Value {
    let state = match node.state {
        State::Own => "own",
        State::Idle => "idle",
        State::Opening => "opening",
        State::Up => "up",
    };
    json!({
        "name": node.name, "key": key_text(&node.key), "addresses": node.addresses, "state": state,
        "address": node.address.map(|address| address.to_string()), "rtt_us": node.rtt_us,
        "counters": counts(&node.counters), "complaint": node.complaint,
    })
}

fn counts(named: &[(String, u64)]) -> Value {
    named
        .iter()
        .map(|(name, count)| (name.clone(), Value::from(*count)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
