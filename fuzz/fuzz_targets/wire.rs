//! Any bytes of a network are packets, frames and records, or an error; and what could be read is written again as it stood.
#![no_main]

use bywire_wire::frame::{Payload, frames};
use bywire_wire::packet::{self, HEADER_BYTES, Header};
use bywire_wire::received::Received;
use bywire_wire::record::Head;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut buffer = bytes.to_vec();
    for (header, bytes) in packet::split(&mut buffer) {
        assert_eq!(Header::parse(bytes), Some(header));
        read(&bytes[HEADER_BYTES..]);
    }
    read(bytes);
    let mut received = Received::default();
    for number in bytes.chunks_exact(8) {
        let number = u64::from_le_bytes(number.try_into().expect("eight"));
        let is_known = received.is_known(number);
        assert_eq!(received.insert(number), !is_known);
        assert!(received.is_known(number));
    }
    assert!(received.ranges().all(|range| range.start() <= range.end()));
});

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
