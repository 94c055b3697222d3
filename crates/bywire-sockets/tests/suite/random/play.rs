//! Carries a script out in both runs, step by step, and compares the results of each step.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::random::channel::{ACTORS, FOUNDERS, Operation, Order, Outcome, Programs, Reply};
use crate::random::gaps;
use crate::random::model::{
    Actor, Attached, CARRIED, Connection, Model, PLAIN, Pending, Process, Sleeps, What,
};
use crate::random::step::{Draw, Kind, Step};
use crate::test_service::Domain;

/// The kernel and a ring buffer this much of each domain, and leave the sender writable.
const UNDER_WAY_MAX: u64 = 60_000;
const UNDER_WAY_UNIX_MAX: u64 = 12_000;
/// `SO_SNDBUF` and `SO_RCVBUF` of both ends of a connection, 0: not set. They leave room for so many bytes.
const BUFFERS: [[u64; 2]; 8] =
    [[0; 2], [0; 2], [0; 2], [0; 2], [0, 1 << 16], [1 << 16, 0], [1 << 16, 1 << 16], [1 << 18, 1 << 17]];
/// How the connections of a Unix script are made, by the numbers in actor.c: by path or by an abstract name, and a few by TCP.
const UNIX_WAYS: [i32; 5] = [1, 2, 1, 2, 0];
/// A short message is one piece for TCP and for a ring: a sleeping receiver gets all of it.
const PIECE_BYTES: u64 = 1000;
/// A run that is later than the other one by this time hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// If neither run answers for this time, both sleep.
const DOZE: Duration = Duration::from_secs(2);

/// The runs differ: in what, and after which steps.
pub struct Mismatch(pub String);

type Checked<T> = Result<T, Mismatch>;

#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// How often each kind of step was done by a holder of a carried connection.
    pub done: BTreeMap<Kind, u64>,
    /// How many steps each gap has left out.
    pub left_out: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub fn add(&mut self, more: &Self) {
        more.done.iter().for_each(|(kind, count)| *self.done.entry(*kind).or_default() += count);
        more.left_out.iter().for_each(|(gap, count)| *self.left_out.entry(gap).or_default() += count);
    }
}

pub struct Play<'a> {
    programs: &'a mut [Programs; 2],
    pub model: Model,
    /// The steps so far, including invalid ones that were left out.
    steps: Vec<Step>,
    pub text: String,
    pub counts: Counts,
    /// How often a carried set reported an edge that a plain one did not.
    pub extra_edges: u64,
    timeout: Duration,
}

impl<'a> Play<'a> {
    pub fn new(programs: &'a mut [Programs; 2], timeout: Option<Duration>) -> Self {
        Self {
            programs,
            model: Model::default(),
            steps: Vec::new(),
            text: String::new(),
            counts: Counts::default(),
            extra_edges: 0,
            timeout: timeout.unwrap_or(TIMEOUT),
        }
    }

    /// Starts a few programs and their connections, most of which are carried from the beginning.
    pub fn begin(&mut self, draw: &mut Draw) -> Checked<()> {
        for root in 0..2 {
            let founder = ACTORS + draw.of(&[root, root, 0]) % FOUNDERS;
            let order = Order { to: root as i32, ..Order::new(Operation::Fork, -1) };
            self.model.processes.push(Process { is_alive: true, ..Process::default() });
            self.model.add_actor(root, true);
            for programs in &mut *self.programs {
                programs.tell(founder, order);
                programs.greet(root, None).ok_or_else(|| Mismatch("a program does not begin".into()))?;
                programs.outcome(founder, TIMEOUT);
            }
        }
        for _ in 0..2 + draw.below(2) {
            let sides = draw.of(&[[0, 1], [1, 0], [0, 1], [0, 0]]);
            // By a copy, so that the scripts of known seeds stay what they are.
            let buffers = BUFFERS[draw.clone().below(BUFFERS.len() as u64) as usize];
            let way = if draw.domain == Domain::Unix { draw.clone().of(&UNIX_WAYS) } else { 0 };
            self.connect(sides, way, buffers)?;
            let connection = self.model.connections.len() - 1;
            if draw.below(5) > 0 {
                self.warm(connection)?;
            }
            if self.model.connections[connection].is_carried {
                writeln!(self.text, "connection {connection} is carried").expect("a string");
            }
        }
        Ok(())
    }

    /// A result that must be a success in both runs.
    fn must(&mut self, actor: usize, order: Order) -> Checked<[Reply; 2]> {
        self.programs.iter().for_each(|programs| programs.tell(actor, order));
        let mut replies = [Reply::default(); 2];
        for (run, reply) in replies.iter_mut().enumerate() {
            match self.programs[run].outcome(actor, self.timeout) {
                Some(Outcome::Replied(found)) if found.result >= 0 => *reply = found,
                other => return Err(Mismatch(format!("run {run}, {order:?}: {other:?}"))),
            }
        }
        Ok(replies)
    }

    fn connect(&mut self, sides: [usize; 2], way: i32, buffers: [u64; 2]) -> Checked<()> {
        let (connection, domain) =
            (self.model.connections.len(), if way == 0 { Domain::Tcp } else { Domain::Unix });
        // A Unix socket is writable while a third of its buffer is free, counted with the kernel's own memory.
        let [size, position] = if way == 0 { buffers } else { buffers.map(|size| size * 4) };
        let bounded = |operation| Order { way, size, position, ..Order::new(operation, -1) };
        let listener = self.must(sides[1], Order { to: connection as i32, ..bounded(Operation::Listen) })?;
        for (run, programs) in self.programs.iter().enumerate() {
            let order = Order { to: listener[run].more as i32, ..bounded(Operation::Connect) };
            programs.tell(sides[0], order);
        }
        let mut fds = [0; 2];
        for programs in &mut *self.programs {
            match programs.outcome(sides[0], TIMEOUT) {
                Some(Outcome::Replied(reply)) if reply.result >= 0 => fds[0] = reply.result,
                other => return Err(Mismatch(format!("connect: {other:?}"))),
            }
        }
        let listener = listener[0].result as i32;
        // A connection of TCP has the bounds of its listener.
        let accept = if way == 0 {
            Order { way, ..Order::new(Operation::Accept, -1) }
        } else {
            bounded(Operation::Accept)
        };
        fds[1] = self.must(sides[1], Order { fd: listener, ..accept })?[0].result;
        self.must(sides[1], Order::new(Operation::Close, listener))?;
        self.model.connections.push(Connection { domain, ..Connection::default() });
        for side in 0..2 {
            self.model.made(sides[side], fds[side], What::End(connection, side), false);
            writeln!(
                self.text,
                "actor {} has fd {}: connection {connection}, end {side}",
                sides[side], fds[side]
            )
            .expect("a string");
        }
        Ok(())
    }

    /// Exchanges bytes until no byte goes through the kernel. The plain run exchanges a few.
    fn warm(&mut self, connection: usize) -> Checked<()> {
        let started = Instant::now();
        for run in [PLAIN, CARRIED] {
            let mut before = [0; 2];
            for round in 0.. {
                let is_due = round % 8 == 7;
                let mut by_kernel = false;
                for side in 0..2 {
                    by_kernel |= self.say_one(run, connection, side, is_due)?;
                }
                if !is_due {
                    continue;
                }
                let moved = self.moved(run, connection, 0)?;
                if run == PLAIN {
                    break;
                }
                if moved == before && !by_kernel {
                    self.model.connections[connection].is_carried = true;
                    break;
                }
                // Calls do not wait for a service that is slow, as on a busy machine.
                if started.elapsed() > Duration::from_secs(2) {
                    break;
                }
                before = moved;
            }
        }
        Ok(())
    }

    fn in_one(&mut self, run: usize, actor: usize, order: Order) -> Checked<Reply> {
        self.programs[run].tell(actor, order);
        match self.programs[run].outcome(actor, self.timeout) {
            Some(Outcome::Replied(reply)) if reply.is_wrong == 0 && reply.result >= 0 => Ok(reply),
            other => Err(Mismatch(format!("run {run}, {order:?}: {other:?}"))),
        }
    }

    /// Returns whether a Unix socket has given the byte to the kernel, if that `is_asked`. A socket of TCP counts all bytes.
    fn say_one(&mut self, run: usize, connection: usize, side: usize, is_asked: bool) -> Checked<bool> {
        let is_asked = is_asked && self.model.connections[connection].is_unix();
        let (mut before, mut by_kernel) = ([0; 2], false);
        for (operation, end) in [(Operation::Send, side), (Operation::Receive, 1 - side)] {
            if is_asked {
                let held = self.moved(run, connection, side)?;
                by_kernel = operation == Operation::Receive && held != before;
                before = held;
            }
            let (actor, fd) = self.model.holder(connection, end).expect("everybody is idle");
            let found = &self.model.connections[connection].ends[side];
            let position = position(connection, side, found.sent[run]);
            self.in_one(run, actor, Order { size: 1, position, ..Order::new(operation, fd) })?;
        }
        let ends = &mut self.model.connections[connection].ends;
        ends[side].sent[run] += 1;
        ends[1 - side].received[run] += 1;
        Ok(by_kernel)
    }

    fn moved(&mut self, run: usize, connection: usize, side: usize) -> Checked<[u64; 2]> {
        let (actor, fd) = self.model.holder(connection, side).expect("everybody is idle");
        let way = self.model.connections[connection].is_unix().into();
        let reply = self.in_one(run, actor, Order { way, ..Order::new(Operation::Moved, fd) })?;
        Ok([reply.result as u64, reply.more])
    }

    /// Does a step if it is valid now. `false`: it is not.
    pub fn apply(&mut self, step: Step) -> Checked<bool> {
        let may_be_busy = matches!(step.kind, Kind::Kill | Kind::Signal);
        let is_there = self.model.actors.get(step.actor).is_some_and(|actor| actor.is_alive);
        if !is_there || (!may_be_busy && !self.model.is_idle(step.actor)) {
            return Ok(false);
        }
        let process = &self.model.processes[self.model.actors[step.actor].process];
        if process.is_sandboxed && !step.is_for_sandbox() {
            return Ok(false);
        }
        if let Some(gap) = gaps::reason(&self.model, &step) {
            *self.counts.left_out.entry(gap).or_default() += 1;
            return Ok(false);
        }
        let is_carried = self.concerns_carried(&step);
        let length = self.text.len();
        writeln!(self.text, "{step}").expect("a string");
        self.steps.push(step);
        let started = Instant::now();
        let is_done = self.perform(&step)?;
        if started.elapsed() > Duration::from_millis(200) && std::env::var_os("BYWIRE_TEST_TIMES").is_some() {
            eprintln!("slow {} ms: {step}", started.elapsed().as_millis());
        }
        if !is_done {
            self.steps.pop();
            self.text.truncate(length);
            return Ok(false);
        }
        if is_carried {
            *self.counts.done.entry(step.kind).or_default() += 1;
        }
        self.await_sleepers()?;
        Ok(true)
    }

    fn concerns_carried(&self, step: &Step) -> bool {
        let is_carried = |at: usize| {
            let connection = &self.model.connections[at];
            connection.is_carried && !connection.has_left && !connection.is_cut
        };
        match self.model.end_of(step.actor, step.fd) {
            Some((connection, _)) => is_carried(connection),
            None => {
                let held = &self.model.processes[self.model.actors[step.actor].process].fds;
                held.values().any(|held| matches!(held.what, What::End(at, _) if is_carried(at)))
            }
        }
    }

    fn perform(&mut self, step: &Step) -> Checked<bool> {
        match step.kind {
            Kind::Send => self.send(step),
            Kind::Attach => self.attach(step),
            Kind::Receive => self.receive(step),
            Kind::Fill => self.fill(step),
            Kind::Drain => self.drain(step),
            Kind::Transfer => self.transfer(step),
            Kind::Poll => self.poll(step),
            Kind::NewSet => self.new_set(step),
            Kind::Control => self.control(step),
            Kind::Wait => self.wait(step),
            Kind::Duplicate => self.duplicate(step),
            Kind::Close => self.close(step),
            Kind::Pass => self.pass(step),
            Kind::Take => self.take(step),
            Kind::Fork | Kind::Spawn => self.fork(step),
            Kind::Exec => self.exec(step),
            Kind::Run => self.run_other(step),
            Kind::Thread => self.thread(step),
            Kind::Exit => self.exit(step),
            Kind::Kill => self.kill(step),
            Kind::Shutdown => self.shutdown(step),
            Kind::Handle => self.handle(step),
            Kind::Signal => self.signal(step),
            Kind::Look => self.look(step),
            Kind::Set => self.set(step),
            Kind::Limit => self.limit(step),
            Kind::Sandbox => self.sandbox(step),
            Kind::Reap => self.reap(step),
        }
    }

    // Orders to both runs, and their answers.

    fn order(&self, step: &Step, operation: Operation) -> Order {
        let Step { fd, way, flags, to, size, .. } = *step;
        Order { operation, fd, way, flags, to, milliseconds: 0, size, position: 0 }
    }

    fn tell(&self, actor: usize, orders: [Order; 2]) {
        for (programs, order) in self.programs.iter().zip(orders) {
            programs.tell(actor, order);
        }
    }

    /// The outcome in both runs; `None`: both sleep.
    fn answers(&mut self, actor: usize, doze: Duration) -> Checked<Option<[Outcome; 2]>> {
        let started = Instant::now();
        let mut found = [None; 2];
        let mut slice = Duration::from_millis(3);
        let mut nudges = 0;
        loop {
            for run in [PLAIN, CARRIED] {
                if found[run].is_none() {
                    found[run] = self.programs[run].outcome(actor, slice);
                }
            }
            match found {
                [Some(plain), Some(carried)] => return Ok(Some([plain, carried])),
                [None, None] if started.elapsed() >= doze => return Ok(None),
                _ if started.elapsed() > self.timeout => {
                    let [plain, carried] =
                        found.map(|found| found.map_or("sleeps".into(), |found| format!("{found:?}")));
                    return Err(Mismatch(format!("actor {actor}: plain {plain}, carried {carried}")));
                }
                _ => {}
            }
            // An actor that returns a connection to the kernel waits for its peer's next call on it.
            if nudges < 3 || self.is_owed_much(actor) {
                self.nudge(actor)?;
                nudges += 1;
            }
            slice = (slice * 2).min(Duration::from_millis(100));
        }
    }

    /// Whether bytes that this actor's process holds come back from a peer that has filled the connection. The peer
    /// gives what there is room for at each of its calls.
    fn is_owed_much(&self, actor: usize) -> bool {
        let held = &self.model.processes[self.model.actors[actor].process].fds;
        held.values().any(|held| match held.what {
            What::End(connection, side) => {
                let found = &self.model.connections[connection];
                found.has_left && found.ends[1 - side].is_full
            }
            What::Set(_) => false,
        })
    }

    /// Every idle peer of this actor's process makes a call.
    fn nudge(&mut self, actor: usize) -> Checked<()> {
        let held = self.model.process_of(actor).fds.values().map(|held| held.what).collect::<Vec<_>>();
        let connections = self.model.connections.clone();
        for (at, connection) in connections.iter().enumerate() {
            for side in 0..2 {
                if connection.is_cut || !held.contains(&What::End(at, side)) {
                    continue;
                }
                self.nudge_end(at, 1 - side, actor)?;
            }
        }
        Ok(())
    }

    fn nudge_end(&mut self, connection: usize, side: usize, but: usize) -> Checked<()> {
        // A thread of the same process may be about to end with it.
        if let Some((peer, fd)) = self.model.holder(connection, side)
            && self.model.actors[peer].process != self.model.actors[but].process
        {
            self.poll_in_both(peer, fd)?;
        }
        Ok(())
    }

    /// A call without an effect.
    fn poll_in_both(&mut self, actor: usize, fd: i32) -> Checked<()> {
        self.tell(actor, [Order { flags: 1, ..Order::new(Operation::Poll, fd) }; 2]);
        for run in [PLAIN, CARRIED] {
            if self.programs[run].outcome(actor, self.timeout).is_none() {
                return Err(Mismatch(format!("run {run}: actor {actor} hangs in a poll of fd {fd}")));
            }
        }
        Ok(())
    }

    /// One answer, which both runs must give.
    fn agree(&mut self, what: &str, outcomes: [Outcome; 2]) -> Checked<Outcome> {
        let [plain, carried] = outcomes;
        writeln!(self.text, "    {what}{}", describe(&plain)).expect("a string");
        let is_wrong = |outcome: &Outcome| matches!(outcome, Outcome::Replied(reply) if reply.is_wrong != 0);
        if plain != carried || is_wrong(&plain) {
            return Err(Mismatch(format!("{what}plain{}, carried{}", describe(&plain), describe(&carried))));
        }
        Ok(plain)
    }

    /// Carries out an order that does not sleep.
    fn both(&mut self, actor: usize, order: Order) -> Checked<Reply> {
        self.tell(actor, [order; 2]);
        match self.answers(actor, self.timeout)? {
            Some(outcomes) => match self.agree("", outcomes)? {
                Outcome::Replied(reply) => Ok(reply),
                Outcome::Died => {
                    self.was_killed(actor);
                    Ok(Reply { result: -1, ..Reply::default() })
                }
            },
            None => Err(Mismatch(format!("neither run answers {order:?}"))),
        }
    }

    /// A signal has ended an actor's process.
    fn was_killed(&mut self, actor: usize) {
        self.model.ended(actor, true);
        // The other end of a Unix connection asks the kernel once a millisecond (docs/carried-connections.md).
        if self.model.connections.iter().any(Connection::is_unix) {
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Waits until what the peer did has arrived: bytes, ends, and room.
    fn settle(&mut self, actor: usize, connection: usize, side: usize) -> Checked<bool> {
        let Connection { ends, is_busy, has_left, is_cut, .. } = self.model.connections[connection];
        if is_busy || is_cut {
            return Ok(false);
        }
        let Some(fd) = self.held_as(actor, What::End(connection, side)) else { return Ok(false) };
        // A waiting receiver takes what comes: there is nothing to observe, or will not be in a moment.
        if self.model.has_receiver(connection, side) && self.model.under_way(PLAIN, connection, side) > 0 {
            return Ok(false);
        }
        let peer = ends[1 - side];
        if has_left && self.model.under_way(PLAIN, connection, side) > 0 && !peer.is_closed {
            // The sender does its part at its next call.
            match self.model.holder(connection, 1 - side) {
                Some((other, _)) if other == actor => {}
                Some(_) => self.nudge_end(connection, 1 - side, actor)?,
                None => return Ok(false),
            }
        }
        let mut orders = [Order { milliseconds: 10_000, ..Order::new(Operation::Settle, fd) }; 2];
        for (run, order) in orders.iter_mut().enumerate() {
            order.size = self.model.under_way(run, connection, side);
        }
        if !peer.is_full
            && !ends[side].expects_reset
            && orders[0].size > 0
            && orders[0].size == orders[1].size
        {
            self.settle_by(actor, "bytes", orders)?;
        }
        let end = Order { milliseconds: 10_000, ..Order::new(Operation::SettleEnd, fd) };
        if (peer.is_closed || peer.has_shut_sending) && !peer.is_full {
            self.settle_by(actor, "the end", [Order { flags: libc::POLLRDHUP.into(), ..end }; 2])?;
        }
        if ends[side].expects_reset {
            let flags = i32::from(libc::POLLHUP | libc::POLLERR);
            self.settle_by(actor, "the reset", [Order { flags, ..end }; 2])?;
        }
        Ok(true)
    }

    fn settle_by(&mut self, actor: usize, what: &str, orders: [Order; 2]) -> Checked<()> {
        self.tell(actor, orders);
        let mut found = [0; 2];
        for (run, found) in found.iter_mut().enumerate() {
            match self.programs[run].outcome(actor, TIMEOUT) {
                Some(Outcome::Replied(reply)) => *found = reply.result,
                other => return Err(Mismatch(format!("run {run}: waiting for {what}: {other:?}"))),
            }
        }
        if found[PLAIN] != found[CARRIED] || (orders[0].size > 0 && found[PLAIN] as u64 != orders[0].size) {
            return Err(Mismatch(format!(
                "waiting for {what}: plain {}, carried {}",
                found[PLAIN], found[CARRIED]
            )));
        }
        Ok(())
    }

    fn held_as(&self, actor: usize, what: What) -> Option<i32> {
        let fds = &self.model.processes[self.model.actors[actor].process].fds;
        fds.iter().find(|(_, held)| held.what == what).map(|(fd, _)| *fd)
    }

    /// Before a look at a set: everything that this process holds has settled.
    fn settle_all(&mut self, actor: usize) -> Checked<bool> {
        let held: Vec<_> = self.model.process_of(actor).fds.values().map(|held| held.what).collect();
        for what in held {
            if let What::End(connection, side) = what
                && !(self.settle(actor, connection, side)?
                    && self.settle_shutdown(actor, connection, side)?)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A shutdown is acknowledged, at once or later. The kernel reports that as an edge.
    fn settle_shutdown(&mut self, actor: usize, connection: usize, side: usize) -> Checked<bool> {
        let end = self.model.connections[connection].ends[side];
        let Some(fd) = self.held_as(actor, What::End(connection, side)) else { return Ok(false) };
        if end.has_shut_sending && !end.is_full {
            let order = Order { milliseconds: 10_000, ..Order::new(Operation::SettleShut, fd) };
            self.settle_by(actor, "its end to be acknowledged", [order; 2])?;
        }
        Ok(true)
    }

    // Sleepers.

    fn put_to_sleep(&mut self, actor: usize, sleeps: Sleeps) {
        if !matches!(sleeps, Sleeps::Transfer { .. }) {
            self.programs.iter().for_each(|programs| programs.falls_asleep(actor, false));
            self.text.push_str("    sleeps\n");
        }
        self.model.actors[actor].pending = Some(Pending { step: self.steps.len() - 1, sleeps });
    }

    fn await_sleepers(&mut self) -> Checked<()> {
        loop {
            let awake = (0..self.model.actors.len()).find(|actor| {
                let found = &self.model.actors[*actor];
                found.is_alive
                    && found.pending.is_some_and(|pending| self.model.is_awake(&pending, self.steps.len()))
            });
            let Some(actor) = awake else { return Ok(()) };
            if !self.wake(actor)? {
                return Ok(());
            }
        }
    }

    /// A sleeping actor should be awake: `false` if it is not, in both runs.
    fn wake(&mut self, actor: usize) -> Checked<bool> {
        let Actor { pending: Some(pending), .. } = self.model.actors[actor] else { return Ok(true) };
        let doze = if matches!(pending.sleeps, Sleeps::Transfer { .. }) { self.timeout } else { DOZE };
        let Some(outcomes) = self.answers(actor, doze)? else {
            if matches!(pending.sleeps, Sleeps::Transfer { .. }) {
                return Err(Mismatch(format!("actor {actor}: a transfer is never over")));
            }
            if let Sleeps::Wait { set, .. } = pending.sleeps {
                let seen = self.model.activity(set);
                self.model.actors[actor].pending =
                    Some(Pending { sleeps: Sleeps::Wait { set, seen }, ..pending });
            }
            return Ok(false);
        };
        self.model.actors[actor].pending = None;
        if matches!(pending.sleeps, Sleeps::Transfer { .. }) {
            return self.transferred(actor, &pending, outcomes);
        }
        let is_cut = match pending.sleeps {
            Sleeps::Receive { connection, .. } | Sleeps::Poll { connection, .. } => {
                self.model.connections[connection].is_cut
            }
            Sleeps::Wait { set, .. } => {
                self.model.sets[set].iter().any(|(at, _)| self.model.connections[*at].is_cut)
            }
            Sleeps::Transfer { .. } => false,
        };
        if is_cut {
            self.woken_by_cut(&pending, outcomes)?;
        } else if let Sleeps::Wait { set, .. } = pending.sleeps {
            self.agree_on_events(set, &format!("actor {actor} wakes: "), outcomes)?;
        } else {
            let found = self.agree(&format!("actor {actor} wakes: "), outcomes)?;
            self.woken(actor, &pending, found);
        }
        self.model.settle_closed(false);
        Ok(true)
    }

    fn woken(&mut self, actor: usize, pending: &Pending, found: Outcome) {
        if let (Sleeps::Receive { connection, side, takes, .. }, Outcome::Replied(reply)) =
            (pending.sleeps, found)
        {
            // The number of a descriptor that has come with the bytes, plus one.
            if reply.detail > 0
                && let Some(attached) = self.model.next_attached(connection, side)
            {
                self.model.made(actor, reply.detail as i64 - 1, attached.what, false);
            }
            if takes {
                self.took(connection, side, [reply.result; 2]);
            }
        }
    }

    /// After the death of a peer: an end that does not hide lost bytes.
    fn woken_by_cut(&mut self, pending: &Pending, outcomes: [Outcome; 2]) -> Checked<()> {
        if let (
            Sleeps::Receive { connection, side, takes: true, .. },
            [Outcome::Replied(plain), Outcome::Replied(carried)],
        ) = (pending.sleeps, outcomes)
        {
            if plain.is_wrong != 0 || carried.is_wrong != 0 || (0..plain.result).contains(&carried.result) {
                return Err(Mismatch(format!("a killed peer's bytes: plain {plain:?}, carried {carried:?}")));
            }
            self.took(connection, side, [plain.result, carried.result]);
        }
        Ok(())
    }

    fn took(&mut self, connection: usize, side: usize, lengths: [i64; 2]) {
        for (run, length) in lengths.iter().enumerate() {
            self.model.connections[connection].ends[side].received[run] += (*length).max(0) as u64;
        }
        // Descriptors that came with them are closed, unless somebody has received them.
        if self.model.connections[connection].is_unix() {
            self.model.settle_closed(false);
        }
    }

    // Bytes.

    /// The end that a step concerns, settled, if it can be compared.
    fn end(&mut self, step: &Step) -> Checked<Option<(usize, usize)>> {
        let Some((connection, side)) = self.model.end_of(step.actor, step.fd) else { return Ok(None) };
        Ok(self.settle(step.actor, connection, side)?.then_some((connection, side)))
    }

    fn send(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let Connection { ends, .. } = self.model.connections[connection];
        let sleeper = self.model.has_receiver(connection, 1 - side);
        if ends[side].is_full
            || !self.has_room(connection, side, step.size)
            || (sleeper && step.size > PIECE_BYTES)
        {
            return Ok(false);
        }
        // The actor may die of it, and a transfer with it.
        let is_over = ends[side].expects_reset
            || ends[side].has_shut_sending
            || ends[1 - side].is_closed
            || ends[1 - side].has_shut_receiving;
        if is_over && self.model.transfers(self.model.actors[step.actor].process) {
            return Ok(false);
        }
        let mut order = self.order(step, Operation::Send);
        order.position = position(connection, side, ends[side].sent[PLAIN]);
        let mut orders = [order; 2];
        orders[CARRIED].position = position(connection, side, ends[side].sent[CARRIED]);
        self.tell(step.actor, orders);
        let Some(outcomes) = self.answers(step.actor, self.timeout)? else {
            return Err(Mismatch("neither run takes it".into()));
        };
        match self.agree("", outcomes)? {
            Outcome::Replied(reply) => {
                let ends = &mut self.model.connections[connection].ends;
                let peer = ends[1 - side];
                if reply.result <= 0 {
                } else if peer.is_closed || (peer.has_shut_sending && peer.has_shut_receiving) {
                    // It is discarded, and answered by a reset.
                    ends.iter_mut().for_each(|end| end.expects_reset = true);
                    // The error number shows whether the end of what did not fit had arrived.
                    self.model.connections[connection].is_cut |= peer.is_full;
                } else {
                    ends[side].sent.iter_mut().for_each(|sent| *sent += reply.result as u64);
                    self.settle_part(connection, 1 - side);
                }
            }
            // By SIGPIPE.
            Outcome::Died => self.was_killed(step.actor),
        }
        Ok(true)
    }

    fn has_room(&self, connection: usize, side: usize, size: u64) -> bool {
        let is_unix = self.model.connections[connection].is_unix();
        let most = if is_unix { UNDER_WAY_UNIX_MAX } else { UNDER_WAY_MAX };
        self.model.under_way(PLAIN, connection, 1 - side) + size <= most
    }

    /// Sends bytes with a descriptor. The connection that it belongs to returns to the kernel, and this direction as well.
    fn attach(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let Some(what @ What::End(passed, of)) = self.model.holds(step.actor, step.to).map(|held| held.what)
        else {
            return Ok(false);
        };
        let found = self.model.connections[connection];
        // The kernel finds sockets that only hold each other some time later.
        let may_be_circular = self.model.connections[passed].is_unix() && passed >= connection;
        let sleeper = self.model.has_receiver(connection, 1 - side);
        if !found.is_unix()
            || may_be_circular
            || self.model.connections[passed].is_cut
            || self.model.connections[passed].is_busy
            || found.ends[side].is_full
            || !self.has_room(connection, side, step.size)
            || (sleeper && step.size > PIECE_BYTES)
        {
            return Ok(false);
        }
        let mut orders = [self.order(step, Operation::Attach); 2];
        for (run, order) in orders.iter_mut().enumerate() {
            order.position = position(connection, side, found.ends[side].sent[run]);
        }
        self.tell(step.actor, orders);
        let Some(outcomes) = self.answers(step.actor, self.timeout)? else {
            return Err(Mismatch("neither run passes it".into()));
        };
        let Outcome::Replied(reply) = self.agree("", outcomes)? else {
            return Err(Mismatch("it dies of it".into()));
        };
        self.has_left(passed, of)?;
        if reply.result > 0 {
            let from = found.ends[side].sent[PLAIN];
            let until = from + reply.result as u64;
            self.model.attached.push(Attached { to: (connection, 1 - side), from, until, what });
            let end = &mut self.model.connections[connection].ends[side];
            end.sent.iter_mut().for_each(|sent| *sent += reply.result as u64);
            self.end_receive(connection, 1 - side);
            self.settle_part(connection, 1 - side);
        }
        Ok(true)
    }

    /// A receive that sleeps ends behind bytes with a descriptor.
    fn end_receive(&mut self, connection: usize, side: usize) {
        let there = self.model.under_way(PLAIN, connection, side);
        for actor in self.model.actors.iter_mut().filter(|actor| actor.is_alive) {
            if let Some(Pending { sleeps: Sleeps::Receive { connection: at, side: end, wanted, .. }, .. }) =
                &mut actor.pending
                && (*at, *end) == (connection, side)
            {
                *wanted = there.min(*wanted);
            }
        }
    }

    /// A receiver that sleeps for more bytes than have come takes them, and sleeps again. Over TCP they are its own
    /// from then on, and lost if it is killed; in memory once it has run.
    fn settle_part(&self, connection: usize, side: usize) {
        for (actor, found) in self.model.actors.iter().enumerate() {
            let Some(pending) = found.pending.filter(|_| found.is_alive) else { continue };
            let is_there = matches!(pending.sleeps, Sleeps::Receive { connection: at, side: end, takes: true, .. }
                if (at, end) == (connection, side));
            if is_there && !self.model.is_awake(&pending, self.steps.len()) {
                self.programs.iter().for_each(|programs| programs.falls_asleep(actor, false));
            }
        }
    }

    fn receive(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        if self.model.has_receiver(connection, side) {
            return Ok(false);
        }
        let Connection { ends, domain, .. } = self.model.connections[connection];
        // Many more bytes would make room.
        if ends[1 - side].is_full && (step.size > 3000 || step.flags & libc::MSG_TRUNC != 0) {
            return Ok(false);
        }
        let process = self.model.process_of(step.actor);
        let alarm = process.handlers[1];
        if step.to > 0 && alarm.is_none_or(|flags| flags & libc::SA_RESETHAND != 0) {
            return Ok(false);
        }
        // If a signal and a timeout end the same call, either may come first.
        let process = self.model.actors[step.actor].process;
        if step.to > 0 && (ends[side].has_patience || self.model.threads(process).count() > 1) {
            return Ok(false);
        }
        let mut order = self.order(step, Operation::Receive);
        (order.milliseconds, order.to) = (step.to, 0);
        let mut orders = [order; 2];
        for (run, order) in orders.iter_mut().enumerate() {
            order.position = position(connection, 1 - side, ends[side].received[run]);
        }
        let takes = step.flags & libc::MSG_PEEK == 0;
        // A Unix stream waits for no more than there is to peek at.
        let waits_for_all = step.flags & libc::MSG_WAITALL != 0 && (takes || domain == Domain::Tcp);
        let wanted = self.model.awaited(connection, side, if waits_for_all { step.size } else { 1 });
        let is_interrupted = step.to > 0 && alarm.unwrap_or(0) & libc::SA_RESTART == 0;
        let sleeps = step.flags & libc::MSG_DONTWAIT == 0
            && !ends[side].is_nonblocking
            && !ends[side].has_patience
            && !is_interrupted
            && !self.model.is_served(connection, side, wanted);
        if sleeps && !self.model.may_sleep(step.actor, connection, side) {
            return Ok(false);
        }
        // What comes while the call sleeps may be there before the call counts what is left, or not.
        let counts_left = match domain {
            Domain::Tcp => !sleeps && !ends[1 - side].is_full && !ends[side].expects_reset,
            Domain::Unix => !self.numbers_differ(step.actor),
        };
        orders.iter_mut().for_each(|order| order.to = counts_left.into());
        self.tell(step.actor, orders);
        let sleep = Sleeps::Receive { connection, side, wanted, takes };
        if sleeps {
            self.put_to_sleep(step.actor, sleep);
            return Ok(true);
        }
        let Some(outcomes) = self.answers(step.actor, DOZE)? else {
            self.put_to_sleep(step.actor, sleep);
            return Ok(true);
        };
        let found = self.agree("", outcomes)?;
        self.woken(step.actor, &Pending { step: 0, sleeps: sleep }, found);
        Ok(true)
    }

    fn fill(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let Connection { ends, .. } = self.model.connections[connection];
        let is_over =
            ends[1 - side].is_closed || ends[1 - side].has_shut_receiving || ends[side].expects_reset;
        if is_over
            || ends[side].is_full
            || ends[side].has_shut_sending
            || self.model.has_receiver(connection, 1 - side)
        {
            return Ok(false);
        }
        let order = self.order(step, Operation::Fill);
        let mut orders = [order; 2];
        for (run, order) in orders.iter_mut().enumerate() {
            order.position = position(connection, side, ends[side].sent[run]);
        }
        self.tell(step.actor, orders);
        let Some([plain, carried]) = self.answers(step.actor, self.timeout)? else {
            return Err(Mismatch("neither run is ever full".into()));
        };
        let (Outcome::Replied(plain), Outcome::Replied(carried)) = (plain, carried) else {
            return Err(Mismatch("it dies of it".into()));
        };
        let taken = [plain.result as u64, carried.result as u64];
        writeln!(self.text, "    {taken:?} bytes, then error {}", plain.more).expect("a string");
        // The capacity of a connection depends on the kernel. That it is full does not.
        if plain.more != carried.more || taken.iter().any(|taken| !(64_000..64 << 20).contains(taken)) {
            return Err(Mismatch(format!(
                "{taken:?} bytes, then plain {}, carried {}",
                plain.more, carried.more
            )));
        }
        let end = &mut self.model.connections[connection].ends[side];
        end.sent.iter_mut().zip(taken).for_each(|(sent, taken)| *sent += taken);
        end.is_full = true;
        Ok(true)
    }

    fn drain(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let Connection { ends, .. } = self.model.connections[connection];
        let sizes = [PLAIN, CARRIED].map(|run| self.model.under_way(run, connection, side));
        if sizes[PLAIN] == 0 || self.model.has_receiver(connection, side) || ends[side].has_shut_receiving {
            return Ok(false);
        }
        let mut orders = [self.order(step, Operation::ReceiveAll); 2];
        for (run, order) in orders.iter_mut().enumerate() {
            (order.to, order.size) = (0, sizes[run]);
            order.position = position(connection, 1 - side, ends[side].received[run]);
        }
        self.tell(step.actor, orders);
        let Some([plain, carried]) = self.answers(step.actor, self.timeout)? else {
            return Err(Mismatch("what was sent never comes, in neither run".into()));
        };
        self.received_all(connection, side, sizes, [plain, carried])?;
        if ends[1 - side].is_full {
            self.model.connections[connection].ends[1 - side].is_full = false;
            // Acknowledgements announce room, which takes time.
            if let Some((peer, fd)) = self.model.holder(connection, 1 - side) {
                let order = Order {
                    milliseconds: 10_000,
                    flags: libc::POLLOUT.into(),
                    ..Order::new(Operation::SettleEnd, fd)
                };
                self.settle_by(peer, "room", [order; 2])?;
            }
        }
        Ok(true)
    }

    /// Every byte has arrived and is right, or the stream has ended alike.
    fn received_all(
        &mut self,
        connection: usize,
        side: usize,
        sizes: [u64; 2],
        outcomes: [Outcome; 2],
    ) -> Checked<()> {
        let [Outcome::Replied(plain), Outcome::Replied(carried)] = outcomes else {
            return Err(Mismatch(format!("plain {:?}, carried {:?}", outcomes[0], outcomes[1])));
        };
        writeln!(self.text, "    {} of {} bytes", plain.result, sizes[PLAIN]).expect("a string");
        self.took(connection, side, [plain.result, carried.result]);
        let left = |reply: Reply, size: u64| size as i64 - reply.result;
        let is_right = plain.is_wrong == 0 && carried.is_wrong == 0 && plain.more == carried.more;
        if is_right && left(plain, sizes[PLAIN]) == left(carried, sizes[CARRIED]) {
            return Ok(());
        }
        Err(Mismatch(format!("of {sizes:?} bytes: plain {plain:?}, carried {carried:?}")))
    }

    fn transfer(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let receiver = step.to as usize;
        if receiver == step.actor || !self.model.is_idle(receiver) {
            return Ok(false);
        }
        let Some(fd) = self.held_as(receiver, What::End(connection, 1 - side)) else { return Ok(false) };
        let Connection { ends, .. } = self.model.connections[connection];
        let is_over = [side, 1 - side].iter().any(|side| self.model.has_ended(connection, *side));
        let is_watched = (0..2).any(|side| self.model.has_watcher(connection, side));
        if is_over || is_watched || ends[side].is_full || self.model.has_receiver(connection, 1 - side) {
            return Ok(false);
        }
        let mut orders = [self.order(step, Operation::SendAll); 2];
        let mut takes = [Order { way: step.way, ..Order::new(Operation::ReceiveAll, fd) }; 2];
        for run in [PLAIN, CARRIED] {
            (orders[run].flags, orders[run].to) = (0, [0, 40_000, 4096][step.way as usize % 3]);
            orders[run].position = position(connection, side, ends[side].sent[run]);
            takes[run].position = position(connection, side, ends[1 - side].received[run]);
            takes[run].size = self.model.under_way(run, connection, 1 - side) + step.size;
        }
        self.tell(step.actor, orders);
        self.tell(receiver, takes);
        let due = self.steps.len() + step.flags as usize;
        self.model.connections[connection].is_busy = true;
        self.put_to_sleep(step.actor, Sleeps::Transfer { due });
        self.put_to_sleep(receiver, Sleeps::Transfer { due });
        Ok(true)
    }

    /// One half of a transfer is over.
    fn transferred(&mut self, actor: usize, pending: &Pending, outcomes: [Outcome; 2]) -> Checked<bool> {
        let step = self.steps[pending.step];
        let Some((connection, side)) = self.model.end_of(step.actor, step.fd) else {
            return Err(Mismatch("a transfer's descriptor is gone".into()));
        };
        let sizes = if actor == step.actor {
            [step.size; 2]
        } else {
            // The number of bytes sent is known when the sender is done.
            let more = if self.model.is_idle(step.actor) { 0 } else { step.size };
            [PLAIN, CARRIED].map(|run| self.model.under_way(run, connection, 1 - side) + more)
        };
        if actor == step.actor {
            let [Outcome::Replied(plain), Outcome::Replied(carried)] = outcomes else {
                return Err(Mismatch(format!("sender: {outcomes:?}")));
            };
            if plain != carried || plain.result as u64 != step.size {
                return Err(Mismatch(format!("sender: plain {plain:?}, carried {carried:?}")));
            }
        }
        // The receiver may be asked first: the bytes count when both are done.
        let end = &mut self.model.connections[connection].ends;
        if actor == step.actor {
            end[side].sent.iter_mut().for_each(|sent| *sent += step.size);
        } else {
            let before = end[1 - side].received;
            self.received_all(connection, 1 - side, sizes, outcomes)?;
            let is_whole = [PLAIN, CARRIED].iter().all(|run| {
                self.model.connections[connection].ends[1 - side].received[*run] - before[*run] == sizes[*run]
            });
            if !is_whole {
                return Err(Mismatch(format!("receiver: {outcomes:?}")));
            }
        }
        let other = if actor == step.actor { step.to as usize } else { step.actor };
        if self.model.is_idle(other) {
            self.model.connections[connection].is_busy = false;
        }
        Ok(true)
    }

    /// At the end everything in flight arrives, whatever was done before.
    pub fn finish(&mut self) -> Checked<()> {
        self.text.push_str("the end\n");
        for actor in &mut self.model.actors {
            if let Some(Pending { sleeps: Sleeps::Transfer { due }, .. }) = &mut actor.pending {
                *due = 0;
            }
        }
        self.await_sleepers()?;
        for connection in 0..self.model.connections.len() {
            for side in 0..2 {
                if self.model.connections[connection].is_cut {
                    self.look_at_cut(connection, side)?;
                } else if let Some((actor, fd)) = self.model.holder(connection, side) {
                    let step = Step { kind: Kind::Drain, actor, fd, way: 0, flags: 0, to: 0, size: 0 };
                    self.apply(step)?;
                }
            }
        }
        for actor in 0..self.model.actors.len() {
            if !self.model.actors[actor].is_alive || self.model.actors[actor].pending.is_none() {
                continue;
            }
            let found =
                [PLAIN, CARRIED].map(|run| self.programs[run].outcome(actor, Duration::ZERO).is_some());
            if found[PLAIN] != found[CARRIED] {
                self.wake(actor)?;
            }
        }
        Ok(())
    }
}

/// Every stream has its own bytes.
fn position(connection: usize, side: usize, offset: u64) -> u64 {
    ((connection * 2 + side) as u64) << 40 | offset
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Died => " it dies".into(),
        Outcome::Replied(Reply { result, error, is_wrong, more, detail }) => {
            let mut text = format!(" = {result}");
            for (name, value) in [
                ("error", *error as u64),
                ("wrong bytes", (*is_wrong).into()),
                ("more", *more),
                ("events", *detail),
            ] {
                if value != 0 {
                    write!(text, " {name} {value:#x}").expect("a string");
                }
            }
            text
        }
    }
}

#[path = "lives.rs"]
mod lives;
