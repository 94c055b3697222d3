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

/// A node vouches for its users, so it can make users up, also ours and root. Whatever it says, its peers leave one in this many
/// of a port's places for peers to other nodes and to this machine.
const LEFT_BY_NODE: usize = 4;
/// The most peers of one node that have not sent anything yet.
const SILENT_OF_NODE_MAX: usize = 64;

/// How many peers of one node a port has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeersOfNode {
    /// All of them.
    pub all: usize,
    /// Those that have called this port, and have not sent anything yet.
    pub silent: usize,
    /// Those of them of the user that wants one more place.
    pub silent_of_user: usize,
}

impl PeersOfNode {
    /// Returns whether one more of them may have one of so many places. Of the places for silent ones, a user of that node gets at
    /// most as many as are left to others.
    pub fn may_have_more(self, places: usize) -> bool {
        let silent_left = SILENT_OF_NODE_MAX.saturating_sub(self.silent);
        self.all < places - places / LEFT_BY_NODE && self.silent_of_user < silent_left
    }
}

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
    fn a_node_leaves_a_quarter_of_the_places_and_its_silent_users_some_of_theirs() {
        let proved = |all| PeersOfNode { all, ..PeersOfNode::default() };
        for (places, of_node) in [(1, 1), (3, 3), (4, 3), (256, 192), (4096, 3072)] {
            assert!(proved(of_node - 1).may_have_more(places) && !proved(of_node).may_have_more(places));
        }
        let silent = |silent, silent_of_user| PeersOfNode { all: silent, silent, silent_of_user };
        assert!(silent(31, 31).may_have_more(4096) && !silent(32, 32).may_have_more(4096), "one user");
        assert!(silent(63, 0).may_have_more(4096) && !silent(64, 0).may_have_more(4096), "all of them");
    }

    #[test]
    fn other_users_never_take_everything() {
        for (total, by_one, by_many) in [(1, 1, 1), (2, 1, 1), (8, 1, 7), (16, 2, 14), (1000, 125, 875)] {
            assert_eq!((taken(total, 1), taken(total, 100)), (by_one, by_many), "of {total}");
        }
    }
}
