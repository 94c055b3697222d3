//! What messages cost in CPU, as bars.

use bywire_results::cell::{Cell, CpuEnd};
use bywire_results::quantity;

use crate::comparison::{Comparison, Row, length};
use crate::plot::data::{Axis, Kind, Look, Plot, Point, Quantity, Series};
use crate::way::Way;

/// A linear axis shows bars down to about this part of the longest.
const SPREAD_MAX: f64 = 30.0;

/// Of streams, at the one length at which they are compared.
pub fn cpu_per_kilobyte(comparisons: &[Comparison]) -> Plot {
    let streams = comparisons.iter().find(|comparison| comparison.question.test == "stream");
    let bytes = streams.and_then(|streams| streams.size_bytes);
    let entries = streams.into_iter().flat_map(|streams| &streams.rows).flat_map(Row::entries);
    let rows: Vec<(String, &Cell)> = entries
        .map(|entry| {
            let other = entry.cell.size_bytes.filter(|size| Some(*size) != bytes);
            let at = other.map(|size| format!(", {}", quantity::size(size))).unwrap_or_default();
            (entry.way.label.clone() + &at, entry.cell)
        })
        .collect();
    let about = format!(
        "CPU time for each 1,024 bytes that arrived{}: attributed by the threads' own clocks, and what the machine spent \
         beyond it; of Ethernet also those who carry it. Lower is better.",
        bytes.map(|bytes| format!(" in messages of {}", length(bytes))).unwrap_or_default()
    );
    bars("cpu-per-kilobyte", "CPU per KB of a stream", &about, "CPU per KB", &rows, |cell, end| {
        let unattributed = end.unattributed.map(|share| share * 1e9 / (cell.value / 1024.0));
        [end.service_demand_us_per_kb.map(|us| us * 1e3), unattributed]
    })
}

/// Of short requests, one at a time.
pub fn cpu_per_transaction(ways: &[Way]) -> Plot {
    let rows: Vec<(String, &Cell)> =
        ways.iter().filter_map(|way| Some((way.label.clone(), way.short("rr")?))).collect();
    bars(
        "cpu-per-transaction",
        "CPU per short transaction",
        "CPU time for each request with its response, at both ends and of those who carry between them. Lower is better.",
        "CPU per transaction",
        &rows,
        |cell, end| {
            let unattributed = end.unattributed.map(|share| share * 1e9 / cell.value);
            [end.service_demand_us_per_transaction.map(|us| us * 1e3), unattributed]
        },
    )
}

/// Of short messages, inside the calls.
pub fn cpu_per_message(ways: &[Way]) -> Plot {
    let rows: Vec<(String, &Cell)> =
        ways.iter().filter_map(|way| Some((way.label.clone(), way.short("overhead")?))).collect();
    let part = |slot: usize, key: &str, name: &str| Series {
        name: name.into(),
        look: Look::Part,
        slot,
        points: rows
            .iter()
            .enumerate()
            .filter_map(|(index, (_, cell))| {
                Some(Point { y: cell.details.get(key)?.as_f64()?, ..Point::of(index as f64, cell) })
            })
            .collect(),
    };
    let mut series = vec![part(0, "send_ns", "send"), part(2, "receive_ns", "receive")];
    series.retain(|series| !series.points.is_empty());
    if series.is_empty() {
        let points = rows.iter().enumerate();
        series.push(Series {
            name: "send + receive".into(),
            look: Look::Part,
            slot: 0,
            points: points.map(|(index, (_, cell))| Point::of(index as f64, cell)).collect(),
        });
    }
    Plot {
        id: "cpu-per-message",
        title: "Host CPU per short message",
        about: "Time inside the calls, without waiting; send and receive apart. Lower is better.".into(),
        kind: Kind::Bars,
        x: Axis::NAMES,
        y: Axis { name: "CPU per message", quantity: Quantity::Duration, logarithmic: false },
        categories: rows.into_iter().map(|row| row.0).collect(),
        series,
        remarks: Vec::new(),
    }
}

/// CPU of both ends, attributed and not, stacked; `of` gives both in ns per unit of work.
fn bars(
    id: &'static str,
    title: &'static str,
    about: &str,
    y: &'static str,
    rows: &[(String, &Cell)],
    of: impl Fn(&Cell, &CpuEnd) -> [Option<f64>; 2],
) -> Plot {
    let part = |name: &str, slot: usize, of: &dyn Fn(&Cell) -> Option<f64>| Series {
        name: name.into(),
        look: Look::Part,
        slot,
        points: rows
            .iter()
            .enumerate()
            .filter_map(|(index, (_, cell))| {
                Some(Point { y: of(cell)?.max(0.0), ..Point::of(index as f64, cell) })
            })
            .collect(),
    };
    let carriers = |cell: &Cell| cell.cpu.carriers.as_ref().and_then(|end| of(cell, end)[0]);
    let source = |cell: &Cell| of(cell, &cell.cpu_by_arrival().source);
    let series = vec![
        part("source, attributed", 0, &|cell| source(cell)[0]),
        part("source, beyond", 1, &|cell| source(cell)[1]),
        part("target, attributed", 2, &|cell| of(cell, &cell.cpu.target)[0]),
        part("target, beyond", 3, &|cell| of(cell, &cell.cpu.target)[1]),
        part("carriers between them", 4, &carriers),
    ];
    Plot {
        id,
        title,
        about: about.into(),
        kind: Kind::Bars,
        x: Axis::NAMES,
        y: Axis { name: y, quantity: Quantity::Duration, logarithmic: false },
        categories: rows.iter().map(|row| row.0.clone()).collect(),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        remarks: Vec::new(),
    }
}

/// Bars whose values are told beside them. Where the shortest would not be seen beside the longest the axis is
/// logarithmic, on which parts cannot be stacked: the table tells them.
pub fn with_visible_bars(mut plot: Plot) -> Plot {
    if plot.kind != Kind::Bars || plot.y.logarithmic || plot.y.quantity != Quantity::Duration {
        return plot;
    }
    let totals: Vec<(usize, f64)> = (0..plot.categories.len())
        .map(|row| (row, total(&plot, row)))
        .filter(|(_, total)| *total > 0.0)
        .collect();
    let longest = totals.iter().map(|(_, total)| *total).fold(0.0, f64::max);
    if totals.iter().any(|(_, total)| *total < longest / SPREAD_MAX) {
        let point = |(row, total): &(usize, f64)| {
            let label = Some(plot.y.quantity.format(*total));
            let is_disturbed = pieces(&plot, *row).any(|(_, point)| point.is_disturbed);
            Point { note: Some(parts(&plot, *row)), label, is_disturbed, ..Point::new(*row as f64, *total) }
        };
        let points = totals.iter().map(point).collect();
        plot.series = vec![Series { name: "all together".into(), look: Look::Part, slot: 0, points }];
        plot.y.logarithmic = true;
        plot.about +=
            " Each line of the grid is ten times the one before; the table tells the parts of each bar.";
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
    let all = plot.series.iter().flat_map(|series| series.points.iter().map(move |point| (series, point)));
    all.filter(move |(_, point)| point.x as usize == row)
}

fn total(plot: &Plot, row: usize) -> f64 {
    pieces(plot, row).map(|(_, point)| point.y).sum()
}

fn parts(plot: &Plot, row: usize) -> String {
    let told =
        |(series, point): (&Series, &Point)| format!("{} {}", series.name, plot.y.quantity.format(point.y));
    pieces(plot, row).map(told).collect::<Vec<_>>().join(", ")
}
