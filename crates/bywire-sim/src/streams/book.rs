//! The truth about each stream, whatever its two ends believe.

use bywire_stream::{Refusal, ResetReason};

/// How a writer has ended its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Half,
    Back,
}

/// One end's part of a stream: the direction that it writes, and what it has done with the other one.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub started: Option<u64>,
    /// The end of what was written.
    pub queued: u64,
    pub ending: Option<(Ending, u64)>,
    /// The bytes that it has drained of the other direction.
    pub drained: u64,
    pub is_asking: bool,
    /// The end of the other direction, as it has learned it.
    pub other_end: Option<(Ending, u64)>,
    pub reset: Option<ResetReason>,
    pub refused: Option<Refusal>,
    /// It was closed in order.
    pub is_closed: bool,
}

/// A stream: the part of its opener, and the part of the other end.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub parts: [Part; 2],
    /// The connection was lost.
    pub is_lost: bool,
}

/// The byte at an offset of the direction that a part writes.
pub fn byte(number: usize, part: usize, offset: u64) -> u8 {
    let salt = (2 * number + part) as u64;
    ((offset ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8
}

impl Entry {
    /// Checks a stream whose two ends are gone.
    pub fn check(&self) -> Result<(), String> {
        let is_cut =
            self.is_lost || self.parts.iter().any(|part| part.reset.is_some() || part.refused.is_some());
        for (part, other) in [(0, 1), (1, 0)].map(|(part, other)| (&self.parts[part], &self.parts[other])) {
            if let Some(end) = part.other_end
                && other.ending != Some(end)
            {
                return Err(format!("a direction has ended as {end:?} and not as {:?}", other.ending));
            }
            if is_cut {
                continue;
            }
            let Some((_, end)) = part.other_end.filter(|_| part.is_closed) else {
                return Err("a stream was never closed".to_owned());
            };
            if part.drained != end {
                return Err(format!("a direction of {end} bytes was drained up to {}", part.drained));
            }
        }
        Ok(())
    }
}
