//! A port in an async program: its descriptor tells the executor when to poll, and other work goes on meanwhile.
//!
//! ```text
//! asynchronous     # two ports and a clock on one thread
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Result, bail};
use async_io::{Async, Timer};
use bywire::{Event, Peer, Port, PortOptions, Priority};
use futures_lite::future;

/// A port with its descriptor at the reactor.
struct AsyncPort {
    port: Port,
    watch: Async<OwnedFd>,
}

impl AsyncPort {
    fn open() -> Result<Self> {
        let port = Port::open(PortOptions::default())?;
        let watch = Async::new_nonblocking(port.as_fd().try_clone_to_owned()?)?;
        Ok(Self { port, watch })
    }

    /// The next event. Dropped half-way it loses none.
    async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.port.poll() {
                return Ok(event);
            }
            // Nothing there, and from now on the descriptor tells when there is.
            if self.port.arm() {
                self.watch.readable().await?;
            }
        }
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("asynchronous: {error:#}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let (mut server, mut client) = (AsyncPort::open()?, AsyncPort::open()?);
    let peer = client.port.connect_start(&server.port.address())?;
    let serving = serve(&mut server);
    let asking = async {
        let answers = ask(&mut client, peer).await;
        client.port.disconnect(peer);
        answers
    };
    let (served, answers) = async_io::block_on(future::try_zip(serving, asking))?;
    println!("{served} requests served, {answers} answered, on one thread");
    Ok(())
}

/// Sends everything back until the client leaves; returns how much.
async fn serve(server: &mut AsyncPort) -> Result<u32> {
    let mut served = 0;
    loop {
        match server.next().await? {
            Event::Message(message) => {
                server.port.send(message.peer, message.priority, &message.payload)?;
                served += 1;
            }
            Event::Disconnected { .. } => return Ok(served),
            _ => {}
        }
    }
}

/// Asks ten times, with a pause in which nobody uses the processor.
async fn ask(client: &mut AsyncPort, peer: Peer) -> Result<u32> {
    while !matches!(client.next().await?, Event::Connected(_)) {}
    for number in 0..10u32 {
        client.port.send(peer, Priority::Low, &number.to_ne_bytes())?;
        match client.next().await? {
            Event::Message(answer) if *answer.payload == number.to_ne_bytes() => {}
            other => bail!("{other:?} instead of the answer"),
        }
        Timer::after(Duration::from_millis(1)).await;
    }
    Ok(10)
}
