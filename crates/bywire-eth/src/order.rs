//! The orders to the part that carries frames, and its answers.
//!
//! The two parts are processes that share a packet socket. The carrying process has no privileges. The other process
//! makes devices, sets addresses and opens files. The two exchange nothing but the orders and answers listed here.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bywire::PacketCounts;
use bywire_sys::Errno;
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::socket::{Received, Socket};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::announced::Announced;
use crate::drops::Drops;

/// The number of an interface in its process.
pub type InterfaceId = usize;

/// The longest order or answer.
pub const BYTES_MAX: usize = 16 * 1024;

/// An order to the carrying part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Work by these settings. It is the first order, and comes again after a change.
    Configure(CarrierSettings),
    /// Carry frames for an interface. The order brings a queue of its TAP device.
    AddInterface(NewInterface),
    /// Carry frames for one more queue of this interface. The order brings the queue.
    AddQueue(InterfaceId),
    /// Stop carrying frames for this interface, and close its queues.
    RemoveInterface(InterfaceId),
    /// Answer with [`Answer::Counts`] of this interface.
    QueryCounts(InterfaceId),
    /// Change the MTU of this interface.
    SetMtu(InterfaceId, u32),
    /// Announce these IP addresses of this interface.
    SetAddresses(InterfaceId, Vec<IpAddr>),
    /// Connect to the other processes of the network.
    Join(Join),
    /// Let processes of other machines connect. The port has its name in the runtime directory of the node's service by
    /// now.
    ReachFabric,
    /// Connect to the network's processes on these nodes of the fabric, besides those of earlier orders unless these are
    /// the first.
    SeekNodes {
        /// The nodes.
        nodes: Vec<Node>,
        /// True if no other nodes are left of earlier orders.
        is_first: bool,
    },
    /// Answer with [`Answer::Peer`] for this place among the peers.
    QueryPeer(usize),
    /// Send copies of frames to the socket that this order brings. It replaces the previous one.
    Capture,
    /// Answer with [`Answer::Confined`].
    QueryConfinement,
    /// Answer with [`Answer::Done`]. All earlier orders are carried out or refused by then.
    Barrier,
}

/// An answer of the carrying part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The answer to [`Order::QueryCounts`].
    Counts(Box<Counts>),
    /// The answer to [`Order::QueryPeer`]: the peer at this place, if there is one, and the number of places.
    Peer(Option<Box<PeerReport>>, usize),
    /// The answer to [`Order::QueryConfinement`].
    Confined(Confinement),
    /// The answer to [`Order::Barrier`].
    Done,
    /// The TAP device of this interface is gone. The interface is released already.
    Vanished(InterfaceId),
    /// An order that could not be carried out, with the reason.
    Refused(String),
}

/// A node of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// True if there may be hosts behind its interfaces, with addresses of their own.
    pub is_bridge: bool,
}

/// What a loop has given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Confinement {
    /// It gave up nothing: it runs as a thread.
    Absent,
    /// It gave up capabilities, files and system calls.
    Enforced {
        /// The part that this kernel could not enforce.
        but: Option<String>,
    },
}

/// How frames are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarrierSettings {
    /// Read as many frames as there are at each wake-up and merge those of a flow, rather than read one at a time.
    pub coalesce: bool,
    /// How long to poll for the next frame before sleeping, in microseconds.
    pub spin_us: u32,
    /// The limit on broadcasts and multicasts from each interface, per second.
    pub storm_frames_per_second: u64,
    /// How long a process that takes almost nothing holds back its senders, in milliseconds.
    pub hold_back_ms: u32,
}

/// An interface to carry frames for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInterface {
    /// The number of the interface.
    pub interface: InterfaceId,
    /// Its name, for people.
    pub label: String,
    /// Its address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu_bytes: u32,
    /// True if other addresses may be behind the interface.
    pub is_bridge: bool,
    /// True if its kernel accepts TCP superframes.
    pub takes_tcp: bool,
    /// True if its kernel accepts UDP superframes.
    pub takes_udp: bool,
}

/// How to connect to the other processes of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The network's name.
    pub network: String,
    /// The name of this process in the network.
    pub node: String,
    /// The number of this loop. It connects to the loops of the same number.
    pub queue: usize,
    /// The directory of ports.
    pub directory: std::path::PathBuf,
}

/// A report about a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its node name; empty until it has introduced itself.
    pub node: String,
    /// Its process id; 0 if unknown.
    pub process: i32,
    /// The node of the fabric, if it is another machine.
    pub machine: Option<String>,
    /// The number of our loops to which it has introduced itself.
    pub loops_count: usize,
    /// Its first interfaces.
    pub interfaces: Vec<Announced>,
    /// The number of its interfaces.
    pub interfaces_count: usize,
    /// Addresses that it claims and that belong to another interface.
    pub conflicts: Vec<String>,
    /// Frames sent to it.
    pub sent: Traffic,
    /// Frames received from it.
    pub received: Traffic,
    /// Frames to it that were dropped, and invalid frames from it.
    pub drops: Drops,
    /// How often a queue of an interface was held back because there was no room for frames to this peer.
    pub held_back: u64,
    /// Packets to it, if it is on another machine.
    pub packets: Packets,
}

/// Packets to a peer on another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Packets that were sent.
    pub sent: u64,
    /// Calls of the kernel that sent them.
    pub calls: u64,
    /// Packets that were lost.
    pub lost: u64,
}

impl From<PacketCounts> for Packets {
    fn from(counts: PacketCounts) -> Self {
        Self { sent: counts.sent, calls: counts.calls, lost: counts.lost }
    }
}

/// Frames in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The number of frames. A superframe counts as one.
    pub frames: u64,
    /// The number of superframes among them.
    pub superframes: u64,
    /// The bytes of the frames.
    pub bytes: u64,
}

/// The counters of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// The interface.
    pub interface: InterfaceId,
    /// Frames from the interface, after merging: a superframe counts as one.
    pub sent: Traffic,
    /// Frames delivered to the interface.
    pub received: Traffic,
    /// Superframes that were cut for the interface in software.
    pub cut: u64,
    /// Dropped frames, by cause: invalid frames from the interface, and frames that could not be delivered to it.
    pub drops: Drops,
    /// True after the kernel has refused several TCP superframes. From then on, they are cut.
    pub refused_tcp: bool,
    /// The same for UDP.
    pub refused_udp: bool,
}

impl Counts {
    /// Adds the counters of another queue of the same interface. The other counters are not trusted, so no value
    /// panics.
    pub fn add(&mut self, other: &Counts) {
        self.sent.add(other.sent);
        self.received.add(other.received);
        self.cut = self.cut.wrapping_add(other.cut);
        self.drops += &other.drops;
        self.refused_tcp |= other.refused_tcp;
        self.refused_udp |= other.refused_udp;
    }
}

impl PeerReport {
    /// Adds the report of another loop about the same peer.
    pub fn add(&mut self, other: &PeerReport) {
        if self.interfaces_count == 0 {
            // A second connection to the same process, which has introduced itself by that.
            self.interfaces.clone_from(&other.interfaces);
            self.conflicts.clone_from(&other.conflicts);
            self.interfaces_count = other.interfaces_count;
        }
        self.loops_count = self.loops_count.saturating_add(other.loops_count);
        self.sent.add(other.sent);
        self.received.add(other.received);
        self.drops += &other.drops;
        self.held_back = self.held_back.wrapping_add(other.held_back);
        self.packets.sent = self.packets.sent.wrapping_add(other.packets.sent);
        self.packets.calls = self.packets.calls.wrapping_add(other.packets.calls);
        self.packets.lost = self.packets.lost.wrapping_add(other.packets.lost);
    }
}

impl Traffic {
    /// Counts one more frame.
    #[inline]
    pub fn count(&mut self, length_bytes: usize, is_superframe: bool) {
        self.frames += 1;
        self.superframes += u64::from(is_superframe);
        self.bytes += length_bytes as u64;
    }

    fn add(&mut self, other: Traffic) {
        self.frames = self.frames.wrapping_add(other.frames);
        self.superframes = self.superframes.wrapping_add(other.superframes);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }
}

/// Why no order or answer was received.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The other part has ended.
    #[error(
        "the other part of this program has ended: see its message above, then run `bywire eth up` again"
    )]
    Ended,
    /// The other part did not answer in time.
    #[error("the other part of this program does not answer")]
    Late,
    /// The packet is not a valid order or answer.
    #[error("the other part of this program sent an invalid message: {0}")]
    Unreadable(String),
    /// The kernel reported this error.
    #[error("cannot talk to the other part of this program: {0}")]
    System(#[from] Errno),
}

/// Sends an order or an answer, with at most one descriptor.
///
/// # Errors
/// [`ExchangeError`].
pub fn send<T: Serialize>(socket: &Socket, what: &T, file: Option<&OwnedFd>) -> Result<(), ExchangeError> {
    let packet = serde_json::to_vec(what).map_err(|error| ExchangeError::Unreadable(error.to_string()))?;
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    socket.send(&packet, &files).map_err(|error| match error {
        Errno::PIPE | Errno::CONNRESET => ExchangeError::Ended,
        Errno::AGAIN => ExchangeError::Late,
        error => ExchangeError::System(error),
    })
}

/// Receives the next answer, if there is one. Answers carry no descriptors. A received descriptor is closed without
/// delaying this thread.
///
/// # Errors
/// [`ExchangeError`].
pub fn receive<T: DeserializeOwned>(socket: &Socket) -> Result<Option<T>, ExchangeError> {
    let mut buffer = [0; BYTES_MAX];
    let received = socket.receive(&mut buffer)?;
    Ok(read(&buffer, received)?.map(|(what, _)| what))
}

/// Receives the next order, if there is one. Orders come from the trusted process that started this part, and may
/// carry descriptors.
///
/// # Errors
/// [`ExchangeError`].
pub fn receive_order(socket: &Socket) -> Result<Option<(Order, Option<OwnedFd>)>, ExchangeError> {
    let mut buffer = [0; BYTES_MAX];
    // If this process has no room for another descriptor, the order comes without it, and is refused.
    let received = socket.receive_from_own(&mut buffer)?;
    let order = read(&buffer, received)?;
    Ok(order.map(|(order, files)| (order, files.into_iter().next().map(ReceivedFd::into_inner))))
}

fn read<T: DeserializeOwned>(
    buffer: &[u8],
    received: Received,
) -> Result<Option<(T, Vec<ReceivedFd>)>, ExchangeError> {
    match received {
        Received::Packet(length, files) => {
            let what = serde_json::from_slice(&buffer[..length])
                .map_err(|error| ExchangeError::Unreadable(printable(&error.to_string())))?;
            Ok(Some((what, files)))
        }
        Received::Nothing => Ok(None),
        Received::Closed => Err(ExchangeError::Ended),
    }
}

/// Text of another process, with control characters replaced, so that it cannot control a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Waits for the next order or answer.
///
/// # Errors
/// [`ExchangeError::Late`] if none comes within `timeout`.
pub fn await_next<T: DeserializeOwned>(socket: &Socket, timeout: Duration) -> Result<T, ExchangeError> {
    let deadline = Instant::now() + timeout;
    let mut poller = bywire_sys::poller::Poller::new()?;
    poller.add(socket, 0)?;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(ExchangeError::Late);
        }
        if let Some(what) = receive(socket)? {
            return Ok(what);
        }
        poller.wait(Some(rest))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_an_invalid_packet_does_not_control_the_terminal() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        for said in ["\"\\u001b[2J\"", "\u{1b}[2J", "{\"\\u009b2J\\n\":1}"] {
            theirs.send(said.as_bytes(), &[]).expect("sent");
            let error = receive::<Answer>(&ours).expect_err("no answer").to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
