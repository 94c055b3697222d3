//! Slow, surplus and wrong descriptors: the service passes no wrong kind on, and serves other users meanwhile. 4,096
//! users at once exclude nobody else. Needs root, to act as other users.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bywire_pairing::protocol::{Kind, PACKET_BYTES, PAGE_BYTES, Packet, VERSION, Verdict};
use bywire_pairing::service::Service;
use bywire_pairing::status;
use bywire_ring::stream::rest_bytes;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::wake::Eventfd;
use bywire_testing::eventually;
use bywire_testing::linger::{self, PACKET_DESCRIPTORS_MAX, UNDISTURBED, lingering};
use bywire_testing::protocol_client::{self, ProtocolClient, machine_service};
use rustix::event::epoll;
use rustix::fs::{SealFlags, inotify};
use rustix::process::Uid;

const HOSTILE: u32 = 54_331;
const HONEST: u32 = 54_332;

/// A service for all users. It does nothing before it is told to, so packets that have been sent to it are only in
/// its queues.
struct Fixture {
    path: PathBuf,
    service: Option<Service>,
    began: Instant,
    receivers: Vec<TcpStream>,
    _directory: tempfile::TempDir,
}

impl Fixture {
    /// `None`: the test does not run as root.
    fn new() -> Option<Self> {
        let (service, path, directory) = machine_service()?;
        let service = Some(service);
        Some(Self { path, service, began: Instant::now(), receivers: Vec::new(), _directory: directory })
    }

    fn serve(&mut self) {
        if let Some(mut service) = self.service.take() {
            std::thread::spawn(move || service.serve(Duration::from_secs(600)));
        }
    }

    /// Does `act` as another user at first; its result is ours afterwards.
    fn as_user<T: Send>(&self, user: u32, act: impl FnOnce() -> T + Send) -> T {
        let begin = move || {
            let user = Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
            act()
        };
        std::thread::scope(|scope| scope.spawn(begin).join().expect("it has begun"))
    }

    /// A program of the hostile user that has sent nothing yet.
    fn hostile(&self) -> ProtocolClient {
        self.as_user(HOSTILE, || ProtocolClient::silent(&self.path))
    }

    fn lingering(&mut self) -> OwnedFd {
        let (sender, receiver) = lingering();
        self.receivers.push(receiver);
        sender
    }

    /// Checks that a connection of another user is paired without delay.
    fn is_undisturbed(&self, what: &str) {
        let (client, server) = connection();
        let pair =
            self.as_user(HONEST, || [ProtocolClient::new(&self.path), ProtocolClient::new(&self.path)]);
        pair[0].pairs_with(&pair[1], client.as_fd(), server.as_fd());
        let elapsed = self.began.elapsed();
        assert!(elapsed < UNDISTURBED, "{what}: the service was held up for {elapsed:?}");
    }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    (client, listener.accept().expect("accept").0)
}

fn encoded(kind: Kind) -> Vec<u8> {
    Packet { first: VERSION, ..Packet::new(kind, 1) }.encode().to_vec()
}

#[test]
fn a_packet_with_too_many_descriptors_delays_no_other_user() {
    let Some(mut fixture) = Fixture::new() else { return };
    let null = std::fs::File::open("/dev/null").expect("open");
    let mut programs = Vec::new();
    for (packet, count) in [
        (encoded(Kind::Ask), 7),
        (encoded(Kind::Hello), PACKET_DESCRIPTORS_MAX),
        (encoded(Kind::Offer), PACKET_DESCRIPTORS_MAX),
        (b"x".to_vec(), PACKET_DESCRIPTORS_MAX),
        (vec![0; 5000], 4),
    ] {
        let sender = fixture.lingering();
        let mut many = vec![null.as_fd(); count - 1];
        many.push(sender.as_fd());
        let program = fixture.hostile();
        linger::send(&program.socket, &packet, &many).expect("sent");
        drop(sender);
        programs.push(program);
    }
    fixture.serve();
    fixture.is_undisturbed("too many descriptors");
    for program in programs {
        assert!(program.hear().is_none(), "whoever has sent it is dismissed");
    }
}

#[test]
fn lingering_descriptors_delay_no_other_user() {
    let Some(mut fixture) = Fixture::new() else { return };
    let doorbell = Eventfd::new().expect("a doorbell");
    let ((client, _server), page) = (connection(), ProtocolClient::memory(PAGE_BYTES));
    let mut programs = Vec::new();
    for (kind, place, other) in [
        (Kind::Hello, 0, page.as_fd()),
        (Kind::Hello, 1, doorbell.as_fd()),
        (Kind::Offer, 1, client.as_fd()),
        (Kind::Ask, 0, client.as_fd()),
        (Kind::End, 0, client.as_fd()),
    ] {
        let sender = fixture.lingering();
        let program = fixture.hostile();
        let mut brought = [other; 2];
        brought[place] = sender.as_fd();
        linger::send(&program.socket, &encoded(kind), &brought).expect("sent");
        drop(sender);
        programs.push(program);
    }
    fixture.serve();
    fixture.is_undisturbed("the wrong places");
    for program in programs {
        assert!(program.hear().is_none(), "whoever has sent it is dismissed");
    }
}

#[test]
fn descriptors_of_a_wrong_kind_are_never_passed_on() {
    let Some(mut fixture) = Fixture::new() else { return };
    let (doorbell, page) = (Eventfd::new().expect("a doorbell"), ProtocolClient::memory(PAGE_BYTES));
    let (segment, (client, _server)) = (fixture.hostile().segment, connection());
    let (unsealed, large) = (tempfile::tempfile().expect("a file"), ProtocolClient::memory(2 * PAGE_BYTES));
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).expect("inotify");
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    fixture.serve();
    let [doorbell, page, segment, client] = [doorbell.as_fd(), page.as_fd(), segment.as_fd(), client.as_fd()];
    let hello = [
        [pipe.as_fd(), page],
        [watch.as_fd(), page],
        [set.as_fd(), page],
        [page, page],
        [doorbell, unsealed.as_fd()],
        [doorbell, large.as_fd()],
        [doorbell, segment],
        [doorbell, doorbell],
    ];
    let offers = [[client, unsealed.as_fd()], [client, page], [client, doorbell]];
    let rest = ProtocolClient::emptiable(rest_bytes(), 0o444);
    let (long, writable) =
        (ProtocolClient::emptiable(2 * rest_bytes(), 0o444), ProtocolClient::emptiable(rest_bytes(), 0o644));
    let unsealed_rest = tempfile::tempfile().expect("a file");
    unsealed_rest.set_len(rest_bytes() as u64).expect("its length");
    // Any holder opens it for writing.
    let open =
        rustix::fs::memfd_create("bywire-test", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memory");
    rustix::fs::ftruncate(&open, rest_bytes() as u64).expect("its length");
    rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .expect("sealed");
    rustix::fs::fchmod(&open, rustix::fs::Mode::from_raw_mode(0o444)).expect("its mode");
    let sealed = ProtocolClient::memory(rest_bytes());
    let rest = rest.as_fd();
    let in_two = [
        [client, segment, rest],
        [client, page, long.as_fd()],
        [client, page, writable.as_fd()],
        [client, page, unsealed_rest.as_fd()],
        [client, page, open.as_fd()],
        [client, page, sealed.as_fd()],
        [client, page, page],
        [client, rest, rest],
        [client, unsealed.as_fd(), rest],
        [client, rest, page],
    ];
    let is_dismissed = |fixture: &Fixture, kind: Kind, brought: &[BorrowedFd<'_>]| {
        let program = match kind {
            Kind::Hello => fixture.hostile(),
            _ => fixture.as_user(HOSTILE, || ProtocolClient::new(&fixture.path)),
        };
        linger::send(&program.socket, &encoded(kind), brought).expect("sent");
        program.hear().is_none()
    };
    for (place, brought) in hello.iter().enumerate() {
        assert!(is_dismissed(&fixture, Kind::Hello, brought), "hello {place}");
    }
    for (place, brought) in offers.iter().enumerate() {
        assert!(is_dismissed(&fixture, Kind::Offer, brought), "offer {place}");
    }
    for (place, brought) in in_two.iter().enumerate() {
        assert!(is_dismissed(&fixture, Kind::Offer, brought), "offer in two {place}");
    }
    assert!(is_dismissed(&fixture, Kind::Offer, &[client, page, rest, rest]), "a third part");
    assert!(is_dismissed(&fixture, Kind::Hello, &[doorbell]), "one alone");
    assert!(is_dismissed(&fixture, Kind::Offer, &[client]), "one alone");
    assert!(is_dismissed(&fixture, Kind::Ask, &[client]), "one too many");
    fixture.is_undisturbed("the wrong kinds");
}

#[test]
fn lingering_connections_delay_no_other_user_and_their_own_only_briefly() {
    let Some(mut fixture) = Fixture::new() else { return };
    let slow = fixture.as_user(HOSTILE, || ProtocolClient::new(&fixture.path));
    let senders: Vec<_> = (0..64).map(|_| fixture.lingering()).collect();
    for (token, sender) in senders.iter().enumerate() {
        slow.offer(token as u64, sender.as_fd());
    }
    drop(senders);
    fixture.serve();
    fixture.is_undisturbed("offers that linger");
    // An honest program might do the same: its next offer is looked at, although the last one would linger.
    for token in 0..64 {
        assert_eq!(slow.verdict(token), Verdict::Waiting);
    }
    assert!(fixture.began.elapsed() < UNDISTURBED, "its own user waits");
}

#[test]
fn refused_programs_are_closed_without_delaying_anybody() {
    let Some(mut fixture) = Fixture::new() else { return };
    // More programs than have places anywhere, each with a file that delays its last close.
    let mut programs = Vec::new();
    for _ in 0..200 {
        let program = fixture.hostile();
        for _ in 0..2 {
            let sender = fixture.lingering();
            linger::send(&program.socket, b"garbage", &[sender.as_fd()]).expect("sent");
        }
        programs.push(program);
    }
    fixture.serve();
    for program in &programs {
        assert!(program.hear().is_none());
    }
    fixture.is_undisturbed("what is in the queues of those who are dismissed");
    // While many of its closes are under way, a user's further calls are turned away.
    let answered = || fixture.as_user(HOSTILE, || status::query(&fixture.path)).ok();
    let found = eventually("an answer to the same user", answered);
    assert_eq!((found.processes, found.waiting), (0, 0));
}

/// A person with many user numbers, as from `/etc/subuid`, has a thread of the service for each of them.
#[test]
fn unmapped_users_exclude_nobody_else() {
    const USERS: u32 = 4096;
    let Some(mut fixture) = Fixture::new() else { return };
    fixture.serve();
    let connect = |fixture: &Fixture, user| {
        fixture.as_user(user, || {
            let end = Instant::now() + protocol_client::TIMEOUT;
            loop {
                match Socket::connect(&fixture.path) {
                    // Too many wait there; the service comes to them.
                    Err(rustix::io::Errno::AGAIN) if Instant::now() < end => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    connected => return connected.expect("it listens"),
                }
            }
        })
    };
    // Does the service answer this program, or hang up on it?
    let is_heard = |socket: &Socket| {
        let _hung_up = socket.send(&Packet::new(Kind::Ask, 1).encode(), &[]);
        let end = Instant::now() + protocol_client::TIMEOUT;
        loop {
            match socket.receive(&mut [0; PACKET_BYTES]).expect("one of ours") {
                Received::Packet(..) => return true,
                Received::Closed => return false,
                Received::Nothing => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < end, "nobody answers");
        }
    };
    let crowd: Vec<_> = (0..USERS).map(|user| connect(&fixture, 100_000 + user)).collect();
    // These users get no more threads or programs.
    assert!(!is_heard(&crowd[USERS as usize - 1]));
    assert!(is_heard(&connect(&fixture, HONEST)), "nor do others");
    let (client, server) = connection();
    let root = [ProtocolClient::new(&fixture.path), ProtocolClient::new(&fixture.path)];
    root[0].pairs_with(&root[1], client.as_fd(), server.as_fd());
    fixture.began = Instant::now();
    fixture.is_undisturbed("users who are there");
    // After they have gone, others like them are let in as soon as their threads have ended.
    drop(crowd);
    let end = Instant::now() + protocol_client::TIMEOUT;
    for user in USERS..USERS + 64 {
        while !is_heard(&connect(&fixture, 100_000 + user)) {
            assert!(Instant::now() < end, "their places are lost");
        }
    }
}
