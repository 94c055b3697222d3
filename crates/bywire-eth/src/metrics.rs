//! The status as metrics for Prometheus, over HTTP, if an address for it is set.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use serde_json::Value;

use crate::timed_write;

/// The longest request that is read.
const REQUEST_BYTES_MAX: usize = 4096;
/// The timeout of a caller. A slower one gets no answer, because it would hold up the others.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A listener that answers every request with the same page.
#[derive(Debug)]
pub struct Metrics {
    listener: TcpListener,
}

impl Metrics {
    /// Listens on `address`.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// The next caller that has sent a `GET` request.
    pub fn caller(&self) -> Option<TcpStream> {
        let (mut caller, _) = self.listener.accept().ok()?;
        caller.set_nonblocking(false).ok()?;
        caller.set_read_timeout(Some(TIMEOUT)).ok()?;
        let mut request = [0; REQUEST_BYTES_MAX];
        let length = caller.read(&mut request).ok()?;
        request[..length].starts_with(b"GET ").then_some(caller)
    }
}

impl AsFd for Metrics {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Answers a caller with a page.
///
/// # Errors
/// The error of the kernel.
pub fn answer(caller: &mut TcpStream, page: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    let answer = head + page;
    timed_write::write_within(caller, TcpStream::set_write_timeout, answer.as_bytes(), TIMEOUT)
}

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
    for (cause, count) in of["drops"].as_object().into_iter().flatten() {
        let labels = [who, &[("cause", cause.as_str())]].concat();
        page.sample("drops_total", "counter", "Frames dropped, by cause.", &labels, count);
    }
}

/// Samples by family. Each family has one heading, and a name that begins with the prefix.
#[derive(Debug)]
pub struct Page {
    prefix: &'static str,
    families: Vec<(&'static str, String)>,
}

impl Page {
    /// A page without samples.
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, families: Vec::new() }
    }

    /// Adds a sample. Its family is a `counter` or a `gauge`.
    pub fn sample(
        &mut self,
        name: &'static str,
        kind: &str,
        help: &str,
        labels: &[(&str, &str)],
        value: &Value,
    ) {
        let prefix = self.prefix;
        let at = self.families.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            let head = format!("# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}\n");
            self.families.push((name, head));
            self.families.len() - 1
        });
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.families[at].1, "{prefix}_{name}{labels} {value}");
    }

    /// The text.
    pub fn text(self) -> String {
        self.families.into_iter().map(|(_, lines)| lines).collect()
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
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
            "bywire_eth_offload{interface=\"blue:by0\",kind=\"udp\"} 0",
            "bywire_eth_uptime_seconds 5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
