//! A stored session: a directory with `session.json` and `cells.jsonl`, one cell a line.
//!
//! Each cell is appended as soon as it is measured, so an interrupted session keeps what it has; a last line that
//! was torn off in the middle is left out when the session is read again, and [`cut_off`] says so.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cell::{CELL_SCHEMA, Cell, SESSION_SCHEMA, Session};
use crate::statistics::INTERVAL_PAIRS_MIN;

const SESSION_FILE: &str = "session.json";
const CELLS_FILE: &str = "cells.jsonl";

/// Why a session could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {action} {path}: {reason}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said; no `source`, or it would be told twice.
        reason: io::Error,
    },
    /// A new session would overwrite an old one.
    #[error("{0} holds a session already; name another directory")]
    Occupied(PathBuf),
    /// There is no session to read.
    #[error("{0} holds no session: name a directory that `bywire bench` wrote")]
    Absent(PathBuf),
    /// A file does not hold what it should.
    #[error("{path}, line {line}: {reason}; it is not a session of this version")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing but a torn line.
    #[error("{path}, line 1: cut off; 0 cells read")]
    CutOff {
        /// Which file.
        path: PathBuf,
    },
    /// A measured value is no number, which JSON cannot hold.
    #[error("{level} {test} has no value: nothing was measured")]
    Empty {
        /// The cell's level.
        level: String,
        /// The cell's test.
        test: String,
    },
}

/// A session that is being written.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    cells: File,
    /// Where the last whole line of the cells ends.
    cells_bytes: u64,
}

impl Store {
    /// Makes `directory` (and its parents) and writes `session` without its cells.
    ///
    /// # Errors
    /// When the directory holds a session already or cannot be written; then nothing of it is left.
    pub fn create(directory: &Path, session: &Session) -> Result<Self, StoreError> {
        let made = !directory.exists();
        let store = Self::create_files(directory, session);
        if made && store.is_err() {
            // What cannot be removed either says no more than the error does.
            let _left = fs::remove_dir_all(directory);
        }
        store
    }

    fn create_files(directory: &Path, session: &Session) -> Result<Self, StoreError> {
        fs::create_dir_all(directory).map_err(|reason| file_error("make", directory, reason))?;
        if directory.join(SESSION_FILE).exists() {
            return Err(StoreError::Occupied(directory.to_owned()));
        }
        let path = directory.join(CELLS_FILE);
        let cells = File::create(&path).map_err(|reason| file_error("make", &path, reason))?;
        let store = Self { directory: directory.to_owned(), cells, cells_bytes: 0 };
        store.save(session)?;
        Ok(store)
    }

    /// Appends one cell.
    ///
    /// # Errors
    /// When the cell has no value, or cannot be written (a full disk, say); what was stored before stays.
    pub fn append(&mut self, cell: &Cell) -> Result<(), StoreError> {
        if !(cell.value.is_finite() && cell.ci95.iter().flatten().all(|bound| bound.is_finite())) {
            return Err(StoreError::Empty { level: cell.level.clone(), test: cell.test.clone() });
        }
        let mut line = json(cell);
        line.push('\n');
        if let Err(reason) = self.cells.write_all(line.as_bytes()) {
            // A reader leaves a torn line out; where it can be taken back there is none.
            let _torn = self.cells.set_len(self.cells_bytes);
            return Err(file_error("write", &self.directory.join(CELLS_FILE), reason));
        }
        self.cells_bytes += line.len() as u64;
        Ok(())
    }

    /// Writes the session's own facts again, all at once: seconds so far, absences, whether it is complete.
    ///
    /// # Errors
    /// When it cannot be written; the older version then stays.
    pub fn save(&self, session: &Session) -> Result<(), StoreError> {
        let path = self.directory.join(SESSION_FILE);
        let fresh = self.directory.join("session.json.new");
        let text = json(session);
        let written = fs::write(&fresh, text + "\n").and_then(|()| fs::rename(&fresh, &path));
        written.map_err(|reason| {
            let _absent = fs::remove_file(&fresh);
            file_error("write", &path, reason)
        })
    }

    /// Where it is stored.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Reads a stored session with its cells.
///
/// # Errors
/// When a file is missing, of another version or malformed anywhere but in a torn last line.
pub fn read(directory: &Path) -> Result<Session, StoreError> {
    let path = directory.join(SESSION_FILE);
    if !path.exists() {
        return Err(StoreError::Absent(directory.to_owned()));
    }
    let text = read_text(&path)?;
    let mut session: Session =
        serde_json::from_str(&text).map_err(|error| malformed(&path, error.line(), error))?;
    if session.schema != SESSION_SCHEMA {
        let reason = format!("schema {} rather than {SESSION_SCHEMA}", session.schema);
        return Err(malformed(&path, 1, reason));
    }
    session.cells = read_cells(&directory.join(CELLS_FILE))?;
    Ok(session)
}

/// One line about a session of `cells` cells in `directory` whose last line was torn off; `None`: it is whole.
///
/// # Errors
/// When the cells cannot be read.
pub fn cut_off(directory: &Path, cells: usize) -> Result<Option<String>, StoreError> {
    let path = directory.join(CELLS_FILE);
    let bytes = fs::read(&path).map_err(|reason| file_error("read", &path, reason))?;
    let whole = bytes.split(|&byte| byte == b'\n').count();
    let torn = bytes.last().is_some_and(|&byte| byte != b'\n');
    Ok(torn.then(|| format!("{}, line {whole}: cut off; {cells} cells read", path.display())))
}

/// Reads the session in `directory`, or all those directly below it, in the order in which they were started.
///
/// # Errors
/// There is none, or one of them cannot be read.
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

/// Do both name one existing directory?
pub fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// The directories directly below `places` that hold a session, the newest first; each once.
pub fn newest_first(places: &[&Path]) -> Vec<PathBuf> {
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let mut sessions: Vec<_> = entries
        .filter_map(|entry| {
            let written = fs::metadata(entry.path().join(SESSION_FILE)).ok()?.modified().ok()?;
            Some((std::cmp::Reverse(written), entry.path()))
        })
        .collect();
    sessions.sort();
    sessions.dedup();
    sessions.into_iter().map(|(_, path)| path).collect()
}

fn read_cells(path: &Path) -> Result<Vec<Cell>, StoreError> {
    let bytes = fs::read(path).map_err(|reason| file_error("read", path, reason))?;
    // What follows the last line end was torn off while it was written, perhaps within a character.
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let mut cells = Vec::new();
    for (index, line) in bytes[..whole].split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let mut cell: Cell =
            serde_json::from_slice(line).map_err(|error| malformed(path, index + 1, error))?;
        if cell.schema != CELL_SCHEMA {
            let reason = format!("schema {} rather than {CELL_SCHEMA}", cell.schema);
            return Err(malformed(path, index + 1, reason));
        }
        // Older versions gave one to any number of pairs.
        cell.ci95 = cell.ci95.filter(|_| cell.pairs() >= INTERVAL_PAIRS_MIN);
        cells.push(cell);
    }
    if cells.is_empty() && whole < bytes.len() {
        return Err(StoreError::CutOff { path: path.to_owned() });
    }
    Ok(cells)
}

fn read_text(path: &Path) -> Result<String, StoreError> {
    fs::read_to_string(path).map_err(|reason| file_error("read", path, reason))
}

fn json(value: &impl serde::Serialize) -> String {
    // Only maps with keys that are no strings fail, and none of our types has one.
    serde_json::to_string(value).expect("cells and sessions are JSON")
}

fn file_error(action: &'static str, path: &Path, reason: io::Error) -> StoreError {
    StoreError::File { action, path: path.to_owned(), reason }
}

fn malformed(path: &Path, line: usize, reason: impl ToString) -> StoreError {
    StoreError::Malformed { path: path.to_owned(), line, reason: reason.to_string() }
}
