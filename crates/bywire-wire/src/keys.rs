//! The keys of a connection, and what one key does to a packet. Only this file and `handshake/macs.rs` use the cipher library.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use crc_fast::crc32_iscsi;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::packet::{CHECK_BYTES, HEADER_BYTES, SEAL_BYTES};
use crate::planted::{self, Bug};

/// Bytes of a secret from which keys are derived.
pub const SECRET_BYTES: usize = 32;

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
pub(crate) enum Key {
    /// The CRC32C of the key's bytes, which every packet's check continues.
    Plain(u32),
    Sealed {
        security: Security,
        secret: Prk,
        key: LessSafeKey,
        iv: [u8; 12],
    },
}

/// The error for a packet that is not authentic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet was forged or damaged")]
pub struct Forged;

impl Key {
    /// The first key of the packets that `side` sends.
    pub(crate) fn first(security: Security, connection: &Secret, side: Side) -> Self {
        Self::new(security, secret_of(connection, side))
    }

    fn new(security: Security, secret: Prk) -> Self {
        if security == Security::Plain {
            return Self::Plain(crc32_iscsi(&*derive::<SECRET_BYTES>(&secret, b"bywire check")));
        }
        let bytes = derive::<32>(&secret, b"bywire key");
        let iv = *derive(&secret, b"bywire iv");
        let key = UnboundKey::new(security.algorithm(), &*bytes).expect("both ciphers take 32 bytes");
        Self::Sealed { security, secret, key: LessSafeKey::new(key), iv }
    }

    /// The next key. `None`: checks have a single key.
    pub(crate) fn next(&self) -> Option<Self> {
        match self {
            Self::Plain(_) => None,
            Self::Sealed { security, secret, .. } => {
                let next = derive::<SECRET_BYTES>(secret, b"bywire next");
                Some(Self::new(*security, Prk::new_less_safe(HKDF_SHA256, &*next)))
            }
        }
    }

    /// Seals the packet that begins at `from`, a header and frames, and appends its tag.
    pub(crate) fn seal(&self, number: u64, packet: &mut Vec<u8>, from: usize) {
        match self {
            Self::Plain(key) => {
                let check = check(*key, &mut packet[from..]);
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

    /// Opens a whole packet and returns its frames.
    pub(crate) fn open<'packet>(
        &self,
        number: u64,
        packet: &'packet mut [u8],
    ) -> Result<&'packet [u8], Forged> {
        match self {
            Self::Plain(key) => {
                let (covered, tag) = packet.split_last_chunk_mut::<CHECK_BYTES>().ok_or(Forged)?;
                if covered.len() < HEADER_BYTES {
                    return Err(Forged);
                }
                let is_authentic = check(*key, covered) == *tag || planted::is(Bug::TagUnchecked);
                is_authentic.then_some(&covered[HEADER_BYTES..]).ok_or(Forged)
            }
            Self::Sealed { key, iv, .. } => {
                let (header, sealed) = packet.split_at_mut_checked(HEADER_BYTES).ok_or(Forged)?;
                let opened = key.open_in_place(nonce(iv, number), Aad::from(&*header), sealed);
                opened.map(|frames| &*frames).map_err(|_| Forged)
            }
        }
    }
}

/// The CRC32C of a key's bytes, whose own is given, and of a packet behind them.
///
/// The register of a CRC takes in the next 32 bits by an exclusive or. So the value that it has after the key can be put into
/// the first bytes of the packet instead, which are restored.
#[inline]
fn check(key: u32, packet: &mut [u8]) -> [u8; CHECK_BYTES] {
    let is_masked = mask(key, packet);
    debug_assert!(is_masked, "a packet begins with its header");
    let check = crc32_iscsi(packet).to_le_bytes();
    mask(key, packet);
    check
}

#[inline]
fn mask(key: u32, packet: &mut [u8]) -> bool {
    // As a whole word, because the next load of these bytes is one.
    let Some(word) = packet.first_chunk_mut::<8>() else { return false };
    *word = (u64::from_le_bytes(*word) ^ u64::from(key)).to_le_bytes();
    true
}

/// The initialization vector combined with the packet's number. It is never the same twice with one key, because no
/// number is.
fn nonce(iv: &[u8; 12], number: u64) -> Nonce {
    let mut nonce = *iv;
    nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
    Nonce::assume_unique_for_key(nonce)
}
