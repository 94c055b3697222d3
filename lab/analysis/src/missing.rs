//! Cells that were measured before, but not afterwards or not completely, so that what broke them is noticed.

use std::collections::BTreeSet;

use bywire_results::cell::{Absence, Cell};

use crate::side::{Cells, Side, name};

/// A cell without a comparable one afterwards.
#[derive(Clone, Debug)]
pub struct Missing<'a> {
    /// The cell before. With several sessions it is the first.
    pub before: &'a Cell,
    /// One line with the reason, as far as the sessions tell.
    pub reason: String,
}

impl<'a> Missing<'a> {
    /// A cell that the other side lacks.
    pub(crate) fn of(cell: &'a Cell, [before, after]: [&Side; 2]) -> Self {
        // A reason that was also given before has not prevented the measurement.
        let known: BTreeSet<_> = concerning(cell, before).collect();
        let new: BTreeSet<_> = concerning(cell, after).filter(|reason| !known.contains(reason)).collect();
        let interrupted = after.sessions.iter().any(|session| !session.complete);
        let reason = if !new.is_empty() {
            new.into_iter().collect::<Vec<_>>().join("; or ")
        } else if interrupted {
            "the session was interrupted".to_owned()
        } else {
            "the session does not say why; was it asked for?".to_owned()
        };
        Self { before: cell, reason }
    }

    /// A cell that failed midway, but did not before.
    pub(crate) fn failed([before, after]: [&Cells<'a>; 2]) -> Option<Self> {
        let reason = failure(after).filter(|_| failure(before).is_none())?;
        Some(Self { before: before[0].1, reason: reason.to_owned() })
    }

    /// Its name: `tcp latency over loopback, 1 B`.
    pub fn name(&self) -> String {
        name(self.before)
    }
}

/// A side's reason why a level or a test could not be measured.
fn concerning<'s>(cell: &Cell, side: &'s Side) -> impl Iterator<Item = &'s str> {
    let all = side.sessions.iter().flat_map(|session| &session.absent);
    let concerns = |absence: &&Absence| {
        absence.level == cell.level && absence.test.as_ref().is_none_or(|test| *test == cell.test)
    };
    all.filter(concerns).map(|absence| absence.reason.as_str())
}

fn failure<'a>(cells: &Cells<'a>) -> Option<&'a str> {
    cells.iter().find_map(|(_, cell)| cell.failure.as_deref())
}
