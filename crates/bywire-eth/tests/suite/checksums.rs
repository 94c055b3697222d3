//! Checksums agree with their definition, word by word.

use bywire_eth::checksum::{Sum, checksum, complete, verify};
use bywire_eth::frame::Layout;
use bywire_eth::offload::VnetHeader;
use bywire_eth::rejection::BadFrame;
use proptest::prelude::*;

use crate::packet::{Packet, naive_sum, superframes};

/// True if both are the same number: zero and 0xFFFF are equal here.
fn same(one: u16, other: u16) -> bool {
    one == other || (one.wrapping_add(1) <= 1 && other.wrapping_add(1) <= 1)
}

#[test]
fn every_length_and_alignment_agrees_with_the_definition() {
    let bytes: Vec<u8> = (0..700u32).map(|index| (index.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    for start in 0..8 {
        for end in start..bytes.len() {
            let (fast, slow) = (Sum::of(&bytes[start..end]).folded(), naive_sum(&bytes[start..end]));
            assert_eq!(fast, slow, "{start}..{end}");
        }
    }
}

#[test]
fn the_largest_words_do_not_overflow() {
    let ones = vec![0xFF; 70_000];
    assert_eq!(Sum::of(&ones).folded(), 0xFFFF);
    let mut sum = Sum::default();
    for _ in 0..100_000 {
        sum = sum.plus(Sum::of(&ones[..64]));
    }
    assert_eq!(sum.folded(), 0xFFFF);
    // RFC 1071, section 3.
    assert_eq!(checksum(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]), !0xDDF2);
}

proptest! {
    #[test]
    fn parts_and_words_add_up(bytes in prop::collection::vec(any::<u8>(), 0..300), words: Vec<u16>, cut: prop::sample::Index) {
        let cut = cut.index(bytes.len() + 1) & !1;
        let mut sum = Sum::of(&bytes[..cut]).plus(Sum::of(&bytes[cut..]));
        let mut all = bytes;
        all.resize(all.len().next_multiple_of(2), 0);
        let before = naive_sum(&all);
        for word in &words {
            sum = sum.plus_word(*word);
            all.extend(word.to_be_bytes());
        }
        prop_assert!(same(sum.folded(), naive_sum(&all)));
        for word in &words {
            sum = sum.minus_word(*word);
        }
        prop_assert!(same(sum.folded(), before));
    }

    #[test]
    fn a_partial_checksum_is_completed_correctly((packet, _) in superframes(), place: prop::sample::Index, bit in 0..8) {
        let mut frame = packet.partial();
        complete(packet.vnet(0), &mut frame).expect("inside");
        let whole = packet.whole();
        let field = packet.transport_offset() + packet.checksum_offset();
        prop_assert!(same(u16::from_be_bytes([frame[field], frame[field + 1]]), u16::from_be_bytes([whole[field], whole[field + 1]])));
        frame[field..field + 2].copy_from_slice(&whole[field..field + 2]);
        prop_assert_eq!(&frame, &whole);
        let layout = Layout::parse(&whole).expect("a frame");
        prop_assert_eq!(verify(&whole, &layout), packet.extension_words == 0);
        // Flip one bit anywhere in the segment.
        let place = packet.transport_offset() + place.index(frame.len() - packet.transport_offset());
        frame[place] ^= 1u8 << bit;
        prop_assert!(!verify(&frame, &layout));
    }
}

#[test]
fn only_partial_checksums_of_plain_frames_are_completed() {
    let packet = Packet::udp(vec![1, 2, 3]);
    let mut frame = packet.whole();
    complete(VnetHeader::default(), &mut frame).expect("nothing to do");
    assert_eq!(frame, packet.whole());
    assert_eq!(complete(packet.vnet(1), &mut frame), Err(BadFrame::Kind));
    for (checksum_start, checksum_offset) in [(60_000, 6), (34, 60_000), (34, 10), (frame.len() as u16, 0)] {
        let header = VnetHeader { checksum_start, checksum_offset, ..packet.vnet(0) };
        assert_eq!(complete(header, &mut frame), Err(BadFrame::Offsets));
    }
    assert_eq!(frame, packet.whole());
}

#[test]
fn a_datagram_without_a_checksum_is_not_verified() {
    let packet = Packet::udp(vec![1, 2, 3]);
    let mut frame = packet.whole();
    frame[40..42].fill(0);
    assert!(!verify(&frame, &Layout::parse(&frame).expect("a frame")));
}

/// For one payload in 65,536, the datagram's checksum would be zero, which in UDP means that there is none.
#[test]
fn a_zero_checksum_of_a_datagram_is_written_as_ones() {
    let packet = Packet::udp(vec![0, 0]);
    let missing = u16::from_be_bytes([packet.whole()[40], packet.whole()[41]]);
    let packet = Packet { payload: missing.to_be_bytes().to_vec(), ..packet };
    let mut frame = packet.partial();
    complete(packet.vnet(0), &mut frame).expect("inside");
    assert_eq!(frame[40..42], [0xFF, 0xFF]);
    assert!(verify(&frame, &Layout::parse(&frame).expect("a frame")));
}
