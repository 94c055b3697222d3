//! `bywire ping`: the round trip to the services of other nodes, over their channels.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bywire_command::exit_status::Misuse;
use bywire_node::client;
use bywire_node::ping::{ECHO_BYTES_MAX, ECHO_BYTES_MIN, NotPinged, Pinger, Reply};
use bywire_sys::poller::Poller;
use bywire_wire::service::status::{Node, State};
use clap::Args;
use serde_json::{Value, json};

use crate::node_status;

/// How long the last replies are awaited.
const LAST: Duration = Duration::from_secs(2);
/// The shortest and the longest interval, in seconds.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.01..=60.0;
/// Tags of the poller.
const REPLIES: u64 = 0;
const STOP: u64 = 1;

/// Arguments of `bywire ping`.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire ping web2
  bywire ping web2 web3 --count 5 --interval 0.2
  bywire ping --all --count 1 --json",
    after_help = "\
Echo requests go from this machine's service to that of the other node, in encrypted packets of their channel, and are not sent \
again when they are lost. Runs until Ctrl-C unless --count is given. Exits with status 1 if a node has sent no reply at all; \
`bywire doctor NODE` finds out why."
)]
pub struct PingArgs {
    /// Nodes of the fabric
    #[arg(value_name = "NODE", required_unless_present = "all")]
    nodes: Vec<String>,
    /// Ping all other nodes
    #[arg(long, conflicts_with = "nodes")]
    all: bool,
    /// Requests to each node [default: until Ctrl-C]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Seconds between two requests, 0.01 to 60
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// Length of a request and its reply in bytes, 9 to 8192
    #[arg(short, long, value_name = "BYTES", default_value_t = 64)]
    size: u16,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
}

/// Echo requests to some nodes, by their places in the numbers of requests.
pub struct Pings {
    pub targets: Vec<Target>,
    pinger: Pinger,
    poller: Poller,
    size: u16,
    is_quiet: bool,
}

/// A node that is pinged.
#[derive(Clone, Debug, Default)]
pub struct Target {
    pub name: String,
    pub sent: u64,
    pub received: u64,
    pub times: Times,
    pub address: Option<SocketAddr>,
    failure: Option<NotPinged>,
}

/// Round-trip times in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    count: f64,
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.min = if self.count == 0.0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        (self.count, self.sum, self.squares) =
            (self.count + 1.0, self.sum + time, self.squares + time * time);
    }

    /// The least, the mean, the greatest, and the deviation as `ping` has it. `None`: there were none.
    pub fn summary(&self) -> Option<[f64; 4]> {
        if self.count == 0.0 {
            return None;
        }
        let mean = self.sum / self.count;
        let deviation = (self.squares / self.count - mean * mean).max(0.0).sqrt();
        Some([self.min, mean, self.max, deviation])
    }
}

impl PingArgs {
    /// Pings until the last request, or until Ctrl-C.
    ///
    /// # Errors
    /// No service runs, a node does not exist, or one has sent no reply.
    pub fn run(self) -> Result<()> {
        let interval = Some(self.interval).filter(|interval| INTERVAL_S.contains(interval));
        let interval = interval.ok_or_else(|| Misuse("--interval is 0.01 to 60 seconds".into()))?;
        let interval = Duration::from_secs_f64(interval);
        if !(ECHO_BYTES_MIN..=ECHO_BYTES_MAX).contains(&self.size.into()) {
            let text = format!("--size is {ECHO_BYTES_MIN} to {ECHO_BYTES_MAX} bytes");
            return Err(Misuse(text).into());
        }
        let names = if self.all { all_others()? } else { chosen(&self.nodes)? };
        let mut pings = Pings::open(names, self.size, self.json)?;
        // Also if the service ends meanwhile.
        let outcome = pings.run(self.count, interval);
        let report = pings.report();
        outcome.and(report)
    }
}

/// The names of all other nodes.
fn all_others() -> Result<Vec<String>> {
    let nodes = nodes()?.into_iter().filter(|node| node.state != State::Own);
    let names: Vec<String> = nodes.map(|node| node.name).collect();
    if names.is_empty() {
        return Err(Misuse("the fabric has no other node: add one to fabric.toml".into()).into());
    }
    Ok(names)
}

/// These nodes, each once, if the fabric has them.
fn chosen(named: &[String]) -> Result<Vec<String>> {
    let nodes = nodes()?;
    let mut chosen: Vec<String> = Vec::new();
    for name in named {
        node_status::find(&nodes, name)?;
        if !chosen.contains(name) {
            chosen.push(name.clone());
        }
    }
    Ok(chosen)
}

/// The nodes of the fabric, as the service knows them.
fn nodes() -> Result<Vec<Node>> {
    Ok(client::nodes(None)?)
}

impl Pings {
    /// No request has left yet. A quiet one prints no replies.
    ///
    /// # Errors
    /// No service runs.
    pub fn open(names: Vec<String>, size: u16, is_quiet: bool) -> Result<Self> {
        let targets = names.into_iter().map(|name| Target { name, ..Target::default() }).collect();
        let (pinger, poller) = (Pinger::open(None)?, Poller::new()?);
        poller.add(&pinger, REPLIES)?;
        Ok(Self { targets, pinger, poller, size, is_quiet })
    }

    fn run(&mut self, count: Option<u32>, interval: Duration) -> Result<()> {
        let (stop, stopped) = UnixStream::pair().context("no descriptors are left")?;
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::low_level::pipe::register(signal, stopped.try_clone()?)?;
        }
        self.poller.add(&stop, STOP)?;
        self.say(&format!("{} bytes to {} every {interval:?}\n", self.size, self.names()))?;
        let mut due = Instant::now();
        let mut round = 0;
        while count.is_none_or(|count| round < count) {
            self.send(round)?;
            due = (due + interval).max(Instant::now());
            let is_last = count == Some(round + 1);
            let until = if is_last { Instant::now() + LAST } else { due };
            if !self.receive(until, is_last)? {
                break;
            }
            round = round.wrapping_add(1);
        }
        Ok(())
    }

    /// Sends the requests of one round.
    ///
    /// # Errors
    /// The service has ended.
    pub fn send(&mut self, round: u32) -> Result<()> {
        let span = self.targets.len() as u32;
        let first = (round % (u32::MAX / span)) * span;
        for (request, target) in (first..).zip(&mut self.targets) {
            // One that the service does not take is lost here.
            self.pinger.send(&target.name, request, self.size)?;
            target.sent += 1;
        }
        Ok(())
    }

    /// Takes replies until then; of the last round, until there are all of them. `false`: it is interrupted.
    ///
    /// # Errors
    /// The service has ended.
    pub fn receive(&mut self, until: Instant, is_last: bool) -> Result<bool> {
        loop {
            while let Some(reply) = self.pinger.next()? {
                self.take(reply)?;
            }
            if is_last && self.targets.iter().all(|target| target.received >= target.sent) {
                return Ok(true);
            }
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                return Ok(true);
            };
            if self.poller.wait(Some(left))?.contains(&STOP) {
                return Ok(false);
            }
        }
    }

    fn take(&mut self, reply: Reply) -> Result<()> {
        let (size, count) = (self.size, self.targets.len() as u32);
        let Some(target) = self.targets.get_mut((reply.request % count) as usize) else { return Ok(()) };
        let line = match reply.outcome {
            Ok((time, address)) => {
                target.received += 1;
                target.address = Some(address);
                target.times.add(time);
                let (name, number) = (&target.name, reply.request / count);
                format!("{size} bytes from {name} ({address}): seq={number} time={} ms\n", milliseconds(time))
            }
            Err(reason) => {
                target.failure = Some(reason);
                return Ok(());
            }
        };
        self.say(&line)
    }

    fn names(&self) -> String {
        self.targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn say(&self, text: &str) -> Result<()> {
        if self.is_quiet { Ok(()) } else { bywire_command::output::print(text) }
    }

    /// Prints the summary. It is an error if a node has sent no reply.
    fn report(&self) -> Result<()> {
        // The service may have ended since.
        let nodes = nodes().unwrap_or_default();
        let known = |target: &Target| nodes.iter().find(|node| node.name == target.name);
        if self.is_quiet {
            let found: Vec<Value> = self.targets.iter().map(|target| target.object(known(target))).collect();
            let object = json!({ "schema": "bywire-ping/1", "bytes": self.size, "nodes": found });
            bywire_command::output::print(&format!("{object}\n"))?;
        } else {
            let text: String = self.targets.iter().map(|target| target.text(known(target))).collect();
            bywire_command::output::print(&text)?;
        }
        let silent = self.targets.iter().filter(|target| target.received == 0);
        let silent: Vec<String> = silent
            .map(|target| format!("no reply from {}: {}", target.name, target.reason(known(target))))
            .collect();
        if silent.is_empty() { Ok(()) } else { Err(anyhow!("{}", silent.join("; "))) }
    }
}

impl Target {
    fn lost_percent(&self) -> f64 {
        let lost = self.sent.saturating_sub(self.received);
        100.0 * lost as f64 / self.sent.max(1) as f64
    }

    /// Why there was no reply.
    fn reason(&self, node: Option<&Node>) -> String {
        match (self.failure, node.and_then(|node| node.complaint.as_deref())) {
            (Some(NotPinged::UnknownNode), _) => "it is no longer in the fabric".to_owned(),
            (Some(NotPinged::OwnNode), _) => "it is this machine".to_owned(),
            (_, Some(complaint)) => complaint.to_owned(),
            _ => format!("its channel is silent; `bywire doctor {}` finds out why", self.name),
        }
    }

    fn text(&self, node: Option<&Node>) -> String {
        let address = self.address.map_or(String::new(), |address| format!(" at {address}"));
        let mut text = format!(
            "--- {}{address} ---\n{} sent, {} received, {:.0} % lost",
            self.name,
            self.sent,
            self.received,
            self.lost_percent()
        );
        if let Some(channel) = node.and_then(|node| node.channel) {
            text += &format!(
                ", {}, packets of {} bytes (the route carries {})",
                node_status::security_text(channel.security),
                channel.packet_bytes,
                channel.route_bytes
            );
        }
        text.push('\n');
        if let Some(summary) = self.times.summary() {
            let [min, mean, max, deviation] = summary.map(|time| format!("{:.3}", 1000.0 * time));
            text += &format!("round trip min/mean/max/mdev {min}/{mean}/{max}/{deviation} ms\n");
        }
        text
    }

    fn object(&self, node: Option<&Node>) -> Value {
        let channel = node.and_then(|node| node.channel);
        let times = self.times.summary().map(|summary| {
            let [min, mean, max, mdev] = summary.map(|time| (1e9 * time).round() / 1000.0);
            json!({ "min": min, "mean": mean, "max": max, "mdev": mdev })
        });
        json!({
            "name": self.name, "address": self.address.map(|address| address.to_string()),
            "sent": self.sent, "received": self.received, "lost_percent": self.lost_percent(),
            "rtt_us": times,
            "security": channel.map(|channel| node_status::security_text(channel.security)),
            "packet_bytes": channel.map(|channel| channel.packet_bytes),
            "route_bytes": channel.map(|channel| channel.route_bytes),
            "complaint": (self.received == 0).then(|| self.reason(node)),
        })
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3}", 1000.0 * time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_least_the_mean_the_greatest_and_the_deviation() {
        let mut times = Times::default();
        assert_eq!(times.summary(), None);
        for ms in [1, 2, 3] {
            times.add(Duration::from_millis(ms));
        }
        let [min, mean, max, deviation] = times.summary().expect("three").map(|time| (1e6 * time).round());
        assert_eq!((min, mean, max, deviation), (1000.0, 2000.0, 3000.0, 816.0));
    }

    #[test]
    fn a_lost_reply_and_a_duplicate_of_none_make_a_percentage() {
        let target = |sent, received| Target { sent, received, ..Target::default() };
        assert_eq!(target(4, 3).lost_percent(), 25.0);
        assert_eq!(target(0, 0).lost_percent(), 0.0);
        assert!(target(4, 0).reason(None).contains("bywire doctor"));
        assert!(target(4, 3).text(None).starts_with("---  ---\n4 sent, 3 received, 25 % lost\n"));
    }
}
