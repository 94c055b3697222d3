//! Acknowledgements, losses and probes are due when they should be. Windows grow, pacing lets packets out, and the
//! length of packets is found (path MTU discovery), as they should.

use std::ops::RangeInclusive;

use bywire_wire::ack::{ACK_DELAY_MAX_NS, Acknowledger};
use bywire_wire::congestion::cubic::Cubic;
use bywire_wire::congestion::{Arrival, Congestion, INITIAL_PACKETS, MINIMUM_PACKETS};
use bywire_wire::pacing::{Pacer, Rate};
use bywire_wire::received::WINDOW;
use bywire_wire::recovery::{NeverSent, Outcome, PROBES_EVEN, Recovery, Sent, Timeout};
use bywire_wire::rtt::{PROBE_INTERVAL_MAX_NS, PROBE_TIMEOUT_MAX_NS, Rtt};
use bywire_wire::size::{BASE_BYTES, LIMIT_BYTES, PacketSize};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

#[test]
fn acknowledgements_of_one_packet_are_delayed_and_of_a_batch_or_gap_are_not() {
    let mut ack = Acknowledger::default();
    assert!(ack.insert(100, 0, true) && ack.is_waiting() && !ack.is_due(100));
    assert_eq!(ack.deadline_ns(), Some(100 + ACK_DELAY_MAX_NS));
    assert!(ack.is_due(100 + ACK_DELAY_MAX_NS));
    assert!(ack.insert(200, 1, true) && ack.is_due(200), "two of a batch");
    ack.told();
    assert!(!ack.is_waiting() && ack.deadline_ns().is_none());
    assert!(ack.insert(300, 3, true) && ack.is_due(300), "a gap");
    ack.told();
    assert!(ack.insert(400, 2, true) && ack.is_due(400), "a gap was filled");
    ack.told();
    assert!(!ack.insert(500, 2, true) && !ack.is_waiting(), "a known packet");
    assert!(ack.insert(600, 9, false) && !ack.is_waiting(), "a packet that needs no acknowledgement");
    assert_eq!(ack.ranges().collect::<Vec<_>>(), [9..=9, 0..=3]);
    assert_eq!(ack.delay_us(600 + 5_000), 5);
}

/// Packets of 100 bytes, one each millisecond. Each contains its number.
fn sent(number: u64) -> Recovery<u64> {
    let mut recovery = Recovery::default();
    (0..number).for_each(|number| recovery.sent(number * MS, 100, Some(number)));
    recovery
}

/// Acknowledges packets. Returns those that arrived and those that are lost.
fn acknowledge(
    recovery: &mut Recovery<u64>,
    now_ns: u64,
    ranges: &[RangeInclusive<u64>],
) -> (Vec<u64>, Vec<u64>) {
    let mut outcome = Outcome::default();
    recovery.acknowledge(now_ns, ranges.iter().cloned(), 0, &mut outcome).expect("they were sent");
    let contents = |sent: &[Sent<u64>]| {
        let mut contents: Vec<u64> = sent.iter().map(|sent| sent.content).collect();
        contents.sort_unstable();
        contents
    };
    (contents(&outcome.arrived), contents(&outcome.lost))
}

#[test]
fn a_packet_is_lost_after_three_later_acknowledgements_or_a_timeout() {
    let mut recovery = sent(6);
    let now_ns = 36 * MS;
    // The newest packet gives a round trip of 32 ms.
    assert_eq!(acknowledge(&mut recovery, now_ns, &[4..=4]), (vec![4], vec![0, 1]));
    assert_eq!(recovery.in_flight(), 300);
    let at_ns = recovery.timeout_ns().expect("later packets than 2 and 3 have arrived");
    assert_eq!(at_ns, 2 * MS + 32 * MS * 9 / 8);
    let mut outcome = Outcome::default();
    assert_eq!(recovery.on_timeout(at_ns - 1, &mut outcome), Timeout::Early);
    assert_eq!(recovery.on_timeout(at_ns, &mut outcome), Timeout::Loss);
    assert_eq!(outcome.lost.iter().map(|sent| sent.number).collect::<Vec<_>>(), [2]);
    // A lost packet may still arrive. It is reported once.
    assert_eq!(acknowledge(&mut recovery, at_ns, &[2..=5]), (vec![3, 5], vec![]));
    assert_eq!((recovery.in_flight(), recovery.outstanding(), recovery.timeout_ns()), (0, 0, None));
}

#[test]
fn probes_continue_forever_at_least_twice_a_second() {
    let mut recovery = Recovery::default();
    let mut outcome = Outcome::default();
    // The first estimate of the round trip is 100 ms.
    recovery.sent(0, 100, Some(0));
    recovery.acknowledge(100 * MS, [0..=0].into_iter(), 0, &mut outcome).expect("it was sent");
    outcome.clear();
    let mut last_ns = 100 * MS;
    recovery.sent(last_ns, 100, Some(1));
    let mut gaps = Vec::new();
    for _ in 0..40 {
        let at_ns = recovery.timeout_ns().expect("it always probes again");
        assert_eq!(recovery.on_timeout(at_ns - 1, &mut outcome), Timeout::Early);
        assert_eq!(recovery.on_timeout(at_ns, &mut outcome), Timeout::Probe);
        recovery.sent(at_ns, 50, Some(9));
        gaps.push(at_ns - last_ns);
        last_ns = at_ns;
    }
    let (even, doubling) = gaps.split_at(PROBES_EVEN as usize);
    assert!(even.iter().all(|gap| *gap == doubling[0]), "{gaps:?}");
    assert!(doubling.windows(2).all(|pair| pair[1] == (2 * pair[0]).min(PROBE_INTERVAL_MAX_NS)), "{gaps:?}");
    assert_eq!(gaps.last(), Some(&PROBE_INTERVAL_MAX_NS));
    assert!(outcome.lost.is_empty() && recovery.oldest().is_some_and(|sent| sent.number == 1));
    // The silence ends: all packets but the last are lost, and the path has changed.
    recovery.acknowledge(last_ns + MS, [41..=41].into_iter(), 0, &mut outcome).expect("it was sent");
    assert!(outcome.is_persistent && outcome.lost.len() == 40 && recovery.probes() == 0);
}

/// RFC 9002, section 7.6: there is no sample of the path yet.
#[test]
fn losses_before_the_first_round_trip_are_not_persistent() {
    for is_known in [false, true] {
        let mut recovery = Recovery::default();
        let mut outcome = Outcome::default();
        recovery.sent(0, 100, Some(0));
        if is_known {
            recovery.acknowledge(MS, [0..=0].into_iter(), 0, &mut outcome).expect("it was sent");
        }
        (1..5).for_each(|number| recovery.sent(number * SECOND, 100, Some(number)));
        outcome.clear();
        recovery.acknowledge(4 * SECOND + MS, [4..=4].into_iter(), 0, &mut outcome).expect("it was sent");
        assert_eq!(outcome.lost.len(), if is_known { 3 } else { 4 });
        assert_eq!(outcome.is_persistent, is_known);
    }
}

#[test]
fn a_round_trip_is_measured_even_if_the_newest_packet_is_an_acknowledgement() {
    let mut recovery = Recovery::default();
    let mut outcome = Outcome::default();
    recovery.sent(0, 100, Some(0));
    recovery.sent(3 * MS, 50, None);
    recovery.acknowledge(5 * MS, [0..=1].into_iter(), 0, &mut outcome).expect("they were sent");
    assert_eq!(recovery.rtt().min_ns(), Some(2 * MS), "from when the newest of them left");
    // A packet that needs no acknowledgement gives no sample alone, as its acknowledgement may have been delayed.
    recovery.sent(6 * MS, 100, Some(2));
    recovery.sent(6 * MS, 50, None);
    recovery.acknowledge(7 * MS, [3..=3].into_iter(), 0, &mut outcome).expect("it was sent");
    assert_eq!(recovery.rtt().latest_ns(), 2 * MS);
}

#[test]
fn acknowledgements_of_unsent_packets_are_errors_without_effect() {
    let mut recovery = sent(3);
    recovery.skip();
    recovery.sent(5 * MS, 100, Some(4));
    let mut outcome = Outcome::default();
    for claim in [5..=5, 3..=3, 0..=4, 0..=u64::MAX - 1, u64::MAX..=u64::MAX, 1 << 40..=1 << 41] {
        let result = recovery.acknowledge(6 * MS, [claim.clone()].into_iter(), 0, &mut outcome);
        assert_eq!(result, Err(NeverSent), "{claim:?}");
    }
    assert!(outcome.arrived.is_empty() && recovery.outstanding() == 4);
    assert_eq!(acknowledge(&mut recovery, 6 * MS, &[4..=4, 0..=2]), (vec![0, 1, 2, 4], vec![]));
}

/// Both the peer and the sender remember a bounded number of packets.
#[test]
fn memory_of_packets_is_bounded_by_the_window_of_numbers() {
    let mut recovery = Recovery::default();
    let mut outcome = Outcome::default();
    recovery.sent(0, 100, Some(0));
    let mut blocked = 0;
    for number in 1..5 * WINDOW {
        recovery.expire(&mut outcome);
        blocked += u64::from(!recovery.has_room(1));
        recovery.sent(number, 100, (number % 1000 == 0).then_some(number));
    }
    assert!(blocked > 0 && outcome.lost.first().is_some_and(|sent| sent.number == 0));
    assert!(outcome.lost.iter().all(|sent| sent.number + WINDOW < 5 * WINDOW));
    assert_eq!(recovery.next_number(), 5 * WINDOW);
}

#[test]
fn the_round_trip_is_smoothed_without_the_peers_delay() {
    let mut rtt = Rtt::default();
    rtt.sample(100_000, 0);
    assert_eq!((rtt.smoothed_ns(), rtt.min_ns()), (100_000, Some(100_000)));
    for _ in 0..200 {
        rtt.sample(100_000 + 500_000, 500_000);
    }
    assert_eq!(rtt.smoothed_ns(), 100_000);
    assert_eq!(rtt.probe_timeout_ns(), 100_000 + 200_000 + MS);
    // A claimed delay makes no sample shorter than the minimum. A clock that jumps does no harm.
    rtt.sample(100_000, u64::MAX);
    rtt.sample(u64::MAX, 0);
    assert_eq!((rtt.min_ns(), rtt.probe_timeout_ns()), (Some(100_000), PROBE_TIMEOUT_MAX_NS));
    // A round trip that is longer than the interval is waited for as well.
    assert_eq!(rtt.probe_interval_ns(3), PROBE_TIMEOUT_MAX_NS);
}

/// Sends a full window in a round trip, and acknowledges it.
fn round(cubic: &mut Cubic, now_ns: &mut u64, number: &mut u64, rtt_ns: u64, is_used: bool) {
    let sent_at_ns = *now_ns;
    *now_ns += rtt_ns;
    let window = cubic.window();
    let packets = window / 1000;
    let next_number = *number + packets;
    for _ in 0..packets {
        cubic.on_arrival(Arrival {
            now_ns: *now_ns,
            bytes: 1000,
            sent_at_ns,
            largest: *number,
            next_number,
            latest_ns: rtt_ns,
            min_ns: rtt_ns,
            smoothed_ns: rtt_ns,
            is_used,
        });
        *number += 1;
    }
}

#[test]
fn a_window_doubles_falls_to_seven_tenths_and_recovers_by_the_cubic_curve() {
    let mut cubic = Cubic::new(1000);
    let (mut now_ns, mut number) = (SECOND, 0);
    assert_eq!(cubic.window(), INITIAL_PACKETS * 1000);
    for _ in 0..5 {
        round(&mut cubic, &mut now_ns, &mut number, MS, true);
    }
    assert_eq!(cubic.window(), 32 * INITIAL_PACKETS * 1000);
    let before = cubic.window();
    cubic.on_loss(now_ns, now_ns - 1, false);
    assert_eq!(cubic.window(), before * 7 / 10);
    cubic.on_loss(now_ns + 1, now_ns - 1, false);
    assert_eq!(cubic.window(), before * 7 / 10, "one reduction for all packets of that window");
    assert!(!cubic.is_slow_start());
    // It takes at most K = cbrt(packets · 0.3 / 0.4) seconds to its former size. Over short paths Reno is faster.
    let began_ns = now_ns;
    while cubic.window() < before {
        round(&mut cubic, &mut now_ns, &mut number, 20 * MS, true);
    }
    let seconds = (now_ns - began_ns) as f64 / 1e9;
    let k = (before as f64 / 1000.0 * 0.3 / 0.4).cbrt();
    assert!((0.5 * k..1.2 * k).contains(&seconds), "{seconds} s, and K is {k}");
}

/// RFC 9438, section 4.3: the estimate of Reno's window grows by less than a packet a round until it is where the window was
/// before the last loss, also if that was lower than before the loss before it.
#[test]
fn reno_is_estimated_up_to_the_window_before_the_last_loss() {
    let mut cubic = Cubic::new(1000);
    let (mut now_ns, mut number) = (SECOND, 0);
    while cubic.window() < 300_000 {
        round(&mut cubic, &mut now_ns, &mut number, MS, true);
    }
    // Two losses in a row: by fast convergence the curve aims below the window before the second one.
    cubic.on_loss(now_ns, now_ns, false);
    let prior = cubic.window();
    cubic.on_loss(now_ns + 1, now_ns + 1, false);
    let aim = prior * 85 / 100;
    let alpha = 3.0 * 0.3 / 1.7;
    let mut gain_between = |cubic: &mut Cubic, low: u64, high: u64| {
        let (mut first, mut rounds) = (None, 0);
        while cubic.window() < high {
            round(cubic, &mut now_ns, &mut number, MS, true);
            if cubic.window() > low {
                first.get_or_insert(cubic.window());
                rounds += 1;
            }
        }
        (cubic.window() - first.expect("it passed there")) as f64 / (rounds - 1) as f64 / 1000.0
    };
    // With round trips of a millisecond the curve is much slower.
    let below = gain_between(&mut cubic, aim + 2000, prior - 2000);
    let above = gain_between(&mut cubic, prior + 2000, prior + 30_000);
    assert!(
        (below - alpha).abs() < 0.05 && (above - 1.0).abs() < 0.05,
        "{below} and {above} packets a round"
    );
}

#[test]
fn an_unused_window_does_not_grow_and_idle_time_gives_no_burst() {
    let mut cubic = Cubic::new(1000);
    let (mut now_ns, mut number) = (SECOND, 0);
    for _ in 0..20 {
        round(&mut cubic, &mut now_ns, &mut number, MS, false);
    }
    assert_eq!(cubic.window(), INITIAL_PACKETS * 1000);
    for _ in 0..4 {
        round(&mut cubic, &mut now_ns, &mut number, MS, true);
    }
    cubic.on_loss(now_ns, now_ns, false);
    round(&mut cubic, &mut now_ns, &mut number, MS, true);
    let window = cubic.window();
    round(&mut cubic, &mut now_ns, &mut number, MS, false);
    now_ns += 3600 * SECOND;
    round(&mut cubic, &mut now_ns, &mut number, MS, true);
    assert!(cubic.window() < window * 11 / 10, "{} after {window}", cubic.window());
}

#[test]
fn a_changed_path_starts_with_two_packets() {
    let mut cubic = Cubic::new(1000);
    cubic.on_loss(SECOND, SECOND, true);
    assert_eq!(cubic.window(), MINIMUM_PACKETS * 1000);
    assert!(cubic.is_slow_start(), "slow start up to the window of the loss");
    cubic.set_packet_bytes(9000);
    assert_eq!(cubic.window(), MINIMUM_PACKETS * 9000);
}

#[test]
fn slow_start_ends_when_the_queue_grows_before_a_loss() {
    let mut cubic = Cubic::new(1000);
    let (mut now_ns, mut number) = (SECOND, 0);
    let mut rtt_ns = 20 * MS;
    for _ in 0..3 {
        round(&mut cubic, &mut now_ns, &mut number, rtt_ns, true);
    }
    for _ in 0..12 {
        rtt_ns += 5 * MS;
        round(&mut cubic, &mut now_ns, &mut number, rtt_ns, true);
    }
    assert!(!cubic.is_slow_start());
    assert!(cubic.window() < 1000 * INITIAL_PACKETS * (1 << 10), "{}", cubic.window());
}

#[test]
fn a_token_bucket_allows_a_batch_and_then_the_rate() {
    let rate = Rate { window: 100_000, smoothed_ns: 10 * MS, is_slow_start: false };
    let mut pacer = Pacer::new(16_384);
    assert_eq!(pacer.room(SECOND, rate), 16_384);
    pacer.spend(16_384);
    let mut now_ns = SECOND;
    let mut left = 0;
    while now_ns < 2 * SECOND {
        if pacer.room(now_ns, rate) >= 1200 {
            pacer.spend(1200);
            left += 1200;
        }
        let at_ns = pacer.at_ns(1200, rate);
        now_ns = at_ns.max(now_ns + 1);
    }
    // 5/4 of the window in a round trip: 12.5 MB/s.
    assert!((12_400_000..12_600_000).contains(&left), "{left} bytes in a second");
    // Frequent calls do not slow it down.
    let slow = Rate { window: 2400, smoothed_ns: SECOND, is_slow_start: false };
    let mut pacer = Pacer::new(1200);
    pacer.room(0, slow);
    pacer.spend(1200);
    let full_ns = (0..).step_by(10_007).find(|now_ns| pacer.room(*now_ns, slow) >= 1200).expect("it fills");
    assert!((390 * MS..=410 * MS).contains(&full_ns), "{full_ns}");
}

/// The rate is asked once for each moment.
#[test]
fn packets_of_one_moment_share_what_the_bucket_holds() {
    let rate = Rate { window: 100_000, smoothed_ns: 10 * MS, is_slow_start: false };
    let mut pacer = Pacer::new(16_384);
    let mut batch = |now_ns| {
        let (mut packets, mut asked) = (0, 0);
        while pacer.permits(now_ns, 1200, || {
            asked += 1;
            rate
        }) {
            pacer.spend(1200);
            packets += 1;
        }
        (packets, asked)
    };
    // Once at the beginning, and once when the bucket seems to have too little.
    assert_eq!([batch(SECOND), batch(SECOND), batch(SECOND + MS)], [(13, 2), (0, 1), (11, 2)]);
}

/// Searches over a path with an MTU of `path` bytes.
fn search(size: &mut PacketSize, path: u16) -> u32 {
    let mut probes = 0;
    while let Some(bytes) = size.wanted(0) {
        probes += 1;
        assert!(probes < 100 && bytes > size.bytes());
        size.probe_sent(bytes);
        assert_eq!(size.wanted(0), None, "one probe at a time");
        if bytes <= path {
            assert!(size.probe_arrived(bytes));
        } else {
            size.probe_lost(bytes);
        }
    }
    probes
}

#[test]
fn the_packet_length_of_the_route_is_tried_at_once() {
    let mut size = PacketSize::new(8952);
    assert_eq!((search(&mut size, 9000), size.bytes()), (1, 8952));
}

#[test]
fn black_holes_are_detected_and_single_losses_are_ignored() {
    let mut size = PacketSize::new(8952);
    search(&mut size, 9000);
    for _ in 0..10 {
        assert!(!size.lost(8952) && !size.lost(8000));
        size.arrived(8952);
    }
    assert!(!size.lost(1000), "lost short packets prove nothing");
    size.arrived(1000);
    assert!(!size.lost(8952) && !size.lost(8952) && size.lost(8952));
    assert_eq!(size.bytes(), BASE_BYTES);
    search(&mut size, 1452);
    assert!((1452 - 16..=1452).contains(&size.bytes()), "{}", size.bytes());
    assert!(size.set_limit(1300) && size.bytes() == BASE_BYTES);
    search(&mut size, 9000);
    assert_eq!(size.bytes(), 1300);
}

#[test]
fn an_incomplete_mtu_search_is_repeated_after_ten_minutes() {
    let mut size = PacketSize::new(9000);
    search(&mut size, 1500);
    assert_eq!(size.wanted(599 * SECOND), None);
    assert_eq!(size.wanted(601 * SECOND), Some(9000));
}

proptest! {
    #[test]
    fn the_mtu_of_every_path_is_found_within_sixteen_bytes(limit: u16, path in BASE_BYTES..=LIMIT_BYTES) {
        let mut size = PacketSize::new(limit);
        search(&mut size, path);
        let most = limit.clamp(BASE_BYTES, LIMIT_BYTES).min(path);
        prop_assert!(size.bytes() <= most && most - size.bytes() <= 16, "{} of {most}", size.bytes());
    }

    #[test]
    fn windows_and_rates_handle_any_values(
        numbers in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u64>(), any::<bool>(), 0..4u8), 1..60),
    ) {
        let mut cubic = Cubic::new(1200);
        let mut pacer = Pacer::new(16_384);
        let mut rtt = Rtt::default();
        for (now_ns, bytes, other, flag, kind) in numbers {
            rtt.sample(other, now_ns);
            let rate = Rate { window: cubic.window(), smoothed_ns: rtt.smoothed_ns(), is_slow_start: flag };
            pacer.room(now_ns, rate);
            pacer.at_ns(u64::from(bytes), rate);
            match kind {
                0 => cubic.on_loss(now_ns, other, flag),
                _ => cubic.on_arrival(Arrival {
                    now_ns, bytes: bytes.into(), sent_at_ns: other, largest: other, next_number: other,
                    latest_ns: other, min_ns: other, smoothed_ns: rtt.smoothed_ns(), is_used: flag,
                }),
            }
            prop_assert!(cubic.window() >= MINIMUM_PACKETS * 1200 && cubic.window() <= 1 << 40);
        }
    }
}
