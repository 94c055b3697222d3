//! Options of sockets, and what waits in them.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt;

use super::control::UDP_GRO;
use super::socket::UdpSocket;
use crate::option;

/// From asm-generic/socket.h.
const SO_MEMINFO: i32 = 55;

/// Sizes of a socket's buffers in the kernel. The kernel counts its overhead as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The requested size, for both directions.
    pub wanted_bytes: usize,
    /// The size of the send buffer. If it is less than wanted, `sysctl net.core.wmem_max` limits it.
    pub send_bytes: usize,
    /// The size of the receive buffer. If it is less than wanted, `sysctl net.core.rmem_max` limits it.
    pub receive_bytes: usize,
}

/// Received packets that wait in a socket, and packets that were dropped because the buffer was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Memory of waiting packets, as the kernel counts it.
    pub waiting_bytes: u32,
    /// The limit of that memory.
    pub limit_bytes: u32,
    /// The limit of the memory of packets that wait to be sent.
    pub send_limit_bytes: u32,
    /// Packets dropped since the socket was created. The number wraps around.
    pub dropped: u32,
}

impl UdpSocket {
    /// Requests buffers of this size for both directions. A process with `CAP_NET_ADMIN` gets them. Others get as much as the
    /// machine's settings allow.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn request_buffers(&self, wanted_bytes: usize) -> Result<Buffers, Errno> {
        let file = &self.file;
        sockopt::set_socket_send_buffer_size_force(file, wanted_bytes)
            .or_else(|_| sockopt::set_socket_send_buffer_size(file, wanted_bytes))?;
        sockopt::set_socket_recv_buffer_size_force(file, wanted_bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(file, wanted_bytes))?;
        // The kernel doubles the requested size, and reports the doubled one.
        let send_bytes = sockopt::socket_send_buffer_size(file)? / 2;
        let receive_bytes = sockopt::socket_recv_buffer_size(file)? / 2;
        Ok(Buffers { wanted_bytes, send_bytes, receive_bytes })
    }

    /// Lets the kernel coalesce packets of one source that arrive together (GRO). [`Self::receive_joined`] tells them apart.
    /// `false`: this kernel does not support it.
    pub fn enable_gro(&self) -> bool {
        option::set(&self.file, libc::SOL_UDP, UDP_GRO, 1).is_ok()
    }

    /// Has [`Self::receive_arrival`] report the address to which each packet was sent.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn report_local_addresses(&self) -> Result<(), Errno> {
        // An IPv6 socket reports those of IPv4 packets as mapped ones.
        match self.is_v6 {
            true => option::set(&self.file, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
            false => option::set(&self.file, libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
        }
    }

    /// Has the kernel report all errors of the network (ICMP), also those that may pass, such as a machine that is off. By default a
    /// connected socket learns only that nothing listens.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn report_errors(&self) -> Result<(), Errno> {
        option::set(&self.file, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        if self.is_v6 { option::set(&self.file, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1) } else { Ok(()) }
    }

    /// Returns whether the kernel segments batches (GSO). It does not after a device turned out to be unable to.
    pub fn uses_gso(&self) -> bool {
        self.is_gso.get()
    }

    /// Turns GSO on, or has each packet of a batch sent by a call of its own.
    pub fn set_gso(&self, is_on: bool) {
        self.is_gso.set(is_on);
    }

    /// Packets that wait in this socket, and packets that were dropped.
    ///
    /// # Errors
    /// The error of [`backlog`].
    pub fn backlog(&self) -> Result<Backlog, Errno> {
        backlog(self)
    }
}

/// Packets that wait in a UDP socket of any process. The kernel answers at once, whatever that process does with the socket.
///
/// # Errors
/// [`Errno::NOTSOCK`], or another error of the kernel.
pub fn backlog(file: &impl AsFd) -> Result<Backlog, Errno> {
    // `SK_MEMINFO_RMEM_ALLOC`, `SK_MEMINFO_RCVBUF`, `SK_MEMINFO_WMEM_ALLOC`, `SK_MEMINFO_SNDBUF` and, last, `SK_MEMINFO_DROPS` of
    // linux/sock_diag.h.
    let [waiting_bytes, limit_bytes, _, send_limit_bytes, .., dropped] =
        option::read::<[u32; 9]>(file, libc::SOL_SOCKET, SO_MEMINFO)?;
    Ok(Backlog { waiting_bytes, limit_bytes, send_limit_bytes, dropped })
}
