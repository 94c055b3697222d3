//! Engines: programs that stand in for ends that are not in this machine's memory.
//!
//! A program whose offer waits may seek an engine of its own user. The engine gets the connection, and answers by a
//! segment. From then on the two programs are a pair like any other. The engine hears of the end of the other program
//! from the service, because the connection's descriptor that it holds keeps the kernel from telling anybody.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::protocol::{link, place};

/// Addresses that an engine may name.
const NODES_MAX: u64 = 1 << 16;

/// All engines, and what they serve or were asked to serve.
#[derive(Debug, Default)]
pub struct Engines {
    pub by_user: HashMap<u32, Engine>,
    /// Requests that were not answered yet, by their names,
    takes: HashMap<u64, Take>,
    /// and their names by the ends of programs.
    asked: HashMap<(u64, u64), u64>,
    /// Ends of programs that are over, and of which their engines were not told yet: the names of each engine.
    ended: HashMap<u64, VecDeque<u64>>,
    /// Ends of programs that an engine serves: the engine, and its name for the connection.
    pub served: HashMap<(u64, u64), (u64, u64)>,
    /// The machines that each engine has named.
    nodes: HashMap<u64, Nodes>,
}

/// The addresses of the fabric's other machines.
#[derive(Debug, Default)]
struct Nodes {
    addresses: HashSet<[u64; 2]>,
    /// The number of those that are still to be named.
    to_come: u64,
}

/// A program that serves its user as an engine.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// Its number among the programs.
    pub tag: u64,
    /// The links that it serves.
    pub links: u8,
}

/// A connection that an engine may serve.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// The engine that was asked.
    pub engine: u64,
    /// The program that seeks it,
    pub program: u64,
    /// its name for the connection,
    pub token: u64,
    /// and the link.
    pub link: u8,
    /// The program waits for the answer, whatever it is.
    pub is_required: bool,
}

impl Engines {
    /// The links that this user's programs may seek.
    pub fn links(&self, user: u32) -> u8 {
        self.by_user.get(&user).map_or(0, |engine| engine.links)
    }

    /// An engine is going to name this many machines.
    pub fn expect_nodes(&mut self, engine: u64, to_come: u64) {
        self.nodes.insert(engine, Nodes { to_come, ..Nodes::default() });
    }

    /// An engine names the address of a machine, or takes one back. `false`: it is none, or names too many.
    pub fn note_node(&mut self, engine: u64, address: [u64; 2], is_there: bool) -> bool {
        let Some(nodes) = self.nodes.get_mut(&engine) else { return false };
        nodes.to_come = nodes.to_come.saturating_sub(1);
        match is_there {
            true => nodes.addresses.insert(address),
            false => nodes.addresses.remove(&address),
        };
        nodes.addresses.len() as u64 <= NODES_MAX
    }

    /// The [`place`] of an address for a user's programs, and the engine that knows it.
    pub fn locate(&self, user: u32, address: [u64; 2]) -> (Option<u64>, u8) {
        let Some(engine) = self.by_user.get(&user).filter(|engine| engine.links & link::FABRIC != 0) else {
            return (None, place::UNKNOWN);
        };
        let known = self.nodes.get(&engine.tag).filter(|nodes| nodes.to_come == 0);
        let place = match known {
            None => place::UNKNOWN,
            Some(nodes) if nodes.addresses.contains(&address) => place::NODE,
            Some(_) => place::ELSEWHERE,
        };
        (Some(engine.tag), place)
    }

    /// Forgets a program, as an engine and as one that is served.
    pub fn dismiss(&mut self, tag: u64) {
        // The ends of a program were over one by one.
        if !self.by_user.values().any(|engine| engine.tag == tag) {
            return;
        }
        self.by_user.retain(|_, engine| engine.tag != tag);
        self.takes.retain(|_, take| take.engine != tag);
        self.asked.retain(|_, name| self.takes.contains_key(name));
        self.served.retain(|_, (engine, _)| *engine != tag);
        self.ended.remove(&tag);
        self.nodes.remove(&tag);
    }

    /// This end of a program is over. Returns the engine that serves it or was asked to, which is to be told: it has the
    /// connection's descriptor.
    pub fn end(&mut self, tag: u64, token: u64) -> Option<u64> {
        let asked =
            self.asked.remove(&(tag, token)).and_then(|name| Some((self.takes.remove(&name)?.engine, name)));
        let (engine, name) = self.served.remove(&(tag, token)).or(asked)?;
        self.ended.entry(engine).or_default().push_back(name);
        Some(engine)
    }

    /// The next name of which an engine is to be told that its connection is over.
    pub fn next_ended(&mut self, engine: u64) -> Option<u64> {
        self.ended.get_mut(&engine)?.pop_front()
    }

    /// Returns whether an engine was asked for this end of a program, and has not answered yet.
    pub fn is_asked(&self, program: u64, token: u64) -> bool {
        self.asked.contains_key(&(program, token))
    }

    /// The link by which an engine was asked for this end of a program, if it has not answered yet.
    pub fn link_asked(&self, program: u64, token: u64) -> Option<u8> {
        self.takes.get(self.asked.get(&(program, token))?).map(|take| take.link)
    }

    /// An engine was asked, under this name.
    pub fn ask(&mut self, name: u64, take: Take) {
        self.asked.insert((take.program, take.token), name);
        self.takes.insert(name, take);
    }

    /// The request of this name, which its engine has answered. `None`: there is none, or it is another engine's.
    pub fn answered(&mut self, engine: u64, name: u64) -> Option<Take> {
        let take = self.takes.get(&name).copied().filter(|take| take.engine == engine)?;
        self.takes.remove(&name);
        self.asked.remove(&(take.program, take.token));
        Some(take)
    }
}
