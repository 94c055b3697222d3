//! A process that is killed within a put of 16 MiB from another machine ends it with one error and gives its memory
//! back, and the next process is reached. An end is told within 10 ms after the kernel has freed the memory of the
//! process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bywire::{DisconnectReason, Event, Key, Port, Priority, Rights, TransferError};
use bywire_sys::poller::Poller;
use bywire_testing::actor::{Actor, Context};
use bywire_testing::eventually;
use bywire_testing::test_network::{Machine, TestNetwork};
use rustix::process::Signal;

use super::ends::{connect, expect_silence, is_stopped, next, open, options, pattern, start};
use super::is_long;

/// Bytes on either side of the range that is put.
const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0x5a;

/// A process with a region. By its argument it stops itself once a quarter of a put has arrived, or fills the region first.
pub fn target(context: &mut Context) {
    let length: usize = context.argument(0);
    let manner = context.argument::<String>(1);
    let stops = manner == "stops";
    let mut port = Port::open(options(&context.directory, "target")).expect("open");
    let mut memory = vec![0_u8; GUARD + length + GUARD];
    memory[..GUARD].fill(GUARD_BYTE);
    memory[GUARD + length..].fill(GUARD_BYTE);
    if manner == "full" {
        memory.fill(GUARD_BYTE);
    }
    let base = memory.as_ptr().addr();
    let key = port.register(memory, Rights { read: true, write: true }).expect("a region");
    context.tell(format!("ready {} {base}", key.0));
    loop {
        match port.poll() {
            Some(Event::Notified { peer, note }) => port.send(peer, Priority::Low, &note).expect("room"),
            Some(Event::Disconnected { .. }) => return,
            _ => {}
        }
        if stops && port.region(key).expect("ours")[GUARD + length / 4] != 0 {
            context.tell("stopped");
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        }
    }
}

/// The first line of a target: its key, and the address of its region.
fn beginning(target: &mut Actor) -> (Key, u64) {
    let line = target.expect("ready");
    let (key, base) = line.split_once(' ').expect("two numbers");
    (Key(key.parse().expect("a key")), base.parse().expect("an address"))
}

#[test]
fn a_process_killed_during_a_put_causes_one_error_and_its_successor_is_reached() {
    let length = if is_long() { 1 << 30 } else { 16 << 20 };
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let size = length.to_string();
    let mut target = start(there, "target", &[&size, "stops"]);
    let (key, base) = beginning(&mut target);
    let mut port = open(here, options(&here.runtime(), "putting"));
    let peer = connect(&mut port, here, "b/target");
    let bytes = pattern(length, 1);
    let given = bytes.as_ptr();
    let id = port.put(peer, Priority::Low, (key, GUARD as u64), bytes, Some(b"all")).expect("token");
    // Another one waits behind it.
    let short = port.put(peer, Priority::Low, (key, 0), vec![1; 64], None).expect("token");
    let process = target.pid();
    let began = Instant::now();
    while !is_stopped(process) {
        assert!(began.elapsed() < Duration::from_secs(120), "a quarter has not arrived");
        assert!(port.poll().is_none(), "nothing ends before that");
    }

    // The process is stopped in the middle of the put, and its memory shows that.
    let memory = File::open(format!("/proc/{}/mem", process.as_raw_nonzero())).expect("it is ours");
    let mut found = vec![0; GUARD + length + GUARD];
    memory.read_exact_at(&mut found, base).expect("its region");
    let expected = pattern(length, 1);
    let put = &found[GUARD..GUARD + length];
    let arrived = put.iter().zip(&expected).take_while(|(one, other)| one == other).count();
    assert!((length / 4..length).contains(&arrived), "it is under way: {arrived} of {length} bytes");
    assert!(put.iter().zip(&expected).all(|(found, sent)| *found == 0 || found == sent));
    assert!(found[..GUARD].iter().chain(&found[GUARD + length..]).all(|byte| *byte == GUARD_BYTE));
    drop((found, expected));

    let killed = Instant::now();
    target.kill();
    let ended = killed.elapsed();
    let (mut puts, mut told) = (Vec::new(), None);
    while told.is_none() {
        match next(&mut port) {
            Event::Put { id: over, buffer, result } => {
                assert_eq!(result, Err(TransferError::Disconnected(DisconnectReason::Died)));
                puts.push((over, buffer));
            }
            Event::Disconnected { peer: gone, reason } => {
                assert_eq!((gone, reason), (peer, DisconnectReason::Died));
                told = Some(killed.elapsed());
            }
            other => panic!("{other:?}"),
        }
    }
    // Each put has one outcome, with the memory that was passed in, and no event follows.
    expect_silence(&mut port, Duration::from_millis(200));
    assert_eq!(puts.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id, short]);
    let (_, buffer) = puts.swap_remove(0);
    assert!(std::ptr::eq(buffer.as_ptr(), given) && buffer.as_ref().len() == length);

    let mut target = start(there, "target", &[&size, "stays"]);
    let (key, base) = beginning(&mut target);
    let again = Instant::now();
    let peer = connect(&mut port, here, "b/target");
    let connected = again.elapsed();
    port.put(peer, Priority::Low, (key, GUARD as u64), buffer, Some(b"all")).expect("token");
    let (mut is_put, mut is_noted) = (false, false);
    while !(is_put && is_noted) {
        match next(&mut port) {
            Event::Put { result: Ok(()), buffer, .. } => {
                assert!(std::ptr::eq(buffer.as_ptr(), given));
                is_put = true;
            }
            Event::Message(message) => is_noted = message.payload[..] == b"all"[..],
            other => panic!("{other:?}"),
        }
    }
    let memory = File::open(format!("/proc/{}/mem", target.pid().as_raw_nonzero())).expect("it is ours");
    let mut found = vec![0; length];
    memory.read_exact_at(&mut found, base + GUARD as u64).expect("its region");
    assert!(found == pattern(length, 1), "every byte arrived");
    eventually("the service lists the next process alone", || there.status().len() >= 2);
    println!(
        "{arrived} of {length} bytes had arrived; the kernel took {ended:?} to end the process, and the end was told \
         after {:?}; the next process was reached after {connected:?}, and took everything after {:?}",
        told.expect("told"),
        again.elapsed()
    );
}

/// Kills a process with `length` bytes of memory, to which another machine is connected. Returns the time until the kernel
/// has ended it, and the time until its peer is told.
fn kill_one(here: &Machine, there: &Machine, length: usize) -> [Duration; 2] {
    let mut target = start(there, "target", &[&length.to_string(), "full"]);
    beginning(&mut target);
    let mut port = open(here, options(&here.runtime(), "watching"));
    let peer = connect(&mut port, here, "b/target");
    let watch = bywire_sys::process::watch(target.pid().as_raw_nonzero().get()).expect("it runs");
    let (began, telling) = (mpsc::channel(), mpsc::channel());
    let ended = std::thread::spawn(move || {
        let mut poller = Poller::new().expect("a poller");
        poller.add(&watch, 0).expect("watched");
        began.0.send(()).expect("the test waits");
        poller.wait(None).expect("waited");
        telling.0.send(Instant::now()).expect("the test waits");
    });
    began.1.recv().expect("it begins");
    let killed = Instant::now();
    target.signal(Signal::KILL);
    match next(&mut port) {
        Event::Disconnected { peer: gone, reason } => {
            assert_eq!((gone, reason), (peer, DisconnectReason::Died));
        }
        other => panic!("{other:?}"),
    }
    let told = killed.elapsed();
    ended.join().expect("it watched");
    [telling.1.recv().expect("it ended") - killed, told]
}

/// An end is told within this time in at least one of these samples. If it is not, more are taken.
const AT_ONCE: Duration = Duration::from_millis(10);
const SAMPLES_MAX: usize = 40;

/// The kernel closes a process's sockets and reports its end only after it has freed the memory.
#[test]
fn the_end_of_a_process_is_reported_once_the_kernel_has_freed_its_memory() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let samples = if is_long() { 6 } else { 3 };
    for length in [0, 64 << 20, if is_long() { 1 << 30 } else { 256 << 20 }] {
        let mut times: Vec<_> = (0..samples).map(|_| kill_one(here, there, length)).collect();
        let later = |[ended, told]: &[Duration; 2]| told.saturating_sub(*ended);
        // Other programs on the same cores can delay single samples, and many of them for a while.
        while times.len() < SAMPLES_MAX && !times.iter().any(|times| later(times) <= AT_ONCE) {
            times.push(kill_one(here, there, length));
        }
        let mut later: Vec<_> = times.iter().map(later).collect();
        later.sort();
        let ended: Vec<_> = times.iter().map(|[ended, _]| *ended).collect();
        println!("{} MiB: the kernel took {ended:?}; the end was told {later:?} later", length >> 20);
        assert!(later[0] <= AT_ONCE, "{later:?}");
    }
}
