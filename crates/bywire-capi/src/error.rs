//! The codes that C functions return, and a sentence for each.

use std::ffi::{CStr, c_char, c_int};

/// Results of functions. Success is zero or positive, failure is negative.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bw_error_t {
    /// Done.
    BW_OK = 0,
    /// A pointer was null, a number out of range, or a text not UTF-8; bw_last_error_text says which.
    BW_ERROR_ARGUMENT = -1,
    /// A fault inside the library. From now on all other calls on the port fail: close it.
    BW_ERROR_PANIC = -2,
    /// The kernel refused; bw_last_error_text has its error.
    BW_ERROR_SYSTEM = -3,
    /// The port belongs to the process that forked this one.
    BW_ERROR_FORKED = -4,
    /// An error that this version of the interface has no code for.
    BW_ERROR_UNKNOWN = -5,
    /// Another thread is inside a call on this port, which belongs to one thread at a time.
    BW_ERROR_THREADS = -6,
    /// The part of an address before the slash is not a node's name.
    BW_ERROR_ADDRESS_NODE = -10,
    /// The text is not a port's name or number.
    BW_ERROR_ADDRESS_PORT = -11,
    /// Another living process has the port.
    BW_ERROR_IN_USE = -20,
    /// A dead socket of another user stands in the way.
    BW_ERROR_OTHER_USER = -21,
    /// An option is outside its limits.
    BW_ERROR_OPTION = -22,
    /// The runtime directory cannot be used.
    BW_ERROR_RUNTIME_DIRECTORY = -23,
    /// Another process holds the runtime directory's lock.
    BW_ERROR_LOCKED = -24,
    /// No such node in this fabric.
    BW_ERROR_UNKNOWN_NODE = -30,
    /// No process has opened that port.
    BW_ERROR_NO_PORT = -31,
    /// The port's owner does not admit this user.
    BW_ERROR_NOT_ADMITTED = -32,
    /// The other end did not answer in time.
    BW_ERROR_TIMED_OUT = -33,
    /// A port cannot be its own peer.
    BW_ERROR_OWN_PORT = -34,
    /// This port has as many peers as its options allow.
    BW_ERROR_TOO_MANY_PEERS = -35,
    /// The other end's user keeps too much memory of connections that have ended.
    BW_ERROR_MEMORY_KEPT = -36,
    /// Only this machine can be reached: its node does not run, or cannot be used.
    BW_ERROR_NO_FABRIC = -37,
    /// The other machine's node does not answer.
    BW_ERROR_UNREACHABLE = -38,
    /// Both nodes agreed, but no packet passes between the two ports.
    BW_ERROR_BLOCKED = -39,
    /// The other end speaks another version of the protocol.
    BW_ERROR_REFUSED_VERSION = -40,
    /// The other end has as many peers as it allows.
    BW_ERROR_REFUSED_TOO_MANY_PEERS = -41,
    /// The other end could not verify this port.
    BW_ERROR_REFUSED_UNVERIFIED = -42,
    /// The other end did not accept the offered memory.
    BW_ERROR_REFUSED_BAD_OFFER = -43,
    /// The other end has run out of descriptors or memory.
    BW_ERROR_REFUSED_NO_RESOURCES = -44,
    /// The other end closed the connection before it was made.
    BW_ERROR_REFUSED_CLOSED = -45,
    /// Programs of this user keep too much of the other end's memory from connections that have ended.
    BW_ERROR_REFUSED_MEMORY_KEPT = -46,
    /// There is no room in the lane to that peer now.
    BW_ERROR_FULL = -50,
    /// All send tokens of this priority are in use.
    BW_ERROR_NO_TOKEN = -51,
    /// The message is longer than the target or this call accepts.
    BW_ERROR_TOO_LONG = -52,
    /// The handle names no connection.
    BW_ERROR_NO_PEER = -53,
    /// The handshake is not over yet.
    BW_ERROR_CONNECTING = -54,
    /// A datagram was dropped, and counted, for lack of room.
    BW_ERROR_DROPPED = -55,
    /// All receive tokens of this priority are in use.
    BW_ERROR_NO_RECEIVE_TOKEN = -56,
    /// The peer closed its port.
    BW_ERROR_DISCONNECTED_CLOSED = -60,
    /// The peer's process ended.
    BW_ERROR_DISCONNECTED_DIED = -61,
    /// The peer broke the protocol.
    BW_ERROR_DISCONNECTED_BROKEN = -62,
    /// A payload from the peer was corrupted.
    BW_ERROR_DISCONNECTED_CORRUPTED = -63,
    /// The connection was ended on this side.
    BW_ERROR_DISCONNECTED_HERE = -64,
    /// The peer's machine has not answered for long.
    BW_ERROR_DISCONNECTED_UNREACHABLE = -65,
    /// The peer's node was removed from the fabric.
    BW_ERROR_DISCONNECTED_REMOVED = -66,
    /// The key names no region, or one that was revoked.
    BW_ERROR_BAD_KEY = -70,
    /// The region does not grant this right.
    BW_ERROR_NO_RIGHT = -71,
    /// The range exceeds the region.
    BW_ERROR_OUT_OF_RANGE = -72,
    /// Every block of the heap is lent.
    BW_ERROR_NO_BLOCK = -80,
    /// The block is not from a heap shared with this peer.
    BW_ERROR_OTHER_PEER = -81,
    /// A heap's sizes are zero or over the limit.
    BW_ERROR_HEAP_SIZE = -82,
    /// The peer is on another machine, so nothing can be lent to it.
    BW_ERROR_OTHER_MACHINE = -83,
}

use bw_error_t::*;

impl bw_error_t {
    /// Every code.
    pub const ALL: [Self; 52] = [
        BW_OK,
        BW_ERROR_ARGUMENT,
        BW_ERROR_PANIC,
        BW_ERROR_SYSTEM,
        BW_ERROR_FORKED,
        BW_ERROR_UNKNOWN,
        BW_ERROR_THREADS,
        BW_ERROR_ADDRESS_NODE,
        BW_ERROR_ADDRESS_PORT,
        BW_ERROR_IN_USE,
        BW_ERROR_OTHER_USER,
        BW_ERROR_OPTION,
        BW_ERROR_RUNTIME_DIRECTORY,
        BW_ERROR_LOCKED,
        BW_ERROR_UNKNOWN_NODE,
        BW_ERROR_NO_PORT,
        BW_ERROR_NOT_ADMITTED,
        BW_ERROR_TIMED_OUT,
        BW_ERROR_OWN_PORT,
        BW_ERROR_TOO_MANY_PEERS,
        BW_ERROR_MEMORY_KEPT,
        BW_ERROR_NO_FABRIC,
        BW_ERROR_UNREACHABLE,
        BW_ERROR_BLOCKED,
        BW_ERROR_REFUSED_VERSION,
        BW_ERROR_REFUSED_TOO_MANY_PEERS,
        BW_ERROR_REFUSED_UNVERIFIED,
        BW_ERROR_REFUSED_BAD_OFFER,
        BW_ERROR_REFUSED_NO_RESOURCES,
        BW_ERROR_REFUSED_CLOSED,
        BW_ERROR_REFUSED_MEMORY_KEPT,
        BW_ERROR_FULL,
        BW_ERROR_NO_TOKEN,
        BW_ERROR_TOO_LONG,
        BW_ERROR_NO_PEER,
        BW_ERROR_CONNECTING,
        BW_ERROR_DROPPED,
        BW_ERROR_NO_RECEIVE_TOKEN,
        BW_ERROR_DISCONNECTED_CLOSED,
        BW_ERROR_DISCONNECTED_DIED,
        BW_ERROR_DISCONNECTED_BROKEN,
        BW_ERROR_DISCONNECTED_CORRUPTED,
        BW_ERROR_DISCONNECTED_HERE,
        BW_ERROR_DISCONNECTED_UNREACHABLE,
        BW_ERROR_DISCONNECTED_REMOVED,
        BW_ERROR_BAD_KEY,
        BW_ERROR_NO_RIGHT,
        BW_ERROR_OUT_OF_RANGE,
        BW_ERROR_NO_BLOCK,
        BW_ERROR_OTHER_PEER,
        BW_ERROR_HEAP_SIZE,
        BW_ERROR_OTHER_MACHINE,
    ];

    /// The code as C functions return it.
    pub fn code(self) -> c_int {
        self as c_int
    }

    /// What happened and what to do.
    pub fn text(self) -> &'static CStr {
        match self {
            BW_OK => c"done",
            BW_ERROR_ARGUMENT => {
                c"bad argument: a null pointer, a number out of range or a text that is not UTF-8"
            }
            BW_ERROR_PANIC => c"a fault inside the library: close the port, and report what it printed",
            BW_ERROR_SYSTEM => c"the system refused: descriptors or memory may have run out",
            BW_ERROR_FORKED => c"this port belongs to the parent process: open one here",
            BW_ERROR_UNKNOWN => {
                c"an error that this version of the C interface does not know: update bywire.h"
            }
            BW_ERROR_THREADS => {
                c"two threads are inside calls on one port: a port belongs to one thread at a time"
            }
            BW_ERROR_ADDRESS_NODE => {
                c"not a node's name: use letters, digits, `-`, `_` and `.`, 48 at most, before the slash"
            }
            BW_ERROR_ADDRESS_PORT => {
                c"not a port: use a number up to 4294967295, or a name that begins with a letter"
            }
            BW_ERROR_IN_USE => c"the port is open already: choose another one, or close it there",
            BW_ERROR_OTHER_USER => {
                c"the port was left behind by another user: that user or root must remove its socket"
            }
            BW_ERROR_OPTION => c"an option is outside its limits: see the text of the last error",
            BW_ERROR_RUNTIME_DIRECTORY => {
                c"cannot use the runtime directory: set BYWIRE_RUNTIME_DIR to one that you may write"
            }
            BW_ERROR_LOCKED => {
                c"another process has held the lock of the runtime directory for two seconds: try again"
            }
            BW_ERROR_UNKNOWN_NODE => {
                c"no such node in this fabric: use `localhost` or a node that the fabric names"
            }
            BW_ERROR_NO_PORT => c"nobody listens there: start the other end first, or check the address; a port is open to other machines only if its options say so",
            BW_ERROR_NOT_ADMITTED => {
                c"the port does not admit this user: its owner can open it for a group or for everyone"
            }
            BW_ERROR_TIMED_OUT => c"no answer in time: the other end may be stopped, or it does not poll",
            BW_ERROR_OWN_PORT => c"a port cannot connect to itself: open another one",
            BW_ERROR_TOO_MANY_PEERS => c"this port has as many peers as its options allow: raise peers_max",
            BW_ERROR_MEMORY_KEPT => {
                c"the other end's user keeps too much memory of connections that have ended: end the programs that do"
            }
            BW_ERROR_NO_FABRIC => c"only this machine can be reached: `bywire up` starts its node",
            BW_ERROR_UNREACHABLE => {
                c"the other machine's node does not answer: check that the machine is up, and that `bywire up` runs there"
            }
            BW_ERROR_BLOCKED => {
                c"no packet passes between the two ports: let UDP through the firewalls between the machines"
            }
            BW_ERROR_REFUSED_VERSION => c"the other end speaks another version: use the same library on both",
            BW_ERROR_REFUSED_TOO_MANY_PEERS => {
                c"the other end has as many peers as it allows: raise peers_max there"
            }
            BW_ERROR_REFUSED_UNVERIFIED => c"the other end could not verify this port: open it again",
            BW_ERROR_REFUSED_BAD_OFFER => c"the other end refused the offered memory: check the geometry",
            BW_ERROR_REFUSED_NO_RESOURCES => c"the other end has run out of descriptors or memory: try later",
            BW_ERROR_REFUSED_CLOSED => c"the other end closed the connection before it was established: try again",
            BW_ERROR_REFUSED_MEMORY_KEPT => {
                c"programs of this user keep too much of the other end's memory from connections that have ended: end them"
            }
            BW_ERROR_FULL => {
                c"no room towards that peer now: poll or wait until there is room, then try again"
            }
            BW_ERROR_NO_TOKEN => c"all send tokens of this priority are in use: poll until one comes back",
            BW_ERROR_TOO_LONG => c"the message is longer than the target accepts, or than this call carries",
            BW_ERROR_NO_PEER => c"no such peer: use the handle of a connection",
            BW_ERROR_CONNECTING => c"still connecting: poll until the peer has answered",
            BW_ERROR_DROPPED => c"no room: the datagram was dropped",
            BW_ERROR_NO_RECEIVE_TOKEN => {
                c"all receive tokens of this priority are in use: poll until a message takes a buffer"
            }
            BW_ERROR_DISCONNECTED_CLOSED => c"the peer closed its port: connect again when it is back",
            BW_ERROR_DISCONNECTED_DIED => c"the peer's process ended: connect again when it is back",
            BW_ERROR_DISCONNECTED_BROKEN => c"the peer broke the protocol, and the connection was given up",
            BW_ERROR_DISCONNECTED_CORRUPTED => {
                c"a payload from the peer was corrupted, and the connection was given up"
            }
            BW_ERROR_DISCONNECTED_HERE => c"the connection was ended on this side: connect again",
            BW_ERROR_DISCONNECTED_UNREACHABLE => {
                c"the peer's machine no longer answers: check that it is up, and the network between"
            }
            BW_ERROR_DISCONNECTED_REMOVED => c"the peer's node was removed from the fabric",
            BW_ERROR_BAD_KEY => c"the key is unknown there or has been revoked: ask for a new one",
            BW_ERROR_NO_RIGHT => c"the region does not grant this right: its owner must register it with that right",
            BW_ERROR_OUT_OF_RANGE => c"the range exceeds the region: check offset and length",
            BW_ERROR_NO_BLOCK => c"every block of the heap is lent: poll until one comes back",
            BW_ERROR_OTHER_PEER => {
                c"the block is not from a heap shared with this peer: use that peer's heap"
            }
            BW_ERROR_HEAP_SIZE => {
                c"a heap has 1 to 1024 blocks of 64 bytes to 1 GiB, and a peer at most 16 heaps"
            }
            BW_ERROR_OTHER_MACHINE => {
                c"the peer is on another machine, so nothing can be lent to it: send or put instead"
            }
        }
    }
}

/// The sentence for a code: what happened and what to do. Never null, valid forever.
#[unsafe(no_mangle)]
pub extern "C" fn bw_error_text(code: c_int) -> *const c_char {
    let known = bw_error_t::ALL.into_iter().find(|known| known.code() == code);
    known.map_or(c"no code of this interface", bw_error_t::text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_each_has_its_own_sentence() {
        for (place, code) in bw_error_t::ALL.iter().enumerate() {
            assert!(code.text().to_str().is_ok_and(|text| !text.is_empty()));
            for other in &bw_error_t::ALL[..place] {
                assert!(other.code() != code.code() && other.text() != code.text(), "{code:?} {other:?}");
            }
        }
    }
}
