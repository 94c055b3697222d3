//! The tables for a terminal: plain text, aligned.

use crate::cell::{Cell, Session};
use crate::report::answer::{Score, verdicts};
use crate::report::ceiling::Ceilings;
use crate::report::page::command_of;
use crate::report::quantity;
use crate::report::way::{Waiting, ways};

/// The answer of a session in plain text: what each level delivers, who wins, the ceilings, what is absent.
pub fn summary_text(session: &Session) -> String {
    let ways = ways(&session.cells);
    let ceilings = Ceilings::of(&session.cells);
    let scores = Score::of(&ways);
    let mut text = String::new();
    if !scores.is_empty() {
        text += &score_table(&scores);
    }
    for verdict in verdicts(&scores) {
        text += &format!("\n{verdict}");
    }
    if !ceilings.rows.is_empty() {
        text += "\n\n";
        text += &ceiling_table(&ceilings);
    }
    if !session.absent.is_empty() {
        text += "\n\nNot measured here\n";
    }
    for absence in &session.absent {
        let test = absence.test.as_ref().map(|test| format!(" {test}"));
        text += &format!("  {}{}: {}\n", absence.level, test.unwrap_or_default(), absence.reason);
    }
    if !session.complete {
        text += "\nThe session was interrupted: this is what had been measured by then.";
    }
    text.trim_matches('\n').to_owned() + "\n"
}

/// One cell in a few lines, with the command that takes it again.
pub fn cell_text(cell: &Cell) -> String {
    let value = |value: f64| quantity::value(value, cell.unit);
    let [low, high] = cell.ci95;
    let mut text = format!(
        "{}\n  median {}   95 % interval {} – {}\n",
        command_of(cell),
        value(cell.value),
        value(low),
        value(high)
    );
    if let Some(percentiles) = cell.percentiles {
        let mean = cell.mean.map(|mean| format!("mean {}   ", value(mean)));
        text += &format!(
            "  {}p5 {}   p95 {}   p99 {}   p99.9 {}\n",
            mean.unwrap_or_default(),
            value(percentiles.p5),
            value(percentiles.p95),
            value(percentiles.p99),
            value(percentiles.p999)
        );
    }
    for (name, end) in [("source", &cell.cpu.source), ("target", &cell.cpu.target)] {
        let parts: Vec<String> = [
            end.attributed.map(|share| format!("attributed {}", quantity::percent(share))),
            end.machine_busy.map(|share| format!("machine {}", quantity::percent(share))),
            end.service_demand_us_per_kb.map(|us| format!("{} µs/KB", quantity::digits(us))),
            end.service_demand_us_per_transaction
                .map(|us| format!("{} µs/transaction", quantity::digits(us))),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !parts.is_empty() {
            text += &format!("  CPU, {name}: {}\n", parts.join("   "));
        }
    }
    let disturbed = cell.blocks.iter().filter(|block| !block.disturbed.is_empty()).count();
    let outliers = cell.blocks.iter().filter(|block| block.outlier).count();
    text + &format!("  {} blocks, {disturbed} disturbed, {outliers} outliers\n", cell.blocks.len())
}

fn score_table(scores: &[Score]) -> String {
    let heading = ["", "waits", "half-RTT", "one-way", "N½", "two-way", "trans.", "CPU/message", "CPU/KB"];
    let of =
        |cell: Option<&Cell>| cell.map(|cell| quantity::value(cell.value, cell.unit)).unwrap_or_default();
    let rows = scores.iter().map(|score| {
        [
            score.way.label.clone(),
            score.way.cells.first().map_or("", |cell| Waiting::of(cell).name()).into(),
            of(score.half_rtt),
            of(score.one_way),
            score.n_half_bytes.map(|bytes| format!("{bytes:.0} B")).unwrap_or_default(),
            of(score.two_way),
            of(score.transactions),
            of(score.overhead),
            score.cpu_us_per_kb().map(|us| quantity::duration(us * 1e3)).unwrap_or_default(),
        ]
    });
    aligned(&heading, rows)
}

fn ceiling_table(ceilings: &Ceilings) -> String {
    let rows = ceilings.rows.iter().map(|ceiling| {
        let cell = ceiling.first;
        [
            cell.test.clone(),
            cell.size_bytes.map(quantity::size).unwrap_or_default(),
            quantity::value(ceiling.value(), cell.unit),
            match ceiling.drift() {
                Some(drift) => format!("{:+.1} %", drift * 100.0),
                None => "taken once".into(),
            },
        ]
    });
    aligned(&["memory", "size", "value", "drift"], rows)
}

/// Columns as wide as their widest entry: the first one to the left, figures to the right; empty columns left out.
fn aligned<const N: usize>(heading: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    let heading = heading.map(str::to_owned);
    let shown: Vec<usize> = (0..N).filter(|&column| rows.iter().any(|row| !row[column].is_empty())).collect();
    let width = |column: usize| {
        let all = std::iter::once(&heading).chain(&rows);
        all.map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let line = |row: &[String; N]| {
        let columns: Vec<String> = shown
            .iter()
            .map(|&column| match column {
                0 => format!("{:<1$}", row[0], width(0)),
                _ => format!("{:>1$}", row[column], width(column)),
            })
            .collect();
        columns.join("  ").trim_end().to_owned() + "\n"
    };
    std::iter::once(&heading).chain(&rows).map(line).collect()
}
