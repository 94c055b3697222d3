//! A peer that speaks the protocol by hand, so that it can break every rule.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bywire::handshake::{Introduction, PACKET_BYTES_MAX, Packet};
use bywire::{Address, Geometry, PortName, Refusal};
use bywire_ring::doorbell::DOORBELL_BYTES;
use bywire_ring::geometry::LINE_BYTES;
use bywire_ring::geometry::{LANES, LARGE_WINDOW_BYTES, LaneName};
use bywire_ring::header::{Header, PROMPT, lap};
use bywire_ring::lane::{Consumer, Producer};
use bywire_ring::memory::{Memory, Shared};
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::listener::Listener;
use bywire_sys::memory::Mapping;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::wake::Doorbell;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::eventually;

/// The kinds of records, by their numbers in the protocol.
pub const MESSAGE: u8 = 1;
pub const FIRST: u8 = 2;
pub const NEXT: u8 = 3;
pub const DATAGRAM: u8 = 4;
pub const PUT: u8 = 5;
pub const PUT_NEXT: u8 = 6;
pub const PUT_NOTE: u8 = 7;
pub const GET: u8 = 8;
pub const LENT: u8 = 9;
pub const MOVE_BULK: u8 = 13;
pub const HEADED: u8 = 14;

/// The seals that memory needs to be mapped.
pub const ALL_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Memory of this length, allocated or all holes, with these seals.
pub fn sealed(length: u64, filled: bool, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("rogue", MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&file, length).expect("ftruncate");
    if filled {
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length).expect("fallocate");
    }
    rustix::fs::fcntl_add_seals(&file, seals).expect("seal");
    file
}

/// A rogue's part of a handshake.
pub struct Rogue {
    pub name: PortName,
    pub directory: PathBuf,
    pub geometry: Geometry,
    /// The segment that it writes, and the segment's descriptor.
    pub segment: Shared,
    pub segment_file: OwnedFd,
    pub page: Shared,
    pub page_file: OwnedFd,
    pub doorbell: Doorbell,
    pub listener: Listener,
}

/// A rogue that was let in.
pub struct Inside {
    pub socket: Socket,
    /// The segment of the victim.
    pub inbound: Shared,
    pub victim_page: Shared,
    pub victim_doorbell: OwnedFd,
    pub producers: [Producer; 3],
    pub consumers: [Consumer; 3],
}

impl Rogue {
    pub fn new(directory: &Path, name: &str) -> Self {
        let geometry = Geometry::default();
        let (segment, segment_file) = Mapping::create("rogue", geometry.segment_bytes()).expect("memory");
        let (page, page_file) = Mapping::create("rogue", DOORBELL_BYTES).expect("memory");
        let path = directory.join(format!("{name}.port"));
        let _ = std::fs::remove_file(&path);
        Self {
            name: name.parse().expect("a name"),
            directory: directory.to_owned(),
            geometry,
            segment: Shared::new(segment),
            segment_file,
            page: Shared::new(page),
            page_file,
            doorbell: Doorbell::new().expect("pipe"),
            listener: Listener::bind(&path).expect("bind"),
        }
    }

    pub fn introduction(&self) -> Introduction {
        Introduction {
            port: self.name.clone(),
            incarnation: 1,
            message_bytes_max: 1 << 20,
            integrity: false,
            geometry: self.geometry,
        }
    }

    /// The packet of an honest introduction.
    pub fn hello(&self) -> Vec<u8> {
        Packet::Hello(self.introduction()).to_bytes()
    }

    /// The packet of an honest answer to an introduction.
    pub fn welcome(&self) -> Vec<u8> {
        Packet::Welcome(self.introduction()).to_bytes()
    }

    pub fn address(&self) -> Address {
        Address::local(self.name.clone())
    }

    /// The next caller.
    pub fn accept(&self) -> Socket {
        eventually("a caller", || self.listener.accept().expect("accept"))
    }

    /// Calls a port and sends it a first packet.
    pub fn approach(&self, victim: &str, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Socket {
        let socket = self.connect(victim);
        introduce(&socket, packet, descriptors);
        socket
    }

    pub fn connect(&self, victim: &str) -> Socket {
        Socket::connect(&self.directory.join(format!("{victim}.port"))).expect("connect")
    }

    /// The three descriptors of an honest introduction.
    pub fn offer(&self) -> [BorrowedFd<'_>; 3] {
        [self.segment_file.as_fd(), self.page_file.as_fd(), self.doorbell.ringing_end()]
    }

    /// Does an honest handshake, and waits for the answer.
    pub fn enter(&self, victim: &str) -> Result<Inside, Refusal> {
        self.inside(self.approach(victim, &self.hello(), &self.offer()))
    }

    /// Takes the victim's answer.
    pub fn inside(&self, socket: Socket) -> Result<Inside, Refusal> {
        let (packet, files) = answer(&socket).ok_or(Refusal::Closed)?;
        let theirs = match packet {
            Packet::Welcome(theirs) => theirs,
            Packet::Refuse(refusal) => return Err(refusal),
            other => panic!("{other:?} in answer to an introduction"),
        };
        let [segment, page, doorbell]: [OwnedFd; 3] = files.try_into().expect("three descriptors");
        let map = |file, length| Shared::new(Mapping::accept(file, length).expect("an honest offer"));
        Ok(Inside {
            socket,
            inbound: map(&segment, theirs.geometry.segment_bytes()),
            victim_page: map(&page, DOORBELL_BYTES),
            victim_doorbell: doorbell,
            producers: LANES.map(|lane| Producer::new(self.geometry.lane(lane))),
            consumers: LANES.map(|lane| Consumer::new(theirs.geometry.lane(lane))),
        })
    }

    /// Offers a large window, as the protocol says.
    pub fn offer_bulk(inside: &Inside) -> Shared {
        let (mapping, file) = Mapping::create("rogue", LARGE_WINDOW_BYTES).expect("memory");
        let _ = inside.socket.send(&Packet::Bulk.to_bytes(), &[file.as_fd()]);
        Shared::new(mapping)
    }

    /// Offers a heap of blocks of 64 bytes in a page.
    pub fn offer_heap(inside: &Inside, blocks: u32) {
        let (_memory, file) = Mapping::create("rogue", 4096).expect("memory");
        let heap = Packet::Heap { id: 0, block_bytes: 64, blocks };
        inside.socket.send(&heap.to_bytes(), &[file.as_fd()]).expect("room");
    }

    /// Moves once, to an area that was offered. `false`: no room.
    pub fn move_bulk(&mut self, inside: &mut Inside, area: Shared) -> bool {
        let moved = self.push(inside, LaneName::Low, MOVE_BULK | PROMPT, &[]);
        if moved {
            let offset = self.segment.extend(area);
            inside.producers[LaneName::Low as usize].move_bulk(offset);
        }
        moved
    }

    /// Offers a large window and moves there.
    ///
    /// # Panics
    /// Without room.
    pub fn move_to_bulk(&mut self, inside: &mut Inside) {
        let area = Self::offer_bulk(inside);
        assert!(self.move_bulk(inside, area));
    }

    /// Publishes a record of words; `false`: no room.
    pub fn push(&self, inside: &mut Inside, lane: LaneName, kind: u8, words: &[u64]) -> bool {
        let header = Header { kind, length: 8 * words.len() as u16, check: 0 };
        let producer = &mut inside.producers[lane as usize];
        let pushed = producer.push_inline(&self.segment, &inside.inbound, header, words).is_ok();
        self.segment.fence();
        // Rings whether the victim sleeps or not: one ring too many does no harm.
        let _ = rustix::io::write(&inside.victim_doorbell, b"!");
        pushed
    }
}

impl Rogue {
    /// Publishes a record of low priority with a payload in the bulk area.
    ///
    /// # Panics
    /// Without room.
    pub fn push_low(&self, inside: &mut Inside, kind: u8, words: &[u64], payload: &[u8]) {
        let producer = &mut inside.producers[LaneName::Low as usize];
        let header = Header { kind, length: 0, check: 0 };
        producer.push_bulk(&self.segment, &inside.inbound, header, words, payload).expect("room");
        self.segment.fence();
        let _ = rustix::io::write(&inside.victim_doorbell, b"!");
    }

    /// The place of the header of the last record of low priority.
    pub fn last_slot(&self, inside: &Inside) -> usize {
        let last = inside.producers[LaneName::Low as usize].position() - 1;
        let layout = self.geometry.lane(LaneName::Low);
        layout.slots_offset + (last as usize % (1 << layout.slots_log2)) * LINE_BYTES
    }

    /// Changes the header of the last record of low priority.
    pub fn rewrite(&self, inside: &Inside, header: Header) {
        let last = inside.producers[LaneName::Low as usize].position() - 1;
        let word = header.word(lap(last, self.geometry.lane(LaneName::Low).slots_log2));
        self.segment.store(self.last_slot(inside), word, Ordering::Release);
    }
}

impl Inside {
    /// Returns whether the victim has ended the connection.
    pub fn is_over(&self) -> bool {
        is_over(&self.socket)
    }
}

/// Returns whether the other end has been closed. Packets before the close are lost.
pub fn is_over(socket: &Socket) -> bool {
    let mut bytes = [0; PACKET_BYTES_MAX];
    loop {
        match socket.receive(&mut bytes) {
            Ok(Received::Packet(..)) => {}
            Ok(Received::Nothing) => return false,
            Ok(Received::Closed) | Err(_) => return true,
        }
    }
}

/// Sends a first packet with descriptors. While many sockets of this user wait to be closed, the kernel takes descriptors only
/// once the victim has accepted the connection. A victim without resources ends that before; its answer says why.
pub fn introduce(socket: &Socket, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
    while let Err(error) = socket.send(packet, descriptors) {
        if error == Errno::PIPE {
            return;
        }
        assert_eq!(error, Errno::PERM, "the introduction is refused");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a packet; `None`: the connection was closed without one.
pub fn answer(socket: &Socket) -> Option<(Packet, Vec<OwnedFd>)> {
    let mut bytes = [0; PACKET_BYTES_MAX];
    loop {
        match socket.receive(&mut bytes) {
            Ok(Received::Packet(length, files)) => {
                let files = files.into_iter().map(ReceivedFd::into_inner).collect();
                return Some((Packet::parse(&bytes[..length]).expect("our version"), files));
            }
            Ok(Received::Nothing) => {
                let mut asked = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
                let minute = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
                assert_eq!(rustix::event::poll(&mut asked, Some(&minute)), Ok(1), "no answer in a minute");
            }
            // This process belongs to the victim's user, and shares its account.
            Err(Errno::DQUOT) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Received::Closed) | Err(_) => return None,
        }
    }
}
