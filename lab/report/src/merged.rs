//! Merges sessions of several machines, or of several presets of one machine, into one report.

use bywire_results::cell::{Absence, Session};
use bywire_results::level::MEMORY;
use bywire_results::parameter::MACHINE;
use serde_json::{Map, Value};

const CEILINGS_ELSEWHERE: &str = "the ceilings of each machine stand in its own report";

/// Merges several named sessions into one. A single session is not changed.
///
/// Ceilings are left out, because a report has the ceilings of one machine only.
pub fn merged(mut sessions: Vec<(String, Session)>) -> Option<Session> {
    if sessions.len() < 2 {
        return sessions.pop().map(|(_, session)| session);
    }
    sessions.iter_mut().for_each(|(name, session)| tag(name, session));
    Some(joined(sessions.iter().map(|(name, session)| (&**name, session)).collect()))
}

/// One session for each preset, in the order of the names. Cells are tagged with their session's name if a preset has
/// several sessions, and all cells are if the sessions are not all of one machine.
pub fn by_preset(mut sessions: Vec<(String, Session)>) -> Vec<Session> {
    if !are_of_one_machine(&sessions) {
        sessions.iter_mut().for_each(|(name, session)| tag(name, session));
    }
    let mut presets: Vec<Vec<(String, Session)>> = Vec::new();
    for (name, session) in sessions {
        match presets.iter_mut().find(|known| known[0].1.preset == session.preset) {
            Some(known) => known.push((name, session)),
            None => presets.push(vec![(name, session)]),
        }
    }
    presets.into_iter().filter_map(merged).collect()
}

/// All sessions of [`by_preset`] together, for the head of the report. Ceilings are left out if any cell is tagged.
pub fn together(presets: &[Session]) -> Session {
    match presets {
        [] => Session::default(),
        [only] => only.clone(),
        several => joined(several.iter().map(|session| (&*session.preset, session)).collect()),
    }
}

/// Compares boot, CPU and memory. A virtual machine may be a different one after a restart.
fn are_of_one_machine(sessions: &[(String, Session)]) -> bool {
    let identity = |session: &Session| {
        ["boot", "cpu", "memory_total_bytes"].map(|fact| session.environment.get(fact).cloned())
    };
    sessions.windows(2).all(|pair| identity(&pair[0].1) == identity(&pair[1].1))
}

fn tag(name: &str, session: &mut Session) {
    for cell in session.cells.iter_mut().filter(|cell| cell.level != MEMORY) {
        cell.parameters.insert(MACHINE.to_owned(), name.into());
    }
}

fn joined(sessions: Vec<(&str, &Session)>) -> Session {
    let mut whole = Session { complete: true, ..Session::default() };
    let mut presets: Vec<&str> = Vec::new();
    let mut environments = Map::new();
    for &(name, session) in &sessions {
        whole.seconds += session.seconds;
        whole.complete &= session.complete;
        whole.cells.extend(session.cells.iter().cloned());
        if !whole.command.is_empty() {
            whole.command.push("&&".to_owned());
        }
        whole.command.extend(session.command.iter().cloned());
        let absent = session.absent.iter().filter(|absence| absence.reason != CEILINGS_ELSEWHERE).cloned();
        whole.absent.extend(
            absent.map(|absence| Absence { reason: format!("{name}: {}", absence.reason), ..absence }),
        );
        if !presets.contains(&&*session.preset) {
            presets.push(&session.preset);
        }
        environments.insert(name.to_owned(), session.environment.clone());
    }
    let (_, first) = sessions[0];
    whole.environment = first.environment.clone();
    if whole.cells.iter().any(|cell| cell.parameters.contains_key(MACHINE)) {
        whole.environment = Value::Object(environments);
        whole.cells.retain(|cell| cell.level != MEMORY);
        let reason = CEILINGS_ELSEWHERE.to_owned();
        whole.absent.insert(0, Absence { level: MEMORY.to_owned(), test: None, reason });
    }
    let (schema, started) = (first.schema.clone(), first.started.clone());
    Session { schema, preset: presets.join(", "), started, ..whole }
}
