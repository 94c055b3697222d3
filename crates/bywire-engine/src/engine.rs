//! The loop of an engine: it looks at the connections of all programs in turn, and sleeps when none has anything.
//!
//! While there is something to do, it looks every 50 µs, so that many small sends become one of the kernel's. Programs
//! ring its doorbell only when its page says that it sleeps.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bywire_pairing::protocol::link;
use bywire_ring::program_doorbell as doorbell_rule;
use bywire_ring::stream::Mapped;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::poller::Poller;
use bywire_sys::spin::Spin;
use bywire_sys::{Errno, clock, deferred, limits, scheduling};

use crate::connection::{Asked, Program, Progress, Served};
use crate::control::{ControlSocket, Request};
use crate::counts::Counts;
use crate::fabric::{Fabric, FabricCounts};
use crate::pairing_client::{PairingClient, Told};

/// The time between two looks while there is something to do.
const TICK: Duration = Duration::from_micros(50);
/// The slice of processor time that it asks for. A peer or a program on its core would keep it from its looks for milliseconds.
const SLICE: Duration = Duration::from_micros(100);
/// Ticks without anything to do after which the engine sleeps until it is rung.
const IDLE_TICKS_MAX: u32 = 20;
/// Looks without anything to do after which a connection counts as quiet.
const QUIET_LOOKS: u32 = 20;
/// A connection that gets quiet after fewer bytes than this was not worth to be woken for.
const BURST_BYTES: u64 = 16 << 10;
/// The number of such bursts in a row after which the program gets its connection back, as it sends too little for batches.
const SMALL_BURSTS_MAX: u32 = 64;
/// Quiet connections that are looked at in one tick, in turn.
const QUIET_AT_ONCE: usize = 64;
/// Turns of connections with other machines, while these have something to do, from one question to the kernel to the next.
const ASK_EVERY_TURNS: u32 = 16;
/// How long it polls for the next step of a conversation with another machine before it sleeps,
const SPIN: Duration = Duration::from_micros(50);
/// and while two programs talk without a pause. A round trip takes less, also where both ends share their cores with engines.
const SPIN_IN_TALK: Duration = Duration::from_micros(200);
/// The time until it looks again at a program that was in a call.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The time until it tries again to say what the service had no room for.
const SAY_AGAIN: Duration = Duration::from_millis(1);
/// How long an engine that ends gives the kernel bytes of programs that go on.
const LAST_WAIT: Duration = Duration::from_millis(50);
/// How long it gives the kernel bytes of programs that have ended,
const FINISH_MAX: Duration = Duration::from_secs(60);
/// and how often it looks at them.
const FINISH_LOOK: Duration = Duration::from_millis(20);
/// Connections of one engine: each takes a descriptor and a place in the address space.
const CONNECTIONS_MAX: usize = 20_000;
/// The limit of descriptors that an engine asks for.
const DESCRIPTORS: u64 = 1 << 16;
/// Packets of the service that are heard before the connections have their turn.
const PACKETS_AT_ONCE: usize = 64;

/// Tags of the poller that are no connections' names. Those are counted from 1 on.
const SERVICE: u64 = u64::MAX;
const DOORBELL: u64 = u64::MAX - 1;
const CONTROL: u64 = u64::MAX - 2;
const STOP: u64 = u64::MAX - 3;
const FABRIC: u64 = u64::MAX - 4;
const NODES: u64 = u64::MAX - 5;

/// Why an engine does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No pairing service listens.
    #[error("cannot reach the pairing service at {0}: {1}; `bywire run` and `bywire pair` start one")]
    Service(std::path::PathBuf, Errno),
    /// Another engine serves this user.
    #[error("an engine serves this user already: end it by `bywire engine down`")]
    Occupied,
    /// The service has ended, or does not answer any more.
    #[error("the pairing service has ended")]
    ServiceEnded,
    /// The kernel refused what an engine needs.
    #[error("the kernel refused what an engine needs: {0}")]
    System(#[from] Errno),
}

/// The links that an engine serves.
#[derive(Debug)]
pub struct Links {
    /// It relays what programs send to any TCP peer.
    pub relays: bool,
    /// It carries connections with programs on other machines.
    pub fabric: Option<Fabric>,
}

/// A running engine.
#[derive(Debug)]
pub struct Engine {
    pairing: PairingClient,
    poller: Poller,
    /// Connections that the service was told to pair.
    asked: HashMap<u64, Asked>,
    served: HashMap<u64, Entry>,
    /// The names of connections that are looked at in each tick.
    active: Vec<u64>,
    /// The names of the others. Those that have ended since are left out at their turn.
    quiet: Vec<u64>,
    /// The place in `quiet` from which the next look goes on.
    turn: usize,
    programs: HashMap<u32, Rc<Program>>,
    interrupter: Rc<Interrupter>,
    counts: Counts,
    fabric: Option<Fabric>,
    spin: Spin,
}

#[derive(Debug)]
struct Entry {
    connection: Served,
    /// Looks in a row that found nothing.
    idle: u32,
    /// The kernel takes no more bytes, and the poller says when it does.
    is_full: bool,
    is_active: bool,
    /// The bytes of the connection when it was quiet last.
    bytes_before: u64,
    /// Times in a row that it got quiet after few bytes.
    small_bursts: u32,
}

impl Entry {
    fn new(connection: Served) -> Self {
        Self { connection, idle: 0, is_full: false, is_active: true, bytes_before: 0, small_bursts: 0 }
    }

    /// It gets quiet. Returns whether it was so too often after a few bytes.
    fn has_little(&mut self) -> bool {
        let bytes = self.connection.bytes();
        let is_small = bytes - std::mem::replace(&mut self.bytes_before, bytes) < BURST_BYTES;
        self.small_bursts = if is_small { self.small_bursts + 1 } else { 0 };
        self.small_bursts >= SMALL_BURSTS_MAX
    }
}

impl Engine {
    /// Connects to the pairing service at `path`, and serves this user's programs from then on.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn start(path: &Path, links: Links) -> Result<Self, EngineError> {
        let _ = limits::raise_descriptor_limit(DESCRIPTORS);
        // An engine that may not have them waits its turn like others.
        let _ = scheduling::take_short_slices(SLICE);
        scheduling::take_exact_timers();
        let Links { relays, fabric } = links;
        let links = if relays { link::RELAY } else { 0 } | if fabric.is_some() { link::FABRIC } else { 0 };
        let no_nodes = HashSet::new();
        let nodes = fabric.as_ref().map_or(&no_nodes, Fabric::told_nodes);
        let pairing = PairingClient::connect(path, links, nodes)
            .map_err(|error| EngineError::Service(path.to_owned(), error))?;
        let mut poller = Poller::new()?;
        poller.add(pairing.socket(), SERVICE)?;
        let accepted = loop {
            match pairing.receive().map_err(|_| EngineError::ServiceEnded)? {
                Some(Told::Accepted) => break true,
                Some(Told::Occupied) => break false,
                Some(_) => {}
                None => drop(
                    poller.wait(Some(Duration::from_secs(2)))?.first().ok_or(EngineError::ServiceEnded)?,
                ),
            }
        };
        if !accepted {
            return Err(EngineError::Occupied);
        }
        poller.add(pairing.doorbell(), DOORBELL)?;
        if let Some(fabric) = &fabric {
            poller.add(fabric, FABRIC)?;
            poller.add(fabric.nodes(), NODES)?;
        }
        Ok(Self {
            pairing,
            poller,
            asked: HashMap::new(),
            served: HashMap::new(),
            active: Vec::new(),
            quiet: Vec::new(),
            turn: 0,
            programs: HashMap::new(),
            interrupter: Rc::new(Interrupter::here()),
            counts: Counts::default(),
            fabric,
            spin: Spin::new(SPIN).longer(SPIN_IN_TALK),
        })
    }

    /// Serves until `stop` can be read, a caller of `control` asks for the end, or the service ends. Then every program
    /// takes its connections back, and another engine may begin. This one still gives the kernel what programs have left
    /// that have ended, for a minute at most.
    ///
    /// # Errors
    /// [`EngineError::ServiceEnded`], or the error of the kernel if it cannot wait.
    pub fn serve(mut self, control: ControlSocket, stop: &impl AsFd) -> Result<(), EngineError> {
        self.poller.add(control.listener(), CONTROL)?;
        self.poller.add(stop, STOP)?;
        let ended = self.serve_until(&control);
        let left = self.end();
        drop(control);
        let interrupter = Rc::clone(&self.interrupter);
        drop(self);
        finish(left, &interrupter);
        ended
    }

    fn serve_until(&mut self, control: &ControlSocket) -> Result<(), EngineError> {
        let (mut idle_ticks, mut busy_turns) = (0, 0u32);
        loop {
            let has_moved = self.look_at_active() | self.progress_quiet(QUIET_AT_ONCE);
            let has_carried = self.progress_fabric() || self.active.is_empty() && self.spin();
            // The kernel is asked about everything else now and then.
            busy_turns = if has_carried { busy_turns + 1 } else { 0 };
            if has_carried && self.active.is_empty() && !busy_turns.is_multiple_of(ASK_EVERY_TURNS) {
                continue;
            }
            let has_more_to_say = self.pairing.say_what_waits();
            idle_ticks = if has_moved { 0 } else { idle_ticks + 1 };
            // Batches are for the kernel. What goes to other machines does not wait for a tick.
            if self.active.is_empty() {
                idle_ticks = IDLE_TICKS_MAX;
            }
            let ready = match idle_ticks < IDLE_TICKS_MAX {
                _ if has_carried => self.poller.wait(Some(Duration::ZERO))?.to_vec(),
                true => self.poller.wait_briefly(TICK)?.to_vec(),
                // The service has to read first.
                false if has_more_to_say => self.poller.wait(Some(SAY_AGAIN))?.to_vec(),
                false => self.sleep()?,
            };
            for tag in ready {
                match tag {
                    STOP => return Ok(()),
                    SERVICE => self.receive_messages()?,
                    CONTROL => {
                        if control.answer(|request| self.answer(request)) == Some(Request::Down) {
                            return Ok(());
                        }
                    }
                    DOORBELL => {
                        self.pairing.doorbell().drain();
                        doorbell_rule::take(&Mapped::new(self.pairing.page()));
                        self.progress_quiet(usize::MAX);
                    }
                    FABRIC => {}
                    NODES => {
                        if let Some(fabric) = &mut self.fabric {
                            fabric.tell_nodes(&mut self.pairing);
                        }
                    }
                    name => self.on_writable(name),
                }
                idle_ticks = 0;
            }
        }
    }

    /// Sleeps until something happens, unless something has happened that no doorbell tells.
    fn sleep(&mut self) -> Result<Vec<u64>, Errno> {
        doorbell_rule::announce(&Mapped::new(self.pairing.page()));
        let has_news = self.served.values().any(|entry| !entry.is_full && entry.connection.has_news())
            || self.fabric.as_mut().is_some_and(|fabric| !fabric.arm());
        let is_waiting = self.fabric.as_ref().is_some_and(Fabric::is_waiting);
        let timeout = match has_news {
            true => Some(Duration::ZERO),
            false if is_waiting => Some(LOOK_AGAIN),
            false => self.fabric.as_ref().and_then(Fabric::patience),
        };
        let (sleeps, asleep) = (timeout != Some(Duration::ZERO), clock::cycles());
        let ready = loop {
            let ready = self.poller.wait(timeout).map(<[u64]>::to_vec);
            let is_nothing = sleeps && ready.as_ref().is_ok_and(Vec::is_empty);
            // Nothing may have come but the signal of the watch.
            if !is_nothing || !self.interrupter.rest() {
                break ready;
            }
        };
        if sleeps {
            self.spin.woken_after(clock::cycles().wrapping_sub(asleep));
        }
        doorbell_rule::rise(&Mapped::new(self.pairing.page()));
        if has_news {
            self.progress_quiet(usize::MAX);
        }
        ready
    }

    /// Looks at connections with other machines until there is something or their time is up. Returns whether there was.
    fn spin(&mut self) -> bool {
        let budget = match &self.fabric {
            Some(fabric) if fabric.carries() => self.spin.budget_cycles(),
            _ => 0,
        };
        if budget == 0 {
            return false;
        }
        let start = clock::cycles();
        let mut looked = start;
        loop {
            // A program that wants this core gets it at once. It may be an end of these connections.
            std::thread::yield_now();
            if self.progress_fabric() {
                self.spin.paid();
                return true;
            }
            let now = clock::cycles();
            if now.wrapping_sub(looked) > budget / 2 {
                self.spin.abstain();
                return false;
            }
            if now.wrapping_sub(start) >= budget {
                self.spin.failed();
                return false;
            }
            looked = now;
        }
    }

    fn progress_fabric(&mut self) -> bool {
        self.fabric.as_mut().is_some_and(|fabric| fabric.progress(&mut self.pairing))
    }

    /// Looks at each connection that was busy lately.
    fn look_at_active(&mut self) -> bool {
        let mut names = std::mem::take(&mut self.active);
        let mut has_moved = false;
        names.retain(|name| match self.progress(*name) {
            None => false,
            Some(Progress::Idle) => self.stays_active(*name),
            Some(progress) => {
                has_moved |= progress == Progress::Moved;
                true
            }
        });
        names.append(&mut self.active);
        self.active = names;
        has_moved
    }

    /// Counts a look that found nothing. `false`: the connection is quiet from here on, or the program's again.
    fn stays_active(&mut self, name: u64) -> bool {
        let Some(entry) = self.served.get_mut(&name) else { return false };
        entry.idle += 1;
        entry.is_active = entry.idle < QUIET_LOOKS;
        if entry.is_active {
            return true;
        }
        if entry.has_little() {
            self.end_connection(name);
        } else {
            self.quiet.push(name);
        }
        false
    }

    /// Makes progress on at most `most` quiet connections, in turn. Those with bytes or an end become active.
    fn progress_quiet(&mut self, most: usize) -> bool {
        let mut has_moved = false;
        for _ in 0..most.min(self.quiet.len()) {
            if self.turn >= self.quiet.len() {
                self.turn = 0;
            }
            let Some(name) = self.quiet.get(self.turn).copied() else { break };
            let is_quiet = match self.progress(name) {
                None => false,
                Some(Progress::Idle) => true,
                Some(progress) => {
                    has_moved |= progress == Progress::Moved;
                    self.activate(name);
                    false
                }
            };
            if is_quiet {
                self.turn += 1;
            } else {
                self.quiet.swap_remove(self.turn);
            }
        }
        has_moved
    }

    fn activate(&mut self, name: u64) {
        if let Some(entry) = self.served.get_mut(&name) {
            entry.is_active = true;
            entry.idle = 0;
            self.active.push(name);
        }
    }

    /// Makes progress on one connection. Returns `None` if it is over.
    fn progress(&mut self, name: u64) -> Option<Progress> {
        let entry = self.served.get_mut(&name)?;
        if entry.is_full {
            return Some(Progress::Full);
        }
        let before = entry.connection.bytes();
        let progress = entry.connection.progress();
        self.counts.bytes += entry.connection.bytes() - before;
        match progress {
            Progress::Idle => {}
            Progress::Moved => entry.idle = 0,
            Progress::Full => {
                entry.is_full = self.poller.await_writable(&entry.connection, name).is_ok();
            }
            Progress::Over => {
                self.end_connection(name);
                return None;
            }
        }
        Some(progress)
    }

    /// The kernel takes bytes of this connection again, or has ended it. Of the end it tells the program, which takes its
    /// direction back.
    fn on_writable(&mut self, name: u64) {
        let Some(entry) = self.served.get_mut(&name) else { return };
        let is_watched = self.poller.pause(&entry.connection, name).is_ok();
        entry.is_full = false;
        if entry.connection.has_ended() || !is_watched {
            self.end_connection(name);
        } else {
            self.progress(name);
        }
    }

    fn receive_messages(&mut self) -> Result<(), EngineError> {
        for _ in 0..PACKETS_AT_ONCE {
            let Some(told) = self.pairing.receive().map_err(|_| EngineError::ServiceEnded)? else {
                return Ok(());
            };
            self.act(told);
        }
        Ok(())
    }

    fn act(&mut self, told: Told) {
        match told {
            Told::Take { name, link: link::FABRIC, is_required, socket } => {
                self.take_far(name, socket, is_required);
            }
            Told::Located => self.fabric.iter().for_each(|fabric| fabric.nodes().watch()),
            Told::Take { name, socket, .. } => self.take(name, socket),
            Told::Paired { name, program, doorbell, page, segment } => {
                let program = match self.programs.get(&program) {
                    Some(known) => Some(Rc::clone(known)),
                    None => {
                        let (own, interrupter) = (self.pairing.own_page(), Rc::clone(&self.interrupter));
                        Program::new(doorbell, &page, own, interrupter).ok().map(|new| {
                            let new = Rc::new(new);
                            self.programs.insert(program, Rc::clone(&new));
                            new
                        })
                    }
                };
                if let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.has(name)) {
                    return fabric.paired(name, program, &segment, &mut self.pairing);
                }
                let Some(asked) = self.asked.remove(&name) else { return };
                let connection = match program {
                    Some(program) => asked.paired(program, &segment),
                    None => Err(asked),
                };
                let connection = match connection {
                    Ok(connection) if self.poller.add_paused(&connection, name).is_ok() => Some(connection),
                    Ok(connection) => {
                        connection.release();
                        None
                    }
                    Err(asked) => {
                        asked.release();
                        None
                    }
                };
                match connection {
                    Some(connection) => {
                        self.served.insert(name, Entry::new(connection));
                        self.active.push(name);
                        self.counts.relayed += 1;
                        self.counts.relayed_ever += 1;
                    }
                    // The program's direction never leaves the kernel: nobody has prepared.
                    None => self.pairing.end(name, 0),
                }
            }
            Told::Refused { name } => {
                if let Some(fabric) = &mut self.fabric {
                    fabric.refused(name);
                }
                if let Some(asked) = self.asked.remove(&name) {
                    asked.release();
                }
            }
            Told::Gone { name } => {
                self.pairing.has_heard(name);
                if let Some(fabric) = &mut self.fabric {
                    fabric.gone(name, &mut self.pairing);
                    self.programs.retain(|_, program| Rc::strong_count(program) > 1);
                }
                if let Some(entry) = self.served.get_mut(&name) {
                    entry.connection.note_gone();
                    self.progress(name);
                }
            }
            Told::Accepted | Told::Occupied | Told::Nothing => {}
        }
    }

    /// The program's peer is on another machine, if its address says so.
    fn take_far(&mut self, name: u64, socket: OwnedFd, is_required: bool) {
        let refused = match &mut self.fabric {
            Some(fabric) if fabric.count() < CONNECTIONS_MAX => {
                fabric.offer(name, socket, is_required, &mut self.pairing)
            }
            _ => Err(socket),
        };
        if let Err(socket) = refused {
            deferred::close_socket(socket);
            self.pairing.refuse(name);
        }
    }

    fn take(&mut self, name: u64, socket: OwnedFd) {
        if self.served.len() + self.asked.len() >= CONNECTIONS_MAX {
            return self.refuse(name, socket);
        }
        match Asked::new(socket) {
            Ok((asked, head)) => {
                self.asked.insert(name, asked);
                self.pairing.offer(name, head);
            }
            Err((socket, _)) => self.refuse(name, socket),
        }
    }

    fn refuse(&mut self, name: u64, socket: OwnedFd) {
        self.counts.refused += 1;
        deferred::close_socket(socket);
        self.pairing.refuse(name);
    }

    fn end_connection(&mut self, name: u64) {
        let Some(entry) = self.served.remove(&name) else { return };
        self.poller.remove(&entry.connection);
        let bytes = entry.connection.bytes();
        entry.connection.release();
        self.counts.relayed -= 1;
        self.pairing.end(name, bytes);
        self.programs.retain(|_, program| Rc::strong_count(program) > 1);
    }

    fn answer(&self, request: Request) -> Counts {
        match request {
            Request::Status | Request::Down => {
                let Some(fabric) = &self.fabric else { return self.counts };
                let FabricCounts { carried_ever, bytes_sent, bytes_received, unmet } = fabric.counts();
                Counts {
                    is_far: true,
                    carried: fabric.carried() as u64,
                    streams: fabric.streams() as u64,
                    carried_ever,
                    bytes_sent,
                    bytes_received,
                    unmet,
                    ..self.counts
                }
            }
        }
    }

    /// Gives every direction back. Bytes that the kernel takes are sent before. Returns the connections of programs that have
    /// ended, and with them the bytes that the kernel has not taken.
    fn end(&mut self) -> Vec<Served> {
        let names: Vec<u64> = self.served.keys().copied().collect();
        let end = Instant::now() + LAST_WAIT;
        let mut has_moved = true;
        while has_moved && Instant::now() < end {
            has_moved = false;
            names.iter().for_each(|name| has_moved |= self.progress(*name) == Some(Progress::Moved));
        }
        self.asked.drain().for_each(|(_, asked)| asked.release());
        if let Some(fabric) = self.fabric.take() {
            fabric.stop(&mut self.pairing);
        }
        let connections = self.served.drain().map(|(_, entry)| entry.connection);
        let (left, others): (Vec<_>, Vec<_>) = connections.partition(Served::has_gone);
        left.iter().for_each(|connection| self.poller.remove(connection));
        others.into_iter().for_each(Served::release);
        self.pairing.leave();
        left
    }
}

/// Gives the kernel the last bytes of programs that have ended.
fn finish(mut left: Vec<Served>, interrupter: &Interrupter) {
    let Ok(mut poller) = Poller::new() else { return };
    let end = Instant::now() + FINISH_MAX;
    while !left.is_empty() && Instant::now() < end {
        let mut still = Vec::new();
        for mut connection in left {
            match connection.progress() {
                Progress::Over => connection.release(),
                Progress::Full if connection.has_ended() => connection.release(),
                Progress::Full | Progress::Idle | Progress::Moved => still.push(connection),
            }
        }
        left = still;
        // The poller tells of room. Whatever it does not tell is found by the next look.
        for connection in &left {
            let _ = poller.add_paused(connection, 0).and_then(|()| poller.await_writable(connection, 0));
        }
        interrupter.rest();
        let _ = poller.wait(Some(FINISH_LOOK));
        left.iter().for_each(|connection| poller.remove(connection));
    }
}
