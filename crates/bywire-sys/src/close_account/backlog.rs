//! For tests: users with many sockets that wait, and tests that need a process of their own.

use super::Account;
use super::kind::{Kind, SOCKETS_OF_USER_MAX};
use super::registry::Registry;

/// Many sockets of one user that wait to be closed.
pub(crate) struct Backlog(Account, usize);

/// The places of this process in one pool, and the most of them that a user takes.
pub(crate) fn places() -> [usize; 2] {
    let most = Registry::own().places_max;
    [most, Kind::Sockets(1).share(most)]
}

impl Backlog {
    pub fn of(user: u32) -> Self {
        Self::of_many(user, SOCKETS_OF_USER_MAX)
    }

    pub fn of_many(user: u32, count: usize) -> Self {
        let account = Account::of_sockets(user);
        (0..count).for_each(|_| account.hold());
        Self(account, count)
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        (0..self.1).for_each(|_| self.0.release());
    }
}

/// Is this test alone in its process? A user over its quota affects the whole process. If not, the test runs again in a
/// process of its own, and has to pass there.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "BYWIRE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut own = std::process::Command::new(std::env::current_exe().expect("this program"));
    let done = own.args(["--exact", "--nocapture", test]).env(ALONE, "1").output().expect("run");
    let text = String::from_utf8_lossy(&done.stdout);
    print!("{text}");
    assert!(done.status.success() && text.contains("1 passed"), "{}", String::from_utf8_lossy(&done.stderr));
    false
}
