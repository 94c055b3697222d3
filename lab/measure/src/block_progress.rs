//! The progress of a block: how many operations were complete at several moments. Connections that run at once begin
//! and end a little apart, and are faster while they are alone, so only the time common to all may count.

use crate::plan::{Note, Part, Plan};

/// The number of notes of a block: enough to find the common time, and too few to cost time themselves.
const STRETCHES: u64 = 200;

/// The shortest time between two notes. With a shorter one, reading the clock would dominate.
const STRETCH_NS_MIN: u64 = 50_000;

/// A stretch has one note, and a second one if it began with a pause. Blocks may last longer than planned.
const NOTES_MAX: usize = 4 * STRETCHES as usize;

/// The notes of a running block. A single connection takes no notes and does not read the clock.
pub struct BlockProgress {
    stretch_ns: Option<u64>,
    due_ns: u64,
    latest: Note,
    notes: Vec<Note>,
}

impl BlockProgress {
    /// The progress of a block of this plan that begins now.
    pub fn new(plan: &Plan) -> Self {
        let stretch_ns = (plan.block_us * 1000 / STRETCHES).max(STRETCH_NS_MIN);
        let stretch_ns = plan.test.is_multi_connection().then_some(stretch_ns);
        Self { stretch_ns, due_ns: 0, latest: (0, 0), notes: Vec::new() }
    }

    /// Returns whether notes are taken.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.stretch_ns.is_some()
    }

    /// Notes that `operations` were complete `since_ns` after the beginning.
    #[inline]
    pub fn note(&mut self, since_ns: u64, operations: u64) {
        let Some(stretch_ns) = self.stretch_ns else { return };
        let now = (since_ns, operations);
        if since_ns >= self.due_ns && self.notes.len() + 2 <= NOTES_MAX {
            // An end that did not have its core for a while did nothing then, rather than a little all the time.
            let has_paused = since_ns - self.latest.0 > stretch_ns / 2;
            if has_paused && self.notes.last() != Some(&self.latest) {
                self.notes.push(self.latest);
            }
            self.notes.push(now);
            self.due_ns = since_ns + stretch_ns;
        }
        self.latest = now;
    }

    /// The notes, in order.
    pub fn into_notes(self) -> Vec<Note> {
        self.notes
    }
}

impl Part {
    /// The end of the block, by the machine's monotonic clock.
    pub fn ended_ns(&self) -> u64 {
        self.began_ns + self.span_ns()
    }

    /// The operations that were complete at a moment of the machine's monotonic clock, interpolated between two notes.
    pub fn operations_until(&self, at_ns: u64) -> f64 {
        let since_ns = at_ns.saturating_sub(self.began_ns) as f64;
        let end = (self.span_ns(), self.operations);
        let mut before = (0.0, 0.0);
        for &(note_ns, operations) in self.notes.iter().chain([&end]) {
            let note = (note_ns as f64, operations as f64);
            if since_ns < note.0 {
                return before.1 + (note.1 - before.1) * (since_ns - before.0) / (note.0 - before.0);
            }
            before = note;
        }
        self.operations as f64
    }

    fn span_ns(&self) -> u64 {
        (self.seconds * 1e9).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Test;
    use crate::resolution::tests::plan_of;

    const STRETCH_NS: u64 = 1_000_000;

    /// A block of 200 ms.
    fn progress(test: Test) -> BlockProgress {
        BlockProgress::new(&Plan { block_us: 200_000, ..plan_of(&format!("unix {test}")) })
    }

    #[test]
    fn progress_notes_are_evenly_spaced_and_show_a_pause() {
        let mut progress = progress(Test::Streams);
        // An operation each 100 µs for 3 ms, nothing for 10 ms, and 3 ms again.
        for operation in 1..=60 {
            let paused_ns = if operation > 30 { 10 * STRETCH_NS } else { 0 };
            progress.note(operation * STRETCH_NS / 10 + paused_ns, operation);
        }
        let notes = progress.into_notes();
        let before = [(100_000, 1), (1_100_000, 11), (2_100_000, 21), (3_000_000, 30)];
        let after = [(13_100_000, 31), (14_100_000, 41), (15_100_000, 51)];
        assert_eq!(notes, [&before[..], &after].concat());
        let part = Part { began_ns: 5, seconds: 0.016, operations: 60, notes, ..Part::default() };
        assert_eq!(part.operations_until(0), 0.0);
        assert_eq!(part.operations_until(5 + 50_000), 0.5);
        assert!((part.operations_until(5 + 2_600_000) - 26.0).abs() < 1e-9);
        assert!(part.operations_until(5 + 12_000_000) < 31.0, "nothing was done in the pause");
        assert_eq!(part.operations_until(5 + 20_000_000), 60.0);
    }

    #[test]
    fn progress_notes_are_bounded_and_kept_only_for_several_connections() {
        let mut long = progress(Test::Hotspot);
        // A pause before each.
        (1..100_000).for_each(|operation| long.note(operation * 10 * STRETCH_NS, operation));
        assert!(long.is_wanted() && long.into_notes().len() <= NOTES_MAX);
        let mut alone = progress(Test::Latency);
        alone.note(10 * STRETCH_NS, 1);
        assert!(!alone.is_wanted() && alone.into_notes().is_empty());
    }
}
