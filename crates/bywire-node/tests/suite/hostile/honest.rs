//! The honest user's program, and its peer on the other machine.

use std::path::Path;
use std::time::{Duration, Instant};

use bywire::{Address, Admit, DisconnectReason, Event, Peer, Port, PortOptions, Priority, Reach};
use bywire_node::client;
use bywire_testing::actor::Context;
use bywire_testing::test_network::TIMEOUT;
use rustix::process::{Gid, Signal, Uid};

use crate::faults::ends::options;

/// The steps that the honest program measures, in the order of its report.
pub const MEASURED: [&str; 4] = ["open", "connect", "message", "status"];

/// Changes the user of the calling thread, as other processes see it. The thread must not have started others before.
pub fn become_user(number: u32) {
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    rustix::thread::set_thread_groups(&[]).expect("no groups");
    rustix::thread::set_thread_res_gid(group, group, group).expect("its group");
    rustix::thread::set_thread_res_uid(user, user, user).expect("its user");
    // The change of the user has reset this.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("prctl");
}

/// Returns every message to its sender.
pub fn echo(context: &mut Context) {
    let options = PortOptions { admit: Admit::Everyone, ..options(&context.directory, "echo") };
    let mut port = Port::open(options).expect("open");
    context.tell("ready");
    loop {
        if let Some(Event::Message(message)) = port.wait(Some(TIMEOUT)).expect("wait") {
            // The sender may have disconnected.
            let _ = port.send(message.peer, message.priority, &message.payload);
        }
    }
}

/// Keeps one connection. Each command gives a number of milliseconds, for which it opens ports, connects to the other machine
/// and asks for the status, again and again. It then reports the longest and the median time of each step in microseconds.
pub fn measure(context: &mut Context) {
    become_user(context.argument(0));
    let mut steady = open(&context.directory);
    let friend = connect(&mut steady);
    context.tell("ready");
    while let Some(line) = context.hear() {
        let duration = Duration::from_millis(line.parse().expect("milliseconds"));
        let began = Instant::now();
        let mut taken: [Vec<Duration>; 4] = Default::default();
        while began.elapsed() < duration || taken[0].is_empty() {
            let mut step = Instant::now();
            let mut lap = || std::mem::replace(&mut step, Instant::now()).elapsed();
            let mut port = open(&context.directory);
            taken[0].push(lap());
            let peer = connect(&mut port);
            taken[1].push(lap());
            exchange(&mut port, peer);
            taken[2].push(lap());
            assert!(!client::status(Some(&context.directory)).expect("a status").is_empty());
            taken[3].push(lap());
            exchange(&mut steady, friend);
            port.disconnect(peer);
        }
        let count = taken[0].len();
        let told = taken.map(|mut times| {
            times.sort();
            format!("{} {}", times[times.len() - 1].as_micros(), times[times.len() / 2].as_micros())
        });
        context.tell(format!("{count} {}", told.join(" ")));
    }
}

fn open(runtime: &Path) -> Port {
    let runtime_directory = Some(runtime.to_owned());
    let options = PortOptions { reach: Reach::Fabric, runtime_directory, ..PortOptions::default() };
    Port::open(options).expect("open")
}

fn connect(port: &mut Port) -> Peer {
    let address: Address = "b/echo".parse().expect("an address");
    port.connect(&address, TIMEOUT).expect("connect")
}

/// Sends a message and waits for its echo.
fn exchange(port: &mut Port, peer: Peer) {
    port.send(peer, Priority::High, b"are you there?").expect("room");
    loop {
        match port.wait(Some(TIMEOUT)).expect("wait").expect("an answer") {
            Event::Message(message) if message.peer == peer => return,
            // The peer of an earlier connection.
            Event::Disconnected { peer: other, reason: DisconnectReason::Here } if other != peer => {}
            other => panic!("{other:?}"),
        }
    }
}
