//! The memory that the machine and the control groups leave to this process.

use crate::os::small_file::{self, number};

/// Where a version of control groups keeps its numbers.
struct Version {
    /// The folder of all groups.
    folder: &'static [u8],
    /// The file with a group's limit.
    limit: &'static [u8],
    /// The file with what the group uses.
    used: &'static [u8],
    /// In `memory.stat`: pages of files, which are used and which the kernel takes back.
    files: [&'static [u8]; 2],
}

static FIRST: Version = Version {
    folder: b"/sys/fs/cgroup/memory",
    limit: b"/memory.limit_in_bytes",
    used: b"/memory.usage_in_bytes",
    files: [b"total_inactive_file ", b"total_active_file "],
};

static SECOND: Version = Version {
    folder: b"/sys/fs/cgroup",
    limit: b"/memory.max",
    used: b"/memory.current",
    files: [b"inactive_file ", b"active_file "],
};

/// The room for a line of `/proc/self/cgroup`, with a path that is not too long for [`small_file`]. Version 1 has a line for
/// each of its dozen controllers.
const LINE_BYTES: usize = 640;
/// The first version reports about this many bytes if there is no limit.
const UNLIMITED: u64 = 1 << 60;

/// The bytes that the machine has available, or that the control group may have if that is less. `None`: unknown.
pub fn bytes() -> Option<u64> {
    bytes_below(b"")
}

/// The bytes that are left now, to this process and to all others with which it shares them. `None`: unknown.
pub fn left() -> Option<u64> {
    left_below(b"")
}

// One function after the other, here and below: a thread of the program may have little stack. `root` is where the
// files of the kernel are.

fn bytes_below(root: &[u8]) -> Option<u64> {
    [of_machine(root), of_groups(root, limit)].into_iter().flatten().min()
}

fn left_below(root: &[u8]) -> Option<u64> {
    [of_machine(root), of_groups(root, left_in)].into_iter().flatten().min()
}

#[inline(never)]
fn of_machine(root: &[u8]) -> Option<u64> {
    value(small_file::read(&[root, b"/proc/meminfo"], &mut [0; 256])?, b"MemAvailable:")?.checked_mul(1024)
}

/// The least of what `of_group` says of this process's groups and of the groups around them.
#[inline(never)]
fn of_groups(root: &[u8], of_group: fn(&[u8], &Version, &[u8]) -> Option<u64>) -> Option<u64> {
    let least_of = |line: &[u8]| {
        let (version, mut group) = named(line)?;
        let mut least = None;
        loop {
            least = [least, of_group(root, version, group)].into_iter().flatten().min();
            // The group itself is out of sight in some containers; what they see as the root is their own.
            match group.iter().rposition(|byte| *byte == b'/') {
                Some(end) => group = group.get(..end)?,
                None => return least,
            }
        }
    };
    let mut least = None;
    small_file::each_line(&[root, b"/proc/self/cgroup"], &mut [0; LINE_BYTES], |line| {
        least = [least, least_of(line)].into_iter().flatten().min();
    })?;
    least
}

/// The group that a line of `/proc/self/cgroup` names, if it is one that limits memory.
fn named(line: &[u8]) -> Option<(&'static Version, &[u8])> {
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let is_first = controllers.split(|byte| *byte == b',').any(|controller| controller == b"memory");
    let version = match (number, controllers) {
        (b"0", b"") => &SECOND,
        _ if is_first => &FIRST,
        _ => return None,
    };
    Some((version, group.strip_suffix(b"/").unwrap_or(group)))
}

fn limit(root: &[u8], version: &Version, group: &[u8]) -> Option<u64> {
    small_number(&[root, version.folder, group, version.limit]).filter(|limit| *limit < UNLIMITED)
}

/// What is left of the limit of a group. What the kernel would take back counts as left.
fn left_in(root: &[u8], version: &Version, group: &[u8]) -> Option<u64> {
    let limit = limit(root, version, group)?;
    let used = small_number(&[root, version.folder, group, version.used])?;
    Some(limit.saturating_sub(used.saturating_sub(of_files(root, version, group))))
}

#[inline(never)]
fn of_files(root: &[u8], version: &Version, group: &[u8]) -> u64 {
    let mut text = [0; 1536];
    let path = [root, version.folder, group, b"/memory.stat"];
    let Some(text) = small_file::read(&path, &mut text) else { return 0 };
    version.files.iter().filter_map(|name| value(text, name)).sum()
}

#[inline(never)]
fn small_number(path: &[&[u8]]) -> Option<u64> {
    small_file::read(path, &mut [0; 32]).and_then(number)
}

/// The number in the line that begins with `name`.
fn value(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    number(line.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn numbers_are_found_by_the_names_of_their_lines() {
        let text = b"MemTotal:       24 kB\nMemFree: 1 kB\nMemAvailable:   12 kB\n";
        assert_eq!(value(text, b"MemAvailable:"), Some(12));
        assert_eq!(value(b"MemTotal: 24 kB", b"MemAvailable:"), None);
        // One name is the end of another one.
        assert_eq!(value(b"inactive_file 1\nactive_file 2\n", b"active_file "), Some(2));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(bytes().is_some_and(|bytes| bytes > MIB));
        assert!(left().is_some_and(|left| left > MIB));
    }

    #[test]
    fn lines_name_the_groups_that_limit_memory() {
        let group =
            |line: &'static str| named(line.as_bytes()).map(|(version, group)| (version.limit, group));
        assert_eq!(group("0::/user.slice/one.scope"), Some((SECOND.limit, &b"/user.slice/one.scope"[..])));
        assert_eq!(group("4:memory:/docker/one"), Some((FIRST.limit, &b"/docker/one"[..])));
        assert_eq!(group("5:cpu,memory:/"), Some((FIRST.limit, &b""[..])));
        // A name may contain anything.
        assert_eq!(group("0::/a:memory:b"), Some((SECOND.limit, &b"/a:memory:b"[..])));
        for line in ["10:memory_like:/", "1:name=systemd:/", "10::/", "", "0:", "0:cpu:/"] {
            assert_eq!(group(line), None, "{line}");
        }
    }

    /// The files of a made-up machine, which has this much available.
    fn machine(available_mib: u64, groups: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("proc/meminfo", &format!("MemTotal: 1 kB\nMemAvailable: {} kB\n", available_mib << 10));
        write("proc/self/cgroup", groups);
        files.iter().for_each(|(path, text)| write(&format!("sys/fs/cgroup/{path}"), text));
        root
    }

    fn found(root: &Path) -> [Option<u64>; 2] {
        let root = root.as_os_str().as_bytes();
        [bytes_below(root), left_below(root)].map(|bytes| bytes.map(|bytes| bytes / MIB))
    }

    fn bytes_of(mib: u64) -> String {
        format!("{}\n", mib * MIB)
    }

    #[test]
    fn the_least_limit_around_a_group_of_the_second_version_holds() {
        let stat = format!("anon 5\ninactive_file {}\nactive_file {}\n", 100 * MIB, 20 * MIB);
        let root = machine(
            10_000,
            "0::/web.slice/nginx.service\n",
            &[
                ("web.slice/nginx.service/memory.max", "max\n"),
                ("web.slice/nginx.service/memory.current", &bytes_of(1)),
                ("web.slice/memory.max", &bytes_of(1000)),
                ("web.slice/memory.current", &bytes_of(700)),
                ("web.slice/memory.stat", &stat),
            ],
        );
        assert_eq!(found(root.path()), [Some(1000), Some(1000 - 700 + 120)]);
        // Without an account of files, all that is used counts.
        fs::remove_file(root.path().join("sys/fs/cgroup/web.slice/memory.stat")).expect("removed");
        assert_eq!(found(root.path()), [Some(1000), Some(300)]);
        // A group that is over its limit.
        fs::write(root.path().join("sys/fs/cgroup/web.slice/memory.current"), bytes_of(2000))
            .expect("written");
        assert_eq!(found(root.path()), [Some(1000), Some(0)]);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let root = machine(
            10_000,
            "0::/\n",
            &[("memory.max", &bytes_of(64)), ("memory.current", &bytes_of(24)), ("memory.stat", "anon 1\n")],
        );
        assert_eq!(found(root.path()), [Some(64), Some(40)]);
        // Its name outside may be the one that is reported.
        fs::write(root.path().join("proc/self/cgroup"), "0::/../out/of/sight\n").expect("written");
        assert_eq!(found(root.path()), [Some(64), Some(40)]);
    }

    #[test]
    fn groups_of_the_first_version_and_of_both_are_found() {
        let stat = format!("inactive_file 7\ntotal_inactive_file {}\ntotal_active_file {}\n", 10 * MIB, MIB);
        let files = [
            ("memory/docker/one/memory.limit_in_bytes", &bytes_of(128)[..]),
            ("memory/docker/one/memory.usage_in_bytes", &bytes_of(100)),
            ("memory/docker/one/memory.stat", &stat),
            ("memory/docker/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/docker/memory.usage_in_bytes", &bytes_of(9000)),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        for groups in
            ["4:memory:/docker/one\n1:cpu:/\n", "9:name=systemd:/\n4:memory:/docker/one\n0::/docker\n"]
        {
            let root = machine(10_000, groups, &files);
            assert_eq!(found(root.path()), [Some(128), Some(39)], "{groups}");
        }
    }

    #[test]
    fn the_group_is_found_behind_long_lines_of_other_controllers() {
        let pod = format!("kubepods/burstable/pod{}/{}", "1".repeat(36), "2".repeat(64));
        let others: String = (2..14).map(|number| format!("{number}:c{number}:/{pod}\n")).collect();
        let file = |name: &str| format!("memory/{pod}/memory.{name}");
        let [limit, used] = ["limit_in_bytes", "usage_in_bytes"].map(file);
        let files = [(&limit[..], &bytes_of(64)[..]), (&used, &bytes_of(24))];
        let root = machine(10_000, &format!("{others}1:memory:/{pod}\n"), &files);
        assert_eq!(found(root.path()), [Some(64), Some(40)]);
    }

    #[test]
    fn without_limits_it_is_what_the_machine_has() {
        let unlimited = [("memory/memory.limit_in_bytes", "9223372036854771712\n")];
        for groups in ["4:memory:/\n0::/\n", "0::/\n", ""] {
            let root = machine(500, groups, &unlimited);
            assert_eq!(found(root.path()), [Some(500), Some(500)], "{groups}");
        }
        // A limit beyond what the machine has.
        let root =
            machine(500, "0::/\n", &[("memory.max", &bytes_of(900)), ("memory.current", &bytes_of(1))]);
        assert_eq!(found(root.path()), [Some(500), Some(500)]);
        fs::remove_dir_all(root.path().join("proc")).expect("removed");
        assert_eq!(found(root.path()), [None, None]);
    }
}
