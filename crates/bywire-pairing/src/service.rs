//! The pairing service of one user, or of a machine.
//!
//! It believes nothing that a program says of a connection: a program passes the descriptor, and the kernel says
//! whose ends it joins. The descriptor is closed before the answer is given, so no end lives longer for it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_sys::poller::Poller;
use bywire_sys::socket::{Listener, Received, Socket};
use bywire_sys::tcp::{self, Identity};
use bywire_sys::{Errno, directory, foreign, limits};

use crate::protocol::{Kind, PACKET_BYTES, Packet, VERSION, Verdict};
use crate::reason::Reason;
use crate::status::Status;

/// Offers that wait, of all programs together: each holds a descriptor.
const WAITING_MAX: usize = 100_000;
/// Programs at once.
const PROGRAMS_MAX: usize = 20_000;
/// Packets taken from one program before the others have their turn.
const TURN: usize = 64;
/// The tag of the listener among those of programs, which count from 1.
const LISTENER: u64 = 0;

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another one listens there, and answers.
    #[error("a pairing service listens at {0} already")]
    Served(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {cause}")]
    Path {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        cause: Errno,
    },
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    listener: Listener,
    path: PathBuf,
    poller: Poller,
    programs: HashMap<u64, Program>,
    next: u64,
    waiting: HashMap<Tuple, Offer>,
    status: Status,
    lonely_since: Instant,
    /// The name is still ours.
    is_named: bool,
}

/// One program that has said hello, or is about to.
#[derive(Debug)]
struct Program {
    socket: Socket,
    /// Its bell, and the page that says whether it sleeps.
    bell: Option<[OwnedFd; 2]>,
    /// What it has offered and not ended.
    offers: HashMap<u64, Standing>,
}

#[derive(Clone, Copy, Debug)]
enum Standing {
    Waiting(Tuple),
    Paired,
}

/// One end, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tuple {
    local: SocketAddr,
    remote: SocketAddr,
}

/// An end that waits for the other one.
#[derive(Debug)]
struct Offer {
    program: u64,
    token: u64,
    namespace: u64,
    segment: OwnedFd,
    /// Offered from two namespaces: it pairs with nobody.
    disputed: bool,
}

impl Service {
    /// Listens at `path`, in place of a dead one.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: &Path) -> Result<Self, StartError> {
        let failed = |cause| StartError::Path { path: path.to_owned(), cause };
        // As many as there may be; with fewer, whoever comes too late does without.
        let _fewer = limits::raise_descriptor_limit((WAITING_MAX + 3 * PROGRAMS_MAX) as u64);
        let listener = listen(path)?;
        let poller = Poller::new().map_err(failed)?;
        poller.add(&listener, LISTENER).map_err(failed)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            poller,
            programs: HashMap::new(),
            next: LISTENER + 1,
            waiting: HashMap::new(),
            status: Status::default(),
            lonely_since: Instant::now(),
            is_named: true,
        })
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
        if self.is_named {
            directory::remove(&self.path);
            self.is_named = false;
        }
    }

    fn admit(&mut self) {
        while let Ok(Some(socket)) = self.listener.accept() {
            let tag = self.next;
            // Whoever is too many is dropped and does without.
            if self.programs.len() < PROGRAMS_MAX && self.poller.add(&socket, tag).is_ok() {
                self.next += 1;
                self.programs.insert(tag, Program { socket, bell: None, offers: HashMap::new() });
            }
        }
    }

    fn attend(&mut self, tag: u64) {
        for _ in 0..TURN {
            let Some(program) = self.programs.get(&tag) else { return };
            let mut buffer = [0; PACKET_BYTES];
            let (length, descriptors) = match program.socket.receive(&mut buffer) {
                Ok(Received::Packet(length, descriptors)) => (length, descriptors),
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) | Err(_) => return self.dismiss(tag),
            };
            let Some(packet) = Packet::decode(&buffer[..length]) else {
                foreign::discard(descriptors);
                return self.dismiss(tag);
            };
            if !self.answer(tag, &packet, descriptors) {
                return self.dismiss(tag);
            }
        }
        // Level-triggered: what is left comes again.
    }

    /// `false`: the program broke a rule, or cannot be reached.
    fn answer(&mut self, tag: u64, packet: &Packet, descriptors: Vec<OwnedFd>) -> bool {
        match packet.kind {
            Kind::Hello => {
                let Some(program) = self.programs.get_mut(&tag) else { return false };
                program.bell = <[OwnedFd; 2]>::try_from(descriptors).ok();
                packet.first == VERSION && program.bell.is_some()
            }
            Kind::Ask => self.tell(tag, Packet::new(Kind::Go, packet.token), &[]),
            Kind::Offer => {
                let Ok([connection, segment]) = <[OwnedFd; 2]>::try_from(descriptors) else {
                    // They may have been lost on the way, for want of numbers here.
                    let full =
                        Packet { code: Verdict::Full as u8, ..Packet::new(Kind::Answer, packet.token) };
                    return self.tell(tag, full, &[]);
                };
                let identity = tcp::identify(&connection);
                drop(connection);
                self.offer(tag, packet.token, identity, segment)
            }
            Kind::End => {
                self.end(tag, packet.token);
                self.status.bytes += packet.first;
                true
            }
            Kind::Note => {
                self.note(packet.code, packet.first);
                true
            }
            Kind::Status => {
                let status = self.status();
                status.packets().all(|packet| self.tell(tag, packet, &[]))
            }
            Kind::Go | Kind::Answer | Kind::Count | Kind::Done => false,
        }
    }

    fn offer(&mut self, tag: u64, token: u64, found: Result<Identity, Errno>, segment: OwnedFd) -> bool {
        let verdict = match found {
            Ok(identity) if identity.is_bound_to_device => Verdict::Device,
            Ok(identity) if identity.is_established => match self.matched(tag, token, &identity, segment) {
                Ok(told) => return told,
                Err(verdict) => verdict,
            },
            _ => Verdict::Refused,
        };
        self.tell(tag, Packet { code: verdict as u8, ..Packet::new(Kind::Answer, token) }, &[])
    }

    /// Pairs the offer or lets it wait; `Ok` when the program has been told, or cannot be.
    fn matched(
        &mut self,
        tag: u64,
        token: u64,
        identity: &Identity,
        segment: OwnedFd,
    ) -> Result<bool, Verdict> {
        let Some(program) = self.programs.get(&tag) else { return Ok(false) };
        if program.bell.is_none() || program.offers.contains_key(&token) {
            return Ok(false);
        }
        let ours = Tuple { local: identity.local, remote: identity.remote };
        let mirror = Tuple { local: identity.remote, remote: identity.local };
        let namespace = identity.namespace;
        // The same end from elsewhere: somebody has built a connection that only looks like this one.
        for tuple in [ours, mirror] {
            if let Some(other) = self.waiting.get_mut(&tuple)
                && (other.disputed || other.namespace != namespace)
            {
                other.disputed = true;
                return Err(Verdict::Namespace);
            }
        }
        if let Some(other) = self.waiting.get(&mirror) {
            // Answers with descriptors go only where there is room for more, so that there always is for those without.
            let has_room = |tag| self.programs.get(&tag).is_some_and(|program| program.socket.has_room());
            if !has_room(tag) || !has_room(other.program) {
                return Err(Verdict::Full);
            }
        }
        if let Some(other) = self.waiting.remove(&mirror) {
            return Ok(self.pair(tag, token, &segment, &other));
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(Verdict::Full);
        }
        // An older offer of the same end is of a connection that is no more.
        let offer = Offer { program: tag, token, namespace, segment, disputed: false };
        if let Some(stale) = self.waiting.insert(ours, offer)
            && let Some(program) = self.programs.get_mut(&stale.program)
        {
            program.offers.remove(&stale.token);
        }
        if let Some(program) = self.programs.get_mut(&tag) {
            program.offers.insert(token, Standing::Waiting(ours));
        }
        Err(Verdict::Waiting)
    }

    /// Gives each end the other's segment and bell.
    fn pair(&mut self, tag: u64, token: u64, segment: &OwnedFd, other: &Offer) -> bool {
        let ends = [(tag, token, other.program, &other.segment), (other.program, other.token, tag, segment)];
        let mut reached = [true; 2];
        for (index, (tag, token, peer, segment)) in ends.into_iter().enumerate() {
            let answer = Packet {
                code: Verdict::Paired as u8,
                number: peer as u32,
                ..Packet::new(Kind::Answer, token)
            };
            let bell = self.programs.get(&peer).and_then(|peer| peer.bell.as_ref());
            let descriptors = bell.map(|[bell, page]| [segment.as_fd(), bell.as_fd(), page.as_fd()]);
            reached[index] = match (self.programs.get(&tag), descriptors) {
                (Some(program), Some(descriptors)) => {
                    program.socket.send(&answer.encode(), &descriptors).is_ok()
                }
                _ => false,
            };
            if let Some(program) = self.programs.get_mut(&tag) {
                program.offers.insert(token, Standing::Paired);
            }
        }
        self.status.carried_ever += 1;
        if !reached[1] {
            // An end that hears nothing never prepares, so the other one stays in the kernel.
            self.dismiss(other.program);
        }
        reached[0]
    }

    fn end(&mut self, tag: u64, token: u64) {
        let Some(program) = self.programs.get_mut(&tag) else { return };
        if let Some(Standing::Waiting(tuple)) = program.offers.remove(&token)
            && self.waiting.get(&tuple).is_some_and(|offer| (offer.program, offer.token) == (tag, token))
        {
            self.waiting.remove(&tuple);
        }
    }

    fn dismiss(&mut self, tag: u64) {
        let Some(program) = self.programs.remove(&tag) else { return };
        self.poller.remove(&program.socket);
        for standing in program.offers.values() {
            if let Standing::Waiting(tuple) = standing
                && self.waiting.get(tuple).is_some_and(|offer| offer.program == tag)
            {
                self.waiting.remove(tuple);
            }
        }
    }

    fn note(&mut self, code: u8, count: u64) {
        let Some(reason) = Reason::of(code) else { return };
        match self.status.not_carried.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, known)) => *known = known.saturating_add(count),
            None => self.status.not_carried.push((reason, count)),
        }
    }

    fn status(&self) -> Status {
        let standings = || self.programs.values().flat_map(|program| program.offers.values());
        Status {
            // Whoever asks is connected as well, and has no bell.
            processes: self.programs.values().filter(|program| program.bell.is_some()).count() as u64,
            carried: standings().filter(|standing| matches!(standing, Standing::Paired)).count() as u64 / 2,
            waiting: self.waiting.len() as u64,
            ..self.status.clone()
        }
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

/// Makes the socket beside its name and moves it there: over another one only if nobody serves that.
fn listen(path: &Path) -> Result<Listener, StartError> {
    let failed = |cause| StartError::Path { path: path.to_owned(), cause };
    let mut random = [0; 8];
    bywire_sys::process::random(&mut random).map_err(failed)?;
    let temporary = path.with_extension(format!("{:016x}", u64::from_ne_bytes(random)));
    let listener = Listener::bind(&temporary).map_err(failed)?;
    let place = || {
        directory::set_access(&temporary, 0o600, None).map_err(failed)?;
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
        if Socket::connect(path).is_ok() {
            return Err(StartError::Served(path.to_owned()));
        }
        directory::rename(&temporary, path).map_err(failed)
    };
    let placed = place();
    if placed.is_err() {
        directory::remove(&temporary);
    }
    placed.map(|()| listener)
}
