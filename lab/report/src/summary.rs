//! A session as a page of Markdown, for an issue or a README.

use bywire_results::cell::Session;

use crate::comparison::{Comparison, Row};
use crate::digest::Digest;
use crate::table::{self, Column, Table, escaped};
use crate::way::ways;

/// The verdict, and every way at one length for each question.
pub fn markdown(session: &Session) -> String {
    let ways = ways(&session.cells);
    let digest = Digest::of(session, &ways);
    let mut facts = digest.machines();
    facts.extend([format!("preset {}", session.preset), session.started.clone()]);
    let mut parts = vec!["## What this machine delivers".to_owned()];
    parts.extend(digest.verdict.alarms.iter().map(|alarm| format!("**{}**", escaped(alarm))));
    parts.extend(digest.verdict.sentences.iter().map(|sentence| escaped(sentence)));
    parts.push(escaped(&facts.join(" · ")));
    parts.extend(digest.comparisons.iter().map(self::table));
    parts.join("\n\n") + "\n"
}

fn table(comparison: &Comparison) -> String {
    let columns = [comparison.title(), "value".to_owned(), comparison.against(), "CPU".to_owned()];
    let rows = comparison.rows.iter().flat_map(Row::entries).map(|entry| {
        table::Row::of([
            format!("{} ({})", entry.way.plain_name, entry.way.label),
            entry.value(comparison.size_bytes),
            entry.times.text(),
            comparison.cpu(entry.cell).unwrap_or_else(|| "–".to_owned()),
        ])
    });
    Table::new("", Column::named(1, columns), rows.collect()).markdown().trim_end().to_owned()
}
