//! Spin → arm → sleep, without a lost wake-up.
//!
//! A receiver that wants to sleep arms a word in its own page, fences, looks at every ring once more and
//! only then sleeps. A sender publishes, fences, and looks at that word. Whichever fence comes second in
//! the order of all sequentially consistent fences sees the other side's store: either the sender sees
//! the arming and rings, or the receiver sees the message and does not sleep.

use std::sync::atomic::Ordering;

use crate::memory::Memory;

/// The length of a port's page.
pub const DOORBELL_BYTES: usize = 4096;
/// The word's offset in the page.
const WORD_OFFSET: usize = 0;

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// New records.
    pub records: bool,
    /// Room in a ring that was full, or the delivery of a message whose sender asked for confirmation.
    pub credit: bool,
}

const RECORDS: u64 = 1;
const CREDIT: u64 = 2;

/// The sleeper's side.
#[derive(Debug, Default)]
pub struct Sleeper {
    generation: u64,
}

/// A ringer's side: remembers for which arming it has rung, so that it rings once per sleep.
#[derive(Debug, Default)]
pub struct Ringer {
    rung: u64,
}

impl Sleeper {
    /// Arms. The caller looks at every ring once more before it sleeps.
    pub fn arm<M: Memory>(&mut self, own: &M, wants: Wants) {
        self.generation += 1;
        let bits = u64::from(wants.records) * RECORDS + u64::from(wants.credit) * CREDIT;
        // Relaxed: ordered by the fence, which pairs with the one in `Ringer::must_ring`.
        own.store(WORD_OFFSET, self.generation << 2 | bits, Ordering::Relaxed);
        own.fence();
    }

    /// Disarms. A ring that is already under way still arrives, and is harmless.
    pub fn disarm<M: Memory>(&mut self, own: &M) {
        // Relaxed: a sender that still sees the arming rings once for nothing.
        own.store(WORD_OFFSET, 0, Ordering::Relaxed);
    }
}

impl Ringer {
    /// After a record was published: must its receiver be woken?
    #[inline(always)]
    pub fn must_ring_for_records<M: Memory>(&mut self, remote: &M) -> bool {
        self.must_ring(remote, RECORDS)
    }

    /// After credit was returned: must its producer be woken?
    #[inline(always)]
    pub fn must_ring_for_credit<M: Memory>(&mut self, remote: &M) -> bool {
        self.must_ring(remote, CREDIT)
    }

    #[inline(always)]
    fn must_ring<M: Memory>(&mut self, remote: &M, wanted: u64) -> bool {
        remote.fence();
        // Relaxed: ordered by the fence, which pairs with the one in `Sleeper::arm`.
        let word = remote.load(WORD_OFFSET, Ordering::Relaxed);
        if word & wanted == 0 || word == self.rung {
            return false;
        }
        self.rung = word;
        true
    }
}
