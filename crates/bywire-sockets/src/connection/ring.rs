//! Room in the ring that this end writes, and the memory behind it.

use core::sync::atomic::Ordering;

use bywire_ring::distance;
use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{HEADER_BYTES, RING_BYTES};

use crate::connection::sockets::{Connection, STREAM};
use crate::os::{errno, kernel, tsc};

/// Room from which on a socket is writable, as in the kernel: a third.
pub const WRITABLE_BYTES: usize = RING_BYTES / 3;
/// Memory is put behind the ring in steps of this.
const STEP_BYTES: usize = 64 << 10;
/// Bytes of the ring that share the header's page.
const FIRST_BYTES: usize = 4096 - HEADER_BYTES;
/// So far the sender goes without a look at how far the peer has read.
const AHEAD_BYTES: usize = 64 << 10;

impl Connection {
    /// How many bytes fit now, for one who wants to send `wanted`. Called with the sending lock held.
    ///
    /// The peer's position is looked at only where it may make a difference: its line is the peer's to write.
    pub fn room(&self, wanted: usize) -> Result<usize, Corrupt> {
        let ahead =
            STREAM.tail(&self.own).wrapping_sub(self.shared.seen_head.load(Ordering::Relaxed)) as usize;
        let backed = self.shared.backed.load(Ordering::Relaxed) as usize;
        if ahead < AHEAD_BYTES
            && ahead.saturating_add(wanted) <= AHEAD_BYTES
            && STREAM.reach(&self.own, wanted) <= backed
        {
            return Ok(RING_BYTES - ahead);
        }
        let began_cycles = distance::cycles();
        let room = STREAM.room(&self.own, &self.remote)?;
        let cycles = distance::cycles().wrapping_sub(began_cycles);
        let head = STREAM.tail(&self.own).wrapping_sub((RING_BYTES - room) as u64);
        // A line that has not changed was in our own cache.
        if head != self.shared.seen_head.load(Ordering::Relaxed)
            && let Some(far_cycles) = tsc::far_cycles(kernel::now_ns)
        {
            let opinion = self.shared.distance.load(Ordering::Relaxed);
            self.shared.distance.store(distance::learnt(opinion, cycles > far_cycles), Ordering::Relaxed);
        }
        self.shared.seen_head.store(head, Ordering::Relaxed);
        Ok(room)
    }

    /// Makes sure that the next `length` bytes of the ring have memory behind them; without, nothing is written.
    pub fn back_with_memory(&self, length: usize) -> bool {
        let reach = STREAM.reach(&self.own, length);
        let backed = self.shared.backed.load(Ordering::Relaxed) as usize;
        if reach <= backed {
            return true;
        }
        // Small messages of an idle connection stay within the header's page.
        let (backed, until) = if reach <= FIRST_BYTES {
            (FIRST_BYTES, FIRST_BYTES)
        } else {
            let end = (HEADER_BYTES + reach).next_multiple_of(STEP_BYTES);
            (backed.max(FIRST_BYTES), (end - HEADER_BYTES).min(RING_BYTES))
        };
        // SAFETY: whole pages of the mapped segment: the header and what is backed end with one.
        let done = backed == until
            || unsafe {
                let start = self.own.base().add(HEADER_BYTES + backed);
                libc::madvise(start.cast(), until - backed, libc::MADV_POPULATE_WRITE) == 0
                    || errno::last() == libc::EINVAL
            };
        if done {
            self.shared.backed.store(until as u32, Ordering::Relaxed);
        }
        done
    }
}
