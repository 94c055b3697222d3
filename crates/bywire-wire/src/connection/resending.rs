//! What follows from packets that have arrived and from packets that are lost, whose contents are sent again.

use std::ops::Range;

use super::{Connection, Content};
use crate::frame::{LANES, Lane};
use crate::recovery::Outcome;

/// Consecutive bytes of a lane, in one packet or in several.
struct Run {
    lane: Lane,
    range: Range<u64>,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// Applies what an acknowledgement or a timeout has shown about packets. `is_after_silence`: only short ones were
    /// answered.
    pub(super) fn take_outcome(&mut self, now_ns: u64, is_after_silence: bool) {
        if self.outcome.is_empty() {
            return;
        }
        let mut outcome = std::mem::take(&mut self.outcome);
        self.take_arrived(now_ns, &outcome);
        self.take_lost(now_ns, &outcome, is_after_silence);
        outcome.clear();
        self.outcome = outcome;
    }

    fn take_arrived(&mut self, now_ns: u64, outcome: &Outcome<Content>) {
        let Some(newest) = outcome.arrived.iter().max_by_key(|sent| sent.number) else { return };
        // Bytes of a lane in consecutive packets are mostly consecutive, too.
        let mut run: Option<Run> = None;
        for sent in &outcome.arrived {
            for span in sent.content.pieces.iter().flatten() {
                let (lane, range) = (span.lane, span.range());
                match &mut run {
                    Some(run) if run.lane == lane && run.range.end == range.start => {
                        run.range.end = range.end
                    }
                    _ => {
                        if let Some(Run { lane, range }) = run.replace(Run { lane, range }) {
                            self.sending[lane as usize].acknowledge(range);
                        }
                    }
                }
            }
            if let Some(largest) = sent.content.acknowledges {
                self.acknowledger.retire(largest);
            }
            self.size.arrived(sent.bytes);
            if sent.content.size_probe.is_some_and(|bytes| self.size.probe_arrived(bytes)) {
                self.counts.size_found += 1;
                self.congestion.set_packet_bytes(self.size.bytes().into());
            }
        }
        if let Some(Run { lane, range }) = run {
            self.sending[lane as usize].acknowledge(range);
        }
        self.probes_due = 0;
        let rtt = self.recovery.rtt();
        self.congestion.on_arrival(crate::congestion::Arrival {
            now_ns,
            bytes: outcome.arrived.iter().map(|sent| sent.bytes).sum(),
            sent_at_ns: newest.at_ns,
            largest: newest.number,
            next_number: self.recovery.next_number(),
            latest_ns: rtt.latest_ns(),
            min_ns: rtt.min_ns().unwrap_or(rtt.latest_ns()),
            smoothed_ns: rtt.smoothed_ns(),
            is_used: self.is_held_back,
        });
    }

    fn take_lost(&mut self, now_ns: u64, outcome: &Outcome<Content>, is_after_silence: bool) {
        let mut newest_ns = None;
        let mut longest = 0;
        for sent in &outcome.lost {
            self.counts.lost += 1;
            self.send_again(sent.number, &sent.content);
            if let Some(bytes) = sent.content.size_probe {
                self.counts.size_probes_lost += 1;
                self.size.probe_lost(bytes);
            } else if self.heard_at_ns.is_some_and(|at_ns| sent.at_ns >= at_ns) {
                // Packets from before say nothing about the path, because the peer may have had no socket yet.
                newest_ns = newest_ns.max(Some(sent.at_ns));
                longest = sent.bytes.max(longest);
            } else {
                self.counts.early_lost += 1;
            }
        }
        let Some(newest_ns) = newest_ns else { return };
        self.counts.persistent += u64::from(outcome.is_persistent);
        self.congestion.on_loss(now_ns, newest_ns, outcome.is_persistent);
        let is_hole = if is_after_silence { self.size.silenced(longest) } else { self.size.lost(longest) };
        if is_hole {
            self.counts.black_holes += 1;
            self.congestion.set_packet_bytes(self.size.bytes().into());
        }
    }

    /// Sends the contents of a packet again, unless they have arrived in another one or are no longer needed.
    pub(super) fn send_again(&mut self, number: u64, content: &Content) {
        for span in content.pieces.iter().flatten() {
            self.sending[span.lane as usize].lose(span.range());
        }
        for lane in LANES.map(|lane| lane as usize) {
            if content.credit[lane] && self.credit_numbers[lane] == Some(number) {
                self.receiving[lane].credit().lose();
            }
        }
    }
}
