//! Cells as comma-separated values (RFC 4180): one line for each cell, with units in the column names.

use crate::cell::{Cell, CpuEnd, Percentiles};
use crate::parameter::plain;

/// The name of a column, with its unit, and what it holds of a cell or of one end.
type Column<T> = (&'static str, fn(&T) -> String);

const COLUMNS: [Column<Cell>; 23] = [
    ("level", |cell| cell.level.clone()),
    ("test", |cell| cell.test.clone()),
    ("link", |cell| cell.link.clone().unwrap_or_default()),
    ("between", |cell| cell.between.clone()),
    ("size_bytes", |cell| optional(cell.size_bytes)),
    ("parameters", parameters),
    ("value", |cell| cell.value.to_string()),
    ("unit", |cell| cell.unit.to_string()),
    ("ci95_low", |cell| optional(cell.ci95.map(|[low, _]| low))),
    ("ci95_high", |cell| optional(cell.ci95.map(|[_, high]| high))),
    ("mean", |cell| optional(cell.mean)),
    ("p5", |cell| percentile(cell, |all| all.p5)),
    ("p50", |cell| percentile(cell, |all| all.p50)),
    ("p90", |cell| percentile(cell, |all| all.p90)),
    ("p95", |cell| percentile(cell, |all| all.p95)),
    ("p99", |cell| percentile(cell, |all| all.p99)),
    ("p999", |cell| percentile(cell, |all| all.p999)),
    ("pairs", |cell| cell.pairs().to_string()),
    ("blocks", |cell| cell.blocks.len().to_string()),
    ("disturbed_blocks", |cell| cell.disturbed_blocks().to_string()),
    ("outlier_blocks", |cell| cell.outlier_blocks().to_string()),
    ("cacheline_before_ns", |cell| optional(cell.cacheline.map(|line| line.before_ns))),
    ("cacheline_after_ns", |cell| optional(cell.cacheline.and_then(|line| line.after_ns))),
];

/// The columns of each end.
const END_COLUMNS: [Column<CpuEnd>; 7] = [
    ("core", |end| optional(end.core)),
    ("machine_busy", |end| optional(end.machine_busy)),
    ("steal", |end| optional(end.steal)),
    ("attributed", |end| optional(end.attributed)),
    ("unattributed", |end| optional(end.unattributed)),
    ("service_demand_us_per_kb", |end| optional(end.service_demand_us_per_kb)),
    ("service_demand_us_per_transaction", |end| optional(end.service_demand_us_per_transaction)),
];

/// All `cells` with a heading line. Absent values are empty fields.
pub fn from_cells(cells: &[Cell]) -> String {
    let ends = ["source", "target"].map(|end| END_COLUMNS.map(|(name, _)| format!("{end}_{name}")));
    let heading: Vec<String> =
        COLUMNS.iter().map(|(name, _)| (*name).to_owned()).chain(ends.into_iter().flatten()).collect();
    let rows = cells.iter().map(|cell| {
        let ends = [&cell.cpu.source, &cell.cpu.target].map(|end| END_COLUMNS.map(|(_, field)| field(end)));
        COLUMNS.iter().map(|(_, field)| field(cell)).chain(ends.into_iter().flatten()).collect()
    });
    table(&heading, rows)
}

/// Any table: a heading line and `rows`, each as long as the heading.
pub fn table(heading: &[impl AsRef<str>], rows: impl Iterator<Item = Vec<String>>) -> String {
    line(heading) + &rows.map(|row| line(&row)).collect::<String>()
}

/// A field that is empty if there is no value.
pub fn optional(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn line(fields: &[impl AsRef<str>]) -> String {
    fields.iter().map(|field| quote(field.as_ref())).collect::<Vec<_>>().join(",") + "\r\n"
}

fn parameters(cell: &Cell) -> String {
    let told = cell.parameters.iter().map(|(name, value)| format!("{name}={}", plain(value)));
    told.collect::<Vec<_>>().join(";")
}

fn percentile(cell: &Cell, of: fn(&Percentiles) -> f64) -> String {
    optional(cell.percentiles.as_ref().map(of))
}

fn quote(field: &str) -> String {
    // A spreadsheet would run such a text as a formula.
    let is_formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']) && field.parse::<f64>().is_err();
    let field = if is_formula { format!("'{field}") } else { field.to_owned() };
    match field.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_hold_separators_are_quoted() {
        assert_eq!(quote("plain"), "plain");
        assert_eq!(quote("a,\"b\""), "\"a,\"\"b\"\"\"");
    }

    #[test]
    fn fields_are_never_spreadsheet_formulas() {
        assert_eq!(quote("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
        assert_eq!(quote("@SUM(A1,A2)"), "\"'@SUM(A1,A2)\"");
        assert_eq!([quote("-3.5e-7"), quote("+1"), quote("-1+1")], ["-3.5e-7", "+1", "'-1+1"]);
    }

    #[test]
    fn the_heading_counts_the_columns() {
        assert_eq!(from_cells(&[]).trim_end().split(',').count(), 23 + 2 * 7);
    }
}
