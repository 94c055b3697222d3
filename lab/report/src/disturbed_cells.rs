//! Finds the cells that cannot be used because other programs disturbed them, and the disturbed share of a session.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;

/// With a larger share of disturbed blocks, the report begins with a warning.
const DISTURBED_SHARE_MAX: f64 = 0.1;

/// The disturbed part of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbance {
    /// The number of blocks of cells whose processes do not share cores.
    pub blocks: usize,
    pub disturbed_blocks: usize,
    /// The number of those cells.
    pub cells: usize,
    /// The number of these cells that cannot be used.
    pub disturbed_cells: usize,
}

impl Disturbance {
    /// Counts over every cell whose own processes do not share cores.
    pub fn of(cells: &[Cell]) -> Self {
        let mut disturbance = Self::default();
        for cell in cells.iter().filter(|cell| !shares_cores(cell)) {
            disturbance.cells += 1;
            disturbance.disturbed_cells += usize::from(is_disturbed(cell));
            disturbance.blocks += cell.blocks.len();
            disturbance.disturbed_blocks += cell.disturbed_blocks();
        }
        disturbance
    }

    pub fn disturbed_share(self) -> f64 {
        self.disturbed_blocks as f64 / self.blocks.max(1) as f64
    }

    /// True if its differences are not reliable.
    pub fn is_disturbed(self) -> bool {
        self.disturbed_share() > DISTURBED_SHARE_MAX
    }

    /// True if most of its cells cannot be used.
    pub fn is_unusable(self) -> bool {
        2 * self.disturbed_cells > self.cells
    }
}

/// True if a cell's median may be that of disturbed blocks: at least half of its pairs had at least half of their
/// blocks disturbed. With fewer, the median over pairs lies among undisturbed pairs.
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

/// True if a cell has more processes than the two that have a core each. They then disturb each other on a quiet
/// machine too. The services of two nodes carry nothing.
fn shares_cores(cell: &Cell) -> bool {
    let several = cell.parameters.number("connections").is_some_and(|connections| connections > 1);
    let is_carried = cell.cpu.carriers.is_some() && cell.level != "msg";
    several || is_carried || cell.details.limited_by().is_some()
}
