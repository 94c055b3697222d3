//! The memory of an idle carried connection.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use bywire_measure::interrupt::Leader;
use bywire_results::cell::Unit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::carried::{End, Mode, Testbed};
use crate::contestant::Contestant;

/// The first arguments of the two ends.
pub const SERVER: &str = "__resident-server";
/// See [`SERVER`].
pub const CLIENT: &str = "__resident-client";

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

/// The end that listens: says its port, echoes, and says that it is idle.
///
/// # Errors
/// Sockets that fail, or too few descriptors.
pub fn server() -> Result<()> {
    allow_descriptors()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(&listener.local_addr()?.port().to_string())?;
    let peers = (0..CONNECTIONS).map(|_| Ok(listener.accept()?.0)).collect::<Result<Vec<_>>>()?;
    for _ in 0..ROUNDS {
        for mut peer in &peers {
            let mut byte = [0];
            peer.read_exact(&mut byte)?;
            peer.write_all(&byte)?;
        }
    }
    idle()
}

/// The end that connects.
///
/// # Errors
/// As above.
pub fn client(port: &str) -> Result<()> {
    allow_descriptors()?;
    let port: u16 = port.parse()?;
    let connect = |_| Ok(TcpStream::connect(("127.0.0.1", port))?);
    let peers = (0..CONNECTIONS).map(connect).collect::<Result<Vec<_>>>()?;
    for _ in 0..ROUNDS {
        for mut peer in &peers {
            peer.write_all(&[1])?;
        }
        for mut peer in &peers {
            peer.read_exact(&mut [0])?;
        }
    }
    idle()
}

/// Waits until the reader of this process's output ends.
fn idle() -> Result<()> {
    say("idle")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

fn allow_descriptors() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).context("too few descriptors")
}

fn resident_bytes(mode: Mode) -> Result<f64> {
    let testbed = Testbed::new(mode)?;
    let this = std::env::current_exe()?.display().to_string();
    let begin = |end: End, words: &[&str]| -> Result<_> {
        let mut command = testbed.command(end, true, words);
        let mut running = Leader::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = running.child.stdout.take().context("a process without output")?;
        Ok((running, BufReader::new(output).lines()))
    };
    let (server, mut told) = begin(End::Server, &[&this, SERVER])?;
    let port = told.next().context("the server has died")??;
    let (client, mut said) = begin(End::Client, &[&this, CLIENT, &port])?;
    for lines in [&mut told, &mut said] {
        let line = lines.next().context("an end has died")??;
        ensure!(line == "idle", "an end said {line}");
    }
    Ok(proportional_bytes(server.child.id())? + proportional_bytes(client.child.id())?)
}

/// The proportional set size of a process.
///
/// # Errors
/// No such process.
pub fn proportional_bytes(process: u32) -> Result<f64> {
    let account = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let line = account.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no account of memory")?;
    Ok(1024.0 * kib.parse::<f64>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_of_this_process_is_read() {
        assert!(proportional_bytes(std::process::id()).unwrap() > 100_000.0);
        assert!(proportional_bytes(u32::MAX).is_err());
    }
}
