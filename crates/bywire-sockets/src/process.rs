//! Other processes and threads, as far as they hold something of ours.

use core::ffi::{CStr, c_char};

use crate::real;

/// Does the thread or process with this number live? One whose parent has not asked for its end does not.
pub fn lives(number: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let found = unsafe { libc::kill(number as i32, 0) } == 0 || crate::errno::last() == libc::EPERM;
    found && !is_zombie(number)
}

fn is_zombie(number: u32) -> bool {
    let mut path = [0u8; 32];
    let digits = decimal(number);
    let parts: [&[u8]; 3] = [b"/proc/", &digits.0[digits.1..], b"/stat\0"];
    let mut at = 0;
    for part in parts {
        let Some(target) = path.get_mut(at..at + part.len()) else { return false };
        target.copy_from_slice(part);
        at += part.len();
    }
    let mut text = [0u8; 512];
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    // SAFETY: a terminated path, and a buffer of the length given.
    let length = unsafe {
        let fd = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr().cast::<c_char>(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        ) as i32;
        if fd < 0 {
            return false;
        }
        let length = real::read(fd, text.as_mut_ptr().cast(), text.len());
        real::close(fd);
        length
    };
    let text = text.get(..length.max(0) as usize).unwrap_or(&[]);
    // The name in parentheses may hold anything; the state follows the last of them.
    let state = text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

/// Decimal digits without allocation: a buffer and where they begin in it.
pub fn decimal(mut number: u32) -> ([u8; 10], usize) {
    let (mut digits, mut start) = ([0; 10], 10);
    while start == 10 || number > 0 {
        start -= 1;
        if let Some(digit) = digits.get_mut(start) {
            *digit = b'0' + (number % 10) as u8;
        }
        number /= 10;
    }
    (digits, start)
}
