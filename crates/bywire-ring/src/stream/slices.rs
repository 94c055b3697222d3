//! Copies between rings and slices, for ends that have their bytes in Rust's own memory.

use super::{Segment, Stream};

impl Stream {
    /// Writes bytes into the own ring, behind the published ones, and publishes them. All of them must be within
    /// [`Self::room`].
    pub fn append<S: Segment>(&self, own: &S, bytes: &[u8]) {
        // SAFETY: the slice is valid for its length.
        unsafe { self.stage(own, 0, bytes.as_ptr(), bytes.len(), false) };
        self.publish(own, bytes.len());
    }

    /// Copies bytes of the writer's ring that are available, from `position` on. It leaves `target` as it was where the
    /// writer's words are impossible.
    pub fn copy_out<S: Segment>(&self, writer: &S, position: u64, target: &mut [u8]) {
        let [(first, before_end), (second, _)] = self.places(writer, position, target.len());
        let (start, end) = target.split_at_mut(before_end.min(target.len()));
        // SAFETY: both slices are valid for their lengths.
        unsafe {
            writer.read(first, start.as_mut_ptr(), start.len());
            writer.read(second, end.as_mut_ptr(), end.len());
        }
    }
}
