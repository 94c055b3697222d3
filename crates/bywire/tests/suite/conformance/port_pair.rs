//! Two ports that are connected by a link.

use std::collections::VecDeque;

use bywire::{Address, Event, Payload, Peer, Port, PortOptions, Reach};
use bywire_wire::keys::Security;

use crate::fake_service::{Behaviour, FakeService, Node, node};
use crate::ports::{PortDirectory, meet, meet_at, until};

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Shm,
    Udp(Security),
    /// UDP, while the same ports talk to another peer each through shared memory.
    Mixed,
}

pub const ALL: [Kind; 4] =
    [Kind::Shm, Kind::Udp(Security::Plain), Kind::Udp(Security::Aes256Gcm), Kind::Mixed];

/// Where ports of one link find each other.
pub struct Link {
    pub kind: Kind,
    places: [PortDirectory; 2],
    nodes: [Node; 2],
    service: Option<FakeService>,
}

/// Two connected ports, and the events that they have reported.
pub struct PortPair {
    pub a: Port,
    pub b: Port,
    pub to_b: Peer,
    pub to_a: Peer,
    seen: [VecDeque<Event>; 2],
    /// Neighbours of both through shared memory.
    neighbours: Vec<(Port, Peer)>,
}

/// A pair of ports for each kind of link.
pub fn pairs(options: &PortOptions) -> impl Iterator<Item = (Kind, Link, PortPair)> {
    ALL.into_iter().map(|kind| {
        let link = Link::new(kind);
        let pair = link.meet(options);
        (kind, link, pair)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    A,
    B,
}

impl Link {
    pub fn new(kind: Kind) -> Self {
        let security = match kind {
            Kind::Udp(security) => security,
            Kind::Shm | Kind::Mixed => Security::Aes256Gcm,
        };
        Self::with(kind, security.into(), None)
    }

    /// A link between nodes that behave so. Ports of the first one are said to be of `user`.
    pub fn with(kind: Kind, behaviour: Behaviour, user: Option<&str>) -> Self {
        let places = [PortDirectory::new(), PortDirectory::new()];
        let mut nodes = [node("a", places[0].path()), node("b", places[1].path())];
        nodes[0].user = user.map_or(nodes[0].user.clone(), str::to_owned);
        let service = (kind != Kind::Shm).then(|| FakeService::new(&nodes, behaviour));
        Self { kind, places, nodes, service }
    }

    /// The nodes go, and come back with `behaviour`, if that is given.
    pub fn restart(&mut self, behaviour: Option<Behaviour>) {
        self.service = None;
        self.service = behaviour.map(|behaviour| FakeService::new(&self.nodes, behaviour));
    }

    pub fn directory(&self, at: At) -> &std::path::Path {
        self.places[at as usize].path()
    }

    pub fn is_remote(&self) -> bool {
        self.kind != Kind::Shm
    }

    /// A port on the first or on the second node.
    pub fn open(&self, at: At, options: &PortOptions) -> Port {
        let reach = if self.is_remote() { Reach::Fabric } else { Reach::Machine };
        let place = if self.is_remote() && at == At::B { &self.places[1] } else { &self.places[0] };
        place.open(PortOptions { reach, ..options.clone() })
    }

    /// The address of `port`, which is on the second node, for ports on the first.
    pub fn address(&self, port: &Port) -> Address {
        let node = if self.is_remote() { "b" } else { "localhost" };
        Address { node: node.to_owned(), port: port.name().clone() }
    }

    /// Two connected ports with these options.
    pub fn meet(&self, options: &PortOptions) -> PortPair {
        let (mut a, mut b) = (self.open(At::A, options), self.open(At::B, options));
        let address = self.address(&b);
        let (to_b, to_a) = meet_at(&mut a, &mut b, &address);
        let mut pair = PortPair { a, b, to_b, to_a, seen: Default::default(), neighbours: Vec::new() };
        if self.kind == Kind::Mixed {
            for (place, port) in self.places.iter().zip([&mut pair.a, &mut pair.b]) {
                let mut neighbour = place.open(PortOptions::default());
                let (to_port, _) = meet(&mut neighbour, port);
                pair.neighbours.push((neighbour, to_port));
            }
        }
        pair
    }
}

impl PortPair {
    /// Polls both ports once.
    pub fn turn(&mut self) {
        for (port, seen) in [&mut self.a, &mut self.b].into_iter().zip(&mut self.seen) {
            seen.extend(port.poll());
        }
        for (neighbour, _) in &mut self.neighbours {
            match neighbour.poll() {
                None | Some(Event::Disconnected { .. }) => {}
                Some(event) => panic!("{event:?} at a neighbour"),
            }
        }
    }

    /// The next event of a port, while both are polled.
    pub fn next(&mut self, at: At) -> Event {
        until(|| {
            let found = self.seen[at as usize].pop_front();
            if found.is_none() {
                self.turn();
            }
            found
        })
    }

    /// An event of a port that has been seen already.
    pub fn seen(&mut self, at: At) -> Option<Event> {
        self.seen[at as usize].pop_front()
    }

    /// The next message at a port.
    pub fn message(&mut self, at: At) -> Payload {
        match self.next(at) {
            Event::Message(message) => message.payload,
            other => panic!("{other:?} instead of a message"),
        }
    }
}
