//! The parts of a page: Markdown around tables, and how figures are written.

use bywire_report::table::{Column, Entry, Row, Table};
use bywire_results::cell::{DISTURBED, Unit};
use bywire_results::details::COMMAND;
use bywire_results::level::FIGURE;
use serde_json::Value;

use crate::figures::{Figure, Figures, Series, by, metrics, value};

/// How a value is written.
pub type Show = fn(f64) -> String;

/// How values in a unit are written.
pub fn show(unit: Unit) -> Show {
    match unit {
        Unit::Nanoseconds => |ns| match ns {
            _ if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
            _ if ns >= 10_000.0 => format!("{:.1} µs", ns / 1e3),
            _ => format!("{ns:.0} ns"),
        },
        Unit::Bytes => |value| format!("{value:.0} B"),
        Unit::BytesPerSecond => |value| format!("{:.2} GB/s", value / 1e9),
        Unit::MessagesPerSecond => |value| format!("{:.1} M/s", value / 1e6),
        Unit::TransactionsPerSecond => |value| format!("{value:.0} /s"),
        Unit::NanosecondsPerSecond => |value| format!("{value:.0} ns/s"),
        Unit::MicrosecondsPerKb => |value| format!("{value:.3} µs/KB"),
        Unit::Count => |value| format!("{value:.0}"),
        Unit::Share => show_ratio,
        Unit::LostShare => |value| format!("{:.3} %", 100.0 * value),
    }
}

/// `1.23`.
pub fn show_ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// A ratio as its excess over 1, in percent.
pub fn show_rise(value: f64) -> String {
    format!("{:+.0} %", 100.0 * (value - 1.0))
}

/// A figure with the lowest and the highest round behind it.
pub fn spread(figure: Figure, show: Show) -> String {
    format!("{} ({} to {})", show(figure.value), show(figure.low), show(figure.high))
}

/// A page: the machine, its own `body`, and everything behind it.
pub fn page(figures: &Figures, body: &str) -> String {
    format!("{}\n{body}\nBehind them. {DISTURBED}\n\n{}", machine(figures), contestants(figures))
}

/// The machine and the build of the measurement, in one line.
pub fn machine(figures: &Figures) -> String {
    let text = |pointer: &str| match figures.session.environment.pointer(pointer) {
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
        Some((figure, unit)) => spread(figure, show(unit)),
        None => format!("not run: {}", figures.reason(series.contestant).unwrap_or("interrupted")),
    }
}

/// The median of a series alone.
pub fn median(figures: &Figures, series: Series) -> String {
    let found = figures.rounds().figure(series).zip(figures.unit(series));
    found.map_or("not measured".to_owned(), |(figure, unit)| show(unit)(figure.value))
}

/// The ratio of two series with its spread.
pub fn ratio(figures: &Figures, above: Series, below: Series) -> String {
    let found = figures.rounds().ratio(above, below);
    found.map_or("not measured".to_owned(), |ratio| spread(ratio, show_ratio))
}

/// A row of `words`, two series, and the ratio of the first to the second.
pub fn versus(figures: &Figures, words: &[&str], names: [String; 2]) -> Vec<String> {
    let [own, other] = names.each_ref().map(|name| value(name));
    let shown = [told(figures, own), told(figures, other), ratio(figures, own, other)];
    words.iter().map(|word| (*word).to_owned()).chain(shown).collect()
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
    let absent = figures.session.absent.iter();
    let failed = absent.map(|absence| format!("\n{} was given up: {}\n", absence.level, absence.reason));
    Table::new("", columns.to_vec(), rows.collect()).markdown() + &failed.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_show_their_spread() {
        let figure = Figure { value: 1.234, low: 1.0, high: 2.0 };
        assert_eq!(spread(figure, show_ratio), "1.23 (1.00 to 2.00)");
        assert_eq!(spread(figure, show_rise), "+23 % (+0 % to +100 %)");
        assert_eq!([12.0, 12_345.0, 1.5e6].map(show(Unit::Nanoseconds)), ["12 ns", "12.3 µs", "1.50 ms"]);
    }
}
