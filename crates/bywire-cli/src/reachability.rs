//! `bywire doctor NODE`: why another node cannot be reached, and what to do about it.
//!
//! The evidence comes from three places: echo requests over the channel, what the service has counted meanwhile, and probes of
//! UDP by this program. A service gives strangers no answer. So a probe goes to a closed port as well, where the kernel of the
//! other machine answers that nothing listens. All answers of a network may be forged, and are hints.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use bywire_node::client::{self, ClientError};
use bywire_node::fabric::ServiceAddress;
use bywire_sys::Errno;
use bywire_sys::udp::{ReceiveError, SendError, UdpSocket};
use bywire_wire::service::status::{Entry, Node, Service, State, Unsent, UnsentReason};
use serde::Serialize;

use crate::node_status::{self, blocked_text, copied_key_remedy, copied_key_text, key_text, unwritten_text};
use crate::ping::{Pings, Target};

/// The nodes that are examined at the same time. Each takes some sockets.
const AT_ONCE: usize = 16;
/// The length of an echo request, and the least time between two.
const ECHO_BYTES: u16 = 64;
const INTERVAL: Duration = Duration::from_millis(20);
/// How long nodes that answer are pinged, so that the channel finds its packet size.
const ANSWERED: Duration = Duration::from_secs(2);
/// When the addresses of nodes that have not answered are probed.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// How long the answers to probes are awaited. A kernel asks for 3 s for the link address of a machine.
const PROBED: Duration = Duration::from_secs(5);
/// The discard service (RFC 863), which hardly any machine runs.
const CLOSED_PORT: u16 = 9;
/// The length of a handshake's packets.
const LONG_BYTES: usize = 1200;
/// The cause if a machine answers and its service does not.
const NOT_ADMITTED: &str = "not-admitted";
/// A report of a blocked connection, or of two machines with one key, that is older than this, in seconds, says nothing about
/// now.
pub const RECENT_S: u64 = 3600;

/// What was found about a node.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// One word for scripts.
    cause: &'static str,
    /// What is so.
    found: String,
    /// What to do.
    remedy: String,
}

/// The result for one node.
#[derive(Debug, Serialize)]
struct Examination {
    name: String,
    is_reachable: bool,
    address: Option<SocketAddr>,
    rtt_us: Option<f64>,
    sent: u64,
    received: u64,
    findings: Vec<Finding>,
}

/// The outcome of one UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probed {
    /// Nothing has come back.
    Silent,
    /// It could not leave.
    Unsent(UnsentReason),
    /// The other machine, or a firewall, says that nothing listens there.
    Closed,
    /// The network says that a packet of this length does not pass.
    TooLong,
    /// The network, or this machine's kernel, says that the machine cannot be reached.
    Unreachable,
}

/// Probes of one address: a short packet to the service, and a short and a long one to a closed port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probes {
    to: SocketAddr,
    service: Probed,
    closed: Probed,
    long: Probed,
}

/// A probe under way.
struct Probe {
    socket: Option<UdpSocket>,
    outcome: Probed,
}

/// Everything that is known about a node.
struct Evidence<'known> {
    own: &'known str,
    service: &'known Service,
    before: &'known Node,
    after: &'known Node,
    target: &'known Target,
    /// The names of its addresses that have no address.
    unresolved: Vec<String>,
    probes: Vec<Probes>,
}

/// Examines these nodes, or all others, and prints the results.
///
/// # Errors
/// A node cannot be reached, or does not exist, or no service runs here.
pub fn run(named: &[String], is_json: bool) -> Result<()> {
    let entries = client::status(None).map_err(|error| anyhow!("{}", service_advice(&error)))?;
    let service = entries.iter().find_map(|entry| match entry {
        Entry::Service(service) => Some(service.clone()),
        _ => None,
    });
    let service = service.ok_or_else(|| anyhow!("the service's status is incomplete"))?;
    let nodes = node_status::nodes(entries);
    let chosen: Vec<&Node> = match named {
        [] => nodes.iter().filter(|node| node.state != State::Own).collect(),
        named => named.iter().map(|name| node_status::find(&nodes, name)).collect::<Result<_>>()?,
    };
    let mut examined = Vec::new();
    for part in chosen.chunks(AT_ONCE) {
        examined.extend(examine(part)?);
    }
    if is_json {
        let object = serde_json::json!({
            "schema": "bywire-doctor-fabric/1", "node": service.node, "complaint": service.complaint, "nodes": examined,
        });
        bywire_command::output::print(&format!("{object}\n"))?;
    } else {
        bywire_command::output::print(&text(&service, &examined))?;
    }
    let lost = examined.iter().filter(|examination| !examination.is_reachable);
    let lost: Vec<&str> = lost.map(|examination| examination.name.as_str()).collect();
    match lost[..] {
        [] => Ok(()),
        _ => Err(anyhow!("not reachable: {}", lost.join(", "))),
    }
}

/// What to do if the service does not answer.
fn service_advice(error: &ClientError) -> String {
    let more = match error {
        ClientError::Absent => {
            " (`systemctl enable --now bywire-node` does it at each start of the machine), after `bywire init NAME` or `bywire join`"
        }
        ClientError::OtherUser(_) => {
            ": run this command as that user, or have root run `bywire up` for all users"
        }
        ClientError::Silent
        | ClientError::Ended
        | ClientError::NoPlace
        | ClientError::NotAllowed
        | ClientError::NoKey { .. }
        | ClientError::OtherKey(_)
        | ClientError::Runtime(_) => "",
    };
    format!("{error}{more}")
}

/// Pings nodes, and probes the addresses of those that do not answer.
fn examine(nodes: &[&Node]) -> Result<Vec<Examination>> {
    let names = nodes.iter().map(|node| node.name.clone()).collect();
    let mut pings = Pings::open(names, ECHO_BYTES, true)?;
    let began = Instant::now();
    let mut probing: HashMap<usize, Probing> = HashMap::new();
    let mut until = PROBE_AFTER + PROBED;
    for round in 0.. {
        pings.send(round)?;
        pings.receive(Instant::now() + INTERVAL * nodes.len().div_ceil(4) as u32, false)?;
        let elapsed = began.elapsed();
        let silent: Vec<usize> = (0..nodes.len()).filter(|at| pings.targets[*at].received == 0).collect();
        if elapsed >= PROBE_AFTER {
            for at in &silent {
                probing.entry(*at).or_insert_with(|| {
                    let started = Probing::start(nodes[*at]);
                    // A name server may have taken its time.
                    until = until.max(began.elapsed() + PROBED);
                    started
                });
            }
        }
        probing.values_mut().for_each(Probing::look);
        if elapsed >= until || silent.is_empty() && elapsed >= ANSWERED {
            break;
        }
    }
    let entries = client::status(None)?;
    let Some((service, own)) = entries.iter().find_map(|entry| match entry {
        Entry::Service(service) => Some((service, service.node.as_str())),
        _ => None,
    }) else {
        return Ok(Vec::new());
    };
    let mut examined = Vec::new();
    for (at, before) in nodes.iter().enumerate() {
        let after = entries.iter().find_map(|entry| match entry {
            Entry::Node(node) if node.key == before.key => Some(node),
            _ => None,
        });
        let target = &pings.targets[at];
        // It may have been removed meanwhile.
        let after = after.unwrap_or(before);
        let (unresolved, probes) = probing.remove(&at).map(Probing::end).unwrap_or_default();
        let evidence = Evidence { own, service, before, after, target, unresolved, probes };
        let is_reachable = target.received > 0;
        examined.push(Examination {
            name: before.name.clone(),
            is_reachable,
            address: target.address,
            rtt_us: target.times.summary().map(|[_, mean, ..]| (1e9 * mean).round() / 1000.0),
            sent: target.sent,
            received: target.received,
            findings: if is_reachable { limits(&evidence) } else { causes(&evidence) },
        });
    }
    Ok(examined)
}

/// The probes of a node's addresses that are under way.
struct Probing {
    unresolved: Vec<String>,
    probes: Vec<(SocketAddr, [Probe; 3])>,
}

impl Probing {
    fn start(node: &Node) -> Self {
        let mut probing = Self { unresolved: Vec::new(), probes: Vec::new() };
        for text in &node.addresses {
            let resolved: Vec<SocketAddr> = match text.parse::<ServiceAddress>() {
                Ok(ServiceAddress::Address(address)) => vec![address],
                Ok(ServiceAddress::Host(host, port)) => {
                    (host.as_str(), port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
                }
                Err(_) => Vec::new(),
            };
            if resolved.is_empty() {
                probing.unresolved.push(text.clone());
            }
            for to in resolved {
                let closed = SocketAddr::new(to.ip(), CLOSED_PORT);
                let probes = [(to, 1), (closed, 1), (closed, LONG_BYTES)];
                probing.probes.push((to, probes.map(|(to, bytes)| Probe::send(to, bytes))));
            }
        }
        probing
    }

    fn look(&mut self) {
        self.probes.iter_mut().flat_map(|(_, probes)| probes).for_each(Probe::look);
    }

    fn end(self) -> (Vec<String>, Vec<Probes>) {
        let probes = self.probes.into_iter().map(|(to, probes)| {
            let [service, closed, long] = probes.map(|probe| probe.outcome);
            Probes { to, service, closed, long }
        });
        (self.unresolved, probes.collect())
    }
}

impl Probe {
    fn send(to: SocketAddr, bytes: usize) -> Self {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let sent = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
            socket.report_errors()?;
            socket.connect(to)?;
            Ok(socket)
        });
        let socket = match sent {
            Ok(socket) => socket,
            Err(error) => return Self { socket: None, outcome: Probed::Unsent(unsent_reason(error)) },
        };
        let outcome = match socket.send(None, &vec![0; bytes]) {
            Ok(()) | Err(SendError::Full | SendError::Dropped) => Probed::Silent,
            Err(SendError::TooLong) => Probed::Unsent(UnsentReason::TooLong),
            Err(SendError::Denied) => Probed::Unsent(UnsentReason::Denied),
            Err(SendError::Unreachable(error) | SendError::System(error)) => {
                Probed::Unsent(unsent_reason(error))
            }
        };
        Self { socket: Some(socket), outcome }
    }

    fn look(&mut self) {
        let Some(socket) = self.socket.as_ref().filter(|_| self.outcome == Probed::Silent) else { return };
        if let Err(ReceiveError::Reported(error)) = socket.receive(&mut [0; 64]) {
            self.outcome = match error {
                Errno::CONNREFUSED => Probed::Closed,
                Errno::MSGSIZE => Probed::TooLong,
                _ => Probed::Unreachable,
            };
        }
    }
}

fn unsent_reason(error: Errno) -> UnsentReason {
    match error {
        Errno::NETUNREACH | Errno::HOSTUNREACH => UnsentReason::NoRoute,
        Errno::PERM | Errno::ACCESS => UnsentReason::Denied,
        error => UnsentReason::Other(error.raw_os_error()),
    }
}

/// Why a node has not answered. The first finding is the most certain one.
fn causes(evidence: &Evidence) -> Vec<Finding> {
    let (keys, network) = (keys(evidence), network(evidence));
    // Whether the other service knows this machine is only a guess, which what the services said makes needless.
    let network = network.filter(|finding| keys.is_none() || finding.cause != NOT_ADMITTED);
    let mut findings: Vec<Finding> =
        [unsent(evidence), copied_key(evidence), keys, network].into_iter().flatten().collect();
    if findings.is_empty() {
        let own = evidence.own;
        findings.push(Finding {
            cause: "no-answer",
            found: format!(
                "packets to {} left this machine, and nothing came back, not even from a closed port",
                addresses(evidence)
            ),
            remedy: format!(
                "check that the machine is on and has this address, and that firewalls on the way let UDP to that port \
                 through; then run `bywire doctor {own}` there"
            ),
        });
    }
    findings
}

fn addresses(evidence: &Evidence) -> String {
    evidence.before.addresses.join(", ")
}

/// Packets that did not leave this machine.
fn unsent(evidence: &Evidence) -> Option<Finding> {
    let of_service = evidence.after.unsent;
    let of_probes = evidence.probes.iter().find_map(|probes| match probes.service {
        Probed::Unsent(reason) => Some(Unsent { to: probes.to, reason }),
        _ => None,
    });
    if let Some(Unsent { to, reason }) = of_service.or(of_probes) {
        let cause = match reason {
            UnsentReason::NoRoute => "no-route",
            UnsentReason::Denied => "filter-here",
            UnsentReason::TooLong => "mtu-here",
            UnsentReason::Other(_) => "not-sent",
        };
        let text = reason.to_string();
        let (found, remedy) = text.split_once(": ").unwrap_or((&text, "correct that on this machine"));
        let found = format!("no packet to {to} leaves this machine: {found}");
        return Some(Finding { cause, found, remedy: remedy.to_owned() });
    }
    let is_nowhere = evidence.probes.is_empty() && !evidence.unresolved.is_empty();
    is_nowhere.then(|| Finding {
        cause: "no-address",
        found: format!("no packet was sent: {} has no address", evidence.unresolved.join(", ")),
        remedy: "correct `addresses` in fabric.toml, or check the name server".to_owned(),
    })
}

/// Two machines with one key.
fn copied_key(evidence: &Evidence) -> Option<Finding> {
    let name = &evidence.before.name;
    let copied = evidence.after.copied_key.filter(|copied| copied.ago_s < RECENT_S)?;
    let (found, remedy) = (copied_key_text(name, &copied), copied_key_remedy(name));
    Some(Finding { cause: "copied-key", found, remedy })
}

/// Another version, and keys that differ.
fn keys(evidence: &Evidence) -> Option<Finding> {
    let name = &evidence.before.name;
    let grown = |counter: &str| {
        let of =
            |node: &Node| node.counters.iter().find(|(name, _)| name == counter).map_or(0, |found| found.1);
        of(evidence.after) > of(evidence.before)
    };
    let is_its = |address: SocketAddr| evidence.probes.iter().any(|probes| probes.to.ip() == address.ip());
    if grown("other_versions") {
        return Some(Finding {
            cause: "other-version",
            found: "it speaks another version of the protocol".to_owned(),
            remedy: "install the same version of Bywire on both machines, and start `bywire up` again"
                .to_owned(),
        });
    }
    if grown("answers_refused") {
        return Some(Finding {
            cause: "wrong-key",
            found: "it answers, with another key than that of fabric.toml".to_owned(),
            remedy: format!(
                "compare the `key` of {name} in fabric.toml here with the one that `bywire init` printed there"
            ),
        });
    }
    if let Some((key, address)) = evidence.service.last_unknown.filter(|(_, address)| is_its(*address)) {
        return Some(Finding {
            cause: "wrong-key",
            found: format!(
                "the service at {address} has the key {}, which fabric.toml here does not have",
                key_text(&key)
            ),
            remedy: format!(
                "run `bywire key` on {name}, as anybody on the network may have said this; if it prints this key, write it \
                 into fabric.toml, and reload each service (SIGHUP)"
            ),
        });
    }
    if let Some(address) = evidence.service.last_without_key.filter(|address| is_its(*address)) {
        return Some(Finding {
            cause: "wrong-key-there",
            found: format!("the service at {address} calls this machine by another key than its own"),
            remedy: format!(
                "correct the `key` of {} in fabric.toml on {name}, and reload its service (SIGHUP)",
                evidence.own
            ),
        });
    }
    let is_heard = grown("hellos_received") && !grown("answers_received");
    is_heard.then(|| Finding {
        cause: "one-way",
        found: "its packets arrive here, and ours do not arrive there".to_owned(),
        remedy: format!(
            "let UDP to {} through, in the firewall of {name} and on the way",
            addresses(evidence)
        ),
    })
}

/// What the network and the other machine's kernel say.
fn network(evidence: &Evidence) -> Option<Finding> {
    let name = &evidence.before.name;
    let find = |is_such: &dyn Fn(&Probes) -> bool| evidence.probes.iter().find(|probes| is_such(probes));
    if let Some(Probes { to, .. }) = find(&|probes| probes.service == Probed::Closed) {
        return Some(Finding {
            cause: "no-service",
            found: format!("nothing listens on UDP port {} of {}", to.port(), to.ip()),
            remedy: format!(
                "start `bywire up` on {name}, with the port that `addresses` in fabric.toml says; if it runs, a firewall \
                 rejects its packets"
            ),
        });
    }
    if let Some(Probes { to, .. }) = find(&|probes| {
        probes.closed == Probed::Closed && matches!(probes.long, Probed::Silent | Probed::TooLong)
    }) {
        return Some(Finding {
            cause: "small-packets-only",
            found: format!("{} is reached by short packets, and not by packets of {LONG_BYTES} bytes", to.ip()),
            remedy: "raise the MTU of the path to 1,228 bytes (IPv4) or 1,248 (IPv6): tunnels and VPNs on the way lower it"
                .to_owned(),
        });
    }
    // Packets as long as those of a handshake have to leave this machine, too.
    let has_left = |probes: &Probes| !matches!(probes.long, Probed::Unsent(_));
    if let Some(Probes { to, .. }) = find(&|probes| probes.closed == Probed::Closed && has_left(probes)) {
        return Some(Finding {
            cause: NOT_ADMITTED,
            found: format!(
                "the machine {} answers for other ports; on UDP port {} something listens that does not answer us, or a \
                 firewall drops the packets",
                to.ip(),
                to.port()
            ),
            remedy: format!(
                "check that fabric.toml on {name} has the key of {own}, and the one here its own, and that no other machine \
                 has a copy of node.key of {own}; then run `bywire doctor {own}` there; `bywire node list` on the \
                 keeper shows whether {own} was removed",
                own = evidence.own
            ),
        });
    }
    find(&|probes| probes.service == Probed::Unreachable || probes.closed == Probed::Unreachable).map(
        |probes| Finding {
            cause: "unreachable",
            found: format!("the network says that {} cannot be reached", probes.to.ip()),
            remedy: format!("check that {name} is on, has this address, and is connected to this network"),
        },
    )
}

/// What limits a node that answers.
fn limits(evidence: &Evidence) -> Vec<Finding> {
    let mut findings: Vec<Finding> = copied_key(evidence).into_iter().collect();
    let channel = evidence.after.channel.filter(|channel| channel.packet_bytes < channel.route_bytes);
    if let Some(channel) = channel {
        findings.push(Finding {
            cause: "small-packets-only",
            found: format!(
                "packets of {} bytes pass, and longer ones do not, although the route here carries {}",
                channel.packet_bytes, channel.route_bytes
            ),
            remedy: "nothing has to be done: connections use shorter packets; they are faster if the MTU of the path is as \
                     large as that of the device"
                .to_owned(),
        });
    }
    if let Some(blocked) = evidence.after.blocked.filter(|blocked| blocked.ago_s < RECENT_S) {
        let text = blocked_text(&blocked);
        let (found, remedy) = text.split_once(": ").unwrap_or((&text, ""));
        findings.push(Finding {
            cause: "ports-blocked",
            found: format!("the services reach each other, but {found}"),
            remedy: remedy.to_owned(),
        });
    }
    if 2 * evidence.target.received < evidence.target.sent {
        findings.push(Finding {
            cause: "loss",
            found: format!("only {} of {} requests were answered", evidence.target.received, evidence.target.sent),
            remedy: "run `bywire ping` for longer; check the cable, the radio link, or what else the network carries".to_owned(),
        });
    }
    findings
}

fn text(service: &Service, examined: &[Examination]) -> String {
    let mut text = String::new();
    if let Some(complaint) = &service.complaint {
        text += &format!("the new fabric file was rejected, and the previous one is in use: {complaint}\n");
    }
    if let Some(reason) = &service.unwritten {
        text += &unwritten_text(service.serial, reason);
    }
    if examined.is_empty() {
        text += "this fabric has no other node: `bywire invite NODE` adds one\n";
    }
    for examination in examined {
        let Examination { name, address, rtt_us, sent, received, findings, .. } = examination;
        match (address, rtt_us) {
            (Some(address), Some(rtt_us)) => {
                text += &format!(
                    "{name}: reachable at {address}, round trip {:.3} ms, {received} of {sent} replies\n",
                    rtt_us / 1000.0
                );
            }
            _ => text += &format!("{name}: NOT reachable\n"),
        }
        for finding in findings {
            text += &format!("  found: {}\n  to do: {}\n", finding.found, finding.remedy);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use bywire_wire::keys::Security;
    use bywire_wire::service::status::{Blocked, Channel, CopiedKey};

    use super::*;
    use crate::status_fixture;

    /// What is known of a node, which a case changes.
    struct Case {
        service: Service,
        after: Node,
        target: Target,
        unresolved: Vec<String>,
        probes: Vec<Probes>,
    }

    fn address(port: u16) -> SocketAddr {
        ([10, 0, 0, 2], port).into()
    }

    fn node() -> Node {
        Node {
            name: "b".to_owned(),
            key: [2; 32],
            addresses: vec![address(7248).to_string()],
            state: State::Opening,
            ..status_fixture::node()
        }
    }

    /// The causes that are found for a node about which only this is known. `received` of 100 requests were answered.
    fn causes_of(received: u64, change: impl FnOnce(&mut Case)) -> Vec<&'static str> {
        let service = Service { node: "a".to_owned(), uptime_s: 1, ..status_fixture::service() };
        let silent = Probed::Silent;
        let probes = vec![Probes { to: address(7248), service: silent, closed: silent, long: silent }];
        let mut target = Target::default();
        (target.sent, target.received) = (100, received);
        let mut case = Case { service, after: node(), target, unresolved: Vec::new(), probes };
        change(&mut case);
        let Case { service, after, target, unresolved, probes } = &case;
        let (unresolved, probes, before) = (unresolved.clone(), probes.clone(), node());
        let evidence = Evidence { own: "a", service, before: &before, after, target, unresolved, probes };
        let findings = if received > 0 { limits(&evidence) } else { causes(&evidence) };
        assert!(findings.iter().all(|finding| !finding.found.is_empty() && !finding.remedy.is_empty()));
        findings.iter().map(|finding| finding.cause).collect()
    }

    fn count(case: &mut Case, counters: &[&str]) {
        case.after.counters = counters.iter().map(|name| ((*name).to_owned(), 1)).collect();
    }

    #[test]
    fn each_cause_of_silence_is_found_alone() {
        let unsent =
            |reason| move |case: &mut Case| case.after.unsent = Some(Unsent { to: address(7248), reason });
        assert_eq!(causes_of(0, |_| ()), ["no-answer"]);
        assert_eq!(causes_of(0, unsent(UnsentReason::NoRoute)), ["no-route"]);
        assert_eq!(causes_of(0, unsent(UnsentReason::Denied)), ["filter-here"]);
        assert_eq!(causes_of(0, unsent(UnsentReason::Other(5))), ["not-sent"]);
        // The other machine answers for a closed port, and the long packet does not leave this one.
        let small_mtu = |case: &mut Case| {
            unsent(UnsentReason::TooLong)(case);
            (case.probes[0].closed, case.probes[0].long) =
                (Probed::Closed, Probed::Unsent(UnsentReason::TooLong));
        };
        assert_eq!(causes_of(0, small_mtu), ["mtu-here"]);
        let nowhere =
            |case: &mut Case| (case.unresolved, case.probes) = (vec!["b.invalid".to_owned()], Vec::new());
        assert_eq!(causes_of(0, nowhere), ["no-address"]);
        let copied = |case: &mut Case| {
            case.after.copied_key = Some(CopiedKey { addresses: [address(1), address(2)], ago_s: 1 });
        };
        assert_eq!(causes_of(0, copied), ["copied-key"]);
        assert_eq!(causes_of(0, |case| case.probes[0].service = Probed::Closed), ["no-service"]);
        assert_eq!(causes_of(0, |case| case.probes[0].closed = Probed::Unreachable), ["unreachable"]);
        for long in [Probed::Silent, Probed::TooLong] {
            let short_only =
                |case: &mut Case| (case.probes[0].closed, case.probes[0].long) = (Probed::Closed, long);
            assert_eq!(causes_of(0, short_only), ["small-packets-only"]);
        }
    }

    #[test]
    fn what_the_other_service_says_explains_its_silence_alone() {
        // The machine answers for a closed port in each case.
        let answers =
            |case: &mut Case| (case.probes[0].closed, case.probes[0].long) = (Probed::Closed, Probed::Closed);
        assert_eq!(causes_of(0, answers), ["not-admitted"]);
        for (counters, cause) in [
            (&["other_versions", "hellos_received"][..], "other-version"),
            (&["answers_refused"], "wrong-key"),
            (&["hellos_received"], "one-way"),
        ] {
            let said = |case: &mut Case| {
                answers(case);
                count(case, counters);
            };
            assert_eq!(causes_of(0, said), [cause]);
        }
        let heard = |case: &mut Case| count(case, &["hellos_received", "answers_received"]);
        assert_eq!(causes_of(0, heard), ["no-answer"], "packets pass in both directions");
        // Of these addresses, only one of the node's says something about it.
        for (port, ip, expected) in
            [(7248, [10, 0, 0, 2], true), (7249, [10, 0, 0, 2], true), (7248, [10, 0, 0, 9], false)]
        {
            let from = SocketAddr::from((ip, port));
            let unknown = causes_of(0, |case| case.service.last_unknown = Some(([3; 32], from)));
            assert_eq!(unknown == ["wrong-key"], expected, "{from}: {unknown:?}");
            let without = causes_of(0, |case| case.service.last_without_key = Some(from));
            assert_eq!(without == ["wrong-key-there"], expected, "{from}: {without:?}");
        }
    }

    #[test]
    fn what_limits_a_node_that_answers_is_found_alone() {
        let channel = |packet_bytes| Channel {
            security: Security::Aes256Gcm,
            packet_bytes,
            route_bytes: 1472,
            sent: 100,
            lost: 0,
            heard_ms: 0,
        };
        assert!(causes_of(50, |case| case.after.channel = Some(channel(1472))).is_empty(), "half is enough");
        assert_eq!(causes_of(49, |_| ()), ["loss"]);
        assert_eq!(causes_of(100, |case| case.after.channel = Some(channel(1200))), ["small-packets-only"]);
        for (ago_s, expected) in [(RECENT_S - 1, &["ports-blocked"][..]), (RECENT_S, &[])] {
            let blocked = Blocked { udp_port: 1, peer_udp_port: 2, ago_s };
            assert_eq!(causes_of(100, |case| case.after.blocked = Some(blocked)), expected);
        }
    }
}
