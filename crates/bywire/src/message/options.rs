//! How a port is opened.

use std::path::PathBuf;
use std::time::Duration;

use bywire_ring::geometry::Geometry;

use crate::message::address::PortName;

/// The most asynchronous transfers that may be outstanding, for each priority.
pub(crate) const SEND_TOKENS_MAX: u32 = 256;

/// Who may connect to a port. The kernel says who a stranger is; nobody can pretend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admit {
    /// Processes of the port owner's user (and root).
    #[default]
    SameUser,
    /// These, and members of this group.
    Group(u32),
    /// Every user of this machine.
    Everyone,
}

/// Everything that can be chosen when a port is opened. `PortOptions::default()` suits most programs.
///
/// ```
/// use bywire::{Admit, PortOptions};
/// let options = PortOptions { admit: Admit::Everyone, integrity: true, ..PortOptions::named("render") };
/// assert_eq!(options.send_tokens, 64);
/// ```
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// The port's name or number; `None`: any free number.
    pub name: Option<PortName>,
    /// Who may connect. Each foreign user has at most an eighth of `peers_max`, and its long messages that are
    /// under way fill at most an eighth of the buffers posted for a priority; at least one, of both.
    pub admit: Admit,
    /// Check every payload end to end with CRC32C, in both directions; on as soon as either end wants it.
    /// A payload that fails ends the connection; of a region that it was put into, the range is then undefined.
    pub integrity: bool,
    /// The longest message that this port takes, in bytes (up to 2^40).
    pub message_bytes_max: u64,
    /// Asynchronous transfers that may be outstanding, for each priority (1 to 256). A token is free as soon as its
    /// completion is queued, so a program that does not take its events has any number of completions waiting.
    pub send_tokens: u32,
    /// Receive buffers that may be posted, for each priority.
    pub receive_tokens: u32,
    /// Memory that one peer may share with us to lend from, in bytes. All peers of one foreign user share so much together.
    pub borrow_bytes_max: u64,
    /// Connections at a time.
    pub peers_max: u32,
    /// Peers that have a bulk area of 4 MiB of their own while they are connected, once they are sent so much
    /// that the small one stands in the way; 0: none. Each foreign user has at most an eighth of them, and at least one.
    pub large_window_peers_max: u32,
    /// How long [`crate::Port::wait`] spins at most before it sleeps: about what going to sleep and being
    /// woken costs. It spins less while that does not pay.
    pub spin: Duration,
    /// How often a port that is polled looks for new peers and for dead ones.
    pub housekeeping_interval: Duration,
    /// The rings towards each peer.
    pub geometry: Geometry,
    /// Where ports are kept; `None`: `BYWIRE_RUNTIME_DIR`, else `/run/bywire` if it can be used, else
    /// `XDG_RUNTIME_DIR/bywire`, else `/tmp/bywire-UID`.
    pub runtime_directory: Option<PathBuf>,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            name: None,
            admit: Admit::default(),
            integrity: false,
            message_bytes_max: 1 << 40,
            send_tokens: 64,
            receive_tokens: 1024,
            borrow_bytes_max: 1 << 30,
            peers_max: 4096,
            large_window_peers_max: 16,
            spin: Duration::from_micros(50),
            housekeeping_interval: Duration::from_millis(1),
            geometry: Geometry::default(),
            runtime_directory: None,
        }
    }
}

impl PortOptions {
    /// Defaults for the port of this number.
    pub fn numbered(number: u32) -> Self {
        Self { name: Some(PortName::Number(number)), ..Self::default() }
    }

    /// Defaults for the port of this name; whether it is a good one shows when the port is opened.
    pub fn named(name: &str) -> Self {
        Self { name: Some(PortName::Name(name.to_owned())), ..Self::default() }
    }
}
