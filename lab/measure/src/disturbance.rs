//! The conditions under which a block counts as disturbed: see [`bywire_results::cell::DISTURBED`].
//!
//! A single switch of threads says nothing. The kernel's own threads cause one in most blocks, for microseconds.

use std::collections::BTreeSet;

use crate::cpu::{LostTime, Snapshot};
use crate::plan::{Outcome, Outcomes, Part};

/// A block is disturbed when more than this share of it was taken from one of its ends. On a quiet machine the kernel's
/// own threads take under 0.5 %, and a program that wants the same core 10 to 50 %.
const LOST_SHARE_MAX: f64 = 0.02;

/// Why the span between two snapshots of an end counts as disturbed: `steal` when the hypervisor had the core, counted in
/// ticks of 10 ms; `waited-for-core` when another thread had it. Empty when clean.
pub fn reasons(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    of(before.lost_until(after))
}

/// Why a block counts as disturbed at any of these ends, by snapshots before and after it.
pub fn at_any<'a>(ends: impl Iterator<Item = (&'a Snapshot, &'a Snapshot)>) -> Vec<String> {
    let reasons: Vec<String> = ends.flat_map(|(before, after)| reasons(before, after)).collect();
    once_each(reasons.iter())
}

fn of(lost: LostTime) -> Vec<String> {
    let lost_seconds_max = LOST_SHARE_MAX * lost.wall_seconds;
    let shares = [("steal", lost.stolen_seconds), ("waited-for-core", lost.waited_seconds)].into_iter();
    let large = shares.filter(|(_, seconds)| seconds.is_some_and(|seconds| seconds > lost_seconds_max));
    large.map(|(reason, _)| reason.to_owned()).collect()
}

/// Why a block counts as disturbed, from the parts of both ends.
pub fn of_block(source: &Part, target: &Part) -> Vec<String> {
    once_each(source.disturbed.iter().chain(&target.disturbed))
}

/// Why each block of a pair counts as disturbed.
pub fn by_block(outcomes: &Outcomes) -> Vec<Vec<String>> {
    let none = Part::default();
    let target = |index| outcomes.target.as_ref().and_then(|target| target.blocks.get(index));
    let sources = outcomes.source.blocks.iter().enumerate();
    sources.map(|(index, source)| of_block(source, target(index).unwrap_or(&none))).collect()
}

/// Why any block of any of these pairs counts as disturbed.
pub fn of_pairs(pairs: &[Outcomes]) -> Vec<String> {
    let reasons: Vec<Vec<String>> = pairs.iter().flat_map(by_block).collect();
    once_each(reasons.iter().flatten())
}

/// Why the N½ of a sweep counts as disturbed. Each of its points, and memcpy too, is a median of blocks. It is valid
/// while fewer than half of them are disturbed.
pub fn of_sweep(sweep: &[Outcomes], memcpy: Option<&Outcome>) -> Vec<String> {
    let memcpy = memcpy.map(|memcpy| memcpy.blocks.iter().map(|part| part.disturbed.clone()).collect());
    let points: Vec<Vec<_>> = sweep.iter().map(by_block).chain(memcpy).collect();
    let shaken = points.iter().filter(|blocks| {
        let disturbed = blocks.iter().filter(|reasons| !reasons.is_empty()).count();
        disturbed > 0 && 2 * disturbed >= blocks.len()
    });
    once_each(shaken.flatten().flatten())
}

fn once_each<'a>(reasons: impl Iterator<Item = &'a String>) -> Vec<String> {
    reasons.collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cpu::thread_seconds;
    use crate::load::Load;
    use crate::pin;
    use crate::placement::Cores;
    use crate::plan::End;

    #[test]
    fn disturbances_are_named_and_a_short_one_does_not_count() {
        for (stolen, waited, expected) in [
            (0.0, 0.0, &[][..]),
            // A tick, and 2 % of waiting.
            (0.01, 0.01, &[]),
            (0.02, 0.0, &["steal"]),
            (0.0, 0.011, &["waited-for-core"]),
            (0.02, 0.1, &["steal", "waited-for-core"]),
        ] {
            let (stolen_seconds, waited_seconds) = (Some(stolen), Some(waited));
            assert_eq!(of(LostTime { wall_seconds: 0.5, stolen_seconds, waited_seconds }), expected);
        }
    }

    #[test]
    fn a_neighbour_on_the_core_is_a_disturbance() {
        let core = pin::allowed_cores()[0];
        let _neighbour = Load::start(1, Cores { source: Some(core), target: None }).unwrap();
        let disturbed = std::thread::spawn(move || {
            pin::pin_to(core).unwrap();
            let before = Snapshot::take(Some(core));
            // Its neighbour has as much of the core. On a machine that stands still neither runs.
            let began_seconds = thread_seconds();
            while thread_seconds() - began_seconds <= 0.1 {}
            reasons(&before, &Snapshot::take(Some(core)))
        });
        let found = disturbed.join().unwrap();
        assert!(found.iter().any(|reason| reason == "waited-for-core"), "{found:?}");
    }

    pub(crate) fn outcome(end: End, disturbed: &[bool]) -> Outcome {
        let part = |&disturbed: &bool| Part {
            disturbed: if disturbed { vec![format!("{end}")] } else { Vec::new() },
            ..Part::default()
        };
        Outcome { blocks: disturbed.iter().map(part).collect(), ..Outcome::of(end) }
    }

    pub(crate) fn outcomes(source: &[bool], target: &[bool]) -> Outcomes {
        Outcomes::of(outcome(End::Source, source), outcome(End::Target, target))
    }

    #[test]
    fn a_sweep_is_disturbed_where_a_median_of_it_is() {
        let (none, first, second) = ([false; 4], [true, false, false, false], [false, true, false, false]);
        let clean = outcomes(&none, &none);
        let (once, half) = (outcomes(&first, &first), outcomes(&first, &second));
        assert!(of_sweep(&[clean.clone(), once.clone()], None).is_empty());
        assert_eq!(of_sweep(&[once.clone(), half], None), ["source", "target"]);
        let memcpy = outcome(End::Source, &[true, true, false]);
        assert_eq!(of_sweep(&[clean.clone(), once], Some(&memcpy)), ["source"]);
        let alone = Outcomes { target: None, ..outcomes(&[true], &[]) };
        assert_eq!(by_block(&alone), [["source"]]);
    }
}
