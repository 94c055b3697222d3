//! Calls by which a program gives up privileges. Afterwards the pairing service may be out of its reach.

use core::ffi::{c_char, c_int};

use libc::size_t;

use super::take_over;
use crate::os::real;
use crate::pairing::offer;
use crate::process::sandbox;

take_over! {
    /// Changes the user.
    fn setuid(user: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setuid(user) }
    }

    /// Changes the group.
    fn setgid(group: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setgid(group) }
    }

    /// Changes the user.
    fn seteuid(user: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::seteuid(user) }
    }

    /// Changes the group.
    fn setegid(group: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setegid(group) }
    }

    /// Changes the user.
    fn setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setreuid(real, effective) }
    }

    /// Changes the group.
    fn setregid(real: libc::gid_t, effective: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setregid(real, effective) }
    }

    /// Changes the user.
    fn setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setresuid(real, effective, saved) }
    }

    /// Changes the group.
    fn setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setresgid(real, effective, saved) }
    }

    /// Changes the supplementary groups.
    fn setgroups(count: size_t, groups: *const libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setgroups(count, groups) }
    }

    /// Changes the supplementary groups.
    fn initgroups(user: *const c_char, group: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::initgroups(user, group) }
    }

    /// Changes the root directory.
    fn chroot(path: *const c_char) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::chroot(path) }
    }

    /// Has many operations. One restricts the program's system calls.
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        sandbox::before_prctl(option, a, b);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::prctl(option, a, b, c, d) }
    }
}
