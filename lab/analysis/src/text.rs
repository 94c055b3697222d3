//! A comparison as text for readers.

use bywire_results::parameter::plain;
use bywire_results::quantity;
use serde_json::Value;

use crate::comparison::{Comparison, Row, Verdict};
use crate::side::name;

/// The most changes of the environment that are shown. The JSON has all.
const CHANGES_SHOWN: usize = 12;

/// The order of the rows. Those of one verdict are in the order taken.
const ORDER: [Verdict; 5] =
    [Verdict::Worse, Verdict::Better, Verdict::NoDifference, Verdict::Same, Verdict::TooFewPairs];

impl Comparison<'_> {
    /// The text: first cells that became worse, then those that became better, then all others in the order taken.
    pub fn text(&self) -> String {
        let mut text = sides(self) + &machine(self) + &environment(self) + "\n";
        let width = self.rows.iter().map(|row| row.name().chars().count()).max().unwrap_or(0);
        text += &format!(
            "{:<width$}  {:>10}  {:>10}  {:>6}  {:<17}  verdict\n",
            "cell", "before", "after", "ratio", "interval"
        );
        for row in ORDER.iter().flat_map(|order| self.rows.iter().filter(|row| row.verdict == *order)) {
            text += &line(row, width);
        }
        for missing in &self.missing {
            text += &format!("{}: missing after: {}\n", missing.name(), missing.reason);
        }
        for cell in &self.added {
            text += &format!("{}: only after\n", name(cell));
        }
        text + "\n" + &conclusion(self) + "\n"
    }
}

fn sides(comparison: &Comparison) -> String {
    let side = |name: &str, side: &crate::side::Side| {
        let session = &side.sessions[0];
        let several = when(side.sessions.len(), 2, |count| format!(", {count} sessions"));
        format!("{name:<7} {} ({}, {}{several})\n", side.name, session.preset, session.started)
    };
    side("before", comparison.before) + &side("after", comparison.after)
}

fn machine(comparison: &Comparison) -> String {
    let drift = &comparison.drift;
    if drift.0.is_empty() {
        return "machine how fast it was itself is not known: these sessions were stored by an older version\n".into();
    }
    let percent = |shift: f64| format!("{:+.1} %", 100.0 * (shift.exp() - 1.0));
    let shifts: Vec<String> =
        drift.0.iter().map(|(name, shift)| format!("{name} {}", percent(*shift))).collect();
    let [before, after] = comparison.far_shares.map(quantity::percent);
    format!(
        "machine {}; every interval is widened by {:.1} %; cores far apart in {before} of the pairs before, {after} after\n",
        shifts.join(", "),
        100.0 * (drift.slack().exp() - 1.0)
    )
}

fn environment(comparison: &Comparison) -> String {
    if comparison.changes.is_empty() {
        return "nothing recorded of the environment has changed\n".into();
    }
    let plain = |value: &Option<Value>| value.as_ref().map_or_else(|| "unknown".to_owned(), plain);
    let shown = comparison.changes.iter().take(CHANGES_SHOWN);
    let lines = shown.map(|change| {
        format!("changed {}: {} → {}\n", change.fact, plain(&change.before), plain(&change.after))
    });
    let more = comparison.changes.len().saturating_sub(CHANGES_SHOWN);
    lines.collect::<String>() + &when(more, 1, |more| format!("changed {more} more\n"))
}

/// A text on a count, from `least` on.
fn when(count: usize, least: usize, text: impl Fn(usize) -> String) -> String {
    if count >= least { text(count) } else { String::new() }
}

fn line(row: &Row, width: usize) -> String {
    let unit = row.before.unit;
    let [before, after] = row.values.map(|value| quantity::value(value, unit));
    let ratio = row.ratio.map_or_else(|| "–".to_owned(), |(ratio, _)| format!("{ratio:.3}"));
    let interval = row.ratio.and_then(|ratio| ratio.1);
    let interval = interval.map_or_else(|| "–".to_owned(), |[low, high]| format!("{low:.3} to {high:.3}"));
    let alone = when(row.pairs_alone, 1, |alone| format!(" ({alone} pairs without a counterpart)"));
    format!(
        "{:<width$}  {before:>10}  {after:>10}  {ratio:>6}  {interval:<17}  {}{alone}\n",
        row.name(),
        row.verdict.name(),
    )
}

fn conclusion(comparison: &Comparison) -> String {
    let count = |verdict| comparison.count(verdict);
    let few = count(Verdict::TooFewPairs);
    let decided = comparison.rows.len() - few;
    let what = match (count(Verdict::Worse), count(Verdict::Better)) {
        (0, 0) if decided == 0 => "Nothing can be told".to_owned(),
        (0, 0) => format!("No difference in {decided} cells"),
        (worse, better) => format!("{worse} worse and {better} better of {decided} cells"),
    };
    let rule = comparison.rule;
    let few = when(few, 1, |few| {
        format!(
            " {few} had too few pairs for a verdict at that confidence: take both sessions by `bywire bench --rounds 20`."
        )
    });
    let fate = match rule.allow_missing {
        true => ", which is allowed",
        false => ": that fails, unless --allow-missing is given",
    };
    let missing = when(comparison.missing.len(), 1, |missing| {
        format!(" {missing} of the cells before are missing after{fate}.")
    });
    format!(
        "{what}, by more than {} and outside the interval, which holds for all cells together with {}.{few}{missing}",
        quantity::percent(rule.threshold_share),
        quantity::percent(1.0 - rule.error_share)
    )
}
