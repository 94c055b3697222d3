//! Programs that print what bare loops take: a port without the laboratory, a [bare ring](crate::bare_ring), and the code of a
//! connection between machines.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire::harness::{End, windows_of};
use bywire::{Confirm, Event, Message, Port, PortOptions, Priority, SendError};
use bywire_sys::udp::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX};
use bywire_wire::batch::Batch;
use bywire_wire::connection::Options;
use bywire_wire::keys::{Security, Side};
use bywire_wire::packet;
use clap::Parser;
use rustix::mm::ProtFlags;

use crate::bare_ring::{Claim, Publication, Variant, WRITABLE, half_rtt_ns, in_turn, on_two_cores, rate};

/// Round trips of the ping-pong.
const ROUND_TRIPS: u32 = 1_000_000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The bare port, without the laboratory: two threads on two cores. One sends as fast as it can, then both play ping-pong. What the
/// laboratory measures above this is its own work per message
#[derive(Parser)]
pub struct Bare {
    /// The length of a message
    #[arg(default_value_t = 8)]
    message_bytes: usize,
    /// Messages in one direction
    #[arg(default_value_t = 10_000_000)]
    messages: u32,
}

impl Bare {
    pub fn run(self) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let options =
            || PortOptions { runtime_directory: Some(directory.path().to_owned()), ..Default::default() };
        let target = Port::open(PortOptions { name: Some("target".parse()?), ..options() })?;
        let source = Port::open(options())?;
        let Self { message_bytes, messages } = self;
        let (asked, answered) =
            on_two_cores(|| ask(source, message_bytes, messages), || answer(target, messages))?;
        asked.and(answered)
    }
}

fn ask(mut port: Port, length: usize, messages: u32) -> Result<()> {
    let peer = port.connect(&"localhost/target".parse()?, TIMEOUT)?;
    let payload = vec![1; length];
    let start = Instant::now();
    for _ in 0..messages {
        loop {
            match port.send(peer, Priority::Low, &payload) {
                Ok(()) => break,
                Err(SendError::Full) => drop(port.poll()),
                Err(error) => bail!(error),
            }
        }
    }
    drop(next(&mut port)?);
    let each_ns = start.elapsed().as_nanos() as f64 / f64::from(messages);
    println!(
        "{length} B: {each_ns:.1} ns a message, {:.1} M/s, {:.2} GB/s",
        1e3 / each_ns,
        length as f64 / each_ns
    );
    let start = Instant::now();
    for _ in 0..ROUND_TRIPS {
        port.send(peer, Priority::Low, b"12345678")?;
        drop(next(&mut port)?);
    }
    println!("8 B half-RTT: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(ROUND_TRIPS) / 2.0);
    Ok(())
}

fn answer(mut port: Port, messages: u32) -> Result<()> {
    let mut sum = 0u64;
    let mut last = None;
    for _ in 0..messages {
        let message = next(&mut port)?;
        sum += u64::from(message.payload.first().copied().unwrap_or(0));
        last = Some(message.peer);
        port.recycle(message.payload);
    }
    std::hint::black_box(sum);
    port.send(last.context("at least one message")?, Priority::Low, b"done")?;
    for _ in 0..ROUND_TRIPS {
        let message = next(&mut port)?;
        port.send(message.peer, message.priority, &message.payload)?;
    }
    // The last answer is on its way: leave when the other end has.
    while !matches!(port.wait(Some(TIMEOUT))?, Some(Event::Disconnected { .. }) | None) {}
    Ok(())
}

/// The next message, by polling.
fn next(port: &mut Port) -> Result<Message> {
    loop {
        match port.poll() {
            Some(Event::Message(message)) => return Ok(message),
            Some(Event::Disconnected { reason, .. }) => bail!(reason),
            _ => {}
        }
    }
}

/// A bare ring of cache lines between two cores. Beside each rate stands how long a line takes from core to core just before and
/// just after, because virtual cores move
#[derive(Parser)]
pub struct BareRing {
    /// How often each variant is measured
    #[arg(default_value_t = 3)]
    rounds: u32,
}

impl BareRing {
    /// Measures and prints every variant.
    pub fn run(self) -> Result<()> {
        for round in 0..self.rounds {
            for (publication, name) in Publication::ALL {
                for stores in [0, 12] {
                    let variant = Variant { publication, stores, claim: Claim::Late, reader: WRITABLE };
                    print(round, variant, &format!("{name}, {stores} stores beside"))?;
                }
            }
            for (reader, mapping) in [(WRITABLE, "writable"), (ProtFlags::READ, "read-only")] {
                for (claim, name) in Claim::ALL {
                    let variant = Variant { publication: Publication::Locked, stores: 12, claim, reader };
                    print(round, variant, &format!("reader's mapping {mapping}, {name}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Measures one variant and prints it, between two looks at how far the cores are.
fn print(round: u32, variant: Variant, name: &str) -> Result<()> {
    let before = half_rtt_ns()?;
    let rate = rate(variant)?;
    let (write, read) = in_turn(variant)?;
    let after = half_rtt_ns()?;
    println!(
        "round {round}: line {before:.0} and {after:.0} ns; {name}: {rate:.1} M/s; in turn {write:.1} ns to write, \
         {read:.1} ns to read"
    );
    Ok(())
}

/// The length of packets at an MTU of 1500.
const ROUTE_BYTES: u16 = 1472;
/// The delay of each packet, in the clock of the connections.
const DELAY_NS: u64 = 20_000;
const SHORT_MESSAGES: u32 = 1_000_000;
const LONG_MESSAGES: u32 = 2_000;
const LONG_BYTES: usize = 1 << 20;
/// Long messages under way.
const WAITING: usize = 4;

/// Prints what the code of a connection between machines costs: both ends in one thread, without sockets and system calls. What a
/// link costs beyond that is the kernel's, and what the kernel does to the caches.
pub fn connection() -> Result<()> {
    for security in [Security::Plain, Security::Aes256Gcm] {
        println!("{security:?}: 8 B to the other end: {:.0} ns", short_ns(security)?);
        let [send, receive] = long_ns(security)?;
        println!(
            "{security:?}: a packet of a 1 MiB message: {send:.0} ns to send, {receive:.0} ns to receive"
        );
    }
    Ok(())
}

/// The two ends of a connection, the packets on their way, and the clock.
struct Pair {
    ends: [End; 2],
    batch: Batch,
    arriving: Vec<u8>,
    started: Instant,
}

impl Pair {
    fn new(security: Security) -> Self {
        let port = PortOptions::default();
        let windows = windows_of(&port);
        let end = |(side, connection, peer_connection)| {
            let options = Options {
                side,
                security,
                secret: [7; 32].into(),
                connection,
                peer_connection,
                windows,
                peer_windows: windows,
                route_bytes: ROUTE_BYTES,
            };
            End::new(options, &port, port.message_bytes_max)
        };
        Self {
            ends: [(Side::Initiator, 1, 2), (Side::Responder, 2, 1)].map(end),
            batch: Batch::new(BATCH_BYTES_MAX, BATCH_PACKETS_MAX),
            arriving: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Brings what an end has to send to the other one. Returns the packets, and the nanoseconds at either end.
    fn carry(&mut self, from: usize) -> (usize, [u64; 2]) {
        let now_ns = DELAY_NS + self.started.elapsed().as_nanos() as u64;
        let began = Instant::now();
        self.batch.clear();
        self.ends[from].transmit(now_ns, &mut self.batch);
        let send_ns = began.elapsed().as_nanos() as u64;
        self.arriving.clear();
        self.arriving.extend_from_slice(self.batch.bytes());
        let began = Instant::now();
        for (_, packet) in packet::split(&mut self.arriving) {
            self.ends[1 - from].receive_packet(now_ns + DELAY_NS, packet);
        }
        (self.batch.count(), [send_ns, began.elapsed().as_nanos() as u64])
    }
}

/// A short message to the other end, which answers with another one that acknowledges it.
fn short_ns(security: Security) -> Result<f64> {
    let mut pair = Pair::new(security);
    let began = Instant::now();
    for message in 0..SHORT_MESSAGES {
        let from = message as usize % 2;
        pair.ends[from].send(Priority::High, &[1; 8])?;
        pair.carry(from);
        let event = pair.ends[1 - from].poll();
        ensure!(matches!(event, Some(Event::Message(_))), "{event:?} instead of a message");
    }
    Ok(began.elapsed().as_nanos() as f64 / f64::from(SHORT_MESSAGES))
}

/// Long messages in one direction: the nanoseconds for each packet, to send and to receive.
fn long_ns(security: Security) -> Result<[f64; 2]> {
    let mut pair = Pair::new(security);
    let mut spare: Vec<Vec<u8>> = vec![vec![1; LONG_BYTES]; WAITING];
    (0..WAITING).for_each(|_| pair.ends[1].post_receive(Priority::Low, vec![0; LONG_BYTES]));
    let (mut received, mut packets, mut spent) = (0, 0, [0; 2]);
    while received < LONG_MESSAGES {
        while let Some(buffer) = spare.pop() {
            pair.ends[0].send_buffer(Priority::Low, buffer, Confirm::Copied).ok().context("no token")?;
        }
        let (count, ns) = pair.carry(0);
        packets += count;
        (spent[0], spent[1]) = (spent[0] + ns[0], spent[1] + ns[1]);
        while let Some(event) = pair.ends[1].poll() {
            if matches!(event, Event::Message(_)) {
                received += 1;
                pair.ends[1].post_receive(Priority::Low, vec![0; LONG_BYTES]);
            }
        }
        pair.ends[1].open_large_window();
        pair.carry(1);
        while let Some(event) = pair.ends[0].poll() {
            if matches!(event, Event::Sent { .. }) {
                spare.push(vec![1; LONG_BYTES]);
            }
        }
    }
    Ok(spent.map(|ns| ns as f64 / packets as f64))
}
