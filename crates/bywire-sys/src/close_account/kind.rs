//! The kinds of accounts, and what each may hold.

/// Descriptors of one user that may be held. A held descriptor is being looked at, or waits to be closed.
pub(super) const HELD_MAX: usize = 64;
/// Sockets of one user that may wait to be closed before the user's connections are refused. Each close takes a
/// moment, as nothing lingers in this thread, unless the user's own file system delays it.
pub(super) const SOCKETS_OF_USER_MAX: usize = 64;
/// Files in common of two users that may wait before the two get no more.
pub(super) const COMMON_MAX: usize = 16;
/// Pairs of users with a waiting file that are charged to one user, or to one block of subordinate users, before
/// these get no more. A pair is charged to the user whose number is more likely to be a subordinate one.
pub(super) const COMMON_USERS_MAX: usize = 16;
/// Places in each pool for files that wait to be closed. A user takes at most its share. Root and the process's own
/// user take no places. Once all are taken, a user with a waiting file is refused. Other users are let in until as
/// many places again are taken. A small table of descriptors gives one place for [`TABLE_PART`] descriptors,
/// but at least [`PLACES_MIN`].
pub(super) const PLACES_MAX: usize = 8192;
/// Twice this number for descriptors and for sockets leaves a quarter of the usual limit of 1,024.
const PLACES_MIN: usize = 192;
/// See [`PLACES_MAX`].
const TABLE_PART: u64 = 16;
/// A user takes at most one in this many places.
const USER_PART: usize = 8;

/// The files that an account covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Descriptors that a user's programs have sent.
    Files(u32),
    /// Connections with a user's programs, and the contents of their queues.
    Sockets(u32),
    /// Files that programs of two users have in common.
    Common([u32; 2]),
}

/// The number of pools: one for each [`Kind`].
pub(super) const POOLS: usize = 3;

/// The number of places for a table of this many descriptors.
pub(super) fn places_of(descriptors: u64) -> usize {
    usize::try_from(descriptors / TABLE_PART).unwrap_or(usize::MAX).clamp(PLACES_MIN, PLACES_MAX)
}

impl Kind {
    pub fn common([one, other]: [u32; 2]) -> Self {
        Self::Common([one.min(other), one.max(other)])
    }

    /// The user whose share of threads is taken. Of two users it is the one whose number is more likely to be a
    /// subordinate one.
    pub fn user(self) -> u32 {
        let (Self::Files(user) | Self::Sockets(user) | Self::Common([_, user])) = self;
        user
    }

    pub fn is_reserved(self) -> bool {
        let is_common = matches!(self, Self::Common(_));
        !is_common && (self.user() == 0 || self.user() == rustix::process::geteuid().as_raw())
    }

    /// The pool of threads and places.
    pub fn pool(self) -> usize {
        match self {
            Self::Files(_) => 0,
            Self::Sockets(_) => 1,
            Self::Common(_) => 2,
        }
    }

    /// How many of `places_max` places the user may take.
    pub fn share(self, places_max: usize) -> usize {
        match self {
            Self::Files(_) => HELD_MAX.min(places_max / USER_PART),
            Self::Sockets(_) => SOCKETS_OF_USER_MAX.min(places_max / USER_PART),
            Self::Common(_) => COMMON_MAX,
        }
    }
}
