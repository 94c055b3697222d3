//! Cutting and merging of superframes are inverse to the bit, and keep each flow's order.

use bywire_eth::coalesce::{Coalescer, Ready};
use bywire_eth::offload::{Descriptor, derive};
use bywire_eth::rejection::BadFrame;
use bywire_eth::segment::{Cutter, Segmenter};
use proptest::prelude::*;

use crate::packet::{self, ACK, CWR, FIN, PSH, Packet, SYN, superframes};

/// The segments as they appear on the wire.
fn segments(descriptor: Descriptor, frame: &[u8]) -> Vec<Vec<u8>> {
    let mut segmenter = Segmenter::new(descriptor, frame).expect("a good frame");
    let count = segmenter.count();
    let mut all = Vec::new();
    let mut buffer = vec![0xEE; 70_000];
    while let Some(segment) = segmenter.next_segment() {
        assert_eq!(segment.write(&mut vec![0; segment.length_bytes() - 1]), None);
        let length = segment.write(&mut buffer).expect("room");
        all.push(buffer[..length].to_vec());
    }
    assert_eq!(all.len(), count);
    all
}

fn pieces(
    descriptor: Descriptor,
    frame: &[u8],
    bytes_max: usize,
) -> Result<Vec<(Descriptor, Vec<u8>)>, BadFrame> {
    let mut cutter = Cutter::new(descriptor, &frame[..frame.len().min(256)], frame.len(), bytes_max)?;
    let count = cutter.count();
    let mut all = Vec::new();
    while let Some(piece) = cutter.next_piece() {
        all.push((piece.descriptor, [piece.headers, &frame[piece.payload]].concat()));
    }
    assert_eq!(all.len(), count);
    Ok(all)
}

/// The output of a coalescer for `frames`. Each frame comes with the numbers of its parts.
fn coalesced(frames: &[(Descriptor, Vec<u8>)], bytes_max: usize) -> Vec<(Descriptor, Vec<u8>, Vec<u32>)> {
    let mut coalescer = Coalescer::new(bytes_max);
    let mut all = Vec::new();
    let mut take = |ready: Ready<'_>| match ready {
        Ready::Whole(number, descriptor) => {
            all.push((descriptor, frames[number as usize].1.clone(), vec![number]));
        }
        Ready::Merged { headers, parts, descriptor } => {
            let mut frame = headers.to_vec();
            for part in parts {
                frame.extend(&frames[part.frame as usize].1[part.payload.clone()]);
            }
            assert!(parts.len() > 1 && frame.len() <= bytes_max);
            all.push((descriptor, frame, parts.iter().map(|part| part.frame).collect()));
        }
    };
    for (number, (descriptor, frame)) in frames.iter().enumerate() {
        coalescer.push(number as u32, *descriptor, frame, &mut take);
    }
    coalescer.flush(&mut take);
    all
}

fn plain(frames: Vec<Vec<u8>>) -> Vec<(Descriptor, Vec<u8>)> {
    frames.into_iter().map(|frame| (Descriptor::PLAIN, frame)).collect()
}

proptest! {
    #[test]
    fn segments_equal_those_that_their_sender_would_send((packet, segment_bytes) in superframes()) {
        let expected: Vec<_> = packet.segments(usize::from(segment_bytes)).iter().map(Packet::whole).collect();
        prop_assert_eq!(segments(packet.descriptor(segment_bytes), &packet.partial()), expected);
        prop_assert_eq!(segments(packet.descriptor(0), &packet.partial()), vec![packet.whole()]);
    }

    #[test]
    fn merged_segments_equal_the_superframe((packet, segment_bytes) in superframes()) {
        // Packets with extensions are never merged, so the test leaves them out.
        let packet = Packet { extension_words: 0, ..packet };
        let descriptor = packet.descriptor(segment_bytes);
        let frames = plain(segments(descriptor, &packet.partial()));
        let merged = coalesced(&frames, 65_549);
        prop_assert_eq!(merged.len(), 1);
        prop_assert_eq!(&merged[0].0, &descriptor);
        prop_assert_eq!(&merged[0].1, &packet.partial());
    }

    #[test]
    fn fragments_are_valid_and_lose_nothing((packet, segment_bytes) in superframes(), bytes_max in 100..20_000usize) {
        let (frame, descriptor) = (packet.partial(), packet.descriptor(segment_bytes));
        let Ok(pieces) = pieces(descriptor, &frame, bytes_max) else {
            prop_assert!(bytes_max < packet.payload_offset() + usize::from(segment_bytes));
            return Ok(());
        };
        let mut apart = Vec::new();
        for (descriptor, piece) in &pieces {
            prop_assert!(piece.len() <= bytes_max);
            derive(descriptor.to_bytes(), piece, piece.len()).expect("legal");
            apart.extend(segments(*descriptor, piece));
        }
        prop_assert_eq!(apart, segments(descriptor, &frame));
    }
}

/// One frame of several flows that are sent at the same time.
#[derive(Clone, Debug)]
struct Step {
    flow: usize,
    length: u16,
    flags: u8,
    /// The number of a change to the flow before this frame. Most values change nothing.
    event: u8,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![4 => Just(100u16), 1 => 0..300u16];
    let flags = prop_oneof![8 => Just(ACK), 1 => Just(ACK | PSH), 1 => any::<u8>()];
    let event = prop_oneof![6 => Just(255u8), 1 => any::<u8>()];
    let step = (0..20usize, length, flags, event);
    let step =
        step.prop_map(|(flow, length, flags, event)| Step { flow: flow * flow / 20, length, flags, event });
    prop::collection::vec(step, 0..120)
}

/// The frames of all flows, with the changes of each step's event.
fn traffic(steps: &[Step]) -> Vec<(Descriptor, Vec<u8>)> {
    let mut flows: Vec<Packet> = (0..20u8)
        .map(|flow| Packet {
            ipv6: flow & 1 != 0,
            tcp: flow & 2 != 0,
            dont_fragment: flow & 4 != 0,
            source: flow / 8,
            port: 1000 + u16::from(flow / 3),
            ..Packet::tcp(Vec::new())
        })
        .collect();
    let mut frames = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let flow = &mut flows[step.flow];
        flow.payload = vec![number as u8; usize::from(step.length)];
        flow.flags = step.flags;
        match step.event {
            0..20 => flow.hops ^= 1,
            20..40 => flow.service ^= 3,
            40..60 => flow.sequence = flow.sequence.wrapping_sub(50),
            60..80 => flow.identification = flow.identification.wrapping_add(7),
            80..100 => flow.window ^= 1,
            100..120 => flow.tags = if flow.tags.is_empty() { vec![0x8100] } else { Vec::new() },
            120..140 => flow.extension_words ^= 1,
            140..145 => flow.option_words ^= 1,
            145..150 => flow.option ^= 2,
            180..190 => flow.acknowledgement += 1,
            _ => {}
        }
        let partial = (150..170).contains(&step.event);
        let mut frame = if partial { flow.partial() } else { flow.whole() };
        if (170..180).contains(&step.event) {
            *frame.last_mut().expect("never empty") ^= 1;
        }
        frames.push((if partial { flow.descriptor(0) } else { Descriptor::PLAIN }, frame));
        flow.sequence = flow.sequence.wrapping_add(u32::from(step.length));
        flow.identification = flow.identification.wrapping_add(1);
    }
    frames
}

proptest! {
    #[test]
    fn merged_frames_are_complete_unchanged_and_in_the_order_of_each_flow(steps in steps(), bytes_max in 200..65_549usize) {
        let frames = traffic(&steps);
        let out = coalesced(&frames, bytes_max.max(400));
        let mut order: Vec<u32> = Vec::new();
        for (descriptor, frame, numbers) in &out {
            derive(descriptor.to_bytes(), frame, frame.len()).expect("legal");
            if numbers.len() > 1 {
                let as_sent: Vec<_> = numbers.iter().map(|number| &frames[*number as usize]).collect();
                let as_sent: Vec<_> = as_sent.iter().map(|(descriptor, frame)| segments(*descriptor, frame).remove(0)).collect();
                prop_assert_eq!(segments(*descriptor, frame), as_sent);
            }
            order.extend(numbers);
        }
        for flow in 0..20 {
            let of_flow: Vec<_> = order.iter().filter(|number| steps[**number as usize].flow == flow).collect();
            prop_assert!(of_flow.is_sorted());
        }
        order.sort();
        prop_assert_eq!(order.len(), frames.len());
        prop_assert!(order.windows(2).all(|pair| pair[0] < pair[1]));
    }
}

/// Merges a stream of ten segments whose fifth was changed, and returns the number of frames that come out.
fn out_of_ten(change: impl Fn(&mut Packet)) -> usize {
    let mut segments = Packet::tcp(vec![5; 1000]).segments(100);
    change(&mut segments[4]);
    coalesced(&plain(segments.iter().map(Packet::whole).collect()), 65_549).len()
}

/// A change of one packet among others.
type Change = fn(&mut Packet);

#[test]
fn only_exact_successors_are_merged() {
    // Three frames: the segments before, the changed one (with its successors if they fit), and the segments after.
    let changes: [(&str, usize, Change); 20] = [
        ("nothing", 1, |_| ()),
        ("SYN", 3, |packet| packet.flags |= SYN),
        ("PSH", 2, |packet| packet.flags |= PSH),
        ("FIN", 2, |packet| packet.flags |= FIN),
        ("CWR", 2, |packet| packet.flags |= CWR),
        ("ECE", 3, |packet| packet.flags |= 0x40),
        ("no flags", 3, |packet| packet.flags = 0),
        ("the window", 3, |packet| packet.window += 1),
        ("the service", 3, |packet| packet.service = 3),
        ("the hops", 3, |packet| packet.hops -= 1),
        ("the sequence", 3, |packet| packet.sequence += 1),
        ("the identification", 3, |packet| packet.identification += 1),
        ("fragments allowed", 3, |packet| packet.dont_fragment = false),
        ("more options", 3, |packet| packet.option_words += 1),
        ("other options", 3, |packet| packet.option = 2),
        ("the acknowledgement", 3, |packet| packet.acknowledgement += 1),
        ("a tag", 3, |packet| packet.tags.push(0x8100)),
        ("a shorter payload", 2, |packet| packet.payload.truncate(99)),
        ("no payload", 3, |packet| packet.payload.clear()),
        // A frame of another flow is not merged, and the gap in the sequence ends the run.
        ("another flow", 3, |packet| packet.port += 1),
    ];
    for (what, frames, change) in changes {
        assert_eq!(out_of_ten(change), frames, "{what}");
    }
}

/// The number of frames that come out for packets with these identifications.
fn out_of_identified(dont_fragment: bool, identifications: &[u16]) -> usize {
    let all = Packet { dont_fragment, ..Packet::tcp(vec![5; identifications.len() * 100]) };
    let mut packets = all.segments(100);
    packets.iter_mut().zip(identifications).for_each(|(packet, number)| packet.identification = *number);
    coalesced(&plain(packets.iter().map(Packet::whole).collect()), 65_549).len()
}

#[test]
fn repeated_identifications_are_merged_only_where_they_are_unused() {
    assert_eq!(out_of_identified(true, &[0, 0, 0, 0]), 1);
    assert_eq!(out_of_identified(false, &[0, 0, 0, 0]), 4);
    assert_eq!(out_of_identified(true, &[0xFFFF, 0, 1, 2]), 1);
    assert_eq!(out_of_identified(false, &[0xFFFF, 0, 1, 2]), 1);
    // Within a frame, identifications either rise or stay constant.
    assert_eq!(out_of_identified(true, &[5, 6, 5, 5]), 2);
    assert_eq!(out_of_identified(true, &[5, 5, 7, 8]), 2);
}

#[test]
fn flows_with_the_same_ports_are_merged_separately() {
    let one = Packet::tcp(vec![5; 500]).segments(100);
    let frames =
        one.iter().flat_map(|packet| [packet.whole(), Packet { source: 7, ..packet.clone() }.whole()]);
    let out = coalesced(&plain(frames.collect()), 65_549);
    let numbers: Vec<_> = out.into_iter().map(|(.., numbers)| numbers).collect();
    assert_eq!(numbers, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]);
}

#[test]
fn segments_too_short_for_a_kernel_are_not_merged() {
    let out = |bytes: usize| {
        let segments = Packet::tcp(vec![5; bytes * 4]).segments(bytes);
        coalesced(&plain(segments.iter().map(Packet::whole).collect()), 65_549).len()
    };
    assert_eq!((out(7), out(8)), (4, 1));
}

#[test]
fn frames_without_payload_are_one_segment() {
    let empty = Packet::tcp(Vec::new());
    assert_eq!(segments(empty.descriptor(0), &empty.partial()), [empty.whole()]);
    assert_eq!(segments(Descriptor::PLAIN, &[3; 14]), [[3; 14]]);
    assert_eq!(pieces(Descriptor::PLAIN, &[3; 14], 14), Ok(vec![(Descriptor::PLAIN, vec![3; 14])]));
    assert_eq!(pieces(Descriptor::PLAIN, &[3; 14], 13), Err(BadFrame::Uncuttable));
}

/// For one payload in 65,536, the checksum is zero. In UDP, zero means that there is none. In TCP it is an ordinary
/// number.
#[test]
fn a_zero_checksum_is_written_as_ones_in_datagrams_alone() {
    for (packet, expected) in [(Packet::udp(vec![0; 4]), 0xFFFF), (Packet::tcp(vec![0; 16]), 0)] {
        let segment_bytes = packet.payload.len() / 2;
        let field = packet.transport_offset() + packet.checksum_offset();
        let first = packet.segments(segment_bytes)[0].whole();
        let mut packet = packet;
        packet.payload[..2].copy_from_slice(&first[field..field + 2]);
        let segment = &segments(packet.descriptor(segment_bytes as u16), &packet.partial())[0];
        assert_eq!(u16::from_be_bytes([segment[field], segment[field + 1]]), expected);
    }
}

#[test]
fn a_wrong_checksum_is_never_corrected() {
    for at in [14 + 10, 34 + 16, 60] {
        let mut frames: Vec<_> = Packet::tcp(vec![5; 300]).segments(100).iter().map(Packet::whole).collect();
        frames[1][at] ^= 0x10;
        let wrong = frames[1].clone();
        let out = coalesced(&plain(frames), 65_549);
        assert_eq!(out.len(), 3);
        assert_eq!(out[1].1, wrong);
    }
    let packets = Packet::tcp(vec![5; 300]).segments(100);
    let mut frames: Vec<_> = packets.iter().map(|packet| (packet.descriptor(0), packet.partial())).collect();
    assert_eq!(coalesced(&frames, 65_549).len(), 1);
    frames[1].1[34 + 16] ^= 1;
    assert_eq!(coalesced(&frames, 65_549).len(), 3);
    // A datagram whose UDP length ends before its packet, with a matching checksum.
    let mut frames: Vec<_> = Packet::udp(vec![5; 300]).segments(100).iter().map(Packet::whole).collect();
    frames[1][34 + 5] -= 1;
    let checksum = u16::from_be_bytes([frames[1][40], frames[1][41]]);
    frames[1][40..42].copy_from_slice(&checksum.wrapping_add(1).to_be_bytes());
    assert_eq!(coalesced(&plain(frames), 65_549).len(), 3);
}

#[test]
fn a_fragment_flushes_its_flow() {
    let mut frames: Vec<_> = Packet::udp(vec![5; 300]).segments(100).iter().map(Packet::whole).collect();
    let mut fragment = frames[2].clone();
    fragment[14 + 6] = 0x20;
    frames.insert(2, fragment);
    // A frame without an IP packet passes the flow.
    frames.insert(1, [&[0xFF; 12][..], &[8, 6], &[0; 28]].concat());
    let numbers: Vec<_> =
        coalesced(&plain(frames), 65_549).into_iter().map(|(.., numbers)| numbers).collect();
    assert_eq!(numbers, [vec![1], vec![0, 2], vec![3], vec![4]]);
}

#[test]
fn more_flows_than_the_table_holds_are_all_forwarded() {
    let frames: Vec<_> = (0..200u16)
        .map(|index| Packet { port: index % 40, payload: vec![1; 100], ..Packet::udp(Vec::new()) }.whole())
        .collect();
    let mut numbers: Vec<_> =
        coalesced(&plain(frames), 65_549).into_iter().flat_map(|(.., numbers)| numbers).collect();
    numbers.sort();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
}

#[test]
fn a_merged_frame_stays_within_its_bounds() {
    let tcp = Packet::tcp(vec![5; 60_000]);
    let frames = plain(tcp.segments(100).iter().map(Packet::whole).collect());
    let lengths: Vec<_> = coalesced(&frames, 65_549).iter().map(|(.., numbers)| numbers.len()).collect();
    assert_eq!((lengths[0], lengths.len()), (64, 10));
    // The limit of an IP header holds even if the caller allows more.
    let frames = plain(Packet::tcp(vec![5; 65_000]).segments(1400).iter().map(Packet::whole).collect());
    let mut more = Packet { payload: vec![5; 1400], ..Packet::tcp(Vec::new()) };
    more.sequence = more.sequence.wrapping_add(46 * 1400);
    more.identification = more.identification.wrapping_add(46);
    let frames = [&frames[..46], &plain(vec![more.whole()])].concat();
    let lengths: Vec<_> = coalesced(&frames, usize::MAX).iter().map(|(.., numbers)| numbers.len()).collect();
    assert_eq!(lengths, [46, 1]);
}

#[test]
fn packets_that_cannot_be_segmented_are_reported() {
    let packet = Packet::tcp(vec![5; 3000]);
    let headers = packet.payload_offset();
    let cut =
        |descriptor, bytes_max| pieces(descriptor, &packet.partial(), bytes_max).map(|pieces| pieces.len());
    assert_eq!(cut(packet.descriptor(1000), headers + 1000), Ok(3));
    assert_eq!(cut(packet.descriptor(1000), headers + 2999), Ok(2));
    assert_eq!(cut(packet.descriptor(1000), headers + 3000), Ok(1));
    assert_eq!(cut(packet.descriptor(1000), headers + 999), Err(BadFrame::Uncuttable));
    assert_eq!(cut(packet.descriptor(1000), 10), Err(BadFrame::Uncuttable));
    assert_eq!(cut(packet.descriptor(0), headers + 2999), Err(BadFrame::Uncuttable));
    assert_eq!(cut(Descriptor::PLAIN, headers + 3000), Ok(1));
}

#[test]
fn a_routed_pseudo_header_survives_segmentation() {
    // Behind an IPv6 routing header, the checksum covers the last address, which is not in the fixed header.
    let packet = Packet { ipv6: true, ..Packet::tcp(vec![5; 3000]) };
    let mut frame = packet.partial();
    let field = packet.transport_offset() + 16;
    let pseudo = u16::from_be_bytes([frame[field], frame[field + 1]]).wrapping_add(0x0101);
    frame[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    let (ours, due) = (segments(packet.descriptor(1000), &frame), packet.segments(1000));
    assert_eq!((ours.len(), due.len()), (3, 3));
    for (ours, packet) in ours.iter().zip(due) {
        let whole = packet.whole();
        let own = u16::from_be_bytes([whole[field], whole[field + 1]]);
        let routed = packet::naive_sum(&[&(!own).to_be_bytes()[..], &[1, 1]].concat());
        assert_eq!(ours[field..field + 2], (!routed).to_be_bytes());
    }
}
