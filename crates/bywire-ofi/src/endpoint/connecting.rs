//! Which connection leads to each remote, and how connections begin and end.
//!
//! The end that makes a connection greets the other one, and waits for its answer before it sends anything. If two
//! endpoints connect to each other at once, the connection stays that the one with the lesser name has made.

use bywire::{DisconnectReason, Owner, Peer, Priority};
use bywire_match::head::HEAD_BYTES_MAX;
use bywire_match::{PeerId, Violation, rma};
use bywire_sys::clock;

use super::frames::{WELCOME, greeted, hello};
use super::remote::{Lack, Link, Remote, error_of, error_of_connect, lack_of, lack_there};
use super::{Channel, Connection, Endpoint};
use crate::abi::{
    FI_ADDR_UNSPEC, FI_ECONNREFUSED, FI_EHOSTUNREACH, FI_EINVAL, FI_EIO, FI_ENOMEM, FI_ETIMEDOUT,
};
use crate::addresses::Addresses;
use crate::host;
use crate::name::EndpointName;
use crate::parameters::{PAYLOAD_BYTES_HERE, PAYLOAD_BYTES_THERE};

/// How long to wait before a connection is tried again.
const RETRY_NS: u64 = 1_000_000;
/// How long resources may lack.
const WANT_NS: u64 = 10_000_000_000;
/// How long the service of this machine may.
const SERVICE_NS: u64 = 60_000_000_000;
/// Connections without a greeting that are kept however old they are.
const STRANGERS_MAX: usize = 64;
/// How long one is kept besides.
const STRANGER_NS: u64 = 10_000_000_000;
/// The longest frame to this endpoint itself.
const OWN_FRAME_BYTES: usize = 64 << 10;

impl Endpoint {
    /// The remote with an index of the address vector.
    ///
    /// # Errors
    /// The index has no name, or there are too many remotes.
    #[inline]
    pub(super) fn remote_at(&mut self, address: u64, addresses: &Addresses) -> Result<usize, i32> {
        match self.by_address.get(address as usize) {
            Some(Some(remote)) if usize::try_from(address).is_ok() => Ok(*remote),
            _ => self.find_remote(address, addresses),
        }
    }

    #[inline(never)]
    fn find_remote(&mut self, address: u64, addresses: &Addresses) -> Result<usize, i32> {
        let index = usize::try_from(address).map_err(|_| FI_EINVAL)?;
        let name = addresses.name(address).ok_or(FI_EINVAL)?;
        let remote = match self.by_name.get(name) {
            Some(remote) => *remote,
            None => self.add_remote(*name)?,
        };
        self.remotes[remote].address.get_or_insert(address);
        if self.by_address.len() <= index {
            self.by_address.resize(index + 1, None);
        }
        self.by_address[index] = Some(remote);
        Ok(remote)
    }

    /// Learns what has changed in the address vector since the last call.
    #[inline]
    pub fn follow(&mut self, addresses: &Addresses) {
        if self.version_seen != addresses.version() || self.names_seen != addresses.len() {
            self.learn(addresses);
        }
    }

    fn learn(&mut self, addresses: &Addresses) {
        if self.version_seen != addresses.version() {
            // A name may have another index, which was seen already.
            self.names_seen = 0;
            self.by_address.clear();
            for remote in &mut self.remotes {
                let is_there = |index: &u64| addresses.name(*index) == Some(&remote.name);
                remote.address = remote.address.filter(is_there);
            }
        }
        for (index, name) in addresses.names_from(self.names_seen) {
            if let Some(remote) = self.by_name.get(name) {
                self.remotes[*remote].address.get_or_insert(index);
            }
        }
        (self.version_seen, self.names_seen) = (addresses.version(), addresses.len());
    }

    fn add_remote(&mut self, name: EndpointName) -> Result<usize, i32> {
        let [tagged, untagged] = &mut self.matchers;
        let id = tagged.add_peer().map_err(|_| FI_ENOMEM)?;
        // Peers are added to all and forgotten in none, so all give the same numbers.
        let twin = untagged.add_peer().map_err(|_| FI_ENOMEM)?;
        let remote = self.remotes.len();
        let third = self.rma.add_peer().map_err(|_| FI_ENOMEM)?;
        if id != twin || id != third || id.index() != remote {
            return Err(FI_EIO);
        }
        let mut link = Link::Idle;
        if name == self.name {
            link = Link::Own;
            self.matchers.iter_mut().for_each(|matcher| matcher.connected(id, OWN_FRAME_BYTES));
            self.rma.connected(id, OWN_FRAME_BYTES);
        }
        let (spare, address, tried_since_ns) = (None, None, None);
        self.remotes.push(Remote { name, id, link, spare, exposed: 0, address, tried_since_ns });
        self.by_name.insert(name, remote);
        Ok(remote)
    }

    /// The index of a remote in the address vector.
    #[inline]
    pub(super) fn address_of(&self, id: PeerId) -> u64 {
        self.remotes.get(id.index()).and_then(|remote| remote.address).unwrap_or(FI_ADDR_UNSPEC)
    }

    /// The error of what is under way with a remote.
    pub(super) fn error_with(&self, id: PeerId) -> i32 {
        match self.remotes.get(id.index()).map(|remote| remote.link) {
            Some(Link::Ending(error) | Link::Ended(error)) => error,
            _ => FI_EIO,
        }
    }

    /// Begins to connect, if that was not done yet.
    pub(super) fn connect(&mut self, remote: usize) {
        let Remote { name, link, .. } = &self.remotes[remote];
        if !matches!(link, Link::Idle | Link::Waiting) {
            return;
        }
        if self.connect_timeout_ns > 0 && *link == Link::Idle {
            self.connecting.push((remote, clock::nanoseconds().saturating_add(self.connect_timeout_ns)));
        }
        let Some(address) = name.address(&self.name, self.confined.is_none()) else {
            return self.end(remote, FI_EHOSTUNREACH);
        };
        match self.port.connect_start(&address) {
            Ok(peer) => {
                self.remotes[remote].link = Link::Connecting(peer);
                self.remember(peer, Some(remote));
            }
            Err(error) => match lack_of(&error) {
                Some(lack) => self.try_later(remote, lack),
                None => self.fail(remote, &error.to_string(), error_of_connect(&error)),
            },
        }
    }

    /// A connection does not come about. What the program says of that names no cause, so the user reads it here, once.
    fn fail(&mut self, remote: usize, reason: &str, error: i32) {
        let name = &self.remotes[remote].name;
        let confined = self.confined.as_deref().filter(|_| !name.is_on_node_of(&self.name));
        let more = confined.map(|why| format!("; no other machine is reached: {why}")).unwrap_or_default();
        let text = format!("no connection to {name:?}: {reason}{more}");
        if std::mem::replace(&mut self.has_complained, true) {
            host::warn(&text);
        } else {
            host::complain(&text);
        }
        self.end(remote, error);
    }

    fn try_later(&mut self, remote: usize, lack: Lack) {
        let now = clock::nanoseconds();
        let Remote { name, link, tried_since_ns, .. } = &mut self.remotes[remote];
        let tried_ns = now.saturating_sub(*tried_since_ns.get_or_insert(now));
        let limit = match lack {
            Lack::Resources => Some((
                WANT_NS,
                "there was too little memory or too few descriptors at one end (see ulimit -n)",
                FI_ENOMEM,
            )),
            Lack::Port => {
                Some((WANT_NS, "its machine knew of no such endpoint, which may have ended", FI_ECONNREFUSED))
            }
            Lack::Service => Some((
                SERVICE_NS,
                "this machine's service did not run (start it with `bywire up`)",
                FI_EHOSTUNREACH,
            )),
            Lack::Answer => None,
        };
        match limit {
            Some((limit_ns, reason, error)) if tried_ns >= limit_ns => {
                let seconds = limit_ns / 1_000_000_000;
                return self.fail(remote, &format!("for {seconds} s {reason}"), error);
            }
            Some(_) => {}
            None => {
                *tried_since_ns = None;
                host::inform(&format!("{name:?} has not answered yet, and is asked again"));
            }
        }
        *link = Link::Waiting;
        self.retries.push(remote);
        self.retry_ns = now + RETRY_NS;
    }

    /// Tries again what did not come about.
    pub(super) fn connect_again(&mut self) {
        if self.retries.is_empty() || clock::nanoseconds() < self.retry_ns {
            return;
        }
        for remote in std::mem::take(&mut self.retries) {
            self.connect(remote);
        }
    }

    /// Gives up connections that take longer than the user wants to wait.
    #[inline]
    pub(super) fn give_up_connecting(&mut self) {
        if !self.connecting.is_empty() {
            self.look_at_deadlines();
        }
    }

    #[cold]
    fn look_at_deadlines(&mut self) {
        let now = clock::nanoseconds();
        for (remote, deadline) in std::mem::take(&mut self.connecting) {
            match self.remotes[remote].link {
                Link::Waiting | Link::Connecting(_) | Link::Greeting(_) if now >= deadline => {
                    self.fail(remote, "it does not answer", FI_ETIMEDOUT);
                }
                Link::Waiting | Link::Connecting(_) | Link::Greeting(_) => {
                    self.connecting.push((remote, deadline));
                }
                _ => {}
            }
        }
    }

    fn remember(&mut self, peer: Peer, remote: Option<usize>) {
        let index = peer.to_bits() as u32 as usize;
        if self.connections.len() <= index {
            self.connections.resize(index + 1, None);
        }
        self.connections[index] = Some(Connection { peer, remote });
    }

    #[inline]
    pub(super) fn connection(&self, peer: Peer) -> Option<Connection> {
        let connection = *self.connections.get(peer.to_bits() as u32 as usize)?;
        connection.filter(|connection| connection.peer == peer)
    }

    fn forget(&mut self, peer: Peer) {
        if self.connection(peer).is_some() {
            self.connections[peer.to_bits() as u32 as usize] = None;
        }
    }

    /// Ends a connection, but not what is under way with its remote.
    fn leave(&mut self, peer: Peer) {
        self.forget(peer);
        self.port.disconnect(peer);
    }

    fn connections_of(&self, remote: usize) -> Vec<Peer> {
        let connections = self.connections.iter().flatten();
        connections.filter(|known| known.remote == Some(remote)).map(|known| known.peer).collect()
    }

    /// A connection stands. One that this end has made begins with a greeting; another one waits for one.
    pub(super) fn connected(&mut self, peer: Peer) {
        let Some(Connection { remote: Some(remote), .. }) = self.connection(peer) else {
            self.remember(peer, None);
            return self.keep_stranger(peer);
        };
        let target = self.remotes[remote].name;
        if self.remotes[remote].link != Link::Connecting(peer) {
            return self.leave(peer);
        }
        // Another process may have the port by now. It must not learn the ticket.
        let is_target = self.port.peer_info(peer).is_some_and(|info| target.is_of(info));
        if !is_target {
            return self.end(remote, FI_ECONNREFUSED);
        }
        match self.port.send(peer, Priority::High, &hello(&target, &self.name)) {
            Ok(()) => self.remotes[remote].link = Link::Greeting(peer),
            Err(_) => self.end(remote, FI_EIO),
        }
    }

    /// Another process has made a connection, and has not greeted yet. If there are many of those, the old ones are left, so that they
    /// do not take all descriptors.
    fn keep_stranger(&mut self, peer: Peer) {
        let now = clock::nanoseconds();
        self.strangers.push_back((peer, now));
        while let Some((oldest, since)) = self.strangers.front().copied() {
            let is_stranger = self.connection(oldest).is_some_and(|known| known.remote.is_none());
            let is_old = self.strangers.len() > STRANGERS_MAX && now.saturating_sub(since) > STRANGER_NS;
            if is_stranger && !is_old {
                break;
            }
            self.strangers.pop_front();
            if is_stranger {
                self.leave(oldest);
            }
        }
    }

    /// The first message on a connection that this end has made: the answer to its greeting.
    pub(super) fn answered(&mut self, remote: usize, peer: Peer, message: &[u8]) {
        if message != WELCOME {
            return self.end(remote, FI_EIO);
        }
        self.use_connection(remote, peer);
    }

    /// Takes a connection that another endpoint has made.
    fn welcome(&mut self, remote: usize, peer: Peer) {
        match self.port.send(peer, Priority::High, &WELCOME) {
            Ok(()) => self.use_connection(remote, peer),
            Err(_) => self.end(remote, FI_EIO),
        }
    }

    fn use_connection(&mut self, remote: usize, peer: Peer) {
        let Remote { id, link, spare, tried_since_ns, .. } = &mut self.remotes[remote];
        let id = *id;
        *link = Link::Open(peer);
        *tried_since_ns = None;
        if let Some(spare) = spare.take().filter(|spare| *spare != peer) {
            self.leave(spare);
        }
        let is_here = self.port.peer_info(peer).is_some_and(|info| matches!(info.owner, Owner::Local { .. }));
        let payload_bytes = if is_here { PAYLOAD_BYTES_HERE } else { PAYLOAD_BYTES_THERE };
        let frame_bytes = payload_bytes + HEAD_BYTES_MAX;
        self.matchers.iter_mut().for_each(|matcher| matcher.connected(id, frame_bytes));
        self.rma.connected(id, payload_bytes + rma::head::HEAD_BYTES_MAX);
        host::inform(&format!("{:?} is connected", self.remotes[remote].name));
    }

    /// The first message of a connection that another endpoint has made. A wrong one ends it.
    pub(super) fn greet(&mut self, peer: Peer, message: &[u8], addresses: &Addresses) {
        let name = greeted(&self.name, message).filter(|name| *name != self.name);
        let info = self.port.peer_info(peer);
        let vouched = name.zip(info).filter(|(name, info)| name.is_of(info));
        let vouched = vouched.map(|(name, info)| (name, name.vouched_for(&info.owner)));
        let known = vouched.and_then(|(name, vouched)| match self.by_name.get(&name) {
            Some(remote) => Some(*remote),
            // Nobody vouches for the rest of a name: with others an endpoint would count as many.
            None if !self.guests.insert(vouched) => None,
            None => self.add_remote(name).ok(),
        });
        let Some(remote) = known else { return self.leave(peer) };
        let name = self.remotes[remote].name;
        let mut names = addresses.names_from(0);
        let address = names.find(|(_, known)| **known == name).map(|(index, _)| index);
        let Remote { link, spare, address: known, .. } = &mut self.remotes[remote];
        *known = known.or(address);
        match *link {
            Link::Idle | Link::Waiting => {}
            // It will take ours, on which nothing was sent yet either. If that does not come about, there is this one.
            Link::Connecting(_) | Link::Greeting(_) if self.name < name && spare.is_none() => {
                *spare = Some(peer);
                return self.remember(peer, Some(remote));
            }
            Link::Connecting(own) | Link::Greeting(own) if self.name > name => self.leave(own),
            _ => return self.leave(peer),
        }
        self.remember(peer, Some(remote));
        self.welcome(remote, peer);
    }

    /// A frame or note has arrived that breaks a rule: its source is left.
    pub(super) fn violated(&mut self, remote: usize, violation: &Violation) {
        host::warn(&format!("{:?} is disconnected: {violation}", self.remotes[remote].name));
        self.end(remote, FI_EIO);
    }

    /// Leaves a remote. What is under way with it fails once the port has given back all memory.
    pub(super) fn end(&mut self, remote: usize, error: i32) {
        if matches!(self.remotes[remote].link, Link::Ending(_) | Link::Ended(_)) {
            return;
        }
        self.remotes[remote].link = Link::Ending(error);
        for peer in self.connections_of(remote) {
            self.port.disconnect(peer);
        }
        self.finish(remote, error);
    }

    /// The last connection of a remote has ended.
    fn finish(&mut self, remote: usize, error: i32) {
        if !self.connections_of(remote).is_empty() {
            return;
        }
        let id = self.remotes[remote].id;
        self.remotes[remote].link = Link::Ended(error);
        for channel in Channel::ALL {
            self.matchers[channel as usize].disconnected(id);
        }
        self.rma.disconnected(id);
    }

    /// A connection has ended, or did not come about.
    pub(super) fn disconnected(&mut self, peer: Peer, reason: DisconnectReason) {
        let Some(Connection { remote, .. }) = self.connection(peer) else { return };
        self.forget(peer);
        let Some(remote) = remote else { return };
        let Remote { link, spare, .. } = &mut self.remotes[remote];
        if *spare == Some(peer) {
            *spare = None;
        }
        match *link {
            Link::Ending(error) => self.finish(remote, error),
            Link::Connecting(own) | Link::Greeting(own) if own == peer => match *spare {
                Some(spare) => self.welcome(remote, spare),
                None => match lack_there(reason) {
                    Some(lack) => self.try_later(remote, lack),
                    None => self.fail(remote, &reason.to_string(), error_of(reason)),
                },
            },
            Link::Open(own) if own == peer => self.end(remote, error_of(reason)),
            _ => {}
        }
    }
}
