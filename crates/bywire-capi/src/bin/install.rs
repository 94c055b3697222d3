//! Puts libbywire, its headers and its descriptions for pkg-config and CMake where a compiler finds them, and the command
//! where a shell does.
//!
//! It keeps a list of everything that it has put there, by which `./x uninstall` removes it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;

const HEADER: &str = include_str!("../../include/bywire.h");
/// All headers, by their paths below `include`.
const HEADERS: [(&str, &str); 3] = [
    ("bywire.h", HEADER),
    ("bywire.hpp", include_str!("../../include/bywire.hpp")),
    ("bywire/result.hpp", include_str!("../../include/bywire/result.hpp")),
];
/// The package of CMake, below `lib/cmake/bywire`. [`cmake_file`] fills in the words between `@`.
const CMAKE_FILES: [(&str, &str); 2] = [
    ("bywire-config.cmake", include_str!("../../cmake/bywire-config.cmake")),
    ("bywire-config-version.cmake", include_str!("../../cmake/bywire-config-version.cmake")),
];
/// The units for systemd, by their places below its directory.
const UNITS: [(&str, &str); 6] = [
    ("system/bywire-eth.service", include_str!("../../../../packaging/bywire-eth.service")),
    ("system/bywire-node.service", include_str!("../../../../packaging/bywire-node.service")),
    ("system/bywire-pairing.service", include_str!("../../../../packaging/bywire-pairing.service")),
    ("system/bywire-pairing.socket", include_str!("../../../../packaging/bywire-pairing.socket")),
    ("user/bywire-engine.service", include_str!("../../../../packaging/user/bywire-engine.service")),
    ("user/bywire-node.service", include_str!("../../../../packaging/user/bywire-node.service")),
];
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The library that `bywire run` preloads into programs.
const PRELOADED: &str = "libbywire_sockets.so";
/// The provider for libfabric: its name as cargo builds it, and its installed path. libfabric requires the name `libNAME-fi.so`,
/// and searches this directory only if `FI_PROVIDER_PATH` names it. So no program loads the provider by accident.
const PROVIDER: (&str, &str) = ("libbywire_fi.so", "lib/bywire/libfabric/libbywire-fi.so");
/// The list of what was installed: files, and directories that were not there before, by their paths below the prefix.
const LIST: &str = "lib/bywire/installed";
/// The prefix itself, on that list.
const PREFIX: &str = "./";
/// The system's libraries that the static library needs. The linker leaves out the functions that a program does not reach.
const LIBRARIES_PRIVATE: &str = "-Wl,--gc-sections -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";
/// A prefix that pkg-config finds from the place of `lib/pkgconfig/bywire.pc`.
const BY_OWN_PLACE: &str = "${pcfiledir}/../..";

/// Installs libbywire for C and C++: lib/libbywire.so, lib/libbywire.a, include/bywire.h, include/bywire.hpp,
/// lib/pkgconfig/bywire.pc and lib/cmake/bywire. And the command: bin/bywire, its manual pages, completions of bash, zsh and fish, its units in
/// lib/systemd, lib/bywire/libbywire_sockets.so for `bywire run`, and lib/bywire/libfabric/libbywire-fi.so for MPI programs. Cargo
/// builds both for release, unless --libraries or --command names one of them, which then is all that is installed.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where programs will look for it.
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,
    /// A directory to write into instead of the root, for packages.
    #[arg(long)]
    destination: Option<PathBuf>,
    /// The directory of libbywire below the prefix.
    #[arg(long, default_value = "lib")]
    libdir: String,
    /// Makes bywire.pc find the library by its own place, for a package whose prefix is not known before it is installed.
    #[arg(long)]
    relocatable: bool,
    /// Installs programs and libraries with their symbols, which are four fifths of their bytes.
    #[arg(long)]
    unstripped: bool,
    /// The command as it runs on this machine, to write manual pages and completions for one of another processor.
    #[arg(long)]
    runnable: Option<PathBuf>,
    /// A directory with both libraries, built before: installs them, and not the command.
    #[arg(long)]
    libraries: Option<PathBuf>,
    /// The command, built before, with the libraries for `bywire run` and libfabric beside it: installs these, and not libbywire.
    #[arg(long, conflicts_with = "libraries")]
    command: Option<PathBuf>,
}

fn main() -> ExitCode {
    match install(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bywire-install: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn install(arguments: Arguments) -> Result<()> {
    let prefix = std::path::absolute(&arguments.prefix).context("the prefix is not a path")?;
    let root = match &arguments.destination {
        Some(destination) => destination.join(prefix.strip_prefix("/").unwrap_or(&prefix)),
        None => prefix.clone(),
    };
    let mut installation = Installation::new(root, arguments.destination.is_some(), !arguments.unstripped);
    // First, so that nothing is built that cannot be installed.
    installation.directory("lib/bywire")?;
    installation.keep_list()?;
    let (libraries, command) = match (arguments.libraries, arguments.command) {
        (None, None) => {
            let built = build()?;
            (Some(built.clone()), Some(built.join("bywire")))
        }
        built => built,
    };
    if let Some(libraries) = libraries {
        let prefix = if arguments.relocatable { Path::new(BY_OWN_PLACE) } else { &prefix };
        install_for_c(&libraries, &mut installation, prefix, &arguments.libdir)?;
        println!("installed Bywire {VERSION} for C in {}", installation.root.display());
    }
    if let Some(command) = command {
        install_command(&command, arguments.runnable.as_deref(), &mut installation, &prefix)?;
        println!("installed the command bywire {VERSION} in {}", installation.root.join("bin").display());
    }
    installation.keep_list()
}

fn install_for_c(
    libraries: &Path,
    installation: &mut Installation,
    prefix: &Path,
    directory: &str,
) -> Result<()> {
    let abi = HEADER.split("#define BW_ABI_VERSION ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let abi = abi.context("bywire.h has no BW_ABI_VERSION")?;
    let soname = format!("libbywire.so.{abi}");
    let full = format!("{soname}.{VERSION}");
    installation.copy_binary(&libraries.join("libbywire_capi.so"), &format!("{directory}/{full}"))?;
    installation.link(&full, &format!("{directory}/{soname}"))?;
    installation.link(&full, &format!("{directory}/libbywire.so"))?;
    installation.copy_binary(&libraries.join("libbywire_capi.a"), &format!("{directory}/libbywire.a"))?;
    for (path, header) in HEADERS {
        installation.write(&format!("include/{path}"), header)?;
    }
    for (name, text) in CMAKE_FILES {
        installation.write(&format!("{directory}/cmake/bywire/{name}"), &cmake_file(text, &soname))?;
    }
    installation.write(&format!("{directory}/pkgconfig/bywire.pc"), &package(prefix, directory))
}

/// Installs the command, the library that it preloads, the provider, its manual pages, and a completion script where each
/// shell looks for one. `runnable` writes these texts, if the command that was built does not run here.
fn install_command(
    built: &Path,
    runnable: Option<&Path>,
    installation: &mut Installation,
    prefix: &Path,
) -> Result<()> {
    // Not where linkers look: the library is for `bywire run` alone, which looks there.
    installation.copy_binary(&built.with_file_name(PRELOADED), &format!("lib/bywire/{PRELOADED}"))?;
    let (provider, place) = PROVIDER;
    installation.copy_binary(&built.with_file_name(provider), place)?;
    installation.copy_binary(built, "bin/bywire")?;
    fs::set_permissions(installation.root.join("bin/bywire"), Permissions::from_mode(0o755))
        .context("cannot make it executable")?;
    let runnable = runnable.unwrap_or(built);
    install_pages(runnable, installation)?;
    let scripts = [
        ("bash", "share/bash-completion/completions/bywire"),
        ("zsh", "share/zsh/site-functions/_bywire"),
        ("fish", "share/fish/vendor_completions.d/bywire.fish"),
    ];
    for (shell, path) in scripts {
        installation.write(path, &said(Command::new(runnable).args(["completions", shell]))?)?;
    }
    for (place, unit) in UNITS {
        let unit = unit.replace("/usr/local", &prefix.display().to_string());
        installation.write(&format!("lib/systemd/{place}"), &unit)?;
    }
    Ok(())
}

/// Installs the manual pages. Only the command knows how many there are.
fn install_pages(built: &Path, installation: &mut Installation) -> Result<()> {
    let pages = "share/man/man1";
    installation.directory(pages)?;
    let fresh = installation.root.join(pages).join(format!(".bywire.{}", std::process::id()));
    fs::create_dir(&fresh).context("cannot make a directory for manual pages")?;
    let written = said(Command::new(built).args(["man", "--output"]).arg(&fresh)).and_then(|_| {
        for page in fs::read_dir(&fresh)? {
            let page = page?;
            let name = page.file_name().into_string().map_err(|_| anyhow!("a page without a name"))?;
            installation.copy(&page.path(), &format!("{pages}/{name}"))?;
        }
        Ok(())
    });
    fs::remove_dir_all(&fresh)?;
    written
}

/// The directory of the installation, and the list of what is installed there.
struct Installation {
    root: PathBuf,
    installed: BTreeSet<String>,
    /// Is this a package's directory? Directories missing here may exist where the package is unpacked.
    is_package: bool,
    strips: bool,
}

impl Installation {
    /// Paths that were installed here before stay on the list.
    fn new(root: PathBuf, is_package: bool, strips: bool) -> Self {
        let before = fs::read_to_string(root.join(LIST)).unwrap_or_default();
        let mut installed: BTreeSet<String> = before.lines().map(str::to_owned).collect();
        installed.extend((!is_package && !root.exists()).then(|| PREFIX.to_owned()));
        Self { root, installed, is_package, strips }
    }

    /// Makes a directory, with its missing parents.
    fn directory(&mut self, path: &str) -> Result<()> {
        let parts = path.match_indices('/').map(|(end, _)| &path[..end]).chain([path]);
        let is_ours = |part: &str| match self.is_package {
            true => part.ends_with("/bywire"),
            false => !self.root.join(part).exists(),
        };
        let missing = parts.filter(|part| is_ours(part)).map(|part| format!("{part}/"));
        self.installed.extend(missing.collect::<Vec<_>>());
        let directory = self.root.join(path);
        let why = || format!("cannot make {}: choose another --prefix", directory.display());
        fs::create_dir_all(&directory).with_context(why)
    }

    /// Writes a fresh file each time: a program that runs with the old library keeps it.
    fn copy(&mut self, source: &Path, path: &str) -> Result<()> {
        let bytes = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.replace(path, |fresh| fs::write(fresh, bytes))
    }

    /// Writes a program or a library without its symbols, if there is a program to leave them out.
    fn copy_binary(&mut self, source: &Path, path: &str) -> Result<()> {
        ensure!(source.exists(), "cannot read {}: no such file", source.display());
        if !self.strips {
            return self.copy(source, path);
        }
        let mut kept = None;
        self.replace(path, |fresh| {
            let strip =
                Command::new("strip").arg("--strip-unneeded").arg("-o").arg(fresh).arg(source).output();
            kept = match strip {
                Ok(output) if output.status.success() => return Ok(()),
                Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                Err(error) => Some(format!("cannot run strip, of the package binutils: {error}")),
            };
            fs::copy(source, fresh).map(|_| ())
        })?;
        if let Some(reason) = kept {
            eprintln!("bywire-install: {path} keeps its symbols: {reason}");
        }
        fs::set_permissions(self.root.join(path), Permissions::from_mode(0o644))
            .with_context(|| format!("cannot set the mode of {path}"))
    }

    fn write(&mut self, path: &str, text: &str) -> Result<()> {
        self.replace(path, |fresh| fs::write(fresh, text))
    }

    fn link(&mut self, to: &str, path: &str) -> Result<()> {
        self.replace(path, |fresh| symlink(to, fresh))
    }

    fn replace(&mut self, path: &str, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory)?;
        }
        self.installed.insert(path.to_owned());
        let target = self.root.join(path);
        let mut name = target.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(name);
        let made = make(&fresh).and_then(|()| fs::rename(&fresh, &target));
        made.with_context(|| format!("cannot write {}: choose another --prefix", target.display()))
    }

    /// Writes the list, which names itself.
    fn keep_list(&mut self) -> Result<()> {
        self.installed.insert(LIST.to_owned());
        let lines: String = self.installed.iter().map(|path| format!("{path}\n")).collect();
        self.write(LIST, &lines)
    }
}

/// Builds everything beside this program and tells where it lies. One call of cargo for all, as in `./x`: in another
/// selection of crates, libraries below would be built in other forms, once more.
fn build() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let target = program.ancestors().nth(2).context("this program is not in a directory that cargo built")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "build",
        "--release",
        "-p",
        "bywire-cli",
        "-p",
        "bywire-sockets",
        "-p",
        "bywire-ofi",
        "-p",
        "bywire-capi",
    ]);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"), "--target-dir"]);
    let status = cargo.arg(target).status().context("cannot run cargo: install Rust")?;
    ensure!(status.success(), "it could not be built: cargo said why");
    Ok(target.join("release"))
}

/// The output of a command.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run the command that was built")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// The description for pkg-config of a library in `directory` below the prefix.
fn package(prefix: &Path, directory: &str) -> String {
    format!(
        "prefix={}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/{directory}\n\n\
         Name: bywire\nDescription: A user-level message fabric\nVersion: {VERSION}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -lbywire\nLibs.private: {LIBRARIES_PRIVATE}\n",
        prefix.display()
    )
}

/// A file of the package of CMake.
fn cmake_file(text: &str, soname: &str) -> String {
    let libraries = LIBRARIES_PRIVATE.replace(' ', ";");
    let words = [("@SONAME@", soname), ("@LIBRARIES@", &libraries), ("@VERSION@", VERSION)];
    words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
}
