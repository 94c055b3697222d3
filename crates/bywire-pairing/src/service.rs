//! The pairing service of one user, or of a machine.
//!
//! It believes nothing that a program says of a connection: a program passes the descriptor, and the kernel says
//! whose ends it joins. The descriptor is closed before the answer is given, so no end lives longer for it. Nor does it
//! let one user's programs hold up or crowd out another's.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_sys::poller::Poller;
use bywire_sys::socket::{Listener, Received, Socket};
use bywire_sys::tcp::{self, Identity};
use bywire_sys::{Errno, directory, limits, memory, process, strike};

use crate::account::Account;
use crate::closer::Closer;
use crate::protocol::{Kind, PACKET_BYTES, Packet, VERSION, Verdict};
use crate::reason::Reason;
use crate::space::Spaces;
use crate::status::Status;
use crate::user::{Limits, Scope, Users};
use crate::waiting::{End, Match, Offer, Waiting};

/// Descriptors that a service wants to be allowed: so many offers wait at once, and so many programs.
const DESCRIPTORS: u64 = 1 << 19;
/// Packets taken from one program before the others have their turn.
const TURN: usize = 64;
/// The tag of the listener among those of programs, which begin anywhere else.
const LISTENER: u64 = 0;
/// How long whoever comes has to wait when descriptors have run out after all.
const PAUSE: Duration = Duration::from_millis(10);
/// Other users that one program talks to at once: for each it has another bell.
pub const FOREIGN_MAX: usize = 16;

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another one listens there, and answers.
    #[error("a pairing service listens at {0} already")]
    Served(PathBuf),
    /// What is there is no socket that a service has left behind.
    #[error(
        "{0} is there already, and no socket that nobody serves any more: name another one, or remove it"
    )]
    Occupied(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {cause}")]
    Path {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        cause: Errno,
    },
    /// What was handed over is no socket for programs.
    #[error("the socket that was handed over cannot be used: {0}; it has to be a listening one of packets")]
    Socket(Errno),
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    listener: Listener,
    /// Its name, as long as that is ours to remove.
    path: Option<PathBuf>,
    poller: Poller,
    programs: HashMap<u64, Program>,
    next: u64,
    scope: Scope,
    users: Users,
    spaces: Spaces,
    waiting: Waiting,
    closer: Closer,
    account: Account,
    lonely_since: Instant,
}

/// One program that has said hello, or is about to.
#[derive(Debug)]
struct Program {
    socket: Socket,
    user: u32,
    /// Its bell, and the page that says whether it sleeps.
    bell: Option<[OwnedFd; 2]>,
    /// Its bells for programs of other users, by the user: none of these can disturb what is not theirs.
    foreign: HashMap<u32, (u64, OwnedFd)>,
    /// What it has offered and not ended.
    offers: HashMap<u64, Standing>,
    /// It has said that it ends: the bytes of what it had not ended, and how many ends of that have moved any.
    leaving: Option<[u64; 2]>,
}

#[derive(Clone, Copy, Debug)]
enum Standing {
    Waiting(End),
    Paired { is_foreign: bool },
}

impl Service {
    /// Listens at `path`, in place of a dead one.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: &Path, scope: Scope) -> Result<Self, StartError> {
        let mode = if scope == Scope::Machine { 0o666 } else { 0o600 };
        let listener = listen(path, mode)?;
        let failed = |cause| StartError::Path { path: path.to_owned(), cause };
        let mut service = Self::new(listener, scope).map_err(failed)?;
        service.path = Some(path.to_owned());
        Ok(service)
    }

    /// Serves all users at a socket that somebody else keeps, as systemd does.
    ///
    /// # Errors
    /// [`StartError::Socket`].
    pub fn adopt(socket: OwnedFd) -> Result<Self, StartError> {
        let listener = Listener::from_descriptor(socket).map_err(StartError::Socket)?;
        Self::new(listener, Scope::Machine).map_err(StartError::Socket)
    }

    fn new(listener: Listener, scope: Scope) -> Result<Self, Errno> {
        // What cannot be had is done without: fewer programs are admitted.
        let _ = limits::raise_descriptor_limit(DESCRIPTORS);
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        let mut random = [0; 4];
        process::random(&mut random)?;
        Ok(Self {
            listener,
            path: None,
            poller,
            programs: HashMap::new(),
            // Programs outlive their service, and are not to take a new peer for one of the old ones'.
            next: u64::from(u32::from_ne_bytes(random)) + LISTENER + 1,
            scope,
            users: Users::new(scope, Limits::new(scope, limits::descriptor_limit())),
            spaces: Spaces::default(),
            waiting: Waiting::default(),
            closer: Closer::default(),
            account: Account::default(),
            lonely_since: Instant::now(),
        })
    }

    /// Joins namespaces.
    pub fn join(&mut self, spaces: Spaces) {
        self.spaces = spaces;
    }

    /// Serves until nobody has been connected for `idle`.
    ///
    /// # Errors
    /// What the kernel said when it could not wait.
    pub fn serve(&mut self, idle: Duration) -> Result<(), Errno> {
        loop {
            let tags = self.poller.wait(Some(idle.min(Duration::from_secs(1))))?.to_vec();
            for tag in tags {
                match tag {
                    LISTENER => self.admit(),
                    program => self.attend(program),
                }
            }
            if !self.programs.is_empty() {
                self.lonely_since = Instant::now();
            } else if self.lonely_since.elapsed() >= idle {
                self.leave_name();
                // Whoever came while the name was being removed finds an open door once more.
                self.admit();
                if self.programs.is_empty() {
                    return Ok(());
                }
            }
        }
    }

    fn leave_name(&mut self) {
        if let Some(path) = self.path.take() {
            directory::remove(&path);
        }
    }

    fn admit(&mut self) {
        for _ in 0..TURN {
            if !self.closer.has_room() {
                // As below.
                return std::thread::sleep(PAUSE);
            }
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                // Whoever waits there waits on; the others are served in between.
                Err(_) => return std::thread::sleep(PAUSE),
            };
            let Ok(user) = socket.credentials().map(|found| found.uid) else { continue };
            let tag = self.next;
            // Whoever is too many is dropped and does without.
            let is_welcome = self.closer.bears(user) && self.users.admit(user);
            if !is_welcome {
                self.refuse(user, socket);
                continue;
            }
            self.next += 1;
            let is_watched = self.poller.add(&socket, tag).is_ok();
            let (bell, foreign, offers) = (None, HashMap::new(), HashMap::new());
            self.programs.insert(tag, Program { socket, user, bell, foreign, offers, leaving: None });
            if !is_watched {
                self.dismiss(tag);
            }
        }
    }

    /// Closes what a program has sent. One that only its own user is served by may hold itself up.
    fn discard(&mut self, user: u32, descriptors: Vec<OwnedFd>) {
        match self.scope {
            Scope::User => drop(descriptors),
            Scope::Machine => self.closer.close(user, descriptors),
        }
    }

    /// Closes the socket of a program that was not let in, of which there may come any number.
    fn refuse(&mut self, user: u32, socket: Socket) {
        match self.scope {
            Scope::User => drop(socket),
            Scope::Machine if socket.ends_empty() => drop(socket),
            Scope::Machine => self.closer.refuse(user, socket.into()),
        }
    }

    fn attend(&mut self, tag: u64) {
        for _ in 0..TURN {
            let Some(program) = self.programs.get(&tag) else { return };
            let (mut buffer, user) = ([0; PACKET_BYTES], program.user);
            // What it would send has to be closed, too.
            if !self.closer.bears(user) {
                return self.dismiss(tag);
            }
            let (length, descriptors) = match program.socket.receive(&mut buffer) {
                Ok(Received::Packet(length, descriptors)) => (length, descriptors),
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) | Err(_) => return self.dismiss(tag),
            };
            let is_well = match Packet::decode(&buffer[..length]) {
                Some(packet) => self.answer(tag, &packet, descriptors),
                None => {
                    self.discard(user, descriptors);
                    false
                }
            };
            if !is_well {
                return self.dismiss(tag);
            }
        }
        // Level-triggered: what is left comes again.
    }

    /// `false`: the program broke a rule, or cannot be reached.
    fn answer(&mut self, tag: u64, packet: &Packet, descriptors: Vec<OwnedFd>) -> bool {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return false };
        match packet.kind {
            Kind::Hello => self.greet(tag, packet, descriptors),
            Kind::Offer => self.consider(tag, packet.token, descriptors),
            // Nothing else comes with descriptors.
            _ if !descriptors.is_empty() => {
                self.discard(user, descriptors);
                false
            }
            Kind::Ask => self.tell(tag, Packet::new(Kind::Go, packet.token), &[]),
            Kind::End => {
                self.end(tag, packet);
                true
            }
            Kind::Leave => {
                if let Some(program) = self.programs.get_mut(&tag) {
                    program.leaving = Some([packet.first, packet.second]);
                }
                true
            }
            Kind::Note => {
                if let Some(reason) = Reason::of(packet.code) {
                    self.users.note(user, reason, packet.first);
                }
                true
            }
            Kind::Status => {
                let status = self.status(user);
                status.packets().all(|packet| self.tell(tag, packet, &[]))
            }
            Kind::Go | Kind::Answer | Kind::Count | Kind::Done | Kind::Bell => false,
        }
    }

    fn greet(&mut self, tag: u64, packet: &Packet, descriptors: Vec<OwnedFd>) -> bool {
        let Some(program) = self.programs.get_mut(&tag) else { return false };
        match <[OwnedFd; 2]>::try_from(descriptors) {
            // The bell is what it is: it is never used here, and a page is memory of the kernel's, which closes at once.
            Ok(pair) if packet.first == VERSION && program.bell.is_none() => program.bell = Some(pair),
            Ok(pair) => {
                let user = program.user;
                self.discard(user, pair.into());
                return false;
            }
            Err(descriptors) => {
                let user = program.user;
                self.discard(user, descriptors);
                return false;
            }
        }
        true
    }

    fn consider(&mut self, tag: u64, token: u64, descriptors: Vec<OwnedFd>) -> bool {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return false };
        let mut descriptors = descriptors;
        let segment = if descriptors.len() == 2 { descriptors.pop() } else { None };
        let identity = descriptors.first().map_or(Err(Errno::BADF), tcp::identify);
        self.discard(user, descriptors);
        // They may have been lost on the way, for want of numbers here.
        let Some(segment) = segment else { return self.verdict(tag, token, Verdict::Full) };
        if self.scope == Scope::Machine && !memory::is_sealable(&segment) {
            self.discard(user, vec![segment]);
            return false;
        }
        match identity {
            Ok(identity) if identity.is_bound_to_device => self.verdict(tag, token, Verdict::Device),
            Ok(identity) if identity.is_established => self.offer(tag, token, &identity, segment),
            _ => self.verdict(tag, token, Verdict::Refused),
        }
    }

    /// Pairs the offer or lets it wait. `false`: the program broke a rule, or cannot be told.
    fn offer(&mut self, tag: u64, token: u64, identity: &Identity, segment: OwnedFd) -> bool {
        let Some(program) = self.programs.get_mut(&tag) else { return false };
        // It has not become another one after all.
        program.leaving = None;
        let (user, offers_count) = (program.user, program.offers.len());
        if program.bell.is_none() || program.offers.contains_key(&token) {
            return false;
        }
        if !self.users.may_wait(user) || !self.users.may_offer(user, offers_count) {
            return self.verdict(tag, token, Verdict::Full);
        }
        let space = self.spaces.of(identity.namespace, [identity.local, identity.remote]);
        let end = End { space, local: identity.local, remote: identity.remote };
        // Whoever does not listen is told nothing more before it does, so that there is room for what it has asked for.
        let others = self.waiting.mate(&end);
        let has_room = |tag| self.programs.get(&tag).is_some_and(|program| program.socket.has_room());
        if others.is_some_and(|other| !has_room(tag) || !has_room(other)) {
            return self.verdict(tag, token, Verdict::Full);
        }
        let (namespace, cookie) = (identity.namespace, identity.cookie);
        let offer = Offer { program: tag, user, token, namespace, cookie, segment };
        match self.waiting.offer(end, offer) {
            Match::Refused(verdict) => self.verdict(tag, token, verdict),
            Match::Paired { ours, theirs } => {
                self.users.waits_no_more(theirs.user);
                self.pair(&ours, &theirs)
            }
            Match::Waits(stale) => {
                if let Some(stale) = stale {
                    self.users.waits_no_more(stale.user);
                    self.forget(stale.program, stale.token);
                }
                self.wait(tag, token, end)
            }
            Match::Again(theirs) => {
                self.users.waits_no_more(theirs.user);
                self.forget(theirs.program, theirs.token);
                if !self.verdict(theirs.program, theirs.token, Verdict::Again) {
                    self.dismiss(theirs.program);
                }
                self.wait(tag, token, end)
            }
        }
    }

    fn wait(&mut self, tag: u64, token: u64, end: End) -> bool {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return false };
        self.users.waits(user);
        self.stand(tag, token, Standing::Waiting(end));
        self.verdict(tag, token, Verdict::Waiting)
    }

    fn stand(&mut self, tag: u64, token: u64, standing: Standing) {
        let Some(program) = self.programs.get_mut(&tag) else { return };
        if program.offers.insert(token, standing).is_none() {
            self.users.offered(program.user);
        }
    }

    fn forget(&mut self, tag: u64, token: u64) -> Option<Standing> {
        let program = self.programs.get_mut(&tag)?;
        let standing = program.offers.remove(&token)?;
        self.users.ended(program.user);
        if matches!(standing, Standing::Paired { is_foreign: true }) {
            self.account.end((tag, token));
        }
        Some(standing)
    }

    /// Gives each end the other's segment and bell.
    fn pair(&mut self, ours: &Offer, theirs: &Offer) -> bool {
        let is_foreign = ours.user != theirs.user;
        if is_foreign && !self.begin_foreign(ours, theirs) {
            self.forget(theirs.program, theirs.token);
            if !self.verdict(theirs.program, theirs.token, Verdict::Foreign) {
                self.dismiss(theirs.program);
            }
            return self.verdict(ours.program, ours.token, Verdict::Foreign);
        }
        self.users.paired([ours.user, theirs.user]);
        for end in [ours, theirs] {
            self.stand(end.program, end.token, Standing::Paired { is_foreign });
        }
        let ours_is_told = self.introduce(ours, theirs);
        if !self.introduce(theirs, ours) {
            // An end that hears nothing never prepares, so the other one stays in the kernel.
            self.dismiss(theirs.program);
        }
        ours_is_told
    }

    /// May ends of different users meet? Then they have bells, and are on both users' account.
    fn begin_foreign(&mut self, ours: &Offer, theirs: &Offer) -> bool {
        let users = [ours.user, theirs.user];
        let ends = [ours, theirs].map(|offer| (offer.program, offer.token));
        self.account.may_begin(users)
            && self.found_bell(ours.program, theirs.user)
            && self.found_bell(theirs.program, ours.user)
            && self.account.begin(users, ends, [&ours.segment, &theirs.segment]).is_ok()
    }

    /// Tells `ours` of `theirs`.
    fn introduce(&self, ours: &Offer, theirs: &Offer) -> bool {
        let Some((program, peer)) = self.programs.get(&ours.program).zip(self.programs.get(&theirs.program))
        else {
            return false;
        };
        let Some([bell, page]) = &peer.bell else { return false };
        let foreign = (ours.user != theirs.user)
            .then(|| program.foreign.get(&theirs.user).zip(peer.foreign.get(&ours.user)))
            .flatten();
        let (first, bell) = foreign.map_or((0, bell), |((own, _), (_, bell))| (*own, bell));
        let answer = Packet {
            code: Verdict::Paired as u8,
            number: theirs.program as u32,
            first,
            ..Packet::new(Kind::Answer, ours.token)
        };
        let descriptors = [theirs.segment.as_fd(), bell.as_fd(), page.as_fd()];
        program.socket.send(&answer.encode(), &descriptors).is_ok()
    }

    /// Makes sure that a program has a bell which programs of `user` may ring, and nobody else.
    fn found_bell(&mut self, tag: u64, user: u32) -> bool {
        let Some(program) = self.programs.get_mut(&tag) else { return false };
        if program.foreign.contains_key(&user) {
            return true;
        }
        if program.foreign.len() >= FOREIGN_MAX {
            return false;
        }
        let Ok(bell) = strike::new() else { return false };
        let name = self.next;
        self.next += 1;
        if program.socket.send(&Packet::new(Kind::Bell, name).encode(), &[bell.as_fd()]).is_err() {
            return false;
        }
        program.foreign.insert(user, (name, bell));
        true
    }

    fn end(&mut self, tag: u64, packet: &Packet) {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return };
        self.users.carried(user, packet.first);
        match self.forget(tag, packet.token) {
            Some(Standing::Waiting(end)) => {
                if let Some(offer) = self.waiting.take_back(&end, tag, packet.token) {
                    self.users.waits_no_more(offer.user);
                }
            }
            Some(Standing::Paired { .. }) if (packet.first, packet.second) == (0, 0) => {
                self.users.unused(user, 1);
            }
            _ => {}
        }
    }

    fn dismiss(&mut self, tag: u64) {
        let Some(program) = self.programs.remove(&tag) else { return };
        self.poller.remove(&program.socket);
        // It hears of it now, even if its end has to wait for what it has sent.
        program.socket.shut_down();
        for (token, standing) in &program.offers {
            if matches!(standing, Standing::Paired { is_foreign: true }) {
                self.account.end((tag, *token));
            }
            if let Standing::Waiting(end) = standing
                && self.waiting.take_back(end, tag, *token).is_some()
            {
                self.users.waits_no_more(program.user);
            }
        }
        let carried = program.offers.values().filter(|standing| matches!(standing, Standing::Paired { .. }));
        let carried = carried.count() as u64;
        match program.leaving {
            Some([bytes, used]) => {
                self.users.carried(program.user, bytes);
                self.users.unused(program.user, carried.saturating_sub(used));
            }
            None => self.users.cut(program.user, carried),
        }
        self.users.dismiss(program.user, program.offers.len());
        // With what it has sent and nobody has taken.
        let rest = program.bell.into_iter().flatten().chain([program.socket.into()]);
        self.discard(program.user, rest.collect());
    }

    fn status(&self, user: u32) -> Status {
        let seen =
            || self.programs.values().filter(|program| self.users.sees_all(user) || program.user == user);
        let standings = || seen().flat_map(|program| program.offers.values());
        let ends = |wanted: bool| {
            let is_such = |standing: &&Standing| matches!(standing, Standing::Paired { is_foreign } if *is_foreign == wanted);
            standings().filter(is_such).count() as u64
        };
        // Of a connection between users, who does not see everything sees one end.
        let foreign = if self.users.sees_all(user) { ends(true) / 2 } else { ends(true) };
        Status {
            // Whoever asks is connected as well, and has no bell.
            processes: seen().filter(|program| program.bell.is_some()).count() as u64,
            carried: ends(false) / 2 + foreign,
            ..self.users.counts(user)
        }
    }

    fn verdict(&self, tag: u64, token: u64, verdict: Verdict) -> bool {
        self.tell(tag, Packet { code: verdict as u8, ..Packet::new(Kind::Answer, token) }, &[])
    }

    fn tell(&self, tag: u64, packet: Packet, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> bool {
        let program = self.programs.get(&tag);
        program.is_some_and(|program| program.socket.send(&packet.encode(), descriptors).is_ok())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.leave_name();
    }
}

/// Makes the socket beside its name and moves it there: over another socket only if nobody serves that, and over nothing
/// else.
fn listen(path: &Path, mode: u32) -> Result<Listener, StartError> {
    let failed = |cause| StartError::Path { path: path.to_owned(), cause };
    let mut random = [0; 8];
    bywire_sys::process::random(&mut random).map_err(failed)?;
    let temporary = path.with_extension(format!("{:016x}", u64::from_ne_bytes(random)));
    let listener = Listener::bind(&temporary).map_err(failed)?;
    let place = || {
        directory::set_access(&temporary, mode, None).map_err(failed)?;
        match directory::rename_if_free(&temporary, path) {
            Err(Errno::EXIST) => {}
            other => return other.map_err(failed),
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        let _lock = loop {
            match directory::try_lock(directory) {
                Ok(lock) => break lock,
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Err(cause) => return Err(failed(cause)),
            }
        };
        match Socket::connect(path) {
            Ok(_) | Err(Errno::AGAIN) => return Err(StartError::Served(path.to_owned())),
            // It may have been removed since.
            Err(Errno::NOENT) if directory::entry(path).is_err() => {}
            Err(Errno::CONNREFUSED) if directory::entry(path).is_ok_and(|entry| entry.is_socket) => {}
            Err(_) => return Err(StartError::Occupied(path.to_owned())),
        }
        directory::rename(&temporary, path).map_err(failed)
    };
    let placed = place();
    if placed.is_err() {
        directory::remove(&temporary);
    }
    placed.map(|()| listener)
}
