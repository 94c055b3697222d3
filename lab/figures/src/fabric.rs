//! Times and costs of the fabric between two nodes besides messages: connecting, the report of a death, recovery after an
//! outage, and idle connections.
//!
//! Each measurement has two fresh nodes in namespaces, whose ends are processes of this program.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire::{Event, Peer, Port, PortOptions, Priority, Reach};
use bywire_analysis::statistics::median;
use bywire_measure::clock::{Clock, monotonic_ns};
use bywire_measure::fabric_pair::FabricPair;
use bywire_measure::interrupt::Leader;
use bywire_measure::namespaces::{INTERFACE, Namespaces};
use bywire_measure::pin;
use bywire_measure::plan;
use bywire_results::cell::Unit;
use bywire_results::message_link::Security;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::contestant::{Contestant, Samples};
use crate::idle::cpu_ns;
use crate::resident::proportional_bytes;
use crate::series::Metric;

/// The first argument of a process that is an end.
pub const END: &str = "__fabric_end";

/// The number of warm connects, and of connections that are idle at once.
const CONNECTIONS: usize = 64;
/// Kills for each sample, which is the slowest of them.
const KILLS: usize = 5;
/// The duration of the outage.
const OUTAGE: Duration = Duration::from_secs(5);
/// An answer that takes this long was delayed by the outage.
const GAP: Duration = Duration::from_secs(1);
/// Idle peers on another machine beside a local one.
const IDLE_PEERS: usize = 8;
/// Idle services are watched for as long as one interval of their keep-alives.
const WATCH: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_secs(20);

/// The measurements of two nodes.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Nanoseconds until a port is connected: [`Metric::Cold`] the first time, and [`Metric::Warm`] later.
    Connect,
    /// Nanoseconds from a process's end to the event of its peer, the slowest of a few.
    Death,
    /// Nanoseconds from the end of an outage to the first answer.
    Outage,
    /// For each idle connection the bytes of one end and of its service ([`Metric::Memory`]), and for all of them together the
    /// CPU of both services ([`Metric::Cpu`]).
    Idle,
    /// Nanoseconds of the half-RTT between two processes of one node, with this many idle peers on the other one.
    Local(usize),
}

impl What {
    /// The same with idle peers elsewhere.
    pub const BESIDE: Self = Self::Local(IDLE_PEERS);
}

/// A measurement of two nodes.
pub fn contestant(what: What, seconds: f64) -> Contestant {
    Contestant::adapter("./x figures links (two nodes)", Unit::Nanoseconds, move || {
        let nodes = FabricPair::open(Arc::new(Namespaces::veth_pair(1500)?), Security::Encrypted)?;
        let value = match what {
            What::Connect => return connect(&nodes),
            What::Idle => return idle(&nodes),
            What::Death => slowest_notice(&nodes)?,
            What::Outage => pause(&nodes)?,
            What::Local(peers) => local(&nodes, peers, seconds)?,
        };
        Ok(vec![(Metric::Value, value)])
    })
}

fn connect(nodes: &FabricPair) -> Result<Samples> {
    let _target = Process::ready(nodes, plan::End::Target, &["echo"])?;
    let told = Process::start(nodes, plan::End::Source, &["connect"])?.line()?;
    let (cold, warm) = told.split_once(' ').context("an end has not said two times")?;
    Ok(vec![(Metric::Cold, cold.parse()?), (Metric::Warm, warm.parse()?)])
}

fn slowest_notice(nodes: &FabricPair) -> Result<f64> {
    let mut observer = Process::ready(nodes, plan::End::Source, &["observer"])?;
    let mut slowest_ns = 0;
    for _ in 0..KILLS {
        let mut victim = Process::ready(nodes, plan::End::Target, &["victim"])?;
        let pid = Pid::from_raw(victim.running.child.id() as i32).context("a process without an identity")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        victim.running.child.kill()?;
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None)?;
        let ended_ns = monotonic_ns();
        let noticed_ns: u64 = observer.line()?.parse()?;
        slowest_ns = slowest_ns.max(noticed_ns.saturating_sub(ended_ns));
    }
    Ok(slowest_ns as f64)
}

fn pause(nodes: &FabricPair) -> Result<f64> {
    let _target = Process::ready(nodes, plan::End::Target, &["echo"])?;
    let mut source = Process::ready(nodes, plan::End::Source, &["outage"])?;
    std::thread::sleep(SETTLE);
    let sides = [&nodes.namespaces.source, &nodes.namespaces.target];
    let lose = |lost_ppm| sides.into_iter().try_for_each(|side| side.lose(INTERFACE, lost_ppm));
    lose(1_000_000)?;
    std::thread::sleep(OUTAGE);
    let back_ns = monotonic_ns();
    lose(0)?;
    let answered_ns: u64 = source.line()?.parse()?;
    ensure!(answered_ns > back_ns, "an answer has come during the outage");
    Ok((answered_ns - back_ns) as f64)
}

fn idle(nodes: &FabricPair) -> Result<Samples> {
    let _target = Process::ready(nodes, plan::End::Target, &["echo"])?;
    let mut source = Process::ready(nodes, plan::End::Source, &["idle"])?;
    let services = || nodes.services().iter().copied();
    let memory = |process: u32| -> Result<f64> {
        let of_services: f64 = services().map(proportional_bytes).sum::<Result<f64>>()?;
        Ok(proportional_bytes(process)? + of_services / 2.0)
    };
    let cpu = || services().map(cpu_ns).sum::<Result<u64>>();
    let before = memory(source.running.child.id())?;
    source.say("go")?;
    ensure!(source.line()? == "idle", "an end is not idle");
    std::thread::sleep(SETTLE);
    let memory_bytes = (memory(source.running.child.id())? - before) / (CONNECTIONS - 1) as f64;
    let (before_ns, started) = (cpu()?, Instant::now());
    std::thread::sleep(WATCH);
    let ns_per_second = (cpu()? - before_ns) as f64 / started.elapsed().as_secs_f64();
    Ok(vec![(Metric::Memory, memory_bytes), (Metric::Cpu, ns_per_second)])
}

fn local(nodes: &FabricPair, peers: usize, seconds: f64) -> Result<f64> {
    let (source_core, target_core) = pin::two_cores();
    let _far = Process::ready(nodes, plan::End::Target, &["echo"])?;
    let word = |core: u32| [peers.to_string(), core.to_string(), seconds.to_string()];
    let start = |role: &str, core: u32| {
        let [peers, core, seconds] = word(core);
        Process::start(nodes, plan::End::Source, &[role, &peers, &core, &seconds])
    };
    let mut answering = start("answer", target_core)?;
    answering.await_ready()?;
    Ok(start("ask", source_core)?.line()?.parse()?)
}

/// A process that plays an end.
struct Process {
    running: Leader,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(nodes: &FabricPair, end: plan::End, words: &[&str]) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(END).args(words).env("BYWIRE_RUNTIME_DIR", nodes.runtime_directories().of(end));
        match end {
            plan::End::Source => nodes.namespaces.source.enter(&mut command)?,
            plan::End::Target => nodes.namespaces.target.enter(&mut command)?,
        }
        let mut running = Leader::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = running.child.stdout.take().context("a process without output")?;
        Ok(Self { running, said: BufReader::new(output).lines() })
    }

    fn ready(nodes: &FabricPair, end: plan::End, words: &[&str]) -> Result<Self> {
        let mut process = Self::start(nodes, end, words)?;
        process.await_ready()?;
        Ok(process)
    }

    fn await_ready(&mut self) -> Result<()> {
        ensure!(self.line()? == "ready", "an end is not ready");
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.said.next().context("an end of the fabric has died")??)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let input = self.running.child.stdin.as_mut().context("a process without input")?;
        Ok(writeln!(input, "{line}")?)
    }
}

/// Plays an end: a role and its words.
///
/// # Errors
/// Errors of an end.
pub fn play(words: &[String]) -> Result<()> {
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["echo"] => echo(),
        ["connect"] => time_connects(),
        ["observer"] => observer(),
        ["victim"] => {
            let (mut port, _) = connected("source/observer")?;
            say("ready")?;
            loop {
                port.wait(None)?;
            }
        }
        ["outage"] => await_outage(),
        ["idle"] => be_idle(),
        ["answer", peers, core, _] => {
            pin::pin_to(core.parse()?)?;
            answer(open(Some("answer"))?, peers.parse()?)
        }
        ["ask", peers, core, seconds] => {
            pin::pin_to(core.parse()?)?;
            ask(peers.parse()?, Duration::from_secs_f64(seconds.parse()?))
        }
        _ => bail!("no end of the fabric plays {words:?}"),
    }
}

fn open(name: Option<&str>) -> Result<Port> {
    let name = name.map(str::parse).transpose()?;
    Ok(Port::open(PortOptions { name, reach: Reach::Fabric, ..PortOptions::default() })?)
}

fn connected(address: &str) -> Result<(Port, Peer)> {
    let mut port = open(None)?;
    let peer = port.connect(&address.parse()?, TIMEOUT)?;
    Ok((port, peer))
}

fn echo_address(number: usize) -> String {
    format!("target/echo{number}")
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// Ports that answer every message, until the reader of this process's output ends.
fn echo() -> Result<()> {
    for number in 0..CONNECTIONS {
        let mut port = open(Some(&format!("echo{number}")))?;
        std::thread::spawn(move || -> Result<()> {
            loop {
                let event = port.wait(None)?;
                return_message(&mut port, event)?;
            }
        });
    }
    say("ready")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn return_message(port: &mut Port, event: Option<Event>) -> Result<()> {
    if let Some(Event::Message(message)) = event {
        port.send(message.peer, message.priority, &message.payload)?;
    }
    Ok(())
}

/// One message there and back, asleep while it is away.
fn exchange(port: &mut Port, peer: Peer) -> Result<()> {
    port.send(peer, Priority::Low, &[0; 8])?;
    loop {
        match port.wait(Some(TIMEOUT))?.context("no answer")? {
            Event::Message(_) => return Ok(()),
            Event::Disconnected { reason, .. } => bail!("a peer has gone: {reason}"),
            _ => {}
        }
    }
}

fn time_connects() -> Result<()> {
    let mut port = open(None)?;
    let mut times = Vec::new();
    for number in 0..CONNECTIONS {
        let started = Instant::now();
        port.connect(&echo_address(number).parse()?, TIMEOUT)?;
        times.push(started.elapsed().as_nanos() as f64);
    }
    say(&format!("{} {}", times[0], median(&times[1..])))
}

fn observer() -> Result<()> {
    let mut port = open(Some("observer"))?;
    say("ready")?;
    loop {
        if let Some(Event::Disconnected { .. }) = port.wait(None)? {
            say(&monotonic_ns().to_string())?;
        }
    }
}

fn await_outage() -> Result<()> {
    let (mut port, peer) = connected(&echo_address(0))?;
    say("ready")?;
    loop {
        let started = Instant::now();
        exchange(&mut port, peer)?;
        if started.elapsed() > GAP {
            return say(&monotonic_ns().to_string());
        }
    }
}

fn be_idle() -> Result<()> {
    let mut port = open(None)?;
    let mut meet = |number: usize| -> Result<()> {
        let peer = port.connect(&echo_address(number).parse()?, TIMEOUT)?;
        exchange(&mut port, peer)
    };
    // The first connection of a process costs more than later ones.
    meet(0)?;
    say("ready")?;
    std::io::stdin().lines().next().context("nobody listens")??;
    (1..CONNECTIONS).try_for_each(meet)?;
    say("idle")?;
    loop {
        port.wait(None)?;
    }
}

/// Connects to peers on the other node, with a message to each.
fn befriend(port: &mut Port, peers: usize) -> Result<()> {
    (0..peers).try_for_each(|number| {
        let peer = port.connect(&echo_address(number).parse()?, TIMEOUT)?;
        exchange(port, peer)
    })
}

fn answer(mut port: Port, peers: usize) -> Result<()> {
    befriend(&mut port, peers)?;
    say("ready")?;
    loop {
        let event = port.poll();
        return_message(&mut port, event)?;
    }
}

/// Says the median half-RTT to the other process of this node, in ns.
fn ask(peers: usize, duration: Duration) -> Result<()> {
    let mut port = open(None)?;
    befriend(&mut port, peers)?;
    let peer = port.connect(&"localhost/answer".parse()?, TIMEOUT)?;
    let clock = Clock::shared();
    let (started, mut round_trips) = (Instant::now(), Vec::new());
    while started.elapsed() < duration {
        let sent_ns = clock.now_ns();
        port.send(peer, Priority::Low, &[0; 8])?;
        while !matches!(port.poll(), Some(Event::Message(_))) {}
        round_trips.push((clock.now_ns() - sent_ns) as f64);
    }
    say(&(median(&round_trips) / 2.0).to_string())
}
