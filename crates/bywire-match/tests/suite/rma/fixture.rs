//! Ends of RMA whose memory is an array, and the link between two of them.

use std::cell::RefCell;
use std::collections::HashMap;

use bywire_match::rma::{
    Access, AccessId, Denied, Event, Frame, Limits, Memory, Note, Place, PutId, Rma, Source,
};
use bywire_match::{PeerId, Refused, Sink};

/// Frames of the link, heads included.
pub const FRAGMENT_BYTES: usize = 512;
/// The key of the memory, and of memory that may be read only.
pub const KEY: u64 = 77;
pub const READ_ONLY: u64 = 78;

pub fn limits() -> Limits {
    Limits {
        peers: 4,
        operations: 100,
        short_bytes: 400,
        unanswered: 20,
        puts_of_reads: 12,
        puts_of_reads_of_peer: 8,
    }
}

/// The memory of one end, by key.
#[derive(Debug, Default)]
pub struct Array(pub HashMap<u64, Vec<u8>>);

impl Array {
    pub fn read(&self, place: Place) -> Vec<u8> {
        self.0[&place.key][place.offset as usize..][..place.length as usize].to_vec()
    }
}

impl Memory for Array {
    fn check(&self, access: Access, place: Place) -> Result<(), Denied> {
        let array = self.0.get(&place.key).ok_or(Denied::NoMemory)?;
        if access == Access::Write && place.key == READ_ONLY {
            return Err(Denied::NoRight);
        }
        let end = place.offset.checked_add(place.length).ok_or(Denied::OutOfBounds)?;
        if end <= array.len() as u64 { Ok(()) } else { Err(Denied::OutOfBounds) }
    }

    fn write(&mut self, place: Place, payload: &[u8]) {
        let array = self.0.get_mut(&place.key).expect("it was checked");
        array[place.offset as usize..][..payload.len()].copy_from_slice(payload);
    }
}

/// The buffer of a read.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer(pub Vec<u8>);

impl Sink for Buffer {
    fn capacity(&self) -> u64 {
        u64::MAX
    }

    fn write(&mut self, payload: &[u8]) {
        self.0.extend_from_slice(payload);
    }
}

type End = Rma<Vec<u8>, Buffer>;

/// One end.
pub struct Node {
    pub rma: End,
    pub peer: PeerId,
    pub memory: Array,
    /// Are places exposed?
    pub exposes: bool,
    /// Places that are exposed, by the region of the link, which is the number of the write.
    pub exposures: HashMap<AccessId, u64>,
    pub regions: HashMap<u64, Place>,
    /// What was put for reads, by region.
    pub read: RefCell<HashMap<u64, Vec<u8>>>,
    next_region: u64,
    pub events: Vec<Event<Vec<u8>, Buffer>>,
}

impl Node {
    pub fn new(limits: Limits) -> Self {
        let mut rma = Rma::new(limits);
        let peer = rma.add_peer().expect("room for a peer");
        let bytes: Vec<u8> = (0..5000u32).map(|place| ((place * 31) >> 3) as u8).collect();
        let memory = Array([(KEY, bytes.clone()), (READ_ONLY, bytes)].into());
        Self {
            rma,
            peer,
            memory,
            exposes: true,
            exposures: HashMap::new(),
            regions: HashMap::new(),
            read: RefCell::default(),
            next_region: 0,
            events: Vec::new(),
        }
    }

    pub fn write(&mut self, place: Place, bytes: &[u8]) {
        self.rma.write(self.peer, place, Some(9), bytes.to_vec()).expect("room");
    }

    pub fn read(&mut self, place: Place, region: Option<u64>) {
        self.rma.read(self.peer, place, region, Buffer(Vec::new())).expect("room");
    }

    /// Takes events, and exposes places.
    pub fn take_events(&mut self) -> bool {
        let mut has_taken = false;
        while let Some(event) = self.rma.poll_event() {
            has_taken = true;
            match event {
                Event::Expose { access, place, .. } => {
                    self.next_region += 1;
                    let region = self.exposes.then_some(self.next_region);
                    if self.rma.grant(access, region)
                        && let Some(region) = region
                    {
                        self.exposures.insert(access, region);
                        self.regions.insert(region, place);
                    }
                }
                Event::Withdraw { access } => {
                    let region = self.exposures.remove(&access).expect("it was exposed");
                    self.regions.remove(&region);
                }
                event => self.events.push(event),
            }
        }
        has_taken
    }
}

/// What a link carries.
#[derive(Debug)]
pub enum Carried {
    Frame(Vec<u8>),
    Put { id: PutId, bytes: Vec<u8>, region: u64, note: Note },
}

/// What leaves at an end.
pub fn transmit(node: &mut Node) -> Vec<Carried> {
    let Node { rma, peer, memory, .. } = node;
    let bytes = |source: Source<'_, Vec<u8>>| match source {
        Source::Nothing => Vec::new(),
        Source::Write(write, range) => write[range.start as usize..range.end as usize].to_vec(),
        Source::Registered(place) => memory.read(place),
    };
    let mut carried = Vec::new();
    let is_all = rma.transmit(*peer, |frame| {
        carried.push(match frame {
            Frame::Message { head, source } | Frame::Piece { head, source } => {
                let frame = [head, &bytes(source)].concat();
                assert!(frame.len() <= FRAGMENT_BYTES, "{} bytes", frame.len());
                Carried::Frame(frame)
            }
            Frame::Put { id, source, region, note } => {
                Carried::Put { id, bytes: bytes(source), region, note }
            }
        });
        true
    });
    assert!(is_all);
    carried
}

/// Brings it to the other end. A put into nothing fails.
pub fn deliver(source: &mut Node, target: &mut Node, carried: Vec<Carried>) {
    for carried in carried {
        match carried {
            Carried::Frame(frame) => {
                target.rma.arrive(target.peer, &frame, &mut target.memory).expect("a valid frame");
            }
            Carried::Put { id: id @ PutId::Write(_), bytes, region, note } => {
                let place = target.regions.get(&region).copied();
                if let Some(place) = place {
                    target.memory.write(place, &bytes);
                    target.rma.notified(target.peer, &note).expect("a valid note");
                }
                source.rma.put_done(id, place.is_some());
            }
            Carried::Put { id, bytes, region, note } => {
                target.read.borrow_mut().insert(region, bytes);
                target.rma.notified(target.peer, &note).expect("a valid note");
                source.rma.put_done(id, true);
            }
        }
    }
}

/// Two ends that are connected.
pub fn pair() -> [Node; 2] {
    [0, 1].map(|_| {
        let mut node = Node::new(limits());
        node.rma.connected(node.peer, FRAGMENT_BYTES);
        node
    })
}

/// Carries everything until nothing is left to carry.
pub fn exchange([one, other]: &mut [Node; 2]) {
    loop {
        let mut has_moved = one.take_events() | other.take_events();
        for _ in 0..2 {
            let carried = transmit(one);
            has_moved |= !carried.is_empty();
            deliver(one, other, carried);
            std::mem::swap(one, other);
        }
        if !has_moved {
            break;
        }
    }
}

pub fn place(key: u64, offset: u64, length: u64) -> Place {
    Place { key, offset, length }
}

/// Is it refused for lack of room?
pub fn is_full<T>(result: Result<(), (Refused, T)>) -> bool {
    matches!(result, Err((Refused::Full, _)))
}
