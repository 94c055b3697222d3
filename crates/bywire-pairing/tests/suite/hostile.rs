//! A user with a hundred hostile programs against a machine's service and a port that admits everyone: pairing and
//! messages of other users take at most twice what they take while the same programs do the same elsewhere on the
//! machine. Needs root and the real-time class. A soak runs for ten minutes.
//!
//! Three states take turns. In peace the hostile programs do nothing. In the second state they attack another service
//! and port, which use no time that other programs want. In war they attack the service and port under test. As
//! neighbours on the machine the programs cost the same in the second state, so war is compared with the second state.
//! The service, the port and the honest user run in the real-time class, so it plays no part which core the scheduler
//! wakes them on.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bywire::handshake::Packet as PortPacket;
use bywire::{Address, Admit, Event, Peer, Port, PortOptions, Priority};
use bywire_pairing::protocol::{Kind, PAGE_BYTES, Packet, VERSION, Verdict};
use bywire_pairing::service::Service;
use bywire_pairing::user::Scope;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::Socket;
use bywire_sys::wake::Eventfd;
use bywire_testing::Tier;
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::linger;
use bywire_testing::protocol_client::{self, ProtocolClient};
use bywire_testing::rogue::{self, Rogue};
use rustix::process::{Signal, Uid};

const PROGRAMS: usize = 100;
const HOSTILE: u32 = 54_341;
const HONEST: u32 = 54_342;
/// How long each state lasts in turn.
const BLOCK: Duration = Duration::from_millis(250);
/// How many ends each hostile program keeps without reading them.
const KEPT_MAX: usize = 20;
/// The states, as the hostile programs are told them. The directories have the same names.
const STATES: [&str; 3] = ["peace", "elsewhere", "war"];
/// Runs ahead of all other tests and programs.
const AHEAD: &[&str] = &["chrt", "--fifo", "1"];
/// Runs only while no other program wants the processor.
const BEHIND: &[&str] = &["chrt", "--idle", "0"];

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] = &[("target", target), ("honest", honest), ("hostile", hostile)];

fn become_user(user: u32) {
    let user = Uid::from_raw(user);
    rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
}

/// A machine's service, and a port that admits everyone and answers. It counts the peers that the port
/// has met, admitted or refused.
fn target(context: &mut Context) {
    let mut service = Service::start(&context.directory.join("pairing"), Scope::Machine).expect("a service");
    std::thread::spawn(move || service.serve(Duration::from_secs(3600)));
    let options = PortOptions {
        name: Some("victim".parse().expect("a name")),
        admit: Admit::Everyone,
        runtime_directory: Some(context.directory.clone()),
        spin: Duration::ZERO,
        ..PortOptions::default()
    };
    let mut port = Port::open(options).expect("open");
    let (say, asked) = channel();
    let (answer, counted) = channel();
    std::thread::spawn(move || {
        let mut met = 0;
        loop {
            match port.wait(Some(Duration::from_millis(100))).expect("a wait") {
                Some(Event::Message(message)) => {
                    // A peer that has gone meanwhile gets no answer.
                    let _ = port.send(message.peer, Priority::Low, &message.payload);
                }
                Some(Event::Connected(_)) => met += 1,
                _ => {}
            }
            if let Ok(()) = asked.try_recv() {
                answer.send(met + port.statistics().refused).expect("it listens");
            }
        }
    });
    context.tell("ready");
    while context.hear().is_some() {
        say.send(()).expect("the port lives");
        context.tell(format!("met {}", counted.recv().expect("the port lives")));
    }
}

/// Attacks the place that it is told, in every way.
fn hostile(context: &mut Context) {
    become_user(HOSTILE);
    let (say, told) = channel();
    let seed: usize = context.argument(0);
    let directory = context.directory.clone();
    context.tell("ready");
    std::thread::scope(|scope| {
        scope.spawn(move || harass(&directory, seed, &told));
        while let Some(word) = context.hear() {
            say.send(STATES.iter().position(|state| *state == word).expect("a state")).expect("it listens");
        }
        std::process::exit(0);
    });
}

fn harass(directory: &Path, seed: usize, told: &Receiver<usize>) {
    become_user(HOSTILE);
    let places = STATES.map(|state| directory.join(state));
    let rogues = places.each_ref().map(|place| Rogue::new(place, &format!("rogue{seed}")));
    let (_, segment) = Mapping::create("rogue", bywire_ring::stream::SEGMENT_BYTES).expect("memory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let interrupter = Interrupter::here();
    let (mut kept, mut state) = (Vec::new(), 0);
    for round in seed.. {
        while let Some(word) = if state == 0 { told.recv().ok() } else { told.try_recv().ok() } {
            state = word;
        }
        let (sender, receiver) = linger::lingering_at(&listener, Duration::from_secs(1));
        kept.push(receiver);
        if kept.len() > KEPT_MAX {
            kept.remove(0);
        }
        match round % 6 {
            0..=2 => molest_service(&places[state].join("pairing"), round, &segment, &sender),
            _ => molest_port(&rogues[state], round, &sender),
        }
        // If the victim is faster, this copy is the last.
        interrupter.bound(|| drop(sender));
    }
}

/// One attack: with too many descriptors, wrong ones, a connection that lingers, or endless questions.
fn molest_service(service: &Path, round: usize, segment: &OwnedFd, sender: &OwnedFd) {
    let Ok(socket) = Socket::connect(service) else { return };
    let (doorbell, (_, page)) =
        (Eventfd::new().expect("a doorbell"), Mapping::create("rogue", PAGE_BYTES).expect("memory"));
    let encoded = |kind| Packet { first: VERSION, ..Packet::new(kind, 1) }.encode();
    // Perhaps no service listens: that is what the attack is about.
    let send = |packet: &[u8], files: &[std::os::fd::BorrowedFd<'_>]| {
        let _refused = linger::send(&socket, packet, files);
    };
    match round / 6 % 5 {
        0 => send(&encoded(Kind::Ask), &vec![sender.as_fd(); linger::PACKET_DESCRIPTORS_MAX]),
        1 => send(&encoded(Kind::Hello), &[doorbell.as_fd(), sender.as_fd()]),
        2 => {
            send(&encoded(Kind::Hello), &[doorbell.as_fd(), page.as_fd()]);
            send(&encoded(Kind::Offer), &[sender.as_fd(), segment.as_fd()]);
        }
        3 => (0..50).for_each(|_| send(&encoded(Kind::Status), &[])),
        _ => send(b"garbage", &[sender.as_fd(); 3]),
    }
    if round.is_multiple_of(2) {
        let _answered = rogue::is_over(&socket);
    }
}

/// One attack: with too many descriptors, wrong ones, or a packet that cannot be read.
fn molest_port(rogue: &Rogue, round: usize, sender: &OwnedFd) {
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
    if round.is_multiple_of(2) {
        let _answered = rogue::is_over(&socket);
    }
}

/// The time from the first packets of a connection's programs to the service until both ends are paired.
fn pairing(service: &Path, listener: &TcpListener, segments: &[OwnedFd; 2]) -> Duration {
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    // Thousands of addresses in time-wait would slow every program down.
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("a reset");
    let (doorbell, page) = (Eventfd::new().expect("a doorbell"), ProtocolClient::memory(PAGE_BYTES));
    let began = Instant::now();
    let ends = segments.each_ref().map(|segment| {
        let socket = Socket::connect(service).expect("there is room for one more");
        let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
        socket.send(&hello.encode(), &[doorbell.as_fd(), page.as_fd()]).expect("hello");
        ProtocolClient { socket, segment: segment.try_clone().expect("a copy") }
    });
    ends[0].pairs_with(&ends[1], client.as_fd(), server.as_fd());
    assert_eq!(ends[0].verdict(1), Verdict::Paired);
    began.elapsed()
}

/// The time of a message there and back.
fn question(port: &mut Port, peer: Peer) -> Duration {
    let began = Instant::now();
    port.send(peer, Priority::Low, b"how are you?").expect("room for one");
    loop {
        match port.wait(Some(protocol_client::TIMEOUT)).expect("a wait") {
            Some(Event::Message(_)) => return began.elapsed(),
            Some(_) => {}
            None => panic!("no answer"),
        }
    }
}

/// Pairs and asks for a while whenever it is told to. Reports the median and the longest time of both, in
/// nanoseconds.
fn honest(context: &mut Context) {
    become_user(HONEST);
    let service = context.directory.join("pairing");
    let segments = [(); 2].map(|()| ProtocolClient::memory(bywire_ring::stream::SEGMENT_BYTES));
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let mut port = Port::open(PortOptions { spin: Duration::ZERO, ..context.options() }).expect("open");
    let address = Address::local("victim".parse::<bywire::PortName>().expect("a name"));
    let peer = port.connect(&address, protocol_client::TIMEOUT).expect("admitted");
    context.tell("ready");
    while context.hear().is_some() {
        let began = Instant::now();
        let mut times = [vec![], vec![]];
        // At least five samples, however slow it is.
        while began.elapsed() < BLOCK || times[0].len() < 5 {
            let both = [pairing(&service, &listener, &segments), question(&mut port, peer)];
            // Operations that were under way when the state changed belong to neither state.
            if began.elapsed() > BLOCK / 5 {
                times.iter_mut().zip(both).for_each(|(times, time)| times.push(time));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let said = times.map(|mut times| {
            times.sort_unstable();
            format!("{} {}", times[times.len() / 2].as_nanos(), times[times.len() - 1].as_nanos())
        });
        context.tell(format!("took {}", said.join(" ")));
    }
}

/// The report of [`honest`] about one block.
type Took = [f64; 4];

/// All blocks, each state in turn, until `duration` is over and the port has met so many hostile programs.
fn wage(
    [target, honest]: [&mut Actor; 2],
    hostile: &mut [Actor],
    (duration, met_min): (Duration, u64),
) -> (Vec<[Took; 3]>, u64) {
    let (began, mut turns, mut met) = (Instant::now(), Vec::new(), 0);
    while began.elapsed() < duration || met < met_min {
        assert!(began.elapsed() < duration + 2 * protocol_client::TIMEOUT, "the port has met {met} only");
        turns.push(STATES.map(|state| {
            hostile.iter_mut().for_each(|actor| actor.tell(state));
            honest.tell("go on");
            let said = honest.expect("took");
            let numbers: Vec<f64> = said.split(' ').map(|word| word.parse().expect("a number")).collect();
            numbers.try_into().expect("as many as were said")
        }));
        target.tell("how many?");
        met = target.expect("met").parse().expect("a number");
    }
    (turns, met)
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// From now on the actor runs only while no other program wants the processor. It is started without that, which
/// would take long.
fn put_behind(actor: &Actor) {
    let pid = actor.pid().as_raw_nonzero().to_string();
    let words = ["--idle", "--all-tasks", "--pid", "0", &pid];
    let status = Command::new("chrt").args(words).status().expect("util-linux");
    assert!(status.success(), "chrt {words:?}: {status}");
}

/// Why the test cannot act as other users, or run in the real-time class.
fn obstacle() -> Option<&'static str> {
    let may_be_ahead = || Command::new("chrt").args(["--fifo", "1", "true"]).output();
    if !rustix::process::geteuid().is_root() {
        return Some("only root can be other users; run this test as root");
    }
    let is_given = may_be_ahead().is_ok_and(|output| output.status.success());
    (!is_given).then_some("`chrt --fifo 1` gives no real-time class here; allow CAP_SYS_NICE")
}

#[test]
fn a_user_with_a_hundred_hostile_programs_does_not_slow_others_down() {
    if let Some(reason) = obstacle() {
        println!("not run: {reason}");
        return;
    }
    let (seconds, met_min) = Tier::current().pick([(4, 100), (4, 100), (600, 300)]);
    let directory = tempfile::tempdir().expect("a directory");
    let places = STATES.map(|state| directory.path().join(state));
    for place in [directory.path()].into_iter().chain(places.iter().map(AsRef::as_ref)) {
        std::fs::create_dir_all(place).expect("mkdir");
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o1777)).expect("chmod");
    }
    let ready = |mut actor: Actor| {
        actor.expect("ready");
        actor
    };
    let mut target = ready(Actor::start_under(AHEAD, "target", &places[2], &[]));
    let _elsewhere = ready(Actor::start_under(BEHIND, "target", &places[1], &[]));
    let mut honest = ready(Actor::start_under(AHEAD, "honest", &places[2], &[]));
    let start = |seed: usize| Actor::start("hostile", directory.path(), &[&seed.to_string()]);
    let hostile: Vec<_> = (0..PROGRAMS).map(start).collect();
    let mut hostile: Vec<_> = hostile.into_iter().map(ready).collect();
    hostile.iter().for_each(put_behind);
    let until = (Duration::from_secs(seconds), met_min);
    let (turns, met) = wage([&mut target, &mut honest], &mut hostile, until);
    // Each of them ends while no other program wants the processor. All together get some of it in any case.
    hostile.iter().for_each(|actor| actor.signal(Signal::KILL));
    println!("{} turns; the port has met {met} hostile programs", turns.len());
    for (place, name) in ["pairing", "longest", "message", "longest"].into_iter().enumerate() {
        let times = [0, 1, 2].map(|state| middle(turns.iter().map(|turn| turn[state][place])) / 1e3);
        // Ratios of blocks that are neighbours in time.
        let [beside, of_peace] =
            [1, 0].map(|state| middle(turns.iter().map(|turn| turn[2][place] / turn[state][place])));
        println!(
            "{name}: {STATES:?} {times:.0?} µs; war is {beside:.2} of elsewhere, {of_peace:.2} of peace"
        );
        // Each block has only one longest time. A close that is waited for takes a second.
        let bound = if name == "longest" { 10.0 } else { 2.0 };
        assert!(beside <= bound, "{name} in war takes {beside:.2} of its usual time");
    }
}
