//! A client of `echo`: sends a short message and a long one, and awaits both answers.
//!
//! ```text
//! ask                # while `echo` runs
//! ask web2/echo      # while `echo --fabric` runs on the machine web2
//! ```

use std::time::Duration;

use anyhow::{Result, bail};
use bywire::{Confirm, Event, Port, PortOptions, Priority};

fn main() {
    if let Err(error) = run() {
        eprintln!("ask: {error:#}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut port = Port::open(PortOptions::default())?;
    // Memory for the answer that is longer than 4 KiB.
    port.post_receive(Priority::Low, vec![0; 5_000]).expect("a receive token");
    let address = std::env::args().nth(1).unwrap_or_else(|| "localhost/echo".to_owned());
    let server = port.connect(&address.parse()?, Duration::from_secs(5))?;
    port.send(server, Priority::Low, b"hello")?;
    port.send_buffer(server, Priority::Low, vec![7; 5_000], Confirm::Copied)?;
    let mut answers = 0;
    while answers < 2 {
        match port.wait(None)? {
            Some(Event::Message(message)) => {
                println!("{} bytes back", message.payload.len());
                answers += 1;
            }
            Some(Event::Disconnected { reason, .. }) => bail!("the server has left: {reason}"),
            _ => {}
        }
    }
    Ok(())
}
