//! How quiet the machine was, and which cells cannot be used because it was not.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;

/// With a larger share of disturbed blocks a session says so before anything else.
const DISTURBED_SHARE_MAX: f64 = 0.1;

/// How quiet a session was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quiet {
    /// Blocks that a quiet machine would have left alone.
    pub blocks: usize,
    /// Those of them that were disturbed.
    pub disturbed_blocks: usize,
    /// Cells of which that is known.
    pub cells: usize,
    /// Those of them that cannot be used.
    pub disturbed_cells: usize,
}

impl Quiet {
    /// Over every cell whose own processes do not share cores.
    pub fn of(cells: &[Cell]) -> Self {
        let mut quiet = Self::default();
        for cell in cells.iter().filter(|cell| !shares_cores(cell)) {
            quiet.cells += 1;
            quiet.disturbed_cells += usize::from(is_disturbed(cell));
            quiet.blocks += cell.blocks.len();
            quiet.disturbed_blocks += cell.disturbed_blocks();
        }
        quiet
    }

    /// The share of disturbed blocks.
    pub fn disturbed_share(self) -> f64 {
        self.disturbed_blocks as f64 / self.blocks.max(1) as f64
    }

    /// Whether it was disturbed so much that nobody should rely on its differences.
    pub fn is_disturbed(self) -> bool {
        self.disturbed_share() > DISTURBED_SHARE_MAX
    }

    /// Whether most of it cannot be used.
    pub fn is_unusable(self) -> bool {
        2 * self.disturbed_cells > self.cells
    }
}

/// Whether a cell's median may be that of disturbed blocks: half of its pairs or more had half of their blocks or more
/// disturbed. With fewer, the median over pairs lies among those of quiet pairs.
pub fn is_disturbed(cell: &Cell) -> bool {
    if shares_cores(cell) {
        return false;
    }
    let mut pairs = BTreeMap::<u32, (usize, usize)>::new();
    for block in &cell.blocks {
        let (disturbed, all) = pairs.entry(block.pair).or_default();
        *disturbed += usize::from(!block.disturbed.is_empty());
        *all += 1;
    }
    let disturbed = pairs.values().filter(|(disturbed, all)| 2 * disturbed >= *all).count();
    disturbed > 0 && 2 * disturbed >= pairs.len()
}

/// Whether more of a cell's own processes run than the two that have a core each: then they disturb each other, on a
/// quiet machine too.
fn shares_cores(cell: &Cell) -> bool {
    let several = cell.parameters.number("connections").is_some_and(|connections| connections > 1);
    several || cell.cpu.carriers.is_some() || cell.details.contains_key("limited_by")
}
