//! Rows of docs/scale.md.

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scale.md");
/// The tolerance of a row of the page: rounding passes, and a change of the code does not.
const TOLERANCE: f64 = 0.2;

/// Fails unless the page has these rows, within the tolerance.
pub fn assert_has(rows: &[String]) {
    let page = std::fs::read_to_string(PAGE).expect("docs/scale.md is there");
    let missing: Vec<_> = rows.iter().filter(|row| !is_in(&page, row)).collect();
    assert!(missing.is_empty(), "docs/scale.md says otherwise; found was\n{missing:#?}");
}

fn is_in(page: &str, row: &str) -> bool {
    let head = &row[..row[2..].find('|').expect("a row has cells") + 3];
    page.lines().map(str::trim_start).filter(|line| line.starts_with(head)).any(|line| {
        let (said, found) = (numbers(line), numbers(row));
        let is_near = |(said, found): (&f64, &f64)| (said - found).abs() <= TOLERANCE * found.max(0.5);
        said.len() == found.len() && said.iter().zip(&found).all(is_near)
    })
}

fn numbers(row: &str) -> Vec<f64> {
    row.split(|sign: char| !sign.is_ascii_digit() && sign != '.')
        .filter_map(|word| word.parse().ok())
        .collect()
}
