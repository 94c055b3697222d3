//! A fabric file of the keeper that is in force and not written yet. A disk that is full or cannot be written holds up no change; it is
//! tried again until it takes the file.

use crate::fabric::{self, Fabric};
use crate::file;

use super::Service;

/// The first pause between two attempts, and the longest one.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_NS_MAX: u64 = 30_000_000_000;

/// The file.
#[derive(Debug)]
pub(super) struct Unwritten {
    text: String,
    next_ns: u64,
    pause_ns: u64,
    /// Why the last attempt failed.
    reason: Option<String>,
}

impl Unwritten {
    /// A file that is to be written now.
    pub(super) fn new(now_ns: u64, text: String) -> Self {
        Self { text, next_ns: now_ns, pause_ns: PAUSE_NS, reason: None }
    }

    /// When the next attempt is due.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Why the file could not be written so far. `None`: nothing was tried yet.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// An attempt has failed. Returns whether the reason is a new one.
    fn fail(&mut self, now_ns: u64, reason: String) -> bool {
        self.next_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = PAUSE_NS_MAX.min(2 * self.pause_ns);
        self.reason.as_ref() != Some(&reason) && {
            self.reason = Some(reason);
            true
        }
    }
}

impl Service<'_> {
    /// Writes the file in force if that is due.
    pub(super) fn write_file(&mut self, now_ns: u64) {
        let Some(unwritten) = self.unwritten.as_mut().filter(|unwritten| unwritten.next_ns <= now_ns) else {
            return;
        };
        let path = self.configuration.join(fabric::FILE_NAME);
        let serial = self.fabric.serial;
        if unwritten.reason.is_some() {
            // The user may have written a newer one meanwhile, which a reload will use.
            let found = fabric::read_text(&path).ok();
            let found = found.and_then(|text| Fabric::of(&path, &text, &self.key.public()).ok());
            if found.is_some_and(|found| found.serial >= serial) {
                self.unwritten = None;
                return;
            }
        }
        match file::replace(&path, &unwritten.text) {
            Ok(()) => {
                if unwritten.reason.is_some() {
                    (self.say)(&format!("fabric.toml is written, with serial {serial}"));
                }
                self.unwritten = None;
            }
            Err(error) => {
                if unwritten.fail(now_ns, error.to_string()) {
                    (self.say)(&format!(
                        "serial {serial} is in force, and fabric.toml on the disk is older: {error}: correct that; it is tried again"
                    ));
                }
            }
        }
    }

    /// Tries to write the file in force, and logs the outcome.
    pub(super) fn write_file_at_once(&mut self, now_ns: u64) {
        if let Some(unwritten) = &mut self.unwritten {
            *unwritten = Unwritten::new(now_ns, std::mem::take(&mut unwritten.text));
            self.write_file(now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_tried_again_with_longer_pauses_and_each_reason_is_new_once() {
        let mut unwritten = Unwritten::new(0, String::new());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let now_ns = unwritten.next_ns();
            assert_eq!(unwritten.fail(now_ns, "full".to_owned()), pauses.is_empty());
            pauses.push((unwritten.next_ns() - now_ns) / 1_000_000_000);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert!(unwritten.fail(0, "read-only".to_owned()));
        assert_eq!(unwritten.reason(), Some("read-only"));
    }
}
