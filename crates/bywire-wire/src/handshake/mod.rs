//! The handshake between the services of two nodes: Noise `IKpsk2_25519_ChaChaPoly_BLAKE2s`, guarded by two checks of the
//! packet as in WireGuard (whitepaper, sections 5.3 and 5.4.7).
//!
//! ```text
//! hello   header · Noise message 1 (e, es, s, ss, payload) · mac1 16 · mac2 16       1,200 bytes
//! answer  header · Noise message 2 (e, ee, se, psk, payload) · mac1 16               1,200 bytes
//! cookie  header · salt 32 · cookie 16 · tag 16                                         80 bytes
//! payload lowest version u16 · highest version u16 · length u16 · greeting · invitation 8 or 0 · zeros
//! ```
//!
//! - A hello and its answer have [`BASE_BYTES`]. So an answer is never longer than the packet that caused it, and a
//!   path that does not carry the packets of a connection makes no channel.
//! - In a hello, the header's `connection` is the sender's number, because the receiver's is not known yet. In an
//!   answer and a cookie it is the receiver's. The header's `number` counts the hellos of one incarnation, and is 0
//!   otherwise. The header of a hello is the prologue of its handshake, so a changed header is detected.
//! - `mac1` is keyed by the receiver's public key. A sender that does not know that key gets no answer, and costs one
//!   hash.
//! - `mac2` is keyed by a cookie, which a responder under load sends to the address of the hello.
//! - A node that joins a fabric has an invitation. Its secret is the pre-shared key of the handshake, which is zeros
//!   otherwise, and the hello has the invitation's identity.
//! - Versions are in the payload, so only the two nodes see them. The rest of the payload is parsed only if the two
//!   have a version in common.

pub(crate) mod cookie;
mod identity;
mod invitation;
pub(crate) mod load;
pub(crate) mod macs;
pub(crate) mod noise;

use serde::{Deserialize, Serialize};

use crate::keys::Secret;
use crate::packet::{HEADER_BYTES, Header, PacketKind};
use crate::planted::{self, Bug};
use crate::reader::Reader;
use crate::size::BASE_BYTES;

pub use identity::{CHALLENGE_BYTES, Identity, PrivateKey, PublicKey};
pub use invitation::InvitationId;
use macs::MacKey;
pub use macs::{KEY_BYTES, MAC_BYTES};

/// Bytes of a hello and of an answer.
pub const HELLO_BYTES: usize = BASE_BYTES as usize;
/// The supported versions of the messages between services.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=1;

/// The offset of `mac1` in a hello.
const HELLO_MAC1: usize = HELLO_BYTES - 2 * MAC_BYTES;
const HELLO_MAC2: usize = HELLO_BYTES - MAC_BYTES;
const ANSWER_MAC1: usize = HELLO_BYTES - MAC_BYTES;
/// Bytes of the payload in a hello's Noise message. Before it are the ephemeral key, the static key and its tag, and
/// after it is its own tag.
const HELLO_PAYLOAD: usize =
    HELLO_MAC1 - HEADER_BYTES - KEY_BYTES - (KEY_BYTES + noise::TAG_BYTES) - noise::TAG_BYTES;
/// Bytes of the payload in an answer's Noise message.
const ANSWER_PAYLOAD: usize = ANSWER_MAC1 - HEADER_BYTES - KEY_BYTES - noise::TAG_BYTES;

/// The greeting of a node in a hello and in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Differs between starts of the machine.
    pub boot_id: [u8; 16],
    /// Differs between starts of the service.
    pub incarnation: u64,
    /// The sender's number for the session. It changes when the sender has given up the other node. A channel of
    /// another session does not continue the old one.
    pub session: u32,
    /// The sender's number for the channel. Packets to the sender have it.
    pub connection: u32,
    /// Does the sender have instructions for AES?
    pub has_aes: bool,
}

/// The contents of the payload of a hello or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakePayload {
    /// The two have a version in common.
    Greeting(Greeting),
    /// They have none in common.
    OtherVersion,
}

/// The payload of a hello or an answer.
///
/// # Panics
/// If `LENGTH` is too short for any greeting.
pub fn write_payload<const LENGTH: usize>(greeting: &Greeting) -> [u8; LENGTH] {
    write(greeting, None)
}

fn write<const LENGTH: usize>(greeting: &Greeting, invitation: Option<InvitationId>) -> [u8; LENGTH] {
    let mut greeting = postcard::to_stdvec(greeting).expect("a greeting holds numbers only");
    greeting.extend(invitation.iter().flat_map(|invitation| invitation.0));
    let mut payload = [0; LENGTH];
    payload[0..2].copy_from_slice(&VERSIONS.start().to_le_bytes());
    payload[2..4].copy_from_slice(&VERSIONS.end().to_le_bytes());
    payload[4..6].copy_from_slice(&(greeting.len() as u16).to_le_bytes());
    payload[6..6 + greeting.len()].copy_from_slice(&greeting);
    payload
}

/// Parses the payload of a hello or an answer. `None`: it is malformed.
pub fn read_payload(payload: &[u8]) -> Option<HandshakePayload> {
    read(payload).map(|(payload, _)| payload)
}

fn read(payload: &[u8]) -> Option<(HandshakePayload, Option<InvitationId>)> {
    let mut reader = Reader(payload);
    let (lowest, highest) = (reader.u16()?, reader.u16()?);
    if lowest > highest {
        return None;
    }
    if lowest > *VERSIONS.end() || highest < *VERSIONS.start() {
        return Some((HandshakePayload::OtherVersion, None));
    }
    let length = reader.u16()?;
    let (greeting, rest) = postcard::take_from_bytes(reader.bytes(length.into())?).ok()?;
    let invitation = match rest {
        [] => None,
        rest => Some(InvitationId(rest.try_into().ok()?)),
    };
    Some((HandshakePayload::Greeting(greeting), invitation))
}

/// A hello that was sent and that waits for its answer.
#[derive(Debug)]
pub(crate) struct SentHello {
    initiation: noise::Initiation,
    /// The `mac1` of the hello, to which a cookie is bound.
    pub mac1: [u8; MAC_BYTES],
}

/// Makes a hello to `responder`, and its packet. `number` counts the hellos of this incarnation.
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
    let payload = write::<HELLO_PAYLOAD>(greeting, identity.invitation());
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

/// The result of an answer.
pub(crate) struct Answered {
    pub payload: HandshakePayload,
    pub secret: Secret,
}

impl SentHello {
    /// Reads an answer whose `mac1` was checked. `None`: it does not answer this hello, or one of the two keys or the
    /// shared secret differs. The hello then continues to wait.
    pub fn read_answer(&mut self, packet: &[u8]) -> Option<Answered> {
        let message = packet.get(HEADER_BYTES..ANSWER_MAC1)?;
        let (payload, secret) = self.initiation.finish(message)?;
        Some(Answered { payload: read_payload(&payload)?, secret })
    }
}

/// An opened hello: its sender has the private key of `initiator`.
pub(crate) struct ReadHello {
    pub initiator: PublicKey,
    pub payload: HandshakePayload,
    pub invitation: Option<InvitationId>,
    response: noise::Response,
}

/// Is `packet`, with this header, a well-formed hello for the owner of `mac_key`?
pub(crate) fn is_hello_for(mac_key: &MacKey, header: &Header, packet: &[u8]) -> bool {
    header.kind == PacketKind::Hello
        && !header.key_phase
        && packet.len() == HELLO_BYTES
        && (mac_key.is_mac(&packet[..HELLO_MAC1], &packet[HELLO_MAC1..HELLO_MAC2])
            || planted::is(Bug::Mac1Unchecked))
}

/// Is `packet`, with this header, a well-formed answer for the owner of `mac_key`?
pub(crate) fn is_answer_for(mac_key: &MacKey, header: &Header, packet: &[u8]) -> bool {
    header.kind == PacketKind::Answer
        && !header.key_phase
        && header.number == 0
        && packet.len() == HELLO_BYTES
        && mac_key.is_mac(&packet[..ANSWER_MAC1], &packet[ANSWER_MAC1..])
}

/// The `mac1` of a well-formed hello.
pub(crate) fn mac1_of(hello: &[u8]) -> [u8; MAC_BYTES] {
    hello[HELLO_MAC1..HELLO_MAC2].try_into().expect("as many bytes as a check has")
}

/// Does a well-formed hello have this cookie?
pub(crate) fn has_cookie(hello: &[u8], cookie: &[u8; MAC_BYTES]) -> bool {
    MacKey::of_cookie(cookie).is_mac(&hello[..HELLO_MAC2], &hello[HELLO_MAC2..])
}

/// For tests: the hello with the cookie of a packet that answers it. `None`: it is no answer of `responder` to this hello.
#[doc(hidden)]
pub fn with_cookie(responder: &PublicKey, hello: &[u8], packet: &[u8]) -> Option<Vec<u8>> {
    let cookie = cookie::read(&responder.0, &mac1_of(hello), packet)?;
    let front = &hello[..HELLO_MAC2];
    Some([front, &MacKey::of_cookie(&cookie).mac(front)].concat())
}

/// Opens a well-formed hello. `None`: its sender does not have the key that it claims.
pub(crate) fn read_hello(identity: &Identity, ephemeral: [u8; KEY_BYTES], hello: &[u8]) -> Option<ReadHello> {
    let (header, message) = hello.get(..HELLO_MAC1)?.split_at_checked(HEADER_BYTES)?;
    let (initiator, payload, response) = noise::read(identity.keys(), ephemeral, header, message)?;
    let initiator = PublicKey(initiator);
    let (payload, invitation) = read(&payload)?;
    Some(ReadHello { initiator, payload, invitation, response })
}

impl ReadHello {
    /// Answers with the secret of an invitation.
    pub fn use_secret(&mut self, secret: &[u8; KEY_BYTES]) {
        self.response.use_secret(secret);
    }

    /// The answer, and the secret of the channel. `connection` is the initiator's number, and `mac_key` belongs to its
    /// public key.
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
