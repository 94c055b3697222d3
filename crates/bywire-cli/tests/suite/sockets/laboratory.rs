//! The level `sock` of the laboratory measures carried bytes, or fails and says why there is nothing to measure.
//! Spinning does not make carried connections slower than TCP when other programs want the cores.

use serde_json::Value;

use super::{Fabric, ended, said};

fn measure(fabric: &Fabric, words: &[&str]) -> std::process::Command {
    let mut command = fabric.plain(&[&[env!("CARGO_BIN_EXE_bywire"), "measure"], words].concat());
    command.env("TMPDIR", fabric.directory.path());
    command
}

#[test]
fn measured_connections_were_carried_and_have_the_fields_of_the_kernels() {
    let fabric = Fabric::new();
    let tests: [&[&str]; 11] = [
        &["rr", "--size", "1"],
        &["rr", "--epoll", "--no-spin"],
        &["rr", "--spin"],
        &["stream", "--size", "64KiB", "--verify"],
        &["latency", "--verify"],
        &["overhead"],
        &["fanin", "--connections", "4"],
        &["rr", "--size", "1", "--domain", "unix"],
        &["rr", "--epoll", "--no-spin", "--domain", "unix"],
        &["stream", "--size", "64KiB", "--verify", "--domain", "unix"],
        &["overhead", "--domain", "unix"],
    ];
    for test in tests {
        // Several connections that do not run at one time are measured again, which takes longer than longer blocks.
        let seconds = if test.contains(&"--connections") { "1" } else { "0.05" };
        let words = [&["sock"], test, &["--time", seconds, "--json"]].concat();
        let cell: Value = serde_json::from_str(&said(measure(&fabric, &words))).expect("JSON");
        assert_eq!((&cell["level"], &cell["link"]), (&"sock".into(), &"shm".into()));
        assert!(cell["value"].as_f64() > Some(0.0), "{cell}");
        for end in ["source", "target"] {
            assert!(cell["cpu"][end]["attributed"].as_f64().is_some(), "{cell}");
        }
        let spin = &cell["parameters"]["spin"];
        let due = if test.contains(&"--no-spin") { Value::from(false) } else { "adaptive".into() };
        assert_eq!(*spin, due, "{test:?}");
        let domain = cell["parameters"].get("domain").and_then(Value::as_str);
        assert_eq!(domain, test.contains(&"--domain").then_some("unix"), "{test:?}");
    }
    // Nothing is left in the directory where pairs meet.
    let left: Vec<_> = std::fs::read_dir(fabric.directory.path()).expect("a directory").flatten().collect();
    assert!(
        left.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with("bywire-lab-")),
        "{left:?}"
    );
}

#[test]
fn connections_that_are_not_carried_fail_the_measurement() {
    let fabric = Fabric::new();
    let words = ["sock", "rr", "--time", "0.1", "--json"];
    let absent = ended(measure(&fabric, &words).env("BYWIRE_SOCKETS_LIBRARY", "/nowhere"));
    assert_eq!(absent.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&absent.stderr).contains("libbywire_sockets.so"), "{absent:?}");
    // A library that carries nothing, like one that cannot reach its service.
    let idle = ended(measure(&fabric, &words).env("BYWIRE_SOCKETS_CALLS", "4000000000"));
    let said = String::from_utf8_lossy(&idle.stderr);
    assert_eq!(idle.status.code(), Some(1), "{said}");
    assert!(said.contains("the kernel's TCP") && said.contains("0 of 1 connections"), "{said}");
    assert!(idle.stdout.is_empty());
    let words = [&words[..], &["--domain", "unix"]].concat();
    let idle = ended(measure(&fabric, &words).env("BYWIRE_SOCKETS_CALLS", "4000000000"));
    let said = String::from_utf8_lossy(&idle.stderr);
    assert_eq!(idle.status.code(), Some(1), "{said}");
    assert!(said.contains("the kernel's Unix sockets") && said.contains("0 of 1 connections"), "{said}");
}

/// If other programs want the cores, a thread that spins before it sleeps loses time slices of milliseconds.
#[test]
fn spinning_under_load_leaves_carried_connections_as_fast_as_tcp() {
    let fabric = Fabric::new();
    let rate = |level: &str| {
        let words = [level, "rr", "--load", "2", "--time", "1", "--json"];
        let cell: Value = serde_json::from_str(&said(measure(&fabric, &words))).expect("JSON");
        let sum = |name: &str| {
            let blocks = cell["blocks"].as_array().expect("blocks");
            blocks.iter().filter_map(|block| block[name].as_f64()).sum::<f64>()
        };
        assert_eq!(cell["parameters"]["load"], 2);
        sum("operations") / sum("seconds")
    };
    // On a machine with other load the scheduling is random: one pair of three suffices.
    let pairs = (0..3).map(|_| (rate("tcp"), rate("sock")));
    let mut seen = Vec::new();
    let is_as_fast = pairs.inspect(|pair| seen.push(*pair)).any(|(tcp, sock)| sock > 0.7 * tcp);
    assert!(is_as_fast, "transactions a second of tcp and sock: {seen:?}");
}
