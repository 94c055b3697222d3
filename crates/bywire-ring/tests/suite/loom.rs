//! Every interleaving (within loom's bounds) of the rings' own code.

use bywire_ring::doorbell::{Ringer, Sleeper, Wants};
use bywire_ring::geometry::LaneLayout;
use bywire_ring::header::{Header, PROMPT};
use bywire_ring::lane::{Consumer, Producer, PushError};

use crate::model::Modelled;

/// Two slots at 4096 and a bulk area of two lines at 8192, of which only the first word of each is modelled.
const LAYOUT: LaneLayout = LaneLayout {
    slots_log2: 1,
    slots_offset: 4096,
    bulk_bytes: 128,
    bulk_offset: 8192,
    fragment_bytes: 64,
    credit_offset: 64,
};

fn ring_words() -> Vec<usize> {
    vec![4096, 4104, 4160, 4168, 8192, 8256]
}

fn header(length: u16) -> Header {
    Header { kind: PROMPT, length, check: 0 }
}

/// The header of the next record, which the consumer awaits.
fn next_header(consumer: &mut Consumer, forward: &Modelled) -> Header {
    loop {
        match consumer.peek(forward).expect("no corruption") {
            Some(header) => return header,
            None => loom::thread::yield_now(),
        }
    }
}

/// One end pushes three values, and the other one takes them in order.
fn three_values_cross(
    push: fn(&mut Producer, &Modelled, &Modelled, u64) -> Result<(), PushError>,
    take: fn(&Consumer, &Modelled) -> u64,
) {
    loom::model(move || {
        let (forward, back) = (Modelled::new(ring_words()), Modelled::new([64]));
        let (producer_forward, producer_back) = (forward.clone(), back.clone());
        let thread = loom::thread::spawn(move || {
            let mut producer = Producer::new(LAYOUT);
            for value in 1..=3 {
                while push(&mut producer, &producer_forward, &producer_back, value) == Err(PushError::Full) {
                    loom::thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(LAYOUT);
        for expected in 1..=3 {
            let header = next_header(&mut consumer, &forward);
            assert_eq!(take(&consumer, &forward), expected);
            consumer.advance(&back, header);
        }
        thread.join().expect("producer");
    });
}

#[test]
fn inline_records_arrive_whole_and_in_order_over_several_laps() {
    let push = |producer: &mut Producer, forward: &Modelled, back: &Modelled, value| {
        let pushed = producer.push_inline(forward, back, header(8), &[value]);
        if pushed.is_ok() {
            producer.claim_ahead(forward, back);
        }
        pushed
    };
    three_values_cross(push, |consumer, forward| consumer.words(forward)[0]);
}

#[test]
fn a_bulk_payload_is_never_overwritten_before_it_is_read() {
    let push = |producer: &mut Producer, forward: &Modelled, back: &Modelled, value: u64| {
        producer.push_bulk(forward, back, header(0), &[], &value.to_ne_bytes())
    };
    three_values_cross(push, |consumer, forward| {
        let mut payload = [0; 8];
        consumer.read_bulk(forward, &mut payload);
        u64::from_ne_bytes(payload)
    });
}

/// A sleeper that armed and saw nothing must be rung, whatever the interleaving.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let (forward, back) = (Modelled::new(ring_words()), Modelled::new([64]));
        let page = Modelled::new([0]);
        let (sender_forward, sender_back, sender_page) = (forward.clone(), back.clone(), page.clone());
        let thread = loom::thread::spawn(move || {
            let mut producer = Producer::new(LAYOUT);
            producer.push_inline(&sender_forward, &sender_back, header(8), &[1]).expect("room");
            Ringer::default().must_ring_for_records(&sender_page)
        });
        let mut sleeper = Sleeper::default();
        sleeper.arm(&page, Wants { records: true, credit: false });
        let seen = Consumer::new(LAYOUT).peek(&forward).expect("no corruption").is_some();
        let rung = thread.join().expect("sender");
        assert!(seen || rung, "the receiver sleeps on a message and nobody rang");
    });
}

/// The same for a producer that sleeps until there is room.
#[test]
fn no_credit_wake_up_is_lost() {
    loom::model(|| {
        let (forward, back) = (Modelled::new(ring_words()), Modelled::new([64]));
        let page = Modelled::new([0]);
        let mut producer = Producer::new(LAYOUT);
        producer.push_inline(&forward, &back, header(8), &[1]).expect("room");
        producer.push_inline(&forward, &back, header(8), &[2]).expect("room");
        let (receiver_forward, receiver_back, receiver_page) = (forward.clone(), back.clone(), page.clone());
        let thread = loom::thread::spawn(move || {
            let mut consumer = Consumer::new(LAYOUT);
            let header = consumer.peek(&receiver_forward).expect("no corruption").expect("published");
            assert!(consumer.advance(&receiver_back, header));
            Ringer::default().must_ring_for_credit(&receiver_page)
        });
        let mut sleeper = Sleeper::default();
        sleeper.arm(&page, Wants { records: false, credit: true });
        let room = producer.push_inline(&forward, &back, header(8), &[3]).is_ok();
        let rung = thread.join().expect("receiver");
        assert!(room || rung, "the producer sleeps with room and nobody rang");
    });
}

/// One peer both publishes a record and gives credit, and rings for either through the same memory of what
/// it has rung. However often the sleeper wakes for the one, it does not sleep through the other.
#[test]
fn no_wake_up_is_lost_between_a_record_and_credit() {
    loom::model(|| {
        // Ours is full; theirs is empty.
        let (ours, theirs) =
            (Modelled::new(ring_words()), Modelled::new(ring_words().into_iter().chain([64])));
        let ours_credit = Modelled::new([64]);
        let page = Modelled::new([0]);
        // A lock, for the kernel's pipe: what was silenced before arming was rung before it.
        let doorbell = loom::sync::Arc::new(loom::sync::Mutex::new(false));
        let mut producer = Producer::new(LAYOUT);
        producer.push_inline(&ours, &theirs, header(8), &[1]).expect("room");
        producer.push_inline(&ours, &theirs, header(8), &[2]).expect("room");
        let (peer_ours, peer_theirs, peer_page) = (ours.clone(), theirs.clone(), page.clone());
        let (peer_credit, peer_doorbell) = (ours_credit.clone(), doorbell.clone());
        let thread = loom::thread::spawn(move || {
            let mut ringer = Ringer::default();
            let ring = |is_due: bool| {
                if is_due {
                    *peer_doorbell.lock().expect("no panic") = true;
                }
            };
            let mut consumer = Consumer::new(LAYOUT);
            let header_seen = consumer.peek(&peer_ours).expect("no corruption").expect("published");
            assert!(consumer.advance(&peer_theirs, header_seen));
            ring(ringer.must_ring_for_credit(&peer_page));
            Producer::new(LAYOUT).push_inline(&peer_theirs, &peer_credit, header(8), &[3]).expect("room");
            ring(ringer.must_ring_for_records(&peer_page));
        });
        let (mut sleeper, mut has_room, mut has_record) = (Sleeper::default(), false, false);
        let sleeps = loop {
            // What rang before is silenced, then armed again.
            *doorbell.lock().expect("no panic") = false;
            sleeper.arm(&page, Wants { records: true, credit: true });
            let room = !has_room && producer.push_inline(&ours, &theirs, header(8), &[4]).is_ok();
            let record = !has_record && Consumer::new(LAYOUT).peek(&theirs).expect("no corruption").is_some();
            (has_room, has_record) = (has_room | room, has_record | record);
            if has_room && has_record {
                break false;
            }
            if !room && !record {
                break true;
            }
            sleeper.disarm(&page);
        };
        thread.join().expect("peer");
        let is_rung = *doorbell.lock().expect("no panic");
        assert!(
            !sleeps || is_rung,
            "asleep, with room {has_room} and a record {has_record}, and nobody rang"
        );
    });
}
