//! How far apart the two cores stand: a virtual machine moves its cores about, and changes what every figure is.
//!
//! The host gives both virtual cores two cores that share a cache, or two that share none. A line that is handed to
//! and fro takes about 40 or 170 ns each way then. Figures of different distances are not compared.

use bywire_measure::{machine_probe, pin};

/// One line, handed to and fro, takes at most this between two cores that share a cache.
const NEAR_MAX_NS: f64 = 100.0;

/// Where the two cores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// They share a cache.
    Near,
    /// They share none.
    Far,
}

impl Distance {
    /// Each of them.
    pub const ALL: [Self; 2] = [Self::Near, Self::Far];

    /// The distance now; `None` when another program holds one of the cores.
    pub fn now() -> Option<Self> {
        let (source, target) = pin::two_cores();
        machine_probe::read(Some(source), Some(target)).line_ns.map(Self::of)
    }

    fn of(line_ns: f64) -> Self {
        if line_ns <= NEAR_MAX_NS { Self::Near } else { Self::Far }
    }

    /// What it is called in the tables.
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
