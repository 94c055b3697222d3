//! The ladder: every way of carrying messages, below the limits of the machine, at a glance.

use bywire_results::parameter::Waiting;
use bywire_results::quantity;

use crate::ceiling::Ceilings;
use crate::comparison::{Comparison, Entry, Row, Times, of_test};
use crate::plot::data::{Axis, Look, Name, Plot, Point, Series};

/// Levels that Bywire itself carries. For `eth` these are all links except veth.
const OURS: [&str; 3] = ["msg", "sock", "eth"];

/// The symbol before a figure that was measured while polling.
const POLLING: &str = "■ ";

/// Latency and rate: one row for each way, with its ratio to the kernel's TCP.
pub fn plots(comparisons: &[Comparison], ceilings: &Ceilings) -> Vec<Plot> {
    let half_rtt = of_test(comparisons, "latency").map(|latency| {
        let [line, hand_off] = ["memory: a cache line", "memory: a hand-off"];
        let floors = [(line, ceilings.half_rtt_floor()), (hand_off, ceilings.wake_floor())];
        rungs(latency, &floors, ["ladder-half-rtt", "Latency", "Left is better"], Axis::HALF_RTT)
    });
    let rate = of_test(comparisons, "stream").map(|stream| {
        let bytes = stream.size_bytes.unwrap_or(1 << 20);
        let ceiling = [("memory: one core writes, copies, sums", ceilings.one_way(bytes))];
        rungs(stream, &ceiling, ["ladder-rate", "Rate", "Right is better"], Axis::RATE)
    });
    half_rtt.into_iter().chain(rate).collect()
}

fn rungs(comparison: &Comparison, limits: &[(&str, Option<f64>)], names: [&'static str; 3], y: Axis) -> Plot {
    let [id, name, better] = names;
    let limits: Vec<(&str, f64)> =
        limits.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
    let first = limits.len();
    let rows = || comparison.rows.iter().enumerate().map(move |(row, told)| ((first + row) as f64, told));
    let of_limit = |(row, (_, value)): (usize, &(&str, f64))| Point {
        label: Some(y.quantity.format(*value)),
        ..Point::new(row as f64, *value)
    };
    let ours = |row: &Row| {
        let link = row.usual.cell.link.as_deref();
        OURS.contains(&row.usual.way.level) && link != Some("veth")
    };
    let usual = |is_ours: bool| -> Vec<Point> {
        let those = rows().filter(move |(_, row)| ours(row) == is_ours);
        those.map(|(place, row)| point(comparison, place, &row.usual, "")).collect()
    };
    let others = rows().flat_map(|(place, row)| {
        let polling = row.others.iter().filter(|entry| entry.way.waiting == Waiting::Polling);
        polling.map(move |entry| (place, entry))
    });
    let others = others.map(|(place, entry)| point(comparison, place, entry, POLLING));
    let series = vec![
        Series::new("the machine itself", Look::Limit, 0, limits.iter().enumerate().map(of_limit)),
        Series::new("Bywire", Look::Part, 0, usual(true)),
        Series::new("others", Look::Part, 6, usual(false)),
        Series::new("while polling", Look::Measured, 1, others),
    ];
    let title = comparison.title();
    let mut about = format!("{title}. {better}; each line of the grid is ten times the one before.");
    if let Some(rival) = &comparison.rival {
        about += &format!(
            " × is how many times better than {rival}, default beside default and polling beside polling."
        );
    }
    let limits = limits.iter().map(|(name, _)| Name::from(*name));
    let ways = comparison.rows.iter().map(|row| Name::of(row.usual.way));
    Plot::bars([id, name], &about, y, limits.chain(ways).collect(), series)
}

fn point(comparison: &Comparison, place: f64, entry: &Entry, waiting: &str) -> Point {
    // A lower bound has words, and so a line of its own.
    let joint = if matches!(entry.times, Times::AtLeast(_)) { "\n" } else { " · " };
    let words = [quantity::of_cell(entry.cell), entry.times.mark()];
    let words = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(joint);
    let other = entry.other_size(comparison.size_bytes).map(|size| format!("at {}", quantity::size(size)));
    let below = [other, entry.times.wide_interval()].into_iter().flatten().map(|line| format!("\n{line}"));
    let label = format!("{waiting}{words}{}", below.collect::<String>());
    let size = entry.cell.size_bytes.map(|bytes| format!("at {}", quantity::size(bytes)));
    let told = [size, Some(entry.way.waiting.name().to_owned()), Some(format!("× {}", entry.times.text()))];
    let note = Some(told.into_iter().flatten().collect::<Vec<_>>().join(", "));
    Point { band: entry.cell.ci95, note, label: Some(label), ..Point::of(place, entry.cell) }
}
