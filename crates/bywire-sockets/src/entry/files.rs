//! Calls for files that also work on sockets.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use bywire_pairing::reason::Reason;
use libc::{iovec, off_t, size_t, ssize_t};

use super::data::{receive_parts, send_list};
use super::take_over;
use crate::connection::sockets::{self, Connection};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::iovec::{Buffers, CALL_MAX};
use crate::os::user_access::are_readable;
use crate::os::{errno, real};
use crate::pairing::requirement::{self, to_kernel};
use crate::process::sandbox::all_to_kernel;
use crate::transfer::send::send as send_parts;

/// Bytes of a file that are copied at once where the kernel would have moved them.
const FILE_STEP: usize = 64 << 10;
/// The longest file part that is copied through the stack.
const SHORT_BYTES: usize = 2 << 10;
/// From uapi/linux/fs.h.
const RWF_NOWAIT: c_int = 8;
const RWF_NOSIGNAL: c_int = 0x100;
/// The flags that have no effect on a socket: high priority, two kinds of synchronous writing, appending.
const RWF_IDLE: c_int = 0x17;

/// From uapi/linux/aio_abi.h.
const IOCB_CMD_POLL: u16 = 5;

/// The beginning of `struct iocb` in uapi/linux/aio_abi.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Submission {
    _data: u64,
    _key: u32,
    _flags: i32,
    operation: u16,
    _priority: i16,
    fd: i32,
}

take_over! {
    /// Sends from a file.
    fn sendfile(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        send_file(target, source, offset, count)
    }

    /// Sends from a file.
    fn sendfile64(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        send_file(target, source, offset, count)
    }

    /// Receives into several buffers; it reads a file at an offset.
    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        receive_at(fd, parts, count, offset, flags)
    }

    /// Receives into several buffers; it reads a file at an offset.
    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        receive_at(fd, parts, count, offset, flags)
    }

    /// Sends several buffers; it writes a file at an offset.
    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        send_at(fd, parts, count, offset, flags)
    }

    /// Sends several buffers; it writes a file at an offset.
    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        send_at(fd, parts, count, offset, flags)
    }

    /// Reads in a thread of the C library, whose calls are not hooked.
    fn aio_read(control: *mut c_void) -> c_int {
        before_thread(control);
        // SAFETY: the program's own arguments, here and in every call of this file.
        unsafe { real::aio_read(control) }
    }

    /// Reads in a thread of the C library, whose calls are not hooked.
    fn aio_read64(control: *mut c_void) -> c_int {
        before_thread(control);
        // SAFETY: the program's own arguments.
        unsafe { real::aio_read64(control) }
    }

    /// Writes in a thread of the C library, whose calls are not hooked.
    fn aio_write(control: *mut c_void) -> c_int {
        before_thread(control);
        // SAFETY: the program's own arguments.
        unsafe { real::aio_write(control) }
    }

    /// Writes in a thread of the C library, whose calls are not hooked.
    fn aio_write64(control: *mut c_void) -> c_int {
        before_thread(control);
        // SAFETY: the program's own arguments.
        unsafe { real::aio_write64(control) }
    }

    /// Makes several such calls.
    fn lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int {
        before_threads(list, count);
        // SAFETY: the program's own arguments.
        unsafe { real::lio_listio(mode, list, count, event) }
    }

    /// Makes several such calls.
    fn lio_listio64(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int {
        before_threads(list, count);
        // SAFETY: the program's own arguments.
        unsafe { real::lio_listio64(mode, list, count, event) }
    }
}

/// Returns the connection to the kernel. Its descriptor is the first word of `struct aiocb`.
fn before_thread(control: *mut c_void) {
    if are_readable(control.cast::<c_int>(), 1) {
        // SAFETY: it can be read.
        to_kernel(unsafe { control.cast::<c_int>().read() }, Reason::Option);
    }
}

fn before_threads(list: *const *mut c_void, count: c_int) {
    let count = count.max(0) as usize;
    if are_readable(list, count) {
        // SAFETY: the program's own list, which can be read.
        (0..count).for_each(|index| before_thread(unsafe { list.add(index).read() }));
    }
}

/// Handles requests before `io_submit` passes them to the kernel, which reads, writes and polls by itself. Their sockets
/// stay in the kernel.
pub(super) fn before_submission(list: *const *const Submission, count: usize) {
    if !are_readable(list, count) {
        return;
    }
    for index in 0..count {
        // SAFETY: the program's own list, which can be read.
        let request = unsafe { list.add(index).read() };
        if !are_readable(request, 1) {
            return;
        }
        // SAFETY: it can be read.
        let Submission { operation, fd, .. } = unsafe { request.read() };
        match descriptors::kind(fd) {
            DescriptorKind::Socket(_) | DescriptorKind::Datagram(_) => to_kernel(fd, Reason::Option),
            // The kernel's own readiness of a set lacks that of carried connections.
            DescriptorKind::EpollSet(_) if operation == IOCB_CMD_POLL => {
                all_to_kernel(Reason::Option);
            }
            _ => {}
        }
    }
}

/// Whether a socket answers this call like one without an offset. The kernel refuses other calls, or handles flags that
/// this library does not know.
fn is_plain(fd: c_int, offset: off_t, flags: c_int) -> bool {
    if offset != -1 || !matches!(descriptors::kind(fd), DescriptorKind::Socket(_)) {
        return false;
    }
    if flags & !(RWF_NOWAIT | RWF_NOSIGNAL | RWF_IDLE) != 0 {
        to_kernel(fd, Reason::Option);
        return false;
    }
    true
}

fn receive_at(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    let real = || unsafe { real::preadv2(fd, parts, count, offset, flags) };
    if !is_plain(fd, offset, flags) {
        return real();
    }
    receive_parts(fd, parts, count, if flags & RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 }, &real)
}

fn send_at(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    let real = || unsafe { real::pwritev2(fd, parts, count, offset, flags) };
    if !is_plain(fd, offset, flags) {
        return real();
    }
    let waits = if flags & RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    let signals = if flags & RWF_NOSIGNAL != 0 { libc::MSG_NOSIGNAL } else { 0 };
    send_list(fd, parts, count, waits | signals, &real)
}

fn send_file(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the program's own arguments.
    let real = || unsafe { real::sendfile(target, source, offset, count) };
    if let Some(socket) = sockets::socket(target)
        && let Err(number) = requirement::admit_send(&socket, 0)
    {
        return errno::fail(number);
    }
    if !sockets::socket(target).is_some_and(|socket| socket.is_carried()) {
        to_kernel(source, Reason::Option);
        // The parts are asked for only if the connection is carried by then.
        return send_parts(target, || Buffers::one(core::ptr::null(), 0), 0, false, real);
    }
    if (!offset.is_null() && !are_readable(offset, 1)) || count > isize::MAX as size_t {
        return real();
    }
    let count = count.min(CALL_MAX);
    // The kernel counts the end as gone where it would take the bytes in one piece.
    let has_gone = |connection: Connection| {
        if connection.may_have_ended() {
            connection.ask_kernel();
        }
        connection.peer_is_gone() || connection.is_dissolved()
    };
    if sockets::socket(target).is_some_and(|socket| socket.carried().is_ok_and(has_gone)) {
        return real();
    }
    // SAFETY: null, or the program's own; `lseek` takes no pointer.
    let start =
        unsafe { if offset.is_null() { libc::lseek(source, 0, libc::SEEK_CUR) } else { offset.read() } };
    if start < 0 {
        // The kernel takes nothing from a source that does not exist.
        if errno::last() != libc::EBADF {
            to_kernel(target, Reason::Option);
        }
        return real();
    }
    let sent = copy_file(target, source, start, count);
    if sent > 0 {
        // SAFETY: null, or the program's own; `lseek` takes no pointer.
        unsafe {
            if offset.is_null() {
                libc::lseek(source, start + sent as off_t, libc::SEEK_SET);
            } else {
                offset.write(start + sent as off_t);
            }
        }
    }
    sent
}

/// Copies short files through the stack, and others through a mapping: a thread may have little stack.
fn copy_file(target: c_int, source: c_int, start: off_t, count: size_t) -> ssize_t {
    if count <= SHORT_BYTES {
        return copy_short(target, source, start, count);
    }
    match Buffer::take() {
        Some(mut buffer) => copy_by(buffer.bytes(), target, source, start, count),
        None => copy_short(target, source, start, count),
    }
}

/// A function of its own, so that its buffer takes no stack room where it is not used.
#[inline(never)]
fn copy_short(target: c_int, source: c_int, start: off_t, count: size_t) -> ssize_t {
    copy_by(&mut [0; SHORT_BYTES], target, source, start, count)
}

fn copy_by(buffer: &mut [u8], target: c_int, source: c_int, start: off_t, count: size_t) -> ssize_t {
    let mut done = 0usize;
    while done < count {
        // A call that has sent something raises no signal.
        let flags = if done > 0 { libc::MSG_NOSIGNAL } else { 0 };
        let wanted = (count - done).min(buffer.len());
        // SAFETY: a live buffer.
        let found = unsafe { real::pread(source, buffer.as_mut_ptr().cast(), wanted, start + done as off_t) };
        if found == 0 {
            break;
        }
        let given = if found < 0 {
            found
        } else {
            let (base, length) = (buffer.as_ptr(), found as usize);
            // SAFETY: a live buffer.
            let real = || unsafe { real::send(target, base.cast(), length, flags) };
            send_parts(target, || Buffers::one(base, length), flags, false, real)
        };
        if given < 0 {
            return if done > 0 { done as ssize_t } else { given };
        }
        done += given as usize;
        if given < found {
            break;
        }
    }
    done as ssize_t
}

/// A mapping through which bytes of files are copied: one of a few that stay, or a new one.
struct Buffer(*mut u8);

static BUFFERS: [AtomicPtr<u8>; 4] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4];

impl Buffer {
    fn take() -> Option<Self> {
        for place in &BUFFERS {
            // Acquire: pairs with the release in `drop`. Its last user is done with it.
            let found = place.swap(core::ptr::null_mut(), Ordering::Acquire);
            if !found.is_null() {
                return Some(Self(found));
            }
        }
        let (protection, sharing) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping.
        let address = unsafe { libc::mmap(core::ptr::null_mut(), FILE_STEP, protection, sharing, -1, 0) };
        (address != libc::MAP_FAILED).then(|| Self(address.cast()))
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped with this length until dropped, and borrowed from `self` alone; zeros are bytes.
        unsafe { core::slice::from_raw_parts_mut(self.0, FILE_STEP) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        for place in &BUFFERS {
            // Release: pairs with the acquire in `take`.
            let is_put =
                place.compare_exchange(core::ptr::null_mut(), self.0, Ordering::Release, Ordering::Relaxed);
            if is_put.is_ok() {
                return;
            }
        }
        // SAFETY: mapped by `take` with this length, and nobody else has it.
        unsafe { libc::munmap(self.0.cast(), FILE_STEP) };
    }
}
