//! The service's part for processes of this machine: ports, and programs that ask for the status. Their packets are
//! hostile, and descriptors are checked first.

use std::collections::VecDeque;

use bywire::PortName;
use bywire_sys::deferred::Foreign;
use bywire_sys::socket::Received;
use bywire_sys::{process, tcp, udp};
use bywire_wire::service::{self, Kept, Notice, PACKET_BYTES_MAX, Request, Unregistered, VERSION};

use crate::broker::{Port, PortId};
use crate::link;
use crate::lookup::Question;

use super::Service;
use super::caller::{Caller, Copies, Duplicate, Stage};

/// How long a caller may take until its first packet.
const PATIENCE_NS: u64 = 5_000_000_000;
/// The most packets of one caller before the next one's turn.
const PACKETS_PER_TURN: usize = 32;
/// The most connections that are accepted before other work has its turn.
const ACCEPTED_PER_TURN: usize = 64;
impl Service<'_> {
    /// Accepts waiting connections, within the limits of their users.
    pub(super) fn accept(&mut self, now_ns: u64) {
        self.is_short = false;
        for _ in 0..ACCEPTED_PER_TURN {
            let socket = match self.claim.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(_) => {
                    self.is_short = true;
                    return;
                }
            };
            let Ok(user) = socket.credentials() else { continue };
            let id = self.next_caller;
            if !self.places.take(user.uid) {
                continue;
            }
            if self.poller.add(&socket, id).is_err() {
                self.places.give_back(user.uid);
                continue;
            }
            self.next_caller += 2;
            let stage = Stage::New { until_ns: now_ns.saturating_add(PATIENCE_NS) };
            self.callers.insert(id, Caller { socket, user, stage, unsent: VecDeque::new() });
        }
    }

    /// A caller's socket or process is ready.
    pub(super) fn attend(&mut self, now_ns: u64, tag: u64) {
        let id = tag & !1;
        if tag != id {
            return self.dismiss(id);
        }
        for _ in 0..PACKETS_PER_TURN {
            let Some(caller) = self.callers.get(&id) else { return };
            if matches!(caller.stage, Stage::Unnamed(_)) {
                return;
            }
            let mut packet = [0; PACKET_BYTES_MAX];
            match caller.socket.receive(&mut packet) {
                Ok(Received::Packet(length, descriptors)) => {
                    self.obey(now_ns, id, &packet[..length], descriptors);
                }
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => return self.dismiss(id),
                // A packet that blocks the queue stays there.
                Err(_) => return self.dismiss(id),
            }
        }
    }

    /// Processes a packet.
    fn obey(&mut self, now_ns: u64, id: PortId, packet: &[u8], descriptors: Vec<Foreign>) {
        let Ok(request) = service::from_bytes::<Request>(packet) else {
            return self.refuse(id, Unregistered::Malformed);
        };
        let is_registered = self.callers.get(&id).is_some_and(|caller| caller.copies().is_some());
        match request {
            Request::Status { version: VERSION, from } if descriptors.is_empty() => {
                let (entries, next) = self.report(now_ns, id, from);
                self.tell(id, &Notice::Status { entries, next });
                // A program asks repeatedly until it has all entries.
                if let Some(Caller { stage: Stage::New { until_ns }, .. }) = self.callers.get_mut(&id) {
                    *until_ns = now_ns.saturating_add(PATIENCE_NS);
                }
            }
            Request::Status { .. } => self.refuse(id, Unregistered::Version),
            Request::Register { version, .. } if version != VERSION => {
                self.refuse(id, Unregistered::Version);
            }
            Request::Register { port, incarnation, kept, .. } if is_registered => {
                let known = self.broker.ports().find(|(other, _)| *other == id);
                let is_same = known.is_some_and(|(_, known)| {
                    known.name == port && known.incarnation == incarnation && descriptors.is_empty()
                });
                if !is_same {
                    return self.refuse(id, Unregistered::Malformed);
                }
                self.registered(id, kept);
            }
            Request::Register { port, incarnation, is_reachable, udp_port, kept, .. } => {
                let port = Port {
                    name: port,
                    uid: u32::MAX,
                    user: String::new(),
                    groups: Vec::new(),
                    incarnation,
                    is_reachable,
                    udp_port,
                    has_v6: false,
                };
                if let Err(reason) = self.register(id, port, kept, descriptors) {
                    self.refuse(id, reason);
                }
            }
            _ if !is_registered || !descriptors.is_empty() => self.refuse(id, Unregistered::Malformed),
            request => self.broker_request(now_ns, id, request),
        }
    }

    fn broker_request(&mut self, now_ns: u64, id: PortId, request: Request) {
        let mut random = [0; 32];
        match request {
            Request::Connect { request, node, port, introduction } => {
                link::random(&mut random);
                self.broker.connect(now_ns, id, request, (&node, port), introduction, random);
            }
            Request::Accept { offer, introduction } => {
                link::random(&mut random);
                self.broker.accept(id, offer, introduction, random);
            }
            Request::Decline { offer, refusal } => self.broker.decline(id, offer, refusal),
            Request::Release { connection } => self.broker.release(id, connection),
            Request::Inquire { connection } => self.broker.inquire(id, connection),
            Request::Register { .. } | Request::Status { .. } => {}
        }
    }

    /// Checks the identity of a port. Then its user's name is looked up.
    fn register(
        &mut self,
        id: PortId,
        mut port: Port,
        kept: Vec<Kept>,
        descriptors: Vec<Foreign>,
    ) -> Result<(), Unregistered> {
        let Some(caller) = self.callers.get(&id) else { return Ok(()) };
        let user = caller.user;
        let is_admitted = process::user() == 0 || process::user() == user.uid;
        let name = port.name.parse::<PortName>().ok().filter(|name| name.to_string() == port.name);
        let name = name.filter(|_| is_admitted && port.udp_port != 0).ok_or(Unregistered::Malformed)?;
        let [udp] = <[Foreign; 1]>::try_from(descriptors).map_err(|_| Unregistered::OtherNetwork)?;
        // Both are found without the socket's lock, which its owner could hold.
        port.has_v6 = udp::has_v6(&udp).map_err(|_| Unregistered::OtherNetwork)?;
        if tcp::namespace(&udp) != Ok(self.namespace) {
            return Err(Unregistered::OtherNetwork);
        }
        if !self.directory.is_owner(&name, user) {
            return Err(Unregistered::Unverified);
        }
        let process = caller.socket.watch_process().map_err(|_| Unregistered::Unverified)?;
        let gids = caller.socket.groups().unwrap_or_default();
        port.uid = user.uid;
        let udp = Duplicate { file: Some(udp.into_inner()), user: user.uid };
        let question = Question::User { port: id, uid: user.uid, gids: [vec![user.gid], gids].concat() };
        self.poller.add(&process, id + 1).map_err(|_| Unregistered::NoResources)?;
        self.poller.pause(&caller.socket, id).map_err(|_| Unregistered::NoResources)?;
        let copies = Copies { process, udp };
        if let Some(caller) = self.callers.get_mut(&id) {
            caller.stage = Stage::Unnamed(Box::new((port, copies, kept)));
        }
        if self.lookups.ask(question) { Ok(()) } else { Err(Unregistered::NoResources) }
    }

    /// Registers a port whose user's name is known.
    pub(super) fn named(&mut self, now_ns: u64, id: PortId, user: String, groups: Vec<String>) {
        let Some(caller) = self.callers.get_mut(&id) else { return };
        let stage = std::mem::replace(&mut caller.stage, Stage::New { until_ns: now_ns });
        let Stage::Unnamed(found) = stage else {
            caller.stage = stage;
            return;
        };
        let (port, copies, kept) = *found;
        let is_watched = self.poller.resume(&caller.socket, id).is_ok();
        caller.stage = Stage::Registered(copies);
        match self.broker.register(id, Port { user, groups, ..port }) {
            Ok(()) if is_watched => self.registered(id, kept),
            Ok(()) => self.dismiss(id),
            Err(reason) => self.refuse(id, reason),
        }
    }

    /// Completes a registration.
    fn registered(&mut self, id: PortId, kept: Vec<Kept>) {
        let node = self.node().to_owned();
        self.tell(id, &Notice::Registered { node });
        self.broker.keep(id, kept);
    }

    /// Refuses a caller.
    fn refuse(&mut self, id: PortId, reason: Unregistered) {
        self.tell(id, &Notice::Refused(reason));
        self.dismiss(id);
    }

    /// Sends a notice to a caller.
    pub(super) fn tell(&mut self, id: PortId, notice: &Notice) {
        let Some(caller) = self.callers.get_mut(&id) else { return };
        // Each part of a notice is bounded so that it fits. A caller that cannot be told has to connect again.
        if !service::to_bytes(notice).is_ok_and(|packet| caller.send(packet)) {
            self.dismiss(id);
        }
    }

    /// Sends packets that wait for callers to read.
    pub(super) fn flush_callers(&mut self) {
        let waiting = self.callers.iter_mut().filter(|(_, caller)| !caller.unsent.is_empty());
        let gone: Vec<PortId> = waiting.filter_map(|(id, caller)| (!caller.flush()).then_some(*id)).collect();
        gone.into_iter().for_each(|id| self.dismiss(id));
    }

    /// Does a packet wait for a caller to read?
    pub(super) fn has_unsent(&self) -> bool {
        self.callers.values().any(|caller| !caller.unsent.is_empty())
    }

    /// When the first caller without a packet is disconnected.
    pub(super) fn next_late_ns(&self) -> Option<u64> {
        let late = self.callers.values().filter_map(|caller| match caller.stage {
            Stage::New { until_ns } => Some(until_ns),
            _ => None,
        });
        late.min()
    }

    /// Disconnects callers whose time is over.
    pub(super) fn dismiss_late(&mut self, now_ns: u64) {
        let is_late = |caller: &Caller| matches!(caller.stage, Stage::New { until_ns } if until_ns <= now_ns);
        let late: Vec<PortId> =
            self.callers.iter().filter(|(_, caller)| is_late(caller)).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.dismiss(id));
    }

    /// Removes a caller that has ended or is refused.
    fn dismiss(&mut self, id: PortId) {
        let Some(caller) = self.callers.remove(&id) else { return };
        self.places.give_back(caller.user.uid);
        self.poller.remove(&caller.socket);
        if let Stage::Registered(Copies { process, .. }) = &caller.stage {
            self.poller.remove(process);
        }
        if let Stage::Unnamed(found) = &caller.stage {
            self.poller.remove(&found.1.process);
        }
        self.broker.port_ended(bywire_sys::clock::nanoseconds(), id);
    }
}
