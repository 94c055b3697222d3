//! The invitations of this service. They are in its memory only, so they end with it.

use std::collections::BTreeMap;

use bywire_wire::channel::INVITATIONS_MAX;
use bywire_wire::handshake::InvitationId;
use bywire_wire::service_message::NotJoined;

/// How long an invitation is good.
pub(super) const LIFE_NS: u64 = 600_000_000_000;
/// How long one is remembered after that, so that who uses it is told why it is not good.
const REMEMBERED_NS: u64 = 3_600_000_000_000;

/// Invitations by their identity.
#[derive(Debug, Default)]
pub(super) struct Invitations(BTreeMap<InvitationId, Invitation>);

#[derive(Debug)]
struct Invitation {
    /// Of the node that may join.
    name: String,
    until_ns: u64,
    is_used: bool,
}

impl Invitation {
    fn is_good(&self, now_ns: u64) -> bool {
        !self.is_used && now_ns < self.until_ns
    }
}

impl Invitations {
    /// Those that have to be forgotten before one for this node is made: older ones for the same node, those that were
    /// remembered for long, and the oldest of those that are no longer good where there are as many as there may be.
    pub(super) fn make_place(&mut self, now_ns: u64, name: &str) -> Vec<InvitationId> {
        let is_over = |invitation: &Invitation| {
            invitation.is_good(now_ns) && invitation.name == name
                || invitation.until_ns.saturating_add(REMEMBERED_NS) <= now_ns
        };
        let over = self.0.iter().filter(|(_, invitation)| is_over(invitation));
        let mut over: Vec<InvitationId> = over.map(|(id, _)| *id).collect();
        if self.0.len() - over.len() >= INVITATIONS_MAX {
            let bad = self.0.iter().filter(|(id, bad)| !bad.is_good(now_ns) && !over.contains(id));
            let oldest = bad.min_by_key(|(_, bad)| bad.until_ns).map(|(id, _)| *id);
            over.extend(oldest);
        }
        self.0.retain(|id, _| !over.contains(id));
        over
    }

    /// Notes an invitation for a node.
    pub(super) fn add(&mut self, now_ns: u64, id: InvitationId, name: String) {
        let until_ns = now_ns.saturating_add(LIFE_NS);
        self.0.insert(id, Invitation { name, until_ns, is_used: false });
    }

    /// Is an invitation good for a node of this name?
    pub(super) fn check(&self, now_ns: u64, id: &InvitationId, name: &str) -> Result<(), NotJoined> {
        match self.0.get(id) {
            None => Err(NotJoined::Expired),
            Some(invitation) if invitation.is_used => Err(NotJoined::Used),
            Some(invitation) if now_ns >= invitation.until_ns => Err(NotJoined::Expired),
            Some(invitation) if invitation.name != name => {
                Err(NotJoined::Rejected(format!("the invitation is for a node {}", invitation.name)))
            }
            Some(_) => Ok(()),
        }
    }

    /// Notes that an invitation was used.
    pub(super) fn use_up(&mut self, id: &InvitationId) {
        if let Some(invitation) = self.0.get_mut(id) {
            invitation.is_used = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> InvitationId {
        InvitationId::of(&[number; 32])
    }

    #[test]
    fn an_invitation_is_good_once_for_its_node_and_for_its_time() {
        let mut invitations = Invitations::default();
        assert_eq!(invitations.check(0, &id(1), "web2"), Err(NotJoined::Expired));
        invitations.add(0, id(1), "web2".to_owned());
        assert_eq!(invitations.check(LIFE_NS - 1, &id(1), "web2"), Ok(()));
        assert_eq!(invitations.check(LIFE_NS, &id(1), "web2"), Err(NotJoined::Expired));
        assert!(matches!(invitations.check(0, &id(1), "web3"), Err(NotJoined::Rejected(_))));
        invitations.use_up(&id(1));
        assert_eq!(invitations.check(0, &id(1), "web2"), Err(NotJoined::Used));
    }

    #[test]
    fn invitations_are_bounded_and_good_ones_stay() {
        let mut invitations = Invitations::default();
        let count = INVITATIONS_MAX as u8;
        for number in 0..count {
            assert_eq!(invitations.make_place(0, &number.to_string()), []);
            invitations.add(number.into(), id(number), number.to_string());
        }
        assert_eq!(invitations.make_place(0, "more"), [], "all are good");
        // One for the same node replaces the older one.
        assert_eq!(invitations.make_place(0, "7"), [id(7)]);
        invitations.add(0, id(7), "7".to_owned());
        invitations.use_up(&id(9));
        invitations.use_up(&id(8));
        assert_eq!(invitations.make_place(0, "more"), [id(8)]);
        assert_eq!(invitations.make_place(0, "more"), [], "there is room now");
        assert_eq!(
            invitations.make_place(LIFE_NS + REMEMBERED_NS + 1000, "more").len(),
            usize::from(count) - 1
        );
    }
}
