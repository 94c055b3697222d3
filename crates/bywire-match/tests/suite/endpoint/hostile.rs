//! Every rule that a peer of a tagged endpoint can break is a violation that changes nothing, and memory is bounded.

use bywire_match::head::Head;
use bywire_match::{Frame, Limits, Send, Violation};

use super::fixture::{Buffer, Node, any, limits, message};

/// A node that is connected to a peer that the test plays.
fn node() -> Node {
    let mut node = Node::new(limits());
    node.endpoint.connected(node.peer, 512);
    node
}

impl Node {
    fn hears(&mut self, head: Head, payload_bytes: usize) -> Result<(), Violation> {
        let frame = [&head.to_bytes()[..], &vec![7; payload_bytes]].concat();
        self.endpoint.arrive(self.peer, &frame)
    }

    fn hears_eager(&mut self, synchronous: Option<u64>, payload_bytes: usize) -> Result<(), Violation> {
        self.hears(Head::Eager { tag: 1, data: None, synchronous }, payload_bytes)
    }

    fn hears_request(&mut self, send: u64, length: u64) -> Result<(), Violation> {
        self.hears(Head::Request { tag: 1, data: None, send, length }, 0)
    }

    /// The heads that leave.
    fn says(&mut self) -> Vec<Head> {
        let mut heads = Vec::new();
        self.endpoint.transmit(self.peer, |frame| {
            if let Frame::Message { head, .. } | Frame::Piece { head, .. } = frame {
                heads.push(Head::parse(head).expect("a valid head").0);
            }
            true
        });
        heads
    }
}

#[test]
fn bytes_that_are_no_frame_and_frames_without_a_connection_are_violations() {
    let mut node = node();
    for bytes in [&[][..], &[0; 16], &[255; 64]] {
        assert!(matches!(node.endpoint.arrive(node.peer, bytes), Err(Violation::Malformed(_))));
    }
    let mut unconnected = Node::new(limits());
    assert_eq!(unconnected.hears_eager(None, 1), Err(Violation::Unconnected));
    node.endpoint.disconnected(node.peer);
    assert_eq!(node.hears_eager(None, 1), Err(Violation::Unconnected));
    node.endpoint.forget(node.peer);
    assert_eq!(node.hears_eager(None, 1), Err(Violation::Unconnected));
}

#[test]
fn eager_bytes_beyond_the_window_are_a_violation_matched_or_not() {
    for is_expected in [true, false] {
        let mut node = node();
        // A window of 4,000 bytes has room for 62 messages of 64.
        for _ in 0..62 {
            if is_expected {
                node.endpoint.receive(any(1), Buffer::new(0, 10)).expect("room");
            }
            node.hears_eager(None, 0).expect("room in the window");
        }
        assert_eq!(node.hears_eager(None, 0), Err(Violation::Window));
        assert_eq!(node.endpoint.unexpected_bytes(), if is_expected { 0 } else { 62 * 64 });
        // It was told nothing, so it has no more. What is told may be used again.
        let told = if is_expected { vec![Head::Credit { bytes: 62 * 64 }] } else { vec![] };
        assert_eq!(node.says(), told);
        assert_eq!(node.hears_eager(None, 0).is_ok(), is_expected);
    }
}

#[test]
fn a_message_longer_than_the_window_is_a_violation() {
    let mut node = node();
    assert_eq!(node.hears_eager(None, 4_000), Err(Violation::Window));
    assert_eq!(node.endpoint.unexpected_messages(), 0);
}

#[test]
fn unanswered_requests_and_synchronous_messages_are_limited_together() {
    let mut node = node();
    for send in 0..20 {
        let heard =
            if send % 2 == 0 { node.hears_request(send, 10_000) } else { node.hears_eager(Some(send), 0) };
        heard.expect("as many as the limit");
    }
    assert_eq!(node.hears_request(20, 10_000), Err(Violation::Requests));
    assert_eq!(node.hears_eager(Some(20), 0), Err(Violation::Requests));
    node.hears_eager(None, 0).expect("this one wants no answer");
    // Matching alone does not help: the answer has to leave, so no more answers wait than the limit.
    for _ in 0..20 {
        node.endpoint.receive(any(1), Buffer::new(0, 0)).expect("room");
    }
    assert_eq!(node.hears_request(20, 10_000), Err(Violation::Requests));
    assert_eq!(node.says().len(), 20);
    node.hears_request(20, 10_000).expect("all are answered");
}

#[test]
fn answers_to_no_send_are_violations() {
    let mut node = node();
    let grant = |send, length| Head::Grant { send, receive: 1, length, key: None };
    for send in [0, 1, u64::MAX] {
        assert_eq!(node.hears(grant(send, 1), 0), Err(Violation::UnknownSend));
        assert_eq!(node.hears(Head::Acknowledgement { send }, 0), Err(Violation::UnknownSend));
    }
    node.endpoint.send(node.peer, message(1, 10_000), (10_000, 0)).expect("room");
    // It has not left.
    assert_eq!(node.hears(grant(0, 1), 0), Err(Violation::UnknownSend));
    let [Head::Request { send, length: 10_000, .. }] = node.says()[..] else { panic!("a request") };
    assert_eq!(node.hears(Head::Acknowledgement { send }, 0), Err(Violation::UnknownSend));
    assert_eq!(node.hears(grant(send, 10_001), 0), Err(Violation::Length));
    node.hears(grant(send, 100), 0).expect("it waits for that");
    assert_eq!(node.hears(grant(send, 100), 0), Err(Violation::UnknownSend));
    assert_eq!(node.says(), [Head::Piece { receive: 1 }]);
    assert!(node.endpoint.poll_event().is_some());

    let synchronous = Send { is_synchronous: true, ..message(1, 0) };
    node.endpoint.send(node.peer, synchronous, (0, 0)).expect("room");
    let [Head::Eager { synchronous: Some(send), .. }] = node.says()[..] else { panic!("a message") };
    assert_eq!(node.hears(grant(send, 0), 0), Err(Violation::UnknownSend));
    node.hears(Head::Acknowledgement { send }, 0).expect("it waits for that");
    assert_eq!(node.hears(Head::Acknowledgement { send }, 0), Err(Violation::UnknownSend));
}

#[test]
fn another_peer_cannot_answer_or_fill_what_is_not_its_own() {
    let mut node = node();
    let other = node.endpoint.add_peer().expect("room");
    node.endpoint.connected(other, 512);
    node.endpoint.send(node.peer, message(1, 10_000), (10_000, 0)).expect("room");
    let [Head::Request { send, .. }] = node.says()[..] else { panic!("a request") };
    node.endpoint.receive(any(1), Buffer::new(0, 400)).expect("room");
    node.endpoint.receive(any(1), Buffer::new(0, 9_000)).expect("room");
    node.hears_request(5, 400).expect("a request");
    node.hears_request(6, 9_000).expect("a request");
    let credit_then_grant = node.says();
    let Some(Head::Grant { receive, .. }) = credit_then_grant.last().copied() else { panic!("a grant") };
    let heads = [
        (Head::Grant { send, receive: 0, length: 1, key: None }, Violation::UnknownSend),
        (Head::Piece { receive }, Violation::UnknownReceive),
    ];
    for (head, violation) in heads {
        let payload: &[u8] = if matches!(head, Head::Piece { .. }) { b"x" } else { b"" };
        let frame = [&head.to_bytes()[..], payload].concat();
        assert_eq!(node.endpoint.arrive(other, &frame), Err(violation));
    }
    let Some(bywire_match::Event::Expose { transfer, .. }) = node.endpoint.poll_event() else {
        panic!("a long one")
    };
    assert!(node.endpoint.grant(transfer, Some(3)));
    let [Head::Grant { receive: exposed, key: Some(3), .. }] = node.says()[..] else { panic!("a grant") };
    let note = exposed.to_le_bytes();
    assert_eq!(node.endpoint.notified(other, &note), Err(Violation::UnknownReceive));
    // Neither a note for pieces nor pieces for a put.
    assert_eq!(node.endpoint.notified(node.peer, &receive.to_le_bytes()), Err(Violation::UnknownReceive));
    assert_eq!(node.hears(Head::Piece { receive: exposed }, 1), Err(Violation::UnknownReceive));
    assert_eq!(node.endpoint.notified(node.peer, &note[..7]), Err(Violation::UnknownReceive));
    node.endpoint.notified(node.peer, &note).expect("its own");
    assert_eq!(node.endpoint.notified(node.peer, &note), Err(Violation::UnknownReceive));
}

#[test]
fn pieces_are_neither_empty_nor_longer_than_the_grant() {
    let mut node = node();
    node.endpoint.receive(any(1), Buffer::new(0, 300)).expect("room");
    node.hears_request(1, 900).expect("a request");
    let Some(Head::Grant { receive, length: 300, key: None, .. }) = node.says().last().copied() else {
        panic!("a grant of what the buffer takes")
    };
    assert_eq!(node.hears(Head::Piece { receive }, 0), Err(Violation::Length));
    node.hears(Head::Piece { receive }, 200).expect("a part");
    assert_eq!(node.hears(Head::Piece { receive }, 101), Err(Violation::Length));
    node.hears(Head::Piece { receive }, 100).expect("the rest");
    assert_eq!(node.hears(Head::Piece { receive }, 1), Err(Violation::UnknownReceive));
}

#[test]
fn credit_beyond_any_window_is_a_violation() {
    let mut node = node();
    node.hears(Head::Credit { bytes: (1 << 40) - 4_000 }, 0).expect("absurd, and its own memory");
    assert_eq!(node.hears(Head::Credit { bytes: 1 }, 0), Err(Violation::Credit));
}

/// All peers ask for larger windows, and fill them.
#[test]
fn the_windows_of_all_peers_together_are_bounded() {
    let limits = Limits { growth_bytes_max: 20_000, ..limits() };
    let mut node = Node::new(limits);
    node.endpoint.forget(node.peer);
    for count in 1..=30 {
        node.peer = node.endpoint.add_peer().expect("room");
        node.endpoint.connected(node.peer, 512);
        for send in 0..10 {
            node.hears_request(send, 100).expect("fewer than the limit");
            node.says();
        }
        while node.hears_eager(None, 400).is_ok() {}
        assert!(node.endpoint.unexpected_bytes() <= 20_000 + count * 4_000);
    }
    assert!(node.endpoint.unexpected_bytes() > 20_000 + 30 * 3_000);
    assert_eq!(node.endpoint.counts().windows_grown, 4, "4,000 to 8,000, to 16,000, and two others to 8,000");
}
