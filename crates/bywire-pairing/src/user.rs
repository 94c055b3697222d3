//! What the users of one service may take of it, and what each may see.

use std::collections::HashMap;

use crate::reason::Reason;
use crate::status::Status;

/// Users whose counts are kept when none of their programs runs.
const REMEMBERED_MAX: usize = 10_000;

/// Whom a service is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The user that runs it.
    User,
    /// Every user of the machine.
    Machine,
}

/// How much there may be of what programs can ask for, in all and for each user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs at once.
    pub programs: usize,
    /// Offers that wait: each holds a descriptor.
    pub waiting: usize,
    /// Offers of one program, paired or not.
    pub offers_of_program: usize,
    /// Offers of one user, paired or not: what is known of each takes about a hundred bytes.
    pub offers_of_user: usize,
    /// What one user may have of programs and of offers that wait, of so many parts one.
    share: usize,
}

impl Limits {
    /// Of a service that may have so many descriptors.
    pub fn new(scope: Scope, descriptors: u64) -> Self {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        Self {
            // Three descriptors for each, and one for each user that it talks to, of which there are few.
            programs: 20_000.min(descriptors / 8),
            waiting: 100_000.min(descriptors / 3),
            offers_of_program: 1 << 16,
            offers_of_user: 1 << 20,
            share: if scope == Scope::Machine { 4 } else { 1 },
        }
    }

    fn share(&self, user: u32, whole: usize) -> usize {
        // Root's comes on top of everybody else's.
        if user == 0 { (whole / 2).max(1) } else { (whole / self.share).max(1) }
    }
}

/// All users that a service knows.
#[derive(Debug)]
pub struct Users {
    scope: Scope,
    limits: Limits,
    known: HashMap<u32, User>,
    /// Of all together.
    total: User,
}

#[derive(Clone, Debug, Default)]
struct User {
    programs: usize,
    /// Those that have said hello.
    processes: u64,
    /// Ends of connections that are carried: between programs of this user, and with others.
    ends: [u64; 2],
    waiting: usize,
    offers: usize,
    counts: Status,
}

impl Users {
    /// None yet.
    pub fn new(scope: Scope, limits: Limits) -> Self {
        Self { scope, limits, known: HashMap::new(), total: User::default() }
    }

    /// A program comes. `false`: it is one too many.
    pub fn admit(&mut self, user: u32) -> bool {
        if self.known.len() >= REMEMBERED_MAX && !self.known.contains_key(&user) {
            self.known.retain(|_, known| known.programs > 0);
        }
        let (limits, total) = (self.limits, self.total.programs);
        let known = self.known.entry(user).or_default();
        // Users without number, as one who has some of /etc/subuid may be, do not keep root out.
        let is_full = total >= limits.programs && user != 0;
        let is_one_too_many = is_full || known.programs >= limits.share(user, limits.programs);
        if is_one_too_many {
            return false;
        }
        known.programs += 1;
        self.total.programs += 1;
        true
    }

    /// A program goes, with so many offers.
    pub fn dismiss(&mut self, user: u32, offers: usize) {
        self.change(user, |known| {
            known.programs = known.programs.saturating_sub(1);
            known.offers = known.offers.saturating_sub(offers);
        });
    }

    /// A program has said hello.
    pub fn greeted(&mut self, user: u32) {
        self.change(user, |known| known.processes += 1);
    }

    /// Such a program goes.
    pub fn parted(&mut self, user: u32) {
        self.change(user, |known| known.processes = known.processes.saturating_sub(1));
    }

    /// So many more ends of this user's are carried, or less.
    pub fn has_paired(&mut self, user: u32, is_foreign: bool, more: i64) {
        self.change(user, |known| {
            let ends = &mut known.ends[usize::from(is_foreign)];
            *ends = ends.saturating_add_signed(more);
        });
    }

    /// May one more offer of a program that has so many be taken?
    pub fn may_offer(&self, user: u32, offers_of_program: usize) -> bool {
        let offers = self.known.get(&user).map_or(0, |known| known.offers);
        offers_of_program < self.limits.offers_of_program && offers < self.limits.offers_of_user
    }

    /// May one more wait?
    pub fn may_wait(&self, user: u32) -> bool {
        let waiting = self.known.get(&user).map_or(0, |known| known.waiting);
        let has_room = self.total.waiting < self.limits.waiting || user == 0;
        has_room && waiting < self.limits.share(user, self.limits.waiting)
    }

    /// An offer was taken.
    pub fn offered(&mut self, user: u32) {
        self.change(user, |known| known.offers += 1);
    }

    /// It is over.
    pub fn ended(&mut self, user: u32) {
        self.change(user, |known| known.offers = known.offers.saturating_sub(1));
    }

    /// One more waits.
    pub fn waits(&mut self, user: u32) {
        self.change(user, |known| known.waiting += 1);
    }

    /// One less waits.
    pub fn waits_no_more(&mut self, user: u32) {
        self.change(user, |known| known.waiting = known.waiting.saturating_sub(1));
    }

    /// A connection between programs of these is paired.
    pub fn paired(&mut self, users: [u32; 2]) {
        self.total.counts.carried_ever += 1;
        let [one, other] = users;
        for user in [Some(one), (other != one).then_some(other)].into_iter().flatten() {
            self.known.entry(user).or_default().counts.carried_ever += 1;
        }
    }

    /// So many bytes were sent in memory.
    pub fn carried(&mut self, user: u32, bytes: u64) {
        self.change(user, |known| known.counts.bytes = known.counts.bytes.saturating_add(bytes));
    }

    /// So many ends of carried connections went with a program that was killed.
    pub fn cut(&mut self, user: u32, ends: u64) {
        self.change(user, |known| known.counts.cut = known.counts.cut.saturating_add(ends));
    }

    /// So many ends were paired and over before a byte went through memory.
    pub fn unused(&mut self, user: u32, ends: u64) {
        self.change(user, |known| known.counts.unused = known.counts.unused.saturating_add(ends));
    }

    /// So many connections were not carried.
    pub fn note(&mut self, user: u32, reason: Reason, count: u64) {
        self.change(user, |known| {
            let found = known.counts.not_carried.iter_mut().find(|(other, _)| *other == reason);
            match found {
                Some((_, known)) => *known = known.saturating_add(count),
                None => known.counts.not_carried.push((reason, count)),
            }
        });
    }

    /// Does this user see everybody's?
    fn sees_all(&self, user: u32) -> bool {
        user == 0 || self.scope == Scope::User
    }

    /// What this user may see.
    pub fn status(&self, user: u32) -> Status {
        let found = if self.sees_all(user) { Some(&self.total) } else { self.known.get(&user) };
        // Of a connection between users, who does not see everything sees one end.
        let ends_foreign = if self.sees_all(user) { 2 } else { 1 };
        found.map_or_else(Status::default, |found| Status {
            processes: found.processes,
            carried: found.ends[0] / 2 + found.ends[1] / ends_foreign,
            waiting: found.waiting as u64,
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

    fn users(scope: Scope) -> Users {
        Users::new(scope, Limits::new(scope, 64))
    }

    #[test]
    fn one_user_leaves_enough_for_others() {
        let mut shared = users(Scope::Machine);
        assert_eq!((0..100).filter(|_| shared.admit(ONE)).count(), 2);
        assert!(shared.admit(OTHER));
        // However many others there are.
        assert!((0..100).any(|user| !shared.admit(70_000 + user)) && shared.admit(0));
        let waiting = (0..100).filter(|_| {
            let may = shared.may_wait(ONE);
            if may {
                shared.waits(ONE);
            }
            may
        });
        assert_eq!(waiting.count(), 5);
        assert!(shared.may_wait(OTHER));
        let mut own = users(Scope::User);
        assert_eq!((0..100).filter(|_| own.admit(ONE)).count(), 8);
    }

    #[test]
    fn what_a_program_may_offer_is_bounded_paired_or_not() {
        let mut shared = users(Scope::Machine);
        assert!(shared.admit(ONE) && shared.may_offer(ONE, 0) && !shared.may_offer(ONE, 1 << 16));
        (0..1 << 20).for_each(|_| shared.offered(ONE));
        assert!(!shared.may_offer(ONE, 0) && shared.may_offer(OTHER, 0));
        shared.dismiss(ONE, 1 << 20);
        assert!(shared.may_offer(ONE, 0));
    }

    #[test]
    fn users_see_what_is_theirs_and_root_sees_all() {
        let mut shared = users(Scope::Machine);
        assert!(shared.admit(ONE) && shared.admit(OTHER));
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
