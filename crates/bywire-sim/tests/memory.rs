//! The memory of each node, port, peer and connection, and the packets and bytes of each message: docs/scale.md has them.
//! A program of its own, as its allocator counts.

#[path = "suite/page/mod.rs"]
mod page;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use bywire::harness::{CONNECTION_BYTES, End, windows_of};
use bywire::{Confirm, Event, PortOptions, Priority};
use bywire_node::broker::{Broker, CONNECTIONS, Port, ThisNode};
use bywire_node::fabric::NODES_MAX;
use bywire_testing::connected;
use bywire_wire::batch::Batch;
use bywire_wire::channel::{self, Channels, KEEP_ALIVE_NS};
use bywire_wire::connection::{Connection, Options, Receipt};
use bywire_wire::frame::Lane;
use bywire_wire::handshake::{Identity, PrivateKey, PublicKey};
use bywire_wire::keys::{Security, Side};
use bywire_wire::service::Kept;
use page::assert_has;

/// Packets of an Ethernet without the headers of IPv4 and UDP.
const PACKET_BYTES: u16 = 1472;
const MANY: usize = 1024;

/// Counts the bytes that a thread has allocated and not freed.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator. Counting touches no memory of the callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(layout.size())));
        // SAFETY: the caller upholds the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = HELD.try_with(|held| held.set(held.get().wrapping_sub(layout.size())));
        // SAFETY: the caller upholds the contract of `dealloc`, which is the same here.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes of memory that a call leaves allocated.
fn held(call: impl FnOnce()) -> usize {
    let before = HELD.get();
    call();
    HELD.get().wrapping_sub(before)
}

fn bytes_row(what: &str, bytes: usize) -> String {
    format!("| {what} | {bytes} B |")
}

fn options(side: Side, windows: [u64; 3]) -> Options {
    connected::options(side, Security::Aes256Gcm, windows, PACKET_BYTES)
}

fn key(number: usize) -> PrivateKey {
    let mut bytes = [1; 32];
    // The lowest bits of the first byte do not count.
    bytes[8..16].copy_from_slice(&(number as u64).to_le_bytes());
    PrivateKey::new(bytes)
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (node >> 8) as u8, node as u8], 7248))
}

fn channels(node: usize) -> Channels {
    let identity = Identity { key: key(node), shared_secret: None, boot_id: [0; 16], incarnation: 1 };
    Channels::new(identity, channel::Options { has_aes: true })
}

/// Moves packets between two nodes until nothing leaves any more.
fn exchange(nodes: &mut [Channels; 2]) {
    let mut number = 0u8;
    let mut random = |bytes: &mut [u8]| {
        bytes.iter_mut().for_each(|byte| {
            number = number.wrapping_mul(5).wrapping_add(1);
            *byte = number;
        });
    };
    for turn in 0..100 {
        let now_ns = 1_000_000_000 + turn * 1_000_000;
        for from in 0..2 {
            let mut packets = Vec::new();
            nodes[from].transmit(now_ns, &mut random, &mut packets);
            for (_, mut packet) in packets {
                nodes[1 - from].receive(now_ns, &mut random, address(from), &mut packet);
            }
            while nodes[from].next_event(now_ns).is_some() {}
        }
    }
}

/// The memory of the service of a machine.
fn service_rows() -> Vec<String> {
    let keys: Vec<_> = (0..MANY).map(|node| key(node).public()).collect();
    let own = || ThisNode { name: "own".to_owned(), key: PublicKey([9; 32]), security: Security::Aes256Gcm };
    let others: Vec<_> = keys.iter().enumerate().map(|(node, key)| (*key, format!("node{node}"))).collect();
    let mut broker = Broker::new(0, own());
    let mut one = channels(MANY);
    let node_bytes = held(|| {
        broker.follow(own(), &others);
        for (node, key) in keys.iter().enumerate() {
            one.add(0, *key, vec![address(node)]);
        }
    });

    let mut pair = [channels(0), channels(1)];
    for (node, channels) in pair.iter_mut().enumerate() {
        channels.add(0, keys[1 - node], vec![address(1 - node)]);
    }
    let channel_bytes = held(|| {
        pair[0].connect(0, &keys[1]).expect("the node is known");
        exchange(&mut pair);
    });
    assert!(pair[0].status(&keys[1]).is_some_and(|status| status.channel.is_some()));

    let port = |number: usize| Port {
        name: format!("port{number}"),
        uid: 1000,
        user: "somebody".to_owned(),
        groups: vec!["staff".to_owned()],
        incarnation: number as u64,
        is_reachable: true,
        udp_port: 4000,
        has_v6: false,
    };
    let port_bytes = held(|| {
        (0..MANY).for_each(|number| broker.register(number as u64, port(number)).expect("a free name"));
    });
    let kept = |number: usize| Kept {
        connection: number as u32,
        security: Security::Aes256Gcm,
        node: keys[number % MANY],
        peer_port: "render".to_owned(),
        peer_user: "somebody".to_owned(),
        peer_incarnation: 1,
        peer_connection: number as u32,
        path: IpAddr::from([10, 0, 0, 2]).into(),
    };
    let connection_bytes = held(|| {
        broker.keep(0, 0, (0..MANY).map(kept).collect(), true);
        while broker.next_action().is_some() {}
    });
    vec![
        bytes_row("a node of the fabric file", node_bytes / MANY),
        bytes_row("a channel", channel_bytes / 2),
        bytes_row("a registered port", port_bytes / MANY),
        bytes_row("a connection of a registered port", connection_bytes / MANY),
    ]
}

/// Two connected ends and their traffic.
struct Pair {
    ends: [End; 2],
    now_ns: u64,
    /// Packets and bytes that each has sent.
    sent: [[usize; 2]; 2],
}

impl Pair {
    fn new() -> Self {
        let port = PortOptions::default();
        let windows = windows_of(&port);
        let end = |side| End::new(options(side, windows), &port, port.message_bytes_max);
        let ends = [Side::Initiator, Side::Responder].map(end);
        let mut pair = Self { ends, now_ns: 1_000_000_000, sent: [[0; 2]; 2] };
        (0..100).for_each(|_| pair.turn());
        pair.sent = [[0; 2]; 2];
        pair
    }

    /// Each end sends its packets and receives those of the other one. Programs drop their messages.
    fn turn(&mut self) {
        for from in 0..2 {
            self.now_ns += 20_000;
            let mut batch = Batch::new(64 * 1024, 64);
            self.ends[from].transmit(self.now_ns, &mut batch);
            for packet in batch.packets() {
                self.sent[from][0] += 1;
                self.sent[from][1] += packet.len();
                let receipt = self.ends[1 - from].receive_packet(self.now_ns, &mut packet.to_vec());
                assert_eq!(receipt, Receipt::Taken);
            }
            self.ends[1 - from].open_large_window();
            while let Some(event) = self.ends[1 - from].poll() {
                assert!(!matches!(event, Event::Disconnected { .. }), "{event:?}");
            }
        }
    }

    /// Goes on until nothing is under way.
    fn settle(&mut self) {
        while !self.ends.iter().all(End::is_drained) {
            self.turn();
        }
        (0..100).for_each(|_| self.turn());
    }
}

/// The memory of a port.
fn port_rows() -> Vec<String> {
    let mut connection = None;
    let fresh_bytes = held(|| {
        connection = Some(Connection::<Vec<u8>>::new(options(Side::Initiator, [1 << 17; 3])));
    });
    let mut pair = Pair::new();
    let traffic_bytes = held(|| {
        for _ in 0..1000 {
            pair.ends[0].send(Priority::Low, &[1; 1000]).expect("room");
            pair.turn();
        }
        pair.settle();
        pair.ends.iter_mut().for_each(End::trim);
    }) as isize;
    let peer_bytes = CONNECTION_BYTES + fresh_bytes;
    let idle_bytes = peer_bytes.saturating_add_signed(traffic_bytes / 2);

    let mut flying = Connection::<&[u8]>::new(options(Side::Initiator, [1 << 30; 3]));
    let mut batch = Batch::new(usize::MAX, usize::MAX);
    flying.transmit(0, &mut batch);
    let packets_bytes = held(|| {
        for number in 0..1000 {
            flying.send(Lane::Reply, b"answer").expect("room");
            flying.ping();
            flying.transmit(number * 1000, &mut batch);
            batch.clear();
        }
    });
    vec![
        bytes_row("a new peer", peer_bytes),
        bytes_row("an idle peer, 5 s after 1,000 messages", idle_bytes),
        bytes_row("a packet that waits for its acknowledgement", packets_bytes / 1000),
    ]
}

/// Packets and bytes there and back.
fn work_row(what: &str, count: usize, call: impl Fn(&mut Pair, usize)) -> String {
    let mut pair = Pair::new();
    (0..count).for_each(|number| call(&mut pair, number));
    pair.sent = [[0; 2]; 2];
    (0..count).for_each(|number| call(&mut pair, number));
    let share = |number: usize| number as f64 / count as f64;
    let [[packets, bytes], [packets_back, bytes_back]] = pair.sent.map(|sent| sent.map(share));
    format!("| {what} | {packets:.2} | {bytes:.0} B | {packets_back:.2} | {bytes_back:.0} B |")
}

fn work_rows() -> Vec<String> {
    let posted = |pair: &mut Pair, length: usize| {
        pair.ends[1].post_receive(Priority::Low, vec![0; length]);
        let sent = pair.ends[0].send_buffer(Priority::Low, vec![0; length], Confirm::Copied);
        sent.expect("a token");
        while !pair.ends[0].is_drained() {
            pair.turn();
        }
    };
    vec![
        work_row("8 B and an answer of 8 B", 100, |pair, _| {
            pair.ends[0].send(Priority::High, &[1; 8]).expect("room");
            pair.turn();
            pair.ends[1].send(Priority::High, &[1; 8]).expect("room");
        }),
        work_row("100 messages of 8 B that leave together", 100, |pair, _| {
            for _ in 0..100 {
                pair.ends[0].send(Priority::Low, &[1; 8]).expect("room");
            }
            pair.turn();
        }),
        work_row("1 MiB", 10, |pair, _| posted(pair, 1 << 20)),
    ]
}

#[test]
fn memory_and_work_match_the_page() {
    let seconds = KEEP_ALIVE_NS / 1_000_000_000;
    let limits = [
        format!("| nodes of a fabric file | {NODES_MAX} |"),
        format!(
            "| peers of a port, unless its options say otherwise | {} |",
            PortOptions::default().peers_max
        ),
        format!("| connections of one machine with others | {} |", CONNECTIONS.common),
        format!("| seconds between two signs of life of an idle channel | {seconds} |"),
    ];
    let rows = [service_rows(), port_rows(), work_rows(), limits.into()].concat();
    rows.iter().for_each(|row| println!("{row}"));
    assert_has(&rows);
}
