//! The counts of a run: every transition of RMA, and what the simulation does.

use bywire_match::rma::Counts as Transitions;

use crate::tally::{Names, Tally};

/// The names of the simulation that must be counted in some run.
const NAMES: [&str; 8] = [
    "simulation: connections ended",
    "simulation: memory withdrawn",
    "simulation: operations failed, as memory was withdrawn",
    "simulation: operations of memory of one's own",
    "simulation: operations refused for lack of room",
    "simulation: operations that are not permitted",
    "simulation: puts into memory that was withdrawn",
    "simulation: the link had no room",
];

/// What a simulation of RMA counts.
#[derive(Clone, Debug)]
pub struct Rma;

/// The counts of a run.
pub type Counts = Tally<Rma>;

impl Names for Rma {
    fn names() -> Vec<&'static str> {
        let transitions = transitions(&Transitions::default());
        NAMES.into_iter().chain(transitions.map(|(name, _)| name)).collect()
    }
}

/// The transitions of one end, by name.
pub(super) fn transitions(counts: &Transitions) -> [(&'static str, u64); 16] {
    // They are named one by one, so that a new count does not compile without a line here.
    let Transitions {
        short_writes,
        long_writes,
        reads,
        operations_held_by_unanswered_ones,
        grants_of_puts,
        grants_of_pieces,
        puts_of_writes,
        pieces_of_writes,
        pieces_dropped,
        reads_answered_at_once,
        puts_of_reads,
        pieces_of_reads,
        writes_refused,
        reads_refused,
        accesses_withdrawn,
        operations_failed,
    } = *counts;
    [
        ("end: short writes", short_writes),
        ("end: long writes", long_writes),
        ("end: reads", reads),
        ("end: operations held by unanswered ones", operations_held_by_unanswered_ones),
        ("end: grants of puts", grants_of_puts),
        ("end: grants of pieces", grants_of_pieces),
        ("end: puts of writes", puts_of_writes),
        ("end: pieces of writes", pieces_of_writes),
        ("end: pieces dropped", pieces_dropped),
        ("end: reads answered at once", reads_answered_at_once),
        ("end: puts of reads", puts_of_reads),
        ("end: pieces of reads", pieces_of_reads),
        ("end: writes refused", writes_refused),
        ("end: reads refused", reads_refused),
        ("end: accesses withdrawn", accesses_withdrawn),
        ("end: operations failed", operations_failed),
    ]
}
