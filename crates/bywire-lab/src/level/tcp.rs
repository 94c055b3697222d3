//! The kernel's TCP.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, connect, getsockname, listen, socket_with,
    sockopt,
};

use super::byte_stream::{ByteStream, accept_lanes, connect_lanes};
use super::unix::retry;
use super::{Level, prepare};
use crate::plan::Plan;

/// TCP with TCP_NODELAY, unless the plan leaves Nagle's algorithm on.
pub struct Tcp;

impl Level for Tcp {
    type Listener = OwnedFd;
    type Endpoint = ByteStream;

    fn listen(plan: &Plan) -> Result<(OwnedFd, String)> {
        let address = SocketAddr::new(plan.bind, 0);
        // Buffers are asked for before the handshake, which settles the window's scale.
        let socket = open(address, plan)?;
        bind(&socket, &address).with_context(|| format!("cannot listen on {}", plan.bind))?;
        listen(&socket, 4)?;
        let bound: SocketAddr = getsockname(&socket)?.try_into()?;
        Ok((socket, bound.to_string()))
    }

    fn accept(listener: OwnedFd, plan: &Plan) -> Result<Vec<ByteStream>> {
        accept_lanes(plan, || {
            let socket = retry(|| accept_with(&listener, SocketFlags::CLOEXEC))?;
            sockopt::set_tcp_nodelay(&socket, !plan.nagle)?;
            Ok(socket)
        })
    }

    fn connect(plan: &Plan, address: &str) -> Result<Vec<ByteStream>> {
        let address: SocketAddr = address.parse().context("the target's address is none")?;
        connect_lanes(plan, || {
            let socket = open(address, plan)?;
            connect(&socket, &address).with_context(|| format!("cannot connect to {address}"))?;
            Ok(socket)
        })
    }
}

fn open(address: SocketAddr, plan: &Plan) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    prepare(socket.as_fd(), plan)?;
    sockopt::set_tcp_nodelay(&socket, !plan.nagle)?;
    Ok(socket)
}
