//! A comparison as text for readers.

use bywire_results::quantity;

use crate::comparison::{Comparison, Row, Verdict};
use crate::naming::name;

/// The most changes of the environment that are shown. The JSON has all.
const CHANGES_SHOWN: usize = 12;

impl Comparison<'_> {
    /// The text: first cells that became worse, then those that became better, then all others in the order taken.
    pub fn text(&self) -> String {
        of(self)
    }
}

fn of(comparison: &Comparison) -> String {
    let mut text = sides(comparison) + &machine(comparison) + &environment(comparison) + "\n";
    let width = comparison.rows.iter().map(|row| row.name().chars().count()).max().unwrap_or(0);
    text += &format!(
        "{:<width$}  {:>10}  {:>10}  {:>6}  {:<17}  verdict\n",
        "cell", "before", "after", "ratio", "interval"
    );
    let order = [Verdict::Worse, Verdict::Better, Verdict::NoDifference, Verdict::Same, Verdict::TooFewPairs];
    for verdict in order {
        for row in comparison.rows.iter().filter(|row| row.verdict == verdict) {
            text += &line(row, width);
        }
    }
    for missing in &comparison.missing {
        text += &format!("{}: missing after: {}\n", missing.name(), missing.reason);
    }
    for cell in &comparison.added {
        text += &format!("{}: only after\n", name(cell));
    }
    text + "\n" + &conclusion(comparison) + "\n"
}

fn sides(comparison: &Comparison) -> String {
    let side = |name: &str, side: &crate::side::Side| {
        let session = &side.sessions[0];
        let several = match side.sessions.len() {
            1 => String::new(),
            count => format!(", {count} sessions"),
        };
        format!("{name:<7} {} ({}, {}{several})\n", side.name, session.preset, session.started)
    };
    side("before", comparison.before) + &side("after", comparison.after)
}

fn machine(comparison: &Comparison) -> String {
    let drift = &comparison.drift;
    if drift.shifts.is_empty() {
        return "machine how fast it was itself is not known: these sessions were stored by an older version\n".into();
    }
    let percent = |shift: f64| format!("{:+.1} %", 100.0 * (shift.exp() - 1.0));
    let shifts: Vec<String> =
        drift.shifts.iter().map(|(name, shift)| format!("{name} {}", percent(*shift))).collect();
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
    let plain = |value: &Option<serde_json::Value>| match value {
        None => "unknown".to_owned(),
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let shown = comparison.changes.iter().take(CHANGES_SHOWN);
    let lines: String = shown
        .map(|change| {
            format!("changed {}: {} → {}\n", change.fact, plain(&change.before), plain(&change.after))
        })
        .collect();
    match comparison.changes.len().saturating_sub(CHANGES_SHOWN) {
        0 => lines,
        more => format!("{lines}changed {more} more\n"),
    }
}

fn line(row: &Row, width: usize) -> String {
    let unit = row.before.unit;
    let [before, after] = row.values.map(|value| quantity::value(value, unit));
    let ratio = row.ratio.map_or_else(|| "–".to_owned(), |(ratio, _)| format!("{ratio:.3}"));
    let interval = row.ratio.and_then(|ratio| ratio.1);
    let interval = interval.map_or_else(|| "–".to_owned(), |[low, high]| format!("{low:.3} to {high:.3}"));
    let alone = match row.pairs_alone {
        0 => String::new(),
        alone => format!(" ({alone} pairs without a counterpart)"),
    };
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
    let few = match few {
        0 => String::new(),
        few => format!(
            " {few} had too few pairs for a verdict at that confidence: take both sessions by `bywire bench --rounds 20`."
        ),
    };
    let missing = match (comparison.missing.len(), rule.allow_missing) {
        (0, _) => String::new(),
        (missing, true) => format!(" {missing} of the cells before are missing after, which is allowed."),
        (missing, false) => {
            format!(
                " {missing} of the cells before are missing after: that fails, unless --allow-missing is given."
            )
        }
    };
    format!(
        "{what}, by more than {} and outside the interval, which holds for all cells together with {}.{few}{missing}",
        quantity::percent(rule.threshold_share),
        quantity::percent(1.0 - rule.error_share)
    )
}
