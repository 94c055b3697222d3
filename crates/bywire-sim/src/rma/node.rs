//! One end, the memory that it has registered, and what that has to be.

use std::collections::BTreeMap;

use bywire_match::rma::{Access, AccessId, Denied, Limits, Memory, Place, Rma};
use bywire_match::{PeerId, Sink};

/// The bytes of each region.
pub const REGION_BYTES: u64 = 4_000;

/// The buffer of a read.
#[derive(Debug)]
pub struct Buffer {
    /// The number of the operation.
    pub operation: usize,
    pub bytes: Vec<u8>,
}

impl Sink for Buffer {
    fn capacity(&self) -> u64 {
        u64::MAX
    }

    fn write(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
    }
}

/// Registered memory.
#[derive(Debug)]
pub struct Region {
    pub bytes: Vec<u8>,
    /// What is known of each byte.
    pub known: Vec<Option<u8>>,
    pub may_be_written: bool,
}

impl Region {
    fn new(key: u64) -> Self {
        let bytes: Vec<u8> = (0..REGION_BYTES).map(|place| (place * 7 + key * 31) as u8).collect();
        let known = bytes.iter().copied().map(Some).collect();
        Self { bytes, known, may_be_written: key % 4 != 3 }
    }
}

/// The regions of a node, by key.
#[derive(Debug, Default)]
pub struct Regions(pub BTreeMap<u64, Region>);

impl Regions {
    pub fn add(&mut self, key: u64) {
        self.0.insert(key, Region::new(key));
    }

    /// The bytes of a place that was checked.
    pub fn read(&self, place: Place) -> Option<Vec<u8>> {
        let begin = place.offset as usize;
        Some(self.0.get(&place.key)?.bytes[begin..begin + place.length as usize].to_vec())
    }
}

impl Memory for Regions {
    fn check(&self, access: Access, place: Place) -> Result<(), Denied> {
        let region = self.0.get(&place.key).ok_or(Denied::NoMemory)?;
        if access == Access::Write && !region.may_be_written {
            return Err(Denied::NoRight);
        }
        let end = place.offset.checked_add(place.length).ok_or(Denied::OutOfBounds)?;
        if end <= REGION_BYTES { Ok(()) } else { Err(Denied::OutOfBounds) }
    }

    fn write(&mut self, place: Place, payload: &[u8]) {
        let region = self.0.get_mut(&place.key).expect("memory that was withdrawn is not written");
        let begin = place.offset as usize;
        region.bytes[begin..begin + payload.len()].copy_from_slice(payload);
    }
}

/// A node. The handle of a write is the operation's number.
pub struct Node {
    pub rma: Rma<usize, Buffer>,
    /// Its peers by their numbers, itself included.
    pub peers: Vec<PeerId>,
    pub regions: Regions,
    /// Places to expose.
    pub exposes: Vec<(AccessId, Place)>,
    /// Exposed places, by the region of the link.
    pub exposures: BTreeMap<u64, (AccessId, Place)>,
    /// Operations that read, by the region of the link that they are put into.
    pub reads: BTreeMap<u64, usize>,
    /// Operations whose events it has not taken.
    pub under_way: usize,
}

impl Node {
    pub fn new(limits: Limits, nodes: usize) -> Self {
        let mut rma = Rma::new(limits);
        let peers = (0..nodes).map(|_| rma.add_peer().expect("room for all nodes")).collect();
        let (regions, exposes, exposures, reads) = Default::default();
        Self { rma, peers, regions, exposes, exposures, reads, under_way: 0 }
    }
}
