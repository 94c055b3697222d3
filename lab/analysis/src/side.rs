//! One side of a comparison: a session, or several that belong together. The names of its cells, and which of them are
//! one.

use std::path::Path;

use bywire_results::cell::{Cell, Session};
use bywire_results::moment::Moment;
use bywire_results::parameter::{HOW_LONG, parameter};
use bywire_results::quantity;
use bywire_results::store::{self, StoreError};
use serde_json::Value;

/// One or several sessions, in the order taken.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its name.
    pub name: String,
    /// At least one session.
    pub sessions: Vec<Session>,
}

impl Side {
    /// Reads the directory of a session, or one that contains sessions. Fails if it has none, or if one cannot be read.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { name: path.display().to_string(), sessions: store::read_all(path)? })
    }

    /// The moments of all pairs.
    pub fn moments(&self) -> impl Iterator<Item = &Moment> {
        self.sessions.iter().flat_map(Session::moments)
    }

    /// Every cell, with the index of its session.
    pub fn cells(&self) -> impl Iterator<Item = (usize, &Cell)> {
        let sessions = self.sessions.iter().enumerate();
        sessions.flat_map(|(place, session)| session.cells.iter().map(move |cell| (place, cell)))
    }

    /// Were several sessions of both sides taken in turn, so that they correspond one to one?
    pub fn alternates_with(&self, other: &Self) -> bool {
        let count = self.sessions.len();
        let began = |session: &Session| {
            session.moments().map(|moment| moment.began_unix_seconds).min_by(f64::total_cmp)
        };
        let rounds: Option<Vec<[f64; 2]>> = (self.sessions.iter().zip(&other.sessions))
            .map(|(one, other)| Some([began(one)?, began(other)?]))
            .collect();
        let is_after = |rounds: &[[f64; 2]]| {
            let [earlier, later] = [rounds[0], rounds[1]];
            earlier[0].max(earlier[1]) < later[0].min(later[1])
        };
        count > 1
            && count == other.sessions.len()
            && rounds.is_some_and(|rounds| rounds.windows(2).all(is_after))
    }
}

/// One cell in several sessions, with the index of each session.
pub(crate) type Cells<'a> = Vec<(usize, &'a Cell)>;

/// The parameters of a cell, without those of the measuring time.
pub(crate) fn chosen(cell: &Cell) -> Vec<(String, Value)> {
    let chosen = cell.parameters.iter().filter(|(name, _)| !HOW_LONG.contains(&name.as_str()));
    chosen.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// `tcp latency over loopback, 1 B`.
pub(crate) fn name(cell: &Cell) -> String {
    let mut words = vec![cell.level.clone(), cell.test.clone()];
    words.extend(cell.link.iter().filter(|link| **link != cell.level).cloned());
    words.extend(
        (!["", "processes", "namespaces"].contains(&cell.between.as_str())).then(|| cell.between.clone()),
    );
    words.extend(cell.size_bytes.map(quantity::size));
    words.extend(chosen(cell).iter().map(|(name, value)| parameter(name, value)));
    words.join(" ")
}
