//! A server that sends every message back, of whatever length, and outlives its clients.
//!
//! ```text
//! echo     # serves as `localhost/echo`; `ask` is a client
//! ```

use anyhow::Result;
use bywire::{Confirm, Event, FRAGMENT_BYTES, Message, Port, PortOptions, Priority, SendError};

/// The longest message that this server takes. A client that sends a longer one gets `SendError::TooLong`.
const LENGTH_MAX: usize = 1 << 20;

fn main() -> Result<()> {
    let options = PortOptions { message_bytes_max: LENGTH_MAX as u64, ..PortOptions::named("echo") };
    let mut port = Port::open(options)?;
    // A message of more than 4 KiB arrives in a posted buffer. A shorter one needs none.
    for _ in 0..16 {
        post(&mut port, Priority::Low, vec![0; LENGTH_MAX]);
    }
    println!("serving {}", port.address());
    loop {
        match port.wait(None)? {
            Some(Event::Connected(_)) => println!("a client has come"),
            Some(Event::Message(message)) => answer(&mut port, message),
            Some(Event::Disconnected { reason, .. }) => println!("a client has left: {reason}"),
            _ => {}
        }
    }
}

fn answer(port: &mut Port, Message { peer, priority, payload }: Message) {
    let sent = if payload.len() <= FRAGMENT_BYTES {
        // Copied at once.
        port.send(peer, priority, &payload)
    } else {
        // Given to the library until `Event::Sent`.
        let sent = port.send_buffer(peer, priority, payload.to_vec(), Confirm::Copied);
        sent.map(|_| ()).map_err(|unsent| unsent.error)
    };
    // A client that does not read its answers is disconnected, so that it cannot hold up others.
    if let Err(SendError::Full | SendError::NoToken) = sent {
        port.disconnect(peer);
    }
    // A buffer that was posted is posted again. Other memory goes back to the port.
    if payload.len() > FRAGMENT_BYTES {
        post(port, priority, payload.into_buffer().unwrap_or_default());
    } else {
        port.recycle(payload);
    }
}

fn post(port: &mut Port, priority: Priority, buffer: impl Into<bywire::Buffer>) {
    port.post_receive(priority, buffer).expect("fewer buffers than receive tokens");
}
