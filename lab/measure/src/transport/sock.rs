//! The programs of the levels `tcp` and `unix` as they are, started with the library of `bywire run`.

use anyhow::Result;
use rustix::fd::OwnedFd;

use super::Transport;
use super::byte_stream::ByteStream;
use super::tcp::Tcp;
use super::unix::Unix;
use crate::plan::Plan;

/// The calls of the level whose program is carried.
pub struct Sock;

impl Transport for Sock {
    type Listener = OwnedFd;
    type Endpoint = ByteStream;

    fn listen(plan: &Plan) -> Result<(OwnedFd, String)> {
        if plan.request.is_unix() { Unix::listen(plan) } else { Tcp::listen(plan) }
    }

    fn accept(listener: OwnedFd, plan: &Plan) -> Result<Vec<ByteStream>> {
        if plan.request.is_unix() { Unix::accept(listener, plan) } else { Tcp::accept(listener, plan) }
    }

    fn connect(plan: &Plan, address: &str) -> Result<Vec<ByteStream>> {
        if plan.request.is_unix() { Unix::connect(plan, address) } else { Tcp::connect(plan, address) }
    }
}
