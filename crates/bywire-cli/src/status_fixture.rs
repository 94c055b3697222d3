//! A service and a node as their status has them, which tests change.

use bywire_wire::service::status::{Node, Service, Sockets, State};

pub fn service() -> Service {
    Service {
        fabric: "office".to_owned(),
        serial: 7,
        node: "web1".to_owned(),
        udp_port: 7248,
        is_encrypted: true,
        uptime_s: 75,
        strangers: Vec::new(),
        last_unknown: None,
        last_without_key: None,
        complaint: None,
        unwritten: None,
        sockets: Sockets::default(),
    }
}

pub fn node() -> Node {
    Node {
        name: "web2".to_owned(),
        key: [1; 32],
        addresses: Vec::new(),
        is_bridge: false,
        state: State::Idle,
        address: None,
        since_s: None,
        channel: None,
        rtt_us: None,
        counters: Vec::new(),
        blocked: None,
        unsent: None,
        copied_key: None,
        ahead: None,
        complaint: None,
    }
}
