//! The port: opening, polling, sending short messages, and closing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bywire_ring::doorbell::{self, DOORBELL_BYTES};
use bywire_ring::geometry::INLINE_BYTES;
use bywire_ring::memory::Shared;
use bywire_sys::fork::ForkGuard;
use bywire_sys::memory::Mapping;
use bywire_sys::poller::Poller;
use bywire_sys::{clock, process, wake};

use crate::address::{Address, PortName};
use crate::buffer::{Buffer, Payload};
use crate::connection::{Busy, Step};
use crate::error::{Gone, OpenError, SendError};
use crate::establish::{self, Strangers};
use crate::event::{Event, Message};
use crate::heap::Returns;
use crate::incoming::Short;
use crate::options::PortOptions;
use crate::peer::{Peer, PeerInfo, Priority};
use crate::resources::Resources;
use crate::runtime::{Claim, RuntimeDirectory};
use crate::slots::{Slot, Slots};
use crate::waiting::Spin;

/// Peers that are polled at every call; the others take turns.
const HOT_MAX: usize = 16;
/// High lanes are asked first, but the low ones every eighth time, so that a flood of high messages
/// cannot shut them out.
const HIGH_FIRST: [Priority; 2] = [Priority::High, Priority::Low];
const LOW_FIRST: [Priority; 2] = [Priority::Low, Priority::High];
/// Messages taken from one hot peer before another is asked first.
const TURN: u32 = 8;
/// Answers taken from each hot peer while messages keep coming.
const REPLIES: u32 = 8;
/// Quiet peers looked at by a poll that found nothing else: few, for that poll is what a waiting peer's
/// message waits for.
const SCAN: u32 = 1;

/// A protected message endpoint. It belongs to one thread at a time and may move between threads.
///
/// In a forked child an inherited port is inert: it polls nothing, every call that can fail says
/// `Forked`, and dropping it leaves the parent's port alone.
pub struct Port {
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) options: PortOptions,
    pub(crate) directory: RuntimeDirectory,
    pub(crate) claim: Claim,
    pub(crate) node: String,
    pub(crate) incarnation: u64,
    pub(crate) slots: Slots,
    pub(crate) resources: Resources,
    pub(crate) strangers: Strangers,
    pub(crate) poller: Poller,
    pub(crate) bell: wake::Bell,
    /// Our own page, which every peer may read: it says whether we sleep.
    pub(crate) page: Shared,
    pub(crate) page_file: OwnedFd,
    pub(crate) sleeper: doorbell::Sleeper,
    /// The program may be waiting on the descriptor: the next poll looks at what woke it.
    pub(crate) is_armed: bool,
    pub(crate) spin: Spin,
    hot: Vec<Hot>,
    /// Which hot peer is asked first, so that none is always last.
    turn: usize,
    messages_in_turn: u32,
    /// The next quiet peer to look at.
    scan_next: u32,
    /// Connections with something to push or to confirm.
    pub(crate) busy: Vec<u32>,
    pub(crate) polls: u32,
    /// The last poll moved something although it reported nothing.
    pub(crate) progressed: bool,
    pub(crate) housekeeping_due: u64,
    /// The option `look_around`.
    housekeeping_cycles: u64,
    pub(crate) next_transfer: u64,
    pub(crate) statistics: Statistics,
}

struct Hot {
    index: u32,
    /// Brought something since the last ageing.
    is_fresh: bool,
}

/// Counters of a port, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Datagrams that found no room and were dropped at this end.
    pub datagrams_unsent: u64,
    /// Datagrams that arrived damaged and were dropped.
    pub datagrams_damaged: u64,
    /// Connections of strangers that were turned away.
    pub refused: u64,
    /// Times that the port slept.
    pub sleeps: u64,
}

impl Port {
    /// Opens a port on this node.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: PortOptions) -> Result<Self, OpenError> {
        check(&options)?;
        let directory = RuntimeDirectory::open(options.runtime_directory.as_deref())?;
        let system = OpenError::System;
        let (page, page_file) = Mapping::create("bywire-port", DOORBELL_BYTES).map_err(system)?;
        let (bell, alarm) = (wake::Bell::new().map_err(system)?, wake::Alarm::new().map_err(system)?);
        let poller = Poller::new().map_err(system)?;
        poller.add(&bell, establish::Tag::Bell.bits()).map_err(system)?;
        poller.add(&alarm, establish::Tag::Alarm.bits()).map_err(system)?;
        let guard = Arc::new(ForkGuard::new().map_err(system)?);
        let resources = Resources::new(&options, Returns::new(alarm), guard.clone());
        let strangers = Strangers::new().map_err(system)?;
        poller.add(strangers.timer(), establish::Tag::Timer.bits()).map_err(system)?;
        let mut random = [0; 8];
        process::random(&mut random).map_err(system)?;
        // The name last: nothing that fails before leaves one behind.
        let claim = directory.claim(options.name.as_ref(), options.admit)?;
        if let Err(error) = poller.add(&claim.listener, establish::Tag::Listener.bits()) {
            claim.release();
            return Err(system(error));
        }
        Ok(Self {
            guard,
            node: process::host_name(),
            incarnation: u64::from_ne_bytes(random),
            slots: Slots::default(),
            resources,
            strangers,
            poller,
            bell,
            page: Shared::new(page),
            page_file,
            sleeper: doorbell::Sleeper::default(),
            is_armed: false,
            spin: Spin::new(options.spin),
            hot: Vec::with_capacity(HOT_MAX),
            turn: 0,
            messages_in_turn: 0,
            scan_next: 0,
            busy: Vec::new(),
            polls: 0,
            progressed: false,
            housekeeping_due: 0,
            housekeeping_cycles: clock::cycles_in(options.look_around),
            next_transfer: 1,
            statistics: Statistics::default(),
            directory,
            options,
            claim,
        })
    }

    /// What this port is called.
    pub fn name(&self) -> &PortName {
        &self.claim.name
    }

    /// Where peers on this node find it.
    pub fn address(&self) -> Address {
        Address { node: self.node.clone(), port: self.claim.name.clone() }
    }

    /// Who a peer is; `None` while it connects, and once its [`Event::Disconnected`] has been taken.
    pub fn peer_info(&self, peer: Peer) -> Option<&PeerInfo> {
        self.slots.info(peer)
    }

    /// The connected peers.
    pub fn peers(&self) -> impl Iterator<Item = Peer> + '_ {
        self.slots
            .indices()
            .filter_map(|index| self.slots.peer_at(index))
            .filter(|peer| self.peer_info(*peer).is_some())
    }

    /// The port's counters.
    pub fn statistics(&self) -> Statistics {
        Statistics { datagrams_damaged: self.resources.datagrams_dropped, ..self.statistics }
    }

    /// The options that the port was opened with.
    pub fn options(&self) -> &PortOptions {
        &self.options
    }

    /// Copies a message of up to one fragment ([`crate::FRAGMENT_BYTES`] by default) to a peer, at once.
    /// It needs no token and no completion. Longer ones go by [`Self::send_buffer`].
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent then. [`SendError::Full`] is back-pressure: poll and try again.
    #[inline(always)]
    pub fn send(&mut self, peer: Peer, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        let connection = self.slots.connection(peer)?;
        if bytes.len() > INLINE_BYTES {
            let max = (connection.fragment_bytes as u64).min(connection.info.message_bytes_max);
            if bytes.len() as u64 > max {
                return Err(SendError::TooLong { max });
            }
        } else if bytes.len() as u64 > connection.info.message_bytes_max {
            return Err(SendError::TooLong { max: connection.info.message_bytes_max });
        }
        let result = connection.send_now(priority, bytes);
        if result == Err(SendError::Full) {
            self.keep_busy(peer.index);
            self.stir();
        }
        result
    }

    /// Sends a datagram of up to one fragment: at most once, in no order, never blocking anyone. Returns
    /// `false` when it was dropped for want of room (and counted).
    ///
    /// # Errors
    /// [`SendError`], never [`SendError::Full`].
    pub fn send_datagram(&mut self, peer: Peer, priority: Priority, bytes: &[u8]) -> Result<bool, SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        let connection = self.slots.connection(peer)?;
        let max = (connection.fragment_bytes as u64).min(connection.info.message_bytes_max);
        if bytes.len() as u64 > max {
            return Err(SendError::TooLong { max });
        }
        let sent = connection.send_datagram(priority, bytes).map_err(SendError::Disconnected)?;
        self.statistics.datagrams_unsent += u64::from(!sent);
        Ok(sent)
    }

    /// Asks for [`Event::Room`] as soon as a whole fragment fits into the lane towards a peer: for whoever keeps a
    /// datagram that was dropped for want of room, and tries again. The event comes once.
    ///
    /// # Errors
    /// [`SendError`], never [`SendError::Full`].
    pub fn await_room(&mut self, peer: Peer, priority: Priority) -> Result<(), SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        self.slots.connection(peer)?.starved[priority as usize] = true;
        self.keep_busy(peer.index);
        self.stir();
        Ok(())
    }

    /// Posts memory to receive one long message of this priority into. A message takes the smallest
    /// buffer that it fits; messages of one fragment need none. Where foreign users are admitted, post several:
    /// each of them fills at most one in eight at a time, but always one.
    ///
    /// # Errors
    /// The buffer itself when the port's receive tokens of this priority are all out.
    pub fn post_receive(&mut self, priority: Priority, buffer: impl Into<Buffer>) -> Result<(), Buffer> {
        let buffer = buffer.into();
        if self.resources.posted(priority) >= self.options.receive_tokens as usize {
            return Err(buffer);
        }
        self.resources.post(priority, buffer);
        self.stir();
        Ok(())
    }

    /// Takes back the memory of a payload that the program is done with, for messages to come.
    #[inline]
    pub fn recycle(&mut self, payload: Payload) {
        if let Some(buffer) = payload.into_buffer() {
            self.resources.keep(buffer.into_vec());
        }
    }

    /// Takes the next event, if there is one. Never waits, and makes no system call but once in about a
    /// millisecond to look after sockets and peers that died.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Event> {
        if !self.guard.is_owner() {
            return None;
        }
        // The shorter most polls are, the sooner a hot peer's message is seen.
        self.poll_with_quiet(8)
    }

    /// Polls the hot peers, then whatever else there is; quiet ones at every so many polls.
    #[inline(always)]
    pub(crate) fn poll_with_quiet(&mut self, every: u32) -> Option<Event> {
        if let Some(event) = self.attend_when_due() {
            return Some(event);
        }
        if let Some(event) = self.poll_hot() {
            return Some(event);
        }
        self.look_further(self.polls.is_multiple_of(every))
    }

    /// Begins a poll with what is seldom due: one branch for all of it.
    #[inline(always)]
    pub(crate) fn attend_when_due(&mut self) -> Option<Event> {
        self.progressed = false;
        self.polls = self.polls.wrapping_add(1);
        let is_due = self.polls.is_multiple_of(64)
            | self.is_armed
            | !self.busy.is_empty()
            | !self.resources.events.is_empty()
            | self.resources.returns.is_any();
        if is_due { self.attend() } else { None }
    }

    /// Takes what the hot peers have published: they are asked in turn, each one's high lane first as a rule.
    #[inline(always)]
    pub(crate) fn poll_hot(&mut self) -> Option<Event> {
        let order = if self.polls.is_multiple_of(8) { LOW_FIRST } else { HIGH_FIRST };
        let mut place = self.turn;
        for _ in 0..self.hot.len() {
            if place >= self.hot.len() {
                place = 0;
            }
            for priority in order {
                let Some(hot) = self.hot.get_mut(place) else { break };
                let Some(connection) = self.slots.connection_at(hot.index) else { break };
                match connection.receive_short(priority) {
                    Short::Nothing => {}
                    Short::Message { words, length } => {
                        let peer = connection.peer;
                        hot.is_fresh = true;
                        self.turn = place;
                        self.messages_in_turn += 1;
                        if self.messages_in_turn == TURN {
                            self.next_turn();
                        }
                        let payload = Payload::inline(words, length);
                        return Some(Event::Message(Message { peer, priority, payload }));
                    }
                    Short::Other => {
                        let event = self.receive_other(place, priority);
                        if event.is_some() {
                            return event;
                        }
                    }
                }
            }
            place += 1;
        }
        None
    }

    /// What is under way besides the hot rings.
    #[inline(never)]
    fn attend(&mut self) -> Option<Event> {
        if self.is_armed {
            self.come_back();
        }
        if self.polls.is_multiple_of(64) {
            // However busy the hot lanes are: answers, and every quiet peer once in 256 rounds.
            (0..REPLIES).for_each(|_| self.poll_replies());
            self.scan_quiet(self.slots.indices().end / 256 + 1);
            self.age();
        }
        let returns = self.resources.returns.take();
        if !returns.is_empty() {
            self.give_back(returns);
        }
        if !self.busy.is_empty() {
            self.advance_busy();
        }
        self.next_event()
    }

    /// The next event that waits; with a peer's end it is forgotten who that was.
    fn next_event(&mut self) -> Option<Event> {
        let event = self.resources.next_event()?;
        if let Event::Disconnected { peer, .. } = event {
            self.slots.forget(peer);
        }
        Some(event)
    }

    /// Another hot peer is asked first from now on.
    fn next_turn(&mut self) {
        self.messages_in_turn = 0;
        self.turn = if self.turn + 1 < self.hot.len() { self.turn + 1 } else { 0 };
    }

    /// Takes one record that is no short message off a hot peer's lane.
    #[inline(never)]
    fn receive_other(&mut self, place: usize, priority: Priority) -> Option<Event> {
        let hot = &mut self.hot[place];
        let index = hot.index;
        let connection = self.slots.connection_at(index)?;
        let step = connection.receive(priority, &mut self.resources);
        let owes_answers = !connection.replies.is_empty();
        hot.is_fresh |= !matches!(step, Ok(Step::Nothing));
        if owes_answers {
            self.keep_busy(index);
        }
        match step {
            Ok(Step::Nothing) => None,
            Ok(Step::Progress) => {
                self.progressed = true;
                None
            }
            Ok(Step::Event(event)) => {
                self.next_turn();
                Some(event)
            }
            Err(reason) => self.break_off(index, priority, reason),
        }
    }

    /// No hot peer had a message: answers have their turn, and at times quiet peers and sockets.
    #[inline(never)]
    fn look_further(&mut self, with_quiet: bool) -> Option<Event> {
        self.poll_replies();
        if with_quiet && !self.progressed {
            self.scan_quiet(SCAN);
            self.keep_house();
        }
        self.next_event()
    }

    #[inline(always)]
    fn poll_replies(&mut self) {
        let mut place = 0;
        while let Some(hot) = self.hot.get_mut(place) {
            let index = hot.index;
            place += 1;
            let Some(connection) = self.slots.connection_at(index) else { continue };
            if !connection.expects_replies() {
                continue;
            }
            match connection.receive_reply(&mut self.resources) {
                Ok(Step::Nothing) => {}
                Ok(_) => {
                    hot.is_fresh = true;
                    self.progressed = true;
                }
                Err(reason) => {
                    // Its place goes to the next one.
                    self.end(index, reason);
                    place -= 1;
                }
            }
        }
    }

    /// A lane broke; unless all it lacks is memory that waits in the socket.
    #[cold]
    fn break_off(&mut self, index: u32, priority: Priority, reason: Gone) -> Option<Event> {
        let awaits_memory =
            self.slots.connection_at(index).is_some_and(|connection| connection.awaits_memory(priority));
        if awaits_memory {
            // It waits there while the program has too much to take already.
            if self.resources.is_full() {
                return self.next_event();
            }
            self.read_whole_socket(index);
            if self.slots.connection_at(index).is_some_and(|connection| !connection.awaits_memory(priority)) {
                self.progressed = true;
                return self.next_event();
            }
        }
        self.end(index, reason);
        self.next_event()
    }

    /// Looks at a few quiet peers and warms those that have something.
    #[inline(always)]
    fn scan_quiet(&mut self, count: u32) {
        let range = self.slots.indices();
        if range.len() <= self.hot.len() {
            return;
        }
        for _ in 0..count.min(range.end) {
            self.scan_next = if self.scan_next + 1 < range.end { self.scan_next + 1 } else { 0 };
            let resources = &self.resources;
            let has_input = |slots: &mut Slots, index| {
                slots.connection_at(index).is_some_and(|connection| connection.has_input(resources))
            };
            if has_input(&mut self.slots, self.scan_next) {
                self.warm(self.scan_next);
                self.progressed = true;
            }
        }
    }

    /// Polls a peer at every call from now on; the stalest hot one makes room.
    pub(crate) fn warm(&mut self, index: u32) {
        if self.hot.iter().any(|hot| hot.index == index) {
            return;
        }
        if self.hot.len() == HOT_MAX {
            let stalest = self.hot.iter().position(|hot| !hot.is_fresh).unwrap_or(0);
            self.hot.remove(stalest);
            self.turn = 0;
        }
        self.hot.push(Hot { index, is_fresh: true });
    }

    pub(crate) fn cool(&mut self, index: u32) {
        self.turn = 0;
        self.hot.retain(|hot| hot.index != index);
        self.busy.retain(|busy| *busy != index);
    }

    /// Hot peers age, and sockets are looked after however busy the rings are.
    #[cold]
    fn age(&mut self) {
        if self.polls.is_multiple_of(64 * 256) {
            self.hot.retain_mut(|hot| std::mem::take(&mut hot.is_fresh));
            self.turn = 0;
        }
        self.keep_house();
    }

    /// Looks after sockets about every millisecond.
    #[inline(always)]
    fn keep_house(&mut self) {
        let now = clock::cycles();
        // Wrapping: a counter that went backwards (another core) looks late, which is harmless.
        if now.wrapping_sub(self.housekeeping_due) < 1 << 63 {
            self.housekeeping_due = now + self.housekeeping_cycles;
            let _ = self.look_after_sockets(Some(Duration::ZERO));
        }
    }

    /// Notes that a connection has something to push.
    #[inline(always)]
    pub(crate) fn keep_busy(&mut self, index: u32) {
        let has_work = self.slots.connection_at(index).is_some_and(|connection| connection.has_work());
        if has_work && !self.busy.contains(&index) {
            self.busy.push(index);
        }
    }

    #[cold]
    fn give_back(&mut self, returns: Vec<crate::heap::Return>) {
        for entry in returns {
            if let Ok(connection) = self.slots.connection(entry.peer) {
                connection.give_back(entry);
                self.keep_busy(entry.peer.index);
            }
        }
    }

    #[inline(never)]
    fn advance_busy(&mut self) {
        let mut place = 0;
        while place < self.busy.len() {
            let index = self.busy[place];
            let Some(connection) = self.slots.connection_at(index) else {
                self.busy.swap_remove(place);
                continue;
            };
            match connection.advance(&mut self.resources) {
                Ok(moved) => {
                    self.progressed |= moved;
                    // An answer is awaited from now on; or something urgent, for which a copy has paused.
                    if connection.expects_replies() && moved || connection.has_input(&self.resources) {
                        self.warm(index);
                    }
                    let has_work =
                        self.slots.connection_at(index).is_some_and(|connection| connection.has_work());
                    if has_work {
                        place += 1;
                    } else {
                        self.busy.swap_remove(place);
                    }
                }
                // `end` takes it off the list.
                Err(reason) => self.end(index, reason),
            }
        }
    }

    /// Takes everything that a peer sent and answered before it ended, then ends the connection.
    pub(crate) fn drain_and_end(&mut self, index: u32, reason: Gone) {
        if let Some(connection) = self.slots.connection_at(index) {
            connection.begin_draining();
        }
        // Bounded: each turn takes a record or a step of one, and of each lane as many as it can hold.
        while let Some(connection) = self.slots.connection_at(index) {
            let resources = &mut self.resources;
            let step = match connection.receive(Priority::High, resources) {
                Ok(Step::Nothing) => match connection.receive(Priority::Low, resources) {
                    Ok(Step::Nothing) => connection.receive_reply(resources),
                    other => other,
                },
                other => other,
            };
            match step {
                Ok(Step::Nothing) | Err(_) => break,
                Ok(Step::Progress) => {}
                Ok(Step::Event(event)) => resources.put_by(event),
            }
        }
        if let Some(connection) = self.slots.connection_at(index) {
            // A broken ring confirms nothing more.
            let _ = connection.confirm_all_delivered(&mut self.resources);
        }
        self.end(index, reason);
    }

    /// Ends a connection: what was under way fails, and its memory comes back as events.
    pub(crate) fn end(&mut self, index: u32, reason: Gone) {
        let Some(peer) = self.slots.peer_at(index) else { return };
        self.cool(index);
        match self.slots.remove(peer, reason) {
            Some(Slot::Connected(mut connection)) => {
                // Ended for both sides, even while a forked child holds a copy of the descriptor.
                connection.socket.shut_down();
                self.poller.remove(&connection.socket);
                if let Some(process) = &connection.process {
                    self.poller.remove(process);
                }
                connection.give_up(reason, &mut self.resources);
                self.resources.busy_peers_left +=
                    u32::from(matches!(connection.busy, Busy::Offered(_) | Busy::Yes));
                self.resources.events.push_back(Event::Disconnected { peer, reason });
                self.slots.remember(peer, connection.info);
            }
            Some(Slot::Connecting(connecting)) => {
                self.poller.remove(&connecting.socket);
                if connecting.announce {
                    self.resources.events.push_back(Event::Disconnected { peer, reason });
                }
            }
            _ => {}
        }
    }

    /// Ends a connection. What the peer has sent already is dropped; it sees [`Gone::Closed`].
    pub fn disconnect(&mut self, peer: Peer) {
        if !self.guard.is_owner() {
            return;
        }
        if let Ok(connection) = self.slots.connection(peer) {
            connection.take_leave(&mut self.resources);
        }
        if self.slots.peek(peer).is_some() {
            self.end(peer.index, Gone::Here);
            self.stir();
        }
    }
}

impl AsFd for Port {
    /// Readable after [`Port::arm`] as soon as there may be an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.guard.is_owner() {
            return;
        }
        // The name first, then the listener: whoever finds a name finds somebody listening.
        self.claim.release();
        for index in self.slots.indices() {
            if let Some(connection) = self.slots.connection_at(index) {
                connection.take_leave(&mut self.resources);
                connection.socket.shut_down();
            }
        }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Port")
            .field("name", &self.claim.name)
            .field("peers", &self.slots.len())
            .finish()
    }
}

fn check(options: &PortOptions) -> Result<(), OpenError> {
    let bad = |what: &str| Err(OpenError::BadOption(what.to_owned()));
    if options.geometry.check().is_err() {
        return bad(
            "geometry: slots are a power of two from 8 to 8192, bulk_bytes one from 4 KiB to 8 MiB that holds four fragments, and fragments 512 to 65472 bytes in steps of 64",
        );
    }
    if !(1..=256).contains(&options.send_tokens) {
        return bad("send_tokens is 1 to 256");
    }
    if options.message_bytes_max > 1 << 40 {
        return bad("message_bytes_max is at most 2^40");
    }
    if let Some(PortName::Name(name)) = &options.name {
        // A name made by hand may be none.
        name.parse::<PortName>().map_err(|error| OpenError::BadOption(error.to_string()))?;
    }
    Ok(())
}
