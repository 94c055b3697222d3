//! News of quiet connections: found in the pages of the programs at the other ends, and counted for all sets of the family.
//!
//! The rules are those of [`bywire_ring::hints`]. Each process compares the pages that it has mapped with what it has found there
//! before, and adds what is new to the family's own counts, which no peer can change. A set that has quiet registrations follows
//! those counts.

use core::sync::atomic::Ordering;

use bywire_pairing::protocol::PAGE_BYTES;
use bywire_ring::hints as rule;

use crate::memory::arena::{self, SharedArena};
use crate::wakeup::{doorbell, peers};

const _: () = assert!(rule::PAGE_BYTES_MIN <= PAGE_BYTES);

/// Counts news of this program for a connection at which the other end does not look.
#[cold]
pub fn count(number: usize) {
    if let Some(page) = doorbell::page() {
        rule::count(&page, number);
    }
}

/// Counts news of a connection that this end has made itself, for its sets.
#[cold]
pub fn count_own(number: usize) {
    if let Some(family) = arena::shared() {
        note(family, number);
    }
}

/// Adds the news of all peers to the family's counts.
pub fn find(family: &SharedArena) {
    peers::each_page(|peer, counts, page| {
        let sum = rule::sum(page);
        // Acquire: pairs with the release store below. What that thread has found is counted.
        let known_sum = peer.sum.load(Ordering::Acquire);
        if known_sum == sum {
            return;
        }
        for (number, known) in counts.iter().enumerate() {
            let counted = rule::counted(page, number);
            // Acquire: as above.
            let before = known.load(Ordering::Acquire);
            if before != counted {
                note(family, number);
                // Release: pairs with the acquire load of another thread, which finds the family's count changed. Another program
                // may have got the record meanwhile, whose counts are others.
                let _ = known.compare_exchange(before, counted, Ordering::Release, Ordering::Relaxed);
            }
        }
        // Release: pairs with the acquire load above. As for the counts.
        let _ = peer.sum.compare_exchange(known_sum, sum, Ordering::Release, Ordering::Relaxed);
    });
}

fn note(family: &SharedArena, number: usize) {
    if let Some(count) = family.news.get(number) {
        // Release: pairs with the acquire load in `quiet::follow`. The news come before.
        count.fetch_add(1, Ordering::Release);
    }
    // Release: pairs with the acquire load in `quiet::follow`. The count comes before.
    family.news_sum.fetch_add(1, Ordering::Release);
}
