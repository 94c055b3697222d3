//! The kernel's own account of a TCP connection behind a descriptor.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::option;

/// `SO_NETNS_COOKIE` of asm-generic/socket.h.
const SO_NETNS_COOKIE: i32 = 71;
/// `TCP_ESTABLISHED` of net/tcp_states.h.
const ESTABLISHED: u8 = 1;

/// A connection, distinguished from all others of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The network namespace.
    pub namespace: u64,
    /// The socket.
    pub cookie: u64,
    /// Our end. IPv4 in IPv6 is given as IPv4.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Both ends have agreed on the connection, and neither has closed.
    pub is_established: bool,
    /// Tied to one interface by `SO_BINDTODEVICE`.
    pub is_bound_to_device: bool,
}

/// Asks the kernel for a connection's ends and state.
///
/// # Errors
/// [`Errno::PROTOTYPE`] if it is no TCP socket, [`Errno::NOTCONN`] if it has no peer.
pub fn identify(file: &impl AsFd) -> Result<Identity, Errno> {
    let protocol: i32 = option::read(file, libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
    if protocol != libc::IPPROTO_TCP {
        return Err(Errno::PROTOTYPE);
    }
    let address = |name: rustix::net::SocketAddrAny| SocketAddr::try_from(name).map(canonical);
    let local = address(rustix::net::getsockname(file)?)?;
    let remote = rustix::net::getpeername(file)?.ok_or(Errno::NOTCONN)?;
    let remote = address(remote)?;
    // The state is the first byte of `tcp_info`.
    let information: [u8; 8] = option::read(file, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let interface: i32 = option::read(file, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)?;
    Ok(Identity {
        namespace: namespace(file)?,
        cookie: option::read(file, libc::SOL_SOCKET, libc::SO_COOKIE)?,
        local,
        remote,
        is_established: information[0] == ESTABLISHED,
        is_bound_to_device: interface != 0,
    })
}

/// The network namespace of any socket, as [`Identity::namespace`].
///
/// # Errors
/// [`Errno::NOPROTOOPT`] before Linux 5.14.
pub fn namespace(file: &impl AsFd) -> Result<u64, Errno> {
    option::read(file, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(inner) => match inner.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), inner.port()),
            // Flow information and scope do not distinguish ends.
            None => SocketAddr::new((*inner.ip()).into(), inner.port()),
        },
        SocketAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn two_ends_mirror_each_other_in_one_namespace() {
        let listener = TcpListener::bind("[::1]:0").expect("listen");
        let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (server, _) = listener.accept().expect("accept");
        let (ours, theirs) = (identify(&client).expect("tcp"), identify(&server).expect("tcp"));
        assert_eq!((ours.local, ours.remote), (theirs.remote, theirs.local));
        assert!(ours.namespace == theirs.namespace && ours.cookie != theirs.cookie);
        assert!(ours.is_established && theirs.is_established && !ours.is_bound_to_device);
        assert_eq!(identify(&listener).err(), Some(Errno::NOTCONN));
        drop(client);
        let mut end = [0];
        assert_eq!(std::io::Read::read(&mut &server, &mut end).expect("end"), 0);
        assert!(!identify(&server).expect("tcp").is_established);
    }

    #[test]
    fn other_files_than_tcp_sockets_are_refused() {
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("pair");
        assert_eq!(identify(&unix).err(), Some(Errno::PROTOTYPE));
    }
}
