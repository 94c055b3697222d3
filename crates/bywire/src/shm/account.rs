//! Memory that was made for peers of other users and that they keep.
//!
//! A segment is sealed, so that its reader can rely on every page. Its maker therefore cannot take a page back from a
//! reader that goes on mapping it after the connection has ended. Such memory is counted until the kernel reports
//! that no process has it any more. A user whose programs keep too much gets no more.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Weak;

use bywire_ring::memory::Shared;
use bywire_sys::Errno;
use bywire_sys::memory::Mapping;
use bywire_sys::release::Releases;

use crate::message::share::is_within_share;

/// Memory of ended connections that other users may keep in shares: each an eighth of it, and all together seven
/// eighths. Beyond a share nothing more is made.
const KEPT_BYTES_MAX: usize = 128 << 20;

/// The memory that a port has made for peers of other users.
#[derive(Default)]
pub(crate) struct Account {
    /// Created with the first such peer.
    releases: Option<Releases>,
    /// By the number of the piece's watch.
    pieces: HashMap<i32, Piece>,
}

struct Piece {
    user: u32,
    length_bytes: usize,
    kind: Kind,
    /// Our own mapping. While it exists, the piece is in use.
    ours: Weak<Mapping>,
}

/// The purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Segment,
    Bulk,
    Heap,
}

/// Why no memory was made for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoMemory {
    /// Its user, or other users together, keep too much memory of ended connections.
    Kept,
    System(Errno),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Segment => "bywire-ring",
            Self::Bulk => "bywire-bulk",
            Self::Heap => "bywire-heap",
        }
    }
}

impl Account {
    /// Makes memory for a peer to read, and puts it on its user's account if that is another user.
    pub fn create(
        &mut self,
        kind: Kind,
        length_bytes: usize,
        other_user: Option<u32>,
    ) -> Result<(Shared, OwnedFd), NoMemory> {
        if other_user.is_some_and(|user| !self.may_have_more(user)) {
            return Err(NoMemory::Kept);
        }
        let (mapping, file) = Mapping::create(kind.name(), length_bytes).map_err(NoMemory::System)?;
        let memory = Shared::new(mapping);
        if let Some(user) = other_user {
            let number = self.watch(&file).map_err(NoMemory::System)?;
            self.pieces.insert(number, Piece { user, length_bytes, kind, ours: memory.downgrade() });
        }
        Ok((memory, file))
    }

    fn watch(&mut self, file: &OwnedFd) -> Result<i32, Errno> {
        let releases = match self.releases.take() {
            Some(releases) => releases,
            None => Releases::new()?,
        };
        self.releases.insert(releases).watch(file)
    }

    /// Does a user keep so little memory of ended connections that more may be made for it?
    fn may_have_more(&mut self, user: u32) -> bool {
        self.hear();
        let kept = |piece: &&Piece| piece.ours.strong_count() == 0;
        let bytes = |pieces: &mut dyn Iterator<Item = &Piece>| pieces.map(|piece| piece.length_bytes).sum();
        let all = bytes(&mut self.pieces.values().filter(kept));
        let own = bytes(&mut self.pieces.values().filter(kept).filter(|piece| piece.user == user));
        is_within_share(KEPT_BYTES_MAX, own, all)
    }

    /// May one more peer of another user have a bulk area of its own, out of `total`?
    pub fn may_have_bulk(&mut self, user: u32, total: usize) -> bool {
        self.hear();
        let bulks = || self.pieces.values().filter(|piece| piece.kind == Kind::Bulk);
        is_within_share(total, bulks().filter(|piece| piece.user == user).count(), bulks().count())
    }

    /// Removes pieces that no process has any more.
    fn hear(&mut self) {
        let Some(releases) = &self.releases else { return };
        let pieces = &mut self.pieces;
        releases.look(|number| drop(pieces.remove(&number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 1 << 20;

    #[test]
    fn bulk_areas_are_shared_like_slots() {
        let mut account = Account::default();
        let mut had = Vec::new();
        while account.may_have_bulk(7, 16) {
            had.push(account.create(Kind::Bulk, LENGTH, Some(7)).expect("memory"));
        }
        assert_eq!(had.len(), 2, "an eighth");
        assert!(account.may_have_bulk(8, 16), "another user is none the worse");
        assert!(!account.may_have_bulk(7, 1), "one is there for each");
        had.pop();
        assert!(account.may_have_bulk(7, 16));
        drop(had);
        assert!(account.may_have_bulk(7, 1) && account.pieces.is_empty());
    }

    #[test]
    fn kept_memory_counts_and_memory_in_use_does_not() {
        let mut account = Account::default();
        let create = |account: &mut Account, user| account.create(Kind::Heap, LENGTH, user);
        let in_use: Vec<_> = (0..20).map(|_| create(&mut account, Some(7)).expect("in use")).collect();
        let descriptors: Vec<_> = in_use.into_iter().map(|(_memory, file)| file).collect();
        assert_eq!(create(&mut account, Some(7)).err(), Some(NoMemory::Kept));
        assert!(create(&mut account, Some(8)).is_ok(), "another user");
        assert!(create(&mut account, None).is_ok(), "our own");
        let fifteen: Vec<_> = descriptors.into_iter().take(15).collect();
        assert!(create(&mut account, Some(7)).is_ok());
        drop(fifteen);
    }
}
