//! A member of the fabric that misbehaves.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bywire::{Address, Event, Geometry, LaneGeometry, Peer, Port, PortOptions, Priority};
use bywire_eth::address::MacAddress;
use bywire_eth::network::port_names;
use bywire_testing::test_network::{Machine, TIMEOUT};

/// A member of the fabric that speaks as a carrier, and sends whatever the test decides.
pub struct Member {
    port: Port,
    peer: Peer,
}

impl Member {
    /// Joins from a machine, and connects to the carrier of another one.
    pub fn join(machine: &Machine, target: &str) -> Self {
        let small = LaneGeometry { slots: 64, bulk_bytes: 262_144 };
        let options = PortOptions {
            name: Some(port_names("default", &machine.name, 1)[0].parse().expect("a name")),
            message_bytes_max: 65_472,
            geometry: Geometry { lanes: [small; 3], fragment_bytes: 65_472 },
            runtime_directory: Some(machine.runtime()),
            ..PortOptions::default()
        };
        let open = || {
            let mut port = Port::open(options).expect("open");
            let name = port_names("default", target, 1).remove(0).parse().expect("a name");
            let peer =
                port.connect(&Address { node: target.to_owned(), port: name }, TIMEOUT).expect("there");
            Self { port, peer }
        };
        machine.namespace.run(open).expect("inside")
    }

    /// Connects so often once more, and introduces none of these connections.
    pub fn connect_again(&mut self, target: &str, count: usize) {
        let name = port_names("default", target, 1).remove(0).parse().expect("a name");
        let address = Address { node: target.to_owned(), port: name };
        let deadline = Instant::now() + TIMEOUT;
        let mut begun = 0;
        let mut unsettled = HashSet::new();
        while begun < count || !unsettled.is_empty() {
            assert!(Instant::now() < deadline, "{} of {begun} are not settled", unsettled.len());
            // The service takes 64 requests of a port at a time.
            if begun < count
                && unsettled.len() < 32
                && let Ok(peer) = self.port.connect_start(&address)
            {
                unsettled.insert(peer);
                begun += 1;
            }
            match self.port.poll() {
                // One that is refused may have been connected for too short a time to be reported.
                Some(Event::Connected(peer) | Event::Disconnected { peer, .. }) => {
                    unsettled.remove(&peer);
                }
                Some(Event::Message(message) | Event::Datagram(message)) => {
                    self.port.recycle(message.payload)
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Introduces itself as a node, with an interface of each address.
    pub fn introduce(&mut self, node: &str, macs: &[MacAddress]) {
        let interface = |mac: &MacAddress| serde_json::json!({ "label": format!("-:{mac}"), "mac": mac.0, "mtu_bytes": 1500 });
        let interfaces: Vec<_> = macs.iter().map(interface).collect();
        let said = serde_json::json!({
            "version": 2, "node": node, "interfaces": interfaces, "is_first": true, "is_last": true,
        });
        self.port.send(self.peer, Priority::High, said.to_string().as_bytes()).expect("sent");
        self.port.flush();
    }

    pub fn send(&mut self, datagram: &[u8]) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.port.send_datagram(self.peer, Priority::Low, datagram).expect("connected") {
            self.serve();
            assert!(Instant::now() < deadline, "there is no room");
        }
        self.port.flush();
    }

    /// Serves the port for a moment.
    pub fn serve(&mut self) {
        for _ in 0..50 {
            match self.port.poll() {
                Some(Event::Message(message) | Event::Datagram(message)) => {
                    self.port.recycle(message.payload)
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
}
