//! Draws out of many cases that run through one and the same code, of which a soak runs all; and numbers from a seed.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};

use crate::Tier;

/// Each of `firsts` with each of `seconds` in a soak. Before, every one of both is in at least one pair, in other pairs in
/// each run.
pub fn crossed<First: Copy + Debug, Second: Copy + Debug>(
    firsts: &[First],
    seconds: &[Second],
) -> Vec<(First, Second)> {
    let all = firsts.iter().flat_map(|first| seconds.iter().map(|second| (*first, *second)));
    let pairs = match Tier::current() {
        Tier::Soak => all.collect(),
        _ => joined(firsts, seconds, any() as usize),
    };
    println!("drawn: {pairs:?}");
    pairs
}

fn joined<First: Copy, Second: Copy>(
    firsts: &[First],
    seconds: &[Second],
    offset: usize,
) -> Vec<(First, Second)> {
    let count = firsts.len().max(seconds.len());
    let pair =
        |number: usize| (firsts[number % firsts.len()], seconds[(number + offset % count) % seconds.len()]);
    (0..count).map(pair).collect()
}

/// All of them in a soak. Before, one of them, another one in each run.
pub fn one_or_all<Item: Clone + Debug>(items: &[Item]) -> Vec<Item> {
    if Tier::current() == Tier::Soak {
        return items.to_vec();
    }
    let drawn = items[any() as usize % items.len()].clone();
    println!("drawn: {drawn:?}");
    vec![drawn]
}

/// Pseudo-random numbers, the same for the same seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Another number in each run.
fn any() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn every_item_of_two_lists_is_in_a_pair_whatever_is_drawn() {
        for (firsts, seconds) in
            [(&[1, 2, 3, 4][..], &[5, 6, 7, 8][..]), (&[1, 2], &[5, 6, 7]), (&[1, 2, 3, 4], &[5, 6])]
        {
            for offset in [0, 1, 2, 3, usize::MAX] {
                let pairs = joined(firsts, seconds, offset);
                assert_eq!(pairs.len(), firsts.len().max(seconds.len()));
                assert!(firsts.iter().all(|first| pairs.iter().any(|pair| pair.0 == *first)), "{pairs:?}");
                assert!(seconds.iter().all(|second| pairs.iter().any(|pair| pair.1 == *second)), "{pairs:?}");
            }
        }
    }
}
