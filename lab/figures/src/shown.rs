//! How figures are written, by their unit.

use bywire_results::cell::Unit;

use crate::figures::Figure;

/// How a value is written.
pub type Show = fn(f64) -> String;

/// How values in a unit are written.
pub const fn of(unit: Unit) -> Show {
    match unit {
        Unit::Nanoseconds => duration,
        Unit::Bytes => |value| format!("{value:.0} B"),
        Unit::BytesPerSecond => |value| format!("{:.2} GB/s", value / 1e9),
        Unit::MessagesPerSecond => |value| format!("{:.1} M/s", value / 1e6),
        Unit::TransactionsPerSecond => |value| format!("{value:.0} /s"),
        Unit::NanosecondsPerSecond => |value| format!("{value:.0} ns/s"),
        Unit::MicrosecondsPerKb => |value| format!("{value:.3} µs/KB"),
        Unit::Count => |value| format!("{value:.0}"),
        Unit::Share => ratio,
        Unit::LostShare => |value| format!("{:.3} %", 100.0 * value),
    }
}

/// A figure with the lowest and the highest round behind it.
pub fn figure(figure: Figure, show: Show) -> String {
    format!("{} ({} to {})", show(figure.value), show(figure.low), show(figure.high))
}

/// `1.23`.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// A ratio as its excess over 1, in percent.
pub fn rise(value: f64) -> String {
    format!("{:+.0} %", 100.0 * (value - 1.0))
}

fn duration(ns: f64) -> String {
    match ns {
        _ if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        _ if ns >= 10_000.0 => format!("{:.1} µs", ns / 1e3),
        _ => format!("{ns:.0} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_show_their_spread() {
        let spread = Figure { value: 1.234, low: 1.0, high: 2.0 };
        assert_eq!(figure(spread, ratio), "1.23 (1.00 to 2.00)");
        assert_eq!(figure(spread, rise), "+23 % (+0 % to +100 %)");
        assert_eq!([12.0, 12_345.0, 1.5e6].map(of(Unit::Nanoseconds)), ["12 ns", "12.3 µs", "1.50 ms"]);
    }
}
