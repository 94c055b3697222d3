//! What a peer's socket and process report: packets, and the peer's end.
//!
//! A peer has gone when its process has ended or its socket is closed. Everything that it sent before is read first.

use bywire_ring::geometry::LARGE_WINDOW_BYTES;
use bywire_sys::deferred::ReceivedFd;
use bywire_sys::process;
use bywire_sys::socket::{PACKETS_QUEUED_MAX, Received};

use super::Port;
use super::establish::map;
use super::slots::Slot;
use crate::message::error::{DisconnectReason, Refusal};
use crate::message::lend::{BLOCK_BYTES, BLOCKS_MAX, HEAPS_OF_USER_MAX, heap_bytes};
use crate::message::peer::Peer;
use crate::shm::handshake::{PACKET_BYTES_MAX, Packet, PacketError};

/// Packets read from a living peer at a time.
const PACKETS_AT_ONCE: usize = 64;

impl Port {
    /// Deals with a peer's ready socket or process.
    pub(super) fn read_socket(&mut self, index: u32) {
        let Some(peer) = self.slots.peer_at(index) else { return };
        // A peer that floods its socket is read a little at a time.
        self.read_packets(peer, PACKETS_AT_ONCE);
        let is_dead = match self.slots.peek(peer) {
            Some(Slot::Ring(ring)) => ring.process.as_ref().is_some_and(process::has_ended),
            _ => false,
        };
        if is_dead {
            self.peer_is_gone(peer);
        }
    }

    /// Reads all packets that an honest peer can have sent by now. The packets that its records refer to are among
    /// them.
    pub(super) fn read_whole_socket(&mut self, index: u32) {
        if let Some(peer) = self.slots.peer_at(index) {
            self.read_packets(peer, PACKETS_QUEUED_MAX);
        }
    }

    fn read_packets(&mut self, peer: Peer, count_max: usize) {
        for _ in 0..count_max {
            let socket = match self.slots.peek(peer) {
                Some(Slot::Ring(ring)) => ring.socket(),
                Some(Slot::Connecting(connecting)) => &connecting.socket,
                _ => return,
            };
            let mut bytes = [0; PACKET_BYTES_MAX];
            match socket.receive(&mut bytes) {
                Ok(Received::Packet(length, descriptors)) => {
                    if let Err(reason) = self.hear_peer(peer, &bytes[..length], descriptors) {
                        return self.end(peer.index, reason);
                    }
                }
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => return self.lose(peer),
                Err(_) => return self.end(peer.index, DisconnectReason::Broken),
            }
        }
    }

    /// Deals with the end of a peer's process. Its packets are read first.
    pub(super) fn peer_is_gone(&mut self, peer: Peer) {
        self.read_packets(peer, PACKETS_QUEUED_MAX);
        if self.slots.peek(peer).is_some_and(|slot| !matches!(slot, Slot::Free { .. })) {
            self.lose(peer);
        }
    }

    fn lose(&mut self, peer: Peer) {
        let reason = match self.slots.peek(peer) {
            Some(Slot::Connecting(_)) => DisconnectReason::Refused(Refusal::Closed),
            _ => DisconnectReason::Died,
        };
        self.drain_and_end(peer.index, reason);
    }

    fn hear_peer(
        &mut self,
        peer: Peer,
        bytes: &[u8],
        descriptors: Vec<ReceivedFd>,
    ) -> Result<(), DisconnectReason> {
        let is_connected = self.slots.ring(peer).is_some();
        match (Packet::parse(bytes), is_connected) {
            (Ok(Packet::Welcome(theirs)), false) => self.take_welcome(peer, theirs, descriptors),
            (Ok(Packet::Refuse(refusal)), false) => Err(DisconnectReason::Refused(refusal)),
            // A refusal in another version of the protocol cannot be read further.
            (Err(PacketError::Version), false) => Err(DisconnectReason::Refused(Refusal::Version)),
            // The peer has ended now, even if another process holds a copy of its socket.
            (Ok(Packet::Goodbye), true) => {
                self.drain_and_end(peer.index, DisconnectReason::Closed);
                Ok(())
            }
            (Ok(Packet::Wake), true) => Ok(()),
            (Ok(Packet::Heap { id, block_bytes, blocks }), true) => {
                self.borrow_heap(peer, id, (block_bytes, blocks), descriptors)
            }
            (Ok(Packet::Bulk), true) => self.accept_bulk(peer, descriptors),
            _ => Err(DisconnectReason::Broken),
        }
    }

    /// Keeps a peer's bulk area until the record that moves there.
    fn accept_bulk(&mut self, peer: Peer, mut files: Vec<ReceivedFd>) -> Result<(), DisconnectReason> {
        let connection = self.slots.ring(peer).ok_or(DisconnectReason::Broken)?;
        if !connection.may_be_offered_window() {
            return Err(DisconnectReason::Broken);
        }
        let file = files.pop().ok_or(DisconnectReason::Broken)?;
        connection.accept_large_window(map(file, LARGE_WINDOW_BYTES).map_err(|_| DisconnectReason::Broken)?);
        Ok(())
    }

    /// Takes a peer's heap into use, for the messages that it will lend.
    fn borrow_heap(
        &mut self,
        peer: Peer,
        id: u32,
        (block_bytes, blocks): (u64, u32),
        mut files: Vec<ReceivedFd>,
    ) -> Result<(), DisconnectReason> {
        let other_user = self.slots.ring(peer).ok_or(DisconnectReason::Broken)?.other_user;
        let of_user = other_user.map(|user| self.slots.borrowed_from(user));
        let connection = self.slots.ring(peer).ok_or(DisconnectReason::Broken)?;
        let (count, borrowed) = of_user.unwrap_or_else(|| connection.borrowed());
        let block_bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX);
        let is_sound = connection.may_borrow_heap(id)
            && count < HEAPS_OF_USER_MAX
            && BLOCK_BYTES.contains(&block_bytes)
            && block_bytes.is_multiple_of(64)
            && (1..=BLOCKS_MAX).contains(&blocks);
        let length = heap_bytes(block_bytes, blocks)
            .filter(|length| is_sound && borrowed + *length as u64 <= self.options.borrow_bytes_max)
            .ok_or(DisconnectReason::Broken)?;
        let memory = map(files.pop().ok_or(DisconnectReason::Broken)?, length)
            .map_err(|_| DisconnectReason::Broken)?;
        connection.borrow_heap(memory, block_bytes, blocks);
        Ok(())
    }
}
