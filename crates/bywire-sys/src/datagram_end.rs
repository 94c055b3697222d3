//! The kernel's own account of a UDP socket behind a descriptor, and of one other end that it talks to.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{option, tcp};

/// A socket and another end, distinguished from all others of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramEnd {
    /// The network namespace.
    pub namespace: u64,
    /// The socket.
    pub cookie: u64,
    /// This end, by the address that the other one sees. IPv4 in IPv6 is given as IPv4.
    pub local: SocketAddr,
    /// Tied to one interface by `SO_BINDTODEVICE`.
    pub is_bound_to_device: bool,
}

/// Asks the kernel for a socket's address and number. `remote` is the address of the other end, of this machine and of the
/// calling thread's network namespace.
///
/// # Errors
/// [`Errno::PROTOTYPE`] if it is no UDP socket, [`Errno::NOTCONN`] if it has no port or is connected to another end,
/// [`Errno::ADDRINUSE`] if others may share its port by `SO_REUSEPORT`.
pub fn identify(file: &impl AsFd, remote: SocketAddr) -> Result<DatagramEnd, Errno> {
    let protocol: i32 = option::read(file, libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
    let kind: i32 = option::read(file, libc::SOL_SOCKET, libc::SO_TYPE)?;
    if (protocol, kind) != (libc::IPPROTO_UDP, libc::SOCK_DGRAM) {
        return Err(Errno::PROTOTYPE);
    }
    if option::read::<i32>(file, libc::SOL_SOCKET, libc::SO_REUSEPORT)? != 0 {
        return Err(Errno::ADDRINUSE);
    }
    let address = |name: rustix::net::SocketAddrAny| SocketAddr::try_from(name).map(tcp::canonical);
    let mut local = address(rustix::net::getsockname(file)?)?;
    let peer = match rustix::net::getpeername(file) {
        Err(Errno::NOTCONN) => None,
        found => found?.map(address).transpose()?,
    };
    if local.port() == 0 || peer.is_some_and(|peer| peer != remote) {
        return Err(Errno::NOTCONN);
    }
    if local.ip().is_unspecified() {
        local.set_ip(source_for(remote)?);
    }
    let interface: i32 = option::read(file, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)?;
    Ok(DatagramEnd {
        namespace: tcp::namespace(file)?,
        cookie: option::read(file, libc::SOL_SOCKET, libc::SO_COOKIE)?,
        local,
        is_bound_to_device: interface != 0,
    })
}

/// The address that the kernel gives what a socket without one sends to `remote`. Nothing is sent.
fn source_for(remote: SocketAddr) -> Result<IpAddr, Errno> {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &remote)?;
    Ok(tcp::canonical(SocketAddr::try_from(rustix::net::getsockname(&socket)?)?).ip())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn bound(address: &str) -> UdpSocket {
        UdpSocket::bind(address).expect("an address")
    }

    #[test]
    fn a_socket_without_an_address_is_seen_at_that_of_its_route() {
        let (server, client) = (bound("0.0.0.0:0"), bound("127.0.0.1:0"));
        let at = client.local_addr().expect("bound");
        let found = identify(&server, at).expect("udp");
        let port = server.local_addr().expect("bound").port();
        assert_eq!(found.local, SocketAddr::from(([127, 0, 0, 1], port)));
        assert!(!found.is_bound_to_device);
        let both = bound("[::]:0");
        assert_eq!(identify(&both, at).expect("udp").local.ip(), found.local.ip(), "IPv4 in IPv6");
        assert_eq!(
            identify(&both, "[::1]:9".parse().expect("an address")).expect("udp").local.ip(),
            IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])
        );
    }

    #[test]
    fn other_sockets_and_other_ends_are_refused() {
        let (one, other) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"));
        let at = other.local_addr().expect("bound");
        one.connect(at).expect("connected");
        assert!(identify(&one, at).is_ok());
        assert_eq!(identify(&one, "127.0.0.1:9".parse().expect("an address")).err(), Some(Errno::NOTCONN));
        let (unix, _other) = std::os::unix::net::UnixDatagram::pair().expect("pair");
        assert_eq!(identify(&unix, at).err(), Some(Errno::PROTOTYPE));
        option::set(&other, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).expect("set");
        assert_eq!(identify(&other, at).err(), Some(Errno::ADDRINUSE));
    }
}
