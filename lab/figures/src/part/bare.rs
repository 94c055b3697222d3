//! The bare port, without the laboratory: two threads on two cores. One sends as fast as it can, then both play ping-pong.
//! What the laboratory measures above this is its own work per message.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bywire::{Event, Message, Port, PortOptions, Priority, SendError};
use clap::Parser;

use crate::bare_ring::on_two_cores;

/// Round trips of the ping-pong.
const ROUND_TRIPS: u32 = 1_000_000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The bare port between two threads, without the laboratory
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
    /// Measures and prints.
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
