//! What bounds RMA.

/// The bounds of RMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most peers.
    pub peers: usize,
    /// The most operations that have not completed.
    pub operations: usize,
    /// The longest payload that follows its head at once, in bytes.
    pub short_bytes: u64,
    /// The most operations that a peer has not answered. Equal at both ends.
    pub unanswered: u32,
    /// The most puts for reads of peers at a time. Further reads wait.
    pub puts_of_reads: u32,
    /// The same for reads of one peer.
    pub puts_of_reads_of_peer: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            peers: 1 << 16,
            operations: 1 << 20,
            short_bytes: 32 << 10,
            unanswered: 1 << 14,
            puts_of_reads: 128,
            puts_of_reads_of_peer: 8,
        }
    }
}
