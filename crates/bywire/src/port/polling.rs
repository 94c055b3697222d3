//! Polling: taking records that peers have sent, moving transfers on, and ending connections.

use std::time::Duration;

use bywire_sys::clock;

use super::Port;
use super::slots::{Slot, Slots};
use crate::message::buffer::Payload;
use crate::message::error::DisconnectReason;
use crate::message::event::{Event, Message, Polled, ShortMessage, Words};
use crate::message::lend::Return;
use crate::message::peer::{Peer, Priority};
use crate::message::transfers::{Short, Step};

/// High lanes are asked first, but low lanes at every eighth poll, so that a flood of high messages cannot shut them
/// out.
const HIGH_FIRST: [Priority; 2] = [Priority::High, Priority::Low];
const LOW_FIRST: [Priority; 2] = [Priority::Low, Priority::High];
/// Answers taken from each hot peer while messages keep coming.
const REPLIES: u32 = 8;
/// Quiet peers that a poll looks at when it has found nothing else. Few, because the message of a waiting peer waits
/// for that poll to end.
const SCAN: u32 = 1;

impl Port {
    /// Takes the next event, if there is one. Never waits. Makes no system call, except about once in a millisecond
    /// to check sockets and to notice dead peers.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Event> {
        if !self.guard.is_owner() {
            return None;
        }
        // The shorter most polls are, the sooner a hot peer's message is seen.
        self.poll_with_quiet(8)
    }

    /// Takes the next event that has arrived already. Looks neither at sockets nor at quiet peers, and makes no system call. This is
    /// for a program that takes several events at a time: the last poll, which finds nothing, is then a short one. [`Self::poll`]
    /// has to be called as well.
    #[inline(always)]
    pub fn poll_arrived(&mut self) -> Option<Event> {
        if !self.guard.is_owner() {
            return None;
        }
        if !self.resources.events.is_empty() {
            return self.next_event();
        }
        let event = self.poll_hot(event_of, |event| event);
        if event.is_some() || self.fabric.is_none() { event } else { self.take_remote() }
    }

    /// The same as [`Self::poll`] for a program that takes short messages as they are. An event for each would cost it more than
    /// the rest.
    #[inline(always)]
    pub fn poll_short(&mut self) -> Polled {
        if !self.guard.is_owner() {
            return Polled::Nothing;
        }
        if let Some(event) = self.attend_when_due() {
            return Polled::Event(event);
        }
        if let Some(polled) = self.poll_hot(polled_of, Polled::Event) {
            return polled;
        }
        self.look_when_due(8).map_or(Polled::Nothing, Polled::Event)
    }

    /// The same as [`Self::poll_arrived`] for such a program.
    #[inline(always)]
    pub fn poll_short_arrived(&mut self) -> Polled {
        if !self.guard.is_owner() {
            return Polled::Nothing;
        }
        if self.resources.events.is_empty() {
            if let Some(polled) = self.poll_hot(polled_of, Polled::Event) {
                return polled;
            }
            if self.fabric.is_none() {
                return Polled::Nothing;
            }
        }
        self.poll_arrived().map_or(Polled::Nothing, Polled::Event)
    }

    /// Has the last [`Self::poll`] moved something on without an event, such as a part of a long message? A program that goes to
    /// sleep when its polls find nothing counts such a poll as one that has found something.
    pub fn has_progressed(&self) -> bool {
        self.progressed && self.guard.is_owner()
    }

    /// Polls the hot peers, then everything else. Quiet peers have their turn at every `every`th poll.
    #[inline(always)]
    pub(super) fn poll_with_quiet(&mut self, every: u32) -> Option<Event> {
        if let Some(event) = self.attend_when_due() {
            return Some(event);
        }
        if let Some(event) = self.poll_hot(event_of, |event| event) {
            return Some(event);
        }
        self.look_when_due(every)
    }

    /// No hot peer had a message. Looks at what else there is, if it is due.
    #[inline(always)]
    fn look_when_due(&mut self, every: u32) -> Option<Event> {
        let with_quiet = self.polls.is_multiple_of(every);
        let has_more =
            with_quiet | self.expects_replies | self.fabric.is_some() | !self.resources.events.is_empty();
        if has_more { self.look_further(with_quiet) } else { None }
    }

    /// Begins a poll with checks that are seldom due, behind one branch for all of them.
    #[inline(always)]
    pub(super) fn attend_when_due(&mut self) -> Option<Event> {
        self.progressed = false;
        self.polls = self.polls.wrapping_add(1);
        let is_due = self.polls.is_multiple_of(64)
            | self.is_armed
            | !self.pending.is_empty()
            | !self.resources.events.is_empty()
            | self.returns.is_any();
        if is_due { self.attend() } else { None }
    }

    /// Takes a message that a hot peer has published. The peers are asked in turn, as a rule with the high lane of
    /// each first.
    #[inline(always)]
    pub(super) fn poll_hot<T>(
        &mut self,
        short: impl Fn(Peer, Priority, Words, u16) -> T,
        other: impl Fn(Event) -> T,
    ) -> Option<T> {
        let order = if self.polls.is_multiple_of(8) { LOW_FIRST } else { HIGH_FIRST };
        let mut place = self.hot.first();
        self.expects_replies = false;
        for _ in 0..self.hot.len() {
            if place >= self.hot.len() {
                place = 0;
            }
            for priority in order {
                let Some(index) = self.hot.index(place) else { break };
                let Some(connection) = self.slots.ring_at(index) else { break };
                match connection.receive_short(priority) {
                    Short::Nothing => self.expects_replies |= connection.expects_replies(),
                    Short::Message { words, length } => {
                        let peer = connection.peer;
                        self.hot.message_from(place);
                        return Some(short(peer, priority, words, length));
                    }
                    Short::Other => {
                        let event = self.receive_other(place, priority);
                        if event.is_some() {
                            return event.map(other);
                        }
                        self.expects_replies = true;
                    }
                }
            }
            place += 1;
        }
        None
    }

    /// Attends to everything under way besides the hot rings.
    #[inline(never)]
    fn attend(&mut self) -> Option<Event> {
        if self.is_armed {
            self.handle_readiness();
        }
        if self.polls.is_multiple_of(64) {
            // However busy the hot lanes are: answers, and every quiet peer once in 256 rounds.
            (0..REPLIES).for_each(|_| self.poll_replies());
            self.scan_quiet(self.slots.indices().end / 256 + 1);
            self.age();
        }
        let returns = self.returns.take();
        if !returns.is_empty() {
            self.give_back(returns);
        }
        if !self.pending.is_empty() {
            self.advance_pending();
        }
        let event = self.next_event();
        // However busy the rings are.
        if event.is_none() && self.fabric.is_some() { self.poll_remote() } else { event }
    }

    /// The next event that waits. A peer's information is forgotten with its end.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let event = self.resources.next_event()?;
        if let Event::Disconnected { peer, .. } = event {
            self.slots.forget(peer);
        }
        Some(event)
    }

    /// Takes one record off a hot peer's lane that is not a short message, or that follows answers.
    #[inline(never)]
    fn receive_other(&mut self, place: usize, priority: Priority) -> Option<Event> {
        let index = self.hot.index(place)?;
        let connection = self.slots.ring_at(index)?;
        // What the peer answered before it sent this comes first.
        match connection.receive_short_replies(&mut self.resources) {
            Ok(any) => self.progressed |= any,
            Err(reason) => {
                self.end(index, reason);
                return self.next_event();
            }
        }
        let step = connection.receive(priority, &mut self.resources);
        if let Ok(Step::Event(_)) = &step {
            // Before what the program sends when it has seen the event. A later poll finds out if the lane is broken.
            let _ = connection.answer_shortly(&mut self.resources);
        }
        let owes_answers = connection.transfers.owes_replies();
        if !matches!(step, Ok(Step::Nothing)) {
            self.hot.refresh(place);
        }
        if owes_answers {
            self.mark_pending(index);
        }
        match step {
            Ok(Step::Nothing) => {}
            Ok(Step::Progress) => self.progressed = true,
            Ok(Step::Event(event)) if self.resources.events.is_empty() => {
                self.hot.next_turn();
                return Some(event);
            }
            Ok(Step::Event(event)) => self.resources.put_by(event),
            Err(reason) => return self.fail_lane(index, priority, reason),
        }
        let event = self.next_event()?;
        self.hot.next_turn();
        Some(event)
    }

    /// No hot peer had a message: answers have their turn, and at times quiet peers and sockets.
    #[inline(never)]
    fn look_further(&mut self, with_quiet: bool) -> Option<Event> {
        self.poll_replies();
        if self.fabric.is_some() {
            // An event is long, so it is made here.
            if let Some((peer, priority, payload)) = self.take_short_remote() {
                return Some(Event::Message(Message { peer, priority, payload }));
            }
            if let Some(event) = self.poll_remote() {
                return Some(event);
            }
        }
        if with_quiet && !self.progressed {
            self.scan_quiet(SCAN);
            self.do_housekeeping();
        }
        self.next_event()
    }

    #[inline(always)]
    fn poll_replies(&mut self) {
        let mut place = 0;
        while let Some(index) = self.hot.index(place) {
            place += 1;
            let Some(connection) = self.slots.ring_at(index) else { continue };
            if !connection.expects_replies() {
                continue;
            }
            match connection.receive_reply(&mut self.resources) {
                Ok(Step::Nothing) => {}
                Ok(_) => {
                    self.hot.refresh(place - 1);
                    self.progressed = true;
                }
                Err(reason) => {
                    // The next peer moves to its place.
                    self.end(index, reason);
                    place -= 1;
                }
            }
        }
    }

    /// Ends a connection whose lane broke, unless the lane only lacks memory that waits in the socket.
    #[cold]
    fn fail_lane(&mut self, index: u32, priority: Priority, reason: DisconnectReason) -> Option<Event> {
        let awaits_memory =
            self.slots.ring_at(index).is_some_and(|connection| connection.awaits_memory(priority));
        if awaits_memory {
            // The memory waits there while too many events wait for the program.
            if self.resources.is_full() {
                return self.next_event();
            }
            self.read_whole_socket(index);
            if self.slots.ring_at(index).is_some_and(|connection| !connection.awaits_memory(priority)) {
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
                slots.ring_at(index).is_some_and(|connection| connection.has_input(resources))
            };
            if has_input(&mut self.slots, self.scan_next) {
                self.warm(self.scan_next);
                self.progressed = true;
            }
        }
    }

    /// Polls a peer at every call from now on.
    pub(super) fn warm(&mut self, index: u32) {
        self.hot.warm(index);
    }

    /// Ages the hot peers, and checks sockets however busy the rings are.
    #[cold]
    fn age(&mut self) {
        if self.polls.is_multiple_of(64 * 256) {
            self.hot.age();
        }
        self.do_housekeeping();
    }

    /// Checks sockets about every millisecond.
    #[inline(always)]
    fn do_housekeeping(&mut self) {
        let now = clock::cycles();
        // Wrapping: a counter that went backwards (on another core) looks late, which is harmless.
        if now.wrapping_sub(self.housekeeping_due) < 1 << 63 {
            self.housekeeping_due = now + self.housekeeping_cycles;
            let _ = self.look_after_sockets(Some(Duration::ZERO));
        }
    }

    /// Notes that a connection has something to push.
    #[inline(always)]
    pub(super) fn mark_pending(&mut self, index: u32) {
        let has_work = self.slots.ring_at(index).is_some_and(|connection| connection.has_work());
        if has_work && !self.pending.contains(&index) {
            self.pending.push(index);
        }
    }

    #[cold]
    fn give_back(&mut self, returns: Vec<Return>) {
        for entry in returns {
            if let Some(connection) = self.slots.ring(entry.peer) {
                connection.give_back(entry);
                self.mark_pending(entry.peer.index);
            }
        }
    }

    #[inline(never)]
    fn advance_pending(&mut self) {
        let mut place = 0;
        while place < self.pending.len() {
            let index = self.pending[place];
            let Some(connection) = self.slots.ring_at(index) else {
                self.pending.swap_remove(place);
                continue;
            };
            if self.large_windows_left > 0 && connection.wants_large_window() {
                let offered =
                    connection.offer_large_window(&mut self.account, self.options.large_window_peers_max);
                self.large_windows_left -= u32::from(offered);
            }
            match connection.advance(&mut self.resources) {
                Ok(moved) => {
                    self.progressed |= moved;
                    // The peer owes an answer from now on, or a copy has paused for something urgent.
                    if connection.expects_replies() && moved || connection.has_input(&self.resources) {
                        self.warm(index);
                    }
                    let has_work = self.slots.ring_at(index).is_some_and(|connection| connection.has_work());
                    if has_work {
                        place += 1;
                    } else {
                        self.pending.swap_remove(place);
                    }
                }
                // `end` takes it off the list.
                Err(reason) => self.end(index, reason),
            }
        }
    }

    /// Takes everything that a peer of this machine sent and answered before its end, then ends the connection.
    pub(super) fn drain_and_end(&mut self, index: u32, reason: DisconnectReason) {
        if let Some(mut link) = self.slots.state_at(index).and_then(Slot::link) {
            let _ = link.drain(&mut self.resources);
        }
        self.end(index, reason);
    }

    /// Ends a connection: transfers under way fail, and their memory comes back in events.
    pub(super) fn end(&mut self, index: u32, reason: DisconnectReason) {
        let Some(peer) = self.slots.peer_at(index) else { return };
        self.hot.cool(index);
        self.pending.retain(|pending| *pending != index);
        match self.slots.remove(peer, reason) {
            Some(Slot::Wire(remote)) => self.end_remote(peer, remote, reason),
            Some(Slot::Leaving(leaving)) => self.end_remote(peer, leaving.remote, reason),
            Some(Slot::Calling(call)) => self.end_call(peer, *call, reason),
            Some(Slot::Ring(mut connection)) => {
                // This ends the connection for both sides, even while a forked child holds a copy of the descriptor.
                connection.socket().shut_down();
                self.poller.remove(connection.socket());
                if let Some(process) = &connection.process {
                    self.poller.remove(process);
                }
                connection.give_up(reason, &mut self.resources);
                self.large_windows_left += u32::from(connection.has_large_window());
                self.resources.events.push_back(Event::Disconnected { peer, reason });
                self.slots.remember(peer, connection.info);
            }
            Some(Slot::Connecting(connecting)) => {
                self.poller.remove(&connecting.socket);
                if connecting.announce {
                    self.resources.events.push_back(Event::Disconnected { peer, reason });
                }
            }
            Some(Slot::Free { .. }) | None => {}
        }
    }

    /// Ends a connection. Messages that the peer has sent already are dropped. The peer sees
    /// [`DisconnectReason::Closed`].
    ///
    /// Messages to a peer on another machine are still delivered, for at most [`crate::PortOptions::linger`], during later
    /// calls. [`Event::Disconnected`] follows after their completions.
    pub fn disconnect(&mut self, peer: Peer) {
        if !self.guard.is_owner() {
            return;
        }
        if matches!(self.slots.peek(peer), Some(Slot::Wire(_))) {
            self.leave(peer);
            return self.signal_if_armed();
        }
        if let Some(connection) = self.slots.ring(peer) {
            connection.begin_close(&mut self.resources);
        }
        if !matches!(self.slots.peek(peer), None | Some(Slot::Leaving(_))) {
            self.end(peer.index, DisconnectReason::Here);
            self.signal_if_armed();
        }
    }
}

/// A short message as an event.
#[inline(always)]
pub(super) fn event_of(peer: Peer, priority: Priority, words: Words, length: u16) -> Event {
    Event::Message(Message { peer, priority, payload: Payload::inline(words, length) })
}

#[inline(always)]
fn polled_of(peer: Peer, priority: Priority, words: Words, length: u16) -> Polled {
    Polled::Short(ShortMessage { peer, priority, words, length })
}
