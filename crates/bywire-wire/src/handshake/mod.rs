//! The handshake between the services of two nodes: Noise `IKpsk2_25519_ChaChaPoly_BLAKE2s`, guarded by two checks of the
//! packet as in WireGuard (whitepaper, sections 5.3 and 5.4.7).
//!
//! ```text
//! hello   header · Noise message 1 (e, es, s, ss, payload) · mac1 16 · mac2 16       1,200 bytes
//! answer  header · Noise message 2 (e, ee, se, psk, payload) · mac1 16               1,200 bytes
//! cookie  header · salt 32 · cookie 16 · tag 16                                         80 bytes
//! payload lowest version u16 · highest version u16 · length u16 · greeting · zeros
//! ```
//!
//! - A hello and its answer are as long as [`BASE_BYTES`]. So no answer is longer than what caused it, and a path that does
//!   not carry the packets of a connection makes no channel.
//! - The header's `connection` is the sender's number in a hello, which has no receiver's number yet, and the receiver's
//!   number in an answer and a cookie. The header's `number` counts hellos of one incarnation, and is 0 otherwise. The
//!   header of a hello is the prologue of its handshake, so nobody changes it unnoticed.
//! - `mac1` is keyed by the receiver's public key. Who does not know that key gets no answer, and costs one hash.
//! - `mac2` is keyed by a cookie, which a responder under load gives to the address that asked.
//! - Versions are in the payload, and so they are seen by the two nodes only. The rest of the payload is read only where the
//!   two have a version in common.

pub(crate) mod cookie;
mod identity;
pub(crate) mod load;
pub(crate) mod macs;
pub(crate) mod noise;

use serde::{Deserialize, Serialize};

use crate::keys::Secret;
use crate::packet::{HEADER_BYTES, Header, PacketKind};
use crate::planted::{self, Bug};
use crate::reader::Reader;
use crate::size::BASE_BYTES;

pub use identity::{Identity, PrivateKey, PublicKey};
pub use macs::KEY_BYTES;
use macs::{MAC_BYTES, MacKey};

/// Bytes of a hello and of an answer.
pub const HELLO_BYTES: usize = BASE_BYTES as usize;
/// The versions of what services say to each other that this one speaks.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=1;

/// Where `mac1` of a hello is.
const HELLO_MAC1: usize = HELLO_BYTES - 2 * MAC_BYTES;
const HELLO_MAC2: usize = HELLO_BYTES - MAC_BYTES;
const ANSWER_MAC1: usize = HELLO_BYTES - MAC_BYTES;
/// Bytes of the payload in a hello's Noise message, behind the ephemeral key, the static key and its tag, before its own tag.
const HELLO_PAYLOAD: usize =
    HELLO_MAC1 - HEADER_BYTES - KEY_BYTES - (KEY_BYTES + noise::TAG_BYTES) - noise::TAG_BYTES;
/// Bytes of the payload in an answer's.
const ANSWER_PAYLOAD: usize = ANSWER_MAC1 - HEADER_BYTES - KEY_BYTES - noise::TAG_BYTES;

/// What a node says of itself in a hello and in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Differs between starts of the machine.
    pub boot_id: [u8; 16],
    /// Differs between starts of the service.
    pub incarnation: u64,
    /// The sender's number for the session: another one after it has given the other node up. A channel of another session
    /// continues nothing.
    pub session: u32,
    /// The sender's number for the channel, which packets to it bear.
    pub connection: u32,
    /// Has the sender instructions for AES?
    pub has_aes: bool,
}

/// What a payload tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A version is common to both.
    Greeting(Greeting),
    /// No version is.
    OtherVersion,
}

/// The payload of a hello or an answer.
///
/// # Panics
/// If `LENGTH` is too short for any greeting.
pub fn write_payload<const LENGTH: usize>(greeting: &Greeting) -> [u8; LENGTH] {
    let greeting = postcard::to_stdvec(greeting).expect("a greeting holds numbers only");
    let mut payload = [0; LENGTH];
    payload[0..2].copy_from_slice(&VERSIONS.start().to_le_bytes());
    payload[2..4].copy_from_slice(&VERSIONS.end().to_le_bytes());
    payload[4..6].copy_from_slice(&(greeting.len() as u16).to_le_bytes());
    payload[6..6 + greeting.len()].copy_from_slice(&greeting);
    payload
}

/// What the payload of a hello or an answer tells. `None`: it is malformed.
pub fn read_payload(payload: &[u8]) -> Option<Told> {
    let mut reader = Reader(payload);
    let (lowest, highest) = (reader.u16()?, reader.u16()?);
    if lowest > highest {
        return None;
    }
    if lowest > *VERSIONS.end() || highest < *VERSIONS.start() {
        return Some(Told::OtherVersion);
    }
    let length = reader.u16()?;
    match postcard::take_from_bytes(reader.bytes(length.into())?) {
        Ok((greeting, [])) => Some(Told::Greeting(greeting)),
        _ => None,
    }
}

/// A hello that was sent, and waits for its answer.
#[derive(Debug)]
pub(crate) struct SentHello {
    initiation: noise::Initiation,
    /// The check of the hello, which a cookie is bound to.
    pub mac1: [u8; MAC_BYTES],
}

/// A hello to `responder`, and the packet itself. `number` counts the hellos of this incarnation.
pub(crate) fn write_hello(
    identity: &Identity,
    responder: &PublicKey,
    mac_key: &MacKey,
    cookie: Option<&[u8; MAC_BYTES]>,
    ephemeral: [u8; KEY_BYTES],
    number: u64,
    greeting: &Greeting,
) -> (SentHello, Vec<u8>) {
    let header = Header {
        kind: PacketKind::Hello,
        key_phase: false,
        length: HELLO_BYTES as u16,
        connection: greeting.connection,
        number,
    };
    let header = header.to_bytes();
    let payload = write_payload::<HELLO_PAYLOAD>(greeting);
    let (initiation, message) = noise::initiate(identity.keys(), &responder.0, ephemeral, &header, &payload);
    let mut packet = Vec::with_capacity(HELLO_BYTES);
    packet.extend_from_slice(&header);
    packet.extend_from_slice(&message);
    let mac1 = mac_key.mac(&packet);
    packet.extend_from_slice(&mac1);
    let mac2 = cookie.map_or([0; MAC_BYTES], |cookie| MacKey::of_cookie(cookie).mac(&packet));
    packet.extend_from_slice(&mac2);
    debug_assert_eq!(packet.len(), HELLO_BYTES, "the lengths above add up");
    (SentHello { initiation, mac1 }, packet)
}

/// What an answer has brought.
pub(crate) struct Answered {
    pub told: Told,
    pub secret: Secret,
}

impl SentHello {
    /// Reads an answer whose `mac1` was checked. `None`: it is none to this hello, or one of the two keys or the shared secret is
    /// another one. The hello then still waits.
    pub fn read_answer(&mut self, packet: &[u8]) -> Option<Answered> {
        let message = packet.get(HEADER_BYTES..ANSWER_MAC1)?;
        let (payload, secret) = self.initiation.finish(message)?;
        Some(Answered { told: read_payload(&payload)?, secret })
    }
}

/// A hello that was opened: its sender holds the private key of `initiator`.
pub(crate) struct ReadHello {
    pub initiator: PublicKey,
    pub told: Told,
    response: noise::Response,
}

/// Is `packet`, whose header this is, a hello of the right form and made for the holder of `mac_key`?
pub(crate) fn is_hello_for(mac_key: &MacKey, header: &Header, packet: &[u8]) -> bool {
    header.kind == PacketKind::Hello
        && !header.key_phase
        && packet.len() == HELLO_BYTES
        && (mac_key.is_mac(&packet[..HELLO_MAC1], &packet[HELLO_MAC1..HELLO_MAC2])
            || planted::is(Bug::Mac1Unchecked))
}

/// Is `packet`, whose header this is, an answer of the right form and made for the holder of `mac_key`?
pub(crate) fn is_answer_for(mac_key: &MacKey, header: &Header, packet: &[u8]) -> bool {
    header.kind == PacketKind::Answer
        && !header.key_phase
        && header.number == 0
        && packet.len() == HELLO_BYTES
        && mac_key.is_mac(&packet[..ANSWER_MAC1], &packet[ANSWER_MAC1..])
}

/// `mac1` of a hello of the right form.
pub(crate) fn mac1_of(hello: &[u8]) -> [u8; MAC_BYTES] {
    hello[HELLO_MAC1..HELLO_MAC2].try_into().expect("as many bytes as a check has")
}

/// Does a hello of the right form bear this cookie?
pub(crate) fn has_cookie(hello: &[u8], cookie: &[u8; MAC_BYTES]) -> bool {
    MacKey::of_cookie(cookie).is_mac(&hello[..HELLO_MAC2], &hello[HELLO_MAC2..])
}

/// Opens a hello of the right form. `None`: its sender does not hold the key that it claims.
pub(crate) fn read_hello(identity: &Identity, ephemeral: [u8; KEY_BYTES], hello: &[u8]) -> Option<ReadHello> {
    let (header, message) = hello.get(..HELLO_MAC1)?.split_at_checked(HEADER_BYTES)?;
    let (initiator, payload, response) = noise::read(identity.keys(), ephemeral, header, message)?;
    let initiator = PublicKey(initiator);
    Some(ReadHello { initiator, told: read_payload(&payload)?, response })
}

impl ReadHello {
    /// The answer, and the secret of the channel. `connection` is the initiator's number, and `mac_key` is of its public key.
    pub fn answer(self, mac_key: &MacKey, connection: u32, greeting: &Greeting) -> Option<(Vec<u8>, Secret)> {
        let header = Header {
            kind: PacketKind::Answer,
            key_phase: false,
            length: HELLO_BYTES as u16,
            connection,
            number: 0,
        };
        let (message, secret) = self.response.answer(&write_payload::<ANSWER_PAYLOAD>(greeting))?;
        let mut packet = Vec::with_capacity(HELLO_BYTES);
        packet.extend_from_slice(&header.to_bytes());
        packet.extend_from_slice(&message);
        let mac1 = mac_key.mac(&packet);
        packet.extend_from_slice(&mac1);
        debug_assert_eq!(packet.len(), HELLO_BYTES, "the lengths above add up");
        Some((packet, secret))
    }
}
