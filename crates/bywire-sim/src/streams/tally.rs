//! The counts of a run: every transition of a machine, and what the simulation does.

use bywire_stream::Counts as Transitions;

use crate::tally::{Names, Tally};

/// The names of the simulation that must be counted in some run.
const NAMES: [&str; 18] = [
    "engines: connections shut down",
    "engines: killed",
    "engines: streams lost",
    "link: full",
    "link: messages in an outage",
    "link: messages sent again",
    "returns: asked",
    "returns: asked before the start",
    "returns: behind it",
    "returns: never started",
    "returns: unasked",
    "returns: where the reader stopped",
    "streams: closed",
    "streams: none free",
    "streams: refused",
    "streams: reset while open",
    "streams: reset while opening",
    "streams: unanswered at their limit",
];

/// The counts of a simulation of streams.
#[derive(Clone, Debug)]
pub struct OfStreams;

/// The counts of a run.
pub type Counts = Tally<OfStreams>;

impl Names for OfStreams {
    fn names() -> Vec<&'static str> {
        let transitions = transitions(&Transitions::default());
        NAMES.into_iter().chain(transitions.map(|(name, _)| name)).collect()
    }
}

/// The transitions of one machine, by name.
pub(super) fn transitions(counts: &Transitions) -> [(&'static str, u64); 16] {
    // They are named one by one, so that a new count does not compile without a line here.
    let Transitions {
        high_messages,
        low_messages,
        bare_messages,
        high_pieces,
        low_pieces,
        bytes,
        demoted,
        ordered,
        held,
        stalled,
        turns,
        credits,
        lazy_credits,
        late,
        opened,
        reused,
    } = *counts;
    [
        ("machine: messages of the high lane", high_messages),
        ("machine: messages of the low lane", low_messages),
        ("machine: messages with acknowledgements only", bare_messages),
        ("machine: pieces by the high lane", high_pieces),
        ("machine: pieces by the low lane", low_pieces),
        ("machine: bytes", bytes),
        ("machine: streams that left the high lane", demoted),
        ("machine: messages that name another", ordered),
        ("machine: messages held", held),
        ("machine: the low lane waits", stalled),
        ("machine: turns", turns),
        ("machine: credit at once", credits),
        ("machine: credit beside others", lazy_credits),
        ("machine: late records", late),
        ("machine: streams opened", opened),
        ("machine: slots used again", reused),
    ]
}
