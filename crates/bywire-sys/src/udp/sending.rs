//! Packets that leave, alone and in batches.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny};

use super::control::Controls;
use super::report::is_report;
use super::sizes::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX};
use super::socket::UdpSocket;
use crate::option;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The send buffer is full. It has room again once the device has sent some packets.
    #[error("the socket's send buffer is full")]
    Full,
    /// The queue of the device is full, or memory is short. The packets are lost, as they could be on the network.
    #[error("the queue of the network device is full")]
    Dropped,
    /// A packet is longer than the MTU of the network device.
    #[error("a packet is longer than the MTU of the network device")]
    TooLong,
    /// There is no route, or the network has reported that an earlier packet did not arrive. The report may be forged.
    #[error("the address cannot be reached: {0}")]
    Unreachable(Errno),
    /// A packet filter of this machine blocks the packet.
    #[error("a packet filter of this machine blocks the packet")]
    Denied,
    /// Anything else.
    #[error("cannot send: {0}")]
    System(Errno),
}

/// The addresses of a packet that leaves.
#[derive(Clone, Copy)]
struct Ends {
    /// `None`: the connected peer.
    to: Option<SocketAddr>,
    /// `None`: the kernel chooses.
    local: Option<IpAddr>,
}

impl UdpSocket {
    /// Sends one packet, to the connected peer (`None`) or to an address.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, to: Option<SocketAddr>, packet: &[u8]) -> Result<(), SendError> {
        self.send_one(Ends { to, local: None }, packet)
    }

    /// Sends one packet to an address from one of this machine's, such as the one to which the other machine has sent. It leaves
    /// from another one if this machine no longer has that.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_from(&self, local: Option<IpAddr>, to: SocketAddr, packet: &[u8]) -> Result<(), SendError> {
        from_any(Ends { to: Some(to), local }, |ends| self.send_one(ends, packet))
    }

    /// Sends contiguous packets of `packet_bytes` each. The last one may be shorter. A batch has at most [`BATCH_PACKETS_MAX`]
    /// packets, and [`BATCH_BYTES_MAX`] bytes in all. Returns how many bytes were sent: without GSO these may be the first
    /// packets only.
    ///
    /// # Errors
    /// [`SendError`]: not even the first packet was sent.
    pub fn send_batch(
        &self,
        to: Option<SocketAddr>,
        packets: &[u8],
        packet_bytes: usize,
    ) -> Result<usize, SendError> {
        self.send_many(Ends { to, local: None }, packets, packet_bytes)
    }

    /// Sends a batch as [`Self::send_batch`] does, from an address as [`Self::send_from`] does.
    ///
    /// # Errors
    /// [`SendError`]: not even the first packet was sent.
    pub fn send_batch_from(
        &self,
        local: Option<IpAddr>,
        to: SocketAddr,
        packets: &[u8],
        packet_bytes: usize,
    ) -> Result<usize, SendError> {
        from_any(Ends { to: Some(to), local }, |ends| self.send_many(ends, packets, packet_bytes))
    }

    fn send_one(&self, ends: Ends, packet: &[u8]) -> Result<(), SendError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = despite_reports(|| match ends {
            Ends { local: Some(_), .. } => self.send_message(ends, packet, None),
            Ends { to: Some(to), .. } => {
                rustix::net::sendto(&self.file, packet, flags, &self.reachable(to)).map(drop)
            }
            Ends { to: None, .. } => rustix::net::send(&self.file, packet, flags).map(drop),
        });
        sent.map_err(SendError::of)
    }

    fn send_many(&self, ends: Ends, packets: &[u8], packet_bytes: usize) -> Result<usize, SendError> {
        let segment = u16::try_from(packet_bytes).ok().filter(|bytes| *bytes > 0);
        let segment = segment.ok_or(SendError::System(Errno::INVAL))?;
        if packets.len() <= packet_bytes {
            return self.send_one(ends, packets).map(|()| packets.len());
        }
        if packets.len() > BATCH_BYTES_MAX || packets.len().div_ceil(packet_bytes) > BATCH_PACKETS_MAX {
            return Err(SendError::System(Errno::INVAL));
        }
        if self.is_gso.get() {
            match despite_reports(|| self.send_message(ends, packets, Some(segment))) {
                Ok(()) => return Ok(packets.len()),
                // The device does not compute checksums, so it cannot segment.
                Err(Errno::IO) => self.is_gso.set(false),
                Err(Errno::INVAL) => return self.send_refused(ends, packets, packet_bytes),
                Err(error) => return Err(SendError::of(error)),
            }
        }
        self.send_each(ends, packets, packet_bytes)
    }

    /// Sends a batch whose segmentation the kernel has called invalid. Up to Linux 6.14 it does so if a packet is longer than the MTU,
    /// and then the first packet alone does not leave either. Some kernels and devices cannot segment what they can send.
    fn send_refused(&self, ends: Ends, packets: &[u8], packet_bytes: usize) -> Result<usize, SendError> {
        let sent = self.send_each(ends, packets, packet_bytes)?;
        self.is_gso.set(false);
        Ok(sent)
    }

    /// Sends each packet of a batch by a call of its own.
    fn send_each(&self, ends: Ends, packets: &[u8], packet_bytes: usize) -> Result<usize, SendError> {
        let mut sent = 0;
        for packet in packets.chunks(packet_bytes) {
            match self.send_one(ends, packet) {
                Ok(()) => sent += packet.len(),
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Sends by one call. With the length of a segment, the kernel cuts the bytes into packets.
    fn send_message(&self, ends: Ends, bytes: &[u8], segment: Option<u16>) -> Result<(), Errno> {
        let mut controls = Controls::default();
        segment.into_iter().for_each(|bytes| controls.add_segment(bytes));
        ends.local.into_iter().for_each(|ip| controls.add_source(ip, self.is_v6));
        let to = ends.to.map(|to| SocketAddrAny::from(self.reachable(to)));
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: zero is a valid value of every part of this structure of the C library.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let controls = controls.bytes();
        message.msg_control = controls.as_ptr().cast_mut().cast();
        message.msg_controllen = controls.len() as _;
        if let Some(to) = &to {
            message.msg_name = to.as_ptr().cast_mut().cast();
            message.msg_namelen = to.addr_len();
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the address, the control messages and the part all live until the call returns, and their lengths are
        // those of these values. The kernel only reads what they lead to.
        let sent = unsafe { libc::sendmsg(self.file.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(option::last_error()) } else { Ok(()) }
    }
}

/// Sends from the chosen address, or from another one if this machine does not have that.
fn from_any<T>(ends: Ends, send: impl Fn(Ends) -> Result<T, SendError>) -> Result<T, SendError> {
    match send(ends) {
        // These are the errors of a missing address. The next attempt returns most others, too.
        Err(SendError::Unreachable(_) | SendError::System(Errno::INVAL)) if ends.local.is_some() => {
            send(Ends { local: None, ..ends })
        }
        sent => sent,
    }
}

/// Sends again if the error may have been a report about an earlier packet, which says nothing about this one.
fn despite_reports<T>(mut send: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match rustix::io::retry_on_intr(&mut send) {
        Err(error) if is_report(error) => rustix::io::retry_on_intr(send),
        sent => sent,
    }
}

impl SendError {
    fn of(error: Errno) -> Self {
        match error {
            Errno::AGAIN => Self::Full,
            Errno::NOBUFS | Errno::NOMEM => Self::Dropped,
            // Before the reports, of which it is one.
            Errno::MSGSIZE => Self::TooLong,
            Errno::PERM | Errno::ACCESS => Self::Denied,
            error if is_report(error) => Self::Unreachable(error),
            error => Self::System(error),
        }
    }
}
