//! Forged packets of an unknown machine to a port's UDP socket and to a service, during a transfer.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bywire_sys::udp::UdpSocket;
use bywire_testing::Tier;
use bywire_testing::draw::Random;
use bywire_testing::test_network::usage::usage;
use bywire_testing::test_network::{Machine, TestNetwork};
use bywire_wire::packet::{Header, PacketKind};
use bywire_wire::service::status::Entry;

use super::cable::Stream;
use super::node::start_node;

/// The length of forged packets, and the number that one call sends.
const FORGED_BYTES: usize = 1200;
const FORGED_AT_ONCE: usize = 32;
/// Forged packets in a second.
const FORGED_RATE: usize = 30_000;

/// Sends forged packets from a machine until the sender of `kept` is dropped. Returns their number.
fn forge(from: &Machine, to: SocketAddr, kind: PacketKind, kept: &mpsc::Receiver<()>) -> u64 {
    let udp = from.namespace.run(|| UdpSocket::bind_everywhere(0)).expect("inside").expect("bound");
    let mut random = Random(7);
    let (mut count, began) = (0_u64, Instant::now());
    while kept.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
        let mut batch = Vec::new();
        for _ in 0..FORGED_AT_ONCE {
            // Numbers of connections are small at first, so some of these are in use.
            let (connection, number) = (random.next() as u32 % 16, random.next() % 100_000);
            let length = FORGED_BYTES as u16;
            batch.extend(Header { kind, key_phase: false, length, connection, number }.to_bytes());
            batch.resize(batch.len().next_multiple_of(FORGED_BYTES), random.next() as u8);
        }
        count += udp.send_batch(Some(to), &batch, FORGED_BYTES).map_or(0, |sent| sent / FORGED_BYTES) as u64;
        let due = Duration::from_secs_f64(count as f64 / FORGED_RATE as f64);
        std::thread::sleep(due.saturating_sub(began.elapsed()).max(Duration::from_micros(100)));
    }
    count
}

fn udp_port_of(machine: &Machine, name: &str) -> u16 {
    let found = machine.status().into_iter().find_map(|entry| match entry {
        Entry::Port(port) if port.name == name => Some(port.udp_port),
        _ => None,
    });
    found.expect("it has registered")
}

#[test]
fn a_flood_of_forged_packets_ends_nothing_and_costs_the_service_no_memory() {
    let Some(network) = TestNetwork::without_services(3) else { return };
    let mut fabric = network.fabric();
    let _stranger = fabric.nodes.pop();
    network.machines.iter().for_each(|machine| machine.write(&fabric));
    let [here, there, stranger] = &network.machines[..] else { unreachable!() };
    let (_ours, theirs) = (start_node(here), start_node(there));
    let default = Duration::from_secs(30);
    let mut stream = Stream::start(here, there, 1, [default; 2]);
    stream.go_on(Duration::from_millis(500)).expect("it flows");

    let duration = Duration::from_millis(Tier::current().pick([700, 700, 2000]));
    let mut phase = |name: &str, flood: Option<(u16, PacketKind)>| {
        let (memory, ticks) = usage(theirs.pid().as_raw_pid());
        let before = stream.done();
        let began = Instant::now();
        let forged = std::thread::scope(|scope| {
            let (keep, kept) = mpsc::channel();
            let flooding = flood.map(|(port, kind)| {
                let to = SocketAddr::new(there.address.ip(), port);
                scope.spawn(move || forge(stranger, to, kind, &kept))
            });
            assert!(stream.go_on(duration).is_some(), "the stream continues: {name}");
            drop(keep);
            flooding.map_or(0, |flooding| flooding.join().expect("no panic"))
        });
        let rate = (stream.done() - before) as f64 * 0.25 / began.elapsed().as_secs_f64();
        let (memory_after, ticks_after) = usage(theirs.pid().as_raw_pid());
        let grown = memory_after.saturating_sub(memory);
        println!(
            "{name}: {rate:.0} MiB/s; {forged} forged packets; the service: {} ticks, {memory_after} KiB, {grown} KiB more",
            ticks_after - ticks
        );
        assert!(flood.is_none() || forged > 1000, "too few packets: {forged}");
        assert!(grown < 4096, "the service grew by {grown} KiB");
    };
    let taking = udp_port_of(there, "taking1");
    phase("no flood", None);
    phase("at a UDP port of nobody", Some((9, PacketKind::Data)));
    phase("at the UDP port of the program", Some((taking, PacketKind::Data)));
    phase("at the service, beginnings of handshakes", Some((there.address.port(), PacketKind::Hello)));
    phase("at the service, packets of channels", Some((there.address.port(), PacketKind::Data)));
    phase("no flood again", None);
    let (count, reason) = stream.finish();
    println!("{count} messages, each right; then {reason:?}");
    // New connections work.
    Stream::start(here, there, 2, [default; 2]).finish();
}
