//! The units of systemd that are started by `bywire run`, and whether their processes have the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The end of a mapped file's path that marks the library.
const LIBRARY: &str = "/libbywire_sockets.so";

/// A unit that is running.
#[derive(Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its name.
    pub name: String,
    /// Whether a process of it has loaded the library.
    pub loaded: Loaded,
}

/// Whether a process has loaded the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// One has.
    Yes,
    /// None has.
    No,
    /// This user may not look at all of them.
    Unknown,
}

/// The running units whose program is started by `bywire run`; `None`: systemd does not answer here.
pub fn find() -> Option<Vec<Unit>> {
    let mut show = Command::new("systemctl");
    show.args(["show", "--type=service", "--state=active", "--property=Id,ExecStart,ControlGroup", "*"]);
    let shown = show.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let groups = shown.status.success().then(|| carried_groups(&String::from_utf8_lossy(&shown.stdout)))?;
    let is_loaded = |group: &str| loaded_in(group, Path::new("/proc"));
    Some(groups.into_iter().map(|(name, group)| Unit { name, loaded: is_loaded(&group) }).collect())
}

/// The names and control groups of units whose `ExecStart` is `bywire run`, from what `systemctl show` prints: a paragraph
/// for each unit.
fn carried_groups(shown: &str) -> Vec<(String, String)> {
    let group_of = |paragraph: &str| {
        let value = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name));
        let (name, group) = (value("Id=")?, value("ControlGroup=")?);
        let is_carried = paragraph.lines().any(|line| {
            line.starts_with("ExecStart=") && (line.contains("/bywire run ") || line.contains("=bywire run "))
        });
        (is_carried && !group.is_empty()).then(|| (name.to_owned(), group.to_owned()))
    };
    shown.split("\n\n").filter_map(group_of).collect()
}

/// Whether a process of this control group has loaded the library.
fn loaded_in(group: &str, processes: &Path) -> Loaded {
    let mut loaded = Loaded::No;
    for process in of_group(group, processes) {
        match has_loaded(&process) {
            Loaded::Yes => return Loaded::Yes,
            Loaded::No => {}
            Loaded::Unknown => loaded = Loaded::Unknown,
        }
    }
    loaded
}

/// The directories of the processes in a control group and those inside it. `processes` is `/proc`.
pub fn of_group(group: &str, processes: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(processes).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_of_group = |process: &PathBuf| {
        let groups = fs::read_to_string(process.join("cgroup"));
        groups.is_ok_and(|groups| groups.lines().any(|line| is_within(line, group)))
    };
    all.filter(is_of_group).collect()
}

/// Whether one process has loaded the library, by its directory in `/proc`.
pub fn has_loaded(process: &Path) -> Loaded {
    match fs::read(process.join("maps")) {
        Ok(maps) if maps.split(|byte| *byte == b'\n').any(is_of_library) => Loaded::Yes,
        Ok(_) => Loaded::No,
        // It may have ended meanwhile. Otherwise it is another user's.
        Err(_) if !process.exists() => Loaded::No,
        Err(_) => Loaded::Unknown,
    }
}

/// Returns whether a line of a process's `maps` file is about the library. An upgrade of Bywire has removed the file that the
/// processes before it have mapped.
fn is_of_library(line: &[u8]) -> bool {
    line.strip_suffix(b" (deleted)").unwrap_or(line).ends_with(LIBRARY.as_bytes())
}

/// Returns whether a line of a process's `cgroup` file, `NUMBER:CONTROLLERS:GROUP`, names this group or one inside it.
fn is_within(line: &str, group: &str) -> bool {
    let named = line.splitn(3, ':').nth(2).and_then(|named| named.strip_prefix(group));
    named.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_bywire_run_are_found() {
        let shown = "\
ExecStart={ path=/usr/local/bin/bywire ; argv[]=/usr/local/bin/bywire run -- /usr/bin/redis-server ; pid=7 }
Id=redis-server.service
ControlGroup=/system.slice/redis-server.service

ExecStart={ path=/usr/sbin/nginx ; argv[]=/usr/sbin/nginx ; pid=8 }
Id=nginx.service
ControlGroup=/system.slice/nginx.service

ExecStart={ path=/usr/local/bin/bywire ; argv[]=/usr/local/bin/bywire pair ; pid=9 }
Id=bywire-pairing.service
ControlGroup=/system.slice/bywire-pairing.service
";
        let expected = ("redis-server.service".to_owned(), "/system.slice/redis-server.service".to_owned());
        assert_eq!(carried_groups(shown), [expected]);
    }

    #[test]
    fn the_library_is_looked_for_in_the_processes_of_the_unit_alone() {
        let processes = tempfile::tempdir().expect("a directory");
        let add = |number: &str, group: &str, map: &str| {
            let process = processes.path().join(number);
            fs::create_dir(&process).expect("made");
            fs::write(process.join("cgroup"), format!("1:name=systemd:{group}\n0::{group}\n"))
                .expect("written");
            fs::write(process.join("maps"), format!("7f00-7f01 r-xp 0 0:0 1   {map}\n")).expect("written");
        };
        let loaded = || loaded_in("/system.slice/web.service", processes.path());
        add("1", "/system.slice/web.service", "/usr/lib/libc.so.6");
        add("2", "/system.slice/web.service.other", "/usr/local/lib/bywire/libbywire_sockets.so");
        assert_eq!(loaded(), Loaded::No);
        add("3", "/system.slice/web.service/inner", "/usr/local/lib/bywire/libbywire_sockets.so");
        assert_eq!(loaded(), Loaded::Yes);
        fs::remove_dir_all(processes.path().join("3")).expect("ended");
        assert_eq!(loaded(), Loaded::No);
        add("4", "/system.slice/web.service", "/usr/local/lib/bywire/libbywire_sockets.so (deleted)");
        assert_eq!(loaded(), Loaded::Yes);
        // A file whose name is not UTF-8 hides no other.
        let mut maps = b"7f00-7f01 r-xp 0 0:0 1   /tmp/\xff\n".to_vec();
        maps.extend(b"7f00-7f01 r-xp 0 0:0 1   /usr/lib/libbywire_sockets.so\n");
        fs::write(processes.path().join("4/maps"), maps).expect("written");
        assert_eq!(loaded(), Loaded::Yes);
    }
}
