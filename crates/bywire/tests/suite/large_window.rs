//! Peers that are sent much data: their payloads move to a large bulk area, and nothing else changes.

use std::collections::VecDeque;

use bywire::{
    Confirm, Event, Geometry, Key, LaneGeometry, Peer, Port, PortOptions, Priority, Rights, SendError,
};
use bywire_testing::Tier;

use crate::ports::{
    PortDirectory, Random, event, meet, messages_until_closed, pattern, post_needed, until, until_ended,
};

/// Mappings of large windows: one by the writer, one by the reader.
fn areas() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.lines().filter(|line| line.contains("bywire-bulk")).count()
}

/// Sends one long message of low priority and receives it at the other end.
fn carry(from: &mut Port, peer: Peer, to: &mut Port, length: usize) {
    from.send_buffer(peer, Priority::Low, pattern(length, 1), Confirm::Delivered).expect("token");
    let (mut sent, mut received) = (false, false);
    until(|| {
        match from.poll() {
            Some(Event::Sent { result: Ok(()), .. }) => sent = true,
            None => {}
            Some(other) => panic!("{other:?}"),
        }
        match to.poll() {
            Some(Event::Message(message)) => {
                assert_eq!(&message.payload[..], pattern(length, 1));
                received = true;
            }
            None => {}
            Some(other) => assert!(post_needed(to, &other), "{other:?}"),
        }
        sent && received
    });
}

/// Enough to fill a lane of the default size more than eight times.
const GROWTH_BYTES: usize = 2 << 20;

/// Two ports. The first one writes through a large window.
fn pair_with_large_window(place: &PortDirectory, options: &PortOptions) -> (Port, Peer, Port, Peer) {
    let before = areas();
    let (mut a, to_b, mut b, to_a) = place.pair(options);
    carry(&mut a, to_b, &mut b, GROWTH_BYTES);
    assert_eq!(areas() - before, 2, "the window is large by now");
    (a, to_b, b, to_a)
}

/// One direction of mixed traffic, and its expected results.
struct Traffic {
    random: Random,
    key: Key,
    made: usize,
    left: usize,
    /// Messages of each priority that were sent and have not arrived.
    messages: [VecDeque<Vec<u8>>; 2],
    /// Of low priority. Any of them may be lost.
    datagrams: VecDeque<Vec<u8>>,
    notes: VecDeque<Vec<u8>>,
    gets: usize,
    completions: usize,
}

const REGION: usize = 50_000;

impl Traffic {
    fn new(seed: u64, key: Key) -> Self {
        Self {
            random: Random(seed),
            key,
            made: 0,
            left: 400,
            messages: Default::default(),
            datagrams: VecDeque::new(),
            notes: VecDeque::new(),
            gets: 0,
            completions: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0
            && self.messages.iter().all(VecDeque::is_empty)
            && self.notes.is_empty()
            && (self.gets, self.completions) == (0, 0)
    }

    fn send(&mut self, port: &mut Port, peer: Peer) {
        if self.left == 0 {
            return;
        }
        self.made += 1;
        let priority = [Priority::Low, Priority::Low, Priority::High][self.random.draw(3)];
        let outcome = match self.random.draw(10) {
            0..4 => {
                let length = [self.random.draw(57), self.random.draw(4097)][self.random.draw(2)];
                let bytes = pattern(length, self.made);
                port.send(peer, priority, &bytes).map(|()| self.messages[priority as usize].push_back(bytes))
            }
            4..7 => {
                let length = [4096, 40_000, 300_000][self.random.draw(3)];
                let bytes = pattern(self.random.draw(length), self.made);
                let sent = port.send_buffer(peer, priority, bytes.clone(), Confirm::Delivered);
                sent.map_err(|unsent| unsent.error).map(|_| {
                    self.messages[priority as usize].push_back(bytes);
                    self.completions += 1;
                })
            }
            7 => {
                let bytes = pattern(self.random.draw(4097), self.made);
                port.send_datagram(peer, Priority::Low, &bytes).map(|sent| {
                    self.datagrams.extend(sent.then_some(bytes));
                })
            }
            // One note at a time, so that its data is still there when the note arrives.
            8 if self.notes.is_empty() => {
                let length = self.random.draw(REGION);
                let mut note = pattern(8, self.made);
                note[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                let put = port.put(peer, priority, (self.key, 0), pattern(length, self.made), Some(&note));
                put.map_err(|unsent| unsent.error).map(|_| {
                    note.extend((self.made as u64).to_ne_bytes());
                    self.notes.push_back(note);
                    self.completions += 1;
                })
            }
            _ => {
                let got = port.get(peer, priority, (self.key, 0), vec![0; self.random.draw(REGION)]);
                got.map_err(|unsent| unsent.error).map(|_| self.gets += 1)
            }
        };
        match outcome {
            Ok(()) => self.left -= 1,
            Err(SendError::Full | SendError::NoToken) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Handles an event of the sending end.
    fn completed(&mut self, event: Event) {
        match event {
            Event::Sent { result: Ok(()), .. } | Event::Put { result: Ok(()), .. } => self.completions -= 1,
            Event::Got { result: Ok(()), .. } => self.gets -= 1,
            Event::Room { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// Handles an event of the receiving end.
    fn arrived(&mut self, port: &mut Port, event: Event) {
        match event {
            Event::Message(message) => {
                let expected = self.messages[message.priority as usize].pop_front();
                assert!(expected.is_some_and(|expected| expected == message.payload[..]));
                port.recycle(message.payload);
            }
            Event::Datagram(datagram) => {
                while self.datagrams.pop_front().expect("one of ours, in order") != datagram.payload[..] {}
            }
            Event::Notified { note, .. } => {
                let expected = self.notes.pop_front().expect("one of ours");
                assert_eq!(&expected[..8], &note[..]);
                let length = u32::from_ne_bytes(note[..4].try_into().expect("four")) as usize;
                let seed = u64::from_ne_bytes(expected[8..].try_into().expect("eight")) as usize;
                assert_eq!(port.region(self.key).expect("ours")[..length], pattern(length, seed));
            }
            other => assert!(post_needed(port, &other), "{other:?}"),
        }
    }
}

#[test]
fn all_kinds_of_transfers_stay_correct_across_the_move() {
    for (seed, integrity) in [(1, false), (2, true), (3, false), (4, true), (5, false), (6, false)] {
        let place = PortDirectory::new();
        let before = areas();
        let (mut a, to_b, mut b, _) = place.pair(&PortOptions { integrity, ..place.options() });
        let key = b.register(vec![0; REGION], Rights { read: true, write: true }).expect("region");
        let mut traffic = Traffic::new(seed, key);
        until(|| {
            // So neither end is always ahead.
            for _ in 0..traffic.random.draw(4) {
                traffic.send(&mut a, to_b);
            }
            for _ in 0..traffic.random.draw(4) {
                if let Some(event) = a.poll() {
                    traffic.completed(event);
                }
            }
            for _ in 0..traffic.random.draw(8) {
                if let Some(event) = b.poll() {
                    traffic.arrived(&mut b, event);
                }
            }
            traffic.is_over()
        });
        assert_eq!(areas() - before, 2, "seed {seed}: its window became large");
    }
}

#[test]
fn no_window_becomes_large_if_forbidden_or_useless() {
    let place = PortDirectory::new();
    let large = LaneGeometry { slots: 256, bulk_bytes: 4 << 20 };
    let mut geometry = Geometry::default();
    geometry.lanes[2] = large;
    let forbidden = PortOptions { large_window_peers_max: 0, ..place.options() };
    let useless = PortOptions { geometry, ..place.options() };
    // A window grows once its lane has been filled more than eight times.
    for (options, length) in [(forbidden, 2 * GROWTH_BYTES), (useless, 40 << 20)] {
        let before = areas();
        let (mut a, to_b, mut b, _) = place.pair(&options);
        for _ in 0..Tier::current().pick([1, 1, 3]) {
            carry(&mut a, to_b, &mut b, length);
        }
        assert_eq!(areas(), before);
    }
}

#[test]
fn at_most_sixteen_peers_have_large_windows_and_ended_ones_are_replaced() {
    let place = PortDirectory::new();
    let before = areas();
    let mut hub = place.open(place.options());
    let mut peers: VecDeque<(Port, Peer)> = (0..18)
        .map(|_| {
            let mut port = place.open(place.options());
            let (to_port, _) = meet(&mut hub, &mut port);
            (port, to_port)
        })
        .collect();
    for (port, to_port) in &mut peers {
        carry(&mut hub, *to_port, port, GROWTH_BYTES);
    }
    assert_eq!(areas() - before, 2 * 16);
    for ended in 0..2 {
        let (port, to_port) = peers.pop_front().expect("sixteen of them have one");
        if ended == 0 {
            drop(port);
            until(|| matches!(hub.poll(), Some(Event::Disconnected { peer, .. }) if peer == to_port));
        } else {
            hub.disconnect(to_port);
            assert!(matches!(hub.poll(), Some(Event::Disconnected { .. })));
            drop(port);
        }
        assert_eq!(areas() - before, 2 * 15);
        let (port, to_port) = peers.back_mut().expect("no large window yet");
        carry(&mut hub, *to_port, port, GROWTH_BYTES);
        assert_eq!(areas() - before, 2 * 16);
        peers.rotate_right(1);
    }
}

/// The area was shared, but then there was no room for the record that moves there.
#[test]
fn a_peer_that_ends_before_the_move_frees_its_slot() {
    let place = PortDirectory::new();
    let geometry = Geometry { lanes: [LaneGeometry { slots: 8, bulk_bytes: 4096 }; 3], fragment_bytes: 512 };
    let options = PortOptions { geometry, large_window_peers_max: 1, ..place.options() };
    let before = areas();
    let (mut a, to_b, mut b, _) = place.pair(&options);
    // The lane never moves, as no send finds it full.
    for round in 0..100 {
        a.send(to_b, Priority::Low, &pattern(500, round)).expect("room");
        assert!(matches!(event(&mut [&mut b, &mut a]), Event::Message(_)));
    }
    assert_eq!(areas(), before);
    while a.send(to_b, Priority::Low, b"x").is_ok() {}
    a.poll();
    assert_eq!(areas() - before, 1, "shared, and not taken yet");
    let mut c = place.open(options.clone());
    let (to_c, _) = meet(&mut a, &mut c);
    let outgoing = |a: &mut Port, c: &mut Port| carry(a, to_c, c, 100_000);
    outgoing(&mut a, &mut c);
    assert_eq!(areas() - before, 1, "the only place is taken");
    a.disconnect(to_b);
    until(|| matches!(a.poll(), Some(Event::Disconnected { .. })));
    outgoing(&mut a, &mut c);
    assert_eq!(areas() - before, 2, "and given back");
}

/// Messages through a large window need the same posted buffers, and take the same ones, as other messages.
#[test]
fn a_message_through_a_large_window_takes_a_posted_buffer_like_any_other() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = pair_with_large_window(&place, &place.options());
    for length in [4097, 8000, 32_768, 32_769] {
        a.send_buffer(to_b, Priority::Low, pattern(length, 2), Confirm::Copied).expect("token");
        let mut needed = false;
        until(|| {
            a.poll();
            match b.poll() {
                Some(Event::BufferNeeded { length_bytes, .. }) => {
                    assert_eq!(length_bytes, length as u64);
                    needed = true;
                    b.post_receive(Priority::Low, vec![0; 40_001]).expect("token");
                }
                Some(Event::Message(message)) => {
                    assert_eq!(&message.payload[..], pattern(length, 2));
                    let buffer = message.payload.into_buffer().expect("a long one");
                    assert_eq!(buffer.as_ref().len(), 40_001, "the posted one");
                    return true;
                }
                None => {}
                Some(other) => panic!("{other:?}"),
            }
            false
        });
        assert!(needed);
    }
}

/// Room for a small fragment must not keep a sender awake that waits to send a large one.
#[test]
fn a_sender_to_a_stopped_peer_with_a_large_window_can_sleep() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = pair_with_large_window(&place, &place.options());
    // Its first message waits for a buffer that is never posted.
    for _ in 0..60 {
        a.send_buffer(to_b, Priority::Low, pattern(100_000, 3), Confirm::Copied).expect("token");
    }
    let mut sent = 0;
    for _ in 0..2000 {
        sent += u32::from(matches!(a.poll(), Some(Event::Sent { .. })));
        assert!(matches!(b.poll(), None | Some(Event::BufferNeeded { .. })));
    }
    assert!(sent > 30 && sent < 60, "as many as fit: {sent}");
    assert!(a.arm(), "there is nothing to do");
    // It wakes once there is work.
    b.post_receive(Priority::Low, vec![0; 100_000]).expect("token");
    let mut received = 0;
    until(|| {
        if let Some(Event::Message(message)) = b.poll() {
            b.post_receive(Priority::Low, message.payload.into_buffer().expect("posted")).expect("token");
            received += 1;
        }
        // Sleeps until the doorbell rings.
        while let Some(event) = a.wait(Some(std::time::Duration::from_micros(10))).expect("wait") {
            assert!(matches!(event, Event::Sent { .. }));
        }
        received == 60
    });
}

#[test]
fn a_whole_message_in_the_bulk_area_survives_its_sender() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = pair_with_large_window(&place, &place.options());
    a.send_buffer(to_b, Priority::Low, pattern(1 << 20, 4), Confirm::Copied).expect("token");
    until(|| matches!(a.poll(), Some(Event::Sent { .. })));
    a.send(to_b, Priority::Low, b"behind it").expect("room");
    drop(a);
    assert!(messages_until_closed(&mut b) == [pattern(1 << 20, 4), b"behind it".to_vec()]);
}

/// The record that moves, and the packet with the memory, are still under way when the sender closes.
#[test]
fn messages_sent_across_the_move_arrive_after_their_sender_has_closed() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = place.pair(&place.options());
    let before = areas();
    // Fills the small area again and again, until the sender has moved.
    let mut sent = 0;
    let mut expected = 0;
    while areas() == before {
        while a.send(to_b, Priority::Low, &pattern(4000, sent)).is_ok() {
            sent += 1;
        }
        a.poll();
        if areas() == before {
            for _ in 0..12 {
                let Event::Message(message) = event(&mut [&mut b]) else { panic!("a message") };
                assert_eq!(&message.payload[..], pattern(4000, expected));
                b.recycle(message.payload);
                expected += 1;
            }
        }
    }
    for _ in 0..50 {
        a.send(to_b, Priority::Low, &pattern(4000, sent)).expect("room in the new area");
        sent += 1;
    }
    assert_eq!(areas() - before, 1, "the other end has not heard of it");
    drop(a);
    for message in messages_until_closed(&mut b) {
        assert_eq!(message, pattern(4000, expected));
        expected += 1;
    }
    assert_eq!(expected, sent);
}

/// The library's own memory for messages of ended peers does not become a posted buffer.
#[test]
fn half_a_message_of_an_ended_peer_leaves_no_buffer_behind() {
    let place = PortDirectory::new();
    let mut b = place.open(place.options());
    for round in 0..2 {
        let mut a = place.open(place.options());
        let (to_b, _) = meet(&mut a, &mut b);
        a.send_buffer(to_b, Priority::Low, pattern(100_000, round), Confirm::Copied).expect("token");
        (0..100).for_each(|_| assert!(a.poll().is_none(), "more than the lane takes"));
        until(|| matches!(b.poll(), Some(Event::BufferNeeded { .. })));
        drop(a);
        until_ended(&mut b, |_, event| panic!("{event:?}"));
    }
}
