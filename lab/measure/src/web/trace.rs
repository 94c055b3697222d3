//! The order in which documents are requested.

use std::path::Path;

use anyhow::{Context, Result};
use bywire_analysis::statistics::SplitMix;

use super::documents::Documents;
use super::plan::{Plan, Rank, Test};

/// The requests of a trace. After the last one it begins again.
const REQUESTS: usize = 1 << 16;

/// A list of documents by number, the same for the same seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    order: Vec<u32>,
}

impl Trace {
    /// The trace that a plan asks for: always the same file, or Zipf's law, by which the document of rank i has a share
    /// of 1/i^α. With an α of 0 all have the same share.
    pub fn of(plan: &Plan, documents: &Documents) -> Self {
        if plan.test == Test::File {
            return Self { order: vec![0] };
        }
        let mut random = SplitMix::new(plan.seed);
        // Documents are numbered by size.
        let mut ranked: Vec<u32> = (0..documents.sizes().len() as u32).collect();
        if plan.rank == Rank::Independent {
            for last in (1..ranked.len()).rev() {
                ranked.swap(last, random.below(last + 1));
            }
        }
        let mut sum = 0.0;
        let bounds: Vec<f64> = (1..=ranked.len())
            .map(|rank| {
                sum += (rank as f64).powf(-plan.alpha);
                sum
            })
            .collect();
        let draw = |random: &mut SplitMix| {
            let drawn = random.share() * sum;
            ranked[bounds.partition_point(|&bound| bound <= drawn).min(ranked.len() - 1)]
        };
        Self { order: (0..REQUESTS).map(|_| draw(&mut random)).collect() }
    }

    /// Writes the requested paths in their order, one a line.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(plan: &Plan, path: &Path) -> Result<()> {
        let trace = Self::of(plan, &Documents::of(plan));
        let lines: String = trace.order().iter().map(|&document| Documents::path(document) + "\n").collect();
        std::fs::write(path, lines).with_context(|| format!("cannot write the trace {}", path.display()))
    }

    /// The documents in their order.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The mean length of the requested documents, in bytes.
    pub fn mean_bytes(&self, documents: &Documents) -> f64 {
        let sum: u64 = self.order.iter().map(|&document| documents.sizes()[document as usize]).sum();
        sum as f64 / self.order.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Request;

    fn trace(alpha: f64, rank: &str, seed: u64, documents: u32) -> (Trace, Documents) {
        let mut request = Request::new("web", "web-zipf");
        request.alpha = Some(alpha);
        request.rank = Some(rank.to_owned());
        request.seed = Some(seed);
        request.documents = Some(documents);
        let plan = Plan::of(&request).unwrap();
        let documents = Documents::of(&plan);
        (Trace::of(&plan, &documents), documents)
    }

    /// The share of the requests for documents below `bound`.
    fn share(trace: &Trace, bound: u32) -> f64 {
        let under = trace.order().iter().filter(|document| **document < bound).count();
        under as f64 / trace.order().len() as f64
    }

    #[test]
    fn the_hundred_most_popular_files_have_the_shares_of_zipfs_law() {
        for (alpha, expected) in [(0.0, 0.01), (0.5, 0.094), (0.9, 0.414), (1.2, 0.755)] {
            let (trace, _) = trace(alpha, "small-first", 7, 10_000);
            let share = share(&trace, 100);
            // The mean of 65,536 draws from a fixed seed: five standard deviations are under 0.01.
            assert!((share - expected).abs() < 0.012, "α {alpha}: {share} rather than {expected}");
        }
    }

    #[test]
    fn a_seed_gives_one_trace_and_small_files_come_first_only_on_request() {
        let (small, documents) = trace(0.9, "small-first", 3, 1000);
        assert_eq!(small, trace(0.9, "small-first", 3, 1000).0);
        assert_ne!(small, trace(0.9, "small-first", 4, 1000).0);
        let (even, _) = trace(0.0, "small-first", 3, 1000);
        let (independent, _) = trace(0.9, "independent", 3, 1000);
        let mean = |trace: &Trace| trace.mean_bytes(&documents);
        assert!(mean(&small) < mean(&even) / 2.0, "{} and {}", mean(&small), mean(&even));
        // The most popular document has an eighth of all requests. If it is large, so is the mean.
        assert!(share(&independent, 10) < share(&small, 10) / 4.0);
    }
}
