//! Counts of what has happened on a connection.

/// The transitions so far. A simulation checks that each of them happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages sent by the high lane.
    pub high_messages: u64,
    /// Messages sent by the low lane.
    pub low_messages: u64,
    /// Messages sent that have acknowledgements only.
    pub bare_messages: u64,
    /// Records of bytes sent by the high lane.
    pub high_pieces: u64,
    /// Records of bytes sent by the low lane.
    pub low_pieces: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Streams that grew in the queue of the high lane and went to that of the low lane.
    pub demoted: u64,
    /// Messages of the low lane that were sent behind a message of the high one that may not have arrived.
    pub ordered: u64,
    /// Messages of the low lane that were held until one of the high lane had arrived.
    pub held: u64,
    /// Looks at the low lane while it waits for an acknowledgement, as the peer holds no more.
    pub stalled: u64,
    /// Turns that a stream has ended with more to send.
    pub turns: u64,
    /// Records of credit sent.
    pub credits: u64,
    /// Records of credit that have left beside others.
    pub lazy_credits: u64,
    /// Records received of streams that had ended here.
    pub late: u64,
    /// Streams that this end has opened.
    pub opened: u64,
    /// Streams that this end has opened in a slot that was used before.
    pub reused: u64,
}
