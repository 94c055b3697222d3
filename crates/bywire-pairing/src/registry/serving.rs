//! How a program gets an engine: it seeks one, the engine is asked to take the connection, and answers.

use std::os::fd::{AsFd, OwnedFd};

use bywire_sys::Errno;
use bywire_sys::deferred::Held;

use super::engines::{Engine, Take};
use super::{OfferState, Registry};
use crate::identity::Identity;
use crate::protocol::{Kind, Packet, Verdict, link};
use crate::waiting::Offer;

impl Registry {
    /// A program becomes its user's engine, unless there is one already. It has still to name `nodes` machines.
    pub(super) fn serve(&mut self, tag: u64, links: u8, nodes: u64) -> bool {
        let Some(program) = self.programs.get(&tag).filter(|program| program.doorbell.is_some()) else {
            return false;
        };
        let known = self.engines.by_user.entry(program.user).or_insert(Engine { tag, links });
        let verdict = if known.tag == tag { Verdict::Waiting } else { Verdict::Full };
        if verdict == Verdict::Waiting {
            self.engines.expect_nodes(tag, nodes);
        }
        self.verdict(tag, 0, verdict)
    }

    /// Tells a program where an address is. The engine hears that somebody has asked, as it may know its nodes from long ago.
    pub(super) fn locate(&mut self, tag: u64, packet: &Packet) -> bool {
        let Some(user) = self.programs.get(&tag).map(|program| program.user) else { return false };
        let (engine, place) = self.engines.locate(user, [packet.first, packet.second]);
        if let Some(engine) = engine
            && self.programs.get(&engine).is_some_and(|engine| engine.socket.has_room())
        {
            let _hint = self.tell(engine, Packet::new(Kind::Located, 0), &[]);
        }
        self.tell(tag, Packet { code: place, ..Packet::new(Kind::Located, packet.token) }, &[])
    }

    /// A program asks its user's engine to serve an offer by `link`, and does without otherwise unless that is required. If it
    /// cannot be, the offer goes on waiting. Returns whether the engine was asked.
    pub(super) fn seek(
        &mut self,
        tag: u64,
        token: u64,
        [link, is_required]: [u8; 2],
        identity: &Result<Identity, Errno>,
        connection: &OwnedFd,
    ) -> bool {
        let Some(program) = self.programs.get(&tag) else { return false };
        let (user, process) = (program.user, program.process);
        let Some(engine) = self.engines.by_user.get(&user).copied() else { return false };
        // A peer that no engine elsewhere has is one to relay to.
        let is_far = self.engines.link_asked(tag, token) == Some(link::FABRIC);
        if is_far && link == link::RELAY && engine.links & link != 0 {
            self.tell_engine(tag, token);
        }
        let Some(program) = self.programs.get(&tag) else { return false };
        let Some(OfferState::Waiting(end)) = program.offers.get(&token) else { return false };
        let is_known = identity.as_ref().is_ok_and(|identity| {
            identity.is_established && self.waiting.has(end, tag, token, identity.cookie)
        });
        let has_room = || self.programs.get(&engine.tag).is_some_and(|engine| engine.socket.has_room());
        if !is_known || engine.links & link == 0 || self.engines.is_asked(tag, token) || !has_room() {
            return false;
        }
        let name = self.next;
        self.next += 1;
        let first = is_required.into();
        let packet = Packet { code: link, number: process, first, ..Packet::new(Kind::Take, name) };
        let is_told = self.tell(engine.tag, packet, &[connection.as_fd()]);
        if is_told {
            let is_required = is_required != 0;
            self.engines.ask(name, Take { engine: engine.tag, program: tag, token, link, is_required });
        }
        is_told
    }

    /// An engine answers a request.
    pub(super) fn taken(&mut self, tag: u64, name: u64, segment: Vec<OwnedFd>) -> bool {
        let segment: Vec<_> = segment.into_iter().map(Held::from).collect();
        // The program may have ended meanwhile, or met its other end.
        let Some(take) = self.engines.answered(tag, name) else {
            self.left.extend(segment);
            return self.verdict(tag, name, Verdict::Refused);
        };
        if segment.is_empty() {
            // A program that cannot be told is severed by its own thread.
            let _is_told = take.is_required && self.verdict(take.program, take.token, Verdict::Refused);
            return true;
        }
        match self.serve_offer(take, name, segment) {
            Ok(is_told) => is_told,
            Err(segment) => {
                self.left.extend(segment);
                self.verdict(tag, name, Verdict::Refused)
            }
        }
    }

    /// Pairs a waiting offer with its engine. `Err`: it cannot be, and the segment is not needed.
    fn serve_offer(&mut self, take: Take, name: u64, segment: Vec<Held>) -> Result<bool, Vec<Held>> {
        let Take { engine: tag, program, token, link, .. } = take;
        let has_room = |tag| self.programs.get(&tag).is_some_and(|program| program.socket.has_room());
        let Some(engine) = self.programs.get(&tag) else { return Err(segment) };
        let (user, offers_count) = (engine.user, engine.offers.len());
        if !has_room(tag) || !has_room(program) || !self.users.may_offer(user, offers_count) {
            return Err(segment);
        }
        let state = self.programs.get(&program).and_then(|program| program.offers.get(&token));
        let Some(OfferState::Waiting(end)) = state.copied() else { return Err(segment) };
        let Some(theirs) = self.waiting.take_back(&end, program, token) else { return Err(segment) };
        self.users.waits_no_more(theirs.user);
        let (namespace, cookie) = (theirs.namespace, 0);
        let ours = Offer { program: tag, user, token: name, namespace, cookie, peer: None, segment };
        self.engines.served.insert((program, token), (tag, name));
        let is_told = self.pair(&ours, &theirs, link);
        self.left.extend(ours.segment.into_iter().chain(theirs.segment));
        Ok(is_told)
    }

    /// Tells the engine, if there is one, that the program's end is over.
    pub(super) fn tell_engine(&mut self, tag: u64, token: u64) {
        if let Some(engine) = self.engines.end(tag, token) {
            self.tell_ends(engine);
        }
    }

    /// Tells an engine of ends, as long as there is room for that and for answers. It repeats each of them, and
    /// then the next ones have room.
    pub(super) fn tell_ends(&mut self, engine: u64) {
        let has_room =
            |registry: &Self| registry.programs.get(&engine).is_some_and(|engine| engine.socket.has_room());
        while has_room(self)
            && let Some(name) = self.engines.next_ended(engine)
        {
            if !self.tell(engine, Packet::new(Kind::Gone, name), &[]) {
                // An engine that is not told must not go on.
                return self.sever(engine);
            }
        }
    }
}
