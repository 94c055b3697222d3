//! The two messages of Noise, by the library `snow`. Only this file uses that library.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use crate::keys::Secret;
use crate::planted::{self, Bug};

use super::macs::{self, KEY_BYTES};

/// The bytes of a tag.
pub const TAG_BYTES: usize = 16;
const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// The position of the shared secret in the pattern.
const SECRET_PLACE: u8 = 2;

/// Random bytes given by the caller, enough for one ephemeral key.
struct Drawn(Option<[u8; KEY_BYTES]>);

impl Random for Drawn {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        let drawn = self.0.take().filter(|drawn| drawn.len() == bytes.len()).ok_or(snow::Error::Rng)?;
        bytes.copy_from_slice(&drawn);
        Ok(())
    }
}

/// The keys that a node has before the first message.
#[derive(Clone, Copy)]
pub struct Keys<'keys> {
    pub private: &'keys [u8; KEY_BYTES],
    /// The secret that both ends know beforehand, if there is one.
    pub shared: Option<&'keys [u8; KEY_BYTES]>,
}

struct Resolver {
    ephemeral: [u8; KEY_BYTES],
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Drawn(Some(self.ephemeral))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// The public key for a private one.
pub fn public_of(private: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
    let mut curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("the curve is compiled in");
    curve.set(private);
    curve.pubkey().try_into().expect("keys of this curve have 32 bytes")
}

fn state(
    keys: Keys,
    responder: Option<&[u8; KEY_BYTES]>,
    ephemeral: [u8; KEY_BYTES],
    prologue: &[u8],
) -> HandshakeState {
    let pattern = PATTERN.parse().expect("a pattern of the library's");
    let builder = Builder::with_resolver(pattern, Box::new(Resolver { ephemeral }));
    let shared = keys.shared.filter(|_| !planted::is(Bug::SharedSecretIgnored));
    let secret = shared.copied().unwrap_or_default();
    let built = builder
        .local_private_key(keys.private)
        .and_then(|builder| builder.psk(SECRET_PLACE, &secret))
        .and_then(|builder| builder.prologue(prologue))
        .and_then(|builder| match responder {
            Some(responder) => builder.remote_public_key(responder)?.build_initiator(),
            None => builder.build_responder(),
        });
    built.expect("the pattern has all the keys that it needs")
}

/// The secret that both ends share after the second message. In Noise its two keys are secret and its hash is not, so
/// the hash is the salt.
fn secret_of(state: &mut HandshakeState) -> Secret {
    let mut hash = [0; KEY_BYTES];
    hash.copy_from_slice(state.get_handshake_hash());
    let (first, second) = state.dangerously_get_raw_split();
    let keys = Zeroizing::new([first, second].concat());
    Secret::take(&mut macs::derive(&hash, &keys, b"bywire channel"))
}

/// The state after the first message was sent.
#[derive(Debug)]
pub struct Initiation(HandshakeState);

/// Makes the first message.
pub fn initiate(
    keys: Keys,
    responder: &[u8; KEY_BYTES],
    ephemeral: [u8; KEY_BYTES],
    prologue: &[u8],
    payload: &[u8],
) -> (Initiation, Vec<u8>) {
    let mut state = state(keys, Some(responder), ephemeral, prologue);
    let mut message = vec![0; KEY_BYTES + KEY_BYTES + TAG_BYTES + payload.len() + TAG_BYTES];
    let length = state.write_message(payload, &mut message).expect("the buffer has room for the message");
    message.truncate(length);
    (Initiation(state), message)
}

impl Initiation {
    /// Reads the second message, and returns its payload and the secret. `None`: it is forged, and another may come.
    pub fn finish(&mut self, message: &[u8]) -> Option<(Vec<u8>, Secret)> {
        let mut payload = vec![0; message.len()];
        let length = self.0.read_message(message, &mut payload).ok()?;
        payload.truncate(length);
        Some((payload, secret_of(&mut self.0)))
    }
}

/// The state after the first message was read.
#[derive(Debug)]
pub struct Response(HandshakeState);

/// Reads the first message, and returns its sender, its payload, and the state for the second. `None`: it is forged.
pub fn read(
    keys: Keys,
    ephemeral: [u8; KEY_BYTES],
    prologue: &[u8],
    message: &[u8],
) -> Option<([u8; KEY_BYTES], Vec<u8>, Response)> {
    let mut state = state(keys, None, ephemeral, prologue);
    let mut payload = vec![0; message.len()];
    let length = state.read_message(message, &mut payload).ok()?;
    payload.truncate(length);
    let initiator = state.get_remote_static()?.try_into().ok()?;
    Some((initiator, payload, Response(state)))
}

impl Response {
    /// Changes the secret that both ends know beforehand. The first message does not depend on it.
    pub fn use_secret(&mut self, secret: &[u8; KEY_BYTES]) {
        let place = usize::from(SECRET_PLACE);
        self.0.set_psk(place, secret).expect("the pattern has a secret at this place");
    }

    /// Makes the second message, and returns it with the secret. `None`: the library refuses.
    pub fn answer(mut self, payload: &[u8]) -> Option<(Vec<u8>, Secret)> {
        let mut message = vec![0; KEY_BYTES + payload.len() + TAG_BYTES];
        let length = self.0.write_message(payload, &mut message).ok()?;
        message.truncate(length);
        Some((message, secret_of(&mut self.0)))
    }
}
