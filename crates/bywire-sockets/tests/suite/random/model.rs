//! The state that a script has reached: the holders of connections, and the bytes in flight. Both runs have the same
//! state, except for how much a full connection has accepted.

use std::collections::{BTreeMap, BTreeSet};

use crate::random::channel::ACTORS;
use crate::test_service::Domain;

/// The run over plain TCP and the carried run.
pub const PLAIN: usize = 0;
pub const CARRIED: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// One end of a connection: the connection, and 0 or 1.
    End(usize, usize),
    Set(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub what: What,
    pub closes_on_exec: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Process {
    pub is_alive: bool,
    pub fds: BTreeMap<i32, Descriptor>,
    pub parent: Option<usize>,
    /// Flags of the handlers for SIGUSR1 and SIGALRM.
    pub handlers: [Option<i32>; 2],
    pub is_sandboxed: bool,
    pub is_limited: bool,
    /// Its parent has reaped it.
    pub is_reaped: bool,
}

/// An order that sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The step that began it.
    pub step: usize,
    pub sleeps: Sleeps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleeps {
    /// In a receive of at least this many bytes.
    Receive {
        connection: usize,
        side: usize,
        wanted: u64,
        takes: bool,
    },
    /// Until an end is readable, or any end of a set.
    Poll {
        connection: usize,
        side: usize,
    },
    Wait {
        set: usize,
        seen: u64,
    },
    /// One half of a transfer, which ends after this many steps.
    Transfer {
        due: usize,
    },
}

#[derive(Clone, Debug)]
pub struct Actor {
    pub process: usize,
    pub is_alive: bool,
    pub is_main: bool,
    pub pending: Option<Pending>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// For each run.
    pub sent: [u64; 2],
    pub received: [u64; 2],
    pub is_nonblocking: bool,
    pub has_patience: bool,
    /// It closes by a reset.
    pub lingers: bool,
    pub has_shut_sending: bool,
    pub has_shut_receiving: bool,
    pub is_closed: bool,
    /// Its last holder was killed.
    pub was_killed: bool,
    /// Bytes were sent to a peer that can no longer take them, or a close discarded them: a reset is on its way.
    pub expects_reset: bool,
    /// It was to return to the kernel, because another program may have it.
    pub was_handed_on: bool,
    /// This end's bytes have filled both buffers. The runs may have accepted different amounts.
    pub is_full: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Connection {
    pub domain: Domain,
    pub ends: [End; 2],
    /// Its bytes went through memory, both ways, when it began.
    pub is_carried: bool,
    /// It was to return to the kernel: the sender of unread bytes does its part at its next call.
    pub has_left: bool,
    /// A killed end is a reset where TCP would end the stream, as docs/sockets.md says. Nothing more is compared.
    pub is_cut: bool,
    /// What was unread at its return to the kernel waits for a sender that can make no call.
    pub is_late: bool,
    /// Both ends move bytes at once: an observer may see more or less of it.
    pub is_busy: bool,
}

/// A descriptor that came with bytes of a Unix stream, and was not received yet.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// The end that its bytes go to.
    pub to: (usize, usize),
    /// The offsets of the first of these bytes and of the one behind the last.
    pub from: u64,
    pub until: u64,
    pub what: What,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub processes: Vec<Process>,
    pub actors: Vec<Actor>,
    pub connections: Vec<Connection>,
    /// The actors that may wake a sleeper in the set.
    pub sets: Vec<Vec<(usize, usize)>>,
    /// Sets with edge-triggered events.
    pub edges: BTreeSet<usize>,
    /// What was passed, and not yet received.
    pub mail: Option<What>,
    /// Descriptors that come with bytes of streams, in the order of each stream.
    pub attached: Vec<Attached>,
}

impl Connection {
    pub fn is_unix(&self) -> bool {
        self.domain == Domain::Unix
    }
}

impl Model {
    pub fn holds(&self, actor: usize, fd: i32) -> Option<Descriptor> {
        self.processes[self.actors.get(actor)?.process].fds.get(&fd).copied()
    }

    pub fn end_of(&self, actor: usize, fd: i32) -> Option<(usize, usize)> {
        match self.holds(actor, fd)?.what {
            What::End(connection, side) => Some((connection, side)),
            What::Set(_) => None,
        }
    }

    pub fn process_of(&mut self, actor: usize) -> &mut Process {
        &mut self.processes[self.actors[actor].process]
    }

    pub fn is_idle(&self, actor: usize) -> bool {
        self.actors.get(actor).is_some_and(|actor| actor.is_alive && actor.pending.is_none())
    }

    pub fn idle(&self) -> Vec<usize> {
        (0..self.actors.len()).filter(|actor| self.is_idle(*actor)).collect()
    }

    /// Threads of the same process, the actor itself included.
    pub fn threads(&self, process: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.actors.len())
            .filter(move |at| self.actors[*at].is_alive && self.actors[*at].process == process)
    }

    pub fn has_room_for_actor(&self) -> bool {
        self.actors.len() < ACTORS
    }

    pub fn add_actor(&mut self, process: usize, is_main: bool) -> usize {
        self.actors.push(Actor { process, is_alive: true, is_main, pending: None });
        self.actors.len() - 1
    }

    /// An idle actor's descriptor of that end.
    pub fn holder(&self, connection: usize, side: usize) -> Option<(usize, i32)> {
        self.idle().into_iter().find_map(|actor| {
            let fds = &self.processes[self.actors[actor].process].fds;
            let found = fds.iter().find(|(_, held)| held.what == What::End(connection, side));
            found.map(|(fd, _)| (actor, *fd))
        })
    }

    /// Whether anybody holds that end.
    pub fn is_held(&self, what: What) -> bool {
        let in_call = |actor: &Actor| match actor.pending {
            Some(Pending { sleeps: Sleeps::Receive { connection, side, .. }, .. }) if actor.is_alive => {
                what == What::End(connection, side)
            }
            _ => false,
        };
        let is_open =
            |process: &Process| process.is_alive && process.fds.values().any(|held| held.what == what);
        self.mail == Some(what)
            || self.attached.iter().any(|attached| attached.what == what)
            || self.processes.iter().any(is_open)
            || self.actors.iter().any(in_call)
    }

    /// Whether anybody can wake a sleeper at that end.
    pub fn may_sleep(&self, actor: usize, connection: usize, side: usize) -> bool {
        let wakes = |other: usize| {
            let fds = &self.processes[self.actors[other].process].fds;
            other != actor && fds.values().any(|held| held.what == What::End(connection, 1 - side))
        };
        // An actor that takes bytes and one that waits for them may run in either order.
        let is_alone = !self.has_watcher(connection, side) && !self.has_receiver(connection, side);
        is_alone && self.idle().into_iter().any(wakes)
    }

    /// Whether an actor of this process sleeps in a call on that descriptor that does not continue without it, as a
    /// receive does.
    pub fn is_used(&self, actor: usize, fd: i32) -> bool {
        let (Some(held), process) = (self.holds(actor, fd), self.actors[actor].process) else { return false };
        self.threads(process).any(|other| {
            self.actors[other].pending.is_some_and(|pending| match (pending.sleeps, held.what) {
                (Sleeps::Poll { connection, side }, What::End(at, end)) => (at, end) == (connection, side),
                (Sleeps::Transfer { .. }, What::End(..)) => true,
                (Sleeps::Wait { set, .. }, What::Set(at)) => at == set,
                _ => false,
            })
        })
    }

    /// Whether one of its threads moves many bytes.
    pub fn transfers(&self, process: usize) -> bool {
        self.threads(process).any(|actor| {
            matches!(self.actors[actor].pending, Some(Pending { sleeps: Sleeps::Transfer { .. }, .. }))
        })
    }

    pub fn under_way(&self, run: usize, connection: usize, to: usize) -> u64 {
        let ends = &self.connections[connection].ends;
        ends[1 - to].sent[run] - ends[to].received[run]
    }

    /// Whether nothing will come any more.
    pub fn has_ended(&self, connection: usize, to: usize) -> bool {
        let ends = &self.connections[connection].ends;
        ends[1 - to].is_closed
            || ends[1 - to].has_shut_sending
            || ends[to].has_shut_receiving
            || ends[to].expects_reset
    }

    /// A number that changes whenever a set's ends get bytes or their end.
    pub fn activity(&self, set: usize) -> u64 {
        let of_end = |(at, side): &(usize, usize)| {
            let sent = self.connections[*at].ends[1 - side].sent[PLAIN];
            sent + u64::from(self.has_ended(*at, *side))
                + u64::from(self.connections[*at].ends[1 - side].is_closed)
        };
        self.sets[set].iter().map(of_end).sum()
    }

    /// Whether an end was shut down behind bytes that do not fit, which TCP does not show yet.
    pub fn is_end_hidden(&self, connection: usize, to: usize) -> bool {
        let from = &self.connections[connection].ends[1 - to];
        from.is_full && (from.has_shut_sending || from.is_closed)
    }

    /// Whether a receive of this many bytes finds enough.
    pub fn is_served(&self, connection: usize, side: usize, wanted: u64) -> bool {
        self.under_way(PLAIN, connection, side) >= wanted || self.has_ended(connection, side)
    }

    pub fn is_awake(&self, pending: &Pending, steps: usize) -> bool {
        match pending.sleeps {
            Sleeps::Receive { connection, side, wanted, .. } => self.is_served(connection, side, wanted),
            Sleeps::Poll { connection, side } => self.is_served(connection, side, 1),
            Sleeps::Wait { set, seen } => self.activity(set) != seen,
            Sleeps::Transfer { due } => steps >= due,
        }
    }

    /// Whether an actor sleeps for bytes of that end, and will take them.
    pub fn has_receiver(&self, connection: usize, side: usize) -> bool {
        self.actors.iter().filter(|actor| actor.is_alive).any(|actor| {
            matches!(actor.pending, Some(Pending { sleeps: Sleeps::Receive { connection: at, side: end, .. }, .. })
                if (at, end) == (connection, side))
        })
    }

    /// Whether an actor waits for that end to be ready, and may miss a change.
    pub fn has_watcher(&self, connection: usize, side: usize) -> bool {
        let end = (connection, side);
        self.actors.iter().filter(|actor| actor.is_alive).any(|actor| {
            match actor.pending.map(|found| found.sleeps) {
                Some(Sleeps::Poll { connection, side }) => (connection, side) == end,
                Some(Sleeps::Wait { set, .. }) => self.sets[set].contains(&end),
                _ => false,
            }
        })
    }

    pub fn made(&mut self, actor: usize, fd: i64, what: What, closes_on_exec: bool) {
        self.process_of(actor).fds.insert(fd as i32, Descriptor { what, closes_on_exec });
    }

    /// The first descriptor that comes with bytes to that end.
    pub fn next_attached(&self, connection: usize, side: usize) -> Option<Attached> {
        self.attached.iter().find(|attached| attached.to == (connection, side)).copied()
    }

    /// How many bytes a receive of this many waits for: it ends behind those that a descriptor has come with.
    pub fn awaited(&self, connection: usize, side: usize, wanted: u64) -> u64 {
        let received = self.connections[connection].ends[side].received[PLAIN];
        let next = self.next_attached(connection, side);
        next.map_or(wanted, |attached| wanted.min(attached.until - received))
    }

    /// Descriptors whose bytes were received are not on their way any more.
    pub fn forget_attached(&mut self) {
        let connections = &self.connections;
        self.attached.retain(|attached| {
            let end = &connections[attached.to.0].ends[attached.to.1];
            end.received[PLAIN] <= attached.from && !end.is_closed
        });
    }

    /// After a close: ends that nobody holds any more are over.
    pub fn settle_closed(&mut self, by_signal: bool) {
        self.forget_attached();
        loop {
            self.close_released(by_signal);
            let before = self.attached.len();
            self.forget_attached();
            if self.attached.len() == before {
                return;
            }
        }
    }

    fn close_released(&mut self, by_signal: bool) {
        for connection in 0..self.connections.len() {
            for side in 0..2 {
                if self.connections[connection].ends[side].is_closed
                    || self.is_held(What::End(connection, side))
                {
                    continue;
                }
                let has_unread = self.under_way(PLAIN, connection, side) > 0;
                let found = &mut self.connections[connection];
                let is_unix = found.is_unix();
                let Connection { ends, .. } = found;
                (ends[side].is_closed, ends[side].was_killed) = (true, by_signal);
                let is_shut = ends[side].has_shut_sending && ends[side].has_shut_receiving;
                ends[1 - side].expects_reset |= has_unread || (ends[side].lingers && !is_unix);
                // A reset discards what the kernel has not sent yet. A Unix stream loses what a killed end owes. The kernel
                // does not tell a killed end from one that has shut down both ways, and knows nothing of bytes that are left
                // unread in a ring because it has no room for them.
                let is_torn = match is_unix {
                    false => by_signal || (ends[side].is_full && ends[1 - side].expects_reset),
                    true => {
                        let peer = ends[1 - side];
                        by_signal && ((ends[side].is_full && found.has_left) || (is_shut && has_unread))
                            || has_unread && peer.is_full && peer.was_handed_on
                    }
                };
                found.is_cut |= is_torn;
                // Nobody reads it any more.
                found.ends[side].received = found.ends[1 - side].sent;
            }
        }
    }

    /// A thread has ended. What it has received of what it waited for is lost.
    fn actor_ends(&mut self, actor: usize) {
        self.actors[actor].is_alive = false;
        if let Some(Pending { sleeps: Sleeps::Receive { connection, side, wanted, takes: true }, .. }) =
            self.actors[actor].pending.take()
        {
            for run in [PLAIN, CARRIED] {
                let taken = self.under_way(run, connection, side).min(wanted);
                self.connections[connection].ends[side].received[run] += taken;
            }
        }
    }

    /// A process has ended, or only one of its threads.
    pub fn ended(&mut self, actor: usize, by_signal: bool) {
        let process = self.actors[actor].process;
        for actor in 0..self.actors.len() {
            if self.actors[actor].process == process {
                self.actor_ends(actor);
            }
        }
        self.processes[process].is_alive = false;
        self.processes[process].fds.clear();
        self.settle_closed(by_signal);
    }

    /// `exec` keeps the calling thread, and what may be inherited.
    pub fn replaced(&mut self, actor: usize) {
        let process = self.actors[actor].process;
        for other in 0..self.actors.len() {
            if other != actor && self.actors[other].process == process {
                self.actor_ends(other);
            }
        }
        self.actors[actor].is_main = true;
        let process = &mut self.processes[process];
        process.fds.retain(|_, held| !held.closes_on_exec);
        process.handlers = [None; 2];
        self.settle_closed(false);
    }

    /// A new process that has what its parent has.
    pub fn forked(&mut self, actor: usize) -> usize {
        let parent = self.actors[actor].process;
        let mut child = self.processes[parent].clone();
        (child.parent, child.is_reaped) = (Some(parent), false);
        self.processes.push(child);
        self.add_actor(self.processes.len() - 1, true)
    }
}
