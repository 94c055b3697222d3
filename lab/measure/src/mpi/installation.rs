//! The place where an MPI implementation is installed on this machine, and the program that its compiler made.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::choice::Implementation;
use crate::scratch_directory::nonce;

const RANK_PROGRAM: &str = include_str!("rank.c");
/// The environment variable with the directory of MPICH: its `--prefix`, or a virtual environment. Default: the cache.
const MPICH_DIRECTORY: &str = "BYWIRE_MPICH";
/// The supported major versions.
const OPEN_MPI_MAJORS: [&str; 2] = ["4", "5"];
/// How long a compiler or a launcher may take to print its version or to make a program.
const TIMEOUT_SECONDS: &str = "60";

/// The program that launchers run in place of `ssh`. It runs the command in the other namespace, with shared memory and
/// a host name of its own.
const AGENT: &str = r#"#!/bin/sh
[ "$1" != -x ] || shift
shift
exec nsenter --net="$BYWIRE_MPI_NETWORK" unshare --mount --uts sh -c '
timeout 5 sh -c "while ip link | grep -q NO-CARRIER; do sleep 0.02; done"
mount -t tmpfs -o mode=1777 bywire /dev/shm && echo bywire-target >/proc/sys/kernel/hostname && eval "$@"' sh "$*"
"#;

/// An installed implementation, with our program made for it.
#[derive(Clone, Debug)]
pub struct Installation {
    /// `mpirun`, or its equivalent.
    pub launcher: PathBuf,
    /// The program that both ranks run.
    pub program: PathBuf,
    /// The program that a launcher runs in place of `ssh`.
    pub agent: PathBuf,
    /// Its launcher is PRRTE, as that of Open MPI from version 5 on, which has options of other names.
    pub is_prrte: bool,
}

impl Installation {
    /// The implementation as this machine has it, looked up once for each process. Makes the program if that is not
    /// made yet. Fails if the implementation is not installed, with what to do, or if its compiler fails.
    pub fn of(implementation: Implementation) -> Result<Arc<Self>> {
        static KNOWN: Mutex<BTreeMap<Implementation, Arc<Installation>>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(installation) = known.get(&implementation) {
            return Ok(Arc::clone(installation));
        }
        let tools = Tools::of(implementation)?;
        let installation = Arc::new(Self {
            program: tools.program("rank", RANK_PROGRAM)?,
            agent: kept(&cache()?, "agent", AGENT.as_bytes(), 0o700)?,
            is_prrte: implementation == Implementation::OpenMpi && tools.major() == OPEN_MPI_MAJORS[1],
            launcher: tools.launcher,
        });
        known.insert(implementation, Arc::clone(&installation));
        Ok(installation)
    }
}

/// What an implementation brings along.
#[derive(Debug)]
pub struct Tools {
    /// `mpirun`, or its equivalent.
    pub launcher: PathBuf,
    compiler: PathBuf,
    /// The version that the launcher prints.
    pub version: String,
}

impl Tools {
    /// Those of this machine, without making anything. Fails if the implementation is not installed, with what to do.
    pub fn of(implementation: Implementation) -> Result<Self> {
        match implementation {
            Implementation::OpenMpi => {
                let found = Self::among(&search_path(), implementation).context(
                    "Open MPI is not installed: install it with `apt-get install openmpi-bin libopenmpi-dev`",
                )?;
                ensure!(
                    OPEN_MPI_MAJORS.contains(&found.major()),
                    "Open MPI {} is not installed, but {} at {} with another launcher: put one of them before it in PATH, or \
                     leave Open MPI out",
                    OPEN_MPI_MAJORS.join(" or "),
                    found.version,
                    found.launcher.display()
                );
                Ok(found)
            }
            Implementation::Mpich => {
                let place = mpich_directory()?;
                Self::among(&[place.join("bin")], implementation).with_context(|| {
                    let place = place.display();
                    format!(
                        "MPICH is not installed: install it with `python3 -m venv {place} && {place}/bin/pip install mpich`, \
                         or name its prefix in {MPICH_DIRECTORY}"
                    )
                })
            }
        }
    }

    /// The first part of its version.
    fn major(&self) -> &str {
        self.version.split('.').next().unwrap_or_default()
    }

    /// Every implementation in the search path, and MPICH where the laboratory looks for it.
    pub fn all() -> Vec<(Implementation, Self)> {
        let path = search_path();
        let own: Vec<PathBuf> = mpich_directory().into_iter().map(|place| place.join("bin")).collect();
        let places =
            [(Implementation::OpenMpi, &path), (Implementation::Mpich, &path), (Implementation::Mpich, &own)];
        let found = places.into_iter().filter_map(|(implementation, directories)| {
            let tools = Self::among(directories, implementation)?;
            Some((fs::canonicalize(&tools.launcher).ok()?, (implementation, tools)))
        });
        let mut seen = BTreeSet::new();
        found.filter(|(launcher, _)| seen.insert(launcher.clone())).map(|(_, tools)| tools).collect()
    }

    /// A program of this source, which the compiler makes unless it has done so before.
    pub fn program(&self, name: &str, source: &str) -> Result<PathBuf> {
        made(&cache()?, name, source, self)
    }

    /// The first launcher in `directories` that belongs to the implementation and has a compiler beside it.
    fn among(directories: &[PathBuf], implementation: Implementation) -> Option<Self> {
        // If a distribution has several implementations, the suffix tells them apart.
        let (endings, names) = match implementation {
            Implementation::OpenMpi => ([".openmpi", ""], ["Open MPI", "OpenRTE"]),
            Implementation::Mpich => ([".mpich", ""], ["HYDRA", "MPICH"]),
        };
        let named = |directory: &Path, program: &str| -> Option<PathBuf> {
            endings
                .iter()
                .map(|ending| directory.join(format!("{program}{ending}")))
                .find(|path| path.is_file())
        };
        directories.iter().find_map(|directory| {
            let (launcher, compiler) = (named(directory, "mpirun")?, named(directory, "mpicc")?);
            let said =
                output(Command::new("timeout").arg(TIMEOUT_SECONDS).arg(&launcher).arg("--version")).ok()?;
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            let is_its = names.iter().any(|name| said.contains(name));
            let line = said.lines().find(|line| line.contains("Version:")).or(said.lines().next())?;
            let version = line.split_whitespace().last()?.to_owned();
            is_its.then_some(Self { launcher, compiler, version })
        })
    }
}

fn search_path() -> Vec<PathBuf> {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect()
}

/// The directory of MPICH of the Python Package Index, or of another one that the user names.
fn mpich_directory() -> Result<PathBuf> {
    let named = env::var_os(MPICH_DIRECTORY).map(PathBuf::from);
    named.map_or_else(|| cache().map(|cache| cache.join("mpich")), Ok)
}

/// A program for this compiler, made unless it exists. Its name is a hash of its source and its compiler.
fn made(cache: &Path, name: &str, source: &str, tools: &Tools) -> Result<PathBuf> {
    let compiler = tools.compiler.as_os_str().as_encoded_bytes();
    let parts = [source.as_bytes(), compiler, tools.version.as_bytes()];
    let compiled = cached(cache, name, &parts, |program| {
        let source = kept(cache, name, source.as_bytes(), 0o600)?;
        let mut command = Command::new("timeout");
        command.arg(TIMEOUT_SECONDS).arg(&tools.compiler);
        command.args(["-O2", "-x", "c", "-o"]).arg(program).arg(&source);
        let output = output(&mut command)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = said.lines().find(|line| line.contains("error")).or(said.lines().next());
        let reason = reason.unwrap_or("nothing");
        ensure!(output.status.success(), "{} said: {reason}", tools.compiler.display());
        Ok(())
    });
    compiled.context("cannot make the program that MPI's ranks run (is a C compiler installed?)")
}

/// A file in the cache, named by its content.
fn kept(cache: &Path, name: &str, content: &[u8], mode: u32) -> Result<PathBuf> {
    let written = cached(cache, name, &[content, &mode.to_le_bytes()], |path| {
        Ok(OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(content)?)
    });
    written.with_context(|| format!("cannot write in {}", cache.display()))
}

/// The file of the cache whose name ends with a hash of `parts`. If there is none, `make` makes it under another name.
fn cached(
    cache: &Path,
    name: &str,
    parts: &[&[u8]],
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = cache.join(format!("{name}-{digest}"));
    if path.is_file() {
        return Ok(path);
    }
    let being_made = cache.join(format!("{name}-{digest}.{}", nonce()));
    let made = make(&being_made).and_then(|()| Ok(fs::rename(&being_made, &path)?));
    if made.is_err() {
        let _never_made = fs::remove_file(&being_made);
    }
    made.map(|()| path)
}

/// The directory of the cache. Only this user may enter it.
fn cache() -> Result<PathBuf> {
    let given = env::var_os("XDG_CACHE_HOME").filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let Some(parent) = given.or_else(home) else {
        bail!("there is no directory to keep MPI's programs in: set HOME or XDG_CACHE_HOME");
    };
    let cache = parent.join("bywire");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&cache);
    made.with_context(|| format!("cannot make {}", cache.display()))?;
    Ok(cache)
}

fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(directory: &Path, name: &str, script: &str) {
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn compiled(cache: &Path, version: &str) -> Result<PathBuf> {
        let (compiler, version) = (cache.join("cc"), version.to_owned());
        made(cache, "rank", RANK_PROGRAM, &Tools { launcher: PathBuf::new(), compiler, version })
    }

    #[test]
    fn another_implementation_under_the_same_name_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let directories = [directory.path().to_owned()];
        let among = |implementation| Tools::among(&directories, implementation);
        assert!(among(Implementation::OpenMpi).is_none(), "nothing is there");
        program(directory.path(), "mpicc", "exit 1");
        program(directory.path(), "mpirun", "echo HYDRA build details:; echo '    Version:      5.0.2'");
        assert!(among(Implementation::OpenMpi).is_none(), "somebody else's");
        assert_eq!(among(Implementation::Mpich).unwrap().version, "5.0.2");
        program(directory.path(), "mpirun.openmpi", "echo 'mpirun.openmpi (OpenRTE) 4.1.4'; echo; echo more");
        let found = among(Implementation::OpenMpi).unwrap();
        assert_eq!(found.version, "4.1.4");
        assert!(found.launcher.ends_with("mpirun.openmpi"));
    }

    #[test]
    fn a_program_is_built_once_for_each_compiler() {
        let cache = tempfile::tempdir().unwrap();
        // A compiler whose program tells how often the compiler ran.
        program(cache.path(), "cc", "echo x >>\"$0.count\"; [ -n \"$5\" ] && cp \"$0\" \"$5\"");
        let made = |version| compiled(cache.path(), version).unwrap();
        let first = made("1");
        assert_eq!(made("1"), first);
        assert_ne!(made("2"), first);
        assert_eq!(fs::read_to_string(cache.path().join("cc.count")).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_compiler_that_fails_leaves_nothing_and_is_quoted() {
        let cache = tempfile::tempdir().unwrap();
        program(cache.path(), "cc", "echo 'rank.c:1: error: no such header' >&2; exit 1");
        let error = format!("{:#}", compiled(cache.path(), "1").unwrap_err());
        assert!(error.contains("no such header"), "{error}");
        let files = fs::read_dir(cache.path()).unwrap().count();
        assert_eq!(files, 2, "the compiler and the source");
    }
}
