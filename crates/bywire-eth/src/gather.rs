//! Reads frames from an interface, a burst at a time, and merges consecutive frames of one flow into superframes, as
//! if the kernel had delivered superframes.
//!
//! Kernels do this themselves, except when it is switched off, or for datagrams that a program sends one by one.
//! Every later step then handles one frame, with one system call, instead of dozens. Merging delays nothing: as soon
//! as the interface has no more frames, all held frames are passed on.

use std::cell::Cell;

use bywire_sys::Errno;
use bywire_sys::tap::Queue;

use crate::address::MacAddress;
use crate::coalesce::{Coalescer, Ready};
use crate::frame::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use crate::offload::{self, Descriptor, VnetHeader};
use crate::rtnetlink::SUPERFRAME_BYTES_MAX;

/// Frames read from one interface before the next interface has its turn.
pub const BATCH_FRAMES: usize = 64;
/// Space for one header and frame.
const PLACE_BYTES: usize = VnetHeader::BYTES + FRAME_BYTES_MAX;
/// The longest frame that is merged. Merging saves system calls and costs one more copy of every byte.
pub const MERGED_BYTES_MAX: usize = 16 * 1024;

/// How reading a burst ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// There may be more frames.
    Some,
    /// There are no more frames.
    All,
    /// The device is gone.
    Vanished,
}

/// Memory for a burst.
#[derive(Debug)]
pub struct Gatherer {
    coalescer: Coalescer,
    burst: Burst,
    /// The packet that is passed on.
    whole: Box<[u8]>,
}

/// Headers and frames, each in its own place until it is passed on.
#[derive(Debug)]
struct Burst {
    places: Vec<Box<[u8]>>,
    lengths: [usize; BATCH_FRAMES],
}

impl Default for Gatherer {
    /// Allocates all the memory that is ever needed.
    fn default() -> Self {
        let place = || -> Box<[u8]> { vec![0; PLACE_BYTES].into() };
        let places = (0..BATCH_FRAMES).map(|_| place()).collect();
        let burst = Burst { places, lengths: [0; BATCH_FRAMES] };
        Self { coalescer: Coalescer::new(SUPERFRAME_BYTES_MAX as usize), burst, whole: place() }
    }
}

impl Gatherer {
    /// Switches the merging of datagrams on or off. If no kernel accepts UDP superframes, they would only be cut
    /// again.
    pub fn merge_datagrams(&mut self, is_wanted: bool) {
        self.coalescer.merge_datagrams(is_wanted);
    }

    /// Reads at most `frames_max` frames from a queue, and passes each header and frame, merged or not, to `carry`.
    /// When `carry` returns `false`, no more frames are read, and the held frames are passed on. A truncated frame
    /// has the full length of its buffer.
    pub fn take(
        &mut self,
        queue: &Queue,
        frames_max: usize,
        mut carry: impl FnMut(&mut [u8]) -> bool,
    ) -> Taken {
        let Self { coalescer, burst, whole } = self;
        let mut taken = Taken::Some;
        let goes_on = Cell::new(true);
        let mut carry = |packet: &mut [u8]| goes_on.set(carry(packet) && goes_on.get());
        // While nothing is held, the first place is reused, so that it stays in the processor's cache.
        let mut number = 0;
        for _ in 0..frames_max.min(BATCH_FRAMES) {
            if !goes_on.get() {
                break;
            }
            let length = match queue.read(&mut burst.places[number]) {
                Ok(length) if length > 0 => length,
                Err(Errno::AGAIN | Errno::INTR) => {
                    taken = Taken::All;
                    break;
                }
                _ => {
                    taken = Taken::Vanished;
                    break;
                }
            };
            burst.lengths[number] = length;
            match burst.mergeable(number).filter(|_| frames_max > 1) {
                Some((descriptor, frame)) => {
                    coalescer
                        .push(number as u32, descriptor, frame, |ready| burst.give(ready, whole, &mut carry));
                }
                None => {
                    // It may belong to a held flow.
                    coalescer.flush(|ready| burst.give(ready, whole, &mut carry));
                    carry(&mut burst.places[number][..length]);
                }
            }
            number = if coalescer.is_empty() { 0 } else { number + 1 };
        }
        coalescer.flush(|ready| burst.give(ready, whole, &mut carry));
        taken
    }
}

impl Burst {
    fn packet(&self, number: usize) -> &[u8] {
        &self.places[number][..self.lengths[number]]
    }

    /// A frame that may become a part of a superframe, with its descriptor. Superframes and long frames are excluded.
    /// So are frames to group addresses, because each counts against the storm limit.
    fn mergeable(&self, number: usize) -> Option<(Descriptor, &[u8])> {
        let (header, frame) = self.packet(number).split_first_chunk()?;
        let header = VnetHeader::from_bytes(*header);
        let is_single = header.gso_type == offload::GSO_NONE
            && frame.len() <= MERGED_BYTES_MAX
            && MacAddress::target_of(frame).is_some_and(|target| !target.is_multicast());
        let descriptor = is_single.then(|| offload::describe(header, frame))?.ok()?;
        Some((descriptor, frame))
    }

    /// Assembles the packet that is passed on.
    fn give(&self, ready: Ready<'_>, whole: &mut [u8], carry: &mut impl FnMut(&mut [u8])) {
        match ready {
            Ready::Whole(number, _) => {
                let packet = self.packet(number as usize);
                whole[..packet.len()].copy_from_slice(packet);
                carry(&mut whole[..packet.len()]);
            }
            Ready::Merged { headers, parts, descriptor } => {
                let mut length = VnetHeader::BYTES + headers.len();
                whole[VnetHeader::BYTES..length].copy_from_slice(headers);
                for part in parts {
                    let frame = &self.packet(part.frame as usize)[VnetHeader::BYTES..];
                    let payload = &frame[part.payload.clone()];
                    whole[length..length + payload.len()].copy_from_slice(payload);
                    length += payload.len();
                }
                let (kernels, frame) = whole[..length].split_at_mut(VnetHeader::BYTES);
                match offload::derive(
                    descriptor.to_bytes(),
                    &frame[..frame.len().min(HEADER_BYTES_MAX)],
                    frame.len(),
                ) {
                    Ok(header) => {
                        kernels.copy_from_slice(&header.to_bytes());
                        carry(&mut whole[..length]);
                    }
                    // This should not happen. Then each frame is passed on alone.
                    Err(_) => parts
                        .iter()
                        .for_each(|part| self.give(Ready::Whole(part.frame, descriptor), whole, carry)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bywire_sys::socket::Socket;

    use super::*;
    use crate::merge::tests::superframe;
    use crate::segment::Segmenter;

    /// Segments of a TCP stream, 100 bytes each except the last, as a kernel delivers them: headers first.
    fn segments() -> Vec<Vec<u8>> {
        let (descriptor, frame) = superframe();
        cut(descriptor, &frame)
    }

    fn cut(descriptor: Descriptor, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut segmenter = Segmenter::new(descriptor, frame).expect("a superframe");
        let mut segments = Vec::new();
        while let Some(segment) = segmenter.next_segment() {
            segments.push([&[0; VnetHeader::BYTES], segment.headers, segment.payload].concat());
        }
        segments
    }

    /// How the reading of a burst ends, and the packets that are passed on.
    fn taken(packets: &[Vec<u8>], frames_max: usize) -> (Taken, Vec<Vec<u8>>) {
        let (ours, kernels) = Socket::pair().expect("a pair");
        packets.iter().for_each(|packet| kernels.send(packet, &[]).expect("sent"));
        let queue = Queue::from_descriptor(ours.into());
        let mut carried = Vec::new();
        let taken = Gatherer::default().take(&queue, frames_max, |packet| {
            carried.push(packet.to_vec());
            true
        });
        (taken, carried)
    }

    #[test]
    fn a_burst_of_one_flow_is_merged_into_one_frame() {
        let (all, carried) = taken(&segments(), BATCH_FRAMES);
        assert_eq!((all, carried.len()), (Taken::All, 1));
        let (header, frame) = carried[0].split_first_chunk().expect("a header");
        let header = VnetHeader::from_bytes(*header);
        assert_eq!((header.gso_type, header.segment_bytes), (offload::GSO_TCPV4, 100));
        let descriptor = offload::describe(header, frame).expect("what a kernel could have said");
        assert_eq!(cut(descriptor, frame), segments());
    }

    #[test]
    fn frames_that_cannot_be_merged_keep_their_order() {
        let stranger = [&[0; VnetHeader::BYTES][..], &[4; 12], &[8, 6, 1, 2, 3]].concat();
        let mut burst = segments();
        burst.insert(1, stranger.clone());
        burst.insert(3, vec![1; 3]);
        let (all, carried) = taken(&burst, BATCH_FRAMES);
        assert_eq!((all, carried.len()), (Taken::All, 4));
        assert_eq!(carried[0], stranger, "no flow's: it waits for nobody");
        assert_eq!(carried[1].len(), VnetHeader::BYTES + 54 + 200);
        assert_eq!(carried[2..], [vec![1; 3], segments()[2].clone()]);
    }

    #[test]
    fn multicast_frames_are_not_merged() {
        let mut burst = segments();
        burst.iter_mut().for_each(|packet| packet[VnetHeader::BYTES] |= 1);
        assert_eq!(taken(&burst, BATCH_FRAMES), (Taken::All, burst));
    }

    #[test]
    fn the_padding_after_a_packet_is_kept() {
        let mut burst = segments();
        burst.iter_mut().for_each(|packet| packet.extend([0; 6]));
        assert_eq!(taken(&burst, BATCH_FRAMES), (Taken::All, burst));
    }

    #[test]
    fn a_single_frame_is_unchanged() {
        let (some, carried) = taken(&segments(), 1);
        assert_eq!((some, carried), (Taken::Some, segments()[..1].to_vec()));
    }

    #[test]
    fn frames_read_from_a_removed_device_are_forwarded() {
        let (ours, kernels) = Socket::pair().expect("a pair");
        kernels.send(&segments()[0], &[]).expect("sent");
        // A child process of a parallel test may hold a copy of this descriptor until it calls `exec`.
        kernels.shut_down();
        let mut carried = 0;
        let taken = Gatherer::default().take(&Queue::from_descriptor(ours.into()), 64, |_| {
            carried += 1;
            true
        });
        assert_eq!((taken, carried), (Taken::Vanished, 1));
    }
}
