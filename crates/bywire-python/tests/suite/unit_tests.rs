//! Ports of Python keep the contract, by the programs of `tests/python` and Python's own `unittest`. Tests of arrays
//! need numpy.
//!
//! - Messages of every kind of memory, posted buffers, errors as sentences, timeouts, ends, threads that share a port,
//!   an interrupt and other signals, a forked child, regions, notes, lending, memory that outlives its port, nothing
//!   left behind.
//! - Ports serve tasks of asyncio and leave others their turn.
//! - Connections have the interface of `multiprocessing.connection`, by fork and spawn, with arrays by value and by
//!   reference.
//!
//! Each test makes a package of the module that cargo has built, and runs it by the system's `python3`, with a runtime
//! directory of its own.

use crate::package::{Package, root, succeeded};

fn run(program: &str) {
    let Some(package) = Package::make() else { return };
    let path = root().join("crates/bywire-python/tests/python").join(program);
    let mut command = package.python();
    command.args(["-m", "unittest", "-v"]).arg(path.file_name().expect("a name"));
    command.current_dir(path.parent().expect("a directory"));
    succeeded(&command.output().expect("python3"));
}

#[test]
fn ports_of_python_keep_the_contract() {
    run("test_ports.py");
}

#[test]
fn ports_serve_tasks_of_asyncio() {
    run("test_asyncio.py");
}

#[test]
fn connections_have_the_interface_of_multiprocessing() {
    run("test_multiprocessing.py");
}
