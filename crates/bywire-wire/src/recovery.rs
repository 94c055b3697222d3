//! Loss detection (RFC 9002): which packets have arrived and which are lost. The caller keeps their contents.
//!
//! Silence is never taken as the end of the peer. Probes continue, finally twice a second, as long as an answer is
//! wanted.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::planted::{self, Bug};
use crate::received::WINDOW;
use crate::rtt::Rtt;

/// A packet is lost once one with a number this much higher has arrived.
const REORDERED_MAX: u64 = 3;
/// Probes before their interval begins to double. Where many connections share a full queue, each has a few packets in
/// flight, and all of them are often lost. If the interval doubled each time, as in RFC 9002, those with bad luck would
/// stand still for hundreds of round trips. Linux does the same for connections with few packets
/// (`tcp_thin_linear_timeouts`).
pub const PROBES_EVEN: u32 = 3;
/// The numbers that only acknowledgements and probes may use.
const RESERVE: u64 = WINDOW / 4;
/// If all packets of this many probe timeouts are lost, the path may have changed.
const PERSISTENT_TIMEOUTS: u64 = 3;

/// The error for an acknowledgement of a packet that was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has acknowledged a packet that was not sent")]
pub struct NeverSent;

/// A packet that waits for its acknowledgement.
#[derive(Clone, Debug)]
pub struct Sent<T> {
    /// Its number.
    pub number: u64,
    /// When it left.
    pub at_ns: u64,
    /// Its length.
    pub bytes: u64,
    /// Its contents.
    pub content: T,
}

#[derive(Debug)]
enum Entry<T> {
    Outstanding(Sent<T>),
    /// It left then and asked for no acknowledgement.
    Quiet(u64),
    /// It is known to have arrived or to be lost.
    Settled,
    /// The number was skipped.
    Skipped,
}

/// What an acknowledgement or a timeout has shown.
#[derive(Debug)]
pub struct Outcome<T> {
    /// Packets that are newly known to have arrived.
    pub arrived: Vec<Sent<T>>,
    /// Packets that are lost.
    pub lost: Vec<Sent<T>>,
    /// Packets were lost for so long that the path may have changed.
    pub is_persistent: bool,
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        Self { arrived: Vec::new(), lost: Vec::new(), is_persistent: false }
    }
}

impl<T> Outcome<T> {
    /// Has nothing been shown?
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.lost.is_empty()
    }

    /// Clears it for the next use, and keeps its memory.
    pub fn clear(&mut self) {
        self.arrived.clear();
        self.lost.clear();
        self.is_persistent = false;
    }
}

/// The purpose of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// It is not time yet.
    Early,
    /// Overtaken packets are lost.
    Loss,
    /// The peer has to be probed.
    Probe,
}

/// The packets of one connection, from the first whose fate is unknown.
#[derive(Debug)]
pub struct Recovery<T> {
    /// By number, from `base` on.
    entries: VecDeque<Entry<T>>,
    base: u64,
    largest_acknowledged: Option<u64>,
    rtt: Rtt,
    /// Probes since the last arrival.
    probes: u32,
    /// Packets that wait, and their bytes.
    outstanding: usize,
    in_flight: u64,
    /// When the last packet left that asks for an acknowledgement.
    last_at_ns: u64,
    /// When an overtaken packet counts as lost.
    loss_at_ns: Option<u64>,
    /// When the newest packet left that is known to have arrived.
    arrived_sent_at_ns: Option<u64>,
    /// When the round-trip time was first measured.
    measured_at_ns: Option<u64>,
}

impl<T> Default for Recovery<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            base: 0,
            largest_acknowledged: None,
            rtt: Rtt::default(),
            probes: 0,
            outstanding: 0,
            in_flight: 0,
            last_at_ns: 0,
            loss_at_ns: None,
            arrived_sent_at_ns: None,
            measured_at_ns: None,
        }
    }
}

impl<T> Recovery<T> {
    /// The number of the next packet. Numbers are unique.
    pub fn next_number(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// The round-trip time.
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Begins with the round-trip time of an earlier connection on the same path.
    pub fn set_rtt(&mut self, rtt: Rtt) {
        self.rtt = rtt;
    }

    /// Bytes of packets that wait.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Packets that wait.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Probes since the last arrival.
    pub fn probes(&self) -> u32 {
        self.probes
    }

    /// The newest packet that has arrived.
    pub fn largest_acknowledged(&self) -> Option<u64> {
        self.largest_acknowledged
    }

    /// May this many packets of data leave? The peer remembers [`WINDOW`] numbers and drops older packets. The last of these
    /// numbers are reserved for acknowledgements and probes.
    pub fn has_room(&self, packets: u64) -> bool {
        self.entries.len() as u64 + packets <= WINDOW - RESERVE
    }

    /// How many packets of data may leave by that rule.
    pub fn room(&self) -> u64 {
        (WINDOW - RESERVE).saturating_sub(self.entries.len() as u64)
    }

    /// Declares packets lost that the peer would not accept any more.
    pub fn expire(&mut self, outcome: &mut Outcome<T>) {
        while self.entries.len() as u64 >= WINDOW - 2 {
            let lost = self.settle(0);
            outcome.lost.extend(lost);
            self.forget();
        }
    }

    /// Skips a number, so that the peer sees a gap and answers the next packet at once.
    pub fn skip(&mut self) {
        self.entries.push_back(Entry::Skipped);
    }

    /// Notes that the next packet has left. `None`: it asks for no acknowledgement.
    pub fn sent(&mut self, now_ns: u64, bytes: u64, content: Option<T>) {
        let number = self.next_number();
        self.entries.push_back(match content {
            Some(content) => {
                self.outstanding += 1;
                self.in_flight += bytes;
                self.last_at_ns = now_ns;
                Entry::Outstanding(Sent { number, at_ns: now_ns, bytes, content })
            }
            None if planted::is(Bug::NumberReused) => return,
            None => Entry::Quiet(now_ns),
        });
        if self.outstanding == 0 {
            self.forget();
        }
    }

    /// What waits longest, without counting it as lost: a probe may carry it again.
    pub fn oldest(&self) -> Option<&Sent<T>> {
        self.waiting().next()
    }

    /// The peer is there for the first time, so silence so far says nothing: the next probe counts from now.
    pub fn begin(&mut self, now_ns: u64) {
        self.probes = 0;
        self.last_at_ns = now_ns;
    }

    /// Packets that wait, the oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = &Sent<T>> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Outstanding(sent) => Some(sent),
            _ => None,
        })
    }

    /// Takes in an acknowledgement.
    ///
    /// # Errors
    /// [`NeverSent`]: the peer acknowledges a packet that was never sent. Nothing of it is applied.
    pub fn acknowledge(
        &mut self,
        now_ns: u64,
        ranges: impl Iterator<Item = RangeInclusive<u64>> + Clone,
        delay_us: u32,
        outcome: &mut Outcome<T>,
    ) -> Result<(), NeverSent> {
        if ranges.clone().any(|range| !self.could_arrive(&range)) {
            return Err(NeverSent);
        }
        let earlier_ns = self.arrived_sent_at_ns;
        // A sample is valid only for the newest packet of all, whether it asks for an acknowledgement or not, and only
        // if the acknowledgement also covers a packet that has to be acknowledged at once (RFC 9002, section 5.1).
        let newest = ranges.clone().map(|range| *range.end()).max();
        let newest = newest.filter(|newest| Some(*newest) > self.largest_acknowledged);
        let newest_at_ns = newest.and_then(|newest| self.left_at_ns(newest));
        let known = outcome.arrived.len();
        for range in ranges {
            self.largest_acknowledged = self.largest_acknowledged.max(Some(*range.end()));
            for index in self.indices(&range) {
                if let Some(sent) = self.settle(index) {
                    self.arrived_sent_at_ns = self.arrived_sent_at_ns.max(Some(sent.at_ns));
                    outcome.arrived.push(sent);
                }
            }
        }
        if outcome.arrived.len() > known {
            if let Some(at_ns) = newest_at_ns {
                self.rtt.sample(now_ns.saturating_sub(at_ns), u64::from(delay_us) * 1000);
                self.measured_at_ns.get_or_insert(now_ns);
            }
            self.probes = 0;
        }
        self.find_lost(now_ns, earlier_ns, outcome);
        self.forget();
        Ok(())
    }

    /// When [`Self::on_timeout`] has work to do.
    pub fn timeout_ns(&self) -> Option<u64> {
        self.loss_at_ns.or_else(|| {
            (self.outstanding > 0 && !planted::is(Bug::ProbeForgotten)).then(|| self.probe_at_ns())
        })
    }

    /// Handles a timeout, if it is time.
    pub fn on_timeout(&mut self, now_ns: u64, outcome: &mut Outcome<T>) -> Timeout {
        if self.timeout_ns().is_none_or(|at_ns| now_ns < at_ns) {
            return Timeout::Early;
        }
        if self.loss_at_ns.is_some() {
            self.find_lost(now_ns, self.arrived_sent_at_ns, outcome);
            self.forget();
            return Timeout::Loss;
        }
        self.probes = self.probes.saturating_add(1);
        // The next timeout counts from now, whether or not this probe can leave.
        self.last_at_ns = now_ns;
        Timeout::Probe
    }

    /// Releases memory when nothing is under way.
    pub fn trim(&mut self) {
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
    }

    /// Declares the packet with this number lost, because the kernel refused it.
    pub fn refuse(&mut self, number: u64) -> Option<Sent<T>> {
        let index = number.checked_sub(self.base)?;
        let sent = self.settle(usize::try_from(index).ok().filter(|index| *index < self.entries.len())?);
        self.forget();
        sent
    }

    fn probe_at_ns(&self) -> u64 {
        self.last_at_ns.saturating_add(self.rtt.probe_interval_ns(self.probes.saturating_sub(PROBES_EVEN)))
    }

    /// When the packet of this number left, if that is remembered.
    fn left_at_ns(&self, number: u64) -> Option<u64> {
        match self.entries.get(usize::try_from(number.checked_sub(self.base)?).ok()?)? {
            Entry::Outstanding(sent) => Some(sent.at_ns),
            Entry::Quiet(at_ns) => Some(*at_ns),
            Entry::Settled | Entry::Skipped => None,
        }
    }

    /// May all these packets have arrived? Numbers that were not used cannot.
    pub fn could_arrive(&self, range: &RangeInclusive<u64>) -> bool {
        *range.end() < self.next_number()
            && !self.indices(range).any(|index| matches!(self.entries[index], Entry::Skipped))
    }

    /// The indices of those packets of a range whose fate is unknown.
    fn indices(&self, range: &RangeInclusive<u64>) -> std::ops::Range<usize> {
        let end = self.next_number();
        let first = (*range.start()).clamp(self.base, end) - self.base;
        let last = range.end().saturating_add(1).clamp(self.base, end) - self.base;
        first as usize..last as usize
    }

    fn settle(&mut self, index: usize) -> Option<Sent<T>> {
        if !matches!(self.entries[index], Entry::Outstanding(_)) {
            return None;
        }
        let entry = std::mem::replace(&mut self.entries[index], Entry::Settled);
        let Entry::Outstanding(sent) = entry else { return None };
        self.outstanding -= 1;
        self.in_flight -= sent.bytes;
        Some(sent)
    }

    /// Removes packets that too many others have overtaken, or that were overtaken too long ago.
    fn find_lost(&mut self, now_ns: u64, arrived_earlier_ns: Option<u64>, outcome: &mut Outcome<T>) {
        self.loss_at_ns = None;
        let Some(largest) = self.largest_acknowledged else { return };
        let delay_ns = self.rtt.loss_delay_ns();
        let known = outcome.lost.len();
        for index in 0..largest.saturating_sub(self.base).min(self.entries.len() as u64) as usize {
            let Entry::Outstanding(sent) = &self.entries[index] else { continue };
            let lost_at_ns = sent.at_ns.saturating_add(delay_ns);
            if largest - sent.number >= REORDERED_MAX || lost_at_ns <= now_ns {
                let lost = self.settle(index);
                outcome.lost.extend(lost);
            } else {
                self.loss_at_ns = Some(self.loss_at_ns.map_or(lost_at_ns, |at_ns| at_ns.min(lost_at_ns)));
            }
        }
        outcome.is_persistent |= self.is_persistent(arrived_earlier_ns, outcome, known);
    }

    /// Were all packets lost that left over a long time? Those from before the first measurement do not count (RFC
    /// 9002, section 7.6), because the peer may not have existed yet.
    fn is_persistent(&self, arrived_earlier_ns: Option<u64>, outcome: &Outcome<T>, known: usize) -> bool {
        let Some(measured_at_ns) = self.measured_at_ns else { return false };
        let mut lost = outcome.lost[known..].iter().filter(|sent| sent.at_ns > measured_at_ns);
        let Some(first) = lost.next() else { return false };
        let last = lost.next_back().unwrap_or(first);
        let long_ns = PERSISTENT_TIMEOUTS * self.rtt.probe_timeout_ns();
        let between = |at_ns: u64| (first.at_ns..=last.at_ns).contains(&at_ns);
        last.at_ns.saturating_sub(first.at_ns) > long_ns
            && arrived_earlier_ns.is_none_or(|at_ns| at_ns < first.at_ns)
            && !outcome.arrived.iter().any(|sent| between(sent.at_ns))
    }

    /// Drops packets from the front whose fate is known, and those that the peer would not accept any more.
    fn forget(&mut self) {
        while self.entries.front().is_some_and(|entry| !matches!(entry, Entry::Outstanding(_))) {
            self.entries.pop_front();
            self.base += 1;
        }
    }
}
