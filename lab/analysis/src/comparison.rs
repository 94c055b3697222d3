//! Compares two sessions, or two sets of sessions taken in turn: what became better or worse, by how much, with what
//! certainty, and what changed around it.
//!
//! A difference counts if it exceeds a threshold *and* its interval excludes zero. The intervals are exact (see
//! [`crate::shift`]) and hold for all cells together (Bonferroni: each may miss with the allowed probability divided by
//! the number of cells). They compare pairs only within one round and one state of the machine (see
//! [`crate::conditions`]), and are widened by the drift of the machine between the sides. A cell that is
//! [`crate::missing`] afterwards fails the comparison too.

use std::collections::BTreeMap;

use bywire_results::cell::{Cell, Unit};
use serde_json::{Value, json};

use crate::change::{Change, changes};
use crate::conditions::{Conditions, Drift, State};
use crate::missing::Missing;
use crate::shift::Tables;
use crate::side::{Cells, Side, chosen, name};
use crate::statistics::median;

/// The exit code of a comparison in which something is worse or missing.
pub const WORSE_EXIT_CODE: i32 = 3;

/// The schema of a comparison's JSON.
pub const COMPARISON_SCHEMA: &str = "bywire-comparison/1";

/// The criteria of a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Changes below this share are no difference, whatever their certainty.
    pub threshold_share: f64,
    /// The probability with which a comparison of equals may claim a difference anywhere.
    pub error_share: f64,
    /// Missing cells are reported, but are not a failure.
    pub allow_missing: bool,
}

impl Default for Rule {
    fn default() -> Self {
        Self { threshold_share: 0.05, error_share: 0.05, allow_missing: false }
    }
}

/// The verdict on one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Worse by more than the threshold, with certainty.
    Worse,
    /// Better by more than the threshold, with certainty.
    Better,
    /// The whole interval lies within the threshold.
    Same,
    /// No difference is claimed, and none is excluded.
    NoDifference,
    /// Too few pairs, or none under the same conditions.
    TooFewPairs,
}

impl Verdict {
    /// Its printed form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worse => "worse",
            Self::Better => "better",
            Self::Same => "same",
            Self::NoDifference => "no difference",
            Self::TooFewPairs => "too few pairs",
        }
    }
}

/// One cell on both sides.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The cell before. With several sessions it is the first.
    pub before: &'a Cell,
    /// The cell afterwards. With several sessions it is the last.
    pub after: &'a Cell,
    /// The median over sessions, before and after.
    pub values: [f64; 2],
    /// The ratio of after to before: the estimate, and its interval if there are enough pairs.
    pub ratio: Option<(f64, Option<[f64; 2]>)>,
    /// The number of compared pairs on either side.
    pub pairs: [usize; 2],
    /// Pairs without a counterpart under the same conditions.
    pub pairs_alone: usize,
    /// The verdict.
    pub verdict: Verdict,
}

/// A comparison.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// The side before.
    pub before: &'a Side,
    /// The side after.
    pub after: &'a Side,
    /// The criteria of a difference.
    pub rule: Rule,
    /// The sessions were taken in turn.
    pub in_rounds: bool,
    /// The difference of the machine itself, and the resulting widening of every interval, in natural logarithms.
    pub drift: Drift,
    /// The shares of pairs with the two cores far apart, before and after.
    pub far_shares: [f64; 2],
    /// Cells of both sides, in the order taken.
    pub rows: Vec<Row<'a>>,
    /// Cells that were measured before, but not afterwards or not completely.
    pub missing: Vec<Missing<'a>>,
    /// Cells that were measured only afterwards.
    pub added: Vec<&'a Cell>,
    /// Differences of the environment.
    pub changes: Vec<Change>,
}

impl<'a> Comparison<'a> {
    /// Compares `after` with `before`.
    pub fn of(before: &'a Side, after: &'a Side, rule: Rule) -> Self {
        let conditions = Conditions::of(before, after);
        let mut tables = Tables::default();
        let drift = conditions.drift(before, after, &mut tables);
        let (befores, afters) = (by_key(before), by_key(after));
        let (mut shared, mut missing) = (Vec::new(), Vec::new());
        for (key, cells) in &befores {
            match afters.get(key).map(|others| (others, Missing::failed([cells, others]))) {
                None => missing.push(Missing::of(cells[0].1, [before, after])),
                Some((_, Some(failed))) => missing.push(failed),
                Some((others, None)) => shared.push((cells, others)),
            }
        }
        let error = rule.error_share / shared.len().max(1) as f64;
        let slack = drift.slack();
        let middle = |cells: &Cells| median(&cells.iter().map(|(_, cell)| cell.value).collect::<Vec<_>>());
        let row = |(before, after): (&Cells<'a>, &Cells<'a>)| {
            let (strata, pairs_alone) = conditions.strata(before, after);
            let shift = tables.shift(&strata, error);
            let estimate = shift.map(|shift| shift.estimate);
            let interval =
                shift.and_then(|shift| shift.interval).map(|[low, high]| [low - slack, high + slack]);
            let unit = before[0].1.unit;
            Row {
                before: before[0].1,
                after: after[after.len() - 1].1,
                values: [middle(before), middle(after)],
                ratio: estimate.map(|estimate| (estimate.exp(), interval.map(|bounds| bounds.map(f64::exp)))),
                pairs: [0, 1].map(|side| strata.iter().map(|stratum| stratum[side].len()).sum()),
                pairs_alone,
                verdict: estimate.zip(interval).map_or(Verdict::TooFewPairs, |(estimate, interval)| {
                    verdict(estimate, interval, unit, rule)
                }),
            }
        };
        let mut rows: Vec<Row> = shared.into_iter().map(row).collect();
        let place = |taken: &Cell| before.cells().position(|(_, cell)| std::ptr::eq(cell, taken));
        rows.sort_by_cached_key(|row| place(row.before));
        missing.sort_by_cached_key(|missing| place(missing.before));
        let added = afters.iter().filter(|(key, _)| !befores.contains_key(*key));
        Self {
            before,
            after,
            rule,
            in_rounds: conditions.in_rounds,
            drift,
            far_shares: [before, after].map(|side| far_share(side, &conditions)),
            rows,
            missing,
            added: added.map(|(_, cells)| cells[0].1).collect(),
            changes: changes(&before.sessions[0].environment, &after.sessions[0].environment),
        }
    }

    /// Cells of one verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// True if something became worse.
    pub fn is_worse(&self) -> bool {
        self.count(Verdict::Worse) > 0
    }

    /// True if something became worse, or is missing and must not be.
    pub fn fails(&self) -> bool {
        self.is_worse() || !(self.rule.allow_missing || self.missing.is_empty())
    }

    /// The comparison as one JSON object, with units in the names.
    pub fn json(&self) -> Value {
        let side = |side: &Side| {
            json!({
                "name": side.name,
                "started": side.sessions[0].started,
                "preset": side.sessions[0].preset,
                "sessions": side.sessions.len(),
            })
        };
        let missing =
            |missing: &Missing| json!({ "cell": missing.name(), "only": "before", "reason": missing.reason });
        let added = self.added.iter().map(|cell| json!({ "cell": name(cell), "only": "after" }));
        let drift = self.drift.0.iter().map(|(name, shift)| (*name, shift.exp()));
        json!({
            "schema": COMPARISON_SCHEMA,
            "before": side(self.before),
            "after": side(self.after),
            "threshold_share": self.rule.threshold_share,
            "error_share": self.rule.error_share,
            "in_rounds": self.in_rounds,
            "machine_ratios": drift.collect::<BTreeMap<_, _>>(),
            "widened_by_factor": self.drift.slack().exp(),
            "far_shares": self.far_shares,
            "worse": self.count(Verdict::Worse),
            "better": self.count(Verdict::Better),
            "too_few_pairs": self.count(Verdict::TooFewPairs),
            "missing": self.missing.len(),
            "fails": self.fails(),
            "cells": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "unmatched": self.missing.iter().map(missing).chain(added).collect::<Vec<_>>(),
            "changes": self.changes,
        })
    }
}

impl Row<'_> {
    /// Its name: `tcp latency over loopback, 1 B`.
    pub fn name(&self) -> String {
        name(self.before)
    }

    fn json(&self) -> Value {
        let cell = self.before;
        json!({
            "level": cell.level,
            "test": cell.test,
            "link": cell.link,
            "between": cell.between,
            "size_bytes": cell.size_bytes,
            "parameters": chosen(cell).into_iter().collect::<BTreeMap<_, _>>(),
            "unit": cell.unit,
            "before": self.values[0],
            "after": self.values[1],
            "ratio": self.ratio.map(|ratio| ratio.0),
            "interval": self.ratio.and_then(|ratio| ratio.1),
            "pairs": self.pairs,
            "pairs_alone": self.pairs_alone,
            "verdict": self.verdict.name().replace(' ', "-"),
        })
    }
}

type Key = ((String, String, Option<String>), String, Option<u64>, Vec<(String, String)>);

/// Ceilings are left out, because they belong to the machine, which its probe describes.
fn by_key(side: &Side) -> BTreeMap<Key, Cells<'_>> {
    let mut cells = BTreeMap::<Key, Cells>::new();
    for (session, cell) in side.cells().filter(|(_, cell)| cell.level != bywire_results::level::MEMORY) {
        let parameters = chosen(cell).into_iter().map(|(name, value)| (name, value.to_string())).collect();
        let test = (cell.level.clone(), cell.test.clone(), cell.link.clone());
        let key = (test, cell.between.clone(), cell.size_bytes, parameters);
        cells.entry(key).or_default().push((session, cell));
    }
    cells
}

fn far_share(side: &Side, conditions: &Conditions) -> f64 {
    let states: Vec<State> = side.moments().map(|moment| conditions.state(Some(moment))).collect();
    let far = states.iter().filter(|state| **state == State::Far).count();
    far as f64 / states.len().max(1) as f64
}

/// The change of a shift in natural logarithms.
fn verdict(estimate: f64, [low, high]: [f64; 2], unit: Unit, rule: Rule) -> Verdict {
    // Expressed as the growth of the quantity that is better when smaller: a rate that falls to 0.9 takes 1.11 times as
    // long.
    let threshold = (1.0 + rule.threshold_share).ln();
    let (cost, [low, high]) =
        if unit.less_is_better() { (estimate, [low, high]) } else { (-estimate, [-high, -low]) };
    if cost > threshold && low > 0.0 {
        Verdict::Worse
    } else if cost < -threshold && high < 0.0 {
        Verdict::Better
    } else if low > -threshold && high < threshold {
        Verdict::Same
    } else {
        Verdict::NoDifference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_exceeds_the_threshold_and_lies_outside_the_interval() {
        let of = |estimate, interval, unit| verdict(estimate, interval, unit, Rule::default());
        assert_eq!(of(0.1, [0.02, 0.2], Unit::Nanoseconds), Verdict::Worse);
        assert_eq!(of(0.1, [0.02, 0.2], Unit::BytesPerSecond), Verdict::Better);
        assert_eq!(of(-0.1, [-0.2, -0.02], Unit::BytesPerSecond), Verdict::Worse);
        assert_eq!(of(0.1, [-0.01, 0.2], Unit::Nanoseconds), Verdict::NoDifference);
        assert_eq!(of(0.04, [0.03, 0.2], Unit::Nanoseconds), Verdict::NoDifference);
        assert_eq!(of(0.03, [0.02, 0.04], Unit::Nanoseconds), Verdict::Same);
    }
}
