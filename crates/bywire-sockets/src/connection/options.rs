//! Socket options that carried bytes would not honour.
//!
//! The hooked `setsockopt` notices most of them. An accepted connection inherits options from its listener, and a program
//! may get a socket from another one that has set some. So the kernel is asked as well, once for each offer.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use libc::{IPPROTO_TCP, SOL_SOCKET};

use crate::connection::sleep::NEVER_WAITS;
use crate::connection::sockets;
use crate::os::kernel;

/// How the kernel tells whether an option is set.
enum Question {
    /// It is not asked: no listener passes the option on, the service asks, or another option of the table answers.
    No,
    /// The option is set if its number is another one.
    Unless(i32),
    /// The option is set if there is a filter.
    Filter,
}

struct HeldOption {
    level: i32,
    name: i32,
    reason: Reason,
    question: Question,
}

const fn held(level: i32, name: i32, question: Question) -> HeldOption {
    HeldOption { level, name, reason: Reason::Option, question }
}

const fn fast_open(name: i32) -> HeldOption {
    HeldOption { level: IPPROTO_TCP, name, reason: Reason::FastOpen, question: Question::No }
}

/// Numbers that the C library's bindings lack are those of asm-generic/socket.h and linux/tcp.h.
const HELD: &[HeldOption] = &[
    held(SOL_SOCKET, libc::SO_ATTACH_FILTER, Question::Filter),
    held(SOL_SOCKET, libc::SO_ATTACH_BPF, Question::No),
    held(SOL_SOCKET, libc::SO_LOCK_FILTER, Question::No),
    held(SOL_SOCKET, libc::SO_RCVLOWAT, Question::Unless(1)),
    held(SOL_SOCKET, libc::SO_ZEROCOPY, Question::No),
    held(SOL_SOCKET, libc::SO_BINDTODEVICE, Question::No),
    held(SOL_SOCKET, libc::SO_PEEK_OFF, Question::Unless(-1)),
    held(SOL_SOCKET, libc::SO_TXTIME, Question::No),
    held(SOL_SOCKET, SO_MAX_PACING_RATE, Question::Unless(-1)),
    // SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, and their 64-bit variants. The first number of SO_TIMESTAMPING
    // answers for both.
    held(SOL_SOCKET, 29, Question::Unless(0)),
    held(SOL_SOCKET, 35, Question::Unless(0)),
    held(SOL_SOCKET, 37, Question::Unless(0)),
    held(SOL_SOCKET, 63, Question::Unless(0)),
    held(SOL_SOCKET, 64, Question::Unless(0)),
    held(SOL_SOCKET, 65, Question::No),
    // SO_PASSCRED, SO_PASSSEC and SO_PASSPIDFD of Unix sockets: each piece comes with its sender.
    held(SOL_SOCKET, libc::SO_PASSCRED, Question::Unless(0)),
    held(SOL_SOCKET, libc::SO_PASSSEC, Question::Unless(0)),
    held(SOL_SOCKET, SO_PASSPIDFD, Question::Unless(0)),
    // SO_INQ: each message says how many bytes are left.
    held(SOL_SOCKET, SO_INQ, Question::Unless(0)),
    // TCP_MD5SIG, TCP_MD5SIG_EXT, and keys by TCP_AO: a client must set them itself.
    held(IPPROTO_TCP, 14, Question::No),
    held(IPPROTO_TCP, 32, Question::No),
    held(IPPROTO_TCP, 38, Question::No),
    held(IPPROTO_TCP, 39, Question::No),
    held(IPPROTO_TCP, 40, Question::No),
    held(IPPROTO_TCP, 42, Question::No),
    // TCP_REPAIR and TCP_ULP: a listener has neither.
    held(IPPROTO_TCP, 19, Question::No),
    held(IPPROTO_TCP, libc::TCP_ULP, Question::No),
    held(IPPROTO_TCP, TCP_TX_DELAY, Question::Unless(0)),
    // The kernel clamps every window, and does not tell whose wish that was.
    held(IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, Question::No),
    // TCP_FASTOPEN and TCP_FASTOPEN_CONNECT.
    fast_open(23),
    fast_open(30),
];

const SO_PASSPIDFD: i32 = 76;
const SO_INQ: i32 = 84;
/// Sends no faster than this.
const SO_MAX_PACING_RATE: i32 = 47;
/// Sends everything later by this time.
const TCP_TX_DELAY: i32 = 37;
/// The reason why a socket with this option stays in the kernel. `None`: it may be carried.
pub fn reason_to_stay(level: i32, name: i32) -> Option<Reason> {
    HELD.iter().find(|option| option.level == level && option.name == name).map(|option| option.reason)
}

/// Options of UDP sockets that datagrams in memory honour, or that have no effect on what a machine sends to itself.
const OF_DATAGRAMS: [(i32, &[i32]); 3] = [
    (
        SOL_SOCKET,
        &[
            libc::SO_RCVBUF,
            libc::SO_SNDBUF,
            libc::SO_RCVBUFFORCE,
            libc::SO_SNDBUFFORCE,
            libc::SO_REUSEADDR,
            libc::SO_RCVTIMEO,
            libc::SO_SNDTIMEO,
            // The same with 64-bit times.
            66,
            67,
            libc::SO_BROADCAST,
            libc::SO_KEEPALIVE,
            libc::SO_LINGER,
            libc::SO_PRIORITY,
        ],
    ),
    (
        libc::IPPROTO_IP,
        &[
            libc::IP_TOS,
            libc::IP_TTL,
            libc::IP_MTU_DISCOVER,
            libc::IP_RECVERR,
            libc::IP_MULTICAST_TTL,
            libc::IP_MULTICAST_LOOP,
        ],
    ),
    (
        libc::IPPROTO_IPV6,
        &[
            libc::IPV6_V6ONLY,
            libc::IPV6_UNICAST_HOPS,
            libc::IPV6_TCLASS,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_RECVERR,
            libc::IPV6_MULTICAST_HOPS,
            libc::IPV6_MULTICAST_LOOP,
        ],
    ),
];

/// Returns whether a UDP socket with this option may have datagrams in memory. What is not known here may not.
pub fn suits_datagrams(level: i32, name: i32) -> bool {
    OF_DATAGRAMS.iter().any(|(known, names)| *known == level && names.contains(&name))
}

/// Whether reading this option moves bytes.
pub fn moves_bytes(level: i32, name: i32) -> bool {
    level == IPPROTO_TCP && name == kernel::TCP_ZEROCOPY_RECEIVE
}

/// Whether the kernel says that an option is set which keeps the socket there.
pub fn are_any_set(fd: i32) -> bool {
    HELD.iter().any(|option| match option.question {
        Question::No => false,
        Question::Unless(usual) => {
            kernel::number(fd, option.level, option.name).is_some_and(|found| found != usual)
        }
        Question::Filter => kernel::has_filter(fd),
    })
}

/// Passes on to an accepted connection what its listener has of options that the kernel is not asked about.
pub fn inherit(listener: i32, accepted: i32) {
    let Some(listener) = sockets::socket(listener) else { return };
    // A Unix listener passes on neither timeouts nor options but those that the kernel is asked about.
    if listener.is_unix() {
        return;
    }
    let is_held = listener.shared.never.load(Ordering::Relaxed) == Reason::Option as u8 + 1;
    let has_timeout = listener.shared.has_timeout.each_ref().map(|place| place.load(Ordering::Relaxed));
    if !is_held && !has_timeout.contains(&NEVER_WAITS) {
        return;
    }
    let Some(accepted) = sockets::socket(accepted) else { return };
    if is_held {
        accepted.stay(Reason::Option);
    }
    for (place, state) in accepted.shared.has_timeout.iter().zip(has_timeout) {
        if state == NEVER_WAITS {
            place.store(NEVER_WAITS, Ordering::Relaxed);
        }
    }
}
