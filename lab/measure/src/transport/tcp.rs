//! The kernel's TCP, by calls of the C library.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use bywire_sys::preloadable;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{bind, getsockname, listen, sockopt};

use super::Transport;
use super::byte_stream::{ByteStream, accept_lanes, connect_lanes};
use super::socket::prepare;
use crate::plan::Plan;

/// TCP with TCP_NODELAY, unless the plan leaves Nagle's algorithm on.
pub struct Tcp;

impl Transport for Tcp {
    type Listener = OwnedFd;
    type Endpoint = ByteStream;

    fn listen(plan: &Plan) -> Result<(OwnedFd, String)> {
        let address = SocketAddr::new(plan.bind, 0);
        // The buffers are set before the handshake, which fixes the window's scale.
        let socket = open(address, plan)?;
        bind(&socket, &address).with_context(|| format!("cannot listen on {}", plan.bind))?;
        listen(&socket, 4)?;
        let bound: SocketAddr = getsockname(&socket)?.try_into()?;
        Ok((socket, bound.to_string()))
    }

    fn accept(listener: OwnedFd, plan: &Plan) -> Result<Vec<ByteStream>> {
        accept_lanes(plan, || {
            let socket = preloadable::accept(&listener)?;
            sockopt::set_tcp_nodelay(&socket, plan.request.nagle != Some(true))?;
            Ok(socket)
        })
    }

    fn connect(plan: &Plan, address: &str) -> Result<Vec<ByteStream>> {
        let address: SocketAddr = address.parse().context("the target's address is invalid")?;
        connect_lanes(plan, || {
            let socket = open(address, plan)?;
            preloadable::connect(&socket, &address)
                .with_context(|| format!("cannot connect to {address}"))?;
            Ok(socket)
        })
    }
}

/// Returns whether every program of this machine may choose this congestion control algorithm.
pub fn is_for_all(congestion: &str) -> bool {
    let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    allowed.is_ok_and(|names| names.split_whitespace().any(|name| name == congestion))
}

fn open(address: SocketAddr, plan: &Plan) -> Result<OwnedFd> {
    let socket = preloadable::stream(rustix::net::SocketAddrAny::from(address).address_family())?;
    prepare(socket.as_fd(), plan)?;
    sockopt::set_tcp_nodelay(&socket, plan.request.nagle != Some(true))?;
    // An accepted socket inherits it from its listener.
    if let Some(name) = &plan.request.congestion {
        sockopt::set_tcp_congestion(&socket, name).with_context(|| {
            format!(
                "cannot use congestion control `{name}`: /proc/sys/net/ipv4/tcp_available_congestion_control lists the \
                 algorithms, and tcp_allowed_congestion_control beside it those that need no root"
            )
        })?;
    }
    Ok(socket)
}
