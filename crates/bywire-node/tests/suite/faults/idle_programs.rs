//! Programs that compute and rarely call the library, one that never calls it, and one that is stopped.

use std::time::{Duration, Instant};

use bywire::{Event, Peer, Port, PortOptions, Priority};
use bywire_testing::actor::{Actor, Context};
use bywire_testing::test_network::{Machine, TIMEOUT, TestNetwork};
use rustix::process::Signal;

use super::ends::{connect, next, next_within, open, options, start, stop};
use super::is_long;

/// The programs are silent for longer than `UNREACHABLE_AFTER`, which applies only if their machine is silent as well.
/// Their machine is silent, too, where it stands still for a second.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(2500);
fn silent() -> Duration {
    Duration::from_secs(if is_long() { 6 } else { 4 })
}

/// The number of computing programs on each side: more than both sides have cores.
fn computing() -> usize {
    if is_long() { 8 } else { 3 }
}

const MESSAGES: u64 = 50;

/// A port that sends everything back. As told, it computes for a while between two calls, or does not call the library until
/// it hears a line.
pub fn idle(context: &mut Context) {
    let (name, manner) = (context.argument::<String>(0), context.argument::<String>(1));
    let mut port = Port::open(options(&context.directory, &name)).expect("open");
    context.tell("ready");
    let mut count = 0;
    loop {
        match port.poll() {
            Some(Event::Message(message)) => {
                port.send(message.peer, message.priority, &message.payload).expect("room");
                count += 1;
            }
            Some(Event::Disconnected { .. }) => return,
            Some(_) => {}
            // After the first message was answered, so that the connection exists.
            None if count > 0 && manner == "computes" => compute(Duration::from_millis(150)),
            None if count == 1 && manner == "never" => {
                context.tell("silent");
                let _line = context.hear();
                count += 1;
            }
            None => std::thread::yield_now(),
        }
    }
}

fn compute(duration: Duration) {
    let began = Instant::now();
    while began.elapsed() < duration {
        std::hint::black_box((0..10_000_u64).fold(0, |sum, number| sum ^ number));
    }
}

/// The test's handle of one program.
struct Idler {
    actor: Actor,
    peer: Peer,
    back: u64,
}

fn take(port: &mut Port, idlers: &mut [Idler], timeout: Duration) -> bool {
    match next_within(port, timeout) {
        Some(Event::Message(message)) => {
            let idler = idlers.iter_mut().find(|idler| idler.peer == message.peer).expect("one of them");
            assert_eq!(message.payload[..], idler.back.to_le_bytes());
            idler.back += 1;
            true
        }
        None => false,
        Some(other) => panic!("{other:?}"),
    }
}

/// Starts a program, and connects a port on another machine to it.
fn start_idler(here: &Machine, there: &Machine, port: &mut Port, number: usize, manner: &str) -> Idler {
    let name = format!("idler{number}");
    let mut actor = start(there, "idle", &[&name, manner]);
    actor.expect("ready");
    let peer = connect(port, here, &format!("{}/{name}", there.name));
    Idler { actor, peer, back: 0 }
}

fn finish(port: &mut Port, idlers: Vec<Idler>) {
    for idler in idlers {
        port.disconnect(idler.peer);
        assert!(matches!(next(port), Event::Disconnected { .. }));
        idler.actor.finish();
    }
}

/// Runs all of them on one machine, with their peer on the other.
fn exchange(here: &Machine, there: &Machine) {
    let options = PortOptions { unreachable_after: UNREACHABLE_AFTER, ..options(&here.runtime(), "asking") };
    let mut port = open(here, options);
    let mut idlers = Vec::new();
    for number in 0..computing() + 2 {
        let manner = ["never", "stopped", "computes"][number.min(2)];
        let idler = start_idler(here, there, &mut port, number, manner);
        port.send(idler.peer, Priority::Low, &0_u64.to_le_bytes()).expect("room");
        assert!(matches!(next(&mut port), Event::Message(_)));
        idlers.push(Idler { back: 1, ..idler });
    }
    idlers[0].actor.expect("silent");
    stop(&idlers[1].actor);
    let began = Instant::now();
    for number in 1..MESSAGES {
        for idler in &idlers {
            port.send(idler.peer, Priority::Low, &number.to_le_bytes()).expect("room");
        }
    }
    let mut took = None;
    while began.elapsed() < silent() || took.is_none() {
        assert!(began.elapsed() < TIMEOUT, "the others answer");
        let _is_message = take(&mut port, &mut idlers, Duration::from_millis(20));
        if idlers[2..].iter().all(|idler| idler.back == MESSAGES) {
            took.get_or_insert_with(|| began.elapsed());
        }
    }
    assert_eq!([idlers[0].back, idlers[1].back], [1, 1], "two are silent");
    let again = Instant::now();
    idlers[0].actor.tell("go on");
    idlers[1].actor.signal(Signal::CONT);
    while idlers.iter().any(|idler| idler.back < MESSAGES) {
        assert!(take(&mut port, &mut idlers, TIMEOUT), "all answer");
    }
    println!(
        "{} to {}: {} that compute answered within {:?}; two were silent for {:?}, and answered everything \
         {:?} later",
        here.name,
        there.name,
        computing(),
        took.expect("they did"),
        silent(),
        again.elapsed()
    );
    finish(&mut port, idlers);
}

#[test]
fn programs_that_rarely_or_never_call_the_library_keep_their_connections() {
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(here, there));
        scope.spawn(|| exchange(there, here));
    });
}

/// The port has peers with a socket each, so that one look does not reach what came from all of them.
#[test]
fn a_program_that_did_not_look_for_long_takes_that_for_no_silence_of_its_peers() {
    const PEERS: usize = 4;
    const PACKETS: u64 = 100;
    let Some(network) = TestNetwork::up(2) else { return };
    let [here, there] = &network.machines[..] else { unreachable!() };
    let unreachable_after = Duration::from_secs(1);
    let options = PortOptions { unreachable_after, ..options(&here.runtime(), "away") };
    let mut port = open(here, options);
    let mut idlers: Vec<Idler> =
        (0..PEERS).map(|number| start_idler(here, there, &mut port, number, "answers")).collect();
    for number in 0..PACKETS {
        for idler in &idlers {
            port.send(idler.peer, Priority::High, &number.to_le_bytes()).expect("room");
        }
        while idlers.iter().any(|idler| idler.back <= number) {
            assert!(take(&mut port, &mut idlers, TIMEOUT), "all answer");
        }
    }
    for idler in &idlers {
        port.send(idler.peer, Priority::High, &PACKETS.to_le_bytes()).expect("room");
    }
    std::thread::sleep(3 * unreachable_after);
    while idlers.iter().any(|idler| idler.back <= PACKETS) {
        assert!(take(&mut port, &mut idlers, TIMEOUT), "the answers are there");
    }
    finish(&mut port, idlers);
}
