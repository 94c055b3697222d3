//! Compares our segmentation and checksums with the kernel's. A superframe enters a bridge by one TAP device and
//! leaves it by another that accepts no superframes, so the kernel has to cut it. The kernel's segments must equal
//! ours in every byte.

use std::time::{Duration, Instant};

use bywire_eth::offload::{self, VnetHeader};
use bywire_eth::segment::Segmenter;
use bywire_sys::Errno;
use bywire_sys::tap::{Offloads, Queue, Tap};

use crate::hosts::{self, Host, TIMEOUT, hosts, persist};

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

/// A superframe with the header that a kernel gives it.
struct Superframe {
    header: VnetHeader,
    frame: Vec<u8>,
}

/// The parameters of a superframe.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    ipv6: bool,
    udp: bool,
    payload_bytes: usize,
    segment_bytes: u16,
    tcp_flags: u8,
    tag: bool,
}

fn superframe(recipe: Recipe) -> Superframe {
    let transport_bytes = if recipe.udp { 8 } else { 32 };
    let packet_bytes = transport_bytes + recipe.payload_bytes;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if recipe.tag {
        frame.extend([0x81, 0, 0, 7]);
    }
    let protocol = if recipe.udp { 17 } else { 6 };
    if recipe.ipv6 {
        frame.extend([0x86, 0xDD, 0x60, 0x12, 0x34, 0x56]);
        frame.extend((packet_bytes as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    } else {
        let start = frame.len() + 2;
        frame.extend([8, 0, 0x45, 0x02]);
        frame.extend((20 + packet_bytes as u16).to_be_bytes());
        frame.extend([0xFF, 0xFE, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = fold(&frame[start..], 0);
        frame[start + 10..start + 12].copy_from_slice(&(!sum).to_be_bytes());
    }
    let checksum_start = frame.len();
    let addresses = if recipe.ipv6 { 32 } else { 8 };
    let pseudo = fold(&frame[checksum_start - addresses..], protocol as u32 + packet_bytes as u32);
    frame.extend([0x12, 0x34, 0x56, 0x78]);
    if recipe.udp {
        frame.extend((packet_bytes as u16).to_be_bytes());
        frame.extend(pseudo.to_be_bytes());
    } else {
        frame.extend([0xFF, 0xFF, 0xFF, 0x00, 0, 0, 0, 9, 0x80, recipe.tcp_flags, 0x20, 0]);
        frame.extend(pseudo.to_be_bytes());
        frame.extend([0, 0, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    let payload_offset = frame.len();
    frame.extend((0..recipe.payload_bytes).map(|index| hosts::byte_at(9, index)));
    let gso_type = match (recipe.udp, recipe.ipv6) {
        (true, _) => offload::GSO_UDP_L4,
        (false, false) => offload::GSO_TCPV4,
        (false, true) => offload::GSO_TCPV6,
    };
    let congestion = if recipe.tcp_flags & 0x80 != 0 { offload::GSO_ECN } else { 0 };
    let header = VnetHeader {
        flags: offload::FLAG_NEEDS_CHECKSUM,
        gso_type: gso_type | congestion,
        header_bytes: payload_offset as u16,
        segment_bytes: recipe.segment_bytes,
        checksum_start: checksum_start as u16,
        checksum_offset: if recipe.udp { 6 } else { 16 },
    };
    Superframe { header, frame }
}

/// The sum of 16-bit words with carries added, calculated the slow way.
fn fold(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = start + words.sum::<u32>();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn segmentation_and_checksums_match_the_kernels() {
    let Some(bench) = bench() else { return };
    let mut compared = 0;
    for (ipv6, udp, tag) in [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .flat_map(|(ipv6, udp)| [(ipv6, udp, false), (ipv6, udp, true)])
    {
        if udp && !bench.whole.offloads.udp_segmentation {
            println!("not run: UDP superframes, which this kernel's TAP does not offer");
            continue;
        }
        for (payload_bytes, segment_bytes) in
            [(2000, 1000), (14_001, 1448), (60_000, 8948), (1001, 500), (1449, 1448)]
        {
            for tcp_flags in if udp { vec![0] } else { vec![0x10, 0x18, 0x19, 0xD8] } {
                let recipe = Recipe { ipv6, udp, payload_bytes, segment_bytes, tcp_flags, tag };
                compare(&bench, recipe);
                compared += 1;
            }
        }
    }
    assert!(compared >= 80, "{compared}");
}

fn compare(bench: &Bench, recipe: Recipe) {
    let Superframe { header, frame } = superframe(recipe);
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

/// A pseudo-random sequence of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)) as usize % bound
    }
}

#[test]
fn the_kernel_accepts_headers_derived_from_any_descriptor() {
    let Some(bench) = bench() else { return };
    let mut numbers = Numbers(20);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let recipe = Recipe {
            ipv6: numbers.below(2) == 0,
            udp: numbers.below(2) == 0,
            payload_bytes: numbers.below(5000),
            segment_bytes: 1 + numbers.below(3000) as u16,
            tcp_flags: numbers.below(256) as u8,
            tag: numbers.below(2) == 0,
        };
        let Superframe { header, mut frame } = superframe(recipe);
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
