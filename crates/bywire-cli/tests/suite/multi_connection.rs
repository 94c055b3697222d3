//! Several connections at once, by the command: each one's figure, nodes around a switch, nothing left after an
//! interrupt. A soak has every test of every level and 64 connections; before it there is a draw with each level and
//! each test and 16 connections.

use std::path::Path;
use std::process::Output;

use bywire_testing::draw::crossed;
use bywire_testing::{Tier, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::processes::{bywire, nothing_is_left, processes_of};

fn measure(directory: &Path, arguments: &[&str]) -> Output {
    let all = [&["measure"], arguments, &["--json"]].concat();
    bywire(directory, &all).output().expect("it runs")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn check(cell: &Value, test: &str, connections: usize) {
    let unit = if test == "hotspot" { "ns" } else { "bytes_per_second" };
    let details = &cell["details"];
    let each: Vec<f64> = details[format!("connections_{unit}")]
        .as_array()
        .unwrap_or_else(|| panic!("{details}"))
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    assert_eq!(each.len(), connections, "{details}");
    assert!(each.iter().all(|value| *value > 0.0), "{details}");
    let fairness = details["fairness_jain"].as_f64().unwrap();
    assert!(fairness > 0.99 / connections as f64 && fairness < 1.0 + 1e-9, "{fairness}");
    let size_bytes = cell["size_bytes"].as_f64().unwrap();
    assert_ne!(cell["blocks"], Value::Array(Vec::new()), "{cell}");
    for block in cell["blocks"].as_array().unwrap() {
        let [value, seconds, operations] =
            ["value", "seconds", "operations"].map(|name| block[name].as_f64().unwrap());
        if test == "hotspot" {
            // No mean is below the harmonic one, which is that of all round trips.
            let harmonic = 0.5e9 * connections as f64 * seconds / (operations + 1.0);
            assert!(value >= harmonic, "{block}");
        } else {
            let off = (value * seconds / size_bytes - operations).abs();
            assert!(off < 0.51, "what all of them carried in that time: {block}");
        }
    }
    if test != "hotspot" {
        // In no group one has more than all, so neither do their medians.
        let value = cell["value"].as_f64().unwrap();
        assert!(each.iter().all(|each| *each <= value * (1.0 + 1e-9)), "{value}: {details}");
    }
    for end in ["source", "target"] {
        let cpu = &cell["cpu"][end];
        let share = cpu["attributed"].as_f64().unwrap();
        // All ends of a side share a core, where there is one for each side.
        assert!(share > 0.0 && (share < 1.05 || cpu["core"].is_null()), "{end}: {cpu}");
    }
}

/// Blocks of 200 ms: a loaded machine does not begin all of them within a short one.
const TIME: [&str; 2] = ["--time", "1"];

#[test]
fn every_available_level_runs_every_test() {
    let directory = tempfile::tempdir().unwrap();
    let mut cells = crossed(&["msg", "unix", "tcp", "udp"], &["streams", "hotspot", "fanin", "fanout"]);
    // The port that several peers share is at the source in this one, and else at the target.
    let from_one_port = ("msg", "fanout");
    if !cells.contains(&from_one_port) {
        cells.push(from_one_port);
    }
    for (level, test) in cells {
        let arguments = [&[level, test, "--connections", "3"], &TIME[..]].concat();
        let output = measure(directory.path(), &arguments);
        assert!(output.status.success(), "{level} {test}: {}", complaint(&output));
        let cell: Value = serde_json::from_slice(&output.stdout).unwrap();
        check(&cell, test, 3);
        assert_eq!(cell["parameters"]["connections"], 3);
        let shared_port = if test == "fanout" { "peers_of_one_port" } else { "target_peers_of_one_port" };
        assert_eq!(
            cell["details"][shared_port].as_u64(),
            (level == "msg").then_some(3),
            "{}",
            cell["details"]
        );
    }
    // A process for each end of each connection is started five times.
    let (connections, seconds) = Tier::current().pick([(16, "3"), (16, "3"), (64, "4")]);
    let arguments = ["unix", "streams", "--connections", &connections.to_string(), "--time", seconds];
    let output = measure(directory.path(), &arguments);
    assert!(output.status.success(), "{}", complaint(&output));
    let cell: Value = serde_json::from_slice(&output.stdout).unwrap();
    check(&cell, "streams", connections);
    assert!(cell["details"]["limited_by"].as_str().unwrap().contains("core"), "{}", cell["details"]);
    nothing_is_left(directory.path());
}

#[test]
fn nodes_are_connected_by_a_switch() {
    let directory = tempfile::tempdir().unwrap();
    let ways: [&[&str]; 5] = [
        &["tcp", "fanin"],
        &["eth", "fanout", "--mtu", "9000"],
        &["eth", "hotspot", "--link", "two-processes"],
        &["eth", "hotspot", "--link", "udp"],
        &["eth", "fanin", "--link", "udp", "--security", "plain"],
    ];
    for way in ways {
        let more = ["--connections", "4", "--nodes", "4"];
        let output = measure(directory.path(), &[way, &more[..], &TIME[..]].concat());
        let said = complaint(&output);
        let reasons =
            ["cannot make a network namespace", "makes interfaces of its own", "cannot run `ip`", "bridge"];
        if !output.status.success() && reasons.iter().any(|reason| said.contains(reason)) {
            println!("not run: {said}");
            return;
        }
        assert!(output.status.success(), "{way:?}: {said}");
        let cell: Value = serde_json::from_slice(&output.stdout).unwrap();
        check(&cell, way[1], 4);
        let link = if way[0] == "tcp" { "bridge" } else { cell["link"].as_str().unwrap() };
        assert_eq!((cell["link"].as_str(), cell["parameters"]["nodes"].as_u64()), (Some(link), Some(4)));
    }
    nothing_is_left(directory.path());
}

#[test]
fn an_interrupt_ends_all_connections() {
    let directory = tempfile::tempdir().unwrap();
    let all = ["measure", "msg", "streams", "--connections", "8", "--time", "60"];
    let mut running = bywire(directory.path(), &all).spawn().unwrap();
    eventually("10 processes, one port with eight peers", || processes_of(directory.path()).len() >= 10);
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    nothing_is_left(directory.path());
}

#[test]
fn invalid_combinations_are_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let refusals: [(&[&str], &str); 6] = [
        (&["tcp", "streams", "--connections", "65"], "1 to 64"),
        (&["tcp", "latency", "--connections", "2"], "--connections does not apply"),
        (&["unix", "fanin", "--nodes", "4"], "--nodes"),
        (&["msg", "fanin", "--nodes", "4"], "--nodes"),
        (&["tcp", "fanin", "--nodes", "1"], "2 to 64"),
        (&["tcp", "streams", "--between", "localhost"], "takes place on one machine"),
    ];
    for (arguments, part) in refusals {
        let output = measure(directory.path(), arguments);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}
