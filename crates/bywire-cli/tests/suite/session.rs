//! A session keeps what it measured, and leaves nothing else, when it is interrupted at any of eight moments (eighty in
//! a soak), its disk is full, or its directory vanishes. A killed one keeps every pair. Finished measurements can be
//! read.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bywire_results::store;
use bywire_testing::{Tier, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::processes::{bywire, processes_of};

/// The latest time of an interrupt. A session of these cells takes a few seconds.
const LATEST_MS: u64 = 4000;

/// An interrupted session has ended within this time, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const SESSION: [&str; 6] = ["bench", "quick", "--time", "0.01", "--levels", "msg,unix,tcp"];

#[test]
fn a_session_interrupted_at_any_moment_keeps_its_cells_and_leaves_nothing() {
    let interrupts = Tier::current().pick([8, 8, 80]);
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || (0..interrupts / 2).for_each(|number| interrupted(2 * number + half)));
        }
    });
}

fn interrupted(number: u64) {
    let random = RandomState::new().hash_one(number);
    let signal = if number % 4 < 2 { Signal::INT } else { Signal::TERM };
    let delay = Duration::from_millis(random % LATEST_MS);
    let what = format!("{signal:?} after {delay:?}");
    let scratch = tempfile::tempdir().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let place = scratch.path().join("session");
    let arguments = [&SESSION[..], &["--output", place.to_str().unwrap()]].concat();
    let mut running = bywire(temporary.path(), &arguments).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(delay);
    let _ended_already = kill_process(Pid::from_child(&running), signal);
    let status = wait(&mut running, &what);
    eventually("no process is left", || processes_of(temporary.path()).is_empty());
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "{what}: a directory is left");
    if status.signal().is_some() {
        assert!(!place.exists(), "{what}: it died of it after it had begun");
        return;
    }
    let session = store::read(&place).unwrap_or_else(|error| panic!("{what}: {error}"));
    let expected = if session.complete { 0 } else { 130 };
    assert_eq!(status.code(), Some(expected), "{what}");
    let report = bywire(temporary.path(), &["report", place.to_str().unwrap()]).output().unwrap();
    assert!(report.status.success(), "{what}: {report:?}");
    assert!(report.stderr.is_empty(), "{what}: a line is torn: {}", said(&report));
    assert_eq!(
        fs::read_dir(&place).unwrap().count(),
        5,
        "{what}: session, cells, and the report with its picture and summary"
    );
}

fn wait(running: &mut Child, what: &str) -> std::process::ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = running.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > TIMEOUT {
            running.kill().unwrap();
            running.wait().unwrap();
            panic!("{what}: it has not ended for {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_session_in_rounds_that_is_killed_keeps_every_pair() {
    let scratch = tempfile::tempdir().unwrap();
    let place = scratch.path().join("session");
    // It has few ceilings, which come first.
    let whole = ["bench", "bip", "--time", "0.005", "--levels", "unix", "--rounds", "100", "--output"];
    let arguments = [&whole[..], &[place.to_str().unwrap()]].concat();
    let mut running = bywire(scratch.path(), &arguments).stdout(Stdio::null()).spawn().unwrap();
    let pairs = || -> Vec<usize> {
        let session = store::read(&place).unwrap_or_default();
        let cells = session.cells.iter().filter(|cell| cell.level == "unix");
        cells.map(|cell| cell.pairs()).collect()
    };
    let started = Instant::now();
    let taken = loop {
        let taken = pairs();
        if taken.iter().sum::<usize>() >= 20 {
            break taken;
        }
        assert!(started.elapsed() < TIMEOUT && running.try_wait().unwrap().is_none(), "{taken:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    running.kill().unwrap();
    running.wait().unwrap();
    let kept = pairs();
    assert!(kept.len() >= 9 && kept.iter().sum::<usize>() >= taken.iter().sum(), "{taken:?}, then {kept:?}");
    let report = bywire(scratch.path(), &["report", place.to_str().unwrap()]).output().unwrap();
    let told = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.status.success() && told.contains("interrupted"), "{told} {}", said(&report));
    eventually("no process is left", || processes_of(scratch.path()).is_empty());
}

#[test]
fn a_full_disk_during_a_session_keeps_finished_measurements() {
    let scratch = tempfile::tempdir().unwrap();
    let place = scratch.path().join("session");
    // A file size limit stands for a full disk: the cells reach it long before the session's end.
    let output = limited(scratch.path(), 32, &place);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let line = said(&output);
    assert_eq!(line.lines().count(), 1, "{line}");
    let session = store::read(&place).unwrap();
    assert!(!session.complete && !session.cells.is_empty());
    let kept = format!("{} cell", session.cells.len());
    assert!(line.contains("cells.jsonl") && line.contains(&kept) && line.contains("bywire report"), "{line}");
    assert_eq!(store::cut_off(&place, session.cells.len()).unwrap(), None, "a line is torn");
    let report = bywire(scratch.path(), &["report", place.to_str().unwrap()]).output().unwrap();
    assert!(report.status.success(), "{}", said(&report));
}

#[test]
fn a_disk_that_is_full_from_the_start_is_reported_in_one_line() {
    let scratch = tempfile::tempdir().unwrap();
    let place = scratch.path().join("session");
    let output = limited(scratch.path(), 0, &place);
    assert!(!output.status.success());
    let line = said(&output);
    assert!(line.lines().count() == 1 && line.contains("cannot write"), "{line}");
    assert!(!place.exists(), "an empty session is left");
}

/// A session with a file size limit in KiB.
fn limited(scratch: &Path, kilobytes: u32, place: &Path) -> Output {
    let mut shell = Command::new("sh");
    // Units of 512 bytes. The signal is ignored, because a full disk only fails the call.
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", 2 * kilobytes);
    shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_bywire")]).args(SESSION).arg("--output").arg(place);
    shell.env("TMPDIR", scratch).stdin(Stdio::null()).stdout(Stdio::null());
    shell.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn a_directory_removed_during_a_session_keeps_its_files() {
    let scratch = tempfile::tempdir().unwrap();
    let (place, elsewhere) = (scratch.path().join("session"), scratch.path().join("elsewhere"));
    // Every pair is stored, and the session would last for long.
    let long = ["bench", "quick", "--time", "2", "--levels", "msg,unix,tcp", "--output"];
    let arguments = [&long[..], &[place.to_str().unwrap()]].concat();
    let running = bywire(scratch.path(), &arguments).stdout(Stdio::null()).spawn().unwrap();
    eventually("a cell is stored", || store::read(&place).is_ok_and(|session| !session.cells.is_empty()));
    fs::rename(&place, &elsewhere).unwrap();
    let output = running.wait_with_output().unwrap();
    let line = said(&output);
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    assert!(line.contains(place.to_str().unwrap()), "{line}");
    assert!(!store::read(&elsewhere).unwrap().cells.is_empty());
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
