//! Whatever a peer with the key sends ends only its own connection, with bounded memory.

use bywire::harness::{End, windows_of};
use bywire::{Confirm, DisconnectReason, Event, PortOptions, Priority, Rights, TransferError};
use bywire_wire::batch::Batch;
use bywire_wire::connection::Connection;
use bywire_wire::frame::{LANES, Lane};
use bywire_wire::keys::Side;
use bywire_wire::record::Head;
use proptest::collection::vec;
use proptest::prelude::*;

use super::pair::options;

const MESSAGE_BYTES_MAX: u64 = 100_000;
/// More than all windows, copies and spare chunks of one end.
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// An honest end, and a peer that puts any bytes into its lanes.
struct Fixture {
    end: End,
    peer: Connection<Vec<u8>>,
    now_ns: u64,
    events: Vec<Event>,
    /// Does the peer read what it receives?
    takes_all: bool,
}

impl Fixture {
    fn new() -> Self {
        Self::with_maximum(MESSAGE_BYTES_MAX)
    }

    /// An honest end that takes messages up to this length.
    fn with_maximum(message_bytes_max: u64) -> Self {
        let port = PortOptions { message_bytes_max, ..PortOptions::default() };
        let windows = windows_of(&port);
        Self {
            end: End::new(options(Side::Initiator, windows), &port, 1 << 40),
            peer: Connection::new(options(Side::Responder, windows)),
            now_ns: 0,
            events: Vec::new(),
            takes_all: true,
        }
    }

    fn send(&mut self, lane: Lane, bytes: &[u8]) {
        self.peer.send(lane, bytes.to_vec()).expect("room");
        self.carry();
    }

    fn send_head(&mut self, lane: Lane, head: Head) {
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        self.send(lane, &bytes);
    }

    /// Carries what leaves now, there and back. The end's program takes everything. Returns the number of packets.
    fn turn(&mut self) -> usize {
        let mut batch = Batch::new(64 * 1024, 64);
        self.peer.transmit(self.now_ns, &mut batch);
        for packet in batch.packets() {
            self.end.receive_packet(self.now_ns, &mut packet.to_vec());
        }
        self.events.extend(std::iter::from_fn(|| self.end.poll()));
        assert!(self.end.memory_bytes() < MEMORY_BYTES_MAX, "{}", self.end.memory_bytes());
        let mut back = Batch::new(64 * 1024, 64);
        self.end.transmit(self.now_ns, &mut back);
        for packet in back.packets() {
            self.peer.receive(self.now_ns, &mut packet.to_vec());
        }
        batch.count() + back.count()
    }

    /// Carries packets until both are silent.
    fn carry(&mut self) {
        for _ in 0..1000 {
            let moved = self.turn();
            for lane in LANES.into_iter().filter(|_| self.takes_all) {
                let (first, second) = self.peer.peek(lane);
                let length = first.len() + second.len();
                self.peer.take(lane, length as u64);
            }
            let next_ns = [self.peer.next_timeout_ns(), self.end.next_timeout_ns()].into_iter().flatten();
            match next_ns.min() {
                Some(at_ns) => self.now_ns = at_ns.max(self.now_ns + 1000),
                None if moved == 0 => return,
                None => {}
            }
        }
    }

    #[track_caller]
    fn assert_broken(&self, what: &str) {
        let last = self.events.last();
        let is_broken = matches!(last, Some(Event::Disconnected { reason: DisconnectReason::Broken, .. }));
        assert!(is_broken && self.end.is_over(), "{what}: {last:?}");
    }

    #[track_caller]
    fn assert_whole(&self, what: &str) {
        assert!(!self.end.is_over(), "{what}");
    }
}

const STATUS: Head = Head::Status { transfer: 0, code: 0 };
const GET: Head = Head::Get { key: 1, offset: 0, length: 10, transfer: 0 };

fn message(length: u64, is_long: bool) -> Head {
    Head::Message { length, is_long, is_prompt: false }
}

fn put(key: u64, length: u64, note: Option<u8>) -> Head {
    Head::Put { length, key, offset: 0, transfer: 5, note }
}

#[test]
fn records_on_the_wrong_lane_break_the_connection() {
    let got = Head::Got { length: 1, transfer: 0 };
    let on_reply = [message(0, false), message(9, true), put(1, 0, None), GET];
    let on_others = [STATUS, got, Head::Status { transfer: u64::MAX, code: u64::MAX }];
    for (lane, head) in on_reply
        .map(|head| (Lane::Reply, head))
        .into_iter()
        .chain([Lane::High, Lane::Low].into_iter().flat_map(|lane| on_others.map(|head| (lane, head))))
    {
        let mut fixture = Fixture::new();
        fixture.send_head(lane, head);
        fixture.assert_broken(&format!("{head:?} on {lane:?}"));
    }
}

#[test]
fn invalid_records_break_the_connection() {
    let head = |kind: u8, note: u8| [&[kind, note][..], &[0; 38]].concat();
    for lane in LANES {
        for kind in (0..=255).filter(|kind| !(1..=5).contains(kind)) {
            let mut fixture = Fixture::new();
            fixture.send(lane, &head(kind, 0xff)[..1]);
            fixture.assert_broken(&format!("kind {kind}"));
        }
        // Invalid flags, notes that are too long, and notes of records without one.
        for (kind, note) in [(1, 4), (1, 0x80), (1, 0xff), (2, 33), (2, 0xfe), (3, 0), (4, 0), (5, 32)] {
            let mut fixture = Fixture::new();
            fixture.send(lane, &head(kind, note));
            fixture.assert_broken(&format!("kind {kind}, note {note}"));
        }
    }
}

#[test]
fn messages_that_are_too_long_break_the_connection_before_their_bytes_arrive() {
    for head in [
        message(MESSAGE_BYTES_MAX + 1, true),
        message(1 << 40, true),
        message(65_585, false),
        message(1 << 40, false),
        // It would take a buffer for nothing.
        message(0, true),
    ] {
        for lane in [Lane::High, Lane::Low] {
            let mut fixture = Fixture::new();
            fixture.end.post_receive(Priority::Low, vec![0; 200_000]);
            fixture.end.post_receive(Priority::High, vec![0; 200_000]);
            fixture.send_head(lane, head);
            fixture.assert_broken(&format!("{head:?}"));
        }
    }
    let mut fixture = Fixture::new();
    fixture.send_head(Lane::Low, message(MESSAGE_BYTES_MAX, true));
    fixture.assert_whole("as long as may be");
    assert!(matches!(fixture.events[..], [Event::BufferNeeded { length_bytes: MESSAGE_BYTES_MAX, .. }]));
}

#[test]
fn a_low_message_maximum_is_enforced_below_the_length_of_a_fragment() {
    for length in [10, 11, 56, 57] {
        let mut fixture = Fixture::with_maximum(10);
        let mut bytes = Vec::new();
        message(length, false).write(&mut bytes);
        bytes.resize(bytes.len() + length as usize, 1);
        fixture.send(Lane::High, &bytes);
        match length {
            10 => fixture.assert_whole("as long as may be"),
            _ => fixture.assert_broken("too long"),
        }
        let mut fixture = Fixture::with_maximum(10);
        fixture.peer.send_datagram(Lane::Low, &vec![1; length as usize]);
        fixture.carry();
        match length {
            10 => fixture.assert_whole("a datagram as long as may be"),
            _ => fixture.assert_broken("a datagram that is too long"),
        }
    }
}

#[test]
fn unrequested_answers_break_the_connection() {
    let answer = |asked: fn(&mut Fixture), heads: &[Head], payload: usize| {
        let mut fixture = Fixture::new();
        asked(&mut fixture);
        fixture.carry();
        let mut bytes = Vec::new();
        heads.iter().for_each(|head| head.write(&mut bytes));
        bytes.resize(bytes.len() + payload, 7);
        fixture.send(Lane::Reply, &bytes);
        fixture
    };
    let nothing: fn(&mut Fixture) = |_| {};
    let a_get: fn(&mut Fixture) = |fixture| {
        fixture.end.get(Priority::Low, (bywire::Key(1), 0), vec![0; 10]).expect("a token");
    };
    let a_put: fn(&mut Fixture) = |fixture| {
        fixture.end.put(Priority::Low, (bywire::Key(1), 0), vec![0; 10], None).expect("a token");
    };
    let got = |length| Head::Got { length, transfer: 0 };
    answer(nothing, &[STATUS], 0).assert_broken("nothing was asked");
    answer(nothing, &[got(5)], 5).assert_broken("nothing was asked");
    let short = answer(a_get, &[STATUS], 0);
    short.assert_broken("its data is missing");
    let is_given_back =
        matches!(short.events[0], Event::Got { result: Err(TransferError::Disconnected(_)), .. });
    assert!(is_given_back, "the program's memory comes back: {:?}", short.events);
    answer(a_get, &[got(0)], 0).assert_broken("no data");
    answer(a_get, &[got(11)], 11).assert_broken("more data than was asked for");
    answer(a_get, &[Head::Got { length: 5, transfer: 1 }], 5).assert_broken("another get");
    answer(a_put, &[got(5)], 5).assert_broken("data for a put");
    answer(a_put, &[STATUS, STATUS], 0).assert_broken("two answers");
    answer(a_put, &[STATUS], 0).assert_whole("one answer");
    let refused = answer(a_get, &[Head::Status { transfer: 0, code: 99 }], 0);
    assert!(matches!(refused.events[..], [Event::Got { result: Err(TransferError::BadKey), .. }]));
}

#[test]
fn a_put_answered_early_keeps_its_memory_until_it_is_acknowledged() {
    let mut fixture = Fixture::new();
    fixture.takes_all = false;
    fixture.end.put(Priority::Low, (bywire::Key(1), 0), vec![3; 2_000_000], None).expect("a token");
    fixture.send_head(Lane::Reply, STATUS);
    fixture.assert_whole("the peer may lie about what it has done");
    assert!(fixture.events.is_empty());
    fixture.takes_all = true;
    fixture.carry();
    assert!(matches!(fixture.events[..], [Event::Put { result: Ok(()), .. }]));
}

#[test]
fn guessing_1024_keys_ends_the_connection_without_an_access() {
    for head in [Head::Get { key: 1 << 30, offset: 0, length: 1, transfer: 0 }, put(1 << 30, 0, None)] {
        let mut fixture = Fixture::new();
        let key = fixture.end.register(vec![5; 1000], Rights { read: true, write: true });
        (0..1024).for_each(|_| fixture.send_head(Lane::Low, head));
        fixture.assert_whole("a thousand guesses");
        fixture.send_head(Lane::Low, head);
        fixture.assert_broken("one more");
        assert_eq!(fixture.end.region(key), Some(&[5; 1000][..]));
    }
}

#[test]
fn requests_with_unread_answers_are_bounded() {
    let mut fixture = Fixture::new();
    let key = fixture.end.register(vec![5; 1000], Rights { read: true, write: true });
    // The peer never takes an answer: the reply lane is full after some.
    let mut bytes = Vec::new();
    for transfer in 0..40_000 {
        Head::Get { key: key.0, offset: 0, length: 1000, transfer }.write(&mut bytes);
    }
    fixture.peer.send(Lane::Low, bytes).expect("room");
    for _ in 0..5000 {
        fixture.turn();
        fixture.now_ns += 100_000;
        if fixture.end.is_over() {
            break;
        }
    }
    fixture.assert_broken("more requests than tokens allow");
}

#[test]
fn transfers_of_a_broken_connection_end_once() {
    let mut fixture = Fixture::new();
    fixture.end.post_receive(Priority::Low, vec![0; 50_000]);
    fixture.end.send_buffer(Priority::Low, vec![1; 500_000], Confirm::Copied).expect("a token");
    fixture.end.send_buffer(Priority::High, vec![2; 10], Confirm::Delivered).expect("a token");
    fixture.end.put(Priority::High, (bywire::Key(1), 0), vec![3; 300_000], None).expect("a token");
    fixture.end.get(Priority::Low, (bywire::Key(1), 0), vec![4; 7]).expect("a token");
    fixture.send_head(Lane::Low, message(50_000, true));
    fixture.send(Lane::Low, &[1; 20_000]);
    fixture.send(Lane::Reply, &[99]);
    fixture.assert_broken("no record");
    let mut ended: Vec<_> = fixture
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Sent { id, result, .. }
            | Event::Put { id, result, .. }
            | Event::Got { id, result, .. } => Some((id.0, result.is_ok())),
            _ => None,
        })
        .collect();
    ended.sort_unstable();
    let numbers: Vec<_> = ended.iter().map(|(id, _)| *id).collect();
    assert_eq!(numbers, [1, 2, 3, 4], "one completion each");
    assert_eq!(ended[2..], [(3, false), (4, false)], "nobody has answered");
}

#[test]
fn messages_that_arrive_byte_by_byte_are_correct() {
    let mut fixture = Fixture::new();
    let key = fixture.end.register(vec![0; 100], Rights { read: true, write: true });
    let mut bytes = Vec::new();
    message(3, false).write(&mut bytes);
    bytes.extend(b"abc");
    message(100, false).write(&mut bytes);
    bytes.extend([1; 100]);
    Head::Put { length: 4, key: key.0, offset: 90, transfer: 1, note: Some(2) }.write(&mut bytes);
    bytes.extend(b"datano");
    Head::Put { length: 0, key: key.0, offset: 100, transfer: 1, note: Some(0) }.write(&mut bytes);
    message(0, false).write(&mut bytes);
    bytes.iter().for_each(|byte| fixture.send(Lane::High, &[*byte]));
    fixture.assert_whole("all of it is good");
    let found: Vec<Vec<u8>> = fixture
        .events
        .iter()
        .map(|event| match event {
            Event::Message(message) => message.payload.to_vec(),
            Event::Notified { note, .. } => note.to_vec(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(found, [b"abc".to_vec(), vec![1; 100], b"no".to_vec(), vec![], vec![]]);
    assert_eq!(fixture.end.region(key).map(|region| &region[88..96]), Some(&b"\0\0data\0\0"[..]));
}

/// Records that are mostly good, so that what follows them is looked at.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let length =
        prop_oneof![0..100u64, 4000..5000u64, 60_000..120_000u64, any::<u64>().prop_map(|any| any >> 24)];
    let number = prop_oneof![0..4u64, any::<u64>()];
    let head = prop_oneof![
        4 => (length.clone(), any::<[bool; 2]>()).prop_map(|(length, [is_long, is_prompt])| Head::Message {
            length,
            is_long,
            is_prompt
        }),
        2 => (length.clone(), number.clone(), number.clone(), prop::option::of(0..=32u8))
            .prop_map(|(length, key, transfer, note)| Head::Put { length, key, offset: 3, transfer, note }),
        2 => (length.clone(), number.clone(), number.clone())
            .prop_map(|(length, key, transfer)| Head::Get { key, offset: 1, length, transfer }),
        1 => [number.clone(), number.clone()].prop_map(|[transfer, code]| Head::Status { transfer, code }),
        1 => (length, number).prop_map(|(length, transfer)| Head::Got { length, transfer }),
    ];
    (head, prop_oneof![Just(0), Just(-1i64), -50..50i64]).prop_map(|(head, extra)| {
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        let rest = (head.payload_bytes() as i64).saturating_add(extra).clamp(0, 130_000) as usize;
        bytes.resize(bytes.len() + rest, 1);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Any bytes in any lanes: no panic, bounded memory, each transfer ends once.
    #[test]
    fn any_bytes_of_a_peer_are_handled_without_a_panic(pieces in vec((0..3usize, prop_oneof![3 => record(), 1 => vec(any::<u8>(), 0..50)]), 0..12)) {
        let mut fixture = Fixture::new();
        fixture.end.post_receive(Priority::Low, vec![0; 5000]);
        fixture.end.post_receive(Priority::High, vec![0; 70_000]);
        fixture.end.get(Priority::Low, (bywire::Key(1), 0), vec![0; 100]).expect("a token");
        fixture.end.put(Priority::High, (bywire::Key(1), 0), vec![0; 9000], Some(b"n")).expect("a token");
        for (lane, bytes) in pieces {
            fixture.send(LANES[lane], &bytes);
        }
        fixture.end.end(DisconnectReason::Here);
        fixture.events.extend(std::iter::from_fn(|| fixture.end.poll()));
        let completions = fixture.events.iter().filter(|event| {
            matches!(event, Event::Put { .. } | Event::Got { .. })
        });
        prop_assert_eq!(completions.count(), 2);
    }
}
