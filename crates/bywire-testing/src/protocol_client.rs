//! A program that keeps to the protocol only as far as the test wants.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_pairing::protocol::{DOORBELL_MARK, Kind, PACKET_BYTES, PAGE_BYTES, Packet, VERSION, Verdict};
use bywire_pairing::service::Service;
use bywire_pairing::user::Scope;
use bywire_ring::stream::{SEGMENT_BYTES, head_bytes, rest_bytes};
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::memory::Mapping;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::wake::Eventfd;
use rustix::fs::{MemfdFlags, Mode, SealFlags};

/// Enough on a loaded machine.
pub const TIMEOUT: Duration = Duration::from_secs(40);

/// A service for all users, its socket, and the directory of that. Prints that the test needs root and returns `None`, if
/// it does not run as root.
pub fn machine_service() -> Option<(Service, PathBuf, tempfile::TempDir)> {
    if bywire_sys::process::user() != 0 {
        println!("not run: only root can be other users; run this test as root");
        return None;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let path = directory.path().join("pairing");
    let service = Service::start(&path, Scope::Machine).expect("a service");
    Some((service, path, directory))
}

/// A program as the service sees it.
pub struct ProtocolClient {
    /// The socket that it sends on.
    pub socket: Socket,
    /// The memory that it offers with each connection.
    pub segment: OwnedFd,
}

/// A packet and its descriptors.
type PacketAndFiles = (Packet, Vec<OwnedFd>);

/// The service has closed the connection.
struct HungUp;

impl ProtocolClient {
    /// Connects to the service at `path` and says hello.
    pub fn new(path: &Path) -> Self {
        let stranger = Self::silent(path);
        let (doorbell, page) = (Eventfd::new().expect("a doorbell"), Self::memory(PAGE_BYTES));
        let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
        stranger.socket.send(&hello.encode(), &[doorbell.as_fd(), page.as_fd()]).expect("hello");
        stranger
    }

    /// Connects and says hello with a doorbell that other programs ring.
    pub fn marked(path: &Path) -> Self {
        let stranger = Self::silent(path);
        let (doorbell, page) = (Eventfd::new().expect("a doorbell"), Self::memory(PAGE_BYTES));
        doorbell.mark(DOORBELL_MARK).expect("marked");
        let hello = Packet { first: VERSION, ..Packet::new(Kind::Hello, 0) };
        stranger.socket.send(&hello.encode(), &[doorbell.as_fd(), page.as_fd()]).expect("hello");
        stranger
    }

    /// Connects, and sends nothing yet.
    pub fn silent(path: &Path) -> Self {
        let socket = Socket::connect(path).expect("the service listens");
        Self { socket, segment: Self::memory(SEGMENT_BYTES) }
    }

    /// Sealed memory.
    pub fn memory(length_bytes: usize) -> OwnedFd {
        Mapping::create("bywire-test", length_bytes).expect("memory").1
    }

    /// The rest of a segment: memory that its maker can empty, opened for reading, of a file with this mode.
    pub fn emptiable(length_bytes: usize, mode: u32) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("bywire-test", flags).expect("memory");
        rustix::fs::ftruncate(&file, length_bytes as u64).expect("its length");
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).expect("its mode");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        std::fs::File::open(path).expect("opened again").into()
    }

    /// Offers a connection with a segment of two files.
    pub fn offer_in_two(&self, token: u64, connection: BorrowedFd<'_>) {
        let (head, rest) = (Self::memory(head_bytes()), Self::emptiable(rest_bytes(), 0o444));
        let offer = Packet::new(Kind::Offer, token).encode();
        self.socket.send(&offer, &[connection, head.as_fd(), rest.as_fd()]).expect("an offer");
    }

    /// Offers a connection with new memory.
    pub fn offer_anew(&self, token: u64, connection: BorrowedFd<'_>) {
        let memory = Self::memory(SEGMENT_BYTES);
        let offer = Packet::new(Kind::Offer, token).encode();
        self.socket.send(&offer, &[connection, memory.as_fd()]).expect("an offer");
    }

    pub fn say(&self, packet: &Packet) {
        self.socket.send(&packet.encode(), &[]).expect("said");
    }

    pub fn offer(&self, token: u64, connection: BorrowedFd<'_>) {
        let offer = Packet::new(Kind::Offer, token).encode();
        self.socket.send(&offer, &[connection, self.segment.as_fd()]).expect("an offer");
    }

    /// Offers the ends of a connection: `client` here as 1, then `server` by `other` as 2, to which the service answers
    /// that they are paired.
    pub fn pairs_with(&self, other: &Self, client: BorrowedFd<'_>, server: BorrowedFd<'_>) {
        self.offer(1, client);
        assert_eq!(self.verdict(1), Verdict::Waiting);
        other.offer(2, server);
        assert_eq!(other.verdict(2), Verdict::Paired);
    }

    fn receive(&self) -> Result<Option<PacketAndFiles>, HungUp> {
        let mut buffer = [0; PACKET_BYTES];
        match self.socket.receive(&mut buffer).expect("a packet") {
            Received::Packet(length, descriptors) => {
                let descriptors = descriptors.into_iter().map(ReceivedFd::into_inner).collect();
                Ok(Some((Packet::decode(&buffer[..length]).expect("one of ours"), descriptors)))
            }
            Received::Nothing => Ok(None),
            Received::Closed => Err(HungUp),
        }
    }

    /// The next packet, if there is one.
    pub fn look(&self) -> Option<PacketAndFiles> {
        self.receive().unwrap_or_else(|HungUp| panic!("the service has hung up"))
    }

    /// Waits for the next packet. `None`: the service has hung up.
    pub fn hear(&self) -> Option<PacketAndFiles> {
        let end = Instant::now() + TIMEOUT;
        let mut poller = Poller::new().expect("a poller");
        poller.add(&self.socket, 0).expect("watched");
        while Instant::now() < end {
            match self.receive() {
                Ok(Some(received)) => return Some(received),
                Ok(None) => drop(poller.wait(Some(TIMEOUT)).expect("a wait").len()),
                Err(HungUp) => return None,
            }
        }
        panic!("the service says nothing")
    }

    /// Waits for the next packet other than doorbells that are given and withdrawn. `None`: the service has hung up.
    pub fn hear_beside_doorbells(&self) -> Option<PacketAndFiles> {
        loop {
            let received = self.hear()?;
            match received.0.kind {
                Kind::Doorbell => {}
                Kind::Withdraw => self.say(&Packet::new(Kind::Withdrawn, received.0.token)),
                _ => return Some(received),
            }
        }
    }

    /// Waits for the answer to an offer, which comes next but for doorbells, and returns it with its descriptors.
    pub fn answer(&self, token: u64) -> (Verdict, Vec<OwnedFd>) {
        let (packet, descriptors) = self.hear_beside_doorbells().expect("an answer");
        assert_eq!((packet.kind, packet.token), (Kind::Answer, token));
        let verdict = Verdict::of(packet.code).expect("a verdict");
        let count = descriptors.len();
        assert!(if verdict == Verdict::Paired { count == 3 || count == 4 } else { count == 0 }, "{count}");
        (verdict, descriptors)
    }

    pub fn verdict(&self, token: u64) -> Verdict {
        self.answer(token).0
    }
}
