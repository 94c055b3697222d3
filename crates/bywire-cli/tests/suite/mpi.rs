//! `bywire measure mpi` as a command: Open MPI and MPICH over every link, Bywire's provider among them, whatever the
//! shell has set; between nodes, and operations of several ranks. Nothing is left after an end at any moment, nor in
//! shared memory after an interrupt without namespaces.
//!
//! A soak has every operation by both, and before it one of them. Links between machines need root. `./x test` installs
//! MPICH in the cache.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use bywire_testing::draw::{crossed, one_or_all};
use bywire_testing::{Tier, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::processes::{bywire, processes_of, processes_with};
use crate::provider;

/// What every process of a command carries, launchers' daemons on the other side of a cable too.
const MARK: &str = "BYWIRE_TEST_SCENE";

const IMPLEMENTATIONS: [&str; 2] = ["open-mpi", "mpich"];

/// A shell whose MPI programs use Bywire, or others. It does not change what link shm measures.
const SHELL: [(&str, &str); 6] = [
    ("FI_PROVIDER", "nobody"),
    ("FI_PROVIDER_PATH", "/nowhere"),
    ("OMPI_MCA_mtl", "none-such"),
    ("OMPI_MCA_coll", "none-such"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("MPIR_CVAR_CH4_NETMOD", "none-such"),
];

fn measure(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = bywire(directory, &[&["measure", "mpi"], arguments, &["--json"]].concat());
    command.env(MARK, directory).env(provider::VARIABLE, provider::directory());
    command
}

/// A directory to measure in. `None` where the implementation is not installed. `./x test` installs it.
fn scratch_directory(implementation: &str) -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().expect("a directory");
    // The implementation is looked for before cores are chosen, and this machine has no such core.
    let mut command = measure(directory.path(), &["latency", "--mpi", implementation, "--cores", "0,4000"]);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains(" is not installed") {
        println!("not run: {implementation}: {}", said.trim_end());
        return None;
    }
    assert!(said.contains("core 4000"), "{said}");
    Some(directory)
}

fn cell(mut command: Command) -> Value {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn may_make_namespaces() -> bool {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    if !root {
        println!("not run: links veth and eth need root and /dev/net/tun");
    }
    root
}

/// True if no process of a measurement is left. Launchers give their ranks another `TMPDIR`, so these are found by a mark.
fn nothing_runs(directory: &Path) -> bool {
    processes_of(directory).is_empty() && processes_with(MARK, directory).is_empty()
}

fn every_link(implementation: &str) {
    let Some(directory) = scratch_directory(implementation) else { return };
    let mut cells = vec![("shm", "bidir"), ("tcp", "rr")];
    let has_namespaces = may_make_namespaces();
    if has_namespaces {
        cells.extend([("veth", "stream"), ("eth", "latency")]);
    }
    // Links between namespaces have the same tests.
    match has_namespaces && Tier::current() != Tier::Soak {
        true => cells.extend(one_or_all(&[("bywire", "latency"), ("bywire", "stream")])),
        false => cells.extend([("shm", "latency"), ("bywire", "latency"), ("bywire", "stream")]),
    }
    for (link, test) in cells {
        let arguments =
            [test, "--mpi", implementation, "--link", link, "--size", "1500", "--verify", "--time", "0.02"];
        let mut command = measure(directory.path(), &arguments);
        command.envs(SHELL.into_iter().filter(|_| link == "shm"));
        let cell = cell(command);
        assert_eq!((&cell["level"], &cell["test"]), (&json!("mpi"), &json!(test)));
        assert_eq!((&cell["link"], &cell["size_bytes"]), (&json!(link), &json!(1500)));
        let parameters = &cell["parameters"];
        assert_eq!((&parameters["mpi"], &parameters["spin"]), (&json!(implementation), &json!(true)));
        let apart = ["veth", "eth"].contains(&link);
        assert_eq!(cell["between"], if apart { "namespaces" } else { "processes" });
        assert!(cell["value"].as_f64() > Some(0.0), "{cell}");
        assert_eq!(cell["percentiles"].is_object(), test == "latency", "{cell}");
        for end in ["source", "target"] {
            assert!(cell["cpu"][end]["attributed"].as_f64() > Some(0.0), "a rank polls: {}", cell["cpu"]);
        }
        assert_eq!(cell["cpu"]["carriers"].is_object(), link == "eth", "{}", cell["cpu"]);
        let version = cell["details"]["mpi_version"].as_str().unwrap_or_default().to_lowercase();
        assert!(version.contains(&implementation.replace('-', " ")), "{version}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
        eventually("no process is left", || nothing_runs(directory.path()));
    }
}

#[test]
fn open_mpi_carries_over_every_link_whatever_the_shell_has_set() {
    every_link("open-mpi");
}

#[test]
fn mpich_carries_over_every_link_whatever_the_shell_has_set() {
    every_link("mpich");
}

#[test]
fn ranks_on_two_nodes_use_the_fabric_between_them() {
    if !may_make_namespaces() {
        return;
    }
    let ways = [("latency", "plain"), ("stream", "encrypted"), ("alltoall", "encrypted")];
    for (implementation, (test, security)) in crossed(&IMPLEMENTATIONS, &ways) {
        let Some(directory) = scratch_directory(implementation) else { continue };
        let nodes = ["--link", "bywire", "--between", "namespaces", "--security", security];
        let arguments =
            [&[test, "--mpi", implementation, "--verify", "--time", "0.02", "--mtu", "9000"], &nodes[..]]
                .concat();
        let cell = cell(measure(directory.path(), &arguments));
        assert_eq!((&cell["link"], &cell["between"]), (&json!("bywire"), &json!("namespaces")));
        let parameters = &cell["parameters"];
        assert_eq!((&parameters["security"], &parameters["mtu"]), (&json!(security), &json!(9000)));
        assert!(cell["value"].as_f64() > Some(0.0), "{cell}");
        assert!(cell["cpu"]["carriers"].is_object(), "the services of both nodes: {}", cell["cpu"]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
        eventually("no process is left", || nothing_runs(directory.path()));
    }
}

#[test]
fn operations_of_several_ranks_are_timed_and_every_result_is_right() {
    // Every second one goes to an implementation: both links, and both tests.
    let ways = [
        ("shm", "alltoall", "2"),
        ("bywire", "alltoall", "4"),
        ("bywire", "allreduce", "5"),
        ("shm", "allreduce", "3"),
    ];
    for (implementation, (link, test, ranks)) in crossed(&IMPLEMENTATIONS, &ways) {
        let Some(directory) = scratch_directory(implementation) else { continue };
        let arguments = [test, "--mpi", implementation, "--link", link, "--ranks", ranks];
        let arguments = [&arguments[..], &["--size", "1024", "--verify", "--time", "0.02"]].concat();
        let cell = cell(measure(directory.path(), &arguments));
        assert_eq!((&cell["test"], &cell["unit"]), (&json!(test), &json!("ns")));
        assert_eq!(cell["parameters"]["ranks"].to_string(), ranks);
        let [value, median] = [&cell["value"], &cell["details"]["operation_p50_ns"]].map(Value::as_f64);
        assert!(value > Some(0.0) && median > Some(0.0), "{cell}");
        eventually("no process is left", || nothing_runs(directory.path()));
    }
}

fn end_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    eventually("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn termination_at_any_moment_leaves_nothing() {
    for (implementation, link, moments_ms) in
        [("open-mpi", "veth", [200, 900, 1500]), ("mpich", "shm", [100, 400, 900])]
    {
        if link == "veth" && !may_make_namespaces() {
            continue;
        }
        let Some(directory) = scratch_directory(implementation) else { continue };
        let endings = [Signal::INT, Signal::TERM, Signal::KILL];
        for (signal, moment_ms) in endings.into_iter().zip(moments_ms) {
            let arguments = ["stream", "--mpi", implementation, "--link", link, "--time", "30"];
            let mut child = measure(directory.path(), &arguments).spawn().expect("it runs");
            std::thread::sleep(Duration::from_millis(moment_ms));
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = end_of(&mut child);
            // Until it has made itself ready to end in order, it dies of the signal.
            let died = status.signal() == Some(signal.as_raw());
            let ended = signal != Signal::KILL && status.code() == Some(130);
            assert!(died || ended, "{status}");
            eventually("no process is left", || nothing_runs(directory.path()));
        }
        // The next one removes the leftovers of a killed one.
        let arguments = ["latency", "--mpi", implementation, "--time", "0.005"];
        let output = measure(directory.path(), &arguments).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }
}

/// What this user's jobs of Open MPI have in `/dev/shm`: segments, or directories with some inside.
fn open_mpi_memory() -> BTreeSet<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let listed = |directory: &Path| -> Vec<PathBuf> {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let named = |path: &Path, beginning: &str| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(beginning.as_bytes()))
    };
    let is_segment = |path: &PathBuf| named(path, "vader_segment.");
    let is_ours = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == user);
    let mut paths = listed(Path::new("/dev/shm"));
    paths.retain(|path| {
        let has_some = || named(path, "bywire-lab-") && listed(path).iter().any(is_segment);
        is_ours(path) && (is_segment(path) || has_some())
    });
    paths.into_iter().collect()
}

/// What of it processes of a command in `directory` have mapped: other tests have jobs at the same time.
fn memory_of(directory: &Path) -> BTreeSet<PathBuf> {
    let mark = format!("{MARK}={}", directory.display()).into_bytes();
    let is_marked = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark)
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(is_marked);
    let maps: String =
        processes.filter_map(|process| fs::read_to_string(process.join("maps")).ok()).collect();
    let is_mapped = |path: &PathBuf| maps.contains(&path.display().to_string());
    open_mpi_memory().into_iter().filter(is_mapped).collect()
}

#[test]
fn an_interrupt_without_namespaces_leaves_no_shared_memory() {
    let Some(directory) = scratch_directory("open-mpi") else { return };
    let arguments = ["stream", "--mpi", "open-mpi", "--link", "shm", "--time", "30"];
    let measure = measure(directory.path(), &arguments);
    // Root may make namespaces but for this.
    let mut command = Command::new("setpriv");
    command.args(rustix::process::geteuid().is_root().then_some("--bounding-set=-sys_admin"));
    command.arg(measure.get_program()).args(measure.get_args());
    command.envs(measure.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return println!("not run: Open MPI without namespaces: setpriv of util-linux: {error}");
        }
    };
    let mut shared = BTreeSet::new();
    eventually("it shares memory", || {
        shared = memory_of(directory.path());
        !shared.is_empty()
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end_of(&mut child).code(), Some(130));
    eventually("no process is left", || nothing_runs(directory.path()));
    eventually("its memory is gone", || shared.iter().all(|path| !path.exists()));
}

#[test]
fn a_missing_implementation_is_reported_in_one_line_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    for (implementation, what_to_do) in
        [("open-mpi", "apt-get install openmpi-bin libopenmpi-dev"), ("mpich", "pip install mpich")]
    {
        let mut command = measure(directory.path(), &["latency", "--mpi", implementation]);
        command.env("PATH", directory.path()).env("XDG_CACHE_HOME", directory.path());
        let output = command.env_remove("BYWIRE_MPICH").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty());
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("is not installed") && said.contains(what_to_do), "{said}");
    }
}

#[test]
fn an_open_mpi_whose_compiler_fails_is_reported_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    for (name, script) in
        [("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.7'\n"), ("mpicc", "#!/bin/sh\nexit 1\n")]
    {
        let path = directory.path().join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = measure(directory.path(), &["latency", "--mpi", "open-mpi"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()));
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("mpicc said"), "{said}");
}
