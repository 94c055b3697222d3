//! What users can choose, by variables of the environment.

use std::ffi::CStr;

use bywire_match::Limits;
use bywire_match::head::HEAD_BYTES_MAX;

use crate::host;
use crate::idle::Policy;

/// The longest frame: what a port sends at once, without the byte that tells untagged frames.
pub const FRAME_BYTES: usize = bywire::FRAGMENT_BYTES - 1;
/// The longest payload of a message in one frame.
const EAGER_BYTES_MAX: u64 = (FRAME_BYTES - HEAD_BYTES_MAX) as u64;
// The help of the variable says so.
const _: () = assert!(EAGER_BYTES_MAX == 4055);

const LINK: &CStr = c"link";
const EAGER: &CStr = c"eager";
const HOLD: &CStr = c"hold";
const IDLE: &CStr = c"idle";
const INTEGRITY: &CStr = c"integrity";

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
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            reaches_machines: true,
            eager_bytes: EAGER_BYTES_MAX,
            hold_bytes: Limits::default().growth_bytes_max,
            idle: Policy::default(),
            integrity: false,
        }
    }
}

/// Makes the variables known to libfabric.
pub fn define() {
    host::define(LINK, c"auto (default): other machines as well, if the node of this one belongs to a fabric; shm: this machine only");
    host::define(EAGER, c"longest message that is sent before a receive has asked for it, in bytes (default and at most: 4055)");
    host::define(HOLD, c"memory for messages that no receive waits for, besides 64 KiB for each sender, in bytes (default: 67108864)");
    host::define(IDLE, c"how a rank waits: auto (default) sleeps while others want its core, spin keeps the core, sleep always sleeps");
    host::define(INTEGRITY, c"yes: every payload is checked end to end (default: no)");
}

impl Parameters {
    /// What the environment says. A value that is none is reported to libfabric's log, and has no effect.
    pub fn read() -> Self {
        Self::of(host::parameter)
    }

    fn of(value: impl Fn(&CStr) -> Option<String>) -> Self {
        fn chosen<T>(name: &CStr, text: Option<String>, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
            let text = text?;
            let value = parse(&text);
            if value.is_none() {
                let name = name.to_string_lossy().to_uppercase();
                host::warn(&format!("FI_BYWIRE_{name} has no effect: `{text}` is not one of its values"));
            }
            value
        }
        let bytes = |text: &str| text.parse().ok();
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
        let eager = |text: &str| bytes(text).filter(|eager| *eager <= EAGER_BYTES_MAX);
        Self {
            reaches_machines: chosen(LINK, value(LINK), link).unwrap_or(default.reaches_machines),
            eager_bytes: chosen(EAGER, value(EAGER), eager).unwrap_or(default.eager_bytes),
            hold_bytes: chosen(HOLD, value(HOLD), bytes).unwrap_or(default.hold_bytes),
            idle: chosen(IDLE, value(IDLE), Policy::parse).unwrap_or(default.idle),
            integrity: chosen(INTEGRITY, value(INTEGRITY), switch).unwrap_or(default.integrity),
        }
    }

    /// The bounds of matchers.
    pub fn limits(&self) -> Limits {
        Limits { eager_bytes: self.eager_bytes, growth_bytes_max: self.hold_bytes, ..Limits::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_and_others_have_no_effect() {
        let of = |values: &[(&str, &str)]| {
            Parameters::of(|name| {
                let found = values.iter().find(|(known, _)| name.to_str() == Ok(known));
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[]), Parameters::default());
        let good =
            [("link", "shm"), ("eager", "0"), ("hold", "1000"), ("idle", "sleep"), ("integrity", "yes")];
        let chosen = Parameters {
            reaches_machines: false,
            eager_bytes: 0,
            hold_bytes: 1000,
            idle: Policy::Sleep,
            integrity: true,
        };
        assert_eq!(of(&good), chosen);
        let bad = [("link", "tcp"), ("eager", "5000"), ("hold", "-1"), ("idle", ""), ("integrity", "2")];
        assert_eq!(of(&bad), Parameters::default());
    }
}
