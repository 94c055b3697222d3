//! Under which conditions each pair was taken: its round, and the state of the machine.
//!
//! Two virtual cores stand near each other or far apart, and which it is changes for seconds or minutes: a cache line
//! then takes four times as long. Pairs are compared within one round and one state only.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;
use bywire_results::moment::{MachineSpeed, Moment};

use crate::shift::{Stratum, Tables};
use crate::side::Side;
use crate::statistics::median;

/// Cores whose lines take longer than this many times the shortest are far apart.
const FAR_FACTOR: f64 = 1.8;

/// Where the state changed within more than this share of a side's pairs, …
const FAR_QUANTILE: f64 = 0.1;

/// A median of fewer readings says more of chance than of the machine.
const READINGS_MIN: usize = 6;

/// What the two cores were to each other while a pair was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// As near as they come, or this machine has no other state, or nobody ever reads it.
    Near,
    /// A line takes much longer.
    Far,
    /// It changed in between, or was too busy to be read.
    Between,
}

/// What tells near from far on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// A line that takes longer belongs to cores far apart, in ns; absent where it was never read.
    far_ns: Option<f64>,
    /// Both sides have the same number of sessions, taken in turn.
    pub in_rounds: bool,
}

/// How the machine itself differed between the sides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drift {
    /// By quantity of the gauge, after over before, in natural logarithms.
    pub shifts: Vec<(&'static str, f64)>,
}

type Reading = fn(&MachineSpeed) -> Option<f64>;

/// What a gauge reads, in the words of the output.
const READINGS: [(&str, Reading); 3] = [
    ("cache line", |gauge| gauge.line_ns),
    ("arithmetic", |gauge| gauge.step_ns),
    ("wake-up", |gauge| gauge.wake_ns),
];

impl Conditions {
    /// As found over all pairs of both sides.
    pub fn of(before: &Side, after: &Side) -> Self {
        let mut lines: Vec<f64> = [before, after]
            .into_iter()
            .flat_map(Side::moments)
            .flat_map(|moment| [moment.before.line_ns, moment.after.line_ns])
            .flatten()
            .collect();
        lines.sort_by(f64::total_cmp);
        let near_ns = lines.get((lines.len() as f64 * FAR_QUANTILE) as usize);
        Self { far_ns: near_ns.map(|near_ns| near_ns * FAR_FACTOR), in_rounds: before.alternates_with(after) }
    }

    /// The state in which a pair was taken.
    pub fn state(&self, moment: Option<&Moment>) -> State {
        let Some((moment, far_ns)) = moment.zip(self.far_ns) else {
            return State::Near;
        };
        let is_far = |gauge: &MachineSpeed| gauge.line_ns.map(|line_ns| line_ns > far_ns);
        match (is_far(&moment.before), is_far(&moment.after)) {
            (Some(true), Some(true)) => State::Far,
            (Some(false), Some(false)) => State::Near,
            // Its cores are none that a gauge can stand between.
            (None, None) if [moment.before, moment.after] == [MachineSpeed::default(); 2] => State::Near,
            // A gauge that is held up tells of load, which its pair had too: with a quiet one it has nothing in common.
            _ => State::Between,
        }
    }

    /// What is compared with what, of two cells that were taken on either side; and how many pairs found nothing to
    /// be compared with.
    pub fn strata(&self, before: &[(usize, &Cell)], after: &[(usize, &Cell)]) -> (Vec<Stratum>, usize) {
        let mut strata = BTreeMap::<(usize, State), Stratum>::new();
        let mut alone = 0;
        for (cells, is_after) in [(before, false), (after, true)] {
            for &(round, cell) in cells {
                let round = if self.in_rounds { round } else { 0 };
                for (value, moment) in pairs(cell) {
                    let state = self.state(moment);
                    if state == State::Between || value <= 0.0 {
                        alone += 1;
                        continue;
                    }
                    let stratum = strata.entry((round, state)).or_default();
                    let side = if is_after { &mut stratum.after } else { &mut stratum.before };
                    side.push(value.ln());
                }
            }
        }
        let mut matched = Vec::new();
        let mut left_over = BTreeMap::<State, Stratum>::new();
        for ((_, state), stratum) in strata {
            if stratum.has_both() {
                matched.push(stratum);
            } else {
                // The state changed within the round: the pair is set against those of other rounds in its state.
                left_over.entry(state).or_default().extend(stratum);
            }
        }
        for stratum in left_over.into_values() {
            if stratum.has_both() {
                matched.push(stratum);
            } else {
                alone += stratum.before.len() + stratum.after.len();
            }
        }
        (matched, alone)
    }

    /// How the machine's own speed differed between the sides, within rounds and states.
    pub fn drift(&self, before: &Side, after: &Side, tables: &mut Tables) -> Drift {
        let shifts = READINGS.iter().filter_map(|&(name, reading)| {
            let mut strata = BTreeMap::<(usize, State), Stratum>::new();
            for (side, is_after) in [(before, false), (after, true)] {
                for (round, moments) in side.moments_by_session().enumerate() {
                    let round = if self.in_rounds { round } else { 0 };
                    for state in [State::Near, State::Far] {
                        let values: Vec<f64> = moments
                            .iter()
                            .filter(|moment| self.state(Some(moment)) == state)
                            .filter_map(|moment| reading(&moment.before))
                            .collect();
                        // One median for each session and state: its readings are of one stretch of time.
                        if values.len() < READINGS_MIN {
                            continue;
                        }
                        let stratum = strata.entry((round, state)).or_default();
                        let place = if is_after { &mut stratum.after } else { &mut stratum.before };
                        place.push(median(&values).ln());
                    }
                }
            }
            let strata: Vec<Stratum> = strata.into_values().collect();
            Some((name, tables.shift(&strata, 0.5)?.estimate))
        });
        Drift { shifts: shifts.collect() }
    }
}

impl Drift {
    /// By how much every interval is widened: the machine itself moved so far between the sides, in natural
    /// logarithms, and nobody knows in which direction that moves a result.
    pub fn slack(&self) -> f64 {
        self.shifts.iter().map(|(_, shift)| shift.abs()).fold(0.0, f64::max)
    }
}

/// The median of each pair's blocks, with its moment where there is one.
fn pairs(cell: &Cell) -> impl Iterator<Item = (f64, Option<&Moment>)> {
    let mut values = BTreeMap::<u32, Vec<f64>>::new();
    for block in &cell.blocks {
        values.entry(block.pair).or_default().push(block.value);
    }
    values
        .into_iter()
        .map(|(pair, values)| (median(&values), cell.moments.iter().find(|moment| moment.pair == pair)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_whose_gauge_was_held_up_is_compared_with_no_quiet_one() {
        let conditions = Conditions { far_ns: Some(100.0), in_rounds: false };
        let gauge = |line_ns| MachineSpeed { line_ns, step_ns: Some(1.0), wake_ns: None };
        let state = |before, after| {
            conditions.state(Some(&Moment { pair: 0, began_unix_seconds: 0.0, before, after }))
        };
        let (near, far, held_up) = (gauge(Some(40.0)), gauge(Some(170.0)), gauge(None));
        assert_eq!(state(near, near), State::Near);
        assert_eq!(state(far, far), State::Far);
        for [before, after] in [[near, far], [near, held_up], [held_up, far], [held_up, held_up]] {
            assert_eq!(state(before, after), State::Between, "{before:?} {after:?}");
        }
        assert_eq!(
            state(MachineSpeed::default(), MachineSpeed::default()),
            State::Near,
            "never read between these cores"
        );
        let unread = Conditions { far_ns: None, in_rounds: false };
        let moment = Moment { pair: 0, began_unix_seconds: 0.0, before: held_up, after: held_up };
        assert_eq!(unread.state(Some(&moment)), State::Near, "nor on this machine");
    }
}
