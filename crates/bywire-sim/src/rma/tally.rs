//! The counts of a run: every transition of RMA, and what the simulation does.

use std::collections::BTreeMap;

use bywire_match::rma::Counts as Transitions;

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

/// Counts by name, or 0.
#[derive(Clone, Debug)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Default for Counts {
    fn default() -> Self {
        let mut counts = Self(NAMES.map(|name| (name, 0)).into());
        counts.add_end(&Transitions::default());
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

    /// Adds the counts of one end.
    pub(crate) fn add_end(&mut self, counts: &Transitions) {
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
        self.add("end: short writes", short_writes);
        self.add("end: long writes", long_writes);
        self.add("end: reads", reads);
        self.add("end: operations held by unanswered ones", operations_held_by_unanswered_ones);
        self.add("end: grants of puts", grants_of_puts);
        self.add("end: grants of pieces", grants_of_pieces);
        self.add("end: puts of writes", puts_of_writes);
        self.add("end: pieces of writes", pieces_of_writes);
        self.add("end: pieces dropped", pieces_dropped);
        self.add("end: reads answered at once", reads_answered_at_once);
        self.add("end: puts of reads", puts_of_reads);
        self.add("end: pieces of reads", pieces_of_reads);
        self.add("end: writes refused", writes_refused);
        self.add("end: reads refused", reads_refused);
        self.add("end: accesses withdrawn", accesses_withdrawn);
        self.add("end: operations failed", operations_failed);
    }
}
