//! The work on each superframe takes negligible time beside the system calls that move it. It needs `--release`.
//!
//! The bounds are several times what a current machine needs, so that only a change of algorithm exceeds them. The best
//! of many short rounds is taken, so that a busy machine does not exceed them. A program of its own, as only its
//! release build is of use.

#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "suite/packet/mod.rs"]
mod packet;

use std::hint::black_box;
use std::time::Instant;

use bywire_eth::checksum::Sum;
use bywire_eth::frame::HEADER_BYTES_MAX;
use bywire_eth::offload::{derive, describe};
use packet::Packet;

/// The duration of one call in nanoseconds, in the best of many rounds.
fn best_ns(calls: u32, mut call: impl FnMut()) -> f64 {
    let rounds = (0..200).map(|_| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    });
    rounds.fold(f64::MAX, f64::min)
}

/// True, and reported as such, if this is not an optimised build.
fn is_slow_build() -> bool {
    if cfg!(debug_assertions) {
        println!("not run: the bounds are of optimised builds: run with --release");
    }
    cfg!(debug_assertions)
}

#[test]
fn a_header_is_derived_within_a_tenth_of_a_microsecond() {
    if is_slow_build() {
        return;
    }
    let packet = Packet { ipv6: true, tags: vec![0x8100], ..Packet::tcp(vec![1; 60_000]) };
    let frame = packet.partial();
    let (header, descriptor) = (packet.vnet(1400), packet.descriptor(1400).to_bytes());
    let headers = &frame[..HEADER_BYTES_MAX];
    let derived = best_ns(1000, || {
        black_box(derive(black_box(descriptor), black_box(headers), frame.len())).expect("legal");
    });
    let described = best_ns(1000, || {
        black_box(describe(black_box(header), black_box(&frame))).expect("legal");
    });
    println!("derived in {derived:.1} ns, described in {described:.1} ns");
    assert!(derived < 100.0 && described < 100.0);
}

#[test]
fn checksums_take_a_nanosecond_for_ten_bytes() {
    if is_slow_build() {
        return;
    }
    let bytes = vec![0x5A; 64_000];
    for length in [1448, 8948, 64_000] {
        let time_ns = best_ns(20, || {
            black_box(Sum::of(black_box(&bytes[..length])).folded());
        });
        let rate = length as f64 / time_ns;
        println!("{length} bytes at {rate:.1} GB/s");
        assert!(rate > 10.0);
    }
}
