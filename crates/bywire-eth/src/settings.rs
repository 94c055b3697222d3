//! What an Ethernet network of this process is to be: out of a file, of the command line, or of both.
//!
//! ```
//! let settings: bywire_eth::settings::Settings = toml::from_str::<bywire_eth::settings::File>(r#"
//!     [ethernet]
//!     mtu = 9000
//!
//!     [[ethernet.interface]]
//!     namespace = "blue"
//!     name = "by0"
//!     addresses = ["10.77.0.1/24"]
//! "#)?.ethernet;
//! assert_eq!(settings.plans()?[0].label(), "blue:by0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bywire_sys::namespace::Place;
use serde::Deserialize;

use crate::address::{MacAddress, MacAddressError};
use crate::backlog::HOLD_BACK_MS;
use crate::carrier::LANES_MAX;
use crate::interface::Cidr;
use crate::order::Manner;
use crate::station::{self, MTU_BYTES, Plan};

/// What an interface is called where nothing else is said.
pub const DEFAULT_NETWORK: &str = "default";
/// The most carrying processes.
pub const QUEUES_MAX: usize = 64;
/// The longest that a loop may look for the next frame, in microseconds.
pub const SPIN_US_MAX: u32 = 1000;
/// Addresses of one interface.
const ADDRESSES_MAX: usize = 64;
/// A node's name becomes part of a file's name.
const NODE_BYTES_MAX: usize = 64;
/// The longest way to tell a namespace.
const NAMESPACE_BYTES_MAX: usize = 255;
/// A network's name becomes part of a port's name.
const NETWORK_BYTES_MAX: usize = 24;

/// A configuration file as a whole: other parts of Bywire may have tables of their own in it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct File {
    /// The part that is ours.
    #[serde(default)]
    pub ethernet: Settings,
}

/// Everything that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Interfaces of one network see each other.
    pub network: String,
    /// What this process is called in it; by default this machine's host name.
    pub node: String,
    /// The MTU of interfaces that say nothing themselves.
    pub mtu: u32,
    /// How many processes carry frames, each with one queue of every interface.
    pub queues: usize,
    /// Take as many frames at each wake as there are, and merge those of a flow.
    pub coalesce: bool,
    /// How long to look for the next frame before sleeping, in microseconds.
    pub spin_us: u32,
    /// Broadcasts and multicasts taken from each interface a second.
    pub storm_frames_per_second: u64,
    /// Where Prometheus is answered, as in `127.0.0.1:9477`; by default nowhere.
    pub metrics: Option<SocketAddr>,
    /// The interfaces.
    #[serde(rename = "interface")]
    pub interfaces: Vec<Interface>,
}

/// One interface as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// A name, `pid:N`, a path, or `-` for the namespace of this process.
    #[serde(default = "current")]
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// Its addresses, each with a prefix.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// A bridge to attach it to.
    pub bridge: Option<String>,
    /// Its hardware address, where it shall not follow from its identity.
    pub mac: Option<String>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// It is no TOML, or has a field that there is not.
    #[error("{0}, line {1}: {2}")]
    Syntax(PathBuf, usize, String),
    /// An interface is not told as it should be.
    #[error(
        "{0:?} tells no interface: write NETNS:NAME or NETNS:NAME=ADDRESS/PREFIX, as in blue:by0=10.77.0.1/24"
    )]
    Interface(String),
    /// A namespace is not told as it should be.
    #[error("{0:?} tells no network namespace: give a name, pid:N, a path, or - for this one")]
    Namespace(String),
    /// The kernel does not take such a name.
    #[error("{0:?} is no name for an interface: 1 to 15 letters without spaces, /, : and %")]
    Name(String),
    /// A network or node is not named as it should be.
    #[error("{0:?} is no name for a network or a node: 1 to {1} letters, digits, - and _")]
    Label(String, usize),
    /// No address.
    #[error("{0}")]
    Address(String),
    /// No hardware address.
    #[error(transparent)]
    Mac(#[from] MacAddressError),
    /// A hardware address of a group.
    #[error("{0} is the address of a group: the first of its bytes must be even")]
    Group(MacAddress),
    /// An MTU that no device can have.
    #[error("an MTU of {0} is out of bounds: give 68 to 65521 bytes")]
    Mtu(u32),
    /// A number out of bounds.
    #[error("{what} of {given} is out of bounds: give {least} to {most}")]
    Bounds {
        /// What the number is of.
        what: &'static str,
        /// What was given.
        given: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The same interface twice.
    #[error("{0} is told twice: leave one out")]
    Twice(String),
    /// No interface at all.
    #[error(
        "there is no interface to make: give --interface NETNS:NAME=ADDRESS/PREFIX, or a file by --config"
    )]
    Nothing,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            network: DEFAULT_NETWORK.to_owned(),
            node: default_node(),
            mtu: 1500,
            queues: 1,
            coalesce: true,
            spin_us: 50,
            storm_frames_per_second: 50_000,
            metrics: None,
            interfaces: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads the settings in a file.
    ///
    /// # Errors
    /// [`SettingsError::Unreadable`], [`SettingsError::Syntax`].
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable(path.to_owned(), error))?;
        let parsed: Result<File, _> = toml::from_str(&text);
        let syntax = |error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let message = error.message().lines().collect::<Vec<_>>().join("; ");
            SettingsError::Syntax(path.to_owned(), before.matches('\n').count() + 1, message)
        };
        Ok(parsed.map_err(syntax)?.ethernet)
    }

    /// Holds all settings to their bounds, and plans the interfaces.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn plans(&self) -> Result<Vec<Plan>, SettingsError> {
        for (name, bytes_max) in [(&self.network, NETWORK_BYTES_MAX), (&self.node, NODE_BYTES_MAX)] {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if !(1..=bytes_max).contains(&name.len()) || !name.bytes().all(good) {
                return Err(SettingsError::Label(name.clone(), bytes_max));
            }
        }
        within("a number of queues", self.queues as u64, 1, QUEUES_MAX as u64)?;
        within("a time to spin in microseconds", self.spin_us.into(), 0, SPIN_US_MAX.into())?;
        within("a number of interfaces", self.interfaces.len() as u64, 0, LANES_MAX as u64)?;
        let mut told = HashSet::new();
        let plans = self.interfaces.iter().map(|interface| {
            let plan = interface.plan(self)?;
            if told.insert(plan.label()) { Ok(plan) } else { Err(SettingsError::Twice(plan.label())) }
        });
        plans.collect()
    }

    /// How frames are to be carried.
    pub fn manner(&self) -> Manner {
        Manner {
            coalesce: self.coalesce,
            spin_us: if self.coalesce { self.spin_us } else { 0 },
            storm_frames_per_second: self.storm_frames_per_second,
            hold_back_ms: HOLD_BACK_MS,
        }
    }
}

impl Interface {
    fn plan(&self, settings: &Settings) -> Result<Plan, SettingsError> {
        // It becomes a part of the interface's label, which others are told.
        if self.namespace.len() > NAMESPACE_BYTES_MAX || self.namespace.contains(char::is_control) {
            return Err(SettingsError::Namespace(self.namespace.chars().take(40).collect()));
        }
        let place: Place =
            self.namespace.parse().map_err(|_| SettingsError::Namespace(self.namespace.clone()))?;
        for name in [Some(&self.name), self.bridge.as_ref()].into_iter().flatten() {
            if !station::is_name(name) {
                return Err(SettingsError::Name(name.clone()));
            }
        }
        within("a number of addresses", self.addresses.len() as u64, 0, ADDRESSES_MAX as u64)?;
        let addresses: Result<Vec<Cidr>, String> = self.addresses.iter().map(|text| text.parse()).collect();
        let mtu_bytes = self.mtu.unwrap_or(settings.mtu);
        if !MTU_BYTES.contains(&mtu_bytes) {
            return Err(SettingsError::Mtu(mtu_bytes));
        }
        let mac = match &self.mac {
            Some(text) => text.parse::<MacAddress>()?,
            None => {
                let (network, node) = (&settings.network, &settings.node);
                MacAddress::of_node(&format!("{network}/{node}/{place}:{}", self.name))
            }
        };
        if mac.is_multicast() {
            return Err(SettingsError::Group(mac));
        }
        Ok(Plan {
            place,
            name: self.name.clone(),
            mac,
            addresses: addresses.map_err(SettingsError::Address)?,
            mtu_bytes,
            bridge: self.bridge.clone(),
            queues_count: settings.queues,
        })
    }
}

impl FromStr for Interface {
    type Err = SettingsError;

    /// `NETNS:NAME` or `NETNS:NAME=ADDRESS/PREFIX[,ADDRESS/PREFIX…]`.
    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let wrong = || SettingsError::Interface(text.to_owned());
        let (who, addresses) = text.split_once('=').map_or((text, None), |(who, list)| (who, Some(list)));
        // `pid:N` and a path may hold the sign too; a name of an interface cannot.
        let (namespace, name) = who.rsplit_once(':').ok_or_else(wrong)?;
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            addresses: addresses.map(|list| list.split(',').map(str::to_owned).collect()).unwrap_or_default(),
            mtu: None,
            bridge: None,
            mac: None,
        })
    }
}

fn within(what: &'static str, given: u64, least: u64, most: u64) -> Result<(), SettingsError> {
    if (least..=most).contains(&given) {
        return Ok(());
    }
    Err(SettingsError::Bounds { what, given, least, most })
}

fn current() -> String {
    "-".to_owned()
}

/// This machine's host name, as far as it can be a node's.
fn default_node() -> String {
    let name = bywire_sys::process::host_name();
    let short = name.split('.').next().unwrap_or_default();
    let good = |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' };
    let node: String = short.chars().map(good).take(NODE_BYTES_MAX).collect();
    if node.is_empty() { "localhost".to_owned() } else { node }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<Plan, SettingsError> {
        let settings = Settings { interfaces: vec![text.parse()?], ..Settings::default() };
        Ok(settings.plans()?.remove(0))
    }

    #[test]
    fn interfaces_are_told_in_one_word() {
        let blue = plan("blue:by0=10.77.0.1/24,fd00::1/64").expect("a plan");
        assert_eq!((blue.label().as_str(), blue.addresses.len(), blue.mtu_bytes), ("blue:by0", 2, 1500));
        assert_eq!(plan("pid:17:by0").expect("a plan").place.to_string(), "pid:17");
        assert_eq!(plan("-:by0").expect("a plan").place, Place::Current);
        let path = plan("/run/b:c:by0=10.0.0.1/8").expect("a plan");
        assert_eq!(path.place, Place::Path("/run/b:c".into()));
        assert_eq!(path.addresses.len(), 1);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        for wrong in [
            "",
            "by0",
            "blue:",
            "a/b:by0",
            "blue:by0=10.0.0.1",
            "blue:by0=10.0.0.1/33",
            "blue:by0=",
            "blue:sixteen-letters-",
            "/run/\u{1b}[2J:by0",
            &format!("/{}:by0", "long/".repeat(60)),
        ] {
            let error = plan(wrong).expect_err(wrong).to_string();
            assert!(!error.contains('\n') && error.len() > 20, "{error}");
        }
        let mut settings =
            Settings { interfaces: vec!["-:by0".parse().expect("one")], ..Settings::default() };
        settings.interfaces[0].mac = Some("01:00:00:00:00:01".to_owned());
        assert!(matches!(settings.plans(), Err(SettingsError::Group(_))));
        settings.interfaces[0].mac = None;
        settings.mtu = 67;
        assert!(matches!(settings.plans(), Err(SettingsError::Mtu(67))));
        settings.mtu = 68;
        settings.interfaces.push(settings.interfaces[0].clone());
        assert!(matches!(settings.plans(), Err(SettingsError::Twice(_))));
    }

    #[test]
    fn addresses_follow_from_identity_alone() {
        let first = plan("blue:by0").expect("a plan").mac;
        assert_eq!(plan("blue:by0=10.0.0.1/8").expect("a plan").mac, first);
        assert_ne!(plan("red:by0").expect("a plan").mac, first);
        let elsewhere = Settings {
            node: "other".to_owned(),
            interfaces: vec!["blue:by0".parse().expect("one")],
            ..Settings::default()
        };
        assert_ne!(elsewhere.plans().expect("plans")[0].mac, first);
    }

    #[test]
    fn files_are_read_strictly() {
        let parse = |text: &str| toml::from_str::<File>(text).map(|file| file.ethernet);
        let both = parse(
            "[ethernet]\nmtu = 9000\n[[ethernet.interface]]\nname = \"by0\"\n[[ethernet.interface]]\nnamespace = \"blue\"\nname = \"by0\"\nmtu = 1280\n",
        );
        let mtus: Vec<u32> =
            both.expect("a file").plans().expect("plans").iter().map(|plan| plan.mtu_bytes).collect();
        assert_eq!(mtus, [9000, 1280]);
        assert!(parse("[ethernet]\nmut = 9000\n").is_err());
        assert_eq!(parse("").expect("an empty file"), Settings::default());
    }
}
