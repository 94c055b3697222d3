//! Cells that were measured before and were not, or not to their end, after: what broke them must not pass for it.

use crate::cell::{Absence, Cell};
use crate::compare::Cells;
use crate::compare::side::Side;

/// A cell that has nothing after that it could be compared with.
#[derive(Clone, Debug)]
pub struct Missing<'a> {
    /// It as taken before; of several sessions the first.
    pub before: &'a Cell,
    /// One line: why it is missing, as far as the sessions tell.
    pub reason: String,
}

impl<'a> Missing<'a> {
    /// A cell that the other side does not have.
    pub(super) fn of(before: &'a Cell, after: &Side) -> Self {
        let interrupted = after.sessions.iter().any(|session| !session.complete);
        let reason = match absence(before, after) {
            Some(absence) => absence.reason.clone(),
            None if interrupted => "the session was interrupted".to_owned(),
            None => "the session does not say why; was it asked for?".to_owned(),
        };
        Self { before, reason }
    }

    /// A cell that failed in the middle: it has fewer pairs after, and a failure that there was not before.
    pub(super) fn failed(cells: [&Cells<'a>; 2], sides: [&Side; 2]) -> Option<Self> {
        let [before, after] = cells.map(pairs);
        let cell = cells[0][0].1;
        let failure = absence(cell, sides[1]).filter(|_| after < before && absence(cell, sides[0]).is_none());
        failure.map(|failure| Self { before: cell, reason: failure.reason.clone() })
    }

    /// What it is: `tcp latency over loopback, 1 B`.
    pub fn name(&self) -> String {
        super::name(self.before)
    }
}

/// What a side says about a cell's level or test that could not be measured.
fn absence<'s>(cell: &Cell, side: &'s Side) -> Option<&'s Absence> {
    let concerns = |absence: &&Absence| {
        absence.level == cell.level && absence.test.as_ref().is_none_or(|test| *test == cell.test)
    };
    side.sessions.iter().flat_map(|session| &session.absent).find(concerns)
}

fn pairs(cells: &Cells) -> usize {
    cells.iter().map(|(_, cell)| cell.pairs()).sum()
}
