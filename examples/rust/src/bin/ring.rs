//! Nodes in a ring: each puts a counter straight into its neighbour's memory, with a note that it is there.
//!
//! ```text
//! ring [NODES] [LAPS]
//! ```
//!
//! The nodes are threads here; processes would do the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bywire::{Address, Event, Key, Peer, Port, PortOptions, Priority, Rights};

fn main() {
    if let Err(error) = run() {
        eprintln!("ring: {error:#}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let nodes = numbers.next().transpose().context("NODES is a number")?.unwrap_or(4);
    let laps = numbers.next().transpose().context("LAPS is a number")?.unwrap_or(1000);
    ensure!((2..=64).contains(&nodes), "a ring has 2 to 64 nodes");

    let ports = (0..nodes).map(|_| Port::open(PortOptions::default())).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<Address> = ports.iter().map(Port::address).collect();
    let threads: Vec<_> = (ports.into_iter().enumerate())
        .map(|(place, port)| {
            let next = addresses[(place + 1) % addresses.len()].clone();
            std::thread::spawn(move || Node::join(port, &next, place == 0)?.turn(laps))
        })
        .collect();
    let counters = threads.into_iter().map(|thread| thread.join().expect("no node panics"));
    for (place, counter) in counters.collect::<Result<Vec<_>>>()?.into_iter().enumerate() {
        println!("node {place} last saw {counter}");
    }
    Ok(())
}

/// One node: the one before it reaches its `region`; it reaches its neighbour's by `key`.
struct Node {
    port: Port,
    region: Key,
    neighbour: Peer,
    before: Option<Peer>,
    key: Option<Key>,
    /// The counter to pass on, once the key is here.
    unsent: Option<u64>,
    puts_under_way: u32,
    is_first: bool,
}

impl Node {
    fn join(mut port: Port, next: &Address, is_first: bool) -> Result<Self> {
        let region = port.register(vec![0; 8], Rights { read: false, write: true })?;
        let neighbour = port.connect(next, Duration::from_secs(30))?;
        // The first node starts the counter.
        let unsent = is_first.then_some(1);
        Ok(Self { port, region, neighbour, before: None, key: None, unsent, puts_under_way: 0, is_first })
    }

    /// Passes the counter on, one higher each time, until it has come by `laps` times; returns the last one seen.
    fn turn(mut self, laps: u64) -> Result<u64> {
        let (mut lap, mut seen) = (0, 0);
        // A node leaves when its last put has arrived; the first, where the counter ends, when the one before it left.
        while lap < laps || self.puts_under_way > 0 || (self.is_first && self.before.is_some()) {
            match self.port.wait(None)? {
                Some(Event::Connected(peer)) if peer != self.neighbour => {
                    self.port.send(peer, Priority::Low, &self.region.0.to_ne_bytes())?;
                    self.before = Some(peer);
                }
                Some(Event::Message(message)) => self.key = Some(Key(number(&message.payload)?)),
                Some(Event::Notified { .. }) => {
                    // The note comes after the data: it is there.
                    seen = number(self.port.region(self.region).context("our own region")?)?;
                    lap += 1;
                    self.unsent = (!self.is_first || lap < laps).then_some(seen + 1);
                }
                Some(Event::Put { result, .. }) => {
                    result?;
                    self.puts_under_way -= 1;
                }
                Some(Event::Disconnected { peer, reason }) if Some(peer) == self.before => {
                    ensure!(lap == laps, "the ring is broken: {reason}");
                    self.before = None;
                }
                _ => {}
            }
            self.pass_on()?;
        }
        Ok(seen)
    }

    fn pass_on(&mut self) -> Result<()> {
        let Some(key) = self.key else { return Ok(()) };
        if let Some(counter) = self.unsent.take() {
            let bytes = counter.to_ne_bytes().to_vec();
            let begun = self.port.put(self.neighbour, Priority::Low, (key, 0), bytes, Some(b"here"));
            begun.map_err(|unsent| unsent.error)?;
            self.puts_under_way += 1;
        }
        Ok(())
    }
}

fn number(bytes: &[u8]) -> Result<u64> {
    Ok(u64::from_ne_bytes(bytes.try_into().context("a counter has 8 bytes")?))
}
