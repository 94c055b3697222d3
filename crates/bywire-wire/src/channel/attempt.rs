//! Hellos: those that were sent and wait for an answer, and those that were answered and wait for a first packet.

use crate::handshake::SentHello;
use crate::path::Path;

use super::established::Channel;
use super::limits::{RETRY_NS, RETRY_NS_MAX};
use super::session::Incarnation;
use super::shared::Shared;

/// The number of incarnations of a node whose hellos are answered at the same time. Only one can be the current one, so the
/// others are replays. Beyond this number, a hello has to prove its address, and replaces an older one.
pub(super) const CANDIDATES_MAX: usize = 8;
/// How long an answered hello keeps its place however many follow. [`crate::handshake::load`] bounds how many do.
pub(super) const CANDIDATE_KEPT_NS: u64 = 1_000_000_000;
/// How long an answered hello waits for the first packet.
pub(super) const CANDIDATE_NS: u64 = 10_000_000_000;
/// How many times a hello that is repeated from one address is answered.
pub(super) const ANSWERS_MAX: u32 = 8;
/// The addresses from which one hello is answered.
pub(super) const ADDRESSES_MAX: usize = 4;

/// The number of attempts after which the pause is the longest.
pub(super) const TRIES_SLOW: u32 = (RETRY_NS_MAX / RETRY_NS).ilog2();

/// A hello from one address, which was answered. The channel is made once a packet opens under its keys. Each address from which
/// a hello comes gets an answer of its own, with other keys. So the first packet proves that its sender receives what is sent to
/// the address of this channel, and before that nothing but the answer goes there.
#[derive(Debug)]
pub(super) struct Candidate {
    pub channel: Channel,
    /// The hello's number among those of its incarnation.
    pub hello: u64,
    pub answer: Vec<u8>,
    pub answers: u32,
}

/// A hello that waits for its answer.
#[derive(Debug)]
pub(super) struct Attempt {
    pub hello: SentHello,
    pub number: u32,
    pub path: Path,
}

/// The repetition of hellos until one is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retries {
    pub since_ns: u64,
    pub tries: u32,
    pub next_ns: u64,
    pub is_reported: bool,
    /// The channel is in use, and gets new keys: hellos go to its address only.
    pub is_renewal: bool,
}

impl Candidate {
    pub(super) fn incarnation(&self) -> Incarnation {
        self.channel.session.incarnation
    }
}

impl Retries {
    pub(super) fn new(from_ns: u64) -> Self {
        Self { since_ns: from_ns, tries: 0, next_ns: from_ns, is_reported: false, is_renewal: false }
    }
}

/// Drops those of the candidates for which this returns true, with their numbers.
pub(super) fn drop_candidates(
    candidates: &mut Vec<Candidate>,
    shared: &mut Shared,
    is_dropped: impl Fn(&Candidate) -> bool,
) {
    candidates.retain(|candidate| {
        let is_dropped = is_dropped(candidate);
        if is_dropped {
            shared.numbers.remove(&candidate.channel.number);
        }
        !is_dropped
    });
}
