//! `select` over descriptors of which some are carried connections. It is made into a `poll`.

use libc::{fd_set, pollfd, sigset_t};

use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::user_access::are_readable;
use crate::os::{errno, kernel};
use crate::polling::poll;

const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR;
const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR;
const URGENT: i16 = libc::POLLPRI;

/// One of the three sets, as words. Programs may use longer sets than C declares.
#[derive(Clone, Copy)]
struct Bits(*mut u64);

impl Bits {
    fn has(self, fd: i32) -> bool {
        // SAFETY: the program's set has a bit for every descriptor below the number that the program states.
        !self.0.is_null() && unsafe { *self.0.add(fd as usize / 64) } >> (fd % 64) & 1 == 1
    }

    fn put(self, fd: i32, is_in: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: the program's set has a bit for every descriptor below the number that the program states.
        let word = unsafe { &mut *self.0.add(fd as usize / 64) };
        *word = *word & !(1 << (fd % 64)) | u64::from(is_in) << (fd % 64);
    }
}

/// `select`. `None`: the library has nothing to do with it, and the kernel's own call suffices. The time left is stored
/// in `left_ns`.
pub fn select(
    count: i32,
    sets: [*mut fd_set; 3],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    left_ns: &mut Option<u64>,
) -> Option<i32> {
    let words = count.max(0).unsigned_abs().div_ceil(u64::BITS) as usize;
    if !sets.iter().all(|set| set.is_null() || are_readable(set.cast::<u64>().cast_const(), words)) {
        return None;
    }
    let bits = sets.map(|set| Bits(set.cast()));
    let matters = |fd: i32| {
        !matches!(descriptors::kind(fd), DescriptorKind::Untracked | DescriptorKind::Hidden)
            && bits.iter().any(|set| set.has(fd))
    };
    if count <= 0 || !(0..count).any(matters) {
        return None;
    }
    let began = kernel::now_ns();
    let used = (0..count).filter(|fd| events(bits, *fd) != 0).count();
    let status = poll::with_entries(used, |files| wait(files, count, bits, timeout_ns, mask));
    *left_ns = timeout_ns.map(|timeout| timeout.saturating_sub(kernel::now_ns() - began));
    Some(status)
}

/// The events that `poll` is asked for a descriptor.
fn events(bits: [Bits; 3], fd: i32) -> i16 {
    let wanted = [READABLE, WRITABLE, URGENT];
    bits.iter().zip(wanted).filter(|(set, _)| set.has(fd)).fold(0, |sum, (_, bits)| sum | bits)
}

/// Makes the call in `files`, which has room.
fn wait(
    files: &mut [pollfd],
    count: i32,
    bits: [Bits; 3],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    let mut used = 0;
    for (fd, events) in (0..count).map(|fd| (fd, events(bits, fd))).filter(|(_, events)| *events != 0) {
        if let Some(file) = files.get_mut(used) {
            *file = pollfd { fd, events, revents: 0 };
            used += 1;
        }
    }
    let status = poll::poll(files.as_mut_ptr(), used as u64, timeout_ns, &|files, count, timeout| {
        poll::wait(files, count, timeout, mask)
    });
    if status < 0 {
        return status;
    }
    let files = files.get(..used).unwrap_or(&[]);
    if files.iter().any(|file| file.revents & libc::POLLNVAL != 0) {
        return errno::fail(libc::EBADF) as i32;
    }
    report(files, bits)
}

/// Writes the sets. Returns the number of bits in them.
fn report(files: &[pollfd], bits: [Bits; 3]) -> i32 {
    let mut found = 0;
    for file in files {
        for (set, wanted) in bits.into_iter().zip([READABLE, WRITABLE, URGENT]) {
            if set.has(file.fd) {
                let is_in = file.revents & wanted != 0;
                set.put(file.fd, is_in);
                found += i32::from(is_in);
            }
        }
    }
    found
}
