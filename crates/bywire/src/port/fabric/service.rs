//! The client of this machine's node: its socket, and when to try it again.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use bywire_sys::socket::{Received, Socket};
use bywire_sys::udp::UdpSocket;
use bywire_sys::{Errno, clock};
use bywire_wire::service::{
    Kept, Malformed, Notice, PACKET_BYTES_MAX, Request, SOCKET_NAME, Unregistered, VERSION, from_bytes,
    parts, to_bytes,
};

use zeroize::Zeroize;

use crate::message::address::PortName;
use crate::message::error::NoFabric;
use crate::shm::connection::is_own_or_root;
use crate::shm::runtime::RuntimeDirectory;

/// The first and the longest pause before a lost node is tried again.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// How soon a node whose backlog is full is called again by a program that waits for it, …
const AWAITED_PAUSE_NS: u64 = 1_000_000;
/// … and how soon by one that does not wait.
const BUSY_PAUSE_NS: u64 = 10_000_000;

/// How soon packets are sent again for which the node's socket had no room. The same holds for a registration, if the node takes
/// no descriptors before it has accepted the call.
const FLUSH_PAUSE_NS: u64 = 10_000_000;

/// The description of a port for its registration.
pub(super) struct Registration<'port> {
    pub port: &'port PortName,
    pub incarnation: u64,
    pub is_reachable: bool,
    pub kept: Vec<Kept>,
    pub udp: &'port UdpSocket,
}

/// The connection to the node.
pub(super) struct Service {
    path: PathBuf,
    socket: Option<Socket>,
    is_known: bool,
    pause: Duration,
    again_at_ns: Option<u64>,
    /// Packets that the node has to have and has not taken yet, and when they are tried again.
    unsent: VecDeque<Unsent>,
    /// What the end of a connection makes needless of them.
    subjects: HashSet<Subject>,
    flush_at_ns: Option<u64>,
}

/// A packet that the node has to have. A copy of the port's UDP socket goes with its registration.
struct Unsent {
    bytes: Vec<u8>,
    udp: Option<OwnedFd>,
    subject: Option<Subject>,
}

/// What a packet is about that the end of its connection makes needless.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    /// A request for the connection with this number. The node does not know it yet.
    Connect(u32),
    /// A question about it.
    Inquire(u32),
}

impl Service {
    pub fn new(directory: &RuntimeDirectory) -> Self {
        let path = directory.path().join(SOCKET_NAME);
        Self {
            path,
            socket: None,
            is_known: false,
            pause: PAUSE_FIRST,
            again_at_ns: None,
            unsent: VecDeque::new(),
            subjects: HashSet::new(),
            flush_at_ns: None,
        }
    }

    pub fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Has the node answered the registration?
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// When the node has to be tried again.
    pub fn again_at_ns(&self) -> Option<u64> {
        self.again_at_ns
    }

    /// When something is to be tried again.
    pub fn due_at_ns(&self) -> Option<u64> {
        self.again_at_ns.or(self.flush_at_ns)
    }

    /// Calls the node and registers. [`Notice::Registered`] or [`Notice::Refused`] follows. A call that the node has not
    /// accepted yet keeps its place. `false`: the node's backlog is full, and [`Self::call_again`] follows.
    pub fn register(&mut self, registration: Registration<'_>) -> Result<bool, NoFabric> {
        let socket = match Socket::connect_entry(&self.path) {
            Ok(socket) => socket,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::ACCESS | Errno::PERM) => return Err(NoFabric::OtherUser),
            Err(_) => return Err(NoFabric::NotRunning),
        };
        // As attested by the kernel, because the listening process vouches for the identity of all others.
        if !socket.credentials().is_ok_and(|node| is_own_or_root(node.uid)) {
            return Err(NoFabric::OtherUser);
        }
        let Registration { port, incarnation, is_reachable, kept, udp } = registration;
        let udp_port = udp.local_address().map_err(|_| NoFabric::Silent)?.port();
        let (version, port) = (VERSION, port.to_string());
        let parts = parts(kept);
        let last = parts.len() - 1;
        let packets = parts.into_iter().enumerate().map(|(place, kept)| {
            let (port, is_last) = (port.clone(), place == last);
            to_bytes(&Request::Register { version, port, incarnation, is_reachable, udp_port, kept, is_last })
        });
        let packets = packets.map(|packet| packet.map(|bytes| Unsent { bytes, udp: None, subject: None }));
        let mut packets: VecDeque<_> = packets.collect::<Result<_, _>>().map_err(|_| NoFabric::Malformed)?;
        if let Some(first) = packets.front_mut() {
            first.udp = Some(udp.as_fd().try_clone_to_owned().map_err(|_| NoFabric::Silent)?);
        }
        (self.socket, self.is_known, self.again_at_ns) = (Some(socket), false, None);
        (self.unsent, self.subjects) = (packets, HashSet::new());
        self.flush();
        Ok(true)
    }

    /// Has the node called again soon, because its backlog is full.
    pub fn call_again(&mut self, now_ns: u64, is_awaited: bool) {
        let pause_ns = if is_awaited { AWAITED_PAUSE_NS } else { BUSY_PAUSE_NS };
        self.again_at_ns = Some(now_ns.saturating_add(pause_ns));
    }

    /// Sends the node a request, as soon as its socket has room. If there is no node, the request is dropped: the next node
    /// does not need it. For a stopped node no more waits than the port has connections and has had while the node took
    /// something: a request and a question are of no use once their connection has ended.
    pub fn tell(&mut self, request: &Request) {
        if self.socket.is_none() {
            return;
        }
        let subject = match request {
            Request::Connect { introduction, .. } => Some(Subject::Connect(introduction.connection)),
            Request::Inquire { connection } => Some(Subject::Inquire(*connection)),
            _ => None,
        };
        if subject.is_some_and(|subject| self.subjects.contains(&subject)) {
            return;
        }
        if let Request::Release { connection } = request {
            self.drop_needless(Subject::Inquire(*connection));
            if self.drop_needless(Subject::Connect(*connection)) {
                return;
            }
        }
        if let Ok(bytes) = to_bytes(request) {
            self.unsent.push_back(Unsent { bytes, udp: None, subject });
            self.subjects.extend(subject);
            self.flush();
        }
    }

    /// Drops the waiting packet about a connection that has ended. `false`: there was none.
    fn drop_needless(&mut self, subject: Subject) -> bool {
        let was_waiting = self.subjects.remove(&subject);
        if was_waiting {
            self.unsent.retain(|unsent| unsent.subject != Some(subject));
        }
        was_waiting
    }

    /// Sends the waiting requests if it is time to try again.
    pub fn flush_in_time(&mut self, now_ns: u64) {
        if self.flush_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.flush();
        }
    }

    /// Sends the waiting requests, as far as there is room.
    pub fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Some(Unsent { bytes, udp, subject }) = self.unsent.front() {
            let sent = match udp {
                Some(udp) => socket.send(bytes, &[udp.as_fd()]),
                None => socket.send(bytes, &[]),
            };
            if sent.is_err() {
                break;
            }
            if let Some(subject) = subject {
                self.subjects.remove(subject);
            }
            self.unsent.pop_front();
        }
        let has_unsent = !self.unsent.is_empty();
        self.flush_at_ns = has_unsent.then(|| clock::nanoseconds().saturating_add(FLUSH_PAUSE_NS));
    }

    /// The next packet of the node, and the UDP socket that comes with a registration if this port is in another network
    /// namespace. `Ok(None)`: there is none now.
    ///
    /// # Errors
    /// The node is gone, or has sent an invalid packet.
    pub fn hear(&mut self) -> Result<Option<(Notice, Option<UdpSocket>)>, NoFabric> {
        self.flush();
        let Some(socket) = &self.socket else { return Ok(None) };
        let mut bytes = [0; PACKET_BYTES_MAX];
        let (length, descriptors) = match socket.receive(&mut bytes) {
            Ok(Received::Packet(length, descriptors)) => (length, descriptors),
            Ok(Received::Nothing) => return Ok(None),
            Ok(Received::Closed) => return Err(NoFabric::NotRunning),
            Err(_) => return Err(NoFabric::Malformed),
        };
        let notice = take_notice(&mut bytes[..length]).map_err(|_| NoFabric::Malformed)?;
        if matches!(notice, Notice::Registered { .. }) {
            (self.is_known, self.pause) = (true, PAUSE_FIRST);
        }
        // It comes from root or this user, and closing a UDP socket is harmless.
        let lent = descriptors.into_iter().next().map(|file| UdpSocket::from_descriptor(file.into_inner()));
        Ok(Some((notice, lent.transpose().map_err(|_| NoFabric::Malformed)?)))
    }

    /// Gives up the connection, and returns its socket. The node is tried again after a pause, which doubles.
    pub fn lose(&mut self, now_ns: u64) -> Option<Socket> {
        self.is_known = false;
        (self.unsent, self.subjects, self.flush_at_ns) = (VecDeque::new(), HashSet::new(), None);
        let doubled = PAUSE_MAX.min(2 * self.pause);
        let pause = std::mem::replace(&mut self.pause, doubled);
        self.again_at_ns = Some(now_ns.saturating_add(pause.as_nanos() as u64));
        self.socket.take()
    }
}

/// The notice in a packet, which is erased: there may be a secret in it.
fn take_notice(bytes: &mut [u8]) -> Result<Notice, Malformed> {
    let notice = from_bytes(bytes);
    bytes.zeroize();
    notice
}

/// The meaning of a refused registration.
pub(super) fn reason_of(refused: Unregistered) -> NoFabric {
    match refused {
        Unregistered::Version => NoFabric::Version,
        Unregistered::Unverified => NoFabric::Unverified,
        Unregistered::OtherNetwork => NoFabric::OtherNetwork,
        Unregistered::NoResources => NoFabric::NoResources,
        Unregistered::Malformed => NoFabric::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use bywire_sys::listener::Listener;
    use bywire_wire::handshake::PublicKey;
    use bywire_wire::keys::Security;
    use bywire_wire::path::MachinePath;
    use bywire_wire::service::Introduction;

    use super::*;

    fn kept(number: u32) -> Kept {
        Kept {
            connection: number,
            security: Security::Plain,
            node: PublicKey([1; 32]),
            peer_port: "p".repeat(64),
            peer_user: "ann".repeat(20),
            peer_incarnation: u64::MAX,
            peer_connection: number,
            path: MachinePath { peer: [10, 0, 0, 1].into(), local: None },
        }
    }

    fn registered(kept: Vec<Kept>) -> (Service, Socket, tempfile::TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = Listener::bind(&directory.path().join(SOCKET_NAME)).expect("bound");
        let mut service = service_in(&directory);
        register(&mut service, kept);
        (service, listener.accept().expect("accept").expect("somebody"), directory)
    }

    fn service_in(directory: &tempfile::TempDir) -> Service {
        Service::new(&RuntimeDirectory::open(Some(directory.path())).expect("ours"))
    }

    fn register(service: &mut Service, kept: Vec<Kept>) {
        let udp = UdpSocket::bind_everywhere(0).expect("bound");
        let port = PortName::Number(7);
        let registration = Registration { port: &port, incarnation: 1, is_reachable: true, kept, udp: &udp };
        assert_eq!(service.register(registration), Ok(true));
    }

    fn requests(node: &Socket) -> Vec<Request> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        let packets = std::iter::from_fn(|| match node.receive(&mut bytes) {
            Ok(Received::Packet(length, _)) => Some(from_bytes(&bytes[..length]).expect("a request")),
            _ => None,
        });
        packets.collect()
    }

    #[test]
    fn connections_that_exceed_one_packet_are_listed_in_several() {
        let (mut service, node, _directory) = registered((0..3000).map(kept).collect());
        let mut numbers = Vec::new();
        for _ in 0..100 {
            for request in requests(&node) {
                let Request::Register { kept, .. } = request else { panic!("{request:?}") };
                numbers.extend(kept.iter().map(|kept| kept.connection));
            }
            service.hear().expect("it is there");
        }
        assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_socket_loses_no_notice_for_the_node() {
        let (mut service, node, _directory) = registered(Vec::new());
        for connection in 0..10_000 {
            service.tell(&Request::Release { connection });
        }
        let mut numbers = Vec::new();
        for _ in 0..100 {
            for request in requests(&node) {
                if let Request::Release { connection } = request {
                    numbers.push(connection);
                }
            }
            service.hear().expect("it is there");
        }
        assert_eq!(numbers, (0..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn requests_that_a_lost_node_has_not_taken_are_for_no_other_node() {
        let (mut service, node, directory) = registered(Vec::new());
        (0..10_000).for_each(|connection| service.tell(&Request::Release { connection }));
        assert!(!service.unsent.is_empty(), "its socket is full");
        service.lose(0);
        drop(node);
        let path = directory.path().join(SOCKET_NAME);
        std::fs::remove_file(&path).expect("the lost one's");
        let listener = Listener::bind(&path).expect("bound");
        register(&mut service, Vec::new());
        let next = listener.accept().expect("accept").expect("somebody");
        service.hear().expect("it is there");
        let requests = requests(&next);
        assert!(matches!(requests[..], [Request::Register { is_last: true, .. }]), "{requests:?}");
    }

    #[test]
    fn a_stopped_node_makes_no_more_wait_than_there_are_connections() {
        const KNOWN: u32 = 1000;
        let (mut service, node, _directory) = registered(Vec::new());
        let introduction =
            |connection| Introduction { connection, message_bytes_max: 1, integrity: true, windows: [1; 3] };
        // The socket is full, and a program connects and gives up again and again.
        for number in 0..100_000 {
            let (node, port) = ("b".to_owned(), "render".to_owned());
            let introduction = introduction(number);
            service.tell(&Request::Connect { request: number, node, port, introduction });
            service.tell(&Request::Release { connection: number });
        }
        for _ in 0..100 {
            (0..KNOWN).for_each(|connection| service.tell(&Request::Inquire { connection }));
        }
        assert!(service.unsent.len() <= KNOWN as usize + 1, "{}", service.unsent.len());
        (0..KNOWN).for_each(|connection| service.tell(&Request::Release { connection }));
        let mut open = HashSet::new();
        let mut released = 0;
        for _ in 0..1000 {
            for request in requests(&node) {
                match request {
                    Request::Connect { request, .. } => assert!(open.insert(request)),
                    Request::Release { connection } => released += u32::from(!open.remove(&connection)),
                    Request::Inquire { .. } => panic!("its connection is over"),
                    _ => {}
                }
            }
            service.hear().expect("it is there");
        }
        assert!(open.is_empty(), "every request that the node has got is over: {open:?}");
        assert!(service.unsent.is_empty() && released >= KNOWN - 1, "{released}");
    }

    #[test]
    fn a_call_keeps_its_place_while_the_node_takes_no_descriptors_before_it_accepts() {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = Listener::bind(&directory.path().join(SOCKET_NAME)).expect("bound");
        if !listener.guard(true) {
            println!("not run: this kernel lets descriptors into any queue: requires Linux 6.16");
            return;
        }
        let mut service = service_in(&directory);
        register(&mut service, vec![kept(1)]);
        service.tell(&Request::Release { connection: 1 });
        let due_ns = service.due_at_ns().expect("it is tried again");
        assert!(due_ns <= clock::nanoseconds() + FLUSH_PAUSE_NS);
        let node = listener.accept().expect("accept").expect("somebody");
        assert!(requests(&node).is_empty());
        service.flush_in_time(due_ns);
        let requests = requests(&node);
        assert!(
            matches!(&requests[..], [Request::Register { is_last: true, .. }, Request::Release { .. }]),
            "{requests:?}"
        );
        assert_eq!(service.due_at_ns(), None);
    }

    #[test]
    fn a_node_with_a_full_backlog_is_called_again_soon_and_an_absent_one_at_doubling_intervals() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut service = service_in(&directory);
        let mut due_ms = |is_absent: bool, is_awaited: bool| {
            match is_absent {
                true => drop(service.lose(0)),
                false => service.call_again(0, is_awaited),
            }
            service.due_at_ns().expect("it is called again") / 1_000_000
        };
        let pauses = [false, true, false, true, true].map(|is_absent| due_ms(is_absent, false));
        assert_eq!(pauses, [10, 1000, 10, 2000, 4000]);
        assert_eq!(due_ms(false, true), 1);
    }

    #[test]
    fn a_packet_of_the_node_is_erased_after_reading() {
        let notice = Notice::Registered { node: "secret".to_owned() };
        let mut bytes = to_bytes(&notice).expect("short");
        assert_eq!(take_notice(&mut bytes), Ok(notice));
        assert!(bytes.iter().all(|byte| *byte == 0), "{bytes:?}");
    }
}
