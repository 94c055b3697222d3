//! Compares every way with the kernel's TCP. A question has one length. Each way has one row, with all its kinds of
//! waiting.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bywire_results::cell::{Cell, Unit};
use bywire_results::level::DATAGRAM_BYTES_MAX;
use bywire_results::parameter::Waiting;
use bywire_results::quantity::{self, TOO_FEW_PAIRS};

use crate::disturbed_cells::is_disturbed;
use crate::way::Way;

/// Parameters that change the question: a figure and its rival must agree in them.
const OF_THE_QUESTION: [&str; 3] = ["epoll", "load", "untouched"];

/// An interval is wide if its upper end is at least this factor above its lower end. Wide intervals are always printed.
const WIDE: f64 = 1.5;

/// A quantity that is compared over all ways.
#[derive(Debug)]
pub struct Question {
    /// The test whose cells have it.
    pub test: &'static str,
    /// Its title, before `, 8 bytes`.
    title: &'static str,
    /// Which values are better, for a heading.
    pub better: &'static str,
    /// The preferred length, if as many ways were measured at it as at any other.
    usual_bytes: u64,
    /// The unit of work that CPU is divided by. Absent if the figure is CPU time itself.
    pub cost: Option<&'static str>,
}

/// The word instead of a comparison with a disturbed cell.
pub const DISTURBED: &str = "disturbed";

/// The questions, in the order of the tables.
pub const QUESTIONS: [Question; 5] = [
    question(["latency", "Half-RTT", "shorter is better"], 8, Some(ROUND_TRIP)),
    question(["stream", "One-way rate", "higher is better"], 64 << 10, Some(KILOBYTE)),
    question(["rr", "Transactions per second", "more is better"], 1, Some(ROUND_TRIP)),
    question(["bidir", "Two-way rate", "higher is better"], 64 << 10, Some(KILOBYTE)),
    question(["overhead", "CPU of a message at both ends", "less is better"], 8, None),
];

type Text = &'static str;

const fn question([test, title, better]: [Text; 3], usual_bytes: u64, cost: Option<Text>) -> Question {
    Question { test, title, better, usual_bytes, cost }
}

const ROUND_TRIP: &str = "round trip";
const KILOBYTE: &str = "KB";

/// One question, with the answer of every way that was measured.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    pub question: &'static Question,
    /// The length at which ways are compared. Absent if the cells have none.
    pub size_bytes: Option<u64>,
    /// The rival of each machine, to which × refers.
    pub rival: Option<String>,
    /// One for each way, nearest to memory first.
    pub rows: Vec<Row<'a>>,
}

/// A way in one comparison.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The way with its default of waiting, unless only others were measured.
    pub usual: Entry<'a>,
    /// This way with other kinds of waiting.
    pub others: Vec<Entry<'a>>,
}

/// One figure.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub way: &'a Way<'a>,
    pub cell: &'a Cell,
    /// Its ratio to the rival.
    pub times: Times,
}

/// How many times better than the rival a figure is. Below 1 it is worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Times {
    /// The ratio, with the ends of its interval.
    Better(f64, [f64; 2]),
    /// The least ratio that the measurement shows, above 1. The session, or one of the two figures, was disturbed.
    AtLeast(f64),
    /// It is the rival itself.
    Rival,
    Disturbed,
    RivalDisturbed,
    /// It was measured at another length than the others.
    OtherLength,
    /// One of the two has too few pairs for an interval.
    TooFewPairs,
    /// No rival waits in the same way.
    Nobody,
}

/// Every question that the session answers, each at one length.
///
/// If the session `is_disturbed`, a gain is given as a lower bound.
pub fn comparisons<'a>(ways: &'a [Way<'a>], is_disturbed: bool) -> Vec<Comparison<'a>> {
    QUESTIONS.iter().filter_map(|question| Comparison::of(question, ways, is_disturbed)).collect()
}

/// The comparison of one test, if it was run.
pub fn of_test<'c, 'a>(comparisons: &'c [Comparison<'a>], test: &str) -> Option<&'c Comparison<'a>> {
    comparisons.iter().find(|comparison| comparison.question.test == test)
}

impl Question {
    /// The length at which most ways were measured.
    fn shared_length(&self, ways: &[(&Way, Vec<&Cell>)]) -> Option<u64> {
        let mut counts = BTreeMap::<u64, usize>::new();
        for size in ways.iter().flat_map(|(_, cells)| cells).filter_map(|cell| cell.size_bytes) {
            *counts.entry(rounded(size)).or_default() += 1;
        }
        let rank = |(size, count): &(u64, usize)| (Reverse(*count), size.abs_diff(self.usual_bytes));
        counts.into_iter().min_by_key(rank).map(|(size, _)| size)
    }
}

impl<'a> Comparison<'a> {
    fn of(question: &'static Question, ways: &'a [Way<'a>], is_disturbed: bool) -> Option<Self> {
        let cells: Vec<(&Way, Vec<&Cell>)> =
            ways.iter().map(|way| (way, way.by_size(question.test))).collect();
        let size_bytes = question.shared_length(&cells);
        let wanted = size_bytes.unwrap_or(question.usual_bytes);
        let distance = |cell: &&Cell| cell.size_bytes.map_or(0, |size| rounded(size).abs_diff(wanted));
        let mut rows: Vec<Row> = Vec::new();
        for (way, cells) in cells {
            let Some(cell) = cells.into_iter().min_by_key(distance) else { continue };
            let entry = Entry { way, cell, times: Times::Nobody };
            match rows.iter_mut().find(|row| row.usual.way.is_same_place(way)) {
                // Ways are in order, so the default is there already.
                Some(row) => row.others.push(entry),
                None => rows.push(Row { usual: entry, others: Vec::new() }),
            }
        }
        let rival = rival_of(&rows).map(|row| row.usual.way.medium());
        let told: Vec<Row> = rows.iter().map(|row| row.compared(size_bytes, &rows, is_disturbed)).collect();
        (!told.is_empty()).then_some(Self { question, size_bytes, rival, rows: told })
    }

    /// Its title, with its length.
    pub fn title(&self) -> String {
        let size = self.size_bytes.map(|bytes| format!(", {}", length(bytes))).unwrap_or_default();
        format!("{}{size}", self.question.title)
    }

    /// The heading of the ratios: `× the kernel's TCP`.
    pub fn against(&self) -> String {
        self.rival.as_ref().map_or("×".to_owned(), |rival| format!("× {rival}"))
    }

    /// The best way at the question's length of which something can be said.
    pub fn best(&self) -> Option<&Row<'a>> {
        self.best_of(|row| !matches!(row.usual.times, Times::Disturbed | Times::OtherLength))
    }

    /// The ways at the question's length whose figures were disturbed. They could be better than the best of the others.
    pub fn disturbed(&self) -> Vec<&Row<'a>> {
        let is_asked = |row: &Row| row.usual.cell.size_bytes.map(rounded) == self.size_bytes;
        self.rows.iter().filter(|row| is_asked(row) && is_disturbed(row.usual.cell)).collect()
    }

    fn best_of(&self, is_such: impl Fn(&Row) -> bool) -> Option<&Row<'a>> {
        let such = self.rows.iter().filter(|row| is_such(row));
        such.reduce(|one, other| if other.beats(one) { other } else { one })
    }

    /// The CPU of both ends and of the carrying processes for one unit of work.
    pub fn cpu(&self, cell: &Cell) -> Option<String> {
        let us = match self.question.cost? {
            ROUND_TRIP => cell.cpu.service_demand_us_per_transaction(),
            _ => cell.service_demand_us_per_kb().or_else(|| busy_us_per_kb(cell)),
        };
        us.map(|us| quantity::duration(us * 1e3))
    }
}

impl<'a> Row<'a> {
    /// Every kind of waiting, the default first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<'a>> {
        std::iter::once(&self.usual).chain(&self.others)
    }

    fn beats(&self, other: &Self) -> bool {
        let (own, other) = (self.usual.cell, other.usual.cell);
        if own.unit.less_is_better() { own.value < other.value } else { own.value > other.value }
    }

    fn compared(&self, size_bytes: Option<u64>, rows: &[Row<'a>], is_disturbed: bool) -> Self {
        let asked = |row: &Row<'a>| {
            let of = |name: &str| row.usual.cell.parameters.get(name).cloned();
            let way = row.usual.way;
            (way.machine(), way.joins_hosts(), OF_THE_QUESTION.map(of))
        };
        let own: Vec<Row> = rows.iter().filter(|row| asked(row) == asked(self)).cloned().collect();
        let rival = rival_of(&own);
        let told = |entry: &Entry<'a>| {
            let rival = rival.and_then(|rival| rival.waiting_like(entry.way.waiting));
            let times = Times::of(size_bytes, entry, rival);
            Entry { times: if is_disturbed { times.bounded() } else { times }, ..*entry }
        };
        Self { usual: told(&self.usual), others: self.others.iter().map(told).collect() }
    }

    /// Compares one way's default with another's default, and otherwise equal kinds of waiting.
    fn waiting_like(&self, waiting: Waiting) -> Option<&Entry<'a>> {
        let same = self.entries().find(|entry| entry.way.waiting == waiting);
        let default = Some(&self.usual).filter(|entry| entry.way.waiting == Waiting::Sleeping);
        same.or(default.filter(|_| waiting == Waiting::Adaptive))
    }
}

/// The rival: the kernel's TCP over loopback, or else other TCP, or else another way of the kernel.
fn rival_of<'r, 'a>(rows: &'r [Row<'a>]) -> Option<&'r Row<'a>> {
    let of = |level: &str, link: Option<&str>| {
        rows.iter().find(|row| {
            let own = row.usual.cell.link.as_deref();
            row.usual.way.level == level && link.is_none_or(|link| own == Some(link))
        })
    };
    let tcp = of("tcp", Some("loopback")).or_else(|| of("tcp", None));
    tcp.or_else(|| of("eth", Some("veth"))).or_else(|| of("unix", None)).or_else(|| of("udp", None))
}

/// The longest datagram counts as 64 KiB. 29 bytes of that are its headers.
pub fn rounded(size_bytes: u64) -> u64 {
    if size_bytes == DATAGRAM_BYTES_MAX { 64 << 10 } else { size_bytes }
}

/// A length in words: `8 bytes`, `64 KiB`.
pub fn length(bytes: u64) -> String {
    match quantity::size(bytes).strip_suffix(" B") {
        Some("1") => "1 byte".to_owned(),
        Some(count) => format!("{count} bytes"),
        None => quantity::size(bytes),
    }
}

/// CPU of a test in which both ends send: their own CPU time divided by the bytes in both directions.
fn busy_us_per_kb(cell: &Cell) -> Option<f64> {
    let carriers = cell.cpu.carriers.as_ref().map_or(Some(0.0), |end| end.attributed)?;
    let busy = cell.cpu.source.attributed? + cell.cpu.target.attributed? + carriers;
    (cell.unit == Unit::BytesPerSecond).then(|| busy * 1e6 / (cell.value / 1024.0))
}

impl Entry<'_> {
    /// The figure, with its length if that is not the question's.
    pub fn value(&self, size_bytes: Option<u64>) -> String {
        quantity::of_cell(self.cell) + &quantity::size_after(" at ", self.other_size(size_bytes))
    }

    /// Its length if that is not the question's.
    pub fn other_size(&self, size_bytes: Option<u64>) -> Option<u64> {
        self.cell.size_bytes.filter(|size| Some(*size) != size_bytes)
    }
}

impl Times {
    fn of(size_bytes: Option<u64>, entry: &Entry, rival: Option<&Entry>) -> Self {
        let is_asked = |cell: &Cell| cell.size_bytes.map(rounded) == size_bytes;
        let own_is_disturbed = is_disturbed(entry.cell);
        match rival.filter(|rival| is_asked(rival.cell)) {
            _ if !is_asked(entry.cell) && own_is_disturbed => Self::Disturbed,
            _ if !is_asked(entry.cell) => Self::OtherLength,
            Some(rival) if std::ptr::eq(rival.cell, entry.cell) => {
                if own_is_disturbed {
                    Self::Disturbed
                } else {
                    Self::Rival
                }
            }
            Some(rival) if own_is_disturbed || is_disturbed(rival.cell) => {
                let none = if own_is_disturbed { Self::Disturbed } else { Self::RivalDisturbed };
                Self::least(entry.cell, rival.cell).map_or(none, Self::AtLeast)
            }
            Some(rival) => Self::ratio(entry.cell, rival.cell),
            None if own_is_disturbed => Self::Disturbed,
            None => Self::Nobody,
        }
    }

    /// The least ratio that two cells show of which one was disturbed at least, if it is above 1. A disturbed cell counts
    /// with its whole range, and not with the interval of its median, so no choice of blocks gives a smaller ratio.
    fn least(own: &Cell, rival: &Cell) -> Option<f64> {
        let ([low, high], [lower, upper]) = (range(own)?, range(rival)?);
        let least = if own.unit.less_is_better() { lower / high } else { low / upper };
        Some(least).filter(|least| least.is_finite() && *least > 1.0)
    }

    /// This ratio as one of a disturbed session: the lower end of its interval, if that is a gain.
    fn bounded(self) -> Self {
        match self {
            Self::Better(_, [low, _]) if low > 1.0 => Self::AtLeast(low),
            other => other,
        }
    }

    /// The ratio of `own` to `rival`, as a number above 1 if `own` is better. The ends of both 95 % intervals give its
    /// interval, which contains the true ratio in at least 90 of 100 cases.
    fn ratio(own: &Cell, rival: &Cell) -> Self {
        let Some(bounds) = own.ci95.zip(rival.ci95) else { return Self::TooFewPairs };
        let less_is_better = own.unit.less_is_better();
        let (above, below) = if less_is_better { (rival, own) } else { (own, rival) };
        let ([low, high], [lower, upper]) = if less_is_better { (bounds.1, bounds.0) } else { bounds };
        Self::Better(above.value / below.value, [low / upper, high / lower])
    }

    /// `276×`, with its interval if that is wide, or the reason why there is none.
    pub fn text(self) -> String {
        match self {
            Self::Better(factor, _) => {
                let interval = self.wide_interval().map(|interval| format!(", {interval}"));
                quantity::factor(factor) + &interval.unwrap_or_default()
            }
            Self::AtLeast(factor) => format!("at least {}", quantity::factor(rounded_down(factor))),
            Self::Rival => "1×".to_owned(),
            Self::Disturbed => DISTURBED.to_owned(),
            Self::RivalDisturbed => "rival disturbed".to_owned(),
            Self::OtherLength => "other length".to_owned(),
            Self::TooFewPairs => TOO_FEW_PAIRS.to_owned(),
            Self::Nobody => "–".to_owned(),
        }
    }

    /// `276×`, or the reason why there is none.
    pub fn factor(self) -> String {
        if let Self::Better(factor, _) = self { quantity::factor(factor) } else { self.text() }
    }

    /// The interval in words, or an empty text.
    pub fn interval(self) -> Option<String> {
        let Self::Better(_, bounds) = self else { return None };
        let [low, high] = bounds.map(quantity::digits);
        Some(format!("{low} to {high}"))
    }

    /// The interval in words if it is wide.
    pub fn wide_interval(self) -> Option<String> {
        self.interval().filter(|_| matches!(self, Self::Better(_, [low, high]) if high > low * WIDE))
    }

    /// The factor alone, for a mark in a picture. Empty if there is none.
    pub fn mark(self) -> String {
        match self {
            Self::Better(..) | Self::AtLeast(_) => self.factor(),
            Self::Disturbed => DISTURBED.to_owned(),
            _ => String::new(),
        }
    }
}

/// The ends within which the figure of a cell lies: the 95 % interval of its median, or all blocks if the cell was
/// disturbed. Absent if it has too few pairs for an interval.
fn range(cell: &Cell) -> Option<[f64; 2]> {
    let interval = cell.ci95?;
    let blocks = cell.blocks.iter().map(|block| block.value).filter(|_| is_disturbed(cell));
    Some(blocks.fold(interval, |[low, high], value| [low.min(value), high.max(value)]))
}

/// A lower bound with three digits, which are never more than the bound itself.
fn rounded_down(factor: f64) -> f64 {
    let step = 10f64.powf((factor.log10().floor() - 2.0).min(0.0));
    // A figure of three digits is itself, although it is no sum of powers of two.
    (factor / step + 1e-9).floor() * step
}
