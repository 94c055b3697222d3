//! Questions to the kernel: limits, byte counts, options and readiness of a socket, and the clock.

use core::mem::MaybeUninit;

use crate::os::{own_call, real};

/// Bytes by the kernel's own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCounts {
    /// `TCP_ESTABLISHED`: neither end has finished.
    pub is_established: bool,
    /// Bytes that it was given to send.
    pub given: u64,
    /// Bytes that were taken out of it.
    pub taken: u64,
    /// All of it is of one moment.
    pub is_steady: bool,
}

/// May a file of this process become so long? One that becomes too long ends it by a signal, memory files too.
pub fn may_file_have(length_bytes: u64) -> bool {
    limit(libc::RLIMIT_FSIZE) >= length_bytes
}

/// May this process make a descriptor of that number? One that it has already may lie beyond its limit.
pub fn may_make(fd: i32) -> bool {
    u64::try_from(fd).is_ok_and(|fd| fd < limit(libc::RLIMIT_NOFILE))
}

fn limit(kind: libc::__rlimit_resource_t) -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: valid for writes; noughts are a value.
    unsafe { if libc::getrlimit(kind, limit.as_mut_ptr()) == 0 { limit.assume_init().rlim_cur } else { 0 } }
}

/// How long a file is.
pub fn length_bytes(fd: i32) -> Option<u64> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: valid for writes; noughts are a value.
    unsafe { (libc::fstat(fd, found.as_mut_ptr()) == 0).then(|| found.assume_init().st_size as u64) }
}

/// Places in `struct tcp_info` of linux/tcp.h, which only ever grows at its end.
const RECEIVED: usize = 128;
const NOT_SENT: usize = 144;
const SENT: usize = 200;
const SENT_AGAIN: usize = 208;
const END: usize = 216;

/// `TCP_TIME_WAIT`, `TCP_CLOSE`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK` and `TCP_CLOSING`: the other end has finished. One that was reset
/// is closed without such an end; of that connection nothing is received any more.
const HAS_END: [u8; 5] = [6, 7, 8, 9, 11];

/// Bytes go on arriving while the kernel is asked twice; after so many looks the account is not of one moment.
const LOOKS: u32 = 64;

/// The account of `fd`, whom nobody reads meanwhile; `None` on a kernel that does not keep it.
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
        // The end of the stream counts as a byte there, and not among those that wait.
        taken: wide(RECEIVED)?.wrapping_sub(queued as u64).saturating_sub(has_end.into()),
        is_steady: true,
    })
}

/// Bytes that wait in the kernel to be received.
pub fn queued(fd: i32) -> Option<i32> {
    let mut queued = 0i32;
    let _own = own_call::begin()?;
    // SAFETY: FIONREAD writes one int.
    let status = unsafe { real::ioctl(fd, libc::FIONREAD as usize, (&raw mut queued).cast()) };
    (status == 0).then_some(queued)
}

/// A socket option's bytes: how many the kernel wrote.
pub fn option(fd: i32, level: i32, name: i32, value: &mut [u8]) -> Option<usize> {
    let mut length = value.len() as libc::socklen_t;
    let _own = own_call::begin()?;
    // SAFETY: the kernel writes at most `length` bytes.
    let status = unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    (status == 0).then_some(length as usize)
}

/// A socket option that is an int.
pub fn number(fd: i32, level: i32, name: i32) -> Option<i32> {
    let mut value = [0; 4];
    option(fd, level, name, &mut value)?;
    Some(i32::from_ne_bytes(value))
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO`, in nanoseconds; `None`: for ever.
pub fn timeout_ns(fd: i32, name: i32) -> Option<u64> {
    let mut value = [0; 16];
    option(fd, libc::SOL_SOCKET, name, &mut value)?;
    let (seconds, rest) = value.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map(i64::from_ne_bytes).unwrap_or(0);
    let total = (word(seconds) as u64).saturating_mul(1_000_000_000) + word(rest) as u64 * 1000;
    (total > 0).then_some(total)
}

/// Was the descriptor told not to wait?
pub fn is_nonblocking(fd: i32) -> bool {
    let Some(_own) = own_call::begin() else { return false };
    // SAFETY: no pointers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Has somebody set `SO_LINGER`?
pub fn lingers(fd: i32) -> bool {
    let mut value = [0; size_of::<libc::linger>()];
    option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut value);
    value.iter().take(4).any(|byte| *byte != 0)
}

/// `SO_MEMINFO` of asm-generic/socket.h, and the places of `SK_MEMINFO_SNDBUF` and `SK_MEMINFO_WMEM_QUEUED` in it.
const MEMORY: i32 = 55;
const MAY_SEND: usize = 12;
const QUEUED: usize = 20;

/// Will the kernel take so many bytes at once, beside what it holds already?
pub fn has_room(fd: i32, bytes: usize) -> bool {
    let mut value = [0; 36];
    if option(fd, libc::SOL_SOCKET, MEMORY, &mut value).is_none_or(|length| length < QUEUED + 4) {
        return false;
    }
    let word = |at: usize| {
        let bytes = value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes) as usize
    };
    // A limit of what is not sent yet holds whatever room there is.
    let unsent_max = number(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).unwrap_or(0) as u32 as usize;
    if unsent_max != 0 && unsent_max <= bytes {
        return false;
    }
    word(MAY_SEND).saturating_sub(word(QUEUED)) >= with_overhead(bytes)
}

/// What the kernel counts for so many bytes, at most: it takes whole pieces until the limit is passed.
fn with_overhead(bytes: usize) -> usize {
    bytes + bytes / 8 + 4096
}

/// Lets the kernel take so many bytes more of a socket that is about to end, where this process may do so.
pub fn make_room(fd: i32, bytes: usize) {
    let set = |level: i32, name: i32, value: i32| {
        let length = size_of_val(&value) as u32;
        // SAFETY: a live int.
        crate::os::errno::keep(|| unsafe {
            real::setsockopt(fd, level, name, (&raw const value).cast(), length)
        })
    };
    let held = queued_to_send(fd).unwrap_or(0).max(0) as usize;
    // The kernel doubles it.
    set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, with_overhead(bytes + held) as i32);
    set(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, -1);
}

/// Bytes that the kernel was given, and the other end's kernel has not taken.
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
    crate::os::errno::keep(|| unsafe {
        real::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const value).cast(),
            size_of_val(&value) as u32,
        )
    });
}

/// What `poll` says now, for these events.
pub fn ready(fd: i32, events: i16) -> i16 {
    wait(fd, events, 0).unwrap_or(0)
}

/// What `poll` says within so many milliseconds; `Err` with the error number.
pub fn wait(fd: i32, events: i16, timeout_ms: i32) -> Result<i16, i32> {
    let mut file = libc::pollfd { fd, events, revents: 0 };
    let own = own_call::begin().ok_or(libc::EINTR)?;
    if timeout_ms != 0 {
        // Nobody can wake it: it returns when it does, and the kernel restarts no `poll`.
        drop(own);
    }
    // SAFETY: one live entry.
    match unsafe { real::poll(&raw mut file, 1, timeout_ms) } {
        status if status < 0 => Err(crate::os::errno::last()),
        _ => Ok(file.revents),
    }
}

/// What `poll` says before this time, for ever if there is none; `Err` with the error number, `EAGAIN` when it has passed.
pub fn wait_until(fd: i32, events: i16, deadline_ns: Option<u64>) -> Result<i16, i32> {
    let left_ns = deadline_ns.map(|deadline| deadline.saturating_sub(now_ns()));
    let timeout_ms = left_ns.map_or(-1, |left| left.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
    match wait(fd, events, timeout_ms)? {
        0 if deadline_ns.is_some_and(|deadline| deadline <= now_ns()) => Err(libc::EAGAIN),
        found => Ok(found),
    }
}

/// Nanoseconds of the clock that only goes forward.
pub fn now_ns() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: valid for writes; noughts are a value.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
