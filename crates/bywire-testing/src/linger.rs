//! Descriptors whose last close is slow, and packets with them.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// The time that the last close of a lingering socket waits.
pub const LINGER: Duration = Duration::from_secs(60);
/// An operation that is not delayed takes less than this, on any machine.
pub const UNDISTURBED: Duration = Duration::from_secs(20);
/// The most descriptors that the kernel allows in one packet: `SCM_MAX_FD`.
pub const PACKET_DESCRIPTORS_MAX: usize = 253;

/// A TCP socket with unread bytes, and its other end, which has to live as long.
pub fn lingering() -> (OwnedFd, TcpStream) {
    lingering_for(LINGER)
}

/// The same for another linger time.
pub fn lingering_for(time: Duration) -> (OwnedFd, TcpStream) {
    lingering_at(&TcpListener::bind("127.0.0.1:0").expect("listen"), time)
}

/// The same with a given listener: binding another one is slow after many connections.
pub fn lingering_at(listener: &TcpListener, time: Duration) -> (OwnedFd, TcpStream) {
    let sender = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (receiver, _) = listener.accept().expect("accept");
    rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4096).expect("a small one");
    rustix::net::sockopt::set_socket_send_buffer_size(&sender, 1 << 20).expect("a large one");
    sender.set_nonblocking(true).expect("it does not wait");
    while (&sender).write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(time)).expect("it lingers");
    (sender.into(), receiver)
}

/// Sends one packet with as many descriptors as the kernel takes.
pub fn send(socket: impl AsFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)
}
