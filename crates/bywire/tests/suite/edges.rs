//! The limits of everything that a peer can send: every number at its limits, other versions, and a stop or an end
//! between any two steps of a handshake. Also runtime directories in which others have planted something, or that
//! vanish.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bywire::handshake::Packet;
use bywire::{
    Address, Admit, ConnectError, DisconnectReason, Event, OpenError, Peer, Port, PortName, PortOptions,
    Priority, Refusal, Rights,
};
use bywire_ring::geometry::LINE_BYTES;
use bywire_ring::geometry::LaneName;
use bywire_ring::header::{BULK, CHECKED, Header, PROMPT, lap};
use bywire_ring::memory::Memory;
use bywire_sys::listener::Listener;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::Socket;
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::linger::{self, UNDISTURBED};
use bywire_testing::rogue::{self, Inside, MESSAGE, Rogue, answer};
use bywire_testing::{Tier, here};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Resource, Rlimit, Signal, Uid};
use rustix::time::{ClockId, clock_gettime};

use crate::ports::{PortDirectory, meet, until};

/// The values of a changed number: the limits of signed and unsigned words of both lengths, and their neighbours.
const LIMITS: [u64; 9] =
    [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX];
const MINUTE: Duration = Duration::from_secs(60);
/// Users without an entry in the user database.
const HOSTILE: u32 = 54_371;
const HONEST: u32 = 54_372;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("caller", caller), ("listener", listener), ("exhausted", exhausted)];

/// A port and its honest peer.
struct Fixture {
    place: PortDirectory,
    victim: Port,
    honest: Port,
    to_honest: Peer,
    to_victim: Peer,
}

impl Fixture {
    fn new() -> Self {
        let place = PortDirectory::new();
        let name = Some(name("victim"));
        let mut victim = place.open(PortOptions { name, message_bytes_max: 1 << 20, ..place.options() });
        let mut honest = place.open(place.options());
        let (to_victim, to_honest) = meet(&mut honest, &mut victim);
        Self { place, victim, honest, to_honest, to_victim }
    }

    /// Both exchange messages, and the honest peer gets no other event.
    fn is_undisturbed(&mut self) {
        let began = Instant::now();
        for round in 0..20u32 {
            self.honest.send(self.to_victim, Priority::Low, &round.to_ne_bytes()).expect("room");
            let asked = self.hear(round);
            self.victim.send(asked, Priority::High, &round.to_ne_bytes()).expect("room");
            until(|| match self.honest.wait(Some(MINUTE)).expect("wait") {
                Some(Event::Message(message)) => message.payload[..] == round.to_ne_bytes(),
                other => panic!("{other:?}"),
            });
        }
        assert!(began.elapsed() < UNDISTURBED, "held up for {:?}", began.elapsed());
    }

    /// The honest peer's message arrives at the victim, whatever else arrives.
    fn hear(&mut self, round: u32) -> Peer {
        let mut from = None;
        until(|| {
            if let Some(Event::Message(message)) = self.victim.wait(Some(MINUTE)).expect("wait")
                && message.peer == self.to_honest
            {
                assert_eq!(message.payload[..], round.to_ne_bytes());
                from = Some(message.peer);
            }
            from.is_some()
        });
        from.expect("heard")
    }

    /// Runs the victim while `other` runs on another thread.
    fn live<T: Send>(&mut self, other: impl FnOnce() -> T + Send) -> T {
        let victim = &mut self.victim;
        std::thread::scope(|scope| {
            let thread = scope.spawn(other);
            until(|| {
                drop(victim.wait(Some(Duration::from_millis(1))).expect("wait"));
                thread.is_finished()
            });
            thread.join().expect("no panic")
        })
    }

    /// Waits until the honest peer is the only peer.
    fn until_alone(&mut self) {
        until(|| {
            drop(self.victim.wait(Some(Duration::from_millis(1))).expect("wait"));
            self.victim.peers().count() == 1
        });
    }

    /// A rogue that was let in, and the victim's handle of it.
    fn let_in(&mut self, rogue: &Rogue) -> (Inside, Peer) {
        let inside = self.live(|| rogue.enter("victim").expect("let in"));
        let to_honest = self.to_honest;
        let peer = self.victim.peers().find(|peer| *peer != to_honest).expect("it is connected");
        (inside, peer)
    }
}

fn name(text: &str) -> PortName {
    text.parse().expect("a name")
}

/// A copy of a packet with the number of `width` bytes at `at` changed.
fn changed(packet: &[u8], (at, width): (usize, usize), number: u64) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
    packet
}

/// The numbers of an introduction: magic, version, kind, incarnation, longest message, check, fragment, the sizes of
/// three lanes, and the length of the name.
const INTRODUCTION: [(usize, usize); 14] = [
    (0, 4),
    (4, 2),
    (6, 1),
    (7, 8),
    (15, 8),
    (23, 1),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 4),
    (40, 4),
    (44, 4),
    (48, 4),
    (52, 1),
];

#[test]
fn an_introduction_with_extreme_values_is_refused_or_makes_a_working_connection() {
    let mut fixture = Fixture::new();
    let rogue = Rogue::new(fixture.place.path(), "rogue");
    let hello = Packet::Hello(rogue.introduction()).to_bytes();
    let mut welcomed = 0;
    for field in INTRODUCTION {
        for limit in LIMITS {
            let packet = changed(&hello, field, limit);
            let socket = rogue.connect("victim");
            socket.send(&packet, &rogue.offer()).expect("sent");
            match fixture.live(|| answer(&socket)).expect("an answer").0 {
                Packet::Refuse(_) => {}
                Packet::Welcome(_) => {
                    welcomed += 1;
                    let to_honest = fixture.to_honest;
                    let peer = fixture.victim.peers().find(|peer| *peer != to_honest).expect("connected");
                    // The calls return, whatever the rogue announced.
                    let _ = fixture.victim.send(peer, Priority::Low, &[1; 8]);
                    let _ = fixture.victim.send(peer, Priority::High, &[1; 4000]);
                    let _ = fixture.victim.send_datagram(peer, Priority::Low, &[1; 100]);
                }
                other => panic!("{field:?} {limit}: {other:?}"),
            }
            drop(socket);
            fixture.until_alone();
        }
    }
    // Incarnation, longest message and check may have any value.
    assert!(welcomed >= 3 * LIMITS.len(), "{welcomed}");
    fixture.is_undisturbed();
}

#[test]
fn an_answer_with_extreme_values_ends_in_a_connection_or_an_error() {
    let place = PortDirectory::new();
    let mut port = place.open(place.options());
    let rogue = Rogue::new(place.path(), "rogue");
    let address = Address::local(rogue.name.clone());
    let welcome = Packet::Welcome(rogue.introduction()).to_bytes();
    for field in INTRODUCTION {
        for limit in LIMITS {
            let outcome = std::thread::scope(|scope| {
                let thread = scope.spawn(|| port.connect(&address, MINUTE));
                let mut socket = None;
                until(|| {
                    socket = rogue.listener.accept().expect("accept");
                    socket.is_some()
                });
                let socket = socket.expect("somebody");
                socket.send(&changed(&welcome, field, limit), &rogue.offer()).expect("sent");
                thread.join().expect("no panic")
            });
            match outcome {
                Ok(peer) => port.disconnect(peer),
                Err(ConnectError::Refused(_) | ConnectError::NotAdmitted) => {}
                Err(other) => panic!("{field:?} {limit}: {other:?}"),
            }
            while port.poll().is_some() {}
        }
    }
}

#[test]
fn other_versions_are_reported_as_such_at_either_end() {
    let mut fixture = Fixture::new();
    let rogue = Rogue::new(fixture.place.path(), "rogue");
    let version = u16::from_le_bytes(Packet::Goodbye.to_bytes()[4..6].try_into().expect("two bytes"));
    let others = [0, version - 1, version + 1, 0x7fff, 0x8000, 0xffff];
    let address = Address::local(rogue.name.clone());
    for other in others {
        let of_version = |packet: Packet| changed(&packet.to_bytes(), (4, 2), other.into());
        for length in [6, 7, 40, 200] {
            let mut hello = of_version(Packet::Hello(rogue.introduction()));
            hello.resize(length, 0);
            let socket = rogue.connect("victim");
            socket.send(&hello, &rogue.offer()).expect("sent");
            let answered = fixture.live(|| answer(&socket)).expect("an answer").0;
            assert_eq!(answered, Packet::Refuse(Refusal::Version), "{other} in {length} bytes");
        }
        for packet in [Packet::Welcome(rogue.introduction()), Packet::Refuse(Refusal::Version)] {
            let honest = &mut fixture.honest;
            let outcome = std::thread::scope(|scope| {
                let thread = scope.spawn(|| honest.connect(&address, MINUTE));
                let mut socket = None;
                until(|| {
                    socket = rogue.listener.accept().expect("accept");
                    socket.is_some()
                });
                socket.expect("somebody").send(&of_version(packet), &rogue.offer()).expect("sent");
                thread.join().expect("no panic")
            });
            assert_eq!(outcome, Err(ConnectError::Refused(Refusal::Version)), "{other}");
        }
    }
    fixture.is_undisturbed();
}

#[test]
fn a_heap_with_extreme_values_is_accepted_or_ends_its_own_connection() {
    let mut fixture = Fixture::new();
    let rogue = Rogue::new(fixture.place.path(), "rogue");
    let (_memory, file) = Mapping::create("rogue", 4096).expect("memory");
    for id in LIMITS {
        for block_bytes in LIMITS {
            for blocks in [0, 1, (1 << 31) - 1, 1 << 31, u32::MAX] {
                let (inside, _) = fixture.let_in(&rogue);
                let heap = Packet::Heap { id: id as u32, block_bytes, blocks };
                inside.socket.send(&heap.to_bytes(), &[file.as_fd()]).expect("sent");
                // No block is that long, and this test does not try one of 64 bytes.
                fixture.until_alone();
            }
        }
    }
    fixture.is_undisturbed();
}

/// Publishes a record with any header and words.
fn publish(rogue: &Rogue, inside: &mut Inside, lane: LaneName, header: Header, words: [u64; 7]) -> bool {
    let producer = &mut inside.producers[lane as usize];
    let placeholder = Header { kind: MESSAGE, length: 56, check: 0 };
    // The victim looks at it later, as it does not run meanwhile.
    if producer.push_inline(&rogue.segment, &inside.inbound, placeholder, &words).is_err() {
        return false;
    }
    let (position, layout) = (producer.position() - 1, rogue.geometry.lane(lane));
    let slot = layout.slots_offset + (position as usize % (1 << layout.slots_log2)) * LINE_BYTES;
    let word = header.word(lap(position, layout.slots_log2));
    // Release: pairs with the acquire load in `Consumer::peek`.
    rogue.segment.store(slot, word, Ordering::Release);
    true
}

/// Every fifth record of the table meets each kind, flag, length, word and limit in each lane, as no dimension of the table
/// is a multiple of five.
const EDGES_STEP: usize = 5;

#[test]
fn a_record_with_extreme_values_is_accepted_or_ends_its_own_connection() {
    let mut fixture = Fixture::new();
    let key = fixture.victim.register(vec![3; 10_000], Rights { read: true, write: true }).expect("region").0;
    // Each round has new memory. In the memory of the last one, old records would be read again.
    let mut inside: Option<(Rogue, Inside, Peer)> = None;
    let (mut ended, mut taken) = (0, 0);
    let (step, mut place) = (Tier::current().pick([EDGES_STEP, EDGES_STEP, 1]), 0);
    let mut attempt = |fixture: &mut Fixture, lane, kind, length, words: [u64; 7]| {
        place += 1;
        if place % step != 0 {
            return;
        }
        let (rogue, present, peer) = inside.get_or_insert_with(|| {
            let rogue = Rogue::new(fixture.place.path(), "rogue");
            let (mut present, peer) = fixture.let_in(&rogue);
            let (_memory, file) = Mapping::create("rogue", 4096).expect("memory");
            let heap = Packet::Heap { id: 0, block_bytes: 64, blocks: 2 }.to_bytes();
            present.socket.send(&heap, &[file.as_fd()]).expect("room");
            // Transfers towards the rogue are under way, so it can answer them in any way.
            let _ = fixture.victim.put(peer, Priority::High, (bywire::Key(key), 0), vec![2; 9000], None);
            let _ = fixture.victim.get(peer, Priority::High, (bywire::Key(key), 0), vec![0; 9000]);
            if let Ok(heap) = fixture.victim.heap(peer, 64, 2) {
                let block = heap.block().expect("a free one");
                let _ = fixture.victim.send_lent(Priority::High, block, 64);
            }
            publish(
                &rogue,
                &mut present,
                LaneName::High,
                Header { kind: MESSAGE, length: 8, check: 0 },
                [0; 7],
            );
            (rogue, present, peer)
        });
        let is_pushed = publish(rogue, present, lane, Header { kind, length, check: 0 }, words);
        let peer = *peer;
        // Twice as many polls as any record takes.
        for _ in 0..32 {
            while let Some(event) = fixture.victim.poll() {
                drop(event);
            }
        }
        let is_over = !fixture.victim.peers().any(|found| found == peer);
        ended += usize::from(is_over);
        taken += usize::from(!is_over);
        if is_over || !is_pushed {
            inside = None;
            fixture.until_alone();
        }
    };
    for lane in [LaneName::Reply, LaneName::High, LaneName::Low] {
        for kind in (0..15).chain([31]) {
            for flags in [0, BULK, CHECKED | PROMPT, BULK | CHECKED | PROMPT] {
                for length in [0, 1, 56, 57, 4096, 4097, 0x8000, 0xffff] {
                    attempt(&mut fixture, lane, kind | flags, length, [0; 7]);
                }
            }
            // Each word alone, and all at once; after a valid key, and after an invalid one.
            for place in 0..8 {
                for limit in LIMITS {
                    let mut words = [key, 0, 8, 0, u64::MAX, 0, 0];
                    match place {
                        7 => words = [limit; 7],
                        place => words[place] = limit,
                    }
                    let (flags, length) = if lane == LaneName::High { (BULK, 64) } else { (0, 8) };
                    attempt(&mut fixture, lane, kind | flags, length, words);
                }
            }
        }
    }
    println!("{ended} records ended their connection, {taken} did not");
    assert!(ended > 100 && taken > 100, "the table is one of edges: {ended} and {taken}");
    drop(inside);
    fixture.until_alone();
    assert_eq!(fixture.victim.region(bywire::Key(key)).map(<[u8]>::len), Some(10_000));
    fixture.is_undisturbed();
}

#[test]
fn credit_and_doorbells_at_their_limits_harm_nobody_else() {
    let mut fixture = Fixture::new();
    for lane in 0..3 {
        for limit in LIMITS {
            for is_page in [false, true] {
                let rogue = Rogue::new(fixture.place.path(), "rogue");
                let (_inside, peer) = fixture.let_in(&rogue);
                let words = if is_page { &rogue.page } else { &rogue.segment };
                let offset = if is_page { 8 * lane } else { LINE_BYTES * (lane + 1) };
                words.store(offset, limit, Ordering::Relaxed);
                for round in 0..600 {
                    let priority = [Priority::Low, Priority::High][round % 2];
                    let _ = fixture.victim.send(peer, priority, &vec![7; [8, 3000][round / 2 % 2]]);
                    drop(fixture.victim.poll());
                }
                let _ = fixture.victim.get(peer, Priority::High, (bywire::Key(7), 0), vec![0; 9000]);
                (0..64).for_each(|_| drop(fixture.victim.poll()));
                fixture.victim.disconnect(peer);
                fixture.until_alone();
            }
        }
    }
    fixture.is_undisturbed();
}

/// Takes the given number of steps towards a port, and no more.
fn caller(context: &mut Context) {
    let step: String = context.argument(0);
    let mut rogue = Rogue::new(&context.directory, "caller");
    let socket = rogue.connect("victim");
    if step != "connected" {
        let hello = Packet::Hello(rogue.introduction()).to_bytes();
        socket.send(&hello, &rogue.offer()).expect("sent");
    }
    if step == "connected" || step == "introduced" {
        context.tell("ready");
        context.hear();
        return;
    }
    let mut inside = rogue.inside(socket).expect("let in");
    match step.as_str() {
        "welcomed" => {}
        "half a message" => rogue.push_low(&mut inside, rogue::FIRST, &[100_000], &[7; 4096]),
        "half a put" => rogue.push_low(&mut inside, rogue::PUT, &[1, 0, 10_000, 0, u64::MAX], &[7; 4096]),
        "an area" => drop(Rogue::offer_bulk(&inside)),
        "a move" => {
            let area = Rogue::offer_bulk(&inside);
            assert!(rogue.move_bulk(&mut inside, area));
        }
        "good-bye" => inside.socket.send(&Packet::Goodbye.to_bytes(), &[]).expect("room"),
        other => panic!("no step `{other}`"),
    }
    context.tell("ready");
    context.hear();
}

#[test]
fn clients_stopped_or_killed_at_any_step_delay_nobody_and_leave_nothing() {
    let steps = [
        "connected",
        "introduced",
        "welcomed",
        "half a message",
        "half a put",
        "an area",
        "a move",
        "good-bye",
    ];
    let mut fixture = Fixture::new();
    for step in steps {
        let directory = fixture.place.path().to_owned();
        let mut actor = fixture.live(|| {
            let mut actor = Actor::start("caller", &directory, &[step]);
            actor.expect("ready");
            actor
        });
        actor.signal(Signal::STOP);
        fixture.is_undisturbed();
        let to_honest = fixture.to_honest;
        let peer = fixture.victim.peers().find(|peer| *peer != to_honest);
        if let Some(peer) = peer {
            // Fills the rings.
            while fixture.victim.send(peer, Priority::Low, &[1; 4000]).is_ok() {}
            fixture.is_undisturbed();
        }
        actor.kill();
        fixture.until_alone();
        fixture.is_undisturbed();
    }
}

/// Opens a name, and answers up to the given step.
fn listener(context: &mut Context) {
    let step: String = context.argument(0);
    let rogue = Rogue::new(&context.directory, "listener");
    let mut accepted = None;
    if step == "deaf" {
        context.tell("ready");
    }
    while step != "deaf" && accepted.is_none() {
        if step == "accepting" || step == "welcoming" {
            accepted = rogue.listener.accept().expect("accept");
        }
        if accepted.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    if let (Some(socket), "welcoming") = (&accepted, step.as_str()) {
        socket.send(&Packet::Welcome(rogue.introduction()).to_bytes(), &rogue.offer()).expect("sent");
    }
    if step != "deaf" {
        context.tell("ready");
    }
    context.hear();
}

#[test]
fn listeners_stopped_or_killed_at_any_step_cause_a_timeout_or_an_error() {
    for step in ["deaf", "accepting", "welcoming"] {
        let mut fixture = Fixture::new();
        let directory = fixture.place.path().to_owned();
        let mut actor = Actor::start("listener", &directory, &[step]);
        if step == "deaf" {
            actor.expect("ready");
        } else {
            until(|| directory.join("listener.port").exists());
        }
        let address = Address::local(name("listener"));
        let peer = loop {
            match fixture.victim.connect_start(&address) {
                Ok(peer) => break peer,
                // The name exists before its socket listens.
                Err(ConnectError::NoPort) => std::thread::sleep(Duration::from_millis(1)),
                Err(other) => panic!("{step}: {other:?}"),
            }
        };
        if step != "deaf" {
            actor.expect("ready");
        }
        actor.signal(Signal::STOP);
        fixture.is_undisturbed();
        // A second caller gets as far as the queue of the listener.
        let short = fixture.honest.connect(&address, Duration::from_millis(20));
        assert_eq!(short, Err(ConnectError::TimedOut), "{step}");
        // The listener keeps its name as long as it lives.
        let again = Port::open(PortOptions { name: Some(name("listener")), ..fixture.place.options() });
        assert!(matches!(again, Err(OpenError::InUse(_))), "{step}: {again:?}");
        actor.kill();
        let mut ended = None;
        until(|| {
            if let Some(Event::Disconnected { peer: gone, reason }) =
                fixture.victim.wait(Some(Duration::from_millis(1))).expect("wait")
            {
                assert_eq!(gone, peer);
                ended = Some(reason);
            }
            ended.is_some()
        });
        let expected = if step == "welcoming" {
            DisconnectReason::Died
        } else {
            DisconnectReason::Refused(Refusal::Closed)
        };
        assert_eq!(ended, Some(expected), "{step}");
        let after = Port::open(PortOptions { name: Some(name("listener")), ..fixture.place.options() });
        assert!(after.is_ok(), "{step}: {after:?}");
        fixture.is_undisturbed();
    }
}

#[test]
fn a_runtime_directory_removed_while_in_use_ends_no_connection() {
    let mut fixture = Fixture::new();
    std::fs::remove_dir_all(fixture.place.path()).expect("removed");
    fixture.is_undisturbed();
    // No port is found there any more.
    let address = Address::local(name("victim"));
    assert_eq!(fixture.honest.connect_start(&address).err(), Some(ConnectError::NoPort));
    fixture.is_undisturbed();
    // The next port makes the directory again, and does not meet the ports that were there before.
    let mut late = fixture.place.open(PortOptions { name: Some(name("victim")), ..fixture.place.options() });
    let mut other = fixture.place.open(fixture.place.options());
    meet(&mut other, &mut late);
    fixture.is_undisturbed();
    let Fixture { place, victim, honest, .. } = fixture;
    drop((victim, honest));
    let mode = std::fs::metadata(place.path()).expect("it is there").permissions().mode();
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(mode & 0o7777, if is_root { 0o1777 } else { 0o700 });
}

#[test]
fn a_port_that_takes_no_descriptors_before_accepting_is_connected_to() {
    let place = PortDirectory::new();
    let mut port = place.open(place.options());
    let rogue = Rogue::new(place.path(), "rogue");
    if !rogue.listener.guard(true) {
        println!("not run: this kernel refuses no descriptors (SO_PASSRIGHTS, Linux 6.16)");
        return;
    }
    let address = Address::local(rogue.name.clone());
    let peer = std::thread::scope(|scope| {
        let thread = scope.spawn(|| port.connect(&address, MINUTE));
        let mut asked = [PollFd::new(&rogue.listener, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut asked, None), Ok(1));
        // The port may have tried to send by then, or not.
        let socket = rogue.listener.accept().expect("accept").expect("it has connected");
        let (packet, files) = answer(&socket).expect("an introduction");
        assert!(matches!(packet, Packet::Hello(_)) && files.len() == 3);
        socket.send(&Packet::Welcome(rogue.introduction()).to_bytes(), &rogue.offer()).expect("sent");
        let peer = thread.join().expect("no panic").expect("connected");
        drop(socket);
        peer
    });
    let mut ended = None;
    until(|| {
        if let Some(Event::Disconnected { peer, .. }) = port.wait(Some(MINUTE)).expect("wait") {
            ended = Some(peer);
        }
        ended.is_some()
    });
    assert_eq!(ended, Some(peer));
}

/// Does `act` as another user.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    let begin = move || {
        let user = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
        act()
    };
    std::thread::scope(|scope| scope.spawn(begin).join().expect("no panic"))
}

/// What another user can put at a path: `what` names it.
fn plant(what: &str, path: &Path, precious: &Path) {
    match what {
        "a file" => std::fs::write(path, "planted").expect("written"),
        "a directory" => std::fs::create_dir(path).expect("made"),
        "a fifo" => {
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("made")
        }
        "a link to nothing" => std::os::unix::fs::symlink("/nonexistent/nothing", path).expect("linked"),
        "a link to a file" => std::os::unix::fs::symlink(precious, path).expect("linked"),
        "a link to itself" => std::os::unix::fs::symlink(path, path).expect("linked"),
        "a link to a port" => {
            std::os::unix::fs::symlink(path.with_file_name("honest.port"), path).expect("linked")
        }
        "a dead socket" => drop(Listener::bind(path).expect("bound")),
        "a dead stream socket" => drop(std::os::unix::net::UnixListener::bind(path).expect("bound")),
        "a hard link" => std::fs::hard_link(precious, path).expect("linked"),
        other => panic!("no way to plant {other}"),
    }
}

const PLANTS: [&str; 10] = [
    "a file",
    "a directory",
    "a fifo",
    "a link to nothing",
    "a link to a file",
    "a link to itself",
    "a link to a port",
    "a dead socket",
    "a dead stream socket",
    "a hard link",
];

/// A directory for all users, with a port of the honest user and a file that others may read.
fn shared() -> Option<PortDirectory> {
    if !here::is_root() {
        return None;
    }
    let place = PortDirectory::new();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o1777)).expect("chmod");
    Some(place)
}

#[test]
fn an_entry_planted_by_another_user_is_refused() {
    let Some(place) = shared() else { return };
    let precious = place.path().join("precious");
    as_user(HONEST, || std::fs::write(&precious, "precious").expect("written"));
    // A hard link is a file like any other, so it is left out.
    for what in PLANTS.into_iter().filter(|what| *what != "a hard link") {
        let path = place.path().join("victim.port");
        as_user(HOSTILE, || plant(what, &path, &precious));
        let began = Instant::now();
        as_user(HONEST, || {
            let opened = Port::open(PortOptions { name: Some(name("victim")), ..place.options() });
            let is_refused = matches!(
                opened,
                Err(OpenError::OtherUser(..) | OpenError::InUse(_) | OpenError::RuntimeDirectory { .. })
            );
            assert!(is_refused, "{what}: {opened:?}");
            // A port without a name opens. Behind the planted entry no port is found.
            let admit = Admit::Everyone;
            let options = PortOptions { name: Some(name("honest")), admit, ..place.options() };
            let mut honest = Port::open(options).expect("another name");
            let mut caller = Port::open(place.options()).expect("a number");
            let found = caller.connect_start(&Address::local(name("victim")));
            // A socket that admits no other user is the same as none.
            let is_none = matches!(found, Err(ConnectError::NoPort | ConnectError::NotAdmitted));
            assert!(is_none, "{what}: {found:?}");
            assert!(honest.wait(Some(Duration::from_millis(5))).expect("wait").is_none(), "{what}");
            meet(&mut caller, &mut honest);
        });
        assert!(began.elapsed() < UNDISTURBED, "{what} held up a port for {:?}", began.elapsed());
        assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "precious", "{what}");
        let is_there = std::fs::symlink_metadata(&path).is_ok();
        assert!(is_there, "{what} is another user's, and stays");
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
    }
}

#[test]
fn a_lock_planted_by_another_user_locks_nothing_of_ours() {
    let Some(place) = shared() else { return };
    let precious = place.path().join("precious");
    as_user(HONEST, || {
        std::fs::write(&precious, "precious").expect("written");
        std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    });
    for what in PLANTS {
        let path = place.path().join(format!(".{HONEST}.lock"));
        // If links to other users' files are forbidden (fs.protected_hardlinks), the outcome would be the same.
        let planter = if what == "a hard link" { HONEST } else { HOSTILE };
        as_user(planter, || plant(what, &path, &precious));
        let began = Instant::now();
        as_user(HONEST, || {
            let lock = bywire_sys::directory::try_lock(place.path());
            assert!(lock.is_err(), "{what} is taken for our lock");
            drop(
                Port::open(PortOptions { name: Some(name("free")), ..place.options() }).expect("a free name"),
            );
        });
        assert!(began.elapsed() < UNDISTURBED, "{what} held up a port for {:?}", began.elapsed());
        assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "precious", "{what}");
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
    }
}

/// A port whose name is a link to elsewhere has no name.
#[test]
fn a_name_that_is_a_symbolic_link_is_refused() {
    let place = PortDirectory::new();
    let mut victim = place.open(PortOptions { name: Some(name("victim")), ..place.options() });
    let rogue = Rogue::new(place.path(), "rogue");
    let link = place.path().join("alias.port");
    std::os::unix::fs::symlink(place.path().join("rogue.port"), &link).expect("linked");
    let mut alias = rogue.introduction();
    alias.port = name("alias");
    let socket = rogue.connect("victim");
    socket.send(&Packet::Hello(alias).to_bytes(), &rogue.offer()).expect("sent");
    let mut answered = None;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| answer(&socket).map(|(packet, _)| packet));
        until(|| {
            drop(victim.wait(Some(Duration::from_millis(1))).expect("wait"));
            thread.is_finished()
        });
        answered = thread.join().expect("no panic");
    });
    assert_eq!(answered, Some(Packet::Refuse(Refusal::Unverified)));
    assert!(rogue.listener.accept().expect("accept").is_none(), "the link was followed");
}

/// Uses up every descriptor, even those that its port gets back, and waits for a peer that cannot be let in.
fn exhausted(context: &mut Context) {
    let mut port =
        Port::open(PortOptions { name: Some(name("exhausted")), ..context.options() }).expect("open");
    let limit = Some(std::fs::read_dir("/proc/self/fd").expect("procfs").count() as u64 + 16);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("lower");
    let mut filler = Vec::new();
    let fill = |filler: &mut Vec<std::fs::File>| {
        filler.extend(std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()));
    };
    fill(&mut filler);
    context.tell("ready");
    context.hear();
    // Takes every descriptor that comes back, even the reserve.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        drop(port.wait(Some(Duration::from_millis(1))).expect("wait"));
        fill(&mut filler);
    }
    let busy = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
    };
    let before = busy();
    drop(port.wait(Some(Duration::from_secs(2))).expect("wait"));
    context.tell(format!("used {}", (busy() - before).as_millis()));
    filler.clear();
    // Waiting peers are let in as soon as there is room.
    loop {
        if let Some(Event::Connected(_)) = port.wait(None).expect("wait") {
            context.tell("met");
        }
    }
}

#[test]
fn a_port_without_descriptors_sleeps_while_a_client_waits() {
    let place = PortDirectory::new();
    let mut actor = Actor::start("exhausted", place.path(), &[]);
    actor.expect("ready");
    // Peers that are turned away bring descriptors with a slow close, and so use the last one.
    let path = place.path().join("exhausted.port");
    let mut receivers = Vec::new();
    let molesters: Vec<_> = (0..20)
        .map(|_| {
            let socket = Socket::connect(&path).expect("it listens");
            let (sender, receiver) = linger::lingering();
            let _ = linger::send(&socket, b"unread", &[sender.as_fd()]);
            receivers.push(receiver);
            std::thread::spawn(move || drop(sender));
            socket
        })
        .collect();
    let mut honest = place.open(place.options());
    actor.tell("go");
    std::thread::sleep(Duration::from_millis(500));
    let peer = honest.connect_start(&Address::local(name("exhausted"))).expect("it listens");
    let late: Vec<_> = (0..200).map(|_| Socket::connect(&path).expect("it listens")).collect();
    let used: u64 = actor.expect("used").parse().expect("a number");
    assert!(used < 1000, "{used} ms of two seconds, with nothing to do");
    drop((molesters, late));
    // It may have been turned away, and may come again then.
    let mut is_met = false;
    until(|| {
        match honest.wait(Some(Duration::from_millis(10))).expect("wait") {
            Some(Event::Connected(_)) => is_met = true,
            Some(Event::Disconnected { .. }) => {
                honest.connect_start(&Address::local(name("exhausted"))).expect("it listens");
            }
            _ => {}
        }
        is_met
    });
    let _ = peer;
}
