//! The fabric file: the nodes of a fabric. It is the same on all nodes and contains no secret.
//!
//! ```toml
//! name = "lab"
//! serial = 1
//! keeper = "web1"
//! security = "encrypted"
//!
//! [[node]]
//! name = "web1"
//! addresses = ["10.0.0.1", "web1.example:7248"]
//! key = "iC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0="
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bywire_wire::handshake::PublicKey;
use serde::Deserialize;
use toml::Spanned;

use crate::file::{self, FileError};
use crate::key;

/// Its name in the directory of the configuration.
pub const FILE_NAME: &str = "fabric.toml";
/// The UDP port of services, unless an address has another one.
pub const UDP_PORT: u16 = 7248;
/// The most nodes of a fabric.
pub const NODES_MAX: usize = 1024;
/// The most addresses of a node.
pub const ADDRESSES_MAX: usize = 8;
/// The longest file.
pub const BYTES_MAX: usize = 1 << 20;
/// The longest name of a host.
const HOST_BYTES_MAX: usize = 253;

/// A fabric, as described by its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Its name.
    pub name: String,
    /// The number of this version of the file.
    pub serial: u64,
    /// The name of the node that may change the file for all others. `None`: the file is copied by hand.
    pub keeper: Option<String>,
    /// Are packets encrypted? Otherwise they have a check value only.
    pub is_encrypted: bool,
    /// Its nodes, this one among them.
    pub nodes: Vec<Node>,
}

/// A node of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The addresses of its service.
    pub addresses: Vec<ServiceAddress>,
    /// Its key.
    pub key: PublicKey,
    /// May there be hosts behind its Ethernet interfaces, which belong to bridges then?
    pub is_bridge: bool,
}

/// The address of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServiceAddress {
    /// An address.
    Address(SocketAddr),
    /// The name of a host, and a port.
    Host(String, u16),
}

/// The error in a fabric file.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] FileError),
    /// A line of it.
    #[error("{}, line {line}: {complaint}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The error, and what to do.
        complaint: String,
    },
    /// No node has the machine's key.
    #[error("{}: no node has this machine's key {key}: add its [[node]], as `bywire init` has printed it", path.display())]
    NotListed {
        /// The file.
        path: PathBuf,
        /// The public key.
        key: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    serial: u64,
    keeper: Option<Spanned<String>>,
    security: Spanned<String>,
    #[serde(rename = "node", default)]
    nodes: Vec<NodeTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    name: Spanned<String>,
    addresses: Spanned<Vec<Spanned<String>>>,
    key: Spanned<String>,
    #[serde(default)]
    bridge: bool,
}

impl Fabric {
    /// Reads the file of a fabric that `own` belongs to.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn read(path: &Path, own: &PublicKey) -> Result<Self, FabricError> {
        Self::of(path, &read_text(path)?, own)
    }

    /// The fabric in a text, which is that of the file at `path` or is to be written there.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn of(path: &Path, text: &str, own: &PublicKey) -> Result<Self, FabricError> {
        let fabric = Self::parse(text).map_err(|complaint| complaint.in_file(path, text))?;
        if fabric.named(own).is_none() {
            return Err(FabricError::NotListed { path: path.to_owned(), key: key::to_text(own) });
        }
        Ok(fabric)
    }

    /// The node with this key.
    pub fn named(&self, key: &PublicKey) -> Option<&Node> {
        self.nodes.iter().find(|node| node.key == *key)
    }

    /// The keeper.
    pub fn keeper(&self) -> Option<&Node> {
        let keeper = self.keeper.as_ref()?;
        self.nodes.iter().find(|node| node.name == *keeper)
    }

    fn parse(text: &str) -> Result<Self, Complaint> {
        let file: File = toml::from_str(text).map_err(|error| Complaint::of_toml(&error))?;
        check_name("name", &file.name)?;
        let is_encrypted = match file.security.get_ref().as_str() {
            "encrypted" => true,
            "plain" => false,
            other => {
                let text = format!("security = {other:?} is unknown: write \"encrypted\" or \"plain\"");
                return Err(Complaint { at: file.security.span().start, text });
            }
        };
        let nodes = parse_nodes(&file.nodes)?;
        if let Some(keeper) = &file.keeper
            && nodes.iter().all(|node| node.name != *keeper.get_ref())
        {
            let text = format!(
                "keeper = {:?} is no node of the file: write the name of one, or leave the line out",
                keeper.get_ref()
            );
            return Err(Complaint::at(keeper, text));
        }
        let keeper = file.keeper.map(Spanned::into_inner);
        Ok(Self { name: file.name.into_inner(), serial: file.serial, keeper, is_encrypted, nodes })
    }
}

/// The text of a fabric file.
///
/// # Errors
/// [`FileError`].
pub fn read_text(path: &Path) -> Result<String, FileError> {
    file::read_public(path, BYTES_MAX as u64)
}

fn parse_nodes(tables: &[NodeTable]) -> Result<Vec<Node>, Complaint> {
    let mut nodes: Vec<Node> = Vec::new();
    let (mut names, mut keys) = (HashMap::new(), HashMap::new());
    for table in tables {
        let node = table.node()?;
        if nodes.len() == NODES_MAX {
            return Err(Complaint::at(&table.name, format!("a fabric has at most {NODES_MAX} nodes")));
        }
        if names.insert(node.name.clone(), ()).is_some() {
            let text = format!("two nodes have the name {:?}: rename one", node.name);
            return Err(Complaint::at(&table.name, text));
        }
        if let Some(other) = keys.insert(node.key, node.name.clone()) {
            let text = format!("nodes {other:?} and {:?} have the same key: each needs its own", node.name);
            return Err(Complaint::at(&table.key, text));
        }
        nodes.push(node);
    }
    Ok(nodes)
}

impl NodeTable {
    fn node(&self) -> Result<Node, Complaint> {
        check_name("name", &self.name)?;
        let name = self.name.get_ref();
        if name == "localhost" {
            let text = "name = \"localhost\" is every machine's own: choose another name".to_owned();
            return Err(Complaint::at(&self.name, text));
        }
        let count = self.addresses.get_ref().len();
        if !(1..=ADDRESSES_MAX).contains(&count) {
            let text = format!("addresses of node {name:?} has {count} entries: give 1 to {ADDRESSES_MAX}");
            return Err(Complaint::at(&self.addresses, text));
        }
        let parsed = |address: &Spanned<String>| {
            address.get_ref().parse::<ServiceAddress>().map_err(|NoServiceAddress| {
                let text = format!(
                    "addresses of node {name:?} has {:?}: write an address or a host, with a port unless it is {UDP_PORT}",
                    address.get_ref()
                );
                Complaint::at(address, text)
            })
        };
        let addresses = self.addresses.get_ref().iter().map(parsed).collect::<Result<_, _>>()?;
        let key = key::from_text(self.key.get_ref()).ok_or_else(|| {
            let text =
                format!("key of node {name:?} is not 32 bytes in base64: copy the one that `bywire init` printed there");
            Complaint::at(&self.key, text)
        })?;
        Ok(Node { name: name.clone(), addresses, key, is_bridge: self.bridge })
    }
}

/// The error at a byte of the text.
#[derive(Debug)]
pub(crate) struct Complaint {
    at: usize,
    text: String,
}

impl Complaint {
    /// What the parser says.
    pub(crate) fn of_toml(error: &toml::de::Error) -> Self {
        // It quotes the file, which may have come from another machine, and is shown on terminals.
        let shown = |letter: char| if letter.is_control() { '?' } else { letter };
        let text = error.message().lines().collect::<Vec<_>>().join("; ").chars().map(shown).collect();
        Self { at: error.span().map_or(0, |span| span.start), text }
    }

    /// The error in a file with this text.
    pub(crate) fn in_file(self, path: &Path, text: &str) -> FabricError {
        let Self { at, text: complaint } = self;
        let line = text.get(..at).unwrap_or(text).matches('\n').count() + 1;
        FabricError::Line { path: path.to_owned(), line, complaint }
    }

    fn at<T>(part: &Spanned<T>, text: String) -> Self {
        Self { at: part.span().start, text }
    }
}

fn check_name(field: &str, name: &Spanned<String>) -> Result<(), Complaint> {
    if is_name(name.get_ref()) {
        return Ok(());
    }
    let text = format!(
        "{field} = {:?} cannot be used: letters, digits, `-`, `_` and `.`, {} at most, and no `.` in front",
        name.get_ref(),
        bywire::NAME_BYTES_MAX
    );
    Err(Complaint::at(name, text))
}

/// Is this a valid name for a node or a fabric?
pub fn is_name(text: &str) -> bool {
    !text.contains('/') && format!("{text}/0").parse::<bywire::Address>().is_ok()
}

/// The error for a text that is neither an address nor a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no address and no host")]
pub struct NoServiceAddress;

impl FromStr for ServiceAddress {
    type Err = NoServiceAddress;

    fn from_str(text: &str) -> Result<Self, NoServiceAddress> {
        Self::parse(text, UDP_PORT)
    }
}

impl ServiceAddress {
    /// The UDP port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Host(_, port) => *port,
        }
    }

    /// The address in a text, with this port unless the text has one.
    ///
    /// # Errors
    /// [`NoServiceAddress`].
    pub fn parse(text: &str, default_port: u16) -> Result<Self, NoServiceAddress> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if address.port() == 0 { Err(NoServiceAddress) } else { Ok(Self::Address(address)) };
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Self::Address(SocketAddr::new(ip, default_port)));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => {
                (host, port.parse().ok().filter(|port| *port != 0).ok_or(NoServiceAddress)?)
            }
            None => (text, default_port),
        };
        let is_host = (1..=HOST_BYTES_MAX).contains(&host.len())
            && !host.starts_with(['-', '.'])
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            // A mistyped address is not taken for a host.
            && host.bytes().any(|byte| byte.is_ascii_alphabetic());
        if is_host { Ok(Self::Host(host.to_owned(), port)) } else { Err(NoServiceAddress) }
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(formatter),
            Self::Host(host, port) => write!(formatter, "{host}:{port}"),
        }
    }
}

/// The lines of a node in the file, with an empty line before them.
pub fn stanza(node: &Node) -> String {
    let addresses: Vec<String> = node.addresses.iter().map(|address| format!("\"{address}\"")).collect();
    let bridge = if node.is_bridge { "bridge = true\n" } else { "" };
    format!(
        "\n[[node]]\nname = \"{}\"\naddresses = [{}]\nkey = \"{}\"\n{bridge}",
        node.name,
        addresses.join(", "),
        key::to_text(&node.key)
    )
}

impl fmt::Display for Fabric {
    /// The text of its file.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let security = if self.is_encrypted { "encrypted" } else { "plain" };
        writeln!(formatter, "name = \"{}\"\nserial = {}", self.name, self.serial)?;
        if let Some(keeper) = &self.keeper {
            writeln!(
                formatter,
                "# this node sends changes of the file to the others\nkeeper = \"{keeper}\""
            )?;
        }
        writeln!(formatter, "# \"plain\": not encrypted, against accidents only\nsecurity = \"{security}\"")?;
        self.nodes.iter().try_for_each(|node| formatter.write_str(&stanza(node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "iC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=";
    const OTHER: &str = "AC8iBKHKLpcIAVhfGZRrcQGQrLRW7Lt4Mb3Ho3pMlX0=";

    fn file(nodes: &str) -> String {
        format!("name = \"lab\"\nserial = 3\nsecurity = \"encrypted\"\n{nodes}")
    }

    #[test]
    fn a_written_fabric_file_is_read_back() {
        let texts = ["10.0.0.1", "web1.example:7000", "[fe80::1]:7248", "::1"];
        let addresses = texts.map(|text| text.parse().expect(text)).to_vec();
        let key = key::from_text(KEY).expect("a key");
        let node = Node { name: "web1".to_owned(), addresses, key, is_bridge: true };
        let keeper = Some("web1".to_owned());
        let fabric =
            Fabric { name: "lab".to_owned(), serial: 7, keeper, is_encrypted: false, nodes: vec![node] };
        assert_eq!(fabric.keeper().map(|node| node.key), Some(key));
        assert_eq!(Fabric::parse(&fabric.to_string()).expect("its own"), fabric);
        assert_eq!(fabric.named(&key).map(|node| node.name.as_str()), Some("web1"));
        assert_eq!("10.0.0.1".parse(), Ok(ServiceAddress::Address(([10, 0, 0, 1], UDP_PORT).into())));
        for text in ["", "1.2.3", "a b", "10.0.0.1:0", "host:", "host:99999", ":7248", "a/b", ".x"] {
            assert_eq!(text.parse::<ServiceAddress>(), Err(NoServiceAddress), "{text:?}");
        }
    }

    #[test]
    fn each_error_in_a_fabric_file_is_reported_with_line_and_field() {
        let node = |name: &str, addresses: &str, key: &str| {
            format!("[[node]]\nname = {name}\naddresses = {addresses}\nkey = \"{key}\"\n")
        };
        let good = node("\"a\"", "[\"10.0.0.1\"]", KEY);
        let cases = [
            ("nam = 1".to_owned(), 1, "unknown field `nam`"),
            ("\"\\u001B[2J\" = 1".to_owned(), 1, "unknown field `?[2J`"),
            (file("").replace("encrypted", "maybe"), 3, "security = \"maybe\""),
            (file(&node("\"a b\"", "[\"h\"]", KEY)), 5, "name = \"a b\""),
            (file(&node("\"localhost\"", "[\"h\"]", KEY)), 5, "every machine's own"),
            (file(&node("7", "[\"h\"]", KEY)), 5, "string"),
            (file(&node("\"a\"", "[]", KEY)), 6, "addresses of node \"a\" has 0 entries"),
            (file(&node("\"a\"", "[\"h\",\n\"1.2.3\"]", KEY)), 7, "addresses of node \"a\" has \"1.2.3\""),
            (file(&node("\"a\"", "[\"h\"]", "short")), 7, "key of node \"a\" is not 32 bytes"),
            (file(&format!("{good}{good}")), 9, "two nodes have the name \"a\""),
            (file(&format!("{good}{}", node("\"b\"", "[\"h\"]", KEY))), 11, "have the same key"),
            (file(&format!("{good}port = 1\n")), 8, "unknown field `port`"),
            (file(&format!("{good}bridge = 1\n")), 8, "expected a boolean"),
            (format!("keeper = \"b\"\n{}", file(&good)), 1, "keeper = \"b\" is no node of the file"),
        ];
        for (text, line, expected) in cases {
            let Complaint { at, text: complaint } = Fabric::parse(&text).expect_err(&text);
            assert!(complaint.contains(expected), "{text}\n{complaint}");
            assert_eq!(text[..at].matches('\n').count() + 1, line, "{text}\n{complaint}");
        }
        let two = file(&format!("{good}{}", node("\"b\"", "[\"h\"]", OTHER)));
        assert_eq!(Fabric::parse(&two).expect("good").nodes.len(), 2);
    }
}
