//! Frames that wait for room in the ring to another process. They keep their order, and their senders are held back
//! for a bounded time.
//!
//! The carrier takes no more frames from the queue of a sender that is held back. That queue fills like the queue of
//! any network card, and the connections that feed it slow down by themselves.
//!
//! A process must take at least a fourth of its ring within that time, [`HOLD_BACK_MS`] by default. Otherwise it no
//! longer holds back any sender until it has taken that much. Its frames wait as long as the backlog has room, and
//! are dropped beyond that.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The bytes of the ring to one process. A fourth of this halved the rate of two processes and two programs on two
/// cores.
pub const LANE_BYTES: u32 = 2 << 20;
/// The datagrams that this ring holds.
pub const LANE_SLOTS: u32 = 1024;
/// How long a process that takes almost nothing holds back its senders, in milliseconds. Other programs may have its
/// core, usually for less than that. A TCP connection waits longer before it retransmits a segment (200 ms on Linux).
pub const HOLD_BACK_MS: u32 = 50;
/// How much a process must take before it may hold back its senders for another [`HOLD_BACK_MS`]: a fourth of its
/// ring, by bytes or by datagrams. With a smaller amount, a process that takes a datagram now and then would hold
/// back a queue forever.
const TAKEN_BYTES: usize = LANE_BYTES as usize / 4;
const TAKEN_DATAGRAMS: usize = LANE_SLOTS as usize / 4;
/// The most bytes that wait for one process: a superframe of each of thirty interfaces.
const BYTES_MAX: usize = 2 << 20;

/// The datagrams that wait for one process.
#[derive(Debug, Default)]
pub struct Backlog {
    /// The waiting datagrams, one behind the other. Sent datagrams are removed.
    bytes: VecDeque<u8>,
    lengths: VecDeque<usize>,
    /// The last attempt to send found no room.
    is_full: bool,
    /// When the current hold-back began. It stays set after the hold-back ends.
    held_since: Option<Instant>,
    /// Bytes that the process has taken since then.
    taken_bytes: usize,
    taken_datagrams: usize,
}

impl Backlog {
    /// True when nothing waits, so that the next datagram may be sent directly.
    pub fn is_empty(&self) -> bool {
        !self.is_full
    }

    /// Notes that the ring has no room. The hold-back starts anew if the process has taken enough since the last one.
    pub fn note_full(&mut self, now: Instant) {
        self.is_full = true;
        let has_taken = self.taken_bytes >= TAKEN_BYTES || self.taken_datagrams >= TAKEN_DATAGRAMS;
        if has_taken || self.held_since.is_none() {
            self.held_since = Some(now);
            (self.taken_bytes, self.taken_datagrams) = (0, 0);
        }
    }

    /// Notes a sent datagram.
    #[inline]
    pub fn note_taken(&mut self, bytes: usize) {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes);
        self.taken_datagrams = self.taken_datagrams.saturating_add(1);
    }

    /// When the process's senders are released, if they are held back for `hold_back`.
    pub fn holds_back_until(&self, hold_back: Duration) -> Option<Instant> {
        self.held_since.filter(|_| self.is_full).map(|since| since + hold_back)
    }

    /// Keeps a datagram. Returns `false` when there is no room for it.
    #[must_use]
    pub fn push(&mut self, datagram: &[u8]) -> bool {
        let bytes = self.bytes.len() + datagram.len();
        let has_room = bytes <= BYTES_MAX;
        if has_room {
            if bytes > self.bytes.capacity() {
                // The memory never exceeds the bound on waiting bytes.
                self.bytes.reserve_exact((2 * bytes).min(BYTES_MAX) - self.bytes.len());
            }
            self.bytes.extend(datagram);
            self.lengths.push_back(datagram.len());
        }
        has_room
    }

    /// Gives `take` one datagram after the other until it refuses one. The refused datagram is kept. Returns `true`
    /// when all have been sent.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8]) -> bool) -> bool {
        while let Some(&length) = self.lengths.front() {
            let (first, second) = self.bytes.as_slices();
            let has_gone = match first.get(..length) {
                Some(datagram) => take(datagram),
                // A datagram that wraps around the end of the buffer is copied.
                None => take(&[first, &second[..length - first.len()]].concat()),
            };
            if !has_gone {
                return false;
            }
            self.bytes.drain(..length);
            self.lengths.pop_front();
            self.note_taken(length);
        }
        self.is_full = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_frames_keep_their_order_and_are_bounded() {
        let mut backlog = Backlog::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert!(backlog.is_empty() && backlog.holds_back_until(second).is_none());
        backlog.note_full(now);
        assert_eq!((backlog.is_empty(), backlog.holds_back_until(second)), (false, Some(now + second)));
        assert!(backlog.push(b"one") && backlog.push(b"") && backlog.push(b"three"));
        let mut taken = Vec::new();
        let mut take = |bytes: &[u8]| {
            taken.push(bytes.to_vec());
            taken.len() < 2
        };
        assert!(!backlog.drain(&mut take), "the second one was refused");
        assert!(backlog.push(b"four"));
        assert!(backlog.drain(|bytes| {
            taken.push(bytes.to_vec());
            true
        }));
        assert_eq!(taken, [&b"one"[..], b"", b"", b"three", b"four"]);
        assert!(backlog.is_empty());
        let datagram = vec![1; 65_472];
        let kept = (0..1000).take_while(|_| backlog.push(&datagram)).count();
        assert_eq!(kept, BYTES_MAX / datagram.len());
        assert!(backlog.bytes.capacity() <= BYTES_MAX, "{} bytes of memory", backlog.bytes.capacity());
    }

    /// More bytes than the bound pass through a backlog that is never quite empty: a new datagram comes before all
    /// others have left.
    #[test]
    fn sent_frames_take_no_room() {
        let mut backlog = Backlog::default();
        let datagram = |number: usize| vec![number as u8; 60_000 + number];
        assert!(backlog.push(&datagram(0)));
        for number in 1..200 {
            assert!(backlog.push(&datagram(number)), "no room for {number} beside one other");
            let mut offered = 0;
            assert!(!backlog.drain(|bytes| {
                assert!(bytes == datagram(number - 1 + offered), "another than {}", number - 1 + offered);
                offered += 1;
                offered == 1
            }));
        }
    }

    /// A process that takes one datagram shortly before each deadline, so that the next datagram finds no room again.
    #[test]
    fn a_slow_process_delays_frames_no_longer_than_a_stopped_one() {
        for waiting in [1, 3] {
            let mut backlog = Backlog::default();
            let (began, time) = (Instant::now(), Duration::from_millis(50));
            for number in 0..8 {
                backlog.note_full(began + number * time * 49 / 50);
                assert_eq!(
                    backlog.holds_back_until(time),
                    Some(began + time),
                    "{waiting} wait, {number} taken"
                );
                while backlog.lengths.len() < waiting {
                    assert!(backlog.push(&[7; 60_000]));
                }
                let mut room = 1;
                let is_all = backlog.drain(|_| std::mem::take(&mut room) == 1);
                assert_eq!(is_all, waiting == 1);
            }
        }
    }

    #[test]
    fn a_process_that_has_drained_a_quarter_of_its_ring_is_waited_for_again() {
        for (bytes, count) in [(TAKEN_BYTES / 8, 8), (1, TAKEN_DATAGRAMS)] {
            let mut backlog = Backlog::default();
            let (began, time) = (Instant::now(), Duration::from_millis(50));
            backlog.note_full(began);
            assert!(backlog.push(&vec![7; bytes]) && backlog.drain(|_| true));
            assert_eq!(backlog.holds_back_until(time), None, "there may be room");
            (2..count).for_each(|_| backlog.note_taken(bytes));
            backlog.note_full(began + time);
            assert_eq!(backlog.holds_back_until(time), Some(began + time), "one less than {count}");
            backlog.note_taken(bytes);
            backlog.note_full(began + 3 * time);
            assert_eq!(backlog.holds_back_until(time), Some(began + 4 * time), "{count} of {bytes}");
        }
    }
}
