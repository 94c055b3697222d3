//! Questions to the kernel: the limits, byte counts, options and readiness of a socket.

use core::mem::MaybeUninit;
use core::net::IpAddr;

pub use crate::os::clock::now_ns;
use crate::os::{errno, own_call, real, small_file};

/// The byte counts that the kernel keeps of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCounts {
    /// `TCP_ESTABLISHED`: neither end has finished.
    pub is_established: bool,
    /// Bytes that the program has given to the kernel to send.
    pub given: u64,
    /// Bytes that the program has read from the kernel.
    pub taken: u64,
    /// All counts are from the same moment.
    pub is_steady: bool,
}

/// Whether this process may make a file of this length. Exceeding the limit ends a process by a signal, for memory
/// files too.
pub fn may_file_have(length_bytes: u64) -> bool {
    limit(libc::RLIMIT_FSIZE) >= length_bytes
}

/// Whether this process may make a descriptor with that number. A descriptor that is open already may lie above the
/// limit.
pub fn may_make(fd: i32) -> bool {
    u64::try_from(fd).is_ok_and(|fd| fd < limit(libc::RLIMIT_NOFILE))
}

/// No descriptor of this process has a higher number: its table has no place for one, as the kernel says, or its limit
/// was never higher.
pub fn highest_possible() -> u32 {
    const NAME: &[u8] = b"FDSize:";
    let mut text = [0; 1024];
    let table = small_file::read(&[b"/proc/self/status"], &mut text).and_then(|text| {
        let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(NAME))?;
        core::str::from_utf8(line.get(NAME.len()..)?).ok()?.trim().parse().ok()
    });
    table.unwrap_or_else(|| u32::try_from(limit(libc::RLIMIT_NOFILE)).unwrap_or(u32::MAX))
}

fn limit(kind: libc::__rlimit_resource_t) -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: valid for writes; zeros are a value.
    unsafe { if libc::getrlimit(kind, limit.as_mut_ptr()) == 0 { limit.assume_init().rlim_cur } else { 0 } }
}

/// The length of a file.
pub fn length_bytes(fd: i32) -> Option<u64> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: valid for writes; zeros are a value.
    unsafe { (libc::fstat(fd, found.as_mut_ptr()) == 0).then(|| found.assume_init().st_size as u64) }
}

/// Offsets in `struct tcp_info` of linux/tcp.h, which only ever grows at its end.
const SEGMENT_BYTES: usize = 16;
const UNACKNOWLEDGED: usize = 24;
const CONGESTION_WINDOW: usize = 80;
const ACKNOWLEDGED: usize = 120;
const RECEIVED: usize = 128;
const NOT_SENT: usize = 144;
const SENT: usize = 200;
const SENT_AGAIN: usize = 208;
const END: usize = 216;
const WINDOW: usize = 228;

const TCP_SYN_SENT: u8 = 2;
/// From asm-generic/socket.h.
const SO_PEERNAME: i32 = 28;
const TCP_CLOSE: u8 = 7;
/// `TCP_TIME_WAIT`, `TCP_CLOSE`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK` and `TCP_CLOSING`: the other end has finished. A
/// connection that was reset is in `TCP_CLOSE` without such an end, and nothing more can be received from it.
const HAS_END: [u8; 5] = [6, TCP_CLOSE, 8, 9, 11];

/// Bytes may arrive between two questions to the kernel. After this many attempts the counts are reported as not from
/// the same moment.
const LOOKS: u32 = 64;

/// The byte counts of `fd`, from which nobody reads meanwhile. `None`: the kernel does not keep them.
pub fn byte_counts(fd: i32) -> Option<ByteCounts> {
    let mut before = queued(fd)?;
    for _ in 0..LOOKS {
        let (account, after) = (byte_counts_beside(fd, before)?, queued(fd)?);
        if before == after {
            return Some(account);
        }
        before = after;
    }
    Some(ByteCounts { is_steady: false, ..byte_counts_beside(fd, before)? })
}

/// An option that moves received bytes by mapping their pages, and its request, struct tcp_zerocopy_receive, up to the
/// number of bytes that are left. Without room for an error, the kernel takes none from the socket.
pub const TCP_ZEROCOPY_RECEIVE: i32 = 35;
const ZEROCOPY_LEFT: usize = 16;

/// What the kernel reports as left to receive: the bytes, and one for the end of the stream. `None`: it is a page or more,
/// or the kernel is too old.
pub fn left(fd: i32) -> Option<usize> {
    let mut request = [0; ZEROCOPY_LEFT + 4];
    errno::keep(|| match option(fd, libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &mut request) {
        Some(_) => {
            let left = request.last_chunk().copied().map(u32::from_ne_bytes)?;
            Some(left as usize)
        }
        // Nothing but the end is left.
        None if errno::last() == libc::EIO => Some(1),
        None => None,
    })
}

/// Returns whether the other end of a TCP connection has finished, or the connection was reset.
pub fn has_end(fd: i32) -> bool {
    let mut state = [0u8; 1];
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state) == Some(1) && HAS_END.contains(&state[0])
}

fn byte_counts_beside(fd: i32, queued: i32) -> Option<ByteCounts> {
    let mut information = [0u8; 256];
    let length = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut information)?;
    if length < END {
        return None;
    }
    let wide = |at: usize| {
        information.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes)
    };
    let has_end = information.first().is_some_and(|state| HAS_END.contains(state));
    let not_sent = information.get(NOT_SENT..NOT_SENT + 4)?.try_into().ok().map(u32::from_ne_bytes)?;
    Some(ByteCounts {
        is_established: information.first() == Some(&1),
        given: wide(SENT)?.wrapping_sub(wide(SENT_AGAIN)?).wrapping_add(not_sent.into()),
        // The kernel counts the end of the stream as a byte received, but not as a byte that waits.
        taken: wide(RECEIVED)?.wrapping_sub(queued as u64).saturating_sub(has_end.into()),
        is_steady: true,
    })
}

/// The bytes that were written to a TCP socket, by what the other end has acknowledged and what waits for that, up to a
/// constant of the connection. Unlike the count of [`byte_counts`] it is exact where the network or this machine loses
/// packets. `None`: the kernel does not tell.
pub fn written(fd: i32) -> Option<u64> {
    let acknowledged = || {
        let mut information = [0u8; 256];
        let length = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut information)?;
        let bytes = information.get(ACKNOWLEDGED..ACKNOWLEDGED + 8).filter(|_| length >= ACKNOWLEDGED + 8)?;
        bytes.try_into().ok().map(u64::from_ne_bytes)
    };
    let mut before = acknowledged()?;
    for _ in 0..LOOKS {
        let (waiting, after) = (queued_to_send(fd)?, acknowledged()?);
        if before == after {
            return Some(after.wrapping_add(waiting as u64));
        }
        before = after;
    }
    None
}

/// Returns whether the other end of a TCP connection has finished, and nothing but that end follows the `taken` bytes that were
/// received. After a reset the kernel counts no end.
pub fn has_finished_behind(fd: i32, taken: u64) -> bool {
    let mut information = [0u8; 256];
    let length = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut information);
    let received = information
        .get(RECEIVED..RECEIVED + 8)
        .filter(|_| length.is_some_and(|length| length >= RECEIVED + 8));
    let received = received.and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
    received.is_some_and(|received| received == taken.wrapping_add(1))
}

/// Returns whether a TCP socket is connecting.
pub fn is_connecting(fd: i32) -> bool {
    let mut state = [0u8; 1];
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state) == Some(1) && state == [TCP_SYN_SENT]
}

/// Returns whether a TCP socket has no connection, is not about to have one, and does not listen.
pub fn is_closed(fd: i32) -> bool {
    let mut state = [0u8; 1];
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state) == Some(1) && state == [TCP_CLOSE]
}

/// Bytes that wait in the kernel to be received.
pub fn queued(fd: i32) -> Option<i32> {
    let mut queued = 0i32;
    let _own = own_call::begin()?;
    // SAFETY: FIONREAD writes one int.
    let status = unsafe { real::ioctl(fd, libc::FIONREAD as usize, (&raw mut queued).cast()) };
    (status == 0).then_some(queued)
}

/// An unknown flag of `preadv2`: the kernel checks the buffers, and then refuses the call.
const NO_READ: usize = 1 << 30;

/// Whether the kernel refuses these buffers because of their lengths, at whatever addresses.
pub fn refuses(fd: i32, parts: *const libc::iovec, count: usize) -> bool {
    let Some(_own) = own_call::begin() else { return true };
    // SAFETY: the program's list, or one of this library's, and no byte is read.
    errno::keep(|| unsafe {
        real::syscall(libc::SYS_preadv2, fd as usize, parts as usize, count, usize::MAX, usize::MAX, NO_READ);
        matches!(errno::last(), libc::EFAULT | libc::EINVAL)
    })
}

/// Reads a socket option. Returns the number of bytes that the kernel has written.
pub fn option(fd: i32, level: i32, name: i32, value: &mut [u8]) -> Option<usize> {
    let mut length = value.len() as libc::socklen_t;
    let _own = own_call::begin()?;
    // SAFETY: the kernel writes at most `length` bytes.
    let status = unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    (status == 0).then_some(length as usize)
}

/// Reads a socket option that is an int.
pub fn number(fd: i32, level: i32, name: i32) -> Option<i32> {
    let mut value = [0; 4];
    option(fd, level, name, &mut value)?;
    Some(i32::from_ne_bytes(value))
}

/// Whether the socket has a filter. The kernel returns the length of a classic one, and does not let others be read.
pub fn has_filter(fd: i32) -> bool {
    match option(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []) {
        Some(length) => length > 0,
        None => errno::last() == libc::EACCES,
    }
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO` in nanoseconds; `None`: no limit.
pub fn timeout_ns(fd: i32, name: i32) -> Option<u64> {
    let mut value = [0; 16];
    option(fd, libc::SOL_SOCKET, name, &mut value)?;
    let (seconds, rest) = value.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map(i64::from_ne_bytes).unwrap_or(0);
    let total = (word(seconds) as u64).saturating_mul(1_000_000_000).saturating_add(word(rest) as u64 * 1000);
    (total > 0).then_some(total)
}

/// Returns whether the descriptor is non-blocking.
pub fn is_nonblocking(fd: i32) -> bool {
    has_flag(fd, libc::O_NONBLOCK)
}

/// Returns whether a signal reports what happens on the descriptor.
pub fn is_signalled(fd: i32) -> bool {
    has_flag(fd, libc::O_ASYNC)
}

fn has_flag(fd: i32, flag: i32) -> bool {
    let Some(_own) = own_call::begin() else { return false };
    // SAFETY: no pointers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & flag != 0
}

/// Whether somebody has set `SO_LINGER`.
pub fn lingers(fd: i32) -> bool {
    linger_seconds(fd).is_some()
}

/// The seconds of `SO_LINGER`; `None`: nobody has set it.
pub fn linger_seconds(fd: i32) -> Option<i32> {
    let mut value = [0; size_of::<libc::linger>()];
    option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut value)?;
    let (is_on, seconds) = value.split_at(4);
    let word = |bytes: &[u8]| bytes.try_into().map(i32::from_ne_bytes).unwrap_or(0);
    (word(is_on) != 0).then_some(word(seconds))
}

/// `SO_BUF_LOCK` of asm-generic/socket.h, and its bits `SOCK_SNDBUF_LOCK` and `SOCK_RCVBUF_LOCK`.
pub const BUFFERS_SET: i32 = 72;
const SNDBUF_SET: i32 = 1;
const RCVBUF_SET: i32 = 2;

/// A program's settings for the buffers of a socket. 0: none.
pub struct BufferBounds {
    /// `SO_SNDBUF`.
    pub sends: u32,
    /// `SO_RCVBUF`.
    pub receives: u32,
    /// `TCP_NOTSENT_LOWAT`.
    pub unsent: u32,
}

/// The program's settings for the buffers of this socket. Linux before 5.14 does not tell who has set the first two.
pub fn buffer_bounds(fd: i32) -> BufferBounds {
    let found = |level: i32, name: i32| number(fd, level, name).unwrap_or(0) as u32;
    let set = found(libc::SOL_SOCKET, BUFFERS_SET) as i32;
    let if_set = |bit: i32, name: i32| if set & bit != 0 { found(libc::SOL_SOCKET, name) } else { 0 };
    BufferBounds {
        sends: if_set(SNDBUF_SET, libc::SO_SNDBUF),
        receives: if_set(RCVBUF_SET, libc::SO_RCVBUF),
        unsent: found(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    }
}

/// `SO_MEMINFO` of asm-generic/socket.h, and the place of `SK_MEMINFO_SNDBUF` in it.
const MEMORY: i32 = 55;
const MAY_SEND: usize = 12;

/// What a domain counts against the send buffer: the place of `SK_MEMINFO_WMEM_ALLOC` or `SK_MEMINFO_WMEM_QUEUED`.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Room {
    /// Memory that was allocated for what is sent.
    Allocated = 8,
    /// What is queued.
    Queued = 20,
}

/// The number of bytes that the kernel takes at once, in addition to what it holds.
pub fn room(fd: i32, counted: Room) -> usize {
    let mut value = [0; 36];
    if option(fd, libc::SOL_SOCKET, MEMORY, &mut value)
        .is_none_or(|length| length < Room::Queued as usize + 4)
    {
        return 0;
    }
    let word = |at: usize| {
        let bytes = value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes) as usize
    };
    let room = without_overhead(word(MAY_SEND).saturating_sub(word(counted as usize)));
    if let Room::Allocated = counted {
        return room;
    }
    // A limit on unsent bytes applies whatever room there is.
    match number(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).unwrap_or(0) as u32 as usize {
        0 => room,
        unsent_max => room.min(unsent_max - 1),
    }
}

/// An upper bound of what the kernel accounts for this many bytes: it takes whole pieces until the limit is exceeded.
fn with_overhead(bytes: usize) -> usize {
    bytes + bytes / 8 + OVERHEAD_BYTES
}

/// The number of bytes for which the kernel accounts no more than this.
fn without_overhead(bytes: usize) -> usize {
    bytes.saturating_sub(OVERHEAD_BYTES) / 9 * 8
}

/// The most that the kernel accounts for a piece in addition to an eighth of it.
const OVERHEAD_BYTES: usize = 4096;

/// Raises the send buffer of a socket that is about to end by this many bytes, if this process may.
pub fn make_room(fd: i32, bytes: usize) {
    let held = queued_to_send(fd).unwrap_or(0).max(0) as usize;
    // The kernel doubles the value.
    set_number(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, with_overhead(bytes + held) as i32);
    set_number(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, -1);
}

/// Whether the next byte to be received is urgent.
pub fn is_at_mark(fd: i32) -> bool {
    /// From linux/sockios.h.
    const SIOCATMARK: usize = 0x8905;
    let mut found = 0i32;
    let Some(_own) = own_call::begin() else { return false };
    // SAFETY: the request writes one int.
    let status = unsafe { real::ioctl(fd, SIOCATMARK, (&raw mut found).cast()) };
    status == 0 && found != 0
}

/// Sends what the kernel holds back for a fuller segment, by Nagle's algorithm or `TCP_CORK`. The options stay as they
/// are.
pub fn push(fd: i32) {
    // Setting this option sends what is held back, even if it is set already.
    let before = number(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    set_number(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if before == Some(0) {
        set_number(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 0);
    }
}

/// An end of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Own,
    /// The other end, also while the socket connects, and after its connection was reset.
    Peer,
}

/// The address of an end. `None`: there is none.
pub fn address(fd: i32, end: Named) -> Option<IpAddr> {
    let mut found = [0u8; size_of::<libc::sockaddr_storage>()];
    match end {
        // The kernel refuses to write more room than the address has.
        Named::Peer => {
            let lengths = [size_of::<libc::sockaddr_in6>(), size_of::<libc::sockaddr_in>()];
            lengths.into_iter().find_map(|length| {
                errno::keep(|| option(fd, libc::SOL_SOCKET, SO_PEERNAME, found.get_mut(..length)?))
            })?;
        }
        Named::Own => {
            let mut length = found.len() as libc::socklen_t;
            // SAFETY: room for any address, whose length the kernel bounds.
            let status =
                errno::keep(|| unsafe { libc::getsockname(fd, found.as_mut_ptr().cast(), &raw mut length) });
            if status != 0 {
                return None;
            }
        }
    }
    address_in(&found)
}

/// The address in the bytes of a `sockaddr`, if it is one of the internet and has a port.
pub fn address_in(bytes: &[u8]) -> Option<IpAddr> {
    let (family, rest) = bytes.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    if *port == [0; 2] {
        return None;
    }
    match i32::from(libc::sa_family_t::from_ne_bytes(*family)) {
        libc::AF_INET => rest.first_chunk::<4>().map(|four| IpAddr::from(*four)),
        // Behind the flow.
        libc::AF_INET6 => rest.get(4..)?.first_chunk::<16>().map(|six| IpAddr::from(*six).to_canonical()),
        _ => None,
    }
}

/// Returns whether the peer of a TCP socket is at a loopback address, or unknown.
pub fn is_on_loopback(fd: i32) -> bool {
    address(fd, Named::Peer).is_none_or(|address| address.is_loopback())
}

/// Resets a TCP connection. Its descriptor stays, without a connection.
pub fn break_off(fd: i32) {
    linger(fd, Some(0));
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: a live address.
    errno::keep(|| unsafe { real::connect(fd, &raw const nobody, size_of_val(&nobody) as u32) });
}

/// Returns whether the program has asked the kernel to hold back what does not fill a segment.
pub fn is_corked(fd: i32) -> bool {
    number(fd, libc::IPPROTO_TCP, libc::TCP_CORK).is_some_and(|value| value != 0)
}

/// Whether the kernel sends this many bytes as soon as it is given them: the other end's window has room for all of
/// them, and so has the congestion window.
pub fn sends_at_once(fd: i32, bytes: usize) -> bool {
    let mut information = [0u8; 256];
    let length = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut information);
    let Some(queued) = queued_to_send(fd).filter(|_| length.is_some_and(|length| length >= WINDOW + 4))
    else {
        return false;
    };
    let word = |at: usize| {
        let bytes = information.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes) as usize
    };
    // Bytes that are held back may be part of a segment, and so may later ones.
    let segments = (word(NOT_SENT) + bytes).div_ceil(word(SEGMENT_BYTES).max(1)) + 1;
    queued as usize + bytes <= word(WINDOW) && word(UNACKNOWLEDGED) + segments <= word(CONGESTION_WINDOW)
}

/// Sets a socket option that is an int, if the kernel allows it.
fn set_number(fd: i32, level: i32, name: i32, value: i32) {
    let length = size_of_val(&value) as u32;
    // SAFETY: a live int.
    errno::keep(|| unsafe { real::setsockopt(fd, level, name, (&raw const value).cast(), length) });
}

/// Bytes that the kernel was given and that the other end's kernel has not taken.
fn queued_to_send(fd: i32) -> Option<i32> {
    let mut queued = 0i32;
    // SAFETY: TIOCOUTQ writes one int.
    let status = unsafe { real::ioctl(fd, libc::TIOCOUTQ as usize, (&raw mut queued).cast()) };
    (status == 0).then_some(queued)
}

/// Sets `SO_LINGER`.
pub fn linger(fd: i32, seconds: Option<i32>) {
    let Some(_own) = own_call::begin() else { return };
    let value = libc::linger { l_onoff: seconds.is_some().into(), l_linger: seconds.unwrap_or(0) };
    // SAFETY: a live structure of the size given.
    errno::keep(|| unsafe {
        real::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const value).cast(),
            size_of_val(&value) as u32,
        )
    });
}

/// What `poll` reports at once for these events.
pub fn ready(fd: i32, events: i16) -> i16 {
    wait(fd, events, 0).unwrap_or(0)
}

/// What `poll` reports within this many milliseconds; `Err` with the error number.
pub fn wait(fd: i32, events: i16, timeout_ms: i32) -> Result<i16, i32> {
    let mut file = libc::pollfd { fd, events, revents: 0 };
    let own = own_call::begin().ok_or(libc::EINTR)?;
    if timeout_ms != 0 {
        // Nobody can wake the thread: `poll` returns by itself, and the kernel never restarts it.
        drop(own);
    }
    // SAFETY: one live entry.
    match unsafe { real::poll(&raw mut file, 1, timeout_ms) } {
        status if status < 0 => Err(errno::last()),
        _ => Ok(file.revents),
    }
}

/// What `poll` reports before this time, or without a limit if there is none; `Err` with the error number, `EAGAIN` at
/// the time.
pub fn wait_until(fd: i32, events: i16, deadline_ns: Option<u64>) -> Result<i16, i32> {
    let left_ns = deadline_ns.map(|deadline| deadline.saturating_sub(now_ns()));
    let timeout_ms = left_ns.map_or(-1, |left| left.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
    match wait(fd, events, timeout_ms)? {
        0 if deadline_ns.is_some_and(|deadline| deadline <= now_ns()) => Err(libc::EAGAIN),
        found => Ok(found),
    }
}
