//! Compares our segmentation and checksums with the kernel's. A superframe enters a bridge by one TAP device and
//! leaves it by another that accepts no superframes, so the kernel has to cut it. The kernel's segments must equal
//! ours in every byte.

use std::time::{Duration, Instant};

use bywire_eth::offload::{self, VnetHeader};
use bywire_eth::segment::Segmenter;
use bywire_sys::Errno;
use bywire_sys::tap::{Offloads, Queue, Tap};
use bywire_testing::draw::Random;

use crate::hosts::{self, Host, TIMEOUT, hosts, persist};
use crate::packet::Packet;

const ALL: Offloads = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };

/// Two TAP devices at one bridge: `whole` sends superframes to the kernel, `plain` receives the kernel's segments.
struct Bench {
    whole: Tap,
    plain: Tap,
    _room: Host,
}

fn bench() -> Option<Bench> {
    let host = hosts(1)?.remove(0);
    let (whole, plain) = host.inside(|| {
        let whole = Tap::create("whole", 1, ALL).expect("a TAP");
        (whole, Tap::create("plain", 1, Offloads::default()).expect("a TAP"))
    });
    host.ip("link add br0 type bridge mcast_snooping 0");
    for name in ["whole", "plain"] {
        // The kernel must not send frames of its own.
        host.ip(&format!("link set {name} addrgenmode none mtu 9000 master br0"));
        host.ip(&format!("link set {name} up"));
    }
    host.ip("link set br0 addrgenmode none up");
    // A bridge port learns for a moment before it forwards. Ordinary frames show when it forwards.
    let ordinary =
        |number: u64| [[0xFF; 6].as_slice(), &[2, 0, 0, 0, 0, 2], &[0; 40], &number.to_be_bytes()].concat();
    let write = |number| whole.queues[0].write(&packet([0; 10], &ordinary(number)));
    persist(|| {
        write(0)?;
        read(&plain.queues[0], Duration::from_millis(10))
            .map(drop)
            .ok_or(std::io::ErrorKind::WouldBlock.into())
    });
    // Late copies of the first frame arrive before this frame.
    write(1).expect("the kernel takes it");
    while read(&plain.queues[0], TIMEOUT).expect("it forwards") != ordinary(1) {}
    Some(Bench { whole, plain, _room: host })
}

/// The next frame, if one comes within `timeout`.
fn read(queue: &Queue, timeout: Duration) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 70_000];
    let deadline = Instant::now() + timeout;
    loop {
        match queue.read(&mut buffer) {
            Ok(length) => return Some(buffer[VnetHeader::BYTES..length].to_vec()),
            Err(Errno::AGAIN) if Instant::now() > deadline => return None,
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_micros(100)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn packet(header: [u8; 10], frame: &[u8]) -> Vec<u8> {
    [&header[..], frame].concat()
}

/// The parameters of a superframe.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    ipv6: bool,
    tcp: bool,
    payload_bytes: usize,
    segment_bytes: u16,
    flags: u8,
    tag: bool,
}

/// A superframe with the header that a kernel gives it.
fn superframe(recipe: Recipe) -> (VnetHeader, Vec<u8>) {
    let Recipe { ipv6, tcp, payload_bytes, segment_bytes, flags, tag } = recipe;
    let payload = (0..payload_bytes).map(|index| hosts::byte_at(9, index)).collect();
    let tags = if tag { vec![0x8100] } else { Vec::new() };
    let packet = Packet { ipv6, tcp, flags, tags, service: 2, ..Packet::tcp(payload) };
    (packet.vnet(segment_bytes), packet.partial())
}

#[test]
fn segmentation_and_checksums_match_the_kernels() {
    let Some(bench) = bench() else { return };
    let mut compared = 0;
    for (ipv6, tcp, tag) in [(false, true), (false, false), (true, true), (true, false)]
        .into_iter()
        .flat_map(|(ipv6, tcp)| [(ipv6, tcp, false), (ipv6, tcp, true)])
    {
        if !tcp && !bench.whole.offloads.udp_segmentation {
            println!("not run: UDP superframes, which this kernel's TAP does not offer");
            continue;
        }
        for (payload_bytes, segment_bytes) in
            [(2000, 1000), (14_001, 1448), (60_000, 8948), (1001, 500), (1449, 1448)]
        {
            for flags in if tcp { vec![0x10, 0x18, 0x19, 0xD8] } else { vec![0] } {
                let recipe = Recipe { ipv6, tcp, payload_bytes, segment_bytes, flags, tag };
                compare(&bench, recipe);
                compared += 1;
            }
        }
    }
    assert!(compared >= 80, "{compared}");
}

fn compare(bench: &Bench, recipe: Recipe) {
    let (header, frame) = superframe(recipe);
    bench.whole.queues[0].write(&packet(header.to_bytes(), &frame)).expect("the kernel takes it");
    let descriptor = offload::describe(header, &frame).expect("a descriptor");
    let derived = offload::derive(descriptor.to_bytes(), &frame[..frame.len().min(256)], frame.len());
    let derived = derived.expect("a header");
    bench.whole.queues[0]
        .write(&packet(derived.to_bytes(), &frame))
        .expect("the kernel takes what we derive");
    for _ in 0..2 {
        let mut segments = Segmenter::new(descriptor, &frame).expect("segments");
        let mut index = 0;
        while let Some(segment) = segments.next_segment() {
            let ours = [segment.headers, segment.payload].concat();
            let kernels = read(&bench.plain.queues[0], TIMEOUT);
            let kernels =
                kernels.unwrap_or_else(|| panic!("{recipe:?}: the kernel made {index} segments only"));
            assert!(
                ours == kernels,
                "{recipe:?}: segment {index}\nours    {:02x?}\nkernel's {:02x?}",
                &ours[..90.min(ours.len())],
                &kernels[..90.min(kernels.len())]
            );
            index += 1;
        }
    }
}

#[test]
fn the_kernel_accepts_headers_derived_from_any_descriptor() {
    let Some(bench) = bench() else { return };
    let mut numbers = Random(20);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let recipe = Recipe {
            ipv6: numbers.below(2) == 0,
            tcp: numbers.below(2) == 0,
            payload_bytes: numbers.below(5000),
            segment_bytes: 1 + numbers.below(3000) as u16,
            flags: numbers.below(256) as u8,
            tag: numbers.below(2) == 0,
        };
        let (header, mut frame) = superframe(recipe);
        let described = offload::describe(header, &frame).map(offload::Descriptor::to_bytes);
        let mut descriptor = described.unwrap_or_default();
        for _ in 0..numbers.below(4) {
            let headers_bytes = frame.len().min(90);
            frame[numbers.below(headers_bytes)] = numbers.below(256) as u8;
            if numbers.below(2) == 0 {
                descriptor[numbers.below(8)] = numbers.below(256) as u8;
            }
        }
        if numbers.below(4) == 0 {
            frame.truncate(14 + numbers.below(frame.len()));
        }
        match offload::derive(descriptor, &frame[..frame.len().min(256)], frame.len()) {
            Ok(derived) => {
                let given = bench.whole.queues[0].write(&packet(derived.to_bytes(), &frame));
                assert_eq!(given, Ok(()), "{derived:?} {:02x?}", &frame[..frame.len().min(90)]);
                taken += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 5000 && refused > 2000, "{taken} taken, {refused} refused");
}
