//! Puts libbywire, bywire.h and bywire.pc where a compiler finds them, and the command where a shell does.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;

const HEADER: &str = include_str!("../../include/bywire.h");
/// What systemd is to know, by name.
const UNITS: [(&str, &str); 3] = [
    ("bywire-eth.service", include_str!("../../../../packaging/bywire-eth.service")),
    ("bywire-pairing.service", include_str!("../../../../packaging/bywire-pairing.service")),
    ("bywire-pairing.socket", include_str!("../../../../packaging/bywire-pairing.socket")),
];
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What `bywire run` puts before programs.
const PRELOADED: &str = "libbywire_sockets.so";
/// What the static library needs of the system.
const LIBRARIES_PRIVATE: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// Installs libbywire for C and C++: lib/libbywire.so, lib/libbywire.a, include/bywire.h and
/// lib/pkgconfig/bywire.pc. And the command: bin/bywire, its manual pages, completions of bash, zsh and fish, its units in
/// lib/systemd/system, and lib/bywire/libbywire_sockets.so for `bywire run`. With --libraries or --command only that part,
/// as it was built before.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where programs will look for it.
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,
    /// A directory to write into instead of the root, for packages.
    #[arg(long)]
    destination: Option<PathBuf>,
    /// A directory with both libraries, built before; without it cargo builds them now, for release.
    #[arg(long)]
    libraries: Option<PathBuf>,
    /// The command, built before, with the library for `bywire run` beside it.
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
    let prefix = std::path::absolute(&arguments.prefix).context("the prefix is no path")?;
    let root = match &arguments.destination {
        Some(destination) => destination.join(prefix.strip_prefix("/").unwrap_or(&prefix)),
        None => prefix.clone(),
    };
    if arguments.command.is_none() {
        let libraries = arguments.libraries.as_deref().map_or_else(build, |built| Ok(built.to_owned()))?;
        install_for_c(&libraries, &root, &prefix)?;
        println!("installed Bywire {VERSION} for C in {}", root.display());
    }
    if arguments.libraries.is_none() {
        let built = arguments.command.map_or_else(build_command, Ok)?;
        install_command(&built, &root, &prefix)?;
        println!("installed the command bywire {VERSION} in {}", root.join("bin").display());
    }
    Ok(())
}

fn install_for_c(libraries: &Path, root: &Path, prefix: &Path) -> Result<()> {
    let [include, library] = ["include", "lib"].map(|name| root.join(name));
    for directory in [&include, &library.join("pkgconfig")] {
        make(directory)?;
    }
    let abi = bywire_capi::version::BW_ABI_VERSION;
    let full = format!("libbywire.so.{abi}.{VERSION}");
    copy(&libraries.join("libbywire_capi.so"), &library.join(&full))?;
    link(&full, &library.join(format!("libbywire.so.{abi}")))?;
    link(&full, &library.join("libbywire.so"))?;
    copy(&libraries.join("libbywire_capi.a"), &library.join("libbywire.a"))?;
    write(&include.join("bywire.h"), HEADER)?;
    write(&library.join("pkgconfig/bywire.pc"), &package(prefix))
}

/// The command with the library that it preloads, and what it says of itself: manual pages, and a completion script where each shell looks.
fn install_command(built: &Path, root: &Path, prefix: &Path) -> Result<()> {
    for directory in ["bin", "share/man/man1", "lib/systemd/system", "lib/bywire"] {
        make(&root.join(directory))?;
    }
    // Not where linkers look: it is for `bywire run` alone, which looks there.
    copy(&built.with_file_name(PRELOADED), &root.join("lib/bywire").join(PRELOADED))?;
    let command = root.join("bin/bywire");
    copy(built, &command)?;
    fs::set_permissions(&command, Permissions::from_mode(0o755)).context("cannot make it executable")?;
    let pages = root.join("share/man/man1");
    said(Command::new(built).args(["man", "--output"]).arg(&pages))?;
    let scripts = [
        ("bash", "share/bash-completion/completions", "bywire"),
        ("zsh", "share/zsh/site-functions", "_bywire"),
        ("fish", "share/fish/vendor_completions.d", "bywire.fish"),
    ];
    for (shell, directory, name) in scripts {
        let directory = root.join(directory);
        make(&directory)?;
        write(&directory.join(name), &said(Command::new(built).args(["completions", shell]))?)?;
    }
    for (name, unit) in UNITS {
        let unit = unit.replace("/usr/local", &prefix.display().to_string());
        write(&root.join("lib/systemd/system").join(name), &unit)?;
    }
    Ok(())
}

/// Beside this program, as `cargo build --release` does it.
fn build_command() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let target = program.ancestors().nth(2).context("this program lies in no directory of cargo's")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "-p", "bywire-cli", "-p", "bywire-sockets", "--manifest-path"]);
    cargo.args([concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"), "--target-dir"]);
    let status = cargo.arg(target).status().context("cannot run cargo: install Rust")?;
    ensure!(status.success(), "the command could not be built: cargo said why");
    Ok(target.join("release/bywire"))
}

/// What a command printed.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run the command that was built")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

fn make(directory: &Path) -> Result<()> {
    let why = || format!("cannot make {}: choose another --prefix", directory.display());
    fs::create_dir_all(directory).with_context(why)
}

/// The description for pkg-config.
fn package(prefix: &Path) -> String {
    format!(
        "prefix={}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\n\
         Name: bywire\nDescription: A user-level message fabric\nVersion: {VERSION}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -lbywire\nLibs.private: {LIBRARIES_PRIVATE}\n",
        prefix.display()
    )
}

/// Builds both libraries and tells where they lie. The crate's other form, for programs in Rust, is left out: with it
/// cargo would not optimise across crates.
fn build() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let directory = program.with_file_name("libraries");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["rustc", "--release", "--lib", "--crate-type", "cdylib", "--crate-type", "staticlib"]);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "--target-dir"]);
    let status = cargo.arg(&directory).status().context("cannot run cargo: install Rust")?;
    ensure!(status.success(), "the libraries could not be built: cargo said why");
    Ok(directory.join("release"))
}

/// A fresh file each time: a program that runs with the old library keeps it.
fn copy(source: &Path, target: &Path) -> Result<()> {
    let bytes = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
    replace(target, |fresh| fs::write(fresh, bytes))
}

fn write(target: &Path, text: &str) -> Result<()> {
    replace(target, |fresh| fs::write(fresh, text))
}

fn link(to: &str, target: &Path) -> Result<()> {
    replace(target, |fresh| symlink(to, fresh))
}

fn replace(target: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(name);
    let made = make(&fresh).and_then(|()| fs::rename(&fresh, target));
    made.with_context(|| format!("cannot write {}: choose another --prefix", target.display()))
}
