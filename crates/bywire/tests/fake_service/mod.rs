//! A fake of a node's service and of the network between nodes: a thread that answers the ports of several nodes. Nodes are
//! runtime directories of this process, and packets go over loopback.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bywire_sys::listener::Listener;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::{process, wake};
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::{SECRET_BYTES, Security, Side};
use bywire_wire::service::{
    Answers, End, Identity, Introduction, NotConnected, Notice, PACKET_BYTES_MAX, Request, SOCKET_NAME,
    Terms, from_bytes, to_bytes,
};

/// What every port of a node is said to be of.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: &'static str,
    pub directory: PathBuf,
    pub user: String,
}

/// How the service behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    pub security: Security,
    /// Packets are sent to an address without a receiver.
    pub is_blocked: bool,
    /// It knows of no process whether it lives.
    pub is_ignorant: bool,
}

impl From<Security> for Behaviour {
    fn from(security: Security) -> Self {
        Self { security, is_blocked: false, is_ignorant: false }
    }
}

/// The service of all nodes. It ends when this is dropped.
pub struct FakeService {
    stop: Arc<(AtomicBool, wake::Eventfd)>,
    thread: Option<JoinHandle<()>>,
}

impl FakeService {
    pub fn new(nodes: &[Node], behaviour: impl Into<Behaviour>) -> Self {
        let stop = Arc::new((AtomicBool::new(false), wake::Eventfd::new().expect("eventfd")));
        let listeners: Vec<_> = nodes
            .iter()
            .map(|node| Listener::bind(&node.directory.join(SOCKET_NAME)).expect("bound"))
            .collect();
        let mut work = Work {
            nodes: nodes.to_vec(),
            behaviour: behaviour.into(),
            listeners,
            ports: HashMap::new(),
            offers: HashMap::new(),
            connections: Vec::new(),
            next: 1000,
        };
        let told = stop.clone();
        let thread = Some(std::thread::spawn(move || work.run(&told.0, &told.1)));
        Self { stop, thread }
    }
}

impl Drop for FakeService {
    fn drop(&mut self) {
        // Relaxed: the thread's wake-up by the eventfd comes after this in any case.
        self.stop.0.store(true, Ordering::Relaxed);
        self.stop.1.signal();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, None | Some(Ok(()))), "the service has failed");
    }
}

struct Work {
    nodes: Vec<Node>,
    behaviour: Behaviour,
    listeners: Vec<Listener>,
    ports: HashMap<u64, Known>,
    offers: HashMap<u32, Offer>,
    connections: Vec<[End1; 2]>,
    next: u64,
}

/// A port and its number for a connection.
type End1 = (u64, u32);

struct Known {
    socket: Socket,
    node: usize,
    identity: Option<Identity>,
    udp_port: u16,
    is_reachable: bool,
}

struct Offer {
    caller: u64,
    request: u32,
    target: u64,
    introduction: Introduction,
}

const STOP: u64 = u64::MAX;

impl Work {
    fn run(&mut self, is_over: &AtomicBool, eventfd: &wake::Eventfd) {
        let mut poller = Poller::new().expect("epoll");
        poller.add(eventfd, STOP).expect("watched");
        for (place, listener) in self.listeners.iter().enumerate() {
            poller.add(listener, place as u64).expect("watched");
        }
        // Relaxed: only this word is shared.
        while !is_over.load(Ordering::Relaxed) {
            let ready = poller.wait(Some(Duration::from_secs(1))).expect("wait").to_vec();
            for tag in ready {
                match tag {
                    STOP => {}
                    node if (node as usize) < self.listeners.len() => self.accept(node as usize, &poller),
                    port => self.hear(port, &poller),
                }
            }
        }
        for node in &self.nodes {
            let _ = std::fs::remove_file(node.directory.join(SOCKET_NAME));
        }
    }

    fn accept(&mut self, node: usize, poller: &Poller) {
        while let Some(socket) = self.listeners[node].accept().expect("accept") {
            self.next += 1;
            poller.add(&socket, self.next).expect("watched");
            let known = Known { socket, node, identity: None, udp_port: 0, is_reachable: false };
            self.ports.insert(self.next, known);
        }
    }

    fn hear(&mut self, port: u64, poller: &Poller) {
        loop {
            let Some(known) = self.ports.get(&port) else { return };
            let mut bytes = [0; PACKET_BYTES_MAX];
            match known.socket.receive(&mut bytes) {
                Ok(Received::Packet(length, _)) => {
                    let request = from_bytes(&bytes[..length]).expect("a request");
                    self.serve(port, request);
                }
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) | Err(_) => {
                    poller.remove(&known.socket);
                    self.ports.remove(&port);
                    return self.end(port, None, End::PeerEnded);
                }
            }
        }
    }

    fn tell(&self, port: u64, notice: &Notice) {
        if let Some(known) = self.ports.get(&port) {
            // A port that has gone is noticed by its socket.
            let _ = known.socket.send(&to_bytes(notice).expect("a notice"), &[]);
        }
    }

    /// Ends connections of a port: all, or the one with this number of its.
    fn end(&mut self, port: u64, number: Option<u32>, reason: End) {
        let is_it = |end: &End1| end.0 == port && number.is_none_or(|number| end.1 == number);
        let (ended, rest) =
            std::mem::take(&mut self.connections).into_iter().partition(|ends| ends.iter().any(is_it));
        self.connections = rest;
        let ended: Vec<[End1; 2]> = ended;
        for ends in ended {
            let (other, connection) = if is_it(&ends[0]) { ends[1] } else { ends[0] };
            self.tell(other, &Notice::Ended { connection, reason });
        }
    }

    fn serve(&mut self, port: u64, request: Request) {
        match request {
            Request::Register { port: name, incarnation, udp_port, is_reachable, .. } => {
                let known = self.ports.get_mut(&port).expect("it has just spoken");
                let node = &self.nodes[known.node];
                let (user, groups) = (node.user.clone(), vec!["toys".to_owned()]);
                let node = node.name.to_owned();
                let key = PublicKey([0; 32]);
                let node_name = node.clone();
                known.identity =
                    Some(Identity { node: node_name, key, port: name, user, groups, incarnation });
                (known.udp_port, known.is_reachable) = (udp_port, is_reachable);
                self.tell(port, &Notice::Registered { node });
            }
            Request::Connect { request, node, port: name, introduction } => {
                self.connect(port, request, &node, &name, introduction);
            }
            Request::Accept { offer, introduction } => self.establish(port, offer, introduction),
            Request::Decline { offer, refusal } => {
                if let Some(Offer { caller, request, .. }) = self.offers.remove(&offer) {
                    self.tell(
                        caller,
                        &Notice::NotConnected { request, reason: NotConnected::Refused(refusal) },
                    );
                }
            }
            Request::Release { connection } => self.end(port, Some(connection), End::PeerReleased),
            Request::Inquire { connection } if !self.behaviour.is_ignorant => {
                self.tell(port, &Notice::Alive { connection });
            }
            Request::Inquire { .. }
            | Request::Blocked { .. }
            | Request::Status { .. }
            | Request::Reload { .. }
            | Request::Invite { .. }
            | Request::Ping { .. } => {}
        }
    }

    fn connect(&mut self, caller: u64, request: u32, node: &str, name: &str, introduction: Introduction) {
        let not = |reason| Notice::NotConnected { request, reason };
        let Some(place) = self.nodes.iter().position(|known| known.name == node) else {
            return self.tell(caller, &not(NotConnected::UnknownNode));
        };
        let is_it = |known: &Known| {
            known.node == place
                && known.is_reachable
                && known.identity.as_ref().is_some_and(|identity| identity.port == name)
        };
        let Some(target) = self.ports.iter().find(|(_, known)| is_it(known)).map(|(number, _)| *number)
        else {
            return self.tell(caller, &not(NotConnected::NoPort));
        };
        self.next += 1;
        let offer = self.next as u32;
        let peer = self.ports[&caller].identity.clone().expect("registered");
        self.offers.insert(offer, Offer { caller, request, target, introduction });
        self.tell(target, &Notice::Offer { offer, peer, introduction });
    }

    fn establish(&mut self, acceptor: u64, number: u32, introduction: Introduction) {
        let Some(offer) = self.offers.remove(&number).filter(|offer| offer.target == acceptor) else {
            return;
        };
        if !self.ports.contains_key(&offer.caller) {
            return self.tell(acceptor, &Notice::Withdrawn { offer: number });
        }
        let mut secret = [0; SECRET_BYTES];
        process::random(&mut secret).expect("random");
        let terms = |answers, side, peer: &Known, introduction| {
            Notice::Established(Box::new(Terms {
                answers,
                side,
                security: self.behaviour.security,
                secret,
                // No process has the discard port.
                path: SocketAddr::new(
                    Ipv4Addr::LOCALHOST.into(),
                    if self.behaviour.is_blocked { 9 } else { peer.udp_port },
                )
                .into(),
                peer: peer.identity.clone().expect("registered"),
                introduction,
                route_bytes: 1472,
            }))
        };
        let (at_caller, at_acceptor) = (
            terms(Answers::Request(offer.request), Side::Initiator, &self.ports[&acceptor], introduction),
            terms(Answers::Offer(number), Side::Responder, &self.ports[&offer.caller], offer.introduction),
        );
        self.tell(offer.caller, &at_caller);
        self.tell(acceptor, &at_acceptor);
        let ends = [(offer.caller, offer.introduction.connection), (acceptor, introduction.connection)];
        self.connections.push(ends);
    }
}

/// A node with this directory, whose ports are of this process's user.
pub fn node(name: &'static str, directory: &Path) -> Node {
    let user = bywire_sys::names::user_name(process::user()).expect("this user has a name");
    Node { name, directory: directory.to_owned(), user }
}
