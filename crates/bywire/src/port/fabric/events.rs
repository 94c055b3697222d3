//! Receives events from peers on other machines, and sends what calls of the program have added.

use bywire_sys::Errno;

use super::{Fabric, now_ns};
use crate::message::buffer::Payload;
use crate::message::error::{DisconnectReason, SendError};
use crate::message::event::{Event, Message};
use crate::message::peer::{Peer, Priority};
use crate::message::resources::Resources;
use crate::message::share::is_within_share;
use crate::message::transfers::Step;
use crate::port::Port;
use crate::port::remote_peer::RemotePeer;
use crate::port::slots::{Link, Slot, Slots};

/// The most steps of long transfers that a poll takes for one peer before the next peer's turn.
const STEPS: usize = 4;
/// The most receives of a port without peers each time its socket wakes it.
const STRANGE_AT_ONCE: usize = 16;
/// While messages wait, one poll in this many checks the time. When enough has passed, it looks at the sockets, and
/// acknowledgements and credit leave.
const ANSWER_EVERY: u32 = 16;

/// The result of one peer's turn.
enum Taken {
    Nothing,
    Progress,
    Event(Event),
    Broken(DisconnectReason),
}

impl Port {
    /// Takes an event from a peer on another machine, if there is one.
    #[inline(never)]
    pub(in crate::port) fn poll_remote(&mut self) -> Option<Event> {
        let is_ring_hot = self.hot.len() > 0;
        let is_turn = self.polls.is_multiple_of(ANSWER_EVERY);
        let fabric = self.fabric.as_deref_mut()?;
        // A message in a ring waits for this poll to end.
        if is_ring_hot && !is_turn && !fabric.is_waiting() {
            return None;
        }
        // What has arrived comes first.
        if !is_turn
            && !fabric.ready.is_empty()
            && !fabric.has_gathered()
            && let Some(event) = self.take_remote()
        {
            return Some(event);
        }
        let fabric = self.fabric.as_deref_mut()?;
        if fabric.service.due_at_ns().is_some() {
            self.try_node_again(now_ns());
        }
        let fabric = self.fabric.as_deref_mut()?;
        if fabric.is_quiet() {
            return None;
        }
        let are_waiting = !fabric.ready.is_empty();
        // Packets in the socket are not lost. A datagram that finds no room is.
        let is_behind = fabric.ready.front().is_some_and(|index| match self.slots.state_at(*index) {
            Some(Slot::Wire(remote)) => remote.wire.is_behind(),
            _ => false,
        });
        let is_time =
            is_turn && !is_behind && (!are_waiting || fabric.read_interval.is_due_beside_messages());
        if is_time && are_waiting {
            // However much one peer has sent, the others are in the socket.
            self.look_remote();
            if let Some(event) = self.next_event() {
                return Some(event);
            }
        } else if is_time || fabric.has_gathered() {
            self.look_at_time();
        }
        if let Some(event) = self.take_remote() {
            return Some(event);
        }
        let fabric = self.fabric.as_deref_mut()?;
        if !fabric.read_interval.is_due(is_ring_hot) {
            return None;
        }
        if !self.look_at_socket(is_ring_hot) {
            return None;
        }
        if let Some((peer, priority, payload)) = self.take_short_remote() {
            return Some(Event::Message(Message { peer, priority, payload }));
        }
        self.take_remote()
    }

    /// Does what is due. Acknowledgements and credit leave, and so does what was gathered.
    fn look_at_time(&mut self) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let now_ns = now_ns();
        fabric.answer(now_ns, &mut self.slots);
        fabric.run_timers(now_ns, &mut self.slots);
        self.take_news(now_ns);
        self.try_node_again(now_ns);
    }

    /// Looks at one socket, and reads the clock only if there is something to do. `true`: there was.
    #[inline]
    fn look_at_socket(&mut self, is_ring_hot: bool) -> bool {
        let Some(fabric) = self.fabric.as_deref_mut() else { return false };
        // The previous batch has been processed.
        if !fabric.touched.is_empty() {
            fabric.answer(now_ns(), &mut self.slots);
        }
        let arrived_ns = fabric.receive(&mut self.slots, &mut self.resources);
        if arrived_ns.is_some() || is_ring_hot {
            fabric.read_interval.found(arrived_ns.is_some());
        }
        if arrived_ns.is_none() && fabric.news.is_empty() {
            return false;
        }
        self.progressed |= arrived_ns.is_some();
        let now_ns = arrived_ns.unwrap_or_else(now_ns);
        fabric.run_timers(now_ns, &mut self.slots);
        self.take_news(now_ns);
        true
    }

    /// Looks at the sockets and at the time. `true`: something was there.
    pub(in crate::port) fn look_remote(&mut self) -> bool {
        let Some(fabric) = self.fabric.as_deref_mut() else { return false };
        let now_ns = now_ns();
        // The previous batch has been processed.
        fabric.answer(now_ns, &mut self.slots);
        let arrived_ns = fabric.receive(&mut self.slots, &mut self.resources);
        let found = arrived_ns.is_some();
        fabric.read_interval.found(found);
        self.progressed |= found;
        let now_ns = arrived_ns.unwrap_or(now_ns);
        fabric.run_timers(now_ns, &mut self.slots);
        self.take_news(now_ns);
        self.try_node_again(now_ns);
        found
    }

    /// A socket has something. Packets that arrive while there are no peers are dropped: polls do not look at the
    /// sockets then, and they would wake a sleeping program again and again.
    pub(in crate::port) fn expect_packets(&mut self) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        fabric.sockets.look_everywhere();
        if !fabric.is_quiet() {
            return;
        }
        for _ in 0..STRANGE_AT_ONCE {
            if fabric.receive(&mut self.slots, &mut self.resources).is_none() {
                break;
            }
        }
    }

    /// Takes a short message that has arrived, if only one peer on another machine has sent something, and nothing else comes
    /// before it. This is what most polls find while many messages wait.
    #[inline(always)]
    pub(in crate::port) fn take_short_remote(&mut self) -> Option<(Peer, Priority, Payload)> {
        let fabric = self.fabric.as_deref_mut()?;
        if fabric.ready.len() != 1
            || self.polls.is_multiple_of(ANSWER_EVERY)
            || !fabric.held_up.is_empty()
            || fabric.has_gathered()
            || !self.resources.events.is_empty()
        {
            return None;
        }
        let index = *fabric.ready.front()?;
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return None };
        if remote.wire.has_datagram() {
            return None;
        }
        let order = order_of(self.polls.is_multiple_of(8));
        // Another record of the first lane comes before the messages of the second one.
        let priority = order.into_iter().find(|priority| remote.wire.has_record(*priority))?;
        let payload = remote.wire.take_short(priority, &mut self.resources)?;
        if !std::mem::replace(&mut remote.is_touched, true) {
            // Credit has to be sent.
            fabric.touched.push(index);
        }
        Some((remote.wire.peer, priority, payload))
    }

    /// Takes events from peers on other machines, in turn. Those that wait come first, such as the connection of a peer.
    #[inline(never)]
    pub(in crate::port) fn take_remote(&mut self) -> Option<Event> {
        if !self.resources.events.is_empty() {
            return None;
        }
        let fabric = self.fabric.as_deref_mut()?;
        fabric.retry_waiting(&mut self.slots, &self.resources);
        let is_low_first = self.polls.is_multiple_of(8);
        for _ in 0..fabric.ready.len() {
            let Some(index) = fabric.ready.front().copied() else { break };
            let Some(Slot::Wire(remote)) = self.slots.state_at(index) else {
                fabric.ready.pop_front();
                continue;
            };
            let taken = remote.take(is_low_first, &mut self.resources);
            if !matches!(taken, Taken::Nothing) && !std::mem::replace(&mut remote.is_touched, true) {
                // Credit and answers have to be sent.
                fabric.touched.push(index);
            }
            if remote.wire.transfers.owes_replies() && remote.advance(&mut self.resources) {
                fabric.news.push(index);
            }
            if fabric.ready.len() > 1 {
                fabric.ready.rotate_left(1);
            }
            // After an event, the next turn finds out.
            if !matches!(taken, Taken::Event(_)) && !remote.wire.has_input(&self.resources) {
                remote.is_ready = false;
                fabric.ready.pop_back();
                if remote.is_held_up(&self.resources) && !fabric.held_up.contains(&index) {
                    fabric.held_up.push(index);
                }
            }
            let wants_window =
                self.large_windows_left > 0 && !remote.is_window_refused && remote.wire.wants_large_window();
            match taken {
                Taken::Nothing => {}
                Taken::Progress => self.progressed = true,
                Taken::Event(event) => {
                    if wants_window {
                        self.open_window(index);
                    }
                    return Some(event);
                }
                Taken::Broken(reason) => {
                    self.end(index, reason);
                    return None;
                }
            }
            if wants_window {
                self.open_window(index);
                return None;
            }
        }
        None
    }

    /// Gives a peer a large window, if its user may have one more.
    #[cold]
    pub(super) fn open_window(&mut self, index: u32) {
        let total = self.options.large_window_peers_max as usize;
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return };
        let user = remote.wire.transfers.other_user().cloned();
        let (own, all) = user.as_ref().map_or((0, 0), |user| {
            let has_one = |remote: &&RemotePeer| remote.wire.has_large_window();
            let of = |remote: &RemotePeer| remote.wire.transfers.other_user().cloned();
            let all: Vec<_> = self.slots.remote_peers().filter(has_one).filter_map(of).collect();
            (all.iter().filter(|other| *other == user).count(), all.len())
        });
        let is_granted = user.is_none() || is_within_share(total, own, all);
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return };
        remote.is_window_refused = !is_granted;
        if is_granted {
            remote.wire.open_large_window();
            self.large_windows_left -= 1;
        }
    }

    /// Sends what a call of the program has added for a peer, or gathers it until the next poll.
    pub(in crate::port) fn send_remote(&mut self, peer: Peer) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let Some(Slot::Wire(remote)) = self.slots.state_at(peer.index) else { return };
        if !remote.wire.must_transmit(self.polls) && !self.is_armed {
            return fabric.wake_at(peer.index, 0);
        }
        let now_ns = now_ns();
        fabric.transmit(now_ns, peer.index, &mut self.slots);
        if self.is_armed {
            self.arm_remote();
        }
    }

    /// Copies a short message for a peer on another machine.
    ///
    /// # Errors
    /// [`SendError`].
    #[cold]
    #[inline(never)]
    pub(in crate::port) fn send_now_remote(
        &mut self,
        peer: Peer,
        priority: Priority,
        parts: [&[u8]; 2],
    ) -> Result<(), SendError> {
        let Link::Wire(remote) = self.slots.link(peer)? else { return Err(SendError::NoPeer) };
        let [head, payload] = parts.map(<[u8]>::len);
        // Only the first part of a message in two parts is a head.
        let longest = remote.wire.short_bytes() + if payload > 0 { head } else { 0 };
        let max = (longest as u64).min(remote.wire.info.message_bytes_max);
        if (head + payload) as u64 > max {
            return Err(SendError::TooLong { max });
        }
        let sent = match parts {
            [bytes, []] => remote.wire.send_now(priority, bytes),
            parts => remote.wire.send_headed_now(priority, parts),
        };
        self.send_remote(peer);
        sent
    }

    /// Sends a datagram to a peer on another machine. `false`: it was dropped. `is_followed`: others follow at once, and it
    /// leaves with the last of them.
    ///
    /// # Errors
    /// [`SendError`].
    pub(in crate::port) fn send_datagram_remote(
        &mut self,
        peer: Peer,
        priority: Priority,
        bytes: &[u8],
        is_followed: bool,
    ) -> Result<bool, SendError> {
        let Link::Wire(remote) = self.slots.link(peer)? else { return Err(SendError::NoPeer) };
        let max = (remote.wire.fragment_bytes() as u64).min(remote.wire.info.message_bytes_max);
        if bytes.len() as u64 > max {
            return Err(SendError::TooLong { max });
        }
        let has_room = remote.wire.has_datagram_room(priority);
        if let Some(fabric) = self.fabric.as_deref_mut()
            && !has_room
        {
            // What is gathered may make room.
            fabric.transmit(now_ns(), peer.index, &mut self.slots);
        }
        let Link::Wire(remote) = self.slots.link(peer)? else { return Err(SendError::NoPeer) };
        let sent = remote.wire.send_datagram(priority, bytes).map_err(SendError::Disconnected)?;
        if !is_followed || self.is_armed {
            self.send_remote(peer);
        } else if let Some(fabric) = self.fabric.as_deref_mut() {
            fabric.wake_at(peer.index, 0);
        }
        self.statistics.datagrams_unsent += u64::from(!sent);
        Ok(sent)
    }

    /// Advances what a call has queued for a peer on another machine.
    pub(in crate::port) fn advance_remote(&mut self, peer: Peer) {
        let Some(Slot::Wire(remote)) = self.slots.state_at(peer.index) else { return };
        if remote.advance(&mut self.resources)
            && let Some(fabric) = self.fabric.as_deref_mut()
        {
            // The next poll finds and reports it.
            fabric.news.push(peer.index);
        }
        self.send_remote(peer);
        let has_news = self.fabric.as_deref().is_some_and(|fabric| !fabric.news.is_empty());
        if has_news || !self.resources.events.is_empty() {
            self.signal_if_armed();
        }
    }

    /// Has a peer on another machine sent something that can be received?
    pub(in crate::port) fn has_remote_input(&mut self) -> bool {
        let Some(fabric) = self.fabric.as_deref_mut() else { return false };
        fabric.retry_waiting(&mut self.slots, &self.resources);
        !fabric.ready.is_empty() || !fabric.news.is_empty()
    }

    /// Has a packet arrived by now? An edge-triggered set has reported it already, and does not report it again.
    pub(in crate::port) fn has_far_packets(&mut self) -> bool {
        let Some(fabric) = self.fabric.as_deref_mut().filter(|fabric| !fabric.is_quiet()) else {
            return false;
        };
        fabric.sockets.look_everywhere();
        self.look_remote() || self.has_remote_input() || !self.resources.events.is_empty()
    }

    /// Prepares the port for sleep: nothing is held back any more.
    pub(in crate::port) fn settle_remote(&mut self) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let now_ns = now_ns();
        fabric.before_sleep(now_ns, &mut self.slots);
        self.take_news(now_ns);
    }

    /// Makes the port's descriptor readable when something is due.
    pub(in crate::port) fn arm_remote(&mut self) {
        if let Some(fabric) = self.fabric.as_deref_mut() {
            // Without the timer, deadlines are checked when the program polls for another reason.
            let _ = fabric.arm_timer(now_ns());
        }
    }

    /// Sends everything at once that was gathered for peers on other machines. Otherwise it leaves with the next poll,
    /// wait or arm, or as soon as packets are full. Within one machine nothing is gathered.
    pub fn flush(&mut self) {
        if !self.guard.is_owner() {
            return;
        }
        if let Some(fabric) = self.fabric.as_deref_mut() {
            let now_ns = now_ns();
            fabric.answer(now_ns, &mut self.slots);
            while fabric.has_gathered() && fabric.run_timers(now_ns, &mut self.slots) {}
        }
        if self.is_armed {
            self.arm_remote();
        }
    }
}

fn order_of(is_low_first: bool) -> [Priority; 2] {
    match is_low_first {
        true => [Priority::Low, Priority::High],
        false => [Priority::High, Priority::Low],
    }
}

impl RemotePeer {
    /// Moves its transfers on. `true`: this cannot go on, and is among the news.
    pub(super) fn advance(&mut self, resources: &mut Resources) -> bool {
        let outcome = self.wire.advance(resources);
        self.failed = self.failed.or(outcome.err());
        outcome.is_err()
    }

    /// Does a long message wait for a posted buffer?
    fn is_held_up(&self, resources: &Resources) -> bool {
        let transfers = &self.wire.transfers;
        [Priority::High, Priority::Low].into_iter().any(|priority| transfers.is_held_up(priority, resources))
    }

    /// Takes an event, or a few steps of a long transfer.
    fn take(&mut self, is_low_first: bool, resources: &mut Resources) -> Taken {
        let order = order_of(is_low_first);
        let mut taken = Taken::Nothing;
        for _ in 0..STEPS {
            let mut any = false;
            for priority in order {
                match self.wire.receive(priority, resources) {
                    Ok(Step::Nothing) => {}
                    Ok(Step::Progress) => any = true,
                    Ok(Step::Event(event)) => return Taken::Event(event),
                    Err(reason) => return Taken::Broken(reason),
                }
            }
            // Also if no answer is expected: everything that counts as input has to be taken, or the port could never
            // sleep.
            match self.wire.receive_reply(resources) {
                Ok(Step::Nothing) => {}
                Ok(_) => any = true,
                Err(reason) => return Taken::Broken(reason),
            }
            if !any {
                break;
            }
            taken = Taken::Progress;
        }
        taken
    }
}

impl Fabric {
    /// Has a peer sent something that is known already, is something gathered, or did a socket wake the port?
    fn is_waiting(&mut self) -> bool {
        !self.ready.is_empty() || self.has_gathered() || self.sockets.is_search_due()
    }

    /// Is something gathered that has not left?
    fn has_gathered(&mut self) -> bool {
        self.timers.first_ns() == Some(0)
    }

    /// Tries peers again that have a message waiting for a buffer, if that may help.
    fn retry_waiting(&mut self, slots: &mut Slots, resources: &Resources) {
        if self.held_up.is_empty() {
            return;
        }
        let looks = resources.looks(Priority::High) + resources.looks(Priority::Low);
        if std::mem::replace(&mut self.looks, looks) == looks {
            return;
        }
        for index in std::mem::take(&mut self.held_up) {
            let Some(Slot::Wire(remote)) = slots.state_at(index) else { continue };
            if !remote.is_ready && remote.wire.has_input(resources) {
                remote.is_ready = true;
                self.ready.push_back(index);
            } else if remote.is_held_up(resources) {
                self.held_up.push(index);
            }
        }
    }

    /// Sets the timer to the first deadline.
    fn arm_timer(&mut self, now_ns: u64) -> Result<(), Errno> {
        let Some(at_ns) = self.first_deadline_ns() else { return Ok(()) };
        if self.timer_ends_ns.is_some_and(|ends_ns| ends_ns <= at_ns) {
            return Ok(());
        }
        let after = std::time::Duration::from_nanos(at_ns.saturating_sub(now_ns).max(1));
        self.timer.set(after)?;
        self.timer_ends_ns = Some(at_ns);
        Ok(())
    }

    /// Notes that the timer has ended.
    pub fn drain_timer(&mut self) {
        self.timer.drain();
        self.timer_ends_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use bywire_wire::batch::Batch;
    use bywire_wire::frame::Lane;
    use bywire_wire::record::Head;

    use super::super::fixture::{other_end, terms};
    use super::*;
    use crate::message::options::PortOptions;

    /// Everything that counts as input is taken. Otherwise the port could never sleep again.
    #[test]
    fn an_unrequested_answer_ends_the_connection_and_a_partial_one_keeps_no_port_awake() {
        let port = PortOptions::default();
        let mut resources = Resources::new(&port);
        let terms = terms(([127, 0, 0, 1], 1).into(), 2, &port);
        let peer = Peer { index: 0, generation: 1 };
        let mut remote = RemotePeer::new(peer, 1, None, (terms, [7; 32].into()), &port);
        let mut peer = other_end(2, 1, &port);
        let mut answer = Vec::new();
        Head::Status { transfer: 1, code: 0 }.write(&mut answer);
        let mut send = |remote: &mut RemotePeer, bytes: &[u8], resources: &mut Resources| {
            peer.send(Lane::Reply, bytes.to_vec()).expect("room");
            let mut batch = Batch::new(64 * 1024, 64);
            peer.transmit(0, &mut batch);
            for packet in batch.packets() {
                remote.wire.receive_packet(0, &mut packet.to_vec(), resources);
            }
        };
        send(&mut remote, &answer[..1], &mut resources);
        assert!(remote.wire.has_input(&resources), "it has arrived");
        assert!(matches!(remote.take(false, &mut resources), Taken::Nothing));
        assert!(!remote.wire.has_input(&resources), "nothing can be done with it yet");
        send(&mut remote, &answer[1..], &mut resources);
        assert!(matches!(remote.take(false, &mut resources), Taken::Broken(DisconnectReason::Broken)));
    }
}
