//! The tables of single levels, as the page, the text and the files have them.

use bywire_results::cell::Cell;
use bywire_results::parameter::Domain;

use crate::table::Table;
use crate::{ethernet_table, pair_tables, web_table};

/// Tables of one subject: the identifier and the heading of its part of the page, the beginning of its files' names, and
/// the tables that have rows.
pub type Chapter = ([&'static str; 3], Vec<Table>);

pub fn chapters(cells: &[Cell]) -> Vec<Chapter> {
    let mut chapters = vec![
        (
            ["ethernet", "Ethernet of the fabric beside the kernel's own", "ethernet"],
            ethernet_table::tables(cells),
        ),
        (["encryption", "What encryption costs", "encryption"], vec![pair_tables::encryption(cells)]),
        (
            ["gain", "What an unmodified program gains", "sockets"],
            Domain::ALL.iter().map(|domain| pair_tables::sockets(cells, *domain)).collect(),
        ),
        (["web", "Web servers", "web"], web_table::tables(cells)),
    ];
    chapters.iter_mut().for_each(|(_, tables)| tables.retain(|table| !table.rows.is_empty()));
    chapters
}
