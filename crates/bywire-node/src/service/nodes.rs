//! The service's part for other nodes: the fabric file, addresses, and events of channels.

use std::net::SocketAddr;

use bywire_sys::directory;
use bywire_wire::channel::Event;
use bywire_wire::handshake::PublicKey;
use bywire_wire::service::{self, NotConnected};
use bywire_wire::service_message::ServiceMessage;

use crate::broker::FabricFile;
use crate::fabric::{self, Fabric, FabricError, ServiceAddress};
use crate::lookup::{Answer, Question};
use crate::{file, link};

use super::unwritten::{self, Unwritten};
use super::{Service, own};

impl Service<'_> {
    /// Reads the fabric file again. If that fails, nothing changes.
    pub(super) fn reload(&mut self, now_ns: u64) {
        let path = self.configuration.join(fabric::FILE_NAME);
        let read = || -> Result<_, FabricError> {
            let text = fabric::read_text(&path)?;
            Ok((Fabric::of(&path, &text, &self.key.public())?, text))
        };
        match read() {
            // A file that could not be written is in force all the same.
            Ok((fabric, _)) if self.unwritten.is_some() && fabric.serial < self.fabric.serial => {
                self.write_file_at_once(now_ns);
            }
            Ok((fabric, text)) => {
                let is_kept_here = fabric.keeper().is_some_and(|keeper| keeper.key == self.key.public());
                self.forget_unwritten();
                let before = self.put_in_force(now_ns, fabric, text);
                if is_kept_here && self.fabric != before && self.fabric.serial <= before.serial {
                    (self.say)(
                        "the fabric file has changed, but not its serial: raise it, or the other nodes keep theirs",
                    );
                }
            }
            Err(error) => self.reject(&error),
        }
    }

    /// Uses the keeper's fabric file, which the broker has got. It holds at once, and is written as soon as that is possible: a
    /// removal does not wait for a disk.
    pub(super) fn adopt(&mut self, now_ns: u64, text: String) {
        let path = self.configuration.join(fabric::FILE_NAME);
        match Fabric::of(&path, &text, &self.key.public()) {
            Ok(fabric) if fabric.serial <= self.fabric.serial => {}
            Ok(fabric) => {
                self.unwritten = Some(Unwritten::new(now_ns, text.clone()));
                self.put_in_force(now_ns, fabric, text);
            }
            Err(error) => self.reject(&error),
        }
    }

    /// Uses a fabric from now on. Returns the one before.
    fn put_in_force(&mut self, now_ns: u64, fabric: Fabric, text: String) -> Fabric {
        let before = std::mem::replace(&mut self.fabric, fabric);
        self.complaint = None;
        self.follow(now_ns, Some(&before), text);
        let Fabric { name, serial, nodes, .. } = &self.fabric;
        (self.say)(&format!(
            "fabric {name}, serial {serial}: {} {}",
            nodes.len(),
            if nodes.len() == 1 { "node" } else { "nodes" }
        ));
        before
    }

    /// Writes the file in force if that is due.
    pub(super) fn write_file(&mut self, now_ns: u64) {
        let Some(unwritten) = self.unwritten.as_mut().filter(|unwritten| unwritten.next_ns() <= now_ns)
        else {
            return;
        };
        let path = self.configuration.join(fabric::FILE_NAME);
        let serial = self.fabric.serial;
        if unwritten.reason().is_some() {
            // The user may have written a newer one meanwhile, which a reload will use.
            let found = fabric::read_text(&path).ok();
            let found = found.and_then(|text| Fabric::of(&path, &text, &self.key.public()).ok());
            if found.is_some_and(|found| found.serial >= serial) {
                return self.forget_unwritten();
            }
        }
        match file::replace(&path, &unwritten.text) {
            Ok(()) => {
                if unwritten.reason().is_some() {
                    (self.say)(&format!("fabric.toml is written, with serial {serial}"));
                }
                self.forget_unwritten();
            }
            Err(error) => {
                let copied = unwritten.copy_to(&self.directory.path().join(unwritten::COPY_NAME));
                if unwritten.fail(now_ns, error.to_string()) {
                    (self.say)(&format!(
                        "serial {serial} is in force, and fabric.toml on the disk is older: {error}: correct that; it is tried again"
                    ));
                    if let Err(error) = copied {
                        (self.say)(&format!(
                            "a service that restarts before that begins with the older one, as there is no copy either: {error}"
                        ));
                    }
                }
            }
        }
    }

    /// The file in force is on the disk.
    fn forget_unwritten(&mut self) {
        if self.unwritten.take().is_some() {
            directory::remove(&self.directory.path().join(unwritten::COPY_NAME));
        }
    }

    /// Tries to write the file in force, and logs the outcome.
    pub(super) fn write_file_at_once(&mut self, now_ns: u64) {
        if let Some(unwritten) = &mut self.unwritten {
            *unwritten = Unwritten::new(now_ns, std::mem::take(&mut unwritten.text));
            self.write_file(now_ns);
        }
    }

    fn reject(&mut self, error: &FabricError) {
        (self.say)(&format!("the new fabric file was rejected, and the previous one is in use: {error}"));
        self.complaint = Some(error.to_string());
    }

    /// A node's file has a larger serial than that of its keeper, this node.
    pub(super) fn report_ahead(&mut self, now_ns: u64, node: &PublicKey, ahead: u64) {
        let (name, serial) = (self.name_of(node), self.fabric.serial);
        self.remark(now_ns, || {
            format!(
                "node {name} takes no changes: its fabric file has serial {ahead}, and this one {serial}: raise it above that"
            )
        });
    }

    /// Applies the fabric file, whose text this is. `before` was its previous content.
    pub(super) fn follow(&mut self, now_ns: u64, before: Option<&Fabric>, text: String) {
        for node in before.iter().flat_map(|before| &before.nodes) {
            if self.fabric.named(&node.key).is_none() {
                self.link.remove(now_ns, &node.key);
                self.outages.end(&node.key);
                self.end_pings_of(&node.key);
            }
        }
        let own_key = self.key.public();
        let others = self.fabric.nodes.iter().filter(|node| node.key != own_key);
        let others: Vec<(PublicKey, Vec<ServiceAddress>, String)> =
            others.map(|node| (node.key, node.addresses.clone(), node.name.clone())).collect();
        let names: Vec<_> = others.iter().map(|(key, _, name)| (*key, name.clone())).collect();
        self.broker.follow(own(&self.fabric, &self.key), &names);
        for (key, given, _) in others {
            let known = before.and_then(|before| before.named(&key));
            if known.is_some_and(|known| known.addresses == given) {
                // Its names may have other addresses.
                self.look_up(key);
                continue;
            }
            // Addresses can be used at once. Host names are looked up.
            let addresses = given.iter().filter_map(|address| match address {
                ServiceAddress::Address(address) => Some(*address),
                ServiceAddress::Host(..) => None,
            });
            self.link.add(now_ns, key, addresses.collect());
            self.look_up(key);
        }
        let keeper = self.fabric.keeper().map(|keeper| keeper.key);
        self.broker.use_file(FabricFile { serial: self.fabric.serial, keeper, text });
    }

    /// Looks up the hosts among the addresses of a node.
    fn look_up(&mut self, node: PublicKey) {
        let Some(found) = self.fabric.named(&node) else { return };
        if found.addresses.iter().any(|address| matches!(address, ServiceAddress::Host(..))) {
            let addresses = found.addresses.clone();
            // One that finds no address is asked again while the node does not answer.
            self.lookups.ask(Question::Node { node, addresses });
        }
    }

    /// Looks names up again of nodes that have not answered for long.
    pub(super) fn look_up_again(&mut self, now_ns: u64) {
        for node in self.outages.take_due(now_ns) {
            if self.link.status(&node).is_some_and(|status| status.is_wanted) {
                self.look_up(node);
            } else {
                self.outages.end(&node);
            }
        }
    }

    /// What the threads of [`crate::lookup`] have found.
    pub(super) fn take_answers(&mut self, now_ns: u64) {
        for answer in self.lookups.answers() {
            match answer {
                Answer::User { port, user, groups } => self.named(now_ns, port, user, groups),
                // Nothing found: the name server may be down, and the addresses known before may be right.
                Answer::Node { addresses, .. } if addresses.is_empty() => {}
                // A look-up may take long, and the fabric file may have changed meanwhile.
                Answer::Node { node, asked, addresses } => {
                    if self.fabric.named(&node).is_some_and(|found| found.addresses == asked) {
                        self.link.add(now_ns, node, addresses);
                    }
                }
            }
        }
    }

    /// Processes an event of a channel.
    pub(super) fn happened(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Up { node, boot_id, path, .. } => {
                self.outages.end(&node);
                self.broker.up(node, boot_id, path.machines(), link::route_bytes(path.peer));
                self.send_waiting_pings(node);
            }
            Event::Moved { node, path } => {
                self.broker.moved(node, path.machines(), link::route_bytes(path.peer));
            }
            Event::Message { node, bytes } => match service::from_bytes(&bytes) {
                Ok(ServiceMessage::Join { name, addresses, udp_port }) => {
                    self.join(now_ns, node, &name, &addresses, udp_port);
                }
                Ok(message) => self.broker.hear(now_ns, node, message),
                // The sender has the key and speaks this version, so its program is faulty. Only this message is
                // affected.
                Err(error) => {
                    let name = self.name_of(&node);
                    self.remark(now_ns, || format!("a message of node {name} was ignored: {error}"));
                }
            },
            Event::Down { node, .. } => {
                self.link.forget(&node);
                self.broker.down(node);
            }
            Event::Unreachable { node } => {
                self.broker.refuse(node, NotConnected::Unreachable);
                self.look_up(node);
                self.outages.begin(now_ns, node);
            }
            Event::Echo { node, number } => self.take_echo(node, number),
            Event::OtherVersion { node } => self.broker.refuse(node, NotConnected::Version),
        }
    }

    fn name_of(&self, node: &PublicKey) -> String {
        self.fabric.named(node).map_or_else(|| format!("{node:?}"), |node| node.name.clone())
    }

    /// The addresses of a node's service, as in the file.
    pub(super) fn addresses(addresses: &[ServiceAddress]) -> Vec<String> {
        addresses.iter().map(ServiceAddress::to_string).collect()
    }

    /// The last stranger with a key that the fabric does not have. It may have been added since.
    pub(super) fn last_unknown(&self) -> Option<(PublicKey, SocketAddr)> {
        self.link.strangers().last_unknown.filter(|(key, _)| self.fabric.named(key).is_none())
    }
}
