//! What users can choose, by variables of the environment.

use std::ffi::{CStr, OsString};
use std::sync::Once;

use bywire_match::{Limits, rma};

use crate::host;
use crate::idle::Policy;

/// The longest payload of a frame within this machine: a fragment. A longer one takes less time if it is put into its place.
pub const PAYLOAD_BYTES_HERE: usize = 16 << 10;
/// The longest payload of a frame to another machine: as much as a port sends at once. A put would take another round trip first.
pub const PAYLOAD_BYTES_THERE: usize = 64 << 10;
// The help of the variable says so.
const _: () = assert!(PAYLOAD_BYTES_HERE == 16_384 && PAYLOAD_BYTES_THERE == 65_536);

const LINK: &CStr = c"link";
const EAGER: &CStr = c"eager";
const HOLD: &CStr = c"hold";
const IDLE: &CStr = c"idle";
const INTEGRITY: &CStr = c"integrity";
const CONNECT_TIMEOUT: &CStr = c"connect_timeout";
/// Each with its help.
const ALL: [(&CStr, &CStr); 6] = [
    (LINK, c"auto (default): other machines as well, if the node of this one belongs to a fabric; shm: this machine only"),
    (EAGER, c"longest message that is sent before a receive has asked for it, in bytes (default and at most: 65536, and 16384 within a machine)"),
    (HOLD, c"memory for messages that no receive waits for, besides 256 KiB for each sender, in bytes (default: 67108864)"),
    (IDLE, c"how a rank waits: auto (default) sleeps while others want its core, spin keeps the core, sleep always sleeps"),
    (CONNECT_TIMEOUT, c"how long an endpoint may take to answer when it is first sent something, in milliseconds (default: 0, for ever, as a rank answers only when it calls MPI)"),
    (INTEGRITY, c"yes: every payload is checked end to end (default: no)"),
];
/// How the variables of these parameters begin.
const PREFIX: &str = "FI_BYWIRE_";

/// What users can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Can other machines be reached?
    pub reaches_machines: bool,
    /// The longest message that is sent before a receive has asked for it, in bytes.
    pub eager_bytes: u64,
    /// What messages that no receive waits for may take besides the first window of each sender, in bytes.
    pub hold_bytes: u64,
    pub idle: Policy,
    /// Is every payload checked end to end?
    pub integrity: bool,
    /// How long an endpoint may take to answer when it is first sent something, in milliseconds. 0: for ever.
    pub connect_timeout_ms: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            reaches_machines: true,
            eager_bytes: PAYLOAD_BYTES_THERE as u64,
            hold_bytes: Limits::default().growth_bytes_max,
            idle: Policy::default(),
            integrity: false,
            connect_timeout_ms: 0,
        }
    }
}

/// Makes the variables known to libfabric.
pub fn define() {
    ALL.into_iter().for_each(|(name, help)| host::define(name, help));
}

impl Parameters {
    /// What the environment says. A variable without effect is reported once, as its user hardly looks into libfabric's log.
    pub fn read() -> Self {
        static REPORTED: Once = Once::new();
        let mut complaints = unknown(std::env::vars_os().map(|(name, _)| name));
        let parameters = Self::of(host::parameter, &mut complaints);
        REPORTED.call_once(|| complaints.iter().for_each(|complaint| host::complain(complaint)));
        parameters
    }

    fn of(value: impl Fn(&CStr) -> Option<String>, complaints: &mut Vec<String>) -> Self {
        let mut chosen = Chosen { value: &value, complaints };
        let number = |text: &str| text.parse().ok();
        let link = |text: &str| match text {
            "auto" => Some(true),
            "shm" => Some(false),
            _ => None,
        };
        let switch = |text: &str| match text {
            "1" | "yes" | "true" | "on" => Some(true),
            "0" | "no" | "false" | "off" => Some(false),
            _ => None,
        };
        let default = Self::default();
        let eager = |text: &str| number(text).filter(|eager| *eager <= PAYLOAD_BYTES_THERE as u64);
        Self {
            reaches_machines: chosen.of(LINK, link).unwrap_or(default.reaches_machines),
            eager_bytes: chosen.of(EAGER, eager).unwrap_or(default.eager_bytes),
            hold_bytes: chosen.of(HOLD, number).unwrap_or(default.hold_bytes),
            idle: chosen.of(IDLE, Policy::parse).unwrap_or(default.idle),
            integrity: chosen.of(INTEGRITY, switch).unwrap_or(default.integrity),
            connect_timeout_ms: chosen.of(CONNECT_TIMEOUT, number).unwrap_or(default.connect_timeout_ms),
        }
    }

    /// The bounds of matchers.
    pub fn limits(&self) -> Limits {
        Limits { eager_bytes: self.eager_bytes, growth_bytes_max: self.hold_bytes, ..Limits::default() }
    }

    /// The bounds of RMA.
    pub fn rma_limits(&self) -> rma::Limits {
        rma::Limits { short_bytes: self.eager_bytes, ..rma::Limits::default() }
    }

    pub fn connect_timeout_ns(&self) -> u64 {
        self.connect_timeout_ms.saturating_mul(1_000_000)
    }
}

/// Values that were chosen, and complaints about words that are none.
struct Chosen<'words, Value> {
    value: &'words Value,
    complaints: &'words mut Vec<String>,
}

impl<Value: Fn(&CStr) -> Option<String>> Chosen<'_, Value> {
    fn of<T>(&mut self, name: &CStr, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = (self.value)(name)?;
        let value = parse(&text);
        if value.is_none() {
            let variable = variable(name);
            let line = format!(
                "{variable} has no effect: `{text}` is not one of its values, which `fi_info -e` lists"
            );
            self.complaints.push(line);
        }
        value
    }
}

/// The variable of the environment for a parameter.
fn variable(name: &CStr) -> String {
    format!("{PREFIX}{}", name.to_string_lossy().to_uppercase())
}

/// Complaints about variables that have our prefix and no meaning.
fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let known = ALL.map(|(name, _)| variable(name));
    let ours = names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with(PREFIX));
    let strange = ours.filter(|name| !known.contains(name));
    strange.map(|name| format!("{name} has no effect: `fi_info -e` lists those that have one")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_and_others_have_no_effect() {
        let of = |values: &[(&str, &str)]| {
            let value = |name: &CStr| {
                let found = values.iter().find(|(known, _)| name.to_str() == Ok(known));
                found.map(|(_, value)| (*value).to_owned())
            };
            let mut complaints = Vec::new();
            (Parameters::of(value, &mut complaints), complaints)
        };
        assert_eq!(of(&[]), (Parameters::default(), vec![]));
        let good = [
            ("link", "shm"),
            ("eager", "0"),
            ("hold", "1000"),
            ("idle", "sleep"),
            ("integrity", "yes"),
            ("connect_timeout", "250"),
        ];
        let chosen = Parameters {
            reaches_machines: false,
            eager_bytes: 0,
            hold_bytes: 1000,
            idle: Policy::Sleep,
            integrity: true,
            connect_timeout_ms: 250,
        };
        assert_eq!(of(&good), (chosen, vec![]));
        let bad = [
            ("link", "tcp"),
            ("eager", "65537"),
            ("hold", "-1"),
            ("idle", ""),
            ("integrity", "2"),
            ("connect_timeout", "1s"),
        ];
        let (chosen, complaints) = of(&bad);
        assert_eq!((chosen, complaints.len()), (Parameters::default(), bad.len()));
        assert!(complaints[0].starts_with("FI_BYWIRE_LINK has no effect: `tcp` is not"), "{complaints:?}");
    }

    #[test]
    fn a_variable_that_does_not_exist_is_reported() {
        let names = ["FI_BYWIRE_IDEL", "FI_BYWIRE_IDLE", "FI_LOG_LEVEL"];
        let complaints = unknown(names.map(OsString::from).into_iter());
        assert!(matches!(&complaints[..], [one] if one.starts_with("FI_BYWIRE_IDEL ")), "{complaints:?}");
    }
}
