//! Exceptions from the sandbox of a unit, without which the library would not work there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::refusal::Refusal;
use super::settings::Settings;
use super::start_line::setting_word;

/// Names the unit's directory for `bywire run`.
pub const DIRECTORY_VARIABLE: &str = "BYWIRE_RUNTIME_DIR";

/// The system calls that the library makes beside those of any server. docs/sockets.md lists them.
const CALLS: [&str; 33] = [
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "eventfd2",
    "fallocate",
    "ftruncate",
    "futex",
    "futex_waitv",
    "getcpu",
    "getpid",
    "getppid",
    "gettid",
    "kill",
    "madvise",
    "memfd_create",
    "mkdir",
    "mmap",
    "munmap",
    "pipe2",
    "poll",
    "ppoll",
    "prlimit64",
    "recvmsg",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_tgsigqueueinfo",
    "sched_yield",
    "sendmsg",
    "socket",
    // Those of `bywire run` itself.
    "execve",
    "symlink",
    "statfs",
];

/// Sets of system calls that contain all of [`CALLS`].
const SUFFICIENT_SETS: [&str; 2] = ["@system-service", "@known"];

/// Settings that do no harm to the library, and why.
const HARMLESS: [(&str, &str); 10] = [
    ("MemoryDenyWriteExecute", "the library makes no memory both writable and executable"),
    (
        "PrivateUsers",
        "root and the unit's own user, the only ones whose service it trusts, are the same inside",
    ),
    ("ProtectProc", "the library looks at processes of its own user only"),
    ("NoNewPrivileges", "the library needs no right that it does not start with"),
    ("RestrictNamespaces", "the library makes no namespace"),
    ("RestrictSUIDSGID", "the library makes no such file"),
    ("LockPersonality", "the library does not change it"),
    ("PrivateDevices", "the library opens no device"),
    ("ProtectKernelTunables", "the library only reads limits of the kernel"),
    ("DynamicUser", "RuntimeDirectory= belongs to the user that systemd makes"),
];

/// The files of Bywire that a unit has to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The command `bywire`.
    pub command: PathBuf,
    /// The preloaded library.
    pub library: PathBuf,
    /// The socket of the machine's pairing service.
    pub pairing: PathBuf,
}

/// One setting of the drop-in, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The line of the drop-in.
    pub line: String,
    /// One sentence.
    pub reason: String,
}

impl Exception {
    /// A line with its reason.
    pub fn new(line: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { line: line.into(), reason: reason.into() }
    }
}

/// The exceptions that a unit needs. `runtime` is its directory for `bywire run`.
///
/// # Errors
/// Systemd has no exception for one of its settings.
pub fn exceptions(
    settings: &Settings,
    installation: &Installation,
    runtime: &Path,
) -> Result<Vec<Exception>, Refusal> {
    if settings.is_on("PrivateNetwork") {
        return Err(Refusal::PrivateNetwork);
    }
    check_architectures(settings)?;
    for name in [DIRECTORY_VARIABLE, "BYWIRE_PAIRING"] {
        if settings.words("UnsetEnvironment").any(|word| word.split('=').next() == Some(name)) {
            return Err(Refusal::Unset(name.to_owned()));
        }
    }
    let mut found = Vec::new();
    found.extend(visible(settings, installation, runtime)?);
    found.extend(executable(settings, installation));
    found.extend(families(settings));
    found.extend(calls(settings));
    Ok(found)
}

/// The settings of the unit that need no exception, with the reasons.
pub fn harmless(settings: &Settings) -> Vec<(String, &'static str)> {
    let set = HARMLESS.iter().filter_map(|(name, reason)| {
        let value = settings.value(name)?;
        let is_default = !settings.is_on(name) || value == "default" || value == "~";
        (!is_default).then(|| (format!("{name}={value}"), *reason))
    });
    set.collect()
}

fn check_architectures(settings: &Settings) -> Result<(), Refusal> {
    let native = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86-64" };
    let mut words = settings.words("SystemCallArchitectures").peekable();
    if words.peek().is_none() || words.any(|word| word == "native" || word == native) {
        return Ok(());
    }
    let allowed = settings.words("SystemCallArchitectures").collect::<Vec<_>>().join(" ");
    Err(Refusal::Architecture(allowed))
}

/// The directory of a file.
fn directory(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("/"))
}

fn path_word(path: &Path) -> String {
    setting_word(&path.display().to_string())
}

/// Shows what is hidden.
fn visible(
    settings: &Settings,
    installation: &Installation,
    runtime: &Path,
) -> Result<Option<Exception>, Refusal> {
    let library = directory(&installation.library);
    let pairing = directory(&installation.pairing);
    let shared = [installation.command.as_path(), library, pairing];
    for path in shared {
        if let Some(setting) = hidden_for_good(settings, path) {
            return Err(Refusal::Hidden { path: path.display().to_string(), setting });
        }
    }
    let root = ["RootDirectory", "RootImage"].into_iter().find(|name| settings.value(name).is_some());
    let covers: Vec<&str> = settings.paths("TemporaryFileSystem").collect();
    let is_hidden = |path: &Path| root.is_some() || covers.iter().any(|cover| path.starts_with(cover));
    let mut bound: Vec<String> = shared.into_iter().filter(|path| is_hidden(path)).map(path_word).collect();
    bound.dedup();
    let cause = root.unwrap_or("TemporaryFileSystem");
    let mut lines = Vec::new();
    if !bound.is_empty() {
        lines.push(format!("BindReadOnlyPaths={}", bound.join(" ")));
    }
    // systemd puts RuntimeDirectory= into a RootDirectory= by itself.
    if root.is_none() && is_hidden(runtime) {
        lines.push(format!("BindPaths={}", runtime.display()));
    }
    let reason = format!("{cause}= hides these.");
    Ok((!lines.is_empty()).then(|| Exception::new(lines.join("\n"), reason)))
}

/// The setting that hides a path and everything below it, whatever else is set.
fn hidden_for_good(settings: &Settings, path: &Path) -> Option<String> {
    let inaccessible = settings.paths("InaccessiblePaths").chain(settings.paths("InaccessibleDirectories"));
    if let Some(cover) = inaccessible.into_iter().find(|cover| path.starts_with(cover)) {
        return Some(format!("InaccessiblePaths={cover}"));
    }
    let is_below = |covers: &[&str]| covers.iter().any(|cover| path.starts_with(cover));
    if settings.is_on("ProtectHome") && is_below(&["/home", "/root", "/run/user"]) {
        return Some(format!("ProtectHome={}", settings.value("ProtectHome").unwrap_or_default()));
    }
    let is_private = settings.is_on("PrivateTmp") && is_below(&["/tmp", "/var/tmp"]);
    is_private.then(|| "PrivateTmp=yes".to_owned())
}

/// Lets the command and the library be executed.
fn executable(settings: &Settings, installation: &Installation) -> Option<Exception> {
    // The longest path that contains the file decides.
    let depth = |name: &str, file: &Path| {
        let covers = settings.paths(name).filter(|cover| file.starts_with(cover));
        covers.map(|cover| Path::new(cover).components().count()).max()
    };
    let is_forbidden = |file: &Path| depth("NoExecPaths", file) > depth("ExecPaths", file);
    let files = [installation.command.as_path(), directory(&installation.library)];
    let mut forbidden: Vec<String> =
        files.into_iter().filter(|file| is_forbidden(file)).map(path_word).collect();
    forbidden.dedup();
    let reason = "NoExecPaths= forbids to execute `bywire run` and to map the library.";
    (!forbidden.is_empty()).then(|| Exception::new(format!("ExecPaths={}", forbidden.join(" ")), reason))
}

/// A list that allows its members, or forbids them if its first value begins with `~`.
struct List<'a> {
    allows: bool,
    members: BTreeSet<&'a str>,
}

impl<'a> List<'a> {
    /// `None`: the list is not set.
    fn of(settings: &'a Settings, name: &'a str) -> Option<Self> {
        let mut list: Option<Self> = None;
        for value in settings.values(name) {
            let (inverted, words) = match value.strip_prefix('~') {
                Some(words) => (true, words),
                None => (false, value),
            };
            // An empty list that forbids is how systemd shows that nothing is set.
            let mut words =
                words.split_whitespace().map(|word| word.split(':').next().unwrap_or(word)).peekable();
            if words.peek().is_none() && inverted {
                continue;
            }
            let list = list.get_or_insert(Self { allows: !inverted, members: BTreeSet::new() });
            for word in words.filter(|word| *word != "none") {
                if inverted == list.allows {
                    list.members.remove(word)
                } else {
                    list.members.insert(word)
                };
            }
        }
        list
    }

    fn allows(&self, word: &str) -> bool {
        self.members.contains(word) == self.allows
    }
}

/// Allows Unix sockets.
fn families(settings: &Settings) -> Option<Exception> {
    let list = List::of(settings, "RestrictAddressFamilies")?;
    let line = "RestrictAddressFamilies=AF_UNIX";
    let reason = "The library talks to the pairing service over a Unix socket.";
    (!list.allows("AF_UNIX")).then(|| Exception::new(line, reason))
}

/// Allows the system calls of the library. Sets of systemd that are not taken apart count as if they had none.
fn calls(settings: &Settings) -> Option<Exception> {
    let list = List::of(settings, "SystemCallFilter")?;
    let is_sufficient = list.allows && SUFFICIENT_SETS.iter().any(|set| list.members.contains(set));
    let has_unknown_sets = list.members.iter().any(|member| member.starts_with('@'));
    let is_missing = |call: &&str| {
        // A call that a set may forbid is allowed by its name.
        let is_forbidden = !list.allows(call) || (!list.allows && has_unknown_sets);
        is_forbidden && !is_sufficient
    };
    let missing: Vec<&str> = CALLS.into_iter().filter(is_missing).collect();
    let reason = "The library makes these system calls, and the unit's filter does not allow them.";
    (!missing.is_empty()).then(|| Exception::new(format!("SystemCallFilter={}", missing.join(" ")), reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation() -> Installation {
        Installation {
            command: "/usr/local/bin/bywire".into(),
            library: "/usr/local/lib/bywire/libbywire_sockets.so".into(),
            pairing: "/run/bywire-pairing/socket".into(),
        }
    }

    fn found(shown: &str) -> Result<Vec<String>, Refusal> {
        let found = exceptions(&Settings::from_shown(shown), &installation(), Path::new("/run/bywire-x"));
        found.map(|found| found.into_iter().map(|exception| exception.line).collect())
    }

    #[test]
    fn a_sandbox_gets_the_exceptions_that_it_needs_and_no_others() {
        let exec = "ExecPaths=/usr/local/bin/bywire /usr/local/lib/bywire";
        let unix = "RestrictAddressFamilies=AF_UNIX";
        for (shown, expected) in [
            ("", vec![]),
            ("NoExecPaths=/\nExecPaths=/usr/bin/x /usr/lib", vec![exec]),
            ("NoExecPaths=/home\nExecPaths=/", vec![]),
            ("NoExecPaths=/\nExecPaths=/usr", vec![]),
            ("NoExecPaths=/usr\nExecPaths=/usr/local/bin", vec!["ExecPaths=/usr/local/lib/bywire"]),
            ("RestrictAddressFamilies=AF_INET AF_INET6", vec![unix]),
            ("RestrictAddressFamilies=AF_INET AF_UNIX", vec![]),
            ("RestrictAddressFamilies=~AF_UNIX AF_PACKET", vec![unix]),
            ("RestrictAddressFamilies=~AF_PACKET", vec![]),
            ("RestrictAddressFamilies=~", vec![]),
            ("RestrictAddressFamilies=none", vec![unix]),
            ("SystemCallFilter=@system-service\nSystemCallFilter=~@privileged", vec![]),
            ("SystemCallFilter=~memfd_create:EPERM reboot", vec!["SystemCallFilter=memfd_create"]),
            ("SystemCallFilter=~", vec![]),
            (
                "ProtectSystem=strict\nMemoryDenyWriteExecute=yes\nPrivateUsers=yes\nProtectProc=invisible",
                vec![],
            ),
            (
                "TemporaryFileSystem=/run:ro",
                vec!["BindReadOnlyPaths=/run/bywire-pairing\nBindPaths=/run/bywire-x"],
            ),
            (
                "RootDirectory=/srv/root",
                vec!["BindReadOnlyPaths=/usr/local/bin/bywire /usr/local/lib/bywire /run/bywire-pairing"],
            ),
        ] {
            assert_eq!(found(shown).expect(shown), expected, "{shown}");
        }
        let all = found("SystemCallFilter=read write").expect("an allow-list");
        assert!(all[0].contains("memfd_create") && all[0].contains("execve"), "{all:?}");
        let sets = found("SystemCallFilter=~@ipc").expect("a set that is not taken apart");
        assert!(sets[0].contains("memfd_create"), "{sets:?}");
    }

    #[test]
    fn what_systemd_has_no_exception_for_is_refused_with_its_setting() {
        for (shown, expected) in [
            ("PrivateNetwork=yes", "network of its own"),
            (
                "InaccessiblePaths=-/run",
                "/run/bywire-pairing is hidden from the unit by InaccessiblePaths=/run",
            ),
            ("InaccessiblePaths=/usr/local", "install Bywire elsewhere"),
            ("SystemCallArchitectures=x86", "system calls of x86 only"),
            ("UnsetEnvironment=A BYWIRE_PAIRING", "removes BYWIRE_PAIRING"),
        ] {
            let refused = found(shown).expect_err(shown).to_string();
            assert!(refused.contains(expected), "{shown}: {refused}");
        }
        for allowed in ["PrivateNetwork=no", "SystemCallArchitectures=native", "InaccessiblePaths=/runner"] {
            assert!(found(allowed).is_ok(), "{allowed}");
        }
        let home = Installation { command: "/home/u/bin/bywire".into(), ..installation() };
        let settings = Settings::from_shown("ProtectHome=tmpfs");
        let refused = exceptions(&settings, &home, Path::new("/run/bywire-x")).expect_err("hidden");
        assert!(refused.to_string().contains("ProtectHome=tmpfs"), "{refused}");
        let settings = Settings::from_shown("ProtectHome=read-only");
        assert!(exceptions(&settings, &home, Path::new("/run/bywire-x")).is_ok());
    }

    #[test]
    fn harmless_settings_are_named_if_they_are_set() {
        let shown = "MemoryDenyWriteExecute=yes\nProtectProc=default\nPrivateUsers=no\nDynamicUser=yes\n";
        let named: Vec<String> =
            harmless(&Settings::from_shown(shown)).into_iter().map(|(setting, _)| setting).collect();
        assert_eq!(named, ["MemoryDenyWriteExecute=yes", "DynamicUser=yes"]);
    }
}
