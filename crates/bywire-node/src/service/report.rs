//! The service's report of its state, for `bywire status`.

use bywire_sys::udp;
use bywire_wire::channel::{NodeCounts, Strangers};
use bywire_wire::service::status::{self, Entry, State};
use bywire_wire::service::to_bytes;

use crate::broker::PortId;

use super::Service;

/// The most bytes of entries in one notice.
const PART_BYTES_MAX: usize = 3072;
/// The longest complaint in a report.
const COMPLAINT_BYTES_MAX: usize = 512;

impl Service<'_> {
    /// Entries from number `from` on, and the number of the first one that did not fit.
    pub(super) fn report(&self, now_ns: u64, caller: PortId, from: u32) -> (Vec<Entry>, Option<u32>) {
        let all = self.entries(now_ns, caller);
        let mut bytes = 0;
        let mut part = Vec::new();
        for entry in all.iter().skip(from as usize) {
            bytes += to_bytes(entry).map_or(PART_BYTES_MAX, |entry| entry.len());
            if bytes > PART_BYTES_MAX && !part.is_empty() {
                break;
            }
            part.push(entry.clone());
        }
        let next = from.saturating_add(part.len() as u32);
        (part, (next < all.len() as u32).then_some(next))
    }

    /// All entries that this caller may see, in the order of display.
    fn entries(&self, now_ns: u64, caller: PortId) -> Vec<Entry> {
        let asking = self.callers.get(&caller).map(|caller| caller.uid());
        let may_see = |uid: u32| {
            asking.is_some_and(|asking| asking == uid || asking == 0 || asking == bywire_sys::process::user())
        };
        let mut entries = vec![Entry::Service(self.service_entry(now_ns))];
        entries.extend(self.fabric.nodes.iter().map(|node| Entry::Node(self.node_entry(node))));
        let mut ports: Vec<_> = self.broker.ports().filter(|(_, port)| may_see(port.uid)).collect();
        ports.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
        for (id, port) in &ports {
            let backlog = self.callers.get(id).and_then(|caller| caller.copies());
            let backlog = backlog.and_then(|copies| udp::backlog(&copies.udp).ok());
            entries.push(Entry::Port(status::Port {
                name: port.name.clone(),
                user: port.user.clone(),
                pid: self.callers.get(id).map_or(0, |caller| caller.pid()),
                is_reachable: port.is_reachable,
                udp_port: port.udp_port,
                waiting_bytes: backlog.map_or(0, |backlog| backlog.waiting_bytes),
                dropped: backlog.map_or(0, |backlog| backlog.dropped),
            }));
        }
        let mut connections: Vec<_> = self.broker.connections().collect();
        connections.sort_by_key(|known| (&known.identity.node, &known.identity.port, known.peer));
        for known in connections {
            if let Some((_, port)) = ports.iter().find(|(id, _)| *id == known.port) {
                entries.push(Entry::Connection(status::Connection {
                    port: port.name.clone(),
                    peer_node: known.identity.node.clone(),
                    peer_port: known.identity.port.clone(),
                    peer_user: known.identity.user.clone(),
                    security: known.security,
                }));
            }
        }
        entries
    }

    fn service_entry(&self, now_ns: u64) -> status::Service {
        let complaint = self.complaint.as_ref().map(|complaint| shortened(complaint));
        status::Service {
            fabric: self.fabric.name.clone(),
            serial: self.fabric.serial,
            node: self.node().to_owned(),
            udp_port: self.udp_port(),
            is_encrypted: self.fabric.is_encrypted,
            uptime_s: now_ns.saturating_sub(self.began_ns) / 1_000_000_000,
            strangers: strangers(self.link.strangers()),
            last_unknown: self.last_unknown().map(|(key, address)| (key.0, address)),
            complaint,
        }
    }

    fn node_entry(&self, node: &crate::fabric::Node) -> status::Node {
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
        status::Node {
            name: node.name.clone(),
            key: node.key.0,
            addresses: Self::addresses(&node.addresses),
            state,
            address: channel.map(|channel| channel.address),
            rtt_us: channel.map(|channel| channel.rtt_ns / 1000),
            counters: counters(&counts),
            complaint: (state == State::Opening).then(|| complaint(&counts).to_owned()),
        }
    }
}

/// Why a channel does not come up, as far as the counts tell.
fn complaint(counts: &NodeCounts) -> &'static str {
    let NodeCounts { hellos_sent, answers_received, answers_refused, other_versions, .. } = *counts;
    if other_versions > 0 {
        "it speaks another version of the protocol: install the same version of Bywire on both machines"
    } else if answers_refused > 0 {
        "it answers with another key: compare its `key` in the fabric files of both machines"
    } else if hellos_sent == 0 {
        "nothing has been sent: none of its addresses is known; check `addresses` in the fabric file"
    } else if answers_received == 0 && counts.hellos_received > 0 {
        "its packets come, but it does not answer ours: check that its fabric file has this machine's key"
    } else if answers_received == 0 {
        "no answer: check that `bywire up` runs there, that its fabric file has this machine's key and this one its own, \
         and that firewalls let UDP through"
    } else {
        "it has answered before, and does not now"
    }
}

fn shortened(text: &str) -> String {
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
    let Strangers { foreign, without_key, unreadable, unknown_keys, cookies_sent, dropped, .. } = *counts;
    let named = [
        ("foreign", foreign),
        ("without_key", without_key),
        ("unreadable", unreadable),
        ("unknown_keys", unknown_keys),
        ("cookies_sent", cookies_sent),
        ("dropped", dropped),
    ];
    named.map(|(name, count)| (name.to_owned(), count)).to_vec()
}
