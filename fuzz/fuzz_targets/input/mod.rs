//! The input of a fuzz target, which libFuzzer generates.

/// The bytes that are left.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte, or 0 at the end.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// As many bytes as the next one says, or those that are left.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}
