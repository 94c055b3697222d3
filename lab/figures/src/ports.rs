//! Times and costs of ports besides messages. On one machine: the report of a death, and an idle port. Between two nodes:
//! connecting, the report of a death, recovery after an outage, and idle connections.
//!
//! Each measurement of two nodes has two fresh ones in namespaces, whose ends are processes of this program.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire::{Address, Event, Peer, Port, PortOptions, Priority, Reach};
use bywire_analysis::statistics::median;
use bywire_measure::clock::{Clock, monotonic_ns};
use bywire_measure::fabric_pair::FabricPair;
use bywire_measure::namespaces::{INTERFACE, Namespaces};
use bywire_measure::pin;
use bywire_results::message_link::Security;

use crate::contestant::{Contestant, Metric, Samples, Unit};
use crate::process::{self, End, Place, Player, cpu_ns, proportional_bytes};

/// The number of warm connects, and of connections that are idle at once.
const CONNECTIONS: usize = 64;
/// Kills for each sample, which is the slowest of them.
const KILLS: u32 = 5;
const OUTAGE: Duration = Duration::from_secs(5);
/// An answer that takes this long was delayed by the outage.
const GAP: Duration = Duration::from_secs(1);
/// Peers of the idle port on one machine, as in the other measurements.
const LOCAL_PEERS: usize = 16;
/// The time that the idle port is watched.
const LOCAL_WATCH: Duration = Duration::from_secs(2);
/// Idle services are watched for as long as one interval of their keep-alives.
const WATCH: Duration = Duration::from_secs(5);
/// After this a process sleeps, whatever it did to get there.
const SETTLE: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_secs(20);

/// A measurement of two nodes for so many seconds.
pub type Measure = fn(&FabricPair, f64) -> Result<Samples>;

/// A measurement of two fresh nodes.
pub fn between_nodes(measure: Measure, seconds: f64) -> Contestant {
    Contestant::adapter("./x figures links (two nodes)", Unit::Nanoseconds, move || {
        measure(&FabricPair::open(Arc::new(Namespaces::veth_pair(1500)?), Security::Encrypted)?, seconds)
    })
}

/// Starts this program at an end of a fabric.
fn start(nodes: &FabricPair, end: End, words: &[&str]) -> Result<Player> {
    let mut command = Place(Some(Arc::clone(&nodes.namespaces))).own(end, words)?;
    Player::start(command.env("BYWIRE_RUNTIME_DIR", nodes.runtime_directories().of(end)))
}

/// Starts this program in the network of this machine.
fn start_here(directory: &Path, role: &str) -> Result<Player> {
    Player::start(Place::default().own(End::Source, &[role])?.env("BYWIRE_RUNTIME_DIR", directory))
}

/// Nanoseconds until a port is connected: [`Metric::Cold`] the first time, and [`Metric::Warm`] later.
pub fn connect(nodes: &FabricPair, _seconds: f64) -> Result<Samples> {
    let _target = start(nodes, End::Target, &["echo"])?.ready()?;
    let told = start(nodes, End::Source, &["connect"])?.line()?;
    let (cold, warm) = told.split_once(' ').context("an end has not said two times")?;
    Ok(vec![(Metric::Cold, cold.parse()?), (Metric::Warm, warm.parse()?)])
}

/// Nanoseconds from a process's end to the event of its peer, the slowest of a few.
pub fn death(nodes: &FabricPair, _seconds: f64) -> Result<Samples> {
    let mut observer = start(nodes, End::Source, &["observer"])?.ready()?;
    let mut slowest_ns = 0;
    for _ in 0..KILLS {
        let mut victim = start(nodes, End::Target, &["victim"])?.ready()?;
        let ended_ns = victim.kill()?.join().ok().context("the clock's thread died")??;
        let noticed_ns: u64 = observer.line()?.parse()?;
        slowest_ns = slowest_ns.max(noticed_ns.saturating_sub(ended_ns));
    }
    Ok(vec![(Metric::Value, slowest_ns as f64)])
}

/// Nanoseconds from the end of an outage to the first answer.
pub fn outage(nodes: &FabricPair, _seconds: f64) -> Result<Samples> {
    let _target = start(nodes, End::Target, &["echo"])?.ready()?;
    let mut source = start(nodes, End::Source, &["outage"])?.ready()?;
    std::thread::sleep(SETTLE);
    let lose = |lost_ppm| nodes.namespaces.nodes.iter().try_for_each(|side| side.lose(INTERFACE, lost_ppm));
    lose(1_000_000)?;
    std::thread::sleep(OUTAGE);
    let back_ns = monotonic_ns();
    lose(0)?;
    let answered_ns: u64 = source.line()?.parse()?;
    ensure!(answered_ns > back_ns, "an answer has come during the outage");
    Ok(vec![(Metric::Value, (answered_ns - back_ns) as f64)])
}

/// For each idle connection the bytes of one end and of its service ([`Metric::Memory`]), and for all of them together the CPU of
/// both services ([`Metric::Cpu`]).
pub fn idle_connections(nodes: &FabricPair, _seconds: f64) -> Result<Samples> {
    let _target = start(nodes, End::Target, &["echo"])?.ready()?;
    let mut source = start(nodes, End::Source, &["idle"])?.ready()?;
    let services = || nodes.services().iter().copied();
    let memory = |process: u32| -> Result<f64> {
        let of_services: f64 = services().map(proportional_bytes).sum::<Result<f64>>()?;
        Ok(proportional_bytes(process)? + of_services / 2.0)
    };
    let before = memory(source.id())?;
    source.tell("go")?;
    source.expect("idle")?;
    std::thread::sleep(SETTLE);
    let memory_bytes = (memory(source.id())? - before) / (CONNECTIONS - 1) as f64;
    let ns_per_second = process::cpu_ns_per_second(WATCH, || services().map(cpu_ns).sum())?;
    Ok(vec![(Metric::Memory, memory_bytes), (Metric::Cpu, ns_per_second)])
}

/// Nanoseconds of the half-RTT between two processes of one node, with so many idle peers on the other one.
pub fn local(nodes: &FabricPair, peers: usize, seconds: f64) -> Result<Samples> {
    let _far = start(nodes, End::Target, &["echo"])?.ready()?;
    let start = |role: &str, end: End| {
        let words = [peers.to_string(), process::core(end).to_string(), seconds.to_string()];
        start(nodes, End::Source, &[role, &words[0], &words[1], &words[2]])
    };
    let _answering = start("answer", End::Target)?.ready()?;
    Ok(vec![(Metric::Value, start("ask", End::Source)?.line()?.parse()?)])
}

/// Nanoseconds from the end of a process of this machine, as its pidfd shows, to the event of a port that `polls` or is asleep;
/// never below 0.
pub fn local_death(polls: bool) -> Contestant {
    let command = format!("./x figures messages ({KILLS} kills a round, the slowest counts)");
    Contestant::of_value(&command, Unit::Nanoseconds, move || {
        let directory = tempfile::tempdir()?;
        let mut observer = open_in(directory.path(), Some("observer"))?;
        let mut slowest_ns = 0;
        for _ in 0..KILLS {
            let mut victim = start_here(directory.path(), "local-victim")?;
            await_event(&mut observer, false, |event| matches!(event, Event::Connected(_)))?;
            let teardown = victim.kill()?;
            await_event(&mut observer, polls, |event| matches!(event, Event::Disconnected { .. }))?;
            let noticed_ns = monotonic_ns();
            let ended_ns = teardown.join().ok().context("the clock's thread died")??;
            slowest_ns = slowest_ns.max(noticed_ns.saturating_sub(ended_ns));
        }
        Ok(slowest_ns as f64)
    })
}

fn await_event(port: &mut Port, polls: bool, wanted: impl Fn(&Event) -> bool) -> Result<()> {
    let started = Instant::now();
    loop {
        let event = if polls { port.poll() } else { port.wait(Some(TIMEOUT))? };
        match event {
            Some(event) if wanted(&event) => return Ok(()),
            Some(_) => {}
            None => ensure!(started.elapsed() < TIMEOUT, "nothing was noticed for {} s", TIMEOUT.as_secs()),
        }
    }
}

/// The cost of an idle process with a port and connected peers: ns of CPU per second, by the kernel's own account of all its
/// threads.
pub fn local_idle() -> Contestant {
    let seconds = LOCAL_WATCH.as_secs();
    let command = format!("./x figures messages (a port with {LOCAL_PEERS} peers in `wait` for {seconds} s)");
    Contestant::of_value(&command, Unit::NanosecondsPerSecond, || {
        let directory = tempfile::tempdir()?;
        let idler = start_here(directory.path(), "local-idle")?.ready()?;
        std::thread::sleep(SETTLE);
        process::cpu_ns_per_second(LOCAL_WATCH, || cpu_ns(idler.id()))
    })
}

/// Plays an end: a role and its words.
pub fn play(words: &[String]) -> Result<()> {
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["echo"] => echo(),
        ["connect"] => time_connects(),
        ["observer"] => observer(),
        ["victim"] => victim(Reach::Fabric, "source/observer"),
        ["local-victim"] => victim(Reach::Machine, "localhost/observer"),
        ["outage"] => await_outage(),
        ["idle"] => be_idle(),
        ["local-idle"] => be_idle_here(),
        ["answer", peers, core, _] => {
            pin::pin_to(core.parse()?)?;
            answer(open(Some("answer"))?, peers.parse()?)
        }
        ["ask", peers, core, seconds] => {
            pin::pin_to(core.parse()?)?;
            ask(peers.parse()?, Duration::from_secs_f64(seconds.parse()?))
        }
        _ => bail!("no end plays {words:?}"),
    }
}

fn open_with(name: Option<&str>, options: PortOptions) -> Result<Port> {
    Ok(Port::open(PortOptions { name: name.map(str::parse).transpose()?, ..options })?)
}

fn open(name: Option<&str>) -> Result<Port> {
    open_with(name, PortOptions { reach: Reach::Fabric, ..PortOptions::default() })
}

fn open_in(directory: &Path, name: Option<&str>) -> Result<Port> {
    open_with(name, PortOptions { runtime_directory: Some(directory.to_owned()), ..PortOptions::default() })
}

fn connect_to_echo(port: &mut Port, number: usize) -> Result<Peer> {
    Ok(port.connect(&format!("target/echo{number}").parse()?, TIMEOUT)?)
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
    println!("ready");
    process::await_dismissal()
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
        connect_to_echo(&mut port, number)?;
        times.push(started.elapsed().as_nanos() as f64);
    }
    println!("{} {}", times[0], median(&times[1..]));
    Ok(())
}

fn observer() -> Result<()> {
    let mut port = open(Some("observer"))?;
    println!("ready");
    loop {
        if let Some(Event::Disconnected { .. }) = port.wait(None)? {
            println!("{}", monotonic_ns());
        }
    }
}

/// The process that will be killed. It ends too if the observer ends first.
fn victim(reach: Reach, observer: &str) -> Result<()> {
    let mut port = open_with(None, PortOptions { reach, ..PortOptions::default() })?;
    port.connect(&observer.parse()?, TIMEOUT)?;
    println!("ready");
    while !matches!(port.wait(None)?, Some(Event::Disconnected { .. })) {}
    Ok(())
}

fn await_outage() -> Result<()> {
    let mut port = open(None)?;
    let peer = connect_to_echo(&mut port, 0)?;
    println!("ready");
    loop {
        let started = Instant::now();
        exchange(&mut port, peer)?;
        if started.elapsed() > GAP {
            println!("{}", monotonic_ns());
            return Ok(());
        }
    }
}

/// Connects to peers on the other node, with a message to each.
fn befriend(port: &mut Port, mut peers: std::ops::Range<usize>) -> Result<()> {
    peers.try_for_each(|number| {
        let peer = connect_to_echo(port, number)?;
        exchange(port, peer)
    })
}

fn be_idle() -> Result<()> {
    let mut port = open(None)?;
    // The first connection of a process costs more than later ones.
    befriend(&mut port, 0..1)?;
    println!("ready");
    std::io::stdin().lines().next().context("nobody listens")??;
    befriend(&mut port, 1..CONNECTIONS)?;
    println!("idle");
    loop {
        port.wait(None)?;
    }
}

/// A port named `idle` and its peers, on one machine.
fn be_idle_here() -> Result<()> {
    let mut port = open_with(Some("idle"), PortOptions::default())?;
    let mut peers = Vec::new();
    for _ in 0..LOCAL_PEERS {
        let mut peer = open_with(None, PortOptions::default())?;
        let address: Address = "localhost/idle".parse()?;
        let connecting = std::thread::spawn(move || peer.connect(&address, TIMEOUT).map(|_| peer));
        await_event(&mut port, false, |event| matches!(event, Event::Connected(_)))?;
        peers.push(connecting.join().ok().context("a peer's thread died")??);
    }
    println!("ready");
    loop {
        port.wait(None)?;
    }
}

fn answer(mut port: Port, peers: usize) -> Result<()> {
    befriend(&mut port, 0..peers)?;
    println!("ready");
    loop {
        let event = port.poll();
        return_message(&mut port, event)?;
    }
}

/// Prints the median half-RTT to the other process of this node, in ns.
fn ask(peers: usize, duration: Duration) -> Result<()> {
    let mut port = open(None)?;
    befriend(&mut port, 0..peers)?;
    let peer = port.connect(&"localhost/answer".parse()?, TIMEOUT)?;
    let clock = Clock::shared();
    let (started, mut round_trips) = (Instant::now(), Vec::new());
    while started.elapsed() < duration {
        let sent_ns = clock.now_ns();
        port.send(peer, Priority::Low, &[0; 8])?;
        while !matches!(port.poll(), Some(Event::Message(_))) {}
        round_trips.push((clock.now_ns() - sent_ns) as f64);
    }
    println!("{}", median(&round_trips) / 2.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_is_noticed_either_way() {
        for polls in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let mut observer = open_in(directory.path(), Some("observer")).unwrap();
            let path = directory.path().to_owned();
            let other = std::thread::spawn(move || {
                let mut port = open_in(&path, None).unwrap();
                port.connect(&"localhost/observer".parse().unwrap(), TIMEOUT).unwrap();
            });
            await_event(&mut observer, polls, |event| matches!(event, Event::Disconnected { .. })).unwrap();
            other.join().unwrap();
        }
    }
}
