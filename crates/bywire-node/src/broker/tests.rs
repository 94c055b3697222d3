//! Two brokers whose actions are carried out in memory, at once and in order, while a channel is up.

use std::net::IpAddr;

use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::Security;
use bywire_wire::path::MachinePath;
use bywire_wire::service::{End, Introduction, Kept, NotConnected, Notice, Refusal, Terms, Unregistered};
use bywire_wire::service_message::{
    ConnectionName, EndName, FilePart, Half, PortEnd, PortIdentity, ServiceMessage,
};

use super::{
    Action, Broker, CONNECTIONS, FabricFile, GRACE_NS, Port, PortId, REQUEST_TIMEOUT_NS, ThisNode,
    UNDER_WAY_MAX,
};

const KEYS: [PublicKey; 2] = [PublicKey([1; 32]), PublicKey([2; 32])];
const NAMES: [&str; 2] = ["a", "b"];
const A: usize = 0;
const B: usize = 1;
/// Every side has one port, with this registration.
const PORT: PortId = 16;

struct Fixture {
    now_ns: u64,
    brokers: [Broker; 2],
    is_up: bool,
    /// What ports were told, each with its side.
    told: Vec<(usize, Notice)>,
    /// What services have said, each with the side that said it.
    said: Vec<(usize, ServiceMessage)>,
    is_wanted: [bool; 2],
    /// Files that services were to use, each with its side.
    adopted: Vec<(usize, String)>,
    /// Reports of a node with a larger serial than its keeper's, each with the keeper's side.
    ahead: Vec<(usize, u64)>,
}

fn own(side: usize) -> ThisNode {
    ThisNode { name: NAMES[side].to_owned(), key: KEYS[side], security: Security::Aes256Gcm }
}

fn port(name: &str, incarnation: u64) -> Port {
    Port {
        name: name.to_owned(),
        uid: 1000,
        user: "alice".to_owned(),
        groups: vec!["staff".to_owned()],
        incarnation,
        is_reachable: true,
        udp_port: 4000,
        has_v6: false,
    }
}

fn machine(ip: impl Into<IpAddr>) -> MachinePath {
    MachinePath::from(ip.into())
}

fn introduction(connection: u32) -> Introduction {
    Introduction { connection, message_bytes_max: 1, integrity: false, windows: [1; 3] }
}

/// A connection with the port of a side, of equal numbers, that the other side's port has kept.
fn kept(side: usize, connection: u32, peer_incarnation: u64) -> Kept {
    Kept {
        connection,
        security: Security::Aes256Gcm,
        node: KEYS[side],
        peer_port: ["asking", "render"][side].to_owned(),
        peer_user: "alice".to_owned(),
        peer_incarnation,
        peer_connection: connection,
        path: machine([10, 0, 0, 1 + side as u8]),
    }
}

fn end(port: &str, incarnation: u64, connection: u32) -> EndName {
    EndName { port: port.to_owned(), incarnation, connection }
}

/// A file of several parts.
fn text_of(serial: u64) -> String {
    serial.to_string().repeat(9000)
}

impl Fixture {
    /// Two services after their grace, with port `asking` on a and port `render` on b.
    fn new() -> Self {
        let mut fixture = Self::just_started();
        fixture.now_ns = 2 * GRACE_NS;
        fixture.tick();
        fixture
    }

    /// The same services, just started.
    fn just_started() -> Self {
        let broker = |side: usize| {
            let mut broker = Broker::new(0, own(side));
            broker.follow(own(side), &[(KEYS[1 - side], NAMES[1 - side].to_owned())]);
            let (name, incarnation) = if side == A { ("asking", 100) } else { ("render", 200) };
            broker.register(PORT, port(name, incarnation)).expect("free");
            broker
        };
        let brokers = [A, B].map(broker);
        let (told, said, adopted, ahead) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { now_ns: 0, brokers, is_up: false, told, said, is_wanted: [false; 2], adopted, ahead }
    }

    fn settle(&mut self) {
        while let Some((side, action)) =
            [A, B].into_iter().find_map(|side| Some((side, self.brokers[side].next_action()?)))
        {
            match action {
                Action::Tell(PORT, notice) => self.told.push((side, notice)),
                Action::Tell(..) => panic!("no other port"),
                Action::Want(_) => self.is_wanted[side] = true,
                Action::Release(_) => self.is_wanted[side] = false,
                Action::Adopt(text) => self.adopted.push((side, text)),
                Action::ReportAhead(_, serial) => self.ahead.push((side, serial)),
                Action::Send(node, message) => {
                    assert!(self.is_up && node == KEYS[1 - side], "there is no channel");
                    self.said.push((side, message.clone()));
                    self.brokers[1 - side].hear(self.now_ns, KEYS[side], message);
                }
            }
        }
    }

    fn up(&mut self) {
        self.is_up = true;
        for side in [A, B] {
            let path = machine([10, 0, 0, 2 - side as u8]);
            self.brokers[side].up(KEYS[1 - side], [1 - side as u8; 16], path, 1472);
        }
        self.settle();
    }

    fn down(&mut self) {
        self.is_up = false;
        for side in [A, B] {
            self.brokers[side].down(KEYS[1 - side]);
        }
        self.settle();
    }

    fn tick(&mut self) {
        for broker in &mut self.brokers {
            broker.tick(self.now_ns);
        }
        self.settle();
    }

    fn connect(&mut self, request: u32) {
        let target = ("b", "render".to_owned());
        self.brokers[A].connect(self.now_ns, PORT, request, target, introduction(request), [7; 32]);
        self.settle();
    }

    /// What was told since.
    fn take(&mut self) -> Vec<(usize, Notice)> {
        std::mem::take(&mut self.told)
    }

    fn offer(&mut self) -> u32 {
        match &self.take()[..] {
            [.., (B, Notice::Offer { offer, .. })] => *offer,
            other => panic!("{other:?}"),
        }
    }

    fn accept(&mut self, offer: u32, connection: u32) {
        self.brokers[B].accept(PORT, offer, introduction(connection), [8; 32]);
        self.settle();
    }

    /// A connection with these numbers.
    fn meet(&mut self, ours: u32, theirs: u32) -> [Box<Terms>; 2] {
        self.connect(ours);
        let offer = self.offer();
        self.accept(offer, theirs);
        let mut told = self.take();
        told.sort_by_key(|(side, _)| *side);
        let terms: Vec<_> = told
            .into_iter()
            .map(|(_, notice)| match notice {
                Notice::Established(terms) => terms,
                other => panic!("{other:?}"),
            })
            .collect();
        terms.try_into().expect("one for each end")
    }

    /// A side uses a file of this serial, which the given side keeps.
    fn use_file(&mut self, side: usize, serial: u64, keeper: usize) {
        let text = text_of(serial);
        self.brokers[side].use_file(FabricFile { serial, keeper: Some(KEYS[keeper]), text });
        self.settle();
    }

    /// Nothing is left of anything.
    fn is_empty(&self) -> bool {
        let is_empty = |broker: &Broker| {
            let tables = broker.connections.len() + broker.outgoing.len() + broker.offers.len();
            let needs: usize = broker.nodes.values().map(|other| other.needs).sum();
            let ports: usize = broker
                .ports
                .values()
                .map(|registered| {
                    registered.numbers.len() + registered.requests.len() + registered.offers.len()
                })
                .sum();
            tables + needs + ports + broker.places.taken(1000) == 0
        };
        self.brokers.iter().all(is_empty) && self.is_wanted == [false; 2]
    }
}

#[test]
fn a_request_waits_for_a_channel_for_a_bounded_time() {
    let mut fixture = Fixture::new();
    fixture.connect(1);
    assert!(fixture.is_wanted[A] && fixture.take().is_empty());
    assert_eq!(fixture.brokers[A].next_timeout_ns(), Some(fixture.now_ns + REQUEST_TIMEOUT_NS));
    fixture.now_ns += REQUEST_TIMEOUT_NS;
    fixture.tick();
    let reason = NotConnected::Unreachable;
    assert_eq!(fixture.take(), [(A, Notice::NotConnected { request: 1, reason })]);
    assert!(fixture.is_empty() && fixture.brokers[A].next_timeout_ns().is_none());
    fixture.connect(2);
    fixture.up();
    let offer = fixture.offer();
    // An offer that is not answered ends, too, at both ends.
    fixture.now_ns += REQUEST_TIMEOUT_NS;
    fixture.tick();
    let told = fixture.take();
    assert!(told.contains(&(B, Notice::Withdrawn { offer })), "{told:?}");
    assert!(told.contains(&(A, Notice::NotConnected { request: 2, reason })) && told.len() == 2);
    assert!(fixture.is_empty());
    // The late answer is for nobody.
    fixture.accept(offer, 9);
    assert!(fixture.take().is_empty() && fixture.is_empty());
}

#[test]
fn requests_of_a_lost_channel_are_repeated_over_the_next_one() {
    let mut fixture = Fixture::new();
    fixture.up();
    fixture.connect(1);
    let offer = fixture.offer();
    fixture.down();
    assert_eq!(fixture.take(), [(B, Notice::Withdrawn { offer })]);
    fixture.up();
    let again = fixture.offer();
    fixture.accept(offer, 3);
    assert!(fixture.take().is_empty(), "the old offer is over");
    fixture.accept(again, 4);
    assert_eq!(fixture.take().len(), 2);
    // The answer is lost with the channel. The port that accepted hears of it when both services compare their lists.
    fixture.connect(2);
    let offer = fixture.offer();
    fixture.brokers[B].accept(PORT, offer, introduction(5), [8; 32]);
    fixture.down();
    assert!(matches!(fixture.take()[..], [(B, Notice::Established(_))]));
    fixture.up();
    let told = fixture.take();
    let ended = (B, Notice::Ended { connection: 5, reason: End::PeerReleased });
    assert!(told.contains(&ended) && told.len() == 2, "{told:?}");
    let [(_, Notice::Offer { offer, .. })] =
        told.iter().filter(|told| **told != ended).collect::<Vec<_>>()[..]
    else {
        panic!("{told:?}")
    };
    fixture.accept(*offer, 6);
    fixture.take();
    for side in [A, B] {
        fixture.brokers[side].port_ended(fixture.now_ns, PORT);
        fixture.settle();
    }
    assert!(fixture.is_empty());
}

#[test]
fn the_end_of_a_connection_is_reported_once_to_each_side() {
    let mut fixture = Fixture::new();
    fixture.up();
    let [ours, theirs] = fixture.meet(1, 11);
    assert!(ours.secret == theirs.secret && ours.peer.user == "alice" && ours.peer.groups == ["staff"]);
    let [to, from] = [[10, 0, 0, 2], [10, 0, 0, 1]].map(|ip| machine(ip).to_port(4000));
    assert_eq!((ours.path, theirs.path), (to, from));
    fixture.brokers[A].release(PORT, 1);
    fixture.settle();
    assert_eq!(fixture.take(), [(B, Notice::Ended { connection: 11, reason: End::PeerReleased })]);
    fixture.brokers[B].release(PORT, 11);
    fixture.settle();
    assert!(fixture.take().is_empty() && fixture.is_empty());
    fixture.meet(2, 12);
    fixture.brokers[B].port_ended(fixture.now_ns, PORT);
    fixture.settle();
    assert_eq!(fixture.take(), [(A, Notice::Ended { connection: 2, reason: End::PeerEnded })]);
    assert!(fixture.is_empty());
    fixture.connect(3);
    assert_eq!(fixture.take(), [(A, Notice::NotConnected { request: 3, reason: NotConnected::NoPort })]);
    assert!(fixture.is_empty());
}

#[test]
fn a_request_that_its_port_gives_up_is_cancelled_and_connects_nobody() {
    let mut fixture = Fixture::new();
    // Before there is a channel.
    fixture.connect(1);
    fixture.brokers[A].release(PORT, 1);
    fixture.settle();
    assert!(fixture.take().is_empty() && fixture.said.is_empty() && fixture.is_empty());
    // While the other port considers it.
    fixture.up();
    fixture.connect(2);
    let offer = fixture.offer();
    fixture.brokers[A].release(PORT, 2);
    fixture.settle();
    assert_eq!(fixture.take(), [(B, Notice::Withdrawn { offer })]);
    assert!(fixture.is_empty());
    // While the acceptance is under way.
    fixture.connect(3);
    let offer = fixture.offer();
    fixture.brokers[A].release(PORT, 3);
    fixture.brokers[B].accept(PORT, offer, introduction(13), [8; 32]);
    fixture.settle();
    let told = fixture.take();
    let ended = (B, Notice::Ended { connection: 13, reason: End::PeerReleased });
    assert!(matches!(&told[..], [(B, Notice::Established(_)), last] if *last == ended), "{told:?}");
    assert!(fixture.is_empty());
    // Once the request has been repeated over the next channel.
    fixture.connect(4);
    fixture.down();
    fixture.up();
    fixture.take();
    fixture.brokers[A].release(PORT, 4);
    fixture.settle();
    assert!(matches!(fixture.take()[..], [(B, Notice::Withdrawn { .. })]) && fixture.is_empty());
    // As many as a port may have under way can be given up, again and again.
    for request in 100..100 + 3 * UNDER_WAY_MAX as u32 {
        fixture.connect(request);
        fixture.brokers[A].release(PORT, request);
        fixture.settle();
    }
    assert!(fixture.take().iter().all(|(side, _)| *side == B) && fixture.is_empty());
}

#[test]
fn a_port_that_does_not_read_is_offered_nothing_more() {
    let mut fixture = Fixture::new();
    fixture.up();
    fixture.connect(1);
    let offer = fixture.offer();
    fixture.brokers[B].turn_away(offer);
    fixture.settle();
    // The limit is one of the other machine.
    let reason = NotConnected::Refused(Refusal::NoResources);
    let refused = (A, Notice::NotConnected { request: 1, reason });
    assert_eq!(fixture.take(), [refused]);
    assert!(fixture.is_empty());
    // A request that is given up before its port has been told leaves nothing to tell.
    let target = ("b", "render".to_owned());
    fixture.brokers[A].connect(fixture.now_ns, PORT, 2, target, introduction(2), [7; 32]);
    fixture.brokers[A].release(PORT, 2);
    while let Some(action) = fixture.brokers[A].next_action() {
        if let Action::Send(_, message) = action {
            fixture.brokers[B].hear(fixture.now_ns, KEYS[A], message);
        }
    }
    fixture.settle();
    assert!(fixture.take().is_empty() && fixture.is_empty());
}

#[test]
fn a_service_that_just_started_waits_for_its_ports_before_it_denies_a_connection() {
    let mut fixture = Fixture::just_started();
    fixture.brokers[B].port_ended(0, PORT);
    // One of a port that has ended since, one of a port that comes back, and one of a port that never does.
    fixture.brokers[A].keep(
        fixture.now_ns,
        PORT,
        vec![kept(B, 1, 200), kept(B, 2, 300), kept(B, 3, 400)],
        true,
    );
    fixture.up();
    let over = |connection| (A, Notice::Ended { connection, reason: End::PeerReleased });
    assert_eq!(fixture.take(), [over(1)]);
    fixture.brokers[B].register(PORT, port("render", 300)).expect("free");
    fixture.brokers[B].keep(fixture.now_ns, PORT, vec![kept(A, 2, 100)], true);
    fixture.brokers[A].inquire(fixture.now_ns, PORT, 2);
    fixture.settle();
    assert_eq!(fixture.take(), [(A, Notice::Alive { connection: 2 })]);
    fixture.now_ns = GRACE_NS;
    fixture.tick();
    assert_eq!(fixture.take(), [over(3)]);
}

#[test]
fn pending_requests_of_a_port_and_its_user_are_bounded() {
    let mut fixture = Fixture::new();
    for request in 0..=UNDER_WAY_MAX as u32 {
        fixture.connect(request);
    }
    let reason = NotConnected::NoResources;
    let request = UNDER_WAY_MAX as u32;
    assert_eq!(fixture.take(), [(A, Notice::NotConnected { request, reason })]);
    // As many offers are open at the other end, and one more is declined there.
    fixture.up();
    assert_eq!(fixture.take().len(), UNDER_WAY_MAX);
    let mut stranger = port("more", 101);
    stranger.uid = 1001;
    fixture.brokers[A].register(PORT + 2, stranger).expect("free");
    let target = ("b", "render".to_owned());
    fixture.brokers[A].connect(fixture.now_ns, PORT + 2, 1, target, introduction(1), [7; 32]);
    let Some(Action::Send(_, message)) = fixture.brokers[A].next_action() else { panic!("it asks") };
    fixture.brokers[B].hear(fixture.now_ns, KEYS[A], message);
    let declined = fixture.brokers[B].next_action();
    assert!(
        matches!(
            declined,
            Some(Action::Send(_, ServiceMessage::Decline { reason: NotConnected::NoResources, .. }))
        ),
        "{declined:?}"
    );
    assert_eq!(fixture.brokers[A].register(PORT + 4, port("more", 102)), Err(Unregistered::Unverified));
    // The port there can ask nevertheless.
    let target = ("a", "asking".to_owned());
    fixture.brokers[B].connect(fixture.now_ns, PORT, 900, target, introduction(900), [7; 32]);
    let asks = fixture.brokers[B].next_action();
    assert!(matches!(asks, Some(Action::Send(_, ServiceMessage::Connect { .. }))), "{asks:?}");
}

#[test]
fn a_user_of_another_machine_leaves_offers_of_a_port_to_others() {
    let mut fixture = Fixture::new();
    fixture.up();
    let mut request = 0;
    let mut ask_often = |fixture: &mut Fixture, user: &str| {
        let ask = |_: &usize| {
            request += 1;
            let message = ServiceMessage::Connect {
                request,
                port: "render".to_owned(),
                from: PortIdentity {
                    port: "asking".to_owned(),
                    user: user.to_owned(),
                    groups: Vec::new(),
                    incarnation: 100,
                },
                security: Security::Aes256Gcm,
                half: Half {
                    introduction: introduction(request),
                    udp_port: 4000,
                    route_bytes: 1472,
                    random: [9; 32],
                },
            };
            fixture.brokers[B].hear(fixture.now_ns, KEYS[A], message);
            let mut actions = std::iter::from_fn(|| fixture.brokers[B].next_action());
            actions.any(|action| matches!(action, Action::Tell(PORT, Notice::Offer { .. })))
        };
        (0..2 * UNDER_WAY_MAX).filter(ask).count()
    };
    assert_eq!(["bob", "carol", "1000"].map(|user| ask_often(&mut fixture, user)), [32, 16, 8]);
    // The port's own user may have all that are left.
    assert_eq!(ask_often(&mut fixture, "alice"), 8);
    // Offers that are over make room again.
    fixture.now_ns += REQUEST_TIMEOUT_NS;
    fixture.brokers[B].tick(fixture.now_ns);
    while fixture.brokers[B].next_action().is_some() {}
    assert!(fixture.brokers[B].ports[&PORT].offers.is_empty());
    assert_eq!(ask_often(&mut fixture, "bob"), 32);
}

#[test]
fn a_lying_service_harms_only_its_own_connections() {
    let mut fixture = Fixture::new();
    fixture.up();
    fixture.meet(1, 11);
    let identity = |port: &str| PortIdentity {
        port: port.to_owned(),
        user: "bob".to_owned(),
        groups: Vec::new(),
        incarnation: 200,
    };
    let half = Half { introduction: introduction(50), udp_port: 4000, route_bytes: 1472, random: [9; 32] };
    let accept = |request, port: &str, security, half: &Half| ServiceMessage::Accept {
        request,
        asking: end("asking", 100, 2),
        by: identity(port),
        security,
        half: half.clone(),
    };
    let wrong = [
        accept(0, "other", Security::Aes256Gcm, &half),
        accept(0, "render", Security::Plain, &half),
        accept(0, "render", Security::Aes256Gcm, &Half { udp_port: 0, ..half.clone() }),
    ];
    for message in wrong {
        fixture.connect(2);
        fixture.take();
        let request = *fixture.brokers[A].outgoing.keys().next().expect("under way");
        let ServiceMessage::Accept { asking, by, security, half, .. } = message else { unreachable!() };
        let message = ServiceMessage::Accept { request, asking, by, security, half };
        fixture.brokers[A].hear(fixture.now_ns, KEYS[B], message);
        let told = fixture.brokers[A].actions.iter().any(|action| {
            matches!(
                action,
                Action::Tell(PORT, Notice::NotConnected { reason: NotConnected::Unreachable, .. })
            )
        });
        assert!(told, "{:?}", fixture.brokers[A].actions);
        fixture.brokers[A].actions.clear();
        let open: Vec<u32> = fixture.brokers[B].offers.keys().copied().collect();
        open.into_iter().for_each(|offer| fixture.brokers[B].decline(PORT, offer, Refusal::NoResources));
        fixture.settle();
        fixture.take();
    }
    // A third node, which the connection is none of.
    let third = PublicKey([3; 32]);
    let mut others = vec![(KEYS[B], "b".to_owned()), (third, "c".to_owned())];
    fixture.brokers[A].follow(own(A), &others);
    fixture.brokers[A].up(third, [3; 16], machine([10, 0, 0, 3]), 1472);
    let connections =
        vec![ConnectionName { receiver: end("asking", 100, 1), sender: end("render", 200, 11) }];
    let ended = ServiceMessage::Ended { connections: connections.clone(), reason: PortEnd::Ended };
    fixture.brokers[A].hear(fixture.now_ns, third, ended);
    fixture.brokers[A].hear(fixture.now_ns, third, ServiceMessage::Alive { connections });
    assert!(fixture.brokers[A].actions.is_empty() && fixture.brokers[A].connections.len() == 1);
    let connect = |from| ServiceMessage::Connect {
        request: 1,
        port: "asking".to_owned(),
        from,
        security: Security::Aes256Gcm,
        half: half.clone(),
    };
    let bad = PortIdentity { user: "line\nbreak".to_owned(), ..identity("x") };
    // What fits into a message between services need not fit into a notice.
    let long = PortIdentity { groups: vec!["g".repeat(240); 16], ..identity("x") };
    for from in [bad, long] {
        fixture.brokers[A].hear(fixture.now_ns, third, connect(from));
        let answer = fixture.brokers[A].actions.pop_front();
        assert!(matches!(answer, Some(Action::Send(_, ServiceMessage::Decline { .. }))), "{answer:?}");
    }
    // Whoever is removed goes with all that is its own.
    others.remove(0);
    fixture.brokers[A].follow(own(A), &others);
    let ended = Notice::Ended { connection: 1, reason: End::NodeRemoved };
    let told = fixture.brokers[A].actions.pop_front();
    assert!(matches!(told, Some(Action::Tell(PORT, notice)) if notice == ended));
    assert!(fixture.brokers[A].connections.is_empty());
}

#[test]
fn only_a_message_that_names_both_ends_ends_a_connection() {
    let mut fixture = Fixture::new();
    fixture.up();
    fixture.meet(1, 11);
    // Another user's port on a claims to have kept a connection with the end on b, and releases it. So does one with the
    // incarnation of the true port, which alone is nobody's.
    for (name, incarnation) in [("stranger", 666), ("twin", 100)] {
        let mut stranger = port(name, incarnation);
        stranger.uid = 1001;
        fixture.brokers[A].register(PORT + 2, stranger).expect("free");
        let claimed = Kept { connection: 1, peer_connection: 11, ..kept(B, 1, 200) };
        fixture.brokers[A].keep(fixture.now_ns, PORT + 2, vec![claimed], true);
        fixture.brokers[A].release(PORT + 2, 1);
        fixture.brokers[A].port_ended(fixture.now_ns, PORT + 2);
    }
    let mut told = Vec::new();
    for _ in 0..100 {
        let Some((side, order)) =
            [A, B].into_iter().find_map(|side| Some((side, fixture.brokers[side].next_action()?)))
        else {
            break;
        };
        match order {
            Action::Send(_, message) => {
                fixture.brokers[1 - side].hear(fixture.now_ns, KEYS[side], message);
            }
            Action::Tell(PORT, notice) => told.push((side, notice)),
            _ => {}
        }
    }
    assert_eq!(told, []);
    assert!(fixture.brokers.iter().all(|broker| broker.connections.len() == 1));
    // Who takes the place of a port that has not come back is not taken for it by the other service.
    fixture.brokers[A].release(PORT, 1);
    fixture.settle();
    assert_eq!(fixture.take(), [(B, Notice::Ended { connection: 11, reason: End::PeerReleased })]);
}

#[test]
fn a_pending_inquiry_is_not_repeated_and_one_in_the_grace_period_is_answered_later() {
    let mut fixture = Fixture::just_started();
    fixture.up();
    fixture.meet(1, 11);
    fixture.said.clear();
    fixture.is_up = false;
    for _ in 0..1000 {
        fixture.brokers[A].inquire(fixture.now_ns, PORT, 1);
    }
    assert_eq!(std::iter::from_fn(|| fixture.brokers[A].next_action()).count(), 1);
    fixture.now_ns += super::INQUIRY_NS;
    fixture.brokers[A].inquire(fixture.now_ns, PORT, 1);
    fixture.is_up = true;
    fixture.settle();
    assert_eq!(fixture.take(), [(A, Notice::Alive { connection: 1 })]);
    // The service of b begins anew. It hears the question before its port has come back.
    fixture.brokers[B] = Broker::new(fixture.now_ns, own(B));
    fixture.brokers[B].follow(own(B), &[(KEYS[A], NAMES[A].to_owned())]);
    fixture.up();
    fixture.brokers[A].inquire(fixture.now_ns, PORT, 1);
    fixture.settle();
    assert_eq!(fixture.take(), []);
    fixture.brokers[B].register(PORT, port("render", 200)).expect("free");
    // It comes back with a part of what it has, and nothing that it may still bring along is denied.
    fixture.brokers[B].keep(fixture.now_ns, PORT, Vec::new(), false);
    fixture.now_ns += super::INQUIRY_NS;
    fixture.brokers[A].inquire(fixture.now_ns, PORT, 1);
    fixture.settle();
    assert_eq!(fixture.take(), []);
    fixture.brokers[B].keep(
        fixture.now_ns,
        PORT,
        vec![Kept { connection: 11, peer_connection: 1, ..kept(A, 1, 100) }],
        true,
    );
    fixture.settle();
    assert_eq!(fixture.take(), [(A, Notice::Alive { connection: 1 })]);
}

#[test]
fn plain_connections_end_when_the_fabric_becomes_encrypted() {
    let mut fixture = Fixture::new();
    let plain = |side| ThisNode { security: Security::Plain, ..own(side) };
    for side in [A, B] {
        fixture.brokers[side].follow(plain(side), &[(KEYS[1 - side], NAMES[1 - side].to_owned())]);
    }
    fixture.up();
    fixture.meet(1, 11);
    let before = kept(B, 2, 200);
    fixture.brokers[A].keep(
        fixture.now_ns,
        PORT,
        vec![Kept { security: Security::Plain, ..before.clone() }],
        true,
    );
    fixture.brokers[A].release(PORT, 2);
    fixture.settle();
    assert_eq!(fixture.take(), [], "nothing is wrong with a plain one now");
    fixture.brokers[A].follow(own(A), &[(KEYS[B], NAMES[B].to_owned())]);
    fixture.settle();
    let reason = End::SecurityChanged;
    let over = (B, Notice::Ended { connection: 11, reason: End::PeerReleased });
    assert_eq!(fixture.take(), [(A, Notice::Ended { connection: 1, reason }), over]);
    fixture.brokers[A].keep(fixture.now_ns, PORT, vec![Kept { security: Security::Plain, ..before }], true);
    fixture.settle();
    assert_eq!(fixture.take(), [(A, Notice::Ended { connection: 2, reason })]);
    assert!(fixture.is_empty());
}

#[test]
fn a_kept_connection_follows_the_key_of_its_node() {
    let mut fixture = Fixture::new();
    fixture.up();
    // The name b has gone to another machine.
    let others = [(PublicKey([3; 32]), "b".to_owned())];
    fixture.brokers[A].follow(own(A), &others);
    fixture.brokers[A].keep(fixture.now_ns, PORT, vec![kept(B, 1, 200)], true);
    fixture.settle();
    assert_eq!(fixture.take(), [(A, Notice::Ended { connection: 1, reason: End::NodeRemoved })]);
}

#[test]
fn connections_follow_a_machine_to_its_new_address() {
    let mut fixture = Fixture::new();
    fixture.up();
    fixture.meet(1, 11);
    fixture.take();
    let expect = |fixture: &mut Fixture, address: [u8; 4], told: &[u32]| {
        let told: Vec<_> = told
            .iter()
            .map(|connection| (A, Notice::Moved { connection: *connection, path: machine(address) }))
            .collect();
        fixture.settle();
        assert_eq!(fixture.take(), told);
    };
    let moved = [10, 9, 9, 9];
    fixture.brokers[A].moved(KEYS[B], machine(moved), 1472);
    expect(&mut fixture, moved, &[1]);
    fixture.brokers[A].moved(KEYS[B], machine(moved), 1472);
    expect(&mut fixture, moved, &[]);
    // It sends to another address of this machine now.
    let local = Some([10, 0, 0, 101].into());
    let path = MachinePath { local, ..machine(moved) };
    fixture.brokers[A].moved(KEYS[B], path, 1472);
    fixture.settle();
    assert_eq!(fixture.take(), [(A, Notice::Moved { connection: 1, path })]);
    assert_eq!(fixture.meet(2, 12)[0].path.local, local, "later connections have it as well");
    // A channel made anew does not know that address yet.
    fixture.brokers[A].down(KEYS[B]);
    fixture.brokers[A].up(KEYS[B], [1; 16], machine(moved), 1472);
    expect(&mut fixture, moved, &[]);
    fixture.brokers[A].moved(KEYS[B], path, 1472);
    expect(&mut fixture, moved, &[]);
    fixture.brokers[A].release(PORT, 2);
    fixture.settle();
    fixture.take();
    // The socket of the port has no IPv6.
    fixture.brokers[A].moved(KEYS[B], machine([0xfd00, 0, 0, 0, 0, 0, 0, 1]), 1472);
    expect(&mut fixture, moved, &[]);
    // It may also move while there is no channel, or while the service here is away.
    let again = [10, 9, 9, 10];
    fixture.brokers[A].down(KEYS[B]);
    fixture.brokers[A].up(KEYS[B], [1; 16], machine(again), 1472);
    expect(&mut fixture, again, &[1]);
    let mut fixture = Fixture::just_started();
    fixture.brokers[A].up(KEYS[B], [1; 16], machine(moved), 1472);
    fixture.brokers[A].keep(fixture.now_ns, PORT, vec![kept(B, 1, 200)], true);
    let notice = std::iter::from_fn(|| fixture.brokers[A].next_action()).find_map(|action| match action {
        Action::Tell(_, notice) => Some(notice),
        _ => None,
    });
    assert_eq!(notice, Some(Notice::Moved { connection: 1, path: machine(moved) }));
}

#[test]
fn inquiries_with_invalid_port_names_are_not_remembered() {
    let mut fixture = Fixture::just_started();
    fixture.up();
    let long = "x".repeat(3000);
    for connection in 0..100 {
        for (ours, theirs) in [(long.as_str(), "asking"), ("render", long.as_str())] {
            let (receiver, sender) = (end(ours, 7, connection), end(theirs, 8, connection));
            let connections = vec![ConnectionName { receiver, sender }];
            fixture.brokers[B].hear(fixture.now_ns, KEYS[A], ServiceMessage::Check { connections });
        }
    }
    assert!(fixture.brokers[B].pending_checks.is_empty());
}

#[test]
fn a_file_of_the_keeper_reaches_the_other_node_once_it_is_reached() {
    let mut fixture = Fixture::new();
    fixture.use_file(A, 1, A);
    fixture.use_file(B, 1, A);
    assert_eq!(fixture.is_wanted, [true; 2], "each has to hear of the other");
    fixture.up();
    assert!(fixture.is_empty() && fixture.adopted.is_empty());

    fixture.use_file(A, 2, A);
    assert_eq!(fixture.adopted, [(B, text_of(2))]);
    assert!(!fixture.is_empty(), "it has not said yet that it uses the file");
    fixture.use_file(B, 2, A);
    assert!(fixture.is_empty());

    // The channel is lost in the middle, and the file has changed when it is up again.
    fixture.adopted.clear();
    fixture.down();
    fixture.use_file(A, 3, A);
    fixture.is_up = true;
    fixture.brokers[B].up(KEYS[A], [A as u8; 16], machine([10, 0, 0, 1]), 1472);
    fixture.brokers[B].hear(0, KEYS[A], ServiceMessage::FileSerial { serial: 3 });
    let first = FilePart { serial: 3, length: 9000, offset: 0, bytes: b"3".repeat(100) };
    fixture.brokers[B].hear(0, KEYS[A], ServiceMessage::FilePart(first));
    fixture.down();
    fixture.use_file(A, 4, A);
    assert!(fixture.adopted.is_empty() && fixture.is_wanted == [true; 2]);
    fixture.up();
    assert_eq!(fixture.adopted, [(B, text_of(4))]);
    fixture.use_file(B, 4, A);
    assert!(fixture.is_empty());

    // The keeper hands over, and the next one changes the file.
    fixture.use_file(A, 5, B);
    fixture.use_file(B, 5, B);
    assert!(fixture.is_empty());
    fixture.adopted.clear();
    fixture.use_file(B, 6, B);
    assert_eq!(fixture.adopted, [(A, text_of(6))]);
    fixture.use_file(A, 6, B);
    assert!(fixture.is_empty());
}

#[test]
fn a_file_that_could_not_be_used_is_asked_for_when_the_present_one_is_read_again() {
    let mut fixture = Fixture::new();
    fixture.use_file(A, 1, A);
    fixture.use_file(B, 1, A);
    fixture.up();
    fixture.use_file(A, 2, A);
    assert_eq!(fixture.adopted, [(B, text_of(2))]);
    // It could not be written. The user has mended that, and has the service read its file again.
    fixture.adopted.clear();
    fixture.use_file(B, 1, A);
    assert_eq!(fixture.adopted, [(B, text_of(2))]);
    fixture.use_file(B, 2, A);
    assert!(fixture.is_empty());
}

#[test]
fn a_file_that_changes_while_the_one_before_comes_into_use_reaches_the_other_node() {
    let mut fixture = Fixture::new();
    fixture.use_file(A, 1, A);
    fixture.use_file(B, 1, A);
    fixture.up();
    fixture.use_file(A, 2, A);
    assert_eq!(fixture.adopted, [(B, text_of(2))]);
    // The announcement arrives before the other service has written the file that it has got.
    fixture.brokers[A].use_file(FabricFile { serial: 3, keeper: Some(KEYS[A]), text: text_of(3) });
    let Some(Action::Send(_, announced)) = fixture.brokers[A].next_action() else { panic!("nothing said") };
    assert_eq!(announced, ServiceMessage::FileSerial { serial: 3 });
    fixture.brokers[B].hear(0, KEYS[A], announced);
    fixture.adopted.clear();
    fixture.use_file(B, 2, A);
    assert_eq!(fixture.adopted, [(B, text_of(3))]);
    fixture.use_file(B, 3, A);
    assert!(fixture.is_empty());
}

#[test]
fn a_node_whose_serial_was_raised_by_hand_counts_as_uninformed_until_the_keepers_file_is_in_use_there() {
    let mut fixture = Fixture::new();
    fixture.use_file(A, 2, A);
    fixture.use_file(B, 9, A);
    fixture.up();
    assert_eq!(fixture.ahead, [(A, 9)]);
    fixture.use_file(A, 3, A);
    assert!(fixture.adopted.is_empty());
    // Each is reported once, and the keeper goes on to need the channel.
    assert_eq!((fixture.brokers[A].ahead(&KEYS[B]), fixture.ahead.len()), (Some(9), 1));
    assert!(fixture.is_wanted[A] && !fixture.is_empty());
    // The user raises the keeper's above that.
    fixture.use_file(A, 10, A);
    assert_eq!((fixture.brokers[A].ahead(&KEYS[B]), fixture.adopted.len()), (None, 1));
    fixture.use_file(B, 10, A);
    assert!(fixture.is_empty());

    // A former keeper still receives later files.
    fixture.use_file(A, 11, B);
    fixture.use_file(B, 11, B);
    fixture.use_file(B, 12, B);
    assert!(fixture.ahead.len() == 1 && fixture.brokers[A].ahead(&KEYS[B]).is_none());
}

#[test]
fn a_node_that_was_away_asks_the_keeper_first() {
    let mut fixture = Fixture::new();
    fixture.use_file(A, 5, A);
    fixture.is_wanted[A] = false;
    fixture.use_file(B, 3, A);
    assert!(fixture.is_wanted[B]);
    fixture.up();
    assert_eq!(fixture.adopted, [(B, text_of(5))]);
    fixture.use_file(B, 5, A);
    assert!(fixture.is_empty());
}

#[test]
fn a_file_is_taken_only_from_the_keeper_of_the_present_one_and_only_if_it_is_newer() {
    let mut fixture = Fixture::new();
    // The other node keeps no file that this one knows of.
    fixture.use_file(A, 5, A);
    fixture.use_file(B, 5, B);
    fixture.up();
    fixture.said.clear();
    let part = |serial: u64| FilePart { serial, length: 4, offset: 0, bytes: b"evil".to_vec() };
    for side in [A, B] {
        for message in [
            ServiceMessage::FilePart(part(9)),
            ServiceMessage::FileSerial { serial: 9 },
            ServiceMessage::FilePart(part(9)),
        ] {
            fixture.brokers[side].hear(0, KEYS[1 - side], message);
            fixture.settle();
        }
    }
    assert!(fixture.adopted.is_empty() && fixture.said.is_empty(), "{:?}", fixture.said);
    // A keeper sends an older one, or one that nobody has asked for.
    fixture.use_file(A, 6, B);
    fixture.said.clear();
    for message in [
        ServiceMessage::FilePart(part(5)),
        ServiceMessage::FilePart(part(6)),
        ServiceMessage::FilePart(part(9)),
    ] {
        fixture.brokers[A].hear(0, KEYS[B], message);
        fixture.settle();
    }
    assert!(fixture.adopted.is_empty() && fixture.said.is_empty(), "{:?}", fixture.said);
    // A removed node is neither told nor asked.
    fixture.use_file(B, 7, B);
    fixture.brokers[B].follow(own(B), &[]);
    fixture.use_file(B, 8, B);
    assert_eq!(fixture.brokers[B].nodes.len(), 0);
    assert!(fixture.brokers[B].next_action().is_none());
}

#[test]
fn after_a_restart_each_user_gets_its_connections_back_whoever_comes_first() {
    let mut fixture = Fixture::just_started();
    let most = CONNECTIONS.common as u32 / 4;
    let bring_along = |broker: &mut Broker, now_ns: u64, id: PortId, uid: u32| {
        let own = Port { uid, ..port(&format!("p{uid}"), 100) };
        broker.register(id, own).expect("free");
        broker.keep(now_ns, id, (0..most).map(|connection| kept(B, connection, 200)).collect(), true);
        broker.places.taken(uid) as u32
    };
    let broker = &mut fixture.brokers[A];
    let back = [1001, 1002, 1003].map(|uid| bring_along(broker, 0, uid.into(), uid));
    assert_eq!(back, [most; 3]);
    assert!(bring_along(broker, GRACE_NS, 1004, 1004) < most, "its ports have had their time");
}
