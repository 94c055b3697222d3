//! The payload of messages: a pattern that the source writes and the target reads, word by word.
//!
//! Byte 0 is the mark, and bytes 1 to 7 are the message's sequence number. Every further word is a function of its
//! position and the sequence number. Messages below 8 bytes have a fixed pattern after their mark.
//!
//! With `--untouched`, only the first 8 bytes are written and read.

use anyhow::{Result, bail, ensure};

use crate::endpoint::{Mark, Received};
use crate::plan::Plan;

const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
const SEQUENCE_MASK: u64 = (1 << 56) - 1;
const SHORT: u8 = 0xa5;

/// Writes payloads, each different from the one before.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    sequence: u64,
    untouched: bool,
}

impl Writer {
    /// A writer for this plan.
    pub fn of(plan: &Plan) -> Self {
        Self { sequence: 0, untouched: plan.request.untouched }
    }

    /// Writes all of `buffer`, which has at least 1 byte, as the next message.
    #[inline]
    pub fn fill(&mut self, buffer: &mut [u8], mark: Mark) {
        if buffer.len() < 8 {
            buffer.fill(SHORT);
            buffer[0] = mark.byte();
        } else {
            let base = self.sequence.wrapping_mul(STRIDE);
            let (head, rest) = buffer.split_at_mut(8);
            // One store. If a byte were stored separately afterwards, the level's first load of the word would wait
            // until every earlier store has left for the cache.
            head.copy_from_slice(&(self.sequence << 8 | u64::from(mark.byte())).to_le_bytes());
            let rest = if self.untouched { &mut [] } else { rest };
            let mut words = rest.chunks_exact_mut(8);
            let mut word = base;
            for chunk in &mut words {
                word = word.wrapping_add(1);
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            let tail = words.into_remainder();
            let last = word.wrapping_add(1).to_le_bytes();
            tail.copy_from_slice(&last[..tail.len()]);
        }
        self.sequence = (self.sequence + 1) & SEQUENCE_MASK;
    }
}

/// Reads every byte of payloads. With `--verify` it compares them with the bytes of the writer.
#[derive(Clone, Debug)]
pub struct Reader {
    verify: bool,
    ordered: bool,
    untouched: bool,
    sequence: u64,
}

impl Reader {
    /// A reader for this plan. See [`Reader::new`] for `ordered`.
    pub fn of(plan: &Plan, ordered: bool) -> Self {
        Self { untouched: plan.request.untouched, ..Self::new(plan.request.verify, ordered) }
    }

    /// A reader that compares contents if `verify` is set, and the sequence too if messages are `ordered` (none lost,
    /// none duplicated).
    pub fn new(verify: bool, ordered: bool) -> Self {
        Self { verify, ordered, untouched: false, sequence: 0 }
    }

    /// Reads every byte of a whole message. Fails on an empty or corrupted one.
    #[inline]
    pub fn read(&mut self, message: &[u8]) -> Result<Received> {
        ensure!(!message.is_empty(), "a message arrived short: 0 bytes");
        let mark = Mark::from_byte(message[0])?;
        if self.verify {
            self.check(message)?;
        }
        let read = if self.untouched { &message[..message.len().min(8)] } else { message };
        Ok(Received { length: message.len(), mark, sum: sum(read) })
    }

    fn check(&mut self, message: &[u8]) -> Result<()> {
        let carried = match message.first_chunk::<8>() {
            Some(head) => u64::from_le_bytes(*head) >> 8,
            None => self.sequence,
        };
        if self.ordered && carried != self.sequence {
            bail!("payload corrupted: message {} says that it is message {carried}", self.sequence);
        }
        self.sequence = (carried + 1) & SEQUENCE_MASK;
        let mut expected = vec![0; message.len()];
        let mark = Mark::from_byte(message[0])?;
        Writer { sequence: carried, untouched: false }.fill(&mut expected, mark);
        match message.iter().zip(&expected).position(|(got, want)| got != want) {
            None => Ok(()),
            Some(place) => bail!(
                "payload corrupted: byte {place} of message {carried} ({} bytes) is {:#04x}, not {:#04x}",
                message.len(),
                message[place],
                expected[place],
            ),
        }
    }
}

/// The wrapping sum of all words. The last word is padded with zeros.
#[inline]
fn sum(message: &[u8]) -> u64 {
    let words = message.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    words.fold(u64::from_le_bytes(last), |sum, word| {
        sum.wrapping_add(u64::from_le_bytes(word.try_into().expect("8 bytes")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_every_length_are_written_and_read() {
        let (mut writer, mut reader) = (Writer::default(), Reader::new(true, true));
        for length in (1..70).chain([4093, 4096, 65_507]) {
            let mut message = vec![0; length];
            writer.fill(&mut message, Mark::DATA);
            assert_eq!(reader.read(&message).unwrap().length, length);
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut written = vec![0; 43];
        Writer::default().fill(&mut written, Mark::DATA);
        for bit in 0..43 * 8 {
            let mut message = written.clone();
            message[bit / 8] ^= 1 << (bit % 8);
            // The test itself checks the tag in the first byte.
            assert!(Reader::new(true, true).read(&message).is_err() || bit < 8, "bit {bit}");
        }
    }

    #[test]
    fn a_lost_message_is_found_where_order_is_promised() {
        let (mut writer, mut message) = (Writer::default(), vec![0; 16]);
        writer.fill(&mut message, Mark::DATA);
        writer.fill(&mut message, Mark::DATA);
        assert!(Reader::new(true, true).read(&message).is_err());
        assert!(Reader::new(true, false).read(&message).is_ok());
    }

    #[test]
    fn the_sum_depends_on_every_byte() {
        for place in 0..21 {
            let mut message = [7; 21];
            message[place] ^= 0x10;
            assert_ne!(sum(&message), sum(&[7; 21]));
        }
    }
}
