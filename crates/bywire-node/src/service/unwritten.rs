//! A fabric file of the keeper that is in force and not written yet. A disk that is full or cannot be written holds up no change; it is
//! tried again until it takes the file.

/// The first pause between two attempts, and the longest one.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_NS_MAX: u64 = 30_000_000_000;

/// The file.
#[derive(Debug)]
pub(super) struct Unwritten {
    /// Its text.
    pub text: String,
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
    pub(super) fn fail(&mut self, now_ns: u64, reason: String) -> bool {
        self.next_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = PAUSE_NS_MAX.min(2 * self.pause_ns);
        let is_new = self.reason.as_ref() != Some(&reason);
        self.reason = Some(reason);
        is_new
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
