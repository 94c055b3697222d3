//! Frames from another machine, merged into superframes before they are written to an interface.
//!
//! A superframe crosses the network in datagrams of one packet each. Those that arrive together are merged again, so
//! that the kernel takes them by one system call. Merging delays nothing: a turn of the loop ends with a flush.

use crate::address::MacAddress;
use crate::coalesce::{Coalescer, Ready};
use crate::fabric::Arrival;
use crate::frame::FRAME_BYTES_MAX;
use crate::gather::{BATCH_FRAMES, MERGED_BYTES_MAX};
use crate::offload::Descriptor;
use crate::rtnetlink::SUPERFRAME_BYTES_MAX;
use crate::switch::SwitchPortId;

/// Frames of one peer that may be merged.
#[derive(Debug)]
pub struct Merger {
    coalescer: Coalescer,
    /// Frames that are held, and those that were passed on since the last call of [`Merger::taken`].
    held: Vec<Arrival>,
    /// The switch port of the held frames.
    port: SwitchPortId,
    /// The superframe that is passed on, behind its descriptor.
    whole: Box<[u8]>,
}

impl Default for Merger {
    /// Allocates the memory that most turns need, besides the frames themselves.
    fn default() -> Self {
        Self {
            coalescer: Coalescer::new(SUPERFRAME_BYTES_MAX as usize),
            held: Vec::with_capacity(BATCH_FRAMES),
            port: 0,
            whole: vec![0; Descriptor::BYTES + FRAME_BYTES_MAX].into(),
        }
    }
}

impl Merger {
    /// Takes a frame, and passes each frame that can wait no longer to `carry`: the switch port it came from, and its
    /// descriptor with the frame behind it. A frame that is passed on at once is returned for its memory.
    pub fn push(&mut self, arrival: Arrival, mut carry: impl FnMut(SwitchPortId, &[u8])) -> Option<Arrival> {
        // Frames of several peers are not merged, whatever their headers say.
        if self.port != arrival.port {
            self.flush(&mut carry);
            self.port = arrival.port;
        }
        let Some(descriptor) = mergeable(&arrival.content) else {
            // It may belong to a flow that is held.
            self.flush(&mut carry);
            carry(arrival.port, &arrival.content);
            return Some(arrival);
        };
        let Self { coalescer, held, whole, .. } = self;
        let number = held.len();
        held.push(arrival);
        let frame = &held[number].content[Descriptor::BYTES..];
        coalescer.push(number as u32, descriptor, frame, |ready| give(ready, held, whole, &mut carry));
        None
    }

    /// Passes on everything that is held.
    pub fn flush(&mut self, mut carry: impl FnMut(SwitchPortId, &[u8])) {
        let Self { coalescer, held, whole, .. } = self;
        coalescer.flush(|ready| give(ready, held, whole, &mut carry));
    }

    /// The frames that were passed on since the last call, for their memory. Call it after [`Self::flush`].
    pub fn taken(&mut self) -> impl Iterator<Item = Arrival> + '_ {
        self.held.drain(..)
    }
}

/// The descriptor of a frame that may become a part of a superframe. Frames to group addresses are excluded, because
/// each counts against the storm limit.
fn mergeable(content: &[u8]) -> Option<Descriptor> {
    let (descriptor, frame) = content.split_first_chunk()?;
    let descriptor = Descriptor::from_bytes(*descriptor).ok()?;
    let is_single = !descriptor.kind.is_superframe()
        && frame.len() <= MERGED_BYTES_MAX
        && MacAddress::target_of(frame).is_some_and(|target| !target.is_multicast());
    (is_single && descriptor.check(frame, frame.len()).is_ok()).then_some(descriptor)
}

fn give(ready: Ready<'_>, held: &[Arrival], whole: &mut [u8], carry: &mut impl FnMut(SwitchPortId, &[u8])) {
    match ready {
        Ready::Whole(number, _) => {
            let arrival = &held[number as usize];
            carry(arrival.port, &arrival.content);
        }
        Ready::Merged { headers, parts, descriptor } => {
            let Some(first) = parts.first() else { return };
            let mut length = Descriptor::BYTES + headers.len();
            whole[..Descriptor::BYTES].copy_from_slice(&descriptor.to_bytes());
            whole[Descriptor::BYTES..length].copy_from_slice(headers);
            for part in parts {
                let frame = &held[part.frame as usize].content[Descriptor::BYTES..];
                let payload = &frame[part.payload.clone()];
                whole[length..length + payload.len()].copy_from_slice(payload);
                length += payload.len();
            }
            carry(held[first.frame as usize].port, &whole[..length]);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::checksum::pseudo_header;
    use crate::fabric::Content;
    use crate::frame::Layout;
    use crate::offload::Kind;
    use crate::segment::Cutter;

    /// A superframe of three TCP segments, and its descriptor.
    pub(crate) fn superframe() -> (Descriptor, Vec<u8>) {
        let mut frame = [&[2; 12][..], &[8, 0, 0x45, 0]].concat();
        frame.extend((20 + 20 + 250u16).to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = crate::checksum::checksum(&frame[14..34]).to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
        frame.extend([0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        frame.extend([7; 250]);
        let layout = Layout::parse(&frame).expect("a frame");
        let partial = pseudo_header(&frame, &layout, 270).expect("a packet").folded();
        frame[50..52].copy_from_slice(&partial.to_be_bytes());
        let descriptor = Descriptor {
            kind: Kind::TcpIpv4,
            congestion: false,
            segment_bytes: 100,
            network_offset: 14,
            transport_offset: 34,
        };
        (descriptor, frame)
    }

    /// The datagrams of that superframe on the network.
    fn datagrams() -> Vec<Vec<u8>> {
        let (descriptor, frame) = superframe();
        let mut cutter = Cutter::new(descriptor, &frame, frame.len(), 54 + 100).expect("a superframe");
        let mut datagrams = Vec::new();
        while let Some(piece) = cutter.next_piece() {
            datagrams.push(
                [&piece.descriptor.to_bytes()[..], piece.headers, &frame[piece.payload.clone()]].concat(),
            );
        }
        datagrams
    }

    fn carried(arrivals: impl IntoIterator<Item = (SwitchPortId, Vec<u8>)>) -> Vec<(SwitchPortId, Vec<u8>)> {
        let (mut merger, mut carried, mut count) = (Merger::default(), Vec::new(), 0usize);
        for (port, bytes) in arrivals {
            count += 1;
            let arrival = Arrival { port, content: Content::Joined(bytes) };
            let passed = merger.push(arrival, |port, content| carried.push((port, content.to_vec())));
            count -= usize::from(passed.is_some());
        }
        merger.flush(|port, content| carried.push((port, content.to_vec())));
        assert_eq!(merger.taken().count(), count, "no memory is lost");
        carried
    }

    #[test]
    fn segments_that_arrive_together_become_the_superframe_again() {
        let (descriptor, frame) = superframe();
        let datagrams = datagrams();
        assert_eq!(datagrams.len(), 3);
        let all = carried(datagrams.into_iter().map(|datagram| (1, datagram)));
        assert_eq!(all, [(1, [&descriptor.to_bytes()[..], &frame].concat())]);
    }

    #[test]
    fn a_lost_segment_costs_no_other() {
        let datagrams = datagrams();
        let all = carried([datagrams[0].clone(), datagrams[2].clone()].map(|datagram| (1, datagram)));
        assert_eq!(all, [(1, datagrams[0].clone()), (1, datagrams[2].clone())]);
    }

    #[test]
    fn frames_of_two_peers_are_not_merged() {
        let datagrams = datagrams();
        let all: Vec<_> = [1, 3, 1].into_iter().zip(datagrams).collect();
        assert_eq!(carried(all.clone()), all);
    }

    #[test]
    fn anything_else_passes_unchanged_and_in_order() {
        let [one, two, three] = <[Vec<u8>; 3]>::try_from(datagrams()).expect("three");
        let (descriptor, frame) = superframe();
        let whole = [&descriptor.to_bytes()[..], &frame].concat();
        let others = [Vec::new(), vec![9; 7], vec![0; 8], vec![255; 60], whole];
        let all = others.into_iter().flat_map(|other| [one.clone(), other, two.clone()]).chain([three]);
        let all: Vec<_> = all.map(|bytes| (5, bytes)).collect();
        let merged: Vec<_> = carried(all.clone()).into_iter().map(|(_, bytes)| bytes).collect();
        // The last two of them follow each other.
        assert_eq!(merged.len(), all.len() - 1);
        assert_eq!(merged[..13], all[..13].iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>());
    }
}
