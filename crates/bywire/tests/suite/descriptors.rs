//! Peers and strangers send descriptors that close slowly, wherever a port takes some. The port and its other peers
//! go on.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use bywire::handshake::Packet;
use bywire::{Address, Admit, ConnectError, Event, Peer, Port, PortName, PortOptions, Priority, Refusal};
use bywire_sys::socket::Socket;
use bywire_testing::here;
use bywire_testing::linger::{self, PACKET_DESCRIPTORS_MAX, UNDISTURBED, lingering};
use bywire_testing::rogue::{self, Rogue};
use rustix::process::Uid;

use crate::fuse::Unclosable;
use crate::ports::{PortDirectory, meet, until};

/// A port, a connected honest peer, and a peer that is about to break the rules.
struct Fixture {
    victim: Port,
    honest: Port,
    to_honest: Peer,
    to_victim: Peer,
    rogue: Rogue,
    began: Instant,
    /// The unread ends.
    receivers: Vec<TcpStream>,
    _place: PortDirectory,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Admit::SameUser)
    }

    /// A fixture in a directory for all users.
    fn with(admit: Admit) -> Self {
        let place = PortDirectory::new();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o1777)).expect("chmod");
        let name = Some("victim".parse().expect("a name"));
        let mut victim = place.open(PortOptions { name, admit, ..place.options() });
        let mut honest = place.open(place.options());
        let (to_victim, to_honest) = meet(&mut honest, &mut victim);
        let rogue = Rogue::new(place.path(), "rogue");
        let receivers = Vec::new();
        Self { victim, honest, to_honest, to_victim, rogue, began: Instant::now(), receivers, _place: place }
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

    /// A peer made by the rogue.
    fn let_in(&mut self) -> (Socket, Peer) {
        let hello = Packet::Hello(self.rogue.introduction()).to_bytes();
        let socket = self.rogue.connect("victim");
        linger::send(&socket, &hello, &self.rogue.offer()).expect("sent");
        let mut peer = None;
        until(|| {
            if let Some(Event::Connected(found)) =
                self.victim.wait(Some(Duration::from_millis(1))).expect("wait")
            {
                peer = Some(found);
            }
            peer.is_some()
        });
        (socket, peer.expect("connected"))
    }

    /// Checks that the port answers its honest peer, and has not been delayed so far.
    fn is_undisturbed(&mut self, what: &str) {
        for round in 0..50u32 {
            self.victim.send(self.to_honest, Priority::Low, &round.to_ne_bytes()).expect("room");
            self.expect_message(round, true);
            self.honest.send(self.to_victim, Priority::High, &round.to_ne_bytes()).expect("room");
            self.expect_message(round, false);
        }
        let elapsed = self.began.elapsed();
        assert!(elapsed < UNDISTURBED, "{what}: the port was held up for {elapsed:?}");
    }

    fn expect_message(&mut self, round: u32, is_honest: bool) {
        let mut is_there = false;
        until(|| {
            let at_victim = self.victim.wait(Some(Duration::ZERO)).expect("wait");
            let at_honest = self.honest.wait(Some(Duration::ZERO)).expect("wait");
            let heard = if is_honest { at_honest } else { at_victim };
            if let Some(Event::Message(message)) = heard {
                assert_eq!(&message.payload[..], round.to_ne_bytes());
                is_there = true;
            }
            is_there
        });
    }

    /// Runs the port until a stranger's socket is closed.
    fn until_over(&mut self, socket: &Socket) {
        let mut is_over = false;
        until(|| {
            self.victim.wait(Some(Duration::from_millis(1))).expect("wait");
            is_over = is_over || rogue::is_over(socket);
            is_over
        });
    }
}

#[test]
fn a_packet_with_too_many_descriptors_delays_nobody() {
    let mut fixture = Fixture::new();
    let null = std::fs::File::open("/dev/null").expect("open");
    for (packet, count) in [
        (b"x".to_vec(), PACKET_DESCRIPTORS_MAX),
        (Packet::Hello(fixture.rogue.introduction()).to_bytes(), PACKET_DESCRIPTORS_MAX),
        (Packet::Hello(fixture.rogue.introduction()).to_bytes(), 4),
        (vec![0; 5000], PACKET_DESCRIPTORS_MAX),
    ] {
        let sender = fixture.lingering();
        let mut many = vec![null.as_fd(); count - 1];
        many.push(sender.as_fd());
        let socket = fixture.approach(&packet, &many);
        drop(sender);
        fixture.until_over(&socket);
        fixture.is_undisturbed(&format!("{} bytes with {count} descriptors", packet.len()));
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
            fixture.victim.disconnect(peer);
        }
        fixture.until_over(&socket);
        fixture.is_undisturbed(&format!("{count} descriptors of a peer"));
    }
}

#[test]
fn lingering_files_in_place_of_memory_or_doorbell_delay_nobody() {
    let mut fixture = Fixture::new();
    for place in 0..3 {
        let hello = Packet::Hello(fixture.rogue.introduction()).to_bytes();
        let sender = fixture.lingering();
        let socket = fixture.rogue.connect("victim");
        let mut offer = fixture.rogue.offer();
        offer[place] = sender.as_fd();
        linger::send(&socket, &hello, &offer).expect("sent");
        drop(sender);
        fixture.until_over(&socket);
        fixture.is_undisturbed(&format!("in place {place}"));
    }
    // Offers of a heap and of a bulk area.
    for packet in [Packet::Heap { id: 0, block_bytes: 64, blocks: 1 }, Packet::Bulk] {
        let sender = fixture.lingering();
        let (socket, _) = fixture.let_in();
        linger::send(&socket, &packet.to_bytes(), &[sender.as_fd()]).expect("sent");
        drop(sender);
        fixture.until_over(&socket);
        fixture.is_undisturbed(&format!("{packet:?}"));
    }
}

#[test]
fn unread_descriptors_in_refused_or_ended_sockets_delay_nobody() {
    let mut fixture = Fixture::new();
    // An introduction of another version, which is refused; one to a name that no port has; and a packet of one byte.
    let mut version = Packet::Hello(fixture.rogue.introduction()).to_bytes();
    version[4] ^= 0x55;
    let mut nobody = fixture.rogue.introduction();
    nobody.port = "nobody".parse().expect("a name");
    for packet in [version, Packet::Hello(nobody).to_bytes(), b"x".to_vec()] {
        let socket = fixture.rogue.connect("victim");
        linger::send(&socket, &packet, &fixture.rogue.offer()).expect("sent");
        fixture.pile_up(&socket);
        fixture.until_over(&socket);
        fixture.is_undisturbed("refused");
    }
    // Strangers that make room for others, and strangers that still wait when the port is closed.
    let hoard: Vec<_> = (0..100).map(|_| fixture.rogue.connect("victim")).collect();
    fixture.victim.wait(Some(Duration::from_millis(1))).expect("wait");
    hoard.iter().for_each(|socket| fixture.pile_up(socket));
    fixture.is_undisturbed("too many");
    let late: Vec<_> = (0..10).map(|_| fixture.rogue.connect("victim")).collect();
    late.iter().for_each(|socket| fixture.pile_up(socket));
    let Fixture { victim, began, receivers, .. } = fixture;
    drop(victim);
    let elapsed = began.elapsed();
    assert!(elapsed < UNDISTURBED, "closing the port took {elapsed:?}");
    drop(receivers);
}

#[test]
fn a_lingering_answer_does_not_delay_the_connecting_port() {
    let mut fixture = Fixture::new();
    let address = Address::local("rogue".parse::<PortName>().expect("a name"));
    for place in 0..3 {
        let sender = fixture.lingering();
        let welcome = Packet::Welcome(fixture.rogue.introduction()).to_bytes();
        let began = Instant::now();
        let answered = std::thread::scope(|scope| {
            let rogue = &fixture.rogue;
            scope.spawn(move || {
                let mut caller = None;
                until(|| {
                    caller = rogue.listener.accept().expect("accept");
                    caller.is_some()
                });
                let caller = caller.expect("somebody");
                let mut offer = rogue.offer();
                offer[place] = sender.as_fd();
                linger::send(&caller, &welcome, &offer).expect("sent");
                // If the caller is faster, this copy is the last.
                std::thread::spawn(move || drop(sender));
                // By then the answer has arrived. Nothing follows it.
                std::thread::sleep(Duration::from_millis(100));
            });
            fixture.honest.connect(&address, Duration::from_secs(50))
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
    let (place, victim) = (fixture.rogue.directory.clone(), &mut fixture.victim);
    std::thread::scope(|scope| {
        let approaching = scope.spawn(|| {
            let user = Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may be anybody");
            let rogue = Rogue::new(&place, name);
            let hello = Packet::Hello(rogue.introduction()).to_bytes();
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
        });
        until(|| {
            victim.wait(Some(Duration::from_millis(1))).expect("wait");
            approaching.is_finished()
        });
        approaching.join().expect("answered")
    })
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
    let mut answer = Vec::new();
    until(|| {
        answer = approach_as(HOSTILE, &mut fixture, "after", &[None]);
        matches!(answer[..], [Some(Packet::Welcome(_))])
    });
}
