//! No bytes from a peer, descriptor or frame, produce a frame header that the kernel would refuse or misread. A header
//! from the kernel is restored unchanged.

use bywire_eth::frame::{HEADER_BYTES_MAX, Layout};
use bywire_eth::offload::{Descriptor, VnetHeader, derive, describe};
use bywire_eth::rejection::BadFrame;
use bywire_eth::segment::{Cutter, Segmenter};
use bywire_testing::kernel::{Verdict, verdict};
use proptest::prelude::*;

use crate::packet::{self, Packet, superframes};

/// Derives a header and checks it against the oracle. Returns true if there was a header.
fn hold_to_kernel(descriptor: [u8; 8], frame: &[u8]) -> bool {
    let Ok(header) = derive(descriptor, &frame[..frame.len().min(HEADER_BYTES_MAX)], frame.len()) else {
        return false;
    };
    assert_eq!(derive(descriptor, frame, frame.len()), Ok(header), "more of the frame changes nothing");
    let verdict = verdict(header.to_bytes(), frame);
    let parsed = Descriptor::from_bytes(descriptor).expect("derived from");
    match verdict {
        Verdict::Plain => assert!(!parsed.kind.is_superframe()),
        Verdict::Superframe(segments) => {
            assert!(parsed.kind.is_superframe());
            assert_eq!(Segmenter::new(parsed, frame).expect("derived").count(), segments);
        }
        Verdict::Refused(condition) => panic!("{condition}: {header:?} of {parsed:?}"),
    }
    // There is only one descriptor for a header: the header leads back to the descriptor.
    assert_eq!(describe(header, frame), Ok(parsed));
    true
}

proptest! {
    #[test]
    fn a_kernels_packets_get_their_own_header_back((packet, segment_bytes) in superframes()) {
        let frame = packet.partial();
        for segment_bytes in [segment_bytes, 0] {
            let header = packet.vnet(segment_bytes);
            let descriptor = describe(header, &frame);
            prop_assert_eq!(descriptor, Ok(packet.descriptor(segment_bytes)));
            let bytes = packet.descriptor(segment_bytes).to_bytes();
            prop_assert_eq!(derive(bytes, &frame, frame.len()), Ok(header));
            prop_assert!(hold_to_kernel(bytes, &frame));
        }
    }

    #[test]
    fn arbitrary_bytes_give_no_illegal_header(descriptor: [u8; 8], frame in prop::collection::vec(any::<u8>(), 0..400)) {
        hold_to_kernel(descriptor, &frame);
    }

    #[test]
    fn damaged_superframes_give_no_illegal_header(
        (packet, segment_bytes) in superframes(),
        damage in prop::collection::vec((0..96usize, any::<u8>()), 1..4),
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut frame = packet.partial();
        let mut descriptor = packet.descriptor(segment_bytes).to_bytes();
        for (place, byte) in damage {
            // The first eight places are the descriptor's, which is small.
            match place.checked_sub(8) {
                None => descriptor[place] ^= byte,
                Some(place) => frame[(12 + place).min(packet.payload_offset())] ^= byte,
            }
        }
        if let Some(length) = length {
            frame.truncate(length.index(frame.len()));
        }
        hold_to_kernel(descriptor, &frame);
    }

    #[test]
    fn a_kernel_header_is_accepted_only_if_it_matches_the_frame(
        (packet, segment_bytes) in superframes(),
        header: [u8; 10],
        kept in any::<u16>(),
    ) {
        let frame = packet.partial();
        let mut bytes = packet.vnet(segment_bytes).to_bytes();
        for (index, (byte, other)) in bytes.iter_mut().zip(header).enumerate() {
            if kept & 0x421 << (index % 5) == 0 {
                *byte = other;
            }
        }
        if let Ok(descriptor) = describe(VnetHeader::from_bytes(bytes), &frame) {
            prop_assert!(hold_to_kernel(descriptor.to_bytes(), &frame));
        }
    }
}

fn examples() -> Vec<(Packet, u16)> {
    let payload: Vec<u8> = (0..3000u32).map(|index| index as u8).collect();
    let mut packets = Vec::new();
    for (ipv6, tcp, tags, extension_words) in [
        (false, true, vec![], 0),
        (true, true, vec![0x8100], 2),
        (false, false, vec![0x88A8, 0x8100], 3),
        (true, false, vec![], 0),
    ] {
        packets.push((Packet { ipv6, tcp, tags, extension_words, ..Packet::tcp(payload.clone()) }, 1000));
    }
    packets
}

#[test]
fn frames_truncated_anywhere_are_refused_or_valid() {
    for (packet, segment_bytes) in examples() {
        let frame = packet.partial();
        let superframe = packet.descriptor(segment_bytes);
        for length in 0..frame.len() {
            let cut = &frame[..length];
            assert!(derive(superframe.to_bytes(), cut, length).is_err(), "{length}");
            assert!(
                Segmenter::new(superframe, cut).is_err()
                    && Cutter::new(superframe, cut, length, 1500).is_err()
            );
            assert!(
                derive(packet.descriptor(0).to_bytes(), cut, length).is_err(),
                "the packet is longer: {length}"
            );
            assert_eq!(hold_to_kernel(Descriptor::PLAIN.to_bytes(), cut), length >= 14);
            assert_eq!(Layout::parse(cut).is_ok(), length >= 14);
        }
    }
}

#[test]
fn headers_shorter_than_the_frames_are_refused() {
    let (packet, segment_bytes) = examples().remove(0);
    let frame = packet.partial();
    let descriptor = packet.descriptor(segment_bytes).to_bytes();
    assert_eq!(derive(descriptor, &frame[..HEADER_BYTES_MAX - 1], frame.len()), Err(BadFrame::Length));
    assert_eq!(derive(descriptor, &frame, frame.len() - 1), Err(BadFrame::Length));
    assert_eq!(derive([0; 8], &frame, frame.len() - 1), Err(BadFrame::Length));
}

/// A change that makes a valid superframe or its descriptor invalid.
type Change<'a> = &'a dyn Fn(&mut Packet, &mut Vec<u8>, &mut [u8; 8]);

/// Every cause that a peer can bring about, each by one change.
#[test]
fn each_false_field_is_refused_with_its_cause() {
    let lie = |change: Change<'_>| {
        let mut packet = Packet::tcp(vec![7; 3000]);
        let mut descriptor = packet.descriptor(1000).to_bytes();
        let mut frame = packet.partial();
        change(&mut packet, &mut frame, &mut descriptor);
        assert!(!hold_to_kernel(descriptor, &frame));
        derive(descriptor, &frame, frame.len()).expect_err("a lie")
    };
    assert_eq!(lie(&|_, frame, _| frame.truncate(13)), BadFrame::Runt);
    assert_eq!(lie(&|_, frame, _| frame.resize(65_601, 0)), BadFrame::Oversize);
    assert_eq!(lie(&|_, _, descriptor| descriptor[0] = 5), BadFrame::Descriptor);
    assert_eq!(lie(&|_, _, descriptor| descriptor[1] = 2), BadFrame::Descriptor);
    assert_eq!(lie(&|_, _, descriptor| descriptor[7] = 1), BadFrame::Descriptor);
    assert_eq!(lie(&|_, _, descriptor| descriptor[0] = 0), BadFrame::Descriptor);
    assert_eq!(lie(&|_, _, descriptor| descriptor[0] = 1), BadFrame::Descriptor);
    assert_eq!(lie(&|_, _, descriptor| descriptor[0] = 3), BadFrame::Protocol);
    assert_eq!(lie(&|_, _, descriptor| descriptor[0] = 4), BadFrame::Protocol);
    assert_eq!(lie(&|_, _, descriptor| descriptor[1] = 1), BadFrame::Congestion);
    assert_eq!(lie(&|_, _, descriptor| descriptor[2..4].fill(0)), BadFrame::SegmentSize);
    assert_eq!(lie(&|_, _, descriptor| descriptor[2..4].fill(0xFF)), BadFrame::SegmentSize);
    assert_eq!(lie(&|_, _, descriptor| descriptor[2..4].copy_from_slice(&[7, 0])), BadFrame::SegmentSize);
    assert_eq!(
        lie(&|_, _, descriptor| descriptor[2..4].copy_from_slice(&3000u16.to_le_bytes())),
        BadFrame::SegmentSize
    );
    assert_eq!(lie(&|_, _, descriptor| descriptor[5] += 4), BadFrame::Offsets);
    assert_eq!(lie(&|_, frame, _| frame[14 + 9] = 1), BadFrame::Transport);
    assert_eq!(lie(&|_, frame, _| frame[14 + 6] = 0x20), BadFrame::Transport);
    assert_eq!(lie(&|_, frame, _| frame[34 + 12] = 0x40), BadFrame::Transport);
    assert_eq!(lie(&|_, frame, _| frame.push(0)), BadFrame::Length);
    let many = |packet: &mut Packet, frame: &mut Vec<u8>, descriptor: &mut [u8; 8]| {
        *packet = Packet::udp(vec![7; 1281]);
        *frame = packet.partial();
        *descriptor = packet.descriptor(10).to_bytes();
    };
    assert_eq!(lie(&many), BadFrame::SegmentCount);
    let longer = |packet: &mut Packet, frame: &mut Vec<u8>, descriptor: &mut [u8; 8]| {
        many(packet, frame, descriptor);
        descriptor[2] = 100;
        frame[34 + 5] += 1;
    };
    assert_eq!(lie(&longer), BadFrame::Length);
}

#[test]
fn offloads_that_were_not_requested_are_refused() {
    let packet = Packet::udp(vec![7; 3000]);
    let frame = packet.partial();
    let told = packet.vnet(1000);
    let refused = |header: VnetHeader| describe(header, &frame).expect_err("not asked for");
    assert_eq!(refused(VnetHeader { gso_type: 3, ..told }), BadFrame::Kind);
    assert_eq!(refused(VnetHeader { gso_type: 0x45, ..told }), BadFrame::Kind);
    assert_eq!(refused(VnetHeader { flags: 4, ..told }), BadFrame::Flags);
    assert_eq!(refused(VnetHeader { flags: 0, ..told }), BadFrame::Flags);
    assert_eq!(refused(VnetHeader { checksum_offset: 16, ..told }), BadFrame::Offsets);
    assert_eq!(refused(VnetHeader { checksum_start: 38, ..told }), BadFrame::Offsets);
    // The kernel's hints are neither trusted nor needed.
    let vague = VnetHeader { header_bytes: 9999, flags: 3, ..told };
    assert_eq!(describe(vague, &frame), Ok(packet.descriptor(1000)));
    // A superframe of one segment is a plain frame, also without a congestion mark.
    assert_eq!(describe(VnetHeader { segment_bytes: 3000, ..told }, &frame), Ok(packet.descriptor(0)));
    let marked = Packet { flags: packet::ACK | packet::CWR, ..Packet::tcp(vec![7; 3000]) };
    assert_eq!(describe(marked.vnet(3000), &marked.partial()), Ok(marked.descriptor(0)));
    // The most datagrams that a kernel accepts.
    let full = Packet::udp(vec![7; 1280]);
    assert!(hold_to_kernel(full.descriptor(10).to_bytes(), &full.partial()));
}

#[test]
fn padded_and_verified_frames_are_accepted() {
    let packet = Packet { option_words: 0, ..Packet::tcp(vec![1, 2]) };
    let mut frame = packet.partial();
    frame.resize(60, 0);
    assert!(hold_to_kernel(packet.descriptor(0).to_bytes(), &frame));
    let verified = VnetHeader { flags: 2, ..VnetHeader::default() };
    assert_eq!(describe(verified, &packet.whole()), Ok(Descriptor::PLAIN));
    assert_eq!(derive([0; 8], &packet.whole(), packet.whole().len()), Ok(VnetHeader::default()));
}
