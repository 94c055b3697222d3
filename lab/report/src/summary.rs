//! A session as a page of Markdown, for an issue or a README.

use bywire_results::cell::Session;

use crate::ceiling::Ceilings;
use crate::comparison::{Comparison, Row, comparisons};
use crate::machine::machines;
use crate::table::{self, Column, Table, escaped};
use crate::verdict::Verdict;
use crate::way::ways;

/// The verdict, and every way at one length for each question.
pub fn markdown(session: &Session) -> String {
    let ways = ways(&session.cells);
    let ceilings = Ceilings::of(&session.cells);
    let comparisons = comparisons(&ways);
    let verdict = Verdict::of(session, &comparisons, &ceilings);
    let mut facts = machines(&session.environment);
    facts.extend([format!("preset {}", session.preset), session.started.clone()]);
    let mut parts = vec!["## What this machine delivers".to_owned()];
    parts.extend(verdict.alarms.iter().map(|alarm| format!("**{}**", escaped(alarm))));
    parts.extend(verdict.sentences.iter().map(|sentence| escaped(sentence)));
    parts.push(escaped(&facts.join(" · ")));
    parts.extend(comparisons.iter().map(self::table));
    parts.join("\n\n") + "\n"
}

fn table(comparison: &Comparison) -> String {
    let against = comparison.rival.as_deref().map_or("×".to_owned(), |rival| format!("× {rival}"));
    let columns = Column::named(1, [comparison.title(), "value".to_owned(), against, "CPU".to_owned()]);
    let rows = comparison.rows.iter().flat_map(Row::entries).map(|entry| {
        table::Row::of([
            entry.way.label.clone(),
            entry.value(comparison.size_bytes),
            entry.times.text(),
            comparison.cpu(entry.cell).unwrap_or_else(|| "–".to_owned()),
        ])
    });
    Table::new("", columns, rows.collect()).markdown().trim_end().to_owned()
}
