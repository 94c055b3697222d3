//! The counts of a run: every transition of an endpoint, and what the simulation does.

use std::collections::BTreeMap;

use bywire_match::Counts as Transitions;

/// The names of the simulation that must be counted in some run.
const NAMES: [&str; 12] = [
    "simulation: claims lost with a forgotten peer",
    "simulation: connections ended",
    "simulation: exposed buffers whose peer had ended",
    "simulation: messages cut off by an end",
    "simulation: messages to oneself",
    "simulation: more than 64 messages wait",
    "simulation: more than 64 receives wait",
    "simulation: peeks that found nothing",
    "simulation: peers that came back",
    "simulation: receives refused",
    "simulation: sends refused",
    "simulation: the link had no room",
];

/// Counts by name, or 0.
#[derive(Clone, Debug)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Default for Counts {
    fn default() -> Self {
        let mut counts = Self(NAMES.map(|name| (name, 0)).into());
        counts.add_endpoint(&Transitions::default());
        counts
    }
}

impl Counts {
    /// Counts what the simulation does.
    ///
    /// # Panics
    /// If the name is not listed, because its absence would not be noticed.
    pub(crate) fn note(&mut self, name: &'static str) {
        assert!(NAMES.contains(&name), "{name}");
        self.add(name, 1);
    }

    fn add(&mut self, name: &'static str, number: u64) {
        *self.0.entry(name).or_default() += number;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, number)| self.add(name, *number));
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, number)| (*name, *number))
    }

    /// Adds the counts of one endpoint.
    pub(crate) fn add_endpoint(&mut self, counts: &Transitions) {
        // They are named one by one, so that a new count does not compile without a line here.
        let Transitions {
            eager_messages_sent,
            eager_messages_at_once,
            requests_sent,
            requests_for_want_of_window,
            sends_held_by_unanswered_requests,
            eager_messages_expected,
            eager_messages_unexpected,
            requests_expected,
            requests_unexpected,
            receives_matched_at_once,
            grants_of_puts,
            grants_of_pieces,
            grants_of_nothing,
            puts,
            pieces,
            acknowledgements,
            eager_messages_truncated,
            requests_truncated,
            receives_cancelled,
            messages_claimed,
            claims_received,
            claims_discarded,
            credits,
            windows_grown,
            windows_not_grown,
            sends_failed,
            receives_failed,
            requests_lost,
        } = *counts;
        self.add("endpoint: eager messages sent", eager_messages_sent);
        self.add("endpoint: eager messages sent at once", eager_messages_at_once);
        self.add("endpoint: requests sent", requests_sent);
        self.add("endpoint: requests for want of window", requests_for_want_of_window);
        self.add("endpoint: sends held by unanswered requests", sends_held_by_unanswered_requests);
        self.add("endpoint: eager messages expected", eager_messages_expected);
        self.add("endpoint: eager messages unexpected", eager_messages_unexpected);
        self.add("endpoint: requests expected", requests_expected);
        self.add("endpoint: requests unexpected", requests_unexpected);
        self.add("endpoint: receives matched at once", receives_matched_at_once);
        self.add("endpoint: grants of puts", grants_of_puts);
        self.add("endpoint: grants of pieces", grants_of_pieces);
        self.add("endpoint: grants of nothing", grants_of_nothing);
        self.add("endpoint: puts", puts);
        self.add("endpoint: pieces", pieces);
        self.add("endpoint: acknowledgements", acknowledgements);
        self.add("endpoint: eager messages truncated", eager_messages_truncated);
        self.add("endpoint: requests truncated", requests_truncated);
        self.add("endpoint: receives cancelled", receives_cancelled);
        self.add("endpoint: messages claimed", messages_claimed);
        self.add("endpoint: claims received", claims_received);
        self.add("endpoint: claims discarded", claims_discarded);
        self.add("endpoint: credits", credits);
        self.add("endpoint: windows grown", windows_grown);
        self.add("endpoint: windows not grown", windows_not_grown);
        self.add("endpoint: sends failed", sends_failed);
        self.add("endpoint: receives failed", receives_failed);
        self.add("endpoint: requests lost", requests_lost);
    }
}
