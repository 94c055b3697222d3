//! Two connections without a network between them, and a peer that holds the keys and breaks the rules.

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options, Receipt, State, Violation};
use bywire_wire::frame::{Frame, LANES, Lane, Payload};
use bywire_wire::keys::{Sealer, Security, Side};
use bywire_wire::packet::{HEADER_BYTES, Header, PacketKind};
use proptest::collection::vec;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECRET: [u8; 32] = [3; 32];
const WINDOW: u64 = 4096;
const SECURITY: Security = Security::ChaCha20Poly1305;

fn end(side: Side) -> Connection<Vec<u8>> {
    let connection = if side == Side::Initiator { 1 } else { 2 };
    Connection::new(Options {
        side,
        security: SECURITY,
        secret: SECRET,
        connection,
        peer_connection: 3 - connection,
        windows: [WINDOW; 3],
        peer_windows: [WINDOW; 3],
        route_bytes: 1452,
    })
}

fn packets(connection: &mut Connection<Vec<u8>>, now_ns: u64) -> Vec<Vec<u8>> {
    let mut batch = Batch::new(64 * 1024, 64);
    connection.transmit(now_ns, &mut batch);
    batch.packets().map(<[u8]>::to_vec).collect()
}

/// Passes everything to and fro until both are silent.
fn exchange(ends: &mut [Connection<Vec<u8>>; 2], now_ns: &mut u64) {
    for _ in 0..1000 {
        let mut moved = 0;
        for from in [0, 1] {
            for mut packet in packets(&mut ends[from], *now_ns) {
                assert_eq!(ends[1 - from].receive(*now_ns, &mut packet), Receipt::Taken);
                moved += 1;
            }
        }
        let next_ns = ends.iter().filter_map(Connection::next_timeout_ns).min();
        match next_ns {
            None if moved == 0 => return,
            next_ns => *now_ns = next_ns.unwrap_or(0).max(*now_ns + 20_000),
        }
    }
    panic!("two ends never fell silent");
}

/// A peer that seals what it likes.
struct Rogue {
    sealer: Sealer,
    number: u64,
}

impl Rogue {
    fn new() -> Self {
        Self { sealer: Sealer::new(SECURITY, &SECRET, Side::Responder), number: 0 }
    }

    fn packet(&mut self, frames: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + frames.len() + SECURITY.tag_bytes()) as u16;
        let number = self.number;
        self.number += 1;
        let header = Header { kind: PacketKind::Data, key_phase: false, length, connection: 1, number };
        let mut packet = header.to_bytes().to_vec();
        packet.extend(frames);
        self.sealer.seal(0, number, &mut packet, 0);
        packet
    }

    fn frame(&mut self, frame: &Frame) -> Vec<u8> {
        let mut frames = Vec::new();
        assert!(Payload::new(&mut frames, 1000).push(frame));
        self.packet(&frames)
    }
}

#[test]
fn bytes_cross_all_lanes_and_both_ends_fall_silent() {
    let mut ends = [end(Side::Initiator), end(Side::Responder)];
    let mut now_ns = 0;
    for lane in LANES {
        let piece: Vec<u8> = (0..WINDOW as usize).map(|byte| (byte * 7 + lane as usize) as u8).collect();
        assert_eq!(ends[0].send(lane, piece.clone()), Ok(WINDOW));
        exchange(&mut ends, &mut now_ns);
        assert_eq!(ends[1].peek(lane).0, piece);
        assert_eq!((ends[0].acknowledged(lane), ends[0].taken(lane)), (WINDOW, 0));
        assert_eq!(ends[0].take_back(lane), Some(piece));
        // Full: nothing more crosses until the program has consumed.
        ends[0].send(lane, vec![9; 10]).expect("room for more");
        exchange(&mut ends, &mut now_ns);
        assert_eq!(ends[0].acknowledged(lane), WINDOW);
        ends[1].urge_credit(lane);
        ends[1].take(lane, WINDOW);
        exchange(&mut ends, &mut now_ns);
        assert_eq!((ends[0].acknowledged(lane), ends[0].taken(lane)), (WINDOW + 10, WINDOW));
    }
    assert!(ends[0].is_drained() && ends.iter().all(|end| end.next_timeout_ns().is_none()));
    assert_eq!(ends[0].packet_bytes(), 1452);
    assert!(ends[0].send_datagram(Lane::High, &[1; 5000]) && ends[0].send_datagram(Lane::Low, &[]));
    exchange(&mut ends, &mut now_ns);
    let lengths = [(); 2].map(|()| ends[1].pop_datagram().map(|datagram| datagram.bytes.len()));
    assert_eq!(lengths, [Some(5000), Some(0)]);
    ends[1].take(Lane::Low, 10);
    ends.iter_mut().for_each(Connection::trim);
    assert!(ends[0].memory_bytes() == 0);
}

#[test]
fn replayed_reflected_and_foreign_packets_change_nothing() {
    let mut ends = [end(Side::Initiator), end(Side::Responder)];
    let own = packets(&mut ends[0], 0);
    let theirs = packets(&mut ends[1], 0);
    let mut receive = |packet: &[u8]| ends[0].receive(0, &mut packet.to_vec());
    assert_eq!(receive(&own[0]), Receipt::Foreign);
    let mut reflected = own[0].clone();
    reflected[4] = 1;
    assert_eq!(receive(&reflected), Receipt::Forged);
    assert_eq!(receive(&theirs[0]), Receipt::Taken);
    assert_eq!(receive(&theirs[0]), Receipt::Known);
    assert_eq!(receive(&[]), Receipt::Foreign);
    assert_eq!(receive(&theirs[0][..10]), Receipt::Foreign);
    assert_eq!(ends[0].state(), State::Open);
    assert_eq!(ends[0].counts().forged, 1);
}

#[test]
fn every_broken_rule_ends_the_connection_and_the_peer_is_told() {
    let lane = Lane::High;
    let mut beyond = vec![0x11];
    beyond.extend(u64::MAX.to_le_bytes());
    beyond.extend([1, 0, 5]);
    let acknowledges = |number: u64| {
        let mut frames = Vec::new();
        assert!(Payload::new(&mut frames, 100).push_ack(0, [number..=number]));
        frames
    };
    let of = |frame: Frame| {
        let mut frames = Vec::new();
        assert!(Payload::new(&mut frames, 100).push(&frame));
        frames
    };
    let cases = [
        (vec![0xee], Violation::Malformed),
        (beyond, Violation::Malformed),
        (of(Frame::Lane { lane, offset: WINDOW, bytes: &[1] }), Violation::BeyondCredit),
        (of(Frame::Lane { lane, offset: 1 << 50, bytes: &[1] }), Violation::BeyondCredit),
        (of(Frame::Credit { lane, taken: 1, limit: 9 }), Violation::TakenUnsent),
        (acknowledges(7), Violation::AcknowledgedUnsent),
        (acknowledges(u64::MAX), Violation::AcknowledgedUnsent),
    ];
    for (frames, violation) in cases {
        let mut end = end(Side::Initiator);
        packets(&mut end, 0);
        let mut rogue = Rogue::new();
        assert_eq!(end.receive(0, &mut rogue.packet(&frames)), Receipt::Violation(violation));
        assert_eq!(end.state(), State::Broken(violation));
        assert_eq!(packets(&mut end, 0).len(), 1, "the close");
        assert!(end.next_timeout_ns().is_none() && packets(&mut end, 5 * MS).is_empty());
        // Whoever goes on is told again, less and less often.
        let answers = (0..100).filter(|_| {
            assert_eq!(end.receive(0, &mut rogue.packet(&[1])), Receipt::Closed);
            !packets(&mut end, 0).is_empty()
        });
        assert_eq!(answers.count(), 7, "at 1, 2, 4 … 64");
    }
}

#[test]
fn a_peer_that_leaves_gaps_without_end_costs_no_more_than_a_bound() {
    let mut options_end = end(Side::Initiator);
    options_end.set_window(Lane::Low, 1 << 20);
    let mut rogue = Rogue::new();
    let mut refused = 0;
    for offset in (1..WINDOW).step_by(2) {
        let frame = Frame::Lane { lane: Lane::Low, offset, bytes: &[1] };
        match options_end.receive(0, &mut rogue.frame(&frame)) {
            Receipt::Taken => assert_eq!(refused, 0),
            Receipt::NoRoom => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, WINDOW / 2 - 1024);
    // What was refused was not acknowledged, and may come again.
    let frame = Frame::Lane { lane: Lane::Low, offset: 0, bytes: &[1] };
    assert_eq!(options_end.receive(0, &mut rogue.frame(&frame)), Receipt::Taken);
    assert_eq!(options_end.peek(Lane::Low).0.len(), 2);
}

#[test]
fn datagrams_of_which_pieces_are_missing_are_bounded() {
    let mut end = end(Side::Initiator);
    let mut rogue = Rogue::new();
    let mut piece = |end: &mut Connection<Vec<u8>>, id, offset, total, bytes: &[u8]| {
        let frame = Frame::Datagram { lane: Lane::Low, id, offset, total, bytes };
        assert_eq!(end.receive(0, &mut rogue.frame(&frame)), Receipt::Taken);
    };
    (0..1000).for_each(|id| piece(&mut end, id, 0, u16::MAX, &[1]));
    assert!(end.pop_datagram().is_none());
    // The newest are kept, and one whose length changes is dropped.
    piece(&mut end, 2000, 0, 2, &[1]);
    piece(&mut end, 2001, 0, 2, &[1]);
    piece(&mut end, 2001, 1, 3, &[1]);
    piece(&mut end, 2000, 1, 2, &[2]);
    assert_eq!(end.pop_datagram().map(|datagram| datagram.bytes), Some(vec![1, 2]));
    assert!(end.pop_datagram().is_none());
    (0..1000).for_each(|id| piece(&mut end, 5000 + id, 0, 900, &[1; 900]));
    let kept = std::iter::from_fn(|| end.pop_datagram()).count();
    assert_eq!(kept, bywire_wire::datagrams::WAITING_MAX);
}

#[test]
fn a_silent_peer_is_asked_for_ever_and_answered_at_once_when_it_is_back() {
    let mut ends = [end(Side::Initiator), end(Side::Responder)];
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    ends[0].send(Lane::High, b"is anybody there?".to_vec()).expect("room");
    let mut asked = 0;
    // For an hour.
    let until_ns = now_ns + 3_600_000 * MS;
    while now_ns < until_ns {
        asked += packets(&mut ends[0], now_ns).len();
        now_ns = ends[0].next_timeout_ns().expect("it is never given up").max(now_ns + 1);
    }
    assert!((3_600..2 * 3_700).contains(&asked), "{asked}");
    assert_eq!(ends[0].state(), State::Open);
    exchange(&mut ends, &mut now_ns);
    assert_eq!(ends[1].peek(Lane::High).0, b"is anybody there?");
    assert!(ends[0].is_drained());
}

#[test]
fn acknowledgements_leave_before_a_sleep_and_after_a_millisecond() {
    for sleeps in [true, false] {
        let mut ends = [end(Side::Initiator), end(Side::Responder)];
        let mut now_ns = 0;
        exchange(&mut ends, &mut now_ns);
        ends[0].send(Lane::High, vec![1]).expect("room");
        for mut packet in packets(&mut ends[0], now_ns) {
            ends[1].receive(now_ns, &mut packet);
        }
        assert!(packets(&mut ends[1], now_ns).is_empty(), "the answer may carry it");
        if sleeps {
            ends[1].before_sleep();
        } else {
            assert_eq!(ends[1].next_timeout_ns(), Some(now_ns + MS));
            assert!(packets(&mut ends[1], now_ns + MS - 1).is_empty());
            now_ns += MS;
        }
        assert_eq!(packets(&mut ends[1], now_ns).len(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The peer holds the keys and sends any frames.
    #[test]
    fn any_frames_are_taken_or_end_the_connection(
        payloads in vec(vec(prop_oneof![4 => 0..0x40u8, 1 => any::<u8>()], 0..60), 1..40),
        step_ns in 0..50 * MS,
    ) {
        let mut end = end(Side::Initiator);
        let mut rogue = Rogue::new();
        let mut now_ns = 0;
        end.send(Lane::Low, vec![5; 20_000]).expect("room");
        for payload in payloads {
            let is_open = end.state() == State::Open;
            match end.receive(now_ns, &mut rogue.packet(&payload)) {
                Receipt::Taken | Receipt::NoRoom => prop_assert!(is_open),
                Receipt::Violation(violation) => prop_assert_eq!(end.state(), State::Broken(violation)),
                Receipt::Closed => prop_assert!(!is_open),
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert!(packets(&mut end, now_ns).len() < 64);
            prop_assert!(end.memory_bytes() as u64 <= 3 * WINDOW);
            now_ns += step_ns;
        }
    }
}
