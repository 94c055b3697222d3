//! The share of a service that each user may take, and the counts that each user may see.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bywire_sys::limits;
use bywire_sys::share::{Places, Shares};

use crate::reason::Reason;
use crate::status::Status;

use bywire_sys::deferred::Ticket;

/// The memory files of a connection between users, which the service watches.
const WATCHED: usize = 4;
/// With more known users than this, the counts of users without programs are removed.
const REMEMBERED_MAX: usize = 10_000;

/// The users of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The user that runs the service.
    User,
    /// Every user of the machine.
    Machine,
}

/// The number of places for one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// For all users other than root and the service's own.
    pub others: Places,
    /// For root, on top.
    root: usize,
    /// For the service's own user, on top.
    own: usize,
}

/// The numbers of places for everything that programs can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs at once.
    pub programs: Limit,
    /// Offers that wait. Each holds up to two descriptors.
    pub waiting: Limit,
    /// Doorbells between users, by the user whose programs hear them.
    pub doorbells: Limit,
    /// Ends of connections between users, and of ended ones whose memory is kept.
    pub between: Limit,
    /// Users that are served at once. Each has a thread.
    pub threads: Limit,
    /// Offers, paired or not. Each takes about a hundred bytes.
    pub offers: Limit,
    /// Offers of one program, paired or not.
    pub offers_of_program: usize,
    /// Bytes of memory of one user's rings, from which on no connection gets more of them.
    pub ring_bytes_of_user: u64,
}

impl Limits {
    /// The limits of a service that may have this many descriptors.
    pub fn new(scope: Scope, descriptors: u64) -> Self {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        // Others share at most `most` places, and at most one for `part` descriptors. Each user has `own` places
        // alone.
        let limit = |most: usize, part: usize, own: usize| {
            let common = most.min(descriptors / part).max(1);
            let reserve = (common / 4).max(1);
            Limit {
                others: Places { own, common },
                root: reserve,
                own: if scope == Scope::User { common } else { reserve },
            }
        };
        let is_large = descriptors >= 1 << 19;
        let of_each = |most: usize| if is_large { most } else { 1 };
        Self {
            programs: limit(20_000, 24, of_each(4)),
            waiting: limit(100_000, 16, of_each(16)),
            doorbells: limit(1 << 15, 16, 1),
            // The service's user needs watches for other purposes too. Half of them stay free even if each of these ends
            // has another one of root or of the service's user.
            between: limit(limits::watches_of_user() / WATCHED / 2, 1, 1),
            threads: limit(4096, 64, 0),
            offers: Limit {
                others: Places { own: 1 << 10, common: 1 << 22 },
                root: 1 << 20,
                own: if scope == Scope::User { 1 << 22 } else { 1 << 20 },
            },
            offers_of_program: 1 << 16,
            ring_bytes_of_user: (limits::memory_bytes() / 4).max(64 << 20),
        }
    }
}

/// The places of one thing, and the users that have taken them.
#[derive(Debug)]
pub struct Pool {
    limit: Limit,
    others: Shares,
    /// The service's own user.
    own_user: u32,
    /// The places that root and the own user have taken.
    reserved: [usize; 2],
}

impl Pool {
    fn new(limit: Limit, own_user: u32) -> Self {
        Self { limit, others: Shares::new(limit.others), own_user, reserved: [0; 2] }
    }

    /// For root and the own user: the index in `reserved`, and the number of places.
    fn reserve(&self, user: u32) -> Option<(usize, usize)> {
        match user {
            _ if user == self.own_user => Some((1, self.limit.own)),
            0 => Some((0, self.limit.root)),
            _ => None,
        }
    }

    /// Returns whether this user may take one more place.
    pub fn may_take(&self, user: u32) -> bool {
        match self.reserve(user) {
            Some((place, most)) => self.reserved[place] < most,
            None => self.others.may_take(user),
        }
    }

    /// Takes a place. `false`: this user may have no more.
    pub fn take(&mut self, user: u32) -> bool {
        let Some((place, most)) = self.reserve(user) else { return self.others.take(user) };
        let may_take = self.reserved[place] < most;
        self.reserved[place] += usize::from(may_take);
        may_take
    }

    /// Gives a place back.
    pub fn give_back(&mut self, user: u32) {
        match self.reserve(user) {
            Some((place, _)) => self.reserved[place] = self.reserved[place].saturating_sub(1),
            None => self.others.give_back(user),
        }
    }
}

/// Places that are given back when the files in them are closed, by any thread.
#[derive(Clone, Debug)]
pub struct SharedPool(Arc<Mutex<Pool>>);

/// One place of a [`SharedPool`]. Dropping it gives it back.
#[derive(Debug)]
struct Place {
    pool: SharedPool,
    user: u32,
}

impl SharedPool {
    fn new(limit: Limit, own_user: u32) -> Self {
        Self(Arc::new(Mutex::new(Pool::new(limit, own_user))))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Pool) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a place. `None`: this user may have no more.
    pub fn take(&self, user: u32) -> Option<Ticket> {
        let is_taken = self.change(|pool| pool.take(user));
        is_taken.then(|| Arc::new(Place { pool: self.clone(), user }) as Ticket)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.change(|pool| pool.give_back(self.user));
    }
}

/// All users that a service knows.
#[derive(Debug)]
pub struct Users {
    scope: Scope,
    limits: Limits,
    programs: SharedPool,
    waiting: SharedPool,
    /// See [`Limits::doorbells`].
    pub doorbells: SharedPool,
    /// See [`Limits::between`].
    pub between: SharedPool,
    /// See [`Limits::threads`].
    pub threads: Pool,
    offers: Pool,
    known: HashMap<u32, User>,
    /// The sums over all users.
    total: User,
}

#[derive(Clone, Debug, Default)]
struct User {
    programs: usize,
    /// Programs that have said hello.
    processes: u64,
    /// Ends of carried connections: between programs of this user, and with other users.
    ends: [u64; 2],
    waiting: usize,
    /// Bytes of memory of the programs' rings.
    ring_bytes: u64,
    counts: Status,
}

impl Users {
    /// No users yet. `own_user` is the user of the service.
    pub fn new(scope: Scope, own_user: u32, limits: Limits) -> Self {
        let pool = |limit| SharedPool::new(limit, own_user);
        let shared = [limits.programs, limits.waiting, limits.doorbells, limits.between];
        let [programs, waiting, doorbells, between] = shared.map(pool);
        let [threads, offers] = [limits.threads, limits.offers].map(|limit| Pool::new(limit, own_user));
        let (known, total) = (HashMap::new(), User::default());
        Self { scope, limits, programs, waiting, doorbells, between, threads, offers, known, total }
    }

    /// Admits a program. Its place is given back once its files are closed. `None`: its user may have no more
    /// programs.
    pub fn admit(&mut self, user: u32) -> Option<Ticket> {
        if self.known.len() >= REMEMBERED_MAX && !self.known.contains_key(&user) {
            self.known.retain(|_, known| known.programs > 0);
        }
        let place = self.programs.take(user)?;
        self.known.entry(user).or_default().programs += 1;
        Some(place)
    }

    /// A program goes, with this many offers.
    pub fn dismiss(&mut self, user: u32, offers: usize) {
        self.change(user, |known| known.programs = known.programs.saturating_sub(1));
        (0..offers).for_each(|_| self.offers.give_back(user));
    }

    /// A program has said hello.
    pub fn greeted(&mut self, user: u32) {
        self.change(user, |known| known.processes += 1);
    }

    /// A program that had said hello goes.
    pub fn parted(&mut self, user: u32) {
        self.change(user, |known| known.processes = known.processes.saturating_sub(1));
    }

    /// Adds `more`, which may be negative, to the carried ends of this user.
    pub fn has_paired(&mut self, user: u32, is_other_user: bool, more: i64) {
        self.change(user, |known| {
            let ends = &mut known.ends[usize::from(is_other_user)];
            *ends = ends.saturating_add_signed(more);
        });
    }

    /// May a program that has `offers_of_program` offers make one more?
    pub fn may_offer(&self, user: u32, offers_of_program: usize) -> bool {
        offers_of_program < self.limits.offers_of_program && self.offers.may_take(user)
    }

    /// An offer was taken, which the user may have.
    pub fn offered(&mut self, user: u32) {
        self.offers.take(user);
    }

    /// An offer is over.
    pub fn ended(&mut self, user: u32) {
        self.offers.give_back(user);
    }

    /// A place for an offer that waits, given back once its memory is closed. `None`: the user may have no more.
    pub fn place_to_wait(&self, user: u32) -> Option<Ticket> {
        self.waiting.take(user)
    }

    /// One more offer waits.
    pub fn waits(&mut self, user: u32) {
        self.change(user, |known| known.waiting += 1);
    }

    /// One offer less waits.
    pub fn waits_no_more(&mut self, user: u32) {
        self.change(user, |known| known.waiting = known.waiting.saturating_sub(1));
    }

    /// A connection between programs of these users was paired.
    pub fn paired(&mut self, users: [u32; 2]) {
        self.total.counts.carried_ever += 1;
        let [one, other] = users;
        for user in [Some(one), (other != one).then_some(other)].into_iter().flatten() {
            self.known.entry(user).or_default().counts.carried_ever += 1;
        }
    }

    /// Adds bytes that were sent in memory.
    pub fn carried(&mut self, user: u32, bytes: u64) {
        self.change(user, |known| known.counts.bytes = known.counts.bytes.saturating_add(bytes));
    }

    /// Adds ends of carried connections whose program was killed.
    pub fn cut(&mut self, user: u32, ends: u64) {
        self.change(user, |known| known.counts.cut = known.counts.cut.saturating_add(ends));
    }

    /// The rings of a program had `before` bytes of memory, and have `now`.
    pub fn has_rings(&mut self, user: u32, before: u64, now: u64) {
        self.change(user, |known| {
            known.ring_bytes = known.ring_bytes.saturating_sub(before).saturating_add(now);
        });
    }

    /// May the rings of this user get more memory, by one more connection?
    pub fn may_have_rings(&self, user: u32) -> bool {
        self.known.get(&user).is_none_or(|known| known.ring_bytes < self.limits.ring_bytes_of_user)
    }

    /// Adds ends that were over before a byte went through memory.
    pub fn unused(&mut self, user: u32, ends: u64) {
        self.change(user, |known| known.counts.unused = known.counts.unused.saturating_add(ends));
    }

    /// Adds connections that were not carried.
    pub fn note(&mut self, user: u32, reason: Reason, count: u64) {
        self.change(user, |known| known.counts.add_not_carried(reason, count));
    }

    /// Returns whether this user sees the counts of all users.
    pub fn sees_all(&self, user: u32) -> bool {
        user == 0 || self.scope == Scope::User
    }

    /// The counts that this user may see.
    pub fn status(&self, user: u32) -> Status {
        let found = if self.sees_all(user) { Some(&self.total) } else { self.known.get(&user) };
        // A user that does not see everything sees one end of a connection with another user.
        let ends_between_users = if self.sees_all(user) { 2 } else { 1 };
        found.map_or_else(Status::default, |found| Status {
            processes: found.processes,
            carried: found.ends[0] / 2 + found.ends[1] / ends_between_users,
            waiting: found.waiting as u64,
            memory: found.ring_bytes,
            ..found.counts.clone()
        })
    }

    fn change(&mut self, user: u32, change: impl Fn(&mut User)) {
        change(&mut self.total);
        self.known.get_mut(&user).map(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u32 = 1000;
    const OTHER: u32 = 1001;

    const SERVICE: u32 = 999;

    fn users(scope: Scope) -> Users {
        Users::new(scope, SERVICE, Limits::new(scope, 1024))
    }

    fn take_all(take: impl FnMut() -> Option<Ticket>) -> Vec<Ticket> {
        std::iter::repeat_with(take).map_while(|place| place).collect()
    }

    /// Takes all programs that the user gets, forever.
    fn admit_all(users: &mut Users, user: u32) -> usize {
        let places = take_all(|| users.admit(user));
        places.into_iter().map(std::mem::forget).count()
    }

    fn wait_all(users: &mut Users, user: u32) -> usize {
        let places = take_all(|| users.place_to_wait(user));
        places.into_iter().map(std::mem::forget).count()
    }

    #[test]
    fn one_user_leaves_enough_room_for_others() {
        let mut shared = users(Scope::Machine);
        assert_eq!([ONE, OTHER].map(|user| admit_all(&mut shared, user)), [11, 9]);
        let waiting = [ONE, OTHER].map(|user| wait_all(&mut shared, user));
        assert_eq!(waiting, [17, 13]);
        let mut own = users(Scope::User);
        assert_eq!(admit_all(&mut own, SERVICE), 42);
    }

    #[test]
    fn greedy_users_leave_a_share_to_every_user() {
        let limits = Limits::new(Scope::Machine, 1 << 19);
        let mut shared = Users::new(Scope::Machine, SERVICE, limits);
        let taken = [ONE, OTHER, 1002, 1003].map(|user| admit_all(&mut shared, user));
        assert_eq!(taken[0], 5004);
        assert!(taken.iter().sum::<usize>() < 14_000, "four users leave {taken:?} of 20,000");
        assert!(admit_all(&mut shared, 1004) > 1000);
        (2000..2100).for_each(|user| assert!(admit_all(&mut shared, user) >= 4));
        (100_000..104_096).for_each(|user| assert!(admit_all(&mut shared, user) >= 4));
        assert_eq!([0, SERVICE].map(|user| admit_all(&mut shared, user)), [5000; 2], "whoever else there is");
        let waiting = [ONE, OTHER, 1002, 1003].map(|user| wait_all(&mut shared, user));
        assert!(waiting[0] > 8000 && wait_all(&mut shared, 1004) > 1500, "{waiting:?}");
        (2000..2100).for_each(|user| assert!(wait_all(&mut shared, user) >= 16));
        let threads = (0..1 << 16).filter(|user| shared.threads.take(200_000 + user)).count();
        assert!(threads < 4096 && shared.threads.take(ONE) && shared.threads.take(SERVICE));
    }

    /// A user whose thread hangs in a file forever keeps the places of its programs, and takes none from other
    /// users.
    #[test]
    fn a_user_that_keeps_everything_keeps_only_its_share() {
        let mut shared = users(Scope::Machine);
        admit_all(&mut shared, ONE);
        assert!(shared.threads.take(ONE));
        wait_all(&mut shared, ONE);
        for _ in 0..3 {
            let taken = take_all(|| shared.admit(OTHER));
            assert!(taken.len() >= 8 && shared.threads.take(OTHER) && shared.place_to_wait(OTHER).is_some());
            (0..taken.len()).for_each(|_| shared.dismiss(OTHER, 0));
            shared.threads.give_back(OTHER);
        }
    }

    #[test]
    fn all_limits_together_fit_in_the_descriptor_table() {
        for descriptors in (12..=20).map(|bits| 1usize << bits) {
            let limits = Limits::new(Scope::Machine, descriptors as u64);
            let users = limits.threads.others.common;
            let all = |limit: Limit| limit.others.common + users * limit.others.own + limit.root + limit.own;
            // For a program a socket, a doorbell and a page; for an offer two; for a doorbell between users one; for
            // a thread two.
            let alive = 3 * all(limits.programs)
                + 2 * all(limits.waiting)
                + all(limits.doorbells)
                + 2 * all(limits.threads);
            // Twice the places of `bywire-sys` for descriptors and for sockets that wait to be closed.
            let waiting = 2 * 2 * (descriptors / 16).min(8192);
            assert!(alive + waiting + 64 < descriptors, "{alive} + {waiting} of {descriptors}");
        }
    }

    #[test]
    fn a_programs_offers_are_bounded_whether_paired_or_not() {
        let mut shared = users(Scope::Machine);
        assert!(shared.admit(ONE).is_some() && shared.may_offer(ONE, 0) && !shared.may_offer(ONE, 1 << 16));
        let mut offer_all = |user| {
            let mut count = 0;
            while shared.may_offer(user, 0) {
                shared.offered(user);
                count += 1;
            }
            count
        };
        let count = offer_all(ONE);
        assert!((1 << 20..=(1 << 20) + (1 << 10)).contains(&count), "{count}");
        // Somebody with a range of subordinate users takes little more.
        let all: usize = (200_000..200_100).map(&mut offer_all).sum();
        assert!(all < (1 << 21) + (100 << 10), "{all}");
        assert!(shared.may_offer(OTHER, 0));
        shared.dismiss(ONE, count);
        assert!(shared.may_offer(ONE, 0));
    }

    #[test]
    fn a_user_with_full_rings_keeps_nobody_else_from_having_some() {
        let mut shared = users(Scope::Machine);
        assert!(shared.admit(ONE).is_some() && shared.admit(OTHER).is_some());
        let most = shared.limits.ring_bytes_of_user;
        shared.has_rings(ONE, 0, most - 1);
        assert!(shared.may_have_rings(ONE));
        shared.has_rings(ONE, 0, 1);
        assert!(!shared.may_have_rings(ONE) && shared.may_have_rings(OTHER));
        assert_eq!([ONE, OTHER, 0].map(|user| shared.status(user).memory), [most, 0, most]);
        shared.has_rings(ONE, most, 0);
        assert!(shared.may_have_rings(ONE));
    }

    #[test]
    fn users_see_their_own_connections_and_root_sees_all() {
        let mut shared = users(Scope::Machine);
        assert!(shared.admit(ONE).is_some() && shared.admit(OTHER).is_some());
        shared.paired([ONE, OTHER]);
        shared.paired([OTHER, OTHER]);
        shared.note(OTHER, Reason::Urgent, 3);
        shared.carried(OTHER, 7);
        let seen = [ONE, OTHER, 0].map(|user| shared.status(user).carried_ever);
        assert_eq!(seen, [1, 2, 2]);
        assert_eq!(shared.status(ONE).not_carried, []);
        assert_eq!(shared.status(0).not_carried, [(Reason::Urgent, 3)]);
        assert_eq!([ONE, OTHER, 0].map(|user| shared.status(user).bytes), [0, 7, 7]);
    }
}
