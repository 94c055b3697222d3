//! `poll` over descriptors of which some are UDP sockets with datagrams in memory.

use libc::pollfd;

use crate::datagram::members;
use crate::datagram::readiness::{Asleep, spins};
use crate::datagram::sockets::{self, Socket};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::{errno, kernel};

const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Waits. `rest` is the wait for everything else. `None`: there is no such socket.
pub fn poll(
    files: &mut [pollfd],
    timeout_ns: Option<u64>,
    rest: impl Fn(&mut [pollfd], Option<u64>) -> i32,
) -> Option<i32> {
    for file in files.iter() {
        if let DescriptorKind::EpollSet(name) = descriptors::kind(file.fd) {
            members::leave_watched(name);
        }
    }
    if !files.iter().any(|file| socket(file).is_some()) {
        return None;
    }
    let end_ns = timeout_ns.map(|timeout| kernel::now_ns().saturating_add(timeout));
    let left_ns = || end_ns.map(|end| end.saturating_sub(kernel::now_ns()));
    loop {
        if is_any_readable(files) {
            let found = rest(files, Some(0));
            let found = if found < 0 { found } else { add(files) };
            if found != 0 {
                return Some(found);
            }
        }
        if timeout_ns == Some(0) {
            return Some(rest(files, timeout_ns));
        }
        if spins(|| is_any_readable(files), end_ns) {
            continue;
        }
        let mut asleep = Asleep::default();
        files.iter().filter_map(socket).for_each(|socket| asleep.enter(&socket));
        if is_any_readable(files) {
            continue;
        }
        let found = rest(files, left_ns());
        errno::keep(|| drop(asleep));
        return Some(found);
    }
}

/// The UDP socket of an entry, if it is waited for datagrams.
fn socket(file: &pollfd) -> Option<Socket> {
    sockets::socket(file.fd).filter(|_| file.events & READABLE != 0)
}

fn is_any_readable(files: &[pollfd]) -> bool {
    files.iter().filter_map(socket).any(|socket| socket.is_readable())
}

/// Adds what is in memory to what the kernel has reported. Returns the number of entries with something.
fn add(files: &mut [pollfd]) -> i32 {
    for file in files.iter_mut() {
        if socket(file).is_some_and(|socket| socket.is_readable()) {
            file.revents |= file.events & READABLE;
        }
    }
    files.iter().filter(|file| file.revents != 0).count() as i32
}
