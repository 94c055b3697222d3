//! Non-blocking UDP sockets of links between machines. Packets are sent in batches where the kernel supports that (GSO), and
//! are never fragmented.
//!
//! Anyone may send to these sockets, and can forge error reports of the network (ICMP). So [`ReceiveError::Reported`] and
//! [`SendError::Unreachable`] are hints and prove nothing.

mod control;

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, ipproto};

use crate::option;
use control::{ControlBuffer, Controls};

/// A buffer of this size has room for every receive, also of coalesced packets.
pub const RECEIVE_BYTES: usize = 1 << 16;
/// The most packets in one batch: `UDP_MAX_SEGMENTS` of include/linux/udp.h before Linux 6.9.
pub const BATCH_PACKETS_MAX: usize = 64;
/// The most bytes in one batch, or in one packet: an IPv4 packet has at most 65,535, of which headers take 28.
pub const BATCH_BYTES_MAX: usize = 65_507;

/// From include/uapi/linux/udp.h.
const UDP_GRO: i32 = 104;
/// From asm-generic/socket.h.
const SO_MEMINFO: i32 = 55;
/// Of asm-generic/socket.h.
const SO_BINDTOIFINDEX: i32 = 62;
/// Of asm-generic/socket.h.
const SO_NETNS_COOKIE: i32 = 71;
/// The number of the loopback device in every network namespace: `LOOPBACK_IFINDEX` of include/net/flow.h.
const LOOPBACK: i32 = 1;

/// A non-blocking UDP socket that is bound to an address. It never fragments: a packet that is longer than the MTU of the
/// network device is an error ([`SendError::TooLong`]). A smaller path MTU that the network has reported changes nothing.
#[derive(Debug)]
pub struct UdpSocket {
    file: OwnedFd,
    is_v6: bool,
    is_gso: Cell<bool>,
}

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

/// How packets to an address leave this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Their source address.
    pub local: IpAddr,
    /// The longest UDP payload for the path, as far as the kernel knows.
    pub payload_bytes: u16,
}

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
    /// Binds to all IPv4 and IPv6 addresses of this machine. `port` 0 takes a free one.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::ADDRINUSE`] if another socket has the port.
    pub fn bind_everywhere(port: u16) -> Result<Self, Errno> {
        match Self::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
            // This machine has no IPv6.
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
                Self::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
            }
            bound => bound,
        }
    }

    /// Binds to one address. A socket that is bound to `[::]` has IPv4 as well.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::ADDRINUSE`] if another socket has the address.
    pub fn bind(address: SocketAddr) -> Result<Self, Errno> {
        let socket = Self::unbound(address.is_ipv6())?;
        rustix::net::bind(&socket.file, &address)?;
        Ok(socket)
    }

    /// Takes a socket that another process has made by [`Self::bind`] and passed on.
    ///
    /// # Errors
    /// [`Errno::PROTOTYPE`] if it is not a UDP socket; [`Errno::NOTSOCK`].
    pub fn from_descriptor(file: OwnedFd) -> Result<Self, Errno> {
        let is_v6 = has_v6(&file)?;
        Ok(Self { file, is_v6, is_gso: Cell::new(true) })
    }

    fn unbound(is_v6: bool) -> Result<Self, Errno> {
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let file = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        // Sets "do not fragment", and ignores reported path MTUs, which may be forged.
        sockopt::set_ip_mtu_discover(&file, Ipv4PathMtuDiscovery::PROBE)?;
        if is_v6 {
            sockopt::set_ipv6_v6only(&file, false)?;
            sockopt::set_ipv6_mtu_discover(&file, Ipv6PathMtuDiscovery::PROBE)?;
        }
        Ok(Self { file, is_v6, is_gso: Cell::new(true) })
    }

    /// Another socket with the same port, which is connected to `peer`. It has the local address `local`, or the one from which
    /// the kernel sends to the peer. Its calls cost a quarter less than those of a socket
    /// for all peers. To an IPv4 peer it is an IPv4 socket: one of IPv6 would look up its route for each packet. It may have
    /// received packets of others before it was connected. From now on any process of this user can bind to the port.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::NETUNREACH`] and its like if there is no route; [`Errno::XDEV`] if the calling thread is
    /// now in another network namespace, or the kernel cannot tell (before Linux 5.14).
    pub fn connected_to(&self, peer: SocketAddr, local: Option<IpAddr>) -> Result<Self, Errno> {
        let peer = canonical(peer);
        let socket = Self::unbound(peer.is_ipv6())?;
        // In another network namespace it would receive nothing from the peer, and send from the address of another machine.
        let namespace = |file| option::read::<u64>(file, libc::SOL_SOCKET, SO_NETNS_COOKIE);
        if !namespace(&self.file).is_ok_and(|here| namespace(&socket.file) == Ok(here)) {
            return Err(Errno::XDEV);
        }
        // Not when the first socket is bound: with this option, port 0 could give the port of another such socket.
        sockopt::set_socket_reuseport(&self.file, true)?;
        sockopt::set_socket_reuseport(&socket.file, true)?;
        let own = self.local_address()?;
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), own.port());
        let is_v4_of_both = own.is_ipv6() && !socket.is_v6;
        // A link-local address is none without its interface, which the peer's address has.
        let local = local.filter(|ip| ip.is_ipv6() == peer.is_ipv6() && !is_link_local(*ip));
        let local = local.map(|ip| SocketAddr::new(ip, own.port()));
        rustix::net::bind(&socket.file, &local.unwrap_or(if is_v4_of_both { everywhere } else { own }))?;
        socket.connect(peer)?;
        Ok(socket)
    }

    /// Connects the socket: from now on it sends to `peer`, and receives only from there.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::NETUNREACH`] and its like if there is no route.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        rustix::net::connect(&self.file, &self.reachable(peer))
    }

    /// Makes a socket of [`Self::connected_to`] receive nothing, before it is closed. The close alone is not enough if a forked
    /// child has a copy: it would receive the peer's packets forever.
    pub fn retire(&self, peer: SocketAddr) {
        /// The discard service (RFC 863), which sends nothing.
        const DISCARD: u16 = 9;
        if self.connect(SocketAddr::new(peer.ip(), DISCARD)).is_err() {
            // There is no route to the peer. When there is one again, nothing arrives from it through the loopback device.
            let _ = option::set(&self.file, libc::SOL_SOCKET, SO_BINDTOIFINDEX, LOOPBACK);
        }
    }

    /// Its own address. If it is bound to all addresses, only the port is meaningful.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_address(&self) -> Result<SocketAddr, Errno> {
        SocketAddr::try_from(rustix::net::getsockname(&self.file)?).map(canonical)
    }

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

    /// Does the kernel segment batches (GSO)? Not after a device turned out to be unable to.
    pub fn uses_gso(&self) -> bool {
        self.is_gso.get()
    }

    /// Turns GSO on, or has each packet of a batch sent by a call of its own.
    pub fn set_gso(&self, is_on: bool) {
        self.is_gso.set(is_on);
    }

    /// Sends one packet, to the connected peer (`None`) or to an address.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, to: Option<SocketAddr>, packet: &[u8]) -> Result<(), SendError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = despite_reports(|| match to {
            Some(to) => rustix::net::sendto(&self.file, packet, flags, &self.reachable(to)),
            None => rustix::net::send(&self.file, packet, flags),
        });
        sent.map(drop).map_err(SendError::of)
    }

    /// Sends one packet to an address from one of this machine's, such as the one to which the other machine has sent. It leaves
    /// from another one if this machine no longer has that.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_from(&self, local: Option<IpAddr>, to: SocketAddr, packet: &[u8]) -> Result<(), SendError> {
        let Some(local) = local else { return self.send(Some(to), packet) };
        let mut controls = Controls::default();
        controls.add_source(local, self.is_v6);
        let sent = despite_reports(|| self.send_message(Some(to), packet, &controls));
        match sent {
            Ok(()) => Ok(()),
            // Most errors of a socket are told by the next attempt too, and these are the ones of a missing address.
            Err(Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::HOSTUNREACH) => {
                self.send(Some(to), packet)
            }
            Err(error) => Err(SendError::of(error)),
        }
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
        let segment = u16::try_from(packet_bytes).ok().filter(|bytes| *bytes > 0);
        let segment = segment.ok_or(SendError::System(Errno::INVAL))?;
        if packets.len() <= packet_bytes {
            return self.send(to, packets).map(|()| packets.len());
        }
        if packets.len() > BATCH_BYTES_MAX || packets.len().div_ceil(packet_bytes) > BATCH_PACKETS_MAX {
            return Err(SendError::System(Errno::INVAL));
        }
        if self.is_gso.get() {
            match despite_reports(|| self.send_segmented(to, packets, segment)) {
                Ok(()) => return Ok(packets.len()),
                // The device does not compute checksums, so it cannot segment.
                Err(Errno::IO) => self.is_gso.set(false),
                Err(Errno::INVAL) => return self.send_refused(to, packets, packet_bytes),
                Err(error) => return Err(SendError::of(error)),
            }
        }
        self.send_each(to, packets, packet_bytes)
    }

    /// Sends a batch whose segmentation the kernel has called invalid. Up to Linux 6.14 it does so if a packet is longer than the MTU,
    /// and then the first packet alone does not leave either. Some kernels and devices cannot segment what they can send.
    fn send_refused(
        &self,
        to: Option<SocketAddr>,
        packets: &[u8],
        packet_bytes: usize,
    ) -> Result<usize, SendError> {
        let sent = self.send_each(to, packets, packet_bytes)?;
        self.is_gso.set(false);
        Ok(sent)
    }

    /// Sends each packet of a batch by a call of its own.
    fn send_each(
        &self,
        to: Option<SocketAddr>,
        packets: &[u8],
        packet_bytes: usize,
    ) -> Result<usize, SendError> {
        let mut sent = 0;
        for packet in packets.chunks(packet_bytes) {
            match self.send(to, packet) {
                Ok(()) => sent += packet.len(),
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Sends a batch by one call. The kernel segments it.
    fn send_segmented(&self, to: Option<SocketAddr>, packets: &[u8], segment: u16) -> Result<(), Errno> {
        let mut controls = Controls::default();
        controls.add_segment(segment);
        self.send_message(to, packets, &controls)
    }

    fn send_message(&self, to: Option<SocketAddr>, bytes: &[u8], controls: &Controls) -> Result<(), Errno> {
        let to = to.map(|to| SocketAddrAny::from(self.reachable(to)));
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

    /// The longest UDP payload for the path of this connected socket, as far as the kernel knows.
    ///
    /// # Errors
    /// [`Errno::NOTCONN`] if it is not connected.
    pub fn payload_bytes(&self) -> Result<u16, Errno> {
        let peer = rustix::net::getpeername(&self.file)?.ok_or(Errno::NOTCONN)?;
        let is_v6 = canonical(SocketAddr::try_from(peer)?).is_ipv6();
        let mtu = if is_v6 { sockopt::ipv6_mtu(&self.file) } else { sockopt::ip_mtu(&self.file) }?;
        Ok(payload_bytes(mtu, is_v6))
    }

    /// Packets that wait in this socket, and packets that were dropped.
    ///
    /// # Errors
    /// The error of [`backlog`].
    pub fn backlog(&self) -> Result<Backlog, Errno> {
        backlog(self)
    }

    /// The address in the form of this socket's family.
    fn reachable(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(inner) if self.is_v6 => {
                SocketAddrV6::new(inner.ip().to_ipv6_mapped(), inner.port(), 0, 0).into()
            }
            _ => address,
        }
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

/// Is this UDP socket of another process an IPv6 socket? The kernel answers at once, whatever that process does with it.
///
/// # Errors
/// [`Errno::PROTOTYPE`] if it is not a UDP socket; [`Errno::NOTSOCK`].
pub fn has_v6(file: &impl AsFd) -> Result<bool, Errno> {
    let family = sockopt::socket_domain(file)?;
    let is_internet = matches!(family, AddressFamily::INET | AddressFamily::INET6);
    let is_udp = sockopt::socket_protocol(file)? == Some(ipproto::UDP);
    if is_internet && is_udp { Ok(family == AddressFamily::INET6) } else { Err(Errno::PROTOTYPE) }
}

/// How packets to `peer` leave this machine.
///
/// # Errors
/// [`Errno::NETUNREACH`] and its like if there is no route.
pub fn route(peer: SocketAddr) -> Result<Route, Errno> {
    let socket = UdpSocket::unbound(peer.is_ipv6())?;
    socket.connect(peer)?;
    Ok(Route { local: socket.local_address()?.ip(), payload_bytes: socket.payload_bytes()? })
}

/// The longest UDP payload of a packet of this length.
fn payload_bytes(mtu_bytes: u32, is_v6: bool) -> u16 {
    let headers = if is_v6 { 40 + 8 } else { 20 + 8 };
    // The MTU of loopback is greater than the longest packet.
    let bytes = mtu_bytes.saturating_sub(headers).min(BATCH_BYTES_MAX as u32);
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

/// An IPv4-mapped address as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
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

/// Sends again if the error may have been a report about an earlier packet, which says nothing about this one.
fn despite_reports<T>(mut send: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match rustix::io::retry_on_intr(&mut send) {
        Err(error) if is_report(error) => rustix::io::retry_on_intr(send),
        sent => sent,
    }
}

/// Is this the error of a network report (ICMP), or of a missing route?
fn is_report(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNREFUSED
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::PROTO
            | Errno::OPNOTSUPP
            | Errno::NETDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::MSGSIZE
    )
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

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<UdpSocket> for OwnedFd {
    fn from(socket: UdpSocket) -> Self {
        socket.file
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

    fn pair(ip: IpAddr) -> [UdpSocket; 2] {
        let [a, b] = [(); 2].map(|()| UdpSocket::bind(SocketAddr::new(ip, 0)).expect("bound"));
        a.connect(b.local_address().expect("its address")).expect("connected");
        b.connect(a.local_address().expect("its address")).expect("connected");
        [a, b]
    }

    /// The result of a receive once a packet has arrived.
    fn eventually<T>(
        mut receive: impl FnMut() -> Result<Option<T>, ReceiveError>,
    ) -> Result<T, ReceiveError> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match receive() {
                Ok(None) => assert!(Instant::now() < deadline, "timed out"),
                Ok(Some(found)) => return Ok(found),
                Err(error) => return Err(error),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn packets_cross_over_both_families_to_addresses_and_to_peers() {
        let everywhere = UdpSocket::bind_everywhere(0).expect("bound");
        let port = everywhere.local_address().expect("its address").port();
        let mut buffer = [0; 64];
        for ip in LOOPBACKS {
            let [a, b] = pair(ip);
            assert_eq!(b.receive(&mut buffer), Ok(None));
            a.send(None, b"one").expect("sent");
            assert_eq!((eventually(|| b.receive(&mut buffer)), &buffer[..3]), (Ok(3), &b"one"[..]));
            // An empty packet is a packet.
            b.send(None, b"").expect("sent");
            assert_eq!(eventually(|| a.receive(&mut buffer)), Ok(0));
            // An unconnected socket knows the sender, and answers.
            let one = UdpSocket::bind(SocketAddr::new(ip, 0)).expect("bound");
            one.send(Some(SocketAddr::new(ip, port)), b"two").expect("sent");
            let (length, from) = eventually(|| everywhere.receive_from(&mut buffer)).expect("it came");
            assert_eq!((length, from), (3, one.local_address().expect("its address")));
            everywhere.send(Some(from), b"three").expect("sent");
            assert_eq!(eventually(|| one.receive(&mut buffer)), Ok(5));
        }
    }

    #[test]
    fn a_port_in_use_is_an_error_and_a_free_one_is_found() {
        let one = UdpSocket::bind_everywhere(0).expect("bound");
        let port = one.local_address().expect("its address").port();
        assert!(port != 0);
        assert_eq!(UdpSocket::bind_everywhere(port).err(), Some(Errno::ADDRINUSE));
    }

    #[test]
    fn a_batch_arrives_as_packets_with_and_without_kernel_segmentation() {
        let batch: Vec<u8> = (0..10_u8).flat_map(|number| vec![number; 1000]).chain([10; 100]).collect();
        let mut buffer = vec![0; RECEIVE_BYTES];
        for (ip, gso) in LOOPBACKS.into_iter().flat_map(|ip| [(ip, true), (ip, false)]) {
            let [a, b] = pair(ip);
            a.set_gso(gso);
            for to in [None, Some(b.local_address().expect("its address"))] {
                assert_eq!(a.send_batch(to, &batch, 1000), Ok(batch.len()));
                for number in 0..=10 {
                    let expected = if number == 10 { 100 } else { 1000 };
                    assert_eq!(eventually(|| b.receive(&mut buffer)), Ok(expected));
                    assert!(buffer[..expected].iter().all(|byte| *byte == number));
                }
                assert_eq!(b.receive(&mut buffer), Ok(None));
            }
            assert_eq!(a.uses_gso(), gso, "loopback segments");
        }
    }

    #[test]
    fn a_batch_that_the_kernel_refuses_to_segment_arrives_packet_by_packet() {
        // From asm-generic/socket.h and include/uapi/linux/udp.h. Without checksums the kernel calls a segmented send invalid.
        const SO_NO_CHECK: i32 = 11;
        const UDP_NO_CHECK6_TX: i32 = 101;
        const UDP_NO_CHECK6_RX: i32 = 102;
        let mut buffer = [0; 2000];
        for ip in LOOPBACKS {
            let [a, b] = pair(ip);
            option::set(&a.file, libc::SOL_SOCKET, SO_NO_CHECK, 1).expect("set");
            if ip.is_ipv6() {
                option::set(&a.file, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1).expect("set");
                option::set(&b.file, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1).expect("set");
            }
            for _ in 0..2 {
                assert_eq!(a.send_batch(None, &[7; 3500], 1000), Ok(3500));
                for expected in [1000, 1000, 1000, 500] {
                    assert_eq!(eventually(|| b.receive(&mut buffer)), Ok(expected));
                }
                assert!(!a.uses_gso(), "it is not tried again");
            }
        }
    }

    #[test]
    fn a_batch_of_packets_longer_than_the_mtu_is_too_long_and_segmentation_goes_on() {
        let Ok(namespace) = crate::namespace::Namespace::fresh() else {
            return println!("not run: no network namespace can be made here: run as root");
        };
        let check = || {
            let done = Command::new("ip").args(["link", "set", "lo", "up", "mtu", "1500"]).status();
            assert!(done.expect("`ip` runs").success());
            let [a, b] = pair(LOOPBACKS[0]);
            assert_eq!(a.send_batch(None, &[7; 6000], 2000), Err(SendError::TooLong));
            assert_eq!(a.send_batch(None, &[7; 2000], 1000), Ok(2000));
            assert!(a.uses_gso() && eventually(|| b.receive(&mut [0; 2000])) == Ok(1000));
        };
        namespace.run(check).expect("it is a namespace");
    }

    #[test]
    fn packets_of_a_batch_are_coalesced_on_request() {
        let batch = vec![7; 12_000];
        for ip in LOOPBACKS {
            let [a, b] = pair(ip);
            assert!(b.enable_gro());
            assert_eq!(a.send_batch(None, &batch, 1200), Ok(batch.len()));
            let joined = Datagrams { bytes: batch.len(), bytes_each: 1200 };
            assert_eq!(eventually(|| b.receive_joined(&mut vec![0; RECEIVE_BYTES])), Ok(joined));
            a.send(None, &[1; 100]).expect("sent");
            let single = Datagrams { bytes: 100, bytes_each: 100 };
            assert_eq!(eventually(|| b.receive_joined(&mut vec![0; RECEIVE_BYTES])), Ok(single));
        }
    }

    #[test]
    fn a_packet_is_answered_from_the_address_to_which_it_was_sent() {
        let second = IpAddr::from([127, 0, 0, 2]);
        for service in [UdpSocket::bind_everywhere(0), UdpSocket::bind(([0, 0, 0, 0], 0).into())] {
            let service = service.expect("bound");
            service.report_local_addresses().expect("the kernel reports them");
            let port = service.local_address().expect("its address").port();
            for ip in [LOOPBACKS[0], second, LOOPBACKS[1]] {
                let Ok(client) = UdpSocket::bind(SocketAddr::new(
                    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
                    0,
                )) else {
                    continue;
                };
                if ip.is_ipv6() && !service.is_v6 {
                    continue;
                }
                let target = SocketAddr::new(ip, port);
                client.send(Some(target), b"?").expect("sent");
                let arrival = eventually(|| service.receive_arrival(&mut [0; 8])).expect("it came");
                assert_eq!((arrival.bytes, arrival.local), (1, Some(ip)));
                service.send_from(arrival.local, arrival.from, b"!!").expect("sent");
                assert_eq!(eventually(|| client.receive_from(&mut [0; 8])), Ok((2, target)));
                // Segmentation and a source address go together.
                let mut controls = Controls::default();
                controls.add_segment(100);
                controls.add_source(ip, service.is_v6);
                service.send_message(Some(arrival.from), &[0; 250], &controls).expect("sent");
                for bytes in [100, 100, 50] {
                    assert_eq!(eventually(|| client.receive_from(&mut [0; 200])), Ok((bytes, target)));
                }
                // A socket for this client alone has the address as well.
                let own = service.connected_to(arrival.from, arrival.local).expect("connected");
                client.send(Some(target), b"???").expect("sent");
                assert_eq!(eventually(|| own.receive(&mut [0; 8])), Ok(3));
            }
            // An address that this machine does not have.
            let client = UdpSocket::bind(([127, 0, 0, 1], 0).into()).expect("bound");
            let to = client.local_address().expect("its address");
            service.send_from(Some([192, 0, 2, 1].into()), to, b"!").expect("sent from another one");
            let from = SocketAddr::new(LOOPBACKS[0], port);
            assert_eq!(eventually(|| client.receive_from(&mut [0; 8])), Ok((1, from)));
        }
    }

    #[test]
    fn a_batch_above_the_limit_is_refused_and_one_at_the_limit_is_sent() {
        let [a, b] = pair(LOOPBACKS[0]);
        let invalid = Err(SendError::System(Errno::INVAL));
        assert_eq!(a.send_batch(None, &[0; 10], 0), invalid);
        assert_eq!(a.send_batch(None, &[0; BATCH_PACKETS_MAX + 1], 1), invalid);
        assert_eq!(a.send_batch(None, &[0; BATCH_BYTES_MAX + 1], 2000), invalid);
        let longest = BATCH_BYTES_MAX.div_ceil(BATCH_PACKETS_MAX);
        assert_eq!(a.send_batch(None, &[0; BATCH_BYTES_MAX], longest), Ok(BATCH_BYTES_MAX));
        let received =
            (0..BATCH_PACKETS_MAX).map(|_| eventually(|| b.receive(&mut [0; 2000])).expect("it came"));
        assert_eq!(received.sum::<usize>(), BATCH_BYTES_MAX);
    }

    #[test]
    fn a_packet_that_does_not_fit_is_an_error_with_its_length() {
        for ip in LOOPBACKS {
            let [a, b] = pair(ip);
            let from = a.local_address().expect("its address");
            let truncated = ReceiveError::Truncated { length_bytes: 300 };
            a.send(None, &[1; 300]).expect("sent");
            assert_eq!(eventually(|| b.receive(&mut [0; 299])), Err(truncated));
            a.send(None, &[1; 300]).expect("sent");
            assert_eq!(eventually(|| b.receive_from(&mut [0; 299])), Err(truncated));
            a.send(None, &[1; 300]).expect("sent");
            assert_eq!(eventually(|| b.receive_from(&mut [0; 300])), Ok((300, from)));
        }
    }

    #[test]
    fn a_packet_too_long_for_the_path_is_refused_and_not_fragmented() {
        for ip in LOOPBACKS {
            let [a, _b] = pair(ip);
            let whole = vec![0; usize::from(a.payload_bytes().expect("it is connected"))];
            a.send(None, &whole).expect("it fits");
            assert_eq!(a.send(None, &vec![0; BATCH_BYTES_MAX + 30]), Err(SendError::TooLong));
            // The MTU of loopback is 64 KiB, so for batches this shows only that the longest packets are sent.
            let half = whole.len() / 2;
            assert_eq!(a.send_batch(None, &whole[..2 * half], half), Ok(2 * half));
        }
        let route = route(SocketAddr::new(LOOPBACKS[0], 9)).expect("loopback");
        assert_eq!((route.local, usize::from(route.payload_bytes)), (LOOPBACKS[0], BATCH_BYTES_MAX));
    }

    #[test]
    fn packets_that_overflow_a_queue_are_counted_and_waiting_ones_are_seen_through_a_duplicate() {
        let [a, b] = pair(LOOPBACKS[0]);
        let buffers = b.request_buffers(8192).expect("set");
        assert_eq!((buffers.wanted_bytes, buffers.receive_bytes), (8192, 8192));
        let copy = b.as_fd().try_clone_to_owned().expect("a copy");
        assert_eq!(has_v6(&copy), Ok(false));
        assert_eq!(backlog(&copy).map(|backlog| (backlog.waiting_bytes, backlog.dropped)), Ok((0, 0)));
        const SENT: u32 = 100;
        for _ in 0..SENT {
            a.send(None, &[0; 1000]).expect("sent");
        }
        let full = backlog(&copy).expect("a socket");
        assert!(full.waiting_bytes > 0 && full.dropped > 0, "{full:?}");
        let received = std::iter::from_fn(|| b.receive(&mut [0; 1000]).expect("no error")).count();
        assert_eq!(received, (SENT - full.dropped) as usize, "each packet is received or counted");
        assert_eq!(b.backlog().expect("a socket").dropped, full.dropped);
    }

    #[test]
    fn an_icmp_error_is_reported_by_receive_and_stops_no_packet() {
        for ip in LOOPBACKS {
            let [a, b] = pair(ip);
            drop(b);
            a.send(None, b"lost").expect("sent");
            let refused = Err(ReceiveError::Reported(Errno::CONNREFUSED));
            assert_eq!(eventually(|| a.receive(&mut [0; 8])), refused);
            assert_eq!(a.receive(&mut [0; 8]), Ok(None));
            // The report about one packet has arrived when the next one is sent.
            for _ in 0..8 {
                assert_eq!(a.send(None, b"lost"), Ok(()));
            }
        }
    }

    #[test]
    fn an_address_without_a_route_is_an_error_of_its_own() {
        let socket = UdpSocket::bind(SocketAddr::new(LOOPBACKS[0], 0)).expect("bound");
        // A packet from a loopback address cannot leave the machine.
        let outside = SocketAddr::from(([192, 0, 2, 1], 9));
        let error = socket.send(Some(outside), b"?").expect_err("no route");
        assert!(matches!(error, SendError::Unreachable(_) | SendError::System(Errno::INVAL)), "{error:?}");
    }

    #[test]
    fn a_connected_socket_shares_the_port_and_receives_its_peers_packets() {
        for ip in LOOPBACKS {
            let common = UdpSocket::bind_everywhere(0).expect("bound");
            let port = common.local_address().expect("its address").port();
            let [peer, other] = [(); 2].map(|()| UdpSocket::bind(SocketAddr::new(ip, 0)).expect("bound"));
            let own =
                common.connected_to(peer.local_address().expect("its address"), None).expect("connected");
            assert_eq!(own.local_address().expect("its address").port(), port);
            for sender in [&peer, &other] {
                sender.send(Some(SocketAddr::new(ip, port)), b"!").expect("sent");
            }
            assert_eq!(eventually(|| own.receive(&mut [0; 8])), Ok(1));
            assert_eq!(own.receive(&mut [0; 8]), Ok(None));
            let from = eventually(|| common.receive_from(&mut [0; 8])).map(|(_, from)| from);
            assert_eq!(from, Ok(other.local_address().expect("its address")));
            own.send(None, b"!").expect("sent");
            let from = eventually(|| peer.receive_from(&mut [0; 8])).map(|(_, from)| from);
            assert_eq!(from, Ok(SocketAddr::new(ip, port)));
        }
    }

    #[test]
    fn a_socket_that_is_retired_without_a_route_takes_nothing_once_there_is_one() {
        use crate::namespace::Namespace;
        let Ok(here) = Namespace::fresh() else {
            println!("not run: no network namespace can be made here: run as root");
            return;
        };
        let there = Namespace::fresh().expect("another one");
        let ip = |namespace: &Namespace, arguments: &str| {
            let run = || std::process::Command::new("ip").args(arguments.split(' ')).status();
            let status = namespace.run(run).expect("inside").expect("`ip` runs");
            assert!(status.success(), "ip {arguments}");
        };
        let path = format!("/proc/{}/fd/{}", std::process::id(), there.as_fd().as_raw_fd());
        ip(&here, &format!("link add eth0 type veth peer name eth0 netns {path}"));
        for (namespace, address) in [(&here, "10.79.0.1/24"), (&there, "10.79.0.2/24")] {
            ip(namespace, &format!("address add {address} dev eth0"));
            ip(namespace, "link set eth0 up");
        }
        let bind = || UdpSocket::bind_everywhere(0).expect("bound");
        let (common, peer) = (here.run(bind).expect("inside"), there.run(bind).expect("inside"));
        let port = |socket: &UdpSocket| socket.local_address().expect("its address").port();
        let address = SocketAddr::from(([10, 79, 0, 2], port(&peer)));
        let connect = move || (common.connected_to(address, None), common);
        let (own, common) = here.run(connect).expect("inside");
        let own = own.expect("connected");
        let copy = own.as_fd().try_clone_to_owned().expect("a copy, as a forked child has it");
        ip(&here, "link set eth0 down");
        own.retire(address);
        drop(own);
        ip(&here, "link set eth0 up");
        let target = SocketAddr::from(([10, 79, 0, 1], port(&common)));
        let received = eventually(|| {
            // The first ones may be lost, as the devices are not ready yet.
            let _ = peer.send(Some(target), b"!");
            std::thread::sleep(Duration::from_millis(10));
            common.receive(&mut [0; 8])
        });
        assert_eq!(received, Ok(1));
        drop(copy);
    }

    #[test]
    fn other_files_than_udp_sockets_are_recognised() {
        let six = UdpSocket::bind(SocketAddr::new(LOOPBACKS[1], 0)).expect("bound");
        assert_eq!(has_v6(&six), Ok(true));
        let (unix, _other) = std::os::unix::net::UnixDatagram::pair().expect("pair");
        assert_eq!(has_v6(&unix), Err(Errno::PROTOTYPE));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        assert_eq!(has_v6(&listener), Err(Errno::PROTOTYPE));
        let file = std::fs::File::open("/dev/null").expect("open");
        assert_eq!(has_v6(&file), Err(Errno::NOTSOCK));
        assert_eq!(backlog(&file).err(), Some(Errno::NOTSOCK));
    }
}
