//! `bywire measure web` with real nginx and Apache over every link, to the byte: the contents of a cell, and an end at
//! any moment by any signal, or the killing of its keeper, leaves no server, process or file. Finished measurements are
//! kept. The signals are each during each measurement in a soak, and a drawn one before.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use bywire_results::store;
use bywire_testing::draw::crossed;
use bywire_testing::{Tier, eventually};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::{Value, json};

use crate::processes::{bywire, nothing_is_left, processes_of};

/// Reasons why a machine cannot run a test.
const REASONS: [&str; 4] =
    ["is not installed", "cannot make a network namespace", "makes interfaces of its own", "cannot run `ip`"];

fn measure(directory: &Path, arguments: &[&str]) -> Output {
    let all = [&["measure", "web"], arguments, &["--json"]].concat();
    bywire(directory, &all).output().expect("it runs")
}

/// A cell, or nothing where this machine cannot.
fn cell(directory: &Path, arguments: &[&str]) -> Option<Value> {
    let output = measure(directory, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && REASONS.iter().any(|reason| said.contains(reason)) {
        assert_eq!(said.lines().count(), 1, "{said}");
        println!("not run: {arguments:?}: {said}");
        return None;
    }
    assert!(output.status.success(), "{arguments:?}: {said}");
    Some(serde_json::from_slice(&output.stdout).expect("one JSON object"))
}

/// The directories of servers that were started by `process`.
fn places_of(process: u32) -> Vec<String> {
    let mine = format!("bywire-web-{process}-");
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&mine)).collect()
}

/// Processes that work in such a directory; servers overwrite their environment with their title.
fn servers_of(process: u32) -> Vec<u32> {
    let mine = format!("/bywire-web-{process}-");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let works_there = |process: &u32| {
        let place = fs::read_link(format!("/proc/{process}/cwd")).unwrap_or_default();
        place.to_string_lossy().contains(&mine)
    };
    processes.filter(works_there).collect()
}

fn nothing_of_servers_is_left(directory: &Path, process: u32) {
    eventually("no process is left", || processes_of(directory).is_empty());
    eventually("no server is left", || servers_of(process).is_empty());
    eventually("no files are left in memory", || places_of(process).is_empty());
}

fn check(cell: &Value) {
    assert_eq!((&cell["level"], &cell["unit"]), (&json!("web"), &json!("transactions_per_second")));
    let peak = cell["value"].as_f64().unwrap();
    assert!(peak > 0.0);
    for end in ["source", "target"] {
        assert!(cell["cpu"][end]["attributed"].as_f64() > Some(0.0), "{end}: {}", cell["cpu"]);
    }
    let details = &cell["details"];
    // Quantiles are there where enough requests are.
    let of = |name: &str| details[name].as_f64();
    let ascend = |values: &[Option<f64>]| values.iter().flatten().is_sorted();
    let loads = details["open_loads"].as_array().unwrap();
    assert_eq!(loads.len(), 3);
    for (load, share) in loads.iter().zip([0.5, 0.7, 0.9]) {
        assert_eq!(load["share"], json!(share));
        let name = |what: &str| format!("open_{:.0}_{what}", 100.0 * share);
        let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(|what| of(&name(what)));
        assert!(ascend(&[p50, p99, p999]), "{details}");
        let due = load["due"].as_u64().unwrap();
        assert_eq!((p50.is_some(), p99.is_some(), p999.is_some()), (due >= 20, due >= 1000, due >= 10_000));
        // From when it was due nothing can be shorter than from when it was sent.
        assert!(ascend(&[of(&name("from_send_p99_ns")), p99.map(|p99| 1.01 * p99)]), "{details}");
        let counted: u64 = load["from_intended_send_ns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bucket| bucket[1].as_u64().unwrap())
            .sum();
        assert_eq!(Some(counted), load["due"].as_u64(), "every request that was due has a time");
    }
    assert!(details["server_version"].as_str().is_some_and(|version| version.contains('/')), "{details}");
}

#[test]
fn real_servers_answer_over_every_link_and_every_byte_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let ways: [&[&str]; 8] = [
        &["web-file", "--server", "nginx", "--size", "64"],
        &["web-file", "--server", "apache", "--size", "300000"],
        &["web-file", "--server", "nginx", "--link", "unix", "--size", "1MiB", "--connections", "3"],
        &["web-zipf", "--server", "apache", "--link", "eth", "--alpha", "1.2", "--documents", "100"],
        &["web-zipf", "--server", "nginx", "--rank", "independent", "--connections", "64"],
        &["web-file", "--server", "nginx", "--link", "veth", "--mtu", "9000", "--segmentation", "off"],
        &["web-zipf", "--server", "nginx", "--link", "sock", "--documents", "100", "--connections", "40"],
        &["web-file", "--server", "apache", "--link", "sock", "--size", "100000"],
    ];
    for way in ways {
        let arguments = [way, &["--time", "0.3", "--verify"]].concat();
        let Some(cell) = cell(directory.path(), &arguments) else { continue };
        check(&cell);
        let parameters = &cell["parameters"];
        assert_eq!(parameters["server"], json!(way[2]));
        assert_eq!(parameters["alpha"].is_null(), way[0] == "web-file", "{parameters}");
        let carried = way.contains(&"eth");
        assert_eq!(cell["cpu"]["carriers"]["attributed"].as_f64() > Some(0.0), carried, "{}", cell["cpu"]);
    }
    nothing_is_left(directory.path());
}

#[test]
fn a_trace_is_the_same_for_the_same_seed() {
    let directory = tempfile::tempdir().unwrap();
    let trace = |name: &str, seed: &str| {
        let path = directory.path().join(name);
        let path = path.to_str().unwrap();
        // The file is written before cores are chosen, and this machine has no such core.
        let arguments = ["web-zipf", "--seed", seed, "--trace-out", path, "--cores", "0,4000"];
        let said = String::from_utf8(measure(directory.path(), &arguments).stderr).unwrap();
        assert!(said.contains("core 4000"), "{said}");
        fs::read_to_string(path).unwrap()
    };
    let (one, again, other) = (trace("one", "7"), trace("again", "7"), trace("other", "8"));
    assert!(one == again && one != other);
    assert_eq!(one.lines().count(), 65_536);
    assert!(one.lines().all(|path| path.len() == 7 && path.starts_with('/')));
}

#[test]
fn invalid_combinations_are_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let refusals: [(&[&str], &str); 9] = [
        (&["latency"], "web-file, web-zipf"),
        (&["web-file", "--server", "apache", "--link", "unix"], "no Unix-domain socket"),
        (&["web-file", "--link", "sock", "--mtu", "9000"], "--mtu does not apply"),
        (&["web-file", "--alpha", "1"], "--alpha does not apply"),
        (&["web-zipf", "--alpha", "-1"], "give 0 to 4"),
        (&["web-file", "--connections", "257"], "1 to 256"),
        (&["web-file", "--untouched"], "--untouched does not apply"),
        (&["web-file", "--mpi", "mpich"], "--mpi does not apply"),
        (&["web-file", "--segmentation", "off"], "--segmentation does not apply"),
    ];
    for (arguments, part) in refusals {
        let output = measure(directory.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    let elsewhere = bywire(directory.path(), &["measure", "tcp", "latency", "--server", "nginx"]).output();
    let said = String::from_utf8(elsewhere.unwrap().stderr).unwrap();
    assert!(said.contains("--server does not apply to tcp latency"), "{said}");
}

fn random_below(bound: u64) -> u64 {
    RandomState::new().hash_one(0) % bound
}

/// The parent of a process, by its `stat`, where a name in parentheses may contain anything.
fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Ends `running` by each signal at a random moment within `span`.
fn end(running: &mut Child, signal: Signal, span: Duration) {
    let moment = Duration::from_millis(random_below(span.as_millis() as u64));
    println!("{signal:?} after {moment:?}");
    std::thread::sleep(moment);
    kill_process(Pid::from_child(running), signal).unwrap();
    running.wait().unwrap();
}

#[test]
fn termination_at_any_moment_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let measured: [&[&str]; 5] = [
        &["web", "web-file", "--server", "nginx"],
        &["web", "web-zipf", "--server", "apache", "--link", "eth"],
        &["tcp", "fanin", "--connections", "6", "--nodes", "4"],
        &["eth", "streams", "--connections", "4", "--nodes", "4", "--link", "two-processes"],
        &["sock", "stream"],
    ];
    for (arguments, signal) in crossed(&measured, &[Signal::INT, Signal::TERM, Signal::KILL]) {
        let all = [&["measure"], arguments, &["--time", "30"]].concat();
        let mut running = bywire(directory.path(), &all).spawn().unwrap();
        end(&mut running, signal, Duration::from_millis(1200));
        nothing_of_servers_is_left(directory.path(), running.id());
    }
    // The directory where carrying processes of a killed one met goes with the next one that makes such a place.
    let next = bywire(directory.path(), &["measure", "msg", "latency", "--time", "0.01"]).output().unwrap();
    assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
}

/// Waits as long as a loaded machine may need, and no longer than `running` runs, which is left to be waited for.
fn await_beside(running: &Child, what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    let ended = || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(running)), options).unwrap().is_some()
    };
    while !condition() {
        // The last state counts.
        assert!(!ended() || condition(), "it ended before: {what}");
        assert!(started.elapsed() < Duration::from_secs(120), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn termination_while_a_server_starts_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    // It has a version and never listens. A process of its own writes it, as one that is being written cannot be run.
    let program = directory.path().join("nginx");
    let script = "#!/bin/sh\n[ \"$1\" = -v ] && { echo nginx version: nginx/0; exit; }\nexec sleep 1000\n";
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh", script])
        .arg(&program)
        .status();
    assert!(written.unwrap().success());
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap_or_default());
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut command = bywire(directory.path(), &["measure", "web", "web-file", "--time", "1"]);
        let mut running = command.env("PATH", &path).spawn().unwrap();
        let process = running.id();
        await_beside(&running, "the server starts", || !servers_of(process).is_empty());
        kill_process(Pid::from_child(&running), signal).unwrap();
        running.wait().unwrap();
        nothing_of_servers_is_left(directory.path(), process);
    }
}

#[test]
fn a_server_ends_even_if_its_guard_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root()
        || cell(directory.path(), &["web-file", "--time", "0.25"]).is_none()
    {
        println!("not run: a server has a namespace of its own only as root, with nginx installed");
        return;
    }
    let isolates = Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !isolates.is_ok_and(|status| status.success()) {
        println!("not run: this machine allows no namespace of processes");
        return;
    }
    for link in ["tcp", "sock"] {
        let all = ["measure", "web", "web-file", "--server", "nginx", "--link", link, "--time", "60"];
        let mut running = bywire(directory.path(), &all).spawn().unwrap();
        let process = running.id();
        // The one that answers runs as another user.
        let is_served = || {
            let is_other =
                |server: &u32| fs::metadata(format!("/proc/{server}")).is_ok_and(|of| of.uid() != 0);
            servers_of(process).iter().any(is_other)
        };
        await_beside(&running, "the server answers", is_served);
        let place = Path::new("/dev/shm").join(&places_of(process)[0]);
        for path in [&place, &place.join("site")] {
            assert_eq!(
                fs::metadata(path).unwrap().mode() & 0o7027,
                0,
                "nobody else enters {}",
                path.display()
            );
        }
        let servers = servers_of(process);
        let keepers: Vec<u32> = servers.iter().filter_map(|server| parent_of(*server)).collect();
        let is_keeper = |keeper: &&u32| parent_of(**keeper) == Some(process);
        let keeper = *keepers.iter().find(is_keeper).expect("a child of the command keeps the server");
        let keeper = Pid::from_raw(keeper as i32).unwrap();
        // It would clean up at the end of its parent, did it not end in its sleep.
        kill_process(keeper, Signal::STOP).unwrap();
        kill_process(Pid::from_child(&running), Signal::KILL).unwrap();
        running.wait().unwrap();
        kill_process(keeper, Signal::KILL).unwrap();
        eventually("no server is left", || servers_of(process).is_empty());
        eventually("no process is left", || processes_of(directory.path()).is_empty());
        let next = measure(directory.path(), &["web-file", "--time", "0.25"]);
        assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
        assert_eq!(places_of(process), [""; 0], "the next one removes what it left in memory");
    }
}

#[test]
fn an_interrupted_session_keeps_finished_measurements() {
    let directory = tempfile::tempdir().unwrap();
    if cell(directory.path(), &["web-file", "--time", "0.25"]).is_none() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let session = directory.path().join(format!("{signal:?}"));
        let session = session.to_str().unwrap();
        // Cells of servers take the shortest time that they may. Ceilings come first.
        let all = ["bench", "toe", "--levels", "web", "--time", "0.005", "--output", session];
        let mut running = bywire(directory.path(), &all).spawn().unwrap();
        let place = Path::new(session);
        let has_cell = || match Tier::current() {
            // Its group has all pairs of its cells.
            Tier::Soak => {
                fs::read_to_string(place.join("cells.jsonl")).is_ok_and(|text| text.contains("\"web-"))
            }
            // The first pair is a finished measurement, too.
            _ => store::read(place).is_ok_and(|kept| kept.cells.iter().any(|cell| cell.level == "web")),
        };
        await_beside(&running, "a cell of a server is stored", has_cell);
        end(&mut running, signal, Duration::from_millis(500));
        nothing_of_servers_is_left(directory.path(), running.id());
        let report = bywire(directory.path(), &["report", session, "--csv"]).output().unwrap();
        let text = String::from_utf8(report.stdout).unwrap();
        assert!(report.status.success() && text.contains("web-"), "{text}");
    }
}
