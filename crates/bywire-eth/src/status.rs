//! The status of a running network: JSON for programs, and text for people made from that JSON.

use std::fmt::Write as _;

use bywire_sys::tap::Offloads;
use serde_json::{Value, json};

use crate::address::MacAddress;
use crate::drops::Drops;
use crate::interface::{Interface, Plan};
use crate::order::{Confinement, Counts, PeerReport, Traffic, printable};
use crate::probe::Probe;

/// The version of the JSON. The number changes when a reader of the old form would misread the new one.
pub const SCHEMA: &str = "bywire-eth-status/2";

/// One line about an interface.
pub fn heading(plan: &Plan) -> String {
    let mut line = format!("{} {} mtu {}", plan.label(), plan.mac, plan.mtu_bytes);
    for cidr in &plan.addresses {
        let _ = write!(line, " {cidr}");
    }
    if let Some(bridge) = &plan.bridge {
        let _ = write!(line, " in bridge {bridge}");
    }
    line
}

/// The complete status of an interface.
pub fn interface(interface: &Interface, probe: &Probe, counts: &Counts) -> Value {
    let plan = &interface.plan;
    let found = interface.look();
    let (mtu_bytes, state) = match &found {
        Ok(link) => (link.mtu_bytes, if link.is_up { "up" } else { "down" }.to_owned()),
        Err(error) => (plan.mtu_bytes, format!("unknown: {error}")),
    };
    json!({
        "interface": plan.label(),
        "switch_port": 2 * counts.interface,
        "namespace": plan.namespace.to_string(),
        "name": plan.name,
        "mac": plan.mac.to_string(),
        "mtu": mtu_bytes,
        "state": state,
        "addresses": plan.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "bridge": plan.bridge,
        "offloads": offloads(interface.offloads, probe, counts),
        "sent": traffic(counts.sent),
        "received": traffic(counts.received),
        "cut": counts.cut,
        "drops": drops(&counts.drops),
    })
}

/// A carrying process, with the privileges that the kernel reports for it.
pub fn carrier(process: u32, confinement: &Confinement) -> Value {
    let told = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = told.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        lines.next().map(str::trim).map(str::to_owned)
    };
    let files = match confinement {
        Confinement::Absent => "unconfined".to_owned(),
        Confinement::Enforced { but: Some(reason) } => printable(reason),
        Confinement::Enforced { but: None } => "the directory of ports only".to_owned(),
    };
    json!({
        "process": process,
        "capabilities": field("CapEff"),
        "capabilities_bound": field("CapBnd"),
        "no_new_privileges": field("NoNewPrivs").map(|value| value == "1"),
        "seccomp": field("Seccomp").map(|value| value == "2"),
        "files": files,
    })
}

/// Another process of the network.
pub fn peer(report: &PeerReport) -> Value {
    json!({
        "node": printable(&report.node),
        "process": report.process,
        "machine": report.machine.as_deref().map(printable),
        "interfaces_count": report.interfaces_count,
        "interfaces": report.interfaces.iter().map(|interface| json!({
            "interface": printable(&interface.label),
            "mac": MacAddress(interface.mac).to_string(),
            "mtu": interface.mtu_bytes,
        })).collect::<Vec<_>>(),
        "conflicts": report.conflicts.iter().map(|text| printable(text)).collect::<Vec<_>>(),
        "sent": traffic(report.sent),
        "received": traffic(report.received),
        "drops": drops(&report.drops),
        "held_back": report.held_back,
        "packets": report.machine.as_ref().map(|_| json!({
            "sent": report.packets.sent,
            "calls": report.packets.calls,
            "lost": report.packets.lost,
        })),
    })
}

/// Warnings about interfaces whose MTUs differ, and about addresses that several interfaces claim.
pub fn warnings(interfaces: &[Value], peers: &[Value]) -> Vec<String> {
    let Some(first) = interfaces.first() else { return Vec::new() };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let far = peers.iter().flat_map(|peer| {
        let node = text(&peer["node"]).to_owned();
        list(&peer["interfaces"]).into_iter().map(move |interface| (format!("{node}'s "), interface))
    });
    let near = interfaces.iter().map(|interface| (String::new(), interface.clone()));
    let others = near.chain(far).filter(|(_, other)| other["mtu"] != first["mtu"]);
    let mtus = others.map(|(whose, other)| {
        let [near, far] = [first, &other].map(|end| end["mtu"].as_u64().unwrap_or_default());
        let (here, there) = (text(&first["interface"]), format!("{whose}{}", text(&other["interface"])));
        let (shorter, bytes) = if near < far { (here, near) } else { (there.as_str(), far) };
        // A TAP device accepts packets longer than its own MTU. Only a bridge checks the length again.
        format!(
            "{here} has an MTU of {near}, {there} one of {far}: packets of more than {bytes} bytes reach {shorter}, \
             but nobody behind a bridge that it belongs to"
        )
    });
    let conflicts = peers.iter().flat_map(|peer| {
        let node = text(&peer["node"]).to_owned();
        let said = list(&peer["conflicts"]).into_iter();
        said.map(move |said| format!("{node}'s {}: none of its frames are taken", text(&said)))
    });
    mtus.chain(conflicts).collect()
}

/// A status as text for people.
pub fn table(status: &Value) -> String {
    let mut lines = vec![format!(
        "network {}, node {}: process {}, up {} s, coalescing {}, spinning {} µs at most",
        text(&status["network"]),
        text(&status["node"]),
        status["process"],
        status["uptime_s"],
        if status["coalesce"] == true { "on" } else { "off" },
        status["spin_us"]
    )];
    for carrier in status["carriers"].as_array().into_iter().flatten() {
        lines.push(format!(
            "  carried by process {}: capabilities {}, system calls {}, files: {}",
            carrier["process"],
            text(&carrier["capabilities"]),
            if carrier["seccomp"] == true { "filtered" } else { "all" },
            text(&carrier["files"])
        ));
    }
    for interface in status["interfaces"].as_array().into_iter().flatten() {
        lines.extend(interface_lines(interface));
    }
    for peer in status["peers"].as_array().into_iter().flatten() {
        lines.extend(peer_lines(peer));
    }
    for label in status["missing"].as_array().into_iter().flatten() {
        lines.push(format!("  {}  missing: it is tried again every second", text(label)));
    }
    for warning in status["warnings"].as_array().into_iter().flatten() {
        lines.push(format!("  warning: {}", text(warning)));
    }
    lines.join("\n") + "\n"
}

fn peer_lines(peer: &Value) -> Vec<String> {
    let interfaces = peer["interfaces"].as_array().into_iter().flatten();
    let names: Vec<&str> = interfaces.map(|interface| text(&interface["interface"])).collect();
    let place = match peer["machine"].as_str() {
        Some(_) => "another machine".to_owned(),
        None => format!("process {}", peer["process"]),
    };
    let heading = format!(
        "  node {}, {place}: {} interface(s) {}",
        text(&peer["node"]),
        peer["interfaces_count"],
        names.join(" ")
    );
    let held_back = peer["held_back"].as_u64().filter(|count| *count > 0);
    let held_back = held_back.map(|count| format!("    held back {count} times, for want of room there"));
    let packets = Some(&peer["packets"]).filter(|packets| packets.is_object()).map(|packets| {
        let [sent, calls, lost] = ["sent", "calls", "lost"].map(|count| &packets[count]);
        format!("    packets   {sent} sent by {calls} calls, {lost} lost")
    });
    let others = held_back.into_iter().chain(packets).collect();
    [vec![heading], traffic_lines(peer), others, drops_line(peer)].concat()
}

fn interface_lines(interface: &Value) -> Vec<String> {
    let addresses: Vec<&str> = interface["addresses"].as_array().into_iter().flatten().map(text).collect();
    let mut lines = vec![format!(
        "  {}  {}  mtu {}  {}  {}",
        text(&interface["interface"]),
        text(&interface["mac"]),
        interface["mtu"],
        text(&interface["state"]),
        addresses.join(" ")
    )];
    lines.extend(traffic_lines(interface));
    let offloads = &interface["offloads"];
    let whole = |name: &str| if offloads[name] == true { "whole" } else { "cut" };
    let mut line = format!("    superframes: TCP {}, UDP {}", whole("tcp"), whole("udp"));
    for reason in offloads["reasons"].as_array().into_iter().flatten() {
        let _ = write!(line, "; {}", text(reason));
    }
    lines.push(line);
    lines.extend(drops_line(interface));
    lines
}

fn traffic_lines(of: &Value) -> Vec<String> {
    let directions = ["sent", "received"].into_iter();
    let line = |name: &str| {
        let direction = &of[name];
        let (frames, bytes) = (&direction["frames"], &direction["bytes"]);
        let superframes = direction["superframes"].as_u64().filter(|count| *count > 0);
        let superframes = superframes.map(|count| format!(", {count} of them superframes"));
        format!("    {name:<9} {frames} frames{}, {bytes} bytes", superframes.unwrap_or_default())
    };
    directions.map(line).collect()
}

fn drops_line(of: &Value) -> Vec<String> {
    let drops = of["drops"].as_object().into_iter().flatten();
    let drops: Vec<String> = drops.map(|(name, count)| format!("{name} {count}")).collect();
    if drops.is_empty() { Vec::new() } else { vec![format!("    dropped: {}", drops.join(", "))] }
}

fn offloads(device: Offloads, probe: &Probe, counts: &Counts) -> Value {
    let mut reasons = probe.reasons.clone();
    for (name, refused) in [("TCP", counts.refused_tcp), ("UDP", counts.refused_udp)] {
        if refused {
            reasons.push(format!("the kernel refused {name} superframes while running"));
        }
    }
    json!({
        "checksum": device.checksum,
        "tcp": probe.takes_tcp && !counts.refused_tcp,
        "udp": probe.takes_udp && !counts.refused_udp,
        "reasons": reasons,
    })
}

fn drops(drops: &Drops) -> Value {
    drops.by_name().map(|(name, count)| (name.to_owned(), Value::from(count))).collect()
}

fn traffic(traffic: Traffic) -> Value {
    json!({ "frames": traffic.frames, "superframes": traffic.superframes, "bytes": traffic.bytes })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Packets;

    #[test]
    fn refusals_of_the_kernel_are_reported_with_their_reason() {
        let probe = Probe { takes_tcp: true, takes_udp: true, reasons: Vec::new() };
        let counts = Counts { refused_udp: true, ..Counts::default() };
        let offloads = offloads(Offloads::default(), &probe, &counts);
        let text = table(&json!({ "interfaces": [{ "offloads": offloads }] }));
        let expected = "superframes: TCP whole, UDP cut; the kernel refused UDP superframes while running";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn packets_to_another_machine_are_reported_with_the_calls_that_sent_them() {
        let packets = Packets { sent: 460, calls: 10, lost: 1 };
        let far = PeerReport { machine: Some("web2".to_owned()), packets, ..PeerReport::default() };
        let [far, near] =
            [far, PeerReport::default()].map(|report| table(&json!({ "peers": [peer(&report)] })));
        assert!(far.contains("    packets   460 sent by 10 calls, 1 lost\n"), "{far}");
        assert!(!near.contains("packets"), "{near}");
    }

    #[test]
    fn superframes_are_named_where_there_are_any() {
        let sent = |superframes| Traffic { frames: 7, superframes, bytes: 700 };
        let lines = |superframes| table(&json!({ "peers": [{ "sent": traffic(sent(superframes)) }] }));
        assert!(lines(0).contains("    sent      7 frames, 700 bytes\n"), "{}", lines(0));
        assert!(
            lines(2).contains("    sent      7 frames, 2 of them superframes, 700 bytes\n"),
            "{}",
            lines(2)
        );
    }

    #[test]
    fn different_mtus_are_reported_with_their_effect() {
        let interface = |name: &str, mtu_bytes: u32| json!({ "interface": name, "mtu": mtu_bytes });
        let far =
            json!({ "node": "n2", "interfaces": [interface("red:by0", 9000), interface("red:by1", 1500)] });
        let expected = "blue:by0 has an MTU of 1500, n2's red:by0 one of 9000: packets of more than 1500 bytes \
                        reach blue:by0, but nobody behind a bridge that it belongs to";
        assert_eq!(warnings(&[interface("blue:by0", 1500)], std::slice::from_ref(&far)), [expected]);
        let near = [interface("blue:by0", 9000), interface("blue:by1", 1500)];
        let told = warnings(&near, &[]);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("more than 1500 bytes reach blue:by1,"), "{told:?}");
    }

    #[test]
    fn text_of_other_nodes_does_not_control_the_terminal() {
        let report = PeerReport {
            node: "\u{1b}[2Jme\nnode".to_owned(),
            interfaces: vec![crate::announced::Announced {
                label: "\u{9b}2Jby0".to_owned(),
                mac: [2, 0, 0, 0, 0, 1],
                mtu_bytes: 1500,
                addresses: Vec::new(),
            }],
            conflicts: vec!["\u{7}by0".to_owned()],
            ..PeerReport::default()
        };
        let peer = peer(&report);
        let carrier = carrier(0, &Confinement::Enforced { but: Some("\u{1b}c".to_owned()) });
        let warnings = warnings(&[json!({ "mtu": 9000 })], std::slice::from_ref(&peer));
        let text = table(&json!({ "carriers": [carrier], "peers": [peer], "warnings": warnings }));
        assert!(text.contains("?[2Jme?node") && text.contains("?by0"), "{text}");
        assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
    }
}
