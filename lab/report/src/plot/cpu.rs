//! The CPU cost of messages, as bars.

use bywire_results::cell::{Cell, CpuEnd};
use bywire_results::quantity;

use crate::comparison::{self, Comparison, Entry, length, of_test};
use crate::plot::data::{Axis, Kind, Look, Name, Names, Plot, Point, Quantity, Series};
use crate::way::Way;

/// The shortest bar that a linear axis shows, as a part of the longest.
const SPREAD_MAX: f64 = 30.0;

/// A row of bars: its name and its cell.
type Row<'a> = (Name, &'a Cell);

/// CPU of streams, at the length at which they are compared.
pub fn cpu_per_kilobyte(comparisons: &[Comparison]) -> Plot {
    let streams = of_test(comparisons, "stream");
    let bytes = streams.and_then(|streams| streams.size_bytes);
    let entries = streams.into_iter().flat_map(|streams| &streams.rows).flat_map(comparison::Row::entries);
    let at = |entry: &Entry| quantity::size_after(", ", entry.other_size(bytes));
    let rows: Vec<Row> =
        entries.map(|entry| (Name::of_label(entry.way).followed_by(&at(entry)), entry.cell)).collect();
    let about = format!(
        "CPU time for each 1,024 bytes that arrived{}: of the threads at each end, of what the machine spent beyond that, and \
         of the processes that carry Ethernet. Lower is better.",
        bytes.map(|bytes| format!(" in messages of {}", length(bytes))).unwrap_or_default()
    );
    let parts = both_ends(&rows, |cell, end| {
        let unattributed = end.unattributed.map(|share| share * 1e9 / (cell.value / 1024.0));
        [end.service_demand_us_per_kb.map(|us| us * 1e3), unattributed]
    });
    plot(["cpu-per-kilobyte", "CPU per KB of a stream"], &about, "CPU per KB", rows, parts)
}

/// CPU of short requests, one at a time.
pub fn cpu_per_transaction(ways: &[Way]) -> Plot {
    let about = "CPU time for each request with its response, at both ends and in the carrying processes. Lower is better.";
    let rows = short(ways, "rr");
    let parts = both_ends(&rows, |cell, end| {
        let unattributed = end.unattributed.map(|share| share * 1e9 / cell.value);
        [end.service_demand_us_per_transaction.map(|us| us * 1e3), unattributed]
    });
    plot(["cpu-per-transaction", "CPU per short transaction"], about, "CPU per transaction", rows, parts)
}

/// CPU of short messages, within the calls.
pub fn cpu_per_message(ways: &[Way]) -> Plot {
    let about = "Time inside the calls that send and receive, without waiting. Lower is better.";
    let rows = short(ways, "overhead");
    let part = |name, slot, key| series(name, slot, &rows, &|cell| cell.details.number(key));
    let mut parts = vec![part("send", 0, "send_ns"), part("receive", 2, "receive_ns")];
    if parts.iter().all(|series| series.points.is_empty()) {
        parts = vec![series("send + receive", 0, &rows, &|cell| Some(cell.value))];
    }
    plot(["cpu-per-message", "Host CPU per short message"], about, "CPU per message", rows, parts)
}

/// The cell of each way for short messages.
fn short<'a>(ways: &[Way<'a>], test: &str) -> Vec<Row<'a>> {
    ways.iter().filter_map(|way| Some((Name::of_label(way), way.short(test)?))).collect()
}

/// CPU of both ends, attributed and not attributed. `of` gives both in ns per unit of work.
fn both_ends(rows: &[Row], of: impl Fn(&Cell, &CpuEnd) -> [Option<f64>; 2]) -> Vec<Series> {
    let source = |cell: &Cell| of(cell, &cell.cpu_by_arrival().source);
    let target = |cell: &Cell| of(cell, &cell.cpu.target);
    let carriers = |cell: &Cell| cell.cpu.carriers.as_ref().and_then(|end| of(cell, end)[0]);
    vec![
        series("source, attributed", 0, rows, &|cell| source(cell)[0]),
        series("source, beyond", 1, rows, &|cell| source(cell)[1]),
        series("target, attributed", 2, rows, &|cell| target(cell)[0]),
        series("target, beyond", 3, rows, &|cell| target(cell)[1]),
        series("carriers between them", 4, rows, &carriers),
    ]
}

/// One part of every bar, in ns. A difference below zero counts as zero.
fn series(name: &str, slot: usize, rows: &[Row], of: &dyn Fn(&Cell) -> Option<f64>) -> Series {
    let points = rows.iter().enumerate().filter_map(|(index, (_, cell))| {
        Some(Point { y: of(cell)?.max(0.0), ..Point::of(index as f64, cell) })
    });
    Series::new(name, Look::Part, slot, points)
}

/// Bars of durations, stacked from `parts`.
fn plot(names: Names, about: &str, y: &'static str, rows: Vec<Row>, parts: Vec<Series>) -> Plot {
    let categories = rows.into_iter().map(|(name, _)| name).collect();
    Plot::bars(names, about, Axis::linear(y, Quantity::Duration), categories, parts)
}

/// Writes values beside bars. If the shortest bar would be too short to see, the axis becomes logarithmic. Parts cannot
/// be stacked on such an axis, so only the table has them.
pub fn with_visible_bars(mut plot: Plot) -> Plot {
    if plot.kind != Kind::Bars || plot.y.logarithmic || plot.y.quantity != Quantity::Duration {
        return plot;
    }
    let total = |row| (row, pieces(&plot, row).map(|(_, point)| point.y).sum::<f64>());
    let totals: Vec<(usize, f64)> =
        (0..plot.categories.len()).map(total).filter(|(_, total)| *total > 0.0).collect();
    let longest = totals.iter().map(|(_, total)| *total).fold(0.0, f64::max);
    if totals.iter().any(|(_, total)| *total < longest / SPREAD_MAX) {
        let point = |(row, total): &(usize, f64)| {
            let label = Some(plot.y.quantity.format(*total));
            let is_disturbed = pieces(&plot, *row).any(|(_, point)| point.is_disturbed);
            Point { note: Some(parts(&plot, *row)), label, is_disturbed, ..Point::new(*row as f64, *total) }
        };
        let points: Vec<Point> = totals.iter().map(point).collect();
        plot.series = vec![Series::new("all together", Look::Part, 0, points)];
        plot.y.logarithmic = true;
        plot.about +=
            " Each line of the grid is ten times the one before; the table lists the parts of each bar.";
        return plot;
    }
    for (row, total) in totals {
        let label = plot.y.quantity.format(total);
        let mut last = plot.series.iter_mut().rev().flat_map(|series| &mut series.points);
        if let Some(point) = last.find(|point| point.x as usize == row) {
            point.label = Some(label);
        }
    }
    plot
}

fn pieces(plot: &Plot, row: usize) -> impl Iterator<Item = (&Series, &Point)> {
    plot.points().filter(move |(_, point)| point.x as usize == row)
}

fn parts(plot: &Plot, row: usize) -> String {
    let told = |(series, point): (&Series, &Point)| {
        format!("{} {}", series.name.plain, plot.y.quantity.format(point.y))
    };
    pieces(plot, row).map(told).collect::<Vec<_>>().join(", ")
}
