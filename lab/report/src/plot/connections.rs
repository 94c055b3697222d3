//! Results of several connections, by their number.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;

use crate::plot::data::{Axis, Look, Name, Plot, Point, Quantity, Series};
use crate::way::Way;

const CONNECTIONS: Axis = Axis::linear("connections", Quantity::Name);

/// Summed rates by number of connections.
pub fn rates(ways: &[Way]) -> Plot {
    let tests = ["streams", "fanin", "fanout"];
    let about = "All connections at once, their rates added up: streams between the same two ends, many senders to one \
                 node, one node to many. The band is the 95 % interval of the median. Higher is better.";
    let axes = [CONNECTIONS, Axis::linear("summed rate", Quantity::Rate)];
    let series = tests.into_iter().flat_map(|test| by_connections(ways, test, true)).collect();
    let remarks = tests.into_iter().flat_map(|test| limits(ways, test)).collect();
    let names = ["connections-rate", "Summed rate by number of connections"];
    Plot { remarks, ..Plot::curves(names, about, axes, series) }
}

/// Half-RTT by number of clients.
pub fn hot_spot(ways: &[Way]) -> Plot {
    let about = "Clients that all ask one node at once: the mean half-RTT that each sees. The band is the 95 % interval \
                 of the median. Lower is better.";
    let (axes, series) = ([CONNECTIONS, Axis::HALF_RTT], by_connections(ways, "hotspot", false));
    let names = ["hot-spot", "Hot spot: half-RTT by number of clients"];
    Plot { remarks: limits(ways, "hotspot"), ..Plot::curves(names, about, axes, series) }
}

/// Cells of a test with several connections, by their number. If there are several sizes, the last one counts.
fn connections<'a>(way: &Way<'a>, test: &str) -> BTreeMap<u64, &'a Cell> {
    let cells = way.cells.iter().filter(|cell| cell.test == test);
    cells.filter_map(|&cell| Some((cell.parameters.number("connections")?, cell))).collect()
}

fn by_connections(ways: &[Way], test: &str, named: bool) -> Vec<Series> {
    let curve = |(slot, way): (usize, &Way)| {
        let point = |(count, cell): (u64, &Cell)| Point { band: cell.ci95, ..Point::of(count as f64, cell) };
        let own = Name::of_label(way);
        let with_test = |name: &str| format!("{name} · {test}");
        let name = Name {
            plain: if named { with_test(&own.plain) } else { own.plain },
            technical: own.technical.map(|name| if named { with_test(&name) } else { name }),
        };
        Series::new(name, Look::Measured, slot, connections(way, test).into_iter().map(point))
    };
    ways.iter().enumerate().map(curve).filter(|series| !series.points.is_empty()).collect()
}

/// A remark on figures that were limited by the cores.
fn limits(ways: &[Way], test: &str) -> Vec<String> {
    let of_way = |way: &Way| {
        let cells = connections(way, test);
        let mut limited = cells.iter().filter_map(|(count, cell)| Some((count, cell.details.limited_by()?)));
        let first = limited.next()?;
        let (_, said) = limited.next_back().unwrap_or(first);
        Some(format!("{}, {test}, from {} on: {said}.", way.plain_label, first.0))
    };
    ways.iter().filter_map(of_way).collect()
}
