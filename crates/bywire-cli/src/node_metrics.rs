//! `bywire up --metrics`: the status of this machine's node for Prometheus.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use bywire_metrics::{Metrics, Page};
use bywire_node::client;
use bywire_sys::poller::Poller;
use bywire_wire::service::status::{Entry, Node, Service, Sockets, State};
use serde_json::Value;

use crate::node_status::{security_text, state_name};
use crate::reachability::RECENT_S;

/// Answers callers on a thread, as long as this process runs. The thread asks the service like any other program, at most once a
/// second, so callers delay neither the service nor each other.
///
/// # Errors
/// The address is in use, or is not this machine's.
pub fn serve(address: SocketAddr) -> Result<()> {
    let mut metrics = Metrics::listen(address)
        .with_context(|| format!("cannot serve metrics on {address}: give another --metrics ADDRESS:PORT"))?;
    let mut poller = Poller::new()?;
    poller.add(&metrics, 0)?;
    let answer_all = move || {
        while poller.wait(metrics.timeout()).is_ok() {
            let page = || Ok::<_, Infallible>(page(&client::status(None).unwrap_or_default()));
            let Ok(()) = metrics.serve(page);
        }
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(answer_all)?;
    Ok(())
}

/// The entries in the text form of Prometheus.
fn page(entries: &[Entry]) -> String {
    let mut page = Page::new("bywire_node");
    let (mut ports, mut connections) = (0_u64, 0_u64);
    for entry in entries {
        match entry {
            Entry::Service(service) => add_service(&mut page, service),
            Entry::Node(node) => add_node(&mut page, node),
            Entry::Port(port) => {
                ports += 1;
                add_sockets(&mut page, &[("port", port.name.as_str())], &port.sockets);
            }
            Entry::Connection(_) => connections += 1,
        }
    }
    page.sample("ports", "gauge", "Registered ports.", &[], &ports.into());
    page.sample(
        "connections",
        "gauge",
        "Connections with ports of other machines.",
        &[],
        &connections.into(),
    );
    page.text()
}

fn add_service(page: &mut Page, service: &Service) {
    let help = "How long the service has run.";
    page.sample("uptime_seconds", "gauge", help, &[], &service.uptime_s.into());
    page.sample(
        "fabric_serial",
        "gauge",
        "The serial of the fabric file in use.",
        &[],
        &service.serial.into(),
    );
    let is_rejected = Value::from(u8::from(service.complaint.is_some()));
    page.sample(
        "fabric_file_rejected",
        "gauge",
        "1 while the latest fabric file is rejected.",
        &[],
        &is_rejected,
    );
    let is_outdated = Value::from(u8::from(service.unwritten.is_some()));
    let help =
        "1 while the fabric file on the disk is older than the one in force, because it cannot be written.";
    page.sample("fabric_file_outdated", "gauge", help, &[], &is_outdated);
    for (reason, count) in &service.strangers {
        let help = "Packets without a valid key of the fabric, by the reason.";
        page.sample("strangers_total", "counter", help, &[("reason", reason)], &(*count).into());
    }
    add_sockets(page, &[("port", "")], &service.sockets);
}

/// The samples of the sockets of a port, or of the service, whose name is empty.
fn add_sockets(page: &mut Page, who: &[(&str, &str)], sockets: &Sockets) {
    let Sockets { wanted_bytes, receive_bytes, send_bytes, waiting_bytes, dropped } = *sockets;
    let help = "Memory of packets that wait in UDP sockets; the service has no port name.";
    page.sample("socket_waiting_bytes", "gauge", help, who, &waiting_bytes.into());
    let help = "Packets that found no room in a UDP socket.";
    page.sample("socket_dropped_total", "counter", help, who, &dropped.into());
    for (kind, bytes) in [("wanted", wanted_bytes), ("receive", receive_bytes), ("send", send_bytes)] {
        let labels = [who, &[("kind", kind)]].concat();
        let help = "Sizes of socket buffers: wanted, and granted for each direction.";
        page.sample("socket_buffer_bytes", "gauge", help, &labels, &bytes.into());
    }
}

fn add_node(page: &mut Page, node: &Node) {
    if node.state == State::Own {
        return;
    }
    let who = [("node", node.name.as_str())];
    for state in [State::Idle, State::Opening, State::Up] {
        let labels = [who[0], ("state", state_name(state))];
        let is_it = Value::from(u8::from(node.state == state));
        page.sample("channel_state", "gauge", "1 for the state of the channel.", &labels, &is_it);
    }
    for (name, count) in &node.counters {
        let labels = [who[0], ("kind", name.as_str())];
        page.sample(
            "channel_events_total",
            "counter",
            "Packets and handshakes of channels.",
            &labels,
            &(*count).into(),
        );
    }
    let help = "1 while packets to the node cannot leave this machine.";
    page.sample("unsent", "gauge", help, &who, &u8::from(node.unsent.is_some()).into());
    let help = "1 if two machines have answered with the key of the node in the last hour.";
    let is_copied = node.copied_key.is_some_and(|copied| copied.ago_s < RECENT_S);
    page.sample("copied_key", "gauge", help, &who, &u8::from(is_copied).into());
    let help = "1 if the fabric file of the node has a larger serial than that of this node, its keeper.";
    page.sample("fabric_file_ahead", "gauge", help, &who, &u8::from(node.ahead.is_some()).into());
    let Some(channel) = node.channel else { return };
    if let Some(rtt_us) = node.rtt_us {
        let seconds = Value::from(rtt_us as f64 / 1e6);
        page.sample("channel_rtt_seconds", "gauge", "The smoothed round trip.", &who, &seconds);
    }
    let since_s = Value::from(node.since_s.unwrap_or_default());
    page.sample("channel_up_seconds", "gauge", "How long the node has been up.", &who, &since_s);
    let help = "Packets of the present channel that have left, and those of them that were lost.";
    for (kind, count) in [("sent", channel.sent), ("lost", channel.lost)] {
        let labels = [who[0], ("kind", kind)];
        page.sample("channel_packets", "gauge", help, &labels, &count.into());
    }
    let help = "The longest packet that arrives.";
    page.sample("channel_packet_bytes", "gauge", help, &who, &channel.packet_bytes.into());
    let labels = [who[0], ("security", security_text(channel.security))];
    page.sample("channel_security", "gauge", "1 for the protection of packets.", &labels, &1.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status_fixture;

    #[test]
    fn fabric_files_that_are_outdated_here_or_ahead_elsewhere_have_figures() {
        for (unwritten, ahead, value) in [(None, None, 0), (Some("the disk is full"), Some(9), 1)] {
            let unwritten = unwritten.map(str::to_owned);
            let service = Service { unwritten, ..status_fixture::service() };
            let node = Node { ahead, ..status_fixture::node() };
            let text = page(&[Entry::Service(service), Entry::Node(node)]);
            for figure in ["fabric_file_outdated", "fabric_file_ahead{node=\"web2\"}"] {
                let line = format!("\nbywire_node_{figure} {value}\n");
                assert!(text.contains(&line), "{line}{text}");
            }
        }
    }
}
