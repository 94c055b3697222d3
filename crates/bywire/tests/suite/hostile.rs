//! Hostile peers that break the rules harm only their own connections. A soak attacks for a minute.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bywire::handshake::Packet;
use bywire::{
    Confirm, ConnectError, DisconnectReason, Event, Key, Peer, Port, PortOptions, Priority, Refusal, Rights,
};
use bywire_ring::geometry::LaneName;
use bywire_ring::header::{BULK, CHECKED, Header, PROMPT};
use bywire_ring::memory::Memory;
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::draw::Random;
use bywire_testing::rogue::{self, ALL_SEALS, DATAGRAM, Inside, LENT, MESSAGE, Rogue, answer, sealed};
use bywire_testing::{Tier, alone};
use rustix::fs::SealFlags;

use crate::attacked::{Attacked, connect_to_rogue};
use crate::ports::{MINUTE, PortDirectory, address, meet, name, named, until, until_ended};

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] =
    &[("holder", holder), ("scribbler", scribbler), ("honest", honest), ("mover", mover)];

/// Opens a port and does nothing.
fn holder(context: &mut Context) {
    let _port = Port::open(PortOptions { name: Some(name("held")), ..context.options() });
    context.tell("ready");
    context.hear();
}

/// Sends more wake-ups than the peer reads at one look, moves its bulk area, and leaves a message there.
fn mover(context: &mut Context) {
    let mut rogue = Rogue::new(&context.directory, "mover");
    let mut inside = rogue.enter("victim").expect("let in");
    context.tell("inside");
    context.hear();
    for _ in 0..120 {
        inside.socket.send(&Packet::Wake.to_bytes(), &[]).expect("room");
    }
    rogue.move_to_bulk(&mut inside);
    rogue.push_low(&mut inside, MESSAGE, &[], &[5; 20_000]);
    context.tell("ready");
    context.hear();
}

#[test]
fn the_last_packet_of_a_peer_is_read_after_any_number_of_others() {
    let mut fixture = Attacked::new();
    let mut mover = Actor::start("mover", fixture.place.path(), &[]);
    fixture.serve(|| mover.expect("inside"));
    mover.tell("go");
    mover.expect("ready");
    mover.kill();
    let mut messages = 0;
    let (_, reason) = until_ended(&mut fixture.victim, |_, event| match event {
        Event::Message(message) => {
            assert!(message.payload[..] == [5; 20_000]);
            messages += 1;
        }
        Event::Connected(_) => {}
        other => panic!("{other:?}"),
    });
    assert_eq!((reason, messages), (DisconnectReason::Died, 1));
}

/// A peer that has said good-bye may go on filling its ring, but only the records of one full ring are taken.
#[test]
fn a_peer_that_writes_after_its_goodbye_is_read_for_a_bounded_time() {
    let mut fixture = Attacked::new();
    for _ in 0..20 {
        let rogue = fixture.rogue();
        let (inside, _) = fixture.let_in(&rogue);
        let victim = &mut fixture.victim;
        // After `arm` the next poll begins with the sockets.
        while !victim.arm() {
            victim.poll();
        }
        let Inside { socket, inbound, producers, .. } = inside;
        let mut producers = producers;
        let mut fill = |count_max: usize| {
            let lanes = [LaneName::High, LaneName::Low];
            let push = |lane: &LaneName| {
                let header = Header { kind: MESSAGE, length: 8, check: 0 };
                let producer = &mut producers[*lane as usize];
                producer.push_inline(&rogue.segment, &inbound, header, &[7]).is_ok()
            };
            lanes.iter().cycle().map(push).take(count_max).filter(|is_pushed| *is_pushed).count()
        };
        let capacity = fill(1000);
        assert_eq!(capacity, 512, "two full lanes");
        socket.send(&Packet::Goodbye.to_bytes(), &[]).expect("room");
        let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fill(1000);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
            until(|| rounds.load(Ordering::Relaxed) > 10);
            let mut messages = 0;
            let (_, reason) = until_ended(victim, |_, event| {
                assert!(matches!(event, Event::Message(_)), "{event:?}");
                messages += 1;
            });
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(reason, DisconnectReason::Closed);
            assert_eq!(messages, capacity, "what was there, and no more");
        });
    }
}

/// The length of a head comes from the peer, and there are as many bytes as a slot has.
#[test]
fn a_message_whose_head_is_longer_than_its_slot_breaks_the_connection() {
    for (max, head_bytes, payload_bytes) in
        [(1 << 40, 49, 100), (1 << 40, u64::MAX, 100), (1 << 40, 8, 0), (1000, 48, 953)]
    {
        let mut fixture = Attacked::with(PortOptions { message_bytes_max: max, ..PortOptions::default() });
        let rogue = fixture.rogue();
        let (mut inside, _) = fixture.let_in(&rogue);
        let words = [head_bytes, 1, 2, 3, 4, 5, 6];
        match payload_bytes {
            0 => drop(rogue.push(&mut inside, LaneName::Low, rogue::HEADED, &words)),
            _ => rogue.push_low(&mut inside, rogue::HEADED, &words, &vec![7; payload_bytes]),
        }
        fixture.until_broken(&format!("a head of {head_bytes} bytes before {payload_bytes}"), |event| {
            assert!(matches!(event, Event::Connected(_)), "{event:?}");
        });
    }
}

/// The sender is told the longest message. A sender that ignores it ends its own connection.
#[test]
fn messages_above_the_ports_maximum_are_refused() {
    for (max, kind, lane, length) in [
        (40, MESSAGE, LaneName::High, 48),
        (40, MESSAGE, LaneName::Low, 48),
        (40, DATAGRAM, LaneName::High, 48),
        (40, LENT, LaneName::High, 48),
        (1000, MESSAGE, LaneName::Low, 1008),
        (1000, DATAGRAM, LaneName::Low, 1008),
        (0, MESSAGE, LaneName::Low, 8),
    ] {
        let mut fixture = Attacked::with(PortOptions { message_bytes_max: max, ..PortOptions::default() });
        let rogue = fixture.rogue();
        let (mut inside, _) = fixture.let_in(&rogue);
        Rogue::offer_heap(&inside, 2);
        let mut push = |length: u64, block: u64| match kind {
            LENT => drop(rogue.push(&mut inside, lane, LENT, &[0, block, length])),
            _ if length > 56 => rogue.push_low(&mut inside, kind, &[], &vec![7; length as usize]),
            _ => drop(rogue.push(&mut inside, lane, kind, &[7; 7][..length as usize / 8])),
        };
        // The longest message, then a longer one.
        push(max, 0);
        push(length, 1);
        let (what, mut taken) = (format!("kind {kind}, {length} bytes where {max} are taken"), 0);
        fixture.until_broken(&what, |event| match event {
            Event::Message(_) | Event::Datagram(_) | Event::Lent(_) => taken += 1,
            Event::Connected(_) => {}
            other => panic!("{other:?}"),
        });
        assert_eq!(taken, 1, "{what}");
        if max >= 4 {
            fixture.is_undisturbed();
        }
    }
}

/// A message that fits into a fragment takes no posted buffer. If it could, a peer could take the program's buffers
/// with small messages.
#[test]
fn a_short_message_in_the_form_of_a_long_one_takes_no_posted_buffer() {
    let fragment = u64::from(PortOptions::default().geometry.fragment_bytes);
    for (total, is_taken) in [(8, false), (56, false), (fragment, false), (fragment + 1, true)] {
        let mut fixture = Attacked::new();
        fixture.victim.post_receive(Priority::Low, vec![0; 8192]).expect("posted");
        let rogue = fixture.rogue();
        let (mut inside, _) = fixture.let_in(&rogue);
        let first = total.min(fragment);
        rogue.push_low(&mut inside, rogue::FIRST, &[total], &vec![7; first as usize]);
        if total > first {
            rogue.push_low(&mut inside, rogue::NEXT, &[0], &vec![7; (total - first) as usize]);
        }
        let taken = until(|| match fixture.victim.poll()? {
            Event::Message(message) => Some(Ok(message.payload.len() as u64)),
            Event::Disconnected { reason, .. } => Some(Err(reason)),
            _ => None,
        });
        let expected = if is_taken { Ok(total) } else { Err(DisconnectReason::Broken) };
        assert_eq!(taken, expected, "{total} bytes");
    }
}

/// Keys are random, and guesses are counted. A key that was valid once is no guess.
#[test]
fn a_peer_that_guesses_keys_is_disconnected_and_one_with_old_keys_is_not() {
    let mut fixture = Attacked::new();
    let rogue = fixture.rogue();
    let (mut inside, _) = fixture.let_in(&rogue);
    let victim = &mut fixture.victim;
    let revoked = victim.register(vec![0; 64], Rights { read: true, write: true }).expect("region");
    victim.revoke(revoked).expect("ours");
    let good = victim.register(vec![0; 64], Rights { read: false, write: false }).expect("region");
    let mut attempt = |key: u64, is_put: bool| {
        let push = |inside: &mut Inside| match is_put {
            true => {
                let producer = &mut inside.producers[LaneName::Low as usize];
                let (header, words) =
                    (Header { kind: rogue::PUT, length: 0, check: 0 }, [key, 0, 8, 9, u64::MAX]);
                producer.push_bulk(&rogue.segment, &inside.inbound, header, &words, &[1; 8]).is_ok()
            }
            false => rogue.push(inside, LaneName::Low, rogue::GET, &[key, 0, 8, 9]),
        };
        while !push(&mut inside) {
            assert!(victim.poll().is_none());
        }
    };
    for round in 0..5000 {
        attempt(revoked.0, round % 2 == 0);
        // Without the right, or out of range: the key is known all the same.
        attempt(good.0, round % 2 == 0);
    }
    for guess in 0..1024u64 {
        attempt(guess << 20 | 7, guess % 2 == 0);
    }
    (0..100_000).for_each(|_| assert!(fixture.victim.poll().is_none()));
    rogue.push(&mut inside, LaneName::Low, rogue::GET, &[u64::MAX, 0, 8, 9]);
    fixture.until_broken("one guess too many", |event| panic!("{event:?}"));
}

#[test]
fn invalid_introductions_are_refused_with_the_right_reason() {
    let mut fixture = Attacked::new();
    let rogue = fixture.rogue();
    let hello = rogue.hello();
    let length = rogue.geometry.segment_bytes() as u64;
    let (_reader, writer) = rustix::pipe::pipe().expect("pipe");
    let null = std::fs::File::open("/dev/null").expect("open");
    let directory = std::fs::File::open("/").expect("open");
    let [good, page, doorbell] = rogue.offer();
    let mut other_version = hello.clone();
    other_version[4] ^= 0x55;
    let mut holder = Actor::start("holder", fixture.place.path(), &[]);
    holder.expect("ready");
    let of_port = |text| {
        let mut introduction = rogue.introduction();
        introduction.port = name(text);
        Packet::Hello(introduction).to_bytes()
    };
    let heap = Packet::Heap { id: 0, block_bytes: 64, blocks: 1 }.to_bytes();
    let files = [
        sealed(length, true, SealFlags::empty()),
        sealed(length, true, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
        sealed(length, true, ALL_SEALS.difference(SealFlags::SHRINK)),
        sealed(length, true, ALL_SEALS.difference(SealFlags::FUTURE_WRITE)),
        sealed(length - 4096, true, ALL_SEALS),
        sealed(length + 4096, true, ALL_SEALS),
        sealed(0, false, ALL_SEALS),
        // Costs the rogue nothing: filling it would be at the victim's cost.
        sealed(length, false, ALL_SEALS),
    ];
    let all = vec![good, page, doorbell];
    let mut cases: Vec<(&str, Vec<u8>, Vec<BorrowedFd<'_>>, Refusal)> = vec![
        ("another version", other_version, all.clone(), Refusal::Version),
        ("nonsense", b"GET / HTTP/1.1".to_vec(), vec![], Refusal::BadOffer),
        ("half a packet", hello[..20].to_vec(), all.clone(), Refusal::BadOffer),
        ("good-bye first", Packet::Goodbye.to_bytes(), vec![], Refusal::BadOffer),
        ("a heap first", heap, vec![good], Refusal::BadOffer),
        ("no memory", hello.clone(), vec![], Refusal::BadOffer),
        ("too little memory", hello.clone(), vec![good, page], Refusal::BadOffer),
        ("no pipe", hello.clone(), vec![good, page, null.as_fd()], Refusal::BadOffer),
        ("a directory for a page", hello.clone(), vec![good, directory.as_fd(), doorbell], Refusal::BadOffer),
        ("a pipe for a segment", hello.clone(), vec![writer.as_fd(), page, doorbell], Refusal::BadOffer),
        ("the page as the segment", hello.clone(), vec![page, page, doorbell], Refusal::BadOffer),
        ("another's name", of_port("held"), all.clone(), Refusal::Unverified),
        ("a name that nobody has", of_port("nobody"), all, Refusal::Unverified),
    ];
    for file in &files {
        cases.push(("a bad segment", hello.clone(), vec![file.as_fd(), page, doorbell], Refusal::BadOffer));
    }
    for (name, packet, descriptors, refusal) in cases {
        let (answered, events) =
            fixture.serve(|| answer(&rogue.approach("victim", &packet, &descriptors)).map(|answer| answer.0));
        assert_eq!(answered, Some(Packet::Refuse(refusal)), "{name}");
        assert!(events.is_empty(), "{name}: {events:?}");
    }
    let spent = rustix::fs::fstat(&files[7]).expect("stat").st_blocks;
    assert_eq!(spent, 0, "the victim filled the rogue's memory");
    // More descriptors than any of our packets has, and none.
    for _ in 0..100 {
        let _ = rogue.connect("victim").send(b"x", &[null.as_fd(); 3]);
        drop(rogue.connect("victim"));
    }
    fixture.is_undisturbed();
    // A rogue with an honest handshake is let in, once the descriptors that it sent before are closed.
    until(|| match fixture.serve(|| rogue.enter("victim").map(drop)).0 {
        Err(Refusal::NoResources) => false,
        entered => {
            assert_eq!(entered, Ok(()));
            true
        }
    });
}

/// Strangers that connect and send nothing keep a place only until other peers want it.
#[test]
fn stalled_handshakes_exclude_nobody() {
    let place = PortDirectory::new();
    let mut victim = place.named("victim");
    let rogue = Rogue::new(place.path(), "rogue");
    let frozen: Vec<_> = (0..500).map(|_| rogue.connect("victim")).collect();
    let mut honest = place.open(place.options());
    let (to_victim, to_honest) = meet(&mut honest, &mut victim);
    Attacked { place, victim, honest, to_honest, to_victim }.is_undisturbed();
    drop(frozen);
}

/// The connecting side checks as much as the accepting one.
#[test]
fn bad_answers_to_an_introduction_end_in_a_typed_error() {
    let place = PortDirectory::new();
    let mut port = place.open(place.options());
    let rogue = Rogue::new(place.path(), "rogue");
    let refuse = |refusal| Some(Packet::Refuse(refusal).to_bytes());
    let mut other_version = refuse(Refusal::Version).expect("a packet");
    other_version[4] ^= 0x55;
    let mut other_name = rogue.introduction();
    other_name.port = name("somebody");
    let other_name = Packet::Welcome(other_name).to_bytes();
    let refused = ConnectError::Refused;
    for (what, packet, with_files, expected) in [
        ("silence", None, false, ConnectError::TimedOut),
        ("another version", Some(other_version), false, refused(Refusal::Version)),
        ("a refusal", refuse(Refusal::TooManyPeers), false, refused(Refusal::TooManyPeers)),
        ("not admitted", refuse(Refusal::NotAdmitted), false, ConnectError::NotAdmitted),
        ("nonsense", Some(b"nonsense".to_vec()), false, refused(Refusal::Closed)),
        ("a hello", Some(rogue.hello()), true, refused(Refusal::Closed)),
        ("no memory", Some(rogue.welcome()), false, refused(Refusal::BadOffer)),
        ("another name", Some(other_name), true, refused(Refusal::Unverified)),
    ] {
        let timeout = if packet.is_none() { Duration::from_millis(50) } else { MINUTE };
        let outcome = connect_to_rogue(&mut port, &rogue, timeout, |caller| {
            if let Some(packet) = &packet {
                let files = rogue.offer();
                caller.send(packet, if with_files { &files } else { &[] }).expect("send");
            }
        });
        assert_eq!(outcome, Err(expected), "{what}");
    }
}

#[test]
fn a_sparse_or_oversized_heap_has_no_cost_for_the_borrower() {
    let mut fixture = Attacked::new();
    for (block_bytes, blocks) in [(1u64 << 20, 256u32), (1 << 30, 64), (1 << 30, 1024), (u64::MAX, u32::MAX)]
    {
        let length = (block_bytes as u128 * u128::from(blocks)).min(1 << 36) as u64;
        let heap = sealed(length, false, ALL_SEALS);
        let rogue = fixture.rogue();
        let (inside, _) = fixture.let_in(&rogue);
        let offer = Packet::Heap { id: 0, block_bytes, blocks }.to_bytes();
        inside.socket.send(&offer, &[heap.as_fd()]).expect("send");
        fixture.until_broken("a heap", |event| panic!("{event:?}"));
        fixture.until_over(&inside.socket);
        assert_eq!(rustix::fs::fstat(&heap).expect("stat").st_blocks, 0, "the victim filled it");
    }
}

/// A block may be lent again only after its return has gone out. Otherwise answers would pile up without a bound.
#[test]
fn a_lender_that_reads_no_answers_gets_a_bounded_number() {
    let mut fixture = Attacked::new();
    let rogue = fixture.rogue();
    let (mut inside, _) = fixture.let_in(&rogue);
    Rogue::offer_heap(&inside, 1);
    // More returns than fit in the reply lane, one block at a time.
    let mut lent = 0u32;
    rogue.push(&mut inside, LaneName::Low, LENT, &[0, 0, 64]);
    fixture.until_broken("too many returns", |event| match event {
        Event::Lent(block) => {
            drop(block);
            lent += 1;
            assert!(lent < 1000, "{lent} returns of one block wait for a lender that never takes one");
            rogue.push(&mut inside, LaneName::Low, LENT, &[0, 0, 64]);
        }
        other => panic!("{other:?}"),
    });
}

/// A peer must not be able to delay the borrower's threads, not even by the doorbell that it may ring.
#[test]
fn a_blocked_doorbell_does_not_delay_the_return_of_a_block() {
    let mut fixture = Attacked::new();
    let rogue = fixture.rogue();
    let (mut inside, _) = fixture.let_in(&rogue);
    Rogue::offer_heap(&inside, 1);
    rogue.push(&mut inside, LaneName::Low, LENT, &[0, 0, 64]);
    let lent = until(|| match fixture.victim.poll()? {
        Event::Lent(block) => Some(block),
        _ => None,
    });
    while !fixture.victim.arm() {
        fixture.victim.poll();
    }
    // Now the port counts as asleep, and its doorbell is full and would block.
    while rustix::io::write(&inside.victim_doorbell, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&inside.victim_doorbell, rustix::fs::OFlags::empty()).expect("fcntl");
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(lent);
        done.send(()).expect("the test waits");
    });
    is_done.recv_timeout(MINUTE).expect("dropping a block does not wait for a peer");
}

/// The close of a lingering TCP socket waits for a peer that never answers. The rogue sends many of them with
/// introductions that are refused.
#[test]
fn descriptors_that_never_close_delay_nobody() {
    // Runs in a process of its own, as all tests of a process share the account of one user.
    const ALONE: &str = "BYWIRE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut own = std::process::Command::new(std::env::current_exe().expect("this program"));
        own.args(alone("descriptors_that_never_close_delay_nobody")).env(ALONE, "1");
        let done = own.output().expect("run");
        return assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
    let mut fixture = Attacked::new();
    let rogue = fixture.rogue();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut silent = Vec::new();
    for _ in 0..300 {
        // The port takes it once enough of the earlier ones are closed.
        until(|| {
            let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("loopback");
            silent.push(listener.accept().expect("accept"));
            linger(&stream);
            let socket = rogue.connect("victim");
            socket.send(b"nonsense", &[stream.as_fd()]).expect("send");
            // The last copy is the victim's.
            drop(stream);
            match fixture.serve(|| answer(&socket)).0.map(|(packet, _)| packet) {
                Some(Packet::Refuse(Refusal::NoResources)) => false,
                refused => {
                    assert_eq!(refused, Some(Packet::Refuse(Refusal::BadOffer)));
                    true
                }
            }
        });
    }
    fixture.is_undisturbed();
    drop(silent);
}

/// Fills a stream whose other end does not read, and makes its close wait an hour.
fn linger(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::from_secs(3600))).expect("setsockopt");
    stream.set_nonblocking(true).expect("fcntl");
    while std::io::Write::write(&mut &*stream, &[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).expect("fcntl");
}

/// With the check on, a message without a check is not taken.
#[test]
fn a_message_without_its_checksum_is_refused_if_checksums_are_agreed() {
    let mut fixture = Attacked::with(PortOptions { integrity: true, ..PortOptions::default() });
    let rogue = fixture.rogue();
    let (mut inside, _) = fixture.let_in(&rogue);
    rogue.push(&mut inside, LaneName::Low, MESSAGE, &[7]);
    let (_, reason) = until_ended(&mut fixture.victim, |_, event| panic!("{event:?}"));
    assert_eq!(reason, DisconnectReason::Corrupted);
    fixture.until_over(&inside.socket);
}

/// Writes random data, some of it well-formed, into all of its memory, until told to stop.
fn scribbler(context: &mut Context) {
    let seed: u64 = context.argument(0);
    let key: u64 = context.argument(1);
    let directory = context.directory.clone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut random = Random(seed);
        let is_over = &is_over;
        let worker = scope.spawn(move || {
            let (mut entered, mut records) = (0u64, 0u64);
            while !is_over.load(Ordering::Relaxed) {
                let mut rogue = Rogue::new(&directory, &format!("rogue{seed}"));
                if random.below(4) == 0 {
                    nonsense(&rogue, &mut random);
                }
                let Ok(mut inside) = rogue.enter("victim") else { continue };
                entered += 1;
                if random.below(2) == 0 {
                    let area = Rogue::offer_bulk(&inside);
                    rogue.move_bulk(&mut inside, area);
                }
                let file = sealed(4096, true, ALL_SEALS);
                let offer = Packet::Heap { id: 0, block_bytes: 64, blocks: 2 }.to_bytes();
                let _ = inside.socket.send(&offer, &[file.as_fd()]);
                let wild = random.below(4);
                while !is_over.load(Ordering::Relaxed) && !inside.is_over() {
                    records += misbehave(&rogue, &mut inside, &mut random, (wild, key));
                }
            }
            (entered, records)
        });
        context.tell("ready");
        context.hear();
        is_over.store(true, Ordering::Relaxed);
        let (entered, records) = worker.join().expect("the worker");
        context.tell(format!("done {entered} {records}"));
    });
}

/// A handshake of random data.
fn nonsense(rogue: &Rogue, random: &mut Random) {
    let socket = rogue.connect("victim");
    let mut packet = rogue.hello();
    for _ in 0..random.below(4) {
        let place = random.below(packet.len());
        packet[place] = random.next() as u8;
    }
    let _ = socket.send(&packet, &rogue.offer()[..random.below(4)]);
}

/// A few dozen random acts. Returns how many well-formed records were published.
fn misbehave(rogue: &Rogue, inside: &mut Inside, random: &mut Random, (wild, key): (usize, u64)) -> u64 {
    let mut records = 0;
    for _ in 0..64 {
        if random.below(500) > wild * 100 {
            records += u64::from(courteous(rogue, inside, random, key));
            continue;
        }
        match random.below(8) {
            // Reaches every byte of every segment sooner or later, in runs, so that whole records become invalid.
            0 if wild > 0 => scribble(rogue, random),
            1 => {
                let _ = rustix::io::write(&inside.victim_doorbell, b"!");
            }
            2 if random.below(50) == 0 => heap(rogue, inside, random),
            2 if random.below(50) == 0 => drop(Rogue::offer_bulk(inside)),
            3 if random.below(200) == 0 => {
                let mut packet = [Packet::Wake, Packet::Goodbye][random.below(2)].to_bytes();
                let place = random.below(packet.len());
                packet[place] = random.next() as u8;
                let _ = inside.socket.send(&packet, &[]);
            }
            4 => rogue.page.store(0, random.next(), Ordering::Relaxed),
            5 => take_some(rogue, inside, random),
            _ => records += u64::from(record(rogue, inside, random)),
        }
    }
    records
}

fn scribble(rogue: &Rogue, random: &mut Random) {
    let length = rogue.segment.length_bytes();
    let start = random.below(length / 8) * 8;
    for offset in (start..(start + 8 * (1 + random.below(64))).min(length)).step_by(8) {
        rogue.segment.store(offset, random.next(), Ordering::Relaxed);
    }
}

/// A record of any kind. Its numbers are often small, as small numbers get further.
fn record(rogue: &Rogue, inside: &mut Inside, random: &mut Random) -> bool {
    let lane = [LaneName::Reply, LaneName::High, LaneName::Low][random.below(3)];
    let flags = [0, CHECKED, PROMPT, CHECKED | PROMPT][random.below(4)];
    let kind = if lane == LaneName::Reply { 10 + random.below(3) } else { random.below(15) } as u8;
    let words: [u64; 7] = std::array::from_fn(|_| match random.below(4) {
        0 => random.next(),
        1 => u64::MAX,
        2 => random.below(10_000) as u64,
        _ => random.below(3) as u64,
    });
    let count = random.below(8);
    let producer = &mut inside.producers[lane as usize];
    let header = Header { kind: kind | flags, length: 8 * count as u16, check: random.next() as u32 };
    if random.below(2) == 0 {
        return producer.push_inline(&rogue.segment, &inside.inbound, header, &words[..count]).is_ok();
    }
    let payload = vec![random.next() as u8; random.below(producer.fragment_bytes() + 1)];
    let header = Header { kind: (kind | flags) & !BULK, ..header };
    producer.push_bulk(&rogue.segment, &inside.inbound, header, &words[..count], &payload).is_ok()
}

/// Well-formed records of an honest peer, so that the next acts meet the victim in the midst of them.
fn courteous(rogue: &Rogue, inside: &mut Inside, random: &mut Random, key: u64) -> bool {
    let lane = [LaneName::High, LaneName::Low][random.below(2)];
    let length = 1 + random.below(4096);
    let payload = &[7; 4096][..length];
    let mut push = |kind: u8, words: &[u64], payload: &[u8]| {
        let producer = &mut inside.producers[lane as usize];
        let header = Header { kind, length: 8 * words.len() as u16, check: 0 };
        let pushed = match payload {
            [] => producer.push_inline(&rogue.segment, &inside.inbound, header, words),
            payload => producer.push_bulk(&rogue.segment, &inside.inbound, header, words, payload),
        };
        pushed.is_ok()
    };
    let done = match random.below(13) {
        // If the whole message fits in a fragment, no honest peer sends it like this.
        0 => push(rogue::FIRST, &[2 * length as u64], payload) && push(rogue::NEXT, &[0], payload),
        1 => push(rogue::PUT, &[key, 5, length as u64, 9, 8], payload) && push(rogue::PUT_NOTE, &[4], &[]),
        2 => {
            push(rogue::PUT, &[key, 5, 2 * length as u64, 9, u64::MAX], payload)
                && push(rogue::PUT_NEXT, &[0], payload)
        }
        3 => push(rogue::GET, &[key, 5, length as u64, 9], &[]),
        4 => push(LENT, &[0, random.below(2) as u64, 64], &[]),
        5 => push(rogue::DATAGRAM, &[], payload),
        6 => push(MESSAGE, &[], payload),
        7 => push(rogue::HEADED, &[random.below(49) as u64, 1, 2, 3, 4, 5, 6], payload),
        _ => push(MESSAGE, &[1, 2, 3], &[]),
    };
    take_some(rogue, inside, random);
    let _ = rustix::io::write(&inside.victim_doorbell, b"!");
    done
}

/// Takes and frees some of the victim's records.
fn take_some(rogue: &Rogue, inside: &mut Inside, random: &mut Random) {
    for consumer in &mut inside.consumers {
        for _ in 0..random.below(32) {
            let Ok(Some(header)) = consumer.peek(&inside.inbound) else { break };
            consumer.advance(&rogue.segment, header);
        }
    }
}

fn heap(_: &Rogue, inside: &Inside, random: &mut Random) {
    let (blocks, block_bytes) = (1 + random.below(4) as u64, 64 * (1 + random.below(64) as u64));
    let length = (blocks * block_bytes).next_multiple_of(4096) * (1 + random.below(8) as u64 / 7);
    let file = sealed(length, random.below(8) > 0, ALL_SEALS);
    let offer = Packet::Heap { id: random.below(3) as u32, block_bytes, blocks: blocks as u32 };
    let _ = inside.socket.send(&offer.to_bytes(), &[file.as_fd()]);
}

/// Asks and checks the answers, until told to stop.
fn honest(context: &mut Context) {
    let mut port = Port::open(context.options()).expect("open");
    let peer = port.connect(&address("victim"), MINUTE).expect("connect");
    context.tell("ready");
    let is_over = AtomicBool::new(false);
    let mut rounds = 0u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            context.hear();
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let length = [8, 40, 300, 4000][rounds as usize % 4];
            let priority = if rounds.is_multiple_of(3) { Priority::High } else { Priority::Low };
            let question: Vec<u8> = (0..length).map(|index| (index + rounds) as u8).collect();
            port.send(peer, priority, &question).expect("room for one");
            match port.wait(Some(MINUTE)).expect("wait") {
                Some(Event::Message(answer)) => assert_eq!(&answer.payload[..], question, "round {rounds}"),
                other => panic!("{other:?} instead of an answer in round {rounds}"),
            }
            rounds += 1;
        }
    });
    context.tell(format!("done {rounds}"));
}

/// Rogues scribble over all their memory for some seconds, while the port has transfers of every kind under way and an honest
/// peer goes on.
#[test]
fn peers_that_scribble_over_memory_harm_only_themselves() {
    let seconds = Tier::current().pick([4, 4, 60]);
    let place = PortDirectory::new();
    let mut victim =
        place.open(PortOptions { message_bytes_max: 1 << 20, send_tokens: 256, ..named("victim") });
    let key = victim.register(vec![3; 10_000], Rights { read: true, write: true }).expect("region");
    let mut honest = Actor::start("honest", place.path(), &[]);
    let text = key.0.to_string();
    let mut rogues = ["1", "2"].map(|seed| Actor::start("scribbler", place.path(), &[seed, &text]));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut seen = Seen::default();
    // Takes longer if other programs hold all of them up.
    while Instant::now() < deadline || !seen.is_enough(seconds) && Instant::now() < deadline + MINUTE {
        if let Some(event) = victim.wait(Some(Duration::from_millis(1))).expect("wait") {
            seen.take(&mut victim, key, event);
        }
    }
    let mut counts = Vec::new();
    for actor in rogues.iter_mut().chain([&mut honest]) {
        actor.expect("ready");
        actor.tell("stop");
        let reader = std::thread::scope(|scope| {
            let reader = scope.spawn(|| actor.expect("done"));
            while !reader.is_finished() {
                if let Some(event) = victim.wait(Some(Duration::from_millis(1))).expect("wait") {
                    seen.take(&mut victim, key, event);
                }
            }
            reader.join()
        });
        counts.push(reader.expect("it answers"));
    }
    eprintln!("rogues (entered, records) {:?}, honest rounds {}, {seen:?}", &counts[..2], counts[2]);
    let rounds: u64 = counts[2].parse().expect("a number");
    assert!(rounds > 125 * seconds, "the honest peer was held up: {rounds} rounds");
    assert!(seen.ended > 10, "the rogues broke nothing: {seen:?}");
    assert!(seen.lent > 10 && seen.notes > 10, "the rogues came nowhere: {seen:?}");
    assert_eq!(victim.region(key).map(<[u8]>::len), Some(10_000));
    // Everything under way has come back: all tokens are free.
    until(|| {
        victim.poll();
        victim.peers().count() == 0
    });
    while victim.poll().is_some() {}
    let mut last = place.open(place.options());
    let (_, to_last) = meet(&mut last, &mut victim);
    for _ in 0..256 {
        victim.send_buffer(to_last, Priority::Low, vec![0; 100_000], Confirm::Copied).expect("a token");
    }
}

#[derive(Debug, Default)]
struct Seen {
    entered: u64,
    ended: u64,
    messages: u64,
    honest: u64,
    lent: u64,
    notes: u64,
    completions: u64,
}

fn is_rogue(victim: &Port, peer: Peer) -> bool {
    victim.peer_info(peer).is_some_and(|info| info.port().to_string().starts_with("rogue"))
}

impl Seen {
    /// Has every actor done enough to prove something?
    fn is_enough(&self, seconds: u64) -> bool {
        // The honest peer counts the answers.
        self.honest > 125 * seconds + 1 && self.ended > 10 && self.lent > 10 && self.notes > 10
    }

    fn take(&mut self, victim: &mut Port, key: Key, event: Event) {
        match event {
            Event::Message(message) => {
                let is_known = victim.peer_info(message.peer).is_some();
                self.honest += u64::from(is_known && !is_rogue(victim, message.peer));
                // Every peer gets an echo, honest or not.
                let _ = victim.send(message.peer, message.priority, &message.payload);
                victim.recycle(message.payload);
                self.messages += 1;
            }
            Event::Connected(peer) => {
                self.entered += 1;
                if is_rogue(victim, peer) {
                    provoke(victim, peer, key);
                }
            }
            Event::Lent(lent) => {
                self.lent += 1;
                assert_eq!(lent.to_vec().len(), lent.len());
            }
            Event::BufferNeeded { priority, length_bytes, .. } => {
                let _ = victim.post_receive(priority, vec![0; length_bytes as usize]);
            }
            Event::Disconnected { .. } => self.ended += 1,
            Event::Notified { .. } => self.notes += 1,
            Event::Sent { .. } | Event::Put { .. } | Event::Got { .. } => self.completions += 1,
            _ => {}
        }
    }
}

/// Starts transfers of every kind to a rogue, so that its answers are awaited.
fn provoke(victim: &mut Port, rogue: Peer, key: Key) {
    let _ = victim.send_buffer(rogue, Priority::Low, vec![1; 50_000], Confirm::Delivered);
    let _ = victim.put(rogue, Priority::High, (key, 0), vec![2; 9000], Some(b"note"));
    let _ = victim.get(rogue, Priority::High, (key, 0), vec![0; 9000]);
    if let Ok(heap) = victim.heap(rogue, 64, 2) {
        while let Some(block) = heap.block() {
            if victim.send_lent(Priority::High, block, 64).is_err() {
                break;
            }
        }
    }
}
