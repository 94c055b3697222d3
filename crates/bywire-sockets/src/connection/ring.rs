//! The room in the ring that this end writes, and the memory behind it.

use core::sync::atomic::Ordering;

use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{FIRST_BYTES, HEADER_BYTES, RING_BYTES};
use bywire_ring::{bounds, distance};

use crate::connection::idle_memory;
use crate::connection::sockets::{Connection, STREAM};
use crate::os::{errno, kernel, tsc};

/// Memory is allocated for the ring in steps of this size.
const STEP_BYTES: usize = 64 << 10;
/// How far the sender goes without reading the peer's position, if its program does not want it earlier.
const AHEAD_BYTES: usize = 64 << 10;

impl Connection {
    /// How many bytes fit now, for a caller that wants to send `wanted`. The caller holds the sending lock.
    ///
    /// The peer's position is read only where it may matter, because the peer writes its cache line.
    pub fn room(&self, wanted: usize) -> Result<usize, Corrupt> {
        let ahead =
            STREAM.tail(&self.own).wrapping_sub(self.shared.seen_head.load(Ordering::Relaxed)) as usize;
        let backed = self.shared.backed.load(Ordering::Relaxed) as usize;
        let ahead_max = self.shared.ahead_max.load(Ordering::Relaxed) as usize;
        if ahead < ahead_max
            && ahead.saturating_add(wanted) <= ahead_max
            && STREAM.reach(&self.own, wanted) <= backed
        {
            return Ok(ahead_max - ahead);
        }
        let began_cycles = distance::cycles();
        let unread = STREAM.begin_writing(&self.own, &self.remote)?;
        let cycles = distance::cycles().wrapping_sub(began_cycles);
        let head = STREAM.tail(&self.own).wrapping_sub(unread as u64);
        // A line that has not changed was in this core's cache.
        if head != self.shared.seen_head.load(Ordering::Relaxed)
            && let Some(far_cycles) = tsc::far_cycles(kernel::now_ns)
        {
            let opinion = self.shared.distance.load(Ordering::Relaxed);
            self.shared.distance.store(distance::learnt(opinion, cycles > far_cycles), Ordering::Relaxed);
        }
        self.shared.seen_head.store(head, Ordering::Relaxed);
        let window = self.window();
        self.shared.ahead_max.store(window.min(AHEAD_BYTES) as u32, Ordering::Relaxed);
        STREAM.bound(&self.own, window);
        Ok(window.saturating_sub(unread))
    }

    /// How many bytes of the own ring may be unread, by what the programs at both ends have set.
    pub fn window(&self) -> usize {
        let sends_max = self.shared.sends_max.load(Ordering::Relaxed);
        bounds::window(sends_max, STREAM.allowance(&self.remote), RING_BYTES)
    }

    /// How many bytes fit now, for a caller that does not hold the sending lock.
    pub fn room_hint(&self) -> Result<usize, Corrupt> {
        STREAM.room_hint(&self.own, &self.remote, self.window())
    }

    /// Makes sure that the next `length` bytes of the ring have memory behind them. `false`: there is none, and nothing
    /// may be written.
    pub fn back_with_memory(&self, length: usize) -> bool {
        let reach = STREAM.reach(&self.own, length);
        let backed = self.shared.backed.load(Ordering::Relaxed) as usize;
        if reach <= backed {
            return true;
        }
        // Short messages of an idle connection stay within the header's page.
        let (backed, until) = if reach <= FIRST_BYTES {
            (FIRST_BYTES, FIRST_BYTES)
        } else {
            let end = (HEADER_BYTES + reach).next_multiple_of(STEP_BYTES);
            (backed.max(FIRST_BYTES), (end - HEADER_BYTES).min(RING_BYTES))
        };
        if backed < until && !idle_memory::may_grow(until - backed) {
            return false;
        }
        // SAFETY: whole pages of the mapped segment, as the header and the backed bytes end at a page boundary.
        let done = backed == until
            || unsafe {
                let start = self.own.base().add(HEADER_BYTES + backed);
                libc::madvise(start.cast(), until - backed, libc::MADV_POPULATE_WRITE) == 0
                    || errno::last() == libc::EINVAL
            };
        if done {
            self.shared.backed.store(until as u32, Ordering::Relaxed);
            if until > FIRST_BYTES {
                idle_memory::grown();
            }
        }
        done
    }
}
