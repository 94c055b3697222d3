//! Packets of a batch that one system call can send.

use bywire_sys::udp::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX};
use bywire_wire::batch::Batch;

/// Packets that one call can send: all of one length, except the last, which may be shorter.
pub(super) struct Runs<Lengths: Iterator<Item = usize>> {
    lengths: std::iter::Peekable<Lengths>,
    offset: usize,
}

impl Runs<std::iter::Empty<usize>> {
    /// Those of a batch.
    pub fn of(batch: &Batch) -> Runs<impl Iterator<Item = usize> + '_> {
        Runs { lengths: batch.packets().map(<[u8]>::len).peekable(), offset: 0 }
    }
}

impl<Lengths: Iterator<Item = usize>> Iterator for Runs<Lengths> {
    type Item = (std::ops::Range<usize>, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.lengths.next()?;
        let (start, mut bytes, mut count) = (self.offset, first, 1);
        while count < BATCH_PACKETS_MAX
            && let Some(next) = self.lengths.next_if(|next| *next <= first && bytes + next <= BATCH_BYTES_MAX)
        {
            bytes += next;
            count += 1;
            if next < first {
                break;
            }
        }
        self.offset += bytes;
        Some((start..self.offset, first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(lengths: &[usize]) -> Vec<(std::ops::Range<usize>, usize)> {
        Runs { lengths: lengths.iter().copied().peekable(), offset: 0 }.collect()
    }

    #[test]
    fn one_call_sends_packets_of_one_length_and_a_shorter_last_one() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[10, 10, 4, 10, 20]), [(0..24, 10), (24..34, 10), (34..54, 20)]);
        assert_eq!(runs(&[1200; 130]).len(), 3);
        let long = runs(&[9000; 8]);
        assert_eq!(long, [(0..63_000, 9000), (63_000..72_000, 9000)]);
    }
}
