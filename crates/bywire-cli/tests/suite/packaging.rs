//! Packages of what cargo has built for the tests are installed, used, upgraded, removed and purged by the commands of
//! docs/install.md, as root and as a user, and leave nothing. Needs root, Debian, Redis, and the tools that `./x test` installs.
//!
//! It happens in a copy of this machine, whose changes are dropped. `./x package` alone finds out whether the release build runs
//! with the oldest C library, is small, and pleases lintian. `packaging/roots/run` alone tests other distributions.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::packages;

/// Mounts a copy of the root that drops its changes.
const COPY: &str = "mount --make-rprivate / && mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b /mnt/c && \
                    mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/a,workdir=/mnt/b /mnt/c";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A directory with links to everything that packages are made of, as a release build has it. `None`: a part was not built.
fn built(place: &Path) -> Option<PathBuf> {
    let programs = Path::new(env!("CARGO_BIN_EXE_bywire")).parent().expect("a directory");
    let libraries = std::env::current_exe().expect("this test");
    let libraries = libraries.parent().expect("a directory");
    let built = place.join("built");
    fs::create_dir(&built).expect("made");
    for (directory, names) in [
        (programs, &["bywire", "bywire-install"][..]),
        (
            libraries,
            &[
                "libbywire_sockets.so",
                "libbywire_fi.so",
                "libbywire_capi.so",
                "libbywire_capi.a",
                "libbywire_python.so",
            ],
        ),
    ] {
        for name in names {
            let file = directory.join(name);
            if !file.exists() {
                println!("not run: {name} was not built: cargo test --workspace builds it");
                return None;
            }
            symlink(file, built.join(name)).expect("a link");
        }
    }
    Some(built)
}

/// The version of this machine's C library, against which cargo has built what is tested. `None`: it is another C library.
fn glibc() -> Option<String> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().strip_prefix("glibc ")?.to_owned())
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Every package of Debian that `x` and the parts of `./x figures` install is on the page, in what there is to remove.
#[test]
fn the_page_lists_every_package_that_x_installs() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect(name);
    let (x, parts, page) = (read("x"), read("lab/figures/parts"), read("docs/install.md"));
    let line = page.lines().find(|line| line.starts_with("| packages that `./x` installed")).expect("a line");
    let listed: Vec<&str> =
        line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').collect();
    let calls = x.lines().filter_map(|line| line.split_once("packages ")).map(|(_, words)| words);
    let words =
        calls.chain(parts.lines().filter(|line| !line.starts_with('#'))).flat_map(str::split_whitespace);
    let pairs = words.filter_map(|word| word.trim_end_matches(';').split_once(':'));
    let installed: Vec<&str> = pairs.map(|(_, package)| package).filter(|name| !name.is_empty()).collect();
    assert!(installed.len() > 40, "{installed:?}");
    for package in installed {
        // Packages of Debian's own system are not removed.
        assert!(package == "dpkg" || listed.contains(&package), "{package} is not in: {line}");
    }
}

#[test]
fn packages_are_installed_used_and_removed_by_the_printed_commands() {
    let page = fs::read_to_string(root().join("docs/install.md")).expect("docs/install.md");
    assert!(page.contains("### From the wheel") && page.contains("### From Debian's packages"));
    if !rustix::process::geteuid().is_root() || !Path::new("/var/lib/dpkg/status").exists() {
        return println!("not run: packages of Debian are installed by root there");
    }
    let Some(glibc) = glibc() else { return println!("not run: packages are for the GNU C library") };
    if !packages::have(&[("redis-server", "redis-server"), ("pkg-config", "pkg-config")]) {
        return;
    }
    for (tool, version) in [("maturin", "--version"), ("wheel", "version")] {
        if !Command::new(tool).arg(version).output().is_ok_and(|output| output.status.success()) {
            return println!("not run: {tool} is not in the path: `./x test` installs it");
        }
    }
    let copied = Command::new("unshare").args(["--mount", "sh", "-ec", COPY]).output().expect("unshare");
    if !copied.status.success() {
        return println!(
            "not run: no copy of this machine's files can be mounted: {}",
            printed(&copied).trim()
        );
    }
    let place = tempfile::tempdir().expect("a directory");
    let Some(built) = built(place.path()) else { return };
    let packages = place.path().join("packages");
    // Packages of an earlier version are not taken for those that are made now.
    fs::create_dir(&packages).expect("made");
    let processor = std::env::consts::ARCH;
    let debian = if processor == "x86_64" { "amd64" } else { "arm64" };
    let earlier = [
        format!("bywire-0.0.1-cp39-abi3-manylinux_2_17_{processor}.whl"),
        format!("bywire_0.0.1_{debian}.deb"),
        format!("bywire-0.0.1-{processor}-linux-gnu.tar.gz"),
    ]
    .map(|name| packages.join(name));
    earlier.iter().for_each(|file| fs::write(file, "").expect("written"));
    let mut package = Command::new(root().join("packaging/package"));
    package.arg("--fast").arg("--built").arg(built).arg("--output").arg(&packages).arg("--glibc").arg(glibc);
    let output = package.output().expect("it runs");
    assert!(output.status.success(), "{}", printed(&output));
    for file in earlier {
        assert!(!file.exists(), "{} is left", file.display());
    }
    let mut run = Command::new(root().join("packaging/roots/run"));
    let output = run.arg("--packages").arg(&packages).arg("here").output().expect("it runs");
    let said = printed(&output);
    print!("{said}");
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(": passed").count(), 3, "{said}");
}
