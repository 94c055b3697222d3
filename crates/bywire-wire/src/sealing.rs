//! Seals the packets that one end sends and opens those that it receives, with keys that follow each other.

use crate::keys::{Forged, Key, Secret, Security, Side};
use crate::packet::Header;
use crate::planted::{self, Bug};

/// The most packets that one key seals. It is below the 2^23 of RFC 9001, section 6.6.
pub const PACKETS_PER_KEY: u64 = 1 << 22;
/// The longest time for which one key seals.
pub const KEY_LIFE_NS: u64 = 3_600_000_000_000;

/// Seals the packets that one side sends.
#[derive(Debug)]
pub struct Sealer {
    key: Key,
    phase: bool,
    /// The lowest number that has not been sealed yet.
    next: u64,
    /// The first number sealed with this key, and when it left.
    first: Option<(u64, u64)>,
    /// Since when the peer has been known to have this key.
    confirmed_at_ns: Option<u64>,
    packets: u64,
    packets_max: u64,
}

impl Sealer {
    /// Seals what `side` sends.
    pub fn new(security: Security, connection: &Secret, side: Side) -> Self {
        let key = Key::first(security, connection, side);
        Self {
            key,
            phase: false,
            next: 0,
            first: None,
            confirmed_at_ns: None,
            packets: 0,
            packets_max: PACKETS_PER_KEY,
        }
    }

    /// Changes how many packets one key seals, at most [`PACKETS_PER_KEY`]. Tests use it, because they do not send four
    /// million.
    pub fn set_packets_per_key(&mut self, packets: u64) {
        self.packets_max = packets.clamp(1, PACKETS_PER_KEY);
    }

    /// The key phase of the next packet.
    pub fn phase(&self) -> bool {
        self.phase
    }

    /// Notes that the peer has acknowledged a packet.
    pub fn acknowledged(&mut self, now_ns: u64, number: u64) {
        if self.first.is_some_and(|(first, _)| number >= first) {
            self.confirmed_at_ns.get_or_insert(now_ns);
        }
    }

    /// Would the next key be due if the peer were known to have this one?
    pub fn lacks_confirmation(&self, now_ns: u64) -> bool {
        self.confirmed_at_ns.is_none() && self.is_old(now_ns) && !matches!(self.key, Key::Plain(_))
    }

    /// Has the key sealed enough, or for long enough?
    #[inline]
    pub fn is_old(&self, now_ns: u64) -> bool {
        let is_aged = |(_, at_ns): (u64, u64)| now_ns.saturating_sub(at_ns) >= KEY_LIFE_NS;
        self.packets >= self.packets_max || self.first.is_some_and(is_aged)
    }

    /// Switches to the next key if it is due. The peer keeps the old key for three probe timeouts after it has seen the
    /// new one, and knows one new key at a time. `true`: the phase has changed.
    pub fn update(&mut self, now_ns: u64, probe_timeout_ns: u64) -> bool {
        let kept_ns = probe_timeout_ns.saturating_mul(4);
        let is_settled = self.confirmed_at_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) >= kept_ns);
        if !(self.is_old(now_ns) && (is_settled || planted::is(Bug::KeyTooSoon))) {
            return false;
        }
        let Some(next) = self.key.next() else { return false };
        self.key = next;
        self.phase = !self.phase;
        (self.first, self.confirmed_at_ns, self.packets) = (None, None, 0);
        true
    }

    /// Seals the packet that begins at `from`, a header and frames, and appends its tag. The header must have this
    /// number and [`Self::phase`].
    ///
    /// # Panics
    /// If the number is not above all earlier ones, so that no key ever seals a number twice.
    pub fn seal(&mut self, now_ns: u64, number: u64, packet: &mut Vec<u8>, from: usize) {
        assert!(number >= self.next, "number {number} is not above all that were sealed");
        self.next = number + 1;
        self.key.seal(number, packet, from);
        self.first.get_or_insert((number, now_ns));
        self.packets += 1;
    }
}

/// Opens the packets that the other side sends.
#[derive(Debug)]
pub struct Opener {
    current: Key,
    /// `None`: checks have one key.
    next: Option<Key>,
    /// With the time at which it is dropped.
    previous: Option<(Key, u64)>,
    phase: bool,
    /// The lowest number that was opened with the current key.
    first: Option<u64>,
}

impl Opener {
    /// Opens what `side` sends.
    pub fn new(security: Security, connection: &Secret, side: Side) -> Self {
        let current = Key::first(security, connection, side);
        let next = current.next();
        Self { current, next, previous: None, phase: false, first: None }
    }

    /// The key phase of the newest packets.
    pub fn phase(&self) -> bool {
        self.phase
    }

    /// Opens a whole packet and returns its frames. An old key is kept for three probe timeouts.
    ///
    /// # Errors
    /// [`Forged`]. The packet's bytes must then not be read.
    pub fn open<'packet>(
        &mut self,
        now_ns: u64,
        probe_timeout_ns: u64,
        header: &Header,
        packet: &'packet mut [u8],
    ) -> Result<&'packet [u8], Forged> {
        self.previous.take_if(|(_, until_ns)| *until_ns <= now_ns);
        if header.key_phase == self.phase {
            let frames = self.current.open(header.number, packet)?;
            self.first = Some(self.first.map_or(header.number, |first| first.min(header.number)));
            return Ok(frames);
        }
        if self.first.is_some_and(|first| header.number < first) {
            let (previous, _) = self.previous.as_ref().ok_or(Forged)?;
            return previous.open(header.number, packet);
        }
        let next = self.next.as_ref().ok_or(Forged)?;
        let frames = next.open(header.number, packet)?;
        self.rotate(now_ns.saturating_add(probe_timeout_ns.saturating_mul(3)), header.number);
        Ok(frames)
    }

    fn rotate(&mut self, kept_until_ns: u64, first: u64) {
        let Some(next) = self.next.take() else { return };
        self.next = next.next().filter(|_| !planted::is(Bug::KeysEnd));
        let previous = std::mem::replace(&mut self.current, next);
        self.previous = Some((previous, kept_until_ns));
        (self.phase, self.first) = (!self.phase, Some(first));
    }
}
