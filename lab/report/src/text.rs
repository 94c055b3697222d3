//! The tables for a terminal: plain text, aligned.

use bywire_results::cell::{Cell, DISTURBED, Session};
use bywire_results::quantity;

use crate::ceiling::Ceilings;
use crate::comparison::Comparison;
use crate::digest::Digest;
use crate::disturbed_cells::Disturbance;
use crate::level_tables::chapters;
use crate::table::{Column, Row, Table};
use crate::verdict::{UNUSABLE, Verdict};
use crate::way::{NHalf, Way, ways};

/// The report as plain text: the verdict, every way compared with the kernel's TCP, all figures of each way, the
/// ceilings, and what is absent.
pub fn summary_text(session: &Session) -> String {
    let ways = ways(&session.cells);
    let digest = Digest::of(session, &ways);
    let ceilings = &digest.ceilings;
    let mut text = String::new();
    if !session.cells.is_empty() {
        text += &head(&digest.verdict);
        text += &digest.comparisons.iter().map(comparison_table).collect::<String>();
    }
    if !ways.is_empty() {
        text += &way_table(&ways, ceilings);
        text += "\nHalf-RTT: half of a round trip of a short message. Transaction: one request and its response.\n\
                 One-way and two-way: the highest rate, with its share of what memory allows where that was measured: one core's\n\
                 write, copy and sum (touched) one way, read + write (readwrite) two ways. N½: by a sweep (nhalf), with ~ read\n\
                 off the rates by length. CPU/KB: all ends together, for 1,024 bytes at that one-way rate.\n";
    }
    for table in chapters(&session.cells).into_iter().flat_map(|(_, tables)| tables) {
        text += &format!("\n{}\n{}{}\n", table.title, table.text(), table.about);
    }
    if !ceilings.rows.is_empty() {
        text += &format!("\n{}", ceiling_table(ceilings));
    }
    if !session.absent.is_empty() {
        text += "\nNot measured here\n";
    }
    for absence in &session.absent {
        let test = absence.test.as_ref().map(|test| format!(" {test}"));
        text += &format!("  {}{}: {}\n", absence.level, test.unwrap_or_default(), absence.reason);
    }
    let disturbance = Disturbance::of(&session.cells);
    let Disturbance { blocks, disturbed_blocks, .. } = disturbance;
    if blocks > 0 {
        text += &format!("\n{disturbed_blocks} of {blocks} blocks were disturbed. {DISTURBED}\n");
    }
    // Once more at the end, where a terminal stops.
    if disturbance.is_unusable() {
        text += &format!("\n{UNUSABLE}\n");
    }
    text.trim_matches('\n').to_owned() + "\n"
}

/// The head: the verdict and its remarks.
fn head(verdict: &Verdict) -> String {
    let said = verdict.alarms.iter().chain(&verdict.sentences).chain(&verdict.notes);
    let said = said.map(|line| format!("{line}\n"));
    let steps = verdict.steps.iter().map(|(what, command)| format!("{what} {command}\n"));
    said.chain(steps).collect::<String>() + "\n"
}

/// Way, value, × and CPU: a row for each way, and rows below it for its other kinds of waiting. The last column is the way
/// in the laboratory's terms.
fn comparison_table(comparison: &Comparison) -> String {
    let per = comparison.question.cost.map_or("CPU".to_owned(), |per| format!("CPU/{per}"));
    let [waits, value, way] = ["waits", "value", "level"].map(str::to_owned);
    let heading = [comparison.title(), waits, value, comparison.against(), per, way];
    let rows = comparison.rows.iter().flat_map(|row| {
        row.entries().enumerate().map(move |(index, entry)| {
            let once = |name: &str| if index == 0 { name.to_owned() } else { String::new() };
            Row::of([
                once(&entry.way.plain_name),
                entry.way.waiting.name().to_owned(),
                entry.value(comparison.size_bytes),
                entry.times.text(),
                comparison.cpu(entry.cell).unwrap_or_default(),
                once(&entry.way.name),
            ])
        })
    });
    let mut columns = Column::named(2, heading);
    columns.last_mut().expect("the way").is_figure = false;
    Table::new("", columns, rows.collect()).text() + "\n"
}

fn way_table(ways: &[Way], ceilings: &Ceilings) -> String {
    let heading =
        ["way", "waits", "half-RTT", "one-way", "N½", "two-way", "transactions", "CPU/message", "CPU/KB"];
    let rate = |cell: &Cell, ceiling: Option<f64>| {
        let share = ceiling.map(|ceiling| format!(" ({})", quantity::percent(cell.value / ceiling)));
        quantity::of_cell(cell) + &quantity::size_after(" at ", cell.size_bytes) + &share.unwrap_or_default()
    };
    let n_half = |n_half: NHalf| format!("{}{:.0} B", if n_half.swept { "" } else { "~" }, n_half.bytes);
    let rows = ways.iter().map(|way| {
        Row::of([
            Some(way.label.clone()),
            Some(way.waiting.name().to_owned()),
            way.short("latency").map(quantity::of_cell),
            way.highest("stream").map(|cell| rate(cell, ceilings.one_way(cell.size_bytes.unwrap_or(0)))),
            way.n_half().map(n_half),
            way.highest("bidir").map(|cell| rate(cell, ceilings.two_way())),
            way.short("rr").map(quantity::of_cell),
            way.short("overhead").map(quantity::of_cell),
            way.cpu_us_per_kb().map(|us| quantity::duration(us * 1e3)),
        ])
    });
    Table::new("", Column::named(1, heading), rows.collect()).text()
}

fn ceiling_table(ceilings: &Ceilings) -> String {
    let rows = ceilings.rows.iter().map(|ceiling| {
        let drift = ceiling.drift().map(|drift| format!("{:+.1} %", drift * 100.0));
        let median = quantity::value(ceiling.value(), ceiling.first.unit);
        Row::of([ceiling.name(), median, drift.unwrap_or_else(|| "taken once".to_owned())])
    });
    Table::new("", Column::named(1, ["memory", "median", "drift"]), rows.collect()).text()
}
