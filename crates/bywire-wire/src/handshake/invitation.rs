//! The identity of an invitation.

use super::macs::{self, KEY_BYTES};

/// The identity of an invitation, derived from its secret. Only somebody who has the secret has it, as it crosses the network
/// encrypted. It tells which secret is meant, and the handshake proves the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvitationId(pub(super) [u8; 8]);

impl InvitationId {
    /// The identity of the invitation with this secret.
    pub fn of(secret: &[u8; KEY_BYTES]) -> Self {
        let derived = macs::derive(b"", secret, b"bywire invitation");
        Self(*derived.first_chunk().expect("32 bytes"))
    }
}
