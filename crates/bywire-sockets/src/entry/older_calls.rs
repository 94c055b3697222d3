//! System calls by the numbers of their older forms, which newer architectures lack: those have only the successors.

use core::ffi::c_long;

/// Makes a hooked call by an older number. `None`: it is none of these.
///
/// # Safety
/// The requirements of the call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn call(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    use super::{descriptor, polling, process};
    let fd = a as core::ffi::c_int;
    // SAFETY: the program's own arguments, for the function that the number stands for.
    let status = unsafe {
        match number {
            libc::SYS_fork => process::fork_quietly(),
            libc::SYS_vfork => process::fork_and_wait(),
            libc::SYS_dup2 => descriptor::dup2(fd, b as _),
            libc::SYS_epoll_create => descriptor::epoll_create(fd),
            libc::SYS_epoll_wait => polling::epoll_wait(fd, b as _, c as _, d as _),
            libc::SYS_poll => polling::poll(a as _, b as _, c as _),
            libc::SYS_select => polling::select(fd, b as _, c as _, d as _, e as _),
            _ => return None,
        }
    };
    Some(status.into())
}

/// There are no older forms.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn call(_number: c_long, _arguments: [usize; 6]) -> Option<c_long> {
    None
}
