//! Round trips of a short message between two processes, and how long half of one takes.
//!
//! ```text
//! ping-pong                     # one terminal: prints its address and answers
//! ping-pong --fabric            # the same, for other machines, too
//! ping-pong vm/61234            # the other one: asks
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bywire::{Address, Event, Message, Peer, Port, PortOptions, Priority, Reach};

fn main() {
    if let Err(error) = run() {
        eprintln!("ping-pong: {error:#}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = match arguments.next() {
        None => return answer(Reach::Machine),
        Some(word) if word == "--fabric" => return answer(Reach::Fabric),
        Some(address) => address,
    };
    let rounds = arguments.next().map_or(Ok(100_000), |text| text.parse()).context("ROUNDS is a number")?;
    ask(&address.parse()?, rounds)
}

/// Sends every message back until the asking port is gone.
fn answer(reach: Reach) -> Result<()> {
    let mut port = Port::open(PortOptions { reach, ..PortOptions::default() })?;
    println!("give this address to the other end: {}", port.address());
    loop {
        match port.wait(None)? {
            Some(Event::Message(message)) => port.send(message.peer, message.priority, &message.payload)?,
            Some(Event::Disconnected { .. }) => return Ok(()),
            _ => {}
        }
    }
}

fn ask(address: &Address, rounds: u32) -> Result<()> {
    let mut port = Port::open(PortOptions::default())?;
    let peer = port.connect(address, Duration::from_secs(5))?;
    // The first rounds warm the caches and the rings.
    for number in 0..rounds / 10 {
        round_trip(&mut port, peer, number)?;
    }
    let start = Instant::now();
    for number in 0..rounds {
        round_trip(&mut port, peer, number)?;
    }
    let half = start.elapsed() / 2 / rounds.max(1);
    println!("{rounds} round trips, half of one takes {half:?} on average");
    Ok(())
}

fn round_trip(port: &mut Port, peer: Peer, number: u32) -> Result<()> {
    port.send(peer, Priority::Low, &number.to_ne_bytes())?;
    match port.wait(None)? {
        Some(Event::Message(Message { payload, .. })) if *payload == number.to_ne_bytes() => Ok(()),
        other => bail!("{other:?} instead of the answer"),
    }
}
