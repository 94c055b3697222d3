//! The service's part for nodes that join the fabric. Only the keeper has one.

use std::net::SocketAddr;

use bywire_sys::clock;
use bywire_wire::handshake::{KEY_BYTES, PublicKey};
use bywire_wire::service::{NotInvited, Notice};
use bywire_wire::service_message::{NotJoined, ServiceMessage};
use zeroize::Zeroizing;

use crate::broker::PortId;
use crate::change::{self, Change};
use crate::fabric::{self, NODES_MAX, Node, ServiceAddress};
use crate::invitation::Invitation;
use crate::{key, link};

use super::{Service, report};

impl Service<'_> {
    /// Answers a program that asks for an invitation and may change what the service does. A process of root in a container,
    /// or one that has given up its files, may have the socket, but not the private key.
    pub(super) fn answer_invite(&mut self, now_ns: u64, id: PortId, name: String, proof: &[u8]) -> Notice {
        let challenge = self.challenge(id);
        if !self.key.is_proof(&challenge, &name, proof) {
            let path = self.configuration.join(key::FILE_NAME);
            // The program may have another working directory.
            let path = std::path::absolute(&path).unwrap_or(path);
            return Notice::Prove { challenge, key_file: path.to_string_lossy().into_owned() };
        }
        match self.invite(now_ns, name) {
            Ok(invitation) => {
                let mut salt = [0; KEY_BYTES];
                link::random(&mut salt);
                Notice::Invited { salt, sealed: self.key.seal(&salt, &invitation.to_string()) }
            }
            Err(reason) => Notice::NotInvited(reason),
        }
    }

    /// Makes an invitation for a node of this name.
    fn invite(&mut self, now_ns: u64, name: String) -> Result<Invitation, NotInvited> {
        let keeper = self.fabric.keeper().ok_or(NotInvited::NoKeeper)?;
        if keeper.key != self.key.public() {
            return Err(NotInvited::OtherKeeper(keeper.name.clone()));
        }
        if !fabric::is_name(&name) || name == "localhost" {
            return Err(NotInvited::NoName);
        }
        if self.fabric.nodes.iter().any(|node| node.name == name) {
            return Err(NotInvited::NameTaken);
        }
        if self.fabric.nodes.len() >= NODES_MAX {
            return Err(NotInvited::FabricFull);
        }
        let mut secret = Zeroizing::new([0; 32]);
        link::random(&mut *secret);
        let addresses = keeper.addresses.clone();
        let fabric = self.fabric.name.clone();
        let made_ns = clock::nanoseconds_with_suspend();
        for id in self.invitations.make_place(made_ns, &name) {
            self.link.withdraw(now_ns, &id);
        }
        let id = self.link.invite(*secret).ok_or(NotInvited::TooMany)?;
        self.invitations.add(made_ns, id, name.clone());
        Ok(Invitation { addresses, keeper: self.key.public(), secret, node: name, fabric })
    }

    /// Forgets invitations whose time is long over. Their secrets open no channel from then on.
    pub(super) fn forget_invitations(&mut self, now_ns: u64) {
        for id in self.invitations.take_old(clock::nanoseconds_with_suspend()) {
            self.link.withdraw(now_ns, &id);
        }
    }

    /// A node that has used an invitation asks to be added.
    pub(super) fn join(
        &mut self,
        now_ns: u64,
        node: PublicKey,
        name: &str,
        addresses: &[String],
        udp_port: u16,
    ) {
        let answer = match self.admit(now_ns, node, name, addresses, udp_port) {
            Ok(()) => ServiceMessage::Joined,
            Err(reason) => {
                if let Some(id) = self.link.invitation(&node) {
                    self.invitations.refuse(&id);
                }
                self.remark(now_ns, || format!("the node {name:?} was not added: {reason}"));
                ServiceMessage::NotJoined(reason)
            }
        };
        let owed_bytes_max = self.broker.owed_bytes_max(&node);
        self.link.send(now_ns, node, &answer, None, owed_bytes_max);
    }

    fn admit(
        &mut self,
        now_ns: u64,
        node: PublicKey,
        name: &str,
        addresses: &[String],
        udp_port: u16,
    ) -> Result<(), NotJoined> {
        // One that was added, and has not heard that, asks again.
        if self.fabric.named(&node).is_some() {
            return Ok(());
        }
        let id = self.link.invitation(&node).ok_or(NotJoined::Used)?;
        self.invitations.check(clock::nanoseconds_with_suspend(), &id, name)?;
        let addresses = self.addresses_of(node, addresses, udp_port)?;
        let node = Node { name: name.to_owned(), addresses, key: node, is_bridge: false };
        let added = change::try_lock(&self.configuration).and_then(|lock| {
            change::make(&self.configuration, &lock, &self.key.public(), Change::Add(&node))
        });
        added.map_err(|error| NotJoined::Rejected(report::shortened(&error.to_string())))?;
        self.invitations.use_up(&id);
        self.reload(now_ns);
        if let Some(complaint) = &self.complaint {
            return Err(NotJoined::Rejected(report::shortened(complaint)));
        }
        // The broker has not known the node when its channel came up.
        if let Some(channel) = self.link.status(&node.key).and_then(|status| status.channel) {
            let route_bytes = link::route_bytes(channel.path.peer);
            self.broker.up(node.key, channel.boot_id, channel.path.machines(), route_bytes);
        }
        Ok(())
    }

    /// The addresses that a node gives, or the one that its packets come from.
    fn addresses_of(
        &self,
        node: PublicKey,
        given: &[String],
        udp_port: u16,
    ) -> Result<Vec<ServiceAddress>, NotJoined> {
        let rejected = |text: String| NotJoined::Rejected(text);
        if !given.is_empty() {
            let parsed = given.iter().map(|text| ServiceAddress::parse(text, udp_port));
            return parsed.collect::<Result<_, _>>().map_err(|error| rejected(error.to_string()));
        }
        let channel = self.link.status(&node).and_then(|status| status.channel);
        let seen = channel.map(|channel| SocketAddr::new(channel.path.peer.ip(), udp_port));
        match seen.filter(|_| udp_port != 0) {
            Some(address) => Ok(vec![ServiceAddress::Address(address)]),
            None => Err(rejected("it has no address: give one by --address".to_owned())),
        }
    }
}
