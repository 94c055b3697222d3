//! Ports and processes on the machines of these tests.

use std::path::Path;
use std::time::{Duration, Instant};

use bywire::{Address, ConnectError, Event, Peer, Port, PortOptions, Reach};
use bywire_testing::actor::Actor;
use bywire_testing::eventually;
use bywire_testing::test_network::{Machine, TIMEOUT, path};
use rustix::process::{Pid, Signal};

/// The options of a port that other machines can reach.
pub fn options(runtime: &Path, name: &str) -> PortOptions {
    PortOptions {
        name: Some(name.parse().expect("a name")),
        reach: Reach::Fabric,
        runtime_directory: Some(runtime.to_owned()),
        ..PortOptions::default()
    }
}

/// A port of this process, opened inside a machine.
pub fn open(machine: &Machine, options: PortOptions) -> Port {
    machine.namespace.run(|| Port::open(options)).expect("inside").expect("open")
}

/// A process inside a machine. It ends with the thread that starts it.
pub fn start(machine: &Machine, role: &str, arguments: &[&str]) -> Actor {
    let namespace = format!("--net={}", path(&machine.namespace));
    Actor::start_under(&["nsenter", &namespace], role, &machine.runtime(), arguments)
}

/// Connects a port that was opened inside a machine.
pub fn connect(port: &mut Port, machine: &Machine, address: &str) -> Peer {
    try_connect(port, machine, address).expect("connect")
}

pub fn try_connect(port: &mut Port, machine: &Machine, address: &str) -> Result<Peer, ConnectError> {
    let address: Address = address.parse().expect("an address");
    machine.namespace.run(|| port.connect(&address, TIMEOUT)).expect("inside")
}

pub fn next(port: &mut Port) -> Event {
    next_within(port, TIMEOUT).expect("something happens")
}

/// The next event, if one comes in time.
pub fn next_within(port: &mut Port, timeout: Duration) -> Option<Event> {
    port.wait(Some(timeout)).expect("wait")
}

/// Waits on the port for a while, and expects no event.
pub fn expect_silence(port: &mut Port, timeout: Duration) {
    let until = Instant::now() + timeout;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        assert!(next_within(port, left).is_none(), "nothing more happens");
    }
}

/// Is a process stopped? The kernel stops it a moment after the signal.
pub fn is_stopped(process: Pid) -> bool {
    let text =
        std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).expect("it is there");
    text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Stops a process.
pub fn stop(actor: &Actor) {
    actor.signal(Signal::STOP);
    eventually("it is stopped", || is_stopped(actor.pid()));
}

/// Bytes that depend on their position and the seed.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let word = |index: usize| (index as u64 ^ seed).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
    let mut bytes: Vec<u8> =
        (0..length.div_ceil(8)).flat_map(|index| (word(index) | 1).to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}
