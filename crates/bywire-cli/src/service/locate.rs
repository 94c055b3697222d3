//! Finds a unit, and reads it from systemd, or from its files where systemd does not run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use bywire_sys::Errno;
use bywire_sys::preload_probe;

use super::cluster::{self, Cluster};
use super::drop_in::{FILE_NAME, MARK, Unit};
use super::manager;
use super::refusal::Refusal;
use super::sandbox::Installation;
use super::settings::Settings;
use super::unit_file::UnitFile;

/// The directories of units, the first one that has a name counts.
const DIRECTORIES: [&str; 8] = [
    "/etc/systemd/system",
    "/run/systemd/transient",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];
/// The properties that decide whether a unit can have a drop-in, and those of its sandbox.
const PROPERTIES: &str = "Id,LoadState,LoadError,FragmentPath,SourcePath,DropInPaths,User,DynamicUser,RuntimeDirectoryMode,\
    RootDirectory,RootImage,TemporaryFileSystem,InaccessiblePaths,ExecPaths,NoExecPaths,ProtectHome,PrivateTmp,PrivateNetwork,\
    NetworkNamespacePath,JoinsNamespaceOf,RestrictAddressFamilies,SystemCallFilter,SystemCallArchitectures,UnsetEnvironment,\
    MemoryDenyWriteExecute,PrivateUsers,ProtectProc,NoNewPrivileges,RestrictNamespaces,RestrictSUIDSGID,LockPersonality,\
    PrivateDevices,ProtectKernelTunables";
/// The longest name of a unit that a directory for drop-ins can have, with `.d` behind it.
const UNIT_NAME_MAX: usize = 253;
/// The most names that a hint has.
const HINTS_MAX: usize = 5;

/// A unit that was found.
#[derive(Debug)]
pub struct Found {
    /// The unit as it is without the drop-in.
    pub unit: Unit,
    /// Its own file.
    pub fragment: PathBuf,
    /// Its sandbox is systemd's account. Otherwise it was read from the files.
    pub is_shown: bool,
}

impl Found {
    /// The path of the drop-in.
    pub fn drop_in(&self) -> PathBuf {
        drop_in_path(&self.unit.name)
    }
}

/// The path of a unit's drop-in.
pub fn drop_in_path(unit: &str) -> PathBuf {
    Path::new(DIRECTORIES[0]).join(format!("{unit}.d")).join(FILE_NAME)
}

/// The drop-ins of this command: the units' names and the texts.
pub fn drop_ins() -> Vec<(String, String)> {
    let entries = fs::read_dir(DIRECTORIES[0]).into_iter().flatten().flatten();
    let mut found: Vec<(String, String)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?.strip_suffix(".d")?.to_owned();
            let path = entry.path().join(FILE_NAME);
            // Opening a pipe would wait for its writer.
            let is_file = is_unit_name(&name) && fs::metadata(&path).is_ok_and(|found| found.is_file());
            let text = is_file.then(|| fs::read_to_string(path).ok()).flatten()?;
            text.starts_with(MARK).then_some((name, text))
        })
        .collect();
    found.sort();
    found
}

/// The full name of a service, from what was typed.
///
/// # Errors
/// It is no service, or a template.
pub fn full_name(typed: &str) -> Result<String, Refusal> {
    let others = [".socket", ".timer", ".target", ".mount", ".path", ".slice", ".device", ".scope", ".swap"];
    if others.iter().any(|end| typed.ends_with(end)) || typed.contains('/') || typed.starts_with('-') {
        return Err(Refusal::NoService(typed.to_owned()));
    }
    let name = if typed.ends_with(".service") { typed.to_owned() } else { format!("{typed}.service") };
    if !is_unit_name(&name) {
        return Err(Refusal::NoName(typed.to_owned()));
    }
    if let Some(template) = name.strip_suffix("@.service") {
        let instances = instances(template);
        let example = instances.into_iter().next().unwrap_or_else(|| format!("{template}@NAME"));
        return Err(Refusal::Template(typed.to_owned(), example));
    }
    Ok(name)
}

/// Returns whether systemd allows all characters of a unit's name. Others would be patterns for `systemctl`.
fn is_unit_name(name: &str) -> bool {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || ":-_.\\@".contains(letter);
    name.len() <= UNIT_NAME_MAX && name.chars().all(is_allowed)
}

/// Finds a service by what was typed.
///
/// # Errors
/// It cannot have a drop-in.
pub fn find(typed: &str) -> Result<Found> {
    let name = full_name(typed)?;
    if !manager::is_running() {
        return from_files(&name);
    }
    let shown = manager::show(&name, PROPERTIES)?;
    let name = shown.value("Id").unwrap_or(&name).to_owned();
    match shown.value("LoadState") {
        Some("loaded") => {}
        Some("masked") => return Err(Refusal::Masked(name).into()),
        Some("not-found") | None => return Err(Refusal::Absent { hint: hint(&name), name }.into()),
        Some(other) => {
            let cause = shown.value("LoadError").unwrap_or(other).to_owned();
            return Err(Refusal::Broken { name, cause }.into());
        }
    }
    let fragment = PathBuf::from(shown.value("FragmentPath").unwrap_or_default());
    check_origin(&name, &fragment, shown.value("SourcePath"))?;
    let own = drop_in_path(&name);
    let drop_ins: Vec<PathBuf> = shown.words("DropInPaths").map(PathBuf::from).collect();
    let files = read(&fragment, drop_ins.iter().filter(|path| **path != own));
    // systemd's account contains the drop-in that is there already.
    let is_shown = !drop_ins.contains(&own);
    let sandbox = if is_shown { shown } else { files.service.clone() };
    finished(name, files, sandbox, fragment, is_shown)
}

/// Finds a service by its files alone.
fn from_files(name: &str) -> Result<Found> {
    let template = name.split_once('@').map(|(stem, _)| format!("{stem}@.service"));
    let names: Vec<&str> = [Some(name), template.as_deref()].into_iter().flatten().collect();
    let paths = names.iter().flat_map(|name| DIRECTORIES.map(|directory| Path::new(directory).join(name)));
    let Some(path) = paths.into_iter().find(|path| fs::symlink_metadata(path).is_ok()) else {
        return Err(Refusal::Absent { name: name.to_owned(), hint: hint(name) }.into());
    };
    let fragment = fs::canonicalize(&path).unwrap_or(path);
    if fragment == Path::new("/dev/null") || fs::metadata(&fragment).is_ok_and(|found| found.len() == 0) {
        return Err(Refusal::Masked(name.to_owned()).into());
    }
    // An alias is a link to the file of another name.
    let target = fragment.file_name().and_then(|name| name.to_str()).unwrap_or(name);
    if !names.contains(&target) {
        return from_files(target);
    }
    check_origin(name, &fragment, None)?;
    let own = drop_in_path(name);
    let drop_ins = names.iter().rev().chain([&"service"]).flat_map(|name| {
        DIRECTORIES.into_iter().rev().flat_map(move |directory| {
            let entries = fs::read_dir(Path::new(directory).join(format!("{name}.d")));
            let mut paths: Vec<PathBuf> =
                entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            paths.retain(|path| path.extension().is_some_and(|end| end == "conf"));
            paths.sort();
            paths
        })
    });
    let drop_ins: Vec<PathBuf> = drop_ins.filter(|path| *path != own).collect();
    let files = read(&fragment, drop_ins.iter());
    let sandbox = files.service.clone();
    finished(name.to_owned(), files, sandbox, fragment, false)
}

fn finished(
    name: String,
    files: UnitFile,
    sandbox: Settings,
    fragment: PathBuf,
    is_shown: bool,
) -> Result<Found> {
    if files.service.value("Type") == Some("oneshot") {
        let stem = name.strip_suffix(".service").unwrap_or(&name);
        let instances = instances(stem);
        let hint = match instances.is_empty() {
            true => "name the unit of the server itself".to_owned(),
            false => format!("its servers are {}", instances.join(", ")),
        };
        return Err(Refusal::Oneshot { name, hint }.into());
    }
    let is_launched = files.service.value("ExecStart").is_some_and(|start| start.contains(cluster::LAUNCHER));
    let cluster = if is_launched { Some(cluster_of(&name)?) } else { None };
    Ok(Found { unit: Unit { name, files, sandbox, cluster }, fragment, is_shown })
}

/// Refuses units that no file of an administrator or a package describes.
fn check_origin(name: &str, fragment: &Path, source: Option<&str>) -> Result<(), Refusal> {
    if fragment.starts_with("/run/systemd/transient") {
        return Err(Refusal::Transient(name.to_owned()));
    }
    let generated = ["/run/systemd/generator", "/run/systemd/generator.late", "/run/systemd/generator.early"];
    if generated.iter().any(|directory| fragment.starts_with(directory)) {
        let source = source.map_or_else(|| fragment.display().to_string(), str::to_owned);
        return Err(Refusal::Generated { name: name.to_owned(), source_file: source });
    }
    Ok(())
}

fn read<'a>(fragment: &'a Path, drop_ins: impl Iterator<Item = &'a PathBuf>) -> UnitFile {
    let mut files = UnitFile::default();
    for path in [fragment].into_iter().chain(drop_ins.map(PathBuf::as_path)) {
        if let Ok(bytes) = fs::read(path) {
            files.read(&readable(&bytes));
        }
    }
    files
}

/// The lines of a file that are text. systemd ignores others, too.
fn readable(bytes: &[u8]) -> String {
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    lines.collect::<Vec<_>>().join("\n")
}

/// The instances of a template that are loaded.
fn instances(stem: &str) -> Vec<String> {
    if manager::is_running() { manager::loaded(&format!("{stem}@*.service")) } else { Vec::new() }
}

/// Names of units that have all parts of a name, such as `php8.2-fpm` for `php-fpm`.
fn hint(name: &str) -> String {
    let stem = name.strip_suffix(".service").unwrap_or(name);
    let parts: Vec<&str> =
        stem.split(|letter: char| !letter.is_ascii_alphabetic()).filter(|part| !part.is_empty()).collect();
    let entries =
        DIRECTORIES.iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut alike: Vec<String> = names
        .filter(|name| name.ends_with(".service") && parts.iter().all(|part| name.contains(part)))
        .collect();
    alike.sort();
    alike.dedup();
    alike.truncate(HINTS_MAX);
    if alike.is_empty() || parts.is_empty() {
        return "`systemctl list-unit-files --type=service` shows the names, once its package is installed"
            .to_owned();
    }
    format!("is it {}?", alike.join(" or "))
}

fn cluster_of(unit: &str) -> Result<Cluster, Refusal> {
    let unknown = |cause: String| Refusal::Cluster { unit: unit.to_owned(), cause };
    let (version, name) = cluster::of_unit(unit).ok_or_else(|| {
        unknown(
            "its name is not postgresql@VERSION-NAME with letters, digits, dots, hyphens and underscores"
                .into(),
        )
    })?;
    let path = cluster::configuration(version, name, "postgresql.conf");
    let text = fs::read_to_string(&path)
        .map_err(|error| unknown(format!("cannot read {}: {error}", path.display())))?;
    // The cluster's user may write the file, and names what root looks at and executes for it.
    let path_of = |name| cluster::setting(&text, name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = path_of("data_directory")
        .ok_or_else(|| unknown(format!("{} has no data_directory with an absolute path", path.display())))?;
    let owner_of = |path: &Path| {
        let found = fs::metadata(path);
        found
            .map(|found| found.uid())
            .map_err(|error| unknown(format!("cannot look at {}: {error}", path.display())))
    };
    let (owner, author) = (owner_of(&data)?, owner_of(&path)?);
    if let Some(cause) = cluster::distrust(owner, author) {
        return Err(unknown(format!("{} of {} {cause}", data.display(), path.display())));
    }
    let log = PathBuf::from(format!("/var/log/postgresql/postgresql-{version}-{name}.log"));
    let launcher =
        fs::read_to_string(cluster::configuration(version, name, "pg_ctl.conf")).unwrap_or_default();
    Ok(Cluster {
        version: version.to_owned(),
        name: name.to_owned(),
        data,
        user: user_name(owner),
        log: log.is_file().then_some(log),
        language: cluster::setting(&text, "lc_messages")
            .filter(|name| cluster::is_locale(name))
            .map(str::to_owned),
        statistics: path_of("stats_temp_directory"),
        has_launcher_options: cluster::setting(&launcher, "pg_ctl_options").is_some(),
    })
}

/// The name of a local user, or the number.
fn user_name(number: u32) -> String {
    name_in("/etc/passwd", number)
}

/// The name that a file of users or groups has for a number, or the number.
fn name_in(file: &str, number: u32) -> String {
    let entries = fs::read_to_string(file).unwrap_or_default();
    let found = entries.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| number.to_string())
}

/// Checks that root alone can change the command and the library, and that every user can use them if `is_for_others`.
///
/// # Errors
/// A user can change them, or cannot use them.
pub fn check_installation(installation: &Installation, is_for_others: bool) -> Result<(), Refusal> {
    for (file, wanted) in [(&installation.command, 0o1), (&installation.library, 0o4)] {
        // systemd follows links, too.
        let file = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
        for place in file.ancestors() {
            let path = || place.display().to_string();
            let Ok(found) = fs::metadata(place) else { return Err(Refusal::Unreadable(path())) };
            if let Some(whom) = changers(&found) {
                return Err(Refusal::Changeable { path: path(), whom });
            }
            let wanted = if place == file { wanted } else { 0o1 };
            if is_for_others && found.mode() & wanted == 0 {
                return Err(Refusal::Unreadable(path()));
            }
        }
    }
    match preload_probe::map_code(&installation.library) {
        Err(Errno::PERM) => Err(Refusal::NoExec(installation.library.display().to_string())),
        _ => Ok(()),
    }
}

/// The users that can change a file or a directory, apart from root and those that Debian trusts with `/usr/local`.
fn changers(found: &fs::Metadata) -> Option<String> {
    let mode = found.mode();
    if found.uid() != 0 {
        return Some(format!("user {}", user_name(found.uid())));
    }
    // In a sticky directory nobody changes what is another user's.
    if found.is_dir() && mode & 0o1000 != 0 {
        return None;
    }
    if mode & 0o002 != 0 {
        return Some("every user".to_owned());
    }
    let group = name_in("/etc/group", found.gid());
    let is_trusted = ["root", "staff"].contains(&group.as_str());
    (mode & 0o020 != 0 && !is_trusted).then(|| format!("group {group}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn names_are_completed_and_others_than_services_refused() {
        assert_eq!(full_name("redis-server").expect("a service"), "redis-server.service");
        assert_eq!(full_name("a@b.service").expect("an instance"), "a@b.service");
        for (typed, expected) in [
            ("redis.socket", "is no service"),
            ("../redis", "is no service"),
            ("--force", "is no service"),
            ("no-such@", "name one of its instances"),
            ("redis*", "is no name of a unit"),
            ("redis server", "`systemd-escape`"),
            ("redis\n", "is no name of a unit"),
            ("rédis", "is no name of a unit"),
            (&"a".repeat(260), "is no name of a unit"),
        ] {
            let refused = full_name(typed).expect_err(typed).to_string();
            assert!(refused.contains(expected), "{typed}: {refused}");
        }
        assert_eq!(full_name("a\\x2db:c").expect("escaped"), "a\\x2db:c.service");
        assert!(hint("no-such-service-anywhere").contains("list-unit-files"));
        assert_eq!(readable(b"[Service]\n# \xe4\nExecStart=/x"), "[Service]\nExecStart=/x");
    }

    #[test]
    fn units_of_generators_and_of_one_run_are_refused() {
        let origin = |path: &str| check_origin("x.service", Path::new(path), Some("/etc/init.d/x"));
        let generated = origin("/run/systemd/generator.late/x.service").expect_err("generated").to_string();
        assert!(generated.contains("made from /etc/init.d/x by a generator"), "{generated}");
        assert!(origin("/run/systemd/transient/x.service").is_err());
        assert!(origin("/usr/lib/systemd/system/x.service").is_ok());
    }

    #[test]
    fn an_installation_that_is_private_or_not_roots_alone_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str| directory.path().join(name);
        for name in ["bywire", "library"] {
            fs::write(place(name), "x").expect("written");
            fs::set_permissions(place(name), fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        let installation =
            Installation { command: place("bywire"), library: place("library"), pairing: "/run/x".into() };
        let refused = |is_for_others| {
            check_installation(&installation, is_for_others)
                .map_or_else(|refused| refused.to_string(), |()| String::new())
        };
        assert_eq!(user_name(0), "root");
        if !rustix::process::geteuid().is_root() {
            assert!(refused(false).contains("can be changed by user"), "{}", refused(false));
            return println!("not run: an installation of root: this user cannot make one");
        }
        // The directory is of this user alone.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
        assert!(refused(true).contains("install Bywire where every user can"), "{}", refused(true));
        assert_eq!(refused(false), "");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let chown = |user, group| std::os::unix::fs::chown(place("library"), user, group).expect("chown");
        chown(Some(65534), None);
        assert!(refused(true).contains("can be changed by user nobody"), "{}", refused(true));
        chown(Some(0), Some(65534));
        fs::set_permissions(place("library"), fs::Permissions::from_mode(0o775)).expect("chmod");
        assert!(refused(true).contains("can be changed by group"), "{}", refused(true));
        fs::set_permissions(place("library"), fs::Permissions::from_mode(0o757)).expect("chmod");
        assert!(refused(true).contains("can be changed by every user"), "{}", refused(true));
    }
}
