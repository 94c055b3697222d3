//! The service's report of its state, for `bywire status`.

use bywire_sys::udp;
use bywire_wire::channel::{NodeCounts, Strangers};
use bywire_wire::service::status::{self, Entry, Position, State, Unsent};
use bywire_wire::service::to_bytes;

use crate::broker::{Blocked, Connection, Port, PortId};
use crate::link;

use super::Service;
use super::unwritten::Unwritten;

/// The most bytes of entries in one notice.
const PART_BYTES_MAX: usize = 3072;
/// The longest complaint in a report.
const COMPLAINT_BYTES_MAX: usize = 512;
/// The wanted size of the socket buffers of a port: that of `crates/bywire/src/port/fabric/sockets.rs`.
const PORT_BUFFER_BYTES: usize = 4 << 20;
const SECOND_NS: u64 = 1_000_000_000;

impl Service<'_> {
    /// Entries from a position on, and the position of the first one that did not fit.
    pub(super) fn report(
        &self,
        now_ns: u64,
        caller: PortId,
        from: Position,
    ) -> (Vec<Entry>, Option<Position>) {
        let (mut bytes, mut part) = (0, Vec::new());
        for (position, entry) in self.entries(now_ns, caller, from) {
            bytes += to_bytes(&entry).map_or(PART_BYTES_MAX, |entry| entry.len());
            if bytes > PART_BYTES_MAX && !part.is_empty() {
                return (part, Some(position));
            }
            part.push(entry);
        }
        (part, None)
    }

    /// Everything that this caller may see, in the order of positions. Nothing is looked at before it is needed.
    fn entries(
        &self,
        now_ns: u64,
        caller: PortId,
        from: Position,
    ) -> impl Iterator<Item = (Position, Entry)> {
        let asking = self.callers.get(&caller).map(|caller| caller.uid());
        let may_see = move |uid: u32| {
            asking.is_some_and(|asking| asking == uid || asking == 0 || asking == bywire_sys::process::user())
        };
        let is_start = from == Position::Start;
        let first_node = match from {
            Position::Start => Some(0),
            Position::Node(first) => Some(first as usize),
            _ => None,
        };
        let first_port = match &from {
            Position::Port(name) => Some(name.clone()),
            Position::Connection(..) => None,
            _ => Some(String::new()),
        };
        let (connection_port, first_connection) = match from {
            Position::Connection(port, number) => (port, number),
            _ => (String::new(), 0),
        };
        let start = is_start.then(|| (Position::Start, Entry::Service(self.service_entry(now_ns))));
        let nodes = first_node.into_iter().flat_map(move |first| {
            let nodes = self.fabric.nodes.iter().enumerate().skip(first);
            nodes.map(move |(place, node)| {
                (Position::Node(place as u32), Entry::Node(self.node_entry(now_ns, node)))
            })
        });
        let ports_from = move |name: String| {
            let ports: Vec<_> = self.broker.ports_from(&name).filter(|(_, port)| may_see(port.uid)).collect();
            ports.into_iter()
        };
        let ports = first_port
            .into_iter()
            .flat_map(ports_from)
            .map(|(id, port)| (Position::Port(port.name.clone()), Entry::Port(self.port_entry(id, port))));
        let connections = std::iter::once(()).flat_map(move |()| {
            let (connection_port, ports) = (connection_port.clone(), ports_from(connection_port.clone()));
            ports.flat_map(move |(id, port)| {
                let from = if port.name == connection_port { first_connection } else { 0 };
                self.broker.connections_from(id, from).map(move |(number, known)| {
                    let entry = Entry::Connection(self.connection_entry(port, known));
                    (Position::Connection(port.name.clone(), number), entry)
                })
            })
        });
        start.into_iter().chain(nodes).chain(ports).chain(connections)
    }

    fn port_entry(&self, id: PortId, port: &Port) -> status::Port {
        let backlog = self.callers.get(&id).and_then(|caller| caller.copies());
        let backlog = backlog.and_then(|copies| udp::backlog(&copies.udp).ok());
        status::Port {
            name: port.name.clone(),
            user: port.user.clone(),
            pid: self.callers.get(&id).map_or(0, |caller| caller.pid()),
            is_reachable: port.is_reachable,
            udp_port: port.udp_port,
            sockets: link::sockets(PORT_BUFFER_BYTES, backlog.into_iter()),
        }
    }

    fn connection_entry(&self, port: &Port, known: &Connection) -> status::Connection {
        status::Connection {
            port: port.name.clone(),
            peer_node: self.broker.node_name(&known.node).unwrap_or_default().to_owned(),
            peer_port: known.peer.port.clone(),
            peer_user: known.peer_user.clone(),
            security: known.security,
        }
    }

    fn service_entry(&self, now_ns: u64) -> status::Service {
        let complaint = self.complaint.as_ref().map(|complaint| shortened(complaint));
        status::Service {
            fabric: self.fabric.name.clone(),
            serial: self.fabric.serial,
            node: self.node().to_owned(),
            udp_port: self.udp_port(),
            is_encrypted: self.fabric.is_encrypted,
            uptime_s: now_ns.saturating_sub(self.began_ns) / SECOND_NS,
            strangers: strangers(self.link.strangers()),
            last_unknown: self.last_unknown().map(|(key, address)| (key.0, address)),
            last_without_key: self.link.strangers().last_without_key,
            complaint,
            unwritten: self.unwritten.as_ref().and_then(Unwritten::reason).map(shortened),
            sockets: self.link.sockets(),
        }
    }

    fn node_entry(&self, now_ns: u64, node: &crate::fabric::Node) -> status::Node {
        let is_own = node.key == self.key.public();
        let found = self.link.status(&node.key).filter(|_| !is_own);
        let channel = found.and_then(|found| found.channel);
        let state = match (is_own, channel, found.is_some_and(|found| found.is_wanted)) {
            (true, ..) => State::Own,
            (_, Some(_), _) => State::Up,
            (_, None, true) => State::Opening,
            (_, None, false) => State::Idle,
        };
        let counts = found.map(|found| found.counts).unwrap_or_default();
        let before = found.map(|found| found.counts_before).unwrap_or_default();
        let since_ns = found.and_then(|found| found.since_ns);
        let since_ns = since_ns.filter(|_| matches!(state, State::Up | State::Opening));
        let unsent = self.link.unsent(&node.key).filter(|_| !is_own);
        let described = channel.map(|channel| {
            let ([packet_bytes, route_bytes], [sent, lost]) = (channel.packet_bytes, channel.sent_and_lost);
            let heard_ms = now_ns.saturating_sub(channel.heard_at_ns) / 1_000_000;
            status::Channel { security: channel.security, packet_bytes, route_bytes, sent, lost, heard_ms }
        });
        let blocked = self.broker.blocked(&node.key).map(|Blocked { udp_ports, at_ns }| {
            let [udp_port, peer_udp_port] = udp_ports;
            let ago_s = now_ns.saturating_sub(at_ns) / SECOND_NS;
            status::Blocked { udp_port, peer_udp_port, ago_s }
        });
        let copied_key = found.and_then(|found| found.copied_key).map(|copied| {
            let ago_s = now_ns.saturating_sub(copied.at_ns) / SECOND_NS;
            status::CopiedKey { addresses: copied.addresses, ago_s }
        });
        status::Node {
            name: node.name.clone(),
            key: node.key.0,
            addresses: Self::addresses(&node.addresses),
            is_bridge: node.is_bridge,
            state,
            address: channel.map(|channel| channel.path.peer),
            since_s: since_ns.map(|since_ns| now_ns.saturating_sub(since_ns) / SECOND_NS),
            channel: described,
            rtt_us: channel.map(|channel| channel.rtt_ns / 1000),
            counters: counters(&counts),
            blocked,
            unsent,
            copied_key,
            ahead: self.broker.ahead(&node.key),
            complaint: (state == State::Opening).then(|| complaint(&counts, &before, unsent)),
        }
    }
}

/// Why a channel does not come up, as far as this machine can tell. `before` are the counts when it was needed first. What
/// happened before that, as with another version of the other service, says nothing about now.
fn complaint(counts: &NodeCounts, before: &NodeCounts, unsent: Option<Unsent>) -> String {
    if let Some(Unsent { to, reason }) = unsent {
        return format!("no packet to {to} leaves this machine: {reason}");
    }
    let has_grown = |count: fn(&NodeCounts) -> u64| count(counts) > count(before);
    let has_been_up = counts.channels > 0;
    let is_answered = has_grown(|counts| counts.answers_received);
    let complaint = if has_grown(|counts| counts.other_versions) {
        "it speaks another version of the protocol: install the same version of Bywire on both machines"
    } else if has_grown(|counts| counts.answers_refused) {
        "it answers with another key: compare its `key` in the fabric files of both machines"
    } else if !has_grown(|counts| counts.hellos_sent) && !has_been_up {
        "no packet was sent, as no address of it is known: check `addresses` in the fabric file, and the name server"
    } else if !is_answered && has_grown(|counts| counts.hellos_received) {
        "its packets arrive, but it does not answer ours: check that its fabric file has this machine's key"
    } else if !is_answered && !has_been_up {
        "no answer: check that `bywire up` runs there, that its fabric file has this machine's key and this one its own, \
         and that firewalls let UDP through"
    } else {
        "it answered before, and does not answer now: check that it is up, the network between, and by `bywire node list` on \
         the keeper that this machine was not removed"
    };
    complaint.to_owned()
}

/// A complaint that fits into a packet beside other things.
pub(super) fn shortened(text: &str) -> String {
    let mut end = text.len().min(COMPLAINT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

fn counters(counts: &NodeCounts) -> Vec<(String, u64)> {
    let NodeCounts {
        hellos_sent,
        answers_received,
        answers_refused,
        cookies_received,
        hellos_received,
        hellos_replayed,
        answers_sent,
        other_versions,
        packets_sent,
        packets_received,
        packets_forged,
        channels,
    } = *counts;
    let named = [
        ("hellos_sent", hellos_sent),
        ("answers_received", answers_received),
        ("answers_refused", answers_refused),
        ("cookies_received", cookies_received),
        ("hellos_received", hellos_received),
        ("hellos_replayed", hellos_replayed),
        ("answers_sent", answers_sent),
        ("other_versions", other_versions),
        ("packets_sent", packets_sent),
        ("packets_received", packets_received),
        ("packets_forged", packets_forged),
        ("channels", channels),
    ];
    named.map(|(name, count)| (name.to_owned(), count)).to_vec()
}

fn strangers(counts: &Strangers) -> Vec<(String, u64)> {
    let Strangers { unrecognized, without_key, unreadable, unknown_keys, cookies_sent, dropped, .. } =
        *counts;
    let named = [
        ("unrecognized", unrecognized),
        ("without_key", without_key),
        ("unreadable", unreadable),
        ("unknown_keys", unknown_keys),
        ("cookies_sent", cookies_sent),
        ("dropped", dropped),
    ];
    named.map(|(name, count)| (name.to_owned(), count)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_about_what_has_happened_since_the_node_was_needed() {
        let none = NodeCounts::default();
        let wanted = NodeCounts { hellos_sent: 1, ..none };
        let up = NodeCounts { answers_received: 1, channels: 1, ..wanted };
        let cases = [
            (none, none, "no packet was sent"),
            (none, wanted, "no answer"),
            (none, NodeCounts { other_versions: 1, ..wanted }, "another version"),
            (none, NodeCounts { answers_refused: 1, ..wanted }, "another key"),
            (none, NodeCounts { hellos_received: 1, ..wanted }, "its packets arrive"),
            (up, NodeCounts { hellos_sent: 2, ..up }, "it answered before"),
            (up, up, "it answered before"),
            // It was of another version once, and had a wrong key.
            (
                NodeCounts { other_versions: 3, answers_refused: 3, hellos_received: 3, ..up },
                NodeCounts {
                    other_versions: 3,
                    answers_refused: 3,
                    hellos_received: 3,
                    hellos_sent: 2,
                    ..up
                },
                "it answered before",
            ),
        ];
        for (before, counts, expected) in cases {
            let complaint = complaint(&counts, &before, None);
            assert!(complaint.contains(expected), "{expected}: {complaint}");
        }
    }
}
