//! Other processes and threads, as far as they hold something of ours.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::os::{own_call, real};

/// 0: none that its family knows it by.
static NUMBER: AtomicU32 = AtomicU32::new(ELSEWHERE);
/// This process, or one that it descends from, was born where numbers mean other processes.
const ELSEWHERE: u32 = 0;

/// The process that was noted last.
static NOTED: AtomicU32 = AtomicU32::new(0);

static HAS_BEGUN: AtomicU32 = AtomicU32::new(0);

/// When the library is loaded, and in every child.
pub fn note() {
    NOTED.store(std::process::id(), Ordering::Relaxed);
    find_number();
}

/// Is this the process that was noted last? Asks the kernel alone: a child in its parent's memory may have no variables of a
/// thread.
pub fn is_noted() -> bool {
    NOTED.load(Ordering::Relaxed) == std::process::id()
}

fn find_number() {
    // A family begins here, or its number is unknown for good; a parent that cannot be seen from here has the number 0.
    // SAFETY: no arguments.
    let is_elsewhere =
        HAS_BEGUN.swap(1, Ordering::Relaxed) != 0 && (number().is_none() || unsafe { libc::getppid() } == 0);
    NUMBER.store(if is_elsewhere { ELSEWHERE } else { std::process::id() }, Ordering::Relaxed);
}

/// The number by which its family knows this process.
pub fn number() -> Option<u32> {
    match NUMBER.load(Ordering::Relaxed) {
        ELSEWHERE => None,
        number => Some(number),
    }
}

/// Does the process with this number run? It may without the thread that it began with.
pub fn runs(number: u32) -> bool {
    lives(number) || threads(number) > 1
}

/// Does the thread or process with this number live? One whose parent has not asked for its end does not.
pub fn lives(number: u32) -> bool {
    let Some(_own) = own_call::begin() else { return true };
    // SAFETY: signal 0 only asks.
    let found = unsafe { libc::kill(number as i32, 0) } == 0 || crate::os::errno::last() == libc::EPERM;
    found && !is_zombie(number)
}

/// Has this process but one thread?
pub fn is_alone() -> bool {
    threads(std::process::id()) == 1
}

fn is_zombie(number: u32) -> bool {
    // The name in parentheses may hold anything; the state follows the last of them.
    with_state(number, |state| matches!(state.first(), Some(b'Z' | b'X'))).unwrap_or(false)
}

/// How many threads it has; one that has ended and was not asked for still has one.
fn threads(number: u32) -> u32 {
    let count = |state: &[u8]| {
        let digits = state.split(|byte| *byte == b' ').nth(THREADS)?;
        digits
            .iter()
            .try_fold(0u32, |sum, digit| sum.checked_mul(10)?.checked_add((*digit).checked_sub(b'0')?.into()))
    };
    with_state(number, count).flatten().unwrap_or(0)
}

/// Words from the state to the number of threads, in the kernel's line of a process.
const THREADS: usize = 17;

/// What the kernel says of it, from its state on.
fn with_state<T>(number: u32, visit: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let mut path = [0u8; 32];
    let digits = decimal(number);
    let parts: [&[u8]; 3] = [b"/proc/", &digits.0[digits.1..], b"/stat\0"];
    let mut at = 0;
    for part in parts {
        let target = path.get_mut(at..at + part.len())?;
        target.copy_from_slice(part);
        at += part.len();
    }
    let mut text = [0u8; 512];
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    // SAFETY: a terminated path, and a buffer of the length given.
    let length = unsafe {
        let fd = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr().cast::<c_char>(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        ) as i32;
        if fd < 0 {
            return None;
        }
        let length = real::read(fd, text.as_mut_ptr().cast(), text.len());
        real::close(fd);
        length
    };
    let text = text.get(..length.max(0) as usize).unwrap_or(&[]);
    let end = text.iter().rposition(|byte| *byte == b')')?;
    text.get(end + 2..).map(visit)
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
