//! The parts of a page: Markdown around tables.

use bywire_report::table::{Column, Entry, Row, Table};
use bywire_results::cell::DISTURBED;
use bywire_results::details::COMMAND;
use bywire_results::level::FIGURE;
use serde_json::Value;

use crate::figures::{Figures, metrics};
use crate::requirement::{self, Requirement};
use crate::series::{Series, by};
use crate::shown;

/// A page: the machine, what is required, what the page adds, and everything behind it.
pub fn page(requirements: &[Requirement], added: &str, figures: &Figures) -> String {
    format!(
        "{}\n{}{added}\nBehind them. {DISTURBED}\n\n{}",
        machine(figures),
        requirement::table(requirements, figures),
        contestants(figures)
    )
}

/// The machine and the build of the measurement, in one line.
pub fn machine(figures: &Figures) -> String {
    let described = figures.environment();
    let text = |pointer: &str| match described.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "not known".to_owned(),
    };
    format!(
        "Bywire {} ({}), {}, Linux {}, hypervisor: {}.\n",
        text("/package/version"),
        text("/package/revision"),
        text("/cpu/model"),
        text("/kernel/release"),
        text("/hypervisor"),
    )
}

/// The median of a series with its spread, or why there is none.
pub fn told(figures: &Figures, series: Series) -> String {
    match figures.rounds().figure(series).zip(figures.unit(series)) {
        Some((figure, unit)) => shown::figure(figure, shown::of(unit)),
        None => format!("not run: {}", figures.reason(series.contestant).unwrap_or("interrupted")),
    }
}

/// The median of a series alone.
pub fn median(figures: &Figures, series: Series) -> String {
    let found = figures.rounds().figure(series).zip(figures.unit(series));
    found.map_or("not measured".to_owned(), |(figure, unit)| shown::of(unit)(figure.value))
}

/// The ratio of two series with its spread.
pub fn ratio(figures: &Figures, above: Series, below: Series) -> String {
    let found = figures.rounds().ratio(above, below);
    found.map_or("not measured".to_owned(), |ratio| shown::figure(ratio, shown::ratio))
}

/// A table of Markdown whose entries are Markdown already. The first `words` columns are text.
pub fn table(
    words: usize,
    titles: impl IntoIterator<Item = &'static str>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows = rows.into_iter().map(|row| Row::of(row.into_iter().map(Entry::marked)));
    Table::new("", Column::named(words, titles), rows.collect()).markdown()
}

/// Every contestant with its series, its command and how disturbed it was.
pub fn contestants(figures: &Figures) -> String {
    let rows = figures.cells().flat_map(|(name, cell)| {
        let disturbed = match cell.level.as_str() {
            FIGURE => "not known".to_owned(),
            _ => format!("{} of {}", cell.disturbed_blocks(), cell.blocks.len()),
        };
        let command = cell.details.text(COMMAND).unwrap_or_default();
        metrics(cell).into_iter().map(move |metric| {
            let series = by(name, metric);
            let shown = told(figures, series);
            Row::of([series.to_string().into(), shown.into(), disturbed.clone().into(), Entry::code(command)])
        })
    });
    let columns = [
        Column::words("series"),
        Column::figures("median (lowest to highest round)"),
        Column::figures("disturbed blocks"),
        Column::words("command"),
    ];
    let failed = figures.reasons().map(|(name, reason)| format!("\n{name} was given up: {reason}\n"));
    Table::new("", columns.to_vec(), rows.collect()).markdown() + &failed.collect::<String>()
}
