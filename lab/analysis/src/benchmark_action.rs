//! The results of the side after, as a custom benchmark for github-action-benchmark, which draws their history.

use serde_json::{Value, json};

use crate::comparison::{Comparison, Row};

/// Two arrays, which that action needs separately: values that are better when smaller (`customSmallerIsBetter`), and
/// values that are better when bigger (`customBiggerIsBetter`).
pub fn entries(comparison: &Comparison) -> [Value; 2] {
    let (smaller, bigger): (Vec<&Row>, Vec<&Row>) =
        comparison.rows.iter().partition(|row| row.before.unit.less_is_better());
    [smaller, bigger].map(|rows| rows.into_iter().map(entry).collect())
}

fn entry(row: &Row) -> Value {
    let cell = row.after;
    let mut entry = json!({
        "name": row.name(),
        "unit": cell.unit,
        "value": row.values[1],
        "extra": format!("{} against what was before: {}", row.ratio.map_or_else(String::new, |ratio| format!("{:.3} times", ratio.0)), row.verdict.name()),
    });
    if let Some([low, high]) = cell.ci95 {
        entry["range"] = format!("± {}", (high - low) / 2.0).into();
    }
    entry
}
