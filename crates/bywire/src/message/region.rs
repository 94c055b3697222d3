//! Regions: memory of ours that peers may put into or get from, with a key that can be revoked.
//!
//! A region stays private memory. Data crosses through the rings. This side's library moves it at its next call,
//! after checking key, rights and range. So a region needs no shared mapping, revoking it is immediate, and between
//! calls the program may use it as a plain slice.

use std::collections::VecDeque;

use bywire_wire::planted::{self, Bug};

use crate::message::buffer::Buffer;
use crate::message::error::TransferError;

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// They may get.
    pub read: bool,
    /// They may put.
    pub write: bool,
}

/// The capability to reach a region: hand it to peers, in a message for example. 8 bytes.
///
/// 48 of its bits are random, and a peer has 1024 guesses: one more key that was never given out ends its connection
/// with [`crate::DisconnectReason::Broken`]. A revoked key does not count as a guess, however often it is tried, as
/// long as fewer than 1024 others have been revoked since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u64);

/// The most regions that one port has at a time.
const REGIONS_MAX: usize = 1 << INDEX_BITS;
/// Unknown keys that one connection may try. This is more than an honest peer can have under way when a key that it
/// believed in turns out to be bad: 256 tokens for each priority.
pub(crate) const GUESSES_MAX: u32 = 1024;
/// Entries that stay unchanged after their region was revoked. They distinguish its key from a key that was never
/// given out.
const REVOKED_KEPT: usize = 1024;
const INDEX_BITS: u32 = 16;
const EPOCH_MASK: u64 = (1 << (64 - INDEX_BITS)) - 1;

fn index(key: Key) -> usize {
    key.0 as usize % REGIONS_MAX
}

/// The regions of one port.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    entries: Vec<Entry>,
    /// Entries without a region, the oldest first.
    free: VecDeque<usize>,
}

#[derive(Debug, Default)]
struct Entry {
    /// 48 bits, drawn again for each region. They cannot be guessed, and an old key of a reused entry is invalid.
    epoch: u64,
    region: Option<(Buffer, Rights)>,
}

impl Regions {
    /// Adds a region. Its key is as hard to guess as `random`, which has to be drawn for it. `None`: there are
    /// [`REGIONS_MAX`] already.
    pub fn register(&mut self, memory: Buffer, rights: Rights, random: u64) -> Option<Key> {
        let index = if self.entries.len() < REGIONS_MAX && self.free.len() < REVOKED_KEPT {
            self.entries.push(Entry::default());
            self.entries.len() - 1
        } else {
            self.free.pop_front()?
        };
        let entry = &mut self.entries[index];
        // Never the previous epoch, whatever the number, and every other one with the same probability.
        let step = 1 + random % EPOCH_MASK;
        entry.epoch = entry.epoch.wrapping_add(step) & EPOCH_MASK;
        entry.region = Some((memory, rights));
        Some(Key(entry.epoch << INDEX_BITS | index as u64))
    }

    pub fn revoke(&mut self, key: Key) -> Option<Buffer> {
        self.entry(key).ok()?;
        self.free.push_back(index(key));
        self.entries[index(key)].region.take().map(|(memory, _)| memory)
    }

    /// Was a key given out, as far as is known? Keys of the last regions that were revoked are still known.
    pub fn was_issued(&self, key: Key) -> bool {
        self.entries.get(index(key)).is_some_and(|entry| entry.epoch == key.0 >> INDEX_BITS)
    }

    pub fn memory(&self, key: Key) -> Option<&[u8]> {
        self.entry(key).ok().map(|(memory, _)| memory.as_ref())
    }

    pub fn memory_mut(&mut self, key: Key) -> Option<&mut [u8]> {
        self.entry(key).ok()?;
        self.entries[index(key)].region.as_mut().map(|(memory, _)| memory.as_mut())
    }

    /// The bytes that a peer wants to get.
    pub fn readable(&self, key: Key, offset: u64, length: u64) -> Result<&[u8], TransferError> {
        let (memory, rights) = self.entry(key)?;
        if !rights.read {
            return Err(TransferError::NoRight);
        }
        let memory = memory.as_ref();
        Ok(&memory[range(memory.len(), offset, length)?])
    }

    /// The bytes that a peer wants to put into.
    pub fn writable(&mut self, key: Key, offset: u64, length: u64) -> Result<&mut [u8], TransferError> {
        let (memory, rights) = self.entry(key)?;
        if !rights.write && !planted::is(Bug::RightIgnored) {
            return Err(TransferError::NoRight);
        }
        let range = range(memory.as_ref().len(), offset, length)?;
        self.memory_mut(key).map(|memory| &mut memory[range]).ok_or(TransferError::BadKey)
    }

    fn entry(&self, key: Key) -> Result<&(Buffer, Rights), TransferError> {
        self.entries
            .get(index(key))
            .filter(|entry| entry.epoch == key.0 >> INDEX_BITS)
            .and_then(|entry| entry.region.as_ref())
            .ok_or(TransferError::BadKey)
    }
}

fn range(available: usize, offset: u64, length: u64) -> Result<std::ops::Range<usize>, TransferError> {
    let end =
        offset.checked_add(length).filter(|end| *end <= available as u64).ok_or(TransferError::OutOfRange)?;
    Ok(offset as usize..end as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers with the next of a fixed row of numbers.
    fn register(regions: &mut Regions, memory: Vec<u8>, rights: Rights) -> Option<Key> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let random = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        regions.register(memory.into(), rights, random)
    }

    #[test]
    fn keys_grant_their_rights_until_revocation() {
        let mut regions = Regions::default();
        let rights = Rights { read: true, write: false };
        let key = register(&mut regions, vec![1, 2, 3], rights).expect("room");
        assert_eq!(regions.readable(key, 1, 2), Ok(&[2, 3][..]));
        assert_eq!(regions.readable(key, 3, 0), Ok(&[][..]));
        assert_eq!(regions.readable(key, 2, 2), Err(TransferError::OutOfRange));
        assert_eq!(regions.readable(key, u64::MAX, 2), Err(TransferError::OutOfRange));
        assert_eq!(regions.writable(key, 0, 1), Err(TransferError::NoRight));
        assert_eq!(regions.revoke(key).expect("ours").into_vec(), [1, 2, 3]);
        assert!(regions.revoke(key).is_none());
        assert_eq!(regions.readable(key, 0, 1), Err(TransferError::BadKey));
        let next = register(&mut regions, vec![9], Rights { read: true, write: true }).expect("room");
        assert_ne!(next, key);
        assert_eq!(regions.readable(key, 0, 1), Err(TransferError::BadKey));
        assert_eq!(regions.readable(Key(u64::MAX), 0, 1), Err(TransferError::BadKey));
    }

    #[test]
    fn revoked_keys_are_recognised_in_bounded_memory() {
        let mut regions = Regions::default();
        let make = |regions: &mut Regions| {
            let key = register(regions, Vec::new(), Rights::default()).expect("room");
            regions.revoke(key).expect("ours");
            key
        };
        let first = make(&mut regions);
        for _ in 1..REVOKED_KEPT {
            make(&mut regions);
            assert!(regions.was_issued(first) && !regions.was_issued(Key(first.0 ^ 1 << 40)));
        }
        for _ in 0..10 * REVOKED_KEPT {
            make(&mut regions);
        }
        assert!(!regions.was_issued(first) && regions.entries.len() == REVOKED_KEPT);
        assert!(!regions.was_issued(Key(u64::MAX)));
    }

    #[test]
    fn every_table_entry_can_be_used() {
        let mut regions = Regions::default();
        let register = |regions: &mut Regions| register(regions, Vec::new(), Rights::default());
        let keys: Vec<Key> = (0..REGIONS_MAX).map(|_| register(&mut regions).expect("room")).collect();
        assert_eq!(register(&mut regions), None);
        regions.revoke(keys[77]).expect("ours");
        assert_eq!(index(register(&mut regions).expect("room")), 77);
    }
}
