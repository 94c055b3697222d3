//! A server that sends every message back, of whatever length, and outlives its clients.
//!
//! ```text
//! echo               # serves as `localhost/echo`; `ask` is a client
//! echo --fabric      # serves other machines, too
//! ```

use std::collections::HashMap;

use anyhow::Result;
use bywire::{
    Buffer, Confirm, Event, FRAGMENT_BYTES, Message, Peer, Port, PortOptions, Priority, Reach, SendError,
    TransferId,
};

/// The longest message that this server takes. A client that sends a longer one gets `SendError::TooLong`.
const LENGTH_MAX: usize = 1 << 20;
/// Long answers that one client may leave unread.
const UNREAD_MAX: usize = 4;

fn main() {
    if let Err(error) = run() {
        eprintln!("echo: {error:#}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    // Other machines reach the port only with `--fabric`.
    let serves_fabric = std::env::args().nth(1).as_deref() == Some("--fabric");
    let reach = if serves_fabric { Reach::Fabric } else { Reach::Machine };
    let options = PortOptions { message_bytes_max: LENGTH_MAX as u64, reach, ..PortOptions::named("echo") };
    let mut port = Port::open(options)?;
    // A message of more than 4 KiB arrives in a posted buffer. A shorter one needs none.
    for _ in 0..16 {
        post(&mut port, Priority::Low, vec![0; LENGTH_MAX]);
    }
    println!("serving {}", port.address());
    let mut long_answers = HashMap::new();
    loop {
        match port.wait(None)? {
            Some(Event::Connected(_)) => println!("a client has come"),
            Some(Event::Message(message)) => answer(&mut port, message, &mut long_answers),
            Some(Event::Sent { id, .. }) => {
                long_answers.remove(&id);
            }
            Some(Event::Disconnected { reason, .. }) => println!("a client has left: {reason}"),
            _ => {}
        }
    }
}

fn answer(port: &mut Port, message: Message, long_answers: &mut HashMap<TransferId, Peer>) {
    let Message { peer, priority, payload } = message;
    let sent = if payload.len() <= FRAGMENT_BYTES {
        // Copied at once.
        port.send(peer, priority, &payload)
    } else if long_answers.values().filter(|other| **other == peer).count() == UNREAD_MAX {
        Err(SendError::Full)
    } else {
        // Given to the library until `Event::Sent`.
        let sent = port.send_buffer(peer, priority, payload.to_vec(), Confirm::Copied);
        sent.map_err(|unsent| unsent.error).map(|id| {
            long_answers.insert(id, peer);
        })
    };
    // A client that does not read its answers is disconnected, so that it cannot hold up others.
    if sent == Err(SendError::Full) {
        port.disconnect(peer);
    }
    // A buffer that was posted is posted again. Other memory goes back to the port.
    if payload.len() <= FRAGMENT_BYTES {
        port.recycle(payload);
    } else if let Some(buffer) = payload.into_buffer().filter(|buffer| buffer.as_ref().len() == LENGTH_MAX) {
        post(port, priority, buffer);
    }
}

fn post(port: &mut Port, priority: Priority, buffer: impl Into<Buffer>) {
    port.post_receive(priority, buffer).expect("fewer buffers than receive tokens");
}
