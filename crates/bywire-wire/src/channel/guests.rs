//! Invitations, and the guests that use them. A guest is a node that is not in the table, and whose hello names an invitation. It
//! may stay for a bounded time, in which the service adds it. An invitation has at most one guest, and a stranger cannot name
//! one, so guesses leave nothing behind.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use crate::handshake::{InvitationId, KEY_BYTES, PublicKey};

/// The most invitations at a time.
pub const INVITATIONS_MAX: usize = 64;
/// How long a guest may stay.
pub const GUEST_NS: u64 = 30_000_000_000;

/// The invitations.
#[derive(Default)]
pub(super) struct Guests(BTreeMap<InvitationId, Invitation>);

struct Invitation {
    secret: Zeroizing<[u8; KEY_BYTES]>,
    /// The guest, and the end of its time.
    guest: Option<(PublicKey, u64)>,
}

impl Guests {
    /// Adds an invitation. `None`: there are too many.
    pub fn invite(&mut self, secret: [u8; KEY_BYTES]) -> Option<InvitationId> {
        let id = InvitationId::of(&secret);
        if self.0.len() >= INVITATIONS_MAX && !self.0.contains_key(&id) {
            return None;
        }
        self.0.insert(id, Invitation { secret: Zeroizing::new(secret), guest: None });
        Some(id)
    }

    /// Removes an invitation. Returns its guest.
    pub fn withdraw(&mut self, id: &InvitationId) -> Option<PublicKey> {
        self.0.remove(id)?.guest.map(|(node, _)| node)
    }

    /// The secret of an invitation.
    pub fn secret(&self, id: &InvitationId) -> Option<&[u8; KEY_BYTES]> {
        self.0.get(id).map(|invitation| &*invitation.secret)
    }

    /// The guest of an invitation.
    pub fn guest(&self, id: &InvitationId) -> Option<PublicKey> {
        self.0.get(id)?.guest.map(|(node, _)| node)
    }

    /// A node is the guest of an invitation from now on.
    pub fn begin(&mut self, now_ns: u64, id: &InvitationId, node: PublicKey) {
        if let Some(invitation) = self.0.get_mut(id) {
            invitation.guest = Some((node, now_ns.saturating_add(GUEST_NS)));
        }
    }

    /// The invitation of a guest.
    pub fn invitation(&self, node: &PublicKey) -> Option<InvitationId> {
        let mut invitations = self.0.iter();
        let found =
            invitations.find(|(_, invitation)| invitation.guest.is_some_and(|(guest, _)| guest == *node));
        found.map(|(id, _)| *id)
    }

    /// A node is no guest any more.
    pub fn end(&mut self, node: &PublicKey) {
        for invitation in self.0.values_mut() {
            invitation.guest.take_if(|(guest, _)| guest == node);
        }
    }

    /// When the time of the first guest is over.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.values().filter_map(|invitation| invitation.guest).map(|(_, until_ns)| until_ns).min()
    }

    /// Guests whose time is over.
    pub fn due(&self, now_ns: u64) -> Vec<PublicKey> {
        let guests = self.0.values().filter_map(|invitation| invitation.guest);
        guests.filter(|(_, until_ns)| *until_ns <= now_ns).map(|(node, _)| node).collect()
    }
}

impl std::fmt::Debug for Guests {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secrets are not printed.
        formatter.debug_list().entries(self.0.iter().map(|(id, invitation)| (id, invitation.guest))).finish()
    }
}
