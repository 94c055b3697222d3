//! What each user costs the service: work, and memory that waits for its programs.

use std::collections::HashMap;

use bywire_sys::share::block;
use bywire_wire::bucket::Bucket;
use bywire_wire::channel::echo::ECHO_BYTES_MAX;
use bywire_wire::service::Request;

/// So much work each user can have done without end: 4,000 requests a second are a tenth of a core at most.
const INTERVAL_NS: u64 = 250_000;
/// Work that may come at once.
const BURST: u64 = 1024;
/// The work of letting a caller in and out, whatever it does between.
pub(super) const CALL_WORK: u64 = 4;
/// Bytes that wait for the programs of one user.
const UNSENT_BYTES_MAX: usize = 16 << 20;
/// Users that are remembered before those are forgotten that cost nothing now.
const USERS_MAX: usize = 4096;

/// Users by number. Numbers that may be subordinate ones of one person count as one.
#[derive(Debug, Default)]
pub(super) struct Users(HashMap<u32, User>);

#[derive(Debug, Default)]
struct User {
    work: Bucket,
    unsent_bytes: usize,
}

impl Users {
    fn user(&mut self, now_ns: u64, user: u32) -> &mut User {
        if self.0.len() >= USERS_MAX && !self.0.contains_key(&block(user)) {
            self.0.retain(|_, user| user.unsent_bytes > 0 || user.work.level(now_ns, INTERVAL_NS) > 0);
        }
        self.0.entry(block(user)).or_default()
    }

    /// Has a user had as much done as it may, for now?
    pub(super) fn is_over(&self, now_ns: u64, user: u32) -> bool {
        self.0.get(&block(user)).is_some_and(|user| user.work.level(now_ns, INTERVAL_NS) >= BURST)
    }

    /// Work was done for a user.
    pub(super) fn charge(&mut self, now_ns: u64, user: u32, work: u64) {
        self.user(now_ns, user).work.add(now_ns, INTERVAL_NS, work);
    }

    /// What waits for a program of a user has changed. `false`: too much waits for all of its programs.
    pub(super) fn count_unsent(&mut self, now_ns: u64, user: u32, before: usize, after: usize) -> bool {
        if before == after {
            return true;
        }
        let user = self.user(now_ns, user);
        user.unsent_bytes = (user.unsent_bytes + after).saturating_sub(before);
        after <= before || user.unsent_bytes <= UNSENT_BYTES_MAX
    }
}

/// How much work a request is, in the cheapest ones.
pub(super) fn work_of(request: &Request) -> u64 {
    match request {
        // A look-up of names, and a thread that closes a socket.
        Request::Register { kept, .. } => 16 + kept.len() as u64,
        Request::Status { .. } => 16,
        // A file is read, and applied to all nodes.
        Request::Reload { .. } | Request::Invite { .. } => 256,
        // Packets leave and come.
        Request::Ping { bytes, .. } => 8 + u64::from(*bytes).min(ECHO_BYTES_MAX as u64) / 128,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_over_its_share_is_slowed_and_others_are_not() {
        let mut users = Users::default();
        users.charge(0, 7, 2 * BURST);
        assert!(users.is_over(0, 7) && !users.is_over(0, 8));
        assert!(users.is_over(BURST * INTERVAL_NS, 7) && !users.is_over((BURST + 1) * INTERVAL_NS, 7));
        // The numbers of one range of /etc/subuid are one user.
        users.charge(0, 100_000, BURST);
        assert!(users.is_over(0, 100_001) && !users.is_over(0, 300_000));
        assert!(!users.count_unsent(0, 7, 0, UNSENT_BYTES_MAX + 1) && users.count_unsent(0, 8, 0, 1));
        assert!(users.count_unsent(0, 7, UNSENT_BYTES_MAX + 1, 0) && users.count_unsent(0, 7, 0, 1));
    }
}
