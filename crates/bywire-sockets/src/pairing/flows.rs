//! How a flow of datagrams begins: it is offered to the pairing service for one other end, which offers it as well.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use bywire_pairing::protocol::{Kind, Packet};

use crate::connection::{idle_memory, policy};
use crate::datagram::address::Address;
use crate::datagram::flow::state;
use crate::datagram::sockets::{self, Socket, is_done};
use crate::memory::segment::{self, Files};
use crate::memory::vforked;
use crate::os::{errno, own_call, real};
use crate::pairing::offer::{
    self, LOOK_EVERY, OFFERED, SERVICE, TALKING, connect, listen_for, look, may_offer, quietly, say,
};

/// Offers a flow with this end, if that may be on this machine.
#[inline(never)]
pub fn offer(socket: &Socket, address: Address) {
    if vforked::is_child() || policy::given_up().is_some() || !offer::is_configured() {
        return;
    }
    let Some(_own) = own_call::begin() else { return };
    errno::keep(|| {
        if !is_here(address) || !try_to_offer(socket, address) {
            socket.sending().note_in_vain();
        }
    });
}

/// Returns whether the address is one of this machine: a socket could be bound to it.
fn is_here(address: Address) -> bool {
    let name = address.without_port();
    let family = if address.ip().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a valid address; the results are checked.
    unsafe {
        let probe = real::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if probe < 0 {
            return false;
        }
        let status = libc::bind(probe, name.bytes.as_ptr().cast(), name.length);
        real::close(probe);
        status == 0
    }
}

/// `false`: there was no place, or one that another end had not answered for was given up for it.
fn try_to_offer(socket: &Socket, address: Address) -> bool {
    socket.end_flows(|flow| is_done(flow, false), end_flow);
    let mut is_free = true;
    let make = || {
        idle_memory::set_bound();
        let mut both = socket.both();
        let Some((slot, flow)) = both.place(address) else {
            is_free = false;
            return None;
        };
        let before = (!flow.is(state::FREE)).then(|| sockets::token(socket.index, slot, flow));
        is_free = before.is_none();
        flow.free(false);
        if socket.is_left() {
            return None;
        }
        let (files, own) = segment::make()?;
        flow.begin(address, own);
        Some((before, sockets::token(socket.index, slot, flow), files))
    };
    offer_flow(socket.fd, address.socket_address(), make);
    if !is_free {
        // Flows that nobody has used for a while make room for those that come after this.
        socket.end_flows(|flow| is_done(flow, true), end_flow);
    }
    is_free
}

/// Offers a flow of datagrams with `other_end`, if the service listens. `make` makes it then, and returns the token of one
/// whose place it takes, its own token, and the files of its segment.
fn offer_flow(fd: i32, other_end: SocketAddr, make: impl FnOnce() -> Option<(Option<u64>, u64, Files)>) {
    let _held = TALKING.hold_undisturbed();
    if !connect() || !may_offer() {
        return;
    }
    let Some((before, token, files)) = make() else { return };
    if let Some(before) = before {
        say(&Packet::new(Kind::End, before), &[]);
    }
    let packet = Packet::offering_datagrams(token, other_end);
    let is_sent = match files.rest {
        -1 => say(&packet, &[fd, files.head]),
        rest => say(&packet, &[fd, files.head, rest]),
    };
    drop(files);
    if is_sent {
        OFFERED.store(token, Ordering::Relaxed);
        listen_for(|packet| packet.kind == Kind::Answer && packet.token == token);
    }
}

/// Tells the service that a flow is over, with the bytes that were sent and received in memory.
pub fn end_flow(token: u64, [sent, received]: [u64; 2]) {
    let packet = Packet { first: sent, second: received, ..Packet::new(Kind::End, token) };
    quietly(|| {
        let _held = TALKING.hold_undisturbed();
        if SERVICE.load(Ordering::Relaxed) >= 0 {
            say(&packet, &[]);
        }
    });
}

/// Handles what the service has answered meanwhile, at one call of a few.
#[inline(always)]
pub fn look_at_times(calls: u32) {
    if calls.is_multiple_of(LOOK_EVERY) || calls.is_power_of_two() {
        quietly(look);
    }
}
