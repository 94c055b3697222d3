//! Runs a range of seeds on all cores.

use std::fmt::{Debug, Display};
use std::time::Instant;

/// Prints how often each event has happened. Each has, if there were enough seeds.
pub fn check_all_happened<Name: Debug + Display>(seeds: u64, counts: impl Iterator<Item = (Name, u64)>) {
    let counts: Vec<_> = counts.collect();
    counts.iter().for_each(|(name, number)| println!("{number:>10} {name}"));
    if seeds < 1000 {
        println!(
            "not checked here: that each event has happened: run ./x test all, which draws enough seeds"
        );
        return;
    }
    let missing: Vec<_> = counts.iter().filter(|(_, number)| *number == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

/// Runs `seeds` seeds from `first` on, and adds up their counts. The first failure is printed, and ends the test.
pub fn run_all<Counts: Default + Send, Failure: Display>(
    first: u64,
    seeds: u64,
    run: impl Fn(u64) -> Result<Counts, Failure> + Sync,
    merge: impl Fn(&mut Counts, &Counts) + Sync,
) -> Counts {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (run, merge) = (&run, &merge);
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut counts = Counts::default();
                    for seed in (first + thread..first + seeds).step_by(threads as usize) {
                        match run(seed) {
                            Ok(counted) => merge(&mut counts, &counted),
                            Err(failure) => panic!("{failure}"),
                        }
                    }
                    counts
                })
            })
            .collect();
        for part in parts {
            merge(&mut counts, &part.join().expect("the failure stands above"));
        }
    });
    println!("{:.0} seeds per second", seeds as f64 / began.elapsed().as_secs_f64());
    counts
}
