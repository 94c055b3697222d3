//! The name of a cell, and which cells of several sessions are the same one.

use bywire_results::cell::Cell;
use bywire_results::parameter::{HOW_LONG, parameter};
use bywire_results::quantity;
use serde_json::Value;

/// One cell in several sessions, with the index of each session.
pub type Cells<'a> = Vec<(usize, &'a Cell)>;

/// The parameters of a cell, without those of the measuring time.
pub fn chosen(cell: &Cell) -> Vec<(String, Value)> {
    let chosen = cell.parameters.iter().filter(|(name, _)| !HOW_LONG.contains(&name.as_str()));
    chosen.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// `tcp latency over loopback, 1 B`.
pub fn name(cell: &Cell) -> String {
    let mut words = vec![cell.level.clone(), cell.test.clone()];
    words.extend(cell.link.iter().filter(|link| **link != cell.level).cloned());
    words.extend(
        (!["", "processes", "namespaces"].contains(&cell.between.as_str())).then(|| cell.between.clone()),
    );
    words.extend(cell.size_bytes.map(quantity::size));
    words.extend(chosen(cell).iter().map(|(name, value)| parameter(name, value)));
    words.join(" ")
}
