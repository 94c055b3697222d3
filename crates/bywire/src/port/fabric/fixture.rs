//! For tests: a port with peers on other machines, each a bare connection with a socket of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bywire_sys::listener::Listener;
use bywire_sys::udp::{RECEIVE_BYTES, UdpSocket};
use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options};
use bywire_wire::frame::Lane;
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::{Security, Side};
use bywire_wire::record::Head;
use bywire_wire::service::{Answers, Identity, Introduction, SOCKET_NAME, Terms};
use tempfile::TempDir;

use super::now_ns;
use crate::message::event::Event;
use crate::message::options::PortOptions;
use crate::message::peer::Peer;
use crate::port::Port;
use crate::port::remote_peer::{Call, RemotePeer, Stage};
use crate::port::slots::Slot;
use crate::wire::connection::windows;

const SECRET: [u8; 32] = [7; 32];
/// Whatever a test waits for comes within this time, also on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// What the node tells of a peer at an address, which has this number for the connection.
pub fn terms(address: SocketAddr, number: u32, port: &PortOptions) -> Terms {
    let [node, name, user] = ["b", "7", "ann"].map(str::to_owned);
    Terms {
        answers: Answers::Request(0),
        side: Side::Initiator,
        security: Security::Aes256Gcm,
        secret: [0; 32],
        path: address.into(),
        peer: Identity {
            node,
            key: PublicKey([1; 32]),
            port: name,
            user,
            groups: Vec::new(),
            incarnation: 1,
        },
        introduction: Introduction {
            connection: number,
            message_bytes_max: port.message_bytes_max,
            integrity: true,
            windows: windows(port),
        },
        route_bytes: 1452,
    }
}

/// The other end of a connection.
pub fn other_end(number: u32, peer_number: u32, port: &PortOptions) -> Connection<Vec<u8>> {
    Connection::new(Options {
        side: Side::Responder,
        security: Security::Aes256Gcm,
        secret: SECRET.into(),
        connection: number,
        peer_connection: peer_number,
        windows: windows(port),
        peer_windows: windows(port),
        route_bytes: 1452,
    })
}

/// A port, and where its node would be.
pub struct Fixture {
    pub port: Port,
    pub node: Listener,
    pub _directory: TempDir,
}

/// A peer that does what the test says.
pub struct FakePeer {
    pub connection: Connection<Vec<u8>>,
    pub udp: UdpSocket,
    pub peer: Peer,
    /// Where the port's packets come from.
    pub to: SocketAddr,
}

impl Fixture {
    pub fn new(options: PortOptions) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime_directory = Some(directory.path().to_owned());
        let port = Port::open(PortOptions { runtime_directory, ..options }).expect("open");
        let node = Listener::bind(&directory.path().join(SOCKET_NAME)).expect("bound");
        Self { port, node, _directory: directory }
    }

    /// A peer that has proved itself.
    pub fn meet(&mut self) -> FakePeer {
        let udp = UdpSocket::bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let peer = self.port.slots.insert(|_| Slot::Free { last: None });
        let fabric = self.port.fabric().expect("a socket");
        let number = fabric.take_number(peer.index);
        let to = ([127, 0, 0, 1], fabric.sockets.common().local_address().expect("bound").port()).into();
        let (address, theirs) = (udp.local_address().expect("bound"), 100 + peer.index);
        let options = &self.port.options;
        let terms = terms(address, theirs, options);
        let remote = RemotePeer::new(peer, number, None, (terms, SECRET.into()), options);
        let connection = other_end(theirs, number, options);
        self.port.slots.replace(peer, Slot::Wire(Box::new(remote)));
        FakePeer { connection, udp, peer, to }
    }

    pub fn remote(&mut self, peer: Peer) -> &mut RemotePeer {
        match self.port.slots.state_at(peer.index) {
            Some(Slot::Wire(remote)) => remote,
            _ => panic!("no peer"),
        }
    }

    /// Polls until a condition holds. Fails after [`TIMEOUT`].
    #[track_caller]
    pub fn until(&mut self, mut is_so: impl FnMut(&mut Port, Option<Event>) -> bool) {
        until(|| {
            let event = self.port.poll();
            is_so(&mut self.port, event)
        });
    }

    /// Exchanges packets with a peer until a condition holds. The program takes no events meanwhile.
    #[track_caller]
    pub fn exchange_until(
        &mut self,
        fake: &mut FakePeer,
        mut is_so: impl FnMut(&mut Self, &FakePeer) -> bool,
    ) {
        until(|| {
            let is_over = is_so(self, fake);
            if !is_over {
                fake.exchange();
                self.port.look_remote();
            }
            is_over
        });
    }

    /// Runs the timers as at a later time.
    pub fn pass_time(&mut self, now_ns: u64) {
        self.port.fabric.as_deref_mut().expect("made").run_timers(now_ns, &mut self.port.slots);
        self.port.take_news(now_ns);
    }

    /// Makes a peer one that has not proved itself, since this time.
    pub fn unprove(&mut self, peer: Peer, since_ns: u64, is_caller: bool) {
        let Some(Slot::Wire(remote)) = self.port.slots.replace(peer, Slot::Free { last: None }) else {
            panic!("no peer")
        };
        let call = Call {
            address: "b/7".parse().expect("an address"),
            number: remote.number,
            stage: Stage::Proving { remote, since_ns },
            since_ns,
            other_user: None,
            announce: true,
            is_caller,
        };
        self.port.slots.replace(peer, Slot::Calling(Box::new(call)));
    }
}

/// Repeats until a condition holds. Fails after [`TIMEOUT`].
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out");
    }
}

impl FakePeer {
    /// Queues a message, which [`Self::transmit`] sends.
    pub fn queue(&mut self, lane: Lane, bytes: &[u8]) {
        let mut record = Vec::new();
        Head::Message { length: bytes.len() as u64, is_long: false, is_prompt: false }.write(&mut record);
        record.extend_from_slice(bytes);
        self.connection.send(lane, record).expect("room");
    }

    /// The packets that are due.
    pub fn batch(&mut self) -> Batch {
        let mut batch = Batch::new(1 << 20, 1024);
        self.connection.transmit(now_ns(), &mut batch);
        batch
    }

    pub fn transmit(&mut self) {
        for packet in self.batch().packets() {
            self.udp.send(Some(self.to), packet).expect("room");
        }
    }

    /// Receives packets. `true`: there were some.
    pub fn receive(&mut self) -> bool {
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut any = false;
        while let Ok(Some(length)) = self.udp.receive(&mut buffer) {
            self.connection.receive(now_ns(), &mut buffer[..length]);
            any = true;
        }
        any
    }

    /// Receives and transmits. Packets are acknowledged at once.
    pub fn exchange(&mut self) {
        self.receive();
        self.connection.before_sleep();
        self.transmit();
    }
}
