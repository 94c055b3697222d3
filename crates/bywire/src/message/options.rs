//! Options of a port.

use std::path::PathBuf;
use std::time::Duration;

use bywire_ring::geometry::{Geometry, INLINE_BYTES};

use crate::message::address::PortName;

/// The most asynchronous transfers that may be outstanding, for each priority.
pub(crate) const SEND_TOKENS_MAX: u32 = 256;

/// The longest head of a message in two parts: what a slot has room for behind its length.
pub(crate) const HEAD_BYTES_MAX: usize = INLINE_BYTES - 8;
/// The longest message that may be copied at once to another machine.
pub(crate) const REMOTE_FRAGMENT_BYTES_MAX: u32 = 64 << 10;
/// The longest message from another machine that needs no posted buffer, for any options of its sender: with a head.
pub(crate) const SHORT_BYTES_MAX: u64 = REMOTE_FRAGMENT_BYTES_MAX as u64 + HEAD_BYTES_MAX as u64;

/// The users that may connect to a port. The kernel attests the user of a connecting process.
///
/// With [`Reach::Fabric`] the same rule holds for other machines, by name. Their own node vouches for the names of a user
/// and its groups, so root on a node of the fabric can connect as any user of that node. A user or a group without a name
/// matches nobody of another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admit {
    /// Processes of the port owner's user, and of root.
    #[default]
    SameUser,
    /// The same processes, and members of this group.
    Group(u32),
    /// Every user of this machine.
    Everyone,
}

/// From where a port can be reached. Connecting to other ports needs neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// From its own machine.
    #[default]
    Machine,
    /// From every node of the fabric that its machine's node belongs to (`bywire up`), for whom [`Admit`] lets in.
    Fabric,
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
    /// The users that may connect. Each user other than the owner gets at most an eighth of `peers_max`. Its long
    /// messages under way fill at most an eighth of the buffers posted for a priority. It gets at least one of both.
    pub admit: Admit,
    /// The machines from which they may connect.
    pub reach: Reach,
    /// Check every payload end to end with CRC32C, in both directions. On if either end requests it. A payload
    /// that fails the check ends the connection. If it was put into a region, the range is then undefined.
    /// Between machines every packet is checked in any case, and a damaged one is sent again.
    pub integrity: bool,
    /// The longest message that this port accepts, in bytes (up to 2^40).
    pub message_bytes_max: u64,
    /// Asynchronous transfers that may be outstanding, for each priority (1 to 256). A token is free as soon as its
    /// completion is queued. So it does not bound the completions that wait for a program that takes no events.
    pub send_tokens: u32,
    /// Receive buffers that may be posted, for each priority.
    pub receive_tokens: u32,
    /// Memory from which one peer may lend blocks to this port, in bytes. All peers of another user share this amount.
    pub borrow_bytes_max: u64,
    /// The maximum number of connections. Peers of one other machine get at most three quarters of them, whatever users that
    /// machine says they have, and at most 64 that have not sent anything yet.
    pub peers_max: u32,
    /// The maximum number of peers with a large window, a bulk area of 4 MiB for one peer. A peer gets one once the small
    /// bulk area is a bottleneck for what is sent to it, and keeps it while it is connected. 0: none. Each other user
    /// gets at most an eighth of them, and at least one.
    pub large_window_peers_max: u32,
    /// The longest time that [`crate::Port::wait`] spins before it sleeps: about the cost of going to sleep and being
    /// woken. It spins less while that does not pay.
    pub spin: Duration,
    /// The interval at which a polled port checks for new peers and for dead ones.
    pub housekeeping_interval: Duration,
    /// The longest time that [`crate::Port::disconnect`] and dropping a port continue until a peer on another machine has
    /// acknowledged everything. Within one machine this takes no time.
    pub linger: Duration,
    /// A peer on another machine is given up once neither it nor its node has answered for this time while something was
    /// to be sent to it. Zero: never. A process that is stopped or does not call the library stays connected.
    pub unreachable_after: Duration,
    /// The sizes of the rings to each peer.
    pub geometry: Geometry,
    /// The longest message that is copied at once to a peer on another machine, where that is longer than a fragment of `geometry`:
    /// up to 65,536 bytes. The peer's memory for messages of high priority has room for four of them.
    pub remote_fragment_bytes: u32,
    /// The runtime directory, in which ports find each other. `None`: `BYWIRE_RUNTIME_DIR`, else `/run/bywire` if it
    /// can be used, else `XDG_RUNTIME_DIR/bywire`, else `/tmp/bywire-UID`.
    pub runtime_directory: Option<PathBuf>,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            name: None,
            admit: Admit::default(),
            reach: Reach::default(),
            integrity: false,
            message_bytes_max: 1 << 40,
            send_tokens: 64,
            receive_tokens: 1024,
            borrow_bytes_max: 1 << 30,
            peers_max: 4096,
            large_window_peers_max: 16,
            spin: Duration::from_micros(50),
            housekeeping_interval: Duration::from_millis(1),
            linger: Duration::from_secs(1),
            unreachable_after: Duration::from_secs(30),
            geometry: Geometry::default(),
            remote_fragment_bytes: 0,
            runtime_directory: None,
        }
    }
}

impl PortOptions {
    /// Defaults for the port with this number.
    pub fn numbered(number: u32) -> Self {
        Self { name: Some(PortName::Number(number)), ..Self::default() }
    }

    /// Defaults for the port with this name. An invalid name is reported when the port is opened.
    pub fn named(name: &str) -> Self {
        Self { name: Some(PortName::Name(name.to_owned())), ..Self::default() }
    }
}
