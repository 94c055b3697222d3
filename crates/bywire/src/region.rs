//! Regions: memory of ours that peers may put into or get from, with a key that can be revoked.
//!
//! A region stays private memory. Data crosses through the rings and this side's library moves it, at
//! its next call, after checking key, rights and range. So a region needs no shared mapping, revoking it
//! is immediate, and between calls the program may use it as a plain slice.

use crate::error::TransferError;

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// They may get.
    pub read: bool,
    /// They may put.
    pub write: bool,
}

/// The capability to reach a region: hand it to peers, in a message for example. 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u64);

/// The regions of one port.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    entries: Vec<Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Drawn anew for each region, so that an old key of a reused entry opens nothing.
    epoch: u32,
    region: Option<(Vec<u8>, Rights)>,
}

impl Regions {
    pub fn register(&mut self, memory: Vec<u8>, rights: Rights) -> Result<Key, bywire_sys::Errno> {
        let mut random = [0; 4];
        bywire_sys::process::random(&mut random)?;
        let index = self.entries.iter().position(|entry| entry.region.is_none()).unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() - 1
        });
        let entry = &mut self.entries[index];
        // Never the epoch before, whatever the generator says.
        entry.epoch = entry.epoch.wrapping_add(1 | u32::from_ne_bytes(random));
        entry.region = Some((memory, rights));
        Ok(Key(u64::from(entry.epoch) << 32 | index as u64))
    }

    pub fn revoke(&mut self, key: Key) -> Option<Vec<u8>> {
        self.entry(key).ok()?;
        self.entries[key.0 as u32 as usize].region.take().map(|(memory, _)| memory)
    }

    pub fn memory(&self, key: Key) -> Option<&[u8]> {
        self.entry(key).ok().map(|(memory, _)| memory.as_slice())
    }

    pub fn memory_mut(&mut self, key: Key) -> Option<&mut [u8]> {
        self.entry(key).ok()?;
        self.entries[key.0 as u32 as usize].region.as_mut().map(|(memory, _)| memory.as_mut_slice())
    }

    /// The bytes that a peer wants to get.
    pub fn readable(&self, key: Key, offset: u64, length: u64) -> Result<&[u8], TransferError> {
        let (memory, rights) = self.entry(key)?;
        if !rights.read {
            return Err(TransferError::NoRight);
        }
        Ok(&memory[range(memory.len(), offset, length)?])
    }

    /// The bytes that a peer wants to put into.
    pub fn writable(&mut self, key: Key, offset: u64, length: u64) -> Result<&mut [u8], TransferError> {
        let (memory, rights) = self.entry(key)?;
        if !rights.write {
            return Err(TransferError::NoRight);
        }
        let range = range(memory.len(), offset, length)?;
        self.memory_mut(key).map(|memory| &mut memory[range]).ok_or(TransferError::BadKey)
    }

    fn entry(&self, key: Key) -> Result<&(Vec<u8>, Rights), TransferError> {
        self.entries
            .get(key.0 as u32 as usize)
            .filter(|entry| entry.epoch == (key.0 >> 32) as u32)
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

    #[test]
    fn keys_open_what_they_should_and_nothing_after_revocation() {
        let mut regions = Regions::default();
        let rights = Rights { read: true, write: false };
        let key = regions.register(vec![1, 2, 3], rights).expect("random");
        assert_eq!(regions.readable(key, 1, 2), Ok(&[2, 3][..]));
        assert_eq!(regions.readable(key, 3, 0), Ok(&[][..]));
        assert_eq!(regions.readable(key, 2, 2), Err(TransferError::OutOfRange));
        assert_eq!(regions.readable(key, u64::MAX, 2), Err(TransferError::OutOfRange));
        assert_eq!(regions.writable(key, 0, 1), Err(TransferError::NoRight));
        assert_eq!(regions.revoke(key), Some(vec![1, 2, 3]));
        assert_eq!(regions.revoke(key), None);
        assert_eq!(regions.readable(key, 0, 1), Err(TransferError::BadKey));
        let next = regions.register(vec![9], Rights { read: true, write: true }).expect("random");
        assert_ne!(next, key);
        assert_eq!(regions.readable(key, 0, 1), Err(TransferError::BadKey));
        assert_eq!(regions.readable(Key(u64::MAX), 0, 1), Err(TransferError::BadKey));
    }
}
