//! The service's part for processes of this machine: ports, and programs that ask for the status. Their packets are
//! hostile, and descriptors are checked first.

use std::os::fd::OwnedFd;

use bywire::PortName;
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::udp::UdpSocket;
use bywire_sys::{Errno, process, tcp, udp};
use bywire_wire::service::{
    self, Kept, NotConnected, Notice, PACKET_BYTES_MAX, Request, Unregistered, VERSION,
};

use crate::broker::{Port, PortId};
use crate::link;
use crate::lookup::Question;

use super::caller::{Caller, Copies, Duplicate, Stage};
use super::unwritten::Unwritten;
use super::{LISTENER, RETRY_NS, Service, report, users};

/// How long a caller may take until its first packet.
const TIMEOUT_NS: u64 = 5_000_000_000;
/// How long a program may take from one echo request to the next.
const PING_TIMEOUT_NS: u64 = 65_000_000_000;
/// The most packets of one caller before the next one's turn.
const PACKETS_PER_TURN: usize = 32;
/// The most callers that are accepted before other work has its turn.
const ACCEPTED_PER_TURN: usize = 64;

/// What a caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing, or something else: it is read from when it is ready.
    Over,
    /// It has to wait.
    Throttled,
    /// It has gone, or waits for an answer that the service itself has asked for.
    Away,
}

impl Service<'_> {
    /// Accepts callers, as many of each user as it may have. When descriptors have run out, or too many callers were refused,
    /// the listener is not watched for a while, because it would stay readable.
    pub(super) fn accept(&mut self, now_ns: u64) {
        if self.accept_again_ns.is_some_and(|again_ns| now_ns < again_ns) {
            return;
        }
        let pause_ns = self.accept_some(now_ns);
        let was_paused = self.accept_again_ns.is_some();
        if pause_ns.is_some() && !was_paused {
            self.poller.remove(&self.claim.listener);
        }
        let is_watched =
            pause_ns.is_none() && (!was_paused || self.poller.add(&self.claim.listener, LISTENER).is_ok());
        self.accept_again_ns = (!is_watched).then(|| now_ns.saturating_add(pause_ns.unwrap_or(RETRY_NS)));
    }

    /// The same. Returns how long nobody else can be accepted.
    fn accept_some(&mut self, now_ns: u64) -> Option<u64> {
        let mut accepted = 0;
        while accepted < ACCEPTED_PER_TURN {
            let pause_ns = self.refusals.pause_ns(now_ns);
            if pause_ns.is_some() {
                return pause_ns;
            }
            let before = self.claim.listener.turned_away();
            let Ok(caller) = self.claim.listener.accept() else { return Some(RETRY_NS) };
            let of_crowds = self.claim.listener.turned_away() - before;
            self.refusals.add(now_ns, of_crowds);
            match caller {
                Some(socket) => match self.take_in(now_ns, socket) {
                    true => accepted += 1,
                    false => self.refusals.add(now_ns, 1),
                },
                // Others may wait behind them.
                None if of_crowds > 0 => {}
                None => break,
            }
        }
        None
    }

    /// Takes in a caller. `false`: it is refused, because its user has as many as it may have.
    fn take_in(&mut self, now_ns: u64, socket: Socket) -> bool {
        let Ok(user) = socket.credentials() else { return false };
        // Ports of the last service come back in any order.
        let has_place = match self.broker.is_in_grace(now_ns) {
            true => self.places.take_again(user.uid),
            false => self.places.take(user.uid),
        };
        if !has_place {
            // It may have gone.
            let refused = service::to_bytes(&Notice::Refused(Unregistered::NoResources));
            let _ = refused.map(|packet| socket.send(&packet, &[]));
            return false;
        }
        let id = self.next_caller;
        if self.users.is_over(now_ns, user.uid) {
            self.throttled.put(now_ns, user.uid, id);
        } else if self.poller.add(&socket, id).is_err() {
            self.places.give_back(user.uid);
            return false;
        }
        self.next_caller += 2;
        let until_ns = now_ns.saturating_add(TIMEOUT_NS);
        self.callers.insert(id, Caller::new(socket, user, until_ns));
        self.late.insert((until_ns, id));
        true
    }

    /// A caller's socket or process is ready.
    pub(super) fn attend(&mut self, now_ns: u64, tag: u64) {
        let id = tag & !1;
        if tag != id {
            return self.dismiss(id);
        }
        if self.read(now_ns, id) == Turn::Throttled
            && let Some(caller) = self.callers.get(&id)
        {
            // Its end would be reported again and again, were it watched for nothing else.
            self.poller.remove(&caller.socket);
            self.throttled.put(now_ns, caller.uid(), id);
        }
    }

    /// Reads what a caller has sent, as much as it may send in one turn.
    fn read(&mut self, now_ns: u64, id: PortId) -> Turn {
        for _ in 0..PACKETS_PER_TURN {
            let Some(caller) = self.callers.get(&id) else { return Turn::Away };
            if matches!(caller.stage, Stage::Unnamed(_)) {
                return Turn::Away;
            }
            if self.has_to_wait(now_ns, caller) {
                return Turn::Throttled;
            }
            let mut packet = [0; PACKET_BYTES_MAX];
            match caller.socket.receive(&mut packet) {
                Ok(Received::Packet(length, descriptors)) => {
                    self.obey(now_ns, id, &packet[..length], descriptors);
                    self.carry_out(now_ns, None);
                }
                Ok(Received::Nothing) => return Turn::Over,
                // A packet that blocks the queue stays there.
                Ok(Received::Closed) | Err(_) => {
                    self.dismiss(id);
                    return Turn::Away;
                }
            }
        }
        Turn::Over
    }

    /// Is nothing read from a caller now? Its user has had enough done, or it has to read first.
    fn has_to_wait(&self, now_ns: u64, caller: &Caller) -> bool {
        self.users.is_over(now_ns, caller.uid()) || caller.is_behind()
    }

    /// Reads again from callers that had to wait, until their users have had enough done again.
    pub(super) fn read_again(&mut self, now_ns: u64) {
        for (user, mut line) in self.throttled.take_due(now_ns) {
            for _ in 0..line.len() {
                if self.users.is_over(now_ns, user) {
                    break;
                }
                let Some(id) = line.pop_front() else { break };
                match self.read(now_ns, id) {
                    Turn::Throttled => line.push_back(id),
                    Turn::Away => {}
                    Turn::Over => {
                        let caller = self.callers.get(&id);
                        if caller.is_some_and(|caller| self.poller.add(&caller.socket, id).is_err()) {
                            self.dismiss(id);
                        }
                    }
                }
            }
            line.into_iter().for_each(|id| self.throttled.put(now_ns, user, id));
        }
    }

    /// May a caller change what the service does? Its own user and root may.
    fn may_change(&self, id: PortId) -> bool {
        self.callers.get(&id).is_some_and(|caller| [0, process::user()].contains(&caller.uid()))
    }

    /// Does what a packet asks for.
    fn obey(&mut self, now_ns: u64, id: PortId, packet: &[u8], descriptors: Vec<ReceivedFd>) {
        let Ok(request) = service::from_bytes::<Request>(packet) else {
            return self.refuse(id, Unregistered::Malformed);
        };
        let Some(caller) = self.callers.get(&id) else { return };
        let is_registered = caller.copies().is_some();
        self.users.charge(now_ns, caller.uid(), users::work_of(&request));
        match request {
            Request::Status { version: VERSION, from } if descriptors.is_empty() => {
                let (entries, next) = self.report(now_ns, id, from);
                self.tell(id, &Notice::Status { entries, next });
                // A program asks repeatedly until it has all entries.
                self.extend(id, now_ns.saturating_add(TIMEOUT_NS));
            }
            Request::Ping { version: VERSION, node, request, bytes }
                if descriptors.is_empty() && !is_registered =>
            {
                self.ping(now_ns, id, &node, request, bytes);
                self.extend(id, now_ns.saturating_add(PING_TIMEOUT_NS));
            }
            Request::Reload { version: VERSION } if descriptors.is_empty() && self.may_change(id) => {
                self.reload(now_ns);
                let unwritten = self.unwritten.as_ref().and_then(Unwritten::reason);
                let complaint = self.complaint.as_deref().or(unwritten).map(report::shortened);
                self.tell(id, &Notice::Reloaded { complaint });
            }
            Request::Invite { version: VERSION, node, proof }
                if descriptors.is_empty() && self.may_change(id) =>
            {
                let notice = self.answer_invite(now_ns, id, node, &proof);
                self.tell(id, &notice);
            }
            Request::Reload { version: VERSION } | Request::Invite { version: VERSION, .. } => {
                self.refuse(id, Unregistered::Unverified);
            }
            Request::Status { .. }
            | Request::Reload { .. }
            | Request::Invite { .. }
            | Request::Ping { .. } => {
                self.refuse(id, Unregistered::Version);
            }
            Request::Register { version, .. } if version != VERSION => {
                self.refuse(id, Unregistered::Version);
            }
            Request::Register { port, incarnation, kept, is_last, .. } if is_registered => {
                let is_same = self.broker.port(id).is_some_and(|known| {
                    known.name == port && known.incarnation == incarnation && descriptors.is_empty()
                });
                if !is_same {
                    return self.refuse(id, Unregistered::Malformed);
                }
                self.registered(now_ns, id, (kept, is_last));
            }
            Request::Register { port, incarnation, is_reachable, udp_port, kept, is_last, .. } => {
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
                if let Err(reason) = self.register(id, port, (kept, is_last), descriptors) {
                    self.refuse(id, reason);
                }
            }
            _ if !is_registered || !descriptors.is_empty() => self.refuse(id, Unregistered::Malformed),
            request => self.broker_request(now_ns, id, request),
        }
    }

    /// Lets a caller that does not register stay until then.
    fn extend(&mut self, id: PortId, until_ns: u64) {
        if let Some(Caller { stage: Stage::New { until_ns: before_ns }, .. }) = self.callers.get_mut(&id) {
            *before_ns = until_ns;
        }
    }

    fn broker_request(&mut self, now_ns: u64, id: PortId, request: Request) {
        let mut random = [0; 32];
        // With these, another service is told the port's name.
        let is_vouched_for = matches!(request, Request::Connect { .. } | Request::Accept { .. });
        if is_vouched_for && self.has_lost_its_name(id) {
            return self.refuse(id, Unregistered::Unverified);
        }
        match request {
            Request::Connect { request, node, port, introduction } => {
                let Some(user) = self.callers.get(&id).map(Caller::uid) else { return };
                if self.broker.node_named(&node).is_some_and(|node| !self.link.may_ask(&node, user)) {
                    // It has not taken the earlier ones.
                    let reason = NotConnected::Unreachable;
                    return self.tell(id, &Notice::NotConnected { request, reason });
                }
                link::random(&mut random);
                // What others have caused before is not on this user's account.
                self.carry_out(now_ns, None);
                self.broker.connect(now_ns, id, request, (&node, port), introduction, random);
                self.carry_out(now_ns, Some(user));
            }
            Request::Accept { offer, introduction } => {
                link::random(&mut random);
                self.broker.accept(id, offer, introduction, random);
            }
            Request::Decline { offer, refusal } => self.broker.decline(id, offer, refusal),
            Request::Release { connection } => self.broker.release(id, connection),
            Request::Inquire { connection } => self.broker.inquire(now_ns, id, connection),
            Request::Blocked { connection, peer_udp_port } => {
                self.broker.note_blocked(now_ns, id, connection, peer_udp_port);
            }
            Request::Register { .. }
            | Request::Status { .. }
            | Request::Reload { .. }
            | Request::Invite { .. }
            | Request::Ping { .. } => {}
        }
    }

    /// Checks the identity of a port. Then its user's name is looked up.
    fn register(
        &mut self,
        id: PortId,
        mut port: Port,
        kept: (Vec<Kept>, bool),
        descriptors: Vec<ReceivedFd>,
    ) -> Result<(), Unregistered> {
        let Some(caller) = self.callers.get(&id) else { return Ok(()) };
        let user = caller.user;
        let is_admitted = process::user() == 0 || process::user() == user.uid;
        let name = port.name.parse::<PortName>().ok().filter(|name| name.to_string() == port.name);
        let name = name.filter(|_| is_admitted && port.udp_port != 0).ok_or(Unregistered::Malformed)?;
        let [udp] = <[ReceivedFd; 1]>::try_from(descriptors).map_err(|_| Unregistered::OtherNetwork)?;
        // Both are found without the socket's lock, which its owner could hold.
        port.has_v6 = udp::has_v6(&udp).map_err(|_| Unregistered::OtherNetwork)?;
        let is_lent = tcp::namespace(&udp) != Ok(self.namespace);
        // Connections that a port has are in its own network.
        if is_lent && !(self.settings.lend_network && kept.0.is_empty()) {
            return Err(Unregistered::OtherNetwork);
        }
        if !self.directory.is_owner(&name, user) {
            return Err(Unregistered::Unverified);
        }
        let process = caller.socket.watch_process().map_err(|_| Unregistered::Unverified)?;
        let gids = caller.socket.groups().unwrap_or_default();
        port.uid = user.uid;
        let udp = if is_lent { lend_to(&mut port)? } else { udp.into_inner() };
        let udp = Duplicate { file: Some(udp), user: user.uid };
        let question = Question::User { port: id, uid: user.uid, gids: [vec![user.gid], gids].concat() };
        self.poller.add(&process, id + 1).map_err(|_| Unregistered::NoResources)?;
        // An end of the socket would be reported all the time. It is found when the name is known.
        self.poller.remove(&caller.socket);
        let copies = Copies { process, udp, is_lent };
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
        let is_watched = self.poller.add(&caller.socket, id).is_ok();
        caller.stage = Stage::Registered(copies);
        if let Some(before) = self.broker.named(&port.name)
            && self.has_lost_its_name(before)
        {
            self.refuse(before, Unregistered::Unverified);
        }
        match self.broker.register(id, Port { user, groups, ..port }) {
            Ok(()) if is_watched => self.registered(now_ns, id, kept),
            Ok(()) => self.dismiss(id),
            Err(reason) => self.refuse(id, reason),
        }
    }

    /// Has another process got a registered port's name since?
    pub(super) fn has_lost_its_name(&self, id: PortId) -> bool {
        let name = self.broker.port(id).and_then(|port| port.name.parse::<PortName>().ok());
        let caller = self.callers.get(&id);
        name.zip(caller).is_some_and(|(name, caller)| self.directory.has_other_owner(&name, caller.user))
    }

    /// Does so much wait for a caller that it gets no more offers?
    pub(super) fn is_behind(&self, id: PortId) -> bool {
        self.callers.get(&id).is_some_and(Caller::is_behind)
    }

    /// A registration has been taken.
    fn registered(&mut self, now_ns: u64, id: PortId, (kept, is_last): (Vec<Kept>, bool)) {
        let notice = Notice::Registered { node: self.node().to_owned() };
        let lent =
            self.callers.get_mut(&id).and_then(|caller| caller.lend(&service::to_bytes(&notice).ok()?));
        match lent {
            None => self.tell(id, &notice),
            Some(true) => {}
            Some(false) => return self.dismiss(id),
        }
        self.broker.keep(now_ns, id, kept, is_last);
    }

    /// Sends a caller away.
    pub(super) fn refuse(&mut self, id: PortId, reason: Unregistered) {
        self.tell(id, &Notice::Refused(reason));
        self.dismiss(id);
    }

    /// Sends a notice to a caller.
    pub(super) fn tell(&mut self, id: PortId, notice: &Notice) {
        // Each part of a notice is bounded so that it fits. A caller that cannot be told something has to call again.
        let packet = service::to_bytes(notice);
        if !self.change_unsent(id, |caller| packet.is_ok_and(|packet| caller.send(packet))) {
            self.dismiss(id);
        }
    }

    /// Sends packets that wait for callers to read. Callers that do not read are not asked every time.
    pub(super) fn flush_callers(&mut self, now_ns: u64) {
        if now_ns < self.unread_again_ns {
            return;
        }
        for id in self.unread.iter().copied().collect::<Vec<_>>() {
            if !self.change_unsent(id, Caller::flush) {
                self.dismiss(id);
            }
        }
        self.unread_again_ns = now_ns.saturating_add(RETRY_NS);
    }

    /// Does something that changes what waits for a caller, and has its user's account follow. `false`: the caller has to go.
    fn change_unsent(&mut self, id: PortId, change: impl FnOnce(&mut Caller) -> bool) -> bool {
        let Some(caller) = self.callers.get_mut(&id) else { return true };
        let before = caller.unsent_bytes();
        let is_well = change(caller);
        let (user, after, now_ns) = (caller.uid(), caller.unsent_bytes(), bywire_sys::clock::nanoseconds());
        if after > 0 {
            self.unread.insert(id);
        } else {
            self.unread.remove(&id);
        }
        self.users.count_unsent(now_ns, user, before, after) && is_well
    }

    /// When the first caller that has not registered is disconnected, or looked at again. A caller that has registered does not
    /// wake the service for that.
    pub(super) fn first_late_ns(&mut self) -> Option<u64> {
        while let Some((at_ns, id)) = self.late.first().copied() {
            if matches!(self.callers.get(&id), Some(Caller { stage: Stage::New { .. }, .. })) {
                return Some(at_ns);
            }
            self.late.remove(&(at_ns, id));
        }
        None
    }

    /// Disconnects callers whose time is over.
    pub(super) fn dismiss_late(&mut self, now_ns: u64) {
        while self.first_late_ns().is_some_and(|at_ns| at_ns <= now_ns)
            && let Some((_, id)) = self.late.pop_first()
        {
            match self.callers.get(&id).map(|caller| &caller.stage) {
                Some(Stage::New { until_ns }) if *until_ns <= now_ns => self.dismiss(id),
                // It has asked for something since.
                Some(Stage::New { until_ns }) => drop(self.late.insert((*until_ns, id))),
                _ => {}
            }
        }
    }

    /// Removes a caller that has ended or is refused.
    fn dismiss(&mut self, id: PortId) {
        let Some(caller) = self.callers.remove(&id) else { return };
        let now_ns = bywire_sys::clock::nanoseconds();
        self.places.give_back(caller.uid());
        self.users.count_unsent(now_ns, caller.uid(), caller.unsent_bytes(), 0);
        self.users.charge(now_ns, caller.uid(), users::CALL_WORK);
        self.unread.remove(&id);
        self.poller.remove(&caller.socket);
        if let Stage::Registered(Copies { process, .. }) = &caller.stage {
            self.poller.remove(process);
        }
        if let Stage::Unnamed(found) = &caller.stage {
            self.poller.remove(&found.1.process);
        }
        self.broker.port_ended(now_ns, id);
        self.end_pings_by(id);
    }
}

/// A UDP socket of the service's network for a port that is in another one.
fn lend_to(port: &mut Port) -> Result<OwnedFd, Unregistered> {
    let mut make = || {
        let lent = UdpSocket::bind_everywhere(0)?;
        (port.udp_port, port.has_v6) = (lent.local_address()?.port(), udp::has_v6(&lent)?);
        Ok(lent.into())
    };
    make().map_err(|_: Errno| Unregistered::NoResources)
}
