//! Request and response on a few connections of a program, beside many that are idle: the time of a round trip.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bywire_sys::limits;
use bywire_sys::preloadable::Set;

use crate::process::{PART, positive};

/// Connections that take turns.
pub const BUSY: usize = 50;
const MESSAGE: [u8; 32] = [b'x'; 32];
/// Messages of each connection before the measurement, by when it is carried.
const BEFORE: [u32; 2] = [24, 6];
const DURATION: Duration = Duration::from_millis(500);
/// The server may not listen yet.
const CALL_AGAIN: Duration = Duration::from_millis(5);
const CALLS_MAX: u32 = 2000;
const DESCRIPTORS: u64 = 1 << 16;

/// A description of the work of both ends, for readers.
pub fn command(idle: usize) -> String {
    format!("32 B there and back by one epoll set, {BUSY} connections in turn, {idle} more idle")
}

/// The lines of both ends, which this program plays.
pub struct Lines(String);

impl Lines {
    pub fn new() -> Result<Self> {
        Ok(Self(format!("'{}' {PART}", std::env::current_exe()?.display())))
    }

    /// The server, which serves until it is killed.
    pub fn server(&self, address: &str, port: u16) -> String {
        format!("{} crowd-server {address} {port}", self.0)
    }

    /// The client, with this many idle connections beside the busy ones.
    pub fn client(&self, address: &str, port: u16, idle: usize) -> String {
        format!("{} crowd-client {address} {port} {idle}", self.0)
    }
}

/// The time of a round trip in nanoseconds, as the client has printed it.
pub fn round_trip(printed: &str) -> Result<f64> {
    positive(printed.lines().last(), "no round trip")
}

/// Sends everything back, by one epoll set for all connections.
pub fn serve(address: &str, port: &str) -> Result<()> {
    let _ = limits::raise_descriptor_limit(DESCRIPTORS);
    let listener = TcpListener::bind((address, port.parse()?))?;
    let set = Set::new()?;
    set.add(listener.as_fd(), u64::MAX)?;
    let (mut streams, mut found, mut bytes) = (Vec::<Option<TcpStream>>::new(), Vec::new(), [0; 4096]);
    loop {
        set.wait(&mut found, Duration::from_secs(60))?;
        for tag in &found {
            if *tag == u64::MAX {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                set.add(stream.as_fd(), streams.len() as u64)?;
                streams.push(Some(stream));
            } else if let Some(found @ Some(_)) = streams.get_mut(*tag as usize)
                && let Some(stream) = found
            {
                match stream.read(&mut bytes) {
                    Ok(length @ 1..) => stream.write_all(&bytes[..length])?,
                    // Its client has ended.
                    _ => *found = None,
                }
            }
        }
    }
}

/// Connects, has every connection carried, and measures those that are busy, in turn.
pub fn call(address: &str, port: &str, idle: &str) -> Result<()> {
    let _ = limits::raise_descriptor_limit(DESCRIPTORS);
    let (port, idle) = (port.parse::<u16>()?, idle.parse::<usize>()?);
    let connect = |_| {
        for _ in 1..CALLS_MAX {
            if let Ok(stream) = TcpStream::connect((address, port)) {
                return Ok(stream);
            }
            std::thread::sleep(CALL_AGAIN);
        }
        TcpStream::connect((address, port)).context("nobody listens")
    };
    let mut streams = Vec::with_capacity(idle + BUSY);
    for at in 0..idle + BUSY {
        let mut stream = connect(at)?;
        stream.set_nodelay(true)?;
        for _ in 0..BEFORE[0] {
            exchange(&mut stream)?;
        }
        streams.push(stream);
    }
    for _ in 0..BEFORE[1] {
        streams.iter_mut().try_for_each(exchange)?;
    }
    // They are anywhere among the others.
    let apart = streams.len() / BUSY;
    let (mut rounds, mut started) = (0u32, Instant::now());
    let mut has_warmed = false;
    loop {
        streams.iter_mut().step_by(apart).take(BUSY).try_for_each(exchange)?;
        rounds += 1;
        if started.elapsed() < DURATION {
            continue;
        }
        if std::mem::replace(&mut has_warmed, true) {
            break;
        }
        (rounds, started) = (0, Instant::now());
    }
    println!("{}", started.elapsed().as_nanos() as f64 / f64::from(rounds) / BUSY as f64);
    Ok(())
}

fn exchange(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&MESSAGE)?;
    Ok(stream.read_exact(&mut [0; MESSAGE.len()])?)
}
