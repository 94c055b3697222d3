//! Calls of the kernel that several tests make.

use std::os::fd::RawFd;

use super::eventually;

/// Limits a resource of this process.
pub fn set_limit(resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a live structure.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Sends a signal to a process of this test.
pub fn signal(process: u32, signal: i32) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

/// Sets the handler of a signal.
pub fn handle(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: a live structure; noughts are a valid one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler as usize, flags);
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

pub fn duplicate(fd: RawFd) -> RawFd {
    // SAFETY: no pointers.
    unsafe { libc::dup(fd) }
}

pub fn shut_down(fd: RawFd, how: i32) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::shutdown(fd, how) }, 0);
}

/// Makes calls on a descriptor wait.
pub fn let_wait(fd: RawFd) {
    super::set_nonblocking(fd, false);
}

pub fn set_option(fd: RawFd, level: i32, name: i32, value: i32) {
    // SAFETY: a live int.
    let status = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) };
    assert_eq!(status, 0, "{}", super::errno());
}

/// Changes what an epoll set reports of a descriptor, with the data of the event.
pub fn register(set: RawFd, operation: i32, fd: RawFd, events: i32, data: u64) -> i64 {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    // SAFETY: a live event.
    unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) }.into()
}

/// Adds a descriptor to an epoll set.
pub fn add(set: RawFd, fd: RawFd, events: i32, data: u64) {
    assert_eq!(register(set, libc::EPOLL_CTL_ADD, fd, events, data), 0);
}

/// The number of events that an epoll set has within a time, at most four.
pub fn events_in(set: RawFd, timeout_ms: i32) -> i32 {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: room for four.
    unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, timeout_ms) }
}

/// One event of an epoll set, by its data.
pub fn one_event(set: RawFd, timeout_ms: i32) -> Option<u64> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // A wait that finds nothing leaves the error of an earlier call.
    // SAFETY: this thread's own variable, and room for one event.
    let found = unsafe {
        *libc::__errno_location() = 0;
        libc::epoll_wait(set, &raw mut event, 1, timeout_ms)
    };
    (found == 1).then_some(event.u64)
}

/// The processor time of this thread.
pub fn used_ms() -> i64 {
    // SAFETY: noughts are a value, which is overwritten.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec * 1000 + time.tv_usec / 1000).sum()
}

/// The number of threads of a process that are in one of these calls, each by its number and a space.
pub fn threads_in(process: &str, calls: &[&str]) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let is_there = |thread: &std::fs::DirEntry| {
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        calls.iter().any(|known| call.starts_with(known))
    };
    threads.filter_map(Result::ok).filter(is_there).count()
}

/// Waits until a thread of a process is in one of these calls.
pub fn await_sleep(process: &str, calls: &[&str]) {
    eventually("it sleeps", || threads_in(process, calls) > 0);
}
