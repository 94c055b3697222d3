//! Packets that arrive.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::control::{self, ControlBuffer};
use super::report::is_report;
use super::socket::{UdpSocket, canonical};
use crate::option;

/// A received datagram, or several of one source that the kernel has coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// The bytes of all.
    pub bytes: usize,
    /// The bytes of each. The last one may have fewer.
    pub bytes_each: usize,
}

/// A datagram with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its bytes.
    pub bytes: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address of this machine to which it was sent. `None`: [`UdpSocket::report_local_addresses`] was not called.
    pub local: Option<IpAddr>,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The packet is longer than the buffer, which has its first bytes. The rest is lost.
    #[error("a packet of {length_bytes} bytes is longer than the buffer")]
    Truncated {
        /// The length of the packet.
        length_bytes: usize,
    },
    /// The network has reported that an earlier packet did not arrive. The report may be forged.
    #[error("the network reports an error: {0}")]
    Reported(Errno),
    /// Anything else.
    #[error("cannot receive: {0}")]
    System(Errno),
}

impl UdpSocket {
    /// Receives into `buffer`, with control messages, and with the sender if there is a place for it. Returns the full length.
    fn receive_message(
        &self,
        buffer: &mut [u8],
        controls: &mut ControlBuffer,
        from: Option<&mut libc::sockaddr_in6>,
    ) -> Result<usize, Errno> {
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: zero is a valid value of every part of this structure of the C library.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let room = controls.room();
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(room) as _;
        if let Some(from) = from {
            message.msg_name = (&raw mut *from).cast();
            message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        }
        // TRUNC: the kernel returns the full length.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the kernel writes at most the given lengths into the buffer, the control buffer and the address, which are
        // borrowed mutably until the call returns, and for which any bytes are valid.
        let received = unsafe { libc::recvmsg(self.file.as_raw_fd(), &raw mut message, flags) };
        let length = usize::try_from(received).map_err(|_| option::last_error())?;
        controls.set_length(message.msg_controllen as usize);
        Ok(length)
    }

    /// Receives the next packet. `None`: none has arrived.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, ReceiveError> {
        let room = buffer.len();
        // TRUNC: the kernel returns the full length.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let received = rustix::io::retry_on_intr(|| rustix::net::recv(&self.file, &mut *buffer, flags));
        found(received.map(|(_, length)| (length, ())), room).map(|found| found.map(|(length, ())| length))
    }

    /// Receives the next packet, or several that the kernel has coalesced ([`Self::enable_gro`]). `None`: none has arrived.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_joined(&self, buffer: &mut [u8]) -> Result<Option<Datagrams>, ReceiveError> {
        let room = buffer.len();
        let mut controls = ControlBuffer::default();
        let received = rustix::io::retry_on_intr(|| self.receive_message(&mut *buffer, &mut controls, None));
        let found = found(received.map(|length| (length, ())), room)?;
        Ok(found.map(|(bytes, ())| Datagrams { bytes, bytes_each: controls.segment().unwrap_or(bytes) }))
    }

    /// Receives the next packet, with its addresses. `None`: none has arrived.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_arrival(&self, buffer: &mut [u8]) -> Result<Option<Arrival>, ReceiveError> {
        let room = buffer.len();
        let mut controls = ControlBuffer::default();
        // SAFETY: zero is a valid value of this structure of the C library.
        let mut name: libc::sockaddr_in6 = unsafe { core::mem::zeroed() };
        let received =
            rustix::io::retry_on_intr(|| self.receive_message(&mut *buffer, &mut controls, Some(&mut name)));
        let received = received.and_then(|length| Ok((length, control::address(&name)?)));
        let found = found(received, room)?;
        Ok(found.map(|(bytes, from)| Arrival { bytes, from: canonical(from), local: controls.local() }))
    }

    /// The next packet, with the address of the sender.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_from(&self, buffer: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, ReceiveError> {
        let room = buffer.len();
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let received = rustix::io::retry_on_intr(|| rustix::net::recvfrom(&self.file, &mut *buffer, flags));
        let received = received.and_then(|(_, length, from)| {
            let from = SocketAddr::try_from(from.ok_or(Errno::DESTADDRREQ)?)?;
            Ok((length, canonical(from)))
        });
        found(received, room)
    }
}

/// The result of a receive into a buffer of `room` bytes.
fn found<From>(
    received: Result<(usize, From), Errno>,
    room: usize,
) -> Result<Option<(usize, From)>, ReceiveError> {
    match received {
        Ok((length_bytes, _)) if length_bytes > room => Err(ReceiveError::Truncated { length_bytes }),
        Ok(found) => Ok(Some(found)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) if is_report(error) => Err(ReceiveError::Reported(error)),
        Err(error) => Err(ReceiveError::System(error)),
    }
}
