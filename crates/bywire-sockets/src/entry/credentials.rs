//! Calls by which a program gives up what it was allowed, after which the service may be out of its reach.

use core::ffi::{c_char, c_int};

use libc::size_t;

use super::take_over;
use crate::os::real;
use crate::pairing::offer;
use crate::process::sandbox;

take_over! {
    /// Becomes another user, or one of other groups.
    fn setuid(user: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setuid(user) }
    }

    /// Becomes another user, or one of other groups.
    fn setgid(group: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setgid(group) }
    }

    /// Becomes another user, or one of other groups.
    fn seteuid(user: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::seteuid(user) }
    }

    /// Becomes another user, or one of other groups.
    fn setegid(group: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setegid(group) }
    }

    /// Becomes another user, or one of other groups.
    fn setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setreuid(real, effective) }
    }

    /// Becomes another user, or one of other groups.
    fn setregid(real: libc::gid_t, effective: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setregid(real, effective) }
    }

    /// Becomes another user, or one of other groups.
    fn setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setresuid(real, effective, saved) }
    }

    /// Becomes another user, or one of other groups.
    fn setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setresgid(real, effective, saved) }
    }

    /// Becomes another user, or one of other groups.
    fn setgroups(count: size_t, groups: *const libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setgroups(count, groups) }
    }

    /// Becomes another user, or one of other groups.
    fn initgroups(user: *const c_char, group: libc::gid_t) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::initgroups(user, group) }
    }

    /// Sees another root from here on.
    fn chroot(path: *const c_char) -> c_int {
        offer::connect_early();
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::chroot(path) }
    }

    /// Many things; among them, to allow itself fewer calls.
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        sandbox::before_prctl(option, a, b);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::prctl(option, a, b, c, d) }
    }
}
