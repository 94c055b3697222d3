//! Ends that were offered, and wait for the other one.

use std::collections::HashMap;
use std::net::SocketAddr;

use bywire_sys::deferred::Held;

use crate::protocol::Verdict;
use crate::space::Space;

/// One end, as the kernel names it, where that name means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// Where its addresses mean what they do.
    pub space: Space,
    /// Its own address.
    pub local: SocketAddr,
    /// That of the other end.
    pub remote: SocketAddr,
}

/// An end that was offered.
#[derive(Debug)]
pub struct Offer {
    /// Who has offered it.
    pub program: u64,
    /// The user that this program runs as.
    pub user: u32,
    /// What the program calls it.
    pub token: u64,
    /// Its network namespace.
    pub namespace: u64,
    /// What the kernel calls the socket, once and never again.
    pub cookie: u64,
    /// The program's memory.
    pub segment: Held,
}

/// What comes of an offer.
#[derive(Debug)]
pub enum Match {
    /// It waits, in the place of one of the same name that is no more.
    Waits(Option<Offer>),
    /// It waits, and the other end is to be offered once more.
    Again(Offer),
    /// This is the other end.
    Paired {
        /// The one that was offered now.
        ours: Offer,
        /// The one that waited.
        theirs: Offer,
    },
    /// Nothing, and here it is again.
    Refused(Verdict, Offer),
}

/// All that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    offers: HashMap<End, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    offer: Offer,
    /// The other end, which was there before.
    seen: Option<u64>,
    /// Offered from two namespaces: it pairs with nobody.
    is_disputed: bool,
}

impl Waiter {
    /// Is the other end, offered so, paired with this one at once?
    fn pairs(&self, user: u32, namespace: u64, cookie: u64) -> bool {
        let is_one_users = self.offer.user == user && self.offer.namespace == namespace;
        !self.is_disputed && self.offer.cookie != cookie && (is_one_users || self.seen == Some(cookie))
    }
}

impl End {
    fn mirror(self) -> Self {
        Self { local: self.remote, remote: self.local, ..self }
    }
}

impl Waiting {
    /// Pairs an end with the one that waits for it, or lets it wait.
    ///
    /// An end that waits may be gone by now, and its addresses another connection's, which its program could bring about.
    /// So programs that need not trust each other are paired only when the one end was seen before the other and after
    /// it: then it was there when that one was, and of two such ends the kernel has one pair.
    pub fn offer(&mut self, end: End, offer: Offer) -> Match {
        let mirror = end.mirror();
        // The same end from elsewhere: somebody has built a connection that only looks like this one.
        if let Some(other) = self.offers.get_mut(&end)
            && (other.is_disputed || other.offer.namespace != offer.namespace)
        {
            other.is_disputed = true;
            return Match::Refused(Verdict::Namespace, offer);
        }
        let other = self.offers.get(&mirror);
        // A connection of one socket with itself is nobody's other end.
        let Some(other) = other.filter(|other| other.offer.cookie != offer.cookie) else {
            return self.wait(end, offer, None);
        };
        if other.is_disputed {
            return Match::Refused(Verdict::Namespace, offer);
        }
        let pairs = other.pairs(offer.user, offer.namespace, offer.cookie);
        let Some(Waiter { offer: theirs, .. }) = self.offers.remove(&mirror) else {
            return Match::Refused(Verdict::Refused, offer);
        };
        if pairs {
            return Match::Paired { ours: offer, theirs };
        }
        // Nothing of this end's name waits beside its mirror: it would have met that.
        self.wait(end, offer, Some(theirs.cookie));
        Match::Again(theirs)
    }

    /// Does an offer of this end wait for nothing: is it paired, or refused?
    pub fn is_met(&self, end: &End, user: u32, namespace: u64, cookie: u64) -> bool {
        self.offers.get(&end.mirror()).is_some_and(|other| other.pairs(user, namespace, cookie))
    }

    /// The program whose offer of the other end waits.
    pub fn mate(&self, end: &End) -> Option<u64> {
        self.offers.get(&end.mirror()).map(|waiter| waiter.offer.program)
    }

    fn wait(&mut self, end: End, offer: Offer, seen: Option<u64>) -> Match {
        let stale = self.offers.insert(end, Waiter { offer, seen, is_disputed: false });
        Match::Waits(stale.map(|stale| stale.offer))
    }

    /// The program takes its offer back.
    pub fn take_back(&mut self, end: &End, program: u64, token: u64) -> Option<Offer> {
        let found = self.offers.get(end)?;
        if (found.offer.program, found.offer.token) != (program, token) {
            return None;
        }
        self.offers.remove(end).map(|waiter| waiter.offer)
    }
}

#[cfg(test)]
mod tests {
    use bywire_sys::memory::Mapping;

    use super::*;

    fn end(local: &str, remote: &str) -> End {
        let address = |text: &str| text.parse().expect("an address");
        End { space: Space::Joined(0), local: address(local), remote: address(remote) }
    }

    fn offer(user: u32, namespace: u64, cookie: u64) -> Offer {
        let (_, segment) = Mapping::create("bywire-test", 4096).expect("memory");
        Offer { program: cookie, user, token: cookie, namespace, cookie, segment: segment.into() }
    }

    fn ends() -> [End; 2] {
        [end("10.0.0.1:1", "10.0.0.2:2"), end("10.0.0.2:2", "10.0.0.1:1")]
    }

    #[test]
    fn programs_of_one_user_are_paired_at_once() {
        let ([client, server], mut waiting) = (ends(), Waiting::default());
        assert!(matches!(waiting.offer(client, offer(1, 1, 10)), Match::Waits(None)));
        let Match::Paired { ours, theirs } = waiting.offer(server, offer(1, 1, 20)) else { panic!("paired") };
        assert_eq!((ours.cookie, theirs.cookie), (20, 10));
        assert!(waiting.offers.is_empty());
    }

    #[test]
    fn programs_of_two_users_are_paired_when_one_end_was_seen_before_the_other_and_after_it() {
        let ([client, server], mut waiting) = (ends(), Waiting::default());
        assert!(matches!(waiting.offer(client, offer(1, 1, 10)), Match::Waits(None)));
        assert!(matches!(waiting.offer(server, offer(2, 1, 20)), Match::Again(first) if first.cookie == 10));
        let paired = waiting.offer(client, offer(1, 1, 10));
        assert!(matches!(paired, Match::Paired { theirs, .. } if theirs.cookie == 20));
    }

    #[test]
    fn who_waits_under_a_name_that_becomes_another_connections_gets_nothing_of_it() {
        let ([client, server], mut waiting) = (ends(), Waiting::default());
        // The thief's end is gone by now, which nobody has said here.
        assert!(matches!(waiting.offer(client, offer(666, 1, 10)), Match::Waits(None)));
        assert!(matches!(waiting.offer(server, offer(2, 1, 20)), Match::Again(_)));
        // Another end of the thief's cannot stand in for it, as it was not there before.
        assert!(
            matches!(waiting.offer(client, offer(666, 1, 11)), Match::Again(victim) if victim.cookie == 20)
        );
        // The true one comes.
        assert!(
            matches!(waiting.offer(client, offer(1, 1, 12)), Match::Waits(Some(thief)) if thief.cookie == 11)
        );
        assert!(matches!(waiting.offer(server, offer(2, 1, 20)), Match::Again(_)));
        let paired = waiting.offer(client, offer(1, 1, 12));
        assert!(matches!(paired, Match::Paired { theirs, .. } if theirs.cookie == 20));
    }

    #[test]
    fn what_two_namespaces_offer_is_paired_with_nobody() {
        let ([client, server], mut waiting) = (ends(), Waiting::default());
        assert!(matches!(waiting.offer(client, offer(1, 1, 10)), Match::Waits(None)));
        let refused = |found: Match| matches!(found, Match::Refused(Verdict::Namespace, _));
        assert!(refused(waiting.offer(client, offer(1, 3, 30))));
        assert!(refused(waiting.offer(server, offer(1, 2, 20))));
        assert!(refused(waiting.offer(client, offer(1, 1, 10))), "not even what came first");
        assert!(waiting.take_back(&client, 10, 10).is_some() && waiting.offers.is_empty());
    }

    #[test]
    fn namespaces_that_are_joined_are_paired_with_the_same_care_as_users() {
        let ([client, server], mut waiting) = (ends(), Waiting::default());
        assert!(matches!(waiting.offer(client, offer(1, 1, 10)), Match::Waits(None)));
        assert!(matches!(waiting.offer(server, offer(1, 2, 20)), Match::Again(_)));
        assert!(matches!(waiting.offer(client, offer(1, 1, 10)), Match::Paired { .. }));
    }

    #[test]
    fn only_who_has_offered_takes_back() {
        let ([client, _], mut waiting) = (ends(), Waiting::default());
        assert!(matches!(waiting.offer(client, offer(1, 1, 10)), Match::Waits(None)));
        assert!(waiting.take_back(&client, 10, 11).is_none() && waiting.take_back(&client, 11, 10).is_none());
        assert!(waiting.take_back(&client, 10, 10).is_some());
    }
}
