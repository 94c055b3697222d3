//! This machine's node in `bywire status`, as text and as JSON.

use anyhow::Result;
use bywire_command::exit_status::Misuse;
use bywire_node::client::{self, ClientError};
use bywire_node::key;
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::Security;
use bywire_wire::service::status::{self, Blocked, CopiedKey, Entry, Node, Sockets, State, Unsent};
use serde_json::{Value, json};

use crate::count;

/// The state of this machine's service. `None`: none is running.
///
/// # Errors
/// A running service does not answer.
pub fn ask() -> Result<Option<Vec<Entry>>> {
    match client::status(None) {
        Ok(entries) => Ok(Some(entries)),
        // The service of another user, or there is no directory for one.
        Err(ClientError::Absent | ClientError::OtherUser(_) | ClientError::Runtime(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The nodes among the entries.
pub fn nodes(entries: Vec<Entry>) -> Vec<Node> {
    let nodes = entries.into_iter().filter_map(|entry| match entry {
        Entry::Node(node) => Some(node),
        _ => None,
    });
    nodes.collect()
}

/// The node with this name.
///
/// # Errors
/// [`Misuse`]: the fabric has no such node, or it is this machine.
pub fn find<'nodes>(nodes: &'nodes [Node], name: &str) -> Result<&'nodes Node> {
    let Some(node) = nodes.iter().find(|node| node.name == name) else {
        let others = nodes.iter().filter(|node| node.state != State::Own);
        let others: Vec<&str> = others.map(|node| node.name.as_str()).collect();
        let text = format!("there is no node {name} in fabric.toml; its other nodes: {}", others.join(", "));
        return Err(Misuse(text).into());
    };
    if node.state == State::Own {
        return Err(Misuse(format!("{name} is this machine: name another node")).into());
    }
    Ok(node)
}

/// The state as text.
pub fn text(entries: &[Entry]) -> String {
    entries.iter().map(line).collect()
}

fn line(entry: &Entry) -> String {
    match entry {
        Entry::Service(service) => service_lines(service),
        Entry::Node(node) => node_lines(node),
        Entry::Port(port) => {
            let reach = if port.is_reachable { "accepts connections" } else { "connects only" };
            format!(
                "port {} of {} (process {}) {reach}, UDP port {}{}\n",
                port.name,
                port.user,
                port.pid,
                port.udp_port,
                sockets_text(&port.sockets)
            )
        }
        Entry::Connection(connection) => format!(
            "connection {} - {}/{} of {}, {}\n",
            connection.port,
            connection.peer_node,
            connection.peer_port,
            connection.peer_user,
            security_text(connection.security)
        ),
    }
}

fn service_lines(service: &status::Service) -> String {
    let mut text = format!(
        "node {} of fabric {}, serial {}, {}, UDP port {}, up for {}{}\n",
        service.node,
        service.fabric,
        service.serial,
        if service.is_encrypted { "encrypted" } else { "not encrypted" },
        service.udp_port,
        duration_text(service.uptime_s),
        sockets_text(&service.sockets)
    );
    if let Some(complaint) = &service.complaint {
        text += &format!("the new fabric file was rejected, and the previous one is in use: {complaint}\n");
    }
    if let Some(reason) = &service.unwritten {
        text += &unwritten_text(service.serial, reason);
    }
    let strange = service.strangers.iter().filter(|(_, count)| *count > 0);
    let strange: Vec<String> =
        strange.map(|(name, count)| format!("{count} {}", stranger_text(name))).collect();
    if !strange.is_empty() {
        text += &format!("packets of unknown senders: {}\n", strange.join(", "));
    }
    if let Some((key, address)) = &service.last_unknown {
        text += &format!("last unknown key: {} at {address}\n", key_text(key));
    }
    if let Some(address) = &service.last_without_key {
        text += &format!("last packet for another key than this node's: from {address}\n");
    }
    text
}

/// The line about a fabric file that is in force and could not be written.
pub fn unwritten_text(serial: u64, reason: &str) -> String {
    format!(
        "serial {serial} is in force, and fabric.toml on the disk is older: {reason}: correct that; it is tried again\n"
    )
}

fn node_lines(node: &Node) -> String {
    let since = node.since_s.map_or(String::new(), |since_s| format!(" for {}", duration_text(since_s)));
    let state = match node.state {
        State::Own => "this machine".to_owned(),
        State::Idle => "idle: no connection needs it".to_owned(),
        State::Opening => {
            format!("not connected{since}: {}", node.complaint.as_deref().unwrap_or("no answer"))
        }
        State::Up => {
            let address = node.address.map_or(String::new(), |address| format!(" at {address}"));
            format!("up{address},{since}{}", channel_text(node))
        }
    };
    let mut text = format!("node {} ({}) {state}\n", node.name, node.addresses.join(", "));
    if let Some(blocked) = &node.blocked {
        text += &format!("node {}: {}\n", node.name, blocked_text(blocked));
    }
    if let Some(ahead) = node.ahead {
        text += &format!(
            "node {} takes no changes: its fabric file has serial {ahead}, which is more than this one's: raise this one's above that\n",
            node.name
        );
    }
    if let Some(copied) = &node.copied_key {
        text += &format!("{}: {}\n", copied_key_text(&node.name, copied), copied_key_remedy(&node.name));
    }
    text
}

/// With fewer packets sent, the share of lost ones says nothing, if it is no more than [`LOST_BY_JOINING`].
const SENT_MIN: u64 = 200;
/// Packets that a node loses at most by joining.
const LOST_BY_JOINING: u64 = 3;

/// The properties of a channel that is up, each with a comma before it.
fn channel_text(node: &Node) -> String {
    let rtt = node.rtt_us.map_or(String::new(), |rtt_us| format!(", round trip {rtt_us} µs"));
    let Some(channel) = node.channel else { return rtt };
    // A joining node leaves a channel whose last packets nobody acknowledges, which is much of the first few.
    let lost = match (channel.sent, channel.lost) {
        (0..SENT_MIN, 0..=LOST_BY_JOINING) => String::new(),
        (sent, lost) => format!(", {:.1} % lost", 100.0 * lost as f64 / sent.max(1) as f64),
    };
    let size = match channel.packet_bytes < channel.route_bytes {
        true => format!("{} bytes (the route carries {})", channel.packet_bytes, channel.route_bytes),
        false => format!("{} bytes", channel.packet_bytes),
    };
    format!("{rtt}{lost}, packets of {size}, {}", security_text(channel.security))
}

/// What is wrong with a connection of which no packet has arrived.
pub fn blocked_text(blocked: &Blocked) -> String {
    format!(
        "{} ago no packet of a connection arrived: let UDP between port {} here and port {} there through, or all ports \
         above 1023",
        duration_text(blocked.ago_s),
        blocked.udp_port,
        blocked.peer_udp_port
    )
}

/// Which machines have the key of one node.
pub fn copied_key_text(name: &str, copied: &CopiedKey) -> String {
    let CopiedKey { addresses: [present, other], ago_s } = copied;
    let ago = duration_text(*ago_s);
    format!("two machines answer with the key of node {name}: {present} and {other} ({ago} ago)")
}

/// What to do about that.
pub fn copied_key_remedy(name: &str) -> String {
    format!(
        "delete node.key on the one that is not {name}, and have it join as another node (`bywire invite NODE`); if nobody \
         should have that key, replace it on both"
    )
}

/// What is in sockets, and whether their buffers are as large as wanted; empty if there is nothing to say.
fn sockets_text(sockets: &Sockets) -> String {
    let Sockets { wanted_bytes, receive_bytes, send_bytes, waiting_bytes, dropped } = *sockets;
    let mut text = String::new();
    for (name, granted, setting) in [
        ("receive buffer", receive_bytes, "net.core.rmem_max"),
        ("send buffer", send_bytes, "net.core.wmem_max"),
    ] {
        if granted > 0 && granted < wanted_bytes {
            text += &format!(
                ", {name} of {} KiB instead of {} KiB (sysctl -w {setting}={wanted_bytes})",
                granted / 1024,
                wanted_bytes / 1024
            );
        }
    }
    if waiting_bytes > 0 {
        text += &format!(", {waiting_bytes} bytes wait");
    }
    if dropped > 0 {
        text += &format!(", {} dropped", count::of(dropped, "packet", "packets"));
    }
    text
}

/// A duration in its two largest units.
pub fn duration_text(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

fn stranger_text(name: &str) -> &str {
    match name {
        "unrecognized" => "of another protocol, an ended channel or an invalid invitation",
        "without_key" => "made without this node's public key",
        "unreadable" => "unreadable",
        "unknown_keys" => "with a key that the fabric file does not have",
        "cookies_sent" => "answered with a cookie",
        "dropped" => "dropped, as there were too many",
        other => other,
    }
}

/// The name of a protection.
pub fn security_text(security: Security) -> &'static str {
    match security {
        Security::Plain => "not encrypted",
        Security::Aes256Gcm => "AES-256-GCM",
        Security::ChaCha20Poly1305 => "ChaCha20-Poly1305",
    }
}

/// The text of a key.
pub fn key_text(bytes: &[u8; 32]) -> String {
    key::to_text(&PublicKey(*bytes))
}

/// The state as JSON. `null` if no service is running.
pub fn object(entries: Option<&[Entry]>) -> Value {
    let Some(entries) = entries else { return Value::Null };
    let mut object = json!({});
    let (mut nodes, mut ports, mut connections) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            Entry::Service(service) => object = service_object(service),
            Entry::Node(node) => nodes.push(node_object(node)),
            Entry::Port(port) => ports.push(json!({
                "name": port.name, "user": port.user, "pid": port.pid, "is_reachable": port.is_reachable,
                "udp_port": port.udp_port, "waiting_bytes": port.sockets.waiting_bytes,
                "dropped": port.sockets.dropped, "buffers": buffers_object(&port.sockets),
            })),
            Entry::Connection(connection) => connections.push(json!({
                "port": connection.port, "peer_node": connection.peer_node, "peer_port": connection.peer_port,
                "peer_user": connection.peer_user,
                "security": security_text(connection.security),
            })),
        }
    }
    object["nodes"] = nodes.into();
    object["ports"] = ports.into();
    object["connections"] = connections.into();
    object
}

fn service_object(service: &status::Service) -> Value {
    json!({
        "name": service.node, "fabric": service.fabric, "serial": service.serial,
        "is_encrypted": service.is_encrypted, "udp_port": service.udp_port, "uptime_s": service.uptime_s,
        "strangers": counts(&service.strangers), "complaint": service.complaint,
        "unwritten": service.unwritten,
        "last_unknown": service.last_unknown.as_ref().map(|(key, address)| {
            json!({ "key": key_text(key), "address": address.to_string() })
        }),
        "last_without_key": service.last_without_key.map(|address| address.to_string()),
        "waiting_bytes": service.sockets.waiting_bytes, "dropped": service.sockets.dropped,
        "buffers": buffers_object(&service.sockets),
    })
}

fn buffers_object(sockets: &Sockets) -> Value {
    json!({
        "wanted_bytes": sockets.wanted_bytes, "receive_bytes": sockets.receive_bytes,
        "send_bytes": sockets.send_bytes,
    })
}

/// The name of a state in JSON.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Own => "own",
        State::Idle => "idle",
        State::Opening => "opening",
        State::Up => "up",
    }
}

fn node_object(node: &Node) -> Value {
    json!({
        "name": node.name, "key": key_text(&node.key), "addresses": node.addresses,
        "bridge": node.is_bridge,
        "state": state_name(node.state), "since_s": node.since_s,
        "address": node.address.map(|address| address.to_string()), "rtt_us": node.rtt_us,
        "channel": node.channel.map(|channel| json!({
            "security": security_text(channel.security), "packet_bytes": channel.packet_bytes,
            "route_bytes": channel.route_bytes, "sent": channel.sent, "lost": channel.lost,
            "heard_ms": channel.heard_ms,
        })),
        "counters": counts(&node.counters), "complaint": node.complaint, "ahead": node.ahead,
        "copied_key": node.copied_key.map(|copied| json!({
            "addresses": copied.addresses.map(|address| address.to_string()), "ago_s": copied.ago_s,
        })),
        "unsent": node.unsent.map(|Unsent { to, reason }| json!({ "to": to.to_string(), "reason": reason.to_string() })),
        "blocked": node.blocked.map(|blocked| json!({
            "udp_port": blocked.udp_port, "peer_udp_port": blocked.peer_udp_port, "ago_s": blocked.ago_s,
        })),
    })
}

fn counts(named: &[(String, u64)]) -> Value {
    named
        .iter()
        .map(|(name, count)| (name.clone(), Value::from(*count)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status_fixture;

    #[test]
    fn durations_have_their_two_largest_units() {
        let texts = [0, 59, 60, 3600, 3660, 86_400, 90_061].map(duration_text);
        assert_eq!(texts, ["0 s", "59 s", "1 min 0 s", "1 h 0 min", "1 h 1 min", "1 d 0 h", "1 d 1 h"]);
    }

    #[test]
    fn a_small_buffer_is_reported_with_the_setting_that_limits_it() {
        let full = Sockets {
            wanted_bytes: 1 << 20,
            receive_bytes: 1 << 20,
            send_bytes: 1 << 20,
            ..Sockets::default()
        };
        assert_eq!(sockets_text(&full), "");
        let small = Sockets { receive_bytes: 212_992, dropped: 1, ..full };
        assert_eq!(
            sockets_text(&small),
            ", receive buffer of 208 KiB instead of 1024 KiB (sysctl -w net.core.rmem_max=1048576), 1 packet dropped"
        );
    }

    #[test]
    fn a_service_shows_why_its_fabric_file_could_not_be_written() {
        let service = status_fixture::service();
        let head =
            "node web1 of fabric office, serial 7, encrypted, UDP port 7248, up for 1 min 15 s\n".to_owned();
        assert_eq!(text(&[Entry::Service(service.clone())]), head);
        let unwritten = Some("No space left on device (os error 28)".to_owned());
        let more = "serial 7 is in force, and fabric.toml on the disk is older: No space left on device (os error 28): \
                    correct that; it is tried again\n";
        assert_eq!(text(&[Entry::Service(status::Service { unwritten, ..service })]), head + more);
    }

    #[test]
    fn a_node_that_is_up_shows_its_loss_packet_size_and_security() {
        let channel = status::Channel {
            security: Security::Aes256Gcm,
            packet_bytes: 1200,
            route_bytes: 1472,
            sent: 1000,
            lost: 5,
            heard_ms: 3,
        };
        let node = Node {
            name: "web2".to_owned(),
            key: [1; 32],
            addresses: vec!["web2.example:7248".to_owned()],
            is_bridge: false,
            state: State::Up,
            address: Some(([10, 0, 0, 2], 7248).into()),
            since_s: Some(75),
            channel: Some(channel),
            rtt_us: Some(210),
            counters: Vec::new(),
            blocked: Some(Blocked { udp_port: 40_000, peer_udp_port: 50_000, ago_s: 3 }),
            unsent: None,
            copied_key: Some(CopiedKey {
                addresses: [([10, 0, 0, 2], 7248).into(), ([10, 0, 0, 9], 7248).into()],
                ago_s: 61,
            }),
            ahead: Some(9),
            complaint: None,
        };
        let text = node_lines(&node);
        assert!(
            text.starts_with(
                "node web2 (web2.example:7248) up at 10.0.0.2:7248, for 1 min 15 s, round trip 210 µs, 0.5 % lost, \
                 packets of 1200 bytes (the route carries 1472), AES-256-GCM\n"
            ),
            "{text}"
        );
        assert!(text.contains("port 40000 here and port 50000 there"), "{text}");
        assert!(text.contains("node web2 takes no changes: its fabric file has serial 9"), "{text}");
        let copied = "\ntwo machines answer with the key of node web2: 10.0.0.2:7248 and 10.0.0.9:7248 (1 min 1 s ago): ";
        assert!(text.contains(copied), "{text}");
    }
}
