//! Memory in two files that lie one behind the other in the address space: a head that is never emptied, and a rest that
//! its maker may empty again.

use core::ptr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FallocateFlags, Mode};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{Mapping, OfferError, READER_SEALS, SIZE_SEALS, check, check_emptiable, last_error, memfd};
use crate::limits;

/// Makes memory that has no pages yet, and returns a descriptor for reading. Nobody may open it for writing.
///
/// # Errors
/// The error of the kernel; [`Errno::FBIG`] if the process may have no file of this length. The descriptor is made by
/// `/proc`.
pub fn emptiable(name: &str, length_bytes: usize) -> Result<OwnedFd, Errno> {
    let file = memfd(name)?;
    let length = u64::try_from(length_bytes).map_err(|_| Errno::INVAL)?;
    // SIGXFSZ ends a process whose file grows too long, even a memory file.
    if !limits::may_file_have(length) {
        return Err(Errno::FBIG);
    }
    rustix::fs::ftruncate(&file, length)?;
    for_reading(&file)
}

/// Seals a file's size, and returns a descriptor for reading. Nobody may open it for writing from here on.
fn for_reading(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::fs::fcntl_add_seals(file, SIZE_SEALS)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(0o444))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

impl Mapping {
    /// Makes a segment of two files that only this process may write, and the descriptors to hand to readers: `lengths_bytes`
    /// of the head, in whole pages, and of the rest. The head is allocated now. The rest has no memory before
    /// [`Mapping::populate`].
    ///
    /// # Errors
    /// Those of [`Mapping::create`] and [`emptiable`].
    pub fn create_in_two(name: &str, lengths_bytes: [usize; 2]) -> Result<(Self, [OwnedFd; 2]), Errno> {
        let [head_bytes, rest_bytes] = lengths_bytes;
        let (head, rest) = (memfd(name)?, memfd(name)?);
        for (file, length) in [(&head, head_bytes), (&rest, rest_bytes)] {
            let length = u64::try_from(length).map_err(|_| Errno::INVAL)?;
            // SIGXFSZ ends a process whose file grows too long, even a memory file.
            if !limits::may_file_have(length) {
                return Err(Errno::FBIG);
            }
            rustix::fs::ftruncate(file, length)?;
        }
        retry_on_intr(|| rustix::fs::fallocate(&head, FallocateFlags::empty(), 0, head_bytes as u64))?;
        let mapping = Self::join([&head, &rest], lengths_bytes, true)?;
        rustix::fs::fcntl_add_seals(&head, READER_SEALS)?;
        Ok((mapping, [head, for_reading(&rest)?]))
    }

    /// Gives these bytes memory, in whole pages.
    ///
    /// # Errors
    /// The error of the kernel: there is no memory, or a limit is reached. [`Errno::FAULT`] outside the mapping.
    pub fn populate(&self, from: usize, to: usize) -> Result<(), Errno> {
        if from > to || to > self.length_bytes() || !self.is_writable() {
            return Err(Errno::FAULT);
        }
        // SAFETY: whole pages within the mapping, which stays as it is.
        unsafe { rustix::mm::madvise(self.base().add(from).cast(), to - from, Advice::LinuxPopulateWrite) }
    }

    /// Maps memory of two files that a peer offers for reading, after checking their seals and sizes: `lengths_bytes` of
    /// the head, in whole pages, and of the rest. A page that its maker has not touched yet is allocated when it is first
    /// read, at this process's cost.
    ///
    /// # Errors
    /// [`OfferError`]; nothing is mapped then.
    pub fn accept_in_two(
        head: &impl AsFd,
        rest: &impl AsFd,
        lengths_bytes: [usize; 2],
    ) -> Result<Self, OfferError> {
        let [head_bytes, rest_bytes] = lengths_bytes;
        check(head, head_bytes)?;
        check_emptiable(rest, rest_bytes)?;
        Ok(Self::join([&head.as_fd(), &rest.as_fd()], lengths_bytes, false)?)
    }

    /// Maps two files one behind the other.
    fn join(files: [&impl AsFd; 2], lengths_bytes: [usize; 2], is_writable: bool) -> Result<Self, Errno> {
        let ([head, rest], [head_bytes, rest_bytes]) = (files, lengths_bytes);
        let length_bytes = head_bytes + rest_bytes;
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
        let base = unsafe {
            let (none, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
            rustix::mm::mmap_anonymous(ptr::null_mut(), length_bytes, none, flags)?
        };
        let mapping = Self::of(base, length_bytes, is_writable)?;
        // SAFETY: both lie within the mapping just made, which nobody uses yet, and which `mapping` unmaps as a whole.
        unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            rustix::mm::mmap(base, head_bytes, protection, flags, head, 0)?;
            rustix::mm::mmap(base.byte_add(head_bytes), rest_bytes, protection, flags, rest, 0)?;
            rustix::mm::madvise(base, length_bytes, Advice::LinuxDontFork)?;
        }
        Ok(mapping)
    }

    /// Maps memory offered by a process that is trusted not to use up this machine's memory, for reading. A page that its
    /// maker has not touched yet is allocated when it is first read.
    ///
    /// # Errors
    /// [`OfferError`]; nothing is mapped then.
    pub fn accept_with_holes(file: &impl AsFd, length_bytes: usize) -> Result<Self, OfferError> {
        check(file, length_bytes)?;
        Ok(Self::map(file, length_bytes, false)?)
    }

    /// Gives a stream socket bytes out of this memory, as many as it takes without waiting: `parts` are offsets and lengths.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::AGAIN`] if it takes none now, [`Errno::FAULT`] if a part is not within the
    /// memory.
    pub fn send(&self, socket: &impl AsFd, parts: [(usize, usize); 2]) -> Result<usize, Errno> {
        let within =
            |(at, length): (usize, usize)| at <= self.length_bytes() && length <= self.length_bytes() - at;
        if !parts.into_iter().all(within) {
            return Err(Errno::FAULT);
        }
        let mut list = parts.map(|(at, length)| libc::iovec {
            iov_base: self.base().wrapping_add(at).cast(),
            iov_len: length,
        });
        // SAFETY: zeros are a valid message. The kernel copies from the list's memory, all of it within this mapping, and
        // reports it if a page is missing.
        let sent = unsafe {
            let mut message: libc::msghdr = core::mem::MaybeUninit::zeroed().assume_init();
            message.msg_iov = list.as_mut_ptr();
            message.msg_iovlen = list.len();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags)
        };
        usize::try_from(sent).map_err(|_| last_error())
    }

    /// Wakes everybody who sleeps on the futex at this offset, in any process. The memory is this process's own.
    pub fn wake_sleepers(&self, offset: usize) {
        if !offset.is_multiple_of(4) || offset + 4 > self.length_bytes() {
            return;
        }
        // SAFETY: a word within the mapping, by the check. The kernel does not change it.
        unsafe {
            libc::syscall(libc::SYS_futex, self.base().add(offset), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::page;

    #[test]
    fn bytes_of_both_files_go_to_a_socket_and_nothing_outside_them_does() {
        let head_bytes = page::bytes();
        let (head, head_file) = Mapping::create("bywire-test", head_bytes).expect("memfd");
        let rest_file = emptiable("bywire-test", 1 << 16).expect("memfd");
        // SAFETY: the mapping is a page long, and only this thread touches it.
        unsafe { head.base().add(head_bytes - 1).write_volatile(42) };
        let both = Mapping::accept_in_two(&head_file, &rest_file, [head_bytes, 1 << 16]).expect("sound");
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        assert_eq!(both.send(&ours, [(head_bytes - 1, 3), (0, 0)]), Ok(3), "across the border");
        let mut found = [1; 3];
        theirs.read_exact(&mut found).expect("bytes");
        assert_eq!(found, [42, 0, 0]);
        let length = both.length_bytes();
        for part in [(length - 1, 2), (length + 1, 0), (usize::MAX, 1)] {
            assert_eq!(both.send(&ours, [(0, 1), part]), Err(Errno::FAULT), "{part:?}");
        }
    }

    #[test]
    fn files_of_another_length_or_without_seals_are_refused() {
        let (_head, head_file) = Mapping::create("bywire-test", page::bytes()).expect("memfd");
        let rest_file = emptiable("bywire-test", 1 << 16).expect("memfd");
        let lengths = [page::bytes(), 1 << 16];
        let refused = |head: &OwnedFd, rest: &OwnedFd, lengths| {
            Mapping::accept_in_two(head, rest, lengths).expect_err("refused")
        };
        assert_eq!(refused(&head_file, &rest_file, [page::bytes(), 1 << 17]), OfferError::WrongSize);
        assert_eq!(refused(&rest_file, &rest_file, lengths), OfferError::Unsealed);
        assert_eq!(refused(&head_file, &head_file, [page::bytes(); 2]), OfferError::Writable);
    }
}
