//! Markdown tables, and the formats of figures.

use std::fmt::Write as _;

use bywire_measure::environment;
use bywire_measure::pin;

use crate::contest::{Contest, Figure};

/// How a value is written.
pub type Show = fn(f64) -> String;

/// A row of cells.
pub fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// The first two lines of a table.
pub fn heading(titles: &[&str]) -> String {
    let titles: Vec<String> = titles.iter().map(|title| (*title).to_owned()).collect();
    row(&titles) + &row(&vec!["---".to_owned(); titles.len()])
}

/// A figure with the lowest and the highest round behind it.
pub fn figure(figure: Figure, show: Show) -> String {
    format!("{} ({} to {})", show(figure.value), show(figure.low), show(figure.high))
}

/// `1.23`.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// Nanoseconds.
pub fn ns(value: f64) -> String {
    if value >= 10_000.0 { format!("{:.1} µs", value / 1e3) } else { format!("{value:.0} ns") }
}

/// Milliseconds.
pub fn ms(value: f64) -> String {
    format!("{value:.2} ms")
}

/// Millions of messages per second.
pub fn millions(value: f64) -> String {
    format!("{:.1} M/s", value / 1e6)
}

/// Per second.
pub fn per_second(value: f64) -> String {
    format!("{value:.0} /s")
}

/// Bytes.
pub fn bytes(value: f64) -> String {
    format!("{value:.0} B")
}

/// Bytes per second.
pub fn rate(value: f64) -> String {
    format!("{:.2} GB/s", value / 1e9)
}

/// Microseconds of CPU per 1,024 bytes.
pub fn us_per_kb(value: f64) -> String {
    format!("{value:.3} µs/KB")
}

/// Nanoseconds of CPU per second.
pub fn cpu(value: f64) -> String {
    format!("{value:.0} ns/s")
}

/// A ratio as its excess over 1, in percent.
pub fn rise(value: f64) -> String {
    format!("{:+.0} %", 100.0 * (value - 1.0))
}

/// The machine and the build of the measurement, in two lines.
pub fn machine() -> String {
    let (source, target) = pin::two_cores();
    let described = environment::describe(&[source, target]);
    let text = |pointer: &str| match described.pointer(pointer) {
        Some(text) if text.is_string() => text.as_str().unwrap_or_default().to_owned(),
        Some(other) => other.to_string(),
        None => "not known".to_owned(),
    };
    format!(
        "Bywire {} ({}), {}, Linux {}, cores {source} and {target}, hypervisor: {}.\n",
        text("/package/version"),
        text("/package/revision"),
        text("/cpu/model"),
        text("/kernel/release"),
        text("/hypervisor"),
    )
}

/// Every contestant with its series, its command and how disturbed it was.
pub fn contestants(contest: &Contest, show: impl Fn(&str) -> Show) -> String {
    let mut table = heading(&["series", "median (lowest to highest round)", "disturbed blocks", "command"]);
    for entry in contest.entries() {
        let disturbed = match entry.blocks {
            0 => "not known".to_owned(),
            blocks => format!("{} of {blocks}", entry.blocks_disturbed),
        };
        for series in &entry.series {
            let shown =
                contest.rounds().figure(series).map_or_else(String::new, |value| figure(value, show(series)));
            let command = format!("`{}`", entry.contestant.command);
            table.push_str(&row(&[series.clone(), shown, disturbed.clone(), command]));
        }
    }
    for entry in contest.entries().iter().filter(|entry| !entry.failures.is_empty()) {
        let failures = entry.failures.len();
        let last = entry.failures.last().map_or("", String::as_str);
        let _ = writeln!(table, "\n{} failed {failures} times, last: {last}", entry.contestant.name);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_show_their_spread() {
        let spread = Figure { value: 1.234, low: 1.0, high: 2.0 };
        assert_eq!(figure(spread, ratio), "1.23 (1.00 to 2.00)");
        assert_eq!(figure(spread, rise), "+23 % (+0 % to +100 %)");
        assert_eq!(heading(&["a", "b"]), "| a | b |\n| --- | --- |\n");
        assert_eq!(ns(12_345.0), "12.3 µs");
    }
}
