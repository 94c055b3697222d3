//! How two engines find out that they have the two ends of one connection, without I/O.
//!
//! Each engine gets the ends that its own machine's programs have offered. It asks the other end's engine whether that has
//! the mirrored end. The second question gets a yes. Then each gives its program memory. Once both programs are ready to
//! leave the kernel, one engine opens the stream that carries the connection:
//!
//! ```text
//! engine A                                engine B
//! offered ──────── known? ──────────────► not known: refused
//!          ◄────── known? ─────────────── offered
//! pair     ─────── refused, as known ───► pair
//! prepared ─────── carry? ──────────────► not prepared: refused
//!          ◄────── carry? ─────────────── prepared
//! accepted ─────── accepted ────────────► accepted
//! ```
//!
//! If both ask at the same time for a stream, that of the node whose name comes first is the one.
//!
//! A program that *requires* its connection to be carried waits for that before its first byte, and gets memory at once. So the
//! two engines agree without any further call of the two programs.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use bywire_stream::Refusal;

/// The ends of a TCP connection, as one of its machines names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// A question to the engine of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether it has the other end.
    Known = 1,
    /// Whether it carries the connection by the stream that comes with this question.
    Carry = 2,
}

/// The version of descriptions.
const VERSION: u8 = 1;
const ADDRESS_BYTES: usize = 18;
const DESCRIPTION_BYTES: usize = 2 + 2 * ADDRESS_BYTES;

impl Ends {
    /// This connection as the other machine names it.
    pub fn mirrored(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }

    /// The description of a stream that asks about this connection.
    pub fn describe(self, question: Question) -> [u8; DESCRIPTION_BYTES] {
        let mut bytes = [0; DESCRIPTION_BYTES];
        (bytes[0], bytes[1]) = (VERSION, question as u8);
        for (address, part) in
            [self.local, self.remote].into_iter().zip(bytes[2..].chunks_exact_mut(ADDRESS_BYTES))
        {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            part[..16].copy_from_slice(&ip.octets());
            part[16..].copy_from_slice(&address.port().to_be_bytes());
        }
        bytes
    }

    /// Reads a description. `None`: it is none of this version.
    pub fn of_description(bytes: &[u8]) -> Option<(Self, Question)> {
        let [VERSION, question, addresses @ ..] = bytes else { return None };
        let question = match question {
            1 => Question::Known,
            2 => Question::Carry,
            _ => return None,
        };
        let addresses: &[u8; 2 * ADDRESS_BYTES] = addresses.try_into().ok()?;
        let address = |at: usize| {
            let ip: [u8; 16] = core::array::from_fn(|index| addresses[at + index]);
            let port = u16::from_be_bytes([addresses[at + 16], addresses[at + 17]]);
            SocketAddr::new(IpAddr::from(ip).to_canonical(), port)
        };
        Some((Self { local: address(0), remote: address(ADDRESS_BYTES) }, question))
    }
}

/// The next step of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the engine of the other end.
    Ask(u64, Question),
    /// Give the program memory.
    Pair(u64),
}

/// The answer to a question of another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The stream carries the connection of this name.
    Accept(u64),
    Refuse(Refusal),
}

/// An end that a program of this machine has offered.
#[derive(Debug)]
struct Offer {
    ends: Ends,
    node: String,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The other end is not known.
    Alone,
    /// The program is given memory.
    Pairing,
    /// The program is ready to leave the kernel. `is_asking`: a stream of ours was not answered. `was_asked`: the other engine
    /// has asked meanwhile, so its program is ready as well.
    Prepared { is_asking: bool, was_asked: bool },
    /// A stream carries it.
    Carried,
}

/// All ends that programs of this machine have offered.
#[derive(Debug, Default)]
pub struct Matching {
    own_node: String,
    by_name: HashMap<u64, Offer>,
    by_ends: HashMap<Ends, u64>,
}

impl Matching {
    /// Sets the name of this node.
    pub fn is_on(&mut self, own_node: String) {
        self.own_node = own_node;
    }

    /// A program has offered its end of a connection with that node, and may require that it is carried. `None`: it has offered
    /// it before.
    pub fn offered(&mut self, name: u64, ends: Ends, node: &str, is_required: bool) -> Option<Action> {
        if self.by_ends.contains_key(&ends) {
            return None;
        }
        let (phase, action) = match is_required {
            true => (Phase::Pairing, Action::Pair(name)),
            false => (Phase::Alone, Action::Ask(name, Question::Known)),
        };
        self.by_ends.insert(ends, name);
        self.by_name.insert(name, Offer { ends, node: node.to_owned(), phase });
        Some(action)
    }

    /// The end that has these addresses.
    pub fn name_of(&self, ends: Ends) -> Option<u64> {
        self.by_ends.get(&ends).copied()
    }

    /// The engine of a node asks about a connection, by its own names for the ends.
    pub fn asked(&mut self, node: &str, ends: Ends, question: Question) -> (Answer, Option<Action>) {
        let own_comes_first = self.own_node.as_str() < node;
        let name = self.by_ends.get(&ends.mirrored()).copied();
        // A node asks about its own connections only.
        let found = name
            .and_then(|name| Some((name, self.by_name.get_mut(&name).filter(|offer| offer.node == node)?)));
        let Some((name, offer)) = found else { return (Answer::Refuse(Refusal::Unknown), None) };
        match (question, offer.phase) {
            // The other program may be ready already.
            (_, Phase::Alone) => {
                offer.phase = Phase::Pairing;
                (Answer::Refuse(Refusal::Busy), Some(Action::Pair(name)))
            }
            (Question::Known, _) => (Answer::Refuse(Refusal::Busy), None),
            (Question::Carry, Phase::Prepared { is_asking: true, .. }) if own_comes_first => {
                offer.phase = Phase::Prepared { is_asking: true, was_asked: true };
                (Answer::Refuse(Refusal::Busy), None)
            }
            (Question::Carry, Phase::Prepared { .. }) => {
                offer.phase = Phase::Carried;
                (Answer::Accept(name), None)
            }
            (Question::Carry, Phase::Carried) => (Answer::Refuse(Refusal::Mismatch), None),
            (Question::Carry, _) => (Answer::Refuse(Refusal::Unknown), None),
        }
    }

    /// The other engine has refused a stream of ours.
    pub fn refused(&mut self, name: u64, question: Question, reason: Refusal) -> Option<Action> {
        let offer = self.by_name.get_mut(&name)?;
        match (question, offer.phase) {
            (Question::Known, Phase::Alone) if reason == Refusal::Busy => {
                offer.phase = Phase::Pairing;
                Some(Action::Pair(name))
            }
            // The other program was not ready when this question came. It is now.
            (Question::Carry, Phase::Prepared { was_asked: true, .. }) => {
                offer.phase = Phase::Prepared { is_asking: true, was_asked: false };
                Some(Action::Ask(name, Question::Carry))
            }
            (Question::Carry, Phase::Prepared { .. }) => {
                offer.phase = Phase::Prepared { is_asking: false, was_asked: false };
                None
            }
            _ => None,
        }
    }

    /// The other engine has accepted the stream of ours that is to carry this connection. `false`: another one does, or none is
    /// needed any more.
    pub fn accepted(&mut self, name: u64) -> bool {
        match self.by_name.get_mut(&name) {
            Some(offer) if matches!(offer.phase, Phase::Prepared { .. }) => {
                offer.phase = Phase::Carried;
                true
            }
            _ => false,
        }
    }

    /// The program is ready to leave the kernel.
    pub fn prepared(&mut self, name: u64) -> Option<Action> {
        let offer = self.by_name.get_mut(&name).filter(|offer| offer.phase == Phase::Pairing)?;
        offer.phase = Phase::Prepared { is_asking: true, was_asked: false };
        Some(Action::Ask(name, Question::Carry))
    }

    /// The engine of this node can be asked from here on, if it could not before. Returns what it is asked at once.
    pub fn reached(&mut self, node: &str) -> Vec<Action> {
        let mut actions = Vec::new();
        for (name, offer) in self.by_name.iter_mut().filter(|(_, offer)| offer.node == node) {
            if matches!(offer.phase, Phase::Prepared { is_asking: false, .. }) {
                offer.phase = Phase::Prepared { is_asking: true, was_asked: false };
                actions.push(Action::Ask(*name, Question::Carry));
            }
        }
        actions
    }

    /// No answer will come to a question about this end.
    pub fn unanswered(&mut self, name: u64) {
        if let Some(Offer { phase: phase @ Phase::Prepared { .. }, .. }) = self.by_name.get_mut(&name) {
            *phase = Phase::Prepared { is_asking: false, was_asked: false };
        }
    }

    /// The end is over, or is not carried after all.
    pub fn end(&mut self, name: u64) {
        if let Some(offer) = self.by_name.remove(&name) {
            self.by_ends.remove(&offer.ends);
        }
    }

    /// The connection of this name, and its node.
    pub fn ends(&self, name: u64) -> Option<(Ends, &str)> {
        self.by_name.get(&name).map(|offer| (offer.ends, offer.node.as_str()))
    }

    /// The names of all ends whose other end is on this node.
    pub fn names_of_node(&self, node: &str) -> Vec<u64> {
        self.by_name.iter().filter(|(_, offer)| offer.node == node).map(|(name, _)| *name).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn on(node: &str) -> Matching {
        let mut matching = Matching::default();
        matching.is_on(node.to_owned());
        matching
    }

    fn ends() -> Ends {
        Ends { local: "10.0.0.1:40000".parse().unwrap(), remote: "10.0.0.2:80".parse().unwrap() }
    }

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let six = Ends { local: "[fd00::1]:1".parse().unwrap(), remote: "[fd00::2]:65535".parse().unwrap() };
        for ends in [ends(), six] {
            for question in [Question::Known, Question::Carry] {
                let bytes = ends.describe(question);
                assert_eq!(Ends::of_description(&bytes), Some((ends, question)));
                assert_eq!(Ends::of_description(&bytes[1..]), None);
            }
        }
        assert_eq!(Ends::of_description(&[]), None);
        assert_eq!(Ends::of_description(&[1; DESCRIPTION_BYTES + 1]), None);
    }

    /// Two engines, with the questions and answers under way between them. By the engine that has asked.
    #[derive(Default)]
    struct Pair {
        engines: [Matching; 2],
        questions: [VecDeque<Question>; 2],
        answers: [VecDeque<(Question, Answer)>; 2],
        is_required: [bool; 2],
        is_offered: [bool; 2],
        is_paired: [bool; 2],
        is_prepared: [bool; 2],
        /// The engine whose stream carries the connection, as each of the two sees it.
        carried_by: [Option<usize>; 2],
    }

    impl Pair {
        fn ends_of(at: usize) -> Ends {
            if at == 0 { ends() } else { ends().mirrored() }
        }

        fn act(&mut self, at: usize, action: Option<Action>) {
            match action {
                Some(Action::Ask(7, question)) => self.questions[at].push_back(question),
                Some(Action::Pair(7)) => self.is_paired[at] = true,
                None => {}
                other => panic!("{other:?}"),
            }
        }

        /// Step `kind` of an engine: it gets the offer, its program gets ready, its first question arrives, or the first answer.
        /// Returns whether there was such a step.
        fn step(&mut self, at: usize, kind: usize) -> bool {
            let other = 1 - at;
            match kind {
                0 if !self.is_offered[at] => {
                    self.is_offered[at] = true;
                    let action =
                        self.engines[at].offered(7, Self::ends_of(at), ["b", "a"][at], self.is_required[at]);
                    self.act(at, action);
                }
                1 if self.is_paired[at] && !self.is_prepared[at] => {
                    self.is_prepared[at] = true;
                    let action = self.engines[at].prepared(7);
                    self.act(at, action);
                }
                2 => {
                    let Some(question) = self.questions[at].pop_front() else { return false };
                    let (answer, action) =
                        self.engines[other].asked(["a", "b"][at], Self::ends_of(at), question);
                    if let Answer::Accept(name) = answer {
                        assert_eq!((name, self.carried_by[other].replace(at)), (7, None), "one stream only");
                    }
                    self.act(other, action);
                    self.answers[at].push_back((question, answer));
                }
                3 => {
                    let Some((question, answer)) = self.answers[at].pop_front() else { return false };
                    match answer {
                        Answer::Accept(_) => {
                            assert!(self.engines[at].accepted(7), "an accepted stream is wanted");
                            assert_eq!(self.carried_by[at].replace(at), None, "one stream only");
                        }
                        Answer::Refuse(reason) => {
                            let action = self.engines[at].refused(7, question, reason);
                            self.act(at, action);
                        }
                    }
                }
                _ => return false,
            }
            true
        }
    }

    #[test]
    fn two_engines_agree_on_one_stream_in_every_order() {
        let mut state = 1u64;
        let mut draw = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        for round in 0..20_000 {
            let is_required = [draw(2) == 0, draw(2) == 0];
            let mut pair = Pair { engines: ["a", "b"].map(on), is_required, ..Pair::default() };
            let mut idle = 0;
            while idle < 400 {
                idle = if pair.step(draw(2), draw(4)) { 0 } else { idle + 1 };
            }
            let [first, second] = pair.carried_by;
            assert!(
                first.is_some() && first == second,
                "round {round}, {is_required:?}: {:?}",
                pair.carried_by
            );
        }
    }

    #[test]
    fn an_end_that_was_ready_before_the_other_engine_came_is_asked_about_then() {
        let mut engine = on("a");
        assert_eq!(engine.offered(7, ends(), "b", true), Some(Action::Pair(7)));
        assert_eq!(engine.reached("b"), [], "the program is not ready");
        let ask = Action::Ask(7, Question::Carry);
        assert_eq!(engine.prepared(7), Some(ask));
        assert_eq!(engine.reached("b"), [], "it was asked");
        engine.unanswered(7);
        assert_eq!(engine.reached("c"), []);
        assert_eq!(engine.reached("b"), [ask]);
        assert_eq!(engine.asked("b", ends().mirrored(), Question::Carry).0, Answer::Refuse(Refusal::Busy));
        engine.unanswered(7);
        assert_eq!(engine.asked("b", ends().mirrored(), Question::Carry).0, Answer::Accept(7));
    }

    #[test]
    fn a_node_learns_nothing_of_connections_with_others() {
        let mut engine = on("b");
        assert!(engine.offered(7, ends().mirrored(), "a", false).is_some());
        for question in [Question::Known, Question::Carry] {
            let answer = engine.asked("c", ends(), question);
            assert_eq!(answer, (Answer::Refuse(Refusal::Unknown), None));
        }
        assert_eq!(engine.names_of_node("a"), [7]);
        engine.end(7);
        assert_eq!(engine.asked("a", ends(), Question::Known).0, Answer::Refuse(Refusal::Unknown));
    }
}
