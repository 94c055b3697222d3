//! The documents that the servers serve: one file, or many in the size classes of SPECweb99, and the order in which they
//! are requested.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bywire_analysis::statistics::SplitMix;

use super::plan::{Plan, Rank, Test};

/// SPECweb99's classes: the share of the files in percent, and the step between the nine sizes in bytes.
const CLASSES: [(u32, f64); 4] = [(35, 102.4), (50, 1024.0), (14, 10_240.0), (1, 102_400.0)];
const SIZES: u32 = 9;
/// Length of the pattern that every document is cut from. It is a prime, so that no two documents begin alike.
const PATTERN_BYTES: usize = 65_521;

/// The documents by number, smallest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    /// The length of each document in bytes.
    pub sizes: Vec<u64>,
    pattern: Vec<u8>,
}

impl Documents {
    /// The documents that a plan asks for.
    pub fn of(plan: &Plan) -> Self {
        let mut sizes = match plan.test {
            Test::File => vec![plan.size_bytes],
            Test::Zipf => (0..plan.documents).map(|document| mixed_size(document, plan.documents)).collect(),
        };
        sizes.sort_unstable();
        let mut random = SplitMix::new(0);
        let pattern = (0..PATTERN_BYTES).map(|_| random.bits() as u8).collect();
        Self { sizes, pattern }
    }

    /// The path of a document in a request.
    pub fn path(document: u32) -> String {
        format!("/{document:06}")
    }

    /// Writes all documents into `directory`, readable by every user. Stops when `is_wanted` fails.
    pub fn write(&self, directory: &Path, is_wanted: impl Fn() -> Result<()>) -> Result<()> {
        for (document, &size) in self.sizes.iter().enumerate() {
            is_wanted()?;
            let path = directory.join(&Self::path(document as u32)[1..]);
            let content = self.pieces(document as u32, 0, size as usize).collect::<Vec<_>>().concat();
            let written = fs::write(&path, content)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)));
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Fails unless `bytes` are those of `document` from `offset` on.
    pub fn check(&self, document: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut checked = 0;
        for piece in self.pieces(document, offset, bytes.len()) {
            ensure!(
                bytes[checked..].starts_with(piece),
                "response corrupted: {} differs within {} bytes from byte {} on",
                Self::path(document),
                piece.len(),
                offset + checked as u64
            );
            checked += piece.len();
        }
        Ok(())
    }

    /// The `length` bytes of `document` from `offset` on.
    fn pieces(&self, document: u32, offset: u64, mut length: usize) -> impl Iterator<Item = &[u8]> {
        let mut place = ((u64::from(document) * 8191 + offset) % PATTERN_BYTES as u64) as usize;
        std::iter::from_fn(move || {
            let piece = &self.pattern[place..(place + length).min(PATTERN_BYTES)];
            (place, length) = (0, length - piece.len());
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// The size of one of `documents` documents, which have the classes' shares.
fn mixed_size(document: u32, documents: u32) -> u64 {
    let percent = u64::from(document) * 100 / u64::from(documents);
    let mut bound = 0;
    for (share, step) in CLASSES {
        bound += u64::from(share);
        if percent < bound {
            return (step * f64::from(1 + document % SIZES)) as u64;
        }
    }
    unreachable!("the shares add up to 100")
}

/// The requests of a trace. After the last one it begins again.
const REQUESTS: usize = 1 << 16;

/// A list of documents by number, the same for the same seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The documents in their order.
    pub order: Vec<u32>,
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
        let mut ranked: Vec<u32> = (0..documents.sizes.len() as u32).collect();
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
    pub fn write(plan: &Plan, path: &Path) -> Result<()> {
        let trace = Self::of(plan, &Documents::of(plan));
        let lines: String = trace.order.iter().map(|&document| Documents::path(document) + "\n").collect();
        std::fs::write(path, lines).with_context(|| format!("cannot write the trace {}", path.display()))
    }

    /// The mean length of the requested documents, in bytes.
    pub fn mean_bytes(&self, documents: &Documents) -> f64 {
        let sum: u64 = self.order.iter().map(|&document| documents.sizes[document as usize]).sum();
        sum as f64 / self.order.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Request;

    fn plan(words: &str) -> Plan {
        Plan::of(&Request::of_words(&format!("web {words}")).unwrap()).unwrap()
    }

    #[test]
    fn document_sizes_match_their_classes() {
        let documents = Documents::of(&plan("web-zipf"));
        let sizes = &documents.sizes;
        let up_to = |bound: u64| sizes.iter().filter(|size| **size <= bound).count();
        assert_eq!((sizes.len(), up_to(1000), up_to(9216), up_to(92_160)), (1000, 350, 850, 990));
        assert_eq!((sizes.first(), sizes.last()), (Some(&102), Some(&921_600)));
        assert!(sizes.is_sorted());
    }

    #[test]
    fn generated_documents_pass_the_check() {
        let documents = Documents::of(&plan("web-file --size 150000"));
        let directory = tempfile::tempdir().unwrap();
        documents.write(directory.path(), || Ok(())).unwrap();
        let mut bytes = fs::read(directory.path().join("000000")).unwrap();
        assert_eq!(bytes.len(), 150_000);
        documents.check(0, 0, &bytes).unwrap();
        documents.check(0, 70_000, &bytes[70_000..]).unwrap();
        assert!(documents.check(1, 0, &bytes).is_err());
        bytes[149_999] ^= 1;
        let wrong = documents.check(0, 0, &bytes).unwrap_err().to_string();
        assert!(wrong.contains("/000000 differs"), "{wrong}");
    }

    fn trace(alpha: f64, rank: &str, seed: u64, documents: u32) -> (Trace, Documents) {
        let plan =
            plan(&format!("web-zipf --alpha {alpha} --rank {rank} --seed {seed} --documents {documents}"));
        let documents = Documents::of(&plan);
        (Trace::of(&plan, &documents), documents)
    }

    fn share(trace: &Trace, bound: u32) -> f64 {
        let under = trace.order.iter().filter(|document| **document < bound).count();
        under as f64 / trace.order.len() as f64
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
