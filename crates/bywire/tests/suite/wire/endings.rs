//! When packets leave, and how connections end.

use bywire::{Confirm, DisconnectReason, Event, Priority, Rights, SendError};
use bywire_wire::batch::Batch;

use super::pair::Pair;

fn leaves(pair: &mut Pair) -> usize {
    let mut batch = Batch::new(64 * 1024, 64);
    pair.ends[0].transmit(pair.now_ns, &mut batch);
    batch.count()
}

/// The events of an end, as text.
fn told(pair: &mut Pair, end: usize) -> Vec<String> {
    let mut events = std::mem::take(&mut pair.events[end]);
    events.extend(std::iter::from_fn(|| pair.ends[end].poll()));
    let name = |event: Event| match event {
        Event::Message(message) => format!("message {}", message.payload.len()),
        Event::Disconnected { reason, .. } => format!("{reason:?}"),
        Event::Sent { result, .. } => format!("sent {result:?}"),
        Event::Put { result, .. } => format!("put {result:?}"),
        other => format!("{other:?}"),
    };
    events.into_iter().map(name).collect()
}

#[test]
fn the_first_message_after_a_poll_is_sent_at_once_and_others_are_batched() {
    let mut pair = Pair::new();
    pair.carry();
    let send = |pair: &mut Pair, priority, length: usize| {
        pair.ends[0].send(priority, &vec![1; length]).expect("room");
        let must_transmit = pair.ends[0].must_transmit();
        if must_transmit {
            leaves(pair);
        }
        must_transmit
    };
    assert!(send(&mut pair, Priority::Low, 10), "the first");
    assert!(!send(&mut pair, Priority::Low, 10), "gathered");
    assert!(!send(&mut pair, Priority::Low, 10), "gathered");
    assert!(send(&mut pair, Priority::High, 10), "high");
    let packet = usize::from(pair.ends[0].packet_bytes());
    let count = (0..1000).take_while(|_| !send(&mut pair, Priority::Low, 92)).count();
    assert!((packet / 100 - 2..=packet / 100 + 2).contains(&count), "a packet of {packet} bytes is full");
    assert!(!send(&mut pair, Priority::Low, 10));
    assert!(pair.ends[0].poll().is_none());
    assert!(send(&mut pair, Priority::Low, 10), "the first after a poll");
    pair.carry();
    assert_eq!(told(&mut pair, 1).len(), 7 + count);
}

#[test]
fn an_end_that_disconnects_continues_until_everything_is_delivered() {
    let mut pair = Pair::new();
    let long = 700_000;
    pair.ends[0].send_buffer(Priority::Low, vec![1; long], Confirm::Copied).expect("a token");
    pair.ends[0].send_buffer(Priority::Low, b"behind it".to_vec(), Confirm::Copied).expect("a token");
    pair.ends[1].send(Priority::High, b"too late").expect("room");
    pair.ends[0].begin_close();
    assert!(matches!(pair.ends[0].send(Priority::High, b"x"), Err(SendError::Disconnected(_))));
    pair.carry();
    assert!(!pair.ends[0].is_drained(), "the other end has no buffer yet");
    pair.ends[1].post_receive(Priority::Low, vec![0; long]);
    // As often as it takes to fill the window.
    for _ in 0..100 {
        pair.carry();
        let events: Vec<_> = std::iter::from_fn(|| pair.ends[1].poll()).collect();
        pair.events[1].extend(events);
    }
    assert!(pair.ends[0].is_drained());
    pair.ends[0].end(DisconnectReason::Here);
    pair.carry();
    let told_there: Vec<_> =
        told(&mut pair, 1).into_iter().filter(|text| !text.starts_with("BufferNeeded")).collect();
    assert_eq!(told_there, ["message 700000", "message 9", "Closed"]);
    assert_eq!(told(&mut pair, 0), ["sent Ok(())", "sent Ok(())", "Here"]);
}

#[test]
fn complete_messages_of_a_dead_end_are_delivered_without_a_buffer() {
    let mut pair = Pair::new();
    pair.ends[0].send(Priority::High, b"short").expect("room");
    pair.ends[0].send_buffer(Priority::High, vec![1; 10_000], Confirm::Copied).expect("a token");
    // Longer than the window: it cannot be whole.
    pair.ends[0].send_buffer(Priority::Low, vec![1; 500_000], Confirm::Copied).expect("a token");
    pair.carry();
    pair.ends[1].drain_and_end(DisconnectReason::Died);
    assert_eq!(told(&mut pair, 1), ["message 5", "message 10000", "Died"]);
}

#[test]
fn an_interrupted_put_writes_only_within_its_range() {
    let mut pair = Pair::new();
    let key = pair.ends[1].register(vec![0; 300_000], Rights { read: false, write: true });
    pair.ends[0].put(Priority::Low, (key, 50_000), vec![9; 200_000], Some(b"x")).expect("a token");
    // One flight of packets, and no more.
    pair.carry_now(0);
    assert!(pair.ends[1].poll().is_none());
    pair.ends[0].end(DisconnectReason::Here);
    pair.ends[1].drain_and_end(DisconnectReason::Died);
    assert_eq!(told(&mut pair, 1), ["Died"]);
    assert_eq!(told(&mut pair, 0), ["put Err(Disconnected(Here))", "Here"]);
    let region = pair.ends[1].region(key).expect("registered");
    let touched = region.iter().filter(|byte| **byte == 9).count();
    assert!(touched > 0 && touched < 200_000, "{touched}");
    assert!(region[50_000..50_000 + touched].iter().all(|byte| *byte == 9), "from its beginning on");
}

#[test]
fn the_window_of_a_busy_low_priority_lane_grows() {
    let mut pair = Pair::new();
    let length = 4 << 20;
    for _ in 0..2 {
        pair.ends[1].post_receive(Priority::Low, vec![0; length]);
        pair.ends[0].send_buffer(Priority::Low, vec![1; length], Confirm::Copied).expect("a token");
        pair.until(1, |event| matches!(event, Event::Message(_)).then_some(()));
    }
    assert!(pair.ends[1].open_large_window());
    assert!(!pair.ends[1].open_large_window(), "once");
    pair.carry();
    pair.ends[0].send_buffer(Priority::Low, vec![1; length - 8], Confirm::Copied).expect("a token");
    pair.carry();
    // All of it has arrived, although the program has taken nothing.
    assert!(pair.ends[1].memory_bytes() >= length);
    assert!(pair.ends[0].is_drained());
}

#[test]
fn a_silent_peer_is_detected_and_any_packet_keeps_it() {
    let mut pair = Pair::new();
    pair.carry();
    assert_eq!(pair.ends[0].unanswered_since_ns(), None);
    pair.ends[0].send(Priority::Low, b"hello?").expect("room");
    let asked_ns = pair.now_ns;
    assert_eq!(leaves(&mut pair), 1);
    pair.now_ns += 10_000_000_000;
    assert!(leaves(&mut pair) > 0, "it is asked again");
    assert_eq!(pair.ends[0].unanswered_since_ns(), Some(asked_ns));
    pair.carry();
    assert_eq!(pair.ends[0].unanswered_since_ns(), None);
}
