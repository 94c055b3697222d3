//! What the pairing service is told besides offers: their ends, the memory of rings, what was not carried, and that this program
//! ends.

use core::sync::atomic::{AtomicU64, Ordering};

use bywire_pairing::protocol::{Kind, Packet};
use bywire_pairing::reason::Reason;
use bywire_ring::stream::{SEGMENT_BYTES, Window};

use crate::connection::sockets::{self, STREAM, Socket};
use crate::connection::{idle_memory, owed};
use crate::os::{errno, kernel, signal_deferral};
use crate::pairing::offer::{NOTED_BYTES, SERVICE, TALKING, connect, is_configured, quietly, say, token};

/// Tells the service that an offer is over. The offer may be waiting there, and its addresses will be reused.
pub fn end(socket: &Socket) {
    let offered = &socket.local.offered;
    if offered.load(Ordering::Relaxed) == 0 || offered.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    let [first, second] = written_and_read(socket);
    let packet = Packet { first, second, ..Packet::new(Kind::End, token(socket)) };
    quietly(|| {
        let _held = TALKING.hold_undisturbed();
        if SERVICE.load(Ordering::Relaxed) >= 0 {
            say(&packet, &[]);
        }
    });
}

/// The bytes that this end has put into its ring, and taken out of its peer's.
fn written_and_read(socket: &Socket) -> [u64; 2] {
    // Acquire: pairs with the swap in `offer`, which comes after the mapping.
    let base = socket.local.own.load(Ordering::Acquire);
    if base.is_null() {
        return [0; 2];
    }
    // SAFETY: mapped with this length, and in use by `socket`.
    let own = unsafe { Window::new(base, SEGMENT_BYTES) };
    [STREAM.tail(&own), STREAM.head(&own)]
}

/// The sums over all connections that this process has offered and not ended: bytes sent in memory, and ends that have
/// moved any.
pub fn tally() -> [u64; 2] {
    let [mut bytes, mut used] = [0; 2];
    if SERVICE.load(Ordering::Relaxed) >= 0 {
        sockets::each_held(|socket, _| {
            if socket.local.offered.load(Ordering::Relaxed) != 0 {
                let [sent, received] = written_and_read(socket);
                bytes += sent;
                used += u64::from(sent > 0 || received > 0);
            }
        });
    }
    [bytes, used]
}

/// A difference that the service is not told of, unless there is none any more.
const NOTED_STEP_BYTES: u64 = 1 << 20;
/// The time when it was told last, and how long it is told nothing then, unless there is no such memory any more.
static NOTED_NS: AtomicU64 = AtomicU64::new(0);
const NOTED_PAUSE_NS: u64 = 500_000_000;

/// Does what is due before a wait of the program: pays what is owed, takes memory back, and tells the service of it.
/// Returns how long the wait may last at most, given its limit.
#[inline(always)]
pub fn before_wait(left_ns: Option<u64>) -> Option<u64> {
    let left_ns = owed::pay_before_wait(left_ns);
    note_memory();
    left_ns
}

/// Tells the service how much memory the rings of this program have.
#[inline(always)]
pub fn note_memory() {
    let (bytes, noted) = (idle_memory::held_bytes(), NOTED_BYTES.load(Ordering::Relaxed));
    if bytes != noted {
        note_bytes(bytes, noted);
    }
}

#[inline(never)]
fn note_bytes(bytes: u64, noted: u64) {
    let is_news = noted.abs_diff(bytes) >= NOTED_STEP_BYTES || bytes == 0;
    if !is_news || signal_deferral::is_holding() {
        return;
    }
    quietly(|| {
        // Not too often; and another thread may be waiting for an answer. The next wait tells it.
        let (now, last) = (kernel::now_ns(), NOTED_NS.load(Ordering::Relaxed));
        if bytes > 0 && now.saturating_sub(last) < NOTED_PAUSE_NS {
            return;
        }
        let Some(_held) = TALKING.hold_if_free() else { return };
        NOTED_NS.store(now, Ordering::Relaxed);
        if SERVICE.load(Ordering::Relaxed) >= 0
            && say(&Packet { first: bytes, ..Packet::new(Kind::Memory, 0) }, &[])
        {
            NOTED_BYTES.store(bytes, Ordering::Relaxed);
        }
    });
}

/// Tells the service of connections that were not carried.
pub fn note(reason: Reason, count: u64) {
    errno::keep(|| {
        let _held = TALKING.hold_undisturbed();
        if is_configured() && connect() {
            say(&Packet { code: reason as u8, first: count, ..Packet::new(Kind::Note, 0) }, &[]);
        }
    });
}

/// The program exits, or executes another one. The arguments are the result of [`tally`].
pub fn leave([bytes, used]: [u64; 2]) {
    errno::keep(|| {
        let _held = TALKING.hold_undisturbed();
        if SERVICE.load(Ordering::Relaxed) >= 0 {
            say(&Packet { first: bytes, second: used, ..Packet::new(Kind::Leave, 0) }, &[]);
        }
    });
}
