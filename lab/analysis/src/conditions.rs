//! The conditions under which each pair was taken: its round, and the state of the machine.
//!
//! Two virtual cores are near each other or far apart. That changes every few seconds or minutes, and a cache line then
//! takes four times as long. Only pairs of the same round and state are compared.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;
use bywire_results::moment::{MachineSpeed, Moment};

use crate::shift::{self, Stratum, Tables};
use crate::side::Side;
use crate::statistics::{median, pair_medians};

/// Cores are far apart if a cache line takes longer than the shortest time multiplied by this.
const FAR_FACTOR: f64 = 1.8;

/// The quantile of all readings that counts as the shortest time, so that a single odd reading does not decide.
const FAR_QUANTILE: f64 = 0.1;

/// The fewest readings for a median. With fewer, it reflects chance more than the machine.
const READINGS_MIN: usize = 6;

/// The distance between the two cores while a pair was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// As near as possible. Also used if this machine has no other state, or if the state is never read.
    Near,
    /// A cache line takes much longer.
    Far,
    /// The state changed during the pair, or the machine was too busy to be read.
    Between,
}

/// The threshold between near and far on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// The time of a cache line above which cores are far apart, in ns. Absent if it was never read.
    far_ns: Option<f64>,
    /// Both sides have the same number of sessions, taken in turn.
    pub in_rounds: bool,
}

/// The difference of the machine itself between the sides. By quantity of the machine probe, it is the ratio of after to
/// before, in natural logarithms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drift(pub Vec<(&'static str, f64)>);

type Reading = fn(&MachineSpeed) -> Option<f64>;

/// The quantities of the machine probe, as the output names them.
const READINGS: [(&str, Reading); 3] = [
    ("cache line", |speed| speed.line_ns),
    ("arithmetic", |speed| speed.step_ns),
    ("wake-up", |speed| speed.wake_ns),
];

impl Conditions {
    /// The threshold found over all pairs of both sides.
    pub fn of(before: &Side, after: &Side) -> Self {
        let moments = [before, after].into_iter().flat_map(Side::moments);
        Self { in_rounds: before.alternates_with(after), ..Self::of_moments(moments) }
    }

    /// The threshold found over these pairs.
    pub fn of_moments<'a>(moments: impl IntoIterator<Item = &'a Moment>) -> Self {
        let lines = moments.into_iter().flat_map(|moment| [moment.before.line_ns, moment.after.line_ns]);
        let mut lines: Vec<f64> = lines.flatten().collect();
        lines.sort_by(f64::total_cmp);
        let near_ns = lines.get((lines.len() as f64 * FAR_QUANTILE) as usize);
        Self { far_ns: near_ns.map(|near_ns| near_ns * FAR_FACTOR), in_rounds: false }
    }

    /// The state in which a pair was taken.
    pub fn state(&self, moment: Option<&Moment>) -> State {
        let Some((moment, far_ns)) = moment.zip(self.far_ns) else { return State::Near };
        let is_far = |speed: &MachineSpeed| speed.line_ns.map(|line_ns| line_ns > far_ns);
        match (is_far(&moment.before), is_far(&moment.after)) {
            (Some(true), Some(true)) => State::Far,
            (Some(false), Some(false)) => State::Near,
            // The machine probe cannot run between these cores.
            (None, None) if [moment.before, moment.after] == [MachineSpeed::default(); 2] => State::Near,
            // A slow machine probe shows load, which its pair had too. Such a pair has nothing in common with a quiet
            // one.
            _ => State::Between,
        }
    }

    /// The pairs of two cells, one from each side, that are compared with each other, and the number of pairs without a
    /// counterpart.
    pub fn strata(&self, before: &[(usize, &Cell)], after: &[(usize, &Cell)]) -> (Vec<Stratum>, usize) {
        let mut strata = BTreeMap::<(usize, State), Stratum>::new();
        let mut alone = 0;
        for (side, cells) in [before, after].into_iter().enumerate() {
            for &(round, cell) in cells {
                let round = if self.in_rounds { round } else { 0 };
                for (_, value, moment) in pairs(cell) {
                    match self.state(moment) {
                        state if state != State::Between && value > 0.0 => {
                            strata.entry((round, state)).or_default()[side].push(value.ln());
                        }
                        _ => alone += 1,
                    }
                }
            }
        }
        let mut matched = Vec::new();
        let mut left_over = BTreeMap::<State, Stratum>::new();
        for ((_, state), stratum) in strata {
            if shift::has_both(&stratum) {
                matched.push(stratum);
            } else {
                // The state changed within the round, so the pair is compared with pairs of other rounds in its state.
                let whole = left_over.entry(state).or_default();
                whole.iter_mut().zip(stratum).for_each(|(whole, part)| whole.extend(part));
            }
        }
        let (joined, lonely): (Vec<_>, Vec<_>) = left_over.into_values().partition(shift::has_both);
        matched.extend(joined);
        (matched, alone + lonely.iter().flatten().map(Vec::len).sum::<usize>())
    }

    /// The difference of the machine's own speed between the sides, within rounds and states.
    pub fn drift(&self, before: &Side, after: &Side, tables: &mut Tables) -> Drift {
        let shifts = READINGS.iter().filter_map(|&(name, reading)| {
            let mut strata = BTreeMap::<(usize, State), Stratum>::new();
            for (place, side) in [before, after].into_iter().enumerate() {
                for (round, session) in side.sessions.iter().enumerate() {
                    let round = if self.in_rounds { round } else { 0 };
                    for state in [State::Near, State::Far] {
                        let moments = session.moments().filter(|moment| self.state(Some(moment)) == state);
                        let values: Vec<f64> = moments.filter_map(|moment| reading(&moment.before)).collect();
                        // One median for each session and state, because its readings come from one stretch of time.
                        if values.len() >= READINGS_MIN {
                            strata.entry((round, state)).or_default()[place].push(median(&values).ln());
                        }
                    }
                }
            }
            let strata: Vec<Stratum> = strata.into_values().collect();
            Some((name, tables.shift(&strata, 0.5)?.estimate))
        });
        Drift(shifts.collect())
    }
}

impl Drift {
    /// The amount by which every interval is widened, in natural logarithms. The machine itself changed by this much
    /// between the sides, and it is unknown in which direction that changes a result.
    pub fn slack(&self) -> f64 {
        self.0.iter().map(|(_, shift)| shift.abs()).fold(0.0, f64::max)
    }
}

/// Each pair of a cell with the median of its blocks, and with its moment if there is one.
pub fn pairs(cell: &Cell) -> impl Iterator<Item = (u32, f64, Option<&Moment>)> {
    let medians = pair_medians(cell.blocks.iter().map(|block| (block.pair, block.value)));
    let moment = |pair: u32| cell.moments.iter().find(|moment| moment.pair == pair);
    medians.into_iter().map(move |(pair, median)| (pair, median, moment(pair)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_whose_machine_probe_was_delayed_is_not_compared_with_a_quiet_one() {
        let conditions = Conditions { far_ns: Some(100.0), in_rounds: false };
        let speed = |line_ns| MachineSpeed { line_ns, step_ns: Some(1.0), wake_ns: None };
        let at = |before, after| Moment { pair: 0, began_unix_seconds: 0.0, before, after };
        let state = |before, after| conditions.state(Some(&at(before, after)));
        let (near, far, held_up) = (speed(Some(40.0)), speed(Some(170.0)), speed(None));
        assert_eq!(state(near, near), State::Near);
        assert_eq!(state(far, far), State::Far);
        for [before, after] in [[near, far], [near, held_up], [held_up, far], [held_up, held_up]] {
            assert_eq!(state(before, after), State::Between, "{before:?} {after:?}");
        }
        let never = MachineSpeed::default();
        assert_eq!(state(never, never), State::Near, "never read between these cores");
        let unread = Conditions { far_ns: None, in_rounds: false };
        assert_eq!(unread.state(Some(&at(held_up, held_up))), State::Near, "nor on this machine");
    }
}
