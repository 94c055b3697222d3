//! Formatting of figures: three significant digits, and the unit that keeps them short.

use crate::cell::{Cell, Unit};

/// `value` with its unit, as `5.05 µs` or `12.3 GB/s`.
pub fn value(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds => duration(value),
        Unit::Bytes => format!("{} B", digits(value)),
        Unit::BytesPerSecond => rate(value),
        Unit::MessagesPerSecond | Unit::TransactionsPerSecond => per_second(value),
        Unit::NanosecondsPerSecond => format!("{} ns/s", digits(value)),
        Unit::MicrosecondsPerKb => format!("{} µs/KB", digits(value)),
        Unit::Count => digits(value),
        Unit::Share | Unit::LostShare => percent(value),
    }
}

/// The value of a cell, with its unit.
pub fn of_cell(cell: &Cell) -> String {
    value(cell.value, cell.unit)
}

/// The text in place of an interval if there are too few pairs.
pub const TOO_FEW_PAIRS: &str = "too few pairs";

/// Nanoseconds.
pub fn duration(ns: f64) -> String {
    scaled(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
}

/// Bytes per second, in powers of ten as the field does.
pub fn rate(bytes_per_second: f64) -> String {
    let units = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")];
    scaled(bytes_per_second, &units)
}

/// Messages or transactions per second.
pub fn per_second(value: f64) -> String {
    scaled(value, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")])
}

/// A message length, exact: `1 KiB`, `8195 B`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0 B".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// A message length after some words, or nothing if there is none.
pub fn size_after(words: &str, bytes: Option<u64>) -> String {
    bytes.map(|bytes| format!("{words}{}", size(bytes))).unwrap_or_default()
}

/// A factor, as `12.4×`.
pub fn factor(ratio: f64) -> String {
    format!("{}×", digits(ratio))
}

/// A share of one, as `74 %`.
pub fn percent(share: f64) -> String {
    format!("{} %", digits(share * 100.0))
}

/// Three significant digits without an exponent. From 100 on, whole numbers.
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".into(),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // 999.6 ns is printed as 1.00 µs, because the unit depends on the rounded figure.
    let unit = units.iter().find(|(factor, _)| value.abs() >= factor * 0.9995);
    let (factor, name) = unit.or(units.last()).copied().unwrap_or((1.0, ""));
    format!("{} {name}", digits(value / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_three_digits_and_the_shortest_unit() {
        assert_eq!(duration(5050.0), "5.05 µs");
        assert_eq!(duration(212.4), "212 ns");
        assert_eq!(duration(999.7), "1.00 µs");
        assert_eq!(duration(0.25), "0.25 ns");
        assert_eq!(rate(231_582_500.0), "232 MB/s");
        assert_eq!(rate(12.34e9), "12.3 GB/s");
        assert_eq!(per_second(15499.25), "15.5 k/s");
        assert_eq!(size(1024), "1 KiB");
        assert_eq!(size(8195), "8195 B");
        assert_eq!(factor(99.96), "100×");
        assert_eq!(digits(f64::NAN), "–");
    }
}
