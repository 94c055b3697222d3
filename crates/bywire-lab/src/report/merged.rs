//! Sessions of several machines as one, so that one report shows them side by side.

use serde_json::{Map, Value};

use crate::cell::{Absence, Session};

/// What tells the cells of several sessions apart.
pub const MACHINE: &str = "machine";

/// One session out of several, each with a name. A single one stays as it is.
///
/// Ceilings stay behind: results are shown as a share of their own machine's, of which a report has one.
pub fn merged(mut sessions: Vec<(String, Session)>) -> Option<Session> {
    if sessions.len() < 2 {
        return sessions.pop().map(|(_, session)| session);
    }
    let mut environment = Map::new();
    let mut whole: Option<Session> = None;
    let reason = "the ceilings of each machine stand in its own report".to_owned();
    let mut absent = vec![Absence { level: "memory".to_owned(), test: None, reason }];
    for (name, mut session) in sessions {
        environment.insert(name.clone(), session.environment.take());
        session.cells.retain(|cell| cell.level != "memory");
        for cell in &mut session.cells {
            cell.parameters.insert(MACHINE.to_owned(), Value::String(name.clone()));
        }
        absent.extend(
            session
                .absent
                .drain(..)
                .map(|absence| Absence { reason: format!("{name}: {}", absence.reason), ..absence }),
        );
        match &mut whole {
            None => whole = Some(session),
            Some(whole) => {
                if whole.preset != session.preset {
                    whole.preset = format!("{}, {}", whole.preset, session.preset);
                }
                whole.seconds += session.seconds;
                whole.complete &= session.complete;
                whole.command.push("&&".to_owned());
                whole.command.append(&mut session.command);
                whole.cells.append(&mut session.cells);
            }
        }
    }
    whole.map(|whole| Session { environment: Value::Object(environment), absent, ..whole })
}
