//! `bywire node` and `bywire key`: the nodes of the fabric in its file, and this machine's key.

use std::fs;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bywire_command::exit_status::Misuse;
use bywire_node::change::{self, Change, ChangeError};
use bywire_node::client::{self, ClientError};
use bywire_node::fabric::{self, Fabric, FabricError, Node, ServiceAddress};
use bywire_node::file::FileError;
use bywire_node::{configuration, key};
use bywire_wire::handshake::{PrivateKey, PublicKey};
use bywire_wire::service::status::{self, State};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// Arguments of `bywire node`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire node list
  bywire node list --json
  bywire node add web3 --address 10.0.0.3 --key iC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=
  bywire node remove web3",
    after_help = "\
`add` and `remove` change fabric.toml, raise its serial, and make a running `bywire up` read it. Comments in the file stay, but for \
those of a removed node. \
In a fabric with a keeper they run on the keeper, which sends the file to the other nodes. Connections with a removed node end. \
`bywire invite` adds a machine without its key."
)]
pub struct NodeArgs {
    #[command(subcommand)]
    action: NodeAction,
}

#[derive(Subcommand, Debug)]
enum NodeAction {
    /// Show the nodes of the fabric, as this machine's file has them
    List(ListArgs),
    /// Add a node whose key is known: `bywire key` prints it there
    Add(AddArgs),
    /// Remove a node
    Remove(RemoveArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct AddArgs {
    /// Name of the node in the fabric
    name: String,
    /// Its address for other machines, port 7248 unless given; can be repeated
    #[arg(long = "address", value_name = "HOST[:PORT]", required = true)]
    addresses: Vec<String>,
    /// Its public key
    #[arg(long, value_name = "KEY")]
    key: String,
    /// Let `bywire eth up --fabric` there attach its interfaces to bridges
    #[arg(long)]
    bridge: bool,
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// Name of the node in the fabric
    name: String,
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

/// Arguments of `bywire key`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire key
  bywire key --config ~/fabric",
    after_help = "\
Makes node.key if there is none. The public key is no secret: `bywire node add` takes it on another machine. node.key never \
leaves this machine."
)]
pub struct KeyArgs {
    /// Directory of node.key and fabric.toml [default: /etc/bywire, or the user's own]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

/// The given directory, or the default one.
///
/// # Errors
/// There is none: misuse.
pub fn directory(named: Option<&Path>) -> Result<PathBuf> {
    let none = || {
        Misuse(
            "this user has no home directory: give the directory of node.key and fabric.toml by --config"
                .into(),
        )
    };
    Ok(configuration::directory(named).ok_or_else(none)?)
}

/// Makes the directory, if it does not exist.
///
/// # Errors
/// The error of the kernel.
pub fn make_directory(directory: &Path) -> Result<()> {
    let complaint = || format!("cannot make {}: give another directory by --config", directory.display());
    fs::create_dir_all(directory).with_context(complaint)
}

/// Checks the name of a node or a fabric.
///
/// # Errors
/// It cannot be one: misuse.
pub fn check_name(name: &str) -> Result<()> {
    if fabric::is_name(name) && name != "localhost" {
        return Ok(());
    }
    let allowed = "letters, digits, `-`, `_` and `.`, 48 at most, and not `localhost`";
    Err(Misuse(format!("`{name}` cannot be the name of a node or a fabric: {allowed}")).into())
}

/// Addresses of a node as they were typed, with this port unless they have one.
///
/// # Errors
/// One is none, or there are too many: misuse.
pub fn parse_addresses(typed: &[String], default_port: u16) -> Result<Vec<ServiceAddress>> {
    if typed.len() > fabric::ADDRESSES_MAX {
        return Err(Misuse(format!("a node has at most {} addresses", fabric::ADDRESSES_MAX)).into());
    }
    let parsed = |text: &String| {
        ServiceAddress::parse(text, default_port).map_err(|_| {
            Misuse(format!("`{text}` is not an address: give --address HOST or --address HOST:PORT"))
        })
    };
    Ok(typed.iter().map(parsed).collect::<Result<_, _>>()?)
}

/// Refuses names of this machine that its own resolver does not know: other machines would look for it in vain, and say so
/// only when they call it.
///
/// # Errors
/// One line that says what to do.
pub fn check_resolved(addresses: &[ServiceAddress]) -> Result<()> {
    for address in addresses {
        let ServiceAddress::Host(host, port) = address else { continue };
        if let Err(error) = (host.as_str(), *port).to_socket_addrs() {
            return Err(Misuse(format!(
                "the address `{host}` cannot be resolved ({error}): give --address with a name or an address by which other \
                 machines reach this one"
            ))
            .into());
        }
    }
    Ok(())
}

/// This machine's private key.
///
/// # Errors
/// [`key::KeyError`].
pub fn own_key(directory: &Path) -> Result<PrivateKey> {
    key::read(&directory.join(key::FILE_NAME)).map_err(|error| match error {
        error @ key::KeyError::Random(_) => error.into(),
        error => Misuse::of(error),
    })
}

/// This machine's private key, which is made if there is none.
///
/// # Errors
/// [`key::KeyError`].
pub fn own_or_new_key(directory: &Path) -> Result<PrivateKey> {
    make_directory(directory)?;
    match key::make(&directory.join(key::FILE_NAME)) {
        Err(key::KeyError::File(FileError::Exists(_))) => own_key(directory),
        outcome => Ok(outcome?),
    }
}

/// The error of a machine that is to begin or join a fabric, and has the file of one.
pub fn in_a_fabric(path: &Path) -> anyhow::Error {
    let path = path.display();
    Misuse(format!(
        "this machine is in a fabric already, as there is {path}: run `bywire up`, or remove the file to leave that fabric"
    ))
    .into()
}

/// The fabric of this machine.
///
/// # Errors
/// The file has an error, which the reader has to correct.
pub fn own_fabric(directory: &Path, own: &PublicKey) -> Result<Fabric> {
    Fabric::read(&directory.join(fabric::FILE_NAME), own).map_err(|error| match error {
        FabricError::File(FileError::Unreadable(..)) => error.into(),
        error => Misuse::of(error),
    })
}

impl NodeArgs {
    /// Shows or changes the nodes.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn run(self) -> Result<()> {
        match self.action {
            NodeAction::List(arguments) => arguments.run(),
            NodeAction::Add(arguments) => arguments.run(),
            NodeAction::Remove(RemoveArgs { name, config }) => {
                let (fabric, own) = changed(config.as_deref(), Change::Remove(&name))?;
                finish(&format!("removed {name}"), &fabric, &own)
            }
        }
    }
}

impl ListArgs {
    fn run(self) -> Result<()> {
        let directory = directory(self.config.as_deref())?;
        let own = own_key(&directory)?.public();
        let fabric = own_fabric(&directory, &own)?;
        let text = if self.json { format!("{}\n", object(&fabric, &own)) } else { text(&fabric, &own) };
        bywire_command::output::print(&text)
    }
}

impl AddArgs {
    fn run(self) -> Result<()> {
        check_name(&self.name)?;
        let addresses = parse_addresses(&self.addresses, fabric::UDP_PORT)?;
        let key = key::from_text(&self.key).ok_or_else(|| {
            Misuse(format!(
                "`{}` is not a key, which is 32 bytes in base64: `bywire key` prints it there",
                self.key
            ))
        })?;
        let node = Node { name: self.name, addresses, key, is_bridge: self.bridge };
        let (fabric, own) = changed(self.config.as_deref(), Change::Add(&node))?;
        finish(&format!("added {}", node.name), &fabric, &own)
    }
}

impl KeyArgs {
    /// Prints the public key.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn run(self) -> Result<()> {
        let key = own_or_new_key(&directory(self.config.as_deref())?)?;
        bywire_command::output::print(&format!("{}\n", key::to_text(&key.public())))
    }
}

/// Changes the fabric file. Returns what it says now, and this machine's key.
fn changed(config: Option<&Path>, change: Change) -> Result<(Fabric, PublicKey)> {
    let directory = directory(config)?;
    let own = own_key(&directory)?.public();
    let changed = change::lock(&directory).and_then(|lock| change::make(&directory, &lock, &own, change));
    let fabric = changed.map_err(|error| match error {
        ChangeError::File(_) | ChangeError::Busy(_) | ChangeError::Unlocked(..) => error.into(),
        error => Misuse::of(error),
    })?;
    Ok((fabric, own))
}

/// Makes a running service of this node read the changed file, and says what happens next.
fn finish(done: &str, fabric: &Fabric, own: &PublicKey) -> Result<()> {
    let is_own = |node: &status::Node| node.state == State::Own && node.key == own.0;
    let reloaded = client::nodes(None).and_then(|nodes| match nodes.iter().any(is_own) {
        true => client::reload(None).map(Some),
        false => Ok(None),
    });
    let next = match reloaded {
        // It has another directory, and so another key.
        Ok(None) => "the service that runs here is that of another node: `bywire up --config` reads the file",
        Ok(Some(Some(complaint))) => {
            return Err(anyhow::anyhow!("{done}, but the service rejects the file: {complaint}"));
        }
        Ok(Some(None)) if fabric.keeper.is_some() => "the other nodes get it as soon as they are reached",
        Ok(Some(None)) => "copy fabric.toml to the other nodes, and send their services SIGHUP",
        Err(ClientError::Absent | ClientError::OtherUser(_)) => "no service runs here: `bywire up` reads it",
        Err(error) => {
            return Err(
                anyhow::Error::from(error).context(format!("{done}, but the service has not read it"))
            );
        }
    };
    bywire_command::output::print(&format!("{done}; fabric.toml has serial {} now; {next}\n", fabric.serial))
}

fn roles(node: &Node, fabric: &Fabric, own: &PublicKey) -> (bool, bool) {
    (node.key == *own, fabric.keeper.as_ref() == Some(&node.name))
}

fn text(fabric: &Fabric, own: &PublicKey) -> String {
    let security = if fabric.is_encrypted { "encrypted" } else { "not encrypted" };
    let keeper = fabric.keeper.as_ref().map_or("no keeper".to_owned(), |keeper| format!("keeper {keeper}"));
    let mut text = format!("fabric {}, serial {}, {keeper}, {security}\n", fabric.name, fabric.serial);
    let name_bytes = fabric.nodes.iter().map(|node| node.name.len()).max().unwrap_or(0);
    for node in &fabric.nodes {
        let addresses: Vec<String> = node.addresses.iter().map(ServiceAddress::to_string).collect();
        let (is_own, _) = roles(node, fabric, own);
        let bridge = if node.is_bridge { "  bridge" } else { "" };
        let own = if is_own { "  this machine" } else { "" };
        let (name, key) = (&node.name, key::to_text(&node.key));
        text += &format!("{name:<name_bytes$}  {key}  {}{bridge}{own}\n", addresses.join(", "));
    }
    text
}

fn object(fabric: &Fabric, own: &PublicKey) -> Value {
    let nodes = fabric.nodes.iter().map(|node| {
        let (is_own, is_keeper) = roles(node, fabric, own);
        let addresses: Vec<String> = node.addresses.iter().map(ServiceAddress::to_string).collect();
        json!({
            "name": node.name, "key": key::to_text(&node.key), "addresses": addresses,
            "is_own": is_own, "is_keeper": is_keeper,
        })
    });
    json!({
        "fabric": fabric.name, "serial": fabric.serial, "keeper": fabric.keeper,
        "is_encrypted": fabric.is_encrypted, "nodes": nodes.collect::<Vec<_>>(),
    })
}
