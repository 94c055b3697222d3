//! The counts of a run: every transition of an endpoint, and what the simulation does.

use bywire_match::Counts as Transitions;

use crate::tally::{Names, Tally};

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

/// What a simulation of tagged messages counts.
#[derive(Clone, Debug)]
pub struct Tagged;

/// The counts of a run.
pub type Counts = Tally<Tagged>;

impl Names for Tagged {
    fn names() -> Vec<&'static str> {
        let transitions = transitions(&Transitions::default());
        NAMES.into_iter().chain(transitions.map(|(name, _)| name)).collect()
    }
}

/// The transitions of one endpoint, by name.
pub(super) fn transitions(counts: &Transitions) -> [(&'static str, u64); 28] {
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
    [
        ("endpoint: eager messages sent", eager_messages_sent),
        ("endpoint: eager messages sent at once", eager_messages_at_once),
        ("endpoint: requests sent", requests_sent),
        ("endpoint: requests for want of window", requests_for_want_of_window),
        ("endpoint: sends held by unanswered requests", sends_held_by_unanswered_requests),
        ("endpoint: eager messages expected", eager_messages_expected),
        ("endpoint: eager messages unexpected", eager_messages_unexpected),
        ("endpoint: requests expected", requests_expected),
        ("endpoint: requests unexpected", requests_unexpected),
        ("endpoint: receives matched at once", receives_matched_at_once),
        ("endpoint: grants of puts", grants_of_puts),
        ("endpoint: grants of pieces", grants_of_pieces),
        ("endpoint: grants of nothing", grants_of_nothing),
        ("endpoint: puts", puts),
        ("endpoint: pieces", pieces),
        ("endpoint: acknowledgements", acknowledgements),
        ("endpoint: eager messages truncated", eager_messages_truncated),
        ("endpoint: requests truncated", requests_truncated),
        ("endpoint: receives cancelled", receives_cancelled),
        ("endpoint: messages claimed", messages_claimed),
        ("endpoint: claims received", claims_received),
        ("endpoint: claims discarded", claims_discarded),
        ("endpoint: credits", credits),
        ("endpoint: windows grown", windows_grown),
        ("endpoint: windows not grown", windows_not_grown),
        ("endpoint: sends failed", sends_failed),
        ("endpoint: receives failed", receives_failed),
        ("endpoint: requests lost", requests_lost),
    ]
}
