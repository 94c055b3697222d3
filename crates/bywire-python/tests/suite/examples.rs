//! Every Python example of `examples/python` runs and prints what it should. docs/python.md prints four of them as they
//! are, and README.md their commands.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use bywire_testing::Guarded;

use crate::package::{Package, root, succeeded};

fn example(package: &Package, name: &str) -> Command {
    let mut command = package.python();
    command.arg(root().join("examples/python").join(name));
    command
}

fn has_numpy(package: &Package) -> bool {
    let found = package.python().args(["-c", "import numpy"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("not run: numpy is not installed");
    }
    found
}

/// The pages print the examples as they are. A change here has to change them as well.
#[test]
fn the_pages_print_the_examples() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect(name);
    let page = read("docs/python.md");
    let blocks = page.split("```python\n").skip(1).map(|block| block.split("```").next().unwrap_or_default());
    let names = ["echo.py", "ask.py", "asynchronous.py", "arrays.py"];
    assert_eq!(blocks.clone().count(), names.len());
    for (block, name) in blocks.zip(names) {
        assert!(read(&format!("examples/python/{name}")).ends_with(block), "docs/python.md, {name}");
    }
    for name in ["echo.py", "ask.py"] {
        let command = format!("python3 examples/python/{name}");
        assert!(page.contains(&command) && read("README.md").contains(&command), "{command}");
    }
}

#[test]
fn a_client_asks_the_echo_server() {
    let Some(package) = Package::make() else { return };
    let mut server = example(&package, "echo.py");
    let mut server = Guarded(server.stdout(Stdio::piped()).spawn().expect("python3"));
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("serving ") && line.trim_end().ends_with("/echo"), "{line}");
    for _ in 0..2 {
        let printed = succeeded(&example(&package, "ask.py").output().expect("python3"));
        assert_eq!(printed, "5 bytes back\n5000 bytes back\n");
    }
}

#[test]
fn two_tasks_of_one_loop_talk() {
    let Some(package) = Package::make() else { return };
    let printed = succeeded(&example(&package, "asynchronous.py").output().expect("python3"));
    assert_eq!(printed, "5 bytes back\n1000000 bytes back\n");
}

#[test]
fn a_worker_puts_gets_and_lends() {
    let Some(package) = Package::make() else { return };
    let printed = succeeded(&example(&package, "regions.py").output().expect("python3"));
    for line in [
        "the worker reads b'abc'",
        "a note: b'done' the memory: b'filled by the worker'",
        "in place: b'lent'",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
    }
}

#[test]
fn arrays_are_sent_by_value_and_by_reference() {
    let Some(package) = Package::make() else { return };
    if has_numpy(&package) {
        let printed = succeeded(&example(&package, "arrays.py").output().expect("python3"));
        assert_eq!(printed, "sum: 4999950000.0\nlast square: 9999800001.0\n");
    }
}

#[test]
fn the_comparison_measures_what_is_there() {
    let Some(package) = Package::make() else { return };
    let printed = succeeded(&example(&package, "compare.py").arg("--quick").output().expect("python3"));
    for row in ["multiprocessing.Pipe", "bywire.multiprocessing", "asyncio streams", "bywire under asyncio"] {
        assert!(printed.contains(row), "{row}: {printed}");
    }
}
