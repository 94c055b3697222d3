//! The decisions of a machine's service, while a port of another user and the service of another node say anything: no
//! connection of an honest port ends or is told of to anybody else, and everything that is said fits into a packet.
#![no_main]

use std::net::IpAddr;

use bywire_node::broker::{Action, Broker, FabricFile, Port, PortId, ThisNode};
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::Security;
use bywire_wire::service::{Introduction, Notice, Refusal, Request, from_bytes, to_bytes};
use bywire_wire::service_message::{ConnectionName, EndName, Half, PortEnd, PortIdentity, ServiceMessage};
use libfuzzer_sys::fuzz_target;

const OWN: PublicKey = PublicKey([1; 32]);
const FRIEND: PublicKey = PublicKey([2; 32]);
const FOE: PublicKey = PublicKey([3; 32]);
const HONEST: PortId = 16;
const ROGUE: PortId = 18;
/// Connections of a rogue that a service may remember: a few thousand come with one input at most.
const CONNECTIONS_MAX: usize = 16_384;

fuzz_target!(|bytes: &[u8]| Fixture::new().run(bytes));

struct Fixture {
    broker: Broker,
    now_ns: u64,
    /// The honest port has this connection with a port of the friend.
    own: EndName,
    theirs: EndName,
    /// Notices to the honest port since the last check.
    told: Vec<Notice>,
    /// Messages to the friend's service since the last check.
    said: Vec<ServiceMessage>,
}

fn port(name: &str, uid: u32) -> Port {
    Port {
        name: name.to_owned(),
        uid,
        user: uid.to_string(),
        groups: Vec::new(),
        incarnation: 1,
        is_reachable: true,
        udp_port: 4000,
        has_v6: false,
    }
}

fn introduction(connection: u32) -> Introduction {
    Introduction { connection, message_bytes_max: 1, integrity: false, windows: [1; 3] }
}

fn own() -> ThisNode {
    ThisNode { name: "a".to_owned(), key: OWN, security: Security::Aes256Gcm }
}

fn end(port: &str) -> EndName {
    EndName { port: port.to_owned(), incarnation: 1, connection: 1 }
}

impl Fixture {
    fn new() -> Self {
        let mut broker = Broker::new(0, own());
        broker.follow(own(), &[(FRIEND, "b".to_owned()), (FOE, "c".to_owned())]);
        broker.use_file(FabricFile { serial: 7, keeper: Some(FRIEND), text: "x".repeat(5000) });
        for (id, name) in [(HONEST, "honest"), (ROGUE, "rogue")] {
            broker.register(id, port(name, 1000 + id as u32)).expect("the name is free");
            broker.keep(0, id, Vec::new(), true);
        }
        let (own, theirs) = (end("honest"), end("friend"));
        let mut fixture = Self { broker, now_ns: 0, own, theirs, told: Vec::new(), said: Vec::new() };
        for node in [FRIEND, FOE] {
            fixture.up(node, 0);
        }
        fixture.broker.connect(0, HONEST, 1, ("b", "friend".to_owned()), introduction(1), [1; 32]);
        fixture.settle();
        let asked = fixture.said.iter().find_map(|said| match said {
            ServiceMessage::Connect { request, .. } => Some(*request),
            _ => None,
        });
        let by = PortIdentity {
            port: "friend".to_owned(),
            user: "ann".to_owned(),
            groups: Vec::new(),
            incarnation: 1,
        };
        let half = Half { introduction: introduction(1), udp_port: 4000, route_bytes: 1452, random: [2; 32] };
        let (request, asking) = (asked.expect("it asks"), fixture.own.clone());
        let security = Security::Aes256Gcm;
        fixture.broker.hear(0, FRIEND, ServiceMessage::Accept { request, asking, by, security, half });
        fixture.settle();
        assert!(matches!(fixture.told[..], [Notice::Established(_)]));
        fixture.told.clear();
        fixture.said.clear();
        fixture
    }

    fn up(&mut self, node: PublicKey, boot: u8) {
        self.broker.up(node, [boot; 16], IpAddr::from([10, 0, 0, node.0[0]]).into(), 1452);
    }

    fn run(&mut self, mut bytes: &[u8]) {
        while let Some(([kind, length], rest)) = bytes.split_first_chunk() {
            let (body, rest) = rest.split_at(rest.len().min((*length).into()));
            bytes = rest;
            match kind % 8 {
                0..=2 => self.request(body),
                3 | 4 => {
                    if let Ok(message) = from_bytes::<ServiceMessage>(body) {
                        self.broker.hear(self.now_ns, FOE, message);
                    }
                }
                5 => {
                    self.now_ns += u64::from(*length) * 100_000_000;
                    self.broker.tick(self.now_ns);
                }
                6 => match length % 4 {
                    0 => self.broker.down(FOE),
                    1 => self.up(FOE, 0),
                    2 => self.up(FOE, *length),
                    _ => self.broker.moved(FOE, IpAddr::from([10, 0, 0, *length]).into(), 1200),
                },
                _ => {
                    self.broker.port_ended(self.now_ns, ROGUE);
                    self.broker.register(ROGUE, port("rogue", 1018)).expect("its name is free again");
                }
            }
            self.settle();
            self.check();
        }
        // Only the service that asks about the connection is told that it is alive.
        let about = |receiver: &EndName, sender: &EndName| {
            let (receiver, sender) = (receiver.clone(), sender.clone());
            ServiceMessage::Check { connections: vec![ConnectionName { receiver, sender }] }
        };
        self.broker.hear(self.now_ns, FRIEND, about(&self.own, &self.theirs));
        self.settle();
        assert!(matches!(self.said[..], [ServiceMessage::Alive { .. }]));
        self.said.clear();
        self.broker.port_ended(self.now_ns, HONEST);
        self.broker.port_ended(self.now_ns, ROGUE);
        self.settle();
        let ended =
            |said: &ServiceMessage| matches!(said, ServiceMessage::Ended { reason: PortEnd::Ended, .. });
        assert!(self.said.iter().any(ended));
        self.now_ns += 1_000_000_000_000;
        self.broker.tick(self.now_ns);
        self.settle();
        assert_eq!(self.broker.next_timeout_ns(), None, "something of the ports is left");
    }

    /// A packet of the rogue, as the service passes it on.
    fn request(&mut self, body: &[u8]) {
        let (now_ns, id, random) = (self.now_ns, ROGUE, [3; 32]);
        match from_bytes::<Request>(body) {
            Ok(Request::Register { kept, is_last, .. }) => self.broker.keep(now_ns, id, kept, is_last),
            Ok(Request::Connect { request, node, port, introduction }) => {
                self.broker.connect(now_ns, id, request, (&node, port), introduction, random);
            }
            Ok(Request::Accept { offer, introduction }) => {
                self.broker.accept(id, offer, introduction, random)
            }
            Ok(Request::Decline { offer, refusal }) => self.broker.decline(id, offer, refusal),
            Ok(Request::Release { connection }) => self.broker.release(id, connection),
            Ok(Request::Inquire { connection }) => self.broker.inquire(now_ns, id, connection),
            Ok(Request::Blocked { connection, peer_udp_port }) => {
                self.broker.note_blocked(now_ns, id, connection, peer_udp_port);
            }
            Ok(Request::Ping { .. }) => {
                self.broker.hold(FOE);
                self.settle();
                self.broker.let_go(FOE);
            }
            Ok(Request::Status { .. } | Request::Reload { .. } | Request::Invite { .. }) | Err(_) => {}
        }
    }

    fn settle(&mut self) {
        while let Some(action) = self.broker.next_action() {
            match action {
                Action::Tell(port, notice) => {
                    to_bytes(&notice).expect("a notice fits into a packet");
                    if port == HONEST {
                        self.told.push(notice);
                    }
                }
                Action::Send(node, message) => {
                    to_bytes(&message).expect("a message fits into a packet");
                    if node == FRIEND {
                        self.said.push(message);
                    }
                }
                // No file of the foe's: it is not the keeper.
                Action::Adopt(text) => panic!("{text}"),
                // The report is for the operator alone.
                Action::Want(_) | Action::Release(_) | Action::ReportAhead(..) => {}
            }
        }
    }

    /// The honest port and its friend hear of nothing but what concerns them.
    fn check(&mut self) {
        for notice in std::mem::take(&mut self.told) {
            match notice {
                // Every port may ask, and the honest port declines.
                Notice::Offer { offer, .. } => self.broker.decline(HONEST, offer, Refusal::NotAdmitted),
                Notice::Withdrawn { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        self.settle();
        for message in std::mem::take(&mut self.said) {
            let is_honest = |connections: &[ConnectionName]| {
                connections.iter().any(|name| name.sender == self.own || name.sender.port == "honest")
            };
            match message {
                ServiceMessage::Ended { connections, .. }
                | ServiceMessage::Check { connections }
                | ServiceMessage::Alive { connections } => assert!(!is_honest(&connections)),
                ServiceMessage::Connect { from, .. } => assert_eq!(from.port, "rogue"),
                ServiceMessage::Decline { .. } | ServiceMessage::Cancel { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(self.broker.connections_from(HONEST, 0).count(), 1);
        assert!(self.broker.connections_from(ROGUE, 0).count() <= CONNECTIONS_MAX);
    }
}
