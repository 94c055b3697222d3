//! The ends of connections to other machines: by the peer, by its process or node, by silence, and by this end.

use bywire_sys::poller::Poller;
use bywire_sys::udp;
use bywire_wire::path::MachinePath;
use bywire_wire::service::{End, Request};

use super::calls::blocked_at;
use super::packets::IDLE_NS;
use super::{Fabric, now_ns};
use crate::message::error::{DisconnectReason, Refusal};
use crate::message::event::Event;
use crate::message::options::Reach;
use crate::message::peer::Peer;
use crate::message::resources::Resources;
use crate::port::Port;
use crate::port::incoming::Tag;
use crate::port::remote_peer::{ACTIVE_PACKETS, Call, Leaving, RemotePeer, Stage};
use crate::port::slots::{Link, Slot, Slots};

/// How long the end of a peer waits for the program to take events.
const FULL_PAUSE_NS: u64 = 1_000_000;
/// How often a peer's node is asked whether the peer lives while nothing comes from it.
const INQUIRY_NS: u64 = 1_000_000_000;
/// How often the kernel is asked for the MTU of a route.
const ROUTE_NS: u64 = 60_000_000_000;
/// After this time without an answer, a peer's own socket is closed, because its source address may no longer exist.
const SOCKET_SILENCE_NS: u64 = 500_000_000;
/// If a peer could not have a socket of its own, the next attempt is after this many packets.
const SOCKET_AGAIN_PACKETS: u64 = 1 << 16;
/// Receives of the packets that are left in the sockets when a peer has ended.
const LAST_LOOKS: usize = 256;

impl Port {
    /// Handles what packets and deadlines have changed.
    pub(super) fn take_news(&mut self, now_ns: u64) {
        while let Some(index) = self.fabric.as_deref_mut().and_then(|fabric| fabric.news.pop()) {
            match self.slots.state_at(index) {
                Some(Slot::Wire(_)) => self.look_at_remote(now_ns, index),
                Some(Slot::Calling(_)) => self.look_at_call(now_ns, index),
                Some(Slot::Leaving(leaving)) => {
                    let is_over = leaving.until_ns <= now_ns
                        || leaving.remote.wire.is_drained()
                        || leaving.remote.wire.ended().is_some();
                    let until_ns = leaving.until_ns;
                    if is_over {
                        self.end(index, DisconnectReason::Here);
                    } else if let Some(fabric) = self.fabric.as_deref_mut() {
                        fabric.wake_at(index, until_ns);
                    }
                }
                _ => {}
            }
        }
    }

    fn look_at_remote(&mut self, now_ns: u64, index: u32) {
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return };
        match remote.failed.or(remote.wire.ended()) {
            Some(reason @ (DisconnectReason::Broken | DisconnectReason::Here)) => self.end(index, reason),
            // Its earlier messages are delivered once there is room.
            Some(reason) => self.drain_remote(now_ns, index, reason),
            None => {
                let can_move = remote.wire.can_advance();
                let has_failed = can_move && remote.advance(&mut self.resources);
                let wants_window = !remote.is_window_refused && remote.wire.wants_large_window();
                if let Some(fabric) = self.fabric.as_deref_mut() {
                    if has_failed {
                        fabric.news.push(index);
                    } else if can_move {
                        fabric.transmit(now_ns, index, &mut self.slots);
                    }
                }
                if wants_window && self.large_windows_left > 0 {
                    self.open_window(index);
                }
                self.connect_socket(index);
                self.look_for_idleness(now_ns, index);
                self.look_for_silence(now_ns, index);
            }
        }
    }

    /// Connects a socket for a peer that has become active.
    fn connect_socket(&mut self, index: u32) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return };
        let taken = remote.wire.counts().taken;
        if taken < remote.socket_from {
            return;
        }
        let socket = fabric.sockets.connect(index, remote.path);
        if socket.is_some_and(|socket| self.poller.add(socket, Tag::Udp.bits()).is_ok()) {
            remote.socket_from = u64::MAX;
        } else {
            fabric.sockets.disconnect(index);
            remote.socket_from = taken.saturating_add(SOCKET_AGAIN_PACKETS);
        }
    }

    /// Gives memory back that the traffic of an idle peer has taken, and asks again how long the packets are that its route
    /// carries.
    fn look_for_idleness(&mut self, now_ns: u64, index: u32) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return };
        if remote.wire.memory_bytes() > 0 || remote.has_socket() {
            let idle_ns = remote.active_ns.saturating_add(IDLE_NS);
            if idle_ns <= now_ns {
                remote.wire.trim();
                fabric.disconnect_socket(index, remote);
            } else {
                fabric.wake_at(index, idle_ns);
            }
        }
        if now_ns.saturating_sub(remote.route_asked_ns) < ROUTE_NS {
            return;
        }
        remote.route_asked_ns = now_ns;
        // A shorter one may be a stranger's forgery. Where long packets do vanish, the connection finds out itself.
        if let Ok(route) = udp::route(remote.path.peer)
            && route.payload_bytes > remote.route_bytes
        {
            remote.route_bytes = route.payload_bytes;
            remote.wire.set_route_bytes(route.payload_bytes);
        }
    }

    /// Gives up a peer that has been silent for long although something was sent to it, unless its node says that it
    /// lives.
    fn look_for_silence(&mut self, now_ns: u64, index: u32) {
        let after_ns = self.options.unreachable_after.as_nanos().try_into().unwrap_or(u64::MAX);
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return };
        let Some(since_ns) = remote.wire.unanswered_since_ns() else { return };
        if now_ns.saturating_sub(since_ns) >= SOCKET_SILENCE_NS && remote.has_socket() {
            fabric.disconnect_socket(index, remote);
        }
        if after_ns == 0 {
            return;
        }
        let silent_ns = remote.silence.lasted_ns(since_ns.max(remote.vouched_ns), now_ns, after_ns / 4);
        if silent_ns >= after_ns {
            return self.drain_remote(now_ns, index, DisconnectReason::Unreachable);
        }
        let is_long = now_ns.saturating_sub(since_ns) >= after_ns / 4;
        if is_long && now_ns.saturating_sub(remote.inquired_ns) >= INQUIRY_NS.min(after_ns / 4) {
            remote.inquired_ns = now_ns;
            // Without a node the question cannot be asked.
            fabric.service.tell(&Request::Inquire { connection: remote.number });
        }
        let left_ns = (after_ns - silent_ns).min(INQUIRY_NS).min(after_ns / 4);
        fabric.wake_at(index, now_ns.saturating_add(left_ns));
    }

    /// A peer's node reports that its process lives.
    pub(super) fn remote_is_alive(&mut self, number: u32) {
        let Some(index) = self.fabric.as_deref().and_then(|fabric| fabric.slot_of(number)) else { return };
        if let Some(Slot::Wire(remote)) = self.slots.state_at(index) {
            remote.vouched_ns = now_ns();
        }
    }

    /// The machine of a peer has another address, as its node has proved.
    pub(super) fn remote_has_moved(&mut self, number: u32, path: MachinePath) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let Some(index) = fabric.slot_of(number) else { return };
        let remote = match self.slots.state_at(index) {
            Some(Slot::Wire(remote)) => remote,
            Some(Slot::Leaving(leaving)) => &mut leaving.remote,
            Some(Slot::Calling(call)) => match &mut call.stage {
                Stage::Proving { remote, .. } => remote,
                _ => return,
            },
            _ => return,
        };
        fabric.disconnect_socket(index, remote);
        remote.path = path.to_port(remote.path.peer.port());
        // The route has changed. Its MTU is asked for at the next occasion.
        remote.route_asked_ns = 0;
    }

    /// A peer has ended, as the nodes report.
    pub(super) fn remote_has_ended(&mut self, index: u32, end: End) {
        let reason = match end {
            End::PeerEnded | End::NodeRestarted => DisconnectReason::Died,
            End::PeerReleased => DisconnectReason::Closed,
            End::NodeRemoved | End::SecurityChanged => DisconnectReason::Removed,
        };
        match self.slots.state_at(index) {
            Some(Slot::Wire(remote)) => {
                remote.failed = Some(reason);
                self.drain_remote(now_ns(), index, reason);
            }
            Some(Slot::Calling(_)) => self.end(index, DisconnectReason::Refused(Refusal::Closed)),
            Some(Slot::Leaving(_)) => self.end(index, DisconnectReason::Here),
            _ => {}
        }
    }

    /// Takes everything that a peer sent before its end and that has arrived, then ends the connection. While too much waits
    /// for the program, the rest stays in the lanes.
    fn drain_remote(&mut self, now_ns: u64, index: u32, reason: DisconnectReason) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        fabric.receive_rest(&mut self.slots, &mut self.resources);
        let Some(Slot::Wire(remote)) = self.slots.state_at(index) else { return };
        if Link::Wire(remote).drain(&mut self.resources) {
            return self.end(index, reason);
        }
        remote.failed = Some(reason);
        fabric.wake_at(index, now_ns.saturating_add(FULL_PAUSE_NS));
    }

    /// Closes the connection to a peer on another machine. It continues to send for as long as the port lingers.
    pub(in crate::port) fn leave(&mut self, peer: Peer) {
        let now_ns = now_ns();
        let linger_ns = self.options.linger.as_nanos().try_into().unwrap_or(u64::MAX);
        let until_ns = now_ns.saturating_add(linger_ns);
        let Some(Slot::Wire(mut remote)) =
            self.slots.replace(peer, Slot::Free { last: Some(DisconnectReason::Here) })
        else {
            return;
        };
        remote.wire.begin_close(&mut self.resources);
        self.slots.replace(peer, Slot::Leaving(Box::new(Leaving { remote, until_ns })));
        if let Some(fabric) = self.fabric.as_deref_mut() {
            fabric.transmit(now_ns, peer.index, &mut self.slots);
            fabric.wake_at(peer.index, until_ns);
            fabric.news.push(peer.index);
        }
        self.take_news(now_ns);
    }

    /// The last step of a connection to another machine.
    pub(in crate::port) fn end_remote(
        &mut self,
        peer: Peer,
        mut remote: Box<RemotePeer>,
        reason: DisconnectReason,
    ) {
        remote.wire.give_up(reason, &mut self.resources);
        if remote.wire.has_large_window() {
            self.large_windows_left += 1;
            // A peer that was refused one may get it now.
            for index in self.slots.indices() {
                if let Some(Slot::Wire(remote)) = self.slots.state_at(index) {
                    remote.is_window_refused = false;
                }
            }
        }
        if let Some(fabric) = self.fabric.as_deref_mut() {
            fabric.send_out(now_ns(), peer.index, &mut remote);
            fabric.release(remote.number, peer.index);
        }
        self.resources.events.push_back(Event::Disconnected { peer, reason });
        self.slots.remember(peer, remote.wire.info);
    }

    /// The last step of a connection that was not established.
    pub(in crate::port) fn end_call(&mut self, peer: Peer, call: Call, reason: DisconnectReason) {
        if let Some(fabric) = self.fabric.as_deref_mut() {
            match call.stage {
                // The node has never heard of it.
                Stage::Held => fabric.forget(call.number, peer.index),
                stage => {
                    if let Some(there) = blocked_at(&stage) {
                        let request = Request::Blocked { connection: call.number, peer_udp_port: there };
                        fabric.service.tell(&request);
                    }
                    fabric.release(call.number, peer.index);
                }
            }
        }
        // A port that called this one has not been reported yet.
        if call.announce && call.is_caller {
            self.resources.events.push_back(Event::Disconnected { peer, reason });
        }
    }

    /// Closes the port. Peers on other machines get everything that was sent to them, unless that takes longer than
    /// [`crate::PortOptions::linger`].
    pub(in crate::port) fn leave_all(&mut self) {
        if self.fabric.as_deref().is_none_or(Fabric::is_quiet) {
            return;
        }
        for index in self.slots.indices() {
            match self.slots.state_at(index) {
                Some(Slot::Wire(remote)) => {
                    let peer = remote.wire.peer;
                    self.leave(peer);
                }
                Some(Slot::Calling(_)) => self.end(index, DisconnectReason::Here),
                _ => {}
            }
        }
        // No connection is accepted any more.
        self.options.reach = Reach::Machine;
        if let Some(fabric) = self.fabric.as_deref_mut() {
            fabric.receive_rest(&mut self.slots, &mut self.resources);
            fabric.sockets.disconnect_all();
        }
        let mut poller = self.fabric.as_deref().and_then(|fabric| {
            let poller = Poller::new().ok()?;
            poller.add(fabric.sockets.common(), 0).ok().map(|()| poller)
        });
        while let Some(fabric) = self.fabric.as_deref_mut().filter(|fabric| !fabric.is_quiet()) {
            let now_ns = now_ns();
            fabric.receive_rest(&mut self.slots, &mut self.resources);
            fabric.answer(now_ns, &mut self.slots);
            fabric.run_timers(now_ns, &mut self.slots);
            self.take_news(now_ns);
            // It may know that a peer is dead, or have to be found again.
            self.hear_node();
            self.try_node_again(now_ns);
            let Some(fabric) = self.fabric.as_deref_mut() else { return };
            if let (Some(poller), Some(node)) = (&poller, fabric.service.socket()) {
                // It may be another one by now. The present one is watched already, and adding it again changes nothing.
                let _ = poller.add(node, 0);
            }
            // Every closing connection has a deadline.
            let rest = fabric.rest(now_ns);
            if !fabric.is_quiet() && poller.as_mut().is_none_or(|poller| poller.wait(rest).is_err()) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

impl Fabric {
    /// Forgets a connection, and tells the node.
    fn release(&mut self, number: u32, index: u32) {
        self.forget(number, index);
        // If the node is absent, neither it nor its successor is told.
        self.service.tell(&Request::Release { connection: number });
    }

    /// Closes the own socket of a peer, which may become active again.
    fn disconnect_socket(&mut self, index: u32, remote: &mut RemotePeer) {
        self.sockets.disconnect(index);
        remote.socket_from = remote.wire.counts().taken.saturating_add(ACTIVE_PACKETS);
    }

    /// Processes waiting packets, up to a limit, because unknown senders may fill the sockets faster than they are emptied.
    fn receive_rest(&mut self, slots: &mut Slots, resources: &mut Resources) {
        self.sockets.look_everywhere();
        for _ in 0..LAST_LOOKS {
            if self.receive(slots, resources).is_none() {
                break;
            }
        }
    }

    /// The time until something is due. `None`: nothing is due.
    pub fn rest(&mut self, now_ns: u64) -> Option<std::time::Duration> {
        let at_ns = self.first_deadline_ns()?;
        Some(std::time::Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }
}
