//! Frames that are too long for one datagram: cut at any byte, and joined again.
//!
//! Datagrams between two processes keep their order. A part that does not continue the previous one is lost, and its
//! frame with it.
//!
//! A part is `255 · 1 for the first, 0 for others · 0 · 0 · number (4, little-endian)`, followed by bytes of the
//! packet. The packet is a descriptor and a frame. In the first part, the number is the length of the packet. In the
//! others, it is the offset of the part.

use crate::frame::FRAME_BYTES_MAX;
use crate::offload::Descriptor;

/// The length of a part's header. No descriptor begins with the same byte.
pub const HEADER_BYTES: usize = 8;
const PART: u8 = 255;
/// The longest packet that is joined.
const WHOLE_BYTES_MAX: usize = Descriptor::BYTES + FRAME_BYTES_MAX;

/// A packet that is not yet complete.
#[derive(Debug, Default)]
pub struct Reassembler {
    bytes: Vec<u8>,
    whole_bytes: usize,
}

/// The result of a received datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Reassembled {
    /// The datagram is not a part.
    Whole,
    /// More parts are needed.
    Waiting,
    /// The datagram was the last part. This is the descriptor and frame.
    Complete(Vec<u8>),
    /// The part does not continue the current packet.
    Lost,
}

/// The header of the part at `offset` of a packet of `whole_bytes`.
pub fn header(offset: usize, whole_bytes: usize) -> [u8; HEADER_BYTES] {
    let number = if offset == 0 { whole_bytes } else { offset };
    let [a, b, c, d] = (number as u32).to_le_bytes();
    [PART, u8::from(offset == 0), 0, 0, a, b, c, d]
}

impl Reassembler {
    /// Takes each received datagram, part or not, so that an incomplete packet is dropped when its next part is
    /// missing.
    pub fn join(&mut self, datagram: &[u8]) -> Reassembled {
        let Some((&[PART, is_first, 0, 0, a, b, c, d], part)) = datagram.split_first_chunk() else {
            self.bytes.clear();
            return Reassembled::Whole;
        };
        let number = u32::from_le_bytes([a, b, c, d]) as usize;
        if is_first == 1 {
            self.bytes.clear();
            self.whole_bytes = number;
        }
        let belongs = is_first == 1 || (is_first == 0 && number == self.bytes.len() && number > 0);
        let is_sound = self.whole_bytes <= WHOLE_BYTES_MAX && !part.is_empty();
        if !belongs || !is_sound || part.len() > self.whole_bytes - self.bytes.len() {
            self.bytes.clear();
            return Reassembled::Lost;
        }
        self.bytes.extend_from_slice(part);
        if self.bytes.len() < self.whole_bytes {
            return Reassembled::Waiting;
        }
        Reassembled::Complete(std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(whole: &[u8], from: usize, to: usize) -> Vec<u8> {
        [&header(from, whole.len())[..], &whole[from..to]].concat()
    }

    #[test]
    fn parts_are_reassembled_into_the_frame() {
        let whole: Vec<u8> = (0..WHOLE_BYTES_MAX).map(|index| index as u8).collect();
        let mut reassembler = Reassembler::default();
        for _ in 0..2 {
            assert_eq!(reassembler.join(&part(&whole, 0, 65_000)), Reassembled::Waiting);
            assert_eq!(
                reassembler.join(&part(&whole, 65_000, whole.len())),
                Reassembled::Complete(whole.clone())
            );
        }
    }

    #[test]
    fn a_part_that_belongs_to_no_frame_is_dropped_alone() {
        let whole = [7; 100];
        let mut reassembler = Reassembler::default();
        let mut joined = |datagram: &[u8]| reassembler.join(datagram);
        assert_eq!(joined(&part(&whole, 50, 100)), Reassembled::Lost, "the first one is missing");
        assert_eq!(joined(&part(&whole, 0, 50)), Reassembled::Waiting);
        assert_eq!(joined(&[0; 60]), Reassembled::Whole, "the rest was lost");
        assert_eq!(joined(&part(&whole, 50, 100)), Reassembled::Lost);
        assert_eq!(joined(&part(&whole, 0, 50)), Reassembled::Waiting);
        assert_eq!(joined(&part(&whole, 60, 100)), Reassembled::Lost, "one between is missing");
        assert_eq!(joined(&part(&whole, 50, 100)), Reassembled::Lost);
        let longer = [&part(&whole, 0, 50)[..], &[7; 51]].concat();
        assert_eq!(joined(&longer), Reassembled::Lost, "more than it said");
        assert_eq!(joined(&header(0, usize::MAX >> 33)), Reassembled::Lost, "longer than any frame");
        assert_eq!(joined(&header(0, 0)), Reassembled::Lost, "nothing");
        for datagram in [&[PART; 7][..], &[PART, 2, 0, 0, 0, 0, 0, 0, 1], &[PART; 9]] {
            assert_ne!(joined(datagram), Reassembled::Waiting, "{datagram:?}");
        }
        assert_eq!(joined(&part(&whole, 0, 100)), Reassembled::Complete(whole.to_vec()));
    }
}
