//! The room in the ring that this end writes, and the memory behind both rings.

use core::sync::atomic::Ordering;

use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{ASKS_BACK, HEADER_BYTES, RING_BYTES, first_bytes};
use bywire_ring::{bounds, distance};

use crate::connection::idle_memory::{self, STEP_BYTES};
use crate::connection::relayed;
use crate::connection::sockets::{Connection, STREAM};
use crate::os::{errno, kernel, tsc};

/// The steps of a ring, each of which has a bit in `SharedSocket::touched`.
const STEPS: usize = RING_BYTES / STEP_BYTES;
const _: () = assert!(STEPS <= u64::BITS as usize);
/// A ring grows by at most so much at once, so that many processes that grow at the same time see each other's memory.
const GROWTH_BYTES: usize = 4 * STEP_BYTES;
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
        let window = bounds::window(sends_max, STREAM.allowance(&self.remote), RING_BYTES);
        if self.is_relayed() { window.min(relayed::WINDOW_BYTES) } else { window }
    }

    /// How many bytes fit now, for a caller that does not hold the sending lock.
    pub fn room_hint(&self) -> Result<usize, Corrupt> {
        STREAM.room_hint(&self.own, &self.remote, self.window())
    }

    /// Whether `length` bytes of the peer's ring may be read, from the place `first` on. The caller holds the receiving
    /// lock.
    ///
    /// A peer of another user may say that it has written bytes that it has not. Reading them allocates their memory, at
    /// this process's cost and until the peer releases it. So that memory has a bound like that of the own rings.
    #[inline(always)]
    pub fn may_read(&self, first: usize, length: usize) -> bool {
        self.shared.is_other_users.load(Ordering::Relaxed) == 0
            || first + length <= first_bytes()
            || self.may_touch(first, length)
    }

    #[inline(never)]
    fn may_touch(&self, first: usize, length: usize) -> bool {
        let steps = first / STEP_BYTES..(first + length).div_ceil(STEP_BYTES);
        let steps = steps.fold(0, |steps, step| steps | 1 << (step % STEPS));
        let touched = self.shared.touched.load(Ordering::Relaxed);
        let bytes = (steps & !touched).count_ones() as usize * STEP_BYTES;
        // A peer that was asked has ended its ring, or its stream, with bytes for which the kernel had no room.
        let must = STREAM.flags(&self.own) & ASKS_BACK != 0;
        if bytes > 0 && !idle_memory::may_touch(bytes, must) {
            return false;
        }
        self.shared.touched.store(touched | steps, Ordering::Relaxed);
        true
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
        let (mut at, until) = if reach <= first_bytes() {
            (first_bytes(), first_bytes())
        } else {
            let end = (HEADER_BYTES + reach).next_multiple_of(STEP_BYTES);
            (backed.max(first_bytes()), (end - HEADER_BYTES).min(RING_BYTES))
        };
        loop {
            // Stored before the next piece, whose bound may need a count of what there is.
            self.shared.backed.store(at as u32, Ordering::Relaxed);
            let next = until.min(at + GROWTH_BYTES);
            if at == until || !idle_memory::may_grow(next - at, self.domain()) || !self.populate(at, next) {
                break;
            }
            at = next;
        }
        if at > first_bytes() {
            idle_memory::grown();
        }
        at == until
    }

    /// Allocates memory for these bytes of the own ring, which begin at a page boundary.
    fn populate(&self, from: usize, to: usize) -> bool {
        // SAFETY: whole pages of the mapped segment.
        let done = unsafe {
            let start = self.own.base().add(HEADER_BYTES + from);
            libc::madvise(start.cast(), to - from, libc::MADV_POPULATE_WRITE) == 0
        };
        done || errno::last() == libc::EINVAL
    }
}
