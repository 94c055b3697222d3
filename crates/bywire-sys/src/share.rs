//! Shares of a limited number of places, among many users of whom some take all that they can get.
//!
//! Each user has a few places alone. Of the common places, a user gets at most a part of those that are free, so that
//! each new user finds some: the first one gets a quarter, the next one a quarter of the rest, and so on. User
//! numbers that may be subordinate ones (`/etc/subuid`), of which one person may have tens of thousands, get together
//! at most half of the rest.

use std::collections::HashMap;

/// A user has at most one common place for this many that are free.
const PART: usize = 3;
/// The same for a block of user numbers.
const PART_OF_BLOCK: usize = 1;
/// User numbers from here on may be subordinate ones. This many numbers are a block.
const SUBORDINATE: u32 = 1 << 16;

/// The numbers of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// For each user alone.
    pub own: usize,
    /// For all together.
    pub common: usize,
}

/// The places that each user has taken.
#[derive(Debug)]
pub struct Shares {
    places: Places,
    taken: HashMap<u32, usize>,
    /// Taken common places, by block.
    blocks: HashMap<u32, usize>,
    common: usize,
}

/// The block of a user number. A number that cannot be a subordinate one is a block alone.
pub fn block(user: u32) -> u32 {
    if user < SUBORDINATE { user } else { user | (SUBORDINATE - 1) }
}

impl Shares {
    /// All places are free.
    pub fn new(places: Places) -> Self {
        Self { places, taken: HashMap::new(), blocks: HashMap::new(), common: 0 }
    }

    /// May this user take one more place?
    pub fn may_take(&self, user: u32) -> bool {
        let Some(beyond) = self.taken(user).checked_sub(self.places.own) else { return true };
        let left = self.places.common.saturating_sub(self.common);
        let of_block = self.blocks.get(&block(user)).copied().unwrap_or_default();
        beyond < left / PART && of_block < left / PART_OF_BLOCK
    }

    /// Takes a place. `false`: this user may have no more.
    pub fn take(&mut self, user: u32) -> bool {
        let may_take = self.may_take(user);
        if may_take {
            self.add(user);
        }
        may_take
    }

    /// Takes a place that a user had before these shares began. `false`: it may have no more. In whichever order users come
    /// back, each may have as many as one user alone could have taken. All of them together may have the common places twice,
    /// so that some are left behind users who claim more than they had.
    pub fn take_again(&mut self, user: u32) -> bool {
        let common = self.places.common;
        let of_block = self.blocks.get(&block(user)).copied().unwrap_or_default();
        let may_take = match self.taken(user).checked_sub(self.places.own) {
            None => true,
            Some(beyond) => {
                beyond < common.div_ceil(PART + 1)
                    && of_block < common.div_ceil(PART_OF_BLOCK + 1)
                    && self.common < 2 * common
            }
        };
        if may_take {
            self.add(user);
        }
        may_take
    }

    fn add(&mut self, user: u32) {
        let taken = self.taken.entry(user).or_default();
        *taken += 1;
        if *taken > self.places.own {
            *self.blocks.entry(block(user)).or_default() += 1;
            self.common += 1;
        }
    }

    /// Gives a place back.
    pub fn give_back(&mut self, user: u32) {
        let Some(taken) = self.taken.get_mut(&user) else { return };
        *taken -= 1;
        let of_block = self.blocks.get_mut(&block(user)).filter(|_| *taken >= self.places.own);
        if let Some(of_block) = of_block {
            *of_block -= 1;
            self.common -= 1;
        }
        if *taken == 0 {
            self.taken.remove(&user);
        }
        if self.blocks.get(&block(user)) == Some(&0) {
            self.blocks.remove(&block(user));
        }
    }

    /// The number of places that this user has.
    pub fn taken(&self, user: u32) -> usize {
        self.taken.get(&user).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &mut Shares, user: u32) -> usize {
        std::iter::repeat_with(|| shares.take(user)).take_while(|is_taken| *is_taken).count()
    }

    #[test]
    fn each_greedy_user_leaves_three_quarters_of_the_rest() {
        let mut shares = Shares::new(Places { own: 2, common: 1000 });
        assert_eq!([1, 2, 3, 4].map(|user| take_all(&mut shares, user)), [252, 189, 143, 107]);
        (5..100).for_each(|user| assert!(take_all(&mut shares, user) >= 2, "everybody's own"));
        assert!(shares.common <= 1000);
        for user in 1..100 {
            (0..shares.taken(user)).for_each(|_| shares.give_back(user));
        }
        shares.give_back(1);
        assert!(shares.taken.is_empty() && shares.blocks.is_empty() && shares.common == 0);
    }

    #[test]
    fn whatever_users_had_they_get_again_in_any_order() {
        let places = Places { own: 2, common: 1000 };
        let mut before = Shares::new(places);
        let had: Vec<_> = (1..10).map(|user| (user, take_all(&mut before, user))).collect();
        for order in [had.clone(), had.iter().rev().copied().collect()] {
            let mut shares = Shares::new(places);
            // Some claim all that they can get, and come first.
            let claimed: Vec<_> = (20..24)
                .map(|user| std::iter::repeat_with(|| shares.take_again(user)).take_while(|is| *is).count())
                .collect();
            assert_eq!(claimed, [252; 4], "no more than one user alone");
            for (user, count) in order {
                assert!((0..count).all(|_| shares.take_again(user)), "user {user} had {count}");
            }
            assert!(shares.common <= 2000);
            assert_eq!(take_all(&mut shares, 50), 2, "nothing is left for new ones");
        }
    }

    #[test]
    fn subordinate_users_together_take_half_of_the_rest() {
        let mut shares = Shares::new(Places { own: 1, common: 1000 });
        let all: usize = (100_000..101_000).map(|user| take_all(&mut shares, user)).sum();
        assert_eq!(all, 1000 + 500, "their own, and half of the rest");
        assert_eq!(take_all(&mut shares, 1), 1 + 125);
        assert_eq!([0, 1000, 65_535].map(block), [0, 1000, 65_535]);
        assert_eq!([65_536, 100_000, 131_071].map(block), [131_071; 3]);
        assert_eq!([131_072, u32::MAX].map(block), [196_607, u32::MAX]);
    }
}
