//! Link `fabric`: the other end is a program under `bywire run` on another machine, whose engine has it.
//!
//! Two engines share one connection of messages, encrypted by the fabric, and on it a stream for each connection of programs.
//! `matching` finds the two ends, and `connection` moves bytes between the rings of a program and a stream.

mod connection;
mod link;
mod matching;
mod nodes;
mod quiet;
mod required;
mod turns;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use bywire::{
    Address, Event, Geometry, LaneGeometry, OpenError, Owner, Peer, Port, PortName, PortOptions, Priority,
    Reach,
};
use bywire_stream::{Event as StreamEvent, Lane, Refusal, ResetReason, Side, StreamId};
use bywire_sys::socket::Socket;
use bywire_sys::{deferred, names, process, tcp};

use self::connection::{Broken, FarConnection, Offered, WINDOW_BYTES};
use self::link::{Link, MESSAGE_BYTES, Use};
use self::matching::{Action, Answer, Ends, Matching, Question};
use self::nodes::Nodes;
use self::quiet::Quiet;
use crate::connection::Program;
use crate::pairing_client::PairingClient;

/// Events of the port that are handled before the connections have their turn.
const EVENTS_AT_ONCE: usize = 256;
/// An engine that was not there is not called again for this time.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// An engine that a connection requires is called again after this time.
const CALL_SOON: Duration = Duration::from_millis(50);
/// How long a program's connection that requires it waits for the other end. It is reset then.
const REQUIRED_WAIT: Duration = Duration::from_secs(10);
/// Engines that may be connected.
const PEERS_MAX: usize = 2048;

/// Why there is no link `fabric`.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// No port can be opened.
    #[error("cannot open a port for the engines of other machines")]
    Port(#[from] OpenError),
    /// The service of this machine's node does not say which nodes there are, so every address might be one's.
    #[error(
        "the service of this node does not name the nodes of its fabric: see whether `bywire status` answers"
    )]
    Silent,
    /// No thread can be started, or there are no descriptors.
    #[error("the kernel refused what it needs: {0}")]
    System(#[from] std::io::Error),
}

/// The connections whose other ends are on other machines.
#[derive(Debug)]
pub struct Fabric {
    port: Port,
    user: String,
    /// The network namespace of this process.
    namespace: u64,
    nodes: Nodes,
    links: HashMap<Peer, Link>,
    /// The link by which each node is asked, or when its engine was found absent.
    by_node: HashMap<String, Result<Peer, Instant>>,
    matching: Matching,
    /// Ends that programs have offered, and that are not paired. `true`: it is required that they are carried.
    offers: HashMap<u64, (OwnedFd, bool)>,
    /// Memory that programs were offered.
    pairing: HashMap<u64, Offered>,
    connections: HashMap<u64, Entry>,
    /// The names of connections that are looked at in each turn.
    active: Vec<u64>,
    /// The names of the others, by the numbers for which their programs count their news.
    quiet: Quiet,
    /// The programs that have connections.
    programs: Vec<Weak<Program>>,
    /// Connections that require to be carried, by the times when they have waited long enough. The first is due first.
    required: VecDeque<(Instant, u64)>,
    /// Nodes whose engines cannot be asked about such connections now.
    unreached: HashSet<String>,
    /// The addresses of other nodes that the pairing service knows.
    told_nodes: HashSet<IpAddr>,
    /// The message in the making.
    buffer: Vec<u8>,
    counts: FabricCounts,
}

/// Counts of this link, since the engine began.
#[derive(Clone, Copy, Debug, Default)]
pub struct FabricCounts {
    /// Connections that have been carried.
    pub carried_ever: u64,
    /// Bytes that programs have sent.
    pub bytes_sent: u64,
    /// Bytes that programs were sent.
    pub bytes_received: u64,
    /// Connections that required to be carried, and could not be.
    pub unmet: u64,
}

#[derive(Debug)]
struct Entry {
    connection: FarConnection,
    /// The stream that carries it.
    stream: Option<(Peer, StreamId)>,
    /// It was found that the program is ready to leave the kernel.
    is_prepared: bool,
    is_active: bool,
    /// Looks in a row that have found nothing.
    idle_looks: u32,
    /// The number for which its program counts news while it is quiet.
    number: usize,
}

/// Something that an event of a link asks for, once the link's machine can be called again.
enum Next {
    Opened(StreamId, Option<(Ends, Question)>),
    /// The other engine has accepted a stream that is not needed any more.
    Unwanted(StreamId),
    Refused(StreamId, Refusal),
    /// A stream that carries nothing any more has moved. `true`: it has brought bytes that nobody takes.
    Orphan(StreamId, bool),
    /// The connection of this name cannot go on, and the other engine is to be told.
    Broken(u64),
    /// The other engine has ended the stream of this connection.
    Reset(StreamId),
    Closed,
}

impl Fabric {
    /// Opens this user's port for the engines of other machines.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn open() -> Result<Self, FabricError> {
        let user = names::user_name(process::user()).unwrap_or_else(|| process::user().to_string());
        let options = PortOptions {
            name: Some(port_of(&user)),
            reach: Reach::Fabric,
            peers_max: PEERS_MAX as u32,
            spin: Duration::ZERO,
            geometry: geometry(),
            remote_fragment_bytes: MESSAGE_BYTES as u32,
            ..PortOptions::default()
        };
        let port = Port::open(options)?;
        let nodes = Nodes::find()?.ok_or(FabricError::Silent)?;
        let namespace =
            Socket::pair().and_then(|(one, _)| tcp::namespace(&one)).map_err(std::io::Error::from)?;
        Ok(Self {
            port,
            user,
            namespace,
            matching: Matching::default(),
            told_nodes: nodes.others(),
            nodes,
            links: HashMap::new(),
            by_node: HashMap::new(),
            offers: HashMap::new(),
            pairing: HashMap::new(),
            connections: HashMap::new(),
            active: Vec::new(),
            quiet: Quiet::default(),
            programs: Vec::new(),
            required: VecDeque::new(),
            unreached: HashSet::new(),
            buffer: vec![0; MESSAGE_BYTES],
            counts: FabricCounts::default(),
        })
    }

    /// The number of connections that it has or was offered.
    pub fn count(&self) -> usize {
        self.offers.len() + self.pairing.len() + self.connections.len()
    }

    /// Returns whether there is a connection that may have something to do.
    pub fn carries(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Returns whether a program has to be looked at again soon, as it was in a call just now.
    pub fn is_waiting(&self) -> bool {
        self.active().any(|entry| entry.connection.is_about_to_read())
    }

    /// The number of connections that streams carry now.
    pub fn carried(&self) -> usize {
        self.connections.values().filter(|entry| entry.stream.is_some()).count()
    }

    /// The number of streams that this engine or the other one is not done with.
    pub fn streams(&self) -> usize {
        self.links.values().map(|link| link.streams.occupied()).sum()
    }

    /// See [`FabricCounts`].
    pub fn counts(&self) -> FabricCounts {
        self.counts
    }

    /// Prepares to sleep on its descriptor. `false`: there is something to do.
    pub fn arm(&mut self) -> bool {
        self.follow_hints();
        !self.active().any(Entry::has_news) && self.port.arm()
    }

    /// A program has offered its end of a connection, and may require that it is carried. `Err`: the other end is on no node of
    /// the fabric.
    pub fn offer(
        &mut self,
        name: u64,
        socket: OwnedFd,
        is_required: bool,
        pairing: &mut PairingClient,
    ) -> Result<(), OwnedFd> {
        let offered = self.consider(name, socket, is_required, pairing);
        match &offered {
            Ok(()) if is_required => self.required.push_back((Instant::now() + REQUIRED_WAIT, name)),
            Err(_) if is_required => self.counts.unmet += 1,
            _ => {}
        }
        offered
    }

    fn consider(
        &mut self,
        name: u64,
        socket: OwnedFd,
        is_required: bool,
        pairing: &mut PairingClient,
    ) -> Result<(), OwnedFd> {
        let Ok(identity) = tcp::identify(&socket) else { return Err(socket) };
        // These addresses may name other machines in another network namespace.
        if identity.namespace != self.namespace {
            return Err(socket);
        }
        let Some(node) = self.nodes.at(identity.remote.ip()) else { return Err(socket) };
        self.matching.is_on(self.nodes.own().unwrap_or_default());
        if self.link_to(&node, CALL_AGAIN).is_none() {
            if !is_required {
                return Err(socket);
            }
            self.unreached.insert(node.clone());
        }
        let ends = Ends { local: canonical(identity.local), remote: canonical(identity.remote) };
        self.end_stale(ends, pairing);
        let Some(action) = self.matching.offered(name, ends, &node, is_required) else { return Err(socket) };
        self.offers.insert(name, (socket, is_required));
        self.act(action, pairing);
        Ok(())
    }

    /// Forgets an end with these addresses that is not carried and has ended in the kernel, as the addresses are used anew.
    fn end_stale(&mut self, ends: Ends, pairing: &mut PairingClient) {
        let Some(name) = self.matching.name_of(ends) else { return };
        let is_ended =
            |socket: BorrowedFd<'_>| !tcp::identify(&socket).is_ok_and(|found| found.is_established);
        if self.offers.get(&name).is_some_and(|(socket, _)| is_ended(socket.as_fd())) {
            self.refuse(name, pairing);
        } else if self.pairing.get(&name).is_some_and(|offered| is_ended(offered.as_fd()))
            || self
                .connections
                .get(&name)
                .is_some_and(|entry| entry.stream.is_none() && is_ended(entry.connection.as_fd()))
        {
            self.lose(name, pairing);
        }
    }

    /// Returns whether the connection of this name is one of this link's.
    pub fn has(&self, name: u64) -> bool {
        self.offers.contains_key(&name)
            || self.pairing.contains_key(&name)
            || self.connections.contains_key(&name)
    }

    /// The service has paired a connection with its program.
    pub fn paired(
        &mut self,
        name: u64,
        program: Option<Rc<Program>>,
        segment: &[OwnedFd],
        pairing: &mut PairingClient,
    ) {
        let Some(offered) = self.pairing.remove(&name) else { return };
        self.programs.retain(|known| known.strong_count() > 0);
        if let Some(program) = &program
            && !self.programs.iter().any(|known| known.as_ptr() == Rc::as_ptr(program))
        {
            self.programs.push(Rc::downgrade(program));
        }
        let connection = match program {
            Some(program) => offered.paired(program, segment),
            None => Err(offered),
        };
        match connection {
            Ok(connection) => {
                self.connections.insert(name, Entry::new(connection));
                self.activate(name);
            }
            Err(offered) => {
                offered.release();
                self.matching.end(name);
                pairing.end(name, 0);
            }
        }
    }

    /// An offer is not taken after all.
    fn refuse(&mut self, name: u64, pairing: &mut PairingClient) {
        pairing.refuse(name);
        self.refused(name);
    }

    /// The connection of this name is not paired after all.
    pub fn refused(&mut self, name: u64) {
        self.matching.end(name);
        self.forget_questions(name);
        self.offers.remove(&name).into_iter().for_each(|(socket, _)| deferred::close_socket(socket));
        self.pairing.remove(&name).into_iter().for_each(Offered::release);
    }

    /// The program of this connection has ended it, or has ended itself.
    pub fn gone(&mut self, name: u64, pairing: &mut PairingClient) {
        self.activate(name);
        match self.connections.get_mut(&name) {
            Some(entry) if entry.stream.is_some() && !entry.connection.is_inherited() => {
                entry.connection.note_gone();
            }
            Some(entry) if entry.stream.is_some() => self.lose(name, pairing),
            // It may have sent something, for which the other engine is waited for.
            Some(entry) if entry.connection.is_required() && !entry.connection.is_inherited() => {
                entry.connection.note_gone();
            }
            Some(entry) if entry.connection.is_required() => self.lose(name, pairing),
            Some(_) => self.end(name, pairing),
            None => self.refused(name),
        }
    }

    /// Does what there is to do. Returns whether there was anything.
    pub fn progress(&mut self, pairing: &mut PairingClient) -> bool {
        let mut has_moved = false;
        let (mut next, mut count) = (self.port.poll(), 0);
        while let Some(event) = next {
            has_moved = true;
            count += 1;
            self.handle(event, pairing);
            next = if count < EVENTS_AT_ONCE { self.port.poll_arrived() } else { None };
        }
        has_moved |= self.progress_connections(pairing);
        if self.required.is_empty() {
            self.unreached.clear();
        } else {
            has_moved |= self.end_unmet(pairing);
            self.call_again(pairing);
        }
        has_moved |= self.transmit(pairing);
        if !has_moved {
            self.links.values_mut().for_each(|link| link.streams.flush());
            has_moved = self.transmit(pairing);
        }
        has_moved
    }

    fn handle(&mut self, event: Event, pairing: &mut PairingClient) {
        match event {
            Event::Connected(peer) => self.connected(peer, pairing),
            Event::Disconnected { peer, .. } => self.disconnected(peer, pairing),
            Event::Message(message) => {
                let lane = if message.priority == Priority::High { Lane::High } else { Lane::Low };
                self.receive(message.peer, lane, &message.payload, pairing);
                self.port.recycle(message.payload);
            }
            // Longer messages than fit into an event are against the rules of this protocol.
            Event::BufferNeeded { peer, .. } => self.drop_link(peer, pairing),
            _ => {}
        }
    }

    /// The link to a node, which is called if there is none. `None`: its engine was absent within this time.
    fn link_to(&mut self, node: &str, call_again: Duration) -> Option<Peer> {
        match self.by_node.get(node) {
            Some(Ok(peer)) => return Some(*peer),
            Some(Err(since)) if since.elapsed() < call_again => return None,
            _ => {}
        }
        let address = Address { node: node.to_owned(), port: port_of(&self.user) };
        let called = self.port.connect_start(&address).map_err(|_| Instant::now());
        if let Ok(peer) = called {
            self.links.insert(peer, Link::new(peer, node.to_owned(), Side::First));
        }
        self.by_node.insert(node.to_owned(), called);
        called.ok()
    }

    /// Another engine has called, or has answered.
    fn connected(&mut self, peer: Peer, pairing: &mut PairingClient) {
        let Some(info) = self.port.peer_info(peer) else { return };
        let node = info.address.node.clone();
        // Only engines of other machines serve ends there, and each of them those of its own user. Any user may have taken a
        // port's name, also of one that was called.
        let is_engine = matches!(&info.owner, Owner::Remote { user } if *user == self.user)
            && info.address.port == port_of(&self.user);
        let is_known = self.links.contains_key(&peer);
        if !is_engine || !is_known && self.links.len() >= PEERS_MAX {
            return self.drop_link(peer, pairing);
        }
        if is_known {
            return;
        }
        self.links.insert(peer, Link::new(peer, node.clone(), Side::Second));
        if !matches!(self.by_node.get(&node), Some(Ok(_))) {
            self.by_node.insert(node.clone(), Ok(peer));
            self.reached(&node, pairing);
        }
    }

    fn disconnected(&mut self, peer: Peer, pairing: &mut PairingClient) {
        let Some(link) = self.links.remove(&peer) else { return };
        let other = self.links.values().find(|other| other.node == link.node).map(|other| other.peer);
        if self.by_node.get(&link.node) == Some(&Ok(peer)) {
            self.by_node.insert(link.node.clone(), other.ok_or_else(Instant::now));
        }
        let names: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, entry)| entry.stream.is_some_and(|(its, _)| its == peer))
            .map(|(name, _)| *name)
            .collect();
        names.into_iter().for_each(|name| self.lose(name, pairing));
        // Questions about the others may have been on this link.
        for name in self.matching.names_of_node(&link.node) {
            let is_patient = self
                .connections
                .get(&name)
                .is_some_and(|entry| entry.stream.is_none() && entry.connection.is_required())
                || self.pairing.get(&name).is_some_and(Offered::is_required);
            if is_patient {
                // The engine may be another one in a moment.
                self.matching.unanswered(name);
                self.unreached.insert(link.node.clone());
            } else if self.offers.contains_key(&name) {
                self.refuse(name, pairing);
            } else if self.connections.get(&name).is_none_or(|entry| entry.stream.is_none()) {
                self.lose(name, pairing);
            }
        }
    }

    /// Ends a link whose other side breaks the rules.
    fn drop_link(&mut self, peer: Peer, pairing: &mut PairingClient) {
        self.port.disconnect(peer);
        self.disconnected(peer, pairing);
    }

    fn receive(&mut self, peer: Peer, lane: Lane, message: &[u8], pairing: &mut PairingClient) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let Link { streams, uses, .. } = link;
        let mut ends =
            EndsOfLink { peer, connections: &mut self.connections, matching: &mut self.matching, uses };
        let (mut nexts, mut touched) = (Vec::new(), Vec::new());
        let (mut received_bytes, mut accepted) = (0, 0);
        let received = streams.receive(lane, message, |event| {
            match event {
                StreamEvent::Bytes { bytes, .. } => received_bytes += bytes.len() as u64,
                StreamEvent::Accepted { .. } => accepted += 1,
                _ => {}
            }
            nexts.extend(ends.note(event, &mut touched));
        });
        self.counts.carried_ever += accepted;
        self.counts.bytes_received += received_bytes;
        for name in touched {
            if let Some(entry) = self.connections.get_mut(&name) {
                entry.connection.wake();
            }
            self.activate(name);
        }
        for next in nexts {
            self.follow(peer, next, pairing);
        }
        if received.is_err() {
            self.drop_link(peer, pairing);
        }
    }

    fn follow(&mut self, peer: Peer, next: Next, pairing: &mut PairingClient) {
        if let Next::Opened(_, Some((ends, _))) = &next {
            self.end_stale(ends.mirrored(), pairing);
        }
        let Some(link) = self.links.get_mut(&peer) else { return };
        match next {
            Next::Opened(stream, description) => {
                let (answer, action) = match description {
                    Some((ends, question)) => self.matching.asked(&link.node, ends, question),
                    None => (Answer::Refuse(Refusal::Mismatch), None),
                };
                match answer {
                    Answer::Accept(name) => {
                        let accepted = link.streams.accept(stream, WINDOW_BYTES);
                        match self.connections.get_mut(&name) {
                            Some(entry) if accepted.is_ok() => {
                                link.uses.insert(stream, Use::Connection(name));
                                entry.begin(peer, stream);
                                entry.connection.wake();
                                self.counts.carried_ever += 1;
                            }
                            _ => self.lose(name, pairing),
                        }
                        self.activate(name);
                    }
                    Answer::Refuse(reason) => _ = link.streams.refuse(stream, reason),
                }
                if let Some(action) = action {
                    self.act(action, pairing);
                }
            }
            Next::Unwanted(stream) => _ = link.streams.reset(stream, ResetReason::Aborted),
            Next::Refused(stream, reason) => {
                if let Some(Use::Question(name, question)) = link.uses.remove(&stream)
                    && let Some(action) = self.matching.refused(name, question, reason)
                {
                    self.act(action, pairing);
                }
            }
            Next::Orphan(stream, is_lost) => link.check_orphan(stream, is_lost),
            Next::Broken(name) => self.lose(name, pairing),
            Next::Reset(stream) => {
                if let Some(Use::Connection(name)) = link.uses.remove(&stream) {
                    self.lose(name, pairing);
                }
            }
            Next::Closed => self.drop_link(peer, pairing),
        }
    }

    fn act(&mut self, action: Action, pairing: &mut PairingClient) {
        match action {
            Action::Ask(name, question) => {
                let Some((ends, node)) = self.matching.ends(name) else { return };
                match self.by_node.get(node) {
                    Some(Ok(peer)) if let Some(link) = self.links.get_mut(peer) => {
                        link.ask(name, ends, question);
                    }
                    _ => self.matching.unanswered(name),
                }
            }
            Action::Pair(name) => {
                let Some((socket, is_required)) = self.offers.remove(&name) else { return };
                match Offered::new(socket, is_required) {
                    Ok((offered, files)) => {
                        self.pairing.insert(name, offered);
                        pairing.offer_both(name, files);
                    }
                    Err((socket, _)) => {
                        deferred::close_socket(socket);
                        self.matching.end(name);
                        pairing.refuse(name);
                    }
                }
            }
        }
    }

    fn transmit(&mut self, pairing: &mut PairingClient) -> bool {
        let (mut has_sent, mut lost) = (false, Vec::new());
        for link in self.links.values_mut() {
            let connections = &self.connections;
            let sent_bytes = &mut self.counts.bytes_sent;
            let read = |name: u64, offset: u64, target: &mut [u8]| {
                *sent_bytes += target.len() as u64;
                if let Some(entry) = connections.get(&name) {
                    entry.connection.copy(offset, target);
                }
            };
            match link.transmit(&mut self.port, WINDOW_BYTES, &mut self.buffer, read) {
                Ok(sent) => has_sent |= sent,
                Err(_) => lost.push(link.peer),
            }
        }
        lost.into_iter().for_each(|peer| self.drop_link(peer, pairing));
        has_sent
    }

    /// The connection is over for the engine. Its program goes on in the kernel, if it goes on.
    fn end(&mut self, name: u64, pairing: &mut PairingClient) {
        self.matching.end(name);
        self.forget_questions(name);
        if let Some(entry) = self.remove(name) {
            entry.connection.release();
            pairing.end(name, 0);
        }
    }

    /// The connection cannot be carried any more. It is reset, unless nothing of it has left the kernel.
    fn lose(&mut self, name: u64, pairing: &mut PairingClient) {
        self.matching.end(name);
        self.forget_questions(name);
        if let Some(offered) = self.pairing.remove(&name) {
            // The service pairs it first, and then hears of the end.
            offered.release();
            pairing.end(name, 0);
        }
        let Some(entry) = self.remove(name) else { return };
        if let Some((peer, stream)) = entry.stream
            && let Some(link) = self.links.get_mut(&peer)
        {
            link.uses.remove(&stream);
            let _ = link.streams.reset(stream, entry.connection.reset_reason());
        }
        entry.connection.lose();
        pairing.end(name, 0);
    }

    fn forget_questions(&mut self, name: u64) {
        self.links.values_mut().for_each(|link| link.ask_no_more(name));
    }

    /// The engine ends: connections that have left the kernel are reset.
    pub fn stop(mut self, pairing: &mut PairingClient) {
        self.links.values_mut().for_each(|link| link.streams.shut_down(ResetReason::Stopped));
        self.transmit(pairing);
        let names: Vec<u64> = self.connections.keys().copied().collect();
        names.into_iter().for_each(|name| self.lose(name, pairing));
        self.pairing.drain().for_each(|(_, offered)| offered.release());
        self.offers.drain().for_each(|(_, (socket, _))| deferred::close_socket(socket));
    }
}

impl AsFd for Fabric {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

impl Entry {
    fn new(connection: FarConnection) -> Self {
        Self { connection, stream: None, is_prepared: false, is_active: false, idle_looks: 0, number: 0 }
    }

    /// A stream carries the connection from here on.
    fn begin(&mut self, peer: Peer, stream: StreamId) {
        self.stream = Some((peer, stream));
        self.connection.begin();
    }

    fn has_news(&self) -> bool {
        match self.stream {
            Some(_) => self.connection.has_news(),
            None => !self.is_prepared && self.connection.is_prepared(),
        }
    }
}

/// The connections of a link, while its machine receives a message and cannot be called.
struct EndsOfLink<'a> {
    peer: Peer,
    connections: &'a mut HashMap<u64, Entry>,
    matching: &'a mut Matching,
    uses: &'a mut HashMap<StreamId, Use>,
}

impl EndsOfLink<'_> {
    /// Does what an event asks for, as far as the machine is not needed. Returns what is left to do. `touched` gets the names of
    /// connections whose programs may have to be woken.
    fn note(&mut self, event: StreamEvent<'_>, touched: &mut Vec<u64>) -> Option<Next> {
        let stream = match event {
            StreamEvent::Ready => return None,
            StreamEvent::Opened { stream, description } => {
                return Some(Next::Opened(stream, Ends::of_description(description)));
            }
            // Bytes of it may follow in the same message.
            StreamEvent::Accepted { stream } => return self.accepted(stream, touched),
            StreamEvent::Refused { stream, reason } => return Some(Next::Refused(stream, reason)),
            StreamEvent::Reset { stream, .. } => return Some(Next::Reset(stream)),
            StreamEvent::Closed { .. } => return Some(Next::Closed),
            StreamEvent::Started { stream, .. }
            | StreamEvent::Bytes { stream, .. }
            | StreamEvent::Half { stream, .. }
            | StreamEvent::Back { stream, .. }
            | StreamEvent::BackAsked { stream, .. }
            | StreamEvent::Drained { stream, .. } => stream,
        };
        let name = match self.uses.get(&stream)? {
            Use::Connection(name) => *name,
            Use::Orphan { stopped_at } => {
                let is_lost = match (event, stopped_at) {
                    (StreamEvent::Bytes { .. }, None) => true,
                    (
                        StreamEvent::Half { offset, .. } | StreamEvent::Back { offset, .. },
                        Some(stopped_at),
                    ) => offset > *stopped_at,
                    _ => false,
                };
                return Some(Next::Orphan(stream, is_lost));
            }
            Use::Question(..) => return None,
        };
        let connection = &mut self.connections.get_mut(&name)?.connection;
        let done = match event {
            StreamEvent::Started { offset, .. } => connection.started(offset),
            StreamEvent::Bytes { bytes, .. } => connection.received(bytes),
            StreamEvent::Half { .. } => connection.half(),
            StreamEvent::Back { offset, .. } => connection.back(offset),
            StreamEvent::BackAsked { offset, .. } => connection.back_asked(offset),
            StreamEvent::Drained { offset, .. } => connection.drained(offset),
            _ => Ok(()),
        };
        if touched.last() != Some(&name) {
            touched.push(name);
        }
        done.err().map(|Broken| Next::Broken(name))
    }

    /// The other engine has accepted a stream of ours, which carries its connection from here on.
    fn accepted(&mut self, stream: StreamId, touched: &mut Vec<u64>) -> Option<Next> {
        let name = match self.uses.remove(&stream) {
            Some(Use::Question(name, Question::Carry)) if self.matching.accepted(name) => name,
            _ => return Some(Next::Unwanted(stream)),
        };
        let Some(entry) = self.connections.get_mut(&name) else { return Some(Next::Unwanted(stream)) };
        entry.begin(self.peer, stream);
        self.uses.insert(stream, Use::Connection(name));
        touched.push(name);
        None
    }
}

/// The port of a user's engine. The user's name stands in it, so each user of a machine has one.
fn port_of(user: &str) -> PortName {
    format!("engine-{user}").parse().unwrap_or(PortName::Number(u32::MAX))
}

/// Memory for messages that wait to be received.
fn geometry() -> Geometry {
    let lane = LaneGeometry { slots: 1024, bulk_bytes: 4 << 20 };
    let reply = Geometry::default().lanes[0];
    Geometry { lanes: [reply, lane, lane], ..Geometry::default() }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
