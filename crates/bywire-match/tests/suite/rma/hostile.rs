//! Every rule that a peer of RMA can break is a violation that changes nothing, and what it may do takes bounded
//! memory.

use bywire_match::rma::head::Head;
use bywire_match::rma::{Denied, Event, Frame, PutId, Rma};
use bywire_match::{PeerId, Sink, Violation};

use super::fixture::{Carried, KEY, Node, exchange, limits, pair, place, transmit};

/// A node that is connected to a peer that the test plays.
fn node() -> Node {
    let mut node = Node::new(limits());
    node.rma.connected(node.peer, 512);
    node
}

impl Node {
    fn hears(&mut self, head: Head, payload_bytes: usize) -> Result<(), Violation> {
        let frame = [&head.to_bytes()[..], &vec![7; payload_bytes]].concat();
        self.rma.arrive(self.peer, &frame, &mut self.memory)
    }

    /// The heads that leave.
    fn says(&mut self) -> Vec<Head> {
        let heads = transmit(self).into_iter().filter_map(|carried| match carried {
            Carried::Frame(frame) => Some(Head::parse(&frame).expect("a valid head").0),
            Carried::Put { .. } => None,
        });
        heads.collect()
    }
}

fn request(operation: u64, length: u64) -> Head {
    Head::Request { operation, key: KEY, offset: 0, length, data: None }
}

fn read(operation: u64, length: u64, region: Option<u64>) -> Head {
    Head::Read { operation, key: KEY, offset: 0, length, region }
}

const WRITE: Head = Head::Write { key: KEY, offset: 0, data: None };

#[test]
fn bytes_that_are_no_frame_and_frames_without_a_connection_are_violations() {
    let mut node = node();
    for bytes in [&[][..], &[0; 16], &[255; 64]] {
        let heard = node.rma.arrive(node.peer, bytes, &mut node.memory);
        assert!(matches!(heard, Err(Violation::Malformed(_))));
    }
    let mut unconnected = Node::new(limits());
    assert_eq!(unconnected.hears(WRITE, 1), Err(Violation::Unconnected));
    node.rma.disconnected(node.peer);
    assert_eq!(node.hears(WRITE, 1), Err(Violation::Unconnected));
}

#[test]
fn operations_of_a_peer_that_are_under_way_are_limited_together() {
    let mut node = node();
    for operation in 0..20 {
        let head = match operation % 4 {
            0 => request(operation, 500),
            1 => read(operation, 10, None),
            2 => read(operation, 500, Some(1)),
            _ => WRITE,
        };
        node.hears(head, usize::from(operation % 4 == 3)).expect("as many as the limit");
    }
    for head in [request(20, 500), read(20, 10, None), read(20, 500, Some(1))] {
        assert_eq!(node.hears(head, 0), Err(Violation::Requests));
    }
    assert_eq!(node.hears(WRITE, 1), Err(Violation::Requests));
    // Refusals count until they leave.
    let mut node = self::node();
    for _ in 0..20 {
        node.hears(Head::Write { key: 1, offset: 0, data: None }, 1).expect("as many as the limit");
    }
    assert_eq!(node.hears(WRITE, 1), Err(Violation::Requests));
    assert_eq!(node.says().len(), 20);
    node.hears(WRITE, 1).expect("all are answered");
}

#[test]
fn answers_to_no_operation_are_violations() {
    let mut node = node();
    let answers = |operation| {
        [
            Head::Grant { operation, access: 1, region: None },
            Head::Written { operation },
            Head::Refusal { operation: Some(operation), reason: Denied::NoRight },
        ]
    };
    let all = |node: &mut Node, operation: u64| answers(operation).map(|head| node.hears(head, 0));
    let none = [Err(Violation::UnknownSend); 3];
    assert_eq!(all(&mut node, 0), none);
    assert_eq!(all(&mut node, u64::MAX), none);
    let refusal = Head::Refusal { operation: None, reason: Denied::NoRight };
    for head in [Head::Done { writes: 0 }, Head::Done { writes: 1 }, refusal] {
        assert_eq!(node.hears(head, 0), Err(Violation::UnknownSend));
    }
    node.write(place(KEY, 0, 4), &[1; 4]);
    node.write(place(KEY, 0, 1000), &[1; 1000]);
    assert_eq!(all(&mut node, 0), none, "nothing has left");
    let [Head::Write { .. }, Head::Request { operation, .. }] = node.says()[..] else { panic!("two writes") };
    assert_eq!(node.hears(Head::Written { operation }, 0), Err(Violation::UnknownSend));
    assert_eq!(node.hears(Head::Done { writes: 2 }, 0), Err(Violation::UnknownSend));
    node.hears(Head::Done { writes: 1 }, 0).expect("it waits for that");
    assert_eq!(node.hears(refusal, 0), Err(Violation::UnknownSend));
    node.hears(Head::Grant { operation, access: 1, region: Some(3) }, 0).expect("it waits for that");
    assert_eq!(
        node.hears(Head::Grant { operation, access: 1, region: None }, 0),
        Err(Violation::UnknownSend)
    );
    assert!(node.says().is_empty(), "it puts");
    assert_eq!(all(&mut node, operation), none);
}

#[test]
fn data_for_a_put_or_of_another_length_are_violations() {
    let mut node = node();
    // Like data that a refusal has overtaken: they are dropped.
    assert_eq!(node.hears(Head::Data { operation: 0 }, 1), Ok(()));
    node.read(place(KEY, 0, 10), None);
    node.read(place(KEY, 0, 1000), Some(2));
    let [Head::Read { operation, .. }, Head::Read { operation: by_put, .. }] = node.says()[..] else {
        panic!("two reads")
    };
    assert_eq!(node.hears(Head::Data { operation }, 11), Err(Violation::Length));
    assert_eq!(node.hears(Head::Data { operation }, 0), Err(Violation::Length));
    assert_eq!(node.hears(Head::Data { operation: by_put }, 1), Err(Violation::UnknownReceive));
    node.hears(Head::Data { operation }, 9).expect("a part");
    assert_eq!(node.hears(Head::Data { operation }, 2), Err(Violation::Length));
    node.hears(Head::Data { operation }, 1).expect("the rest");
    assert_eq!(node.hears(Head::Data { operation }, 1), Ok(()));
    node.take_events();
    assert_eq!(node.events.len(), 1);
    for note in [&[][..], &[2], &[2; 9], &[0; 9], &[9; 9], &[2; 10]] {
        assert_eq!(node.rma.notified(node.peer, note), Err(Violation::UnknownReceive), "{note:?}");
    }
}

#[test]
fn pieces_are_neither_empty_nor_longer_than_the_request() {
    let mut node = node();
    node.exposes = false;
    assert_eq!(node.hears(request(0, 0), 0), Err(Violation::Length));
    assert_eq!(node.hears(read(0, 0, Some(1)), 0), Err(Violation::Length));
    node.hears(request(5, 600), 0).expect("a request");
    node.take_events();
    let [Head::Grant { operation: 5, access, region: None }] = node.says()[..] else { panic!("a grant") };
    assert_eq!(node.hears(Head::Piece { access }, 0), Err(Violation::Length));
    node.hears(Head::Piece { access }, 400).expect("a part");
    assert_eq!(node.hears(Head::Piece { access }, 201), Err(Violation::Length));
    node.hears(Head::Piece { access }, 200).expect("the rest");
    assert_eq!(node.says(), [Head::Written { operation: 5 }]);
    assert_eq!(node.memory.read(place(KEY, 0, 601))[598..], [7, 7, ((600u32 * 31) >> 3) as u8]);
    // Pieces for a place that is exposed, and before it is.
    node.hears(request(6, 600), 0).expect("a request");
    let Some(Event::Expose { access, .. }) = node.rma.poll_event().and_then(|event| match event {
        Event::Accessed { .. } => node.rma.poll_event(),
        event => Some(event),
    }) else {
        panic!("a place to expose")
    };
    assert!(node.rma.grant(access, Some(1)));
    let [Head::Grant { access, .. }] = node.says()[..] else { panic!("a grant") };
    assert_eq!(node.hears(Head::Piece { access }, 1), Err(Violation::UnknownReceive));
}

#[test]
fn another_peer_cannot_answer_or_fill_what_is_not_its_own() {
    let mut nodes = pair();
    exchange(&mut nodes);
    let [mut node, _] = nodes;
    let other = node.rma.add_peer().expect("room");
    node.rma.connected(other, 512);
    node.write(place(KEY, 0, 1000), &[1; 1000]);
    node.read(place(KEY, 0, 10), None);
    node.exposes = false;
    node.hears(request(1, 600), 0).expect("a request");
    node.take_events();
    let said = node.says();
    let [Head::Grant { access, .. }, Head::Request { operation, .. }, Head::Read { operation: reads, .. }] =
        said[..]
    else {
        panic!("{said:?}")
    };
    let before = node.memory.0.clone();
    let hear = |node: &mut Node, head: Head, payload: &[u8]| {
        let frame = [&head.to_bytes()[..], payload].concat();
        node.rma.arrive(other, &frame, &mut node.memory)
    };
    let grant = Head::Grant { operation, access: 1, region: None };
    assert_eq!(hear(&mut node, grant, &[]), Err(Violation::UnknownSend));
    assert_eq!(hear(&mut node, Head::Data { operation: reads }, &[1]), Err(Violation::UnknownReceive));
    for operation in [operation, reads] {
        let refusal = Head::Refusal { operation: Some(operation), reason: Denied::NoRight };
        assert_eq!(hear(&mut node, refusal, &[]), Err(Violation::UnknownSend));
    }
    // Like a piece for memory that was withdrawn: it is dropped.
    assert_eq!(hear(&mut node, Head::Piece { access }, &[1]), Ok(()));
    assert!(node.memory.0 == before);
}

/// The puts that begin for a peer. All that may leave has room.
fn puts<W, R: Sink>(rma: &mut Rma<W, R>, peer: PeerId) -> Vec<PutId> {
    let mut puts = Vec::new();
    let is_all = rma.transmit(peer, |frame| {
        let Frame::Put { id, .. } = frame else { panic!("only puts leave") };
        puts.push(id);
        true
    });
    assert!(is_all, "reads that wait are not for want of room");
    puts
}

#[test]
fn reads_of_one_peer_take_few_puts_of_the_link_and_those_of_all_leave_some() {
    let mut node = node();
    let mut peers = vec![node.peer];
    peers.extend((1..4).map(|_| node.rma.add_peer().expect("room")));
    for peer in &peers {
        node.rma.connected(*peer, 512);
        for operation in 0..20 {
            let frame = read(operation, 500, Some(1)).to_bytes();
            node.rma.arrive(*peer, &frame, &mut node.memory).expect("as many as the limit");
        }
    }
    node.take_events();
    let mut begun: Vec<Vec<PutId>> = vec![Vec::new(); 4];
    let go_on = |node: &mut Node, begun: &mut Vec<Vec<PutId>>| {
        while let Some(peer) = node.rma.next_ready() {
            begun[peer.index()].extend(puts(&mut node.rma, peer));
        }
        begun.iter().map(Vec::len).collect::<Vec<_>>()
    };
    // Nobody is ready in vain while the link puts what it may.
    assert_eq!(go_on(&mut node, &mut begun), [8, 4, 0, 0]);
    // The room of each put that ends goes to who has waited longest.
    for counts in [[8, 5, 0, 0], [8, 5, 1, 0], [8, 5, 1, 1], [9, 5, 1, 1]] {
        let id = begun[0].pop().expect("a put");
        begun[0].insert(0, id);
        node.rma.put_done(id, true);
        assert_eq!(go_on(&mut node, &mut begun), counts);
    }
    // What a peer had is there for others when it ends, and the ends of its puts count once.
    node.rma.disconnected(peers[0]);
    for id in begun[0].clone() {
        node.rma.put_done(id, false);
    }
    let counts = go_on(&mut node, &mut begun);
    assert_eq!(counts[1..].iter().sum::<usize>(), 12, "{counts:?}");
    // All end at last.
    while let Some(peer) = (1..4).find(|peer| !begun[*peer].is_empty()) {
        let id = begun[peer].remove(0);
        node.rma.put_done(id, true);
        go_on(&mut node, &mut begun);
    }
    assert_eq!(node.rma.counts().puts_of_reads, 9 + 60);
}

#[test]
fn notes_for_writes_whose_grants_have_not_left_do_not_let_answers_pile_up() {
    let mut node = node();
    let mut granted = 0;
    while granted < 1000 && node.hears(request(granted, 500), 0).is_ok() {
        node.take_events();
        // The peer guesses the number of its write: each has the place of the one before.
        let note = [&[1][..], &(granted << 32).to_le_bytes()].concat();
        node.rma.notified(node.peer, &note).expect("a note");
        node.take_events();
        granted += 1;
        assert_eq!(node.events.len() as u64, granted, "each is complete");
    }
    // Two answers for each operation that may be under way.
    assert_eq!((granted, node.says().len()), (40, 40));
    node.hears(request(1000, 500), 0).expect("all answers have left");
}
