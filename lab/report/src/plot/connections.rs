//! Results of several connections, by their number.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;

use crate::plot::data::{Axis, Look, Plot, Point, Quantity, Series};
use crate::way::Way;

const CONNECTIONS: Axis = Axis { name: "connections", quantity: Quantity::Name, logarithmic: false };

/// Summed rates by number of connections.
pub fn rates(ways: &[Way]) -> Plot {
    let tests = ["streams", "fanin", "fanout"];
    Plot {
        id: "connections-rate",
        title: "Summed rate by number of connections",
        about: "All connections at once, their rates added up: streams between the same two ends, many senders to one \
                node, one node to many. The band is the 95 % interval of the median. Higher is better."
            .into(),
        x: CONNECTIONS,
        y: Axis { name: "summed rate", quantity: Quantity::Rate, logarithmic: false },
        series: tests.into_iter().flat_map(|test| by_connections(ways, test, true)).collect(),
        remarks: tests.into_iter().flat_map(|test| limits(ways, test)).collect(),
        ..Plot::CURVES
    }
}

/// Half-RTT by number of clients.
pub fn hot_spot(ways: &[Way]) -> Plot {
    Plot {
        id: "hot-spot",
        title: "Hot spot: half-RTT by number of clients",
        about: "Clients that all ask one node at once: the mean half-RTT that each sees. The band is the 95 % interval \
                of the median. Lower is better."
            .into(),
        x: CONNECTIONS,
        y: Axis::HALF_RTT,
        series: by_connections(ways, "hotspot", false),
        remarks: limits(ways, "hotspot"),
        ..Plot::CURVES
    }
}

/// Cells of a test with several connections, by their number. If there are several sizes, the last one counts.
fn connections<'a>(way: &Way<'a>, test: &str) -> BTreeMap<u64, &'a Cell> {
    let cells = way.cells.iter().filter(|cell| cell.test == test);
    cells.filter_map(|&cell| Some((cell.parameters.number("connections")?, cell))).collect()
}

fn by_connections(ways: &[Way], test: &str, named: bool) -> Vec<Series> {
    let curve = |(slot, way): (usize, &Way)| {
        let point = |(connections, cell): (u64, &Cell)| Point {
            band: cell.ci95,
            ..Point::of(connections as f64, cell)
        };
        let points: Vec<Point> = connections(way, test).into_iter().map(point).collect();
        let name = if named { format!("{} · {test}", way.label) } else { way.label.clone() };
        (!points.is_empty()).then_some(Series { name, look: Look::Measured, slot, points })
    };
    ways.iter().enumerate().filter_map(curve).collect()
}

/// A remark on figures that were limited by the cores.
fn limits(ways: &[Way], test: &str) -> Vec<String> {
    let of_way = |way: &Way| {
        let limited = connections(way, test)
            .into_iter()
            .filter_map(|(connections, cell)| Some((connections, cell.details.limited_by()?.to_owned())));
        let limited: Vec<(u64, String)> = limited.collect();
        let (first, _) = limited.first()?;
        let (_, said) = limited.last()?;
        Some(format!("{} {test}, from {first} on: {said}.", way.label))
    };
    ways.iter().filter_map(of_way).collect()
}
