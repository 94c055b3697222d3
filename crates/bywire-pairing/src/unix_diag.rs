//! The other end of a Unix socket, as the kernel tells it by sock_diag.

use std::sync::OnceLock;

use bywire_sys::Errno;
use bywire_sys::socket::Socket as OwnSocket;
use bywire_sys::tcp;
use bywire_sys::unix_stream::UnixStream;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::TCP_ESTABLISHED;
use netlink_packet_sock_diag::unix::nlas::Nla;
use netlink_packet_sock_diag::unix::{ShowFlags, StateFlags, UnixRequest, UnixResponse};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

/// The longest answer about one socket that is accepted. It has four short attributes.
const ANSWER_BYTES_MAX: usize = 4096;

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
    if own_namespace()? != socket.namespace {
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

/// The network namespace of this service.
fn own_namespace() -> Result<u64, Errno> {
    static OWN: OnceLock<u64> = OnceLock::new();
    match OWN.get() {
        Some(own) => Ok(*own),
        None => Ok(*OWN.get_or_init({
            let found = tcp::namespace(&OwnSocket::pair()?.0)?;
            move || found
        })),
    }
}

/// The kernel's answer about one socket. It checks that the inode is that of the socket with this cookie.
fn ask(socket: &UnixStream) -> Result<UnixResponse, Errno> {
    let kernel = Socket::new(NETLINK_SOCK_DIAG).map_err(number)?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let request = UnixRequest {
        state_flags: StateFlags::all(),
        inode: socket.inode,
        show_flags: ShowFlags::PEER,
        cookie: socket.cookie.to_ne_bytes(),
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::UnixRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    kernel.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(number)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
    let (_, sender) = kernel.recv_from(&mut answer, 0).map_err(number)?;
    if sender.port_number() != 0 {
        return Err(Errno::PROTO);
    }
    match NetlinkMessage::<SockDiagMessage>::deserialize(&answer).map(|message| message.payload) {
        Ok(NetlinkPayload::InnerMessage(SockDiagMessage::UnixResponse(response))) => Ok(*response),
        Ok(NetlinkPayload::Error(error)) => Err(number(error.to_io())),
        _ => Err(Errno::PROTO),
    }
}

fn number(error: std::io::Error) -> Errno {
    match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Errno::AGAIN,
        found => found.unwrap_or(Errno::IO),
    }
}
