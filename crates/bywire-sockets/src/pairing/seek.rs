//! When it pays to have an engine relay what a connection sends: many small sends in a row, to a peer whose end nobody
//! offers.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::connection::policy;
use crate::connection::sockets::Socket;
use crate::os::kernel;

/// Connections are looked at at one call of this many that move data.
const EVERY_CALLS: u32 = 64;
/// An engine is sought after this many bytes in small pieces,
const BYTES_MIN: u64 = 64 << 10;
/// within this time, and without a receive between them.
const WINDOW_NS: u64 = 100_000_000;
/// A piece of at least this size is no small one.
const SMALL_BYTES: u64 = 16 << 10;
/// The other end may be offered within this time.
const PATIENCE_NS: u64 = 20_000_000;
/// An engine that has not taken a connection is not asked again for this time.
const PAUSE_NS: u64 = 1_000_000_000;
/// How many receives that followed too few bytes end a relay.
const TURNS_MAX: u8 = 4;

/// Values of the mode.
const OFF: u8 = 0;
const PREFER: u8 = 1;
const ALWAYS: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(PREFER);
static EVERY: AtomicU32 = AtomicU32::new(EVERY_CALLS);

/// Sets the mode by the word of its variable. Any other word than those of `bywire run` changes nothing.
pub fn configure(word: &[u8]) {
    let mode = match word {
        b"off" => OFF,
        b"always" => ALWAYS,
        _ => PREFER,
    };
    if word == b"require" {
        policy::require();
    }
    MODE.store(mode, Ordering::Relaxed);
    EVERY.store(if mode == ALWAYS { 1 } else { EVERY_CALLS }, Ordering::Relaxed);
}

/// Returns whether a connection is due to be looked at, after `calls` calls.
pub fn is_due(calls: u32) -> bool {
    calls.is_multiple_of(EVERY.load(Ordering::Relaxed))
}

/// Returns whether an engine is sought for everything, and waited for.
pub fn is_for_all() -> bool {
    MODE.load(Ordering::Relaxed) == ALWAYS
}

/// Returns whether an engine is to be sought for this connection, whose offer waits, after another call that has moved
/// data.
pub fn pays(socket: &Socket) -> bool {
    let (mode, shared) = (MODE.load(Ordering::Relaxed), socket.shared);
    if mode == OFF || socket.is_unix() || shared.never.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let now = kernel::now_ns();
    let has_waited = now.saturating_sub(shared.offered_ns.load(Ordering::Relaxed)) >= PATIENCE_NS;
    let since = shared.watched_ns.load(Ordering::Relaxed);
    if mode == ALWAYS {
        return begin(socket, now);
    }
    // The time of the next try lies in the future.
    if since > now {
        return false;
    }
    let received = shared.received.load(Ordering::Relaxed);
    let sent = shared.sent.load(Ordering::Relaxed).wrapping_sub(shared.watched_sent.load(Ordering::Relaxed));
    let calls =
        shared.calls.load(Ordering::Relaxed).wrapping_sub(shared.watched_calls.load(Ordering::Relaxed));
    let is_window = now - since <= WINDOW_NS && received == shared.watched_received.load(Ordering::Relaxed);
    if !is_window || sent >= u64::from(calls).saturating_mul(SMALL_BYTES) {
        watch(socket, now);
        return false;
    }
    sent >= BYTES_MIN && has_waited && begin(socket, now)
}

/// Returns whether an engine of another machine is to be sought now for the other end of this connection.
#[inline(always)]
pub fn is_far_due(socket: &Socket) -> bool {
    let due_ns = socket.shared.far_due_ns.load(Ordering::Relaxed);
    due_ns == 0 || due_ns <= kernel::now_ns()
}

/// Returns whether the other end of this connection may be on another machine, and sets when that is asked next.
pub fn may_be_far(socket: &Socket) -> bool {
    let shared = socket.shared;
    let now = kernel::now_ns();
    let waited_ns = now.saturating_sub(shared.offered_ns.load(Ordering::Relaxed));
    shared.far_due_ns.store(now.saturating_add(waited_ns.max(PAUSE_NS)), Ordering::Relaxed);
    MODE.load(Ordering::Relaxed) != OFF
        && !socket.is_unix()
        && shared.never.load(Ordering::Relaxed) == 0
        && !kernel::is_on_loopback(socket.fd)
        && has_no_option(socket)
}

/// Begins a new window.
fn watch(socket: &Socket, now_ns: u64) {
    let shared = socket.shared;
    // Relaxed, all: threads that overtake each other here mistake a window at most.
    shared.watched_ns.store(now_ns, Ordering::Relaxed);
    shared.watched_sent.store(shared.sent.load(Ordering::Relaxed), Ordering::Relaxed);
    shared.watched_received.store(shared.received.load(Ordering::Relaxed), Ordering::Relaxed);
    shared.watched_calls.store(shared.calls.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// An engine is about to be sought, for which the connection must have no option that only the kernel's own sends honour.
fn begin(socket: &Socket, now_ns: u64) -> bool {
    if socket.shared.watched_ns.load(Ordering::Relaxed) > now_ns {
        return false;
    }
    watch(socket, now_ns + if is_for_all() { PATIENCE_NS } else { PAUSE_NS });
    has_no_option(socket)
}

/// Returns whether no option is set that only the kernel's own sends honour.
pub fn has_no_option(socket: &Socket) -> bool {
    !kernel::lingers(socket.fd)
        && kernel::number(socket.fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).unwrap_or(0) == 0
        && !kernel::is_corked(socket.fd)
}

/// Bytes that an engine has for a batch, and that make a receive after them no turn.
const BATCH_BYTES: u64 = SMALL_BYTES;

/// A relayed connection has received bytes. Returns whether its program has turned to requests and responses, for which an
/// engine is of no use.
pub fn has_turned(socket: &Socket, sent: u64) -> bool {
    let shared = socket.shared;
    let before = shared.watched_sent.swap(sent, Ordering::Relaxed);
    if is_for_all() || sent.wrapping_sub(before) >= BATCH_BYTES {
        shared.turns.store(0, Ordering::Relaxed);
        return false;
    }
    // Receives in a row, with nothing sent between them, are no turns.
    sent != before && shared.turns.fetch_add(1, Ordering::Relaxed) + 1 >= TURNS_MAX
}
