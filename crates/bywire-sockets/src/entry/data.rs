//! Calls that move bytes.

use core::ffi::{c_int, c_uint, c_void};

use bywire_pairing::reason::Reason;
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::take_over;
use crate::back::to_kernel;
use crate::parts::Parts;
use crate::receive::receive;
use crate::send::send as send_parts;
use crate::table::{self, Meaning, Socket};
use crate::{kernel, life, real};

/// Bytes of a file that are copied at once where the kernel would have moved them.
const FILE_STEP: usize = 16 << 10;

take_over! {
    /// Receives.
    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
        // SAFETY: the program's own arguments, here and in every call of this file.
        let real = || unsafe { real::read(fd, buffer, length) };
        // Of no bytes it never sleeps, which a receive of no bytes does.
        if length == 0 { real() } else { receive(fd, || Parts::one(buffer.cast(), length), 0, real) }
    }

    /// Receives, checked by the compiler.
    fn __read_chk(fd: c_int, buffer: *mut c_void, length: size_t, _room: size_t) -> ssize_t {
        // SAFETY: as above.
        let real = || unsafe { real::read(fd, buffer, length) };
        if length == 0 { real() } else { receive(fd, || Parts::one(buffer.cast(), length), 0, real) }
    }

    /// Receives into several buffers.
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: as above.
        let real = || unsafe { real::readv(fd, parts, count) };
        let given = || Parts::list(parts, count.max(0) as usize);
        if matches!(table::meaning(fd), Meaning::Socket(_)) && given().total() == 0 {
            return real();
        }
        receive(fd, given, 0, real)
    }

    /// Receives.
    fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        receive(fd, || Parts::one(buffer.cast(), length), flags, || unsafe { real::recv(fd, buffer, length, flags) })
    }

    /// Receives, checked by the compiler.
    fn __recv_chk(fd: c_int, buffer: *mut c_void, length: size_t, _room: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        receive(fd, || Parts::one(buffer.cast(), length), flags, || unsafe { real::recv(fd, buffer, length, flags) })
    }

    /// Receives; a stream's bytes have no address.
    fn recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t {
        receive_from(fd, buffer, length, flags, address, size)
    }

    /// Receives, checked by the compiler.
    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, length: size_t, _room: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t {
        receive_from(fd, buffer, length, flags, address, size)
    }

    /// Receives into several buffers, with what goes along with bytes.
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        receive_message(fd, message, flags)
    }

    /// Receives several times.
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if !matches!(table::meaning(fd), Meaning::Socket(_)) {
            // SAFETY: as above.
            return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
        }
        let mut flags = flags;
        each_message(messages, count, |message| {
            let received = receive_message(fd, message, flags & !libc::MSG_WAITFORONE);
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            received
        })
    }

    /// Sends.
    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
        // SAFETY: as above.
        send_parts(fd, || Parts::one(buffer.cast(), length), 0, false, || unsafe { real::write(fd, buffer, length) })
    }

    /// Sends several buffers.
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: as above.
        send_parts(fd, || Parts::list(parts, count.max(0) as usize), 0, false, || unsafe { real::writev(fd, parts, count) })
    }

    /// Sends.
    fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        send_parts(fd, || Parts::one(buffer.cast(), length), flags, false, || unsafe { real::send(fd, buffer, length, flags) })
    }

    /// Sends; the address of a connected stream counts for nothing.
    fn sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t {
        // SAFETY: as above.
        send_parts(fd, || Parts::one(buffer.cast(), length), flags, false, || unsafe { real::sendto(fd, buffer, length, flags, address, size) })
    }

    /// Sends several buffers, with what goes along with bytes.
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        send_message(fd, message, flags)
    }

    /// Sends several times.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if !matches!(table::meaning(fd), Meaning::Socket(_)) {
            each_control(messages, count);
            // SAFETY: as above.
            return unsafe { real::sendmmsg(fd, messages, count, flags) };
        }
        each_message(messages, count, |message| send_message(fd, message, flags))
    }

    /// Sends out of a file.
    fn sendfile(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        send_file(target, source, offset, count)
    }

    /// Sends out of a file.
    fn sendfile64(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        send_file(target, source, offset, count)
    }

    /// Moves bytes between pipes and others: what a ring cannot do.
    fn splice(source: c_int, source_offset: *mut i64, target: c_int, target_offset: *mut i64, length: size_t, flags: c_uint) -> ssize_t {
        to_kernel(source, Reason::Option);
        to_kernel(target, Reason::Option);
        // SAFETY: as above.
        unsafe { real::splice(source, source_offset, target, target_offset, length, flags) }
    }
}

fn receive_from(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as above.
    let real = || unsafe { real::recvfrom(fd, buffer, length, flags, address, size) };
    if !matches!(table::meaning(fd), Meaning::Socket(_)) {
        return real();
    }
    let received = receive(fd, || Parts::one(buffer.cast(), length), flags, real);
    if received >= 0 && !address.is_null() && !size.is_null() {
        // SAFETY: the program's own.
        unsafe { size.write(0) };
    }
    received
}

fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    let real = || unsafe { real::recvmsg(fd, message, flags) };
    // SAFETY: null, or the program's own.
    let (Meaning::Socket(_), Some(given)) = (table::meaning(fd), unsafe { message.as_mut() }) else {
        return real();
    };
    // What goes along is written anew by the kernel, if it is the kernel that receives.
    let (parts, count) = (given.msg_iov, given.msg_iovlen);
    given.msg_flags = 0;
    let asked = core::cell::Cell::new(false);
    let received = receive(
        fd,
        || Parts::list(parts, count),
        flags,
        || {
            asked.set(true);
            real()
        },
    );
    if !asked.get() && received >= 0 {
        // SAFETY: as above.
        unsafe {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
        }
    }
    received
}

fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    before_control(message);
    // SAFETY: as above.
    let real = || unsafe { real::sendmsg(fd, message, flags) };
    // SAFETY: null, or the program's own.
    let Some(given) = (unsafe { message.as_ref() }) else { return real() };
    let is_special = !given.msg_control.is_null() && given.msg_controllen > 0;
    send_parts(fd, || Parts::list(given.msg_iov, given.msg_iovlen), flags, is_special, real)
}

/// Descriptors that are passed on go back to the kernel first: who receives them may not know this library.
fn before_control(message: *const msghdr) {
    // SAFETY: null, or the program's own message, whose control data is walked as the C library's macros do.
    unsafe {
        let Some(given) = message.as_ref() else { return };
        if given.msg_control.is_null() || given.msg_controllen == 0 {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let descriptors = libc::CMSG_DATA(header).cast::<c_int>();
                (0..bytes / size_of::<c_int>())
                    .for_each(|index| life::before_passing(descriptors.add(index).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn each_control(messages: *mut mmsghdr, count: c_uint) {
    if !messages.is_null() {
        // SAFETY: the program's own array.
        (0..count as usize)
            .for_each(|index| before_control(unsafe { &raw const (*messages.add(index)).msg_hdr }));
    }
}

fn each_message(
    messages: *mut mmsghdr,
    count: c_uint,
    mut step: impl FnMut(*mut msghdr) -> ssize_t,
) -> c_int {
    let mut done = 0;
    for index in 0..count.min(1024) as usize {
        // SAFETY: the program's own array of `count` messages.
        let message = unsafe { &mut *messages.add(index) };
        let moved = step(&raw mut message.msg_hdr);
        if moved < 0 {
            return if done > 0 { done } else { -1 };
        }
        message.msg_len = moved as c_uint;
        done += 1;
    }
    done
}

fn send_file(target: c_int, source: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as above.
    let real = || unsafe { real::sendfile(target, source, offset, count) };
    if !table::socket(target).is_some_and(|socket| socket.is_carried()) {
        to_kernel(source, Reason::Option);
        // The parts are asked for only if it is carried by then.
        return send_parts(target, || Parts::one(core::ptr::null(), 0), 0, false, real);
    }
    // SAFETY: null, or the program's own; lseek takes no pointer.
    let start =
        unsafe { if offset.is_null() { libc::lseek(source, 0, libc::SEEK_CUR) } else { offset.read() } };
    if start < 0 {
        to_kernel(target, Reason::Option);
        return real();
    }
    let sent = copy_file(target, source, start, count);
    if sent > 0 {
        // SAFETY: as above.
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

/// Apart, as its buffer would take room of the stack where nothing is copied.
#[inline(never)]
fn copy_file(target: c_int, source: c_int, start: off_t, count: size_t) -> ssize_t {
    let mut buffer = [0u8; FILE_STEP];
    let mut done = 0usize;
    while done < count {
        let wanted = (count - done).min(FILE_STEP);
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
            let real = || unsafe { real::send(target, base.cast(), length, 0) };
            send_parts(target, || Parts::one(base, length), 0, false, real)
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

/// Bytes that wait to be received, in the kernel and in the ring.
pub fn waiting_bytes(socket: Socket) -> Option<c_int> {
    let fd = socket.fd;
    let connection = socket.carried().ok()?;
    let in_ring = connection.in_ring().unwrap_or(0);
    Some(kernel::queued(fd).unwrap_or(0).saturating_add(in_ring as c_int))
}
