//! Tagged endpoints exchange messages of every kind: payloads of every length before and after their receive, order,
//! truncation, claims, cancels, limits and endings.

mod fixture;
mod hostile;

use bywire_match::head::{HEAD_BYTES_MAX, Head};
use bywire_match::{Endpoint, Envelope, Event, Limits, Refused, Selector, Send};

use fixture::{Buffer, FRAGMENT_BYTES, Node, Pair, any, limits, message, payload};

/// The bytes and the receive's name of what a node has received.
fn received(node: &mut Node) -> Vec<(u32, Vec<u8>)> {
    let events = std::iter::from_fn(|| node.poll());
    events
        .filter_map(|event| match event {
            Event::Received { receive, envelope, written } => {
                assert_eq!(written, receive.bytes.len() as u64);
                assert!(written <= envelope.length);
                Some((receive.name, receive.bytes))
            }
            _ => None,
        })
        .collect()
}

/// The sends that have completed.
fn sent(node: &mut Node) -> Vec<u64> {
    let events = std::iter::from_fn(|| node.poll());
    events
        .filter_map(|event| if let Event::Sent { send, .. } = event { Some(send.0) } else { None })
        .collect()
}

#[test]
fn payloads_of_every_length_arrive_before_and_after_their_receive() {
    let mut pair = Pair::new(limits());
    for length in [0, 1, 8, 100, 471, 472, 473, 512, 513, 1_000, 4_096, 100_000] {
        for is_expected in [true, false] {
            for is_synchronous in [true, false] {
                let receive = Buffer::new(1, 100_000);
                let selector = any(5);
                if is_expected {
                    pair.target.endpoint.receive(selector, receive).expect("room");
                    pair.send(Send { is_synchronous, ..message(5, length) });
                    pair.exchange();
                } else {
                    pair.send(Send { is_synchronous, ..message(5, length) });
                    pair.exchange();
                    let completes = length <= 472 && !is_synchronous;
                    assert_eq!(sent(&mut pair.source).len(), usize::from(completes), "{length} bytes");
                    pair.target.endpoint.receive(selector, receive).expect("room");
                    pair.exchange();
                }
                let completed = sent(&mut pair.source).len();
                assert_eq!(completed == 1, is_expected || is_synchronous || length > 472, "{length} bytes");
                assert_eq!(received(&mut pair.target), [(1, payload(length, 0..length))]);
                assert_eq!(
                    (pair.source.endpoint.under_way(), pair.target.endpoint.under_way()),
                    ((0, 0), (0, 0))
                );
            }
        }
    }
    assert_eq!(pair.target.endpoint.unexpected_bytes(), 0);
}

#[test]
fn messages_with_one_tag_arrive_in_order_whatever_their_length() {
    let mut pair = Pair::new(limits());
    let lengths = [1_000, 3, 50_000, 0, 400, 100_000, 7];
    lengths.iter().for_each(|length| pair.send(message(1, *length)));
    pair.exchange();
    for (name, _) in lengths.iter().enumerate() {
        pair.target.endpoint.receive(any(1), Buffer::new(name as u32, 1 << 20)).expect("room");
    }
    pair.exchange();
    let mut received = received(&mut pair.target);
    received.sort();
    let lengths_of = received.iter().map(|(_, bytes)| bytes.len() as u64).collect::<Vec<_>>();
    assert_eq!(lengths_of, lengths);
}

#[test]
fn the_receive_that_was_posted_first_takes_the_message() {
    let mut pair = Pair::new(limits());
    let source = Some(pair.target.peer);
    let selectors = [
        Selector { source: None, tag: 9, ignore: 0 },
        Selector { source, tag: 1, ignore: 0 },
        Selector { source: None, tag: 0, ignore: u64::MAX },
        Selector { source, tag: 0xf1, ignore: 0xf0 },
        Selector { source, tag: 1, ignore: 0 },
    ];
    for (name, selector) in selectors.into_iter().enumerate() {
        let waits = pair.target.endpoint.receive(selector, Buffer::new(name as u32, 10)).expect("room");
        assert!(waits.is_some());
    }
    (0..4).for_each(|length| pair.send(message(1, length)));
    pair.exchange();
    let names: Vec<u32> = received(&mut pair.target).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [1, 2, 3, 4]);
}

#[test]
fn a_message_that_is_longer_than_its_buffer_is_truncated() {
    let mut pair = Pair::new(limits());
    for (length, capacity) in [(100, 10), (100, 0), (50_000, 10), (50_000, 0), (50_000, 49_999)] {
        pair.target.endpoint.receive(any(1), Buffer::new(0, capacity)).expect("room");
        pair.send(message(1, length));
        pair.exchange();
        let Some(Event::Received { receive, envelope, written }) = pair.target.poll() else {
            panic!("{length} bytes into {capacity} were not received")
        };
        assert_eq!((envelope.length, written), (length, capacity));
        assert_eq!(receive.bytes, payload(length, 0..capacity));
        assert_eq!(sent(&mut pair.source).len(), 1);
    }
    let counts = pair.target.endpoint.counts();
    assert_eq!((counts.eager_messages_truncated, counts.requests_truncated), (2, 3));
}

#[test]
fn a_receive_that_a_frame_completes_is_told_at_once_unless_events_wait() {
    let mut pair = Pair::new(limits());
    let (endpoint, peer) = (&mut pair.target.endpoint, pair.target.peer);
    let frame =
        |tag| [&Head::Eager { tag, data: Some(7), synchronous: None }.to_bytes()[..], b"payload"].concat();
    for tag in [1, 2, 3, 4] {
        endpoint.receive(any(tag), Buffer::new(tag as u32, 100)).expect("room");
    }
    let mut told = Vec::new();
    let mut arrive = |endpoint: &mut Endpoint<_, Buffer>, tag, will_do: bool| {
        endpoint.arrive_at_once(peer, &frame(tag), |receive: &Buffer, envelope: &Envelope, written| {
            assert_eq!((&receive.bytes[..], envelope.data, envelope.length), (&b"payload"[..], Some(7), 7));
            told.push((receive.name, envelope.tag, written));
            will_do
        })
    };
    assert_eq!(arrive(endpoint, 1, true), Ok(true));
    assert_eq!((endpoint.under_way().1, endpoint.has_event()), (3, false));
    assert_eq!(arrive(endpoint, 3, false), Ok(false));
    assert_eq!(arrive(endpoint, 2, true), Ok(false), "an event waits");
    assert_eq!(arrive(endpoint, 5, true), Ok(false), "no receive waits for it");
    assert_eq!(told, [(1, 1, 7), (3, 3, 7)]);
    assert_eq!(endpoint.under_way().1, 3);
    let names: Vec<u32> = received(&mut pair.target).into_iter().map(|(name, _)| name).collect();
    assert_eq!((names, pair.target.endpoint.under_way().1), (vec![3, 2], 1));
}

#[test]
fn a_receive_is_cancelled_by_its_handle() {
    let mut pair = Pair::new(limits());
    let endpoint = &mut pair.target.endpoint;
    for name in 0..200 {
        endpoint.receive(any(1), Buffer::new(name, u64::from(name))).expect("room");
    }
    for name in [0, 150, 7] {
        let cancelled = endpoint.cancel_first(|receive| receive.name == name).map(|receive| receive.name);
        assert_eq!(cancelled, Some(name));
        assert_eq!(endpoint.cancel_first(|receive| receive.name == name), None);
    }
    assert_eq!(endpoint.under_way().1, 197);
    (0..6).for_each(|_| pair.send(message(1, 0)));
    pair.exchange();
    let names: Vec<u32> = received(&mut pair.target).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_claimed_message_is_received_by_its_claim_only() {
    let mut pair = Pair::new(limits());
    for length in [10, 20_000] {
        let endpoint = &mut pair.target.endpoint;
        assert_eq!((endpoint.peek(&any(3)), endpoint.claim(&any(3))), (None, None));
        (0..2).for_each(|more| {
            pair.send(Send { data: Some(1 << 40), is_synchronous: true, ..message(3, length + more) })
        });
        pair.exchange();
        let endpoint = &mut pair.target.endpoint;
        assert_eq!(endpoint.peek(&any(4)), None);
        let envelope = endpoint.peek(&any(3)).expect("a message");
        assert_eq!(
            (envelope.length, envelope.data, envelope.source),
            (length, Some(1 << 40), pair.target.peer)
        );
        let (claim, claimed) = endpoint.claim(&any(3)).expect("the same message");
        assert_eq!((claimed, endpoint.unexpected_messages()), (envelope, 1));
        endpoint.receive(any(3), Buffer::new(1, 1 << 20)).expect("room");
        endpoint.receive_claimed(claim, Buffer::new(2, 1 << 20)).expect("it is claimed");
        let again = endpoint.receive_claimed(claim, Buffer::new(3, 1 << 20)).expect_err("it was received");
        assert_eq!((again.0, endpoint.discard(claim)), (Refused::NoClaim, false));
        pair.exchange();
        let mut received = received(&mut pair.target);
        received.sort();
        assert_eq!(received, [(1, payload(length + 1, 0..length + 1)), (2, payload(length, 0..length))]);
        assert_eq!(sent(&mut pair.source).len(), 2);
    }
}

#[test]
fn a_discarded_message_completes_its_send() {
    let mut pair = Pair::new(limits());
    for length in [10, 20_000] {
        pair.send(Send { is_synchronous: true, ..message(3, length) });
        pair.exchange();
        let (claim, _) = pair.target.endpoint.claim(&any(3)).expect("a message");
        assert!(sent(&mut pair.source).is_empty());
        assert!(pair.target.endpoint.discard(claim));
        pair.exchange();
        assert_eq!(sent(&mut pair.source).len(), 1);
    }
    assert_eq!(pair.target.endpoint.unexpected_bytes(), 0);
}

#[test]
fn a_receive_is_cancelled_until_it_has_matched() {
    let mut pair = Pair::new(limits());
    let endpoint = &mut pair.target.endpoint;
    let first = endpoint.receive(any(1), Buffer::new(1, 10)).expect("room").expect("it waits");
    let second = endpoint.receive(any(1), Buffer::new(2, 10)).expect("room").expect("it waits");
    assert_eq!(endpoint.cancel(first).map(|buffer| buffer.name), Some(1));
    assert!(endpoint.cancel(first).is_none());
    pair.send(message(1, 3));
    pair.exchange();
    assert_eq!(received(&mut pair.target), [(2, payload(3, 0..3))]);
    assert!(pair.target.endpoint.cancel(second).is_none());
}

#[test]
fn sends_wait_for_the_connection() {
    let mut node = Node::new(limits());
    let peer = node.endpoint.add_peer().expect("room");
    node.endpoint.send(peer, message(1, 0), (0, 0)).expect("it waits");
    assert_eq!(node.endpoint.next_ready(), None);
    assert!(node.endpoint.transmit(peer, |_| unreachable!("there is no connection")));
    node.endpoint.connected(peer, 512);
    assert_eq!((node.endpoint.next_ready(), node.endpoint.next_ready()), (Some(peer), None));
}

#[test]
fn a_link_without_room_is_asked_again_for_the_same_frame() {
    let mut pair = Pair::new(limits());
    (0..3).for_each(|tag| pair.send(message(tag, 8)));
    let mut heads = Vec::new();
    let peer = pair.source.peer;
    for room in 0..3 {
        let mut left = room;
        let is_all = pair.source.endpoint.transmit(peer, |frame| {
            if let bywire_match::Frame::Message { head, .. } = frame {
                heads.push(head.to_vec());
            }
            left -= i32::from(left >= 0);
            left >= 0
        });
        assert!(!is_all || room == 2);
    }
    assert_eq!(heads[0], heads[1]);
    heads.dedup();
    assert_eq!(heads.len(), 3);
}

/// Sends and receives of every state, when the connection ends.
#[test]
fn the_end_of_a_peer_fails_what_names_it_and_nothing_else() {
    let mut pair = Pair::new(limits());
    let source = Some(pair.target.peer);
    let endpoint = &mut pair.target.endpoint;
    endpoint.receive(Selector { source, tag: 1, ignore: 0 }, Buffer::new(1, 10)).expect("room");
    let waits = endpoint.receive(any(2), Buffer::new(2, 10)).expect("room").expect("it waits");
    endpoint.receive(any(3), Buffer::new(3, 50_000)).expect("room");
    // One is eager, one is granted and not put, one is not matched.
    [(4, 7), (3, 50_000), (5, 50_000)].iter().for_each(|(tag, length)| pair.send(message(*tag, *length)));
    pair.exchange_messages();
    let (eager, _) = pair.target.endpoint.claim(&any(4)).expect("an eager message");
    pair.send(Send { is_synchronous: true, ..message(6, 7) });
    pair.exchange_messages();
    assert_eq!(sent(&mut pair.source), [7]);
    let peer = pair.source.peer;
    pair.source.endpoint.send(peer, message(1, 1), (1, 0)).expect("room");
    pair.source.endpoint.disconnected(peer);
    let failed: Vec<_> = std::iter::from_fn(|| pair.source.endpoint.poll_event()).collect();
    assert!(
        failed.iter().all(|event| matches!(event, Event::SendFailed { .. })) && failed.len() == 4,
        "{failed:?}"
    );
    assert_eq!(pair.source.endpoint.send(peer, message(1, 1), (1, 0)), Err((Refused::Ended, (1, 0))));

    let peer = pair.target.peer;
    let endpoint = &mut pair.target.endpoint;
    endpoint.disconnected(peer);
    let mut names = Vec::new();
    while let Some(event) = endpoint.poll_event() {
        match event {
            Event::ReceiveFailed { receive, .. } => names.push(receive.name),
            Event::Expose { transfer, .. } => assert!(!endpoint.grant(transfer, Some(1))),
            event => panic!("{event:?}"),
        }
    }
    names.sort_unstable();
    assert_eq!(names, [1, 3]);
    // Eager messages are there still, also claimed ones; the request is not.
    assert_eq!(endpoint.unexpected_messages(), 1);
    assert_eq!(endpoint.receive(Selector { source, tag: 6, ignore: 0 }, Buffer::new(6, 10)), Ok(None));
    endpoint.receive_claimed(eager, Buffer::new(4, 10)).expect("it is claimed");
    endpoint.receive(Selector { source, tag: 6, ignore: 0 }, Buffer::new(7, 10)).expect("room");
    let names = std::iter::from_fn(|| endpoint.poll_event()).map(|event| match event {
        Event::Received { receive, .. } => (receive.name, true),
        Event::ReceiveFailed { receive, .. } => (receive.name, false),
        event => panic!("{event:?}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), [(6, true), (4, true), (7, false)]);
    assert!(endpoint.cancel(waits).is_some());
    assert_eq!((endpoint.under_way(), endpoint.unexpected_bytes()), ((0, 0), 0));
    endpoint.forget(peer);
    let refused = endpoint.receive(Selector { source, tag: 6, ignore: 0 }, Buffer::new(7, 10));
    assert_eq!(refused.map_err(|(reason, _)| reason), Err(Refused::UnknownPeer));
}

#[test]
fn a_forgotten_peer_leaves_no_memory() {
    let mut pair = Pair::new(limits());
    for tag in 0..40 {
        pair.send(message(tag, 400));
    }
    pair.exchange();
    assert!(pair.target.endpoint.unexpected_bytes() > 4_000);
    let (claim, _) = pair.target.endpoint.claim(&any(0)).expect("a message");
    pair.target.endpoint.forget(pair.target.peer);
    assert_eq!((pair.target.endpoint.unexpected_bytes(), pair.target.endpoint.unexpected_messages()), (0, 0));
    assert!(!pair.target.endpoint.discard(claim));
    let next = pair.target.endpoint.add_peer().expect("room");
    assert_eq!((next.index(), next == pair.target.peer), (pair.target.peer.index(), false));
}

#[test]
fn every_limit_refuses_with_the_handle_and_ends_when_events_are_taken() {
    let mut pair = Pair::new(Limits { sends: 2, receives: 2, peers: 1, ..limits() });
    assert_eq!(pair.source.endpoint.add_peer(), Err(Refused::Full));
    let peer = pair.source.peer;
    (0..2).for_each(|tag| pair.send(message(tag, 1)));
    assert_eq!(pair.source.endpoint.send(peer, message(2, 1), (9, 9)), Err((Refused::Full, (9, 9))));
    pair.exchange_messages();
    assert_eq!(pair.source.endpoint.send(peer, message(2, 1), (9, 9)), Err((Refused::Full, (9, 9))));
    assert_eq!(sent(&mut pair.source).len(), 2);
    pair.send(message(2, 1));
    let endpoint = &mut pair.target.endpoint;
    for tag in 0..2 {
        endpoint.receive(any(tag), Buffer::new(0, 10)).expect("room");
    }
    assert!(endpoint.receive(any(1), Buffer::new(0, 10)).is_err());
    pair.exchange_messages();
    assert!(pair.target.endpoint.receive(any(1), Buffer::new(0, 10)).is_err());
    assert_eq!(received(&mut pair.target).len(), 2);
    assert!(pair.target.endpoint.receive(any(1), Buffer::new(0, 10)).is_ok());
    let long = Send { length: (1 << 40) + 1, ..message(1, 1) };
    assert_eq!(pair.source.endpoint.send(peer, long, (0, 0)), Err((Refused::TooLong, (0, 0))));
}

/// Nobody receives: the window is used up, grows as small requests show that, and then only requests leave, until as many
/// as the limit are unanswered.
#[test]
fn unexpected_messages_take_bounded_memory_and_all_arrive_in_the_end() {
    let mut pair = Pair::new(limits());
    let most = limits().window_bytes_max;
    for tag in 0..300 {
        pair.send(message(tag, 200));
        pair.exchange();
        assert!(pair.target.endpoint.unexpected_bytes() <= most);
    }
    assert!(pair.target.endpoint.unexpected_bytes() > most - 300);
    let counts = *pair.source.endpoint.counts();
    assert!(counts.sends_held_by_unanswered_requests > 0 && counts.requests_for_want_of_window > 0);
    assert_eq!(counts.requests_sent, limits().requests.into());
    let grown = pair.target.endpoint.counts();
    assert!(grown.windows_grown > 0 && grown.windows_not_grown > 0);
    for tag in (0..300).rev() {
        pair.target.endpoint.receive(any(tag), Buffer::new(tag as u32, 200)).expect("room");
        pair.exchange();
    }
    let mut received = received(&mut pair.target);
    received.sort();
    assert_eq!(received, (0..300).map(|tag| (tag, payload(200, 0..200))).collect::<Vec<_>>());
    assert_eq!(sent(&mut pair.source).len(), 300);
    assert_eq!(pair.target.endpoint.unexpected_bytes(), 0);
}

#[test]
fn a_grant_without_a_key_asks_for_pieces_of_a_payload_of_any_length() {
    let mut pair = Pair::new(limits());
    pair.target.exposes = false;
    pair.target.endpoint.receive(any(1), Buffer::new(1, 100_000)).expect("room");
    pair.send(message(1, 100_000));
    pair.exchange();
    assert_eq!(received(&mut pair.target), [(1, payload(100_000, 0..100_000))]);
    assert_eq!(sent(&mut pair.source), [100_000]);
    assert_eq!(
        pair.source.endpoint.counts().pieces,
        100_000u64.div_ceil((FRAGMENT_BYTES - HEAD_BYTES_MAX) as u64)
    );
}

#[test]
fn a_put_that_the_peer_refuses_fails_its_send() {
    let mut pair = Pair::new(limits());
    pair.target.endpoint.receive(any(1), Buffer::new(1, 100_000)).expect("room");
    pair.send(message(1, 100_000));
    pair.exchange_messages();
    pair.target.answer_exposes();
    pair.exchange_messages();
    let peer = pair.source.peer;
    let mut put = None;
    pair.source.endpoint.transmit(peer, |frame| {
        let bywire_match::Frame::Put { send, .. } = frame else { panic!("{frame:?}") };
        put = Some(send);
        true
    });
    let put = put.expect("a put");
    pair.source.endpoint.put_done(put, false);
    assert!(matches!(pair.source.endpoint.poll_event(), Some(Event::SendFailed { .. })));
    pair.source.endpoint.put_done(put, true);
    assert_eq!(pair.source.endpoint.poll_event(), None);
}
