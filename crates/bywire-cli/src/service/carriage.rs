//! Whether the processes of a unit are carried, and why not.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use bywire_command::plain::one_line;
use bywire_command::shell::quoted;
use bywire_pairing::protocol::SERVICE_VARIABLE;
use bywire_pairing::status;
use serde::Serialize;

use crate::carried_units::{self, Loaded};
use crate::{count, preload_diagnosis};

use super::drop_in::FILE_NAME;
use super::locate::{self, drop_in_path};
use super::manager;
use super::sandbox::DIRECTORY_VARIABLE;
use super::settings::Settings;
use super::state::{PROPERTIES, State};
use super::unit_file::UnitFile;
use super::{claim, cluster, drop_in};

/// The most processes that get a line each.
const LINES_MAX: usize = 16;

/// One process of a unit.
#[derive(Debug, Serialize)]
pub struct Process {
    pid: u32,
    program: String,
    /// It has loaded the library.
    library: bool,
    /// The reason why it has not.
    why_not: Option<String>,
    /// It is connected to the pairing service, which it is once a connection was offered. `None`: no service answers.
    connected: Option<bool>,
    carried: u64,
    carried_ever: u64,
    not_carried: BTreeMap<String, u64>,
}

/// One unit with a drop-in.
#[derive(Debug, Serialize)]
pub struct Account {
    /// Its name.
    pub unit: String,
    /// Its state, as systemd calls it.
    pub state: String,
    /// A process of it has loaded the library.
    pub carried: bool,
    /// The reason why none has.
    pub why_not: Option<String>,
    /// Its own ExecStart= is another one than when the drop-in was made.
    pub is_outdated: bool,
    /// A change of its drop-in was killed before its end.
    pub is_unfinished: bool,
    processes: Vec<Process>,
}

impl Account {
    /// Looks at a unit whose drop-in has this text.
    ///
    /// # Errors
    /// systemd does not answer.
    pub fn of(unit: &str, text: &str) -> Result<Self> {
        let properties = format!("{PROPERTIES},LoadState,ControlGroup,ActiveEnterTimestamp,ExecStart");
        let shown = manager::show(unit, &properties)?;
        let state = State::of(&shown);
        let group = shown.value("ControlGroup").unwrap_or_default();
        let mut processes = Vec::new();
        if !group.is_empty() {
            let directories = carried_units::of_group(group, Path::new("/proc"));
            let obstacle = obstacle(unit, &shown);
            let socket = pairing(text);
            let socket = Cell::new(socket.as_deref());
            let of_directory = |directory: PathBuf| process(&directory, obstacle.as_deref(), &socket);
            processes.extend(directories.into_iter().filter_map(of_directory));
            processes.sort_by_key(|process| process.pid);
        }
        let carried = processes.iter().any(|process| process.library);
        let first = processes.iter().find_map(|process| process.why_not.clone());
        let why_not = match carried {
            true => None,
            false if !state.is_up() && shown.value("LoadState") == Some("not-found") => {
                Some(format!("its package was removed: `bywire service remove {}`", quoted(stem(unit))))
            }
            false if !state.is_up() => Some(format!("it does not run: `systemctl start {}`", quoted(unit))),
            false => Some(first.unwrap_or_else(|| "it has no process".to_owned())),
        };
        let found = locate::find(unit).ok();
        Ok(Self {
            unit: unit.to_owned(),
            state: state.word().to_owned(),
            carried,
            why_not,
            is_outdated: found.is_some_and(|found| is_outdated(&found.unit.files, text)),
            is_unfinished: claim::is_unfinished(unit),
            processes,
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let verdict = match &self.why_not {
            None => "its connections can be carried".to_owned(),
            Some(reason) => format!("TCP: {}", one_line(reason)),
        };
        let mut text = format!("{}: {}; {verdict}\n", self.unit, self.state);
        let name = quoted(stem(&self.unit));
        if self.is_unfinished {
            text += &format!(
                "  an earlier change of it was killed halfway: `bywire service add {name} --restart` makes it again, and \
                 `bywire service remove {name} --restart` takes it back\n"
            );
        }
        if self.is_outdated {
            text += &format!(
                "  its own ExecStart= has changed since the drop-in was made: `bywire service add {name} --restart`\n"
            );
        }
        for process in self.processes.iter().take(LINES_MAX) {
            text += &process.line();
        }
        if let Some(rest) = self.processes.len().checked_sub(LINES_MAX).filter(|rest| *rest > 0) {
            text += &format!("  and {}\n", count::of(rest as u64, "other process", "other processes"));
        }
        text
    }
}

/// A unit's name as it is typed.
fn stem(unit: &str) -> &str {
    unit.strip_suffix(".service").unwrap_or(unit)
}

impl Process {
    fn line(&self) -> String {
        // A program chooses its name.
        let mut line = format!("  {:>7} {}: ", self.pid, one_line(&self.program));
        line += &match (&self.why_not, self.connected) {
            (Some(reason), _) => format!("TCP: {}", one_line(reason)),
            (None, None) => "has the library; the pairing service does not say more".to_owned(),
            (None, Some(false)) => {
                "has the library, and has offered no connection to the pairing service so far: \
                BYWIRE_LOG=FILE in its environment names the reasons"
                    .to_owned()
            }
            (None, Some(true)) => format!(
                "has the library; {} carried now, {} since it began",
                count::of(self.carried, "connection", "connections"),
                self.carried_ever
            ),
        };
        line.push('\n');
        for (reason, count) in &self.not_carried {
            line += &format!("          {count} not carried: {reason}\n");
        }
        line
    }
}

/// The reason why no process of a unit has the library, which its properties show. `None`: they show none.
fn obstacle(unit: &str, shown: &Settings) -> Option<String> {
    if is_older_than_drop_in(unit, shown.value("ActiveEnterTimestamp")) {
        return Some("it was started before the drop-in was written, and waits for a restart".to_owned());
    }
    let is_started_by_run = shown.value("ExecStart").is_some_and(|start| start.contains("bywire run "));
    (!is_started_by_run).then(|| {
        format!(
            "another drop-in has replaced its ExecStart=, as `systemctl cat {}` shows: rename that file so that it comes before \
             {FILE_NAME}",
            quoted(unit)
        )
    })
}

/// Looks at one process. `obstacle` is that of its unit. `socket` is that of a pairing service that has answered so far.
/// `None`: it has ended.
fn process(directory: &Path, obstacle: Option<&str>, socket: &Cell<Option<&Path>>) -> Option<Process> {
    let pid = directory.file_name()?.to_str()?.parse().ok()?;
    let program = String::from_utf8_lossy(&fs::read(directory.join("comm")).ok()?).trim().to_owned();
    let loaded = carried_units::has_loaded(directory);
    let status = match (loaded, socket.get()) {
        (Loaded::Yes, Some(path)) => status::query_process(path, pid).unwrap_or_else(|_silent| {
            // Each question would wait for it again.
            socket.set(None);
            None
        }),
        _ => None,
    };
    let connected = status.as_ref().map(|status| status.processes > 0);
    let status = status.unwrap_or_default();
    let why_not = match loaded {
        Loaded::Yes => None,
        Loaded::Unknown => Some("only root can look at it".to_owned()),
        Loaded::No => Some(obstacle.map_or_else(|| reason(directory), str::to_owned)),
    };
    Some(Process {
        pid,
        program,
        library: loaded == Loaded::Yes,
        why_not,
        connected,
        carried: status.carried,
        carried_ever: status.carried_ever,
        not_carried: status
            .not_carried
            .iter()
            .map(|(reason, count)| (reason.text().to_owned(), *count))
            .collect(),
    })
}

/// Why a process has not loaded the library.
fn reason(directory: &Path) -> String {
    if let Some(reason) = preload_diagnosis::of_file(&directory.join("exe")) {
        return reason.to_owned();
    }
    let profile = fs::read_to_string(directory.join("attr/current")).unwrap_or_default();
    if let Some(profile) = profile.trim().strip_suffix(" (enforce)") {
        return format!(
            "its AppArmor profile {profile} may forbid to map the library: `journalctl -k` shows that"
        );
    }
    let environment = fs::read(directory.join("environ")).unwrap_or_default();
    let has =
        |name: &str| environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(name.as_bytes()));
    if !has(SERVICE_VARIABLE) && !has(DIRECTORY_VARIABLE) {
        return format!(
            "its environment has nothing of the unit's: what has started it clears the environment, as {} does, and nginx when it \
             executes a new version of itself; after that, a restart helps",
            cluster::LAUNCHER
        );
    }
    if !has(SERVICE_VARIABLE) {
        return "`bywire run` has found an obstacle: `journalctl -u` of the unit has its line".to_owned();
    }
    "the loader could not map the library: `journalctl -u` of the unit has the reason".to_owned()
}

/// The socket of the pairing service that a drop-in names.
fn pairing(text: &str) -> Option<PathBuf> {
    let mut file = UnitFile::default();
    file.read(text);
    let named = file.service.words("Environment").find_map(|word| word.strip_prefix("BYWIRE_PAIRING="))?;
    Some(PathBuf::from(named))
}

/// Returns whether a unit became active, at `@SECONDS`, before its drop-in was written.
fn is_older_than_drop_in(unit: &str, active_since: Option<&str>) -> bool {
    let since = active_since.and_then(|since| since.strip_prefix('@')?.parse::<u64>().ok());
    let written = fs::metadata(drop_in_path(unit)).and_then(|found| found.modified());
    let written = written.ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    written.zip(since).is_some_and(|(written, since)| written.as_secs() > since)
}

/// Returns whether the unit has another `ExecStart=` than the drop-in was made of.
fn is_outdated(files: &UnitFile, text: &str) -> bool {
    let now: Vec<&str> = files.service.values("ExecStart").collect();
    drop_in::original(text).is_some_and(|original| original != now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_unit_is_noticed() {
        let mut files = UnitFile::default();
        files.read("[Service]\nExecStart=/bin/x -a\n");
        let text = |start: &str| format!("{} x`.\n# The unit's own: ExecStart={start}\n", drop_in::MARK);
        assert!(!is_outdated(&files, &text("/bin/x -a")));
        assert!(is_outdated(&files, &text("/bin/x -b")));
        let named = pairing("[Service]\nEnvironment=A=1 BYWIRE_PAIRING=/run/x/socket\n");
        assert_eq!(named, Some("/run/x/socket".into()));
        assert_eq!(pairing("[Service]\n"), None);
    }

    #[test]
    fn a_process_without_the_library_has_a_reason() {
        let directory = Path::new("/proc").join(std::process::id().to_string());
        let this = process(&directory, None, &Cell::new(None)).expect("ours");
        assert!(!this.library && this.connected.is_none());
        let line = Process {
            program: "a\u{1b}[2J\nb".into(),
            ..process(&directory, None, &Cell::new(None)).expect("ours")
        }
        .line();
        assert!(line.contains("a\\u{1b}[2J b: ") && line.lines().count() == 1, "{line}");
        let line = this.line();
        assert!(line.contains("TCP: ") && line.lines().count() == 1, "{line}");
        let older = process(&directory, Some("older"), &Cell::new(None)).expect("ours");
        assert_eq!(older.why_not.as_deref(), Some("older"));
        let replaced = "ExecStart={ path=/bin/x ; argv[]=/bin/x -a ; status=0/0 }\n";
        let replaced = obstacle("x.service", &Settings::from_shown(replaced)).expect("an obstacle");
        assert!(replaced.contains("`systemctl cat x.service`"), "{replaced}");
        let own = "ExecStart={ path=/bin/bywire ; argv[]=/bin/bywire run -- /bin/x -a ; status=0/0 }\n";
        assert_eq!(obstacle("x.service", &Settings::from_shown(own)), None);
        let account = Account {
            unit: "x.service".into(),
            state: "active".into(),
            carried: false,
            why_not: Some("reason".into()),
            is_outdated: true,
            is_unfinished: true,
            processes: vec![this],
        };
        let text = account.text();
        assert!(
            text.starts_with("x.service: active; TCP: reason\n") && text.contains("service add x --restart"),
            "{text}"
        );
        assert!(text.contains("killed halfway"), "{text}");
        assert!(!Account { is_unfinished: false, ..account }.text().contains("killed halfway"));
    }
}
