//! The tables of single levels, as the page, the text and the files have them.

use bywire_results::cell::Cell;

use crate::table::Table;
use crate::{ethernet_table, pair_tables, web_table};

/// Tables of one subject.
pub struct Chapter {
    /// The identifier and the heading of its part of the page.
    pub part: [&'static str; 2],
    /// The beginning of its files' names.
    pub file: &'static str,
    /// The tables that have rows.
    pub tables: Vec<Table>,
}

/// The chapters of a session.
pub fn chapters(cells: &[Cell]) -> [Chapter; 4] {
    [
        (
            "ethernet",
            "Ethernet of the fabric beside the kernel's own",
            "ethernet",
            ethernet_table::tables(cells),
        ),
        ("encryption", "What encryption costs", "encryption", vec![pair_tables::encryption(cells)]),
        ("gain", "What an unmodified program gains", "sockets", vec![pair_tables::sockets(cells)]),
        ("web", "Web servers", "web", web_table::tables(cells)),
    ]
    .map(|(place, heading, file, mut tables)| {
        tables.retain(|table| !table.rows.is_empty());
        Chapter { part: [place, heading], file, tables }
    })
}
