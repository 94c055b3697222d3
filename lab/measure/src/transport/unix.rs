//! The kernel's Unix-domain stream sockets, by calls of the C library, with an abstract name that ends with its process.

use anyhow::{Context, Result};
use bywire_sys::preloadable;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, bind, listen};

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
        accept_lanes(plan, || preloadable::accept(&listener))
    }

    fn connect(plan: &Plan, name: &str) -> Result<Vec<ByteStream>> {
        connect_lanes(plan, || {
            let socket = open(plan)?;
            preloadable::connect(&socket, &address(name)?)
                .context("cannot connect to the target's socket")?;
            Ok(socket)
        })
    }
}

fn open(plan: &Plan) -> Result<OwnedFd> {
    let socket = preloadable::stream(AddressFamily::UNIX)?;
    prepare(socket.as_fd(), plan)?;
    Ok(socket)
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}
