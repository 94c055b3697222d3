//! Random bytes are an argument, because this crate draws none.

/// Fills bytes with random ones.
pub type Random<'random> = &'random mut dyn FnMut(&mut [u8]);

/// So many random bytes.
pub(crate) fn draw<const LENGTH: usize>(random: Random) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    random(&mut bytes);
    bytes
}
