//! A process that speaks to carrying loops. The test decides everything that it sends, valid or not.
use std::path::Path;

use bywire::{Event, Geometry, LaneGeometry, Peer, Port, PortName, PortOptions, Priority};
use bywire_eth::address::MacAddress;
use bywire_testing::eventually;

/// The longest datagram between processes: a descriptor and a frame.
pub const DATAGRAM_BYTES_MAX: usize = 65_472;

/// A port with a name under which loops of the network look for peers.
pub struct HostilePeer {
    /// Its port.
    pub port: Port,
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
        eventually("a peer", || match self.poll()? {
            Event::Connected(peer) => Some(peer),
            _ => None,
        })
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
        eventually("the datagram", || {
            std::iter::from_fn(|| self.port.poll())
                .any(|event| matches!(event, Event::Datagram(message) if message.payload.len() == length))
        });
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
