//! The memory of an idle carried connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use bywire_measure::plan::End;
use bywire_results::cell::Unit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::application::{Mode, Testbed};
use crate::contestant::Contestant;
use crate::process::{PART, Player, await_dismissal, proportional_bytes};

/// Connections at once.
const CONNECTIONS: usize = 1000;

/// Small messages each way over each of them, before it is idle.
const ROUNDS: usize = 40;

/// Bytes of both ends together for each connection, over those of plain TCP: proportional set sizes, so that what both
/// have mapped counts once.
pub fn contestant() -> Contestant {
    let take = || {
        let more = resident_bytes(Mode::Carried)? - resident_bytes(Mode::Plain)?;
        Ok(more / CONNECTIONS as f64)
    };
    let command = format!("./x figures sockets ({CONNECTIONS} connections after {ROUNDS} bytes each mode)");
    Contestant::of_value(command, Unit::Bytes, take)
}

/// The end that connects to a port, or the one that listens, prints its port and echoes. Either prints when it is idle.
pub fn play(server: Option<&str>) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).context("too few descriptors")?;
    let mut connect: Box<dyn FnMut() -> Result<TcpStream>> = match server {
        Some(port) => {
            let address = ("127.0.0.1", port.parse::<u16>()?);
            Box::new(move || Ok(TcpStream::connect(address)?))
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{}", listener.local_addr()?.port());
            Box::new(move || Ok(listener.accept()?.0))
        }
    };
    let peers = (0..CONNECTIONS).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    for _ in 0..ROUNDS {
        if server.is_some() {
            peers.iter().try_for_each(|mut peer| peer.write_all(&[1]))?;
        }
        for mut peer in &peers {
            let mut byte = [0];
            peer.read_exact(&mut byte)?;
            if server.is_none() {
                peer.write_all(&byte)?;
            }
        }
    }
    println!("idle");
    await_dismissal()
}

fn resident_bytes(mode: Mode) -> Result<f64> {
    let testbed = Testbed::new(mode)?;
    let this = std::env::current_exe()?;
    let start = |end: End, role: String| {
        let line = format!("'{}' {PART} {role}", this.display());
        Player::start(&mut testbed.command(end, true, &line)?)
    };
    let mut server = start(End::Target, "resident-server".to_owned())?;
    let port = server.line()?;
    let mut client = start(End::Source, format!("resident-client {port}"))?;
    server.expect("idle")?;
    client.expect("idle")?;
    Ok(proportional_bytes(server.id())? + proportional_bytes(client.id())?)
}
