//! Counters of dropped frames.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Why a frame was dropped. Ethernet may drop any frame; each drop is counted by its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Shorter than an Ethernet header.
    Short,
    /// Longer than any frame that can be carried.
    Long,
    /// The sender may not use its source address. The address belongs to another interface or to a group, or the
    /// sending interface has another address and does not belong to a bridge. Frames of a peer without interfaces
    /// count here too.
    ForeignSource,
    /// Its target is an address for a single wire (`01-80-C2-00-00-0x`).
    LinkControl,
    /// No interface is known to have its target address.
    UnknownTarget,
    /// It would return to its source.
    SentBack,
    /// Too many broadcasts and multicasts from this interface.
    Storm,
    /// The target had no room.
    TargetFull,
    /// The target interface is down or gone.
    TargetDown,
    /// The target's kernel refused the frame.
    TargetRefused,
    /// The frame, its header or its descriptor is invalid.
    Illegal,
    /// The frame is another machine's, and could hide the IP addresses that it claims.
    Unparsable,
}

impl Cause {
    /// Every cause with the name under which it is reported.
    pub const ALL: [(Cause, &'static str); 12] = [
        (Cause::Short, "short"),
        (Cause::Long, "long"),
        (Cause::ForeignSource, "foreign_source"),
        (Cause::LinkControl, "link_control"),
        (Cause::UnknownTarget, "unknown_target"),
        (Cause::SentBack, "sent_back"),
        (Cause::Storm, "storm"),
        (Cause::TargetFull, "target_full"),
        (Cause::TargetDown, "target_down"),
        (Cause::TargetRefused, "target_refused"),
        (Cause::Illegal, "illegal"),
        (Cause::Unparsable, "unparsable"),
    ];
}

/// How many frames were dropped for each cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops([u64; Cause::ALL.len()]);

impl Drops {
    /// Counts one more.
    #[inline]
    pub fn count(&mut self, cause: Cause) {
        self.0[cause as usize] += 1;
    }

    /// How many for this cause.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every cause that has happened, by name.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = Cause::ALL.iter().map(|(cause, name)| (*name, self.of(*cause)));
        counts.filter(|(_, count)| *count > 0)
    }
}

impl AddAssign<&Drops> for Drops {
    fn add_assign(&mut self, other: &Drops) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours = ours.wrapping_add(theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_counted_under_its_name() {
        for (index, (cause, _)) in Cause::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, index);
        }
        let mut drops = Drops::default();
        drops.count(Cause::Storm);
        drops.count(Cause::Storm);
        drops.count(Cause::Short);
        assert_eq!(drops.by_name().collect::<Vec<_>>(), [("short", 1), ("storm", 2)]);
        let mut sum = drops;
        sum += &drops;
        assert_eq!((sum.total(), sum.of(Cause::Storm)), (6, 4));
    }
}
