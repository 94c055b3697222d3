//! Connections keep their promises in every world that a seed makes, and every fault and transition has happened.

use std::time::Instant;

use bywire_sim::{Counts, run};

/// Random: from `BYWIRE_SEED` on, `BYWIRE_SEEDS` of them.
#[test]
fn every_seed_keeps_what_connections_promise() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (first, seeds): (u64, u64) = (number("BYWIRE_SEED", 1), number("BYWIRE_SEEDS", 1500));
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut counts = Counts::default();
                    for seed in (first + thread..first + seeds).step_by(threads as usize) {
                        match run(seed) {
                            Ok(counted) => counts.merge(&counted),
                            Err(failure) => panic!("{failure}"),
                        }
                    }
                    counts
                })
            })
            .collect();
        for part in parts {
            counts.merge(&part.join().expect("the failure stands above"));
        }
    });
    println!("{:.0} seeds per second", seeds as f64 / began.elapsed().as_secs_f64());
    counts.iter().for_each(|(name, number)| println!("{number:>10} {name}"));
    if seeds >= 1000 {
        let missing: Vec<_> = counts.iter().filter(|(_, number)| *number == 0).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}
