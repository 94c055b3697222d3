//! Cells as comma-separated values (RFC 4180): one line for each cell, with units in the column names.

use crate::cell::{Cell, CpuEnd};

/// All `cells` with a heading line. Absent values are empty fields.
pub fn from_cells(cells: &[Cell]) -> String {
    let heading = [COLUMNS, &end_columns("source"), &end_columns("target")].concat();
    std::iter::once(heading).chain(cells.iter().map(line)).map(|line| line + "\r\n").collect()
}

const COLUMNS: &str = "level,test,link,between,size_bytes,parameters,value,unit,ci95_low,ci95_high,mean,\
                       p5,p50,p90,p95,p99,p999,pairs,blocks,disturbed_blocks,outlier_blocks,cacheline_before_ns,cacheline_after_ns";

fn end_columns(end: &str) -> String {
    END_FIELDS.map(|field| format!(",{end}_{field}")).concat()
}

const END_FIELDS: [&str; 7] = [
    "core",
    "machine_busy",
    "steal",
    "attributed",
    "unattributed",
    "service_demand_us_per_kb",
    "service_demand_us_per_transaction",
];

fn line(cell: &Cell) -> String {
    let percentile = |of: fn(&crate::cell::Percentiles) -> f64| number(cell.percentiles.as_ref().map(of));
    let parameters: Vec<String> = cell
        .parameters
        .iter()
        .map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name}={text}"),
            None => format!("{name}={value}"),
        })
        .collect();
    let unit = serde_json::to_value(cell.unit).unwrap_or_default();
    let mut fields = vec![
        cell.level.clone(),
        cell.test.clone(),
        cell.link.clone().unwrap_or_default(),
        cell.between.clone(),
        number(cell.size_bytes),
        parameters.join(";"),
        cell.value.to_string(),
        unit.as_str().unwrap_or_default().to_owned(),
        number(cell.ci95.map(|[low, _]| low)),
        number(cell.ci95.map(|[_, high]| high)),
        number(cell.mean),
        percentile(|p| p.p5),
        percentile(|p| p.p50),
        percentile(|p| p.p90),
        percentile(|p| p.p95),
        percentile(|p| p.p99),
        percentile(|p| p.p999),
        cell.pairs().to_string(),
        cell.blocks.len().to_string(),
        cell.disturbed_blocks().to_string(),
        cell.outlier_blocks().to_string(),
        number(cell.cacheline.map(|cacheline| cacheline.before_ns)),
        number(cell.cacheline.and_then(|cacheline| cacheline.after_ns)),
    ];
    fields.extend(end_fields(&cell.cpu.source));
    fields.extend(end_fields(&cell.cpu.target));
    let quoted: Vec<String> = fields.iter().map(|field| quote(field)).collect();
    quoted.join(",")
}

fn end_fields(end: &CpuEnd) -> [String; 7] {
    [
        number(end.core),
        number(end.machine_busy),
        number(end.steal),
        number(end.attributed),
        number(end.unattributed),
        number(end.service_demand_us_per_kb),
        number(end.service_demand_us_per_transaction),
    ]
}

/// Any table: a heading line and `rows`, each as long as the heading.
pub fn table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let heading = heading.iter().map(|name| (*name).to_owned()).collect();
    std::iter::once(heading)
        .chain(rows)
        .map(|row: Vec<String>| row.iter().map(|field| quote(field)).collect::<Vec<_>>().join(",") + "\r\n")
        .collect()
}

fn number(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
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
