//! The identity of a node: its keys, and the numbers of its starts.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::invitation::InvitationId;
use super::macs::KEY_BYTES;
use super::noise::{self, Keys};

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
