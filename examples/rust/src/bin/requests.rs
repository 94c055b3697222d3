//! A server for many clients: each request is a line of text, its answer the same line in capitals.
//!
//! ```text
//! requests                                # prints its address and serves
//! requests --fabric                       # the same, for other machines, too
//! requests localhost/61234 some words     # asks once per word
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bywire::{Address, Event, Peer, Port, PortOptions, Priority, Reach, SendError};

fn main() {
    if let Err(error) = run() {
        eprintln!("requests: {error:#}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        None => serve(Reach::Machine),
        Some(word) if word == "--fabric" => serve(Reach::Fabric),
        Some(address) => ask(&address.parse()?, arguments),
    }
}

/// Serves forever. A client that does not take its answers holds up nobody else: they wait in a queue of its own.
fn serve(reach: Reach) -> Result<()> {
    let mut port = Port::open(PortOptions { reach, ..PortOptions::default() })?;
    println!("{}", port.address());
    let mut unsent: HashMap<Peer, VecDeque<String>> = HashMap::new();
    loop {
        match port.wait(None)?.context("waits without end")? {
            Event::Connected(peer) => {
                let who = port.peer_info(peer).map(ToString::to_string).unwrap_or_default();
                println!("serving {who}, {} in all", port.peers().count());
                unsent.insert(peer, VecDeque::new());
            }
            Event::Message(request) => {
                let answer = String::from_utf8_lossy(&request.payload).to_uppercase();
                let queue = unsent.entry(request.peer).or_default();
                queue.push_back(answer);
                send_all(&mut port, request.peer, queue);
                port.recycle(request.payload);
            }
            Event::Room { peer, .. } => {
                if let Some(queue) = unsent.get_mut(&peer) {
                    send_all(&mut port, peer, queue);
                }
            }
            Event::Disconnected { peer, reason } => {
                unsent.remove(&peer);
                println!("a client has gone: {reason}");
            }
            _ => {}
        }
    }
}

/// Sends what there is room for; the rest goes when the port says that there is room again.
fn send_all(port: &mut Port, peer: Peer, queue: &mut VecDeque<String>) {
    while let Some(answer) = queue.front() {
        match port.send(peer, Priority::Low, answer.as_bytes()) {
            Err(SendError::Full) => return,
            // Too long for one fragment, or the client has gone: nothing to wait for.
            Err(error) => eprintln!("an answer is lost: {error}"),
            Ok(()) => {}
        }
        queue.pop_front();
    }
}

/// Sends every request at once and prints the answers, which come in the same order.
fn ask(address: &Address, requests: impl Iterator<Item = String>) -> Result<()> {
    let mut port = Port::open(PortOptions::default())?;
    let server = port.connect(address, Duration::from_secs(5))?;
    let mut awaited = 0;
    for request in requests {
        while let Err(error) = port.send(server, Priority::Low, request.as_bytes()) {
            if error != SendError::Full {
                return Err(error.into());
            }
            awaited -= print_answer(&mut port)?;
        }
        awaited += 1;
    }
    while awaited > 0 {
        awaited -= print_answer(&mut port)?;
    }
    Ok(())
}

/// Prints at most one answer; returns how many.
fn print_answer(port: &mut Port) -> Result<usize> {
    match port.wait(None)? {
        Some(Event::Message(answer)) => {
            println!("{}", String::from_utf8_lossy(&answer.payload));
            Ok(1)
        }
        Some(Event::Disconnected { reason, .. }) => bail!("the server has gone: {reason}"),
        _ => Ok(0),
    }
}
