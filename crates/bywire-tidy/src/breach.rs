//! The finding of a rule.

/// A rule broken at one place.
#[derive(Debug, PartialEq, Eq)]
pub struct Breach {
    /// File, relative to the root.
    pub path: String,
    /// Line, from 1; 0 if the breach is about the whole file.
    pub line: usize,
    /// What is wrong and what to do.
    pub reason: String,
}
