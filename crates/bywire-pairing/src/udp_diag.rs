//! The UDP socket that receives from an address, as the kernel tells it by sock_diag.

use std::net::{IpAddr, SocketAddr};

use bywire_sys::Errno;
use bywire_sys::datagram_end::DatagramEnd;
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};

use crate::sock_diag;

/// Checks that this socket, and no other one, receives what `remote` sends to its address.
///
/// # Errors
/// [`Errno::XDEV`] if the socket belongs to another network namespace, which sock_diag does not see from here;
/// [`Errno::AGAIN`] if the kernel is short of something; else the kernel's error if another socket receives it, or none.
pub fn check_receiver(end: &DatagramEnd, remote: SocketAddr) -> Result<(), Errno> {
    if sock_diag::own_namespace()? != end.namespace {
        return Err(Errno::XDEV);
    }
    let family = match (end.local.ip(), remote.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => AF_INET,
        (IpAddr::V6(_), IpAddr::V6(_)) => AF_INET6,
        _ => return Err(Errno::INVAL),
    };
    let request = InetRequest {
        family,
        protocol: IPPROTO_UDP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        // The kernel looks up the receiver of a datagram from the source to the destination.
        socket_id: SocketId {
            source_port: remote.port(),
            destination_port: end.local.port(),
            source_address: remote.ip(),
            destination_address: end.local.ip(),
            interface_id: 0,
            // The kernel refuses another socket than the one with this cookie.
            cookie: end.cookie.to_ne_bytes(),
        },
    };
    match sock_diag::ask(SockDiagMessage::InetRequest(request))? {
        SockDiagMessage::InetResponse(response)
            if response.header.socket_id.cookie == end.cookie.to_ne_bytes() =>
        {
            Ok(())
        }
        _ => Err(Errno::PROTO),
    }
}
