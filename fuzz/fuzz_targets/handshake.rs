//! Any bytes are a packet or an error.
#![no_main]

use bywire::handshake::{PACKET_BYTES_MAX, Packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(packet) = Packet::parse(bytes) {
        let again = packet.to_bytes();
        assert!(again.len() <= PACKET_BYTES_MAX);
        assert_eq!(Packet::parse(&again), Ok(packet));
    }
});
