//! Peers and strangers send descriptors that close slowly, wherever a port takes some. The port and its other peers
//! go on.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bywire::handshake::Packet;
use bywire::{Admit, ConnectError, Peer, PortOptions, Refusal};
use bywire_sys::socket::Socket;
use bywire_testing::here::{self, as_user};
use bywire_testing::linger::{self, PACKET_DESCRIPTORS_MAX, UNDISTURBED, lingering};
use bywire_testing::rogue::{self, Rogue};

use crate::attacked::{Attacked, connect_to_rogue};
use crate::fuse::Unclosable;
use crate::ports::{MINUTE, PortDirectory, name, until};

/// An attacked port, and the peer that is about to break the rules.
struct Fixture {
    attacked: Attacked,
    rogue: Rogue,
    began: Instant,
    /// The unread ends.
    receivers: Vec<TcpStream>,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Admit::SameUser)
    }

    /// A fixture in a directory for all users.
    fn with(admit: Admit) -> Self {
        let attacked = Attacked::at(PortDirectory::shared(), PortOptions { admit, ..PortOptions::default() });
        let rogue = attacked.rogue();
        Self { attacked, rogue, began: Instant::now(), receivers: Vec::new() }
    }

    /// One more socket whose last close is slow.
    fn lingering(&mut self) -> OwnedFd {
        let (sender, receiver) = lingering();
        self.receivers.push(receiver);
        sender
    }

    /// Connects and sends the port a first packet with descriptors, and keeps no copy of them.
    fn approach(&mut self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Socket {
        let socket = self.rogue.connect("victim");
        linger::send(&socket, packet, descriptors).expect("sent");
        socket
    }

    /// Sends packets that the port does not read, each with a lingering socket.
    fn pile_up(&mut self, socket: &Socket) {
        for _ in 0..3 {
            let sender = self.lingering();
            // The port may have ended the connection by now.
            let _ = linger::send(socket, b"unread", &[sender.as_fd()]);
            // If the port is faster, this copy is the last.
            std::thread::spawn(move || drop(sender));
        }
    }

    /// Checks that the port answers its honest peer, and has not been delayed so far.
    fn is_undisturbed(&mut self, what: &str) {
        self.attacked.is_undisturbed();
        let elapsed = self.began.elapsed();
        assert!(elapsed < UNDISTURBED, "{what}: the port was held up for {elapsed:?}");
    }

    /// Runs the port until a stranger's socket is closed. The port goes on with its honest peer.
    fn until_over(&mut self, socket: &Socket, what: &str) {
        self.attacked.until_over(socket);
        self.is_undisturbed(what);
    }

    fn let_in(&mut self) -> (Socket, Peer) {
        let (inside, peer) = self.attacked.let_in(&self.rogue);
        (inside.socket, peer)
    }
}

#[test]
fn a_packet_with_too_many_descriptors_delays_nobody() {
    let mut fixture = Fixture::new();
    let null = std::fs::File::open("/dev/null").expect("open");
    for (packet, count) in [
        (b"x".to_vec(), PACKET_DESCRIPTORS_MAX),
        (fixture.rogue.hello(), PACKET_DESCRIPTORS_MAX),
        (fixture.rogue.hello(), 4),
        (vec![0; 5000], PACKET_DESCRIPTORS_MAX),
    ] {
        let sender = fixture.lingering();
        let mut many = vec![null.as_fd(); count - 1];
        many.push(sender.as_fd());
        let socket = fixture.approach(&packet, &many);
        drop(sender);
        fixture.until_over(&socket, &format!("{} bytes with {count} descriptors", packet.len()));
    }
}

#[test]
fn an_admitted_peer_delays_nobody() {
    let mut fixture = Fixture::new();
    for count in [0, 1, 4, PACKET_DESCRIPTORS_MAX] {
        let (socket, peer) = fixture.let_in();
        let senders: Vec<_> = (0..count.min(4)).map(|_| fixture.lingering()).collect();
        let many: Vec<_> = senders.iter().cycle().take(count).map(AsFd::as_fd).collect();
        linger::send(&socket, &Packet::Wake.to_bytes(), &many).expect("sent");
        drop(senders);
        fixture.pile_up(&socket);
        if count == 0 {
            // The port ends the connection, and has read none of it.
            fixture.attacked.victim.disconnect(peer);
        }
        fixture.until_over(&socket, &format!("{count} descriptors of a peer"));
    }
}

#[test]
fn lingering_files_in_place_of_memory_or_doorbell_delay_nobody() {
    let mut fixture = Fixture::new();
    for place in 0..3 {
        let hello = fixture.rogue.hello();
        let sender = fixture.lingering();
        let socket = fixture.rogue.connect("victim");
        let mut offer = fixture.rogue.offer();
        offer[place] = sender.as_fd();
        linger::send(&socket, &hello, &offer).expect("sent");
        drop(sender);
        fixture.until_over(&socket, &format!("in place {place}"));
    }
    // Offers of a heap and of a bulk area.
    for packet in [Packet::Heap { id: 0, block_bytes: 64, blocks: 1 }, Packet::Bulk] {
        let sender = fixture.lingering();
        let (socket, _) = fixture.let_in();
        linger::send(&socket, &packet.to_bytes(), &[sender.as_fd()]).expect("sent");
        drop(sender);
        fixture.until_over(&socket, &format!("{packet:?}"));
    }
}

#[test]
fn unread_descriptors_in_refused_or_ended_sockets_delay_nobody() {
    let mut fixture = Fixture::new();
    // An introduction of another version, which is refused; one to a name that no port has; and a packet of one byte.
    let mut version = fixture.rogue.hello();
    version[4] ^= 0x55;
    let mut nobody = fixture.rogue.introduction();
    nobody.port = name("nobody");
    for packet in [version, Packet::Hello(nobody).to_bytes(), b"x".to_vec()] {
        let socket = fixture.rogue.connect("victim");
        linger::send(&socket, &packet, &fixture.rogue.offer()).expect("sent");
        fixture.pile_up(&socket);
        fixture.until_over(&socket, "refused");
    }
    // Strangers that make room for others, and strangers that still wait when the port is closed.
    let hoard: Vec<_> = (0..100).map(|_| fixture.rogue.connect("victim")).collect();
    fixture.attacked.victim.wait(Some(Duration::from_millis(1))).expect("wait");
    hoard.iter().for_each(|socket| fixture.pile_up(socket));
    fixture.is_undisturbed("too many");
    let late: Vec<_> = (0..10).map(|_| fixture.rogue.connect("victim")).collect();
    late.iter().for_each(|socket| fixture.pile_up(socket));
    let Fixture { attacked, began, receivers, .. } = fixture;
    drop(attacked.victim);
    let elapsed = began.elapsed();
    assert!(elapsed < UNDISTURBED, "closing the port took {elapsed:?}");
    drop(receivers);
}

#[test]
fn a_lingering_answer_does_not_delay_the_connecting_port() {
    let mut fixture = Fixture::new();
    for place in 0..3 {
        let sender = fixture.lingering();
        let began = Instant::now();
        let rogue = &fixture.rogue;
        let answered = connect_to_rogue(&mut fixture.attacked.honest, rogue, MINUTE, |caller| {
            let mut offer = rogue.offer();
            offer[place] = sender.as_fd();
            linger::send(caller, &rogue.welcome(), &offer).expect("sent");
            // If the caller is faster, this copy is the last.
            std::thread::spawn(move || drop(sender));
            // By then the answer has arrived. Nothing follows it.
            std::thread::sleep(Duration::from_millis(100));
        });
        assert_eq!(answered.err(), Some(ConnectError::Refused(Refusal::BadOffer)), "in place {place}");
        assert!(began.elapsed() < UNDISTURBED, "held up for {:?}", began.elapsed());
    }
}

/// A user without an entry in the user database.
const HOSTILE: u32 = 54_361;

/// The port's answers to a peer of another user, for each offer in place of memory, or for an honest offer. `None`: it has closed
/// the connection without one, as it does while too many sockets of that user wait to be closed.
fn approach_as(
    user: u32,
    fixture: &mut Fixture,
    name: &str,
    offers: &[Option<&OwnedFd>],
) -> Vec<Option<Packet>> {
    let place = fixture.rogue.directory.clone();
    let approach = || {
        as_user(user, || {
            let rogue = Rogue::new(&place, name);
            let hello = rogue.hello();
            let say = |brought: &Option<&OwnedFd>| {
                let (socket, mut offer) = (rogue.connect("victim"), rogue.offer());
                if let Some(file) = brought {
                    offer[0] = file.as_fd();
                }
                // The peer may have been turned away before it has sent anything.
                let _ = linger::send(&socket, &hello, &offer);
                rogue::answer(&socket).map(|(answer, _)| answer)
            };
            offers.iter().map(say).collect()
        })
    };
    fixture.attacked.serve(approach).0
}

/// How many descriptors of this process are copies of this one.
fn copies(file: &OwnedFd) -> usize {
    let target = |number: &str| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
    let known = target(&file.as_raw_fd().to_string()).expect("it is open");
    let names = std::fs::read_dir("/proc/self/fd").expect("a list").flatten();
    names.filter(|entry| entry.file_name().to_str().and_then(target).as_ref() == Some(&known)).count()
}

/// No signal ends such a close. Only the account bounds how many descriptors one user can make a port hold.
#[test]
fn files_that_never_close_are_bounded_and_charged_to_their_user() {
    if !here::is_root() {
        return;
    }
    let mut unclosable = match Unclosable::new() {
        Ok(unclosable) => unclosable,
        Err(error) => return println!("not run: no FUSE file system can be mounted here ({error})"),
    };
    let mut fixture = Fixture::with(Admit::Everyone);
    let answers = approach_as(HOSTILE, &mut fixture, "hostile", &[Some(&unclosable.file); 200]);
    let is_turned_away = |answer: &Option<Packet>| {
        answer.as_ref().is_none_or(|answer| *answer == Packet::Refuse(Refusal::NoResources))
    };
    let taken = answers.iter().filter(|answer| **answer == Some(Packet::Refuse(Refusal::BadOffer))).count();
    let turned_away = answers.iter().filter(|answer| is_turned_away(answer)).count();
    assert_eq!(taken + turned_away, answers.len());
    // The port's limit for one user: of the three descriptors in each packet, one stays.
    assert!((1..=64).contains(&taken), "{taken} were taken");
    assert!(copies(&unclosable.file) <= 70, "those of one packet stay, and so do all behind it");
    fixture.is_undisturbed("a user whose descriptors do not close");
    let other = approach_as(HOSTILE + 1, &mut fixture, "other", &[None]);
    assert!(matches!(other[..], [Some(Packet::Welcome(_))]), "{other:?}");
    let again = approach_as(HOSTILE, &mut fixture, "again", &[None]);
    assert!(again.iter().all(is_turned_away), "whatever else this user offers: {again:?}");
    unclosable.end();
    until(|| matches!(approach_as(HOSTILE, &mut fixture, "after", &[None])[..], [Some(Packet::Welcome(_))]));
}
