//! The shares of a port's resources that other users may have.

use std::sync::Arc;

/// A user that is neither ours nor root, which could do anything to us. All its processes share what one such user may
/// have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ForeignUser {
    /// A user of this machine, by number.
    Local(u32),
    /// A user of another machine, by the names of both. Numbers of two machines mean nothing to each other.
    Far { node: Arc<str>, user: Arc<str> },
}

/// Each foreign user may have one part in this many of a port's resources: places for peers, posted buffers, bulk
/// areas, and memory that ended connections keep. All foreign users together leave one such part to others. Each
/// share is at least one item. So neither one foreign user nor many can take everything.
const FOREIGN_SHARE: usize = 8;

/// May a foreign user that has `own` of `total` items have one more, while all foreign users have `foreign`?
pub(crate) fn is_foreign_share(total: usize, own: usize, foreign: usize) -> bool {
    let share = total / FOREIGN_SHARE;
    own < share.max(1) && foreign < (total - share.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `total` items this many users get if they all take as many as they can.
    fn taken(total: usize, users: usize) -> usize {
        let mut own = vec![0; users];
        while let Some(user) = (0..users).find(|user| is_foreign_share(total, own[*user], own.iter().sum())) {
            own[user] += 1;
        }
        own.iter().sum()
    }

    #[test]
    fn other_users_never_take_everything() {
        for (total, by_one, by_many) in [(1, 1, 1), (2, 1, 1), (8, 1, 7), (16, 2, 14), (1000, 125, 875)] {
            assert_eq!((taken(total, 1), taken(total, 100)), (by_one, by_many), "of {total}");
        }
    }
}
