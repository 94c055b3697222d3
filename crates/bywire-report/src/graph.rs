//! The plots of a session, each from its cells, its ceilings and the historic figures that belong beside them.

use std::collections::BTreeMap;

use bywire_results::cell::{Cell, CpuEnd};
use bywire_results::quantity;
use serde_json::Value;

use crate::account;
use crate::answer::n_half;
use crate::ceiling::Ceilings;
use crate::ladder;
use crate::plot::{Axis, Kind, Look, Plot, Point, Quantity, Series};
use crate::way::Way;

/// Bins for each factor of ten in the distribution of half-RTT.
const BINS_PER_DECADE: f64 = 40.0;

/// Every plot that has something measured to show.
pub fn plots(ways: &[Way], ceilings: &Ceilings) -> Vec<Plot> {
    let [ladder_half_rtt, ladder_rate] = ladder::plots(ways, ceilings);
    let [by_differences, by_samples] = account::plots(ways);
    let all = [
        ladder_half_rtt,
        ladder_rate,
        half_rtt(ways, ceilings),
        one_way(ways, ceilings),
        two_way(ways, ceilings),
        cpu_per_kilobyte(ways),
        cpu_per_message(ways),
        transactions(ways),
        cpu_per_transaction(ways),
        by_differences,
        by_samples,
        distribution(ways),
        interleave(ways),
        crowds(ways),
        hot_spot(ways),
    ];
    all.into_iter().filter(|plot| !plot.is_empty()).map(at_one_length).collect()
}

const SIZE: Axis = Axis { name: "message length", quantity: Quantity::Size, logarithmic: true };

const HALF_RTT: Axis = Axis { name: "half-RTT", quantity: Quantity::Duration, logarithmic: true };

const RATE: Axis = Axis { name: "rate", quantity: Quantity::Rate, logarithmic: true };

fn half_rtt(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series =
        curves(ways, "latency", |cell| cell.percentiles.map(|percentiles| [percentiles.p5, percentiles.p95]));
    let sizes = extent(&series);
    series.extend(limit("cache-line floor", ceilings.half_rtt_floor(), sizes));
    series.extend(limit("futex or pipe hand-off", ceilings.wake_floor(), sizes));
    series.extend(historic("latency", "ns", None));
    Plot {
        id: "half-rtt",
        title: "Half-RTT by message length",
        about: "Median of single round trips, halved; the band runs from p5 to p95. Lower is better.".into(),
        x: SIZE,
        y: HALF_RTT,
        series,
        ..Plot::CURVES
    }
}

fn one_way(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "stream", |cell| cell.ci95);
    series.extend(ways.iter().enumerate().filter_map(sweep));
    let remarks = holes(&series);
    let sizes = extent(&series);
    series.extend(ways.iter().enumerate().filter_map(n_half_mark));
    series.extend(ceiling_curve("one core: write, copy and sum", ceilings.curve("touched"), sizes));
    series.extend(ceiling_curve("memcpy", ceilings.curve("memcpy"), sizes));
    series.extend(historic("stream", "bytes_per_second", sizes));
    Plot {
        id: "one-way",
        title: "One-way rate by message length",
        about: "Payload received per second; the band is the 95 % interval of the median. A large diamond is N½, the \
                length at half of the highest rate. Higher is better."
            .into(),
        x: SIZE,
        y: RATE,
        series,
        remarks,
        ..Plot::CURVES
    }
}

fn two_way(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "bidir", |cell| cell.ci95);
    let remarks = holes(&series);
    let sizes = extent(&series);
    series.extend(limit("memory read + write", ceilings.two_way(), sizes));
    series.extend(historic("bidir", "bytes_per_second", sizes));
    Plot {
        id: "two-way",
        title: "Two-way rate by message length",
        about: "Both directions at once, added up; the band is the 95 % interval of the median. Higher is better.".into(),
        x: SIZE,
        y: RATE,
        series,
        remarks,
        ..Plot::CURVES
    }
}

fn interleave(ways: &[Way]) -> Plot {
    Plot {
        id: "interleave",
        title: "Half-RTT beside a long transfer",
        about: "Short messages by length while a long transfer runs in the same pair; the band runs from p5 to p95. \
                Lower is better."
            .into(),
        x: SIZE,
        y: HALF_RTT,
        series: curves(ways, "interleave", |cell| {
            cell.percentiles.map(|percentiles| [percentiles.p5, percentiles.p95])
        }),
        ..Plot::CURVES
    }
}

fn transactions(ways: &[Way]) -> Plot {
    let mut series = curves(ways, "rr", |cell| cell.ci95);
    series.extend(historic("rr", "transactions_per_second", None));
    Plot {
        id: "transactions",
        title: "Transactions per second by request length",
        about: "One request and its response at a time; the band is the 95 % interval of the median. Higher is better."
            .into(),
        x: SIZE,
        y: Axis {
            name: "transactions",
            quantity: Quantity::PerSecond,
            logarithmic: true,
        },
        series,
        ..Plot::CURVES
    }
}

/// The distribution of short half-RTTs: samples by logarithmic bins, as a share of all.
fn distribution(ways: &[Way]) -> Plot {
    let series = ways.iter().enumerate().filter_map(|(slot, way)| {
        let cell = way.short("latency")?;
        // Counts out of a file may be of any size.
        let total: f64 = cell.histogram.iter().map(|bucket| bucket.1 as f64).sum();
        let mut bins = BTreeMap::<i64, f64>::new();
        for &(bound, count) in cell.histogram.iter().filter(|bucket| bucket.0 > 0.0) {
            *bins.entry((bound.log10() * BINS_PER_DECADE).floor() as i64).or_default() += count as f64;
        }
        let middle = |bin: i64| 10f64.powf((bin as f64 + 0.5) / BINS_PER_DECADE).min(f64::MAX);
        let points = bins.iter().map(|(&bin, count)| Point::new(middle(bin), count / total)).collect();
        Some(measured(&way.label, slot, points))
    });
    Plot {
        id: "distribution",
        title: "Distribution of short half-RTTs",
        about: format!("Share of all samples in each bin ({BINS_PER_DECADE} bins for each factor of ten)."),
        x: HALF_RTT,
        y: Axis { name: "share of samples", quantity: Quantity::Share, logarithmic: true },
        series: series.collect(),
        ..Plot::CURVES
    }
}

fn cpu_per_kilobyte(ways: &[Way]) -> Plot {
    let rows: Vec<(String, &Cell)> = ways
        .iter()
        .filter_map(|way| {
            let cell = way.highest("stream")?;
            let size = quantity::size(cell.size_bytes.unwrap_or(0));
            Some((format!("{}, {size}", way.label), cell))
        })
        .collect();
    bars(
        "cpu-per-kilobyte",
        "CPU per KB at the highest one-way rate",
        "CPU time for each 1,024 bytes that arrived: attributed by the threads' own clocks, and what the machine spent \
         beyond it; of Ethernet also those who carry it. Lower is better.",
        "CPU per KB",
        &rows,
        |cell, end| {
            let unattributed = end.unattributed.map(|share| share * 1e9 / (cell.value / 1024.0));
            [end.service_demand_us_per_kb.map(|us| us * 1e3), unattributed]
        },
    )
}

fn cpu_per_transaction(ways: &[Way]) -> Plot {
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

fn cpu_per_message(ways: &[Way]) -> Plot {
    let rows: Vec<(String, &Cell)> =
        ways.iter().filter_map(|way| Some((way.label.clone(), way.short("overhead")?))).collect();
    let part = |slot: usize, key: &str, name: &str| Series {
        name: name.into(),
        look: Look::Part,
        slot,
        points: rows
            .iter()
            .enumerate()
            .filter_map(|(index, (_, cell))| Some(Point::new(index as f64, cell.details.get(key)?.as_f64()?)))
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
            points: points.map(|(index, (_, cell))| Point::new(index as f64, cell.value)).collect(),
        });
    }
    Plot {
        id: "cpu-per-message",
        title: "Host CPU per short message",
        about: "Time inside the calls, without waiting; send and receive apart. GM published less than 0.5 µs for both \
                together. Lower is better."
            .into(),
        kind: Kind::Bars,
        x: NAMES,
        y: Axis {
            name: "CPU per message",
            quantity: Quantity::Duration,
            logarithmic: false,
        },
        categories: rows.into_iter().map(|row| row.0).collect(),
        series,
        remarks: Vec::new(),
    }
}

const NAMES: Axis = Axis { name: "way", quantity: Quantity::Name, logarithmic: false };

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
            .filter_map(|(index, (_, cell))| Some(Point::new(index as f64, of(cell)?.max(0.0))))
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
        x: NAMES,
        y: Axis { name: y, quantity: Quantity::Duration, logarithmic: false },
        categories: rows.iter().map(|row| row.0.clone()).collect(),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        remarks: Vec::new(),
    }
}

/// One length alone makes no curve: each value then is a dot in a row of its own, with the historic figures of about
/// that length below.
fn at_one_length(plot: Plot) -> Plot {
    let measured: Vec<Series> =
        plot.series.iter().filter(|series| series.look == Look::Measured).cloned().collect();
    let Some([length, longest]) = extent(&measured).filter(|_| plot.x.quantity == Quantity::Size) else {
        return plot;
    };
    if length != longest {
        return plot;
    }
    let mut categories = Vec::new();
    let mut rows = |look: Look, name: &str| {
        let mut points = Vec::new();
        for series in plot.series.iter().filter(|series| series.look == look) {
            let shown = series.points.iter().filter(|point| about_as_long(point.x, length));
            for point in shown.take(if look == Look::Limit { 1 } else { usize::MAX }) {
                points.push(Point { x: categories.len() as f64, ..point.clone() });
                categories.push(row_name(series, point));
            }
        }
        let (look, slot) = match look {
            Look::Measured => (Look::Part, 0),
            Look::Limit => (Look::Part, 6),
            _ => (Look::Historic, 0),
        };
        Series { name: name.into(), look, slot, points }
    };
    let mut series = vec![
        rows(Look::Measured, "today"),
        rows(Look::Limit, "floor or ceiling"),
        rows(Look::Historic, "source documents"),
    ];
    series.retain(|series| !series.points.is_empty());
    let about = format!("{} All of today's at {}.", plot.about, quantity::size(length as u64));
    Plot { kind: Kind::Bars, x: NAMES, categories, series, about, ..plot }
}

/// A way's or a limit's own name; of a historic figure the hardware in short, and the protocol.
fn row_name(series: &Series, point: &Point) -> String {
    let hardware = point.note.as_deref().and_then(|note| note.split_once("; "));
    let Some((_, hardware)) = hardware.filter(|_| series.look == Look::Historic) else {
        return series.name.clone();
    };
    let short = hardware.split([',', ';']).next().unwrap_or(hardware);
    let protocol = ["TCP", "UDP"].into_iter().find(|name| hardware.ends_with(name)).unwrap_or_default();
    format!("{short} {protocol}").trim_end().to_owned() + &format!(" ({})", series.name)
}

/// Within a factor of two, or both as short as messages get.
fn about_as_long(one: f64, other: f64) -> bool {
    (one <= 8.0 && other <= 8.0) || (0.5..=2.0).contains(&(one / other))
}

/// One curve by size for each way that has the test.
fn curves(ways: &[Way], test: &str, band: impl Fn(&Cell) -> Option<[f64; 2]>) -> Vec<Series> {
    let curve = |(slot, way): (usize, &Way)| {
        let points: Vec<Point> = way
            .by_size(test)
            .into_iter()
            .filter_map(|cell| {
                Some(Point { band: band(cell), ..Point::new(cell.size_bytes?.max(1) as f64, cell.value) })
            })
            .collect();
        (!points.is_empty()).then(|| measured(&way.label, slot, points))
    };
    ways.iter().enumerate().filter_map(curve).collect()
}

fn measured(name: &str, slot: usize, points: Vec<Point>) -> Series {
    Series { name: name.into(), look: Look::Measured, slot, points }
}

const CONNECTIONS: Axis = Axis { name: "connections", quantity: Quantity::Name, logarithmic: false };

/// Summed rates by number of connections.
fn crowds(ways: &[Way]) -> Plot {
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
fn hot_spot(ways: &[Way]) -> Plot {
    Plot {
        id: "hot-spot",
        title: "Hot spot: half-RTT by number of clients",
        about: "Clients that all ask one node at once: the mean half-RTT that each sees. The band is the 95 % interval \
                of the median. Lower is better."
            .into(),
        x: CONNECTIONS,
        y: HALF_RTT,
        series: by_connections(ways, "hotspot", false),
        remarks: limits(ways, "hotspot"),
        ..Plot::CURVES
    }
}

/// Cells of a test with several connections, by their number; of several sizes the last stands.
fn connections<'a>(way: &Way<'a>, test: &str) -> BTreeMap<u64, &'a Cell> {
    let cells = way.cells.iter().filter(|cell| cell.test == test);
    cells.filter_map(|&cell| Some((cell.parameters.number("connections")?, cell))).collect()
}

fn by_connections(ways: &[Way], test: &str, named: bool) -> Vec<Series> {
    let curve = |(slot, way): (usize, &Way)| {
        let point = |(connections, cell): (u64, &Cell)| Point {
            band: cell.ci95,
            ..Point::new(connections as f64, cell.value)
        };
        let points: Vec<Point> = connections(way, test).into_iter().map(point).collect();
        let name = if named { format!("{} · {test}", way.label) } else { way.label.clone() };
        (!points.is_empty()).then(|| measured(&name, slot, points))
    };
    ways.iter().enumerate().filter_map(curve).collect()
}

/// Where the cores and not the way limited a figure.
fn limits(ways: &[Way], test: &str) -> Vec<String> {
    let of_way = |way: &Way| {
        let limited = connections(way, test).into_iter().filter_map(|(connections, cell)| {
            Some((connections, cell.details.get("limited_by")?.as_str()?.to_owned()))
        });
        let limited: Vec<(u64, String)> = limited.collect();
        let (first, _) = limited.first()?;
        let (_, said) = limited.last()?;
        Some(format!("{} {test}, from {first} on: {said}.", way.label))
    };
    ways.iter().filter_map(of_way).collect()
}

/// The curve that N½ was read off, for a way whose rates by size were not measured one by one.
fn sweep((slot, way): (usize, &Way)) -> Option<Series> {
    if !way.by_size("stream").is_empty() {
        return None;
    }
    let cell = *way.by_size("nhalf").last()?;
    let points = cell.details.get("bytes_per_second_by_size")?.as_array()?;
    let point = |point: &Value| Some(Point::new(point.get(0)?.as_f64()?, point.get(1)?.as_f64()?));
    Some(measured(&way.label, slot, points.iter().filter_map(point).collect()))
}

/// N½ stands at half of the rate that it was read off against.
fn n_half_mark((slot, way): (usize, &Way)) -> Option<Series> {
    let of_sweep = way.by_size("nhalf").last().and_then(|cell| {
        let reference = cell.details.get("reference_bytes_per_second")?;
        reference.as_f64()
    });
    let highest = way.highest("stream").map(|cell| cell.value);
    let reference = of_sweep.or(highest)?;
    let mut point = Point::new(n_half(way)?.bytes.round(), reference / 2.0);
    point.note = Some(format!("N½ of {}", way.label));
    Some(Series { name: format!("N½, {}", way.label), look: Look::Mark, slot, points: vec![point] })
}

/// The shortest and the longest message of the curves.
fn extent(series: &[Series]) -> Option<[f64; 2]> {
    let lengths = series.iter().flat_map(|series| &series.points).map(|point| point.x);
    lengths.fold(None, |extent, x| match extent {
        None => Some([x, x]),
        Some([low, high]) => Some([x.min(low), x.max(high)]),
    })
}

fn limit(name: &str, value: Option<f64>, sizes: Option<[f64; 2]>) -> Option<Series> {
    let ([low, high], value) = (sizes?, value?);
    Some(Series {
        name: name.into(),
        look: Look::Limit,
        slot: 0,
        points: vec![Point::new(low, value), Point::new(high, value)],
    })
}

/// A ceiling that depends on length; one point alone holds for every length.
fn ceiling_curve(name: &str, points: Vec<(u64, f64)>, sizes: Option<[f64; 2]>) -> Option<Series> {
    if let [(_, only)] = points[..] {
        return limit(name, Some(only), sizes);
    }
    (points.len() > 1 && sizes.is_some()).then(|| Series {
        name: name.into(),
        look: Look::Limit,
        slot: 0,
        points: points.into_iter().map(|(size, rate)| Point::new(size as f64, rate)).collect(),
    })
}

/// Historic figures of one test that have a length; with `sizes`, "large messages" stand at the longest of today's.
fn historic(test: &str, unit: &str, sizes: Option<[f64; 2]>) -> Vec<Series> {
    let mut by_document: Vec<Series> = Vec::new();
    for (document, figure) in bywire_history::figures() {
        let n_half = test == "stream" && figure.test == "nhalf";
        let asked = figure.normalised.unit == unit && figure.test == test;
        if !(n_half || asked) {
            continue;
        }
        let (x, y, printed) = match (figure.size_bytes, sizes) {
            _ if n_half => {
                let plateau = bywire_history::figures()
                    .map(|entry| entry.1)
                    .find(|other| other.hardware == figure.hardware && other.test == "stream");
                let Some(plateau) = plateau else { continue };
                let half = plateau.normalised.value / 2.0;
                (figure.normalised.value, half, format!("N½ {} {}", figure.printed, figure.unit))
            }
            (Some(size), _) => {
                (size as f64, figure.normalised.value, format!("{} {}", figure.printed, figure.unit))
            }
            (None, Some(sizes)) if document.document == "gm" => {
                let printed = format!("{} {}, large messages", figure.printed, figure.unit);
                (sizes[1], figure.normalised.value, printed)
            }
            _ => continue,
        };
        let protocol = match figure.levels.last().map(String::as_str) {
            Some("tcp") => ", TCP",
            Some("udp") => ", UDP",
            _ => "",
        };
        let note = Some(format!("{printed}; {}{protocol}", figure.hardware));
        let point = Point { note, ..Point::new(x, y) };
        match by_document.iter_mut().find(|series| series.name == document.short) {
            Some(series) => series.points.push(point),
            None => by_document.push(Series {
                name: document.short.clone(),
                look: Look::Historic,
                slot: bywire_history::documents().iter().position(|other| other == document).unwrap_or(0),
                points: vec![point],
            }),
        }
    }
    by_document
}

/// Lengths further apart than this factor are no neighbours.
const NEIGHBOUR: f64 = 4.0;

/// Sizes whose rate is under half of both neighbours': a hole, as BIP found one in Linux 2.0.
fn holes(series: &[Series]) -> Vec<String> {
    let mut remarks = Vec::new();
    for curve in series {
        for window in curve.points.windows(3) {
            let [before, here, after] = window else { continue };
            let near = here.x <= before.x * NEIGHBOUR && after.x <= here.x * NEIGHBOUR;
            if near && here.y < before.y.min(after.y) / 2.0 {
                remarks.push(format!(
                    "{} at {}: {} is under half of its neighbours' rate.",
                    curve.name,
                    quantity::size(here.x as u64),
                    quantity::rate(here.y)
                ));
            }
        }
    }
    remarks
}
