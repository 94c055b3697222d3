//! What the part that carries frames is told, and what it tells.
//!
//! The two parts are processes joined by a packet socket. The carrying one has no privilege: whatever needs one,
//! a device, an address, a file, is done by the other, and only what is listed here can be asked for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::deferred::Foreign;
use bywire_sys::socket::{Received, Socket};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::announced::Announced;
use crate::drops::Drops;
use crate::switch::LaneId;

/// The longest order or answer.
pub const BYTES_MAX: usize = 16 * 1024;

/// What the carrying part is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// How to work; comes first, and again when something changes.
    Work(Manner),
    /// Carry frames for an interface. The queue of its TAP comes along.
    Adopt(Adoption),
    /// Carry frames for one more queue of this interface, which comes along.
    Widen(LaneId),
    /// Stop doing so, and close the queues.
    Release(LaneId),
    /// Answer with [`Answer::Counts`] of this lane.
    Count(LaneId),
    /// The MTU of this lane is another now.
    Resize(LaneId, u32),
    /// Meet the other processes of the network.
    Join(Join),
    /// Answer with [`Answer::Peer`] of this place among the processes that were met.
    Peer(usize),
    /// Send copies of frames to the socket that comes along, instead of whoever got them before.
    Watch,
    /// Answer with [`Answer::Confined`].
    Confess,
    /// Answer with [`Answer::Done`]: all orders before have been carried out.
    Settle,
}

/// What the carrying part tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Asked for by [`Order::Count`].
    Counts(Box<Counts>),
    /// Asked for by [`Order::Peer`]: who is there, if anybody, and how many places there are.
    Peer(Option<Box<PeerReport>>, usize),
    /// Asked for by [`Order::Confess`].
    Confined(Confinement),
    /// Asked for by [`Order::Settle`].
    Done,
    /// The TAP of this lane is gone; it is released already.
    Vanished(LaneId),
    /// An order could not be carried out.
    Refused(String),
}

/// What a loop has given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Confinement {
    /// Nothing: it runs as a thread.
    Absent,
    /// Capabilities, files and system calls.
    Enforced {
        /// What this kernel could not enforce.
        but: Option<String>,
    },
}

/// How frames are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manner {
    /// Take as many frames at each wake as there are and merge those of a flow, rather than one by one.
    pub coalesce: bool,
    /// How long to look for the next frame before sleeping, in microseconds.
    pub spin_us: u32,
    /// Broadcasts and multicasts taken from each interface a second.
    pub storm_frames_per_second: u64,
    /// How long a process that takes hardly anything holds back its senders, in milliseconds.
    pub hold_back_ms: u32,
}

/// An interface to carry frames for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// The place it takes.
    pub lane: LaneId,
    /// Its name, for people.
    pub label: String,
    /// Its address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu_bytes: u32,
    /// True when others may stand behind it.
    pub is_bridge: bool,
    /// The TCP superframes that its kernel takes.
    pub takes_tcp: bool,
    /// The UDP superframes that its kernel takes.
    pub takes_udp: bool,
}

/// How the other processes of a network are met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The network's name.
    pub network: String,
    /// What this process is called in it.
    pub node: String,
    /// Which of its loops this is; each meets its like.
    pub queue: usize,
    /// Where ports are kept.
    pub directory: std::path::PathBuf,
}

/// What is known of another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    /// What it is called; empty while it has not said so.
    pub node: String,
    /// Its process, 0 where that cannot be known.
    pub process: i32,
    /// To how many of our loops it has said what it is.
    pub loops_count: usize,
    /// Its first interfaces.
    pub interfaces: Vec<Announced>,
    /// How many it has.
    pub interfaces_count: usize,
    /// Addresses that it claims and somebody else has.
    pub conflicts: Vec<String>,
    /// Frames that went to it.
    pub sent: Traffic,
    /// Frames that came from it.
    pub received: Traffic,
    /// Frames dropped on the way to it, or sent by it against the rules.
    pub drops: Drops,
    /// How often a queue of an interface was held back, since there was no room towards it.
    pub held_back: u64,
}

/// Frames in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames, a superframe counting as one.
    pub frames: u64,
    /// Superframes among them.
    pub superframes: u64,
    /// Bytes of frames.
    pub bytes: u64,
}

/// What a lane has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Which lane.
    pub lane: LaneId,
    /// Frames from the interface, as they went on: those that were merged count as one.
    pub sent: Traffic,
    /// Frames that were delivered to it.
    pub received: Traffic,
    /// Superframes that were cut here for it.
    pub cut: u64,
    /// Frames dropped, by cause: sent by it against the rules, or not deliverable to it.
    pub drops: Drops,
    /// The kernel has refused several TCP superframes while running: they are cut from then on.
    pub refused_tcp: bool,
    /// The same for UDP.
    pub refused_udp: bool,
}

impl Counts {
    /// Adds what another queue of the same interface has done. Whoever counted is not trusted: nothing panics.
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
    /// Adds what went between other loops of the same two processes.
    pub fn add(&mut self, other: &PeerReport) {
        self.loops_count = self.loops_count.saturating_add(other.loops_count);
        self.sent.add(other.sent);
        self.received.add(other.received);
        self.drops += &other.drops;
        self.held_back = self.held_back.wrapping_add(other.held_back);
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

/// Why no order or answer came.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The other part has ended.
    #[error("the other part of this program has ended; why, it says above: run `bywire eth up` again")]
    Ended,
    /// It takes too long.
    #[error("the other part of this program does not answer")]
    Late,
    /// What came is none.
    #[error("the other part of this program says what cannot be understood: {0}")]
    Unreadable(String),
    /// What the kernel said.
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

/// Takes the next answer, if there is one. None comes with a descriptor: whatever does is closed by nobody who waits.
///
/// # Errors
/// [`ExchangeError`].
pub fn receive<T: DeserializeOwned>(socket: &Socket) -> Result<Option<T>, ExchangeError> {
    let mut buffer = [0; BYTES_MAX];
    let received = socket.receive(&mut buffer)?;
    Ok(read(&buffer, received)?.map(|(what, _)| what))
}

/// Takes the next order, if there is one, from whoever has started this part and may well give it descriptors.
///
/// # Errors
/// [`ExchangeError`].
pub fn receive_order(socket: &Socket) -> Result<Option<(Order, Option<OwnedFd>)>, ExchangeError> {
    let mut buffer = [0; BYTES_MAX];
    // Without its file where there is no room for one more: whoever sent it is told so.
    let received = socket.receive_from_own(&mut buffer)?;
    let order = read(&buffer, received)?;
    Ok(order.map(|(order, files)| (order, files.into_iter().next().map(Foreign::into_inner))))
}

fn read<T: DeserializeOwned>(
    buffer: &[u8],
    received: Received,
) -> Result<Option<(T, Vec<Foreign>)>, ExchangeError> {
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

/// What others have said, without what a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Waits for the next order or answer.
///
/// # Errors
/// [`ExchangeError::Late`] when none comes within `patience`.
pub fn await_next<T: DeserializeOwned>(socket: &Socket, patience: Duration) -> Result<T, ExchangeError> {
    let deadline = Instant::now() + patience;
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
    fn what_cannot_be_understood_does_not_rule_the_terminal() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        for said in ["\"\\u001b[2J\"", "\u{1b}[2J", "{\"\\u009b2J\\n\":1}"] {
            theirs.send(said.as_bytes(), &[]).expect("sent");
            let error = receive::<Answer>(&ours).expect_err("no answer").to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
