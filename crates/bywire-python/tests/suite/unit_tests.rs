//! The programs of `tests/python`, by Python's own `unittest`.

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
