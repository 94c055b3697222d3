//! A hostile user with a hundred programs against a machine's service and a port that admits everyone: what others do takes
//! at most twice its usual time. Needs root, to be others. Ten minutes of it with `BYWIRE_SOAK=1`.

#[path = "../../bywire/tests/actor/mod.rs"]
mod actor;
#[path = "../../bywire/tests/linger/mod.rs"]
mod linger;
#[path = "../../bywire/tests/rogue/mod.rs"]
mod rogue;
mod stranger;

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use actor::{Actor, Stage, play};
use bywire::handshake::Packet as PortPacket;
use bywire::{Address, Admit, Event, Peer, Port, PortOptions, Priority};
use bywire_pairing::protocol::{Kind, PAGE_BYTES, Packet, VERSION, Verdict};
use bywire_pairing::service::Service;
use bywire_pairing::user::Scope;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::Socket;
use bywire_sys::wake::Alarm;
use rogue::Rogue;
use rustix::process::Uid;
use stranger::Stranger;

const PROGRAMS: usize = 100;
const HOSTILE: u32 = 54_341;
const HONEST: u32 = 54_342;
/// So long everybody is left alone, then so long not, and so on.
const BLOCK: Duration = Duration::from_millis(500);
/// Ends that nobody reads, which each hostile program keeps.
const KEPT_MAX: usize = 20;

#[test]
#[ignore = "a role for the other tests of this file, which start it themselves"]
fn actor() {
    play(&[("hostile", hostile)]);
}

fn become_user(user: u32) {
    let user = Uid::from_raw(user);
    rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
}

/// Does everything that it can think of, except while it is told to halt.
fn hostile(stage: &mut Stage) {
    become_user(HOSTILE);
    let (say, told) = channel();
    let seed: usize = stage.argument(0);
    let directory = stage.directory.clone();
    stage.tell("ready");
    std::thread::scope(|scope| {
        scope.spawn(move || harass(&directory, seed, &told));
        while let Some(word) = stage.hear() {
            say.send(word == "go").expect("it listens");
        }
        std::process::exit(0);
    });
}

fn harass(directory: &Path, seed: usize, told: &Receiver<bool>) {
    become_user(HOSTILE);
    let service = directory.join("pairing");
    let rogue = Rogue::new(directory, &format!("rogue{seed}"));
    let (_, segment) = Mapping::create("rogue", bywire_ring::stream::SEGMENT_BYTES).expect("memory");
    let (mut kept, mut is_going) = (Vec::new(), false);
    for round in seed.. {
        if let Some(word) = if is_going { told.try_recv().ok() } else { told.recv().ok() } {
            is_going = word;
            continue;
        }
        // Not for long: where the victim is faster, its last copy is our own.
        let (sender, receiver) = linger::lingering_for(Duration::from_secs(1));
        kept.push(receiver);
        if kept.len() > KEPT_MAX {
            kept.remove(0);
        }
        match round % 6 {
            0..=2 => molest_service(&service, round, &segment, sender),
            _ => molest_port(&rogue, round, sender),
        }
    }
}

/// Once: with too many descriptors, with the wrong ones, with a connection that lingers, with questions without end.
fn molest_service(service: &Path, round: usize, segment: &OwnedFd, sender: OwnedFd) {
    let Ok(socket) = Socket::connect(service) else { return };
    let (bell, (_, page)) =
        (Alarm::new().expect("a bell"), Mapping::create("rogue", PAGE_BYTES).expect("memory"));
    let encoded = |kind| Packet { first: VERSION, ..Packet::new(kind, 1) }.encode();
    // Nobody listens perhaps; that is what it is about.
    let send = |packet: &[u8], files: &[std::os::fd::BorrowedFd<'_>]| {
        let _refused = linger::send(&socket, packet, files);
    };
    match round / 6 % 5 {
        0 => send(&encoded(Kind::Ask), &vec![sender.as_fd(); linger::PACKET_DESCRIPTORS_MAX]),
        1 => send(&encoded(Kind::Hello), &[bell.as_fd(), sender.as_fd()]),
        2 => {
            send(&encoded(Kind::Hello), &[bell.as_fd(), page.as_fd()]);
            send(&encoded(Kind::Offer), &[sender.as_fd(), segment.as_fd()]);
        }
        3 => (0..50).for_each(|_| send(&encoded(Kind::Status), &[])),
        _ => send(b"garbage", &[sender.as_fd(); 3]),
    }
    drop(sender);
    if round.is_multiple_of(2) {
        let _answered = rogue::is_over(&socket);
    }
}

/// Once: with too many descriptors, with the wrong ones, with what is not to be read.
fn molest_port(rogue: &Rogue, round: usize, sender: OwnedFd) {
    let Ok(socket) = Socket::connect(&rogue.directory.join("victim.port")) else { return };
    let hello = PortPacket::Hello(rogue.introduction()).to_bytes();
    let mut offer = rogue.offer();
    let send = |packet: &[u8], files: &[std::os::fd::BorrowedFd<'_>]| {
        let _refused = linger::send(&socket, packet, files);
    };
    match round / 6 % 4 {
        0 => send(b"x", &vec![sender.as_fd(); linger::PACKET_DESCRIPTORS_MAX]),
        1 => {
            offer[round / 24 % 3] = sender.as_fd();
            send(&hello, &offer);
        }
        2 => {
            send(&hello, &offer);
            send(&PortPacket::Wake.to_bytes(), &[sender.as_fd(); 3]);
            send(b"unread", &[sender.as_fd()]);
        }
        _ => send(b"x", &[sender.as_fd(); 3]),
    }
    drop(sender);
    if round.is_multiple_of(2) {
        let _answered = rogue::is_over(&socket);
    }
}

/// How long a connection takes from its programs' first word to the service until both are paired.
fn pairing(service: &Path, segments: &[OwnedFd; 2]) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    let (bell, page) = (Alarm::new().expect("a bell"), Stranger::memory(PAGE_BYTES));
    let began = Instant::now();
    let ends = segments.each_ref().map(|segment| {
        let socket = Socket::connect(service).expect("there is room for one more");
        let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
        socket.send(&hello.encode(), &[bell.as_fd(), page.as_fd()]).expect("hello");
        Stranger { socket, segment: segment.try_clone().expect("a copy") }
    });
    ends[0].offer(1, client.as_fd());
    assert_eq!(ends[0].verdict(1), Verdict::Waiting);
    ends[1].offer(2, server.as_fd());
    assert_eq!(ends[1].verdict(2), Verdict::Paired);
    assert_eq!(ends[0].verdict(1), Verdict::Paired);
    began.elapsed()
}

/// How long a message takes there and back.
fn question(port: &mut Port, peer: Peer) -> Duration {
    let began = Instant::now();
    port.send(peer, Priority::Low, b"how are you?").expect("room for one");
    loop {
        match port.wait(Some(stranger::PATIENCE)).expect("a wait") {
            Some(Event::Message(_)) => return began.elapsed(),
            Some(_) => {}
            None => panic!("no answer"),
        }
    }
}

/// A port that admits everyone, and answers.
fn serve(options: PortOptions, is_over: &Receiver<()>) -> (u64, u64) {
    let mut port = Port::open(options).expect("open");
    let mut met = 0;
    while is_over.try_recv().is_err() {
        match port.wait(Some(Duration::from_millis(100))).expect("a wait") {
            Some(Event::Message(message)) => {
                // Whoever has gone meanwhile is not answered.
                let _ = port.send(message.peer, Priority::Low, &message.payload);
            }
            Some(Event::Connected(_)) => met += 1,
            _ => {}
        }
    }
    (met, port.statistics().refused)
}

/// What an honest user's doings take, by turns in peace and in war; each the middle one of all.
fn compare(directory: &Path, actors: &mut [Actor], duration: Duration) -> [[Duration; 2]; 2] {
    become_user(HONEST);
    let service = directory.join("pairing");
    let segments = [(); 2].map(|()| Stranger::memory(bywire_ring::stream::SEGMENT_BYTES));
    // Whoever spins stops as soon as anybody else wants the core, friend or foe.
    let runtime_directory = Some(directory.to_owned());
    let options = PortOptions { runtime_directory, spin: Duration::ZERO, ..PortOptions::default() };
    let mut port = Port::open(options).expect("open");
    let address = Address::local("victim".parse::<bywire::PortName>().expect("a name"));
    let peer = port.connect(&address, stranger::PATIENCE).expect("admitted");
    let (mut pairings, mut questions) = ([vec![], vec![]], [vec![], vec![]]);
    let began = Instant::now();
    let mut is_war = 0;
    while began.elapsed() < duration || is_war == 1 {
        let word = ["halt", "go"][is_war];
        actors.iter_mut().for_each(|actor| actor.tell(word));
        let begins = Instant::now();
        while begins.elapsed() < BLOCK {
            // What was under way when the word changed belongs to neither.
            let is_settled = begins.elapsed() > BLOCK / 5;
            let (paired, answered) = (pairing(&service, &segments), question(&mut port, peer));
            if is_settled {
                pairings[is_war].push(paired);
                questions[is_war].push(answered);
            }
        }
        is_war = 1 - is_war;
    }
    actors.iter_mut().for_each(|actor| actor.tell("halt"));
    [pairings, questions].map(|pair| {
        pair.map(|mut times: Vec<Duration>| {
            assert!(times.len() >= 20, "only {} were measured: {times:?}", times.len());
            times.sort_unstable();
            times[times.len() / 2]
        })
    })
}

#[test]
fn a_user_with_a_hundred_hostile_programs_does_not_slow_others_down() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: only root can be other users; run this test as root");
        return;
    }
    let seconds = if std::env::var_os("BYWIRE_SOAK").is_some() { 600 } else { 12 };
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o1777)).expect("chmod");
    let mut service = Service::start(&directory.path().join("pairing"), Scope::Machine).expect("a service");
    std::thread::spawn(move || service.serve(Duration::from_secs(3600)));
    let options = PortOptions {
        name: Some("victim".parse().expect("a name")),
        admit: Admit::Everyone,
        runtime_directory: Some(directory.path().to_owned()),
        spin: Duration::ZERO,
        ..PortOptions::default()
    };
    let (end, is_over) = channel();
    let victim = std::thread::spawn(move || serve(options, &is_over));
    // Their own work waits for everybody else's, as between the slices that systemd gives to users: what is left is what
    // they make others do.
    let mut actors: Vec<_> = (0..PROGRAMS)
        .map(|seed| {
            Actor::start_under(&["chrt", "--idle", "0"], "hostile", directory.path(), &[&seed.to_string()])
        })
        .collect();
    actors.iter_mut().for_each(|actor| drop(actor.expect("ready")));
    let place = directory.path().to_owned();
    let times = std::thread::scope(|scope| {
        let honest = scope.spawn(|| compare(&place, &mut actors, Duration::from_secs(seconds)));
        honest.join().expect("an honest user")
    });
    end.send(()).expect("the port lives");
    let (met, refused) = victim.join().expect("the port");
    println!("pairing and message, in peace and in war: {times:?}; {met} let in, {refused} refused");
    assert!(met + refused > 100, "nobody was hostile to the port");
    for [peace, war] in times {
        assert!(war <= 2 * peace, "{war:?} instead of {peace:?}");
    }
}
