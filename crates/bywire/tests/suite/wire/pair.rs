//! Two ends, and what carries their packets.

use std::collections::VecDeque;

use bywire::harness::{End, windows_of};
use bywire::{Event, PortOptions, TransferError};
use bywire_testing::connected;
use bywire_wire::batch::Batch;
use bywire_wire::connection::Options;
use bywire_wire::keys::{Security, Side};

/// From one end to the other.
const LATENCY_NS: u64 = 20_000;
/// Longer than any test has to wait, in simulated time.
const BOUND_NS: u64 = 20_000_000_000;

pub struct Pair {
    pub ends: [End; 2],
    pub now_ns: u64,
    /// Events of the programs that no test has read yet.
    pub events: [VecDeque<Event>; 2],
}

/// The options of one end. Both have these windows.
pub fn options(side: Side, windows: [u64; 3]) -> Options {
    connected::options(side, Security::Aes256Gcm, windows, 1452)
}

impl Pair {
    pub fn new() -> Self {
        Self::with(&PortOptions::default())
    }

    pub fn with(port: &PortOptions) -> Self {
        let windows = windows_of(port);
        let end = |side| End::new(options(side, windows), port, port.message_bytes_max);
        Self { ends: [end(Side::Initiator), end(Side::Responder)], now_ns: 0, events: Default::default() }
    }

    /// Carries packets until neither end has any to send.
    pub fn carry(&mut self) {
        let began_ns = self.now_ns;
        loop {
            let moved = self.carry_now(0) + self.carry_now(1);
            self.now_ns += LATENCY_NS;
            match self.ends.iter().filter_map(End::next_timeout_ns).min() {
                Some(at_ns) => self.now_ns = self.now_ns.max(at_ns),
                None if moved == 0 => return,
                None => {}
            }
            // Lengths of packets are probed for as long as there is traffic.
            assert!(self.now_ns < began_ns + BOUND_NS, "the ends never come to rest");
        }
    }

    /// Carries the packets that leave an end now. Returns their number.
    pub fn carry_now(&mut self, from: usize) -> usize {
        let mut batch = Batch::new(64 * 1024, 64);
        self.ends[from].transmit(self.now_ns, &mut batch);
        for packet in batch.packets() {
            self.ends[1 - from].receive_packet(self.now_ns, &mut packet.to_vec());
        }
        batch.count()
    }

    /// Both programs take all events.
    pub fn poll(&mut self) {
        for (end, events) in self.ends.iter_mut().zip(&mut self.events) {
            events.extend(std::iter::from_fn(|| end.poll()));
        }
    }

    /// Lets both programs work until one of them has the event that is wanted. Events before it are dropped.
    pub fn until<Found>(&mut self, end: usize, mut wanted: impl FnMut(Event) -> Option<Found>) -> Found {
        for _ in 0..10_000 {
            self.poll();
            while let Some(event) = self.events[end].pop_front() {
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
            self.carry();
        }
        panic!("the event never came");
    }

    /// The next message of an end.
    pub fn until_message(&mut self, end: usize) -> Vec<u8> {
        self.until(end, |event| match event {
            Event::Message(message) => Some(message.payload.to_vec()),
            _ => None,
        })
    }

    /// The outcome of the put or get that is next to end.
    pub fn until_answered(&mut self, end: usize) -> (Vec<u8>, Result<(), TransferError>) {
        self.until(end, |event| match event {
            Event::Put { buffer, result, .. } | Event::Got { buffer, result, .. } => {
                Some((buffer.into_vec(), result))
            }
            _ => None,
        })
    }
}
