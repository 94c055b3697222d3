//! What a running network says of itself: JSON for programs, and text for people made of the same.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::order::{Counts, Traffic};
use crate::station::{Plan, Station};

/// The form of the JSON; the number changes when a reader of the old form would misread the new one.
pub const SCHEMA: &str = "bywire-eth-status/1";

/// One interface in one line.
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

/// One interface with everything that is known of it.
pub fn interface(station: &Station, counts: &Counts) -> Value {
    let plan = &station.plan;
    let found = station.look();
    let (mtu_bytes, state) = match &found {
        Ok(link) => (link.mtu_bytes, if link.is_up { "up" } else { "down" }.to_owned()),
        Err(error) => (plan.mtu_bytes, format!("unknown: {error}")),
    };
    let drops: serde_json::Map<String, Value> =
        counts.drops.by_name().map(|(name, count)| (name.to_owned(), count.into())).collect();
    json!({
        "interface": plan.label(),
        "namespace": plan.place.to_string(),
        "name": plan.name,
        "mac": plan.mac.to_string(),
        "mtu": mtu_bytes,
        "state": state,
        "addresses": plan.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "bridge": plan.bridge,
        "offloads": offloads(station, counts),
        "sent": traffic(counts.sent),
        "received": traffic(counts.received),
        "cut": counts.cut,
        "drops": drops,
    })
}

/// What differs between interfaces that should agree.
pub fn warnings(interfaces: &[Value]) -> Vec<String> {
    let Some(first) = interfaces.first() else { return Vec::new() };
    let others = interfaces.iter().filter(|other| other["mtu"] != first["mtu"]);
    let mtus = others.map(|other| {
        format!(
            "{} has an MTU of {}, {} one of {}: long packets between them are lost",
            text(&first["interface"]),
            first["mtu"],
            text(&other["interface"]),
            other["mtu"]
        )
    });
    mtus.collect()
}

/// A status for people.
pub fn table(status: &Value) -> String {
    let mut lines = vec![format!(
        "network {}, node {}: process {}, up {} s, coalescing {}, spinning {} µs at most, {} queue(s)",
        text(&status["network"]),
        text(&status["node"]),
        status["process"],
        status["uptime_s"],
        if status["coalesce"] == true { "on" } else { "off" },
        status["spin_us"],
        status["queues"]
    )];
    for interface in status["interfaces"].as_array().into_iter().flatten() {
        lines.extend(interface_lines(interface));
    }
    for label in status["missing"].as_array().into_iter().flatten() {
        lines.push(format!("  {}  missing: it is tried again every second", text(label)));
    }
    for warning in status["warnings"].as_array().into_iter().flatten() {
        lines.push(format!("  warning: {}", text(warning)));
    }
    lines.join("\n") + "\n"
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
    for (name, direction) in [("sent", &interface["sent"]), ("received", &interface["received"])] {
        lines.push(format!(
            "    {name:<9} {} frames, {} of them superframes, {} bytes",
            direction["frames"], direction["superframes"], direction["bytes"]
        ));
    }
    let offloads = &interface["offloads"];
    let whole = |name: &str| if offloads[name] == true { "whole" } else { "cut" };
    let mut line = format!("    superframes: TCP {}, UDP {}", whole("tcp"), whole("udp"));
    for reason in offloads["reasons"].as_array().into_iter().flatten() {
        let _ = write!(line, "; {}", text(reason));
    }
    lines.push(line);
    let drops: Vec<String> = interface["drops"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !drops.is_empty() {
        lines.push(format!("    dropped: {}", drops.join(", ")));
    }
    lines
}

fn offloads(station: &Station, counts: &Counts) -> Value {
    let kernel = station.offloads;
    let mut reasons: Vec<String> = counts.refusal.iter().cloned().collect();
    if !kernel.tcp_segmentation {
        reasons.push("this kernel does not offer TCP segmentation on a TAP".to_owned());
    }
    if !kernel.udp_segmentation {
        reasons.push("this kernel does not offer UDP segmentation on a TAP: Linux 6.2 does".to_owned());
    }
    let refused = |what: &str| counts.refusal.as_ref().is_some_and(|reason| reason.contains(what));
    json!({
        "checksum": kernel.checksum,
        "tcp": kernel.tcp_segmentation && !refused("TCP"),
        "udp": kernel.udp_segmentation && !refused("UDP"),
        "reasons": reasons,
    })
}

fn traffic(traffic: Traffic) -> Value {
    json!({ "frames": traffic.frames, "superframes": traffic.superframes, "bytes": traffic.bytes })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
