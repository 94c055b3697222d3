//! Connecting to peers of this machine: the handshake over Unix sockets, and which socket is ready.
//!
//! The connecting port sends `Hello` with its segment, its page and its doorbell. The accepting port checks the sender's
//! identity and answers `Welcome` with its own descriptors. Then both are connected. Connections that have
//! not introduced themselves are kept in a bounded table.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bywire_ring::doorbell::DOORBELL_BYTES;
use bywire_ring::memory::Shared;
use bywire_sys::Errno;
use bywire_sys::credentials::Credentials;
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::memory::{Mapping, OfferError};
use bywire_sys::socket::{Received, Socket};
use bywire_sys::{limits, wake};

use super::Port;
use super::incoming::{Tag, tag_of};
use super::slots::{Connecting, Slot};
use crate::message::address::Address;
use crate::message::error::{ConnectError, DisconnectReason, Refusal};
use crate::message::event::Event;
use crate::message::options::Admit;
use crate::message::peer::{Owner, Peer, PeerInfo};
use crate::message::share::{OtherUser, is_within_share};
use crate::shm::account::{Kind, NoMemory};
use crate::shm::connection::{Connection, Setup, is_own_or_root};
use crate::shm::handshake::{Introduction, PACKET_BYTES_MAX, Packet, PacketError};

/// The most connections that have not introduced themselves. The oldest one makes room for the next.
const INCOMING_MAX: usize = 64;
/// How long a connect pauses between looks while too many events wait.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// Connections accepted at a time, so that a flood of them cannot hold up the data path.
const ACCEPT_MAX: usize = 16;
/// How long waiting connections are left alone while none can be let in, and how often an introduction is sent again.
const PAUSE: Duration = Duration::from_millis(10);
/// Descriptors that should be free for the next peers, and for the program.
const DESCRIPTORS_SPARE: u64 = 256;

/// The refusal of a port that turned us away before we could introduce ourselves.
fn refusal_before_hello(socket: &Socket) -> Refusal {
    let mut bytes = [0; PACKET_BYTES_MAX];
    match socket.receive(&mut bytes) {
        Ok(Received::Packet(length, _)) => match Packet::parse(&bytes[..length]) {
            Ok(Packet::Refuse(refusal)) => refusal,
            Err(PacketError::Version) => Refusal::Version,
            _ => Refusal::Closed,
        },
        _ => Refusal::Closed,
    }
}

/// Raises the soft limit of descriptors before they run out, because descriptors that arrive over a socket would be
/// lost. A new descriptor gets the lowest free number, so its number tells how many there are.
fn ensure_headroom(socket: &Socket) {
    // A hard limit that is too low shows up where a descriptor is really missing.
    let _ = limits::raise_descriptor_limit(socket.number() + DESCRIPTORS_SPARE);
}

impl Port {
    /// Connects to a port and waits for its answer, serving other ports meanwhile.
    ///
    /// The other end answers when it polls. Two ports of one thread use [`Self::connect_start`].
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&mut self, address: &Address, timeout: Duration) -> Result<Peer, ConnectError> {
        let result = self.connect_and_wait(address, timeout);
        // The wait may have dealt with a descriptor that would have woken the program.
        self.signal_if_armed();
        result
    }

    fn connect_and_wait(&mut self, address: &Address, timeout: Duration) -> Result<Peer, ConnectError> {
        let peer = self.begin_connect(address, false)?;

        // A timeout beyond the range of the clock means forever.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            match self.slots.peek(peer) {
                Some(Slot::Ring(_) | Slot::Wire(_)) => return Ok(peer),
                Some(Slot::Connecting(_) | Slot::Calling(_)) => {}
                Some(Slot::Free { last: Some(DisconnectReason::Refused(Refusal::NotAdmitted)) }) => {
                    return Err(ConnectError::NotAdmitted);
                }
                Some(Slot::Free { last: Some(DisconnectReason::Refused(refusal)) }) => {
                    return Err(ConnectError::Refused(*refusal));
                }
                Some(Slot::Free { last: Some(DisconnectReason::NotConnected(error)) }) => return Err(*error),
                _ => return Err(ConnectError::Refused(Refusal::Closed)),
            }
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                let error = self.why_no_answer(peer.index);
                self.end(peer.index, DisconnectReason::Here);
                return Err(error);
            }
            let rest = self.rest_of_sleep(rest);
            self.look_after_sockets(rest).map_err(ConnectError::System)?;
            if self.fabric.is_some() {
                self.look_remote();
            }
            if self.resources.is_full() {
                // Sockets that wait until the program takes events stay ready, so the poller does not sleep.
                std::thread::sleep(FULL_PAUSE);
            }
        }
    }

    /// Begins to connect: [`Event::Connected`] or [`Event::Disconnected`] follows.
    ///
    /// # Errors
    /// [`ConnectError`], when failure is certain at once.
    pub fn connect_start(&mut self, address: &Address) -> Result<Peer, ConnectError> {
        self.begin_connect(address, true)
    }

    fn begin_connect(&mut self, address: &Address, announce: bool) -> Result<Peer, ConnectError> {
        if !self.guard.is_owner() {
            return Err(ConnectError::Forked);
        }
        if !self.is_here(&address.node) {
            let peer = self.begin_call(address, announce)?;
            // An armed port has to wake up for its deadline.
            self.signal_if_armed();
            return Ok(peer);
        }
        self.make_room().map_err(|_| ConnectError::TooManyPeers)?;
        let connecting = self.reach_out(address, announce)?;
        let peer = self.slots.insert(|_| Slot::Connecting(Box::new(connecting)));
        let watched = self.watch_connecting(peer);
        if watched.is_err() {
            self.slots.remove(peer, DisconnectReason::Here);
        }
        watched.map(|()| peer)
    }

    /// Finds a port of this machine, and says hello.
    pub(super) fn reach_out(
        &mut self,
        address: &Address,
        announce: bool,
    ) -> Result<Connecting, ConnectError> {
        if address.port == self.claim.name {
            return Err(ConnectError::OwnPort);
        }
        let socket =
            Socket::connect_entry(&self.directory.socket_path(&address.port)).map_err(
                |error| match error {
                    Errno::NOENT | Errno::CONNREFUSED => ConnectError::NoPort,
                    Errno::ACCESS | Errno::PERM => ConnectError::NotAdmitted,
                    Errno::AGAIN => ConnectError::Refused(Refusal::NoResources),
                    other => ConnectError::System(other),
                },
            )?;
        socket.limit_queue();
        ensure_headroom(&socket);
        // The user of the process that listens there, as attested by the kernel.
        let user = socket.credentials().map_err(ConnectError::System)?.uid;
        let (outbound, file) = self.segment(user).map_err(|error| match error {
            NoMemory::Kept => ConnectError::MemoryKept,
            NoMemory::System(error) => ConnectError::System(error),
        })?;
        let unsent = match self.introduce(&socket, &file) {
            Ok(()) => None,
            // The other end has to accept the connection first.
            Err(Errno::PERM) => Some(file),
            Err(Errno::PIPE | Errno::CONNRESET) => {
                return Err(ConnectError::Refused(refusal_before_hello(&socket)));
            }
            Err(other) => return Err(ConnectError::System(other)),
        };
        if unsent.is_some() {
            self.incoming.timer.set(PAUSE).map_err(ConnectError::System)?;
        }
        Ok(Connecting { socket, outbound, unsent, address: address.clone(), announce })
    }

    /// Has the answer of a port of this machine noticed.
    pub(super) fn watch_connecting(&mut self, peer: Peer) -> Result<(), ConnectError> {
        let watched = match self.slots.peek(peer) {
            Some(Slot::Connecting(connecting)) => self.poller.add(&connecting.socket, tag_of(peer)),
            _ => Ok(()),
        };
        watched.map_err(ConnectError::System)
    }

    /// Says hello, with our segment in `file`.
    fn introduce(&self, socket: &Socket, file: &OwnedFd) -> Result<(), Errno> {
        let hello = Packet::Hello(self.introduction()).to_bytes();
        socket.send(&hello, &[file.as_fd(), self.page_file.as_fd(), self.doorbell.ringing_end()])
    }

    /// Ends a pause: connections are accepted again, and introductions that could not be sent are tried again.
    fn resume(&mut self) {
        self.incoming.timer.drain();
        // The listener is watched already unless this was its pause.
        let _ = self.poller.resume(&self.claim.listener, Tag::Listener.bits());
        for index in self.slots.indices() {
            let Some(connecting) = self.slots.connecting_at(index) else { continue };
            let Some(file) = connecting.unsent.take() else { continue };
            let outcome = match self.slots.peer_at(index).and_then(|peer| self.slots.peek(peer)) {
                Some(Slot::Connecting(connecting)) => self.introduce(&connecting.socket, &file),
                _ => continue,
            };
            // The socket reports the end of a connection. Every other error may pass: not accepted yet, no memory,
            // too many descriptors under way.
            if !matches!(outcome, Ok(()) | Err(Errno::PIPE | Errno::CONNRESET))
                && let Some(connecting) = self.slots.connecting_at(index)
            {
                connecting.unsent = Some(file);
                let _ = self.incoming.timer.set(PAUSE);
            }
        }
    }

    /// Pauses accepting, because no connection can be let in for the moment. Waiting connections wake nothing before
    /// the pause is over.
    fn pause(&self) {
        if self.incoming.timer.set(PAUSE).is_ok() {
            let _ = self.poller.pause(&self.claim.listener, Tag::Listener.bits());
        }
    }

    /// Is there a place for one more peer?
    pub(super) fn make_room(&self) -> Result<(), Refusal> {
        if self.slots.len() >= self.options.peers_max as usize { Err(Refusal::TooManyPeers) } else { Ok(()) }
    }

    /// Is there a place for one more peer of this user?
    pub(super) fn make_room_for(&self, other_user: Option<&OtherUser>) -> Result<(), Refusal> {
        self.make_room()?;
        let Some(user) = other_user else { return Ok(()) };
        let (own, all) = self.slots.count_of(user);
        let is_share = is_within_share(self.options.peers_max as usize, own, all);
        if is_share { Ok(()) } else { Err(Refusal::TooManyPeers) }
    }

    /// The segment to write for a peer of this user.
    fn segment(&mut self, user: u32) -> Result<(Shared, OwnedFd), NoMemory> {
        let length_bytes = self.options.geometry.segment_bytes();
        let other_user = (!is_own_or_root(user)).then_some(user);
        self.account.create(Kind::Segment, length_bytes, other_user)
    }

    fn introduction(&self) -> Introduction {
        Introduction {
            port: self.claim.name.clone(),
            incarnation: self.incarnation,
            message_bytes_max: self.options.message_bytes_max,
            integrity: self.options.integrity,
            geometry: self.options.geometry,
        }
    }

    /// Waits until a socket, a doorbell or a process is ready, and deals with it.
    pub(super) fn look_after_sockets(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        // By place: this happens at every wake-up and must not allocate.
        for place in 0..self.poller.wait(timeout)?.len() {
            let Some(bits) = self.poller.ready().get(place) else { break };
            match Tag::from_bits(*bits) {
                Tag::Wakeup => self.returns.eventfd.drain(),
                Tag::Doorbell => self.doorbell.drain(),
                Tag::Timer => self.resume(),
                // With peers, the next poll looks at what came and what is due.
                Tag::Udp => self.expect_packets(),
                Tag::Clock => {
                    if let Some(fabric) = self.fabric.as_deref_mut() {
                        fabric.drain_timer();
                    }
                }
                Tag::Node => self.hear_node(),
                // Peers that come and go make events. They wait until the program has taken some.
                tag if self.resources.is_full() && !self.is_let_through(tag) => {}
                Tag::Listener => self.accept(),
                Tag::Incoming(number) => self.receive_introduction(number),
                Tag::Peer { index, generation } => {
                    // A tag of an earlier batch may name a peer that has gone since.
                    let is_current = self
                        .slots
                        .peer_at(index)
                        .is_some_and(|peer| peer.generation & 0x3fff_ffff == generation);
                    if is_current {
                        self.read_socket(index);
                    }
                }
            }
        }
        Ok(())
    }

    /// Is a tag dealt with however many events wait? The answer to `connect` is, because `connect` gives out no
    /// events.
    fn is_let_through(&self, tag: Tag) -> bool {
        match tag {
            Tag::Listener => false,
            Tag::Peer { index, .. } => {
                let peer = self.slots.peer_at(index);
                peer.is_some_and(|peer| matches!(self.slots.peek(peer), Some(Slot::Connecting(_))))
            }
            Tag::Wakeup
            | Tag::Doorbell
            | Tag::Timer
            | Tag::Udp
            | Tag::Node
            | Tag::Clock
            | Tag::Incoming(_) => true,
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_MAX {
            match self.claim.listener.accept() {
                Ok(Some(socket)) => {
                    socket.limit_queue();
                    ensure_headroom(&socket);
                    if self.incoming.waiting.len() >= INCOMING_MAX {
                        let (_, oldest) = self.incoming.waiting.remove(0);
                        self.poller.remove(&oldest);
                        self.statistics.refused += 1;
                    }
                    let number = self.incoming.next;
                    self.incoming.next += 1;
                    if self.poller.add(&socket, Tag::Incoming(number).bits()).is_ok() {
                        self.incoming.waiting.push((number, socket));
                    }
                    // Its introduction is often there already.
                    self.receive_introduction(number);
                }
                Ok(None) => return,
                Err(Errno::MFILE)
                    if limits::raise_descriptor_limit(limits::descriptor_limit() + DESCRIPTORS_SPARE)
                        .is_ok() => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // Without a descriptor the connection would wait forever, and wake us again and again.
                    self.incoming.reserve = None;
                    if let Ok(Some(socket)) = self.claim.listener.accept() {
                        self.turn_away(&socket, Refusal::NoResources);
                    }
                    self.incoming.reserve = limits::reserve_descriptor().ok();
                    if self.incoming.reserve.is_none() {
                        self.pause();
                    }
                    return;
                }
                Err(_) => return self.pause(),
            }
        }
    }

    fn turn_away(&mut self, socket: &Socket, refusal: Refusal) {
        self.statistics.refused += 1;
        let _ = socket.send(&Packet::Refuse(refusal).to_bytes(), &[]);
    }

    /// Reads the introduction on an incoming connection. If it is in order, its sender becomes a peer.
    fn receive_introduction(&mut self, number: u64) {
        let Some(place) = self.incoming.waiting.iter().position(|(known, _)| *known == number) else {
            return;
        };
        let mut bytes = [0; PACKET_BYTES_MAX];
        let received = self.incoming.waiting[place].1.receive(&mut bytes);
        if matches!(received, Ok(Received::Nothing)) {
            return;
        }
        let (_, socket) = self.incoming.waiting.remove(place);
        self.poller.remove(&socket);
        let (length, descriptors) = match received {
            Ok(Received::Packet(length, descriptors)) => (length, descriptors),
            Ok(Received::Nothing | Received::Closed) => return,
            Err(Errno::DQUOT | Errno::MFILE) => return self.turn_away(&socket, Refusal::NoResources),
            Err(_) => return self.turn_away(&socket, Refusal::BadOffer),
        };
        let hello = match Packet::parse(&bytes[..length]) {
            Ok(Packet::Hello(hello)) => Ok(hello),
            Err(PacketError::Version) => Err(Refusal::Version),
            _ => Err(Refusal::BadOffer),
        };
        let admitted = hello.and_then(|hello| {
            let credentials = self.admit_incoming(&socket, &hello)?;
            let offer = Offer::open(&hello, descriptors)?;
            Ok((hello, credentials, offer))
        });
        match admitted {
            Ok((hello, credentials, offer)) => self.welcome(socket, hello, credentials, offer),
            Err(refusal) => self.turn_away(&socket, refusal),
        }
    }

    /// Checks the identity of a connecting port, which the kernel attests. The port's own word never counts.
    fn admit_incoming(&self, socket: &Socket, hello: &Introduction) -> Result<Credentials, Refusal> {
        self.make_room()?;
        let credentials = socket.credentials().map_err(|_| Refusal::Unverified)?;
        let other_user = (!is_own_or_root(credentials.uid)).then_some(OtherUser::Local(credentials.uid));
        let is_other_user = other_user.is_some();
        let is_admitted = match self.options.admit {
            Admit::SameUser => !is_other_user,
            Admit::Everyone => true,
            Admit::Group(group) => {
                !is_other_user
                    || credentials.gid == group
                    || socket.groups().is_ok_and(|groups| groups.contains(&group))
            }
        };
        if !is_admitted {
            return Err(Refusal::NotAdmitted);
        }
        self.make_room_for(other_user.as_ref())?;
        if !self.directory.is_owner(&hello.port, credentials) {
            return Err(Refusal::Unverified);
        }
        Ok(credentials)
    }

    fn welcome(&mut self, socket: Socket, hello: Introduction, credentials: Credentials, offer: Offer) {
        let (outbound, file) = match self.segment(credentials.uid) {
            Ok(made) => made,
            Err(NoMemory::Kept) => return self.turn_away(&socket, Refusal::MemoryKept),
            Err(NoMemory::System(_)) => return self.turn_away(&socket, Refusal::NoResources),
        };
        let welcome = Packet::Welcome(self.introduction()).to_bytes();
        let descriptors = [file.as_fd(), self.page_file.as_fd(), self.doorbell.ringing_end()];
        if socket.send(&welcome, &descriptors).is_err() {
            return;
        }
        let peer = self.slots.insert(|_| Slot::Free { last: None });
        self.connected(peer, socket, outbound, hello, credentials, offer, true);
    }

    /// The last step at both ends. From here on messages flow.
    #[expect(clippy::too_many_arguments, reason = "everything that a handshake has gathered, used once")]
    fn connected(
        &mut self,
        peer: Peer,
        socket: Socket,
        outbound: Shared,
        theirs: Introduction,
        credentials: Credentials,
        offer: Offer,
        announce: bool,
    ) {
        let info = PeerInfo {
            address: Address { node: self.node.clone(), port: theirs.port },
            owner: Owner::Local { uid: credentials.uid, pid: credentials.pid },
            incarnation: theirs.incarnation,
            message_bytes_max: theirs.message_bytes_max,
            integrity: theirs.integrity || self.options.integrity,
        };
        let (process, is_dead) = match socket.watch_process() {
            Ok(process) => (Some(process), false),
            // Without a process descriptor only the socket reports the peer's end.
            Err(error) => (None, error == Errno::SRCH),
        };
        let tag = tag_of(peer);
        let watched = self.poller.add(&socket, tag).is_ok();
        if let Some(process) = &process {
            let _ = self.poller.add(process, tag);
        }
        let setup = Setup {
            info,
            uid: credentials.uid,
            socket,
            process,
            outbound,
            inbound: offer.segment,
            page: offer.page,
            doorbell: offer.doorbell,
            own_geometry: self.options.geometry,
            peer_geometry: theirs.geometry,
            message_bytes_max: self.options.message_bytes_max,
            returns: self.returns.clone(),
            guard: self.guard.clone(),
        };
        self.slots.replace(peer, Slot::Ring(Box::new(Connection::new(peer, setup))));
        if !watched {
            // A peer whose end we could not notice is refused.
            return self.end(peer.index, DisconnectReason::Refused(Refusal::NoResources));
        }
        if announce {
            self.resources.events.push_back(Event::Connected(peer));
        }
        if is_dead {
            self.peer_is_gone(peer);
        }
    }

    pub(super) fn take_welcome(
        &mut self,
        peer: Peer,
        theirs: Introduction,
        descriptors: Vec<ReceivedFd>,
    ) -> Result<(), DisconnectReason> {
        let offer = Offer::open(&theirs, descriptors).map_err(DisconnectReason::Refused)?;
        let connecting = match self.slots.replace(peer, Slot::Free { last: None }) {
            Some(Slot::Connecting(connecting)) => *connecting,
            // Called only while connecting.
            _ => return Err(DisconnectReason::Broken),
        };
        let Connecting { socket, outbound, unsent, address, announce } = connecting;
        self.poller.remove(&socket);
        let credentials = socket.credentials().ok().filter(|_| theirs.port == address.port);
        let Some(credentials) = credentials else {
            self.slots.replace(
                peer,
                Slot::Connecting(Box::new(Connecting { socket, outbound, unsent, address, announce })),
            );
            return Err(DisconnectReason::Refused(Refusal::Unverified));
        };
        self.connected(peer, socket, outbound, theirs, credentials, offer, announce);
        Ok(())
    }
}

/// The memory and the doorbell that came with an introduction.
struct Offer {
    segment: Shared,
    page: Shared,
    doorbell: wake::Ringer,
}

impl Offer {
    fn open(theirs: &Introduction, descriptors: Vec<ReceivedFd>) -> Result<Self, Refusal> {
        let [segment, page, doorbell]: [ReceivedFd; 3] =
            descriptors.try_into().map_err(|_: Vec<ReceivedFd>| Refusal::BadOffer)?;
        Ok(Self {
            segment: map(segment, theirs.geometry.segment_bytes())?,
            page: map(page, DOORBELL_BYTES)?,
            doorbell: wake::Ringer::accept(doorbell).map_err(|_| Refusal::BadOffer)?,
        })
    }
}

/// Maps memory that another process made, if it is sealed and has this length.
pub(super) fn map(file: ReceivedFd, length_bytes: usize) -> Result<Shared, Refusal> {
    let mapped = Mapping::accept(&file, length_bytes).map(Shared::new).map_err(|error| match error {
        OfferError::System(Errno::NOMEM | Errno::NOSPC) => Refusal::NoResources,
        _ => Refusal::BadOffer,
    })?;
    // The check has shown that the file is memory, and the mapping keeps it.
    drop(file.into_inner());
    Ok(mapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::options::PortOptions;
    use crate::message::peer::Priority;
    use crate::message::resources::EVENTS_MAX;

    #[test]
    fn connect_gets_its_answer_while_many_events_wait() {
        let place = tempfile::tempdir().expect("a directory");
        let open = || {
            let runtime_directory = Some(place.path().to_owned());
            Port::open(PortOptions { runtime_directory, ..PortOptions::default() }).expect("open")
        };
        let (mut caller, mut server) = (open(), open());
        let nobody = Peer { index: 7, generation: 7 };
        let waiting = || Event::Room { peer: nobody, priority: Priority::Low };
        caller.resources.events.extend(std::iter::repeat_with(waiting).take(EVENTS_MAX));
        let address = server.address();
        let serving = std::thread::spawn(move || (server.wait(Some(Duration::from_secs(10))), server));
        let peer = caller.connect(&address, Duration::from_secs(10)).expect("the answer is heard");
        assert!(matches!(caller.slots.peek(peer), Some(Slot::Ring(_) | Slot::Wire(_))));
        let (event, _server) = serving.join().expect("no panic");
        assert!(matches!(event, Ok(Some(Event::Connected(_)))));
        assert_eq!(caller.resources.events.len(), EVENTS_MAX, "those that waited still do");
    }
}
