//! The shares of a port's resources that other users may have.

use std::sync::Arc;

/// A user that is neither our own nor root, which could do anything to us. All processes of such a user share what it
/// may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OtherUser {
    /// A user of this machine, by number.
    Local(u32),
    /// A user of another machine, by the names of both. Numbers of two machines mean nothing to each other.
    Remote { node: Arc<str>, user: Arc<str> },
}

/// Each of the other users may have one part in this many of a port's resources: places for peers, posted buffers, bulk
/// areas, and memory that ended connections keep. All of them together leave one such part to ours and root. Each
/// share is at least one item. So neither one of them nor many can take everything.
const OTHER_USERS_SHARE: usize = 8;

/// May one of the other users, which has `own` of `total` items, have one more, while all of them together have `all`?
pub(crate) fn is_within_share(total: usize, own: usize, all: usize) -> bool {
    let share = total / OTHER_USERS_SHARE;
    own < share.max(1) && all < (total - share.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `total` items this many users get if they all take as many as they can.
    fn taken(total: usize, users: usize) -> usize {
        let mut own = vec![0; users];
        while let Some(user) = (0..users).find(|user| is_within_share(total, own[*user], own.iter().sum())) {
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
