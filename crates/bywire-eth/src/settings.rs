//! The settings of a process's Ethernet network, from a file, from the command line, or from both.
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

use bywire_sys::namespace::NamespaceName;
use serde::Deserialize;

use crate::address::{MacAddress, MacAddressError, PLACES};
use crate::backlog::HOLD_BACK_MS;
use crate::carrier::INTERFACES_MAX;
use crate::interface::{self, MTU_BYTES, Plan};
use crate::order::{CarrierSettings, Node};
use crate::rtnetlink::Cidr;

/// The name of the network if none is given.
pub const DEFAULT_NETWORK: &str = "default";
/// The most carrying processes.
pub const QUEUES_MAX: usize = 64;
/// The MTU of interfaces if none is given.
const MTU_DEFAULT: u32 = 1500;
/// The same with other machines. A segment of this length fits into one encrypted packet on a path of 1500 bytes, also
/// over IPv6 and beside an acknowledgement.
const FABRIC_MTU_DEFAULT: u32 = 1350;
/// The longest time that a loop may poll for the next frame, in microseconds.
pub const SPIN_US_MAX: u32 = 1000;
/// The most addresses of one interface.
const ADDRESSES_MAX: usize = 64;
/// The longest name of a node. It becomes a part of a file name.
const NODE_BYTES_MAX: usize = 64;
/// The longest text that identifies a namespace.
const NAMESPACE_BYTES_MAX: usize = 255;
/// The longest name of a network. It becomes a part of a port's name.
const NETWORK_BYTES_MAX: usize = 24;

/// A whole configuration file. Other parts of Bywire may have their own tables in it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct File {
    /// The table of this crate.
    #[serde(default)]
    pub ethernet: Settings,
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The network's name. Interfaces of one network reach each other.
    pub network: String,
    /// The name of this process in the network. The default is [`Settings::node`].
    #[serde(rename = "node")]
    pub given_node: Option<String>,
    /// Reach the network's processes on the other nodes of the fabric too.
    pub fabric: bool,
    /// This machine in the fabric, as its node service reports it.
    #[serde(skip)]
    pub fabric_node: Option<Node>,
    /// The MTU of interfaces without an MTU of their own. The default is 1500, or 1350 with `fabric`.
    pub mtu: Option<u32>,
    /// The number of processes that carry frames. Each serves a few queues of every interface.
    pub queues: usize,
    /// Read as many frames at each wake-up as there are, and merge those of a flow.
    pub coalesce: bool,
    /// How long to poll for the next frame before sleeping, in microseconds.
    pub spin_us: u32,
    /// The limit on broadcasts and multicasts from each interface, per second.
    pub storm_frames_per_second: u64,
    /// The address for Prometheus, such as `127.0.0.1:9477`. There is none by default.
    pub metrics: Option<SocketAddr>,
    /// The interfaces.
    #[serde(rename = "interface")]
    pub interfaces: Vec<Interface>,
}

/// The settings of one interface.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// A name, `pid:N`, a path, or `-` for the namespace of this process.
    #[serde(default = "current")]
    pub namespace: String,
    /// Its name in that namespace.
    pub name: String,
    /// Its addresses, each with a prefix.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// A bridge to attach it to.
    pub bridge: Option<String>,
    /// Its hardware address. By default, it follows from the interface's identity.
    pub mac: Option<String>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// It is not TOML, or it has an unknown field.
    #[error("{0}, line {1}: {2}")]
    Syntax(PathBuf, usize, String),
    /// The text does not describe an interface.
    #[error(
        "{0:?} is not an interface: write NETNS:NAME or NETNS:NAME=ADDRESS/PREFIX, as in blue:by0=10.77.0.1/24"
    )]
    Interface(String),
    /// The text does not identify a namespace.
    #[error("{0:?} is not a network namespace: give a name, pid:N, a path, or - for this one")]
    Namespace(String),
    /// The kernel does not accept this name.
    #[error("{0:?} is not a valid name for an interface: 1 to 15 letters without spaces, /, : and %")]
    Name(String),
    /// The name of a network or node is invalid.
    #[error("{0:?} is not a valid name for a network or a node: 1 to {1} letters, digits, - and _")]
    Label(String, usize),
    /// Not an IP address with a prefix.
    #[error("{0}")]
    Address(String),
    /// Not a hardware address.
    #[error(transparent)]
    Mac(#[from] MacAddressError),
    /// A hardware address of a group.
    #[error("{0} is the address of a group: the first of its bytes must be even")]
    Group(MacAddress),
    /// Something that other machines cannot check.
    #[error(
        "{0} has a `mac` of its own, which other machines cannot check: leave it out, or leave out --fabric (`fabric` in \
         the file)"
    )]
    Unchecked(String),
    /// This machine may have no hosts behind its interfaces.
    #[error(
        "other machines would drop the frames of hosts behind the bridge: first add the line `bridge = true` to the node \
         {0} in fabric.toml, on the fabric's keeper"
    )]
    NotBridge(String),
    /// An MTU that no device can have.
    #[error("an MTU of {0} is out of bounds: give 68 to 65521 bytes")]
    Mtu(u32),
    /// A number out of bounds.
    #[error("{what} of {given} is out of bounds: give {least} to {most}")]
    Bounds {
        /// The kind of number.
        what: &'static str,
        /// The given value.
        given: u64,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
    /// The same interface is given twice.
    #[error("{0} is given twice: leave one out")]
    Twice(String),
    /// No interface is given.
    #[error(
        "there is no interface to make: give --interface NETNS:NAME=ADDRESS/PREFIX, or a file by --config"
    )]
    Nothing,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            network: DEFAULT_NETWORK.to_owned(),
            given_node: None,
            fabric: false,
            fabric_node: None,
            mtu: None,
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

    /// Checks the bounds of all settings and plans the interfaces.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn plans(&self) -> Result<Vec<Plan>, SettingsError> {
        for (name, bytes_max) in [(&self.network, NETWORK_BYTES_MAX), (&self.node(), NODE_BYTES_MAX)] {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if !(1..=bytes_max).contains(&name.len()) || !name.bytes().all(good) {
                return Err(SettingsError::Label(name.clone(), bytes_max));
            }
        }
        within("a number of queues", self.queues as u64, 1, QUEUES_MAX as u64)?;
        within("a time to spin in microseconds", self.spin_us.into(), 0, SPIN_US_MAX.into())?;
        within("a number of interfaces", self.interfaces.len() as u64, 0, INTERFACES_MAX as u64)?;
        let mut told = HashSet::new();
        let plans = self.interfaces.iter().map(|interface| {
            let plan = interface.plan(self)?;
            if told.insert(plan.label()) { Ok(plan) } else { Err(SettingsError::Twice(plan.label())) }
        });
        let mut plans = plans.collect::<Result<Vec<_>, _>>()?;
        if let Some(node) = &self.fabric_node {
            if !node.is_bridge && plans.iter().any(|plan| plan.bridge.is_some()) {
                return Err(SettingsError::NotBridge(node.name.clone()));
            }
            self.take_places(&node.name, &mut plans);
        }
        Ok(plans)
    }

    /// Gives each interface one of the node's addresses. It follows from the interface's label, unless an interface with
    /// another label has that one already.
    fn take_places(&self, node: &str, plans: &mut [Plan]) {
        let mut taken = HashSet::new();
        for plan in plans {
            let [.., high, low] = MacAddress::of_node(&plan.label()).0;
            let mut place = u16::from_be_bytes([high, low]) % PLACES;
            // There are as many places as interfaces.
            while !taken.insert(place) {
                place = (place + 1) % PLACES;
            }
            plan.mac = MacAddress::of_place(&self.network, node, place);
        }
    }

    /// The name of this process in the network: the given one, or that of the node in the fabric, or the machine's host name.
    pub fn node(&self) -> String {
        let of_fabric = || self.fabric_node.as_ref().map(|node| as_label(&node.name));
        self.given_node.clone().or_else(of_fabric).unwrap_or_else(default_node)
    }

    /// How frames are to be carried.
    pub fn carrier(&self) -> CarrierSettings {
        CarrierSettings {
            coalesce: self.coalesce,
            spin_us: if self.coalesce { self.spin_us } else { 0 },
            storm_frames_per_second: self.storm_frames_per_second,
            hold_back_ms: HOLD_BACK_MS,
        }
    }
}

impl Interface {
    fn plan(&self, settings: &Settings) -> Result<Plan, SettingsError> {
        // The namespace becomes a part of the interface's label, which other processes see.
        if self.namespace.len() > NAMESPACE_BYTES_MAX || self.namespace.contains(char::is_control) {
            return Err(SettingsError::Namespace(self.namespace.chars().take(40).collect()));
        }
        let namespace: NamespaceName =
            self.namespace.parse().map_err(|_| SettingsError::Namespace(self.namespace.clone()))?;
        for name in [Some(&self.name), self.bridge.as_ref()].into_iter().flatten() {
            if !interface::is_name(name) {
                return Err(SettingsError::Name(name.clone()));
            }
        }
        within("a number of addresses", self.addresses.len() as u64, 0, ADDRESSES_MAX as u64)?;
        let addresses: Result<Vec<Cidr>, String> = self.addresses.iter().map(|text| text.parse()).collect();
        let default = if settings.fabric { FABRIC_MTU_DEFAULT } else { MTU_DEFAULT };
        let mtu_bytes = self.mtu.or(settings.mtu).unwrap_or(default);
        if !MTU_BYTES.contains(&mtu_bytes) {
            return Err(SettingsError::Mtu(mtu_bytes));
        }
        if settings.fabric && self.mac.is_some() {
            return Err(SettingsError::Unchecked(format!("{namespace}:{}", self.name)));
        }
        let mac = match &self.mac {
            Some(text) => text.parse::<MacAddress>()?,
            None => {
                let (network, node) = (&settings.network, settings.node());
                MacAddress::of_node(&format!("{network}/{node}/{namespace}:{}", self.name))
            }
        };
        if mac.is_multicast() {
            return Err(SettingsError::Group(mac));
        }
        Ok(Plan {
            namespace,
            name: self.name.clone(),
            mac,
            addresses: addresses.map_err(SettingsError::Address)?,
            mtu_bytes,
            bridge: self.bridge.clone(),
            queues_count: settings.queues,
            reaches_machines: settings.fabric,
        })
    }
}

impl FromStr for Interface {
    type Err = SettingsError;

    /// `NETNS:NAME` or `NETNS:NAME=ADDRESS/PREFIX[,ADDRESS/PREFIX…]`.
    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let wrong = || SettingsError::Interface(text.to_owned());
        let (who, addresses) = text.split_once('=').map_or((text, None), |(who, list)| (who, Some(list)));
        // The namespace may contain the separator too, as in `pid:N` or a path. The name of an interface cannot.
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

/// This machine's host name, shortened and changed into a valid node name.
fn default_node() -> String {
    let name = bywire_sys::process::host_name();
    let node = as_label(name.split('.').next().unwrap_or_default());
    if node.is_empty() { "localhost".to_owned() } else { node }
}

/// A name as that of a node, in which every other letter is a hyphen.
fn as_label(name: &str) -> String {
    let good = |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' };
    name.chars().map(good).take(NODE_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_as_given_or_as_the_fabric_names_its_node() {
        let fabric_node = Some(Node { name: "web1.example".to_owned(), is_bridge: false });
        let settings = Settings { fabric: true, fabric_node, ..Settings::default() };
        assert_eq!(settings.node(), "web1-example");
        settings.plans().expect("a valid name");
        assert_eq!(Settings { given_node: Some("own".to_owned()), ..settings }.node(), "own");
        assert_eq!(Settings::default().node(), default_node());
    }

    fn plan(text: &str) -> Result<Plan, SettingsError> {
        let settings = Settings { interfaces: vec![text.parse()?], ..Settings::default() };
        Ok(settings.plans()?.remove(0))
    }

    #[test]
    fn interfaces_are_parsed_from_one_argument() {
        let blue = plan("blue:by0=10.77.0.1/24,fd00::1/64").expect("a plan");
        assert_eq!((blue.label().as_str(), blue.addresses.len(), blue.mtu_bytes), ("blue:by0", 2, 1500));
        assert_eq!(plan("pid:17:by0").expect("a plan").namespace.to_string(), "pid:17");
        assert_eq!(plan("-:by0").expect("a plan").namespace, NamespaceName::Current);
        let path = plan("/run/b:c:by0=10.0.0.1/8").expect("a plan");
        assert_eq!(path.namespace, NamespaceName::Path("/run/b:c".into()));
        assert_eq!(path.addresses.len(), 1);
    }

    #[test]
    fn invalid_settings_are_refused_with_a_reason() {
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
        settings.mtu = Some(67);
        assert!(matches!(settings.plans(), Err(SettingsError::Mtu(67))));
        settings.mtu = Some(68);
        settings.interfaces.push(settings.interfaces[0].clone());
        assert!(matches!(settings.plans(), Err(SettingsError::Twice(_))));
    }

    #[test]
    fn addresses_follow_from_identity_alone() {
        let first = plan("blue:by0").expect("a plan").mac;
        assert_eq!(plan("blue:by0=10.0.0.1/8").expect("a plan").mac, first);
        assert_ne!(plan("red:by0").expect("a plan").mac, first);
        let elsewhere = Settings {
            given_node: Some("other".to_owned()),
            interfaces: vec!["blue:by0".parse().expect("one")],
            ..Settings::default()
        };
        assert_ne!(elsewhere.plans().expect("plans")[0].mac, first);
    }

    #[test]
    fn interfaces_of_a_node_of_the_fabric_have_addresses_of_that_node() {
        let interfaces = (0..1024).map(|number| format!("-:by{number}").parse().expect("one")).collect();
        let node = |is_bridge| Some(Node { name: "web1".to_owned(), is_bridge });
        let settings = Settings { fabric: true, fabric_node: node(false), interfaces, ..Settings::default() };
        let plans = settings.plans().expect("plans");
        let all: HashSet<_> =
            (0..PLACES).map(|place| MacAddress::of_place("default", "web1", place)).collect();
        assert_eq!(plans.iter().map(|plan| plan.mac).collect::<HashSet<_>>(), all);
        assert_eq!(plans[0].mtu_bytes, 1350);
        let mut one = Settings { interfaces: vec!["-:by7".parse().expect("one")], ..settings.clone() };
        let mac = one.plans().expect("plans")[0].mac;
        one.interfaces.push("-:by8".parse().expect("one"));
        assert_eq!(one.plans().expect("plans")[0].mac, mac, "others change nothing");
        one.interfaces[0].bridge = Some("br0".to_owned());
        assert!(matches!(one.plans(), Err(SettingsError::NotBridge(_))));
        one.fabric_node = node(true);
        assert_eq!(one.plans().expect("it may")[0].bridge.as_deref(), Some("br0"));
        one.interfaces[0].mac = Some("02:00:00:00:00:01".to_owned());
        assert!(matches!(one.plans(), Err(SettingsError::Unchecked(..))));
    }

    #[test]
    fn files_are_parsed_strictly() {
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
