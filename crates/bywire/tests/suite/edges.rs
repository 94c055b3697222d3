//! The limits of everything that a peer can send: every number at its limits, other versions, and peers stopped and
//! killed at every step of the handshake, on either side. Also entries that another user planted in the runtime
//! directory (as root), a removed runtime directory, and a port without descriptors.
//!
//! The numbers are those of every handshake packet, heap, record header, word, credit and doorbell, at 0, 1, 2^31−1,
//! 2^31, 2^32−1, 2^32, 2^63−1, 2^63 and 2^64−1; of records every fifth, and all in a soak.

use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bywire::handshake::Packet;
use bywire::{
    Admit, ConnectError, DisconnectReason, Event, OpenError, Peer, Port, PortOptions, Priority, Refusal,
    Rights,
};
use bywire_ring::geometry::LINE_BYTES;
use bywire_ring::geometry::LaneName;
use bywire_ring::header::{BULK, CHECKED, Header, PROMPT, lap};
use bywire_ring::memory::Memory;
use bywire_sys::listener::Listener;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::Socket;
use bywire_testing::Tier;
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::here::{self, as_user};
use bywire_testing::linger::{self, UNDISTURBED};
use bywire_testing::rogue::{self, Inside, MESSAGE, Rogue, answer};
use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::time::{ClockId, clock_gettime};

use crate::attacked::{Attacked, connect_to_rogue};
use crate::ports::{MINUTE, PortDirectory, address, meet, name, open_descriptors, serve, until, until_ended};

/// The values of a changed number: the limits of signed and unsigned words of both lengths, and their neighbours.
const LIMITS: [u64; 9] =
    [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX];
/// Users without an entry in the user database.
const HOSTILE: u32 = 54_371;
const HONEST: u32 = 54_372;

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("caller", caller), ("listener", listener), ("exhausted", exhausted)];

fn attacked() -> Attacked {
    Attacked::with(PortOptions { message_bytes_max: 1 << 20, ..PortOptions::default() })
}

/// A copy of a packet with the number of `width` bytes at `at` changed.
fn changed(packet: &[u8], (at, width): (usize, usize), number: u64) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
    packet
}

/// The places and widths of the numbers of an introduction: magic, version, kind, incarnation, longest message, check, fragment,
/// the sizes of three lanes, and the length of the name.
fn numbers_of_an_introduction() -> impl Iterator<Item = (usize, usize)> {
    [4, 2, 1, 8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 1].into_iter().scan(0, |place, width| {
        *place += width;
        Some((*place - width, width))
    })
}

#[test]
fn an_introduction_with_extreme_values_is_refused_or_makes_a_working_connection() {
    let mut fixture = attacked();
    let rogue = fixture.rogue();
    let hello = rogue.hello();
    let mut welcomed = 0;
    for field in numbers_of_an_introduction() {
        for limit in LIMITS {
            let socket = rogue.approach("victim", &changed(&hello, field, limit), &rogue.offer());
            match fixture.serve(|| answer(&socket)).0.expect("an answer").0 {
                Packet::Refuse(_) => {}
                Packet::Welcome(_) => {
                    welcomed += 1;
                    let peer = fixture.other_peer().expect("connected");
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
    let welcome = rogue.welcome();
    for field in numbers_of_an_introduction() {
        for limit in LIMITS {
            let outcome = connect_to_rogue(&mut port, &rogue, MINUTE, |caller| {
                caller.send(&changed(&welcome, field, limit), &rogue.offer()).expect("sent");
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
    let mut fixture = attacked();
    let rogue = fixture.rogue();
    let version = u16::from_le_bytes(Packet::Goodbye.to_bytes()[4..6].try_into().expect("two bytes"));
    for other in [0, version - 1, version + 1, 0x7fff, 0x8000, 0xffff] {
        let of_version = |packet: Packet| changed(&packet.to_bytes(), (4, 2), other.into());
        for length in [6, 7, 40, 200] {
            let mut hello = of_version(Packet::Hello(rogue.introduction()));
            hello.resize(length, 0);
            let socket = rogue.approach("victim", &hello, &rogue.offer());
            let answered = fixture.serve(|| answer(&socket)).0.expect("an answer").0;
            assert_eq!(answered, Packet::Refuse(Refusal::Version), "{other} in {length} bytes");
        }
        for packet in [Packet::Welcome(rogue.introduction()), Packet::Refuse(Refusal::Version)] {
            let outcome = connect_to_rogue(&mut fixture.honest, &rogue, MINUTE, |caller| {
                caller.send(&of_version(packet), &rogue.offer()).expect("sent");
            });
            assert_eq!(outcome, Err(ConnectError::Refused(Refusal::Version)), "{other}");
        }
    }
    fixture.is_undisturbed();
}

#[test]
fn a_heap_with_extreme_values_is_accepted_or_ends_its_own_connection() {
    let mut fixture = attacked();
    let rogue = fixture.rogue();
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
    let mut fixture = attacked();
    let key = fixture.victim.register(vec![3; 10_000], Rights { read: true, write: true }).expect("region").0;
    // Each round has new memory. In the memory of the last one, old records would be read again.
    let mut inside: Option<(Rogue, Inside, Peer)> = None;
    let (mut ended, mut taken) = (0, 0);
    let (step, mut place) = (Tier::current().pick([EDGES_STEP, EDGES_STEP, 1]), 0);
    let mut attempt = |fixture: &mut Attacked, lane, kind, length, words: [u64; 7]| {
        place += 1;
        if place % step != 0 {
            return;
        }
        let (rogue, present, peer) = inside.get_or_insert_with(|| {
            let rogue = fixture.rogue();
            let (mut present, peer) = fixture.let_in(&rogue);
            Rogue::offer_heap(&present, 2);
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
    let mut fixture = attacked();
    for lane in 0..3 {
        for limit in LIMITS {
            for is_page in [false, true] {
                let rogue = fixture.rogue();
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
        let hello = rogue.hello();
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
        "a move" => rogue.move_to_bulk(&mut inside),
        "good-bye" => inside.socket.send(&Packet::Goodbye.to_bytes(), &[]).expect("room"),
        other => panic!("no step `{other}`"),
    }
    context.tell("ready");
    context.hear();
}

#[test]
fn clients_stopped_or_killed_at_any_step_delay_nobody_and_leave_nothing() {
    let first = ["connected", "introduced", "welcomed"];
    let second = ["half a message", "half a put", "an area", "a move", "good-bye"];
    let mut fixture = attacked();
    for step in first.into_iter().chain(second) {
        let mut actor = Actor::start("caller", fixture.place.path(), &[step]);
        fixture.serve(|| actor.expect("ready"));
        actor.signal(Signal::STOP);
        fixture.is_undisturbed();
        if let Some(peer) = fixture.other_peer() {
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
        socket.send(&rogue.welcome(), &rogue.offer()).expect("sent");
    }
    if step != "deaf" {
        context.tell("ready");
    }
    context.hear();
}

#[test]
fn listeners_stopped_or_killed_at_any_step_cause_a_timeout_or_an_error() {
    for step in ["deaf", "accepting", "welcoming"] {
        let mut fixture = attacked();
        let directory = fixture.place.path().to_owned();
        let mut actor = Actor::start("listener", &directory, &[step]);
        if step == "deaf" {
            actor.expect("ready");
        } else {
            until(|| directory.join("listener.port").exists());
        }
        let address = address("listener");
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
        let reason = match step {
            "welcoming" => DisconnectReason::Died,
            _ => DisconnectReason::Refused(Refusal::Closed),
        };
        assert_eq!(until_ended(&mut fixture.victim, |_, _| {}), (peer, reason), "{step}");
        let after = Port::open(PortOptions { name: Some(name("listener")), ..fixture.place.options() });
        assert!(after.is_ok(), "{step}: {after:?}");
        fixture.is_undisturbed();
    }
}

#[test]
fn a_runtime_directory_removed_while_in_use_ends_no_connection() {
    let mut fixture = attacked();
    std::fs::remove_dir_all(fixture.place.path()).expect("removed");
    fixture.is_undisturbed();
    // No port is found there any more.
    assert_eq!(fixture.honest.connect_start(&address("victim")).err(), Some(ConnectError::NoPort));
    fixture.is_undisturbed();
    // The next port makes the directory again, and does not meet the ports that were there before.
    let mut late = fixture.place.named("victim");
    let mut other = fixture.place.open(fixture.place.options());
    meet(&mut other, &mut late);
    fixture.is_undisturbed();
    let Attacked { place, victim, honest, .. } = fixture;
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
    // The port may have tried to send before the rogue accepts, or not.
    let connected = connect_to_rogue(&mut port, &rogue, MINUTE, |caller| {
        let (packet, files) = answer(caller).expect("an introduction");
        assert!(matches!(packet, Packet::Hello(_)) && files.len() == 3);
        caller.send(&rogue.welcome(), &rogue.offer()).expect("sent");
    });
    assert_eq!(until_ended(&mut port, |_, _| {}).0, connected.expect("connected"));
}

/// Puts something at a path. The second path is that of a file of the honest user.
type Plant = fn(&Path, &Path);

/// Files that another user can put at a path.
const PLANTS: [(&str, Plant); 10] = [
    ("a file", |path, _| std::fs::write(path, "planted").expect("written")),
    ("a directory", |path, _| std::fs::create_dir(path).expect("made")),
    ("a fifo", |path, _| {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("made");
    }),
    ("a link to nothing", |path, _| symlink("/nonexistent/nothing", path).expect("linked")),
    ("a link to a file", |path, precious| symlink(precious, path).expect("linked")),
    ("a link to itself", |path, _| symlink(path, path).expect("linked")),
    ("a link to a port", |path, _| symlink(path.with_file_name("honest.port"), path).expect("linked")),
    ("a dead socket", |path, _| drop(Listener::bind(path).expect("bound"))),
    ("a dead stream socket", |path, _| drop(UnixListener::bind(path).expect("bound"))),
    ("a hard link", |path, precious| std::fs::hard_link(precious, path).expect("linked")),
];

/// A directory for all users, with a port of the honest user and a file that others may read.
fn shared() -> Option<PortDirectory> {
    here::is_root().then(PortDirectory::shared)
}

#[test]
fn an_entry_planted_by_another_user_is_refused() {
    let Some(place) = shared() else { return };
    let precious = place.path().join("precious");
    as_user(HONEST, || std::fs::write(&precious, "precious").expect("written"));
    // A hard link is a file like any other, so it is left out.
    for (what, plant) in PLANTS.into_iter().filter(|(what, _)| *what != "a hard link") {
        let path = place.path().join("victim.port");
        as_user(HOSTILE, || plant(&path, &precious));
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
            let found = caller.connect_start(&address("victim"));
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
    for (what, plant) in PLANTS {
        let path = place.path().join(format!(".{HONEST}.lock"));
        // If links to other users' files are forbidden (fs.protected_hardlinks), the outcome would be the same.
        let planter = if what == "a hard link" { HONEST } else { HOSTILE };
        as_user(planter, || plant(&path, &precious));
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
    let mut victim = place.named("victim");
    let rogue = Rogue::new(place.path(), "rogue");
    let link = place.path().join("alias.port");
    symlink(place.path().join("rogue.port"), &link).expect("linked");
    let mut alias = rogue.introduction();
    alias.port = name("alias");
    let socket = rogue.approach("victim", &Packet::Hello(alias).to_bytes(), &rogue.offer());
    let (answered, _) = serve(&mut victim, || answer(&socket).map(|(packet, _)| packet));
    assert_eq!(answered, Some(Packet::Refuse(Refusal::Unverified)));
    assert!(rogue.listener.accept().expect("accept").is_none(), "the link was followed");
}

/// Uses up every descriptor, even those that its port gets back, and waits for a peer that cannot be let in.
fn exhausted(context: &mut Context) {
    let mut port =
        Port::open(PortOptions { name: Some(name("exhausted")), ..context.options() }).expect("open");
    let limit = Some(open_descriptors() as u64 + 16);
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
    honest.connect_start(&address("exhausted")).expect("it listens");
    let late: Vec<_> = (0..200).map(|_| Socket::connect(&path).expect("it listens")).collect();
    let used: u64 = actor.expect("used").parse().expect("a number");
    assert!(used < 1000, "{used} ms of two seconds, with nothing to do");
    drop((molesters, late));
    // It may have been turned away, and may come again then.
    until(|| match honest.wait(Some(Duration::from_millis(10))).expect("wait") {
        Some(Event::Connected(_)) => true,
        Some(Event::Disconnected { .. }) => {
            honest.connect_start(&address("exhausted")).expect("it listens");
            false
        }
        _ => false,
    });
}
