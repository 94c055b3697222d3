//! The kernel's own account of an offered connection: what it is, and which other end it has.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use bywire_sys::credentials::Credentials;
use bywire_sys::{Errno, tcp, unix_stream};

use crate::unix_diag;

/// How the kernel names an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// An end of a TCP connection.
    Address(SocketAddr),
    /// An end of a Unix connection: the inode of its socket.
    Inode(u32),
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

    #[test]
    fn other_files_have_no_identity() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert_eq!(identify(&reader).err(), Some(Errno::NOTSOCK));
        let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().expect("pair");
        assert_eq!(identify(&datagrams).err(), Some(Errno::PROTOTYPE));
    }
}
