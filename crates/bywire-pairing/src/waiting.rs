//! Offered ends that wait for their other ends.

use std::collections::HashMap;

use bywire_sys::credentials::Credentials;
use bywire_sys::deferred::Held;

use crate::identity::Name;
use crate::protocol::Verdict;
use crate::space::Space;

/// One end of a connection, as the kernel names it in its address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// The address space of its names.
    pub space: Space,
    /// Its own name.
    pub local: Name,
    /// The name of the other end.
    pub remote: Name,
}

/// An offered end.
#[derive(Debug)]
pub struct Offer {
    /// The program that has offered it.
    pub program: u64,
    /// The user that this program runs as.
    pub user: u32,
    /// The token that the program gave it.
    pub token: u64,
    /// Its network namespace.
    pub namespace: u64,
    /// The kernel's number of the socket, which is never reused.
    pub cookie: u64,
    /// The process at the other end, for a Unix connection.
    pub peer: Option<Credentials>,
    /// The memory files of the program's segment.
    pub segment: Vec<Held>,
}

/// The outcome of an offer.
#[derive(Debug)]
pub enum Match {
    /// It waits, and replaces an older offer of the same addresses.
    Waits(Option<Offer>),
    /// It waits. The other end, given here, has to be offered once more.
    Again(Offer),
    /// The other end waited.
    Paired {
        /// The new offer.
        ours: Offer,
        /// The offer that waited.
        theirs: Offer,
    },
    /// It is refused, and returned.
    Refused(Verdict, Offer),
}

/// All offers that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    offers: HashMap<End, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    offer: Offer,
    /// The other end that had been offered before this one.
    seen: Option<u64>,
    /// It was offered from two namespaces, so it pairs with no end.
    is_disputed: bool,
}

impl Waiter {
    /// Is an offer of the other end with these values paired at once?
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
    /// A waiting end may have gone, and its addresses may belong to another connection by now. Its program could
    /// arrange that. So programs of two users, or in two namespaces, are paired only if one end was seen both before
    /// and after the other. Then both existed at the same time, and the kernel has only one such pair.
    pub fn offer(&mut self, end: End, offer: Offer) -> Match {
        let mirror = end.mirror();
        // The same addresses from another namespace: one of the connections only looks like the other.
        if let Some(other) = self.offers.get_mut(&end)
            && (other.is_disputed || other.offer.namespace != offer.namespace)
        {
            other.is_disputed = true;
            return Match::Refused(Verdict::Namespace, offer);
        }
        let other = self.offers.get(&mirror);
        // A connection of a socket with itself has no other end.
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
        // Nothing waits under this end's addresses, as it would have met the other end before.
        self.wait(end, offer, Some(theirs.cookie));
        Match::Again(theirs)
    }

    /// Is an offer of this end paired at once, so that it does not wait?
    pub fn is_met(&self, end: &End, user: u32, namespace: u64, cookie: u64) -> bool {
        self.offers.get(&end.mirror()).is_some_and(|other| other.pairs(user, namespace, cookie))
    }

    /// The program that waits with the other end.
    pub fn mate(&self, end: &End) -> Option<u64> {
        self.offers.get(&end.mirror()).map(|waiter| waiter.offer.program)
    }

    fn wait(&mut self, end: End, offer: Offer, seen: Option<u64>) -> Match {
        let stale = self.offers.insert(end, Waiter { offer, seen, is_disputed: false });
        Match::Waits(stale.map(|stale| stale.offer))
    }

    /// Returns whether this program's offer of that socket waits.
    pub fn has(&self, end: &End, program: u64, token: u64, cookie: u64) -> bool {
        self.offers.get(end).is_some_and(|waiter| {
            let offer = &waiter.offer;
            (offer.program, offer.token, offer.cookie) == (program, token, cookie) && !waiter.is_disputed
        })
    }

    /// Takes back an offer of this program.
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
        let address = |text: &str| Name::Address(text.parse().expect("an address"));
        End { space: Space::Joined(0), local: address(local), remote: address(remote) }
    }

    fn offer(user: u32, namespace: u64, cookie: u64) -> Offer {
        let (_, segment) = Mapping::create("bywire-test", 4096).expect("memory");
        Offer {
            program: cookie,
            user,
            token: cookie,
            namespace,
            cookie,
            peer: None,
            segment: vec![segment.into()],
        }
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
    fn an_offer_whose_addresses_are_reused_gets_nothing_of_the_new_connection() {
        let ([client, server], mut waiting) = (ends(), Waiting::default());
        // The thief's end has gone by now, unknown to the service.
        assert!(matches!(waiting.offer(client, offer(666, 1, 10)), Match::Waits(None)));
        assert!(matches!(waiting.offer(server, offer(2, 1, 20)), Match::Again(_)));
        // Another end of the thief cannot stand in for it, as it was not there before.
        assert!(
            matches!(waiting.offer(client, offer(666, 1, 11)), Match::Again(victim) if victim.cookie == 20)
        );
        // The true end comes.
        assert!(
            matches!(waiting.offer(client, offer(1, 1, 12)), Match::Waits(Some(thief)) if thief.cookie == 11)
        );
        assert!(matches!(waiting.offer(server, offer(2, 1, 20)), Match::Again(_)));
        let paired = waiting.offer(client, offer(1, 1, 12));
        assert!(matches!(paired, Match::Paired { theirs, .. } if theirs.cookie == 20));
    }

    #[test]
    fn ends_of_two_namespaces_are_never_paired() {
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
    fn only_the_offering_program_withdraws_an_offer() {
        let ([client, _], mut waiting) = (ends(), Waiting::default());
        assert!(matches!(waiting.offer(client, offer(1, 1, 10)), Match::Waits(None)));
        assert!(waiting.take_back(&client, 10, 11).is_none() && waiting.take_back(&client, 11, 10).is_none());
        assert!(waiting.take_back(&client, 10, 10).is_some());
    }
}
