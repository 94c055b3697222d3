//! The status as metrics for Prometheus.

use bywire_metrics::Page;
use serde_json::Value;

use crate::drops::Cause;

/// A status in the text form of Prometheus.
pub fn page(status: &Value) -> String {
    let mut page = Page::new("bywire_eth");
    for interface in list(&status["interfaces"]) {
        let who = [("interface", text(&interface["interface"]))];
        traffic(&mut page, &who, interface);
        page.sample(
            "cut_total",
            "counter",
            "Superframes that were cut in software.",
            &who,
            &interface["cut"],
        );
        page.sample("mtu_bytes", "gauge", "The MTU.", &who, &interface["mtu"]);
        let is_up = Value::from(u8::from(interface["state"] == "up"));
        page.sample("up", "gauge", "1 while the interface is up.", &who, &is_up);
        for kind in ["checksum", "tcp", "udp"] {
            let with_kind = [who[0], ("kind", kind)];
            let is_on = Value::from(u8::from(interface["offloads"][kind] == true));
            page.sample(
                "offload",
                "gauge",
                "1 where the kernel takes what is left to do.",
                &with_kind,
                &is_on,
            );
        }
    }
    for peer in list(&status["peers"]) {
        let who = [("node", text(&peer["node"]))];
        traffic(&mut page, &who, peer);
        let help = "How often a queue of an interface was held back, for want of room there.";
        page.sample("held_back_total", "counter", help, &who, &peer["held_back"]);
        for kind in ["sent", "lost"].into_iter().filter(|_| peer["packets"].is_object()) {
            let with_kind = [who[0], ("kind", kind)];
            let help = "Packets to a process of another machine.";
            page.sample("packets_total", "counter", help, &with_kind, &peer["packets"][kind]);
        }
        if peer["packets"].is_object() {
            let help = "Calls of the kernel that sent packets to a process of another machine.";
            page.sample("packet_calls_total", "counter", help, &who, &peer["packets"]["calls"]);
        }
    }
    let seconds = &status["uptime_s"];
    page.sample("uptime_seconds", "gauge", "How long the network has run.", &[], seconds);
    page.text()
}

/// Samples of what was sent and received, and of what was dropped.
fn traffic(page: &mut Page, who: &[(&str, &str)], of: &Value) {
    for direction in ["sent", "received"] {
        let counts = &of[direction];
        let labels = [who, &[("direction", direction)]].concat();
        page.sample("frames_total", "counter", "Frames; a superframe is one.", &labels, &counts["frames"]);
        let superframes = "Superframes among the frames.";
        page.sample("superframes_total", "counter", superframes, &labels, &counts["superframes"]);
        page.sample("bytes_total", "counter", "Bytes of frames.", &labels, &counts["bytes"]);
    }
    // Those that never happened, too: the first drop is no increase of a counter that was not there before.
    for (_, cause) in Cause::ALL {
        let labels = [who, &[("cause", cause)]].concat();
        let count = of["drops"].get(cause).cloned().unwrap_or(Value::from(0));
        page.sample("drops_total", "counter", "Frames dropped, by cause.", &labels, &count);
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_family_is_printed_once_with_all_samples() {
        let traffic = serde_json::json!({ "frames": 3, "superframes": 1, "bytes": 90 });
        let interface = |name: &str| {
            serde_json::json!({
                "interface": name, "mtu": 1500, "state": "up", "cut": 0, "drops": { "storm": 2 },
                "offloads": { "checksum": true, "tcp": true, "udp": false }, "sent": traffic, "received": traffic,
            })
        };
        let status = serde_json::json!({
            "interfaces": [interface("blue:by0"), interface("a\"b\\c")], "peers": [], "uptime_s": 5,
        });
        let page = page(&status);
        assert_eq!(page.matches("# TYPE bywire_eth_frames_total counter").count(), 1);
        for line in [
            "bywire_eth_frames_total{interface=\"blue:by0\",direction=\"sent\"} 3",
            "bywire_eth_drops_total{interface=\"a\\\"b\\\\c\",cause=\"storm\"} 2",
            "bywire_eth_drops_total{interface=\"blue:by0\",cause=\"illegal\"} 0",
            "bywire_eth_offload{interface=\"blue:by0\",kind=\"udp\"} 0",
            "bywire_eth_uptime_seconds 5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
