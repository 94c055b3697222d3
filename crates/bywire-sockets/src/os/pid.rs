//! The numbers of processes and threads, and whether they are alive.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::os::{own_call, small_file};

/// The number by which the family knows this process; 0: there is none.
static NUMBER: AtomicU32 = AtomicU32::new(ELSEWHERE);
/// This process, or an ancestor of it, was born in another PID namespace, where numbers mean other processes.
const ELSEWHERE: u32 = 0;

/// The process that [`note`] has seen last.
static NOTED: AtomicU32 = AtomicU32::new(0);

static HAS_BEGUN: AtomicU32 = AtomicU32::new(0);

/// A word that a forked child finds zeroed; null: there is none.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Notes this process's number. Called when the library is loaded, and in every child.
pub fn note() {
    NOTED.store(std::process::id(), Ordering::Relaxed);
    find_number();
}

/// Whether this is the process that was noted last. It asks the kernel only, because a child in its parent's memory may
/// have no thread-local variables.
pub fn is_noted() -> bool {
    NOTED.load(Ordering::Relaxed) == std::process::id()
}

/// Whether a child may have the number that this process has, as the first process of another PID namespace.
pub fn may_be_childs() -> bool {
    if std::process::id() != 1 {
        return false;
    }
    let own = namespace(c"/proc/self/ns/pid");
    own.is_none() || own != namespace(c"/proc/self/ns/pid_for_children")
}

/// The inode of a namespace.
fn namespace(path: &CStr) -> Option<u64> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a terminated path, and a place that is valid for writes; zeros are a value.
    crate::os::errno::keep(|| unsafe {
        (libc::stat(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| found.assume_init().st_ino)
    })
}

/// Makes the word by which a fork is noticed without asking the kernel each time.
pub fn mark() {
    const PAGE_BYTES: usize = 4096;
    // SAFETY: a new private mapping that is never removed.
    unsafe {
        let sharing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page =
            libc::mmap(ptr::null_mut(), PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, sharing, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) != 0 {
            return;
        }
        // Release: pairs with the acquire loads of the mark. Its page is mapped before.
        MARK.store(page.cast(), Ordering::Release);
    }
    set_mark();
}

/// Marks this process's memory: it is no fork's copy that nothing has been done for yet.
pub fn set_mark() {
    // SAFETY: null, or a page that is never removed.
    // Acquire: pairs with the release store where the page is mapped.
    if let Some(mark) = unsafe { MARK.load(Ordering::Acquire).as_ref() } {
        mark.store(1, Ordering::Relaxed);
    }
}

/// Whether [`set_mark`] was called for this memory. `false`: it is a fork's copy, or the kernel marks nothing.
pub fn is_marked() -> bool {
    // SAFETY: null, or a page that is never removed.
    // Acquire: pairs with the release store where the page is mapped.
    unsafe { MARK.load(Ordering::Acquire).as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) != 0)
}

fn find_number() {
    // A family begins here, or its number is never known. A parent in another PID namespace has the number 0.
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

/// Whether the process with this number runs. Its first thread may have ended.
pub fn runs(number: u32) -> bool {
    lives(number) || threads(number) > 1
}

/// Whether the thread or process with this number is alive. A zombie is not.
pub fn lives(number: u32) -> bool {
    let Some(_own) = own_call::begin() else { return true };
    // SAFETY: signal 0 only checks.
    let found = unsafe { libc::kill(number as i32, 0) } == 0 || crate::os::errno::last() == libc::EPERM;
    found && !is_zombie(number)
}

/// Whether this process has a single thread.
pub fn is_alone() -> bool {
    threads(std::process::id()) == 1
}

fn is_zombie(number: u32) -> bool {
    // The name in parentheses may hold any character. The state follows the last parenthesis.
    with_state(number, |state| matches!(state.first(), Some(b'Z' | b'X'))).unwrap_or(false)
}

/// The number of threads of a process. A zombie counts as one.
fn threads(number: u32) -> u32 {
    let count = |state: &[u8]| {
        let digits = state.split(|byte| *byte == b' ').nth(THREADS)?;
        digits
            .iter()
            .try_fold(0u32, |sum, digit| sum.checked_mul(10)?.checked_add((*digit).checked_sub(b'0')?.into()))
    };
    with_state(number, count).flatten().unwrap_or(0)
}

/// Words from the state to the number of threads, in `/proc/PID/stat`.
const THREADS: usize = 17;

/// Passes the rest of `/proc/PID/stat`, from the state on, to `visit`.
fn with_state<T>(number: u32, visit: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let digits = decimal(number);
    let mut text = [0u8; 512];
    let text = small_file::read(&[b"/proc/", &digits.0[digits.1..], b"/stat"], &mut text)?;
    let end = text.iter().rposition(|byte| *byte == b')')?;
    text.get(end + 2..).map(visit)
}

/// Decimal digits without allocation: a buffer, and the position of the first digit in it.
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
