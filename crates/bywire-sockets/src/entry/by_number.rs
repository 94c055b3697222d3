//! The call that makes any system call by its number.

use core::ffi::{c_int, c_long};

use super::{data, descriptor, files, older_calls, polling, process, socket, take_over};
use crate::os::user_access::are_readable;
use crate::os::{errno, real, signal_deferral};
use crate::pairing::offer;
use crate::process::{exit, io_uring, sandbox};

const SYS_EPOLL_PWAIT2: c_long = 441;

take_over! {
    /// Makes any system call by its number. Calls that are hooked by name are also hooked here.
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        call(number, [a, b, c, d, e, f])
    }
}

/// Whether these arguments of `clone3` make a process with a copy of its parent's memory and stack.
fn is_fork(arguments: *const u64, size: usize) -> bool {
    // From `struct clone_args` in linux/sched.h: the first version, and the offsets of the flags and the stack.
    const WORDS: usize = 8;
    const STACK: usize = 5;
    // SAFETY: the program's own structure, which can be read.
    let word = |at: usize| unsafe { arguments.add(at).read_unaligned() };
    size >= WORDS * size_of::<u64>()
        && are_readable(arguments, WORDS)
        && word(0) & libc::CLONE_VM as u64 == 0
        && word(STACK) == 0
}

fn call(number: c_long, given: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = given;
    let fd = a as c_int;
    // SAFETY: the program's own arguments, as they came.
    let real = || unsafe { real::syscall(number, a, b, c, d, e, f) };
    // SAFETY: the program's own arguments, for the function that the number stands for.
    unsafe {
        match number {
            libc::SYS_futex => real(),
            libc::SYS_read => data::read(fd, b as _, c) as c_long,
            libc::SYS_write => data::write(fd, b as _, c) as c_long,
            libc::SYS_readv => data::readv(fd, b as _, c as _) as c_long,
            libc::SYS_writev => data::writev(fd, b as _, c as _) as c_long,
            libc::SYS_recvfrom => data::recvfrom(fd, b as _, c, d as _, e as _, f as _) as c_long,
            libc::SYS_sendto => data::sendto(fd, b as _, c, d as _, e as _, f as _) as c_long,
            libc::SYS_recvmsg => data::recvmsg(fd, b as _, c as _) as c_long,
            libc::SYS_sendmsg => data::sendmsg(fd, b as _, c as _) as c_long,
            libc::SYS_sendfile => files::sendfile(fd, b as _, c as _, d) as c_long,
            libc::SYS_splice => data::splice(fd, b as _, c as _, d as _, e, f as _) as c_long,
            libc::SYS_preadv2 => files::preadv2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_pwritev2 => files::pwritev2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_recvmmsg => data::recvmmsg(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_sendmmsg => data::sendmmsg(fd, b as _, c as _, d as _).into(),
            libc::SYS_fcntl => descriptor::fcntl(fd, b as _, c).into(),
            libc::SYS_ioctl => descriptor::ioctl(fd, b, c as _).into(),
            libc::SYS_getsockopt => socket::getsockopt(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_setsockopt => socket::setsockopt(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_execve => process::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => process::execveat(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 && b == 0 => process::fork_by(&real),
            libc::SYS_clone3 if is_fork(a as _, b) => process::fork_by(&real),
            libc::SYS_unshare => {
                process::before_unshare(fd);
                real()
            }
            libc::SYS_exit_group => {
                exit::end();
                real()
            }
            libc::SYS_exit => {
                exit::end_thread();
                real()
            }
            libc::SYS_io_submit => {
                files::before_submission(c as _, b);
                real()
            }
            libc::SYS_socket => socket::socket(fd, b as _, c as _).into(),
            libc::SYS_connect => socket::connect(fd, b as _, c as _).into(),
            libc::SYS_accept => socket::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => socket::accept4(fd, b as _, c as _, d as _).into(),
            libc::SYS_close => descriptor::close(fd).into(),
            libc::SYS_close_range => descriptor::close_range(a as _, b as _, c as _).into(),
            libc::SYS_shutdown => socket::shutdown(fd, b as _).into(),
            libc::SYS_dup => descriptor::dup(fd).into(),
            libc::SYS_dup3 => descriptor::dup3(fd, b as _, c as _).into(),
            libc::SYS_epoll_create1 => descriptor::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => descriptor::epoll_ctl(fd, b as _, c as _, d as _).into(),
            // The kernel has the error for a mask of another length.
            libc::SYS_ppoll if !polling::is_mask(d, e) => real(),
            libc::SYS_epoll_pwait | SYS_EPOLL_PWAIT2 if !polling::is_mask(e, f) => real(),
            // The kernel's masks are the first eight bytes of the C library's, which passes no more of them on.
            libc::SYS_ppoll => {
                polling::storing_left(c as _, || polling::ppoll(a as _, b as _, c as _, d as _)).into()
            }
            libc::SYS_epoll_pwait => polling::epoll_pwait(fd, b as _, c as _, d as _, e as _).into(),
            SYS_EPOLL_PWAIT2 => polling::epoll_pwait2(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_pselect6 => match polling::packed_mask(f as _) {
                None => real(),
                Some(mask) => polling::storing_left(e as _, || {
                    polling::pselect(fd, b as _, c as _, d as _, e as _, mask)
                })
                .into(),
            },
            libc::SYS_prctl => {
                sandbox::before_prctl(fd, b, c);
                real()
            }
            libc::SYS_seccomp => {
                sandbox::before_seccomp(a, c);
                real()
            }
            libc::SYS_rt_sigaction => {
                signal_deferral::bypass();
                real()
            }
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_chroot => {
                offer::connect_early();
                real()
            }
            libc::SYS_io_uring_setup => {
                if io_uring::permit() {
                    real()
                } else {
                    errno::fail(io_uring::REFUSED) as c_long
                }
            }
            _ => older_calls::call(number, given).unwrap_or_else(real),
        }
    }
}
