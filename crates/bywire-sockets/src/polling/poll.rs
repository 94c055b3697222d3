//! `poll` and `select` over descriptors of which some are carried connections.

use core::sync::atomic::Ordering;

use bywire_ring::passage;
use libc::{pollfd, sigset_t, timespec};

use crate::connection::readiness::OUT;
use crate::connection::sockets::{self, Socket};
use crate::datagram::sockets as sockets_of_datagrams;
use crate::epoll::nested;
use crate::memory::arena::{FINISHED, HUNG_UP, stage};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::user_access::are_readable;
use crate::os::{errno, jumps, kernel, real};
use crate::pairing::account;
use crate::polling::datagrams;
use crate::wakeup::doorbell::{self, DoorbellSet};
use crate::wakeup::spin;

/// Descriptors in one call for which stack room is used: threads and coroutines may have a small stack.
const FILES_MAX: usize = 64;
/// Descriptors in one call altogether that may include tracked sockets.
const CALL_MAX: u64 = crate::memory::arena::DESCRIPTORS as u64;
const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };
/// Without a doorbell, a sleep lasts at most this long before the rings are checked again.
const BLIND_NS: u64 = 10_000_000;

/// The kernel's wait: entries, their number, the timeout.
type Real<'a> = &'a dyn Fn(*mut pollfd, u64, Option<u64>) -> i32;

/// `poll`, with its timeout in nanoseconds.
pub fn poll(files: *mut pollfd, count: u64, timeout_ns: Option<u64>, real: Real) -> i32 {
    if count == 0 || count > CALL_MAX || !are_readable(files, count as usize) {
        return real(files, count, timeout_ns);
    }
    // SAFETY: the program's own array, of the length that it states.
    let files = unsafe { core::slice::from_raw_parts_mut(files, count as usize) };
    if sockets_of_datagrams::are_any()
        && let Some(found) = datagrams::poll(files, timeout_ns, |files, left| poll_tracked(files, left, real))
    {
        return found;
    }
    poll_tracked(files, timeout_ns, real)
}

/// The same without regard to UDP sockets.
fn poll_tracked(files: &mut [pollfd], timeout_ns: Option<u64>, real: Real) -> i32 {
    if !files.iter().any(|file| matters(file.fd)) && account::before_wait(timeout_ns) == timeout_ns {
        return real(files.as_mut_ptr(), files.len() as u64, timeout_ns);
    }
    let end = timeout_ns.map(|timeout| kernel::now_ns().saturating_add(timeout));
    if let Some(result) = plainly(files, end, real) {
        return result;
    }
    let here = 0u8;
    let place = (&raw const here) as usize;
    // Releases what a call at this place has left by a jump.
    jumps::forget_below(place);
    with_entries(files.len() + 1, |asked| wait_in(asked, files, end, place, real))
}

/// Waits for events of one carried connection, until this time. Returns what was found, nothing after a look that found
/// nothing, or the error number, `EAGAIN` at the time.
pub fn wait_for_one(fd: i32, events: i16, until_ns: Option<u64>) -> Result<i16, i32> {
    let here = 0u8;
    let mut file = [pollfd { fd, events, revents: 0 }];
    let real = |files: *mut pollfd, count, timeout_ns| wait(files, count, timeout_ns, core::ptr::null());
    let left_ns = until_ns.map(|until| until.saturating_sub(kernel::now_ns()));
    match turn(&mut [NONE; 2], &mut file, left_ns, (&raw const here) as usize, &real) {
        Some(..0) => Err(errno::last()),
        Some(_) => Ok(file[0].revents),
        None if until_ns.is_some_and(|until| until <= kernel::now_ns()) => Err(libc::EAGAIN),
        None => Ok(0),
    }
}

/// Runs `work` with room for this many entries.
pub fn with_entries(count: usize, work: impl FnOnce(&mut [pollfd]) -> i32) -> i32 {
    if count <= FILES_MAX {
        return on_stack(work);
    }
    match Scratch::new(count) {
        Some(mut scratch) => work(scratch.entries()),
        None => errno::fail(libc::ENOMEM) as i32,
    }
}

/// A function of its own, so that calls which need no such room do not take it.
#[inline(never)]
fn on_stack(work: impl FnOnce(&mut [pollfd]) -> i32) -> i32 {
    work(&mut [NONE; FILES_MAX])
}

/// Waits. `asked` holds the entries for the kernel, which differ from the program's.
fn wait_in(asked: &mut [pollfd], files: &mut [pollfd], end: Option<u64>, above: usize, real: Real) -> i32 {
    loop {
        let left = end.map(|end| end.saturating_sub(kernel::now_ns()));
        match turn(asked, files, left, above, real) {
            Some(result) => return result,
            None if left == Some(0) => return 0,
            None => {}
        }
        if let Some(result) = plainly(files, end, real) {
            return result;
        }
    }
}

/// Memory for entries for which the stack has no room.
struct Scratch {
    entries: *mut pollfd,
    count: usize,
}

impl Scratch {
    fn new(count: usize) -> Option<Self> {
        // SAFETY: a new private mapping; zeros are valid entries.
        let address = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                count * size_of::<pollfd>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        (address != libc::MAP_FAILED).then(|| Self { entries: address.cast(), count })
    }

    fn entries(&mut self) -> &mut [pollfd] {
        // SAFETY: mapped with this length until dropped, and borrowed from `self` alone.
        unsafe { core::slice::from_raw_parts_mut(self.entries, self.count) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        unsafe { libc::munmap(self.entries.cast(), self.count * size_of::<pollfd>()) };
    }
}

/// Whether this library has anything to do with a descriptor.
fn matters(fd: i32) -> bool {
    matches!(descriptors::kind(fd), DescriptorKind::Socket(_) | DescriptorKind::EpollSet(_))
}

/// Waits in the kernel only, and counts the sockets that sleep there. `None`: some are carried.
fn plainly(files: &mut [pollfd], end: Option<u64>, real: Real) -> Option<i32> {
    let mut entered = Entered { files, count: 0 };
    for index in 0..entered.files.len() {
        entered.count += 1;
        if entered.files.get(index).is_some_and(|file| !enter(file.fd)) {
            return None;
        }
    }
    let left = end.map(|end| end.saturating_sub(kernel::now_ns()));
    let limit = account::before_wait(left);
    let found = real(entered.files.as_mut_ptr(), entered.files.len() as u64, limit);
    errno::keep(|| drop(entered));
    (found != 0 || limit == left).then_some(found)
}

/// Counts the first of these, until dropped: a thread may be cancelled where it sleeps.
struct Entered<'a> {
    files: &'a mut [pollfd],
    count: usize,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.files.iter().take(self.count).for_each(|file| leave(file.fd));
    }
}

fn count_of(fd: i32) -> Option<Socket> {
    match descriptors::kind(fd) {
        DescriptorKind::Socket(index) => sockets::by_index(fd, index),
        _ => None,
    }
}

fn enter(fd: i32) -> bool {
    match descriptors::kind(fd) {
        // A thread that watches a set hears the doorbell: what is in the set may become carried at any moment.
        DescriptorKind::EpollSet(_) => {
            let Some((_, set)) = descriptors::set(fd) else { return true };
            nested::watch(fd, set);
            doorbell::make_page();
            false
        }
        DescriptorKind::Socket(_) => {
            let Some(socket) = count_of(fd) else { return true };
            socket.shared.awaited.store(1, Ordering::Relaxed);
            passage::enter(&socket.shared.kernel_pollers);
            passage::is_open(&socket.shared.stage, stage::CARRIED)
        }
        _ => true,
    }
}

fn leave(fd: i32) {
    if let Some(socket) = count_of(fd) {
        let count = &socket.shared.kernel_pollers;
        // SeqCst: pairs with the load of the count in `offer::prepare`. What the call has done comes before.
        let _ = count.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |found| found.checked_sub(1));
    }
}

/// What the rings say of one entry, and what the kernel must be asked for it.
fn look(file: &pollfd) -> (i16, i16) {
    match descriptors::kind(file.fd) {
        DescriptorKind::EpollSet(index) => {
            let bits = if nested::is_ready(index) { libc::POLLIN | libc::POLLRDNORM } else { 0 };
            (bits & file.events, file.events)
        }
        DescriptorKind::Socket(_) => match sockets::socket(file.fd).map(Socket::carried) {
            Some(Ok(connection)) => {
                let ready = connection.ready(u32::from(file.events as u16));
                let always = (libc::POLLERR | libc::POLLHUP) as u32;
                let wanted = u32::from(file.events as u16) | always;
                ((ready.bits & wanted) as i16, ready.ask as i16)
            }
            _ => (0, file.events),
        },
        _ => (0, file.events),
    }
}

/// Looks once at everything, and sleeps if there is nothing; `None`: look again.
#[inline(never)]
fn turn(
    asked: &mut [pollfd],
    files: &mut [pollfd],
    left_ns: Option<u64>,
    above: usize,
    real: Real,
) -> Option<i32> {
    let asked = asked.get_mut(..=files.len())?;
    let any = || files.iter().any(|file| look(file).0 != 0);
    let is_there = left_ns == Some(0) || {
        let deadline = left_ns.map(|left| kernel::now_ns().saturating_add(left));
        spin::until(files.len(), any, deadline) || any()
    };
    let watch = if is_there { None } else { DoorbellSet::take() };
    if let Some(watch) = &watch {
        watch.drain();
    }
    let asleep = watch.as_ref().and_then(|_| doorbell::asleep(above));
    let (mut is_ready, mut is_known) = (false, true);
    for (file, place) in files.iter_mut().zip(asked.iter_mut()) {
        let (bits, events) = look(file);
        file.revents = bits;
        is_ready |= bits != 0;
        is_known &= events & !libc::POLLRDHUP == 0 && is_told_here(file.fd);
        *place = pollfd { fd: file.fd, events, revents: 0 };
    }
    if is_ready && is_known {
        // The kernel would add no requested event, except ends that were not announced. Those are reported by the next
        // call.
        return Some(count_of_ready(files));
    }
    let doorbell = watch.as_ref().map_or(-1, |watch| watch.fd);
    if let Some(last) = asked.last_mut() {
        *last = pollfd { fd: doorbell, events: libc::POLLIN, revents: 0 };
    }
    let timeout = match (is_ready, &asleep) {
        (true, _) => Some(0),
        (false, Some(_)) => account::before_wait(left_ns),
        (false, None) => Some(left_ns.unwrap_or(u64::MAX).min(BLIND_NS)),
    };
    let status = real(asked.as_mut_ptr(), asked.len() as u64, timeout);
    drop(asleep);
    if status < 0 {
        return Some(status);
    }
    for (file, place) in files.iter_mut().zip(asked.iter()) {
        file.revents |= merge(file, place);
    }
    let found = count_of_ready(files);
    (found > 0).then_some(found)
}

/// Whether this library hears of every end of it. Another program that has the socket may shut it down unnoticed.
fn is_told_here(fd: i32) -> bool {
    let is_ours = |socket: Socket| socket.is_carried() && socket.shared.never.load(Ordering::Relaxed) == 0;
    sockets::socket(fd).is_some_and(is_ours)
}

fn count_of_ready(files: &[pollfd]) -> i32 {
    files.iter().filter(|file| file.revents != 0).count() as i32
}

/// What the kernel has reported for an entry, as far as the program asked for it.
fn merge(file: &pollfd, place: &pollfd) -> i16 {
    let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
    let Some(Ok(connection)) = sockets::socket(file.fd).map(Socket::carried) else {
        return place.revents & !stale(file, place);
    };
    if place.revents != 0 {
        connection.heard(place.revents);
    }
    let ended = connection.shared.ended.load(Ordering::Relaxed);
    let mut bits = place.revents;
    if connection.owes() {
        bits &= !(OUT as i16);
    }
    if ended & (FINISHED | HUNG_UP) != 0 {
        bits |= libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP;
    }
    // The kernel does not know of bytes that a closed end has left unread in memory.
    if ended & HUNG_UP != 0 && connection.has_error() {
        bits |= libc::POLLERR;
    }
    bits & (file.events | always)
}

/// The bits that the kernel has reported of a set for nothing but a ring that is over.
fn stale(file: &pollfd, place: &pollfd) -> i16 {
    let is_in_doubt = place.revents & libc::POLLIN != 0
        && file.revents & libc::POLLIN == 0
        && matches!(descriptors::kind(file.fd), DescriptorKind::EpollSet(_));
    if is_in_doubt && !nested::has_more_than_rings(file.fd) { libc::POLLIN | libc::POLLRDNORM } else { 0 }
}

/// The timeout in nanoseconds; `None` if there is none.
///
/// # Safety
/// `timeout` must be null or valid.
pub unsafe fn nanoseconds(timeout: *const timespec) -> Option<u64> {
    // SAFETY: the caller's guarantee.
    let timeout = unsafe { timeout.as_ref() }?;
    Some(
        (timeout.tv_sec.max(0) as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(timeout.tv_nsec.max(0) as u64),
    )
}

/// The kernel's wait with a signal mask.
pub fn wait(files: *mut pollfd, count: u64, timeout_ns: Option<u64>, mask: *const sigset_t) -> i32 {
    let time = timeout_ns.map(|timeout| timespec {
        tv_sec: (timeout / 1_000_000_000) as i64,
        tv_nsec: (timeout % 1_000_000_000) as i64,
    });
    let pointer = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the program's own entries and mask.
    unsafe { real::ppoll(files, count, pointer, mask) }
}
