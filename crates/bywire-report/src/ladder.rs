//! The ladder: every way of carrying messages below what the machine itself allows, at a glance.

use bywire_results::cell::Cell;

use crate::ceiling::Ceilings;
use crate::plot::{Axis, Kind, Look, Plot, Point, Quantity, Series};
use crate::way::{Waiting, Way};

/// From what is nearest to memory to what is furthest; levels that are not named come last, as they were taken.
const RUNGS: [&str; 8] = ["msg", "sock", "eth", "unix", "tcp", "udp", "mpi", "web"];

/// Half-RTT of short messages, and the highest one-way rate, one row for each way.
pub fn plots(ways: &[Way], ceilings: &Ceilings) -> [Plot; 2] {
    let floors =
        [("memory: a cache line", ceilings.half_rtt_floor()), ("memory: a hand-off", ceilings.wake_floor())];
    let half_rtt = rungs(
        ways,
        &floors,
        |way| way.short("latency"),
        "ladder-half-rtt",
        "The ladder: half-RTT of a short message",
        "From what the machine itself takes down to what each way takes, 8 bytes where they were measured. Left is \
         better; each mark to the right on this scale is ten times as long.",
        Axis { name: "half-RTT", quantity: Quantity::Duration, logarithmic: true },
    );
    let ceiling = [("memory: one core writes, copies, sums", ceilings.one_way(1 << 20))];
    let rate = rungs(
        ways,
        &ceiling,
        |way| way.highest("stream"),
        "ladder-rate",
        "The ladder: highest one-way rate",
        "The highest rate at any length that was measured, below what one core can write, copy and sum. Right is better.",
        Axis { name: "rate", quantity: Quantity::Rate, logarithmic: true },
    );
    [half_rtt, rate]
}

fn rungs<'a>(
    ways: &[Way<'a>],
    limits: &[(&str, Option<f64>)],
    of: impl Fn(&Way<'a>) -> Option<&'a Cell>,
    id: &'static str,
    title: &'static str,
    about: &str,
    y: Axis,
) -> Plot {
    let mut rows: Vec<(&Way, &Cell)> = ways.iter().filter_map(|way| Some((way, of(way)?))).collect();
    let place = |way: &Way| RUNGS.iter().position(|rung| *rung == way.level).unwrap_or(RUNGS.len());
    rows.sort_by_key(|(way, _)| (place(way), way.waiting));
    let limits: Vec<(&str, f64)> =
        limits.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
    let mut series = vec![part(
        "the machine itself",
        3,
        limits.iter().enumerate().map(|(row, limit)| Point::new(row as f64, limit.1)),
    )];
    for (slot, waiting) in [Waiting::Polling, Waiting::Adaptive, Waiting::Sleeping].into_iter().enumerate() {
        let points = rows.iter().enumerate().filter(|(_, (way, _))| way.waiting == waiting);
        series.push(part(
            waiting.name(),
            slot,
            points.map(|(row, (_, cell))| Point {
                band: cell.ci95,
                note: cell.size_bytes.map(|bytes| format!("at {}", bywire_results::quantity::size(bytes))),
                ..Point::new((limits.len() + row) as f64, cell.value)
            }),
        ));
    }
    // Floors and ceilings alone are no ladder.
    if rows.is_empty() {
        series.clear();
    }
    series.retain(|series| !series.points.is_empty());
    let names = limits.iter().map(|(name, _)| (*name).to_owned());
    Plot {
        id,
        title,
        about: about.to_owned(),
        kind: Kind::Bars,
        x: Axis { name: "way", quantity: Quantity::Name, logarithmic: false },
        y,
        categories: names.chain(rows.iter().map(|(way, _)| way.label.clone())).collect(),
        series,
        remarks: Vec::new(),
    }
}

fn part(name: &str, slot: usize, points: impl Iterator<Item = Point>) -> Series {
    Series { name: name.to_owned(), look: Look::Part, slot, points: points.collect() }
}
