//! Recognises programs and libraries in Go, which make system calls by themselves and bypass this library.

use crate::os::objects::Object;

/// The owner of the ELF note by which Go's linker identifies its output, and the note's type.
const OWNER: &[u8] = b"Go\0\0";
const BUILD: u32 = 4;
/// The length of the owner, the length of the description, and the type.
const HEADER_BYTES: usize = 12;

/// Returns whether Go's linker has made this program or library.
pub fn is_made(object: &Object<'_>) -> bool {
    object.notes().any(has_mark)
}

/// Returns whether Go's note is among these. Each part of a note is aligned to four bytes.
fn has_mark(mut notes: &[u8]) -> bool {
    loop {
        let word = |at: usize| {
            let bytes = notes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        let (Some(owner), Some(length), Some(kind)) = (word(0), word(4), word(8)) else { return false };
        let [owner, length] = [owner, length].map(|bytes| (bytes as usize).next_multiple_of(4));
        if kind == BUILD && notes.get(HEADER_BYTES..HEADER_BYTES + owner) == Some(OWNER) {
            return true;
        }
        let Some(rest) = notes.get(HEADER_BYTES + owner + length..) else { return false };
        notes = rest;
    }
}
