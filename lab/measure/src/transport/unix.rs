//! The kernel's Unix-domain stream sockets, with an abstract name that ends with its process.

use anyhow::{Context, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use super::Transport;
use super::byte_stream::{ByteStream, accept_lanes, connect_lanes};
use super::socket::prepare;
use crate::plan::Plan;

/// Unix-domain stream sockets.
pub struct Unix;

impl Transport for Unix {
    type Listener = OwnedFd;
    type Endpoint = ByteStream;

    fn listen(plan: &Plan) -> Result<(OwnedFd, String)> {
        let name = format!("bywire-lab-{}", plan.cookie);
        let socket = open(plan)?;
        bind(&socket, &address(&name)?).context("cannot bind a Unix socket")?;
        listen(&socket, 4)?;
        Ok((socket, name))
    }

    fn accept(listener: OwnedFd, plan: &Plan) -> Result<Vec<ByteStream>> {
        accept_lanes(plan, || accept_with(&listener, SocketFlags::CLOEXEC))
    }

    fn connect(plan: &Plan, name: &str) -> Result<Vec<ByteStream>> {
        connect_lanes(plan, || {
            let socket = open(plan)?;
            connect(&socket, &address(name)?).context("cannot connect to the target's socket")?;
            Ok(socket)
        })
    }
}

fn open(plan: &Plan) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    prepare(socket.as_fd(), plan)?;
    Ok(socket)
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}
