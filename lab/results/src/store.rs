//! A stored session: a directory with `session.json` and `cells.jsonl`, one cell a line.
//!
//! While several cells are measured in turn, each has a file of its own under `running`, which is written again after
//! each pair. All are appended to `cells.jsonl` once they are complete or cut short. So a session that is interrupted
//! or killed at any moment keeps every pair that it has taken. A reader ignores an incomplete last line, and
//! [`cut_off`] reports it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bywire_command::plain::is_obeyed;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cell::{CELL_SCHEMA, Cell, INTERVAL_PAIRS_MIN, SESSION_SCHEMA, Session};

const SESSION_FILE: &str = "session.json";
const CELLS_FILE: &str = "cells.jsonl";
const RUNNING: &str = "running";

/// Why a session could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system returned an error.
    #[error("cannot {action} {path}: {reason}")]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system. It is not a `source`, or the message would contain it twice.
        reason: io::Error,
    },
    /// A new session would overwrite an old one.
    #[error("{0} holds a session already; name another directory")]
    Occupied(PathBuf),
    /// There is no session to read.
    #[error("{0} holds no session: name a directory that `bywire bench` wrote")]
    Absent(PathBuf),
    /// The content of a file is not valid: the file, the line counted from 1, and the error in it.
    #[error("{0}, line {1}: {2}; it is not a session of this version")]
    Malformed(PathBuf, usize, String),
    /// The file holds only an incomplete line.
    #[error("{0}, line 1: cut off; 0 cells read")]
    CutOff(PathBuf),
    /// A measured value of this level and test is not a number. JSON cannot hold it.
    #[error("{0} {1} has no value: nothing was measured")]
    Empty(String, String),
}

/// A session that is being written.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    cells: File,
    /// The end of the last complete line of cells.
    cells_bytes: u64,
}

impl Store {
    /// Makes `directory` (and its parents) and writes `session` without its cells. Fails if the directory holds a
    /// session already or cannot be written, and leaves nothing behind then.
    pub fn create(directory: &Path, session: &Session) -> Result<Self, StoreError> {
        let made = !directory.exists();
        Self::create_files(directory, session).inspect_err(|_| {
            if made {
                // An error here adds nothing to the first one.
                let _left = fs::remove_dir_all(directory);
            }
        })
    }

    fn create_files(directory: &Path, session: &Session) -> Result<Self, StoreError> {
        fs::create_dir_all(directory).map_err(failed("make", directory))?;
        if directory.join(SESSION_FILE).exists() {
            return Err(StoreError::Occupied(directory.to_owned()));
        }
        let path = directory.join(CELLS_FILE);
        let cells = File::create(&path).map_err(failed("make", &path))?;
        let store = Self { directory: directory.to_owned(), cells, cells_bytes: 0 };
        store.save(session)?;
        Ok(store)
    }

    /// Appends one cell. Fails if it has no value, or cannot be written, for instance because the disk is full. Cells
    /// stored before stay.
    pub fn append(&mut self, cell: &Cell) -> Result<(), StoreError> {
        if !has_value(cell) {
            return Err(StoreError::Empty(cell.level.clone(), cell.test.clone()));
        }
        let line = json(cell) + "\n";
        if let Err(reason) = self.cells.write_all(line.as_bytes()) {
            // Removes the incomplete line if possible. Readers ignore it otherwise.
            let _torn = self.cells.set_len(self.cells_bytes);
            return Err(failed("write", &self.directory.join(CELLS_FILE))(reason));
        }
        self.cells_bytes += line.len() as u64;
        Ok(())
    }

    /// Stores the present state of the cell number `place` of those that are being measured, in place of its previous
    /// state. A cell without a value is not stored. If it cannot be written, the older version stays.
    pub fn keep_running(&self, place: usize, cell: &Cell) -> Result<(), StoreError> {
        if !has_value(cell) {
            return Ok(());
        }
        let running = self.directory.join(RUNNING);
        unless(io::ErrorKind::AlreadyExists, fs::create_dir(&running)).map_err(failed("write", &running))?;
        replace(&running.join(format!("{place:04}.json")), &json(cell))
    }

    /// Removes what [`Store::keep_running`] kept, once all of it has been appended. If it cannot be removed, it only
    /// takes room, because readers recognise its cells among those appended.
    pub fn forget_running(&self) -> Result<(), StoreError> {
        let running = self.directory.join(RUNNING);
        unless(io::ErrorKind::NotFound, fs::remove_dir_all(&running)).map_err(failed("remove", &running))
    }

    /// Replaces the session's own facts atomically: seconds so far, absences, whether it is complete. If it cannot be
    /// written, the older version stays.
    pub fn save(&self, session: &Session) -> Result<(), StoreError> {
        replace(&self.directory.join(SESSION_FILE), &json(session))
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Reads a stored session with its cells. Fails if a file is missing, has another version, or is malformed anywhere but
/// in an incomplete last line.
pub fn read(directory: &Path) -> Result<Session, StoreError> {
    let path = directory.join(SESSION_FILE);
    if !path.exists() {
        return Err(StoreError::Absent(directory.to_owned()));
    }
    let mut session: Session =
        parsed(&read_bytes(&path)?).map_err(|error| malformed(&path, error.line().max(1), error))?;
    if session.schema != SESSION_SCHEMA {
        let reason = format!("schema {} rather than {SESSION_SCHEMA}", session.schema);
        return Err(malformed(&path, 1, reason));
    }
    // Read before the complete cells: a cell that moves meanwhile is then read twice, and not lost.
    let (running, _torn) = read_running(directory)?;
    let path = directory.join(CELLS_FILE);
    let is_torn;
    (session.cells, is_torn) = read_cells(&path)?;
    let identity = |cell: &Cell| (cell.level.clone(), cell.test.clone(), cell.moments.first().copied());
    for cell in running {
        // A known one is there twice, because the session was killed between appending and removing.
        if !session.cells.iter().any(|known| identity(known) == identity(&cell)) {
            session.cells.push(cell);
        }
    }
    if session.cells.is_empty() && is_torn {
        return Err(StoreError::CutOff(path));
    }
    Ok(session)
}

/// One line about a session of `cells` cells in `directory` that ends with an incomplete line. `None` if it is
/// complete. Fails if the cells cannot be read.
pub fn cut_off(directory: &Path, cells: usize) -> Result<Option<String>, StoreError> {
    let path = directory.join(CELLS_FILE);
    let bytes = read_bytes(&path)?;
    let line = bytes.split(|&byte| byte == b'\n').count();
    let place = match bytes.last().is_some_and(|&byte| byte != b'\n') {
        true => Some(format!("{}, line {line}", path.display())),
        false => read_running(directory)?.1.first().map(|path| path.display().to_string()),
    };
    Ok(place.map(|place| format!("{place}: cut off; {cells} cells read")))
}

/// Reads the session in `directory`, or all sessions directly below it, in the order of their starts. Fails if there is
/// no session, or if one of them cannot be read.
pub fn read_all(directory: &Path) -> Result<Vec<Session>, StoreError> {
    if directory.join(SESSION_FILE).exists() {
        return Ok(vec![read(directory)?]);
    }
    let mut below = newest_first(&[directory]);
    if below.is_empty() {
        return Err(StoreError::Absent(directory.to_owned()));
    }
    below.sort();
    let mut sessions = below.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    sessions.sort_by(|one, other| one.started.cmp(&other.started));
    Ok(sessions)
}

/// True if both paths name one existing directory.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// The directories directly below `places` that hold a session, the newest first; each once.
pub fn newest_first(places: &[&Path]) -> Vec<PathBuf> {
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let dated =
        |path: PathBuf| Some((Reverse(fs::metadata(path.join(SESSION_FILE)).ok()?.modified().ok()?), path));
    let sessions: BTreeSet<_> = entries.filter_map(|entry| dated(entry.path())).collect();
    sessions.into_iter().map(|(_, path)| path).collect()
}

/// The complete lines, and whether an incomplete one follows.
fn read_cells(path: &Path) -> Result<(Vec<Cell>, bool), StoreError> {
    let bytes = read_bytes(path)?;
    // An incomplete line may end within a character.
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let cells = lines
        .map(|(index, line)| parsed_cell(line).map_err(|reason| malformed(path, index + 1, reason)))
        .collect::<Result<_, _>>()?;
    Ok((cells, whole < bytes.len()))
}

/// The stored states of cells that were being measured, in order, and the files that hold none.
fn read_running(directory: &Path) -> Result<(Vec<Cell>, Vec<PathBuf>), StoreError> {
    let entries = fs::read_dir(directory.join(RUNNING)).into_iter().flatten().flatten();
    let is_whole = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_whole).collect();
    paths.sort();
    let (mut cells, mut torn) = (Vec::new(), Vec::new());
    for path in paths {
        let line = match fs::read(&path) {
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => continue,
            line => line.map_err(failed("read", &path))?,
        };
        // The machine may have stopped while this file was written. Complete cells are in another file.
        match parsed_cell(&line) {
            Ok(cell) => cells.push(cell),
            Err(_) => torn.push(path),
        }
    }
    Ok((cells, torn))
}

/// Parses a cell of a file, which is not trusted.
fn parsed_cell(line: &[u8]) -> Result<Cell, String> {
    let mut cell: Cell = parsed(line).map_err(|error| error.to_string())?;
    if cell.schema != CELL_SCHEMA {
        return Err(format!("schema {} rather than {CELL_SCHEMA}", cell.schema));
    }
    // Older versions gave an interval to any number of pairs.
    cell.ci95 = cell.ci95.filter(|_| cell.pairs() >= INTERVAL_PAIRS_MIN);
    Ok(cell)
}

/// JSON without control characters in any of its strings: they would reach the reader's terminal.
fn parsed<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_slice(text)?;
    make_plain(&mut value);
    serde_json::from_value(value)
}

fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = plain(text),
        Value::Array(items) => items.iter_mut().for_each(make_plain),
        Value::Object(parts) => {
            for (name, mut part) in std::mem::take(parts) {
                make_plain(&mut part);
                parts.insert(plain(&name), part);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces line ends and tabs by spaces, and removes other control characters and those that change the direction of
/// writing.
fn plain(text: &str) -> String {
    let blanked = |letter| if matches!(letter, '\n' | '\r' | '\t') { ' ' } else { letter };
    text.chars().map(blanked).filter(|letter| !is_obeyed(*letter)).collect()
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> Result<(), StoreError> {
    let fresh = path.with_extension("json.new");
    let written = fs::write(&fresh, format!("{text}\n")).and_then(|()| fs::rename(&fresh, path));
    written.map_err(failed("write", path)).inspect_err(|_| {
        let _absent = fs::remove_file(&fresh);
    })
}

fn has_value(cell: &Cell) -> bool {
    cell.value.is_finite() && cell.ci95.iter().flatten().all(|bound| bound.is_finite())
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(failed("read", path))
}

/// The result, without an error of the `expected` kind.
fn unless(expected: io::ErrorKind, result: io::Result<()>) -> io::Result<()> {
    result.or_else(|reason| if reason.kind() == expected { Ok(()) } else { Err(reason) })
}

fn json(value: &impl serde::Serialize) -> String {
    // Only maps with keys other than strings fail, and our types have none.
    serde_json::to_string(value).expect("cells and sessions are JSON")
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |reason| StoreError::File { action, path: path.to_owned(), reason }
}

fn malformed(path: &Path, line: usize, reason: impl ToString) -> StoreError {
    StoreError::Malformed(path.to_owned(), line, reason.to_string())
}
