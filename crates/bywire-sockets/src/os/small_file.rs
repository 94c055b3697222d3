//! Small files of the kernel, read without allocation.

use core::ffi::CStr;

use crate::os::real;

/// The longest path, with its terminator.
const PATH_BYTES: usize = 512;

/// Opens the file whose path is these parts in a row.
pub fn open(parts: &[&[u8]], flags: i32) -> Option<i32> {
    let mut path = [0u8; PATH_BYTES];
    let mut at = 0;
    for part in parts {
        path.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    // SAFETY: a terminated path. The call is made by number, as it is not the program's.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) as i32 };
    (fd >= 0).then_some(fd)
}

/// The beginning of that file, as much as there is room for.
pub fn read<'a>(parts: &[&[u8]], text: &'a mut [u8]) -> Option<&'a [u8]> {
    let fd = open(parts, libc::O_RDONLY | libc::O_CLOEXEC)?;
    // SAFETY: a buffer of the length given, and a descriptor of this function.
    let length = unsafe {
        let length = real::read(fd, text.as_mut_ptr().cast(), text.len());
        real::close(fd);
        length
    };
    text.get(..length.max(0) as usize)
}

/// Visits the lines of that file, as far as there is room for each. Longer lines are left out.
pub fn each_line(parts: &[&[u8]], room: &mut [u8], mut visit: impl FnMut(&[u8])) -> Option<()> {
    let fd = open(parts, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let (mut held, mut is_cut) = (0, false);
    while let Some(free) = room.get_mut(held..) {
        // SAFETY: a buffer of the length given, and a descriptor of this function.
        let length = unsafe { real::read(fd, free.as_mut_ptr().cast(), free.len()) };
        if length <= 0 {
            break;
        }
        let (mut begin, end) = (0, held + length as usize);
        while let Some(text) = room.get(begin..end)
            && let Some(line) = text.iter().position(|byte| *byte == b'\n').and_then(|at| text.get(..at))
        {
            if !is_cut {
                visit(line);
            }
            is_cut = false;
            begin += line.len() + 1;
        }
        room.copy_within(begin..end, 0);
        held = end - begin;
        if held == room.len() {
            (held, is_cut) = (0, true);
        }
    }
    // SAFETY: a descriptor of this function.
    unsafe { real::close(fd) };
    Some(())
}

/// The number at the beginning of a text.
pub fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let sum = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    if text.first()?.is_ascii_digit() { digits.clone().try_fold(0, sum) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_visited_that_has_room() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for long in [8, 9, 30, 31] {
            let text = format!("one\n{}\n\nlast\n", "x".repeat(long));
            std::fs::write(file.path(), &text).expect("written");
            let mut found = Vec::new();
            let path = std::os::unix::ffi::OsStrExt::as_bytes(file.path().as_os_str());
            each_line(&[path], &mut [0; 10], |line| found.push(line.to_vec())).expect("a file");
            let fitting = text.lines().filter(|line| line.len() < 10);
            assert_eq!(found, fitting.map(|line| line.as_bytes().to_vec()).collect::<Vec<_>>(), "{long}");
        }
    }

    #[test]
    fn numbers_are_read_to_their_end() {
        assert_eq!(number(b"268435456\n"), Some(268_435_456));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!((number(b"max\n"), number(b"")), (None, None));
    }
}
