//! A connection ends on every broken rule of a peer that has the keys, answers no stranger, and stands any packets. A
//! full window is refilled in bursts. One high message does not hold a long transfer back. On a path that loses six of
//! ten packets the first one comes within 10 s.
//!
//! The two connections have no network between them.

use std::collections::VecDeque;

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options, Receipt, State, Violation};
use bywire_wire::frame::{FRAMES_MAX, Frame, LANES, Lane, Payload};
use bywire_wire::keys::{Security, Side};
use bywire_wire::packet::{HEADER_BYTES, Header, PacketKind};
use bywire_wire::receiving::WAITING_RANGES_MAX;
use bywire_wire::sealing::Sealer;
use proptest::collection::vec;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECRET: [u8; 32] = [3; 32];
const WINDOW: u64 = 4096;
const SECURITY: Security = Security::ChaCha20Poly1305;

fn end(side: Side) -> Connection<Vec<u8>> {
    end_with(side, WINDOW)
}

/// An end whose lanes hold this many bytes, as those of the other one.
fn end_with(side: Side, window: u64) -> Connection<Vec<u8>> {
    let connection = if side == Side::Initiator { 1 } else { 2 };
    Connection::new(Options {
        side,
        security: SECURITY,
        secret: SECRET.into(),
        connection,
        peer_connection: 3 - connection,
        windows: [window; 3],
        peer_windows: [window; 3],
        route_bytes: 1452,
    })
}

fn packets(connection: &mut Connection<Vec<u8>>, now_ns: u64) -> Vec<Vec<u8>> {
    let mut batch = Batch::new(64 * 1024, 64);
    connection.transmit(now_ns, &mut batch);
    batch.packets().map(<[u8]>::to_vec).collect()
}

/// Passes packets between both ends until both are silent.
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

/// A peer that seals any bytes.
struct Rogue {
    sealer: Sealer,
    number: u64,
}

impl Rogue {
    fn new() -> Self {
        Self { sealer: Sealer::new(SECURITY, &SECRET.into(), Side::Responder), number: 0 }
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
fn bytes_cross_all_lanes_and_both_ends_become_silent() {
    let mut ends = [end(Side::Initiator), end(Side::Responder)];
    let mut now_ns = 0;
    for lane in LANES {
        let piece: Vec<u8> = (0..WINDOW as usize).map(|byte| (byte * 7 + lane as usize) as u8).collect();
        assert_eq!(ends[0].send(lane, piece.clone()), Ok(WINDOW));
        exchange(&mut ends, &mut now_ns);
        assert_eq!(ends[1].peek(lane).0, piece);
        assert_eq!((ends[0].acknowledged(lane), ends[0].taken(lane)), (WINDOW, 0));
        assert_eq!(ends[0].take_back(lane), Some(piece));
        // The lane is full: nothing more crosses until the program has consumed bytes.
        ends[0].send(lane, vec![9; 10]).expect("room for more");
        exchange(&mut ends, &mut now_ns);
        assert_eq!(ends[0].acknowledged(lane), WINDOW);
        ends[1].request_credit_report(lane);
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
fn replayed_reflected_and_forged_packets_change_nothing() {
    let mut ends = [end(Side::Initiator), end(Side::Responder)];
    let own = packets(&mut ends[0], 0);
    let theirs = packets(&mut ends[1], 0);
    let mut receive = |packet: &[u8]| ends[0].receive(0, &mut packet.to_vec());
    assert_eq!(receive(&own[0]), Receipt::Unrecognized);
    let mut reflected = own[0].clone();
    reflected[4] = 1;
    assert_eq!(receive(&reflected), Receipt::Forged);
    assert_eq!(receive(&theirs[0]), Receipt::Taken);
    assert_eq!(receive(&theirs[0]), Receipt::Known);
    assert_eq!(receive(&[]), Receipt::Unrecognized);
    assert_eq!(receive(&theirs[0][..10]), Receipt::Unrecognized);
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
        assert!(packets(&mut end, 5 * MS).is_empty(), "it is repeated later");
        // A peer that keeps sending gets the close again, less and less often.
        let answers = (0..100).filter(|_| {
            assert_eq!(end.receive(0, &mut rogue.packet(&[1])), Receipt::Closed);
            !packets(&mut end, 0).is_empty()
        });
        assert_eq!(answers.count(), 7, "at 1, 2, 4 … 64");
    }
}

#[test]
fn a_peer_that_leaves_gaps_forever_uses_bounded_memory() {
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
    // A refused packet was not acknowledged, so it is sent again.
    let frame = Frame::Lane { lane: Lane::Low, offset: 0, bytes: &[1] };
    assert_eq!(options_end.receive(0, &mut rogue.frame(&frame)), Receipt::Taken);
    assert_eq!(options_end.peek(Lane::Low).0.len(), 2);
}

#[test]
fn incomplete_datagrams_are_bounded() {
    let mut end = end(Side::Initiator);
    let mut rogue = Rogue::new();
    let mut piece = |end: &mut Connection<Vec<u8>>, id, offset, total, bytes: &[u8]| {
        let frame = Frame::Datagram { lane: Lane::Low, id, offset, total, bytes };
        assert_eq!(end.receive(0, &mut rogue.frame(&frame)), Receipt::Taken);
    };
    (0..1000).for_each(|id| piece(&mut end, id, 0, u16::MAX, &[1]));
    assert!(end.pop_datagram().is_none());
    assert!(end.datagram_bytes() < 16 * 100, "{} bytes for 16 that have come", end.datagram_bytes());
    // Fragments may come in any order. Each datagram is delivered once.
    [4, 0, 2].into_iter().for_each(|at| piece(&mut end, 1500, at, 6, &[at as u8, at as u8 + 1]));
    assert_eq!(end.pop_datagram().map(|datagram| datagram.bytes), Some(vec![0, 1, 2, 3, 4, 5]));
    [0, 1].into_iter().for_each(|at| piece(&mut end, 1501, at, 4, &[1, 1]));
    piece(&mut end, 1501, 3, 4, &[1]);
    assert!(end.pop_datagram().is_none());
    // The newest datagrams are kept. One whose length changes is dropped.
    piece(&mut end, 2000, 0, 2, &[1]);
    piece(&mut end, 2001, 0, 2, &[1]);
    piece(&mut end, 2001, 1, 3, &[1]);
    piece(&mut end, 2000, 1, 2, &[2]);
    assert_eq!(end.pop_datagram().map(|datagram| datagram.bytes), Some(vec![1, 2]));
    assert!(end.pop_datagram().is_none());
    (0..1000).for_each(|id| piece(&mut end, 5000 + id, 0, 900, &[1; 900]));
    let kept = std::iter::from_fn(|| end.pop_datagram()).count();
    assert_eq!(kept, bywire_wire::datagrams::ARRIVED_MAX);
}

#[test]
fn a_silent_peer_is_probed_forever_and_answered_at_once_on_return() {
    let mut ends = [end(Side::Initiator), end(Side::Responder)];
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    ends[0].send(Lane::High, b"is anybody there?".to_vec()).expect("room");
    let mut asked = 0;
    // For an hour, with two probes a second.
    let until_ns = now_ns + 3_600_000 * MS;
    while now_ns < until_ns {
        asked += packets(&mut ends[0], now_ns).len();
        now_ns = ends[0].next_timeout_ns().expect("it always probes again").max(now_ns + 1);
    }
    assert!((7_200..2 * 7_300).contains(&asked), "{asked}");
    assert_eq!(ends[0].state(), State::Open);
    exchange(&mut ends, &mut now_ns);
    assert_eq!(ends[1].peek(Lane::High).0, b"is anybody there?");
    assert!(ends[0].is_drained());
}

#[test]
fn acknowledgements_are_sent_before_a_sleep_and_after_a_millisecond() {
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

/// Passes all packets from one end to the other. Returns their number.
fn pass(ends: &mut [Connection<Vec<u8>>; 2], from: usize, now_ns: u64) -> usize {
    let packets = packets(&mut ends[from], now_ns);
    packets.iter().for_each(|packet| {
        ends[1 - from].receive(now_ns, &mut packet.clone());
    });
    packets.len()
}

fn pair() -> [Connection<Vec<u8>>; 2] {
    [end(Side::Initiator), end(Side::Responder)]
}

#[test]
fn a_lane_full_of_gaps_accepts_bytes_that_close_one() {
    let mut end = end(Side::Initiator);
    let mut rogue = Rogue::new();
    let mut piece = |end: &mut Connection<Vec<u8>>, offset| {
        end.receive(0, &mut rogue.frame(&Frame::Lane { lane: Lane::Low, offset, bytes: &[offset as u8] }))
    };
    let odd = (1..).step_by(2).take(WAITING_RANGES_MAX);
    odd.for_each(|offset| assert_eq!(piece(&mut end, offset), Receipt::Taken));
    let beyond = 2 * WAITING_RANGES_MAX as u64 + 5;
    assert_eq!(piece(&mut end, beyond), Receipt::NoRoom, "one more gap");
    // Bytes between two received ranges, beginning at the far end, so that none is the first missing byte.
    for offset in (0..WAITING_RANGES_MAX as u64).rev() {
        assert_eq!(piece(&mut end, 2 * offset), Receipt::Taken, "{offset}");
    }
    assert_eq!(end.peek(Lane::Low).0.len(), 2 * WAITING_RANGES_MAX);
}

#[test]
fn a_packet_of_many_pieces_leaves_no_more_gaps_than_the_bound() {
    let mut end = end(Side::Initiator);
    let mut rogue = Rogue::new();
    let pieces = |offsets: std::ops::Range<u64>| {
        let mut frames = Vec::new();
        let mut payload = Payload::new(&mut frames, 60_000);
        for offset in offsets {
            assert!(payload.push(&Frame::Lane { lane: Lane::Low, offset: 2 * offset + 1, bytes: &[1] }));
        }
        frames
    };
    let mut taken = 0;
    while end.receive(0, &mut rogue.packet(&pieces(taken..taken + 100))) == Receipt::Taken {
        taken += 100;
    }
    assert_eq!(taken, 1000, "the bound is {WAITING_RANGES_MAX}");
    let rest = pieces(taken..WAITING_RANGES_MAX as u64);
    assert_eq!(end.receive(0, &mut rogue.packet(&rest)), Receipt::Taken);
}

#[test]
fn lost_opening_packets_are_not_a_sign_of_congestion() {
    let mut ends = pair();
    let window = ends[0].flight().1;
    ends[0].send(Lane::High, vec![1; 2000]).expect("room");
    let mut now_ns = 0;
    // The peer has no socket yet.
    let mut unheard = 0;
    while ends[0].counts().probes < 3 {
        unheard += packets(&mut ends[0], now_ns).len();
        now_ns = ends[0].next_timeout_ns().expect("it probes again").max(now_ns);
    }
    exchange(&mut ends, &mut now_ns);
    assert!(ends[0].is_drained() && unheard >= 4);
    let counts = *ends[0].counts();
    assert!(counts.lost >= 2 && counts.persistent == 0, "{counts:?}");
    assert_eq!(counts.lost_on_the_way(), 0, "nobody was there: {counts:?}");
    assert!(ends[0].flight().1 >= window, "{} after {window}", ends[0].flight().1);
}

#[test]
fn unacknowledged_bytes_are_resent_once_the_peer_is_heard() {
    let mut ends = pair();
    ends[0].send(Lane::High, b"hello".to_vec()).expect("room");
    assert!(packets(&mut ends[0], 0).len() == 1, "the peer has no socket yet");
    // The other end exists two milliseconds later, long before a probe would be sent.
    let mut now_ns = 2 * MS;
    assert_eq!(pass(&mut ends, 1, now_ns), 1);
    assert_eq!((pass(&mut ends, 0, now_ns), ends[1].peek(Lane::High).0), (1, &b"hello"[..]));
    exchange(&mut ends, &mut now_ns);
    assert!(ends[0].is_drained() && now_ns < 20 * MS, "{now_ns}");
}

/// Passes packets for a while over a path that drops those of more than 1300 bytes.
fn exchange_short(ends: &mut [Connection<Vec<u8>>; 2], now_ns: &mut u64) {
    for _ in 0..200 {
        for from in [0, 1] {
            for mut packet in packets(&mut ends[from], *now_ns) {
                if packet.len() <= 1300 {
                    ends[1 - from].receive(*now_ns, &mut packet);
                }
            }
        }
        let next_ns = ends.iter().filter_map(Connection::next_timeout_ns).min();
        *now_ns = next_ns.unwrap_or(0).max(*now_ns + 20_000);
    }
}

#[test]
fn lost_probes_of_a_length_do_not_count_as_lost_on_the_way() {
    let mut ends = pair();
    let mut now_ns = 0;
    ends[0].send(Lane::High, vec![1; 4000]).expect("room");
    exchange_short(&mut ends, &mut now_ns);
    let counts = *ends[0].counts();
    assert!(ends[0].is_drained() && counts.size_probes_lost > 0, "{counts:?}");
    assert_eq!(counts.lost_on_the_way(), 0, "{counts:?}");
}

#[test]
fn a_smaller_path_mtu_is_detected_by_the_first_answered_short_probe() {
    let mut ends = pair();
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    assert_eq!(ends[0].packet_bytes(), 1452);
    let before = *ends[0].counts();
    ends[0].send(Lane::High, vec![1; 4000]).expect("room");
    exchange_short(&mut ends, &mut now_ns);
    let counts = *ends[0].counts();
    assert!(ends[0].is_drained() && counts.black_holes == 1, "{counts:?}");
    // Two probes are sent, of which the second one is short. The next packet is lost once, while long packets are tried again.
    assert!((1284..=1300).contains(&ends[0].packet_bytes()), "{}", ends[0].packet_bytes());
    let probes = counts.probes - before.probes - (counts.size_probes_lost - before.size_probes_lost);
    assert!(probes <= 3, "{probes} probes");
}

#[test]
fn an_end_that_sends_only_acknowledgements_keeps_updating_its_key() {
    let mut ends = pair();
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    ends.iter_mut().for_each(|end| end.set_packets_per_key(10));
    for _ in 0..1000 {
        assert!(ends[0].send_datagram(Lane::High, b"no credit is given for these"));
        exchange(&mut ends, &mut now_ns);
        assert!(ends[1].pop_datagram().is_some());
    }
    let updates = ends.each_ref().map(|end| end.counts().key_updates);
    assert!(updates.iter().all(|updates| *updates >= 20), "{updates:?}");
    assert_eq!(ends[0].counts().peer_key_updates, updates[1]);
}

#[test]
fn a_packet_of_many_acknowledgements_or_frames_breaks_a_rule() {
    let mut acknowledgement = Vec::new();
    assert!(Payload::new(&mut acknowledgement, 100).push_ack(0, [0..=0]));
    let ping = vec![0x01];
    for (frame, most) in [(acknowledgement, 1), (ping, FRAMES_MAX)] {
        for (number, receipt) in
            [(most, Receipt::Taken), (most + 1, Receipt::Violation(Violation::Malformed))]
        {
            let mut end = end(Side::Initiator);
            packets(&mut end, 0);
            assert_eq!(end.receive(0, &mut Rogue::new().packet(&frame.repeat(number))), receipt, "{number}");
        }
    }
}

/// The system calls of a packet that leaves alone take several times as long as those of one in a batch, at both ends. So two ends
/// that exchange single packets would go on with it.
#[test]
fn a_full_window_is_refilled_in_bursts_although_acknowledgements_come_for_every_other_packet() {
    let mut ends = pair();
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    let mut queue = VecDeque::new();
    let mut bursts = Vec::new();
    // The receiver takes two packets in ten microseconds.
    for _ in 0..40_000 {
        while ends[0].send_datagram(Lane::Low, &[1; 1372]) {}
        let leaving = packets(&mut ends[0], now_ns);
        bursts.extend(Some(leaving.len()).filter(|packets| *packets > 0));
        queue.extend(leaving);
        for mut packet in queue.drain(..queue.len().min(2)) {
            assert_eq!(ends[1].receive(now_ns, &mut packet), Receipt::Taken);
        }
        while ends[1].pop_datagram().is_some() {}
        pass(&mut ends, 1, now_ns);
        now_ns += 10_000;
    }
    let counts = ends[0].counts();
    assert!(counts.window_full + counts.numbers_full > 100 && counts.lost == 0, "{counts:?}");
    let late = &bursts[bursts.len() / 2..];
    let packets: usize = late.iter().sum();
    assert!(packets / late.len() >= 16, "{packets} packets in {} bursts", late.len());
}

#[test]
fn less_than_a_burst_leaves_as_soon_as_the_window_has_room_for_it() {
    let mut ends = pair();
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    // More than the first window holds.
    (0..20).for_each(|_| assert!(ends[0].send_datagram(Lane::Low, &[1; 1400])));
    exchange(&mut ends, &mut now_ns);
    assert!(ends[0].counts().window_full + ends[0].counts().paced > 0 && ends[0].is_drained());
    assert_eq!((0..20).filter(|_| ends[1].pop_datagram().is_some()).count(), 20);
}

/// Most of what is in flight waits at the receiver, where a high message waits behind it.
#[test]
fn few_low_bytes_are_in_flight_beside_high_ones_but_one_high_message_does_not_hold_a_long_transfer_back() {
    const LONG: usize = 1 << 20;
    let mut ends = [Side::Initiator, Side::Responder].map(|side| end_with(side, 16 * LONG as u64));
    let mut now_ns = 0;
    ends[0].send(Lane::Low, vec![1; 2 * LONG]).expect("room");
    exchange(&mut ends, &mut now_ns);
    assert!(ends[0].flight().1 > 256 * 1024, "the window: {:?}", ends[0].flight());
    let mut most_in_flight = |has_more_high_messages: bool| {
        ends[0].send(Lane::High, vec![2; 8]).expect("room");
        let end = ends[0].send(Lane::Low, vec![3; LONG]).expect("room");
        let mut most = 0;
        while ends[0].acknowledged(Lane::Low) < end {
            if has_more_high_messages {
                ends[0].send(Lane::High, vec![2; 8]).expect("room");
            }
            pass(&mut ends, 0, now_ns);
            most = most.max(ends[0].flight().0);
            now_ns += 20_000;
            pass(&mut ends, 1, now_ns);
        }
        exchange(&mut ends, &mut now_ns);
        most
    };
    let (beside_many, beside_one) = (most_in_flight(true), most_in_flight(false));
    assert!(beside_many < 20 * 1024 && beside_one > 48 * 1024, "{beside_many} {beside_one}");
}

/// A program that is asked for long data by a short message answers at once.
#[test]
fn low_bytes_that_follow_a_high_message_leave_at_once_while_those_before_it_are_held_back() {
    let mut ends = [Side::Initiator, Side::Responder].map(|side| end_with(side, 16 << 20));
    let mut now_ns = 0;
    ends[0].send(Lane::Low, vec![1; 1 << 20]).expect("room");
    exchange(&mut ends, &mut now_ns);
    let mut in_flight = |is_asked_before: bool| {
        now_ns += 10_000_000;
        if !is_asked_before {
            ends[0].send(Lane::Low, vec![2; 64 << 10]).expect("room");
        }
        ends[1].send(Lane::High, vec![3; 8]).expect("room");
        pass(&mut ends, 1, now_ns);
        if is_asked_before {
            ends[0].send(Lane::Low, vec![2; 64 << 10]).expect("room");
        }
        packets(&mut ends[0], now_ns);
        let in_flight = ends[0].flight().0;
        exchange(&mut ends, &mut now_ns);
        in_flight
    };
    let (asked_before, asked_meanwhile) = (in_flight(true), in_flight(false));
    assert!(asked_before > 60 * 1024 && asked_meanwhile < 20 * 1024, "{asked_before} {asked_meanwhile}");
}

#[test]
fn high_messages_that_are_not_answered_hold_no_transfer_back() {
    let mut ends = [Side::Initiator, Side::Responder].map(|side| end_with(side, 16 << 20));
    let mut now_ns = 0;
    ends[0].send(Lane::Low, vec![1; 1 << 20]).expect("room");
    exchange(&mut ends, &mut now_ns);
    now_ns += 10_000_000;
    ends[0].send(Lane::Low, vec![2; 4 << 20]).expect("room");
    let mut in_flight = |is_answered: bool| {
        ends[1].send(Lane::High, vec![3; 8]).expect("room");
        pass(&mut ends, 1, now_ns);
        now_ns += 100_000;
        if is_answered {
            ends[0].send(Lane::High, vec![4; 8]).expect("room");
        }
        pass(&mut ends, 0, now_ns);
        ends[0].flight().0
    };
    // The first one might be a question, for which 64 KiB are held back.
    let first: Vec<_> = (0..4).map(|_| in_flight(false)).collect();
    assert!(first[0] < 20 * 1024, "{first:?}");
    let reports: Vec<_> = (0..4).map(|_| in_flight(false)).collect();
    assert!(reports.iter().all(|in_flight| *in_flight > 60 * 1024), "{reports:?}");
    let questions: Vec<_> = (0..4).map(|_| in_flight(true)).collect();
    assert!(questions.iter().all(|in_flight| *in_flight < 60 * 1024), "{questions:?}");
}

#[test]
fn a_high_priority_datagram_overtakes_the_rest_of_a_low_priority_one() {
    let mut ends = pair();
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    assert!(ends[0].send_datagram(Lane::Low, &[1; 30_000]));
    assert!(pass(&mut ends, 0, now_ns) > 0 && !ends[0].is_drained(), "a part of it has left");
    assert!(ends[0].send_datagram(Lane::High, &[2; 3000]) && ends[0].send_datagram(Lane::High, &[3]));
    exchange(&mut ends, &mut now_ns);
    let lengths = [(); 3].map(|()| ends[1].pop_datagram().map(|datagram| datagram.bytes.len()));
    assert_eq!(lengths, [Some(3000), Some(1), Some(30_000)]);
}

#[test]
fn fragments_of_an_incomplete_datagram_are_freed() {
    let mut end = end(Side::Initiator);
    let mut rogue = Rogue::new();
    let mut piece = |end: &mut Connection<Vec<u8>>, now_ns, offset| {
        let frame = Frame::Datagram { lane: Lane::Low, id: 7, offset, total: 2, bytes: &[9] };
        assert_eq!(end.receive(now_ns, &mut rogue.frame(&frame)), Receipt::Taken);
    };
    piece(&mut end, 0, 0);
    let mut now_ns = 0;
    while now_ns < 5_000 * MS {
        packets(&mut end, now_ns);
        // Its own packet is never acknowledged, so it sends probes.
        now_ns = end.next_timeout_ns().unwrap_or(5_000 * MS).max(now_ns + MS);
    }
    piece(&mut end, now_ns, 1);
    assert_eq!(end.pop_datagram(), None, "the first piece was kept for five seconds");
}

#[test]
fn acknowledgements_that_the_peer_knows_are_not_repeated() {
    let mut ends = pair();
    let mut now_ns = 0;
    exchange(&mut ends, &mut now_ns);
    // Every other packet is lost.
    for number in 0..60 {
        assert!(ends[0].send_datagram(Lane::High, &[1; 10]));
        let mut left = packets(&mut ends[0], now_ns);
        if number % 2 == 0 {
            left.iter_mut().for_each(|packet| assert_eq!(ends[1].receive(now_ns, packet), Receipt::Taken));
        }
        pass(&mut ends, 1, now_ns);
        now_ns += MS;
    }
    // Both ends send and acknowledge.
    for _ in 0..10 {
        ends.iter_mut().for_each(|end| assert!(end.send_datagram(Lane::High, &[1; 10])));
        exchange(&mut ends, &mut now_ns);
    }
    assert!(ends[0].send_datagram(Lane::High, &[1; 10]));
    pass(&mut ends, 0, now_ns);
    ends[1].before_sleep();
    let acknowledgement = packets(&mut ends[1], now_ns);
    // A header, a tag, and an acknowledgement of one range.
    assert_eq!(acknowledgement.iter().map(Vec::len).collect::<Vec<_>>(), [16 + 16 + 18]);
}

#[test]
fn a_close_is_repeated_until_the_peer_answers_and_a_bounded_number_of_times() {
    for closes_heard in [0, 1] {
        let mut ends = pair();
        let mut now_ns = 0;
        exchange(&mut ends, &mut now_ns);
        ends[0].close(3);
        let mut closes = 0;
        while let Some(at_ns) = ends[0].next_timeout_ns() {
            assert!(closes < 100, "it never ends");
            now_ns = now_ns.max(at_ns);
            let left = packets(&mut ends[0], now_ns);
            closes += left.len();
            if closes_heard > 0 && closes > 2 {
                left.into_iter().for_each(|mut packet| {
                    ends[1].receive(now_ns, &mut packet);
                });
                pass(&mut ends, 1, now_ns);
            }
        }
        match closes_heard {
            0 => assert!((4..=10).contains(&closes), "{closes}"),
            _ => assert_eq!((closes, ends[1].state()), (3, State::ClosedByPeer(3))),
        }
        assert!(ends[0].next_timeout_ns().is_none() && packets(&mut ends[0], now_ns).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The peer has the keys and sends any frames.
    #[test]
    fn any_frames_are_accepted_or_end_the_connection(
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

/// When the first packet of one end arrives at the other one, in ms, if so many of a hundred packets are lost.
fn proved_after_ms(lost: u64, one_way_ns: u64, seed: u64) -> u64 {
    let mut ends = [end(Side::Initiator), end(Side::Responder)];
    let mut chance = seed;
    let mut flying: VecDeque<(u64, usize, Vec<u8>)> = VecDeque::new();
    let mut now_ns = 0;
    while ends[1].counts().taken == 0 {
        assert!(now_ns < 60_000 * MS, "never");
        for from in [0, 1] {
            for packet in packets(&mut ends[from], now_ns) {
                // The high bits of a linear generator.
                chance =
                    chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if (chance >> 33) % 100 >= lost {
                    flying.push_back((now_ns + one_way_ns, 1 - from, packet));
                }
            }
        }
        let due_ns = ends.iter().filter_map(Connection::next_timeout_ns).min().unwrap_or(u64::MAX);
        now_ns = flying.front().map_or(u64::MAX, |(at_ns, ..)| *at_ns).min(due_ns.max(now_ns + 20_000));
        while flying.front().is_some_and(|(at_ns, ..)| *at_ns <= now_ns) {
            let (_, to, mut packet) = flying.pop_front().expect("it was just there");
            ends[to].receive(now_ns, &mut packet);
        }
    }
    now_ns / MS
}

#[test]
fn the_first_packet_on_a_bad_path_comes_within_the_ten_seconds_that_a_port_waits_for_a_caller() {
    for (lost, one_way_ms) in [(0, 500), (20, 500), (40, 500), (60, 500), (60, 20)] {
        let proved = (0..1000).map(|seed| proved_after_ms(lost, one_way_ms * MS, seed * 7919 + lost));
        let mut proved: Vec<_> = proved.collect();
        proved.sort_unstable();
        let [median, late, last] = [500, 990, 999].map(|place| proved[place]);
        println!("{lost} % lost, {one_way_ms} ms one way: {median} ms, 99 % {late} ms, longest {last} ms");
        assert!(last < 10_000, "{lost} % lost: {last} ms");
    }
}
