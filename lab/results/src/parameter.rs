//! The parameters of cells, and their words for readers.

use serde_json::Value;

use crate::message_link::SECURITY;
use crate::names;
use crate::values::named_values;

/// Parameters that state how long a cell was measured. `burden` is an older name of `slowdown`.
pub const HOW_LONG: [&str; 8] =
    ["block_us", "blocks", "burden", "cores", "pairs", "seed", "slowdown", "time"];

/// The session that a cell is from, if there are several.
pub const MACHINE: &str = "machine";

/// The parameter `spin` of an end that polls for a bounded time and then sleeps. It is `true` for an end that polls,
/// and `false` for one that sleeps at once.
pub const ADAPTIVE: &str = "adaptive";

/// The domain of the sockets that are carried. Cells without it are of TCP.
pub const DOMAIN: &str = "domain";

names! {
    /// The sockets of a program under `bywire run`.
    Domain, "domain" {
        /// TCP over IPv4 or IPv6.
        Inet = "inet",
        /// Unix streams.
        Unix = "unix",
    }
}

/// The MPI implementation.
pub const MPI: &str = "mpi";

named_values! {
    /// The options chosen for a cell, by the names of the command line. Stored sessions may have names and forms of older
    /// versions. The methods read all of them.
    Parameters
}

names! {
    /// How an end waits, in the order of tables.
    Waiting, "kind of waiting" {
        /// It polls a bounded time, then sleeps: the message layer's default.
        Adaptive = "adaptive",
        /// It sleeps in the kernel until woken.
        Sleeping = "sleeping",
        /// It polls, and keeps its core busy.
        Polling = "polling",
    }
}

impl Parameters {
    /// A whole number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    /// A number.
    pub fn real(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// True for a flag that was given and for a switch that is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Bool(true)) || self.text(name) == Some("on")
    }

    /// True for a switch that is off.
    pub fn is_off(&self, name: &str) -> bool {
        self.text(name) == Some("off")
    }

    /// The domain of the sockets that are carried. Older sessions have only TCP.
    pub fn domain(&self) -> Domain {
        self.text(DOMAIN).and_then(|name| name.parse().ok()).unwrap_or(Domain::Inet)
    }

    /// How the ends wait, if the parameters state it.
    pub fn waiting(&self) -> Option<Waiting> {
        Some(match self.get("spin")? {
            Value::Bool(true) => Waiting::Polling,
            Value::String(text) if text == ADAPTIVE => Waiting::Adaptive,
            // The form of older sessions.
            Value::String(text) if text == "on" || text == "true" => Waiting::Polling,
            _ => Waiting::Sleeping,
        })
    }
}

/// A value as text, without quotation marks.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A parameter in the words for readers.
pub fn parameter(name: &str, value: &Value) -> String {
    let plain = match value {
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        other => plain(other),
    };
    match (name, plain.as_str()) {
        ("lent", "on") => "lent".into(),
        ("lent", "off") => "copied".into(),
        ("both-cores", "on") => "both cores".into(),
        ("both-cores", "off") => "one core".into(),
        ("lines", "1") => "one line".into(),
        ("lines", _) => format!("{plain} lines"),
        (MACHINE | MPI | SECURITY, _) => plain,
        ("protocol", _) => plain.to_uppercase(),
        (DOMAIN, "unix") => "Unix".into(),
        ("mtu", _) => format!("MTU {plain}"),
        _ => format!("{} {plain}", name.replace('-', " ")),
    }
}
