//! `BYWIRE_LOG`: a line in a file for every connection that has ended, for people and for `bywire run --explain`.
//!
//! The file is opened again for each line. A descriptor that stayed open would be one more that programs close, inherit
//! or pass on.

use core::ffi::c_char;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bywire_pairing::protocol::LOG_PATH_BYTES_MAX;
use bywire_pairing::reason::Reason;

use crate::connection::outcome::{self, Outcome};
use crate::connection::sockets::{self, STREAM, Socket};
use crate::os::{errno, kernel, own_call, real};

/// The longest path, with its terminator.
const PATH_BYTES: usize = LOG_PATH_BYTES_MAX + 1;
/// The longest line.
const LINE_BYTES: usize = 512;

static PATH: [AtomicU8; PATH_BYTES] = [const { AtomicU8::new(0) }; PATH_BYTES];
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Sets the path of the file. A path that is too long disables the log.
pub fn configure(path: &[u8]) {
    if path.is_empty() || path.len() >= PATH_BYTES {
        return;
    }
    PATH.iter().zip(path).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
    // Release: pairs with the acquire load in `is_wanted`. The path is written before.
    IS_WANTED.store(true, Ordering::Release);
}

/// Returns whether there is a file for the lines.
pub fn is_wanted() -> bool {
    // Acquire: pairs with the release store in `configure`.
    IS_WANTED.load(Ordering::Acquire)
}

/// Writes the line of a connection. The last descriptor of `socket` is about to be closed.
pub fn ending(socket: &Socket) {
    if is_wanted() {
        errno::keep(|| tell(socket));
    }
}

/// Writes a line about the whole program: `reason` holds for all its connections from here on. `object` is the
/// path of the object that is the cause, or empty.
pub fn program(reason: Reason, object: &str) {
    if is_wanted() {
        let mut line = Line { bytes: [0; LINE_BYTES], length: 0 };
        // SAFETY: no arguments.
        let pid = unsafe { libc::getpid() };
        let space = if object.is_empty() { "" } else { " " };
        if writeln!(line, "{pid} {reason:?} - - 0 0 0 0{space}{object}").is_ok() {
            append(line.bytes.get(..line.length).unwrap_or(&[]));
        }
    }
}

#[inline(never)]
fn tell(socket: &Socket) {
    let Some(fate) = outcome::of(socket) else { return };
    let local = name(socket.fd, libc::getsockname);
    let remote = name(socket.fd, libc::getpeername);
    let counted = |count: &core::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let (sent, received) = (counted(&socket.shared.sent), counted(&socket.shared.received));
    let mapped = sockets::by_index(socket.fd, socket.index).and_then(|socket| socket.mapped().ok());
    let [sent_ring, received_ring] = match &mapped {
        Some(connection) if fate == Outcome::Carried => {
            // Returned bytes went through the kernel, and are counted there.
            let returned = connection.shared.returned.load(Ordering::Relaxed);
            [STREAM.tail(&connection.own).wrapping_sub(returned), STREAM.head(&connection.own)]
        }
        _ => [0; 2],
    };
    let mut line = Line { bytes: [0; LINE_BYTES], length: 0 };
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() };
    let written = match fate {
        Outcome::Carried => write!(line, "{pid} carried {local} {remote} "),
        Outcome::Kernel(reason) => write!(line, "{pid} {reason:?} {local} {remote} "),
    };
    let counts = written.and_then(|()| {
        let (all_sent, all_received) = (sent + sent_ring, received + received_ring);
        writeln!(line, "{all_sent} {all_received} {sent_ring} {received_ring}")
    });
    if counts.is_ok() {
        append(line.bytes.get(..line.length).unwrap_or(&[]));
    }
}

/// Appends by one write, so that lines of other processes do not mix with it.
fn append(line: &[u8]) {
    let Some(_own) = own_call::begin() else { return };
    let path: [u8; PATH_BYTES] =
        core::array::from_fn(|at| PATH.get(at).map_or(0, |byte| byte.load(Ordering::Relaxed)));
    // SAFETY: a terminated path and a live slice; the descriptor is closed at once.
    unsafe {
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let path = path.as_ptr().cast::<c_char>();
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0o600) as i32;
        if fd >= 0 {
            let length = kernel::length_bytes(fd).unwrap_or(u64::MAX);
            if kernel::may_file_have(length.saturating_add(line.len() as u64)) {
                real::write(fd, line.as_ptr().cast(), line.len());
            }
            real::close(fd);
        }
    }
}

type Ask = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;

/// An address, or `-`: after a reset the kernel no longer knows the other end's.
enum Name {
    Unknown,
    Internet(SocketAddr),
    /// A Unix address, and the length of its path or of its abstract name.
    Unix(libc::sockaddr_un, usize),
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internet(address) => address.fmt(formatter),
            Self::Unknown => formatter.write_char('-'),
            Self::Unix(address, length) => {
                formatter.write_str("unix:")?;
                let name = address.sun_path.iter().take(*length).map(|byte| *byte as u8);
                // An abstract name begins with a zero. A line is split at its spaces.
                name.enumerate().try_for_each(|(at, byte)| match byte {
                    0 if at == 0 => formatter.write_char('@'),
                    b'!'..=b'~' => formatter.write_char(byte.into()),
                    _ => formatter.write_char('?'),
                })
            }
        }
    }
}

/// The address of one end.
fn name(fd: i32, ask: Ask) -> Name {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: valid for writes of the length given. Zeros are a value of every family's address, and none is longer.
    unsafe {
        if ask(fd, address.as_mut_ptr().cast(), &raw mut length) != 0 {
            return Name::Unknown;
        }
        let address = address.as_ptr();
        match i32::from((*address).ss_family) {
            libc::AF_INET => {
                let inner = &*address.cast::<libc::sockaddr_in>();
                let ip = IpAddr::from(inner.sin_addr.s_addr.to_ne_bytes());
                Name::Internet(SocketAddr::new(ip, u16::from_be(inner.sin_port)))
            }
            libc::AF_INET6 => {
                let inner = &*address.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(inner.sin6_addr.s6_addr).to_canonical();
                Name::Internet(SocketAddr::new(ip, u16::from_be(inner.sin6_port)))
            }
            libc::AF_UNIX => {
                let inner = *address.cast::<libc::sockaddr_un>();
                let given = (length as usize).saturating_sub(size_of::<libc::sa_family_t>());
                // A path ends with a zero, which is counted.
                let is_path = inner.sun_path.first().is_some_and(|first| *first != 0);
                Name::Unix(inner, given.saturating_sub(is_path.into()))
            }
            _ => Name::Unknown,
        }
    }
}

/// Text without allocation. Text that does not fit is an error.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let place = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
