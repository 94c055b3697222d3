//! Calls that start, replace and end programs, and the call that makes any system call.

use core::ffi::{c_char, c_int, c_long, c_void};

use libc::pid_t;

use super::take_over;
use super::{data, descriptor, files, polling, socket};
use crate::memory::{descriptors, vforked};
use crate::os::user_access::are_readable;
use crate::os::{errno, own_call, real, sanitizer, signal_deferral};
use crate::pairing::offer;
use crate::process::{exec, exit, fork, io_uring, lifecycle, sandbox};

const SYS_EPOLL_PWAIT2: c_long = 441;

type Words = *const *const c_char;

take_over! {
    /// Replaces this program.
    fn execve(path: *const c_char, arguments: Words, environment: Words) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        exec::replace(|| unsafe { real::execve(path, arguments, environment) })
    }

    /// Replaces this program.
    fn execv(path: *const c_char, arguments: Words) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        exec::replace(|| unsafe { real::execv(path, arguments) })
    }

    /// Replaces this program.
    fn execvp(file: *const c_char, arguments: Words) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        exec::replace(|| unsafe { real::execvp(file, arguments) })
    }

    /// Replaces this program.
    fn execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        exec::replace(|| unsafe { real::execvpe(file, arguments, environment) })
    }

    /// Replaces this program.
    fn fexecve(fd: c_int, arguments: Words, environment: Words) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        exec::replace(|| unsafe { real::fexecve(fd, arguments, environment) })
    }

    /// Replaces this program.
    fn execveat(directory: c_int, path: *const c_char, arguments: Words, environment: Words, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        exec::replace(|| unsafe { real::execveat(directory, path, arguments, environment, flags) })
    }

    /// Starts another program.
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words, environment: Words) -> c_int {
        exec::hand_over(!actions.is_null());
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::posix_spawn(pid, path, actions, attributes, arguments, environment) }
    }

    /// Starts another program.
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words, environment: Words) -> c_int {
        exec::hand_over(!actions.is_null());
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::posix_spawnp(pid, file, actions, attributes, arguments, environment) }
    }

    /// Adds a copy of a descriptor that a program will be started with.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int {
        descriptors::name(old);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::posix_spawn_file_actions_adddup2(actions, old, new) }
    }

    /// Starts another program.
    fn pidfd_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words, environment: Words) -> c_int {
        exec::hand_over(!actions.is_null());
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::pidfd_spawn(pid, path, actions, attributes, arguments, environment) }
    }

    /// Starts another program.
    fn pidfd_spawnp(pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words, environment: Words) -> c_int {
        exec::hand_over(!actions.is_null());
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::pidfd_spawnp(pid, file, actions, attributes, arguments, environment) }
    }

    /// Runs a shell.
    fn system(command: *const c_char) -> c_int {
        exec::hand_over(false);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::system(command) }
    }

    /// Runs a shell.
    fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
        exec::hand_over(false);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::popen(command, kind) }
    }

    /// Runs a shell, by another name of the C library's.
    fn _IO_popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
        // SAFETY: the program's own arguments, as they came.
        unsafe { popen(command, kind) }
    }

    /// Ends this process at once.
    fn _exit(status: c_int) -> () {
        exit::end();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::syscall(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    }

    /// Ends this process at once.
    fn _Exit(status: c_int) -> () {
        exit::end();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::syscall(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    }

    /// Forks.
    fn fork() -> pid_t {
        // SAFETY: no arguments. It runs the handlers that `startup::begin` has registered.
        fork::fork(|| unsafe { real::fork() })
    }

    /// Forks, by another name of the C library's.
    fn __fork() -> pid_t {
        // SAFETY: no arguments.
        unsafe { fork() }
    }

    /// Forks, and the parent exits.
    fn daemon(stays: c_int, keeps: c_int) -> c_int {
        // SAFETY: no pointers. It returns in the child, or in a process that could not fork.
        let status = fork::fork(|| unsafe { real::daemon(stays, keeps) });
        if status == 0 && keeps == 0 {
            lifecycle::after_standard_replaced();
        }
        status
    }

    /// Forks, with a pseudo-terminal between the two processes.
    fn forkpty(master: *mut c_int, name: *mut c_char, terminal: *const c_void, size: *const c_void) -> pid_t {
        // SAFETY: the program's own arguments, as they came.
        let child = fork::fork(|| unsafe { real::forkpty(master, name, terminal, size) });
        if child == 0 {
            lifecycle::after_standard_replaced();
        }
        child
    }

    /// Makes a terminal this process's standard input, output and error.
    fn login_tty(terminal: c_int) -> c_int {
        // SAFETY: no pointers.
        let status = unsafe { real::login_tty(terminal) };
        if status == 0 {
            lifecycle::after_standard_replaced();
        }
        status
    }

    /// Forks without running the fork handlers.
    fn _Fork() -> pid_t {
        fork_quietly()
    }

    /// Gives this thread its own copy of what it shares with others.
    fn unshare(flags: c_int) -> c_int {
        before_unshare(flags);
        // SAFETY: no pointers.
        unsafe { real::unshare(flags) }
    }

    /// Makes a child that runs a function. The arguments after the fourth may be missing, and are only passed on.
    fn clone(work: usize, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: usize, storage: usize, child: usize) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        clone_by(flags, || unsafe { real::clone(work, stack, flags, argument, parent, storage, child) })
    }

    /// Makes any system call by its number. Calls that are hooked by name are also hooked here.
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        call(number, [a, b, c, d, e, f])
    }
}

/// Makes a child in this process's memory, and waits for it. It returns twice, so nothing of it may stay on the stack:
/// the address to continue at is kept in a register, as the C library's own function does.
///
/// # Safety
/// The requirements of C's `vfork`. The parent continues when the child has executed another program or has ended.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() {
    core::arch::naked_asm!(
        "push rax",
        "call {choose}",
        "pop rcx",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "test rax, rax",
        "jz 3f",
        "push rdi",
        // The stack must be aligned to 16 bytes at a call.
        "sub rsp, 8",
        "mov rdi, rax",
        "call {resume}",
        "add rsp, 8",
        "ret",
        "3:",
        "jmp rdi",
        choose = sym choose_vfork,
        number = const libc::SYS_vfork,
        resume = sym resume_from_vfork,
    )
}

/// `vfork`, by another name of the C library's.
///
/// # Safety
/// The requirements of C's `vfork`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vfork() {
    core::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

/// The function that does what `vfork` does; 0: the caller makes the child.
extern "C" fn choose_vfork() -> usize {
    let fork: unsafe extern "C-unwind" fn() -> pid_t = fork_and_wait;
    if own_call::are_over() {
        return real::vfork_address().unwrap_or(fork as usize);
    }
    // A runtime that records each access to memory has a function of its own, which the system call would bypass.
    if !sanitizer::is_present() && vforked::begin() { 0 } else { fork as usize }
}

/// In the parent, when the child has executed another program or has ended. It gets and returns what the kernel, and
/// what C's `vfork` returns.
extern "C" fn resume_from_vfork(result: c_long) -> pid_t {
    vforked::end();
    if result < 0 { errno::fail(-result as c_int) as pid_t } else { result as pid_t }
}

/// Forks, and waits until the child has executed another program or has ended.
unsafe extern "C-unwind" fn fork_and_wait() -> pid_t {
    fork::await_next_child();
    // SAFETY: runs the handlers that `begin` has registered.
    let child = unsafe { fork() };
    if let Some(end) = fork::awaited_child() {
        let mut byte = 0u8;
        // The child's end of the pipe closes with its exec or its exit. The call is made by number, because a thread
        // cannot be cancelled in `vfork`.
        errno::keep(|| {
            // SAFETY: room for a byte, and a descriptor of ours.
            unsafe {
                let (fd, place) = (end as usize, (&raw mut byte) as usize);
                while real::syscall(libc::SYS_read, fd, place, 1, 0, 0, 0) < 0 && errno::last() == libc::EINTR
                {
                }
                real::syscall(libc::SYS_close, fd, 0, 0, 0, 0, 0);
            }
        });
    }
    child
}

/// Defines functions with variable arguments. `$replace` gets the first argument and the others as an array: the words
/// from registers are stored in front of those that are in memory already.
macro_rules! take_lists_over {
    ($($(#[$doc:meta])* fn $name:ident => $replace:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The requirements of C's function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "pop rax",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    // The address to continue at. The stack must be aligned to 16 bytes at a call.
                    "push rax",
                    "call {replace}",
                    "pop rcx",
                    "add rsp, 40",
                    "push rcx",
                    "ret",
                    replace = sym $replace,
                )
            }
        )*
    };
}

take_lists_over! {
    /// Replaces this program.
    fn execl => replace;

    /// Replaces this program.
    fn execlp => replace_by_name;

    /// Replaces this program.
    fn execle => replace_in_environment;
}

unsafe extern "C" fn replace(path: *const c_char, arguments: Words) -> c_int {
    // SAFETY: the program's own arguments, as they came.
    unsafe { execv(path, arguments) }
}

unsafe extern "C" fn replace_by_name(file: *const c_char, arguments: Words) -> c_int {
    // SAFETY: the program's own arguments, as they came.
    unsafe { execvp(file, arguments) }
}

/// The environment follows the end of the list.
unsafe extern "C" fn replace_in_environment(path: *const c_char, arguments: Words) -> c_int {
    // SAFETY: the program's own list of arguments, which ends with a null.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, end.add(1).cast::<Words>().read())
    }
}

fn before_unshare(flags: c_int) {
    if flags & libc::CLONE_FILES != 0 {
        sandbox::before_unshare();
    }
}

/// Whether these flags of `clone` make a child in this process's memory that has descriptors of its own.
fn is_in_memory(flags: c_int) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_FILES) == libc::CLONE_VM
}

/// Makes a child by `clone`, which runs on another stack.
fn clone_by(flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if own_call::are_over() || !is_in_memory(flags) {
        return real();
    }
    if flags & libc::CLONE_VFORK == 0 {
        sandbox::before_child_in_memory();
        return real();
    }
    let is_bare = flags & libc::CLONE_SETTLS != 0 || !vforked::begin();
    if is_bare {
        vforked::begin_bare();
    }
    let child = real();
    match is_bare {
        true => vforked::end_bare(),
        false => vforked::end(),
    }
    child
}

fn fork_quietly() -> pid_t {
    // SAFETY: no arguments. The child continues as a forked one does.
    fork_by(&|| unsafe { real::_Fork() }.into()) as pid_t
}

/// Forks by system call number. The caller says what the child gets.
fn fork_by(real: &dyn Fn() -> c_long) -> c_long {
    fork::fork(|| {
        fork::before_fork();
        let child = real();
        if child == 0 {
            lifecycle::after_fork_in_child();
        } else {
            errno::keep(|| fork::after_fork_in_parent());
        }
        child as pid_t
    })
    .into()
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
            libc::SYS_execve => execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => execveat(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_fork => fork_quietly().into(),
            libc::SYS_vfork => fork_and_wait().into(),
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 && b == 0 => fork_by(&real),
            libc::SYS_clone3 if is_fork(a as _, b) => fork_by(&real),
            libc::SYS_unshare => {
                before_unshare(fd);
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
            libc::SYS_dup2 => descriptor::dup2(fd, b as _).into(),
            libc::SYS_dup3 => descriptor::dup3(fd, b as _, c as _).into(),
            libc::SYS_epoll_create => descriptor::epoll_create(fd).into(),
            libc::SYS_epoll_create1 => descriptor::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => descriptor::epoll_ctl(fd, b as _, c as _, d as _).into(),
            libc::SYS_epoll_wait => polling::epoll_wait(fd, b as _, c as _, d as _).into(),
            libc::SYS_poll => polling::poll(a as _, b as _, c as _).into(),
            // The kernel has the error for a mask of another length.
            libc::SYS_ppoll if !polling::is_mask(d, e) => real(),
            libc::SYS_epoll_pwait | SYS_EPOLL_PWAIT2 if !polling::is_mask(e, f) => real(),
            // The kernel's masks are the first eight bytes of the C library's, which passes no more of them on.
            libc::SYS_ppoll => {
                polling::storing_left(c as _, || polling::ppoll(a as _, b as _, c as _, d as _)).into()
            }
            libc::SYS_epoll_pwait => polling::epoll_pwait(fd, b as _, c as _, d as _, e as _).into(),
            SYS_EPOLL_PWAIT2 => polling::epoll_pwait2(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_select => polling::select(fd, b as _, c as _, d as _, e as _).into(),
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
            _ => real(),
        }
    }
}
