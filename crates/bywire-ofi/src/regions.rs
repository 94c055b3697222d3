//! Memory that the program has registered, so that other endpoints may read or write it by its key.

use std::collections::HashMap;

use bywire::Buffer;
use bywire_match::rma::{Access, Denied, Memory as Registered, Place};

use crate::memory::Memory;

/// The most regions of a domain.
pub const REGIONS_MAX: usize = 1 << 20;

/// Registered memory. The program leaves it to the domain until it closes the region.
#[derive(Clone, Debug)]
pub struct Region {
    pub memory: Memory,
    /// What other endpoints name as the place of its first byte: its address, or 0.
    pub base: u64,
    pub may_be_read: bool,
    pub may_be_written: bool,
    /// Counts accesses of other endpoints.
    pub read_counter: Option<usize>,
    pub write_counter: Option<usize>,
}

/// Regions by their key.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    by_key: HashMap<u64, Region>,
}

impl Regions {
    /// Can a region with this key be added?
    pub fn has_room_for(&self, key: u64) -> bool {
        self.by_key.len() < REGIONS_MAX && !self.by_key.contains_key(&key)
    }

    pub fn insert(&mut self, key: u64, region: Region) {
        self.by_key.insert(key, region);
    }

    pub fn remove(&mut self, key: u64) {
        self.by_key.remove(&key);
    }

    pub fn region(&self, key: u64) -> Option<&Region> {
        self.by_key.get(&key)
    }

    pub fn region_mut(&mut self, key: u64) -> Option<&mut Region> {
        self.by_key.get_mut(&key)
    }

    pub fn have_counter(&self, number: usize) -> bool {
        let mut counters =
            self.by_key.values().flat_map(|region| [region.read_counter, region.write_counter]);
        counters.any(|counter| counter == Some(number))
    }

    /// The memory of a place that was checked. `None`: it was closed.
    fn part(&self, place: Place) -> Option<Memory> {
        let region = self.region(place.key)?;
        Some(region.memory.part(place.offset.wrapping_sub(region.base), place.length))
    }

    /// Appends the bytes of a place that was checked to `target`.
    pub fn read(&self, place: Place, target: &mut Vec<u8>) {
        if let Some(region) = self.region(place.key) {
            region.memory.read(place.offset.wrapping_sub(region.base), place.length, target);
        }
    }

    /// A place that was checked, for a port to put, or to let a peer put into. `None`: it was closed.
    ///
    /// The caller gives up the buffer before the region is closed.
    pub fn buffer(&self, place: Place) -> Option<Buffer> {
        let memory = self.part(place)?;
        // SAFETY: the program has promised the memory until it closes the region, and the caller gives up the buffer
        // before that. Other operations and the program may write it meanwhile. The bytes that cross are any mix then, and
        // nothing else happens: that is the contract of `Buffer::from_raw` for memory that is put or got into.
        unsafe { memory.buffer(place.length) }
    }
}

impl Registered for Regions {
    fn check(&self, access: Access, place: Place) -> Result<(), Denied> {
        let region = self.region(place.key).ok_or(Denied::NoMemory)?;
        let is_permitted = match access {
            Access::Read => region.may_be_read,
            Access::Write => region.may_be_written,
        };
        if !is_permitted {
            return Err(Denied::NoRight);
        }
        // A region may be all of the address space, and no slice is as long.
        if place.length > isize::MAX as u64 {
            return Err(Denied::OutOfBounds);
        }
        let begin = place.offset.checked_sub(region.base).ok_or(Denied::OutOfBounds)?;
        let end = begin.checked_add(place.length).ok_or(Denied::OutOfBounds)?;
        if end <= region.memory.length() { Ok(()) } else { Err(Denied::OutOfBounds) }
    }

    fn write(&mut self, place: Place, payload: &[u8]) {
        if let Some(region) = self.region_mut(place.key) {
            region.memory.write(place.offset.wrapping_sub(region.base), payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_outside_a_region_or_without_a_right_are_denied() {
        let mut bytes = [0u8; 10];
        // SAFETY: the array lives longer, and is touched through this value only.
        let memory = unsafe { Memory::new(bytes.as_mut_ptr(), bytes.len()) };
        for base in [0, 1000, u64::MAX - 9] {
            let mut regions = Regions::default();
            let (read_counter, write_counter) = (None, None);
            let (may_be_read, may_be_written) = (true, false);
            let memory = memory.clone();
            regions
                .insert(7, Region { memory, base, may_be_read, may_be_written, read_counter, write_counter });
            assert!(!regions.has_room_for(7) && regions.has_room_for(8));
            let check = |regions: &Regions, access, key, offset: u64, length| {
                regions.check(access, Place { key, offset: base.wrapping_add(offset), length })
            };
            assert_eq!(check(&regions, Access::Read, 7, 0, 10), Ok(()));
            assert_eq!(check(&regions, Access::Read, 7, 9, 1), Ok(()));
            assert_eq!(check(&regions, Access::Read, 7, 10, 0).is_ok(), base < u64::MAX - 9);
            assert_eq!(check(&regions, Access::Read, 8, 0, 1), Err(Denied::NoMemory));
            assert_eq!(check(&regions, Access::Write, 7, 0, 1), Err(Denied::NoRight));
            for (offset, length) in
                [(0, 11), (10, 1), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, 0), (1 << 63, 1)]
            {
                assert_eq!(check(&regions, Access::Read, 7, offset, length), Err(Denied::OutOfBounds));
            }
            // SAFETY: nothing is read or written.
            let everything = unsafe { Memory::new(std::ptr::null_mut(), usize::MAX) };
            regions.insert(
                9,
                Region {
                    memory: everything,
                    base: 0,
                    may_be_read,
                    may_be_written,
                    read_counter,
                    write_counter,
                },
            );
            let whole = |length| regions.check(Access::Read, Place { key: 9, offset: 0, length });
            assert_eq!((whole(1 << 62), whole(1 << 63)), (Ok(()), Err(Denied::OutOfBounds)));
            regions.remove(7);
            assert_eq!(check(&regions, Access::Read, 7, 0, 1), Err(Denied::NoMemory));
        }
    }
}
