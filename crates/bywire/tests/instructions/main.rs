//! Counts the instructions of sending and receiving, within one machine and between two.

use std::path::Path;
use std::process::{Command, ExitCode};

use bywire::harness::{End, windows_of};
use bywire::{Address, Confirm, Event, Peer, Port, PortOptions, Priority};
use bywire_sys::udp::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX};
use bywire_testing::connected;
use bywire_testing::counting::Counting;
use bywire_wire::batch::Batch;
use bywire_wire::keys::{Security, Side};
use bywire_wire::packet;

/// The counted functions, by the names that callgrind collects.
const COUNTED: [&str; 10] = [
    "send_short",
    "receive_short",
    "poll_idle",
    "send_bulk",
    "send_packet_of_one",
    "receive_packet_of_one",
    "send_packets_of_short",
    "receive_packets_of_short",
    "send_packets_of_long",
    "receive_packets_of_long",
];
/// Operations in a round: fewer than the ring holds.
const BATCH: u32 = 32;
/// The length of packets at an MTU of 1500.
const ROUTE_BYTES: u16 = 1472;
/// What a packet takes on its way, in the clock of the connections.
const DELAY_NS: u64 = 20_000;

fn main() -> ExitCode {
    let baseline = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions/baseline.txt");
    let counting = Counting { names: &COUNTED, operations: BATCH, baseline: &baseline };
    counting.test(run, || Command::new("valgrind"))
}

/// The counted program: rounds of sends, then of receives, then of polls that find nothing.
fn run(rounds: u32, directory: &Path) {
    let open = || {
        // Never during the count: under callgrind a millisecond is only a few polls.
        let housekeeping_interval = std::time::Duration::from_secs(3600);
        let options = PortOptions {
            runtime_directory: Some(directory.to_owned()),
            housekeeping_interval,
            ..PortOptions::default()
        };
        Port::open(options).expect("open")
    };
    let (mut a, mut b) = (open(), open());
    let peer = a.connect_start(&Address::local(b.name().clone())).expect("connect");
    while a.peer_info(peer).is_none() {
        // A sleeping port looks at its sockets at once.
        let moment = Some(std::time::Duration::from_millis(1));
        let _ = (b.wait(moment), a.wait(moment));
    }
    for _ in 0..rounds {
        send_short(&mut a, peer);
        receive_short(&mut b);
        send_bulk(&mut a, peer);
        receive_bulk(&mut b);
        poll_idle(&mut b);
    }
    let mut pair = Pair::new();
    for _ in 0..rounds {
        for _ in 0..BATCH / 2 {
            pair.bounce();
        }
        pair.stream();
        pair.carry_long();
    }
}

#[inline(never)]
fn send_short(port: &mut Port, peer: Peer) {
    for round in 0..u64::from(BATCH) {
        port.send(peer, Priority::Low, &round.to_ne_bytes()).expect("room");
    }
}

/// The payload is too long for a slot, and too short to be stored around the caches. Whether longer ones are depends on
/// times, which differ from run to run.
#[inline(never)]
fn send_bulk(port: &mut Port, peer: Peer) {
    for _ in 0..BATCH {
        port.send(peer, Priority::Low, std::hint::black_box(&[7; 248])).expect("room");
    }
}

#[inline(never)]
fn receive_short(port: &mut Port) {
    let mut received = 0;
    while received < BATCH {
        if let Some(Event::Message(message)) = port.poll() {
            std::hint::black_box(message.payload.len());
            received += 1;
        }
    }
}

/// Takes the messages of [`send_bulk`], outside the count.
#[inline(never)]
fn receive_bulk(port: &mut Port) {
    let mut received = 0;
    while received < BATCH {
        if let Some(Event::Message(message)) = port.poll() {
            port.recycle(message.payload);
            received += 1;
        }
    }
}

#[inline(never)]
fn poll_idle(port: &mut Port) {
    for _ in 0..BATCH {
        std::hint::black_box(port.poll().is_none());
    }
}

/// The two ends of a connection between machines, and the packets on their way. There are no sockets. Packets are not
/// encrypted, and the clock is a count.
struct Pair {
    ends: [End; 2],
    batch: Batch,
    arriving: Vec<u8>,
    now_ns: u64,
    /// The memory of a long message.
    memory: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let port = PortOptions::default();
        let windows = windows_of(&port);
        let end = |side| {
            let options = connected::options(side, Security::Plain, windows, ROUTE_BYTES);
            End::new(options, &port, port.message_bytes_max)
        };
        Self {
            ends: [Side::Initiator, Side::Responder].map(end),
            batch: Batch::new(BATCH_BYTES_MAX, BATCH_PACKETS_MAX),
            arriving: Vec::new(),
            now_ns: DELAY_NS,
            memory: vec![1; BATCH as usize * 1024],
        }
    }

    /// Brings the packets of the batch to their end.
    fn deliver(&mut self) {
        self.now_ns += DELAY_NS;
        self.arriving.clear();
        self.arriving.extend_from_slice(self.batch.bytes());
        self.batch.clear();
    }

    /// Brings what an end has to acknowledge to the other one, outside the count.
    fn acknowledge(&mut self, from: usize) {
        self.ends[from].before_sleep();
        self.ends[from].transmit(self.now_ns, &mut self.batch);
        self.deliver();
        for (_, packet) in packet::split(&mut self.arriving) {
            self.ends[1 - from].receive_packet(self.now_ns, packet);
        }
    }

    /// A message to the other end and an answer, each of which acknowledges the one before.
    fn bounce(&mut self) {
        for from in 0..2 {
            send_packet_of_one(&mut self.ends[from], self.now_ns, &mut self.batch);
            self.deliver();
            receive_packet_of_one(&mut self.ends[1 - from], self.now_ns, &mut self.arriving);
        }
    }

    /// Many messages of 64 bytes to the other end.
    fn stream(&mut self) {
        send_packets_of_short(&mut self.ends[0], self.now_ns, &mut self.batch);
        self.deliver();
        receive_packets_of_short(&mut self.ends[1], self.now_ns, &mut self.arriving);
        self.acknowledge(1);
    }

    /// A message of as many KiB as there are operations in a round.
    fn carry_long(&mut self) {
        let length = self.memory.len();
        self.ends[1].post_receive(Priority::Low, vec![0; length]);
        let memory = std::mem::take(&mut self.memory);
        let sent = self.ends[0].send_buffer(Priority::Low, memory, Confirm::Copied);
        assert!(sent.is_ok(), "a token is free");
        let (mut is_received, mut rounds) = (false, 0);
        while !is_received || self.memory.is_empty() {
            rounds += 1;
            assert!(rounds < 100, "nothing moves");
            send_packets_of_long(&mut self.ends[0], self.now_ns, &mut self.batch);
            self.deliver();
            is_received |= receive_packets_of_long(&mut self.ends[1], self.now_ns, &mut self.arriving);
            self.acknowledge(1);
            while let Some(event) = self.ends[0].poll() {
                if let Event::Sent { buffer, .. } = event {
                    self.memory = buffer.into_vec();
                }
            }
        }
    }
}

#[inline(never)]
fn send_packet_of_one(end: &mut End, now_ns: u64, batch: &mut Batch) {
    end.send(Priority::Low, std::hint::black_box(&[1; 8])).expect("room");
    end.transmit(now_ns, batch);
}

#[inline(never)]
fn receive_packet_of_one(end: &mut End, now_ns: u64, packets: &mut [u8]) {
    for (_, packet) in packet::split(packets) {
        end.receive_packet(now_ns, packet);
    }
    let Some(Event::Message(message)) = end.poll() else { panic!("it has arrived") };
    std::hint::black_box(message.payload.len());
}

#[inline(never)]
fn send_packets_of_short(end: &mut End, now_ns: u64, batch: &mut Batch) {
    for _ in 0..BATCH {
        end.send(Priority::Low, std::hint::black_box(&[1; 64])).expect("room");
    }
    end.transmit(now_ns, batch);
}

#[inline(never)]
fn receive_packets_of_short(end: &mut End, now_ns: u64, packets: &mut [u8]) {
    for (_, packet) in packet::split(packets) {
        end.receive_packet(now_ns, packet);
    }
    for _ in 0..BATCH {
        let Some(Event::Message(message)) = end.poll() else { panic!("it has arrived") };
        std::hint::black_box(message.payload.len());
        end.recycle(message.payload);
    }
}

#[inline(never)]
fn send_packets_of_long(end: &mut End, now_ns: u64, batch: &mut Batch) {
    end.transmit(now_ns, batch);
}

#[inline(never)]
fn receive_packets_of_long(end: &mut End, now_ns: u64, packets: &mut [u8]) -> bool {
    for (_, packet) in packet::split(packets) {
        end.receive_packet(now_ns, packet);
    }
    let mut is_received = false;
    while let Some(event) = end.poll() {
        is_received |= matches!(event, Event::Message(_));
    }
    is_received
}
