//! Recognises programs in Go, which make system calls by themselves and bypass this library.

use core::ffi::{c_int, c_void};

/// The owner of the ELF note by which Go's linker identifies its output, and the note's type.
const OWNER: &[u8] = b"Go\0\0";
const BUILD: u32 = 4;
/// The length of the owner, the length of the description, and the type.
const HEADER_BYTES: usize = 12;

/// Whether Go's linker has made this program. Its libraries do not count.
pub fn is_program() -> bool {
    let mut found = false;
    // SAFETY: the function takes what the C library passes, and is called before this one returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Examines the notes of the first object, which is the program.
unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the C library's own structures. What the headers name stays mapped while the program runs.
    unsafe {
        let object = &*object;
        for index in 0..usize::from(object.dlpi_phnum) {
            let header = &*object.dlpi_phdr.add(index);
            if header.p_type == libc::PT_NOTE {
                let start = (object.dlpi_addr + header.p_vaddr) as *const u8;
                let notes = core::slice::from_raw_parts(start, header.p_memsz as usize);
                *found.cast::<bool>() |= has_mark(notes);
            }
        }
    }
    // Visits no further object.
    1
}

/// Whether Go's note is among these. Each part of a note is aligned to four bytes.
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
