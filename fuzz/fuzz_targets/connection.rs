//! A living port, fed by a hand-written peer.
#![no_main]

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::time::Duration;

use bywire::handshake::Packet;
use bywire::{Confirm, Event, Key, Peer, Port, PortOptions, Priority, Rights};
use bywire_ring::geometry::LaneName;
use bywire_ring::header::Header;
use bywire_ring::memory::{Memory, Shared};
use bywire_sys::memory::Mapping;
use bywire_testing::rogue::{Inside, Rogue};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// What lives through all inputs: a port under attack, and an honest peer of it.
struct Fixture {
    directory: TempDir,
    victim: Port,
    key: Key,
    honest: Port,
    to_victim: Peer,
}

thread_local! {
    static FIXTURE: RefCell<Fixture> = RefCell::new(Fixture::new());
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = |name: &str| PortOptions {
            name: Some(name.parse().expect("a name")),
            runtime_directory: Some(directory.path().to_owned()),
            message_bytes_max: 1 << 16,
            spin: Duration::ZERO,
            ..PortOptions::default()
        };
        let mut victim = Port::open(options("victim")).expect("open");
        let mut honest = Port::open(options("honest")).expect("open");
        let key = victim.register(vec![0; 8192], Rights { read: true, write: true }).expect("region");
        let address = victim.address();
        let to_victim = honest.connect_start(&address).expect("connect");
        while !matches!(honest.wait(Some(Duration::ZERO)), Ok(Some(Event::Connected(_)))) {
            step(&mut victim);
            honest.arm();
        }
        while victim.poll().is_some() {}
        Self { directory, victim, key, honest, to_victim }
    }
}

/// Looks at sockets and rings.
fn step(port: &mut Port) -> Option<Event> {
    // Armed, the next poll looks after sockets, too.
    port.arm();
    port.poll()
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Small numbers often, large ones sometimes.
    fn word(&mut self, key: u64) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => key,
            253 => u64::from_ne_bytes(std::array::from_fn(|_| self.byte())),
            252 => u64::from(self.byte()) << 8,
            small => u64::from(small),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    FIXTURE.with_borrow_mut(|fixture| run(fixture, &mut Input(bytes)));
});

fn run(fixture: &mut Fixture, input: &mut Input) {
    let mut rogue = Rogue::new(fixture.directory.path(), "rogue");
    let socket = rogue.connect("victim");
    socket.send(&Packet::Hello(rogue.introduction()).to_bytes(), &rogue.offer()).expect("send");
    let peer = loop {
        if let Some(Event::Connected(peer)) = step(&mut fixture.victim) {
            break peer;
        }
    };
    let mut inside = rogue.inside(socket).expect("let in");
    provoke(&mut fixture.victim, peer, fixture.key, input.byte());
    let mut area = None;
    while !input.0.is_empty() && fixture.victim.peer_info(peer).is_some() {
        act(fixture.key, &mut rogue, &mut inside, &mut area, input);
        live(&mut fixture.victim);
    }
    drop(inside);
    while fixture.victim.peers().count() > 1 {
        live(&mut fixture.victim);
    }
    while fixture.victim.poll().is_some() {}
    // The other connection never notices.
    fixture.honest.send(fixture.to_victim, Priority::Low, b"well?").expect("room");
    let answer = loop {
        if let Some(Event::Message(message)) = step(&mut fixture.victim) {
            break message;
        }
    };
    assert_eq!(&answer.payload[..], b"well?");
}

fn live(victim: &mut Port) {
    for _ in 0..4 {
        match step(victim) {
            Some(Event::BufferNeeded { priority, length_bytes, .. }) => {
                let _ = victim.post_receive(priority, vec![0; length_bytes as usize]);
            }
            Some(Event::Lent(lent)) => assert_eq!(lent.to_vec().len(), lent.len()),
            _ => {}
        }
    }
}

/// Has things under way towards the rogue, as the input likes.
fn provoke(victim: &mut Port, rogue: Peer, key: Key, what: u8) {
    if what & 1 != 0 {
        let _ = victim.send_buffer(rogue, Priority::Low, vec![1; 10_000], Confirm::Delivered);
    }
    if what & 2 != 0 {
        let _ = victim.put(rogue, Priority::High, (key, 0), vec![2; 5000], Some(b"note"));
    }
    if what & 4 != 0 {
        let _ = victim.get(rogue, Priority::Low, (key, 0), vec![0; 5000]);
    }
    if what & 8 != 0
        && let Ok(heap) = victim.heap(rogue, 64, 2)
        && let Some(block) = heap.block()
    {
        let _ = victim.send_lent(Priority::Low, block, 64);
    }
}

fn act(key: Key, rogue: &mut Rogue, inside: &mut Inside, area: &mut Option<Shared>, input: &mut Input) {
    let what = input.byte();
    let lane = [LaneName::Reply, LaneName::High, LaneName::Low][usize::from(what >> 4) % 3];
    match what & 7 {
        0 => {
            // A word anywhere.
            let offset = usize::from(input.byte()) * 64 % rogue.segment.length_bytes();
            let offset = offset + usize::from(input.byte() & 7) * 8;
            rogue.segment.write(offset, &input.word(key.0).to_ne_bytes());
        }
        1 => {
            // The bulk area in due form, or a packet of whatever.
            if input.byte() & 1 == 0 {
                *area = Some(Rogue::offer_bulk(inside));
                return;
            }
            let packet: Vec<u8> = (0..input.byte()).map(|_| input.byte()).collect();
            let _ = inside.socket.send(&packet, &[]);
        }
        2 => {
            let blocks = 1 + u32::from(input.byte()) % 4;
            let (_heap, file) = Mapping::create("rogue", 4096).expect("memory");
            let offer = Packet::Heap { id: input.byte().into(), block_bytes: 64, blocks };
            let _ = inside.socket.send(&offer.to_bytes(), &[file.as_fd()]);
        }
        3 if what & 8 != 0 && !rogue.segment.is_extended() => {
            if let Some(area) = area.take() {
                rogue.move_bulk(inside, area);
            }
        }
        3 => {
            let consumer = &mut inside.consumers[lane as usize];
            if let Ok(Some(header)) = consumer.peek(&inside.inbound) {
                consumer.advance(&rogue.segment, header);
            }
        }
        4 | 5 => {
            let kind = input.byte();
            let words: [u64; 5] = std::array::from_fn(|_| input.word(key.0));
            let longest = inside.producers[lane as usize].fragment_bytes();
            let payload = vec![input.byte(); input.word(key.0) as usize % (longest + 1)];
            let header = Header { kind: kind & 0x7f, length: 0, check: 0 };
            let producer = &mut inside.producers[lane as usize];
            let _ = producer.push_bulk(&rogue.segment, &inside.inbound, header, &words, &payload);
        }
        _ => {
            let kind = input.byte();
            let words: [u64; 4] = std::array::from_fn(|_| input.word(key.0));
            let header = Header { kind: kind & 0x7f, length: u16::from(input.byte()) % 57, check: 0 };
            let producer = &mut inside.producers[lane as usize];
            let _ = producer.push_inline(&rogue.segment, &inside.inbound, header, &words);
        }
    }
}
