//! Every transition of RMA, counted.

/// The transitions since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub short_writes: u64,
    pub long_writes: u64,
    pub reads: u64,
    pub operations_held_by_unanswered_ones: u64,
    pub grants_of_puts: u64,
    pub grants_of_pieces: u64,
    pub puts_of_writes: u64,
    pub pieces_of_writes: u64,
    pub pieces_dropped: u64,
    pub reads_answered_at_once: u64,
    pub puts_of_reads: u64,
    pub pieces_of_reads: u64,
    pub writes_refused: u64,
    pub reads_refused: u64,
    pub accesses_withdrawn: u64,
    pub operations_failed: u64,
}
