//! The distance of the two cores. A virtual machine moves its cores, which changes every figure.
//!
//! The host places both virtual cores on two cores that share a cache, or on two that do not. A cache line then takes
//! about 40 or 170 ns from one to the other. Figures of different distances are not compared.

use bywire_measure::{machine_probe, pin};

/// The most that the transfer of a cache line takes between two cores that share a cache.
const NEAR_MAX_NS: f64 = 100.0;

/// The distance of two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// They share a cache.
    Near,
    /// They share no cache.
    Far,
}

impl Distance {
    /// Each of them.
    pub const ALL: [Self; 2] = [Self::Near, Self::Far];

    /// The current distance; `None` if another program uses one of the cores.
    pub fn now() -> Option<Self> {
        let (source, target) = pin::two_cores();
        machine_probe::read(Some(source), Some(target)).line_ns.map(Self::of)
    }

    fn of(line_ns: f64) -> Self {
        if line_ns <= NEAR_MAX_NS { Self::Near } else { Self::Far }
    }

    /// Its name in the tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_match_the_tables() {
        assert_eq!([40.0, 170.0].map(Distance::of), Distance::ALL);
    }
}
