//! The laboratory over Ethernet, by `bywire measure eth`: every way of carrying, the fields of a cell, several
//! connections and what TCP sends again, other tests of TCP, nothing left after an interrupt or a kill at any of nine
//! moments (42 in a soak). The other tests of TCP run over both links in a soak, and over one of them before. Needs
//! root.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output};
use std::time::Duration;

use bywire_testing::draw::crossed;
use bywire_testing::{Tier, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::processes::{bywire, nothing_is_left, processes_of};

/// A directory to measure in. `None` where this machine cannot measure, after the reason is printed.
fn scratch_directory() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().expect("a directory");
    let output = measure(directory.path(), &["latency", "--time", "0.01"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let reasons =
        ["cannot make a network namespace", "level eth makes interfaces of its own", "cannot run `ip`"];
    if !output.status.success() && reasons.iter().any(|reason| said.contains(reason)) {
        assert_eq!(said.lines().count(), 1, "{said}");
        println!("not run: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(directory)
}

fn measure(directory: &Path, arguments: &[&str]) -> Output {
    let all = [&["measure", "eth"], arguments, &["--json"]].concat();
    bywire(directory, &all).output().expect("it runs")
}

fn cell(directory: &Path, arguments: &[&str]) -> Value {
    let output = measure(directory, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn a_cell_has_how_its_frames_were_carried_and_the_cost() {
    let Some(directory) = scratch_directory() else { return };
    for link in ["one-process", "two-processes"] {
        for (test, protocol) in [("stream", "tcp"), ("rr", "tcp"), ("latency", "udp")] {
            let arguments =
                [test, "--link", link, "--protocol", protocol, "--mtu", "9000", "--time", "0.05", "--verify"];
            let cell = cell(directory.path(), &arguments);
            assert_eq!((&cell["level"], &cell["link"]), (&json!("eth"), &json!(link)));
            assert_eq!(cell["between"], "namespaces");
            let parameters = &cell["parameters"];
            assert_eq!((&parameters["mtu"], &parameters["protocol"]), (&json!(9000), &json!(protocol)));
            assert!(cell["value"].as_f64() > Some(0.0));
            for end in ["source", "target", "carriers"] {
                assert!(cell["cpu"][end]["attributed"].as_f64() > Some(0.0), "{end}: {}", cell["cpu"]);
            }
            let details = &cell["details"];
            if protocol == "tcp" {
                assert!(details["segments_sent"].as_u64() > Some(0), "{details}");
                assert!(
                    details["segments_sent_again"].as_u64() < details["segments_sent"].as_u64(),
                    "{details}"
                );
            } else {
                assert_eq!(details["segments_sent"], Value::Null, "TCP is not what is measured");
            }
            let per = if test == "stream" { "kb" } else { "transaction" };
            let demand = &cell["cpu"]["carriers"][format!("service_demand_us_per_{per}")];
            assert!(demand.as_f64() > Some(0.0), "{}", cell["cpu"]);
        }
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn frames_cross_between_two_nodes_plain_and_encrypted() {
    let Some(directory) = scratch_directory() else { return };
    for (security, mtu, interface_mtu) in [("plain", "1500", 1350), ("encrypted", "9000", 8850)] {
        for (test, protocol) in [("stream", "tcp"), ("rr", "tcp"), ("latency", "udp")] {
            let way = ["--link", "udp", "--security", security, "--mtu", mtu, "--protocol", protocol];
            let cell = cell(directory.path(), &[&[test, "--time", "0.05", "--verify"], &way[..]].concat());
            assert_eq!((&cell["level"], &cell["link"]), (&json!("eth"), &json!("udp")));
            assert_eq!((&cell["test"], &cell["between"]), (&json!(test), &json!("namespaces")));
            let parameters = &cell["parameters"];
            assert_eq!(
                (&parameters["security"], parameters["mtu"].to_string()),
                (&json!(security), mtu.into())
            );
            assert_eq!(cell["details"]["interface_mtu_bytes"], interface_mtu);
            assert!(cell["value"].as_f64() > Some(0.0));
            assert!(cell["cpu"]["carriers"]["attributed"].as_f64() > Some(0.0), "{}", cell["cpu"]);
        }
    }
    let usual = cell(directory.path(), &["latency", "--link", "udp", "--time", "0.02"]);
    assert_eq!(usual["parameters"]["security"], "encrypted");
    nothing_is_left(directory.path());
}

#[test]
fn streams_round_trips_and_latencies_are_measured_at_a_standard_and_a_large_mtu() {
    let Some(directory) = scratch_directory() else { return };
    let before = interfaces();
    for test in [&["stream"][..], &["rr", "--size", "1"], &["latency"]] {
        for mtu in ["1500", "9000"] {
            let cell = cell(directory.path(), &[test, &["--mtu", mtu, "--time", "0.05"]].concat());
            assert_eq!((&cell["test"], &cell["level"]), (&json!(test[0]), &json!("eth")));
            assert_eq!(cell["parameters"]["mtu"].to_string(), mtu);
            if test.len() > 1 {
                assert_eq!(cell["size_bytes"], 1, "{cell}");
            }
            assert!(cell["value"].as_f64() > Some(0.0));
            nothing_is_left(directory.path());
        }
    }
    assert_eq!(interfaces(), before);
}

#[test]
fn several_connections_share_a_carrier_and_retransmissions_are_counted() {
    let Some(directory) = scratch_directory() else { return };
    for link in ["two-processes", "udp", "veth"] {
        let all = ["streams", "--connections", "4", "--mtu", "9000", "--link", link, "--time", "1"];
        let cell = cell(directory.path(), &all);
        assert_eq!((&cell["test"], &cell["parameters"]["connections"]), (&json!("streams"), &json!(4)));
        let [sent, again] =
            ["segments_sent", "segments_sent_again"].map(|name| cell["details"][name].as_u64());
        assert!(sent > Some(0) && again.is_some() && again < sent, "{}", cell["details"]);
    }
}

#[test]
fn datagrams_longer_than_the_mtu_still_arrive_after_losses() {
    let Some(directory) = scratch_directory() else { return };
    let arguments = ["stream", "--protocol", "udp", "--size", "8KiB", "--mtu", "1500", "--time", "0.5"];
    assert!(cell(directory.path(), &arguments)["value"].as_f64() > Some(0.0));
}

#[test]
fn plain_veth_is_measured_without_carriers() {
    let Some(directory) = scratch_directory() else { return };
    let cell = cell(directory.path(), &["stream", "--link", "veth", "--time", "0.05"]);
    assert_eq!((&cell["level"], &cell["link"]), (&json!("eth"), &json!("veth")));
    assert_eq!(cell["parameters"]["mtu"], 1500);
    assert_eq!(cell["cpu"]["carriers"], Value::Null);
}

#[test]
fn every_test_of_tcp_runs_over_it() {
    let Some(directory) = scratch_directory() else { return };
    let tests = [("bidir", "0.02"), ("overhead", "0.02"), ("interleave", "0.02"), ("nhalf", "0.1")];
    for ((test, seconds), link) in crossed(&tests, &["one-process", "udp"]) {
        let cell = cell(directory.path(), &[test, "--link", link, "--time", seconds]);
        assert_eq!((&cell["test"], &cell["link"]), (&json!(test), &json!(link)));
    }
}

#[test]
fn netperf_style_prints_the_protocol_of_the_ends() {
    let Some(directory) = scratch_directory() else { return };
    let all = ["measure", "eth", "rr", "--size", "1", "--time", "2.5", "--style", "netperf"];
    let output = bywire(directory.path(), &all).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("TCP REQUEST/RESPONSE TEST to "), "{said}{output:?}");
}

/// The interfaces of the machine's own namespace, without what they have counted.
fn interfaces() -> Vec<String> {
    let listing = fs::read_to_string("/proc/net/dev").unwrap();
    listing.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// A long measurement, carried by two processes, with its ends already at work.
fn long_measurement(directory: &Path) -> Child {
    let all = ["measure", "eth", "stream", "--link", "two-processes", "--time", "600"];
    let running = bywire(directory, &all).spawn().expect("it runs");
    eventually("two carriers and two workers", || {
        let processes = processes_of(directory);
        let count = |part: &str| processes.iter().filter(|command| command.contains(part)).count();
        count("__carrier") == 2 && count("__worker") == 2
    });
    running
}

fn signal(running: &Child, signal: Signal) {
    kill_process(Pid::from_child(running), signal).unwrap();
}

#[test]
fn an_interrupt_leaves_nothing() {
    let Some(directory) = scratch_directory() else { return };
    let mut running = long_measurement(directory.path());
    signal(&running, Signal::INT);
    assert_eq!(running.wait().unwrap().code(), Some(130));
    nothing_is_left(directory.path());
}

#[test]
fn a_killed_measurement_leaves_no_process_and_the_next_removes_its_files() {
    let Some(directory) = scratch_directory() else { return };
    let mut running = long_measurement(directory.path());
    signal(&running, Signal::KILL);
    running.wait().unwrap();
    eventually("no process is left", || processes_of(directory.path()).is_empty());
    cell(directory.path(), &["latency", "--time", "0.01"]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the next one removed them");
}

/// One measurement that was ended at some moment by some signal.
struct Ended {
    arguments: [&'static str; 6],
    signal: Signal,
    moment: Duration,
}

/// As many as there are moments, one in each stretch, with everything else in turn.
fn ends(moments: u32) -> impl Iterator<Item = Ended> {
    const SPAN: Duration = Duration::from_millis(840);
    let stretch = SPAN / moments;
    let rr = ["rr", "--size", "1"];
    let tests = [["stream", "--size", "8KiB"], ["latency", "--size", "64"], rr, ["stream", "--size", "1"]];
    (0..moments).map(move |number| {
        let [test, size, bytes] = tests[number as usize % 4];
        let mtu = if number % 3 == 0 { "9000" } else { "1500" };
        let link = ["--link=two-processes", "--link=udp", "--json"][number as usize % 5 / 2];
        let share = RandomState::new().hash_one(number) as f64 / u64::MAX as f64;
        Ended {
            arguments: [test, size, bytes, "--mtu", mtu, link],
            signal: [Signal::INT, Signal::TERM, Signal::KILL][number as usize % 3],
            moment: stretch * number + stretch.mul_f64(share),
        }
    })
}

#[test]
fn termination_at_any_moment_leaves_nothing() {
    let Some(directory) = scratch_directory() else { return };
    let directory = directory.path();
    let before = interfaces();
    let left = || fs::read_dir(directory).unwrap().count();
    for Ended { arguments, signal: number, moment } in ends(Tier::current().pick([9, 9, 42])) {
        let what = format!("{arguments:?} {number:?} after {moment:?}");
        let left_before = left();
        let all = [&["measure", "eth"][..], &arguments, &["--time", "600"]].concat();
        let mut running = bywire(directory, &all).spawn().expect("it runs");
        std::thread::sleep(moment);
        signal(&running, number);
        let status = running.wait().unwrap();
        // Before it listens, a signal ends it as it ends any program.
        let has_ended = status.signal() == Some(number.as_raw()) || status.code() == Some(130);
        assert!(has_ended && (number != Signal::KILL || status.code().is_none()), "{what}: {status}");
        eventually(&format!("no process is left: {what}"), || processes_of(directory).is_empty());
        if number != Signal::KILL {
            // It may have ended before it could remove the leftovers of an earlier one.
            assert!(left() <= left_before, "{what}");
        }
    }
    assert_eq!(interfaces(), before);
    cell(directory, &["latency", "--time", "0.01"]);
    assert_eq!(left(), 0, "the next one removed what killed ones left");
}
