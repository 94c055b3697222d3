//! Frames that found no room on the way to another process: they wait here in their order, and whoever sends them is
//! held back for a bounded time.
//!
//! Held back means that nothing more is taken from the queue of the interface that they came from. It fills then, as
//! the queue of any network card does, and the connections that it feeds slow down by themselves. A process that takes
//! nothing within that time, [`HOLD_BACK_MS`] by default, holds nobody back any more: what is for it waits as far as there
//! is room, and is lost beyond.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a process may take nothing and still hold back whoever sends to it, in milliseconds: longer than others may
/// have its core, and shorter than a connection waits before it repeats (200 on Linux).
pub const HOLD_BACK_MS: u32 = 50;
/// What waits for one process at most: a superframe of each of thirty interfaces.
const BYTES_MAX: usize = 2 << 20;

/// What waits for one process.
#[derive(Debug, Default)]
pub struct Backlog {
    /// Datagrams one behind the other, none that has gone on.
    bytes: VecDeque<u8>,
    lengths: VecDeque<usize>,
    /// Since when there is no room; `None`: there may be some.
    full_since: Option<Instant>,
}

impl Backlog {
    /// Is everything on its way, so that the next datagram may be tried?
    pub fn is_empty(&self) -> bool {
        self.full_since.is_none()
    }

    /// There was no room now, nor after what has gone on before.
    pub fn note_full(&mut self, now: Instant) {
        self.full_since = Some(now);
    }

    /// Until when whoever sends there is held back, where that lasts for `hold_back`.
    pub fn holds_back_until(&self, hold_back: Duration) -> Option<Instant> {
        self.full_since.map(|since| since + hold_back)
    }

    /// Keeps a datagram. `false`: there is no room for it.
    #[must_use]
    pub fn push(&mut self, datagram: &[u8]) -> bool {
        let bytes = self.bytes.len() + datagram.len();
        let has_room = bytes <= BYTES_MAX;
        if has_room {
            if bytes > self.bytes.capacity() {
                // Never more memory than may wait.
                self.bytes.reserve_exact((2 * bytes).min(BYTES_MAX) - self.bytes.len());
            }
            self.bytes.extend(datagram);
            self.lengths.push_back(datagram.len());
        }
        has_room
    }

    /// Gives `take` one datagram after the other until it refuses one, which is kept. `true`: all have gone on.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8]) -> bool) -> bool {
        while let Some(&length) = self.lengths.front() {
            let (first, second) = self.bytes.as_slices();
            let has_gone = match first.get(..length) {
                Some(datagram) => take(datagram),
                // Once in each round of the buffer, a datagram goes over its end.
                None => take(&[first, &second[..length - first.len()]].concat()),
            };
            if !has_gone {
                return false;
            }
            self.bytes.drain(..length);
            self.lengths.pop_front();
        }
        self.full_since = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_goes_on_in_its_order_and_is_bounded() {
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

    /// More than the bound goes through a backlog that is never quite empty, since more comes before all has gone.
    #[test]
    fn what_has_gone_takes_no_room_from_what_comes() {
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
}
