//! Packets of all connections.

use bywire_sys::udp::{Datagrams, ReceiveError};
use bywire_wire::connection::Receipt;
use bywire_wire::packet;

use super::sockets::Stalled;
use super::{Fabric, now_ns};
use crate::message::resources::Resources;
use crate::port::remote_peer::{ACTIVE_PACKETS, RemotePeer, Stage};
use crate::port::slots::{Slot, Slots};

/// The most batches that leave for one connection before the next one's turn.
const BATCHES_AT_ONCE: usize = 4;
/// The most connections whose deadlines one poll handles.
const DUE_AT_ONCE: usize = 64;
/// How often a peer is probed from which something is awaited.
const ASK_NS: u64 = 1_000_000_000;
/// After this time without a packet from a peer, memory for its traffic is given back.
pub(super) const IDLE_NS: u64 = 5_000_000_000;

/// The connection in a slot, in any state.
fn remote_at(slots: &mut Slots, index: u32) -> Option<&mut RemotePeer> {
    match slots.state_at(index)? {
        Slot::Wire(remote) => Some(remote),
        Slot::Leaving(leaving) => Some(&mut leaving.remote),
        Slot::Calling(call) => match &mut call.stage {
            Stage::Proving { remote, .. } => Some(remote),
            _ => None,
        },
        _ => None,
    }
}

impl Fabric {
    /// Is there no peer that could send to the socket?
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Processes the next datagrams of the socket. Returns when they were read, or `None` if there was none.
    pub fn receive(&mut self, slots: &mut Slots, resources: &mut Resources) -> Option<u64> {
        let Datagrams { bytes, bytes_each } = match self.sockets.receive(self.numbers.len(), &mut self.buffer)
        {
            Ok(Some(datagrams)) => datagrams,
            Ok(None) | Err(ReceiveError::System(_)) => return None,
            // Errors that the network reports may be forged, and a datagram that is too long is not a valid packet.
            Err(ReceiveError::Reported(_) | ReceiveError::Truncated { .. }) => return Some(now_ns()),
        };
        let now_ns = now_ns();
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut before = None;
        for (header, packet) in packet::split_joined(&mut buffer[..bytes], bytes_each) {
            // Joined packets come from one socket, mostly for one connection.
            let index = match self.last_from {
                Some((number, index)) if number == header.connection => index,
                _ => {
                    let Some(index) = self.slot_of(header.connection) else { continue };
                    self.last_from = Some((header.connection, index));
                    index
                }
            };
            if let Some(other) = before.replace(index).filter(|other| *other != index) {
                self.after_packets(now_ns, other, slots, resources);
            }
            self.take_packet(now_ns, index, packet, slots, resources);
        }
        self.buffer = buffer;
        if let Some(index) = before {
            self.after_packets(now_ns, index, slots, resources);
        }
        Some(now_ns)
    }

    fn take_packet(
        &mut self,
        now_ns: u64,
        index: u32,
        packet: &mut [u8],
        slots: &mut Slots,
        resources: &mut Resources,
    ) {
        let Some(remote) = remote_at(slots, index) else { return };
        if remote.wire.is_draining() {
            // Its end is known. What it sends afterwards counts no more.
            return;
        }
        match remote.wire.receive_packet(now_ns, packet, resources) {
            Receipt::Taken if !std::mem::replace(&mut remote.is_touched, true) => self.touched.push(index),
            Receipt::Violation(_) => self.news.push(index),
            // Forged, duplicate, or without room: treated as lost.
            _ => {}
        }
    }

    /// Handles what packets of one peer have changed.
    fn after_packets(&mut self, now_ns: u64, index: u32, slots: &mut Slots, resources: &mut Resources) {
        let is_waiting = match slots.state_at(index) {
            Some(Slot::Ring(_) | Slot::Wire(_)) => false,
            Some(Slot::Calling(_) | Slot::Leaving(_)) => true,
            _ => return,
        };
        let Some(remote) = remote_at(slots, index) else { return };
        if remote.is_touched && (is_waiting || remote.wire.ended().is_some()) {
            self.news.push(index);
        }
        if remote.wire.has_work() && remote.advance(resources) {
            self.news.push(index);
        }
        // A long transfer goes from its packets to its place, so nothing is there to be taken before its end.
        if !remote.is_window_refused && remote.wire.wants_large_window() {
            self.news.push(index);
        }
        if remote.wire.counts().taken >= remote.socket_from {
            self.news.push(index);
        }
        // A forged packet is no sign of the peer.
        if remote.is_touched {
            remote.active_ns = now_ns;
            self.timers.set(index, now_ns.saturating_add(IDLE_NS));
        }
        // Nothing is received from a peer that is not connected yet, or no longer.
        if let Some(Slot::Wire(remote)) = slots.state_at(index) {
            self.ready_if_input(index, remote, resources);
        }
    }

    /// Puts a peer in turn if it has sent something that can be received.
    pub fn ready_if_input(&mut self, index: u32, remote: &mut RemotePeer, resources: &Resources) {
        if !remote.is_ready && remote.wire.has_input(resources) {
            remote.is_ready = true;
            self.ready.push_back(index);
        }
    }

    /// Ends a batch of packets: acknowledgements and credit leave.
    pub fn answer(&mut self, now_ns: u64, slots: &mut Slots) {
        while let Some(index) = self.touched.pop() {
            if let Some(remote) = remote_at(slots, index) {
                remote.is_touched = false;
                if !std::mem::replace(&mut remote.is_recent, true) {
                    self.recent.push(index);
                }
                self.transmit(now_ns, index, slots);
            }
        }
    }

    /// Serves connections whose time has come. `true`: there were some.
    pub fn run_timers(&mut self, now_ns: u64, slots: &mut Slots) -> bool {
        let mut any = false;
        for _ in 0..DUE_AT_ONCE {
            let Some(index) = self.timers.pop(now_ns) else { break };
            // Its own deadlines, such as the end of lingering, are checked with the news.
            self.news.push(index);
            self.transmit(now_ns, index, slots);
            any = true;
        }
        any
    }

    /// Prepares for sleep: everything that was held back leaves.
    pub fn before_sleep(&mut self, now_ns: u64, slots: &mut Slots) {
        self.answer(now_ns, slots);
        while let Some(index) = self.recent.pop() {
            if let Some(remote) = remote_at(slots, index) {
                remote.is_recent = false;
                remote.wire.before_sleep();
                self.transmit(now_ns, index, slots);
            }
        }
        self.run_timers(now_ns, slots);
    }

    /// Has a connection served at this time, or earlier.
    pub fn wake_at(&mut self, index: u32, at_ns: u64) {
        self.timers.set(index, at_ns);
    }

    /// When something is due, without any packet or call.
    pub fn first_deadline_ns(&mut self) -> Option<u64> {
        [self.timers.first_ns(), self.service.due_at_ns()].into_iter().flatten().min()
    }

    /// Sends the packets that one connection has to send now.
    pub fn transmit(&mut self, now_ns: u64, index: u32, slots: &mut Slots) {
        if let Some(remote) = remote_at(slots, index) {
            self.send_out(now_ns, index, remote);
        }
    }

    /// The same, for a connection that is no longer in a slot.
    pub fn send_out(&mut self, now_ns: u64, index: u32, remote: &mut RemotePeer) {
        if remote.ask_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            remote.wire.ping();
        }
        for _ in 0..BATCHES_AT_ONCE {
            if !self.resume_stalled() {
                break;
            }
            self.batch.clear();
            remote.wire.transmit(now_ns, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            let is_full = !self.batch.has_room(remote.wire.packet_bytes().into());
            let is_last = !is_full && !remote.wire.has_gathered();
            let calls = self.sockets.calls();
            self.stalled = self.sockets.send(index, remote.path, &self.batch, 0).err();
            remote.calls += self.sockets.calls() - calls;
            if remote.has_socket() && !self.sockets.has_connected(index) {
                // Its route has failed. It may work again later.
                remote.socket_from = remote.wire.counts().taken.saturating_add(ACTIVE_PACKETS);
            }
            if is_last {
                break;
            }
        }
        remote.wire.settle();
        let stalled_ns = self.stalled.is_some().then_some(now_ns + 1_000_000);
        let next_ns = remote.wire.next_timeout_ns();
        // A batch that waits for room in the socket is tried again then.
        if let Some(at_ns) = next_ns.map(|at_ns| at_ns.max(stalled_ns.unwrap_or(0))).or(stalled_ns) {
            self.timers.set(index, at_ns);
        }
        remote.ask_at_ns = match remote.wire.awaits_peer() {
            true => remote.ask_at_ns.or(Some(now_ns.saturating_add(ASK_NS))),
            false => None,
        };
        if let Some(at_ns) = remote.ask_at_ns {
            self.timers.set(index, at_ns);
        }
        // The held acknowledgement may have made room.
        if remote.wire.can_advance() {
            self.news.push(index);
        }
    }

    /// Sends the rest of a batch for which there was no room. `false`: there still is none.
    fn resume_stalled(&mut self) -> bool {
        let Some(Stalled { index, path, sent }) = self.stalled.take() else { return true };
        self.stalled = self.sockets.send(index, path, &self.batch, sent).err();
        self.stalled.is_none()
    }
}
