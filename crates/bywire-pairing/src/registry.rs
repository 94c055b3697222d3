//! The state that the threads of a service share: its programs, their offers, and the pairs.
//!
//! No code here waits, so the lock around it is held only for a moment. Packets are sent only if there is room. No
//! file that a program has sent is closed here: [`change`] closes it without the lock.

mod engines;
mod other_user_doorbells;
mod serving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bywire_sys::deferred::{Held, Ticket};
use bywire_sys::interrupt::Interrupter;
use bywire_sys::poller::Poller;
use bywire_sys::socket::Socket;
use bywire_sys::{Errno, deferred, limits, process, timer_doorbell};

use crate::checked_packet::CheckedPacket;
use crate::identity::Identity;
use crate::kept_memory::KeptMemory;
use crate::protocol::{Kind, Packet, Verdict};
use crate::reason::Reason;
use crate::space::{Space, Spaces};
use crate::status::Status;
use crate::user::{Limits, Scope, Users};
use crate::waiting::{End, Match, Offer, Waiting};
use engines::Engines;
use other_user_doorbells::{CommonFile, OtherUserDoorbells};

pub use other_user_doorbells::OTHER_USERS_MAX;

/// The most programs of one process that its status sums up. Only a process that connects again and again has more.
const PROGRAMS_OF_PROCESS_MAX: usize = 64;

/// See [`Registry`].
pub type Shared = Mutex<Registry>;

/// The state of a service.
#[derive(Debug)]
pub struct Registry {
    programs: HashMap<u64, Program>,
    /// The programs by their processes, as the kernel names these, for [`Registry::process_status`].
    by_process: BTreeSet<(u32, u64)>,
    /// The threads, by the user that each serves.
    pub user_threads: HashMap<u32, UserThread>,
    next: u64,
    users: Users,
    /// The namespaces that are joined. They are looked up without the lock: see [`hear`].
    pub spaces: Arc<Spaces>,
    waiting: Waiting,
    engines: Engines,
    kept_memory: KeptMemory,
    /// Files of programs that are not needed any more, for [`change`] to close.
    left: Vec<Held>,
    /// Doorbells between users that are not needed any more, to be closed by a thread of these two users alone.
    doorbells_left: Vec<CommonFile>,
}

/// The thread that serves one user.
#[derive(Debug)]
pub struct UserThread {
    /// The poller that it sleeps on.
    pub poller: Poller,
    /// The number of programs that it serves. Without any, it ends.
    pub programs: usize,
}

/// One program that has said hello, or is about to.
#[derive(Debug)]
struct Program {
    socket: Arc<Socket>,
    user: u32,
    /// Its doorbell, and the page that says whether it sleeps.
    doorbell: Option<[OwnedFd; 2]>,
    /// Its place, which it keeps until all its descriptors are closed.
    place: Ticket,
    /// Its doorbells for programs of other users.
    other_user_doorbells: OtherUserDoorbells,
    /// Its offers that it has not ended.
    offers: HashMap<u64, OfferState>,
    /// Bytes of memory that its rings have, as it says.
    ring_bytes: u64,
    /// Its process, as the kernel names it, or 0.
    process: u32,
    /// The parent of that process when it connected.
    parent: Option<u32>,
    /// The fates of its connections since it connected.
    counts: Status,
    /// Set once the program has said that it ends: the bytes of the offers that it had not ended, and how many of
    /// these ends have moved bytes.
    leaving: Option<[u64; 2]>,
}

#[derive(Clone, Copy, Debug)]
enum OfferState {
    Waiting(End),
    /// `other_user` is the other user, if there is one.
    Paired {
        other_user: Option<u32>,
    },
}

impl Program {
    /// The status of this program alone: `carried` and `carried_ever` count its own ends.
    fn status(&self) -> Status {
        let is_paired = |state: &&OfferState| matches!(state, OfferState::Paired { .. });
        let carried = self.offers.values().filter(is_paired).count();
        Status {
            processes: 1,
            carried: carried as u64,
            waiting: (self.offers.len() - carried) as u64,
            memory: self.ring_bytes,
            ..self.counts.clone()
        }
    }
}

/// Takes the lock. A panic under it leaves no half-done state on which other threads rely.
pub fn lock(shared: &Shared) -> MutexGuard<'_, Registry> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes the shared state. Then the calling thread closes the files left over, without the lock. All of them come
/// from the user that it serves, except memory that was offered to that user's ends. Even the close of an eventfd or
/// of memory may take long, if its maker has put it into many epoll sets or locked it in many places. Doorbells
/// between users are closed by a thread of these two users alone.
pub fn change<T>(shared: &Shared, change: impl FnOnce(&mut Registry) -> T) -> T {
    let mut registry = lock(shared);
    let done = change(&mut registry);
    let left = std::mem::take(&mut registry.left);
    let doorbells = std::mem::take(&mut registry.doorbells_left);
    drop(registry);
    drop(left);
    doorbells.into_iter().for_each(|doorbell| deferred::close_common(doorbell.file, doorbell.users));
    done
}

/// Answers a packet of a program. The address space of an offered connection is looked up without the lock, as that
/// may start threads. A connection that is passed on to an engine is closed here, under a bound. `false`: the program
/// broke a rule, or cannot be reached.
pub fn hear(shared: &Shared, tag: u64, packet: CheckedPacket, interrupter: &Interrupter) -> bool {
    if let CheckedPacket::Seek { token, link, is_required, connection, identity } = packet {
        let is_well = change(shared, |registry| {
            let is_asked = registry.seek(tag, token, [link, is_required.into()], &identity, &connection);
            is_asked || !is_required || registry.verdict(tag, token, Verdict::Refused)
        });
        interrupter.bound(|| drop(connection));
        return is_well;
    }
    let space = match &packet {
        CheckedPacket::Offer { identity: Ok(identity), .. } => {
            let spaces = Arc::clone(&lock(shared).spaces);
            spaces.of(identity.namespace, [identity.local, identity.remote])
        }
        // No other packet needs it.
        _ => Space::Own(0),
    };
    change(shared, |registry| registry.answer(tag, packet, space))
}

impl Registry {
    /// A registry without programs. Programs get numbers from `first` on.
    pub fn new(scope: Scope, first: u64) -> Self {
        Self {
            programs: HashMap::new(),
            by_process: BTreeSet::new(),
            user_threads: HashMap::new(),
            next: first,
            users: Users::new(scope, process::user(), Limits::new(scope, limits::descriptor_limit())),
            spaces: Arc::default(),
            waiting: Waiting::default(),
            engines: Engines::default(),
            kept_memory: KeptMemory::default(),
            left: Vec::new(),
            doorbells_left: Vec::new(),
        }
    }

    /// Is any program connected?
    pub fn has_programs(&self) -> bool {
        !self.programs.is_empty()
    }

    /// Registers a thread that is about to serve this user and sleeps on `poller`. `false`: the user may have no
    /// thread.
    pub fn attend(&mut self, user: u32, poller: Poller) -> bool {
        let may_attend = self.users.threads.take(user);
        if may_attend {
            self.user_threads.insert(user, UserThread { poller, programs: 0 });
        }
        may_attend
    }

    /// Removes a thread that has ended, or that could not be started.
    pub fn leave_unattended(&mut self, user: u32) {
        if self.user_threads.remove(&user).is_some() {
            self.users.threads.give_back(user);
        }
    }

    /// May this user have one more program? If so, the caller has to call [`Self::enter`] or [`Self::turn_back`].
    pub fn admit(&mut self, user: u32) -> Option<Ticket> {
        self.users.admit(user)
    }

    /// The admitted program does not come after all.
    pub fn turn_back(&mut self, user: u32) {
        self.users.dismiss(user, 0);
    }

    /// Registers an admitted program with its user's thread, and returns its number. `parent` is the parent of its
    /// process.
    pub fn enter(
        &mut self,
        user: u32,
        socket: &Arc<Socket>,
        place: Ticket,
        parent: Option<u32>,
    ) -> Option<u64> {
        socket.hold_until_closed(Arc::clone(&place));
        let tag = self.next;
        self.next += 1;
        let user_thread = self.user_threads.get_mut(&user);
        let Some(user_thread) =
            user_thread.filter(|user_thread| user_thread.poller.add(&**socket, tag).is_ok())
        else {
            self.turn_back(user);
            return None;
        };
        user_thread.programs += 1;
        let process = socket.credentials().ok().and_then(|found| u32::try_from(found.pid).ok()).unwrap_or(0);
        self.by_process.insert((process, tag));
        let program = Program {
            socket: Arc::clone(socket),
            user,
            doorbell: None,
            place,
            other_user_doorbells: OtherUserDoorbells::of(user),
            offers: HashMap::new(),
            ring_bytes: 0,
            process,
            parent,
            counts: Status::default(),
            leaving: None,
        };
        self.programs.insert(tag, program);
        Some(tag)
    }

    /// The socket of a program.
    pub fn socket(&self, tag: u64) -> Option<Arc<Socket>> {
        self.programs.get(&tag).map(|program| Arc::clone(&program.socket))
    }

    /// Answers a packet. `space` is the address space of an offered connection. `false`: the program broke a rule, or
    /// cannot be reached.
    fn answer(&mut self, tag: u64, packet: CheckedPacket, space: Space) -> bool {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return false };
        let packet = match packet {
            CheckedPacket::Hello(pair) => return self.greet(tag, pair),
            CheckedPacket::Offer { token, segment, identity } => {
                return self.consider(tag, token, segment, &identity, space);
            }
            CheckedPacket::Taken { token, segment } => return self.taken(tag, token, segment),
            // Handled by `hear`, which has the connection to close.
            CheckedPacket::Seek { .. } => return false,
            CheckedPacket::Other(packet) => packet,
        };
        match packet.kind {
            Kind::Ask => {
                let links = self.engines.links(user);
                self.tell(tag, Packet { code: links, ..Packet::new(Kind::Go, packet.token) }, &[])
            }
            Kind::Serve => self.serve(tag, packet.code, packet.first),
            Kind::Node => self.engines.note_node(tag, [packet.first, packet.second], packet.code != 0),
            Kind::Locate => self.locate(tag, &packet),
            Kind::Gone => {
                self.tell_ends(tag);
                true
            }
            Kind::End => {
                self.end(tag, &packet);
                true
            }
            Kind::Leave => {
                if let Some(program) = self.programs.get_mut(&tag) {
                    program.leaving = Some([packet.first, packet.second]);
                }
                true
            }
            Kind::Withdrawn => {
                let program = self.programs.get_mut(&tag);
                self.doorbells_left.extend(
                    program.and_then(|program| program.other_user_doorbells.take_withdrawn(packet.token)),
                );
                true
            }
            Kind::Note => {
                if let Some(reason) = Reason::of(packet.code) {
                    self.users.note(user, reason, packet.first);
                    if let Some(program) = self.programs.get_mut(&tag) {
                        program.counts.add_not_carried(reason, packet.first);
                    }
                }
                true
            }
            Kind::Memory => {
                // No program has more than there is, whatever it says.
                let bytes = packet.first.min(limits::memory_bytes());
                if let Some(program) = self.programs.get_mut(&tag) {
                    let before = std::mem::replace(&mut program.ring_bytes, bytes);
                    self.users.has_rings(user, before, bytes);
                }
                true
            }
            Kind::Status => {
                let process = packet.number;
                let status = match process {
                    0 => self.users.status(user),
                    _ => self.process_status(user, process),
                };
                status.packets().all(|packet| self.tell(tag, Packet { number: process, ..packet }, &[]))
            }
            _ => false,
        }
    }

    /// The status of one process, as far as `user` may see it. It has no programs if the process is not connected.
    fn process_status(&self, user: u32, process: u32) -> Status {
        let of_process =
            self.by_process.range((process, 0)..=(process, u64::MAX)).take(PROGRAMS_OF_PROCESS_MAX);
        let programs = of_process.filter_map(|(_, tag)| self.programs.get(tag));
        let visible = programs.filter(|program| {
            program.doorbell.is_some() && (program.user == user || self.users.sees_all(user))
        });
        visible.map(Program::status).fold(Status::default(), std::ops::Add::add)
    }

    fn greet(&mut self, tag: u64, pair: [OwnedFd; 2]) -> bool {
        let Some(program) = self.programs.get_mut(&tag).filter(|program| program.doorbell.is_none()) else {
            self.left.extend(pair.map(Held::from));
            return false;
        };
        program.doorbell = Some(pair);
        self.users.greeted(program.user);
        true
    }

    fn consider(
        &mut self,
        tag: u64,
        token: u64,
        segment: Vec<OwnedFd>,
        identity: &Result<Identity, Errno>,
        space: Space,
    ) -> bool {
        // The descriptors may have been lost on the way.
        if segment.is_empty() {
            return self.verdict(tag, token, Verdict::Full);
        }
        let verdict = match identity {
            Ok(identity) if identity.is_bound_to_device => Verdict::Device,
            Ok(identity) if identity.is_established && !self.may_have_rings(tag) => Verdict::Memory,
            Ok(identity) if identity.is_established => {
                return self.offer(tag, token, identity, segment, space);
            }
            Err(Errno::XDEV) => Verdict::Namespace,
            // It may be offered again: nobody has accepted its other end yet.
            Err(Errno::AGAIN) => Verdict::Full,
            _ => Verdict::Refused,
        };
        self.left.extend(segment.into_iter().map(Held::from));
        self.verdict(tag, token, verdict)
    }

    fn may_have_rings(&self, tag: u64) -> bool {
        self.programs.get(&tag).is_none_or(|program| self.users.may_have_rings(program.user))
    }

    /// Pairs the offer or lets it wait. `false`: the program broke a rule, or cannot be told.
    fn offer(
        &mut self,
        tag: u64,
        token: u64,
        identity: &Identity,
        segment: Vec<OwnedFd>,
        space: Space,
    ) -> bool {
        let Some(program) = self.programs.get_mut(&tag) else {
            self.left.extend(segment.into_iter().map(Held::from));
            return false;
        };
        // The program has not executed another one after all.
        program.leaving = None;
        let (user, offers_count) = (program.user, program.offers.len());
        if program.doorbell.is_none() || program.offers.contains_key(&token) {
            self.left.extend(segment.into_iter().map(Held::from));
            return false;
        }
        let end = End { space, local: identity.local, remote: identity.remote };
        let place = self.users.place_to_wait(user);
        // An offer that is paired at once needs no place to wait. If it were refused, offers that fill all places
        // would wait for each other's ends forever.
        let may_wait =
            place.is_some() || self.waiting.is_met(&end, user, identity.namespace, identity.cookie);
        let segment: Vec<_> = segment.into_iter().map(|file| Held::new(file, place.clone())).collect();
        if !may_wait || !self.users.may_offer(user, offers_count) {
            self.left.extend(segment);
            return self.verdict(tag, token, Verdict::Full);
        }
        // Both programs need room for the answer. A program that does not read is told nothing more, so that the
        // answers to its own questions have room.
        let others = self.waiting.mate(&end);
        let has_room = |tag| self.programs.get(&tag).is_some_and(|program| program.socket.has_room());
        if others.is_some_and(|other| !has_room(tag) || !has_room(other)) {
            self.left.extend(segment);
            return self.verdict(tag, token, Verdict::Full);
        }
        let (namespace, cookie) = (identity.namespace, identity.cookie);
        let offer = Offer { program: tag, user, token, namespace, cookie, peer: identity.peer, segment };
        match self.waiting.offer(end, offer) {
            Match::Refused(verdict, offer) => {
                self.left.extend(offer.segment);
                self.verdict(tag, token, verdict)
            }
            Match::Paired { ours, theirs } => {
                self.users.waits_no_more(theirs.user);
                let is_told = self.pair(&ours, &theirs, 0);
                self.left.extend(ours.segment.into_iter().chain(theirs.segment));
                is_told
            }
            Match::Waits(stale) => {
                if let Some(stale) = stale {
                    self.users.waits_no_more(stale.user);
                    self.forget(stale.program, stale.token);
                    self.left.extend(stale.segment);
                }
                self.wait(tag, token, end)
            }
            Match::Again(theirs) => {
                self.users.waits_no_more(theirs.user);
                self.forget(theirs.program, theirs.token);
                if !self.verdict(theirs.program, theirs.token, Verdict::Again) {
                    self.sever(theirs.program);
                }
                self.left.extend(theirs.segment);
                self.wait(tag, token, end)
            }
        }
    }

    fn wait(&mut self, tag: u64, token: u64, end: End) -> bool {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return false };
        self.users.waits(user);
        self.set_state(tag, token, OfferState::Waiting(end));
        self.verdict(tag, token, Verdict::Waiting)
    }

    fn set_state(&mut self, tag: u64, token: u64, state: OfferState) {
        let Some(program) = self.programs.get_mut(&tag) else { return };
        if let OfferState::Paired { other_user } = state {
            self.users.has_paired(program.user, other_user.is_some(), 1);
            program.counts.carried_ever = program.counts.carried_ever.saturating_add(1);
        }
        if program.offers.insert(token, state).is_none() {
            self.users.offered(program.user);
        }
    }

    fn forget(&mut self, tag: u64, token: u64) -> Option<OfferState> {
        self.tell_engine(tag, token);
        let program = self.programs.get_mut(&tag)?;
        let state = program.offers.remove(&token)?;
        self.users.ended(program.user);
        if let OfferState::Paired { other_user } = state {
            self.users.has_paired(program.user, other_user.is_some(), -1);
            if let Some(user) = other_user {
                self.kept_memory.end((tag, token));
                self.release_doorbell(tag, user);
            }
        }
        Some(state)
    }

    /// Gives each end the other end's segment and doorbell. `link` says what an engine does, 0 if none of the two is one.
    fn pair(&mut self, ours: &Offer, theirs: &Offer, link: u8) -> bool {
        let is_other_user = ours.user != theirs.user;
        if is_other_user && !(self.expect_each_other(ours, theirs) && self.begin_other_user(ours, theirs)) {
            self.forget(theirs.program, theirs.token);
            if !self.verdict(theirs.program, theirs.token, Verdict::OtherUser) {
                self.sever(theirs.program);
            }
            return self.verdict(ours.program, ours.token, Verdict::OtherUser);
        }
        self.users.paired([ours.user, theirs.user]);
        for (end, other) in [(ours, theirs), (theirs, ours)] {
            let other_user = is_other_user.then_some(other.user);
            self.set_state(end.program, end.token, OfferState::Paired { other_user });
        }
        let ours_is_told = self.introduce(ours, theirs, link);
        if !self.introduce(theirs, ours, link) {
            // An end that is not told never prepares, so the other end stays in the kernel.
            self.sever(theirs.program);
        }
        ours_is_told
    }

    /// Returns whether the kernel names each of the two programs as the other end of a Unix connection: its user, its
    /// process, or the parent that began to listen for it. Inodes are reused, and a third user could arrange for one.
    fn expect_each_other(&self, ours: &Offer, theirs: &Offer) -> bool {
        [(ours, theirs), (theirs, ours)].into_iter().all(|(end, other)| {
            let Some(peer) = end.peer else { return true };
            // Every orphan is a child of the first process.
            let named = u32::try_from(peer.pid).ok().filter(|pid| *pid > 1);
            peer.uid == other.user
                || self.programs.get(&other.program).is_some_and(|program| {
                    named.is_some() && [Some(program.process), program.parent].contains(&named)
                })
        })
    }

    /// Begins a connection between different users: both programs get doorbells, and the memory of both ends is counted
    /// until it is released. `false`: it may not begin.
    fn begin_other_user(&mut self, ours: &Offer, theirs: &Offer) -> bool {
        let users = [ours.user, theirs.user];
        let ends = [ours, theirs].map(|offer| (offer.program, offer.token));
        // Learns first which memory has gone: it gives its places back.
        if !self.kept_memory.may_begin(users) {
            return false;
        }
        let places: Vec<_> = users.into_iter().filter_map(|user| self.users.between.take(user)).collect();
        if places.len() < users.len() || !self.ensure_doorbell(ours.program, theirs.user) {
            return false;
        }
        if !self.ensure_doorbell(theirs.program, ours.user) {
            self.release_doorbell(ours.program, theirs.user);
            return false;
        }
        let files = ours.segment.iter().chain(&theirs.segment);
        let has_begun = self.kept_memory.begin(users, ends, places, files).is_ok();
        if !has_begun {
            self.release_doorbell(ours.program, theirs.user);
            self.release_doorbell(theirs.program, ours.user);
        }
        has_begun
    }

    /// Tells the program of `ours` about `theirs`.
    fn introduce(&self, ours: &Offer, theirs: &Offer, link: u8) -> bool {
        let Some((program, peer)) = self.programs.get(&ours.program).zip(self.programs.get(&theirs.program))
        else {
            return false;
        };
        let Some([doorbell, page]) = &peer.doorbell else { return false };
        let other_user = (ours.user != theirs.user)
            .then(|| {
                let file = peer.other_user_doorbells.file(ours.user);
                program.other_user_doorbells.name(theirs.user).zip(file)
            })
            .flatten();
        let (first, doorbell) = other_user.unwrap_or((0, doorbell.as_fd()));
        let answer = Packet {
            code: Verdict::Paired as u8,
            number: theirs.program as u32,
            first,
            second: link.into(),
            ..Packet::new(Kind::Answer, ours.token)
        };
        let Some((first, rest)) = theirs.segment.split_first() else { return false };
        let mut descriptors = vec![first.as_fd(), doorbell, page.as_fd()];
        descriptors.extend(rest.iter().map(AsFd::as_fd));
        program.socket.send(&answer.encode(), &descriptors).is_ok()
    }

    /// Makes sure that a program has a doorbell that only programs of `user` may ring, for one more connection.
    fn ensure_doorbell(&mut self, tag: u64, user: u32) -> bool {
        let Some(program) = self.programs.get_mut(&tag) else { return false };
        // Earlier withdrawals of which the program could not be told.
        program.other_user_doorbells.withdraw_unused(&program.socket);
        if program.other_user_doorbells.use_again(user) {
            return true;
        }
        let users = [program.user, user];
        if program.other_user_doorbells.is_full() || !deferred::may_have_common(users) {
            return false;
        }
        let Some(place) = self.users.doorbells.take(program.user) else { return false };
        let Ok(file) = timer_doorbell::new() else { return false };
        let file = Held::new(file, Some(place));
        let name = self.next;
        self.next += 1;
        if program.socket.send(&Packet::new(Kind::Doorbell, name).encode(), &[file.as_fd()]).is_err() {
            self.doorbells_left.push(CommonFile { file, users });
            return false;
        }
        program.other_user_doorbells.add(user, name, file);
        true
    }

    /// A connection with a program of `user` is over, or has not begun after all.
    fn release_doorbell(&mut self, tag: u64, user: u32) {
        if let Some(program) = self.programs.get_mut(&tag) {
            program.other_user_doorbells.release(user);
            program.other_user_doorbells.withdraw_unused(&program.socket);
        }
    }

    fn end(&mut self, tag: u64, packet: &Packet) {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return };
        self.users.carried(user, packet.first);
        match self.forget(tag, packet.token) {
            Some(OfferState::Waiting(end)) => {
                if let Some(offer) = self.waiting.take_back(&end, tag, packet.token) {
                    self.users.waits_no_more(offer.user);
                    self.left.extend(offer.segment);
                }
            }
            Some(OfferState::Paired { .. }) if (packet.first, packet.second) == (0, 0) => {
                self.users.unused(user, 1);
            }
            _ => {}
        }
    }

    /// Ends the connection to a program of any user. The thread of that user learns of it and dismisses the program.
    fn sever(&self, tag: u64) {
        if let Some(program) = self.programs.get(&tag) {
            program.socket.shut_down();
        }
    }

    /// Removes a program. Its user's thread calls this.
    pub fn dismiss(&mut self, tag: u64) {
        let Some(program) = self.programs.remove(&tag) else { return };
        program.offers.keys().for_each(|token| self.tell_engine(tag, *token));
        self.engines.dismiss(tag);
        self.by_process.remove(&(program.process, tag));
        if let Some(user_thread) = self.user_threads.get_mut(&program.user) {
            user_thread.poller.remove(&*program.socket);
            user_thread.programs -= 1;
        }
        // The program learns of it now, even if the close has to wait for what it has sent.
        program.socket.shut_down();
        let mut carried = 0u64;
        for (token, state) in &program.offers {
            match state {
                OfferState::Waiting(end) => {
                    if let Some(offer) = self.waiting.take_back(end, tag, *token) {
                        self.users.waits_no_more(program.user);
                        self.left.extend(offer.segment);
                    }
                }
                OfferState::Paired { other_user } => {
                    carried += 1;
                    self.users.has_paired(program.user, other_user.is_some(), -1);
                    if other_user.is_some() {
                        self.kept_memory.end((tag, *token));
                    }
                }
            }
        }
        match program.leaving {
            Some([bytes, used]) => {
                self.users.carried(program.user, bytes);
                self.users.unused(program.user, carried.saturating_sub(used));
            }
            None => self.users.cut(program.user, carried),
        }
        self.users.has_rings(program.user, program.ring_bytes, 0);
        if program.doorbell.is_some() {
            self.users.parted(program.user);
        }
        self.users.dismiss(program.user, program.offers.len());
        let place = Some(program.place);
        self.left.extend(program.doorbell.into_iter().flatten().map(|file| Held::new(file, place.clone())));
        self.doorbells_left.extend(program.other_user_doorbells.into_files());
    }

    fn verdict(&self, tag: u64, token: u64, verdict: Verdict) -> bool {
        self.tell(tag, Packet { code: verdict as u8, ..Packet::new(Kind::Answer, token) }, &[])
    }

    fn tell(&self, tag: u64, packet: Packet, descriptors: &[BorrowedFd<'_>]) -> bool {
        let program = self.programs.get(&tag);
        program.is_some_and(|program| program.socket.send(&packet.encode(), descriptors).is_ok())
    }
}
