//! Calls that move bytes.

use core::cell::Cell;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use bywire_pairing::reason::Reason;
use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t, timespec};

use super::take_over;
use crate::connection::policy;
use crate::connection::sockets::{self, Socket};
use crate::datagram::address::{Address, Name};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::iovec::{Buffers, CALL_MAX, Control, PARTS_MAX};
use crate::os::user_access::are_readable;
use crate::os::{errno, kernel, real};
use crate::pairing::requirement::to_kernel;
use crate::process::{exec, lifecycle};
use crate::transfer::datagrams::{self, Received};
use crate::transfer::kernel_wait::paying;
use crate::transfer::left;
use crate::transfer::receive::receive;
use crate::transfer::send::send as send_parts;

const NS_PER_S: u64 = 1_000_000_000;

take_over! {
    /// Receives.
    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        let real = || unsafe { real::read(fd, buffer, length) };
        // A read of no bytes never sleeps, unlike a receive of no bytes.
        if length == 0 || is_refused(fd, buffer, length) { real() } else { receive(fd, || Buffers::one(buffer.cast(), length), 0, real) }
    }

    /// Receives, by another name of the C library's.
    fn __read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        unsafe { read(fd, buffer, length) }
    }

    /// Receives, checked by the compiler.
    fn __read_chk(fd: c_int, buffer: *mut c_void, length: size_t, _room: size_t) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        let real = || unsafe { real::read(fd, buffer, length) };
        if length == 0 || is_refused(fd, buffer, length) { real() } else { receive(fd, || Buffers::one(buffer.cast(), length), 0, real) }
    }

    /// Receives into several buffers.
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        let real = || unsafe { real::readv(fd, parts, count) };
        receive_parts(fd, parts, count, 0, &real)
    }

    /// Receives.
    fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        receive(fd, || Buffers::one(buffer.cast(), length), flags, || unsafe { real::recv(fd, buffer, length, flags) })
    }

    /// Receives, checked by the compiler.
    fn __recv_chk(fd: c_int, buffer: *mut c_void, length: size_t, _room: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        receive(fd, || Buffers::one(buffer.cast(), length), flags, || unsafe { real::recv(fd, buffer, length, flags) })
    }

    /// Receives. Bytes of a stream carry no address.
    fn recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t {
        receive_from(fd, buffer, length, flags, address, size)
    }

    /// Receives, checked by the compiler.
    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, length: size_t, _room: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t {
        receive_from(fd, buffer, length, flags, address, size)
    }

    /// Receives into several buffers, with control data.
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let received = receive_message(fd, message, flags);
        if received >= 0 {
            note_received(message);
        }
        received
    }

    /// Receives several messages.
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        let is_stream = match descriptors::kind(fd) {
            DescriptorKind::Socket(_) => true,
            DescriptorKind::Datagram(_) if datagrams::has_flows(fd) => false,
            _ => {
                // SAFETY: the program's own arguments, as they came.
                let received = unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
                // SAFETY: the kernel has written these messages.
                (0..received.max(0) as usize).for_each(|index| note_received(unsafe { &raw mut (*messages.add(index)).msg_hdr }));
                return received;
            }
        };
        if !(timeout.is_null() || are_readable(timeout, 1) && is_valid_time(timeout)) {
            // The kernel reports what is wrong with it, unless only a sandbox that is about to be installed is in the way.
            // SAFETY: the program's own arguments, as they came.
            return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
        }
        // Unlike every other receive, this one checks for an error before it checks for the end of the stream.
        if is_stream && flags & libc::MSG_ERRQUEUE == 0 && let Some(number) = take_error(fd) {
            return errno::fail(number) as c_int;
        }
        if !are_readable(messages, count.min(1) as usize) {
            // That holds for the first message, too.
            // SAFETY: the program's own arguments, as they came.
            return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
        }
        receive_messages(fd, messages, count as usize, flags, timeout)
    }

    /// Sends.
    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        let real = || unsafe { real::write(fd, buffer, length) };
        if is_refused(fd, buffer, length) { real() } else { send_parts(fd, || Buffers::one(buffer.cast(), length), 0, false, real) }
    }

    /// Sends, by another name of the C library's.
    fn __write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        unsafe { write(fd, buffer, length) }
    }

    /// Sends several buffers.
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        send_list(fd, parts, count, 0, &|| unsafe { real::writev(fd, parts, count) })
    }

    /// Sends.
    fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        send_parts(fd, || Buffers::one(buffer.cast(), length), flags, false, || unsafe { real::send(fd, buffer, length, flags) })
    }

    /// Sends, by another name of the C library's.
    fn __send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        unsafe { send(fd, buffer, length, flags) }
    }

    /// Sends. The address is ignored for a connected stream.
    fn sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t {
        // SAFETY: the program's own arguments, as they came.
        let real = || unsafe { real::sendto(fd, buffer, length, flags, address, size) };
        if !address.is_null() && let DescriptorKind::Datagram(_) = descriptors::kind(fd) {
            if !is_address(address, size) {
                return real();
            }
            // SAFETY: it can be read.
            let target = unsafe { Address::read(address, size) };
            return datagrams::send(fd, &Buffers::one(buffer.cast(), length), flags, Some(target), false, &real);
        }
        // The kernel reads the address first. A Unix stream takes none.
        if address.is_null() || is_address(address, size) && !(size > 0 && is_unix(fd)) {
            send_parts(fd, || Buffers::one(buffer.cast(), length), flags, false, real)
        } else {
            real()
        }
    }

    /// Sends several buffers, with control data.
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        send_message(fd, message, flags)
    }

    /// Sends several messages.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if !matches!(descriptors::kind(fd), DescriptorKind::Socket(_)) && !datagrams::has_flows(fd) {
            each_control(messages, count);
            // SAFETY: the program's own arguments, as they came.
            return unsafe { real::sendmmsg(fd, messages, count, flags) };
        }
        if !are_readable(messages, message_count(count)) {
            // The kernel would send those that can be read.
            if policy::is_required() {
                return errno::fail(libc::EFAULT) as c_int;
            }
            // SAFETY: the program's own arguments, as they came.
            return unsafe { real::sendmmsg(fd, messages, count, flags) };
        }
        send_messages(fd, messages, message_count(count), flags)
    }

    /// Moves bytes between a pipe and a descriptor, which a ring cannot do.
    fn splice(source: c_int, source_offset: *mut i64, target: c_int, target_offset: *mut i64, length: size_t, flags: c_uint) -> ssize_t {
        to_kernel(source, Reason::Option);
        to_kernel(target, Reason::Option);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::splice(source, source_offset, target, target_offset, length, flags) }
    }
}

/// The error of a socket, which is reported once.
fn take_error(fd: c_int) -> Option<c_int> {
    match kernel::number(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 => sockets::socket(fd)?.mapped().ok()?.take_error_at_end(),
        number => Some(number),
    }
}

/// Whether the kernel refuses a buffer of a `read` or `write` because it goes beyond all addresses.
#[inline(always)]
fn is_refused(fd: c_int, buffer: *const c_void, length: size_t) -> bool {
    length > CALL_MAX && goes_beyond(fd, buffer, length)
}

/// The kernel checks the stated length here, and elsewhere what it moves at once. It does so for lists, too.
#[cold]
fn goes_beyond(fd: c_int, buffer: *const c_void, length: size_t) -> bool {
    let part = |iov_len: size_t| iovec { iov_base: buffer.cast_mut(), iov_len };
    let parts = [part(length), part(0)];
    matches!(descriptors::kind(fd), DescriptorKind::Socket(_)) && kernel::refuses(fd, parts.as_ptr(), 2)
}

/// Whether the kernel accepts it as an address, of whatever family.
fn is_address(address: *const sockaddr, size: socklen_t) -> bool {
    size as usize <= size_of::<sockaddr_storage>() && are_readable(address.cast::<u8>(), size as usize)
}

/// Whether it is a time that the kernel accepts as a timeout. It can be read.
pub fn is_valid_time(time: *const timespec) -> bool {
    // SAFETY: it can be read.
    let time = unsafe { &*time };
    time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec)
}

/// Receives into a list of buffers by a call for files. A read of no bytes never sleeps, unlike a receive of no bytes.
pub fn receive_parts(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    flags: c_int,
    real: &dyn Fn() -> ssize_t,
) -> ssize_t {
    match list(fd, parts, count) {
        Some(given) if given.total() > 0 => receive(fd, || given, flags, real),
        Some(_) => real(),
        None => paying(fd, flags, real),
    }
}

/// Sends a list of buffers.
pub fn send_list(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    flags: c_int,
    real: &dyn Fn() -> ssize_t,
) -> ssize_t {
    match list(fd, parts, count) {
        // A call for files sends no datagram without bytes.
        Some(given) if given.total() == 0 && datagrams::has_flows(fd) => real(),
        Some(given) => send_parts(fd, || given, flags, false, real),
        None => real(),
    }
}

/// The list of buffers for a socket. `None`: `fd` is no socket, or the kernel must report what is wrong with the list.
fn list(fd: c_int, parts: *const iovec, count: c_int) -> Option<Buffers<'static>> {
    let count = count.max(0) as usize;
    let is_known = matches!(descriptors::kind(fd), DescriptorKind::Socket(_) | DescriptorKind::Datagram(_))
        && are_readable(parts, count);
    is_known.then(|| Buffers::list(parts, count))
}

fn receive_from(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments, as they came.
    let real = || unsafe { real::recvfrom(fd, buffer, length, flags, address, size) };
    match descriptors::kind(fd) {
        DescriptorKind::Socket(_) => {}
        DescriptorKind::Datagram(_) => {
            return receive_datagram_from(
                fd,
                &Buffers::one(buffer.cast(), length),
                flags,
                address,
                size,
                &real,
            );
        }
        _ => return paying(fd, flags, real),
    }
    let asked = Cell::new(false);
    let received = receive(
        fd,
        || Buffers::one(buffer.cast(), length),
        flags,
        || {
            asked.set(true);
            real()
        },
    );
    if received < 0 || address.is_null() || asked.get() {
        return received;
    }
    // As in the kernel, the bytes are gone if the length of the address is invalid.
    if !are_readable(size, 1) {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: the program's own, which can be read.
    unsafe {
        if (size.read() as c_int) < 0 {
            return errno::fail(libc::EINVAL);
        }
        size.write(if received > 0 { write_sender(fd, address, size.read()) } else { 0 });
    }
    received
}

/// Receives a datagram, with the address of its sender.
fn receive_datagram_from(
    fd: c_int,
    parts: &Buffers,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
    real: &dyn Fn() -> ssize_t,
) -> ssize_t {
    if !address.is_null() && !are_readable(size, 1) {
        return real();
    }
    let mut got = Received::NONE;
    let received = datagrams::receive(fd, parts, flags, None, &mut got, real);
    if received >= 0 && !got.is_stored && !address.is_null() {
        // SAFETY: the program's own, of which the length can be read.
        unsafe {
            if (size.read() as c_int) < 0 {
                return errno::fail(libc::EINVAL);
            }
            size.write(write_name(&got.name, address, size.read()));
        }
    }
    received
}

/// Writes an address into room for `size` bytes. Returns its whole length, as the kernel does.
///
/// # Safety
/// `address` must be valid for writes of `size` bytes.
unsafe fn write_name(name: &Name, address: *mut sockaddr, size: socklen_t) -> socklen_t {
    let written = (name.length.min(size) as usize).min(name.bytes.len());
    // SAFETY: the program's own room for `size` bytes, as the program has passed it.
    unsafe { ptr::copy_nonoverlapping(name.bytes.as_ptr(), address.cast(), written) };
    name.length
}

/// Receives a datagram as a message. The message can be read.
fn receive_datagram(fd: c_int, message: *mut msghdr, flags: c_int, real: &dyn Fn() -> ssize_t) -> ssize_t {
    // SAFETY: the program's own, which can be read.
    let given = unsafe { message.read() };
    let (parts, control) = (Buffers::list(given.msg_iov, given.msg_iovlen), Control::of(&given));
    let mut got = Received::NONE;
    let received = datagrams::receive(fd, &parts, flags, Some(&control), &mut got, real);
    if received >= 0 && !got.is_stored {
        // SAFETY: the program's own, which can be read.
        unsafe {
            if !given.msg_name.is_null() {
                (*message).msg_namelen = write_name(&got.name, given.msg_name.cast(), given.msg_namelen);
            }
            (*message).msg_controllen = got.control_bytes;
            (*message).msg_flags = got.flags | flags & libc::MSG_CMSG_CLOEXEC;
        }
    }
    received
}

/// Writes the address of the other end, which comes with what a Unix stream receives, into room for `size` bytes.
/// Returns its length, as the kernel does: the whole length of a longer address, 0 if there is none.
///
/// # Safety
/// `address` must be valid for writes of `size` bytes.
unsafe fn write_sender(fd: c_int, address: *mut sockaddr, size: socklen_t) -> socklen_t {
    if !is_unix(fd) {
        return 0;
    }
    // SAFETY: zeros are a valid address.
    let mut found: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut length = size_of_val(&found) as socklen_t;
    // SAFETY: valid for writes of the length given.
    let status = errno::keep(|| unsafe { libc::getpeername(fd, (&raw mut found).cast(), &raw mut length) });
    // An end without a name has a family alone, which does not come with its bytes.
    if status != 0 || length as usize <= size_of::<libc::sa_family_t>() {
        return 0;
    }
    let written = length.min(size) as usize;
    // SAFETY: the program's own room for `size` bytes, as the program has passed it.
    unsafe {
        ptr::copy_nonoverlapping(
            (&raw const found).cast::<u8>(),
            address.cast(),
            written.min(size_of_val(&found)),
        )
    };
    length
}

fn is_unix(fd: c_int) -> bool {
    sockets::socket(fd).is_some_and(|socket| socket.is_unix())
}

fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own.
    let real = move || unsafe { real::recvmsg(fd, message, flags) };
    let is_stream = match descriptors::kind(fd) {
        DescriptorKind::Socket(_) => true,
        DescriptorKind::Datagram(_) => false,
        _ => return paying(fd, flags, real),
    };
    if !is_valid_message(message, flags) {
        return real();
    }
    if !is_stream {
        return receive_datagram(fd, message, flags, &real);
    }
    // SAFETY: the program's own, which can be read.
    let given = unsafe { message.read() };
    let (control, asked) = (Control::of(&given), Cell::new(false));
    let received = receive(
        fd,
        || Buffers::list(given.msg_iov, given.msg_iovlen).with_control(&control),
        flags,
        || {
            asked.set(true);
            real()
        },
    );
    let reporting = if received >= 0 { errno::keep(|| left::reporting(fd)) } else { None };
    if !asked.get() && received >= 0 {
        // SAFETY: the program's own message, as it came.
        let (control_bytes, found_flags) = reporting.map_or_else(
            || control.written(),
            |connection| errno::keep(|| unsafe { connection.write_left(&given) }),
        );
        // SAFETY: the program's own, which can be read.
        unsafe {
            if !given.msg_name.is_null() {
                let name = given.msg_name.cast();
                (*message).msg_namelen =
                    if received > 0 { write_sender(fd, name, given.msg_namelen) } else { 0 };
            }
            (*message).msg_controllen = control_bytes;
            (*message).msg_flags = found_flags | flags & libc::MSG_CMSG_CLOEXEC;
        }
    } else if let Some(connection) = reporting {
        // SAFETY: the kernel has written to it.
        unsafe { connection.add_left(&*message) };
    }
    received
}

/// Receives several messages. The first one can be read, if there is one, as can the timeout. The kernel checks the
/// time after each message, and the others when it comes to them.
fn receive_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: usize,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: null, or the program's own, which can be read.
    let given = unsafe { timeout.as_ref() };
    let end_ns = given.map(|given| {
        let limit_ns = (given.tv_sec as u64).saturating_mul(NS_PER_S).saturating_add(given.tv_nsec as u64);
        kernel::now_ns().saturating_add(limit_ns)
    });
    let (mut done, mut left_ns, mut more_flags) = (0, None, 0);
    while done < count && left_ns != Some(0) {
        let place = messages.wrapping_add(done);
        if !are_readable(place, 1) {
            errno::set(libc::EFAULT);
            break;
        }
        // SAFETY: the program's own, which can be read.
        let message = unsafe { &mut *place };
        let received =
            receive_message(fd, &raw mut message.msg_hdr, flags & !libc::MSG_WAITFORONE | more_flags);
        if received < 0 {
            break;
        }
        message.msg_len = received as c_uint;
        note_received(&raw const message.msg_hdr);
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            more_flags = libc::MSG_DONTWAIT;
        }
        left_ns = end_ns.map(|end| end.saturating_sub(kernel::now_ns()));
    }
    if let Some(left) = left_ns {
        let time = timespec { tv_sec: (left / NS_PER_S) as i64, tv_nsec: (left % NS_PER_S) as i64 };
        // SAFETY: the program's own, which could be read.
        unsafe { timeout.write(time) };
    }
    if done > 0 || count == 0 { done as c_int } else { -1 }
}

fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own, which can be read.
    let real = || unsafe { real::sendmsg(fd, message, flags) };
    if !is_valid_message(message, flags) || !is_readable_message(message) {
        return real();
    }
    before_control(message);
    // SAFETY: the program's own, which can be read.
    let given = unsafe { &*message };
    // A Unix stream takes no address.
    if !given.msg_name.is_null() && given.msg_namelen > 0 && is_unix(fd) {
        return real();
    }
    let is_special = !given.msg_control.is_null() && given.msg_controllen > 0;
    if !given.msg_name.is_null()
        && given.msg_namelen > 0
        && let DescriptorKind::Datagram(_) = descriptors::kind(fd)
    {
        // SAFETY: it can be read.
        let target = unsafe { Address::read(given.msg_name.cast(), given.msg_namelen) };
        let parts = Buffers::list(given.msg_iov, given.msg_iovlen);
        return datagrams::send(fd, &parts, flags, Some(target), is_special, &real);
    }
    send_parts(fd, || Buffers::list(given.msg_iov, given.msg_iovlen), flags, is_special, real)
}

/// Whether a message can be read, with its list of parts, and states no length that the kernel refuses. If not, the
/// kernel reports what is wrong.
fn is_valid_message(message: *const msghdr, flags: c_int) -> bool {
    if !are_readable(message, 1) {
        return false;
    }
    // SAFETY: it can be read.
    let given = unsafe { &*message };
    // The highest flag is the kernel's own, for messages of 32-bit programs.
    flags >= 0
        && (given.msg_name.is_null() || given.msg_namelen as c_int >= 0)
        && given.msg_iovlen <= PARTS_MAX
        && are_readable(given.msg_iov.cast_const(), given.msg_iovlen)
}

/// Whether what a message to be sent points to can be read: its address and its control data. The message itself can.
fn is_readable_message(message: *const msghdr) -> bool {
    // SAFETY: it can be read.
    let given = unsafe { &*message };
    let address_bytes = (given.msg_namelen as usize).min(size_of::<sockaddr_storage>());
    (given.msg_name.is_null() || are_readable(given.msg_name.cast::<u8>().cast_const(), address_bytes))
        && (given.msg_control.is_null()
            || are_readable(given.msg_control.cast::<u8>().cast_const(), given.msg_controllen))
}

/// Returns descriptors that are passed on to the kernel first: the receiving program may not have this library.
fn before_control(message: *const msghdr) {
    exec::before_passing(|visit| each_passed(message, visit));
}

/// Notes the descriptors that have come with a message, which was received.
fn note_received(message: *const msghdr) {
    if policy::is_required() {
        each_passed(message, &mut lifecycle::track_received);
    }
}

/// Visits each descriptor in a message's control data.
fn each_passed(message: *const msghdr, visit: &mut dyn FnMut(c_int)) {
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
                    .for_each(|index| visit(descriptors.add(index).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn each_control(messages: *mut mmsghdr, count: c_uint) {
    let count = message_count(count);
    if are_readable(messages, count) {
        exec::before_passing(|visit| {
            for index in 0..count {
                // SAFETY: the program's own array, which can be read.
                let message = unsafe { &raw const (*messages.add(index)).msg_hdr };
                if is_valid_message(message, 0) && is_readable_message(message) {
                    each_passed(message, visit);
                }
            }
        });
    }
}

/// The number of messages that a call sends, at most `UIO_MAXIOV`.
fn message_count(count: c_uint) -> usize {
    (count as usize).min(PARTS_MAX)
}

/// Sends messages that can be read, until one is sent in part.
fn send_messages(fd: c_int, messages: *mut mmsghdr, count: usize, flags: c_int) -> c_int {
    let mut done = 0;
    for index in 0..count {
        // SAFETY: the program's own array of `count` messages, which can be read.
        let message = unsafe { &mut *messages.add(index) };
        let sent = send_message(fd, &raw const message.msg_hdr, flags);
        if sent < 0 {
            return if done > 0 { done } else { -1 };
        }
        message.msg_len = sent as c_uint;
        done += 1;
        // The bytes that were sent could be read.
        let wanted = Buffers::list(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen).total();
        if (sent as usize) < wanted {
            break;
        }
    }
    done
}

/// Bytes that wait to be received, in the kernel and in the ring.
pub fn waiting_bytes(socket: Socket) -> Option<c_int> {
    let fd = socket.fd;
    let connection = socket.carried().ok().filter(|connection| !connection.is_dissolved())?;
    let in_ring = connection.in_ring().unwrap_or(0);
    Some(kernel::queued(fd).unwrap_or(0).saturating_add(in_ring as c_int))
}
