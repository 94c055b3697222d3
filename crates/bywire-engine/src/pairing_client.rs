//! The engine as a client of the pairing service: how it announces itself, and what the service tells it.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::{Rc, Weak};

use bywire_pairing::protocol::{
    DOORBELL_MARK, Kind, PACKET_BYTES, PAGE_BYTES, Packet, VERSION, Verdict, address_words,
};
use bywire_ring::owner;
use bywire_ring::stream::rest_bytes;
use bywire_sys::Errno;
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::life::Life;
use bywire_sys::memory::{Mapping, in_two};
use bywire_sys::socket::{Received, Socket};
use bywire_sys::wake::Eventfd;

/// A message of the pairing service to an engine.
#[derive(Debug)]
pub enum Told {
    /// It serves this user's programs from now on.
    Accepted,
    /// Another engine serves this user.
    Occupied,
    /// It may serve this connection, under this name. `is_required`: the program sends nothing otherwise.
    Take { name: u64, link: u8, is_required: bool, socket: OwnedFd },
    /// A program has asked whether an address is a node's.
    Located,
    /// The connection of this name is paired with the program of this number.
    Paired { name: u64, program: u32, doorbell: OwnedFd, page: OwnedFd, segment: Vec<OwnedFd> },
    /// The connection of this name is not paired after all.
    Refused { name: u64 },
    /// The program of the connection of this name has ended it, or itself.
    Gone { name: u64 },
    /// Something that needs no answer.
    Nothing,
}

/// The connection with the service, and what the engine passes to programs.
#[derive(Debug)]
pub struct PairingClient {
    socket: Socket,
    doorbell: Eventfd,
    life: Rc<Life>,
    /// Packets for which the service had no room, with the segment that they bring.
    waiting: VecDeque<(Packet, Segment)>,
    /// The rest of every segment to which the engine writes nothing.
    rest: OwnedFd,
}

/// The segment that a packet brings.
#[derive(Debug)]
enum Segment {
    None,
    /// The head of one to which nothing is written.
    Head(OwnedFd),
    /// Head and rest.
    Both([OwnedFd; 2]),
}

impl PairingClient {
    /// Connects to the service at `path`, and offers to serve by these links, the machines with these addresses among others.
    /// The calling thread is the one whose end the programs see.
    ///
    /// # Errors
    /// The error of the kernel: nobody listens there, or there is no memory.
    pub fn connect(path: &Path, links: u8, nodes: &HashSet<IpAddr>) -> Result<Self, Errno> {
        let doorbell = Eventfd::new()?;
        doorbell.mark(DOORBELL_MARK)?;
        let (page, page_file) = Mapping::create("bywire-engine", PAGE_BYTES)?;
        let life = Life::begin(page, owner::MUTEX_OFFSET)?;
        let rest = in_two::emptiable("bywire-engine", rest_bytes())?;
        let socket = Socket::connect(path)?;
        let hello = Packet { number: std::process::id(), first: VERSION, ..Packet::new(Kind::Hello, 0) };
        socket.send(&hello.encode(), &[doorbell.as_fd(), page_file.as_fd()])?;
        let mut client = Self { socket, doorbell, life: Rc::new(life), waiting: VecDeque::new(), rest };
        let first = nodes.len() as u64;
        client.say(Packet { code: links, first, ..Packet::new(Kind::Serve, 0) }, Segment::None);
        nodes.iter().for_each(|address| client.note_node(*address, true));
        Ok(client)
    }

    /// Tells the service that another machine of the fabric has this address, or has it no more.
    pub fn note_node(&mut self, address: IpAddr, is_there: bool) {
        let [first, second] = address_words(address);
        let packet = Packet { code: is_there.into(), first, second, ..Packet::new(Kind::Node, 0) };
        self.say(packet, Segment::None);
    }

    /// The socket, to be polled.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The doorbell that programs ring while the page says that the engine sleeps.
    pub fn doorbell(&self) -> &Eventfd {
        &self.doorbell
    }

    /// The page that programs look at, for as long as the engine lives.
    pub fn own_page(&self) -> Weak<Life> {
        Rc::downgrade(&self.life)
    }

    /// The page that programs look at.
    pub fn page(&self) -> &Mapping {
        self.life.memory()
    }

    /// Offers the segment whose head is in this file for a connection to which the engine writes nothing.
    pub fn offer(&mut self, name: u64, head: OwnedFd) {
        self.say(Packet::new(Kind::Taken, name), Segment::Head(head));
    }

    /// Offers the segment in these two files for a connection.
    pub fn offer_both(&mut self, name: u64, files: [OwnedFd; 2]) {
        self.say(Packet::new(Kind::Taken, name), Segment::Both(files));
    }

    /// Refuses a connection.
    pub fn refuse(&mut self, name: u64) {
        self.say(Packet::new(Kind::Taken, name), Segment::None);
    }

    /// Tells the service that the engine is done with a connection, and has taken `bytes` out of the program's ring.
    pub fn end(&mut self, name: u64, bytes: u64) {
        self.say(Packet { second: bytes, ..Packet::new(Kind::End, name) }, Segment::None);
    }

    /// The engine has heard that the program of this connection has gone.
    pub fn has_heard(&mut self, name: u64) {
        self.say(Packet::new(Kind::Gone, name), Segment::None);
    }

    /// The engine ends in order.
    pub fn leave(&mut self) {
        self.say(Packet::new(Kind::Leave, 0), Segment::None);
    }

    fn say(&mut self, packet: Packet, segment: Segment) {
        self.waiting.push_back((packet, segment));
        self.say_what_waits();
    }

    /// Sends packets for which there was no room before. Returns whether some still wait. A service that has gone is noticed
    /// when it is heard next.
    pub fn say_what_waits(&mut self) -> bool {
        while let Some((packet, segment)) = self.waiting.front() {
            let files: Vec<BorrowedFd<'_>> = match segment {
                Segment::Head(head) => vec![head.as_fd(), self.rest.as_fd()],
                Segment::Both(files) => files.iter().map(AsFd::as_fd).collect(),
                Segment::None => Vec::new(),
            };
            if self.socket.send(&packet.encode(), &files) == Err(Errno::AGAIN) {
                return true;
            }
            self.waiting.pop_front();
        }
        false
    }

    /// Returns the service's next message, if there is one.
    ///
    /// # Errors
    /// [`Errno::PIPE`] if the service has gone, or sends a message that it must not.
    pub fn receive(&self) -> Result<Option<Told>, Errno> {
        let mut buffer = [0; PACKET_BYTES];
        match self.socket.receive(&mut buffer)? {
            Received::Nothing => Ok(None),
            Received::Closed => Err(Errno::PIPE),
            Received::Packet(length, files) => {
                let packet = buffer.get(..length).and_then(Packet::decode).ok_or(Errno::PIPE)?;
                let files = files.into_iter().map(ReceivedFd::into_inner).collect();
                Ok(Some(told(&packet, files)))
            }
        }
    }
}

fn told(packet: &Packet, mut files: Vec<OwnedFd>) -> Told {
    let name = packet.token;
    match (packet.kind, Verdict::of(packet.code)) {
        (Kind::Take, _) if files.len() == 1 => {
            let (link, is_required) = (packet.code, packet.first != 0);
            files.pop().map_or(Told::Nothing, |socket| Told::Take { name, link, is_required, socket })
        }
        (Kind::Located, _) => Told::Located,
        (Kind::Gone, _) => Told::Gone { name },
        (Kind::Answer, Some(Verdict::Waiting)) if name == 0 => Told::Accepted,
        (Kind::Answer, _) if name == 0 => Told::Occupied,
        // The head of the segment, the doorbell, the page, and the rest of the segment if there is one.
        (Kind::Answer, Some(Verdict::Paired)) if files.len() >= 3 => {
            let rest = files.split_off(3);
            let mut files = files.into_iter();
            match (files.next(), files.next(), files.next()) {
                (Some(head), Some(doorbell), Some(page)) => {
                    let segment = std::iter::once(head).chain(rest).collect();
                    Told::Paired { name, program: packet.number, doorbell, page, segment }
                }
                _ => Told::Refused { name },
            }
        }
        (Kind::Answer, _) => Told::Refused { name },
        _ => Told::Nothing,
    }
}
