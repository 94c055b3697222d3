//! Frames, each made by a few changes out of the one before, go through merging and are cut again.
#![no_main]

use bywire_eth::checksum::{checksum, pseudo_header};
use bywire_eth::coalesce::{Coalescer, Ready};
use bywire_eth::frame::{Layout, Network, Transport};
use bywire_eth::offload::{Descriptor, Kind, derive};
use bywire_eth::segment::Segmenter;
use libfuzzer_sys::fuzz_target;

/// Bytes of input for one frame.
const STEP_BYTES: usize = 5;
const BYTES_MAX: usize = 4000;

fuzz_target!(|bytes: &[u8]| {
    let Some((&shape, steps)) = bytes.split_first() else { return };
    let frames = traffic(shape, steps);
    let mut coalescer = Coalescer::new(BYTES_MAX);
    let mut order = Vec::new();
    let mut take = |ready: Ready<'_>| match ready {
        Ready::Whole(number, descriptor) => {
            assert_eq!(descriptor, frames[number as usize].0);
            order.push(number);
        }
        Ready::Merged { headers, parts, descriptor } => {
            let mut frame = headers.to_vec();
            parts.iter().for_each(|part| frame.extend(&frames[part.frame as usize].1[part.payload.clone()]));
            derive(descriptor.to_bytes(), &frame, frame.len()).expect("legal");
            assert!(frame.len() <= BYTES_MAX);
            let numbers = parts.iter().map(|part| part.frame);
            let before = numbers
                .clone()
                .flat_map(|number| apart(frames[number as usize].0, &frames[number as usize].1));
            assert_eq!(apart(descriptor, &frame), before.collect::<Vec<_>>());
            order.extend(numbers);
        }
    };
    for (number, (descriptor, frame)) in frames.iter().enumerate() {
        coalescer.push(number as u32, *descriptor, frame, &mut take);
    }
    coalescer.flush(&mut take);
    keeps_order(&frames, &mut order);
});

/// Every number once, and those of one flow in their order.
fn keeps_order(frames: &[(Descriptor, Vec<u8>)], order: &mut [u32]) {
    for (place, number) in order.iter().enumerate() {
        let flow = flow_of(&frames[*number as usize].1);
        let earlier = order[..place].iter().filter(|other| flow_of(&frames[**other as usize].1) == flow);
        assert!(flow.is_none() || earlier.max().is_none_or(|other| other < number));
    }
    order.sort();
    assert!(order.iter().copied().eq(0..frames.len() as u32));
}

fn flow_of(frame: &[u8]) -> Option<Vec<u8>> {
    let layout = Layout::parse(frame).ok()?;
    let addresses = match layout.network {
        Network::Ipv4 => layout.network_offset + 12..layout.network_offset + 20,
        Network::Ipv6 => layout.network_offset + 8..layout.network_offset + 40,
        Network::Other => return None,
    };
    layout.transport.checksum_offset()?;
    let ports = layout.transport_offset..layout.transport_offset + 4;
    let transport = [u8::from(layout.transport == Transport::Tcp)];
    Some([&frame[addresses], &frame[ports], &transport].concat())
}

/// As on the wire, without what may have stood still in a merged packet.
fn apart(descriptor: Descriptor, frame: &[u8]) -> Vec<Vec<u8>> {
    let mut segmenter = Segmenter::new(descriptor, frame).expect("a good frame");
    let mut all = Vec::new();
    while let Some(segment) = segmenter.next_segment() {
        let mut bytes = [segment.headers, segment.payload].concat();
        let layout = Layout::parse(&bytes).expect("a frame");
        if layout.network == Network::Ipv4 && bytes[layout.network_offset + 6] & 0x40 != 0 {
            bytes[layout.network_offset + 4..][..2].fill(0);
            bytes[layout.network_offset + 10..][..2].fill(0);
        }
        // In TCP both zeros are one number.
        if layout.transport == Transport::Tcp && bytes[layout.transport_offset + 16..][..2] == [0xFF; 2] {
            bytes[layout.transport_offset + 16..][..2].fill(0);
        }
        all.push(bytes);
    }
    all
}

fn traffic(shape: u8, steps: &[u8]) -> Vec<(Descriptor, Vec<u8>)> {
    let mut headers = first(shape & 1 != 0, shape & 2 != 0);
    let mut frames = Vec::new();
    for step in steps.chunks_exact(STEP_BYTES).take(200) {
        let [place, change, length, mode, fill] = *step else { continue };
        let place = usize::from(place) % headers.len();
        headers[place] ^= change;
        let payload = vec![fill; usize::from(length) * if mode & 8 != 0 { 8 } else { 1 }];
        let frame = with_payload(&mut headers, &payload, mode);
        frames.push(frame);
        if mode & 4 != 0 {
            headers[place] ^= change;
        }
        follow(&mut headers, payload.len());
    }
    frames
}

/// The headers of a flow's first frame.
fn first(ipv6: bool, udp: bool) -> Vec<u8> {
    let protocol = if udp { 17 } else { 6 };
    let mut headers = vec![2; 12];
    if ipv6 {
        headers.extend([0x86, 0xDD, 0x60, 0, 0, 0, 0, 0, protocol, 64]);
        headers.extend([0xFD; 32]);
    } else {
        headers.extend([8, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    headers.extend([1, 2, 3, 4]);
    headers.extend(if udp { &[0; 4][..] } else { &[0, 0, 0, 9, 0, 0, 0, 7, 0x50, 0x10, 1, 1, 0, 0, 0, 0] });
    headers
}

/// A frame with right lengths and checksums, partial where bit 0 of `mode` says so, and one wrong bit where bit 1 does.
fn with_payload(headers: &mut [u8], payload: &[u8], mode: u8) -> (Descriptor, Vec<u8>) {
    let mut frame = [&headers[..], payload].concat();
    let packet_bytes = (frame.len() - 14) as u16;
    if frame[12] == 8 {
        frame[16..18].copy_from_slice(&packet_bytes.to_be_bytes());
        frame[24..26].fill(0);
        let header_bytes = (usize::from(frame[14] & 15) * 4).min(frame.len() - 14);
        let sum = checksum(&frame[14..14 + header_bytes]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[18..20].copy_from_slice(&packet_bytes.wrapping_sub(40).to_be_bytes());
    }
    let layout = Layout::parse(&frame).expect("long enough");
    let Some(offset) = layout.transport.checksum_offset() else { return (Descriptor::PLAIN, frame) };
    let (start, bytes) = (layout.transport_offset, frame.len() - layout.transport_offset);
    if layout.transport == Transport::Udp {
        frame[start + 4..start + 6].copy_from_slice(&(bytes as u16).to_be_bytes());
    }
    let pseudo = pseudo_header(&frame, &layout, bytes).expect("found");
    frame[start + offset..][..2].copy_from_slice(&pseudo.folded().to_be_bytes());
    let descriptor = Descriptor {
        kind: Kind::Checksum,
        network_offset: layout.network_offset as u8,
        transport_offset: start as u8,
        ..Descriptor::PLAIN
    };
    if mode & 3 == 1 || descriptor.check(&frame, frame.len()).is_err() {
        return if descriptor.check(&frame, frame.len()).is_ok() {
            (descriptor, frame)
        } else {
            (Descriptor::PLAIN, frame)
        };
    }
    let mut frame = {
        let mut segmenter = Segmenter::new(descriptor, &frame).expect("checked");
        let segment = segmenter.next_segment().expect("one");
        [segment.headers, segment.payload].concat()
    };
    if let (2, Some(last)) = (mode & 3, frame.last_mut()) {
        *last ^= 1;
    }
    (Descriptor::PLAIN, frame)
}

/// The next frame's sequence number and identification.
fn follow(headers: &mut [u8], payload_bytes: usize) {
    let add = |field: &mut [u8], more: usize| {
        let number =
            field.iter().fold(0usize, |number, byte| number << 8 | usize::from(*byte)).wrapping_add(more);
        let bytes = number.to_be_bytes();
        field.copy_from_slice(&bytes[bytes.len() - field.len()..]);
    };
    let ipv4 = headers[12] == 8;
    if ipv4 {
        add(&mut headers[18..20], 1);
    }
    let transport = if ipv4 { 34 } else { 54 };
    if headers.len() >= transport + 20 {
        add(&mut headers[transport + 4..transport + 8], payload_bytes);
    }
}
