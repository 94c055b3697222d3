//! The C library's own functions, behind the names that this library hooks.

#![allow(non_snake_case)]

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

use crate::os::objects;

/// The next definition of a hooked name. It is looked up when the library is loaded, or by an earlier call.
struct Symbol {
    name: &'static CStr,
    address: AtomicUsize,
}

/// Stands for a function that this C library lacks.
const ABSENT: usize = 1;

impl Symbol {
    const fn new(name: &'static str) -> Self {
        let name = match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        Self { name, address: AtomicUsize::new(0) }
    }

    fn address(&self) -> Option<usize> {
        // Relaxed: every thread finds the same address.
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            address = next(self.name);
            address = if address == 0 { ABSENT } else { address };
            self.address.store(address, Ordering::Relaxed);
        }
        (address != ABSENT).then_some(address)
    }
}

/// Looks a name up behind this library. The loader finds out by the caller's address which library asks.
fn next(name: &CStr) -> usize {
    // SAFETY: a valid name; the handle is the one that is documented for this use.
    unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

/// The address of the next function of this name that looks symbols up: `dlsym` or `dlvsym`. It is found without them.
fn resolve_lookup(address: &AtomicUsize, name: &CStr) -> usize {
    // Relaxed: every thread finds the same address.
    let known = address.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = objects::next_definition(name).unwrap_or(absent_symbol as *const () as usize);
    address.store(found, Ordering::Relaxed);
    found
}

/// The address of `dlsym`. A jump keeps the caller's address, by which the function finds out what `RTLD_NEXT` means.
pub fn dlsym_address() -> usize {
    static DLSYM: AtomicUsize = AtomicUsize::new(0);
    resolve_lookup(&DLSYM, c"dlsym")
}

/// The address of `dlvsym`.
pub fn dlvsym_address() -> usize {
    static DLVSYM: AtomicUsize = AtomicUsize::new(0);
    resolve_lookup(&DLVSYM, c"dlvsym")
}

/// The C library's function. A handle that means the caller means this library.
///
/// # Safety
/// The requirements of C's function of this name.
pub unsafe fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the function of this name has this type in C, and the caller's guarantee.
    unsafe { core::mem::transmute::<usize, Lookup>(dlsym_address())(handle, name) }
}

/// The C library's function.
///
/// # Safety
/// The requirements of C's function of this name.
pub unsafe fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: the function of this name has this type in C, and the caller's guarantee.
    unsafe { core::mem::transmute::<usize, Lookup>(dlvsym_address())(handle, name, version) }
}

/// The address of `dlopen`. A jump keeps the caller's address, because the caller's own search path applies to names.
pub fn dlopen_address() -> usize {
    static DLOPEN: Symbol = Symbol::new("dlopen\0");
    DLOPEN.address().unwrap_or(absent_symbol as *const () as usize)
}

/// The address of `dlmopen`.
pub fn dlmopen_address() -> usize {
    static DLMOPEN: Symbol = Symbol::new("dlmopen\0");
    DLMOPEN.address().unwrap_or(absent_symbol as *const () as usize)
}

/// The C library's function. A name without a path is searched for as this library's own.
///
/// # Safety
/// The requirements of C's function of this name.
pub unsafe fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    // Constructors of the opened library run in it, and may leave it as C++ permits.
    type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: the function of this name has this type in C, and the caller's guarantee.
    unsafe { core::mem::transmute::<usize, Open>(dlopen_address())(file, mode) }
}

extern "C" fn absent_symbol() -> *mut c_void {
    core::ptr::null_mut()
}

macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, else $absent:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod symbol {
            use super::Symbol;

            $(pub static $name: Symbol = Symbol::new(concat!(stringify!($name), "\0"));)*
        }

        /// Looks all of them up. A later lookup would wait for a thread that loads a library.
        pub fn find_all() {
            $(let _ = symbol::$name.address();)*
            let _ = (vfork_address(), dprintf_address(), checked_dprintf_address());
            let _ = (dlsym_address(), dlvsym_address(), dlopen_address(), dlmopen_address());
        }

        $(
            /// The C library's function.
            ///
            /// # Safety
            /// The requirements of C's function of this name.
            #[inline]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                let Some(address) = symbol::$name.address() else {
                    crate::os::errno::set(libc::ENOSYS);
                    return $absent;
                };
                // SAFETY: the symbol of this name has this type in C. A thread that is cancelled in it is unwound.
                let function: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { core::mem::transmute(address) };
                // SAFETY: the caller's guarantee.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

/// The address of the C library's `vfork`. Only a caller without a stack frame may jump to it.
pub fn vfork_address() -> Option<usize> {
    static VFORK: Symbol = Symbol::new("vfork\0");
    VFORK.address()
}

/// The address of the C library's `dprintf`. Only a jump can pass its variable arguments on.
pub fn dprintf_address() -> usize {
    static DPRINTF: Symbol = Symbol::new("dprintf\0");
    DPRINTF.address().unwrap_or(absent as *const () as usize)
}

/// The address of `__dprintf_chk`.
pub fn checked_dprintf_address() -> usize {
    static DPRINTF: Symbol = Symbol::new("__dprintf_chk\0");
    DPRINTF.address().unwrap_or(absent as *const () as usize)
}

extern "C" fn absent() -> c_int {
    crate::os::errno::set(libc::ENOSYS);
    -1
}

/// A jump does not return, and this C library has no function of that name.
fn without_jump() {
    std::process::abort()
}

real! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else -1;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, else -1;
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int, else -1;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int, else -1;
    listen(fd: c_int, queue: c_int) -> c_int, else -1;
    close(fd: c_int) -> c_int, else -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, else -1;
    shutdown(fd: c_int, how: c_int) -> c_int, else -1;
    read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t, else -1;
    write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t, else -1;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, else -1;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, else -1;
    recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t, else -1;
    send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t, else -1;
    recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t, else -1;
    sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t, else -1;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, else -1;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, else -1;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int, else -1;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, else -1;
    sendfile(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t, else -1;
    splice(source: c_int, source_offset: *mut i64, target: c_int, target_offset: *mut i64, length: size_t, flags: c_uint) -> ssize_t, else -1;
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t, else -1;
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t, else -1;
    aio_read(control: *mut c_void) -> c_int, else -1;
    aio_read64(control: *mut c_void) -> c_int, else -1;
    aio_write(control: *mut c_void) -> c_int, else -1;
    aio_write64(control: *mut c_void) -> c_int, else -1;
    lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int, else -1;
    lio_listio64(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int, else -1;
    pread(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t) -> ssize_t, else -1;
    dup(fd: c_int) -> c_int, else -1;
    dup2(old: c_int, new: c_int) -> c_int, else -1;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int, else -1;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, else -1;
    ioctl(fd: c_int, request: usize, argument: *mut c_void) -> c_int, else -1;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int, else -1;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int, else -1;
    poll(files: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int, else -1;
    ppoll(files: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int, else -1;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int, else -1;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int, else -1;
    epoll_create1(flags: c_int) -> c_int, else -1;
    epoll_create(size: c_int) -> c_int, else -1;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int, else -1;
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int, else -1;
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int, else -1;
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int, else -1;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else -1;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int, else -1;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int, else -1;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else -1;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else -1;
    execveat(directory: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int, else -1;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else libc::ENOSYS;
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else libc::ENOSYS;
    pidfd_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else libc::ENOSYS;
    pidfd_spawnp(pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else libc::ENOSYS;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int, else libc::ENOSYS;
    _Fork() -> pid_t, else -1;
    unshare(flags: c_int) -> c_int, else -1;
    clone(work: usize, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: usize, storage: usize, child: usize) -> c_int, else -1;
    fork() -> pid_t, else -1;
    daemon(stays: c_int, keeps: c_int) -> c_int, else -1;
    login_tty(terminal: c_int) -> c_int, else -1;
    forkpty(master: *mut c_int, name: *mut c_char, terminal: *const c_void, size: *const c_void) -> pid_t, else -1;
    system(command: *const c_char) -> c_int, else -1;
    popen(command: *const c_char, kind: *const c_char) -> *mut c_void, else core::ptr::null_mut();
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int, else -1;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int, else -1;
    fdopen(fd: c_int, mode: *const c_char) -> *mut c_void, else core::ptr::null_mut();
    fclose(stream: *mut c_void) -> c_int, else -1;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void, else core::ptr::null_mut();
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void, else core::ptr::null_mut();
    sigaction(number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int, else -1;
    signal(number: c_int, handler: usize) -> usize, else libc::SIG_ERR;
    sysv_signal(number: c_int, handler: usize) -> usize, else libc::SIG_ERR;
    sigset(number: c_int, handler: usize) -> usize, else libc::SIG_ERR;
    longjmp(place: *mut c_void, value: c_int) -> (), else without_jump();
    _longjmp(place: *mut c_void, value: c_int) -> (), else without_jump();
    siglongjmp(place: *mut c_void, value: c_int) -> (), else without_jump();
    __longjmp_chk(place: *mut c_void, value: c_int) -> (), else without_jump();
    setcontext(context: *const libc::ucontext_t) -> c_int, else -1;
    setuid(user: libc::uid_t) -> c_int, else -1;
    setgid(group: libc::gid_t) -> c_int, else -1;
    seteuid(user: libc::uid_t) -> c_int, else -1;
    setegid(group: libc::gid_t) -> c_int, else -1;
    setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int, else -1;
    setregid(real: libc::gid_t, effective: libc::gid_t) -> c_int, else -1;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int, else -1;
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) -> c_int, else -1;
    setgroups(count: size_t, groups: *const libc::gid_t) -> c_int, else -1;
    initgroups(user: *const c_char, group: libc::gid_t) -> c_int, else -1;
    chroot(path: *const c_char) -> c_int, else -1;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int, else -1;
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long, else -1;
}
