//! Memory that one process writes and others read: the segments of connections, and the pages of doorbells.
//!
//! A segment is two memory files, mapped one behind the other. Its *head* is sealed against every writer but its
//! maker, and is never emptied. Its *rest* holds bytes of the ring and nothing else. It is sealed against shrinking and
//! growing only, so that its maker can take back the memory that an idle connection does not need. The descriptor for
//! the peer is one for reading, of a file that nobody may open for writing. A program of the same user could change
//! that. It could then replace bytes that this end has sent, and nothing that this end relies on.
//!
//! Without `/proc` there is no such descriptor. Then the whole segment is one file like the head.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use bywire_ring::stream::{SEGMENT_BYTES, head_bytes, rest_bytes};

use crate::os::{errno, kernel, pid, real, small_file};

const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
const READER_SEALS: i32 = SIZE_SEALS | libc::F_SEAL_FUTURE_WRITE;
const FOR_WRITING: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// `TMPFS_MAGIC` of linux/magic.h: memory files of ordinary pages.
const TMPFS: i64 = 0x0102_1994;

/// Mappings of a connection: two for the segment of each end.
const MAPPINGS: u32 = 4;
/// The kernel's usual limit of a process's mappings.
const MAPPINGS_MAX: u64 = 65_530;

/// The segments that this process has made and mapped.
static MADE: AtomicU32 = AtomicU32::new(0);
/// How many of them there may be; 0: not known yet.
static MADE_MAX: AtomicU32 = AtomicU32::new(0);

/// The descriptors for the reader of a segment.
pub struct Files {
    /// The head, or the whole segment.
    pub head: i32,
    /// The rest; -1: the first file is the whole segment.
    pub rest: i32,
}

impl Drop for Files {
    fn drop(&mut self) {
        close(self.head);
        close(self.rest);
    }
}

/// Makes a segment. Returns where it is mapped. [`remove`] follows.
pub fn make() -> Option<(Files, *mut u8)> {
    // Relaxed, all: the count is kept about right, and nothing else depends on it.
    if MADE.fetch_add(1, Ordering::Relaxed) < made_max()
        && let Some(made) = make_of_two().or_else(make_of_one)
    {
        return Some(made);
    }
    MADE.fetch_sub(1, Ordering::Relaxed);
    None
}

/// Unmaps a segment that this process has made.
///
/// # Safety
/// [`make`] has returned the address, and nobody uses the segment.
pub unsafe fn remove(address: *mut u8) {
    // SAFETY: mapped with this length by `make`; the caller vouches for the rest.
    unsafe { libc::munmap(address.cast(), SEGMENT_BYTES) };
    MADE.fetch_sub(1, Ordering::Relaxed);
}

/// How many segments this process may make, so that a quarter of its mappings is left to the program: without any, its
/// own calls would fail.
fn made_max() -> u32 {
    let known = MADE_MAX.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = small_file::read(&[b"/proc/sys/vm/max_map_count"], &mut [0; 32]).and_then(small_file::number);
    let most = found.unwrap_or(MAPPINGS_MAX) / 4 * 3 / u64::from(MAPPINGS);
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
    MADE_MAX.store(most, Ordering::Relaxed);
    most
}

fn make_of_one() -> Option<(Files, *mut u8)> {
    let (head, address) = sealed(SEGMENT_BYTES)?;
    Some((Files { head, rest: -1 }, address))
}

fn make_of_two() -> Option<(Files, *mut u8)> {
    if !kernel::may_file_have(rest_bytes() as u64) {
        return None;
    }
    let place = Reserved::new()?;
    let mut files = Files { head: memory_file(head_bytes())?, rest: -1 };
    place.map(0, head_bytes(), FOR_WRITING, files.head)?;
    seal(files.head, READER_SEALS)?;
    let rest = memory_file(rest_bytes())?;
    let is_mapped =
        place.map(head_bytes(), rest_bytes(), FOR_WRITING, rest).and_then(|()| seal(rest, SIZE_SEALS));
    files.rest = is_mapped.and_then(|()| for_reading(rest)).unwrap_or(-1);
    close(rest);
    (files.rest >= 0).then(|| (files, place.keep()))
}

/// Maps a segment that a peer has made, after checking its files. Null: it cannot be used.
pub fn accept(files: &Files) -> *mut u8 {
    if files.rest < 0 {
        return accept_sealed(files.head, SEGMENT_BYTES);
    }
    let map = || {
        if !is_sound(files.head, READER_SEALS, head_bytes())
            || !is_sound(files.rest, SIZE_SEALS, rest_bytes())
        {
            return None;
        }
        let place = Reserved::new()?;
        place.map(0, head_bytes(), libc::PROT_READ, files.head)?;
        place.map(head_bytes(), rest_bytes(), libc::PROT_READ, files.rest)?;
        Some(place.keep())
    };
    map().unwrap_or(ptr::null_mut())
}

/// Memory that only this process can write, and the descriptor that is passed to readers.
pub fn sealed(length_bytes: usize) -> Option<(i32, *mut u8)> {
    if !kernel::may_file_have(length_bytes as u64) {
        return None;
    }
    let file = memory_file(length_bytes)?;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), length_bytes, FOR_WRITING, libc::MAP_SHARED, file, 0) };
    if address != libc::MAP_FAILED {
        if seal(file, READER_SEALS).is_some() {
            return Some((file, address.cast()));
        }
        // SAFETY: mapped with this length above.
        unsafe { libc::munmap(address, length_bytes) };
    }
    close(file);
    None
}

/// Maps the memory that a peer has sealed, after checking its seals and its size.
pub fn accept_sealed(file: i32, length_bytes: usize) -> *mut u8 {
    if !is_sound(file, READER_SEALS, length_bytes) {
        return ptr::null_mut();
    }
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), length_bytes, libc::PROT_READ, libc::MAP_SHARED, file, 0) };
    if address == libc::MAP_FAILED { ptr::null_mut() } else { address.cast() }
}

/// Gives the memory behind the head of a segment back to the kernel. Its bytes are zero from then on. `false`: the
/// segment is one file, or its pages are locked. The caller has the segment mapped for writing, and nobody uses these
/// bytes.
pub fn empty(address: *mut u8) -> bool {
    // SAFETY: whole pages of a segment that the caller has mapped.
    unsafe { libc::madvise(address.add(head_bytes()).cast(), rest_bytes(), libc::MADV_REMOVE) == 0 }
}

/// Address space for a segment, which is given back when this is dropped.
struct Reserved(*mut u8);

impl Reserved {
    fn new() -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe { libc::mmap(ptr::null_mut(), SEGMENT_BYTES, libc::PROT_NONE, flags, -1, 0) };
        (address != libc::MAP_FAILED).then(|| Self(address.cast()))
    }

    /// Maps a whole file at an offset.
    fn map(&self, offset: usize, length_bytes: usize, protection: i32, file: i32) -> Option<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: within the reserved addresses, which nobody uses yet.
        let address = unsafe {
            libc::mmap(self.0.wrapping_add(offset).cast(), length_bytes, protection, flags, file, 0)
        };
        (address != libc::MAP_FAILED).then_some(())
    }

    /// It stays mapped.
    fn keep(self) -> *mut u8 {
        let address = self.0;
        core::mem::forget(self);
        address
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: reserved with this length, and nobody uses it.
        unsafe { libc::munmap(self.0.cast(), SEGMENT_BYTES) };
    }
}

fn memory_file(length_bytes: usize) -> Option<i32> {
    // SAFETY: a valid name.
    let create = |flags| unsafe { libc::memfd_create(c"bywire-sockets".as_ptr(), flags) };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let mut file = create(flags | libc::MFD_NOEXEC_SEAL);
    // Kernels before 6.3 do not know that flag.
    if file < 0 && errno::last() == libc::EINVAL {
        file = create(flags);
    }
    if file < 0 {
        return None;
    }
    // SAFETY: no pointers.
    if unsafe { libc::ftruncate(file, length_bytes as i64) } != 0 {
        close(file);
        return None;
    }
    Some(file)
}

fn seal(file: i32, seals: i32) -> Option<()> {
    // SAFETY: no pointers.
    (unsafe { libc::fcntl(file, libc::F_ADD_SEALS, seals) } == 0).then_some(())
}

/// Opens a memory file once more, for reading only. From then on nobody may open it for writing.
fn for_reading(file: i32) -> Option<i32> {
    // SAFETY: no pointers.
    if unsafe { libc::fchmod(file, 0o444) } != 0 {
        return None;
    }
    let (digits, start) = pid::decimal(file as u32);
    // Whatever is there if `/proc` is something else is not waited for.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let opened = small_file::open(&[b"/proc/thread-self/fd/", digits.get(start..)?], flags)?;
    if is_sound(opened, SIZE_SEALS, rest_bytes()) {
        return Some(opened);
    }
    close(opened);
    None
}

/// Whether it is a memory file of this length that cannot lose a part.
fn is_sound(file: i32, seals: i32, length_bytes: usize) -> bool {
    let (mut status, mut system) =
        (MaybeUninit::<libc::stat>::zeroed(), MaybeUninit::<libc::statfs>::zeroed());
    // SAFETY: both are valid for writes, and zeros are a value of them.
    unsafe {
        let found = libc::fcntl(file, libc::F_GET_SEALS);
        found >= 0
            && found & seals == seals
            && libc::fstat(file, status.as_mut_ptr()) == 0
            && status.assume_init().st_size == length_bytes as i64
            // A file of huge pages may have none left for a reader.
            && libc::fstatfs(file, system.as_mut_ptr()) == 0
            && system.assume_init().f_type == TMPFS
    }
}

fn close(file: i32) {
    // SAFETY: a descriptor of this library; closing -1 does nothing.
    unsafe { real::close(file) };
}
