//! Processes killed in the middle of everything: after each single store, and often at random moments.

use std::os::unix::fs::FileExt;

use bywire::{
    Confirm, DisconnectReason, Event, Geometry, Key, LaneGeometry, Peer, Port, PortOptions, Priority, Rights,
    SendError, TransferError,
};
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::repetitions;

use crate::ports::{
    self, MINUTE, PortDirectory, Random, address, meet, name, named, next, open_descriptors, post_needed,
    until, until_ended,
};
use crate::step;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("scripted", scripted), ("streaming", streaming), ("receiving", receiving)];

/// Small enough to compare after every store.
const SMALL: Geometry =
    Geometry { lanes: [LaneGeometry { slots: 8, bulk_bytes: 4096 }; 3], fragment_bytes: 512 };

/// Takes more than two fragments.
const LONG: usize = 1200;

/// The number of datagrams that fill the bulk area more than eight times.
const WARM: usize = 80;

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    // Neighbouring bytes differ, and none is zero, so every store changes memory.
    (0..length).map(|index| ((index * 7 + seed) % 251 + 1) as u8).collect()
}

/// The messages of a script, in order. The last one proves that no message overtook another.
fn expected(script: &str) -> Vec<Vec<u8>> {
    let tail = pattern(9, 99);
    match script {
        "short" => vec![pattern(8, 1), pattern(45, 2), tail],
        "bulk" => vec![pattern(100, 3), pattern(512, 4), tail],
        "long" | "busy" => vec![pattern(LONG, 5), tail],
        "put" => vec![pattern(20, 6), tail],
        "lent" => vec![pattern(64, 7), tail],
        other => panic!("no script {other}"),
    }
}

fn scripted(context: &mut Context) {
    let script: String = context.argument(0);
    let key = Key(context.argument(1));
    let name = Some(name("sender"));
    let mut port = Port::open(PortOptions { name, geometry: SMALL, ..context.options() })
        .expect("open: what the last one left is replaced");
    let peer = port.connect(&address("victim"), MINUTE).expect("connect");
    let heap = port.heap(peer, 64, 2).expect("heap");
    let mut block = heap.block().expect("a block");
    // Datagrams do not wait for room, so they fill the lane often without moving it. The next long message moves it.
    for _ in 0..if script == "busy" { WARM } else { 0 } {
        while !port.send_datagram(peer, Priority::Low, &pattern(512, 10)).expect("connected") {}
    }
    context.tell("ready");
    let last = context.hear().expect("a number").parse().ok();
    let (messages, data) = (expected(&script), pattern(1200, 8));
    step::watch(last);
    match script.as_str() {
        "short" | "bulk" => {
            for message in &messages[..2] {
                port.send(peer, Priority::Low, message).expect("room");
            }
        }
        "long" | "busy" => {
            port.send_buffer(peer, Priority::Low, messages[0].clone(), Confirm::Delivered).expect("token");
        }
        "put" => {
            port.put(peer, Priority::Low, (key, 0), data, Some(&messages[0])).expect("token");
        }
        "lent" => {
            block.copy_from_slice(&messages[0]);
            port.send_lent(Priority::Low, block, 64).expect("room");
        }
        other => panic!("no script {other}"),
    }
    while port.send(peer, Priority::Low, &messages[messages.len() - 1]) == Err(SendError::Full) {
        port.poll();
    }
    context.tell(format!("stored {}", step::to_text(&step::watched())));
    context.hear();
}

/// The receiver, and another peer that must not notice anything.
struct Survivors {
    place: PortDirectory,
    victim: Port,
    other: Port,
    to_other: Peer,
    to_victim: Peer,
    key: Key,
}

impl Survivors {
    fn new() -> Self {
        let place = PortDirectory::new();
        let mut victim = place.open(PortOptions { geometry: SMALL, ..named("victim") });
        let mut other = place.open(place.options());
        let (to_victim, to_other) = meet(&mut other, &mut victim);
        let key = victim.register(vec![0; 1200], Rights { read: false, write: true }).expect("region");
        // Posted before it is needed: a message of a dead sender does not wait for a buffer.
        victim.post_receive(Priority::Low, vec![0; LONG]).expect("token");
        Self { place, victim, other, to_other, to_victim, key }
    }

    /// Starts a sender and waits until it is before its first store.
    fn sender(&mut self, script: &str) -> (Actor, Peer) {
        let key = self.key.0.to_string();
        let mut actor = Actor::start("scripted", self.place.path(), &[script, &key]);
        let Event::Connected(peer) = next(&mut self.victim) else { panic!("no connection") };
        for _ in 0..if script == "busy" { WARM } else { 0 } {
            let event = next(&mut self.victim);
            assert!(matches!(event, Event::Datagram(_)), "{event:?}");
        }
        actor.expect("ready");
        (actor, peer)
    }

    /// Everything that the dead sender delivered.
    fn take_all(&mut self, dead: Peer) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        let ended = until_ended(&mut self.victim, |victim, event| match event {
            Event::Message(message) => {
                assert_eq!(message.peer, dead);
                taken.push(message.payload.to_vec());
                if message.payload.len() == LONG {
                    let buffer = message.payload.into_buffer().expect("posted");
                    victim.post_receive(Priority::Low, buffer).expect("token");
                }
            }
            Event::Lent(lent) => taken.push(lent.to_vec()),
            Event::Notified { note, .. } => {
                assert_eq!(victim.region(self.key).expect("ours"), pattern(1200, 8), "data, then note");
                taken.push(note.to_vec());
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(ended, (dead, DisconnectReason::Died));
        taken
    }

    fn talk(&mut self) {
        self.other.send(self.to_victim, Priority::Low, b"still there?").expect("room");
        assert!(
            matches!(ports::event(&mut [&mut self.victim, &mut self.other]), Event::Message(m) if &m.payload[..] == b"still there?")
        );
        self.victim.send(self.to_other, Priority::Low, b"yes").expect("room");
        assert!(
            matches!(ports::event(&mut [&mut self.other, &mut self.victim]), Event::Message(m) if &m.payload[..] == b"yes")
        );
    }

    fn residue(&self) -> Vec<String> {
        let mut names = self.place.entries();
        names.retain(|name| *name != format!("{}.port", self.other.name()) && name != "victim.port");
        names
    }
}

/// A sender is killed after each of its stores to shared memory.
#[test]
fn a_sender_killed_after_any_store_leaves_a_prefix_of_whole_messages() {
    let mut survivors = Survivors::new();
    // Stores of a busy sender to memory that it maps on the way are not watched. The stores that publish them are.
    for script in ["short", "bulk", "long", "put", "lent", "busy"] {
        let (mut actor, peer) = survivors.sender(script);
        actor.tell("all");
        let stores = step::from_text(&actor.expect("stored"));
        actor.kill();
        assert_eq!(survivors.take_all(peer), expected(script), "{script}: all that was sent");
        let points = step::points(&stores);
        // At least a word and a header for each message.
        assert!(points.len() > 2 * expected(script).len(), "{script}: {} stores", stores.len());
        let mut most = 0;
        for point in points {
            let (mut actor, peer) = survivors.sender(script);
            survivors.talk();
            actor.tell(&point.to_string());
            assert_eq!(actor.hear(), None, "the same program makes the same stores");
            actor.kill();
            let taken = survivors.take_all(peer);
            assert!(expected(script).starts_with(&taken), "{script}, store {point}: {taken:?}");
            assert!(taken.len() >= most, "{script}, store {point}: a message that was whole is gone");
            most = taken.len();
            survivors.talk();
            assert_eq!(survivors.residue(), ["sender.port"], "{script}, store {point}");
        }
        assert_eq!(most, expected(script).len(), "{script}: the last store publishes the last message");
    }
}

/// Sends numbered messages forever, and records in a file which of them were delivered.
fn streaming(context: &mut Context) {
    let notes: String = context.argument(0);
    let notes = std::fs::OpenOptions::new().write(true).open(notes).expect("the notes");
    // So small that it soon moves to a large area.
    let mut port = Port::open(PortOptions { geometry: SMALL, ..context.options() }).expect("open");
    let peer = port.connect(&address("victim"), MINUTE).expect("connect");
    let (mut next, mut asked) = (0u64, std::collections::VecDeque::new());
    loop {
        let message = numbered(next);
        let sent = if next.is_multiple_of(4) {
            port.send_buffer(peer, Priority::Low, message, Confirm::Delivered)
                .map(|_| asked.push_back(next))
                .map_err(|unsent| unsent.error)
        } else if message.len() <= 512 {
            port.send(peer, Priority::Low, &message)
        } else {
            port.send_buffer(peer, Priority::Low, message, Confirm::Copied)
                .map(|_| asked.push_back(u64::MAX))
                .map_err(|unsent| unsent.error)
        };
        match sent {
            Ok(()) => next += 1,
            Err(SendError::Full | SendError::NoToken) => {}
            Err(error) => panic!("{error}"),
        }
        match port.poll() {
            Some(Event::Sent { result: Ok(()), buffer, .. }) => {
                let number = number_of(buffer.as_ref());
                if asked.contains(&number) {
                    notes.write_all_at(&(number + 1).to_ne_bytes(), 0).expect("the notes");
                    asked.retain(|other| *other != number);
                }
            }
            Some(Event::Room { .. }) | None => {}
            Some(other) => panic!("{other:?}"),
        }
    }
}

fn numbered(number: u64) -> Vec<u8> {
    let length = [8, 40, 100, 500, 3000][number as usize % 5];
    let mut bytes = pattern(length, number as usize);
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes
}

fn number_of(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Takes messages forever, and records their number in a file.
fn receiving(context: &mut Context) {
    let notes: String = context.argument(0);
    let notes = std::fs::OpenOptions::new().write(true).open(notes).expect("the notes");
    let mut port = Port::open(context.options()).expect("open");
    context.tell(format!("ready {}", port.name()));
    let mut received = 0u64;
    loop {
        match port.wait(None).expect("wait") {
            Some(Event::Message(message)) => {
                assert_eq!(&message.payload[..], numbered(received));
                received += 1;
                notes.write_all_at(&received.to_ne_bytes(), 0).expect("the notes");
            }
            Some(event) if post_needed(&mut port, &event) => {}
            Some(Event::Connected(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

struct Notes {
    file: tempfile::NamedTempFile,
}

impl Notes {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().write_all_at(&[0; 8], 0).expect("write");
        Self { file }
    }

    fn path(&self) -> &str {
        self.file.path().to_str().expect("text")
    }

    fn read(&self) -> u64 {
        let mut bytes = [0; 8];
        self.file.as_file().read_exact_at(&mut bytes, 0).expect("read");
        u64::from_ne_bytes(bytes)
    }
}

/// How many senders are killed, and how many receivers.
fn rounds() -> u64 {
    repetitions("BYWIRE_ROUNDS", [100, 100, 500])
}

/// Children that run at the same time: the next ones start while one dies.
const POOL: usize = 3;

#[test]
fn senders_killed_at_random_lose_no_confirmed_message() {
    let mut survivors = Survivors::new();
    let mut random = Random(1);
    let mut running: Vec<(Actor, Notes, Option<Peer>, u64, u64)> = Vec::new();
    let (mut before, mut busy) = (None, 0);
    let rounds = rounds();
    for _ in 0..rounds {
        while running.len() < POOL {
            let notes = Notes::new();
            let actor = Actor::start("streaming", survivors.place.path(), &[notes.path()]);
            running.push((actor, notes, None, 0, random.draw(300) as u64));
        }
        // A child is killed a little after it has delivered its random number of messages.
        let ripe = loop {
            let event = next(&mut survivors.victim);
            take_streamed(&mut survivors.victim, &mut running, event);
            if let Some(ripe) =
                running.iter().position(|(_, _, peer, seen, goal)| peer.is_some() && seen >= goal)
            {
                break ripe;
            }
        };
        for _ in 0..random.draw(20_000) {
            std::hint::spin_loop();
        }
        busy += usize::from(any_is_busy());
        running[ripe].0.kill();
        let dead = running[ripe].2.expect("connected");
        let ended =
            until_ended(&mut survivors.victim, |victim, event| take_streamed(victim, &mut running, event));
        assert_eq!(ended, (dead, DisconnectReason::Died));
        let (_, notes, _, seen, _) = running.swap_remove(ripe);
        assert!(notes.read() <= seen, "{} confirmed, {seen} received", notes.read());
        before.get_or_insert_with(resources_now);
    }
    drop(running);
    assert!(busy as u64 > rounds / 5, "{busy} kills across a bulk area");
    until(|| {
        survivors.victim.poll();
        survivors.victim.peers().count() == 1
    });
    assert_no_growth(before.expect("counted"), resources_now());
}

fn take_streamed(victim: &mut Port, running: &mut [(Actor, Notes, Option<Peer>, u64, u64)], event: Event) {
    match event {
        Event::Connected(peer) => {
            let pid = victim.peer_info(peer).expect("connected").pid().expect("it is seen");
            let entry = running.iter_mut().find(|entry| entry.0.pid().as_raw_pid() == pid);
            entry.expect("one of ours").2 = Some(peer);
        }
        Event::Message(message) => {
            let entry = running.iter_mut().find(|entry| entry.2 == Some(message.peer)).expect("one of ours");
            assert_eq!(&message.payload[..], numbered(entry.3), "whole and in order");
            entry.3 += 1;
            victim.recycle(message.payload);
        }
        event => assert!(post_needed(victim, &event), "{event:?}"),
    }
}

#[test]
fn receivers_killed_at_random_account_for_taken_messages() {
    let place = PortDirectory::new();
    let mut port = place.open(PortOptions { geometry: SMALL, ..place.options() });
    let mut random = Random(2);
    let mut waiting = std::collections::VecDeque::new();
    let (mut before, mut busy) = (None, 0);
    let rounds = rounds();
    for _ in 0..rounds {
        while waiting.len() < POOL {
            let notes = Notes::new();
            waiting.push_back((Actor::start("receiving", place.path(), &[notes.path()]), notes));
        }
        let (mut actor, notes) = waiting.pop_front().expect("a receiver");
        let peer = port.connect(&address(&actor.expect("ready")), MINUTE).expect("connect");
        let (goal, mut sent, mut asked) = (random.draw(300) as u64, 0, 0);
        let (mut confirmed, mut failed, mut killed) = (0, 0, false);
        loop {
            if !killed && sent >= goal {
                for _ in 0..random.draw(20_000) {
                    std::hint::spin_loop();
                }
                busy += usize::from(any_is_busy());
                actor.kill();
                killed = true;
            }
            let bytes = numbered(sent);
            match port
                .send_buffer(peer, Priority::Low, bytes, Confirm::Delivered)
                .map_err(|unsent| unsent.error)
            {
                Ok(_) => (sent, asked) = (sent + 1, asked + 1),
                Err(SendError::NoToken | SendError::Disconnected(DisconnectReason::Died)) => {}
                Err(error) => panic!("{error}"),
            }
            match port.poll() {
                Some(Event::Sent { buffer, result: Ok(()), .. }) => {
                    assert_eq!(number_of(buffer.as_ref()), confirmed, "in order");
                    confirmed += 1;
                }
                Some(Event::Sent { result, .. }) => {
                    assert_eq!(result, Err(TransferError::Disconnected(DisconnectReason::Died)));
                    failed += 1;
                }
                Some(Event::Disconnected { peer: gone, reason }) => {
                    assert_eq!((gone, reason), (peer, DisconnectReason::Died));
                    break;
                }
                Some(Event::Room { .. }) | None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(confirmed + failed, asked, "every token came back");
        // The last message that it took may not have been recorded.
        assert!(confirmed <= notes.read() + 1, "{confirmed} confirmed, {} received", notes.read());
        before.get_or_insert_with(resources_now);
    }
    drop(waiting);
    assert!(busy as u64 > rounds / 5, "{busy} kills across a bulk area");
    assert_no_growth(before.expect("counted"), resources_now());
}

/// Does any connection of this process have a large bulk area?
fn any_is_busy() -> bool {
    std::fs::read_to_string("/proc/self/maps").expect("procfs").contains("bywire-bulk")
}

/// Numbers of descriptors and shared segments of this process, and its resident kilobytes.
fn resources_now() -> (usize, usize, u64) {
    let descriptors = open_descriptors();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    let resident = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    (descriptors, maps.lines().filter(|line| line.contains("bywire-")).count(), resident)
}

fn assert_no_growth(before: (usize, usize, u64), after: (usize, usize, u64)) {
    assert!(after.0 <= before.0, "descriptors grew from {} to {}", before.0, after.0);
    assert!(after.1 <= before.1, "segments grew from {} to {}", before.1, after.1);
    assert!(after.2 <= before.2 + 16_384, "memory grew from {} to {} kB", before.2, after.2);
}
