//! Finds a unit, and reads it from systemd, or from its files where systemd does not run.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
            let text = fs::read_to_string(entry.path().join(FILE_NAME)).ok()?;
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
    if let Some(template) = name.strip_suffix("@.service") {
        let instances = instances(template);
        let example = instances.into_iter().next().unwrap_or_else(|| format!("{template}@NAME"));
        return Err(Refusal::Template(typed.to_owned(), example));
    }
    Ok(name)
}

/// Finds a service by what was typed.
///
/// # Errors
/// It cannot have a drop-in.
pub fn find(typed: &str) -> Result<Found> {
    let name = full_name(typed)?;
    if !manager::is_running() {
        return Ok(from_files(&name)?);
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
        if let Ok(text) = fs::read_to_string(path) {
            files.read(&text);
        }
    }
    files
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
    let (version, name) =
        cluster::of_unit(unit).ok_or_else(|| unknown("its name is not postgresql@VERSION-NAME".into()))?;
    let path = cluster::configuration(version, name, "postgresql.conf");
    let text = fs::read_to_string(&path)
        .map_err(|error| unknown(format!("cannot read {}: {error}", path.display())))?;
    let path_of = |name| cluster::setting(&text, name).map(PathBuf::from);
    let data = path_of("data_directory")
        .ok_or_else(|| unknown(format!("{} has no data_directory", path.display())))?;
    let owner = fs::metadata(&data)
        .map_err(|error| unknown(format!("cannot look at {}: {error}", data.display())))?
        .uid();
    let log = PathBuf::from(format!("/var/log/postgresql/postgresql-{version}-{name}.log"));
    let launcher =
        fs::read_to_string(cluster::configuration(version, name, "pg_ctl.conf")).unwrap_or_default();
    Ok(Cluster {
        version: version.to_owned(),
        name: name.to_owned(),
        data,
        user: user_name(owner),
        log: log.is_file().then_some(log),
        language: cluster::setting(&text, "lc_messages").map(str::to_owned),
        statistics: path_of("stats_temp_directory"),
        has_launcher_options: cluster::setting(&launcher, "pg_ctl_options").is_some(),
    })
}

/// The name of a local user, or the number.
fn user_name(number: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| number.to_string())
}

/// Checks that every user can execute the command and map the library.
///
/// # Errors
/// A user cannot.
pub fn check_installation(installation: &Installation) -> Result<(), Refusal> {
    for (file, wanted) in [(&installation.command, 0o1), (&installation.library, 0o4)] {
        for place in file.ancestors() {
            let wanted = if place == file { wanted } else { 0o1 };
            let mode = fs::metadata(place).map_or(0, |found| found.permissions().mode());
            if mode & wanted == 0 {
                return Err(Refusal::Unreadable(place.display().to_string()));
            }
        }
    }
    match preload_probe::map_code(&installation.library) {
        Err(Errno::PERM) => Err(Refusal::NoExec(installation.library.display().to_string())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
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
        ] {
            let refused = full_name(typed).expect_err(typed).to_string();
            assert!(refused.contains(expected), "{typed}: {refused}");
        }
        assert!(hint("no-such-service-anywhere").contains("list-unit-files"));
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
    fn a_private_installation_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str| directory.path().join(name);
        for name in ["bywire", "library"] {
            fs::write(place(name), "x").expect("written");
            fs::set_permissions(place(name), fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        let installation =
            Installation { command: place("bywire"), library: place("library"), pairing: "/run/x".into() };
        // The directory is of this user alone.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
        let refused = check_installation(&installation).expect_err("private").to_string();
        assert!(refused.contains("install Bywire where every user can"), "{refused}");
        assert_eq!(user_name(0), "root");
    }
}
