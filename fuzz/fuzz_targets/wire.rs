//! Any bytes of a network are packets, frames and records, or an error; and what could be read is written again as it stood.
//! A connection stands any packets, of strangers and of a peer that holds its keys.
#![no_main]

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options, Receipt, State};
use bywire_wire::frame::{LANES, Lane, Payload, frames};
use bywire_wire::keys::{Security, Side};
use bywire_wire::packet::{self, HEADER_BYTES, Header, PacketKind};
use bywire_wire::received::Received;
use bywire_wire::record::Head;
use bywire_wire::sealing::Sealer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut buffer = bytes.to_vec();
    for (header, bytes) in packet::split(&mut buffer) {
        assert_eq!(Header::parse(bytes), Some(header));
        read(&bytes[HEADER_BYTES..]);
    }
    read(bytes);
    // The last bytes choose the length, so that those of a packet may come first.
    let chosen = bytes.last_chunk().map_or(0, |length| usize::from(u16::from_le_bytes(*length)));
    for datagram_bytes in [chosen, chosen % 64] {
        split_joined(bytes, datagram_bytes);
    }
    let mut received = Received::default();
    for number in bytes.chunks_exact(8) {
        let number = u64::from_le_bytes(number.try_into().expect("eight"));
        let is_known = received.is_known(number);
        assert_eq!(received.insert(number), !is_known);
        assert!(received.is_known(number));
    }
    assert!(received.ranges(0).all(|range| range.start() <= range.end()));
    stand(bytes);
});

/// The packets of joined datagrams lie in the buffer one after the other, none in two datagrams, and there is an end to them.
fn split_joined(bytes: &[u8], datagram_bytes: usize) {
    let mut buffer = bytes.to_vec();
    let start = buffer.as_ptr() as usize;
    let datagram_of = |place: usize| place / datagram_bytes.max(1);
    let (mut count, mut end) = (0, 0);
    for (header, packet) in packet::split_joined(&mut buffer, datagram_bytes) {
        assert_eq!(Header::parse(packet), Some(header));
        assert_eq!(packet.len(), usize::from(header.length));
        let from = packet.as_ptr() as usize - start;
        assert!(from >= end && from + packet.len() <= bytes.len());
        (count, end) = (count + 1, from + packet.len());
        assert_eq!(datagram_of(from), datagram_of(end - 1));
        assert_eq!(packet, &bytes[from..end]);
        assert!(count <= bytes.len() / HEADER_BYTES);
    }
}

const WINDOW: u64 = 4096;
const SECURITY: Security = Security::ChaCha20Poly1305;

/// Gives the bytes to a connection, cut where their own lengths say, first as they are and then sealed with its key.
fn stand(bytes: &[u8]) {
    let mut connection = Connection::new(Options {
        side: Side::Initiator,
        security: SECURITY,
        secret: [0; 32].into(),
        connection: 1,
        peer_connection: 2,
        windows: [WINDOW; 3],
        peer_windows: [WINDOW; 3],
        route_bytes: 1452,
    });
    let _ = connection.send(Lane::Low, vec![1; 20_000]);
    let (mut now_ns, mut rest) = (0u64, bytes);
    while let Some(([length, number, time], behind)) = rest.split_first_chunk() {
        let (frames, behind) = behind.split_at(behind.len().min((*length).into()));
        rest = behind;
        assert_ne!(connection.receive(now_ns, &mut frames.to_vec()), Receipt::Taken, "it was not sealed");
        let length = (HEADER_BYTES + frames.len() + SECURITY.tag_bytes()) as u16;
        let number = u64::from(*number);
        let header = Header { kind: PacketKind::Data, key_phase: false, length, connection: 1, number };
        let mut packet = header.to_bytes().to_vec();
        packet.extend(frames);
        // One of its own for each packet: a sealer refuses numbers that do not rise.
        let mut sealer = Sealer::new(SECURITY, &[0; 32].into(), Side::Responder);
        sealer.seal(now_ns, number, &mut packet, 0);
        let receipt = connection.receive(now_ns, &mut packet);
        assert!(!matches!(receipt, Receipt::Forged | Receipt::Unrecognized));
        let mut batch = Batch::new(64 * 1024, 64);
        connection.transmit(now_ns, &mut batch);
        assert!(connection.state() == State::Open || batch.count() <= 1);
        assert!(connection.memory_bytes() as u64 <= 3 * WINDOW);
        for lane in LANES {
            let (first, second) = connection.peek(lane);
            let bytes = first.len() + second.len();
            assert!(bytes as u64 <= WINDOW);
            connection.take(lane, bytes as u64 / 2);
        }
        while connection.pop_datagram().is_some() {}
        now_ns += u64::from(*time) * 100_000;
    }
}

fn read(bytes: &[u8]) {
    let mut again = Vec::new();
    let mut payload = Payload::new(&mut again, bytes.len());
    for frame in frames(bytes).map_while(Result::ok) {
        assert!(payload.push(&frame));
    }
    assert!(bytes.starts_with(&again));
    if let Ok(Some((head, length))) = Head::parse(bytes) {
        again.clear();
        head.write(&mut again);
        assert_eq!(again, bytes[..length]);
    }
}
