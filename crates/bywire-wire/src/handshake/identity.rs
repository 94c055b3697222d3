//! The identity of a node: its keys, and the numbers of its starts.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::invitation::InvitationId;
use super::macs::{self, KEY_BYTES, MAC_BYTES, MacKey};
use super::noise::{self, Keys};

/// Bytes of a challenge: see [`PrivateKey::prove`].
pub const CHALLENGE_BYTES: usize = 16;

/// The public key of a node, which identifies it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))?;
        formatter.write_str("…")
    }
}

/// The private key of a node. It is erased when it is dropped.
#[derive(Clone)]
pub struct PrivateKey {
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

impl PrivateKey {
    /// The key of any 32 random bytes.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self { public: PublicKey(noise::public_of(&bytes)), bytes: Zeroizing::new(bytes) }
    }

    /// Its public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// A proof for another holder of this key, which has chosen the challenge, that the sender of a text has the key.
    pub fn prove(&self, challenge: &[u8; CHALLENGE_BYTES], text: &str) -> [u8; MAC_BYTES] {
        self.proof_key().mac(&[challenge, text.as_bytes()].concat())
    }

    /// Is this the proof of the challenge and the text? The comparison takes constant time.
    pub fn is_proof(&self, challenge: &[u8; CHALLENGE_BYTES], text: &str, proof: &[u8]) -> bool {
        self.proof_key().is_mac(&[challenge, text.as_bytes()].concat(), proof)
    }

    /// A text that only a holder of this key can read, and that only a holder can have made. The salt is random.
    pub fn seal(&self, salt: &[u8; KEY_BYTES], text: &str) -> Vec<u8> {
        macs::seal_text(&Zeroizing::new(self.text_key(salt)), text)
    }

    /// The text that a holder of this key has sealed with this salt. `None`: there is none.
    pub fn open(&self, salt: &[u8; KEY_BYTES], sealed: Vec<u8>) -> Option<String> {
        macs::open_text(&Zeroizing::new(self.text_key(salt)), sealed)
    }

    fn text_key(&self, salt: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
        macs::derive(salt, self.bytes(), b"bywire sealed text")
    }

    fn proof_key(&self) -> MacKey {
        MacKey::new(&*Zeroizing::new(macs::derive(b"", self.bytes(), b"bywire proof")))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PrivateKey(of {:?})", self.public)
    }
}

/// The identity of a node in handshakes.
#[derive(Clone)]
pub struct Identity {
    /// Its key.
    pub key: PrivateKey,
    /// The secret of the invitation that it uses, if it is about to join a fabric.
    pub shared_secret: Option<[u8; KEY_BYTES]>,
    /// Differs between starts of the machine.
    pub boot_id: [u8; 16],
    /// Differs between starts of the service.
    pub incarnation: u64,
}

impl Identity {
    pub(super) fn keys(&self) -> Keys<'_> {
        Keys { private: self.key.bytes(), shared: self.shared_secret.as_ref() }
    }

    pub(super) fn invitation(&self) -> Option<InvitationId> {
        self.shared_secret.as_ref().map(InvitationId::of)
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The shared secret is not printed.
        write!(formatter, "Identity({:?}, incarnation {:#x})", self.key.public, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_its_key_its_challenge_and_its_text() {
        let [key, other] = [1, 2].map(|byte| PrivateKey::new([byte; KEY_BYTES]));
        let proof = key.prove(&[7; CHALLENGE_BYTES], "web2");
        assert!(key.is_proof(&[7; CHALLENGE_BYTES], "web2", &proof));
        assert!(!key.is_proof(&[8; CHALLENGE_BYTES], "web2", &proof));
        assert!(!key.is_proof(&[7; CHALLENGE_BYTES], "web3", &proof));
        assert!(!other.is_proof(&[7; CHALLENGE_BYTES], "web2", &proof));
        assert!(!key.is_proof(&[7; CHALLENGE_BYTES], "web2", &[]));
    }

    #[test]
    fn a_sealed_text_is_for_holders_of_the_key() {
        let [key, other] = [1, 2].map(|byte| PrivateKey::new([byte; KEY_BYTES]));
        let salt = [7; KEY_BYTES];
        let sealed = key.seal(&salt, "a secret");
        assert_eq!(key.open(&salt, sealed.clone()).as_deref(), Some("a secret"));
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(other.open(&salt, sealed.clone()), None);
        assert_eq!(key.open(&[8; KEY_BYTES], sealed.clone()), None);
        for place in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[place] ^= 1;
            assert_eq!(key.open(&salt, forged), None);
        }
        assert_eq!(key.open(&salt, Vec::new()), None);
    }
}
