//! The socket: its addresses and its peer.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use super::sizes::BATCH_BYTES_MAX;
use crate::option;

/// Of asm-generic/socket.h.
const SO_BINDTOIFINDEX: i32 = 62;
/// Of asm-generic/socket.h.
const SO_NETNS_COOKIE: i32 = 71;
/// The number of the loopback device in every network namespace: `LOOPBACK_IFINDEX` of include/net/flow.h.
const LOOPBACK: i32 = 1;

/// A non-blocking UDP socket that is bound to an address. It never fragments: a packet that is longer than the MTU of the
/// network device is an error ([`SendError::TooLong`](super::SendError::TooLong)). A smaller path MTU that the network has reported changes nothing.
#[derive(Debug)]
pub struct UdpSocket {
    pub(super) file: OwnedFd,
    pub(super) is_v6: bool,
    pub(super) is_gso: Cell<bool>,
}

/// How packets to an address leave this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Their source address.
    pub local: IpAddr,
    /// The longest UDP payload for the path, as far as the kernel knows.
    pub payload_bytes: u16,
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

    /// The address in the form of this socket's family.
    pub(super) fn reachable(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(inner) if self.is_v6 => {
                SocketAddrV6::new(inner.ip().to_ipv6_mapped(), inner.port(), 0, 0).into()
            }
            _ => address,
        }
    }
}

/// Returns whether this UDP socket of another process is an IPv6 socket. The kernel answers at once, whatever that process does with it.
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
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
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
