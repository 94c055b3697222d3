//! The layout of a segment. Both ends derive it from the same few announced numbers.
//!
//! ```text
//! page 0      one line per lane: how many records of the opposite direction this side has freed
//! then, for each of reply, high, low:
//!             slots (64 bytes each), then the bulk area, each starting on a page
//! ```

/// Bytes of a cache line, and of a slot.
pub const LINE_BYTES: usize = 64;
/// The unit in which segments are laid out.
pub const PAGE_BYTES: usize = 4096;
/// A slot's payload.
pub const INLINE_BYTES: usize = 56;
/// The bounds within which a peer may choose.
const SLOTS: std::ops::RangeInclusive<u32> = 8..=8192;
const BULK_BYTES: std::ops::RangeInclusive<u32> = 4096..=8 << 20;
const FRAGMENT_BYTES: std::ops::RangeInclusive<u32> = 512..=65_472;

/// The bulk area of a large window, which a lane has in memory of its own. With this size and that of its fragments,
/// every copy runs at the pace of the caches. It is too much for the many connections that are quiet.
pub const LARGE_WINDOW_BYTES: usize = 4 << 20;
/// The most payload that one record carries in a large window.
pub const LARGE_WINDOW_FRAGMENT_BYTES: u32 = 32 << 10;

/// One of the three independent rings of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneName {
    /// Answers of the library itself, which the consumer can always take.
    Reply = 0,
    /// High-priority messages.
    High = 1,
    /// Low-priority messages.
    Low = 2,
}

/// All lanes, in the order in which they lie in the segment.
pub const LANES: [LaneName; 3] = [LaneName::Reply, LaneName::High, LaneName::Low];

/// The size of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneGeometry {
    /// Records that can be outstanding; a power of two.
    pub slots: u32,
    /// Payload bytes that can be outstanding; a power of two.
    pub bulk_bytes: u32,
}

/// The sizes that one end announces for the segment that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// By [`LaneName`].
    pub lanes: [LaneGeometry; 3],
    /// The most payload that one record carries.
    pub fragment_bytes: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Self {
            lanes: [
                LaneGeometry { slots: 64, bulk_bytes: 16 << 10 },
                LaneGeometry { slots: 256, bulk_bytes: 16 << 10 },
                LaneGeometry { slots: 256, bulk_bytes: 64 << 10 },
            ],
            fragment_bytes: 4096,
        }
    }
}

/// Announced sizes are out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadGeometry;

/// The place of one lane, derived only from a [`Geometry`] that was checked.
#[derive(Clone, Copy, Debug)]
pub struct LaneLayout {
    /// Binary logarithm of the number of slots.
    pub slots_log2: u32,
    /// Offset of slot 0.
    pub slots_offset: usize,
    /// Size of the bulk area, a power of two.
    pub bulk_bytes: u64,
    /// Offset of the bulk area.
    pub bulk_offset: usize,
    /// The most payload that one record carries.
    pub fragment_bytes: u32,
    /// In the consumer's own segment: the word that says how many records it has freed.
    pub credit_offset: usize,
}

impl LaneLayout {
    /// The same slots, with the bulk area of a large window at `offset`.
    pub fn large_window(self, offset: usize) -> Self {
        Self {
            bulk_bytes: LARGE_WINDOW_BYTES as u64,
            bulk_offset: offset,
            fragment_bytes: self.fragment_bytes.max(LARGE_WINDOW_FRAGMENT_BYTES),
            ..self
        }
    }
}

impl Geometry {
    /// Checks that every size is within bounds, that slots and bulk areas are powers of two, that a fragment is a
    /// multiple of a line, and that four fragments fit in each bulk area.
    ///
    /// # Errors
    /// [`BadGeometry`] otherwise.
    pub fn check(&self) -> Result<(), BadGeometry> {
        let good = FRAGMENT_BYTES.contains(&self.fragment_bytes)
            && self.fragment_bytes.is_multiple_of(LINE_BYTES as u32)
            && self.lanes.iter().all(|lane| {
                SLOTS.contains(&lane.slots)
                    && lane.slots.is_power_of_two()
                    && BULK_BYTES.contains(&lane.bulk_bytes)
                    && lane.bulk_bytes.is_power_of_two()
                    && lane.bulk_bytes / self.fragment_bytes >= 4
            });
        if good { Ok(()) } else { Err(BadGeometry) }
    }

    /// The length of a segment of this geometry.
    pub fn segment_bytes(&self) -> usize {
        self.lane_end(LaneName::Low)
    }

    /// Where a lane lies.
    pub fn lane(&self, name: LaneName) -> LaneLayout {
        let lane = self.lanes[name as usize];
        let slots_offset = match name {
            LaneName::Reply => PAGE_BYTES,
            LaneName::High => self.lane_end(LaneName::Reply),
            LaneName::Low => self.lane_end(LaneName::High),
        };
        LaneLayout {
            slots_log2: lane.slots.trailing_zeros(),
            slots_offset,
            bulk_bytes: lane.bulk_bytes.into(),
            bulk_offset: slots_offset + slots_bytes(lane),
            fragment_bytes: self.fragment_bytes,
            credit_offset: LINE_BYTES * (name as usize + 1),
        }
    }

    fn lane_end(&self, name: LaneName) -> usize {
        let lengths = LANES[..=name as usize].iter().map(|lane| {
            let lane = self.lanes[*lane as usize];
            slots_bytes(lane) + lane.bulk_bytes as usize
        });
        PAGE_BYTES + lengths.sum::<usize>()
    }
}

fn slots_bytes(lane: LaneGeometry) -> usize {
    (lane.slots as usize * LINE_BYTES).next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_allowed_and_lanes_do_not_overlap() {
        let geometry = Geometry::default();
        geometry.check().expect("the default");
        let mut end = PAGE_BYTES;
        for name in LANES {
            let lane = geometry.lane(name);
            assert!(
                lane.slots_offset >= end
                    && lane.bulk_offset >= lane.slots_offset + (LINE_BYTES << lane.slots_log2)
            );
            assert!(
                lane.slots_offset.is_multiple_of(PAGE_BYTES) && lane.bulk_offset.is_multiple_of(PAGE_BYTES)
            );
            end = lane.bulk_offset + lane.bulk_bytes as usize;
        }
        assert_eq!(end, geometry.segment_bytes());
    }

    #[test]
    fn sizes_out_of_bounds_are_refused() {
        let bad = |change: &dyn Fn(&mut Geometry)| {
            let mut geometry = Geometry::default();
            change(&mut geometry);
            geometry.check()
        };
        assert_eq!(bad(&|geometry| geometry.lanes[1].slots = 0), Err(BadGeometry));
        assert_eq!(bad(&|geometry| geometry.lanes[1].slots = 100), Err(BadGeometry));
        assert_eq!(bad(&|geometry| geometry.lanes[2].bulk_bytes = u32::MAX), Err(BadGeometry));
        assert_eq!(bad(&|geometry| geometry.fragment_bytes = 0), Err(BadGeometry));
        assert_eq!(bad(&|geometry| geometry.fragment_bytes = 65_536), Err(BadGeometry));
    }
}
