//! The service of a machine without sockets: `crates/bywire-node/src/service` with its channels, its broker and its fabric
//! file, and one port.

use std::net::SocketAddr;
use std::path::Path;

use bywire_node::broker::{Action, Broker, FabricFile, Port, PortId, ThisNode};
use bywire_node::fabric::{FILE_NAME, Fabric, Node, ServiceAddress};
use bywire_wire::channel::{Channels, DownReason, Event, Options, SendError};
use bywire_wire::handshake::{Identity, PublicKey};
use bywire_wire::keys::Security;
use bywire_wire::service::{self, Kept, NotConnected, Notice, Request};
use bywire_wire::service_message::ServiceMessage;
use rand::Rng;
use rand::rngs::StdRng;

use super::tally::Counts;

/// The longest UDP payload of every route.
pub const ROUTE_BYTES: u16 = 1452;

/// What a service does: packets to other machines, and notices to the port.
#[derive(Default)]
pub struct Effects {
    pub packets: Vec<(SocketAddr, Vec<u8>)>,
    pub notices: Vec<Notice>,
}

pub struct Service {
    /// The file that it uses.
    pub fabric: Fabric,
    own: PublicKey,
    channels: Channels,
    broker: Broker,
    /// Messages for the channels, in their order.
    waiting: Vec<(PublicKey, Vec<u8>)>,
    port: Option<PortId>,
    next_port: PortId,
}

impl Service {
    /// A service that starts with a fabric file.
    pub fn start(now_ns: u64, identity: Identity, has_aes: bool, fabric: Fabric) -> Self {
        let own = identity.key.public();
        let mut service = Self {
            channels: Channels::new(identity, Options { has_aes }),
            broker: Broker::new(now_ns, this_node(&fabric, own)),
            fabric,
            own,
            waiting: Vec::new(),
            port: None,
            next_port: 16,
        };
        service.follow(now_ns, None);
        service
    }

    /// Uses another version of the fabric file.
    pub fn reload(&mut self, now_ns: u64, fabric: Fabric) {
        let before = std::mem::replace(&mut self.fabric, fabric);
        self.follow(now_ns, Some(&before));
    }

    /// Applies the fabric file. `before` was its previous content.
    fn follow(&mut self, now_ns: u64, before: Option<&Fabric>) {
        for node in before.iter().flat_map(|before| &before.nodes) {
            if self.fabric.named(&node.key).is_none() {
                self.channels.remove(now_ns, &node.key);
                self.waiting.retain(|(to, _)| *to != node.key);
            }
        }
        let others: Vec<&Node> = self.fabric.nodes.iter().filter(|node| node.key != self.own).collect();
        let names: Vec<_> = others.iter().map(|node| (node.key, node.name.clone())).collect();
        self.broker.follow(this_node(&self.fabric, self.own), &names);
        for node in others {
            let known = before.and_then(|before| before.named(&node.key));
            if known.is_some_and(|known| known.addresses == node.addresses) {
                continue;
            }
            let addresses = node.addresses.iter().filter_map(|address| match address {
                ServiceAddress::Address(address) => Some(*address),
                ServiceAddress::Host(..) => None,
            });
            self.channels.add(now_ns, node.key, addresses.collect());
        }
        let (serial, keeper) = (self.fabric.serial, self.fabric.keeper().map(|keeper| keeper.key));
        self.broker.use_file(FabricFile { serial, keeper, text: self.fabric.to_string() });
    }

    /// Registers the port, with the connections that it had before.
    pub fn register(&mut self, now_ns: u64, port: Port, kept: Vec<Kept>) -> Result<(), String> {
        self.next_port += 2;
        self.broker.register(self.next_port, port).map_err(|reason| format!("not registered: {reason:?}"))?;
        self.port = Some(self.next_port);
        self.broker.keep(now_ns, self.next_port, kept, true);
        Ok(())
    }

    /// The process of the port has ended.
    pub fn end_port(&mut self, now_ns: u64) {
        if let Some(port) = self.port.take() {
            self.broker.port_ended(now_ns, port);
        }
    }

    /// Processes a request of the registered port.
    pub fn serve(&mut self, now_ns: u64, request: Request, random: &mut StdRng) {
        let Some(port) = self.port else { return };
        let broker = &mut self.broker;
        match request {
            Request::Connect { request, node, port: target, introduction } => {
                broker.connect(now_ns, port, request, (&node, target), introduction, random.random());
            }
            Request::Accept { offer, introduction } => {
                broker.accept(port, offer, introduction, random.random())
            }
            Request::Release { connection } => broker.release(port, connection),
            Request::Inquire { connection } => broker.inquire(now_ns, port, connection),
            other => unreachable!("the program never asks for {other:?}"),
        }
    }

    /// Processes a packet of another machine.
    pub fn receive(&mut self, now_ns: u64, from: SocketAddr, packet: &mut [u8], random: &mut StdRng) {
        self.channels.receive(now_ns, &mut |bytes| random.fill(bytes), from, packet);
    }

    /// Does everything that there is to do now.
    pub fn settle(
        &mut self,
        now_ns: u64,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<Effects, String> {
        let mut effects = Effects::default();
        self.broker.tick(now_ns);
        loop {
            self.carry_out(now_ns, &mut effects, counts)?;
            self.flush(now_ns, random, &mut effects)?;
            let mut is_quiet = true;
            while let Some(event) = self.channels.next_event(now_ns) {
                is_quiet = false;
                self.happened(now_ns, event, counts)?;
            }
            if is_quiet {
                return Ok(effects);
            }
        }
    }

    fn carry_out(&mut self, now_ns: u64, effects: &mut Effects, counts: &mut Counts) -> Result<(), String> {
        while let Some(action) = self.broker.next_action() {
            match action {
                // A port that has ended takes nothing.
                Action::Tell(port, notice) => {
                    effects.notices.extend((self.port == Some(port)).then_some(notice));
                }
                Action::Send(node, message) => {
                    let bytes = service::to_bytes(&message).map_err(|error| error.to_string())?;
                    self.waiting.push((node, bytes));
                }
                // An unknown node has been removed since.
                Action::Want(node) => {
                    let _ = self.channels.connect(now_ns, &node);
                }
                Action::Release(node) => self.channels.release(&node),
                Action::Adopt(text) => self.adopt(now_ns, &text, counts)?,
                Action::ReportAhead(node, serial) => {
                    return Err(format!("node {node:?} is said to be ahead, with serial {serial}"));
                }
            }
        }
        Ok(())
    }

    fn adopt(&mut self, now_ns: u64, text: &str, counts: &mut Counts) -> Result<(), String> {
        let fabric = Fabric::of(Path::new(FILE_NAME), text, &self.own);
        let fabric = fabric.map_err(|error| format!("the keeper's file was rejected: {error}"))?;
        if fabric.serial > self.fabric.serial {
            counts.note("files: adopted");
            self.reload(now_ns, fabric);
        }
        Ok(())
    }

    fn flush(&mut self, now_ns: u64, random: &mut StdRng, effects: &mut Effects) -> Result<(), String> {
        for (node, bytes) in self.waiting.drain(..) {
            match self.channels.send(now_ns, &node, &bytes) {
                // Without a channel its end has been reported, or will be.
                Ok(()) | Err(SendError::NotUp) => {}
                Err(error) => return Err(format!("a message of a service was refused: {error}")),
            }
        }
        let mut packets = Vec::new();
        self.channels.transmit(now_ns, &mut |bytes| random.fill(bytes), &mut packets);
        effects.packets.extend(packets.into_iter().map(|(path, bytes)| (path.peer, bytes)));
        Ok(())
    }

    fn happened(&mut self, now_ns: u64, event: Event, counts: &mut Counts) -> Result<(), String> {
        counts_of(&event).into_iter().for_each(|name| counts.note(name));
        match event {
            Event::Up { node, boot_id, path, .. } => {
                self.channels.set_route_bytes(&node, ROUTE_BYTES);
                self.broker.up(node, boot_id, path.machines(), ROUTE_BYTES);
            }
            Event::Moved { node, path } => self.broker.moved(node, path.machines(), ROUTE_BYTES),
            Event::Message { node, bytes } => {
                let message: ServiceMessage =
                    service::from_bytes(&bytes).map_err(|error| format!("a message: {error}"))?;
                self.broker.hear(now_ns, node, message);
            }
            Event::Down { node, .. } => {
                self.waiting.retain(|(to, _)| *to != node);
                self.broker.down(node);
            }
            Event::Unreachable { node } => self.broker.refuse(node, NotConnected::Unreachable),
            Event::OtherVersion { node } => self.broker.refuse(node, NotConnected::Version),
            Event::Echo { .. } => return Err("an echo that nobody asked for".to_owned()),
        }
        Ok(())
    }

    /// Ends. Every node that is up is told once.
    pub fn close(&mut self, now_ns: u64, random: &mut StdRng) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut packets = Vec::new();
        self.channels.close(now_ns);
        self.channels.transmit(now_ns, &mut |bytes| random.fill(bytes), &mut packets);
        packets.into_iter().map(|(path, bytes)| (path.peer, bytes)).collect()
    }

    /// When there is something to do.
    pub fn next_ns(&self) -> Option<u64> {
        self.channels.next_timeout_ns().into_iter().chain(self.broker.next_timeout_ns()).min()
    }

    /// Does it have the key of a node in its table of channels?
    pub fn knows(&self, node: &PublicKey) -> bool {
        self.channels.status(node).is_some()
    }

    /// The name of a node that two machines are said to be.
    pub fn copied(&self) -> Option<&str> {
        let mut nodes = self.fabric.nodes.iter();
        let is_copied =
            |node: &&Node| self.channels.status(&node.key).is_some_and(|status| status.copied_key.is_some());
        nodes.find(is_copied).map(|node| node.name.as_str())
    }

    /// The connections of the port, as the broker knows them.
    pub fn connections(&self) -> Vec<u32> {
        let port = self.port.into_iter();
        port.flat_map(|port| self.broker.connections_from(port, 0).map(|(number, _)| number)).collect()
    }

    /// What is left although nothing is needed.
    pub fn remains(&self) -> Option<String> {
        for node in self.fabric.nodes.iter().filter(|node| node.key != self.own) {
            let Some(status) = self.channels.status(&node.key) else {
                return Some(format!("node {} is not in the table of channels", node.name));
            };
            if status.is_wanted || status.channel.is_some() {
                return Some(format!("there is a channel to node {}, or one is wanted", node.name));
            }
        }
        if !self.waiting.is_empty() || !self.connections().is_empty() {
            return Some("there are messages or connections".to_owned());
        }
        self.next_ns().map(|at_ns| format!("there is something to do at {at_ns} ns"))
    }
}

fn this_node(fabric: &Fabric, own: PublicKey) -> ThisNode {
    let name = fabric.named(&own).map(|node| node.name.clone()).unwrap_or_default();
    ThisNode { name, key: own, security: Security::Aes256Gcm }
}

fn counts_of(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Up { .. } => "channels: up",
        Event::Moved { .. } => "channels: moved",
        Event::Unreachable { .. } => "channels: nodes reported as unreachable",
        Event::OtherVersion { .. } => "channels: nodes of another version",
        Event::Down { reason, .. } => match reason {
            DownReason::Restarted => "channels: down, restarted",
            DownReason::Reset => "channels: down, reset",
            DownReason::Unreachable => "channels: down, unreachable",
            DownReason::Removed => "channels: down, removed",
            DownReason::Closed => "channels: down, closed",
            DownReason::Idle => "channels: down, idle",
            DownReason::Broken => "channels: down, broken",
        },
        Event::Message { .. } | Event::Echo { .. } => return None,
    })
}
