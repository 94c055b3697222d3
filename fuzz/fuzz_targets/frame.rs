//! Any bytes, as descriptor, kernel's header and frame, are refused or give what the kernel takes.
#![no_main]

use bywire_eth::checksum::{complete, verify};
use bywire_eth::claims::{CLAIMS_MAX, Claims};
use bywire_eth::frame::{HEADER_BYTES_MAX, Layout};
use bywire_eth::offload::{Descriptor, VnetHeader, derive, describe};
use bywire_eth::segment::{Cutter, Segmenter};
use bywire_testing::kernel::{Verdict, verdict};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((descriptor, rest)) = bytes.split_first_chunk() else { return };
    let Some((header, frame)) = rest.split_first_chunk() else { return };
    receive(*descriptor, frame);
    send(VnetHeader::from_bytes(*header), frame);
    claim(frame);
});

/// A tag that Linux strips hides nothing.
fn claim(frame: &[u8]) {
    let claims = Claims::of(frame).map(|claims| claims.ips().to_vec());
    assert!(claims.as_ref().map_or(0, Vec::len) <= CLAIMS_MAX);
    let Some((addresses, rest)) = frame.split_at_checked(12) else { return };
    let tagged = [addresses, &[0x81, 0, 0, 0], rest].concat();
    if let Ok(tagged) = Claims::of(&tagged) {
        assert_eq!(claims.as_deref(), Ok(tagged.ips()));
    }
}

fn receive(descriptor: [u8; 8], frame: &[u8]) {
    let headers = &frame[..frame.len().min(HEADER_BYTES_MAX)];
    let derived = derive(descriptor, headers, frame.len());
    let Ok(descriptor) = Descriptor::from_bytes(descriptor) else { return assert!(derived.is_err()) };
    let segmenter = Segmenter::new(descriptor, frame);
    assert_eq!(derived.err(), segmenter.as_ref().err().copied());
    let (Ok(header), Ok(segmenter)) = (derived, segmenter) else { return };
    match verdict(header.to_bytes(), frame) {
        Verdict::Plain => assert_eq!(segmenter.count(), 1),
        Verdict::Superframe(segments) => assert_eq!(segmenter.count(), segments),
        Verdict::Refused(condition) => panic!("{condition}"),
    }
    assert_eq!(describe(header, frame), Ok(descriptor));
    segment(segmenter, descriptor, frame);
    for bytes_max in [128, 1514, 9014, 65_600] {
        cut(descriptor, frame, bytes_max);
    }
}

fn segment(mut segmenter: Segmenter<'_>, descriptor: Descriptor, frame: &[u8]) {
    let mut payload = Vec::new();
    let mut buffer = [0; 65_600];
    let mut right = None;
    while let Some(segment) = segmenter.next_segment() {
        let bytes = segment.write(&mut buffer).expect("no longer than the frame");
        payload.extend_from_slice(segment.payload);
        let layout = Layout::parse(&buffer[..bytes]).expect("a frame");
        if descriptor.kind.is_superframe() {
            assert_eq!(layout.packet_end, bytes);
            assert!(segment.payload.len() <= usize::from(descriptor.segment_bytes));
            // A wrong pseudo-header makes all of them wrong, a right one none.
            let all = *right.get_or_insert(verify(&buffer[..bytes], &layout));
            assert_eq!(verify(&buffer[..bytes], &layout), all);
        }
    }
    assert!(frame.ends_with(&payload));
}

fn cut(descriptor: Descriptor, frame: &[u8], bytes_max: usize) {
    let headers = &frame[..frame.len().min(HEADER_BYTES_MAX)];
    let Ok(mut cutter) = Cutter::new(descriptor, headers, frame.len(), bytes_max) else { return };
    let mut next = None;
    while let Some(piece) = cutter.next_piece() {
        assert_eq!(*next.get_or_insert(piece.payload.start), piece.payload.start);
        next = Some(piece.payload.end);
        let bytes = [piece.headers, &frame[piece.payload]].concat();
        assert!(bytes.len() <= bytes_max);
        derive(piece.descriptor.to_bytes(), &bytes, bytes.len()).expect("legal");
    }
    assert_eq!(next, Some(frame.len()));
}

fn send(header: VnetHeader, frame: &[u8]) {
    let mut completed = frame.to_vec();
    if complete(header, &mut completed).is_ok() {
        assert_eq!(completed.len(), frame.len());
    }
    if let Ok(descriptor) = describe(header, frame) {
        receive(descriptor.to_bytes(), frame);
    }
}
