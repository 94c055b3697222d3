//! Pages: how figures are written, tables of Markdown, and the figures that must be reached.

use anyhow::{Context, Result};
use bywire_analysis::conditions::State;
use bywire_report::table::{Column, Entry, Row, Table};
use bywire_results::cell::{DISTURBED, Unit};
use bywire_results::details::COMMAND;
use bywire_results::level::FIGURE;
use serde_json::{Value, json};

use crate::contestant::Contest;
use crate::figures::{DISTANCES, Figure, Figures, Metric, Rounds, Series, by, metrics, value};

/// How a value is written.
pub type Show = fn(f64) -> String;

/// How values in a unit are written.
pub fn show(unit: Unit) -> Show {
    match unit {
        Unit::Nanoseconds => |ns| match ns {
            _ if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
            _ if ns >= 10_000.0 => format!("{:.1} µs", ns / 1e3),
            _ => format!("{ns:.0} ns"),
        },
        Unit::Bytes => |value| format!("{value:.0} B"),
        Unit::BytesPerSecond => |value| format!("{:.2} GB/s", value / 1e9),
        Unit::MessagesPerSecond => |value| format!("{:.1} M/s", value / 1e6),
        Unit::TransactionsPerSecond => |value| format!("{value:.0} /s"),
        Unit::NanosecondsPerSecond => |value| format!("{value:.0} ns/s"),
        Unit::MicrosecondsPerKb => |value| format!("{value:.3} µs/KB"),
        Unit::Count => |value| format!("{value:.0}"),
        Unit::Share => show_ratio,
        Unit::LostShare => |value| format!("{:.3} %", 100.0 * value),
    }
}

pub fn show_ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// A ratio as its excess over 1, in percent.
pub fn show_rise(value: f64) -> String {
    format!("{:+.0} %", 100.0 * (value - 1.0))
}

/// A figure with the lowest and the highest round behind it.
pub fn spread(figure: Figure, show: Show) -> String {
    format!("{} ({} to {})", show(figure.value), show(figure.low), show(figure.high))
}

/// A page: the machine, its own `body`, and everything behind it.
pub fn page(figures: &Figures, body: &str) -> String {
    format!("{}\n{body}\nBehind them. {DISTURBED}\n\n{}", machine(figures), contestants(figures))
}

/// The machine and the build of the measurement, in one line.
pub fn machine(figures: &Figures) -> String {
    let text = |pointer: &str| match figures.session.environment.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "not known".to_owned(),
    };
    format!(
        "Bywire {} ({}), {}, Linux {}, hypervisor: {}.\n",
        text("/package/version"),
        text("/package/revision"),
        text("/cpu/model"),
        text("/kernel/release"),
        text("/hypervisor"),
    )
}

/// The median of a series with its spread, or why there is none.
pub fn told(figures: &Figures, series: Series) -> String {
    match figures.rounds().figure(series).zip(figures.unit(series)) {
        Some((figure, unit)) => spread(figure, show(unit)),
        None => format!("not run: {}", figures.reason(series.contestant).unwrap_or("not taken")),
    }
}

/// The median of a series alone.
pub fn median(figures: &Figures, series: Series) -> String {
    let found = figures.rounds().figure(series).zip(figures.unit(series));
    found.map_or("not measured".to_owned(), |(figure, unit)| show(unit)(figure.value))
}

/// The ratio of two series with its spread.
pub fn ratio(figures: &Figures, above: Series, below: Series) -> String {
    let found = figures.rounds().ratio(above, below);
    found.map_or("not measured".to_owned(), |ratio| spread(ratio, show_ratio))
}

/// A row of `words`, two series, and the ratio of the first to the second.
pub fn versus(figures: &Figures, words: &[&str], names: [String; 2]) -> Vec<String> {
    let [own, other] = names.each_ref().map(|name| value(name));
    let shown = [told(figures, own), told(figures, other), ratio(figures, own, other)];
    words.iter().map(|word| (*word).to_owned()).chain(shown).collect()
}

/// A table of Markdown whose entries are Markdown already. The first `words` columns are text.
pub fn table(
    words: usize,
    titles: impl IntoIterator<Item = &'static str>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows = rows.into_iter().map(|row| Row::of(row.into_iter().map(Entry::marked)));
    Table::new("", Column::named(words, titles), rows.collect()).markdown()
}

/// Every contestant with its series, its command and how disturbed it was.
pub fn contestants(figures: &Figures) -> String {
    let rows = figures.cells().flat_map(|(name, cell)| {
        let disturbed = match cell.level.as_str() {
            FIGURE => "not known".to_owned(),
            _ => format!("{} of {}", cell.disturbed_blocks(), cell.blocks.len()),
        };
        let command = cell.details.text(COMMAND).unwrap_or_default();
        metrics(cell).into_iter().map(move |metric| {
            let series = by(name, metric);
            let shown = told(figures, series);
            Row::of([series.to_string().into(), shown.into(), disturbed.clone().into(), Entry::code(command)])
        })
    });
    let names = ["series", "median (lowest to highest round)", "disturbed blocks", "command"];
    let columns = Column::aligned("lrrl", names);
    let absent = figures.session.absent.iter();
    let failed = absent.map(|absence| format!("\n{} was given up: {}\n", absence.level, absence.reason));
    Table::new("", columns, rows.collect()).markdown() + &failed.collect::<String>()
}

/// The requirements of every part.
const REQUIREMENTS: &str = include_str!("../requirements");
/// A distance with fewer rounds has no figure.
const ROUNDS_MIN: usize = 3;

/// A part of `./x figures` with requirements.
pub struct Part {
    pub name: &'static str,
    /// Its contestants, which are given the measuring time of a pair.
    pub contestants: fn(f64) -> Contest,
    /// The text between the requirements and the contestants.
    pub added: fn(&Figures) -> String,
}

/// How a figure is made of its series.
#[derive(Clone, Copy)]
enum Basis {
    /// The median of the only one.
    Median,
    /// The highest round of the only one.
    Worst,
    /// The first less the second.
    Less,
    /// The first over the highest of the others, of which some may be missing.
    OverHighest,
    /// The first over the lowest of the others, of which some may be missing.
    OverLowest,
}

/// The signs between or before the series of a figure. A median has none.
const BASES: [(&str, Basis); 5] = [
    ("worst of ", Basis::Worst),
    (" - ", Basis::Less),
    (" / lowest of ", Basis::OverLowest),
    (" / highest of ", Basis::OverHighest),
    (" / ", Basis::OverHighest),
];

/// A figure that must be reached.
pub struct Requirement {
    /// The name of the measurement in tables.
    pub measure: &'static str,
    /// The series that it is made of.
    pub series: Vec<Series<'static>>,
    basis: Basis,
    /// The sign before both bounds: less or more is better.
    sign: &'static str,
    required: f64,
    goal: f64,
    show: Show,
}

pub fn requirements(part: &str) -> Result<Vec<Requirement>> {
    let heading = format!("[{part}]");
    let lines = REQUIREMENTS.lines().skip_while(|line| *line != heading).skip(1);
    let rows = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty());
    rows.map(|row| Requirement::of(row).with_context(|| format!("this is no requirement: {row}"))).collect()
}

/// The page of a part: each requirement with its bounds, and at each distance of the cores what was measured and which bound that
/// reaches; and everything behind it.
pub fn required(part: &Part, requirements: &[Requirement], figures: &Figures) -> String {
    let rows = requirements.iter().map(|requirement| requirement.row(figures)).collect();
    let distances = DISTANCES.map(|(name, _)| name);
    let columns =
        Column::named(1, [&["measure", "required", "goal"], &distances[..], &["all rounds"]].concat());
    let (lost, pairs) = figures.at_no_distance();
    let table = Table::new("", columns, rows).markdown();
    let distances = format!(
        "\nA distance has a figure from {ROUNDS_MIN} rounds on. The distance changed, or could not be read, while {lost} of \
         {pairs} pairs were taken: they count in the last column only.\n"
    );
    page(figures, &(table + &distances + &(part.added)(figures)))
}

impl Requirement {
    /// Reads a row of [`REQUIREMENTS`].
    fn of(row: &'static str) -> Option<Self> {
        let [measure, required, goal, unit, figure] = row.split('|').map(str::trim).collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let (sign, required) = required.split_once(' ')?;
        let goal = goal.strip_prefix(sign)?.trim().parse().ok()?;
        let show = match unit {
            "" => show_ratio,
            "rise" => show_rise,
            unit => show(serde_json::from_value(json!(unit)).ok()?),
        };
        let found = BASES.iter().find_map(|(sign, basis)| Some((*basis, figure.split_once(sign)?)));
        let (basis, (first, others)) = found.unwrap_or((Basis::Median, (figure, "")));
        let names = std::iter::once(first).chain(others.split(", ")).filter(|name| !name.is_empty());
        let series = names.map(|name| match name.split_once(": ") {
            Some((contestant, metric)) => Some(by(contestant, Metric::of_name(metric)?)),
            None => Some(value(name)),
        });
        let (series, required) = (series.collect::<Option<_>>()?, required.parse().ok()?);
        Some(Self { measure, basis, series, sign, required, goal, show })
    }

    fn row(&self, figures: &Figures) -> Row {
        let told = |figure: Figure| format!("{}: {}", spread(figure, self.show), self.verdict(figure.value));
        let at = |distance: State| {
            let rounds = Rounds { at: Some(distance), ..figures.rounds() };
            let figure = self.figure(rounds).filter(|_| self.rounds(rounds) >= ROUNDS_MIN);
            figure.map_or("—".to_owned(), told)
        };
        let reason = || {
            let reasons = self.series.iter().find_map(|series| figures.reason(series.contestant));
            format!("not measured: {}", reasons.unwrap_or("not taken"))
        };
        let all = self.figure(figures.rounds()).map_or_else(reason, told);
        let bounds = [self.required, self.goal].map(|bound| format!("{} {}", self.sign, (self.show)(bound)));
        let entries = [self.measure.to_owned()].into_iter().chain(bounds);
        Row::of(entries.chain(DISTANCES.map(|(_, distance)| at(distance))).chain([all]).map(Entry::marked))
    }

    fn figure(&self, rounds: Rounds) -> Option<Figure> {
        let (first, others) = self.series.split_first()?;
        let ratios = others.iter().filter_map(|other| rounds.ratio(*first, *other));
        match self.basis {
            Basis::Median => rounds.figure(*first),
            Basis::Less => rounds.difference(*first, *others.first()?),
            Basis::OverHighest => ratios.min_by(|a, b| a.value.total_cmp(&b.value)),
            Basis::OverLowest => ratios.max_by(|a, b| a.value.total_cmp(&b.value)),
            Basis::Worst => rounds.figure(*first).map(|figure| Figure { value: figure.high, ..figure }),
        }
    }

    /// The rounds of the series that has fewest. The fullest of several others counts.
    fn rounds(&self, rounds: Rounds) -> usize {
        let counts: Vec<usize> = self.series.iter().map(|series| rounds.values(*series).len()).collect();
        match self.basis {
            Basis::OverHighest | Basis::OverLowest => {
                counts[0].min(counts[1..].iter().copied().max().unwrap_or(0))
            }
            _ => counts.into_iter().min().unwrap_or(0),
        }
    }

    fn verdict(&self, value: f64) -> &'static str {
        let reaches = |bound| if self.sign == "≤" { value <= bound } else { value >= bound };
        match (reaches(self.required), reaches(self.goal)) {
            (_, true) => "goal",
            (true, false) => "required",
            (false, false) => "**missed**",
        }
    }
}

#[cfg(test)]
mod tests {
    use bywire_results::cell::{Block, Cell, Session};

    use super::*;
    use crate::figures::{CONTESTANT, ROUNDS};

    /// A session with one round of these contestants.
    fn session(values: &[(&str, f64)]) -> Session {
        let cell = |(name, value): &(&str, f64)| {
            let blocks = vec![Block { value: *value, ..Block::default() }];
            let mut cell = Cell { value: *value, blocks, ..Cell::default() };
            cell.details.insert(CONTESTANT.to_owned(), json!(name));
            cell.details.insert(ROUNDS.to_owned(), json!([0]));
            cell
        };
        Session { cells: values.iter().map(cell).collect(), ..Session::default() }
    }

    #[test]
    fn figures_show_their_spread() {
        let figure = Figure { value: 1.234, low: 1.0, high: 2.0 };
        assert_eq!(spread(figure, show_ratio), "1.23 (1.00 to 2.00)");
        assert_eq!(spread(figure, show_rise), "+23 % (+0 % to +100 %)");
        assert_eq!([12.0, 12_345.0, 1.5e6].map(show(Unit::Nanoseconds)), ["12 ns", "12.3 µs", "1.50 ms"]);
    }

    #[test]
    fn the_best_of_several_others_counts() {
        let session = session(&[("ours", 6.0), ("slow", 2.0), ("fast", 4.0)]);
        let figures = Figures::of(&session);
        for (row, expected) in [
            ("the best | ≥ 1 | ≥ 2 | | ours / highest of slow, nowhere, fast", Some(1.5)),
            ("the best | ≥ 1 | ≥ 2 | | ours / lowest of slow, nowhere, fast", Some(3.0)),
            ("nobody | ≥ 1 | ≥ 2 | | ours / highest of nowhere", None),
        ] {
            let figure = Requirement::of(row).expect(row).figure(figures.rounds());
            assert_eq!(figure.map(|figure| figure.value), expected, "{row}");
        }
    }

    #[test]
    fn verdicts_respect_the_direction_of_a_figure() {
        for (row, value, expected) in [
            ("a | ≤ 1.3 | ≤ 1.1 | | a: mean", 1.2, "required"),
            ("a | ≤ 1.3 | ≤ 1.1 | rise | a", 1.4, "**missed**"),
            ("a | ≥ 20 | ≥ 40 | ns | a", 41.0, "goal"),
            ("a | ≤ 0 | ≤ 0 | ns | worst of a", 0.0, "goal"),
        ] {
            assert_eq!(Requirement::of(row).expect(row).verdict(value), expected, "{row}");
        }
    }

    #[test]
    fn rows_that_are_no_requirements_are_refused() {
        for row in
            ["a | ≤ 1 | ≤ 1 | | a: colour", "a | ≤ 1 | ≥ 1 | | a", "a | ≤ 1 | ≤ 1 | miles | a", "a | ≤ 1 | a"]
        {
            assert!(Requirement::of(row).is_none(), "{row}");
        }
    }
}
