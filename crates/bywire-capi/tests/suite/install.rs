//! An installation builds nothing that a session has built, and a session installs only what it uses. What an
//! installation has made is removed, and nothing else. It has no symbols that only debuggers read.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::installed::libraries;

const X: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../x");
const INSTALLER: &str = env!("CARGO_BIN_EXE_bywire-install");

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("executable");
}

fn succeed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    entries.map(|entry| entry.expect("one").file_name().into_string().expect("UTF-8")).collect()
}

#[test]
fn an_installer_that_cannot_write_says_so_in_one_line() {
    let mut install = Command::new(env!("CARGO_BIN_EXE_bywire-install"));
    let output = install.args(["--prefix", "/dev/null/none", "--libraries", "."]).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("bywire-install: cannot make /dev/null/none/lib/bywire"), "{said}");
    assert!(said.contains("choose another --prefix") && said.lines().count() == 1, "{said}");
}

/// A package is made under another root, and says where it will be.
#[test]
fn destdir_is_prepended_to_the_prefix() {
    let root = tempfile::tempdir().expect("a directory");
    let mut install = Command::new(env!("CARGO_BIN_EXE_bywire-install"));
    install.args(["--prefix", "/usr", "--destination"]).arg(root.path());
    install.arg("--libraries").arg(libraries());
    assert!(install.output().expect("run").status.success());
    let text = fs::read_to_string(root.path().join("usr/lib/pkgconfig/bywire.pc")).expect("installed");
    assert!(text.starts_with("prefix=/usr\n"), "{text}");
    let text = fs::read_to_string(root.path().join("usr/lib/cmake/bywire/bywire-config.cmake"));
    let text = text.expect("installed");
    assert!(text.contains("\"libbywire.so.0\"") && !text.contains('@'), "{text}");
}

/// The installer with these options, below a root of its own, and that root.
fn installed_below_a_root(options: &[&str]) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let mut install = Command::new(INSTALLER);
    install.args(["--prefix", "/usr", "--destination"]).arg(root.path()).args(options);
    succeed(install.arg("--libraries").arg(libraries()).output().expect("run"));
    root
}

#[test]
fn an_installation_has_no_symbols_but_those_that_programs_are_linked_to() {
    let sections = |root: &TempDir| {
        let library = root.path().join("usr/lib/libbywire.so");
        let listed = succeed(Command::new("readelf").arg("-SW").arg(library).output().expect("readelf"));
        [".dynsym", ".symtab", ".debug_line"].map(|section| listed.contains(section))
    };
    assert_eq!(sections(&installed_below_a_root(&[])), [true, false, false]);
    assert_eq!(sections(&installed_below_a_root(&["--unstripped"])), [true, true, true]);
}

#[test]
fn a_relocatable_description_for_pkg_config_follows_the_library() {
    let root = installed_below_a_root(&["--relocatable"]);
    let moved = root.path().join("moved");
    fs::rename(root.path().join("usr"), &moved).expect("moved");
    let mut asked = Command::new("pkg-config");
    asked.args(["--cflags", "--libs", "bywire"]).env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig"));
    let said = succeed(asked.output().expect("pkg-config"));
    // pkg-config leaves the two steps up in the path.
    for directory in ["include", "lib"] {
        let mut flags = said.split_whitespace().filter_map(|flag| flag.get(2..).map(Path::new));
        let wanted = moved.join(directory).canonicalize().expect("a directory");
        assert!(
            flags.any(|flag| flag.canonicalize().is_ok_and(|flag| flag == wanted)),
            "{directory}: {said}"
        );
    }
}

#[test]
fn a_directory_of_the_librarys_own_is_that_of_its_description() {
    let root = installed_below_a_root(&["--libdir", "lib/triplet"]);
    let directory = root.path().join("usr/lib/triplet");
    let description = fs::read_to_string(directory.join("pkgconfig/bywire.pc")).expect("a description");
    assert!(description.contains("\nlibdir=${prefix}/lib/triplet\n"), "{description}");
    assert!(directory.join("libbywire.so").exists() && directory.join("libbywire.a").exists());
}

/// A prefix with a file of its owner's in `lib`, and an installation of the libraries and of a command.
struct Prefix {
    place: TempDir,
}

impl Prefix {
    fn installed() -> Self {
        let prefix = Self { place: tempfile::tempdir().expect("a directory") };
        fs::create_dir_all(prefix.path("lib")).expect("made");
        fs::write(prefix.path("lib/own"), "").expect("written");
        // What the installer asks the command for.
        let command = prefix.place.path().join("bywire");
        script(&command, "case $1 in man) echo page >\"$3/bywire.1\" ;; *) echo completions ;; esac");
        for library in ["libbywire_sockets.so", "libbywire_fi.so"] {
            fs::write(command.with_file_name(library), "").expect("written");
        }
        // Twice: an update keeps what the list knew.
        for _ in 0..2 {
            prefix.install("--libraries", &libraries());
            prefix.install("--command", &command);
        }
        prefix
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join("prefix").join(name)
    }

    fn install(&self, part: &str, built: &Path) {
        let output = Command::new(INSTALLER).arg("--prefix").arg(self.path("")).arg(part).arg(built).output();
        succeed(output.expect("run"));
    }

    fn uninstall(&self) -> Output {
        Command::new(X).args(["uninstall", "--prefix"]).arg(self.path("")).output().expect("run")
    }
}

#[test]
fn only_installed_files_are_removed() {
    let prefix = Prefix::installed();
    let provider = "lib/bywire/libfabric/libbywire-fi.so";
    let for_cpp = ["include/bywire.hpp", "include/bywire/result.hpp", "lib/cmake/bywire/bywire-config.cmake"];
    let others = ["include/bywire.h", "lib/libbywire.so", "bin/bywire", "share/man/man1/bywire.1", provider];
    for name in for_cpp.into_iter().chain(others) {
        assert!(prefix.path(name).exists(), "{name}");
    }
    for manager in ["system", "user"] {
        let unit = prefix.path(&format!("lib/systemd/{manager}/bywire-node.service"));
        let text = fs::read_to_string(unit).expect("a unit");
        assert!(text.contains("/bin/bywire up\n") && !text.contains("/usr/local"), "{manager}: {text}");
    }
    // A list that has been tampered with reaches nothing outside.
    let outside = prefix.place.path().join("outside");
    fs::write(&outside, "").expect("written");
    let list = prefix.path("lib/bywire/installed");
    let lines = fs::read_to_string(&list).expect("the list");
    fs::write(&list, format!("{lines}../outside\n{}\n", outside.display())).expect("written");
    succeed(prefix.uninstall());
    assert_eq!(names(&prefix.path("")), BTreeSet::from(["lib".to_owned()]));
    assert_eq!(names(&prefix.path("lib")), BTreeSet::from(["own".to_owned()]));
    assert!(outside.exists());
    let again = prefix.uninstall();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("there is no installation in"), "{again:?}");
}

#[test]
fn a_prefix_that_an_installation_created_is_removed_with_it() {
    let prefix = Prefix { place: tempfile::tempdir().expect("a directory") };
    prefix.install("--libraries", &libraries());
    succeed(prefix.uninstall());
    assert!(!prefix.path("").exists());
}

#[test]
fn files_that_cannot_be_removed_are_reported_and_stay_on_the_list() {
    let prefix = Prefix::installed();
    let header = prefix.path("include/bywire.h");
    let text = fs::read(&header).expect("the header");
    fs::remove_file(&header).and_then(|()| fs::create_dir(&header)).expect("in its way");
    let stuck = prefix.uninstall();
    assert_eq!(stuck.status.code(), Some(1), "{stuck:?}");
    assert!(String::from_utf8_lossy(&stuck.stderr).ends_with("include/bywire.h\n"), "{stuck:?}");
    assert!(prefix.path("lib/bywire/installed").exists());
    fs::remove_dir(&header).and_then(|()| fs::write(&header, text)).expect("put back");
    succeed(prefix.uninstall());
    assert_eq!(names(&prefix.path("")), BTreeSet::from(["lib".to_owned()]));
}

#[test]
fn unknown_commands_of_x_exit_with_2_before_anything_is_built() {
    for words in
        [&["uninstall", "--prefx=/"][..], &["uninstall", "/usr"], &["install", "/usr"], &["nonsense"]]
    {
        let refused = Command::new(X).args(words).env("PATH", "/usr/bin:/bin").output().expect("run");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    let unknown = Command::new(X).arg("nonsense").output().expect("run");
    assert!(
        String::from_utf8_lossy(&unknown.stderr).starts_with("x: there is no `nonsense`\n"),
        "{unknown:?}"
    );
}

/// A machine on which `./x` finds what it needs itself, and no program that only some sessions use. Cargo writes down
/// what it is asked for.
struct Machine {
    place: TempDir,
}

/// What one call of `./x` wanted.
struct Wanted {
    /// What it said.
    said: String,
    /// The packages that it had cargo build.
    crates: BTreeSet<String>,
    /// The revision that they were built with.
    revision: String,
}

impl Machine {
    const TOOLS: [&str; 10] = ["cat", "cut", "dirname", "git", "head", "mkdir", "rm", "sed", "sh", "sort"];

    fn new() -> Self {
        let machine = Self { place: tempfile::tempdir().expect("a directory") };
        let programs = machine.path("bin");
        fs::create_dir_all(machine.path("target/release")).expect("made");
        fs::create_dir(&programs).expect("made");
        let path = std::env::var_os("PATH").unwrap_or_default();
        for tool in Self::TOOLS {
            let found = std::env::split_paths(&path).map(|directory| directory.join(tool));
            let found = found.into_iter().find(|file| file.exists()).expect(tool);
            symlink(found, programs.join(tool)).expect("a link");
        }
        for present in ["cc", "pkg-config", "ip", "curl"] {
            script(&programs.join(present), "");
        }
        // Not root: it says which packages it would install.
        script(&programs.join("id"), "echo 1000");
        // Python is there, without what makes environments.
        script(&programs.join("python3"), "exit 1");
        let cargo = "[ \"$1\" != --version ] || { echo cargo 99.0.0; exit; }\n\
                     echo \"$BYWIRE_REVISION\" >\"$NOTES.revision\"; printf '%s\\n' \"$@\" >\"$NOTES.words\"";
        script(&programs.join("cargo"), cargo);
        for built in ["bywire", "bywire-install"] {
            script(&machine.path("target/release").join(built), "");
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn x(&self, words: &[&str]) -> Wanted {
        let mut x = Command::new(X);
        x.args(words).env("PATH", self.path("bin")).env("CARGO_HOME", self.path("cargo"));
        x.env("CARGO_TARGET_DIR", self.path("target")).env("XDG_CACHE_HOME", self.path("cache"));
        let output = x.env("NOTES", self.path("notes")).output().expect("run");
        assert!(output.status.success(), "{words:?}: {output:?}");
        let words = fs::read_to_string(self.path("notes.words")).expect("what cargo was asked for");
        let words: Vec<&str> = words.lines().collect();
        assert_eq!(words[..2], ["build", "--release"]);
        let crates = words.windows(2).filter(|pair| pair[0] == "-p").map(|pair| pair[1].to_owned());
        Wanted {
            said: String::from_utf8(output.stderr).expect("UTF-8"),
            crates: crates.collect(),
            revision: fs::read_to_string(self.path("notes.revision")).expect("a revision"),
        }
    }
}

#[test]
fn a_session_installs_only_what_it_uses() {
    let machine = Machine::new();
    for words in [&["bench"][..], &["bench", "quick", "--time", "0.1"], &["bench", "full", "--levels", "msg"]]
    {
        let said = machine.x(words).said;
        assert!(said.is_empty(), "{words:?}: {said}");
    }
    for preset in ["toe", "gm", "full"] {
        let said = machine.x(&["bench", preset]).said;
        assert!(said.contains("openmpi-bin"), "{preset}: {said}");
    }
}

/// Cargo, asked about this tree.
fn cargo<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> String {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let cargo = cargo.args(words).args([
        "--offline",
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"),
    ]);
    succeed(cargo.output().expect("run"))
}

/// Each library below these crates, with the features that it is built with.
fn features(crates: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut words: Vec<String> = "tree --edges normal,build --prefix none --format {p}|{f} --no-dedupe"
        .split(' ')
        .map(str::to_owned)
        .collect();
    words.extend(crates.iter().flat_map(|name| ["-p".to_owned(), name.clone()]));
    let mut features: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in cargo(words).lines().filter(|line| !line.is_empty()) {
        let (package, list) = line.split_once('|').expect(line);
        features.entry(package.to_owned()).or_default().insert(list.to_owned());
    }
    features
}

/// Cargo builds a library again in another revision, with other features, and in another form where crates are optimised
/// together: with bits of code alone where only programs and foreign libraries are made, and with machine code as well
/// where a crate has an rlib beside a foreign library.
#[test]
fn an_installation_rebuilds_nothing_that_a_session_has_built() {
    let machine = Machine::new();
    let prefix = machine.path("prefix").display().to_string();
    let session = machine.x(&["bench"]);
    let installation = machine.x(&["install", "--prefix", &prefix]);
    assert_eq!(session.revision, installation.revision);
    assert!(session.crates.is_subset(&installation.crates), "{:?}", session.crates);
    let [before, after] = [&session, &installation].map(|wanted| features(&wanted.crates));
    let other: Vec<_> = before.iter().filter(|(package, list)| after[*package] != **list).collect();
    assert!(before.len() > 50 && other.is_empty(), "{other:?}");
    let metadata = cargo(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("JSON");
    for name in installation.crates.difference(&session.crates) {
        let packages = metadata["packages"].as_array().expect("packages");
        let package = packages.iter().find(|package| package["name"] == **name).expect(name);
        let targets = package["targets"].as_array().expect("targets");
        let kinds = targets.iter().flat_map(|target| target["crate_types"].as_array().expect("kinds"));
        let linked: Vec<_> = kinds.filter(|kind| **kind == "lib" || **kind == "rlib").collect();
        assert!(linked.is_empty(), "{name}: {linked:?}");
    }
}
