//! Whether a preloaded library would work in this process: its file can be mapped, and no filter forbids its calls.

use std::fs::File;
use std::path::Path;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Enough of a file to learn whether it may be mapped.
const PAGE_BYTES: usize = 4096;

/// The system calls of the library that a filter might forbid. The rest are those that every server makes, and `kill`, which
/// cannot be tried without effect.
pub const CALLS: [(&str, libc::c_long); 25] = [
    ("socket", libc::SYS_socket),
    ("sendmsg", libc::SYS_sendmsg),
    ("recvmsg", libc::SYS_recvmsg),
    ("memfd_create", libc::SYS_memfd_create),
    ("fallocate", libc::SYS_fallocate),
    ("ftruncate", libc::SYS_ftruncate),
    ("mmap", libc::SYS_mmap),
    ("munmap", libc::SYS_munmap),
    ("madvise", libc::SYS_madvise),
    ("eventfd2", libc::SYS_eventfd2),
    ("epoll_create1", libc::SYS_epoll_create1),
    ("epoll_ctl", libc::SYS_epoll_ctl),
    ("epoll_pwait", libc::SYS_epoll_pwait),
    ("ppoll", libc::SYS_ppoll),
    ("futex", libc::SYS_futex),
    ("futex_waitv", libc::SYS_futex_waitv),
    ("getcpu", libc::SYS_getcpu),
    ("getppid", libc::SYS_getppid),
    ("gettid", libc::SYS_gettid),
    ("pipe2", libc::SYS_pipe2),
    ("prlimit64", libc::SYS_prlimit64),
    ("rt_sigaction", libc::SYS_rt_sigaction),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    ("sched_yield", libc::SYS_sched_yield),
];

/// Maps a page of a file as the loader maps the code of a library.
///
/// # Errors
/// The error of the kernel. [`Errno::PERM`]: the file is on a mount without the right to execute.
pub fn map_code(path: &Path) -> Result<(), Errno> {
    let file = File::open(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object, and nothing runs its code.
    let base = unsafe {
        rustix::mm::mmap(core::ptr::null_mut(), PAGE_BYTES, protection, MapFlags::PRIVATE, &file, 0)?
    };
    // SAFETY: the range is the mapping just made, and nothing refers to it.
    unsafe { rustix::mm::munmap(base, PAGE_BYTES) }
}

/// Makes a system call whose arguments are all invalid, so that it changes nothing. A filter that forbids the call ends this
/// process or makes the call fail in its own way.
///
/// # Errors
/// The error of a filter: that of the kernel for invalid arguments is a success.
pub fn try_call(number: libc::c_long) -> Result<(), Errno> {
    // Filters forbid mappings that are both writable and executable, which -1 would request. The kernel refuses a length of 0.
    let invalid: libc::c_long = if number == libc::SYS_mmap { 0 } else { -1 };
    // SAFETY: the calls of `CALLS` refuse this value as a descriptor, address, length, set of flags or number of a signal, or
    // take no arguments and only return a number. So they read and write no memory.
    let returned = unsafe { libc::syscall(number, invalid, invalid, invalid, invalid, invalid, invalid) };
    let error = crate::option::last_error();
    let is_filtered = matches!(error, Errno::PERM | Errno::ACCESS | Errno::NOSYS);
    // The kernel has no operation -1 of a futex.
    let is_unknown_operation = number == libc::SYS_futex && error == Errno::NOSYS;
    // Linux before 5.16 has no `futex_waitv`, and the library does without.
    let is_new_call = number == libc::SYS_futex_waitv && error == Errno::NOSYS;
    if returned == -1 && is_filtered && !is_unknown_operation && !is_new_call { Err(error) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_filters_makes_every_call_and_maps_code() {
        for (name, number) in CALLS {
            assert_eq!(try_call(number), Ok(()), "{name}");
        }
        assert_eq!(map_code(&std::env::current_exe().expect("this test")), Ok(()));
        assert_eq!(map_code(Path::new("/no/such/file")), Err(Errno::NOENT));
    }
}
