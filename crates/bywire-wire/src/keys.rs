//! Authenticates and encrypts packets. Only this file and `handshake/macs.rs` use the cipher library.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::packet::{CHECK_BYTES, HEADER_BYTES, Header, SEAL_BYTES};
use crate::planted::{self, Bug};

/// Bytes of a secret from which keys are derived.
pub const SECRET_BYTES: usize = 32;
/// The most packets that one key seals. It is below the 2^23 of RFC 9001, section 6.6.
pub const PACKETS_PER_KEY: u64 = 1 << 22;
/// The longest time for which one key seals.
pub const KEY_LIFE_NS: u64 = 3_600_000_000_000;

/// How packets are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Security {
    /// CRC32C, keyed by a secret of the connection: against accidents, and against strangers that cannot see packets.
    /// Nothing is encrypted.
    Plain,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305, for processors without instructions for AES.
    ChaCha20Poly1305,
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    /// The end that requested the connection.
    Initiator,
    /// The end that accepted it.
    Responder,
}

impl Side {
    /// The other end.
    pub fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// The secret that only the two ends of a connection know. It is neither copied nor printed, and is erased when it is
/// dropped.
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// Moves the bytes out of the given array, which is filled with zeros.
    pub fn take(bytes: &mut [u8; SECRET_BYTES]) -> Self {
        let secret = Self(*bytes);
        bytes.zeroize();
        secret
    }
}

impl From<[u8; SECRET_BYTES]> for Secret {
    /// The caller has to erase its own copy. [`Self::take`] does both.
    fn from(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

impl Security {
    /// Bytes after the frames of a packet.
    pub fn tag_bytes(self) -> usize {
        match self {
            Self::Plain => CHECK_BYTES,
            _ => SEAL_BYTES,
        }
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            _ => &AES_256_GCM,
        }
    }
}

/// The number of bytes to be derived.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// A key out of a secret, for one purpose.
pub(crate) fn derive<const LENGTH: usize>(secret: &Prk, label: &[u8]) -> Zeroizing<[u8; LENGTH]> {
    let mut bytes = Zeroizing::new([0; LENGTH]);
    let label = [label];
    // It fails only for lengths above 255 hashes.
    let derived = secret.expand(&label, Length(LENGTH)).and_then(|derived| derived.fill(&mut *bytes));
    derived.expect("a key is shorter than 255 hashes");
    bytes
}

/// The secret of the packets that one side sends, from that of the connection.
fn secret_of(connection: &Secret, side: Side) -> Prk {
    let label: &[u8] = match side {
        Side::Initiator => b"bywire initiator",
        Side::Responder => b"bywire responder",
    };
    let connection = Prk::new_less_safe(HKDF_SHA256, &connection.0);
    Prk::new_less_safe(HKDF_SHA256, &*derive::<SECRET_BYTES>(&connection, label))
}

/// One key of one direction.
#[derive(Debug)]
enum Key {
    Plain(Digest),
    Sealed { security: Security, secret: Prk, key: LessSafeKey, iv: [u8; 12] },
}

/// The error for a packet that is not authentic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet was forged or damaged")]
pub struct Forged;

impl Key {
    fn new(security: Security, secret: Prk) -> Self {
        if security == Security::Plain {
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            digest.update(&*derive::<SECRET_BYTES>(&secret, b"bywire check"));
            return Self::Plain(digest);
        }
        let bytes = derive::<32>(&secret, b"bywire key");
        let iv = *derive(&secret, b"bywire iv");
        let key = UnboundKey::new(security.algorithm(), &*bytes).expect("both ciphers take 32 bytes");
        Self::Sealed { security, secret, key: LessSafeKey::new(key), iv }
    }

    /// The next key. `None`: checks have a single key.
    fn next(&self) -> Option<Self> {
        match self {
            Self::Plain(_) => None,
            Self::Sealed { security, secret, .. } => {
                let next = derive::<SECRET_BYTES>(secret, b"bywire next");
                Some(Self::new(*security, Prk::new_less_safe(HKDF_SHA256, &*next)))
            }
        }
    }

    fn seal(&self, number: u64, packet: &mut Vec<u8>, from: usize) {
        match self {
            Self::Plain(digest) => {
                let check = check(*digest, &packet[from..]);
                packet.extend_from_slice(&check);
            }
            Self::Sealed { key, iv, .. } => {
                let (header, frames) = packet[from..].split_at_mut(HEADER_BYTES);
                let tag = key
                    .seal_in_place_separate_tag(nonce(iv, number), Aad::from(&*header), frames)
                    .expect("a packet is shorter than any cipher allows");
                packet.extend_from_slice(tag.as_ref());
            }
        }
    }

    fn open<'packet>(&self, number: u64, packet: &'packet mut [u8]) -> Result<&'packet [u8], Forged> {
        match self {
            Self::Plain(digest) => {
                let (covered, tag) = packet.split_last_chunk::<CHECK_BYTES>().ok_or(Forged)?;
                let frames = covered.get(HEADER_BYTES..).ok_or(Forged)?;
                (check(*digest, covered) == *tag || planted::is(Bug::TagUnchecked))
                    .then_some(frames)
                    .ok_or(Forged)
            }
            Self::Sealed { key, iv, .. } => {
                let (header, sealed) = packet.split_at_mut_checked(HEADER_BYTES).ok_or(Forged)?;
                let opened = key.open_in_place(nonce(iv, number), Aad::from(&*header), sealed);
                opened.map(|frames| &*frames).map_err(|_| Forged)
            }
        }
    }
}

fn check(mut digest: Digest, bytes: &[u8]) -> [u8; CHECK_BYTES] {
    digest.update(bytes);
    (digest.finalize() as u32).to_le_bytes()
}

/// The initialization vector combined with the packet's number. It is never the same twice with one key, because no
/// number is.
fn nonce(iv: &[u8; 12], number: u64) -> Nonce {
    let mut nonce = *iv;
    nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
    Nonce::assume_unique_for_key(nonce)
}

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
        let key = Key::new(security, secret_of(connection, side));
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

    fn is_old(&self, now_ns: u64) -> bool {
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
        let current = Key::new(security, secret_of(connection, side));
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
