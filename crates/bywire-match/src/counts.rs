//! Every transition of an endpoint, counted.

/// The transitions of an endpoint since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub eager_messages_sent: u64,
    pub eager_messages_at_once: u64,
    pub requests_sent: u64,
    pub requests_for_want_of_window: u64,
    pub sends_held_by_unanswered_requests: u64,
    pub eager_messages_expected: u64,
    pub eager_messages_unexpected: u64,
    pub requests_expected: u64,
    pub requests_unexpected: u64,
    pub receives_matched_at_once: u64,
    pub grants_of_puts: u64,
    pub grants_of_pieces: u64,
    pub grants_of_nothing: u64,
    pub puts: u64,
    pub pieces: u64,
    pub acknowledgements: u64,
    pub eager_messages_truncated: u64,
    pub requests_truncated: u64,
    pub receives_cancelled: u64,
    pub messages_claimed: u64,
    pub claims_received: u64,
    pub claims_discarded: u64,
    pub credits: u64,
    pub windows_grown: u64,
    pub windows_not_grown: u64,
    pub sends_failed: u64,
    pub receives_failed: u64,
    pub requests_lost: u64,
}
