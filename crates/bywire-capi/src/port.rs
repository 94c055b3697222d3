//! Ports and their peers.

use std::collections::HashSet;
use std::ffi::{CString, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bywire::{Address, Owner, Peer, PeerInfo, Port};

use crate::call_guard::{CallGuard, State};
use crate::error::bw_error_t::BW_ERROR_THREADS;
use crate::event_memory::EventMemory;
use crate::failure::{Failure, answer, shielded, text_at};
use crate::handle::{Handle, null, place};
use crate::options::{self, bw_port_options_t};
use crate::sized::{self, Plain};

/// One connection of a port; 0 is none. A new incarnation of the same peer gets a new handle.
pub type bw_peer_t = u64;

/// A protected message endpoint. It belongs to one thread at a time and may move between threads.
pub struct bw_port_t {
    pub(crate) port: Port,
    /// The memory that the last event points to.
    pub(crate) held: EventMemory,
    /// The addresses of the C program's posted memory.
    pub(crate) posted: HashSet<usize>,
    state: State,
    name: CString,
    address: CString,
    runtime_directory: Option<CString>,
}

impl Handle for bw_port_t {
    const NAME: &'static str = "port";
}

impl bw_port_t {
    fn of(port: Port) -> Self {
        // None of these texts holds a zero byte: names have their alphabet, and a path with one cannot be opened.
        let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
        let directory = port.options().runtime_directory.as_ref();
        Self {
            name: text(port.name().to_string().as_bytes()),
            address: text(port.address().to_string().as_bytes()),
            runtime_directory: directory.map(|path| text(path.as_os_str().as_encoded_bytes())),
            held: EventMemory::Nothing,
            posted: HashSet::new(),
            state: State::default(),
            port,
        }
    }
}

/// Counters of a port, since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_statistics_t {
    /// Datagrams that found no room and were dropped at this end.
    pub datagrams_unsent: u64,
    /// Datagrams that arrived damaged and were dropped.
    pub datagrams_damaged: u64,
    /// Incoming connections that were turned away.
    pub refused: u64,
    /// Times that the port slept.
    pub sleeps: u64,
}

/// Information about a peer. The kernel attests the identity of a peer of this machine, its own node that of another.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_peer_info_t {
    /// Its node and port, as text.
    pub address: [c_char; 128],
    /// A number that differs between incarnations of the same port.
    pub incarnation: u64,
    /// The longest message that it accepts, in bytes.
    pub message_bytes_max: u64,
    /// Its process in our pid namespace; 0 if it is in a namespace that we cannot see, or on another machine.
    pub pid: i32,
    /// Its user; UINT32_MAX for a peer on another machine.
    pub uid: u32,
    /// 1: payloads are checked end to end.
    pub integrity: u32,
    /// Zero.
    pub reserved: u32,
    /// The name of its user there, or a number if it has none, for a peer on another machine; else empty. Its node
    /// vouches for it: whoever is root there can be any of its users.
    pub user: [c_char; 264],
}

// SAFETY: four integers of one size.
unsafe impl Plain for bw_statistics_t {}
// SAFETY: integers, and the next lines check that their sizes add up to the whole.
unsafe impl Plain for bw_peer_info_t {}
const _: () = assert!(size_of::<bw_statistics_t>() == STATISTICS_BYTES_LEAST);
const _: () = assert!(size_of::<bw_peer_info_t>() == PEER_INFO_BYTES_LEAST + 264);

/// The structures' sizes in the first version.
const STATISTICS_BYTES_LEAST: usize = 32;
const PEER_INFO_BYTES_LEAST: usize = 128 + 2 * 8 + 4 * 4;

/// Runs the body of a call on a port. After a panic inside, all other calls on the port fail.
///
/// # Safety
/// As for [`Handle::borrow_mut`].
#[inline(always)]
pub unsafe fn with(
    port: *mut bw_port_t,
    body: impl FnOnce(&mut bw_port_t) -> Result<c_int, Failure>,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise. Only the field is used here, as the port may be in use by another thread.
        let state = unsafe { state_of(port)? };
        let call = CallGuard::begin(state)?;
        // SAFETY: the caller's promise. If a second thread breaks it, `begin` has turned that thread away.
        let result = body(unsafe { bw_port_t::borrow_mut(port)? });
        call.end();
        result
    })
}

/// The word that says whether a call works on the port.
///
/// # Safety
/// `port` is null or an open port; other fields may be in use by another thread.
#[inline(always)]
unsafe fn state_of<'a>(port: *mut bw_port_t) -> Result<&'a State, Failure> {
    if port.is_null() {
        return Err(null(bw_port_t::NAME));
    }
    // SAFETY: not null, so an open port by the caller's promise. The field is an atomic, and no reference to the
    // whole value is made here. Another thread inside holds such a reference only if the program breaks its promise.
    Ok(unsafe { &(*port).state })
}

/// Opens a port on this node and stores its handle. NULL `options` are the defaults.
///
/// # Safety
/// `options` is null or filled by bw_port_options_init, with texts that end in a zero byte. `port` is null or
/// valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_port_open(options: *const bw_port_options_t, port: *mut *mut bw_port_t) -> c_int {
    answer(|| {
        // SAFETY: the caller's promises.
        let (target, options) = unsafe { (place(port, "port")?, options::read(options)?) };
        let port = Port::open(options)?;
        target.write(bw_port_t::of(port).give());
        Ok(0)
    })
}

/// Closes a port. Its peers see BW_ERROR_DISCONNECTED_CLOSED. Afterwards the library touches none of the program's memory.
/// The handle and everything that events pointed to are no longer valid, except lent messages, heaps and blocks.
///
/// # Safety
/// `port` is null or a port that was not closed before, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_port_close(port: *mut bw_port_t) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        if unsafe { state_of(port)? }.is_busy() {
            return Err(BW_ERROR_THREADS.into());
        }
        // SAFETY: the caller's promise.
        drop(unsafe { bw_port_t::take(port)? });
        Ok(0)
    })
}

/// The port's name, as a text that is valid until the port is closed. NULL for a null port.
///
/// # Safety
/// `port` is null or an open port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_port_name(port: *const bw_port_t) -> *const c_char {
    shielded(std::ptr::null(), || {
        // SAFETY: the caller's promise.
        let port = unsafe { bw_port_t::borrow(port) };
        port.map_or(std::ptr::null(), |port| port.name.as_ptr())
    })
}

/// The port's address, `node/port`, as a text that is valid until the port is closed. NULL for a null port.
///
/// # Safety
/// `port` is null or an open port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_port_address(port: *const bw_port_t) -> *const c_char {
    shielded(std::ptr::null(), || {
        // SAFETY: the caller's promise.
        let port = unsafe { bw_port_t::borrow(port) };
        port.map_or(std::ptr::null(), |port| port.address.as_ptr())
    })
}

/// The options that the port was opened with. Their texts are valid until the port is closed. `size_bytes` is sizeof
/// *options.
///
/// # Safety
/// `port` is null or an open port; `options` is null or valid for writes of `size_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_port_options(
    port: *const bw_port_t,
    options: *mut bw_port_options_t,
    size_bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let port = unsafe { bw_port_t::borrow(port)? };
        let name = port.port.options().name.as_ref().map(|_| &port.name);
        let described = options::describe(port.port.options(), [name, port.runtime_directory.as_ref()]);
        // SAFETY: the caller's promise.
        unsafe { options::write(described, options, size_bytes) }
    })
}

/// The port's counters. `size_bytes` is sizeof *statistics.
///
/// # Safety
/// `port` is null or an open port; `statistics` is null or valid for writes of `size_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_port_statistics(
    port: *const bw_port_t,
    statistics: *mut bw_statistics_t,
    size_bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let counted = unsafe { bw_port_t::borrow(port)? }.port.statistics();
        let value = bw_statistics_t {
            datagrams_unsent: counted.datagrams_unsent,
            datagrams_damaged: counted.datagrams_damaged,
            refused: counted.refused,
            sleeps: counted.sleeps,
        };
        // SAFETY: the caller's promise.
        unsafe { sized::write(&value, statistics, size_bytes, STATISTICS_BYTES_LEAST)? };
        Ok(0)
    })
}

/// A descriptor that becomes readable, after bw_arm has returned 1, as soon as there may be an event. It belongs to
/// the port: watch it, but do not read or close it. A negative result is a bw_error_t.
///
/// # Safety
/// `port` is null or an open port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_descriptor(port: *const bw_port_t) -> c_int {
    // SAFETY: the caller's promise.
    answer(|| Ok(unsafe { bw_port_t::borrow(port)? }.port.as_fd().as_raw_fd()))
}

/// Connects to `node/port` and waits for the answer, at most `timeout_us` microseconds (BW_FOREVER: without end).
/// Serves other ports meanwhile. The other end answers when it polls. Two ports of one thread need bw_connect_start.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; `address` is null or a text; `peer` is null or
/// valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_connect(
    port: *mut bw_port_t,
    address: *const c_char,
    timeout_us: i64,
    peer: *mut bw_peer_t,
) -> c_int {
    let connect = |port: &mut bw_port_t| {
        // SAFETY: the caller's promises.
        let (target, address) = unsafe { (place(peer, "peer")?, text_at(address, "address")?) };
        // A thousand years are forever, and overflow no clock.
        let timeout = u64::try_from(timeout_us).map_or(Duration::MAX, Duration::from_micros);
        let timeout = timeout.min(Duration::from_secs(1 << 35));
        let connected = port.port.connect(&address.parse::<Address>()?, timeout)?;
        target.write(peer_bits(connected));
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, connect) }
}

/// Begins to connect: BW_EVENT_CONNECTED or BW_EVENT_DISCONNECTED follows.
///
/// # Safety
/// As for bw_connect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_connect_start(
    port: *mut bw_port_t,
    address: *const c_char,
    peer: *mut bw_peer_t,
) -> c_int {
    let connect = |port: &mut bw_port_t| {
        // SAFETY: the caller's promises.
        let (target, address) = unsafe { (place(peer, "peer")?, text_at(address, "address")?) };
        target.write(peer_bits(port.port.connect_start(&address.parse::<Address>()?)?));
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, connect) }
}

/// Ends a connection. Messages that the peer has sent already are dropped. The peer sees BW_ERROR_DISCONNECTED_CLOSED. For an
/// unknown peer it does nothing, which is no error. What was sent to a peer on another machine goes on for `linger_ns` at
/// most, in the calls that follow; BW_EVENT_DISCONNECTED comes then.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_disconnect(port: *mut bw_port_t, peer: bw_peer_t) -> c_int {
    let disconnect = |port: &mut bw_port_t| {
        port.port.disconnect(peer_of(peer));
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, disconnect) }
}

/// Information about a peer. BW_ERROR_NO_PEER while it connects, and once its BW_EVENT_DISCONNECTED has been taken.
/// `size_bytes` is sizeof *info.
///
/// # Safety
/// `port` is null or an open port; `info` is null or valid for writes of `size_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_peer_info(
    port: *const bw_port_t,
    peer: bw_peer_t,
    info: *mut bw_peer_info_t,
    size_bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let port = unsafe { bw_port_t::borrow(port)? };
        let known = port.port.peer_info(peer_of(peer)).ok_or(bywire::SendError::NoPeer)?;
        // SAFETY: the caller's promise.
        unsafe { sized::write(&describe(known), info, size_bytes, PEER_INFO_BYTES_LEAST)? };
        Ok(0)
    })
}

/// Stores the handles of at most `peers_max` connected peers and returns how many are connected.
///
/// # Safety
/// `port` is null or an open port; `peers` is valid for writes of `peers_max` handles, or null when that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_peers(port: *const bw_port_t, peers: *mut bw_peer_t, peers_max: usize) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let port = unsafe { bw_port_t::borrow(port)? };
        if peers.is_null() && peers_max > 0 {
            return Err(Failure::argument("peers is null"));
        }
        let mut count = 0;
        for peer in port.port.peers() {
            if count < peers_max {
                // SAFETY: within what the caller promised.
                unsafe { peers.add(count).write(peer_bits(peer)) };
            }
            count += 1;
        }
        c_int::try_from(count).map_err(|_| Failure::argument("more peers than an int counts"))
    })
}

fn describe(known: &PeerInfo) -> bw_peer_info_t {
    let mut info = bw_peer_info_t {
        address: [0; 128],
        incarnation: known.incarnation,
        message_bytes_max: known.message_bytes_max,
        pid: known.pid().unwrap_or(0),
        uid: known.uid().unwrap_or(u32::MAX),
        integrity: u32::from(known.integrity),
        reserved: 0,
        user: [0; 264],
    };
    write_text(&mut info.address, &known.address.to_string());
    if let Owner::Remote { user } = &known.owner {
        write_text(&mut info.user, user);
    }
    info
}

/// Writes a text. The last byte stays zero.
fn write_text(target: &mut [c_char], text: &str) {
    let room = target.len() - 1;
    for (target, byte) in target[..room].iter_mut().zip(text.bytes()) {
        *target = byte as c_char;
    }
}

/// A peer as C sees it: never 0, as generations count from 1.
#[inline(always)]
pub fn peer_bits(peer: Peer) -> bw_peer_t {
    peer.to_bits()
}

/// The peer with this handle. A handle that was never given out names no peer.
#[inline(always)]
pub fn peer_of(bits: bw_peer_t) -> Peer {
    Peer::from_bits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::bw_error_t::BW_ERROR_PANIC;

    #[test]
    fn after_a_panic_a_port_can_only_be_closed() {
        let place = tempfile::tempdir().expect("a directory");
        let options = bywire::PortOptions {
            runtime_directory: Some(place.path().to_owned()),
            ..bywire::PortOptions::default()
        };
        let port = bw_port_t::of(Port::open(options).expect("open")).give();
        // SAFETY: an open port, used by this thread alone, and closed once at the end.
        unsafe {
            assert_eq!(bw_disconnect(port, 0), 0);
            assert_eq!(with(port, |_| panic!("on purpose")), BW_ERROR_PANIC.code());
            assert_eq!(bw_disconnect(port, 0), BW_ERROR_PANIC.code());
            assert_eq!(bw_port_close(port), 0);
        }
    }
}
