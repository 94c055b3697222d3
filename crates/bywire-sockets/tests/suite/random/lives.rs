//! Waits, descriptors, processes, threads and signals: the steps of `play` that move no bytes.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Checked, DOZE, Mismatch, Play};
use crate::random::channel::{Operation, Order, Outcome, Reply};
use crate::random::model::{PLAIN, Process, Sleeps, What};
use crate::random::step::{Kind, Step};

impl Play<'_> {
    // Waits.

    pub(super) fn poll(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let ends = &self.model.connections[connection].ends;
        let (for_bytes, for_room) =
            (step.flags & i32::from(libc::POLLIN) != 0, step.flags & i32::from(libc::POLLOUT) != 0);
        let is_vague = (ends[side].is_full && for_room) || self.model.is_end_hidden(connection, side);
        if is_vague || (step.to < 0 && !for_bytes) {
            return Ok(false);
        }
        let order = Order { milliseconds: step.to, to: 0, ..self.order(step, Operation::Poll) };
        let sleep = Sleeps::Poll { connection, side };
        let sleeps = step.to < 0 && !for_room && !self.model.is_served(connection, side, 1);
        if sleeps && !self.model.may_sleep(step.actor, connection, side) {
            return Ok(false);
        }
        self.tell(step.actor, [order; 2]);
        if sleeps {
            self.put_to_sleep(step.actor, sleep);
            return Ok(true);
        }
        match self.answers(step.actor, DOZE)? {
            Some(outcomes) => drop(self.agree("", outcomes)?),
            None => self.put_to_sleep(step.actor, sleep),
        }
        Ok(true)
    }

    pub(super) fn new_set(&mut self, step: &Step) -> Checked<bool> {
        if self.numbers_differ(step.actor) {
            return Ok(false);
        }
        let reply = self.both(step.actor, self.order(step, Operation::NewSet))?;
        if reply.result >= 0 {
            self.model.sets.push(Vec::new());
            let set = What::Set(self.model.sets.len() - 1);
            self.model.made(step.actor, reply.result, set, step.flags != 0);
        }
        Ok(true)
    }

    pub(super) fn control(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let Some(What::Set(set)) = self.model.holds(step.actor, step.to).map(|held| held.what) else {
            return Ok(false);
        };
        let reply = self.both(step.actor, self.order(step, Operation::Control))?;
        if reply.result == 0 {
            let found = &mut self.model.sets[set];
            found.retain(|end| *end != (connection, side));
            if step.way != libc::EPOLL_CTL_DEL {
                found.push((connection, side));
            }
            if step.flags & libc::EPOLLET != 0 {
                self.model.edges.insert(set);
            }
        }
        Ok(true)
    }

    pub(super) fn wait(&mut self, step: &Step) -> Checked<bool> {
        let Some(What::Set(set)) = self.model.holds(step.actor, step.fd).map(|held| held.what) else {
            return Ok(false);
        };
        let ends = self.model.sets[set].clone();
        // The two runs may differ in whether a full connection has room, and in which connection is cut. What has not
        // fitted comes later, by an edge of its own.
        let counts_edges = self.model.edges.contains(&set);
        let is_vague = ends.iter().any(|(connection, side)| {
            let found = &self.model.connections[*connection];
            found.is_cut
                || found.is_busy
                || found.ends[*side].is_full
                || (counts_edges && found.ends[1 - *side].is_full)
                || self.model.is_end_hidden(*connection, *side)
        });
        // What nobody here can observe may not have settled.
        let is_seen = |(at, side): &(usize, usize)| {
            self.held_as(step.actor, What::End(*at, *side)).is_some()
                || !self.model.is_held(What::End(*at, *side))
        };
        if is_vague || !ends.iter().all(is_seen) || !self.settle_all(step.actor)? {
            return Ok(false);
        }
        let order = Order { milliseconds: step.flags.max(0), ..self.order(step, Operation::Wait) };
        self.tell(step.actor, [order; 2]);
        let Some(outcomes) = self.answers(step.actor, self.timeout)? else {
            return Err(Mismatch("neither run's wait ends".into()));
        };
        let reply = self.agree_on_events(set, "", outcomes)?;
        let may_sleep =
            !ends.is_empty() && ends.iter().all(|(at, side)| self.model.may_sleep(step.actor, *at, *side));
        if reply.result == 0 && step.flags < 0 && may_sleep {
            self.tell(step.actor, [Order { milliseconds: -1, ..order }; 2]);
            let seen = self.model.activity(set);
            self.put_to_sleep(step.actor, Sleeps::Wait { set, seen });
        }
        Ok(true)
    }

    /// An edge-triggered event may be reported once more than due, as by the kernel, but never once less.
    pub(super) fn agree_on_events(
        &mut self,
        set: usize,
        what: &str,
        outcomes: [Outcome; 2],
    ) -> Checked<Reply> {
        if let [Outcome::Replied(plain), Outcome::Replied(carried)] = outcomes
            && self.model.edges.contains(&set)
            && plain.result >= 0
            && carried.result > plain.result
        {
            writeln!(self.text, "    {what}one edge more").expect("a string");
            self.extra_edges += 1;
            return Ok(carried);
        }
        match self.agree(what, outcomes)? {
            Outcome::Replied(reply) => Ok(reply),
            Outcome::Died => Err(Mismatch("it dies of a wait".into())),
        }
    }

    // Descriptors.

    /// A thread that moves bytes may be about to have its connection carried. The library then opens a descriptor for a
    /// moment, as docs/sockets.md says, and a new descriptor of the program gets the next number.
    pub(super) fn numbers_differ(&self, actor: usize) -> bool {
        self.model.transfers(self.model.actors[actor].process)
    }

    pub(super) fn duplicate(&mut self, step: &Step) -> Checked<bool> {
        let Some(held) = self.model.holds(step.actor, step.fd) else { return Ok(false) };
        if self.numbers_differ(step.actor) {
            return Ok(false);
        }
        let is_onto = matches!(step.way, 1 | 2);
        if is_onto && self.model.is_used(step.actor, step.to) {
            return Ok(false);
        }
        let reply = self.both(step.actor, self.order(step, Operation::Duplicate))?;
        if reply.result >= 0 && reply.result != i64::from(step.fd) {
            let before = self.model.holds(step.actor, reply.result as i32).map(|before| before.what);
            let closes = (step.way == 2 && step.flags == libc::O_CLOEXEC) || step.way == 4;
            self.model.made(step.actor, reply.result, held.what, closes);
            self.model.settle_closed(false);
            self.is_watched_without(before)?;
        }
        Ok(true)
    }

    /// A closed descriptor may have been reported to a set. As long as anybody has the socket the kernel reports it, so
    /// it has returned to the kernel.
    fn is_watched_without(&mut self, closed: Option<What>) -> Checked<()> {
        if let Some(what @ What::End(connection, side)) = closed
            && self.model.is_held(what)
            && self.model.sets.iter().any(|set| set.contains(&(connection, side)))
        {
            self.has_left(connection, side)?;
        }
        Ok(())
    }

    pub(super) fn close(&mut self, step: &Step) -> Checked<bool> {
        if self.model.holds(step.actor, step.fd).is_none() || self.model.is_used(step.actor, step.fd) {
            return Ok(false);
        }
        let reply = self.both(step.actor, self.order(step, Operation::Close))?;
        if reply.result == 0 {
            let before = self.model.process_of(step.actor).fds.remove(&step.fd);
            self.model.settle_closed(false);
            self.is_watched_without(before.map(|before| before.what))?;
        }
        Ok(true)
    }

    pub(super) fn pass(&mut self, step: &Step) -> Checked<bool> {
        let Some(what @ What::End(connection, side)) =
            self.model.holds(step.actor, step.fd).map(|held| held.what)
        else {
            return Ok(false);
        };
        if self.model.mail.is_some() || self.model.connections[connection].is_cut {
            return Ok(false);
        }
        let reply = self.both(step.actor, self.order(step, Operation::Pass))?;
        self.has_left(connection, side)?;
        if reply.result >= 0 {
            self.model.mail = Some(what);
        }
        Ok(true)
    }

    pub(super) fn take(&mut self, step: &Step) -> Checked<bool> {
        let Some(what) = self.model.mail else { return Ok(false) };
        if self.numbers_differ(step.actor) {
            return Ok(false);
        }
        let reply = self.both(step.actor, self.order(step, Operation::Take))?;
        self.model.mail = None;
        if reply.result >= 0 {
            self.model.made(step.actor, reply.result, what, step.flags != 0);
        }
        self.model.settle_closed(false);
        Ok(true)
    }

    pub(super) fn look(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, _)) = self.end(step)? else { return Ok(false) };
        // Ends that were sent wait behind bytes in one run, and have arrived in the other.
        if self.model.connections[connection].ends.iter().any(|end| end.is_full) && matches!(step.way, 0 | 5)
        {
            return Ok(false);
        }
        self.both(step.actor, self.order(step, Operation::Look))?;
        Ok(true)
    }

    pub(super) fn set(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        // The kernel begins a receive anew behind each handler with `SA_RESTART`, and then finds that it must not wait
        // (docs/sockets.md).
        if matches!(step.way, 0 | 1 | 6) && self.is_alarmed(connection, side) {
            return Ok(false);
        }
        let order = Order { milliseconds: step.size as i32, ..self.order(step, Operation::Set) };
        let reply = self.both(step.actor, order)?;
        let end = &mut self.model.connections[connection].ends[side];
        match step.way {
            _ if reply.result < 0 => {}
            0 | 1 | 6 => end.is_nonblocking = step.flags != 0,
            2 => end.has_patience = step.size > 0,
            3 => end.lingers = step.flags != 0,
            _ => {
                if let Some(held) = self.model.process_of(step.actor).fds.get_mut(&step.fd) {
                    held.closes_on_exec = step.flags != 0;
                }
            }
        }
        Ok(true)
    }

    /// Whether alarms come while an actor sleeps in a receive of that end.
    fn is_alarmed(&self, connection: usize, side: usize) -> bool {
        self.model.actors.iter().filter(|actor| actor.is_alive).filter_map(|actor| actor.pending).any(|pending| {
            matches!(pending.sleeps, Sleeps::Receive { connection: at, side: end, .. } if (at, end) == (connection, side))
                && self.steps[pending.step].to > 0
        })
    }

    pub(super) fn shutdown(&mut self, step: &Step) -> Checked<bool> {
        let Some((connection, side)) = self.end(step)? else { return Ok(false) };
        let reply = self.both(step.actor, self.order(step, Operation::Shutdown))?;
        if reply.result == 0 {
            let end = &mut self.model.connections[connection].ends[side];
            end.has_shut_receiving |= step.way != libc::SHUT_WR;
            end.has_shut_sending |= step.way != libc::SHUT_RD;
            // What has not fitted is answered by a reset if it must go through the kernel.
            let is_over = end.has_shut_receiving && end.has_shut_sending;
            let found = &mut self.model.connections[connection];
            found.is_cut |= is_over && found.ends[1 - side].is_full && !found.is_unix();
        }
        Ok(true)
    }

    // Processes and threads.

    /// What may be inherited returns to the kernel before another program may get it; before a sandbox, everything
    /// does.
    fn leaves(&mut self, process: usize, is_all: bool) -> Checked<()> {
        for (_, held) in self.model.processes[process].fds.clone() {
            if let What::End(connection, side) = held.what
                && (is_all || !held.closes_on_exec)
            {
                self.has_left(connection, side)?;
            }
        }
        Ok(())
    }

    /// The sender of unread bytes does its part at its next call, which is made now. If nobody can make one, bytes may
    /// be late, or lost with their sender, as docs/sockets.md says.
    pub(super) fn has_left(&mut self, connection: usize, side: usize) -> Checked<()> {
        self.model.connections[connection].has_left = true;
        self.model.connections[connection].ends[side].was_handed_on = true;
        let found = &mut self.model.connections[connection];
        // The kernel knows nothing of bytes that were left unread in a ring, so it tells no other program of them.
        if found.is_unix() && found.ends[side].expects_reset {
            (found.is_cut, found.is_late) = (true, true);
            return Ok(());
        }
        let has_rest = !found.is_unix() || !found.ends[1 - side].was_killed;
        if self.model.under_way(PLAIN, connection, side) == 0 {
            return Ok(());
        }
        match self.model.holder(connection, 1 - side) {
            Some((peer, fd)) => {
                self.poll_in_both(peer, fd)?;
            }
            None if self.model.connections[connection].ends[1 - side].is_closed && has_rest => {}
            None => {
                let found = &mut self.model.connections[connection];
                (found.is_cut, found.is_late) = (true, true);
            }
        }
        Ok(())
    }

    pub(super) fn fork(&mut self, step: &Step) -> Checked<bool> {
        let process = self.model.actors[step.actor].process;
        if !self.model.has_room_for_actor() {
            return Ok(false);
        }
        let is_spawn = step.kind == Kind::Spawn;
        let replaces = is_spawn || step.way == 1;
        // A program without descriptors does not even start.
        if replaces && self.model.processes[process].is_limited {
            return Ok(false);
        }
        let operation = if is_spawn { Operation::Spawn } else { Operation::Fork };
        let child = self.model.actors.len();
        self.tell(step.actor, [Order { to: child as i32, ..self.order(step, operation) }; 2]);
        let Some(outcomes) = self.answers(step.actor, self.timeout)? else {
            return Err(Mismatch("neither run has a child".into()));
        };
        if replaces {
            self.leaves(process, false)?;
        }
        // Their numbers differ.
        let outcomes = outcomes.map(|outcome| match outcome {
            Outcome::Replied(reply) => Outcome::Replied(Reply { result: reply.result.min(1), ..reply }),
            Outcome::Died => Outcome::Died,
        });
        match self.agree("", outcomes)? {
            Outcome::Replied(Reply { result: 1, .. }) => {}
            Outcome::Replied(_) => return Ok(true),
            Outcome::Died => {
                self.was_killed(step.actor);
                return Ok(true);
            }
        }
        let new = self.model.forked(step.actor);
        self.greet(new, None)?;
        if is_spawn {
            self.act_in_child(step, new);
        }
        if replaces {
            self.leaves(self.model.actors[new].process, false)?;
            self.model.replaced(new);
        }
        Ok(true)
    }

    fn act_in_child(&mut self, step: &Step, child: usize) {
        let fds = &mut self.model.process_of(child).fds;
        if step.flags & 1 != 0
            && let Some(held) = fds.get(&step.fd).copied()
        {
            fds.insert(step.way, held);
            fds.get_mut(&step.way).expect("just put there").closes_on_exec = false;
        }
        if step.flags & 2 != 0 {
            fds.remove(&step.fd);
        }
    }

    fn greet(&mut self, actor: usize, thread_of: Option<usize>) -> Checked<()> {
        for (run, programs) in self.programs.iter_mut().enumerate() {
            if programs.greet(actor, thread_of).is_none() {
                return Err(Mismatch(format!("run {run}: actor {actor} does not begin")));
            }
        }
        Ok(())
    }

    pub(super) fn exec(&mut self, step: &Step) -> Checked<bool> {
        let process = self.model.actors[step.actor].process;
        let found = &self.model.processes[process];
        if found.is_limited || self.model.transfers(process) {
            return Ok(false);
        }
        let order = Order { to: step.actor as i32, ..self.order(step, Operation::Exec) };
        self.tell(step.actor, [order; 2]);
        let Some([plain, carried]) = self.answers(step.actor, self.timeout)? else {
            return Err(Mismatch("neither run becomes another program".into()));
        };
        let hellos = [plain, carried];
        for (run, hello) in hellos.iter().enumerate() {
            match hello {
                Outcome::Replied(hello) if hello.result > 0 => self.programs[run].renew(step.actor, *hello),
                other => return Err(Mismatch(format!("run {run}: {other:?}"))),
            }
        }
        // Its other threads are gone.
        self.model.replaced(step.actor);
        self.leaves(process, false)?;
        Ok(true)
    }

    pub(super) fn run_other(&mut self, step: &Step) -> Checked<bool> {
        let process = self.model.actors[step.actor].process;
        let is_limited = self.model.processes[process].is_limited;
        // `system` blocks SIGCHLD in its own thread, and so does `popen` while it starts its program. The kernel then
        // wakes another thread for the signal, although nobody handles it, and restarts that thread's call.
        let is_disturbed = self
            .model
            .threads(process)
            .any(|other| other != step.actor && (self.begins_another_call(other) || self.has_part(other)));
        if is_limited || is_disturbed {
            return Ok(false);
        }
        self.both(step.actor, self.order(step, Operation::Run))?;
        self.leaves(process, false)?;
        Ok(true)
    }

    pub(super) fn thread(&mut self, step: &Step) -> Checked<bool> {
        let process = self.model.actors[step.actor].process;
        if !self.model.has_room_for_actor() {
            return Ok(false);
        }
        let new = self.model.actors.len();
        self.both(step.actor, Order { to: new as i32, ..self.order(step, Operation::Thread) })?;
        self.model.add_actor(process, false);
        self.greet(new, Some(step.actor))?;
        Ok(true)
    }

    pub(super) fn exit(&mut self, step: &Step) -> Checked<bool> {
        let found = self.model.actors[step.actor].clone();
        let is_thread = step.way == 2;
        // Without descriptors the C library cannot load what ends a thread.
        let is_limited = self.model.processes[found.process].is_limited;
        if (is_thread && (found.is_main || is_limited)) || (!is_thread && self.model.transfers(found.process))
        {
            return Ok(false);
        }
        self.tell(step.actor, [self.order(step, Operation::Exit); 2]);
        for (run, programs) in self.programs.iter().enumerate() {
            let is_over = if is_thread {
                programs.thread_ends(step.actor, self.timeout)
            } else {
                programs.ends(step.actor, self.timeout)
            };
            if !is_over {
                return Err(Mismatch(format!("run {run}: it does not end")));
            }
        }
        if is_thread {
            self.model.actors[step.actor].is_alive = false;
        } else {
            self.model.ended(step.actor, false);
        }
        Ok(true)
    }

    pub(super) fn kill(&mut self, step: &Step) -> Checked<bool> {
        let process = self.model.actors[step.actor].process;
        if self.model.transfers(process) {
            return Ok(false);
        }
        for (run, programs) in self.programs.iter().enumerate() {
            programs.signal(step.actor, libc::SIGKILL);
            if !programs.ends(step.actor, self.timeout) {
                return Err(Mismatch(format!("run {run}: it is not killed")));
            }
        }
        self.was_killed(step.actor);
        Ok(true)
    }

    pub(super) fn reap(&mut self, step: &Step) -> Checked<bool> {
        let parent = self.model.actors[step.actor].process;
        let is_due =
            |process: &Process| process.parent == Some(parent) && !process.is_alive && !process.is_reaped;
        let Some(child) = self.model.processes.iter().position(is_due) else { return Ok(false) };
        let main = self.model.actors.iter().position(|actor| actor.process == child);
        let Some(main) = main else { return Ok(false) };
        let mut orders = [self.order(step, Operation::Reap); 2];
        for (run, order) in orders.iter_mut().enumerate() {
            order.to = self.programs[run].process(main);
        }
        self.tell(step.actor, orders);
        self.model.processes[child].is_reaped = true;
        match self.answers(step.actor, self.timeout)? {
            Some(outcomes) => drop(self.agree("", outcomes)?),
            None => return Err(Mismatch("neither run's child has ended".into())),
        }
        Ok(true)
    }

    // Signals, and limits of a process.

    pub(super) fn handle(&mut self, step: &Step) -> Checked<bool> {
        let reply = self.both(step.actor, self.order(step, Operation::Handle))?;
        if reply.result == 0 {
            let which = usize::from(step.way == libc::SIGALRM);
            self.model.process_of(step.actor).handlers[which] = Some(step.flags);
        }
        Ok(true)
    }

    pub(super) fn signal(&mut self, step: &Step) -> Checked<bool> {
        let Some(flags) = self.model.process_of(step.actor).handlers[0] else { return Ok(false) };
        let pending = self.model.actors[step.actor].pending;
        let sleeps = pending.is_some_and(|pending| !matches!(pending.sleeps, Sleeps::Transfer { .. }));
        // A signal between two sleeps of a receive in memory does not end it (docs/sockets.md). Then nothing else shows
        // that it has some bytes.
        let is_told = flags & libc::SA_RESTART == 0;
        if self.begins_another_call(step.actor) || !is_told && self.has_part(step.actor) {
            return Ok(false);
        }
        for programs in &*self.programs {
            if sleeps {
                programs.falls_asleep(step.actor, true);
            }
            programs.signal(step.actor, libc::SIGUSR1);
        }
        if flags & libc::SA_RESETHAND != 0 {
            self.model.process_of(step.actor).handlers[0] = None;
        }
        let Some(pending) = pending else {
            self.both(step.actor, Order::new(Operation::Handled, -1))?;
            return Ok(true);
        };
        let is_interrupted = match pending.sleeps {
            Sleeps::Transfer { .. } => false,
            Sleeps::Poll { .. } | Sleeps::Wait { .. } => true,
            Sleeps::Receive { connection, side, .. } => {
                flags & libc::SA_RESTART == 0 || self.model.connections[connection].ends[side].has_patience
            }
        };
        if is_interrupted && !self.wake(step.actor)? {
            return Err(Mismatch("the signal interrupts neither run".into()));
        }
        // The signal may be on its way for a moment, and the next step must not overtake it.
        if !is_interrupted {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Whether it sleeps in a receive that would be a different one now. The kernel restarts it after a handler with
    /// `SA_RESTART`, and then finds that it must not wait, or that its descriptor means something else.
    fn begins_another_call(&self, actor: usize) -> bool {
        self.model.actors[actor].pending.is_some_and(|pending| match pending.sleeps {
            Sleeps::Receive { connection, side, .. } => {
                self.model.connections[connection].ends[side].is_nonblocking
                    || self.model.end_of(actor, self.steps[pending.step].fd) != Some((connection, side))
            }
            _ => false,
        })
    }

    /// Whether it sleeps in a receive that has some of its bytes. Any signal ends such a call.
    fn has_part(&self, actor: usize) -> bool {
        self.model.actors[actor].pending.is_some_and(|pending| match pending.sleeps {
            Sleeps::Receive { connection, side, takes, .. } => {
                takes && self.model.under_way(PLAIN, connection, side) > 0
            }
            _ => false,
        })
    }

    pub(super) fn limit(&mut self, step: &Step) -> Checked<bool> {
        self.both(step.actor, self.order(step, Operation::Limit))?;
        self.model.process_of(step.actor).is_limited = true;
        Ok(true)
    }

    pub(super) fn sandbox(&mut self, step: &Step) -> Checked<bool> {
        let process = self.model.actors[step.actor].process;
        if self.model.threads(process).count() > 1 {
            return Ok(false);
        }
        self.both(step.actor, self.order(step, Operation::Sandbox))?;
        self.model.process_of(step.actor).is_sandboxed = true;
        self.leaves(process, true)?;
        Ok(true)
    }

    /// What a killed peer has sent is read, followed by an end that does not hide lost bytes.
    pub(super) fn look_at_cut(&mut self, connection: usize, side: usize) -> Checked<()> {
        let Some((actor, fd)) = self.model.holder(connection, side) else { return Ok(()) };
        let ends = self.model.connections[connection].ends;
        if ends[side].is_closed || ends[1 - side].is_full || self.model.connections[connection].is_late {
            return Ok(());
        }
        let mut orders = [Order::new(Operation::ReceiveAll, fd); 2];
        for (run, order) in orders.iter_mut().enumerate() {
            order.size = self.model.under_way(run, connection, side) + 1;
            order.position = super::position(connection, 1 - side, ends[side].received[run]);
        }
        self.tell(actor, orders);
        let Some([Outcome::Replied(plain), Outcome::Replied(carried)]) = self.answers(actor, self.timeout)?
        else {
            return Err(Mismatch(format!("actor {actor}, fd {fd}: a killed peer's stream never ends")));
        };
        let is_whole = carried.result >= plain.result || carried.more != 0;
        if plain.is_wrong != 0 || carried.is_wrong != 0 || !is_whole {
            return Err(Mismatch(format!(
                "of {:?} bytes: plain {plain:?}, carried {carried:?}",
                orders[PLAIN].size - 1
            )));
        }
        Ok(())
    }
}
