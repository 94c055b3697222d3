//! The installed systemd units of `bywire up` are valid, and the capabilities of the system's unit suffice for
//! connections. Needs root.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use bywire_testing::test_network::{FakePort, TIMEOUT, TestNetwork};

use crate::up::{Up, bywire};

const SYSTEM: &str = include_str!("../../../../packaging/bywire-node.service");
const ENGINE: &str = include_str!("../../../../packaging/user/bywire-engine.service");
const USER: &str = include_str!("../../../../packaging/user/bywire-node.service");

#[test]
fn the_systemd_units_are_valid() {
    for (manager, name, text) in [
        ("--system", "bywire-node.service", SYSTEM),
        ("--user", "bywire-node.service", USER),
        ("--user", "bywire-engine.service", ENGINE),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let unit = directory.path().join(name);
        let text = text.replace("/usr/local/bin/bywire", env!("CARGO_BIN_EXE_bywire"));
        fs::write(&unit, text).expect("written");
        let mut verify = Command::new("systemd-analyze");
        verify.args([manager, "verify", "--man=no"]).arg(&unit).env("XDG_RUNTIME_DIR", directory.path());
        match verify.output() {
            Ok(said) => {
                let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
                assert!(!said.contains(name), "{manager}: {said}");
            }
            Err(error) => println!("not run: `systemd-analyze` cannot verify the units: {error}"),
        }
    }
    println!(
        "not run: under systemd itself, which is not process 1 here: its file systems, system calls and address families"
    );
}

#[test]
fn the_capabilities_of_the_system_unit_suffice_and_readiness_is_reported() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    if bywire_sys::process::user() != 0 {
        return println!("not run: only root has capabilities to give up: run as root");
    }
    network.machines[1].start();
    let [a, b] = &network.machines[..] else { unreachable!() };
    let bound = SYSTEM.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a bound");
    let kept: Vec<String> =
        bound.split(' ').map(|name| name.to_lowercase().replacen("cap_", "+", 1)).collect();
    let socket = a.directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("bound");
    manager.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let configuration = a.configuration();
    let unbounded = bywire(&["up", "--config", configuration.to_str().expect("text")], &a.runtime());
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--bounding-set", &format!("-all,{}", kept.join(","))]);
    command.arg(unbounded.get_program()).args(unbounded.get_args());
    command.env("BYWIRE_RUNTIME_DIR", a.runtime()).env("NOTIFY_SOCKET", &socket);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let running = match a.namespace.run(|| command.spawn()).expect("inside") {
        Ok(child) => Up::of(child),
        Err(error) => return println!("not run: the unit's capabilities: `setpriv` of util-linux: {error}"),
    };
    let mut told = [0; 256];
    let length = manager.recv(&mut told).expect("told");
    assert!(told[..length].starts_with(b"READY=1"), "{:?}", String::from_utf8_lossy(&told[..length]));
    let (mut asking, mut asked) = (FakePort::open(a, "asking"), FakePort::open(b, "render"));
    let _terms = asking.meet(1, "b", &mut asked, 11);
    running.signal("-TERM");
    assert!(running.ended().success());
}
