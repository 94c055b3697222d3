//! Lanes between machines: what is unsent, in flight, lost, acknowledged, waiting and told of credit is what a model of
//! every byte says. So are sets of ranges. Offsets of strangers are errors.

use std::collections::BTreeSet;
use std::ops::Range;

use bywire_wire::credit::Credit;
use bywire_wire::ranges::Ranges;
use bywire_wire::receiving::{BeyondCredit, Receiving, WAITING_RANGES_MAX};
use bywire_wire::sending::{NeverSent, Sending};
use proptest::collection::vec;
use proptest::prelude::*;

fn range(max: u64) -> impl Strategy<Value = Range<u64>> {
    (0..max, 0..40u64).prop_map(|(start, length)| start..start + length)
}

/// Runs of consecutive numbers.
fn runs(numbers: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Send(u64),
    Acknowledge(usize),
    Lose(usize),
    Credit(u64, u64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..50usize).prop_map(Step::Push),
        (1..60u64).prop_map(Step::Send),
        (0..20usize).prop_map(Step::Acknowledge),
        (0..20usize).prop_map(Step::Lose),
        (0..80u64, 0..200u64).prop_map(|(taken, limit)| Step::Credit(taken, limit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn ranges_match_a_set_of_numbers(
        steps in vec((any::<bool>(), range(200)), 0..60), asked in range(220),
    ) {
        let mut ranges = Ranges::default();
        let mut model = BTreeSet::new();
        for (inserts, range) in steps {
            if inserts {
                model.extend(range.clone());
                ranges.insert(range);
            } else {
                model.retain(|number| !range.contains(number));
                ranges.remove(range);
            }
            prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), runs(model.iter().copied()));
            prop_assert_eq!((ranges.is_empty(), ranges.count()), (model.is_empty(), ranges.iter().count()));
        }
        let touched = model.iter().any(|number| (asked.start..=asked.end).contains(number) || number + 1 == asked.start);
        prop_assert_eq!(ranges.touches(&asked), touched);
        let gaps = runs(asked.clone().filter(|number| !model.contains(number)));
        prop_assert_eq!(ranges.gaps(asked).collect::<Vec<_>>(), gaps);
    }

    #[test]
    fn a_sender_tracks_the_state_of_every_byte(steps in vec(steps(), 0..120), limit in 0..100u64) {
        let mut lane = Sending::new(limit);
        let (mut end, mut limit, mut taken, mut next) = (0u64, limit, 0, 0u64);
        let (mut acknowledged, mut lost) = (BTreeSet::new(), BTreeSet::new());
        let (mut pieces, mut back) = (Vec::new(), 0);
        let mut left: Vec<Range<u64>> = Vec::new();
        for step in steps {
            match step {
                Step::Push(length) => {
                    let piece = bytes(end..end + length as u64);
                    end += length as u64;
                    pieces.push((end, piece.clone()));
                    prop_assert_eq!(lane.push(piece), Ok(end));
                }
                Step::Send(room) => {
                    let expected = lost.first().copied().or((next < end.min(limit)).then_some(next));
                    let piece = lane.peek(room);
                    prop_assert_eq!(piece.as_ref().map(|range| range.start), expected);
                    prop_assert_eq!(lane.has_something(), expected.is_some());
                    let Some(range) = piece else { continue };
                    prop_assert!(range.end - range.start <= room && range.end <= limit);
                    let mut packet = vec![7];
                    lane.copy(&range, &mut packet);
                    prop_assert_eq!(&packet[1..], bytes(range.clone()));
                    lane.sent(&range);
                    lost.retain(|offset| !range.contains(offset));
                    next = next.max(range.end);
                    left.push(range);
                }
                Step::Acknowledge(index) => {
                    let Some(range) = left.get(index).cloned() else { continue };
                    acknowledged.extend(range.clone());
                    lost.retain(|offset| !range.contains(offset));
                    lane.acknowledge(range);
                }
                Step::Lose(index) => {
                    let Some(range) = left.get(index).cloned() else { continue };
                    lost.extend(range.clone().filter(|offset| !acknowledged.contains(offset)));
                    lane.lose(range);
                }
                Step::Credit(new_taken, new_limit) => {
                    let known = lane.credit(new_taken, new_limit);
                    prop_assert_eq!(known, if new_taken > next { Err(NeverSent) } else { Ok(()) });
                    if known.is_ok() {
                        (taken, limit) = (taken.max(new_taken), limit.max(new_limit));
                        acknowledged.extend(0..new_taken);
                        lost.retain(|offset| *offset >= new_taken);
                    }
                }
            }
            let floor = (0..end).find(|offset| !acknowledged.contains(offset)).unwrap_or(end);
            prop_assert_eq!((lane.acknowledged(), lane.taken(), lane.limit()), (floor, taken, limit));
            prop_assert_eq!((lane.outstanding(), lane.has_lost()), (next - floor, !lost.is_empty()));
            while let Some(piece) = lane.take_back() {
                // Empty pieces are released at once, before waiting ones.
                if piece.is_empty() {
                    continue;
                }
                while pieces[back].1.is_empty() {
                    back += 1;
                }
                prop_assert_eq!(&piece, &pieces[back].1);
                prop_assert!(pieces[back].0 <= floor, "memory was released before its bytes had arrived");
                back += 1;
            }
        }
    }

    #[test]
    fn a_receiver_yields_bytes_in_order_for_any_arrival_order(
        window in 1..300u64, steps in vec((0..700u64, 0..90u64, 0..100u64), 0..150),
    ) {
        let mut lane = Receiving::new(window);
        let (mut arrived, mut taken, mut limit) = (BTreeSet::new(), 0, window);
        for (offset, length, share) in steps {
            let offset = taken + offset % (window + 20);
            let range = offset..offset + length;
            let result = lane.receive(offset, &bytes(range.clone()));
            if range.end > limit {
                prop_assert_eq!(result, Err(BeyondCredit));
            } else {
                prop_assert_eq!(result, Ok(()));
                arrived.extend(range);
            }
            let end = (taken..).find(|offset| !arrived.contains(offset)).expect("there is always another number");
            prop_assert_eq!(lane.arrived(), end);
            let (first, second) = lane.peek();
            prop_assert_eq!([first, second].concat(), bytes(taken..end));
            prop_assert!(lane.memory_bytes() as u64 <= window.next_power_of_two());
            lane.take((end - taken) * share / 99);
            taken += (end - taken) * share / 99;
            if share > 50 {
                let told = lane.credit().tell();
                limit = limit.max(taken + window);
                prop_assert_eq!(told, (taken, limit));
            }
            if share > 90 {
                lane.trim();
            }
        }
    }

    #[test]
    fn credit_is_announced_once_a_quarter_is_free_and_again_after_a_loss(window in 4..10_000u64, takes in vec(1..500u64, 1..50)) {
        let mut credit = Credit::new(window);
        let (mut taken, mut limit) = (0, window);
        for bytes in takes {
            let bytes = bytes.min(limit - taken);
            credit.take(bytes);
            taken += bytes;
            prop_assert_eq!(credit.is_due(), taken + window - limit >= (window / 4).max(1));
            if credit.is_due() {
                limit = taken + window;
                prop_assert_eq!(credit.tell(), (taken, limit));
                prop_assert!(!credit.is_due());
                credit.lose();
                prop_assert!(credit.is_due());
                prop_assert_eq!(credit.tell(), (taken, limit));
            }
        }
    }
}

#[test]
fn a_waiting_sender_is_told_of_the_first_freed_byte() {
    let mut credit = Credit::new(1000);
    credit.request_report();
    assert!(!credit.is_due(), "nothing was taken");
    credit.take(1);
    assert!(credit.is_due());
    assert_eq!(credit.tell(), (1, 1001));
    credit.take(1);
    assert!(!credit.is_due());
}

#[test]
fn a_smaller_window_never_revokes_announced_credit() {
    let mut credit = Credit::new(1000);
    credit.set_window(10);
    credit.take(500);
    assert_eq!(credit.tell(), (500, 1000));
    credit.take(495);
    assert_eq!(credit.tell(), (995, 1005));
}

/// A peer that sends every other byte has to send bytes without room again. The memory for it is bounded.
#[test]
fn waiting_ranges_are_bounded() {
    let mut lane = Receiving::new(1 << 20);
    let mut offset = 1;
    while lane.has_place(1) {
        assert!(lane.is_apart(&(offset..offset + 1)));
        lane.receive(offset, &[byte(offset)]).expect("within the credit");
        offset += 2;
    }
    assert_eq!(offset, 1 + 2 * WAITING_RANGES_MAX as u64);
    let touching = [0..1, 2..3, 1..2, 0..9, offset - 1..offset + 5];
    assert!(
        touching.iter().all(|range| !lane.is_apart(range)),
        "ranges that touch another one are always accepted"
    );
    assert!(lane.is_apart(&(offset..offset + 1)) && !lane.is_apart(&(offset..offset)));
    lane.receive(0, &bytes(0..offset)).expect("within the credit");
    assert_eq!(lane.arrived(), offset);
    assert!(lane.has_place(WAITING_RANGES_MAX) && !lane.has_place(WAITING_RANGES_MAX + 1));
}

#[test]
fn offsets_at_the_limits_of_numbers_are_errors() {
    let mut lane = Receiving::new(100);
    for offset in [100, 101, u64::MAX - 1, u64::MAX] {
        assert_eq!(lane.receive(offset, &[1]), Err(BeyondCredit), "{offset}");
    }
    assert_eq!(lane.receive(99, &[1]), Ok(()));
    let mut lane = Sending::<Vec<u8>>::new(0);
    assert_eq!(lane.credit(0, u64::MAX), Ok(()));
    assert_eq!(lane.credit(1, u64::MAX), Err(NeverSent));
    lane.acknowledge(0..u64::MAX);
    lane.lose(0..u64::MAX);
    assert!(!lane.has_something());
}
