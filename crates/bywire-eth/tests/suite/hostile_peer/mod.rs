//! A process that speaks to carrying loops. The test decides everything that it sends, valid or not.
use std::path::Path;
use std::time::{Duration, Instant};

use bywire::{Event, Geometry, LaneGeometry, Peer, Port, PortName, PortOptions, Priority};
use bywire_eth::address::MacAddress;
use bywire_eth::order::{self, Answer, Join, Order};
use bywire_sys::socket::Socket;

/// The longest datagram between processes: a descriptor and a frame.
pub const DATAGRAM_BYTES_MAX: usize = 65_472;
/// The timeout of every step.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A port with a name under which loops of the network look for peers.
pub struct HostilePeer {
    /// Its port.
    pub port: Port,
}

/// Lets a loop join the network in a directory.
pub fn join(orders: &Socket, node: &str, directory: &Path) {
    let (network, node, directory) = ("test".to_owned(), node.to_owned(), directory.to_owned());
    order::send(orders, &Order::Join(Join { network, node, queue: 0, directory }), None).expect("sent");
    order::send(orders, &Order::Barrier, None).expect("sent");
    assert_eq!(order::await_next::<Answer>(orders, TIMEOUT).expect("an answer"), Answer::Done);
}

impl HostilePeer {
    /// Opens the port. Loops that join later find it.
    pub fn open(node: &str, directory: &Path) -> Self {
        let hash = MacAddress::of_node(node).to_string().replace(':', "");
        let name: PortName = format!("eth.test.{hash}.0").parse().expect("a name");
        let small = LaneGeometry { slots: 64, bulk_bytes: 262_144 };
        let large = LaneGeometry { slots: 1024, bulk_bytes: 2 << 20 };
        let port = Port::open(PortOptions {
            name: Some(name),
            message_bytes_max: DATAGRAM_BYTES_MAX as u64,
            geometry: Geometry { lanes: [small, small, large], fragment_bytes: DATAGRAM_BYTES_MAX as u32 },
            runtime_directory: Some(directory.to_owned()),
            ..PortOptions::default()
        });
        Self { port: port.expect("a port") }
    }

    /// Waits for the next peer that connects.
    pub fn meet(&mut self) -> Peer {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "nobody comes");
            if let Some(Event::Connected(peer)) = self.poll() {
                return peer;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next event other than messages and datagrams, whose payloads are recycled.
    pub fn poll(&mut self) -> Option<Event> {
        loop {
            match self.port.poll()? {
                Event::Message(message) | Event::Datagram(message) => self.port.recycle(message.payload),
                other => return Some(other),
            }
        }
    }

    /// Waits for a datagram of this length.
    pub fn await_datagram(&mut self, length: usize) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "it never comes");
            match self.port.poll() {
                Some(Event::Datagram(message)) => {
                    let is_it = message.payload.len() == length;
                    self.port.recycle(message.payload);
                    if is_it {
                        return;
                    }
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Introduces the hostile peer with one interface.
    pub fn introduce(&mut self, peer: Peer, mac: [u8; 6]) {
        self.port.send(peer, Priority::High, &introduction(mac, 1)).expect("there is room");
    }

    /// Sends a datagram as soon as there is room.
    pub fn send(&mut self, peer: Peer, datagram: &[u8]) {
        while !self.port.send_datagram(peer, Priority::Low, datagram).expect("connected") {
            while self.poll().is_some() {}
            std::thread::yield_now();
        }
    }
}

/// The introduction of a loop with an interface of this address and `count - 1` interfaces without traffic.
pub fn introduction(mac: [u8; 6], count: u8) -> Vec<u8> {
    let interface = |index: u8| {
        let mac = if index == 0 { mac } else { [0xA2, 0, 0, 0, 0, index] };
        let label = format!("far:{:b>240}", index);
        serde_json::json!({ "label": label, "mac": mac, "mtu_bytes": 1500 })
    };
    let interfaces: Vec<_> = (0..count).map(interface).collect();
    let said = serde_json::json!({
        "version": 2, "node": "hostile_peer", "interfaces": interfaces, "is_first": true, "is_last": true,
    });
    said.to_string().into_bytes()
}
