//! The client of this machine's node: its socket, and when to try it again.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use bywire_sys::Errno;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::udp::UdpSocket;
use bywire_wire::service::{
    KEPT_MAX, Kept, Notice, PACKET_BYTES_MAX, Request, SOCKET_NAME, Unregistered, VERSION, from_bytes,
    to_bytes,
};

use crate::message::address::PortName;
use crate::message::error::NoFabric;
use crate::shm::connection::is_family;
use crate::shm::runtime::RuntimeDirectory;

/// The first pause before a node that has gone is tried again, and the longest one.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// What a port says of itself when it registers.
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
}

impl Service {
    pub fn new(directory: &RuntimeDirectory) -> Self {
        let path = directory.path().join(SOCKET_NAME);
        Self { path, socket: None, is_known: false, pause: PAUSE_FIRST, again_at_ns: None }
    }

    pub fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Has the node answered the registration?
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// When the node is to be tried again.
    pub fn again_at_ns(&self) -> Option<u64> {
        self.again_at_ns
    }

    /// Connects and registers, or leaves it at the time when the node is to be tried again. [`Notice::Registered`] or
    /// [`Notice::Refused`] follows.
    pub fn register(&mut self, registration: Registration<'_>) -> Result<(), NoFabric> {
        let socket = Socket::connect_entry(&self.path).map_err(|error| match error {
            Errno::ACCESS | Errno::PERM => NoFabric::OtherUser,
            Errno::AGAIN => NoFabric::Silent,
            _ => NoFabric::NotRunning,
        })?;
        // As attested by the kernel: the process that listens there tells who everybody else is.
        if !socket.credentials().is_ok_and(|node| is_family(node.uid)) {
            return Err(NoFabric::OtherUser);
        }
        let Registration { port, incarnation, is_reachable, mut kept, udp } = registration;
        let udp_port = udp.local_address().map_err(|_| NoFabric::Silent)?.port();
        let port = port.to_string();
        let mut is_first = true;
        while is_first || !kept.is_empty() {
            let rest = kept.split_off(kept.len().min(KEPT_MAX));
            let some = std::mem::replace(&mut kept, rest);
            let port = port.clone();
            let version = VERSION;
            let request =
                Request::Register { version, port, incarnation, is_reachable, udp_port, kept: some };
            let bytes = to_bytes(&request).map_err(|_| NoFabric::Malformed)?;
            let file = [udp.as_fd()];
            let files = if is_first { &file[..] } else { &[] };
            socket.send(&bytes, files).map_err(|_| NoFabric::Silent)?;
            is_first = false;
        }
        (self.socket, self.is_known, self.again_at_ns) = (Some(socket), false, None);
        Ok(())
    }

    /// Sends a request. `false`: the node is not there, or does not read.
    pub fn ask(&self, request: &Request) -> bool {
        let Some(socket) = &self.socket else { return false };
        to_bytes(request).is_ok_and(|bytes| socket.send(&bytes, &[]).is_ok())
    }

    /// The next packet of the node. `Ok(None)`: there is none now.
    ///
    /// # Errors
    /// It has gone, or has sent what is no packet of the protocol.
    pub fn hear(&mut self) -> Result<Option<Notice>, NoFabric> {
        let Some(socket) = &self.socket else { return Ok(None) };
        let mut bytes = [0; PACKET_BYTES_MAX];
        let length = match socket.receive(&mut bytes) {
            Ok(Received::Packet(length, _)) => length,
            Ok(Received::Nothing) => return Ok(None),
            Ok(Received::Closed) => return Err(NoFabric::NotRunning),
            Err(_) => return Err(NoFabric::Malformed),
        };
        let notice = from_bytes(&bytes[..length]).map_err(|_| NoFabric::Malformed)?;
        if matches!(notice, Notice::Registered { .. }) {
            (self.is_known, self.pause) = (true, PAUSE_FIRST);
        }
        Ok(Some(notice))
    }

    /// Gives the connection up, and returns its socket. The node is tried again after a pause, which doubles.
    pub fn lose(&mut self, now_ns: u64) -> Option<Socket> {
        self.is_known = false;
        self.again_at_ns = Some(now_ns.saturating_add(self.pause.as_nanos() as u64));
        self.pause = PAUSE_MAX.min(2 * self.pause);
        self.socket.take()
    }
}

/// What a refused registration means.
pub(super) fn reason_of(refused: Unregistered) -> NoFabric {
    match refused {
        Unregistered::Version => NoFabric::Version,
        Unregistered::Unverified => NoFabric::Unverified,
        Unregistered::OtherNetwork => NoFabric::OtherNetwork,
        Unregistered::NoResources => NoFabric::NoResources,
        Unregistered::Malformed => NoFabric::Malformed,
    }
}
