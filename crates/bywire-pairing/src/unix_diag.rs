//! The other end of a Unix socket, as the kernel tells it by sock_diag.

use bywire_sys::Errno;
use bywire_sys::unix_stream::UnixStream;
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::TCP_ESTABLISHED;
use netlink_packet_sock_diag::unix::nlas::Nla;
use netlink_packet_sock_diag::unix::{ShowFlags, StateFlags, UnixRequest, UnixResponse};

use crate::sock_diag;

/// The account that sock_diag gives of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The inode of the other end.
    pub peer: u32,
    /// Neither end has shut down or closed.
    pub is_whole: bool,
}

/// Asks for the other end of a socket.
///
/// # Errors
/// [`Errno::XDEV`] if the socket belongs to another network namespace, which sock_diag does not see from here;
/// [`Errno::NOTCONN`] if it has no other end; [`Errno::AGAIN`] if that has no descriptor yet, or the kernel is short of
/// something; else the kernel's error.
pub fn ends(socket: &UnixStream) -> Result<Ends, Errno> {
    if sock_diag::own_namespace()? != socket.namespace {
        return Err(Errno::XDEV);
    }
    let response = ask(socket)?;
    let of = |attribute: fn(&Nla) -> Option<u32>| response.nlas.iter().find_map(attribute);
    let peer = of(|found| if let Nla::Peer(inode) = found { Some(*inode) } else { None });
    let shut = of(|found| if let Nla::Shutdown(bits) = found { Some((*bits).into()) } else { None });
    match (peer, shut) {
        (Some(peer), _) if peer != 0 => {
            Ok(Ends { peer, is_whole: response.header.state == TCP_ESTABLISHED && shut == Some(0) })
        }
        // The kernel has made the other end, and nobody has accepted it yet.
        (_, Some(0)) if response.header.state == TCP_ESTABLISHED => Err(Errno::AGAIN),
        _ => Err(Errno::NOTCONN),
    }
}

/// The kernel's answer about one socket. It checks that the inode is that of the socket with this cookie.
fn ask(socket: &UnixStream) -> Result<UnixResponse, Errno> {
    let request = UnixRequest {
        state_flags: StateFlags::all(),
        inode: socket.inode,
        show_flags: ShowFlags::PEER,
        cookie: socket.cookie.to_ne_bytes(),
    };
    match sock_diag::ask(SockDiagMessage::UnixRequest(request))? {
        SockDiagMessage::UnixResponse(response) => Ok(*response),
        _ => Err(Errno::PROTO),
    }
}
