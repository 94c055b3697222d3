//! Questions to the kernel about one socket, by sock_diag. It answers about those of this service's network namespace.

use std::sync::OnceLock;

use bywire_sys::Errno;
use bywire_sys::socket::Socket as OwnSocket;
use bywire_sys::tcp;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

/// The longest answer about one socket that is accepted. It has a few short attributes.
const ANSWER_BYTES_MAX: usize = 4096;

/// The network namespace of this service.
pub fn own_namespace() -> Result<u64, Errno> {
    static OWN: OnceLock<u64> = OnceLock::new();
    match OWN.get() {
        Some(own) => Ok(*own),
        None => Ok(*OWN.get_or_init({
            let found = tcp::namespace(&OwnSocket::pair()?.0)?;
            move || found
        })),
    }
}

/// The kernel's answer to a request about one socket.
pub fn ask(request: SockDiagMessage) -> Result<SockDiagMessage, Errno> {
    let kernel = Socket::new(NETLINK_SOCK_DIAG).map_err(number)?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, request.into());
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
        Ok(NetlinkPayload::InnerMessage(message)) => Ok(message),
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
