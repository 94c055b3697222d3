//! The documents that the servers serve: one file, or many in the size classes of SPECweb99.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bywire_analysis::statistics::SplitMix;

use super::plan::{Plan, Test};

/// SPECweb99's classes: the share of the files in percent, and the step between the nine sizes in bytes.
const CLASSES: [(u32, f64); 4] = [(35, 102.4), (50, 1024.0), (14, 10_240.0), (1, 102_400.0)];

/// The sizes of each class.
const SIZES: u32 = 9;

/// Length of the pattern that every document is cut from. It is a prime, so that no two documents begin alike.
const PATTERN_BYTES: usize = 65_521;

/// The documents by number, smallest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    sizes: Vec<u64>,
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

    /// The length of each document in bytes.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The path of a document in a request.
    pub fn path(document: u32) -> String {
        format!("/{document:06}")
    }

    /// Writes all documents into `directory`, readable by every user. Stops when `is_wanted` fails.
    ///
    /// # Errors
    /// The documents cannot be written, for instance for lack of space.
    pub fn write(&self, directory: &Path, is_wanted: impl Fn() -> Result<()>) -> Result<()> {
        for (document, &size) in self.sizes.iter().enumerate() {
            is_wanted()?;
            let path = directory.join(&Self::path(document as u32)[1..]);
            let mut content = vec![0; size as usize];
            self.fill(document as u32, 0, &mut content);
            let written = fs::write(&path, content)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)));
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// The bytes of `document` from `offset` on.
    fn fill(&self, document: u32, offset: u64, bytes: &mut [u8]) {
        let mut place = self.place(document, offset);
        for byte in bytes {
            *byte = self.pattern[place];
            place = (place + 1) % PATTERN_BYTES;
        }
    }

    /// Fails unless `bytes` are those of `document` from `offset` on.
    ///
    /// # Errors
    /// The offset of the first wrong byte.
    pub fn check(&self, document: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut place = self.place(document, offset);
        let mut checked = 0;
        while checked < bytes.len() {
            let length = (bytes.len() - checked).min(PATTERN_BYTES - place);
            ensure!(
                bytes[checked..checked + length] == self.pattern[place..place + length],
                "response corrupted: {} differs within {length} bytes from byte {} on",
                Self::path(document),
                offset + checked as u64
            );
            checked += length;
            place = 0;
        }
        Ok(())
    }

    fn place(&self, document: u32, offset: u64) -> usize {
        ((u64::from(document) * 8191 + offset) % PATTERN_BYTES as u64) as usize
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Request;

    #[test]
    fn document_sizes_match_their_classes() {
        let documents = Documents::of(&Plan::of(&Request::new("web", "web-zipf")).unwrap());
        let sizes = documents.sizes();
        let up_to = |bound: u64| sizes.iter().filter(|size| **size <= bound).count();
        assert_eq!((sizes.len(), up_to(1000), up_to(9216), up_to(92_160)), (1000, 350, 850, 990));
        assert_eq!((sizes.first(), sizes.last()), (Some(&102), Some(&921_600)));
        assert!(sizes.is_sorted());
    }

    #[test]
    fn generated_documents_pass_the_check() {
        let mut request = Request::new("web", "web-file");
        request.size_bytes = Some(150_000);
        let documents = Documents::of(&Plan::of(&request).unwrap());
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
}
