//! Peers that break the rules: each harms its own connection only.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bywire::handshake::Packet;
use bywire::{
    Address, Confirm, ConnectError, DisconnectReason, Event, Key, Peer, Port, PortName, PortOptions,
    Priority, Refusal, Rights,
};
use bywire_ring::geometry::LaneName;
use bywire_ring::header::{BULK, CHECKED, Header, PROMPT};
use bywire_ring::memory::Memory;
use bywire_sys::memory::Mapping;
use bywire_testing::actor::{Actor, Context, Role};
use bywire_testing::rogue::{
    self, ALL_SEALS, DATAGRAM, Inside, LENT, MESSAGE, Rogue, answer, introduce, sealed,
};
use bywire_testing::{Tier, alone};
use rustix::fs::SealFlags;

use crate::ports::{PortDirectory, meet, until};

const MINUTE: Duration = Duration::from_secs(60);

/// The work of the actors of these tests, by its name.
pub const ROLES: &[Role] =
    &[("holder", holder), ("scribbler", scribbler), ("honest", honest), ("mover", mover)];

/// Opens a port and does nothing.
fn holder(context: &mut Context) {
    let _port = Port::open(PortOptions { name: Some("held".parse().expect("a name")), ..context.options() });
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
    let area = Rogue::offer_bulk(&inside);
    assert!(rogue.move_bulk(&mut inside, area));
    rogue.push_low(&mut inside, MESSAGE, &[], &[5; 20_000]);
    context.tell("ready");
    context.hear();
}

#[test]
fn the_last_packet_of_a_peer_is_read_after_any_number_of_others() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    let mut mover = Actor::start("mover", place.path(), &[]);
    live(&mut victim, || mover.expect("inside"));
    mover.tell("go");
    mover.expect("ready");
    mover.kill();
    let mut messages = 0;
    until(|| match victim.poll() {
        Some(Event::Message(message)) => {
            assert!(message.payload[..] == [5; 20_000]);
            messages += 1;
            false
        }
        Some(Event::Disconnected { reason, .. }) => {
            assert_eq!(reason, DisconnectReason::Died);
            true
        }
        Some(Event::Connected(_)) | None => false,
        Some(other) => panic!("{other:?}"),
    });
    assert_eq!(messages, 1);
}

/// A peer that has said good-bye may go on filling its ring, but only the records of one full ring are taken.
#[test]
fn a_peer_that_writes_after_its_goodbye_is_read_for_a_bounded_time() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    for _ in 0..20 {
        let rogue = Rogue::new(place.path(), "rogue");
        let (inside, _) = live(&mut victim, || rogue.enter("victim").expect("let in"));
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
            until(|| match victim.poll() {
                Some(Event::Message(_)) => {
                    messages += 1;
                    false
                }
                Some(Event::Disconnected { reason, .. }) => {
                    assert_eq!(reason, DisconnectReason::Closed);
                    true
                }
                None => false,
                Some(other) => panic!("{other:?}"),
            });
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(messages, capacity, "what was there, and no more");
        });
    }
}

/// The sender is told the longest message. A sender that ignores it ends its own connection.
#[test]
fn messages_above_the_ports_maximum_are_refused() {
    let place = PortDirectory::new();
    for (max, kind, lane, length) in [
        (40, MESSAGE, LaneName::High, 48),
        (40, MESSAGE, LaneName::Low, 48),
        (40, DATAGRAM, LaneName::High, 48),
        (40, LENT, LaneName::High, 48),
        (1000, MESSAGE, LaneName::Low, 1008),
        (1000, DATAGRAM, LaneName::Low, 1008),
        (0, MESSAGE, LaneName::Low, 8),
    ] {
        let mut victim = victim(&place, PortOptions { message_bytes_max: max, ..place.options() });
        let mut other = place.open(place.options());
        let (to_victim, to_other) = meet(&mut other, &mut victim);
        let rogue = Rogue::new(place.path(), "rogue");
        let (mut inside, _) = live(&mut victim, || rogue.enter("victim").expect("let in"));
        let (_heap, file) = Mapping::create("rogue", 4096).expect("memory");
        let heap = Packet::Heap { id: 0, block_bytes: 64, blocks: 2 }.to_bytes();
        inside.socket.send(&heap, &[file.as_fd()]).expect("room");
        let mut push = |length: u64, block: u64| match kind {
            LENT => drop(rogue.push(&mut inside, lane, LENT, &[0, block, length])),
            _ if length > 56 => rogue.push_low(&mut inside, kind, &[], &vec![7; length as usize]),
            _ => drop(rogue.push(&mut inside, lane, kind, &[7; 7][..length as usize / 8])),
        };
        // The longest message, then a longer one.
        push(max, 0);
        push(length, 1);
        let mut taken = 0;
        until(|| match victim.wait(Some(MINUTE)).expect("wait") {
            Some(Event::Message(_) | Event::Datagram(_) | Event::Lent(_)) => {
                taken += 1;
                false
            }
            Some(Event::Disconnected { reason, .. }) => {
                assert_eq!(reason, DisconnectReason::Broken);
                true
            }
            Some(Event::Connected(_)) => false,
            other => panic!("{other:?}"),
        });
        assert_eq!(taken, 1, "kind {kind}, {length} bytes where {max} are taken");
        if max >= 4 {
            talk(&mut victim, to_other, &mut other, to_victim);
        }
    }
}

/// A message that fits into a fragment takes no posted buffer. If it could, a peer could take the program's buffers
/// with small messages.
#[test]
fn a_short_message_in_the_form_of_a_long_one_takes_no_posted_buffer() {
    let place = PortDirectory::new();
    let fragment = u64::from(PortOptions::default().geometry.fragment_bytes);
    for (total, is_taken) in [(8, false), (56, false), (fragment, false), (fragment + 1, true)] {
        let mut victim = victim(&place, place.options());
        victim.post_receive(Priority::Low, vec![0; 8192]).expect("posted");
        let rogue = Rogue::new(place.path(), "rogue");
        let (mut inside, _) = live(&mut victim, || rogue.enter("victim").expect("let in"));
        let first = total.min(fragment);
        rogue.push_low(&mut inside, rogue::FIRST, &[total], &vec![7; first as usize]);
        if total > first {
            rogue.push_low(&mut inside, rogue::NEXT, &[0], &vec![7; (total - first) as usize]);
        }
        let mut taken = None;
        until(|| {
            match victim.wait(Some(MINUTE)).expect("wait") {
                Some(Event::Message(message)) => taken = Some(message.payload.len() as u64 == total),
                Some(Event::Disconnected { reason, .. }) => {
                    assert_eq!(reason, DisconnectReason::Broken);
                    taken = Some(false);
                }
                _ => {}
            }
            taken.is_some()
        });
        assert_eq!(taken, Some(is_taken), "{total} bytes");
    }
}

/// Keys are random, and guesses are counted. A key that was valid once is no guess.
#[test]
fn a_peer_that_guesses_keys_is_disconnected_and_one_with_old_keys_is_not() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    let revoked = victim.register(vec![0; 64], Rights { read: true, write: true }).expect("region");
    victim.revoke(revoked).expect("ours");
    let good = victim.register(vec![0; 64], Rights { read: false, write: false }).expect("region");
    let rogue = Rogue::new(place.path(), "rogue");
    let (mut inside, _) = live(&mut victim, || rogue.enter("victim").expect("let in"));
    let mut attempt = |victim: &mut Port, key: u64, is_put: bool| {
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
        attempt(&mut victim, revoked.0, round % 2 == 0);
        // Without the right, or out of range: the key is known all the same.
        attempt(&mut victim, good.0, round % 2 == 0);
    }
    for guess in 0..1024u64 {
        attempt(&mut victim, guess << 20 | 7, guess % 2 == 0);
    }
    (0..100_000).for_each(|_| assert!(victim.poll().is_none()));
    attempt(&mut victim, u64::MAX, false);
    until(|| match victim.poll() {
        Some(Event::Disconnected { reason, .. }) => {
            assert_eq!(reason, DisconnectReason::Broken);
            true
        }
        None => false,
        Some(other) => panic!("{other:?}"),
    });
}

fn victim(place: &PortDirectory, options: PortOptions) -> Port {
    place.open(PortOptions { name: Some("victim".parse().expect("a name")), ..options })
}

/// Runs a victim while a rogue acts on its own thread. Returns the rogue's result and the victim's events.
fn live<T: Send>(victim: &mut Port, rogue: impl FnOnce() -> T + Send) -> (T, Vec<Event>) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(rogue);
        let mut events = Vec::new();
        until(|| {
            events.extend(victim.wait(Some(Duration::from_millis(1))).expect("wait"));
            thread.is_finished()
        });
        (thread.join().expect("the rogue"), events)
    })
}

#[test]
fn invalid_introductions_are_refused_with_the_right_reason() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    let mut other = place.open(place.options());
    let (to_victim, to_other) = meet(&mut other, &mut victim);
    let rogue = Rogue::new(place.path(), "rogue");
    let hello = Packet::Hello(rogue.introduction()).to_bytes();
    let length = rogue.geometry.segment_bytes() as u64;
    let (_reader, writer) = rustix::pipe::pipe().expect("pipe");
    let null = std::fs::File::open("/dev/null").expect("open");
    let directory = std::fs::File::open("/").expect("open");
    let [good, page, doorbell] = rogue.offer();
    let mut other_version = hello.clone();
    other_version[4] ^= 0x55;
    let mut claims = rogue.introduction();
    let mut holder = Actor::start("holder", place.path(), &[]);
    holder.expect("ready");
    claims.port = "held".parse().expect("a name");
    let mut nobody = rogue.introduction();
    nobody.port = "nobody".parse().expect("a name");
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
    let mut cases: Vec<(&str, Vec<u8>, Vec<BorrowedFd<'_>>, Refusal)> = vec![
        ("another version", other_version, vec![good, page, doorbell], Refusal::Version),
        ("nonsense", b"GET / HTTP/1.1".to_vec(), vec![], Refusal::BadOffer),
        ("half a packet", hello[..20].to_vec(), vec![good, page, doorbell], Refusal::BadOffer),
        ("good-bye first", Packet::Goodbye.to_bytes(), vec![], Refusal::BadOffer),
        (
            "a heap first",
            Packet::Heap { id: 0, block_bytes: 64, blocks: 1 }.to_bytes(),
            vec![good],
            Refusal::BadOffer,
        ),
        ("no memory", hello.clone(), vec![], Refusal::BadOffer),
        ("too little memory", hello.clone(), vec![good, page], Refusal::BadOffer),
        ("no pipe", hello.clone(), vec![good, page, null.as_fd()], Refusal::BadOffer),
        ("a directory for a page", hello.clone(), vec![good, directory.as_fd(), doorbell], Refusal::BadOffer),
        ("a pipe for a segment", hello.clone(), vec![writer.as_fd(), page, doorbell], Refusal::BadOffer),
        ("the page as the segment", hello.clone(), vec![page, page, doorbell], Refusal::BadOffer),
        ("another's name", Packet::Hello(claims).to_bytes(), vec![good, page, doorbell], Refusal::Unverified),
        (
            "a name that nobody has",
            Packet::Hello(nobody).to_bytes(),
            vec![good, page, doorbell],
            Refusal::Unverified,
        ),
    ];
    for file in &files {
        cases.push(("a bad segment", hello.clone(), vec![file.as_fd(), page, doorbell], Refusal::BadOffer));
    }
    for (name, packet, descriptors, refusal) in cases {
        let socket = rogue.connect("victim");
        let (answered, events) = live(&mut victim, || {
            introduce(&socket, &packet, &descriptors);
            answer(&socket)
        });
        assert_eq!(answered.map(|(packet, _)| packet), Some(Packet::Refuse(refusal)), "{name}");
        assert!(events.is_empty(), "{name}: {events:?}");
    }
    let spent = rustix::fs::fstat(&files[7]).expect("stat").st_blocks;
    assert_eq!(spent, 0, "the victim filled the rogue's memory");
    // More descriptors than any of our packets has, and none.
    for _ in 0..100 {
        let socket = rogue.connect("victim");
        let many = [null.as_fd(); 3];
        let _ = socket.send(b"x", &many);
        drop(rogue.connect("victim"));
    }
    talk(&mut victim, to_other, &mut other, to_victim);
    // A rogue with an honest handshake is let in, once the descriptors that it sent before are closed.
    until(|| match live(&mut victim, || rogue.enter("victim").map(|_| ())) {
        (Err(Refusal::NoResources), _) => false,
        (entered, _) => {
            assert_eq!(entered, Ok(()));
            true
        }
    });
}

fn talk(a: &mut Port, to_b: Peer, b: &mut Port, to_a: Peer) {
    for round in 0..50u32 {
        a.send(to_b, Priority::Low, &round.to_ne_bytes()).expect("room");
        assert_eq!(&message(b, a).payload[..], round.to_ne_bytes());
        b.send(to_a, Priority::High, &round.to_ne_bytes()).expect("room");
        assert_eq!(&message(a, b).payload[..], round.to_ne_bytes());
    }
}

fn message(at: &mut Port, other: &mut Port) -> bywire::Message {
    let mut found = None;
    until(|| {
        other.poll();
        if let Some(Event::Message(message)) = at.poll() {
            found = Some(message);
        }
        found.is_some()
    });
    found.expect("found")
}

/// Strangers that connect and send nothing keep a place only until other peers want it.
#[test]
fn stalled_handshakes_exclude_nobody() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    let rogue = Rogue::new(place.path(), "rogue");
    let frozen: Vec<_> = (0..500).map(|_| rogue.connect("victim")).collect();
    let mut honest = place.open(place.options());
    let address = Address::local("victim".parse::<PortName>().expect("a name"));
    let (peer, _) = live(&mut victim, || honest.connect(&address, MINUTE).expect("served"));
    let (to_honest, _) = (victim.peers().next().expect("one"), frozen);
    talk(&mut victim, to_honest, &mut honest, peer);
}

/// The connecting side checks as much as the accepting one.
#[test]
fn bad_answers_to_an_introduction_end_in_a_typed_error() {
    let place = PortDirectory::new();
    let mut port = place.open(place.options());
    let rogue = Rogue::new(place.path(), "rogue");
    let address = Address::local(rogue.name.clone());
    let welcome = Packet::Welcome(rogue.introduction()).to_bytes();
    let mut other_version = Packet::Refuse(Refusal::Version).to_bytes();
    other_version[4] ^= 0x55;
    let mut other_name = rogue.introduction();
    other_name.port = "somebody".parse().expect("a name");
    let other_name = Packet::Welcome(other_name).to_bytes();
    let closed = ConnectError::Refused(Refusal::Closed);
    let bad = ConnectError::Refused(Refusal::BadOffer);
    for (name, packet, with_files, expected) in [
        ("silence", None, false, ConnectError::TimedOut),
        ("another version", Some(other_version), false, ConnectError::Refused(Refusal::Version)),
        (
            "a refusal",
            Some(Packet::Refuse(Refusal::TooManyPeers).to_bytes()),
            false,
            ConnectError::Refused(Refusal::TooManyPeers),
        ),
        (
            "not admitted",
            Some(Packet::Refuse(Refusal::NotAdmitted).to_bytes()),
            false,
            ConnectError::NotAdmitted,
        ),
        ("nonsense", Some(b"nonsense".to_vec()), false, closed),
        ("a hello", Some(Packet::Hello(rogue.introduction()).to_bytes()), true, closed),
        ("no memory", Some(welcome.clone()), false, bad),
        ("another name", Some(other_name), true, ConnectError::Refused(Refusal::Unverified)),
    ] {
        let timeout = if packet.is_none() { Duration::from_millis(50) } else { MINUTE };
        let outcome = std::thread::scope(|scope| {
            let thread = scope.spawn(|| port.connect(&address, timeout));
            let mut socket = None;
            until(|| {
                socket = rogue.listener.accept().expect("accept");
                socket.is_some()
            });
            if let (Some(socket), Some(packet)) = (&socket, &packet) {
                let files = rogue.offer();
                socket.send(packet, if with_files { &files } else { &[] }).expect("send");
            }
            thread.join().expect("no panic")
        });
        assert_eq!(outcome, Err(expected), "{name}");
    }
}

#[test]
fn a_sparse_or_oversized_heap_has_no_cost_for_the_borrower() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    for (block_bytes, blocks) in [(1u64 << 20, 256u32), (1 << 30, 64), (1 << 30, 1024), (u64::MAX, u32::MAX)]
    {
        let length = (block_bytes as u128 * u128::from(blocks)).min(1 << 36) as u64;
        let heap = sealed(length, false, ALL_SEALS);
        let rogue = Rogue::new(place.path(), "rogue");
        let (_, events) = live(&mut victim, || {
            let inside = rogue.enter("victim").expect("let in");
            let offer = Packet::Heap { id: 0, block_bytes, blocks }.to_bytes();
            inside.socket.send(&offer, &[heap.as_fd()]).expect("send");
            until(|| inside.is_over());
        });
        assert!(
            matches!(events.last(), Some(Event::Disconnected { reason: DisconnectReason::Broken, .. })),
            "{events:?}"
        );
        assert_eq!(rustix::fs::fstat(&heap).expect("stat").st_blocks, 0, "the victim filled it");
    }
}

/// Lets the rogue in, with a heap of one block to lend from.
fn enter_with_heap(rogue: &Rogue, victim: &mut Port) -> Inside {
    let mut inside = None;
    live(victim, || inside = rogue.enter("victim").ok());
    let inside: Inside = inside.expect("let in");
    let (_heap, file) = Mapping::create("rogue", 4096).expect("memory");
    let heap = Packet::Heap { id: 0, block_bytes: 64, blocks: 1 };
    inside.socket.send(&heap.to_bytes(), &[file.as_fd()]).expect("send");
    inside
}

/// A block may be lent again only after its return has gone out. Otherwise answers would pile up without a bound.
#[test]
fn a_lender_that_reads_no_answers_gets_a_bounded_number() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    let rogue = Rogue::new(place.path(), "rogue");
    let mut inside = enter_with_heap(&rogue, &mut victim);
    let (mut lent, mut over) = (0u32, false);
    // More returns than fit in the reply lane, one block at a time.
    while lent < 1000 && !over {
        rogue.push(&mut inside, LaneName::Low, LENT, &[0, 0, 64]);
        until(|| match victim.wait(Some(MINUTE)).expect("wait") {
            Some(Event::Lent(block)) => {
                drop(block);
                lent += 1;
                true
            }
            Some(Event::Disconnected { reason, .. }) => {
                assert_eq!(reason, DisconnectReason::Broken);
                over = true;
                true
            }
            Some(Event::Connected(_)) => false,
            other => panic!("{other:?}"),
        });
    }
    assert!(over, "{lent} returns of one block wait for a lender that never takes one");
}

/// A peer must not be able to delay the borrower's threads, not even by the doorbell that it may ring.
#[test]
fn a_blocked_doorbell_does_not_delay_the_return_of_a_block() {
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    let rogue = Rogue::new(place.path(), "rogue");
    let mut inside = enter_with_heap(&rogue, &mut victim);
    rogue.push(&mut inside, LaneName::Low, LENT, &[0, 0, 64]);
    let mut lent = None;
    until(|| {
        if let Some(Event::Lent(block)) = victim.wait(Some(MINUTE)).expect("wait") {
            lent = Some(block);
        }
        lent.is_some()
    });
    while !victim.arm() {
        victim.poll();
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
    let place = PortDirectory::new();
    let mut victim = victim(&place, place.options());
    let mut other = place.open(place.options());
    let (to_victim, to_other) = meet(&mut other, &mut victim);
    let rogue = Rogue::new(place.path(), "rogue");
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
            let (refused, _) = live(&mut victim, || answer(&socket));
            match refused.map(|(packet, _)| packet) {
                Some(Packet::Refuse(Refusal::NoResources)) => false,
                refused => {
                    assert_eq!(refused, Some(Packet::Refuse(Refusal::BadOffer)));
                    true
                }
            }
        });
    }
    talk(&mut victim, to_other, &mut other, to_victim);
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
    let place = PortDirectory::new();
    let mut victim = victim(&place, PortOptions { integrity: true, ..place.options() });
    let rogue = Rogue::new(place.path(), "rogue");
    let (_, events) = live(&mut victim, || {
        let mut inside = rogue.enter("victim").expect("let in");
        rogue.push(&mut inside, LaneName::Low, MESSAGE, &[7]);
        until(|| inside.is_over());
    });
    assert!(
        matches!(
            events[..],
            [Event::Connected(_), Event::Disconnected { reason: DisconnectReason::Corrupted, .. }]
        ),
        "{events:?}"
    );
}

/// Pseudo-random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn draw(&mut self, below: u64) -> u64 {
        self.word() % below
    }

    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Writes random data, some of it well-formed, into all of its memory, until told to stop.
fn scribbler(context: &mut Context) {
    let seed: u64 = context.argument(0);
    let key: u64 = context.argument(1);
    let directory = context.directory.clone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ seed << 32 | 1);
        let is_over = &is_over;
        let worker = scope.spawn(move || {
            let (mut entered, mut records) = (0u64, 0u64);
            while !is_over.load(Ordering::Relaxed) {
                let mut rogue = Rogue::new(&directory, &format!("rogue{seed}"));
                if random.draw(4) == 0 {
                    nonsense(&rogue, &mut random);
                }
                let Ok(mut inside) = rogue.enter("victim") else { continue };
                entered += 1;
                if random.draw(2) == 0 {
                    let area = Rogue::offer_bulk(&inside);
                    rogue.move_bulk(&mut inside, area);
                }
                let file = sealed(4096, true, ALL_SEALS);
                let offer = Packet::Heap { id: 0, block_bytes: 64, blocks: 2 }.to_bytes();
                let _ = inside.socket.send(&offer, &[file.as_fd()]);
                let wild = random.draw(4);
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
    let mut packet = Packet::Hello(rogue.introduction()).to_bytes();
    for _ in 0..random.draw(4) {
        let place = random.draw(packet.len() as u64) as usize;
        packet[place] = random.word() as u8;
    }
    let _ = socket.send(&packet, &rogue.offer()[..random.draw(4) as usize]);
}

/// A few dozen random acts. Returns how many well-formed records were published.
fn misbehave(rogue: &Rogue, inside: &mut Inside, random: &mut Random, (wild, key): (u64, u64)) -> u64 {
    let mut records = 0;
    for _ in 0..64 {
        if random.draw(500) > wild * 100 {
            records += u64::from(courteous(rogue, inside, random, key));
            continue;
        }
        match random.draw(8) {
            // Reaches every byte of every segment sooner or later, in runs, so that whole records become invalid.
            0 if wild > 0 => scribble(rogue, random),
            1 => {
                let _ = rustix::io::write(&inside.victim_doorbell, b"!");
            }
            2 if random.draw(50) == 0 => heap(rogue, inside, random),
            2 if random.draw(50) == 0 => drop(Rogue::offer_bulk(inside)),
            3 if random.draw(200) == 0 => {
                let mut packet = [Packet::Wake, Packet::Goodbye][random.draw(2) as usize].to_bytes();
                let place = random.draw(packet.len() as u64) as usize;
                packet[place] = random.word() as u8;
                let _ = inside.socket.send(&packet, &[]);
            }
            4 => rogue.page.store(0, random.word(), Ordering::Relaxed),
            5 => take_some(rogue, inside, random),
            _ => records += u64::from(record(rogue, inside, random)),
        }
    }
    records
}

fn scribble(rogue: &Rogue, random: &mut Random) {
    let length = rogue.segment.length_bytes() as u64;
    let start = random.draw(length / 8) * 8;
    for offset in (start..(start + 8 * (1 + random.draw(64))).min(length)).step_by(8) {
        rogue.segment.store(offset as usize, random.word(), Ordering::Relaxed);
    }
}

/// A record of any kind. Its numbers are often small, as small numbers get further.
fn record(rogue: &Rogue, inside: &mut Inside, random: &mut Random) -> bool {
    let lane = [LaneName::Reply, LaneName::High, LaneName::Low][random.draw(3) as usize];
    let flags = [0, CHECKED, PROMPT, CHECKED | PROMPT][random.draw(4) as usize];
    let kind = if lane == LaneName::Reply { 10 + random.draw(3) } else { random.draw(14) } as u8;
    let words: [u64; 7] = std::array::from_fn(|_| match random.draw(4) {
        0 => random.word(),
        1 => u64::MAX,
        2 => random.draw(10_000),
        _ => random.draw(3),
    });
    let count = random.draw(8) as usize;
    let producer = &mut inside.producers[lane as usize];
    let header = Header { kind: kind | flags, length: 8 * count as u16, check: random.word() as u32 };
    if random.draw(2) == 0 {
        return producer.push_inline(&rogue.segment, &inside.inbound, header, &words[..count]).is_ok();
    }
    let payload = vec![random.word() as u8; random.draw(producer.fragment_bytes() as u64 + 1) as usize];
    let header = Header { kind: (kind | flags) & !BULK, ..header };
    producer.push_bulk(&rogue.segment, &inside.inbound, header, &words[..count], &payload).is_ok()
}

/// Well-formed records of an honest peer, so that the next acts meet the victim in the midst of them.
fn courteous(rogue: &Rogue, inside: &mut Inside, random: &mut Random, key: u64) -> bool {
    let lane = [LaneName::High, LaneName::Low][random.draw(2) as usize];
    let length = 1 + random.draw(4096) as usize;
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
    let done = match random.draw(12) {
        // If the whole message fits in a fragment, no honest peer sends it like this.
        0 => push(rogue::FIRST, &[2 * length as u64], payload) && push(rogue::NEXT, &[0], payload),
        1 => push(rogue::PUT, &[key, 5, length as u64, 9, 8], payload) && push(rogue::PUT_NOTE, &[4], &[]),
        2 => {
            push(rogue::PUT, &[key, 5, 2 * length as u64, 9, u64::MAX], payload)
                && push(rogue::PUT_NEXT, &[0], payload)
        }
        3 => push(rogue::GET, &[key, 5, length as u64, 9], &[]),
        4 => push(LENT, &[0, random.draw(2), 64], &[]),
        5 => push(rogue::DATAGRAM, &[], payload),
        6 => push(MESSAGE, &[], payload),
        _ => push(MESSAGE, &[1, 2, 3], &[]),
    };
    take_some(rogue, inside, random);
    let _ = rustix::io::write(&inside.victim_doorbell, b"!");
    done
}

/// Takes and frees some of the victim's records.
fn take_some(rogue: &Rogue, inside: &mut Inside, random: &mut Random) {
    for consumer in &mut inside.consumers {
        for _ in 0..random.draw(32) {
            let Ok(Some(header)) = consumer.peek(&inside.inbound) else { break };
            consumer.advance(&rogue.segment, header);
        }
    }
}

fn heap(_: &Rogue, inside: &Inside, random: &mut Random) {
    let (blocks, block_bytes) = (1 + random.draw(4), 64 * (1 + random.draw(64)));
    let length = (blocks * block_bytes).next_multiple_of(4096) * (1 + random.draw(8) / 7);
    let file = sealed(length, random.draw(8) > 0, ALL_SEALS);
    let offer = Packet::Heap { id: random.draw(3) as u32, block_bytes, blocks: blocks as u32 };
    let _ = inside.socket.send(&offer.to_bytes(), &[file.as_fd()]);
}

/// Asks and checks the answers, until told to stop.
fn honest(context: &mut Context) {
    let mut port = Port::open(context.options()).expect("open");
    let address = Address::local("victim".parse::<PortName>().expect("a name"));
    let peer = port.connect(&address, MINUTE).expect("connect");
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
        victim(&place, PortOptions { message_bytes_max: 1 << 20, send_tokens: 256, ..place.options() });
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
