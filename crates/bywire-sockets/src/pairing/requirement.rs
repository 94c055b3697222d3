//! `bywire run --engine require`: no byte of a connection with another node of the fabric goes through the kernel, which would
//! send it in clear.
//!
//! Each TCP socket is *held* until its connection is known:
//!
//! | the other end | what follows |
//! | --- | --- |
//! | on this machine, or on none of the fabric | the connection goes on as without the requirement |
//! | on another node | the engine gives memory at once. What is sent waits there until the two engines have agreed, or have given up |
//! | on another node, and something is in the way | the connection is reset, and the call fails |
//!
//! This is decided when a connection is accepted, when `connect` returns, when the program asks how a connect has ended, and at
//! the latest at its first call that moves data.

use core::net::IpAddr;
use core::sync::atomic::Ordering;

use bywire_pairing::protocol::{link, place};
use bywire_pairing::reason::Reason;

use crate::connection::sockets::{self, Socket};
use crate::connection::{fallback, policy};
use crate::datagram::sockets as datagrams;
use crate::memory::arena::stage;
use crate::memory::lock::{Lock, rank};
use crate::os::{errno, kernel, real};
use crate::pairing::offer;

/// How long a call waits for the pairing service and the engine, altogether.
const LIMIT_NS: u64 = 1_000_000_000;

static DECIDING: Lock<{ rank::DECIDING }> = Lock::new();

/// Lets a call that moves data go on with this socket. `Err`: the error number with which it fails.
#[inline(always)]
pub fn admit(socket: &Socket) -> Result<(), i32> {
    if !policy::is_required() || socket.is_unix() { Ok(()) } else { admit_required(socket) }
}

/// As [`admit`], for a send with these flags.
#[inline(always)]
pub fn admit_send(socket: &Socket, flags: i32) -> Result<(), i32> {
    if !policy::is_required() || socket.is_unix() {
        return Ok(());
    }
    // It would connect, and send before anything is known.
    if flags & libc::MSG_FASTOPEN != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    admit_required(socket).map_err(|number| if number == libc::ECONNRESET { libc::EPIPE } else { number })
}

/// As [`admit`], for a receive with these flags.
#[inline(always)]
pub fn admit_receive(socket: &Socket, flags: i32) -> Result<(), i32> {
    admit(socket)?;
    // An urgent byte of a connection that must not go through the kernel is nobody's.
    let is_urgent = flags & libc::MSG_OOB != 0;
    if is_urgent && socket.shared.is_required.load(Ordering::Relaxed) != 0 {
        Err(libc::EINVAL)
    } else {
        Ok(())
    }
}

#[inline(never)]
fn admit_required(socket: &Socket) -> Result<(), i32> {
    let shared = socket.shared;
    // Acquire: pairs with the release store in `open`. The stage comes first, so what was decided is seen behind it.
    let is_decided = shared.stage.load(Ordering::Acquire) != stage::HELD;
    if is_decided && shared.is_required.load(Ordering::Relaxed) == 0 || socket.is_carried() {
        return Ok(());
    }
    errno::keep(|| decide(socket))
}

fn decide(socket: &Socket) -> Result<(), i32> {
    let end_ns = kernel::now_ns().saturating_add(LIMIT_NS);
    // A socket without a peer never had one, and the kernel moves nothing over it.
    let Some(peer) = kernel::address(socket.fd, kernel::Named::Peer) else { return Ok(()) };
    let found = place_of(socket.fd, peer, end_ns);
    let _held = DECIDING.hold_undisturbed();
    let shared = socket.shared;
    // Another thread may have decided meanwhile. Acquire: pairs with the stores of the stage in `open` and `offer::prepare`.
    match shared.stage.load(Ordering::Acquire) {
        stage::CARRIED => return Ok(()),
        stage::HELD => {}
        _ if shared.is_required.load(Ordering::Relaxed) == 0 => return Ok(()),
        // It was refused.
        _ => return Err(libc::ECONNRESET),
    }
    if found == Some(place::ELSEWHERE) {
        open(socket);
        // Until now no call counted as one of the first, which go to the kernel without a look.
        shared.calls.store(0, Ordering::Relaxed);
        return Ok(());
    }
    if kernel::is_connecting(socket.fd) {
        return Err(libc::EAGAIN);
    }
    shared.is_required.store(1, Ordering::Relaxed);
    open(socket);
    let is_far = || shared.link.load(Ordering::Relaxed) == link::FABRIC;
    if found == Some(place::NODE) && offer::carry(socket, end_ns) && is_far() {
        return Ok(());
    }
    socket.stay(Reason::Required);
    break_off(socket);
    Err(libc::ECONNRESET)
}

/// Where a peer is: a [`place`]. `None`: nobody says so in time.
fn place_of(fd: i32, peer: IpAddr, end_ns: u64) -> Option<u8> {
    let is_near = peer.is_loopback() || kernel::address(fd, kernel::Named::Own) == Some(peer);
    if is_near { Some(place::ELSEWHERE) } else { offer::locate(peer, end_ns) }
}

/// Lets it be a socket like any other.
fn open(socket: &Socket) {
    // Release: pairs with the acquire loads of the stage. What was decided is stored before.
    socket.shared.stage.store(stage::PLAIN, Ordering::Release);
}

/// Resets it, unless another thread has closed it and its number means another file.
fn break_off(socket: &Socket) {
    if socket.is_current() {
        kernel::break_off(socket.fd);
    }
}

/// A socket was made, or a connection was accepted. Returns the error because of which the program must not have it.
pub fn refuses_new(fd: i32) -> Option<i32> {
    if !policy::is_required() || fd < 0 {
        return None;
    }
    match sockets::socket(fd) {
        Some(socket) => admit(&socket).err().map(|_| libc::ECONNABORTED),
        None => errno::keep(|| refusal_of_untracked(fd)),
    }
}

/// The library has no record left for a TCP socket. Others that speak TCP to most peers, as those of MPTCP and SMC do, it never
/// has.
fn refusal_of_untracked(fd: i32) -> Option<i32> {
    /// `AF_SMC` of linux/socket.h.
    const SMC: i32 = 43;
    let found = |name: i32| kernel::number(fd, libc::SOL_SOCKET, name);
    let is_internet = [libc::AF_INET, libc::AF_INET6, SMC].map(Some).contains(&found(libc::SO_DOMAIN));
    let is_stream = is_internet && found(libc::SO_TYPE) == Some(libc::SOCK_STREAM);
    match found(libc::SO_PROTOCOL) {
        _ if !is_stream => None,
        Some(libc::IPPROTO_SCTP) => None,
        Some(libc::IPPROTO_TCP) => Some(libc::EMFILE),
        _ => Some(libc::EPROTONOSUPPORT),
    }
}

/// Before a connect to an address, if it is one of the internet. `Err`: the error number with which it fails.
pub fn before_connect(fd: i32, address: Option<IpAddr>) -> Result<(), i32> {
    if !policy::is_required() {
        return Ok(());
    }
    let Some(socket) = sockets::socket(fd).filter(|socket| !socket.is_unix()) else { return Ok(()) };
    if errno::keep(|| !kernel::is_closed(fd)) {
        return Ok(());
    }
    // It may have been connected before, to somebody else.
    // Acquire: pairs with the release stores of the stage.
    match socket.shared.stage.load(Ordering::Acquire) {
        stage::PLAIN | stage::HELD => {
            socket.shared.calls.store(policy::calls_min(), Ordering::Relaxed);
            // Release: pairs with the acquire loads of the stage.
            socket.shared.stage.store(stage::HELD, Ordering::Release);
            socket.shared.is_required.store(0, Ordering::Relaxed);
        }
        _ => return Err(libc::EOPNOTSUPP),
    }
    // What keeps it in the kernel may do so past the hooks, so nothing would stop it once it is connected.
    let is_kernels = socket.shared.never.load(Ordering::Relaxed) != 0;
    let end_ns = kernel::now_ns().saturating_add(LIMIT_NS);
    let is_free = |address| errno::keep(|| place_of(fd, address, end_ns)) == Some(place::ELSEWHERE);
    if is_kernels && address.is_some_and(|address| !is_free(address)) {
        Err(libc::ECONNREFUSED)
    } else {
        Ok(())
    }
}

/// A connect has ended, or is known to have ended, in order. Returns the error with which it ends instead, if it must.
pub fn after_connect(fd: i32) -> Option<i32> {
    if !policy::is_required() {
        return None;
    }
    let socket = sockets::socket(fd)?;
    // One that connects again may not have ended.
    admit(&socket).err().filter(|error| *error != libc::EAGAIN).map(|_| libc::ECONNREFUSED)
}

/// Keeps a socket in the kernel, or returns it there, for a call that rings cannot make. If it must not go there, it is reset.
pub fn to_kernel(fd: i32, reason: Reason) {
    if policy::is_required()
        && let Some(socket) = sockets::socket(fd)
    {
        before_unseen(&socket);
    }
    if datagrams::are_any() {
        datagrams::stay(fd, reason);
    }
    fallback::to_kernel(fd, reason);
}

/// From here on calls may move data over this socket that are not seen. One that is carried is returned to the kernel next, which
/// resets it.
pub fn before_unseen(socket: &Socket) {
    if admit(socket) == Err(libc::EAGAIN) {
        socket.stay(Reason::Required);
        break_off(socket);
    }
}

/// A forked child has no other thread that could be deciding.
pub fn after_fork_in_child() {
    DECIDING.reset();
}

/// Ends this program, whose calls the library would not see from here on, for this reason.
pub fn end_program(reason: Reason) -> ! {
    let parts: [&[u8]; 3] =
        [b"bywire: ended, as `--engine require` cannot be kept: ", reason.text().as_bytes(), b"\n"];
    for part in parts {
        // SAFETY: a live buffer.
        unsafe { real::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: nothing of the program runs any more.
    unsafe { libc::_exit(126) }
}
