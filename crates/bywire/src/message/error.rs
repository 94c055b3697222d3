//! Errors, one type per operation. Every message says what happened and what to do.

use std::path::PathBuf;

use bywire_sys::Errno;

use crate::message::address::PortName;
use crate::message::buffer::Buffer;

/// Advice about an error, where there is any.
fn help(cause: Errno) -> &'static str {
    match cause {
        Errno::MFILE => ": raise this process's limit of descriptors (`ulimit -n`), or close some",
        Errno::NFILE => ": the machine has as many open files as it allows (`fs.file-max`)",
        Errno::FBIG => {
            ": raise this process's limit of file lengths (`ulimit -f`), which holds for memory as well"
        }
        Errno::NOMEM | Errno::NOSPC => ": this process, its control group or the machine has no memory left",
        _ => "",
    }
}

/// Is a resource missing that is missing in every directory?
pub(crate) fn is_want(cause: Errno) -> bool {
    matches!(cause, Errno::MFILE | Errno::NFILE | Errno::FBIG | Errno::NOMEM | Errno::NOBUFS)
}

/// A port could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another living process has the port.
    #[error("port {0} is open already: choose another one, or close it there")]
    InUse(PortName),
    /// A dead socket of another user stands in the way.
    #[error("port {0} was left behind by another user: that user or root must remove {1}")]
    OtherUser(PortName, PathBuf),
    /// The options contradict a limit.
    #[error("{0}")]
    BadOption(String),
    /// The runtime directory cannot be used.
    #[error(
        "cannot use the runtime directory {path}: {cause}; set BYWIRE_RUNTIME_DIR to one that you may write"
    )]
    RuntimeDirectory {
        /// The directory that was tried.
        path: PathBuf,
        /// The kernel's error.
        cause: Errno,
    },
    /// Another process holds the runtime directory's lock.
    #[error("another process has held the lock of the runtime directory for two seconds: try again")]
    Locked,
    /// A port that other machines are to reach could not be registered with this machine's node.
    #[error("other machines cannot reach this port: {0}")]
    Fabric(NoFabric),
    /// Descriptors or memory have run out, or the kernel lacks something.
    #[error("the system refused: {0}{help}", help = help(*.0))]
    System(Errno),
}

/// Why this machine's node cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoFabric {
    /// No node runs on this machine, or none that uses the port's runtime directory.
    #[error("this machine's node does not run: start it with `bywire up`")]
    NotRunning,
    /// Another user than root or our own serves the node's socket.
    #[error("the node's socket belongs to another user: root or this user has to run `bywire up`")]
    OtherUser,
    /// It does not answer.
    #[error("this machine's node does not answer: see `bywire status`, or start it again")]
    Silent,
    /// It speaks another version of the protocol.
    #[error(
        "this machine's node speaks another version of the protocol: install the same one and start it again"
    )]
    Version,
    /// It could not verify that this process has the port.
    #[error("this machine's node could not verify the port: start both with the same BYWIRE_RUNTIME_DIR")]
    Unverified,
    /// It is in another network namespace, so its machine's packets do not reach this process.
    #[error(
        "this machine's node is in another network namespace: set `lend_network` there, or run `bywire up` in this one, with a runtime directory of its own"
    )]
    OtherNetwork,
    /// It has as many ports and connections of this user as it allows.
    #[error("this machine's node has as many ports and connections of this user as it allows: close some")]
    NoResources,
    /// It broke the protocol.
    #[error("this machine's node broke the protocol: install the same version and start it again")]
    Malformed,
}

/// No connection came about, or it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The fabric has no such node.
    #[error("the fabric has no such node: `bywire status` lists those that it has")]
    UnknownNode,
    /// Only this machine can be reached.
    #[error("only this machine can be reached: {0}")]
    NoFabric(NoFabric),
    /// The other machine's node does not answer.
    #[error(
        "the other machine's node does not answer: check that the machine is up, and that `bywire up` runs there"
    )]
    Unreachable,
    /// Both nodes agreed, but no packet passes between the two ports.
    #[error(
        "no packet passes between the two ports: let UDP through the firewalls between the machines (ports {here} and {there})"
    )]
    Blocked {
        /// The UDP port of this end.
        here: u16,
        /// The UDP port of the other end.
        there: u16,
    },
    /// No process has opened that port.
    #[error(
        "nobody listens there: start the other end first, or check the address; a port is open to other machines only if its options say so"
    )]
    NoPort,
    /// The port's owner does not admit this user.
    #[error("the port does not admit this user: its owner can open it for a group or for everyone")]
    NotAdmitted,
    /// The other end refused the connection.
    #[error("the other end refused: {0}")]
    Refused(Refusal),
    /// The other end did not answer in time. It may be stopped or not polling.
    #[error("no answer in time: the other end may be stopped, or it does not poll")]
    TimedOut,
    /// A port cannot be its own peer.
    #[error("a port cannot connect to itself")]
    OwnPort,
    /// This port has as many peers as its options allow.
    #[error("this port has as many peers as its options allow: raise peers_max")]
    TooManyPeers,
    /// The other end's user keeps too much memory of connections that have ended.
    #[error(
        "the other end's user keeps too much memory of connections that have ended: end the programs that do"
    )]
    MemoryKept,
    /// This process is a forked child of the one that opened the port.
    #[error("this port belongs to the parent process: open one here")]
    Forked,
    /// Descriptors or memory have run out.
    #[error("the system refused: {0}{help}", help = help(*.0))]
    System(Errno),
}

/// Why a port refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The two ports speak different versions.
    #[error("it speaks another version of the protocol")]
    Version,
    /// Its access rule does not admit our user.
    #[error("its access rule does not admit this user")]
    NotAdmitted,
    /// It has as many peers as it allows.
    #[error("it has as many peers as it allows")]
    TooManyPeers,
    /// The source is not the port that it claims to be.
    #[error("the source could not be verified")]
    Unverified,
    /// Announced sizes or offered memory were not acceptable.
    #[error("the offered memory was not acceptable")]
    BadOffer,
    /// It has run out of descriptors or memory.
    #[error("it has run out of descriptors or memory")]
    NoResources,
    /// Programs of our user keep too much of its memory from connections that have ended.
    #[error("programs of this user keep too much of its memory from connections that have ended: end them")]
    MemoryKept,
    /// It closed the connection without giving a reason.
    #[error("it closed the connection")]
    Closed,
}

/// A message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no room in the lane to that peer now: poll or wait until [`crate::Event::Room`], then try again.
    #[error("no room towards that peer now: poll or wait until there is room, then try again")]
    Full,
    /// All send tokens of this priority are in use: poll until one comes back.
    #[error("all send tokens of this priority are in use: poll until one comes back")]
    NoToken,
    /// The target's port accepts no message of this length.
    #[error("the message is longer than the {max} bytes that the target accepts")]
    TooLong {
        /// The target's stated maximum, or the limit of this call.
        max: u64,
    },
    /// The peer has gone, or the connection was given up.
    #[error("not connected: {0}")]
    Disconnected(DisconnectReason),
    /// The handle names a connection that was never made or has been forgotten.
    #[error("no such peer")]
    NoPeer,
    /// The handshake is not over yet: poll until `Event::Connected`.
    #[error("still connecting: poll until the peer has answered")]
    Connecting,
    /// This process is a forked child of the one that opened the port.
    #[error("this port belongs to the parent process: open one here")]
    Forked,
}

/// A transfer that did not begin, with its memory.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unsent {
    /// The reason.
    pub error: SendError,
    /// The memory that was to be sent.
    pub buffer: Buffer,
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// It closed its port.
    #[error("the peer closed its port")]
    Closed,
    /// Its process ended without closing.
    #[error("the peer's process ended")]
    Died,
    /// It broke the rules of the protocol: it sent something impossible, sent more than this port accepts, or tried
    /// more than 1024 keys that were never given out.
    #[error("the peer broke the protocol")]
    Broken,
    /// A payload did not match its check.
    #[error("a payload from the peer was corrupted")]
    Corrupted,
    /// This side ended the connection.
    #[error("this side disconnected")]
    Here,
    /// The handshake failed.
    #[error("cannot connect: {0}")]
    Refused(Refusal),
    /// No connection came about with a port of another machine.
    #[error("cannot connect: {0}")]
    NotConnected(ConnectError),
    /// Neither the peer nor its machine has answered for [`crate::PortOptions::unreachable_after`].
    #[error("the peer's machine no longer answers: check that it is up, and the network between")]
    Unreachable,
    /// The peer's node was removed from the fabric.
    #[error("the peer's node was removed from the fabric")]
    Removed,
}

/// Why a message, a put or a get failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The peer went away before the outcome was certain.
    #[error("disconnected before the transfer was complete: {0}")]
    Disconnected(DisconnectReason),
    /// The key names no region, or one that was revoked.
    #[error("the key is unknown there or has been revoked")]
    BadKey,
    /// The region does not grant this right.
    #[error("the region does not grant this right")]
    NoRight,
    /// The range exceeds the region.
    #[error("the range exceeds the region: check offset and length")]
    OutOfRange,
}

/// Waiting was not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// This process is a forked child of the one that opened the port.
    #[error("this port belongs to the parent process: open one here")]
    Forked,
    /// The kernel refused to wait.
    #[error("the system refused: {0}{help}", help = help(*.0))]
    System(Errno),
}

/// A buffer could not be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LendError {
    /// Every block of the heap is lent: poll until one comes back.
    #[error("every block of the heap is lent: poll until one comes back")]
    NoBlock,
    /// The peer is on another machine, which shares no memory with this one.
    #[error("the peer is on another machine, so nothing can be lent to it: send or put instead")]
    OtherMachine,
    /// The heap belongs to another peer or another port.
    #[error("the buffer is not from a heap shared with this peer")]
    OtherPeer,
    /// Sizes are zero or over the limit.
    #[error("a heap has 1 to 1024 blocks of 64 bytes to 1 GiB, and a peer at most 16 heaps")]
    BadSize,
    /// The peer's user keeps too much memory of connections that have ended.
    #[error("the peer's user keeps too much memory of connections that have ended: end the programs that do")]
    MemoryKept,
    /// The message was not sent, for a reason that holds for any message.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Descriptors or memory have run out.
    #[error("the system refused: {0}{help}", help = help(*.0))]
    System(Errno),
}
