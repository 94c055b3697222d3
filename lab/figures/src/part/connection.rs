//! Prints what the code of a connection between machines costs: both ends in one thread, without sockets and system calls.
//! What a link costs beyond that is the kernel's, and what the kernel does to the caches.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bywire::harness::{End, windows_of};
use bywire::{Confirm, Event, PortOptions, Priority};
use bywire_sys::udp::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX};
use bywire_wire::batch::Batch;
use bywire_wire::connection::Options;
use bywire_wire::keys::{Security, Side};
use bywire_wire::packet;

/// The length of packets at an MTU of 1500.
const ROUTE_BYTES: u16 = 1472;
/// What each packet takes on its way, in the clock of the connections.
const DELAY_NS: u64 = 20_000;
const SHORT_MESSAGES: u32 = 1_000_000;
const LONG_MESSAGES: u32 = 2_000;
const LONG_BYTES: usize = 1 << 20;
/// Long messages under way.
const WAITING: usize = 4;

/// Measures and prints both kinds of protection.
pub fn run() -> Result<()> {
    for security in [Security::Plain, Security::Aes256Gcm] {
        println!("{security:?}: 8 B to the other end: {:.0} ns", short_ns(security)?);
        let [send, receive] = long_ns(security)?;
        println!(
            "{security:?}: a packet of a 1 MiB message: {send:.0} ns to send, {receive:.0} ns to receive"
        );
    }
    Ok(())
}

/// The two ends of a connection, the packets on their way, and the clock.
struct Pair {
    ends: [End; 2],
    batch: Batch,
    arriving: Vec<u8>,
    started: Instant,
}

impl Pair {
    fn new(security: Security) -> Self {
        let port = PortOptions::default();
        let windows = windows_of(&port);
        let end = |(side, connection, peer_connection)| {
            let options = Options {
                side,
                security,
                secret: [7; 32].into(),
                connection,
                peer_connection,
                windows,
                peer_windows: windows,
                route_bytes: ROUTE_BYTES,
            };
            End::new(options, &port, port.message_bytes_max)
        };
        Self {
            ends: [(Side::Initiator, 1, 2), (Side::Responder, 2, 1)].map(end),
            batch: Batch::new(BATCH_BYTES_MAX, BATCH_PACKETS_MAX),
            arriving: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Brings what an end has to send to the other one. Returns the packets, and the nanoseconds at either end.
    fn carry(&mut self, from: usize) -> (usize, [u64; 2]) {
        let now_ns = DELAY_NS + self.started.elapsed().as_nanos() as u64;
        let began = Instant::now();
        self.batch.clear();
        self.ends[from].transmit(now_ns, &mut self.batch);
        let send_ns = began.elapsed().as_nanos() as u64;
        self.arriving.clear();
        self.arriving.extend_from_slice(self.batch.bytes());
        let began = Instant::now();
        for (_, packet) in packet::split(&mut self.arriving) {
            self.ends[1 - from].receive_packet(now_ns + DELAY_NS, packet);
        }
        (self.batch.count(), [send_ns, began.elapsed().as_nanos() as u64])
    }
}

/// A short message to the other end, which answers with another one that acknowledges it.
fn short_ns(security: Security) -> Result<f64> {
    let mut pair = Pair::new(security);
    let began = Instant::now();
    for message in 0..SHORT_MESSAGES {
        let from = message as usize % 2;
        pair.ends[from].send(Priority::High, &[1; 8])?;
        pair.carry(from);
        let event = pair.ends[1 - from].poll();
        ensure!(matches!(event, Some(Event::Message(_))), "{event:?} instead of a message");
    }
    Ok(began.elapsed().as_nanos() as f64 / f64::from(SHORT_MESSAGES))
}

/// Long messages in one direction: the nanoseconds for each packet, to send and to receive.
fn long_ns(security: Security) -> Result<[f64; 2]> {
    let mut pair = Pair::new(security);
    let mut spare: Vec<Vec<u8>> = vec![vec![1; LONG_BYTES]; WAITING];
    (0..WAITING).for_each(|_| pair.ends[1].post_receive(Priority::Low, vec![0; LONG_BYTES]));
    let (mut received, mut packets, mut spent) = (0, 0, [0; 2]);
    while received < LONG_MESSAGES {
        while let Some(buffer) = spare.pop() {
            pair.ends[0].send_buffer(Priority::Low, buffer, Confirm::Copied).ok().context("no token")?;
        }
        let (count, ns) = pair.carry(0);
        packets += count;
        (spent[0], spent[1]) = (spent[0] + ns[0], spent[1] + ns[1]);
        while let Some(event) = pair.ends[1].poll() {
            if matches!(event, Event::Message(_)) {
                received += 1;
                pair.ends[1].post_receive(Priority::Low, vec![0; LONG_BYTES]);
            }
        }
        pair.ends[1].open_large_window();
        pair.carry(1);
        while let Some(event) = pair.ends[0].poll() {
            if matches!(event, Event::Sent { .. }) {
                spare.push(vec![1; LONG_BYTES]);
            }
        }
    }
    Ok(spent.map(|ns| ns as f64 / packets as f64))
}
