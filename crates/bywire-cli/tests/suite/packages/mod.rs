//! Programs of other projects, from Debian packages. As root, missing programs are installed. A package that would
//! start a service of the whole machine is unpacked beside the tests instead.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bywire_testing::exclusive;

/// Directories in which packages install programs.
const PROGRAM_DIRECTORIES: [&str; 2] = ["usr/bin", "usr/sbin"];
/// PostgreSQL's directories, for each of its versions.
const VERSIONS: (&str, &str) = ("usr/lib/postgresql", "bin");

/// Whether each of these programs is installed or can be. Otherwise prints what is not run.
pub fn have(programs: &[(&str, &str)]) -> bool {
    programs.iter().all(|(program, package)| {
        let found = is_there(program) || install(package) && is_there(program);
        if !found {
            println!("not run: {program} is not installed and cannot be here: apt-get install {package}");
        }
        found
    })
}

/// Whether each of these programs is installed. None is installed here, as its package would start a service of the whole
/// machine; `./x test` keeps it from that. Otherwise prints what is not run.
pub fn are_installed(programs: &[(&str, &str)]) -> bool {
    programs.iter().all(|(program, package)| {
        let found = is_there(program);
        if !found {
            println!("not run: {program} is not installed: apt-get install {package}");
        }
        found
    })
}

/// Whether a file is installed or can be. Otherwise prints what is not run.
pub fn have_file(path: &str, package: &str) -> bool {
    let is_there = || std::path::Path::new(path).exists();
    let found = is_there() || install(package) && is_there();
    if !found {
        println!("not run: {path} is not installed and cannot be here: apt-get install {package}");
    }
    found
}

/// What `./x test` has installed only for the tests, if it could.
pub fn cached(path: &str) -> Option<PathBuf> {
    Some(cache()?.join(path)).filter(|path| path.exists())
}

/// A directory for what a compiler builds of other projects' sources. Every clone of this machine uses it, so that one of
/// them builds.
pub fn kept(name: &str) -> PathBuf {
    cache().unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()).join(name)
}

fn cache() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    Some(cache.join("bywire"))
}

fn is_there(program: &str) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
    look.status().is_ok_and(|status| status.success())
}

const APT: &str = "apt-get install -qq -y --no-install-recommends";

fn install(package: &str) -> bool {
    apt(&format!("{APT} {package}"), &[])
}

/// Runs a script as root. If it fails, updates the package lists and runs it again.
fn apt(script: &str, arguments: &[&str]) -> bool {
    // The package manager fails when another one runs.
    let _one_at_a_time = exclusive("packages");
    let run = |script: &str| {
        let mut shell = Command::new("timeout");
        shell.args(["60", "sh", "-ec", script, "sh"]).args(arguments);
        shell.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        shell.status().is_ok_and(|status| status.success())
    };
    rustix::process::geteuid().is_root() && (run(script) || run("apt-get update -qq") && run(script))
}

/// A program that comes with a service: its path, and that of its libraries.
pub struct Service {
    /// The program's file.
    pub program: PathBuf,
    /// For `LD_LIBRARY_PATH`; empty if the program is installed on the machine.
    pub libraries: PathBuf,
}

impl Service {
    /// The program of a package that would start a service of the whole machine if it were installed. It is only
    /// unpacked, with its missing dependencies, and used from there. Otherwise prints what is not run.
    pub fn find(program: &str, package: &str) -> Option<Self> {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(package);
        let libraries = root.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
        // Another test may have unpacked it while this one waited for its turn.
        let unpack = format!(
            "[ -z \"$(find \"$1\" -path \"*bin/$2\" 2>/dev/null)\" ] || exit 0
            rm -rf \"$1.new\"; mkdir -p \"$1.new/partial\"
            {APT} --download-only -o APT::Sandbox::User=root -o Dir::Cache::archives=\"$1.new\" {package}
            for archive in \"$1.new\"/*.deb; do dpkg-deb -x \"$archive\" \"$1.new\"; rm \"$archive\"; done
            rm -rf \"$1\"; mv \"$1.new\" \"$1\""
        );
        if let Some(program) = program_below(Path::new("/"), program) {
            return Some(Self { program, libraries: PathBuf::new() });
        }
        if program_below(&root, program).is_none() {
            let _told_below = apt(&unpack, &[&root.display().to_string(), program]);
        }
        match program_below(&root, program) {
            Some(program) => Some(Self { program, libraries }),
            None => {
                println!(
                    "not run: {program} is not installed and cannot be had here: apt-get install {package}"
                );
                None
            }
        }
    }
}

fn program_below(root: &Path, program: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir(root.join(VERSIONS.0)).into_iter().flatten().flatten();
    let versions = versions.map(|version| version.path().join(VERSIONS.1));
    let places = PROGRAM_DIRECTORIES.iter().map(|place| root.join(place)).chain(versions);
    places.map(|place| place.join(program)).find(|path| path.exists())
}
