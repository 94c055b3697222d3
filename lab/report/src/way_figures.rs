//! Every figure of a way: its performance and its cost.

use bywire_results::cell::Cell;

use crate::way::Way;

/// The figures of one way. A field is absent if its test was not run.
#[derive(Clone, Debug)]
pub struct WayFigures<'a> {
    pub way: &'a Way<'a>,
    /// Half-RTT of short messages.
    pub half_rtt: Option<&'a Cell>,
    /// The highest one-way rate.
    pub one_way: Option<&'a Cell>,
    /// The highest two-way rate.
    pub two_way: Option<&'a Cell>,
    /// Transactions per second with short requests.
    pub transactions: Option<&'a Cell>,
    /// Host CPU per short message.
    pub overhead: Option<&'a Cell>,
    pub n_half: Option<NHalf>,
}

impl<'a> WayFigures<'a> {
    /// The figures of each way, in the given order.
    pub fn of(ways: &'a [Way<'a>]) -> Vec<Self> {
        let figures = |way: &'a Way<'a>| Self {
            way,
            half_rtt: way.short("latency"),
            one_way: way.highest("stream"),
            two_way: way.highest("bidir"),
            transactions: way.short("rr"),
            overhead: way.short("overhead"),
            n_half: n_half(way),
        };
        ways.iter().map(figures).collect()
    }

    /// CPU of both ends and of the carrying processes at the highest one-way rate, in µs per KB.
    pub fn cpu_us_per_kb(&self) -> Option<f64> {
        self.one_way?.service_demand_us_per_kb()
    }

    /// The same per transaction, in µs.
    pub fn cpu_us_per_transaction(&self) -> Option<f64> {
        self.transactions?.cpu.service_demand_us_per_transaction()
    }
}

/// N½, and its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NHalf {
    /// In bytes.
    pub bytes: f64,
    /// True if a sweep measured it, false if it is read off the curve of one-way rates.
    pub swept: bool,
}

/// N½ of its own test. Without that test, N½ read off the curve, relative to its highest rate.
pub fn n_half(way: &Way) -> Option<NHalf> {
    if let Some(cell) = way.by_size("nhalf").last() {
        return Some(NHalf { bytes: cell.value, swept: true });
    }
    let points: Vec<(u64, f64)> =
        way.by_size("stream").iter().filter_map(|cell| Some((cell.size_bytes?, cell.value))).collect();
    let plateau = points.iter().map(|point| point.1).reduce(f64::max)?;
    let bytes = bywire_analysis::statistics::n_half(&points, plateau)?;
    Some(NHalf { bytes, swept: false })
}
