//! Five machines on one bridge send to each other while a process and a machine are killed and come back.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bywire::{Address, Event, Peer, Port, Priority, SendError};
use bywire_testing::actor::{Actor, Context};
use bywire_testing::eventually;
use bywire_testing::test_network::{TIMEOUT, TestNetwork};

use super::ends::{options, pattern, start};
use super::is_long;
use super::node::start_node;

const MACHINES: usize = 5;
/// The test continues once each member has this many messages from each other one.
fn enough() -> u64 {
    if is_long() { 300 } else { 100 }
}

/// The member that is killed. Some connect to it, and it connects to others.
const KILLED: usize = 2;
/// The pause before a lost member is called again.
const AGAIN: Duration = Duration::from_millis(100);
/// The most messages to each peer between two waits.
const AT_ONCE: usize = 8;

/// The state of one member about another.
#[derive(Default)]
struct Other {
    peer: Option<Peer>,
    /// When to connect. A member connects to those with greater numbers.
    calls_at: Option<Instant>,
    sent: u64,
    received: u64,
}

fn name_of(number: usize) -> char {
    char::from(b'a' + number as u8)
}

/// The bytes of a message.
fn message(from: usize, to: usize, number: u64) -> Vec<u8> {
    let seed = (from << 8 | to) as u64;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern((number % 700) as usize, seed ^ number << 16));
    bytes
}

/// A process that sends to all others and checks their messages. It reports lost peers, and on request its counts.
pub fn member(context: &mut Context) {
    let own: usize = context.argument(0);
    let mut port = Port::open(options(&context.directory, "member")).expect("open");
    context.tell("ready");
    let _go = context.hear();
    let mut others: Vec<Other> = (0..MACHINES).map(|_| Other::default()).collect();
    let mut numbers = HashMap::new();
    others[own + 1..].iter_mut().for_each(|other| other.calls_at = Some(Instant::now()));
    loop {
        for (number, other) in others.iter_mut().enumerate() {
            if other.calls_at.is_some_and(|at| at <= Instant::now()) {
                let address: Address = format!("{}/member", name_of(number)).parse().expect("an address");
                let peer = port.connect_start(&address).expect("our own node is there");
                numbers.insert(peer, number);
                other.calls_at = None;
            }
        }
        for (number, other) in others.iter_mut().enumerate() {
            send_some(&mut port, own, number, other);
        }
        let mut event = port.wait(Some(Duration::from_millis(1))).expect("wait");
        while let Some(happened) = event {
            take(happened, &mut port, own, &mut others, &mut numbers, context);
            event = port.poll();
        }
        match context.heard().as_deref() {
            Some("count") => {
                let counts: Vec<String> = others.iter().map(|other| other.received.to_string()).collect();
                context.tell(format!("counts {}", counts.join(" ")));
            }
            Some(other) => panic!("{other}"),
            None => {}
        }
    }
}

fn send_some(port: &mut Port, own: usize, number: usize, other: &mut Other) {
    let Some(peer) = other.peer else { return };
    for _ in 0..AT_ONCE {
        match port.send(peer, Priority::Low, &message(own, number, other.sent)) {
            Ok(()) => other.sent += 1,
            // An event reports the end.
            Err(SendError::Full | SendError::Disconnected(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn take(
    event: Event,
    port: &mut Port,
    own: usize,
    others: &mut [Other],
    numbers: &mut HashMap<Peer, usize>,
    context: &mut Context,
) {
    match event {
        Event::Connected(peer) => {
            let node = port.peer_info(peer).expect("connected").address.node.clone();
            let number =
                (0..MACHINES).find(|number| node == name_of(*number).to_string()).expect("one of us");
            numbers.insert(peer, number);
            assert!(others[number].peer.is_none(), "one connection each");
            others[number] = Other { peer: Some(peer), ..Other::default() };
        }
        Event::Message(arrived) => {
            let number = numbers[&arrived.peer];
            let other = &mut others[number];
            assert_eq!(other.peer, Some(arrived.peer));
            assert!(arrived.payload[..] == message(number, own, other.received), "whole and in order");
            other.received += 1;
            port.recycle(arrived.payload);
        }
        Event::Disconnected { peer, reason } => {
            let number = numbers.remove(&peer).expect("it was connected or called");
            if others[number].peer == Some(peer) {
                context.tell(format!("lost {number} {reason:?}"));
            }
            let calls_at = (number > own).then(|| Instant::now() + AGAIN);
            others[number] = Other { calls_at, ..Other::default() };
        }
        Event::Room { .. } => {}
        other => panic!("{other:?}"),
    }
}

/// The test's handle of a member, with the losses that it has reported.
struct Member {
    actor: Actor,
    lost: Vec<String>,
}

impl Member {
    fn counts(&mut self) -> Vec<u64> {
        self.actor.tell("count");
        loop {
            let line = self.actor.hear().expect("it runs");
            match line.strip_prefix("counts ") {
                Some(counts) => {
                    return counts.split(' ').map(|count| count.parse().expect("a number")).collect();
                }
                None => self.lost.push(line),
            }
        }
    }
}

/// Waits until each of these members has [`enough`] more messages from each of the others. If one of them is new,
/// earlier messages count as well.
fn await_all(members: &mut [Member], numbers: &[usize], is_new: bool) -> Duration {
    let began = Instant::now();
    let before: Vec<Vec<u64>> = numbers.iter().map(|number| members[*number].counts()).collect();
    for (to, before) in numbers.iter().zip(before) {
        eventually("each member has messages from each other one", || {
            let now = members[*to].counts();
            numbers.iter().filter(|from| *from != to).all(|from| {
                let base = if is_new { 0 } else { before[*from] };
                now[*from] >= base + enough()
            })
        });
    }
    began.elapsed()
}

/// Waits until all others report the loss of the killed member, and of no other one. Returns the reasons.
fn await_loss(members: &mut [Member], witnesses: &[usize]) -> Vec<String> {
    let told = |member: &mut Member| {
        eventually("a loss is reported", || {
            let _counts = member.counts();
            !member.lost.is_empty()
        });
        let [line] = &std::mem::take(&mut member.lost)[..] else { panic!("one report") };
        line.strip_prefix(&format!("lost {KILLED} ")).expect("this one is lost").to_owned()
    };
    witnesses.iter().map(|number| told(&mut members[*number])).collect()
}

#[test]
fn five_machines_exchange_messages_while_one_is_killed_and_restarted() {
    let Some(mut network) = TestNetwork::without_services(MACHINES) else { return };
    let mut nodes: Vec<Actor> = network.machines.iter().map(start_node).collect();
    let begin = |network: &TestNetwork, number: usize| {
        let mut actor = start(&network.machines[number], "member", &[&number.to_string()]);
        actor.expect("ready");
        Member { actor, lost: Vec::new() }
    };
    let mut members: Vec<Member> = (0..MACHINES).map(|number| begin(&network, number)).collect();
    members.iter_mut().for_each(|member| member.actor.tell("go"));
    let (all, enough): (Vec<usize>, _) = ((0..MACHINES).collect(), enough());
    let witnesses: Vec<usize> = (0..MACHINES).filter(|number| *number != KILLED).collect();
    let took = await_all(&mut members, &all, true);
    println!("all have {enough} messages from all after {took:?}");

    let killed = Instant::now();
    members[KILLED].actor.kill();
    members[KILLED] = begin(&network, KILLED);
    let reasons = await_loss(&mut members, &witnesses);
    println!("a process was killed: within {:?} the others said {reasons:?}", killed.elapsed());
    assert!(reasons.iter().all(|reason| reason == "Died"), "{reasons:?}");
    members[KILLED].actor.tell("go");
    let took = await_all(&mut members, &all, true);
    println!("it came back: all have {enough} messages from all after {took:?}");

    // The whole machine: its program, its service, and their memory.
    nodes[KILLED].kill();
    members[KILLED].actor.kill();
    let took = await_all(&mut members, &witnesses, false);
    println!("a machine was killed: the others have {enough} more messages from each other after {took:?}");
    assert!(members.iter().all(|member| member.lost.is_empty()), "silence is no end");
    network.machines[KILLED].boot_id = [99; 16];
    nodes[KILLED] = start_node(&network.machines[KILLED]);
    members[KILLED] = begin(&network, KILLED);
    members[KILLED].actor.tell("go");
    let began = Instant::now();
    let reasons = await_loss(&mut members, &witnesses);
    let elapsed = began.elapsed();
    println!("it came back: within {elapsed:?} the others said {reasons:?}");
    assert!(elapsed < TIMEOUT, "the others learn of it before a timeout");
    assert!(reasons.iter().all(|reason| reason == "Died"), "{reasons:?}");
    let took = await_all(&mut members, &all, true);
    println!("all have {enough} messages from all after {took:?}");
}
