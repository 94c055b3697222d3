//! The kernel's own account of an offered connection: what it is, and which other end it has.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use bywire_sys::credentials::Credentials;
use bywire_sys::{Errno, datagram_end, tcp, unix_stream};

use crate::{udp_diag, unix_diag};

/// How the kernel names an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// An end of a TCP connection.
    Address(SocketAddr),
    /// An end of a Unix connection: the inode of its socket.
    Inode(u32),
    /// An end of UDP.
    Datagrams(SocketAddr),
}

/// A connection, distinguished from all others of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The network namespace.
    pub namespace: u64,
    /// The socket, by a number that is never reused.
    pub cookie: u64,
    /// This end.
    pub local: Name,
    /// The other end.
    pub remote: Name,
    /// Both ends have agreed on the connection, and neither has shut down or closed.
    pub is_established: bool,
    /// Tied to one interface by `SO_BINDTODEVICE`.
    pub is_bound_to_device: bool,
    /// The process at the other end of a Unix connection, as the kernel attests it: the one that has connected, or the one
    /// that has begun to listen.
    pub peer: Option<Credentials>,
}

/// Asks the kernel for a connection's ends and state.
///
/// # Errors
/// [`Errno::PROTOTYPE`] if it is neither a TCP nor a Unix stream socket, [`Errno::NOTCONN`] if it has no peer,
/// [`Errno::AGAIN`] if a Unix socket's peer was not accepted yet, [`Errno::XDEV`] for a Unix socket of another network
/// namespace than this thread's, or the kernel's error.
pub fn identify(file: &impl AsFd) -> Result<Identity, Errno> {
    match tcp::identify(file) {
        Ok(found) => Ok(Identity {
            namespace: found.namespace,
            cookie: found.cookie,
            local: Name::Address(found.local),
            remote: Name::Address(found.remote),
            is_established: found.is_established,
            is_bound_to_device: found.is_bound_to_device,
            peer: None,
        }),
        Err(Errno::PROTOTYPE) => identify_unix(file),
        Err(error) => Err(error),
    }
}

fn identify_unix(file: &impl AsFd) -> Result<Identity, Errno> {
    let found = unix_stream::identify(file)?;
    let ends = unix_diag::ends(&found)?;
    Ok(Identity {
        namespace: found.namespace,
        cookie: found.cookie,
        local: Name::Inode(found.inode),
        remote: Name::Inode(ends.peer),
        is_established: ends.is_whole,
        is_bound_to_device: false,
        peer: Some(found.peer),
    })
}

/// Asks the kernel whether a UDP socket is the one that receives what comes from `remote`, and by which address.
///
/// # Errors
/// Those of [`datagram_end::identify`] and [`udp_diag::check_receiver`].
pub fn identify_datagrams(file: &impl AsFd, remote: SocketAddr) -> Result<Identity, Errno> {
    let found = datagram_end::identify(file, remote)?;
    udp_diag::check_receiver(&found, remote)?;
    Ok(Identity {
        namespace: found.namespace,
        cookie: found.cookie,
        local: Name::Datagrams(found.local),
        remote: Name::Datagrams(remote),
        is_established: true,
        is_bound_to_device: found.is_bound_to_device,
        peer: None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn two_ends_of_a_unix_connection_mirror_each_other_while_it_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("listen");
        let client = UnixStream::connect(&path).expect("connect");
        // The kernel has made the other end, which has no descriptor and no inode yet.
        assert_eq!(identify(&client).err(), Some(Errno::AGAIN));
        let (server, _) = listener.accept().expect("accept");
        let (ours, theirs) = (identify(&client).expect("unix"), identify(&server).expect("unix"));
        assert_eq!((ours.local, ours.remote), (theirs.remote, theirs.local));
        assert!(ours.local != ours.remote && ours.cookie != theirs.cookie);
        assert!(ours.is_established && theirs.is_established);
        assert_eq!(identify(&listener).err(), Some(Errno::NOTCONN));
        client.shutdown(std::net::Shutdown::Write).expect("shutdown");
        assert!(!identify(&client).expect("unix").is_established);
        assert!(!identify(&server).expect("unix").is_established);
        drop(client);
        assert_eq!(identify(&server).err(), Some(Errno::NOTCONN));
    }

    /// A UDP socket at a port that others may have, too.
    fn at_shared_port(port: u16) -> std::net::UdpSocket {
        use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
        let made = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&made, true).expect("set");
        bind(&made, &SocketAddr::from(([127, 0, 0, 1], port))).expect("bind");
        made.into()
    }

    #[test]
    fn two_udp_sockets_mirror_each_other_if_each_receives_what_the_other_sends() {
        use std::net::UdpSocket;
        let (server, client) =
            (UdpSocket::bind("[::]:0").expect("bind"), UdpSocket::bind("127.0.0.1:0").expect("bind"));
        let port = server.local_addr().expect("bound").port();
        let [server_at, client_at] =
            [SocketAddr::from(([127, 0, 0, 1], port)), client.local_addr().expect("bound")];
        client.connect(server_at).expect("connected");
        let ours = identify_datagrams(&client, server_at).expect("udp");
        let theirs = identify_datagrams(&server, client_at).expect("udp");
        assert_eq!((ours.local, ours.remote), (theirs.remote, theirs.local));
        assert!(ours.cookie != theirs.cookie && ours.namespace == theirs.namespace);
        let (one, other) = (at_shared_port(0), at_shared_port);
        let at = one.local_addr().expect("bound");
        assert!(identify_datagrams(&one, client_at).is_ok());
        // Another socket, which has the same address and is connected to the client, now gets its datagrams.
        let other = other(at.port());
        other.connect(client_at).expect("connected");
        assert!(identify_datagrams(&one, client_at).is_err());
        assert!(identify_datagrams(&other, client_at).is_ok());
        assert!(identify_datagrams(&client, client_at).is_err(), "it is connected to the server");
    }

    #[test]
    fn other_files_have_no_identity() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert_eq!(identify(&reader).err(), Some(Errno::NOTSOCK));
        let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().expect("pair");
        assert_eq!(identify(&datagrams).err(), Some(Errno::PROTOTYPE));
    }
}
