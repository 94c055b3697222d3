//! Memory shared between processes: sealed `memfd`s and their mappings.
//!
//! A segment has one writer. Its creator maps it for writing, then seals it, so that no process can shrink it, grow
//! it, or map it for writing again. All other processes map it for reading. It cannot raise SIGBUS in a reader, as it
//! is sealed against shrinking and every page is allocated.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::{limits, page};

pub mod in_two;

/// Seals that a reader requires: fixed size, no writers beside the creator's own mapping.
const READER_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Seals of memory that its maker may empty again: fixed size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// `TMPFS_MAGIC` of linux/magic.h, for memory files of ordinary pages.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// The bits of a file's mode that let anybody open it for writing.
const ANYBODY_WRITES: u32 = 0o222;

/// Shared memory in this process's address space, unmapped on drop and absent from forked children.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<c_void>,
    length_bytes: usize,
    writable: bool,
    /// The process that made it: a forked child has nothing at this address, or something else.
    owner: u32,
}

// SAFETY: the mapping is plain memory, valid from any thread until it is dropped. The code that uses the pointer
// decides which part may be touched when.
unsafe impl Send for Mapping {}
// SAFETY: the mapping is plain memory, valid from any thread until it is dropped. The code that uses the pointer
// decides which part may be touched when. `&Mapping` itself gives out only the address and the length.
unsafe impl Sync for Mapping {}

/// Why memory offered by a peer is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferError {
    /// It is not sealed against shrinking, growing and writing, so its owner could take it back.
    Unsealed,
    /// It is smaller or larger than the peer announced.
    WrongSize,
    /// Other processes than its maker may write it.
    Writable,
    /// Parts of it have no memory behind them.
    Holes,
    /// The system refused.
    System(Errno),
}

impl From<Errno> for OfferError {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

/// Checks that a descriptor is sealed memory of this length, with nothing behind its end. The kernel answers all of
/// it without asking a file system of the sender. A descriptor that passes can be closed without delay.
///
/// # Errors
/// [`OfferError`].
pub fn check(file: &impl AsFd, length_bytes: usize) -> Result<(), OfferError> {
    check_sealed(file, READER_SEALS, length_bytes)
}

/// Makes memory that its maker may empty again. It is sealed against shrinking and growing only, so the
/// descriptor itself must be one for reading, and the file must be one that nobody may open for writing.
///
/// # Errors
/// [`OfferError`].
pub fn check_emptiable(file: &impl AsFd, length_bytes: usize) -> Result<(), OfferError> {
    check_sealed(file, SIZE_SEALS, length_bytes)?;
    // A file of huge pages may have none left for a reader.
    if rustix::fs::fstatfs(file)?.f_type != TMPFS {
        return Err(OfferError::Unsealed);
    }
    let access = rustix::fs::fcntl_getfl(file)?.intersection(OFlags::RWMODE);
    let mode = rustix::fs::fstat(file)?.st_mode;
    if access == OFlags::RDONLY && mode & ANYBODY_WRITES == 0 { Ok(()) } else { Err(OfferError::Writable) }
}

fn check_sealed(file: &impl AsFd, required: SealFlags, length_bytes: usize) -> Result<(), OfferError> {
    // A descriptor without seals (a plain file, a socket) answers EINVAL.
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| OfferError::Unsealed)?;
    if !seals.contains(required) {
        return Err(OfferError::Unsealed);
    }
    let found = rustix::fs::fstat(file)?;
    let allocated_bytes = u64::try_from(found.st_blocks).unwrap_or(u64::MAX).saturating_mul(512);
    // The last close would have to free the blocks behind the end. The kernel allocates at most a huge page at once.
    let bound_bytes = (length_bytes as u64).next_multiple_of(page::huge_bytes() as u64);
    if u64::try_from(found.st_size) != Ok(length_bytes as u64) || allocated_bytes > bound_bytes {
        return Err(OfferError::WrongSize);
    }
    Ok(())
}

impl Mapping {
    /// Makes a zeroed segment that only this process may write, and the descriptor to hand to readers.
    ///
    /// Every page is allocated now, so that no reader later meets a page without memory.
    ///
    /// If a memory limit of a control group or the machine's memory is used up, the kernel's OOM killer ends a
    /// process of the group, as for any other memory. The rest of a limit cannot be read beforehand: the used part
    /// includes memory that the kernel would take back, and other processes change it at any moment.
    ///
    /// # Errors
    /// The error of the kernel: [`Errno::NOSPC`] or [`Errno::NOMEM`] if it promises no more memory than there is
    /// (`vm.overcommit_memory`), or finds no process to end. [`Errno::NOMEM`] also if a limit of address space is
    /// reached, [`Errno::MFILE`] without descriptors. [`Errno::FBIG`] if the process may have no file of this length.
    pub fn create(name: &str, length_bytes: usize) -> Result<(Self, OwnedFd), Errno> {
        let file = memfd(name)?;
        let length = u64::try_from(length_bytes).map_err(|_| Errno::INVAL)?;
        // SIGXFSZ ends a process whose file grows too long, even a memory file.
        if !limits::may_file_have(length) {
            return Err(Errno::FBIG);
        }
        rustix::fs::ftruncate(&file, length)?;
        retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length))?;
        let mapping = Self::map(&file, length_bytes, true)?;
        rustix::fs::fcntl_add_seals(&file, READER_SEALS)?;
        Ok((mapping, file))
    }

    /// Maps memory offered by a peer for reading, after checking its seals and its size.
    ///
    /// # Errors
    /// [`OfferError`]; nothing is mapped then.
    pub fn accept(file: &impl AsFd, length_bytes: usize) -> Result<Self, OfferError> {
        check(file, length_bytes)?;
        // The first read of a hole could raise SIGBUS if memory is short, and filling it would be at our cost. An
        // honest creator has left no hole, and the seals forbid new ones.
        if !has_no_holes(file, length_bytes as u64)? {
            return Err(OfferError::Holes);
        }
        Ok(Self::map(file, length_bytes, false)?)
    }

    fn map(file: &impl AsFd, length_bytes: usize, writable: bool) -> Result<Self, Errno> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
        let base = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), length_bytes, protection, MapFlags::SHARED, file, 0)?
        };
        let mapping = Self::of(base, length_bytes, writable)?;
        // SAFETY: the range is the mapping just made. A forked child never sees it.
        unsafe { rustix::mm::madvise(base, length_bytes, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    /// Owns a mapping that was just made.
    fn of(base: *mut c_void, length_bytes: usize, writable: bool) -> Result<Self, Errno> {
        let base = NonNull::new(base).ok_or(Errno::FAULT)?;
        Ok(Self { base, length_bytes, writable, owner: std::process::id() })
    }

    /// The first byte. Reads and writes through it race with another process, by design.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    /// The number of mapped bytes.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// True for the creator's mapping.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        // SAFETY: `map` made it with this length, it is unmapped only here, and every user of the address borrows or
        // owns `self` for as long.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.length_bytes) };
    }
}

/// Does memory stand behind every byte of a file with a reader's seals? Blocks behind its end do not count.
fn has_no_holes(file: &impl AsFd, length_bytes: u64) -> Result<bool, Errno> {
    match allocated_pages(file, length_bytes) {
        Ok(pages) => Ok(pages >= length_bytes.div_ceil(page::bytes() as u64)),
        // Kernels before 6.5, and sandboxes that do not know the call. PERM may also mean that the descriptor lacks
        // the right to be asked. An honest creator's descriptor has it, and without it the truncation fails too.
        Err(Errno::NOSYS | Errno::PERM) => has_no_holes_by_truncation(file, length_bytes),
        // Memory in huge pages.
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The number of pages among a memory file's first bytes that are in memory or swapped out. The call takes no lock of
/// the file, which its creator could hold.
fn allocated_pages(file: &impl AsFd, length_bytes: u64) -> Result<u64, Errno> {
    /// The same number on every architecture; Linux 6.5.
    const SYS_CACHESTAT: libc::c_long = 451;
    /// `struct cachestat`: in memory, dirty, being written, swapped out, swapped out recently.
    #[repr(C)]
    #[derive(Default)]
    struct Pages([u64; 5]);
    let range = [0u64, length_bytes];
    let mut pages = Pages::default();
    // SAFETY: `struct cachestat_range` is two words and `struct cachestat` five. Both live until the call is over,
    // and the descriptor is borrowed for as long.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()),
            range.as_ptr(),
            &raw mut pages,
            0,
        )
    };
    if result == 0 { Ok(pages.0[0] + pages.0[3]) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The same by an `ftruncate` to the present length. That frees the blocks behind the end, and the seals prevent new
/// ones there. So all blocks that are counted afterwards lie before the end.
fn has_no_holes_by_truncation(file: &impl AsFd, length_bytes: u64) -> Result<bool, Errno> {
    rustix::fs::ftruncate(file, length_bytes)?;
    let found = rustix::fs::fstat(file)?;
    Ok(u64::try_from(found.st_blocks).unwrap_or(0) * 512 >= length_bytes)
}

fn memfd(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_written_bytes() {
        let (writer, file) = Mapping::create("bywire-test", 8192).expect("memfd");
        let reader = Mapping::accept(&file, 8192).expect("sealed");
        // SAFETY: both mappings are 8192 bytes long and only this thread touches them.
        unsafe {
            writer.base().add(5000).write_volatile(42);
            assert_eq!(reader.base().add(5000).read_volatile(), 42);
        }
        assert!(writer.is_writable() && !reader.is_writable());
    }

    #[test]
    fn a_sealed_segment_has_no_second_writer_and_a_fixed_size() {
        let (_writer, file) = Mapping::create("bywire-test", 4096).expect("memfd");
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 8192), Err(Errno::PERM));
        assert!(Mapping::map(&file, 4096, true).is_err());
        assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::PERM));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&file, punch, 0, 4096), Err(Errno::PERM));
    }

    #[test]
    fn unsealed_or_wrongly_sized_offers_are_refused() {
        let file = memfd("bywire-test").expect("memfd");
        rustix::fs::ftruncate(&file, 4096).expect("ftruncate");
        assert_eq!(Mapping::accept(&file, 4096).err(), Some(OfferError::Unsealed));
        let (_writer, sealed) = Mapping::create("bywire-test", 4096).expect("memfd");
        assert_eq!(Mapping::accept(&sealed, 8192).err(), Some(OfferError::WrongSize));
        let sparse = memfd("bywire-test").expect("memfd");
        rustix::fs::ftruncate(&sparse, 1 << 36).expect("ftruncate");
        rustix::fs::fcntl_add_seals(&sparse, READER_SEALS).expect("seals");
        assert_eq!(Mapping::accept(&sparse, 1 << 36).err(), Some(OfferError::Holes));
        let hoard = memfd("bywire-test").expect("memfd");
        rustix::fs::ftruncate(&hoard, 4096).expect("ftruncate");
        let beyond = FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&hoard, beyond, 0, 8 << 20).expect("blocks behind the end");
        rustix::fs::fcntl_add_seals(&hoard, READER_SEALS).expect("seals");
        assert_eq!(Mapping::accept(&hoard, 4096).err(), Some(OfferError::WrongSize));
        let (pipe, _other) = rustix::pipe::pipe().expect("pipe");
        assert_eq!(Mapping::accept(&pipe, 4096).err(), Some(OfferError::Unsealed));
    }

    /// Blocks behind the end count as a file's blocks. The next `ftruncate` to the same length frees them.
    #[test]
    fn blocks_beyond_the_end_do_not_replace_missing_ones() {
        const LENGTH: u64 = 1 << 20;
        let holed = |behind: u64, first: u64| {
            let file = memfd("bywire-test").expect("memfd");
            rustix::fs::ftruncate(&file, LENGTH).expect("ftruncate");
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, LENGTH, behind).expect("behind the end");
            rustix::fs::fallocate(&file, FallocateFlags::empty(), first, LENGTH - first).expect("before it");
            rustix::fs::fcntl_add_seals(&file, READER_SEALS).expect("seals");
            file
        };
        let accept = |file: &OwnedFd| Mapping::accept(file, LENGTH as usize).map(drop);
        assert_eq!(accept(&holed(4096, 0)), Ok(()), "a little behind the end harms nobody");
        for file in [holed(4096, 4096), holed(LENGTH, LENGTH / 2), holed(LENGTH, LENGTH - 4096)] {
            let blocks = |file: &OwnedFd| rustix::fs::fstat(file).expect("fstat").st_blocks as u64 * 512;
            assert!(blocks(&file) >= LENGTH, "the sum looks right");
            assert_eq!(accept(&file), Err(OfferError::Holes));
            assert_eq!(has_no_holes_by_truncation(&file, LENGTH), Ok(false), "as older kernels are asked");
        }
        assert_eq!(has_no_holes_by_truncation(&holed(4096, 0), LENGTH), Ok(true));
    }
}
