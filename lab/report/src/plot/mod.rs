//! Every plot of a session. A new plot is a function in one of these files, and a line in [`measured`] below.

mod breakdown;
mod by_size;
mod connections;
mod cpu;
pub mod data;
mod documents;
pub mod drawing;
mod ladder;
pub mod section;

use crate::ceiling::Ceilings;
use crate::comparison::Comparison;
use crate::way::Way;
use by_size::at_one_length;
use data::Plot;

pub fn plots(ways: &[Way], ceilings: &Ceilings, comparisons: &[Comparison]) -> Vec<Plot> {
    let ladder = ladder::plots(comparisons, ceilings);
    let all = ladder.into_iter().chain(measured(ways, ceilings, comparisons));
    all.map(at_one_length).map(cpu::with_visible_bars).collect()
}

/// The plots that also show figures of the source documents.
pub fn then_and_now(ways: &[Way], ceilings: &Ceilings) -> Vec<Plot> {
    documents::with_printed(&measured(ways, ceilings, &[])).into_iter().map(at_one_length).collect()
}

fn measured(ways: &[Way], ceilings: &Ceilings, comparisons: &[Comparison]) -> Vec<Plot> {
    let [by_differences, by_samples] = breakdown::plots(ways);
    let mut plots = vec![
        by_size::half_rtt(ways, ceilings),
        by_size::one_way(ways, ceilings),
        by_size::two_way(ways, ceilings),
        cpu::cpu_per_kilobyte(comparisons),
        cpu::cpu_per_message(ways),
        by_size::transactions(ways),
        cpu::cpu_per_transaction(ways),
        by_differences,
        by_samples,
        by_size::distribution(ways),
        by_size::interleave(ways),
        connections::rates(ways),
        connections::hot_spot(ways),
    ];
    plots.retain(|plot| !plot.is_empty());
    plots
}
