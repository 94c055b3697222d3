//! The invitations of this service. They are in its memory only, so they end with it. Their time goes on while the machine is
//! suspended.

use std::collections::BTreeMap;

use bywire_wire::channel::INVITATIONS_MAX;
use bywire_wire::handshake::InvitationId;
use bywire_wire::service_message::NotJoined;

/// How long an invitation is good.
pub(super) const LIFE_NS: u64 = 600_000_000_000;
/// How long one is remembered after that, so that who uses it is told why it is not good.
const REMEMBERED_NS: u64 = 3_600_000_000_000;
/// How often the node of an invitation may be refused. Each time may cost the service as much as a change of the file.
const REFUSALS_MAX: u32 = 8;

/// Invitations by their identity.
#[derive(Debug, Default)]
pub(super) struct Invitations(BTreeMap<InvitationId, Invitation>);

#[derive(Debug)]
struct Invitation {
    /// Of the node that may join.
    name: String,
    until_ns: u64,
    is_used: bool,
    refusals: u32,
}

impl Invitation {
    fn is_good(&self, now_ns: u64) -> bool {
        !self.is_used && !self.is_over(now_ns)
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns || self.refusals >= REFUSALS_MAX
    }
}

impl Invitations {
    /// Forgets those that were remembered for long, and returns them.
    pub(super) fn take_old(&mut self, now_ns: u64) -> Vec<InvitationId> {
        let is_old = |invitation: &Invitation| invitation.until_ns.saturating_add(REMEMBERED_NS) <= now_ns;
        let old = self.0.iter().filter(|(_, invitation)| is_old(invitation)).map(|(id, _)| *id).collect();
        self.0.retain(|_, invitation| !is_old(invitation));
        old
    }

    /// Those that have to be forgotten before one for this node is made: older ones for the same node, and the oldest of those
    /// that are no longer good where there are as many as there may be.
    pub(super) fn make_place(&mut self, now_ns: u64, name: &str) -> Vec<InvitationId> {
        let is_same = |invitation: &Invitation| invitation.is_good(now_ns) && invitation.name == name;
        let same = self.0.iter().filter(|(_, invitation)| is_same(invitation));
        let mut over: Vec<InvitationId> = same.map(|(id, _)| *id).collect();
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
        self.0.insert(id, Invitation { name, until_ns, is_used: false, refusals: 0 });
    }

    /// Is an invitation good for a node of this name?
    pub(super) fn check(&self, now_ns: u64, id: &InvitationId, name: &str) -> Result<(), NotJoined> {
        match self.0.get(id) {
            None => Err(NotJoined::Expired),
            Some(invitation) if invitation.is_used => Err(NotJoined::Used),
            Some(invitation) if invitation.is_over(now_ns) => Err(NotJoined::Expired),
            Some(invitation) if invitation.name != name => {
                Err(NotJoined::Rejected(format!("the invitation is for a node {}", invitation.name)))
            }
            Some(_) => Ok(()),
        }
    }

    /// Notes that the node of an invitation was refused.
    pub(super) fn refuse(&mut self, id: &InvitationId) {
        if let Some(invitation) = self.0.get_mut(id) {
            invitation.refusals = invitation.refusals.saturating_add(1);
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
    fn an_invitation_is_over_after_some_refusals_and_is_forgotten_in_time() {
        let mut invitations = Invitations::default();
        for number in [1, 2] {
            invitations.add(0, id(number), format!("web{number}"));
        }
        for _ in 0..REFUSALS_MAX {
            assert_eq!(invitations.check(0, &id(1), "web1"), Ok(()));
            invitations.refuse(&id(1));
        }
        assert_eq!(invitations.check(0, &id(1), "web1"), Err(NotJoined::Expired));
        assert_eq!(invitations.check(0, &id(2), "web2"), Ok(()), "another one is good");
        assert_eq!(invitations.take_old(LIFE_NS + REMEMBERED_NS - 1), []);
        assert_eq!(invitations.take_old(LIFE_NS + REMEMBERED_NS).len(), 2);
        assert_eq!(invitations.check(0, &id(2), "web2"), Err(NotJoined::Expired));
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
        assert_eq!(invitations.take_old(LIFE_NS + REMEMBERED_NS + 1000).len(), usize::from(count) - 1);
    }
}
