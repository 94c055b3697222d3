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

use core::sync::atomic::Ordering;

use bywire_pairing::protocol::{link, place};
use bywire_pairing::reason::Reason;

use crate::connection::domain::Domain;
use crate::connection::sockets::{self, Socket};
use crate::connection::{fallback, policy};
use crate::memory::arena::stage;
use crate::memory::descriptors::{self, DescriptorKind};
use crate::memory::lock::{Lock, rank};
use crate::os::{errno, kernel, real};
use crate::pairing::offer;

/// The highest number of a descriptor that a program inherits and that is looked for.
const INHERITED_MAX: i32 = 1 << 10;

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
    admit_required(socket).map_err(|_| libc::EPIPE)
}

#[inline(never)]
fn admit_required(socket: &Socket) -> Result<(), i32> {
    let shared = socket.shared;
    // Acquire: pairs with the release store in `open`. The stage comes first, so what was decided is seen behind it.
    let is_decided = shared.stage.load(Ordering::Acquire) != stage::HELD;
    if is_decided && shared.is_required.load(Ordering::Relaxed) == 0 || socket.is_carried() {
        return Ok(());
    }
    errno::keep(|| {
        let _held = DECIDING.hold_undisturbed();
        decide(socket)
    })
}

/// The caller holds the lock: another thread may have decided meanwhile.
fn decide(socket: &Socket) -> Result<(), i32> {
    let shared = socket.shared;
    // Acquire: pairs with the stores of the stage in `open` and `offer::prepare`.
    match shared.stage.load(Ordering::Acquire) {
        stage::CARRIED => return Ok(()),
        stage::HELD => {}
        _ if shared.is_required.load(Ordering::Relaxed) == 0 => return Ok(()),
        // It was refused.
        _ => return Err(libc::ECONNRESET),
    }
    let ends = [libc::getsockname, libc::getpeername].map(|name| kernel::address(socket.fd, name));
    let [Some(own), Some(peer)] = ends else {
        // The kernel has the right error, unless it is about to connect: then the call would wait for that, and send.
        return if kernel::is_connecting(socket.fd) { Err(libc::EAGAIN) } else { Ok(()) };
    };
    let is_near = peer.is_loopback() || peer == own;
    let found = if is_near { Some(place::ELSEWHERE) } else { offer::locate(peer) };
    if found == Some(place::ELSEWHERE) {
        open(socket);
        // Until now no call counted as one of the first, which go to the kernel without a look.
        shared.calls.store(0, Ordering::Relaxed);
        return Ok(());
    }
    shared.is_required.store(1, Ordering::Relaxed);
    open(socket);
    let is_far = || shared.link.load(Ordering::Relaxed) == link::FABRIC;
    if found == Some(place::NODE) && offer::carry(socket) && is_far() {
        return Ok(());
    }
    socket.stay(Reason::Required);
    kernel::break_off(socket.fd);
    Err(libc::ECONNRESET)
}

/// Lets it be a socket like any other.
fn open(socket: &Socket) {
    // Release: pairs with the acquire loads of the stage. What was decided is stored before.
    socket.shared.stage.store(stage::PLAIN, Ordering::Release);
}

/// A socket was made, or a connection was accepted. Returns the error because of which the program must not have it.
pub fn refuses_new(fd: i32) -> Option<i32> {
    if !policy::is_required() || fd < 0 {
        return None;
    }
    match sockets::socket(fd) {
        Some(socket) => admit(&socket).err().map(|_| libc::ECONNABORTED),
        // The library has no record left.
        None => (errno::keep(|| Domain::of(fd)) == Some(Domain::Tcp)).then_some(libc::EMFILE),
    }
}

/// Before a connect. `Err`: the error number with which it fails.
pub fn before_connect(fd: i32) -> Result<(), i32> {
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
            Ok(())
        }
        _ => Err(libc::EOPNOTSUPP),
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
        let _refused = admit(&socket);
    }
    fallback::to_kernel(fd, reason);
}

/// Before other programs get the sockets that `each` visits: none of them may use one that has to be carried.
pub fn before_passing(each: impl Fn(&mut dyn FnMut(&Socket))) {
    if policy::is_required() {
        each(&mut |socket| _ = admit(socket));
    }
}

/// Tracks the TCP sockets that this program was started with.
pub fn track_inherited() {
    if policy::is_required() {
        (0..INHERITED_MAX).for_each(track_received);
    }
}

/// Tracks a socket that another program has passed to this one.
pub fn track_received(fd: i32) {
    if policy::is_required()
        && fd >= 0
        && descriptors::kind(fd) == DescriptorKind::Untracked
        && errno::keep(|| Domain::of(fd)) == Some(Domain::Tcp)
    {
        sockets::track(fd, false);
    }
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
