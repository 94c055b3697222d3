//! The kernel's own account of a Unix stream socket behind a descriptor.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::credentials::{self, Credentials};
use crate::tcp;

/// A Unix stream socket. The kernel tells its other end by sock_diag only, which is asked for the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixStream {
    /// The network namespace.
    pub namespace: u64,
    /// The socket, which no other one of the machine ever is.
    pub cookie: u64,
    /// The number of its file. Another socket may have it once this one is closed.
    pub inode: u32,
    /// The process that has connected, for an accepted socket, or else the one that listens.
    pub peer: Credentials,
}

/// Asks the kernel for a socket's names.
///
/// # Errors
/// [`Errno::PROTOTYPE`] if it is no Unix stream socket, [`Errno::NOTCONN`] if it has never had a peer, or the error of
/// `getsockopt` or `fstat`.
pub fn identify(file: &impl AsFd) -> Result<UnixStream, Errno> {
    let is_stream = sockopt::socket_domain(file)? == AddressFamily::UNIX
        && sockopt::socket_type(file)? == SocketType::STREAM;
    if !is_stream {
        return Err(Errno::PROTOTYPE);
    }
    let peer = credentials::of(file)?;
    if peer.uid == u32::MAX {
        return Err(Errno::NOTCONN);
    }
    Ok(UnixStream {
        namespace: tcp::namespace(file)?,
        cookie: sockopt::socket_cookie(file)?,
        inode: rustix::fs::fstat(file)?.st_ino.try_into().map_err(|_| Errno::OVERFLOW)?,
        peer,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn two_ends_name_each_others_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("listen");
        let client = UnixStream::connect(&path).expect("connect");
        let (server, _) = listener.accept().expect("accept");
        let (ours, theirs) = (identify(&client).expect("unix"), identify(&server).expect("unix"));
        assert!(ours.cookie != theirs.cookie && ours.inode != theirs.inode);
        assert_eq!((ours.namespace, ours.peer), (theirs.namespace, theirs.peer));
        assert_eq!(ours.peer.pid as u32, std::process::id());
    }

    #[test]
    fn other_files_than_connected_unix_streams_are_refused() {
        let (datagrams, _other) = UnixDatagram::pair().expect("pair");
        assert_eq!(identify(&datagrams).err(), Some(Errno::PROTOTYPE));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        assert_eq!(identify(&tcp).err(), Some(Errno::PROTOTYPE));
        let alone = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        assert_eq!(identify(&alone).err(), Some(Errno::NOTCONN));
    }
}
