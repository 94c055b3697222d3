//! Hostile peers and large windows: each rule that they break ends their own connection, and nothing else.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use bywire::handshake::Packet;
use bywire::{Event, Key, PortOptions, Priority, Rights};
use bywire_ring::geometry::{Geometry, LARGE_WINDOW_BYTES, LaneName};
use bywire_ring::header::{BULK, CHECKED, Header, PROMPT};
use bywire_ring::memory::Memory;
use bywire_testing::rogue::{
    ALL_SEALS, DATAGRAM, FIRST, Inside, MESSAGE, MOVE_BULK, NEXT, PUT, PUT_NEXT, Rogue, sealed,
};
use rustix::fs::SealFlags;

use crate::attacked::Attacked;
use crate::ports::{event, until};

/// An attacked port with a posted buffer.
struct Fixture(Attacked);

impl Fixture {
    fn new() -> Self {
        // The only receive token: a second post fails while the first buffer is posted.
        let mut attacked = Attacked::with(PortOptions { receive_tokens: 1, ..PortOptions::default() });
        attacked.victim.post_receive(Priority::Low, vec![0; LONG]).expect("a token");
        Self(attacked)
    }

    fn rogue(&mut self) -> (Rogue, Inside) {
        let rogue = self.0.rogue();
        let (inside, _) = self.0.let_in(&rogue);
        (rogue, inside)
    }

    /// A rogue that writes through a large window.
    fn moved_rogue(&mut self) -> (Rogue, Inside) {
        let (mut rogue, mut inside) = self.rogue();
        rogue.move_to_bulk(&mut inside);
        (rogue, inside)
    }

    fn until_message(&mut self) {
        until(|| matches!(self.0.victim.poll(), Some(Event::Message(_))));
    }

    /// Runs the victim until the rogue's connection has ended. The honest peer and the buffer must still be there.
    fn assert_broken(&mut self, name: &str) {
        self.0.until_broken(name, |event| {
            assert!(
                matches!(event, Event::Message(_) | Event::Got { result: Err(_), .. }),
                "{name}: {event:?}"
            );
        });
        self.0.victim.post_receive(Priority::Low, vec![0]).expect_err("the posted buffer came back");
        self.0.is_undisturbed();
    }
}

#[test]
fn bad_offers_of_a_bulk_area_end_their_connection() {
    let mut fixture = Fixture::new();
    let length = LARGE_WINDOW_BYTES as u64;
    let good = sealed(length, true, ALL_SEALS);
    let files = [
        ("too short", sealed(length - 4096, true, ALL_SEALS)),
        ("too long", sealed(length + 4096, true, ALL_SEALS)),
        ("empty", sealed(0, false, ALL_SEALS)),
        ("unsealed", sealed(length, true, SealFlags::empty())),
        ("writable later", sealed(length, true, ALL_SEALS.difference(SealFlags::FUTURE_WRITE))),
        ("to be pulled away", sealed(length, true, ALL_SEALS.difference(SealFlags::SHRINK))),
        ("all holes", sealed(length, false, ALL_SEALS)),
    ];
    let (reader, _writer) = rustix::pipe::pipe().expect("pipe");
    let mut cases: Vec<(&str, Vec<Vec<BorrowedFd<'_>>>)> =
        files.iter().map(|(name, file)| (*name, vec![vec![file.as_fd()]])).collect();
    cases.push(("nothing", vec![vec![]]));
    cases.push(("a pipe", vec![vec![reader.as_fd()]]));
    cases.push(("twice", vec![vec![good.as_fd()], vec![good.as_fd()]]));
    for (name, packets) in cases {
        let (_rogue, inside) = fixture.rogue();
        for descriptors in packets {
            inside.socket.send(&Packet::Bulk.to_bytes(), &descriptors).expect("send");
        }
        fixture.assert_broken(name);
    }
    assert_eq!(rustix::fs::fstat(&files[6].1).expect("stat").st_blocks, 0, "the victim filled it");
    // An area is offered twice, with a move between.
    let (rogue, mut inside) = fixture.moved_rogue();
    rogue.push(&mut inside, LaneName::Low, MESSAGE, &[7]);
    fixture.until_message();
    drop(Rogue::offer_bulk(&inside));
    fixture.assert_broken("twice, with a move between");
}

/// The packet that a record refers to was sent before the record. It is found behind any number of other packets.
#[test]
fn a_bulk_area_behind_many_other_packets_is_found() {
    let mut fixture = Fixture::new();
    let (mut rogue, mut inside) = fixture.rogue();
    // The message makes the rogue hot, so its ring is polled before its socket.
    rogue.push(&mut inside, LaneName::Low, MESSAGE, &[7]);
    fixture.until_message();
    for _ in 0..120 {
        inside.socket.send(&Packet::Wake.to_bytes(), &[]).expect("room");
    }
    rogue.move_to_bulk(&mut inside);
    rogue.push_low(&mut inside, MESSAGE, &[], &[5; 20_000]);
    match event(&mut [&mut fixture.0.victim]) {
        Event::Message(message) => assert!(message.payload[..] == [5; 20_000]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unexpected_moves_end_their_connection() {
    let mut fixture = Fixture::new();
    let (rogue, mut inside) = fixture.rogue();
    rogue.push(&mut inside, LaneName::Low, MOVE_BULK, &[]);
    fixture.assert_broken("without an offer");

    let (rogue, mut inside) = fixture.rogue();
    let _area = Rogue::offer_bulk(&inside);
    rogue.push(&mut inside, LaneName::High, MOVE_BULK, &[]);
    fixture.assert_broken("on the high lane");

    let (rogue, mut inside) = fixture.rogue();
    // The reply lane is polled only while an answer is awaited.
    let peer = fixture.0.victim.peers().last().expect("the rogue");
    fixture.0.victim.get(peer, Priority::High, (Key(1), 0), vec![0; 8]).expect("a token");
    let _area = Rogue::offer_bulk(&inside);
    rogue.push(&mut inside, LaneName::Reply, MOVE_BULK, &[]);
    fixture.assert_broken("on the reply lane");

    let (rogue, mut inside) = fixture.moved_rogue();
    rogue.push(&mut inside, LaneName::Low, MOVE_BULK, &[]);
    fixture.assert_broken("twice");

    let (rogue, mut inside) = fixture.rogue();
    let _area = Rogue::offer_bulk(&inside);
    rogue.push_low(&mut inside, MOVE_BULK, &[], &[1; 100]);
    fixture.assert_broken("with a payload in the bulk area");
}

#[test]
fn fragments_longer_than_their_area_allows_end_their_connection() {
    let mut fixture = Fixture::new();
    for has_moved in [false, true] {
        let (rogue, mut inside) = if has_moved { fixture.moved_rogue() } else { fixture.rogue() };
        rogue.push_low(&mut inside, MESSAGE, &[], &[5; 4000]);
        let longest = if has_moved { 32 << 10 } else { Geometry::default().fragment_bytes };
        let header = Header { kind: MESSAGE | BULK, length: longest as u16 + 1, check: 0 };
        rogue.rewrite(&inside, header);
        fixture.assert_broken("longer than a fragment");
    }
}

const LONG: usize = 60_000;
const FRAGMENT: u16 = 20_000;

/// A fragment is copied in steps. Between them the peer changes its header.
#[test]
fn a_header_that_changes_between_two_steps_ends_its_connection() {
    let good = Header { kind: FIRST | BULK, length: FRAGMENT, check: 0 };
    let mut fixture = Fixture::new();
    for (name, header) in [
        ("longer", Header { length: 30_000, ..good }),
        ("a little longer", Header { length: FRAGMENT + 1, ..good }),
        ("a little shorter", Header { length: FRAGMENT - 1, ..good }),
        ("shorter than what was copied", Header { length: 1000, ..good }),
        ("nothing", Header { length: 0, ..good }),
        ("too long", Header { length: u16::MAX, ..good }),
        ("the next fragment", Header { kind: NEXT | BULK, ..good }),
        ("a datagram", Header { kind: DATAGRAM | BULK, ..good }),
        ("a message", Header { kind: MESSAGE | BULK, ..good }),
        ("a short message", Header { kind: MESSAGE, length: 8, ..good }),
        ("a move", Header { kind: MOVE_BULK, length: 0, ..good }),
        ("in the slot", Header { kind: FIRST, ..good }),
        ("checked", Header { kind: good.kind | CHECKED, ..good }),
        ("prompt", Header { kind: good.kind | PROMPT, ..good }),
        ("another check", Header { check: 1, ..good }),
    ] {
        let (rogue, inside) = fixture.in_the_midst(FIRST, &[LONG as u64]);
        rogue.rewrite(&inside, header);
        fixture.assert_broken(name);
    }
    // A header that is cleared for a while and then restored breaks no rule.
    let (rogue, mut inside) = fixture.in_the_midst(FIRST, &[LONG as u64]);
    let offset = rogue.last_slot(&inside);
    let word = rogue.segment.load(offset, Ordering::Relaxed);
    rogue.segment.store(offset, 0, Ordering::Release);
    (0..100).for_each(|_| drop(fixture.0.victim.poll()));
    rogue.segment.store(offset, word, Ordering::Release);
    for _ in 0..2 {
        rogue.push_low(&mut inside, NEXT, &[0], &[9; FRAGMENT as usize]);
    }
    until(|| match fixture.0.victim.poll() {
        Some(Event::Message(message)) if message.priority == Priority::Low => {
            assert!(message.payload.len() == LONG && message.payload.iter().all(|byte| *byte == 9));
            true
        }
        Some(Event::Message(_)) | None => false,
        Some(other) => panic!("{other:?}"),
    });
}

#[test]
fn a_header_that_changes_between_two_steps_of_a_put_ends_its_connection() {
    let good = Header { kind: PUT | BULK, length: FRAGMENT, check: 0 };
    let mut fixture = Fixture::new();
    let key = fixture.0.victim.register(vec![0; LONG], Rights { read: false, write: true }).expect("region");
    let words = [key.0, 0, LONG as u64, 9, u64::MAX];
    for (name, header) in [
        ("longer", Header { length: 30_000, ..good }),
        ("a little shorter", Header { length: FRAGMENT - 1, ..good }),
        ("the next fragment", Header { kind: PUT_NEXT | BULK, ..good }),
        ("a message", Header { kind: MESSAGE | BULK, ..good }),
        ("a short message", Header { kind: MESSAGE, length: 8, ..good }),
        ("a long message", Header { kind: FIRST | BULK, ..good }),
        ("checked", Header { kind: good.kind | CHECKED, ..good }),
    ] {
        let (rogue, inside) = fixture.in_the_midst(PUT, &words);
        rogue.rewrite(&inside, header);
        fixture.assert_broken(name);
    }
    let (rogue, mut inside) = fixture.in_the_midst(PUT, &words);
    for _ in 0..2 {
        rogue.push_low(&mut inside, PUT_NEXT, &[0; 5], &[9; FRAGMENT as usize]);
    }
    until(|| {
        fixture.0.victim.poll();
        fixture.0.victim.region(key).is_some_and(|memory| memory.iter().all(|byte| *byte == 9))
    });
}

impl Fixture {
    /// A rogue whose long fragment, of a message or a put, has been copied only in part.
    fn in_the_midst(&mut self, kind: u8, words: &[u64]) -> (Rogue, Inside) {
        let (rogue, mut inside) = self.moved_rogue();
        rogue.push(&mut inside, LaneName::Low, MESSAGE, &[7]);
        self.until_message();
        for number in 0..30 {
            rogue.push(&mut inside, LaneName::High, MESSAGE, &[number]);
        }
        rogue.push_low(&mut inside, kind, words, &[9; FRAGMENT as usize]);
        // Every eighth poll looks at the low lane first and makes a step there: two of ten steps.
        for _ in 0..16 {
            assert!(
                matches!(self.0.victim.poll(), Some(Event::Message(message)) if message.priority == Priority::High)
            );
        }
        (rogue, inside)
    }
}
