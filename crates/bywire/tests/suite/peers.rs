//! Many peers of one port, and peers that are stopped.

use bywire::{Confirm, Event, Message, Peer, Port, PortOptions, Priority};
use bywire_testing::actor::{Actor, Context, Role};
use rustix::process::{Resource, Rlimit, Signal};

use crate::ports::{MINUTE, PortDirectory, address, name, next, open_descriptors, post_needed};

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("hub", hub), ("crowd", crowd), ("talker", talker)];

/// The soft limit that most systems set, far below the needs of a thousand peers.
const SOFT_LIMIT: u64 = 256;

/// The port with a thousand peers: it answers all of them, and counts its descriptors.
fn hub(context: &mut Context) {
    let count: usize = context.argument(0);
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit = Rlimit { current: Some(SOFT_LIMIT), ..limit };
    rustix::process::setrlimit(Resource::Nofile, limit).expect("lower the soft limit");
    let mut port = Port::open(PortOptions { name: Some(name("hub")), ..context.options() }).expect("open");
    let before = open_descriptors();
    context.tell("ready");
    let (mut connected, mut answered, mut left) = (0, 0, 0);
    while left < count {
        match next(&mut port) {
            Event::Connected(_) => connected += 1,
            Event::Message(message) => {
                port.send(message.peer, message.priority, &message.payload).expect("room for one");
                answered += 1;
                if answered == count {
                    assert!(rustix::process::getrlimit(Resource::Nofile).current > Some(SOFT_LIMIT));
                    context.tell(format!("full {}", open_descriptors()));
                }
            }
            Event::Disconnected { .. } => left += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((connected, answered), (count, count));
    assert_eq!(open_descriptors(), before, "what a peer costs comes back when it leaves");
    // The crowd has left nothing that would hinder the next one.
    context.tell("empty");
    context.hear();
}

/// Many ports that connect, ask once, and leave when told.
fn crowd(context: &mut Context) {
    let count: u32 = context.argument(0);
    let hub = address("hub");
    let mut ports: Vec<(Port, Peer)> = (0..count)
        .map(|_| {
            let mut port = Port::open(context.options()).expect("open");
            let peer = port.connect(&hub, MINUTE).expect("connect");
            (port, peer)
        })
        .collect();
    for (number, (port, peer)) in ports.iter_mut().enumerate() {
        port.send(*peer, Priority::Low, &number.to_ne_bytes()).expect("room");
    }
    for (number, (port, _)) in ports.iter_mut().enumerate() {
        match next(port) {
            Event::Message(message) => assert_eq!(&message.payload[..], number.to_ne_bytes()),
            other => panic!("{other:?} instead of an answer"),
        }
    }
    context.tell("answered");
    context.hear();
}

#[test]
fn a_thousand_peers_connect_exchange_messages_and_leave_nothing() {
    const CROWDS: usize = 5;
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < 4000) {
        eprintln!("not run: a thousand peers need 3,000 descriptors, and the hard limit here is {hard:?}");
        return;
    }
    let place = PortDirectory::new();
    let mut hub = Actor::start("hub", place.path(), &["1000"]);
    hub.expect("ready");
    let mut crowds: Vec<_> = (0..CROWDS).map(|_| Actor::start("crowd", place.path(), &["200"])).collect();
    for crowd in &mut crowds {
        crowd.expect("answered");
    }
    let held: usize = hub.expect("full").parse().expect("a number");
    assert!(held > 1000, "{held} descriptors for a thousand peers");
    for mut crowd in crowds {
        crowd.tell("leave");
        crowd.finish();
    }
    hub.expect("empty");
    hub.tell("end");
    hub.finish();
    assert_eq!(place.entries().len(), 0, "no residue");
}

/// Sends numbered messages of all kinds, and takes as many.
fn talker(context: &mut Context) {
    let mut port = Port::open(context.options()).expect("open");
    let peer = port.connect(&address("victim"), MINUTE).expect("connect");
    context.tell("ready");
    let (mut sent, mut received) = (0u32, 0u32);
    loop {
        let bytes = vec![sent as u8; if sent.is_multiple_of(5) { 20_000 } else { 30 }];
        if port.send_buffer(peer, Priority::Low, bytes, Confirm::Copied).is_ok() {
            sent += 1;
        }
        match port.poll() {
            Some(Event::Message(message)) => {
                assert_eq!(&message.payload[..], received.to_ne_bytes());
                received += 1;
            }
            Some(Event::Disconnected { .. }) => return,
            _ => {}
        }
    }
}

/// Takes a message of a talker, which must be its next in order. Returns whose it is.
fn take(victim: &mut Port, talkers: &mut [(Peer, u32)], message: Message) -> usize {
    let place = talkers.iter().position(|(peer, _)| *peer == message.peer).expect("one of them");
    let number = &mut talkers[place].1;
    let length = if number.is_multiple_of(5) { 20_000 } else { 30 };
    assert_eq!(&message.payload[..], vec![*number as u8; length]);
    *number += 1;
    victim.recycle(message.payload);
    place
}

/// Takes the next message of any talker.
fn next_from(victim: &mut Port, talkers: &mut [(Peer, u32)]) -> usize {
    loop {
        match next(victim) {
            Event::Message(message) => return take(victim, talkers, message),
            Event::Room { .. } | Event::Sent { .. } => {}
            other => assert!(post_needed(victim, &other), "{other:?}"),
        }
    }
}

/// A process that is stopped in a debugger is not dead.
#[test]
fn a_stopped_peer_is_kept_and_delays_nobody() {
    let place = PortDirectory::new();
    let mut victim = place.named("victim");
    let mut actors = Vec::new();
    let mut talkers: Vec<(Peer, u32)> = Vec::new();
    for _ in 0..2 {
        let actor = Actor::start("talker", place.path(), &[]);
        while talkers.len() == actors.len() {
            // The first talker may send already.
            match next(&mut victim) {
                Event::Connected(peer) => talkers.push((peer, 0)),
                Event::Message(message) => _ = take(&mut victim, &mut talkers, message),
                other => assert!(post_needed(&mut victim, &other), "{other:?}"),
            }
        }
        actors.push(actor);
    }
    for _ in 0..1000 {
        next_from(&mut victim, &mut talkers);
    }
    actors[0].signal(Signal::STOP);
    // First the messages that it had sent before, then only those of the other talker. Messages to it wait.
    let mut waits = 0u32;
    let mut quiet = 0;
    while quiet < 5000 {
        quiet = if next_from(&mut victim, &mut talkers) == 0 { 0 } else { quiet + 1 };
        if waits < 200 && victim.send(talkers[0].0, Priority::Low, &waits.to_ne_bytes()).is_ok() {
            waits += 1;
        }
    }
    let before = talkers[0].1;
    assert_eq!(waits, 200);
    let last = victim
        .send_buffer(talkers[0].0, Priority::Low, waits.to_ne_bytes().as_slice(), Confirm::Delivered)
        .expect("token");
    actors[0].signal(Signal::CONT);
    // Everything arrives, in both directions.
    let mut is_delivered = false;
    while !is_delivered || talkers[0].1 < before + 500 {
        match next(&mut victim) {
            Event::Sent { id, result: Ok(()), .. } => {
                assert_eq!(id, last);
                is_delivered = true;
            }
            Event::Message(message) => _ = take(&mut victim, &mut talkers, message),
            Event::Room { .. } => {}
            other => assert!(post_needed(&mut victim, &other), "{other:?}"),
        }
    }
}
