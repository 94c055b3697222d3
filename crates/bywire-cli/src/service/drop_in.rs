//! The drop-in that makes a unit's program start by `bywire run`: properties of the unit in, text out.

use std::path::{Path, PathBuf};

use super::cluster::{self, Cluster};
use super::refusal::Refusal;
use super::sandbox::{self, DIRECTORY_VARIABLE, Exception, Installation};
use super::settings::Settings;
use super::start_line::{StartLine, setting_word};
use super::unit_file::UnitFile;

/// The drop-in's file in the unit's directory. systemd reads drop-ins in the order of their names, and this one's `ExecStart=`
/// has to come after that of an administrator's `override.conf`.
pub const FILE_NAME: &str = "zz-bywire.conf";
/// How its text begins. A file without it is not this command's.
pub const MARK: &str = "# Written by `bywire service add";
/// The comment before the text of the unit's own `ExecStart=`, by which a later change of it is noticed.
const ORIGINAL: &str = "# The unit's own: ExecStart=";
/// The unit of the machine's pairing service.
const PAIRING_UNIT: &str = "bywire-pairing.socket";

/// A unit as it is without the drop-in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Its full name.
    pub name: String,
    /// Its files, for what has to be repeated word by word.
    pub files: UnitFile,
    /// Its sandbox, as systemd shows it, or as the files have it.
    pub sandbox: Settings,
    /// The cluster of PostgreSQL that it is for.
    pub cluster: Option<Cluster>,
}

/// A drop-in that has not been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    /// Its text.
    pub text: String,
    /// Its settings and their reasons.
    pub exceptions: Vec<Exception>,
    /// Settings of the sandbox that need none, and why.
    pub harmless: Vec<(String, &'static str)>,
    /// Facts that the user should know.
    pub notes: Vec<String>,
}

/// Makes the drop-in for a unit.
///
/// # Errors
/// The service would not be carried.
pub fn plan(unit: &Unit, installation: &Installation) -> Result<DropIn, Refusal> {
    let service = &unit.files.service;
    let start = start_line(unit)?;
    let (name, runtime) = runtime_directory(&unit.name);
    let mut exceptions = match &unit.cluster {
        Some(cluster) if start.program_name() == cluster::LAUNCHER => {
            cluster::settings(cluster, &installation.command)
        }
        _ if start.program_name() == cluster::LAUNCHER => {
            return Err(Refusal::ClearedEnvironment(start.program().to_owned()));
        }
        _ => {
            let line = format!("ExecStart=\nExecStart={}", start.carried_by(&installation.command)?);
            let mut reason = "The unit's own command line, started by `bywire run`.".to_owned();
            if start.upgrades_itself() {
                reason +=
                    " nginx keeps the variables of `env` when it executes its new version in an upgrade.";
            }
            vec![Exception::new(line, reason)]
        }
    };
    exceptions.extend(sandbox::exceptions(&unit.sandbox, installation, &runtime)?);
    let own: Vec<String> = service.paths("RuntimeDirectory").map(|path| format!("/run/{path}")).collect();
    if !own.is_empty() {
        exceptions.push(Exception::new(
            format!("Environment=RUNTIME_DIRECTORY={}", own.join(":")),
            "systemd would name the directory below in this variable, too.",
        ));
    }
    exceptions.push(Exception::new(
        format!("RuntimeDirectory={name}"),
        "The unit's user owns this directory, in which `bywire run` links the library for the loader.",
    ));
    let pairing = setting_word(&format!("BYWIRE_PAIRING={}", installation.pairing.display()));
    exceptions.push(Exception::new(
        format!("Environment={DIRECTORY_VARIABLE}={} {pairing}", runtime.display()),
        "The pairing service of the machine carries the connections, whatever user a client has.",
    ));
    let original: Vec<&str> = service.values("ExecStart").collect();
    Ok(DropIn {
        text: text(&unit.name, &original, &exceptions),
        exceptions,
        harmless: sandbox::harmless(&unit.sandbox),
        notes: notes(unit),
    })
}

/// The one command that starts the unit's program.
fn start_line(unit: &Unit) -> Result<StartLine, Refusal> {
    let mut values = unit.files.service.values("ExecStart");
    if unit.files.service.value("Type") == Some("oneshot") {
        let hint = "name the unit of the server itself".to_owned();
        return Err(Refusal::Oneshot { name: unit.name.clone(), hint });
    }
    let Some(start) = values.next() else { return Err(Refusal::NoStart(unit.name.clone())) };
    if values.next().is_some() {
        return Err(Refusal::SeveralStarts(unit.name.clone()));
    }
    let start = StartLine::parse(start);
    if start.is_carried() {
        return Err(Refusal::Carried(unit.name.clone()));
    }
    Ok(start)
}

/// The unit's directory for `bywire run`: its name below `/run`, and its path.
pub fn runtime_directory(unit: &str) -> (String, PathBuf) {
    let stem = unit.strip_suffix(".service").unwrap_or(unit);
    // The loader gives a meaning to some characters of a path, and systemd to others. Two units never have one directory:
    // systemd would remove it with either, and `+` is in no unit's name.
    let mut name = "bywire-".to_owned();
    for letter in stem.chars() {
        match letter.is_ascii_alphanumeric() || "-_.@".contains(letter) {
            true => name.push(letter),
            false => name += &format!("+{:x}", u32::from(letter)),
        }
    }
    let path = Path::new("/run").join(&name);
    (name, path)
}

fn text(unit: &str, original: &[&str], exceptions: &[Exception]) -> String {
    let stem = unit.strip_suffix(".service").unwrap_or(unit);
    let mut text = format!("{MARK} {stem}`. `bywire service remove {stem}` takes it away.\n");
    for value in original {
        text += &format!("{ORIGINAL}{value}\n");
    }
    text += &format!("[Unit]\nWants={PAIRING_UNIT}\nAfter={PAIRING_UNIT}\n\n[Service]\n");
    for exception in exceptions {
        text += &format!("# {}\n{}\n", exception.reason, exception.line);
    }
    text
}

/// The `ExecStart=` that the unit had when this drop-in was made. `None`: the text is not this command's.
pub fn original(text: &str) -> Option<Vec<&str>> {
    text.starts_with(MARK).then(|| text.lines().filter_map(|line| line.strip_prefix(ORIGINAL)).collect())
}

fn notes(unit: &Unit) -> Vec<String> {
    let mut notes = Vec::new();
    let sandbox = &unit.sandbox;
    if sandbox.value("NetworkNamespacePath").is_some() || sandbox.value("JoinsNamespaceOf").is_some() {
        notes.push(
            "the unit is in a network namespace of its own: only connections to programs in it are carried"
                .into(),
        );
    }
    if unit.cluster.as_ref().is_some_and(|cluster| cluster.has_launcher_options) {
        notes.push("the options in pg_ctl.conf have no effect, as pg_ctl does not start the server".into());
    }
    let has_user = sandbox.value("User").is_some_and(|user| user != "root") || sandbox.is_on("DynamicUser");
    // The last digit is what others may do.
    let is_closed =
        sandbox.value("RuntimeDirectoryMode").is_some_and(|mode| !mode.ends_with(['5', '7', '1', '3']));
    if is_closed && !has_user {
        notes.push(
            "RuntimeDirectoryMode= keeps other users out: programs that the service executes as another user stay TCP".into(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::debian_units::{self, UNITS, unit};
    use super::*;

    fn installation() -> Installation {
        Installation {
            command: "/usr/local/bin/bywire".into(),
            library: "/usr/local/lib/bywire/libbywire_sockets.so".into(),
            pairing: "/run/bywire-pairing/socket".into(),
        }
    }

    #[test]
    fn the_units_of_debian_get_their_drop_ins() {
        for (name, _, expected) in UNITS {
            let drop_in = plan(&unit(name), &installation()).expect(name);
            // All lines but those that every unit gets.
            let last = drop_in.exceptions.len() - 2;
            let lines: Vec<&str> =
                drop_in.exceptions[..last].iter().flat_map(|exception| exception.line.lines()).collect();
            assert_eq!(lines, expected, "{name}");
            assert!(drop_in.text.starts_with(MARK), "{name}");
            assert_eq!(original(&drop_in.text).expect("ours").len(), 1, "{name}");
            // systemd reads the text as it is meant.
            let mut whole = unit(name).files;
            whole.read(&drop_in.text);
            let start: Vec<&str> = whole.service.values("ExecStart").collect();
            assert!(start.len() == 1 && StartLine::parse(start[0]).is_carried(), "{name}: {start:?}");
        }
    }

    #[test]
    fn every_unit_has_a_directory_and_the_machines_service() {
        let drop_in = plan(&unit("redis-server.service"), &installation()).expect("a drop-in");
        let end = "RuntimeDirectory=bywire-redis-server\n\
            # The pairing service of the machine carries the connections, whatever user a client has.\n\
            Environment=BYWIRE_RUNTIME_DIR=/run/bywire-redis-server BYWIRE_PAIRING=/run/bywire-pairing/socket\n";
        assert!(drop_in.text.ends_with(end), "{}", drop_in.text);
        assert!(drop_in.text.contains("[Unit]\nWants=bywire-pairing.socket\nAfter=bywire-pairing.socket\n"));
        let harmless: Vec<&str> = drop_in.harmless.iter().map(|(setting, _)| setting.as_str()).collect();
        assert!(harmless.contains(&"PrivateUsers=true") && harmless.contains(&"ProtectProc=invisible"));
        assert_eq!(runtime_directory("postgresql@15-main.service").0, "bywire-postgresql@15-main");
        assert_eq!(runtime_directory("a\\x2db:c.service").1, Path::new("/run/bywire-a+5cx2db+3ac"));
    }

    #[test]
    fn the_page_shows_the_drop_in_of_redis() {
        let page = include_str!("../../../../docs/sockets.md");
        let (_, rest) = page.split_once("```ini\n").expect("a drop-in on the page");
        let drop_in = plan(&unit("redis-server.service"), &installation()).expect("a drop-in");
        assert_eq!(rest.split_once("```").expect("its end").0, drop_in.text);
    }

    #[test]
    fn units_that_start_no_server_are_refused() {
        let refused = |text: &str| {
            let mut files = UnitFile::default();
            files.read(text);
            let sandbox = files.service.clone();
            let unit = Unit { name: "x.service".into(), files, sandbox, cluster: None };
            plan(&unit, &installation()).expect_err(text).to_string()
        };
        for (text, expected) in [
            ("[Service]\nType=oneshot\nExecStart=/bin/true", "starts no program that stays"),
            ("[Service]\nType=simple", "no ExecStart="),
            ("[Service]\nExecStart=/bin/a\nExecStart=/bin/b", "several ExecStart="),
            ("[Service]\nExecStart=/usr/bin/bywire run -- /bin/a", "started by `bywire run` already"),
            ("[Service]\nExecStart=/usr/bin/pg_ctlcluster 15 main start", "environment of its own"),
            ("[Service]\nExecStart=/bin/a\nPrivateNetwork=yes", "PrivateNetwork=yes"),
        ] {
            let said = refused(text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn notes_name_what_stays_tcp() {
        let mut unit = unit("nginx.service");
        unit.sandbox.assign("RuntimeDirectoryMode", "0750");
        unit.sandbox.assign("NetworkNamespacePath", "/run/netns/a");
        let notes = plan(&unit, &installation()).expect("a drop-in").notes;
        assert!(
            notes.len() == 2 && notes[0].contains("namespace") && notes[1].contains("another user"),
            "{notes:?}"
        );
        assert_eq!(original("[Service]\nExecStart=/x\n"), None);
        let mut unit = debian_units::unit("postgresql@15-main.service");
        unit.cluster.as_mut().expect("a cluster").has_launcher_options = true;
        let notes = plan(&unit, &installation()).expect("a drop-in").notes;
        assert!(notes.len() == 1 && notes[0].contains("pg_ctl.conf"), "{notes:?}");
    }
}
