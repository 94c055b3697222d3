//! Any bytes of a network are packets, frames and records, or an error; and what could be read is written again as it stood.
#![no_main]

use bywire_wire::frame::{Payload, frames};
use bywire_wire::packet::{self, HEADER_BYTES, Header};
use bywire_wire::record::Head;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut buffer = bytes.to_vec();
    for (header, bytes) in packet::split(&mut buffer) {
        assert_eq!(Header::parse(bytes), Some(header));
        read(&bytes[HEADER_BYTES..]);
    }
    read(bytes);
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
