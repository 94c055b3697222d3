//! The ceilings: the limits that memory and kernel set on this machine, measured in the same session.

use bywire_results::cell::{Cacheline, Cell, Unit};
use bywire_results::level::MEMORY;
use bywire_results::parameter::{Waiting, parameter};
use bywire_results::quantity;

use crate::way::is_no_way;

/// A ceiling that changed by more than this between its first and last measurement makes the session unstable.
const DRIFT_SHARE_MAX: f64 = 0.05;

/// The limits of this machine's memory and kernel.
#[derive(Clone, Debug, Default)]
pub struct Ceilings<'a> {
    /// The first and the last measurement of each `memory` test and size.
    pub rows: Vec<Ceiling<'a>>,
}

/// One ceiling: its first measurement, and its last one.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling<'a> {
    pub first: &'a Cell,
    /// Equal to `first` if it was measured once.
    pub last: &'a Cell,
}

impl Ceiling<'_> {
    /// The value that results are compared with: the mean of first and last.
    pub fn value(&self) -> f64 {
        (self.first.value + self.last.value) / 2.0
    }

    /// Its test, size and parameters: `memcpy, 1 MiB, both cores`.
    pub fn name(&self) -> String {
        let mut parts = vec![self.first.test.clone()];
        parts.extend(self.first.size_bytes.map(quantity::size).into_iter().chain(chosen(self.first)));
        parts.join(", ")
    }

    /// The change from first to last, as a share of the first. Absent if measured once.
    pub fn drift(&self) -> Option<f64> {
        (!std::ptr::eq(self.first, self.last)).then(|| self.last.value / self.first.value - 1.0)
    }

    /// True if it changed too much for a stable session.
    pub fn unstable(&self) -> bool {
        self.drift().is_some_and(|drift| drift.abs() > DRIFT_SHARE_MAX)
    }
}

impl<'a> Ceilings<'a> {
    pub fn of(cells: &'a [Cell]) -> Self {
        let mut rows: Vec<Ceiling> = Vec::new();
        let identity = |cell: &'a Cell| (&cell.test, cell.size_bytes, &cell.between, chosen(cell));
        for cell in cells.iter().filter(|cell| cell.level == MEMORY) {
            match rows.iter_mut().find(|row| identity(row.first) == identity(cell)) {
                Some(row) => row.last = cell,
                None => rows.push(Ceiling { first: cell, last: cell }),
            }
        }
        let place = |test: &str| ORDER.iter().position(|name| *name == test).unwrap_or(ORDER.len());
        rows.sort_by_key(|row| (place(&row.first.test), row.first.size_bytes, chosen(row.first)));
        Self { rows }
    }

    /// The least half-RTT of polling ends: a cache line handed between the two cores, in ns.
    pub fn half_rtt_floor(&self) -> Option<f64> {
        self.of_test("cacheline").map(Ceiling::value).next()
    }

    /// The least half-RTT of sleeping ends: the kernel's cheapest hand-over, in ns.
    pub fn wake_floor(&self) -> Option<f64> {
        let floors = self.of_test("futex").chain(self.of_test("pipe"));
        floors.map(Ceiling::value).min_by(f64::total_cmp)
    }

    /// The limit for a cell, with its name: a cache line for ends that poll at least for a while, and the kernel's
    /// hand-over for ends that sleep. The line's time is that beside the cell, if known, because a virtual machine's cores
    /// may move apart between two cells.
    pub fn floor_beside(&self, cell: &Cell) -> Option<(&'static str, f64)> {
        if cell.waiting() == Waiting::Sleeping {
            return Some(("hand-off", self.wake_floor()?));
        }
        let mean = |line: Cacheline| f64::midpoint(line.before_ns, line.after_ns.unwrap_or(line.before_ns));
        Some(("cache line", cell.cacheline.map(mean).or_else(|| self.half_rtt_floor())?))
    }

    /// The ceiling of a one-way rate: one core's write, copy and sum, at the length nearest to `size_bytes`.
    pub fn one_way(&self, size_bytes: u64) -> Option<f64> {
        let distance = |row: &&Ceiling| {
            let size = row.first.size_bytes.unwrap_or(size_bytes).max(1) as f64;
            (size / size_bytes.max(1) as f64).ln().abs()
        };
        self.of_test("touched").min_by(|a, b| distance(a).total_cmp(&distance(b))).map(Ceiling::value)
    }

    /// The ceiling of a two-way rate: memory read and written at once, in bytes per second.
    pub fn two_way(&self) -> Option<f64> {
        self.of_test("readwrite").map(Ceiling::value).reduce(f64::max)
    }

    /// Rates by size of one `memory` test, for a curve in the plots.
    pub fn curve(&self, test: &str) -> Vec<(u64, f64)> {
        let is_rate =
            |first: &Cell| first.unit == Unit::BytesPerSecond && !first.parameters.is_on("both-cores");
        let rows = self.of_test(test).filter(|row| is_rate(row.first));
        let mut points: Vec<_> = rows.filter_map(|row| Some((row.first.size_bytes?, row.value()))).collect();
        points.sort_by_key(|point| point.0);
        points
    }

    fn of_test(&self, test: &str) -> impl Iterator<Item = &Ceiling<'a>> {
        self.rows.iter().filter(move |row| row.first.test == test)
    }
}

/// The order of the tests in the table: hand-overs first, then rates.
const ORDER: [&str; 9] =
    ["cacheline", "futex", "pipe", "syscall", "touched", "memcpy", "read", "write", "readwrite"];

/// The options of a cell, without those of the measuring time.
fn chosen(cell: &Cell) -> Vec<String> {
    let parameters = cell.parameters.iter().filter(|(name, _)| !is_no_way(name));
    parameters.map(|(name, value)| parameter(name, value)).collect()
}
