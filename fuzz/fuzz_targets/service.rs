//! Any bytes between a port and its node's service, and between two services, are a packet or an error.
#![no_main]

use bywire_wire::service::{Notice, PACKET_BYTES_MAX, Request, from_bytes, to_bytes};
use bywire_wire::service_message::ServiceMessage;
use libfuzzer_sys::fuzz_target;

macro_rules! reads_as_written {
    ($bytes:expr, $packet:ty) => {
        if let Ok(packet) = from_bytes::<$packet>($bytes) {
            let _ = format!("{packet:?}");
            // Numbers may have been written longer than they need, so the bytes need not be the same.
            if $bytes.len() <= PACKET_BYTES_MAX {
                let again = to_bytes(&packet).expect("it came in a packet");
                assert!(again.len() <= $bytes.len());
                assert_eq!(from_bytes::<$packet>(&again).as_ref(), Ok(&packet));
            }
        }
    };
}

fuzz_target!(|bytes: &[u8]| {
    reads_as_written!(bytes, Request);
    reads_as_written!(bytes, Notice);
    reads_as_written!(bytes, ServiceMessage);
});
